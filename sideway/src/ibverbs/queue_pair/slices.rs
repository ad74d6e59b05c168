//! Posting slices of a [pool](crate::memory::Pool): guards that give slices to the device, and take
//! back those that were not posted.
//!
//! # Safety
//!
//! [`LocalBufferHandle::setup_sge`] and
//! [`RecvWorkRequestHandle::setup_sge`](super::RecvWorkRequestHandle::setup_sge) have these
//! requirements, which hold as follows:
//!
//! - The memory stays allocated: it belongs to a pool, which keeps it until it is deregistered.
//! - Nobody writes to it, and no Rust reference to it is used: none exists. Safe code can access it
//!   only in ways that may race with a device's writes (`memory/pool/mod.rs`). The slice is moved
//!   into the request, so that a correct program has no access at all.
//! - The address is the region's own: the list is for a queue of the pool's context, which `attach`
//!   checks.
//! - The queue has a place, or detects that it has none before it writes: `attach` refuses other
//!   queues.

use std::io::IoSlice;
use std::mem::ManuallyDrop;

use super::post::sealed::{Build, ListInfo, Step};
use super::post::{Borrows, LocalBufferHandle, PostSendGuard, ReadBufferHandle};
use super::post_error::PostSendError;
use super::work_request::{BufferlessRequest, SendRequest};
use super::{PostRecvError, PostRecvGuard, ScatterGatherEntry, WorkRequestFlags};
use crate::memory::pool::{NO_REQUEST, PoolPiece, Position, place_of};
use crate::memory::{Pool, Slice};

impl Pool {
    /// Lets a list of send requests use slices of this pool, through
    /// [`setup_slice`](LocalBufferHandle::setup_slice).
    ///
    /// # Errors
    ///
    /// Fails if the queue pair belongs to another context than the pool, or if its library detects
    /// a full queue too late. The list is dropped.
    #[inline]
    pub fn attach<G: PostSendGuard>(&self, guard: G) -> Result<PooledPostSendGuard<'_, G>, AttachPoolError> {
        let unposted = UnpostedSlices::new(self, guard.list_info(Step(())))?;
        Ok(PooledPostSendGuard { guard, unposted })
    }

    /// Lets a list of receives, for a queue pair or a shared receive queue, use slices of this
    /// pool.
    ///
    /// # Errors
    ///
    /// Fails if the queue belongs to another context than the pool. The list is dropped.
    #[inline]
    pub fn attach_recv<'pool, 'queue>(
        &'pool self,
        guard: PostRecvGuard<'queue>,
    ) -> Result<PooledPostRecvGuard<'pool, 'queue>, AttachPoolError> {
        let unposted = UnpostedSlices::new(self, guard.list_info())?;
        Ok(PooledPostRecvGuard { guard, unposted })
    }
}

/// A list cannot have slices of a pool.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AttachPoolError {
    /// The queue belongs to another open device than the pool.
    #[error(
        "the queue was made from another context than the pool; make the pool of the queue's protection domain"
    )]
    OtherContext,
    /// The queue pair's library finds out that its queue is full only after it has begun to write
    /// over an outstanding request, so that safe code must not fill it.
    #[error(
        "extended queue pairs of this device do not notice in time that they are full; post slices to a classic one \
         (`QueuePairBuilder::build`), which `GenericQueuePair::from` makes generic"
    )]
    FullQueueUnnoticed,
}

debug_as_text!(AttachPoolError);

/// The requests of a list that have slices, which form a chain. Dropping it returns all slices to
/// the pool.
#[derive(Debug)]
struct UnpostedSlices<'pool> {
    pool: &'pool Pool,
    /// The table index of the last request's first piece.
    last: u32,
    /// The index of the list's next request.
    index: u32,
    /// The index of the first request whose slice belonged to another pool; that request has no
    /// slice.
    foreign: Option<u32>,
    in_place: bool,
}

