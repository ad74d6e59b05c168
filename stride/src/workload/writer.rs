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
    GenericQueuePair, GenericSendQueue, PostSendError, PostSendGuard, QueuePair, SendQueue, WorkRequestFlags,
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

/// What is done with a channel, whichever calls it posts and polls with.
///
/// Which these are is asked once, before the loop that is measured: what it does for each message is compiled for them.
pub(super) trait Job {
    /// Does it.
    fn run(
        self,
        writer: Writer<'_, impl SendQueue>,
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
        use {GenericCompletionQueue as C, GenericSendQueue as S};
        let Self { queue_pair, completions, memory, target, size, inline, .. } = self;
        let source = Source {
            memory,
            lkey: memory.lkey(),
            address: memory.as_ptr().addr() as u64,
            target: *target,
            size: *size,
            inline: inline.as_deref_mut(),
        };
        match (queue_pair.split().0, completions) {
            (S::Basic(queue), C::Basic(completions)) => job.run(source.to(queue), completions),
            (S::Basic(queue), C::Extended(completions)) => job.run(source.to(queue), completions),
            (S::Extended(queue), C::Basic(completions)) => job.run(source.to(queue), completions),
            (S::Extended(queue), C::Extended(completions)) => job.run(source.to(queue), completions),
        }
    }
}

/// Where messages come from, and where they go.
#[derive(Debug)]
struct Source<'a> {
    memory: &'a RegisteredBuffer,
    lkey: u32,
    address: u64,
    target: Target,
    size: u32,
    inline: Option<&'a mut [u8]>,
}

impl<'a> Source<'a> {
    fn to<Q>(self, queue: &'a mut Q) -> Writer<'a, Q> {
        Writer { queue, source: self }
    }
}

/// Writes from this side's memory to the peer's.
#[derive(Debug)]
pub(super) struct Writer<'a, Q> {
    queue: &'a mut Q,
    /// Of the queue's channel.
    source: Source<'a>,
}

impl<'a, Q: SendQueue> Writer<'a, Q> {
    /// The byte at an offset in this side's memory.
    pub(super) fn flag(&self, offset: u64) -> Flag<'a> {
        Flag::new(self.source.memory.buffer(), offset)
    }

    /// The last byte of the message at the beginning of the memory, if that is where messages come from.
    pub(super) fn last_byte(&self) -> Option<Flag<'a>> {
        self.source.inline.is_none().then(|| self.flag(u64::from(self.source.size) - 1))
    }

    /// Posts a chain of `count` messages with one doorbell. `next` says, for each, its number, whether it
    /// asks for a completion, and its offset.
    #[inline(always)]
    pub(super) fn post(
        &mut self,
        count: u32,
        mut next: impl FnMut() -> Message,
    ) -> Result<(), PostSendError> {
        let Source { lkey, address, target, size, inline, .. } = &self.source;
        let mut guard = self.queue.start_post_send();
        for _ in 0..count {
            let Message { number, signaled, offset } = next();
            let flags = if signaled { WorkRequestFlags::Signaled } else { WorkRequestFlags::empty() };
            let write = guard.construct_wr(number, flags).setup_write(target.rkey, target.address + offset);
            match inline {
                Some(bytes) => write.setup_inline_data(bytes),
                // SAFETY: the memory outlives the queue pair, and nobody writes to the message meanwhile
                // (head of this file). The device refuses what lies outside of the region.
                None => unsafe { write.setup_sge(*lkey, address + offset, *size) },
            }
        }
        guard.post()
    }

    /// Posts one message from the beginning of the memory, whose last byte is `mark`. `last` is what
    /// [`last_byte`](Self::last_byte) said.
    #[inline(always)]
    pub(super) fn post_marked(
        &mut self,
        number: u64,
        mark: u8,
        last: Option<Flag<'_>>,
    ) -> Result<(), PostSendError> {
        match last {
            Some(last) => last.store(mark),
            None => {
                if let Some(last) = self.source.inline.as_mut().and_then(|bytes| bytes.last_mut()) {
                    *last = mark;
                }
            }
        }
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
