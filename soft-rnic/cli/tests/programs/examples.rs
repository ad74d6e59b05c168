//! This project's examples, with and against the distribution's programs.
//!
//! A Rust program reaches the device in two ways: through `libibverbs.so.1`, as C programs do, or
//! through the table in its process. Peers find each other across both, so each case with an
//! example runs both ways.

use std::collections::BTreeMap;
use std::iter;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use std::time::Duration;

use crate::ProgramTest;
use crate::place::ProgramRunner;

/// The examples' test suite: with each other, with C programs, and their error messages.
const SUITE: &str = "interop";

/// The case that runs the suite.
pub(crate) const OWN_TESTS: &str = "the examples' own tests by the library";

pub(crate) fn add(tests: &mut Vec<ProgramTest>) {
    tests.push(ProgramTest::new(OWN_TESTS, &["ibv_rc_pingpong", "ibv_devinfo"], suite));
}

/// The suite has a hundred tests, some of which wait for a peer that is gone.
fn suite(place: &ProgramRunner) -> Result<(), String> {
    const LIMIT: Duration = Duration::from_secs(300);
    let tests = started(ExampleTransport::Library, SUITE)?;
    let arguments: Vec<&str> =
        iter::once("SIDEWAY_TEST_REQUIRE_DEVICE=1").chain(tests.iter().map(String::as_str)).collect();
    let ended = place.start(&[], "env", &arguments)?.finish_within(LIMIT)?;
    let ran = ended.well()?.lines().find_map(|line| line.strip_prefix("device tests: "));
    let count: Option<u32> = ran.and_then(|ran| ran.split(' ').next()?.parse().ok());
    if count.is_some_and(|count| count >= 100) { Ok(()) } else { Err(format!("too few ran: {ended}")) }
}

/// How an example reaches the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExampleTransport {
    /// Through `libibverbs.so.1`, as C programs do.
    Library,
    /// Through the table in its process, where the project's libibverbs cannot be found.
    Native,
}

impl ExampleTransport {
    pub(crate) const ALL: [Self; 2] = [Self::Library, Self::Native];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Library => "by the library",
            Self::Native => "natively",
        }
    }

    /// The arguments of `env` that precede the program.
    fn environment(self) -> &'static [&'static str] {
        match self {
            Self::Library => &["SIDEWAY_PROVIDER=system"],
            Self::Native => &["-u", "LD_LIBRARY_PATH", "SIDEWAY_PROVIDER=soft"],
        }
    }
}

/// The arguments of `env` that start an example, or stride-perf, in this way; the program's
/// arguments follow.
pub(crate) fn started(way: ExampleTransport, name: &str) -> Result<Vec<String>, String> {
    let program = path(name)?.to_str().ok_or("the target folder's path is no text")?;
    Ok(way.environment().iter().copied().chain([program]).map(str::to_owned).collect())
}

fn path(name: &str) -> Result<&'static Path, String> {
    static BUILT: LazyLock<Result<BTreeMap<String, PathBuf>, String>> = LazyLock::new(build);
    let built = BUILT.as_ref().map_err(Clone::clone)?;
    built.get(name).map(PathBuf::as_path).ok_or_else(|| format!("there is no program `{name}`"))
}

/// Builds the examples, their tests and stride-perf, which cargo does only for tests of their own
/// package. It uses the whole workspace's features, so that an earlier build of the workspace is
/// reused.
fn build() -> Result<BTreeMap<String, PathBuf>, String> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(env!("CARGO_MANIFEST_DIR"));
    cargo.args([
        "build",
        "--workspace",
        "--examples",
        "--test",
        SUITE,
        "--bin",
        "stride-perf",
        "--message-format",
        "json",
    ]);
    let output = cargo.output();
    let output = output.map_err(|error| format!("cannot start cargo: {error}"))?;
    if !output.status.success() {
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(format!("the examples cannot be built ({}):\n{words}", output.status));
    }
    let lines = output.stdout.split(|byte| *byte == b'\n');
    let artifacts = lines.filter_map(|line| serde_json::from_slice::<serde_json::Value>(line).ok());
    let programs = artifacts.filter_map(|artifact| {
        Some((artifact["target"]["name"].as_str()?.to_owned(), artifact["executable"].as_str()?.into()))
    });
    Ok(programs.collect())
}
