//! Posting work requests, and receives for the peer's.
//!
//! # Safety
//!
//! As in `request`; and memory that receives name is read by nobody while they are outstanding.

#![allow(unsafe_code)]

use std::fmt::Debug;

use sideway::ibverbs::queue_pair::{
    BasicSendQueue, ExtendedSendQueue, PostRecvError, PostRecvGuard, PostSendError, PostSendGuard,
    PreparedReceiveList, PreparedSendList, ReceiveQueue, SendQueue, WorkRequestFlags,
};
use sideway::ibverbs::srq::SharedReceiveQueue;

use super::Chain;
use super::request::{MessageLocation, Payload, Verb, VerbTraits};
use stride_base::buffers::{Cycle, Flag};

/// The number of a work request, and which queue pair's it is, as its completion says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tag(pub(super) u64);

impl Tag {
    const NUMBER_BITS: u32 = 48;

    /// Of the first request of this queue pair.
    pub(super) fn of_pair(pair: usize) -> Self {
        Self((pair as u64) << Self::NUMBER_BITS)
    }

    /// Of a request of the same queue pair.
    #[inline(always)]
    fn with(self, number: u64) -> u64 {
        self.0 | number
    }

    /// The queue pair.
    #[inline(always)]
    pub(super) fn pair(self) -> usize {
        (self.0 >> Self::NUMBER_BITS) as usize
    }

    /// How many requests were posted before it.
    #[inline(always)]
    pub(super) fn number(self) -> u64 {
        self.0 & ((1 << Self::NUMBER_BITS) - 1)
    }
}

/// A message to be posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PostItem {
    /// Comes back with the completion.
    pub(super) number: u64,
    /// Whether there is one.
    pub(super) signaled: bool,
    /// Where the message lies in this side's memory, and where in the peer's.
    pub(super) offset: u64,
}

/// A send queue, of which it is known whether it keeps lists.
pub(super) trait ListQueue: SendQueue + Debug {
    /// Whether a list can be kept, to be posted again.
    const KEEPS: bool;

    /// Keeps a list.
    ///
    /// # Safety
    ///
    /// As [`BasicPostSendGuard::prepare`](sideway::ibverbs::queue_pair::BasicPostSendGuard::prepare).
    unsafe fn prepare(guard: Self::Guard<'_>) -> Result<PreparedSendList<'_>, PostSendError>;
}

impl ListQueue for BasicSendQueue {
    const KEEPS: bool = true;

    unsafe fn prepare(guard: Self::Guard<'_>) -> Result<PreparedSendList<'_>, PostSendError> {
        // SAFETY: the caller keeps this function's contract, which is that one's.
        unsafe { guard.prepare() }
    }
}

/// Its requests are built where the device reads them, and gone when they are posted.
impl ListQueue for ExtendedSendQueue {
    const KEEPS: bool = false;

    unsafe fn prepare(_: Self::Guard<'_>) -> Result<PreparedSendList<'_>, PostSendError> {
        unreachable!("callers check that it keeps lists")
    }
}

/// Posts the messages of one queue pair. A test chooses its implementation once, as perftest does its post function, so that the
/// measured loops are compiled once for all operations and queues.
pub(super) trait SendPoster: Debug {
    fn traits(&self) -> VerbTraits;

    /// Posts the next list of a chain with one doorbell.
    fn post_list(&mut self, chain: &mut Chain) -> Result<(), PostSendError>;

    /// Posts one message.
    fn post_one(&mut self, item: PostItem) -> Result<(), PostSendError>;

    /// Posts one message, the first in the memory, whose last byte is `mark` if the verb is marked.
    fn post_marked(&mut self, number: u64, mark: u8) -> Result<(), PostSendError>;

