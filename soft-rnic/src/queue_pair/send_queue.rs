//! The send queue: a ring of posted requests with one producer and one consumer.
//!
//! One poster and one executor work on it at a time, at the two ends of the ring. Each holds a lock
//! of the queue pair.

use core::cell::UnsafeCell;
use core::ptr;
use rdma_mummy_sys::types::{ibv_send_flags, ibv_sge, ibv_wr_opcode};

use crate::objects::address_handle::Route;
use crate::sync::{Acquire, AtomicU32, Relaxed, Release};

/// A posted request, one cache line. Its entries, its inline data and the destination of a datagram
/// are in other arrays of the ring.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(crate) struct SendRequest {
    pub(crate) wr_id: u64,
    pub(crate) opcode: ibv_wr_opcode,
    pub(crate) send_flags: u32,
    /// As on the wire: big-endian.
    pub(crate) imm_data: u32,
    pub(crate) rkey: u32,
    pub(crate) remote_addr: u64,
    /// For atomics: the value to add or compare with, and the value to swap in.
    pub(crate) operands: [u64; 2],
    pub(crate) payload: PayloadKind,
    /// The total length in bytes.
    pub(crate) length: u64,
    /// The destination if the queue pair does not imply it; 0 is none. For XRC it is the number of
    /// the shared receive queue. For datagrams it is 1 if a [`DatagramDestination`] is set.
    pub(crate) to: u32,
}

const _: () = assert!(size_of::<SendRequest>() == 64);

/// Where the bytes of a request are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PayloadKind {
    /// In the program's memory, described by this many entries.
    Entries(u16),
    /// In the queue itself.
    Inline,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DatagramDestination {
    /// The protection domain of the address handle.
    pub(crate) pd: u32,
    pub(crate) route: Route,
    pub(crate) service_level: u8,
    pub(crate) traffic_class: u8,
    pub(crate) hop_limit: u8,
    pub(crate) flow_label: u32,
    pub(crate) remote_qpn: u32,
    pub(crate) remote_qkey: u32,
}

impl SendRequest {
    pub(crate) const EMPTY: Self = Self {
        wr_id: 0,
        opcode: ibv_wr_opcode::IBV_WR_SEND,
        send_flags: 0,
        imm_data: 0,
        rkey: 0,
        remote_addr: 0,
        operands: [0; 2],
        payload: PayloadKind::Entries(0),
        length: 0,
        to: 0,
    };

    pub(crate) fn has(&self, flag: ibv_send_flags) -> bool {
        self.send_flags & flag.0 != 0
    }
}

/// The fields that every request has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendRequestHeader {
    pub(crate) wr_id: u64,
    pub(crate) opcode: ibv_wr_opcode,
    pub(crate) send_flags: u32,
    pub(crate) imm_data: u32,
    pub(crate) rkey: u32,
    pub(crate) remote_addr: u64,
}

/// The errno for a refused request.
pub(crate) type PostErrno = i32;

/// The ring.
#[derive(Debug)]
pub(crate) struct SendQueue {
    requests: Box<[UnsafeCell<SendRequest>]>,
    entries: Box<[UnsafeCell<ibv_sge>]>,
    inline: Box<[UnsafeCell<u8>]>,
    /// For datagrams; empty if the queue pair sends none.
    destinations: Box<[UnsafeCell<DatagramDestination>]>,
    max_sge: usize,
    max_inline: usize,
    /// How many requests have completed in total.
    head: AtomicU32,
    /// How many requests were posted in total.
    tail: AtomicU32,
}

// SAFETY: `head` and `tail` decide who owns each cell: the executor between them, the poster behind
// `tail`. By the contracts of `poster` and `executor`, each of the two is one thread at a time.
unsafe impl Sync for SendQueue {}
// SAFETY: `head` and `tail` decide who owns each cell: the executor between them, the poster behind
// `tail`. By the contracts of `poster` and `executor`, each of the two is one thread at a time. The
// cells contain plain values, which may be sent.
unsafe impl Send for SendQueue {}

impl SendQueue {
    /// A queue for `max_wr` requests, each with up to `max_sge` entries and `max_inline` inline
    /// bytes.
    pub(crate) fn new(max_wr: u32, max_sge: u32, max_inline: u32, datagrams: bool) -> Self {
        let count = max_wr.max(1).next_power_of_two() as usize;
        let cells = |count: usize| (0..count).map(|_| UnsafeCell::new(ibv_sge::default())).collect();
        Self {
            requests: (0..count).map(|_| UnsafeCell::new(SendRequest::EMPTY)).collect(),
            entries: cells(count * max_sge as usize),
            inline: (0..count * max_inline as usize).map(|_| UnsafeCell::new(0)).collect(),
            destinations: (0..if datagrams { count } else { 0 }).map(|_| UnsafeCell::default()).collect(),
            max_sge: max_sge as usize,
            max_inline: max_inline as usize,
            head: AtomicU32::new(0),
            tail: AtomicU32::new(0),
        }
    }

