//! Streams between tasks, and between a task and a blocking program or a worker.

use std::future::{Future, poll_fn};
use std::io::{ErrorKind, Read, Write};
use std::pin::pin;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use test_harness::{Outcome, bytes, cases, skip};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use trespass::tokio::Stream;
use trespass::{Event, Kind, Readiness, Worker};

use super::fixture::{Fixture, LONG};

pub(crate) fn add(suite: &mut test_harness::Suite<Fixture>) {
    cases!(suite: small_requests_are_answered, megabytes_go_both_ways_at_once, halves_of_one_task,
        halves_of_two_tasks_are_joined_again, both_sides_write_before_they_read,
        a_peer_that_does_not_read_stops_the_writer, room_and_bytes_are_waited_for,
        many_connections_of_one_thread, a_blocking_peer, a_peer_with_a_worker, a_stream_changes_its_kind,
        written_bytes_arrive_while_the_task_does_something_else, corked_bytes_go_when_they_are_uncorked,
        a_task_that_always_reads_lets_others_run, a_call_of_another_task_wakes_the_reader,
        no_interest_is_met_at_once, a_read_waits_again_after_a_buffer_was_received,
        an_answered_message_wakes_the_task_once, corked_bytes_go_while_reads_find_data,
        two_readers_of_one_stream_both_get_a_message,
        a_read_leaves_the_wake_up_by_memory_to_the_writer);
}

async fn echo(mut stream: Stream) -> std::io::Result<()> {
    let mut buffer = vec![0; 70_000];
    loop {
        match stream.read(&mut buffer).await? {
            0 => return stream.shutdown().await,
            count => stream.write_all(&buffer[..count]).await?,
        }
    }
}

fn small_requests_are_answered(fixture: &Fixture) -> Outcome {
    fixture.run(async {
        let (mut client, server) = fixture.streams().await;
        let server = tokio::spawn(echo(server));
        for round in 0..2000_u32 {
            client.write_all(&round.to_le_bytes()).await.unwrap();
            assert_eq!(client.read_u32_le().await.unwrap(), round);
        }
        client.shutdown().await.unwrap();
        assert_eq!(client.read(&mut [0]).await.unwrap(), 0, "the end");
        server.await.unwrap().unwrap();
    });
    Ok(())
}

const MUCH: usize = 5_000_000;

async fn send(mut stream: impl AsyncWrite + Unpin, seed: u64) {
    for piece in bytes(seed, MUCH).chunks(33_333) {
        stream.write_all(piece).await.unwrap();
    }
    stream.shutdown().await.unwrap();
}

async fn receive(mut stream: impl AsyncRead + Unpin, seed: u64) {
    let mut received = Vec::new();
    stream.read_to_end(&mut received).await.unwrap();
    assert!(received == bytes(seed, MUCH), "{} of {MUCH} bytes, or others", received.len());
}

fn megabytes_go_both_ways_at_once(fixture: &Fixture) -> Outcome {
    fixture.run(async {
        let (client, server) = fixture.streams().await;
        let (client_reads, client_writes) = client.into_split();
        let (server_reads, server_writes) = server.into_split();
        let tasks = [
            tokio::spawn(send(client_writes, 1)),
            tokio::spawn(send(server_writes, 2)),
            tokio::spawn(receive(server_reads, 1)),
            tokio::spawn(receive(client_reads, 2)),
        ];
        for task in tasks {
            task.await.unwrap();
        }
    });
    Ok(())
}

fn halves_of_one_task(fixture: &Fixture) -> Outcome {
    fixture.run(async {
        let (mut client, mut server) = fixture.streams().await;
        let (client_reads, client_writes) = client.split();
        let (server_reads, server_writes) = server.split();
        tokio::join!(
            send(client_writes, 1),
            send(server_writes, 2),
            receive(server_reads, 1),
            receive(client_reads, 2)
        );
    });
    Ok(())
}

