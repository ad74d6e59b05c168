//! Many requests on one connection, awaited by tasks. Both programs have these cases: `runtime` is
//! what differs.

use std::future::{Future, poll_fn};
use std::io::{ErrorKind, Write};
use std::pin::pin;
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use test_harness::{Outcome, cases, skip};
use trespass::connections::GetError;
use trespass::mux::{Arrived, Mux, MuxConfig, MuxError, MuxPool, ProtocolViolation};

use super::fixture::{Fixture, LONG};
use super::runtime::{
    SpawnedTask, Stream, accept, connect, listener_at, pool, pool_builder, read_to_end, sleep, spawn,
    timeout, write_all, yield_now,
};

pub(crate) fn add(suite: &mut test_harness::Suite<Fixture>) {
    cases!(suite: answers_come_in_any_order, many_requests_are_in_flight, tasks_share_a_mux,
        requests_share_writes, a_corked_mux_sends_what_a_call_waits_for, a_drain_sleeps_until_all_is_taken,
        a_drain_waits_for_bytes_of_the_stream,
        small_requests_pass_a_large_one, a_request_ends_at_its_deadline, dropped_waits_lose_nothing,
        parts_follow_a_dropped_wait, a_dropped_request_is_cancelled, answers_in_parts_wait_for_their_reader,
        the_peer_accepts_no_more_than_it_says, one_way_messages_arrive, requests_fail_with_their_connection,
        peers_that_speak_something_else, a_thread_answers_a_task, a_task_answers_a_thread,
        the_last_handle_ends_the_connection, a_flood_does_not_outlast_the_last_handle, a_pool_hands_out_the_least_loaded_mux,
        calls_wait_for_the_first_mux_of_a_pool, a_pool_connects_again_after_a_failure);
}

async fn muxes(fixture: &Fixture, config: MuxConfig) -> (Mux<Stream>, Mux<Stream>) {
    let (client, server) = fixture.streams().await;
    (Mux::over(client, &config).unwrap(), Mux::over(server, &config).unwrap())
}

/// Answers each request in a task, until the peer ends.
fn serve(mux: Mux<Stream>) -> SpawnedTask<()> {
    spawn(async move {
        let mut answering = Vec::new();
        while let Ok(Some(mut request)) = mux.next_request().await {
            answering.push(spawn(async move {
                let bytes = request.bytes().await.unwrap();
                request.answer(bytes).unwrap();
            }));
        }
        for answered in answering {
            answered.await;
        }
    })
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| (at.wrapping_mul(31).wrapping_add(at >> 8).wrapping_add(seed)) as u8).collect()
}

async fn until_idle(mux: &Mux<Stream>) {
    let limit = Instant::now() + LONG;
    while mux.in_flight() > 0 {
        assert!(Instant::now() < limit, "{mux:?}");
        sleep(Duration::from_millis(1)).await;
    }
}

fn answers_come_in_any_order(fixture: &Fixture) -> Outcome {
    fixture.run(async {
        let (client, server) = muxes(fixture, MuxConfig::new()).await;
        let one = client.request(b"one").await.unwrap();
        let two = client.request(b"two").await.unwrap();
        let mut first = server.next_request().await.unwrap().unwrap();
        let mut second = server.next_request().await.unwrap().unwrap();
        assert_eq!(second.bytes().await.unwrap(), b"two");
        second.answer(b"2").unwrap();
        assert_eq!(two.wait().await.unwrap(), b"2");
        assert_eq!(first.bytes().await.unwrap(), b"one");
        first.answer(b"1").unwrap();
        assert_eq!(one.wait().await.unwrap(), b"1");
    });
    Ok(())
}

fn many_requests_are_in_flight(fixture: &Fixture) -> Outcome {
    fixture.run(async {
        let (client, server) = muxes(fixture, MuxConfig::new()).await;
        let serving = serve(server);
        for size in [0, 100, 5000, 100_000] {
            let mut pending = Vec::new();
            for seed in 0..256 {
                pending.push(client.request(pattern(size, seed)).await.unwrap());
            }
            for (seed, pending) in pending.into_iter().enumerate() {
                assert!(
                    pending.wait().await.unwrap() == pattern(size, seed),
                    "answer {seed} of {size} bytes"
                );
            }
        }
        client.drain().await.unwrap();
        drop(client);
        serving.await;
    });
    Ok(())
}

