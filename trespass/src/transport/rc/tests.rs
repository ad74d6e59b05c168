//! Tests of the RC driver over soft0: the real handshake over a loopback socket, then frames over
//! real queue pairs.
//!
//! Every queue pair here has an `rnr_retry` of 0, so a frame without a posted receive would end its
//! connection. A passing test therefore shows that none was sent.
//!
//! The device's mode applies to the whole process, so a separate process runs the same cases in
//! deferred mode ([`deferred`]). Fault rules also apply to the whole process, so one case runs at a
//! time.

mod carry;
mod ends;
mod fallback;
mod managed;
mod workers;

use std::io::ErrorKind;
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Poll;
use std::time::{Duration, Instant};

use mio::{Events, Poll as Set, Token};
use sideway::soft::{self, faults};

use super::{QpParameters, RcDriver, RcPath, find};
use crate::config::{Builder, Config};
use crate::handshake::{Attempt, Established, TcpHandshake};
use crate::pool::{Block, Pool, PoolConfig};
use crate::protocol::{self, ConnectionEvent, ConnectionSetup, LinkType, ProtocolMachine};
use crate::transport::Driver;
use crate::wire::Kind;
use crate::wire::Unavailable;

const TIMEOUT: Duration = Duration::from_secs(30);
const MODE: &str = "SOFT_RNIC_MODE";

/// Held by the case that is running. Fault rules are cleared before and after it.
struct SerialGuard(#[allow(dead_code)] MutexGuard<'static, ()>);

fn serialize() -> SerialGuard {
    static GUARD: Mutex<()> = Mutex::new(());
    static DEVICES: OnceLock<()> = OnceLock::new();
    let guard = GUARD.lock().unwrap_or_else(PoisonError::into_inner);
    DEVICES.get_or_init(|| {
        let mut config = soft::Config::from_env().expect("a valid environment");
        config.fabric = format!("trespass-{}", std::process::id());
        config.time_scale = 0.01;
        sideway::set_default_provider(soft::provider_with(config).expect("the first to list devices"));
    });
    faults::clear();
    SerialGuard(guard)
}

impl Drop for SerialGuard {
    fn drop(&mut self) {
        faults::clear();
    }
}

fn rules(text: &str) {
    faults::set(faults::parse(text).expect("valid rules"), 1).expect("rules");
}

/// Runs the other cases again in deferred mode. As on hardware, requests do not complete while
/// they are posted, but only later, when completions are polled.
#[test]
#[cfg_attr(miri, ignore = "starts a process")]
fn deferred() {
    let args = ["transport::rc::tests::", "--skip", "tests::deferred", "--test-threads=1"];
    let output = run_again(
        Command::new(std::env::current_exe().expect("this program")).args(args).env(MODE, "deferred"),
    );
    assert!(output.contains("carry::") && !output.contains(" 0 passed"), "{output}");
}

/// Runs each case that leaves the device broken in a separate process.
#[test]
#[cfg_attr(miri, ignore = "starts a process")]
fn a_device_that_fails() {
    for case in [
        "ends::a_device_that_fails_ends_the_connection_and_keeps_what_it_has",
        "ends::lent_blocks_return_to_an_empty_pool",
        "ends::a_block_shared_by_requests_returns_once",
        "workers::a_worker_goes_on_when_its_device_is_opened_anew",
    ] {
        let args = [case, "--ignored"];
        let output = run_again(Command::new(std::env::current_exe().expect("this program")).args(args));
        assert!(output.contains(" 1 passed"), "{case}: {output}");
    }
}

fn run_again(command: &mut Command) -> String {
    let result = command.output().expect("started");
    let output = String::from_utf8_lossy(&result.stdout).into_owned();
    assert!(result.status.success(), "{output}");
    output
}

/// A configuration whose handshake may take [`TIMEOUT`], because the machine may be busy.
fn config() -> Builder {
    Builder::new().rnr_retry(0).keepalive(None).handshake_deadline(TIMEOUT).probe_timeout(TIMEOUT / 2)
}

fn pool() -> Pool {
    let mut config = PoolConfig::default();
    (config.initial, config.prewarm, config.max) = (8 << 20, 0, 64 << 20);
    Pool::new(&config).expect("memory")
}

struct TestPeer {
    rc: RcDriver<Block>,
    protocol: ProtocolMachine<Block>,
    pool: Pool,
    events: Vec<ConnectionEvent<Block>>,
    set: Set,
}

impl TestPeer {
    fn progress(&mut self) {
        self.sleep(Duration::ZERO);
        self.progress_transport();
    }

    /// Waits until the system reports an event or `timeout` has passed.
    fn sleep(&mut self, timeout: Duration) {
        let mut reports = Events::with_capacity(8);
        // EINTR: the process was stopped while it waited. The caller's next call polls again.
        if let Err(error) = self.set.poll(&mut reports, Some(timeout)) {
            assert_eq!(error.kind(), ErrorKind::Interrupted);
        }
        reports.iter().for_each(|report| Driver::<Pool>::on_event(&mut self.rc, report.into()));
    }

    fn progress_transport(&mut self) {
        let now = Instant::now();
        if self.protocol.next_deadline().is_some_and(|deadline| now >= deadline) {
            self.protocol.tick(now);
        }
        self.rc.progress(&mut self.protocol, &mut self.pool, now);
        self.events.extend(std::iter::from_fn(|| self.protocol.take_event()));
    }

    fn failure(&self) -> Option<&protocol::FailureCause> {
        self.protocol.failure()
    }
}

type Handshake = TcpHandshake<RcPath<Pool>>;

fn sockets() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let client = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
    let (server, _) = listener.accept().expect("accepted");
    for socket in [&client, &server] {
        socket.set_nonblocking(true).expect("a socket");
    }
    (client, server)
}

