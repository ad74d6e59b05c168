//! Several threads use one connection: `&Stream`, and halves.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use test_harness::{Outcome, bytes, cases};
use trespass::Stream;

use super::fixture::{Fixture, LONG, read_exactly};

pub(crate) fn add(suite: &mut test_harness::Suite<Fixture>) {
    cases!(suite: both_ways_at_once, a_reader_sleeps_while_a_writer_answers_it, a_writer_sleeps_while_a_reader_makes_room,
        a_shutdown_wakes_a_reader, a_reader_of_a_panicking_thread_wakes_another, many_writers_share_a_stream, many_readers_share_a_stream,
        a_call_of_another_thread_keeps_its_timeout, a_sleeper_keeps_the_times_of_others, halves_are_dropped_and_joined, messages_in_halves);
}

/// Writes and reads more than all buffers hold, on each side in two threads.
fn both_ways_at_once(fixture: &Fixture) -> Outcome {
    let len = fixture.less(64) << 18;
    let (client, server) = fixture.streams();
    thread::scope(|scope| {
        for (seed, stream) in [(1, &client), (2, &server)] {
            scope.spawn(move || {
                let mut writing = stream;
                for piece in bytes(seed, len).chunks(70_001) {
                    writing.write_all(piece).unwrap();
                }
                stream.shutdown(Shutdown::Write).unwrap();
            });
            scope.spawn(move || {
                let (mut reading, mut got) = (stream, Vec::new());
                reading.read_to_end(&mut got).unwrap();
                assert!(got == bytes(3 - seed, len), "{} of {len} bytes", got.len());
            });
        }
    });
    Ok(())
}

/// The writer's polls take completions of what the sleeping reader waits for.
fn a_reader_sleeps_while_a_writer_answers_it(fixture: &Fixture) -> Outcome {
    let (client, mut server) = fixture.streams();
    client.set_read_timeout(Some(LONG)).unwrap();
    let rounds = fixture.less(300);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut got = [0; 8];
            for round in 0..rounds as u64 {
                server.read_exact(&mut got).unwrap();
                assert_eq!(u64::from_le_bytes(got), round);
                // The answer arrives while the client writes or sleeps.
                if round % 3 == 0 {
                    thread::sleep(Duration::from_micros(300));
                }
                server.write_all(&got).unwrap();
            }
        });
        let answers = scope.spawn(|| {
            let mut got = [0; 8];
            for round in 0..rounds as u64 {
                (&client).read_exact(&mut got).unwrap();
                assert_eq!(u64::from_le_bytes(got), round);
            }
        });
        for round in 0..rounds as u64 {
            (&client).write_all(&round.to_le_bytes()).unwrap();
            if round % 5 == 0 {
                thread::sleep(Duration::from_micros(500));
            }
        }
        answers.join().unwrap();
    });
    Ok(())
}

/// The writer fills both buffers and sleeps, then the reader waits for it. What the peer answers wakes
/// both.
fn a_writer_sleeps_while_a_reader_makes_room(fixture: &Fixture) -> Outcome {
    let len = fixture.less(16) << 20;
    let (client, mut server) = fixture.streams();
    thread::scope(|scope| {
        let writing = scope.spawn(|| {
            (&client).write_all(&bytes(3, len)).unwrap();
            client.shutdown(Shutdown::Write).unwrap();
        });
        let reading = scope.spawn(|| read_exactly(&mut &client, 1000));
        thread::sleep(Duration::from_millis(50));
        server.write_all(&bytes(4, 1000)).unwrap();
        let mut got = Vec::new();
        server.read_to_end(&mut got).unwrap();
        assert!(got == bytes(3, len), "{} of {len} bytes", got.len());
        writing.join().unwrap();
        assert!(reading.join().unwrap() == bytes(4, 1000));
    });
    Ok(())
}

fn a_shutdown_wakes_a_reader(fixture: &Fixture) -> Outcome {
    let (client, _server) = fixture.streams();
    client.set_read_timeout(Some(LONG)).unwrap();
    thread::scope(|scope| {
        let readers: Vec<_> = (0..3).map(|_| scope.spawn(|| (&client).read(&mut [0; 8]).unwrap())).collect();
        thread::sleep(Duration::from_millis(50));
        client.shutdown(Shutdown::Read).unwrap();
        readers.into_iter().for_each(|reader| assert_eq!(reader.join().unwrap(), 0));
    });
    Ok(())
}

/// A panic unwinds the thread of the reader that sleeps. The other one sleeps next.
fn a_reader_of_a_panicking_thread_wakes_another(fixture: &Fixture) -> Outcome {
    struct ReadsAtUnwinding<'a>(&'a Stream);

    impl Drop for ReadsAtUnwinding<'_> {
        fn drop(&mut self) {
            assert!(thread::panicking());
            self.0.read_exact(&mut [0]).unwrap();
        }
    }

    let (client, mut server) = fixture.streams();
    client.set_read_timeout(None).unwrap();
    thread::scope(|scope| {
        let unwinding = scope.spawn(|| {
            let _reads = ReadsAtUnwinding(&client);
            resume_unwind(Box::new("unwinds"))
        });
        thread::sleep(Duration::from_millis(50));
        let waits = scope.spawn(|| (&client).read_exact(&mut [0]));
        for _ in 0..2 {
            thread::sleep(Duration::from_millis(50));
            server.write_all(b"x").unwrap();
        }
        waits.join().unwrap().unwrap();
        assert_eq!(unwinding.join().unwrap_err().downcast_ref(), Some(&"unwinds"));
    });
    Ok(())
}