    /// Keeps a list of `count` messages, to be posted again and again, if the queue can and the messages are alike.
    fn prepare(
        &mut self,
        count: u32,
        next: &mut dyn FnMut() -> PostItem,
    ) -> Option<Result<PreparedSendList<'_>, PostSendError>>;
}

/// The [`SendPoster`] of a flavour of queues and a verb.
#[derive(Debug)]
pub(super) struct VerbPoster<'a, Q, V> {
    pub(super) queue: &'a mut Q,
    /// The first message's.
    pub(super) location: MessageLocation,
    pub(super) tag: Tag,
    pub(super) verb: V,
    pub(super) payload: Payload<'a>,
    /// The last byte of the first message in registered memory.
    pub(super) last: Flag<'a>,
}

impl<Q: ListQueue, V: Verb> VerbPoster<'_, Q, V> {
    #[inline(always)]
    fn build(&mut self, count: u32, mut next: impl FnMut() -> PostItem) -> Q::Guard<'_> {
        let Self { queue, location: first, tag, verb, payload, .. } = self;
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

impl<Q: ListQueue, V: Verb> SendPoster for VerbPoster<'_, Q, V> {
    fn traits(&self) -> VerbTraits {
        V::TRAITS
    }

    fn post_list(&mut self, chain: &mut Chain) -> Result<(), PostSendError> {
        chain.begin_list();
        self.build(chain.list, || chain.next()).post()
    }

    fn post_one(&mut self, item: PostItem) -> Result<(), PostSendError> {
        self.build(1, || item).post()
    }

    fn post_marked(&mut self, number: u64, mark: u8) -> Result<(), PostSendError> {
        if V::TRAITS.is_marked {
            match self.payload {
                Payload::Inline(bytes) => {
                    if let Some(last) = bytes.last() {
                        last.set(mark);
                    }
                }
                _ => self.last.store(mark),
            }
        }
        self.build(1, || PostItem { number, signaled: true, offset: 0 }).post()
    }

    fn prepare(
        &mut self,
        count: u32,
        next: &mut dyn FnMut() -> PostItem,
    ) -> Option<Result<PreparedSendList<'_>, PostSendError>> {
        if !Q::KEEPS || !V::TRAITS.repeats {
            return None;
        }
        // SAFETY: the memory outlives the queue pair, and nobody writes to a message that is being sent (head of `request`).
        Some(unsafe { Q::prepare(self.build(count, next)) })
    }
}

/// The receives of a queue: as many as messages come, and no more at a time than fit.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReceiveState {
    pub(super) lkey: u32,
    /// Where the first message comes to.
    pub(super) address: u64,
    /// The longest message.
    pub(super) length: u32,
    /// How messages move on from there.
    pub(super) cycle: Cycle,
    /// How many messages are to come, and receives to be posted.
    pub(super) awaited: u64,
    /// How many there have been.
    pub(super) posted: u64,
    /// How many messages have taken one.
    pub(super) taken: u64,
    /// How many are posted at a time.
    pub(super) list: u64,
    /// After how many messages the next list is posted.
    pub(super) next_list: u64,
    pub(super) tag: Tag,
}

/// The queue that receives are posted to.
#[derive(Debug)]
pub(super) enum ReceiveTarget<'a> {
    /// A queue pair's.
    Own(&'a mut ReceiveQueue),
    /// That of all queue pairs of a side.
    Shared(&'a mut SharedReceiveQueue),
}

impl ReceiveTarget<'_> {
    /// Begins a list of them.
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
    /// A message has taken a receive: posts as many as a list has whenever so many were taken, as long as more are to come.
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

    /// Posts so many receives, or as many as messages are still to come, in one list.
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

    /// Keeps a list of one receive, to be posted again and again, which is counted here: of messages that do not move through
    /// the memory.
    pub(super) fn prepare_one(
        &mut self,
    ) -> Result<(PreparedReceiveList<'_>, &mut ReceiveState), PostRecvError> {
        let ReceiveState { tag, address, lkey, length, .. } = *self.receives;
        let mut guard = self.queue.begin();
        let request = guard.construct_wr(tag.with(0));
        // SAFETY: the memory outlives the queue pair, and nobody reads what is outstanding (head of this file), however often
        // it is posted. The device refuses what lies outside of the region.
        let list = unsafe {
            request.setup_sge(lkey, address, length);
            guard.prepare()?
        };
        Ok((list, self.receives))
    }

    /// The same of one: a list that is no loop stays in registers.
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
    /// Appends the next one to a list.
    #[inline(always)]
    fn give(&mut self, guard: &mut PostRecvGuard<'_>) {
        let address = self.address + self.cycle.advance();
        let request = guard.construct_wr(self.tag.with(self.posted));
        // SAFETY: the memory outlives the queue pair, and nobody reads what is outstanding (head of this file). The device
        // refuses what lies outside of the region.
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
