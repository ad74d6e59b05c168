//! A queue pair together with the blocks that are posted to it, and its draining.

use std::collections::VecDeque;
use std::io;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::{Registry, Token};
use sideway::ibverbs::completion::{GenericCompletionQueue, WorkCompletionStatus};
use sideway::ibverbs::queue_pair::{
    CreateQueuePairError, GenericQueuePair, PostRecvError, PostRecvGuard, QueuePair, QueuePairAttribute,
    QueuePairState, ScatterGatherEntry, SendOperationFlags,
};
use sideway::ibverbs::srq::SharedReceiveQueue;

use super::cq_dispatcher::{
    CompletedRequest, CqDispatcher, CqSlot, DRAIN_POLL_INTERVAL, WorkCompletion, WorkerCq,
};
use super::path::QpParameters;
use super::shared_recv_queue::SharedRecvQueue;
use super::wr_id::{self, WrId};
use super::{DeviceBlock, RdmaDevice};
use crate::protocol::{BlockPiece, Blocks, CompletedTransmit, GATHER_MAX, PostedSends, Purpose};
use crate::wire::{Cause, Unavailable};

/// Bytes of a place for what is sent from no block.
pub(super) const HEAD: usize = 64;
/// Send requests beside those that use the peer's receives at one time: control frames, and READs.
const SENDS_BESIDE: u32 = 2;
/// A header, and what it is about.
const ENTRIES_MIN: u32 = 2;
/// How long a queue pair that was stopped may take to give everything back.
pub(super) const DRAIN: Duration = Duration::from_millis(500);

/// A queue pair, and what was posted. It must not be dropped before the device has given everything back: [`QueuePairOwner`] sees to that.
pub(super) struct RcQueuePair<B: DeviceBlock> {
    pub(super) qp: GenericQueuePair,
    /// What its work requests' numbers have.
    pub(super) generation: u32,
    pub(super) receives: PostedReceives<B>,
    /// What is sent and has not completed; it never holds more than the device has granted.
    pub(super) sends: PostedSends<B>,
    /// Sends posted so far, and those of them that came out of `sends` since.
    pub(super) posted: u64,
    pub(super) completed: u64,
    /// Sends of the handshake that are posted and have not completed.
    pub(super) probes: usize,
    /// What they send, if it is in blocks of their own, as long as there are any.
    pub(super) handshake_messages: Vec<B>,
    pub(super) heads: HeaderBuffers<B>,
    /// Its receives are shared with others, and it may have used some.
    pub(super) shares: bool,
    /// The device has said that it takes no more of them: what it has taken has completed.
    last_wqe_reached: bool,
    /// It is in the error state.
    pub(super) stopped: bool,
    pub(super) device: Arc<RdmaDevice>,
    /// The device and the port, and why these, in words.
    pub(super) origin: String,
}

impl<B: DeviceBlock> RcQueuePair<B> {
    /// Makes it, in the reset state.
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
            .map_err(|error| Unavailable::new(Cause::Resources, format!("{}: {error}", device.name())))?;
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
            heads: HeaderBuffers { block: None, places: depth as usize, inline },
            shares: false,
            last_wqe_reached: false,
            stopped: false,
            device: Arc::clone(device),
            origin: origin.to_owned(),
        })
    }

    /// How many completions may come of one at a time, without those of receives that it shares with others.
    pub(super) fn completions(parameters: &QpParameters, shares: bool) -> u32 {
        let (depth, receives) = depths(parameters);
        if shares { depth } else { depth + receives }
    }

    /// Takes note of what the device says of the receives that it shares.
    pub(super) fn check_last_wqe(&mut self) {
        if self.shares && !self.last_wqe_reached {
            self.last_wqe_reached = self.device.take_last_wqe_reached(self.qp.qp_number());
        }
    }

    /// Whether it can be destroyed: the device has nothing of it any more. It was heard before all that has completed was polled.
    pub(super) fn is_free(&mut self) -> bool {
        self.finish(drop) && (self.last_wqe_reached || !self.shares)
    }

    /// Time is up: gives up what has not come back.
    pub(super) fn give_up(&mut self) {
        // Of shared receives, what was not said may never be: all that this pair has taken has completed by now.
        if !self.finish(drop) {
            self.forget(|_| None, drop);
        }
    }

    /// Brings it to the error state: what was posted completes, and nothing of the peer's is answered any more.
    pub(super) fn stop(&mut self) {
        if std::mem::replace(&mut self.stopped, true) {
            return;
        }
        let stopped = self.qp.modify(QueuePairAttribute::new().setup_state(QueuePairState::Error));
        if let Err(error) = stopped {
            tracing::warn!(qp = self.qp.qp_number(), %error, "a queue pair cannot be stopped");
        }
    }

    /// The send with that count has completed, and with it all before it: gives them back one by one, then `None`. Of one that was
    /// not posted, nothing.
    pub(super) fn sent(&mut self, count: u32) -> Option<CompletedTransmit<B>> {
        let done = self.sends.complete(wr_id::extend(self.completed, count))?;
        self.completed += 1;
        Some(done)
    }

    /// Whether the send with that count has completed before a READ that is the oldest.
    pub(super) fn passes_over_a_read(&self, count: u32) -> bool {
        self.sends.passes_over_a_read(wr_id::extend(self.completed, count))
    }

    /// Whether the send with that count is under way.
    pub(super) fn has_sent(&self, count: u32) -> bool {
        let id = wr_id::extend(self.completed, count);
        self.sends.has(id) && id < self.posted
    }

    /// A send of the handshake has completed.
    fn acknowledged(&mut self) {
        self.probes = self.probes.saturating_sub(1);
        if self.probes == 0 {
            self.handshake_messages.clear();
        }
    }

    /// Takes note of what has completed before the connection's first turn: it is out of the queues then, whatever becomes of the handshake.
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

    /// Takes back what the device is done with, after [`stop`](Self::stop); what was sent is handed on.
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
                    // READs have completions of their own, so this one's is what failed: it has brought nothing.
                    if !(flushed && matches!(done, CompletedTransmit::Read { .. })) {
                        each(done);
                    }
                }
            }
        }
    }

    /// Whether the device has nothing of it any more, but of what is shared. What was never posted is handed on then.
    pub(super) fn finish(&mut self, mut each: impl FnMut(CompletedTransmit<B>)) -> bool {
        let all = self.receives.is_empty() && self.completed >= self.posted && self.probes == 0;
        while all && let Some(done) = self.sends.drain() {
            if !matches!(done, CompletedTransmit::Read { .. }) {
                each(done);
            }
        }
        all
    }

    /// Gives up what has not come back: the device may still use it, so its memory must never be anything else. Whoever has lent a block
    /// gets a copy.
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
                // Others may have shares of it, the connection too: all of them know, and the last gives the copy back.
                CompletedTransmit::Part(share) => share.lose(&mut copy),
                _ => false,
            };
            if rescued { each(done) } else { std::mem::forget(done) }
        }
        self.handshake_messages.drain(..).for_each(std::mem::forget);
        std::mem::forget(self.heads.block.take());
        (self.posted, self.completed, self.probes) = (0, 0, 0);
        let qp = self.qp.qp_number();
        tracing::error!(qp, receives, sends, "work requests never completed: their memory is lost");
    }
}

