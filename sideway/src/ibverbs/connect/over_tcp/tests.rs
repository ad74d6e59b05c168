use std::io::Write;
use std::net::TcpListener;

use super::*;

/// What this side finds in the bytes of a peer, which then closes the stream or leaves it open.
fn read(bytes: &[u8], closes: bool, limit: Duration) -> Result<Vec<u8>, OverTcpError> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (stream, _) = listener.accept().unwrap();
    peer.write_all(bytes).unwrap();
    let open = (!closes).then_some(peer);
    let mut wire = Wire { stream: &stream, deadline: Deadline::after(limit), limit };
    let found = wire.read(GREETING, "send its greeting");
    drop(open);
    found
}

fn closed(bytes: &[u8]) -> OverTcpError {
    read(bytes, true, LIMIT).unwrap_err()
}

fn frame(version: u8, kind: u8, len: u32) -> Vec<u8> {
    [&NAME[..], &[version, kind], &len.to_be_bytes()].concat()
}

#[test]
fn a_frame_is_read_and_nothing_behind_it() {
    let bytes = [&frame(VERSION, GREETING, 3)[..], b"abcdef"].concat();
    assert_eq!(read(&bytes, true, LIMIT).unwrap(), b"abc");
}

#[test]
fn other_protocols_and_versions_are_named() {
    assert!(matches!(closed(b"GET / HTTP/1.1"), OverTcpError::NoGreeting { found } if &found == b"GET / H"));
    assert!(matches!(closed(&frame(2, GREETING, 0)), OverTcpError::OtherVersion { theirs: 2 }));
    assert!(matches!(closed(&frame(VERSION, 9, 0)), OverTcpError::OutOfOrder { found: 9, .. }));
    let long = closed(&frame(VERSION, GREETING, u32::MAX));
    assert!(matches!(long, OverTcpError::TooLong { side: "the peer", len: 0xffff_ffff }));
    assert_eq!(
        closed(b"GET / HTTP/1.1").to_string(),
        "the peer sent GET / H, not sideway's greeting: does it call `over_tcp` now, and nothing before?"
    );
}

#[test]
fn a_peer_that_ends_early_is_noticed() {
    for bytes in
        [&b""[..], b"side", &frame(VERSION, GREETING, 3), &[&frame(VERSION, GREETING, 3)[..], b"ab"].concat()]
    {
        let error = closed(bytes);
        assert!(matches!(error, OverTcpError::Closed { .. }), "{error}");
    }
}

#[test]
fn a_silent_peer_is_waited_for_as_long_as_the_limit() {
    let limit = Duration::from_millis(20);
    let error = read(b"sideway", false, limit).unwrap_err();
    assert!(matches!(error, OverTcpError::TimedOut { limit: told, .. } if told == limit), "{error}");
}

#[test]
fn the_peers_reason_is_one_printable_line() {
    let reason = b"no device\n\x1b[31m\xff";
    let error = closed(&[&frame(VERSION, FAILED, reason.len() as u32)[..], reason].concat());
    let OverTcpError::PeerFailed { reason } = error else { panic!("{error}") };
    assert_eq!(reason, "no device  [31m\u{fffd}");
}

#[test]
fn a_greeting_that_is_changed_does_no_harm() {
    let endpoint = Endpoint {
        qp_number: 5,
        packet_seq_num: 9,
        lid: 3,
        gid: "fe80::1".parse().ok(),
        mtu: 1024,
        ethernet: true,
    };
    let good = Greeting { endpoint: endpoint.clone(), serves: 4 }.encode("hello").unwrap();
    let (found, extra) = Greeting::decode::<String>(&good).unwrap();
    assert_eq!((found.endpoint, found.serves, &extra[..]), (endpoint, 4, "hello"));
    assert!(matches!(Greeting::decode::<u32>(&good), Err(OverTcpError::Decode(_))));
    for len in 0..good.len() {
        assert!(matches!(Greeting::decode::<String>(&good[..len]), Err(OverTcpError::Malformed(_))));
    }
    for at in 0..good.len() {
        for byte in [0, b'"', b'9', b'{', 0xff] {
            let mut changed = good.clone();
            changed[at] = byte;
            let _ = Greeting::decode::<String>(&changed);
        }
    }
}

#[test]
fn a_value_that_is_too_long_is_not_sent() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let mut wire = Wire { stream: &stream, deadline: Deadline::NEVER, limit: LIMIT };
    let error = wire.write(GREETING, &vec![0; LONGEST + 1]).unwrap_err();
    assert!(matches!(error, OverTcpError::TooLong { side: "this side", .. }), "{error}");
    wire.write(GREETING, &vec![0; LONGEST]).unwrap();
}
