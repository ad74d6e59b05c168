//! Peers that use plain TCP: clients of a server that has moved to this crate, and servers of a client
//! that has.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use test_harness::{Outcome, cases, skip};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use trespass::tokio::{AnyStream, Listener, Stream};
use trespass::{Builder, Policy, Transport};

use super::fixture::{Fixture, LONG};

pub(crate) fn add(suite: &mut test_harness::Suite<Fixture>) {
    cases!(suite: a_task_serves_both_kinds_of_clients, each_task_accepts_what_it_asks_for,
        a_dropped_accept_loses_no_plain_client, a_task_connects_to_both_kinds_of_servers,
        a_silent_plain_server_is_connected_to_again, a_required_transport_excludes_plain_servers,
        an_accepted_plain_stream_moves_between_tasks_and_threads);
}

/// A builder that may fall back, as a service does that moves.
fn builder(fixture: &Fixture) -> Builder {
    let policy = if fixture.is_tcp() { Policy::TcpOnly } else { Policy::Auto };
    fixture.builder().policy(policy).handshake_deadline(LONG)
}

async fn listener(fixture: &Fixture) -> (Listener, SocketAddr) {
    let config = builder(fixture).plain_tcp(true).build().unwrap();
    let listener = Listener::bind_with(&config, "127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    (listener, addr)
}

fn transport(fixture: &Fixture) -> Transport {
    if fixture.is_tcp() { Transport::Tcp } else { Transport::Rdma }
}

fn a_task_serves_both_kinds_of_clients(fixture: &Fixture) -> Outcome {
    if fixture.is_by_cm() {
        skip!("a listener of rdma_cm has no plain clients");
    }
    fixture.run(async {
        let (listener, addr) = listener(fixture).await;
        let serving = tokio::spawn(async move {
            for _ in 0..2 {
                let (mut stream, peer) = listener.accept_any().await.unwrap();
                assert_eq!(stream.peer_addr().unwrap(), peer);
                assert_eq!(stream.local_addr().unwrap(), addr);
                let mut request = String::new();
                stream.read_to_string(&mut request).await.unwrap();
                let answer = format!("{request} over {}", stream.transport());
                stream.write_all(answer.as_bytes()).await.unwrap();
                stream.shutdown().await.unwrap();
            }
        });
        let mut old = TcpStream::connect(addr).await.unwrap();
        old.write_all(b"GET / HTTP/1.1").await.unwrap();
        old.shutdown().await.unwrap();
        let mut answer = String::new();
        old.read_to_string(&mut answer).await.unwrap();
        assert_eq!(answer, "GET / HTTP/1.1 over plain TCP");

        let config = builder(fixture).build().unwrap();
        let mut new = Stream::connect_with(&config, addr).await.unwrap();
        new.write_all(b"hello").await.unwrap();
        new.shutdown().await.unwrap();
        let mut answer = String::new();
        new.read_to_string(&mut answer).await.unwrap();
        assert_eq!(answer, format!("hello over {}", transport(fixture)));
        serving.await.unwrap();
    });
    Ok(())
}

/// A task that accepts streams sees the event of a plain client, and leaves it to the other.
fn each_task_accepts_what_it_asks_for(fixture: &Fixture) -> Outcome {
    const CLIENTS: usize = 8;
    if fixture.is_by_cm() {
        skip!("a listener of rdma_cm has no plain clients");
    }
    fixture.run(async {
        let (listener, addr) = listener(fixture).await;
        let listener = Arc::new(listener);
        let streams = {
            let listener = listener.clone();
            tokio::spawn(async move {
                loop {
                    let (mut stream, _) = listener.accept().await.unwrap();
                    stream.write_all(b"stream").await.unwrap();
                }
            })
        };
        let any: JoinHandle<usize> = tokio::spawn(async move {
            let mut plain = 0;
            while plain < CLIENTS {
                let (mut stream, _) = listener.accept_any().await.unwrap();
                plain += usize::from(stream.transport() == Transport::PlainTcp);
                stream.write_all(b"either").await.unwrap();
            }
            plain
        });
        // Both kinds are asked for.
        tokio::time::sleep(Duration::from_millis(50)).await;
        let config = builder(fixture).build().unwrap();
        for _ in 0..CLIENTS {
            let mut new = Stream::connect_with(&config, addr).await.unwrap();
            let mut old = TcpStream::connect(addr).await.unwrap();
            old.write_all(b"GET / HTTP/1.1").await.unwrap();
            let mut answers = [[0; 6]; 2];
            old.read_exact(&mut answers[0]).await.unwrap();
            new.read_exact(&mut answers[1]).await.unwrap();
            assert_eq!(&answers[0], b"either");
        }
        assert_eq!(any.await.unwrap(), CLIENTS);
        streams.abort();
    });
    Ok(())
}

fn a_dropped_accept_loses_no_plain_client(fixture: &Fixture) -> Outcome {
    const CLIENTS: usize = 10;
    if fixture.is_by_cm() {
        skip!("a listener of rdma_cm has no plain clients");
    }
    fixture.run(async {
        let (listener, addr) = listener(fixture).await;
        let clients = tokio::spawn(async move {
            for client in 0..CLIENTS {
                let mut old = TcpStream::connect(addr).await.unwrap();
                old.write_all(&[b'A' + client as u8; 4]).await.unwrap();
                let mut answer = [0; 4];
                old.read_exact(&mut answer).await.unwrap();
            }
        });
        let mut served = Vec::new();
        while served.len() < CLIENTS {
            let limit = Duration::from_micros(300);
            let Ok(accepted) = tokio::time::timeout(limit, listener.accept_any()).await else { continue };
            let mut request = [0; 4];
            let (mut stream, _) = accepted.unwrap();
            stream.read_exact(&mut request).await.unwrap();
            stream.write_all(&request).await.unwrap();
            served.push(request[0]);
        }
        assert!(served.iter().copied().eq(b'A'..b'A' + CLIENTS as u8), "{served:?}");
        clients.await.unwrap();
    });
    Ok(())
}

/// What a plain server does with a client of this crate.
#[derive(Clone, Copy)]
enum Plain {
    Answers,
    Closes,
    Echoes,
    Greets,
}

/// A server of plain TCP, which answers `ping` with four bytes.
async fn plain_server(kind: Plain) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    // It ends with the runtime.
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            if let Plain::Greets = kind {
                let _ = stream.write_all(b"220 ").await;
            }
            let mut first = [0; 4];
            if stream.read_exact(&mut first).await.is_err() {
                continue;
            }
            let answer = match (kind, &first) {
                (Plain::Answers | Plain::Closes, b"ping") => &b"pong"[..],
                (Plain::Echoes, b"ping") => b"ping",
                (Plain::Answers, _) => b"400 what?",
                (Plain::Echoes, _) => {
                    let _ = stream.write_all(&first).await;
                    let (mut read, mut write) = stream.split();
                    let _ = tokio::io::copy(&mut read, &mut write).await;
                    continue;
                }
                (Plain::Closes | Plain::Greets, _) => b"",
            };
            let _ = stream.write_all(answer).await;
        }
    });
    addr
}

