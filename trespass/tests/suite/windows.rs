//! Memory that a peer reads and writes.

use std::io::{Read, Seek, SeekFrom, Write};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Barrier, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use test_harness::{Outcome, cases, fill};
use trespass::Stream;
use trespass::mux::{Mux, MuxConfig, MuxError};
use trespass::window::{
    Access, KeyError, Protection, ReaderConfig, Window, WindowConfig, WindowError, WindowKey, WindowReader,
    Windows,
};

use super::fixture::{Fixture, LONG, below, random};

pub(crate) fn add(suite: &mut test_harness::Suite<Fixture>) {
    cases!(suite: bytes_go_there_and_back, ranges_are_scattered_and_gathered, atomics_lose_no_count,
        notifications_come_after_their_bytes, both_sides_operate_at_once, threads_share_a_connection,
        other_operations_and_ranges_are_refused, a_revoked_window_is_reached_no_more,
        a_key_of_another_connection_is_refused, a_lifetime_ends_for_the_peer,
        an_owner_that_makes_no_calls_is_not_waited_for, a_failed_connection_returns_its_memory,
        a_peer_that_guesses_reaches_nothing, a_peer_without_windows_is_told,
        random_operations_do_what_a_model_does, a_silent_peer_is_not_waited_for,
        a_flood_of_requests_ends_no_time, a_request_without_an_end_holds_up_nobody,
        a_request_of_which_parts_came_in_time_is_performed, a_notification_wakes_the_thread_that_waits,
        a_peer_that_breaks_the_protocol_is_served_no_more, an_owner_that_answers_wrongly_is_told_apart,
        windows_come_and_go_while_threads_operate, a_buffer_has_no_bytes_of_others,
        more_gets_than_the_peer_accepts_wait_for_each_other, a_peer_that_takes_no_answers_is_given_up,
        operations_are_under_way_together, messages_carry_keys, a_reader_reads_like_a_file,
        a_reader_reads_ahead, a_reader_stops_ahead_while_the_pool_is_full);
}

fn config() -> WindowConfig {
    WindowConfig::new().operation_timeout(Some(LONG))
}

/// A client and a server. Each waits for the other.
fn pair(fixture: &Fixture) -> (Windows, Windows) {
    let (client, server) = fixture.streams();
    let server = thread::spawn(move || Windows::over(server, &config()).unwrap());
    let client = Windows::over(client, &config()).unwrap();
    (client, server.join().unwrap())
}

/// Offers a block of the connection's pool, or of the program, with zeros.
fn offer(windows: &Windows, len: usize, access: Access) -> Window {
    let block = match windows.buffer(len) {
        Ok(block) if len.is_multiple_of(2) => block,
        _ => windows.pool().adopt(vec![0; len]),
    };
    let window = windows.offer(block, len, access, None).map_err(|(error, _)| error).unwrap();
    window.write(0, &vec![0; len]).unwrap();
    window
}

fn read(window: &Window) -> Vec<u8> {
    let mut bytes = vec![0; window.key().len() as usize];
    window.read(0, &mut bytes).unwrap();
    bytes
}

fn bytes(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fill(seed, 0, &mut bytes);
    bytes
}

/// Runs `operate` while the owner performs the operations, until the client is dropped.
fn served<R>(client: Windows, owner: &Windows, operate: impl FnOnce(&Windows) -> R) -> R {
    thread::scope(|scope| {
        let serving = scope.spawn(|| owner.serve().unwrap());
        let done = operate(&client);
        drop(client);
        serving.join().unwrap();
        done
    })
}

fn bytes_go_there_and_back(fixture: &Fixture) -> Outcome {
    let (client, owner) = pair(fixture);
    for len in [1, 1000, 300_001, fixture.less(5 << 20)] {
        let window = offer(&owner, len, Access::READ | Access::WRITE);
        let key = WindowKey::from_bytes(&window.key().to_bytes()).unwrap();
        assert_eq!(&key, window.key());
        let sent = bytes(len, len as u64);
        let ended = AtomicBool::new(false);
        thread::scope(|scope| {
            let serving = scope.spawn(|| {
                while !ended.load(Ordering::Acquire) {
                    owner.serve_for(Duration::from_millis(2)).unwrap();
                }
            });
            client.put(&key, 0, &sent).unwrap();
            assert!(read(&window) == sent, "{len} bytes");
            let mut got = vec![0; len];
            client.get(&key, 0, &mut got).unwrap();
            assert!(got == sent, "{len} bytes");
            // Nothing is moved by an operation on no bytes.
            client.put(&key, len as u64, &[]).unwrap();
            client.get(&key, 0, &mut []).unwrap();
            ended.store(true, Ordering::Release);
            serving.join().unwrap();
        });
    }
    Ok(())
}

fn ranges_are_scattered_and_gathered(fixture: &Fixture) -> Outcome {
    let (client, owner) = pair(fixture);
    let window = offer(&owner, 1000, Access::ALL);
    let key = window.key().clone();
    served(client, &owner, |client| {
        client.put_vectored(&key, &[(10, 3), (0, 2), (500, 1)], b"abcdef").unwrap();
        let mut got = [0; 5];
        client.get_vectored(&key, &[(0, 2), (10, 3)], &mut got).unwrap();
        assert_eq!(&got, b"deabc");
        let many = bytes(3 * 3000, 7);
        let refused = client.put_strided(&key, 50, 200, 3, &many).unwrap_err();
        assert!(matches!(refused, WindowError::Range { offset: 1050, len: 3, window: 1000 }), "{refused}");
        client.put_strided(&key, 50, 200, 3, &many[..15]).unwrap();
        let mut got = [0; 15];
        client.get_strided(&key, 50, 200, 3, &mut got).unwrap();
        assert_eq!(got, many[..15]);
        let error = client.put_vectored(&key, &[(0, 5)], b"four").unwrap_err();
        assert!(matches!(error, WindowError::Pieces { pieces: 5, bytes: 4 }), "{error}");
    });
    let all = read(&window);
    assert_eq!((&all[..2], &all[10..13], all[500]), (&b"de"[..], &b"abc"[..], b'f'));
    assert_eq!(all[850..853], bytes(15, 7)[12..]);
    Ok(())
}

