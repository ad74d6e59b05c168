//! Thousands of connections at once, between two processes over soft0, whose workers share
//! receives: each carries data, uses little memory, and leaves nothing behind. One frame without a
//! receive would end its connection (`rnr_retry` 0).

use std::io::{BufRead, BufReader, ErrorKind, Lines, Read, Write};
use std::net::SocketAddr;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Once;
use std::time::{Duration, Instant};

use sideway::soft;
use trespass::{Builder, Config, Event, Key, Kind, Policy, Transport, Worker};

/// The number of connections that the child process serves in its last round.
const CONNECTIONS: &str = "TRESPASS_MANY";
/// A limit far above the duration of any working call.
const LONG: Duration = Duration::from_secs(300);
/// Handshakes in progress at a time.
const AT_ONCE: usize = 256;
/// Bytes of the pool that an idle connection may use.
const IDLE: usize = 32 << 10;

fn config(connections: usize) -> Config {
    static DEVICES: Once = Once::new();
    DEVICES.call_once(|| {
        let mut config = soft::Config::from_env().expect("a valid environment");
        config.time_scale = 0.01;
        sideway::set_default_provider(soft::provider_with(config).expect("no device is listed yet"));
    });
    let size = (5 * connections + 1024).min(1 << 16) as u32;
    let builder = Builder::new().srq(true).srq_size(size).policy(Policy::RequireRdma).rnr_retry(0);
    let builder = builder.pool_initial(0).pool_prewarm(0).keepalive(None).trace_interval(None);
    let builder = builder.handshake_deadline(LONG).probe_timeout(LONG / 2).linger(LONG);
    builder.build().expect("a valid configuration")
}

/// The resources of a process.
#[derive(Debug)]
struct OpenConnections {
    queue_pairs: u32,
    completion_queues: u32,
    shared_receive_queues: u32,
    /// Files and sockets, without those of the pool's memory, because the pool stays.
    descriptors: usize,
}

impl OpenConnections {
    /// The fewest within a time, because the device's thread closes what it has received from the
    /// other process a moment later.
    fn settled() -> Self {
        let counts = (0..200).map(|_| {
            std::thread::sleep(Duration::from_millis(1));
            Self::now()
        });
        counts.min_by_key(|has| has.descriptors).expect("there are some")
    }

    fn now() -> Self {
        let statistics = soft::statistics().expect("a device is open");
        Self {
            queue_pairs: statistics.queue_pairs.iter().map(|pairs| pairs.count).sum(),
            completion_queues: statistics.completion_queues,
            shared_receive_queues: statistics.shared_receive_queues,
            descriptors: descriptors().iter().filter(|what| !what.starts_with("/memfd:sideway")).count(),
        }
    }
}

/// Checks that an open connection uses no more than its limit, and that all connections share the
/// receive queues.
fn see_that_they_are_cheap(worker: &Worker, connections: usize, before: &OpenConnections) {
    let (pool, has) = (worker.pool().stats(), OpenConnections::now());
    let (used, registered) = (pool.in_use / connections, pool.registered / connections);
    eprintln!("{connections} connections: {used} bytes in use each, {registered} registered; {has:?}");
    assert!(used <= IDLE, "{pool:?}");
    // With few connections, the pool's first chunks of 2 MiB dominate.
    let first_chunks = if connections < 1000 { 4 << 20 } else { 0 };
    assert!(pool.registered <= connections * IDLE + first_chunks, "{pool:?}");
    assert_eq!(has.queue_pairs, connections as u32);
    assert_eq!((has.completion_queues, has.shared_receive_queues), (1, 1));
    assert!(has.descriptors <= before.descriptors + connections + 8, "a socket each: {has:?}");
}

