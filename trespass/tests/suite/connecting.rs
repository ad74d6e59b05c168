//! Connects that do not block: one thread has many of them, and waits for their descriptors only.

use std::io::{self, ErrorKind};
use std::net::{Ipv6Addr, TcpListener};
use std::os::fd::AsFd;
use std::task::Poll;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use test_harness::{Outcome, cases, skip};
use trespass::{Connecting, Listener, SeqPacket, Stream};

use super::accepting::full_listener;
use super::close::{descriptors, held, held_at_rest};
use super::fixture::{Fixture, LONG, greet};

pub(crate) fn add(suite: &mut test_harness::Suite<Fixture>) {
    cases!(suite: i8_one_thread_makes_many_connections_at_once, i8_edges_suffice_for_a_connect,
        a_connect_can_be_waited_for, a_refused_connect_ends, i8_an_unanswered_connect_ends_in_time,
        i8_a_connect_goes_on_when_a_busy_listener_has_room, i14_a_dropped_connect_leaves_nothing_behind,
        ipv6_loopback_has_the_same_transport, both_ends_use_the_configured_host);
}

fn limit() -> Timespec {
    Timespec::try_from(LONG).unwrap()
}

/// Waits, and retries after an interruption.
fn again<T>(mut wait: impl FnMut() -> rustix::io::Result<T>) -> T {
    loop {
        match wait() {
            Err(rustix::io::Errno::INTR) => (),
            outcome => return outcome.unwrap(),
        }
    }
}

/// Waits until one of the descriptors is readable, and returns which are.
fn readable<T>(connecting: &[Connecting<T>]) -> Vec<bool> {
    let mut waited: Vec<_> =
        connecting.iter().map(|connecting| PollFd::new(connecting, PollFlags::IN)).collect();
    assert!(again(|| poll(&mut waited, Some(&limit()))) > 0, "a connect stands still");
    waited.iter().map(|waited| !waited.revents().is_empty()).collect()
}

/// Polls until the connect ends. Only its descriptor says when.
fn end_of<T>(connecting: Connecting<T>) -> io::Result<T> {
    let mut only = [connecting];
    loop {
        if let Poll::Ready(result) = only[0].poll() {
            let again = only[0].poll();
            assert!(matches!(again, Poll::Ready(Err(_))), "the result is there twice");
            return result;
        }
        readable(&only);
    }
}

/// Accepts the connection of a client, and greets it.
fn greet_accepted(listener: &Listener, clients: &mut Vec<Stream>) {
    let (mut server, peer) = listener.accept().unwrap();
    let at = clients.iter().position(|client| client.local_addr().unwrap() == peer);
    greet(&mut clients.swap_remove(at.expect("a client of this test")), &mut server);
}

/// The fixture checks the transport of both ends.
fn ipv6_loopback_has_the_same_transport(fixture: &Fixture) -> Outcome {
    if fixture.is_by_cm() || !(fixture.is_soft() || fixture.is_tcp()) {
        skip!("no device has this address");
    }
    let loopback = fixture.at(Ipv6Addr::LOCALHOST.into());
    if let Err(error) = TcpListener::bind(loopback.anywhere()) {
        skip!("the host has no IPv6: {error}");
    }
    let (mut client, mut server) = loopback.streams();
    assert!(client.peer_addr().unwrap().is_ipv6() && server.peer_addr().unwrap().is_ipv6());
    greet(&mut client, &mut server);
    let (mut client, mut server) = loopback.packets();
    client.send(b"?").unwrap();
    assert_eq!(server.recv(&mut [0; 8]).unwrap(), 1);
    Ok(())
}

/// The configuration has the address of the listener, and the client's.
fn both_ends_use_the_configured_host(fixture: &Fixture) -> Outcome {
    let ip = fixture.anywhere().ip();
    let builder = fixture.builder().bind_host(ip.to_string()).port(0);
    let listener = builder.clone().bind_configured().unwrap();
    assert_eq!(listener.local_addr().unwrap().ip(), ip);
    let mut client = builder.connect(&*listener.advertised_addr()).unwrap();
    let (mut server, peer) = listener.accept().unwrap();
    assert_eq!((client.local_addr().unwrap(), peer.ip()), (peer, ip));
    greet(&mut client, &mut server);
    assert_eq!(client.transport() == trespass::Transport::Rdma, !fixture.is_tcp());
    Ok(())
}

/// The server is in the same thread, and accepts when all have connected.
fn i8_one_thread_makes_many_connections_at_once(fixture: &Fixture) -> Outcome {
    let count = fixture.less(50);
    let (listener, addr) = fixture.listener();
    let config = fixture.builder().handshake_deadline(LONG).build().unwrap();
    let mut connecting: Vec<Connecting<Stream>> =
        (0..count).map(|_| config.start_connect(addr).unwrap()).collect();
    assert!(connecting.iter().all(|connecting| connecting.peer_addr() == addr));
    let mut connected = Vec::new();
    while !connecting.is_empty() {
        for (at, is_readable) in readable(&connecting).into_iter().enumerate().rev() {
            if is_readable && let Poll::Ready(result) = connecting[at].poll() {
                drop(connecting.swap_remove(at));
                connected.push(result.unwrap());
            }
        }
    }
    assert_eq!(connected.len(), count);
    for _ in 0..count {
        greet_accepted(&listener, &mut connected);
    }
    Ok(())
}

