//! Closing: what was written arrives, whenever the peer reads it, and the end comes after it.

use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::panic::resume_unwind;
use std::thread;
use std::time::Duration;

use test_harness::{Outcome, bytes};

use super::ends::write_until_it_fails;
use super::net::{Net, NetListener, NetStream, Own, Seen, Std, seen};
use super::{compare, compared};
use crate::fixture::{Fixture, LONG, read_exactly};

pub(crate) fn add(suite: &mut test_harness::Suite<Fixture>) {
    test_harness::cases!(suite: every_size_arrives_before_the_end, a_reader_may_be_three_seconds_late);
    compared!(suite: replies_arrive_before_the_end, lazy_clients_stall_nobody, both_write_before_they_read,
        a_half_ends_behind_all_that_was_taken_for_it, small_pieces_find_room, unread_data_resets,
        a_drop_after_both_ends_resets_nothing, a_panic_closes_the_streams_of_its_thread);
}

/// What a reader got: all of it, and then an end or an error.
#[derive(Debug, PartialEq)]
struct Got {
    all: bool,
    end: Seen<()>,
}

impl Got {
    fn by(reader: &mut impl Read, sent: &[u8]) -> Self {
        let mut got = Vec::new();
        let end = seen(reader.read_to_end(&mut got).map(drop));
        Self { all: got == sent, end }
    }
}

/// Repeats a call that would block.
fn again<T>(mut call: impl FnMut() -> io::Result<T>) -> T {
    loop {
        match call() {
            Err(error) if error.kind() == ErrorKind::WouldBlock => thread::sleep(Duration::from_millis(1)),
            outcome => return outcome.unwrap(),
        }
    }
}

fn write_and_drop(mut stream: impl NetStream, mut bytes: &[u8], nonblocking: bool) {
    stream.set_nonblocking(nonblocking).unwrap();
    while !bytes.is_empty() {
        bytes = &bytes[again(|| stream.write(bytes))..];
    }
}

/// The reader begins when the time is over.
fn arrives<N: Net>(net: &N, sent: &[u8], nonblocking: bool, late: Duration) -> Got {
    let (client, mut server) = net.pair();
    thread::scope(|scope| {
        scope.spawn(move || write_and_drop(client, sent, nonblocking));
        thread::sleep(late);
        Got::by(&mut server, sent)
    })
}

/// Every size, written by calls that wait or do not, to a reader that begins at once or late.
fn every_size_arrives_before_the_end(fixture: &Fixture) -> Outcome {
    fn every_size<N: Net>(net: &N, largest: usize) -> Vec<Got> {
        let mut observed = Vec::new();
        for len in [1, 100, 17_000, 100_000, 1 << 20, largest] {
            let sent = bytes(len as u64, len);
            for late in [Duration::ZERO, Duration::from_millis(150)] {
                observed.extend([false, true].map(|nonblocking| arrives(net, &sent, nonblocking, late)));
            }
        }
        observed
    }
    let largest = fixture.less(64) << 20;
    let over_own = |own: &Own| every_size(&own.clone().with(|builder| builder.linger(LONG)), largest);
    compare(fixture, |net: &Std| every_size(net, largest), over_own)
}

/// With the linger time that programs have by default. All sizes wait at the same time.
fn a_reader_may_be_three_seconds_late(fixture: &Fixture) -> Outcome {
    fn late<N: Net>(net: &N, largest: usize) -> Vec<Got> {
        const LATE: Duration = Duration::from_secs(3);
        thread::scope(|scope| {
            let readers: Vec<_> = [1, 17_000, 100_000, 1 << 20, largest]
                .into_iter()
                .flat_map(|len| [(len, false), (len, true)])
                .map(|(len, nonblocking)| {
                    scope.spawn(move || arrives(net, &bytes(len as u64, len), nonblocking, LATE))
                })
                .collect();
            readers.into_iter().map(|reader| reader.join().unwrap()).collect()
        })
    }
    let largest = fixture.less(64) << 20;
    compare(fixture, |net: &Std| late(net, largest), |own: &Own| late(own, largest))
}

/// A server answers and drops the stream, many times.
fn replies_arrive_before_the_end<N: Net>(net: &N) -> Vec<Got> {
    const ROUNDS: usize = 40;
    let reply = bytes(1, 50_000);
    let (listener, addr) = net.listen();
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..ROUNDS {
                let mut server = listener.accept().unwrap();
                read_exactly(&mut server, 100);
                server.write_all(&reply).unwrap();
            }
        });
        (0..ROUNDS)
            .map(|_| {
                let mut client = net.connect(addr).unwrap();
                client.write_all(&[1; 100]).unwrap();
                Got::by(&mut client, &reply)
            })
            .collect()
    })
}