fn atomics_lose_no_count(fixture: &Fixture) -> Outcome {
    const THREADS: u64 = 4;
    let (client, owner) = pair(fixture);
    let window = offer(&owner, 64, Access::ATOMIC | Access::READ);
    let key = window.key().clone();
    let times = fixture.less(200) as u64;
    let is_of_device = window.protection() == Protection::Domain;
    served(client, &owner, |client| {
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| (0..times).for_each(|_| _ = client.fetch_add(&key, 8, 3).unwrap()));
            }
            match is_of_device {
                true => {
                    let error = window.fetch_add(8, 3).unwrap_err();
                    assert!(matches!(error, WindowError::AtomicsOfDevice), "{error}");
                }
                false => (0..times).for_each(|_| _ = window.fetch_add(8, 3).unwrap()),
            }
        });
        let total = 3 * times * (THREADS + u64::from(!is_of_device));
        assert_eq!(client.compare_swap(&key, 8, 0, 1).unwrap(), total, "it is another number");
        assert_eq!(client.compare_swap(&key, 8, total, 1).unwrap(), total);
        assert_eq!(client.fetch_add(&key, 8, 0).unwrap(), 1);
        let error = client.fetch_add(&key, 4, 1).unwrap_err();
        assert!(matches!(error, WindowError::Misaligned { offset: 4 }), "{error}");
        let error = client.fetch_add(&key, 60, 1).unwrap_err();
        assert!(matches!(error, WindowError::Range { offset: 60, len: 8, window: 64 }), "{error}");
    });
    Ok(())
}

fn notifications_come_after_their_bytes(fixture: &Fixture) -> Outcome {
    let (client, owner) = pair(fixture);
    let len = fixture.less(1 << 20);
    let window = offer(&owner, len, Access::WRITE);
    let key = window.key().clone();
    let times = 10;
    thread::scope(|scope| {
        let sending = scope.spawn(move || {
            for number in 0..times {
                client.put_notify(&key, 0, &bytes(len, number), number).unwrap();
            }
            client
        });
        for number in 0..times {
            let told = owner.next_notification_within(LONG).unwrap();
            assert_eq!((told.region, told.generation), (window.key().region(), window.key().generation()));
            assert_eq!(told.number, number);
            // A later put may have begun.
            let found = read(&window);
            assert!((number..times).any(|later| found[..100] == bytes(100, later)));
        }
        drop(sending.join().unwrap());
    });
    let over = owner.next_notification_within(LONG).unwrap_err();
    assert!(matches!(over, WindowError::Connection(_)), "{over}");
    Ok(())
}

/// Each waits for the other's answer, and answers the other.
fn both_sides_operate_at_once(fixture: &Fixture) -> Outcome {
    let (client, owner) = pair(fixture);
    let len = fixture.less(3 << 20);
    let windows = [offer(&client, len, Access::ALL), offer(&owner, len, Access::ALL)];
    let keys = windows.each_ref().map(|window| window.key().clone());
    let together = Barrier::new(2);
    thread::scope(|scope| {
        for (end, key, seed) in [(&client, &keys[1], 1), (&owner, &keys[0], 2)] {
            let together = &together;
            scope.spawn(move || {
                for round in 0..5 {
                    let sent = bytes(len, seed + 10 * round);
                    end.put(key, 0, &sent).unwrap();
                    let mut got = vec![0; len];
                    end.get(key, 0, &mut got).unwrap();
                    assert!(got == sent, "round {round}");
                }
                // The other side may still need this one.
                let limit = Instant::now() + LONG;
                thread::scope(|scope| {
                    let waiting = scope.spawn(|| together.wait());
                    while !waiting.is_finished() {
                        assert!(Instant::now() < limit);
                        end.serve_for(Duration::from_millis(2)).unwrap();
                    }
                });
            });
        }
    });
    Ok(())
}

fn threads_share_a_connection(fixture: &Fixture) -> Outcome {
    const THREADS: usize = 4;
    let (client, owner) = pair(fixture);
    let window = offer(&owner, THREADS * 1000, Access::ALL);
    let key = window.key().clone();
    served(client, &owner, |client| {
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let key = &key;
                scope.spawn(move || {
                    for round in 0..fixture.less(100) as u64 {
                        let (sent, mut got) = (bytes(1000, round + 1000 * thread as u64), vec![0; 1000]);
                        let at = 1000 * thread as u64;
                        client.put(key, at, &sent).unwrap();
                        client.get(key, at, &mut got).unwrap();
                        assert_eq!(got, sent);
                    }
                });
            }
            scope.spawn(|| {
                // All threads but this one write somewhere else.
                for _ in 0..fixture.less(100) {
                    let mut got = vec![0; THREADS * 1000];
                    client.get(&key, 0, &mut got).unwrap();
                }
            });
        });
    });
    Ok(())
}

