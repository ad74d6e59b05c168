//! I9: the peer's process ends at random moments, by a signal or by itself; every pending operation
//! completes exactly once.

use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::process::{Child, ChildStdout, Command, ExitCode, ExitStatus, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use test_harness::{Outcome, bytes, cases};
use trespass::{Builder, Completion, Kind, Listener, SeqPacket, Stream, Worker};

use super::fixture::{Fixture, LONG, Target, below, random};
use super::parity::processes;
use super::{muxed, unsent, waiting};

pub(crate) fn add(suite: &mut test_harness::Suite<Fixture>) {
    cases!(suite: i9_a_killed_peer_ends_every_call, i9_a_killed_peer_ends_a_blocked_reader_and_writer,
        i9_every_ticket_completes_once, i9_a_peer_that_exits_says_that_it_is_over, i14_the_end_of_a_process_sends_what_its_worker_wrote, i14_the_end_of_a_process_waits_no_longer_than_it_was_told, i14_drained_bytes_outlive_a_killed_process, i14_the_end_of_a_process_interrupts_no_write, i9_a_peer_that_panics_says_that_it_is_over,
        an_answer_outlives_the_process_that_wrote_it, a_message_outlives_the_process_that_sent_it);
}

/// The limit until a call reports that the peer's process has ended; the operating system knows at
/// once.
const NOTICED: Duration = Duration::from_secs(20);

/// The task of a child process: `PART ADDR`, with the same target as the parent.
const CHILD: &str = "TRESPASS_SUITE_CHILD";

/// Whether this process is a child of a case.
pub(crate) fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

/// Runs the child's part, if this process is a child.
pub(crate) fn part_of_child(target: Target) -> Option<ExitCode> {
    let order = std::env::var(CHILD).ok()?;
    let (part, addr) = order.rsplit_once(' ').expect("a part and an address");
    let addr: SocketAddr = addr.parse().expect("an address");
    let fixture = Fixture::new(target, addr.ip());
    if processes::task_of_child(part, &fixture, addr)
        || waiting::part_of_child(part, &fixture, addr)
        || unsent::part_of_child(part, &fixture, addr)
        || muxed::part_of_child(part, &fixture, addr)
    {
        return Some(ExitCode::SUCCESS);
    }
    let builder = fixture.builder();
    let mut buffer = vec![0; 1 << 20];
    match part {
        // Sends and receives until it is killed, or for some time.
        "talk" => talk(&mut builder.connect(addr).unwrap(), &mut buffer, LONG),
        "exit" | "exit amid traffic" | "panic" | "panic amid traffic" => {
            let mut stream = builder.connect(addr).unwrap();
            if part.ends_with(TRAFFIC) {
                talk(&mut stream, &mut buffer, Duration::from_millis(30));
            } else {
                talk_and_read_all(&mut stream, Duration::from_millis(30));
            }
            if part.starts_with("exit") {
                std::process::exit(3);
            }
            panic!("as it was told");
        }
        "write until the end" => {
            let stream = Arc::new(builder.linger(LONG).connect(addr).unwrap());
            for _ in 0..3 {
                let stream = stream.clone();
                // A call that began before the end waits for it, and no thread sees an error.
                thread::spawn(move || {
                    loop {
                        (&*stream).write_all(&[7; 1000]).unwrap();
                    }
                });
            }
            thread::sleep(Duration::from_millis(30));
            std::process::exit(0);
        }
        part if WAYS_TO_LEAVE_A_WORKER.contains(&part) => leave_worker(part, builder, addr),
        part if part.starts_with(ANSWER) => answer(part, builder.connect(addr).unwrap()),
        part if part.starts_with(MESSAGE) => send_answer(part, builder.connect_seq_packet(addr).unwrap()),
        // The peer does not read, and the connection lingers for longer.
        "exit in time" => {
            let mut stream = builder.linger(LONG).exit_timeout(EXIT_TIMEOUT).connect(addr).unwrap();
            stream.set_nonblocking(true).unwrap();
            // The peer takes what its buffers hold, on a busy machine not at once.
            let mut last = Instant::now();
            while last.elapsed() < EXIT_TIMEOUT {
                if stream.write(&buffer).is_ok() {
                    last = Instant::now();
                } else {
                    thread::sleep(Duration::from_millis(1));
                }
            }
            std::process::exit(0);
        }
        "drain" => {
            let mut stream = builder.connect(addr).unwrap();
            stream.write_all(&bytes(16, LEFT_BEHIND)).unwrap();
            stream.drain(Instant::now() + LONG).unwrap();
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL).unwrap();
        }
        // Connects and does nothing more.
        "stand" => {
            let _stream = builder.connect(addr).unwrap();
            loop {
                thread::park();
            }
        }
        // Reads slowly.
        "take" => {
            let mut packets = builder.connect_seq_packet(addr).unwrap();
            loop {
                packets.recv(&mut buffer).unwrap();
                thread::sleep(Duration::from_micros(200));
            }
        }
        other => panic!("a child with the part {other:?}"),
    }
    Some(ExitCode::SUCCESS)
}