/// Has a lent block be a copy, as the device never gives it back. Whether there is one.
fn replace_with_copy<B>(piece: &mut BlockPiece<B>, copy: impl FnOnce(&B) -> Option<B>) -> bool {
    let fresh = if piece.ticket.is_some() { copy(&piece.block) } else { None };
    fresh.map(|fresh| std::mem::forget(std::mem::replace(&mut piece.block, fresh))).is_some()
}

/// A queue pair that somebody uses, and where it completes. When it is dropped, everything is taken back from the device first.
pub(super) struct QueuePairOwner<B: DeviceBlock> {
    /// Only its drop takes it.
    pair: Option<Box<RcQueuePair<B>>>,
    target: CompletionTarget<B>,
    /// During the handshake: what completes is reported, and the completion queue is to tell of the next.
    watched: bool,
}

/// Where a pair completes.
pub(super) enum CompletionTarget<B: DeviceBlock> {
    /// Nothing else does.
    Own(Box<CqDispatcher<B>>),
    /// With a worker's others: the worker hands on what is this one's.
    WorkerCq(WorkerCq<B>),
}

impl<B: DeviceBlock> QueuePairOwner<B> {
    /// Makes it, in the reset state: in a worker's completion queue, if there is one and it has room, else with all that it needs.
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

    /// Has the system report under that key what completes, if nobody else does. Whether that was not so already: then something may have
    /// completed just before.
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

    /// Ends that.
    pub(super) fn unwatch(&mut self, registry: &Registry) -> io::Result<()> {
        match &mut self.target {
            CompletionTarget::Own(dispatcher) if std::mem::replace(&mut self.watched, false) => {
                dispatcher.deregister(registry)
            }
            _ => Ok(()),
        }
    }

    /// Both.
    pub(super) fn parts(&mut self) -> (&mut RcQueuePair<B>, &mut CompletionTarget<B>) {
        (self.pair.as_mut().expect(OPEN), &mut self.target)
    }

    /// Makes it certain of so many receives, if they are shared. Else how many there can be in all.
    pub(super) fn reserve_receives(&mut self, first: u32) -> Result<(), u32> {
        let number = self.qp.qp_number();
        self.shares = self.receives.room == 0;
        match &mut self.target {
            CompletionTarget::Own(dispatcher) => dispatcher.reserve_receives(number, first),
            CompletionTarget::WorkerCq(worker_cq) => worker_cq.reserve_receives(number, first),
        }
    }

    /// Receives that are there for it.
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

    /// Posts so many receives, or has so many of those that are shared, as far as there is room and there are blocks. How many.
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

