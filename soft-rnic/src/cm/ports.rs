//! The port table: which ids of this process are bound to which port.

use std::collections::HashMap;
use std::ffi::c_int;
use std::net::SocketAddr;

use super::address_table::AddressTable;
use super::transport::{PortLease, Transport};
use super::types::{IdNumber, PortSpace};

/// The ports of this process.
#[derive(Default)]
pub(super) struct PortTable(HashMap<(PortSpace, u16), BoundPort>);

struct BoundPort {
    owners: Vec<PortBinding>,
    _lease: PortLease,
}

/// An id that is bound to a port.
#[derive(Clone, Copy, Debug)]
pub(super) struct PortBinding {
    pub(super) id: IdNumber,
    pub(super) address: SocketAddr,
    pub(super) reuse: bool,
    /// Binds the port for one address family only.
    pub(super) af_only: bool,
    pub(super) listens: bool,
}

impl PortBinding {
    /// Whether another id may be bound beside it. `reuse` says whether the other id allows sharing
    /// the address.
    fn admits(&self, other: &Self, reuse: bool, addresses: &AddressTable) -> Result<(), c_int> {
        let (ours, theirs) = (self.address, other.address);
        if !self.listens && reuse && self.reuse
            || self.af_only && other.af_only && ours.is_ipv4() != theirs.is_ipv4()
        {
            return Ok(());
        }
        if addresses.is_any(ours.ip()) || addresses.is_any(theirs.ip()) {
            return Err(libc::EADDRNOTAVAIL);
        }
        if ours.ip() == theirs.ip() { Err(libc::EADDRINUSE) } else { Ok(()) }
    }
}

impl PortTable {
    /// Binds an id to the port of its address, or to any free port if that is 0. Returns the port.
    pub(super) fn bind(
        &mut self,
        mut owner: PortBinding,
        space: PortSpace,
        addresses: &AddressTable,
        transport: &dyn Transport,
    ) -> Result<u16, c_int> {
        let port = owner.address.port();
        if port != 0
            && let Some(there) = self.0.get_mut(&(space, port))
        {
            there.owners.iter().try_for_each(|other| other.admits(&owner, owner.reuse, addresses))?;
            there.owners.push(owner);
            return Ok(port);
        }
        let lease = transport.take_port(space, port)?;
        let port = lease.port;
        owner.address.set_port(port);
        self.0.insert((space, port), BoundPort { owners: vec![owner], _lease: lease });
        Ok(port)
    }

    fn owners(&mut self, space: PortSpace, port: u16) -> &mut [PortBinding] {
        self.0.get_mut(&(space, port)).map_or(&mut [], |port| &mut port.owners)
    }

    /// Whether a bound id may listen: no other id may have the same address, even if all allow
    /// sharing.
    pub(super) fn listen(
        &mut self,
        id: IdNumber,
        space: PortSpace,
        port: u16,
        addresses: &AddressTable,
    ) -> Result<(), c_int> {
        let owners = self.owners(space, port);
        let place = owners.iter().position(|owner| owner.id == id).ok_or(libc::EINVAL)?;
        let owner = owners[place];
        let mut others = owners.iter().filter(|other| other.id != id);
        if owner.reuse {
            others.try_for_each(|other| other.admits(&owner, false, addresses))?;
        }
        owners[place].listens = true;
        Ok(())
    }

    /// Updates an id's entry after its options have changed.
    pub(super) fn set(
        &mut self,
        id: IdNumber,
        space: PortSpace,
        port: u16,
        change: impl Fn(&mut PortBinding),
    ) {
        self.owners(space, port).iter_mut().filter(|owner| owner.id == id).for_each(change);
    }

    /// Ends an id's use of the port.
    pub(super) fn release(&mut self, id: IdNumber, space: PortSpace, port: u16) {
        let Some(there) = self.0.get_mut(&(space, port)) else { return };
        there.owners.retain(|owner| owner.id != id);
        if there.owners.is_empty() {
            self.0.remove(&(space, port));
        }
    }

    /// Whether any id has the port.
    pub(super) fn has(&self, space: PortSpace, port: u16) -> bool {
        self.0.contains_key(&(space, port))
    }

    /// The listener for an address: an id bound to exactly this address before one bound to any
    /// address.
    pub(super) fn listener(
        &self,
        space: PortSpace,
        address: SocketAddr,
        addresses: &AddressTable,
    ) -> Result<IdNumber, ListenerMissing> {
        let there = self.0.get(&(space, address.port())).ok_or(ListenerMissing::Port)?;
        let listeners = || there.owners.iter().filter(|owner| owner.listens);
        let exact = listeners().find(|owner| owner.address.ip() == address.ip());
        let any = || {
            listeners().find(|owner| {
                addresses.is_any(owner.address.ip())
                    && (!owner.af_only || owner.address.is_ipv4() == address.is_ipv4())
            })
        };
        let device = |ip| addresses.path(ip).or_else(|| addresses.any_path()).map(|path| path.device.number);
        let here = device(address.ip());
        let others = listeners()
            .any(|owner| addresses.is_any(owner.address.ip()) || device(owner.address.ip()) == here);
        let missing = if others { ListenerMissing::Address } else { ListenerMissing::Port };
        exact.or_else(any).map(|owner| owner.id).ok_or(missing)
    }

    #[cfg(any(fuzzing, all(test, not(loom))))]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

/// Why a request finds no listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ListenerMissing {
    /// No id listens to the port on the device that has the address.
    Port,
    /// An id listens to the port, but at another address of the device.
    Address,
}