fn other_operations_and_ranges_are_refused(fixture: &Fixture) -> Outcome {
    let (client, owner) = pair(fixture);
    let readable = offer(&owner, 100, Access::READ);
    let writable = offer(&owner, 100, Access::WRITE);
    served(client, &owner, |client| {
        let refused = [
            client.put(readable.key(), 0, b"x"),
            client.put_notify(readable.key(), 0, b"x", 1),
            client.get(writable.key(), 0, &mut [0]),
            client.fetch_add(readable.key(), 0, 1).map(drop),
            client.compare_swap(writable.key(), 0, 0, 1).map(drop),
        ];
        for refused in refused {
            let error = refused.unwrap_err();
            assert!(matches!(error, WindowError::Access { .. }), "{error}");
        }
        for (offset, len) in [(0, 101), (100, 1), (u64::MAX, 1), (1 << 40, 1)] {
            let error = client.get(readable.key(), offset, &mut vec![0; len]).unwrap_err();
            assert!(matches!(error, WindowError::Range { window: 100, .. }), "{error}");
            let error = client.put(writable.key(), offset, &vec![1; len]).unwrap_err();
            assert!(matches!(error, WindowError::Range { window: 100, .. }), "{error}");
        }
    });
    assert_eq!(read(&writable), [0; 100]);
    Ok(())
}

fn a_revoked_window_is_reached_no_more(fixture: &Fixture) -> Outcome {
    let (client, owner) = pair(fixture);
    let window = offer(&owner, 100, Access::ALL);
    let old = window.key().clone();
    let block = window.revoke().unwrap();
    let copy = block.bytes().to_vec();
    // The same memory, and the same place in the table.
    let again = owner.offer(block, 100, Access::ALL, None).map_err(|(error, _)| error).unwrap();
    assert_eq!(again.key().region(), old.region());
    served(client, &owner, |client| {
        let refused = [
            client.put(&old, 0, b"x"),
            client.get(&old, 0, &mut [0]),
            client.put_notify(&old, 0, b"x", 1),
            client.fetch_add(&old, 0, 1).map(drop),
        ];
        for refused in refused {
            let error = refused.unwrap_err();
            assert!(matches!(error, WindowError::Revoked { .. }), "{error}");
        }
        client.put(again.key(), 0, b"y").unwrap();
    });
    assert_eq!(read(&again)[..1], *b"y");
    assert_eq!(read(&again)[1..], copy[1..100]);
    Ok(())
}

fn a_key_of_another_connection_is_refused(fixture: &Fixture) -> Outcome {
    let (client, owner) = pair(fixture);
    let (other_client, other_owner) = pair(fixture);
    let window = offer(&owner, 100, Access::ALL);
    let other = offer(&other_owner, 100, Access::ALL);
    // Both ends are of this process, so that the owner is right and the connection is not.
    for (client, key) in [(&other_client, window.key()), (&client, other.key())] {
        let error = client.put(key, 0, b"x").unwrap_err();
        assert!(matches!(error, WindowError::Key(KeyError::OtherConnection { .. })), "{error}");
    }
    // A side reaches its peer's windows, and not its own.
    let error = owner.put(window.key(), 0, b"x").unwrap_err();
    assert!(matches!(error, WindowError::Key(KeyError::OtherConnection { .. })), "{error}");
    let mut foreign = window.key().to_bytes();
    foreign[8] ^= 1;
    foreign.truncate(foreign.len() - 4);
    foreign.extend(crc32fast::hash(&foreign).to_le_bytes());
    let foreign = WindowKey::from_bytes(&foreign).unwrap();
    let error = client.get(&foreign, 0, &mut [0]).unwrap_err();
    assert!(matches!(error, WindowError::Key(KeyError::OtherOwner)), "{error}");
    Ok(())
}

fn a_lifetime_ends_for_the_peer(fixture: &Fixture) -> Outcome {
    let (client, owner) = pair(fixture);
    let block = owner.pool().adopt(vec![7; 10]);
    let lifetime = Some(Duration::from_millis(50));
    let window = owner.offer(block, 10, Access::ALL, lifetime).map_err(|(error, _)| error).unwrap();
    let key = window.key().clone();
    served(client, &owner, |client| {
        let limit = Instant::now() + LONG;
        let error = loop {
            assert!(Instant::now() < limit);
            if let Err(error) = client.get(&key, 0, &mut [0; 10]) {
                break error;
            }
        };
        assert!(matches!(error, WindowError::Revoked { .. }), "{error}");
    });
    assert_eq!(window.revoke().unwrap().bytes(), [7; 10]);
    Ok(())
}

fn an_owner_that_makes_no_calls_is_not_waited_for(fixture: &Fixture) -> Outcome {
    let (client, server) = fixture.streams();
    let server = thread::spawn(move || Windows::over(server, &config()).unwrap());
    let patience = Duration::from_millis(100);
    let client = Windows::over(client, &WindowConfig::new().operation_timeout(Some(patience))).unwrap();
    let owner = server.join().unwrap();
    let window = offer(&owner, 600_000, Access::ALL);
    for _ in 0..3 {
        let error = client.put(window.key(), 0, &bytes(600_000, 1)).unwrap_err();
        assert!(matches!(error, WindowError::TimedOut { after } if after == patience), "{error}");
        let error = client.get(window.key(), 0, &mut [0; 100]).unwrap_err();
        assert!(matches!(error, WindowError::TimedOut { .. }), "{error}");
    }
    // It goes on when the owner does.
    let key = window.key().clone();
    served(client, &owner, |client| {
        let limit = Instant::now() + LONG;
        while client.put(&key, 0, b"late").is_err() {
            assert!(Instant::now() < limit);
        }
    });
    assert_eq!(read(&window)[..4], *b"late");
    Ok(())
}

