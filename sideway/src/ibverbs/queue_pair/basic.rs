//! The classic flavour: lists of `ibv_send_wr`, posted with `ibv_post_send`.
//!
//! The list is built in arrays that the queue owns, so that nothing is
//! allocated and nothing has to outlive anything: `ibv_post_send` copies all
//! of it. Inline data is copied once more than in C for the same reason.
//!
//! # Safety
//!
//! - `list` points to the arrays of the queue that a guard borrows mutably.
//! - The requests from the first to `at` are written, each linked to the next,
//!   with `sg_list` and `num_sge` within the array of entries; `at` is at most
//!   the array's end.

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
        let first: *mut ibv_send_wr = self.requests.as_mut_ptr().cast();
        BasicPostSendGuard {
            list: List {
                first,
                at: first,
                // SAFETY: the array is that long.
                end: unsafe { first.add(self.requests.len()) },
                entry: self.entries.as_mut_ptr().cast(),
                inline: self.inline.as_mut_ptr().cast(),
            },
            control: &self.control,
            usable: self.usable,
            limits: self.limits,
            wr_id: 0,
            flags: WorkRequestFlags::empty(),
            open: false,
            failure: None,
            queue: PhantomData,
        }
    }

    fn control(&self) -> &QueuePairControl {
        &self.control
    }
}

/// How far the arrays of a queue are filled.
#[derive(Clone, Copy, Debug)]
struct List {
    first: *mut ibv_send_wr,
    /// The next request, which is not there at the `end`; and its part of the other arrays.
    at: *mut ibv_send_wr,
    end: *mut ibv_send_wr,
    entry: *mut ibv_sge,
    inline: *mut u8,
}

impl List {
    fn count(&self) -> u32 {
        ((self.at.addr() - self.first.addr()) / size_of::<ibv_send_wr>()) as u32
    }
}

/// A list of work requests that is being built for a [`BasicQueuePair`].
#[must_use = "a list that is not posted is forgotten"]
#[derive(Debug)]
pub struct BasicPostSendGuard<'queue> {
    list: List,
    control: &'queue QueuePairControl,
    /// The operations that there are.
    usable: SendOperationFlags,
    limits: Limits,
    wr_id: u64,
    flags: WorkRequestFlags,
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
            self.fail(Failure::Unsupported { index: self.list.count(), operation });
            return ptr::null_mut();
        }
        let request = self.list.at;
        if request == self.list.end {
            self.fail(Failure::TooMany { limit: self.limits.requests });
            return ptr::null_mut();
        }
        // SAFETY: the request is not the arrays' end (just checked), so it is theirs, and so are its parts; the
        // next ones are theirs, too, or their ends. The last request's `next` is set by `post`.
        unsafe {
            self.list.at = request.add(1);
            (*request).wr_id = self.wr_id;
            (*request).next = self.list.at;
            (*request).opcode = ibv_wr_opcode(operation.raw());
            self.list.entry = self.list.entry.add(self.limits.entries as usize);
            self.list.inline = self.list.inline.add(self.limits.inline as usize);
        }
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
        // SAFETY: an open request is the last that was appended, so there is one.
        Some(unsafe { self.list.at.sub(1) })
    }

    /// Finishes a request: its buffer is the first `entries` of its entries.
    ///
    /// Only now, because what is written twice is stored twice.
    ///
    /// # Safety
    ///
    /// The request is the last that was appended, and so many of its entries are written.
    #[inline]
    unsafe fn finish(&mut self, request: *mut ibv_send_wr, entries: usize, flags: u32) {
        // SAFETY: the caller says so.
        unsafe {
            (*request).sg_list = self.own_entries();
            (*request).num_sge = entries as core::ffi::c_int;
            (*request).send_flags = flags;
        }
    }

    /// Gives a request that still waits for its buffer none.
    #[inline]
    fn close_empty(&mut self) {
        if let Some(request) = self.close() {
            // SAFETY: it is the last that was appended.
            unsafe { self.finish(request, 0, self.flags.raw()) };
        }
    }

    /// The entries of the last request that was appended: they end where the next one's begin.
    #[inline]
    fn own_entries(&self) -> *mut ibv_sge {
        self.list.entry.wrapping_sub(self.limits.entries as usize)
    }

    /// Makes the open request's buffer one of `len` bytes of inline data; where these go, if there are any.
    #[inline]
    fn inline_place(&mut self, len: usize) -> Option<*mut u8> {
        let request = self.close()?;
        if len > self.limits.inline as usize {
            let (index, limit) = (self.list.count() - 1, self.limits.inline);
            self.fail(Failure::TooLong { index, given: len, limit });
            return None;
        }
        // SAFETY: the request is the last that was appended: its part of the inline data, `limit` bytes of it, ends
        // where the next one's begins, and it has room for at least one entry.
        unsafe {
            let start = self.list.inline.sub(self.limits.inline as usize);
            let (addr, length) = (start.expose_provenance() as u64, len as u32);
            self.own_entries().write(ibv_sge { addr, length, lkey: 0 });
            match len {
                0 => self.finish(request, 0, self.flags.raw()),
                _ => self.finish(request, 1, self.flags.raw() | ibv_send_flags::IBV_SEND_INLINE.0),
            }
            Some(start)
        }
    }

    /// Makes the list fail when it is posted. The first failure counts.
    ///
    /// Inline, though it is cold: a guard whose address is never taken stays in registers.
    #[inline]
    fn fail(&mut self, failure: Failure) {
        self.failure = first(self.failure, failure);
    }
}

