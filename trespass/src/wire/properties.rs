//! Property tests: any bytes are rejected or decoded, and encoding is reversible.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::protocol::FIRST_SLOTS_MIN;
use crate::wire::{Cause, Unavailable};

pub(crate) fn limits() -> impl Strategy<Value = Limits> {
    let sizes = (9_u32..=20, 16_u32..=32768, 1_u64..=Limits::MAX_MSG, any::<u32>());
    (sizes, any::<u16>(), any::<u8>(), any::<u8>()).prop_map(
        |(sizes, max_rts, rd_atomic_in, rd_atomic_out)| {
            let (slot_bits, rx_slots, max_msg, eager) = sizes;
            let eager_max = eager.min(max_msg as u32);
            Limits {
                slot_size: 1 << slot_bits,
                rx_slots,
                eager_max,
                max_rts,
                rd_atomic_in,
                rd_atomic_out,
                max_msg,
            }
        },
    )
}

fn words() -> impl Strategy<Value = String> {
    "[ -~äß€]{0,100}"
}

fn unavailable() -> impl Strategy<Value = Unavailable> {
    (any::<u16>(), words()).prop_map(|(code, words)| Unavailable::new(Cause::from_code(code), words))
}

fn endpoint() -> impl Strategy<Value = Endpoint> {
    let numbers = (0_u32..1 << 24, 0_u32..1 << 24, any::<u16>(), any::<u64>());
    let small = (1_u8..=5, any::<bool>(), 0_u8..16, any::<u8>());
    (numbers, any::<[u8; 16]>(), small).prop_map(|(numbers, gid, small)| Endpoint {
        qp_num: numbers.0,
        psn: numbers.1,
        gid,
        lid: numbers.2,
        mtu: small.0,
        link_layer: if small.1 { LinkLayer::Ethernet } else { LinkLayer::InfiniBand },
        service_level: small.2,
        traffic_class: small.3,
        device: numbers.3,
    })
}

fn role() -> impl Strategy<Value = Role> {
    prop_oneof![Just(Role::Client), Just(Role::Server)]
}

fn hello() -> impl Strategy<Value = Hello> {
    let kind = prop_oneof![Just(Kind::Stream), Just(Kind::SeqPacket)];
    let policy = prop_oneof![Just(Policy::Auto), Just(Policy::RequireRdma), Just(Policy::TcpOnly)];
    let path = prop_oneof![endpoint().prop_map(Ok), unavailable().prop_map(Err)];
    let who = (any::<u8>(), any::<u64>(), any::<u64>(), any::<u32>(), role());
    let first = proptest::option::of(FIRST_SLOTS_MIN..=16);
    let devices = proptest::option::of(2..=8_u8);
    (who, kind, policy, (limits(), first, devices), path, vec(any::<u8>(), 0..=MAX_USER_DATA)).prop_map(
        |(
            (minor, features, conn_id, generation, role),
            kind,
            policy,
            (limits, first, devices),
            path,
            user_data,
        )| {
            Hello {
                first_slots: first,
                devices,
                minor,
                features: Features(features),
                conn_id,
                generation,
                role,
                kind,
                policy,
                limits,
                path,
                user_data,
            }
        },
    )
}

/// A message with a valid beginning and checksum around any body, so that later checks are reached.
fn framed(kind: u8, units: u8, mut body: Vec<u8>) -> Vec<u8> {
    let mut bytes = b"TRSP".to_vec();
    bytes.extend_from_slice(&[kind, MAJOR, 0, units]);
    bytes.extend_from_slice(&((PREAMBLE + body.len()) as u32).to_le_bytes());
    bytes.extend_from_slice(&[0; 4]);
    bytes.append(&mut body);
    let crc = checksum(&bytes);
    bytes[12..16].copy_from_slice(&crc.to_le_bytes());
    bytes
}

proptest! {
    #[test]
    fn hello_is_read_as_it_was_written(hello in hello()) {
        prop_assert_eq!(HandshakeMessage::decode(&hello.encode()), Ok(HandshakeMessage::Hello(hello)));
    }

    #[test]
    fn ready_is_read_as_it_was_written(
        conn_id: u64, generation: u32, role in role(), failure in proptest::option::of(unavailable()),
    ) {
        let ready = Ready { conn_id, generation, role, verdict: failure.map_or(Ok(()), Err) };
        prop_assert_eq!(HandshakeMessage::decode(&ready.encode()), Ok(HandshakeMessage::Ready(ready)));
    }

    #[test]
    fn cm_prefix_is_read_as_it_was_written(hello in hello(), behind in vec(any::<u8>(), 0..20)) {
        let cm_prefix = CmPrefix::of(&hello, hello.encode().len());
        let private = [cm_prefix.encode(), behind].concat();
        prop_assert_eq!(HandshakeMessage::decode_private(&private), Ok(HandshakeMessage::CmPrefix(cm_prefix)));
    }

    #[test]
    fn anything_is_refused_or_read(bytes in vec(any::<u8>(), 0..300)) {
        let _ = HandshakeMessage::decode(&bytes);
        let _ = HandshakeMessage::decode_private(&bytes);
    }

    #[test]
    fn anything_in_a_valid_frame_is_refused_or_read(
        kind in 0_u8..7, units in 0_u8..20, body in vec(any::<u8>(), 0..MAX_MESSAGE - PREAMBLE),
    ) {
        let _ = HandshakeMessage::decode(&framed(kind, units, body));
    }

    /// A HELLO with a few changed bytes is rejected, or decodes to valid values.
    #[test]
    fn a_changed_hello_is_refused_or_sound(hello in hello(), changes in vec((16_usize..200, any::<u8>()), 1..5)) {
        let mut bytes = hello.encode();
        for (at, value) in changes {
            let at = 16 + at % (bytes.len() - 16);
            bytes[at] = value;
        }
        let crc = checksum(&bytes);
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
        if let Ok(HandshakeMessage::Hello(read)) = HandshakeMessage::decode(&bytes) {
            prop_assert!(read.limits.slot_size.is_power_of_two() && read.limits.rx_slots >= 16);
            prop_assert!(read.limits.max_msg <= Limits::MAX_MSG);
            prop_assert!(read.user_data.len() <= MAX_USER_DATA);
        }
    }
}
