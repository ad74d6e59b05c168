//! The extended queue pair: work requests built in place, from `ibv_wr_start` to `ibv_wr_complete`.
//!
//! # Safety
//!
//! The unsafe code in this module relies on these invariants:
//!
//! - `qp` is a live `ibv_qp_ex`: [`ExtendedSendQueue::new`] takes it from `ibv_create_qp_ex`, and
//!   the queue keeps the pair alive.
//! - The operations that every list needs, and those that are `possible`, are not null: `new`
//!   checks them. Libraries set them when they make the pair. mlx5 exchanges some when the state
//!   changes, while nobody posts: `QueuePairControl::modify` requires that.
//! - A datagram pair has `wr_set_ud_addr` (`new` checks it). The address handles in a list live
//!   until it is posted or aborted, because `Borrows` ties them to the guard. An abort, which a
//!   leaked guard delays, does not access them.
//! - Nobody else builds a list: a guard borrows the queue mutably, and the queue is the only one of
//!   its pair.
//! - A list is open unless `lists` is `NO_LIST`. A guard that is leaked leaves it open; the next
//!   guard, or the queue's drop, closes it first.
//! - A list that is longer than the queue is aborted, not completed. Only libraries know which
//!   requests are outstanding, so they must detect a full queue at each request. For libraries that
//!   detect it too late (`overwrites_when_full`), only unsafe functions append requests, whose
//!   callers guarantee a free place. Inline data and requests without a buffer are refused there:
//!   `set_overwrites_when_full` and the quirk `no_extended_inline` set the limits of inline data to 0.
//! - Each operation is followed by exactly one buffer: both are called when a request is appended.
//!   Libraries finish a request when its buffer is set, so that one without would reach the device
//!   unfinished.

use std::io::IoSlice;
use std::mem::ManuallyDrop;
use std::num::NonZeroU32;
use std::ptr::NonNull;

use rdma_mummy_sys::types::{ibv_data_buf, ibv_qp_ex, ibv_send_flags, ibv_sge};
use rdma_mummy_sys::{qp_ex_op, verbs};

use super::post::sealed::{Build, ListInfo, Step};
use super::post::{Borrows, PostSendGuard, ScatterGatherEntry};
use super::post_error::{Failure, PostSendError};
use super::receive::ReceiveQueue;
use super::work_request::{
    BufferlessOperation, BufferlessRequest, Destination, DestinationLimits, InlineLimits, ListPosition,
    SendOperation, SendRequest,
};
use super::{CreateQueuePairError, Halves, QueuePairControl, SendOperationFlags, SendQueue, Shared};

/// A queue pair that builds work requests in place (`ibv_qp_ex`).
#[derive(Debug)]
pub struct ExtendedQueuePair {
    pub(super) halves: Halves<ExtendedSendQueue>,
}

super::impl_queue_pair!(ExtendedQueuePair, ExtendedSendQueue);

impl ExtendedQueuePair {
    pub(super) fn new(send: ExtendedSendQueue, receive: ReceiveQueue) -> Self {
        Self { halves: Halves { send, receive } }
    }
}

/// The sending half of an [`ExtendedQueuePair`].
#[derive(Debug)]
pub struct ExtendedSendQueue {
    control: QueuePairControl,
    qp: NonNull<ibv_qp_ex>,
    /// The available operations. None if the queue holds no requests, because libraries assume that
    /// a queue has at least one place.
    possible: InlineLimits,
    elsewhere: DestinationLimits,
    usable: SendOperationFlags,
    /// The number of requests that the queue holds; 1 if it holds none.
    places: NonZeroU32,
    max_sge: u32,
    takes_inline_data: bool,
    /// Whether the library detects a full queue only after it has started to overwrite a request;
    /// see `Quirks`.
    overwrites_when_full: bool,
    /// The number of open lists minus one: [`NO_LIST`] for none, 0 for one.
    lists: u8,
}

/// Chosen so that one more wraps to 0, because a comparison with 0 is free.
const NO_LIST: u8 = u8::MAX;

