//! The LIDs of the ports of an InfiniBand link, by which its devices are addressed.

use std::collections::HashMap;
use std::net::Ipv6Addr;
use std::sync::OnceLock;

use super::Device;

/// The first LID of multicast groups.
const MULTICAST: u16 = 0xc000;

/// Empty on Ethernet.
static LIDS: OnceLock<HashMap<[u8; 16], u16>> = OnceLock::new();

/// Remembers the LIDs of all ports of these devices.
pub(super) fn remember(devices: &[Device]) {
    let mut lids = HashMap::new();
    for device in devices {
        for port in 1..=device.query().map_or(1, |attr| attr.phys_port_cnt) {
            let Ok(attr) = device.port_at(port) else { continue };
            if u32::from(attr.link_layer) != rdma_mummy_sys::types::IBV_LINK_LAYER_INFINIBAND {
                continue;
            }
            let gids = (0..attr.gid_tbl_len.min(16)).filter_map(|index| device.gid(port, index).ok());
            lids.extend(gids.filter(|gid| *gid != [0; 16]).map(|gid| (gid, attr.lid)));
        }
    }
    LIDS.get_or_init(|| lids);
}

/// The LID of the port with this GID, or of the group; `None` on Ethernet.
pub(crate) fn lid_of(gid: [u8; 16]) -> Option<u16> {
    let lids = LIDS.get().filter(|lids| !lids.is_empty())?;
    if is_group(gid) { Some(MULTICAST) } else { lids.get(&gid).copied() }
}

/// Whether a GID names a multicast group, of IPv4 or IPv6 addresses.
pub(super) fn is_group(gid: [u8; 16]) -> bool {
    Ipv6Addr::from(gid).to_canonical().is_multicast()
}
