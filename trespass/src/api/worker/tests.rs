use std::io::Write;
use std::net::TcpStream;

use super::slots::SlotState;
use super::*;
use crate::config::Builder;
use crate::wire::Policy;

fn worker() -> (Worker, Key, SocketAddr) {
    let mut worker = Worker::new(&Builder::new().policy(Policy::TcpOnly).build().unwrap()).unwrap();
    let listener = worker.listen("127.0.0.1:0", Kind::Stream).unwrap();
    let addr = worker.local_addr(listener).unwrap();
    (worker, listener, addr)
}

#[test]
#[cfg_attr(miri, ignore = "opens sockets")]
fn a_client_that_comes_byte_by_byte_costs_one_timer() {
    let (mut worker, _, addr) = worker();
    let mut client = TcpStream::connect(addr).unwrap();
    client.set_nodelay(true).unwrap();
    let mut events = Vec::new();
    // A header of a message of 4096 bytes, and its first 500 bytes.
    let begun = [b"TRSP".as_slice(), &[1, 1, 0, 8], &4096_u32.to_le_bytes(), &[0; 500]].concat();
    for byte in begun {
        client.write_all(&[byte]).unwrap();
        worker.poll(&mut events, Some(Duration::from_millis(1))).unwrap();
    }
    assert!(matches!(worker.state().slots[1].state, SlotState::Arriving { .. }), "it is still to come");
    let timers = worker.state().timers.len();
    assert!(timers <= 2, "{timers} timers");
}

#[test]
#[cfg_attr(miri, ignore = "opens sockets")]
fn a_connection_may_linger_for_ever() {
    let (mut worker, _, addr) = worker();
    let client = std::thread::spawn(move || {
        let stream = Builder::new().policy(Policy::TcpOnly).connect(addr).unwrap();
        stream.set_linger(Some(Duration::MAX)).unwrap();
        stream
    });
    let mut events = Vec::new();
    while !events.iter().any(|event| matches!(event, Event::Accepted { .. })) {
        worker.poll(&mut events, Some(Duration::from_millis(20))).unwrap();
    }
    let key = worker.add(client.join().unwrap()).unwrap();
    worker.close(key);
}