fn a_failed_connection_returns_its_memory(fixture: &Fixture) -> Outcome {
    let (client, owner) = pair(fixture);
    let window = offer(&owner, 100, Access::ALL);
    let key = window.key().clone();
    drop(client);
    owner.serve().unwrap();
    let error = owner.put(&key, 0, b"x").unwrap_err();
    assert!(matches!(error, WindowError::Key(_)), "{error}");
    window.write(0, b"still here").unwrap();
    drop(owner);
    assert_eq!(window.revoke().unwrap().bytes()[..10], *b"still here");
    Ok(())
}

/// The bytes of a request, as `window::message` has them.
fn raw(kind: u8, region: u32, generation: u32, ranges: &[(u64, u64)], numbers: [u64; 2]) -> Vec<u8> {
    let mut bytes = vec![kind, 0, 0, 0];
    bytes.extend(region.to_le_bytes());
    bytes.extend(generation.to_le_bytes());
    bytes.extend((ranges.len() as u32).to_le_bytes());
    numbers.iter().for_each(|number| bytes.extend(number.to_le_bytes()));
    for (offset, len) in ranges {
        bytes.extend(offset.to_le_bytes());
        bytes.extend(len.to_le_bytes());
    }
    bytes
}

/// A peer that sends its own messages, and tries regions, generations and ranges.
fn a_peer_that_guesses_reaches_nothing(fixture: &Fixture) -> Outcome {
    let (client, server) = fixture.streams();
    let server = thread::spawn(move || Windows::over(server, &config()).unwrap());
    let hostile = Mux::over(client, &MuxConfig::new()).unwrap();
    hostile.send_one_way(raw(1, 1, 0, &[], [2, 99])).unwrap();
    drop(hostile.next_request_within(LONG).unwrap());
    let owner = server.join().unwrap();
    let readable = offer(&owner, 101, Access::READ);
    let revoked = offer(&owner, 101, Access::ALL);
    let (region, generation) = (revoked.key().region(), revoked.key().generation());
    let block = revoked.revoke().unwrap();
    let (of, at) = (readable.key().region(), readable.key().generation());
    thread::scope(|scope| {
        let serving = scope.spawn(|| owner.serve());
        let status = |message: Vec<u8>| hostile.request_within(message, LONG).unwrap().wait().unwrap()[0];
        assert_eq!(status(raw(4, of, at, &[(0, 101)], [0; 2])), 0, "it may read this");
        for (region, generation, expected) in [
            (region, generation, 1),
            (region, 0, 2),
            (region, generation + 1, 2),
            (of, at + 1, 2),
            (of, 0, 2),
            (77, 1, 2),
            (u32::MAX, u32::MAX, 2),
        ] {
            assert_eq!(status(raw(4, region, generation, &[(0, 1)], [0; 2])), expected);
        }
        for range in [(0, 102), (101, 1), (u64::MAX, 1), (u64::MAX - 99, 100)] {
            assert_eq!(status(raw(4, of, at, &[range], [0; 2])), 3, "{range:?}");
        }
        let mut write = raw(2, of, at, &[(0, 1)], [0; 2]);
        write.push(9);
        assert_eq!(status(write), 4);
        assert_eq!(status(raw(5, of, at, &[(0, 8)], [1, 0])), 4);
        // What no side sends ends the connection.
        let refused = hostile.request_within(raw(4, of, at, &[(0, u64::MAX), (0, 2)], [0; 2]), LONG);
        let error = serving.join().unwrap().unwrap_err();
        assert!(matches!(error, WindowError::Protocol { .. }), "{error}");
        assert!(refused.unwrap().wait().is_err());
    });
    assert_eq!(read(&readable), [0; 101]);
    assert_eq!(block.bytes()[..101], [0; 101]);
    Ok(())
}

fn a_peer_without_windows_is_told(fixture: &Fixture) -> Outcome {
    let (client, server) = fixture.streams();
    let connecting = thread::spawn(move || Windows::over(client, &config()).map(drop).unwrap_err());
    let other = Mux::over(server, &MuxConfig::new()).unwrap();
    other.send_one_way(b"a message of something else").unwrap();
    let error = connecting.join().unwrap();
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidData, "{error}");
    drop(other);
    let (client, server) = fixture.streams();
    drop(server);
    let error = Windows::over(client, &config()).map(drop).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof, "{error}");
    Ok(())
}

/// One thread operates, so that each operation's effect is known.
fn random_operations_do_what_a_model_does(fixture: &Fixture) -> Outcome {
    const LEN: usize = 600_000;
    let (client, owner) = pair(fixture);
    let window = offer(&owner, LEN, Access::ALL);
    let key = window.key().clone();
    // The first multiple of 8, where a number may be.
    let first = (8 - key.base() % 8) % 8;
    served(client, &owner, |client| {
        let (mut random, mut model) = (random(29), vec![0_u8; LEN]);
        for step in 0..fixture.less(400) {
            let len = below(&mut random, [10, 1000, 300_000][step % 3]);
            let at = below(&mut random, LEN - len);
            let number = first + 8 * below(&mut random, LEN / 8 - 1) as u64;
            let place = number as usize..number as usize + 8;
            let old = u64::from_ne_bytes(model[place.clone()].try_into().unwrap());
            match below(&mut random, 4) {
                0 => {
                    let sent = bytes(len, step as u64);
                    client.put(&key, at as u64, &sent).unwrap();
                    model[at..at + len].copy_from_slice(&sent);
                }
                1 => {
                    let mut got = vec![0; len];
                    client.get(&key, at as u64, &mut got).unwrap();
                    assert!(got == model[at..at + len], "step {step}");
                }
                2 => {
                    assert_eq!(client.fetch_add(&key, number, u64::MAX / 3).unwrap(), old);
                    model[place].copy_from_slice(&old.wrapping_add(u64::MAX / 3).to_ne_bytes());
                }
                _ => {
                    let expected = if step % 2 == 0 { old } else { !old };
                    assert_eq!(client.compare_swap(&key, number, expected, 7).unwrap(), old);
                    if expected == old {
                        model[place].copy_from_slice(&7_u64.to_ne_bytes());
                    }
                }
            }
        }
        assert!(read(&window) == model);
    });
    Ok(())
}

