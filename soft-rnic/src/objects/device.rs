//! A device and its ports: names, GUIDs, GIDs.
//!
//! Every process of a host sees the same devices. A device is told from the others by its number, a port by its own:
//!
//! | GID index | port p of `softN` |
//! | --- | --- |
//! | 0 | the link-local address of the port's MAC address, `02:73:6f:66:74:xx` ("soft", then 8 N + p - 1) |
//! | 1 | `::ffff:127.0.(p-1).(N+1)`, so `127.0.0.1` for the first port of `soft0` |
//! | 2.. | of the first port of `soft0` alone: the host's addresses, IPv4 before IPv6 |
//!
//! The host's addresses are read once, when the devices are first listed.

use std::ffi::{c_char, c_void};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use rdma_mummy_sys::types::*;

use crate::config::{Config, MAX_PORTS};
use crate::faults::Trait;
use crate::platform::network::HostAddress;

/// Entries of a port's GID table.
pub(crate) const GID_TABLE: usize = 128;
/// The only partition.
pub(crate) const DEFAULT_PKEY: u16 = 0xffff;

/// The address of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gid {
    pub(crate) raw: [u8; 16],
    /// The index of the network interface that has the address, or 0.
    pub(crate) interface: u32,
}

/// A port of a device.
#[derive(Debug)]
pub(crate) struct DevicePort {
    /// From 1.
    pub(crate) number: u8,
    pub(crate) mac: [u8; 6],
    pub(crate) gids: Vec<Gid>,
    state: AtomicU32,
}

impl DevicePort {
    fn new(device: u8, number: u8, addresses: &[HostAddress]) -> Self {
        let mac = [0x02, b's', b'o', b'f', b't', device * MAX_PORTS + number - 1];
        let loopback = Ipv4Addr::new(127, 0, number - 1, device + 1).to_ipv6_mapped();
        let here: &[HostAddress] = if (device, number) == (0, 1) { addresses } else { &[] };
        let own = [link_local(mac), loopback].map(|address| HostAddress { address, interface: 0 });
        let gids = own.iter().chain(here).take(GID_TABLE);
        let gids = gids.map(|host| Gid { raw: host.address.octets(), interface: host.interface }).collect();
        Self { number, mac, gids, state: AtomicU32::new(ibv_port_state::IBV_PORT_ACTIVE.0) }
    }

    pub(crate) fn state(&self) -> ibv_port_state {
        ibv_port_state(self.state.load(Relaxed))
    }

    /// Takes the port up or down.
    pub(crate) fn set_state(&self, state: ibv_port_state) {
        self.state.store(state.0, Relaxed);
    }

    /// The GID at an index; `None` if the entry is empty.
    pub(crate) fn gid(&self, index: usize) -> Option<&Gid> {
        self.gids.get(index)
    }
}

/// The link-local address of an Ethernet address.
fn link_local([a, b, c, d, e, f]: [u8; 6]) -> Ipv6Addr {
    let [first, second, third, fourth] = [[a ^ 2, b], [c, 0xff], [0xfe, d], [e, f]].map(u16::from_be_bytes);
    Ipv6Addr::new(0xfe80, 0, 0, 0, first, second, third, fourth)
}

/// What is odd about a device. By itself it is nobody's: it is no hardware, and does not look like any.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DeviceTraits {
    pub(crate) vendor_id: u32,
    pub(crate) vendor_part_id: u32,
    pub(crate) hw_ver: u32,
    pub(crate) no_atomics: bool,
}

/// What a program has of a device, as long as rdma-core makes it: whether a device is a driver's, that driver's direct verbs
/// (`mlx5dv_is_supported`) tell by the pointer behind what programs know.
#[repr(C)]
struct DriverDevice {
    device: ibv_device,
    driver: *const c_void,
}

/// A device.
#[derive(Debug)]
pub(crate) struct Device {
    /// From 0.
    pub(crate) number: u8,
    pub(crate) name: String,
    pub(crate) guid: u64,
    /// What rules of faults have made of it.
    pub(crate) traits: DeviceTraits,
    pub(crate) ports: Vec<DevicePort>,
    object: *mut ibv_device,
    gone: AtomicBool,
}

