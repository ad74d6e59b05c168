//! The classic flavour: lists of `ibv_send_wr`, posted with `ibv_post_send`.
//!
//! The list is built in arrays that the queue owns, so that nothing is
//! allocated and nothing has to outlive anything: `ibv_post_send` copies all
//! of it. Inline data is copied once more than in C for the same reason.
//!
//! # Safety
//!
//! - `list` points to the arrays of the queue that a guard borrows mutably.
//! - The first `count` requests are written, each linked to the next, with
//!   `sg_list` and `num_sge` within the array of entries; `count` is at most
//!   the arrays' capacity.

use std::io::IoSlice;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr;

use rdma_mummy_sys::types::{ibv_send_flags, ibv_send_wr, ibv_sge, ibv_wr_opcode};
use rdma_mummy_sys::verbs;

use super::post::sealed::{Build, Step};
use super::post::{Failure, PostSendError, PostSendGuard, ScatterGatherEntry, first};
use super::receive::{ReceiveQueue, array, index_of};
use super::{
    CreateQueuePairError, Halves, QueuePairControl, SendOperationFlags, SendQueue, Shared, WorkRequestFlags,
    WorkRequestOperationType,
};

/// A queue pair that posts lists of work requests (`ibv_qp`).
#[derive(Debug)]
pub struct BasicQueuePair {
    pub(super) halves: Halves<BasicSendQueue>,
}

super::impl_queue_pair!(BasicQueuePair, BasicSendQueue);

impl BasicQueuePair {
    pub(super) fn new(send: BasicSendQueue, receive: ReceiveQueue) -> Self {
        Self { halves: Halves { send, receive } }
    }
}

/// The sending half of a [`BasicQueuePair`].
pub struct BasicSendQueue {
    control: QueuePairControl,
    usable: SendOperationFlags,
    limits: Limits,
    requests: Box<[MaybeUninit<ibv_send_wr>]>,
    entries: Box<[MaybeUninit<ibv_sge>]>,
    inline: Box<[MaybeUninit<u8>]>,
}

/// What fits into the arrays.
#[derive(Clone, Copy, Debug)]
struct Limits {
    requests: u32,
    entries: u32,
    inline: u32,
}

// SAFETY: the pointers in the arrays are only used between the start and the end of a list, by the one
// thread that builds it.
unsafe impl Send for BasicSendQueue {}
// SAFETY: `&self` does not reach the arrays.
unsafe impl Sync for BasicSendQueue {}

impl std::fmt::Debug for BasicSendQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BasicSendQueue").field("control", &self.control).finish_non_exhaustive()
    }
}

impl BasicSendQueue {
    pub(super) fn new(inner: Shared, asked: SendOperationFlags) -> Result<Self, CreateQueuePairError> {
        let cap = inner.capability();
        if cap.max_send_sge == 0 {
            return Err(CreateQueuePairError::NoEntries);
        }
        // SAFETY: the pair lives, so its context is open; the operation is in every release's struct.
        if unsafe { (*inner.context().as_raw().as_ptr()).ops.post_send.is_none() } {
            return Err(CreateQueuePairError::Incomplete { operation: "post_send" });
        }
        let limits =
            Limits { requests: cap.max_send_wr, entries: cap.max_send_sge, inline: cap.max_inline_data };
        Ok(Self {
            usable: asked & SendOperationFlags::of_type(inner.qp_type()),
            limits,
            requests: array(limits.requests, 1)?,
            entries: array(limits.requests, limits.entries)?,
            inline: array(limits.requests, limits.inline)?,
            control: QueuePairControl(inner),
        })
    }
}

impl SendQueue for BasicSendQueue {
    type Guard<'queue> = BasicPostSendGuard<'queue>;

    #[inline]
    fn start_post_send(&mut self) -> BasicPostSendGuard<'_> {
        BasicPostSendGuard {
            list: List {
                requests: self.requests.as_mut_ptr().cast(),
                entries: self.entries.as_mut_ptr().cast(),
                inline: self.inline.as_mut_ptr().cast(),
            },
            control: &self.control,
            usable: self.usable,
            limits: self.limits,
            wr_id: 0,
            flags: WorkRequestFlags::empty(),
            count: 0,
            open: false,
            failure: None,
            queue: PhantomData,
        }
    }

    fn control(&self) -> &QueuePairControl {
        &self.control
    }
}

/// The arrays of a queue.
#[derive(Clone, Copy, Debug)]
struct List {
    requests: *mut ibv_send_wr,
    entries: *mut ibv_sge,
    inline: *mut u8,
}

