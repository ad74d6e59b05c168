//! I7: one thread suffices for both ends, for a listener and its clients, and for a worker.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use test_harness::{Outcome, bytes, cases, skip};
use trespass::{Event, Kind, Pool, SeqPacket, Transport, Worker};

use super::fixture::{Fixture, LONG, read_exactly};

pub(crate) fn add(suite: &mut test_harness::Suite<Fixture>) {
    cases!(suite: i7_both_ends_on_one_thread, i7_a_worker_serves_many_connections, a_workers_clients_connect_while_it_polls,
        i7_a_worker_that_spins_serves_many_connections, a_worker_that_spins_waits_no_longer_than_it_is_told, a_worker_adopts_a_stream, a_waker_ends_a_poll, workers_share_a_port, a_listening_socket_is_taken_over,
        a_worker_says_what_became_of_a_connection_it_could_not_make, events_have_the_programs_tag,
        a_pool_of_the_programs_own_serves_all, user_data_reaches_the_peer, a_lent_block_is_waited_for);
}

fn a_lent_block_is_waited_for(fixture: &Fixture) -> Outcome {
    let (mut client, mut server) = fixture.packets();
    assert_eq!(client.device().is_some(), client.transport() == Transport::Rdma);
    assert!(client.next_completion().unwrap().is_none(), "nothing is lent");
    // One frame, and a message that the peer reads out of the block.
    for len in [100, 200_000] {
        let reader = thread::spawn(move || {
            let received = server.recv_buf().unwrap().len();
            (server, received)
        });
        let block = client.buffer(len).unwrap();
        let ticket = client.send_buf(block, len).unwrap();
        let completion = client.next_completion().unwrap().unwrap();
        assert!(completion.ticket == ticket && completion.sent, "{completion:?}");
        assert!(client.next_completion().unwrap().is_none(), "it came back once");
        let received;
        (server, received) = reader.join().unwrap();
        assert_eq!(received, len);
    }
    // Blocks that can never be sent return all the same, and the wait ends.
    drop(server);
    let block = client.buffer(200_000).unwrap();
    if client.send_buf(block, 200_000).is_ok() {
        assert!(client.next_completion().unwrap().is_some());
    }
    // All of several blocks return exactly once; a refused block is not lent.
    let (mut client, server) = fixture.packets();
    let mut blocks: Vec<_> =
        [10, 200_000, 8000].into_iter().map(|len| (client.buffer(len).unwrap(), len)).collect();
    let ticket = client.send_blocks(&mut blocks).unwrap();
    drop(server);
    for left in [2, 1, 0] {
        let completion = client.next_completion().unwrap().unwrap();
        assert_eq!((completion.ticket, completion.left), (ticket, left));
    }
    assert!(client.next_completion().unwrap().is_none());
    Ok(())
}

/// An event carries the listener's tag until the connection gets another one, also if the
/// connection fails; the next connection inherits nothing of it.
fn events_have_the_programs_tag(fixture: &Fixture) -> Outcome {
    let mut worker = Worker::new(&fixture.builder().build().unwrap()).unwrap();
    let listener = worker.listen(fixture.anywhere(), Kind::Stream).unwrap();
    worker.set_tag(listener, 7).unwrap();
    let addr = worker.local_addr(listener).unwrap();
    let client = worker.connect(addr, Kind::Stream).unwrap();
    worker.set_tag(client, 8).unwrap();
    let (mut events, mut accepted, mut connected, mut ready) = (Vec::new(), None, false, false);
    let deadline = Instant::now() + LONG;
    while !ready {
        assert!(Instant::now() < deadline, "{accepted:?} {connected}");
        worker.poll(&mut events, Some(Duration::from_millis(500))).unwrap();
        for event in events.drain(..) {
            match event {
                Event::Accepted { tag, key, .. } => {
                    assert_eq!((tag, worker.tag(key).unwrap()), (7, 7));
                    worker.set_tag(key, 9).unwrap();
                    accepted = Some(key);
                }
                Event::Connected { tag, key } => {
                    assert_eq!((tag, key), (8, client));
                    worker.write(client, b"x").unwrap();
                    connected = true;
                }
                Event::Ready { tag, key, .. } => {
                    // An event that was reported together with the connection carries the tag that
                    // it had then.
                    assert!((tag == 9 || tag == 7) && Some(key) == accepted, "{tag} {key:?}");
                    ready = tag == 9;
                }
                other => panic!("{other:?}"),
            }
        }
    }
    let gone = accepted.unwrap();
    worker.close(gone);
    assert_eq!(worker.set_tag(gone, 1).unwrap_err().kind(), ErrorKind::NotConnected);
    let wanted = worker.connect(fixture.nobody(), Kind::Stream).unwrap();
    assert_eq!(worker.tag(wanted).unwrap(), 0);
    worker.set_tag(wanted, 10).unwrap();
    loop {
        assert!(Instant::now() < deadline);
        worker.poll(&mut events, Some(Duration::from_millis(500))).unwrap();
        let failed = events.drain(..).find_map(|event| match event {
            Event::Failed { tag, key, .. } => Some((tag, key)),
            _ => None,
        });
        if let Some(failed) = failed {
            assert_eq!(failed, (10, wanted));
            return Ok(());
        }
    }
}

