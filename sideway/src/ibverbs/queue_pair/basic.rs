//! The classic queue pair: lists of `ibv_send_wr`, posted with `ibv_post_send`.
//!
//! The list is built in memory that the queue owns, so that posting allocates nothing and the list
//! needs no lifetime: `ibv_post_send` copies all of it. For the same reason, inline data is copied
//! once more than in C. A request, its entries and its inline data share one [slot](Slots), so that
//! one pointer leads to all of them.
//!
//! # Safety
//!
//! The unsafe code in this module relies on these invariants:
//!
//! - Each request is linked to the one in the next slot, or to none. So the slots that a guard has
//!   taken, from the first slot to `last`, form a list. `post` ends it by clearing the link of
//!   `last`; a longer list sets it again. A queue without slots has no possible operation, so that
//!   no slot is ever taken.
//! - The `sg_list` of every slot points to that slot's entries, for the queue's whole life. The
//!   address in the first entry points to the slot's inline data, until entries are written to any
//!   slot, which `take_entries` records first.
//! - Both hold because libraries only read requests, and nobody else writes there. The guard
//!   borrows the queue mutably, and so does a prepared list.
//! - The other fields of the taken slots are written, with `num_sge` within the slot's entries.

mod slots;

use std::ffi::c_int;
use std::io::IoSlice;
use std::mem::offset_of;
use std::ptr::{self, NonNull};

use rdma_mummy_sys::types::{ibv_qp, ibv_send_flags, ibv_send_wr, ibv_sge, ibv_wr_opcode};

use self::slots::{RequestSlot, Slots};
use super::post::sealed::{Build, ListInfo, Step};
use super::post::{Borrows, PostSendGuard, ScatterGatherEntry};
use super::post_error::{Failure, PostSendError};
use super::receive::{ReceiveQueue, index_of};
use super::work_request::{
    BufferlessOperation, BufferlessRequest, Destination, DestinationLimits, InlineLimits, ListPosition,
    SendOperation, SendRequest,
};
use super::{CreateQueuePairError, Halves, QueuePairControl, SendOperationFlags, SendQueue, Shared};

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
    /// `control`'s pointer, copied here to save an indirection on the post path.
    qp: NonNull<ibv_qp>,
    /// `ibv_post_send` of the device's library, which sets it when it opens the device.
    verb: unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int,
    possible: InlineLimits,
    preset: PresetInline,
    elsewhere: DestinationLimits,
    usable: SendOperationFlags,
    slots: Slots,
    /// Set by the library to the request that it rejected; null between posts.
    bad: *mut ibv_send_wr,
}

/// For each operation, the limit of inline data plus one, if every slot's entry still points to the
/// slot's inline data.
///
/// Then a request does not have to store that address again. The values are 0 once any slot had
/// another buffer, and for the less frequent operations, which [`InlineLimits`] decides. They are
/// 16 bits wide so that one store clears all of them.
#[derive(Clone, Copy, Debug)]
struct PresetInline([u16; 4]);

impl PresetInline {
    const NONE: Self = Self([0; 4]);

    fn of(possible: &InlineLimits) -> Self {
        Self(possible.first().map(|room| u16::try_from(room).unwrap_or(u16::MAX)))
    }

    #[inline(always)]
    fn has(&self, request: &SendRequest, inline: usize) -> bool {
        match request.to {
            Destination::Peer => {
                self.0.get(request.operation.index()).is_some_and(|room| inline < usize::from(*room))
            }
            Destination::Address(_) | Destination::Queue(_) => false,
        }
    }
}

