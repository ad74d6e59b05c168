//! I14: closed connections deliver their data in bounded time, and leave nothing behind.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use test_harness::{Outcome, bytes, cases};
use trespass::{Event, Kind, Pool, SeqPacket, Worker};

use super::fixture::{Fixture, LONG, greet};

pub(crate) fn add(suite: &mut test_harness::Suite<Fixture>) {
    cases!(suite: i14_connections_leave_nothing_behind, i14_all_that_was_written_arrives_before_the_end,
        i14_a_close_lets_the_peer_read_what_is_large, i14_close_waits_no_longer_than_it_lingers,
        i14_a_drop_waits_for_nobody, i14_a_dropped_worker_waits_for_nobody, i14_a_workers_close_needs_no_poll, i14_messages_of_every_size_arrive_before_the_end, i14_a_receiver_may_be_three_seconds_late, i14_dropped_messages_arrive, an_unread_message_resets, a_worker_lingers_as_the_stream_was_told,
        both_may_close_at_once,
        a_worker_resets_unread_data);
}

/// Connections of [`i14_connections_leave_nothing_behind`], unless the environment variable gives
/// another number.
const CONNECTIONS: usize = 300;
const MORE: &str = "TRESPASS_SOAK_CONNECTIONS";

/// The system's and the software device's resources that this process holds. The counts are exact,
/// because no other case runs.
pub(crate) fn held() -> [(&'static str, usize); 7] {
    let count = |directory: &str| std::fs::read_dir(directory).unwrap().count();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    // A file is mapped in as many pieces as it has levels.
    let segments = maps.lines().filter(|line| line.contains("soft-rnic"));
    let segments: std::collections::BTreeSet<_> =
        segments.filter_map(|line| line.split_ascii_whitespace().nth(4)).collect();
    let device = sideway::soft::statistics().unwrap_or_default();
    [
        ("descriptors", count("/proc/self/fd")),
        ("threads", count("/proc/self/task")),
        ("segments mapped", segments.len()),
        ("queue pairs", device.queue_pairs.iter().map(|some| some.count as usize).sum()),
        ("completion queues", device.completion_queues as usize),
        ("regions", device.regions.count as usize),
        (
            "shared receive queues, identifiers",
            (device.shared_receive_queues + device.identifiers.count) as usize,
        ),
    ]
}

/// The number of descriptors of each kind.
pub(crate) fn descriptors() -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for entry in std::fs::read_dir("/proc/self/fd").unwrap() {
        if let Ok(target) = std::fs::read_link(entry.unwrap().path()) {
            let target = target.to_string_lossy();
            *counts.entry(target.split(":[").next().unwrap().to_owned()).or_default() += 1;
        }
    }
    counts
}

