//! The private functions of libibverbs, which providers import and never call here.
//!
//! A name is in several version nodes at once, which no Rust attribute can express, so assembly
//! gives each label its version. `private.s` has a line for every name and node, which names one of
//! the labels defined here.

use core::arch::global_asm;
use core::ffi::{c_char, c_int, c_void};

use rdma_mummy_sys::types::{ibv_context, ibv_gid_entry, ibv_gid_type, ibv_wr_opcode};

use super::TABLE;
use crate::export::set_errno;

/// A tail jump to a function.
#[cfg(target_arch = "x86_64")]
macro_rules! jump {
    () => {
        "jmp"
    };
}
#[cfg(target_arch = "aarch64")]
macro_rules! jump {
    () => {
        "b"
    };
}

global_asm!(
    ".macro label name, kind",
    "    .p2align 4",
    "    .type soft_rnic_\\name, %\\kind",
    "soft_rnic_\\name:",
    ".endm",
    ".macro alias name, number, behaviour",
    "    .globl soft_rnic_\\number\\()_\\name",
    ".ifc \\behaviour, flag",
    "    .type soft_rnic_\\number\\()_\\name, %object",
    "    .size soft_rnic_\\number\\()_\\name, 1",
    ".else",
    "    .type soft_rnic_\\number\\()_\\name, %function",
    ".endif",
    "    .set soft_rnic_\\number\\()_\\name, soft_rnic_\\behaviour",
    ".endm",
    ".macro private name, number, behaviour",
    "    alias \\name, \\number, \\behaviour",
    "    .symver soft_rnic_\\number\\()_\\name, \\name@IBVERBS_PRIVATE_\\number",
    ".endm",
    ".macro private_default name, number, behaviour",
    "    alias \\name, \\number, \\behaviour",
    "    .symver soft_rnic_\\number\\()_\\name, \\name@@IBVERBS_PRIVATE_\\number",
    ".endm",
    ".section .text.soft_rnic_private, \"ax\", %progbits",
    "label nothing, function",
    "    ret",
    "label failing, function",
    concat!(jump!(), " {failing}"),
    "label minus_one, function",
    concat!(jump!(), " {minus_one}"),
    "label null, function",
    concat!(jump!(), " {null}"),
    "label query_gid_type, function",
    concat!(jump!(), " {query_gid_type}"),
    "label wr_opcode_str, function",
    concat!(jump!(), " {wr_opcode_str}"),
    // A `bool` variable that providers set.
    ".section .bss.soft_rnic_private, \"aw\", %nobits",
    "label flag, object",
    "    .skip 16",
    include_str!("private.s"),
    ".text",
    failing = sym failing,
    minus_one = sym minus_one,
    null = sym null,
    query_gid_type = sym query_gid_type,
    wr_opcode_str = sym wr_opcode_str,
);

/// Stands for every function that returns an error number.
extern "C" fn failing() -> c_int {
    set_errno(libc::EOPNOTSUPP);
    libc::EOPNOTSUPP
}

/// Stands for every function that returns a length, or -1.
extern "C" fn minus_one() -> c_int {
    set_errno(libc::EOPNOTSUPP);
    -1
}

/// Stands for every function that returns a pointer, or a count.
extern "C" fn null() -> *mut c_void {
    set_errno(libc::EOPNOTSUPP);
    core::ptr::null_mut()
}

/// `ibv_query_gid_type(context, port_num, index, type)`: a GID's type in sysfs' encoding.
/// `ibv_devinfo` calls it.
///
/// # Safety
///
/// The conditions of `ibv_query_gid_ex`; `kind` is valid for a write.
unsafe extern "C" fn query_gid_type(
    context: *mut ibv_context,
    port_num: u8,
    index: u32,
    kind: *mut u32,
) -> c_int {
    // The values of `IBV_GID_TYPE_SYSFS_IB_ROCE_V1` and `IBV_GID_TYPE_SYSFS_ROCE_V2`.
    const IB_OR_ROCE_V1: u32 = 0;
    const ROCE_V2: u32 = 1;
    let mut entry = ibv_gid_entry::default();
    let error = match TABLE._ibv_query_gid_ex {
        // SAFETY: the caller meets the conditions of `ibv_query_gid_ex`, and the entry has the
        // stated size.
        Some(query) => unsafe {
            query(context, port_num.into(), index, &mut entry, 0, size_of::<ibv_gid_entry>())
        },
        None => libc::EOPNOTSUPP,
    };
    if error != 0 {
        set_errno(error);
        return -1;
    }
    let is_v2 = entry.gid_type == ibv_gid_type::IBV_GID_TYPE_ROCE_V2.0;
    // SAFETY: the caller guarantees that `kind` is valid for a write.
    unsafe { kind.write(if is_v2 { ROCE_V2 } else { IB_OR_ROCE_V1 }) };
    0
}

/// `ibv_wr_opcode_str(opcode)`: an opcode's name.
///
/// # Safety
///
/// Every call is safe; the function is `unsafe` because the table's entry is.
unsafe extern "C" fn wr_opcode_str(opcode: ibv_wr_opcode) -> *const c_char {
    match TABLE.ibv_wr_opcode_str {
        // SAFETY: the function accepts any value.
        Some(function) => unsafe { function(opcode) },
        None => c"unknown".as_ptr(),
    }
}
