//! The extended flavour: `ibv_start_poll`, `ibv_next_poll`, `ibv_end_poll`.
//!
//! # Safety
//!
//! What the unsafe code here relies on, and where it comes from:
//!
//! - `cq` is a live `ibv_cq_ex`: [`ExtendedCompletionQueue::new`] takes it from
//!   `ibv_create_cq_ex`, and the handle keeps its `CqInner` alive.
//! - The operations that every poll needs are not null, and those of the
//!   fields in `fields` neither: `new` checks them, and libraries set them
//!   once, when they make the queue.
//! - Nobody else polls it: the poller borrows the handle mutably, and the
//!   handle is the only one.
//! - A poll is open while `last` says so. A poller that is leaked leaves it open; the next one, or the
//!   handle's drop, ends it first.
//! - The cursor is on a completion while an [`ExtendedWorkCompletion`] exists:
//!   it borrows the poller, which moves the cursor only through `&mut self`.

use std::ffi::c_int;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;

use rdma_mummy_sys::types::{ibv_cq_ex, ibv_poll_cq_attr, ibv_wc_tm_info};
use rdma_mummy_sys::{cq_ex_op, verbs};

use super::status::{
    TagMatchingInfo, WorkCompletionFlags, WorkCompletionOperationType, WorkCompletionStatus,
};
use super::{CqInner, CreateCompletionQueueError, PollCompletionQueueError, WorkCompletionFields};

/// A completion queue that is polled in place (`ibv_cq_ex`).
#[derive(Debug)]
pub struct ExtendedCompletionQueue {
    pub(super) inner: Arc<CqInner>,
    /// The same as `inner`'s, one step nearer.
    cq: NonNull<ibv_cq_ex>,
    fields: WorkCompletionFields,
    /// How a poll goes on to the next completion.
    advance: Advance,
    /// How a poll ends behind the last one.
    end: End,
    /// What the last poll came to: [`OPEN`]; [`IDLE`], to an end; or to a failure, which the next poller begins with
    /// if it is not asked for.
    last: c_int,
    /// Nothing is asked for. It lies here so that nobody has to write it for each poll.
    attr: ibv_poll_cq_attr,
}

/// A poll is on a completion, says the call that moved it there.
const OPEN: c_int = 0;
/// There is no further one, says the same call: the poll has been ended.
const IDLE: c_int = libc::ENOENT;

/// A call that moves the cursor of an open poll: 0, or why there is no further completion.
type Advance = unsafe extern "C" fn(*mut ibv_cq_ex) -> c_int;

/// A call after an [`Advance`] that found none.
type End = unsafe extern "C" fn(*mut ibv_cq_ex);

// SAFETY: the queue is the only handle that polls, and does so from any one thread at a time.
unsafe impl Send for ExtendedCompletionQueue {}
// SAFETY: `&self` does not poll.
unsafe impl Sync for ExtendedCompletionQueue {}

super::impl_completion_queue!(ExtendedCompletionQueue);

impl ExtendedCompletionQueue {
    /// # Safety
    ///
    /// `inner` is a queue that `ibv_create_cq_ex` made with `wanted` as its `wc_flags`.
    pub(super) unsafe fn new(
        inner: Arc<CqInner>,
        wanted: WorkCompletionFields,
    ) -> Result<Self, CreateCompletionQueueError> {
        // SAFETY: the caller says that it is an `ibv_cq_ex`, made with these fields.
        let ops = unsafe { Operations::of(inner.as_raw().cast(), wanted) };
        if let Some(operation) = ops.missing() {
            return Err(CreateCompletionQueueError::Incomplete { operation });
        }
        let end_after_each = inner.context().quirks().end_poll_after_each;
        let cq: NonNull<ibv_cq_ex> = inner.as_raw().cast();
        // SAFETY: the caller says that it is an `ibv_cq_ex`, made with these fields.
        let calls = unsafe {
            (
                cq_ex_op!(cq.as_ptr(), next_poll, wanted.bits()),
                cq_ex_op!(cq.as_ptr(), end_poll, wanted.bits()),
            )
        };
        let (advance, end): (Advance, End) = match calls {
            (Some(next_poll), Some(end_poll)) if !end_after_each => (next_poll, end_poll),
            _ => (end_and_start, has_ended),
        };
        let attr = ibv_poll_cq_attr { comp_mask: 0 };
        Ok(Self { fields: ops.readable() & wanted, cq, advance, end, last: IDLE, attr, inner })
    }

    /// Ends a poll whose poller was leaked, and gives out a failure that was not asked for.
    #[cold]
    #[inline(never)]
    fn attend(&mut self) -> Result<(), PollCompletionQueueError> {
        match core::mem::replace(&mut self.last, IDLE) {
            IDLE => {}
            OPEN => {
                // SAFETY: a poll is open, and nobody uses it any more.
                unsafe { verbs::ibv_end_poll(self.cq.as_ptr()) };
            }
            result => return Err(PollCompletionQueueError { verb: "ibv_next_poll", result }),
        }
        Ok(())
    }

