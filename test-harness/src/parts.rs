//! Test programs with several suites, each of which needs a separate process.

use std::env;
use std::process::ExitCode;

use libtest_mimic::Arguments;

use crate::FAILURE;
use crate::children::{Run, run_all};

/// Runs each part in a child process. In a child process, runs the part that `variable` names.
///
/// Suites need it if they differ in a property of the process, such as its devices. The names of a
/// part's tests begin with `PART::`, so that a filter can select it.
pub fn run_parts(
    variable: &str,
    parts: &[&'static str],
    run: impl FnOnce(&'static str) -> ExitCode,
) -> ExitCode {
    if let Some(wanted) = env::var_os(variable).filter(|name| !name.is_empty()) {
        return match parts.iter().find(|part| wanted == **part) {
            Some(part) => run(part),
            None => {
                eprintln!("{variable} is {wanted:?}; it must be one of {}", parts.join(", "));
                ExitCode::from(FAILURE)
            }
        };
    }
    let filter = Arguments::from_args().filter.unwrap_or_default();
    let is_of = |part: &&&str| filter.strip_prefix(**part).is_some_and(|rest| rest.starts_with("::"));
    let named: Vec<_> = parts.iter().filter(is_of).collect();
    let chosen = if named.is_empty() { parts.iter().collect() } else { named };
    let run = |part: &&str| Run::new(part).variable(variable, part).in_own_fabric(part);
    let runs: Vec<_> = chosen.into_iter().map(run).collect();
    if run_all(&runs) { ExitCode::SUCCESS } else { ExitCode::from(FAILURE) }
}
