//! Byte streams: invariants I4 and I6, half-closing, and vectored writes.

use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use test_harness::{Outcome, bytes, cases};
use trespass::{Builder, Pool, Stream};

use super::fixture::{Fixture, LONG, below, greet, random, read_exactly};

pub(crate) fn add(suite: &mut test_harness::Suite<Fixture>) {
    cases!(suite: bytes_go_both_ways, i4_bytes_arrive_as_they_were_sent, i4_a_vectored_write_is_its_pieces_in_a_row,
        i6_two_blocked_writers_resume_when_either_reads, a_peer_that_does_not_read_stops_the_writer,
        a_half_that_is_shut_down_ends_and_the_other_goes_on, reading_is_over_after_shutdown_read,
        a_read_waits_no_longer_than_its_timeout, a_write_waits_no_longer_than_its_timeout,
        a_cork_holds_back_small_writes, a_cork_counts_from_what_it_holds, buffers_of_the_pool_go_without_a_copy, several_buffers_go_in_a_row, received_blocks_can_be_kept, counters_count,
        calls_post_before_they_return, peeked_bytes_are_read_again, a_flush_does_not_wait_for_a_reader, a_drain_waits_for_the_peer, an_error_is_taken_once,
        a_connect_takes_no_longer_than_its_timeout);
}

fn a_flush_does_not_wait_for_a_reader(fixture: &Fixture) -> Outcome {
    const LEN: usize = 1 << 20;
    let (client, server) = fixture.streams();
    thread::scope(|scope| {
        for (seed, mut stream) in [(1, client), (2, server)] {
            scope.spawn(move || {
                stream.set_write_timeout(Some(LONG)).unwrap();
                stream.write_all(&bytes(seed, LEN)).unwrap();
                stream.flush().unwrap();
                assert!(read_exactly(&mut stream, LEN) == bytes(3 - seed, LEN));
            });
        }
    });
    Ok(())
}

