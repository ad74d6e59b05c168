//! A queue pair together with the blocks posted to it, and its draining.

use std::collections::VecDeque;
use std::io;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::{Registry, Token};
use sideway::ibverbs::completion::{GenericCompletionQueue, WorkCompletionStatus};
use sideway::ibverbs::queue_pair::{
    CreateQueuePairError, GenericQueuePair, PostRecvError, PostRecvGuard, QueuePair, QueuePairAttribute,
    QueuePairBuilder, QueuePairState, ScatterGatherEntry, SendOperationFlags,
};
use sideway::ibverbs::srq::SharedReceiveQueue;

use super::cq_dispatcher::{CompletedRequest, CqDispatcher, CqSlot, WorkCompletion, WorkerCq};
use super::draining::{Draining, drain};
use super::path::QpParameters;
use super::request::lkey;
use super::resources::{locked_memory, pool_exhausted};
use super::shared_recv_queue::SharedRecvQueue;
use super::wr_id::{self, WrId};
use super::{DeviceBlock, RdmaDevice};
use crate::protocol::{BlockPiece, Blocks, CompletedTransmit, GATHER_MAX, PieceOwner, PostedSends, Purpose};
use crate::wire::{Cause, Unavailable};

/// The size in bytes of each buffer in [`HeaderBuffers`].
pub(super) const HEAD: usize = 64;
/// Send requests in addition to those that use the peer's receives: control frames, and READs.
const SENDS_BESIDE: u32 = 2;
/// The minimum number of scatter/gather entries: a header and its data.
const ENTRIES_MIN: u32 = 2;
/// How long a stopped queue pair may take to complete its outstanding requests.
pub(super) const DRAIN: Duration = Duration::from_millis(500);

/// A queue pair, with its outstanding requests. It must not be dropped before the device has
/// returned all of them; [`QueuePairOwner`] ensures that.
pub(super) struct RcQueuePair<B: DeviceBlock> {
    pub(super) qp: GenericQueuePair,
    /// The generation in each `wr_id` of this queue pair.
    pub(super) generation: u32,
    pub(super) receives: PostedReceives<B>,
    /// Sends that have not completed. It holds at most as many as the send queue has room for.
    pub(super) sends: PostedSends<B>,
    /// The number of sends posted so far; `completed` is the number of those that were taken out of
    /// `sends`.
    pub(super) posted: u64,
    pub(super) completed: u64,
    /// The number of outstanding sends of the handshake.
    pub(super) probes: usize,
    /// The blocks of outstanding handshake messages. They are freed when `probes` reaches 0.
    pub(super) handshake_messages: Vec<B>,
    pub(super) heads: HeaderBuffers<B>,
    /// The receive queue is shared, and this queue pair may have taken receives from it.
    pub(super) shares: bool,
    /// The device reported that the queue pair takes no more shared receives: each one it took has
    /// completed.
    last_wqe_reached: bool,
    /// The queue pair was moved to the error state, or should have been.
    pub(super) stopped: bool,
    /// That has failed: the device may still answer the peer's READs.
    pub(super) may_answer: bool,
    pub(super) device: Arc<RdmaDevice>,
    /// The device and the port, with the reason for their choice, in words.
    pub(super) origin: String,
}

impl<B: DeviceBlock> RcQueuePair<B> {
    /// Creates the queue pair in the RESET state.
    pub(super) fn new(
        device: &Arc<RdmaDevice>,
        origin: &str,
        parameters: &QpParameters,
        cq: &GenericCompletionQueue,
        shared_recv_queue: Option<&SharedRecvQueue<B>>,
        generation: u32,
    ) -> Result<Self, Unavailable> {
        let (depth, receives) = depths(parameters);
        let srq = shared_recv_queue.map(SharedRecvQueue::srq);
        let qp = create_queue_pair(device, cq, srq, depth, receives, parameters.inline)
            .map_err(|error| device.lacks_queue_pair(&error))?;
        let inline = (qp.control().capability().max_inline_data as usize).min(parameters.inline as usize);
        Ok(Self {
            qp,
            generation,
            receives: PostedReceives::new(if srq.is_none() { receives as usize } else { 0 }),
            sends: PostedSends::new(depth as usize),
            posted: 0,
            completed: 0,
            probes: 0,
            handshake_messages: Vec::new(),
            heads: HeaderBuffers { block: None, places: depth as usize, inline, device: 0 },
            shares: false,
            last_wqe_reached: false,
            stopped: false,
            may_answer: false,
            device: Arc::clone(device),
            origin: origin.to_owned(),
        })
    }

