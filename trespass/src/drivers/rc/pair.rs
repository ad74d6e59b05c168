//! A queue pair, and the blocks that the device has.

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

use super::hub::{Completed, Desk, Hub, NAP, Seat, What};
use super::number::{self, Request};
use super::path::Parameters;
use super::shelf::Shelf;
use super::{Device, DeviceBlock};
use crate::handshake::{Cause, Unavailable};
use crate::protocol::{Blocks, Done, GATHER_MAX, Piece, Purpose, SendQueue};

/// Bytes of a place for what is sent from no block.
pub(super) const HEAD: usize = 64;
/// Send requests beside those that use the peer's receives at one time: control frames, and READs.
const SENDS_BESIDE: u32 = 2;
/// A header, and what it is about.
const ENTRIES_MIN: u32 = 2;
/// How long a queue pair that was stopped may take to give everything back.
pub(super) const DRAIN: Duration = Duration::from_millis(500);

/// A queue pair, and what was posted. It must not be dropped before the device has given everything back: [`Kept`] sees to that.
pub(super) struct Pair<B: DeviceBlock> {
    pub(super) qp: GenericQueuePair,
    /// What its work requests' numbers have.
    pub(super) generation: u32,
    pub(super) receives: Receives<B>,
    /// What is sent and has not completed; it never holds more than the device has granted.
    pub(super) sends: SendQueue<B>,
    /// Sends posted so far, and those of them that came out of `sends` since.
    pub(super) posted: u64,
    pub(super) completed: u64,
    /// Sends of the handshake that are posted and have not completed.
    pub(super) probes: usize,
    /// What they send, if it is in blocks of their own, as long as there are any.
    pub(super) said: Vec<B>,
    pub(super) heads: Heads<B>,
    /// Its receives are shared with others, and it may have used some.
    pub(super) shares: bool,
    /// The device has said that it takes no more of them: what it has taken has completed.
    heard: bool,
    /// It is in the error state.
    pub(super) stopped: bool,
    pub(super) device: Arc<Device>,
    /// The device and the port, and why these, in words.
    pub(super) whence: String,
}

impl<B: DeviceBlock> Pair<B> {
    /// Makes it, in the reset state.
    pub(super) fn new(
        device: &Arc<Device>,
        whence: &str,
        parameters: &Parameters,
        cq: &GenericCompletionQueue,
        shelf: Option<&Shelf<B>>,
        generation: u32,
    ) -> Result<Self, Unavailable> {
        let (depth, receives) = depths(parameters);
        let srq = shelf.map(Shelf::srq);
        let qp = make(device, cq, srq, depth, receives, parameters.inline)
            .map_err(|error| Unavailable::new(Cause::Resources, format!("{}: {error}", device.name())))?;
        let inline = (qp.control().capability().max_inline_data as usize).min(parameters.inline as usize);
        Ok(Self {
            qp,
            generation,
            receives: Receives::new(if srq.is_none() { receives as usize } else { 0 }),
            sends: SendQueue::new(depth as usize),
            posted: 0,
            completed: 0,
            probes: 0,
            said: Vec::new(),
            heads: Heads { block: None, places: depth as usize, inline },
            shares: false,
            heard: false,
            stopped: false,
            device: Arc::clone(device),
            whence: whence.to_owned(),
        })
    }

    /// How many completions may come of one at a time, without those of receives that it shares with others.
    pub(super) fn completions(parameters: &Parameters, shares: bool) -> u32 {
        let (depth, receives) = depths(parameters);
        if shares { depth } else { depth + receives }
    }

    /// Takes note of what the device says of the receives that it shares.
    pub(super) fn hear(&mut self) {
        if self.shares && !self.heard {
            self.heard = self.device.is_done_sharing(self.qp.qp_number());
        }
    }

