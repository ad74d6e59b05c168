//! The extended completion queue: `ibv_start_poll`, `ibv_next_poll`, `ibv_end_poll`.
//!
//! # Safety
//!
//! The unsafe code in this module relies on these invariants:
//!
//! - `cq` is a live `ibv_cq_ex`: [`ExtendedCompletionQueue::new`] takes it from `ibv_create_cq_ex`,
//!   and the handle keeps its `CqInner` alive.
//! - The operations that every poll needs, and those of the fields in `fields`, are not null. `new`
//!   checks them, and libraries set them once, when they make the queue.
//! - Nobody else polls the queue: the poller borrows the handle mutably, and the handle is the only
//!   one.
//! - A poll is open while `last` is `OPEN`. A poller that is leaked leaves it open; the next
//!   poller, or the handle's drop, ends it first.
//! - The cursor is on a completion while an [`ExtendedWorkCompletion`] exists: it borrows the
//!   poller, which moves the cursor only through `&mut self`.

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

/// A completion queue that is polled in place, without copies (`ibv_cq_ex`).
#[derive(Debug)]
pub struct ExtendedCompletionQueue {
    pub(super) inner: Arc<CqInner>,
    /// `inner`'s pointer, copied here to save an indirection on the poll path.
    cq: NonNull<ibv_cq_ex>,
    fields: WorkCompletionFields,
    /// The function that moves an open poll to the next completion.
    advance: Advance,
    /// The function that ends a poll after `advance` found no completion.
    end: End,
    /// The last poll's result: [`OPEN`], [`IDLE`] if it ended normally, or the error that ended it.
    /// The next poller reports an error that no caller has seen.
    last: c_int,
    /// Always empty. It is a field so that a poll does not have to write it.
    attr: ibv_poll_cq_attr,
}

/// The poll is on a completion: the call that moved it there returned this.
const OPEN: c_int = 0;
/// No further completion, as the library reports it; the poll has ended.
const IDLE: c_int = libc::ENOENT;

/// Moves the cursor of an open poll. Returns 0, or the reason why no completion follows.
type Advance = unsafe extern "C" fn(*mut ibv_cq_ex) -> c_int;

/// Called after an [`Advance`] that found no completion.
type End = unsafe extern "C" fn(*mut ibv_cq_ex);

// SAFETY: only this handle polls, and polling takes `&mut self`, so one thread at a time does it.
unsafe impl Send for ExtendedCompletionQueue {}
// SAFETY: no method polls through `&self`.
unsafe impl Sync for ExtendedCompletionQueue {}

super::impl_completion_queue!(ExtendedCompletionQueue);

impl ExtendedCompletionQueue {
    /// # Safety
    ///
    /// `inner` must be a queue that `ibv_create_cq_ex` made with `wanted` as its `wc_flags`.
    pub(super) unsafe fn new(
        inner: Arc<CqInner>,
        wanted: WorkCompletionFields,
    ) -> Result<Self, CreateCompletionQueueError> {
        // SAFETY: the caller guarantees an `ibv_cq_ex` that was made with these fields.
        let ops = unsafe { Operations::of(inner.as_raw().cast(), wanted) };
        if let Some(operation) = ops.missing() {
            return Err(CreateCompletionQueueError::Incomplete { operation });
        }
        let end_after_each = inner.context().quirks().end_poll_after_each;
        let cq: NonNull<ibv_cq_ex> = inner.as_raw().cast();
        // SAFETY: the caller guarantees an `ibv_cq_ex` that was made with these fields.
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

    /// Ends a poll whose poller was leaked, or returns a failure that no caller has seen.
    #[cold]
    #[inline(never)]
    fn attend(&mut self) -> Result<(), PollCompletionQueueError> {
        match core::mem::replace(&mut self.last, IDLE) {
            IDLE => {}
            OPEN => {
                // SAFETY: `last` is `OPEN`, so a poll is open, and its poller is gone because
                // `self` is borrowed mutably.
                unsafe { verbs::ibv_end_poll(self.cq.as_ptr()) };
            }
            result => return Err(PollCompletionQueueError { verb: "ibv_next_poll", result }),
        }
        Ok(())
    }

    /// The queue, with no poll open. Libraries hold a lock while a poll is open, so calls that take
    /// the lock need this.
    pub(super) fn without_poll(&mut self) -> &CqInner {
        if self.last == OPEN {
            let _ = self.attend();
        }
        &self.inner
    }

    /// The optional fields of this queue's completions.
    pub fn fields(&self) -> WorkCompletionFields {
        self.fields
    }

    /// Starts to poll. The poller of an empty queue yields nothing.
    ///
    /// The poller's first [`next`](ExtendedPoller::next) calls `ibv_start_poll`, not this function.
    /// A library that has started cannot put the completion back, and a poller that is dropped must
    /// not lose one.
    ///
    /// # Errors
    ///
    /// Fails if the device failed under the poller before this one, which did not
    /// [`finish`](ExtendedPoller::finish).
    #[inline]
    pub fn start_poll(&mut self) -> Result<ExtendedPoller<'_>, PollCompletionQueueError> {
        if self.last != IDLE {
            self.attend()?;
        }
        Ok(ExtendedPoller { cq: self.cq, cursor: Cursor::Ahead, queue: self })
    }
}

