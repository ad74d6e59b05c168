//! The connection manager of a process: the state machine, its lock, and its event channels.

use std::ffi::c_int;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rdma_mummy_sys::types::{ibv_qp_attr, ibv_qp_type};

use super::address_table::AddressTable;
use super::channel_notifier::ChannelNotifier;
use super::state_machine::{ChannelNumber, CmStateMachine};
use super::transport::{PortLocation, Transport};
use super::types::{CmEvent, CmEventKind, CmRoute, ConnParams, Ece, IdNumber, JoinNumber, PortSpace};
use crate::node::{Node, random};
use crate::objects::rnic::Rnic;
use crate::objects::setup::ProcessSetup;
use crate::status::Identifiers;

/// The connection manager of this process. A forked child has one of its own; with its parent's, everything fails with `EIO`.
pub(crate) struct ConnectionManager {
    rnic: Arc<Rnic>,
    state_machine: Mutex<CmStateMachine>,
}

/// An event channel. Its ids go with it.
pub(crate) struct CmEventChannel {
    manager: Arc<ConnectionManager>,
    queue: ChannelNumber,
    notifier: Arc<ChannelNotifier>,
}

impl CmEventChannel {
    /// Readable while there are events; the program may make it non-blocking. It is an `eventfd`, a token an event.
    pub(crate) fn descriptor(&self) -> i32 {
        self.notifier.descriptor()
    }

    /// Waits for an event, unless the descriptor is non-blocking. The event is counted for its id (and its join): see
    /// [`ConnectionManager::destroy`].
    ///
    /// # Errors
    ///
    /// None is there (`EAGAIN`), a signal came (`EINTR`), or the process is a forked child (`EIO`).
    pub(crate) fn take(&self) -> io::Result<CmEvent> {
        loop {
            self.manager.check_process().map_err(io::Error::from_raw_os_error)?;
            self.notifier.take()?;
            // The event of this token may have gone with its id; another has its own.
            if let Some(event) = self.manager.locked(|state_machine| state_machine.take(self.queue)) {
                return Ok(event);
            }
        }
    }
}

impl Drop for CmEventChannel {
    fn drop(&mut self) {
        // A forked child lets go of its copy, and nothing else: somebody may have had the lock at the time of the fork.
        if self.manager.check_process().is_ok() {
            self.manager.locked(|state_machine| state_machine.close_queue(self.queue, Instant::now()));
        }
    }
}

/// Every error is an error number (positive). Every call may fail with `ENOENT`: there is no such id (any more), and with `EIO`:
/// the process is a forked child.
impl ConnectionManager {
    /// The one that there is, or a new one.
    ///
    /// # Errors
    ///
    /// As [`Rnic::acquire`].
    pub(crate) fn acquire() -> io::Result<Arc<Self>> {
        let rnic = Rnic::acquire()?;
        rnic.cm_handler().acquire(|| Self::new(Arc::clone(&rnic)))
    }

    fn new(rnic: Arc<Rnic>) -> io::Result<Self> {
        let setup = ProcessSetup::get().map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
        let world: Arc<dyn Transport> = Arc::<Node>::clone(rnic.node());
        let seed = u128::from_ne_bytes(random()) as u64;
        let (addresses, scale) = (AddressTable::new(&setup.devices), setup.config.time_scale);
        let state_machine = Mutex::new(CmStateMachine::new(addresses, world, scale, seed));
        Ok(Self { rnic, state_machine })
    }

    fn check_process(&self) -> Result<(), c_int> {
        if self.rnic.node().is_forked() { Err(libc::EIO) } else { Ok(()) }
    }

    /// Does something with the state machine. Those whom it has events for are woken after it is unlocked.
    fn locked<R>(&self, act: impl FnOnce(&mut CmStateMachine) -> R) -> R {
        let mut state_machine = self.state_machine.lock().unwrap_or_else(PoisonError::into_inner);
        let result = act(&mut state_machine);
        let pending_notifiers = state_machine.take_notifiers();
        drop(state_machine);
        pending_notifiers.iter().for_each(|notifier| notifier.deliver());
        result
    }

