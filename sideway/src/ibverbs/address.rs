//! Addresses: GIDs, the GID table, and address vectors.
//!
//! ```
//! use sideway::ibverbs::address::Gid;
//!
//! let gid: Gid = "::ffff:192.0.2.1".parse()?;
//! assert_eq!(gid.to_ipv4_mapped(), Some([192, 0, 2, 1].into()));
//! assert_eq!(gid.to_string(), "0000:0000:0000:0000:0000:ffff:c000:0201");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use rdma_mummy_sys::types::{ibv_ah_attr, ibv_gid, ibv_gid_entry};
use serde_core::{Deserialize, Deserializer, Serialize, Serializer};

/// A global identifier: the address of a port, in the form of an IPv6 address (`ibv_gid`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Gid {
    /// The 16 bytes in network byte order.
    pub raw: [u8; 16],
}

impl Gid {
    /// The all-zero GID, which marks an empty entry of a GID table.
    pub const ZERO: Self = Self { raw: [0; 16] };

    /// Whether all bytes are zero, as in an empty entry of the GID table.
    pub fn is_zero(&self) -> bool {
        self.raw == [0; 16]
    }

    /// Whether it is link-local (`fe80::/10`): valid on one Ethernet segment only, and not routed.
    pub fn is_unicast_link_local(&self) -> bool {
        self.raw[0] == 0xfe && self.raw[1] & 0xc0 == 0x80
    }

    /// The IPv4 address, if the GID is an IPv4-mapped address (`::ffff:a.b.c.d`).
    pub fn to_ipv4_mapped(&self) -> Option<Ipv4Addr> {
        Ipv6Addr::from(self.raw).to_ipv4_mapped()
    }
}

impl From<Ipv6Addr> for Gid {
    fn from(address: Ipv6Addr) -> Self {
        Self { raw: address.octets() }
    }
}

impl From<Gid> for Ipv6Addr {
    fn from(gid: Gid) -> Self {
        Self::from(gid.raw)
    }
}

impl From<ibv_gid> for Gid {
    fn from(gid: ibv_gid) -> Self {
        // SAFETY: every union member is 16 plain bytes, any value of which is a GID, and the value
        // was copied whole, so it is initialised.
        Self { raw: unsafe { gid.raw } }
    }
}

impl From<Gid> for ibv_gid {
    fn from(gid: Gid) -> Self {
        Self { raw: gid.raw }
    }
}

impl fmt::Display for Gid {
    /// Prints all eight groups with four digits each, as diagnostic tools print GIDs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, group) in Ipv6Addr::from(self.raw).segments().iter().enumerate() {
            let separator = if n == 0 { "" } else { ":" };
            write!(f, "{separator}{group:04x}")?;
        }
        Ok(())
    }
}

impl FromStr for Gid {
    type Err = std::net::AddrParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse::<Ipv6Addr>().map(Self::from)
    }
}

impl Serialize for Gid {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Gid {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(|_| serde_core::de::Error::custom(format!("`{text}` is not a GID")))
    }
}

c_enum! {
    /// The network protocol that a GID belongs to.
    pub struct GidType(u32) {
        /// InfiniBand.
        InfiniBand = 0,
        /// RoCE version 1: Ethernet frames, one segment only.
        RoceV1 = 1,
        /// RoCE version 2: UDP packets, routable.
        RoceV2 = 2,
    }
}

impl fmt::Display for GidType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::InfiniBand => f.pad("IB"),
            Self::RoceV1 => f.pad("RoCEv1"),
            Self::RoceV2 => f.pad("RoCEv2"),
            _ => f.pad(&format!("{self:?}")),
        }
    }
}

/// One entry of a GID table (`ibv_gid_entry`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GidEntry {
    gid: Gid,
    gid_index: u32,
    port_num: u32,
    gid_type: GidType,
    ndev_ifindex: u32,
}

