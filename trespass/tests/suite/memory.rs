//! I15: memory is bounded; when it is exhausted a sender waits, and no connection breaks.

use std::io::{self, ErrorKind, Read, Write};
use std::thread;
use std::time::{Duration, Instant};

use test_harness::{Outcome, bytes, cases};
use trespass::{Builder, Pool, Stream};

use super::fixture::{Fixture, LONG};

pub(crate) fn add(suite: &mut test_harness::Suite<Fixture>) {
    cases!(suite: i15_an_empty_pool_makes_the_peers_wait_and_breaks_nothing,
        i6_both_ends_full_of_what_they_send_go_on, i15_an_idle_connection_has_its_receives_and_no_more,
        the_send_buffer_counts_bytes_of_a_stream, the_send_buffer_counts_bytes_of_messages);
}

/// The smallest pool that a builder accepts with default values for all else.
fn least(fixture: &Fixture) -> Builder {
    let builder = |mib: usize| fixture.builder().pool_max(mib << 20).pool_initial(0).pool_prewarm(0);
    let least = (8..100).step_by(2).find(|mib| builder(*mib).build().is_ok()).unwrap();
    assert_eq!(least, if fixture.shares_receives() { 38 } else { 22 });
    builder(least)
}

/// A program keeps the blocks that it receives on many connections until their pool, the smallest
/// possible one, is empty. The other ends have a separate pool.
fn i15_an_empty_pool_makes_the_peers_wait_and_breaks_nothing(fixture: &Fixture) -> Outcome {
    const CONNECTIONS: usize = 24;
    let sent = bytes(12, 2 << 20);
    let least = || least(fixture).rx_slots(16);
    // Clients close as soon as they have written; the server reads slowly.
    let (clients, mut servers): (Vec<_>, Vec<_>) =
        (0..CONNECTIONS).map(|_| fixture.streams_of(fixture.builder().linger(LONG), least())).unzip();
    let pool = servers[0].pool().clone();
    thread::scope(|scope| {
        for mut client in clients {
            let sent = &sent;
            scope.spawn(move || client.write_all(sent).unwrap());
        }
        servers.iter_mut().for_each(|server| server.set_nonblocking(true).unwrap());
        let (mut got, mut kept, mut quiet) = (vec![Vec::new(); CONNECTIONS], Vec::new(), 0);
        let deadline = Instant::now() + LONG;
        while got.iter().any(|got| got.len() < sent.len()) {
            assert!(Instant::now() < deadline, "{:?}", pool.stats());
            let before = kept.len();
            let open = servers.iter_mut().zip(&mut got).filter(|(_, got)| got.len() < sent.len());
            for (server, got) in open {
                match server.recv_buf() {
                    Ok(part) => {
                        part.chunks().for_each(|chunk| got.extend_from_slice(chunk));
                        kept.push(part);
                    }
                    Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
                }
            }
            // While the program holds the last block nothing can arrive. It then returns all
            // blocks.
            quiet = if kept.len() == before { quiet + 1 } else { 0 };
            if quiet > 20 {
                kept.clear();
            } else if quiet > 0 {
                thread::sleep(Duration::from_millis(5));
            }
        }
        assert!(got.iter().all(|got| *got == sent));
    });
    assert!(pool.stats().empty() > 0, "the pool was never empty: {:?}", pool.stats());
    Ok(())
}

/// Sends the part of `data` after `given`, by a copy or, every second time, in a lent block.
fn give(stream: &mut Stream, data: &[u8], given: &mut usize, lends: bool) {
    let left = &data[*given % data.len()..];
    if !lends {
        *given += stream.write(left).unwrap_or(0);
    } else if let Ok(mut block) = stream.buffer(left.len()) {
        block.bytes_mut()[..left.len()].copy_from_slice(left);
        *given += stream.send_buf(block, left.len()).map_or(0, |_| left.len());
    }
}

