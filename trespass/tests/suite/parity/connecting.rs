//! Connecting needs no accept: the backlog has the connections until the program takes them.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::{Barrier, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use test_harness::{Outcome, skip};

use super::net::{Net, NetListener, NetStream, Own, Seen, Std, seen};
use super::{compare, compared};
use crate::fixture::{Fixture, LONG, read_exactly};

pub(crate) fn add(suite: &mut test_harness::Suite<Fixture>) {
    compared!(suite: a_connect_needs_no_accept, two_peers_connect_to_each_other,
        several_threads_accept_from_one_listener, a_server_serves_one_client_at_a_time,
        a_server_works_between_two_accepts, a_server_accepts_at_each_tick,
        a_dropped_listener_resets_those_who_wait, the_port_of_a_dropped_listener_is_free, wrong_addresses);
    test_harness::cases!(suite: busy_servers_with_default_times, addresses_of_a_host, errors_of_the_system);
}

/// A byte to the peer and one back.
fn is_echoed(client: &mut impl NetStream, server: &mut impl NetStream) -> bool {
    client.write_all(b"?").unwrap();
    let asked = read_exactly(server, 1);
    server.write_all(b"!").unwrap();
    (asked, read_exactly(client, 1)) == (b"?".to_vec(), b"!".to_vec())
}

/// Echoes one byte of each of `clients`, one after the other, and reads their ends.
fn echo_one_by_one<L: NetListener<Stream: NetStream>>(listener: &L, clients: usize) {
    for _ in 0..clients {
        let mut server = listener.accept().unwrap();
        let byte = read_exactly(&mut server, 1);
        server.write_all(&byte).unwrap();
        assert_eq!(server.read(&mut [0]).unwrap(), 0);
    }
}

/// Sends a byte and gets it back.
fn ask<N: Net>(net: &N, addr: SocketAddr, byte: u8) -> u8 {
    let mut client = net.connect(addr).unwrap();
    client.write_all(&[byte]).unwrap();
    read_exactly(&mut client, 1)[0]
}

/// One thread has both ends. Written bytes wait for the accept, too.
fn a_connect_needs_no_accept<N: Net>(net: &N) -> Vec<(bool, Vec<u8>, bool)> {
    let (listener, addr) = net.listen();
    let mut clients: Vec<_> = (0..5).map(|_| net.connect(addr).unwrap()).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        client.write_all(&[number as u8; 5]).unwrap();
    }
    // Longer than a handshake and its proof of the data path may take.
    thread::sleep(Duration::from_millis(400));
    let mut observed = Vec::new();
    for mut client in clients {
        let mut server = listener.accept().unwrap();
        let is_first = server.peer_addr().unwrap() == client.local_addr().unwrap();
        let early = read_exactly(&mut server, 5);
        observed.push((is_first, early, is_echoed(&mut client, &mut server)));
    }
    observed
}

fn two_peers_connect_to_each_other<N: Net>(net: &N) -> [bool; 2] {
    let [(here, here_addr), (there, there_addr)] = [net.listen(), net.listen()];
    let both = Barrier::new(2);
    let crossing = |listener: N::Listener, addr| {
        both.wait();
        let connected = net.connect(addr).unwrap();
        (connected, listener.accept().unwrap())
    };
    let ((mut to_other, mut from_other), (mut to_one, mut from_one)) = thread::scope(|scope| {
        let one = scope.spawn(|| crossing(here, there_addr));
        let other = crossing(there, here_addr);
        (one.join().unwrap(), other)
    });
    [is_echoed(&mut to_other, &mut from_one), is_echoed(&mut to_one, &mut from_other)]
}

fn several_threads_accept_from_one_listener<N: Net>(net: &N) -> Vec<u8> {
    const THREADS: usize = 4;
    const EACH: usize = 4;
    let (listener, addr) = net.listen();
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| echo_one_by_one(&listener, EACH));
        }
        (0..THREADS * EACH).map(|number| ask(net, addr, number as u8)).collect()
    })
}

fn a_server_serves_one_client_at_a_time<N: Net>(net: &N) -> Vec<u8> {
    serve_one_at_a_time(net, Duration::ZERO)
}

