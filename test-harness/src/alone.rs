//! Runs a test of the standard harness in a separate process.

use std::env;
use std::panic::resume_unwind;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::children::output_of;
use crate::repeat_errors;

/// The environment variable that names a child process's only test.
const ALONE: &str = "TEST_HARNESS_ALONE";

/// Runs the rest of a `#[test]` in a separate process, and returns from the test in this one.
///
/// A test needs it if it changes the state of its process: the configuration of a software device,
/// fault rules, open files, mappings.
#[macro_export]
macro_rules! alone {
    ($test:ident) => {
        if !$crate::is_alone(concat!(module_path!(), "::", stringify!($test))) {
            return;
        }
    };
}

/// Whether this process was started for the test with this path. If not, runs the test in a child
/// process.
///
/// # Panics
///
/// If the test does not pass in the child process.
#[must_use]
#[track_caller]
pub fn is_alone(path: &str) -> bool {
    // Test names do not include the crate's name.
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
    let output = output_of(&mut command).expect("this program starts");
    let [words, errors] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    // For an unknown name the harness runs no test and reports success.
    let passed = output.status.success() && words.contains("test result: ok. 1 passed");
    if passed {
        repeat_errors(&errors);
        return false;
    }
    eprintln!("{name} in a separate process: {}\n{words}{errors}", output.status);
    // Without a message and a backtrace of this process, which would follow the child's.
    resume_unwind(Box::new(()));
}
