//! I8: programs that wait for `EPOLLOUT`, and the descriptors that a connection has.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, epoll, poll};
use test_harness::{Outcome, bytes, cases};
use trespass::{Stream, Transport};

use super::fixture::{Fixture, LONG, below, random};
use super::ready::{again, timespec};
use super::streams::fill_without_waiting;

pub(crate) fn add(suite: &mut test_harness::Suite<Fixture>) {
    cases!(suite: i8_epollout_without_a_call_between, i8_level_triggered_epollin_and_epollout,
        i8_edge_triggered_epollin_and_epollout, i8_a_dead_peer_is_writable,
        i8_unread_bytes_show_no_room, i8_room_found_by_a_read_is_shown, descriptors_of_a_connection);
}

/// Time in which nothing must happen.
const SHORT: Duration = Duration::from_millis(30);

fn is_ready(descriptor: BorrowedFd<'_>, flags: PollFlags, limit: Duration) -> bool {
    let mut descriptors = [PollFd::from_borrowed_fd(descriptor, flags)];
    again(|| Ok(poll(&mut descriptors, Some(&timespec(limit)))?)) == 1
}

fn is_writable(stream: &Stream, limit: Duration) -> bool {
    is_ready(stream.writable_fd().unwrap(), PollFlags::OUT, limit)
}

/// Writes until the connection takes no more and shows that. Returns the count of bytes.
fn fill_until_not_writable(stream: &mut Stream) -> usize {
    let (mut total, deadline) = (fill_without_waiting(stream), Instant::now() + LONG);
    // It may be writable without cause.
    while is_writable(stream, SHORT) {
        assert!(Instant::now() < deadline, "it stays writable, and takes nothing");
        total += fill_without_waiting(stream);
    }
    total
}

fn i8_epollout_without_a_call_between(fixture: &Fixture) -> Outcome {
    let (mut client, mut server) = fixture.streams();
    client.set_nonblocking(true).unwrap();
    assert!(is_writable(&client, Duration::ZERO), "nothing was refused");
    for _ in 0..3 {
        let total = fill_until_not_writable(&mut client);
        thread::scope(|scope| {
            scope.spawn(|| server.read_exact(&mut vec![0; total]).unwrap());
            let deadline = Instant::now() + LONG;
            loop {
                assert!(
                    is_writable(&client, LONG) && Instant::now() < deadline,
                    "asleep though there is room"
                );
                match client.write_all(b"x") {
                    Ok(()) => break,
                    Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
                }
            }
            // What is queued moves only in calls.
            client.set_nonblocking(false).unwrap();
            client.flush().unwrap();
            client.set_nonblocking(true).unwrap();
        });
        assert!(is_writable(&client, Duration::ZERO));
        server.read_exact(&mut [0]).unwrap();
    }
    Ok(())
}

/// An epoll set with both descriptors of a connection.
struct Both(OwnedFd);

const READS: u64 = 1;
const WRITES: u64 = 2;

impl Both {
    fn of(stream: &Stream, flags: epoll::EventFlags) -> Self {
        let set = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let data = epoll::EventData::new_u64;
        epoll::add(&set, stream, data(READS), epoll::EventFlags::IN | flags).unwrap();
        let room = stream.writable_fd().unwrap();
        epoll::add(&set, room, data(WRITES), epoll::EventFlags::OUT | flags).unwrap();
        Self(set)
    }

    /// Whether there may be something to read, and room to write.
    fn wait(&self) -> (bool, bool) {
        let mut events = Vec::with_capacity(4);
        again(|| {
            Ok(epoll::wait(&self.0, rustix::buffer::spare_capacity(&mut events), Some(&timespec(LONG)))?)
        });
        assert!(!events.is_empty(), "asleep with work to do");
        let has = |number: u64| {
            events.iter().any(|event| {
                let data = event.data;
                data.u64() == number
            })
        };
        (has(READS), has(WRITES))
    }
}

/// Sends and receives at once, and makes only the calls that the descriptors have shown. With
/// edges, each call is repeated until it would block.
fn pump(mut stream: Stream, flags: epoll::EventFlags, seed: u64, out: &[u8], len: usize) -> Vec<u8> {
    stream.set_nonblocking(true).unwrap();
    let both = Both::of(&stream, flags);
    let mut random = random(seed);
    let (mut sent, mut got, mut buffer) = (0, Vec::with_capacity(len), vec![0; 100_000]);
    while sent < out.len() || got.len() < len {
        let (reads, writes) = both.wait();
        while writes && sent < out.len() {
            let end = out.len().min(sent + 1 + below(&mut random, 100_000));
            match stream.write(&out[sent..end]) {
                Ok(count) => sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => panic!("{error}"),
            }
        }
        while reads && got.len() < len {
            let room = buffer.len().min(len - got.len());
            match stream.read(&mut buffer[..room]) {
                Ok(0) => panic!("the end after {} of {len}", got.len()),
                Ok(count) => got.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => panic!("{error}"),
            }
        }
    }
    // The peer may still wait for data that this end holds in its buffers.
    stream.set_nonblocking(false).unwrap();
    stream.write_all(b".").unwrap();
    stream.read_exact(&mut [0]).unwrap();
    got
}

