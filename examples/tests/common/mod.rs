//! Runs programs with a time limit.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::env;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// No program needs this long, even in a virtual machine without hardware support.
const LIMIT: Duration = Duration::from_secs(60);

/// The path of one of this package's programs: in the folder that `RDMA_EXAMPLES_DIR` names, else
/// next to this test program, where cargo puts it. A program of the same name on the `PATH` is
/// ignored.
pub(crate) fn example(name: &str) -> Result<PathBuf, String> {
    let folder = match env::var_os("RDMA_EXAMPLES_DIR") {
        Some(folder) => PathBuf::from(folder),
        None => beside()?,
    };
    let path = folder.join(name);
    if path.is_file() {
        return Ok(path);
    }
    Err(format!(
        "the example {} does not exist: build it with `cargo build -p rdma-examples --examples`, or set RDMA_EXAMPLES_DIR to its folder",
        path.display()
    ))
}

/// This program is target/PROFILE/deps/TEST, and the examples are in target/PROFILE/examples.
fn beside() -> Result<PathBuf, String> {
    let this = env::current_exe().map_err(|error| error.to_string())?;
    let profile = this.ancestors().nth(2);
    profile
        .map(|profile| profile.join("examples"))
        .ok_or_else(|| format!("{} has no parent folder", this.display()))
}

/// A program on the `PATH`.
pub(crate) fn on_path(name: &str) -> Option<PathBuf> {
    let folders = env::var_os("PATH")?;
    env::split_paths(&folders).map(|folder| folder.join(name)).find(|path| path.is_file())
}

/// A C program, which may have the same name as an example of this package.
pub(crate) fn c_program(name: &str) -> Option<PathBuf> {
    let ours = example(name).ok();
    let folders = env::var_os("PATH")?;
    let mut found = env::split_paths(&folders).map(|folder| folder.join(name)).filter(|path| path.is_file());
    found.find(|path| Some(path) != ours.as_ref())
}

/// The output of a program and its exit code.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) title: String,
    /// `None` if it was killed.
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Output {
    /// Its stdout, if it succeeded.
    pub(crate) fn ok(self) -> Result<String, String> {
        if self.code == Some(0) { Ok(self.stdout) } else { Err(format!("failed: {self}")) }
    }

    /// Its single line on stderr, if it failed with this code and printed nothing else.
    pub(crate) fn error(self, code: i32) -> Result<String, String> {
        let line = self.stderr.strip_suffix('\n').filter(|line| !line.contains('\n'));
        match line.and_then(|line| line.strip_prefix("error: ")) {
            Some(line) if self.code == Some(code) && self.stdout.is_empty() => Ok(line.to_owned()),
            _ => Err(format!("exit code {code} and one line on stderr were expected: {self}")),
        }
    }
}

impl Output {
    /// The line on stderr with the reason, if it failed with this code.
    pub(crate) fn error_line(&self, code: i32) -> Result<String, String> {
        let line = self.stderr.lines().rev().find_map(|line| line.strip_prefix("error: "));
        match line {
            Some(line) if self.code == Some(code) => Ok(line.to_owned()),
            _ => Err(format!("exit code {code} and a reason were expected: {self}")),
        }
    }
}

impl std::fmt::Display for Output {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { title, code, stdout, stderr } = self;
        let code = code.map_or_else(|| "killed".to_owned(), |code| format!("exit code {code}"));
        write!(f, "{title} ({code})\n--- stdout\n{stdout}--- stderr\n{stderr}---")
    }
}

/// A running program, killed on drop.
#[derive(Debug)]
pub(crate) struct RunningProgram {
    title: String,
    child: Child,
    stdout: Pipe,
    stderr: Pipe,
    started: Instant,
}

impl RunningProgram {
    /// Starts a program with these arguments and environment variables.
    pub(crate) fn start(
        program: &Path,
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> Result<Self, String> {
        let title = format!("{} {}", program.display(), arguments.join(" "));
        let mut child = Command::new(program)
            .args(arguments)
            .envs(environment.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("cannot start {title}: {error}"))?;
        let stdout = Pipe::read(child.stdout.take());
        let stderr = Pipe::read(child.stderr.take());
        Ok(Self { title, child, stdout, stderr, started: Instant::now() })
    }

    /// Waits until a condition on the program's stdout holds.
    pub(crate) fn wait_for(
        &mut self,
        what: &str,
        mut condition: impl FnMut(&str) -> bool,
    ) -> Result<(), String> {
        loop {
            if condition(&self.stdout.text()) {
                return Ok(());
            }
            if self.has_ended() || self.started.elapsed() > LIMIT {
                self.kill();
                return Err(format!("it never {what}: {}", self.output()));
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Whether its stdout contains this text by now.
    pub(crate) fn has_said(&self, words: &str) -> bool {
        self.stdout.text().contains(words)
    }

    /// Waits until it ends by itself, which it must.
    pub(crate) fn finish(mut self) -> Result<Output, String> {
        while !self.has_ended() {
            if self.started.elapsed() > LIMIT {
                self.kill();
                return Err(format!("it did not end within {} s: {}", LIMIT.as_secs(), self.output()));
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(self.output())
    }

    /// Kills the program, as if its machine had lost power.
    pub(crate) fn kill(&mut self) {
        // The program may have ended already, which is harmless.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// The process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Stops the program, as Ctrl-Z does, and waits until it stands still.
    pub(crate) fn stop(&mut self) -> Result<(), String> {
        let id = self.id().to_string();
        let signalled = Command::new("kill").args(["-s", "STOP", &id]).status();
        if !signalled.is_ok_and(|status| status.success()) {
            return Err(format!("no signal reaches {}", self.title));
        }
        while !std::fs::read_to_string(format!("/proc/{id}/stat")).is_ok_and(|stat| stat.contains(") T ")) {
            if self.has_ended() || self.started.elapsed() > LIMIT {
                self.kill();
                return Err(format!("it does not stop: {}", self.output()));
            }
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    fn output(&mut self) -> Output {
        let code = self.child.wait().ok().and_then(|status| status.code());
        let (stdout, stderr) = (self.stdout.finish(), self.stderr.finish());
        Output { title: self.title.clone(), code, stdout, stderr }
    }
}

impl Drop for RunningProgram {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Runs a program to its end.
pub(crate) fn run(program: &Path, arguments: &[&str]) -> Result<Output, String> {
    run_with(program, arguments, &[])
}

/// As [`run`], with these environment variables.
pub(crate) fn run_with(
    program: &Path,
    arguments: &[&str],
    environment: &[(&str, &str)],
) -> Result<Output, String> {
    RunningProgram::start(program, arguments, environment)?.finish()
}

/// A program's output, read while the program runs.
#[derive(Debug)]
struct Pipe {
    text: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
}

impl Pipe {
    fn read(pipe: Option<impl Read + Send + 'static>) -> Self {
        let text = Arc::new(Mutex::new(Vec::new()));
        let shared = Arc::clone(&text);
        let reader = pipe.map(|mut pipe| {
            thread::spawn(move || {
                let mut buffer = [0; 4096];
                while let Ok(length @ 1..) = pipe.read(&mut buffer) {
                    shared
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .extend_from_slice(&buffer[..length]);
                }
            })
        });
        Self { text, reader }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.text.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
    }

    /// The complete output; the program has ended.
    fn finish(&mut self) -> String {
        if let Some(reader) = self.reader.take() {
            // The output that a panicked reader collected is still valid.
            let _ = reader.join();
        }
        self.text()
    }
}
