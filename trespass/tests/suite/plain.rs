//! Peers that use plain TCP: clients of a server that has moved to this crate, and servers of a client
//! that has.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use test_harness::{Outcome, cases};
use trespass::{AnyStream, Builder, Listener, Policy, Transport};

use super::fixture::{Fixture, LONG, read_exactly};

pub(crate) fn add(suite: &mut test_harness::Suite<Fixture>) {
    cases!(suite: a_server_takes_both_kinds_of_clients, first_bytes_that_come_one_by_one_stay_unread,
        a_program_that_accepts_streams_gets_no_plain_ones, plain_clients_wait_for_the_descriptor,
        plain_clients_beyond_the_backlog_are_reset,
        a_client_connects_to_both_kinds_of_servers, plain_servers_that_say_nothing_are_connected_to,
        where_rdma_is_required_plain_peers_are_refused);
}

fn listener(builder: Builder, fixture: &Fixture) -> (Listener, SocketAddr) {
    let listener = builder.plain_tcp(true).bind(fixture.anywhere()).unwrap();
    listener.set_accept_timeout(Some(LONG)).unwrap();
    let addr = listener.local_addr().unwrap();
    (listener, addr)
}

/// A builder that may fall back, as a service does that moves.
fn builder(fixture: &Fixture) -> Builder {
    fixture.with_default_times().handshake_deadline(LONG)
}

fn plain(addr: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(addr).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream
}

fn a_server_takes_both_kinds_of_clients(fixture: &Fixture) -> Outcome {
    let (listener, addr) = listener(builder(fixture), fixture);
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..2 {
                let (mut stream, _) = listener.accept_any().unwrap();
                stream.set_read_timeout(Some(LONG)).unwrap();
                let mut request = String::new();
                stream.read_to_string(&mut request).unwrap();
                write!(stream, "{request} over {}", stream.transport()).unwrap();
            }
        });
        let mut old = plain(addr);
        old.write_all(b"GET / HTTP/1.1").unwrap();
        old.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = String::new();
        old.read_to_string(&mut answer).unwrap();
        assert_eq!(answer, "GET / HTTP/1.1 over plain TCP");

        let mut new = builder(fixture).connect(addr).unwrap();
        new.write_all(b"hello").unwrap();
        new.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = String::new();
        new.read_to_string(&mut answer).unwrap();
        let transport = if fixture.is_tcp() { "TCP" } else { "RDMA" };
        assert_eq!(answer, format!("hello over {transport}"));
    });
    Ok(())
}

/// The first three bytes may be the beginning of this crate's protocol.
fn first_bytes_that_come_one_by_one_stay_unread(fixture: &Fixture) -> Outcome {
    let (listener, addr) = listener(builder(fixture), fixture);
    thread::scope(|scope| {
        let client = scope.spawn(|| {
            let mut stream = plain(addr);
            stream.set_nodelay(true).unwrap();
            for byte in b"TRSX" {
                stream.write_all(&[*byte]).unwrap();
                thread::sleep(Duration::from_millis(5));
            }
            read_exactly(&mut stream, 3)
        });
        let (stream, peer) = listener.accept_any().unwrap();
        let AnyStream::Plain(mut stream) = stream else { panic!("{stream:?}") };
        assert_eq!(stream.peer_addr().unwrap(), peer);
        assert_eq!(AnyStream::from(stream.try_clone().unwrap()).transport(), Transport::PlainTcp);
        assert!(!stream.nodelay().unwrap());
        assert_eq!(read_exactly(&mut stream, 4), b"TRSX");
        stream.write_all(b"yes").unwrap();
        assert_eq!(client.join().unwrap(), b"yes");
    });
    Ok(())
}

fn a_program_that_accepts_streams_gets_no_plain_ones(fixture: &Fixture) -> Outcome {
    let (listener, addr) = listener(builder(fixture), fixture);
    listener.set_nonblocking(true).unwrap();
    assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
    let mut old = plain(addr);
    old.write_all(b"hello").unwrap();
    let ended = old.read(&mut [0; 8]);
    assert!(matches!(&ended, Ok(0)) || is_reset(&ended), "{ended:?}");
    assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
    Ok(())
}

fn is_reset(result: &io::Result<usize>) -> bool {
    matches!(result, Err(error) if error.kind() == ErrorKind::ConnectionReset)
}

#[cfg(unix)]
fn plain_clients_wait_for_the_descriptor(fixture: &Fixture) -> Outcome {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use std::os::fd::AsFd;

    let (listener, addr) = listener(builder(fixture), fixture);
    listener.set_nonblocking(true).unwrap();
    assert_eq!(listener.accept_any().unwrap_err().kind(), ErrorKind::WouldBlock);
    let mut old = plain(addr);
    old.write_all(b"hello").unwrap();
    let limit = Timespec::try_from(LONG).unwrap();
    let (mut stream, _) = loop {
        let descriptor = listener.as_fd();
        assert!(poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&limit)).unwrap() > 0);
        match listener.accept_any() {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            accepted => break accepted.unwrap(),
        }
    };
    assert_eq!(read_exactly(&mut stream, 5), b"hello");
    Ok(())
}