/// How long the end of a child process waits.
const EXIT_TIMEOUT: Duration = Duration::from_millis(300);

fn i14_the_end_of_a_process_waits_no_longer_than_it_was_told(fixture: &Fixture) -> Outcome {
    let (listener, addr) = fixture.listener();
    let child = ChildPeer::command("exit in time", addr).stderr(Stdio::piped()).spawn().unwrap();
    let _unread = listener.accept().unwrap();
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{text}");
    // On a busy machine the time may be over before it has looked.
    let is_told = ["1 connections had unsent bytes or resets after 300ms", "and 1 were not closed"];
    assert!(is_told.iter().any(|words| text.contains(words)), "{text}");
    Ok(())
}

/// Writes, and ends the process with the worker in this state. The worker has the connection to itself
/// or in its completion queue.
fn leave_worker(way: &str, builder: Builder, addr: SocketAddr) -> ! {
    let spin = if way == "in a worker that spins" { LONG } else { Duration::ZERO };
    let config = builder.linger(LONG).worker_spin(spin).build().unwrap();
    let mut worker = Worker::new(&config).unwrap();
    let mut events = Vec::new();
    let key = match way {
        "added to a worker" => worker.add(config.connect(addr).unwrap()).unwrap(),
        _ => worker.connect(addr, Kind::Stream).unwrap(),
    };
    let (data, mut sent, deadline) = (bytes(16, LEFT_BEHIND), 0, Instant::now() + LONG);
    while sent < data.len() {
        assert!(Instant::now() < deadline, "{sent} bytes were taken: {events:?}");
        worker.poll(&mut events, Some(Duration::from_millis(1))).unwrap();
        match worker.write(key, &data[sent..]) {
            Ok(count) => sent += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => (),
            // It is still connecting.
            Err(error) => assert_eq!(error.kind(), ErrorKind::NotConnected, "{error}"),
        }
    }
    match way {
        "in a dropped worker" => drop(worker),
        "in a leaked worker" => std::mem::forget(worker),
        "in a worker that polls" | "in a worker that spins" => {
            thread::spawn(move || {
                loop {
                    worker.poll(&mut events, None).unwrap();
                }
            });
            thread::sleep(Duration::from_millis(50));
        }
        _ => std::process::exit(0),
    }
    std::process::exit(0);
}

/// The begin of a child's part; the length follows.
const ANSWER: &str = "answer with ";

/// Takes a request, writes the answer, and kills this process.
fn answer(part: &str, mut stream: Stream) -> ! {
    let len = part[ANSWER.len()..].parse().expect("a length");
    stream.read_exact(&mut [0]).unwrap();
    stream.write_all(&bytes(17, len)).unwrap();
    stream.flush().unwrap();
    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL).unwrap();
    unreachable!("it is dead");
}

/// The same for an answer that is a message.
const MESSAGE: &str = "send a message of ";

/// Takes a request, sends the answer, and kills this process. A call with a timeout sends it whole,
/// and one without in parts.
fn send_answer(part: &str, mut packets: SeqPacket) -> ! {
    let (len, way) = part[MESSAGE.len()..].split_once(' ').expect("a length and a way");
    packets.recv(&mut [0]).unwrap();
    packets.set_write_timeout((way == "whole").then_some(LONG)).unwrap();
    packets.send(&bytes(17, len.parse().expect("a length"))).unwrap();
    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL).unwrap();
    unreachable!("it is dead");
}

fn talk(stream: &mut Stream, buffer: &mut [u8], time: Duration) {
    stream.set_nonblocking(true).unwrap();
    let until = Instant::now() + time;
    while Instant::now() < until {
        let _ = stream.write(buffer);
        let _ = stream.read(buffer);
    }
}

/// The end of a child's part whose process ends while bytes move both ways.
const TRAFFIC: &str = " amid traffic";

/// The byte that a peer echoes, and the one that it does not, with their number.
const ECHOED: u8 = 7;
const LAST: u8 = 9;
const LAST_BYTES: usize = 50_000;