// SAFETY: the queue is the only one of its pair, and building a list needs `&mut self`, so one
// thread at a time does it.
unsafe impl Send for ExtendedSendQueue {}
// SAFETY: no method builds a list through `&self`.
unsafe impl Sync for ExtendedSendQueue {}

impl ExtendedSendQueue {
    /// # Safety
    ///
    /// `inner` must be a queue pair that `ibv_create_qp_ex` made with `asked` as its
    /// `send_ops_flags`. `qp` must be the result of `ibv_qp_to_qp_ex` for it.
    pub(super) unsafe fn new(
        inner: Shared,
        qp: NonNull<ibv_qp_ex>,
        asked: SendOperationFlags,
    ) -> Result<Self, CreateQueuePairError> {
        macro_rules! has {
            ($member:ident) => {
                // SAFETY: the caller guarantees a live `ibv_qp_ex` that was made with these
                // operations.
                unsafe { qp_ex_op!(qp.as_ptr(), $member, asked.bits()) }.is_some()
            };
        }
        let required = [
            ("wr_start", has!(wr_start)),
            ("wr_complete", has!(wr_complete)),
            ("wr_abort", has!(wr_abort)),
            ("wr_set_sge", has!(wr_set_sge)),
            ("wr_set_sge_list", has!(wr_set_sge_list)),
        ];
        let required = required.into_iter().chain(match inner.qp_type() {
            of if of.is_datagram() => Some(("wr_set_ud_addr", has!(wr_set_ud_addr))),
            super::QueuePairType::XrcSend => Some(("wr_set_xrc_srqn", has!(wr_set_xrc_srqn))),
            _ => None,
        });
        if let Some((operation, _)) = required.into_iter().find(|(_, there)| !*there) {
            return Err(CreateQueuePairError::Incomplete { operation });
        }
        use SendOperationFlags as Op;
        let there: SendOperationFlags = [
            (Op::Write, has!(wr_rdma_write)),
            (Op::WriteWithImmediate, has!(wr_rdma_write_imm)),
            (Op::Send, has!(wr_send)),
            (Op::SendWithImmediate, has!(wr_send_imm)),
            (Op::Read, has!(wr_rdma_read)),
            (Op::AtomicCompareAndSwap, has!(wr_atomic_cmp_swp)),
            (Op::AtomicFetchAndAdd, has!(wr_atomic_fetch_add)),
            (Op::LocalInvalidate, has!(wr_local_inv)),
            (Op::BindMemoryWindow, has!(wr_bind_mw)),
            (Op::SendWithInvalidate, has!(wr_send_inv)),
            (Op::Flush, has!(wr_flush)),
            (Op::AtomicWrite, has!(wr_atomic_write)),
        ]
        .iter()
        .filter(|(_, there)| *there)
        .map(|(operation, _)| *operation)
        .collect();
        let inline = has!(wr_set_inline_data) && has!(wr_set_inline_data_list);
        let cap = inner.capability();
        if cap.max_send_sge == 0 {
            return Err(CreateQueuePairError::NoEntries);
        }
        let places = NonZeroU32::new(cap.max_send_wr);
        let usable = match places {
            Some(_) => asked & there & SendOperationFlags::possible(inner.qp_type()),
            None => SendOperationFlags::empty(),
        };
        let max_inline = if inline { cap.max_inline_data } else { 0 };
        let (possible, elsewhere) = DestinationLimits::divide(inner.qp_type(), usable, max_inline);
        let control = QueuePairControl(inner);
        Ok(Self {
            qp,
            possible,
            elsewhere,
            usable,
            places: places.unwrap_or(NonZeroU32::MIN),
            max_sge: cap.max_send_sge,
            takes_inline_data: max_inline > 0,
            overwrites_when_full: control.context().quirks().overwrites_when_full,
            lists: NO_LIST,
            control,
        })
    }

    /// The operations that the pair was made for and supports.
    pub fn send_ops_flags(&self) -> SendOperationFlags {
        self.usable
    }

    /// Whether requests may have inline data at all.
    pub(super) fn takes_inline_data(&self) -> bool {
        self.takes_inline_data
    }

