//! Ends, errors and timeouts of the calls of a connection.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::thread;
use std::time::{Duration, Instant};

use test_harness::Outcome;

use super::net::{Net, NetListener, NetStream, Own, Seen, Std, seen};
use super::{compare, compared};
use crate::fixture::{Fixture, LONG};

pub(crate) fn add(suite: &mut test_harness::Suite<Fixture>) {
    compared!(suite: reads_with_nothing_there, timeouts_of_any_length, calls_with_no_bytes, writes_to_a_full_peer,
        a_write_after_shutdown, a_read_after_shutdown, the_peer_reads_no_more, the_peer_closes, the_peer_resets, a_flush_after_a_reset,
        an_accept_with_nobody_there, peeked_bytes_stay, short_writes_without_delay);
    test_harness::cases!(suite: a_silent_peer_is_waited_for);
}

type Kinds = Vec<Seen<usize>>;

/// The period of a keepalive, which over `std::net` does not exist.
const KEEPALIVE: Duration = Duration::from_millis(150);

const SHORT: Option<Duration> = Some(Duration::from_millis(30));

/// Writes until a write fails, because over TCP a write to a closed peer may succeed at first.
pub(super) fn write_until_it_fails(socket: &mut impl Write) -> Seen<usize> {
    let deadline = Instant::now() + LONG;
    loop {
        match seen(socket.write(&[0; 10])) {
            Ok(_) => assert!(Instant::now() < deadline, "every write is taken"),
            failed => return failed,
        }
        thread::sleep(Duration::from_millis(2));
    }
}

fn reads_with_nothing_there<N: Net>(net: &N) -> Kinds {
    let (mut one, _other) = net.pair();
    one.set_read_timeout(SHORT).unwrap();
    let timed = seen(one.read(&mut [0; 8]));
    one.set_nonblocking(true).unwrap();
    vec![timed, seen(one.read(&mut [0; 8]))]
}

fn timeouts_of_any_length<N: Net>(net: &N) -> Vec<Seen<()>> {
    let (mut one, mut other) = net.pair();
    let mut kinds = Vec::new();
    for time in [Duration::ZERO, Duration::from_nanos(1), Duration::MAX] {
        kinds.push(seen(one.set_write_timeout(Some(time))));
        kinds.push(seen(one.set_read_timeout(Some(time))));
        if time == Duration::from_nanos(1) {
            kinds.push(seen(one.read_exact(&mut [0])));
        }
    }
    other.write_all(b"x").unwrap();
    kinds.push(seen(one.read_exact(&mut [0])));
    kinds
}

fn calls_with_no_bytes<N: Net>(net: &N) -> Kinds {
    let (mut one, mut other) = net.pair();
    // The system's socket waits for data that an empty read does not take.
    one.set_read_timeout(SHORT).unwrap();
    let mut kinds = vec![seen(one.write(&[])), seen(one.read(&mut []))];
    one.set_read_timeout(Some(LONG)).unwrap();
    other.write_all(b"x").unwrap();
    drop(other);
    kinds.extend([seen(one.read(&mut [0; 8])), seen(one.read(&mut [])), seen(one.read(&mut [0; 8]))]);
    one.set_nonblocking(true).unwrap();
    kinds.extend([seen(one.read(&mut [])), seen(one.read(&mut [0; 8]))]);
    kinds
}

fn writes_to_a_full_peer<N: Net>(net: &N) -> Kinds {
    let (mut one, _other) = net.pair();
    one.set_nonblocking(true).unwrap();
    let error = loop {
        if let Err(kind) = seen(one.write(&[0; 100_000])) {
            break kind;
        }
    };
    one.set_nonblocking(false).unwrap();
    one.set_write_timeout(SHORT).unwrap();
    let timed = loop {
        if let Err(kind) = seen(one.write(&[0; 100_000])) {
            break kind;
        }
    };
    vec![Err(error), Err(timed), seen(one.write(&[]))]
}

fn a_write_after_shutdown<N: Net>(net: &N) -> Kinds {
    let (mut one, mut other) = net.pair();
    let shut = |stream: &N::Stream, how| seen(stream.shutdown(how).map(|()| 0));
    vec![
        shut(&one, Shutdown::Write),
        shut(&one, Shutdown::Write),
        seen(one.write(b"x")),
        seen(other.read(&mut [0; 8])),
        seen(other.write(b"xy")),
        seen(one.read(&mut [0; 8])),
        seen(one.read_exact(&mut []).map(|()| 0)),
        shut(&other, Shutdown::Both),
        seen(one.read(&mut [0; 8])),
        seen(other.read(&mut [0; 8])),
        seen(other.write(b"x")),
    ]
}

fn a_read_after_shutdown<N: Net>(net: &N) -> Kinds {
    let (mut one, _other) = net.pair();
    vec![seen(one.shutdown(Shutdown::Read).map(|()| 0)), seen(one.read(&mut [0; 8]))]
}

