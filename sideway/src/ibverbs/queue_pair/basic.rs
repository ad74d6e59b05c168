//! The classic flavour: lists of `ibv_send_wr`, posted with `ibv_post_send`.
//!
//! The list is built in memory that the queue owns, so that nothing is allocated and nothing has to outlive
//! anything: `ibv_post_send` copies all of it. Inline data is copied once more than in C for the same reason.
//! A request, its entries and its inline data lie together in a [slot](Slots): one pointer leads to all of them.
//!
//! # Safety
//!
//! - `next` points into the slots of the queue that a guard borrows mutably, `count` slots after the first; `count` is at
//!   most `places`. A queue that has no slot has no operation either, so that none is taken.
//! - The slots before it are written, each request linked to the next, with `sg_list` and `num_sge` within the
//!   entries of its own slot.

use std::ffi::c_int;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::num::NonZeroU32;
use std::ptr::{self, NonNull};

use rdma_mummy_sys::types::{ibv_qp, ibv_send_flags, ibv_send_wr, ibv_sge, ibv_wr_opcode};

use super::post::sealed::{Build, Step};
use super::post::{Borrows, Failure, PostSendError, PostSendGuard, ScatterGatherEntry};
use super::receive::{NoRoom, ReceiveQueue, array, index_of};
use super::work_request::{Destination, Elsewhere, Operation, Place, Possible, Request};
use super::{
    CreateQueuePairError, Halves, QueuePairCapability, QueuePairControl, SendOperationFlags, SendQueue,
    Shared,
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
    /// The same as `control`'s, one step nearer.
    qp: NonNull<ibv_qp>,
    /// `ibv_post_send` of the queue's library, which sets it when it opens the device.
    verb: unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int,
    possible: Possible,
    elsewhere: Elsewhere,
    slots: Slots,
    /// Where the library says which request was bad; null while nobody posts.
    bad: *mut ibv_send_wr,
}

/// Room for the requests of a list: in each slot an `ibv_send_wr`, its entries and its inline data, in this order.
struct Slots {
    memory: Box<[MaybeUninit<Unit>]>,
    /// How many there are; 1 where there are none, of a queue that holds nothing.
    count: NonZeroU32,
    entries: u32,
    /// Where in a slot the inline data begins, and where the next slot does.
    inline: usize,
    stride: usize,
}

/// What slots are measured in: aligned for all of their parts.
type Unit = u64;

const _: () = assert!(align_of::<ibv_send_wr>() <= align_of::<Unit>());
const _: () = assert!(align_of::<ibv_sge>() <= align_of::<Unit>());
const _: () = assert!(size_of::<ibv_send_wr>().is_multiple_of(align_of::<Unit>()));

impl Slots {
    fn new(cap: &QueuePairCapability) -> Result<Self, CreateQueuePairError> {
        let entries = u64::from(cap.max_send_sge) * size_of::<ibv_sge>() as u64;
        let inline = size_of::<ibv_send_wr>() as u64 + entries;
        let units = (inline + u64::from(cap.max_inline_data)).div_ceil(size_of::<Unit>() as u64);
        let (Ok(units), Ok(inline)) = (u32::try_from(units), usize::try_from(inline)) else {
            return Err(NoRoom { places: units, bytes_each: size_of::<Unit>() }.into());
        };
        Ok(Self {
            memory: array(cap.max_send_wr, units)?,
            count: NonZeroU32::new(cap.max_send_wr).unwrap_or(NonZeroU32::MIN),
            entries: cap.max_send_sge,
            inline,
            stride: units as usize * size_of::<Unit>(),
        })
    }
}

// SAFETY: the pointers in the slots are only used between the start and the end of a list, by the one
// thread that builds it.
unsafe impl Send for BasicSendQueue {}
// SAFETY: `&self` does not reach the slots.
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
        let Some(verb) = (unsafe { (*inner.context().as_raw().as_ptr()).ops.post_send }) else {
            return Err(CreateQueuePairError::Incomplete { operation: "post_send" });
        };
        let usable = match cap.max_send_wr {
            0 => SendOperationFlags::empty(),
            _ => asked & SendOperationFlags::of_type(inner.qp_type()),
        };
        let (possible, elsewhere) = Elsewhere::divide(inner.qp_type(), usable, cap.max_inline_data);
        let control = QueuePairControl(inner);
        Ok(Self {
            qp: control.as_raw(),
            verb,
            possible,
            elsewhere,
            slots: Slots::new(&cap)?,
            bad: ptr::null_mut(),
            control,
        })
    }

    /// Why a list of `count` requests could not be posted.
    #[cold]
    #[inline(never)]
    fn failed(&mut self, result: c_int, count: u32) -> PostSendError {
        let bad = core::mem::replace(&mut self.bad, ptr::null_mut());
        let index = index_of(bad.addr(), self.slots.memory.as_ptr().addr(), self.slots.stride, count);
        PostSendError::from_errno(result, index)
    }
}

