//! Ethernet addressing of RoCE packets: the destination's MAC address and VLAN, and the UDP source
//! port.

use super::address::{AddressHandleAttribute, Gid};
use super::device_context::DeviceContext;
use crate::error::Error;

/// The Ethernet destination of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EthernetAddress {
    /// The MAC address of the destination or the next router.
    pub mac: [u8; 6],
    /// The VLAN ID, if the packets are tagged.
    pub vlan: Option<u16>,
}

impl DeviceContext {
    /// Resolves the Ethernet destination of an address (`ibv_resolve_eth_l2_from_gid`): the station
    /// with the destination's GID, or the router on the way there. It uses the address's port,
    /// source GID index and destination GID. It may take a second or two, because the system
    /// queries the network.
    ///
    /// ```
    /// # #[cfg(feature = "soft")] {
    /// # use sideway::ibverbs::device::DeviceList;
    /// use sideway::ibverbs::address::AddressHandleAttribute;
    ///
    /// # let devices = DeviceList::from_provider(sideway::soft::provider())?;
    /// let context = devices.first()?.open()?;
    /// let own = context.query_gid(1, 0)?;
    /// let mut address = AddressHandleAttribute::new();
    /// address.setup_port(1).setup_grh_src_gid_index(0).setup_grh_dest_gid(&own);
    /// println!("{:x?}", context.resolve_eth_l2_from_gid(&address)?.mac);
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Fails if the port has no such GID, if it is not on Ethernet, or if no station answers.
    pub fn resolve_eth_l2_from_gid(
        &self,
        address: &AddressHandleAttribute,
    ) -> Result<EthernetAddress, Error> {
        /// Not a valid VLAN ID. Libraries write it for untagged packets, and some write nothing, so
        /// it is also the initial value.
        const NO_VLAN: u16 = 0xffff;
        const LAST_VLAN: u16 = 0xfff;
        let mut attr = *address.raw();
        let (mut mac, mut vlan) = ([0; 6], NO_VLAN);
        let resolve = self.provider().verbs().ibv_resolve_eth_l2_from_gid;
        // SAFETY: `self` keeps the context open, the attributes are initialised, and both results
        // are local variables of the expected size.
        let result =
            unsafe { resolve(self.as_raw().as_ptr(), &raw mut attr, mac.as_mut_ptr(), &raw mut vlan) };
        match super::check(result) {
            Ok(()) => Ok(EthernetAddress { mac, vlan: (vlan <= LAST_VLAN).then_some(vlan) }),
            Err(source) => {
                let gid = Gid::from(attr.grh.dgid);
                let (port_num, gid_index) = (attr.port_num, attr.grh.sgid_index);
                Err(Error::os("ibv_resolve_eth_l2_from_gid", source)
                    .with("gid", gid)
                    .with("port_num", port_num)
                    .with("gid_index", gid_index)
                    .remedy("the port has to be on Ethernet, and the address in reach (`ip neigh`)"))
            }
        }
    }
}

/// The UDP source port of RoCE version 2 packets with this flow label
/// (`ibv_flow_label_to_udp_sport`), from 0xC000 to 0xFFFF. Routers use it to spread flows over
/// paths.
///
/// ```
/// use sideway::ibverbs::resolve::flow_label_to_udp_sport;
///
/// assert_eq!(flow_label_to_udp_sport(0), 0xc000);
/// assert_eq!(flow_label_to_udp_sport(0x4_0001), 0xc011);
/// ```
pub const fn flow_label_to_udp_sport(flow_label: u32) -> u16 {
    rdma_mummy_sys::verbs::ibv_flow_label_to_udp_sport(flow_label)
}
