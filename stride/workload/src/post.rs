//! Posting of work requests and receives.
//!
//! # Safety
//!
//! The conditions are those of `request`. In addition, no code reads memory that outstanding
//! receives name.

#![allow(unsafe_code)]

use std::fmt::Debug;

use sideway::ibverbs::queue_pair::{
    BasicSendQueue, ExtendedSendQueue, PostRecvError, PostRecvGuard, PostSendError, PostSendGuard,
    PreparedReceiveList, PreparedSendList, ReceiveQueue, SendQueue, WorkRequestFlags,
};
use sideway::ibverbs::srq::SharedReceiveQueue;

use super::Chain;
use super::latency::MarkedRun;
use super::request::{MessageLocation, Payload, Verb, VerbTraits};
use stride_base::buffers::{Cycle, Flag};
use stride_base::error::Error;

/// The `wr_id` of a work request: its number and its queue pair's index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tag(pub(super) u64);

impl Tag {
    const NUMBER_BITS: u32 = 48;

    /// The tag of a queue pair's first request.
    pub(super) fn of_pair(pair: usize) -> Self {
        Self((pair as u64) << Self::NUMBER_BITS)
    }

    /// The tag of another request of the same queue pair.
    #[inline(always)]
    fn with(self, number: u64) -> u64 {
        self.0 | number
    }

    /// The queue pair's index.
    #[inline(always)]
    pub(super) fn pair(self) -> usize {
        (self.0 >> Self::NUMBER_BITS) as usize
    }

    /// The number of requests posted before it.
    #[inline(always)]
    pub(super) fn number(self) -> u64 {
        self.0 & ((1 << Self::NUMBER_BITS) - 1)
    }
}

/// A message to be posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PostItem {
    /// The number that its completion returns.
    pub(super) number: u64,
    /// Whether the message is signaled.
    pub(super) signaled: bool,
    /// Offset of the message in this side's and the peer's memory.
    pub(super) offset: u64,
}

/// A send queue that may support prepared lists.
pub(super) trait ListQueue: SendQueue + Debug {
    /// Whether it supports prepared lists.
    const KEEPS: bool;

    /// Prepares a list for repeated posting.
    ///
    /// # Safety
    ///
    /// The conditions of
    /// [`BasicPostSendGuard::prepare`](sideway::ibverbs::queue_pair::BasicPostSendGuard::prepare).
    unsafe fn prepare(guard: Self::Guard<'_>) -> Result<PreparedSendList<'_>, PostSendError>;
}

impl ListQueue for BasicSendQueue {
    const KEEPS: bool = true;

    unsafe fn prepare(guard: Self::Guard<'_>) -> Result<PreparedSendList<'_>, PostSendError> {
        // SAFETY: the caller meets the conditions of `prepare`.
        unsafe { guard.prepare() }
    }
}

/// Extended queues build requests in the device's memory, so a list cannot be kept.
impl ListQueue for ExtendedSendQueue {
    const KEEPS: bool = false;

    unsafe fn prepare(_: Self::Guard<'_>) -> Result<PreparedSendList<'_>, PostSendError> {
        unreachable!("callers check that it keeps lists")
    }
}

/// Posts the messages of one queue pair. A test chooses its implementation once, like perftest's
/// post function, so that the compiler needs one copy of the measured loops for all operations and
/// queues.
pub(super) trait SendPoster: Debug {
    fn traits(&self) -> VerbTraits;

    /// Posts the next list of a chain with one doorbell.
    fn post_list(&mut self, chain: &mut Chain) -> Result<(), PostSendError>;

    /// Posts one signaled message.
    fn post_one(&mut self, number: u64, offset: u64) -> Result<(), PostSendError>;

    /// Posts the first message in the memory, with `mark` as its last byte if the verb is marked.
    fn post_marked(&mut self, number: u64, mark: u8) -> Result<(), PostSendError>;

    /// Prepares a list of `count` messages for repeated posting, if the queue supports that and the
    /// messages are alike.
    fn prepare(
        &mut self,
        count: u32,
        next: &mut dyn FnMut() -> PostItem,
    ) -> Option<Result<PreparedSendList<'_>, PostSendError>>;

