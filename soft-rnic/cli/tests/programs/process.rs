//! Starts and ends programs: none exceeds its time limit, and none is left behind.

use std::env;
use std::fmt;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Every case takes seconds on an idle machine, and minutes on a busy one, because perftest then
/// repeats the calibration of its clock before each size.
pub(crate) const LIMIT: Duration = Duration::from_secs(240);

/// How long to sleep between checks.
const PAUSE: Duration = Duration::from_millis(5);

/// Finds a program on the `PATH`.
pub(crate) fn on_path(name: &str) -> Option<PathBuf> {
    let folders = env::var_os("PATH")?;
    env::split_paths(&folders).map(|folder| folder.join(name)).find(|path| path.is_file())
}

/// A running program, which is killed when this is dropped.
pub(crate) struct RunningProgram {
    title: String,
    child: Child,
    /// Files for its output, so that no reader has to drain a pipe.
    words: [PathBuf; 2],
}

/// The exit status and output of a program.
pub(crate) struct ProgramOutcome {
    title: String,
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl RunningProgram {
    pub(crate) fn start(mut command: Command) -> Result<Self, String> {
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let title = command.get_args().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let words = ["out", "err"].map(|stream| {
            PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
                .join(format!("programs-{}-{number}.{stream}", std::process::id()))
        });
        for (path, is_stdout) in words.iter().zip([true, false]) {
            let file = File::create(path).map_err(|error| format!("{}: {error}", path.display()))?;
            if is_stdout {
                command.stdout(file)
            } else {
                command.stderr(file)
            };
        }
        let child = command.stdin(Stdio::null()).spawn();
        let child = child.map_err(|error| format!("cannot start {title}: {error}"))?;
        Ok(Self { title, child, words })
    }

    /// Waits until a condition on the program's standard output holds.
    pub(crate) fn wait_until(mut self, what: &str, condition: impl Fn(&str) -> bool) -> Result<Self, String> {
        let deadline = Instant::now() + LIMIT;
        while !condition(&self.said(0)) {
            let has_ended = self.child.try_wait().map_err(|error| error.to_string())?.is_some();
            if has_ended || Instant::now() > deadline {
                return Err(format!("it never {what}: {}", self.end()?));
            }
            thread::sleep(PAUSE);
        }
        Ok(self)
    }

    /// Waits until the program exits by itself, within this time.
    pub(crate) fn finish_within(mut self, limit: Duration) -> Result<ProgramOutcome, String> {
        let deadline = Instant::now() + limit;
        while self.child.try_wait().map_err(|error| error.to_string())?.is_none() {
            if Instant::now() > deadline {
                return Err(format!("killed after {} s: {}", limit.as_secs(), self.end()?));
            }
            thread::sleep(PAUSE);
        }
        self.end()
    }

    /// What it has printed so far.
    pub(crate) fn printed(&self) -> String {
        self.said(0)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().is_ok_and(|status| status.is_some())
    }

    /// Sends SIGTERM.
    pub(crate) fn terminate(&self) -> Result<(), String> {
        let pid =
            i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).ok_or("a process has a number")?;
        // The number is still the child's, because the child was not waited for.
        kill_process(pid, Signal::TERM).map_err(|error| format!("cannot end {}: {error}", self.title))
    }

    /// Kills the program if it still runs.
    fn end(&mut self) -> Result<ProgramOutcome, String> {
        let _ = self.child.kill(); // It may have ended by itself, which is as good.
        let status = self.child.wait().map_err(|error| error.to_string())?;
        let (stdout, stderr) = (self.said(0), self.said(1));
        Ok(ProgramOutcome { title: self.title.clone(), status, stdout, stderr })
    }

    fn said(&self, stream: usize) -> String {
        fs::read(&self.words[stream])
            .map(|words| String::from_utf8_lossy(&words).into_owned())
            .unwrap_or_default()
    }
}

impl Drop for RunningProgram {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        for path in &self.words {
            let _ = fs::remove_file(path);
        }
    }
}

impl ProgramOutcome {
    /// The output, if the program succeeded.
    pub(crate) fn well(&self) -> Result<&str, String> {
        if self.status.success() { Ok(&self.stdout) } else { Err(format!("failed: {self}")) }
    }

    /// Fails if the output lacks these words.
    pub(crate) fn says(&self, words: &str) -> Result<(), String> {
        if self.stdout.contains(words) { Ok(()) } else { Err(format!("{words:?} is missing in {self}")) }
    }
}

impl fmt::Display for ProgramOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { title, status, stdout, stderr } = self;
        write!(f, "{title} ({status})\n--- stdout\n{stdout}--- stderr\n{stderr}---")
    }
}