// SAFETY: the pointers in the slots are used only while a list is built, by the thread that has the
// queue.
unsafe impl Send for BasicSendQueue {}
// SAFETY: no method accesses the slots through `&self`.
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
        // SAFETY: `inner` keeps the pair and so its context alive, and every release's context
        // struct has this operation.
        let Some(verb) = (unsafe { (*inner.context().as_raw().as_ptr()).ops.post_send }) else {
            return Err(CreateQueuePairError::Incomplete { operation: "post_send" });
        };
        let usable = match cap.max_send_wr {
            0 => SendOperationFlags::empty(),
            // `ibv_send_wr` has no fields for the range and the kind of a flush.
            _ => (asked & SendOperationFlags::possible(inner.qp_type())) - SendOperationFlags::Flush,
        };
        let (possible, elsewhere) = DestinationLimits::divide(inner.qp_type(), usable, cap.max_inline_data);
        let control = QueuePairControl(inner);
        Ok(Self {
            qp: control.as_raw(),
            verb,
            preset: PresetInline::of(&possible),
            possible,
            elsewhere,
            usable,
            slots: Slots::new(&cap)?,
            bad: ptr::null_mut(),
            control,
        })
    }

    /// The error for a list that cannot be posted because of one request.
    #[cold]
    #[inline(never)]
    fn refused(&self, failure: Failure, behind: *mut RequestSlot) -> PostSendError {
        let index = self.slots.until(behind);
        let limit = self.control.capability().max_send_wr as usize;
        self.elsewhere.error(&self.possible, failure, ListPosition { index, limit })
    }

    /// Posts the list that starts with `first`.
    ///
    /// # Safety
    ///
    /// `first` must be the request in the first slot, from which the list is written and linked
    /// (module head). The owners of the requests' buffers must keep the promises that they made
    /// when the requests were built.
    #[inline(always)]
    pub(super) unsafe fn post_list(&mut self, first: *mut ibv_send_wr) -> Result<(), PostSendError> {
        // SAFETY: the caller guarantees the list. `self` keeps the pair alive, and is borrowed
        // mutably, so nobody else posts.
        let result = unsafe { (self.verb)(self.qp.as_ptr(), first, &raw mut self.bad) };
        if result == 0 { Ok(()) } else { Err(self.failed(result)) }
    }

    /// The error for the list in the first slots, which the library rejected.
    #[cold]
    #[inline(never)]
    fn failed(&mut self, result: c_int) -> PostSendError {
        let mut count = 1;
        let mut slot = self.slots.first();
        // SAFETY: a list that was posted starts in the first slot and is linked up to its last
        // request (module head).
        while unsafe { !(*slot).request.next.is_null() } {
            slot = slot.wrapping_byte_add(self.slots.stride.get());
            count += 1;
        }
        let bad = core::mem::replace(&mut self.bad, ptr::null_mut());
        let index = index_of(bad.addr(), self.slots.first().addr(), self.slots.stride.get(), count);
        PostSendError::from_errno(result, index, &self.control)
    }
}

impl SendQueue for BasicSendQueue {
    type Guard<'queue> = BasicPostSendGuard<'queue>;

    #[inline]
    fn start_post_send(&mut self) -> BasicPostSendGuard<'_> {
        let (first, possible, preset) = (self.slots.first(), self.possible, self.preset);
        let last = ptr::null_mut();
        BasicPostSendGuard { first, last, next: first, possible, preset, failure: None, queue: self }
    }

    fn control(&self) -> &QueuePairControl {
        &self.control
    }
}

/// A list of work requests that is being built for a [`BasicQueuePair`].
#[must_use = "a list that is not posted is forgotten"]
#[derive(Debug)]
pub struct BasicPostSendGuard<'queue> {
    /// The queue's first slot.
    first: *mut RequestSlot,
    /// The last slot that the list has taken, or null; and the slot linked to it, or null.
    last: *mut RequestSlot,
    next: *mut RequestSlot,
    /// Copies of the queue's fields. The compiler knows that no store through a pointer changes
    /// them.
    possible: InlineLimits,
    preset: PresetInline,
    failure: Option<(Failure, *mut RequestSlot)>,
    queue: &'queue mut BasicSendQueue,
}

