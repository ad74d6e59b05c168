//! `rfcntl`, which C declares with any number of arguments.
//!
//! Rust cannot define such a function. On the processors that the device is for, Linux passes the third argument of one where
//! it passes that of any other function, if it is an integer; so the function of the table is a jump to one of three.

#[cfg(not(any(miri, loom)))]
use std::ffi::c_int;

use rdma_mummy_sys::RdmaCm;

#[cfg(not(any(miri, loom)))]
pub(super) const fn add_to(table: RdmaCm) -> RdmaCm {
    RdmaCm { rfcntl: Some(soft_rnic_rfcntl_any), ..table }
}

/// Without the machine's own language.
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
