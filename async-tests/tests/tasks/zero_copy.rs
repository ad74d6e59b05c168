//! Blocks that are lent, and received in place.

use std::time::Duration;

use test_harness::{Outcome, bytes, cases};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use trespass::Block;

use super::fixture::Fixture;

pub(crate) fn add(suite: &mut test_harness::Suite<Fixture>) {
    cases!(suite: lent_blocks_come_back, several_blocks_are_one_message, received_blocks_are_kept,
        drained_bytes_are_the_peers, a_drain_is_told_by_any_call);
}

fn filled(mut block: Block, seed: u64, len: usize) -> Block {
    block.bytes_mut()[..len].copy_from_slice(&bytes(seed, len));
    block
}

fn lent_blocks_come_back(fixture: &Fixture) -> Outcome {
    const LEN: usize = 30_000;
    fixture.run(async {
        let (mut client, mut server) = fixture.streams().await;
        let reading = tokio::spawn(async move {
            let mut received = vec![0; 50 * LEN];
            server.read_exact(&mut received).await.unwrap();
            received
        });
        let mut lent = Vec::new();
        let mut returned = Vec::new();
        for seed in 0..50 {
            let block = filled(client.buffer(LEN).unwrap(), seed, LEN);
            lent.push(client.send_buf(block, LEN).await.unwrap());
            if seed % 8 == 7 {
                returned.push(client.completion().await.unwrap().expect("some are lent"));
            }
        }
        while let Some(completion) = client.completion().await.unwrap() {
            assert!(completion.sent && completion.left == 0);
            returned.push(completion);
        }
        let mut tickets: Vec<_> = returned.iter().map(|completion| completion.ticket).collect();
        tickets.sort_unstable();
        assert_eq!(tickets, lent, "each once");
        let received = reading.await.unwrap();
        assert!((0..50).all(|seed| received[seed * LEN..][..LEN] == bytes(seed as u64, LEN)));
    });
    Ok(())
}

fn several_blocks_are_one_message(fixture: &Fixture) -> Outcome {
    fixture.run(async {
        let (mut client, mut server) = fixture.packets().await;
        let mut blocks: Vec<_> =
            (0..3).map(|seed| (filled(client.buffer(1000).unwrap(), seed, 1000), 1000)).collect();
        client.send_blocks(&mut blocks).await.unwrap();
        assert!(blocks.is_empty());
        let received = server.recv_buf().await.unwrap();
        let all: Vec<u8> = (0..3).flat_map(|seed| bytes(seed, 1000)).collect();
        assert_eq!(received.chunks().flatten().copied().collect::<Vec<u8>>(), all);
        while client.completion().await.unwrap().is_some() {}
    });
    Ok(())
}

fn received_blocks_are_kept(fixture: &Fixture) -> Outcome {
    fixture.run(async {
        let (mut client, mut server) = fixture.streams().await;
        client.write_all(&bytes(8, 10_000)).await.unwrap();
        client.shutdown().await.unwrap();
        let (mut kept, mut received) = (Vec::new(), Vec::<u8>::new());
        loop {
            let part = server.recv_buf().await.unwrap();
            if part.is_empty() {
                break;
            }
            received.extend(part.chunks().flatten());
            kept.push(part);
        }
        assert_eq!(received, bytes(8, 10_000));
    });
    Ok(())
}

fn drained_bytes_are_the_peers(fixture: &Fixture) -> Outcome {
    fixture.run(async {
        let (mut client, mut server) = fixture.streams().await;
        let reading = tokio::spawn(async move {
            let mut received = Vec::new();
            let outcome = server.read_to_end(&mut received).await;
            (received, outcome)
        });
        client.write_all(&bytes(9, 3_000_000)).await.unwrap();
        client.drain().await.unwrap();
        client.set_linger(Some(Duration::ZERO)).unwrap();
        if fixture.is_tcp() {
            // A reset discards what the peer's kernel holds.
            client.shutdown().await.unwrap();
            client.set_linger(None).unwrap();
        }
        drop(client);
        let (received, _) = reading.await.unwrap();
        assert!(received == bytes(9, 3_000_000), "{} bytes", received.len());
    });
    Ok(())
}

/// Another call finds that all is delivered, and takes the event of it.
fn a_drain_is_told_by_any_call(fixture: &Fixture) -> Outcome {
    const LEN: usize = 1_000_000;
    fixture.run(async {
        let (client, server) = fixture.streams_with(fixture.builder().keepalive(None)).await;
        let (reads, mut writes) = client.into_split();
        writes.write_all(&bytes(10, LEN)).await.unwrap();
        let draining = tokio::spawn(async move { writes.as_ref().drain().await });
        tokio::time::sleep(Duration::from_millis(50)).await;
        let mut server = server.into_blocking().unwrap();
        let reading = std::thread::spawn(move || {
            let mut received = vec![0; LEN];
            std::io::Read::read_exact(&mut server, &mut received).unwrap();
            server
        });
        for _ in 0..10 {
            // This blocks the thread: in a runtime of one thread no task runs.
            std::thread::sleep(Duration::from_millis(30));
            assert!(reads.as_ref().take_error().unwrap().is_none());
        }
        tokio::time::timeout(Duration::from_secs(20), draining).await.expect("it is told").unwrap().unwrap();
        let _server = reading.join().unwrap();
    });
    Ok(())
}
