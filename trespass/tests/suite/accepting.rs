//! The backlog, which has connections until the program takes them. `parity::connecting` has what the
//! system's does, too.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use test_harness::{Outcome, cases, skip};
use trespass::{Builder, ConnectError, Event, HandshakeError, Kind, Listener, RejectReason, Stream, Worker};

use super::fixture::{Fixture, LONG, ask_for_streams, greet};
use super::idle::sees_it_asleep;

pub(crate) fn add(suite: &mut test_harness::Suite<Fixture>) {
    cases!(suite: a_full_backlog_makes_clients_wait, a_client_that_loses_its_place_connects_again,
        silent_clients_take_no_place,
        i18_the_service_thread_sleeps_while_clients_wait, i18_the_service_thread_sleeps_while_a_worker_does,
        both_kinds_come_before_the_first_accept, the_first_accept_decides_on_the_kind, the_first_accept_makes_room_for_its_kind,
        an_owned_iterator_accepts, a_client_beyond_the_backlog_is_told_that_the_listener_is_busy,
        a_workers_client_beyond_the_backlog_is_told_so, clients_beyond_the_backlog_get_in_when_the_program_accepts);
}

fn a_full_backlog_makes_clients_wait(fixture: &Fixture) -> Outcome {
    const BACKLOG: u32 = 2;
    let listener = fixture.builder().backlog(BACKLOG).bind(fixture.anywhere()).unwrap();
    let addr = listener.local_addr().unwrap();
    let first: Vec<Stream> = (0..BACKLOG).map(|_| fixture.builder().connect(addr).unwrap()).collect();
    let short = Duration::from_millis(200);
    let impatient = fixture.builder().probe_timeout(short / 2).handshake_deadline(short);
    assert_eq!(impatient.connect(addr).unwrap_err().kind(), ErrorKind::TimedOut);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| fixture.builder().connect(addr).unwrap());
        thread::sleep(short / 4);
        assert!(!waiting.is_finished(), "it has found a place beyond the backlog");
        for mut client in first {
            greet(&mut client, &mut listener.accept().unwrap().0);
        }
        greet(&mut waiting.join().unwrap(), &mut listener.accept().unwrap().0);
    });
    Ok(())
}

/// A client that sends its HELLO and does not go on loses its place to one that waits. It is told so,
/// and connects again.
fn a_client_that_loses_its_place_connects_again(fixture: &Fixture) -> Outcome {
    /// A client that finds a free place is served sooner, and one that waits for a place later.
    const SOON: Duration = Duration::from_millis(200);
    if fixture.is_by_cm() {
        skip!("it needs events before its request; `rc::tests::managed` has a client that loses its place");
    }
    let listener = fixture.builder().backlog(1).bind(fixture.anywhere()).unwrap();
    let addr = listener.local_addr().unwrap();
    for _ in 0..50 {
        // The first call sends its HELLO if the system has connected it. Another one would go on.
        let mut slow = fixture.builder().start_connect(addr).unwrap();
        let first = slow.poll();
        thread::sleep(Duration::from_millis(50));
        let began = Instant::now();
        let waits = first.is_pending();
        if waits {
            let mut prompt = fixture.builder().connect(addr).unwrap();
            greet(&mut prompt, &mut listener.accept().unwrap().0);
        }
        let has_lost = waits && began.elapsed() > SOON;
        let mut slow = match first {
            Poll::Ready(stream) => stream.unwrap(),
            Poll::Pending => slow.wait().unwrap(),
        };
        greet(&mut slow, &mut listener.accept().unwrap().0);
        if has_lost {
            return Ok(());
        }
    }
    panic!("no client has had a place and lost it");
}