impl<'pool> UnpostedSlices<'pool> {
    #[inline(always)]
    fn new(pool: &'pool Pool, about: ListInfo) -> Result<Self, AttachPoolError> {
        let ListInfo { context, count, in_place, overwrites_when_full } = about;
        if !pool.0.is_of(context) {
            return Err(AttachPoolError::OtherContext);
        }
        if overwrites_when_full {
            return Err(AttachPoolError::FullQueueUnnoticed);
        }
        Ok(Self { pool, last: NO_REQUEST, index: count as u32, foreign: None, in_place })
    }

    /// Counts a request without slices.
    #[inline(always)]
    fn pass(&mut self) {
        self.index += 1;
    }

    /// Takes a request's slice. Returns its ticket and its entry, or `None` if the slice belongs to
    /// another pool.
    #[inline(always)]
    fn hand_over(&mut self, wr_id: u64, slice: Slice, is_receive: bool) -> Option<(u64, ScatterGatherEntry)> {
        if !slice.is_of(&self.pool.0) {
            self.refuse();
            return None;
        }
        let entry = self.pool.0.entry(slice.piece());
        Some((self.depart(slice.into_piece(), None, wr_id, is_receive), entry))
    }

    /// Takes a request's slices, at least one. Returns as `hand_over` does.
    #[inline]
    fn hand_all_over<const N: usize>(
        &mut self,
        wr_id: u64,
        slices: [Slice; N],
        is_receive: bool,
    ) -> Option<(u64, [ScatterGatherEntry; N])> {
        const { assert!(N > 0, "a request with slices has one at least") };
        let pool = &self.pool.0;
        if !slices.iter().all(|slice| slice.is_of(pool)) {
            self.refuse();
            return None;
        }
        let entries = slices.each_ref().map(|slice| pool.entry(slice.piece()));
        let pieces = slices.map(Slice::into_piece);
        let (first, others) = pieces.split_first()?;
        let rest = others.iter().rfold(None, |behind, piece| {
            pool.chain(*piece, behind);
            Some(*piece)
        });
        Some((self.depart(*first, rest, wr_id, is_receive), entries))
    }

    #[inline(always)]
    fn depart(&mut self, first: PoolPiece, rest: Option<PoolPiece>, wr_id: u64, is_receive: bool) -> u64 {
        let at = Position { before: self.last, index: self.index, is_receive };
        let ticket = self.pool.0.depart(first, rest, wr_id, at);
        self.last = place_of(ticket);
        self.index += 1;
        ticket
    }

    /// Inlined although it is cold, because a guard whose address is never taken stays in
    /// registers.
    #[inline(always)]
    fn refuse(&mut self) {
        if self.foreign.is_none() {
            self.foreign = Some(self.index);
        }
        self.index += 1;
    }

    /// Leaves all slices to the device, which got the whole list.
    #[inline(always)]
    fn posted(self) {
        std::mem::forget(self);
    }

    /// Leaves the slices of the first `requests` requests to the device, and returns the others to
    /// the pool. With `None` the number is unknown, so the device keeps all of them.
    #[cold]
    fn posted_up_to(self, requests: Option<usize>) {
        let this = ManuallyDrop::new(self);
        if let Some(requests) = requests {
            this.pool.0.recall(this.last, this.index, u32::try_from(requests).unwrap_or(u32::MAX));
        }
    }
}

impl Drop for UnpostedSlices<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.last != NO_REQUEST {
            self.pool.0.recall(self.last, self.index, 0);
        }
    }
}

/// A list of send requests that can use slices of a [pool](crate::memory::Pool). See
/// [`Pool::attach`].
///
/// Slices that were not posted return to their pool: all of a list that is dropped, and the rest of
/// a list that fails. If the device does not report how many requests it got, it keeps all slices:
/// see [`Pool::abandon`].
#[must_use = "a list that is not posted is forgotten"]
#[derive(Debug)]
pub struct PooledPostSendGuard<'pool, G> {
    // The first field, so that a drop aborts the list before its slices return to the pool.
    guard: G,
    unposted: UnpostedSlices<'pool>,
}