    /// Whether it can be destroyed: the device has nothing of it any more. It was heard before all that has completed was polled.
    pub(super) fn is_free(&mut self) -> bool {
        self.finish(drop) && (self.heard || !self.shares)
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
    pub(super) fn sent(&mut self, count: u32) -> Option<Done<B>> {
        let done = self.sends.complete(number::from(self.completed, count))?;
        self.completed += 1;
        Some(done)
    }

    /// Whether the send with that count has completed before a READ that is the oldest.
    pub(super) fn passes_over_a_read(&self, count: u32) -> bool {
        self.sends.passes_over_a_read(number::from(self.completed, count))
    }

    /// Whether the send with that count is under way.
    pub(super) fn has_sent(&self, count: u32) -> bool {
        let id = number::from(self.completed, count);
        self.sends.has(id) && id < self.posted
    }

    /// A send of the handshake has completed.
    fn acknowledged(&mut self) {
        self.probes = self.probes.saturating_sub(1);
        if self.probes == 0 {
            self.said.clear();
        }
    }

    /// Takes note of what has completed before the connection's first turn: it is out of the queues then, whatever becomes of the handshake.
    pub(super) fn settle(&mut self, completed: Completed<B>) -> Completed<B> {
        let what = match completed.what {
            What::Own(Request::Receive(count)) => What::Received(count, self.receives.complete(count)),
            What::Own(Request::Probe) => {
                self.acknowledged();
                completed.what
            }
            what => what,
        };
        Completed { what, ..completed }
    }

    /// Takes back what the device is done with, after [`stop`](Self::stop); what was sent is handed on.
    pub(super) fn take_back(&mut self, completed: Completed<B>, mut each: impl FnMut(Done<B>)) {
        let flushed = completed.status != WorkCompletionStatus::Success;
        match completed.what {
            What::Received(..) | What::Overdrawn => (),
            What::Own(Request::Receive(count)) => drop(self.receives.complete(count)),
            What::Own(Request::Probe) => self.acknowledged(),
            What::Own(Request::Send(count)) => {
                while let Some(done) = self.sent(count) {
                    // READs have completions of their own, so this one's is what failed: it has brought nothing.
                    if !(flushed && matches!(done, Done::Read { .. })) {
                        each(done);
                    }
                }
            }
        }
    }

    /// Whether the device has nothing of it any more, but of what is shared. What was never posted is handed on then.
    pub(super) fn finish(&mut self, mut each: impl FnMut(Done<B>)) -> bool {
        let all = self.receives.is_empty() && self.completed >= self.posted && self.probes == 0;
        while all && let Some(done) = self.sends.drain() {
            if !matches!(done, Done::Read { .. }) {
                each(done);
            }
        }
        all
    }

    /// Gives up what has not come back: the device may still use it, so its memory must never be anything else. Whoever has lent a block
    /// gets a copy.
    pub(super) fn forget(&mut self, mut copy: impl FnMut(&B) -> Option<B>, mut each: impl FnMut(Done<B>)) {
        let (receives, sends) = (self.receives.posted.len(), self.posted - self.completed);
        self.receives.posted.drain(..).for_each(std::mem::forget);
        while let Some(mut done) = self.sends.drain() {
            let rescued = match &mut done {
                Done::Sent(Some(pieces)) => pieces.iter_mut().all(|piece| rescue(piece, &mut copy)),
                // Others may have shares of it, the connection too: all of them know, and the last gives the copy back.
                Done::Part(share) => share.lose(&mut copy),
                _ => false,
            };
            if rescued { each(done) } else { std::mem::forget(done) }
        }
        self.said.drain(..).for_each(std::mem::forget);
        std::mem::forget(self.heads.block.take());
        (self.posted, self.completed, self.probes) = (0, 0, 0);
        let qp = self.qp.qp_number();
        tracing::error!(qp, receives, sends, "work requests never completed: their memory is lost");
    }
}

/// Has a lent block be a copy, as the device never gives it back. Whether there is one.
fn rescue<B>(piece: &mut Piece<B>, copy: impl FnOnce(&B) -> Option<B>) -> bool {
    let fresh = if piece.ticket.is_some() { copy(&piece.block) } else { None };
    fresh.map(|fresh| std::mem::forget(std::mem::replace(&mut piece.block, fresh))).is_some()
}

/// A queue pair that somebody uses, and where it completes. When it is dropped, everything is taken back from the device first.
pub(super) struct Kept<B: DeviceBlock> {
    /// Only its drop takes it.
    pair: Option<Box<Pair<B>>>,
    home: Home<B>,
    /// During the handshake: what completes is reported, and the completion queue is to tell of the next.
    watched: bool,
}

/// Where a pair completes.
pub(super) enum Home<B: DeviceBlock> {
    /// Nothing else does.
    Own(Box<Hub<B>>),
    /// With a worker's others: the worker hands on what is this one's.
    Shared(Desk<B>),
}

impl<B: DeviceBlock> Kept<B> {
    /// Makes it, in the reset state: at a worker's seat, if there is one and it has room, else with all that it needs.
    pub(super) fn new(
        device: &Arc<Device>,
        whence: &str,
        parameters: &Parameters,
        seat: Option<&Seat<B>>,
    ) -> Result<Self, Unavailable> {
        let (depth, receives) = depths(parameters);
        fits(device, depth, receives)?;
        if let Some(Seat { desk, index }) = seat
            && let Some(pair) = desk.make(device, whence, parameters, *index)?
        {
            return Ok(Self { pair: Some(pair), home: Home::Shared(desk.clone()), watched: false });
        }
        let hub = Hub::of_one(device, parameters)?;
        let pair = Pair::new(device, whence, parameters, hub.cq(), hub.shelf(), 0)?;
        Ok(Self { pair: Some(Box::new(pair)), home: Home::Own(Box::new(hub)), watched: false })
    }

