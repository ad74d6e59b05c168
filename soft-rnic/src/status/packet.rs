//! The status packet: statistics as another process receives them.

use rdma_mummy_sys::types::{ibv_qp_state, ibv_qp_type};

use super::{Identifiers, Moved, OpenDevice, Peer, QueuePairs, Regions, Statistics, Traffic};
use crate::config::{MAX_DEVICES, Mode};
use crate::node::PacketReader;

/// The version of the format, which changes with the contents.
pub(crate) const STATUS_VERSION: u64 = 2;

/// The most peers in an answer. If a process has more, those with the most messages are included.
const MAX_PEERS: usize = 200;
/// The most pairs of queue pair type and state in an answer, which is more than exist.
const MAX_KINDS: usize = 64;
const MODES: [Mode; 2] = [Mode::Inline, Mode::Deferred];

/// Encodes the statistics. Leaves out peers and pairs of type and state beyond the limits.
pub(crate) fn encode(statistics: &Statistics) -> Vec<u8> {
    let mut packet = Vec::new();
    packet.push(MODES.iter().position(|mode| *mode == statistics.mode).unwrap_or_default() as u8);
    let devices = statistics.devices.iter().filter_map(|device| {
        let number: u8 = device.name.strip_prefix("soft")?.parse().ok()?;
        (number < MAX_DEVICES).then_some((number, device.contexts))
    });
    let devices: Vec<_> = devices.collect();
    packet.push(devices.len() as u8);
    for (number, contexts) in devices {
        packet.push(number);
        packet.extend(contexts.to_le_bytes());
    }
    let kinds = &statistics.queue_pairs[..statistics.queue_pairs.len().min(MAX_KINDS)];
    packet.push(kinds.len() as u8);
    for QueuePairs { qp_type, state, count } in kinds {
        [qp_type.0, state.0, *count].iter().for_each(|word| packet.extend(word.to_le_bytes()));
    }
    let Regions { count, bytes } = statistics.regions;
    for word in [statistics.shared_receive_queues, statistics.completion_queues, count] {
        packet.extend(word.to_le_bytes());
    }
    packet.extend(bytes.to_le_bytes());
    let Identifiers { count, listening, connected } = statistics.identifiers;
    [count, listening, connected].iter().for_each(|word| packet.extend(word.to_le_bytes()));
    put_traffic(&mut packet, &statistics.former);
    let mut peers: Vec<_> = statistics.peers.iter().collect();
    if peers.len() > MAX_PEERS {
        peers.sort_by_key(|peer| std::cmp::Reverse(peer.traffic.messages()));
    }
    let left_out = peers.len().saturating_sub(MAX_PEERS) as u32 + statistics.more_peers;
    peers.truncate(MAX_PEERS);
    packet.extend(left_out.to_le_bytes());
    packet.extend((peers.len() as u16).to_le_bytes());
    for peer in peers {
        packet.extend(peer.pid.unwrap_or(0).to_le_bytes());
        put_traffic(&mut packet, &peer.traffic);
    }
    packet
}

fn put_traffic(packet: &mut Vec<u8>, traffic: &Traffic) {
    for (_, Moved { messages, bytes }) in traffic.paths() {
        packet.extend(messages.to_le_bytes());
        packet.extend(bytes.to_le_bytes());
    }
    packet.extend(traffic.vm_calls.to_le_bytes());
}