impl PostSendGuard for BasicPostSendGuard<'_> {
    #[inline]
    fn post(mut self) -> Result<(), PostSendError> {
        self.close_empty();
        if let Some(failure) = self.failure {
            return Err(PostSendError::from_failure(failure));
        }
        let list = self.list;
        if list.at == list.first {
            return Ok(());
        }
        let mut bad = ptr::null_mut();
        // SAFETY: the requests from the first to `at` are written (head of this file), each linked to the next; the
        // pair lives, the queue is borrowed mutably, and who gave the requests their buffers keeps them.
        let result = unsafe {
            (*list.at.sub(1)).next = ptr::null_mut();
            verbs::ibv_post_send(self.control.as_raw().as_ptr(), list.first, &raw mut bad)
        };
        if result == 0 {
            return Ok(());
        }
        Err(PostSendError::from_errno(result, index_of(bad, list.first, list.count())))
    }
}

impl Build for BasicPostSendGuard<'_> {
    #[inline]
    fn begin(&mut self, _: Step, wr_id: u64, flags: WorkRequestFlags) {
        self.close_empty();
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
            // SAFETY: the request is in the array, and has room for at least one entry.
            unsafe {
                self.own_entries().write(ibv_sge { addr, length, lkey });
                self.finish(request, 1, self.flags.raw());
            }
        }
    }

    #[inline]
    unsafe fn sge_list(&mut self, _: Step, list: &[ScatterGatherEntry]) {
        let Some(request) = self.close() else { return };
        if list.len() > self.limits.entries as usize {
            let (index, given, limit) = (self.list.count() - 1, list.len(), self.limits.entries);
            return self.fail(Failure::TooManyEntries { index, given, limit });
        }
        // SAFETY: the request is in the array, and it has room for as many entries as `limits`
        // says, which is no fewer than these; both are `ibv_sge`.
        unsafe {
            ptr::copy_nonoverlapping(list.as_ptr().cast(), self.own_entries(), list.len());
            self.finish(request, list.len(), self.flags.raw());
        }
    }

    #[inline]
    fn inline_data(&mut self, _: Step, data: &[u8]) {
        if let Some(start) = self.inline_place(data.len()) {
            // SAFETY: there is room for that many bytes (`inline_place`).
            unsafe { ptr::copy_nonoverlapping(data.as_ptr(), start, data.len()) };
        }
    }

    #[inline]
    fn inline_data_list(&mut self, _: Step, list: &[IoSlice<'_>]) {
        let given = list.iter().fold(0, |sum: usize, piece| sum.saturating_add(piece.len()));
        if let Some(mut end) = self.inline_place(given) {
            for piece in list {
                // SAFETY: there is room for all pieces together (`inline_place`).
                unsafe {
                    ptr::copy_nonoverlapping(piece.as_ptr(), end, piece.len());
                    end = end.add(piece.len());
                }
            }
        }
    }
}