/// Has the peer echo, and reads all of it. The last bytes are not echoed.
fn talk_and_read_all(stream: &mut Stream, time: Duration) {
    let until = Instant::now() + time;
    while Instant::now() < until {
        stream.write_all(&[ECHOED; 1000]).unwrap();
        stream.read_exact(&mut [0; 1000]).unwrap();
    }
    stream.write_all(&[LAST; LAST_BYTES]).unwrap();
}

/// A child process, which is killed when this is dropped.
pub(crate) struct ChildPeer(Child);

impl ChildPeer {
    /// This program with the task of a child process.
    pub(crate) fn command(part: &str, addr: SocketAddr) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.env(CHILD, format!("{part} {addr}")).stdin(Stdio::null());
        command
    }

    pub(crate) fn start(part: &str, addr: SocketAddr) -> Self {
        let errors = if part.starts_with("panic") { Stdio::null() } else { Stdio::inherit() };
        Self(Self::command(part, addr).stderr(errors).spawn().unwrap())
    }

    /// Starts a process. Returns what it prints.
    pub(crate) fn start_piped(mut command: Command) -> (Self, ChildStdout) {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let told = child.stdout.take().unwrap();
        (Self(child), told)
    }

    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }

    /// Sends SIGKILL.
    pub(crate) fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        self.0.wait().unwrap()
    }
}

impl Drop for ChildPeer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn is_death(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::ConnectionAborted)
}

fn i9_a_killed_peer_ends_every_call(fixture: &Fixture) -> Outcome {
    let (listener, addr) = fixture.listener();
    let mut random = random(9);
    for round in 0..15 {
        let mut peer = ChildPeer::start("talk", addr);
        let (mut stream, _) = listener.accept().unwrap();
        let delay = Duration::from_micros(below(&mut random, 20_000) as u64);
        let killer = thread::spawn(move || {
            thread::sleep(delay);
            peer.kill();
        });
        echo_until_it_breaks(&mut stream, &format!("round {round}"));
        killer.join().unwrap();
    }
    Ok(())
}

/// Echoes until the connection breaks, and checks that it stays broken.
fn echo_until_it_breaks(stream: &mut Stream, round: &str) {
    let mut buffer = vec![0; 100_000];
    let error = echo(stream, &mut buffer).unwrap_or_else(|| panic!("{round}: what is no orderly end ends"));
    assert!(is_death(error.kind()), "{round}: {error}");
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => panic!("{round}: the end of a broken connection"),
            Ok(_) => (),
            Err(error) => break assert!(is_death(error.kind()), "{round}: {error}"),
        }
    }
    assert!(is_death(stream.write(&buffer).unwrap_err().kind()));
}

/// Echoes data. Returns the error that ended it, or `None` for the peer's orderly end.
fn echo(stream: &mut Stream, buffer: &mut [u8]) -> Option<std::io::Error> {
    stream.set_read_timeout(Some(NOTICED)).unwrap();
    stream.set_write_timeout(Some(NOTICED)).unwrap();
    let deadline = Instant::now() + NOTICED;
    loop {
        assert!(Instant::now() < deadline, "nobody noticed");
        match stream.read(buffer) {
            Ok(0) => return None,
            Ok(count) => {
                if let Err(error) = stream.write(&buffer[..count]) {
                    return Some(error);
                }
            }
            Err(error) => return Some(error),
        }
    }
}

/// What a process has left to send when it ends.
const LEFT_BEHIND: usize = 700_000;

/// The states in which it leaves its worker. `parity::processes` has those of a stream.
const WAYS_TO_LEAVE_A_WORKER: [&str; 6] = [
    "in a dropped worker",
    "in a worker on the stack",
    "in a leaked worker",
    "in a worker that polls",
    "in a worker that spins",
    "added to a worker",
];

fn i14_the_end_of_a_process_sends_what_its_worker_wrote(fixture: &Fixture) -> Outcome {
    let (listener, addr) = fixture.listener();
    for way in WAYS_TO_LEAVE_A_WORKER {
        let mut peer = ChildPeer::start(way, addr);
        let (got, end) = late_reader(&listener);
        assert!(got && end.is_ok(), "{way}: {end:?}");
        assert!(peer.wait().success(), "{way}");
    }
    Ok(())
}

