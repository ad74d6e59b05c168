//! Posting RDMA writes.
//!
//! # Safety
//!
//! The memory that a work request names belongs to the writer, whose fields are dropped in this order: the
//! queue pair first, and with it every outstanding request, then the memory, which is never freed if the device
//! does not let go of it. Nobody writes to a message that
//! is being sent: bandwidth tests do not write at all, and latency tests write the last byte of a message
//! only after the completion of the one before has been polled.

#![allow(unsafe_code)]

use sideway::ibverbs::queue_pair::{
    GenericQueuePair, PostSendError, PostSendGuard, QueuePair, WorkRequestFlags,
};
use sideway::memory::RegisteredBuffer;

use crate::buffers::Flag;

/// Where the peer's memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Target {
    /// The key to it.
    pub(super) rkey: u32,
    /// The first byte that may be written.
    pub(super) address: u64,
}

/// Writes from this side's memory to the peer's.
#[derive(Debug)]
pub(super) struct Writer {
    // Before the memory: see the head of this file.
    queue_pair: GenericQueuePair,
    memory: RegisteredBuffer,
    target: Target,
    size: u32,
    /// The message, if it is copied into the work request.
    inline: Option<Vec<u8>>,
    inline_size: u32,
}

impl Writer {
    /// A writer of messages of no bytes yet; messages of up to `inline_size` are copied into the request.
    pub(super) fn new(
        queue_pair: GenericQueuePair,
        memory: RegisteredBuffer,
        target: Target,
        inline_size: u32,
    ) -> Self {
        Self { queue_pair, memory, target, size: 0, inline: None, inline_size }
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

    /// Posts a chain of `count` messages with one doorbell. `next` says, for each, its number, whether it
    /// asks for a completion, and its offset.
    #[inline]
    pub(super) fn post(
        &mut self,
        count: u32,
        mut next: impl FnMut() -> Message,
    ) -> Result<(), PostSendError> {
        let address = self.memory.as_ptr().addr() as u64;
        let mut guard = self.queue_pair.start_post_send();
        for _ in 0..count {
            let Message { number, signaled, offset } = next();
            let flags = if signaled { WorkRequestFlags::Signaled } else { WorkRequestFlags::empty() };
            let write =
                guard.construct_wr(number, flags).setup_write(self.target.rkey, self.target.address + offset);
            match &self.inline {
                Some(bytes) => write.setup_inline_data(bytes),
                // SAFETY: the memory outlives the queue pair, and nobody writes to the message meanwhile
                // (head of this file). The device refuses what lies outside of the region.
                None => unsafe { write.setup_sge(self.memory.lkey(), address + offset, self.size) },
            }
        }
        guard.post()
    }

    /// Posts one message from the beginning of the memory, whose last byte is `mark`.
    #[inline]
    pub(super) fn post_marked(&mut self, number: u64, mark: u8) -> Result<(), PostSendError> {
        match self.inline.as_mut().and_then(|bytes| bytes.last_mut()) {
            Some(last) => *last = mark,
            None => self.flag(u64::from(self.size) - 1).store(mark),
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
