//! Choosing the device, the port and the GID: by the socket's local address, or by the names that
//! the program or the environment gives.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sideway::ibverbs::address::GidEntry;
use sideway::ibverbs::connect::{ChoosePathError, LocalPath};
use sideway::ibverbs::device::{DeviceList, FindDeviceError, TransportType};
use sideway::ibverbs::device_context::DeviceContext;
use sideway::ibverbs::event::{AsyncElement, AsyncEventType, AsyncEvents};
use sideway::ibverbs::port::LinkLayer;
use sideway::ibverbs::protection_domain::ProtectionDomain;
use sideway::topology::Topology;

use super::choice::{Candidate, PortStatus, choose};
use super::resources::{lacking, no_device};
use crate::config::environment::DeviceName;
use crate::eventfds::Eventfds;
use crate::handshake::Terms;
use crate::process::PerProcess;
use crate::protocol::DEVICES_MAX;
use crate::transport::pools::forget_pools_of;
use crate::wire::Features;
use crate::wire::{Cause, Unavailable};

const RXE_VENDOR_ID: u32 = 0x00ff_ffff;

/// The kernels (major and minor number) whose SoftRoCE was seen to complete READs correctly under
/// packet loss (`tests/netem.rs`). In 6.12, whose SoftRoCE runs in work queues, packet loss makes
/// queue pairs fail. READs there even complete with bytes missing.
const SOUND_READS: [(u32, u32); 1] = [(6, 1)];

/// How long a cached lookup is valid. Many connections ask for the same address at once, and a
/// lookup opens every device.
const CACHE_LIFETIME: Duration = Duration::from_secs(1);

/// An open device, which all connections of this process share.
///
/// It stays open until the process ends, because pools are registered in its protection domain and
/// outlive connections. After a failure, new connections open the device again instead of [using
/// this one](RdmaDevice::read_async_events).
#[derive(Debug)]
pub(crate) struct RdmaDevice {
    name: String,
    context: DeviceContext,
    domain: ProtectionDomain,
    events: AsyncEvents,
    /// A software device, which may make progress only while it is polled.
    pub(super) is_soft: bool,
    /// The numbers of queue pairs for which the device reported that they take no more shared
    /// receives (`IBV_EVENT_QP_LAST_WQE_REACHED`).
    last_wqe_reached: Mutex<HashSet<u32>>,
    /// A bit for each port below 64 that the device has reported to be down.
    ports_down: AtomicU64,
    pub(super) limits: DeviceLimits,
    /// Whether SENDs can carry immediate data; iWARP has none.
    pub(super) has_immediate: bool,
    wants_long_frames: bool,
}

/// The device's limits, from `ibv_query_device`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DeviceLimits {
    /// Queue pairs (`max_qp`).
    pub(super) queue_pairs: u32,
    /// Entries of a completion queue (`max_cqe`).
    pub(super) completions: u32,
    /// Work requests in a send or receive queue (`max_qp_wr`).
    pub(super) work_requests: u32,
    /// Scatter/gather entries of a work request (`max_sge`).
    pub(super) entries: u32,
    /// Receives in a shared receive queue (`max_srq_wr`).
    pub(super) shared_receives: u32,
    /// READs that a queue pair answers at one time (`max_qp_rd_atom`).
    pub(super) reads_in: u8,
    /// READs that a queue pair has outstanding at one time (`max_qp_init_rd_atom`).
    pub(super) reads_out: u8,
}