/// The end of a program that speaks the mux, and is known by its windows' hello.
fn hostile_pair(fixture: &Fixture, config: WindowConfig) -> (Mux<Stream>, Windows) {
    let (client, server) = fixture.streams();
    let server = thread::spawn(move || Windows::over(server, &config).unwrap());
    let hostile = Mux::over(client, &MuxConfig::new()).unwrap();
    hostile.send_one_way(raw(1, 1, 0, &[], [2, 99])).unwrap();
    drop(hostile.next_request_within(LONG).unwrap());
    (hostile, server.join().unwrap())
}

fn a_silent_peer_is_not_waited_for(fixture: &Fixture) -> Outcome {
    let (client, server) = fixture.streams();
    let (tell, told) = mpsc::channel();
    let patience = Duration::from_millis(100);
    let waiting = thread::spawn(move || {
        let config = WindowConfig::new().operation_timeout(Some(patience));
        tell.send(Windows::over(client, &config).map(drop)).unwrap();
    });
    let error = told.recv_timeout(LONG / 6).expect("it has a time of its own").unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::TimedOut, "{error}");
    drop(server);
    waiting.join().unwrap();
    Ok(())
}

/// Each request costs the owner far more than the peer.
fn a_flood_of_requests_ends_no_time(fixture: &Fixture) -> Outcome {
    const WHOLE: usize = 256 << 10;
    let patience = Duration::from_millis(50);
    let (hostile, owner) = hostile_pair(fixture, WindowConfig::new().operation_timeout(Some(patience)));
    let window = offer(&owner, WHOLE, Access::READ);
    let get = raw(4, window.key().region(), window.key().generation(), &[(0, WHOLE as u64)], [0; 2]);
    let ended = AtomicBool::new(false);
    let flood = Duration::from_secs(4);
    thread::scope(|scope| {
        let flooding = scope.spawn(|| {
            let until = Instant::now() + flood;
            while !ended.load(Ordering::Relaxed) && Instant::now() < until {
                let _ = hostile.send_one_way_within(&get, patience);
            }
        });
        let since = Instant::now();
        owner.serve_for(patience).unwrap();
        let took = since.elapsed();
        ended.store(true, Ordering::Relaxed);
        flooding.join().unwrap();
        assert!(took < flood / 2, "{took:?} instead of {patience:?}");
    });
    Ok(())
}

/// A frame of a mux.
fn frame(kind: u8, flags: u8, id: u64, data: &[u8]) -> Vec<u8> {
    let mut bytes = vec![kind, flags, 0, 0, 0, 0, 0, 0];
    bytes.extend((data.len() as u32).to_le_bytes());
    bytes.extend(id.to_le_bytes());
    bytes.extend(data);
    bytes
}

/// A peer that writes the frames of its mux itself. The first two are the hellos.
fn frames_pair(fixture: &Fixture) -> (Stream, Windows) {
    let (mut hostile, server) = fixture.streams();
    let server = thread::spawn(move || Windows::over(server, &config()).unwrap());
    let mut hello = b"trespmux\x01\0\0\0".to_vec();
    hello.extend(256_u32.to_le_bytes());
    hello.extend((256_u64 << 10).to_le_bytes());
    hello.extend(frame(1, 7, 0, &raw(1, 1, 0, &[], [2, 99])));
    hostile.write_all(&hello).unwrap();
    // The owner's hellos, the second of which it gets back.
    hostile.read_exact(&mut [0; 24 + 20 + 32]).unwrap();
    hostile.write_all(&frame(6, 0, 0, &[])).unwrap();
    (hostile, server.join().unwrap())
}

fn a_request_without_an_end_holds_up_nobody(fixture: &Fixture) -> Outcome {
    let (mut hostile, owner) = frames_pair(fixture);
    let window = offer(&owner, 8, Access::WRITE);
    let (region, generation) = (window.key().region(), window.key().generation());
    let notify = |number| raw(3, region, generation, &[(0, 0)], [number, 0]);
    let late = notify(2);
    hostile.write_all(&frame(1, 0, 1, &late[..20])).unwrap();
    hostile.write_all(&frame(1, 3, 2, &notify(1))).unwrap();
    assert_eq!(owner.next_notification_within(Duration::from_secs(5)).unwrap().number, 1);
    // The first is performed once it is whole.
    hostile.write_all(&frame(2, 3, 1, &late[20..])).unwrap();
    assert_eq!(owner.next_notification_within(Duration::from_secs(5)).unwrap().number, 2);
    Ok(())
}

/// Calls end in the midst of requests, and another one waits.
fn a_request_of_which_parts_came_in_time_is_performed(fixture: &Fixture) -> Outcome {
    let (mut hostile, owner) = frames_pair(fixture);
    let window = offer(&owner, 8, Access::WRITE);
    let (region, generation) = (window.key().region(), window.key().generation());
    let notify = |number| raw(3, region, generation, &[(0, 0)], [number, 0]);
    for id in [1, 2] {
        hostile.write_all(&frame(1, 0, id, &notify(id)[..20])).unwrap();
    }
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| owner.serve_for(Duration::from_millis(200)).unwrap());
        }
    });
    thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            [(); 2].map(|()| owner.next_notification_within(Duration::from_secs(5)).unwrap().number)
        });
        thread::sleep(Duration::from_millis(50));
        for id in [1, 2] {
            hostile.write_all(&frame(2, 3, id, &notify(id)[20..])).unwrap();
        }
        let mut told = waiting.join().unwrap();
        told.sort_unstable();
        assert_eq!(told, [1, 2]);
    });
    Ok(())
}