    fn place(&self, counter: u32) -> usize {
        counter as usize & (self.requests.len() - 1)
    }

    /// Whether no request is outstanding.
    pub(crate) fn is_empty(&self) -> bool {
        self.head.load(Acquire) == self.tail.load(Acquire)
    }

    /// The poster's end.
    ///
    /// # Safety
    ///
    /// No other poster exists while this one lives.
    pub(crate) unsafe fn poster(&self, max_wr: u32) -> SendQueueProducer<'_> {
        SendQueueProducer { queue: self, tail: self.tail.load(Relaxed), max_wr }
    }

    /// The executor's end.
    ///
    /// # Safety
    ///
    /// No other executor exists while this one lives.
    #[inline]
    pub(crate) unsafe fn executor(&self) -> SendQueueConsumer<'_> {
        SendQueueConsumer { queue: self, head: self.head.load(Relaxed) }
    }

    /// The destination of a datagram, if its request has one.
    pub(crate) fn destination<'a>(&'a self, posted: &PostedSend<'a>) -> Option<&'a DatagramDestination> {
        let offset = ptr::from_ref(posted.request).addr().wrapping_sub(self.requests.as_ptr().addr());
        let cell =
            self.destinations.get(offset / size_of::<SendRequest>()).filter(|_| posted.request.to != 0)?;
        // SAFETY: the cell belongs to the request, which is the executor's while it is borrowed,
        // and the executor only reads.
        Some(unsafe { &*cell.get() })
    }

    /// Discards all requests.
    ///
    /// # Safety
    ///
    /// Neither a poster nor an executor exists.
    pub(crate) unsafe fn clear(&self) {
        self.head.store(self.tail.load(Relaxed), Relaxed);
    }
}

/// The poster's end: adds requests, which become visible when they are committed.
pub(crate) struct SendQueueProducer<'a> {
    queue: &'a SendQueue,
    tail: u32,
    max_wr: u32,
}

impl SendQueueProducer<'_> {
    /// Continues an open list at a position that [`tail`](Self::tail) returned.
    pub(crate) fn resume(mut self, tail: u32) -> Self {
        self.tail = tail;
        self
    }

    pub(crate) fn tail(&self) -> u32 {
        self.tail
    }

    /// How many requests were added and not committed.
    pub(crate) fn added(&self) -> u32 {
        self.tail.wrapping_sub(self.queue.tail.load(Relaxed))
    }

    /// Adds a request. Its payload, operands and destination are set afterwards.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if the queue is full.
    #[inline]
    pub(crate) fn add(&mut self, head: SendRequestHeader) -> Result<&mut SendRequest, PostErrno> {
        if self.tail.wrapping_sub(self.queue.head.load(Acquire)) >= self.max_wr {
            return Err(libc::ENOMEM);
        }
        self.tail = self.tail.wrapping_add(1);
        let request = self.last();
        // Copied field by field, because most operations do not read most fields.
        let SendRequestHeader { wr_id, opcode, send_flags, imm_data, rkey, remote_addr } = head;
        (request.wr_id, request.opcode, request.send_flags) = (wr_id, opcode, send_flags);
        (request.imm_data, request.rkey, request.remote_addr) = (imm_data, rkey, remote_addr);
        (request.payload, request.length, request.to) = (PayloadKind::Entries(0), 0, 0);
        Ok(request)
    }

    #[inline]
    fn last(&mut self) -> &mut SendRequest {
        // SAFETY: behind the committed tail: this poster added it and has not committed it, so it
        // is the poster's.
        unsafe { &mut *self.queue.requests[self.queue.place(self.tail.wrapping_sub(1))].get() }
    }

    /// The request that was added last, if any.
    pub(crate) fn last_added(&mut self) -> Option<&mut SendRequest> {
        if self.added() == 0 { None } else { Some(self.last()) }
    }

    /// Sets the destination of the last request, a datagram.
    ///
    /// # Errors
    ///
    /// `EINVAL` if no request was added, or the queue pair sends no datagrams.
    pub(crate) fn set_destination(&mut self, destination: DatagramDestination) -> Result<(), PostErrno> {
        let place = self.queue.place(self.tail.wrapping_sub(1));
        let cell = self.queue.destinations.get(place).ok_or(libc::EINVAL)?;
        self.last_added().ok_or(libc::EINVAL)?.to = 1;
        // SAFETY: the cell belongs to the last request, which is the poster's, as in `last`.
        unsafe { *cell.get() = destination };
        Ok(())
    }

    /// Sets a single entry of the last request.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the queue pair takes none.
    #[inline]
    pub(crate) fn set_entry(&mut self, entry: ibv_sge) -> Result<(), PostErrno> {
        let SendQueue { requests, entries, max_sge, .. } = self.queue;
        if *max_sge == 0 {
            return Err(libc::EINVAL);
        }
        let place = self.queue.place(self.tail.wrapping_sub(1));
        let (request, cell) = (requests[place].get(), entries[place * max_sge].get());
        // SAFETY: both cells belong to the last request, which is the poster's, as in `last`.
        unsafe {
            *cell = entry;
            (*request).payload = PayloadKind::Entries(1);
            (*request).length = entry.length.into();
        }
        Ok(())
    }

    /// Sets the entries of the last request.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the queue pair does not take that many.
    ///
    /// # Safety
    ///
    /// `entries` are `count` valid entries, and a request was added.
    pub(crate) unsafe fn set_entries(
        &mut self,
        entries: *const ibv_sge,
        count: usize,
    ) -> Result<(), PostErrno> {
        if count > self.queue.max_sge {
            return Err(libc::EINVAL);
        }
        let first = self.queue.place(self.tail.wrapping_sub(1)) * self.queue.max_sge;
        let mut length = 0;
        for index in 0..count {
            // SAFETY: the caller guarantees valid entries. The cell belongs to the last request,
            // which is the poster's.
            unsafe {
                let entry = entries.add(index).read();
                length += u64::from(entry.length);
                *self.queue.entries[first + index].get() = entry;
            }
        }
        let last = self.last();
        last.payload = PayloadKind::Entries(count as u16);
        last.length = length;
        Ok(())
    }

    /// Copies inline data to the last request, or appends more of them.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the queue pair does not take that many bytes.
    ///
    /// # Safety
    ///
    /// `bytes` are `length` readable bytes, and a request was added.
    pub(crate) unsafe fn append_inline(&mut self, bytes: *const u8, length: usize) -> Result<(), PostErrno> {
        let max = self.queue.max_inline;
        let first = self.queue.place(self.tail.wrapping_sub(1)) * max;
        let last = self.last();
        let before = if last.payload == PayloadKind::Inline { last.length as usize } else { 0 };
        if length > max - before.min(max) {
            return Err(libc::EINVAL);
        }
        last.payload = PayloadKind::Inline;
        last.length = (before + length) as u64;
        if length > 0 {
            let cell = self.queue.inline[first + before..first + before + length].as_ptr();
            // SAFETY: the caller guarantees `length` readable bytes, which cannot be part of the
            // queue. The cells belong to the last request, which is the poster's, and suffice for
            // them. An `UnsafeCell<u8>` has the layout of a byte.
            unsafe { UnsafeCell::raw_get(cell).copy_from_nonoverlapping(bytes, length) };
        }
        Ok(())
    }

    /// Discards the request that was added last.
    pub(crate) fn drop_last(&mut self) {
        if self.added() > 0 {
            self.tail = self.tail.wrapping_sub(1);
        }
    }

    /// Makes all added requests visible to the executor.
    #[inline]
    pub(crate) fn commit(self) {
        self.queue.tail.store(self.tail, Release);
    }
}