impl<G: PostSendGuard> PostSendGuard for PooledPostSendGuard<'_, G> {
    #[inline]
    fn post(self) -> Result<(), PostSendError> {
        let Self { guard, unposted } = self;
        if let Some(index) = unposted.foreign {
            drop(guard);
            return Err(PostSendError::ForeignSlice { index: index as usize });
        }
        let result = guard.post();
        match &result {
            Ok(()) => unposted.posted(),
            // `man ibv_wr_post`: "the entire posting will be aborted".
            Err(_) if unposted.in_place => drop(unposted),
            Err(error) => unposted.posted_up_to(error.posted()),
        }
        result
    }
}

impl<'queue, G: Borrows<'queue>> Borrows<'queue> for PooledPostSendGuard<'_, G> {}

impl<G: PostSendGuard> Build for PooledPostSendGuard<'_, G> {
    #[inline(always)]
    fn list_info(&self, step: Step) -> ListInfo {
        self.guard.list_info(step)
    }

    #[inline(always)]
    fn append(&mut self, step: Step, request: SendRequest) {
        self.unposted.pass();
        self.guard.append(step, request);
    }

    #[inline(always)]
    unsafe fn append_sge(&mut self, step: Step, request: SendRequest, entry: ScatterGatherEntry) {
        self.unposted.pass();
        // SAFETY: the caller keeps this function's contract, which is the same as the called
        // function's.
        unsafe { self.guard.append_sge(step, request, entry) };
    }

    #[inline(always)]
    unsafe fn append_sge_list(&mut self, step: Step, request: SendRequest, list: &[ScatterGatherEntry]) {
        self.unposted.pass();
        // SAFETY: the caller keeps this function's contract, which is the same as the called
        // function's.
        unsafe { self.guard.append_sge_list(step, request, list) };
    }

    #[inline(always)]
    fn append_inline(&mut self, step: Step, request: SendRequest, data: &[u8]) {
        self.unposted.pass();
        self.guard.append_inline(step, request, data);
    }

    #[inline(always)]
    fn append_inline_list(&mut self, step: Step, request: SendRequest, list: &[IoSlice<'_>]) {
        self.unposted.pass();
        self.guard.append_inline_list(step, request, list);
    }

    unsafe fn append_bufferless(&mut self, step: Step, request: BufferlessRequest) {
        self.unposted.pass();
        // SAFETY: the caller keeps this function's contract, which is the same as the called
        // function's.
        unsafe { self.guard.append_bufferless(step, request) };
    }
}

/// The request with the ticket as its number. It is signaled, because its completion returns the
/// slices.
#[inline(always)]
fn with_ticket(request: SendRequest, ticket: u64) -> SendRequest {
    SendRequest { wr_id: ticket, flags: request.flags | WorkRequestFlags::Signaled, ..request }
}

impl<G: PostSendGuard> LocalBufferHandle<'_, PooledPostSendGuard<'_, G>> {
    /// Sets a whole slice as the buffer. It belongs to the device until [`Pool::reclaim`] returns
    /// it with the request's number.
    ///
    /// The request is signaled, whatever its flags are. The completion's number is the pool's
    /// ticket; the request's number comes back in
    /// [`Returned::wr_id`](crate::memory::Returned::wr_id).
    #[inline]
    pub fn setup_slice(self, slice: Slice) {
        let mut this = ManuallyDrop::new(self);
        let Self { guard, request } = &mut *this;
        if let Some((ticket, entry)) = guard.unposted.hand_over(request.wr_id, slice, false) {
            // SAFETY: the slice meets the requirements of `setup_sge` (module head).
            unsafe { guard.guard.append_sge(Step(()), with_ticket(*request, ticket), entry) };
        }
    }

