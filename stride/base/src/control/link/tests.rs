//! Both ends of a real connection, one of which misbehaves.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Instant;

use super::*;
use crate::control::tcp::{BEAT, SILENCE_LIMIT};
use crate::control::{ControlListener, MAX_PAYLOAD, VERSION, connect};
use crate::control::{read_frame, write_frame};

/// A link to a peer that writes `bytes` and then holds the connection until the link is dropped.
fn link_to(bytes: Vec<u8>) -> (ControlLink, thread::JoinHandle<Vec<u8>>) {
    let socket = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = socket.local_addr().unwrap().port();
    let peer = thread::spawn(move || {
        let (mut stream, _) = socket.accept().unwrap();
        stream.write_all(&bytes).unwrap();
        let mut heard = Vec::new();
        let _ = stream.read_to_end(&mut heard);
        heard
    });
    (connect("127.0.0.1", port).unwrap(), peer)
}

fn pair() -> (ControlLink, ControlLink) {
    let listener = ControlListener::bind_local().unwrap();
    let port = listener.port();
    let server = thread::spawn(move || listener.accept().unwrap());
    (connect("localhost", port).unwrap(), server.join().unwrap())
}

fn error_from(bytes: &[u8]) -> ControlError {
    let (mut link, _peer) = link_to(bytes.to_vec());
    link.receive().unwrap_err()
}

fn frame(kind: FrameKind, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    write_frame(&mut bytes, kind, payload).unwrap();
    bytes
}

#[test]
fn messages_cross_both_ways() {
    let (mut client, mut server) = pair();
    client.send(&ControlMessage::Ready).unwrap();
    assert_eq!(server.exchange(&ControlMessage::Begin { size: 8 }).unwrap(), ControlMessage::Ready);
    assert_eq!(client.receive_result().unwrap(), ControlMessage::Begin { size: 8 });
    assert!(client.peer().starts_with("localhost:"));
    assert!(server.peer().starts_with("127.0.0.1:"));
}

#[test]
fn a_stranger_is_named_with_its_words() {
    let error = error_from(b"SSH-2.0-OpenSSH_9.2\r\n");
    let text = error.to_string();
    assert!(matches!(error, ControlError::Stranger { .. }), "{text}");
    assert!(text.contains("(it sent \"SSH-\"); check the address and -p"), "{text}");
    let text = error_from(b"\x00\xff\n\x1b more").to_string();
    assert!(text.contains("\"\\x00\\xff\\n\\x1b\""), "{text}");
}

#[test]
fn another_version_is_named_and_told() {
    let mut bytes = frame(FrameKind::Message, b"{}");
    bytes[4..6].copy_from_slice(&7u16.to_be_bytes());
    let (mut link, peer) = link_to(bytes);
    let error = link.receive().unwrap_err();
    drop(link);
    let text = error.to_string();
    assert!(matches!(error, ControlError::OtherVersion { theirs: 7, .. }), "{text}");
    assert!(text.contains("version 7") && text.contains(&format!("this is version {VERSION}")), "{text}");
    let heard = read_frame(&mut &peer.join().unwrap()[..]).unwrap();
    assert_eq!(heard.kind, FrameKind::Failure);
}

#[test]
fn nonsense_of_the_right_version_is_refused() {
    for payload in [&b""[..], b"{", b"{\"unknown\":{}}", b"[1,2]", b"\"begin\"", b"{\"begin\":{\"size\":-1}}"]
    {
        let error = error_from(&frame(FrameKind::Message, payload));
        assert!(matches!(error, ControlError::Malformed { .. }), "{payload:?}: {error}");
        assert!(!error.to_string().contains('\n'));
    }
    let mut bytes = frame(FrameKind::Message, b"");
    bytes[8..12].copy_from_slice(&(MAX_PAYLOAD as u32 + 1).to_be_bytes());
    assert!(error_from(&bytes).to_string().contains("the limit is 65536"));
}

#[test]
fn a_failure_is_passed_on_in_one_line() {
    let error = error_from(&frame(FrameKind::Failure, b"no\nmemory\x1b[31m \xff"));
    let text = error.to_string();
    assert!(text.contains("gave up: no memory [31m"), "{text}");
    assert!(error.is_known_to_peer());
}

