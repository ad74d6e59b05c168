//! Runs the program with a time limit.

#![allow(dead_code, reason = "each test program uses a part")]

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// The limit of a run, also if the device is emulated on a busy machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// The exit status of every error.
pub(crate) const FAILURE: i32 = 2;

/// The program with these flags, separated by spaces.
pub(crate) fn command(flags: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_stride-perf"));
    command.args(flags.split_whitespace());
    command
}

/// The output and exit status of a finished run.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ended {
    /// The rows of the table: lines that begin with the message size.
    pub(crate) fn rows(&self) -> Vec<Vec<f64>> {
        let rows = self.stdout.lines().filter(|line| !line.starts_with('#'));
        let number = |word: &str| word.parse().unwrap_or_else(|_| panic!("`{word}` in {self:?}"));
        rows.map(|row| row.split_whitespace().map(number).collect()).collect()
    }

    /// Asserts that the run succeeded.
    #[track_caller]
    pub(crate) fn succeeded(self) -> Self {
        assert!(self.status.success(), "{self:#?}");
        self
    }

    /// Asserts that the run failed without a table; returns its single line on standard error.
    #[track_caller]
    pub(crate) fn refused(&self) -> &str {
        assert_eq!(self.status.code(), Some(FAILURE), "{self:#?}");
        assert_eq!(self.rows().len(), 0, "{self:#?}");
        self.complaint()
    }

    /// The error: the last line on standard error, and the only one of its kind.
    #[track_caller]
    pub(crate) fn complaint(&self) -> &str {
        let mut lines = self.stderr.lines().filter(|line| line.starts_with("stride-perf: "));
        let complaint = lines.next().unwrap_or_else(|| panic!("no complaint: {self:#?}"));
        assert_eq!(lines.next(), None, "{self:#?}");
        assert_eq!(self.stderr.lines().last(), Some(complaint), "{self:#?}");
        complaint
    }
}

/// A running program, which is killed when this is dropped.
#[derive(Debug)]
pub(crate) struct Running {
    child: Victim,
    stdout: thread::JoinHandle<String>,
    stderr: mpsc::Receiver<String>,
    heard: String,
}

/// A process that does not outlive its test.
#[derive(Debug)]
struct Victim(Child);

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    pub(crate) fn start(command: &mut Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the program starts");
        let mut stdout = child.stdout.take().expect("standard output is a pipe");
        let stderr = BufReader::new(child.stderr.take().expect("standard error is a pipe"));
        let (sender, receiver) = mpsc::channel();
        thread::spawn(move || stderr.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        let stdout = thread::spawn(move || {
            let mut text = String::new();
            let _ = stdout.read_to_string(&mut text);
            text
        });
        Self { child: Victim(child), stdout, stderr: receiver, heard: String::new() }
    }

    /// Waits for a line on standard error that contains `words`.
    #[track_caller]
    pub(crate) fn await_line(&mut self, words: &str) -> String {
        let deadline = Instant::now() + LIMIT;
        while let Ok(line) = self.stderr.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            self.heard += &line;
            self.heard.push('\n');
            if line.contains(words) {
                return line;
            }
        }
        panic!("the program did not say `{words}`: {}", self.heard)
    }

    /// The process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.0.id()
    }

    /// Kills the program, and waits until it is gone.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.0.kill();
        let _ = self.child.0.wait();
    }

    /// Stops the program, as Ctrl-Z does, and waits until it stands still.
    #[track_caller]
    pub(crate) fn stop(&self) {
        self.signal("STOP");
        let deadline = Instant::now() + LIMIT;
        let stat = format!("/proc/{}/stat", self.id());
        while !std::fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") T ")) {
            assert!(Instant::now() < deadline, "the program does not stop");
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Sends a signal, by its name.
    pub(crate) fn signal(&self, name: &str) {
        let mut kill = Command::new("kill");
        let status = kill.args(["-s", name, &self.child.0.id().to_string()]).status();
        assert!(status.is_ok_and(|status| status.success()), "kill -s {name}");
    }

    /// Waits for the end. A run that takes too long is killed, which counts as a failure.
    #[track_caller]
    pub(crate) fn end(self) -> Ended {
        self.end_within(LIMIT)
    }

    #[track_caller]
    pub(crate) fn end_within(mut self, limit: Duration) -> Ended {
        let deadline = Instant::now() + limit;
        let status = loop {
            match self.child.0.try_wait().expect("the program can be waited for") {
                Some(status) => break status,
                None if Instant::now() < deadline => thread::sleep(Duration::from_millis(10)),
                None => {
                    self.kill();
                    panic!("the program did not end within {limit:?}: {}", self.heard);
                }
            }
        };
        let stdout = self.stdout.join().expect("standard output is read");
        let mut stderr = self.heard;
        for line in self.stderr {
            stderr += &line;
            stderr.push('\n');
        }
        Ended { status, stdout, stderr }
    }
}

/// Runs the program until it exits.
#[track_caller]
pub(crate) fn run(flags: &str) -> Ended {
    Running::start(&mut command(flags)).end()
}

/// Checks that bandwidth and message rate agree.
#[track_caller]
pub(crate) fn is_bandwidth(row: &[f64], size: f64, iterations: f64) {
    let [bytes, count, gigabits, messages] = row[..] else { panic!("{row:?}") };
    assert_eq!((bytes, count), (size, iterations), "{row:?}");
    assert!(gigabits > 0.0 && messages > 0.0, "{row:?}");
    let rounding = 0.000_05 + size * 8.0 * 0.000_000_5 / 1000.0 + gigabits * 1e-6;
    assert!((messages * size * 8.0 / 1000.0 - gigabits).abs() <= rounding, "{row:?}");
}

#[track_caller]
pub(crate) fn is_latency(row: &[f64], size: f64, iterations: f64) {
    let [bytes, count, min, avg, p50, p90, p99, p99_9, max, stdev] = row[..] else { panic!("{row:?}") };
    assert_eq!((bytes, count), (size, iterations), "{row:?}");
    assert!(min > 0.0, "{row:?}");
    assert!([min, p50, p90, p99, p99_9, max].is_sorted(), "{row:?}");
    assert!((min..=max).contains(&avg) && (0.0..=max - min).contains(&stdev), "{row:?}");
}
