//! Errors of secrets, pings and suites.

use std::io;
use std::path::PathBuf;

use crate::cli::SizeError;
use crate::control::SecretError;

/// The variable that has the secret, unless a file is named.
pub const SECRET_VARIABLE: &str = "STRIDE_SECRET";

/// A peer that is asked nothing for so long would give this side up.
pub const LONGEST_PING_INTERVAL: f64 = 30.0;

/// Suites that name one another go no deeper.
pub const DEEPEST_SUITE: u32 = 8;

/// The user wants a secret, and there is none.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NoSecretError {
    /// The file cannot be read.
    #[error("--secret-file: cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's words.
        source: io::Error,
    },
    /// What is in the file is none.
    #[error("--secret-file {}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: SecretError,
    },
    /// What the variable has is none.
    #[error("{SECRET_VARIABLE}: {0}; or unset it, to go without")]
    Variable(SecretError),
}

/// What cannot be done with a ping.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PingError {
    /// It is for eyes alone.
    #[error("ping writes no results and judges none ({flag}): measure `send lat`")]
    NoResults {
        /// The flag.
        flag: &'static str,
    },
    /// The peer would give up.
    #[error("--interval {given} is not from 0 to {LONGEST_PING_INTERVAL}: give --interval 1")]
    Interval {
        /// What the user gave.
        given: f64,
    },
}

/// A suite cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SuiteError {
    /// The file cannot be read.
    #[error("cannot read the suite {}: {source}; `stride-perf suite --list` has the names of those that need no file", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's words.
        source: io::Error,
    },
    /// It is no suite.
    #[error("the suite {suite}: {reason}")]
    Syntax {
        /// Its name or file.
        suite: String,
        /// What is wrong, and where.
        reason: String,
    },
    /// Suites include each other.
    #[error(
        "the suite {suite}: suites include one another more than {DEEPEST_SUITE} deep: take one of the `include` out"
    )]
    TooDeep {
        /// The last one.
        suite: String,
    },
    /// Nothing to measure.
    #[error("the suite {suite} has no test: add a [[test]] with a `name` and what to `run`")]
    Empty {
        /// Its name or file.
        suite: String,
    },
    /// Files of results have the tests' names.
    #[error(
        "the test name `{name}`: give each test of a suite a name of its own, of letters, digits, `-` and `_`"
    )]
    Name {
        /// The name.
        name: String,
    },
    /// A test cannot be run.
    #[error("the test {test} (`stride-perf {words}`): {reason}")]
    Test {
        /// Its name.
        test: String,
        /// What was to be run.
        words: String,
        /// Why not.
        reason: String,
    },
    /// A file of results is there already.
    #[error("{flag} {} exists: give another name, or --force to replace it", path.display())]
    Exists {
        /// The flag that names it.
        flag: &'static str,
        /// The file.
        path: PathBuf,
    },
    /// Each test would replace what the one before has written.
    #[error(
        "--force and --jsonl do not go together in a suite, whose tests all add to one file: leave --force out, and remove the file first"
    )]
    ForcedLines,
    /// A size that is none.
    #[error("the test {test}: {given} of `sizes`: {source}")]
    Size {
        /// The test's name.
        test: String,
        /// What is there.
        given: String,
        /// Why it is none.
        source: SizeError,
    },
    /// Some tests failed.
    #[error("{failed} of {all} tests failed")]
    Failed {
        /// How many.
        failed: usize,
        /// Of how many.
        all: usize,
    },
    /// Every test was skipped.
    #[error("no test of {suite} could be run, as each was skipped")]
    NothingRan {
        /// The suite.
        suite: String,
    },
}
