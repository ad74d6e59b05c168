//! Queue pairs and shared receive queues.

mod arrival_ring;
pub(crate) mod attributes;
pub(crate) mod c_object;
mod grh;
pub(crate) mod modify;
pub(crate) mod post;
pub(crate) mod post_ex;
mod qp_windows;
pub(crate) mod receive;
pub(crate) mod receive_queue;
pub(crate) mod send_queue;
pub(crate) mod shared_queue;
pub(crate) mod transfer_slot_mutex;
pub(crate) mod transition;
pub(crate) mod xrc;

pub(crate) use shared_queue::Srq;

use std::io;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use rdma_mummy_sys::types::{
    ibv_event_type, ibv_qp, ibv_qp_cap, ibv_qp_state, ibv_qp_type, ibv_wc_opcode, ibv_wr_opcode,
};
use spin::mutex::{SpinMutex, SpinMutexGuard};

use crate::engine::multicast::GroupMember;
use crate::engine::peer::PeerQp;
use crate::engine::retry::RetryWait;
use crate::engine::rpc::AbandonedRecv;
use crate::faults;
use crate::faults::injected::{HungState, Injected};
use crate::node::{PeerProcess, QpNumber, Revoked};
use crate::objects::acks::Acks;
use crate::objects::completion::Cq;
use crate::objects::context::{Context, CountGuard};
use crate::objects::event::{AsyncEvent, EventElement};
use crate::objects::protection_domain::Pd;
use crate::objects::rnic::Rnic;
use crate::objects::use_ref::UseRef;
use crate::objects::xrc_domain::Xrcd;
use crate::shared::entry::{QpDescriptor, QpEntry, SlotsDescriptor};
use crate::shared::generation::GenerationWriter;
use crate::shared::hazard::Hazard;
use crate::shared::progress::{QpProgress, notice};
use arrival_ring::ArrivalRing;
use attributes::QpAttributes;
use post_ex::{PostingGuard, WrListBuilder};
use qp_windows::QpWindows;
use receive_queue::ReceiveQueue;
use send_queue::SendQueue;
use transfer_slot_mutex::TransferSlotMutex;
use xrc::OpenedHandles;

/// A lock that is held for a few instructions or for one transfer. Waiting threads yield.
pub(crate) type Spin<T> = SpinMutex<T, spin::Yield>;

/// A queue pair (`ibv_qp`).
pub(crate) struct Qp {
    pub(crate) rnic: Arc<Rnic>,
    pub(crate) context: Arc<Context>,
    pub(crate) number: QpNumber,
    pub(crate) qp_type: ibv_qp_type,
    pub(crate) pd: UseRef<Pd>,
    pub(crate) send_cq: UseRef<Cq>,
    pub(crate) recv_cq: UseRef<Cq>,
    /// For XRC targets.
    pub(crate) xrcd: Option<UseRef<Xrcd>>,
    /// Further handles of a target (`ibv_open_qp`).
    opened: Mutex<OpenedHandles>,
    pub(crate) caps: ibv_qp_cap,
    pub(crate) sq_sig_all: bool,
    /// The ECE options negotiated with the other end (`ibv_set_ece`).
    pub(crate) ece: AtomicU32,
    /// `ibv_qp_create_flags`.
    pub(crate) create_flags: u32,
    /// The source number of this queue pair at `recv_cq`.
    source: AtomicU32,
    /// `ibv_qp_state` in the low byte, and above it how often the queue pair was reset (its
    /// incarnation).
    state: AtomicU32,
    /// The attributes that `ibv_modify_qp` has set.
    attributes: Mutex<QpAttributes>,
    /// The descriptor that peers see.
    published: Spin<PublishedQp>,
    /// The list of requests that is being built; its lock is the right to post.
    builder: Spin<WrListBuilder>,
    /// The thread that has a list open; 0 if none has.
    list: AtomicUsize,
    pub(crate) send_queue: SendQueue,
    pub(crate) sending: TransferSlotMutex<Sending>,
    receiving: Receiving,
    /// The incarnation whose flush of receives was announced, counted from 1; 0 if none was.
    flushed: AtomicU32,
    /// Whether the program wants an event when the send queue has drained.
    draining: AtomicBool,
    /// When the service thread must run the pending requests.
    pub(crate) wake: Spin<Option<Instant>>,
    handle: AtomicPtr<ibv_qp>,
    windows: QpWindows,
    acks: Acks,
    counted: CountGuard,
    hung: HungState,
}

