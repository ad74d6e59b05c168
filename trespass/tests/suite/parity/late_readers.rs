//! Small writes whose bytes the peer's program takes late. A blocking write does not wait for that.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::thread;
use std::time::{Duration, Instant};

use super::compared;
use super::net::{Net, NetStream, Seen, seen};
use crate::fixture::{Fixture, LONG};

pub(crate) fn add(suite: &mut test_harness::Suite<Fixture>) {
    compared!(suite: one_thread_has_both_ends, two_peers_write_before_they_read,
        the_writer_makes_no_more_calls, the_writer_shuts_down_and_makes_no_more_calls,
        a_flush_is_the_last_call, the_writer_only_waits, another_thread_waits_for_the_answer,
        writes_within_a_timeout, a_drop_is_the_last_call, a_shut_down_writer_writes_again,
        the_peer_resets_what_is_left);
}

/// More writes than any receive queue has entries.
const LINES: usize = 5000;

/// How late the peer reads.
const LATE: Duration = Duration::from_millis(300);

fn write_lines(stream: &mut impl Write) {
    for number in 0..LINES {
        writeln!(stream, "line {number}").unwrap();
    }
}

/// The lines that arrive in order.
fn read_lines(stream: &mut impl Read) -> usize {
    let lines = BufReader::new(stream).lines().take(LINES);
    lines.enumerate().take_while(|(number, line)| *line.as_ref().unwrap() == format!("line {number}")).count()
}

fn one_thread_has_both_ends<N: Net>(net: &N) -> [usize; 2] {
    let (mut client, mut server) = net.pair();
    write_lines(&mut client);
    let there = read_lines(&mut server);
    write_lines(&mut server);
    [there, read_lines(&mut client)]
}

fn two_peers_write_before_they_read<N: Net>(net: &N) -> [usize; 2] {
    let (client, server) = net.pair();
    let talk = |mut stream: N::Stream| {
        write_lines(&mut stream);
        read_lines(&mut stream)
    };
    thread::scope(|scope| {
        let there = scope.spawn(|| talk(server));
        [talk(client), there.join().unwrap()]
    })
}

/// The peer reads while the writer does something else, and keeps its stream.
fn taken_late<N: Net>(
    net: &N,
    write: impl FnOnce(&mut N::Stream),
    take: impl FnOnce(N::Stream) -> usize,
) -> usize {
    let (mut client, server) = net.pair();
    write(&mut client);
    thread::sleep(LATE);
    let taken = take(server);
    drop(client);
    taken
}

fn the_writer_makes_no_more_calls<N: Net>(net: &N) -> usize {
    taken_late(net, write_lines, |mut server| read_lines(&mut server))
}

fn the_writer_shuts_down_and_makes_no_more_calls<N: Net>(net: &N) -> usize {
    let write = |client: &mut N::Stream| {
        write_lines(client);
        client.shutdown(Shutdown::Write).unwrap();
    };
    taken_late(net, write, |server| BufReader::new(server).lines().map(Result::unwrap).count())
}

fn a_flush_is_the_last_call<N: Net>(net: &N) -> usize {
    let write = |client: &mut N::Stream| {
        write_lines(client);
        client.flush().unwrap();
    };
    taken_late(net, write, |mut server| read_lines(&mut server))
}

/// The call in which the writer waits sends what is left.
fn the_writer_only_waits<N: Net>(net: &N) -> (usize, Vec<u8>) {
    let (mut client, mut server) = net.pair();
    write_lines(&mut client);
    thread::scope(|scope| {
        let there = scope.spawn(|| {
            thread::sleep(LATE);
            let lines = read_lines(&mut server);
            server.write_all(b"all").unwrap();
            lines
        });
        let mut answer = vec![0; 3];
        client.read_exact(&mut answer).unwrap();
        (there.join().unwrap(), answer)
    })
}

/// One thread waits for the answer while another writes. Then both are elsewhere, and more is taken.
fn another_thread_waits_for_the_answer<N: Net>(net: &N) -> [usize; 3] {
    let (client, mut server) = net.pair();
    thread::scope(|scope| {
        let answer = scope.spawn(|| client.shared().read(&mut [0; 8]).unwrap());
        thread::sleep(LATE);
        write_lines(&mut client.shared());
        thread::sleep(LATE);
        server.write_all(b"begin").unwrap();
        let answer = answer.join().unwrap();
        // No call is in the connection now.
        let first = read_lines(&mut server);
        write_lines(&mut client.shared());
        thread::sleep(LATE);
        [answer, first, read_lines(&mut server)]
    })
}

/// A write that is refused has taken nothing, and every other one arrives.
fn writes_within_a_timeout<N: Net>(net: &N) -> (Seen<usize>, bool) {
    let (mut client, mut server) = net.pair();
    client.set_write_timeout(Some(Duration::from_millis(100))).unwrap();
    let (mut count, until) = (0_u64, Instant::now() + LONG);
    let refusal = loop {
        match seen(client.write(b"0123456789")) {
            Ok(len) => count += len as u64,
            Err(kind) => break Err(kind),
        }
        assert!(Instant::now() < until, "nobody reads, and {count} bytes are taken");
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut left = count;
            let mut buffer = vec![0; 1 << 16];
            while left > 0 {
                let most = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                left -= server.read(&mut buffer[..most]).unwrap() as u64;
            }
            server.write_all(b"x").unwrap();
        });
        let all = client.read_exact(&mut [0]).is_ok();
        (refusal, all)
    })
}

fn a_drop_is_the_last_call<N: Net>(net: &N) -> (usize, Seen<usize>) {
    let (mut client, server) = net.pair();
    write_lines(&mut client);
    drop(client);
    thread::sleep(LATE);
    let mut server = BufReader::new(server);
    (read_lines(&mut server), seen(server.read(&mut [0])))
}

fn a_shut_down_writer_writes_again<N: Net>(net: &N) -> (usize, Vec<Seen<usize>>) {
    let (mut client, mut server) = net.pair();
    write_lines(&mut client);
    client.shutdown(Shutdown::Write).unwrap();
    let refused = (0..2).map(|_| seen(client.write(b"more"))).collect();
    thread::sleep(LATE);
    (read_lines(&mut server), refused)
}

/// The peer drops its stream, and has not read what the program wrote and what it still has. Then one
/// call looks, and another writes.
fn the_peer_resets_what_is_left<N: Net>(net: &N) -> [[Seen<usize>; 2]; 2] {
    let reset = || {
        let (mut client, server) = net.pair();
        write_lines(&mut client);
        drop(server);
        thread::sleep(LATE);
        client
    };
    let (mut reads, mut asks) = (reset(), reset());
    let error = asks.take_error().unwrap().map(|error| error.kind());
    [
        [seen(reads.read(&mut [0])), seen(reads.write(b"more"))],
        [error.map_or(Ok(0), Err), seen(asks.write(b"more"))],
    ]
}
