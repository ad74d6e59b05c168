//! Connections between tasks of one runtime.

use std::future::{Future, poll_fn};
use std::io::{self, ErrorKind};
use std::net::Shutdown;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, Instant};

use futures_util::{AsyncReadExt, AsyncWriteExt};
use test_harness::{Outcome, bytes, cases};
use trespass::Transport;
use trespass::local::{Listener, ReadHalf, SeqPacket, Stream, WriteHalf, sleep, spawn_local, timeout};

use super::fixture::{Fixture, LONG, anywhere};
use super::runtime::yield_now;

pub(crate) fn add(suite: &mut test_harness::Suite<Fixture>) {
    cases!(suite: small_requests_are_answered, megabytes_go_both_ways_at_once, messages_keep_their_boundaries,
        blocks_go_without_a_copy, many_connections_of_one_thread, the_traits_of_futures_io,
        a_peer_that_does_not_read_stops_the_writer, times_pass, reads_that_are_dropped_lose_nothing,
        writes_that_are_dropped_give_nothing, unread_bytes_keep_nobody_awake,
        room_to_write_wakes_no_task_that_waits_for_completions, drains_wait_for_all_bytes,
        drains_wait_for_all_messages);
}

async fn echo(mut stream: Stream) -> io::Result<()> {
    let mut buffer = vec![0; 70_000];
    loop {
        match stream.read(&mut buffer).await? {
            0 => return stream.shutdown(Shutdown::Write),
            count => stream.write_all(&buffer[..count]).await?,
        }
    }
}

fn small_requests_are_answered(fixture: &Fixture) -> Outcome {
    fixture.run(async {
        let (mut client, server) = fixture.streams().await;
        let server = spawn_local(echo(server));
        for round in 0..2000_u32 {
            client.write_all(&round.to_le_bytes()).await.unwrap();
            let mut answer = [0; 4];
            client.read_exact(&mut answer).await.unwrap();
            assert_eq!(u32::from_le_bytes(answer), round);
        }
        client.shutdown(Shutdown::Write).unwrap();
        assert_eq!(client.read(&mut [0]).await.unwrap(), 0, "the end");
        server.await.unwrap();
    });
    Ok(())
}

const MUCH: usize = 5_000_000;

async fn send(mut stream: WriteHalf, seed: u64) {
    for piece in bytes(seed, MUCH).chunks(33_333) {
        stream.write_all(piece).await.unwrap();
    }
}

async fn receive(mut stream: ReadHalf, seed: u64) {
    let (mut received, mut buffer) = (Vec::new(), vec![0; 100_000]);
    loop {
        match stream.read(&mut buffer).await.unwrap() {
            0 => break,
            count => received.extend_from_slice(&buffer[..count]),
        }
    }
    assert!(received == bytes(seed, MUCH), "{} of {MUCH} bytes, or others", received.len());
}

fn megabytes_go_both_ways_at_once(fixture: &Fixture) -> Outcome {
    fixture.run(async {
        let (client, server) = fixture.streams().await;
        let (client_reads, client_writes) = client.into_split();
        let (server_reads, server_writes) = server.into_split();
        let sending = [spawn_local(send(client_writes, 1)), spawn_local(send(server_writes, 2))];
        let receiving = [spawn_local(receive(server_reads, 1)), spawn_local(receive(client_reads, 2))];
        for task in sending.into_iter().chain(receiving) {
            task.await;
        }
    });
    Ok(())
}

fn messages_keep_their_boundaries(fixture: &Fixture) -> Outcome {
    fixture.run(async {
        let (mut client, server) = fixture.packets().await;
        let (mut receives, mut sends) = server.into_split();
        let server = spawn_local(async move {
            let mut buffer = vec![0; 100_000];
            loop {
                match receives.recv(&mut buffer).await {
                    Ok(len) => sends.send(&buffer[..len]).await.unwrap(),
                    Err(error) => return error.kind(),
                }
            }
        });
        let mut buffer = vec![0; 100_000];
        for len in [0, 1, 64, 4096, 70_000, 0, 3] {
            let message = bytes(len as u64, len);
            client.send(&message).await.unwrap();
            assert_eq!(client.recv(&mut buffer).await.unwrap(), len);
            assert!(buffer[..len] == message, "message of {len} bytes");
        }
        drop(client);
        assert_eq!(server.await, ErrorKind::UnexpectedEof);
    });
    Ok(())
}

