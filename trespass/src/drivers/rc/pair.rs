//! A queue pair, its completion queue, and the blocks that the device has.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};

use sideway::ibverbs::completion::{CompletionChannel, GenericCompletionQueue, Notify, WorkCompletionStatus};
use sideway::ibverbs::queue_pair::{
    CreateQueuePairError, GenericQueuePair, PostRecvError, PostRecvGuard, QueuePair, QueuePairAttribute,
    QueuePairState, ScatterGatherEntry, SendOperationFlags,
};

use super::path::Parameters;
use super::{Device, DeviceBlock};
use crate::handshake::{Cause, Unavailable};
use crate::protocol::{Blocks, Done, Purpose, SendQueue};

/// Marks the work requests that are receives, whose numbers count from 0 like those of the sends.
pub(super) const RECEIVE: u64 = 1 << 63;
/// Marks the requests of the handshake, before any other is sent.
pub(super) const PROBE: u64 = 1 << 62;
/// Bytes of a place for what is sent from no block.
pub(super) const HEAD: usize = 64;
/// Send requests beside those that use the peer's receives at one time: control frames, and READs.
const SENDS_BESIDE: u32 = 2;
/// How long a queue pair that was stopped may take to give everything back.
pub(super) const DRAIN: Duration = Duration::from_millis(500);
const NAP: Duration = Duration::from_micros(50);

/// A queue pair and its completion queue, and what was posted. Dropping it takes everything back from the device first.
pub(super) struct Pair<B: DeviceBlock> {
    pub(super) qp: GenericQueuePair,
    /// Of both directions.
    pub(super) cq: GenericCompletionQueue,
    pub(super) channel: CompletionChannel,
    pub(super) receives: Receives<B>,
    /// What is sent and has not completed; it never holds more than the device has granted.
    pub(super) sends: SendQueue<B>,
    /// Sends posted so far, and those of them that came out of `sends` since.
    pub(super) posted: u64,
    pub(super) completed: u64,
    /// Requests of the handshake that are posted and have not completed.
    pub(super) probes: usize,
    /// What they send, as long as there are any.
    pub(super) said: Vec<B>,
    pub(super) heads: Heads<B>,
    /// It is in the error state.
    pub(super) stopped: bool,
    pub(super) device: Arc<Device>,
    /// The device and the port, and why these, in words.
    pub(super) whence: String,
    /// During the handshake: what completes is reported, and the completion queue is to tell of the next.
    watched: bool,
}

impl<B: DeviceBlock> Pair<B> {
    /// Makes them, in the reset state, with room for as many receives as the parameters say, and for those of the handshake.
    pub(super) fn new(
        device: &Arc<Device>,
        whence: String,
        parameters: &Parameters,
        more: u32,
    ) -> Result<Self, Unavailable> {
        let refused = |error: &dyn std::fmt::Display| {
            Unavailable::new(Cause::Resources, format!("{}: {error}", device.name()))
        };
        let receives = parameters.rx_slots + more;
        let depth = parameters.rx_slots + SENDS_BESIDE + u32::from(parameters.reads);
        fits(device, depth, receives)?;
        let channel = device.context().create_comp_channel().map_err(|error| refused(&error))?;
        let mut builder = device.context().create_cq_builder();
        builder.setup_cqe(depth + receives).setup_comp_channel(&channel);
        let cq = builder.build_generic().map_err(|error| refused(&error))?;
        let qp = make(device, &cq, depth, receives, parameters.inline).map_err(|error| refused(&error))?;
        let inline = (qp.control().capability().max_inline_data as usize).min(parameters.inline as usize);
        Ok(Self {
            qp,
            cq,
            channel,
            receives: Receives::new(receives as usize),
            sends: SendQueue::new(depth as usize),
            posted: 0,
            completed: 0,
            probes: 0,
            said: Vec::new(),
            heads: Heads { block: None, places: depth as usize, inline },
            stopped: false,
            device: Arc::clone(device),
            whence,
            watched: false,
        })
    }

    /// Has the system report under that key what completes. Whether that was not so already: then something may have completed just
    /// before.
    pub(super) fn watch(&mut self, registry: &Registry, token: Token) -> io::Result<bool> {
        if !self.watched {
            let channel = self.channel.as_fd().as_raw_fd();
            registry.register(&mut SourceFd(&channel), token, Interest::READABLE)?;
            self.watched = true;
        } else if !self.take_events()? {
            return Ok(false);
        }
        self.cq.arm(Notify::Any).map(drop).map_err(io::Error::other)?;
        Ok(true)
    }

    /// Ends that.
    pub(super) fn unwatch(&mut self, registry: &Registry) -> io::Result<()> {
        if !std::mem::replace(&mut self.watched, false) {
            return Ok(());
        }
        registry.deregister(&mut SourceFd(&self.channel.as_fd().as_raw_fd()))
    }

    /// Takes what the channel reports. Whether there was anything: then the queue tells of nothing more.
    fn take_events(&mut self) -> io::Result<bool> {
        let mut told = false;
        while self.channel.try_next().map_err(io::Error::other)?.is_some() {
            told = true;
        }
        Ok(told)
    }