    fn with<T>(&self, act: impl FnOnce(&mut CmStateMachine) -> Result<T, c_int>) -> Result<T, c_int> {
        self.check_process()?;
        self.locked(act)
    }

    /// The time that the node was told has come.
    pub(super) fn on_timer(&self) {
        self.locked(|state_machine| state_machine.expire(Instant::now()));
    }

    /// Another process says something.
    pub(super) fn on_message(&self, from: u16, message: &[u8]) {
        self.locked(|state_machine| state_machine.receive_packet(from, message, Instant::now()));
    }

    /// Another process is gone.
    pub(super) fn on_gone(&self, block: u16) {
        self.locked(|state_machine| state_machine.gone(block, Instant::now()));
    }

    /// A device is gone.
    pub(super) fn on_removal(&self, device: u8) {
        self.locked(|state_machine| state_machine.remove_device(device, Instant::now()));
    }

    /// It is known who has a port.
    pub(super) fn on_found(&self, token: u64, found: PortLocation) {
        self.locked(|state_machine| state_machine.found(token, found, Instant::now()));
    }

    /// A new event channel.
    ///
    /// # Errors
    ///
    /// The process has no descriptor left.
    pub(crate) fn channel(self: &Arc<Self>) -> io::Result<Arc<CmEventChannel>> {
        let notifier = Arc::new(ChannelNotifier::create()?);
        let queue = self
            .with(|state_machine| Ok(state_machine.open_queue(Arc::clone(&notifier))))
            .map_err(io::Error::from_raw_os_error)?;
        Ok(Arc::new(CmEventChannel { manager: Arc::clone(self), queue, notifier }))
    }

    /// A new id. The type of its queue pairs follows from the port space, but for [`PortSpace::Ib`].
    pub(crate) fn create(
        &self,
        channel: &CmEventChannel,
        uid: u64,
        space: PortSpace,
        qp_type: ibv_qp_type,
    ) -> Result<IdNumber, c_int> {
        self.with(|state_machine| state_machine.create(channel.queue, uid, space, qp_type))
    }

    /// Destroys an id. Its events that were not taken vanish (with the ids of connection requests); how many were taken
    /// comes back: the caller has to wait until they are acknowledged.
    pub(crate) fn destroy(&self, id: IdNumber) -> Result<u32, c_int> {
        self.with(|state_machine| state_machine.destroy(id, Instant::now()))
    }

    /// By what events name the id from now on. An id of a connection request has no events before: it is to be called before
    /// [`accept`](Self::accept).
    pub(crate) fn set_uid(&self, id: IdNumber, uid: u64) -> Result<(), c_int> {
        self.with(|state_machine| state_machine.set_uid(id, uid))
    }

    /// Binds to an address: the port is chosen if it is 0, the device when a request arrives if the address is any.
    ///
    /// `EADDRNOTAVAIL`: of no device, or another id has the port for all addresses; `EADDRINUSE`; `EINVAL`: bound already.
    pub(crate) fn bind(&self, id: IdNumber, address: SocketAddr) -> Result<(), c_int> {
        self.with(|state_machine| state_machine.bind(id, address))
    }

    /// Binds to the source, if the id is not bound yet, and finds the destination. What is found comes as an event.
    pub(crate) fn resolve_addr(
        &self,
        id: IdNumber,
        source: Option<SocketAddr>,
        destination: SocketAddr,
        timeout: Duration,
    ) -> Result<(), c_int> {
        self.with(|state_machine| {
            state_machine.resolve_addr(id, source, destination, timeout, Instant::now())
        })
    }

    /// Finds the way to the destination: as an event.
    pub(crate) fn resolve_route(&self, id: IdNumber) -> Result<(), c_int> {
        self.with(|state_machine| state_machine.resolve_route(id))
    }

    /// What is known of an id's way.
    pub(crate) fn route(&self, id: IdNumber) -> Result<CmRoute, c_int> {
        self.with(|state_machine| state_machine.route(id))
    }

    /// Takes requests from now on. The backlog is how many may wait to be taken; 0 or less and too many stand
    /// for the host's limit.
    pub(crate) fn listen(&self, id: IdNumber, backlog: c_int) -> Result<(), c_int> {
        self.with(|state_machine| state_machine.listen(id, backlog))
    }