fn blocks_go_without_a_copy(fixture: &Fixture) -> Outcome {
    fixture.run(async {
        let (mut client, mut server) = fixture.packets().await;
        for round in 0..50_u8 {
            let mut block = client.buffer(1000).unwrap();
            block.bytes_mut()[..1000].fill(round);
            let ticket = client.send_buf(block, 1000).await.unwrap();
            let message = server.recv_buf().await.unwrap();
            assert!(message.to_vec() == [round; 1000]);
            drop(message);
            let completion = client.completion().await;
            assert!(completion.sent && completion.ticket == ticket);
        }
        let block = client.buffer(8).unwrap();
        drop(server);
        // Sooner or later the end of the peer is known.
        let mut next = Some(block);
        let refused = loop {
            match client.send_buf(next.take().unwrap(), 8).await {
                Ok(_) => next = Some(client.completion().await.block),
                Err(refused) => break refused,
            }
        };
        assert!(refused.block.len() >= 8, "the block comes back: {}", refused.error);
    });
    Ok(())
}

fn many_connections_of_one_thread(fixture: &Fixture) -> Outcome {
    const CLIENTS: usize = 64;
    fixture.run(async {
        let mut listener = Listener::bind(anywhere()).unwrap();
        let addr = listener.local_addr().unwrap();
        let serving = spawn_local(async move {
            for _ in 0..CLIENTS {
                let (stream, _) = listener.accept().await.unwrap();
                drop(spawn_local(echo(stream)));
            }
        });
        let clients: Vec<_> = (0..CLIENTS as u32)
            .map(|number| {
                spawn_local(async move {
                    let mut stream = Stream::connect(addr).await.unwrap();
                    for round in 0..50_u32 {
                        let word = (number * 1000 + round).to_le_bytes();
                        stream.write_all(&word).await.unwrap();
                        let mut answer = [0; 4];
                        stream.read_exact(&mut answer).await.unwrap();
                        assert_eq!(answer, word);
                    }
                })
            })
            .collect();
        for client in clients {
            client.await;
        }
        serving.await;
    });
    Ok(())
}

fn the_traits_of_futures_io(fixture: &Fixture) -> Outcome {
    fixture.run(async {
        let (mut client, server) = fixture.streams().await;
        let (mut reads, mut writes) = server.into_split();
        let server =
            spawn_local(async move { futures_util::io::copy(&mut reads, &mut writes).await.unwrap() });
        AsyncWriteExt::write_all(&mut client, b"all of it").await.unwrap();
        AsyncWriteExt::close(&mut client).await.unwrap();
        let mut answer = Vec::new();
        AsyncReadExt::read_to_end(&mut client, &mut answer).await.unwrap();
        assert_eq!(answer, b"all of it");
        assert_eq!(server.await, 9);
    });
    Ok(())
}

fn a_peer_that_does_not_read_stops_the_writer(fixture: &Fixture) -> Outcome {
    fixture.run(async {
        let (mut client, mut server) = fixture.streams().await;
        let writing = spawn_local(async move {
            client.write_all(&bytes(7, 4 * MUCH)).await.unwrap();
        });
        sleep(Duration::from_millis(50)).await;
        assert!(!writing.is_finished(), "nobody reads");
        let mut received = vec![0; 4 * MUCH];
        server.read_exact(&mut received).await.unwrap();
        assert!(received == bytes(7, 4 * MUCH));
        writing.await;
    });
    Ok(())
}