    /// Has the system report under that key what completes, if nobody else does. Whether that was not so already: then something may have
    /// completed just before.
    pub(super) fn watch(&mut self, registry: &Registry, token: Token) -> io::Result<bool> {
        let Home::Own(hub) = &mut self.home else { return Ok(false) };
        if !self.watched {
            hub.register(registry, token)?;
            self.watched = true;
        }
        hub.on_event();
        hub.take_events()?;
        hub.arm()
    }

    /// Ends that.
    pub(super) fn unwatch(&mut self, registry: &Registry) -> io::Result<()> {
        match &mut self.home {
            Home::Own(hub) if std::mem::replace(&mut self.watched, false) => hub.deregister(registry),
            _ => Ok(()),
        }
    }

    /// Both.
    pub(super) fn parts(&mut self) -> (&mut Pair<B>, &mut Home<B>) {
        (self.pair.as_mut().expect(KEPT), &mut self.home)
    }

    /// Makes it certain of so many receives, if they are shared. Else how many there can be in all.
    pub(super) fn admit(&mut self, first: u32) -> Result<(), u32> {
        let number = self.qp.qp_number();
        self.shares = self.receives.room == 0;
        match &mut self.home {
            Home::Own(hub) => hub.admit(number, first),
            Home::Shared(desk) => desk.admit(number, first),
        }
    }

    /// Receives that are there for it.
    pub(super) fn held(&mut self) -> usize {
        if !self.shares {
            return self.receives.len();
        }
        let number = self.qp.qp_number();
        match &mut self.home {
            Home::Own(hub) => hub.held(number) as usize,
            Home::Shared(desk) => desk.held(number) as usize,
        }
    }

