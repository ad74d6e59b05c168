//! The transport of a process's connection manager: its node.

use std::ffi::c_int;
use std::io;
use std::time::Instant;

use super::manager::ConnectionManager;
use super::transport::{PortLease, PortLocation, Transport};
use super::types::PortSpace;
use crate::node::{self, Node};
use crate::objects::cm_handler::CmHandler;
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
            log::warn!("the service thread cannot be started: {error}; connections do not time out");
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

impl CmHandler for ConnectionManager {
    fn message(&self, from: u16, message: &[u8]) {
        self.on_message(from, message);
    }

    fn gone(&self, block: u16) {
        self.on_gone(block);
    }

    fn port_owner(&self, token: u64, owner: node::PortOwner) {
        self.on_found(token, port_location(owner));
    }

    fn device_removed(&self, device: u8) {
        self.on_removal(device);
    }

    fn identifiers(&self) -> Identifiers {
        self.identifiers()
    }

    fn timer(&self) {
        self.on_timer();
    }
}
