//! Ethernet below an address: the station that packets of RoCE go to, and the UDP port that they come from.

use super::address::{AddressHandleAttribute, Gid};
use super::device_context::DeviceContext;
use crate::error::Error;

/// Where frames go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EthernetAddress {
    /// The station's address.
    pub mac: [u8; 6],
    /// The virtual LAN's number, if there is one.
    pub vlan: Option<u16>,
}

impl DeviceContext {
    /// Where frames to an address go (`ibv_resolve_eth_l2_from_gid`): asks the system for the station that has the destination's GID,
    /// or the way there. Of the address its port, the source's GID index and the destination's GID are used. It may take a second or two,
    /// in which the network is asked.
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
    /// The port has no such GID, the port is not on Ethernet, or nobody answers.
    pub fn resolve_eth_l2_from_gid(
        &self,
        address: &AddressHandleAttribute,
    ) -> Result<EthernetAddress, Error> {
        /// What is no number of a virtual LAN: libraries give it where there is none, and some nothing.
        const NO_VLAN: u16 = 0xffff;
        const LAST_VLAN: u16 = 0xfff;
        let mut attr = *address.raw();
        let (mut mac, mut vlan) = ([0; 6], NO_VLAN);
        let resolve = self.provider().verbs().ibv_resolve_eth_l2_from_gid;
        // SAFETY: the context is open, the attributes are valid, and there is room for an address and a number.
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

/// The UDP source port of RoCE version 2 packets with this flow label (`ibv_flow_label_to_udp_sport`): one of 0xC000 to 0xFFFF. Routers
/// spread flows by it.
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