impl SendQueue for BasicSendQueue {
    type Guard<'queue> = BasicPostSendGuard<'queue>;

    #[inline]
    fn start_post_send(&mut self) -> BasicPostSendGuard<'_> {
        let first = self.slots.memory.as_mut_ptr().cast();
        BasicPostSendGuard {
            first,
            next: first,
            places: self.slots.count,
            count: 0,
            stride: self.slots.stride,
            inline: self.slots.inline,
            possible: self.possible,
            failure: None,
            queue: self,
        }
    }

    fn control(&self) -> &QueuePairControl {
        &self.control
    }
}

/// A list of work requests that is being built for a [`BasicQueuePair`].
#[must_use = "a list that is not posted is forgotten"]
#[derive(Debug)]
pub struct BasicPostSendGuard<'queue> {
    /// The first slot, and the first that the list has not taken.
    first: *mut u8,
    next: *mut u8,
    /// How many requests a list may have, and how many this one has.
    places: NonZeroU32,
    count: u32,
    // Copies of the queue's, which compilers know that no store changes.
    stride: usize,
    inline: usize,
    possible: Possible,
    failure: Option<Failure>,
    queue: &'queue mut BasicSendQueue,
}

/// A request that has taken a slot.
#[derive(Clone, Copy)]
struct Taken(*mut u8);

impl BasicPostSendGuard<'_> {
    /// Appends a request, if it is possible with so much inline data. Its buffer has so many `entries`, which the caller
    /// writes next, and `flags` of its own.
    #[inline(always)]
    fn take(&mut self, request: &Request, inline: usize, entries: usize, flags: u32) -> Option<Taken> {
        // Of the guard's own copy no reference is taken, so that it stays in registers.
        let possible = match &request.to {
            Destination::Peer => self.possible.has(&request.operation, inline),
            Destination::Address(_) => self.queue.elsewhere.datagram.has(&request.operation, inline),
        };
        if !possible {
            self.refuse(request, inline);
            return None;
        }
        if self.count == self.places.get() {
            self.refuse(request, inline);
            return None;
        }
        if let Destination::Address(address) = request.to
            // SAFETY: the pair lives; the field is in every release's struct.
            && !address.is_of(unsafe { (*self.queue.qp.as_ptr()).context })
        {
            self.fail(Failure::OtherContext { index: self.count });
            return None;
        }
        self.count += 1;
        let slot = self.next;
        let raw: *mut ibv_send_wr = slot.cast();
        // SAFETY: there was a slot left, so this one and all of its parts are in the queue's memory, and the next one
        // is or begins at its end. The last request's `next` is set by `post`.
        unsafe {
            self.next = slot.add(self.stride);
            (*raw).wr_id = request.wr_id;
            (*raw).next = self.next.cast();
            (*raw).sg_list = Taken(slot).entries();
            (*raw).num_sge = entries as c_int;
            (*raw).opcode = ibv_wr_opcode(request.operation.kind().raw());
            (*raw).send_flags = request.flags.raw() | flags;
            if let Destination::Address(address) = request.to {
                (*raw).wr.ud.ah = address.ah.as_ptr();
                (*raw).wr.ud.remote_qpn = address.remote_qpn;
                (*raw).wr.ud.remote_qkey = address.remote_qkey;
            }
            match request.operation {
                Operation::Send => {}
                Operation::SendWithImmediate { imm_data } => {
                    (*raw).__bindgen_anon_1.imm_data = imm_data.to_be();
                }
                Operation::Write(remote) | Operation::Read(remote) => {
                    (*raw).wr.rdma.remote_addr = remote.addr;
                    (*raw).wr.rdma.rkey = remote.rkey;
                }
                Operation::WriteWithImmediate { remote, imm_data } => {
                    (*raw).__bindgen_anon_1.imm_data = imm_data.to_be();
                    (*raw).wr.rdma.remote_addr = remote.addr;
                    (*raw).wr.rdma.rkey = remote.rkey;
                }
                Operation::CompareAndSwap { remote, compare, swap } => {
                    (*raw).wr.atomic.remote_addr = remote.addr;
                    (*raw).wr.atomic.rkey = remote.rkey;
                    (*raw).wr.atomic.compare_add = compare;
                    (*raw).wr.atomic.swap = swap;
                }
                Operation::FetchAndAdd { remote, add } => {
                    (*raw).wr.atomic.remote_addr = remote.addr;
                    (*raw).wr.atomic.rkey = remote.rkey;
                    (*raw).wr.atomic.compare_add = add;
                    (*raw).wr.atomic.swap = 0;
                }
            }
        }
        Some(Taken(slot))
    }

    /// Appends a request with `len` bytes of inline data; where these go.
    #[inline(always)]
    fn take_inline(&mut self, request: &Request, len: usize) -> Option<*mut u8> {
        let slot = self.take(request, len, 1, ibv_send_flags::IBV_SEND_INLINE.0)?;
        // SAFETY: that is within the slot: so much inline data was possible, and there is room for an entry.
        unsafe {
            let start = slot.0.add(self.inline);
            let (addr, length) = (start.expose_provenance() as u64, len as u32);
            slot.entries().write(ibv_sge { addr, length, lkey: 0 });
            Some(start)
        }
    }

    /// Makes the list fail when it is posted. The first failure counts.
    ///
    /// Inline, though it is cold: a guard whose address is never taken stays in registers.
    #[inline(always)]
    fn fail(&mut self, failure: Failure) {
        if self.failure.is_none() {
            self.failure = Some(failure);
        }
    }

    /// The same, of a request that cannot be appended.
    #[inline(always)]
    fn refuse(&mut self, request: &Request, inline: usize) {
        let place = Place { index: self.count, limit: self.queue.control.capability().max_send_wr };
        let (kind, to) = (request.operation.kind(), request.to.kind());
        let failure = self.queue.elsewhere.refusal(&self.queue.possible, kind, to, inline, place);
        self.fail(failure);
    }
}