    /// Sets the index of its device among those of the connection. Nothing is posted yet.
    pub(super) fn set_device(&mut self, device: usize) {
        (self.receives.device, self.heads.device) = (device, device);
    }

    /// The maximum number of completions of one queue pair at one time, without those of shared
    /// receives (`shares`).
    pub(super) fn completions(parameters: &QpParameters, shares: bool) -> u32 {
        let (depth, receives) = depths(parameters);
        if shares { depth } else { depth + receives }
    }

    /// Checks whether the device has reported that the queue pair takes no more shared receives.
    pub(super) fn check_last_wqe(&mut self) {
        if self.shares && !self.last_wqe_reached {
            self.last_wqe_reached = self.device.take_last_wqe_reached(self.qp.qp_number());
        }
    }

    /// Whether the queue pair can be destroyed, because the device holds none of its requests.
    /// Before the last poll, call [`check_last_wqe`](Self::check_last_wqe): that poll then finds
    /// every shared receive that the queue pair took.
    pub(super) fn is_free(&mut self) -> bool {
        self.finish(drop) && (self.last_wqe_reached || !self.shares)
    }

    /// Gives up the requests that have not completed in time.
    pub(super) fn give_up(&mut self) {
        // The report about shared receives may never arrive. By now, every shared receive that this
        // queue pair took has completed.
        if !self.finish(drop) {
            self.forget(|_| None, drop);
        }
    }

    /// Moves the queue pair to the error state. Outstanding requests complete as flushed, and the
    /// peer's requests are not answered any more. If the device refuses, `may_answer` is set.
    pub(super) fn stop(&mut self) {
        // A queue pair that was not connected has no requests, and cannot be moved there.
        let is_unused = self.posted == 0 && self.probes == 0 && self.receives.is_empty() && !self.shares;
        if std::mem::replace(&mut self.stopped, true) || is_unused {
            return;
        }
        let stopped = self.qp.modify(QueuePairAttribute::new().setup_state(QueuePairState::Error));
        if let Err(error) = stopped {
            self.may_answer = true;
            tracing::warn!(qp = self.qp.qp_number(), %error, "a queue pair cannot be stopped");
        }
    }

    /// Returns the sends up to the one with this count one by one, then `None`. A completion also
    /// completes all earlier sends. For a count that was not posted it returns `None` at once.
    pub(super) fn sent(&mut self, count: u32) -> Option<CompletedTransmit<B>> {
        let done = self.sends.complete(wr_id::extend(self.completed, count))?;
        self.completed += 1;
        Some(done)
    }

    /// Whether the completion of the send with this count has overtaken the oldest send, a READ.
    pub(super) fn passes_over_a_read(&self, count: u32) -> bool {
        self.sends.passes_over_a_read(wr_id::extend(self.completed, count))
    }

    /// Whether the send with this count is outstanding.
    pub(super) fn has_sent(&self, count: u32) -> bool {
        let id = wr_id::extend(self.completed, count);
        self.sends.has(id) && id < self.posted
    }

    /// Counts a completed send of the handshake.
    fn acknowledged(&mut self) {
        self.probes = self.probes.saturating_sub(1);
        if self.probes == 0 {
            self.handshake_messages.clear();
        }
    }

    /// Handles a completion that arrived before the connection's first call. It takes the block out
    /// of the records at once, whether or not the handshake succeeds.
    pub(super) fn settle(&mut self, completed: WorkCompletion<B>) -> WorkCompletion<B> {
        let request = match completed.request {
            CompletedRequest::Own(WrId::Receive(count)) => {
                CompletedRequest::Received(count, self.receives.complete(count))
            }
            CompletedRequest::Own(WrId::Probe) => {
                self.acknowledged();
                completed.request
            }
            request => request,
        };
        WorkCompletion { request, ..completed }
    }

