//! Tests of the standard harness that need a process without any other test.

use std::env;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// Names the test that a process was started for.
const ALONE: &str = "TEST_HARNESS_ALONE";

/// Ends a `#[test]` here, after it has run in a process of its own; in that process, goes on.
///
/// For what belongs to a process: the configuration of a software device, its faults, open files, mappings.
#[macro_export]
macro_rules! alone {
    ($test:ident) => {
        if !$crate::is_alone(concat!(module_path!(), "::", stringify!($test))) {
            return;
        }
    };
}

/// Whether this process was started for the test of this path. If not, starts one, and fails if the test fails there.
///
/// # Panics
///
/// If the test did not pass in the process that was started for it.
#[must_use]
#[track_caller]
pub fn is_alone(path: &str) -> bool {
    // The harness leaves the crate's name out.
    let (_, name) = path.split_once("::").unwrap_or(("", path));
    if env::var_os(ALONE).is_some_and(|test| test == name) {
        return true;
    }
    let mut command = Command::new(env::current_exe().expect("this program has a path"));
    command.args(["--exact", name, "--include-ignored", "--nocapture", "--test-threads=1"]).env(ALONE, name);
    // Processes of one fabric have descriptors of one another, which come and go with them.
    static STARTED: AtomicU32 = AtomicU32::new(0);
    let number = STARTED.fetch_add(1, Ordering::Relaxed);
    command.env("SOFT_RNIC_FABRIC", format!("alone-{}-{number}", std::process::id()));
    let output = command.output().expect("this program starts");
    let [words, errors] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    // A name that the harness does not know is no failure to it.
    let passed = output.status.success() && words.contains("test result: ok. 1 passed");
    eprint!("{errors}");
    assert!(passed, "{name} in a process of its own: {}\n{words}", output.status);
    false
}
