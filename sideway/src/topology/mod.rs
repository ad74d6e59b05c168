//! The kernel's view of RDMA devices: PCI functions, NUMA nodes, ports and network interfaces.
//!
//! [`Topology::read`] reads sysfs and opens no device, so that it also shows devices that this
//! process may not open. It shows the kernel's devices only. The software device of the feature
//! `soft` has no entry.
//!
//! A missing, unreadable or malformed file makes one value unknown (`None`, or an empty list). It
//! never fails the whole.
//!
//! ```
//! use sideway::topology::Topology;
//!
//! let topology = Topology::read();
//! for device in topology.devices() {
//!     println!("{} NUMA node {:?}", device.name, device.numa_node);
//!     for port in &device.ports {
//!         println!("  port {}: {:?}, {:?}", port.port_num, port.state, port.netdevs);
//!     }
//! }
//! if let [first, second, ..] = topology.devices() {
//!     println!("{} and {}: {:?}", first.name, second.name, first.distance(second));
//! }
//! ```

mod pci;
mod sysfs;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

pub use pci::{Distance, ParsePciAddressError, PciAddress, PciFunction};

use self::sysfs::{is_netdev_name, lines_of, names, number, text};
use crate::ibverbs::device::{Guid, NodeType};
use crate::ibverbs::port::{EffectiveSpeed, LinkLayer, PhysicalState, PortState};

/// The RDMA devices that the kernel lists in sysfs.
#[derive(Clone, Debug)]
pub struct Topology {
    root: PathBuf,
    devices: Vec<RdmaDevice>,
}

impl Topology {
    /// Reads `/sys`.
    pub fn read() -> Self {
        Self::read_from("/sys")
    }

    /// Reads a copy of sysfs, such as one from another host. It must keep the symbolic links below
    /// `class` and `devices`.
    pub fn read_from(root: impl Into<PathBuf>) -> Self {
        let root = root.into();
        let folder = root.join("class/infiniband");
        let devices = names(&folder).into_iter().map(|name| RdmaDevice::read(&root, &folder, name)).collect();
        Self { root, devices }
    }

    /// The devices, sorted by name (`/sys/class/infiniband`).
    pub fn devices(&self) -> &[RdmaDevice] {
        &self.devices
    }

    /// The device called `name`; `None` if the kernel does not list it.
    pub fn device(&self, name: &str) -> Option<&RdmaDevice> {
        self.devices.iter().find(|device| device.name == name)
    }

    /// Any PCI function, such as that of a GPU (`/sys/bus/pci/devices`). Its
    /// [distance](PciFunction::distance) to a device's function tells which NIC is near. `None` if
    /// the kernel does not list it.
    pub fn pci_function(&self, address: PciAddress) -> Option<PciFunction> {
        PciFunction::read(&self.root.join("bus/pci/devices").join(address.to_string()))
    }

    /// The NUMA node of a processor (`/sys/devices/system/cpu/cpuN/nodeM`), counted as
    /// `sched_getcpu` and `sched_getaffinity` do. `None` if the kernel does not report it.
    pub fn numa_node_of_cpu(&self, cpu: usize) -> Option<u32> {
        let folder = self.root.join(format!("devices/system/cpu/cpu{cpu}"));
        names(&folder).iter().find_map(|name| name.strip_prefix("node")?.parse().ok())
    }

    /// A network interface (`/sys/class/net`); `None` if the kernel does not list it, also in this
    /// network namespace.
    pub fn netdev(&self, name: &str) -> Option<Netdev> {
        let exists = is_netdev_name(name) && self.root.join("class/net").join(name).exists();
        exists.then(|| Netdev::read(&self.root, name.to_owned()))
    }
}