/// Where receives come from, and how the next message is found.
struct Receiving {
    from: ReceiveSource,
    /// Set if messages do not fill the receives in order.
    arrivals: Option<ArrivalRing>,
}

enum ReceiveSource {
    Own(Spin<ReceiveQueue>),
    Shared(UseRef<Srq>),
}

impl Receiving {
    fn own(&self) -> Option<&Spin<ReceiveQueue>> {
        match &self.from {
            ReceiveSource::Own(queue) => Some(queue),
            ReceiveSource::Shared(_) => None,
        }
    }

    fn shared(&self) -> Option<&UseRef<Srq>> {
        match &self.from {
            ReceiveSource::Own(_) => None,
            ReceiveSource::Shared(srq) => Some(srq),
        }
    }

    fn queue(&self) -> SpinMutexGuard<'_, ReceiveQueue, spin::Yield> {
        match &self.from {
            ReceiveSource::Own(queue) => queue.lock(),
            ReceiveSource::Shared(srq) => srq.queue(),
        }
    }

    /// Publishes where receives are, and where to announce messages.
    fn show(&self, descriptor: &mut QpDescriptor, slots: SlotsDescriptor) {
        descriptor.slots = slots;
        descriptor.srq = self.shared().map_or(0, |srq| srq.index() + 1);
        if let Some(arrivals) = &self.arrivals {
            arrivals.show(descriptor);
        }
    }
}

#[derive(Debug, Default)]
struct PublishedQp {
    writer: GenerationWriter,
    descriptor: QpDescriptor,
}

/// The state of the sending side, which the transfer slot guards.
#[derive(Debug, Default)]
pub(crate) struct Sending {
    pub(crate) attributes: SendAttributes,
    pub(crate) peer: Option<PeerQp>,
    /// The sequence number of the next packet.
    pub(crate) psn: u32,
    /// What the request at the front waits for.
    pub(crate) wait: Option<RetryWait>,
    /// For a multicast datagram: the members that have not got their copy. `None` before they are
    /// known.
    pub(crate) members: Option<Vec<GroupMember>>,
    /// A receive that its owner must give back before other messages can be sent.
    pub(crate) abandoned: Option<AbandonedRecv>,
    /// Since when the peer's descriptor could not be read.
    pub(crate) closed_since: Option<Instant>,
    /// Since when descriptors change while the request at the front uses them.
    pub(crate) changed_since: Option<Instant>,
    /// How often the receiver of the request at the front was not ready.
    pub(crate) not_ready: u8,
    /// Identifies the request at the front, among all requests of this process.
    pub(crate) ticket: u64,
    /// The fault rules that apply to the request at the front.
    pub(crate) fault: Option<Box<Injected>>,
    /// For XRC: the shared receive queues that it has sent to, by number.
    pub(crate) receivers: Vec<(u32, PeerQp)>,
    /// For XRC: the process that owes an answer to the request at the front, if not the peer's.
    pub(crate) atomic_target: Option<Arc<PeerProcess>>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct SendAttributes {
    pub(crate) dest_qpn: u32,
    pub(crate) remote_gid: [u64; 2],
    pub(crate) local_gid: [u64; 2],
    /// The LID of the peer's port; `None` on Ethernet.
    pub(crate) dest_lid: Option<u16>,
    /// All ports have the same table of P_Keys.
    pub(crate) pkey_index: u8,
    /// In bytes.
    pub(crate) path_mtu: u32,
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) max_rd_atomic: u8,
    pub(crate) qkey: u32,
}

impl Sending {
    /// The state of a new or reset queue pair. The upper half of its ticket is new for each.
    fn new() -> Self {
        static LIVES: AtomicU64 = AtomicU64::new(1);
        Self { ticket: LIVES.fetch_add(1, Ordering::Relaxed) << 32, ..Self::default() }
    }

    /// Cleans up after the request at the front has ended, successfully or not.
    #[inline]
    pub(crate) fn end_request(&mut self, transfer_slot: usize) {
        if self.wait.take().is_some() {
            (self.closed_since, self.changed_since, self.not_ready) = (None, None, 0);
            self.want_no_answer(transfer_slot);
        }
        self.ticket += 1;
    }

    /// Drops the interest in an answer that the owner of a peer's memory still owes.
    #[cold]
    fn want_no_answer(&mut self, transfer_slot: usize) {
        let processes = self.peer.iter().map(|peer| &peer.process).chain(&self.atomic_target);
        processes
            .filter(|process| process.pending_atomic(transfer_slot) == Some(self.ticket))
            .for_each(|process| process.set_pending_atomic(transfer_slot, None));
        self.atomic_target = None;
    }

