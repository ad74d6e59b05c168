//! Posting RDMA writes.
//!
//! # Safety
//!
//! The memory that a work request names belongs to the [`Channel`], whose fields are dropped in this order: the
//! queue pair first, and with it every outstanding request, then the memory, which is never freed if the device
//! does not let go of it. Nobody writes to a message that
//! is being sent: bandwidth tests do not write at all, and latency tests write the last byte of a message
//! only after the completion of the one before has been polled.

#![allow(unsafe_code)]

use sideway::ibverbs::completion::GenericCompletionQueue;
use sideway::ibverbs::queue_pair::{
    GenericQueuePair, GenericSendQueue, LocalBufferHandle, PostSendError, PostSendGuard, QueuePair,
    SendQueue, WorkRequestFlags,
};
use sideway::memory::RegisteredBuffer;

use super::Completions;
use crate::buffers::Flag;
use crate::error::Error;

/// Where the peer's memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Target {
    /// The key to it.
    pub(super) rkey: u32,
    /// The first byte that may be written.
    pub(super) address: u64,
}

/// A connected queue pair, its completions, and both sides' memory.
#[derive(Debug)]
pub(super) struct Channel {
    // Before the memory: see the head of this file.
    queue_pair: GenericQueuePair,
    completions: GenericCompletionQueue,
    memory: RegisteredBuffer,
    target: Target,
    size: u32,
    /// The message, if it is copied into the work request.
    inline: Option<Vec<u8>>,
    inline_size: u32,
}

/// What is done with a channel, whichever calls it posts and polls with, and wherever its messages come from.
///
/// Which and where is asked once, before the loop that is measured: what it does for each message is compiled for that.
pub(super) trait Job {
    /// Does it.
    fn run(
        self,
        writer: Writer<'_, impl SendQueue, impl Payload>,
        completions: &mut impl Completions,
    ) -> Result<u64, Error>;
}

impl Channel {
    /// A channel for messages of no bytes yet; messages of up to `inline_size` are copied into the request.
    pub(super) fn new(
        queue_pair: GenericQueuePair,
        completions: GenericCompletionQueue,
        memory: RegisteredBuffer,
        target: Target,
        inline_size: u32,
    ) -> Self {
        Self { queue_pair, completions, memory, target, size: 0, inline: None, inline_size }
    }

    /// Makes messages this long from now on.
    pub(super) fn resize(&mut self, size: u32) {
        self.size = size;
        self.inline = (size > 0 && size <= self.inline_size).then(|| vec![0; size as usize]);
    }

    /// The byte at an offset in this side's memory.
    pub(super) fn flag(&self, offset: u64) -> Flag<'_> {
        Flag::new(self.memory.buffer(), offset)
    }

    /// Does a job, with the calls that this channel posts and polls with.
    pub(super) fn run(&mut self, job: impl Job) -> Result<u64, Error> {
        let Self { queue_pair, completions, memory, target, size, inline, .. } = self;
        let place = Place { memory, target: *target };
        match inline {
            Some(bytes) => place.run(Inline(bytes), queue_pair, completions, job),
            None => {
                let last = Flag::new(memory.buffer(), u64::from(*size) - 1);
                let address = memory.as_ptr().addr() as u64;
                let registered = Registered { lkey: memory.lkey(), address, size: *size, last };
                place.run(registered, queue_pair, completions, job)
            }
        }
    }
}

/// Where the bytes of messages come from.
pub(super) trait Payload {
    /// Gives a request the message at this offset.
    fn give(&self, write: LocalBufferHandle<'_, impl PostSendGuard>, offset: u64);
    /// Makes this the last byte of the first message.
    fn mark(&mut self, mark: u8);
}

/// A message that is copied into each work request.
#[derive(Debug)]
struct Inline<'a>(&'a mut [u8]);

