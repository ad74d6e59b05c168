//! Runs a suite of device tests on each available kind of device.
//!
//! The provider and the mode of a software device are process-wide. So a suite's program runs
//! itself once for each configuration below, unless `SIDEWAY_PROVIDER` selects the devices. Every
//! machine has a software device, so a suite that runs no test on one has failed.

use std::env;
use std::process::ExitCode;

use sideway::provider::{PROVIDER_VARIABLE, ProviderChoice, ProviderError};
use test_harness::{REQUIRE, Run};

/// Variables that name a device of the system.
const DEVICES_OF_THE_SYSTEM: [&str; 2] = ["SIDEWAY_TEST_DEVICE", "SOFTROCE_DEVICE"];

const FAILURE: u8 = 101;

const INFINIBAND: &[(&str, &str)] = &[("SOFT_RNIC_LINK", "ib"), ("SOFT_RNIC_DEVICES", "2"), (REQUIRE, "1")];

/// One configuration of a suite.
struct Configuration {
    name: &'static str,
    choice: ProviderChoice,
    /// Further environment variables.
    variables: &'static [(&'static str, &'static str)],
}

const CONFIGURATIONS: [Configuration; 4] = [
    Configuration { name: "the system's devices", choice: ProviderChoice::System, variables: &[] },
    Configuration {
        name: "software devices, inline",
        choice: ProviderChoice::Soft,
        variables: &[("SOFT_RNIC_MODE", "inline"), ("SOFT_RNIC_DEVICES", "2"), (REQUIRE, "1")],
    },
    Configuration {
        name: "software devices, deferred",
        choice: ProviderChoice::Soft,
        variables: &[("SOFT_RNIC_MODE", "deferred"), ("SOFT_RNIC_DEVICES", "2"), (REQUIRE, "1")],
    },
    Configuration {
        name: "software devices, InfiniBand",
        choice: ProviderChoice::Soft,
        variables: INFINIBAND,
    },
];

/// Whether a suite also runs over a software device whose ports have no GID that is needed.
#[derive(Clone, Copy, PartialEq, Eq)]
#[allow(dead_code, reason = "each suite is of one kind")]
pub(crate) enum Links {
    Ethernet,
    All,
}

/// Runs a suite in this process if the environment selects the devices, otherwise in one process
/// for each configuration.
pub(crate) fn in_each_configuration(links: Links, suite: impl FnOnce() -> ExitCode) -> ExitCode {
    let chosen = env::var_os(PROVIDER_VARIABLE).is_some_and(|name| !name.is_empty());
    // A list of the tests is the same in all configurations, so it is printed once.
    if chosen || test_harness::arguments().list {
        return suite();
    }
    let used = CONFIGURATIONS.iter().filter(|used| links == Links::All || used.variables != INFINIBAND);
    let runs: Vec<_> = used.filter_map(Configuration::run).collect();
    if test_harness::run_all(&runs) { ExitCode::SUCCESS } else { ExitCode::from(FAILURE) }
}

impl Configuration {
    /// A run of this program, if this build has the devices.
    fn run(&self) -> Option<Run> {
        let title = format!("over {}", self.name);
        if matches!(self.choice.select(), Err(ProviderError::NotBuilt)) {
            println!("\n--- {title}\nskipped: this build has none (sideway's feature `soft`)");
            return None;
        }
        let mut run = Run::new(&title).variable(PROVIDER_VARIABLE, self.choice.name());
        if self.choice == ProviderChoice::Soft {
            let [(_, kind), ..] = self.variables else { unreachable!("a software device has variables") };
            run = run.in_own_fabric(kind);
            run = DEVICES_OF_THE_SYSTEM.iter().fold(run, |run, name| run.without(name));
        }
        Some(self.variables.iter().fold(run, |run, (name, value)| run.variable(name, value)))
    }
}
