//! The classic completion queue: `ibv_poll_cq` copies completions into a buffer that the queue's
//! handle owns.
//!
//! `ibv_poll_cq` removes completions from the queue as it copies them. If a poller is dropped
//! before it has returned the whole batch, the next poller returns the rest. A poller that is
//! leaked keeps its rest, so that no completion is returned twice.

use std::ffi::c_int;
use std::ptr::NonNull;
use std::sync::Arc;

use rdma_mummy_sys::types::{ibv_cq, ibv_wc};

use super::status::{
    TagMatchingInfo, WorkCompletionFlags, WorkCompletionOperationType, WorkCompletionStatus,
};
use super::{CqInner, CreateCompletionQueueError, PollCompletionQueueError};

/// A completion queue that is polled by copying completions out of it (`ibv_cq`).
pub struct BasicCompletionQueue {
    pub(super) inner: Arc<CqInner>,
    /// `inner`'s pointer, copied here to save an indirection on the poll path.
    cq: NonNull<ibv_cq>,
    /// Zeroed once, so that a field that a device leaves alone reads as an old value, not as
    /// uninitialised memory.
    batch: Box<[ibv_wc]>,
    /// The batch's length, at least 1.
    room: u32,
    /// `room` once more, for the comparison after a poll. The compiler would keep `room` itself in
    /// a register across the call, because it is also an argument.
    limit: u32,
    /// The address of the batch's last element.
    last: usize,
    /// `ibv_poll_cq` of the device's library, which sets it when it opens the device.
    verb: Poll,
    /// The function that the next poll calls: `verb`, or [`nothing`] while a `failure` or `left`
    /// completions are pending.
    poll: Poll,
    /// A dropped poller fetched, but did not return, `left` completions of the batch from index
    /// `next` on. Their sum is at most `room`.
    next: u32,
    left: u32,
    /// The negative result that ended a poller early and that no caller has seen; the next poller
    /// reports it. 0 if there is none.
    failure: c_int,
}

/// `found - 1` for an empty queue: [`BasicCompletionQueue::fetch`] returns how many completions
/// follow the first.
const NONE: u32 = u32::MAX;

/// A pointer that lies in no batch: the poller is behind the last completion.
const NOWHERE: NonNull<ibv_wc> = NonNull::dangling();

/// The signature of `ibv_poll_cq`.
type Poll = unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int;

// SAFETY: only this handle polls, and polling takes `&mut self`, so one thread at a time does it.
unsafe impl Send for BasicCompletionQueue {}
// SAFETY: no method polls through `&self`.
unsafe impl Sync for BasicCompletionQueue {}

super::impl_completion_queue!(BasicCompletionQueue);

impl BasicCompletionQueue {
    /// Fails if the library has no `poll_cq` operation, or if the batch cannot be allocated.
    pub(super) fn new(inner: Arc<CqInner>, batch: u32) -> Result<Self, CreateCompletionQueueError> {
        // SAFETY: `inner` keeps the queue and so its context alive, and every release's context
        // struct has this operation.
        let Some(verb) = (unsafe { (*inner.context().as_raw().as_ptr()).ops.poll_cq }) else {
            return Err(CreateCompletionQueueError::Incomplete { operation: "poll_cq" });
        };
        // `ibv_poll_cq` returns a `c_int`, so a batch must not be larger.
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

    /// Polls the queue (`ibv_poll_cq`), unless the last poller left completions. The poller of an
    /// empty queue yields nothing.
    ///
    /// # Errors
    ///
    /// Fails if the device failed, now or under the poller before this one, which did not
    /// [`finish`](BasicPoller::finish).
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
            // SAFETY: `first` is an index into the batch: `attend` returns 0, or `next`, which
            // `leave` computed from the batch.
            at = unsafe { at.add(first) };
            rest = left;
        }
        Ok(BasicPoller { at, rest, begun: false, queue: self })
    }

    /// Fetches a batch. Returns its address and how many completions follow the first.
    ///
    /// A count at or above `limit` is not a normal result: [`NONE`] stands for an empty queue,
    /// other values need [`attend`](Self::attend).
    #[inline]
    fn fetch(&mut self) -> (NonNull<ibv_wc>, u32) {
        let batch = NonNull::from(&mut *self.batch).cast();
        // SAFETY: `self` keeps the queue alive and is borrowed mutably, so nobody else polls;
        // `batch` has room for `room` completions.
        let found = unsafe { (self.poll)(self.cq.as_ptr(), self.room.cast_signed(), batch.as_ptr()) };
        (batch, found.cast_unsigned().wrapping_sub(1))
    }

    /// Decides how to continue after an abnormal [`fetch`](Self::fetch): returns the index in the
    /// batch at which the next poller starts, and how many completions follow it.
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

    /// How many completions follow the first after an abnormal [`fetch`](Self::fetch). `None` if
    /// the device failed; otherwise the count is limited to the batch.
    #[cold]
    #[inline(never)]
    fn strange(&mut self, behind: u32) -> Option<u32> {
        let found = behind.wrapping_add(1).cast_signed();
        if found < 0 {
            // Only the first failure is kept; after it, no poll reaches the library until a caller
            // has seen it.
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

    /// Keeps `left` completions of the batch, from `next` on, for the next poller.
    #[cold]
    #[inline(never)]
    fn leave(&mut self, next: NonNull<ibv_wc>, left: u32) {
        self.next = ((next.addr().get() - self.batch.as_ptr().addr()) / size_of::<ibv_wc>()) as u32;
        self.left = left;
        self.poll = nothing;
    }
}

/// Stands in for `ibv_poll_cq` while leftover completions or a failure must be handled first. Its
/// result is never a valid count.
unsafe extern "C" fn nothing(_: *mut ibv_cq, _: c_int, _: *mut ibv_wc) -> c_int {
    c_int::MIN
}

impl std::fmt::Debug for BasicCompletionQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BasicCompletionQueue").field("inner", &self.inner).finish_non_exhaustive()
    }
}

