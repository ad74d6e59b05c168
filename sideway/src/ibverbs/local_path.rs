//! The local port and the choice of its address: GID index or LID.

use std::net::{IpAddr, Ipv4Addr};

use super::address::{Gid, GidEntry, GidType};
use super::device::FindDeviceError;
use super::device_context::{DeviceContext, is_soft};
use super::port::{LinkLayer, Mtu, PortAttr, PortState};
use crate::error::Error;

/// A local port and the address (GID or LID) under which peers reach it.
#[derive(Clone, Debug)]
pub struct LocalPath {
    pub(super) port_num: u8,
    pub(super) lid: u16,
    pub(super) mtu: Mtu,
    pub(super) link_layer: LinkLayer,
    pub(super) gid_index: Option<u8>,
    pub(super) gid: Option<Gid>,
    pub(super) grh_required: bool,
    pub(super) reason: String,
}

impl LocalPath {
    /// Chooses the address of a port: the GID at `gid_index` if given, otherwise the one that
    /// usually works.
    ///
    /// On Ethernet it prefers RoCE version 2, then a GID of an IPv4 address, then a routable IPv6
    /// address, then a link-local one (`169.254.0.0/16`, `fe80::/10`). Version 1 comes last. On
    /// InfiniBand it is the LID, with GID 0 if the port requires global routing headers.
    ///
    /// # Errors
    ///
    /// Fails if the port does not exist or is not active, or if the GID index is out of range or
    /// empty.
    pub fn choose(
        context: &DeviceContext,
        port_num: u8,
        gid_index: Option<u8>,
    ) -> Result<Self, ChoosePathError> {
        let device = context.name();
        let port = context.query_port(port_num).map_err(|source| match context.query_device() {
            Ok(attr) if !(1..=attr.phys_port_cnt()).contains(&port_num) => {
                let (device, ports) = (device.clone(), attr.phys_port_cnt());
                ChoosePathError::NoSuchPort { device, port_num, ports, source }
            }
            _ => source.into(),
        })?;
        if port.port_state() != PortState::Active {
            return Err(ChoosePathError::PortNotActive { device, port_num, state: port.port_state() });
        }
        let ethernet = port.link_layer() == LinkLayer::Ethernet;
        let (entry, reason) = match gid_index {
            Some(index) => {
                let length = port.gid_tbl_len();
                (Some(named_gid(context, &device, port_num, index, length)?), "it was asked for".to_owned())
            }
            None if ethernet => best_gid(context, &device, port_num)?,
            None if port.is_grh_required() => (
                Some(context.query_gid_ex(port_num, 0)?),
                "the port asks for global routing headers".to_owned(),
            ),
            None => (None, format!("InfiniBand on one subnet is addressed by LID ({})", port.lid())),
        };
        Ok(Self::of(port_num, &port, entry, reason))
    }

    /// The address of a port that was chosen for `reason`.
    pub(super) fn of(port_num: u8, port: &PortAttr, entry: Option<GidEntry>, reason: String) -> Self {
        Self {
            port_num,
            lid: port.lid(),
            mtu: port.active_mtu(),
            link_layer: port.link_layer(),
            gid_index: entry.and_then(|entry| u8::try_from(entry.gid_index()).ok()),
            gid: entry.map(|entry| entry.gid()),
            grh_required: port.is_grh_required(),
            reason: match entry {
                Some(entry) => {
                    format!(
                        "GID index {} ({}, {}): {reason}",
                        entry.gid_index(),
                        entry.gid(),
                        entry.gid_type()
                    )
                }
                None => reason,
            },
        }
    }

    /// The port number, from 1.
    pub fn port_num(&self) -> u8 {
        self.port_num
    }

    /// The port's LID; 0 on Ethernet.
    pub fn lid(&self) -> u16 {
        self.lid
    }

    /// The port's active MTU.
    pub fn mtu(&self) -> Mtu {
        self.mtu
    }

    /// The link layer: InfiniBand or Ethernet.
    pub fn link_layer(&self) -> LinkLayer {
        self.link_layer
    }

    /// The index of the chosen GID, if any.
    pub fn gid_index(&self) -> Option<u8> {
        self.gid_index
    }

    /// The chosen GID, if any.
    pub fn gid(&self) -> Option<Gid> {
        self.gid
    }