fn a_pool_of_the_programs_own_serves_all(fixture: &Fixture) -> Outcome {
    let other = |builder: trespass::Builder| builder.sndbuf(200_000).rcvbuf(200_000);
    let pool = Pool::new(&fixture.builder().build().unwrap().pool_config()).unwrap();
    let (mut client, mut server) =
        fixture.streams_of(fixture.builder().pool(pool.clone()), other(fixture.builder()).pool(pool.clone()));
    assert!(*client.pool() == pool && *server.pool() == pool);
    let worker = Worker::new(&fixture.builder().pool(pool.clone()).build().unwrap()).unwrap();
    assert!(worker.pool() == pool);
    // A connection of the worker accepts a block of any other.
    let mut block = worker.buffer(50_000).unwrap();
    block.bytes_mut()[..50_000].copy_from_slice(&bytes(1, 50_000));
    client.send_buf(block, 50_000).unwrap();
    let mut got = vec![0; 50_000];
    server.read_exact(&mut got).unwrap();
    assert!(got == bytes(1, 50_000));
    drop((client, server, worker));
    // The service thread may still have a connection.
    let deadline = Instant::now() + LONG;
    while pool.stats().in_use > 0 {
        assert!(Instant::now() < deadline, "{:?}", pool.stats());
        thread::sleep(Duration::from_millis(1));
        pool.flush();
    }
    Ok(())
}

fn user_data_reaches_the_peer(fixture: &Fixture) -> Outcome {
    let (client, server) =
        fixture.streams_of(fixture.builder().user_data(*b"of the client"), fixture.builder());
    assert_eq!((client.peer_user_data(), server.peer_user_data()), (&b""[..], &b"of the client"[..]));
    let mut worker = Worker::new(&fixture.builder().build().unwrap()).unwrap();
    let key = worker.add(server).unwrap();
    assert_eq!(worker.peer_user_data(key).unwrap(), b"of the client");
    Ok(())
}

