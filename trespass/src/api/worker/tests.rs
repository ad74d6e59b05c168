use std::io::{ErrorKind, Write};
use std::net::TcpStream;
use std::time::Instant;

use super::handshakes::MAX_HANDSHAKES;
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

/// Closing the key of a free slot, which only another worker has, does not free the slot twice.
#[test]
#[cfg_attr(miri, ignore = "opens sockets")]
fn a_key_of_another_worker_closes_nothing() {
    let (mut worker, listener, _) = worker();
    worker.close(listener);
    let free = worker.state().key(0);
    worker.close(free);
    let keys = [0, 1].map(|_| worker.listen("127.0.0.1:0", Kind::Stream).unwrap());
    assert_ne!(keys[0].index, keys[1].index);
    assert!(keys.into_iter().all(|key| worker.local_addr(key).is_ok()));
}

#[test]
fn keys_are_numbers_for_other_languages() {
    for (index, generation) in [(0, 0), (1, 0), (0, 1), (7, u32::MAX), (u32::MAX - 1, u32::MAX)] {
        let key = Key { index, generation };
        assert_ne!(key.to_bits(), 0);
        assert_eq!(Key::from_bits(key.to_bits()), key);
    }
    let mut worker = Worker::new(&Builder::new().policy(Policy::TcpOnly).build().unwrap()).unwrap();
    for made_up in [0, 1, u64::MAX] {
        let error = worker.read(Key::from_bits(made_up), &mut [0]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotConnected);
    }
}

/// All places are taken. A client that sends nothing has its place until another one waits for it.
#[test]
#[cfg_attr(miri, ignore = "opens sockets")]
fn a_silent_client_keeps_its_place_while_nobody_waits() {
    const SILENT: Duration = Duration::from_millis(400);
    more_descriptors();
    let (mut worker, _, addr) = worker();
    let mut poll = |time| {
        let until = Instant::now() + time;
        while Instant::now() < until {
            worker.poll(&mut Vec::new(), Some(until - Instant::now())).unwrap();
        }
        worker.state().handshakes
    };
    let mut silent = Vec::new();
    for clients in (0..MAX_HANDSHAKES).step_by(64) {
        silent.extend((0..64).map(|_| TcpStream::connect(addr).unwrap()));
        while poll(Duration::from_millis(1)) < clients + 64 {}
    }
    assert_eq!(poll(SILENT), MAX_HANDSHAKES, "one has lost its place to nobody");
    for client in &silent {
        client.set_nonblocking(true).unwrap();
        assert_eq!(client.peek(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
    }
    let mut late = TcpStream::connect(addr).unwrap();
    late.write_all(b"TRSP").unwrap();
    assert_eq!(poll(SILENT), MAX_HANDSHAKES);
    let answered = silent.iter().filter(|client| client.peek(&mut [0]).is_ok()).count();
    assert_eq!(answered, 1, "the one that came first loses its place to the late one");
    assert!(silent[0].peek(&mut [0]).is_ok());
}

/// Each client has a descriptor here and one in the worker.
fn more_descriptors() {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
    }
}
