//! Posting work requests, and receives for the peer's.
//!
//! # Safety
//!
//! As in `request`; and memory that receives name is read by nobody while they are outstanding.

#![allow(unsafe_code)]

use std::convert::Infallible;

use sideway::ibverbs::queue_pair::{
    BasicSendQueue, ExtendedSendQueue, PostRecvError, PostRecvGuard, PostSendError, PostSendGuard,
    PreparedReceiveList, PreparedSendList, ReceiveQueue, SendQueue, WorkRequestFlags,
};
use sideway::ibverbs::srq::SharedReceiveQueue;

use super::request::{MessageLocation, Request};
use crate::buffers::Cycle;

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

/// A send queue, of which it is known whether a list can be kept.
pub(super) trait ListQueue: SendQueue {
    /// Whether there is a way to keep a list.
    const KEEPS: bool;

    /// A list that is posted again and again.
    type PreparedList<'queue>: PreparedList
    where
        Self: 'queue;

    /// Keeps a list, where there is a way.
    ///
    /// # Safety
    ///
    /// As [`BasicPostSendGuard::prepare`](sideway::ibverbs::queue_pair::BasicPostSendGuard::prepare).
    unsafe fn prepare(guard: Self::Guard<'_>) -> Result<Self::PreparedList<'_>, PostSendError>;
}

/// A list that is posted again and again.
pub(super) trait PreparedList {
    /// Posts all of it once more.
    fn post(&mut self) -> Result<(), PostSendError>;
}

/// As perftest does it.
impl ListQueue for BasicSendQueue {
    const KEEPS: bool = true;

    type PreparedList<'queue> = PreparedSendList<'queue>;

    #[inline(always)]
    unsafe fn prepare(guard: Self::Guard<'_>) -> Result<Self::PreparedList<'_>, PostSendError> {
        // SAFETY: the caller keeps this function's contract, which is that one's.
        unsafe { guard.prepare() }
    }
}

impl PreparedList for PreparedSendList<'_> {
    #[inline(always)]
    fn post(&mut self) -> Result<(), PostSendError> {
        self.post()
    }
}

/// Its requests are built where the device reads them, and gone when they are posted.
impl ListQueue for ExtendedSendQueue {
    const KEEPS: bool = false;

    type PreparedList<'queue> = Infallible;

    #[inline(always)]
    unsafe fn prepare(_: Self::Guard<'_>) -> Result<Self::PreparedList<'_>, PostSendError> {
        unreachable!("whoever asks has asked whether it keeps lists")
    }
}

impl PreparedList for Infallible {
    fn post(&mut self) -> Result<(), PostSendError> {
        match *self {}
    }
}

/// The sending half of a queue pair.
#[derive(Debug)]
pub(super) struct SendPoster<'a, Q> {
    pub(super) queue: &'a mut Q,
    /// Where the first message lies.
    pub(super) place: MessageLocation,
    pub(super) tag: Tag,
}

impl<Q: ListQueue> SendPoster<'_, Q> {
    /// Posts a chain of `count` messages with one doorbell. `next` says which.
    #[inline(always)]
    pub(super) fn post(
        &mut self,
        request: &impl Request,
        count: u32,
        next: impl FnMut() -> PostItem,
    ) -> Result<(), PostSendError> {
        self.build(request, count, next).post()
    }

    /// Prepares such a chain of messages that repeat, of a queue that keeps lists.
    pub(super) fn prepare<'queue>(
        &'queue mut self,
        request: &'queue impl Request,
        count: u32,
        next: impl FnMut() -> PostItem,
    ) -> Result<Q::PreparedList<'queue>, PostSendError> {
        // SAFETY: the memory outlives the queue pair, and nobody writes to a message that is being sent (head of `request`).
        unsafe { Q::prepare(self.build(request, count, next)) }
    }

    #[inline(always)]
    fn build<'queue>(
        &'queue mut self,
        request: &'queue impl Request,
        count: u32,
        mut next: impl FnMut() -> PostItem,
    ) -> Q::Guard<'queue> {
        let MessageLocation { local, remote, .. } = self.place;
        let mut guard = self.queue.start_post_send();
        for _ in 0..count {
            let PostItem { number, signaled, offset } = next();
            let flags = if signaled { WorkRequestFlags::Signaled } else { WorkRequestFlags::empty() };
            let place = MessageLocation { local: local + offset, remote: remote + offset, ..self.place };
            request.build(guard.construct_wr(self.tag.with(number), flags), place, number);
        }
        guard
    }

    /// Posts one message, the first in the memory, whose last byte is `mark`.
    #[inline(always)]
    pub(super) fn post_marked(
        &mut self,
        request: &mut impl Request,
        number: u64,
        mark: u8,
    ) -> Result<(), PostSendError> {
        request.mark(mark);
        self.post(request, 1, || PostItem { number, signaled: true, offset: 0 })
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

/// What receives are posted to.
pub(super) trait ReceiveTarget {
    /// Begins a list of them.
    fn begin(&mut self) -> PostRecvGuard<'_>;
}

impl ReceiveTarget for ReceiveQueue {
    #[inline(always)]
    fn begin(&mut self) -> PostRecvGuard<'_> {
        self.start_post_recv()
    }
}

impl ReceiveTarget for SharedReceiveQueue {
    #[inline(always)]
    fn begin(&mut self) -> PostRecvGuard<'_> {
        self.start_post_recv()
    }
}

/// The receiving half of a queue pair, or of all of them.
#[derive(Debug)]
pub(super) struct ReceivePoster<'a, R> {
    pub(super) queue: &'a mut R,
    pub(super) receives: &'a mut ReceiveState,
}

impl<R: ReceiveTarget> ReceivePoster<'_, R> {
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