/// An RDMA device of the kernel (`/sys/class/infiniband/NAME`).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RdmaDevice {
    /// The kernel's name, such as `mlx5_0`.
    pub name: String,
    /// The node GUID (`node_guid`); `None` also if it is zero.
    pub node_guid: Option<Guid>,
    /// The kind of node (`node_type`).
    pub node_type: Option<NodeType>,
    /// The PCI function (`device`). Two devices have the same one if they are subfunctions of it.
    /// For a software device, it is the function of the [parent](Self::parent).
    pub pci: Option<PciFunction>,
    /// The NUMA node (`device/numa_node`), also of a device that is not on PCI. `None` if the
    /// firmware does not report it, which the kernel shows as -1.
    pub numa_node: Option<u32>,
    /// The interface that carries the packets of a software device (`parent`, which SoftRoCE has).
    pub parent: Option<Netdev>,
    /// The ports, sorted by number.
    pub ports: Vec<RdmaPort>,
}

impl RdmaDevice {
    fn read(root: &Path, folder: &Path, name: String) -> Self {
        let own = folder.join(&name);
        let device = own.join("device");
        let parent = text(&own.join("parent")).filter(|parent| is_netdev_name(parent));
        // A software device has no PCI function, and some kernels link the parent's.
        let device = match &parent {
            Some(parent) if !device.exists() => root.join("class/net").join(parent).join("device"),
            _ => device,
        };
        let pci = PciFunction::read(&device);
        let numa_node = match &pci {
            Some(function) => function.numa_node,
            None => number(&device.join("numa_node")),
        };
        let ports = own.join("ports");
        let mut numbers: Vec<u8> = names(&ports).iter().filter_map(|name| name.parse().ok()).collect();
        numbers.retain(|port_num| *port_num != 0);
        numbers.sort_unstable();
        numbers.dedup();
        let only = numbers.len() == 1;
        let port =
            |port_num: u8| RdmaPort::read(root, &ports.join(port_num.to_string()), port_num, only, &own);
        Self {
            node_guid: text(&own.join("node_guid")).and_then(|text| parse_guid(&text)),
            node_type: code(&own.join("node_type")).map(|code| NodeType::from_raw(code.into())),
            pci,
            numa_node,
            parent: parent.map(|name| Netdev::read(root, name)),
            ports: numbers.into_iter().map(port).collect(),
            name,
        }
    }

    /// How far the PCI functions of two devices are apart. Without them, devices of one NUMA node
    /// are [`Distance::SameNumaNode`]. `None` if neither is known.
    pub fn distance(&self, other: &Self) -> Option<Distance> {
        if let (Some(own), Some(other)) = (&self.pci, &other.pci) {
            return Some(own.distance(other));
        }
        let same = self.numa_node? == other.numa_node?;
        Some(if same { Distance::SameNumaNode } else { Distance::Far })
    }
}

/// A port of an RDMA device (`/sys/class/infiniband/NAME/ports/PORT`).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RdmaPort {
    /// The number, which counts from 1.
    pub port_num: u8,
    /// The logical state (`state`).
    pub state: Option<PortState>,
    /// The physical state (`phys_state`).
    pub phys_state: Option<PhysicalState>,
    /// InfiniBand or Ethernet (`link_layer`); `None` also if the kernel reports another one.
    pub link_layer: Option<LinkLayer>,
    /// The speed over all lanes (`rate`). An inactive port reports its slowest speed.
    pub rate: Option<EffectiveSpeed>,
    /// The network interfaces: those of its GIDs (`gid_attrs/ndevs`), then those of the device
    /// (`device/net`) with this port's number in `dev_port`. IPoIB interfaces are among the latter,
    /// and the interfaces below a bond. Representors of virtual functions are left out.
    pub netdevs: Vec<Netdev>,
}

