//! Tests of the message encoding, valid and corrupted.

use std::net::{Ipv4Addr, SocketAddr};

use super::kit::address;
use super::random::Random;
use crate::cm::message::{
    CmMad, EndpointParams, Endpoints, MESSAGE, MadBody, QpService, REJ_DATA, REP_DATA, REQ_DATA, ReqBody,
    SIDR_REP_DATA, SIDR_REQ_DATA,
};
use crate::cm::types::{Ece, PortSpace, PrivateData};

fn data(random: &mut Random, most: usize) -> PrivateData {
    let len = if random.chance(300) { most } else { random.below(most + 1) };
    PrivateData::try_from(&random.bytes(len)[..]).expect("not too long")
}

fn ends(random: &mut Random) -> Endpoints {
    let spaces = [PortSpace::Tcp, PortSpace::Udp, PortSpace::Ib, PortSpace::Ipoib];
    let six = random.chance(300);
    let mut any = || -> SocketAddr {
        let port = random.next() as u16;
        if six {
            let mut six = address("[fe80::1%3]:0");
            six.set_port(port);
            six
        } else {
            (Ipv4Addr::from(random.next() as u32), port).into()
        }
    };
    let (source, destination) = (any(), any());
    Endpoints { space: spaces[random.below(4)], source, destination }
}

fn ece(random: &mut Random) -> Ece {
    Ece { vendor_id: random.next() as u32, options: random.next() as u32 }
}

fn side(random: &mut Random, most: usize) -> EndpointParams {
    EndpointParams {
        qp_num: random.next() as u32 & 0xff_ffff,
        psn: random.next() as u32 & 0xff_ffff,
        responder_resources: random.next() as u8,
        initiator_depth: random.next() as u8,
        flow_control: random.next() as u8 & 1,
        rnr_retry_count: random.next() as u8 & 7,
        srq: random.chance(500),
        ece: ece(random),
        data: data(random, most),
    }
}

/// An arbitrary valid message.
pub(super) fn any_message(random: &mut Random, from: u64, to: u64) -> CmMad {
    let services = [QpService::Reliable, QpService::Unreliable, QpService::Xrc];
    let body = match random.below(9) {
        0 => MadBody::Req(ReqBody {
            ends: ends(random),
            service: services[random.below(3)],
            gid: random.bytes(16).try_into().expect("sixteen"),
            mtu: random.below(5) as u8 + 1,
            traffic_class: random.next() as u8,
            ack_timeout: random.next() as u8 & 31,
            retry_count: random.next() as u8 & 7,
            side: side(random, REQ_DATA),
        }),
        1 => MadBody::Mra,
        2 => MadBody::Rep(side(random, REP_DATA)),
        3 => MadBody::Rtu,
        4 => MadBody::Rej { reason: random.next() as u8, data: data(random, REJ_DATA) },
        5 => MadBody::Dreq,
        6 => MadBody::Drep,
        7 => MadBody::SidrReq {
            ends: ends(random),
            gid: random.bytes(16).try_into().expect("sixteen"),
            data: data(random, SIDR_REQ_DATA),
        },
        _ => MadBody::SidrRep {
            status: random.next() as u8,
            qp_num: random.next() as u32 & 0xff_ffff,
            qkey: random.next() as u32,
            ece: ece(random),
            data: data(random, SIDR_REP_DATA),
        },
    };
    CmMad { from, to, body }
}

fn encoded(message: &CmMad) -> Vec<u8> {
    let mut packet = Vec::new();
    message.encode(&mut packet);
    packet
}

#[test]
fn messages_decode_as_they_were_encoded() {
    let mut random = Random(1);
    for _ in 0..if cfg!(miri) { 30 } else { 3000 } {
        let (from, to) = (random.next(), random.next());
        let message = any_message(&mut random, from, to);
        let packet = encoded(&message);
        assert!(packet.len() <= MESSAGE, "{}", packet.len());
        assert_eq!(CmMad::decode(&packet), Some(message));
    }
}

#[test]
fn truncated_or_overlong_message_is_refused() {
    let mut random = Random(2);
    for _ in 0..if cfg!(miri) { 9 } else { 90 } {
        let mut packet = encoded(&any_message(&mut random, 1, 2));
        for len in 0..packet.len() {
            assert_eq!(CmMad::decode(&packet[..len]), None);
        }
        packet.push(0);
        assert_eq!(CmMad::decode(&packet), None);
    }
}

/// Every decoded message can be encoded again.
#[test]
fn corrupted_message_decodes_or_is_refused() {
    let mut random = Random(3);
    let mut understood = 0;
    for _ in 0..if cfg!(miri) { 40 } else { 100_000 } {
        let mut packet = encoded(&any_message(&mut random, 1, 2));
        for _ in 0..=random.below(3) {
            let place = random.below(packet.len());
            packet[place] = random.next() as u8;
        }
        if let Some(message) = CmMad::decode(&packet) {
            understood += 1;
            assert_eq!(CmMad::decode(&encoded(&message)), Some(message));
        }
    }
    assert!(understood > 10, "{understood}");
}