/// Checks that dropping a worker releases all of its resources, and that only the pool's regions
/// remain.
fn see_that_nothing_is_left(worker: Worker, before: Option<&OpenConnections>) -> OpenConnections {
    let pool = worker.pool().clone();
    drop(worker);
    pool.flush();
    // The service thread may be closing the last connections.
    let deadline = Instant::now() + LONG;
    while pool.stats().in_use > 0 {
        assert!(Instant::now() < deadline, "{:?}", pool.stats());
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut has = OpenConnections::settled();
    let most = before.map_or(usize::MAX, |before| before.descriptors);
    while (has.queue_pairs, has.completion_queues, has.shared_receive_queues) != (0, 0, 0)
        || has.descriptors > most
    {
        assert!(Instant::now() < deadline, "{has:?} instead of {before:?}: {:#?}", descriptors());
        std::thread::sleep(Duration::from_millis(1));
        has = OpenConnections::now();
    }
    let (regions, registered) =
        (soft::statistics().expect("a device").regions.bytes, pool.stats().registered);
    assert_eq!(regions, registered as u64);
    has
}

/// The targets of this process's descriptors.
fn descriptors() -> Vec<String> {
    let open = std::fs::read_dir("/proc/self/fd").expect("Linux");
    let what = open.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    what.map(|what| what.to_string_lossy().into_owned()).collect()
}

fn message(connection: usize) -> [u8; 64] {
    let mut message = [connection as u8; 64];
    message[..8].copy_from_slice(&(connection as u64).to_le_bytes());
    message
}

/// Echoes until `connections` clients have come and gone.
fn serve(connections: usize, config: &Config, before: Option<&OpenConnections>) -> OpenConnections {
    let mut worker = Worker::new(config).unwrap();
    let listener = worker.listen("127.0.0.1:0", Kind::SeqPacket).unwrap();
    println!("\nlistening {}", worker.local_addr(listener).unwrap());
    let (mut accepted, mut echoed, mut gone) = (0, 0, 0);
    let (mut events, mut buffer, deadline) = (Vec::new(), [0; 256], Instant::now() + LONG);
    while gone < connections {
        assert!(Instant::now() < deadline, "{accepted} accepted, {echoed} echoed, {gone} gone");
        worker.poll(&mut events, Some(Duration::from_secs(1))).unwrap();
        for event in events.drain(..) {
            match event {
                Event::Accepted { .. } => accepted += 1,
                Event::Failed { error, .. } => panic!("{error}"),
                Event::Ready { key, .. } => loop {
                    match worker.recv(key, &mut buffer) {
                        Ok(len) => {
                            worker.send(key, &buffer[..len]).unwrap();
                            echoed += 1;
                            if let (Some(before), true) = (before, echoed == connections) {
                                see_that_they_are_cheap(&worker, connections, before);
                            }
                        }
                        Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                        Err(error) => {
                            assert_eq!(error.kind(), ErrorKind::UnexpectedEof, "{error}");
                            worker.close(key);
                            gone += 1;
                            break;
                        }
                    }
                },
                _ => (),
            }
        }
    }
    see_that_nothing_is_left(worker, before)
}

/// The child process's part.
#[test]
#[ignore = "run by the other tests, as the other process"]
fn serve_many() {
    let connections = std::env::var(CONNECTIONS).expect("who runs this says how many").parse().unwrap();
    let config = config(connections);
    // The first round creates what stays: the device, and the channel to the other process.
    let before = serve(1, &config, None);
    serve(connections, &config, Some(&before));
    println!("\nnothing is left");
    // The device has two sockets to the client, which the client has still to count.
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

struct OtherProcess {
    process: Child,
    words: Lines<BufReader<ChildStdout>>,
}

impl OtherProcess {
    fn start(connections: usize) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--ignored", "--exact", "many::serve_many", "--nocapture"]);
        command.env(CONNECTIONS, connections.to_string()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let words = BufReader::new(process.stdout.take().unwrap()).lines();
        Self { process, words }
    }

    /// Reads the next line; returns the rest of it after `begin`.
    fn says(&mut self, begin: &str) -> String {
        let mut said = String::new();
        for line in self.words.by_ref() {
            let line = line.unwrap();
            if let Some(rest) = line.strip_prefix(begin) {
                return rest.trim().to_owned();
            }
            said = said + &line + "\n";
        }
        panic!("it did not say {begin:?}: {said}")
    }
}

impl Drop for OtherProcess {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Opens `connections` connections, sends through each while all are open, and closes them.
fn connect(
    connections: usize,
    addr: SocketAddr,
    config: &Config,
    before: Option<&OpenConnections>,
) -> OpenConnections {
    let mut worker = Worker::new(config).unwrap();
    let (mut keys, mut connected) = (Vec::<Key>::new(), 0);
    let (mut events, mut buffer, deadline) = (Vec::new(), [0; 256], Instant::now() + LONG);
    let began = Instant::now();
    while connected < connections {
        assert!(Instant::now() < deadline, "{connected} of {} have connected", keys.len());
        while keys.len() < connections && keys.len() - connected < AT_ONCE {
            keys.push(worker.connect(addr, Kind::SeqPacket).unwrap());
        }
        worker.poll(&mut events, Some(Duration::from_secs(1))).unwrap();
        for event in events.drain(..) {
            match event {
                Event::Connected { key, .. } => {
                    assert_eq!(worker.transport(key).unwrap(), Transport::Rdma);
                    connected += 1;
                }
                other => panic!("{other:?}"),
            }
        }
    }
    let opened = began.elapsed();
    if let Some(before) = before {
        see_that_they_are_cheap(&worker, connections, before);
    }
    keys.iter().enumerate().for_each(|(number, key)| worker.send(*key, &message(number)).unwrap());
    let numbers: std::collections::HashMap<_, _> =
        keys.iter().enumerate().map(|(number, key)| (*key, number)).collect();
    let mut echoed = 0;
    while echoed < connections {
        assert!(Instant::now() < deadline, "{echoed} of {connections} were answered");
        worker.poll(&mut events, Some(Duration::from_secs(1))).unwrap();
        for event in events.drain(..) {
            let Event::Ready { key, .. } = event else { panic!("{event:?}") };
            if let Ok(len) = worker.recv(key, &mut buffer) {
                assert_eq!(buffer[..len], message(numbers[&key]));
                echoed += 1;
            }
        }
    }
    let answered = began.elapsed();
    keys.into_iter().for_each(|key| worker.close(key));
    let has = see_that_nothing_is_left(worker, before);
    eprintln!("opened after {opened:?}, all answered after {answered:?}, closed after {:?}", began.elapsed());
    has
}

fn many(connections: usize) {
    let config = config(connections);
    let mut other = OtherProcess::start(connections);
    let addr = |other: &mut OtherProcess| other.says("listening ").parse().unwrap();
    let first = addr(&mut other);
    let before = connect(1, first, &config, None);
    let second = addr(&mut other);
    connect(connections, second, &config, Some(&before));
    other.says("nothing is left");
    // This closes its standard input first.
    assert!(other.process.wait().unwrap().success());
}

#[test]
fn two_hundred_connections_at_once() {
    alone!(two_hundred_connections_at_once);
    many(200);
}

#[test]
#[ignore = "takes 10,100 descriptors in each of two processes: `.ci/run scale`"]
fn ten_thousand_connections_at_once() {
    alone!(ten_thousand_connections_at_once);
    many(10_000);
}

/// Sets the limit of open files as `ulimit -n` does.
fn limit_files(count: u64) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    // Root may raise the hard limit, too.
    let maximum = getrlimit(Resource::Nofile).maximum.map(|maximum| maximum.max(count));
    setrlimit(Resource::Nofile, Rlimit { current: Some(count), maximum })
        .unwrap_or_else(|error| panic!("the hard limit (`ulimit -Hn`) is below {count}: {error}"));
}

/// Above some number of connections each begins with a few receives, and gets more when its peer
/// sends much.
#[test]
fn a_thousand_connections_with_defaults_use_rdma() {
    alone!(a_thousand_connections_with_defaults_use_rdma);
    const CONNECTIONS: usize = 1000;
    const REGISTERED: usize = 256 << 20;
    const DESCRIPTORS: u64 = 8192;
    config(0);
    limit_files(DESCRIPTORS);
    // Only the times are not the defaults, because the machine may be busy.
    let builder = Builder::new().keepalive(None).handshake_deadline(LONG).probe_timeout(LONG / 2);
    let listener = builder.clone().bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let accepting =
        std::thread::spawn(move || listener.into_incoming().take(CONNECTIONS).collect::<Result<Vec<_>, _>>());
    let mut clients: Vec<_> = (0..CONNECTIONS).map(|_| builder.clone().connect(addr).unwrap()).collect();
    let mut servers = accepting.join().unwrap().unwrap();
    for stream in clients.iter().chain(&servers) {
        assert_eq!(stream.transport(), Transport::Rdma, "{:?}", stream.fallback_reason());
    }
    let registered = clients[0].pool().stats().registered;
    println!("{CONNECTIONS} connections: {} MiB are registered", registered >> 20);
    assert!(registered <= REGISTERED, "{registered} bytes");
    // The last one begins with few receives, and carries much all the same.
    let (client, server) = (clients.last_mut().unwrap(), servers.last_mut().unwrap());
    let piece: Vec<u8> = (0..10_000).map(|at| at as u8).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| (0..500).for_each(|_| client.write_all(&piece).unwrap()));
        let mut got = vec![0; piece.len()];
        for _ in 0..500 {
            server.read_exact(&mut got).unwrap();
            assert!(got == piece);
        }
    });
}
