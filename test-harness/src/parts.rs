//! Test programs with several suites, each of which needs a separate process.

use std::env;
use std::process::{Command, ExitCode};

use libtest_mimic::Arguments;

use crate::FAILURE;

/// Runs each part in a child process, one after the other. In a child process, runs the part that
/// `variable` names.
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
    let arguments = Arguments::from_args();
    let of = |part: &str, filter: &str| filter.strip_prefix(part).is_some_and(|rest| rest.starts_with("::"));
    let filter = arguments.filter.as_deref().unwrap_or_default();
    let named: Vec<_> = parts.iter().filter(|part| of(part, filter)).collect();
    let chosen = if named.is_empty() { parts.iter().collect() } else { named };
    let failed: Vec<_> = chosen.into_iter().filter(|part| !passes(variable, part, &arguments)).collect();
    for part in &failed {
        println!("tests of {part} failed");
    }
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(FAILURE) }
}

/// Runs this program again for a part, and returns whether it succeeded.
fn passes(variable: &str, part: &str, arguments: &Arguments) -> bool {
    if !arguments.list {
        println!("\n--- {part}");
    }
    let program = env::current_exe().expect("this program has a path");
    match Command::new(program).args(env::args_os().skip(1)).env(variable, part).status() {
        Ok(status) => status.success(),
        Err(error) => {
            println!("cannot run the tests: {error}");
            false
        }
    }
}
