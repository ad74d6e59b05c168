//! Unusual but permitted calls: reads into an empty buffer, empty writes, unlimited timeouts, and a
//! port that another socket uses.

use std::io::{ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::net::Shutdown;
use std::thread;
use std::time::{Duration, Instant};

use test_harness::{Outcome, bytes, cases};
use trespass::{Event, Kind, Worker};

use super::fixture::{Fixture, LONG, greet, read_exactly};

pub(crate) fn add(suite: &mut test_harness::Suite<Fixture>) {
    cases!(suite: nothing_is_read_into_no_room, nothing_is_written_of_nothing, empty_messages_are_messages,
        many_empty_slices_are_no_bytes, blocks_of_no_bytes_come_back, times_may_be_without_end,
        a_busy_port_is_waited_for, a_port_that_stays_busy_is_given_up);
}

/// An empty read neither waits nor takes anything.
fn nothing_is_read_into_no_room(fixture: &Fixture) -> Outcome {
    let (mut client, mut server) = fixture.streams();
    let nothing = |server: &mut trespass::Stream| {
        let before = Instant::now();
        assert_eq!(server.read(&mut []).unwrap(), 0);
        assert_eq!(server.read_vectored(&mut []).unwrap(), 0);
        assert_eq!(
            server.read_vectored(&mut [IoSliceMut::new(&mut []), IoSliceMut::new(&mut [])]).unwrap(),
            0
        );
        assert!(before.elapsed() < LONG / 2, "it waits for what it has no room for");
    };
    nothing(&mut server);
    client.write_all(b"abc").unwrap();
    assert_eq!(read_exactly(&mut server, 1), b"a");
    nothing(&mut server);
    let (mut one, mut two) = ([0; 1], [0; 1]);
    let mut parts = [IoSliceMut::new(&mut []), IoSliceMut::new(&mut one), IoSliceMut::new(&mut two)];
    let count = server.read_vectored(&mut parts).unwrap();
    assert_eq!([one[0], two[0]][..count], b"bc"[..count]);
    Ok(())
}

fn nothing_is_written_of_nothing(fixture: &Fixture) -> Outcome {
    let (mut client, mut server) = fixture.streams();
    for _ in 0..200 {
        assert_eq!(client.write(&[]).unwrap(), 0);
        assert_eq!(client.write_vectored(&[]).unwrap(), 0);
        assert_eq!(client.write_vectored(&[IoSlice::new(&[]), IoSlice::new(&[])]).unwrap(), 0);
    }
    client.flush().unwrap();
    greet(&mut client, &mut server);
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(server.read(&mut [0; 8]).unwrap(), 0);
    Ok(())
}

fn empty_messages_are_messages(fixture: &Fixture) -> Outcome {
    let (mut client, mut server) = fixture.packets();
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..300 {
                match round % 3 {
                    0 => client.send(&[]).unwrap(),
                    1 => client.send_vectored(&[]).unwrap(),
                    _ => assert_eq!(client.send_part(0, &[]).unwrap(), 0),
                }
            }
            client.send(b"and one that is not").unwrap();
        });
        for round in 0..300 {
            match round % 4 {
                0 => assert_eq!(server.recv(&mut []).unwrap(), 0),
                1 => assert!(server.recv_buf().unwrap().is_empty()),
                2 => {
                    let part = server.recv_part(&mut []).unwrap();
                    assert_eq!((part.len, part.last, part.total), (0, true, 0));
                }
                _ => assert_eq!(server.recv(&mut [0; 8]).unwrap(), 0),
            }
        }
        assert_eq!(server.recv(&mut []).unwrap_err().kind(), ErrorKind::InvalidInput);
        assert_eq!(server.recv(&mut [0; 64]).unwrap(), 19);
    });
    Ok(())
}

fn many_empty_slices_are_no_bytes(fixture: &Fixture) -> Outcome {
    let (mut client, mut server) = fixture.streams();
    let data = bytes(3, 10_000);
    let mut slices = vec![IoSlice::new(&[]); 5000];
    slices[17] = IoSlice::new(&data[..9]);
    slices[4999] = IoSlice::new(&data[9..]);
    assert_eq!(client.write_vectored(&slices).unwrap(), data.len());
    assert!(read_exactly(&mut server, data.len()) == data);
    Ok(())
}