    /// Advances the sequence number by the packets of a message of this length.
    #[inline]
    pub(crate) fn advance_psn(&mut self, length: u64) {
        let mtu = self.attributes.path_mtu.max(256);
        let packets = if length <= u64::from(mtu) { 1 } else { length.div_ceil(u64::from(mtu)) as u32 };
        self.psn = self.psn.wrapping_add(packets) & 0xff_ffff;
    }
}

/// The parts that a queue pair is created from. The capacities are the granted ones.
pub(crate) struct QpInit {
    pub(crate) context: Arc<Context>,
    pub(crate) pd: Arc<Pd>,
    pub(crate) send_cq: Arc<Cq>,
    pub(crate) recv_cq: Arc<Cq>,
    pub(crate) srq: Option<Arc<Srq>>,
    pub(crate) xrcd: Option<Arc<Xrcd>>,
    pub(crate) qp_type: ibv_qp_type,
    pub(crate) caps: ibv_qp_cap,
    pub(crate) sq_sig_all: bool,
    pub(crate) create_flags: u32,
}

impl Qp {
    /// Creates a queue pair and enters it into the tables.
    ///
    /// # Errors
    ///
    /// No memory or no free number is left.
    pub(crate) fn create(rnic: &Arc<Rnic>, plan: QpInit) -> io::Result<Arc<Self>> {
        let node = rnic.node();
        let counted = plan.context.count(|counts| &counts.qp, rnic.limits().max_qp);
        let counted = counted.map_err(io::Error::from_raw_os_error)?;
        let receiving = match &plan.srq {
            None => {
                let (max_wr, max_sge) = (plan.caps.max_recv_wr, plan.caps.max_recv_sge);
                let queue = ReceiveQueue::new(Arc::clone(node), max_wr, max_sge)?;
                let many_send = plan.qp_type == ibv_qp_type::IBV_QPT_UD;
                let arrivals = many_send.then(|| ArrivalRing::new(node, max_wr)).transpose()?;
                Receiving { from: ReceiveSource::Own(Spin::new(queue)), arrivals }
            }
            Some(srq) => {
                let arrivals = Some(ArrivalRing::new(node, srq.max_wr())?);
                Receiving { from: ReceiveSource::Shared(UseRef::new(srq)), arrivals }
            }
        };
        let number = node.new_qp_number()?;
        let transfer_slot = number.index as usize;
        let made = Arc::new(Self {
            rnic: Arc::clone(rnic),
            context: plan.context,
            number,
            qp_type: plan.qp_type,
            pd: UseRef::new(&plan.pd),
            send_cq: UseRef::new(&plan.send_cq),
            recv_cq: UseRef::new(&plan.recv_cq),
            xrcd: plan.xrcd.as_ref().map(UseRef::new),
            opened: Mutex::default(),
            caps: plan.caps,
            sq_sig_all: plan.sq_sig_all,
            ece: AtomicU32::new(crate::shared::segment::ECE_OPTIONS),
            create_flags: plan.create_flags,
            source: AtomicU32::new(0),
            state: AtomicU32::new(ibv_qp_state::IBV_QPS_RESET.0),
            attributes: Mutex::default(),
            published: Spin::default(),
            builder: Spin::new(WrListBuilder::default()),
            list: AtomicUsize::new(0),
            send_queue: SendQueue::new(
                plan.caps.max_send_wr,
                plan.caps.max_send_sge,
                plan.caps.max_inline_data,
                plan.qp_type == ibv_qp_type::IBV_QPT_UD,
            ),
            sending: TransferSlotMutex::new(Arc::clone(node.transfer_slots()), transfer_slot, Sending::new()),
            receiving,
            flushed: AtomicU32::new(0),
            draining: AtomicBool::new(false),
            wake: Spin::new(None),
            handle: AtomicPtr::default(),
            windows: QpWindows::default(),
            acks: Acks::default(),
            counted,
            hung: HungState::default(),
        });
        plan.send_cq.expect(made.caps.max_send_wr);
        plan.recv_cq.expect(made.max_receives());
        made.source.store(plan.recv_cq.attach(&made), Ordering::Relaxed);
        let progress = made.progress_words();
        progress.set_cursor(0);
        progress.take_notices();
        rnic.queue_pairs().put(number.index, Arc::clone(&made));
        Ok(made)
    }

