//! What is settled once a process: the configuration, and the devices that follow from it.

use std::sync::{Mutex, OnceLock, PoisonError};

use super::device::Device;
use crate::config::{Config, ConfigError};
use crate::platform::network;

/// The configuration and the devices of this process.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) config: Config,
    pub(crate) devices: Vec<Device>,
}

static SETUP: OnceLock<Setup> = OnceLock::new();

impl Setup {
    fn new(config: Config) -> Result<Self, ConfigError> {
        config.validate()?;
        let addresses = network::host_addresses();
        let devices = (0..config.devices).map(|number| Device::new(number, &config, &addresses)).collect();
        Ok(Self { config, devices })
    }

    /// The setup; the first call makes it, from the environment.
    ///
    /// # Errors
    ///
    /// A variable has a value that it cannot have. A later call looks again.
    pub(crate) fn get() -> Result<&'static Self, ConfigError> {
        match SETUP.get() {
            Some(setup) => Ok(setup),
            None => Self::first(Config::from_env),
        }
    }

    /// Makes the setup of this configuration, if there is none yet; returns the one that there is.
    ///
    /// # Errors
    ///
    /// A field has a value that it cannot have.
    pub(crate) fn with(config: Config) -> Result<&'static Self, ConfigError> {
        config.validate()?;
        Self::first(|| Ok(config))
    }

    fn first(config: impl FnOnce() -> Result<Config, ConfigError>) -> Result<&'static Self, ConfigError> {
        static FIRST: Mutex<()> = Mutex::new(());
        let _first = FIRST.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(setup) = SETUP.get() {
            return Ok(setup);
        }
        let setup = Self::new(config()?)?;
        Ok(SETUP.get_or_init(|| setup))
    }
}
