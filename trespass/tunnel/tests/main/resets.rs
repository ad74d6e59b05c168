//! Resets, and ends of the programs.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use test_harness::bytes;

use crate::fixture::{
    LONG, Pair, TestTransport, connect, is_reset, over_each_transport, pass, reset, wait_until,
};

over_each_transport!(
    a_client_resets,
    a_target_resets,
    a_client_resets_after_its_end,
    a_target_resets_after_its_end,
    a_client_resets_while_the_target_does_not_read,
    a_target_is_down,
    the_serving_end_is_down,
    the_serving_end_is_killed,
    the_connecting_end_is_killed,
);

fn a_client_resets(transport: TestTransport) {
    let pair = Pair::start(transport);
    let (mut client, mut target) = pair.connection();
    pass(&mut client, &mut target, b"before");
    reset(client);
    is_reset(&mut target);
    pair.connect.wait_for_log(&["the TCP side failed"]);
    pair.serve.wait_for_log(&["the tunnel failed"]);
}

fn a_target_resets(transport: TestTransport) {
    let pair = Pair::start(transport);
    let (mut client, mut target) = pair.connection();
    pass(&mut client, &mut target, b"before");
    reset(target);
    is_reset(&mut client);
    pair.serve.wait_for_log(&["the TCP side failed"]);
    pair.connect.wait_for_log(&["the tunnel failed"]);
}

fn a_client_resets_after_its_end(transport: TestTransport) {
    let pair = Pair::start(transport);
    let (client, mut target) = pair.connection();
    client.shutdown(Shutdown::Write).expect("a connection");
    assert_eq!(target.read(&mut [0; 1]).expect("an end"), 0);
    reset(client);
    fails(&target);
}

fn a_target_resets_after_its_end(transport: TestTransport) {
    let pair = Pair::start(transport);
    let (mut client, target) = pair.connection();
    target.shutdown(Shutdown::Write).expect("a connection");
    assert_eq!(client.read(&mut [0; 1]).expect("an end"), 0);
    reset(target);
    fails(&client);
}

/// Waits until the system reports a reset of a socket that has read the end, without a write.
fn fails(stream: &TcpStream) {
    wait_until("the socket has failed", || match stream.take_error().expect("an open socket") {
        Some(error) => {
            assert!(matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe), "{error}");
            true
        }
        None => false,
    });
}

fn a_client_resets_while_the_target_does_not_read(transport: TestTransport) {
    let pair = Pair::start(transport);
    let (mut client, mut target) = pair.connection();
    client.set_write_timeout(Some(Duration::from_millis(500))).expect("an option");
    let piece = bytes(6, 1 << 20);
    while client.write(&piece).is_ok() {}
    reset(client);
    pair.connect.wait_for_log(&["the TCP side failed"]);
    // Over TCP the reset waits behind the bytes in the kernel, which the serving end cannot take yet.
    if transport != TestTransport::Tcp {
        pair.serve.wait_for_log(&["the tunnel failed"]);
    }
    // What the kernel has for the target is lost with the reset, or read before it.
    let error = std::io::copy(&mut target, &mut std::io::sink()).expect_err("a reset");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    pair.serve.wait_for_log(&["the tunnel failed"]);
}

fn a_target_is_down(transport: TestTransport) {
    let Pair { serve, connect: connecting, addr, target, .. } = Pair::start(transport);
    let target_addr = target.local_addr().expect("an address").to_string();
    drop(target);
    is_reset(&mut connect(addr));
    for program in [&serve, &connecting] {
        program.wait_for_log(&["WARN", "cannot connect to the target", &target_addr, "refused"]);
    }
}

fn the_serving_end_is_down(transport: TestTransport) {
    let mut pair = Pair::start(transport);
    pair.serve.kill();
    is_reset(&mut connect(pair.addr));
    pair.connect.wait_for_log(&["WARN", "cannot connect to", &pair.serve_addr.to_string()]);
}

fn the_serving_end_is_killed(transport: TestTransport) {
    let mut pair = Pair::start(transport);
    let (mut client, mut target) = pair.connection();
    pass(&mut client, &mut target, &bytes(7, 1 << 20));
    pair.serve.kill();
    is_reset(&mut client);
    is_reset(&mut target);
    pair.connect.wait_for_log(&["the tunnel failed"]);
}

fn the_connecting_end_is_killed(transport: TestTransport) {
    let mut pair = Pair::start(transport);
    let (mut client, mut target) = pair.connection();
    pass(&mut client, &mut target, &bytes(8, 1 << 20));
    pair.connect.kill();
    client.set_read_timeout(Some(LONG)).expect("an option");
    is_reset(&mut client);
    is_reset(&mut target);
    pair.serve.wait_for_log(&["the tunnel failed"]);
}