fn tasks_share_a_mux(fixture: &Fixture) -> Outcome {
    fixture.run(async {
        let (client, server) = muxes(fixture, MuxConfig::new().max_requests(20)).await;
        let serving = serve(server);
        let mut asking = Vec::new();
        for task in 0..64 {
            let client = client.clone();
            asking.push(spawn(async move {
                for round in 0..10 {
                    let bytes = pattern(if round == 5 { 50_000 } else { 64 }, task * 10 + round);
                    let answer = client.request(&bytes).await.unwrap().wait().await.unwrap();
                    assert!(answer == bytes);
                }
            }));
        }
        for asked in asking {
            asked.await;
        }
        assert_eq!((client.in_flight(), client.stats().requests), (0, 640));
        drop(client);
        serving.await;
    });
    Ok(())
}

fn requests_share_writes(fixture: &Fixture) -> Outcome {
    fixture.run(async {
        let (client, server) = muxes(fixture, MuxConfig::new()).await;
        let serving = serve(server);
        client.request(b"the peers know each other").await.unwrap().wait().await.unwrap();
        // Another thread may still be sending when the mux is corked.
        let mut batches = 0;
        for _ in 0..10 {
            let before = client.stats();
            client.set_cork(true);
            let mut pending = Vec::new();
            for seed in 0..100 {
                pending.push(client.request(pattern(128, seed)).await.unwrap());
            }
            client.set_cork(false);
            for (seed, pending) in pending.into_iter().enumerate() {
                assert_eq!(pending.wait().await.unwrap(), pattern(128, seed));
            }
            let after = client.stats();
            assert_eq!(after.frames_sent - before.frames_sent, 100);
            batches = after.batches - before.batches;
            if batches == 1 {
                break;
            }
        }
        assert_eq!(batches, 1);
        drop(client);
        serving.await;
    });
    Ok(())
}

