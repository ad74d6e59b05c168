//! trespass for C and C++: the library as its users install it, and programs that use it.
//!
//! The tests install the library, compile the programs of `tests/c` and the examples, and run them
//! over TCP, over a software device and over the system's devices. A test whose tools or device are
//! missing on this machine is listed and counted as ignored, with what is missing.
//!
//! A guest of `cargo xtask softroce` has no compiler. `TRESPASS_C_SUITE=build` makes the programs and
//! prints their paths; `TRESPASS_C_SUITE=rdma` runs what was made, over the system's devices.

mod documents;
#[path = "../../../soft-rnic/c-abi/tests/exports/elf.rs"]
mod elf;
mod interface;
mod interop;
mod packaging;
mod programs;
#[path = "../../tests/suite/system.rs"]
mod system;

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output, Stdio};
use std::sync::LazyLock;

use libtest_mimic::{Arguments, Completion, Failed, Trial};

/// A test that ran, or was skipped, or failed.
pub(crate) type TestResult = Result<TestOutcome, String>;

/// How a test that did not fail ended.
pub(crate) enum TestOutcome {
    Passed,
    /// What this machine lacks.
    Skipped(String),
}

/// Chooses what this program does: `build` or `rdma`.
const PART: &str = "TRESPASS_C_SUITE";

/// Whether the programs were made before, perhaps on another machine.
pub(crate) fn is_built() -> bool {
    std::env::var_os(PART).is_some_and(|part| part == "rdma")
}

/// The ways in which the programs' bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Over {
    Tcp,
    Soft,
    /// The system's devices.
    Rdma,
}

impl Over {
    pub(crate) const ALL: [Self; 3] = [Self::Tcp, Self::Soft, Self::Rdma];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Soft => "soft",
            Self::Rdma => "rdma",
        }
    }

    /// What connections report as their transport.
    pub(crate) fn transport(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Soft | Self::Rdma => "RDMA",
        }
    }

    /// The address of listeners.
    pub(crate) fn address(self) -> Result<IpAddr, String> {
        static DEVICE: LazyLock<Result<IpAddr, String>> = LazyLock::new(system::address);
        match self {
            Self::Tcp | Self::Soft => Ok(Ipv4Addr::LOCALHOST.into()),
            Self::Rdma => DEVICE.clone(),
        }
    }

    /// Makes a program use this way or fail, in a fabric of its own.
    pub(crate) fn apply(self, command: &mut Command) {
        command.env("TRESPASS_TRANSPORT", self.transport().to_lowercase());
        command.env("SUITE_TRANSPORT", self.transport());
        match self {
            Self::Tcp | Self::Soft => command.env("SIDEWAY_PROVIDER", "soft").env_remove("SUITE_ADDRESS"),
            Self::Rdma => {
                let address = self.address().expect("trials without a device do not run").to_string();
                command.env("SIDEWAY_PROVIDER", "system").env("SUITE_ADDRESS", address);
                // A handshake takes as long as an emulated processor needs.
                command.env("TRESPASS_PROBE_TIMEOUT", "20000")
            }
        };
        command.env("SOFT_RNIC_FABRIC", format!("test-c-{}-{}", self.name(), std::process::id()));
        // The program's answers are the tests' business, a person's settings are not.
        for variable in ["TRESPASS_DEV", "TRESPASS_GID_INDEX", "TRESPASS_LOG", "TRESPASS_EXIT_TIMEOUT"] {
            command.env_remove(variable);
        }
    }

    /// Why nothing goes this way.
    fn lacking(self) -> Option<String> {
        match self {
            Self::Tcp => None,
            Self::Soft => (!cfg!(feature = "soft")).then(|| "the feature `soft`".to_owned()),
            Self::Rdma if !cfg!(feature = "rdma") => Some("the feature `rdma`".to_owned()),
            Self::Rdma => self.address().err().map(|_| "a device".to_owned()),
        }
    }
}

