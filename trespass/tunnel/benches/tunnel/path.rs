//! Ways to a target: direct, by the tunnel, by two socats.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use test_harness::{free_port, is_listening};

pub(crate) const TWO_SOCATS: &str = "two socats";

/// A way to a target, with its programs, which are killed when this is dropped.
pub(crate) struct Path {
    pub(crate) name: &'static str,
    /// Where clients connect.
    pub(crate) addr: SocketAddr,
    _programs: Vec<PathProgram>,
}

impl Path {
    /// The direct one first.
    pub(crate) fn all(target: SocketAddr) -> Vec<Self> {
        let mut paths = vec![Self { name: "direct", addr: target, _programs: Vec::new() }];
        if is_installed("socat") {
            paths.push(Self::two(TWO_SOCATS, target, socat));
        } else {
            println!("SKIPPED {TWO_SOCATS}: socat is not installed");
        }
        paths.push(Self::two("tunnel over soft0", target, |listen, to, is_first| {
            tunnel("rdma", listen, to, is_first)
        }));
        paths.push(Self::two("tunnel over TCP", target, |listen, to, is_first| {
            tunnel("tcp", listen, to, is_first)
        }));
        paths
    }

    /// Two programs in series, of which the second is told to the first.
    fn two(
        name: &'static str,
        target: SocketAddr,
        command: impl Fn(SocketAddr, SocketAddr, bool) -> Command,
    ) -> Self {
        let [first, second] =
            [(); 2].map(|()| SocketAddr::from((Ipv4Addr::LOCALHOST, free_port().expect("a port"))));
        let programs = vec![
            PathProgram::start(command(second, target, false), second),
            PathProgram::start(command(first, second, true), first),
        ];
        Self { name, addr: first, _programs: programs }
    }
}

fn socat(listen: SocketAddr, to: SocketAddr, _is_first: bool) -> Command {
    let mut command = Command::new("socat");
    command.arg(format!("TCP-LISTEN:{},bind=127.0.0.1,fork,reuseaddr,nodelay,backlog=512", listen.port()));
    command.arg(format!("TCP:{to},nodelay")).stderr(Stdio::null()); // It reports every reset.
    command
}

fn tunnel(transport: &str, listen: SocketAddr, to: SocketAddr, is_first: bool) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trespass-tunnel"));
    command.args([if is_first { "connect" } else { "serve" }, "--transport", transport]);
    command.args(["--listen", &listen.to_string(), "--to", &to.to_string()]);
    command.env("SIDEWAY_PROVIDER", "soft").env("TRESPASS_LOG", "warn");
    command.env("SOFT_RNIC_FABRIC", format!("tunnel-bench-{}", std::process::id()));
    command
}

/// Whether a program is on the `PATH`.
pub(crate) fn is_installed(name: &str) -> bool {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&folders).any(|folder| folder.join(name).is_file())
}

/// A server, which is killed when this is dropped.
pub(crate) struct PathProgram(Child);

impl PathProgram {
    /// Waits until it listens.
    pub(crate) fn start(mut command: Command, listen: SocketAddr) -> Self {
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        let mut program = Self(child.unwrap_or_else(|error| panic!("{command:?}: {error}")));
        let deadline = Instant::now() + Duration::from_secs(30);
        while !is_listening(listen.port()) {
            let ended = program.0.try_wait().expect("a child");
            assert!(ended.is_none() && Instant::now() < deadline, "{command:?} does not listen: {ended:?}");
            sleep(Duration::from_millis(5));
        }
        program
    }
}

impl Drop for PathProgram {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