impl GidEntry {
    pub(crate) fn new(entry: ibv_gid_entry) -> Self {
        Self {
            gid: Gid::from(entry.gid),
            gid_index: entry.gid_index,
            port_num: entry.port_num,
            gid_type: GidType::from_raw(entry.gid_type),
            ndev_ifindex: entry.ndev_ifindex,
        }
    }

    pub(crate) fn from_parts(
        gid: Gid,
        port_num: u8,
        gid_index: u32,
        gid_type: GidType,
        ifindex: u32,
    ) -> Self {
        Self { gid, gid_index, port_num: u32::from(port_num), gid_type, ndev_ifindex: ifindex }
    }

    /// The GID itself.
    pub fn gid(&self) -> Gid {
        self.gid
    }

    /// The entry's index in its port's table, for use as `sgid_index`.
    pub fn gid_index(&self) -> u32 {
        self.gid_index
    }

    /// The port whose table has this entry, counted from 1.
    pub fn port_num(&self) -> u32 {
        self.port_num
    }

    /// The network protocol of the GID. On RoCE it selects version 1 or 2.
    pub fn gid_type(&self) -> GidType {
        self.gid_type
    }

    /// The index of the network interface behind the GID; 0 if there is none, as on InfiniBand.
    pub fn ndev_ifindex(&self) -> u32 {
        self.ndev_ifindex
    }

    /// The name of the network interface behind the GID.
    ///
    /// # Errors
    ///
    /// Fails if the GID has no interface, or if that interface was removed or is in another network
    /// namespace.
    pub fn netdev_name(&self) -> io::Result<String> {
        let mut name = [0 as libc::c_char; libc::IF_NAMESIZE];
        // SAFETY: `name` has `IF_NAMESIZE` bytes, which `if_indextoname` requires.
        let found = unsafe { libc::if_indextoname(self.ndev_ifindex, name.as_mut_ptr()) };
        if found.is_null() {
            return Err(io::Error::last_os_error());
        }
        let bytes = name.map(|c| c as u8);
        let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
        Ok(String::from_utf8_lossy(&bytes[..end]).into_owned())
    }
}

/// An address vector (`ibv_ah_attr`): the destination of a connected queue pair, or of an [address
/// handle](super::address_handle).
#[derive(Clone, Copy)]
pub struct AddressHandleAttribute {
    attr: ibv_ah_attr,
}

impl Default for AddressHandleAttribute {
    fn default() -> Self {
        Self::new()
    }
}

impl AddressHandleAttribute {
    /// An address with every field zero: no global routing header, LID 0, port 0.
    pub fn new() -> Self {
        Self { attr: ibv_ah_attr::default() }
    }

    pub(crate) fn from_raw(attr: ibv_ah_attr) -> Self {
        Self { attr }
    }

    /// The C struct, for verbs that this crate does not wrap.
    pub fn raw(&self) -> &ibv_ah_attr {
        &self.attr
    }

    /// Sets the destination's LID (InfiniBand).
    pub fn setup_dest_lid(&mut self, dest_lid: u16) -> &mut Self {
        self.attr.dlid = dest_lid;
        self
    }

    /// Sets the service level, 0 to 15.
    pub fn setup_service_level(&mut self, sl: u8) -> &mut Self {
        self.attr.sl = sl;
        self
    }

    /// Sets the low bits of the source LID, for ports with several LIDs (LMC).
    pub fn setup_source_path_bits(&mut self, src_path_bits: u8) -> &mut Self {
        self.attr.src_path_bits = src_path_bits;
        self
    }

    /// Limits the packet rate (`ibv_rate`); 0 means the port's full rate.
    pub fn setup_static_rate(&mut self, static_rate: u8) -> &mut Self {
        self.attr.static_rate = static_rate;
        self
    }

    /// Sets the local port that packets leave from.
    pub fn setup_port(&mut self, port_num: u8) -> &mut Self {
        self.attr.port_num = port_num;
        self
    }

