//! The owner's side: windows in protection domains of the connection, and the queue pairs that serve
//! the peer's.

use std::mem;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::pool::Block;
use crate::transport::rc::one_sided::{
    OneSidedEnd, OneSidedPorts, Responder, WindowAccess, WindowDomain, WindowRegion,
};
use crate::window::error::WindowError;
use crate::window::key::{Access, DeviceKey};
use crate::window::memory::OfferedMemory;
use crate::window::message::{END, Status};
use crate::wire::{ENDPOINT_LEN, Endpoint};

/// More than the largest page that a device maps at once.
const PAGE: u64 = 1 << 30;
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
    addresses: Addresses,
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

/// Addresses by which devices know the windows of a connection. None is used twice.
struct Addresses {
    next: u64,
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
    /// The address by which devices know the first byte.
    pub(in crate::window) base: u64,
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

    pub(super) fn register(&self, memory: &OfferedMemory, access: Access) -> Registered {
        let mut state = self.lock();
        let mut registered = Registered::default();
        state.release();
        state.make_devices(&self.ports);
        let Some(base) = state.addresses.take(memory.base(), memory.len()) else { return registered };
        let mut devices: Vec<_> = state.devices.iter().flatten().collect();
        // One device has all atomic operations, because two are not atomic among each other. It comes
        // first: without it, the process performs all.
        if access.contains(Access::ATOMIC) {
            let Some(atomic) = devices.iter().position(|device| device.domain.has_atomics()) else {
                return registered;
            };
            devices.swap(0, atomic);
            registered.keys.atomics = devices[0].id;
        }
        for device in devices {
            let wanted = WindowAccess {
                read: access.contains(Access::READ),
                write: access.contains(Access::WRITE),
                atomic: device.id == registered.keys.atomics,
            };
            if wanted.is_none() {
                continue;
            }
            // SAFETY: the memory stays until `end` has closed the region, or is leaked: the window has
            // both, and `OfferedMemory` makes no reference to the bytes.
            match unsafe { device.domain.register(memory.start(), memory.len(), base, wanted) } {
                Ok(region) => {
                    registered.keys.devices.push(DeviceKey { device: device.id, rkey: region.rkey() });
                    registered.regions.push(region);
                }
                Err(error) => {
                    tracing::debug!(error = error.detail, "a window is not registered");
                    if wanted.atomic {
                        return Registered::default();
                    }
                }
            }
        }
        registered.keys.base = base;
        registered
    }

    /// Ends the registrations of a revoked window.
    pub(super) fn end(&self, memory: OfferedMemory, registered: Registered) -> Result<Block, WindowError> {
        let mut registered = registered;
        let is_free = (0..TRIES).any(|_| registered.close());
        if is_free {
            return Ok(memory.into_block());
        }
        self.lock().held.push((memory, registered));
        Err(WindowError::StillRegistered)
    }

    /// Makes a queue pair for the peer's, in place of the last one.
    pub(super) fn open(&self, device: u64, bytes: &[u8]) -> (Status, Vec<u8>) {
        let none = (Status::NoPath, vec![]);
        let Ok(PathEnd(peer)) = PathEnd::decode(bytes) else { return none };
        let mut state = self.lock();
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

impl Default for Addresses {
    /// They begin at a random place, so that those of two connections hardly ever meet.
    fn default() -> Self {
        let random = getrandom::u64().unwrap_or_default();
        Self { next: (random >> 2).next_multiple_of(PAGE).max(PAGE) }
    }
}

impl Addresses {
    /// The address of memory at `start`, with the same place in its page, because devices map pages.
    /// `None` once all are used.
    fn take(&mut self, start: u64, len: usize) -> Option<u64> {
        let base = self.next.checked_add(start % PAGE)?;
        // A page between two windows belongs to none.
        let end = base.checked_add(len as u64)?.checked_next_multiple_of(PAGE)?.checked_add(PAGE)?;
        self.next = end;
        Some(base)
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_address_is_given_twice(
            windows in proptest::collection::vec((any::<u64>(), 1..1_usize << 40), 1..50),
            first in any::<u64>(),
        ) {
            let mut addresses = Addresses { next: first / PAGE * PAGE };
            let mut last = 0;
            for (start, len) in windows {
                let Some(base) = addresses.take(start, len) else {
                    prop_assert!(first > 1 << 63);
                    break;
                };
                prop_assert!(base >= last && base % PAGE == start % PAGE);
                last = base + len as u64;
            }
        }
    }

    #[test]
    fn used_up_addresses_are_not_used_again() {
        let mut addresses = Addresses { next: u64::MAX / PAGE * PAGE - 2 * PAGE };
        assert!(addresses.take(0, 1).is_some());
        assert!(addresses.take(0, 1).is_none() && addresses.take(0, 1).is_none());
        assert!(Addresses::default().next >= PAGE);
    }
}