/// The first client leaves when the second has connected and written, and this time has passed.
fn serve_one_at_a_time<N: Net>(net: &N, time: Duration) -> Vec<u8> {
    let (listener, addr) = net.listen();
    thread::scope(|scope| {
        scope.spawn(|| echo_one_by_one(&listener, 2));
        let mut first = net.connect(addr).unwrap();
        first.write_all(b"1").unwrap();
        let mut answers = read_exactly(&mut first, 1);
        let (wrote, has_written) = mpsc::channel();
        let second = scope.spawn(move || {
            let mut second = net.connect(addr).unwrap();
            second.write_all(b"2").unwrap();
            wrote.send(()).unwrap();
            read_exactly(&mut second, 1)
        });
        has_written.recv_timeout(LONG).expect("the second client connects while the first is served");
        thread::sleep(time);
        drop(first);
        answers.extend(second.join().unwrap());
        answers
    })
}

/// Each of some clients connects this many times, one connection after the other.
fn ask_often<N: Net>(net: &N, addr: SocketAddr, clients: u8, each: u8) -> Vec<u8> {
    thread::scope(|scope| {
        let ask = |client: u8| (0..each).map(|at| ask(net, addr, client * each + at)).collect::<Vec<_>>();
        let clients: Vec<_> = (0..clients).map(|client| scope.spawn(move || ask(client))).collect();
        clients.into_iter().flat_map(|client| client.join().unwrap()).collect()
    })
}

fn a_server_works_between_two_accepts<N: Net>(net: &N) -> Vec<u8> {
    work_between_accepts(net, Duration::from_millis(50), 4, 3)
}

fn work_between_accepts<N: Net>(net: &N, work: Duration, clients: u8, each: u8) -> Vec<u8> {
    let (listener, addr) = net.listen();
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..clients * each {
                let mut server = listener.accept().unwrap();
                thread::sleep(work);
                let byte = read_exactly(&mut server, 1);
                server.write_all(&byte).unwrap();
            }
        });
        ask_often(net, addr, clients, each)
    })
}

/// The clients come at any time between two ticks.
fn accept_at_each_tick<N: Net>(net: &N, tick: Duration, clients: u8, each: u8) -> Vec<u8> {
    let (listener, addr) = net.listen();
    listener.set_nonblocking(true).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            let (mut served, deadline) = (0, Instant::now() + LONG);
            while served < clients * each {
                assert!(Instant::now() < deadline, "{served} were accepted");
                thread::sleep(tick);
                while let Ok(mut server) = listener.accept() {
                    let byte = read_exactly(&mut server, 1);
                    server.write_all(&byte).unwrap();
                    served += 1;
                }
            }
        });
        ask_often(net, addr, clients, each)
    })
}

/// Each connection uses the transport, although the server's program is busy for longer than the
/// data path's proof may take, and for longer than the deadline of a handshake.
fn busy_servers_with_default_times(fixture: &Fixture) -> Outcome {
    fn busy<N: Net>(net: &N) -> Vec<Vec<u8>> {
        let scenarios: [fn(&N) -> Vec<u8>; 4] = [
            |net| work_between_accepts(net, Duration::from_millis(150), 4, 3),
            |net| work_between_accepts(net, Duration::from_secs(1), 4, 1),
            |net| accept_at_each_tick(net, Duration::from_millis(400), 4, 3),
            |net| serve_one_at_a_time(net, Duration::from_secs(6)),
        ];
        thread::scope(|scope| {
            let scenarios = scenarios.map(|scenario| scope.spawn(move || scenario(net)));
            scenarios.into_iter().map(|scenario| scenario.join().unwrap()).collect()
        })
    }
    if test_harness::is_emulated() {
        skip!("an emulated processor needs longer than the default times");
    }
    compare(fixture, busy::<Std>, |own: &Own| busy(&own.clone().with(|_| fixture.with_default_times())))
}

