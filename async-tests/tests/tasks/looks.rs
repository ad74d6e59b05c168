//! Reads that look for arrivals before they wait for an event.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use test_harness::{Outcome, cases, skip};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use trespass::tokio::Stream;

use super::fixture::{Fixture, LONG};

pub(crate) fn add(suite: &mut test_harness::Suite<Fixture>) {
    cases!(suite: tasks_that_answer_each_other_seldom_wait, a_dropped_look_leaves_the_reader_to_be_woken,
        messages_that_come_after_the_looks_are_received);
}

/// Answers or asks this number of times, and returns how often it has waited.
async fn take_part(mut stream: Stream, rounds: u32, asks: bool) -> u64 {
    let before = stream.stats().sleeps;
    for round in 0..rounds {
        if asks {
            stream.write_u32_le(round).await.unwrap();
        }
        assert_eq!(stream.read_u32_le().await.unwrap(), round);
        if !asks {
            stream.write_u32_le(round).await.unwrap();
        }
    }
    stream.stats().sleeps - before
}

/// What one reads next comes while the others run.
fn tasks_that_answer_each_other_seldom_wait(fixture: &Fixture) -> Outcome {
    const PAIRS: u32 = 16;
    const ROUNDS: u32 = 50;
    if fixture.is_tcp() {
        skip!("over TCP a look would be a system call, and none is made");
    }
    if !fixture.is_one_thread() {
        skip!("a second thread of the runtime may find nothing else to do");
    }
    let waits = fixture.run(async {
        let mut tasks = Vec::new();
        for _ in 0..PAIRS {
            let (client, server) = fixture.streams_with(fixture.builder().keepalive(None)).await;
            tasks.push(tokio::spawn(take_part(client, ROUNDS, true)));
            tasks.push(tokio::spawn(take_part(server, ROUNDS, false)));
        }
        let mut waits = 0;
        for task in tasks {
            waits += task.await.unwrap();
        }
        waits
    });
    let reads = u64::from(PAIRS * ROUNDS * 2);
    // Without looks nearly every read waits. With them it depends on the machine how many do.
    assert!(waits < reads / 2, "{waits} waits of {reads} reads");
    Ok(())
}

/// The ends of two connections. The next read of the first one looks before it waits, because the other
/// one has found something since its last read but one.
async fn two_busy_streams(fixture: &Fixture) -> [(Stream, Stream); 2] {
    let mut pairs = [fixture.streams().await, fixture.streams().await];
    for _ in 0..4 {
        for (reader, writer) in &mut pairs {
            writer.write_u8(1).await.unwrap();
            reader.read_u8().await.unwrap();
        }
    }
    let (reader, writer) = &mut pairs[0];
    writer.write_u8(1).await.unwrap();
    reader.read_u8().await.unwrap();
    pairs
}

/// A second task waits for the connection while a read of the first is given up after each number of
/// looks.
fn a_dropped_look_leaves_the_reader_to_be_woken(fixture: &Fixture) -> Outcome {
    fixture.run(async {
        for polls in 0..12 {
            let [(reader, mut writer), _other] = two_busy_streams(fixture).await;
            let (mut read, write) = reader.into_split();
            let waiting = tokio::spawn(async move {
                write.as_ref().readable().await.unwrap();
                write
            });
            tokio::time::sleep(Duration::from_millis(2)).await;
            {
                let mut reading = pin!(read.read_u8());
                for _ in 0..polls {
                    poll_fn(|context| {
                        assert!(reading.as_mut().poll(context).is_pending());
                        Poll::Ready(())
                    })
                    .await;
                }
            }
            writer.write_u8(2).await.unwrap();
            let waited = tokio::time::timeout(LONG / 4, waiting).await;
            waited.unwrap_or_else(|_| panic!("the reader sleeps after {polls} polls of another")).unwrap();
            assert_eq!(read.read_u8().await.unwrap(), 2);
        }
    });
    Ok(())
}

/// The byte comes before, between and after the looks.
fn messages_that_come_after_the_looks_are_received(fixture: &Fixture) -> Outcome {
    fixture.run(async {
        let mut pairs = two_busy_streams(fixture).await;
        for delay in 0..40_u32 {
            let [(reader, writer), (other_reader, other_writer)] = &mut pairs;
            let sending = async {
                for _ in 0..delay {
                    tokio::task::yield_now().await;
                }
                other_writer.write_u8(3).await.unwrap();
                other_reader.read_u8().await.unwrap();
                writer.write_u8(4).await.unwrap();
            };
            let reading = tokio::time::timeout(LONG / 4, reader.read_u8());
            let (read, ()) = tokio::join!(reading, sending);
            assert_eq!(read.expect("the reader is woken").unwrap(), 4, "{delay} yields");
        }
    });
    Ok(())
}
