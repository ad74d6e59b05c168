//! Which device, which port, and under which address: as the socket's own address says, or as the program or the environment
//! names it.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sideway::ibverbs::connect::{ChoosePathError, LocalPath};
use sideway::ibverbs::device::{DeviceList, FindDeviceError, TransportType};
use sideway::ibverbs::device_context::DeviceContext;
use sideway::ibverbs::event::{AsyncElement, AsyncEventType, AsyncEvents};
use sideway::ibverbs::protection_domain::ProtectionDomain;

use crate::connect::forget_pools_of;
use crate::environment::DeviceName;
use crate::handshake::{Cause, Terms, Unavailable};
use crate::wire::Features;

/// The vendor id that the kernel's SoftRoCE reports.
const RXE_VENDOR_ID: u32 = 0x00ff_ffff;

/// The kernels, by major and minor number, over whose SoftRoCE READs were seen to bring their bytes whatever is lost (tests/netem.rs). In 6.12,
/// which does its work in work queues, queue pairs fail where packets are lost, and READs complete of which bytes are missing.
const SOUND_READS: [(u32, u32); 1] = [(6, 1)];

/// How long an answer holds: many connections at once ask for the same address, and looking through all devices opens each.
const HOLDS: Duration = Duration::from_secs(1);

/// A device that this process has opened, for all of its connections.
///
/// It stays open as long as the process: pools are registered in its domain, and these outlive connections. One that has failed is
/// [not used](Device::listen) for new connections, which open it anew.
#[derive(Debug)]
pub(crate) struct Device {
    name: String,
    context: DeviceContext,
    domain: ProtectionDomain,
    events: AsyncEvents,
    /// A software device may work only while it is polled.
    pub(super) is_soft: bool,
    /// The numbers of queue pairs that take nothing more of what they share with others.
    done_sharing: Mutex<HashSet<u32>>,
    pub(super) most: Most,
    /// A request can have immediate data.
    pub(super) has_immediate: bool,
    wants_long_frames: bool,
}

/// What a device can do at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Most {
    /// Completions of a completion queue.
    pub(super) completions: u32,
    /// Work requests of one of a queue pair's queues.
    pub(super) work_requests: u32,
    /// Pieces of memory that one of them can be about.
    pub(super) entries: u32,
    /// Receives of a shared receive queue.
    pub(super) shared_receives: u32,
    /// READs that a queue pair answers at a time.
    pub(super) reads_in: u8,
    /// READs that a queue pair has under way at a time.
    pub(super) reads_out: u8,
}

impl Device {
    /// The domain in which the memory of its connections is registered.
    pub(crate) fn domain(&self) -> &ProtectionDomain {
        &self.domain
    }

    /// Its name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn context(&self) -> &DeviceContext {
        &self.context
    }

    /// Whether what a frame costs beside its bytes is so much that they are the better the fewer they are.
    pub(crate) fn wants_long_frames(&self) -> bool {
        self.wants_long_frames
    }

    /// No more than the device can do. To be applied before the terms are told to the peer.
    pub(crate) fn limit(&self, Terms { limits, features, .. }: &mut Terms) {
        if !self.has_immediate {
            *features = features.without(Features::IMMEDIATE);
        }
        limits.rd_atomic_in = limits.rd_atomic_in.min(self.most.reads_in);
        limits.rd_atomic_out = limits.rd_atomic_out.min(self.most.reads_out);
    }

    /// Reads what the device has said without being asked, and tells it on. What the cached answers were taken from is seen to.
    pub(crate) fn listen(&self) {
        known().listen(self);
    }

    /// Whether the device has said that this queue pair, which was stopped, takes no receive of those that it shares any more. It says
    /// so once, and this forgets it.
    pub(super) fn is_done_sharing(&self, qp_number: u32) -> bool {
        self.listen();
        self.done_sharing.lock().unwrap_or_else(PoisonError::into_inner).remove(&qp_number)
    }

    fn open(context: DeviceContext) -> Result<Self, Unavailable> {
        let resources = |error: &dyn std::fmt::Display| Unavailable::new(Cause::Resources, error.to_string());
        let attr = context.query_device().map_err(|error| resources(&error))?;
        let domain = context.alloc_pd().map_err(|error| resources(&error))?;
        let events = context.async_events().map_err(|error| resources(&error))?;
        let is_rxe = attr.vendor_id() == RXE_VENDOR_ID;
        let reads = if is_rxe && !kernel_has_sound_reads() { 0 } else { u8::MAX };
        let at_a_time = |count: i32| count.clamp(0, reads.into()) as u8;
        let most = Most {
            completions: u32::try_from(attr.max_cqe()).unwrap_or(0),
            work_requests: u32::try_from(attr.max_qp_wr()).unwrap_or(0),
            entries: u32::try_from(attr.max_sge()).unwrap_or(0),
            shared_receives: u32::try_from(attr.max_srq_wr()).unwrap_or(0),
            reads_in: at_a_time(attr.max_qp_rd_atom()),
            reads_out: at_a_time(attr.max_qp_init_rd_atom()),
        };
        let (name, is_soft) = (context.name(), context.is_soft());
        let has_immediate = context.transport_type() != TransportType::Iwarp;
        Ok(Self {
            name,
            is_soft,
            context,
            domain,
            events,
            done_sharing: Mutex::default(),
            most,
            has_immediate,
            // Its packets are the kernel's work, and so are its acknowledgements and its completions.
            wants_long_frames: is_rxe,
        })
    }
}

