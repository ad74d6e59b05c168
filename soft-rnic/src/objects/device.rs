//! A device and its ports: names, GUIDs, GIDs.
//!
//! Every process of a host sees the same devices. Its number identifies a device, and a port within
//! it:
//!
//! | GID index | port p of `softN` |
//! | --- | --- |
//! | 0 | the link-local address of the port's MAC address, `02:73:6f:66:74:xx` ("soft", then 8 N + p - 1) |
//! | 1 | `::ffff:127.0.(p-1).(N+1)`, so `127.0.0.1` for the first port of `soft0` |
//! | 2.. | for the first port of `soft0` only: the host's addresses, IPv4 before IPv6 |
//!
//! The host's addresses are read once, when the devices are first listed.

use std::ffi::{c_char, c_void};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use rdma_mummy_sys::types::*;

use super::lid;
use crate::config::{Config, Link, MAX_PORTS};
use crate::faults::Trait;
use crate::platform::network::HostAddress;

/// The number of entries in a port's GID table.
pub(crate) const GID_TABLE: usize = 128;
/// The P_Key of the default partition, in which every port is a full member.
pub(crate) const DEFAULT_PKEY: u16 = 0xffff;
/// The P_Keys of every port: on an InfiniBand link, all ports are full members of partition 1, too.
const PKEYS: [u16; 2] = [DEFAULT_PKEY, 0x8001];

/// One GID of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gid {
    pub(crate) raw: [u8; 16],
    /// The index of the network interface that has the address, or 0.
    pub(crate) interface: u32,
}

#[derive(Debug)]
pub(crate) struct DevicePort {
    /// Counts from 1.
    pub(crate) number: u8,
    /// 0 on Ethernet.
    pub(crate) lid: u16,
    pub(crate) mac: [u8; 6],
    pub(crate) gids: Vec<Gid>,
    state: AtomicU32,
}

impl DevicePort {
    fn new(device: u8, number: u8, link: Link, addresses: &[HostAddress]) -> Self {
        let mac = mac_of(device, number);
        let lid = if link == Link::InfiniBand { lid::of_port(device, number) } else { 0 };
        let loopback = Ipv4Addr::new(127, 0, number - 1, device + 1).to_ipv6_mapped();
        let here: &[HostAddress] = if (device, number) == (0, 1) { addresses } else { &[] };
        let own = [link_local(mac), loopback].map(|address| HostAddress { address, interface: 0 });
        let gids = own.iter().chain(here).take(GID_TABLE);
        let gids = gids.map(|host| Gid { raw: host.address.octets(), interface: host.interface }).collect();
        Self { number, lid, mac, gids, state: AtomicU32::new(ibv_port_state::IBV_PORT_ACTIVE.0) }
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

/// The Ethernet address of a port; `device` counts from 0, `port` from 1.
pub(super) fn mac_of(device: u8, port: u8) -> [u8; 6] {
    [0x02, b's', b'o', b'f', b't', device * MAX_PORTS + port - 1]
}

/// The link-local address of an Ethernet address.
pub(super) fn link_local([a, b, c, d, e, f]: [u8; 6]) -> Ipv6Addr {
    let [first, second, third, fourth] = [[a ^ 2, b], [c, 0xff], [0xfe, d], [e, f]].map(u16::from_be_bytes);
    Ipv6Addr::new(0xfe80, 0, 0, 0, first, second, third, fourth)
}

/// The vendor of devices without hardware, as SoftRoCE reports it.
const SOFTWARE_VENDOR: u32 = 0xff_ffff;

/// The properties that fault rules can change. By default the part is 0.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeviceTraits {
    pub(crate) vendor_id: u32,
    pub(crate) vendor_part_id: u32,
    pub(crate) hw_ver: u32,
    pub(crate) no_atomics: bool,
}

impl Default for DeviceTraits {
    fn default() -> Self {
        Self { vendor_id: SOFTWARE_VENDOR, vendor_part_id: 0, hw_ver: 0, no_atomics: false }
    }
}

/// A device as long as rdma-core's struct, which continues with a pointer to the driver. A driver's
/// direct verbs (`mlx5dv_is_supported`) read that pointer to recognize the driver's devices.
#[repr(C)]
struct DriverDevice {
    device: ibv_device,
    driver: *const c_void,
}

/// A device, which every context shares.
#[derive(Debug)]
pub(crate) struct Device {
    /// Counts from 0.
    pub(crate) number: u8,
    pub(crate) name: String,
    pub(crate) guid: u64,
    /// The properties, changed by fault rules.
    pub(crate) traits: DeviceTraits,
    pub(crate) link: Link,
    pub(crate) ports: Vec<DevicePort>,
    object: *mut ibv_device,
    gone: AtomicBool,
}

// SAFETY: the pointer is to a struct that is never freed, and that this crate writes only in `new`.
unsafe impl Send for Device {}
// SAFETY: the pointer is to a struct that is never freed, and that this crate writes only in `new`.
unsafe impl Sync for Device {}

impl Device {
    pub(crate) fn new(number: u8, config: &Config, addresses: &[HostAddress]) -> Self {
        let name = format!("soft{number}");
        let mut object = ibv_device {
            node_type: ibv_node_type::IBV_NODE_CA,
            transport_type: ibv_transport_type::IBV_TRANSPORT_IB,
            ..ibv_device::default()
        };
        // `soft-rnic run` shows programs files at these paths.
        let texts = [
            (&mut object.name[..], name.clone()),
            (&mut object.dev_name, name.clone()),
            (&mut object.ibdev_path, format!("/sys/class/infiniband/{name}")),
            (&mut object.dev_path, format!("/sys/class/infiniband_verbs/{name}")),
        ];
        for (field, text) in texts {
            for (to, from) in field.iter_mut().zip(text.bytes()) {
                *to = from as c_char;
            }
        }
        let guid = u64::from_be_bytes([0x02, b's', b'o', b'f', b't', 0, 0, number]);
        let ports =
            (1..=config.ports).map(|port| DevicePort::new(number, port, config.link, addresses)).collect();
        // Never freed: the devices of a process are few, and a program that never frees its device
        // list may use them until it exits.
        Self {
            number,
            name,
            guid,
            traits: DeviceTraits::default(),
            link: config.link,
            ports,
            object: Box::into_raw(Box::new(DriverDevice { device: object, driver: ptr::null() })).cast(),
            gone: AtomicBool::new(false),
        }
    }

    /// Applies a fault rule's change.
    pub(crate) fn apply_trait(&mut self, of: &Trait) {
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

    /// Marks the device as unplugged, or as plugged in again.
    pub(crate) fn set_gone(&self, gone: bool) {
        self.gone.store(gone, Relaxed);
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Relaxed)
    }

    /// The program's pointer to the device.
    pub(crate) fn object(&self) -> *mut ibv_device {
        self.object
    }

    /// Whether its ports are addressed by LIDs.
    pub(crate) fn is_infiniband(&self) -> bool {
        self.link == Link::InfiniBand
    }

    /// The P_Key table of its ports.
    pub(crate) fn pkeys(&self) -> &'static [u16] {
        if self.is_infiniband() { &PKEYS } else { &PKEYS[..1] }
    }

    /// The port with this number, from 1.
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
    fn first_port_has_the_hosts_addresses() {
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

    /// For leak checkers. Devices of a running process are never freed.
    fn free(device: &Device) {
        // SAFETY: `new` boxed it, and the test does not use it any more.
        drop(unsafe { Box::from_raw(device.object.cast::<DriverDevice>()) });
    }
}
