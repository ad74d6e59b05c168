//! Lookup of the device, port and GID that belong to an IP address of this host.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use super::address::{Gid, GidEntry, GidType};
use super::connect::{ChoosePathError, LocalPath};
use super::device::DeviceList;
use super::device_context::DeviceContext;
use super::local_path::has_usable_index;
use super::port::{LinkLayer, PortAttr, PortState};
use crate::error::Error;

impl DeviceList {
    /// Opens the device that has a port with the address `local`.
    ///
    /// Pass a socket's [`local_addr`](std::net::TcpStream::local_addr) so that RDMA uses the path
    /// that the system's routes chose for TCP. The socket's port number has no meaning here.
    /// [`LocalPath::reason`] explains the choice.
    ///
    /// On Ethernet the address is one of the port's GIDs; RoCE version 2 is preferred. On
    /// InfiniBand it belongs to an IPoIB interface of the port.
    ///
    /// ```
    /// # #[cfg(feature = "soft")] {
    /// # use sideway::ibverbs::device::DeviceList;
    /// # let list = DeviceList::from_provider(sideway::soft::provider())?;
    /// let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    /// let (context, path) = list.open_by_address(listener.local_addr()?)?;
    /// println!("{} port {}, {}", context.name(), path.port_num(), path.reason());
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Fails if no active port has the address. The error names the interface that has the address,
    /// and the interfaces that have devices. The usual reason is an address on a bridge or a bond
    /// above the device's own interface. A device that does not answer is named instead, because its
    /// ports are unknown.
    pub fn open_by_address(&self, local: SocketAddr) -> Result<(DeviceContext, LocalPath), ChoosePathError> {
        let wanted = AddressQuery::of(local)?;
        if self.is_empty() {
            return Err(ChoosePathError::NoDevice(self.why_empty()));
        }
        let (mut best, mut seen): (Option<PortMatch>, _) = (None, Vec::new());
        let mut not_asked = None;
        for device in self.iter() {
            match device.open().and_then(|context| PortMatch::among(context, &wanted, &mut seen)) {
                Ok(Some(found)) if best.as_ref().is_none_or(|best| found.merit() > best.merit()) => {
                    best = Some(found);
                }
                Ok(_) => {}
                Err(error) => not_asked = Some((device.name(), error)),
            }
        }
        match (best, not_asked) {
            (Some(found), _) => found.settle(&wanted),
            (None, Some((device, source))) => {
                Err(ChoosePathError::NotAsked { address: wanted.ip, device, source })
            }
            (None, None) => Err(ChoosePathError::NoGidOfAddress {
                address: wanted.ip,
                interface: wanted.interface.map(|interface| interface.name),
                seen,
            }),
        }
    }
}

/// The address to look for, and the forms in which GID tables may show it.
struct AddressQuery {
    ip: IpAddr,
    /// The interface index of a link-local address; 0 if it is not known.
    scope: u32,
    gid: Gid,
    interface: Option<Interface>,
}

/// The interface of this host that has the address.
struct Interface {
    name: String,
    /// The port's own GID: the last 16 bytes of an IPoIB interface's hardware address.
    port_gid: Option<Gid>,
}

impl AddressQuery {
    fn of(local: SocketAddr) -> Result<Self, ChoosePathError> {
        let ip = local.ip().to_canonical();
        if ip.is_unspecified() || ip.is_multicast() {
            return Err(ChoosePathError::NoInterfaceAddress { address: ip });
        }
        let (gid, scope) = match (ip, local) {
            (IpAddr::V4(ip), _) => (Gid::from(ip.to_ipv6_mapped()), 0),
            (IpAddr::V6(ip), SocketAddr::V6(local)) => (Gid::from(ip), local.scope_id()),
            (IpAddr::V6(ip), SocketAddr::V4(_)) => (Gid::from(ip), 0),
        };
        let interface = if_addrs::get_if_addrs()
            .unwrap_or_default()
            .into_iter()
            .find(|interface| interface.ip() == ip && (scope == 0 || interface.index == Some(scope)))
            .map(|interface| Interface { port_gid: port_gid(&interface.name), name: interface.name });
        Ok(Self { ip, scope, gid, interface })
    }

    /// Whether an entry of a GID table is the address itself.
    fn is(&self, entry: &GidEntry) -> bool {
        let ifindex = entry.ndev_ifindex();
        entry.gid() == self.gid && (self.scope == 0 || ifindex == 0 || ifindex == self.scope)
    }

    /// Whether an entry of a GID table belongs to the port below the IPoIB interface that has the
    /// address.
    fn is_below(&self, entry: &GidEntry) -> bool {
        self.interface.as_ref().and_then(|interface| interface.port_gid) == Some(entry.gid())
    }

    fn describe(&self) -> String {
        match &self.interface {
            Some(interface) => format!("it stands for {} of {}", self.ip, interface.name),
            None => format!("it stands for {}", self.ip),
        }
    }
}

fn port_gid(interface: &str) -> Option<Gid> {
    let text = fs::read_to_string(Path::new("/sys/class/net").join(interface).join("address")).ok()?;
    parse_port_gid(text.trim())
}

