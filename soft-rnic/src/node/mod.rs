//! The node: this process among the processes it communicates with.
//!
//! A node has one control segment, which its peers map, and maps theirs. To send to a queue pair, a
//! process connects to the owner of the number's block, and becomes an *attached peer* in the
//! owner's segment. There it gets a number, under which it leaves hazards and claims. The other
//! direction needs a second connection. When a peer has said goodbye or its process has ended, the
//! owner recovers the claims that the peer held. The owner checks for the process's death when the
//! connection ends.
//!
//! One service thread per process accepts, connects, receives doorbells and keeps time; it sleeps
//! while nothing happens. It checks everything that peers send, and never waits for it. So a peer
//! that is stopped, or sends nonsense, delays no other peer.

mod attached_peer;
mod block_owner;
mod busy_poll;
mod cm_outbox;
mod connect;
mod directory;
mod exports;
mod heap;
mod mailbox;
mod mapped_memory;
mod message;
mod multicast_discovery;
mod names;
mod numbers;
mod peer_channels;
mod peer_ids;
mod peer_process;
mod port_lookup;
mod ports;
mod probe;
mod revocation;
mod service;
#[cfg(all(test, not(loom)))]
mod tests;
mod timers;
mod traffic;
mod transfer_slot;
mod xrcd_presence;

use core::num::NonZero;
use std::collections::HashMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub(crate) use crate::platform::vm::VmError;
pub(crate) use block_owner::{BlockOwner, block_owners};
pub(crate) use directory::Reachability;
pub(crate) use exports::Exports;
pub(crate) use heap::{Heap, HeapRange, OfferPlaces, OfferRange};
pub(crate) use message::{Doorbell, ExportId, PacketReader, PeerRequest, PortGid, REPLY, Reply};
pub(crate) use numbers::{LAST_BLOCK, QpNumber, block_of};
pub(crate) use peer_process::PeerProcess;
pub(crate) use port_lookup::PortOwner;
#[cfg(test)]
pub(crate) use ports::PortGuard;
pub(crate) use probe::random;
pub(crate) use revocation::{Revoked, StillInUse};
pub(crate) use service::is_service_thread;
pub(crate) use traffic::PayloadPath;
pub(crate) use transfer_slot::{TransferSlotGuard, TransferSlots};
pub(crate) use xrcd_presence::XrcdPresence;

use crate::platform::fork::{ForkGeneration, ForkSafeFd};
use crate::platform::identity_page::IdentityPage;
use crate::platform::vm::Vm;
use crate::platform::{user, vm};
use crate::shared::hazard::{HazardPage, HazardSlot, TRANSFER_SLOTS};
use crate::shared::segment::{LAYOUT_VERSION, Segment};
use crate::status::{Peer, Statistics, Traffic};
use cm_outbox::CmOutboxes;
use directory::Directory;
use mailbox::{Mailbox, ServiceCommand};
use message::{MAX_GIDS, ProcessId};
use multicast_discovery::MulticastDiscovery;
use numbers::{Blocks, QpNumbers};
use peer_ids::{PeerIds, PeerLease};
use peer_process::NodeCommon;
use ports::CmPorts;
use revocation::HazardWait;
use timers::{Alarm, RetryTimers};

/// Under Miri and loom the process is alone and has no service thread: [`Node::run_timers`] does
/// its work.
const ALONE: bool = cfg!(any(miri, loom));

/// Bytes of a call cell's header.
pub(crate) const CALL_HEADER: usize = 128;
/// The most payload bytes of one call.
pub(crate) const CALL_PAYLOAD: usize = 64 << 10;
/// Bytes of a call cell, the distance from one transfer slot's call to the next.
pub(crate) const CALL_CELL: usize = CALL_HEADER + CALL_PAYLOAD;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeSettings {
    /// The name of the fabric. Processes of different fabrics do not see each other.
    pub(crate) fabric: String,
    /// How long a revocation waits for a transfer that does not finish.
    pub(crate) patience: Duration,
    /// Whether payload may be copied with `process_vm_readv` and `process_vm_writev`.
    pub(crate) vm: bool,
    /// Whether peers' memory may be mapped.
    pub(crate) direct: bool,
    /// Whether files in `/dev/shm` are exported, and mapped from peers, although they can shrink.
    pub(crate) any_shm: bool,
}