    /// The queue, for calls that must not find a poll open: libraries hold a lock as long as one is.
    pub(super) fn without_poll(&mut self) -> &CqInner {
        if self.last == OPEN {
            let _ = self.attend();
        }
        &self.inner
    }

    /// The fields that this queue's completions have.
    pub fn fields(&self) -> WorkCompletionFields {
        self.fields
    }

    /// Begins to poll. An empty queue's poller yields nothing.
    ///
    /// `ibv_start_poll` itself is called by the poller's first [`next`](ExtendedPoller::next): a library
    /// that has started cannot give the completion back, and a poller that is dropped must not lose one.
    ///
    /// # Errors
    ///
    /// The device failed under the poller before this one, which did not [`finish`](ExtendedPoller::finish).
    #[inline]
    pub fn start_poll(&mut self) -> Result<ExtendedPoller<'_>, PollCompletionQueueError> {
        if self.last != IDLE {
            self.attend()?;
        }
        Ok(ExtendedPoller { cq: self.cq, cursor: Cursor::Ahead, queue: self })
    }
}

/// An [`Advance`] that ends the poll after each completion; see `Quirks`. Where it finds none, no poll is open.
///
/// # Safety
///
/// `cq` lives, and a poll of it is open.
unsafe extern "C" fn end_and_start(cq: *mut ibv_cq_ex) -> c_int {
    let mut attr = ibv_poll_cq_attr { comp_mask: 0 };
    // SAFETY: a poll is open, and ending it allows the next to start.
    unsafe {
        verbs::ibv_end_poll(cq);
        verbs::ibv_start_poll(cq, &raw mut attr)
    }
}

/// The [`End`] that belongs to it.
unsafe extern "C" fn has_ended(_: *mut ibv_cq_ex) {}

/// Where a poll stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cursor {
    /// Ahead of the first completion: nothing has been started.
    Ahead,
    /// On a completion that has been given out.
    Given,
    /// The poll is ended: behind the last completion, or by a failure.
    Ended,
}

/// A poll of an [`ExtendedCompletionQueue`]. It ends behind the last completion, or when it is dropped.
///
/// It stays on its thread, as libraries hold a lock from `ibv_start_poll` to `ibv_end_poll`. For the same
/// reason, do not reset or drop a queue pair that completes into this queue while a poller is open: a
/// library that has to clean the queue waits for the poll to end.
#[must_use = "a poller does nothing until `next` is called"]
#[derive(Debug)]
pub struct ExtendedPoller<'cq> {
    cq: NonNull<ibv_cq_ex>,
    cursor: Cursor,
    queue: &'cq mut ExtendedCompletionQueue,
}

impl ExtendedPoller<'_> {
    /// The next completion (`ibv_start_poll`, then `ibv_next_poll`), until the queue is empty.
    ///
    /// Not an `Iterator`: a completion is read from the queue's cursor, so it has to go before the
    /// cursor moves on.
    #[inline]
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Option<ExtendedWorkCompletion<'_>> {
        match self.cursor {
            Cursor::Ahead => {
                // SAFETY: see the head of this file; no poll is open, and the attributes are the queue's own.
                let result = unsafe { verbs::ibv_start_poll(self.cq.as_ptr(), &raw mut self.queue.attr) };
                self.queue.last = result;
                if result != OPEN {
                    super::unlikely();
                    self.cursor = Cursor::Ended;
                    return None;
                }
                self.cursor = Cursor::Given;
            }
            Cursor::Given => {
                // SAFETY: a poll is open and on a completion; the call is the queue's own, or made of such.
                let result = unsafe { (self.queue.advance)(self.cq.as_ptr()) };
                if result != OPEN {
                    self.queue.last = result;
                    // SAFETY: the call that belongs to the one above, which found no completion.
                    unsafe { (self.queue.end)(self.cq.as_ptr()) };
                    self.cursor = Cursor::Ended;
                    return None;
                }
            }
            Cursor::Ended => return None,
        }
        Some(ExtendedWorkCompletion { cq: self.cq, fields: self.queue.fields, poller: PhantomData })
    }

    /// Ends the poll, and says whether [`next`](Self::next) stopped because of a failure instead of an empty
    /// queue. Without this call, the next poller begins with it.
    ///
    /// # Errors
    ///
    /// The device failed.
    #[inline]
    pub fn finish(self) -> Result<(), PollCompletionQueueError> {
        match self.cursor {
            // Who spins comes here each time.
            Cursor::Ended if self.queue.last != IDLE => self.queue.attend(),
            _ => Ok(()),
        }
    }
}