    /// Runs a latency loop of messages that are marked.
    fn run_marked(&mut self, run: MarkedRun<'_, '_>) -> Result<(), Error>;
}

/// The part of a [`SendPoster`] that latency loops use, by value or through a pointer.
pub(super) trait PostMarked {
    /// As [`SendPoster::post_marked`].
    fn post_marked(&mut self, number: u64, mark: u8) -> Result<(), PostSendError>;
}

impl PostMarked for &mut (dyn SendPoster + '_) {
    #[inline(always)]
    fn post_marked(&mut self, number: u64, mark: u8) -> Result<(), PostSendError> {
        SendPoster::post_marked(&mut **self, number, mark)
    }
}

impl<Q: ListQueue, V: Verb, P: Payload> PostMarked for VerbPoster<'_, Q, V, P> {
    #[inline(always)]
    fn post_marked(&mut self, number: u64, mark: u8) -> Result<(), PostSendError> {
        self.payload.mark(mark, self.last);
        // A latency test has one queue pair, and does not distinguish completions.
        self.build(Tag::of_pair(0), 1, || PostItem { number, signaled: true, offset: 0 }).post()
    }
}

/// The [`SendPoster`] of a flavour of queues, a verb and a payload.
#[derive(Debug)]
pub(super) struct VerbPoster<'a, Q, V, P> {
    pub(super) queue: &'a mut Q,
    /// The first message's location.
    pub(super) location: MessageLocation,
    pub(super) tag: Tag,
    pub(super) verb: V,
    pub(super) payload: P,
    /// The last byte of the first message in registered memory.
    pub(super) last: Flag<'a>,
}

impl<Q: ListQueue, V: Verb, P: Payload> VerbPoster<'_, Q, V, P> {
    #[inline(always)]
    fn build(&mut self, tag: Tag, count: u32, mut next: impl FnMut() -> PostItem) -> Q::Guard<'_> {
        let Self { queue, location: first, verb, payload, .. } = self;
        let mut guard = queue.start_post_send();
        for _ in 0..count {
            let PostItem { number, signaled, offset } = next();
            let flags = if signaled { WorkRequestFlags::Signaled } else { WorkRequestFlags::empty() };
            let location =
                MessageLocation { local: first.local + offset, remote: first.remote + offset, ..*first };
            verb.build(payload, guard.construct_wr(tag.with(number), flags), location, number);
        }
        guard
    }
}

impl<Q: ListQueue, V: Verb, P: Payload> SendPoster for VerbPoster<'_, Q, V, P> {
    fn traits(&self) -> VerbTraits {
        self.verb.traits()
    }

    fn post_list(&mut self, chain: &mut Chain) -> Result<(), PostSendError> {
        chain.begin_list();
        self.build(self.tag, chain.list, || chain.next()).post()
    }

    #[inline(never)]
    fn post_one(&mut self, number: u64, offset: u64) -> Result<(), PostSendError> {
        self.build(self.tag, 1, || PostItem { number, signaled: true, offset }).post()
    }

    fn post_marked(&mut self, number: u64, mark: u8) -> Result<(), PostSendError> {
        if self.verb.traits().is_marked {
            self.payload.mark(mark, self.last);
        }
        self.post_one(number, 0)
    }

    fn prepare(
        &mut self,
        count: u32,
        next: &mut dyn FnMut() -> PostItem,
    ) -> Option<Result<PreparedSendList<'_>, PostSendError>> {
        if !Q::KEEPS || !self.verb.traits().repeats {
            return None;
        }
        // SAFETY: the memory outlives the queue pair, and no code writes to a message that is being
        // sent (head of `request`).
        Some(unsafe { Q::prepare(self.build(self.tag, count, next)) })
    }

    fn run_marked(&mut self, run: MarkedRun<'_, '_>) -> Result<(), Error> {
        if !V::HAS_LOOP {
            let poster: &mut dyn SendPoster = self;
            return run.with(poster);
        }
        let Self { queue, location, tag, verb, payload, last } = self;
        let (location, tag, verb, payload, last) = (*location, *tag, *verb, *payload, *last);
        run.with(VerbPoster { queue: &mut **queue, location, tag, verb, payload, last })
    }
}

