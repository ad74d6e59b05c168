//! Ports of the connection manager: each belongs to one process at a time.
//!
//! A port's owner listens on an abstract socket name. It sends its block to each process that
//! connects, and closes the connection.
//!
//! Ephemeral ports are taken in groups, so that ten thousand of them need only 160 descriptors. So
//! no other process can take an ephemeral port of a group that a process has taken, even if that
//! process does not use the port.

use std::collections::{HashMap, HashSet, hash_map};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::attached_peer::PAUSE;
use super::mailbox::ServiceCommand;
use super::message::Reply;
use super::names;
use super::service::{EventSource, PACKETS_PER_TURN, ServiceThread};
use super::{ALONE, Node, NodeState};
use crate::platform::fork::ForkGeneration;
use crate::platform::socket::Socket;

/// The ephemeral ports, taken when a program asks for any port.
pub(crate) const EPHEMERAL: core::ops::RangeInclusive<u16> = 32768..=60999;
/// Ports in a group.
const GROUP: u16 = 64;
const FIRST_GROUP: u16 = *EPHEMERAL.start() / GROUP;
const GROUPS: u16 = *EPHEMERAL.end() / GROUP - FIRST_GROUP + 1;
/// The most remembered port owners.
const KNOWN: usize = 4096;

/// A port of a port space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CmPort {
    pub(crate) space: u8,
    pub(crate) number: u16,
}

impl CmPort {
    /// The port's group, if it is ephemeral.
    fn group(self) -> Option<u16> {
        EPHEMERAL.contains(&self.number).then_some(self.number / GROUP)
    }

    /// The port or its group, as a thing with an owner.
    pub(crate) fn thing(self, fabric: &str) -> String {
        let Self { space, number } = self;
        match self.group() {
            Some(group) => format!("soft-rnic/{fabric}/cm/{space}/g{group}"),
            None => format!("soft-rnic/{fabric}/cm/{space}/p{number}"),
        }
    }
}

/// The socket to which other processes connect to ask for a port, or for a port of a group.
#[derive(Debug, Default)]
pub(crate) struct PortListener(Mutex<PortListenerState>);

#[derive(Debug, Default)]
struct PortListenerState {
    /// `None` once it is closed. (Always `None` where the process is alone.)
    socket: Option<Socket>,
    /// The service thread's token.
    token: Option<u64>,
}

impl PortListener {
    fn lock(&self) -> MutexGuard<'_, PortListenerState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes the socket at once, which frees its name.
    fn close(&self, state: &NodeState) {
        let PortListenerState { socket, token } = core::mem::take(&mut *self.lock());
        if let Some((epoll, socket)) = state.epoll.get().zip(socket)
            && token.is_some()
            // A forked child that the node does not know of may keep the socket open, so that
            // closing it here would not remove it from epoll.
            && let Err(error) = epoll.get().and_then(|epoll| rustix::event::epoll::delete(epoll, &socket))
        {
            log::debug!("epoll_ctl: {error}");
        }
        if let Some(token) = token {
            state.common.mailbox.post(ServiceCommand::StopListening { token });
        }
    }
}

/// A group of ports that this process has taken.
#[derive(Debug)]
struct PortGroup {
    listener: Arc<PortListener>,
    /// A bit for each used port.
    used: u64,
    /// Where the search for a free port starts, so that a freed port rests.
    next: u32,
}

impl PortGroup {
    /// Takes any free port of the group.
    fn take(&mut self, group: u16) -> Option<u16> {
        let first = group * GROUP;
        let usable = (0..GROUP).filter(|at| EPHEMERAL.contains(&(first + at)));
        let free = usable.fold(0, |bits, at| bits | 1_u64 << at) & !self.used;
        if free == 0 {
            return None;
        }
        let at = (free.rotate_right(self.next).trailing_zeros() + self.next) % u64::BITS;
        self.used |= 1 << at;
        self.next = (at + 1) % u64::BITS;
        Some(first + at as u16)
    }
}