    /// The error for a list that the library rejected.
    #[cold]
    #[inline(never)]
    fn refused_by_library(&self, result: core::ffi::c_int) -> PostSendError {
        PostSendError::from_errno(result, None, &self.control)
    }

    /// The error for a list that cannot be posted because of one request.
    #[cold]
    #[inline(never)]
    fn refused(&self, failure: Failure, index: usize) -> PostSendError {
        let limit = self.control.capability().max_send_wr as usize;
        if index > limit {
            return PostSendError::TooManyWorkRequests { limit };
        }
        self.elsewhere.error(&self.possible, failure, ListPosition { index, limit })
    }

    /// The result of posting a list that is empty or longer than the queue.
    #[cold]
    #[inline(never)]
    fn unusual(&self, count: usize) -> Result<(), PostSendError> {
        match count {
            0 => Ok(()),
            _ => Err(PostSendError::TooManyWorkRequests { limit: self.places.get() as usize }),
        }
    }

    /// Closes a list whose guard was leaked.
    #[cold]
    fn abort_leaked(&mut self) {
        // SAFETY: the caller checked that a list is open, and its guard is gone because `self` is
        // borrowed mutably.
        unsafe { verbs::ibv_wr_abort(self.qp.as_ptr()) };
        self.lists = 0;
    }
}

impl Drop for ExtendedSendQueue {
    #[inline]
    fn drop(&mut self) {
        if self.lists != NO_LIST {
            self.abort_leaked();
        }
    }
}

impl SendQueue for ExtendedSendQueue {
    type Guard<'queue> = ExtendedPostSendGuard<'queue>;

    #[inline]
    fn start_post_send(&mut self) -> ExtendedPostSendGuard<'_> {
        self.lists = self.lists.wrapping_add(1);
        if self.lists != 0 {
            self.abort_leaked();
        }
        let qp = self.qp;
        // SAFETY: the queue is alive and has this operation (module head), and no list is open.
        unsafe { verbs::ibv_wr_start(qp.as_ptr()) };
        let possible = self.possible;
        ExtendedPostSendGuard { qp, possible, count: 0, failure: None, queue: self }
    }

    fn control(&self) -> &QueuePairControl {
        &self.control
    }
}

/// Access for [`direct`](crate::direct).
impl ExtendedSendQueue {
    /// Disables inline data for these operations.
    pub(crate) fn forbid_inline(&mut self, operations: SendOperationFlags) {
        self.possible.forbid_inline(operations);
        self.elsewhere.datagram.forbid_inline(operations);
        self.elsewhere.xrc.forbid_inline(operations);
    }

    /// Makes the queue refuse requests with which safe code could fill it, for any device. For
    /// inline data the limits decide, so that lists of other queues have no further check.
    pub(crate) fn set_overwrites_when_full(&mut self) {
        self.overwrites_when_full = true;
        self.forbid_inline(SendOperationFlags::all());
    }

    /// Closes a list whose guard was leaked, if there is one.
    pub(crate) fn without_list(&mut self) {
        if self.lists != NO_LIST {
            self.abort_leaked();
            self.lists = NO_LIST;
        }
    }
}

impl ExtendedPostSendGuard<'_> {
    /// The number of requests in the list; `None` if one of them could not be appended, so that
    /// [`post`](PostSendGuard::post) will fail.
    #[inline(always)]
    pub fn request_count(&self) -> Option<usize> {
        if self.failure.is_some() { None } else { Some(self.count) }
    }

    /// The queue for which the list is built.
    pub fn queue(&self) -> &ExtendedSendQueue {
        self.queue
    }

    /// Appends a request that `append` writes, for an operation that this module does not know.
    /// `inline` says whether the library copies the request's data.
    ///
    /// # Safety
    ///
    /// `append` must append exactly one whole request to the open list of the pair that it gets.
    #[inline(always)]
    pub(crate) unsafe fn append_by(
        &mut self,
        wr_id: u64,
        flags: super::WorkRequestFlags,
        inline: bool,
        append: impl FnOnce(*mut ibv_qp_ex),
    ) {
        let inline = if inline { ibv_send_flags::IBV_SEND_INLINE.0 } else { 0 };
        let qp = self.qp.as_ptr();
        // SAFETY: a list is open (module head), and these fields may be set between requests.
        unsafe {
            (*qp).wr_id = wr_id;
            (*qp).wr_flags = flags.raw() | inline;
        }
        self.count += 1;
        append(qp);
    }
}