/// The executor's end: takes requests from the front.
pub(crate) struct SendQueueConsumer<'a> {
    queue: &'a SendQueue,
    head: u32,
}

/// A request with its entries and inline data.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PostedSend<'a> {
    pub(crate) request: &'a SendRequest,
    pub(crate) entries: &'a [ibv_sge],
    /// The first of `length` inline bytes; null if the request has none.
    pub(crate) inline: *const u8,
}

impl SendQueueConsumer<'_> {
    /// The request at this distance from the front.
    #[inline]
    pub(crate) fn peek(&self, distance: u32) -> Option<PostedSend<'_>> {
        let outstanding = self.queue.tail.load(Acquire).wrapping_sub(self.head);
        if distance >= outstanding {
            return None;
        }
        let place = self.queue.place(self.head.wrapping_add(distance));
        // SAFETY: the cell is between `head` and `tail`, so it is the executor's, which only reads.
        // It returns to the poster when the executor steps over it, which needs `self` exclusively.
        let request = unsafe { &*self.queue.requests[place].get() };
        let count = match request.payload {
            PayloadKind::Entries(count) => count as usize,
            PayloadKind::Inline => 0,
        };
        let first = place * self.queue.max_sge;
        let cells = &self.queue.entries[first..first + count];
        // SAFETY: the cells are between `head` and `tail`, so they are the executor's, which only
        // reads. They return to the poster when the executor steps over them, which needs `self`
        // exclusively. An `UnsafeCell<ibv_sge>` has the layout of its content.
        let entries = unsafe { core::slice::from_raw_parts(cells.as_ptr().cast::<ibv_sge>(), count) };
        let inline = if request.payload == PayloadKind::Inline && request.length > 0 {
            self.queue.inline[place * self.queue.max_inline..].as_ptr().cast::<u8>()
        } else {
            ptr::null()
        };
        Some(PostedSend { request, entries, inline })
    }

    /// Completes the front request. Nothing borrowed from it is used any more.
    #[inline]
    pub(crate) fn step(&mut self) {
        self.head = self.head.wrapping_add(1);
        self.queue.head.store(self.head, Release);
    }
}