// SAFETY: the pointer is to a struct that is never freed, and that this crate only writes when it makes it.
unsafe impl Send for Device {}
// SAFETY: the pointer is to a struct that is never freed, and that this crate only writes when it
// makes it.
unsafe impl Sync for Device {}

impl Device {
    pub(crate) fn new(number: u8, config: &Config, addresses: &[HostAddress]) -> Self {
        let name = format!("soft{number}");
        let mut object = ibv_device {
            node_type: ibv_node_type::IBV_NODE_CA,
            transport_type: ibv_transport_type::IBV_TRANSPORT_IB,
            ..ibv_device::default()
        };
        for field in [&mut object.name, &mut object.dev_name] {
            for (to, from) in field.iter_mut().zip(name.bytes()) {
                *to = from as c_char;
            }
        }
        let guid = u64::from_be_bytes([0x02, b's', b'o', b'f', b't', 0, 0, number]);
        let ports = (1..=config.ports).map(|port| DevicePort::new(number, port, addresses)).collect();
        // The devices of a process are few and live as long as it does, as those of a program that never frees its
        // list do.
        Self {
            number,
            name,
            guid,
            traits: DeviceTraits::default(),
            ports,
            object: Box::into_raw(Box::new(DriverDevice { device: object, driver: ptr::null() })).cast(),
            gone: AtomicBool::new(false),
        }
    }

    /// Makes the device another than it is.
    pub(crate) fn become_odd(&mut self, of: &Trait) {
        match of {
            Trait::Limit(..) => {}
            Trait::VendorId(id) => self.traits.vendor_id = *id,
            Trait::VendorPartId(id) => self.traits.vendor_part_id = *id,
            Trait::HwVer(version) => self.traits.hw_ver = *version,
            Trait::NodeGuid(guid) => self.guid = *guid,
            Trait::NoGids => self.ports.iter_mut().for_each(|port| port.gids.clear()),
            Trait::NoAtomics => self.traits.no_atomics = true,
        }
    }

    /// It was unplugged, or plugged in again.
    pub(crate) fn set_gone(&self, gone: bool) {
        self.gone.store(gone, Relaxed);
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Relaxed)
    }

    /// What the program knows the device by.
    pub(crate) fn object(&self) -> *mut ibv_device {
        self.object
    }

    /// The port of a number, from 1.
    pub(crate) fn port(&self, number: u32) -> Option<&DevicePort> {
        self.ports.get(usize::try_from(number).ok()?.checked_sub(1)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn devices() -> Vec<Device> {
        let config = Config { devices: 16, ports: 8, ..Config::default() };
        let host = HostAddress { address: Ipv4Addr::new(192, 0, 2, 7).to_ipv6_mapped(), interface: 3 };
        (0..16).map(|number| Device::new(number, &config, &[host])).collect()
    }

    #[test]
    fn the_first_port_has_the_hosts_addresses() {
        let devices = devices();
        let gids: Vec<_> = devices[0].ports[0].gids.iter().map(|gid| Ipv6Addr::from(gid.raw)).collect();
        let shown: Vec<_> = gids.iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["fe80::73:6fff:fe66:7400", "::ffff:127.0.0.1", "::ffff:192.0.2.7"]);
        assert_eq!(devices[0].ports[0].gids[2].interface, 3);
        assert_eq!(devices[1].ports[1].gids.len(), 2);
        assert_eq!(Ipv6Addr::from(devices[1].ports[1].gids[1].raw).to_string(), "::ffff:127.0.1.2");
        assert_eq!(devices[0].guid, 0x0273_6f66_7400_0000);
        devices.iter().for_each(free);
    }

    #[test]
    fn no_two_ports_share_a_gid() {
        let devices = devices();
        let mut gids: Vec<_> = devices
            .iter()
            .flat_map(|device| &device.ports)
            .flat_map(|port| &port.gids)
            .map(|gid| gid.raw)
            .collect();
        let count = gids.len();
        gids.sort_unstable();
        gids.dedup();
        assert_eq!((gids.len(), count), (16 * 8 * 2 + 1, 16 * 8 * 2 + 1));
        devices.iter().for_each(free);
    }

    /// For leak checkers: the real devices are never freed.
    fn free(device: &Device) {
        // SAFETY: `new` boxed it, and these tests use it no more.
        drop(unsafe { Box::from_raw(device.object.cast::<DriverDevice>()) });
    }
}
