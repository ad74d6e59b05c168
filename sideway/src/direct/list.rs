//! Lists of work requests that have a vendor's requests, or add something to each request.

use std::io::IoSlice;
use std::ptr::NonNull;

use rdma_mummy_sys::types::{ibv_qp, ibv_qp_ex};

use crate::ibverbs::queue_pair::{
    BufferlessRequest, Build, ExtendedPostSendGuard, ExtendedSendQueue, ListInfo, ScatterGatherEntry,
    SendOperationFlags, SendQueue, SendRequest, Step, WorkRequestFlags, WorkRequestHandle,
    WorkRequestOperationType,
};

/// A list of work requests of a vendor's queue pair: an extended list, and what the vendor adds.
///
/// A type that implements it can be a [`PostSendGuard`], because the requests of libibverbs are
/// appended to the extended list. It has methods for the vendor's requests by a trait of the
/// vendor's crate, which is implemented for
/// `WorkRequestHandle<'_, ThisGuard<'_>>` and takes the handle apart with
/// [`into_parts`](WorkRequestHandle::into_parts).
///
/// [`PostSendGuard`]: crate::ibverbs::queue_pair::PostSendGuard
///
/// # Safety
///
/// - Both accessors return the same list. The value made it by `start_post_send` of the queue that it
///   borrows for `'queue`.
/// - [`post`] posts this list and returns its result, or drops it and returns an error whose
///   [`posted`](crate::ibverbs::queue_pair::PostSendError::posted) is 0, such as
///   [`OfVendor`](crate::ibverbs::queue_pair::PostSendError::OfVendor). Callers release the memory of
///   requests that were not posted. In every other case the value drops the list.
/// - [`append_with`](Self::append_with) calls its closure at most once, with that list. Whatever the
///   pair's requests need beyond the operation and the buffer, it supplies, or it does not call the
///   closure and makes [`post`] fail. Requests without a buffer (bind, local invalidate, atomic
///   write, flush) are appended without it: the pair does not have these operations, or they need
///   nothing further.
///
/// [`post`]: crate::ibverbs::queue_pair::PostSendGuard::post
pub unsafe trait VendorList<'queue>: Sized {
    /// The extended list, to ask about its progress and its queue.
    fn extended(&self) -> &ExtendedPostSendGuard<'queue>;

    /// The extended list, to append to.
    ///
    /// # Safety
    ///
    /// The caller appends only requests that have all that the vendor's pair needs.
    unsafe fn extended_mut(&mut self) -> &mut ExtendedPostSendGuard<'queue>;

    /// Appends a request of libibverbs. `append` appends the operation and its buffer. The default
    /// adds nothing.
    ///
    /// # Safety
    ///
    /// `append` appends one request to the list that it gets, or makes the list fail.
    #[inline(always)]
    unsafe fn append_with(
        &mut self,
        operation: WorkRequestOperationType,
        append: impl FnOnce(&mut ExtendedPostSendGuard<'queue>),
    ) {
        let _ = operation;
        // SAFETY: a pair of a type that does not replace this function needs nothing further (the
        // trait's contract).
        append(unsafe { self.extended_mut() });
    }
}

impl<'queue, L: VendorList<'queue>> Build for L {
    #[inline(always)]
    fn list_info(&self, step: Step) -> ListInfo {
        self.extended().list_info(step)
    }

    #[inline(always)]
    fn append(&mut self, step: Step, request: SendRequest) {
        // SAFETY: the closure appends this request.
        unsafe { self.append_with(request.kind(), |list| list.append(step, request)) };
    }

    #[inline(always)]
    unsafe fn append_sge(&mut self, step: Step, request: SendRequest, entry: ScatterGatherEntry) {
        // SAFETY: the closure appends this request. The caller keeps this function's contract,
        // which is the same as the called function's.
        unsafe { self.append_with(request.kind(), |list| list.append_sge(step, request, entry)) };
    }

    #[inline(always)]
    unsafe fn append_sge_list(&mut self, step: Step, request: SendRequest, entries: &[ScatterGatherEntry]) {
        // SAFETY: the closure appends this request. The caller keeps this function's contract,
        // which is the same as the called function's.
        unsafe { self.append_with(request.kind(), |list| list.append_sge_list(step, request, entries)) };
    }

    #[inline(always)]
    fn append_inline(&mut self, step: Step, request: SendRequest, data: &[u8]) {
        // SAFETY: the closure appends this request.
        unsafe { self.append_with(request.kind(), |list| list.append_inline(step, request, data)) };
    }

    #[inline(always)]
    fn append_inline_list(&mut self, step: Step, request: SendRequest, pieces: &[IoSlice<'_>]) {
        // SAFETY: the closure appends this request.
        unsafe { self.append_with(request.kind(), |list| list.append_inline_list(step, request, pieces)) };
    }

    unsafe fn append_bufferless(&mut self, step: Step, request: BufferlessRequest) {
        // SAFETY: the caller keeps this function's contract, which is the same as the called
        // function's. The pair lacks the operation, or it needs nothing further (the contract of
        // `VendorList`).
        unsafe { self.extended_mut().append_bufferless(step, request) };
    }
}

/// Handles of a vendor's lists, for the requests of the vendor.
impl<'guard, G> WorkRequestHandle<'guard, G> {
    /// Starts a request, for a vendor's guard whose
    /// [`construct_wr`](crate::ibverbs::queue_pair::PostSendGuard::construct_wr) does more than the
    /// default. Elsewhere it skips what that function does: on a list of a DC initiator, the target of
    /// a handle that was dropped would remain.
    #[inline(always)]
    pub fn begin<'queue>(guard: &'guard mut G, wr_id: u64, flags: WorkRequestFlags) -> Self
    where
        G: VendorList<'queue>,
    {
        Self::start(guard, wr_id, flags)
    }

