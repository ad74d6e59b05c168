//! trespass for C and C++: the library as its users install it, and programs that use it.
//!
//! The tests install the library, compile the programs of `tests/c` and the examples, and run them
//! over TCP and over a software device. A test whose tools are missing on this machine is listed and
//! counted as ignored, with what is missing.

mod documents;
#[path = "../../../soft-rnic/c-abi/tests/exports/elf.rs"]
mod elf;
mod interface;
mod interop;
mod packaging;
mod programs;

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

/// The ways in which the programs' bytes go.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Over {
    Tcp,
    Soft,
}

impl Over {
    pub(crate) const ALL: [Self; 2] = [Self::Tcp, Self::Soft];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Soft => "soft",
        }
    }

    /// Makes a program use this way or fail, in a fabric of its own.
    pub(crate) fn apply(self, command: &mut Command) {
        let (transport, expected) = match self {
            Self::Tcp => ("tcp", "TCP"),
            Self::Soft => ("rdma", "RDMA"),
        };
        command.env("TRESPASS_TRANSPORT", transport).env("SUITE_TRANSPORT", expected);
        command.env("SIDEWAY_PROVIDER", "soft");
        command.env("SOFT_RNIC_FABRIC", format!("test-c-{}-{}", self.name(), std::process::id()));
        // The program's answers are the tests' business, a person's settings are not.
        for variable in ["TRESPASS_DEV", "TRESPASS_GID_INDEX", "TRESPASS_LOG", "TRESPASS_EXIT_TIMEOUT"] {
            command.env_remove(variable);
        }
    }

    /// Why nothing goes this way.
    fn lacking(self) -> Option<String> {
        let lacks = matches!(self, Self::Soft) && !cfg!(feature = "soft");
        lacks.then(|| "the feature `soft`".to_owned())
    }
}

fn main() -> ExitCode {
    if let Some(code) = interop::peer() {
        return code;
    }
    let mut trials = interface::trials();
    trials.extend(documents::trials());
    trials.extend(packaging::trials());
    for over in Over::ALL {
        trials.extend(programs::trials(over));
        trials.extend(interop::trials(over));
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

/// A test that needs some tools.
pub(crate) fn trial(
    name: impl Into<String>,
    tools: &[&str],
    test: impl FnOnce() -> TestResult + Send + 'static,
) -> Trial {
    let missing = tools.iter().find(|tool| !is_installed(tool)).map(|tool| (*tool).to_owned());
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
