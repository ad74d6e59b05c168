//! The description of a side's device.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::device::LocalDevice;

/// The properties of a device that figures depend on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceInfo {
    /// The device's name.
    pub name: String,
    /// Whether it is a software device, whose figures reflect the host's processors and memory.
    pub is_software: bool,
    /// The provider that lists it: `system` (rdma-core) or `soft`.
    pub provider: String,
    /// The kernel's driver, if the device has one.
    pub driver: Option<String>,
    /// The firmware's version.
    pub firmware: String,
    /// The vendor's number.
    pub vendor_id: u32,
    /// The vendor's part number.
    pub vendor_part_id: u32,
    /// `hw_ver` of the device, a number of the vendor.
    pub hardware_revision: u32,
    /// The device's NUMA node, if the system reports one.
    pub numa_node: Option<i64>,
    /// The port's number, from 1.
    pub port: u8,
    /// `Ethernet` or `InfiniBand`.
    pub link_layer: String,
    /// The port's speed in Gb/s, if the device reports one.
    pub link_gbps: Option<f64>,
    /// The port's width and speed, as the device reports them.
    pub link: String,
    /// The port's MTU in bytes.
    pub active_mtu_bytes: Option<u32>,
    /// The index in the GID table; `None` if packets are addressed by LID.
    pub gid_index: Option<u8>,
    /// The GID as text.
    pub gid: Option<String>,
    /// The type of the GID, such as `RoCE v2`.
    pub gid_type: Option<String>,
    /// The choice of the device and its reason, as text.
    pub description: String,
}

impl DeviceInfo {
    /// Describes a device.
    pub fn new(device: &LocalDevice) -> Self {
        let (attr, port) = (&device.attr, &device.port_attr);
        let name = device.limits.device.clone();
        let in_kernel = !device.is_soft;
        Self {
            is_software: device.is_soft,
            provider: if device.is_soft { "soft" } else { "system" }.to_owned(),
            driver: in_kernel.then(|| driver(&name)).flatten(),
            firmware: attr.fw_ver(),
            vendor_id: attr.vendor_id(),
            vendor_part_id: attr.vendor_part_id(),
            hardware_revision: attr.hw_ver(),
            numa_node: device.numa_node.map(i64::from),
            port: device.port,
            link_layer: port.link_layer().to_string(),
            link_gbps: device.context.query_port_speed(device.port).ok().map(|speed| speed.gbps()),
            link: format!("{} {}", port.active_width(), port.active_speed()),
            active_mtu_bytes: port.active_mtu().bytes(),
            gid_index: device.path.gid_index(),
            gid: device.path.gid().map(|gid| gid.to_string()),
            gid_type: device.path.gid_index().and_then(|index| gid_type(device, index)),
            description: device.description.clone(),
            name,
        }
    }
}

fn gid_type(device: &LocalDevice, index: u8) -> Option<String> {
    let entry = device.context.query_gid_ex(device.port, index.into()).ok()?;
    Some(entry.gid_type().to_string())
}

/// The folder in which the kernel describes a device.
fn folder(name: &str) -> std::path::PathBuf {
    Path::new("/sys/class/infiniband").join(name)
}

fn driver(name: &str) -> Option<String> {
    let target = fs::read_link(folder(name).join("device/driver")).ok()?;
    Some(target.file_name()?.to_string_lossy().into_owned())
}
