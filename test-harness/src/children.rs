//! Runs of the test program itself, two at a time for each processor.

use std::env;
use std::io::{self, Write};
use std::process::{Command, Output};
use std::sync::{Mutex, PoisonError};
use std::thread;

use libtest_mimic::Arguments;

/// The variable with a run's position among the concurrent runs: `INDEX/COUNT`.
const SHARE: &str = "TEST_HARNESS_SHARE";

/// A run of the test program with an environment that chooses a part of it.
#[derive(Debug)]
pub struct Run {
    title: String,
    variables: Vec<(String, String)>,
    removed: Vec<&'static str>,
}

impl Run {
    /// A run with the environment of this process.
    #[must_use]
    pub fn new(title: &str) -> Self {
        Self { title: title.to_owned(), variables: Vec::new(), removed: Vec::new() }
    }

    /// Sets a variable of its environment.
    #[must_use]
    pub fn variable(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Gives it a fabric that no other run uses, because a multicast datagram reaches every process
    /// of a fabric.
    #[must_use]
    pub fn in_own_fabric(self, name: &str) -> Self {
        self.variable("SOFT_RNIC_FABRIC", &format!("test-{name}-{}", std::process::id()))
    }

    /// Removes a variable from its environment.
    #[must_use]
    pub fn without(mut self, name: &'static str) -> Self {
        self.removed.push(name);
        self
    }

    fn command(&self) -> Command {
        let mut command = Command::new(env::current_exe().expect("this program has a path"));
        command.args(env::args_os().skip(1)).envs(self.variables.iter().cloned());
        self.removed.iter().for_each(|name| _ = command.env_remove(name));
        command
    }
}

/// Runs all of them with this program's arguments. Returns whether each succeeded.
///
/// Most tests wait more than they work, so two runs for each processor keep it busy. The output of
/// a run is shown when the run has ended. A single run, or a list of tests, is shown at once.
#[must_use]
pub fn run_all(runs: &[Run]) -> bool {
    let lists = Arguments::from_args().list;
    let at_once =
        thread::available_parallelism().map_or(1, |processors| 2 * processors.get()).min(runs.len());
    if lists || at_once < 2 {
        return runs.iter().fold(true, |passed, run| {
            if !lists {
                println!("\n--- {}", run.title);
            }
            let status = run.command().status();
            conclude(run, lists, status.map(|status| status.success())) && passed
        });
    }
    let (queue, passed) = (Mutex::new(runs.iter().enumerate()), Mutex::new(true));
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
    thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(|| {
                while let Some((index, run)) = next() {
                    let output = run.command().env(SHARE, format!("{index}/{}", runs.len())).output();
                    // The lock separates the output of two runs.
                    let mut passed = passed.lock().unwrap_or_else(PoisonError::into_inner);
                    println!("\n--- {}", run.title);
                    *passed &= conclude(run, lists, output.and_then(show));
                }
            });
        }
    });
    passed.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Shows the output of a run. Returns whether it succeeded.
fn show(output: Output) -> io::Result<bool> {
    io::stderr().write_all(&output.stderr)?;
    io::stdout().write_all(&output.stdout)?;
    Ok(output.status.success())
}

fn conclude(run: &Run, lists: bool, passed: io::Result<bool>) -> bool {
    match &passed {
        Ok(true) => return true,
        Ok(false) if lists => (),
        Ok(false) => println!("tests failed: {}", run.title),
        Err(error) => println!("cannot run the tests: {}: {error}", run.title),
    }
    false
}

/// Whether this process may choose this number, for example a port, while other runs are active.
/// Each run has its share of the numbers.
pub(crate) fn may_choose(number: u16) -> bool {
    let share = env::var(SHARE).ok();
    let share = share.as_deref().and_then(|share| share.split_once('/'));
    let share =
        share.and_then(|(index, count)| Some((index.parse::<u16>().ok()?, count.parse::<u16>().ok()?)));
    share.is_none_or(|(index, count)| number % count == index)
}
