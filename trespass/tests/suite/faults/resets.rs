//! Resets that the device sends late or never, after the program has dropped the connection.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::thread;
use std::time::{Duration, Instant};

use sideway::soft::faults;
use test_harness::{Outcome, Suite, cases};
use trespass::{Config, Event, Key, Kind, Stream, Worker};

use super::{all_have_acted, builder, rules, streams};
use crate::fixture::{Fixture, LONG};

pub(super) fn add(suite: &mut Suite<Fixture>) {
    cases!(suite: a_reset_that_the_device_sends_late_arrives, a_reset_that_no_device_sends_ends_the_socket);
}

/// Polls until an event is the one.
fn poll_until(worker: &mut Worker, is_it: impl Fn(&Event) -> Option<Key>) -> Key {
    let (mut events, deadline) = (Vec::new(), Instant::now() + LONG);
    loop {
        assert!(Instant::now() < deadline, "{events:?}");
        worker.poll(&mut events, Some(Duration::from_millis(10))).unwrap();
        if let Some(key) = events.iter().find_map(&is_it) {
            return key;
        }
    }
}

/// The server has got the end when its peer drops the connection. Then it must get the reset.
fn must_be_told(mut server: Stream, what: &str, drops: impl FnOnce()) {
    server.set_read_timeout(Some(LONG)).unwrap();
    assert_eq!(server.read(&mut [0; 8]).unwrap(), 0, "{what}");
    rules("delay=5ms opcode=send,send_with_imm", 1);
    drops();
    let deadline = Instant::now() + LONG;
    let error = loop {
        assert!(Instant::now() < deadline, "{what}: the reset has not come");
        match server.take_error().unwrap() {
            Some(error) => break error,
            None => thread::sleep(Duration::from_millis(1)),
        }
    };
    assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{what}");
    all_have_acted();
    faults::clear();
}

/// A device may send a RESET late, and sends none for a queue pair that is gone. After this side's FIN
/// the peer would take that for the end.
fn a_reset_that_the_device_sends_late_arrives(fixture: &Fixture) -> Outcome {
    faults::clear();
    let zero = builder(fixture).linger(Duration::ZERO);
    let ways = [("linger time", &zero), ("in a worker", &zero), ("unread bytes", &builder(fixture))];
    for (what, builder) in ways {
        let [client, mut server] = streams(fixture, builder);
        server.write_all(b"unread").unwrap();
        client.peek(&mut [0; 8]).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        must_be_told(server, what, || {
            if what == "in a worker" {
                let mut worker = Worker::new(&Config::default()).unwrap();
                let key = worker.add(client).unwrap();
                worker.close(key);
            } else {
                drop(client);
            }
        });
    }
    for (what, closes) in [("close of a worker's own", true), ("drop of a worker", false)] {
        let listener = zero.clone().bind(fixture.anywhere()).unwrap();
        let mut worker = Worker::new(&zero.clone().build().unwrap()).unwrap();
        worker.connect(listener.local_addr().unwrap(), Kind::Stream).unwrap();
        let key = poll_until(&mut worker, |event| match event {
            Event::Connected { key, .. } => Some(*key),
            _ => None,
        });
        let (server, _) = listener.accept().unwrap();
        worker.shutdown(key, Shutdown::Write).unwrap();
        worker.poll(&mut Vec::new(), Some(Duration::ZERO)).unwrap();
        let mut worker = Some(worker);
        must_be_told(server, what, || match &mut worker {
            Some(worker) if closes => worker.close(key),
            _ => worker = None,
        });
    }
    Ok(())
}

/// A worker gives up a RESET long before its linger time, also if its connections have timers.
fn a_reset_that_no_device_sends_ends_the_socket(fixture: &Fixture) -> Outcome {
    let builder = builder(fixture).linger(Duration::from_secs(3600));
    let builder = builder.keepalive(Some(Duration::from_millis(100)));
    for closes in [true, false] {
        faults::clear();
        let mut worker = Worker::new(&builder.clone().build().unwrap()).unwrap();
        let listener = worker.listen(fixture.anywhere(), Kind::Stream).unwrap();
        let (addr, builder) = (worker.local_addr(listener).unwrap(), builder.clone());
        let connecting = thread::spawn(move || {
            let mut client = builder.connect(addr).unwrap();
            client.write_all(b"unread").unwrap();
            client
        });
        let key = poll_until(&mut worker, |event| match event {
            Event::Ready { key, readiness, .. } if readiness.readable => Some(*key),
            _ => None,
        });
        let mut client = connecting.join().unwrap();
        rules("delay=3600s opcode=send,send_with_imm", 1);
        worker.close(key);
        let worker = Some(worker).filter(|_| closes);
        client.set_read_timeout(Some(LONG)).unwrap();
        let error = client.read(&mut [0; 8]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
        all_have_acted();
        drop(worker);
    }
    faults::clear();
    Ok(())
}
