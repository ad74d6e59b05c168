//! A software RDMA device in user space.
//!
//! `soft0` is an RDMA device of this host, for the processes of one user: reliable and unreliable connections, datagrams, shared
//! receive queues, RDMA operations and atomics between any two of them, without a NIC, root, a kernel module or rdma-core.
//! It is for developing and testing; what is measured over it are this host's processors and memory.
//!
//! It speaks libibverbs' own interface: [`provider`] is a table of its functions, with which everything works that works
//! with a [`Provider`]. Most programs use it through `sideway`, whose feature `soft` brings it along; this is the same by hand:
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
//! The environment (`SOFT_RNIC_DEVICES`, `SOFT_RNIC_MODE`, ...) or a [`Config`] of the program's own, given to
//! [`provider_with`] before the devices are first listed. In [`Mode::Inline`] the call that posts a request executes it; in
//! [`Mode::Deferred`] it is outstanding until completions are polled, as in hardware. Processes see each other if they have
//! the same [`fabric`](Config::fabric).
//!
//! # Faults and statistics
//!
//! [`faults`] makes things go wrong on demand. [`statistics`] says what this process has open and which paths its payload has
//! taken; [`status::processes`] asks the other processes of this user.
//!
//! # What is promised
//!
//! Another user of the host gets nothing. A process of the same user may change payload memory that was registered, as a
//! debugger could; nothing that it does makes this process touch memory outside of what was registered, loop or panic. After
//! memory was taken from the device (`ibv_dereg_mr` and the like have returned 0) no peer touches it; if a peer does not let go
//! of it in time, the call fails with `EBUSY`, and the memory must be kept.
//!
//! A forked child has no part in its parent's device: its calls fail with `EIO`, until it opens one of its own.
//!
//! The guide for users is `docs/soft-rnic.md` in the repository; `ARCHITECTURE.md` there tells how it works.

mod cm;
mod config;
mod engine;
pub mod faults;
mod node;
mod objects;
mod platform;
mod queue_pair;
pub mod rdmacm;
mod rsocket;
mod shared;
pub mod status;
mod sync;
pub mod verbs;

/// What the fuzz targets in `fuzz/` call.
#[cfg(fuzzing)]
pub mod testing {
    pub use crate::cm::hostile::hostile_messages;
    pub use crate::shared::hostile::hostile_segment;
}

use std::sync::OnceLock;

pub use config::{Config, ConfigError, Faults, Limits, MAX_DEVICES, MAX_PORTS, Mode, Path};
use rdma_mummy_sys::Provider;

use crate::objects::rnic::Rnic;
use crate::objects::setup::ProcessSetup;

/// The provider that has the software devices, and no others.
///
/// This opens nothing. The first call of `ibv_get_device_list` reads the configuration from the environment
/// ([`Config::from_env`]), unless [`provider_with`] gave another; if a variable has a value that it cannot have, the call
/// logs that and fails with `EINVAL`.
pub fn provider() -> Provider {
    static PROVIDER: OnceLock<Provider> = OnceLock::new();
    // SAFETY: the functions of this crate do what the C functions of the same names do; that is what it is for.
    *PROVIDER.get_or_init(|| unsafe { Provider::from_tables("soft", verbs::table(), Some(rdmacm::table())) })
}

/// Whether the devices can be listed, and what is wrong with the configuration if not: `ibv_get_device_list` itself can say no
/// more than `EINVAL`.
///
/// # Errors
///
/// A variable has a value that it cannot have. Once the devices have been listed nothing is wrong.
pub fn check_configuration() -> Result<(), ConfigError> {
    ProcessSetup::get().map(drop)
}

/// What this process has open, and which paths its payload has taken; `None` if no software device is open.
pub fn statistics() -> Option<status::Statistics> {
    let rnic = Rnic::current().filter(|rnic| !rnic.node().is_forked())?;
    Some(rnic.statistics())
}

/// Why a configuration was not taken.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SetupError {
    /// The configuration is wrong.
    #[error(transparent)]
    Invalid(#[from] ConfigError),
    /// The devices of this process have been listed already, with another configuration.
    #[error(
        "the devices of this process were set up before, otherwise; give the configuration before they are first listed"
    )]
    Done,
}

/// [`provider`], with a configuration of the program's own instead of the environment's.
///
/// The devices are those of the whole process: they are set up once.
///
/// # Errors
///
/// [`SetupError`]: the configuration is wrong, or the process has another already.
pub fn provider_with(config: Config) -> Result<Provider, SetupError> {
    let setup = ProcessSetup::with(config.clone())?;
    if setup.config == config { Ok(provider()) } else { Err(SetupError::Done) }
}