    /// Handles a completion after [`stop`](Self::stop). Sends that the device is done with are
    /// passed to `each`.
    pub(super) fn complete_flushed(
        &mut self,
        completed: WorkCompletion<B>,
        mut each: impl FnMut(CompletedTransmit<B>),
    ) {
        let flushed = completed.status != WorkCompletionStatus::Success;
        match completed.request {
            CompletedRequest::Received(..) | CompletedRequest::Overdrawn => (),
            CompletedRequest::Own(WrId::Receive(count)) => drop(self.receives.complete(count)),
            CompletedRequest::Own(WrId::Probe) => self.acknowledged(),
            CompletedRequest::Own(WrId::Send(count)) => {
                while let Some(done) = self.sent(count) {
                    // READs have separate completions, so a flushed completion of a READ belongs to
                    // this one, which has brought nothing.
                    if !(flushed && matches!(done, CompletedTransmit::Read { .. })) {
                        each(done);
                    }
                }
            }
        }
    }

    /// Whether the device holds no request of this queue pair, apart from shared receives. If so,
    /// sends that were never posted are passed to `each`.
    pub(super) fn finish(&mut self, mut each: impl FnMut(CompletedTransmit<B>)) -> bool {
        let all = self.receives.is_empty() && self.completed >= self.posted && self.probes == 0;
        while all && let Some(done) = self.sends.drain() {
            if !matches!(done, CompletedTransmit::Read { .. }) {
                each(done);
            }
        }
        all
    }

    /// Gives up the requests that have not completed. The device may still access their blocks, so
    /// the blocks are leaked and their memory is never used again. A lender gets a copy of the lent
    /// block in its place.
    pub(super) fn forget(
        &mut self,
        mut copy: impl FnMut(&B) -> Option<B>,
        mut each: impl FnMut(CompletedTransmit<B>),
    ) {
        let (receives, sends) = (self.receives.posted.len(), self.posted - self.completed);
        self.receives.posted.drain(..).for_each(std::mem::forget);
        while let Some(mut done) = self.sends.drain() {
            let rescued = match &mut done {
                CompletedTransmit::Sent(Some(pieces)) => {
                    pieces.iter_mut().all(|piece| replace_with_copy(piece, &mut copy))
                }
                // Other requests and the connection may share this block. All of them learn that it
                // is lost, and the last one returns the copy.
                CompletedTransmit::Part(share) => share.lose(&mut copy),
                _ => false,
            };
            if rescued {
                each(done);
                continue;
            }
            let is_frame = matches!(done, CompletedTransmit::Sent(_) | CompletedTransmit::Part(_));
            std::mem::forget(done);
            if is_frame {
                each(CompletedTransmit::Sent(None));
            }
        }
        self.handshake_messages.drain(..).for_each(std::mem::forget);
        std::mem::forget(self.heads.block.take());
        (self.posted, self.completed, self.probes) = (0, 0, 0);
        let qp = self.qp.qp_number();
        tracing::error!(qp, receives, sends, "work requests never completed: their memory is lost");
    }
}

/// Replaces a lent block by a copy, because the device never returns the original, which is leaked.
/// Returns whether that was possible.
fn replace_with_copy<B>(piece: &mut BlockPiece<B>, copy: impl FnOnce(&B) -> Option<B>) -> bool {
    let fresh = if matches!(piece.owner, PieceOwner::Program(_)) { copy(&piece.block) } else { None };
    fresh.map(|fresh| std::mem::forget(std::mem::replace(&mut piece.block, fresh))).is_some()
}

/// A queue pair in use, with the completion queue that it uses. Dropping it first takes all
/// requests back from the device; in a worker the shared completion queue does so later.
pub(super) struct QueuePairOwner<B: DeviceBlock> {
    /// `None` only after the drop has taken it.
    pair: Option<Box<RcQueuePair<B>>>,
    target: CompletionTarget<B>,
    /// Set during the handshake, while the private completion channel is registered for events.
    watched: bool,
}