fn i7_both_ends_on_one_thread(fixture: &Fixture) -> Outcome {
    let (mut client, mut server) = fixture.streams();
    client.set_nonblocking(true).unwrap();
    server.set_nonblocking(true).unwrap();
    let sent = bytes(1, 8 << 20);
    let (mut out, mut got, mut buffer) = (0, Vec::new(), vec![0; 100_000]);
    let deadline = Instant::now() + LONG;
    while got.len() < sent.len() {
        assert!(Instant::now() < deadline);
        match client.write(&sent[out..]) {
            Ok(count) => out += count,
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
        match server.read(&mut buffer) {
            Ok(count) => got.extend_from_slice(&buffer[..count]),
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
    }
    assert!(got == sent);
    Ok(())
}

/// Practically unlimited.
const HOUR: Duration = Duration::from_secs(3600);

/// This holds for a poll that does not wait and for one that does; and the descriptor wakes a
/// waiting program.
fn a_worker_that_spins_waits_no_longer_than_it_is_told(fixture: &Fixture) -> Outcome {
    let mut worker = Worker::new(&fixture.builder().worker_spin(HOUR).build().unwrap()).unwrap();
    let (client, mut server) = fixture.packets();
    let key = worker.add_seq_packet(client).unwrap();
    let mut events = Vec::new();
    for wait in [0, 0, 30] {
        let (began, wait) = (Instant::now(), Duration::from_millis(wait));
        worker.poll(&mut events, Some(wait)).unwrap();
        assert!(events.is_empty(), "{events:?}");
        assert!((wait..LONG).contains(&began.elapsed()), "{:?} and not {wait:?}", began.elapsed());
    }
    server.send(b"x").unwrap();
    worker.poll(&mut events, None).unwrap();
    assert!(matches!(events[..], [Event::Ready { key: ready, .. }] if ready == key), "{events:?}");
    assert_eq!(worker.recv(key, &mut [0; 64]).unwrap(), 1);
    wakes_by_its_descriptor(&mut worker, &mut server);
    Ok(())
}

/// The worker's descriptor wakes a program when `peer` sends.
fn wakes_by_its_descriptor(worker: &mut Worker, peer: &mut SeqPacket) {
    // The program must make one call after it asks for the descriptor.
    let _ = worker.as_fd();
    let mut events = Vec::new();
    worker.poll(&mut events, Some(Duration::ZERO)).unwrap();
    assert!(events.is_empty(), "{events:?}");
    peer.send(b"y").unwrap();
    let timeout = LONG.try_into().unwrap();
    assert_eq!(poll(&mut [PollFd::new(worker, PollFlags::IN)], Some(&timeout)).unwrap(), 1, "nobody rings");
    worker.poll(&mut events, None).unwrap();
    assert_eq!(events.len(), 1, "{events:?}");
}

fn i7_a_worker_serves_many_connections(fixture: &Fixture) -> Outcome {
    a_worker_serves_many_connections(fixture, Duration::ZERO)
}

fn a_workers_clients_connect_while_it_polls(fixture: &Fixture) -> Outcome {
    let mut worker = Worker::new(&fixture.builder().build().unwrap()).unwrap();
    let listener = worker.listen(fixture.anywhere(), Kind::Stream).unwrap();
    let addr = worker.local_addr(listener).unwrap();
    let deadline = Duration::from_millis(300);
    let impatient = fixture.builder().probe_timeout(deadline / 2).handshake_deadline(deadline);
    let error = impatient.connect(addr).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    let builder = fixture.builder();
    let connecting = thread::spawn(move || builder.connect(addr).unwrap());
    thread::sleep(deadline);
    assert!(!connecting.is_finished(), "nobody has polled");
    let (mut events, until) = (Vec::new(), Instant::now() + LONG);
    while !connecting.is_finished() {
        assert!(Instant::now() < until, "{events:?}");
        worker.poll(&mut events, Some(Duration::from_millis(1))).unwrap();
    }
    connecting.join().unwrap();
    Ok(())
}

/// Polling for completions does not starve system events: new clients complete their handshakes.
fn i7_a_worker_that_spins_serves_many_connections(fixture: &Fixture) -> Outcome {
    a_worker_serves_many_connections(fixture, HOUR)
}

/// Echoes on every accepted connection, and has clients in the same worker send through each of
/// them.
fn a_worker_serves_many_connections(fixture: &Fixture, spin: Duration) -> Outcome {
    const CLIENTS: usize = 50;
    const ROUNDS: usize = 20;
    let mut worker = Worker::new(&fixture.builder().worker_spin(spin).build().unwrap()).unwrap();
    let listener = worker.listen(fixture.anywhere(), Kind::SeqPacket).unwrap();
    let addr = worker.local_addr(listener).unwrap();
    let clients: Vec<_> = (0..CLIENTS).map(|_| worker.connect(addr, Kind::SeqPacket).unwrap()).collect();
    let mut rounds = vec![0; CLIENTS];
    let (mut events, mut buffer) = (Vec::new(), vec![0; 10_000]);
    let deadline = Instant::now() + LONG;
    let message =
        |client: usize, round: usize| bytes((client * 1000 + round) as u64, 1 + (client * round * 37) % 9000);
    while rounds.iter().any(|round| *round < ROUNDS) {
        assert!(Instant::now() < deadline, "{rounds:?}");
        worker.poll(&mut events, Some(Duration::from_millis(500))).unwrap();
        for event in events.drain(..) {
            match event {
                Event::Accepted { listener: from, .. } => assert_eq!(from, listener),
                Event::Connected { key, .. } => {
                    let client = clients.iter().position(|client| *client == key).unwrap();
                    worker.send(key, &message(client, 0)).unwrap();
                }
                Event::Failed { key, error, .. } => panic!("{key:?}: {error}"),
                Event::Ready { key, readiness, .. } if readiness.readable => loop {
                    let len = match worker.recv(key, &mut buffer) {
                        Ok(len) => len,
                        Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                        Err(error) => panic!("{error}"),
                    };
                    let Some(client) = clients.iter().position(|client| *client == key) else {
                        worker.send(key, &buffer[..len]).unwrap();
                        continue;
                    };
                    assert!(buffer[..len] == message(client, rounds[client]));
                    rounds[client] += 1;
                    if rounds[client] < ROUNDS {
                        worker.send(key, &message(client, rounds[client])).unwrap();
                    }
                },
                _ => (),
            }
        }
    }
    for client in clients {
        worker.close(client);
        assert_eq!(worker.recv(client, &mut buffer).unwrap_err().kind(), ErrorKind::NotConnected);
    }
    Ok(())
}

/// Any thread ends a poll, and one that begins later.
fn a_waker_ends_a_poll(fixture: &Fixture) -> Outcome {
    for spin in [Duration::ZERO, Duration::from_micros(20), Duration::from_secs(3600)] {
        let mut worker = Worker::new(&fixture.builder().worker_spin(spin).build().unwrap()).unwrap();
        let waker = worker.waker();
        let (poll, polls) = std::sync::mpsc::channel();
        let waking = thread::spawn(move || {
            for delay in polls {
                thread::sleep(delay);
                waker.wake();
                waker.wake();
            }
        });
        let mut events = Vec::new();
        for delay in
            (0..200).map(|round| Duration::from_micros(if round == 100 { 30_000 } else { round % 30 }))
        {
            poll.send(delay).unwrap();
            worker.poll(&mut events, Some(LONG)).unwrap();
        }
        drop(poll);
        waking.join().unwrap();
        // Another wake-up may have come since. Without one a poll waits.
        worker.poll(&mut events, Some(Duration::ZERO)).unwrap();
        let since = Instant::now();
        worker.poll(&mut events, Some(Duration::from_millis(50))).unwrap();
        assert!(since.elapsed() >= Duration::from_millis(50) && events.is_empty());
    }
    Ok(())
}

/// A server with a worker for each thread: the system spreads clients over their listeners.
fn workers_share_a_port(fixture: &Fixture) -> Outcome {
    const CLIENTS: usize = 24;
    if fixture.is_by_cm() {
        skip!("the connection manager has no shared ports");
    }
    let config = fixture.builder().reuse_port(true).build().unwrap();
    let mut workers = vec![Worker::new(&config).unwrap(), Worker::new(&config).unwrap()];
    let first = workers[0].listen(fixture.anywhere(), Kind::Stream).unwrap();
    let addr = workers[0].local_addr(first).unwrap();
    workers[1].listen(addr, Kind::Stream).unwrap();
    let wakers: Vec<_> = workers.iter().map(Worker::waker).collect();
    let done = std::sync::atomic::AtomicBool::new(false);
    thread::scope(|scope| {
        let serving: Vec<_> = workers
            .into_iter()
            .map(|mut worker| {
                let done = &done;
                scope.spawn(move || {
                    let (mut events, mut buffer) = (Vec::new(), [0; 64]);
                    while !done.load(std::sync::atomic::Ordering::Relaxed) {
                        worker.poll(&mut events, Some(LONG)).unwrap();
                        for event in events.drain(..) {
                            let Event::Ready { key, .. } = event else { continue };
                            match worker.read(key, &mut buffer) {
                                Ok(0) => worker.close(key),
                                Ok(len) => assert_eq!(worker.write(key, &buffer[..len]).unwrap(), len),
                                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}"),
                            }
                        }
                    }
                    worker.total_stats()
                })
            })
            .collect();
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let config = fixture.builder();
                scope.spawn(move || {
                    let mut stream = config.connect(addr).unwrap();
                    stream.set_read_timeout(Some(LONG)).unwrap();
                    stream.write_all(&[client as u8; 10]).unwrap();
                    assert_eq!(read_exactly(&mut stream, 10), [client as u8; 10]);
                })
            })
            .collect();
        clients.into_iter().for_each(|client| client.join().unwrap());
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        wakers.iter().for_each(trespass::WorkerWaker::wake);
        let stats: Vec<trespass::Stats> = serving.into_iter().map(|thread| thread.join().unwrap()).collect();
        // The system chooses by a hash of the client's port. That it chooses one of two for 24 clients
        // has a probability of one in eight millions.
        assert!(stats.iter().all(|stats| stats.bytes_received > 0), "a worker has got no client: {stats:?}");
        let stats: trespass::Stats = stats.into_iter().sum();
        assert_eq!((stats.bytes_received, stats.bytes_sent), (10 * CLIENTS as u64, 10 * CLIENTS as u64));
    });
    Ok(())
}

