//! Programs that fork (`ibv_fork_init`).
//!
//! Memory that a device writes to must stay the same pages. A fork makes the parent's pages copy-on-write: the first of parent
//! and child that writes gets a copy, and the device may be left with the other's. Since Linux 5.12 the kernel copies pinned
//! pages for the child when it forks, so that nothing has to be done ([`ForkStatus::Unneeded`]). On older kernels
//! [`fork_init`], before any memory is registered, has the library take registered memory out of children
//! (`MADV_DONTFORK`), which costs a system call for each registration; memory that shares a page with registered memory is then
//! missing in the child, too.
//!
//! With any kernel, a child has no part in the devices that its parent has opened: their objects are not to be used there.
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
        /// A child that writes to registered memory, or a parent after the fork, may disturb transfers.
        Disabled = ibv_fork_status::IBV_FORK_DISABLED.0,
        /// Registered memory is not in children.
        Enabled = ibv_fork_status::IBV_FORK_ENABLED.0,
        /// The kernel sees to it.
        Unneeded = ibv_fork_status::IBV_FORK_UNNEEDED.0,
    }
}

display_as_debug!(ForkStatus);

/// Makes forks safe on kernels before 5.12 (`ibv_fork_init`). `RDMAV_FORK_SAFE` in the environment does the same. On newer
/// kernels it does nothing that is not done already.
///
/// # Errors
///
/// `EINVAL`: memory has been registered before. `ENOSYS`: the kernel has no `MADV_DONTFORK`.
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
/// The library is older than rdma-core 35 and cannot say.
///
/// # References
///
/// `man ibv_is_fork_initialized`
pub fn is_fork_initialized(provider: Provider) -> Result<ForkStatus, MissingSymbol> {
    let ask = provider.verbs().ibv_is_fork_initialized()?;
    // SAFETY: the function has no arguments.
    Ok(ForkStatus::from_raw(unsafe { ask() }.0))
}
