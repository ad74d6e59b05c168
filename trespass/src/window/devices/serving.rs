//! The owner's side: windows in protection domains of the connection, and the queue pairs that serve
//! the peer's.

use std::mem;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::mux::PendingAnswer;
use crate::pool::Block;
use crate::transport::rc::one_sided::{
    OneSidedEnd, OneSidedPorts, Responder, WindowAccess, WindowDomain, WindowRegion,
};
use crate::window::connection::{OperationTime, Shared};
use crate::window::error::WindowError;
use crate::window::key::{Access, DeviceKey, WindowKey};
use crate::window::memory::OfferedMemory;
use crate::window::message::{END, Status, WindowRequest};
use crate::wire::{ENDPOINT_LEN, Endpoint};

/// How long an offer waits for acknowledgements before it destroys the queue pairs.
const PATIENCE: Duration = Duration::from_millis(2);
/// Revocations without an acknowledgement, above which devices serve no further window.
const MOST_UNACKNOWLEDGED: usize = 1024;
/// Attempts to deregister memory that a peer accesses. A software device waits within each.
const TRIES: u32 = 3;

pub(super) struct Serving {
    ports: OneSidedPorts,
    state: Mutex<ServingState>,
}

#[derive(Default)]
struct ServingState {
    /// One for each port, made when it is first needed. `None` if the device refuses.
    devices: Vec<Option<ServedDevice>>,
    /// Revocations that the peer has not acknowledged.
    unacknowledged: Vec<Revocation>,
    /// Revoked windows that a device may still reach.
    held: Vec<(OfferedMemory, Registered)>,
}

struct ServedDevice {
    /// Destroyed before its domain.
    responder: Option<Responder>,
    domain: WindowDomain,
    /// A random number.
    id: u64,
}

struct Revocation {
    region: u32,
    generation: u32,
    /// `None` if the peer was not told yet.
    told: Option<PendingAnswer>,
}

/// The registrations of a window.
#[derive(Default)]
pub(in crate::window) struct Registered {
    regions: Vec<WindowRegion>,
    keys: RegisteredKeys,
}

/// What the key of a window says of them.
#[derive(Clone, Debug, Default)]
pub(in crate::window) struct RegisteredKeys {
    pub(in crate::window) atomics: u64,
    pub(in crate::window) devices: Vec<DeviceKey>,
}

impl Registered {
    pub(in crate::window) fn is_empty(&self) -> bool {
        self.regions.is_empty()
    }

    pub(in crate::window) fn keys(&self) -> RegisteredKeys {
        self.keys.clone()
    }

    /// Deregisters. Returns false if a device refuses.
    fn close(&mut self) -> bool {
        let mut left = Vec::new();
        for region in self.regions.drain(..) {
            if let Err(error) = region.close() {
                tracing::warn!(error = %error.error, "a revoked window stays registered");
                left.push(error.object);
            }
        }
        self.regions = left;
        self.regions.is_empty()
    }
}