/// A list of work requests that is being built for a [`BasicQueuePair`].
#[must_use = "a list that is not posted is forgotten"]
#[derive(Debug)]
pub struct BasicPostSendGuard<'queue> {
    list: List,
    control: &'queue QueuePairControl,
    /// The operations that there are; none any more once the list has failed.
    usable: SendOperationFlags,
    limits: Limits,
    wr_id: u64,
    flags: WorkRequestFlags,
    count: u32,
    /// The last request waits for its buffer.
    open: bool,
    failure: Option<Failure>,
    queue: PhantomData<&'queue mut BasicSendQueue>,
}

impl BasicPostSendGuard<'_> {
    /// Appends a request without buffer to the list; null if it cannot be done.
    #[inline]
    fn append(
        &mut self,
        needed: SendOperationFlags,
        operation: WorkRequestOperationType,
    ) -> *mut ibv_send_wr {
        if !self.usable.contains(needed) {
            self.fail(Failure::Unsupported { index: self.count, operation });
            return ptr::null_mut();
        }
        if self.count == self.limits.requests {
            self.fail(Failure::TooMany { limit: self.limits.requests });
            return ptr::null_mut();
        }
        let index = self.count as usize;
        // SAFETY: `index` is below the arrays' capacity (just checked), and the request before it, if there
        // is one, is written (head of this file).
        let request = unsafe {
            let request = self.list.requests.add(index);
            (*request).wr_id = self.wr_id;
            (*request).next = ptr::null_mut();
            (*request).sg_list = self.list.entries.add(index * self.limits.entries as usize);
            (*request).num_sge = 0;
            (*request).opcode = ibv_wr_opcode(operation.raw());
            (*request).send_flags = self.flags.raw();
            if index > 0 {
                (*request.sub(1)).next = request;
            }
            request
        };
        self.count += 1;
        self.open = true;
        request
    }

    #[inline]
    fn append_remote(
        &mut self,
        needed: SendOperationFlags,
        operation: WorkRequestOperationType,
        rkey: u32,
        remote_addr: u64,
    ) -> *mut ibv_send_wr {
        let request = self.append(needed, operation);
        if !request.is_null() {
            // SAFETY: the request is in the array (`append`).
            unsafe {
                (*request).wr.rdma.remote_addr = remote_addr;
                (*request).wr.rdma.rkey = rkey;
            }
        }
        request
    }

    #[inline]
    fn append_atomic(
        &mut self,
        needed: SendOperationFlags,
        operation: WorkRequestOperationType,
        remote: (u32, u64),
        operands: (u64, u64),
    ) {
        let request = self.append(needed, operation);
        if !request.is_null() {
            // SAFETY: the request is in the array (`append`).
            unsafe {
                (*request).wr.atomic.rkey = remote.0;
                (*request).wr.atomic.remote_addr = remote.1;
                (*request).wr.atomic.compare_add = operands.0;
                (*request).wr.atomic.swap = operands.1;
            }
        }
    }

    #[inline]
    fn set_imm(request: *mut ibv_send_wr, imm_data: u32) {
        if !request.is_null() {
            // SAFETY: the request is in the array (`append`).
            unsafe { (*request).__bindgen_anon_1.imm_data = imm_data.to_be() };
        }
    }

    /// The request that waits for its buffer, which it then does no more.
    #[inline]
    fn close(&mut self) -> Option<*mut ibv_send_wr> {
        if !core::mem::replace(&mut self.open, false) {
            return None;
        }
        // SAFETY: an open request is the last of `count`, so there is one.
        Some(unsafe { self.list.requests.add(self.count as usize - 1) })
    }

    /// Makes the list fail when it is posted. The first failure counts.
    ///
    /// Inline, though it is cold: a guard whose address is never taken stays in registers.
    #[inline]
    fn fail(&mut self, failure: Failure) {
        self.failure = first(self.failure, failure);
        self.usable = SendOperationFlags::empty();
    }
}

impl PostSendGuard for BasicPostSendGuard<'_> {
    #[inline]
    fn post(self) -> Result<(), PostSendError> {
        if let Some(failure) = self.failure {
            return Err(PostSendError::from_failure(failure));
        }
        if self.count == 0 {
            return Ok(());
        }
        let mut bad = ptr::null_mut();
        // SAFETY: the pair lives, the queue is borrowed mutably, and `count` requests are linked from the
        // first of the array (head of this file); who gave their buffers keeps them.
        let result =
            unsafe { verbs::ibv_post_send(self.control.as_raw().as_ptr(), self.list.requests, &raw mut bad) };
        if result == 0 {
            return Ok(());
        }
        Err(PostSendError::from_errno(result, index_of(bad, self.list.requests, self.count)))
    }
}