/// Whether the running kernel is one of those.
fn kernel_has_sound_reads() -> bool {
    let name = rustix::system::uname();
    version(&name.release().to_string_lossy()).is_some_and(|version| SOUND_READS.contains(&version))
}

/// The first two numbers of a kernel's release.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// A port of an open device, and the address that it is used under.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) device: Arc<Device>,
    pub(crate) path: LocalPath,
}

impl Place {
    /// The device and the port, and why these, in words.
    pub(crate) fn describe(&self) -> String {
        format!("{} port {}, {}", self.device.name, self.path.port_num(), self.path.reason())
    }
}

/// What somebody looks for.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Wanted {
    ip: IpAddr,
    /// The interface of a link-local address.
    scope: u32,
    device: Option<DeviceName>,
    gid_index: Option<u8>,
}

/// An answer.
#[derive(Debug)]
struct Known {
    wanted: Wanted,
    place: Place,
    at: Instant,
}

#[derive(Debug)]
struct AllKnown {
    devices: Vec<Arc<Device>>,
    places: Vec<Known>,
}

impl AllKnown {
    fn listen_to_all(&mut self) {
        for device in self.devices.clone() {
            self.listen(&device);
        }
    }

    /// Takes the device's events: after them an answer may be another, and a device that has failed is not used for new connections.
    fn listen(&mut self, device: &Device) {
        let mut failed = false;
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
                device.done_sharing.lock().unwrap_or_else(PoisonError::into_inner).insert(qp_num);
                continue;
            }
            tracing::info!(device = device.name, event = %kind, ?element, "the device reports");
            failed |= kind == AsyncEventType::DeviceFatal;
            if !matches!(element, AsyncElement::QueuePair { .. }) {
                self.places.retain(|known| !std::ptr::eq(&*known.place.device, device));
            }
        }
        if failed {
            self.places.retain(|known| !std::ptr::eq(&*known.place.device, device));
            self.devices.retain(|known| !std::ptr::eq(&**known, device));
            forget_pools_of(&device.domain);
        }
    }
}

fn known() -> MutexGuard<'static, AllKnown> {
    static KNOWN: Mutex<AllKnown> = Mutex::new(AllKnown { devices: Vec::new(), places: Vec::new() });
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Finds what serves the socket with the address `local`: the named device, if one is named, else the one whose port has the address.
/// A GID index counts for either.
pub(crate) fn find(
    local: SocketAddr,
    device: Option<&DeviceName>,
    gid_index: Option<u8>,
) -> Result<Place, Unavailable> {
    let scope = match local {
        SocketAddr::V6(local) => local.scope_id(),
        SocketAddr::V4(_) => 0,
    };
    let wanted = Wanted { ip: local.ip().to_canonical(), scope, device: device.cloned(), gid_index };
    // Whoever comes meanwhile waits for the answer instead of looking as well.
    let mut known = known();
    known.listen_to_all();
    known.places.retain(|known| known.at.elapsed() < HOLDS);
    if let Some(known) = known.places.iter().find(|known| known.wanted == wanted) {
        return Ok(known.place.clone());
    }
    let list = DeviceList::new()?;
    let place = match device {
        Some(name) => named(&mut known.devices, &list, name, gid_index),
        None => by_address(&mut known.devices, &list, local, gid_index),
    }?;
    known.places.push(Known { wanted, place: place.clone(), at: Instant::now() });
    Ok(place)
}

