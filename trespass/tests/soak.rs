//! Two processes exchange data over soft0 by connections of random sizes, are killed at random
//! moments, and restart. At each moment the data delivered is a prefix of the data sent. For
//! connections that end normally both sides compare hashes. The survivor of a kill learns in
//! bounded time that its connections ended, and nothing of them remains.
//!
//!     TRESPASS_SOAK_SECONDS=600 cargo test -p trespass --test main -- \
//!         --ignored --nocapture as_long_as_is_asked_for

#[allow(dead_code, reason = "cases of other suites use the rest")]
#[path = "suite/fixture.rs"]
mod fixture;
#[allow(dead_code, reason = "the suite over faults uses the rest")]
#[path = "suite/traffic.rs"]
mod traffic;

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr};
use std::os::fd::AsFd;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::Rng;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sideway::soft;
use test_harness::fill;
use trespass::{Builder, Listener, SeqPacket, Stream, Transport};

use fixture::{Fixture, Target, below, random};
use traffic::is_failure;

/// The task of a child process: `serve STREAMS MESSAGES` with two ports, or `call` with the same
/// and a seed.
const PART: &str = "TRESPASS_SOAK_PART";
/// The prefix of each line that a child process prints. Text of the harness may precede it.
const TOLD: &str = "told: ";
/// Threads of the calling process; half of them send messages.
const CALLERS: u64 = 4;
/// The limit for a connection, a part of one, or an end.
const TIMEOUT: Duration = Duration::from_secs(30);

#[test]
fn ten_seconds_of_kills_and_reconnects() {
    soak(Duration::from_secs(10));
}

#[test]
#[ignore = "takes ten minutes, or as many seconds as TRESPASS_SOAK_SECONDS says"]
fn as_long_as_is_asked_for() {
    let seconds = std::env::var("TRESPASS_SOAK_SECONDS").map_or(600, |text| text.parse().expect("a number"));
    soak(Duration::from_secs(seconds));
}

/// The counts that the processes reported, killed or not.
#[derive(Debug, Default)]
struct Totals {
    /// Connections that ended normally, and those that broke.
    whole: AtomicU64,
    broken: AtomicU64,
    /// Bytes received and compared.
    bytes: AtomicU64,
}

fn soak(time: Duration) {
    let seed = std::env::var("TRESPASS_SOAK_SEED").map_or(1, |text| text.parse().expect("a number"));
    let (mut random, sum, until) = (random(seed), &Totals::default(), Instant::now() + time);
    thread::scope(|scope| {
        let start = |part: String| Process::start(scope, part, sum);
        let mut server = start("serve 0 0".to_owned());
        let ports = server.ports();
        let mut caller = start(format!("call {ports} {seed}"));
        let mut kills = [0; 2];
        while Instant::now() < until {
            thread::sleep(Duration::from_millis(100 + below(&mut random, 1400) as u64));
            let which = below(&mut random, 2);
            kills[which] += 1;
            if which == 0 {
                server.kill();
                server = start(format!("serve {ports}"));
                assert_eq!(server.ports(), ports);
            } else {
                caller.kill();
                caller = start(format!("call {ports} {}", random.next_u64() >> 1));
            }
        }
        // The last processes run until each has something to report.
        caller.end();
        server.end();
        let [whole, broken, bytes] =
            [&sum.whole, &sum.broken, &sum.bytes].map(|count| count.load(Ordering::Relaxed));
        println!(
            "{time:?}, seed {seed}: the server was killed {} times and the caller {} times; {whole} ends of connections had all, {broken} \
             broke; {bytes} bytes were received, and all are those that were sent",
            kills[0], kills[1]
        );
        assert!(whole > 0 && bytes > 0, "nothing came to its end");
        assert!(broken > 0 || kills == [0; 2], "kills broke nothing");
    });
}

/// A child process, as its parent sees it.
struct Process {
    child: Child,
    stdin: Option<ChildStdin>,
    ports: Receiver<String>,
}

