//! Runs of the test program itself, two at a time for each processor.

use std::env;
use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::process::{self, Command, Output};
use std::sync::{Mutex, PoisonError};
use std::thread;

use libtest_mimic::Arguments;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, set_child_subreaper, waitpid};

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
        self.variable("SOFT_RNIC_FABRIC", &format!("test-{name}-{}", process::id()))
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
///
/// A process that a run has left behind is killed, and counts as a failure.
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
    // What a run leaves behind becomes a child of this process.
    set_child_subreaper(Some(rustix::process::getpid())).expect("a kernel since 3.4");
    let (queue, failed) = (Mutex::new(runs.iter().enumerate()), Mutex::new(Vec::new()));
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
    thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(|| {
                while let Some((index, run)) = next() {
                    let output = output_of(run.command().env(SHARE, format!("{index}/{}", runs.len())));
                    // The lock separates the output of two runs.
                    let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
                    println!("\n--- {}", run.title);
                    let cases = output.as_ref().map(failed_cases).unwrap_or_default();
                    if !conclude(run, lists, output.and_then(show)) {
                        failed.push(format!("{}: {cases}", run.title));
                    }
                }
            });
        }
    });
    let left = kill_children();
    let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    // The end of a log is what a reader sees first, and another run's output may stand between.
    failed.iter().for_each(|line| println!("tests failed: {line}"));
    failed.is_empty() && left == 0
}

/// The cases that a run's output calls failed, and how its process ended.
fn failed_cases(output: &Output) -> String {
    let words = String::from_utf8_lossy(&output.stdout);
    let failed = words.lines().filter_map(|line| {
        let (name, result) = line.strip_prefix("test ")?.split_once(" ... ")?;
        result.starts_with("FAILED").then(|| name.trim_end())
    });
    let failed: Vec<_> = failed.collect();
    format!(
        "{} ({})",
        if failed.is_empty() { "no case".to_owned() } else { failed.join(", ") },
        output.status
    )
}

/// Runs a command until its process ends. Returns what it has printed.
///
/// [`Command::output`] would wait until every descendant has closed the pipes, also one that the
/// process has left behind.
pub(crate) fn output_of(command: &mut Command) -> io::Result<Output> {
    let [mut words, mut errors] = [
        File::from(memfd_create("stdout", MemfdFlags::CLOEXEC)?),
        File::from(memfd_create("stderr", MemfdFlags::CLOEXEC)?),
    ];
    let status = command.stdout(words.try_clone()?).stderr(errors.try_clone()?).status()?;
    let [mut stdout, mut stderr] = [Vec::new(), Vec::new()];
    for (file, bytes) in [(&mut words, &mut stdout), (&mut errors, &mut stderr)] {
        file.rewind()?;
        file.read_to_end(bytes)?;
    }
    Ok(Output { status, stdout, stderr })
}

/// Kills the children of this process, prints which they are, and returns how many.
fn kill_children() -> usize {
    let mut killed = 0;
    // A killed child leaves its own children to this process.
    loop {
        let children = children();
        if children.is_empty() {
            return killed;
        }
        for (child, state) in children {
            // A zombie has ended by itself.
            if state != "Z" {
                let line = fs::read(format!("/proc/{child}/cmdline")).unwrap_or_default();
                let words = String::from_utf8_lossy(&line).replace('\0', " ");
                println!("a test has left a process behind, which is killed: {child}: {words}");
                killed += 1;
            }
            if let Some(child) = Pid::from_raw(child) {
                let _ = kill_process(child, Signal::KILL);
                let _ = waitpid(Some(child), WaitOptions::empty());
            }
        }
    }
}

/// The children of this process and their states.
fn children() -> Vec<(i32, String)> {
    let own = process::id().to_string();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| {
            let id = entry.file_name().to_str()?.parse().ok()?;
            let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
            // The program's name, in parentheses, may have spaces.
            let mut words = stat[stat.rfind(')')? + 1..].split_whitespace();
            let state = words.next()?.to_owned();
            (words.next()? == own).then_some((id, state))
        })
        .collect()
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

#[cfg(test)]
mod tests {
    use std::process::Command;

    use rustix::process::{getpid, set_child_subreaper};

    use super::{failed_cases, kill_children, output_of};
    use crate::alone;

    #[test]
    fn no_run_waits_for_what_it_leaves_behind() {
        alone!(no_run_waits_for_what_it_leaves_behind);
        set_child_subreaper(Some(getpid())).expect("a kernel since 3.4");
        let output = output_of(Command::new("sh").args(["-c", "sleep 1000 & echo words; echo errors >&2"]))
            .expect("a shell");
        assert_eq!((output.stdout, output.stderr), (b"words\n".to_vec(), b"errors\n".to_vec()));
        assert_eq!(kill_children(), 1);
        assert_eq!(kill_children(), 0);
    }

    #[test]
    fn failed_cases_are_named() {
        let script = "echo 'test soft::a_case     ... FAILED'; echo 'test soft::another ... ok'; exit 3";
        let output = output_of(Command::new("sh").args(["-c", script])).expect("a shell");
        assert_eq!(failed_cases(&output), "soft::a_case (exit status: 3)");
    }
}