impl RdmaDevice {
    /// The protection domain in which the memory of all its connections is registered.
    pub(crate) fn domain(&self) -> &ProtectionDomain {
        &self.domain
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn context(&self) -> &DeviceContext {
        &self.context
    }

    /// Whether the device's cost for each frame is so high that fewer, longer frames are better.
    pub(crate) fn wants_long_frames(&self) -> bool {
        self.wants_long_frames
    }

    /// Lowers the terms to the device's limits. Apply it before the terms are sent to the peer.
    pub(crate) fn limit(&self, Terms { limits, features, .. }: &mut Terms) {
        if !self.has_immediate {
            *features = features.without(Features::IMMEDIATE);
        }
        limits.rd_atomic_in = limits.rd_atomic_in.min(self.limits.reads_in);
        limits.rd_atomic_out = limits.rd_atomic_out.min(self.limits.reads_out);
    }

    /// Reads the device's asynchronous events. Each one that does not concern a queue pair drops
    /// cached lookups of the device, and wakes connections over several devices. After a fatal event,
    /// or an error here, the device is not used for new connections. Returns whether it is used.
    pub(crate) fn read_async_events(&self) -> bool {
        cache().read_async_events(self)
    }

    /// The descriptor that is readable while the device has events.
    pub(crate) fn events_descriptor(&self) -> RawFd {
        self.events.as_raw_fd()
    }

    /// Whether the device has failed, or has reported that this port is down. As far as events were
    /// read.
    pub(super) fn is_port_down(&self, port: u8) -> bool {
        self.ports_down.load(Relaxed) & (1 << (port % 64)) != 0
    }

    fn note_port(&self, kind: AsyncEventType, element: AsyncElement) {
        match (kind, element) {
            (AsyncEventType::DeviceFatal, _) => self.ports_down.store(u64::MAX, Relaxed),
            (AsyncEventType::PortError, AsyncElement::Port(port)) => {
                self.ports_down.fetch_or(1 << (port % 64), Relaxed);
            }
            (AsyncEventType::PortActive, AsyncElement::Port(port)) => {
                self.ports_down.fetch_and(!(1 << (port % 64)), Relaxed);
            }
            _ => {}
        }
    }

    /// Whether the device reported that this stopped queue pair takes no more shared receives. The
    /// device reports it once, and this call consumes the report.
    pub(super) fn take_last_wqe_reached(&self, qp_number: u32) -> bool {
        self.read_async_events();
        self.last_wqe_reached.lock().unwrap_or_else(PoisonError::into_inner).remove(&qp_number)
    }

    /// The reason that a call of the device failed.
    pub(super) fn lacks(&self, otherwise: Cause, error: &(dyn std::error::Error + 'static)) -> Unavailable {
        lacking(&self.name, otherwise, error)
    }

    /// The reason that it creates no queue pair.
    pub(super) fn lacks_queue_pair(&self, error: &(dyn std::error::Error + 'static)) -> Unavailable {
        let Unavailable { cause, detail } = self.lacks(Cause::QueuePairs, error);
        let most = self.limits.queue_pairs;
        let limit = if cause == Cause::QueuePairs {
            format!("; a connection takes one, and all processes together have {most}")
        } else {
            String::new()
        };
        Unavailable::new(cause, detail + &limit)
    }

    fn open(context: DeviceContext) -> Result<Self, Unavailable> {
        let name = context.name();
        let lacks = |error: &(dyn std::error::Error + 'static)| lacking(&name, Cause::DeviceFailed, error);
        let attr = context.query_device().map_err(|error| lacks(&error))?;
        let domain = context.alloc_pd().map_err(|error| lacks(&error))?;
        let events = context.async_events().map_err(|error| lacks(&error))?;
        // soft-rnic has the same vendor, and another firmware.
        let is_rxe = attr.vendor_id() == RXE_VENDOR_ID && !attr.fw_ver().starts_with("soft-");
        let reads = if is_rxe && !kernel_has_sound_reads() { 0 } else { u8::MAX };
        let at_a_time = |count: i32| count.clamp(0, reads.into()) as u8;
        let limits = DeviceLimits {
            queue_pairs: u32::try_from(attr.max_qp()).unwrap_or(0),
            completions: u32::try_from(attr.max_cqe()).unwrap_or(0),
            work_requests: u32::try_from(attr.max_qp_wr()).unwrap_or(0),
            entries: u32::try_from(attr.max_sge()).unwrap_or(0),
            shared_receives: u32::try_from(attr.max_srq_wr()).unwrap_or(0),
            reads_in: at_a_time(attr.max_qp_rd_atom()),
            reads_out: at_a_time(attr.max_qp_init_rd_atom()),
        };
        let is_soft = context.is_soft();
        let has_immediate = context.transport_type() != TransportType::Iwarp;
        Ok(Self {
            name,
            is_soft,
            context,
            domain,
            events,
            last_wqe_reached: Mutex::default(),
            ports_down: AtomicU64::new(0),
            limits,
            has_immediate,
            // The kernel's CPU time pays for each packet, acknowledgement and completion of
            // SoftRoCE.
            wants_long_frames: is_rxe,
        })
    }
}

/// Whether the running kernel is one of [`SOUND_READS`].
fn kernel_has_sound_reads() -> bool {
    let name = rustix::system::uname();
    version(&name.release().to_string_lossy()).is_some_and(|version| SOUND_READS.contains(&version))
}

/// The major and minor number of a kernel release such as `6.1.0-56-amd64`.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// A port of an open device, with the GID or LID under which it is used.
#[derive(Clone, Debug)]
pub(crate) struct DevicePort {
    pub(crate) device: Arc<RdmaDevice>,
    pub(crate) path: LocalPath,
}

impl DevicePort {
    /// Describes the device, the port and the reason for their choice.
    pub(crate) fn describe(&self) -> String {
        format!("{} port {}, {}", self.device.name, self.path.port_num(), self.path.reason())
    }
}

/// The parameters of a port lookup; also the key of the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
struct PortQuery {
    ip: IpAddr,
    /// The interface index (scope id) of a link-local IPv6 address; else 0.
    scope: u32,
    devices: Vec<DeviceName>,
    gid_index: Option<u8>,
}

/// A cached result of a port lookup.
#[derive(Debug)]
struct CachedPort {
    query: PortQuery,
    port: DevicePort,
    /// The port and the others for a connection over several, once they were looked for.
    rails: Option<Vec<DevicePort>>,
    at: Instant,
}

impl CachedPort {
    fn uses(&self, device: &RdmaDevice) -> bool {
        let others = self.rails.iter().flatten();
        std::iter::once(&self.port).chain(others).any(|port| std::ptr::eq(&*port.device, device))
    }
}

/// Descriptors with an event whenever a device of the process has reported something about its ports
/// or itself, for connections over several devices.
pub(super) static PORT_EVENTS: Eventfds = Eventfds::new(0, 4);

#[derive(Debug, Default)]
struct DeviceCache {
    devices: Vec<Arc<RdmaDevice>>,
    ports: Vec<CachedPort>,
}

impl DeviceCache {
    fn read_all_async_events(&mut self) {
        for device in self.devices.clone() {
            self.read_async_events(&device);
        }
    }

    /// Reads the device's events. Unless they concern a queue pair, they drop cached lookups of
    /// that device, because the next result may differ. A failed device, with its pools, is not
    /// used for new connections.
    fn read_async_events(&mut self, device: &RdmaDevice) -> bool {
        let (mut failed, mut tells) = (false, false);
        loop {
            let event = match device.events.try_next() {
                Ok(Some(event)) => event,
                Ok(None) => break,
                Err(error) => {
                    tracing::warn!(device = device.name, %error, "the device says nothing more");
                    failed = true;
                    break;
                }
            };
            let (kind, element) = (event.event_type(), event.element());
            if let (AsyncEventType::QueuePairLastWqeReached, AsyncElement::QueuePair { qp_num }) =
                (kind, element)
            {
                device.last_wqe_reached.lock().unwrap_or_else(PoisonError::into_inner).insert(qp_num);
                continue;
            }
            tracing::info!(device = device.name, event = %kind, ?element, "the device reports");
            device.note_port(kind, element);
            failed |= kind == AsyncEventType::DeviceFatal;
            if !matches!(element, AsyncElement::QueuePair { .. }) {
                self.ports.retain(|cache| !cache.uses(device));
                tells = true;
            }
        }
        if failed {
            self.ports.retain(|cache| !cache.uses(device));
            self.devices.retain(|cache| !std::ptr::eq(&**cache, device));
            forget_pools_of(&device.domain);
        }
        if failed || tells {
            PORT_EVENTS.raise_all();
        }
        self.devices.iter().any(|cache| std::ptr::eq(&**cache, device))
    }
}

fn cache() -> MutexGuard<'static, DeviceCache> {
    static KNOWN: PerProcess<Mutex<DeviceCache>> = PerProcess::new();
    KNOWN.get().lock().unwrap_or_else(PoisonError::into_inner)
}

/// Finds the port for a socket with the address `local`. That is a port of one of the named devices,
/// if any is given, else the port that has this address. `gid_index` applies in both cases.
pub(crate) fn find(
    local: SocketAddr,
    names: &[DeviceName],
    gid_index: Option<u8>,
) -> Result<DevicePort, Unavailable> {
    let scope = match local {
        SocketAddr::V6(local) => local.scope_id(),
        SocketAddr::V4(_) => 0,
    };
    let query = PortQuery { ip: local.ip().to_canonical(), scope, devices: names.to_vec(), gid_index };
    // Concurrent callers wait here for the result instead of searching too.
    let mut cache = cache();
    cache.read_all_async_events();
    cache.ports.retain(|cache| cache.at.elapsed() < CACHE_LIFETIME);
    if let Some(cache) = cache.ports.iter().find(|cache| cache.query == query) {
        return Ok(cache.port.clone());
    }
    let list = DeviceList::new()?;
    let port = match names {
        [] => port_by_address(&mut cache.devices, &list, local, gid_index),
        [name] => port_by_name(&mut cache.devices, &list, name, gid_index),
        names => port_by_names(&mut cache.devices, &list, names, local, gid_index),
    }?;
    cache.ports.push(CachedPort { query, port: port.clone(), rails: None, at: Instant::now() });
    Ok(port)
}

/// The ports for a connection over several devices, of which `first`, found for the same parameters,
/// is the first: those that are named, else all that [`choose`] takes. One port if there are no
/// others.
pub(crate) fn find_rails(
    first: &DevicePort,
    local: SocketAddr,
    names: &[DeviceName],
    gid_index: Option<u8>,
) -> Vec<DevicePort> {
    let mut cache = cache();
    let is_it = |cached: &CachedPort| {
        cached.query.ip == local.ip().to_canonical()
            && cached.query.devices == names
            && Arc::ptr_eq(&cached.port.device, &first.device)
    };
    let known = cache.ports.iter().find(|cached| is_it(cached));
    if let Some(rails) = known.and_then(|cached| cached.rails.clone()) {
        return rails;
    }
    let DeviceCache { devices, ports } = &mut *cache;
    let rails = rails_of(devices, first, names, gid_index);
    if let Some(cached) = ports.iter_mut().find(|cached| is_it(cached)) {
        cached.rails = Some(rails.clone());
    }
    rails
}

fn rails_of(
    devices: &mut Vec<Arc<RdmaDevice>>,
    first: &DevicePort,
    names: &[DeviceName],
    gid_index: Option<u8>,
) -> Vec<DevicePort> {
    let Ok(list) = DeviceList::new() else { return vec![first.clone()] };
    let topology = Topology::read();
    let mut usable = Vec::new();
    let absent = names.iter().enumerate().filter(|(_, name)| list.find(&name.name).is_err());
    let absent = absent.map(|(at, name)| Candidate {
        status: PortStatus::Absent,
        ..candidate(&topology, &name.name, name.port.unwrap_or(1), None, Some(at))
    });
    let candidates: Vec<_> = list
        .iter()
        .flat_map(|device| ports_of(device.name().as_str(), &topology))
        .filter_map(|(name, number)| {
            let listed = names.iter().position(|named| named.includes(&name, number));
            if !names.is_empty() && listed.is_none() {
                return None;
            }
            let asked = DeviceName { name: name.clone(), port: Some(number) };
            let found = port_by_name(devices, &list, &asked, gid_index).ok();
            let candidate = candidate(&topology, &name, number, found.as_ref(), listed);
            usable.extend(found);
            Some(candidate)
        })
        .chain(absent)
        .collect();
    let choice = choose(&candidates, process_node(&topology), DEVICES_MAX);
    let is_first = |port: &DevicePort| {
        Arc::ptr_eq(&port.device, &first.device) && port.path.port_num() == first.path.port_num()
    };
    let chosen = choice.chosen.iter().filter_map(|chosen| {
        let of = |port: &&DevicePort| {
            port.device.name == chosen.port.device && port.path.port_num() == chosen.port.port
        };
        usable.iter().find(of).filter(|port| !is_first(port)).cloned()
    });
    let ports: Vec<_> = std::iter::once(first.clone()).chain(chosen).take(DEVICES_MAX).collect();
    if ports.len() > 1 {
        tracing::info!(first = first.device.name, "{choice}");
    }
    ports
}

/// The ports of a device; port 1 if the kernel does not know it, as with a software device of this
/// process.
fn ports_of(name: &str, topology: &Topology) -> Vec<(String, u8)> {
    let numbers = topology.device(name).map(|device| device.ports.iter().map(|port| port.port_num).collect());
    let numbers: Vec<u8> = numbers.unwrap_or_else(|| vec![1]);
    numbers.into_iter().map(|number| (name.to_owned(), number)).collect()
}

fn candidate(
    topology: &Topology,
    name: &str,
    number: u8,
    found: Option<&DevicePort>,
    listed: Option<usize>,
) -> Candidate {
    let port = topology.device(name).and_then(|device| {
        let port = device.ports.iter().find(|port| port.port_num == number)?;
        Some(Candidate::of(device, port, found.is_some(), listed))
    });
    port.unwrap_or_else(|| Candidate {
        device: name.to_owned(),
        port: number,
        status: if found.is_some() { PortStatus::Usable } else { PortStatus::NotActive },
        link_layer: found.map_or(LinkLayer::Unspecified, |found| found.path.link_layer()),
        rate: None,
        function: None,
        physical_function: None,
        numa_node: None,
        listed,
    })
}

/// The NUMA node of the processors that this process may use, if it is one.
fn process_node(topology: &Topology) -> Option<u32> {
    let set = rustix::thread::sched_getaffinity(None).ok()?;
    let of_process = (0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu));
    let mut nodes = of_process.map(|cpu| topology.numa_node_of_cpu(cpu));
    let first = nodes.next()??;
    nodes.all(|node| node == Some(first)).then_some(first)
}

/// The GIDs of a named device's port as IP addresses, the chosen one first, and the names of its
/// network interfaces. A GID need not be an address of this host.
pub(crate) fn port_addresses(
    name: &DeviceName,
    gid_index: Option<u8>,
) -> Result<(Vec<IpAddr>, Vec<String>), Unavailable> {
    let anywhere = (Ipv4Addr::UNSPECIFIED, 0).into();
    let DevicePort { device, path } = find(anywhere, std::slice::from_ref(name), gid_index)?;
    let table = device.context.query_gid_table().map_err(|error| device.lacks(Cause::NoGid, &error))?;
    let own = table.iter().filter(|entry| entry.port_num() == u32::from(path.port_num()));
    let gids = path.gid().into_iter().chain(own.clone().map(GidEntry::gid));
    let mut netdevs: Vec<String> = own.filter_map(|entry| entry.netdev_name().ok()).collect();
    if let Some(known) = Topology::read().device(&device.name)
        && let Some(port) = known.ports.iter().find(|port| port.port_num == path.port_num())
    {
        // The interface above a bond or a bridge has the addresses.
        netdevs.extend(
            port.netdevs
                .iter()
                .flat_map(|netdev| [Some(netdev.name.clone()), netdev.master.clone()])
                .flatten(),
        );
    }
    netdevs.sort();
    netdevs.dedup();
    Ok((gids.map(|gid| Ipv6Addr::from(gid).to_canonical()).collect(), netdevs))
}

fn port_by_name(
    devices: &mut Vec<Arc<RdmaDevice>>,
    list: &DeviceList,
    name: &DeviceName,
    gid_index: Option<u8>,
) -> Result<DevicePort, Unavailable> {
    let device = open_once(devices, list, &name.name)?;
    let path = match name.port {
        Some(port) => LocalPath::choose(&device.context, port, gid_index)?,
        None => first_active(&device.context, gid_index)?,
    };
    Ok(DevicePort { device, path })
}

/// The named port that has the address `local`, else the first named port that can be used. If none
/// can, the error has the first one's cause and the details of all.
fn port_by_names(
    devices: &mut Vec<Arc<RdmaDevice>>,
    list: &DeviceList,
    names: &[DeviceName],
    local: SocketAddr,
    gid_index: Option<u8>,
) -> Result<DevicePort, Unavailable> {
    if let Ok(port) = port_by_address(devices, list, local, gid_index)
        && names.iter().any(|name| name.includes(port.device.name(), port.path.port_num()))
    {
        return Ok(port);
    }
    let mut failed: Vec<Unavailable> = Vec::new();
    for name in names {
        match port_by_name(devices, list, name, gid_index) {
            Ok(port) => return Ok(port),
            Err(error) => failed.push(error),
        }
    }
    let details: Vec<_> = failed.iter().map(|error| error.detail.as_str()).collect();
    let cause = failed.first().map_or(Cause::DeviceNotFound, |error| error.cause);
    Err(Unavailable::new(cause, details.join("; ")))
}

/// The device of this name, opened only if this process has not opened it yet.
fn open_once(
    devices: &mut Vec<Arc<RdmaDevice>>,
    list: &DeviceList,
    name: &str,
) -> Result<Arc<RdmaDevice>, Unavailable> {
    let listed = list.find(name)?;
    if let Some(device) = devices.iter().find(|device| device.name == name) {
        return Ok(Arc::clone(device));
    }
    let opened = listed.open().map_err(|error| lacking(name, Cause::DeviceFailed, &error))?;
    keep_open(devices, opened)
}

/// The device of this name, which the connection manager chose. Queue pairs use this handle rather
/// than the connection manager's, because a pool is registered in one protection domain.
pub(crate) fn named_device(name: &str) -> Result<Arc<RdmaDevice>, Unavailable> {
    let mut cache = cache();
    cache.read_all_async_events();
    if let Some(device) = cache.devices.iter().find(|device| device.name == name) {
        return Ok(Arc::clone(device));
    }
    let list = DeviceList::new()?;
    open_once(&mut cache.devices, &list, name)
}

/// The first usable port. If none is usable, returns the error of port 1.
fn first_active(context: &DeviceContext, gid_index: Option<u8>) -> Result<LocalPath, Unavailable> {
    let ports = context.query_device().map_or(1, |attr| attr.phys_port_cnt()).max(1);
    let first = match LocalPath::choose(context, 1, gid_index) {
        Ok(path) => return Ok(path),
        Err(error) => error,
    };
    (2..=ports).find_map(|port| LocalPath::choose(context, port, gid_index).ok()).ok_or_else(|| first.into())
}

fn port_by_address(
    devices: &mut Vec<Arc<RdmaDevice>>,
    list: &DeviceList,
    local: SocketAddr,
    gid_index: Option<u8>,
) -> Result<DevicePort, Unavailable> {
    let (context, path) = list.open_by_address(local).or_else(|error| match local.ip() {
        // A software device has a GID for this host's other address.
        IpAddr::V6(Ipv6Addr::LOCALHOST) => {
            list.open_by_address((Ipv4Addr::LOCALHOST, local.port()).into()).map_err(|_| error)
        }
        _ => Err(error),
    })?;
    let device = match devices.iter().find(|device| device.name == context.name()) {
        // Dropping `context`, which was opened for the search, closes it again.
        Some(device) => Arc::clone(device),
        None => keep_open(devices, context)?,
    };
    let path = match gid_index {
        Some(_) => LocalPath::choose(&device.context, path.port_num(), gid_index)?,
        None => path,
    };
    Ok(DevicePort { device, path })
}

fn keep_open(
    devices: &mut Vec<Arc<RdmaDevice>>,
    context: DeviceContext,
) -> Result<Arc<RdmaDevice>, Unavailable> {
    let device = Arc::new(RdmaDevice::open(context)?);
    devices.push(Arc::clone(&device));
    Ok(device)
}

impl From<sideway::Error> for Unavailable {
    fn from(error: sideway::Error) -> Self {
        let cause = match error.kind() {
            sideway::ErrorKind::Library => Cause::NoLibrary,
            sideway::ErrorKind::Configuration => Cause::InvalidVariable,
            sideway::ErrorKind::NoDevice => Cause::NoDevice,
            _ => return no_device(&error),
        };
        Self::new(cause, error.to_string())
    }
}

impl From<FindDeviceError> for Unavailable {
    fn from(error: FindDeviceError) -> Self {
        let cause = match &error {
            FindDeviceError::NoDevice | FindDeviceError::NoDeviceFile { .. } => Cause::NoDevice,
            _ => Cause::DeviceNotFound,
        };
        Self::new(cause, error.to_string())
    }
}

impl From<ChoosePathError> for Unavailable {
    fn from(error: ChoosePathError) -> Self {
        let cause = match &error {
            ChoosePathError::NoDevice(FindDeviceError::NoDevice | FindDeviceError::NoDeviceFile { .. }) => {
                Cause::NoDevice
            }
            ChoosePathError::NoDevice(_) | ChoosePathError::NoSuchPort { .. } => Cause::DeviceNotFound,
            ChoosePathError::PortNotActive { .. } => Cause::PortNotActive,
            ChoosePathError::NotAsked { .. } | ChoosePathError::Query(_) => return no_device(&error),
            _ => Cause::NoGid,
        };
        Self::new(cause, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Another thread may look for a device when a thread forks.
    #[cfg(not(any(miri, loom)))]
    #[test]
    fn a_forked_child_has_devices_of_its_own() {
        let held = cache();
        let is_empty = || cache().devices.is_empty();
        assert!(crate::process::passes_in_child(is_empty), "the child waits for a lock of its parent");
        drop(held);
    }

    #[test]
    fn a_kernel_is_known_by_two_numbers() {
        assert_eq!(version("6.1.0-56-amd64"), Some((6, 1)));
        assert_eq!(version("6.12.117+deb13-amd64"), Some((6, 12)));
        assert_eq!(version("5.15.0"), Some((5, 15)));
        assert_eq!(version("6.1-rc3"), Some((6, 1)));
        for unknown in ["", "6", "next", "6.x"] {
            assert_eq!(version(unknown), None, "{unknown:?}");
        }
    }
}