/// Decodes statistics; `None` if they are malformed.
pub(crate) fn decode(packet: &mut PacketReader<'_>) -> Option<Statistics> {
    let mode = *MODES.get(usize::from(packet.u8()?))?;
    let devices = (0..packet.u8().filter(|count| *count <= MAX_DEVICES)?)
        .map(|_| {
            let number = packet.u8().filter(|number| *number < MAX_DEVICES)?;
            Some(OpenDevice { name: format!("soft{number}"), contexts: packet.u32()? })
        })
        .collect::<Option<_>>()?;
    let queue_pairs = (0..packet.u8().filter(|count| usize::from(*count) <= MAX_KINDS)?)
        .map(|_| {
            let (qp_type, state) = (ibv_qp_type(packet.u32()?), ibv_qp_state(packet.u32()?));
            Some(QueuePairs { qp_type, state, count: packet.u32()? })
        })
        .collect::<Option<_>>()?;
    let (shared_receive_queues, completion_queues) = (packet.u32()?, packet.u32()?);
    let regions = Regions { count: packet.u32()?, bytes: packet.u64()? };
    let identifiers =
        Identifiers { count: packet.u32()?, listening: packet.u32()?, connected: packet.u32()? };
    let former = traffic(packet)?;
    let more_peers = packet.u32()?;
    let peers = (0..packet.u16().filter(|count| usize::from(*count) <= MAX_PEERS)?)
        .map(|_| {
            let pid = Some(packet.u32()?).filter(|pid| *pid != 0);
            Some(Peer { pid, traffic: traffic(packet)? })
        })
        .collect::<Option<_>>()?;
    Some(Statistics {
        mode,
        devices,
        queue_pairs,
        shared_receive_queues,
        completion_queues,
        regions,
        identifiers,
        peers,
        more_peers,
        former,
    })
}

fn traffic(packet: &mut PacketReader<'_>) -> Option<Traffic> {
    let mut moved = || Some(Moved { messages: packet.u64()?, bytes: packet.u64()? });
    let (own, slot, direct, vm, call) = (moved()?, moved()?, moved()?, moved()?, moved()?);
    Some(Traffic { own, slot, direct, vm, call, vm_calls: packet.u64()? })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn statistics(peers: usize) -> Statistics {
        let moved = |number: u64| Moved { messages: number, bytes: number * 3 };
        let traffic = |number: u64| Traffic {
            own: moved(number),
            slot: moved(number + 1),
            direct: moved(number + 2),
            vm: moved(number + 3),
            call: moved(number + 4),
            vm_calls: number + 5,
        };
        let kind = |state| QueuePairs { qp_type: ibv_qp_type::IBV_QPT_UD, state, count: 3 };
        Statistics {
            mode: Mode::Deferred,
            devices: vec![OpenDevice { name: "soft15".into(), contexts: 2 }],
            queue_pairs: vec![kind(ibv_qp_state::IBV_QPS_RTS), kind(ibv_qp_state::IBV_QPS_ERR)],
            shared_receive_queues: 1,
            completion_queues: 2,
            regions: Regions { count: 3, bytes: 1 << 40 },
            identifiers: Identifiers { count: 6, listening: 4, connected: 5 },
            peers: (0..peers as u64)
                .map(|peer| Peer { pid: Some(peer as u32).filter(|pid| *pid > 0), traffic: traffic(peer) })
                .collect(),
            more_peers: 0,
            former: traffic(77),
        }
    }

    #[test]
    fn statistics_decode_as_they_were_encoded() {
        for peers in [0, 1, MAX_PEERS] {
            let statistics = statistics(peers);
            assert_eq!(decode(&mut PacketReader::new(&encode(&statistics))), Some(statistics));
        }
        let many = decode(&mut PacketReader::new(&encode(&statistics(MAX_PEERS + 5)))).expect("it is whole");
        assert_eq!((many.peers.len(), many.more_peers), (MAX_PEERS, 5));
        assert!(many.peers.iter().all(|peer| peer.pid >= Some(5)), "the busiest peers are included");
    }

    #[test]
    fn truncated_or_malformed_answer_is_rejected() {
        let packet = encode(&statistics(2));
        for len in (0..packet.len()).step_by(if cfg!(miri) { 29 } else { 1 }) {
            assert_eq!(decode(&mut PacketReader::new(&packet[..len])), None, "{len} bytes");
        }
        assert_eq!(decode(&mut PacketReader::new(&[0xff; 4096])), None);
    }
}
