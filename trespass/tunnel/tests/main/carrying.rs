//! Bytes, ends and back-pressure.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::thread;
use std::time::Duration;

use test_harness::bytes;

use crate::fixture::{Pair, TestTransport, over_each_transport, pass, read_all};

over_each_transport!(
    bytes_arrive_intact_both_ways_at_once,
    a_client_ends_its_direction_first,
    a_target_ends_its_direction_first,
    a_target_that_does_not_read_stops_the_client,
    a_client_that_does_not_read_stops_the_target,
    connections_are_logged_with_transport_bytes_and_end,
);

fn bytes_arrive_intact_both_ways_at_once(transport: TestTransport) {
    let pair = Pair::start(transport);
    let (client, target) = pair.connection();
    let len = transport.less(8 << 20);
    let both = |stream: TcpStream, seed: [u64; 2]| {
        let mut writer = stream.try_clone().expect("a copy");
        let writing = thread::spawn(move || {
            writer.write_all(&bytes(seed[0], len)).expect("a connection");
            writer.shutdown(Shutdown::Write).expect("a connection");
        });
        let mut reader = stream;
        let reading = thread::spawn(move || read_all(&mut reader).expect("an end") == bytes(seed[1], len));
        (writing, reading)
    };
    for (writing, reading) in [both(client, [1, 2]), both(target, [2, 1])] {
        writing.join().expect("it writes all");
        assert!(reading.join().expect("it reads all"), "the bytes differ");
    }
}

fn a_client_ends_its_direction_first(transport: TestTransport) {
    let pair = Pair::start(transport);
    let (mut client, mut target) = pair.connection();
    client.write_all(b"a question").expect("a connection");
    client.shutdown(Shutdown::Write).expect("a connection");
    assert_eq!(read_all(&mut target).expect("an end"), b"a question");
    let answer = bytes(3, 1 << 20);
    target.write_all(&answer).expect("a connection");
    drop(target);
    assert!(read_all(&mut client).expect("an end") == answer);
}

fn a_target_ends_its_direction_first(transport: TestTransport) {
    let pair = Pair::start(transport);
    let (mut client, mut target) = pair.connection();
    target.write_all(b"a banner").expect("a connection");
    target.shutdown(Shutdown::Write).expect("a connection");
    assert_eq!(read_all(&mut client).expect("an end"), b"a banner");
    pass(&mut client, &mut target, &bytes(4, 100_000));
    drop(client);
    assert_eq!(read_all(&mut target).expect("an end"), b"");
}

fn a_target_that_does_not_read_stops_the_client(transport: TestTransport) {
    let pair = Pair::start(transport);
    let (client, target) = pair.connection();
    stops(&pair, client, target);
}

fn a_client_that_does_not_read_stops_the_target(transport: TestTransport) {
    let pair = Pair::start(transport);
    let (client, target) = pair.connection();
    stops(&pair, target, client);
}

/// Writes until nobody takes more, and reads all of it only then.
fn stops(pair: &Pair, mut writer: TcpStream, mut reader: TcpStream) {
    // The kernel's buffers of three connections, and those of two ends: far below that.
    const MOST: usize = 128 << 20;
    const MOST_MEMORY: usize = 32 << 20;
    let before = [pair.serve.memory(), pair.connect.memory()];
    let piece = bytes(5, 1 << 20);
    writer.set_write_timeout(Some(Duration::from_millis(500))).expect("an option");
    let mut written = 0;
    loop {
        match writer.write(&piece[written % piece.len()..]) {
            Ok(count) => written += count,
            // A slow machine may be taken for a stop. The rest of the test holds then, too.
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) => panic!("{error}"),
        }
        assert!(written < MOST, "the writer is not stopped");
    }
    for (program, before) in [&pair.serve, &pair.connect].into_iter().zip(before) {
        let more = program.memory().saturating_sub(before);
        assert!(more < MOST_MEMORY, "{more} bytes more than before");
    }
    writer.shutdown(Shutdown::Write).expect("a connection");
    let mut read = vec![0; piece.len()];
    let mut rest = written;
    while rest > 0 {
        let count = rest.min(piece.len());
        reader.read_exact(&mut read[..count]).expect("what was written");
        assert!(read[..count] == piece[..count], "the bytes differ");
        rest -= count;
    }
    assert_eq!(reader.read(&mut read).expect("an end"), 0);
}

fn connections_are_logged_with_transport_bytes_and_end(transport: TestTransport) {
    let pair = Pair::start(transport);
    let (mut client, mut target) = pair.connection();
    pass(&mut client, &mut target, b"12345");
    pass(&mut target, &mut client, b"123");
    let peer = client.local_addr().expect("an address").to_string();
    drop((client, target));
    let transport = if transport == TestTransport::Tcp { "transport=\"TCP\"" } else { "transport=\"RDMA\"" };
    let words = ["closed by both sides", transport];
    pair.connect.wait_for_log(&[&words[..], &[&peer, "out=5", "in=3"]].concat());
    pair.serve.wait_for_log(&[&words[..], &["out=3", "in=5"]].concat());
}
