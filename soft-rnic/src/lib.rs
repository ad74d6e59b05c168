//! A software RDMA device in user space.
//!
//! `soft0` is an RDMA device of this host, for the processes of one user: reliable and unreliable
//! connections, datagrams, shared receive queues and one-sided operations between any two of them, without a NIC,
//! root or a kernel module. It speaks libibverbs' own interface: [`provider`] is a table of its functions.

mod platform;
mod shared;
mod sync;
pub mod verbs;

/// What the fuzz targets in `fuzz/` call.
#[cfg(fuzzing)]
pub mod testing {
    pub use crate::shared::hostile::hostile_segment;
}

use std::sync::OnceLock;

use rdma_mummy_sys::Provider;

/// The provider that has the software devices, and no others.
///
/// The first call reads the configuration from the environment; it opens nothing.
pub fn provider() -> Provider {
    static PROVIDER: OnceLock<Provider> = OnceLock::new();
    // SAFETY: the functions of this crate do what the C functions of the same names do; that is what it is for.
    *PROVIDER.get_or_init(|| unsafe { Provider::from_tables("soft", verbs::table(), None) })
}