/// An [`Advance`] that ends the poll after each completion and starts another; see `Quirks`. If it
/// finds no completion, no poll is open.
///
/// # Safety
///
/// `cq` must be alive, with a poll open.
unsafe extern "C" fn end_and_start(cq: *mut ibv_cq_ex) -> c_int {
    let mut attr = ibv_poll_cq_attr { comp_mask: 0 };
    // SAFETY: the caller guarantees an open poll, and ending it allows the next to start.
    unsafe {
        verbs::ibv_end_poll(cq);
        verbs::ibv_start_poll(cq, &raw mut attr)
    }
}

/// The [`End`] for [`end_and_start`], which has already ended the poll.
unsafe extern "C" fn has_ended(_: *mut ibv_cq_ex) {}

/// The position of a poll.
///
/// It has 4 bytes, because a poller that is moved is copied by words of 4 bytes or more. A load of
/// such a word waits until a store of fewer bytes has left the processor's store buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
enum Cursor {
    /// Before the first completion: `ibv_start_poll` was not called yet.
    Ahead,
    /// On a completion that `next` has returned.
    Given,
    /// Behind the last completion, or ended by a failure.
    Ended,
}

/// A poll of an [`ExtendedCompletionQueue`]. It ends behind the last completion, or when it is
/// dropped.
///
/// It stays on its thread because libraries hold a lock from `ibv_start_poll` to `ibv_end_poll`.
/// For the same reason, do not reset or drop a queue pair that completes into this queue while a
/// poller is open. A library that has to clean the queue waits for the poll to end.
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
    /// This is not an `Iterator` because a completion is read at the queue's cursor, so it must be
    /// dropped before the cursor moves on.
    #[inline]
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Option<ExtendedWorkCompletion<'_>> {
        match self.cursor {
            Cursor::Ahead => {
                // SAFETY: the queue is alive and no other poll is open (module head); the
                // attributes belong to the queue.
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
                // SAFETY: a poll is open and on a completion, which `Cursor::Given` says. `new`
                // took `advance` from this queue, or chose `end_and_start`.
                let result = unsafe { (self.queue.advance)(self.cq.as_ptr()) };
                if result != OPEN {
                    self.queue.last = result;
                    // SAFETY: `advance` found no completion, and `new` chose `end` to go with it.
                    unsafe { (self.queue.end)(self.cq.as_ptr()) };
                    self.cursor = Cursor::Ended;
                    return None;
                }
            }
            Cursor::Ended => return None,
        }
        Some(ExtendedWorkCompletion { cq: self.cq, fields: self.queue.fields, poller: PhantomData })
    }

    /// Ends the poll, and returns the failure that stopped [`next`](Self::next), if it was not the
    /// end of the queue. Without this call, the next poller reports the failure first.
    ///
    /// # Errors
    ///
    /// Fails if the device failed.
    #[inline]
    pub fn finish(self) -> Result<(), PollCompletionQueueError> {
        match self.cursor {
            // A program that busy-polls an empty queue takes this path each time.
            Cursor::Ended if self.queue.last != IDLE => self.queue.attend(),
            _ => Ok(()),
        }
    }
}

impl Drop for ExtendedPoller<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.cursor == Cursor::Given {
            // SAFETY: `Cursor::Given` says that a poll is open, and nothing uses it after this.
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

/// A completion, read at its queue's cursor.
#[derive(Clone, Copy, Debug)]
pub struct ExtendedWorkCompletion<'poll> {
    cq: NonNull<ibv_cq_ex>,
    fields: WorkCompletionFields,
    poller: PhantomData<&'poll ()>,
}

