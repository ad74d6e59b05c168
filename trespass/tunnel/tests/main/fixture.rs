//! Programs, sockets and waits of the tests. Every wait is bounded.

#[path = "../../../tests/suite/system.rs"]
mod system;

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use socket2::SockRef;
use test_harness::{free_port, is_listening};

/// Far above the duration of anything that works.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// The same for the first message over a device.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// What carries the connections between the two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TestTransport {
    Tcp,
    Soft,
    /// The system's device that has this address.
    Rdma(IpAddr),
}

/// Makes a case of each function.
macro_rules! over_each_transport {
    ($($test:ident),* $(,)?) => {
        pub(crate) fn add(suite: &mut test_harness::Suite<crate::fixture::TestTransport>) {
            $(suite.add(module_path!(), stringify!($test), "", |transport| {
                $test(*transport);
                Ok(())
            });)*
        }
    };
}
pub(crate) use over_each_transport;

/// One of the system's devices.
pub(crate) fn system_devices() -> Result<TestTransport, String> {
    system::address().map(TestTransport::Rdma)
}

impl TestTransport {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Soft => "soft",
            Self::Rdma(_) => "rdma",
        }
    }

    /// A free address for a serving end, which determines the device.
    pub(crate) fn free_addr(self) -> SocketAddr {
        let Self::Rdma(host) = self else { return free_addr() };
        (host, free_addr().port()).into()
    }

    /// Scales the work of a case: an eighth of `count` over a device in a guest with an emulated
    /// processor, where each byte costs far more.
    pub(crate) fn less(self, count: usize) -> usize {
        if !(test_harness::is_emulated() && matches!(self, Self::Rdma(_))) {
            return count;
        }
        let less = count.div_ceil(8);
        eprintln!("in an emulated guest: {less} instead of {count}");
        less
    }
}

/// A free address of the loopback.
pub(crate) fn free_addr() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, free_port().expect("a free port")).into()
}

/// Waits until a condition holds.
pub(crate) fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + LONG;
    while !holds() {
        assert!(Instant::now() < deadline, "{what}: not within {LONG:?}");
        sleep(Duration::from_millis(2));
    }
}

/// A running `trespass-tunnel`, which is killed when this is dropped.
pub(crate) struct Program {
    child: Child,
    log: PathBuf,
}

/// A new command `trespass-tunnel`. Programs with the same fabric reach each other by software devices.
pub(crate) fn tunnel(transport: TestTransport, fabric: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trespass-tunnel"));
    match transport {
        TestTransport::Tcp => command.env("TRESPASS_TRANSPORT", "tcp"),
        TestTransport::Soft => command.env("TRESPASS_TRANSPORT", "rdma").env("SIDEWAY_PROVIDER", "soft"),
        TestTransport::Rdma(_) => {
            command.env("TRESPASS_TRANSPORT", "rdma").env("SIDEWAY_PROVIDER", "system");
            // A handshake takes as long as an emulated processor needs.
            command.env("TRESPASS_PROBE_TIMEOUT", PATIENCE.as_millis().to_string())
        }
    };
    command.env("SOFT_RNIC_FABRIC", fabric).env_remove("TRESPASS_LOG");
    command
}

/// The fabric of this process.
pub(crate) fn own_fabric() -> String {
    format!("tunnel-{}", std::process::id())
}

/// A fabric that no other test uses.
pub(crate) fn new_fabric() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("{}-{}", own_fabric(), NEXT.fetch_add(1, Ordering::Relaxed))
}

impl Program {
    pub(crate) fn start(mut command: Command) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        // Not in the target folder, which a guest cannot write to.
        let log = std::env::temp_dir().join(format!("trespass-tunnel-{}-{number}.log", std::process::id()));
        command.stderr(File::create(&log).expect("a log")).stdin(Stdio::null()).stdout(Stdio::null());
        Self { child: command.spawn().expect("the program starts"), log }
    }

    /// Starts it, and waits until it listens.
    pub(crate) fn listening(command: Command, at: SocketAddr) -> Self {
        let mut program = Self::start(command);
        wait_until("it listens", || {
            let ended = program.child.try_wait().expect("a child");
            assert!(ended.is_none(), "it has ended: {ended:?}\n{}", program.log());
            is_listening(at.port())
        });
        program
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).expect("a log")
    }

    /// Waits until the log has a line with these words.
    pub(crate) fn wait_for_log(&self, words: &[&str]) -> String {
        let mut found = None;
        wait_until(&format!("a line with {words:?}"), || {
            let log = self.log();
            found = log.lines().find(|line| words.iter().all(|word| line.contains(word))).map(str::to_owned);
            found.is_some()
        });
        found.expect("it was waited for")
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).expect("the child has not been waited for");
    }

    /// Waits for the end.
    pub(crate) fn ended(mut self) -> (ExitStatus, String) {
        let mut status = None;
        wait_until("it ends", || {
            status = self.child.try_wait().expect("a child");
            status.is_some()
        });
        (status.expect("it was waited for"), self.log())
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("the child runs");
        self.child.wait().expect("a child");
    }

    /// Descriptors without those of the memory that stays with the device.
    pub(crate) fn descriptors(&self) -> usize {
        let open = fs::read_dir(format!("/proc/{}/fd", self.child.id())).expect("it runs");
        let targets = open.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
        targets.filter(|target| !target.to_string_lossy().starts_with("/memfd:sideway")).count()
    }

    /// Bytes of memory in use.
    pub(crate) fn memory(&self) -> usize {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line");
        line.trim().trim_end_matches(" kB").parse::<usize>().expect("a number") << 10
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_file(&self.log);
    }
}

