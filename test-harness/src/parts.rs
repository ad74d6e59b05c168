//! Programs of several suites, each of which needs a process of its own.

use std::env;
use std::process::ExitCode;

use libtest_mimic::Arguments;

use crate::FAILURE;
use crate::children::{Run, run_all};

/// Runs each part in a process of its own; in such a process, runs the part that `variable` names.
///
/// For suites that differ in what belongs to a process, such as the devices. The names of a part's tests begin with `PART::`, so that
/// a filter can choose it.
pub fn run_parts(
    variable: &str,
    parts: &[&'static str],
    run: impl FnOnce(&'static str) -> ExitCode,
) -> ExitCode {
    if let Some(wanted) = env::var_os(variable).filter(|name| !name.is_empty()) {
        return match parts.iter().find(|part| wanted == **part) {
            Some(part) => run(part),
            None => {
                eprintln!("{variable} is {wanted:?}, and must be one of {}", parts.join(", "));
                ExitCode::from(FAILURE)
            }
        };
    }
    let filter = Arguments::from_args().filter.unwrap_or_default();
    let is_of = |part: &&&str| filter.strip_prefix(**part).is_some_and(|rest| rest.starts_with("::"));
    let named: Vec<_> = parts.iter().filter(is_of).collect();
    let chosen = if named.is_empty() { parts.iter().collect() } else { named };
    let runs: Vec<_> = chosen.into_iter().map(|part| Run::new(part).variable(variable, part)).collect();
    if run_all(&runs) { ExitCode::SUCCESS } else { ExitCode::from(FAILURE) }
}