    /// Posts receives until there are so many for it, of this size.
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
            let detail =
                format!("the pool has room for {posted} of {wanted} receive slots of {slot_size} bytes now");
            return Err(Unavailable::new(Cause::Resources, detail));
        }
        Ok(())
    }

    /// The dispatcher that serves this pair alone.
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
        let dispatcher = match &mut self.target {
            CompletionTarget::Own(dispatcher) => dispatcher,
            CompletionTarget::WorkerCq(worker_cq) => return worker_cq.start_draining(pair),
        };
        pair.stop();
        let until = Instant::now() + DRAIN;
        loop {
            pair.check_last_wqe();
            // If it fails, it goes on failing until time is up.
            let _ = dispatcher.poll(|_, completed| pair.complete_flushed(completed, drop));
            if pair.is_free() {
                return;
            }
            if Instant::now() >= until {
                return pair.give_up();
            }
            std::thread::sleep(DRAIN_POLL_INTERVAL);
        }
    }
}

/// Sends and receives that a pair has under way at most.
fn depths(parameters: &QpParameters) -> (u32, u32) {
    let slots = parameters.rx_slots;
    (slots + SENDS_BESIDE + u32::from(parameters.reads), slots + parameters.handshake_slots)
}

/// Completions of both queues must find room in one completion queue.
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

/// Makes a queue pair, with fewer pieces to a request, and with less inline data, if the device has not so much.
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
    let mut inline = inline;
    loop {
        builder.setup_max_inline_data(inline);
        // Less of the one may leave room for the other.
        let made = builder.setup_max_send_sge(entries).build_generic();
        match made.or_else(|_| builder.setup_max_send_sge(ENTRIES_MIN).build_generic()) {
            Err(error) if inline == 0 => return Err(error),
            Err(_) => inline = less_inline(inline),
            Ok(qp) => return Ok(qp),
        }
    }
}

/// What to ask for next of a device that has not so much, as no verb tells how much it has: a power of two, down to a head.
fn less_inline(inline: u32) -> u32 {
    if inline > HEAD as u32 { 1 << (inline - 1).ilog2() } else { 0 }
}

/// Where the bytes come from that are in no block.
pub(super) struct HeaderBuffers<B> {
    /// [`HEAD`] bytes for each place of the send queue, once they are needed.
    block: Option<B>,
    places: usize,
    /// Bytes that may go into a request itself.
    pub(super) inline: usize,
}

impl<B: DeviceBlock> HeaderBuffers<B> {
    /// Sees that there is memory for them. False: the pool has none now.
    pub(super) fn prepare(&mut self, blocks: &mut impl Blocks<Block = B>) -> bool {
        if self.block.is_none() {
            self.block = blocks.take(self.places * HEAD, Purpose::Receive);
        }
        self.block.is_some()
    }

    /// Copies a head to where it can be sent from.
    ///
    /// # Safety
    ///
    /// The request `id` is about to be posted, and none before it that has not completed has the same place: at most as many are
    /// under way as there are places.
    pub(super) unsafe fn write(&self, id: u64, head: &[u8]) -> ScatterGatherEntry {
        let Some(block) = self.block.as_ref().filter(|block| block.bytes().len() >= self.places * HEAD)
        else {
            debug_assert!(false, "heads are prepared before they are written");
            // The device refuses it.
            return ScatterGatherEntry::new(0, 0, head.len() as u32);
        };
        let len = head.len().min(HEAD);
        let offset = (id % self.places as u64) as usize * HEAD;
        // SAFETY: the block has `places * HEAD` bytes (checked above), so the place is within it. The memory is this pair's alone
        // (`DeviceBlock`). No request that is under way uses the place, by this function's contract, and the reference that `bytes` gave
        // has ended.
        let place = unsafe {
            let place = block.address().add(offset);
            place.copy_from_nonoverlapping(head.as_ptr(), len);
            place
        };
        ScatterGatherEntry::new(block.lkey().unwrap_or(0), place as u64, len as u32)
    }
}

/// The blocks that the device receives into, the one that completes next at the front. They are never more than there is room for.
pub(super) struct PostedReceives<B> {
    posted: VecDeque<B>,
    /// The number of the one at the front.
    first: u64,
    room: usize,
}

impl<B: DeviceBlock> PostedReceives<B> {
    fn new(room: usize) -> Self {
        Self { posted: VecDeque::with_capacity(room), first: 0, room }
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
            // Memory that is not registered has no key: the device refuses 0.
            let lkey = block.lkey().unwrap_or(0);
            let id = self.first + self.posted.len() as u64;
            self.posted.push_back(block);
            let request = list.construct_wr(wr_id::encode(generation, WrId::Receive(id as u32)));
            // SAFETY: the block is in `posted` until `complete` takes it out, which is when its completion was polled; `RcQueuePair`
            // forgets what is left. No reference to its bytes is made there, and the memory stays where it is (`DeviceBlock`).
            unsafe { request.setup_sge(lkey, address as u64, u32::try_from(len).unwrap_or(u32::MAX)) };
        }
        let count = self.posted.len() - before;
        list.post().inspect_err(|error| {
            // What is known not to be posted is free.
            let posted = error.posted().unwrap_or(count);
            self.posted.truncate(before + posted.min(count));
        })?;
        Ok(count)
    }

    /// The receive with this count has completed. They complete in the order in which they were posted; if a device says otherwise
    /// there is nothing that can be believed.
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