impl RdmaPort {
    /// `only` says that the device has one port, and `device` is its folder.
    fn read(root: &Path, folder: &Path, port_num: u8, only: bool, device: &Path) -> Self {
        let word = |file: &str| text(&folder.join(file));
        let mut netdevs = lines_of(&folder.join("gid_attrs/ndevs"));
        netdevs.retain(|name| is_netdev_name(name));
        let net = device.join("device/net");
        let of_port = |name: &String| {
            let folder = net.join(name);
            let dev_port: Option<u32> = number(&folder.join("dev_port"));
            let is_of_port = only || dev_port.is_some_and(|at| at.checked_add(1) == Some(port_num.into()));
            is_netdev_name(name) && is_of_port && !is_representor(&folder)
        };
        for name in names(&net).into_iter().filter(of_port) {
            if !netdevs.contains(&name) {
                netdevs.push(name);
            }
        }
        Self {
            port_num,
            state: code(&folder.join("state")).map(|code| PortState::from_raw(code.into())),
            phys_state: code(&folder.join("phys_state")).map(PhysicalState::from_raw),
            link_layer: word("link_layer").and_then(|text| parse_link_layer(&text)),
            rate: word("rate").and_then(|text| parse_rate(&text)),
            netdevs: netdevs.into_iter().map(|name| Netdev::read(root, name)).collect(),
        }
    }

    /// Whether the port can carry traffic: its state is [`PortState::Active`].
    pub fn is_active(&self) -> bool {
        self.state == Some(PortState::Active)
    }
}

/// A network interface (`/sys/class/net/NAME`).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Netdev {
    /// The kernel's name, such as `eth0` or `ib0`.
    pub name: String,
    /// The interface index (`ifindex`).
    pub index: Option<u32>,
    /// The bond or bridge that the interface belongs to (`master`), which usually has the address.
    pub master: Option<String>,
}

impl Netdev {
    fn read(root: &Path, name: String) -> Self {
        let folder = root.join("class/net").join(&name);
        let master = std::fs::read_link(folder.join("master")).ok();
        let master = master.and_then(|path| Some(path.file_name()?.to_str()?.to_owned()));
        Self { index: number(&folder.join("ifindex")), master, name }
    }
}

/// Whether an interface is the switch's end of a virtual function or subfunction: `phys_port_name`
/// is `pf0vf1`, `pf0sf3` or `pf0`, after `c1` for another host's.
fn is_representor(folder: &Path) -> bool {
    let Some(name) = text(&folder.join("phys_port_name")) else { return false };
    let digits = |text: &str| text.trim_start_matches(|c: char| c.is_ascii_digit()).to_owned();
    let name = name.strip_prefix('c').map_or(name.clone(), digits);
    name.starts_with("pf")
}

/// Parses `0002:c903:00a1:b2c3`.
fn parse_guid(text: &str) -> Option<Guid> {
    let mut parts = text.split(':');
    let mut value = 0;
    for _ in 0..4 {
        let part = parts.next().filter(|part| part.len() == 4)?;
        value = value << 16 | u64::from(u16::from_str_radix(part, 16).ok()?);
    }
    (parts.next().is_none() && value != 0).then(|| Guid::from_be(u64::to_be(value)))
}

/// The code in a file that also has its name, such as `4: ACTIVE`.
fn code(path: &Path) -> Option<u8> {
    text(path)?.split_once(": ")?.0.parse().ok()
}

fn parse_link_layer(text: &str) -> Option<LinkLayer> {
    match text {
        "InfiniBand" => Some(LinkLayer::InfiniBand),
        "Ethernet" => Some(LinkLayer::Ethernet),
        _ => None,
    }
}

/// Parses `100 Gb/sec (4X EDR)` or `2.5 Gb/sec (1X SDR)`.
fn parse_rate(text: &str) -> Option<EffectiveSpeed> {
    let (gbps, _) = text.split_once(" Gb/sec")?;
    let (whole, tenths) = gbps.split_once('.').unwrap_or((gbps, "0"));
    let tenths = tenths.parse::<u64>().ok().filter(|tenths| *tenths < 10)?;
    let hundreds = whole.parse::<u64>().ok()?.checked_mul(10)?.checked_add(tenths)?;
    (hundreds != 0).then(|| EffectiveSpeed::from_hundreds_of_mbps(hundreds))
}