fn times_pass(fixture: &Fixture) -> Outcome {
    fixture.run(async {
        let begin = Instant::now();
        let order = Rc::new(std::cell::RefCell::new(Vec::new()));
        let sleepers: Vec<_> = [30, 10, 20]
            .map(|millis| {
                let order = order.clone();
                spawn_local(async move {
                    sleep(Duration::from_millis(millis)).await;
                    order.borrow_mut().push(millis);
                })
            })
            .into();
        for sleeper in sleepers {
            sleeper.await;
        }
        assert!(begin.elapsed() >= Duration::from_millis(30));
        assert_eq!(*order.borrow(), [10, 20, 30]);
        let never = timeout(Duration::from_millis(5), sleep(Duration::MAX)).await;
        assert_eq!(never.unwrap_err().0, Duration::from_millis(5));
        assert_eq!(timeout(LONG, async { 7 }).await, Ok(7));
        // A sleep that is dropped wakes nobody.
        drop(sleep(Duration::from_millis(1)));
        sleep(Duration::ZERO).await;
    });
    Ok(())
}

/// Polls a future once, and drops it if it is not done.
async fn once<T>(future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    let polled = poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await;
    match polled {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}

fn reads_that_are_dropped_lose_nothing(fixture: &Fixture) -> Outcome {
    fixture.run(async {
        let (client, mut server) = fixture.streams().await;
        let (_reads, writes) = client.into_split();
        let writing = spawn_local(send(writes, 3));
        let (mut received, mut buffer, mut dropped) = (Vec::new(), vec![0; 10_000], 0);
        loop {
            match once(server.read(&mut buffer)).await {
                Some(Ok(0)) => break,
                Some(count) => received.extend_from_slice(&buffer[..count.unwrap()]),
                None => {
                    dropped += 1;
                    yield_now().await;
                }
            }
        }
        assert!(dropped > 0, "no read waited");
        assert!(received == bytes(3, MUCH), "{} of {MUCH} bytes, or others", received.len());
        writing.await;
    });
    Ok(())
}

fn writes_that_are_dropped_give_nothing(fixture: &Fixture) -> Outcome {
    const MESSAGES: u32 = 2000;
    fixture.run(async {
        let (mut client, mut server) = fixture.packets().await;
        let receiving = spawn_local(async move {
            let mut buffer = vec![0; 8192];
            for number in 0..MESSAGES {
                assert_eq!(server.recv(&mut buffer).await.unwrap(), 8192);
                assert_eq!(buffer[..4], number.to_le_bytes());
            }
            assert_eq!(server.recv(&mut buffer).await.unwrap_err().kind(), ErrorKind::UnexpectedEof);
        });
        let (mut message, mut dropped) = (vec![0; 8192], 0);
        for number in 0..MESSAGES {
            message[..4].copy_from_slice(&number.to_le_bytes());
            while once(client.send(&message)).await.map(Result::unwrap).is_none() {
                dropped += 1;
                yield_now().await;
            }
        }
        assert!(dropped > 0, "no send waited");
        drop(client);
        receiving.await;
    });
    Ok(())
}

fn unread_bytes_keep_nobody_awake(fixture: &Fixture) -> Outcome {
    use rustix::time::{ClockId, clock_gettime};

    const PAUSE: Duration = Duration::from_millis(300);
    fixture.run(async {
        let (mut client, mut server) = fixture.streams().await;
        client.write_all(b"unread").await.unwrap();
        sleep(Duration::from_millis(20)).await;
        let used = || {
            let time = clock_gettime(ClockId::ThreadCPUTime);
            Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
        };
        let before = used();
        sleep(PAUSE).await;
        let used = used() - before;
        assert!(used < PAUSE / 3, "{used:?} of processor time in {PAUSE:?}");
        let mut read = [0; 6];
        server.read_exact(&mut read).await.unwrap();
        assert_eq!(&read, b"unread");
    });
    Ok(())
}

/// A refused write leaves room to be reported, which the wait for a completion does not use.
fn room_to_write_wakes_no_task_that_waits_for_completions(fixture: &Fixture) -> Outcome {
    const PAUSE: Duration = Duration::from_millis(100);
    fixture.run(async {
        let (mut client, mut server) = fixture.streams().await;
        let piece = vec![0; 100_000];
        while let Ok(written) = timeout(PAUSE / 5, client.write(&piece)).await {
            written.unwrap();
        }
        let reading = spawn_local(async move {
            let mut buffer = vec![0; 100_000];
            while timeout(PAUSE, server.read(&mut buffer)).await.is_ok() {}
        });
        // A spawned task is polled only if it is woken.
        let polls = spawn_local(async move {
            let (mut polls, mut waiting) = (0, pin!(client.completion()));
            let counted = poll_fn(|context| {
                polls += 1;
                waiting.as_mut().poll(context)
            });
            timeout(PAUSE * 3, counted).await.unwrap_err();
            polls
        });
        let polls = polls.await;
        assert!(polls <= 2, "it was polled {polls} times");
        reading.await;
    });
    Ok(())
}

fn drains_wait_for_all_bytes(fixture: &Fixture) -> Outcome {
    // Over TCP, the system may have room for the rest sooner or later.
    let waits_for_reader = fixture.transport() == Transport::Rdma;
    fixture.run(async {
        let (mut client, mut server) = fixture.streams().await;
        client.drain().await.unwrap();
        // More than the buffers of both sides.
        let mut written = 0;
        while let Ok(count) = timeout(Duration::from_millis(50), client.write(&[7; 100_000])).await {
            written += count.unwrap();
        }
        let (client, mut polls) = (Rc::new(client), 0);
        let other = spawn_local({
            let client = client.clone();
            async move { client.drain().await }
        });
        {
            let mut dropped = pin!(client.drain());
            let polled = poll_fn(|context| Poll::Ready(dropped.as_mut().poll(context))).await;
            assert!(polled.is_pending() || !waits_for_reader, "nobody reads");
        }
        let mut draining = pin!(client.drain());
        let mut counted = pin!(poll_fn(|context| {
            polls += 1;
            draining.as_mut().poll(context)
        }));
        let early = timeout(Duration::from_millis(50), counted.as_mut()).await;
        assert!(early.is_err() && !other.is_finished() || !waits_for_reader, "nobody reads");
        let reading = spawn_local(async move {
            let mut received = vec![0; written];
            server.read_exact(&mut received).await.unwrap();
            server
        });
        if early.is_err() {
            counted.await.unwrap();
        }
        other.await.unwrap();
        assert!(polls < 20, "{polls} polls");
        let server = reading.await;
        drop(server);
        // Nothing is left that could be lost.
        client.drain().await.unwrap();
    });
    Ok(())
}

/// Sends messages of this length until no further one has room. Returns how many were sent.
async fn send_all_that_fits(client: &mut SeqPacket, length: usize) -> usize {
    let (mut sent, message) = (0, bytes(8, length));
    while let Ok(outcome) = timeout(Duration::from_millis(50), client.send(&message)).await {
        outcome.unwrap();
        sent += 1;
    }
    sent
}

/// Over TCP, the system may have room for the rest sooner or later.
fn drains_wait_for_all_messages(fixture: &Fixture) -> Outcome {
    const LENGTH: usize = 10_000;
    let waits_for_reader = fixture.transport() == Transport::Rdma;
    fixture.run(async {
        let (mut client, mut server) = fixture.packets().await;
        client.drain().await.unwrap();
        let (mut count, mut rounds) = (0, 0);
        loop {
            count += send_all_that_fits(&mut client, LENGTH).await;
            let early = timeout(Duration::from_millis(50), client.drain()).await;
            if early.is_err() || !waits_for_reader {
                break;
            }
            // A busy device may have taken messages since.
            rounds += 1;
            assert!(rounds < 20, "nobody receives, and it is ready: {early:?}");
        }
        let receiving = spawn_local(async move {
            let mut buffer = vec![0; LENGTH];
            for _ in 0..count {
                assert_eq!(server.recv(&mut buffer).await.unwrap(), LENGTH);
                assert!(buffer == bytes(8, LENGTH));
            }
            server
        });
        client.drain().await.unwrap();
        // Nothing is left that could be lost.
        drop(receiving.await);
        client.drain().await.unwrap();
    });
    Ok(())
}
