//! Programs that wait for descriptors, by `poll` and by `epoll` with edges.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, epoll, poll};

use super::compared;
use super::net::{Net, NetListener, NetStream, Seen, seen};
use crate::fixture::{Fixture, LONG, read_exactly};
use crate::ready::{again, timespec};

pub(crate) fn add(suite: &mut test_harness::Suite<Fixture>) {
    compared!(suite: poll_shows_what_a_read_finds, one_read_an_edge_finds_all, a_short_read_ends_the_turn_of_an_edge,
        room_is_shown_by_epollout, a_listener_is_waited_for);
}

/// Time in which nothing must happen.
const SHORT: Duration = Duration::from_millis(30);

fn is_ready(descriptor: impl AsFd, flags: PollFlags, limit: Duration) -> bool {
    let mut descriptors = [PollFd::from_borrowed_fd(descriptor.as_fd(), flags)];
    again(|| Ok(poll(&mut descriptors, Some(&timespec(limit)))?)) == 1
}

/// Whether `poll` shows something to read, and what a read then finds.
fn poll_shows_what_a_read_finds<N: Net>(net: &N) -> Vec<(bool, Seen<usize>)> {
    let (mut client, mut server) = net.pair();
    server.set_nonblocking(true).unwrap();
    // A new descriptor may be readable without cause, until a call would block.
    let _ = server.as_fd();
    assert_eq!(seen(server.read(&mut [0; 8])), Err(ErrorKind::WouldBlock));
    let mut observe = |limit| (is_ready(&server, PollFlags::IN, limit), seen(server.read(&mut [0; 4])));
    let mut observed = vec![observe(SHORT)];
    client.write_all(b"123456").unwrap();
    observed.extend([observe(LONG), observe(LONG), observe(SHORT)]);
    drop(client);
    observed.extend([observe(LONG), observe(LONG)]);
    observed
}

struct Edges(OwnedFd);

impl Edges {
    fn of(descriptor: impl AsFd) -> Self {
        let set = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&set, descriptor, epoll::EventData::new_u64(1), flags).unwrap();
        Self(set)
    }

    fn sleep(&self) -> bool {
        let mut events = Vec::with_capacity(4);
        let limit = timespec(LONG);
        again(|| Ok(epoll::wait(&self.0, rustix::buffer::spare_capacity(&mut events), Some(&limit))?)) > 0
    }
}

/// What a peer writes in short pieces.
const PIECES: usize = 60;
const PIECE: usize = 1000;

/// Has the peer write in pieces, and makes the turns of a program after each edge. Returns the count
/// of bytes read.
fn turns_of_edges<N: Net>(net: &N, mut turn: impl FnMut(&mut N::Stream) -> usize) -> usize {
    let (mut client, mut server) = net.pair();
    server.set_nonblocking(true).unwrap();
    let edges = Edges::of(&server);
    thread::scope(|scope| {
        scope.spawn(move || {
            for number in 0..PIECES {
                client.write_all(&[number as u8; PIECE]).unwrap();
                if number % 5 == 0 {
                    thread::sleep(Duration::from_millis(2));
                }
            }
            // The end would be one more edge.
            client
        });
        let mut got = 0;
        while got < PIECES * PIECE {
            assert!(edges.sleep(), "asleep after {got} bytes");
            got += turn(&mut server);
        }
        got
    })
}

/// Bytes of the read; none if it would block.
fn read_some(stream: &mut impl Read, buffer: &mut [u8]) -> usize {
    stream.read(buffer).unwrap_or_else(|error| {
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        0
    })
}

fn one_read_an_edge_finds_all<N: Net>(net: &N) -> usize {
    let mut buffer = vec![0; PIECES * PIECE + 1];
    turns_of_edges(net, |stream| read_some(stream, &mut buffer))
}

fn a_short_read_ends_the_turn_of_an_edge<N: Net>(net: &N) -> usize {
    let mut buffer = [0; 4 * PIECE];
    turns_of_edges(net, |stream| {
        let mut got = 0;
        loop {
            let len = read_some(stream, &mut buffer);
            got += len;
            if len < buffer.len() {
                return got;
            }
        }
    })
}

/// Whether there is room, before a writer has filled the connection, then, and when the peer has
/// read.
fn room_is_shown_by_epollout<N: Net>(net: &N) -> [bool; 3] {
    let (mut client, mut server) = net.pair();
    client.set_nonblocking(true).unwrap();
    let is_writable = |client: &N::Stream, limit| is_ready(client.writable_fd(), PollFlags::OUT, limit);
    let first = is_writable(&client, Duration::ZERO);
    let (mut total, deadline) = (0, Instant::now() + LONG);
    let full = loop {
        while let Ok(count) = client.write(&[3; 10_000]) {
            total += count;
        }
        if !is_writable(&client, SHORT) {
            break false;
        }
        if Instant::now() > deadline {
            break true;
        }
    };
    let written = thread::scope(|scope| {
        scope.spawn(|| read_exactly(&mut server, total));
        let written = loop {
            // It may be writable without cause.
            if !is_writable(&client, LONG) {
                break false;
            }
            if client.write(b"x").is_ok() {
                break true;
            }
        };
        // Bytes move while a call runs.
        client.set_nonblocking(false).unwrap();
        client.flush().unwrap();
        written
    });
    [first, full, written]
}

fn a_listener_is_waited_for<N: Net>(net: &N) -> (Seen<()>, usize, bool) {
    const CLIENTS: usize = 5;
    let (listener, addr) = net.listen();
    listener.set_nonblocking(true).unwrap();
    let nobody = seen(listener.accept().map(drop));
    let edges = Edges::of(&listener);
    thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(|| net.connect(addr).unwrap())).collect();
        let mut accepted = Vec::new();
        while accepted.len() < CLIENTS {
            assert!(edges.sleep(), "asleep with {} accepted", accepted.len());
            while let Ok(server) = listener.accept() {
                accepted.push(server);
            }
        }
        let _clients: Vec<_> = clients.into_iter().map(|client| client.join().unwrap()).collect();
        (nobody, accepted.len(), is_ready(&listener, PollFlags::IN, SHORT))
    })
}