/// [`held`], when nothing has changed for 100 ms.
pub(crate) fn held_at_rest() -> [(&'static str, usize); 7] {
    let patience = Instant::now() + LONG;
    let (mut last, mut since) = (held(), Instant::now());
    while since.elapsed() < Duration::from_millis(100) && Instant::now() < patience {
        thread::sleep(Duration::from_millis(10));
        let now = held();
        if now != last {
            (last, since) = (now, Instant::now());
        }
    }
    last
}

fn i14_connections_leave_nothing_behind(fixture: &Fixture) -> Outcome {
    const WARM: usize = 10;
    let rounds = std::env::var(MORE)
        .map_or_else(|_| fixture.less(CONNECTIONS), |text| text.parse().expect("a number"));
    // The first connections open devices and start threads, which stay.
    connect_and_close(fixture, WARM);
    let before = held_at_rest();
    connect_and_close(fixture, rounds);
    // The process keeps a few descriptors for later sleeps, as many as calls have slept at a time.
    let kept = |what| if what == "descriptors" { 4 } else { 0 };
    let left = || before.into_iter().zip(held()).find(|((what, then), (_, now))| *now > then + kept(*what));
    let patience = Instant::now() + LONG;
    while left().is_some() && Instant::now() < patience {
        thread::sleep(Duration::from_millis(10));
    }
    if let Some(((what, then), (_, now))) = left() {
        panic!("{what}: {then} after {WARM} connections, {now} after {rounds} more");
    }
    println!("{rounds} connections have left nothing behind: {before:?}");
    Ok(())
}

/// Makes and closes connections one after the other, with a new pool, because a pool that stays keeps
/// the memory of the most that were open at a time.
fn connect_and_close(fixture: &Fixture, rounds: usize) {
    let pool = Pool::new(&fixture.builder().build().unwrap().pool_config()).unwrap();
    let builder = fixture.builder().pool(pool.clone());
    let listener = builder.clone().bind(fixture.anywhere()).unwrap();
    let addr = listener.local_addr().unwrap();
    let serving = thread::spawn(move || {
        for _ in 0..rounds {
            let (mut stream, _) = listener.accept().unwrap();
            stream.set_read_timeout(Some(LONG)).unwrap();
            let mut got = [0; 5];
            stream.read_exact(&mut got).unwrap();
            stream.write_all(&got).unwrap();
            // Either end closes first, depending on the round.
            if got[0] % 2 == 0 {
                assert_eq!(stream.read(&mut got).unwrap(), 0);
            }
        }
    });
    for round in 0..rounds {
        let mut stream = builder.clone().connect(addr).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        stream.write_all(&[round as u8; 5]).unwrap();
        let mut got = [0; 5];
        stream.read_exact(&mut got).unwrap();
        assert_eq!(got, [round as u8; 5]);
        if round.is_multiple_of(3) {
            stream.shutdown(Shutdown::Write).unwrap();
        }
    }
    serving.join().unwrap();
    pool.flush();
    let patience = Instant::now() + LONG;
    while pool.stats().in_use > 0 && Instant::now() < patience {
        thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(pool.stats().in_use, 0, "{:?}", pool.stats());
}

fn i14_all_that_was_written_arrives_before_the_end(fixture: &Fixture) -> Outcome {
    for len in [0, 1, 10_000, 900_000] {
        let (client, mut server) = fixture.streams();
        let sent = bytes(len as u64, len);
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut client = client;
                client.write_all(&sent).unwrap();
                // Data that the peer never reads must not cost the other end anything.
            });
            let mut got = Vec::new();
            server.read_to_end(&mut got).unwrap();
            assert!(got == sent, "{} of {len} bytes", got.len());
        });
    }
    Ok(())
}

/// The peer starts to read after all data has been written and the connection closed, once directly
/// and once through a worker.
fn i14_a_close_lets_the_peer_read_what_is_large(fixture: &Fixture) -> Outcome {
    let sent = bytes(14, 300_000);
    for of_worker in [false, true] {
        let (mut client, mut server) = fixture.streams_of(fixture.builder().linger(LONG), fixture.builder());
        thread::scope(|scope| {
            let (closed, has_closed) = mpsc::channel();
            let sent = &sent;
            scope.spawn(move || {
                if of_worker {
                    let mut worker = Worker::new(&fixture.builder().linger(LONG).build().unwrap()).unwrap();
                    let key = worker.add(client).unwrap();
                    assert_eq!(worker.write(key, sent).unwrap(), sent.len());
                    worker.close(key);
                    closed.send(()).unwrap();
                } else {
                    client.write_all(sent).unwrap();
                    closed.send(()).unwrap();
                }
            });
            has_closed.recv().unwrap();
            thread::sleep(Duration::from_millis(50));
            let mut got = Vec::new();
            server.read_to_end(&mut got).unwrap();
            assert!(got == *sent, "{} bytes, of a worker: {of_worker}", got.len());
        });
    }
    Ok(())
}

