//! The course of a run, from the plan to the last row.

#[cfg(any(test, fuzzing))]
pub(crate) mod hostile;
mod memory;
mod messages;
mod pairs;
mod ping;
mod reception;
mod roles;
mod secret;
mod serve;
mod steps;
mod strangers;
mod tcp;

use crate::error::Error;
use crate::interrupt;
use crate::plan::{RunPlan, TestOperation};
use crate::report::Output;

pub use ping::ping;
pub use serve::{ServeOptions, serve};

/// This release of stride-perf, for messages to the user.
const RELEASE: &str = env!("CARGO_PKG_VERSION");

/// Runs `work` until it ends or the user interrupts it. Returns the exit status.
///
/// # Errors
///
/// The reason why it ended early, or why results could not be written.
pub fn to_the_end(
    mut output: Output,
    run: impl FnOnce(&mut Output) -> Result<(), Error>,
) -> Result<u8, Error> {
    interrupt::watch(&output).map_err(Error::Signals)?;
    let done = run(&mut output);
    output.finish(done)
}

/// Runs the plan on its side.
pub fn run(plan: &RunPlan, output: &mut Output) -> Result<(), Error> {
    for warning in &plan.warnings {
        output.note(format_args!("warning: {warning}"));
    }
    match plan.test.operation {
        TestOperation::Messages(_) => messages::run(plan, output),
        TestOperation::Tcp => tcp::run(plan, output),
        _ => pairs::run(plan, output),
    }
}