/// The completion queue that a queue pair uses.
pub(super) enum CompletionTarget<B: DeviceBlock> {
    /// A private one.
    Own(Box<CqDispatcher<B>>),
    /// The worker's shared one; the worker passes the completions on.
    WorkerCq(WorkerCq<B>),
}

impl<B: DeviceBlock> QueuePairOwner<B> {
    /// Creates the queue pair in the RESET state. It uses the worker's completion queue if one is
    /// given and has room, else a private one.
    pub(super) fn new(
        device: &Arc<RdmaDevice>,
        origin: &str,
        parameters: &QpParameters,
        slot: Option<&CqSlot<B>>,
    ) -> Result<Self, Unavailable> {
        let (depth, receives) = depths(parameters);
        fits(device, depth, receives)?;
        if let Some(CqSlot { worker_cq, index }) = slot
            && let Some(pair) = worker_cq.create_pair(device, origin, parameters, *index)?
        {
            return Ok(Self {
                pair: Some(pair),
                target: CompletionTarget::WorkerCq(worker_cq.clone()),
                watched: false,
            });
        }
        let dispatcher = CqDispatcher::of_one(device, parameters)?;
        let pair =
            RcQueuePair::new(device, origin, parameters, dispatcher.cq(), dispatcher.shared_recv_queue(), 0)?;
        Ok(Self {
            pair: Some(Box::new(pair)),
            target: CompletionTarget::Own(Box::new(dispatcher)),
            watched: false,
        })
    }

    /// Registers the private completion channel under `token` and arms the completion queue.
    /// Returns whether the queue was unarmed before: if so, poll again, because a completion may
    /// have arrived just before. Does nothing if a worker polls.
    pub(super) fn watch(&mut self, registry: &Registry, token: Token) -> io::Result<bool> {
        let CompletionTarget::Own(dispatcher) = &mut self.target else { return Ok(false) };
        if !self.watched {
            dispatcher.register(registry, token)?;
            self.watched = true;
        }
        dispatcher.on_event();
        dispatcher.take_events()?;
        dispatcher.arm()
    }

    /// Undoes [`watch`](Self::watch).
    pub(super) fn unwatch(&mut self, registry: &Registry) -> io::Result<()> {
        match &mut self.target {
            CompletionTarget::Own(dispatcher) if std::mem::replace(&mut self.watched, false) => {
                // An event that nobody has read would end the first sleep of a call.
                dispatcher.on_event();
                dispatcher.deregister(registry)
            }
            _ => Ok(()),
        }
    }

    /// The queue pair and its completion queue, for borrowing both at once.
    pub(super) fn parts(&mut self) -> (&mut RcQueuePair<B>, &mut CompletionTarget<B>) {
        (self.pair.as_mut().expect(OPEN), &mut self.target)
    }

    /// Reserves `first` receives if the receive queue is shared. If they do not fit, fails with the
    /// size of the shared queue.
    pub(super) fn reserve_receives(&mut self, first: u32) -> Result<(), u32> {
        let number = self.qp.qp_number();
        self.shares = self.receives.room == 0;
        match &mut self.target {
            CompletionTarget::Own(dispatcher) => dispatcher.reserve_receives(number, first),
            CompletionTarget::WorkerCq(worker_cq) => worker_cq.reserve_receives(number, first),
        }
    }

    /// The number of receives posted for, or granted to, this queue pair.
    pub(super) fn receives_held(&mut self) -> usize {
        if !self.shares {
            return self.receives.len();
        }
        let number = self.qp.qp_number();
        match &mut self.target {
            CompletionTarget::Own(dispatcher) => dispatcher.receives_held(number) as usize,
            CompletionTarget::WorkerCq(worker_cq) => worker_cq.receives_held(number) as usize,
        }
    }