impl Default for NodeSettings {
    fn default() -> Self {
        let patience = Duration::from_secs(2);
        Self { fabric: String::new(), patience, vm: true, direct: true, any_shm: false }
    }
}

/// The facts that peers learn about this process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NodeIdentity {
    pub(crate) gids: Vec<PortGid>,
}

/// Handles the events that the service thread receives. The node calls these functions on that
/// thread, without holding a lock of the node.
///
/// Indices and peer numbers come from peers, so the objects they name may not exist. `peer_id` is a
/// number in this process's segment.
pub(crate) trait NodeHandler: Send + Sync {
    /// A peer found the completion queue armed.
    fn cq_fired(&self, cq: u32);
    /// Calls `give` with the number and the descriptor of the completion queue's channel, if peers
    /// may write to it.
    fn channel_of(&self, cq: u32, give: &mut dyn FnMut(NonZero<u64>, BorrowedFd<'_>));
    /// A peer left notices at the queue pair.
    fn qp_noticed(&self, qp: u32);
    /// A peer claimed a receive and reached the limit.
    fn srq_limit(&self, srq: u32);
    /// Doorbells were lost: look at every object.
    fn check_everything(&self);
    /// The attached peer is dead: recover its claims. Its number is not used again before this
    /// returns.
    fn peer_detached(&self, peer_id: u16);
    /// The peer is dead: fail the outstanding requests to it.
    fn peer_lost(&self, process: &Arc<PeerProcess>);
    /// The attached peer's cell of this transfer slot contains a call.
    fn serve_call(&self, peer_id: u16, transfer_slot: u16);
    /// The time given to [`Node::wake_at`] has come.
    fn timer(&self, qp: u32);
    /// A process of this user asks for the statistics.
    fn statistics(&self) -> Statistics;
    /// A message of the connection manager of this block's owner. The messages of one process come
    /// in order.
    fn cm_message(&self, from: u16, message: &[u8]);
    /// The owner of this block can no longer be reached or heard: it is dead, has closed the
    /// device, or never existed.
    ///
    /// The messages to it that it has not received are lost, and so is its state. A later owner of
    /// the block is another process. No message from the former one follows this call.
    fn cm_gone(&self, block: u16);
    /// The answer to [`Node::find_port`].
    fn cm_port_owner(&self, token: u64, found: PortOwner);
    /// The time given to [`Node::wake_cm_at`] has come.
    fn cm_timer(&self);
}

/// The state that the service thread shares with all other threads.
struct NodeState {
    identity: NodeIdentity,
    process: ProcessId,
    /// The only user whose processes this one communicates with: the effective user when the segment
    /// was made. A process that lowers its rights for a moment shares nothing with others then.
    user: Option<u32>,
    /// The user of this process's sockets, as the kernel lists them.
    socket_user: u32,
    segment: Arc<Segment>,
    identity_page: IdentityPage,
    heap: Heap,
    offers: OfferPlaces,
    blocks: Arc<Blocks>,
    common: Arc<NodeCommon>,
    directory: Directory,
    discovery: MulticastDiscovery,
    own: Arc<PeerProcess>,
    peer_ids: PeerIds,
    exports: Exports,
    timers: RetryTimers,
    cm_outboxes: CmOutboxes,
    ports: CmPorts,
    /// When the connection manager wants to be called.
    alarm: Alarm,
    /// The epoll instance of the service thread.
    epoll: OnceLock<Arc<ForkSafeFd>>,
    handler: Mutex<Option<Weak<dyn NodeHandler>>>,
    /// The traffic to peers that have died.
    former: Mutex<Traffic>,
    /// By peer number, the offset of an attached peer's call cells.
    call_areas: Mutex<Vec<Option<u64>>>,
}

impl NodeState {
    fn handler(&self) -> Option<Arc<dyn NodeHandler>> {
        self.handler.lock().unwrap_or_else(PoisonError::into_inner).as_ref().and_then(Weak::upgrade)
    }

    /// Passes a doorbell to the handler.
    fn answer(&self, peer_id: u16, doorbell: Doorbell) {
        let Some(handler) = self.handler() else { return };
        match doorbell {
            Doorbell::Cq(cq) => handler.cq_fired(cq),
            Doorbell::Qp(qp) => handler.qp_noticed(qp),
            Doorbell::Srq(srq) => handler.srq_limit(srq),
            Doorbell::Call { transfer_slot } if usize::from(transfer_slot) < TRANSFER_SLOTS => {
                handler.serve_call(peer_id, transfer_slot)
            }
            Doorbell::Call { .. } => {}
        }
    }

    fn run_timers(&self) {
        let due = self.timers.due(Instant::now());
        if let Some(handler) = self.handler().filter(|_| !due.is_empty()) {
            due.into_iter().for_each(|queue_pair| handler.timer(queue_pair));
        }
        if self.alarm.take(Instant::now())
            && let Some(handler) = self.handler()
        {
            handler.cm_timer();
        }
    }
}

/// This process's endpoint of all communication with other processes.
pub(crate) struct Node {
    state: Arc<NodeState>,
    own: Arc<PeerProcess>,
    numbers: QpNumbers,
    local_hazards: Box<[HazardSlot]>,
    generation: ForkGeneration,
    thread: Mutex<Option<JoinHandle<()>>>,
    running: OnceLock<()>,
}

impl Node {
    /// Creates a node. Peers cannot find it before it has a queue pair.
    ///
    /// # Errors
    ///
    /// If the system has no memory or file descriptor for its segment.
    pub(crate) fn start(settings: NodeSettings, mut identity: NodeIdentity) -> io::Result<Arc<Self>> {
        let segment = Arc::new(Segment::create()?);
        let identity_page = IdentityPage::create(|| u128::from_ne_bytes(random()) as u64)?;
        segment.owner_header().layout_version.store(LAYOUT_VERSION, crate::sync::Release);
        identity.gids.truncate(MAX_GIDS);
        let mailbox = Arc::new(Mailbox::default());
        let exports = Exports::new(Arc::clone(&mailbox), settings.any_shm);
        let common = Arc::new(NodeCommon {
            settings,
            transfer_slots: TransferSlots::new(),
            mailbox,
            vm_warning_given: AtomicBool::new(false),
            identity_page: identity_page.address(),
            own_vm: OnceLock::new(),
        });
        let blocks = Arc::new(Blocks::default());
        let gids = identity.gids.clone();
        let (hazards, _) = HazardPage::create()?;
        let own_memory = (Arc::clone(&segment), hazards);
        let own = Arc::new(PeerProcess::own(own_memory, Arc::clone(&blocks), gids, Arc::clone(&common)));
        let state = Arc::new(NodeState {
            identity,
            process: random(),
            user: user::own(),
            socket_user: user::effective(),
            heap: Heap::new(Arc::clone(&segment)),
            offers: OfferPlaces::new(Arc::clone(&segment)),
            segment,
            identity_page,
            blocks,
            common,
            directory: Directory::new(),
            discovery: MulticastDiscovery::default(),
            own: Arc::clone(&own),
            peer_ids: PeerIds::new(),
            exports,
            timers: RetryTimers::default(),
            cm_outboxes: CmOutboxes::default(),
            ports: CmPorts::default(),
            alarm: Alarm::default(),
            epoll: OnceLock::new(),
            handler: Mutex::new(None),
            former: Mutex::default(),
            call_areas: Mutex::default(),
        });
        Ok(Arc::new(Self {
            state,
            own,
            numbers: QpNumbers::default(),
            local_hazards: (0..=TRANSFER_SLOTS).map(|_| HazardSlot::default()).collect(),
            generation: ForkGeneration::current(),
            thread: Mutex::new(None),
            running: OnceLock::new(),
        }))
    }

    /// Sets the handler of events. Events before this call, or after the handler was dropped, are
    /// lost.
    pub(crate) fn set_handler(&self, handler: Weak<dyn NodeHandler>) {
        *self.state.handler.lock().unwrap_or_else(PoisonError::into_inner) = Some(handler);
    }

    /// Whether this process is a forked child of the one that started the node. The child must not
    /// access the segment, because it is not mapped there.
    #[inline]
    pub(crate) fn is_forked(&self) -> bool {
        !self.generation.is_current()
    }

    /// The segment of this process.
    #[inline]
    pub(crate) fn segment(&self) -> &Segment {
        &self.state.segment
    }

    pub(crate) fn heap(&self) -> &Heap {
        &self.state.heap
    }

    /// The places for the offers of posted receives.
    pub(crate) fn offers(&self) -> &OfferPlaces {
        &self.state.offers
    }

    pub(crate) fn exports(&self) -> &Exports {
        &self.state.exports
    }

    /// How the system copies within this process; `None` if it does not.
    pub(crate) fn own_vm(&self) -> Option<Vm> {
        self.own.vm()
    }

    /// This process as its own peer: number 0, and its own segment.
    #[cfg(any(test, miri, loom))]
    #[inline]
    pub(crate) fn own_process(&self) -> &Arc<PeerProcess> {
        &self.own
    }

    /// Waits for a transfer slot; `number` may be any value. A thread that holds one must not wait
    /// for another.
    #[inline]
    pub(crate) fn transfer_slot(&self, number: usize) -> TransferSlotGuard<'_> {
        self.state.common.transfer_slots.lock(number)
    }

    /// All transfer slots of this process.
    pub(crate) fn transfer_slots(&self) -> &Arc<TransferSlots> {
        &self.state.common.transfer_slots
    }

    /// The private hazard of a transfer in this process's memory as its source. Peers do not see
    /// it.
    #[inline]
    pub(crate) fn local_hazard(&self, transfer_slot: usize) -> &HazardSlot {
        &self.local_hazards[transfer_slot % TRANSFER_SLOTS]
    }

    /// The private hazard of the service thread, for its accesses on behalf of a peer.
    pub(crate) fn service_hazard(&self) -> &HazardSlot {
        &self.local_hazards[TRANSFER_SLOTS]
    }

    /// Allocates a queue pair number. A number is reused as late as possible.
    ///
    /// # Errors
    ///
    /// - `OutOfMemory` if this process has the most queue pairs that it can have.
    /// - `AddrInUse` if all blocks of the host are in use.
    /// - Another error if the system has no file descriptor or thread.
    pub(crate) fn new_qp_number(&self) -> io::Result<QpNumber> {
        self.ensure_service()?;
        let number = self.numbers.take(|ordinal| self.take_block(ordinal))?;
        if !self.segment().ensure_queue_pair(number.index) {
            self.numbers.free(number);
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        Ok(number)
    }

    /// Frees the number of a destroyed queue pair.
    pub(crate) fn free_qp_number(&self, number: QpNumber) {
        self.numbers.free(number);
    }

    /// The table index of a queue pair of this process.
    #[inline]
    pub(crate) fn own_index(&self, qpn: u32) -> Option<u32> {
        self.state.blocks.index_of(qpn)
    }

    fn take_block(&self, ordinal: u8) -> io::Result<u16> {
        if ALONE {
            self.state.blocks.set(ordinal, 1);
            return Ok(1);
        }
        // Start at a random block, so that the block of a process that has just died is not soon
        // taken by another process.
        let start = u16::from_ne_bytes([self.state.process[0], self.state.process[1]]);
        // Looked for only if the first block is not free.
        let mut used = None;
        for step in 0..LAST_BLOCK {
            let block = (start % LAST_BLOCK + step) % LAST_BLOCK + 1;
            if used.as_ref().is_some_and(|used: &HashMap<u16, _>| used.contains_key(&block)) {
                continue;
            }
            if let Some(socket) = names::claim(&self.state.thing_of(block), self.state.socket_user)? {
                self.state.blocks.set(ordinal, block);
                self.state.common.mailbox.post(ServiceCommand::Listen { socket, ordinal });
                return Ok(block);
            }
            if used.is_none() {
                used = Some(self.state.block_owners()?);
            }
        }
        let message = format!("all {LAST_BLOCK} blocks of queue pair numbers of this user are in use");
        Err(io::Error::new(io::ErrorKind::AddrInUse, message))
    }

    /// Looks up the owner of a queue pair. Never waits: the service thread connects in the
    /// background.
    pub(crate) fn find_process(&self, qpn: u32) -> Reachability {
        if self.own_index(qpn).is_some() {
            return Reachability::Ready(Arc::clone(&self.own));
        }
        if ALONE {
            return self.state.directory.process_of(qpn).map_or(Reachability::Nobody, Reachability::Ready);
        }
        if self.state.common.mailbox.is_lost() {
            return Reachability::Nobody;
        }
        let answer = self.state.directory.look(qpn);
        if let Some(block) = answer.connect {
            self.state.common.mailbox.post(ServiceCommand::Connect { block });
            if let Err(error) = self.ensure_service() {
                log::warn!("the service thread cannot be started: {error}; no peer can be reached");
            }
        }
        match answer.reach {
            Reachability::Ready(process) if process.index_of(qpn).is_none() => Reachability::Nobody,
            reach => reach,
        }
    }

    /// Like [`find_process`](Self::find_process), but waits up to `time` for the result. The
    /// service thread must not call this.
    pub(crate) fn wait_for_process(&self, qpn: u32, time: Duration) -> Reachability {
        self.state.directory.wait(time, || self.find_process(qpn))
    }

    /// Adds a peer process with this segment, which owns this block, has all GIDs of this process,
    /// and never answers. Also returns the other end of its connection.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn add_peer(
        &self,
        block: u16,
        segment: Segment,
        call_area: u64,
    ) -> (Arc<PeerProcess>, std::os::unix::net::UnixStream) {
        let gids = self.state.identity.gids.clone();
        let welcome = message::Welcome {
            process: random(),
            peer_id: 1,
            ordinal: 0,
            call_area,
            probe: 0,
            probe_address: 0,
            identity_page: 0,
            gids,
        };
        let (socket, other) = crate::platform::socket::Socket::pair().expect("two descriptors");
        let common = Arc::clone(&self.state.common);
        // With process number 0 no memory can be copied. The service thread knows nothing of this
        // peer.
        let memory = (segment, HazardPage::create().expect("a page").0);
        let process = Arc::new(PeerProcess::to_peer(socket, 0, memory, welcome, common, u64::MAX));
        process.blocks().set(0, block);
        self.state.directory.found(block, Arc::clone(&process));
        let newcomers = self.segment().shared_header().newcomers.load(crate::sync::Acquire);
        self.state.discovery.add(newcomers, &self.own, &process);
        (process, other)
    }

    /// Treats the peer as dead.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn lose_peer(&self, process: &Arc<PeerProcess>) {
        process.set_dead();
        self.state.directory.forget(process);
        self.state.discovery.forget(process);
    }