fn named(
    devices: &mut Vec<Arc<Device>>,
    list: &DeviceList,
    name: &DeviceName,
    gid_index: Option<u8>,
) -> Result<Place, Unavailable> {
    let device = opened(devices, list, &name.name)?;
    let path = match name.port {
        Some(port) => LocalPath::choose(&device.context, port, gid_index)?,
        None => first_active(&device.context, gid_index)?,
    };
    Ok(Place { device, path })
}

/// The device of this name, opened once.
fn opened(devices: &mut Vec<Arc<Device>>, list: &DeviceList, name: &str) -> Result<Arc<Device>, Unavailable> {
    let listed = list.find(name)?;
    if let Some(device) = devices.iter().find(|device| device.name == name) {
        return Ok(Arc::clone(device));
    }
    let opened = listed.open();
    kept(devices, opened.map_err(|error| Unavailable::new(Cause::Resources, error.to_string()))?)
}

/// The device that the connection manager has named. A pool is registered in one domain, so it is not the manager's own handle of it that
/// queue pairs are made of.
pub(crate) fn named_device(name: &str) -> Result<Arc<Device>, Unavailable> {
    let mut known = known();
    known.listen_to_all();
    if let Some(device) = known.devices.iter().find(|device| device.name == name) {
        return Ok(Arc::clone(device));
    }
    let list = DeviceList::new()?;
    opened(&mut known.devices, &list, name)
}

/// The first port that can be used; if there is none, what is wrong with the first.
fn first_active(context: &DeviceContext, gid_index: Option<u8>) -> Result<LocalPath, Unavailable> {
    let ports = context.query_device().map_or(1, |attr| attr.phys_port_cnt()).max(1);
    let first = match LocalPath::choose(context, 1, gid_index) {
        Ok(path) => return Ok(path),
        Err(error) => error,
    };
    (2..=ports).find_map(|port| LocalPath::choose(context, port, gid_index).ok()).ok_or_else(|| first.into())
}

fn by_address(
    devices: &mut Vec<Arc<Device>>,
    list: &DeviceList,
    local: SocketAddr,
    gid_index: Option<u8>,
) -> Result<Place, Unavailable> {
    let (context, path) = list.open_by_address(local)?;
    let device = match devices.iter().find(|device| device.name == context.name()) {
        // The context that was opened to look is closed again.
        Some(device) => Arc::clone(device),
        None => kept(devices, context)?,
    };
    let path = match gid_index {
        Some(_) => LocalPath::choose(&device.context, path.port_num(), gid_index)?,
        None => path,
    };
    Ok(Place { device, path })
}

fn kept(devices: &mut Vec<Arc<Device>>, context: DeviceContext) -> Result<Arc<Device>, Unavailable> {
    let device = Arc::new(Device::open(context)?);
    devices.push(Arc::clone(&device));
    Ok(device)
}

impl From<sideway::Error> for Unavailable {
    fn from(error: sideway::Error) -> Self {
        let cause = match error.kind() {
            sideway::ErrorKind::Library => Cause::NoLibrary,
            _ => Cause::NoDevice,
        };
        Self::new(cause, error.to_string())
    }
}

impl From<FindDeviceError> for Unavailable {
    fn from(error: FindDeviceError) -> Self {
        let cause = match &error {
            FindDeviceError::NoDevice => Cause::NoDevice,
            _ => Cause::DeviceNotFound,
        };
        Self::new(cause, error.to_string())
    }
}

impl From<ChoosePathError> for Unavailable {
    fn from(error: ChoosePathError) -> Self {
        let cause = match &error {
            ChoosePathError::NoDevice(FindDeviceError::NoDevice) => Cause::NoDevice,
            ChoosePathError::NoDevice(_) | ChoosePathError::NoSuchPort { .. } => Cause::DeviceNotFound,
            ChoosePathError::PortNotActive { .. } => Cause::PortNotActive,
            _ => Cause::NoGid,
        };
        Self::new(cause, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