/// Both ends share the smallest possible pool, and write until every write is refused before either
/// reads. Sent data leaves enough memory for receiving.
fn i6_both_ends_full_of_what_they_send_go_on(fixture: &Fixture) -> Outcome {
    for size in [100, 8000, 65_536, 65_537, 300_000, 1 << 20] {
        let (one, other) = fixture.streams_of(least(fixture), least(fixture));
        let (mut ends, data, mut given) = ([one, other], bytes(size as u64, size), [0; 2]);
        ends.iter().for_each(|stream| stream.set_nonblocking(true).unwrap());
        let empty = ends[0].pool().stats().empty();
        let (mut round, mut quiet) = (0, 0);
        while quiet < 20 {
            let before = given;
            for (stream, given) in ends.iter_mut().zip(&mut given) {
                give(stream, &data, given, round % 2 == 0);
            }
            round += 1;
            quiet = if given == before { quiet + 1 } else { 0 };
        }
        if size > 65_536 {
            assert!(ends[0].pool().stats().empty() > empty, "{size}: {given:?} did not fill the pool");
        }
        let (mut taken, mut buffer) = ([0; 2], vec![0; 1 << 20]);
        let deadline = Instant::now() + LONG;
        while taken != [given[1], given[0]] {
            assert!(
                Instant::now() < deadline,
                "{size}: {taken:?} of {given:?}, {:?}",
                ends[0].pool().stats()
            );
            for (stream, taken) in ends.iter_mut().zip(&mut taken) {
                let len = stream.read(&mut buffer).unwrap_or(0);
                assert!(is_repeated(&data, *taken, &buffer[..len]), "{size}: other bytes at {taken}");
                *taken += len;
                while stream.completion().is_some() {}
            }
        }
    }
    Ok(())
}

/// Whether `got` is what follows `before` bytes of `data`, which is sent again and again.
fn is_repeated(data: &[u8], before: usize, got: &[u8]) -> bool {
    let (first, rest) = got.split_at(got.len().min(data.len() - before % data.len()));
    data[before % data.len()..].starts_with(first)
        && rest.chunks(data.len()).all(|again| data.starts_with(again))
}

/// Over queue pairs an idle connection holds its posted receives: 56 of 8 KiB, or of 4 KiB where
/// they may be shared, while the process has fewer than 64. Over TCP it holds nothing. Registered
/// memory exceeds that by a seventh and 4 MiB at most, because memory comes in chunks.
fn i15_an_idle_connection_has_its_receives_and_no_more(fixture: &Fixture) -> Outcome {
    fixture.with_and_without_rails().iter().for_each(have_receives_and_no_more);
    Ok(())
}

fn have_receives_and_no_more(fixture: &Fixture) {
    const CONNECTIONS: usize = 24;
    const CHUNK: usize = 4 << 20;
    let config = || fixture.builder().pool_max(250 << 20).pool_initial(0).pool_prewarm(0);
    let streams: Vec<_> = (0..CONNECTIONS).map(|_| fixture.streams_of(config(), config())).collect();
    let stats = streams[0].0.pool().stats();
    // The memory of an idle connection, and the most that may be registered for it; the limit
    // includes the last chunk, which may be almost unused.
    let (idle, most) = match (fixture.is_tcp(), fixture.shares_receives()) {
        (true, _) => (0, 0),
        (_, true) => (224 << 10, 256 << 10),
        (_, false) => (448 << 10, 512 << 10),
    };
    // For the first messages about rails.
    let beside = if fixture.has_rails() { 3 * streams[0].0.pool().config().slot_size } else { 0 };
    let (idle, most) = (idle + beside, most + beside * 8 / 7);
    let ends = 2 * CONNECTIONS;
    println!(
        "an idle connection's end has {} bytes, and {} are registered for it",
        stats.in_use / ends,
        stats.registered / ends
    );
    assert_eq!(stats.in_use, ends * idle, "{stats:?}");
    assert!(stats.registered <= ends * most + CHUNK, "{} bytes are registered: {stats:?}", stats.registered);
    // The connections do work.
    for (mut one, mut other) in streams {
        super::fixture::greet(&mut one, &mut other);
    }
}

/// The lengths of pieces, and the send buffer that they fill. It is larger than the buffers of
/// sockets, except for short pieces, which take many calls.
const PIECES: [(usize, usize); 14] = [
    (1, 128 << 10),
    (7, 128 << 10),
    (100, 1 << 20),
    (1000, 8 << 20),
    (4096, 8 << 20),
    (5000, 8 << 20),
    (9000, 8 << 20),
    (20_000, 8 << 20),
    (65_536, 8 << 20),
    (70_000, 8 << 20),
    (100_000, 8 << 20),
    (262_144, 8 << 20),
    (1 << 20, 8 << 20),
    (4 << 20, 8 << 20),
];

