//! The world of a process: its node.

use std::ffi::c_int;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use super::manager::Manager;
use super::transport::{PortLease, PortLocation, Transport};
use super::types::PortSpace;
use crate::node::{self, Node};
use crate::platform::errno;
use crate::status::Identifiers;

impl Transport for Node {
    fn take_port(&self, space: PortSpace, port: u16) -> Result<PortLease, c_int> {
        let lease = self.take_port(space as u8, port).map_err(|error| match error.kind() {
            io::ErrorKind::AddrInUse if port == 0 => libc::EADDRNOTAVAIL,
            io::ErrorKind::AddrInUse => libc::EADDRINUSE,
            _ => errno::refused("rdma_bind_addr", &error),
        })?;
        Ok(PortLease::new(lease.port(), lease))
    }

    fn find_port(
        &self,
        space: PortSpace,
        port: u16,
        until: Instant,
        token: u64,
        fresh: bool,
    ) -> Option<PortLocation> {
        self.find_port(space as u8, port, until, token, fresh).map(port_location)
    }

    fn send(&self, block: u16, message: &[u8]) -> io::Result<()> {
        self.send_cm(block, message)
    }

    fn wake_at(&self, when: Instant) {
        if let Err(error) = self.wake_cm_at(when) {
            log::warn!("no service thread: {error}; connections do not time out");
        }
    }
}

fn port_location(owner: node::PortOwner) -> PortLocation {
    match owner {
        node::PortOwner::ThisProcess => PortLocation::ThisProcess,
        node::PortOwner::Block(block) => PortLocation::Block(block),
        node::PortOwner::Nobody => PortLocation::Nobody,
        node::PortOwner::Unresponsive => PortLocation::Unresponsive,
    }
}

/// What a device's handler hears for its connection manager, which there may not be. A forked child's device has another: the service
/// thread may have been hearing something at the time of the fork.
#[derive(Default)]
pub(crate) struct Ear(Mutex<Weak<Manager>>);

impl Ear {
    fn lock(&self) -> MutexGuard<'_, Weak<Manager>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The one that hears, or a new one.
    pub(super) fn acquire(&self, make: impl FnOnce() -> io::Result<Manager>) -> io::Result<Arc<Manager>> {
        let mut current = self.lock();
        if let Some(manager) = current.upgrade() {
            return Ok(manager);
        }
        let manager = Arc::new(make()?);
        *current = Arc::downgrade(&manager);
        Ok(manager)
    }

    fn with(&self, hear: impl FnOnce(&Manager)) {
        let manager = self.lock().upgrade();
        if let Some(manager) = manager {
            hear(&manager);
        }
    }

    pub(crate) fn message(&self, from: u16, message: &[u8]) {
        self.with(|manager| manager.on_message(from, message));
    }

    pub(crate) fn gone(&self, block: u16) {
        self.with(|manager| manager.on_gone(block));
    }

    pub(crate) fn found(&self, token: u64, what: node::PortOwner) {
        self.with(|manager| manager.on_found(token, port_location(what)));
    }

    /// A device is gone.
    pub(crate) fn removed(&self, device: u8) {
        self.with(|manager| manager.on_removal(device));
    }

    /// What there is of identifiers.
    pub(crate) fn identifiers(&self) -> Identifiers {
        let manager = self.lock().upgrade();
        manager.map_or_else(Identifiers::default, |manager| manager.identifiers())
    }

    pub(crate) fn timer(&self) {
        self.with(Manager::on_timer);
    }
}
