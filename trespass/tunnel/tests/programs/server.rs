//! Servers, tunnels to them, and clients that end by themselves.

use std::fs::{self, File};
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use test_harness::is_listening;

use crate::fixture::{Program, TestTransport, end, free_addr, new_fabric, wait_until};

/// The path of a program: on the `PATH`, or where Debian has PostgreSQL's.
pub(crate) fn path_of(name: &str) -> Option<PathBuf> {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<_> = std::env::split_paths(&folders).collect();
    if let Ok(versions) = fs::read_dir("/usr/lib/postgresql") {
        folders.extend(versions.filter_map(|version| Some(version.ok()?.path().join("bin"))));
    }
    folders.into_iter().map(|folder| folder.join(name)).find(|path| path.is_file())
}

pub(crate) fn is_installed(name: &str) -> bool {
    path_of(name).is_some()
}

/// A folder that is removed when this is dropped.
pub(crate) struct Scratch {
    pub(crate) path: PathBuf,
}

impl Scratch {
    pub(crate) fn new(name: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        // Not in the target folder, because a server may run as another user.
        let path =
            std::env::temp_dir().join(format!("trespass-tunnel-{name}-{}-{number}", std::process::id()));
        fs::create_dir(&path).expect("a new folder");
        Self { path }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// A server at a free port, which is ended when this is dropped.
pub(crate) struct TargetServer {
    child: Child,
    pub(crate) addr: SocketAddr,
}

impl TargetServer {
    /// Starts a program with the arguments for a port.
    pub(crate) fn start(program: &str, arguments: impl FnOnce(String) -> Vec<String>) -> Self {
        let addr = free_addr();
        let mut command = Command::new(path_of(program).expect("it is installed"));
        command.args(arguments(addr.port().to_string()));
        Self::listening(command, addr)
    }

    pub(crate) fn listening(mut command: Command, addr: SocketAddr) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let mut server = Self { child: command.spawn().expect("it starts"), addr };
        wait_until("the server listens", || {
            let ended = server.child.try_wait().expect("a child");
            assert!(ended.is_none(), "{command:?} has ended: {ended:?}");
            is_listening(addr.port())
        });
        server
    }

    pub(crate) fn ends_by_itself(mut self) {
        wait_until("the server ends", || self.child.try_wait().expect("a child").is_some());
    }
}

impl Drop for TargetServer {
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(None)) {
            return;
        }
        // The immediate end of PostgreSQL, which has children, is SIGQUIT.
        let _ = kill_process(Pid::from_child(&self.child), Signal::QUIT);
        let deadline = Instant::now() + Duration::from_secs(10);
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(2));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A tunnel to a server.
pub(crate) struct Tunnel {
    _ends: [Program; 2],
    pub(crate) addr: SocketAddr,
}

impl Tunnel {
    pub(crate) fn start(transport: TestTransport, target: SocketAddr) -> Self {
        let (serve, addr, fabric) = (transport.free_addr(), free_addr(), new_fabric());
        let second = end(transport, &fabric, ["serve", &serve.to_string(), &target.to_string()], &[]);
        let first = end(transport, &fabric, ["connect", &addr.to_string(), &serve.to_string()], &[]);
        Self { _ends: [first, second], addr }
    }
}

/// Runs a client that succeeds. Returns what it prints.
pub(crate) fn run(command: Command, input: &[u8]) -> String {
    try_run(command, input).unwrap_or_else(|failure| panic!("{failure}"))
}

/// Runs a client. Returns what it prints, or how it fails.
pub(crate) fn try_run(mut command: Command, input: &[u8]) -> Result<String, String> {
    let scratch = Scratch::new("run");
    let outputs = ["out", "err"].map(|name| scratch.path.join(name));
    let [out, err] = outputs.each_ref().map(|path: &PathBuf| File::create(path).expect("a file"));
    let child = command.stdin(Stdio::piped()).stdout(out).stderr(err).spawn();
    let mut child = child.unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let mut pipe = child.stdin.take().expect("a pipe");
    let input = input.to_vec();
    // A program that reads nothing has closed the pipe, and fails if it should not have.
    let feeding = thread::spawn(move || drop(pipe.write_all(&input)));
    let mut status = None;
    let text = |path: &Path| String::from_utf8_lossy(&fs::read(path).expect("a file")).into_owned();
    wait_until(&format!("{command:?} ends"), || {
        status = child.try_wait().expect("a child");
        status.is_some()
    });
    feeding.join().expect("it does not panic");
    let [out, err] = outputs.each_ref().map(|path| text(path));
    let succeeds = status.is_some_and(|status| status.success());
    if succeeds { Ok(out) } else { Err(format!("{command:?}: {status:?}\n{out}\n{err}")) }
}