/// The buffer of a request that moves no bytes.
static NOTHING: ibv_sge = ibv_sge { addr: 0, length: 0, lkey: 0 };

/// A list of work requests that is being built for an [`ExtendedQueuePair`].
///
/// It stays on its thread because libraries hold a lock from `ibv_wr_start` to `ibv_wr_complete`.
/// (A leaked list is closed by the thread that uses the queue next. That is possible because the
/// lock is a spin lock without an owner.)
///
/// **Do not post to a full queue.** Some libraries (mlx5 in rdma-core up to 65) detect a full queue
/// only after they have started to overwrite the oldest outstanding request. Count completions, and
/// keep fewer requests outstanding than [`max_send_wr`](super::QueuePairCapability::max_send_wr).
/// This is part of the contract of [`setup_sge`](super::LocalBufferHandle::setup_sge). On such
/// devices, requests without that contract are refused ([`PostSendError::FullQueueUnnoticed`]).
#[must_use = "a list that is not posted is forgotten"]
#[derive(Debug)]
pub struct ExtendedPostSendGuard<'queue> {
    qp: NonNull<ibv_qp_ex>,
    /// A copy of the queue's field. The compiler knows that no call changes it.
    possible: InlineLimits,
    /// The number of requests. It is as wide as an address, so that the compiler can share a
    /// register between this counter and the caller's.
    count: usize,
    /// The first failure, and the number of the request that caused it.
    failure: Option<(Failure, usize)>,
    queue: &'queue mut ExtendedSendQueue,
}

impl ExtendedPostSendGuard<'_> {
    /// Calls the operation of a request, if it is possible with `inline` bytes of inline data. Then
    /// the caller must set its buffer.
    #[inline(always)]
    fn open(&mut self, request: &SendRequest, inline: usize) -> bool {
        // No reference to the guard's own copy is made, so that the copy stays in registers.
        let possible = match &request.to {
            Destination::Peer => self.possible.has(&request.operation, inline),
            Destination::Address(_) => self.queue.elsewhere.datagram.has(&request.operation, inline),
            Destination::Queue(_) => self.queue.elsewhere.xrc.has(&request.operation, inline),
        };
        if !possible {
            self.fail(Failure::of(request, inline));
            return false;
        }
        if let Destination::Address(address) = request.to
            // SAFETY: the guard's queue keeps the pair alive, and every release's struct has this
            // field.
            && !address.is_of(unsafe { (*self.qp.as_ptr()).qp_base.context })
        {
            self.fail(Failure::OtherContext);
            return false;
        }
        let qp = self.qp.as_ptr();
        // SAFETY: a list is open, and the pair has the operation (module head); these fields may be
        // set between requests.
        unsafe {
            (*qp).wr_id = request.wr_id;
            (*qp).wr_flags = request.flags.raw();
            match request.operation {
                SendOperation::Send => verbs::ibv_wr_send(qp),
                SendOperation::SendWithImmediate { imm_data } => verbs::ibv_wr_send_imm(qp, imm_data.to_be()),
                SendOperation::SendWithInvalidate { rkey } => verbs::ibv_wr_send_inv(qp, rkey),
                SendOperation::Write(remote) => verbs::ibv_wr_rdma_write(qp, remote.rkey, remote.addr),
                SendOperation::WriteWithImmediate { remote, imm_data } => {
                    verbs::ibv_wr_rdma_write_imm(qp, remote.rkey, remote.addr, imm_data.to_be());
                }
                SendOperation::Read(remote) => verbs::ibv_wr_rdma_read(qp, remote.rkey, remote.addr),
                SendOperation::CompareAndSwap { remote, compare, swap } => {
                    verbs::ibv_wr_atomic_cmp_swp(qp, remote.rkey, remote.addr, compare, swap);
                }
                SendOperation::FetchAndAdd { remote, add } => {
                    verbs::ibv_wr_atomic_fetch_add(qp, remote.rkey, remote.addr, add);
                }
            }
            if let Destination::Address(address) = request.to {
                verbs::ibv_wr_set_ud_addr(qp, address.ah.as_ptr(), address.remote_qpn, address.remote_qkey);
            }
            if let Destination::Queue(remote_srqn) = request.to {
                verbs::ibv_wr_set_xrc_srqn(qp, remote_srqn);
            }
        }
        self.count += 1;
        true
    }

    /// Records a failure of the next request, so that posting the list fails.
    ///
    /// Inlined although it is cold, because a guard whose address is never taken stays in
    /// registers.
    #[inline(always)]
    fn fail(&mut self, failure: Failure) {
        if self.failure.is_none() {
            self.failure = Some((failure, self.count));
        }
    }

    /// Appends a request that moves no bytes.
    #[inline(always)]
    fn append_empty(&mut self, request: &SendRequest) {
        if self.open(request, 0) {
            // SAFETY: a request waits for its buffer (module head). Libraries may read the first
            // entry of an empty list (those that give every atomic one entry do), so the pointer
            // must be valid.
            unsafe { verbs::ibv_wr_set_sge_list(self.qp.as_ptr(), 0, &raw const NOTHING) };
        }
    }

    #[inline]
    fn abort(&mut self) {
        // SAFETY: a list is open (module head), and nothing uses it after this.
        unsafe { verbs::ibv_wr_abort(self.qp.as_ptr()) };
        self.queue.lists = NO_LIST;
    }
}

