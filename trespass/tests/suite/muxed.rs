//! Many requests on one connection, with calls that block.

use std::collections::{BTreeSet, VecDeque};
use std::io::{ErrorKind, Write};
use std::net::SocketAddr;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use test_harness::{Outcome, cases};
use trespass::connections::{ConnectionPool, GetError};
use trespass::mux::{Arrived, Mux, MuxConfig, MuxError, MuxPool, PendingAnswer, ProtocolViolation, Request};
use trespass::{Listener, Stream};

use super::close::{held, held_at_rest};
use super::death::ChildPeer;
use super::fixture::{Fixture, LONG};

pub(crate) fn add(suite: &mut test_harness::Suite<Fixture>) {
    cases!(suite: answers_come_in_any_order, many_requests_are_in_flight,
        small_requests_pass_a_large_one, threads_share_a_mux, both_sides_ask, requests_share_writes,
        a_request_ends_at_its_deadline, a_dropped_request_is_cancelled, an_answer_is_cancelled_under_way,
        a_dropped_request_of_the_peer_is_reported, one_way_messages_are_taken_before_a_drop,
        a_slow_reader_of_answers_holds_up_nobody, the_peer_accepts_no_more_than_it_says,
        requests_fail_with_their_connection, a_killed_connection_fails_all_requests,
        a_killed_process_fails_all_requests,
        peers_that_speak_something_else, messages_that_are_too_long, muxes_leave_nothing_behind,
        a_pool_hands_out_the_least_loaded_mux, a_pool_replaces_failed_muxes_and_passes_full_ones,
        a_pool_connects_again_after_a_failure, a_cork_holds_back_less_than_64_kib,
        the_last_drop_sends_what_was_corked,
        a_flood_does_not_outlast_a_deadline, a_message_that_stops_does_not_outlast_a_deadline);
}

/// A client and a server. The second is of the accepting end.
fn muxes(fixture: &Fixture) -> (Mux, Mux) {
    muxes_with(fixture, &MuxConfig::new())
}

fn muxes_with(fixture: &Fixture, config: &MuxConfig) -> (Mux, Mux) {
    let (client, server) = fixture.streams();
    (Mux::over(client, config).unwrap(), Mux::over(server, config).unwrap())
}

fn ask(mux: &Mux, bytes: &[u8]) -> PendingAnswer {
    mux.request_within(bytes, LONG).unwrap()
}

fn next(mux: &Mux) -> Request {
    mux.next_request_within(LONG).unwrap().expect("the peer has not ended")
}

/// Answers each request with its bytes, until the peer ends.
fn echo(mux: &Mux) {
    while let Some(mut request) = mux.next_request_within(LONG).unwrap() {
        let bytes = request.bytes().unwrap();
        request.answer(bytes).unwrap();
    }
}

/// Closes a client's mux, so that its server sees the end.
fn close(client: Mux) {
    client.drain(Instant::now() + LONG).unwrap();
    assert_eq!(client.in_flight(), 0, "{client:?}");
}

/// Waits until the peer has ended all requests of this side, by looking for requests of the peer.
fn until_idle(mux: &Mux) {
    let limit = Instant::now() + LONG;
    while mux.in_flight() > 0 {
        assert!(Instant::now() < limit, "{mux:?}");
        let error = mux.next_request_within(Duration::from_millis(1)).unwrap_err();
        assert!(matches!(error, MuxError::DeadlinePassed { .. }), "{error}");
    }
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| (at.wrapping_mul(31).wrapping_add(at >> 8).wrapping_add(seed)) as u8).collect()
}

fn answers_come_in_any_order(fixture: &Fixture) -> Outcome {
    let (client, server) = muxes(fixture);
    let serving = thread::spawn(move || {
        let mut requests = vec![next(&server), next(&server), next(&server)];
        while let Some(mut request) = requests.pop() {
            let bytes = request.bytes().unwrap();
            request.answer([&b"re: "[..], &bytes].concat()).unwrap();
        }
        assert!(server.next_request().unwrap().is_none(), "the client has ended");
    });
    let [one, two, three] = [&b"one"[..], b"two", b"three"].map(|bytes| ask(&client, bytes));
    assert_eq!(three.wait().unwrap(), b"re: three");
    assert_eq!(one.wait().unwrap(), b"re: one");
    assert_eq!(two.wait().unwrap(), b"re: two");
    close(client);
    serving.join().unwrap();
    Ok(())
}