    /// Asks the destination's listener for a connection, or for where datagrams go.
    pub(crate) fn connect(&self, id: IdNumber, parameters: &ConnParams, ece: Ece) -> Result<(), c_int> {
        self.with(|state_machine| state_machine.connect(id, parameters, ece, Instant::now()))
    }

    /// Accepts a request. Without parameters: an active side that uses no queue pair of the library's has
    /// brought its own to RTS, and the connection is established.
    pub(crate) fn accept(
        &self,
        id: IdNumber,
        parameters: Option<&ConnParams>,
        ece: Ece,
    ) -> Result<(), c_int> {
        self.with(|state_machine| state_machine.accept(id, parameters, ece, Instant::now()))
    }

    /// Rejects a request, or on the active side a response. `reason` is 28 (consumer defined), or 35 (vendor options not
    /// supported).
    pub(crate) fn reject(&self, id: IdNumber, reason: u8, data: &[u8]) -> Result<(), c_int> {
        self.with(|state_machine| state_machine.reject(id, reason, data, Instant::now()))
    }

    /// Endpoints a connection, or answers its end.
    pub(crate) fn disconnect(&self, id: IdNumber) -> Result<(), c_int> {
        self.with(|state_machine| state_machine.disconnect(id, Instant::now()))
    }

    /// An asynchronous event came for the id's queue pair: `IBV_EVENT_COMM_EST` establishes a passive side.
    pub(crate) fn notify(&self, id: IdNumber, event: u32) -> Result<(), c_int> {
        self.with(|state_machine| state_machine.notify(id, event))
    }

    /// What the id's queue pair is to be modified with, to get to `attr.qp_state`; the mask comes back.
    pub(crate) fn init_qp_attr(&self, id: IdNumber, attr: &mut ibv_qp_attr) -> Result<c_int, c_int> {
        self.with(|state_machine| state_machine.init_qp_attr(id, attr))
    }

    /// `RDMA_OPTION_ID` and `RDMA_OPTION_IB`, with values as they lie in memory.
    pub(crate) fn set_option(
        &self,
        id: IdNumber,
        level: c_int,
        name: c_int,
        value: &[u8],
    ) -> Result<(), c_int> {
        self.with(|state_machine| state_machine.set_option(id, level, name, value))
    }

    /// Moves an id and its events that were not taken to another channel. How many were taken comes back, as of
    /// [`destroy`](Self::destroy).
    pub(crate) fn migrate(&self, id: IdNumber, channel: &CmEventChannel) -> Result<u32, c_int> {
        self.with(|state_machine| state_machine.migrate(id, channel.queue))
    }

    /// Has an event come that the library's half has thought of.
    pub(crate) fn write(
        &self,
        id: IdNumber,
        kind: CmEventKind,
        status: c_int,
        argument: u64,
    ) -> Result<(), c_int> {
        self.with(|state_machine| state_machine.write(id, kind, status, argument))
    }

    /// Joins a multicast group; the event tells how to send to it. To receive, the caller attaches the queue pair to
    /// the group of the event's `ah_attr.grh.dgid`, with LID 0. `uid` names the membership in events.
    pub(crate) fn join(&self, id: IdNumber, group: SocketAddr, uid: u64) -> Result<JoinNumber, c_int> {
        self.with(|state_machine| state_machine.join(id, group, uid))
    }

    /// Leaves a group. How many of the membership's events were taken comes back, as of [`destroy`](Self::destroy); the
    /// others vanish.
    pub(crate) fn leave(&self, join: JoinNumber) -> Result<u32, c_int> {
        self.with(|state_machine| state_machine.leave(join))
    }

    /// How many ids there are. A forked child has none.
    pub(crate) fn identifiers(&self) -> Identifiers {
        self.with(|state_machine| Ok(state_machine.identifiers())).unwrap_or_default()
    }

    /// As [`CmStateMachine::counts`].
    #[cfg(all(test, not(loom)))]
    pub(super) fn counts(&self) -> [usize; 6] {
        self.locked(|state_machine| state_machine.counts())
    }
}