/// Parses a hardware address as sysfs prints it. Only an IPoIB interface's address has 20 bytes.
fn parse_port_gid(text: &str) -> Option<Gid> {
    let bytes: Vec<u8> =
        text.split(':').map(|byte| u8::from_str_radix(byte, 16)).collect::<Result<_, _>>().ok()?;
    match bytes.len() {
        20 => Some(Gid { raw: bytes[4..].try_into().ok()? }),
        _ => None,
    }
}

/// A port that has the address.
struct PortMatch {
    context: DeviceContext,
    port_num: u8,
    port: PortAttr,
    entry: GidEntry,
}

impl PortMatch {
    /// The best port of a device that has the address. The interfaces of its other ports are added
    /// to `seen`.
    fn among(
        context: DeviceContext,
        wanted: &AddressQuery,
        seen: &mut Vec<String>,
    ) -> Result<Option<Self>, Error> {
        let table = context.query_gid_table()?;
        let ports = context.query_device()?.phys_port_cnt();
        let mut best: Option<Self> = None;
        for port_num in 1..=ports {
            let port = context.query_port(port_num)?;
            let entries = || table.iter().filter(|entry| entry.port_num() == u32::from(port_num));
            let infiniband = port.link_layer() == LinkLayer::InfiniBand;
            // A software device has no IPoIB interface, so its ports have the addresses themselves.
            let fit = |entry: &&GidEntry| wanted.is(entry) || infiniband && wanted.is_below(entry);
            let (usable, beyond) = entries()
                .filter(fit)
                .partition::<Vec<&GidEntry>, _>(|entry| infiniband || has_usable_index(entry));
            for entry in usable {
                let found = Self { context: context.clone(), port_num, port, entry: *entry };
                if best.as_ref().is_none_or(|best| found.merit() > best.merit()) {
                    best = Some(found);
                }
            }
            let mut on: Vec<String> = entries().filter_map(|entry| entry.netdev_name().ok()).collect();
            on.sort();
            on.dedup();
            let on = if on.is_empty() { "no interface".to_owned() } else { on.join(", ") };
            let beyond = beyond.first().map_or(String::new(), |entry| {
                format!(" (with the address at GID index {}, above 255)", entry.gid_index())
            });
            seen.push(format!("{} port {port_num} is on {on}{beyond}", context.name()));
        }
        Ok(best)
    }

    fn merit(&self) -> (bool, bool) {
        (self.port.port_state() == PortState::Active, self.entry.gid_type() == GidType::RoceV2)
    }

    fn settle(self, wanted: &AddressQuery) -> Result<(DeviceContext, LocalPath), ChoosePathError> {
        let Self { context, port_num, port, entry } = self;
        if port.port_state() != PortState::Active {
            let (device, state) = (context.name(), port.port_state());
            return Err(ChoosePathError::PortNotActive { device, port_num, state });
        }
        let path = if port.link_layer() == LinkLayer::InfiniBand {
            // Within the subnet the LID is enough. If the port requires a global routing header, it
            // gets GID 0, the default everywhere in this crate.
            LocalPath::choose(&context, port_num, None)?
        } else {
            LocalPath::of(port_num, &port, Some(entry), wanted.describe())
        };
        Ok((context, path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipoib_address_ends_with_the_ports_gid() {
        let text = "80:00:10:87:fe:80:00:00:00:00:00:00:00:02:c9:03:00:31:78:f2";
        let gid = parse_port_gid(text).unwrap();
        assert_eq!(gid.to_string(), "fe80:0000:0000:0000:0002:c903:0031:78f2");
        for other in ["", "00:11:22:33:44:55", "zz", &text[..57]] {
            assert_eq!(parse_port_gid(other), None, "{other}");
        }
    }

    #[test]
    fn a_link_local_address_is_one_of_its_interface() {
        let entry =
            |ifindex| GidEntry::from_parts("fe80::1".parse().unwrap(), 1, 0, GidType::RoceV2, ifindex);
        let wanted = AddressQuery::of("[fe80::1%7]:80".parse().unwrap()).unwrap();
        assert!(wanted.is(&entry(7)) && !wanted.is(&entry(8)));
        assert!(wanted.is(&entry(0)), "a device that does not say is believed");
        let mapped = AddressQuery::of("[::ffff:192.0.2.1]:80".parse().unwrap()).unwrap();
        assert_eq!(mapped.ip.to_string(), "192.0.2.1");
        assert_eq!(mapped.gid.to_ipv4_mapped(), Some([192, 0, 2, 1].into()));
    }

    #[test]
    fn rejects_addresses_of_no_single_interface() {
        for text in ["0.0.0.0:1", "[::]:1", "224.0.0.1:1", "[ff02::1]:1", "[::ffff:0.0.0.0]:1"] {
            let error = AddressQuery::of(text.parse().unwrap()).err().unwrap();
            assert!(error.to_string().contains("is no address of one interface"), "{error}");
        }
    }
}