/// All have connected before the first accept.
fn a_server_accepts_at_each_tick<N: Net>(net: &N) -> Vec<Seen<u8>> {
    const CLIENTS: usize = 3;
    let (listener, addr) = net.listen();
    listener.set_nonblocking(true).unwrap();
    let connected = Barrier::new(CLIENTS + 1);
    thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| {
                scope.spawn(|| {
                    let mut client = net.connect(addr).unwrap();
                    connected.wait();
                    let mut byte = [0];
                    seen(client.read_exact(&mut byte)).map(|()| byte[0])
                })
            })
            .collect();
        connected.wait();
        let (mut accepted, deadline) = (Vec::new(), Instant::now() + LONG);
        while accepted.len() < CLIENTS && Instant::now() < deadline {
            while let Ok(mut server) = listener.accept() {
                server.write_all(b"!").unwrap();
                accepted.push(server);
            }
            thread::sleep(Duration::from_millis(20));
        }
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    })
}

fn a_dropped_listener_resets_those_who_wait<N: Net>(net: &N) -> Seen<usize> {
    let (listener, addr) = net.listen();
    let mut client = net.connect(addr).unwrap();
    drop(listener);
    seen(client.read(&mut [0; 8]))
}

fn the_port_of_a_dropped_listener_is_free<N: Net>(net: &N) -> (Seen<()>, bool) {
    let (listener, addr) = net.listen();
    let twice = seen(net.bind(addr).map(drop));
    let _client = net.connect(addr).unwrap();
    drop(listener);
    let again = net.bind(addr).unwrap();
    let mut client = net.connect(addr).unwrap();
    (twice, is_echoed(&mut client, &mut again.accept().unwrap()))
}

/// Addresses that no system is asked for.
const WRONG: [&str; 5] = ["", "127.0.0.1", "127.0.0.1:99999", "127.0.0.1:", "[::1:80"];

fn wrong_addresses<N: Net>(net: &N) -> Vec<[Seen<()>; 2]> {
    let kinds = |addr| [seen(net.connect(addr).map(drop)), seen(net.bind(addr).map(drop))];
    WRONG.into_iter().map(kinds).collect()
}

fn errors_of_the_system(fixture: &Fixture) -> Outcome {
    fn nobody() -> SocketAddr {
        TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
    }
    fn errors<N: Net>(net: &N, nobody: SocketAddr) -> Vec<Seen<()>> {
        let connect = |addr: &str| seen(net.connect(addr).map(drop));
        vec![
            seen(net.connect(nobody).map(drop)),
            connect("127.0.0.1:0"),
            connect("0.0.0.0:0"),
            // No name server has this name (RFC 6761).
            connect("nobody.invalid:80"),
            seen(net.bind("nobody.invalid:80").map(drop)),
            connect("255.255.255.255:9"),
            seen(net.bind("192.0.2.1:9").map(drop)),
        ]
    }
    let own = Own::new(fixture);
    if fixture.is_by_cm() {
        // The connection manager has its own errors for an address that no device reaches.
        assert_eq!(seen(own.connect(fixture.nobody()).map(drop)), Err(ErrorKind::ConnectionRefused));
        return Ok(());
    }
    assert_eq!(errors(&own, fixture.nobody()), errors(&Std, nobody()), "this crate, and `std::net`");
    Ok(())
}

/// The addresses that clients and servers see, for each address of the listener and of the client.
fn addresses<N: Net>(net: &N) -> Vec<Seen<[IpAddr; 4]>> {
    let mut observed = Vec::new();
    for at in ["127.0.0.1:0", "[::1]:0", "0.0.0.0:0", "[::]:0", "localhost:0", "127.0.0.5:0"] {
        let listener = match seen(net.bind(at)) {
            Ok(listener) => listener,
            Err(kind) => {
                observed.push(Err(kind));
                continue;
            }
        };
        let port = listener.local_addr().unwrap().port();
        for to in ["127.0.0.1", "::1", "localhost"] {
            observed.push(seen(net.connect((to, port))).map(|client| {
                let server = listener.accept().unwrap();
                [client.local_addr(), client.peer_addr(), server.local_addr(), server.peer_addr()]
                    .map(|addr| addr.unwrap().ip())
            }));
        }
    }
    observed
}

fn addresses_of_a_host(fixture: &Fixture) -> Outcome {
    if fixture.is_by_cm() {
        skip!("the connection manager has the addresses of devices alone");
    }
    compare(fixture, addresses, |own: &Own| addresses(&own.clone().with_fallback()))
}