fn i14_close_waits_no_longer_than_it_lingers(fixture: &Fixture) -> Outcome {
    let (mut client, mut server) = fixture.streams();
    client.set_nonblocking(true).unwrap();
    while client.write(&[1; 100_000]).is_ok() {}
    let linger = Duration::from_millis(200);
    client.set_linger(Some(linger)).unwrap();
    drop(client);
    thread::sleep(2 * linger);
    // What is already here is readable, and then there is no clean end.
    let error = server.read_to_end(&mut Vec::new()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
    Ok(())
}

/// One thread has both ends, so that a drop that waited for the peer would wait for ever.
fn i14_a_drop_waits_for_nobody(fixture: &Fixture) -> Outcome {
    for (len, nonblocking) in [(1, false), (17_000, false), (17_000, true), (900_000, false), (900_000, true)]
    {
        let linger = |builder: trespass::Builder| builder.linger(LONG);
        let (mut client, mut server) = fixture.streams_of(linger(fixture.builder()), fixture.builder());
        client.set_nonblocking(nonblocking).unwrap();
        let sent = bytes(len as u64, len);
        let taken = client.write(&sent).unwrap();
        let before = Instant::now();
        drop(client);
        assert!(before.elapsed() < LONG / 2, "{len} bytes");
        thread::sleep(Duration::from_millis(20));
        let mut got = Vec::new();
        server.read_to_end(&mut got).unwrap();
        assert!(got == sent[..taken], "{} of {taken} bytes, non-blocking: {nonblocking}", got.len());
    }
    Ok(())
}

/// The default of `Builder::sndbuf`. A call that does not wait sends no larger message whole.
const SNDBUF: usize = 1 << 20;

/// Sends a message by calls that do not wait.
fn send_without_waiting(packets: &mut SeqPacket, message: &[u8]) {
    packets.set_nonblocking(true).unwrap();
    let len = message.len();
    let mut sent = 0;
    while sent < len {
        let outcome = match len {
            ..=SNDBUF => packets.send(message).map(|()| len),
            _ => packets.send_part(len as u64, &message[sent..]),
        };
        match outcome {
            Ok(count) => sent += count,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock, "{sent} bytes: {error}");
                thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

/// Sends a message by a call that waits, or by calls that do not, and drops the connection.
/// The receiver begins when the time is over. `parity::closing` has the same for streams.
fn a_message_arrives(pair: (SeqPacket, SeqPacket), len: usize, nonblocking: bool, late: Duration) {
    let (mut client, mut server) = pair;
    let sent = &bytes(len as u64, len);
    thread::scope(|scope| {
        scope.spawn(move || {
            if nonblocking {
                send_without_waiting(&mut client, sent);
            } else {
                client.send(sent).unwrap();
            }
        });
        thread::sleep(late);
        let mut got = vec![0; len];
        assert_eq!(server.recv(&mut got).unwrap(), len, "non-blocking: {nonblocking}");
        assert!(got == *sent, "a message of {len} bytes, non-blocking: {nonblocking}");
        assert_eq!(server.recv(&mut got).unwrap_err().kind(), ErrorKind::UnexpectedEof);
    });
}

fn i14_messages_of_every_size_arrive_before_the_end(fixture: &Fixture) -> Outcome {
    for len in [1, 100, 17_000, 100_000, 1 << 20, fixture.less(64) << 20] {
        for late in [Duration::ZERO, Duration::from_millis(150)] {
            for nonblocking in [false, true] {
                let pair = fixture.packets_with(|builder| builder.linger(LONG));
                a_message_arrives(pair, len, nonblocking, late);
            }
        }
    }
    Ok(())
}

/// With the linger time that programs have by default. All sizes wait at the same time.
fn i14_a_receiver_may_be_three_seconds_late(fixture: &Fixture) -> Outcome {
    const LATE: Duration = Duration::from_secs(3);
    thread::scope(|scope| {
        for len in [1, 100, 17_000, 100_000, 1 << 20, fixture.less(64) << 20] {
            for nonblocking in [false, true] {
                scope.spawn(move || a_message_arrives(fixture.packets(), len, nonblocking, LATE));
            }
        }
    });
    Ok(())
}

/// A drop of a worker does not wait for a peer, either. One connection has a private completion queue,
/// and one uses the worker's.
fn i14_a_dropped_worker_waits_for_nobody(fixture: &Fixture) -> Outcome {
    let sent = bytes(17, 900_000);
    for closes in [false, true] {
        let config = fixture.builder().linger(LONG).build().unwrap();
        let (listener, addr) = fixture.listener();
        let mut worker = Worker::new(&config).unwrap();
        let mut keys = vec![worker.add(config.connect(addr).unwrap()).unwrap()];
        keys.push(worker.connect(addr, Kind::Stream).unwrap());
        let mut events = Vec::new();
        while !events.iter().any(|event| matches!(event, Event::Connected { .. })) {
            worker.poll(&mut events, Some(LONG)).unwrap();
        }
        let servers = [(); 2].map(|()| listener.accept().unwrap().0);
        for key in keys {
            assert_eq!(worker.write(key, &sent).unwrap(), sent.len());
            if closes {
                worker.close(key);
            }
        }
        let before = Instant::now();
        drop(worker);
        assert!(before.elapsed() < LONG / 2);
        thread::sleep(Duration::from_millis(20));
        for mut server in servers {
            let mut got = Vec::new();
            server.read_to_end(&mut got).unwrap();
            assert!(got == sent, "{} of {} bytes, closed: {closes}", got.len(), sent.len());
        }
    }
    Ok(())
}

/// The program keeps the worker, and never polls it again.
fn i14_a_workers_close_needs_no_poll(fixture: &Fixture) -> Outcome {
    let (listener, addr) = fixture.listener();
    // Without READs the peer grants room for the rest while it reads.
    for (len, late, reads) in [
        (1_000, 0, true),
        (900_000, 0, true),
        (900_000, 0, false),
        (900_000, 300, false),
        (fixture.less(64) << 18, 0, false),
    ] {
        let sent = bytes(18, len);
        let config = fixture.builder().linger(LONG).rendezvous(reads).build().unwrap();
        let (mut worker, mut events) = (Worker::new(&config).unwrap(), Vec::new());
        let key = worker.connect(addr, Kind::Stream).unwrap();
        while !events.iter().any(|event| matches!(event, Event::Connected { .. })) {
            worker.poll(&mut events, Some(LONG)).unwrap();
        }
        let mut server = listener.accept().unwrap().0;
        server.set_read_timeout(Some(LONG)).unwrap();
        let (closed, is_closed) = mpsc::channel();
        let reading = thread::spawn(move || {
            let mut got = vec![0; len - len.min(900_000)];
            server.read_exact(&mut got).unwrap();
            let closed_at: Instant = is_closed.recv().unwrap();
            thread::sleep(Duration::from_millis(late));
            server.read_to_end(&mut got).unwrap();
            (got, closed_at.elapsed())
        });
        let (mut at, deadline) = (0, Instant::now() + LONG);
        while at < len {
            assert!(Instant::now() < deadline, "{at} of {len} bytes are written");
            match worker.write(key, &sent[at..]) {
                Ok(count) => at += count,
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}"),
            }
            worker.poll(&mut events, Some(Duration::from_millis(1))).unwrap();
        }
        worker.close(key);
        closed.send(Instant::now()).unwrap();
        let (got, took) = reading.join().expect("the reader gets all and the end");
        assert!(got == sent, "{} of {len} bytes", got.len());
        println!("{len} bytes, READs {reads}, read {late} ms late, {took:?} after the close");
        drop(worker);
    }
    Ok(())
}

fn i14_dropped_messages_arrive(fixture: &Fixture) -> Outcome {
    let (mut client, mut server) = fixture.packets_with(|builder| builder.linger(LONG));
    let sizes = [0, 1, 20_000, 400_000, 3];
    for len in sizes {
        client.send(&bytes(len as u64, len)).unwrap();
    }
    drop(client);
    thread::sleep(Duration::from_millis(20));
    let mut buffer = vec![0; 400_000];
    for len in sizes {
        assert_eq!(server.recv(&mut buffer).unwrap(), len);
        assert!(buffer[..len] == bytes(len as u64, len));
    }
    assert_eq!(server.recv(&mut buffer).unwrap_err().kind(), ErrorKind::UnexpectedEof);
    Ok(())
}

/// As over TCP: the peer must not believe that its message was read.
fn an_unread_message_resets(fixture: &Fixture) -> Outcome {
    let (mut client, mut server) = fixture.packets();
    client.send(b"unread").unwrap();
    server.send(b"said before").unwrap();
    assert_eq!(client.recv(&mut [0; 16]).unwrap(), 11);
    assert!(server.readiness().unwrap().readable);
    drop(server);
    assert_eq!(client.recv(&mut [0; 16]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    Ok(())
}

/// A stream's linger time applies when a worker closes it: zero is a reset, and a long one outlasts
/// the worker.
fn a_worker_lingers_as_the_stream_was_told(fixture: &Fixture) -> Outcome {
    let worker = || Worker::new(&fixture.builder().linger(Duration::ZERO).build().unwrap()).unwrap();
    let (mut client, mut server) = fixture.streams();
    greet(&mut client, &mut server);
    client.set_linger(Some(Duration::ZERO)).unwrap();
    let mut one = worker();
    let key = one.add(client).unwrap();
    one.close(key);
    assert_eq!(server.read(&mut [0; 8]).unwrap_err().kind(), ErrorKind::ConnectionReset);

    let sent = bytes(15, 900_000);
    let (client, mut server) = fixture.streams();
    client.set_linger(Some(LONG)).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut worker = worker();
            let key = worker.add(client).unwrap();
            assert_eq!(worker.write(key, &sent).unwrap(), sent.len());
        });
        thread::sleep(Duration::from_millis(50));
        let mut got = Vec::new();
        server.read_to_end(&mut got).unwrap();
        assert!(got == sent, "{} bytes", got.len());
    });
    Ok(())
}

