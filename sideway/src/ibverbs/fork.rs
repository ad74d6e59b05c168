//! Fork safety: registered memory in programs that fork (`ibv_fork_init`).
//!
//! A device keeps writing to the pages that were registered. A fork makes the parent's pages
//! copy-on-write: whichever process writes first gets a copy, and the device may be left with the
//! other's page. Since Linux 5.12 the kernel copies pinned pages for the child, so that nothing
//! needs to be done ([`ForkStatus::Unneeded`]).
//!
//! On older kernels, call [`fork_init`] before any memory is registered. The library then excludes
//! registered memory from children (`MADV_DONTFORK`), which costs one system call for each
//! registration. Other memory in the same pages is missing in the child too.
//!
//! With any kernel, a child must not use the devices that its parent opened, nor their objects.
//!
//! ```
//! # #[cfg(feature = "soft")]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use sideway::ibverbs::fork::{ForkStatus, fork_init, is_fork_initialized};
//!
//! let provider = sideway::ProviderChoice::Soft.select()?.provider();
//! if is_fork_initialized(provider)? == ForkStatus::Disabled {
//!     fork_init(provider)?;
//! }
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "soft"))]
//! # fn main() {}
//! ```

use rdma_mummy_sys::types::ibv_fork_status;
use rdma_mummy_sys::{MissingSymbol, Provider};

use super::check;
use crate::error::Error;

c_enum! {
    /// Whether forks are safe (`ibv_fork_status`).
    pub struct ForkStatus(u32) {
        /// Not safe: writes of the child, or of the parent after the fork, may disturb transfers.
        Disabled = ibv_fork_status::IBV_FORK_DISABLED.0,
        /// Safe: registered memory is excluded from children.
        Enabled = ibv_fork_status::IBV_FORK_ENABLED.0,
        /// Safe: the kernel copies pinned pages for children.
        Unneeded = ibv_fork_status::IBV_FORK_UNNEEDED.0,
    }
}

display_as_debug!(ForkStatus);

/// Makes forks safe on kernels before 5.12 (`ibv_fork_init`). The environment variable
/// `RDMAV_FORK_SAFE` has the same effect. On newer kernels it changes nothing.
///
/// # Errors
///
/// Fails with `EINVAL` if memory has already been registered, and with `ENOSYS` if the kernel has
/// no `MADV_DONTFORK`.
///
/// # References
///
/// `man ibv_fork_init`
pub fn fork_init(provider: Provider) -> Result<(), Error> {
    // SAFETY: the function has no arguments, and takes the library's own locks.
    check(unsafe { (provider.verbs().ibv_fork_init)() }).map_err(|source| {
        Error::os("ibv_fork_init", source).remedy("call it before any memory is registered")
    })
}

/// Whether forks are safe (`ibv_is_fork_initialized`).
///
/// # Errors
///
/// Fails if the library is older than rdma-core 35, which lacks the function.
///
/// # References
///
/// `man ibv_is_fork_initialized`
pub fn is_fork_initialized(provider: Provider) -> Result<ForkStatus, MissingSymbol> {
    let ask = provider.verbs().ibv_is_fork_initialized()?;
    // SAFETY: the function has no arguments, and only reads the library's state.
    Ok(ForkStatus::from_raw(unsafe { ask() }.0))
}