fn a_corked_mux_sends_what_a_call_waits_for(fixture: &Fixture) -> Outcome {
    // A probe would wake the task of the mux.
    let fixture = fixture.without_probes();
    fixture.run(async {
        let (client, server) = muxes(&fixture, MuxConfig::new()).await;
        let serving = serve(server);
        client.set_cork(true);
        let pending = client.request(b"corked").await.unwrap();
        let answer = timeout(LONG / 2, pending.wait()).await;
        assert_eq!(answer.expect("it is sent").unwrap(), b"corked");
        drop(client);
        serving.await;

        let (client, server) = muxes(&fixture, MuxConfig::new()).await;
        let serving = serve(server);
        client.request(b"the peers know each other").await.unwrap().wait().await.unwrap();
        client.set_cork(true);
        let pending = client.request(b"corked").await.unwrap();
        client.set_cork(false);
        let limit = Instant::now() + LONG / 2;
        while !pending.has_arrived() {
            assert!(Instant::now() < limit, "the end of the cork sends nothing");
            sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(pending.wait().await.unwrap(), b"corked");
        drop(client);
        serving.await;
    });
    Ok(())
}

fn a_drain_sleeps_until_all_is_taken(fixture: &Fixture) -> Outcome {
    fixture.run(async {
        let (client, server) = muxes(fixture, MuxConfig::new()).await;
        client.send_one_way(b"nobody takes it at first").await.unwrap();
        let message = server.next_request().await.unwrap().unwrap();
        let mut polls = 0;
        let mut draining = pin!(client.drain());
        let mut counted = pin!(poll_fn(|context| {
            polls += 1;
            draining.as_mut().poll(context)
        }));
        let time = Duration::from_millis(50);
        assert!(timeout(time, counted.as_mut()).await.is_err());
        drop(message);
        counted.await.unwrap();
        assert!(polls < 20, "{polls} polls");
    });
    Ok(())
}

/// The peer accepts a long request, and reads nothing of it at first. The buffers of both sides have
/// room for it, and those of the peer have not.
fn a_drain_waits_for_bytes_of_the_stream(fixture: &Fixture) -> Outcome {
    const LEN: usize = 5 << 18;
    if fixture.is_tcp() {
        skip!("the system's buffers may have room for all");
    }
    fixture.run(async {
        let (client, mut other) = fixture.streams().await;
        let client = Mux::over(client, &MuxConfig::new()).unwrap();
        write_all(&mut other, b"trespmux\x01\0\0\0\x01\0\0\0\0\0\x80\0\0\0\0\0").await;
        let pending = client.request(pattern(LEN, 1)).await.unwrap();
        let reading = {
            let mut draining = pin!(client.drain());
            let early = timeout(Duration::from_millis(100), draining.as_mut()).await;
            assert!(early.is_err(), "nobody reads");
            let reading = spawn(async move { read_to_end(&mut other).await.len() });
            draining.await.unwrap();
            reading
        };
        drop((client, pending));
        assert!(reading.await > LEN);
    });
    Ok(())
}

fn small_requests_pass_a_large_one(fixture: &Fixture) -> Outcome {
    const LARGE: usize = 8 << 20;
    fixture.run(async {
        let (client, server) = muxes(fixture, MuxConfig::new()).await;
        let large = client.request(pattern(LARGE, 1)).await.unwrap();
        let mut at_server = server.next_request().await.unwrap().unwrap();
        let serving = serve(server);
        for seed in 0..8 {
            let answer = client.request(pattern(128, seed)).await.unwrap().wait().await.unwrap();
            assert_eq!(answer, pattern(128, seed));
        }
        assert!(client.stats().bytes_sent < 1 << 20, "a window of the large one at most");
        let bytes = at_server.bytes().await.unwrap();
        at_server.answer(bytes).unwrap();
        assert!(large.wait().await.unwrap() == pattern(LARGE, 1));
        drop(client);
        serving.await;
    });
    Ok(())
}

fn a_request_ends_at_its_deadline(fixture: &Fixture) -> Outcome {
    fixture.run(async {
        let (client, server) = muxes(fixture, MuxConfig::new()).await;
        // Until the peers know each other, nothing is sent.
        let first = client.request(b"").await.unwrap();
        server.next_request().await.unwrap().unwrap().answer(b"").unwrap();
        assert_eq!(first.wait().await.unwrap(), b"");
        let time = Duration::from_millis(30);
        let pending = client.request_within(b"?", time).await.unwrap();
        let mut request = server.next_request().await.unwrap().unwrap();
        assert_eq!(request.bytes().await.unwrap(), b"?");
        assert!(request.deadline().is_some());
        let error = pending.wait().await.unwrap_err();
        assert!(matches!(error, MuxError::DeadlinePassed { after } if after == time), "{error}");
        while !request.is_cancelled() {
            sleep(Duration::from_millis(1)).await;
        }
        assert!(matches!(request.answer(b"late"), Err(MuxError::Cancelled)));
        until_idle(&client).await;
    });
    Ok(())
}

/// Polls a future once, and drops it.
async fn poll_and_drop<T>(future: impl Future<Output = T>) -> bool {
    let mut future = pin!(future);
    poll_fn(|context| Poll::Ready(future.as_mut().poll(context).is_ready())).await
}

fn dropped_waits_lose_nothing(fixture: &Fixture) -> Outcome {
    fixture.run(async {
        let (client, server) = muxes(fixture, MuxConfig::new().max_requests(1)).await;
        let mut pending = client.request(pattern(300_000, 1)).await.unwrap();
        assert!(!poll_and_drop(client.request(b"no room")).await);
        assert!(!poll_and_drop(pending.next_answer()).await);
        let mut request = loop {
            let mut next = pin!(server.next_request());
            let polled = poll_fn(|context| Poll::Ready(next.as_mut().poll(context))).await;
            match polled {
                Poll::Ready(request) => break request.unwrap().unwrap(),
                Poll::Pending => yield_now().await,
            }
        };
        while !poll_and_drop(request.next_part(&mut Vec::new())).await {
            yield_now().await;
        }
        let mut answers = request.answers();
        answers.send(pattern(500_000, 2)).await.unwrap();
        assert!(!poll_and_drop(answers.send(b"it has no room, and is dropped")).await);
        let answer = loop {
            let mut next = pin!(pending.next_answer());
            let polled = poll_fn(|context| Poll::Ready(next.as_mut().poll(context))).await;
            match polled {
                Poll::Ready(answer) => break answer.unwrap().unwrap(),
                Poll::Pending => yield_now().await,
            }
        };
        assert!(answer == pattern(500_000, 2));
        answers.finish().await.unwrap();
        assert_eq!(pending.next_answer().await.unwrap(), None);
        assert_eq!(client.stats().requests, 1, "those that had no room were not sent");
    });
    Ok(())
}

fn parts_follow_a_dropped_wait(fixture: &Fixture) -> Outcome {
    const LEN: usize = 1 << 20;
    async fn until_received(mux: &Mux<Stream>) {
        while mux.stats().bytes_received < 100_000 {
            sleep(Duration::from_millis(1)).await;
        }
    }
    fixture.run(async {
        let (client, server) = muxes(fixture, MuxConfig::new()).await;
        let mut pending = client.request(pattern(LEN, 1)).await.unwrap();
        let mut request = server.next_request().await.unwrap().unwrap();
        until_received(&server).await;
        assert!(!poll_and_drop(request.bytes()).await, "it is longer than a window");
        let mut bytes = Vec::new();
        while request.next_part(&mut bytes).await.unwrap() == Arrived::Part {}
        assert!(bytes == pattern(LEN, 1));
        request.answer(bytes).unwrap();
        until_received(&client).await;
        assert!(!poll_and_drop(pending.next_answer()).await, "it is longer than a window");
        let mut answer = Vec::new();
        while pending.next_part(&mut answer).await.unwrap() == Arrived::Part {}
        assert!(answer == pattern(LEN, 1));
    });
    Ok(())
}

fn a_dropped_request_is_cancelled(fixture: &Fixture) -> Outcome {
    fixture.run(async {
        let (client, server) = muxes(fixture, MuxConfig::new()).await;
        let pending = client.request(pattern(8 << 20, 1)).await.unwrap();
        let mut request = server.next_request().await.unwrap().unwrap();
        drop(pending);
        let error = request.bytes().await.unwrap_err();
        assert!(matches!(error, MuxError::Cancelled), "{error}");
        drop(request);
        until_idle(&client).await;
        assert_eq!(client.stats().cancelled, 1);
    });
    Ok(())
}

fn answers_in_parts_wait_for_their_reader(fixture: &Fixture) -> Outcome {
    const PARTS: usize = 200;
    fixture.run(async {
        let (client, server) = muxes(fixture, MuxConfig::new().window(32 << 10)).await;
        let mut slow = client.request(b"all").await.unwrap();
        let request = server.next_request().await.unwrap().unwrap();
        let sending = spawn(async move {
            let mut answers = request.answers();
            for seed in 0..PARTS {
                answers.send(pattern(2000, seed)).await.unwrap();
            }
            answers.finish().await.unwrap();
        });
        let serving = serve(server);
        for seed in 0..20 {
            let answer = client.request(pattern(1000, seed)).await.unwrap().wait().await.unwrap();
            assert_eq!(answer, pattern(1000, seed));
        }
        assert!(!sending.is_finished(), "nobody reads");
        for seed in 0..PARTS {
            assert_eq!(slow.next_answer().await.unwrap().unwrap(), pattern(2000, seed));
        }
        assert_eq!(slow.next_answer().await.unwrap(), None);
        sending.await;
        drop((client, slow));
        serving.await;
    });
    Ok(())
}

fn the_peer_accepts_no_more_than_it_says(fixture: &Fixture) -> Outcome {
    fixture.run(async {
        let (client, server) = muxes(fixture, MuxConfig::new().max_requests(2)).await;
        let pending = [client.request(b"1").await.unwrap(), client.request(b"2").await.unwrap()];
        assert!(!client.has_room());
        let error = client.request_within(b"3", Duration::from_millis(20)).await.unwrap_err();
        assert!(matches!(error, MuxError::DeadlinePassed { .. }), "{error}");
        let waiting = spawn({
            let client = client.clone();
            async move { client.request(b"4").await.unwrap().wait().await }
        });
        let serving = serve(server);
        for (pending, expected) in pending.into_iter().zip([b"1", b"2"]) {
            assert_eq!(pending.wait().await.unwrap(), expected);
        }
        assert_eq!(waiting.await.unwrap(), b"4");
        drop(client);
        serving.await;
    });
    Ok(())
}

fn one_way_messages_arrive(fixture: &Fixture) -> Outcome {
    fixture.run(async {
        let (client, server) = muxes(fixture, MuxConfig::new().max_requests(4)).await;
        let sending = spawn(async move {
            for seed in 0..100 {
                client.send_one_way(pattern(seed * 300, seed)).await.unwrap();
            }
            client.drain().await.unwrap();
        });
        for seed in 0..100 {
            let mut message = server.next_request().await.unwrap().unwrap();
            assert!(message.is_one_way());
            assert_eq!(message.bytes().await.unwrap(), pattern(seed * 300, seed));
        }
        sending.await;

        // A drain is too late to see the peer, which has taken all.
        let (client, server) = muxes(fixture, MuxConfig::new()).await;
        client.send_one_way(b"the last").await.unwrap();
        drop(server.next_request().await.unwrap().unwrap());
        server.drain().await.unwrap();
        drop(server);
        let limit = Instant::now() + LONG;
        while client.failure().is_none() {
            assert!(Instant::now() < limit, "the peer has ended");
            sleep(Duration::from_millis(1)).await;
        }
        client.drain().await.unwrap();
    });
    Ok(())
}

fn requests_fail_with_their_connection(fixture: &Fixture) -> Outcome {
    fixture.run(async {
        let (client, server) = muxes(fixture, MuxConfig::new()).await;
        let mut pending = Vec::new();
        for seed in 0..10 {
            let sent = client.request(pattern(100_000, seed)).await.unwrap();
            pending.push(spawn(sent.wait()));
        }
        let request = server.next_request().await.unwrap().unwrap();
        drop((request, server));
        for ended in pending {
            let error = ended.await.unwrap_err();
            let is_of_connection = matches!(error, MuxError::Closed | MuxError::Connection { .. });
            assert!(is_of_connection || matches!(error, MuxError::Unanswered), "{error}");
        }
        let error = client.request(b"more").await.unwrap_err();
        assert!(matches!(error, MuxError::Closed | MuxError::Connection { .. }), "{error}");
    });
    Ok(())
}

fn peers_that_speak_something_else(fixture: &Fixture) -> Outcome {
    fixture.run(async {
        let (client, mut other) = fixture.streams().await;
        let client = Mux::over(client, &MuxConfig::new()).unwrap();
        write_all(&mut other, b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
        let error = client.request(b"?").await.unwrap_err();
        assert!(matches!(error, MuxError::Protocol(ProtocolViolation::NoMux)), "{error}");
        assert_eq!(error.kind(), ErrorKind::InvalidData);
        // The peer learns that this side has ended, although the mux is still there.
        let hello = timeout(LONG / 2, read_to_end(&mut other)).await.expect("the stream has an end");
        assert_eq!((hello.len(), client.in_flight()), (24, 0));
    });
    Ok(())
}

fn a_thread_answers_a_task(fixture: &Fixture) -> Outcome {
    let listener = fixture.builder().bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let serving = thread::spawn(move || {
        let server = Mux::over(listener.accept().unwrap().0, &MuxConfig::new()).unwrap();
        for _ in 0..50 {
            let mut request = server.next_request_within(LONG).unwrap().unwrap();
            let bytes = request.bytes().unwrap();
            request.answer(bytes).unwrap();
        }
        server.next_request_within(LONG).unwrap().is_none()
    });
    fixture.run(async {
        let client = Mux::over(connect(fixture, addr).await, &MuxConfig::new()).unwrap();
        for seed in 0..50 {
            let bytes = pattern(seed * 3000, seed);
            assert!(client.request(&bytes).await.unwrap().wait().await.unwrap() == bytes);
        }
        client.drain().await.unwrap();
    });
    assert!(serving.join().unwrap(), "the end after the last request");
    Ok(())
}

fn a_task_answers_a_thread(fixture: &Fixture) -> Outcome {
    const LARGE: usize = 1 << 20;
    let config = fixture.builder().build().unwrap();
    fixture.run(async {
        let (mut listener, addr) = fixture.listener().await;
        let asking = thread::spawn(move || {
            let client = Mux::over(config.connect(addr).unwrap(), &MuxConfig::new()).unwrap();
            let large = client.request_within(pattern(LARGE, 1), LONG).unwrap();
            let pending: Vec<_> = (0..50)
                .map(|seed| client.request_within(pattern(seed * 1000, seed), LONG).unwrap())
                .collect();
            for (seed, pending) in pending.into_iter().enumerate() {
                assert!(pending.wait().unwrap() == pattern(seed * 1000, seed));
            }
            assert!(large.wait().unwrap() == pattern(LARGE, 1));
            client.send_one_way(b"the last").unwrap();
            client.drain(Instant::now() + LONG).unwrap();
        });
        let server = Mux::over(accept(&mut listener).await, &MuxConfig::new()).unwrap();
        serve(server).await;
        asking.join().unwrap();
    });
    Ok(())
}

fn the_last_handle_ends_the_connection(fixture: &Fixture) -> Outcome {
    fixture.run(async {
        let (client, server) = muxes(fixture, MuxConfig::new()).await;
        let pending = client.request(b"?").await.unwrap();
        let request = server.next_request().await.unwrap().unwrap();
        drop(client);
        drop(server);
        // A request and its answer keep the connection.
        request.answer(b"!").unwrap();
        assert_eq!(pending.wait().await.unwrap(), b"!");
        let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        let (limit, before) = (Instant::now() + LONG, descriptors());
        for _ in 0..20 {
            let (client, server) = muxes(fixture, MuxConfig::new()).await;
            client.request(b"nobody answers").await.unwrap();
            drop((client, server));
        }
        while descriptors() > before + 10 {
            assert!(Instant::now() < limit, "{} descriptors, and before {before}", descriptors());
            sleep(Duration::from_millis(10)).await;
        }
    });
    Ok(())
}

/// A peer that goes on sending does not keep the connection.
fn a_flood_does_not_outlast_the_last_handle(fixture: &Fixture) -> Outcome {
    let listener = fixture.builder().bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let flooding = thread::spawn(move || {
        let (mut flood, _) = listener.accept().unwrap();
        flood.set_write_timeout(Some(LONG)).unwrap();
        let mut begin = b"trespmux\x01\0\0\0\x01\0\0\0\0\0\x01\0\0\0\0\0".to_vec();
        begin.extend([1, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        flood.write_all(&begin).unwrap();
        let credit = [4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0].repeat(10_000);
        let limit = Instant::now() + LONG;
        while Instant::now() < limit {
            if let Err(error) = flood.write_all(&credit) {
                return error.kind() != ErrorKind::WouldBlock && error.kind() != ErrorKind::TimedOut;
            }
        }
        false
    });
    fixture.run(async {
        let client = Mux::over(connect(fixture, addr).await, &MuxConfig::new()).unwrap();
        drop(client.next_request().await.unwrap().unwrap());
        sleep(Duration::from_millis(50)).await;
        drop(client);
        while !flooding.is_finished() {
            sleep(Duration::from_millis(1)).await;
        }
    });
    assert!(flooding.join().unwrap(), "the flood ends with the connection");
    Ok(())
}

fn a_pool_hands_out_the_least_loaded_mux(fixture: &Fixture) -> Outcome {
    fixture.run(async {
        let (mut listener, addr) = fixture.listener().await;
        let accepting = spawn(async move {
            let mut serving = Vec::new();
            for _ in 0..2 {
                serving.push(serve(Mux::over(accept(&mut listener).await, &MuxConfig::new()).unwrap()));
            }
            for served in serving {
                served.await;
            }
        });
        let connections = pool(fixture, addr, 2);
        let pool = MuxPool::new(connections, MuxConfig::new(), 1);
        // Unread answers of more than a window keep their requests in flight.
        let large = pattern(1 << 20, 1);
        let one = pool.get().await.unwrap().request(large.clone()).await.unwrap();
        assert_eq!(pool.loads(), [1]);
        let two = pool.get().await.unwrap().request(large.clone()).await.unwrap();
        assert_eq!(pool.loads(), [1, 1]);
        let three = pool.get().await.unwrap().request(large.clone()).await.unwrap();
        assert_eq!(pool.loads(), [2, 1], "no further connection is allowed");
        for pending in [one, two, three] {
            assert!(pending.wait().await.unwrap() == large);
        }
        assert_eq!(pool.connections().stats().made, 2);
        drop(pool);
        accepting.await;
    });
    Ok(())
}

fn calls_wait_for_the_first_mux_of_a_pool(fixture: &Fixture) -> Outcome {
    const CALLS: usize = 8;
    fixture.run(async {
        let (mut listener, addr) = fixture.listener().await;
        drop(spawn::<()>(async move {
            // A connect that was given up may be accepted, too.
            loop {
                drop(serve(Mux::over(accept(&mut listener).await, &MuxConfig::new()).unwrap()));
            }
        }));
        let pool = MuxPool::new(pool(fixture, addr, 2), MuxConfig::new(), CALLS as u32);
        let mut connecting = Box::pin(pool.get());
        assert!(poll_fn(|context| Poll::Ready(connecting.as_mut().poll(context))).await.is_pending());
        assert!(!poll_and_drop(pool.get()).await, "it waits for the one that connects");
        let mut asking = Vec::new();
        for call in 0..CALLS {
            let pool = pool.clone();
            asking.push(spawn(async move {
                let mux = pool.get().await.unwrap();
                assert_eq!(
                    mux.request(pattern(64, call)).await.unwrap().wait().await.unwrap(),
                    pattern(64, call)
                );
            }));
        }
        yield_now().await;
        // The next one connects in its place.
        drop(connecting);
        for asked in asking {
            asked.await;
        }
        assert_eq!((pool.connections().stats().made, pool.loads()), (1, vec![0]));
    });
    Ok(())
}

/// Whether one poll leaves the future pending.
async fn is_pending<T>(future: &mut (impl Future<Output = T> + Unpin)) -> bool {
    poll_fn(|context| Poll::Ready(std::pin::Pin::new(&mut *future).poll(context).is_pending())).await
}

fn a_pool_connects_again_after_a_failure(fixture: &Fixture) -> Outcome {
    fixture.run(async {
        let (listener, addr) = fixture.listener().await;
        drop(listener);
        // The pause before the second attempt takes more than one poll.
        let connections = pool_builder(fixture, addr).maximum(2).retries(1);
        let connections = connections.retry_pause(Duration::from_millis(5)).build().unwrap();
        let pool = MuxPool::new(connections, MuxConfig::new(), 1);
        let (mut connecting, mut waiting) = (Box::pin(pool.get()), Box::pin(pool.get()));
        assert!(is_pending(&mut connecting).await);
        assert!(is_pending(&mut waiting).await, "it waits for the one that connects");
        let error = connecting.await.unwrap_err();
        assert!(matches!(error, GetError::Connect { attempts: 2, .. }), "{error}");
        let stats = pool.connections().stats();
        assert_eq!((stats.failed, stats.made, stats.open), (2, 0, 0), "{stats:?}");

        // The call that has waited now connects by itself.
        let mut listener = listener_at(fixture, addr).await;
        let accepting = spawn(async move { (accept(&mut listener).await, listener) });
        let first = waiting.await.unwrap();
        let (stream, listener) = accepting.await;
        let server = Mux::over(stream, &MuxConfig::new()).unwrap();
        let pending = first.request(b"?").await.unwrap();
        let request = server.next_request().await.unwrap().unwrap();
        assert_eq!((pool.connections().stats().made, pool.loads()), (1, vec![1]));

        // If no further connection can be made, a loaded mux serves.
        drop(listener);
        assert_eq!(pool.get().await.unwrap().in_flight(), 1);
        let mut listener = listener_at(fixture, addr).await;
        let accepting = spawn(async move { accept(&mut listener).await });
        assert_eq!(pool.get().await.unwrap().in_flight(), 0);
        let stats = pool.connections().stats();
        assert_eq!((stats.failed, stats.made, pool.loads()), (4, 2, vec![1, 0]), "{stats:?}");
        request.answer(b"!").unwrap();
        assert_eq!(pending.wait().await.unwrap(), b"!");
        drop(accepting.await);
    });
    Ok(())
}