impl PostSendGuard for ExtendedPostSendGuard<'_> {
    #[inline]
    fn post(self) -> Result<(), PostSendError> {
        let mut list = ManuallyDrop::new(self);
        if let Some((failure, index)) = list.failure {
            list.abort();
            return Err(list.queue.refused(failure, index));
        }
        // The wrapping subtraction rejects 0 as well as more requests than the queue has places.
        if list.count.wrapping_sub(1) >= list.queue.places.get() as usize {
            list.abort();
            return list.queue.unusual(list.count);
        }
        // SAFETY: a list is open, and every request in it has its buffer (module head).
        let result = unsafe { verbs::ibv_wr_complete(list.qp.as_ptr()) };
        list.queue.lists = NO_LIST;
        match result {
            0 => Ok(()),
            result => Err(list.queue.refused_by_library(result)),
        }
    }
}

impl Drop for ExtendedPostSendGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.abort();
    }
}

impl<'queue> Borrows<'queue> for ExtendedPostSendGuard<'queue> {}

impl Build for ExtendedPostSendGuard<'_> {
    #[inline(always)]
    fn list_info(&self, _: Step) -> ListInfo {
        // SAFETY: the guard's queue keeps the pair alive, and every release's struct has this
        // field.
        let context = unsafe { (*self.qp.as_ptr()).qp_base.context };
        let overwrites_when_full = self.queue.overwrites_when_full;
        ListInfo { context, count: self.count, in_place: true, overwrites_when_full }
    }

    #[inline(always)]
    fn append(&mut self, _: Step, request: SendRequest) {
        if self.queue.overwrites_when_full {
            return self.fail(Failure::FullQueueUnnoticed);
        }
        self.append_empty(&request);
    }

    #[inline(always)]
    unsafe fn append_sge(&mut self, _: Step, request: SendRequest, entry: ScatterGatherEntry) {
        if self.open(&request, 0) {
            let ibv_sge { addr, length, lkey } = entry.0;
            // SAFETY: a request waits for its buffer (module head), and the caller keeps the memory
            // as this function's contract says.
            unsafe { verbs::ibv_wr_set_sge(self.qp.as_ptr(), lkey, addr, length) };
        }
    }

    #[inline(always)]
    unsafe fn append_sge_list(&mut self, _: Step, request: SendRequest, list: &[ScatterGatherEntry]) {
        if list.is_empty() {
            return self.append_empty(&request);
        }
        if list.len() > self.queue.max_sge as usize {
            let (given, limit) = (list.len(), self.queue.max_sge);
            return self.fail(Failure::TooManyEntries { given, limit });
        }
        if self.open(&request, 0) {
            let entries: *const ibv_sge = list.as_ptr().cast();
            // SAFETY: a request waits for its buffers (module head), which the caller keeps as this
            // function's contract says. The list is transparent over `ibv_sge` and is copied, and
            // its length fits, being at most `max_sge`.
            unsafe { verbs::ibv_wr_set_sge_list(self.qp.as_ptr(), list.len(), entries) };
        }
    }

    #[inline(always)]
    fn append_inline(&mut self, step: Step, request: SendRequest, data: &[u8]) {
        if data.is_empty() {
            return self.append(step, request);
        }
        if self.open(&request, data.len()) {
            let start = data.as_ptr().cast_mut().cast();
            // SAFETY: a request waits for its buffer (module head). `open` checked that this length
            // of inline data is possible. The bytes are copied, not written to.
            unsafe { verbs::ibv_wr_set_inline_data(self.qp.as_ptr(), start, data.len()) };
        }
    }

    #[inline(always)]
    fn append_inline_list(&mut self, step: Step, request: SendRequest, list: &[IoSlice<'_>]) {
        let given = list.iter().fold(0, |sum: usize, piece| sum.saturating_add(piece.len()));
        if given == 0 {
            return self.append(step, request);
        }
        if self.open(&request, given) {
            let pieces: *const ibv_data_buf = list.as_ptr().cast();
            // SAFETY: a request waits for its buffer (module head). `open` checked that this length
            // of inline data is possible. An `IoSlice` is an `iovec`, with the layout of
            // `ibv_data_buf` (checked below). The bytes are copied, not written to.
            unsafe { verbs::ibv_wr_set_inline_data_list(self.qp.as_ptr(), list.len(), pieces) };
        }
    }

    unsafe fn append_bufferless(&mut self, _: Step, request: BufferlessRequest) {
        let qp = self.qp.as_ptr();
        // SAFETY: the guard's queue keeps the pair alive, and every release's struct has this
        // field. The caller guarantees (`# Safety` of the trait's method) that the objects of the
        // request are alive.
        if let Err(failure) = unsafe { request.operation.check(self.queue.usable, (*qp).qp_base.context) } {
            return self.fail(failure);
        }
        if self.queue.overwrites_when_full {
            return self.fail(Failure::FullQueueUnnoticed);
        }
        if self.count >= self.queue.places.get() as usize {
            return self.fail(Failure::NoPlace);
        }
        self.count += 1;
        // SAFETY: a list is open, and the pair has the operation because it is usable (module
        // head). The caller guarantees that the objects are alive, and the structs and the value
        // are read during the calls.
        unsafe {
            (*qp).wr_id = request.wr_id;
            (*qp).wr_flags = request.flags.raw();
            match request.operation {
                BufferlessOperation::LocalInvalidate { rkey } => verbs::ibv_wr_local_inv(qp, rkey),
                BufferlessOperation::Bind { mw, rkey, info } => {
                    verbs::ibv_wr_bind_mw(qp, mw.as_ptr(), rkey, &raw const info);
                }
                BufferlessOperation::AtomicWrite { remote, value } => {
                    let value = (&raw const value).cast();
                    verbs::ibv_wr_atomic_write(qp, remote.rkey, remote.addr, value);
                }
                BufferlessOperation::Flush { remote, len, placement, selectivity } => {
                    verbs::ibv_wr_flush(qp, remote.rkey, remote.addr, len, placement, selectivity);
                }
            }
        }
    }
}

// The standard library guarantees that an `IoSlice` has the layout of an `iovec`.
const _: () = {
    use std::mem::offset_of;
    assert!(size_of::<IoSlice<'_>>() == size_of::<ibv_data_buf>());
    assert!(offset_of!(libc::iovec, iov_base) == offset_of!(ibv_data_buf, addr));
    assert!(offset_of!(libc::iovec, iov_len) == offset_of!(ibv_data_buf, length));
};