/// The receives of a queue: one for each message, and at most as many at a time as the queue holds.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReceiveState {
    pub(super) lkey: u32,
    /// The address of the first message.
    pub(super) address: u64,
    /// Length of the longest message.
    pub(super) length: u32,
    /// The path of messages from there.
    pub(super) cycle: Cycle,
    /// The number of messages to come, and so of receives to be posted.
    pub(super) awaited: u64,
    /// The number of posted receives.
    pub(super) posted: u64,
    /// The number of receives that messages have consumed.
    pub(super) taken: u64,
    /// Receives per posted list.
    pub(super) list: u64,
    /// The number of messages after which the next list is posted.
    pub(super) next_list: u64,
    pub(super) tag: Tag,
}

/// The queue that receives are posted to.
#[derive(Debug)]
pub(super) enum ReceiveTarget<'a> {
    /// A queue pair's receive queue.
    Own(&'a mut ReceiveQueue),
    /// The queue that all queue pairs of a side share.
    Shared(&'a mut SharedReceiveQueue),
}

impl ReceiveTarget<'_> {
    /// Begins a list.
    #[inline(always)]
    fn begin(&mut self) -> PostRecvGuard<'_> {
        match self {
            Self::Own(queue) => queue.start_post_recv(),
            Self::Shared(queue) => queue.start_post_recv(),
        }
    }
}

/// The receiving half of a queue pair, or of all of them.
#[derive(Debug)]
pub(super) struct ReceivePoster<'a> {
    pub(super) queue: ReceiveTarget<'a>,
    pub(super) receives: &'a mut ReceiveState,
}

impl ReceivePoster<'_> {
    /// Counts a consumed receive; posts a list whenever the receives of one are consumed, while
    /// more messages are to come.
    #[inline(always)]
    pub(super) fn take(&mut self) -> Result<(), PostRecvError> {
        let receives = &mut *self.receives;
        receives.taken += 1;
        if receives.list == 1 {
            return self.post_one();
        }
        if receives.taken < receives.next_list {
            return Ok(());
        }
        receives.next_list += receives.list;
        let list = receives.list;
        self.post(list)
    }

    /// Posts up to `count` receives in one list, but no more than messages are to come.
    #[inline(always)]
    pub(super) fn post(&mut self, count: u64) -> Result<(), PostRecvError> {
        let receives = &mut *self.receives;
        let end = receives.awaited.min(receives.posted + count);
        if receives.posted == end {
            return Ok(());
        }
        let mut guard = self.queue.begin();
        while receives.posted < end {
            receives.give(&mut guard);
        }
        guard.post()
    }

    /// Prepares a list of one receive for repeated posting, which is counted here. All messages
    /// arrive at the same location.
    pub(super) fn prepare_one(
        &mut self,
    ) -> Result<(PreparedReceiveList<'_>, &mut ReceiveState), PostRecvError> {
        let ReceiveState { tag, address, lkey, length, .. } = *self.receives;
        let mut guard = self.queue.begin();
        let request = guard.construct_wr(tag.with(0));
        // SAFETY: the memory outlives the queue pair, and no code reads memory of outstanding
        // receives (head of this file), however often the list is posted. The device refuses
        // addresses outside of the region.
        let list = unsafe {
            request.setup_sge(lkey, address, length);
            guard.prepare()?
        };
        Ok((list, self.receives))
    }

    /// Posts a single receive without a loop, so that it stays in registers.
    #[inline(always)]
    fn post_one(&mut self) -> Result<(), PostRecvError> {
        if self.receives.posted == self.receives.awaited {
            return Ok(());
        }
        let mut guard = self.queue.begin();
        self.receives.give(&mut guard);
        guard.post()
    }
}

impl ReceiveState {
    /// Appends the next receive to a list.
    #[inline(always)]
    fn give(&mut self, guard: &mut PostRecvGuard<'_>) {
        let address = self.address + self.cycle.advance();
        let request = guard.construct_wr(self.tag.with(self.posted));
        // SAFETY: the memory outlives the queue pair, and no code reads memory of outstanding
        // receives (head of this file). The device refuses addresses outside of the region.
        unsafe { request.setup_sge(self.lkey, address, self.length) };
        self.posted += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_tells_pair_and_number() {
        for pair in [0, 1, 16383] {
            for number in [0, 1, (1 << 48) - 1] {
                let tag = Tag(Tag::of_pair(pair).with(number));
                assert_eq!((tag.pair(), tag.number()), (pair, number));
            }
        }
    }
}
