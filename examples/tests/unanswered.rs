//! A peer that does not acknowledge any more: the programs say why.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use test_harness::{free_port, is_listening};

use crate::common::{RunningProgram, example};

const SOFT: [(&str, &str); 1] = [("SIDEWAY_PROVIDER", "soft")];

/// Programs whose client sends first, and the length of the addresses that each side sends.
const PROGRAMS: [(&str, usize); 3] =
    [("rc_pingpong", 52), ("rc_pingpong_split", 52), ("srq_pingpong", 256 * 52)];

/// The error of a client. Calls `silence` when its server is ready, and before it may send.
fn error_of_client(
    program: &str,
    length: usize,
    silence: impl FnOnce(&mut RunningProgram) -> Result<(), String>,
) -> String {
    let path = example(program).unwrap();
    let port = free_port().unwrap();
    let mut server = RunningProgram::start(&path, &["-p", &port.to_string()], &SOFT).unwrap();
    server.wait_for("listened", |_| is_listening(port)).unwrap();
    let relay = TcpListener::bind("127.0.0.1:0").unwrap();
    set_socket_timeout(&relay, Timeout::Recv, Some(Duration::from_secs(20))).unwrap();
    let relay_port = relay.local_addr().unwrap().port().to_string();
    let client = RunningProgram::start(&path, &["127.0.0.1", "-p", &relay_port], &SOFT).unwrap();
    // Kept open until the end, so that only the device can notice the server's end.
    let (mut to_client, _) = relay.accept().unwrap();
    let mut to_server = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let mut addresses = vec![0; length];
    to_client.read_exact(&mut addresses).unwrap();
    to_server.write_all(&addresses).unwrap();
    to_server.read_exact(&mut addresses).unwrap();
    silence(&mut server).unwrap();
    to_client.write_all(&addresses).unwrap();
    client.finish().unwrap().error_line(1).unwrap()
}

fn is_explained(line: &str, cause: &str) {
    assert!(line.starts_with("Failed status transport retry counter exceeded (12) "), "{line}");
    assert!(line.contains(cause) && !line.contains("firewall"), "{line}");
}

#[test]
fn a_killed_server_is_named() {
    for (program, length) in PROGRAMS {
        let line = error_of_client(program, length, |server| {
            server.kill();
            Ok(())
        });
        is_explained(&line, ": the peer does not acknowledge: no process has the peer's queue pair ");
    }
}

#[test]
fn a_stopped_server_is_named() {
    let mut process = 0;
    let [(program, length), ..] = PROGRAMS;
    let line = error_of_client(program, length, |server| {
        process = server.id();
        server.stop()
    });
    let cause =
        format!(": the peer does not acknowledge: process {process}, which has the peer's queue pair ");
    is_explained(&line, &cause);
    is_explained(&line, ", is stopped (by a debugger or Ctrl-Z): continue it");
}
