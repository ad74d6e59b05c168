//! I8: programs that wait for the connection's descriptor, by `poll`, `epoll` (level- and
//! edge-triggered) and mio, never sleep while they could make progress.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use mio::{Interest, Token};
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use test_harness::{Outcome, bytes, cases};
use trespass::{Readiness, Stream, Worker};

use super::fixture::{Fixture, LONG, below, greet, random};
use super::streams::{fill_without_waiting, time_is_up, write_until_refused};

pub(crate) fn add(suite: &mut test_harness::Suite<Fixture>) {
    cases!(suite: i8_level_triggered_epoll, i8_edge_triggered_epoll, i8_mio, i8_poll,
        i8_one_read_for_each_edge,
        i8_data_already_received_is_shown, i8_room_to_write_is_shown_after_a_refused_write,
        i8_room_found_while_reading_is_an_edge_of_its_own, i8_arrivals_found_while_writing_are_shown,
        the_descriptor_ignores_events_without_interest, nothing_to_do_is_not_shown, readiness_is_what_calls_find,
        corked_data_goes_after_the_cork_time_while_only_the_descriptor_is_polled,
        a_worker_s_descriptor_shows_what_is_due, silent_peers_are_asked_for_who_waits_for_the_descriptor,
        a_listener_s_descriptor_shows_who_is_late, a_listener_s_descriptor_shows_earlier_clients, a_full_listener_is_shown_when_there_is_room, a_listener_waits_no_longer_than_its_timeout,
        silent_clients_do_not_block_accept);
}

/// Sleeps until the descriptor is ready; returns whether it is.
trait Waiter {
    fn of(stream: &Stream) -> Self;
    fn sleep(&mut self, limit: Duration) -> bool;
}

struct Epoll {
    set: OwnedFd,
}

fn epoll_set(stream: &Stream, flags: epoll::EventFlags) -> Epoll {
    let set = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    epoll::add(&set, stream, epoll::EventData::new_u64(1), epoll::EventFlags::IN | flags).unwrap();
    Epoll { set }
}

/// Waits, and retries once if the process was stopped in between: Linux reports that as an
/// interruption even without a handler.
pub(crate) fn again<T>(mut wait: impl FnMut() -> io::Result<T>) -> T {
    loop {
        match wait() {
            Err(error) if error.kind() == ErrorKind::Interrupted => (),
            outcome => return outcome.unwrap(),
        }
    }
}

pub(crate) fn timespec(limit: Duration) -> Timespec {
    Timespec::try_from(limit).unwrap()
}

impl Epoll {
    fn wait(&mut self, limit: Duration) -> bool {
        let mut events =
            [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }; 4];
        again(|| Ok(epoll::wait(&self.set, &mut events[..], Some(&timespec(limit)))?)) > 0
    }
}

struct LevelTriggered(Epoll);
struct EdgeTriggered(Epoll);
struct Mio(mio::Poll);
struct Poll(OwnedFd);

impl Waiter for LevelTriggered {
    fn of(stream: &Stream) -> Self {
        Self(epoll_set(stream, epoll::EventFlags::empty()))
    }

    fn sleep(&mut self, limit: Duration) -> bool {
        self.0.wait(limit)
    }
}

impl Waiter for EdgeTriggered {
    fn of(stream: &Stream) -> Self {
        Self(epoll_set(stream, epoll::EventFlags::ET))
    }

    fn sleep(&mut self, limit: Duration) -> bool {
        self.0.wait(limit)
    }
}

impl Waiter for Mio {
    fn of(stream: &Stream) -> Self {
        let poll = mio::Poll::new().unwrap();
        poll.registry()
            .register(&mut SourceFd(&stream.as_raw_fd()), Token(3), Interest::READABLE | Interest::WRITABLE)
            .unwrap();
        Self(poll)
    }

    fn sleep(&mut self, limit: Duration) -> bool {
        let mut events = mio::Events::with_capacity(4);
        again(|| self.0.poll(&mut events, Some(limit)));
        !events.is_empty()
    }
}

