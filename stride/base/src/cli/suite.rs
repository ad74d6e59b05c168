//! Several tests, as a file has them.

use std::ffi::OsString;

use clap::Args;

/// What to measure, one test after the other.
#[derive(Clone, Debug, Args)]
pub struct SuiteArgs {
    /// Print the suites that come with the program, and end
    #[arg(long, exclusive = true)]
    pub list: bool,

    /// A suite that comes with the program, or a file with one
    #[arg(value_name = "SUITE", required_unless_present = "list")]
    pub suite: Option<String>,

    /// The server, which runs `stride-perf serve`, or --loopback; and flags, which every test gets and which go before its own
    #[arg(value_name = "SERVER|FLAG", trailing_var_arg = true, allow_hyphen_values = true)]
    pub words: Vec<OsString>,
}
