//! Connects and accepts.

use std::io::ErrorKind;
use std::net::TcpListener;
use std::time::{Duration, Instant};

use test_harness::{Outcome, cases, skip};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use trespass::tokio::{Listener, SeqPacket, Stream};

use super::fixture::{Fixture, LONG};

pub(crate) fn add(suite: &mut test_harness::Suite<Fixture>) {
    cases!(suite: names_and_several_addresses, nobody_listens, a_listener_of_something_else,
        a_silent_server_stops_no_other_task, several_tasks_accept_from_one_listener,
        each_kind_of_client_is_accepted, a_socket_that_listens_already, a_dropped_connect_is_given_up);
}

fn names_and_several_addresses(fixture: &Fixture) -> Outcome {
    if fixture.is_by_cm() {
        skip!("a name of this host also has addresses that no device has");
    }
    fixture.run(async {
        let (listener, addr) = fixture.listener().await;
        let config = fixture.config();
        let accepting = tokio::spawn(async move {
            for _ in 0..2 {
                listener.accept().await.unwrap();
            }
        });
        Stream::connect_with(&config, ("localhost", addr.port())).await.unwrap();
        let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        Stream::connect_with(&config, &[closed, addr][..]).await.unwrap();
        accepting.await.unwrap();
    });
    Ok(())
}

fn nobody_listens(fixture: &Fixture) -> Outcome {
    fixture.run(async {
        let (listener, addr) = fixture.listener().await;
        drop(listener);
        let config = fixture.config();
        let error = Stream::connect_with(&config, addr).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{error}");
        let error = Stream::connect_with(&config, "no such name:1").await.unwrap_err();
        assert!(!error.to_string().is_empty());
    });
    Ok(())
}

fn a_listener_of_something_else(fixture: &Fixture) -> Outcome {
    if fixture.is_by_cm() {
        skip!("nothing but trespass listens there");
    }
    fixture.run(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let other = tokio::spawn(async move {
            let (mut socket, _) = listener.accept().await.unwrap();
            socket.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
            let _ = socket.read(&mut [0; 1000]).await;
        });
        let error = Stream::connect_with(&fixture.config(), addr).await.unwrap_err();
        assert!(error.to_string().contains("does not speak this protocol"), "{error}");
        other.await.unwrap();
    });
    Ok(())
}

/// While one task waits for a server that says nothing, another works, also in a runtime of one thread.
fn a_silent_server_stops_no_other_task(fixture: &Fixture) -> Outcome {
    if fixture.is_by_cm() {
        skip!("a device that does not answer is one of another host");
    }
    fixture.run(async {
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = silent.local_addr().unwrap();
        let deadline = Duration::from_millis(600);
        let config =
            fixture.builder().handshake_deadline(deadline).probe_timeout(deadline / 4).build().unwrap();
        let begin = Instant::now();
        let waiting = tokio::spawn(async move { Stream::connect_with(&config, addr).await.map(drop) });
        let mut turns = 0;
        while !waiting.is_finished() {
            tokio::time::sleep(Duration::from_millis(5)).await;
            turns += 1;
        }
        let error = waiting.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
        assert!(begin.elapsed() >= deadline && turns > 10, "{turns} turns in {:?}", begin.elapsed());
        drop(silent);
    });
    Ok(())
}

fn several_tasks_accept_from_one_listener(fixture: &Fixture) -> Outcome {
    const CLIENTS: usize = 30;
    fixture.run(async {
        let (listener, addr) = fixture.listener().await;
        let listener = std::sync::Arc::new(listener);
        let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
        let accepting: Vec<_> = (0..4)
            .map(|_| {
                let (listener, sender) = (listener.clone(), sender.clone());
                tokio::spawn(async move {
                    loop {
                        let (mut stream, _) = listener.accept().await.unwrap();
                        sender.send(stream.read_u8().await.unwrap()).unwrap();
                    }
                })
            })
            .collect();
        let config = fixture.config();
        for client in 0..CLIENTS {
            let mut stream = Stream::connect_with(&config, addr).await.unwrap();
            stream.write_u8(client as u8).await.unwrap();
        }
        let mut heard = Vec::new();
        while heard.len() < CLIENTS {
            heard.push(receiver.recv().await.unwrap());
        }
        heard.sort_unstable();
        assert!(heard.iter().copied().eq(0..CLIENTS as u8), "{heard:?}");
        accepting.iter().for_each(|task| task.abort());
    });
    Ok(())
}

/// A task that waits for streams sees the event of a client for messages.
fn each_kind_of_client_is_accepted(fixture: &Fixture) -> Outcome {
    fixture.run(async {
        let (listener, addr) = fixture.listener().await;
        let listener = std::sync::Arc::new(listener);
        let accepting = {
            let listener = listener.clone();
            tokio::spawn(async move {
                loop {
                    listener.accept().await.unwrap();
                }
            })
        };
        let config = fixture.config();
        // Both kinds are asked for.
        let none = tokio::time::timeout(Duration::from_millis(50), listener.accept_seq_packet()).await;
        assert!(none.is_err());
        let client = SeqPacket::connect_with(&config, addr).await.unwrap();
        tokio::time::sleep(Duration::from_millis(200)).await;
        let accepted = tokio::time::timeout(LONG / 4, listener.accept_seq_packet()).await;
        drop((accepted.expect("it is still there").unwrap(), client));
        accepting.abort();
    });
    Ok(())
}

fn a_socket_that_listens_already(fixture: &Fixture) -> Outcome {
    if fixture.is_by_cm() {
        skip!("rdma_cm has no such socket");
    }
    fixture.run(async {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = socket.local_addr().unwrap();
        let listener = Listener::listen_with(&fixture.config(), socket).await.unwrap();
        let config = fixture.config();
        let (client, server) = tokio::join!(Stream::connect_with(&config, addr), listener.accept());
        assert_eq!(client.unwrap().local_addr().unwrap(), server.unwrap().1);
    });
    Ok(())
}

fn a_dropped_connect_is_given_up(fixture: &Fixture) -> Outcome {
    fixture.run(async {
        let (listener, addr) = fixture.listener().await;
        let config = fixture.config();
        for micros in (0..3000).step_by(150) {
            let connect = Stream::connect_with(&config, addr);
            // It may be done by then.
            drop(tokio::time::timeout(Duration::from_micros(micros), connect).await);
        }
        let connecting = tokio::spawn(async move {
            let mut client = Stream::connect_with(&config, addr).await.unwrap();
            client.write_u8(7).await.unwrap();
            client
        });
        loop {
            // Those that were given up may have got that far.
            let (mut server, _) = listener.accept().await.unwrap();
            if server.read_u8().await.is_ok_and(|byte| byte == 7) {
                break;
            }
        }
        connecting.await.unwrap();
    });
    Ok(())
}
