//! libibverbs: devices, memory, completion queues and queue pairs.

mod access;
pub mod address;
pub mod address_handle;
mod by_address;
pub mod clock;
pub mod completion;
pub mod completion_counter;
pub mod connect;
pub mod counters;
mod data_in_order;
pub mod device;
pub mod device_attr;
pub mod device_context;
mod device_file;
pub mod device_memory;
pub mod dma_buf;
pub mod dma_handle;
pub mod ece;
mod endpoint_fields;
pub mod event;
pub mod flow;
pub mod fork;
mod gid_table;
pub mod import;
mod local_path;
pub mod memory_region;
pub mod memory_window;
pub mod multicast;
pub mod parent_domain;
pub mod partition;
pub mod port;
pub mod protection_domain;
pub mod provider_buffer;
pub mod queue_pair;
mod quirks;
pub mod rate;
pub(crate) mod readiness;
pub mod resolve;
pub mod srq;
mod sysfs;
pub mod thread_domain;
pub(crate) mod types;
mod unsupported;
pub mod xrc;

pub use access::AccessFlags;
pub use data_in_order::{DataInOrder, DataInOrderQuery};
pub use unsupported::Unsupported;

use std::io;

/// Converts the result of a verb that returns an error number.
#[inline]
pub(crate) fn check(result: core::ffi::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(os_error(result)) }
}

/// Converts an error number of a verb: positive, negative from some old providers, or -1 with
/// `errno` set.
#[cold]
pub(crate) fn os_error(result: core::ffi::c_int) -> io::Error {
    if result == -1 {
        io::Error::last_os_error()
    } else {
        io::Error::from_raw_os_error(result.saturating_abs())
    }
}