/// A send buffer of this size, with a pool for this connection alone.
fn with_send_buffer(builder: Builder, sndbuf: usize) -> (Builder, Pool) {
    let builder = builder.sndbuf(sndbuf);
    let pool = Pool::new(&builder.clone().build().unwrap().pool_config()).unwrap();
    (builder.pool(pool.clone()), pool)
}

/// Gives pieces of `len` bytes to a connection whose peer makes no call, until one is refused, and
/// checks how many it accepts and how much memory they take. Returns the accepted bytes.
fn fill(
    fixture: &Fixture,
    pool: &Pool,
    (len, sndbuf): (usize, usize),
    mut give: impl FnMut(&[u8]) -> io::Result<usize>,
) -> usize {
    let (before, piece) = (pool.stats().in_use, bytes(len as u64, len));
    let mut accepted = 0;
    loop {
        match give(&piece[accepted % len..]) {
            Ok(given) => accepted += given,
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) => panic!("{len} bytes: {error}"),
        }
    }
    let memory = pool.stats().in_use - before;
    println!("{len}: {accepted} of {sndbuf}, {memory} bytes of memory");
    // Frames over several rails are kept until the peer has counted them.
    let kept = if fixture.has_rails() { 56 * 8192 } else { 0 };
    assert!(memory <= 2 * sndbuf + 32 * 8192 + (256 << 10) + kept, "{len}: {memory} bytes of memory");
    // A message of 7 bytes takes 16 of a frame, one of a byte 8: memory is the limit.
    let least = if len < 8 { sndbuf * len / 9 } else { sndbuf - len.max(8192) };
    assert!(accepted >= least, "{len}: {accepted}");
    if !fixture.is_tcp() {
        // The peer's 56 receives, of 8 KiB at most, hold what was sent.
        assert!(accepted <= sndbuf + 56 * 8192, "{len}: {accepted}");
    }
    accepted
}

fn the_send_buffer_counts_bytes_of_a_stream(fixture: &Fixture) -> Outcome {
    for (len, sndbuf) in PIECES {
        let (builder, pool) = with_send_buffer(fixture.builder(), sndbuf);
        let (mut from, mut to) = fixture.streams_of(builder.clone(), builder);
        from.set_nonblocking(true).unwrap();
        let accepted = fill(fixture, &pool, (len, sndbuf), |bytes| from.write(bytes));
        from.set_nonblocking(false).unwrap();
        let sending = thread::spawn(move || from.drain(Instant::now() + LONG).unwrap());
        let (data, mut got, mut buffer) = (bytes(len as u64, len), 0, vec![0; 1 << 20]);
        while got < accepted {
            let count = to.read(&mut buffer).unwrap();
            assert!(is_repeated(&data, got, &buffer[..count]), "{len}: other bytes at {got}");
            got += count;
        }
        assert_eq!(got, accepted, "{len}");
        sending.join().unwrap();
    }
    Ok(())
}

fn the_send_buffer_counts_bytes_of_messages(fixture: &Fixture) -> Outcome {
    for (len, sndbuf) in PIECES {
        let (builder, pool) = with_send_buffer(fixture.builder(), sndbuf);
        let (mut from, mut to) = fixture.packets_with(|_| builder.clone());
        from.set_nonblocking(true).unwrap();
        let accepted = fill(fixture, &pool, (len, sndbuf), |bytes| from.send(bytes).map(|()| len));
        from.set_nonblocking(false).unwrap();
        let sending = thread::spawn(move || from.drain(Instant::now() + LONG).unwrap());
        let (data, mut buffer) = (bytes(len as u64, len), vec![0; len]);
        for at in 0..accepted / len {
            assert_eq!(to.recv(&mut buffer).unwrap(), len, "message {at}");
            assert!(buffer == data, "{len}: message {at}");
        }
        sending.join().unwrap();
    }
    Ok(())
}