    /// The reason for the choice, in words.
    pub fn reason(&self) -> &str {
        &self.reason
    }
}

fn named_gid(
    context: &DeviceContext,
    device: &str,
    port_num: u8,
    index: u8,
    length: i32,
) -> Result<GidEntry, ChoosePathError> {
    if i32::from(index) >= length {
        return Err(ChoosePathError::GidIndexOutOfRange { device: device.into(), port_num, index, length });
    }
    match context.query_gid_ex(port_num, u32::from(index)) {
        Ok(entry) if !entry.gid().is_zero() => Ok(entry),
        Ok(_) => Err(ChoosePathError::EmptyGid { device: device.into(), port_num, index }),
        Err(error) if error.errno() == Some(libc::ENODATA) => {
            Err(ChoosePathError::EmptyGid { device: device.into(), port_num, index })
        }
        Err(error) => Err(error.into()),
    }
}

fn best_gid(
    context: &DeviceContext,
    device: &str,
    port_num: u8,
) -> Result<(Option<GidEntry>, String), ChoosePathError> {
    let mut table = context.query_gid_table()?;
    table.retain(|entry| entry.port_num() == u32::from(port_num) && !entry.gid().is_zero());
    let lowest = table.iter().map(GidEntry::gid_index).min();
    let best = table
        .iter()
        .filter(|entry| has_usable_index(entry))
        .max_by_key(|entry| (merit(entry), std::cmp::Reverse(entry.gid_index())))
        .ok_or_else(|| match (device.into(), lowest) {
            (device, Some(lowest)) => ChoosePathError::GidIndexTooHigh { device, port_num, lowest },
            (device, None) => ChoosePathError::NoGid { device, port_num },
        })?;
    let version =
        if best.gid_type() == GidType::RoceV2 { "routable RoCEv2" } else { "the port has no RoCEv2" };
    let kind = match best.gid().to_ipv4_mapped() {
        Some(address) if address.is_link_local() => {
            format!("link-local IPv4 address {address}: {SAME_SEGMENT}")
        }
        Some(address) if address != Ipv4Addr::UNSPECIFIED => format!("IPv4 address {address}"),
        _ if best.gid().is_unicast_link_local() => format!("link-local only: {SAME_SEGMENT}"),
        _ => "global IPv6 address".into(),
    };
    Ok((Some(*best), format!("{version}, {kind}")))
}

const SAME_SEGMENT: &str = "peers must be on the same segment";

/// Whether a queue pair can use the entry: `ibv_global_route::sgid_index` has 8 bits.
pub(super) fn has_usable_index(entry: &GidEntry) -> bool {
    u8::try_from(entry.gid_index()).is_ok()
}

/// Ranks a GID by how far its packets can travel; more is better.
fn merit(entry: &GidEntry) -> (bool, u8) {
    let scope = match (entry.gid().to_ipv4_mapped(), entry.gid()) {
        (Some(address), _) if address.is_link_local() => 1,
        (Some(_), _) => 3,
        (None, gid) if gid.is_unicast_link_local() => 0,
        (None, _) => 2,
    };
    // The version comes first: a routable address on version 1 reaches no further than a link-local
    // one on version 2.
    (entry.gid_type() == GidType::RoceV2, scope)
}

