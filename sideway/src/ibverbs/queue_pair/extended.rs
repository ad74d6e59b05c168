//! The extended flavour: `ibv_wr_start` to `ibv_wr_complete`.
//!
//! # Safety
//!
//! What the unsafe code here relies on, and where it comes from:
//!
//! - `qp` is a live `ibv_qp_ex`: [`ExtendedSendQueue::new`] takes it from
//!   `ibv_create_qp_ex`, and the queue keeps the pair alive.
//! - The operations that every list needs are not null, and those in `usable`
//!   neither: `new` checks them. Libraries set them when they make the pair;
//!   one (mlx5) exchanges one for another when the state changes, which nobody
//!   does while others post: `QueuePairControl::modify` asks for that.
//! - Nobody else builds: a guard borrows the queue mutably, and the queue is
//!   the only one of its pair.
//! - A list is open while `lists` says so. A guard that is leaked leaves it open; the next one, or the
//!   queue's drop, closes it first.
//! - A buffer follows an operation and only an operation: `open` says that one
//!   waits for its buffer. Libraries finish a request when its buffer is set;
//!   one without would be handed to the device unfinished.

use std::io::IoSlice;
use std::mem::ManuallyDrop;
use std::num::NonZeroU32;
use std::ptr::NonNull;

use rdma_mummy_sys::types::{ibv_data_buf, ibv_qp_ex, ibv_sge};
use rdma_mummy_sys::{qp_ex_op, verbs};

use super::post::sealed::{Build, Step};
use super::post::{Failure, PostSendError, PostSendGuard, ScatterGatherEntry, first};
use super::receive::ReceiveQueue;
use super::{
    CreateQueuePairError, Halves, QueuePairControl, SendOperationFlags, SendQueue, Shared, WorkRequestFlags,
    WorkRequestOperationType,
};

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
    /// The operations that there are; [`NO_PLACE`] alone where the queue holds nothing.
    usable: SendOperationFlags,
    max_wr: NonZeroU32,
    max_sge: u32,
    max_inline: u32,
    /// How many lists are open: [`NO_LIST`], or one more.
    lists: u8,
}

/// In place of operations: libraries take a queue without places for granted to have one.
const NO_PLACE: SendOperationFlags = SendOperationFlags::from_bits_retain(1 << 63);

/// So that one more is 0, which costs nothing to see.
const NO_LIST: u8 = u8::MAX;

// SAFETY: the queue is the only one of its pair, and may be driven from any one thread at a time.
unsafe impl Send for ExtendedSendQueue {}
// SAFETY: `&self` does not reach the queue.
unsafe impl Sync for ExtendedSendQueue {}