impl Process {
    fn start<'scope>(scope: &'scope thread::Scope<'scope, '_>, part: String, sum: &'scope Totals) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "soak::part_of_a_process", "--nocapture"])
            .env(PART, &part)
            .env("SOFT_RNIC_FABRIC", format!("soak-{}", std::process::id()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take().unwrap());
        let (tell, ports) = channel();
        // The thread ends with the process.
        scope.spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let Some((_, told)) = line.split_once(TOLD) else { continue };
                let (what, rest) = told.split_once(' ').expect("a word, and more");
                match what {
                    // The receiver may have stopped waiting.
                    "ports" => drop(tell.send(rest.to_owned())),
                    "whole" | "broken" => {
                        let count = if what == "whole" { &sum.whole } else { &sum.broken };
                        count.fetch_add(1, Ordering::Relaxed);
                        sum.bytes.fetch_add(rest.parse::<u64>().expect("a number"), Ordering::Relaxed);
                    }
                    _ => println!("{part}: {told}"),
                }
            }
        });
        Self { child, stdin, ports }
    }

    fn ports(&self) -> String {
        self.ports.recv_timeout(TIMEOUT).expect("it listens")
    }

    /// Sends SIGKILL, in the midst of whatever the process does.
    fn kill(&mut self) {
        assert_eq!(self.child.try_wait().unwrap(), None, "a process has ended by itself");
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Ends the process normally; it counts its remaining resources.
    fn end(&mut self) {
        drop(self.stdin.take());
        let until = Instant::now() + 3 * TIMEOUT;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return assert!(status.success(), "{status}");
            }
            assert!(Instant::now() < until, "a process does not end");
            thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

// The functions below run in a child process.

static ENDS: AtomicBool = AtomicBool::new(false);

fn say(words: &str) {
    println!("{TOLD}{words}");
}

#[test]
#[ignore = "what the processes do that the soak starts"]
fn part_of_a_process() {
    let Ok(part) = std::env::var(PART) else { return println!("nobody has started this process as a part") };
    let mut config = soft::Config::from_env().expect("a valid environment");
    config.time_scale = 0.01;
    sideway::set_default_provider(soft::provider_with(config).expect("no device is listed yet"));
    thread::spawn(|| {
        let _ = io::stdin().read(&mut [0]);
        ENDS.store(true, Ordering::Relaxed);
    });
    let words: Vec<&str> = part.split(' ').collect();
    let numbers: Vec<u64> = words[1..].iter().map(|word| word.parse().expect("a number")).collect();
    let at = |port: u64| SocketAddr::from((Ipv4Addr::LOCALHOST, port as u16));
    let met_somebody = if words[0] == "serve" {
        serve(at(numbers[0]), at(numbers[1]))
    } else {
        call(&numbers, at);
        true
    };
    if soft::statistics().is_none() {
        return assert!(!met_somebody, "no device was used");
    }
    let statistics = || soft::statistics().expect("it was used");
    wait_until(|| statistics().queue_pairs.is_empty() && statistics().completion_queues == 0);
    let statistics = statistics();
    assert_eq!(statistics.queue_pairs, [], "queue pairs are left");
    assert_eq!(statistics.completion_queues, 0, "completion queues are left");
}

/// Waits for the threads that close and destroy, for a limited time.
fn wait_until(is_done: impl Fn() -> bool) {
    let give_up = Instant::now() + TIMEOUT;
    while !is_done() && Instant::now() < give_up {
        thread::sleep(Duration::from_millis(10));
    }
}

fn builder() -> Builder {
    // The kernel frees the ports of a killed process at once, so a restarted server can bind them
    // in time.
    Fixture::new(Target::Soft, Ipv4Addr::LOCALHOST.into()).builder().bind_patience(TIMEOUT).backlog(128)
}

/// Serves both ports; returns whether any client connected with a stream.
fn serve(streams: SocketAddr, messages: SocketAddr) -> bool {
    let [streams, messages] = [streams, messages].map(|addr| builder().bind(addr).unwrap());
    let port = |listener: &Listener| listener.local_addr().unwrap().port();
    say(&format!("ports {} {}", port(&streams), port(&messages)));
    let pool = thread::scope(|scope| {
        scope.spawn(|| {
            accept(messages, |listener| listener.accept_seq_packet().map(|end| SoakEnd::from(end.0)))
        });
        accept(streams, |listener| listener.accept().map(|end| SoakEnd::from(end.0)))
    });
    // A process that started shortly before the end may have met no peer.
    let in_use = || pool.as_ref().map_or(0, |pool| pool.stats().in_use);
    wait_until(|| in_use() == 0);
    assert_eq!(in_use(), 0, "blocks are left");
    pool.is_some()
}

/// Accepts until it is told to end, and serves every client to the end.
fn accept(
    mut listener: Listener,
    accept: impl Fn(&mut Listener) -> io::Result<SoakEnd>,
) -> Option<trespass::Pool> {
    let (mut serving, mut pool) = (Vec::<JoinHandle<()>>::new(), None);
    listener.set_accept_timeout(Some(Duration::from_millis(50))).unwrap();
    while !ENDS.load(Ordering::Relaxed) {
        match accept(&mut listener) {
            Ok(end) => {
                pool = Some(end.pool());
                serving.push(thread::spawn(move || answer(end)));
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}"),
        }
        let (over, still): (Vec<_>, Vec<_>) = serving.drain(..).partition(JoinHandle::is_finished);
        over.into_iter().for_each(|thread| thread.join().expect("a connection's thread has failed"));
        serving = still;
    }
    serving.into_iter().for_each(|thread| thread.join().expect("a connection's thread has failed"));
    pool
}

/// The server's part of a connection: the client first announces its data and its request.
fn answer(mut end: SoakEnd) {
    let mut hello = [0; 24];
    let mut got = 0;
    let outcome = loop {
        match end.read(&mut hello[got..]) {
            Ok(0) => break Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => got += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => end.sleep(),
            Err(error) => break Err(error),
        }
        if got == hello.len() {
            break Ok(());
        }
    };
    match outcome {
        Ok(()) => {
            let [seed, to_server, to_client] =
                [0, 8, 16].map(|at| u64::from_le_bytes(hello[at..at + 8].try_into().expect("eight bytes")));
            report(talk(&mut end, [seed + 1, seed], [to_client, to_server]));
        }
        // The client was killed before it sent anything.
        Err(error) => {
            assert!(is_failure(&error), "{error}");
            say("broken 0");
        }
    }
}

fn call(numbers: &[u64], at: impl Fn(u64) -> SocketAddr) {
    let (done, dones) = channel();
    for caller in 0..CALLERS {
        let (is_stream, random, done) = (caller % 2 == 0, random(numbers[2] + caller), done.clone());
        let addr = at(numbers[if is_stream { 0 } else { 1 }]);
        thread::spawn(move || call_again_and_again(is_stream, addr, random, &done));
    }
    drop(done);
    let mut pools = Vec::new();
    for caller in 0..CALLERS {
        pools.push(dones.recv().unwrap_or_else(|_| panic!("caller {caller} has failed")));
    }
    wait_until(|| pools[0].stats().in_use == 0);
    assert_eq!(pools[0].stats().in_use, 0, "blocks are left");
}

fn call_again_and_again(
    is_stream: bool,
    addr: SocketAddr,
    mut random: ChaCha8Rng,
    done: &Sender<trespass::Pool>,
) {
    let (mut pool, mut found) = (None, Instant::now());
    while !ENDS.load(Ordering::Relaxed) || pool.is_none() {
        let connected = if is_stream {
            builder().connect(addr).map(SoakEnd::from)
        } else {
            builder().connect_seq_packet(addr).map(SoakEnd::from)
        };
        let mut end = match connected {
            Ok(end) => end,
            // The server restarts, or ends in the middle of a handshake.
            Err(error) => {
                assert!(found.elapsed() < TIMEOUT, "no server for {TIMEOUT:?}: {error}");
                thread::sleep(Duration::from_millis(5));
                continue;
            }
        };
        pool = Some(end.pool());
        let most = [100, 20_000, 1_000_000, 6_000_000][below(&mut random, 4)];
        let [seed, to_server, to_client] =
            [random.next_u64() >> 1, below(&mut random, most) as u64, below(&mut random, most) as u64];
        let hello: Vec<u8> =
            [seed, to_server, to_client].iter().flat_map(|word| word.to_le_bytes()).collect();
        // A new connection accepts so few bytes at once; an error means that it broke.
        match end.write(&hello) {
            Ok(count) => {
                assert_eq!(count, hello.len());
                report(talk(&mut end, [seed, seed + 1], [to_server, to_client]));
            }
            Err(error) => assert!(is_failure(&error), "{error}"),
        }
        found = Instant::now();
    }
    done.send(pool.expect("a connection")).expect("somebody waits for it");
}

fn report((got, outcome): (u64, io::Result<()>)) {
    match outcome {
        Ok(()) => say(&format!("whole {got}")),
        Err(error) => {
            assert!(is_failure(&error), "{:?}: {error}", error.kind());
            say(&format!("broken {got}"));
        }
    }
}

/// One end of either kind. Calls do not wait.
enum SoakEnd {
    Bytes(Stream),
    Messages(SeqPacket, Vec<u8>),
}

impl From<Stream> for SoakEnd {
    fn from(stream: Stream) -> Self {
        assert_eq!(stream.transport(), Transport::Rdma);
        stream.set_nonblocking(true).unwrap();
        Self::Bytes(stream)
    }
}

impl From<SeqPacket> for SoakEnd {
    fn from(packets: SeqPacket) -> Self {
        assert_eq!(packets.transport(), Transport::Rdma);
        packets.set_nonblocking(true).unwrap();
        Self::Messages(packets, vec![0; LONGEST])
    }
}

/// The longest message or write.
const LONGEST: usize = 300_000;

impl SoakEnd {
    fn pool(&self) -> trespass::Pool {
        match self {
            Self::Bytes(stream) => stream.pool().clone(),
            Self::Messages(packets, _) => packets.pool().clone(),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Bytes(stream) => stream.write(bytes),
            Self::Messages(packets, _) => packets.send(bytes).map(|()| bytes.len()),
        }
    }

    /// Reads one message, which fits because its sender announced its size. No bytes mean the end.
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Bytes(stream) => stream.read(bytes),
            Self::Messages(packets, buffer) => match packets.recv(buffer) {
                Ok(len) => {
                    bytes[..len].copy_from_slice(&buffer[..len]);
                    Ok(len)
                }
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(0),
                Err(error) => Err(error),
            },
        }
    }

    fn shut_down(&mut self) -> io::Result<()> {
        match self {
            Self::Bytes(stream) => stream.shutdown(Shutdown::Write),
            Self::Messages(packets, _) => packets.shutdown(Shutdown::Write),
        }
    }

    /// Sleeps until a call may make progress. The operating system also reports the end of the
    /// other process.
    fn sleep(&self) {
        let fd = match self {
            Self::Bytes(stream) => stream.as_fd(),
            Self::Messages(packets, _) => packets.as_fd(),
        };
        let timeout = Timespec::try_from(TIMEOUT).expect("a time");
        let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
        let ready = poll(&mut fds, Some(&timeout)).expect("it can be polled");
        assert!(ready == 1, "asleep for {TIMEOUT:?}");
    }
}