/// No address could be chosen.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum ChoosePathError {
    /// The device has no such port.
    #[error("{device} has no port {port_num}: its ports are 1 to {ports} ({source})")]
    NoSuchPort {
        /// The device's name, such as `mlx5_0`.
        device: String,
        /// The port number that was asked for; ports are numbered from 1.
        port_num: u8,
        /// How many ports there are.
        ports: u8,
        /// The error number of `ibv_query_port`.
        source: Error,
    },
    /// Nothing is plugged in, or nobody has configured the port.
    #[error("port {port_num} of {device} is {state}, not Active: {}", remedy(device, PORT_REMEDIES))]
    PortNotActive {
        /// The device's name, such as `mlx5_0`.
        device: String,
        /// The port number, from 1.
        port_num: u8,
        /// The port's logical state, which has to be [`PortState::Active`].
        state: PortState,
    },
    /// The GID table is shorter.
    #[error("GID index {index} is out of range: port {port_num} of {device} has {} of them, from 0; `show_gids` lists them", (*.length).max(0))]
    GidIndexOutOfRange {
        /// The device's name, such as `mlx5_0`.
        device: String,
        /// The port number, from 1.
        port_num: u8,
        /// The GID index that was asked for.
        index: u8,
        /// The length of the table.
        length: i32,
    },
    /// The entry of the GID table is empty.
    #[error(
        "GID index {index} of port {port_num} of {device} is empty; `show_gids` lists those that are not"
    )]
    EmptyGid {
        /// The device's name, such as `mlx5_0`.
        device: String,
        /// The port number, from 1.
        port_num: u8,
        /// The GID index that was asked for.
        index: u8,
    },
    /// The port has no address at all.
    #[error("port {port_num} of {device} has no GID: {}", remedy(device, GID_REMEDIES))]
    NoGid {
        /// The device's name, such as `mlx5_0`.
        device: String,
        /// The port number, from 1.
        port_num: u8,
    },
    /// All GIDs of the port have indices that queue pairs cannot use.
    #[error(
        "port {port_num} of {device} has no GID below index 256, and the lowest is {lowest}: an address of a queue pair \
         has 8 bits for the index; remove addresses that are not needed from the interface"
    )]
    GidIndexTooHigh {
        /// The device's name, such as `mlx5_0`.
        device: String,
        /// The port number, from 1.
        port_num: u8,
        /// The lowest index of a GID.
        lowest: u32,
    },
    /// The address is that of no single interface.
    #[error("{address} is no address of one interface: give that of a connected socket, or of the interface")]
    NoInterfaceAddress {
        /// The address that was asked for.
        address: IpAddr,
    },
    /// The list of devices is empty.
    #[error(transparent)]
    NoDevice(FindDeviceError),
    /// None of the devices has the address.
    #[error(
        "no RDMA port has a GID for {address}, {}; {}: give the address to the device's own interface (not to a bridge or \
         bond above it), or name the device",
        .interface.as_ref().map_or("which no interface of this host has".into(), |name| format!("an address of {name}")),
        .seen.join(", ")
    )]
    NoGidOfAddress {
        /// The address that was asked for.
        address: IpAddr,
        /// The interface with this address; `None` if no interface of this host has it.
        interface: Option<String>,
        /// The devices that were looked at, in words.
        seen: Vec<String>,
    },
    /// None of the devices that answered has the address, and one did not answer.
    #[error("{device} could not be asked whether it has {address}: {source}")]
    NotAsked {
        /// The address that was asked for.
        address: IpAddr,
        /// The device's name, such as `mlx5_0`.
        device: String,
        /// Why it could not be opened or queried.
        source: Error,
    },
    /// A port, or its GID table, could not be read.
    #[error(transparent)]
    Query(#[from] Error),
}

debug_as_text!(ChoosePathError);

/// Remedies for a port that is not active: for hardware, and for a software device.
const PORT_REMEDIES: [&str; 2] = [
    "bring its network interface up (`ip link set DEV up`) or check the cable and the subnet manager",
    "a fault rule took it down (`port_down` or `port_flap`, see SOFT_RNIC_FAULTS)",
];

/// Remedies for a port without a GID: for hardware, and for a software device.
const GID_REMEDIES: [&str; 2] = [
    "give its network interface an address (`ip addr add`)",
    "a fault rule took them away (`no_gids`, see SOFT_RNIC_FAULTS)",
];

fn remedy(device: &str, [of_hardware, of_software]: [&'static str; 2]) -> &'static str {
    if is_soft(device) { of_software } else { of_hardware }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv4_gid_of_version_2_is_preferred() {
        let entry = |gid: &str, index, kind| GidEntry::from_parts(gid.parse().unwrap(), 1, index, kind, 0);
        let ranked = [
            entry("fe80::1", 0, GidType::RoceV1),
            entry("::ffff:10.0.0.1", 2, GidType::RoceV1),
            entry("fe80::1", 1, GidType::RoceV2),
            entry("::ffff:169.254.3.4", 5, GidType::RoceV2),
            entry("2001:db8::1", 4, GidType::RoceV2),
            entry("::ffff:10.0.0.1", 3, GidType::RoceV2),
        ];
        assert!(ranked.is_sorted_by(|a, b| merit(a) < merit(b)));
    }
}