    /// Posts so many receives, or has so many of those that are shared, as far as there is room and there are blocks. How many.
    pub(super) fn post_receives(
        &mut self,
        wanted: usize,
        mut blocks: impl FnMut() -> Option<B>,
    ) -> io::Result<usize> {
        let Self { pair: Some(pair), home, .. } = self else { return Ok(0) };
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
        let posted = match home {
            Home::Own(hub) => hub.share(number, wanted, blocks),
            Home::Shared(desk) => desk.share(number, wanted, blocks),
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
        let missing = wanted - self.held().min(wanted);
        let posted = self.post_receives(missing, || blocks.take(slot_size, Purpose::Stand));
        posted.map_err(|error| Unavailable::new(Cause::ProbeFailed, error.to_string()))?;
        let posted = self.held();
        if posted < wanted {
            let detail =
                format!("the pool has room for {posted} of {wanted} receive slots of {slot_size} bytes now");
            return Err(Unavailable::new(Cause::Resources, detail));
        }
        Ok(())
    }

    /// The hub that is its alone.
    pub(super) fn own_hub(&mut self) -> Option<&mut Hub<B>> {
        match &mut self.home {
            Home::Own(hub) => Some(hub),
            Home::Shared(_) => None,
        }
    }
}

const KEPT: &str = "a pair is kept as long as its keeper lives";

impl<B: DeviceBlock> Deref for Kept<B> {
    type Target = Pair<B>;

    fn deref(&self) -> &Pair<B> {
        self.pair.as_ref().expect(KEPT)
    }
}

impl<B: DeviceBlock> DerefMut for Kept<B> {
    fn deref_mut(&mut self) -> &mut Pair<B> {
        self.pair.as_mut().expect(KEPT)
    }
}

impl<B: DeviceBlock> Drop for Kept<B> {
    fn drop(&mut self) {
        let Some(mut pair) = self.pair.take() else { return };
        let hub = match &mut self.home {
            Home::Own(hub) => hub,
            Home::Shared(desk) => return desk.bury(pair),
        };
        pair.stop();
        let until = Instant::now() + DRAIN;
        loop {
            pair.hear();
            // If it fails, it goes on failing until time is up.
            let _ = hub.reap(|_, completed| pair.take_back(completed, drop));
            if pair.is_free() {
                return;
            }
            if Instant::now() >= until {
                return pair.give_up();
            }
            std::thread::sleep(NAP);
        }
    }
}

/// Sends and receives that a pair has under way at most.
fn depths(parameters: &Parameters) -> (u32, u32) {
    let slots = parameters.rx_slots;
    (slots + SENDS_BESIDE + u32::from(parameters.reads), slots + parameters.handshake_slots)
}

/// Completions of both queues must find room in one completion queue.
fn fits(device: &Device, sends: u32, receives: u32) -> Result<(), Unavailable> {
    let most = device.most;
    for (what, wanted, most) in [
        ("completions", sends + receives, most.completions),
        ("work requests in a queue", sends, most.work_requests),
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
fn make(
    device: &Device,
    cq: &GenericCompletionQueue,
    srq: Option<&SharedReceiveQueue>,
    sends: u32,
    receives: u32,
    inline: u32,
) -> Result<GenericQueuePair, CreateQueuePairError> {
    let entries = (1 + GATHER_MAX as u32).min(device.most.entries).max(ENTRIES_MIN);
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
pub(super) struct Heads<B> {
    /// [`HEAD`] bytes for each place of the send queue, once they are needed.
    block: Option<B>,
    places: usize,
    /// Bytes that may go into a request itself.
    pub(super) inline: usize,
}

impl<B: DeviceBlock> Heads<B> {
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
        // SAFETY: the place is within the block, whose memory is this pair's alone (`DeviceBlock`), and no request uses it (the caller's
        // promise). There is no reference to it: `bytes` above ended.
        let place = unsafe {
            let place = block.address().add(offset);
            place.copy_from_nonoverlapping(head.as_ptr(), len);
            place
        };
        ScatterGatherEntry::new(block.lkey().unwrap_or(0), place as u64, len as u32)
    }
}

/// The blocks that the device receives into, the one that completes next at the front. They are never more than there is room for.
pub(super) struct Receives<B> {
    posted: VecDeque<B>,
    /// The number of the one at the front.
    first: u64,
    room: usize,
}

impl<B: DeviceBlock> Receives<B> {
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
            let request = list.construct_wr(number::number(generation, Request::Receive(id as u32)));
            // SAFETY: the block is in `posted` until `complete` takes it out, which is when its completion was polled; `Pair`
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