impl Drop for ExtendedPoller<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.cursor == Cursor::Given {
            // SAFETY: the cursor says that a poll is open; nothing uses it after this.
            unsafe { verbs::ibv_end_poll(self.cq.as_ptr()) };
            self.queue.last = IDLE;
        }
    }
}

impl Drop for ExtendedCompletionQueue {
    #[inline]
    fn drop(&mut self) {
        if self.last == OPEN {
            let _ = self.attend();
        }
    }
}

/// A completion, read from its queue's cursor.
#[derive(Clone, Copy, Debug)]
pub struct ExtendedWorkCompletion<'poll> {
    cq: NonNull<ibv_cq_ex>,
    fields: WorkCompletionFields,
    poller: PhantomData<&'poll ()>,
}

impl ExtendedWorkCompletion<'_> {
    /// The queue, for a plug-in of direct verbs.
    #[cfg(feature = "efa")]
    #[inline]
    pub(crate) fn queue(&self) -> NonNull<ibv_cq_ex> {
        self.cq
    }

    /// The number that the work request was given.
    #[inline]
    pub fn wr_id(&self) -> u64 {
        // SAFETY: the cursor is on a completion (head of this file).
        unsafe { (*self.cq.as_ptr()).wr_id }
    }

    /// How the work request ended.
    #[inline]
    pub fn status(&self) -> WorkCompletionStatus {
        // SAFETY: the cursor is on a completion (head of this file).
        WorkCompletionStatus::from_raw(unsafe { (*self.cq.as_ptr()).status }.0)
    }

    /// What kind of work request ended (`ibv_wc_read_opcode`); after an error
    /// [`NotTold`](WorkCompletionOperationType::NotTold).
    #[inline]
    pub fn opcode(&self) -> WorkCompletionOperationType {
        if self.status() != WorkCompletionStatus::Success {
            return WorkCompletionOperationType::NotTold;
        }
        // SAFETY: the cursor is on a successful completion and the reader is there (head of this file).
        WorkCompletionOperationType::from_raw(unsafe { verbs::ibv_wc_read_opcode(self.cq.as_ptr()) }.0)
    }

    /// The vendor's own error number (`ibv_wc_read_vendor_err`); 0 where there is none.
    #[inline]
    pub fn vendor_err(&self) -> u32 {
        // SAFETY: the cursor is on a completion and the reader is there (head of this file).
        unsafe { verbs::ibv_wc_read_vendor_err(self.cq.as_ptr()) }
    }

    /// What comes with the completion (`ibv_wc_read_wc_flags`); nothing after an error.
    #[inline]
    pub fn wc_flags(&self) -> WorkCompletionFlags {
        if self.status() != WorkCompletionStatus::Success {
            return WorkCompletionFlags::empty();
        }
        // SAFETY: the cursor is on a completion and the reader is there (head of this file).
        WorkCompletionFlags::from_bits_retain(unsafe { verbs::ibv_wc_read_wc_flags(self.cq.as_ptr()) })
    }

    /// Immediate data (`ibv_wc_read_imm_data`), in host byte order; `None` if the message had none or the queue has no such field.
    #[inline]
    pub fn imm_data(&self) -> Option<u32> {
        if !self.fields.contains(WorkCompletionFields::Imm)
            || !self.wc_flags().contains(WorkCompletionFlags::WithImmediate)
        {
            return None;
        }
        // SAFETY: the cursor is on a completion and the reader is there (head of this file).
        Some(u32::from_be(unsafe { verbs::ibv_wc_read_imm_data(self.cq.as_ptr()) }))
    }

    /// The local key that the peer's message took out of use (`ibv_wc_read_invalidated_rkey`); `None` if it did not or the queue has no such field,
    /// which is that of immediate data.
    #[inline]
    pub fn invalidated_rkey(&self) -> Option<u32> {
        if !self.fields.contains(WorkCompletionFields::Imm)
            || !self.wc_flags().contains(WorkCompletionFlags::WithInvalidate)
        {
            return None;
        }
        // SAFETY: the cursor is on a completion and the reader is there (head of this file).
        Some(unsafe { verbs::ibv_wc_read_invalidated_rkey(self.cq.as_ptr()) })
    }

    /// An extended queue has no index of a partition key.
    #[inline]
    pub fn pkey_index(&self) -> Option<u16> {
        None
    }

    /// The tag that the message was matched by (`ibv_wc_read_tm_info`). `None` if the queue was not made with this field.
    #[inline]
    pub fn tm_info(&self) -> Option<TagMatchingInfo> {
        if !self.fields.contains(WorkCompletionFields::TmInfo) {
            return None;
        }
        let mut info = ibv_wc_tm_info::default();
        // SAFETY: the cursor is on a completion and the reader is there (head of this file); `info` is a valid place.
        unsafe { verbs::ibv_wc_read_tm_info(self.cq.as_ptr(), &raw mut info) };
        Some(TagMatchingInfo { tag: info.tag, private: info.priv_ })
    }
}

