//! A thousand connections at once, which leave nothing behind.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use test_harness::{Outcome, Suite, skip};

use crate::fixture::{Pair, Program, TestTransport, accept, connect, pass, wait_until};

pub(crate) fn add(suite: &mut Suite<TestTransport>) {
    test_harness::cases!(suite: a_thousand_connections_at_once_leave_nothing);
}

const CONNECTIONS: usize = 1000;

fn a_thousand_connections_at_once_leave_nothing(transport: &TestTransport) -> Outcome {
    let connections = transport.less(CONNECTIONS);
    let limit = getrlimit(Resource::Nofile);
    // The tunnel has more than five for each connection over several devices.
    let needed = 7 * connections as u64;
    if let Some(maximum) = limit.maximum.filter(|maximum| *maximum < needed) {
        skip!("it needs {needed} descriptors, and the hard limit is {maximum} (ulimit -Hn)");
    }
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    setrlimit(Resource::Nofile, raised).expect("the soft limit may be raised");
    let mut pair = Pair::start(*transport);
    // What the first connection opens stays: the device, and threads.
    let (mut client, mut target) = pair.connection();
    pass(&mut client, &mut target, b"first");
    drop((client, target));
    let before = [&pair.serve, &pair.connect].map(settled);

    let listener = pair.target.try_clone().expect("a copy");
    let targets = thread::spawn(move || echo_all(&listener, connections));
    let mut clients: Vec<_> = (0..connections).map(|_| connect(pair.addr)).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        client.write_all(&message(number)).expect("a connection");
    }
    for (number, client) in clients.iter_mut().enumerate() {
        let mut answer = [0; 64];
        client.read_exact(&mut answer).expect("an answer");
        assert_eq!(answer, message(number));
    }
    drop(clients);
    targets.join().expect("every client is answered");
    for (program, before) in [&mut pair.serve, &mut pair.connect].into_iter().zip(before) {
        wait_until("descriptors are closed", || program.descriptors() <= before);
    }
    Ok(())
}

/// The descriptors once the first connection is gone.
fn settled(program: &Program) -> usize {
    program.wait_for_log(&["closed by both sides"]);
    let mut last = usize::MAX;
    wait_until("the number of descriptors stays", || {
        let now = program.descriptors();
        std::mem::replace(&mut last, now) == now
    });
    last
}

fn message(number: usize) -> [u8; 64] {
    let mut message = [number as u8; 64];
    message[..8].copy_from_slice(&(number as u64).to_le_bytes());
    message
}

/// Accepts all connections, answers the message of each, and waits for its end.
fn echo_all(listener: &TcpListener, connections: usize) {
    let mut targets: Vec<TcpStream> = (0..connections).map(|_| accept(listener)).collect();
    for target in &mut targets {
        let mut message = [0; 64];
        target.read_exact(&mut message).expect("a message");
        target.write_all(&message).expect("a connection");
    }
    for target in &mut targets {
        assert_eq!(target.read(&mut [0]).expect("an end"), 0);
    }
}