#[test]
fn a_silent_peer_is_given_up() {
    let (mut link, _peer) = link_to(b"STRD".to_vec());
    let error = link.receive_within(Some(Duration::from_millis(100))).unwrap_err();
    assert!(matches!(error, ControlError::Silent { .. }), "{error}");
    assert!(link.peer_status().is_ok());
}

#[test]
fn a_dead_peer_is_noticed() {
    let (mut client, server) = pair();
    assert!(client.peer_status().is_ok());
    drop(server);
    assert!(matches!(client.receive_result(), Err(ControlError::Gone { .. })));
    assert!(matches!(client.peer_status(), Err(ControlError::Gone { .. })));
}

#[test]
fn a_glance_sees_failures_and_leaves_messages() {
    let (mut client, mut server) = pair();
    server.send(&ControlMessage::Ready).unwrap();
    thread::sleep(Duration::from_millis(50));
    assert_eq!(client.peer_status().unwrap(), PeerStatus::MessageWaiting);
    assert_eq!(client.receive().unwrap(), ControlMessage::Ready);
    assert_eq!(client.peer_status().unwrap(), PeerStatus::Quiet);
    server.fail("out of memory");
    thread::sleep(Duration::from_millis(50));
    assert!(client.peer_status().unwrap_err().to_string().contains("gave up: out of memory"));
}

#[test]
fn the_order_of_messages_is_told() {
    let (client, _server) = pair();
    let text = client.unexpected(&ControlMessage::Done, "ready").to_string();
    assert!(text.contains("`done` in place of `ready`"), "{text}");
}

#[test]
fn an_absent_peer_is_named_with_a_remedy() {
    let port = ControlListener::bind_local().unwrap().port();
    let text = connect("127.0.0.1", port).unwrap_err().to_string();
    assert!(
        text.contains(&format!("127.0.0.1:{port}")) && text.contains("first, without an address"),
        "{text}"
    );
    assert!(connect("no.such.host.invalid", 1).unwrap_err().to_string().contains("cannot resolve"));
}

#[test]
fn a_failure_reaches_a_peer_that_was_still_speaking() {
    let (mut client, mut server) = pair();
    for _ in 0..100 {
        client.send(&ControlMessage::Ready).unwrap();
    }
    let failing = thread::spawn(move || server.fail("enough"));
    let said = client.receive().unwrap_err().to_string();
    drop(client);
    failing.join().unwrap();
    assert!(said.contains("gave up: enough"), "{said}");
}

#[test]
fn an_ipv6_address_may_stand_in_brackets() {
    for host in ["::1", "[::1]"] {
        let text = connect(host, 1).unwrap_err().to_string();
        assert!(text.contains("[::1]:1"), "{text}");
    }
}

#[test]
fn a_taken_port_is_named() {
    let first = ControlListener::bind(0).unwrap();
    let text = ControlListener::bind(first.port()).unwrap_err().to_string();
    assert!(text.contains(&format!("TCP port {}", first.port())) && text.contains("with -p"), "{text}");
}

#[test]
fn a_peer_that_is_stopped_is_noticed_and_one_that_is_busy_is_not() {
    let (mut busy, _other) = pair();
    // This peer sends nothing after its first message, although its connection stays open.
    let (mut link, _peer) = link_to(frame(FrameKind::Message, b"\"ready\""));
    let start = Instant::now();
    assert_eq!(link.receive().unwrap(), ControlMessage::Ready);
    let error = link.receive_result().unwrap_err();
    assert!(error.to_string().contains("has not been heard of for 8 s"), "{error}");
    assert!(start.elapsed() < SILENCE_LIMIT + 3 * BEAT, "{:?}", start.elapsed());
    assert_eq!(busy.peer_status().unwrap(), PeerStatus::Quiet);
}

#[test]
fn a_client_that_has_to_wait_is_told_so_and_waits() {
    let (mut client, mut server) = pair();
    server.wire().keep_waiting(true);
    let waiting = thread::spawn(move || {
        let mut told = 0;
        client.wire.await_frame(Some(Duration::from_millis(1500)), &mut || told += 1).unwrap();
        (told, client.receive().unwrap())
    });
    thread::sleep(Duration::from_secs(3));
    // Its turn has come, and the server needs a moment for its first message.
    server.wire().keep_waiting(false);
    thread::sleep(Duration::from_millis(500));
    server.send(&ControlMessage::Ready).unwrap();
    assert_eq!(waiting.join().unwrap(), (1, ControlMessage::Ready));
}