/// One thread serves clients of which the first three do not read.
fn lazy_clients_stall_nobody<N: Net>(net: &N) -> Got {
    const LAZY: usize = 3;
    let reply = bytes(2, 40_000);
    let (listener, addr) = net.listen();
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..=LAZY {
                listener.accept().unwrap().write_all(&reply).unwrap();
            }
        });
        let _lazy: Vec<_> = (0..LAZY).map(|_| net.connect(addr).unwrap()).collect();
        Got::by(&mut net.connect(addr).unwrap(), &reply)
    })
}

/// Each of two peers writes and flushes all before it reads.
fn both_write_before_they_read<N: Net>(net: &N) -> [bool; 2] {
    const LEN: usize = 400_000;
    let (client, server) = net.pair();
    let talk = |mut stream: N::Stream, seed: u64| {
        stream.write_all(&bytes(seed, LEN)).unwrap();
        stream.flush().unwrap();
        read_exactly(&mut stream, LEN) == bytes(1 - seed, LEN)
    };
    thread::scope(|scope| {
        let there = scope.spawn(|| talk(server, 0));
        [talk(client, 1), there.join().unwrap()]
    })
}

/// The writer shuts down before all data has been sent; the rest is sent while the program waits
/// for the peer's data.
fn a_half_ends_behind_all_that_was_taken_for_it<N: Net>(net: &N) -> (Seen<usize>, Got, Vec<u8>) {
    let (mut client, mut server) = net.pair();
    client.set_nonblocking(true).unwrap();
    let (mut data, mut taken) = (Vec::new(), 0);
    loop {
        // Only as much data is made as is sent.
        if taken == data.len() {
            data.extend(bytes(taken as u64, 1 << 20));
        }
        match client.write(&data[taken..]) {
            Ok(count) => taken += count,
            Err(error) => break assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
        assert!(taken < 64 << 20, "nobody reads");
    }
    data.truncate(taken);
    client.shutdown(Shutdown::Write).unwrap();
    let after = seen(client.write(b"x"));
    client.set_nonblocking(false).unwrap();
    thread::scope(|scope| {
        let got = scope.spawn(|| {
            let got = Got::by(&mut server, &data);
            server.write_all(b"all").unwrap();
            got
        });
        let answer = read_exactly(&mut client, 3);
        (after, got.join().unwrap(), answer)
    })
}

/// Bytes that any connection takes while its peer reads nothing.
const ROOM: usize = 50_000;

/// Pieces of any size share the room, and all that was taken arrives.
fn small_pieces_find_room<N: Net>(net: &N) -> Vec<(bool, Got)> {
    [1, 100, 4000, 17_000]
        .map(|size| {
            let (mut client, mut server) = net.pair();
            client.set_nonblocking(true).unwrap();
            let sent = bytes(size as u64, ROOM);
            let mut taken = 0;
            while taken < ROOM {
                match client.write(&sent[taken..ROOM.min(taken + size)]) {
                    Ok(count) => taken += count,
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::WouldBlock);
                        break;
                    }
                }
            }
            drop(client);
            (taken == ROOM, Got::by(&mut server, &sent[..taken]))
        })
        .into()
}

/// The peer must not believe that its data was read (RFC 1122, 4.2.2.13).
fn unread_data_resets<N: Net>(net: &N) -> Vec<(Seen<()>, Seen<usize>)> {
    // Data that arrived long before, and data that arrives with the drop.
    [Duration::from_millis(100), Duration::ZERO]
        .map(|time| {
            let (mut client, mut server) = net.pair();
            client.write_all(&[7; 1000]).unwrap();
            read_exactly(&mut server, 10);
            server.write_all(b"said before").unwrap();
            thread::sleep(time);
            drop(server);
            // A reset may overtake data.
            let mut before = Vec::new();
            let end = seen(client.read_to_end(&mut before).map(drop));
            assert!(b"said before".starts_with(&before[..]));
            (end, write_until_it_fails(&mut client))
        })
        .into()
}

/// The end of the peer has arrived, but the program has not taken it when its drop would reset.
fn a_drop_after_both_ends_resets_nothing<N: Net>(net: &N) -> (Seen<usize>, Option<ErrorKind>) {
    let (client, mut server) = net.pair();
    client.reset_at_drop();
    client.shutdown(Shutdown::Write).unwrap();
    let end = seen(server.read(&mut [0; 8]));
    server.shutdown(Shutdown::Write).unwrap();
    thread::sleep(Duration::from_millis(100));
    drop(client);
    thread::sleep(Duration::from_millis(100));
    (end, server.take_error().unwrap().map(|error| error.kind()))
}

fn a_panic_closes_the_streams_of_its_thread<N: Net>(net: &N) -> (bool, Got) {
    let (mut client, mut server) = net.pair();
    let sent = bytes(5, 100_000);
    thread::scope(|scope| {
        let sent = &sent;
        let panics = scope.spawn(move || {
            server.write_all(sent).unwrap();
            // Without a message.
            resume_unwind(Box::new("on purpose"));
        });
        let got = Got::by(&mut client, sent);
        (panics.join().is_err(), got)
    })
}