impl ExtendedSendQueue {
    /// # Safety
    ///
    /// `inner` is a queue pair that `ibv_create_qp_ex` made with `asked` as its `send_ops_flags`; `qp` is
    /// what `ibv_qp_to_qp_ex` made of it.
    pub(super) unsafe fn new(
        inner: Shared,
        qp: NonNull<ibv_qp_ex>,
        asked: SendOperationFlags,
    ) -> Result<Self, CreateQueuePairError> {
        macro_rules! has {
            ($member:ident) => {
                // SAFETY: the caller says that it is a live `ibv_qp_ex`, made with these operations.
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
        if let Some((operation, _)) = required.iter().find(|(_, there)| !there) {
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
        Ok(Self {
            qp,
            usable: match places {
                Some(_) => asked & there & SendOperationFlags::of_type(inner.qp_type()),
                None => NO_PLACE,
            },
            max_wr: places.unwrap_or(NonZeroU32::MIN),
            max_sge: cap.max_send_sge,
            max_inline: if inline { cap.max_inline_data } else { 0 },
            lists: NO_LIST,
            control: QueuePairControl(inner),
        })
    }

    /// Whether requests may have inline data at all.
    pub(super) fn takes_inline_data(&self) -> bool {
        self.max_inline > 0
    }

    /// Closes a list whose guard was leaked.
    #[cold]
    fn abort_leaked(&mut self) {
        // SAFETY: a list is open (the caller looked), and nobody builds it any more.
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
        // SAFETY: see the head of this file; no list is open.
        unsafe { verbs::ibv_wr_start(self.qp.as_ptr()) };
        ExtendedPostSendGuard {
            qp: self.qp,
            lists: &mut self.lists,
            usable: self.usable,
            max_wr: self.max_wr,
            max_sge: self.max_sge,
            max_inline: self.max_inline,
            count: 0,
            open: false,
            failure: None,
        }
    }

    fn control(&self) -> &QueuePairControl {
        &self.control
    }
}

/// The buffer of a request that moves no bytes.
static NOTHING: ibv_sge = ibv_sge { addr: 0, length: 0, lkey: 0 };

/// A list of work requests that is being built in an [`ExtendedQueuePair`].
///
/// It stays on its thread, as libraries hold a lock from `ibv_wr_start` to `ibv_wr_complete`. (One that was
/// leaked is ended by whichever thread has the queue next: their lock is a spin lock without an owner.)
///
/// **Do not post to a full queue.** There are libraries (mlx5 in rdma-core up to 65) that notice that it is full only
/// after they have begun to write over the oldest outstanding request: count completions, and keep fewer
/// requests outstanding than [`max_send_wr`](super::QueuePairCapability::max_send_wr). That is part of the
/// contract of [`setup_sge`](super::LocalBufferHandle::setup_sge).
#[must_use = "a list that is not posted is forgotten"]
#[derive(Debug)]
pub struct ExtendedPostSendGuard<'queue> {
    qp: NonNull<ibv_qp_ex>,
    usable: SendOperationFlags,
    max_wr: NonZeroU32,
    max_sge: u32,
    max_inline: u32,
    count: u32,
    /// The last request waits for its buffer.
    open: bool,
    failure: Option<Failure>,
    lists: &'queue mut u8,
}

impl ExtendedPostSendGuard<'_> {
    /// Whether the operation may be called, which the caller then does: the request is open.
    #[inline]
    fn open(&mut self, needed: SendOperationFlags, operation: WorkRequestOperationType) -> bool {
        if !self.usable.contains(needed) {
            self.fail(Failure::Unsupported { index: self.count, operation });
            return false;
        }
        if self.count == self.max_wr.get() {
            self.fail(Failure::TooMany { limit: self.max_wr.get() });
            return false;
        }
        self.count += 1;
        self.open = true;
        true
    }

    /// Whether a buffer may be set: an operation waits for it, which it then does no more.
    #[inline]
    fn close(&mut self) -> bool {
        core::mem::replace(&mut self.open, false)
    }

    /// Gives a request that still waits for its buffer an empty one.
    #[inline]
    fn close_empty(&mut self) {
        if self.close() {
            // SAFETY: a request waits for its buffer (head of this file). Libraries may look at the first entry
            // of a list of none (those that give an atomic one in any case): it is there, and empty.
            unsafe { verbs::ibv_wr_set_sge_list(self.qp.as_ptr(), 0, &raw const NOTHING) };
        }
    }

    /// Makes the list fail when it is posted. The first failure counts.
    ///
    /// Inline, though it is cold: a guard whose address is never taken stays in registers.
    #[inline]
    fn fail(&mut self, failure: Failure) {
        self.failure = first(self.failure, failure);
    }

    /// The same, of a request whose operation the library knows already: that gets an empty buffer.
    #[inline]
    fn fail_open(&mut self, failure: Failure) {
        self.fail(failure);
        self.open = true;
        self.close_empty();
    }

    /// The request whose buffer is being set.
    fn current(&self) -> u32 {
        self.count - 1
    }

    #[inline]
    fn abort(&mut self) {
        // SAFETY: a list is open (head of this file); nothing uses it after this.
        unsafe { verbs::ibv_wr_abort(self.qp.as_ptr()) };
        *self.lists = NO_LIST;
    }
}

impl PostSendGuard for ExtendedPostSendGuard<'_> {
    #[inline]
    fn post(self) -> Result<(), PostSendError> {
        let mut list = ManuallyDrop::new(self);
        list.close_empty();
        if let Some(failure) = list.failure {
            list.abort();
            let failure = if list.usable == NO_PLACE { Failure::TooMany { limit: 0 } } else { failure };
            return Err(PostSendError::from_failure(failure));
        }
        if list.count == 0 {
            list.abort();
            return Ok(());
        }
        // SAFETY: a list is open and every request in it has its buffer (head of this file).
        let result = unsafe { verbs::ibv_wr_complete(list.qp.as_ptr()) };
        *list.lists = NO_LIST;
        match result {
            0 => Ok(()),
            result => Err(PostSendError::from_errno(result, None)),
        }
    }
}

impl Drop for ExtendedPostSendGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.abort();
    }
}