/// The longest answer needs 31 of 53 free receives of 8 KiB. A connection with a shared receive queue
/// has two free ones of 4 KiB at first.
fn answer_lengths(fixture: &Fixture) -> &'static [usize] {
    const ALL: &[usize] = &[1, 1000, 8176, 16_384, 16_385, 20_000, 65_536, 100_000, 250_000];
    if fixture.shares_receives() {
        return &[1, 1000, 4000];
    }
    // Requests that a killed process has posted end with it. SoftRoCE sends 128 packets of 1 KiB
    // before it waits for an acknowledgement, and in Linux 7.2 the death may come first.
    let (last, others) = ALL.split_last().expect("some");
    if std::env::var("SOFTROCE_RDMA_CORE").is_ok_and(|name| name == "newest") {
        eprintln!("in the newest guest: not {last} bytes, which SoftRoCE may still be sending");
        return others;
    }
    ALL
}

/// Each length of an answer needs the memory of its process no longer when `flush` has returned: the
/// reader finds all of it after the process was killed.
fn an_answer_outlives_the_process_that_wrote_it(fixture: &Fixture) -> Outcome {
    let (listener, addr) = fixture.listener();
    for len in answer_lengths(fixture) {
        let mut peer = ChildPeer::start(&format!("{ANSWER}{len}"), addr);
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        stream.write_all(b"?").unwrap();
        assert!(!peer.0.wait().unwrap().success());
        let mut got = Vec::new();
        let end = stream.read_to_end(&mut got);
        assert!(got == bytes(17, *len), "{} of {len} bytes, {end:?}", got.len());
    }
    Ok(())
}

/// The same for messages.
fn a_message_outlives_the_process_that_sent_it(fixture: &Fixture) -> Outcome {
    let (listener, addr) = fixture.listener();
    for (len, way) in answer_lengths(fixture).iter().flat_map(|len| [(len, "whole"), (len, "in parts")]) {
        let mut peer = ChildPeer::start(&format!("{MESSAGE}{len} {way}"), addr);
        let (mut packets, _) = listener.accept_seq_packet().unwrap();
        packets.set_read_timeout(Some(LONG)).unwrap();
        packets.send(b"?").unwrap();
        assert!(!peer.0.wait().unwrap().success());
        let mut message = vec![0; *len];
        let got = packets.recv(&mut message);
        assert!(matches!(&got, Ok(got) if got == len) && message == bytes(17, *len), "{len} {way}: {got:?}");
        let end = packets.recv(&mut message).unwrap_err();
        assert_eq!(end.kind(), ErrorKind::ConnectionReset, "{len} {way}: {end}");
    }
    Ok(())
}

/// A drain leaves nothing to the process that made it. Its end is an error all the same.
fn i14_drained_bytes_outlive_a_killed_process(fixture: &Fixture) -> Outcome {
    let (listener, addr) = fixture.listener();
    let mut peer = ChildPeer::start("drain", addr);
    let (got, end) = late_reader(&listener);
    assert!(got && end.is_err(), "{end:?}");
    assert!(!peer.wait().success());
    Ok(())
}

