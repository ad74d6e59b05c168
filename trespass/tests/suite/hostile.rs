//! A listener and a connection under attack by malicious peers.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use test_harness::{Outcome, bytes, cases};
use trespass::{Builder, Kind, Worker};

use super::fixture::{Fixture, LONG, below, greet, random};
use super::parity::storm::raise_limit_of_files;

pub(crate) fn add(suite: &mut test_harness::Suite<Fixture>) {
    cases!(suite: garbage_costs_a_listener_nothing, the_silent_do_not_keep_others_out,
        strangers_beyond_the_backlog_cost_nothing,
        a_client_of_another_protocol_gets_an_answer_that_it_reads, a_server_of_another_protocol_is_named, garbage_in_a_connection_ends_that_connection);
}

/// Bytes that no client of this crate sends.
fn garbage(seed: u64) -> Vec<u8> {
    let mut random = random(seed);
    let mut bytes = bytes(seed, 1 + below(&mut random, 5000));
    match seed % 5 {
        0 => (),
        1 => bytes.iter_mut().zip(b"TRSP").for_each(|(byte, magic)| *byte = *magic),
        2 => {
            // A HELLO with an impossible length.
            bytes.resize(64, 0);
            bytes[..16].copy_from_slice(b"TRSP\x01\x01\x00\x02\xff\xff\xff\x7f\0\0\0\0");
        }
        3 => bytes = b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        _ => bytes.truncate(3),
    }
    bytes
}

/// Serves one greeting, whatever else arrives.
fn still_serves(fixture: &Fixture, listener: &trespass::Listener, addr: SocketAddr) {
    serves(fixture.builder(), listener, addr);
}

fn serves(builder: Builder, listener: &trespass::Listener, addr: SocketAddr) {
    thread::scope(|scope| {
        let connecting = scope.spawn(|| builder.connect(addr).unwrap());
        let (mut server, _) = listener.accept().unwrap();
        let mut client = connecting.join().unwrap();
        greet(&mut client, &mut server);
    });
}

fn garbage_costs_a_listener_nothing(fixture: &Fixture) -> Outcome {
    let (listener, addr) = fixture.listener();
    for round in 0..20 {
        let hostile: Vec<TcpStream> = (0..5)
            .map(|at| {
                let mut stream = TcpStream::connect(addr).unwrap();
                stream.write_all(&garbage(round * 5 + at)).unwrap();
                if at == 0 {
                    // The listener may have closed it already.
                    let _ = stream.shutdown(Shutdown::Write);
                }
                stream
            })
            .collect();
        still_serves(fixture, &listener, addr);
        if round % 2 == 0 {
            drop(hostile);
        }
    }
    Ok(())
}

/// The first message of a client, which names its queue pair.
fn hello(fixture: &Fixture) -> Vec<u8> {
    let other = TcpListener::bind(fixture.anywhere()).unwrap();
    let mut connecting = fixture.builder().start_connect(other.local_addr().unwrap()).unwrap();
    let (mut stream, _) = other.accept().unwrap();
    stream.set_nonblocking(true).unwrap();
    let (mut hello, deadline) = (Vec::new(), Instant::now() + LONG);
    while hello.is_empty() {
        assert!(Instant::now() < deadline && connecting.poll().is_pending());
        // One call takes all: a message is shorter than the buffers of a socket.
        hello.resize(4096, 0);
        let len = stream.read(&mut hello).unwrap_or(0);
        hello.truncate(len);
    }
    hello
}

/// The queue pairs and the registered bytes of this process.
fn on_device() -> [u64; 2] {
    let device = sideway::soft::statistics().unwrap_or_default();
    let pairs = device.queue_pairs.iter().map(|some| u64::from(some.count)).sum();
    [pairs, device.regions.bytes]
}

/// The most of each while a function runs.
fn most_on_device(act: impl FnOnce()) -> [u64; 2] {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let looking = scope.spawn(|| {
            let mut most = [0; 2];
            while !done.load(Ordering::Acquire) {
                let now = on_device();
                most = [most[0].max(now[0]), most[1].max(now[1])];
                thread::sleep(Duration::from_millis(2));
            }
            most
        });
        act();
        done.store(true, Ordering::Release);
        looking.join().unwrap()
    })
}

