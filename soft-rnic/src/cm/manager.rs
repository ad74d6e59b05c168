//! The connection manager of a process: the state machine, behind a lock, and its event channels.

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

/// The connection manager of this process. A forked child has a separate one; with its parent's,
/// every call fails with `EIO`.
pub(crate) struct ConnectionManager {
    rnic: Arc<Rnic>,
    state_machine: Mutex<CmStateMachine>,
}

/// An event channel. Dropping it destroys its ids.
pub(crate) struct CmEventChannel {
    manager: Arc<ConnectionManager>,
    queue: ChannelNumber,
    notifier: Arc<ChannelNotifier>,
}

impl CmEventChannel {
    /// A descriptor that is readable while events wait. It is an `eventfd` with one token for each
    /// event, and the program may make it non-blocking.
    pub(crate) fn descriptor(&self) -> i32 {
        self.notifier.descriptor()
    }

    /// Waits for an event, unless the descriptor is non-blocking. The event is counted for its id
    /// (and its join); see [`ConnectionManager::destroy`].
    ///
    /// # Errors
    ///
    /// `EAGAIN` if no event waits, `EINTR` if a signal came, `EIO` in a forked child.
    pub(crate) fn take(&self) -> io::Result<CmEvent> {
        loop {
            self.manager.check_process().map_err(io::Error::from_raw_os_error)?;
            self.notifier.take()?;
            // The event of this token may have been dropped with its id. Other events have separate
            // tokens.
            if let Some(event) = self.manager.locked(|state_machine| state_machine.take(self.queue)) {
                return Ok(event);
            }
        }
    }
}

impl Drop for CmEventChannel {
    fn drop(&mut self) {
        // A forked child only drops its copy. It must not take the lock, because another thread may
        // have held the lock at the time of the fork.
        if self.manager.check_process().is_ok() {
            self.manager.locked(|state_machine| state_machine.close_queue(self.queue, Instant::now()));
        }
    }
}

/// Errors are positive error numbers. Every call may fail with `ENOENT` if the id does not exist
/// (any more), and with `EIO` in a forked child.
impl ConnectionManager {
    /// The current manager of the process, or a new one.
    ///
    /// # Errors
    ///
    /// The errors of [`Rnic::acquire`].
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

    /// Runs `act` on the state machine. Readers with new events are woken after the unlock.
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

    /// Called when the time requested from the node has come.
    pub(super) fn on_timer(&self) {
        self.locked(|state_machine| state_machine.expire(Instant::now()));
    }

    /// Called for a message of another process.
    pub(super) fn on_message(&self, from: u16, message: &[u8]) {
        self.locked(|state_machine| state_machine.receive_packet(from, message, Instant::now()));
    }

    /// Called when another process is gone.
    pub(super) fn on_gone(&self, block: u16) {
        self.locked(|state_machine| state_machine.gone(block, Instant::now()));
    }

    /// Called when a device is removed.
    pub(super) fn on_removal(&self, device: u8) {
        self.locked(|state_machine| state_machine.remove_device(device, Instant::now()));
    }

    /// Called when the owner of a port is known.
    pub(super) fn on_found(&self, token: u64, found: PortLocation) {
        self.locked(|state_machine| state_machine.found(token, found, Instant::now()));
    }

    /// Creates an event channel.
    ///
    /// # Errors
    ///
    /// If the process has no descriptor left.
    pub(crate) fn channel(self: &Arc<Self>) -> io::Result<Arc<CmEventChannel>> {
        let notifier = Arc::new(ChannelNotifier::create()?);
        let queue = self
            .with(|state_machine| Ok(state_machine.open_queue(Arc::clone(&notifier))))
            .map_err(io::Error::from_raw_os_error)?;
        Ok(Arc::new(CmEventChannel { manager: Arc::clone(self), queue, notifier }))
    }

    /// Creates an id. The port space determines the type of its queue pairs, except for
    /// [`PortSpace::Ib`].
    pub(crate) fn create(
        &self,
        channel: &CmEventChannel,
        uid: u64,
        space: PortSpace,
        qp_type: ibv_qp_type,
    ) -> Result<IdNumber, c_int> {
        self.with(|state_machine| state_machine.create(channel.queue, uid, space, qp_type))
    }

    /// Destroys an id, and drops its events that the program has not taken (with the ids of
    /// connection requests).
    ///
    /// Returns how many events were taken. The caller must wait until all of those are
    /// acknowledged.
    pub(crate) fn destroy(&self, id: IdNumber) -> Result<u32, c_int> {
        self.with(|state_machine| state_machine.destroy(id, Instant::now()))
    }

    /// Sets the value by which events name the id. The id of a connection request raises no events
    /// before this call, so call it before [`accept`](Self::accept).
    pub(crate) fn set_uid(&self, id: IdNumber, uid: u64) -> Result<(), c_int> {
        self.with(|state_machine| state_machine.set_uid(id, uid))
    }

    /// Binds an id to an address. With port 0 the port is chosen now. With an unspecified address
    /// the device is chosen when a request arrives.
    ///
    /// - `EADDRNOTAVAIL`: no device has the address, or another id has the port for all addresses.
    /// - `EADDRINUSE`: another id has the address and port.
    /// - `EINVAL`: the id is bound already.
    pub(crate) fn bind(&self, id: IdNumber, address: SocketAddr) -> Result<(), c_int> {
        self.with(|state_machine| state_machine.bind(id, address))
    }