fn pumps(fixture: &Fixture, flags: epoll::EventFlags) -> Outcome {
    for seed in 0..fixture.less(4) as u64 {
        let (client, server) = fixture.streams();
        let (there, back) = (bytes(seed, 3_000_000), bytes(seed + 50, 2_000_000));
        thread::scope(|scope| {
            let serving = scope.spawn(|| pump(server, flags, seed, &back, there.len()));
            assert!(pump(client, flags, seed + 9, &there, back.len()) == back);
            assert!(serving.join().unwrap() == there);
        });
    }
    Ok(())
}

fn i8_level_triggered_epollin_and_epollout(fixture: &Fixture) -> Outcome {
    pumps(fixture, epoll::EventFlags::empty())
}

fn i8_edge_triggered_epollin_and_epollout(fixture: &Fixture) -> Outcome {
    pumps(fixture, epoll::EventFlags::ET)
}

fn i8_a_dead_peer_is_writable(fixture: &Fixture) -> Outcome {
    let (mut client, mut server) = fixture.streams();
    client.set_nonblocking(true).unwrap();
    fill_until_not_writable(&mut client);
    // Unread data resets the connection.
    server.read_exact(&mut [0]).unwrap();
    drop(server);
    let deadline = Instant::now() + LONG;
    loop {
        assert!(is_writable(&client, LONG) && Instant::now() < deadline, "asleep though the peer is gone");
        match client.write_all(b"x") {
            Err(error) if error.kind() != ErrorKind::WouldBlock => break,
            _ => (),
        }
    }
    assert!(is_writable(&client, Duration::ZERO), "a failed connection is writable");
    Ok(())
}

/// Bytes that the program leaves unread, and the peer's end, are no room.
fn i8_unread_bytes_show_no_room(fixture: &Fixture) -> Outcome {
    let (mut client, mut server) = fixture.streams();
    server.write_all(b"unread").unwrap();
    client.set_nonblocking(true).unwrap();
    fill_until_not_writable(&mut client);
    assert!(is_ready(client.as_fd(), PollFlags::IN, LONG));
    let (mut shown, until) = (0, Instant::now() + Duration::from_millis(300));
    while Instant::now() < until {
        if is_writable(&client, until.saturating_duration_since(Instant::now())) {
            shown += 1;
            fill_without_waiting(&mut client);
        }
    }
    assert!(shown < 10, "it showed room {shown} times, and there is none");
    Ok(())
}

fn i8_room_found_by_a_read_is_shown(fixture: &Fixture) -> Outcome {
    let (mut client, mut server) = fixture.streams();
    client.set_nonblocking(true).unwrap();
    let total = fill_until_not_writable(&mut client);
    thread::scope(|scope| {
        scope.spawn(|| server.read_exact(&mut vec![0; total]).unwrap());
        let deadline = Instant::now() + LONG;
        while !client.readiness().unwrap().writable {
            assert!(Instant::now() < deadline, "there is no room");
            thread::sleep(Duration::from_millis(1));
        }
        assert!(is_writable(&client, Duration::ZERO), "this thread has found room");
        client.set_nonblocking(false).unwrap();
        client.flush().unwrap();
    });
    Ok(())
}

/// Pairs of connections in the count of descriptors.
const PAIRS: usize = 20;

/// The descriptors of this process, without those of memory.
fn descriptors() -> usize {
    let all = std::fs::read_dir("/proc/self/fd").unwrap();
    let links = all.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    links.filter(|link| !link.to_string_lossy().starts_with("/memfd:")).count()
}

/// A side has its socket, and over RDMA a completion channel; over several rails a set for their
/// channels, too, and a quarter of a descriptor for events of ports.
fn descriptors_of_a_connection(fixture: &Fixture) -> Outcome {
    fixture.with_and_without_rails().iter().for_each(count_descriptors);
    Ok(())
}

fn count_descriptors(fixture: &Fixture) {
    let used = |(client, server): &mut (Stream, Stream)| {
        client.write_all(b"ping").unwrap();
        server.read_exact(&mut [0; 4]).unwrap();
    };
    // The first connections make what stays.
    let streams = || {
        let config = || fixture.builder().rails_after(u64::MAX);
        fixture.streams_of(config(), config())
    };
    let mut first = streams();
    used(&mut first);
    let before = descriptors();
    let mut pairs: Vec<_> = (0..PAIRS).map(|_| streams()).collect();
    pairs.iter_mut().for_each(used);
    let streams = || pairs.iter().flat_map(|(client, server)| [client, server]);
    let each = |before: usize| (descriptors().saturating_sub(before)) as f64 / (2 * PAIRS) as f64;
    let blocking = match first.0.transport() {
        Transport::Rdma if fixture.has_rails() => 3.25,
        Transport::Rdma => 2.0,
        _ => 1.0,
    };
    // Closed connections of earlier cases may still go.
    let is_about = |each: f64, expected: f64| (each - expected).abs() < 0.3;
    assert!(is_about(each(before), blocking), "{} descriptors a side, and not {blocking}", each(before));
    let without_pairs = before;
    let before = descriptors();
    streams().for_each(|stream| assert!(is_ready(stream.as_fd(), PollFlags::IN, LONG)));
    assert!(is_about(each(before), 1.0), "{} for the set", each(before));
    let before = descriptors();
    streams().for_each(|stream| assert!(is_writable(stream, LONG)));
    assert!(is_about(each(before), 1.0), "{} for room", each(before));
    // The next count must not see them go.
    drop(pairs);
    let deadline = Instant::now() + LONG;
    while descriptors() > without_pairs {
        assert!(Instant::now() < deadline, "{} descriptors after {without_pairs}", descriptors());
        thread::sleep(Duration::from_millis(1));
    }
}