impl Payload for Inline<'_> {
    #[inline(always)]
    fn give(&self, write: LocalBufferHandle<'_, impl PostSendGuard>, _: u64) {
        write.setup_inline_data(self.0);
    }

    #[inline(always)]
    fn mark(&mut self, mark: u8) {
        if let Some(last) = self.0.last_mut() {
            *last = mark;
        }
    }
}

/// Messages in the channel's memory.
#[derive(Debug)]
struct Registered<'a> {
    lkey: u32,
    address: u64,
    size: u32,
    /// The last byte of the message at the beginning.
    last: Flag<'a>,
}

impl Payload for Registered<'_> {
    #[inline(always)]
    fn give(&self, write: LocalBufferHandle<'_, impl PostSendGuard>, offset: u64) {
        // SAFETY: the memory outlives the queue pair, and nobody writes to the message meanwhile (head of this file). The
        // device refuses what lies outside of the region.
        unsafe { write.setup_sge(self.lkey, self.address + offset, self.size) }
    }

    #[inline(always)]
    fn mark(&mut self, mark: u8) {
        self.last.store(mark);
    }
}

/// Where messages go, and where the peer's come to.
#[derive(Clone, Copy, Debug)]
struct Place<'a> {
    memory: &'a RegisteredBuffer,
    target: Target,
}

impl Place<'_> {
    fn run(
        self,
        payload: impl Payload,
        queue_pair: &mut GenericQueuePair,
        completions: &mut GenericCompletionQueue,
        job: impl Job,
    ) -> Result<u64, Error> {
        use {GenericCompletionQueue as C, GenericSendQueue as S};
        let place = self;
        match (queue_pair.split().0, completions) {
            (S::Basic(queue), C::Basic(cq)) => job.run(Writer { queue, payload, place }, cq),
            (S::Basic(queue), C::Extended(cq)) => job.run(Writer { queue, payload, place }, cq),
            (S::Extended(queue), C::Basic(cq)) => job.run(Writer { queue, payload, place }, cq),
            (S::Extended(queue), C::Extended(cq)) => job.run(Writer { queue, payload, place }, cq),
        }
    }
}

/// Writes messages to the peer's memory.
#[derive(Debug)]
pub(super) struct Writer<'a, Q, P> {
    queue: &'a mut Q,
    payload: P,
    /// Of the queue's channel.
    place: Place<'a>,
}

impl<'a, Q: SendQueue, P: Payload> Writer<'a, Q, P> {
    /// The byte at an offset in this side's memory.
    pub(super) fn flag(&self, offset: u64) -> Flag<'a> {
        Flag::new(self.place.memory.buffer(), offset)
    }

    /// Posts a chain of `count` messages with one doorbell. `next` says, for each, its number, whether it
    /// asks for a completion, and its offset.
    #[inline(always)]
    pub(super) fn post(
        &mut self,
        count: u32,
        mut next: impl FnMut() -> Message,
    ) -> Result<(), PostSendError> {
        let Target { rkey, address } = self.place.target;
        let mut guard = self.queue.start_post_send();
        for _ in 0..count {
            let Message { number, signaled, offset } = next();
            let flags = if signaled { WorkRequestFlags::Signaled } else { WorkRequestFlags::empty() };
            let write = guard.construct_wr(number, flags).setup_write(rkey, address + offset);
            self.payload.give(write, offset);
        }
        guard.post()
    }

    /// Posts one message, the first in the memory, whose last byte is `mark`.
    #[inline(always)]
    pub(super) fn post_marked(&mut self, number: u64, mark: u8) -> Result<(), PostSendError> {
        self.payload.mark(mark);
        self.post(1, || Message { number, signaled: true, offset: 0 })
    }
}

/// A message to be posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Message {
    /// Comes back with the completion.
    pub(super) number: u64,
    /// Whether there is one.
    pub(super) signaled: bool,
    /// Where the message lies in this side's memory, and where it goes in the peer's.
    pub(super) offset: u64,
}
