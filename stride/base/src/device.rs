//! The choice of the device, its port and its GID.

use sideway::Provider;
use sideway::ibverbs::connect::LocalPath;
use sideway::ibverbs::device::{Device, DeviceList};
use sideway::ibverbs::device_attr::{AtomicCapability, DeviceAttr, DeviceCapabilityFlags};
use sideway::ibverbs::device_context::DeviceContext;
use sideway::ibverbs::port::{PortAttr, PortState};
use sideway::provider::ProviderChoice;

use crate::error::Error;
use crate::memory::MemoryKind;
use crate::placement::node_of;
use crate::plan::{DeviceLimits, LocalOptions, PostingCalls};
use crate::report::Output;

/// The device or its port is unsuitable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The port number exceeds the device's number of ports.
    #[error("-i {given} is above the number of ports of {device}, {limit}: give -i {limit} or less")]
    NoSuchPort {
        /// The port that the user gave.
        given: u8,
        /// The device's name.
        device: String,
        /// The device's number of ports.
        limit: u8,
    },
    /// The port that the user named is not active.
    #[error(
        "port {port} of {device} is {state}, not active: bring its link up (on Ethernet `ip link set NETDEV \
         up`), or choose another with -d and -i"
    )]
    PortNotActive {
        /// The device's name.
        device: String,
        /// The port's number.
        port: u8,
        /// The port's state.
        state: PortState,
    },
    /// No device has an active port.
    #[error(
        "no RDMA device has an active port{} ({}): bring a link up (on Ethernet `ip link set NETDEV up`)",
        .ib_port.map(|port| format!(" {port}")).unwrap_or_default(),
        .devices.join(", ")
    )]
    NoActivePort {
        /// The devices with their states.
        devices: Vec<String>,
        /// The port that the user asked for.
        ib_port: Option<u8>,
    },
    /// The device cannot create such a queue pair, most likely because of the inline size.
    #[error(
        "{device} makes no queue pair for messages of {given} bytes in {depth} work requests ({reason}): give \
         a smaller -I, or -I 0"
    )]
    QueuePairRefused {
        /// The requested inline size in bytes.
        given: u32,
        /// The requested number of work requests.
        depth: u32,
        /// The device's name.
        device: String,
        /// The library's error.
        reason: String,
    },
    /// The device does not write timestamps into completions.
    #[error(
        "{device} writes no timestamps into completions ({reason}): leave --clock out, or choose another device with -d"
    )]
    NoTimestamps {
        /// The device's name.
        device: String,
        /// The library's error.
        reason: String,
    },
    /// The GID index exceeds the table.
    #[error(
        "-x {given} is above the last GID index of {device} port {port}, {last}: give one of those that show_gids lists"
    )]
    NoSuchGidIndex {
        /// The index that the user gave.
        given: u32,
        /// The device's name.
        device: String,
        /// The port's number.
        port: u8,
        /// The last index of the table.
        last: u32,
    },
}

/// The provider that `SIDEWAY_PROVIDER` names, else the system's if it lists a device, else the
/// software devices' provider, about which `output` prints a notice.
///
/// # Errors
///
/// The variable has an unknown value, or the system's library cannot be loaded.
pub fn provider(output: &mut Output) -> Result<Provider, Error> {
    let choice = ProviderChoice::from_environment()?.unwrap_or(ProviderChoice::Auto);
    let selection = choice.select()?;
    if let Some(reason) = selection.fallback() {
        output.note(format_args!(
            "notice: {reason}, so this runs over a software device: figures are of this host's processors and \
             memory, never of hardware (SIDEWAY_PROVIDER=system refuses instead)"
        ));
    }
    Ok(selection.provider())
}

/// An open device, with the port and the address that the test uses.
#[derive(Debug)]
pub struct LocalDevice {
    /// The device's context.
    pub context: DeviceContext,
    /// The port's number, from 1.
    pub port: u8,
    /// The source address of packets.
    pub path: LocalPath,
    /// The limits that plans are checked against.
    pub limits: DeviceLimits,
    /// The device's attributes.
    pub attr: DeviceAttr,
    /// The port's attributes.
    pub port_attr: PortAttr,
    /// The vendor's number.
    pub vendor_id: u32,
    /// Whether it is a software device, whose figures do not represent hardware.
    pub is_soft: bool,
    /// The NUMA node of the device, if the system reports one.
    pub numa_node: Option<u32>,
    /// The kind of memory for messages.
    pub buffer: MemoryKind,
    /// The calls that post and poll.
    pub calls: PostingCalls,
    /// The choice and its reason, in one line.
    pub description: String,
}

impl LocalDevice {
    /// Opens the device and port that the user named, or the first suitable ones.
    pub fn open(provider: Provider, options: &LocalOptions) -> Result<Self, Error> {
        let list = DeviceList::from_provider(provider)?;
        let found = match &options.device {
            Some(name) => named(list.find(name)?, options.ib_port)?,
            None => first_active(&list, options.ib_port)?,
        };
        let why = if options.device.is_some() { "as asked for" } else { "the first with an active port" };
        found.settle(options, why)
    }
}

/// A device with an active port.
struct ActiveDevice {
    context: DeviceContext,
    attr: DeviceAttr,
    port: u8,
    port_attr: PortAttr,
}