/// One call for each edge, and none for a level.
fn i8_edges_suffice_for_a_connect(fixture: &Fixture) -> Outcome {
    let (listener, addr) = fixture.listener();
    for _ in 0..5 {
        let mut connecting = fixture.builder().start_connect(addr).unwrap();
        let set = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let edges = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&set, connecting.as_fd(), epoll::EventData::new_u64(1), edges).unwrap();
        let client = loop {
            let mut events =
                [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }; 4];
            assert!(again(|| epoll::wait(&set, &mut events[..], Some(&limit()))) > 0, "no further edge");
            if let Poll::Ready(result) = connecting.poll() {
                break result.unwrap();
            }
        };
        greet_accepted(&listener, &mut vec![client]);
    }
    Ok(())
}

fn a_connect_can_be_waited_for(fixture: &Fixture) -> Outcome {
    let (listener, addr) = fixture.listener();
    let client = fixture.builder().start_connect(addr).unwrap().wait().unwrap();
    greet_accepted(&listener, &mut vec![client]);
    let (listener, addr) = fixture.listener();
    let mut packets: SeqPacket = end_of(fixture.builder().start_connect_seq_packet(addr).unwrap()).unwrap();
    packets.send(b"a message").unwrap();
    let (mut server, _) = listener.accept_seq_packet().unwrap();
    assert_eq!(server.recv(&mut [0; 16]).unwrap(), 9);
    Ok(())
}

fn a_refused_connect_ends(fixture: &Fixture) -> Outcome {
    let nobody = fixture.nobody();
    let refused = |error: io::Error| {
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{error}");
        assert!(error.to_string().contains(&nobody.to_string()), "{error}");
    };
    refused(fixture.builder().start_connect(nobody).and_then(end_of).unwrap_err());
    refused(fixture.builder().start_connect(nobody).and_then(Connecting::wait).unwrap_err());
    Ok(())
}

fn i8_an_unanswered_connect_ends_in_time(fixture: &Fixture) -> Outcome {
    let (silent, _listener) = fixture.taken();
    let deadline = Duration::from_millis(300);
    let builder = fixture.builder().probe_timeout(deadline / 2).handshake_deadline(deadline);
    let began = Instant::now();
    let mut connecting = builder.start_connect(silent).unwrap();
    assert!(connecting.deadline() <= Instant::now() + deadline);
    let error = end_of(connecting).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    assert!(began.elapsed() >= deadline, "{:?}: {error}", began.elapsed());
    Ok(())
}

/// The listener's program is this thread, which accepts after the listener has said that it is busy.
fn i8_a_connect_goes_on_when_a_busy_listener_has_room(fixture: &Fixture) -> Outcome {
    let (listener, addr, mut first) = full_listener(fixture, 2);
    let connecting = fixture.builder().handshake_deadline(LONG).start_connect(addr).unwrap();
    let mut only = [connecting];
    let busy_until = Instant::now() + Duration::from_millis(2500);
    while Instant::now() < busy_until {
        let pending = only[0].poll().is_pending();
        assert!(pending, "it has found a place beyond the backlog");
        // Between two attempts nothing is readable for a moment.
        let mut waited = [PollFd::new(&only[0], PollFlags::IN)];
        let short = Timespec::try_from(Duration::from_millis(50)).unwrap();
        again(|| poll(&mut waited, Some(&short)));
    }
    greet_accepted(&listener, &mut first);
    let [connecting] = only;
    let mut clients = vec![end_of(connecting).unwrap()];
    greet_accepted(&listener, &mut first);
    greet_accepted(&listener, &mut clients);
    Ok(())
}

/// Connects that are dropped at each of their steps.
fn drop_some(fixture: &Fixture, rounds: usize) {
    let pool = trespass::Pool::new(&fixture.builder().build().unwrap().pool_config()).unwrap();
    let builder = || fixture.builder().pool(pool.clone());
    let listener = builder().bind(fixture.anywhere()).unwrap();
    let (silent, _taken) = fixture.taken();
    let addr = listener.local_addr().unwrap();
    for round in 0..rounds {
        let addr = if round % 8 == 7 { silent } else { addr };
        let mut only = [builder().start_connect(addr).unwrap()];
        for _ in 0..round % 7 {
            if only[0].poll().is_ready() || addr == silent {
                break;
            }
            readable(&only);
        }
    }
    drop(listener);
    // A pool lives as long as a thread has blocks of it in its cache.
    pool.flush();
}

fn i14_a_dropped_connect_leaves_nothing_behind(fixture: &Fixture) -> Outcome {
    drop_some(fixture, 16);
    let before = held_at_rest();
    let descriptors_before = descriptors();
    drop_some(fixture, fixture.less(96));
    let left = || before.into_iter().zip(held()).find(|((_, then), (_, now))| now > then);
    let patience = Instant::now() + LONG;
    while let Some(((name, then), (_, now))) = left() {
        assert!(
            Instant::now() < patience,
            "{name}: {then} before, {now} after: {descriptors_before:?} {:?}",
            descriptors()
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}