impl Waiter for Poll {
    fn of(stream: &Stream) -> Self {
        Self(stream.as_fd().try_clone_to_owned().unwrap())
    }

    fn sleep(&mut self, limit: Duration) -> bool {
        is_readable_by_poll(self.0.as_fd(), limit)
    }
}

fn is_readable_raw(fd: i32, limit: Duration) -> bool {
    // mio's set contains one descriptor, which it does not borrow and so must not outlive.
    let mut poll = mio::Poll::new().unwrap();
    poll.registry().register(&mut SourceFd(&fd), Token(0), Interest::READABLE).unwrap();
    let mut events = mio::Events::with_capacity(1);
    again(|| poll.poll(&mut events, Some(limit)));
    !events.is_empty()
}

/// Readability according to `poll(2)`.
fn is_readable(stream: &Stream, limit: Duration) -> bool {
    is_readable_by_poll(stream.as_fd(), limit)
}

fn is_readable_by_poll(descriptor: BorrowedFd<'_>, limit: Duration) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(descriptor, PollFlags::IN)];
    again(|| Ok(poll(&mut fds, Some(&timespec(limit)))?)) == 1
}

/// Sends and receives until each call would block, and then sleeps on the descriptor only.
fn pump<S: Waiter>(mut stream: Stream, seed: u64, out: &[u8], len: usize) -> Vec<u8> {
    stream.set_nonblocking(true).unwrap();
    let mut sleeper = S::of(&stream);
    let mut random = random(seed);
    let (mut sent, mut got, mut buffer) = (0, Vec::with_capacity(len), vec![0; 300_000]);
    while sent < out.len() || got.len() < len {
        while sent < out.len() {
            let end = out.len().min(sent + 1 + below(&mut random, 200_000));
            match stream.write(&out[sent..end]) {
                Ok(count) => sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => panic!("{error}"),
            }
        }
        while got.len() < len {
            let room = (1 + below(&mut random, buffer.len())).min(len - got.len());
            match stream.read(&mut buffer[..room]) {
                Ok(0) => panic!("the end after {} of {len}", got.len()),
                Ok(count) => got.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => panic!("{error}"),
            }
        }
        if sent < out.len() || got.len() < len {
            let slept = sleeper.sleep(LONG);
            assert!(slept, "asleep with {sent} of {} sent and {} of {len} received", out.len(), got.len());
        }
    }
    // The peer may still wait for data that this end holds in its buffers.
    stream.set_nonblocking(false).unwrap();
    stream.write_all(b".").unwrap();
    stream.read_exact(&mut [0]).unwrap();
    got
}

fn pumps<S: Waiter + 'static>(fixture: &Fixture) -> Outcome {
    for seed in 0..fixture.less(4) as u64 {
        let (client, server) = fixture.streams();
        let (there, back) = (bytes(seed, 3_000_000), bytes(seed + 50, 2_000_000));
        thread::scope(|scope| {
            let serving = scope.spawn(|| pump::<S>(server, seed, &back, there.len()));
            assert!(pump::<S>(client, seed + 9, &there, back.len()) == back);
            assert!(serving.join().unwrap() == there);
        });
    }
    Ok(())
}

fn i8_level_triggered_epoll(fixture: &Fixture) -> Outcome {
    pumps::<LevelTriggered>(fixture)
}

fn i8_edge_triggered_epoll(fixture: &Fixture) -> Outcome {
    pumps::<EdgeTriggered>(fixture)
}

fn i8_mio(fixture: &Fixture) -> Outcome {
    pumps::<Mio>(fixture)
}

fn i8_poll(fixture: &Fixture) -> Outcome {
    pumps::<Poll>(fixture)
}

/// What a peer writes in short pieces.
const PIECES: usize = 60;
const PIECE: usize = 1000;

fn write_in_pieces(client: &mut Stream) {
    for number in 0..PIECES {
        client.write_all(&[number as u8; PIECE]).unwrap();
        if number % 5 == 0 {
            thread::sleep(Duration::from_millis(2));
        }
    }
}