/// Reads what a child process has written, but not at once. Returns whether it got all, and the end.
fn late_reader(listener: &Listener) -> (bool, std::io::Result<usize>) {
    let (mut stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    thread::sleep(Duration::from_millis(200));
    let mut got = Vec::new();
    let end = stream.read_to_end(&mut got);
    (got == bytes(16, LEFT_BEHIND), end)
}

/// Threads write while the process ends. All that was accepted arrives before the end.
fn i14_the_end_of_a_process_interrupts_no_write(fixture: &Fixture) -> Outcome {
    let (listener, addr) = fixture.listener();
    for round in 0..5 {
        let mut peer = ChildPeer::start("write until the end", addr);
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        let mut got = Vec::new();
        let end = stream.read_to_end(&mut got);
        assert!(end.is_ok(), "round {round}: {end:?} after {} bytes", got.len());
        assert!(got.iter().all(|byte| *byte == 7) && !got.is_empty(), "round {round}");
        drop(stream);
        assert!(peer.wait().success(), "round {round}");
    }
    Ok(())
}

/// The end of a process closes its connections, as unwinding does: all written data arrives.
fn i9_a_peer_that_exits_says_that_it_is_over(fixture: &Fixture) -> Outcome {
    a_peer_says_that_it_is_over(fixture, "exit");
    Ok(())
}

fn i9_a_peer_that_panics_says_that_it_is_over(fixture: &Fixture) -> Outcome {
    a_peer_says_that_it_is_over(fixture, "panic");
    Ok(())
}

fn a_peer_says_that_it_is_over(fixture: &Fixture, part: &str) {
    let (listener, addr) = fixture.listener();
    let mut buffer = vec![0; 100_000];
    for round in 0..5 {
        let _peer = ChildPeer::start(part, addr);
        let (mut stream, _) = listener.accept().unwrap();
        assert_eq!(echo_to_the_end(&mut stream, &mut buffer), LAST_BYTES, "round {round}");
        does_not_take_everything(&mut stream, &buffer, round);
        let _peer = ChildPeer::start(&format!("{part}{TRAFFIC}"), addr);
        let (mut stream, _) = listener.accept().unwrap();
        // The peer has not read all, and resets the connection.
        if let Some(error) = echo(&mut stream, &mut buffer) {
            assert!(is_death(error.kind()), "round {round}: {error}");
        }
        does_not_take_everything(&mut stream, &buffer, round);
    }
}

/// Echoes until the orderly end. Returns the number of last bytes.
fn echo_to_the_end(stream: &mut Stream, buffer: &mut [u8]) -> usize {
    stream.set_read_timeout(Some(NOTICED)).unwrap();
    let mut last = 0;
    loop {
        let count = stream.read(buffer).unwrap();
        if count == 0 {
            return last;
        }
        let echoed = buffer[..count].iter().take_while(|byte| **byte == ECHOED).count();
        assert!(buffer[echoed..count].iter().all(|byte| *byte == LAST));
        stream.write_all(&buffer[..echoed]).unwrap();
        last += count - echoed;
    }
}

/// A write fails, because the peer has gone.
fn does_not_take_everything(stream: &mut Stream, buffer: &[u8], round: u32) {
    let deadline = Instant::now() + NOTICED;
    let error = loop {
        assert!(Instant::now() < deadline, "round {round}: a peer that is gone takes everything");
        if let Err(error) = stream.write(buffer) {
            break error;
        }
    };
    assert!(is_death(error.kind()), "round {round}: {error}");
}

fn i9_a_killed_peer_ends_a_blocked_reader_and_writer(fixture: &Fixture) -> Outcome {
    let (listener, addr) = fixture.listener();
    for writes in [false, true] {
        let mut peer = ChildPeer::start("stand", addr);
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(NOTICED)).unwrap();
        stream.set_write_timeout(Some(NOTICED)).unwrap();
        let waiting = thread::spawn(move || {
            if writes {
                stream.write_all(&vec![0; 256 << 20]).unwrap_err()
            } else {
                stream.read(&mut [0; 8]).unwrap_err()
            }
        });
        thread::sleep(Duration::from_millis(100));
        assert!(!waiting.is_finished());
        peer.kill();
        let error = waiting.join().unwrap();
        assert!(is_death(error.kind()), "{error}");
    }
    Ok(())
}

fn i9_every_ticket_completes_once(fixture: &Fixture) -> Outcome {
    let (listener, addr) = fixture.listener();
    let mut random = random(99);
    for round in 0..8 {
        let mut peer = ChildPeer::start("take", addr);
        let (mut packets, _) = listener.accept_seq_packet().unwrap();
        packets.set_nonblocking(true).unwrap();
        let delay = Duration::from_micros(below(&mut random, 30_000) as u64);
        let killer = thread::spawn(move || {
            thread::sleep(delay);
            peer.kill();
        });
        let (mut given, mut came, mut failed) = (Vec::new(), Vec::new(), false);
        let deadline = Instant::now() + NOTICED;
        let collect = |packets: &mut SeqPacket, came: &mut Vec<_>| {
            while let Some(Completion { ticket, .. }) = packets.completion() {
                came.push(ticket);
            }
        };
        while !failed {
            assert!(Instant::now() < deadline, "round {round}: nobody noticed");
            let len = 1 + below(&mut random, 60_000);
            // The pool and the buffers are finite, so a refused buffer comes back.
            match packets.buffer(len).map(|buffer| packets.send_buf(buffer, len)) {
                Ok(Ok(ticket)) => given.push(ticket),
                Ok(Err(refused)) => match refused.error.kind() {
                    ErrorKind::WouldBlock => thread::sleep(Duration::from_micros(100)),
                    kind => failed = is_death(kind),
                },
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}"),
            }
            let _ = packets.readiness();
            collect(&mut packets, &mut came);
        }
        killer.join().unwrap();
        // A device returns its requests in its time, and returns all of them.
        packets.set_nonblocking(false).unwrap();
        packets.set_write_timeout(Some(NOTICED)).unwrap();
        while let Some(Completion { ticket, .. }) = packets.next_completion().unwrap() {
            came.push(ticket);
        }
        assert!(!given.is_empty());
        let mut once = came.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!(once.len(), came.len(), "round {round}: a ticket completed twice");
        assert_eq!(once, given, "round {round}: given, and completed");
    }
    Ok(())
}
