//! The exports of `libibverbs.so.1`.
//!
//! `cargo xtask bindings` generates `exports.rs`, `private.s`, `private.txt` and the version script
//! `libibverbs.map`.

#[rustfmt::skip]
mod exports;
mod kernel_structs;
pub(crate) mod log;
mod private;
mod sysfs;
mod undeclared;

use rdma_mummy_sys::Verbs;

/// The device's functions. Each export calls its entry directly, because the table is known at
/// compile time.
pub(crate) const TABLE: Verbs =
    Verbs { ibv_get_device_list: log::get_device_list, ..soft_rnic::verbs::table() };