impl BasicPostSendGuard<'_> {
    /// Whether a request with `inline` bytes of inline data is possible.
    #[inline(always)]
    fn has(&self, request: &SendRequest, inline: usize) -> bool {
        // No reference to the guard's own copy is made, so that the copy stays in registers.
        match &request.to {
            Destination::Peer => self.possible.has(&request.operation, inline),
            Destination::Address(_) => self.queue.elsewhere.datagram.has(&request.operation, inline),
            Destination::Queue(_) => self.queue.elsewhere.xrc.has(&request.operation, inline),
        }
    }

    /// Takes a slot for a request without inline data, if the request is possible. The caller must
    /// write the slot.
    #[inline(always)]
    fn take(&mut self, request: &SendRequest) -> Option<*mut RequestSlot> {
        if !self.has(request, 0) {
            self.fail(Failure::of(request, 0));
            return None;
        }
        self.take_slot(request, 0)
    }

    /// Takes a slot for a request whose buffer is in the slot's entries, which then no longer point
    /// to the inline data.
    #[inline(always)]
    fn take_entries(&mut self, request: &SendRequest) -> Option<*mut RequestSlot> {
        let slot = self.take(request)?;
        self.preset = PresetInline::NONE;
        self.queue.preset = PresetInline::NONE;
        Some(slot)
    }

    /// Takes the next slot, unless none is left, or the request's address handle belongs to another
    /// context.
    #[inline(always)]
    fn take_slot(&mut self, request: &SendRequest, inline: usize) -> Option<*mut RequestSlot> {
        let mut slot = self.next;
        if slot.is_null() {
            // SAFETY: `next` is null only after a slot was taken, which is `last`. The guard
            // borrows the queue mutably.
            slot = unsafe { self.queue.slots.link(self.last) };
            if slot.is_null() {
                self.fail(Failure::of(request, inline));
                return None;
            }
        }
        if let Destination::Address(address) = request.to
            // SAFETY: the guard's queue keeps the pair alive, and every release's struct has this
            // field.
            && !address.is_of(unsafe { (*self.queue.qp.as_ptr()).context })
        {
            self.fail(Failure::OtherContext);
            return None;
        }
        // SAFETY: the slot is in the queue's memory, and its link is set (module head).
        self.next = unsafe { (*slot).request.next }.cast();
        self.last = slot;
        Some(slot)
    }

    /// Writes a request, except its buffer, into the slot that was taken for it. `entries` is the
    /// length of its scatter/gather list, and `flags` are added to the request's flags.
    #[inline(always)]
    fn put(&mut self, slot: *mut RequestSlot, request: &SendRequest, entries: usize, flags: u32) {
        // SAFETY: the slot was taken, so all of it is in the queue's memory.
        unsafe {
            let raw = &raw mut (*slot).request;
            (*raw).wr_id = request.wr_id;
            (*raw).num_sge = entries as c_int;
            (*raw).opcode = ibv_wr_opcode(request.operation.kind().raw());
            (*raw).send_flags = request.flags.raw() | flags;
            if let Destination::Address(address) = request.to {
                (*raw).wr.ud.ah = address.ah.as_ptr();
                (*raw).wr.ud.remote_qpn = address.remote_qpn;
                (*raw).wr.ud.remote_qkey = address.remote_qkey;
            }
            if let Destination::Queue(remote_srqn) = request.to {
                (*raw).qp_type.xrc.remote_srqn = remote_srqn;
            }
            match request.operation {
                SendOperation::Send => {}
                SendOperation::SendWithImmediate { imm_data } => {
                    (*raw).__bindgen_anon_1.imm_data = imm_data.to_be();
                }
                SendOperation::SendWithInvalidate { rkey } => {
                    (*raw).__bindgen_anon_1.invalidate_rkey = rkey;
                }
                SendOperation::Write(remote) | SendOperation::Read(remote) => {
                    (*raw).wr.rdma.remote_addr = remote.addr;
                    (*raw).wr.rdma.rkey = remote.rkey;
                }
                SendOperation::WriteWithImmediate { remote, imm_data } => {
                    (*raw).__bindgen_anon_1.imm_data = imm_data.to_be();
                    (*raw).wr.rdma.remote_addr = remote.addr;
                    (*raw).wr.rdma.rkey = remote.rkey;
                }
                SendOperation::CompareAndSwap { remote, compare, swap } => {
                    (*raw).wr.atomic.remote_addr = remote.addr;
                    (*raw).wr.atomic.rkey = remote.rkey;
                    (*raw).wr.atomic.compare_add = compare;
                    (*raw).wr.atomic.swap = swap;
                }
                SendOperation::FetchAndAdd { remote, add } => {
                    (*raw).wr.atomic.remote_addr = remote.addr;
                    (*raw).wr.atomic.rkey = remote.rkey;
                    (*raw).wr.atomic.compare_add = add;
                    (*raw).wr.atomic.swap = 0;
                }
            }
        }
    }

    /// Appends a request with `len` bytes of inline data, which `copy` writes to the address that
    /// it gets.
    #[inline(always)]
    fn append_copied(&mut self, request: &SendRequest, len: usize, copy: impl FnOnce(*mut u8)) {
        if self.preset.has(request, len) {
            if let Some(slot) = self.take_slot(request, len) {
                self.put_inline(slot, request, len, copy);
            }
        } else if self.has(request, len) {
            if let Some(slot) = self.take_slot(request, len) {
                let start = slot.wrapping_byte_add(offset_of!(RequestSlot, inline));
                // SAFETY: the slot was taken, so all of it is in the queue's memory.
                unsafe { (*slot).entry.addr = start.expose_provenance() as u64 };
                self.put_inline(slot, request, len, copy);
            }
        } else {
            self.fail(Failure::of(request, len));
        }
    }

    /// Writes a request with `len` bytes of inline data into the slot that was taken for it. The
    /// slot's entry already points to the inline data.
    #[inline(always)]
    fn put_inline(
        &mut self,
        slot: *mut RequestSlot,
        request: &SendRequest,
        len: usize,
        copy: impl FnOnce(*mut u8),
    ) {
        copy(slot.wrapping_byte_add(offset_of!(RequestSlot, inline)).cast());
        // SAFETY: the slot was taken, so all of it is in the queue's memory.
        unsafe {
            (*slot).entry.length = len as u32;
            (*slot).entry.lkey = 0;
        }
        self.put(slot, request, 1, ibv_send_flags::IBV_SEND_INLINE.0);
    }

    /// Records a failure of the next request, so that posting the list fails.
    ///
    /// Inlined although it is cold, because a guard whose address is never taken stays in
    /// registers.
    #[inline(always)]
    fn fail(&mut self, failure: Failure) {
        if self.failure.is_none() {
            self.failure = Some((failure, self.last));
        }
    }
}

