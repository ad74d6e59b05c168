//! Golden bytes of the messages. These never change: a failing test means that deployed peers are
//! no longer understood.

use super::preamble::PREAMBLE;
use super::*;
use crate::wire::{Cause, Unavailable};

fn limits() -> Limits {
    Limits {
        slot_size: 8192,
        rx_slots: 64,
        eager_max: 65536,
        max_rts: 16,
        rd_atomic_in: 8,
        rd_atomic_out: 4,
        max_msg: 1 << 30,
    }
}

pub(super) fn endpoint() -> Endpoint {
    Endpoint {
        qp_num: 0x00ab_cdef,
        psn: 0x0012_3456,
        gid: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1],
        lid: 0x0102,
        mtu: 5,
        link_layer: LinkLayer::Ethernet,
        service_level: 3,
        traffic_class: 0x68,
        device: 0x1122_3344_5566_7788,
    }
}

pub(super) fn hello() -> Hello {
    Hello {
        first_slots: None,
        devices: None,
        minor: 0,
        features: Features::READ.with(Features::COALESCE),
        conn_id: 0x0807_0605_0403_0201,
        generation: 0x0c0b_0a09,
        role: Role::Client,
        kind: Kind::SeqPacket,
        policy: Policy::RequireRdma,
        limits: limits(),
        path: Ok(endpoint()),
        user_data: b"abc".to_vec(),
    }
}

/// A message of each type.
pub(super) fn one_of_each() -> Vec<(&'static str, Vec<u8>)> {
    let (conn_id, generation, role) = (1, 2, Role::Server);
    let verdict = Err(Unavailable::new(Cause::NoGid, "10.0.0.1"));
    let without = Hello { path: Err(Unavailable::new(Cause::NoDevice, "none")), ..hello() };
    vec![
        ("hello", hello().encode()),
        ("hello_without", without.encode()),
        ("reject", Reject::new(RejectReason::Busy, (0, 0), "later".into()).encode()),
        ("ready", Ready { conn_id, generation, role, verdict: Ok(()) }.encode()),
        ("ready_without", Ready { conn_id, generation, role, verdict }.encode()),
        ("cm_prefix", CmPrefix::of(&hello(), hello().encode().len()).encode()),
        ("probe", Probe { conn_id, generation, role }.encode().to_vec()),
    ]
}

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let value = |digit: u8| (digit as char).to_digit(16).expect("a digit") as u8;
    digits.chunks(2).map(|pair| value(pair[0]) << 4 | value(pair[1])).collect()
}

fn assert_golden(encoded: &[u8], golden: &str, message: HandshakeMessage) {
    assert_eq!(encoded, hex(golden), "\n{encoded:02x?}");
    assert_eq!(HandshakeMessage::decode(&hex(golden)), Ok(message));
}

#[test]
fn hello_with_an_endpoint() {
    let golden = "
        54525350 01 01 00 08 78000000 8b5aa058
        0300000000000000 0102030405060708 090a0b0c 01 02 01 00
        00200000 40000000 00000100 1000 08 04 0000004000000000
        0100 2800 efcdab00 56341200 00000000000000000000ffff0a000001 0201 05 02 03 68 0000 8877665544332211 00000000
        0300 0300 616263 00";
    assert_golden(&hello().encode(), golden, HandshakeMessage::Hello(hello()));
}

#[test]
fn hello_without_an_endpoint() {
    let hello = Hello {
        role: Role::Server,
        kind: Kind::Stream,
        policy: Policy::TcpOnly,
        path: Err(Unavailable::new(Cause::TcpOnly, "so")),
        user_data: Vec::new(),
        ..hello()
    };
    let golden = "
        54525350 01 01 00 08 48000000 74591a08
        0300000000000000 0102030405060708 090a0b0c 02 01 02 00
        00200000 40000000 00000100 1000 08 04 0000004000000000
        0200 0400 0100 736f";
    assert_golden(&hello.encode(), golden, HandshakeMessage::Hello(hello));
}

#[test]
fn cm_prefix() {
    let cm_prefix = CmPrefix::of(&hello(), hello().encode().len());
    let golden = "
        54525350 05 01 00 06 30000000 979738d7
        0300000000000000 0102030405060708 090a0b0c 01 02 0d 00 4000 7800 00000000";
    assert_golden(&cm_prefix.encode(), golden, HandshakeMessage::CmPrefix(cm_prefix));
    // In a field of fixed length, as in a connection request.
    let private = [cm_prefix.encode(), vec![0; 8]].concat();
    assert_eq!(
        (private.len(), HandshakeMessage::decode_private(&private)),
        (REQUEST_DATA, Ok(HandshakeMessage::CmPrefix(cm_prefix)))
    );
    // From a newer version, with the longest possible fixed part.
    let newer = CmPrefix { minor: 3, ..cm_prefix }.encode_with(&[0xff; 8]);
    assert_eq!(
        (newer.len(), HandshakeMessage::decode_private(&newer)),
        (REQUEST_DATA, Ok(HandshakeMessage::CmPrefix(CmPrefix { minor: 3, ..cm_prefix })))
    );
}

