//! Direct verbs: vendor-specific extensions of libibverbs, here and in other crates.
//!
//! Each vendor has a module behind a feature of the same name: `mlx5` (`libmlx5.so.1`) and `efa`
//! (`libefa.so.1`). Its `DirectVerbs` is the entry point. It is made from an open device, loads the
//! library on first use, and checks that the device belongs to the vendor. If the library or the
//! device is missing, an [`Error`] names which.
//!
//! The modules reuse this crate's queue pairs and completion queues: they add options to its
//! builders. The resulting objects are posted to and polled like any other.
//!
//! **Not run on hardware.** The machines on which this project is tested have no such devices. The
//! calls, their arguments and their errors are tested with a fake device, against the layouts and
//! the manual pages of rdma-core.
//!
//! # For another vendor
//!
//! A crate outside of this one adds a vendor in the same way. `mlx5` and `efa` use this module and
//! the public API, and nothing else: a test compiles them without access to the rest. The workspace
//! has an example, the crate `acme-direct` in `examples/vendor`, over a made-up library.
//!
//! 1. **The library.** [`library_table!`](crate::sys::library_table) defines the table of its
//!    functions. [`Provider::library`](crate::Provider::library) loads the library, and checks that
//!    it uses the libibverbs of the provider. [`no_library`] is the error if it is missing.
//! 2. **The token.** A type `DirectVerbs` keeps a [`DeviceContext`] and the table. Its constructor
//!    asks the library whether the device is the vendor's, because a vendor's function mistakes
//!    another vendor's object for its own. Every other call is a method of the token. It compares
//!    the context of each object that it passes to the library. Errors are [`Error`]s, made with
//!    [`check`] and [`Error::of_device`], and [`Unsupported`](crate::ibverbs::Unsupported).
//! 3. **Objects.** [`create_queue_pair`], [`create_silent_queue_pair`] and
//!    [`create_completion_queue`] make this crate's objects with the vendor's function. The
//!    description stays this crate's builder, which checks it; the vendor's options are the
//!    closure's. [`memory_region`] takes over a region.
//! 4. **Requests.** A trait of the vendor's crate adds methods to
//!    [`WorkRequestHandle`](crate::ibverbs::queue_pair::WorkRequestHandle). A request that consists of
//!    this crate's calls can be for any guard. Otherwise the vendor's queue pair is a type that wraps
//!    this crate's [extended one](crate::ibverbs::queue_pair::ExtendedQueuePair). Its guard is a
//!    [`VendorList`], to which [`append_request`] appends the vendor's requests. [`WholePair`] lets
//!    the pair be a [`QueuePair`](crate::ibverbs::queue_pair::QueuePair).
//!
//! The path of a request has no dynamic dispatch beyond C's, and other queue pairs have no branch for
//! vendors.

mod create;
mod list;

use std::io;

use rdma_mummy_sys::LoadError;

pub(crate) use create::KeptByObject;
pub use create::{
    CreateFunction, KeptQueue, complete_in_one, create_completion_queue, create_queue_pair,
    create_silent_queue_pair, memory_region,
};
pub use list::{
    VendorList, WholePair, append_request, forbid_inline, set_overwrites_when_full, with_lists_closed,
};

use crate::error::{Error, ErrorKind};
#[cfg(doc)]
use crate::ibverbs::device_context::DeviceContext;

/// The error for a vendor's library that cannot be loaded. It names the device, the vendor and,
/// through its source, the library and the remedy. Its kind is [`ErrorKind::Library`].
#[cold]
pub fn no_library(device: String, verb: &'static str, vendor: &'static str, source: &LoadError) -> Error {
    Error::caused(verb, ErrorKind::Library, source.clone())
        .of(format!("device {device}"))
        .reason(format!("the device has no direct verbs of {vendor}"))
}

/// Converts the result of a C function that returns 0 or an error number. The number may be
/// positive or negative, or -1 with the number in `errno`: libraries differ.
///
/// # Errors
///
/// The error number, if `result` is not 0.
#[inline]
pub fn check(result: core::ffi::c_int) -> io::Result<()> {
    crate::ibverbs::check(result)
}
