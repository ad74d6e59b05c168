//! Two processes exchange data over three software devices that fail at random. One device of each
//! process works at any time, except for moments that are shorter than the timeouts. Streams and
//! messages deliver each byte once and in order. Windows do what a model of their memory does, and a
//! revoked one is reached no more. Connections that lose all rails are made again.
//!
//!     TRESPASS_FLAPPING_SECONDS=20 TRESPASS_FLAPPING_SEED=3 cargo test -p trespass --test flapping
//!
//! Without the variables it takes ten minutes, and a random seed, which it prints.

mod exchange;
mod rules;
mod windows;

use std::env;
use std::fmt::Display;
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use sideway::soft;
use trespass::{Builder, Policy, Pool, SeqPacket, Stream};

use self::exchange::{exchange_bytes, exchange_messages, lend};
use self::rules::{Epoch, disturb};
use self::windows::operate;

/// Set for the second process: the start in milliseconds since 1970, the seed, the seconds, and three
/// ports.
const PART: &str = "TRESPASS_FLAPPING_PART";
/// The limit of a call that waits for the peer. It is longer than all faults.
const LONG: Duration = Duration::from_secs(20);

macro_rules! counts {
    ($($name:ident),*) => {
        #[derive(Debug, Default)]
        struct Counts { $($name: AtomicU64),* }
    };
}
counts!(
    findings,
    rules,
    connections,
    broken,
    rails_joined,
    rails_failed,
    repeated,
    bytes,
    messages,
    lent,
    puts,
    gets,
    adds,
    notified,
    offers,
    revoked,
    stale,
    unknown,
    no_path,
    timed_out,
    still_registered
);

static COUNTS: OnceLock<Counts> = OnceLock::new();
static RUN: OnceLock<Run> = OnceLock::new();
/// All connections of a process share it.
static POOL: OnceLock<Pool> = OnceLock::new();
static RULES: Mutex<String> = Mutex::new(String::new());

fn counts() -> &'static Counts {
    COUNTS.get_or_init(Counts::default)
}

fn add(count: &AtomicU64, more: u64) {
    count.fetch_add(more, Ordering::Relaxed);
}

fn finding(what: impl Display) {
    add(&counts().findings, 1);
    println!("FINDING in process {}: {what}, under {}", std::process::id(), RULES.lock().unwrap());
}

struct RandomChoices(ChaCha8Rng);

impl RandomChoices {
    fn new(seed: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed))
    }

    fn next(&mut self) -> u64 {
        self.0.next_u64()
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    /// A length of at most `most`. Short ones are as frequent as long ones.
    fn len(&mut self, most: usize) -> usize {
        let most = most.min([16, 600, 9_000, 70_000, usize::MAX][self.below(5)]);
        1 + self.below(most)
    }

    fn millis(&mut self, most: usize) -> Duration {
        Duration::from_millis(1 + self.below(most) as u64)
    }
}

#[derive(Clone, Copy, Debug)]
struct Run {
    start: u64,
    seed: u64,
    seconds: u64,
}

impl Run {
    fn elapsed(&self) -> Duration {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        now.saturating_sub(Duration::from_millis(self.start))
    }

    /// The memory that a silent device holds is never used again, so that half of the runs have none.
    fn has_silent_devices(&self) -> bool {
        self.seed.is_multiple_of(2)
    }

    fn is_over(&self) -> bool {
        self.elapsed() >= Duration::from_secs(self.seconds)
    }
}