/// The ports of one port space.
#[derive(Debug, Default)]
struct PortSpaceState {
    single: HashSet<u16>,
    groups: HashMap<u16, PortGroup>,
    /// The group from which ports are taken, if the process has any.
    current: u16,
}

impl PortSpaceState {
    fn has(&self, port: u16) -> bool {
        let is_used = |group: &PortGroup| group.used >> (port % GROUP) & 1 != 0;
        self.single.contains(&port) || self.groups.get(&(port / GROUP)).is_some_and(is_used)
    }

    fn take_any(&mut self) -> Option<u16> {
        let current = self.current;
        if let Some(port) = self.groups.get_mut(&current).and_then(|group| group.take(current)) {
            return Some(port);
        }
        let (group, port) =
            self.groups.iter_mut().find_map(|(group, ports)| Some((*group, ports.take(*group)?)))?;
        self.current = group;
        Some(port)
    }

    /// Frees a port. Returns the listener of a group that is no longer needed. One unused group is
    /// kept, because the next port may be wanted soon.
    fn free(&mut self, port: u16) -> Option<Arc<PortListener>> {
        let group = self.groups.get_mut(&(port / GROUP))?;
        group.used &= !(1 << (port % GROUP));
        if group.used != 0 {
            return None;
        }
        let unused = self.groups.iter().filter(|(_, group)| group.used == 0).map(|(number, _)| *number);
        let unused: Vec<_> = unused.collect();
        let spare = unused.iter().find(|number| **number != self.current).filter(|_| unused.len() > 1)?;
        self.groups.remove(spare).map(|group| group.listener)
    }
}

/// The ports of this process, and the known owners of other ports.
#[derive(Debug)]
pub(crate) struct CmPorts {
    spaces: Mutex<HashMap<u8, PortSpaceState>>,
    known: Mutex<HashMap<CmPort, u16>>,
    process: ForkGeneration,
}

impl Default for CmPorts {
    fn default() -> Self {
        Self { spaces: Mutex::default(), known: Mutex::default(), process: ForkGeneration::current() }
    }
}

impl CmPorts {
    fn spaces(&self) -> MutexGuard<'_, HashMap<u8, PortSpaceState>> {
        self.spaces.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn known(&self) -> MutexGuard<'_, HashMap<CmPort, u16>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this process has a port.
    pub(crate) fn has(&self, port: CmPort) -> bool {
        self.spaces().get(&port.space).is_some_and(|space| space.has(port.number))
    }

    /// The owner of a port at the last lookup.
    pub(crate) fn known_owner(&self, port: CmPort) -> Option<u16> {
        self.known().get(&port).copied()
    }

    pub(crate) fn remember(&self, port: CmPort, owner: Option<u16>) {
        let mut known = self.known();
        match owner {
            Some(block) => {
                if known.len() >= KNOWN {
                    known.clear();
                }
                known.insert(port, block);
            }
            None => drop(known.remove(&port)),
        }
    }

    /// Forgets the ports of this block's owner.
    pub(crate) fn forget(&self, block: u16) {
        self.known().retain(|_, owner| *owner != block);
    }
}

/// A port of this process. Dropping it frees the port at once.
pub(crate) struct PortGuard {
    state: Arc<NodeState>,
    port: CmPort,
    /// The listener of a port that is in no group.
    listener: Option<Arc<PortListener>>,
}

impl PortGuard {
    pub(crate) fn port(&self) -> u16 {
        self.port.number
    }
}

impl core::fmt::Debug for PortGuard {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_tuple("PortGuard").field(&self.port).finish()
    }
}

impl Drop for PortGuard {
    fn drop(&mut self) {
        let Self { state, port, listener } = self;
        if !state.ports.process.is_current() {
            // The port belongs to the parent. Its lock may be held by a thread that does not exist
            // here.
            return;
        }
        let mut spaces = state.ports.spaces();
        let Some(space) = spaces.get_mut(&port.space) else { return };
        let unused = match listener.take() {
            Some(listener) => {
                space.single.remove(&port.number);
                Some(listener)
            }
            None => space.free(port.number),
        };
        // Close it under the lock, so that the next thread that takes the port finds the name free.
        if let Some(listener) = unused {
            listener.close(state);
        }
    }
}