/// They get no answer in the name of the program.
fn plain_clients_beyond_the_backlog_are_reset(fixture: &Fixture) -> Outcome {
    const CLIENTS: usize = 5;
    let (listener, addr) = listener(builder(fixture).backlog(1), fixture);
    // All connect before any sends, so that the listener takes some that are silent.
    let clients: Vec<_> = (0..CLIENTS).map(|_| plain(addr)).collect();
    let (sender, ended) = mpsc::channel();
    for mut client in clients {
        let sender = sender.clone();
        thread::spawn(move || {
            client.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
            let mut answer = String::new();
            let read = client.read_to_string(&mut answer);
            sender.send((read, answer)).unwrap();
        });
    }
    for _ in 1..CLIENTS {
        let (read, answer) = ended.recv_timeout(LONG).expect("a client waits beyond the backlog");
        assert!(is_reset(&read) && answer.is_empty(), "{read:?} {answer:?}");
    }
    let (mut stream, _) = listener.accept_any().unwrap();
    stream.write_all(b"the program's answer").unwrap();
    assert_eq!(read_exactly(&mut stream, 18), b"GET / HTTP/1.1\r\n\r\n");
    drop(stream);
    let (read, answer) = ended.recv_timeout(LONG).unwrap();
    assert_eq!((read.unwrap(), &answer[..]), (20, "the program's answer"));
    Ok(())
}

/// A server of plain TCP, which `serve` gets each client of.
fn plain_server(serve: impl Fn(TcpStream) -> io::Result<()> + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    // It ends with the process.
    thread::spawn(move || listener.incoming().for_each(|client| drop(client.and_then(&serve))));
    addr
}

/// Reads a line, or so many bytes.
fn request(stream: &mut TcpStream) -> io::Result<[u8; 4]> {
    let mut first = [0; 4];
    stream.read_exact(&mut first)?;
    Ok(first)
}

fn a_client_connects_to_both_kinds_of_servers(fixture: &Fixture) -> Outcome {
    let (listener, addr) = listener(builder(fixture), fixture);
    let stream = thread::scope(|scope| {
        let client = scope.spawn(|| builder(fixture).connect_any(addr).unwrap());
        drop(listener.accept().unwrap());
        client.join().unwrap()
    });
    let transport = if fixture.is_tcp() { Transport::Tcp } else { Transport::Rdma };
    assert_eq!(stream.transport(), transport);

    // Servers that answer in their protocol, close, send all back, or speak first.
    let answers = plain_server(|mut stream| match &request(&mut stream)? {
        b"ping" => stream.write_all(b"pong"),
        _ => stream.write_all(b"400 what?"),
    });
    let closes = plain_server(|mut stream| match &request(&mut stream)? {
        b"ping" => stream.write_all(b"pong"),
        _ => Ok(()),
    });
    let echoes = plain_server(|mut stream| io::copy(&mut stream.try_clone()?, &mut stream).map(drop));
    let greets = plain_server(|mut stream| {
        stream.write_all(b"220 ready").and_then(|()| request(&mut stream).map(drop))
    });
    for (addr, answer) in [(answers, "pong"), (closes, "pong"), (echoes, "ping"), (greets, "220 ")] {
        let mut stream = builder(fixture).connect_any(addr).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        assert_eq!(stream.transport(), Transport::PlainTcp);
        stream.write_all(b"ping").unwrap();
        assert_eq!(read_exactly(&mut stream, 4), answer.as_bytes());
    }
    let nobody = builder(fixture).connect_any(fixture.nobody()).unwrap_err();
    assert_eq!(nobody.kind(), ErrorKind::ConnectionRefused);
    Ok(())
}

fn plain_servers_that_say_nothing_are_connected_to(fixture: &Fixture) -> Outcome {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = silent.local_addr().unwrap();
    let builder = fixture.with_default_times().handshake_deadline(Duration::from_millis(50));
    let builder = builder.probe_timeout(Duration::from_millis(20));
    let mut stream = builder.connect_any(addr).unwrap();
    stream.write_all(b"ping").unwrap();
    let (_first, _) = silent.accept().unwrap();
    let (mut second, _) = silent.accept().unwrap();
    assert_eq!(&request(&mut second).unwrap(), b"ping", "nothing precedes the program's bytes");
    Ok(())
}

fn where_rdma_is_required_plain_peers_are_refused(fixture: &Fixture) -> Outcome {
    let required = || builder(fixture).policy(Policy::RequireRdma);
    let (listener, addr) = listener(required(), fixture);
    listener.set_nonblocking(true).unwrap();
    assert_eq!(listener.accept_any().unwrap_err().kind(), ErrorKind::WouldBlock);
    let mut old = plain(addr);
    old.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let mut answer = String::new();
    old.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");

    let closes = plain_server(|mut stream| request(&mut stream).map(drop));
    assert_ne!(required().connect_any(closes).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    Ok(())
}