fn many_requests_are_in_flight(fixture: &Fixture) -> Outcome {
    let (client, server) = muxes(fixture);
    let serving = thread::spawn(move || echo(&server));
    for size in [0, 100, 5000, 100_000] {
        let pending = Vec::from_iter((0..256).map(|seed| ask(&client, &pattern(size, seed))));
        for (seed, pending) in pending.into_iter().enumerate() {
            assert!(pending.wait().unwrap() == pattern(size, seed), "answer {seed} of {size} bytes");
        }
    }
    assert_eq!(client.stats().requests, 4 * 256);
    close(client);
    serving.join().unwrap();
    Ok(())
}

/// The small ones have their answers before the large one has arrived, whatever the speeds: each
/// brings at most a window of the large one.
fn small_requests_pass_a_large_one(fixture: &Fixture) -> Outcome {
    const LARGE: usize = 8 << 20;
    let (client, server) = muxes(fixture);
    let serving = thread::spawn(move || {
        let arrived = Barrier::new(2);
        thread::scope(|scope| {
            let mut large = next(&server);
            let arrived = &arrived;
            scope.spawn(move || {
                let bytes = large.bytes().unwrap();
                assert!(bytes == pattern(LARGE, 1));
                arrived.wait();
                large.answer(bytes).unwrap();
            });
            for _ in 0..8 {
                let mut small = next(&server);
                let bytes = small.bytes().unwrap();
                small.answer(bytes).unwrap();
            }
            arrived.wait();
        });
        assert!(server.next_request().unwrap().is_none());
    });
    let large = client.request_within(pattern(LARGE, 1), LONG).unwrap();
    for seed in 0..8 {
        assert_eq!(ask(&client, &pattern(128, seed)).wait().unwrap(), pattern(128, seed));
        let sent = client.stats().bytes_sent;
        assert!(sent < LARGE as u64, "{sent} bytes went before small request {seed}");
    }
    assert!(large.wait().unwrap() == pattern(LARGE, 1));
    close(client);
    serving.join().unwrap();
    Ok(())
}

fn threads_share_a_mux(fixture: &Fixture) -> Outcome {
    const THREADS: usize = 8;
    let requests = fixture.less(100);
    let (client, server) = muxes(fixture);
    thread::scope(|scope| {
        let servers = [server.clone(), server];
        for server in servers {
            scope.spawn(move || echo(&server));
        }
        let asking = Vec::from_iter((0..THREADS).map(|thread| {
            let client = client.clone();
            scope.spawn(move || {
                for request in 0..requests {
                    let bytes = pattern(if request % 10 == 0 { 70_000 } else { 50 }, thread * 1000 + request);
                    assert!(ask(&client, &bytes).wait().unwrap() == bytes, "request {request} of {thread}");
                }
            })
        }));
        asking.into_iter().for_each(|thread| thread.join().unwrap());
        close(client);
    });
    Ok(())
}

