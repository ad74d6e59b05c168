//! Choosing the device, its port and its GID.

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

/// The device or its port is not fit for use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The device has fewer ports.
    #[error("-i {given} is above the number of ports of {device}, {limit}: give -i {limit} or less")]
    NoSuchPort {
        /// What the user gave.
        given: u8,
        /// The device's name.
        device: String,
        /// How many ports it has.
        limit: u8,
    },
    /// The port that the user named carries no traffic.
    #[error(
        "port {port} of {device} is {state}, not active: bring its link up (on Ethernet `ip link set NETDEV \
         up`), or choose another with -d and -i"
    )]
    PortNotActive {
        /// The device's name.
        device: String,
        /// The port's number.
        port: u8,
        /// The state it is in.
        state: PortState,
    },
    /// No device has a port that carries traffic.
    #[error(
        "no RDMA device has an active port{} ({}): bring a link up (on Ethernet `ip link set NETDEV up`)",
        .ib_port.map(|port| format!(" {port}")).unwrap_or_default(),
        .devices.join(", ")
    )]
    NoActivePort {
        /// What there is.
        devices: Vec<String>,
        /// The port that the user wants.
        ib_port: Option<u8>,
    },
    /// The device makes no such queue pair, most likely for the messages that it is to copy.
    #[error(
        "{device} makes no queue pair for messages of {given} bytes in {depth} work requests ({reason}): give \
         a smaller -I, or -I 0"
    )]
    QueuePairRefused {
        /// The bytes of a message that work requests were to hold.
        given: u32,
        /// How many work requests there were to be.
        depth: u32,
        /// The device's name.
        device: String,
        /// What the library said.
        reason: String,
    },
    /// Completions do not say when they came about.
    #[error(
        "{device} writes no timestamps into completions ({reason}): leave --clock out, or choose another device with -d"
    )]
    NoTimestamps {
        /// The device's name.
        device: String,
        /// What the library said.
        reason: String,
    },
    /// The GID table is shorter.
    #[error(
        "-x {given} is above the last GID index of {device} port {port}, {last}: give one of those that show_gids lists"
    )]
    NoSuchGidIndex {
        /// What the user gave.
        given: u32,
        /// The device's name.
        device: String,
        /// The port's number.
        port: u8,
        /// The last index of the table.
        last: u32,
    },
}

/// The provider that `SIDEWAY_PROVIDER` chooses, else the system's if it lists a device, else the one of the
/// software devices, which the user is told.
///
/// # Errors
///
/// The variable names none, or the system's library cannot be used.
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
    /// The open device.
    pub context: DeviceContext,
    /// The port's number.
    pub port: u8,
    /// Where packets come from.
    pub path: LocalPath,
    /// What the device can do.
    pub limits: DeviceLimits,
    /// What the device says of itself.
    pub attr: DeviceAttr,
    /// What the port says of itself.
    pub port_attr: PortAttr,
    /// The vendor's number.
    pub vendor_id: u32,
    /// Whether it is a software device, whose figures are not hardware's.
    pub is_soft: bool,
    /// The node of memory that it is near to, where the system says it.
    pub numa_node: Option<u32>,
    /// Where the memory of the messages comes from.
    pub buffer: MemoryKind,
    /// The calls that post and poll.
    pub calls: PostingCalls,
    /// What was chosen and why, in one line.
    pub description: String,
}

impl LocalDevice {
    /// Opens what the user named; of what the user did not name, the first that is fit.
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

/// A device with a port that carries traffic.
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
            // Not every device says it.
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

/// A limit that a device gives as a signed number.
fn limit(value: i32) -> u32 {
    u32::try_from(value).unwrap_or(0)
}

/// The same, of what queue pairs are told in 8 bits.
fn small_limit(value: i32) -> u8 {
    u8::try_from(value.max(0)).unwrap_or(u8::MAX)
}

fn gid_index_in_table(given: u32, device: &str, port: u8, attr: &PortAttr) -> Result<u8, DeviceError> {
    // An address vector has room for an index of 8 bits, whatever the table's length.
    let last = limit(attr.gid_tbl_len()).saturating_sub(1).min(u32::from(u8::MAX));
    match u8::try_from(given) {
        Ok(index) if given <= last => Ok(index),
        _ => Err(DeviceError::NoSuchGidIndex { given, device: device.to_owned(), port, last }),
    }
}

/// The port that the user named, or the first active one, of a device that the user named.
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

/// The first device with an active port. One that cannot be opened counts only if no other is fit.
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