/// Many clients send nothing, too little, or a HELLO, and stay. Those that sent a HELLO are more than a
/// listener handles at a time. Others are served within the default deadline of a handshake, and no
/// client without a HELLO is turned away for them.
fn the_silent_do_not_keep_others_out(fixture: &Fixture) -> Outcome {
    /// A listener's handshakes at a time. Each that has begun has a queue pair with its receives.
    const PLACES: u64 = 128;
    const RECEIVES: u64 = 512 << 10;
    /// Others are being destroyed, or serve the clients that are not silent.
    const MORE: u64 = 32;
    let count = fixture.less(1000);
    // A listener may accept an eighth of them.
    raise_limit_of_files(2 * count);
    let builder =
        || if test_harness::is_emulated() { fixture.builder() } else { fixture.with_default_times() };
    let listener = builder().bind(fixture.anywhere()).unwrap();
    let addr = listener.local_addr().unwrap();
    let hello = hello(fixture);
    let before = on_device();
    let mut silent = Vec::new();
    let most = most_on_device(|| {
        silent.extend((0..count).map(|at| {
            let mut stream = TcpStream::connect(addr).unwrap();
            match at % 5 {
                0 => stream.write_all(&hello).unwrap(),
                1 | 3 => stream.write_all(b"TRSP\x01").unwrap(),
                _ => (),
            }
            stream
        }));
        let began = Instant::now();
        serves(builder(), &listener, addr);
        println!("beside {count} silent clients one is served after {:?}", began.elapsed());
        let answered = silent.iter().enumerate().filter(|(at, stream)| {
            stream.set_nonblocking(true).unwrap();
            at % 5 != 0 && stream.peek(&mut [0]).is_ok()
        });
        assert_eq!(answered.count(), 0, "clients are turned away, and there is room for them");
        serves(builder(), &listener, addr);
    });
    println!("before, and at most: {before:?} and {most:?} queue pairs and registered bytes");
    assert!(most[0] <= before[0] + PLACES + MORE, "{} queue pairs", most[0]);
    assert!(most[1] <= before[1] + (PLACES + MORE) * RECEIVES, "{} bytes are registered", most[1]);
    drop(silent);
    still_serves(fixture, &listener, addr);
    Ok(())
}

/// The backlog is full, and clients wait that send nothing, or something else, or not enough.
fn strangers_beyond_the_backlog_cost_nothing(fixture: &Fixture) -> Outcome {
    const BACKLOG: u32 = 12;
    let listener = fixture.builder().backlog(BACKLOG).bind(fixture.anywhere()).unwrap();
    let addr = listener.local_addr().unwrap();
    let mut first: Vec<_> = (0..BACKLOG).map(|_| fixture.builder().connect(addr).unwrap()).collect();
    for _ in 0..2 {
        let strangers = (0..BACKLOG).map(|at| {
            let mut stream = TcpStream::connect(addr).unwrap();
            let bytes: &[u8] = [&b""[..], b"TRSP\x01", b"GET / HTTP/1.1\r\n\r\n"][at as usize % 3];
            stream.write_all(bytes).unwrap();
            stream.set_read_timeout(Some(LONG)).unwrap();
            (bytes, stream)
        });
        for (bytes, mut stream) in strangers.collect::<Vec<_>>() {
            // Each gets an answer, and then the end.
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).unwrap();
            let expected: &[u8] = if bytes.starts_with(b"GET") { b"HTTP/" } else { b"TRSP\x02" };
            assert!(answer.starts_with(expected), "{}", answer.escape_ascii());
        }
    }
    for client in &mut first {
        greet(client, &mut listener.accept().unwrap().0);
    }
    still_serves(fixture, &listener, addr);
    Ok(())
}

/// The clients' first bytes, and how a listener's answer begins.
const OTHER_PROTOCOLS: [(&[u8], &[u8]); 6] = [
    (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"HTTP/1.1 400 Bad Request\r\n"),
    (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"HTTP/1.1 400 Bad Request\r\n"),
    (&[22, 3, 1, 0, 200, 1, 0, 0, 196, 3, 3], &[21, 3, 1, 0, 2, 2, 40]),
    (b"SSH-2.0-x\r\n", b"This port speaks trespass"),
    (b"EHLO mail.example\r\n", b"This port speaks trespass"),
    (&[0; 64], b""),
];

/// Sends all bytes in pieces, as a client does that has more to say, and reads until the end.
fn answer_to(addr: SocketAddr, first: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(addr).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream.write_all(&first[..3]).unwrap();
    thread::sleep(Duration::from_millis(20));
    stream.write_all(&first[3..]).unwrap();
    // What follows arrives after the answer. A reset would fail one of the calls.
    for _ in 0..3 {
        thread::sleep(Duration::from_millis(20));
        stream.write_all(&[b'x'; 5000]).expect("the listener reads on");
    }
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("an orderly end");
    answer
}