/// Sends the data of one seed followed by its hash, and receives the data of the other at the same
/// time. Returns the received bytes and the outcome.
fn talk(end: &mut SoakEnd, [out, into]: [u64; 2], [to_send, to_get]: [u64; 2]) -> (u64, io::Result<()>) {
    let mut talk = Conversation {
        random: random(out),
        out: Direction::new(out, to_send),
        into: Direction::new(into, to_get),
        piece: Vec::new(),
        buffer: vec![0; LONGEST],
        expected: vec![0; LONGEST],
        told_end: false,
        has_ended: false,
    };
    loop {
        match talk.go_on(end) {
            Ok(true) => return (talk.into.at, Ok(())),
            Ok(false) => end.sleep(),
            Err(error) => return (talk.into.at, Err(error)),
        }
    }
}

/// The bytes of a seed, followed by their hash.
struct Direction {
    seed: u64,
    len: u64,
    at: u64,
    hash: crc32fast::Hasher,
}

const HASH: u64 = 4;

impl Direction {
    fn new(seed: u64, len: u64) -> Self {
        Self { seed, len, at: 0, hash: crc32fast::Hasher::new() }
    }

    fn is_over(&self) -> bool {
        self.at == self.len + HASH
    }

    fn left(&self) -> usize {
        (self.len + HASH - self.at) as usize
    }