    /// Posts up to `wanted` receives, or has that many shared ones granted, limited by room and
    /// available blocks. Returns how many.
    pub(super) fn post_receives(
        &mut self,
        wanted: usize,
        mut blocks: impl FnMut() -> Option<B>,
    ) -> io::Result<usize> {
        let Self { pair: Some(pair), target, .. } = self else { return Ok(0) };
        if !pair.shares {
            let mut left = wanted;
            let blocks = || {
                left = left.checked_sub(1)?;
                blocks()
            };
            let list = pair.qp.start_post_recv();
            return pair.receives.post(list, pair.generation, blocks).map_err(io::Error::other);
        }
        let (number, wanted) = (pair.qp.qp_number(), u32::try_from(wanted).unwrap_or(u32::MAX));
        let posted = match target {
            CompletionTarget::Own(dispatcher) => dispatcher.grant_receives(number, wanted, blocks),
            CompletionTarget::WorkerCq(worker_cq) => worker_cq.grant_receives(number, wanted, blocks),
        };
        posted.map(|posted| posted as usize)
    }

    /// Posts receives of `slot_size` bytes until the queue pair holds `wanted` of them. Fails if
    /// the pool has too few blocks.
    pub(super) fn fill(
        &mut self,
        blocks: &mut impl Blocks<Block = B>,
        wanted: usize,
        slot_size: usize,
    ) -> Result<(), Unavailable> {
        let missing = wanted - self.receives_held().min(wanted);
        let posted = self.post_receives(missing, || blocks.take(slot_size, Purpose::Stand));
        posted.map_err(|error| Unavailable::new(Cause::ProbeFailed, error.to_string()))?;
        let posted = self.receives_held();
        if posted < wanted {
            let detail = format!("room for {posted} of {wanted} receive slots of {slot_size} bytes now");
            return Err(if blocks.is_refused() {
                locked_memory(&detail)
            } else {
                pool_exhausted(blocks, &detail)
            });
        }
        Ok(())
    }

    /// Whether its dispatcher serves only this queue pair.
    pub(super) fn is_alone(&self) -> bool {
        matches!(self.target, CompletionTarget::Own(_))
    }

    /// The dispatcher that serves only this queue pair; `None` in a worker.
    pub(super) fn own_dispatcher(&mut self) -> Option<&mut CqDispatcher<B>> {
        match &mut self.target {
            CompletionTarget::Own(dispatcher) => Some(dispatcher),
            CompletionTarget::WorkerCq(_) => None,
        }
    }
}

const OPEN: &str = "a pair is kept as long as its keeper lives";

impl<B: DeviceBlock> Deref for QueuePairOwner<B> {
    type Target = RcQueuePair<B>;

    fn deref(&self) -> &RcQueuePair<B> {
        self.pair.as_ref().expect(OPEN)
    }
}

impl<B: DeviceBlock> DerefMut for QueuePairOwner<B> {
    fn deref_mut(&mut self) -> &mut RcQueuePair<B> {
        self.pair.as_mut().expect(OPEN)
    }
}

impl<B: DeviceBlock> Drop for QueuePairOwner<B> {
    fn drop(&mut self) {
        let Some(mut pair) = self.pair.take() else { return };
        let target = std::mem::replace(&mut self.target, CompletionTarget::WorkerCq(WorkerCq::default()));
        match target {
            CompletionTarget::Own(dispatcher) => {
                pair.stop();
                drain(DrainingPair { pair, dispatcher, until: Instant::now() + DRAIN });
            }
            CompletionTarget::WorkerCq(worker_cq) => worker_cq.start_draining(pair),
        }
    }
}

/// A stopped queue pair, with the completion queue that only it uses.
struct DrainingPair<B: DeviceBlock> {
    pair: Box<RcQueuePair<B>>,
    dispatcher: Box<CqDispatcher<B>>,
    until: Instant,
}

impl<B: DeviceBlock> Draining for DrainingPair<B> {
    fn poll(&mut self, now: Instant) -> bool {
        let Self { pair, dispatcher, until } = self;
        pair.check_last_wqe();
        // A poll that fails keeps failing until the time is up.
        let _ = dispatcher.poll(|_, completed| pair.complete_flushed(completed, drop));
        let is_free = pair.is_free();
        if !is_free && now >= *until {
            pair.give_up();
            return true;
        }
        is_free
    }
}