fn many_writers_share_a_stream(fixture: &Fixture) -> Outcome {
    const WRITERS: u8 = 4;
    let each = fixture.less(200);
    let (client, mut server) = fixture.streams();
    let client = Arc::new(client);
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let client = client.clone();
            thread::spawn(move || {
                for _ in 0..each {
                    // A write that fits a frame is taken whole.
                    assert_eq!((&*client).write(&[writer; 100]).unwrap(), 100);
                }
            })
        })
        .collect();
    let mut counts = [0; WRITERS as usize];
    for _ in 0..each * usize::from(WRITERS) {
        let piece = read_exactly(&mut server, 100);
        assert!(piece.iter().all(|byte| *byte == piece[0]));
        counts[usize::from(piece[0])] += 1;
    }
    writers.into_iter().for_each(|writer| writer.join().unwrap());
    assert_eq!(counts, [each; WRITERS as usize]);
    Ok(())
}

fn many_readers_share_a_stream(fixture: &Fixture) -> Outcome {
    let len = fixture.less(4) << 20;
    let (mut client, server) = fixture.streams();
    let total: usize = thread::scope(|scope| {
        let readers: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let (mut buffer, mut total) = (vec![0; 10_000], 0);
                    loop {
                        match (&server).read(&mut buffer).unwrap() {
                            0 => return total,
                            count => total += count,
                        }
                    }
                })
            })
            .collect();
        client.write_all(&bytes(5, len)).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        readers.into_iter().map(|reader| reader.join().unwrap()).sum()
    });
    assert_eq!(total, len);
    Ok(())
}

/// A call that waits for one that sleeps in the system, without a timeout, keeps its own.
fn a_call_of_another_thread_keeps_its_timeout(fixture: &Fixture) -> Outcome {
    let (client, mut server) = fixture.streams();
    thread::scope(|scope| {
        let slept = client.stats().sleeps;
        let sleeper = scope.spawn(|| (&client).read(&mut [0; 8]).unwrap());
        let deadline = Instant::now() + LONG;
        while client.stats().sleeps == slept {
            assert!(Instant::now() < deadline, "the reader does not sleep");
            thread::sleep(Duration::from_millis(1));
        }
        client.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        for _ in 0..3 {
            let since = Instant::now();
            let error = (&client).read(&mut [0; 8]).unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{error}");
            assert!(since.elapsed() >= Duration::from_millis(100));
        }
        server.write_all(b"now").unwrap();
        assert_eq!(sleeper.join().unwrap(), 3);
    });
    Ok(())
}

/// The sleeper learns of a time that another call has made due: the end of a cork.
fn a_sleeper_keeps_the_times_of_others(fixture: &Fixture) -> Outcome {
    let (client, mut server) = fixture.streams();
    server.set_read_timeout(Some(LONG)).unwrap();
    thread::scope(|scope| {
        let sleeper = scope.spawn(|| (&client).read(&mut [0; 8]).unwrap());
        thread::sleep(Duration::from_millis(50));
        client.set_cork(true).unwrap();
        (&client).write_all(b"held").unwrap();
        // No further call of this thread sends it.
        assert_eq!(read_exactly(&mut server, 4), b"held");
        server.write_all(b"now").unwrap();
        assert_eq!(sleeper.join().unwrap(), 3);
    });
    Ok(())
}

fn halves_are_dropped_and_joined(fixture: &Fixture) -> Outcome {
    let (client, mut server) = fixture.streams();
    let (reading, mut writing) = client.split();
    let (other, _writing) = fixture.streams().0.split();
    writing.write_all(b"one").unwrap();
    let (other, writing) = other.reunite(writing).unwrap_err();
    let mut client = reading.reunite(writing).unwrap();
    client.write_all(b"two").unwrap();
    assert_eq!(read_exactly(&mut server, 6), b"onetwo");
    drop(other);
    let (mut reading, writing) = client.split();
    drop(writing);
    let mut rest = Vec::new();
    server.read_to_end(&mut rest).unwrap();
    assert!(rest.is_empty());
    server.write_all(b"three").unwrap();
    drop(server);
    assert_eq!(reading.recv_buf().unwrap().len(), 5);
    assert_eq!(reading.read(&mut [0; 8]).unwrap(), 0);
    Ok(())
}

/// Messages of a frame and of several pieces, in both directions at once.
fn messages_in_halves(fixture: &Fixture) -> Outcome {
    let rounds = fixture.less(100);
    let (client, server) = fixture.packets();
    thread::scope(|scope| {
        for (seed, packets) in [(6, client), (7, server)] {
            let (mut receiving, mut sending) = packets.split();
            let message =
                |seed: u64, round: usize| bytes(seed, if round % 10 == 9 { 300_000 } else { round });
            scope.spawn(move || {
                (0..rounds).for_each(|round| sending.send(&message(seed, round)).unwrap());
                // The drop tells the peer that this is all.
            });
            scope.spawn(move || {
                let mut buffer = vec![0; 400_000];
                for round in 0..rounds {
                    let len = receiving.recv(&mut buffer).unwrap();
                    assert!(buffer[..len] == message(13 - seed, round), "message {round}");
                }
                assert_eq!(receiving.recv(&mut buffer).unwrap_err().kind(), ErrorKind::UnexpectedEof);
            });
        }
    });
    Ok(())
}