#[test]
fn beats_are_no_messages_and_take_no_room() {
    let bytes = [
        frame(FrameKind::Beat, b""),
        frame(FrameKind::Beat, &[0; 100]),
        frame(FrameKind::Message, b"\"done\""),
    ];
    let (mut link, _peer) = link_to(bytes.concat());
    assert_eq!(link.receive().unwrap(), ControlMessage::Done);
}

/// Only a client waits for others, and it asks for that. Anyone else's claim extends no limit.
#[test]
fn a_peer_that_only_beats_is_given_up() {
    for beat in [&b"queued"[..], b""] {
        let (mut link, _peer) = link_to(frame(FrameKind::Beat, beat));
        let error = link.receive_within(Some(Duration::from_millis(300))).unwrap_err();
        assert!(matches!(error, ControlError::Silent { .. }), "{error}");
    }
}

/// Writes messages of this length until the peer takes no more, or 64 MiB; returns the bytes.
fn flood(stream: &mut std::net::TcpStream, len: usize) -> usize {
    let words = frame(FrameKind::Message, &vec![b' '; len]).repeat(65536 / (len + 1) + 1);
    stream.set_write_timeout(Some(Duration::from_secs(2))).unwrap();
    let mut taken = 0;
    while taken < 64 << 20 {
        match stream.write(&words) {
            Ok(count) => taken += count,
            Err(_) => break,
        }
    }
    taken
}

/// The system's buffers take at most some MiB beside the queue.
#[test]
fn a_flood_is_not_read() {
    for len in [0, 65536] {
        let listener = ControlListener::bind_local().unwrap();
        let mut stream = std::net::TcpStream::connect((Ipv4Addr::LOCALHOST, listener.port())).unwrap();
        let link = listener.accept().unwrap();
        let taken = flood(&mut stream, len);
        assert!(taken < 32 << 20, "messages of {len} bytes: {taken} bytes were read");
        drop(link);
    }
}

/// What does not fit the queue arrives later, and neither side believes the other one dead.
#[test]
fn a_side_that_takes_nothing_still_beats_and_misses_nothing() {
    const MESSAGES: u64 = 20_000;
    let (mut client, mut server) = pair();
    let sending = thread::spawn(move || {
        for size in 0..MESSAGES {
            // The system's buffers and the queue have room for all of them.
            client.send(&ControlMessage::Begin { size }).unwrap();
        }
        // The client dies of silence unless the server beats.
        client.receive_result()
    });
    thread::sleep(SILENCE_LIMIT + 2 * BEAT);
    for size in 0..MESSAGES {
        assert_eq!(server.receive().unwrap(), ControlMessage::Begin { size });
    }
    server.send(&ControlMessage::Done).unwrap();
    assert_eq!(sending.join().unwrap().unwrap(), ControlMessage::Done);
}

/// After the set-up a client may wait longer, as `ping` does between two sizes.
#[test]
fn others_that_wait_shorten_the_set_up_alone() {
    let waiting = Arc::new(AtomicU32::new(1));
    let hurried = |server: &mut ControlLink| {
        server.wire().give_way_to(Arc::clone(&waiting), Duration::from_millis(300));
    };
    let (_client, mut server) = pair();
    hurried(&mut server);
    let error = server.receive().unwrap_err();
    assert!(matches!(error, ControlError::GaveWay { .. }), "{error}");

    let (mut client, mut server) = pair();
    hurried(&mut server);
    for _ in 0..2 {
        client.send(&ControlMessage::Begin { size: 64 }).unwrap();
        assert_eq!(server.receive().unwrap(), ControlMessage::Begin { size: 64 });
        let sending = thread::spawn(move || {
            thread::sleep(Duration::from_secs(1));
            client.send(&ControlMessage::Done).unwrap();
            client
        });
        assert_eq!(server.receive().unwrap(), ControlMessage::Done);
        client = sending.join().unwrap();
    }
    // A peer for which nobody waits has its time.
    waiting.store(0, Ordering::Relaxed);
    hurried(&mut server);
    let sending = thread::spawn(move || {
        thread::sleep(Duration::from_secs(1));
        client.send(&ControlMessage::Done).map(|()| client).unwrap()
    });
    assert_eq!(server.receive().unwrap(), ControlMessage::Done);
    drop(sending.join().unwrap());
}