fn halves_of_two_tasks_are_joined_again(fixture: &Fixture) -> Outcome {
    fixture.run(async {
        let (client, mut server) = fixture.streams().await;
        let (other, _peer) = fixture.streams().await;
        let (reads, writes) = client.into_split();
        let (other_reads, other_writes) = other.into_split();
        let (reads, other_writes) = reads.reunite(other_writes).expect_err("of two connections");
        let mut client = reads.reunite(writes).unwrap();
        let _ = other_reads.reunite(other_writes).unwrap();
        client.write_all(b"whole").await.unwrap();
        let mut five = [0; 5];
        server.read_exact(&mut five).await.unwrap();
        assert_eq!(&five, b"whole");
        // The drop of a writing half alone is the end of what is written.
        let (mut reads, writes) = client.into_split();
        drop(writes);
        assert_eq!(server.read(&mut five).await.unwrap(), 0);
        server.write_all(b"later").await.unwrap();
        reads.read_exact(&mut five).await.unwrap();
        assert_eq!(&five, b"later");
    });
    Ok(())
}

/// Each writes more than the buffers hold, and another task of each reads.
fn both_sides_write_before_they_read(fixture: &Fixture) -> Outcome {
    fixture.run(async {
        let (mut client, mut server) = fixture.streams().await;
        let data = bytes(3, 40_000);
        let side = |mut stream: Stream| {
            let data = data.clone();
            async move {
                stream.write_all(&data).await.unwrap();
                let mut received = vec![0; data.len()];
                stream.read_exact(&mut received).await.unwrap();
                assert!(received == data);
                stream
            }
        };
        (client, server) = tokio::join!(side(client), side(server));
        drop((client, server));
    });
    Ok(())
}

fn a_peer_that_does_not_read_stops_the_writer(fixture: &Fixture) -> Outcome {
    fixture.run(async {
        let (mut client, mut server) = fixture.streams().await;
        let piece = bytes(4, 100_000);
        let mut written = 0;
        let pause = Duration::from_millis(300);
        // A write that is dropped has taken nothing that it did not report.
        while let Ok(count) = tokio::time::timeout(pause, client.write(&piece[written % piece.len()..])).await
        {
            written += count.unwrap();
            assert!(written < 1 << 30, "nothing stops it");
        }
        assert!(written > 0);
        assert_eq!(client.try_write(&piece).unwrap_err().kind(), ErrorKind::WouldBlock);
        let reading = tokio::spawn(async move {
            let mut received = Vec::new();
            server.read_to_end(&mut received).await.unwrap();
            received
        });
        client.writable().await.unwrap();
        client.shutdown().await.unwrap();
        let received = reading.await.unwrap();
        assert_eq!(received.len(), written);
        assert!(received.iter().zip(piece.iter().cycle()).all(|(a, b)| a == b));
    });
    Ok(())
}