/// The depths of the send queue and of the receive queue.
fn depths(parameters: &QpParameters) -> (u32, u32) {
    let slots = parameters.rx_slots;
    (slots + SENDS_BESIDE + u32::from(parameters.reads), slots + parameters.handshake_slots)
}

/// Checks that the queues fit the device's limits. One completion queue must hold the completions
/// of both.
fn fits(device: &RdmaDevice, sends: u32, receives: u32) -> Result<(), Unavailable> {
    let limits = device.limits;
    for (what, wanted, most) in [
        ("completions", sends + receives, limits.completions),
        ("work requests in a queue", sends, limits.work_requests),
    ] {
        if wanted > most {
            let name = device.name();
            let detail =
                format!("{name} has room for {most} {what}, and {receives} receive slots need {wanted}");
            return Err(Unavailable::new(Cause::Resources, detail));
        }
    }
    Ok(())
}

/// Creates a queue pair. If the device refuses, retries with fewer scatter/gather entries and with
/// less inline data.
fn create_queue_pair(
    device: &RdmaDevice,
    cq: &GenericCompletionQueue,
    srq: Option<&SharedReceiveQueue>,
    sends: u32,
    receives: u32,
    inline: u32,
) -> Result<GenericQueuePair, CreateQueuePairError> {
    let entries = (1 + GATHER_MAX as u32).min(device.limits.entries).max(ENTRIES_MIN);
    let immediate = if device.has_immediate {
        SendOperationFlags::SendWithImmediate
    } else {
        SendOperationFlags::empty()
    };
    let mut builder = device.domain().create_qp_builder();
    builder
        .setup_send_cq(cq)
        .setup_recv_cq(cq)
        .setup_max_send_wr(sends)
        .setup_max_recv_wr(if srq.is_none() { receives } else { 0 })
        .setup_max_recv_sge(1)
        .setup_send_ops_flags(
            SendOperationFlags::Send | SendOperationFlags::Write | SendOperationFlags::Read | immediate,
        );
    if let Some(srq) = srq {
        builder.setup_srq(srq);
    }
    build_with_inline(&mut builder, entries, inline)
}

/// Builds a queue pair with as much inline data, up to `inline` bytes, as the device accepts with
/// `entries` or [`ENTRIES_MIN`] scatter/gather entries.
pub(super) fn build_with_inline(
    builder: &mut QueuePairBuilder,
    entries: u32,
    inline: u32,
) -> Result<GenericQueuePair, CreateQueuePairError> {
    let mut inline = inline;
    loop {
        builder.setup_max_inline_data(inline);
        // Fewer entries may leave room for inline data, and the other way round.
        let made = builder.setup_max_send_sge(entries).build_generic();
        match made.or_else(|_| builder.setup_max_send_sge(ENTRIES_MIN).build_generic()) {
            Err(error) if inline == 0 => return Err(error),
            Err(_) => inline = less_inline(inline),
            Ok(qp) => return Ok(qp),
        }
    }
}

/// The next smaller size of inline data to try, because no verb reports the device's limit: a power
/// of two, [`HEAD`] at least, then 0.
fn less_inline(inline: u32) -> u32 {
    if inline > HEAD as u32 { 1 << (inline - 1).ilog2() } else { 0 }
}

/// Buffers for bytes that are sent but lie in no block, such as headers.
pub(super) struct HeaderBuffers<B> {
    /// [`HEAD`] bytes for each entry of the send queue; allocated when first needed.
    block: Option<B>,
    places: usize,
    /// The maximum number of bytes sent inline.
    pub(super) inline: usize,
    /// The index of the device among those of the connection.
    device: usize,
}

impl<B: DeviceBlock> HeaderBuffers<B> {
    /// Allocates the buffers, if that is not done. Returns false if the pool has no memory now.
    pub(super) fn prepare(&mut self, blocks: &mut impl Blocks<Block = B>) -> bool {
        if self.block.is_none() {
            self.block = blocks.take(self.places * HEAD, Purpose::Receive);
        }
        self.block.is_some()
    }

