//! The classic flavour: `ibv_poll_cq` into a buffer that the queue's handle owns.
//!
//! `ibv_poll_cq` takes completions off the queue as it copies them, so those of a
//! batch that a poller leaves behind are the next poller's.

use std::ptr::NonNull;
use std::sync::Arc;

use rdma_mummy_sys::types::{ibv_cq, ibv_wc};
use rdma_mummy_sys::verbs;

use super::status::{
    TagMatchingInfo, WorkCompletionFlags, WorkCompletionOperationType, WorkCompletionStatus,
};
use super::{CqInner, CreateCompletionQueueError, PollCompletionQueueError};

/// A completion queue that is polled by copying out completions (`ibv_cq`).
pub struct BasicCompletionQueue {
    pub(super) inner: Arc<CqInner>,
    /// The same as `inner`'s, one step nearer.
    cq: NonNull<ibv_cq>,
    /// Zeroed once, so that a field that a device leaves alone reads as an old value, not as garbage.
    batch: Box<[ibv_wc]>,
    /// The batch's length.
    room: u32,
    /// The completions of the batch that were fetched and not yet given out: what one poller leaves, the
    /// next one gets. `next` is at most `filled`, which is at most `room`.
    next: u32,
    filled: u32,
    /// What ended a poller early and was not asked for: the next one begins with it.
    failure: core::ffi::c_int,
}

// SAFETY: the queue is the only handle that polls, and does so from any one thread at a time.
unsafe impl Send for BasicCompletionQueue {}
// SAFETY: `&self` does not poll.
unsafe impl Sync for BasicCompletionQueue {}

super::impl_completion_queue!(BasicCompletionQueue);

impl BasicCompletionQueue {
    /// Fails if the library cannot be polled, or there is no memory for a batch.
    pub(super) fn new(inner: Arc<CqInner>, batch: u32) -> Result<Self, CreateCompletionQueueError> {
        // SAFETY: the queue lives, so its context is open; the operation is in every release's struct.
        if unsafe { (*inner.context().as_raw().as_ptr()).ops.poll_cq.is_none() } {
            return Err(CreateCompletionQueueError::Incomplete { operation: "poll_cq" });
        }
        // What `ibv_poll_cq` can say that it found.
        let batch = batch.min(i32::MAX.cast_unsigned());
        let mut places = Vec::new();
        places.try_reserve_exact(batch as usize).map_err(|_| CreateCompletionQueueError::Ibverbs {
            cqe: batch,
            source: std::io::Error::from_raw_os_error(libc::ENOMEM),
        })?;
        places.resize(batch as usize, ibv_wc::default());
        let cq = inner.as_raw();
        Ok(Self { inner, cq, batch: places.into_boxed_slice(), room: batch, next: 0, filled: 0, failure: 0 })
    }

    /// Begins to poll. An empty queue's poller yields nothing.
    ///
    /// # Errors
    ///
    /// The device failed under the poller before this one, which did not [`finish`](BasicPoller::finish).
    #[inline]
    pub fn start_poll(&mut self) -> Result<BasicPoller<'_>, PollCompletionQueueError> {
        if self.failure != 0 {
            return Err(self.take_failure());
        }
        Ok(BasicPoller { queue: self, drained: false })
    }

    #[cold]
    #[inline(never)]
    fn take_failure(&mut self) -> PollCompletionQueueError {
        PollCompletionQueueError { verb: "ibv_poll_cq", result: core::mem::take(&mut self.failure) }
    }

    /// Fetches a batch (`ibv_poll_cq`), when there is nothing left of the last one.
    #[inline]
    fn fetch(&mut self) {
        // SAFETY: the queue lives, its handle is borrowed mutably, and `batch` has that much room.
        let result =
            unsafe { verbs::ibv_poll_cq(self.cq.as_ptr(), self.room.cast_signed(), self.batch.as_mut_ptr()) };
        self.next = 0;
        self.filled = result.cast_unsigned();
        if self.filled > self.room {
            self.filled = self.strange(result);
        }
    }

    /// How many completions there are, when the device failed, or said that it filled more than there is room for:
    /// that is not believed.
    #[cold]
    #[inline(never)]
    fn strange(&mut self, result: core::ffi::c_int) -> u32 {
        if result < 0 {
            self.failure = result;
            return 0;
        }
        self.room
    }
}

impl std::fmt::Debug for BasicCompletionQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BasicCompletionQueue").field("inner", &self.inner).finish_non_exhaustive()
    }
}

/// A poll of a [`BasicCompletionQueue`].
#[must_use = "a poller does nothing until `next` is called"]
#[derive(Debug)]
pub struct BasicPoller<'cq> {
    queue: &'cq mut BasicCompletionQueue,
    /// The last batch was not full: it had found the end of the queue.
    drained: bool,
}