    /// Sets several slices, used one after the other; they come back together.
    #[inline]
    pub fn setup_slices<const N: usize>(self, slices: [Slice; N]) {
        let mut this = ManuallyDrop::new(self);
        let Self { guard, request } = &mut *this;
        if let Some((ticket, entries)) = guard.unposted.hand_all_over(request.wr_id, slices, false) {
            // SAFETY: the slices meet the requirements of `setup_sge` (module head).
            unsafe { guard.guard.append_sge_list(Step(()), with_ticket(*request, ticket), &entries) };
        }
    }
}

impl<G: PostSendGuard> ReadBufferHandle<'_, PooledPostSendGuard<'_, G>> {
    /// Sets a slice to be filled; the result of an atomic takes 8 bytes. See
    /// [`LocalBufferHandle::setup_slice`].
    #[inline]
    pub fn setup_slice(self, slice: Slice) {
        self.0.setup_slice(slice);
    }

    /// Sets several slices, filled one after the other; they come back together.
    #[inline]
    pub fn setup_slices<const N: usize>(self, slices: [Slice; N]) {
        self.0.setup_slices(slices);
    }
}

/// A list of receives into slices of a [pool](crate::memory::Pool). See [`Pool::attach_recv`].
///
/// Slices of a list that fails are treated as in a [send list](PooledPostSendGuard).
#[must_use = "a list that is not posted is forgotten"]
#[derive(Debug)]
pub struct PooledPostRecvGuard<'pool, 'queue> {
    guard: PostRecvGuard<'queue>,
    unposted: UnpostedSlices<'pool>,
}

impl<'pool, 'queue> PooledPostRecvGuard<'pool, 'queue> {
    /// Starts a receive, which joins the list once it has its slice. `wr_id` comes back with the
    /// slice.
    #[inline]
    pub fn construct_wr(&mut self, wr_id: u64) -> PooledRecvWorkRequestHandle<'_, 'pool, 'queue> {
        PooledRecvWorkRequestHandle { list: self, wr_id }
    }

    /// Posts the list to the device. An empty list has no effect.
    ///
    /// # Errors
    ///
    /// [`PostRecvError`] says which receive was wrong; those before it were posted.
    #[inline]
    pub fn post(self) -> Result<(), PostRecvError> {
        let Self { guard, unposted } = self;
        if let Some(index) = unposted.foreign {
            return Err(PostRecvError::ForeignSlice { index: index as usize });
        }
        let result = guard.post();
        match &result {
            Ok(()) => unposted.posted(),
            Err(error) => unposted.posted_up_to(error.posted()),
        }
        result
    }
}

/// A receive without a slice yet.
#[must_use = "a receive takes part only once it has a slice"]
#[derive(Debug)]
pub struct PooledRecvWorkRequestHandle<'guard, 'pool, 'queue> {
    list: &'guard mut PooledPostRecvGuard<'pool, 'queue>,
    wr_id: u64,
}

impl PooledRecvWorkRequestHandle<'_, '_, '_> {
    /// Sets a whole slice as the buffer. It belongs to the device until [`Pool::reclaim`] returns
    /// it with the receive's number and the number of bytes received.
    #[inline]
    pub fn setup_slice(self, slice: Slice) {
        let PooledPostRecvGuard { guard, unposted } = self.list;
        if let Some((ticket, ScatterGatherEntry(entry))) = unposted.hand_over(self.wr_id, slice, true) {
            // SAFETY: the slice meets the requirements of `setup_sge` (module head).
            unsafe { guard.construct_wr(ticket).setup_sge(entry.lkey, entry.addr, entry.length) };
        }
    }

    /// Sets several slices, filled one after the other; they come back together.
    #[inline]
    pub fn setup_slices<const N: usize>(self, slices: [Slice; N]) {
        let PooledPostRecvGuard { guard, unposted } = self.list;
        if let Some((ticket, entries)) = unposted.hand_all_over(self.wr_id, slices, true) {
            // SAFETY: the slices meet the requirements of `setup_sge` (module head).
            unsafe { guard.construct_wr(ticket).setup_sge_list(&entries) };
        }
    }
}