fn both_sides_ask(fixture: &Fixture) -> Outcome {
    let config = MuxConfig::new().window(16 << 10).max_requests(4);
    let (one, two) = muxes_with(fixture, &config);
    let (done, barrier) = (AtomicU32::new(0), Barrier::new(2));
    thread::scope(|scope| {
        for mux in [one, two] {
            let (done, barrier) = (&done, &barrier);
            let serving = mux.clone();
            scope.spawn(move || {
                for _ in 0..20 {
                    let mut request = next(&serving);
                    let bytes = request.bytes().unwrap();
                    request.answer(bytes).unwrap();
                }
                serving.drain(Instant::now() + LONG).unwrap();
            });
            scope.spawn(move || {
                for round in 0..5 {
                    let pending =
                        Vec::from_iter((0..4).map(|seed| ask(&mux, &pattern(300_000, seed + round))));
                    for (seed, pending) in pending.into_iter().enumerate() {
                        assert!(pending.wait().unwrap() == pattern(300_000, seed + round));
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                }
                barrier.wait();
            });
        }
    });
    assert_eq!(done.into_inner(), 40);
    Ok(())
}

fn requests_share_writes(fixture: &Fixture) -> Outcome {
    let (client, server) = muxes(fixture);
    let serving = thread::spawn(move || {
        server.set_cork(true);
        echo(&server);
        server.stats()
    });
    ask(&client, b"the peers know each other").wait().unwrap();
    let before = client.stats();
    client.set_cork(true);
    let pending = Vec::from_iter((0..100).map(|seed| ask(&client, &pattern(128, seed))));
    assert_eq!(client.stats().batches, before.batches, "a cork holds them back");
    for (seed, pending) in pending.into_iter().enumerate() {
        assert_eq!(pending.wait().unwrap(), pattern(128, seed));
    }
    let after = client.stats();
    assert_eq!((after.frames_sent - before.frames_sent, after.batches - before.batches), (100, 1));
    client.set_cork(false);
    close(client);
    let served = serving.join().unwrap();
    assert_eq!(served.answers, 101);
    assert!(served.batches < 60, "answers share writes: {served:?}");
    Ok(())
}

fn a_request_ends_at_its_deadline(fixture: &Fixture) -> Outcome {
    let (client, server) = muxes(fixture);
    let (tell, told) = mpsc::channel();
    let serving = thread::spawn(move || {
        next(&server).answer(b"").unwrap();
        let request = next(&server);
        assert!(request.deadline().is_some_and(|deadline| deadline < Instant::now() + LONG));
        let other = next(&server);
        told.recv().unwrap();
        assert!(request.is_cancelled(), "its cancellation came before the other request");
        assert!(matches!(request.answer(b"late"), Err(MuxError::Cancelled)));
        other.answer(b"answer").unwrap();
        assert!(server.next_request().unwrap().is_none());
    });
    // Until the peers know each other, nothing is sent.
    ask(&client, b"").wait().unwrap();
    let time = Duration::from_millis(30);
    let begin = Instant::now();
    let pending = client.request_within(b"?", time).unwrap();
    let error = pending.wait().unwrap_err();
    assert!(begin.elapsed() >= time);
    assert!(matches!(error, MuxError::DeadlinePassed { after } if after == time), "{error}");
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    let other = ask(&client, b"other");
    tell.send(()).unwrap();
    assert_eq!(other.wait().unwrap(), b"answer");
    until_idle(&client);
    close(client);
    serving.join().unwrap();
    Ok(())
}

fn a_dropped_request_is_cancelled(fixture: &Fixture) -> Outcome {
    let (client, server) = muxes(fixture);
    let dropped = client.request(pattern(8 << 20, 1)).unwrap();
    let mut request = next(&server);
    drop(dropped);
    let error = request.bytes().unwrap_err();
    assert!(matches!(error, MuxError::Cancelled), "{error}");
    assert!(request.is_cancelled());
    drop(request);
    until_idle(&client);
    assert_eq!((client.stats().cancelled, server.stats().serving), (1, 0));
    Ok(())
}

fn an_answer_is_cancelled_under_way(fixture: &Fixture) -> Outcome {
    let (client, server) = muxes(fixture);
    let serving = thread::spawn(move || {
        let request = next(&server);
        request.answer(pattern(8 << 20, 1)).unwrap();
        echo(&server);
        server.stats()
    });
    let mut pending = ask(&client, b"?");
    let mut part = Vec::new();
    assert_eq!(pending.next_part(&mut part).unwrap(), Arrived::Part);
    assert!(part == pattern(8 << 20, 1)[..part.len()]);
    drop(pending);
    for seed in 0..20 {
        assert_eq!(ask(&client, &pattern(3000, seed)).wait().unwrap(), pattern(3000, seed));
    }
    until_idle(&client);
    let received = client.stats().bytes_received;
    assert!(received < 2 << 20, "the rest was not sent: {received}");
    close(client);
    assert_eq!(serving.join().unwrap().serving, 0);
    Ok(())
}

fn a_dropped_request_of_the_peer_is_reported(fixture: &Fixture) -> Outcome {
    let (client, server) = muxes(fixture);
    let (one, mut two) = (ask(&client, b"one"), ask(&client, b"two"));
    drop(next(&server));
    let mut answers = next(&server).answers();
    answers.send(b"only").unwrap();
    drop(answers);
    assert!(matches!(one.wait(), Err(MuxError::Unanswered)));
    assert_eq!(two.next_answer().unwrap().unwrap(), b"only");
    assert!(matches!(two.next_answer(), Err(MuxError::Unanswered)));
    assert_eq!(two.next_answer().unwrap(), None, "the error is told once");
    assert_eq!(client.in_flight(), 0);
    Ok(())
}

fn one_way_messages_are_taken_before_a_drop(fixture: &Fixture) -> Outcome {
    let (client, server) = muxes_with(fixture, &MuxConfig::new().max_requests(16));
    let serving = thread::spawn(move || {
        for seed in 0..200 {
            let mut message = next(&server);
            assert!(message.is_one_way());
            assert_eq!(message.bytes().unwrap(), pattern(100 + 50 * seed, seed));
        }
        server.stats()
    });
    for seed in 0..200 {
        client.send_one_way(pattern(100 + 50 * seed, seed)).unwrap();
        assert!(client.in_flight() <= 16);
    }
    client.drain(Instant::now() + LONG).unwrap();
    drop(client);
    assert_eq!(serving.join().unwrap().serving, 0);
    Ok(())
}

fn a_slow_reader_of_answers_holds_up_nobody(fixture: &Fixture) -> Outcome {
    const PARTS: usize = 300;
    let (client, server) = muxes_with(fixture, &MuxConfig::new().window(64 << 10));
    let serving = thread::spawn(move || {
        let mut answers = next(&server).answers();
        thread::scope(|scope| {
            let sending = scope.spawn(move || {
                for seed in 0..PARTS {
                    answers.send(pattern(3000, seed)).unwrap();
                }
                answers.finish().unwrap();
            });
            echo(&server);
            sending.join().unwrap();
        });
    });
    let mut slow = ask(&client, b"all of it");
    for seed in 0..50 {
        assert_eq!(ask(&client, &pattern(2000, seed)).wait().unwrap(), pattern(2000, seed));
    }
    let received = client.stats().bytes_received;
    assert!(received < 50 * 2020 + (64 << 10) + 2000, "more than a window came unread: {received}");
    for seed in 0..PARTS {
        assert_eq!(slow.next_answer().unwrap().unwrap(), pattern(3000, seed));
    }
    assert_eq!(slow.next_answer().unwrap(), None);
    drop(slow); // it has the connection, too
    close(client);
    serving.join().unwrap();
    Ok(())
}

fn the_peer_accepts_no_more_than_it_says(fixture: &Fixture) -> Outcome {
    let (client, server) = muxes_with(fixture, &MuxConfig::new().max_requests(3));
    let pending = Vec::from_iter((0..3).map(|seed| ask(&client, &pattern(10, seed))));
    assert!(!client.has_room());
    let error = client.request_within(b"one more", Duration::from_millis(20)).unwrap_err();
    assert!(matches!(error, MuxError::DeadlinePassed { .. }), "{error}");
    let most = AtomicU32::new(0);
    thread::scope(|scope| {
        let server = &server;
        let most = &most;
        scope.spawn(move || {
            for _ in 0..23 {
                let mut request = next(server);
                most.fetch_max(server.stats().serving, Ordering::Relaxed);
                let bytes = request.bytes().unwrap();
                request.answer(bytes).unwrap();
            }
        });
        for (seed, pending) in pending.into_iter().enumerate() {
            assert_eq!(pending.wait().unwrap(), pattern(10, seed));
        }
        let asking = [0, 1, 2, 3].map(|thread| {
            let client = &client;
            scope.spawn(move || {
                for seed in 0..5 {
                    let bytes = pattern(20, thread * 5 + seed);
                    assert_eq!(ask(client, &bytes).wait().unwrap(), bytes);
                }
            })
        });
        asking.into_iter().for_each(|thread| thread.join().unwrap());
    });
    assert!((1..=3).contains(&most.into_inner()));
    assert_eq!(server.stats().refused, 0, "a mux waits in place of being refused");
    Ok(())
}

fn requests_fail_with_their_connection(fixture: &Fixture) -> Outcome {
    let (client, server) = muxes(fixture);
    let pending = Vec::from_iter((0..10).map(|seed| ask(&client, &pattern(100_000, seed))));
    let mut begun = next(&server);
    let mut part = Vec::new();
    begun.next_part(&mut part).unwrap();
    drop((begun, server));
    for (at, pending) in pending.into_iter().enumerate() {
        assert!(at == 0 || client.failure().is_none() || pending.has_arrived(), "it would not wait");
        let error = pending.wait().unwrap_err();
        let expected = [ErrorKind::UnexpectedEof, ErrorKind::ConnectionReset, ErrorKind::BrokenPipe];
        let is_of_peer = matches!(error, MuxError::Unanswered);
        assert!(is_of_peer || expected.contains(&error.kind()), "{error}");
    }
    assert!(client.failure().is_some());
    let error = client.request(b"more").unwrap_err();
    assert!(matches!(error, MuxError::Closed | MuxError::Connection { .. }), "{error}");
    Ok(())
}

fn a_killed_connection_fails_all_requests(fixture: &Fixture) -> Outcome {
    let (client, server) = muxes(fixture);
    let waiting = Vec::from_iter((0..4).map(|seed| {
        let client = client.clone();
        thread::spawn(move || ask(&client, &pattern(50, seed)).wait())
    }));
    let requests = [next(&server), next(&server), next(&server), next(&server)];
    server.stream().set_linger(Some(Duration::ZERO)).unwrap();
    requests.into_iter().for_each(std::mem::forget);
    // The requests keep it, so end it as a killed process does: nothing is answered.
    server.stream().shutdown(std::net::Shutdown::Both).unwrap();
    for waiting in waiting {
        let error = waiting.join().unwrap().unwrap_err();
        assert!(matches!(error, MuxError::Closed | MuxError::Connection { .. }), "{error}");
    }
    Ok(())
}

/// Has requests in flight until it is killed, and never answers. Returns whether this is its part.
pub(crate) fn part_of_child(part: &str, fixture: &Fixture, addr: SocketAddr) -> bool {
    if part != CHILD {
        return false;
    }
    let mux = Mux::over(fixture.builder().connect(addr).unwrap(), &MuxConfig::new()).unwrap();
    let mut unanswered = VecDeque::new();
    for len in (0..).map(|count| count * 1237 % 300_000) {
        unanswered.push_back(ask(&mux, &pattern(len, 1)));
        if unanswered.len() == 32 {
            unanswered.pop_front().unwrap().wait().unwrap();
        }
    }
    true
}

const CHILD: &str = "requests of a mux";

fn a_killed_process_fails_all_requests(fixture: &Fixture) -> Outcome {
    let (listener, addr) = fixture.listener();
    for round in 0..5 {
        let mut peer = ChildPeer::start(CHILD, addr);
        let mux = Mux::over(listener.accept().unwrap().0, &MuxConfig::new()).unwrap();
        let waiting = Vec::from_iter((0..4).map(|seed| {
            let pending = ask(&mux, &pattern(100_000, seed));
            thread::spawn(move || pending.wait())
        }));
        let served = thread::spawn(move || {
            let mut served = 0;
            while let Ok(Some(mut request)) = mux.next_request_within(LONG) {
                let Ok(bytes) = request.bytes() else { continue };
                let _ = request.answer(bytes);
                served += 1;
                if served == 3 + 40 * round {
                    peer.kill();
                }
            }
            (served, mux.failure())
        });
        let (served, failure) = served.join().unwrap();
        assert!(served >= 3 + 40 * round, "it ended after {served} requests: {failure:?}");
        assert!(matches!(failure, Some(MuxError::Closed | MuxError::Connection { .. })), "{failure:?}");
        for waiting in waiting {
            let error = waiting.join().unwrap().unwrap_err();
            assert!(matches!(error, MuxError::Closed | MuxError::Connection { .. }), "{error}");
        }
    }
    Ok(())
}

fn peers_that_speak_something_else(fixture: &Fixture) -> Outcome {
    let (client, mut other) = fixture.streams();
    let client = Mux::over(client, &MuxConfig::new()).unwrap();
    other.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
    let error = client.request(b"?").unwrap_err();
    assert!(matches!(error, MuxError::Protocol(ProtocolViolation::NoMux)), "{error}");
    assert_eq!(error.kind(), ErrorKind::InvalidData);
    // The peer learns that this side has ended.
    let mut hello = Vec::new();
    assert_eq!(std::io::Read::read_to_end(&mut other, &mut hello).unwrap(), 24);

    let (client, other) = fixture.streams();
    let server = Mux::over(client, &MuxConfig::new()).unwrap();
    let mut frames = hello;
    frames.extend([1, 3, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, b'o', b'k']);
    frames.extend([9; 20]);
    (&other).write_all(&frames).unwrap();
    let mut request = next(&server);
    assert_eq!(request.bytes().unwrap(), b"ok", "what came before is good");
    let error = server.next_request().unwrap_err();
    assert!(matches!(error, MuxError::Protocol(ProtocolViolation::Kind { kind: 9 })), "{error}");
    assert!(matches!(request.answer(b"!"), Err(MuxError::Protocol(_))));
    Ok(())
}

fn messages_that_are_too_long(fixture: &Fixture) -> Outcome {
    let (client, server) = muxes_with(fixture, &MuxConfig::new().max_message(100_000));
    let pending = ask(&client, &pattern(100_001, 1));
    let mut request = next(&server);
    let serving = thread::spawn(move || {
        let error = request.bytes().unwrap_err();
        assert!(matches!(error, MuxError::TooLong { limit: 100_000 }), "{error}");
        let error = request.bytes().unwrap_err();
        assert!(matches!(error, MuxError::TooLong { limit: 100_000 }), "again: {error}");
        let mut bytes = Vec::new();
        while request.next_part(&mut bytes).unwrap() == Arrived::Part {}
        assert!(bytes == pattern(100_001, 1), "parts have no limit");
        request.answer(pattern(100_001, 2)).unwrap();
        echo(&server);
    });
    let error = pending.wait().unwrap_err();
    assert!(matches!(error, MuxError::TooLong { limit: 100_000 }), "{error}");
    assert_eq!(ask(&client, b"the mux goes on").wait().unwrap(), b"the mux goes on");
    until_idle(&client);
    close(client);
    serving.join().unwrap();
    Ok(())
}

/// Ends muxes in several ways.
fn use_a_mux(fixture: &Fixture) {
    let (client, server) = muxes(fixture);
    let seen = BTreeSet::from_iter((0..3).map(|_| client.request(b"?").unwrap().id()));
    assert_eq!(seen.len(), 3);
    let pending = client.request(pattern(1 << 20, 1)).unwrap();
    let request = next(&server);
    match held().len() % 2 {
        0 => drop((server, request, client, pending)),
        _ => drop((pending, client, request, server)),
    }
}

fn muxes_leave_nothing_behind(fixture: &Fixture) -> Outcome {
    const KEPT: usize = 10;
    (0..3).for_each(|_| use_a_mux(fixture));
    let before = held_at_rest();
    (0..2 * KEPT).for_each(|_| use_a_mux(fixture));
    let kept = |what| match what {
        "descriptors" => KEPT,
        // As for pools: not understood, and no connection.
        "regions" if fixture.is_by_cm() => usize::MAX / 2,
        _ => 0,
    };
    let left = || before.into_iter().zip(held()).find(|((what, then), (_, now))| *now > then + kept(*what));
    let limit = Instant::now() + LONG;
    while left().is_some() && Instant::now() < limit {
        thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(left(), None, "of {before:?}, and after more muxes {:?}", held());
    Ok(())
}

fn a_pool_hands_out_the_least_loaded_mux(fixture: &Fixture) -> Outcome {
    let (listener, addr) = fixture.listener();
    let (tell, told) = mpsc::channel();
    let accepting = thread::spawn(move || {
        // The last one takes the place of one that was closed.
        for _ in 0..4 {
            let mux = Mux::over(listener.accept().unwrap().0, &MuxConfig::new()).unwrap();
            tell.send(mux).unwrap();
        }
    });
    let config = fixture.builder().build().unwrap();
    let connections = ConnectionPool::builder(addr).config(config).maximum(3).build().unwrap();
    let pool = MuxPool::new(connections, MuxConfig::new(), 2);
    let mut pending = Vec::new();
    let mut sorted = |pool: &MuxPool| {
        pending.push(ask(&pool.get().unwrap(), b"?"));
        let mut loads = pool.loads();
        loads.sort_unstable();
        loads
    };
    let loads = Vec::from_iter((0..7).map(|_| sorted(&pool)));
    let expected: [&[u32]; 7] = [&[1], &[2], &[1, 2], &[2, 2], &[1, 2, 2], &[2, 2, 2], &[2, 2, 3]];
    assert_eq!(loads, expected);
    assert_eq!(pool.connections().stats().open, 3);

    let servers = [told.recv().unwrap(), told.recv().unwrap(), told.recv().unwrap()];
    let answered = AtomicU32::new(0);
    thread::scope(|scope| {
        for server in servers {
            let answered = &answered;
            scope.spawn(move || {
                while answered.load(Ordering::Relaxed) < 7 {
                    match server.next_request_within(Duration::from_millis(2)) {
                        Ok(request) => {
                            request.expect("the client goes on").answer(b"!").unwrap();
                            answered.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(error) => assert!(matches!(error, MuxError::DeadlinePassed { .. }), "{error}"),
                    }
                }
                server.drain(Instant::now() + LONG).unwrap();
            });
        }
        for pending in pending {
            assert_eq!(pending.wait().unwrap(), b"!");
        }
    });
    // All servers have closed their ends, which arrives later.
    let limit = Instant::now() + LONG;
    let mux = loop {
        let mux = pool.get().unwrap();
        if (pool.connections().stats().made, pool.loads().len()) == (4, 1) {
            break mux;
        }
        assert!(Instant::now() < limit, "{pool:?}");
        thread::sleep(Duration::from_millis(1));
    };
    let server = told.recv().unwrap();
    let again = ask(&mux, b"again");
    next(&server).answer(b"!").unwrap();
    assert_eq!(again.wait().unwrap(), b"!");
    let stats = pool.connections().stats();
    assert_eq!((stats.made, stats.open, stats.evicted), (4, 1, 3), "{stats:?}");
    assert_eq!(pool.loads(), [0]);
    accepting.join().unwrap();
    Ok(())
}

fn a_pool_replaces_failed_muxes_and_passes_full_ones(fixture: &Fixture) -> Outcome {
    let (listener, addr) = fixture.listener();
    let (tell, told) = mpsc::channel();
    let accepting = thread::spawn(move || {
        for most in [3, 2, 2] {
            let config = MuxConfig::new().max_requests(most);
            tell.send(Mux::over(listener.accept().unwrap().0, &config).unwrap()).unwrap();
        }
    });
    let config = fixture.builder().build().unwrap();
    let connections = ConnectionPool::<Stream>::builder(addr).config(config).maximum(2).build().unwrap();
    let pool = MuxPool::new(connections, MuxConfig::new(), 100);
    let doomed = pool.get().unwrap();
    let pending = [ask(&doomed, b"?"), ask(&doomed, b"?"), ask(&doomed, b"?")];
    let other = pool.get().unwrap();
    assert_eq!(pool.loads(), [3, 0], "a request on the first one would wait");
    let others = [ask(&other, b"?"), ask(&other, b"?")];
    // The failed one has more requests than the other, and still leaves.
    drop(told.recv().unwrap());
    for pending in pending {
        pending.wait().unwrap_err();
    }
    assert!(doomed.failure().is_some());
    drop(doomed);
    let third = pool.get().unwrap();
    assert_eq!((third.in_flight(), pool.loads().len(), pool.connections().stats().made), (0, 2, 3));
    accepting.join().unwrap();
    drop((others, told));
    Ok(())
}

/// Asks, and has the server answer.
fn check_pair(client: &Mux, server: &Mux) {
    let pending = ask(client, b"?");
    next(server).answer(b"!").unwrap();
    assert_eq!(pending.wait().unwrap(), b"!");
}

fn a_pool_connects_again_after_a_failure(fixture: &Fixture) -> Outcome {
    const CALLS: usize = 4;
    let listener_at = |addr: SocketAddr| fixture.builder().bind_patience(LONG).bind(addr).unwrap();
    let accept = |listener: &Listener| Mux::over(listener.accept().unwrap().0, &MuxConfig::new()).unwrap();
    let get_and_accept = |pool: &MuxPool, listener: &Listener| {
        thread::scope(|scope| {
            let accepting = scope.spawn(|| accept(listener));
            (pool.get().unwrap(), accepting.join().unwrap())
        })
    };
    let builder = |addr: SocketAddr| {
        let config = fixture.builder().build().unwrap();
        let pause = Duration::from_millis(1);
        ConnectionPool::<Stream>::builder(addr).config(config).maximum(2).retry_pause(pause).timeout(LONG)
    };

    // Each call makes an attempt, also those that have waited for the first.
    let addr = fixture.nobody();
    let connections = builder(addr).retries(0).build().unwrap();
    let pool = MuxPool::new(connections, MuxConfig::new(), 1);
    thread::scope(|scope| {
        let calls = Vec::from_iter((0..CALLS).map(|_| scope.spawn(|| pool.get().unwrap_err())));
        for call in calls {
            let error = call.join().unwrap();
            assert!(matches!(error, GetError::Connect { attempts: 1, .. }), "{error}");
        }
    });
    let stats = pool.connections().stats();
    assert_eq!((stats.failed, stats.made, stats.open), (CALLS as u64, 0, 0), "{stats:?}");
    let listener = listener_at(addr);
    let (first, first_server) = get_and_accept(&pool, &listener);
    check_pair(&first, &first_server);

    // If no further connection can be made, a loaded mux serves.
    drop(listener);
    let pending = ask(&first, b"not answered yet");
    let again = pool.get().unwrap();
    assert_eq!((again.in_flight(), pool.loads()), (1, vec![1]));
    let listener = listener_at(addr);
    let (second, second_server) = get_and_accept(&pool, &listener);
    assert_eq!((second.in_flight(), pool.loads()), (0, vec![1, 0]));
    check_pair(&second, &second_server);
    next(&first_server).answer(b"!").unwrap();
    assert_eq!(pending.wait().unwrap(), b"!");
    let stats = pool.connections().stats();
    assert_eq!((stats.failed, stats.made), (CALLS as u64 + 1, 2), "{stats:?}");

    // Those that wait for the first mux get it, once an attempt succeeds.
    let addr = fixture.nobody();
    let connections = builder(addr).retries(u32::MAX).build().unwrap();
    let pool = MuxPool::new(connections, MuxConfig::new(), CALLS as u32);
    thread::scope(|scope| {
        let calls = Vec::from_iter((0..CALLS).map(|_| scope.spawn(|| pool.get().unwrap())));
        let limit = Instant::now() + LONG;
        while pool.connections().stats().failed == 0 {
            assert!(Instant::now() < limit, "{pool:?}");
            thread::sleep(Duration::from_millis(1));
        }
        let listener = listener_at(addr);
        let server = accept(&listener);
        calls.into_iter().for_each(|call| check_pair(&call.join().unwrap(), &server));
        assert_eq!((pool.connections().stats().made, pool.loads()), (1, vec![0]));
    });
    Ok(())
}

/// Until the counts are compared, no call waits, because that would send what is queued.
fn a_cork_holds_back_less_than_64_kib(fixture: &Fixture) -> Outcome {
    const FRAME_HEADER: usize = 20;
    let (client, server) = muxes(fixture);
    thread::scope(|scope| {
        let answered = scope.spawn(|| next(&server).answer(b"").unwrap());
        ask(&client, b"the peers know each other").wait().unwrap();
        answered.join().unwrap();
    });
    let before = client.stats();
    client.set_cork(true);
    let frame = pattern(1024 - FRAME_HEADER, 1);
    let mut pending = Vec::from_iter((0..63).map(|_| ask(&client, &frame)));
    assert_eq!(client.stats().batches, before.batches, "63 KiB are held back");
    pending.push(ask(&client, &frame));
    let after = client.stats();
    assert_eq!((after.batches - before.batches, after.bytes_sent - before.bytes_sent), (1, 64 << 10));
    thread::scope(|scope| {
        let served = scope.spawn(|| {
            for _ in 0..64 {
                let mut request = next(&server);
                assert!(request.bytes().unwrap() == frame);
                request.answer(b"").unwrap();
            }
        });
        pending.into_iter().for_each(|pending| assert_eq!(pending.wait().unwrap(), b""));
        served.join().unwrap();
    });
    Ok(())
}

fn the_last_drop_sends_what_was_corked(fixture: &Fixture) -> Outcome {
    let (client, server) = muxes(fixture);
    let serving = thread::spawn(move || {
        next(&server).answer(b"").unwrap();
        next(&server).bytes().unwrap()
    });
    ask(&client, b"the peers know each other").wait().unwrap();
    client.set_cork(true);
    client.send_one_way(b"corked").unwrap();
    drop(client);
    assert_eq!(serving.join().unwrap(), b"corked");
    Ok(())
}

/// The peer sends credit of a request that has ended, which is ignored.
fn a_flood_does_not_outlast_a_deadline(fixture: &Fixture) -> Outcome {
    let (client, mut flood) = fixture.streams();
    let client = Mux::over(client, &MuxConfig::new()).unwrap();
    let flooding = thread::spawn(move || {
        let mut begin = b"trespmux\x01\0\0\0\x01\0\0\0\0\0\x01\0\0\0\0\0".to_vec();
        begin.extend([1, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        flood.write_all(&begin)?;
        let credit = [4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0].repeat(10_000);
        let end = Instant::now() + LONG;
        while Instant::now() < end {
            flood.write_all(&credit)?;
        }
        std::io::Result::Ok(())
    });
    drop(next(&client));
    let error = client.next_request_within(Duration::from_millis(20)).unwrap_err();
    assert!(matches!(error, MuxError::DeadlinePassed { .. }), "{error}");
    assert!(!flooding.is_finished(), "the call has waited for the end of the flood");
    drop(client);
    flooding.join().unwrap().unwrap_err();
    Ok(())
}

fn a_message_that_stops_does_not_outlast_a_deadline(fixture: &Fixture) -> Outcome {
    const SHORT: Duration = Duration::from_millis(20);
    let (client, server) = muxes_with(fixture, &MuxConfig::new().window(4096).max_requests(1));
    let sent = pattern(100_000, 1);
    client.send_one_way(&sent).unwrap();
    let (mut request, mut bytes) = (next(&server), Vec::new());
    // No call of the client goes on to send it.
    let error = loop {
        match request.next_part_within(&mut bytes, SHORT) {
            Ok(arrived) => assert_eq!(arrived, Arrived::Part),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, MuxError::DeadlinePassed { after: SHORT }), "{error}");
    let error = client.send_one_way_within(b"beyond the limit", SHORT).unwrap_err();
    assert!(matches!(error, MuxError::DeadlinePassed { after: SHORT }), "{error}");
    thread::scope(|scope| {
        let draining = scope.spawn(|| client.drain(Instant::now() + LONG));
        while request.next_part_within(&mut bytes, LONG).unwrap() == Arrived::Part {}
        assert_eq!(bytes, sent);
        drop(request);
        while !draining.is_finished() {
            server.next_request_within(Duration::from_millis(1)).unwrap_err();
        }
        draining.join().unwrap().unwrap();
    });
    client.send_one_way_within(b"last", LONG).unwrap();
    let mut last = next(&server);
    assert_eq!((last.deadline(), last.bytes().unwrap()), (None, b"last".to_vec()));
    Ok(())
}
