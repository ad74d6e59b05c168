//! The local identifiers (LIDs) of an InfiniBand link. Each port of each device has one, which its
//! number gives, so that all processes of a host agree.

use std::net::Ipv6Addr;

use super::device::{link_local, mac_of};
use super::multicast::is_group;
use crate::config::{MAX_DEVICES, MAX_PORTS};

const FIRST_PORT: u16 = 1;
/// The LID of the subnet manager, which no port needs to reach.
pub(crate) const SUBNET_MANAGER: u16 = FIRST_PORT;
/// The first LID of multicast groups.
const MULTICAST: u16 = 0xc000;

/// The LID of a port; `device` counts from 0, `port` from 1.
pub(crate) fn of_port(device: u8, port: u8) -> u16 {
    u16::from(device) * u16::from(MAX_PORTS) + u16::from(port)
}

/// Whether packets for this LID reach a port. On Ethernet they have none.
pub(crate) fn leads_to(dest_lid: Option<u16>, device: u8, port: u8) -> bool {
    dest_lid.is_none_or(|dest_lid| dest_lid == of_port(device, port))
}

/// The first GID of the port with this LID; `None` for a LID beyond those of ports.
pub(crate) fn first_gid(lid: u16) -> Option<[u8; 16]> {
    let number = u8::try_from(lid.checked_sub(1)?).ok().filter(|number| *number < MAX_DEVICES * MAX_PORTS)?;
    Some(link_local(mac_of(number / MAX_PORTS, number % MAX_PORTS + 1)).octets())
}

/// The LID by which packets for a GID go: a group's, or a port's. The host's addresses belong to the
/// first port.
pub(crate) fn of_gid(gid: [u8; 16]) -> u16 {
    if is_group(gid) { of_group(gid) } else { of_numbered_gid(gid).unwrap_or(FIRST_PORT) }
}

/// The LID of the port whose numbers give it this GID, by the table in [`device`](super::device).
/// `None` for other GIDs.
pub(crate) fn of_numbered_gid(gid: [u8; 16]) -> Option<u16> {
    // The last byte of a port's Ethernet address counts the ports from 0.
    let by_mac = u16::from(gid[15]) + 1;
    if first_gid(by_mac) == Some(gid) {
        return Some(by_mac);
    }
    match Ipv6Addr::from(gid).to_ipv4_mapped()?.octets() {
        [127, 0, port @ 0..MAX_PORTS, device @ 1..=MAX_DEVICES] => Some(of_port(device - 1, port + 1)),
        _ => None,
    }
}

/// The LID of a multicast group: a number that its GID gives.
fn of_group(gid: [u8; 16]) -> u16 {
    let words = gid.chunks_exact(2).map(|pair| u16::from_be_bytes([pair[0], pair[1]]));
    // The last LID means every port (the permissive LID).
    MULTICAST + words.fold(0_u16, |sum, word| sum.rotate_left(3) ^ word) % 0x3fff
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn every_port_has_a_lid() {
        assert_eq!((of_port(0, 1), of_port(15, 8)), (1, 128));
        for lid in 1..=128 {
            assert_eq!(of_gid(first_gid(lid).expect("a port")), lid);
        }
        assert!([0, 129, 256 + 1, u16::MAX].map(first_gid).iter().all(Option::is_none));
        let of_ipv4 = |address: [u8; 4]| of_gid(Ipv4Addr::from(address).to_ipv6_mapped().octets());
        assert_eq!([[127, 0, 0, 1], [127, 0, 1, 3], [192, 0, 2, 7]].map(of_ipv4), [1, 18, 1]);
        assert_eq!(of_numbered_gid(Ipv4Addr::new(127, 0, 8, 1).to_ipv6_mapped().octets()), None);
    }

    #[test]
    fn a_group_has_a_multicast_lid() {
        for last in 0..=255 {
            let mut of_ipv6 = [0xff; 16];
            of_ipv6[15] = last;
            let of_ipv4 = Ipv4Addr::new(239, 1, 2, last).to_ipv6_mapped().octets();
            assert!([of_ipv6, of_ipv4].iter().all(|gid| (0xc000..0xffff).contains(&of_gid(*gid))));
        }
    }
}