/// Another thread may have taken the request that notifies.
fn a_notification_wakes_the_thread_that_waits(fixture: &Fixture) -> Outcome {
    let (client, owner) = pair(fixture);
    let len = 256 << 10;
    let window = offer(&owner, len, Access::WRITE);
    let key = window.key().clone();
    let (sent, mut told) = (bytes(len, 3), Vec::new());
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| owner.serve().unwrap());
        }
        for number in 0..fixture.less(40) as u64 {
            let waiting = scope.spawn(|| owner.next_notification_within(Duration::from_secs(5)));
            thread::sleep(Duration::from_millis(2));
            client.put_notify(&key, 0, &sent, number).unwrap();
            told.push((number, waiting.join().unwrap()));
            if told.last().is_some_and(|(_, told)| told.is_err()) {
                break;
            }
        }
        drop(client);
    });
    for (number, told) in told {
        assert_eq!(told.unwrap().number, number);
    }
    Ok(())
}

fn a_peer_that_breaks_the_protocol_is_served_no_more(fixture: &Fixture) -> Outcome {
    let (hostile, owner) = hostile_pair(fixture, config());
    let window = offer(&owner, 8, Access::ALL);
    let (region, generation) = (window.key().region(), window.key().generation());
    thread::scope(|scope| {
        let serving = [(); 2].map(|()| scope.spawn(|| owner.serve()));
        hostile.send_one_way(raw(99, 0, 0, &[], [0; 2])).unwrap();
        for serving in serving {
            let error = serving.join().unwrap().unwrap_err();
            assert!(matches!(error, WindowError::Protocol { .. }), "{error}");
        }
    });
    let _ = hostile.send_one_way_within(raw(3, region, generation, &[(0, 0)], [1, 0]), LONG);
    let error = owner.next_notification_within(LONG).unwrap_err();
    assert!(matches!(error, WindowError::Protocol { .. }), "{error}");
    let ended = hostile.next_request_within(LONG);
    assert!(!matches!(ended, Ok(Some(_)) | Err(MuxError::DeadlinePassed { .. })), "{ended:?}");
    Ok(())
}

fn an_owner_that_answers_wrongly_is_told_apart(fixture: &Fixture) -> Outcome {
    let (hostile, client) = hostile_pair(fixture, config());
    // The key of a window that the hostile owner would have offered.
    let mut key = b"TWIN\x01\0\0\x07".to_vec();
    [99, 1].iter().for_each(|number: &u64| key.extend(number.to_le_bytes()));
    [0, 1].iter().for_each(|number: &u32| key.extend(number.to_le_bytes()));
    [4096, 1 << 30, 0, 0].iter().for_each(|number: &u64| key.extend(number.to_le_bytes()));
    key.extend(crc32fast::hash(&key).to_le_bytes());
    let key = WindowKey::from_bytes(&key).unwrap();
    let answers = [
        vec![],
        vec![0; 15],
        vec![0; 16],
        vec![0; 16 + 7],
        vec![0; 16 + 9],
        vec![77; 16 + 8],
        vec![0; 1 << 20],
        [&[3, 0, 0, 0, 0, 0, 0, 0][..], &[0xff; 8]].concat(),
        [&[6, 0, 0, 0, 0, 0, 0, 0][..], &[0xff; 8]].concat(),
    ];
    thread::scope(|scope| {
        let answering = scope.spawn(|| {
            for answer in &answers {
                hostile.next_request_within(LONG).unwrap().unwrap().answer(answer).unwrap();
            }
            drop(hostile.next_request_within(LONG).unwrap());
            let mut several = hostile.next_request_within(LONG).unwrap().unwrap().answers();
            for _ in 0..2 {
                let _ = several.send(vec![0; 16 + 8]);
            }
            let _ = several.finish();
        });
        for answer in &answers {
            let error = client.get(&key, 0, &mut [0; 8]).unwrap_err();
            assert!(!matches!(error, WindowError::TimedOut { .. }), "{} bytes: {error}", answer.len());
        }
        assert!(client.get(&key, 0, &mut [0; 8]).is_err(), "no answer");
        client.get(&key, 0, &mut [0; 8]).unwrap();
        answering.join().unwrap();
    });
    Ok(())
}