/// A reader of a field that a queue may lack.
macro_rules! optional_fields {
    ($($(#[$doc:meta])* $name:ident: $ty:ty, $field:ident, $read:ident;)*) => {
        impl ExtendedWorkCompletion<'_> {
            $(
                $(#[$doc])*
                /// `None` if the queue was not made with this field.
                #[inline]
                pub fn $name(&self) -> Option<$ty> {
                    if !self.fields.contains(WorkCompletionFields::$field) {
                        return None;
                    }
                    // SAFETY: the cursor is on a completion and the reader is there (head of this file).
                    Some(unsafe { verbs::$read(self.cq.as_ptr()) })
                }
            )*
        }
    };
}

optional_fields! {
    /// How many bytes were received or read (`ibv_wc_read_byte_len`).
    byte_len: u32, ByteLen, ibv_wc_read_byte_len;
    /// The number of the local queue pair (`ibv_wc_read_qp_num`).
    qp_num: u32, QpNum, ibv_wc_read_qp_num;
    /// The number of the sender's queue pair (UD) (`ibv_wc_read_src_qp`).
    src_qp: u32, SrcQp, ibv_wc_read_src_qp;
    /// The sender's LID (`ibv_wc_read_slid`).
    slid: u32, Slid, ibv_wc_read_slid;
    /// The service level (`ibv_wc_read_sl`).
    sl: u8, Sl, ibv_wc_read_sl;
    /// The path bits of the destination LID (`ibv_wc_read_dlid_path_bits`).
    dlid_path_bits: u8, DlidPathBits, ibv_wc_read_dlid_path_bits;
    /// The device's clock when the work completed, in its own ticks (`ibv_wc_read_completion_ts`).
    completion_timestamp: u64, CompletionTimestamp, ibv_wc_read_completion_ts;
    /// The time of day when the work completed, in nanoseconds since 1970 (`ibv_wc_read_completion_wallclock_ns`).
    completion_timestamp_wallclock: u64, CompletionTimestampWallclock, ibv_wc_read_completion_wallclock_ns;
    /// The VLAN tag that was taken off the packet (`ibv_wc_read_cvlan`).
    cvlan: u16, Cvlan, ibv_wc_read_cvlan;
    /// The tag that a flow rule put on the packet (`ibv_wc_read_flow_tag`).
    flow_tag: u32, FlowTag, ibv_wc_read_flow_tag;
}

/// Which operations a queue has.
struct Operations {
    required: [(&'static str, bool); 6],
    readable: [(WorkCompletionFields, bool); 12],
}

impl Operations {
    /// # Safety
    ///
    /// `cq` is a live `ibv_cq_ex` that was made with `wanted` as its `wc_flags`.
    unsafe fn of(cq: NonNull<ibv_cq_ex>, wanted: WorkCompletionFields) -> Self {
        macro_rules! has {
            ($member:ident) => {
                // SAFETY: the caller guarantees (`# Safety`) that `cq` is a live `ibv_cq_ex` that
                // was made with `wanted` as its `wc_flags`.
                unsafe { cq_ex_op!(cq.as_ptr(), $member, wanted.bits()) }.is_some()
            };
        }
        use WorkCompletionFields as W;
        Self {
            required: [
                ("start_poll", has!(start_poll)),
                ("next_poll", has!(next_poll)),
                ("end_poll", has!(end_poll)),
                ("read_opcode", has!(read_opcode)),
                ("read_vendor_err", has!(read_vendor_err)),
                ("read_wc_flags", has!(read_wc_flags)),
            ],
            readable: [
                (W::ByteLen, has!(read_byte_len)),
                (W::Imm, has!(read_imm_data)),
                (W::QpNum, has!(read_qp_num)),
                (W::SrcQp, has!(read_src_qp)),
                (W::Slid, has!(read_slid)),
                (W::Sl, has!(read_sl)),
                (W::DlidPathBits, has!(read_dlid_path_bits)),
                (W::CompletionTimestamp, has!(read_completion_ts)),
                (W::CompletionTimestampWallclock, has!(read_completion_wallclock_ns)),
                (W::Cvlan, has!(read_cvlan)),
                (W::FlowTag, has!(read_flow_tag)),
                (W::TmInfo, has!(read_tm_info)),
            ],
        }
    }

    fn missing(&self) -> Option<&'static str> {
        self.required.iter().find(|(_, there)| !there).map(|(name, _)| *name)
    }

    fn readable(&self) -> WorkCompletionFields {
        self.readable.iter().filter(|(_, there)| *there).map(|(field, _)| *field).collect()
    }
}
