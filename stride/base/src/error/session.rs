//! Errors of secrets, pings and suites.

use std::io;
use std::path::PathBuf;

use crate::cli::SizeError;
use crate::control::SecretError;

/// The environment variable with the secret, unless the user names a file.
pub const SECRET_VARIABLE: &str = "STRIDE_SECRET";

/// The longest pause in seconds; a peer that is idle for longer would give this side up.
pub const LONGEST_PING_INTERVAL: f64 = 30.0;

/// The most nested `include` levels.
pub const DEEPEST_SUITE: u32 = 8;

/// The user asked for a secret that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NoSecretError {
    /// The file cannot be read.
    #[error("--secret-file: cannot read {}: {source}", path.display())]
    Read {
        /// The path of the file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file's content is not accepted as a secret.
    #[error("--secret-file {}: {source}", path.display())]
    File {
        /// The path of the file.
        path: PathBuf,
        /// The reason.
        source: SecretError,
    },
    /// The variable's value is not accepted as a secret.
    #[error("{SECRET_VARIABLE}: {0}; or unset it, to go without")]
    Variable(SecretError),
}

/// An option that does not fit `ping`.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PingError {
    /// Ping writes no result files.
    #[error("ping writes no results and judges none ({flag}): measure `send lat`")]
    NoResults {
        /// The flag of the file.
        flag: &'static str,
    },
    /// The interval is longer than the peer waits.
    #[error("--interval {given} is not from 0 to {LONGEST_PING_INTERVAL}: give --interval 1")]
    Interval {
        /// The interval that the user gave.
        given: f64,
    },
}

/// A suite cannot be read, or some of its tests failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SuiteError {
    /// The file cannot be read.
    #[error("cannot read the suite {}: {source}; `stride-perf suite --list` has the names of those that need no file", path.display())]
    Read {
        /// The path of the file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file is not a valid suite.
    #[error("the suite {suite}: {reason}")]
    Syntax {
        /// Its name or file.
        suite: String,
        /// The error and its position.
        reason: String,
    },
    /// The suites include each other too deeply, or in a cycle.
    #[error(
        "the suite {suite}: suites include one another more than {DEEPEST_SUITE} deep: take one of the `include` out"
    )]
    TooDeep {
        /// The innermost suite.
        suite: String,
    },
    /// The suite has no tests.
    #[error("the suite {suite} has no test: add a [[test]] with a `name` and what to `run`")]
    Empty {
        /// Its name or file.
        suite: String,
    },
    /// A test's name is missing, repeated or invalid; result files are named after it.
    #[error(
        "the test name `{name}`: give each test of a suite a name of its own, of letters, digits, `-` and `_`"
    )]
    Name {
        /// The name as given.
        name: String,
    },
    /// A test's command line is invalid.
    #[error("the test {test} (`stride-perf {words}`): {reason}")]
    Test {
        /// The test's name.
        test: String,
        /// The words of the command line.
        words: String,
        /// What is wrong with the words.
        reason: String,
    },
    /// A result file exists already.
    #[error("{flag} {} exists: give another name, or --force to replace it", path.display())]
    Exists {
        /// The flag that names it.
        flag: &'static str,
        /// The path of the file.
        path: PathBuf,
    },
    /// With --force each test would replace the lines of the one before.
    #[error(
        "--force and --jsonl do not go together in a suite, whose tests all add to one file: leave --force out, and remove the file first"
    )]
    ForcedLines,
    /// A size is invalid.
    #[error("the test {test}: {given} of `sizes`: {source}")]
    Size {
        /// The test's name.
        test: String,
        /// The size as given.
        given: String,
        /// The reason.
        source: SizeError,
    },
    /// Some tests failed.
    #[error("{failed} of {all} tests failed")]
    Failed {
        /// The number of failed tests.
        failed: usize,
        /// The number of all tests.
        all: usize,
    },
    /// Every test was skipped.
    #[error("no test of {suite} could be run, as each was skipped")]
    NothingRan {
        /// The suite's name or file.
        suite: String,
    },
}
