//! Futures that are dropped before they are ready, at each of their waits, with data under way.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use test_harness::{Outcome, bytes, cases};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use trespass::tokio::{SeqPacket, Stream};

use super::fixture::Fixture;

pub(crate) fn add(suite: &mut test_harness::Suite<Fixture>) {
    cases!(suite: dropped_reads_take_nothing, dropped_writes_take_nothing_unreported,
        dropped_messages_are_sent_once_or_not, dropped_receives_lose_no_message,
        dropped_accepts_lose_nobody, dropped_connects_leave_nothing, dropped_sends_of_blocks_leak_none,
        dropped_waits_for_completions_lose_none, aborted_tasks_leave_nothing);
}

/// Polls a future until it has waited `waits` times, and then drops it. Returns its result if it is
/// ready before.
async fn give_up_after<T>(waits: usize, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    let mut left = waits;
    poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(done) => Poll::Ready(Some(done)),
        Poll::Pending if left == 0 => Poll::Ready(None),
        Poll::Pending => {
            left -= 1;
            Poll::Pending
        }
    })
    .await
}

const MUCH: usize = 400_000;

fn dropped_reads_take_nothing(fixture: &Fixture) -> Outcome {
    fixture.run(async {
        let (mut client, mut server) = fixture.streams().await;
        let sending = tokio::spawn(async move {
            for piece in bytes(1, MUCH).chunks(777) {
                client.write_all(piece).await.unwrap();
                tokio::task::yield_now().await;
            }
            client.shutdown().await.unwrap();
            client
        });
        let (mut received, mut dropped, mut buffer) = (Vec::new(), 0, [0; 500]);
        loop {
            match give_up_after(dropped % 3, server.read(&mut buffer)).await {
                None => {
                    dropped += 1;
                    tokio::task::yield_now().await;
                }
                Some(count) => match count.unwrap() {
                    0 => break,
                    count => received.extend_from_slice(&buffer[..count]),
                },
            }
        }
        assert!(received == bytes(1, MUCH), "{} bytes", received.len());
        assert!(dropped > 0);
        sending.await.unwrap();
    });
    Ok(())
}

