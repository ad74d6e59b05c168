//! Direct verbs: what a vendor's own library adds to libibverbs.
//!
//! Each vendor has a plug-in of its own: [`mlx5`](crate::mlx5) (feature `mlx5`, `libmlx5.so.1`) and [`efa`](crate::efa)
//! (feature `efa`, `libefa.so.1`). Its `DirectVerbs` is what there is to begin with: it is made of an open device, loads the
//! library on first use, and asks it whether the device is one of its own. So whoever has a `DirectVerbs` has both, and whoever
//! has not is told what is missing by a [`DirectVerbsError`].
//!
//! The plug-ins make what sideway has already: queue pairs and completion queues are described by sideway's own builders, to
//! which a plug-in adds its options; what comes of it is posted to and polled like any other.
//!
//! **Not run on hardware.** The machines that this project is tested on have no such devices. The calls, their arguments
//! and their errors are tested over a device that is made up, against the layouts and the manual pages of rdma-core.

use std::io;

use rdma_mummy_sys::LoadError;

use crate::ibverbs::Unsupported;

/// A device has no direct verbs.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DirectVerbsError {
    /// The library that has them is not there, or cannot be used.
    #[error("no direct verbs of {vendor} for device {device}: {source}")]
    Library {
        /// Whose direct verbs were asked for.
        vendor: &'static str,
        /// The device's name.
        device: String,
        /// Which library, and what was tried.
        source: LoadError,
    },
    /// The device is another vendor's, or the library is too old to say whether it is.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    /// The library does not answer.
    #[error("{verb} failed for device {device}: {source}")]
    Failed {
        /// The C function.
        verb: &'static str,
        /// The device's name.
        device: String,
        /// What the library said.
        source: io::Error,
    },
}

impl DirectVerbsError {
    #[cold]
    pub(crate) fn library(device: String, vendor: &'static str, source: &LoadError) -> Self {
        Self::Library { vendor, device, source: source.clone() }
    }
}