    /// The vendor's guard, for a method that notes a part of the request there.
    #[inline(always)]
    pub fn guard<'queue>(&mut self) -> &mut G
    where
        G: VendorList<'queue>,
    {
        self.list()
    }

    /// The vendor's guard, and the number and the flags of the request, for a method that appends a
    /// request of the vendor's.
    ///
    /// The destination is not among these. If `setup_ud_address` or `setup_xrc_srqn` was called, the
    /// vendor's request goes without it. A vendor whose requests name destinations sets them by its
    /// own trait, and keeps them in the guard.
    #[inline(always)]
    pub fn into_parts<'queue>(self) -> (&'guard mut G, u64, WorkRequestFlags)
    where
        G: VendorList<'queue>,
    {
        self.parts()
    }
}

/// Appends a request that `append` writes with a vendor's function, between `ibv_wr_start` and
/// `ibv_wr_complete`. Before the call, `wr_id` and `flags` are in the C object.
///
/// `inline` says whether the library copies the request's data now: then `IBV_SEND_INLINE` is among
/// the flags.
///
/// The list counts one request. A list that has failed
/// ([`request_count`](ExtendedPostSendGuard::request_count) is `None`) takes the request and is not
/// posted.
///
/// # Safety
///
/// - `append` appends exactly one whole request to the open list of the pair that it gets, and does
///   not end the list. The pair was made with the operation, whose function is not null.
/// - The contract of [`setup_sge`] applies to the memory that the request names.
/// - Either the library detects a full queue before it writes to it, or the queue has a free place
///   for all that the request takes.
///
/// [`setup_sge`]: crate::ibverbs::queue_pair::LocalBufferHandle::setup_sge
#[inline(always)]
pub unsafe fn append_request(
    list: &mut ExtendedPostSendGuard<'_>,
    wr_id: u64,
    flags: WorkRequestFlags,
    inline: bool,
    append: impl FnOnce(*mut ibv_qp_ex),
) {
    // SAFETY: the caller guarantees (`# Safety`) that `append` appends one whole request.
    unsafe { list.append_by(wr_id, flags, inline, append) };
}

/// Makes the queue refuse inline data for these operations, if the vendor's library or device does
/// not support it there.
pub fn forbid_inline(queue: &mut ExtendedSendQueue, operations: SendOperationFlags) {
    queue.forbid_inline(operations);
}

/// Declares that the vendor's library detects a full queue only after it has begun to overwrite an
/// outstanding request. The queue then refuses requests with which safe code could fill it: those
/// without a buffer
/// ([`FullQueueUnnoticed`](crate::ibverbs::queue_pair::PostSendError::FullQueueUnnoticed)), and those
/// with inline data
/// ([`InlineDataTooLong`](crate::ibverbs::queue_pair::PostSendError::InlineDataTooLong) with the
/// limit 0). To report that in the pair's capability, set `max_inline_data` to 0 when the pair is
/// made ([`create_queue_pair`](super::create_queue_pair)).
pub fn set_overwrites_when_full(queue: &mut ExtendedSendQueue) {
    queue.set_overwrites_when_full();
}

/// Calls a vendor's function that changes a pair. During the call no list of send requests is open,
/// and no other thread changes the pair's state or attributes. During it, receives may be posted.
///
/// `change` must not change or query the pair by its [control](SendQueue::control) (`state`, for
/// example): these calls wait for its end, and would wait for ever.
pub fn with_lists_closed<R>(queue: &mut ExtendedSendQueue, change: impl FnOnce(NonNull<ibv_qp>) -> R) -> R {
    queue.without_list();
    let control = queue.control();
    let _control = control.lock();
    change(control.as_raw())
}

/// A queue pair whose halves are in the value. A clone of its control is not a whole pair: with it,
/// [`modify`](crate::ibverbs::queue_pair::QueuePair::modify) would change the pair under an open list:
///
/// ```compile_fail,E0277
/// use sideway::ibverbs::queue_pair::{GenericSendQueue, QueuePair, QueuePairControl, ReceiveQueue};
///
/// struct Part(QueuePairControl);
///
/// impl QueuePair for Part {
///     type SendQueue = GenericSendQueue;
///
///     fn control(&self) -> &QueuePairControl {
///         &self.0
///     }
///
///     fn split(&mut self) -> (&mut GenericSendQueue, &mut ReceiveQueue) {
///         unimplemented!()
///     }
///
///     fn into_split(self) -> (GenericSendQueue, ReceiveQueue) {
///         unimplemented!()
///     }
/// }
/// ```
///
/// # Safety
///
/// A value of the type has the sending half and the receiving half of one queue pair, which nothing
/// else has. [`split`](crate::ibverbs::queue_pair::QueuePair::split) and
/// [`into_split`](crate::ibverbs::queue_pair::QueuePair::into_split) return these, and
/// [`control`](crate::ibverbs::queue_pair::QueuePair::control) is theirs. So is
/// [`control`](SendQueue::control) of the sending half.
pub unsafe trait WholePair {}