    /// Waits until no transfer touches the object, whose generation must have been invalidated.
    ///
    /// # Errors
    ///
    /// If a transfer did not finish in time and its process is not proved dead. Then the object's
    /// memory must not be freed.
    pub(crate) fn wait_until_unused(&self, what: Revoked) -> Result<(), StillInUse> {
        self.wait_until_unused_for(what, self.state.common.settings.patience)
    }

    /// Whether no transfer touches an object whose generation was invalidated. Looks at each hazard
    /// once.
    pub(crate) fn is_unused(&self, what: Revoked) -> bool {
        self.wait_until_unused_for(what, Duration::ZERO).is_ok()
    }

    fn wait_until_unused_for(&self, what: Revoked, patience: Duration) -> Result<(), StillInUse> {
        let NodeState { peer_ids, common, .. } = &*self.state;
        let (local_hazards, own_hazards) = (&self.local_hazards, self.own.hazards());
        let waiting = HazardWait { what, local_hazards, own_hazards, peer_ids, patience };
        waiting.run(|PeerLease { peer_id, serial }| {
            common.mailbox.post(ServiceCommand::PeerDied { peer_id, serial })
        })
    }

    /// A completion channel is destroyed: the peers that have its descriptor close it.
    pub(crate) fn forget_channel(&self, channel: NonZero<u64>) {
        if !self.is_forked() {
            self.state.common.mailbox.post(ServiceCommand::ChannelGone(channel));
        }
    }