    /// Binds the id to the source, unless it is bound, and resolves the destination. The result
    /// comes as an event.
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

    /// Resolves the route to the destination. The result comes as an event.
    pub(crate) fn resolve_route(&self, id: IdNumber) -> Result<(), c_int> {
        self.with(|state_machine| state_machine.resolve_route(id))
    }

    /// The route of an id, as far as it is known.
    pub(crate) fn route(&self, id: IdNumber) -> Result<CmRoute, c_int> {
        self.with(|state_machine| state_machine.route(id))
    }

    /// Starts accepting connection requests. `backlog` is the number of requests that may wait; 0,
    /// a negative or a too large number means the host's limit.
    pub(crate) fn listen(&self, id: IdNumber, backlog: c_int) -> Result<(), c_int> {
        self.with(|state_machine| state_machine.listen(id, backlog))
    }

    /// Sends a connection request to the destination's listener, or asks it where to send
    /// datagrams.
    pub(crate) fn connect(&self, id: IdNumber, parameters: &ConnParams, ece: Ece) -> Result<(), c_int> {
        self.with(|state_machine| state_machine.connect(id, parameters, ece, Instant::now()))
    }

    /// Accepts a request.
    ///
    /// Without parameters it completes the active side: the caller manages its own queue pair, has
    /// brought it to RTS, and the connection becomes established.
    pub(crate) fn accept(
        &self,
        id: IdNumber,
        parameters: Option<&ConnParams>,
        ece: Ece,
    ) -> Result<(), c_int> {
        self.with(|state_machine| state_machine.accept(id, parameters, ece, Instant::now()))
    }

    /// Rejects a request, or on the active side a response. `reason` is 28 (consumer defined) or 35
    /// (vendor options not supported).
    pub(crate) fn reject(&self, id: IdNumber, reason: u8, data: &[u8]) -> Result<(), c_int> {
        self.with(|state_machine| state_machine.reject(id, reason, data, Instant::now()))
    }

    /// Ends a connection, or answers the peer's end.
    pub(crate) fn disconnect(&self, id: IdNumber) -> Result<(), c_int> {
        self.with(|state_machine| state_machine.disconnect(id, Instant::now()))
    }

    /// Reports an asynchronous event of the id's queue pair: `IBV_EVENT_COMM_EST` establishes the
    /// passive side.
    pub(crate) fn notify(&self, id: IdNumber, event: u32) -> Result<(), c_int> {
        self.with(|state_machine| state_machine.notify(id, event))
    }

    /// Fills in the attributes for moving the id's queue pair to `attr.qp_state`; returns the
    /// attribute mask.
    pub(crate) fn init_qp_attr(&self, id: IdNumber, attr: &mut ibv_qp_attr) -> Result<c_int, c_int> {
        self.with(|state_machine| state_machine.init_qp_attr(id, attr))
    }

    /// Sets an option of `RDMA_OPTION_ID` or `RDMA_OPTION_IB`. The value has the memory layout of
    /// the C option.
    pub(crate) fn set_option(
        &self,
        id: IdNumber,
        level: c_int,
        name: c_int,
        value: &[u8],
    ) -> Result<(), c_int> {
        self.with(|state_machine| state_machine.set_option(id, level, name, value))
    }

    /// Moves an id and its waiting events to another channel. Returns how many events were taken,
    /// as for [`destroy`](Self::destroy).
    pub(crate) fn migrate(&self, id: IdNumber, channel: &CmEventChannel) -> Result<u32, c_int> {
        self.with(|state_machine| state_machine.migrate(id, channel.queue))
    }

    /// Raises an event that the library itself produces.
    pub(crate) fn write(
        &self,
        id: IdNumber,
        kind: CmEventKind,
        status: c_int,
        argument: u64,
    ) -> Result<(), c_int> {
        self.with(|state_machine| state_machine.write(id, kind, status, argument))
    }

    /// Joins a multicast group. The event tells how to send to the group.
    ///
    /// To receive, the caller attaches the queue pair to the GID in the event's `ah_attr.grh.dgid`,
    /// with LID 0. `uid` names the membership in events.
    pub(crate) fn join(&self, id: IdNumber, group: SocketAddr, uid: u64) -> Result<JoinNumber, c_int> {
        self.with(|state_machine| state_machine.join(id, group, uid))
    }

    /// Leaves a group, and drops the membership's waiting events. Returns how many of its events
    /// were taken, as for [`destroy`](Self::destroy).
    pub(crate) fn leave(&self, join: JoinNumber) -> Result<u32, c_int> {
        self.with(|state_machine| state_machine.leave(join))
    }

    /// The numbers of ids. A forked child has none.
    pub(crate) fn identifiers(&self) -> Identifiers {
        self.with(|state_machine| Ok(state_machine.identifiers())).unwrap_or_default()
    }

    /// See [`CmStateMachine::counts`].
    #[cfg(all(test, not(loom)))]
    pub(super) fn counts(&self) -> [usize; 6] {
        self.locked(|state_machine| state_machine.counts())
    }
}
