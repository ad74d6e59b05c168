//! The classic flavour: `ibv_poll_cq` into a buffer that the queue's handle owns.
//!
//! `ibv_poll_cq` takes completions off the queue as it copies them, so those of a
//! batch that a poller leaves behind when it is dropped are the next poller's.
//! (A poller that is leaked keeps them: they are never given out twice.)

use std::ffi::c_int;
use std::ptr::NonNull;
use std::sync::Arc;

use rdma_mummy_sys::types::{ibv_cq, ibv_wc};

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
    /// The batch's length; not 0.
    room: u32,
    /// The same, to compare with: one that was asked for would be kept in a register across the call.
    limit: u32,
    /// The address of the batch's last place.
    last: usize,
    /// `ibv_poll_cq` of the queue's library, which sets it when it opens the device.
    verb: Poll,
    /// The same; but [`nothing`] if the next poller has to see to something first: a `failure`, or what is `left`.
    poll: Poll,
    /// The completions of the batch that were fetched and not given out, by a poller that was dropped: so many,
    /// from this place on. Both together are at most `room`.
    next: u32,
    left: u32,
    /// What ended a poller early and was not asked for: the next one begins with it.
    failure: c_int,
}

/// What is behind the first completion if there is none: one less than nothing.
const NONE: u32 = u32::MAX;

/// A place that is in no batch.
const NOWHERE: NonNull<ibv_wc> = NonNull::dangling();

/// As `ibv_poll_cq`.
type Poll = unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int;

// SAFETY: the queue is the only handle that polls, and does so from any one thread at a time.
unsafe impl Send for BasicCompletionQueue {}
// SAFETY: `&self` does not poll.
unsafe impl Sync for BasicCompletionQueue {}

super::impl_completion_queue!(BasicCompletionQueue);

impl BasicCompletionQueue {
    /// Fails if the library cannot be polled, or there is no memory for a batch.
    pub(super) fn new(inner: Arc<CqInner>, batch: u32) -> Result<Self, CreateCompletionQueueError> {
        // SAFETY: the queue lives, so its context is open; the operation is in every release's struct.
        let Some(verb) = (unsafe { (*inner.context().as_raw().as_ptr()).ops.poll_cq }) else {
            return Err(CreateCompletionQueueError::Incomplete { operation: "poll_cq" });
        };
        // What `ibv_poll_cq` can say that it found.
        let batch = batch.clamp(1, i32::MAX.cast_unsigned());
        let mut places = Vec::new();
        places.try_reserve_exact(batch as usize).map_err(|_| CreateCompletionQueueError::Ibverbs {
            cqe: batch,
            source: std::io::Error::from_raw_os_error(libc::ENOMEM),
        })?;
        places.resize(batch as usize, ibv_wc::default());
        let cq = inner.as_raw();
        let batch = places.into_boxed_slice();
        let room = batch.len() as u32;
        let last = batch.as_ptr_range().end.wrapping_sub(1).addr();
        Ok(Self { inner, cq, batch, room, limit: room, verb, poll: verb, last, next: 0, left: 0, failure: 0 })
    }