    /// Requests a call of the handler's `timer` at this time or soon after.
    pub(crate) fn wake_at(&self, when: Instant, qp: u32) {
        if self.state.timers.add(when, qp) {
            self.state.common.mailbox.wake();
        }
    }

    /// Like [`wake_at`](Self::wake_at), but starts the service thread first. Needed where no queue
    /// pair may exist yet.
    ///
    /// # Errors
    ///
    /// If the service thread cannot be started.
    pub(crate) fn wake_surely_at(&self, when: Instant, qp: u32) -> io::Result<()> {
        self.ensure_service()?;
        self.wake_at(when, qp);
        Ok(())
    }

    /// Collects the peer numbers and offsets of all attached peers' call cells in `found`.
    pub(crate) fn call_areas(&self, found: &mut Vec<(u16, u64)>) {
        let areas = self.state.call_areas.lock().unwrap_or_else(PoisonError::into_inner);
        found.clear();
        let by_peer_id = areas.iter().enumerate();
        found.extend(by_peer_id.filter_map(|(peer_id, area)| Some((peer_id as u16, (*area)?))));
    }

    /// The traffic by destination, this process first, and the sum of the traffic to dead peers.
    pub(crate) fn traffic(&self) -> (Vec<Peer>, Traffic) {
        let processes = core::iter::once(Arc::clone(&self.own)).chain(self.state.directory.processes());
        let peers =
            processes.map(|process| Peer { pid: process.pid(), traffic: process.counters().sum() }).collect();
        (peers, *self.state.former.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The offset of an attached peer's call cells in this segment, if the peer exists.
    pub(crate) fn call_area_of(&self, peer_id: u16) -> Option<u64> {
        let areas = self.state.call_areas.lock().unwrap_or_else(PoisonError::into_inner);
        areas.get(usize::from(peer_id)).copied().flatten()
    }

    /// Replaces the service thread where none exists: handles doorbells and due timers. Does
    /// nothing elsewhere.
    #[cfg(any(test, fuzzing, miri, loom))]
    pub(crate) fn run_timers(&self) {
        if !ALONE {
            return;
        }
        for command in self.state.common.mailbox.take() {
            match command {
                ServiceCommand::Ring(doorbell) => self.state.answer(0, doorbell),
                ServiceCommand::FlushOutbox { block } => self.state.fail_outbox(block),
                _ => {}
            }
        }
        self.state.run_timers();
    }

    fn ensure_service(&self) -> io::Result<()> {
        if self.state.common.mailbox.is_lost() {
            return Err(io::Error::from_raw_os_error(libc::EBADF));
        }
        if ALONE || self.running.get().is_some() {
            return Ok(());
        }
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.is_none() {
            vm::allow_peers();
            if self.state.user.is_none() {
                log::warn!(
                    "this user has no name in its user namespace, so no peer can be trusted or reached"
                );
            }
            *thread = Some(service::spawn(Arc::clone(&self.state))?);
            let _ = self.running.set(());
        }
        Ok(())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let thread = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if self.is_forked() {
            // The thread belongs to the parent.
            core::mem::forget(thread);
            return;
        }
        self.own.set_dead();
        let Some(thread) = thread else { return };
        self.state.common.mailbox.post(ServiceCommand::Stop);
        if self.state.common.mailbox.is_lost() {
            // Its wake-up sockets are closed, so it ends only if it has noticed that itself.
            return;
        }
        // The handler may drop the last reference on the service thread itself. Then the thread
        // ends by itself, and must not be joined.
        if thread.thread().id() != std::thread::current().id() && thread.join().is_err() {
            log::error!("the service thread of the software device panicked");
        }
    }
}

impl core::fmt::Debug for Node {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Node").field("blocks", &self.state.blocks).finish_non_exhaustive()
    }
}

impl NodeState {
    /// A block, as a thing with an owner.
    fn thing_of(&self, block: u16) -> String {
        format!("soft-rnic/{}/{block}", self.common.settings.fabric)
    }
}
