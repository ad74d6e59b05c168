//! Direct verbs: what a vendor's own library adds to libibverbs.
//!
//! Each vendor has a plug-in of its own: [`mlx5`](crate::mlx5) (feature `mlx5`, `libmlx5.so.1`) and [`efa`](crate::efa)
//! (feature `efa`, `libefa.so.1`). Its `DirectVerbs` is what there is to begin with: it is made of an open device, loads the
//! library on first use, and asks it whether the device is one of its own. So whoever has a `DirectVerbs` has both, and whoever
//! has not gets an [`Error`](crate::Error) that names what is missing.
//!
//! The plug-ins make what sideway has already: queue pairs and completion queues are described by sideway's own builders, to
//! which a plug-in adds its options; what comes of it is posted to and polled like any other.
//!
//! **Not run on hardware.** The machines that this project is tested on have no such devices. The calls, their arguments
//! and their errors are tested over a device that is made up, against the layouts and the manual pages of rdma-core.

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
