//! `liveness`: each side ends with the reason when the other is killed, and without one when the
//! other ends in order.

use crate::common::{RunningProgram, example};

const SOFT: [(&str, &str); 1] = [("SIDEWAY_PROVIDER", "soft")];

/// A server and its client, which sends this many numbers. Both are connected.
fn both(numbers: &str, interval: &str) -> (RunningProgram, RunningProgram) {
    let program = example("liveness").unwrap();
    let mut server = RunningProgram::start(&program, &["server", "127.0.0.1:0"], &SOFT).unwrap();
    let mut address = None;
    server
        .wait_for("printed its address", |text| {
            address = text.lines().find_map(|line| line.strip_prefix("listening at ")).map(str::to_owned);
            address.is_some()
        })
        .unwrap();
    let arguments = ["client", &address.unwrap(), "-n", numbers, "-i", interval];
    let client = RunningProgram::start(&program, &arguments, &SOFT).unwrap();
    // The interval is longer than any test, so this is the only number for now.
    server.wait_for("received", |text| text.contains("number 0 has come")).unwrap();
    (server, client)
}

/// Only receives are outstanding, so that the queue pair itself would never notice.
#[test]
fn a_server_that_only_receives_ends_when_its_client_is_killed() {
    let (server, mut client) = both("2", "600000");
    client.kill();
    let line = server.finish().unwrap().error_line(1).unwrap();
    assert!(line.starts_with("the client is gone after 1 numbers: its "), "{line}");
}

/// Nothing is outstanding.
#[test]
fn a_client_between_two_messages_ends_when_its_server_is_killed() {
    let (mut server, client) = both("2", "600000");
    server.kill();
    let line = client.finish().unwrap().error_line(1).unwrap();
    assert!(line.starts_with("the server is gone after 1 numbers: its "), "{line}");
}

#[test]
fn both_sides_end_in_order() {
    let (server, client) = both("3", "1");
    assert_eq!(client.finish().unwrap().ok().unwrap(), "the server has all 3 numbers\n");
    let said = server.finish().unwrap().ok().unwrap();
    assert!(said.ends_with("number 2 has come\nthe client has ended in order, after 3 numbers\n"), "{said}");
}
