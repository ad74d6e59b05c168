//! Flags of `suite`.

use std::ffi::OsString;

use clap::Args;

use super::heading;

/// The flags of `suite`.
#[derive(Clone, Debug, Args)]
pub struct SuiteArgs {
    /// List the built-in suites and exit
    #[arg(help_heading = heading::OUTPUT, long, exclusive = true)]
    pub list: bool,

    /// Built-in suite, or file with a suite
    #[arg(value_name = "SUITE", required_unless_present = "list")]
    pub suite: Option<String>,

    /// The server, which runs `stride-perf serve`, or --loopback; then flags for every test, which
    /// precede the test's flags
    #[arg(value_name = "SERVER|FLAG", trailing_var_arg = true, allow_hyphen_values = true)]
    pub words: Vec<OsString>,
}