fn main() -> ExitCode {
    let number = |name: &str| env::var(name).ok().map(|text| text.parse().expect("a number"));
    if let Ok(part) = env::var(PART) {
        let numbers: Vec<u64> = part.split(' ').map(|word| word.parse().expect("a number")).collect();
        use_devices(None);
        let run = Run { start: numbers[0], seed: numbers[1], seconds: numbers[2] };
        return process(run, 1, |kind| call(run, kind, numbers[3 + kind] as u16));
    }
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let start = now.as_millis() as u64;
    let seed = number("TRESPASS_FLAPPING_SEED").unwrap_or(start % 1_000_000);
    let seconds = number("TRESPASS_FLAPPING_SECONDS").unwrap_or(600);
    println!("seed {seed}, {seconds} seconds");
    let fabric = format!("flapping-{}", std::process::id());
    use_devices(Some(&fabric));
    let listeners = [(); 3].map(|()| builder().bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
    let ports = listeners.each_ref().map(|listener| listener.local_addr().unwrap().port());
    let part = format!("{start} {seed} {seconds} {} {} {}", ports[0], ports[1], ports[2]);
    let mut child = Command::new(env::current_exe().unwrap());
    let mut child = child.env(PART, part).env("SOFT_RNIC_FABRIC", fabric).spawn().unwrap();
    let run = Run { start, seed, seconds };
    let code = process(run, 0, |kind| serve(run, kind, &listeners[kind]));
    match child.wait().unwrap().success() {
        true => code,
        false => ExitCode::FAILURE,
    }
}

fn use_devices(fabric: Option<&str>) {
    let mut config = soft::Config::from_env().expect("a valid environment");
    config.devices = 3;
    if let Some(fabric) = fabric {
        config.fabric = fabric.to_owned();
    }
    sideway::set_default_provider(soft::provider_with(config).expect("no device is listed yet"));
}

/// Retries end after 270 ms, so that moments without a path do not end them.
fn builder() -> Builder {
    Builder::new()
        .policy(Policy::RequireRdma)
        .devices(["soft0", "soft1", "soft2"])
        .rails_after(0)
        .ack_timeout(13)
        .rnr_retry(0)
        .rail_timeout(Duration::from_secs(1))
        .__rail_backoff(Duration::from_millis(20))
        .probe_timeout(Duration::from_secs(2))
        .handshake_deadline(Duration::from_secs(10))
}

/// Runs the three kinds of connections under rules, and checks that nothing is left.
fn process(run: Run, part: u64, run_kind: impl Fn(usize) + Sync) -> ExitCode {
    RUN.set(run).expect("one run");
    thread::scope(|scope| {
        let kinds = [0, 1, 2].map(|kind| {
            scope.spawn({
                let run_kind = &run_kind;
                move || run_kind(kind)
            })
        });
        disturb(run, part);
        let deadline = Instant::now() + 4 * LONG;
        while !kinds.iter().all(|kind| kind.is_finished()) {
            if Instant::now() > deadline {
                println!("FINDING: {:?} do not end: {:?}", kinds.map(|kind| kind.is_finished()), counts());
                std::process::exit(1);
            }
            thread::sleep(Duration::from_millis(50));
        }
    });
    let queue_pairs = || soft::statistics().expect("a device was used").queue_pairs;
    let in_use = || POOL.get().map_or(0, |pool| pool.stats().in_use);
    if run.has_silent_devices() {
        println!("process {part}: {} bytes stay with devices that died silently", in_use());
    }
    let blocks = || if run.has_silent_devices() { 0 } else { in_use() };
    let deadline = Instant::now() + LONG;
    while (!queue_pairs().is_empty() || blocks() > 0) && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(20));
    }
    if !queue_pairs().is_empty() || blocks() > 0 {
        finding(format_args!("{} bytes of blocks and queue pairs are left: {:?}", blocks(), queue_pairs()));
    }
    let all = counts();
    println!("process {part}: {all:?}");
    let value = |count: &AtomicU64| count.load(Ordering::Relaxed);
    let has_run = [&all.rails_failed, &all.bytes, &all.messages, &all.gets, &all.adds, &all.revoked];
    if value(&all.findings) > 0 || has_run.iter().any(|count| value(count) == 0) {
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// Whether the connection has ended in a way that is allowed when all rails fail.
fn broken(what: &str, error: &io::Error) {
    let allowed = [ErrorKind::ConnectionReset, ErrorKind::BrokenPipe, ErrorKind::ConnectionAborted];
    if !allowed.contains(&error.kind()) {
        finding(format_args!("{what}: {:?}: {error}", error.kind()));
    }
    add(&counts().broken, 1);
    let run = RUN.get().expect("it runs");
    let epoch = Epoch::now(*run);
    println!("{what} broke in {epoch:?}, process {}: {error}", std::process::id());
}

/// Accepts and serves connections of one kind until the client has no more time to make them.
fn serve(run: Run, kind: usize, listener: &trespass::Listener) {
    listener.set_accept_timeout(Some(Duration::from_millis(100))).unwrap();
    thread::scope(|scope| {
        while run.elapsed() < Duration::from_secs(run.seconds) + LONG / 2 {
            let connection = match kind {
                1 => listener.accept_seq_packet().map(|(packets, _)| Connection::Packets(packets)),
                _ => listener.accept().map(|(stream, _)| Connection::Stream(stream)),
            };
            match connection {
                Ok(connection) => drop(scope.spawn(move || exchange(run, kind, connection, None))),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => finding(format_args!("accept: {:?}: {error}", error.kind())),
            }
        }
    });
}

/// Makes connections of one kind, one after the other.
fn call(run: Run, kind: usize, port: u16) {
    let mut random = RandomChoices::new(run.seed * 8 + kind as u64);
    let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    while !run.is_over() {
        let seed = random.next() >> 8;
        let builder = builder().user_data(seed.to_le_bytes());
        let connection = match kind {
            1 => builder.connect_seq_packet(addr).map(Connection::Packets),
            _ => builder.connect(addr).map(Connection::Stream),
        };
        match connection {
            Ok(connection) => exchange(run, kind, connection, Some(seed)),
            // A device may fail within the handshake.
            Err(error) => {
                println!("connect: {:?}: {error}", error.kind());
                thread::sleep(Duration::from_millis(100));
            }
        }
    }
}

enum Connection {
    Stream(Stream),
    Packets(SeqPacket),
}

/// One side of a connection. Both sides derive what they do from the client's seed.
#[derive(Clone, Copy)]
struct Plan {
    seed: u64,
    side: u64,
    until: Instant,
}

impl Plan {
    fn out(self) -> u64 {
        self.seed * 4 + self.side
    }

    fn into(self) -> u64 {
        self.seed * 4 + (1 - self.side)
    }

    fn is_over(self) -> bool {
        Instant::now() >= self.until
    }
}

fn exchange(run: Run, kind: usize, connection: Connection, seed: Option<u64>) {
    add(&counts().connections, 1);
    let (told, pool) = match &connection {
        Connection::Stream(stream) => (stream.peer_user_data().to_vec(), stream.pool()),
        Connection::Packets(packets) => (packets.peer_user_data().to_vec(), packets.pool()),
    };
    POOL.get_or_init(|| pool.clone());
    let side = u64::from(seed.is_none());
    let seed = seed.unwrap_or_else(|| u64::from_le_bytes(told.try_into().expect("the client's seed")));
    let left = Duration::from_secs(run.seconds).saturating_sub(run.elapsed());
    let plan = Plan { seed, side, until: Instant::now() + RandomChoices::new(seed).millis(15_000).min(left) };
    match connection {
        Connection::Packets(packets) => exchange_messages(packets, plan),
        Connection::Stream(stream) if kind == 2 => operate(stream, plan),
        Connection::Stream(stream) if seed.is_multiple_of(3) => lend(stream, plan),
        Connection::Stream(stream) => exchange_bytes(stream, plan),
    }
}
