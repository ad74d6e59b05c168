//! The global route header before a datagram's payload: IPv6, or IPv4 in the second half of the
//! same forty bytes, as in RoCE v2 packets (InfiniBand specification, annex A17.4.5).

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::config::Link;
use crate::engine::send::GRH;

/// The next header of RoCE v2 packets: UDP.
const UDP: u8 = 17;
/// The next header of InfiniBand packets (InfiniBand specification 8.3).
const IBA: u8 = 0x1b;

/// Service levels of a completion on Ethernet: the packet has a UDP header, which all packets of
/// RoCE v2 have, and the kind of its network header.
const HAS_UDP: u8 = 8;
const IPV6: u8 = 1;
const IPV4: u8 = 2;

/// The fields of a datagram's global route header.
#[derive(Clone, Copy, Debug)]
pub(super) struct GrhFields {
    pub(super) source: [u8; 16],
    pub(super) destination: [u8; 16],
    pub(super) traffic_class: u8,
    pub(super) hop_limit: u8,
    pub(super) flow_label: u32,
    /// The length of the payload in bytes.
    pub(super) payload: u16,
    /// The level that the sender chose, which packets of InfiniBand alone carry.
    pub(super) service_level: u8,
}

impl GrhFields {
    /// The bytes that the receiver finds, and the completion's service level that says which of
    /// the two headers it is.
    ///
    /// On Ethernet a packet has no service level, and mlx5 gives the kind of its header instead.
    /// UCX needs that to find the destination. It drops a datagram over IPv4 if the level is 0.
    pub(super) fn header(&self, link: Link) -> ([u8; GRH], u8) {
        if link == Link::InfiniBand {
            return (self.ipv6(IBA), self.service_level);
        }
        let ipv4 = |gid: [u8; 16]| Ipv6Addr::from(gid).to_ipv4_mapped();
        match (ipv4(self.source), ipv4(self.destination)) {
            (Some(source), Some(destination)) => (self.ipv4(source, destination), HAS_UDP | IPV4),
            _ => (self.ipv6(UDP), HAS_UDP | IPV6),
        }
    }

    fn ipv6(&self, next_header: u8) -> [u8; GRH] {
        let mut header = [0; GRH];
        let first = 6 << 28 | u32::from(self.traffic_class) << 20 | self.flow_label;
        header[..4].copy_from_slice(&first.to_be_bytes());
        header[4..6].copy_from_slice(&self.payload.to_be_bytes());
        header[6] = next_header;
        header[7] = self.hop_limit;
        header[8..24].copy_from_slice(&self.source);
        header[24..].copy_from_slice(&self.destination);
        header
    }

    fn ipv4(&self, source: Ipv4Addr, destination: Ipv4Addr) -> [u8; GRH] {
        let mut header = [0; GRH];
        let ip = &mut header[20..];
        ip[0] = 0x45;
        ip[1] = self.traffic_class;
        ip[2..4].copy_from_slice(&self.payload.saturating_add(20).to_be_bytes());
        ip[8] = self.hop_limit;
        ip[9] = UDP;
        ip[12..16].copy_from_slice(&source.octets());
        ip[16..20].copy_from_slice(&destination.octets());
        let words = ip.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
        let sum: u32 = words.sum();
        let folded = (sum & 0xffff) + (sum >> 16);
        let checksum = !((folded & 0xffff) + (folded >> 16)) as u16;
        ip[10..12].copy_from_slice(&checksum.to_be_bytes());
        header
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_level_of_a_header_says_its_kind() {
        let [one, other] = [1, 2].map(|last| Ipv4Addr::new(192, 0, 2, last).to_ipv6_mapped().octets());
        let between = |source, destination| {
            let (traffic_class, hop_limit, flow_label, payload, service_level) = (0, 1, 0, 8, 5);
            GrhFields { source, destination, traffic_class, hop_limit, flow_label, payload, service_level }
        };
        let (header, level) = between(one, other).header(Link::Ethernet);
        assert_eq!((header[20] >> 4, level), (4, 10));
        let (header, level) = between(one, Ipv6Addr::LOCALHOST.octets()).header(Link::Ethernet);
        assert_eq!((header[0] >> 4, level), (6, 9));
        let (header, level) = between(one, other).header(Link::InfiniBand);
        assert_eq!((header[0] >> 4, header[6], level), (6, 0x1b, 5));
    }
}