fn main() -> ExitCode {
    if let Some(code) = interop::peer() {
        return code;
    }
    let arguments = Arguments::from_args();
    match std::env::var(PART).as_deref() {
        Ok("build") => build(),
        Ok("rdma") => {
            let conclusion = libtest_mimic::run(&arguments, trials_over(Over::Rdma));
            test_harness::print_summary(&arguments, &conclusion, test_harness::device_is_required())
        }
        Ok(other) if !other.is_empty() => {
            eprintln!("{PART} is {other:?}; it must be `build` or `rdma`");
            ExitCode::FAILURE
        }
        _ => {
            let mut trials = interface::trials();
            trials.extend(documents::trials());
            trials.extend(packaging::trials());
            trials.extend(Over::ALL.into_iter().flat_map(trials_over));
            libtest_mimic::run(&arguments, trials).exit_code()
        }
    }
}

fn trials_over(over: Over) -> Vec<Trial> {
    let mut trials = programs::trials(over);
    trials.extend(interop::trials(over));
    if let (Err(why), false) = (over.address(), Arguments::from_args().list) {
        let advice =
            "`cargo xtask softroce --suite --test rdma` runs them in a virtual machine with SoftRoCE.";
        println!("{} tests have no device: {why}. {advice}", trials.len());
    }
    trials
}

/// Makes the programs that run over the system's devices, and prints their paths.
fn build() -> ExitCode {
    match programs::over_devices().and_then(|made| Ok([made, interop::over_devices()?].concat())) {
        Ok(made) => {
            made.iter().for_each(|path| println!("{}", path.display()));
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// A test that needs some tools.
pub(crate) fn trial(
    name: impl Into<String>,
    tools: &[&str],
    test: impl FnOnce() -> TestResult + Send + 'static,
) -> Trial {
    let needed = |tool: &&&str| !(is_built() && matches!(**tool, "cc" | "c++"));
    let missing = tools.iter().filter(needed).find(|tool| !is_installed(tool)).map(|tool| (*tool).to_owned());
    Trial::ignorable_test(name, move || {
        let outcome = match missing {
            Some(tool) => TestOutcome::Skipped(format!("no {tool}")),
            None => test().map_err(Failed::from)?,
        };
        Ok(match outcome {
            TestOutcome::Passed => Completion::Completed,
            TestOutcome::Skipped(what) => Completion::ignored_with(what),
        })
    })
}

/// The same for one of the ways.
pub(crate) fn trial_over(
    over: Over,
    name: &str,
    tools: &[&str],
    test: impl FnOnce() -> TestResult + Send + 'static,
) -> Trial {
    trial(format!("{}::{name}", over.name()), tools, move || match over.lacking() {
        Some(what) if over == Over::Rdma && test_harness::device_is_required() => {
            Err(format!("without {what}"))
        }
        Some(what) => Ok(TestOutcome::Skipped(format!("without {what}"))),
        None => test(),
    })
}

fn is_installed(tool: &str) -> bool {
    let found = Command::new(tool).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    found.is_ok_and(|status| status.success())
}

/// The folder of the library's sources.
pub(crate) fn source(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

pub(crate) fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// A folder for what the tests make.
pub(crate) fn scratch() -> Result<PathBuf, String> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("trespass-c");
    std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    Ok(folder)
}

/// Writes a source file of a test.
pub(crate) fn write(name: &str, text: &str) -> Result<PathBuf, String> {
    let path = scratch()?.join(name);
    std::fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(path)
}

/// The library as `cargo xtask c-lib trespass` installs it, made once a run.
pub(crate) fn installed() -> Result<&'static Path, String> {
    static PREFIX: LazyLock<Result<PathBuf, String>> = LazyLock::new(|| {
        let prefix = scratch()?.join("prefix");
        let mut cargo = Command::new(env!("CARGO"));
        cargo.current_dir(env!("CARGO_MANIFEST_DIR")).args(["run", "--quiet", "--package", "xtask", "--"]);
        cargo.args(["c-lib", "trespass", "--profile", "dev", "--prefix"]).arg(&prefix);
        if !cfg!(feature = "soft") {
            cargo.arg("--without-soft");
        }
        run(&mut cargo).map(|_| prefix)
    });
    PREFIX.as_deref().map_err(Clone::clone)
}

/// Runs a program that must succeed.
pub(crate) fn run(command: &mut Command) -> Result<Output, String> {
    let output = command.stdin(Stdio::null()).output().map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() {
        return Ok(output);
    }
    let words = [&output.stdout, &output.stderr].map(|words| String::from_utf8_lossy(words).into_owned());
    Err(format!("{command:?}: {}\n{}", output.status, words.concat()))
}