fn a_client_of_another_protocol_gets_an_answer_that_it_reads(fixture: &Fixture) -> Outcome {
    let check = |addr| {
        for (first, expected) in OTHER_PROTOCOLS {
            let answer = answer_to(addr, first);
            assert!(answer.starts_with(expected), "{}: {}", first.escape_ascii(), answer.escape_ascii());
            assert_eq!(answer.is_empty(), expected.is_empty(), "{}", answer.escape_ascii());
        }
    };
    let (listener, addr) = fixture.listener();
    check(addr);
    still_serves(fixture, &listener, addr);
    // The listener of a worker, too.
    let mut worker = Worker::new(&fixture.builder().build().unwrap()).unwrap();
    let listening = worker.listen(fixture.anywhere(), Kind::Stream).unwrap();
    let addr = worker.local_addr(listening).unwrap();
    thread::scope(|scope| {
        let checking = scope.spawn(|| check(addr));
        let mut events = Vec::new();
        while !checking.is_finished() {
            worker.poll(&mut events, Some(Duration::from_millis(20))).unwrap();
        }
        assert!(events.is_empty(), "{events:?}");
        checking.join().unwrap();
    });
    Ok(())
}

fn a_server_of_another_protocol_is_named(fixture: &Fixture) -> Outcome {
    let servers: [(&[u8], &str); 4] = [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "it began with \"HTTP\", as an HTTP server does,"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "it began with \"SSH-\", as an SSH program does,"),
        (b"220 mail.example ESMTP\r\n", "it began with \"220 \", as a mail or FTP server does,"),
        (&[21, 3, 3, 0, 2, 2, 10], "it began with \"\\x15\\x03\\x03\\x00\", as a TLS server does,"),
    ];
    let other = TcpListener::bind(fixture.anywhere()).unwrap();
    let addr = other.local_addr().unwrap();
    for (said, named) in servers {
        let error = thread::scope(|scope| {
            let other = &other;
            scope.spawn(move || {
                let (mut stream, _) = other.accept().unwrap();
                stream.write_all(said).unwrap();
                let _ = stream.read(&mut [0; 4096]);
            });
            fixture.builder().connect(addr).unwrap_err()
        });
        assert_eq!(error.kind(), ErrorKind::InvalidData);
        assert!(error.to_string().contains(named), "{error}");
    }
    Ok(())
}

/// Relays the handshake between a client and a server, and then sends random bytes to the server.
fn garbage_in_a_connection_ends_that_connection(fixture: &Fixture) -> Outcome {
    let (listener, addr) = fixture.listener();
    listener.set_accept_timeout(Some(LONG)).unwrap();
    for seed in 0..20 {
        let middle = TcpListener::bind(fixture.anywhere()).unwrap();
        let there = middle.local_addr().unwrap();
        thread::scope(|scope| {
            let connecting = scope.spawn(move || fixture.builder().connect(there).unwrap());
            scope.spawn(move || {
                let (client, _) = middle.accept().unwrap();
                let server = TcpStream::connect(addr).unwrap();
                let (mut from_server, mut to_client) =
                    (server.try_clone().unwrap(), client.try_clone().unwrap());
                thread::scope(|scope| {
                    scope.spawn(move || {
                        let _ = std::io::copy(&mut from_server, &mut to_client);
                        let _ = to_client.shutdown(Shutdown::Both);
                    });
                    let (mut from_client, mut to_server) = (client, server);
                    from_client.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
                    let mut buffer = [0; 4096];
                    while let Ok(count @ 1..) = from_client.read(&mut buffer) {
                        to_server.write_all(&buffer[..count]).unwrap();
                    }
                    let _ = to_server.write_all(&bytes(seed, 4096));
                    let _ = to_server.shutdown(Shutdown::Write);
                });
            });
            let (mut server, _) = listener.accept().unwrap();
            let client = connecting.join().unwrap();
            server.set_read_timeout(Some(LONG)).unwrap();
            let mut buffer = [0; 5000];
            let error = loop {
                match server.read(&mut buffer) {
                    Ok(count) => assert!(count > 0, "garbage is no orderly end"),
                    Err(error) => break error,
                }
            };
            assert!(
                matches!(error.kind(), ErrorKind::InvalidData | ErrorKind::ConnectionReset),
                "seed {seed}: {error}"
            );
            drop(client);
        });
    }
    still_serves(fixture, &listener, addr);
    Ok(())
}