/// Both ends of a tunnel, and the target's listener, in this process.
pub(crate) struct Pair {
    pub(crate) serve: Program,
    pub(crate) connect: Program,
    /// Where clients connect.
    pub(crate) addr: SocketAddr,
    pub(crate) serve_addr: SocketAddr,
    pub(crate) target: TcpListener,
    pub(crate) fabric: String,
}

impl Pair {
    pub(crate) fn start(transport: TestTransport) -> Self {
        Self::with(transport, &[])
    }

    /// With more arguments for both ends.
    pub(crate) fn with(transport: TestTransport, arguments: &[&str]) -> Self {
        let target = TcpListener::bind("127.0.0.1:0").expect("a listener");
        let (serve_addr, addr, fabric) = (transport.free_addr(), free_addr(), new_fabric());
        let to = target.local_addr().expect("an address");
        let serve = end(transport, &fabric, ["serve", &serve_addr.to_string(), &to.to_string()], arguments);
        let connect =
            end(transport, &fabric, ["connect", &addr.to_string(), &serve_addr.to_string()], arguments);
        Self { serve, connect, addr, serve_addr, target, fabric }
    }

    /// A connection: the client's socket and the target's.
    pub(crate) fn connection(&self) -> (TcpStream, TcpStream) {
        (connect(self.addr), accept(&self.target))
    }
}

/// One end, which listens.
pub(crate) fn end(
    transport: TestTransport,
    fabric: &str,
    [role, listen, to]: [&str; 3],
    arguments: &[&str],
) -> Program {
    let mut command = tunnel(transport, fabric);
    command.args([role, "--listen", listen, "--to", to]).args(arguments);
    let listen: SocketAddr = listen.parse().expect("an address");
    if !listen.ip().is_loopback() {
        command.arg("--insecure");
    }
    Program::listening(command, listen)
}

/// Connects, with bounds for all calls.
pub(crate) fn connect(addr: SocketAddr) -> TcpStream {
    bounded(TcpStream::connect(addr).expect("a connection"))
}

/// Accepts a connection, with bounds for all calls.
pub(crate) fn accept(listener: &TcpListener) -> TcpStream {
    listener.set_nonblocking(true).expect("an option");
    let mut accepted = None;
    wait_until("a connection", || {
        accepted = match listener.accept() {
            Ok((stream, _)) => Some(stream),
            Err(error) if error.kind() == ErrorKind::WouldBlock => None,
            Err(error) => panic!("{error}"),
        };
        accepted.is_some()
    });
    let stream = accepted.expect("it was waited for");
    stream.set_nonblocking(false).expect("an option");
    bounded(stream)
}

fn bounded(stream: TcpStream) -> TcpStream {
    stream.set_read_timeout(Some(LONG)).expect("an option");
    stream.set_write_timeout(Some(LONG)).expect("an option");
    stream.set_nodelay(true).expect("an option");
    stream
}

/// Closes a socket by a reset.
pub(crate) fn reset(stream: TcpStream) {
    SockRef::from(&stream).set_linger(Some(Duration::ZERO)).expect("an option");
}

/// Reads until the end or an error.
pub(crate) fn read_all(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).map(|_| bytes)
}

/// Sends bytes through a connection, and reads them at its other end.
pub(crate) fn pass(from: &mut TcpStream, to: &mut TcpStream, bytes: &[u8]) {
    from.write_all(bytes).expect("a connection");
    let mut read = vec![0; bytes.len()];
    to.read_exact(&mut read).expect("a connection");
    assert!(read == bytes, "the bytes differ");
}

/// Checks that the connection is reset, not ended.
pub(crate) fn is_reset(stream: &mut TcpStream) {
    let error = stream.read(&mut [0; 64]).expect_err("no end, and no bytes");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
}
