//! Ends a test program that would hang.

use std::fs;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use rustix::process::{Signal, getpid, kill_process};

/// How long the program may take to end after its last test.
const END_LIMIT: Duration = Duration::from_secs(120);

/// Ends the whole program if a case exceeds its time limit: a thread cannot be stopped otherwise.
pub(crate) struct Watchdog {
    _alive: mpsc::Sender<()>,
}

impl Watchdog {
    pub(crate) fn start(name: String, limit: Duration) -> Self {
        let (alive, ended) = mpsc::channel();
        thread::spawn(move || {
            if ended.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                kill_this_process(&name, limit);
            }
        });
        Self { _alive: alive }
    }
}

/// Ends the program if what runs at its end, after the tests, hangs.
pub(crate) fn watch_the_end() {
    thread::spawn(|| {
        thread::sleep(END_LIMIT);
        kill_this_process("the test program", END_LIMIT);
    });
}

/// Not by `exit`, which would run the functions of the end and wait for what the case waits for.
fn kill_this_process(what: &str, limit: Duration) {
    eprintln!("{what} did not end within {limit:?}. The threads:\n{}", threads());
    let _ = kill_process(getpid(), Signal::KILL);
}

/// What each thread of this process does, as Linux tells it.
fn threads() -> String {
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let line = |task: fs::DirEntry| {
        let read = |name| fs::read_to_string(task.path().join(name)).unwrap_or_default();
        let state =
            read("stat").rsplit(')').next().unwrap_or_default().trim_start().chars().next().unwrap_or('?');
        let (id, name) = (task.file_name(), read("comm"));
        format!(
            "{}  {:15}  {state}  waits in {}  system call {}\n",
            id.display(),
            name.trim_end(),
            read("wchan"),
            read("syscall").trim_end()
        )
    };
    tasks.map(line).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;
    use std::{env, process::Command, thread};

    use super::Watchdog;

    const SLEEPER: &str = "watchdog::tests::sleeps_too_long";

    #[test]
    #[ignore = "run by another test, which reads what it prints"]
    fn sleeps_too_long() {
        let _watchdog = Watchdog::start("a case".to_owned(), Duration::from_millis(50));
        thread::sleep(Duration::from_secs(1000));
    }

    #[test]
    fn a_case_over_its_limit_ends_the_program_and_shows_the_threads() {
        let mut command = Command::new(env::current_exe().expect("a path"));
        let output =
            command.args(["--exact", SLEEPER, "--ignored", "--nocapture"]).output().expect("it starts");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success());
        assert!(errors.contains("a case did not end within 50ms. The threads:\n"), "{errors}");
        // The standard harness names a test's thread after the test; Linux keeps 15 bytes of it.
        assert!(errors.contains(&SLEEPER[..15]), "{errors}");
    }
}