    /// Polls (`ibv_poll_cq`), unless something is left of the last batch. An empty queue's poller yields nothing.
    ///
    /// # Errors
    ///
    /// The device failed, now or under the poller before this one, which did not [`finish`](BasicPoller::finish).
    ///
    /// # References
    ///
    /// `man ibv_poll_cq`
    #[inline]
    pub fn start_poll(&mut self) -> Result<BasicPoller<'_>, PollCompletionQueueError> {
        let (mut at, mut rest) = self.fetch();
        if rest >= self.limit {
            if rest == NONE {
                return Ok(BasicPoller { at: NOWHERE, rest: 0, begun: true, queue: self });
            }
            let (first, left) = self.attend(rest)?;
            // SAFETY: that many places are in the batch.
            at = unsafe { at.add(first) };
            rest = left;
        }
        Ok(BasicPoller { at, rest, begun: false, queue: self })
    }

    /// Fetches a batch: where it is, and how many completions are behind its first. If that is not below `limit`,
    /// there are none ([`NONE`]), or it is not to be believed.
    #[inline]
    fn fetch(&mut self) -> (NonNull<ibv_wc>, u32) {
        let batch = NonNull::from(&mut *self.batch).cast();
        // SAFETY: the queue lives, its handle is borrowed mutably, and `batch` has that much room.
        let found = unsafe { (self.poll)(self.cq.as_ptr(), self.room.cast_signed(), batch.as_ptr()) };
        (batch, found.cast_unsigned().wrapping_sub(1))
    }

    /// Where in the batch the next poller begins and how many completions are behind that, after a
    /// [`fetch`](Self::fetch) that is not to be believed.
    #[cold]
    #[inline(never)]
    fn attend(&mut self, behind: u32) -> Result<(usize, u32), PollCompletionQueueError> {
        if self.left != 0 && self.failure == 0 {
            self.poll = self.verb;
            return Ok((self.next as usize, core::mem::take(&mut self.left) - 1));
        }
        if self.failure == 0
            && let Some(behind) = self.strange(behind)
        {
            return Ok((0, behind));
        }
        Err(self.take_failure())
    }

    /// How many completions are behind the first, when a [`fetch`](Self::fetch) is not to be believed: there is none
    /// at all if the device failed, and no more than there is room for.
    #[cold]
    #[inline(never)]
    fn strange(&mut self, behind: u32) -> Option<u32> {
        let found = behind.wrapping_add(1).cast_signed();
        if found < 0 {
            // The first one: once there is one, nobody polls until it has been told.
            if self.failure == 0 {
                self.failure = found;
            }
            self.poll = nothing;
            return None;
        }
        Some(self.room - 1)
    }

    #[cold]
    #[inline(never)]
    fn take_failure(&mut self) -> PollCompletionQueueError {
        self.poll = if self.left == 0 { self.verb } else { nothing };
        PollCompletionQueueError { verb: "ibv_poll_cq", result: core::mem::take(&mut self.failure) }
    }

    /// Leaves `left` completions of the batch, from `next` on, to the next poller.
    #[cold]
    #[inline(never)]
    fn leave(&mut self, next: NonNull<ibv_wc>, left: u32) {
        self.next = ((next.addr().get() - self.batch.as_ptr().addr()) / size_of::<ibv_wc>()) as u32;
        self.left = left;
        self.poll = nothing;
    }
}

/// In place of the library's, when something has to be seen to before it may be called.
unsafe extern "C" fn nothing(_: *mut ibv_cq, _: c_int, _: *mut ibv_wc) -> c_int {
    c_int::MIN
}

impl std::fmt::Debug for BasicCompletionQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BasicCompletionQueue").field("inner", &self.inner).finish_non_exhaustive()
    }
}

/// A poll of a [`BasicCompletionQueue`]. Dropping it leaves what it has not given out to the next one; leaking it
/// (`mem::forget`) leaks the rest of the batch that it had fetched.
#[must_use = "a poller does nothing until `next` is called"]
#[derive(Debug)]
pub struct BasicPoller<'cq> {
    /// [`next`](Self::next) has been called. (Compilers then know what is different about the first call, and give it
    /// code of its own.)
    begun: bool,
    /// A completion of the batch, which has been given out if `begun`; or [`NOWHERE`], behind the last one of all.
    at: NonNull<ibv_wc>,
    /// How many completions of the batch are behind it.
    rest: u32,
    queue: &'cq mut BasicCompletionQueue,
}

// SAFETY: `at` points into the batch of the queue that is borrowed mutably, which may be sent and shared.
unsafe impl Send for BasicPoller<'_> {}
// SAFETY: `at` points into the batch of the queue that is borrowed mutably, which may be sent and
// shared.
unsafe impl Sync for BasicPoller<'_> {}

impl BasicPoller<'_> {
    /// The next completion, until the queue is empty.
    #[inline]
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Option<BasicWorkCompletion<'_>> {
        if !core::mem::replace(&mut self.begun, true) {
            // It is there.
        } else if let Some(rest) = self.rest.checked_sub(1) {
            self.rest = rest;
            // SAFETY: there is another one behind it.
            self.at = unsafe { self.at.add(1) };
        } else {
            // A batch that was not full had found the end of the queue.
            if self.at.addr().get() != self.queue.last {
                return None;
            }
            let (batch, mut behind) = self.queue.fetch();
            if behind >= self.queue.limit {
                self.at = NOWHERE;
                if behind == NONE {
                    return None;
                }
                behind = self.queue.strange(behind)?;
            }
            (self.at, self.rest) = (batch, behind);
        }
        // SAFETY: `at` is a completion of the batch (above, or since the poll began).
        Some(BasicWorkCompletion { wc: unsafe { self.at.as_ref() } })
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

impl Drop for BasicPoller<'_> {
    #[inline]
    fn drop(&mut self) {
        let left = self.rest + u32::from(!self.begun);
        if left != 0 {
            // SAFETY: there are so many of them from there on.
            self.queue.leave(unsafe { self.at.add(usize::from(self.begun)) }, left);
        }
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
