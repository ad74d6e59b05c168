//! `rfcntl`, which C declares with a variable number of arguments.
//!
//! Rust cannot define such a function. On the supported processors, the Linux ABI passes an integer
//! third argument of a variadic function like that of any other function. Therefore the table's
//! function is a jump to one with three arguments.

#[cfg(not(any(miri, loom)))]
use std::ffi::c_int;

use rdma_mummy_sys::RdmaCm;

#[cfg(not(any(miri, loom)))]
pub(super) const fn add_to(table: RdmaCm) -> RdmaCm {
    RdmaCm { rfcntl: Some(soft_rnic_rfcntl_any), ..table }
}

/// Miri and loom cannot run assembly, so the table lacks `rfcntl` there.
#[cfg(any(miri, loom))]
pub(super) const fn add_to(table: RdmaCm) -> RdmaCm {
    table
}

#[cfg(not(any(miri, loom)))]
unsafe extern "C" {
    fn soft_rnic_rfcntl_any(socket: c_int, command: c_int, ...) -> c_int;
}

#[cfg(all(target_arch = "x86_64", not(any(miri, loom))))]
core::arch::global_asm!(
    ".pushsection .text.soft_rnic_rfcntl_any, \"ax\", @progbits",
    ".globl soft_rnic_rfcntl_any",
    ".hidden soft_rnic_rfcntl_any",
    ".type soft_rnic_rfcntl_any, @function",
    "soft_rnic_rfcntl_any:",
    "endbr64",
    "jmp {rfcntl}",
    ".size soft_rnic_rfcntl_any, . - soft_rnic_rfcntl_any",
    ".popsection",
    rfcntl = sym super::calls::rfcntl,
);

#[cfg(all(target_arch = "aarch64", not(any(miri, loom))))]
core::arch::global_asm!(
    ".pushsection .text.soft_rnic_rfcntl_any, \"ax\", @progbits",
    ".globl soft_rnic_rfcntl_any",
    ".hidden soft_rnic_rfcntl_any",
    ".type soft_rnic_rfcntl_any, @function",
    "soft_rnic_rfcntl_any:",
    "hint #34", // bti c
    "b {rfcntl}",
    ".size soft_rnic_rfcntl_any, . - soft_rnic_rfcntl_any",
    ".popsection",
    rfcntl = sym super::calls::rfcntl,
);
