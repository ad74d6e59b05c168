//! Direct verbs: vendor-specific extensions of libibverbs.
//!
//! Each vendor has a module: [`mlx5`](crate::mlx5) (feature `mlx5`, `libmlx5.so.1`) and
//! [`efa`](crate::efa) (feature `efa`, `libefa.so.1`). Its `DirectVerbs` is the entry point. It is
//! made from an open device, loads the library on first use, and checks that the device belongs to
//! the vendor. If the library or the device is missing, an [`Error`] names which.
//!
//! The modules reuse this crate's queue pairs and completion queues: they add options to its
//! builders. The resulting objects are posted to and polled like any other.
//!
//! **Not run on hardware.** The machines on which this project is tested have no such devices. The
//! calls, their arguments and their errors are tested with a fake device, against the layouts and
//! the manual pages of rdma-core.

use rdma_mummy_sys::LoadError;

use crate::error::{Error, ErrorKind};

/// The vendor's library cannot be loaded.
#[cold]
pub(crate) fn no_library(
    device: String,
    verb: &'static str,
    vendor: &'static str,
    source: &LoadError,
) -> Error {
    Error::caused(verb, ErrorKind::Library, source.clone())
        .of(format!("device {device}"))
        .reason(format!("the device has no direct verbs of {vendor}"))
}
