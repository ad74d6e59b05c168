//! Signals, with and without open connections.

use std::io::ErrorKind;
use std::net::TcpStream;

use rustix::process::Signal;

use crate::fixture::{Pair, TestTransport, is_reset, over_each_transport, pass, read_all, wait_until};

over_each_transport!(
    a_signal_ends_idle_ends,
    open_connections_end_by_themselves,
    a_second_signal_resets_open_connections,
    the_end_of_the_grace_resets_open_connections,
);

fn a_signal_ends_idle_ends(transport: TestTransport) {
    for signal in [Signal::TERM, Signal::INT] {
        let Pair { serve, connect, .. } = Pair::start(transport);
        for program in [serve, connect] {
            program.signal(signal);
            let (status, log) = program.ended();
            assert!(status.success(), "{status}: {log}");
        }
    }
}

fn open_connections_end_by_themselves(transport: TestTransport) {
    let pair = Pair::start(transport);
    let (mut client, mut target) = pair.connection();
    for program in [&pair.serve, &pair.connect] {
        program.signal(Signal::TERM);
        program.wait_for_log(&["no new connections are accepted"]);
    }
    wait_until("clients are refused", || {
        TcpStream::connect(pair.addr).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
    });
    pass(&mut client, &mut target, b"still carried");
    pass(&mut target, &mut client, b"and back");
    drop(client);
    assert_eq!(read_all(&mut target).expect("an end"), b"");
    drop(target);
    for program in [pair.serve, pair.connect] {
        let (status, log) = program.ended();
        assert!(status.success() && log.contains("closed by both sides"), "{status}: {log}");
    }
}

fn a_second_signal_resets_open_connections(transport: TestTransport) {
    let pair = Pair::with(transport, &["--grace", "3600"]);
    let (mut client, mut target) = pair.connection();
    pass(&mut client, &mut target, b"before");
    pair.connect.signal(Signal::TERM);
    pair.connect.wait_for_log(&["no new connections are accepted"]);
    pair.connect.signal(Signal::INT);
    ends_with_resets(pair, client, target);
}

fn the_end_of_the_grace_resets_open_connections(transport: TestTransport) {
    let pair = Pair::with(transport, &["--grace", "0"]);
    let (mut client, mut target) = pair.connection();
    pass(&mut client, &mut target, b"before");
    pair.connect.signal(Signal::TERM);
    ends_with_resets(pair, client, target);
}

fn ends_with_resets(pair: Pair, mut client: TcpStream, mut target: TcpStream) {
    is_reset(&mut client);
    is_reset(&mut target);
    let (status, log) = pair.connect.ended();
    assert!(status.success() && log.contains("because this program ends"), "{status}: {log}");
}