impl Build for ExtendedPostSendGuard<'_> {
    #[inline]
    fn begin(&mut self, _: Step, wr_id: u64, flags: WorkRequestFlags) {
        self.close_empty();
        // SAFETY: the pair lives and a list is open, in which these two fields are the caller's to set.
        unsafe {
            (*self.qp.as_ptr()).wr_id = wr_id;
            (*self.qp.as_ptr()).wr_flags = flags.raw();
        }
    }

    #[inline]
    fn send(&mut self, _: Step) {
        if self.open(SendOperationFlags::Send, WorkRequestOperationType::Send) {
            // SAFETY: a list is open and has the operation (head of this file).
            unsafe { verbs::ibv_wr_send(self.qp.as_ptr()) };
        }
    }

    #[inline]
    fn send_imm(&mut self, _: Step, imm_data: u32) {
        if self.open(SendOperationFlags::SendWithImmediate, WorkRequestOperationType::SendWithImmediate) {
            // SAFETY: a list is open and has the operation (head of this file).
            unsafe { verbs::ibv_wr_send_imm(self.qp.as_ptr(), imm_data.to_be()) };
        }
    }

    #[inline]
    fn write(&mut self, _: Step, rkey: u32, remote_addr: u64) {
        if self.open(SendOperationFlags::Write, WorkRequestOperationType::Write) {
            // SAFETY: a list is open and has the operation (head of this file).
            unsafe { verbs::ibv_wr_rdma_write(self.qp.as_ptr(), rkey, remote_addr) };
        }
    }

    #[inline]
    fn write_imm(&mut self, _: Step, rkey: u32, remote_addr: u64, imm_data: u32) {
        if self.open(SendOperationFlags::WriteWithImmediate, WorkRequestOperationType::WriteWithImmediate) {
            // SAFETY: a list is open and has the operation (head of this file).
            unsafe { verbs::ibv_wr_rdma_write_imm(self.qp.as_ptr(), rkey, remote_addr, imm_data.to_be()) };
        }
    }

    #[inline]
    fn read(&mut self, _: Step, rkey: u32, remote_addr: u64) {
        if self.open(SendOperationFlags::Read, WorkRequestOperationType::Read) {
            // SAFETY: a list is open and has the operation (head of this file).
            unsafe { verbs::ibv_wr_rdma_read(self.qp.as_ptr(), rkey, remote_addr) };
        }
    }

    #[inline]
    fn compare_and_swap(&mut self, _: Step, rkey: u32, remote_addr: u64, compare: u64, swap: u64) {
        if self.open(SendOperationFlags::AtomicCompareAndSwap, WorkRequestOperationType::AtomicCompareAndSwap)
        {
            // SAFETY: a list is open and has the operation (head of this file).
            unsafe { verbs::ibv_wr_atomic_cmp_swp(self.qp.as_ptr(), rkey, remote_addr, compare, swap) };
        }
    }

    #[inline]
    fn fetch_and_add(&mut self, _: Step, rkey: u32, remote_addr: u64, add: u64) {
        if self.open(SendOperationFlags::AtomicFetchAndAdd, WorkRequestOperationType::AtomicFetchAndAdd) {
            // SAFETY: a list is open and has the operation (head of this file).
            unsafe { verbs::ibv_wr_atomic_fetch_add(self.qp.as_ptr(), rkey, remote_addr, add) };
        }
    }

    #[inline]
    unsafe fn sge(&mut self, _: Step, lkey: u32, addr: u64, length: u32) {
        if self.close() {
            // SAFETY: a request waits for its buffer (head of this file), which the caller keeps.
            unsafe { verbs::ibv_wr_set_sge(self.qp.as_ptr(), lkey, addr, length) };
        }
    }

    #[inline]
    unsafe fn sge_list(&mut self, _: Step, list: &[ScatterGatherEntry]) {
        if list.is_empty() {
            return self.close_empty();
        }
        if !self.close() {
            return;
        }
        if list.len() > self.max_sge as usize {
            let (index, given, limit) = (self.current(), list.len(), self.max_sge);
            return self.fail_open(Failure::TooManyEntries { index, given, limit });
        }
        let entries: *const ibv_sge = list.as_ptr().cast();
        // SAFETY: a request waits for its buffers (head of this file), which the caller keeps; the list is
        // transparent over `ibv_sge`, is copied, and its length fits, being at most `max_sge`.
        unsafe { verbs::ibv_wr_set_sge_list(self.qp.as_ptr(), list.len(), entries) };
    }

    #[inline]
    fn inline_data(&mut self, _: Step, data: &[u8]) {
        if data.is_empty() {
            return self.close_empty();
        }
        if !self.close() {
            return;
        }
        if data.len() > self.max_inline as usize {
            let (index, given, limit) = (self.current(), data.len(), self.max_inline);
            return self.fail_open(Failure::TooLong { index, given, limit });
        }
        let start = data.as_ptr().cast_mut().cast();
        // SAFETY: a request waits for its buffer (head of this file); the pair takes inline data, because
        // `max_inline` is not zero; the bytes are copied, not written to.
        unsafe { verbs::ibv_wr_set_inline_data(self.qp.as_ptr(), start, data.len()) };
    }

    #[inline]
    fn inline_data_list(&mut self, _: Step, list: &[IoSlice<'_>]) {
        let given = list.iter().fold(0, |sum: usize, piece| sum.saturating_add(piece.len()));
        if given == 0 {
            return self.close_empty();
        }
        if !self.close() {
            return;
        }
        if given > self.max_inline as usize {
            let (index, limit) = (self.current(), self.max_inline);
            return self.fail_open(Failure::TooLong { index, given, limit });
        }
        let pieces: *const ibv_data_buf = list.as_ptr().cast();
        // SAFETY: a request waits for its buffer (head of this file); the pair takes inline data, because
        // `max_inline` is not zero; an `IoSlice` is an `iovec`, which is laid out as `ibv_data_buf` (below);
        // the bytes are copied, not written to.
        unsafe { verbs::ibv_wr_set_inline_data_list(self.qp.as_ptr(), list.len(), pieces) };
    }
}

// An `IoSlice` is guaranteed to be an `iovec`.
const _: () = {
    use std::mem::offset_of;
    assert!(size_of::<IoSlice<'_>>() == size_of::<ibv_data_buf>());
    assert!(offset_of!(libc::iovec, iov_base) == offset_of!(ibv_data_buf, addr));
    assert!(offset_of!(libc::iovec, iov_len) == offset_of!(ibv_data_buf, length));
};
