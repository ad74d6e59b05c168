//! What `libibverbs.so.1` exports.
//!
//! `exports.rs`, `private.s`, `private.txt` and the version script `libibverbs.map` are made by
//! `cargo xtask bindings`.

#[rustfmt::skip]
mod exports;
mod kernel_structs;
pub(crate) mod log;
mod private;
mod sysfs;
mod undeclared;

use rdma_mummy_sys::Verbs;

/// The functions of the device. Each export calls its entry directly: the table is known when it is compiled.
pub(crate) const TABLE: Verbs =
    Verbs { ibv_get_device_list: log::get_device_list, ..soft_rnic::verbs::table() };