impl Node {
    /// Takes a port of a port space (any number on which processes agree); port 0 takes any
    /// ephemeral port.
    ///
    /// # Errors
    ///
    /// `AddrInUse` if any process has the port, or if no port is free. Another error if the
    /// system has no descriptor.
    pub(crate) fn take_port(&self, space: u8, port: u16) -> io::Result<PortGuard> {
        // The block is the answer to other processes that look up the port.
        self.own_block()?;
        self.ensure_service()?;
        let mut spaces = self.state.ports.spaces();
        let of_space = spaces.entry(space).or_default();
        let port = CmPort { space, number: port };
        let (port, listener) = match port.group() {
            _ if port.number == 0 => (self.take_any_port(space, of_space)?, None),
            _ if of_space.has(port.number) => return Err(io::ErrorKind::AddrInUse.into()),
            None => {
                let listener = self.listen_on_port(port)?;
                of_space.single.insert(port.number);
                (port, Some(listener))
            }
            Some(group) => {
                let group = match of_space.groups.entry(group) {
                    hash_map::Entry::Occupied(group) => group.into_mut(),
                    hash_map::Entry::Vacant(place) => {
                        place.insert(PortGroup { listener: self.listen_on_port(port)?, used: 0, next: 0 })
                    }
                };
                group.used |= 1 << (port.number % GROUP);
                (port, None)
            }
        };
        drop(spaces);
        Ok(PortGuard { state: Arc::clone(&self.state), port, listener })
    }