impl Serving {
    pub(super) fn new(ports: OneSidedPorts) -> Self {
        Self { ports, state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, ServingState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn register(&self, shared: &Shared, memory: &OfferedMemory, access: Access) -> Registered {
        self.wait_for_acknowledgements(shared);
        let mut state = self.lock();
        let mut registered = Registered::default();
        state.release();
        // A packet with the key of a revoked window may be on its way. It must reach no queue pair.
        if state.unacknowledged.len() >= MOST_UNACKNOWLEDGED
            || (!state.unacknowledged.is_empty() && !state.end_responders())
        {
            return registered;
        }
        state.make_devices(&self.ports);
        let wanted = WindowAccess {
            read: access.contains(Access::READ),
            write: access.contains(Access::WRITE),
            atomic: access.contains(Access::ATOMIC),
        };
        for device in state.devices.iter().flatten() {
            if wanted.atomic && !device.domain.has_atomics() {
                continue;
            }
            // SAFETY: the memory stays until `end` has closed the region, or is leaked: the window has
            // both, and `OfferedMemory` makes no reference to the bytes.
            match unsafe { device.domain.register(memory.start(), memory.len(), wanted) } {
                Ok(region) => {
                    registered.keys.devices.push(DeviceKey { device: device.id, rkey: region.rkey() });
                    registered.regions.push(region);
                }
                Err(error) => tracing::debug!(error = error.detail, "a window is not registered"),
            }
        }
        if wanted.atomic
            && let Some(first) = registered.keys.devices.first()
        {
            registered.keys.atomics = first.device;
        }
        registered
    }

    /// Ends the registrations of a revoked window. The peer is told when the next one is offered,
    /// because a device may then use the same key again.
    pub(super) fn end(
        &self,
        key: &WindowKey,
        memory: OfferedMemory,
        registered: Registered,
    ) -> Result<Block, WindowError> {
        let mut registered = registered;
        let WindowKey { region, generation, .. } = *key;
        // Before the device may give its key to another window.
        self.lock().unacknowledged.push(Revocation { region, generation, told: None });
        let is_free = (0..TRIES).any(|_| registered.close());
        if is_free {
            return Ok(memory.into_block());
        }
        self.lock().held.push((memory, registered));
        Err(WindowError::StillRegistered)
    }

    /// Tells the peer what it was not told, as far as that needs no wait, and takes its answers.
    fn tell(&self, shared: &Shared) -> bool {
        let mut state = self.lock();
        let ServingState { unacknowledged, .. } = &mut *state;
        for revocation in unacknowledged.iter_mut().filter(|revocation| revocation.told.is_none()) {
            let message = WindowRequest::revoked(revocation.region, revocation.generation).encode(0);
            revocation.told = shared.begin_at_once(message);
            if revocation.told.is_none() {
                break;
            }
        }
        unacknowledged.retain(|revocation| !revocation.is_acknowledged());
        unacknowledged.is_empty()
    }

    fn wait_for_acknowledgements(&self, shared: &Shared) {
        if self.lock().unacknowledged.is_empty() {
            return;
        }
        let begun = Instant::now();
        while !self.tell(shared) && begun.elapsed() < PATIENCE {
            // It performs the peer's operations meanwhile. If it fails, so has the connection.
            if shared.serve_within(OperationTime::after(Some(PATIENCE / 4))).is_err() {
                return;
            }
        }
    }

    /// Makes a queue pair for the peer's, in place of the last one.
    pub(super) fn open(&self, shared: &Shared, device: u64, bytes: &[u8]) -> (Status, Vec<u8>) {
        let none = (Status::NoPath, vec![]);
        let Ok(PathEnd(peer)) = PathEnd::decode(bytes) else { return none };
        self.tell(shared);
        let mut state = self.lock();
        // The peer may still use the key of a revoked window.
        if !state.unacknowledged.is_empty() {
            return none;
        }
        let Some(served) = state.devices.iter_mut().flatten().find(|served| served.id == device) else {
            return none;
        };
        if !served.end_responder() {
            return none;
        }
        match served.domain.respond(&self.ports, &peer) {
            Ok((responder, own)) => {
                served.responder = Some(responder);
                (Status::Done { number: 0 }, PathEnd(own).encode())
            }
            Err(error) => {
                tracing::debug!(error = error.detail, "no path for the peer's operations");
                none
            }
        }
    }

    /// Destroys the queue pair that served one of the peer's.
    pub(super) fn close(&self, device: u64, queue_pair: u32) -> Status {
        let mut state = self.lock();
        let served = state.devices.iter_mut().flatten().find(|served| served.id == device);
        let Some(served) = served else { return Status::NoPath };
        match &mut served.responder {
            Some(responder) if responder.peer() == queue_pair => {
                if served.end_responder() {
                    Status::Done { number: 0 }
                } else {
                    Status::StillOpen
                }
            }
            _ => Status::NoPath,
        }
    }
}

impl Revocation {
    fn is_acknowledged(&self) -> bool {
        self.told.as_ref().is_some_and(PendingAnswer::has_arrived)
    }
}

impl ServedDevice {
    /// Destroys the queue pair that serves the peer's. Returns false if the device refuses: the peer
    /// may still reach windows.
    fn end_responder(&mut self) -> bool {
        let Some(responder) = &mut self.responder else { return true };
        if let Err(error) = responder.stop() {
            tracing::warn!(error = error.detail, "a queue pair for one-sided operations cannot be stopped");
            return false;
        }
        self.responder = None;
        true
    }
}

impl ServingState {
    fn end_responders(&mut self) -> bool {
        self.devices.iter_mut().flatten().all(ServedDevice::end_responder)
    }

    fn make_devices(&mut self, ports: &OneSidedPorts) {
        if !self.devices.is_empty() {
            return;
        }
        let make = |index| {
            let made = WindowDomain::new(ports, index);
            let domain = made
                .inspect_err(|error| tracing::debug!(error = error.detail, "a device serves no windows"))
                .ok()?;
            let id = getrandom::u64().ok()?.max(1);
            Some(ServedDevice { responder: None, domain, id })
        };
        self.devices = (0..ports.count()).map(make).collect();
    }

    /// Tries again to free windows that a device may reach.
    fn release(&mut self) {
        for (memory, mut registered) in mem::take(&mut self.held) {
            if registered.close() {
                drop(memory.into_block());
            } else {
                self.held.push((memory, registered));
            }
        }
    }
}

impl Drop for ServingState {
    fn drop(&mut self) {
        self.devices.clear();
        self.release();
        for held in mem::take(&mut self.held) {
            tracing::error!("a revoked window stays registered: its memory is lost");
            mem::forget(held);
        }
    }
}

/// An end of a path, and its bytes: the endpoint, the READs at a time, and 7 reserved ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PathEnd(pub(super) OneSidedEnd);

impl PathEnd {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = self.0.endpoint.encode().to_vec();
        bytes.push(self.0.reads);
        bytes.resize(END, 0);
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, WindowError> {
        let wrong = WindowError::Protocol { what: "an end of a path that is none" };
        if bytes.len() != END {
            return Err(wrong);
        }
        let endpoint = Endpoint::decode(&bytes[..ENDPOINT_LEN]).map_err(|_| wrong)?;
        Ok(Self(OneSidedEnd { endpoint, reads: bytes[ENDPOINT_LEN] }))
    }
}