/// A HELLO after a CM_PREFIX contains no queue pair, and no reason for having none.
#[test]
fn hello_over_the_queue_pair() {
    let hello = Hello { path: Err(Unavailable::unspecified()), user_data: Vec::new(), ..hello() };
    let bytes = hello.encode();
    assert_eq!(bytes.len(), 64);
    assert_eq!(HandshakeMessage::decode(&bytes), Ok(HandshakeMessage::Hello(hello)));
}

#[test]
fn hello_that_begins_with_few_receives() {
    let hello = Hello {
        features: Features::SHARED_RECEIVE.with(Features::WINDOWS),
        first_slots: Some(5),
        path: Err(Unavailable::new(Cause::TcpOnly, "so")),
        user_data: Vec::new(),
        ..hello()
    };
    let golden = "
        54525350 01 01 00 08 50000000 81142833
        0401000000000000 0102030405060708 090a0b0c 01 02 01 00
        00200000 40000000 00000100 1000 08 04 0000004000000000
        0200 0400 0100 736f 0500 0400 05000000";
    assert_golden(&hello.encode(), golden, HandshakeMessage::Hello(hello.clone()));
    for wrong in [0, 4, 65, u32::MAX] {
        let error = HandshakeMessage::decode(&Hello { first_slots: Some(wrong), ..hello.clone() }.encode())
            .unwrap_err();
        assert!(matches!(error, WireError::Value { field: "first_slots", .. }), "{wrong}: {error}");
    }
}

#[test]
fn reject() {
    let reject = Reject { reason: RejectReason::Version, own: (1, 0), seen: (2, 3), text: "update".into() };
    let golden = "54525350 02 01 00 03 20000000 98200953 0100 01 00 02 03 0600 757064617465 0000";
    assert_golden(&reject.encode(), golden, HandshakeMessage::Reject(reject));
}

#[test]
fn ready_that_works() {
    let ready = Ready { conn_id: 1, generation: 2, role: Role::Server, verdict: Ok(()) };
    let golden = "54525350 03 01 00 05 28000000 af5f4fb4
        0100000000000000 02000000 01 02 0000 0000 000000000000";
    assert_golden(&ready.encode(), golden, HandshakeMessage::Ready(ready));
}

#[test]
fn ready_that_does_not_work() {
    let verdict = Err(Unavailable::new(Cause::ProbeTimedOut, "300ms"));
    let ready = Ready { conn_id: 1, generation: 2, role: Role::Client, verdict };
    let golden = "54525350 03 01 00 05 30000000 702fb6b7
        0100000000000000 02000000 00 01 0b00 0500 000000000000 3330306d73 000000";
    assert_golden(&ready.encode(), golden, HandshakeMessage::Ready(ready));
}

#[test]
fn probe() {
    let probe = Probe { conn_id: 1, generation: 2, role: Role::Client };
    let golden =
        format!("54525350 04 01 00 08 40000000 489d6064 0100000000000000 02000000 01 {}", "00".repeat(35));
    assert_golden(&probe.encode(), &golden, HandshakeMessage::Probe(probe));
    assert!(probe.is(&probe.encode()));
}

/// A newer minor version appends to the fixed part and to the TLVs, and adds TLVs: this version
/// ignores all of it.
#[test]
fn additions_of_a_newer_minor_version_are_skipped() {
    let newer = Hello { minor: 1, ..hello() };
    let bytes = newer.encode_with(&[0xee; 16], &[(0x7777, b"unknown"), (4, b"reserved"), (0x7777, b"")]);
    assert_eq!(bytes[7], 10, "the fixed part has grown");
    assert_eq!(HandshakeMessage::decode(&bytes), Ok(HandshakeMessage::Hello(newer)));
}

/// Changes a valid message, and corrects its checksum.
fn patched(mut bytes: Vec<u8>, at: usize, with: &[u8]) -> Vec<u8> {
    bytes[at..at + with.len()].copy_from_slice(with);
    let crc = checksum(&bytes);
    bytes[12..16].copy_from_slice(&crc.to_le_bytes());
    bytes
}