/// A worker's close and drop do as a stream's drop does.
fn a_worker_resets_unread_data(fixture: &Fixture) -> Outcome {
    for drops in [false, true] {
        let mut worker = Worker::new(&fixture.builder().build().unwrap()).unwrap();
        let listener = worker.listen(fixture.anywhere(), Kind::Stream).unwrap();
        let addr = worker.local_addr(listener).unwrap();
        let connecting = {
            let builder = fixture.builder();
            thread::spawn(move || {
                let mut client = builder.connect(addr).unwrap();
                client.write_all(b"unread").unwrap();
                client
            })
        };
        let (mut events, deadline) = (Vec::new(), Instant::now() + LONG);
        let ready = |event: &Event| matches!(event, Event::Ready { readiness, .. } if readiness.readable);
        while !events.iter().any(ready) {
            assert!(Instant::now() < deadline, "nothing arrives: {events:?}");
            worker.poll(&mut events, Some(Duration::from_millis(10))).unwrap();
        }
        let Some(Event::Ready { key, .. }) = events.iter().find(|event| ready(event)) else { unreachable!() };
        let mut client = connecting.join().unwrap();
        client.set_read_timeout(Some(LONG)).unwrap();
        if drops {
            drop(worker);
        } else {
            worker.close(*key);
        }
        assert_eq!(client.read(&mut [0; 8]).unwrap_err().kind(), ErrorKind::ConnectionReset, "{drops}");
    }
    Ok(())
}

fn both_may_close_at_once(fixture: &Fixture) -> Outcome {
    for _ in 0..50 {
        let (client, server) = fixture.streams();
        let other = thread::spawn(move || drop(server));
        drop(client);
        other.join().unwrap();
    }
    Ok(())
}