impl PostSendGuard for BasicPostSendGuard<'_> {
    #[inline]
    fn post(self) -> Result<(), PostSendError> {
        let (first, queue) = self.finish()?;
        if first.is_null() {
            return Ok(());
        }
        // SAFETY: `finish` returned a written and linked list. The callers who gave the requests
        // their buffers keep them.
        unsafe { queue.post_list(first) }
    }
}

impl<'queue> BasicPostSendGuard<'queue> {
    /// Ends the list. Returns its first request, or null if the list is empty, and the queue.
    #[inline(always)]
    fn finish(self) -> Result<(*mut ibv_send_wr, &'queue mut BasicSendQueue), PostSendError> {
        if let Some((failure, behind)) = self.failure {
            return Err(self.queue.refused(failure, behind));
        }
        if self.last.is_null() {
            return Ok((ptr::null_mut(), self.queue));
        }
        // SAFETY: `last` is a slot that the list took, and the requests up to it are written and
        // linked (module head).
        unsafe { (*self.last).request.next = ptr::null_mut() };
        Ok((self.first.cast(), self.queue))
    }

    /// Prepares the list for repeated posting, so that the cost of building its requests is paid
    /// once.
    ///
    /// ```no_run
    /// # use sideway::ibverbs::{memory_region::MemoryRegion, queue_pair::*};
    /// # fn write(
    /// #     qp: &mut BasicQueuePair, mr: &MemoryRegion, rkey: u32, remote: u64,
    /// # ) -> Result<(), PostSendError> {
    /// let mut guard = qp.start_post_send();
    /// for number in 0..64 {
    ///     let last = number == 63;
    ///     let flags = if last { WorkRequestFlags::Signaled } else { WorkRequestFlags::empty() };
    ///
    ///     let write = guard.construct_wr(number, flags).setup_write(rkey, remote);
    ///     // SAFETY: the region covers the bytes, and lives until the last completion has been
    ///     // polled.
    ///     unsafe { write.setup_sge(mr.lkey(), mr.get_ptr() as u64, 64) };
    /// }
    /// // SAFETY: nobody writes to the region while the list may be posted, until the last
    /// // completion.
    /// let mut list = unsafe { guard.prepare()? };
    /// for _ in 0..1000 {
    ///     list.post()?;
    ///     // Polls the completion.
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails as [`post`](PostSendGuard::post) does, for errors that are found before the device
    /// gets a request.
    ///
    /// # Safety
    ///
    /// The contract of [`setup_sge`](super::LocalBufferHandle::setup_sge) for each request's buffer
    /// must hold each time that the list is posted: from the call of [`PreparedSendList::post`]
    /// until the completion. Inline data is copied into the list and needs no guarantee.
    #[inline]
    pub unsafe fn prepare(self) -> Result<PreparedSendList<'queue>, PostSendError> {
        let (first, queue) = self.finish()?;
        Ok(PreparedSendList { first, queue })
    }
}

