//! The contents of the tree: what the kernel shows of a device, for the devices of a configuration.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CStr;
use std::{fs, io};

use anyhow::{Result, bail};
use rdma_mummy_sys::types::*;
use rdma_mummy_sys::{Verbs, verbs};
use soft_rnic::Config;

/// A file, a link or a folder of the tree.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Entry {
    File(String),
    Link(String),
    Folder,
}

/// A tree: the path of each entry without the slash at its beginning. Folders with entries are not
/// in it.
pub(super) type Contents = Vec<(String, Entry)>;

/// The kernel's version of the interface of `/dev/infiniband/uverbsN`.
const VERBS_ABI: &str = "6";
/// Names the interface of the connection manager. Programs only ask whether the file exists.
const CM_NODE: &str = "dev/infiniband/rdma_cm";
/// The interface of the addresses that only a device has.
const LOOPBACK: &str = "lo";
/// The numbers that the kernel gives to nodes of this kind: the major number, and the first minor.
const NODE_NUMBERS: &str = "231";
const FIRST_NODE: usize = 192;

/// The files of all devices that a program with this configuration has.
pub(super) fn of_devices(mut config: Config) -> Result<Contents> {
    // An injected fault is the program's, and counts there.
    config.faults = None;
    let provider = soft_rnic::provider_with(config)?;
    let mut contents = vec![
        (CM_NODE.to_owned(), Entry::File(String::new())),
        file("sys/class/infiniband_verbs/abi_version", VERBS_ABI),
    ];
    let lib = provider.verbs();
    let mut count = 0;
    // SAFETY: the result is checked, and the list is freed once, after its last use. The devices
    // outlive it.
    unsafe {
        let list = (lib.ibv_get_device_list)(&raw mut count);
        if list.is_null() {
            bail!("the devices cannot be listed: {}", io::Error::last_os_error());
        }
        let devices = (0..usize::try_from(count).unwrap_or(0)).map(|number| (number, *list.add(number)));
        let added = devices.map(|(number, device)| add_device(&mut contents, lib, number, device));
        let added = added.collect::<Result<()>>();
        (lib.ibv_free_device_list)(list);
        added?;
    }
    Ok(contents)
}

fn file(path: impl Into<String>, text: impl AsRef<str>) -> (String, Entry) {
    (path.into(), Entry::File(format!("{}\n", text.as_ref())))
}

/// Adds a device, which is in the list that the caller has.
///
/// # Safety
///
/// The device is one of the library.
unsafe fn add_device(
    contents: &mut Contents,
    lib: &Verbs,
    number: usize,
    device: *mut ibv_device,
) -> Result<()> {
    // SAFETY: the caller guarantees the device; its name lives as long.
    let name = unsafe { CStr::from_ptr((lib.ibv_get_device_name)(device)) }.to_str()?;
    // SAFETY: the caller guarantees the device.
    let context = unsafe { (lib.ibv_open_device)(device) };
    if context.is_null() {
        bail!("{name} cannot be opened: {}", io::Error::last_os_error());
    }
    let mut attributes = ibv_device_attr::default();
    // SAFETY: the context is open, and the attributes are writable.
    let failed = unsafe { (lib.ibv_query_device)(context, &raw mut attributes) };
    let names = interfaces();
    // SAFETY: the context is open.
    let ports = (1..=attributes.phys_port_cnt).map(|port| unsafe { Port::query(lib, context, port, &names) });
    let ports = ports.collect::<Result<Vec<_>>>();
    // SAFETY: the context is open, has no objects, and is not used any more.
    unsafe { (lib.ibv_close_device)(context) };
    if failed != 0 {
        bail!("{name} cannot be queried: {}", io::Error::from_raw_os_error(failed));
    }
    describe_device(contents, number, name, u64::from_be(attributes.node_guid), &ports?);
    Ok(())
}

/// What the files of a port show.
struct Port {
    number: u8,
    is_active: bool,
    is_infiniband: bool,
    lid: u16,
    sm_lid: u16,
    pkeys: Vec<u16>,
    gids: Vec<Option<PortGid>>,
}

struct PortGid {
    raw: [u8; 16],
    interface: String,
}

impl Port {
    /// Reads the port's state and its GIDs.
    ///
    /// # Safety
    ///
    /// The context is open.
    unsafe fn query(lib: &Verbs, context: *mut ibv_context, number: u8, names: &Names) -> Result<Self> {
        let mut attributes = ibv_port_attr::default();
        // SAFETY: the caller guarantees the context; the attributes are writable.
        let failed = unsafe { verbs::ibv_query_port(lib, context, number, &raw mut attributes) };
        if failed != 0 {
            bail!("port {number} cannot be queried: {}", io::Error::from_raw_os_error(failed));
        }
        let indices = 0..u32::try_from(attributes.gid_tbl_len)?;
        // SAFETY: the caller guarantees the context.
        let gids = indices.map(|index| unsafe { PortGid::query(lib, context, (number, index), names) });
        let pkey = |index| {
            let mut pkey = 0;
            // SAFETY: the caller guarantees the context; the result is writable.
            let failed = unsafe { (lib.ibv_query_pkey)(context, number, index, &raw mut pkey) };
            (failed == 0).then(|| u16::from_be(pkey))
        };
        Ok(Self {
            number,
            is_active: attributes.state == ibv_port_state::IBV_PORT_ACTIVE,
            is_infiniband: u32::from(attributes.link_layer) == IBV_LINK_LAYER_INFINIBAND,
            lid: attributes.lid,
            sm_lid: attributes.sm_lid,
            pkeys: (0..attributes.pkey_tbl_len.into()).filter_map(pkey).collect(),
            gids: gids.collect(),
        })
    }