fn room_and_bytes_are_waited_for(fixture: &Fixture) -> Outcome {
    fixture.run(async {
        let (client, mut server) = fixture.streams().await;
        assert!(client.ready(Readiness::BOTH).await.unwrap().writable);
        let pause = Duration::from_millis(50);
        assert!(tokio::time::timeout(pause, client.readable()).await.is_err(), "nothing has come");
        assert_eq!(client.try_read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
        server.write_all(b"ab").await.unwrap();
        client.readable().await.unwrap();
        assert_eq!(client.peek(&mut [0; 2]).await.unwrap(), 2);
        let mut two = [0; 2];
        assert_eq!(client.try_read(&mut two).unwrap(), 2);
        assert_eq!(&two, b"ab");
    });
    Ok(())
}

fn many_connections_of_one_thread(fixture: &Fixture) -> Outcome {
    const CLIENTS: u64 = 40;
    fixture.run(async {
        let (listener, addr) = fixture.listener().await;
        let server = tokio::spawn(async move {
            let mut serving = Vec::new();
            for _ in 0..CLIENTS {
                serving.push(tokio::spawn(echo(listener.accept().await.unwrap().0)));
            }
            for task in serving {
                task.await.unwrap().unwrap();
            }
        });
        let config = fixture.config();
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let config = config.clone();
                tokio::spawn(async move {
                    let mut stream = Stream::connect_with(&config, addr).await.unwrap();
                    let data = bytes(client, 20_000);
                    let mut received = vec![0; data.len()];
                    for (sent, got) in data.chunks(1000).zip(received.chunks_mut(1000)) {
                        stream.write_all(sent).await.unwrap();
                        stream.read_exact(got).await.unwrap();
                    }
                    assert!(received == data, "client {client}");
                    stream.shutdown().await.unwrap();
                    assert_eq!(stream.read(&mut [0]).await.unwrap(), 0);
                })
            })
            .collect();
        for client in clients {
            client.await.unwrap();
        }
        server.await.unwrap();
    });
    Ok(())
}

fn a_blocking_peer(fixture: &Fixture) -> Outcome {
    fixture.run(async {
        let (listener, addr) = fixture.listener().await;
        let config = fixture.config();
        let peer = thread::spawn(move || {
            let mut stream = config.connect(addr).unwrap();
            stream.set_read_timeout(Some(LONG)).unwrap();
            for round in 0..300_u32 {
                stream.write_all(&round.to_le_bytes()).unwrap();
                let mut answer = [0; 4];
                stream.read_exact(&mut answer).unwrap();
                assert_eq!(u32::from_le_bytes(answer), round);
            }
        });
        let (server, _) = listener.accept().await.unwrap();
        let outcome = echo(server).await;
        assert!(outcome.is_ok(), "{outcome:?}");
        tokio::task::spawn_blocking(|| peer.join().unwrap()).await.unwrap();
    });
    Ok(())
}

fn a_peer_with_a_worker(fixture: &Fixture) -> Outcome {
    let mut worker = Worker::new(&fixture.config()).unwrap();
    let listener = worker.listen("127.0.0.1:0", Kind::Stream).unwrap();
    let addr = worker.local_addr(listener).unwrap();
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let serving = thread::spawn(move || {
        let (mut events, mut buffer) = (Vec::new(), [0; 1000]);
        while stopped.try_recv() != Err(std::sync::mpsc::TryRecvError::Disconnected) {
            worker.poll(&mut events, Some(Duration::from_millis(5))).unwrap();
            for event in events.drain(..) {
                if let Event::Ready { key, .. } = event {
                    while let Ok(count @ 1..) = worker.read(key, &mut buffer) {
                        assert_eq!(worker.write(key, &buffer[..count]).unwrap(), count);
                    }
                }
            }
        }
    });
    fixture.run(async {
        let mut stream = Stream::connect_with(&fixture.config(), addr).await.unwrap();
        for round in 0..300_u32 {
            stream.write_all(&round.to_le_bytes()).await.unwrap();
            assert_eq!(stream.read_u32_le().await.unwrap(), round);
        }
    });
    drop(stop);
    serving.join().unwrap();
    Ok(())
}

fn a_stream_changes_its_kind(fixture: &Fixture) -> Outcome {
    fixture.run(async {
        let (mut client, server) = fixture.streams().await;
        client.write_all(b"xone").await.unwrap();
        let mut server = server;
        assert_eq!(server.read_u8().await.unwrap(), b'x');
        let mut server = server.into_blocking().unwrap();
        // What the task has left is shown.
        let mut fds = [PollFd::new(&server, PollFlags::IN)];
        let limit = Timespec { tv_sec: 10, tv_nsec: 0 };
        assert_eq!(poll(&mut fds, Some(&limit)).unwrap(), 1);
        let blocking = tokio::task::spawn_blocking(move || {
            let mut three = [0; 3];
            server.read_exact(&mut three).unwrap();
            assert_eq!(&three, b"one");
            server.write_all(b"two").unwrap();
            server
        });
        let mut three = [0; 3];
        client.read_exact(&mut three).await.unwrap();
        assert_eq!(&three, b"two");
        let mut server = Stream::from_blocking(blocking.await.unwrap()).unwrap();
        server.write_all(b"abc").await.unwrap();
        client.read_exact(&mut three).await.unwrap();
        assert_eq!(&three, b"abc");
    });
    Ok(())
}

