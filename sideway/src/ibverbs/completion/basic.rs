//! The classic flavour: `ibv_poll_cq` into a buffer that the queue's handle owns.

use std::sync::Arc;

use rdma_mummy_sys::types::ibv_wc;
use rdma_mummy_sys::verbs;

use super::status::{WorkCompletionFlags, WorkCompletionOperationType, WorkCompletionStatus};
use super::{CqInner, PollCompletionQueueError};

/// A completion queue that is polled by copying out completions (`ibv_cq`).
pub struct BasicCompletionQueue {
    pub(super) inner: Arc<CqInner>,
    /// Zeroed once, so that a field that a device leaves alone reads as an old value, not as garbage.
    batch: Box<[ibv_wc]>,
}

super::impl_completion_queue!(BasicCompletionQueue);

impl BasicCompletionQueue {
    pub(super) fn new(inner: Arc<CqInner>, batch: u32) -> Self {
        Self { inner, batch: vec![ibv_wc::default(); batch as usize].into_boxed_slice() }
    }

    /// Fetches what is there (`ibv_poll_cq`), as much as one batch holds. An empty queue's poller yields
    /// nothing.
    ///
    /// # Errors
    ///
    /// The device failed.
    #[inline]
    pub fn start_poll(&mut self) -> Result<BasicPoller<'_>, PollCompletionQueueError> {
        let mut poller = BasicPoller { queue: self, next: 0, filled: 0, error: 0 };
        if poller.fetch() { Ok(poller) } else { Err(PollCompletionQueueError::new(poller.error)) }
    }
}

impl std::fmt::Debug for BasicCompletionQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BasicCompletionQueue").field("inner", &self.inner).finish_non_exhaustive()
    }
}

/// An open poll of a [`BasicCompletionQueue`].
#[must_use = "a poller does nothing until `next` is called"]
#[derive(Debug)]
pub struct BasicPoller<'cq> {
    queue: &'cq mut BasicCompletionQueue,
    next: usize,
    filled: usize,
    error: core::ffi::c_int,
}

impl BasicPoller<'_> {
    /// The next completion, until the queue is empty.
    #[inline]
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Option<BasicWorkCompletion<'_>> {
        if self.next == self.filled {
            // A batch that was not full had found the end of the queue.
            if self.filled < self.queue.batch.len() || !self.fetch() || self.filled == 0 {
                return None;
            }
        }
        let index = self.next;
        self.next += 1;
        self.queue.batch.get(index).map(|wc| BasicWorkCompletion { wc })
    }

    /// Fetches a batch; false if the device failed.
    #[inline]
    fn fetch(&mut self) -> bool {
        let batch = &mut self.queue.batch;
        let room = i32::try_from(batch.len()).unwrap_or(i32::MAX);
        // SAFETY: the queue lives, its handle is borrowed mutably, and `batch` has that much room.
        let result =
            unsafe { verbs::ibv_poll_cq(self.queue.inner.as_raw().as_ptr(), room, batch.as_mut_ptr()) };
        self.next = 0;
        match usize::try_from(result) {
            // A device that says it filled more than there is room for is not believed.
            Ok(filled) => self.filled = filled.min(batch.len()),
            Err(_) => {
                self.filled = 0;
                self.error = result;
            }
        }
        result >= 0
    }

    /// Says whether [`next`](Self::next) stopped because of a failure instead of an empty queue.
    ///
    /// # Errors
    ///
    /// The device failed.
    pub fn finish(self) -> Result<(), PollCompletionQueueError> {
        if self.error == 0 { Ok(()) } else { Err(PollCompletionQueueError::new(self.error)) }
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

    /// What kind of work request ended. Meaningless after an error.
    #[inline]
    pub fn opcode(&self) -> WorkCompletionOperationType {
        WorkCompletionOperationType::from_raw(self.wc.opcode.0)
    }

    /// The vendor's own error number; 0 where there is none.
    #[inline]
    pub fn vendor_err(&self) -> u32 {
        self.wc.vendor_err
    }

    /// What comes with the completion.
    #[inline]
    pub fn wc_flags(&self) -> WorkCompletionFlags {
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
}

impl std::fmt::Debug for BasicWorkCompletion<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BasicWorkCompletion")
            .field("wr_id", &self.wr_id())
            .field("status", &self.status())
            .finish_non_exhaustive()
    }
}
