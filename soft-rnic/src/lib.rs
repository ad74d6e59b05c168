//! A software RDMA device in user space.
//!
//! `soft0` is an RDMA device of this host, for the processes of one user. It needs no NIC, root
//! privileges, kernel module or rdma-core. It supports reliable and unreliable connections,
//! datagrams, shared receive queues, RDMA operations and atomics between any two processes. It is
//! meant for development and tests: measurements over it show this host's processors and memory.
//!
//! It implements the interface of libibverbs: [`provider`] returns a table of its functions, for
//! every program that works with a [`Provider`]. Most programs use it through `sideway` with the
//! feature `soft`. This is the same by hand:
//!
//! ```
//! use std::ffi::CStr;
//! use std::ptr;
//!
//! let provider = soft_rnic::provider();
//! let lib = provider.verbs();
//! // SAFETY: the list and the context are used while they live, and given back once.
//! unsafe {
//!     let devices = (lib.ibv_get_device_list)(ptr::null_mut());
//!     assert!(!devices.is_null(), "{}", std::io::Error::last_os_error());
//!     let name = CStr::from_ptr((lib.ibv_get_device_name)(*devices));
//!     assert_eq!(name, c"soft0");
//!     let context = (lib.ibv_open_device)(*devices);
//!     (lib.ibv_free_device_list)(devices);
//!     assert!(!context.is_null(), "{}", std::io::Error::last_os_error());
//!     // Domains, queues, queue pairs: as in C.
//!     (lib.ibv_close_device)(context);
//! }
//! ```
//!
//! # Configuration
//!
//! Configure the device by the environment (`SOFT_RNIC_DEVICES`, `SOFT_RNIC_MODE`, ...), or pass a
//! [`Config`] to [`provider_with`] before the devices are first listed. In [`Mode::Inline`] the
//! call that posts a request executes it. In [`Mode::Deferred`] a request is outstanding until
//! completions are polled, as in hardware. Processes see each other if they have the same
//! [`fabric`](Config::fabric).
//!
//! # Faults and statistics
//!
//! [`faults`] injects faults on demand. [`statistics`] returns the open objects of this process and
//! the paths that its payload has taken. [`status::processes`] asks the other processes of this
//! user.
//!
//! # Guarantees
//!
//! - Another user of the host cannot access anything.
//! - A process of the same user may change registered memory, as a debugger could. It cannot make
//!   this process touch other memory, loop or panic.
//! - After memory was taken from the device (`ibv_dereg_mr` and similar calls have returned 0), no
//!   peer touches it. If a peer does not release the memory in time, the call fails with `EBUSY`,
//!   and the memory must be kept.
//!
//! A forked child cannot use its parent's device: calls fail with `EIO` until the child opens the
//! device itself.
//!
//! The user guide is `docs/soft-rnic.md` in the repository; `ARCHITECTURE.md` explains how the
//! device works.

#[macro_use]
mod debug_as_text;

mod cm;
mod config;
mod engine;
pub mod faults;
mod node;
mod objects;
mod platform;
mod queue_pair;
pub mod rdmacm;
#[cfg(feature = "rsockets")]
mod rsocket;
mod shared;
pub mod status;
mod sync;
pub mod verbs;

/// Entry points of the fuzz targets in `fuzz/`.
#[cfg(fuzzing)]
pub mod testing {
    pub use crate::cm::hostile::hostile_messages;
    pub use crate::shared::hostile::hostile_segment;
}

use std::sync::OnceLock;

pub use config::{Config, ConfigError, Faults, Limits, Link, MAX_DEVICES, MAX_PORTS, Mode, Path};
use rdma_mummy_sys::Provider;

use crate::objects::rnic::Rnic;
use crate::objects::setup::ProcessSetup;

/// Returns the provider of the software devices, and of no others.
///
/// This call opens nothing. The first call of `ibv_get_device_list` reads the configuration from
/// the environment ([`Config::from_env`]), unless [`provider_with`] was called before. If a
/// variable has an invalid value, that call logs it and fails with `EINVAL`.
pub fn provider() -> Provider {
    static PROVIDER: OnceLock<Provider> = OnceLock::new();
    // SAFETY: the functions of this crate implement the C functions of the same names.
    *PROVIDER.get_or_init(|| unsafe { Provider::from_tables("soft", verbs::table(), Some(rdmacm::table())) })
}

/// Checks whether the devices can be listed. The error explains what is wrong with the
/// configuration, for which `ibv_get_device_list` itself can only return `EINVAL`.
///
/// # Errors
///
/// A variable has an invalid value. Once the devices were listed, this always succeeds.
pub fn check_configuration() -> Result<(), ConfigError> {
    ProcessSetup::get().map(drop)
}

/// Returns the open objects of this process and the paths that its payload has taken; `None` if no
/// software device is open.
pub fn statistics() -> Option<status::Statistics> {
    let rnic = Rnic::current().filter(|rnic| !rnic.node().is_forked())?;
    Some(rnic.statistics())
}

/// Why [`provider_with`] refused a configuration.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SetupError {
    /// A value of the configuration is invalid.
    #[error(transparent)]
    Invalid(#[from] ConfigError),
    /// The devices of this process were listed before, with another configuration.
    #[error(
        "this process has set its devices up with another configuration; call provider_with before they are first listed"
    )]
    Done,
}

debug_as_text!(SetupError);

/// Returns [`provider`] with this configuration instead of the environment's.
///
/// The devices are set up once for the whole process.
///
/// # Errors
///
/// [`SetupError`] if the configuration is invalid, or the process has a different one already.
pub fn provider_with(config: Config) -> Result<Provider, SetupError> {
    let setup = ProcessSetup::with(config.clone())?;
    if setup.config == config { Ok(provider()) } else { Err(SetupError::Done) }
}
