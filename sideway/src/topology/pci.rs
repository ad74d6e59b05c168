//! PCI functions: addresses, the bridges above them, and how far two functions are apart.

use std::fmt;
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;

use super::sysfs::number;

/// The address of a PCI function: domain, bus, device (slot) and function, as in `0000:3b:00.0`.
///
/// ```
/// use sideway::topology::PciAddress;
///
/// let address: PciAddress = "0000:3b:00.1".parse()?;
/// assert_eq!((address.bus(), address.function()), (0x3b, 1));
/// assert_eq!(address.to_string(), "0000:3b:00.1");
/// # Ok::<(), sideway::topology::ParsePciAddressError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PciAddress {
    domain: u32,
    bus: u8,
    device: u8,
    function: u8,
}

impl PciAddress {
    /// The domain, or segment. Devices behind a volume management device have numbers above 65535.
    pub const fn domain(self) -> u32 {
        self.domain
    }

    /// The number of the bus within the domain.
    pub const fn bus(self) -> u8 {
        self.bus
    }

    /// The device on the bus: 0 to 31.
    pub const fn device(self) -> u8 {
        self.device
    }

    /// The function of the device: 0 to 7.
    pub const fn function(self) -> u8 {
        self.function
    }

    fn slot(self) -> (u32, u8, u8) {
        (self.domain, self.bus, self.device)
    }
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}.{:x}", self.domain, self.bus, self.device, self.function)
    }
}

impl fmt::Debug for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PciAddress({self})")
    }
}

/// The error of parsing a [`PciAddress`].
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is no PCI address: write DOMAIN:BUS:DEVICE.FUNCTION in hexadecimal, such as 0000:3b:00.0; `lspci -D` \
     lists them"
)]
pub struct ParsePciAddressError {
    text: String,
}

debug_as_text!(ParsePciAddressError);

impl FromStr for PciAddress {
    type Err = ParsePciAddressError;

    fn from_str(text: &str) -> Result<Self, ParsePciAddressError> {
        parse(text).ok_or_else(|| ParsePciAddressError { text: text.to_owned() })
    }
}

/// Parses the only form in which the kernel prints an address.
fn parse(text: &str) -> Option<PciAddress> {
    let (rest, function) = text.rsplit_once('.')?;
    let mut parts = rest.split(':');
    let (domain, bus, device) = (parts.next()?, parts.next()?, parts.next()?);
    if parts.next().is_some() || !(4..=8).contains(&domain.len()) {
        return None;
    }
    let byte = |text: &str, len: usize, most: u8| {
        let value = u8::try_from(hexadecimal(text).filter(|_| text.len() == len)?).ok()?;
        (value <= most).then_some(value)
    };
    Some(PciAddress {
        domain: hexadecimal(domain)?,
        bus: byte(bus, 2, u8::MAX)?,
        device: byte(device, 2, 31)?,
        function: byte(function, 1, 7)?,
    })
}

fn hexadecimal(text: &str) -> Option<u32> {
    // `from_str_radix` also takes a sign.
    let all = text.bytes().all(|byte| byte.is_ascii_hexdigit());
    u32::from_str_radix(text, 16).ok().filter(|_| all)
}

/// A PCI function and its place in the hierarchy.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PciFunction {
    /// Domain, bus, device and function, as `lspci -D` prints them.
    pub address: PciAddress,
    /// The bridges above it, from the root port down. A PCIe switch is two bridges: its upstream
    /// port and one of its downstream ports. Empty if the function is on a root bus.
    pub bridges: Vec<PciAddress>,
    /// The host bridge (root complex), as in `pci0000:3a`.
    pub host_bridge: String,
    /// For a virtual function (SR-IOV), the physical function that it is part of (`physfn`).
    pub physical_function: Option<PciAddress>,
    /// The NUMA node (`numa_node`); `None` if the firmware does not report it.
    pub numa_node: Option<u32>,
}

impl PciFunction {
    /// Reads the function to which `link` leads, or the one above it, as for a subfunction.
    pub(super) fn read(link: &Path) -> Option<Self> {
        let path = fs::canonicalize(link).ok()?;
        let (mut folder, mut host_bridge) = (PathBuf::new(), None);
        let mut functions: Vec<PciAddress> = Vec::new();
        let mut function_folder = PathBuf::new();
        for component in path.components() {
            folder.push(component);
            let Component::Normal(name) = component else { continue };
            let Some(name) = name.to_str() else { continue };
            if is_host_bridge(name) {
                // A volume management device has a host bridge below its own function.
                host_bridge = Some(name.to_owned());
                functions.clear();
            } else if host_bridge.is_some()
                && let Some(address) = parse(name)
            {
                functions.push(address);
                function_folder.clone_from(&folder);
            }
        }
        let address = functions.pop()?;
        let physical_function = fs::read_link(function_folder.join("physfn")).ok();
        Some(Self {
            address,
            bridges: functions,
            host_bridge: host_bridge?,
            physical_function: physical_function.and_then(|path| parse(path.file_name()?.to_str()?)),
            numa_node: number(&function_folder.join("numa_node")),
        })
    }

    /// How far two functions are apart.
    pub fn distance(&self, other: &Self) -> Distance {
        if self.address == other.address {
            return Distance::SameFunction;
        }
        // A virtual function may have another bus or device number than its physical function.
        let slot = |function: &Self| function.physical_function.unwrap_or(function.address).slot();
        if slot(self) == slot(other) {
            return Distance::SameDevice;
        }
        if self.host_bridge == other.host_bridge {
            let shared = self.bridges.first().is_some_and(|bridge| other.bridges.first() == Some(bridge));
            return if shared { Distance::SameSwitch } else { Distance::SameHostBridge };
        }
        if self.numa_node.is_some() && self.numa_node == other.numa_node {
            return Distance::SameNumaNode;
        }
        Distance::Far
    }
}

/// Whether a folder is a host bridge's: `pci0000:3a`.
fn is_host_bridge(name: &str) -> bool {
    let domain_and_bus = name.strip_prefix("pci").and_then(|name| name.split_once(':'));
    domain_and_bus.is_some_and(|(domain, bus)| {
        (4..=8).contains(&domain.len())
            && bus.len() == 2
            && hexadecimal(domain).is_some()
            && hexadecimal(bus).is_some()
    })
}

/// How far two PCI functions are apart, nearest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Distance {
    /// They are one function, whose link they share.
    SameFunction,
    /// They are functions of one device (slot), such as the two ports of a card, or a virtual
    /// function and another one of its card. They share a link.
    SameDevice,
    /// They are below one bridge, such as a PCIe switch, so that traffic between them does not
    /// enter the root complex (`PIX` or `PXB` of other tools).
    SameSwitch,
    /// They are below one host bridge (`PHB`).
    SameHostBridge,
    /// They are of one NUMA node (`NODE`).
    SameNumaNode,
    /// They are of two NUMA nodes, or a node is unknown (`SYS`).
    Far,
}