/// The RDMA path for a socket, with its pool registered.
fn path(socket: &TcpStream, config: &Config, pool: &Pool) -> Result<RcPath<Pool>, Unavailable> {
    let local = socket.local_addr().expect("connected");
    let place = find(local, &config.devices, config.gid_index)?;
    pool.register(place.device.domain()).expect("the only domain");
    Ok(RcPath::new(place, QpParameters::of(config), pool.clone()))
}

fn handshakes(kind: Kind, here: &Config, there: &Config, pools: [&Pool; 2]) -> [(TcpStream, Handshake); 2] {
    let (client, server) = sockets();
    let now = Instant::now();
    let attempt = Attempt::first().expect("random numbers");
    let ours = TcpHandshake::client(here.terms(kind), attempt, path(&client, here, pools[0]), now);
    let theirs = TcpHandshake::server(there.terms(kind), path(&server, there, pools[1]), now);
    [(client, ours), (server, theirs)]
}

/// Drives both sides until their handshakes end.
fn run_handshakes(sides: &mut [(TcpStream, Handshake); 2]) -> [Established<RcPath<Pool>>; 2] {
    let mut ends = [None, None];
    let until = Instant::now() + TIMEOUT;
    while ends.iter().any(Option::is_none) {
        assert!(Instant::now() < until, "the handshake does not end");
        for ((socket, side), end) in sides.iter_mut().zip(&mut ends) {
            if end.is_none()
                && let Poll::Ready(result) = side.progress(&mut &*socket, Instant::now)
            {
                *end = Some(result.expect("a connection"));
            }
        }
    }
    ends.map(|end| end.expect("all have ended"))
}

/// Connects two sides over RDMA. `change` adjusts the setup of each.
fn connected_with(kind: Kind, config: Builder, change: impl Fn(&mut ConnectionSetup)) -> [TestPeer; 2] {
    let config = config.build().expect("a valid configuration");
    connected_as(kind, [&config; 2], change)
}

/// Connects two sides with different configurations.
fn connected_as(kind: Kind, configs: [&Config; 2], change: impl Fn(&mut ConnectionSetup)) -> [TestPeer; 2] {
    let pools = [pool(), pool()];
    let mut sides = handshakes(kind, configs[0], configs[1], [&pools[0], &pools[1]]);
    let established = run_handshakes(&mut sides);
    let mut configs = configs.into_iter();
    let sockets = sides.map(|(socket, _)| socket);
    let mut parts = established.into_iter().zip(sockets).zip(pools);
    std::array::from_fn(|_| {
        let ((established, socket), pool) = parts.next().expect("two sides");
        let agreed = established.agreed;
        let path = established.path.unwrap_or_else(|reason| panic!("{reason}"));
        let mut rc = RcDriver::new(path, socket).expect("a queue pair");
        let agreed = agreed.setup(configs.next().expect("two sides"), LinkType::Rc);
        let mut setup = ConnectionSetup { gather: rc.gather(), domain: pool.domain_id(), ..agreed };
        change(&mut setup);
        let mut protocol = ProtocolMachine::new(&setup).expect("a valid setup");
        protocol.tick(Instant::now());
        let set = Set::new().expect("a set");
        Driver::<Pool>::register(&mut rc, set.registry(), Token(0)).expect("registered");
        TestPeer { rc, protocol, pool, events: Vec::new(), set }
    })
}

fn connected(kind: Kind) -> [TestPeer; 2] {
    connected_with(kind, config(), |_| ())
}

/// Drives both sides until `is_so` returns true. `what` names the condition in the panic at
/// [`TIMEOUT`].
fn until(sides: &mut [TestPeer; 2], what: &str, mut is_so: impl FnMut(&mut [TestPeer; 2]) -> bool) {
    let give_up = Instant::now() + TIMEOUT;
    loop {
        sides.iter_mut().for_each(TestPeer::progress);
        if is_so(sides) {
            return;
        }
        assert!(
            Instant::now() < give_up,
            "{what}: {:?}",
            sides.each_ref().map(|side| side.failure().cloned())
        );
    }
}

/// Pseudorandom bytes, so that misplaced data is noticed.
fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        })
        .collect()
}

/// Checks that the connections leave no block in use and no queue pair or completion queue. The
/// service thread may be closing them.
fn nothing_is_left(pools: [Pool; 2]) {
    let give_up = Instant::now() + TIMEOUT;
    pools.iter().for_each(Pool::flush);
    loop {
        let in_use = pools.each_ref().map(|pool| pool.stats().in_use);
        let (pairs, queues) = soft::statistics()
            .map_or((0, 0), |statistics| (statistics.queue_pairs.len(), statistics.completion_queues));
        if in_use == [0; 2] && pairs == 0 && queues == 0 {
            return;
        }
        assert!(Instant::now() < give_up, "{pairs} kinds of queue pairs, {queues} queues, {pools:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
