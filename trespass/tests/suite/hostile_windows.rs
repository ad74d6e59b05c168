//! Peers of windows that speak the messages themselves: they guess, flood, fall silent, and answer
//! wrongly.

use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use test_harness::{Outcome, cases};
use trespass::Stream;
use trespass::mux::{Mux, MuxConfig, MuxError};
use trespass::window::{Access, WindowConfig, WindowError, WindowKey, Windows};

use super::fixture::{Fixture, LONG};
use super::windows::{config, offer, read};

pub(crate) fn add(suite: &mut test_harness::Suite<Fixture>) {
    cases!(suite: a_peer_that_guesses_reaches_nothing, a_peer_without_windows_is_told,
        a_silent_peer_is_not_waited_for, a_flood_of_requests_ends_no_time,
        a_request_without_an_end_holds_up_nobody, a_request_of_which_parts_came_in_time_is_performed,
        a_peer_that_breaks_the_protocol_is_served_no_more, an_owner_that_answers_wrongly_is_told_apart,
        a_peer_that_takes_no_answers_is_given_up);
}

/// The bytes of a request, as `window::message` has them.
pub(super) fn raw(
    kind: u8,
    region: u32,
    generation: u32,
    ranges: &[(u64, u64)],
    numbers: [u64; 2],
) -> Vec<u8> {
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