/// As many clients as the backlog has places send nothing. They take none, and lose none.
fn silent_clients_take_no_place(fixture: &Fixture) -> Outcome {
    if fixture.is_by_cm() {
        skip!("a request by rdma_cm is a client's first message");
    }
    const BACKLOG: u32 = 20;
    let listener = fixture.builder().backlog(BACKLOG).bind(fixture.anywhere()).unwrap();
    let addr = listener.local_addr().unwrap();
    let silent: Vec<_> = (0..BACKLOG).map(|_| TcpStream::connect(addr).unwrap()).collect();
    for _ in 0..3 {
        let mut client = fixture.builder().connect(addr).unwrap();
        greet(&mut client, &mut listener.accept().unwrap().0);
    }
    for client in &silent {
        client.set_nonblocking(true).unwrap();
        assert_eq!(client.peek(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
    }
    Ok(())
}

/// The thread id of the service thread.
pub(crate) fn service_thread() -> u32 {
    let threads = std::fs::read_dir("/proc/self/task").unwrap().map(|entry| entry.unwrap());
    let named = threads.filter(|thread| {
        std::fs::read_to_string(thread.path().join("comm")).is_ok_and(|name| name.trim() == "trespass")
    });
    let numbers: Vec<u32> =
        named.map(|thread| thread.file_name().to_str().unwrap().parse().unwrap()).collect();
    assert_eq!(numbers.len(), 1, "one for each process");
    numbers[0]
}

fn i18_the_service_thread_sleeps_while_clients_wait(fixture: &Fixture) -> Outcome {
    let listener = fixture.builder().backlog(1).bind(fixture.anywhere()).unwrap();
    let addr = listener.local_addr().unwrap();
    sees_it_asleep(service_thread());
    if fixture.is_by_cm() {
        return Ok(());
    }
    let silent = TcpStream::connect(addr).unwrap();
    let mut first = fixture.builder().connect(addr).unwrap();
    // The backlog is full, and one more client waits.
    let waiting = TcpStream::connect(addr).unwrap();
    sees_it_asleep(service_thread());
    greet(&mut first, &mut listener.accept().unwrap().0);
    sees_it_asleep(service_thread());
    drop([silent, waiting]);
    sees_it_asleep(service_thread());
    Ok(())
}

/// The worker has closed a connection, and sleeps in a poll.
fn i18_the_service_thread_sleeps_while_a_worker_does(fixture: &Fixture) -> Outcome {
    let (listener, addr) = fixture.listener();
    let mut worker = Worker::new(&fixture.builder().build().unwrap()).unwrap();
    let (key, mut events) = (worker.connect(addr, Kind::Stream).unwrap(), Vec::new());
    while !events.iter().any(|event| matches!(event, Event::Connected { .. })) {
        worker.poll(&mut events, Some(LONG)).unwrap();
    }
    let _server = listener.accept().unwrap();
    worker.write(key, &[1; 1000]).unwrap();
    worker.close(key);
    let waker = worker.waker();
    thread::scope(|scope| {
        let polling = scope.spawn(|| worker.poll(&mut events, Some(LONG)).unwrap());
        sees_it_asleep(service_thread());
        waker.wake();
        polling.join().unwrap();
    });
    Ok(())
}

fn both_kinds_come_before_the_first_accept(fixture: &Fixture) -> Outcome {
    let (listener, addr) = fixture.listener();
    let mut packets = fixture.builder().connect_seq_packet(addr).unwrap();
    packets.send(b"a message").unwrap();
    let (mut server, _) = listener.accept_seq_packet().unwrap();
    let mut message = [0; 16];
    assert_eq!(server.recv(&mut message).unwrap(), 9);
    // From now on the program has asked for both.
    ask_for_streams(&listener);
    let mut stream = fixture.builder().connect(addr).unwrap();
    let mut other_packets = fixture.builder().connect_seq_packet(addr).unwrap();
    greet(&mut stream, &mut listener.accept().unwrap().0);
    other_packets.send(b"another").unwrap();
    assert_eq!(listener.accept_seq_packet().unwrap().0.recv(&mut message).unwrap(), 7);
    Ok(())
}

fn the_first_accept_decides_on_the_kind(fixture: &Fixture) -> Outcome {
    let (listener, addr) = fixture.listener();
    let mut packets = fixture.builder().connect_seq_packet(addr).unwrap();
    packets.set_read_timeout(Some(LONG)).unwrap();
    let mut stream = fixture.builder().connect(addr).unwrap();
    greet(&mut stream, &mut listener.accept().unwrap().0);
    assert_eq!(packets.recv(&mut [0; 8]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    // Those who come now are told.
    let error = fixture.builder().connect_seq_packet(addr).unwrap_err();
    assert!(error.to_string().contains("use the same type on both sides"), "{error}");
    Ok(())
}

/// The only place is taken by a client of the other kind.
fn the_first_accept_makes_room_for_its_kind(fixture: &Fixture) -> Outcome {
    let listener = fixture.builder().backlog(1).bind(fixture.anywhere()).unwrap();
    let addr = listener.local_addr().unwrap();
    let mut stream = fixture.builder().connect(addr).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| fixture.builder().connect_seq_packet(addr).unwrap());
        thread::sleep(Duration::from_millis(50));
        let (mut server, _) = listener.accept_seq_packet().unwrap();
        server.send(b"welcome").unwrap();
        assert_eq!(waiting.join().unwrap().recv(&mut [0; 16]).unwrap(), 7);
    });
    assert_eq!(stream.read(&mut [0; 8]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    Ok(())
}

fn an_owned_iterator_accepts(fixture: &Fixture) -> Outcome {
    let (listener, addr) = fixture.listener();
    let serving = thread::spawn(move || {
        let mut incoming = listener.into_incoming();
        let mut server = incoming.next().unwrap().unwrap();
        let mut byte = [0];
        server.read_exact(&mut byte).unwrap();
        server.write_all(&byte).unwrap();
    });
    let mut client = fixture.builder().connect(addr).unwrap();
    client.write_all(b"x").unwrap();
    let began = Instant::now();
    let mut byte = [0];
    client.read_exact(&mut byte).unwrap();
    assert!(began.elapsed() < LONG);
    serving.join().unwrap();
    Ok(())
}

/// A listener with a full backlog, and the connections in it.
pub(crate) fn full_listener(fixture: &Fixture, backlog: u32) -> (Listener, SocketAddr, Vec<Stream>) {
    let listener = fixture.builder().backlog(backlog).bind(fixture.anywhere()).unwrap();
    let addr = listener.local_addr().unwrap();
    let first = (0..backlog).map(|_| fixture.builder().connect(addr).unwrap()).collect();
    (listener, addr, first)
}

/// The text of a busy listener, if the error is its answer.
fn busy_text(error: &io::Error) -> Option<&str> {
    match error.get_ref()?.downcast_ref()? {
        ConnectError::Handshake {
            source: HandshakeError::Rejected { reason: RejectReason::Busy, text, .. },
            ..
        } => Some(text),
        _ => None,
    }
}

/// Makes a connect fail at its deadline, with a later one if the listener had no time to answer.
fn fails_as_busy(fixture: &Fixture, connect: impl Fn(Builder) -> io::Error) {
    let mut deadline = Duration::from_secs(2);
    loop {
        let began = Instant::now();
        let builder = fixture.builder().probe_timeout(deadline / 4).handshake_deadline(deadline);
        let error = connect(builder);
        assert!(began.elapsed() >= deadline, "it does not wait: {error}");
        if let Some(text) = busy_text(&error) {
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
            assert!(text.contains("2 connections wait") && text.contains("`Builder::backlog`"), "{text}");
            return;
        }
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
        assert!(deadline < LONG, "nobody says that the listener is busy: {error}");
        deadline *= 2;
    }
}

fn a_client_beyond_the_backlog_is_told_that_the_listener_is_busy(fixture: &Fixture) -> Outcome {
    let (_listener, addr, _first) = full_listener(fixture, 2);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| fails_as_busy(fixture, |builder| builder.connect(addr).unwrap_err()));
        }
    });
    Ok(())
}