/// A list of work requests that can be posted repeatedly ([`BasicPostSendGuard::prepare`]).
///
/// It lies in the queue's memory, so it borrows the queue, which can have no other list at the same
/// time. It also borrows the objects that its requests refer to. The requests have the same numbers
/// (`wr_id`) each time.
#[must_use = "a list that is not posted does nothing"]
#[derive(Debug)]
pub struct PreparedSendList<'queue> {
    /// The first request; null for an empty list.
    first: *mut ibv_send_wr,
    queue: &'queue mut BasicSendQueue,
}

impl PreparedSendList<'_> {
    /// Posts the list once more (`ibv_post_send`). An empty list has no effect.
    ///
    /// # Errors
    ///
    /// Fails as [`PostSendGuard::post`] does. The list stays complete: the next call posts all of
    /// it again, including the requests that were not posted this time.
    #[inline]
    pub fn post(&mut self) -> Result<(), PostSendError> {
        if self.first.is_null() {
            return Ok(());
        }
        // SAFETY: `finish` returned a written and linked list. It is unchanged because libraries
        // only read it and the queue is borrowed mutably. The caller of `prepare` keeps the
        // requests' buffers, and the list borrows the objects that they refer to.
        unsafe { self.queue.post_list(self.first) }
    }
}

impl<'queue> Borrows<'queue> for BasicPostSendGuard<'queue> {}