    /// Removes the queue pair from all tables.
    ///
    /// # Errors
    ///
    /// `EBUSY` if it is in a multicast group, or if a peer still touches its memory; it can be
    /// tried again. `EIO` in a forked child.
    pub(crate) fn destroy(self: &Arc<Self>) -> Result<(), i32> {
        self.context.check_process()?;
        if self.rnic.groups().has(self.number.index) {
            return Err(libc::EBUSY);
        }
        self.withdraw()?;
        let posting = self.stop_posting()?;
        self.begin_incarnation();
        self.forget_requests(posting);
        self.recv_cq.detach(self.source());
        // Also frees the slots that they occupy in a shared receive queue.
        self.forget_receives();
        self.send_cq.no_progress(self);
        self.send_cq.expect_no_more(self.caps.max_send_wr);
        self.recv_cq.expect_no_more(self.max_receives());
        for cq in [&self.send_cq, &self.recv_cq] {
            cq.purge(self.number.qpn);
        }
        self.lose_windows();
        self.rnic.queue_pairs().take(self.number.index);
        self.release();
        self.counted.count_out();
        Ok(())
    }

    /// The most receives that can be finished and not polled.
    fn max_receives(&self) -> u32 {
        self.receiving.shared().map_or(self.caps.max_recv_wr, |srq| srq.max_wr())
    }

    /// Releases the objects that it uses, so that they can be destroyed while a service thread
    /// still has a reference to it.
    fn release(&self) {
        self.pd.release();
        self.send_cq.release();
        self.recv_cq.release();
        self.receiving.shared().into_iter().for_each(UseRef::release);
        self.xrcd.iter().for_each(UseRef::release);
    }

    pub(crate) fn entry(&self) -> &QpEntry {
        self.rnic.node().segment().queue_pair(self.number.index).expect("every number has an entry")
    }

    /// The words that peers change.
    pub(crate) fn progress_words(&self) -> &QpProgress {
        self.rnic.node().segment().progress(self.number.index).expect("every number has an entry")
    }

    #[inline]
    pub(crate) fn state(&self) -> ibv_qp_state {
        ibv_qp_state(self.state.load(Ordering::Acquire) & STATE)
    }

    /// Enters RESET with a new incarnation. A thread that still acts on the end of the old one does
    /// not end this one.
    fn begin_incarnation(&self) {
        let life = (self.state.load(Ordering::Acquire) & !STATE).wrapping_add(STATE + 1);
        self.hung.clear();
        self.state.store(life | ibv_qp_state::IBV_QPS_RESET.0, Ordering::Release);
    }