fn a_workers_client_beyond_the_backlog_is_told_so(fixture: &Fixture) -> Outcome {
    let (_listener, addr, _first) = full_listener(fixture, 2);
    fails_as_busy(fixture, |builder| {
        let mut worker = Worker::new(&builder.build().unwrap()).unwrap();
        let connecting = worker.connect(addr, Kind::Stream).unwrap();
        let mut events = Vec::new();
        worker.poll(&mut events, Some(LONG)).unwrap();
        match events.pop() {
            Some(Event::Failed { key, error, .. }) if key == connecting => error,
            other => panic!("{other:?}"),
        }
    });
    Ok(())
}

fn clients_beyond_the_backlog_get_in_when_the_program_accepts(fixture: &Fixture) -> Outcome {
    // More than twice the backlog, which the system's queue could have in addition.
    let more = 4;
    let (listener, addr, first) = full_listener(fixture, 2);
    thread::scope(|scope| {
        let waiting: Vec<_> = (0..more)
            .map(|_| scope.spawn(|| fixture.builder().handshake_deadline(LONG).connect(addr).unwrap()))
            .collect();
        // Long enough for answers, and for attempts that follow them.
        thread::sleep(Duration::from_millis(2500));
        assert!(waiting.iter().all(|client| !client.is_finished()), "one has found a place");
        let mut servers: Vec<Stream> = (0..2 + more).map(|_| listener.accept().unwrap().0).collect();
        let waited = waiting.into_iter().map(|client| client.join().unwrap());
        for mut client in first.into_iter().chain(waited) {
            let own = client.local_addr().unwrap();
            let server = servers.iter_mut().find(|server| server.peer_addr().unwrap() == own);
            greet(&mut client, server.expect("a connection of this client"));
        }
    });
    Ok(())
}