impl ExtendedWorkCompletion<'_> {
    /// The C queue, for [`direct`](crate::direct).
    #[inline]
    pub(crate) fn queue(&self) -> NonNull<ibv_cq_ex> {
        self.cq
    }

    /// The number that the program gave the work request.
    #[inline]
    pub fn wr_id(&self) -> u64 {
        // SAFETY: the cursor is on a completion (module head).
        unsafe { (*self.cq.as_ptr()).wr_id }
    }

    /// How the work request ended.
    #[inline]
    pub fn status(&self) -> WorkCompletionStatus {
        // SAFETY: the cursor is on a completion (module head).
        WorkCompletionStatus::from_raw(unsafe { (*self.cq.as_ptr()).status }.0)
    }

    /// The kind of work request that ended (`ibv_wc_read_opcode`);
    /// [`NotTold`](WorkCompletionOperationType::NotTold) after an error.
    #[inline]
    pub fn opcode(&self) -> WorkCompletionOperationType {
        if self.status() != WorkCompletionStatus::Success {
            return WorkCompletionOperationType::NotTold;
        }
        // SAFETY: the cursor is on a successful completion, and `new` checked this reader (module
        // head).
        WorkCompletionOperationType::from_raw(unsafe { verbs::ibv_wc_read_opcode(self.cq.as_ptr()) }.0)
    }

    /// The vendor's own error code (`ibv_wc_read_vendor_err`); 0 without an error.
    #[inline]
    pub fn vendor_err(&self) -> u32 {
        // SAFETY: the cursor is on a completion, and `new` checked this reader (module head).
        unsafe { verbs::ibv_wc_read_vendor_err(self.cq.as_ptr()) }
    }

    /// Which optional parts the completion has (`ibv_wc_read_wc_flags`); none after an error.
    #[inline]
    pub fn wc_flags(&self) -> WorkCompletionFlags {
        if self.status() != WorkCompletionStatus::Success {
            return WorkCompletionFlags::empty();
        }
        // SAFETY: the cursor is on a completion, and `new` checked this reader (module head).
        WorkCompletionFlags::from_bits_retain(unsafe { verbs::ibv_wc_read_wc_flags(self.cq.as_ptr()) })
    }

    /// Immediate data (`ibv_wc_read_imm_data`), in host byte order. `None` if the message had none
    /// or the queue has no such field.
    #[inline]
    pub fn imm_data(&self) -> Option<u32> {
        if !self.fields.contains(WorkCompletionFields::Imm)
            || !self.wc_flags().contains(WorkCompletionFlags::WithImmediate)
        {
            return None;
        }
        // SAFETY: the cursor is on a completion, and `new` checked this reader (module head).
        Some(u32::from_be(unsafe { verbs::ibv_wc_read_imm_data(self.cq.as_ptr()) }))
    }

    /// The local key that the peer's message invalidated (`ibv_wc_read_invalidated_rkey`). `None`
    /// if it invalidated none, or if the queue was made without the field for immediate data, which
    /// this shares.
    #[inline]
    pub fn invalidated_rkey(&self) -> Option<u32> {
        if !self.fields.contains(WorkCompletionFields::Imm)
            || !self.wc_flags().contains(WorkCompletionFlags::WithInvalidate)
        {
            return None;
        }
        // SAFETY: the cursor is on a completion, and `new` checked this reader (module head).
        Some(unsafe { verbs::ibv_wc_read_invalidated_rkey(self.cq.as_ptr()) })
    }

    /// Always `None`: an extended queue has no partition key index.
    #[inline]
    pub fn pkey_index(&self) -> Option<u16> {
        None
    }

    /// The tag by which the message was matched (`ibv_wc_read_tm_info`). `None` if the queue was
    /// made without this field.
    #[inline]
    pub fn tm_info(&self) -> Option<TagMatchingInfo> {
        if !self.fields.contains(WorkCompletionFields::TmInfo) {
            return None;
        }
        let mut info = ibv_wc_tm_info::default();
        // SAFETY: the cursor is on a completion, and `new` checked this reader (module head);
        // `info` is a local variable.
        unsafe { verbs::ibv_wc_read_tm_info(self.cq.as_ptr(), &raw mut info) };
        Some(TagMatchingInfo { tag: info.tag, private: info.priv_ })
    }
}

/// Defines a reader for a field that a queue may lack.
macro_rules! optional_fields {
    ($($(#[$doc:meta])* $name:ident: $ty:ty, $field:ident, $read:ident;)*) => {
        impl ExtendedWorkCompletion<'_> {
            $(
                $(#[$doc])*
                /// `None` if the queue was made without this field.
                #[inline]
                pub fn $name(&self) -> Option<$ty> {
                    if !self.fields.contains(WorkCompletionFields::$field) {
                        return None;
                    }
                    // SAFETY: the cursor is on a completion, and `new` checked this reader (module
                    // head).
                    Some(unsafe { verbs::$read(self.cq.as_ptr()) })
                }
            )*
        }
    };
}

optional_fields! {
    /// The number of bytes received or read (`ibv_wc_read_byte_len`).
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
    /// The device's clock when the work completed, in ticks (`ibv_wc_read_completion_ts`).
    completion_timestamp: u64, CompletionTimestamp, ibv_wc_read_completion_ts;
    /// The time of day when the work completed, in nanoseconds since 1970
    /// (`ibv_wc_read_completion_wallclock_ns`).
    completion_timestamp_wallclock: u64, CompletionTimestampWallclock, ibv_wc_read_completion_wallclock_ns;
    /// The VLAN tag that the device removed from the packet (`ibv_wc_read_cvlan`).
    cvlan: u16, Cvlan, ibv_wc_read_cvlan;
    /// The tag that a flow rule attached to the packet (`ibv_wc_read_flow_tag`).
    flow_tag: u32, FlowTag, ibv_wc_read_flow_tag;
}

/// Which operations a queue's library provides.
struct Operations {
    required: [(&'static str, bool); 6],
    readable: [(WorkCompletionFields, bool); 12],
}

impl Operations {
    /// # Safety
    ///
    /// `cq` must be a live `ibv_cq_ex` that was made with `wanted` as its `wc_flags`.
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