    /// Changes the state if `is` accepts the current one. The incarnation stays.
    fn change_state(&self, to: ibv_qp_state, is: impl Fn(ibv_qp_state) -> bool) -> bool {
        let change = |word: u32| is(ibv_qp_state(word & STATE)).then_some(word & !STATE | to.0);
        self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, change).is_ok()
    }

    fn source(&self) -> u32 {
        self.source.load(Ordering::Relaxed)
    }

    /// The program's pointer to it.
    pub(crate) fn handle(&self) -> *mut ibv_qp {
        self.handle.load(Ordering::Relaxed)
    }

    pub(crate) fn set_handle(&self, handle: *mut ibv_qp) {
        self.handle.store(handle, Ordering::Relaxed);
    }

    /// The acknowledgements of its asynchronous events.
    pub(crate) fn acks(&self) -> &Acks {
        &self.acks
    }

    pub(crate) fn raise(self: &Arc<Self>, event_type: ibv_event_type) {
        self.context.raise(AsyncEvent { kind: event_type, element: EventElement::Qp(Arc::clone(self)) });
        if self.xrcd.is_some() {
            self.raise_elsewhere(event_type);
        }
    }

    /// Whether its messages are acknowledged.
    pub(crate) fn is_reliable(&self) -> bool {
        use ibv_qp_type as T;
        matches!(self.qp_type, T::IBV_QPT_RC | T::IBV_QPT_XRC_SEND | T::IBV_QPT_XRC_RECV)
    }

    /// The port's MTU in bytes, which limits a datagram.
    pub(crate) fn port_mtu(&self) -> u32 {
        4096
    }

    /// Withdraws the descriptor, and waits until no peer uses the queue pair.
    fn withdraw(&self) -> Result<(), i32> {
        self.entry().withdraw(&mut self.published.lock().writer);
        self.rnic.node().wait_until_unused(Revoked::QueuePair(self.number.index)).map_err(|_| libc::EBUSY)
    }

    /// Cuts off a queue pair whose context was closed without destroying it: peers do not reach it
    /// any more.
    pub(crate) fn abandon(&self) {
        self.change_state(ibv_qp_state::IBV_QPS_ERR, |_| true);
        self.rnic.groups().forget(self.number.index);
        self.entry().withdraw(&mut self.published.lock().writer);
    }

    /// The descriptor that peers see, from private memory.
    pub(crate) fn descriptor(&self) -> QpDescriptor {
        self.published.lock().descriptor
    }

    /// Publishes a changed descriptor together with the state.
    fn publish(&self, change: impl FnOnce(&mut QpDescriptor)) {
        let mut published = self.published.lock();
        let PublishedQp { writer, descriptor } = &mut *published;
        change(descriptor);
        self.entry().publish(writer, self.state().0 as u8, descriptor);
    }

    /// The number of its port.
    pub(crate) fn port(&self) -> u8 {
        self.published.lock().descriptor.port
    }

    /// Publishes that a port is up or down, if the queue pair uses that port.
    pub(crate) fn show_link(&self, port: u8, up: bool) {
        let concerned = self.port() == port;
        let hidden = [ibv_qp_state::IBV_QPS_RESET, ibv_qp_state::IBV_QPS_INIT].contains(&self.state());
        if concerned && !hidden {
            self.publish(|descriptor| descriptor.link_up = up);
        }
    }

    /// Cuts off a queue pair whose device is gone: peers do not reach it, and it neither executes
    /// nor completes anything.
    pub(crate) fn unplug(&self) {
        self.state.store(ibv_qp_state::IBV_QPS_RESET.0, Ordering::Release);
        self.entry().withdraw(&mut self.published.lock().writer);
        for cq in [&self.send_cq, &self.recv_cq] {
            cq.purge(self.number.qpn);
        }
    }

    /// Raises the event that its shared receive queue runs low.
    pub(crate) fn raise_srq_limit(&self) {
        if let Some(srq) = self.receiving.shared() {
            UseRef::get(srq).raise_limit();
        }
    }

    /// Enters the error state if the current state allows it. [`fail`](Self::fail) does the rest.
    pub(crate) fn set_failed(&self) {
        self.set_state_failed(ibv_qp_state::IBV_QPS_ERR);
    }

    /// Handles a failed request. A reliable connection enters the error state; of another queue
    /// pair only the send queue fails.
    pub(crate) fn set_send_failed(&self) {
        self.set_state_failed(if self.is_reliable() {
            ibv_qp_state::IBV_QPS_ERR
        } else {
            ibv_qp_state::IBV_QPS_SQE
        });
    }

    fn set_state_failed(&self, to: ibv_qp_state) {
        let ended = [ibv_qp_state::IBV_QPS_RESET, ibv_qp_state::IBV_QPS_ERR];
        if self.change_state(to, |state| !ended.contains(&state)) {
            self.publish(|_| {});
        }
    }

    /// Enters the error state and flushes everything. The caller holds neither a transfer slot nor
    /// a receive queue's lock.
    pub(crate) fn fail(self: &Arc<Self>) {
        self.set_failed();
        let word = self.state.load(Ordering::Acquire);
        let life = (word >> STATE.count_ones()) + 1;
        let failed = word & STATE == ibv_qp_state::IBV_QPS_ERR.0;
        if failed && self.is_silent() {
            return;
        }
        if failed && self.flushed.swap(life, Ordering::AcqRel) != life {
            self.flush_receives();
            if self.receiving.shared().is_some() {
                self.raise(ibv_event_type::IBV_EVENT_QP_LAST_WQE_REACHED);
            }
        }
        self.run(u32::MAX);
        if failed && faults::active() {
            // A flushed request returns what it has reserved.
            self.sending.lock().fault = None;
        }
    }

    /// Marks the queue pair as one whose first request hangs. `silent`: in the error state it
    /// flushes nothing.
    pub(crate) fn set_hung(&self, generation: u64, silent: bool) {
        self.hung.set(generation, silent);
    }

    /// Whether it flushes nothing in the error state, because a rule plays a dead device.
    #[inline]
    pub(crate) fn is_silent(&self) -> bool {
        faults::active() && self.hung.is_silent()
    }

    /// Lets a request go on that former rules have made hang; in the error state, flushes it.
    pub(crate) fn resume_hung(self: &Arc<Self>) {
        if self.hung.clear() {
            match self.state() {
                ibv_qp_state::IBV_QPS_ERR => self.fail(),
                _ => self.schedule_progress(),
            }
        }
    }

    /// Acts on the notices that peers have left.
    pub(crate) fn act_on_notices(self: &Arc<Self>) {
        let notices = self.progress_words().take_notices();
        if self.receives_for_others() {
            // The error concerns the targets by which messages arrived, and they get notices
            // themselves.
            return;
        }
        if notices & notice::ESTABLISHED != 0 && self.state() == ibv_qp_state::IBV_QPS_RTR {
            self.raise(ibv_event_type::IBV_EVENT_COMM_EST);
        }
        if notices & notice::ACCESS_ERROR != 0 {
            self.raise(ibv_event_type::IBV_EVENT_QP_ACCESS_ERR);
        }
        if notices & notice::REQUEST_ERROR != 0 {
            self.raise(ibv_event_type::IBV_EVENT_QP_REQ_ERR);
        }
        if notices & !notice::ESTABLISHED != 0 {
            self.fail();
        }
    }

    /// Executes pending requests, as part of a poll.
    pub(crate) fn progress(self: &Arc<Self>) {
        self.run(PROGRESS);
        self.leave_if_done();
    }

    /// Ends the progress of an empty send queue, so that polls skip it.
    pub(crate) fn leave_if_done(self: &Arc<Self>) {
        if self.send_queue.is_empty() {
            self.send_cq.no_progress(self);
            // A request may have been posted in between.
            if !self.send_queue.is_empty() {
                self.schedule_progress();
            }
        }
    }

    /// Whether an event must report now that the send queue has drained. Returns true once.
    pub(crate) fn is_draining(&self) -> bool {
        self.state() == ibv_qp_state::IBV_QPS_SQD && self.draining.swap(false, Ordering::AcqRel)
    }

    /// Discards everything that was posted to the send queue.
    fn forget_requests(&self, _posting: PostingGuard<'_>) {
        let mut sending = self.sending.lock();
        // SAFETY: posters hold the builder's lock (`_posting`), and executors the transfer slot's
        // (`sending`).
        unsafe { self.send_queue.clear() };
        sending.want_no_answer(self.number.index as usize);
        if let Some(peer) = sending.peer.take() {
            // A later connection from here must continue at this number if the peer's end stays as
            // it is. The peer waits for the hazard before it resets.
            let hazard = peer.process.hazard_slot(sending.transfer_slot());
            hazard.publish(Hazard::new(peer.index, Hazard::NO_REGION));
            if peer.process.alive() && peer.entry().is_current(peer.snapshot) {
                peer.progress_words().set_expected_psn(sending.psn);
            }
            hazard.clear();
        }
        let (attributes, abandoned) = (sending.attributes.clone(), sending.abandoned.take());
        *sending = Sending { attributes, abandoned, ..Sending::new() };
    }
}

