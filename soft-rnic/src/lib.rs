//! A software RDMA device in user space.
//!
//! `soft0` is an RDMA device of this host, for the processes of one user: reliable and unreliable
//! connections, datagrams, shared receive queues and one-sided operations between any two of them, without a NIC,
//! root or a kernel module. It speaks libibverbs' own interface: [`provider`] is a table of its functions.

mod config;
mod crash_point;
mod engine;
pub mod faults;
mod node;
mod objects;
mod platform;
mod queue_pair;
mod shared;
pub mod status;
mod sync;
pub mod verbs;

/// What the fuzz targets in `fuzz/` call.
#[cfg(fuzzing)]
pub mod testing {
    pub use crate::shared::hostile::hostile_segment;
}

use std::sync::OnceLock;

pub use config::{Config, ConfigError, Faults, Limits, Mode, Path};
use rdma_mummy_sys::Provider;

use crate::objects::rnic::Rnic;
use crate::objects::setup::Setup;

/// The provider that has the software devices, and no others.
///
/// This opens nothing. The first call of `ibv_get_device_list` reads the configuration from the environment
/// ([`Config::from_env`]), unless [`provider_with`] gave another; if a variable has a value that it cannot have, the call
/// logs that and fails with `EINVAL`.
pub fn provider() -> Provider {
    static PROVIDER: OnceLock<Provider> = OnceLock::new();
    // SAFETY: the functions of this crate do what the C functions of the same names do; that is what it is for.
    *PROVIDER.get_or_init(|| unsafe { Provider::from_tables("soft", verbs::table(), None) })
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
    let setup = Setup::with(config.clone())?;
    if setup.config == config { Ok(provider()) } else { Err(SetupError::Done) }
}