    /// Copies a head into the buffer of request `id`.
    ///
    /// # Safety
    ///
    /// The request `id` must be about to be posted. No outstanding request may use the same buffer:
    /// at most `places` requests are outstanding at one time.
    pub(super) unsafe fn write(&self, id: u64, head: &[u8]) -> ScatterGatherEntry {
        let Some(block) = self.block.as_ref().filter(|block| block.bytes().len() >= self.places * HEAD)
        else {
            debug_assert!(false, "heads are prepared before they are written");
            // Key 0 makes the device reject the request.
            return ScatterGatherEntry::new(0, 0, head.len() as u32);
        };
        let len = head.len().min(HEAD);
        let offset = (id % self.places as u64) as usize * HEAD;
        // SAFETY: the block has at least `places * HEAD` bytes (checked above), so the buffer lies
        // within it. The memory belongs to this queue pair alone (`DeviceBlock`). By this
        // function's contract no outstanding request uses the buffer. The reference that `bytes`
        // returned has ended.
        let place = unsafe {
            let place = block.address().add(offset);
            place.copy_from_nonoverlapping(head.as_ptr(), len);
            place
        };
        ScatterGatherEntry::new(lkey(block, self.device), place as u64, len as u32)
    }
}

/// The blocks that the device receives into, in the order of posting. It holds at most `room`
/// blocks, the depth of the receive queue.
pub(super) struct PostedReceives<B> {
    posted: VecDeque<B>,
    /// The count of the receive at the front.
    first: u64,
    room: usize,
    /// The index of the device among those of the connection.
    device: usize,
}

impl<B: DeviceBlock> PostedReceives<B> {
    fn new(room: usize) -> Self {
        Self { posted: VecDeque::with_capacity(room), first: 0, room, device: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.posted.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.posted.len()
    }

    fn post(
        &mut self,
        mut list: PostRecvGuard<'_>,
        generation: u32,
        mut blocks: impl FnMut() -> Option<B>,
    ) -> Result<usize, PostRecvError> {
        let before = self.posted.len();
        while self.posted.len() < self.room
            && let Some(block) = blocks()
        {
            let (address, len) = (block.address(), block.bytes().len());
            // Unregistered memory has no key; the device rejects key 0.
            let lkey = lkey(&block, self.device);
            let id = self.first + self.posted.len() as u64;
            self.posted.push_back(block);
            let request = list.construct_wr(wr_id::encode(generation, WrId::Receive(id as u32)));
            // SAFETY: the block stays in `posted` until its completion was polled (`complete`);
            // `RcQueuePair::forget` leaks the rest. Nobody refers to its bytes in `posted`, and the
            // memory does not move (`DeviceBlock`).
            unsafe { request.setup_sge(lkey, address as u64, u32::try_from(len).unwrap_or(u32::MAX)) };
        }
        let count = self.posted.len() - before;
        list.post().inspect_err(|error| {
            // Receives that were certainly not posted are freed.
            let posted = error.posted().unwrap_or(count);
            self.posted.truncate(before + posted.min(count));
        })?;
        Ok(count)
    }

    /// Takes the block of the receive with this count, which has completed. Receives complete in
    /// the order of posting. `None` if the device reports another order, because then none of its
    /// reports can be trusted.
    pub(super) fn complete(&mut self, count: u32) -> Option<B> {
        if count != self.first as u32 {
            return None;
        }
        let block = self.posted.pop_front()?;
        self.first += 1;
        Some(block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn less_inline_data_is_asked_for_until_there_is_none() {
        let steps =
            |from| std::iter::successors(Some(from), |inline| (*inline > 0).then(|| less_inline(*inline)));
        assert_eq!(steps(272).collect::<Vec<_>>(), [272, 256, 128, 64, 0]);
        assert_eq!(steps(100).collect::<Vec<_>>(), [100, 64, 0]);
        assert_eq!(steps(8).collect::<Vec<_>>(), [8, 0]);
    }
}
