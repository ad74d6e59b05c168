//! The TCP connection beside a connection over RDMA: a proxy between both sides ends it when it is
//! silent, unless the service threads send bytes.

use std::io::{self, ErrorKind, Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use test_harness::{Outcome, cases, skip};
use trespass::{Builder, Event, Key, Kind, Stream, Worker};

use super::fixture::{Fixture, LONG, greet, read_exactly};
use super::idle::{own_number, sees_it_asleep};
use super::proxy::Proxy;

pub(crate) fn add(suite: &mut test_harness::Suite<Fixture>) {
    cases!(suite: a_proxy_keeps_silent_connections_and_busy_ones,
        a_proxy_ends_a_connection_if_either_side_sends_no_bytes, bytes_wake_no_sleeper,
        a_flood_of_the_control_connection_ends_in_its_buffer);
}

/// The shortest interval.
const INTERVAL: Duration = Duration::from_millis(100);

/// A proxy's limit: twenty intervals, for busy machines.
fn limit() -> Duration {
    INTERVAL * if test_harness::is_emulated() { 100 } else { 20 }
}

/// Without spinning, so that each wait sees the end of the control connection.
fn builder(fixture: &Fixture) -> Builder {
    fixture.builder().control_keepalive(Some(INTERVAL)).spin(Duration::ZERO)
}

/// Leaves a case that has no TCP connection beside its data.
macro_rules! only_over_rdma {
    ($fixture:ident) => {
        if $fixture.is_tcp() {
            skip!("over TCP the connection has its data");
        }
    };
}

/// Two connected streams whose TCP connection leads through a proxy.
fn streams(fixture: &Fixture, limit: Duration, builders: [Builder; 2]) -> (Proxy, Stream, Stream) {
    let [client, server] = builders;
    let listener = server.bind(fixture.anywhere()).unwrap();
    let proxy = Proxy::new(listener.local_addr().unwrap(), limit);
    let (mut client, mut server) = (client.connect(proxy.addr).unwrap(), listener.accept().unwrap().0);
    for stream in [&client, &server] {
        stream.set_read_timeout(Some(LONG)).unwrap();
    }
    greet(&mut client, &mut server);
    (proxy, client, server)
}

/// Waits until each side has sent that many bytes on its control connections.
fn wait_for_bytes(proxy: &Proxy, count: u64) {
    let (before, deadline) = (proxy.carried(), Instant::now() + LONG);
    loop {
        let now = proxy.carried();
        if now.iter().zip(before).all(|(now, before)| now - before >= count) {
            return;
        }
        assert!(Instant::now() < deadline, "{before:?} to {now:?}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Polls until the worker has a connection.
fn key_of(worker: &mut Worker) -> Key {
    let (mut events, deadline) = (Vec::new(), Instant::now() + LONG);
    while Instant::now() < deadline {
        worker.poll(&mut events, Some(LONG)).unwrap();
        for event in events.drain(..) {
            match event {
                Event::Accepted { key, .. } | Event::Connected { key, .. } => return key,
                Event::Ready { .. } => {}
                event => panic!("{event:?}"),
            }
        }
    }
    panic!("nobody connects");
}

/// Sends bytes back until the peer ends.
fn echo(mut stream: Stream) -> io::Result<()> {
    let mut byte = [0];
    while stream.read(&mut byte)? > 0 {
        stream.write_all(&byte)?;
    }
    Ok(())
}

/// Sends a byte and waits for its echo, a thousand times a second.
fn ask_until(mut stream: Stream, is_over: &AtomicBool) -> io::Result<()> {
    while !is_over.load(Ordering::Relaxed) {
        stream.write_all(b"?")?;
        stream.read_exact(&mut [0])?;
        // Without a pause, an emulated guest would execute 30 s of instructions.
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Ends a thread of a case that fails, too.
struct SetWhenDropped<'a>(&'a AtomicBool);

impl Drop for SetWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A stream, one that waits to be accepted, one that a worker has got, one of a worker, and one that
/// is in use. Nobody makes a call for the others.
fn a_proxy_keeps_silent_connections_and_busy_ones(fixture: &Fixture) -> Outcome {
    only_over_rdma!(fixture);
    let config = builder(fixture).build().unwrap();
    let listener = config.bind(fixture.anywhere()).unwrap();
    let proxy = Proxy::new(listener.local_addr().unwrap(), limit());
    let connect = || {
        let mut ends = (config.connect(proxy.addr).unwrap(), listener.accept().unwrap().0);
        greet(&mut ends.0, &mut ends.1);
        ends
    };
    let (mut idle, busy, given) = (connect(), connect(), connect());
    let mut worker = Worker::new(&config).unwrap();
    let given = (worker.add(given.0).unwrap(), given.1);
    worker.connect(proxy.addr, Kind::Stream).unwrap();
    let own = (key_of(&mut worker), listener.accept().unwrap().0);
    let mut waiting = config.connect(proxy.addr).unwrap();

    let begins = Instant::now();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let (client, server) = busy;
        scope.spawn(|| echo(server).unwrap());
        scope.spawn(|| ask_until(client, &is_over).unwrap());
        let _set_at_the_end = SetWhenDropped(&is_over);
        // Five connections, for each side.
        wait_for_bytes(&proxy, 5 * 3 * 20);
        thread::sleep((limit() * 3).saturating_sub(begins.elapsed()));
    });

    assert_eq!(proxy.ended(), 0);
    greet(&mut idle.0, &mut idle.1);
    greet(&mut waiting, &mut listener.accept().unwrap().0);
    for (key, mut stream) in [given, own] {
        stream.write_all(b"?").unwrap();
        let (mut byte, deadline) = ([0], Instant::now() + LONG);
        loop {
            match worker.read(key, &mut byte) {
                Ok(count) => break assert_eq!((count, byte), (1, *b"?")),
                Err(error) if error.kind() == ErrorKind::WouldBlock && Instant::now() < deadline => {
                    worker.poll(&mut Vec::new(), Some(Duration::from_millis(10))).unwrap();
                }
                Err(error) => panic!("{error}"),
            }
        }
    }
    Ok(())
}

/// A side without the bytes does not know the feature, so that the other sends none either. Over TCP
/// nobody sends any, as with std.
fn a_proxy_ends_a_connection_if_either_side_sends_no_bytes(fixture: &Fixture) -> Outcome {
    let (with, without) = (builder(fixture), builder(fixture).control_keepalive(None));
    let pairs = if fixture.is_tcp() {
        vec![[with.clone(), with]]
    } else {
        vec![[with.clone(), without.clone()], [without.clone(), with]]
    };
    for builders in pairs {
        let (proxy, mut client, mut server) = streams(fixture, limit(), builders);
        let before = proxy.carried();
        for stream in [&mut client, &mut server] {
            let error = stream.read(&mut [0]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionReset);
            assert!(error.to_string().contains("the peer went away"), "{error}");
        }
        assert_eq!((proxy.carried(), proxy.ended()), (before, 1));
    }
    if !fixture.is_tcp() {
        let (proxy, client, server) = streams(fixture, limit(), [without.clone(), without]);
        let serving = thread::spawn(|| echo(server));
        let asked = ask_until(client, &AtomicBool::new(false)).unwrap_err();
        let served = serving.join().unwrap();
        assert!(served.is_err() && asked.kind() == ErrorKind::ConnectionReset, "{asked:?} {served:?}");
        assert_eq!(proxy.ended(), 1);
    }
    Ok(())
}

/// Not in a call, and not in a wait for the descriptor of the connection.
fn bytes_wake_no_sleeper(fixture: &Fixture) -> Outcome {
    only_over_rdma!(fixture);
    let builder = builder(fixture).keepalive(None).trace_interval(None);
    let (proxy, mut client, mut server) = streams(fixture, LONG, [builder.clone(), builder]);
    thread::scope(|scope| {
        let (tell, told) = mpsc::channel();
        scope.spawn(move || {
            tell.send(own_number()).unwrap();
            assert_eq!(read_exactly(&mut server, 1), b"x");
        });
        let thread = told.recv().unwrap();
        sees_it_asleep(thread);
        wait_for_bytes(&proxy, 3);
        sees_it_asleep(thread);
        client.set_nonblocking(true).unwrap();
        let timeout = Timespec::try_from(5 * INTERVAL).unwrap();
        // It may be readable without cause, but not for each byte.
        let comes_to_rest = (0..10).any(|_| {
            assert_eq!(client.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
            poll(&mut [PollFd::new(&client, PollFlags::IN)], Some(&timeout)).unwrap() == 0
        });
        assert!(comes_to_rest, "bytes of the control connection are reported");
        client.write_all(b"x").unwrap();
    });
    Ok(())
}

/// Whoever floods gets nothing for it: its bytes stay in the system's buffers, and the connection
/// and its end are as they were.
fn a_flood_of_the_control_connection_ends_in_its_buffer(fixture: &Fixture) -> Outcome {
    only_over_rdma!(fixture);
    let (proxy, mut client, mut server) = streams(fixture, LONG, [builder(fixture), builder(fixture)]);
    let mut rounds = 0;
    while proxy.flood() > 0 {
        rounds += 1;
        assert!(rounds < 20, "it is read again and again");
        thread::sleep(3 * INTERVAL);
        greet(&mut client, &mut server);
    }
    // Others are served, and a flooded connection ends as any other.
    let (mut one, mut other) = fixture.streams_of(builder(fixture), builder(fixture));
    greet(&mut one, &mut other);
    client.write_all(b"the last words").unwrap();
    drop(client);
    let mut words = String::new();
    server.read_to_string(&mut words).unwrap();
    assert_eq!(words, "the last words");
    Ok(())
}