impl Build for BasicPostSendGuard<'_> {
    #[inline]
    fn begin(&mut self, _: Step, wr_id: u64, flags: WorkRequestFlags) {
        self.open = false;
        self.wr_id = wr_id;
        self.flags = flags;
    }

    #[inline]
    fn send(&mut self, _: Step) {
        self.append(SendOperationFlags::Send, WorkRequestOperationType::Send);
    }

    #[inline]
    fn send_imm(&mut self, _: Step, imm_data: u32) {
        let operation = WorkRequestOperationType::SendWithImmediate;
        Self::set_imm(self.append(SendOperationFlags::SendWithImmediate, operation), imm_data);
    }

    #[inline]
    fn write(&mut self, _: Step, rkey: u32, remote_addr: u64) {
        let operation = WorkRequestOperationType::Write;
        self.append_remote(SendOperationFlags::Write, operation, rkey, remote_addr);
    }

    #[inline]
    fn write_imm(&mut self, _: Step, rkey: u32, remote_addr: u64, imm_data: u32) {
        let operation = WorkRequestOperationType::WriteWithImmediate;
        let needed = SendOperationFlags::WriteWithImmediate;
        Self::set_imm(self.append_remote(needed, operation, rkey, remote_addr), imm_data);
    }

    #[inline]
    fn read(&mut self, _: Step, rkey: u32, remote_addr: u64) {
        self.append_remote(SendOperationFlags::Read, WorkRequestOperationType::Read, rkey, remote_addr);
    }

    #[inline]
    fn compare_and_swap(&mut self, _: Step, rkey: u32, remote_addr: u64, compare: u64, swap: u64) {
        let operation = WorkRequestOperationType::AtomicCompareAndSwap;
        let needed = SendOperationFlags::AtomicCompareAndSwap;
        self.append_atomic(needed, operation, (rkey, remote_addr), (compare, swap));
    }

    #[inline]
    fn fetch_and_add(&mut self, _: Step, rkey: u32, remote_addr: u64, add: u64) {
        let operation = WorkRequestOperationType::AtomicFetchAndAdd;
        let needed = SendOperationFlags::AtomicFetchAndAdd;
        self.append_atomic(needed, operation, (rkey, remote_addr), (add, 0));
    }

    #[inline]
    unsafe fn sge(&mut self, _: Step, lkey: u32, addr: u64, length: u32) {
        if let Some(request) = self.close() {
            // SAFETY: the request is in the array, and its `sg_list` has room for at least one entry.
            unsafe {
                (*request).sg_list.write(ibv_sge { addr, length, lkey });
                (*request).num_sge = 1;
            }
        }
    }

    #[inline]
    unsafe fn sge_list(&mut self, _: Step, list: &[ScatterGatherEntry]) {
        let Some(request) = self.close() else { return };
        if list.len() > self.limits.entries as usize {
            let (index, given, limit) = (self.count - 1, list.len(), self.limits.entries);
            return self.fail(Failure::TooManyEntries { index, given, limit });
        }
        // SAFETY: the request is in the array, and its `sg_list` has room for as many entries as `limits`
        // says, which is no fewer than these; both are `ibv_sge`.
        unsafe {
            ptr::copy_nonoverlapping(list.as_ptr().cast(), (*request).sg_list, list.len());
            (*request).num_sge = list.len() as core::ffi::c_int;
        }
    }

    #[inline]
    fn inline_data(&mut self, step: Step, data: &[u8]) {
        self.inline_data_list(step, &[IoSlice::new(data)]);
    }

    #[inline]
    fn inline_data_list(&mut self, _: Step, list: &[IoSlice<'_>]) {
        let given = list.iter().fold(0, |sum: usize, piece| sum.saturating_add(piece.len()));
        let Some(request) = self.close() else { return };
        if given > self.limits.inline as usize {
            let (index, limit) = (self.count - 1, self.limits.inline);
            return self.fail(Failure::TooLong { index, given, limit });
        }
        if given == 0 {
            return;
        }
        // SAFETY: the request is the last of `count`, and the array of inline data has room for `limit`
        // bytes a request, which is no fewer than these; the request's `sg_list` has room for an entry.
        unsafe {
            let start = self.list.inline.add((self.count as usize - 1) * self.limits.inline as usize);
            let mut end = start;
            for piece in list {
                ptr::copy_nonoverlapping(piece.as_ptr(), end, piece.len());
                end = end.add(piece.len());
            }
            let (addr, length) = (start.expose_provenance() as u64, given as u32);
            (*request).sg_list.write(ibv_sge { addr, length, lkey: 0 });
            (*request).num_sge = 1;
            (*request).send_flags |= ibv_send_flags::IBV_SEND_INLINE.0;
        }
    }
}