    /// Posts receives until there are so many, of this size.
    pub(super) fn fill(
        &mut self,
        blocks: &mut impl Blocks<Block = B>,
        wanted: usize,
        slot_size: usize,
    ) -> Result<(), Unavailable> {
        let mut left = wanted.saturating_sub(self.receives.len());
        let posted = self.post_receives(|| {
            left = left.checked_sub(1)?;
            blocks.take(slot_size, Purpose::Stand)
        });
        posted.map_err(|error| Unavailable::new(Cause::ProbeFailed, error.to_string()))?;
        let posted = self.receives.len();
        if posted < wanted {
            let detail =
                format!("the pool has room for {posted} of {wanted} receive slots of {slot_size} bytes now");
            return Err(Unavailable::new(Cause::Resources, detail));
        }
        Ok(())
    }

    /// Posts blocks to receive into, as long as there are any and there is a place. How many.
    pub(super) fn post_receives(
        &mut self,
        blocks: impl FnMut() -> Option<B>,
    ) -> Result<usize, PostRecvError> {
        self.receives.post(self.qp.start_post_recv(), blocks)
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

    /// Takes back what the device is done with, after [`stop`](Self::stop); what was sent is handed on. Whether that is all.
    pub(super) fn drain(&mut self, mut each: impl FnMut(Done<B>)) -> bool {
        if let Ok(mut poller) = self.cq.start_poll() {
            while let Some(completion) = poller.next() {
                let id = completion.wr_id();
                if id & RECEIVE != 0 {
                    drop(self.receives.complete(id));
                } else if id & PROBE != 0 {
                    self.probes = self.probes.saturating_sub(1);
                } else {
                    let flushed = completion.status() != WorkCompletionStatus::Success;
                    while let Some(done) = self.sends.complete(id) {
                        self.completed += 1;
                        // READs have completions of their own, so this one's is what failed: it has brought nothing.
                        if !(flushed && matches!(done, Done::Read { .. })) {
                            each(done);
                        }
                    }
                }
            }
        }
        let all = self.receives.is_empty() && self.completed >= self.posted && self.probes == 0;
        while all && let Some(done) = self.sends.drain() {
            // It was never posted.
            if !matches!(done, Done::Read { .. }) {
                each(done);
            }
        }
        all
    }

    /// Gives up what has not come back: the device may still use it, so its memory must never be anything else. Whoever has lent a block
    /// gets a copy, as far as there is memory for one.
    pub(super) fn forget(&mut self, mut copy: impl FnMut(usize) -> Option<B>, mut each: impl FnMut(Done<B>)) {
        let (receives, sends) = (self.receives.posted.len(), self.posted - self.completed);
        self.receives.posted.drain(..).for_each(std::mem::forget);
        while let Some(mut done) = self.sends.drain() {
            if let Done::Sent { block: Some(block), ticket: Some(_) } = &mut done
                && let Some(mut fresh) = copy(block.bytes().len())
            {
                let len = block.bytes().len();
                fresh.bytes_mut()[..len].copy_from_slice(block.bytes());
                std::mem::forget(std::mem::replace(block, fresh));
                each(done);
            } else {
                std::mem::forget(done);
            }
        }
        self.said.drain(..).for_each(std::mem::forget);
        std::mem::forget(self.heads.block.take());
        (self.posted, self.completed, self.probes) = (0, 0, 0);
        let qp = self.qp.qp_number();
        tracing::error!(qp, receives, sends, "work requests never completed: their memory is lost");
    }
}

impl<B: DeviceBlock> Drop for Pair<B> {
    fn drop(&mut self) {
        self.stop();
        let until = Instant::now() + DRAIN;
        while !self.drain(drop) {
            if Instant::now() >= until {
                return self.forget(|_| None, drop);
            }
            std::thread::sleep(NAP);
        }
    }
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

/// Makes a queue pair, with less inline data if the device has not so much.
fn make(
    device: &Device,
    cq: &GenericCompletionQueue,
    sends: u32,
    receives: u32,
    inline: u32,
) -> Result<GenericQueuePair, CreateQueuePairError> {
    let mut builder = device.domain().create_qp_builder();
    builder
        .setup_send_cq(cq)
        .setup_recv_cq(cq)
        .setup_max_send_wr(sends)
        .setup_max_recv_wr(receives)
        // A header, and what it is about.
        .setup_max_send_sge(2)
        .setup_max_recv_sge(1)
        .setup_send_ops_flags(
            SendOperationFlags::Send | SendOperationFlags::Write | SendOperationFlags::Read,
        );
    let mut inline = inline;
    loop {
        match builder.setup_max_inline_data(inline).build_generic() {
            Err(error) if inline == 0 => return Err(error),
            Err(_) => inline = if inline > HEAD as u32 { HEAD as u32 } else { 0 },
            Ok(qp) => return Ok(qp),
        }
    }
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
            let request = list.construct_wr(RECEIVE | id);
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

    /// The receive with this number has completed. They complete in the order in which they were posted; if a device says otherwise
    /// there is nothing that can be believed.
    pub(super) fn complete(&mut self, id: u64) -> Option<B> {
        if id & !RECEIVE != self.first {
            return None;
        }
        let block = self.posted.pop_front()?;
        self.first += 1;
        Some(block)
    }
}