/// Both sides offer and revoke, and operate with the keys of the other, in several threads.
fn windows_come_and_go_while_threads_operate(fixture: &Fixture) -> Outcome {
    const LEN: usize = 3000;
    let (client, owner) = pair(fixture);
    let until = Instant::now() + Duration::from_millis(1500);
    let keys = [(); 2].map(|()| Mutex::new(None::<WindowKey>));
    let offering = AtomicUsize::new(2);
    let is_expected =
        |error: &WindowError| matches!(error, WindowError::Revoked { .. } | WindowError::Full { .. });
    thread::scope(|scope| {
        for (side, end) in [&client, &owner].into_iter().enumerate() {
            let (own, peers, offering) = (&keys[side], &keys[1 - side], &offering);
            scope.spawn(move || {
                while Instant::now() < until {
                    let window = offer(end, LEN, Access::ALL);
                    *own.lock().unwrap() = Some(window.key().clone());
                    end.serve_for(Duration::from_millis(3)).unwrap();
                    let block = window.revoke().unwrap();
                    let copy = block.bytes()[..LEN].to_vec();
                    end.serve_for(Duration::from_millis(3)).unwrap();
                    assert!(block.bytes()[..LEN] == copy, "nobody writes to it");
                }
                offering.fetch_sub(1, Ordering::Release);
            });
            for thread in 0..3_u64 {
                scope.spawn(move || {
                    let mut random = random(thread + 10 * side as u64);
                    let sent = bytes(LEN, thread);
                    while Instant::now() < until {
                        let Some(key) = peers.lock().unwrap().clone() else { continue };
                        let aligned = (8 - key.base() % 8) % 8;
                        let done = match below(&mut random, 4) {
                            0 => end.put(&key, 0, &sent),
                            1 => end.get(&key, 0, &mut [0; LEN]),
                            2 => end.fetch_add(&key, aligned, 1).map(drop),
                            _ => end.put_notify(&key, 0, &sent, thread),
                        };
                        if let Err(error) = done {
                            assert!(is_expected(&error), "{error}");
                        }
                    }
                });
            }
            // It serves until all have ended, and takes the notifications.
            scope.spawn(move || {
                let mut told = 0;
                while offering.load(Ordering::Acquire) > 0 || Instant::now() < until + LONG / 60 {
                    match end.next_notification_within(Duration::from_millis(20)) {
                        Ok(_) => told += 1,
                        Err(WindowError::TimedOut { .. }) => (),
                        Err(error) => panic!("{error}"),
                    }
                }
                assert!(told > 0);
            });
        }
    });
    Ok(())
}

fn a_buffer_has_no_bytes_of_others(fixture: &Fixture) -> Outcome {
    let (_client, owner) = pair(fixture);
    for len in [100, 5000] {
        let mut block = owner.buffer(len).unwrap();
        block.bytes_mut().fill(0xee);
        drop(block);
        assert!(owner.buffer(len).unwrap().bytes().iter().all(|byte| *byte == 0));
    }
    Ok(())
}

/// Each thread has several messages under way, and takes an answer only once it has begun the next.
fn more_gets_than_the_peer_accepts_wait_for_each_other(fixture: &Fixture) -> Outcome {
    const THREADS: usize = 24;
    let (client, owner) = pair(fixture);
    let len = fixture.less(6 << 20);
    let window = offer(&owner, len, Access::READ);
    let sent = bytes(len, 5);
    window.write(0, &sent).unwrap();
    let key = window.key().clone();
    served(client, &owner, |client| {
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    let mut got = vec![0; len];
                    client.get(&key, 0, &mut got).unwrap();
                    assert!(got == sent);
                });
            }
        });
    });
    Ok(())
}

/// Otherwise the answers would take memory without limit.
fn a_peer_that_takes_no_answers_is_given_up(fixture: &Fixture) -> Outcome {
    const WHOLE: usize = 256 << 10;
    let (mut hostile, owner) = frames_pair(fixture);
    let window = offer(&owner, WHOLE, Access::READ);
    let get = raw(4, window.key().region(), window.key().generation(), &[(0, WHOLE as u64)], [0; 2]);
    thread::scope(|scope| {
        // The end of the connection ends this, too.
        scope.spawn(|| (1..2000).try_for_each(|id| hostile.write_all(&frame(1, 3, id, &get))));
        let error = owner.serve_for(LONG).unwrap_err();
        assert!(matches!(error, WindowError::Connection(MuxError::Protocol(_))), "{error}");
    });
    assert_eq!(read(&window), vec![0; WHOLE]);
    Ok(())
}

fn operations_are_under_way_together(fixture: &Fixture) -> Outcome {
    const PART: usize = 10_000;
    let (client, owner) = pair(fixture);
    let window = offer(&owner, 40 * PART, Access::ALL);
    let key = window.key().clone();
    served(client, &owner, |client| {
        let puts: Vec<_> = (0..40)
            .map(|at| client.start_put(&key, (at * PART) as u64, &bytes(PART, at as u64)).unwrap())
            .collect();
        client.flush().unwrap();
        assert!(puts.iter().all(trespass::window::PendingPut::is_performed));
        // The owner has them before anybody waits for their ends.
        let mut found = read(&window);
        for at in 0..40 {
            assert!(found[at * PART..(at + 1) * PART] == bytes(PART, at as u64), "put {at}");
        }
        puts.into_iter().rev().for_each(|put| put.wait().unwrap());
        let gets: Vec<_> =
            (0..40).map(|at| client.start_get(&key, (at * PART) as u64, PART).unwrap()).collect();
        for (at, get) in gets.into_iter().enumerate().rev() {
            found[..PART].copy_from_slice(&get.wait().unwrap());
            assert!(found[..PART] == bytes(PART, at as u64), "get {at}");
        }
        // A dropped one is given up, and the connection goes on.
        drop(client.start_get(&key, 0, 40 * PART).unwrap());
        client.flush().unwrap();
        let error = client.start_get(&key, 0, (4 << 20) + 1).unwrap_err();
        assert!(matches!(error, WindowError::TooLong { most, .. } if most == 4 << 20), "{error}");
        let error = client.start_put(&key, 40 * PART as u64, b"x").unwrap_err();
        assert!(matches!(error, WindowError::Range { .. }), "{error}");
    });
    Ok(())
}

/// The contents of a file, offered for reading.
fn file(owner: &Windows, len: usize) -> (Window, Vec<u8>) {
    let content = bytes(len, 77);
    let block = owner.pool().adopt(content.clone());
    (owner.offer(block, len, Access::READ, None).map_err(|(error, _)| error).unwrap(), content)
}