#[test]
fn invalid_fields_are_refused_by_name() {
    let patch = |at, with: &[u8]| {
        HandshakeMessage::decode(&patched(hello().encode(), at, with)).expect_err("refused")
    };
    let field = |error| match error {
        WireError::Value { field, .. } => field,
        other => panic!("{other:?}"),
    };
    assert_eq!(patch(0, b"GET "), WireError::Magic(*b"GET "));
    assert_eq!(patch(4, &[9]), WireError::Type(9));
    assert_eq!(patch(5, &[2]), WireError::Version { major: 2, minor: 0 });
    assert_eq!(patch(7, &[1]), WireError::Length { total: 120, header: 8 });
    assert_eq!(patch(7, &[17]), WireError::Length { total: 120, header: 136 });
    assert_eq!(patch(7, &[7]), WireError::Short("HELLO"));
    assert_eq!(patch(8, &4097_u32.to_le_bytes()), WireError::Length { total: 4097, header: 64 });
    for (at, with, name) in [
        (36, &[3][..], "role"),
        (37, &[0], "kind"),
        (38, &[3], "policy"),
        (40, &[0, 0x21, 0, 0], "slot_size"),
        (40, &[0, 1, 0, 0], "slot_size"),
        (44, &[15, 0, 0, 0], "rx_slots"),
        (44, &[1, 0x80, 0, 0], "rx_slots"),
        (48, &[0, 0, 0, 0x41], "eager_max"),
        (56, &[0; 8], "max_msg"),
        (56, &[1, 0, 0, 0x40, 0, 0, 0, 0], "max_msg"),
        (71, &[1], "queue pair number"),
        (75, &[1], "packet sequence number"),
        (94, &[6], "MTU"),
        (95, &[0], "link layer"),
        (96, &[16], "service level"),
    ] {
        assert_eq!(field(patch(at, with)), name, "at {at}");
    }
    // The endpoint's TLV ends within the endpoint, or outside of the message; the user data is a
    // second endpoint.
    assert_eq!(patch(66, &[39, 0]), WireError::Short("endpoint"));
    assert_eq!(patch(66, &[0xff, 0xff]), WireError::Short("list of options"));
    let twice = hello().encode_with(&[], &[(3, b"once")]);
    assert_eq!(HandshakeMessage::decode(&twice), Err(WireError::Twice("user data")));
    let long = hello().encode_with(&[], &[(3, &[0; 1025])]);
    assert_eq!(field(HandshakeMessage::decode(&long).expect_err("refused")), "length of the user data");
}

#[test]
fn one_changed_bit_is_noticed() {
    let bytes = hello().encode();
    for bit in 0..bytes.len() * 8 {
        let mut changed = bytes.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        assert!(HandshakeMessage::decode(&changed).is_err(), "bit {bit}");
    }
}

/// Texts of a peer are shown to people.
#[test]
fn words_of_a_peer_are_bounded_and_harmless() {
    let long = Reject::new(RejectReason::Busy, (0, 0), "ä".repeat(400) + "\u{1b}[2J");
    let Ok(HandshakeMessage::Reject(read)) = HandshakeMessage::decode(&long.encode()) else {
        panic!("it is valid")
    };
    assert_eq!(read.text, "ä".repeat(256));
    let strange = Reject::new(RejectReason::Busy, (0, 0), "a\u{1b}[2J\nb".into());
    let bytes = patched(strange.encode(), 24, &[0xff]);
    let Ok(HandshakeMessage::Reject(read)) = HandshakeMessage::decode(&bytes) else { panic!("it is valid") };
    assert_eq!(read.text, "\u{fffd} [2J b");
}

#[test]
fn encoded_messages_fit_the_limits() {
    let most = Hello {
        path: Err(Unavailable::new(Cause::NoGid, "x".repeat(9999))),
        user_data: vec![7; MAX_USER_DATA],
        ..hello()
    };
    let bytes = most.encode();
    assert!(bytes.len() < MAX_MESSAGE / 2, "{}", bytes.len());
    let Ok(HandshakeMessage::Hello(read)) = HandshakeMessage::decode(&bytes) else { panic!("it is valid") };
    assert_eq!(read.path, Err(Unavailable::new(Cause::NoGid, "x".repeat(512))));
    assert!(PREAMBLE < bytes.len());
}

#[test]
fn devices_are_told_apart_by_name() {
    assert_eq!(device_hash(""), 0xcbf2_9ce4_8422_2325);
    assert_eq!(device_hash("a"), 0xaf63_dc4c_8601_ec8c);
    assert_ne!(device_hash("mlx5_0"), device_hash("mlx5_1"));
}