impl ActiveDevice {
    fn settle(self, options: &LocalOptions, why: &str) -> Result<LocalDevice, Error> {
        let Self { context, attr, port, port_attr } = self;
        let (device, is_soft) = (context.name(), context.is_soft());
        let in_table = |given| gid_index_in_table(given, &device, port, &port_attr);
        let gid_index = options.gid_index.map(in_table).transpose()?;
        let path = LocalPath::choose(&context, port, gid_index)?;
        let description = format!(
            "device {device} ({why}){}, port {port} ({}, MTU {}), {}",
            if is_soft { ", software" } else { "" },
            port_attr.link_layer(),
            port_attr.active_mtu(),
            path.reason()
        );
        let limits = DeviceLimits {
            device,
            port,
            max_qp: limit(attr.max_qp()),
            mtu: port_attr.active_mtu().bytes().unwrap_or(1024),
            max_qp_wr: limit(attr.max_qp_wr()),
            max_cqe: limit(attr.max_cqe()),
            max_msg_sz: port_attr.max_msg_sz(),
            max_qp_rd_atom: small_limit(attr.max_qp_rd_atom()),
            max_qp_init_rd_atom: small_limit(attr.max_qp_init_rd_atom()),
            has_atomics: attr.atomic_cap() != AtomicCapability::None,
            pkeys: port_attr.pkey_tbl_len().into(),
            has_xrc: DeviceCapabilityFlags::from_bits_retain(attr.device_cap_flags())
                .contains(DeviceCapabilityFlags::Xrc),
            max_sge: limit(attr.max_sge()),
            num_comp_vectors: limit(context.num_comp_vectors()),
            // Some devices report no value.
            max_sge_rd: match limit(attr.max_sge_rd()) {
                0 => limit(attr.max_sge()),
                limit => limit,
            },
            max_srq: limit(attr.max_srq()),
            max_srq_wr: limit(attr.max_srq_wr()),
        };
        let buffer = options.buffer.unwrap_or_else(|| MemoryKind::for_device(&context));
        let vendor_id = attr.vendor_id();
        let numa_node = if is_soft { None } else { node_of(&limits.device) };
        let calls = options.calls.unwrap_or_else(|| PostingCalls::default_for(vendor_id));
        Ok(LocalDevice {
            context,
            port,
            path,
            limits,
            attr,
            port_attr,
            vendor_id,
            is_soft,
            numa_node,
            buffer,
            calls,
            description,
        })
    }
}

/// Converts a limit that a device reports as a signed number.
fn limit(value: i32) -> u32 {
    u32::try_from(value).unwrap_or(0)
}

/// The same for values that queue pairs take in 8 bits.
fn small_limit(value: i32) -> u8 {
    u8::try_from(value.max(0)).unwrap_or(u8::MAX)
}

fn gid_index_in_table(given: u32, device: &str, port: u8, attr: &PortAttr) -> Result<u8, DeviceError> {
    // An address vector holds an index of 8 bits, whatever the table's length.
    let last = limit(attr.gid_tbl_len()).saturating_sub(1).min(u32::from(u8::MAX));
    match u8::try_from(given) {
        Ok(index) if given <= last => Ok(index),
        _ => Err(DeviceError::NoSuchGidIndex { given, device: device.to_owned(), port, last }),
    }
}

/// The port that the user named, or the first active one, on the device that the user named.
fn named(device: Device<'_>, ib_port: Option<u8>) -> Result<ActiveDevice, Error> {
    let context = device.open()?;
    let attr = context.query_device()?;
    let limit = attr.phys_port_cnt();
    if let Some(given) = ib_port.filter(|port| *port > limit) {
        return Err(DeviceError::NoSuchPort { given, device: device.name(), limit }.into());
    }
    let first = ib_port.unwrap_or(1);
    let state = context.query_port(first)?.port_state();
    match active_port(&context, &attr, ib_port)? {
        Some((port, port_attr)) => Ok(ActiveDevice { context, attr, port, port_attr }),
        None => Err(DeviceError::PortNotActive { device: device.name(), port: first, state }.into()),
    }
}

/// The first device with an active port. A device that cannot be opened is an error only if no
/// other is suitable.
fn first_active(list: &DeviceList, ib_port: Option<u8>) -> Result<ActiveDevice, Error> {
    list.first()?;
    let mut not_opened = None;
    for device in list.iter() {
        let context = match device.open() {
            Ok(context) => context,
            Err(error) => {
                not_opened.get_or_insert(error);
                continue;
            }
        };
        let attr = context.query_device()?;
        if let Some((port, port_attr)) = active_port(&context, &attr, ib_port)? {
            return Ok(ActiveDevice { context, attr, port, port_attr });
        }
    }
    let devices = list.iter().map(|device| device.name()).collect();
    Err(not_opened.map_or_else(|| DeviceError::NoActivePort { devices, ib_port }.into(), Into::into))
}

fn active_port(
    context: &DeviceContext,
    attr: &DeviceAttr,
    ib_port: Option<u8>,
) -> Result<Option<(u8, PortAttr)>, Error> {
    let wanted = |port: &u8| ib_port.is_none_or(|ib_port| ib_port == *port);
    for port in (1..=attr.phys_port_cnt()).filter(wanted) {
        let port_attr = context.query_port(port)?;
        if port_attr.port_state() == PortState::Active {
            return Ok(Some((port, port_attr)));
        }
    }
    Ok(None)
}
