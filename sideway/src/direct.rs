//! Direct verbs: vendor-specific extensions of libibverbs.
//!
//! Each vendor has a module: [`mlx5`](crate::mlx5) (feature `mlx5`, `libmlx5.so.1`) and
//! [`efa`](crate::efa) (feature `efa`, `libefa.so.1`). Its `DirectVerbs` is the entry point. It is
//! made from an open device, loads the library on first use, and checks that the device belongs to
//! the vendor. If the library or the device is missing, a [`DirectVerbsError`] says which.
//!
//! The modules reuse this crate's queue pairs and completion queues: they add options to its
//! builders. The resulting objects are posted to and polled like any other.
//!
//! **Not run on hardware.** The machines on which this project is tested have no such devices. The
//! calls, their arguments and their errors are tested with a fake device, against the layouts and
//! the manual pages of rdma-core.

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