    fn take_any_port(&self, space: u8, of_space: &mut PortSpaceState) -> io::Result<CmPort> {
        if let Some(number) = of_space.take_any() {
            return Ok(CmPort { space, number });
        }
        // Start at a random group, so that processes do not try each other's groups.
        let start = u16::from_ne_bytes([self.state.process[2], self.state.process[3]]);
        for step in 0..GROUPS {
            let group = FIRST_GROUP + (start % GROUPS + step) % GROUPS;
            if of_space.groups.contains_key(&group) {
                continue;
            }
            match self.listen_on_port(CmPort { space, number: group * GROUP }) {
                Ok(listener) => {
                    of_space.groups.insert(group, PortGroup { listener, used: 0, next: 0 });
                    of_space.current = group;
                    if let Some(number) = of_space.take_any() {
                        return Ok(CmPort { space, number });
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                Err(error) => return Err(error),
            }
        }
        let message = format!("all ports from {} to {} are in use", EPHEMERAL.start(), EPHEMERAL.end());
        Err(io::Error::new(io::ErrorKind::AddrInUse, message))
    }

    fn listen_on_port(&self, port: CmPort) -> io::Result<Arc<PortListener>> {
        if ALONE {
            return Ok(Arc::default());
        }
        let thing = port.thing(&self.state.common.settings.fabric);
        let socket = names::claim(&thing, self.state.socket_user)?.ok_or(io::ErrorKind::AddrInUse)?;
        let listener =
            Arc::new(PortListener(Mutex::new(PortListenerState { socket: Some(socket), token: None })));
        self.state.common.mailbox.post(ServiceCommand::ListenOnPort(Arc::clone(&listener)));
        Ok(listener)
    }
}

impl ServiceThread {
    /// Accepts connections to a port that was just taken.
    pub(crate) fn add_port_listener(&mut self, listener: Arc<PortListener>) {
        let token = self.new_token();
        {
            let mut listener_state = listener.lock();
            if listener_state.socket.is_none() {
                return;
            }
            listener_state.token = Some(token);
        }
        self.watch_port_listener(token, listener);
    }

    pub(crate) fn watch_port_listener(&mut self, token: u64, listener: Arc<PortListener>) {
        let heeded = match &listener.lock().socket {
            Some(socket) => self.watch(socket, token),
            None => return,
        };
        if let Err(error) = heeded {
            log::warn!("epoll_ctl: {error}; other processes cannot look up a port for now");
            self.set_deadline(Instant::now() + PAUSE, token);
        }
        self.sources.insert(token, EventSource::PortListener(listener));
    }

    /// Sends this process's block to all processes that have connected. It waits for none of them,
    /// and reads nothing from them.
    pub(crate) fn answer_port_lookups(
        &mut self,
        token: u64,
        listener: Arc<PortListener>,
    ) -> Option<EventSource> {
        let answer = Reply::Block { block: self.state.blocks.first()? }.encode();
        let listener_state = listener.lock();
        let socket = listener_state.socket.as_ref()?;
        for _ in 0..PACKETS_PER_TURN {
            match socket.accept() {
                // Send nothing to a process of another user.
                Ok(mut caller) => match caller.peer_of(self.state.user) {
                    Ok(who) => {
                        if let Err(error) = caller.send(&answer) {
                            log::debug!(
                                "the owner of a port could not be sent to process {}: {error}",
                                who.pid
                            );
                        }
                    }
                    Err(_) => log::debug!("refused a port lookup of another user's process"),
                },
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    log::warn!("other processes cannot look up a port for now: {error}");
                    self.unwatch(socket);
                    self.set_deadline(Instant::now() + PAUSE, token);
                    break;
                }
            }
        }
        drop(listener_state);
        Some(EventSource::PortListener(listener))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn groups_are_within_the_range() {
        assert_eq!(CmPort { space: 1, number: 32767 }.group(), None);
        assert_eq!(CmPort { space: 1, number: 32768 }.group(), Some(FIRST_GROUP));
        assert_eq!(CmPort { space: 1, number: 60999 }.group(), Some(FIRST_GROUP + GROUPS - 1));
        assert_eq!(CmPort { space: 1, number: 61000 }.group(), None);
        let name = |space, port| CmPort { space, number: port }.thing("lab");
        assert_eq!(name(3, 7471), "soft-rnic/lab/cm/3/p7471");
        assert_eq!(name(3, 32769), "soft-rnic/lab/cm/3/g512");
        assert_eq!(name(3, 61000), "soft-rnic/lab/cm/3/p61000");
    }

    #[test]
    fn ports_of_a_group_are_given_out_in_turn_and_rest() {
        let mut group = PortGroup { listener: Arc::default(), used: 0, next: 0 };
        let first = FIRST_GROUP * GROUP;
        for at in 0..GROUP {
            assert_eq!(group.take(FIRST_GROUP), Some(first + at));
        }
        assert_eq!(group.take(FIRST_GROUP), None);
        group.used &= !(1 << 5 | 1 << 9);
        group.next = 6;
        assert_eq!(group.take(FIRST_GROUP), Some(first + 9));
        assert_eq!(group.take(FIRST_GROUP), Some(first + 5));
        let last = FIRST_GROUP + GROUPS - 1;
        let mut group = PortGroup { listener: Arc::default(), used: 0, next: 0 };
        let ports: Vec<_> = core::iter::from_fn(|| group.take(last)).collect();
        assert_eq!((ports.len(), ports.last()), (8, Some(EPHEMERAL.end())));
    }

    #[test]
    fn one_unused_group_is_kept() {
        let mut space = PortSpaceState::default();
        for number in [FIRST_GROUP, FIRST_GROUP + 1, FIRST_GROUP + 2] {
            space.groups.insert(number, PortGroup { listener: Arc::default(), used: 1, next: 1 });
        }
        space.current = FIRST_GROUP + 1;
        let port = |number: u16| (FIRST_GROUP + number) * GROUP;
        assert!(space.has(port(0)) && !space.has(port(0) + 1));
        assert!(space.free(port(0)).is_none() && !space.has(port(0)));
        assert!(space.free(port(1)).is_some(), "the other unused group is released");
        let mut kept: Vec<_> = space.groups.keys().copied().collect();
        kept.sort_unstable();
        assert_eq!(kept, [FIRST_GROUP + 1, FIRST_GROUP + 2]);
        assert!(space.free(port(2)).is_some() && space.groups.len() == 1);
        assert_eq!(space.take_any(), Some(port(1) + 1));
        assert!(space.free(port(2)).is_none(), "the only unused group is kept");
    }
}