fn a_task_connects_to_both_kinds_of_servers(fixture: &Fixture) -> Outcome {
    if fixture.is_by_cm() {
        skip!("a plain server is none of rdma_cm");
    }
    fixture.run(async {
        let (listener, addr) = listener(fixture).await;
        let config = builder(fixture).build().unwrap();
        let (client, server) = tokio::join!(AnyStream::connect_with(&config, addr), listener.accept());
        assert_eq!(client.unwrap().transport(), transport(fixture));
        drop(server);
        let servers = [
            (Plain::Answers, b"pong"),
            (Plain::Closes, b"pong"),
            (Plain::Echoes, b"ping"),
            (Plain::Greets, b"220 "),
        ];
        for (kind, answer) in servers {
            let mut stream = AnyStream::connect_with(&config, plain_server(kind).await).await.unwrap();
            assert_eq!(stream.transport(), Transport::PlainTcp);
            stream.write_all(b"ping").await.unwrap();
            let mut found = [0; 4];
            stream.read_exact(&mut found).await.unwrap();
            assert_eq!(&found, answer);
        }
        let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let refused = AnyStream::connect_with(&config, nobody).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused, "{refused}");
    });
    Ok(())
}

fn a_silent_plain_server_is_connected_to_again(fixture: &Fixture) -> Outcome {
    if fixture.is_by_cm() {
        skip!("a plain server is none of rdma_cm");
    }
    fixture.run(async {
        let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = silent.local_addr().unwrap();
        let builder = fixture.builder().policy(Policy::Auto).handshake_deadline(Duration::from_millis(50));
        let config = builder.probe_timeout(Duration::from_millis(20)).build().unwrap();
        let mut stream = AnyStream::connect_with(&config, addr).await.unwrap();
        stream.write_all(b"ping").await.unwrap();
        let (_first, _) = silent.accept().await.unwrap();
        let (mut second, _) = silent.accept().await.unwrap();
        let mut first_bytes = [0; 4];
        second.read_exact(&mut first_bytes).await.unwrap();
        assert_eq!(&first_bytes, b"ping", "nothing precedes the program's bytes");
    });
    Ok(())
}

fn a_required_transport_excludes_plain_servers(fixture: &Fixture) -> Outcome {
    if fixture.is_by_cm() {
        skip!("a plain server is none of rdma_cm");
    }
    fixture.run(async {
        let config = builder(fixture).policy(Policy::RequireRdma).build().unwrap();
        let addr = plain_server(Plain::Closes).await;
        let error = AnyStream::connect_with(&config, addr).await.unwrap_err();
        assert_ne!(error.kind(), ErrorKind::ConnectionRefused, "{error}");
    });
    Ok(())
}

fn an_accepted_plain_stream_moves_between_tasks_and_threads(fixture: &Fixture) -> Outcome {
    use std::io::{Read, Write};

    if fixture.is_by_cm() {
        skip!("a listener of rdma_cm has no plain clients");
    }
    fixture.run(async {
        let (listener, addr) = listener(fixture).await;
        let mut old = TcpStream::connect(addr).await.unwrap();
        old.write_all(b"before").await.unwrap();
        let (stream, _) = listener.accept_any().await.unwrap();
        let answering = tokio::task::spawn_blocking(move || {
            let mut stream = stream.into_blocking().unwrap();
            let mut request = [0; 6];
            stream.read_exact(&mut request).unwrap();
            stream.write_all(&request).unwrap();
            AnyStream::from_blocking(stream).unwrap()
        });
        let mut answer = [0; 6];
        old.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"before");
        let mut stream = answering.await.unwrap();
        drop(old);
        assert_eq!(stream.read(&mut answer).await.unwrap(), 0);
    });
    Ok(())
}
