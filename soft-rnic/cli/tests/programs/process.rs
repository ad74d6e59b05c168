//! Starting programs, and ending them: none runs for longer than it may, and none is left behind.

use std::env;
use std::fmt;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Every case takes some seconds where nothing is wrong, and minutes on a machine that has much else to do: there perftest
/// begins anew to measure the processor's clock, before each size.
pub(crate) const LIMIT: Duration = Duration::from_secs(240);

/// How long to sleep before looking again.
const PAUSE: Duration = Duration::from_millis(5);

/// A program on the `PATH`.
pub(crate) fn on_path(name: &str) -> Option<PathBuf> {
    let folders = env::var_os("PATH")?;
    env::split_paths(&folders).map(|folder| folder.join(name)).find(|path| path.is_file())
}

/// A program that runs. It is killed when this goes.
pub(crate) struct RunningProgram {
    title: String,
    child: Child,
    /// Where it writes to: files, so that nobody has to read along.
    words: [PathBuf; 2],
}

/// How a program ended, and what it said.
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

    /// Waits until a condition holds, which may depend on what the program has said on standard output.
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

    /// Waits until it ends by itself, which it must within this time.
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

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().is_ok_and(|status| status.is_some())
    }

    /// As `kill PID`.
    pub(crate) fn terminate(&self) -> Result<(), String> {
        let pid =
            i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).ok_or("a process has a number")?;
        // It is our child and was not waited for, so that the number is still its own.
        kill_process(pid, Signal::TERM).map_err(|error| format!("cannot end {}: {error}", self.title))
    }

    /// Ends it if it has not ended.
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
    /// What it said, if it ended well.
    pub(crate) fn well(&self) -> Result<&str, String> {
        if self.status.success() { Ok(&self.stdout) } else { Err(format!("failed: {self}")) }
    }

    /// Fails if it did not say this.
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