fn dropped_writes_take_nothing_unreported(fixture: &Fixture) -> Outcome {
    fixture.run(async {
        let small = fixture.builder().sndbuf(128 << 10);
        let (mut client, mut server) = fixture.streams_with(small).await;
        let reading = tokio::spawn(async move {
            let (mut received, mut buffer) = (Vec::new(), [0; 3000]);
            loop {
                match server.read(&mut buffer).await.unwrap() {
                    0 => return received,
                    count => received.extend_from_slice(&buffer[..count]),
                }
                if received.len() % 100 == 0 {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            }
        });
        let data = bytes(2, 50 * MUCH);
        let (mut done, mut dropped) = (0, 0);
        while done < data.len() {
            match give_up_after(dropped % 3, client.write(&data[done..])).await {
                None => {
                    dropped += 1;
                    tokio::task::yield_now().await;
                }
                Some(count) => done += count.unwrap(),
            }
        }
        client.shutdown().await.unwrap();
        assert!(reading.await.unwrap() == data);
        assert!(dropped > 0);
    });
    Ok(())
}

fn dropped_messages_are_sent_once_or_not(fixture: &Fixture) -> Outcome {
    fixture.run(async {
        let (mut client, mut server) = fixture.packets().await;
        let receiving = tokio::spawn(async move {
            let (mut numbers, mut buffer) = (Vec::new(), vec![0; 100_000]);
            while let Ok(count) = server.recv(&mut buffer).await {
                let number = u32::from_le_bytes(buffer[..4].try_into().unwrap());
                assert!(buffer[4..count] == bytes(number.into(), count - 4));
                numbers.push(number);
            }
            numbers
        });
        let (mut sent, mut dropped) = (Vec::new(), 0);
        for number in 0..600_u32 {
            let mut message = number.to_le_bytes().to_vec();
            message.extend(bytes(number.into(), 60_000));
            match give_up_after(dropped % 2, client.send(&message)).await {
                Some(done) => {
                    done.unwrap();
                    sent.push(number);
                }
                None => dropped += 1,
            }
            assert_eq!(client.sending(), None, "the next message begins");
        }
        client.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(receiving.await.unwrap(), sent, "{dropped} were dropped");
    });
    Ok(())
}

fn dropped_receives_lose_no_message(fixture: &Fixture) -> Outcome {
    fixture.run(async {
        let (mut client, mut server) = fixture.packets().await;
        let sending = tokio::spawn(async move {
            for number in 0..500 {
                client.send(&bytes(number, 3000)).await.unwrap();
                tokio::task::yield_now().await;
            }
            client
        });
        let (mut number, mut dropped, mut buffer) = (0, 0, vec![0; 3000]);
        while number < 500 {
            match give_up_after(dropped % 3, server.recv(&mut buffer)).await {
                Some(count) => {
                    assert_eq!(count.unwrap(), 3000);
                    assert!(buffer == bytes(number, 3000), "message {number}");
                    number += 1;
                }
                None => {
                    dropped += 1;
                    tokio::task::yield_now().await;
                }
            }
        }
        assert!(dropped > 0);
        sending.await.unwrap();
    });
    Ok(())
}

fn dropped_accepts_lose_nobody(fixture: &Fixture) -> Outcome {
    const CLIENTS: u8 = 20;
    fixture.run(async {
        let (listener, addr) = fixture.listener().await;
        let config = fixture.config();
        let connecting = tokio::spawn(async move {
            let mut all = Vec::new();
            for client in 0..CLIENTS {
                let mut stream = Stream::connect_with(&config, addr).await.unwrap();
                stream.write_u8(client).await.unwrap();
                all.push(stream);
            }
            all
        });
        let (mut heard, mut dropped) = (Vec::new(), 0);
        while heard.len() < usize::from(CLIENTS) {
            match give_up_after(dropped % 3, listener.accept()).await {
                Some(accepted) => heard.push(accepted.unwrap().0.read_u8().await.unwrap()),
                None => {
                    dropped += 1;
                    tokio::time::sleep(Duration::from_micros(100)).await;
                }
            }
        }
        heard.sort_unstable();
        assert!(heard.iter().copied().eq(0..CLIENTS), "{heard:?}");
        assert!(dropped > 0);
        connecting.await.unwrap();
    });
    Ok(())
}

/// The number of open descriptors of this process.
/// Without those of the pool's memory, which keeps what its high-water mark wants.
fn descriptors() -> usize {
    let targets = std::fs::read_dir("/proc/self/fd").unwrap().filter_map(|entry| {
        // A descriptor that closes during the count is not counted.
        std::fs::read_link(entry.ok()?.path()).ok()
    });
    targets.filter(|target| !target.to_string_lossy().contains("memfd:sideway")).count()
}

/// Waits until the process has no more descriptors than before.
async fn settles_at(before: usize) {
    let mut after = descriptors();
    for _ in 0..400 {
        if after <= before {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        after = descriptors();
    }
    panic!("{before} descriptors before, and {after} are left");
}

fn dropped_connects_leave_nothing(fixture: &Fixture) -> Outcome {
    fixture.run(async {
        let (listener, addr) = fixture.listener().await;
        let config = fixture.config();
        // The process makes its permanent objects.
        let (first, accepted) = tokio::join!(Stream::connect_with(&config, addr), listener.accept());
        drop((first.unwrap(), accepted.unwrap()));
        tokio::time::sleep(Duration::from_millis(300)).await;
        let before = descriptors();
        let mut done = 0;
        for waits in 0..40 {
            done += usize::from(give_up_after(waits, Stream::connect_with(&config, addr)).await.is_some());
        }
        assert!(done > 0 && done < 40, "{done} of 40 connects came to their end");
        while tokio::time::timeout(Duration::from_millis(300), listener.accept()).await.is_ok() {}
        settles_at(before).await;
    });
    Ok(())
}

/// A block that was not sent went back to its pool.
fn dropped_sends_of_blocks_leak_none(fixture: &Fixture) -> Outcome {
    const LEN: usize = 50_000;
    fixture.run(async {
        let (mut client, mut server) = fixture.streams().await;
        let free = client.pool().stats().in_use;
        let (mut sent, mut dropped) = (0, 0);
        for _ in 0..300 {
            let Ok(block) = client.buffer(LEN) else { break };
            match give_up_after(0, client.send_buf(block, LEN)).await {
                Some(ticket) => {
                    ticket.unwrap();
                    sent += 1;
                }
                None => dropped += 1,
            }
        }
        assert!(sent > 0);
        let reading = tokio::spawn(async move {
            let mut received = vec![0; sent * LEN];
            server.read_exact(&mut received).await.unwrap();
            server
        });
        let mut returned = 0;
        while client.completion().await.unwrap().is_some() {
            returned += 1;
        }
        assert_eq!(returned, sent, "{dropped} were dropped");
        reading.await.unwrap();
        assert!(client.pool().stats().in_use <= free + LEN, "blocks are lost");
    });
    Ok(())
}

fn dropped_waits_for_completions_lose_none(fixture: &Fixture) -> Outcome {
    const LEN: usize = 200_000;
    fixture.run(async {
        let (mut client, mut server) = fixture.streams().await;
        let reading = tokio::spawn(async move {
            let mut received = vec![0; 20 * LEN];
            for part in received.chunks_mut(10_000) {
                server.read_exact(part).await.unwrap();
                tokio::task::yield_now().await;
            }
        });
        let (mut returned, mut dropped) = (Vec::new(), 0);
        for _ in 0..20 {
            let block = client.buffer(LEN).unwrap();
            client.send_buf(block, LEN).await.unwrap();
            if let Some(completion) = give_up_after(dropped % 2, client.completion()).await {
                returned.push(completion.unwrap().expect("one is lent").ticket);
            } else {
                dropped += 1;
            }
        }
        while let Some(completion) = client.completion().await.unwrap() {
            returned.push(completion.ticket);
        }
        returned.sort_unstable();
        returned.dedup();
        assert_eq!(returned.len(), 20, "{dropped} waits were dropped");
        reading.await.unwrap();
    });
    Ok(())
}

fn aborted_tasks_leave_nothing(fixture: &Fixture) -> Outcome {
    fixture.run(async {
        let (one, other) = fixture.packets().await;
        drop((one, other));
        tokio::time::sleep(Duration::from_millis(300)).await;
        let before = descriptors();
        for micros in [0, 100, 1000, 5000, 20_000] {
            let (client, server) = fixture.packets().await;
            let talk = |mut packets: SeqPacket| async move {
                let mut buffer = vec![0; 100_000];
                let message = bytes(3, 100_000);
                loop {
                    if packets.send(&message).await.is_err() || packets.recv(&mut buffer).await.is_err() {
                        break;
                    }
                }
            };
            let tasks = [tokio::spawn(talk(client)), tokio::spawn(talk(server))];
            tokio::time::sleep(Duration::from_micros(micros)).await;
            for task in tasks {
                task.abort();
                let _ = task.await;
            }
        }
        settles_at(before).await;
    });
    Ok(())
}
