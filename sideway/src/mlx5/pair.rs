//! Queue pairs that post mlx5's own requests, between those of libibverbs.
//!
//! # Safety
//!
//! What the unsafe code here relies on is at the head of `operations.rs`. Requests of libibverbs go by the extended guard, unchanged.

use std::io::IoSlice;

use super::operations::{DirectState, HasDirectState, Operations, Token};
use crate::ibverbs::queue_pair::{
    Borrows, BufferlessRequest, Build, ExtendedPostSendGuard, ExtendedQueuePair, ExtendedSendQueue, ListInfo,
    PostSendError, PostSendGuard, QueuePair, QueuePairControl, ReceiveQueue, ScatterGatherEntry, SendQueue,
    SendRequest, Step,
};

/// A queue pair with operations of mlx5's own, made by
/// [`build_direct`](super::QueuePairBuilder::build_direct). It posts like every extended pair, and besides by
/// [`setup_mkey_configure`](crate::ibverbs::queue_pair::WorkRequestHandle::setup_mkey_configure),
/// [`setup_memcpy`](crate::ibverbs::queue_pair::WorkRequestHandle::setup_memcpy) and what else
/// [it was made for](super::DirectOperationFlags).
#[derive(Debug)]
pub struct DirectQueuePair {
    send: DirectSendQueue,
    receive: ReceiveQueue,
}

impl DirectQueuePair {
    pub(super) fn new(pair: ExtendedQueuePair, operations: Operations) -> Self {
        let (queue, receive) = pair.into_split();
        Self { send: DirectSendQueue { queue, operations }, receive }
    }
}

impl QueuePair for DirectQueuePair {
    type SendQueue = DirectSendQueue;

    fn control(&self) -> &QueuePairControl {
        self.send.queue.control()
    }

    #[inline]
    fn split(&mut self) -> (&mut DirectSendQueue, &mut ReceiveQueue) {
        (&mut self.send, &mut self.receive)
    }

    fn into_split(self) -> (DirectSendQueue, ReceiveQueue) {
        (self.send, self.receive)
    }
}

/// The sending half of a [`DirectQueuePair`].
#[derive(Debug)]
pub struct DirectSendQueue {
    queue: ExtendedSendQueue,
    operations: Operations,
}

// SAFETY: `operations` is about the queue's pair, and used by the queue's one owner.
unsafe impl Send for DirectSendQueue {}
// SAFETY: `&self` does not reach it.
unsafe impl Sync for DirectSendQueue {}

impl SendQueue for DirectSendQueue {
    type Guard<'queue> = DirectPostSendGuard<'queue>;

    #[inline]
    fn start_post_send(&mut self) -> DirectPostSendGuard<'_> {
        let own = DirectState::new(self.operations);
        DirectPostSendGuard { list: self.queue.start_post_send(), own }
    }

    fn control(&self) -> &QueuePairControl {
        self.queue.control()
    }
}

/// A list of work requests that is being built for a [`DirectQueuePair`]. What [`ExtendedPostSendGuard`] says of lists goes for it as
/// well.
#[must_use = "a list that is not posted is forgotten"]
#[derive(Debug)]
pub struct DirectPostSendGuard<'queue> {
    list: ExtendedPostSendGuard<'queue>,
    own: DirectState,
}

impl<'queue> HasDirectState<'queue> for DirectPostSendGuard<'queue> {
    #[inline]
    fn parts(&mut self, _: Token) -> (&mut ExtendedPostSendGuard<'queue>, &mut DirectState) {
        (&mut self.list, &mut self.own)
    }
}

impl PostSendGuard for DirectPostSendGuard<'_> {
    #[inline]
    fn post(self) -> Result<(), PostSendError> {
        // A list that is refused is dropped, and so aborted.
        self.own.verdict(&self.list)?;
        self.list.post()
    }
}

impl<'queue> Borrows<'queue> for DirectPostSendGuard<'queue> {}

impl Build for DirectPostSendGuard<'_> {
    #[inline(always)]
    fn list_info(&self, step: Step) -> ListInfo {
        self.list.list_info(step)
    }

    #[inline(always)]
    fn append(&mut self, step: Step, request: SendRequest) {
        self.list.append(step, request);
    }

    #[inline(always)]
    unsafe fn append_sge(&mut self, step: Step, request: SendRequest, entry: ScatterGatherEntry) {
        // SAFETY: the caller keeps this function's contract, which is that one's.
        unsafe { self.list.append_sge(step, request, entry) };
    }

    #[inline(always)]
    unsafe fn append_sge_list(&mut self, step: Step, request: SendRequest, entries: &[ScatterGatherEntry]) {
        // SAFETY: the caller keeps this function's contract, which is that one's.
        unsafe { self.list.append_sge_list(step, request, entries) };
    }

    #[inline(always)]
    fn append_inline(&mut self, step: Step, request: SendRequest, data: &[u8]) {
        self.list.append_inline(step, request, data);
    }

    #[inline(always)]
    fn append_inline_list(&mut self, step: Step, request: SendRequest, pieces: &[IoSlice<'_>]) {
        self.list.append_inline_list(step, request, pieces);
    }

    unsafe fn append_bufferless(&mut self, step: Step, request: BufferlessRequest) {
        // SAFETY: the caller keeps this function's contract, which is that one's.
        unsafe { self.list.append_bufferless(step, request) };
    }
}
