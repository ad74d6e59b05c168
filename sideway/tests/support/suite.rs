//! What the suites of device tests share: the devices that they run over.
//!
//! A provider, and the mode of a software device, belong to a process. So a suite's program runs itself once for each
//! configuration below, unless `SIDEWAY_PROVIDER` says which devices it is to use. Over a
//! software device, which every machine has, a suite that runs nothing has failed.

use std::env;
use std::process::ExitCode;

use sideway::provider::{PROVIDER_VARIABLE, ProviderChoice, ProviderError};
use test_harness::{REQUIRE, Run};

/// Variables that name a device of the system's.
const DEVICES_OF_THE_SYSTEM: [&str; 2] = ["SIDEWAY_TEST_DEVICE", "SOFTROCE_DEVICE"];

const FAILURE: u8 = 101;

/// Where a suite runs.
struct Configuration {
    name: &'static str,
    choice: ProviderChoice,
    /// More of the environment.
    variables: &'static [(&'static str, &'static str)],
}

const CONFIGURATIONS: [Configuration; 3] = [
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
];

/// Runs a suite in this process if the environment says over which devices, else in one process for each
/// configuration.
pub(crate) fn in_each_configuration(suite: impl FnOnce() -> ExitCode) -> ExitCode {
    let chosen = env::var_os(PROVIDER_VARIABLE).is_some_and(|name| !name.is_empty());
    // The tests are the same everywhere, and whoever asks wants each once.
    if chosen || test_harness::arguments().list {
        return suite();
    }
    let runs: Vec<_> = CONFIGURATIONS.iter().filter_map(Configuration::run).collect();
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
            // Nobody else's tests are on this fabric.
            let [(_, mode), ..] = self.variables else { unreachable!("a software device has a mode") };
            run = run.variable("SOFT_RNIC_FABRIC", &format!("test-{mode}-{}", std::process::id()));
            run = DEVICES_OF_THE_SYSTEM.iter().fold(run, |run, name| run.without(name));
        }
        Some(self.variables.iter().fold(run, |run, (name, value)| run.variable(name, value)))
    }
}