    /// Sets the destination's GID. Packets then carry a global routing header, which RoCE always
    /// needs.
    pub fn setup_grh_dest_gid(&mut self, gid: &Gid) -> &mut Self {
        self.attr.is_global = 1;
        self.attr.grh.dgid = (*gid).into();
        self
    }

    /// Sets the index of the source GID in the local port's table.
    pub fn setup_grh_src_gid_index(&mut self, index: u8) -> &mut Self {
        self.attr.is_global = 1;
        self.attr.grh.sgid_index = index;
        self
    }

    /// Sets the number of routers that packets may pass.
    pub fn setup_grh_hop_limit(&mut self, hop_limit: u8) -> &mut Self {
        self.attr.is_global = 1;
        self.attr.grh.hop_limit = hop_limit;
        self
    }

    /// Sets the traffic class. On RoCE version 2 it becomes the IP type of service.
    pub fn setup_grh_traffic_class(&mut self, traffic_class: u8) -> &mut Self {
        self.attr.is_global = 1;
        self.attr.grh.traffic_class = traffic_class;
        self
    }

    /// Sets the flow label, 20 bits, of the global routing header.
    pub fn setup_grh_flow_label(&mut self, flow_label: u32) -> &mut Self {
        self.attr.is_global = 1;
        self.attr.grh.flow_label = flow_label;
        self
    }

    /// The destination's GID, if packets carry a global routing header.
    pub fn grh_dest_gid(&self) -> Option<Gid> {
        (self.attr.is_global != 0).then(|| Gid::from(self.attr.grh.dgid))
    }

    /// The local GID's index, if packets carry a global routing header.
    pub fn grh_src_gid_index(&self) -> Option<u8> {
        (self.attr.is_global != 0).then_some(self.attr.grh.sgid_index)
    }

    /// The number of routers that packets may pass, if they carry a global routing header.
    pub fn grh_hop_limit(&self) -> Option<u8> {
        (self.attr.is_global != 0).then_some(self.attr.grh.hop_limit)
    }

    /// The traffic class, if packets carry a global routing header.
    pub fn grh_traffic_class(&self) -> Option<u8> {
        (self.attr.is_global != 0).then_some(self.attr.grh.traffic_class)
    }

    /// The flow label, if packets carry a global routing header.
    pub fn grh_flow_label(&self) -> Option<u32> {
        (self.attr.is_global != 0).then_some(self.attr.grh.flow_label)
    }

    /// The service level, 0 to 15.
    pub fn service_level(&self) -> u8 {
        self.attr.sl
    }

    /// The destination's LID; 0 on RoCE.
    pub fn dest_lid(&self) -> u16 {
        self.attr.dlid
    }

    /// The local port that packets leave from.
    pub fn port(&self) -> u8 {
        self.attr.port_num
    }
}

impl fmt::Debug for AddressHandleAttribute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AddressHandleAttribute")
            .field("port", &self.attr.port_num)
            .field("dest_lid", &self.attr.dlid)
            .field("service_level", &self.attr.sl)
            .field("grh_dest_gid", &self.grh_dest_gid())
            .field("grh_src_gid_index", &self.grh_src_gid_index())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gid_prints_all_its_digits_and_reads_them_back() {
        let text = "0000:0000:0000:0000:0000:ffff:ac1e:0818";
        let gid: Gid = text.parse().unwrap();
        assert_eq!(gid.to_string(), text);
        assert_eq!(gid.to_ipv4_mapped(), Some(Ipv4Addr::new(172, 30, 8, 24)));
        let json = serde_json::to_string(&gid).unwrap();
        assert_eq!(serde_json::from_str::<Gid>(&json).unwrap(), gid);
        assert!("fe80::1".parse::<Gid>().unwrap().is_unicast_link_local());
        assert!(!gid.is_unicast_link_local());
        assert!(serde_json::from_str::<Gid>("\"nonsense\"").is_err());
    }
}