/// A listening socket of the program, as a service manager passes one.
fn a_listening_socket_is_taken_over(fixture: &Fixture) -> Outcome {
    if fixture.is_by_cm() {
        skip!("the connection manager has identifiers instead of sockets");
    }
    let socket = std::net::TcpListener::bind(fixture.anywhere()).unwrap();
    let addr = socket.local_addr().unwrap();
    let copy = socket.try_clone().unwrap();
    let listener = fixture.builder().build().unwrap().listen_with(socket).unwrap();
    let client = fixture.builder().connect(addr).unwrap();
    assert_eq!(listener.accept().unwrap().1, client.local_addr().unwrap());
    drop(listener);
    let mut worker = Worker::new(&fixture.builder().build().unwrap()).unwrap();
    worker.listen_with(copy, Kind::Stream).unwrap();
    let connecting = fixture.builder();
    let client = thread::spawn(move || connecting.connect(addr).unwrap());
    let mut events = Vec::new();
    while !events.iter().any(|event| matches!(event, Event::Accepted { .. })) {
        worker.poll(&mut events, Some(LONG)).unwrap();
    }
    client.join().unwrap();
    Ok(())
}

fn a_worker_adopts_a_stream(fixture: &Fixture) -> Outcome {
    let (mut client, mut server) = fixture.streams();
    // Data that has arrived and data that is still in flight both move with the stream.
    client.write_all(b"before").unwrap();
    let mut first = [0; 1];
    server.read_exact(&mut first).unwrap();
    let mut worker = Worker::new(&fixture.builder().build().unwrap()).unwrap();
    let key = worker.add(server).unwrap();
    client.write_all(b" and after").unwrap();
    let (mut events, mut got, mut buffer) = (Vec::new(), first.to_vec(), [0; 64]);
    let deadline = Instant::now() + LONG;
    while got.len() < 16 {
        assert!(Instant::now() < deadline);
        worker.poll(&mut events, Some(Duration::from_millis(500))).unwrap();
        for event in events.drain(..) {
            assert!(matches!(event, Event::Ready { key: ready, .. } if ready == key));
            while let Ok(len) = worker.read(key, &mut buffer) {
                got.extend_from_slice(&buffer[..len]);
            }
        }
    }
    assert_eq!(got, b"before and after");
    worker.write(key, b"thanks").unwrap();
    worker.poll(&mut events, Some(Duration::ZERO)).unwrap();
    let mut thanks = [0; 6];
    client.read_exact(&mut thanks).unwrap();
    assert_eq!(&thanks, b"thanks");
    Ok(())
}

fn a_worker_says_what_became_of_a_connection_it_could_not_make(fixture: &Fixture) -> Outcome {
    let mut worker = Worker::new(&fixture.builder().build().unwrap()).unwrap();
    let wanted = worker.connect(fixture.nobody(), Kind::Stream).unwrap();
    let mut events = Vec::new();
    let deadline = Instant::now() + LONG;
    while events.is_empty() {
        assert!(Instant::now() < deadline);
        worker.poll(&mut events, Some(Duration::from_millis(500))).unwrap();
    }
    match events.pop() {
        Some(Event::Failed { key, error, .. }) => {
            assert_eq!((key, error.kind()), (wanted, ErrorKind::ConnectionRefused), "{error}");
        }
        other => panic!("{other:?}"),
    }
    Ok(())
}
