//! Messages between tasks.

use std::io::ErrorKind;
use std::net::Shutdown;
use std::time::Duration;

use test_harness::{Outcome, bytes, cases};
use trespass::tokio::SeqPacket;

use super::fixture::Fixture;

pub(crate) fn add(suite: &mut test_harness::Suite<Fixture>) {
    cases!(suite: messages_keep_their_boundaries, a_message_of_any_length_arrives, halves_of_two_tasks,
        a_buffer_that_is_too_small, the_end_of_messages, a_drain_waits_for_the_peer);
}

fn messages_keep_their_boundaries(fixture: &Fixture) -> Outcome {
    fixture.run(async {
        let (mut client, mut server) = fixture.packets().await;
        let sending = tokio::spawn(async move {
            for length in 0..500 {
                client.send(&bytes(length as u64, length * 37)).await.unwrap();
            }
            client
        });
        let mut buffer = vec![0; 20_000];
        for length in 0..500 {
            let count = server.recv(&mut buffer).await.unwrap();
            assert!(buffer[..count] == bytes(length as u64, length * 37), "{count} bytes");
        }
        let mut client = sending.await.unwrap();
        server
            .send_vectored(&[std::io::IoSlice::new(b"to"), std::io::IoSlice::new(b"gether")])
            .await
            .unwrap();
        assert_eq!(client.recv(&mut buffer).await.unwrap(), 8);
        assert_eq!(&buffer[..8], b"together");
    });
    Ok(())
}

/// Larger than the buffers, so that it goes in parts.
fn a_message_of_any_length_arrives(fixture: &Fixture) -> Outcome {
    const LENGTH: usize = 30_000_000;
    fixture.run(async {
        let (mut client, mut server) = fixture.packets().await;
        let sending = tokio::spawn(async move {
            client.send(&bytes(5, LENGTH)).await.unwrap();
            client.send(b"next").await.unwrap();
            client
        });
        let mut buffer = vec![0; LENGTH];
        assert_eq!(server.recv(&mut buffer).await.unwrap(), LENGTH);
        assert!(buffer == bytes(5, LENGTH));
        assert_eq!(server.recv(&mut buffer).await.unwrap(), 4);
        sending.await.unwrap();
    });
    Ok(())
}

fn halves_of_two_tasks(fixture: &Fixture) -> Outcome {
    fixture.run(async {
        let (client, server) = fixture.packets().await;
        let (mut server_receives, mut server_sends) = server.into_split();
        let echo = tokio::spawn(async move {
            let mut buffer = vec![0; 10_000];
            while let Ok(count) = server_receives.recv(&mut buffer).await {
                server_sends.send(&buffer[..count]).await.unwrap();
            }
        });
        let (mut receives, mut sends) = client.into_split();
        let sending = tokio::spawn(async move {
            for length in 0..1000 {
                sends.send(&bytes(6, length * 7)).await.unwrap();
            }
            sends
        });
        let mut buffer = vec![0; 10_000];
        for length in 0..1000 {
            assert_eq!(receives.recv(&mut buffer).await.unwrap(), length * 7);
        }
        drop(receives.reunite(sending.await.unwrap()).unwrap());
        echo.await.unwrap();
    });
    Ok(())
}

fn a_buffer_that_is_too_small(fixture: &Fixture) -> Outcome {
    fixture.run(async {
        let (mut client, mut server) = fixture.packets().await;
        client.send(&bytes(7, 3000)).await.unwrap();
        let mut buffer = vec![0; 3000];
        let error = server.recv(&mut buffer[..2999]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains("3000"), "{error}");
        assert_eq!(server.recv(&mut buffer).await.unwrap(), 3000, "it is still there");
    });
    Ok(())
}

fn the_end_of_messages(fixture: &Fixture) -> Outcome {
    fixture.run(async {
        let (mut client, mut server) = fixture.packets().await;
        client.send(b"last").await.unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let mut buffer = [0; 10];
        assert_eq!(server.recv(&mut buffer).await.unwrap(), 4);
        assert_eq!(server.recv(&mut buffer).await.unwrap_err().kind(), ErrorKind::UnexpectedEof);
        server.send(b"still").await.unwrap();
        assert_eq!(client.recv(&mut buffer).await.unwrap(), 5);
    });
    Ok(())
}

/// Sends messages of this length until no further one has room. Returns how many were sent.
async fn send_all_that_fits(client: &mut SeqPacket, length: usize) -> usize {
    let (mut sent, message) = (0, bytes(8, length));
    while let Ok(outcome) = tokio::time::timeout(Duration::from_millis(50), client.send(&message)).await {
        outcome.unwrap();
        sent += 1;
    }
    sent
}

/// Over TCP, the system may have room for the rest sooner or later.
fn a_drain_waits_for_the_peer(fixture: &Fixture) -> Outcome {
    const LENGTH: usize = 10_000;
    let waits_for_reader = !fixture.is_tcp();
    fixture.run(async {
        let (mut client, mut server) = fixture.packets().await;
        client.drain().await.unwrap();
        let (mut count, mut rounds) = (0, 0);
        loop {
            count += send_all_that_fits(&mut client, LENGTH).await;
            let early = tokio::time::timeout(Duration::from_millis(50), client.drain()).await;
            if early.is_err() || !waits_for_reader {
                break;
            }
            // A busy device may have taken messages since.
            rounds += 1;
            assert!(rounds < 20, "nobody receives, and it is ready: {early:?}");
        }
        let receiving = tokio::spawn(async move {
            let mut buffer = vec![0; LENGTH];
            for _ in 0..count {
                assert_eq!(server.recv(&mut buffer).await.unwrap(), LENGTH);
                assert!(buffer == bytes(8, LENGTH));
            }
            server
        });
        client.drain().await.unwrap();
        // Nothing is left that could be lost.
        drop(receiving.await.unwrap());
        client.drain().await.unwrap();
    });
    Ok(())
}