    /// Adds the port's files to those of the device in this folder.
    fn describe(&self, contents: &mut Contents, device: &str) {
        let folder = format!("{device}/ports/{}", self.number);
        let (state, phys_state) =
            if self.is_active { ("4: ACTIVE", "5: LinkUp") } else { ("1: DOWN", "3: Disabled") };
        let (link_layer, cap_mask, gid_type) = if self.is_infiniband {
            ("InfiniBand", "0x00010000", "IB/RoCE v1")
        } else {
            ("Ethernet", "0x04010000", "RoCE v2")
        };
        let (lid, sm_lid) = (format!("{:#x}", self.lid), format!("{:#x}", self.sm_lid));
        let attributes = [
            ("state", state),
            ("phys_state", phys_state),
            ("link_layer", link_layer),
            ("rate", "100 Gb/sec (4X EDR)"),
            ("lid", &lid),
            ("lid_mask_count", "0"),
            ("sm_lid", &sm_lid),
            ("sm_sl", "0"),
            ("cap_mask", cap_mask),
        ];
        contents.extend(attributes.map(|(name, value)| file(format!("{folder}/{name}"), value)));
        let pkeys = self.pkeys.iter().enumerate();
        contents.extend(
            pkeys.map(|(index, pkey)| file(format!("{folder}/pkeys/{index}"), format!("{pkey:#06x}"))),
        );
        for (index, gid) in self.gids.iter().enumerate() {
            let raw = gid.as_ref().map_or([0; 16], |gid| gid.raw);
            let words = raw.chunks(2).map(|pair| format!("{:02x}{:02x}", pair[0], pair[1]));
            let shown = words.collect::<Vec<_>>().join(":");
            contents.push(file(format!("{folder}/gids/{index}"), shown));
            // The kernel has files for empty entries, too, but they cannot be read.
            let Some(gid) = gid else { continue };
            contents.push(file(format!("{folder}/gid_attrs/types/{index}"), gid_type));
            // A GID of InfiniBand belongs to no network interface.
            if !self.is_infiniband {
                contents.push(file(format!("{folder}/gid_attrs/ndevs/{index}"), &gid.interface));
            }
        }
    }
}

impl PortGid {
    /// Reads an entry of the GID table; `None` if it is empty.
    ///
    /// # Safety
    ///
    /// The context is open.
    unsafe fn query(
        lib: &Verbs,
        context: *mut ibv_context,
        (port, index): (u8, u32),
        names: &Names,
    ) -> Option<Self> {
        let mut entry = ibv_gid_entry::default();
        // SAFETY: the caller guarantees the context; the entry is writable.
        let failed = unsafe { verbs::ibv_query_gid_ex(lib, context, port.into(), index, &raw mut entry, 0) };
        // SAFETY: every part of the union is made of integers.
        let raw = unsafe { entry.gid.raw };
        // The addresses that only the device has have no interface. The loopback interface stands
        // for it.
        let interface = names.get(&entry.ndev_ifindex).map_or(LOOPBACK, String::as_str).to_owned();
        (failed == 0 && raw != [0; 16]).then_some(Self { raw, interface })
    }
}

/// The host's network interfaces by their indices.
type Names = BTreeMap<u32, String>;

fn interfaces() -> Names {
    let folders = fs::read_dir("/sys/class/net").into_iter().flatten().flatten();
    let interface = |folder: fs::DirEntry| {
        let index = fs::read_to_string(folder.path().join("ifindex")).ok()?.trim().parse().ok()?;
        Some((index, folder.file_name().into_string().ok()?))
    };
    folders.filter_map(interface).collect()
}

/// Adds the files of a device.
fn describe_device(contents: &mut Contents, number: usize, name: &str, guid: u64, ports: &[Port]) {
    let [infiniband, verbs] =
        ["infiniband", "infiniband_verbs"].map(|class| format!("sys/devices/virtual/{class}/{name}"));
    for class in ["infiniband", "infiniband_verbs"] {
        let link = Entry::Link(format!("../../devices/virtual/{class}/{name}"));
        contents.push((format!("sys/class/{class}/{name}"), link));
    }
    contents.push((format!("dev/infiniband/{name}"), Entry::File(String::new())));
    let words = [48, 32, 16, 0].map(|shift| format!("{:04x}", (guid >> shift) & 0xffff)).join(":");
    let attributes = [
        ("node_type", "1: CA"),
        ("node_guid", &words),
        ("sys_image_guid", &words),
        ("node_desc", name),
        ("device/numa_node", "-1"),
    ];
    contents.extend(attributes.map(|(name, value)| file(format!("{infiniband}/{name}"), value)));
    let with_gids =
        ports.iter().filter(|port| !port.is_infiniband).flat_map(|port| port.gids.iter().flatten());
    let interfaces: BTreeSet<&str> = with_gids.map(|gid| gid.interface.as_str()).collect();
    for interface in interfaces {
        contents.push((format!("{infiniband}/device/net/{interface}"), Entry::Folder));
    }
    for port in ports {
        port.describe(contents, &infiniband);
    }
    contents.push((format!("{verbs}/device"), Entry::Link(format!("../../infiniband/{name}/device"))));
    contents.push(file(format!("{verbs}/ibdev"), name));
    contents.push(file(format!("{verbs}/abi_version"), "1"));
    contents.push(file(format!("{verbs}/dev"), format!("{NODE_NUMBERS}:{}", FIRST_NODE + number)));
}