impl Drop for Qp {
    /// Frees the number only now, because every holder of a reference uses the entry of that
    /// number.
    fn drop(&mut self) {
        self.rnic.node().free_qp_number(self.number);
    }
}

/// The bits of the state word that are the state.
const STATE: u32 = 0xff;

/// The most requests that a poll executes.
pub(crate) const PROGRESS: u32 = 16;

/// The completion opcode of a request.
pub(crate) fn wc_opcode(opcode: ibv_wr_opcode) -> ibv_wc_opcode {
    match opcode {
        ibv_wr_opcode::IBV_WR_RDMA_WRITE | ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM => {
            ibv_wc_opcode::IBV_WC_RDMA_WRITE
        }
        ibv_wr_opcode::IBV_WR_RDMA_READ => ibv_wc_opcode::IBV_WC_RDMA_READ,
        ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP => ibv_wc_opcode::IBV_WC_COMP_SWAP,
        ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD => ibv_wc_opcode::IBV_WC_FETCH_ADD,
        ibv_wr_opcode::IBV_WR_BIND_MW => ibv_wc_opcode::IBV_WC_BIND_MW,
        ibv_wr_opcode::IBV_WR_LOCAL_INV => ibv_wc_opcode::IBV_WC_LOCAL_INV,
        ibv_wr_opcode::IBV_WR_ATOMIC_WRITE => ibv_wc_opcode::IBV_WC_ATOMIC_WRITE,
        ibv_wr_opcode::IBV_WR_FLUSH => ibv_wc_opcode::IBV_WC_FLUSH,
        _ => ibv_wc_opcode::IBV_WC_SEND,
    }
}
