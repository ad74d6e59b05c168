//! Ends: of a direction, of a connection, and of the runtime.

use std::io::ErrorKind;
use std::time::Duration;

use test_harness::{Outcome, bytes, cases};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::fixture::{Fixture, LONG};

pub(crate) fn add(suite: &mut test_harness::Suite<Fixture>) {
    cases!(suite: a_dropped_stream_sends_what_it_took, a_drop_waits_for_nothing,
        unread_bytes_reset, a_reset_wakes_both_tasks, a_stream_outlives_its_runtime);
}

fn a_dropped_stream_sends_what_it_took(fixture: &Fixture) -> Outcome {
    fixture.run(async {
        for length in [1, 1000, 100_000, 900_000] {
            let (mut client, mut server) = fixture.streams().await;
            let reading = tokio::spawn(async move {
                let mut received = Vec::new();
                server.read_to_end(&mut received).await.unwrap();
                received
            });
            client.write_all(&bytes(1, length)).await.unwrap();
            drop(client);
            assert!(reading.await.unwrap() == bytes(1, length));
        }
    });
    Ok(())
}

/// The peer does not read, so that the bytes cannot go.
fn a_drop_waits_for_nothing(fixture: &Fixture) -> Outcome {
    fixture.run(async {
        let (mut client, mut server) = fixture.streams().await;
        let piece = bytes(2, 50_000);
        let mut written = 0;
        let pause = Duration::from_millis(200);
        while let Ok(count) = tokio::time::timeout(pause, client.write(&piece[written % 50_000..])).await {
            written += count.unwrap();
        }
        let begin = std::time::Instant::now();
        drop(client);
        assert!(begin.elapsed() < Duration::from_secs(5), "it lingers in the drop: {:?}", begin.elapsed());
        let mut received = Vec::new();
        server.read_to_end(&mut received).await.unwrap();
        assert_eq!(received.len(), written);
    });
    Ok(())
}

fn unread_bytes_reset(fixture: &Fixture) -> Outcome {
    fixture.run(async {
        let (mut client, server) = fixture.streams().await;
        client.write_all(b"never read").await.unwrap();
        server.readable().await.unwrap();
        drop(server);
        let error = client.read_u8().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
    });
    Ok(())
}

fn a_reset_wakes_both_tasks(fixture: &Fixture) -> Outcome {
    fixture.run(async {
        let (client, server) = fixture.streams().await;
        let (mut reads, mut writes) = client.into_split();
        let reading = tokio::spawn(async move { reads.read_u8().await.unwrap_err().kind() });
        let writing = tokio::spawn(async move {
            loop {
                if let Err(error) = writes.write_all(&[7; 10_000]).await {
                    break error.kind();
                }
            }
        });
        tokio::time::sleep(Duration::from_millis(100)).await;
        server.set_linger(Some(Duration::ZERO)).unwrap();
        drop(server);
        let both = async { (reading.await.unwrap(), writing.await.unwrap()) };
        let (reading, writing) = tokio::time::timeout(LONG, both).await.expect("both are woken");
        assert_eq!(reading, ErrorKind::ConnectionReset);
        assert!(matches!(writing, ErrorKind::ConnectionReset | ErrorKind::BrokenPipe), "{writing:?}");
    });
    Ok(())
}

/// As a socket of tokio, it fails without the runtime, and can be dropped.
fn a_stream_outlives_its_runtime(fixture: &Fixture) -> Outcome {
    let (client, mut server) = fixture.run(async {
        let (client, server) = fixture.streams().await;
        (client, server.into_blocking().unwrap())
    });
    assert_eq!(client.try_read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
    let mut client = client.into_blocking().unwrap();
    std::io::Write::write_all(&mut client, b"x").unwrap();
    std::io::Read::read_exact(&mut server, &mut [0]).unwrap();
    Ok(())
}