/// More than the peer has receives for, so that the device cannot send it at once.
fn written_bytes_arrive_while_the_task_does_something_else(fixture: &Fixture) -> Outcome {
    if !fixture.is_one_thread() {
        skip!("other threads of the runtime would send the bytes");
    }
    fixture.run(async {
        let (mut client, server) = fixture.streams().await;
        for byte in 0..200 {
            client.write_all(&[byte; 10]).await.unwrap();
        }
        client.flush().await.unwrap();
        let server = server.into_blocking().unwrap();
        server.set_read_timeout(Some(LONG)).unwrap();
        // This thread reads, and no task runs.
        let mut received = [0; 2000];
        (&server).read_exact(&mut received).unwrap();
        assert!(received.chunks(10).zip(0..).all(|(ten, byte)| ten == [byte; 10]));
        drop(client);
    });
    Ok(())
}

fn corked_bytes_go_when_they_are_uncorked(fixture: &Fixture) -> Outcome {
    fixture.run(async {
        let (mut client, mut server) = fixture.streams().await;
        client.set_cork(true).unwrap();
        for _ in 0..10 {
            client.write_all(b"x").await.unwrap();
        }
        client.set_cork(false).unwrap();
        assert_eq!(server.read(&mut [0; 20]).await.unwrap(), 10, "in one frame");
    });
    Ok(())
}

fn a_task_that_always_reads_lets_others_run(fixture: &Fixture) -> Outcome {
    fixture.run(async {
        let (mut client, server) = fixture.streams().await;
        let mut server = server.into_blocking().unwrap();
        let flooding = thread::spawn(move || while server.write_all(&[7; 100_000]).is_ok() {});
        let reading = tokio::spawn(async move {
            // Small reads always find something.
            let mut buffer = [0; 10];
            while client.read_exact(&mut buffer).await.is_ok() {}
        });
        for _ in 0..5 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        reading.abort();
        let _ = reading.await;
        flooding.join().unwrap();
    });
    Ok(())
}

/// It receives what the reader waits for, and leaves a part.
fn a_call_of_another_task_wakes_the_reader(fixture: &Fixture) -> Outcome {
    fixture.run(async {
        let (client, server) = fixture.streams_with(fixture.builder().keepalive(None)).await;
        let (mut reads, writes) = client.into_split();
        let reading = tokio::spawn(async move { reads.read_u8().await.map(|byte| (byte, reads)) });
        tokio::time::sleep(Duration::from_millis(50)).await;
        let mut server = server.into_blocking().unwrap();
        server.write_all(b"ab").unwrap();
        // The runtime has not seen the event yet.
        thread::sleep(Duration::from_millis(50));
        // In a runtime of several threads the other task may be earlier.
        assert_eq!(writes.as_ref().try_read(&mut [0]).unwrap(), 1);
        let (byte, _reads) = tokio::time::timeout(LONG / 4, reading).await.unwrap().unwrap().unwrap();
        assert!(b"ab".contains(&byte));
    });
    Ok(())
}

fn no_interest_is_met_at_once(fixture: &Fixture) -> Outcome {
    fixture.run(async {
        let (client, _server) = fixture.streams().await;
        assert_eq!(client.ready(Readiness::NONE).await.unwrap(), Readiness::NONE);
    });
    Ok(())
}

