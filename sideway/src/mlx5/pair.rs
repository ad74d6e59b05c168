//! Queue pairs that can mix mlx5 requests with those of libibverbs.
//!
//! # Safety
//!
//! The invariants for the unsafe code are at the head of `operations.rs`. Requests of libibverbs
//! are passed to the extended guard unchanged.

use super::operations::{DirectState, HasDirectState, Operations, Token};
use crate::direct::{VendorList, WholePair};
use crate::ibverbs::queue_pair::{
    ExtendedPostSendGuard, ExtendedQueuePair, ExtendedSendQueue, PostSendError, PostSendGuard, QueuePair,
    QueuePairControl, ReceiveQueue, SendQueue,
};

/// A queue pair with mlx5 operations, made by
/// [`build_direct`](super::QueuePairBuilder::build_direct). It posts like every extended pair. In
/// addition it has
/// [`setup_mkey_configure`](crate::ibverbs::queue_pair::WorkRequestHandle::setup_mkey_configure),
/// [`setup_memcpy`](crate::ibverbs::queue_pair::WorkRequestHandle::setup_memcpy), and the other
/// operations that [it was made for](super::DirectOperationFlags).
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

// SAFETY: the halves come from the extended pair of which the value was made, and nothing else has
// them.
unsafe impl WholePair for DirectQueuePair {}

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

// SAFETY: `operations` refers to the queue's pair, and only the queue's owner uses it.
unsafe impl Send for DirectSendQueue {}
// SAFETY: no method uses `operations` through `&self`.
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

/// A list of work requests that is being built for a [`DirectQueuePair`]. The notes at
/// [`ExtendedPostSendGuard`] apply to it too.
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

// SAFETY: the list comes from the queue, and the guard posts or drops it. Requests of libibverbs need
// nothing further.
unsafe impl<'queue> VendorList<'queue> for DirectPostSendGuard<'queue> {
    #[inline(always)]
    fn extended(&self) -> &ExtendedPostSendGuard<'queue> {
        &self.list
    }

    #[inline(always)]
    unsafe fn extended_mut(&mut self) -> &mut ExtendedPostSendGuard<'queue> {
        &mut self.list
    }
}

impl PostSendGuard for DirectPostSendGuard<'_> {
    #[inline]
    fn post(self) -> Result<(), PostSendError> {
        // An error drops the list, which aborts it.
        self.own.verdict(&self.list)?;
        self.list.post()
    }
}