/// A poll of a [`BasicCompletionQueue`].
///
/// Dropping it leaves the completions that it has not returned to the next poller. Leaking it
/// (`mem::forget`) loses the rest of the batch that it fetched.
#[must_use = "a poller does nothing until `next` is called"]
#[derive(Debug)]
pub struct BasicPoller<'cq> {
    /// Whether [`next`](Self::next) was called. The flag lets the compiler generate separate code
    /// for the first call.
    begun: bool,
    /// A completion of the batch, which `next` has returned if `begun`; or [`NOWHERE`] behind the
    /// last one of all.
    at: NonNull<ibv_wc>,
    /// How many completions of the batch follow `at`.
    rest: u32,
    queue: &'cq mut BasicCompletionQueue,
}

// SAFETY: `at` points into the batch of the queue that is borrowed mutably, and that queue is
// `Send`.
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
            // The first completion is already at `at`.
        } else if let Some(rest) = self.rest.checked_sub(1) {
            self.rest = rest;
            // SAFETY: `rest` was at least 1, so another completion of the batch follows `at`.
            self.at = unsafe { self.at.add(1) };
        } else {
            // A batch that was not full emptied the queue, so another poll is not needed.
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
        // SAFETY: `at` is a completion of the batch: it was set above, or when the poll began.
        Some(BasicWorkCompletion { wc: unsafe { self.at.as_ref() } })
    }

    /// Returns the failure that stopped [`next`](Self::next), if it was not the end of the queue.
    /// Without this call, the next poller reports the failure first.
    ///
    /// # Errors
    ///
    /// Fails if the device failed.
    #[inline]
    pub fn finish(self) -> Result<(), PollCompletionQueueError> {
        if self.queue.failure == 0 { Ok(()) } else { Err(self.queue.take_failure()) }
    }
}

impl Drop for BasicPoller<'_> {
    #[inline]
    fn drop(&mut self) {
        let left = self.rest + u32::from(!self.begun);
        if left != 0 {
            // SAFETY: `left` completions of the batch start at this address.
            self.queue.leave(unsafe { self.at.add(usize::from(self.begun)) }, left);
        }
    }
}

/// A completion, copied by `ibv_poll_cq`.
#[derive(Clone, Copy)]
pub struct BasicWorkCompletion<'poll> {
    wc: &'poll ibv_wc,
}

impl BasicWorkCompletion<'_> {
    /// The number that the program gave the work request.
    #[inline]
    pub fn wr_id(&self) -> u64 {
        self.wc.wr_id
    }

    /// How the work request ended.
    #[inline]
    pub fn status(&self) -> WorkCompletionStatus {
        WorkCompletionStatus::from_raw(self.wc.status.0)
    }

    /// The kind of work request that ended; [`NotTold`](WorkCompletionOperationType::NotTold) after
    /// an error.
    #[inline]
    pub fn opcode(&self) -> WorkCompletionOperationType {
        if self.status() != WorkCompletionStatus::Success {
            return WorkCompletionOperationType::NotTold;
        }
        WorkCompletionOperationType::from_raw(self.wc.opcode.0)
    }

    /// The vendor's own error code; 0 without an error.
    #[inline]
    pub fn vendor_err(&self) -> u32 {
        self.wc.vendor_err
    }

    /// Which optional parts the completion has; none after an error.
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
        // SAFETY: both members of the union are 32 bits for which all values are valid, and the
        // struct is initialised.
        Some(u32::from_be(unsafe { self.wc.__bindgen_anon_1.imm_data }))
    }

    /// The local key that the peer's message invalidated; `None` if it invalidated none.
    #[inline]
    pub fn invalidated_rkey(&self) -> Option<u32> {
        if !self.wc_flags().contains(WorkCompletionFlags::WithInvalidate) {
            return None;
        }
        // SAFETY: both members of the union are 32 bits for which all values are valid, and the
        // struct is initialised.
        Some(unsafe { self.wc.__bindgen_anon_1.invalidated_rkey })
    }

    /// The number of bytes received or read. A classic queue always has this field.
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

    /// Always `None`: a classic queue has no timestamps.
    #[inline]
    pub fn completion_timestamp(&self) -> Option<u64> {
        None
    }

    /// Always `None`: a classic queue has no timestamps.
    #[inline]
    pub fn completion_timestamp_wallclock(&self) -> Option<u64> {
        None
    }

    /// The index of the partition key that the message came with (UD).
    #[inline]
    pub fn pkey_index(&self) -> Option<u16> {
        Some(self.wc.pkey_index)
    }

    /// Always `None`: a classic queue has no VLAN tags.
    #[inline]
    pub fn cvlan(&self) -> Option<u16> {
        None
    }

    /// Always `None`: a classic queue has no flow tags.
    #[inline]
    pub fn flow_tag(&self) -> Option<u32> {
        None
    }

    /// Always `None`: a classic queue has no message tags.
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