/// The call that receives the buffer takes the event that tokio would have seen.
fn a_read_waits_again_after_a_buffer_was_received(fixture: &Fixture) -> Outcome {
    fixture.run(async {
        let (mut client, server) = fixture.streams_with(fixture.builder().keepalive(None)).await;
        let mut server = server.into_blocking().unwrap();
        for round in 0..10 {
            let refused = tokio::time::timeout(Duration::from_millis(5), client.read_u8()).await;
            assert!(refused.is_err(), "nothing has come");
            server.write_all(&[round]).unwrap();
            // The runtime does not see the event before the call.
            thread::sleep(Duration::from_millis(5));
            let received = client.recv_buf().await.unwrap();
            assert!(received.chunks().eq([&[round][..]]));
            let mut writer = server;
            let sending = thread::spawn(move || {
                thread::sleep(Duration::from_millis(20));
                writer.write_all(b"x").unwrap();
                writer
            });
            let byte = tokio::time::timeout(LONG / 4, client.read_u8()).await;
            assert_eq!(byte.expect("the read is woken").unwrap(), b'x', "round {round}");
            server = tokio::task::spawn_blocking(|| sending.join().unwrap()).await.unwrap();
        }
    });
    Ok(())
}

/// The task waits before each message. Its last look, and the completions of its answers, make no
/// second wait of one.
fn an_answered_message_wakes_the_task_once(fixture: &Fixture) -> Outcome {
    const ROUNDS: u32 = 200;
    const MOST: u32 = ROUNDS + ROUNDS / 2;
    if fixture.is_tcp() {
        skip!("over TCP a call looks again after the system's last event");
    }
    // A busy machine may delay the completions of the answers until the task waits again.
    let mut tries = Vec::new();
    while tries.len() < 10 {
        let (polls, waits) = waits_of_an_echo(fixture, ROUNDS);
        if polls <= MOST && waits <= MOST.into() {
            return Ok(());
        }
        tries.push((polls, waits));
    }
    panic!("polls and waits for {ROUNDS} messages: {tries:?}");
}

/// How often a task that answers this number of messages is polled, and how often it waits.
fn waits_of_an_echo(fixture: &Fixture, rounds: u32) -> (u32, u64) {
    fixture.run(async {
        let (client, mut server) = fixture.streams_with(fixture.builder().keepalive(None)).await;
        let client = client.into_blocking().unwrap();
        client.set_read_timeout(Some(LONG)).unwrap();
        let peer = thread::spawn(move || {
            for round in 0..rounds {
                thread::sleep(Duration::from_millis(1));
                (&client).write_all(&round.to_le_bytes()).unwrap();
                let mut answer = [0; 4];
                (&client).read_exact(&mut answer).unwrap();
                assert_eq!(u32::from_le_bytes(answer), round);
            }
            client
        });
        let before = server.stats().sleeps;
        let mut polls = 0;
        let mut serving = pin!(async {
            for round in 0..rounds {
                assert_eq!(server.read_u32_le().await.unwrap(), round);
                server.write_u32_le(round).await.unwrap();
            }
        });
        poll_fn(|context| {
            polls += 1;
            serving.as_mut().poll(context)
        })
        .await;
        let waits = server.stats().sleeps - before;
        let _client = tokio::task::spawn_blocking(|| peer.join().unwrap()).await.unwrap();
        (polls, waits)
    })
}

/// Each read finds what has arrived before it, and none waits.
fn corked_bytes_go_while_reads_find_data(fixture: &Fixture) -> Outcome {
    fixture.run(async {
        let (mut client, server) = fixture.streams_with(fixture.builder().keepalive(None)).await;
        let mut server = server.into_blocking().unwrap();
        server.set_nonblocking(true).unwrap();
        client.set_cork(true).unwrap();
        client.write_all(b"corked").await.unwrap();
        let begin = Instant::now();
        let mut buffer = [0; 6];
        while server.read(&mut buffer).is_err() {
            assert!(begin.elapsed() < LONG / 4, "the corked bytes are not sent");
            assert_eq!(server.write(b"x").unwrap(), 1);
            assert_eq!(client.read_u8().await.unwrap(), b'x');
        }
        assert_eq!(&buffer, b"corked");
    });
    Ok(())
}