/// It still writes.
fn the_peer_reads_no_more<N: Net>(net: &N) -> Kinds {
    let (mut one, mut other) = net.pair();
    other.shutdown(Shutdown::Read).unwrap();
    let mut kinds = vec![
        seen(one.write(&[1; 100])),
        seen(one.write(&[1; 100])),
        seen(other.write(b"news")),
        seen(one.read(&mut [0; 8])),
    ];
    other.shutdown(Shutdown::Write).unwrap();
    kinds.extend([seen(other.write(b"x")), seen(one.read(&mut [0; 8]))]);
    kinds
}

fn the_peer_closes<N: Net>(net: &N) -> Kinds {
    let (mut one, mut other) = net.pair();
    other.write_all(b"bye").unwrap();
    drop(other);
    let mut bye = [0; 8];
    let short = one.read_exact(&mut bye).map(|()| 8);
    let mut kinds =
        vec![seen(short), seen(one.read(&mut bye)), seen(one.shutdown(Shutdown::Read).map(|()| 0))];
    kinds.extend([write_until_it_fails(&mut one), write_until_it_fails(&mut one), seen(one.read(&mut bye))]);
    kinds
}

fn the_peer_resets<N: Net>(net: &N) -> (Kinds, bool) {
    let (mut one, other) = net.pair();
    other.reset_at_drop();
    drop(other);
    // A second read is one of the differences: the system's socket shows an end.
    let kinds = vec![seen(one.read(&mut [0; 8])), seen(one.write(b"x")), seen(one.write(b"x"))];
    (kinds, one.take_error().unwrap().is_none())
}

/// A flush neither fails nor takes the error.
fn a_flush_after_a_reset<N: Net>(net: &N) -> (Kinds, bool) {
    let (mut one, other) = net.pair();
    other.reset_at_drop();
    drop(other);
    thread::sleep(Duration::from_millis(50));
    let mut kinds = vec![seen(one.flush().map(|()| 0)), write_until_it_fails(&mut one)];
    let is_taken = one.take_error().unwrap().is_none();
    kinds.push(seen(one.flush().map(|()| 0)));
    (kinds, is_taken)
}

fn an_accept_with_nobody_there<N: Net>(net: &N) -> Seen<()> {
    let (listener, _) = net.listen();
    listener.set_nonblocking(true).unwrap();
    seen(listener.accept().map(drop))
}

fn peeked_bytes_stay<N: Net>(net: &N) -> (Kinds, [u8; 8]) {
    let (mut one, mut other) = net.pair();
    other.write_all(b"abc").unwrap();
    drop(other);
    let mut seen_bytes = [0; 8];
    let mut kinds = vec![seen(one.peek(&mut seen_bytes[..1])), seen(one.peek(&mut seen_bytes))];
    kinds.push(seen(one.read(&mut seen_bytes[3..])));
    kinds.extend([seen(one.peek(&mut [0; 8])), seen(one.read(&mut [0; 8]))]);
    (kinds, seen_bytes)
}

/// Both ends ask for no delay. Each write is shorter than a packet.
fn short_writes_without_delay<N: Net>(net: &N) -> (Vec<Seen<bool>>, Vec<Seen<()>>) {
    let (mut one, mut other) = net.pair();
    let asked = [&one, &other].map(|stream| seen(stream.set_nodelay(true).and_then(|()| stream.nodelay())));
    let mut outcomes = Vec::new();
    for number in 0..10 {
        one.write_all(&[number]).unwrap();
        outcomes.push(seen(other.read_exact(&mut [0])));
        other.write_all(&[number]).unwrap();
        outcomes.push(seen(one.read_exact(&mut [0])));
    }
    (asked.into(), outcomes)
}

/// Neither side's program makes calls for several times the period of keepalives; then only one.
fn a_silent_peer_is_waited_for(fixture: &Fixture) -> Outcome {
    fn silent<N: Net>(net: &N) -> Kinds {
        let (mut one, mut other) = net.pair();
        let first = seen(one.write(b"a"));
        thread::sleep(4 * KEEPALIVE);
        let mut kinds = vec![first, seen(other.read(&mut [0; 8])), seen(one.write(b"b"))];
        kinds.push(seen(other.read(&mut [0; 8])));
        thread::scope(|scope| {
            let waits = scope.spawn(|| seen(one.read(&mut [0; 8])));
            thread::sleep(4 * KEEPALIVE);
            kinds.push(seen(other.write(b"cc")));
            kinds.push(waits.join().unwrap());
        });
        kinds
    }
    let over_own = |own: &Own| silent(&own.clone().with(|builder| builder.keepalive(Some(KEEPALIVE))));
    compare(fixture, silent::<Std>, over_own)
}
