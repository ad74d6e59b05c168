//! The address table: the device and the port to which an IP address belongs or may belong.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use rdma_mummy_sys::types::ibv_port_state;

use super::types::CmPath;
use crate::objects::device::{DEFAULT_PKEY, Device};
use crate::objects::lid;

/// The addresses of the devices.
pub(super) struct AddressTable {
    devices: &'static [Device],
    by_gid: HashMap<[u8; 16], PortAddress>,
}

#[derive(Clone, Copy)]
struct PortAddress {
    device: &'static Device,
    port: u8,
    index: u8,
}

impl AddressTable {
    pub(super) fn new(devices: &'static [Device]) -> Self {
        let mut by_gid = HashMap::new();
        for device in devices {
            for port in &device.ports {
                for (index, gid) in port.gids.iter().enumerate() {
                    let port_address = PortAddress { device, port: port.number, index: index as u8 };
                    by_gid.entry(gid.raw).or_insert(port_address);
                }
            }
        }
        Self { devices, by_gid }
    }

    /// The port that has an address.
    pub(super) fn path(&self, address: IpAddr) -> Option<CmPath> {
        let port_address =
            self.by_gid.get(&gid_of(address)).filter(|port_address| !port_address.device.is_gone())?;
        let sgid = port_address.device.port(port_address.port.into())?.gid(port_address.index.into())?.raw;
        Some(path(port_address, sgid))
    }

    /// The first active port, or else the first port, with its first address. Used for addresses
    /// that mean this host but no particular port.
    pub(super) fn any_path(&self) -> Option<CmPath> {
        let here = || self.devices.iter().filter(|device| !device.is_gone());
        let ports = || here().flat_map(|device| device.ports.iter().map(move |port| (device, port)));
        let up = ports().find(|(_, port)| port.state() == ibv_port_state::IBV_PORT_ACTIVE);
        let (device, port) = up.or_else(|| ports().next())?;
        let port_address = PortAddress { device, port: port.number, index: 0 };
        Some(path(&port_address, port.gid(0).map_or([0; 16], |gid| gid.raw)))
    }

    /// The first address of the first port in the same family as `like`. It is the source for
    /// destinations outside this process.
    pub(super) fn default_source(&self, like: IpAddr) -> Option<IpAddr> {
        let device = self.devices.iter().find(|device| !device.is_gone())?;
        let gids = device.ports.first()?.gids.iter().map(|gid| address_of(gid.raw));
        gids.into_iter().find(|address| address.is_ipv4() == like.is_ipv4())
    }

    /// Whether an address means this host but no particular port: the unspecified address, or a
    /// loopback address that no port has.
    pub(super) fn is_any(&self, address: IpAddr) -> bool {
        address.is_unspecified() || address.is_loopback() && self.path(address).is_none()
    }

    /// Whether an address can be reached: it belongs to a port of this process, or may belong to a
    /// port of another process.
    pub(super) fn reaches(&self, address: IpAddr) -> bool {
        self.by_gid.contains_key(&gid_of(address))
            || address.is_multicast()
            || lid::of_numbered_gid(gid_of(address)).is_some()
    }
}

fn path(port_address: &PortAddress, sgid: [u8; 16]) -> CmPath {
    CmPath {
        device: port_address.device,
        port: port_address.port,
        sgid,
        sgid_index: port_address.index,
        pkey: DEFAULT_PKEY,
    }
}

/// The GID of an address.
pub(super) fn gid_of(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

fn address_of(gid: [u8; 16]) -> IpAddr {
    Ipv6Addr::from(gid).to_canonical()
}

/// The loopback address in the same family as `like`, with a port.
pub(super) fn loopback(like: SocketAddr, port: u16) -> SocketAddr {
    let address: IpAddr =
        if like.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() };
    SocketAddr::new(address, port)
}

/// The unspecified address in the same family as `like`.
pub(super) fn unspecified(like: SocketAddr) -> SocketAddr {
    let address: IpAddr =
        if like.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    SocketAddr::new(address, 0)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::objects::setup::ProcessSetup;

    fn address(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn addresses_of_ports_are_found() {
        crate::verbs::testing::table();
        let addresses = AddressTable::new(&ProcessSetup::get().expect("a configuration").devices);
        let path = addresses.path(address("127.0.0.1")).expect("the first port's");
        assert_eq!((path.device.number, path.port, path.sgid_index), (0, 1, 1));
        let link_local = addresses.path(address("fe80::73:6fff:fe66:7400")).expect("the first port's");
        assert_eq!((link_local.port, link_local.sgid_index), (1, 0));
        assert!(addresses.path(address("192.0.2.1")).is_none());
        assert_eq!(addresses.any_path().map(|path| (path.port, path.sgid_index)), Some((1, 0)));
        assert_eq!(addresses.default_source(address("192.0.2.1")), Some(address("127.0.0.1")));
        assert_eq!(
            addresses.default_source(address("2001:db8::1")),
            Some(address("fe80::73:6fff:fe66:7400"))
        );
    }

    #[test]
    fn addresses_that_others_may_have_are_reached() {
        crate::verbs::testing::table();
        let addresses = AddressTable::new(&ProcessSetup::get().expect("a configuration").devices);
        for there in ["127.0.0.1", "127.0.7.16", "fe80::73:6fff:fe66:747f", "239.1.2.3", "ff0e::1"] {
            assert!(addresses.reaches(address(there)), "{there}");
        }
        for nowhere in ["127.0.8.1", "127.0.0.17", "127.0.0.0", "fe80::73:6fff:fe66:7480", "192.0.2.1", "::2"]
        {
            assert!(!addresses.reaches(address(nowhere)), "{nowhere}");
        }
        for any in ["0.0.0.0", "::", "::1", "127.9.9.9"] {
            assert!(addresses.is_any(address(any)), "{any}");
        }
        assert!(!addresses.is_any(address("127.0.0.1")));
    }
}