impl Taken {
    /// The entries of its buffer.
    #[inline(always)]
    fn entries(self) -> *mut ibv_sge {
        self.0.wrapping_add(size_of::<ibv_send_wr>()).cast()
    }
}

impl PostSendGuard for BasicPostSendGuard<'_> {
    #[inline]
    fn post(self) -> Result<(), PostSendError> {
        if let Some(failure) = self.failure {
            return Err(PostSendError::from_failure(failure));
        }
        let count = self.count;
        if count == 0 {
            return Ok(());
        }
        let queue = self.queue;
        // SAFETY: the requests of the slots before `next` are written (head of this file), each linked to the next; the
        // pair lives, the queue is borrowed mutably, and who gave the requests their buffers keeps them.
        let result = unsafe {
            let last: *mut ibv_send_wr = self.next.sub(self.stride).cast();
            (*last).next = ptr::null_mut();
            (queue.verb)(queue.qp.as_ptr(), self.first.cast(), &raw mut queue.bad)
        };
        if result == 0 {
            return Ok(());
        }
        Err(queue.failed(result, count))
    }
}

impl<'queue> Borrows<'queue> for BasicPostSendGuard<'queue> {}

impl Build for BasicPostSendGuard<'_> {
    #[inline(always)]
    fn append(&mut self, _: Step, request: Request) {
        self.take(&request, 0, 0, 0);
    }

    #[inline(always)]
    unsafe fn append_sge(&mut self, _: Step, request: Request, entry: ScatterGatherEntry) {
        if let Some(slot) = self.take(&request, 0, 1, 0) {
            // SAFETY: a slot has room for at least one entry.
            unsafe { slot.entries().write(entry.0) };
        }
    }

    #[inline(always)]
    unsafe fn append_sge_list(&mut self, _: Step, request: Request, list: &[ScatterGatherEntry]) {
        if list.len() > self.queue.slots.entries as usize {
            let (index, given, limit) = (self.count, list.len(), self.queue.slots.entries);
            return self.fail(Failure::TooManyEntries { index, given, limit });
        }
        if let Some(slot) = self.take(&request, 0, list.len(), 0) {
            // SAFETY: a slot has room for as many entries; both are `ibv_sge`.
            unsafe { ptr::copy_nonoverlapping(list.as_ptr().cast(), slot.entries(), list.len()) };
        }
    }

    #[inline(always)]
    fn append_inline(&mut self, step: Step, request: Request, data: &[u8]) {
        if data.is_empty() {
            return self.append(step, request);
        }
        if let Some(start) = self.take_inline(&request, data.len()) {
            // SAFETY: there is room for that many bytes (`take_inline`).
            unsafe { ptr::copy_nonoverlapping(data.as_ptr(), start, data.len()) };
        }
    }

    #[inline(always)]
    fn append_inline_list(&mut self, step: Step, request: Request, list: &[IoSlice<'_>]) {
        let given = list.iter().fold(0, |sum: usize, piece| sum.saturating_add(piece.len()));
        if given == 0 {
            return self.append(step, request);
        }
        if let Some(mut end) = self.take_inline(&request, given) {
            for piece in list {
                // SAFETY: there is room for all pieces together (`take_inline`).
                unsafe {
                    ptr::copy_nonoverlapping(piece.as_ptr(), end, piece.len());
                    end = end.add(piece.len());
                }
            }
        }
    }
}