fn a_reader_reads_like_a_file(fixture: &Fixture) -> Outcome {
    let (client, owner) = pair(fixture);
    let (window, content) = file(&owner, fixture.less(3_000_000));
    let key = window.key().clone();
    served(client, &owner, |client| {
        for config in [
            ReaderConfig::new(),
            ReaderConfig::new().part(100_000).prefetch_parts(3),
            ReaderConfig::new().part(70_001).prefetch_parts(0),
            ReaderConfig::new().part(500_000).prefetch_parts(1).whole_below(u64::MAX),
        ] {
            let mut reader = WindowReader::new(client, key.clone(), &config).unwrap();
            let mut all = Vec::new();
            assert_eq!(reader.read_to_end(&mut all).unwrap(), content.len());
            assert!(all == content, "{reader:?}");
            reader.rewind().unwrap();
            let (mut model, mut random) = (std::io::Cursor::new(&content), random(5));
            for _ in 0..fixture.less(60) {
                let to = match below(&mut random, 4) {
                    0 => SeekFrom::Start(below(&mut random, content.len() + 10) as u64),
                    1 => SeekFrom::End(-(below(&mut random, content.len()) as i64)),
                    _ => SeekFrom::Current(below(&mut random, 100_000) as i64 - 50_000),
                };
                assert_eq!(reader.seek(to).ok(), model.seek(to).ok(), "{to:?}");
                let len = below(&mut random, 200_000);
                let (mut got, mut expected) = (Vec::new(), Vec::new());
                reader.by_ref().take(len as u64).read_to_end(&mut got).unwrap();
                model.by_ref().take(len as u64).read_to_end(&mut expected).unwrap();
                assert!(got == expected, "{len} bytes after {to:?}: {reader:?}");
            }
        }
        let refused =
            WindowReader::new(client, offer(&owner, 10, Access::WRITE).key().clone(), &ReaderConfig::new());
        assert!(matches!(refused, Err(WindowError::Access { .. })));
    });
    Ok(())
}

fn a_reader_reads_ahead(fixture: &Fixture) -> Outcome {
    let (client, owner) = pair(fixture);
    let (window, content) = file(&owner, 100_000);
    let key = window.key().clone();
    served(client, &owner, |client| {
        let of_parts = ReaderConfig::new().part(10_000);
        let counts = |config: &ReaderConfig, len: usize| {
            let mut reader = WindowReader::new(client, key.clone(), config).unwrap();
            reader.read_exact(&mut vec![0; len]).unwrap();
            let stats = reader.stats();
            (stats.parts, stats.ahead, stats.unused)
        };
        assert_eq!(counts(&of_parts.clone().prefetch_parts(0), 100_000), (10, 0, 0));
        assert_eq!(counts(&of_parts.clone().prefetch_parts(3), 1), (4, 3, 0));
        assert_eq!(counts(&of_parts.clone().prefetch_parts(3), 100_000), (10, 9, 0));
        assert_eq!(counts(&of_parts.clone().prefetch_parts(1).whole_below(100_000), 1), (10, 9, 0));
        assert_eq!(counts(&of_parts.clone().prefetch_parts(1).whole_below(99_999), 1), (2, 1, 0));
        let mut reader = WindowReader::new(client, key.clone(), &of_parts).unwrap();
        reader.read_exact(&mut [0]).unwrap();
        reader.seek(SeekFrom::Start(95_000)).unwrap();
        let mut end = Vec::new();
        reader.read_to_end(&mut end).unwrap();
        assert!(end == content[95_000..]);
        assert_eq!((reader.stats().parts, reader.stats().unused), (10, 8), "{reader:?}");
    });
    Ok(())
}

fn a_reader_stops_ahead_while_the_pool_is_full(fixture: &Fixture) -> Outcome {
    let (client, owner) = pair(fixture);
    let (window, content) = file(&owner, 100_000);
    let key = window.key().clone();
    served(client, &owner, |client| {
        let mut held = Vec::new();
        while let Some(block) = client.pool().take(64 << 10) {
            held.push(block);
        }
        let config = ReaderConfig::new().part(60_000);
        let mut reader = WindowReader::new(client, key, &config).unwrap();
        let mut all = Vec::new();
        reader.read_to_end(&mut all).unwrap();
        assert!(all == content);
        assert!(reader.stats().pool_full > 0, "{reader:?}");
        drop(held);
        reader.rewind().unwrap();
        let full = reader.stats().pool_full;
        reader.read_exact(&mut all).unwrap();
        assert!(all == content && reader.stats().pool_full == full, "{reader:?}");
    });
    Ok(())
}

/// Each side gets its key of the other, and nothing else of it.
fn messages_carry_keys(fixture: &Fixture) -> Outcome {
    let (client, owner) = pair(fixture);
    let serving = thread::spawn(move || {
        let asked = owner.next_message_within(LONG).unwrap();
        assert_eq!(asked, b"a window, please");
        let window = offer(&owner, 100, Access::ALL);
        owner.send_message(&window.key().to_bytes()).unwrap();
        assert_eq!(owner.next_notification_within(LONG).unwrap().number, 1);
        let over = owner.next_message_within(LONG).unwrap_err();
        assert!(matches!(over, WindowError::Connection(_)), "{over}");
        read(&window)
    });
    client.send_message(b"a window, please").unwrap();
    let key = WindowKey::from_bytes(&client.next_message_within(LONG).unwrap()).unwrap();
    client.put_notify(&key, 99, b"!", 1).unwrap();
    let over = client.next_message_within(Duration::from_millis(1)).unwrap_err();
    assert!(matches!(over, WindowError::TimedOut { .. }), "{over}");
    let error = client.send_message(&[0; (64 << 10) + 1]).unwrap_err();
    assert!(matches!(error, WindowError::TooLong { .. }), "{error}");
    drop(client);
    assert_eq!(serving.join().unwrap()[99], b'!');
    Ok(())
}