/// Each takes one message, and makes no call after that.
fn two_readers_of_one_stream_both_get_a_message(fixture: &Fixture) -> Outcome {
    fixture.run(async {
        let (client, server) = fixture.streams_with(fixture.builder().keepalive(None)).await;
        let mut server = server.into_blocking().unwrap();
        let client = Arc::new(client);
        for round in 0..20 {
            let read = |client: Arc<Stream>| async move {
                let mut byte = [0];
                loop {
                    client.readable().await.unwrap();
                    match client.try_read(&mut byte) {
                        Ok(count) => return (count, byte[0]),
                        Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
                    }
                }
            };
            let reading = [tokio::spawn(read(client.clone())), tokio::spawn(read(client.clone()))];
            tokio::time::sleep(Duration::from_millis(5)).await;
            server.write_all(&[round]).unwrap();
            thread::sleep(Duration::from_millis(2));
            // It may find what the others wait for.
            let taken = client.try_read(&mut [0]).is_ok();
            let mut writer = server;
            let sending = thread::spawn(move || {
                for _ in 0..1 + u8::from(taken) {
                    thread::sleep(Duration::from_millis(5));
                    writer.write_all(&[round]).unwrap();
                }
                writer
            });
            for task in reading {
                let read = tokio::time::timeout(LONG / 4, task).await.expect("the reader is woken");
                assert_eq!(read.unwrap(), (1, round));
            }
            server = tokio::task::spawn_blocking(|| sending.join().unwrap()).await.unwrap();
        }
    });
    Ok(())
}

/// The read takes the wake-up that the freed block has caused. A turn is due, so that the read looks
/// for events before it finds the message.
fn a_read_leaves_the_wake_up_by_memory_to_the_writer(fixture: &Fixture) -> Outcome {
    const LEN: usize = 32 << 10;
    const DUE: Duration = Duration::from_secs(1);
    if !fixture.is_one_thread() {
        skip!("another thread of the runtime may see the wake-up before the read");
    }
    fixture.run(async {
        let small = |mib: usize| fixture.builder().pool_max(mib << 20).pool_initial(0).pool_prewarm(0);
        let least = (8..100).step_by(2).find(|mib| small(*mib).build().is_ok()).unwrap();
        let builder = small(least).keepalive(None).trace_interval(Some(DUE));
        let (listener, addr) = fixture.listener().await;
        let config = builder.build().unwrap();
        let (client, server) = tokio::join!(Stream::connect_with(&config, addr), listener.accept());
        let (client, server) = (client.unwrap(), server.unwrap().0.into_blocking().unwrap());
        let (reads, mut writes) = client.into_split();
        let mut held = Vec::new();
        for shift in 0..12 {
            held.extend(std::iter::from_fn(|| reads.as_ref().buffer(LEN >> shift).ok()));
        }
        let writing = tokio::spawn(async move { writes.write_all(&[7; LEN]).await.map(|()| writes) });
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(!writing.is_finished(), "it needs no memory");
        thread::sleep(DUE + DUE / 4);
        (&server).write_all(b"x").unwrap();
        drop(held);
        // Until the byte has come.
        let begin = Instant::now();
        while let Err(error) = reads.as_ref().try_read(&mut [0]) {
            assert_eq!(error.kind(), ErrorKind::WouldBlock);
            assert!(begin.elapsed() < LONG / 4, "the byte does not come");
        }
        let written = tokio::time::timeout(LONG / 4, writing).await.expect("the writer is woken");
        let _writes = written.unwrap().unwrap();
    });
    Ok(())
}