impl Build for BasicPostSendGuard<'_> {
    #[inline(always)]
    fn list_info(&self, _: Step) -> ListInfo {
        // SAFETY: the guard's queue keeps the pair alive, and every release's struct has this
        // field.
        let context = unsafe { (*self.queue.qp.as_ptr()).context };
        let count = self.queue.slots.until(self.last);
        ListInfo { context, count, in_place: false, overwrites_when_full: false }
    }

    #[inline(always)]
    fn append(&mut self, _: Step, request: SendRequest) {
        if let Some(slot) = self.take(&request) {
            self.put(slot, &request, 0, 0);
        }
    }

    #[inline(always)]
    unsafe fn append_sge(&mut self, _: Step, request: SendRequest, entry: ScatterGatherEntry) {
        if let Some(slot) = self.take_entries(&request) {
            // SAFETY: the slot was taken, and every slot has room for at least one entry.
            unsafe { (*slot).entry = entry.0 };
            self.put(slot, &request, 1, 0);
        }
    }

    #[inline(always)]
    unsafe fn append_sge_list(&mut self, _: Step, request: SendRequest, list: &[ScatterGatherEntry]) {
        if list.len() > self.queue.slots.entries as usize {
            let (given, limit) = (list.len(), self.queue.slots.entries);
            return self.fail(Failure::TooManyEntries { given, limit });
        }
        if let Some(slot) = self.take_entries(&request) {
            let entries: *mut ibv_sge = slot.wrapping_byte_add(offset_of!(RequestSlot, entry)).cast();
            // SAFETY: the check above keeps the list within the slot's entries;
            // `ScatterGatherEntry` is transparent over `ibv_sge`.
            unsafe { ptr::copy_nonoverlapping(list.as_ptr().cast(), entries, list.len()) };
            self.put(slot, &request, list.len(), 0);
        }
    }

    #[inline(always)]
    fn append_inline(&mut self, step: Step, request: SendRequest, data: &[u8]) {
        if data.is_empty() {
            return self.append(step, request);
        }
        self.append_copied(&request, data.len(), |start| {
            // SAFETY: `append_copied` checked that this length of inline data is possible, and
            // every slot has room for that.
            unsafe { ptr::copy_nonoverlapping(data.as_ptr(), start, data.len()) };
        });
    }

    #[inline(always)]
    fn append_inline_list(&mut self, step: Step, request: SendRequest, list: &[IoSlice<'_>]) {
        let given = list.iter().fold(0, |sum: usize, piece| sum.saturating_add(piece.len()));
        if given == 0 {
            return self.append(step, request);
        }
        self.append_copied(&request, given, |start| {
            let mut end = start;
            for piece in list {
                // SAFETY: `append_copied` checked the sum of the pieces, and every slot has room
                // for that.
                unsafe {
                    ptr::copy_nonoverlapping(piece.as_ptr(), end, piece.len());
                    end = end.add(piece.len());
                }
            }
        });
    }

    unsafe fn append_bufferless(&mut self, _: Step, request: BufferlessRequest) {
        // SAFETY: the guard's queue keeps the pair alive. Every release's struct has this field.
        let context = unsafe { (*self.queue.qp.as_ptr()).context };
        // SAFETY: the caller guarantees (`# Safety` of the trait's method) that the objects of the
        // request are alive.
        if let Err(failure) = unsafe { request.operation.check(self.queue.usable, context) } {
            return self.fail(failure);
        }
        let inline = match request.operation {
            BufferlessOperation::AtomicWrite { .. } => size_of::<u64>(),
            _ => 0,
        };
        let limit = self.queue.control.capability().max_inline_data;
        if inline > limit as usize {
            return self.fail(Failure::NoInline { given: inline, limit });
        }
        let mut slot = self.next;
        if slot.is_null() {
            // SAFETY: `next` is null only after a slot was taken, and `last` is that slot. The
            // guard borrows the queue mutably.
            slot = unsafe { self.queue.slots.link(self.last) };
            if slot.is_null() {
                return self.fail(Failure::NoPlace);
            }
        }
        // SAFETY: the slot is in the queue's memory, and its link is set. The check above keeps the
        // inline data within the slot.
        unsafe {
            self.next = (*slot).request.next.cast();
            self.last = slot;
            let raw = &raw mut (*slot).request;
            (*raw).wr_id = request.wr_id;
            (*raw).num_sge = 0;
            (*raw).opcode = ibv_wr_opcode(request.operation.kind().raw());
            (*raw).send_flags = request.flags.raw();
            // Cleared because a library may reject a stale value in a field that the request does
            // not use (SoftRoCE's does).
            (*raw).__bindgen_anon_1.imm_data = 0;
            match request.operation {
                BufferlessOperation::LocalInvalidate { rkey } => {
                    (*raw).__bindgen_anon_1.invalidate_rkey = rkey
                }
                BufferlessOperation::Bind { mw, rkey, info } => {
                    (*raw).__bindgen_anon_2.bind_mw.mw = mw.as_ptr();
                    (*raw).__bindgen_anon_2.bind_mw.rkey = rkey;
                    (*raw).__bindgen_anon_2.bind_mw.bind_info = info;
                }
                BufferlessOperation::AtomicWrite { remote, value } => {
                    (*raw).wr.rdma.remote_addr = remote.addr;
                    (*raw).wr.rdma.rkey = remote.rkey;
                    let start: *mut u8 = (&raw mut (*slot).inline).cast();
                    start.cast::<u64>().write_unaligned(value);
                    let addr = start.expose_provenance() as u64;
                    (*slot).entry = ibv_sge { addr, length: inline as u32, lkey: 0 };
                    (*raw).num_sge = 1;
                    (*raw).send_flags |= ibv_send_flags::IBV_SEND_INLINE.0;
                }
                // `new` removed flushes from the usable operations.
                BufferlessOperation::Flush { .. } => unreachable!("classic pairs cannot flush"),
            }
        }
    }
}
