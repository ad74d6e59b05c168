//! The configuration and the devices, which a process settles once.

use std::sync::{Mutex, OnceLock, PoisonError};

use super::device::Device;
use crate::config::{Config, ConfigError, Limits};
use crate::faults::{self, Rule, Trait};
use crate::platform::network;

/// The configuration and the devices of this process.
#[derive(Debug)]
pub(crate) struct ProcessSetup {
    pub(crate) config: Config,
    /// The limits of the configuration, lowered by fault rules.
    pub(crate) limits: Limits,
    pub(crate) devices: Vec<Device>,
}

static SETUP: OnceLock<ProcessSetup> = OnceLock::new();

impl ProcessSetup {
    fn new(config: Config) -> Result<Self, ConfigError> {
        config.validate()?;
        let addresses = network::host_addresses();
        let devices = (0..config.devices).map(|number| Device::new(number, &config, &addresses));
        let (mut devices, mut limits): (Vec<_>, _) = (devices.collect(), config.limits);
        let (made_so, rules): (Vec<_>, Vec<_>) =
            config.fault_rules()?.into_iter().partition(|rule| rule.of_device().is_some());
        for (of, which) in made_so.iter().filter_map(Rule::of_device) {
            if let Trait::Limit(name, value) = of {
                limits.lower(name, *value);
            }
            let concerned = |device: &&mut Device| which.is_none_or(|which| which == device.number);
            devices.iter_mut().filter(concerned).for_each(|device| device.apply_trait(of));
        }
        if !rules.is_empty() {
            faults::install(rules, config.seed);
        }
        Ok(Self { config, limits, devices })
    }

    /// The setup, if it was made.
    pub(crate) fn made() -> Option<&'static Self> {
        SETUP.get()
    }

    /// The setup. The first call makes it from the environment.
    ///
    /// # Errors
    ///
    /// A variable has an invalid value. A later call reads the environment again.
    pub(crate) fn get() -> Result<&'static Self, ConfigError> {
        match SETUP.get() {
            Some(setup) => Ok(setup),
            None => Self::first(Config::from_env),
        }
    }

    /// Makes the setup from this configuration. If a setup exists already, returns that one.
    ///
    /// # Errors
    ///
    /// A field has an invalid value.
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