fn i8_one_read_for_each_edge(fixture: &Fixture) -> Outcome {
    let (mut client, mut server) = fixture.streams();
    server.set_nonblocking(true).unwrap();
    let mut edge = EdgeTriggered::of(&server);
    thread::scope(|scope| {
        scope.spawn(|| write_in_pieces(&mut client));
        let (mut got, mut buffer) = (0, [0; PIECE * 7 / 10]);
        while got < PIECES * PIECE {
            assert!(edge.sleep(LONG), "asleep after {got} bytes");
            match server.read(&mut buffer) {
                Ok(len) => got += len,
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
        }
    });
    Ok(())
}

fn i8_data_already_received_is_shown(fixture: &Fixture) -> Outcome {
    let (mut client, mut server) = fixture.streams();
    client.write_all(b"0123456789").unwrap();
    // All ten connections are established; the socket below is empty, and the program has not asked
    // for the descriptor yet.
    let mut two = [0; 2];
    server.read_exact(&mut two).unwrap();
    assert!(is_readable(&server, LONG));
    server.set_nonblocking(true).unwrap();
    let mut edge = EdgeTriggered::of(&server);
    assert!(edge.sleep(LONG));
    for _ in 0..4 {
        assert!(is_readable(&server, LONG), "there are bytes left");
        server.read_exact(&mut two).unwrap();
    }
    assert_eq!(server.read(&mut two).unwrap_err().kind(), ErrorKind::WouldBlock);
    assert!(!is_readable(&server, Duration::ZERO));
    client.write_all(b"x").unwrap();
    assert!(edge.sleep(LONG) && is_readable(&server, LONG));
    Ok(())
}

fn i8_room_to_write_is_shown_after_a_refused_write(fixture: &Fixture) -> Outcome {
    let (mut client, mut server) = fixture.streams();
    client.set_nonblocking(true).unwrap();
    let mut edge = EdgeTriggered::of(&client);
    let total = fill_without_waiting(&mut client);
    while edge.sleep(Duration::from_millis(50)) {}
    thread::scope(|scope| {
        scope.spawn(|| server.read_exact(&mut vec![0; total]).unwrap());
        // Some wake-ups may precede the free space; a call follows each of them.
        let deadline = Instant::now() + LONG;
        while client.write(b"x").is_err() {
            assert!(edge.sleep(LONG) && Instant::now() < deadline);
        }
        flush(&mut client);
    });
    Ok(())
}

fn i8_room_found_while_reading_is_an_edge_of_its_own(fixture: &Fixture) -> Outcome {
    let (mut client, mut server) = fixture.streams();
    client.set_nonblocking(true).unwrap();
    let mut edge = EdgeTriggered::of(&client);
    server.write_all(b"to be read later").unwrap();
    let total = fill_without_waiting(&mut client);
    while edge.sleep(Duration::from_millis(50)) {}
    // Unread bytes wait here; then space becomes free, and a read finds that out.
    thread::scope(|scope| {
        scope.spawn(|| server.read_exact(&mut vec![0; total]).unwrap());
        let (mut buffer, deadline) = ([0; 64], Instant::now() + LONG);
        loop {
            while client.read(&mut buffer).is_ok() {}
            assert!(edge.sleep(LONG) && Instant::now() < deadline, "asleep though there is room");
            while client.read(&mut buffer).is_ok() {}
            if client.write(b"x").is_ok() {
                break;
            }
        }
        flush(&mut client);
    });
    Ok(())
}

/// Sends data that the writer may keep in its memory.
fn flush(stream: &mut Stream) {
    stream.set_nonblocking(false).unwrap();
    stream.flush().unwrap();
    stream.set_nonblocking(true).unwrap();
}

fn i8_arrivals_found_while_writing_are_shown(fixture: &Fixture) -> Outcome {
    let (mut client, mut server) = fixture.streams();
    client.set_nonblocking(true).unwrap();
    let mut edge = EdgeTriggered::of(&client);
    assert_eq!(client.read(&mut [0; 1]).unwrap_err().kind(), ErrorKind::WouldBlock);
    for round in 0..50 {
        // The reader waits for readability. A writer takes in arriving data until its write is
        // refused.
        server.write_all(b"news").unwrap();
        let total = write_until_refused(&mut client);
        assert!(edge.sleep(LONG), "round {round}: asleep though there are news");
        let mut news = [0; 4];
        let deadline = Instant::now() + LONG;
        let mut got = 0;
        while got < 4 {
            match client.read(&mut news[got..]) {
                Ok(count) => got += count,
                Err(_) => assert!(edge.sleep(LONG) && Instant::now() < deadline),
            }
        }
        assert_eq!(client.read(&mut news).unwrap_err().kind(), ErrorKind::WouldBlock);
        thread::scope(|scope| {
            scope.spawn(|| server.read_exact(&mut vec![0; total]).unwrap());
            flush(&mut client);
        });
    }
    Ok(())
}

fn the_descriptor_ignores_events_without_interest(fixture: &Fixture) -> Outcome {
    let (mut client, mut server) = fixture.streams();
    server.write_all(b"unread").unwrap();
    client.set_nonblocking(true).unwrap();
    client.set_interest(Readiness::WRITE);
    let total = fill_without_waiting(&mut client);
    // Level-triggered: after the refused call no wake-up remains, although unread bytes exist.
    while is_readable(&client, Duration::from_millis(50)) {
        assert_eq!(client.write(b"x").unwrap_err().kind(), ErrorKind::WouldBlock);
    }
    thread::scope(|scope| {
        scope.spawn(|| server.read_exact(&mut vec![0; total]).unwrap());
        while client.write(b"x").is_err() {
            assert!(is_readable(&client, LONG));
        }
        flush(&mut client);
    });
    client.set_interest(Readiness::BOTH);
    client.read_exact(&mut [0; 6]).unwrap();
    Ok(())
}

fn nothing_to_do_is_not_shown(fixture: &Fixture) -> Outcome {
    let (mut client, mut server) = fixture.streams();
    for stream in [&mut client, &mut server] {
        stream.set_nonblocking(true).unwrap();
        let _ = is_readable(stream, Duration::ZERO);
        assert_eq!(stream.read(&mut [0; 1]).unwrap_err().kind(), ErrorKind::WouldBlock);
        assert!(!is_readable(stream, Duration::from_millis(20)), "idle, and shown as ready");
    }
    Ok(())
}

fn readiness_is_what_calls_find(fixture: &Fixture) -> Outcome {
    let (mut client, mut server) = fixture.streams();
    assert_eq!(client.readiness().unwrap(), Readiness::WRITE);
    greet(&mut client, &mut server);
    server.write_all(b"x").unwrap();
    assert!(is_readable(&client, LONG));
    let deadline = Instant::now() + LONG;
    while client.readiness().unwrap() != Readiness::BOTH {
        assert!(Instant::now() < deadline);
    }
    client.read_exact(&mut [0]).unwrap();
    client.set_nonblocking(true).unwrap();
    fill_without_waiting(&mut client);
    assert_eq!(client.readiness().unwrap(), Readiness::NONE);
    drop(server);
    let deadline = Instant::now() + LONG;
    while !client.readiness().unwrap().readable {
        assert!(is_readable(&client, LONG) && Instant::now() < deadline, "the end is something to read");
    }
    Ok(())
}

/// Makes calls only when the descriptor is readable, until the peer has received the held-back
/// data.
fn until_it_has_come(server: &mut Stream, mut wakes: impl FnMut()) {
    server.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    let deadline = Instant::now() + LONG;
    let mut got = [0; 4];
    while let Err(error) = server.read(&mut got) {
        assert!(time_is_up(&error), "{error}");
        assert!(Instant::now() < deadline, "it never goes");
        wakes();
    }
    assert_eq!(&got, b"held");
}

fn corked_data_goes_after_the_cork_time_while_only_the_descriptor_is_polled(fixture: &Fixture) -> Outcome {
    let (mut client, mut server) = fixture.streams();
    client.set_nonblocking(true).unwrap();
    let mut edge = EdgeTriggered::of(&client);
    client.set_cork(true).unwrap();
    client.write_all(b"held").unwrap();
    until_it_has_come(&mut server, || {
        if edge.sleep(Duration::from_millis(20)) {
            assert_eq!(client.read(&mut [0; 1]).unwrap_err().kind(), ErrorKind::WouldBlock);
        }
    });
    Ok(())
}

fn a_worker_s_descriptor_shows_what_is_due(fixture: &Fixture) -> Outcome {
    let (client, mut server) = fixture.streams();
    let mut worker = Worker::new(&fixture.builder().build().unwrap()).unwrap();
    let key = worker.add(client).unwrap();
    let descriptor = worker.as_raw_fd();
    worker.set_cork(key, true).unwrap();
    assert_eq!(worker.write(key, b"held").unwrap(), 4);
    let mut events = Vec::new();
    worker.poll(&mut events, Some(Duration::ZERO)).unwrap();
    until_it_has_come(&mut server, || {
        if is_readable_raw(descriptor, Duration::from_millis(20)) {
            worker.poll(&mut events, Some(Duration::ZERO)).unwrap();
        }
    });
    Ok(())
}

/// Over TCP the operating system probes the peer.
fn silent_peers_are_asked_for_who_waits_for_the_descriptor(fixture: &Fixture) -> Outcome {
    if fixture.is_tcp() {
        test_harness::skip!("over TCP the system asks");
    }
    let idle = Duration::from_millis(100);
    let (mut client, _server) =
        fixture.streams_of(fixture.builder().keepalive(Some(idle)), fixture.builder().keepalive(None));
    client.set_nonblocking(true).unwrap();
    let mut edge = EdgeTriggered::of(&client);
    let (began, before, mut wakes) = (Instant::now(), client.stats().posts, 0);
    while client.stats().posts < before + 3 {
        assert!(edge.sleep(LONG), "nobody asks");
        assert_eq!(client.read(&mut [0; 1]).unwrap_err().kind(), ErrorKind::WouldBlock);
        wakes += 1;
    }
    // For each probe the wake-up and the answer, and the initial reports.
    let most = 4 + 3 * (began.elapsed().as_millis() / idle.as_millis()) as u32;
    assert!(wakes <= most, "{wakes} times in {:?}", began.elapsed());
    Ok(())
}

/// A program may ask for the descriptor after clients have connected.
fn a_listener_s_descriptor_shows_earlier_clients(fixture: &Fixture) -> Outcome {
    let (listener, addr) = fixture.listener();
    listener.set_nonblocking(true).unwrap();
    let accept = || listener.accept().map(drop).map_err(|error| error.kind());
    let client = fixture.builder().connect(addr).unwrap();
    // The service thread reaches the backlog soon after the client has connected.
    thread::sleep(Duration::from_millis(100));
    assert!(is_readable_raw(listener.as_raw_fd(), LONG), "the client before is not shown");
    accept().unwrap();
    assert_eq!(accept(), Err(ErrorKind::WouldBlock));
    assert!(!is_readable_raw(listener.as_raw_fd(), Duration::ZERO), "it stays readable");
    let next = fixture.builder().connect(addr).unwrap();
    assert!(is_readable_raw(listener.as_raw_fd(), LONG), "the client after is not shown");
    accept().unwrap();
    drop((client, next));
    Ok(())
}

/// A silent client is given up when its time is over, although no event happens then.
fn a_listener_s_descriptor_shows_who_is_late(fixture: &Fixture) -> Outcome {
    if fixture.is_by_cm() {
        test_harness::skip!("who comes by the connection manager begins with what he has to say");
    }
    let limit = Duration::from_millis(200);
    let listener = fixture
        .builder()
        .probe_timeout(limit / 2)
        .handshake_deadline(limit)
        .bind(fixture.anywhere())
        .unwrap();
    listener.set_nonblocking(true).unwrap();
    let mut silent = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    silent.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    let deadline = Instant::now() + LONG;
    // The last message is a rejection, followed by the end.
    while !matches!(silent.read(&mut [0; 4096]), Ok(0)) {
        assert!(Instant::now() < deadline, "it is kept for ever");
        if is_readable_raw(listener.as_raw_fd(), Duration::from_millis(20)) {
            assert_eq!(listener.accept().map(drop).unwrap_err().kind(), ErrorKind::WouldBlock);
        }
    }
    Ok(())
}

/// More silent clients than the listener handles at a time: until one times out no call can make
/// progress.
fn a_full_listener_is_shown_when_there_is_room(fixture: &Fixture) -> Outcome {
    if fixture.is_by_cm() {
        test_harness::skip!("who comes by the connection manager begins with what he has to say");
    }
    let (listener, addr) = fixture.listener();
    listener.set_nonblocking(true).unwrap();
    let silent: Vec<_> = (0..200).map(|_| TcpStream::connect(addr).unwrap()).collect();
    let (mut calls, began) = (0, Instant::now());
    while began.elapsed() < Duration::from_millis(100) {
        if is_readable_raw(listener.as_raw_fd(), Duration::from_millis(20)) {
            assert_eq!(listener.accept().map(drop).unwrap_err().kind(), ErrorKind::WouldBlock);
            calls += 1;
        }
    }
    assert!(calls <= 20, "{calls} calls for nothing in {:?}", began.elapsed());
    // A client that sends data is accepted nevertheless.
    thread::scope(|scope| {
        let client = scope.spawn(|| fixture.builder().connect(addr).unwrap());
        let deadline = Instant::now() + LONG;
        let mut server = loop {
            assert!(is_readable_raw(listener.as_raw_fd(), LONG) && Instant::now() < deadline);
            if let Ok((server, _)) = listener.accept() {
                break server;
            }
        };
        greet(&mut client.join().unwrap(), &mut server);
    });
    drop(silent);
    Ok(())
}

fn a_listener_waits_no_longer_than_its_timeout(fixture: &Fixture) -> Outcome {
    let (listener, addr) = fixture.listener();
    assert_eq!(listener.accept_timeout().unwrap(), None);
    let error = listener.set_accept_timeout(Some(Duration::ZERO)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    let limit = Duration::from_millis(60);
    listener.set_accept_timeout(Some(limit)).unwrap();
    assert_eq!(listener.accept_timeout().unwrap(), Some(limit));
    let before = Instant::now();
    assert!(time_is_up(&listener.accept().unwrap_err()));
    assert!(before.elapsed() >= limit);
    assert!(time_is_up(&listener.incoming().next().unwrap().unwrap_err()));
    // A client whose handshake is in progress when the timeout expires is not lost, however often
    // that happens.
    listener.set_accept_timeout(Some(Duration::from_micros(50))).unwrap();
    thread::scope(|scope| {
        let connecting = scope.spawn(|| fixture.builder().connect(addr).unwrap());
        let deadline = Instant::now() + LONG;
        let mut server = loop {
            match listener.accept() {
                Ok((server, _)) => break server,
                Err(error) => assert!(time_is_up(&error) && Instant::now() < deadline, "{error}"),
            }
        };
        // The timeout belongs to the listener.
        assert_eq!(server.read_timeout().unwrap(), None);
        greet(&mut connecting.join().unwrap(), &mut server);
    });
    Ok(())
}

/// Events arrive all the time, but never a connection.
fn silent_clients_do_not_block_accept(fixture: &Fixture) -> Outcome {
    let (listener, addr) = fixture.listener();
    listener.set_accept_timeout(Some(Duration::from_millis(100))).unwrap();
    let enough = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !enough.load(Ordering::Relaxed) {
                drop(TcpStream::connect(addr));
            }
        });
        let before = Instant::now();
        let outcome = listener.accept();
        let took = before.elapsed();
        enough.store(true, Ordering::Relaxed);
        assert!(time_is_up(&outcome.unwrap_err()));
        assert!(took < LONG / 2, "{took:?}");
    });
    Ok(())
}