    /// Fills `bytes` with the next bytes; [`Self::took`] advances.
    fn next(&self, bytes: &mut [u8]) {
        let of_seed = bytes.len().min((self.len.saturating_sub(self.at)) as usize);
        let (bytes, of_hash) = bytes.split_at_mut(of_seed);
        fill(self.seed, self.at as usize, bytes);
        if !of_hash.is_empty() {
            let mut hash = self.hash.clone();
            hash.update(bytes);
            let skipped = (self.at + bytes.len() as u64 - self.len) as usize;
            of_hash.copy_from_slice(&hash.finalize().to_le_bytes()[skipped..][..of_hash.len()]);
        }
    }

    /// Advances past bytes that were sent or received.
    fn took(&mut self, bytes: &[u8]) {
        let of_seed = bytes.len().min((self.len.saturating_sub(self.at)) as usize);
        self.hash.update(&bytes[..of_seed]);
        self.at += bytes.len() as u64;
    }
}

struct Conversation {
    random: ChaCha8Rng,
    out: Direction,
    into: Direction,
    /// The next piece, if it was refused before.
    piece: Vec<u8>,
    buffer: Vec<u8>,
    expected: Vec<u8>,
    told_end: bool,
    has_ended: bool,
}

impl Conversation {
    /// Runs until every call would block. Returns whether all data was sent and received.
    fn go_on(&mut self, end: &mut SoakEnd) -> io::Result<bool> {
        while !self.out.is_over() {
            if self.piece.is_empty() {
                let most = [50, 9000, 70_000, LONGEST][below(&mut self.random, 4)];
                self.piece.resize((1 + below(&mut self.random, most)).min(self.out.left()).min(LONGEST), 0);
                self.out.next(&mut self.piece);
            }
            match end.write(&self.piece) {
                Ok(count) => {
                    self.out.took(&self.piece[..count]);
                    self.piece.drain(..count);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        if self.out.is_over() && !std::mem::replace(&mut self.told_end, true) {
            end.shut_down()?;
        }
        while !self.has_ended {
            match end.read(&mut self.buffer) {
                Ok(0) => {
                    assert!(self.into.is_over(), "an orderly end after {} bytes", self.into.at);
                    self.has_ended = true;
                }
                Ok(count) => {
                    assert!(count <= self.into.left(), "more than was sent");
                    let (got, expected) = (&self.buffer[..count], &mut self.expected[..count]);
                    self.into.next(expected);
                    assert!(
                        got == expected,
                        "other bytes than were sent, or another hash, from {} on",
                        self.into.at
                    );
                    self.into.took(got);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(self.told_end && self.has_ended)
    }
}