fn a_drain_waits_for_the_peer(fixture: &Fixture) -> Outcome {
    let (mut client, mut server) = fixture.streams();
    client.drain(Instant::now()).unwrap();
    client.write_all(b"little").unwrap();
    client.drain(Instant::now() + LONG).unwrap();
    // More than all buffers hold.
    client.set_nonblocking(true).unwrap();
    let (piece, mut len) = (vec![7; 1 << 20], b"little".len());
    while let Ok(count) = client.write(&piece) {
        len += count;
    }
    let since = Instant::now();
    let error = client.drain(since + Duration::from_millis(100)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    assert!(since.elapsed() >= Duration::from_millis(100));
    let reading = thread::spawn(move || read_exactly(&mut server, len).len());
    client.drain(Instant::now() + LONG).unwrap();
    assert_eq!(reading.join().unwrap(), len);
    Ok(())
}

/// Bytes of several frames, and of a READ.
fn peeked_bytes_are_read_again(fixture: &Fixture) -> Outcome {
    let (mut client, mut server) = fixture.streams();
    server.set_nonblocking(true).unwrap();
    let mut seen = vec![0; 200_000];
    assert_eq!(server.peek(&mut seen).unwrap_err().kind(), ErrorKind::WouldBlock);
    server.set_nonblocking(false).unwrap();
    let sent = bytes(21, 100_003);
    thread::scope(|scope| {
        scope.spawn(|| {
            client.write_all(&sent[..3]).unwrap();
            client.write_all(&sent[3..]).unwrap();
            client.shutdown(Shutdown::Write).unwrap();
        });
        let mut got = Vec::new();
        while got.len() < sent.len() {
            let len = server.peek(&mut seen).unwrap();
            assert!(len > 0 && seen[..len] == sent[got.len()..got.len() + len]);
            assert_eq!(server.peek(&mut seen[..1]).unwrap(), 1);
            // More bytes may have arrived since.
            let mut read = vec![0; len];
            server.read_exact(&mut read).unwrap();
            got.extend(read);
        }
        assert!(got == sent);
        assert_eq!(server.peek(&mut seen).unwrap(), 0);
        assert_eq!(server.peek(&mut []).unwrap(), 0);
    });
    Ok(())
}

fn an_error_is_taken_once(fixture: &Fixture) -> Outcome {
    let (client, server) = fixture.streams();
    assert!(server.take_error().unwrap().is_none());
    client.set_linger(Some(Duration::ZERO)).unwrap();
    drop(client);
    server.set_nonblocking(true).unwrap();
    let deadline = Instant::now() + LONG;
    while !server.readiness().unwrap().readable {
        assert!(Instant::now() < deadline, "the reset has not come");
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(server.take_error().unwrap().unwrap().kind(), ErrorKind::ConnectionReset);
    assert!(server.take_error().unwrap().is_none());
    Ok(())
}

/// A listening socket that never answers.
fn a_connect_takes_no_longer_than_its_timeout(fixture: &Fixture) -> Outcome {
    if fixture.is_by_cm() {
        test_harness::skip!("`connect_timeout` uses the default parameters, which begin with TCP");
    }
    let silent = TcpListener::bind(fixture.anywhere()).unwrap();
    let addr = silent.local_addr().unwrap();
    let before = Instant::now();
    let timeout = Duration::from_millis(100);
    assert_eq!(Stream::connect_timeout(&addr, timeout).unwrap_err().kind(), ErrorKind::TimedOut);
    assert!(before.elapsed() >= timeout && before.elapsed() < LONG / 2);
    let none = Duration::ZERO;
    assert_eq!(
        Stream::connect_timeout(&addr, none).unwrap_err().kind(),
        TcpStream::connect_timeout(&addr, none).unwrap_err().kind()
    );
    Ok(())
}

fn bytes_go_both_ways(fixture: &Fixture) -> Outcome {
    let (mut client, mut server) = fixture.streams();
    assert_eq!(client.peer_addr().unwrap(), server.local_addr().unwrap());
    assert_eq!(client.local_addr().unwrap(), server.peer_addr().unwrap());
    greet(&mut client, &mut server);
    greet(&mut server, &mut client);
    Ok(())
}

/// Sends pieces of random sizes while it reads others, with random pauses.
fn exchange(mut stream: Stream, seed: u64, out: &[u8], len: usize) -> Vec<u8> {
    let mut random = random(seed);
    let (mut sent, mut got) = (0, Vec::with_capacity(len));
    let mut buffer = vec![0; 1 << 20];
    stream.set_nonblocking(true).unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while sent < out.len() || got.len() < len {
        assert!(Instant::now() < deadline, "{sent} of {} sent, {} of {len} received", out.len(), got.len());
        let mut moved = false;
        if sent < out.len() {
            let most = 1 << [4, 10, 16, 21][below(&mut random, 4)];
            let piece = &out[sent..out.len().min(sent + 1 + below(&mut random, most))];
            match stream.write(piece) {
                Ok(count) => (sent, moved) = (sent + count, true),
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
        }
        let room = 1 + below(&mut random, buffer.len());
        match stream.read(&mut buffer[..room]) {
            Ok(0) => break,
            Ok(count) => {
                got.extend_from_slice(&buffer[..count]);
                moved = true;
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
        if !moved || below(&mut random, 64) == 0 {
            thread::sleep(Duration::from_micros(below(&mut random, 500) as u64));
        }
    }
    stream.set_nonblocking(false).unwrap();
    // The side that finishes first waits for the other.
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(stream.read(&mut buffer).unwrap(), 0);
    got
}

fn i4_bytes_arrive_as_they_were_sent(fixture: &Fixture) -> Outcome {
    for seed in 0..fixture.less(6) as u64 {
        let (client, server) = fixture.streams();
        let mut random = random(seed);
        let (to_server, to_client) =
            (bytes(seed * 2, below(&mut random, 4 << 20)), bytes(seed * 2 + 1, below(&mut random, 4 << 20)));
        let (there, back) = thread::scope(|scope| {
            let serving = scope.spawn(|| exchange(server, seed + 100, &to_client, to_server.len()));
            let back = exchange(client, seed + 200, &to_server, to_client.len());
            (serving.join().unwrap(), back)
        });
        assert!(there == to_server && back == to_client, "seed {seed}");
    }
    Ok(())
}

fn i4_a_vectored_write_is_its_pieces_in_a_row(fixture: &Fixture) -> Outcome {
    let (mut client, mut server) = fixture.streams();
    let mut random = random(7);
    for round in 0..50 {
        let pieces: Vec<Vec<u8>> = (0..below(&mut random, 12))
            .map(|at| bytes(round * 100 + at as u64, below(&mut random, 5000)))
            .collect();
        let whole = pieces.concat();
        let mut sent = 0;
        while sent < whole.len() {
            let mut skip = sent;
            let slices: Vec<IoSlice<'_>> = pieces
                .iter()
                .map(|piece| {
                    let from = skip.min(piece.len());
                    skip -= from;
                    IoSlice::new(&piece[from..])
                })
                .collect();
            sent += client.write_vectored(&slices).unwrap();
        }
        assert_eq!(read_exactly(&mut server, whole.len()), whole);
    }
    Ok(())
}

/// Writes until a write would block.
fn fill(stream: &mut Stream) -> usize {
    stream.set_nonblocking(true).unwrap();
    let total = fill_without_waiting(stream);
    stream.set_nonblocking(false).unwrap();
    total
}

/// Writes until a write is refused, and again after the device has processed its requests, which
/// frees space once more.
pub(crate) fn fill_without_waiting(stream: &mut Stream) -> usize {
    let mut total = 0;
    loop {
        match write_until_refused(stream) {
            0 => return total,
            more => total += more,
        }
        assert!(total < 1 << 30, "a peer that reads nothing takes a gigabyte");
        thread::sleep(Duration::from_millis(50));
    }
}

/// The number of bytes that a non-blocking stream accepts now.
pub(crate) fn write_until_refused(stream: &mut Stream) -> usize {
    let (piece, mut total) = (vec![0x5a; 100_000], 0);
    loop {
        match stream.write(&piece) {
            Ok(count) => total += count,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                return total;
            }
        }
        assert!(total < 1 << 30, "a peer that reads nothing takes a gigabyte");
    }
}

/// Sends data that the writer keeps in its memory, while the other end reads.
fn flush_and_read(from: &mut Stream, to: &mut Stream, len: usize) -> Vec<u8> {
    thread::scope(|scope| {
        scope.spawn(|| from.flush().unwrap());
        read_exactly(to, len)
    })
}

fn i6_two_blocked_writers_resume_when_either_reads(fixture: &Fixture) -> Outcome {
    let (mut client, mut server) = fixture.streams();
    // Until neither takes more from the other, because each step of one may free space at the
    // other.
    let (mut to_server, mut to_client) = (0, 0);
    loop {
        let (there, back) = (fill(&mut client), fill(&mut server));
        (to_server, to_client) = (to_server + there, to_client + back);
        if there + back == 0 {
            break;
        }
    }
    thread::scope(|scope| {
        let writing = scope.spawn(|| {
            client.write_all(&[1; 100_000]).unwrap();
            read_exactly(&mut client, to_client)
        });
        let got = read_exactly(&mut server, to_server + 100_000);
        assert_eq!(got[to_server..], [1; 100_000]);
        server.flush().unwrap();
        assert!(writing.join().unwrap().iter().all(|byte| *byte == 0x5a));
    });
    Ok(())
}

fn a_peer_that_does_not_read_stops_the_writer(fixture: &Fixture) -> Outcome {
    let (mut client, mut server) = fixture.streams();
    let total = fill(&mut client);
    assert!(total > 0);
    // The amount is bounded by both quotas and by the operating system's socket buffers.
    assert!(total < 64 << 20, "{total} bytes were taken for a peer that does not read");
    assert!(flush_and_read(&mut client, &mut server, total) == vec![0x5a; total]);
    greet(&mut client, &mut server);
    Ok(())
}

fn a_half_that_is_shut_down_ends_and_the_other_goes_on(fixture: &Fixture) -> Outcome {
    let (mut client, mut server) = fixture.streams();
    client.write_all(b"the last words").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(client.write(b"more").unwrap_err().kind(), ErrorKind::BrokenPipe);
    let mut words = String::new();
    server.read_to_string(&mut words).unwrap();
    assert_eq!(words, "the last words");
    assert_eq!(server.read(&mut [0; 8]).unwrap(), 0, "the end stays the end");
    server.write_all(&bytes(1, 300_000)).unwrap();
    server.shutdown(Shutdown::Write).unwrap();
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).unwrap();
    assert_eq!(answer, bytes(1, 300_000));
    Ok(())
}

fn reading_is_over_after_shutdown_read(fixture: &Fixture) -> Outcome {
    let (mut client, mut server) = fixture.streams();
    client.shutdown(Shutdown::Read).unwrap();
    assert_eq!(client.read(&mut [0; 8]).unwrap(), 0);
    client.write_all(b"still").unwrap();
    assert_eq!(read_exactly(&mut server, 5), b"still");
    Ok(())
}

/// Whether an error is the one that std gives for a timeout.
pub(crate) fn time_is_up(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

fn a_read_waits_no_longer_than_its_timeout(fixture: &Fixture) -> Outcome {
    let (mut client, mut server) = fixture.streams();
    let limit = Duration::from_millis(60);
    client.set_read_timeout(Some(limit)).unwrap();
    assert_eq!(client.read_timeout().unwrap(), Some(limit));
    let before = Instant::now();
    assert!(time_is_up(&client.read(&mut [0; 8]).unwrap_err()));
    assert!(before.elapsed() >= limit);
    greet(&mut server, &mut client);
    let error = client.set_read_timeout(Some(Duration::ZERO)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    Ok(())
}

fn a_write_waits_no_longer_than_its_timeout(fixture: &Fixture) -> Outcome {
    let (mut client, mut server) = fixture.streams();
    let total = fill(&mut client);
    let limit = Duration::from_millis(60);
    client.set_write_timeout(Some(limit)).unwrap();
    let before = Instant::now();
    assert!(time_is_up(&client.write(&[0x5a; 100_000]).unwrap_err()));
    assert!(before.elapsed() >= limit);
    // Data that was accepted before is not lost, and may be sent later.
    client.set_write_timeout(Some(LONG)).unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let mut rest = Vec::new();
    thread::scope(|scope| {
        scope.spawn(|| client.flush().unwrap());
        server.read_to_end(&mut rest).unwrap();
    });
    assert!(rest.len() >= total && rest.iter().all(|byte| *byte == 0x5a));
    Ok(())
}

/// Until they are read, the bytes stay in the block that the program filled, and nothing else of
/// the pool is in use.
fn buffers_of_the_pool_go_without_a_copy(fixture: &Fixture) -> Outcome {
    // Frames over several rails hold copies, so that they can be sent again.
    let fixture = &fixture.on_one_device();
    let (mut client, mut server) =
        fixture.streams_of(of_a_pool_of_its_own(fixture), of_a_pool_of_its_own(fixture));
    let in_use = |stream: &Stream| stream.pool().stats().in_use;
    for len in [1, 1000, 70_000] {
        let before = in_use(&client);
        let mut buffer = client.buffer(len).unwrap();
        buffer.bytes_mut()[..len].copy_from_slice(&bytes(len as u64, len));
        let (address, with_it) = (buffer.bytes().as_ptr(), in_use(&client));
        assert!(with_it >= before + len, "{with_it} after {before}");
        client.send_buf(buffer, len).unwrap();
        assert!(
            in_use(&client) <= with_it,
            "{} for a buffer of {len} bytes, {with_it} with it",
            in_use(&client)
        );
        assert_eq!(read_exactly(&mut server, len), bytes(len as u64, len));
        let back = client.next_completion().unwrap().expect("it comes back");
        assert!(back.sent && back.block.bytes().as_ptr() == address);
    }
    Ok(())
}

/// A builder with a private pool.
fn of_a_pool_of_its_own(fixture: &Fixture) -> Builder {
    let builder = fixture.builder();
    let config = builder.clone().build().unwrap();
    builder.pool(Pool::new(&config.pool_config()).unwrap())
}

fn a_cork_holds_back_small_writes(fixture: &Fixture) -> Outcome {
    let (mut client, mut server) = fixture.streams();
    let frames = |client: &Stream| client.stats().frames_sent - client.stats().credits_sent;
    greet(&mut client, &mut server);
    let before = frames(&client);
    client.set_cork(true).unwrap();
    let began = Instant::now();
    (0..100).for_each(|_| client.write_all(b"ten bytes.").unwrap());
    // Only the cork's timeout could have flushed them in between.
    let held = frames(&client) == before;
    assert!(held || began.elapsed() >= Duration::from_millis(200));
    client.set_cork(false).unwrap();
    assert_eq!(read_exactly(&mut server, 1000), b"ten bytes.".repeat(100));
    assert!(!held || frames(&client) == before + 1);
    // A flush sends them, and so does the timeout.
    client.set_cork(true).unwrap();
    client.write_all(b"flushed").unwrap();
    client.flush().unwrap();
    assert_eq!(read_exactly(&mut server, 7), b"flushed");
    client.write_all(b"late").unwrap();
    client.set_read_timeout(Some(Duration::from_millis(400))).unwrap();
    assert!(time_is_up(&client.read(&mut [0; 1]).unwrap_err()), "a call that waits lets it go");
    server.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    assert_eq!(read_exactly(&mut server, 4), b"late");
    // A full frame is not held back, and closing flushes all.
    let long = bytes(5, 100_003);
    client.write_all(&long).unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let mut got = Vec::new();
    server.read_to_end(&mut got).unwrap();
    assert!(got == long);
    Ok(())
}

fn several_buffers_go_in_a_row(fixture: &Fixture) -> Outcome {
    let (mut client, mut server) = fixture.streams();
    for sizes in [&[1, 2, 3][..], &[0, 0], &[9000, 0, 200_000, 5], &[8000; 30]] {
        let mut blocks = Vec::new();
        for (seed, len) in sizes.iter().enumerate() {
            let mut block = client.buffer(*len).unwrap();
            block.bytes_mut()[..*len].copy_from_slice(&bytes(seed as u64, *len));
            blocks.push((block, *len));
        }
        let ticket = client.send_blocks(&mut blocks).unwrap();
        let wanted: Vec<u8> =
            sizes.iter().enumerate().flat_map(|(seed, len)| bytes(seed as u64, *len)).collect();
        thread::scope(|scope| {
            scope.spawn(|| assert!(read_exactly(&mut server, wanted.len()) == wanted));
            for left in (0..sizes.len()).rev() {
                let completion = client.next_completion().unwrap().unwrap();
                assert_eq!((completion.ticket, completion.left), (ticket, left));
            }
        });
    }
    assert!(client.next_completion().unwrap().is_none());
    Ok(())
}

fn received_blocks_can_be_kept(fixture: &Fixture) -> Outcome {
    let (mut client, mut server) = fixture.streams();
    let sent = bytes(3, 200_000);
    client.write_all(&sent).unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let (mut kept, mut len) = (Vec::new(), 0);
    while len < sent.len() {
        let part = server.recv_buf().unwrap();
        assert!(!part.is_empty());
        len += part.len();
        kept.push(part);
    }
    let got: Vec<u8> =
        kept.iter().flat_map(|part| part.chunks().flatten().copied().collect::<Vec<u8>>()).collect();
    assert!(got == sent, "what is kept changes");
    drop(kept);
    assert!(server.recv_buf().unwrap().is_empty(), "the end is an empty buffer");
    Ok(())
}

/// The timeout does not count from the connection's last activity.
fn a_cork_counts_from_what_it_holds(fixture: &Fixture) -> Outcome {
    let (mut client, _server) = fixture.streams();
    let deadline = Instant::now() + LONG;
    loop {
        thread::sleep(Duration::from_millis(300));
        client.set_cork(true).unwrap();
        let (sent, written) = (client.stats().frames_sent, Instant::now());
        client.write_all(b"held").unwrap();
        client.readiness().unwrap();
        let held = client.stats().frames_sent == sent;
        // Only an exchange within the timeout proves anything.
        if written.elapsed() < Duration::from_millis(200) {
            assert!(held, "it went at once");
            return Ok(());
        }
        assert!(Instant::now() < deadline, "this machine is too busy to tell");
        client.set_cork(false).unwrap();
    }
}

fn counters_count(fixture: &Fixture) -> Outcome {
    let (mut client, mut server) = fixture.streams();
    client.write_all(&[7; 50_000]).unwrap();
    read_exactly(&mut server, 50_000);
    let (sent, received) = (client.stats(), server.stats());
    assert_eq!((sent.bytes_sent, received.bytes_received), (50_000, 50_000));
    assert!(sent.frames_sent > 0 && received.frames_received > 0);
    assert_eq!((sent.bytes_received, received.bytes_sent), (0, 0));
    Ok(())
}

/// The frames of one call share one doorbell, or one write of the system.
fn calls_post_before_they_return(fixture: &Fixture) -> Outcome {
    if fixture.shares_receives() {
        test_harness::skip!(
            "where receives are shared a connection begins with a few, so that a call may send less than it has"
        );
    }
    fixture.with_and_without_rails().iter().for_each(post_before_they_return);
    Ok(())
}

fn post_before_they_return(fixture: &Fixture) {
    let slots = || fixture.builder().slot_size(8 << 10);
    let (mut client, mut server) = fixture.streams_of(slots(), slots());
    greet(&mut client, &mut server);
    let sent = bytes(8, 16_000);
    for round in 0..20 {
        let before = client.stats();
        client.write_all(&sent).unwrap();
        let now = client.stats();
        let (frames, posts) = (now.frames_sent - before.frames_sent, now.posts - before.posts);
        assert!(frames >= 2 || fixture.is_tcp(), "round {round}: {frames} frames");
        if fixture.has_rails() {
            // A doorbell of each rail, and what is said about rails at first.
            assert!((1..=6).contains(&posts), "round {round}: {posts} posts of {frames} frames");
        } else {
            assert_eq!(posts, 1, "round {round}: of {frames} frames");
        }
        assert!(read_exactly(&mut server, sent.len()) == sent);
        greet(&mut server, &mut client);
    }
}