impl BasicPoller<'_> {
    /// Fetches the next batch; whether anything is in it.
    #[inline]
    fn fetch(&mut self) -> bool {
        self.queue.fetch();
        // A full batch may not be all.
        self.drained = self.queue.filled != self.queue.room;
        self.queue.filled != 0
    }

    /// The next completion, until the queue is empty.
    #[inline]
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Option<BasicWorkCompletion<'_>> {
        if self.queue.next == self.queue.filled && (self.drained || !self.fetch()) {
            return None;
        }
        let index = self.queue.next as usize;
        self.queue.next += 1;
        // SAFETY: `next` was less than `filled`, which is at most the batch's length.
        Some(BasicWorkCompletion { wc: unsafe { self.queue.batch.get_unchecked(index) } })
    }

    /// Says whether [`next`](Self::next) stopped because of a failure instead of an empty queue. Without
    /// this call, the next poller begins with it.
    ///
    /// # Errors
    ///
    /// The device failed.
    pub fn finish(self) -> Result<(), PollCompletionQueueError> {
        if self.queue.failure == 0 { Ok(()) } else { Err(self.queue.take_failure()) }
    }
}

/// A completion, as `ibv_poll_cq` copied it.
#[derive(Clone, Copy)]
pub struct BasicWorkCompletion<'poll> {
    wc: &'poll ibv_wc,
}

impl BasicWorkCompletion<'_> {
    /// The number that the work request was given.
    #[inline]
    pub fn wr_id(&self) -> u64 {
        self.wc.wr_id
    }

    /// How the work request ended.
    #[inline]
    pub fn status(&self) -> WorkCompletionStatus {
        WorkCompletionStatus::from_raw(self.wc.status.0)
    }

    /// What kind of work request ended; after an error [`NotTold`](WorkCompletionOperationType::NotTold).
    #[inline]
    pub fn opcode(&self) -> WorkCompletionOperationType {
        if self.status() != WorkCompletionStatus::Success {
            return WorkCompletionOperationType::NotTold;
        }
        WorkCompletionOperationType::from_raw(self.wc.opcode.0)
    }

    /// The vendor's own error number; 0 where there is none.
    #[inline]
    pub fn vendor_err(&self) -> u32 {
        self.wc.vendor_err
    }

    /// What comes with the completion; nothing after an error.
    #[inline]
    pub fn wc_flags(&self) -> WorkCompletionFlags {
        if self.status() != WorkCompletionStatus::Success {
            return WorkCompletionFlags::empty();
        }
        WorkCompletionFlags::from_bits_retain(self.wc.wc_flags)
    }

    /// Immediate data, in host byte order; `None` if the message had none.
    #[inline]
    pub fn imm_data(&self) -> Option<u32> {
        if !self.wc_flags().contains(WorkCompletionFlags::WithImmediate) {
            return None;
        }
        // SAFETY: both members of the union are 32 bits of any value, and the struct is initialised.
        Some(u32::from_be(unsafe { self.wc.__bindgen_anon_1.imm_data }))
    }

    /// The local key that the peer's message took out of use; `None` if it did not.
    #[inline]
    pub fn invalidated_rkey(&self) -> Option<u32> {
        if !self.wc_flags().contains(WorkCompletionFlags::WithInvalidate) {
            return None;
        }
        // SAFETY: both members of the union are 32 bits of any value, and the struct is initialised.
        Some(unsafe { self.wc.__bindgen_anon_1.invalidated_rkey })
    }

    /// How many bytes were received or read. A classic queue always has this field.
    #[inline]
    pub fn byte_len(&self) -> Option<u32> {
        Some(self.wc.byte_len)
    }

    /// The number of the local queue pair. A classic queue always has this field.
    #[inline]
    pub fn qp_num(&self) -> Option<u32> {
        Some(self.wc.qp_num)
    }

    /// The number of the sender's queue pair (UD). A classic queue always has this field.
    #[inline]
    pub fn src_qp(&self) -> Option<u32> {
        Some(self.wc.src_qp)
    }

    /// The sender's LID. A classic queue always has this field.
    #[inline]
    pub fn slid(&self) -> Option<u32> {
        Some(u32::from(self.wc.slid))
    }

    /// The service level. A classic queue always has this field.
    #[inline]
    pub fn sl(&self) -> Option<u8> {
        Some(self.wc.sl)
    }

    /// The path bits of the destination LID. A classic queue always has this field.
    #[inline]
    pub fn dlid_path_bits(&self) -> Option<u8> {
        Some(self.wc.dlid_path_bits)
    }

    /// A classic queue has no timestamps.
    #[inline]
    pub fn completion_timestamp(&self) -> Option<u64> {
        None
    }

    /// A classic queue has no timestamps.
    #[inline]
    pub fn completion_timestamp_wallclock(&self) -> Option<u64> {
        None
    }

    /// The index of the partition key that the message came with (UD).
    #[inline]
    pub fn pkey_index(&self) -> Option<u16> {
        Some(self.wc.pkey_index)
    }

    /// A classic queue has no VLAN tags.
    #[inline]
    pub fn cvlan(&self) -> Option<u16> {
        None
    }

    /// A classic queue has no flow tags.
    #[inline]
    pub fn flow_tag(&self) -> Option<u32> {
        None
    }

    /// A classic queue has no tags of messages.
    #[inline]
    pub fn tm_info(&self) -> Option<TagMatchingInfo> {
        None
    }
}

impl std::fmt::Debug for BasicWorkCompletion<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BasicWorkCompletion")
            .field("wr_id", &self.wr_id())
            .field("status", &self.status())
            .finish_non_exhaustive()
    }
}