fn blocks_of_no_bytes_come_back(fixture: &Fixture) -> Outcome {
    let (mut client, mut server) = fixture.streams();
    let empty = client.pool().adopt(Vec::new());
    client.send_buf(empty, 0).unwrap();
    let block = client.buffer(100).unwrap();
    client.send_buf(block, 0).unwrap();
    for _ in 0..2 {
        assert!(client.next_completion().unwrap().unwrap().sent);
    }
    greet(&mut client, &mut server);
    let (mut client, mut server) = fixture.packets();
    let empty = client.pool().adopt(Vec::new());
    client.send_buf(empty, 0).unwrap();
    assert_eq!(server.recv(&mut []).unwrap(), 0);
    assert!(client.next_completion().unwrap().unwrap().sent);
    Ok(())
}

fn times_may_be_without_end(fixture: &Fixture) -> Outcome {
    let (listener, addr) = fixture.listener();
    listener.set_accept_timeout(Some(Duration::MAX)).unwrap();
    let (mut client, mut server) = thread::scope(|scope| {
        let client = scope.spawn(|| fixture.builder().connect(addr).unwrap());
        let server = listener.accept().unwrap().0;
        (client.join().unwrap(), server)
    });
    for stream in [&client, &server] {
        stream.set_read_timeout(Some(Duration::MAX)).unwrap();
        stream.set_write_timeout(Some(Duration::MAX)).unwrap();
        stream.set_linger(Some(Duration::MAX)).unwrap();
    }
    greet(&mut client, &mut server);
    let mut worker = Worker::new(&fixture.builder().build().unwrap()).unwrap();
    let key = worker.add(server).unwrap();
    client.write_all(b"x").unwrap();
    let mut events = Vec::new();
    worker.poll(&mut events, Some(Duration::MAX)).unwrap();
    assert!(matches!(events[..], [Event::Ready { key: ready, .. }] if ready == key));
    worker.close(key);
    worker.listen(fixture.anywhere(), Kind::Stream).unwrap();
    drop((worker, client));
    Ok(())
}

/// A patient listener gets the port when it becomes free, and serves there.
fn a_busy_port_is_waited_for(fixture: &Fixture) -> Outcome {
    let (addr, taken) = fixture.taken();
    thread::scope(|scope| {
        let waiting = scope.spawn(move || fixture.builder().bind_patience(LONG).bind(addr).unwrap());
        // Longer than the first retries, each of which waits twice as long as the one before.
        thread::sleep(Duration::from_millis(300));
        assert!(!waiting.is_finished(), "it listens where somebody else does");
        let freed = Instant::now();
        drop(taken);
        let listener = waiting.join().unwrap();
        assert!(freed.elapsed() < LONG / 2, "it slept for {:?}", freed.elapsed());
        assert_eq!(listener.local_addr().unwrap(), addr);
        let connecting = scope.spawn(move || fixture.builder().connect(addr).unwrap());
        let mut server = listener.accept().unwrap().0;
        greet(&mut connecting.join().unwrap(), &mut server);
    });
    Ok(())
}

/// The error names the port and the remedy.
fn a_port_that_stays_busy_is_given_up(fixture: &Fixture) -> Outcome {
    let (addr, _taken) = fixture.taken();
    let patience = Duration::from_millis(120);
    let before = Instant::now();
    let error = fixture.builder().bind_patience(patience).bind(addr).map(|_| ()).unwrap_err();
    assert!(before.elapsed() >= patience, "it waited {:?} only", before.elapsed());
    assert!(before.elapsed() < LONG / 2, "it waited {:?}", before.elapsed());
    assert_eq!(error.kind(), ErrorKind::AddrInUse);
    let (by, ask) = match fixture.is_by_cm() {
        true => (" by rdma_cm", "rdma resource show cm_id"),
        false => ("", "ss -ltnp"),
    };
    let words = error.to_string();
    assert!(words.starts_with(&format!("cannot listen at {addr}{by}: ")), "{words}");
    assert!(words.contains(ask) && words.contains("choose another port"), "{words}");
    // A listener with no patience gets the error at once.
    let before = Instant::now();
    let error = fixture.builder().bind(addr).map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AddrInUse);
    assert!(before.elapsed() < LONG / 2, "it waited {:?}", before.elapsed());
    Ok(())
}
