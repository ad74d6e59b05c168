//! A queue pair of either kind, basic or extended, behind one interface.

use std::io::IoSlice;

use super::post::Borrows;
use super::post::sealed::{Build, ListInfo, Step};
use super::work_request::{BufferlessRequest, SendRequest};
use super::{
    BasicPostSendGuard, BasicQueuePair, BasicSendQueue, ExtendedPostSendGuard, ExtendedQueuePair,
    ExtendedSendQueue, PostSendError, PostSendGuard, QueuePair, QueuePairControl, ScatterGatherEntry,
    SendQueue,
};

/// A queue pair of either kind.
#[derive(Debug)]
pub struct GenericQueuePair {
    halves: super::Halves<GenericSendQueue>,
}

super::impl_queue_pair!(GenericQueuePair, GenericSendQueue);

impl GenericQueuePair {
    /// Whether it posts with `ibv_wr_*`.
    pub fn is_extended(&self) -> bool {
        matches!(self.halves.send, GenericSendQueue::Extended(_))
    }
}

impl From<BasicQueuePair> for GenericQueuePair {
    fn from(qp: BasicQueuePair) -> Self {
        let (send, receive) = qp.into_split();
        Self { halves: super::Halves { send: GenericSendQueue::Basic(send), receive } }
    }
}

impl From<ExtendedQueuePair> for GenericQueuePair {
    fn from(qp: ExtendedQueuePair) -> Self {
        let (send, receive) = qp.into_split();
        Self { halves: super::Halves { send: GenericSendQueue::Extended(send), receive } }
    }
}

/// The sending half of a [`GenericQueuePair`].
#[derive(Debug)]
pub enum GenericSendQueue {
    /// Posts with `ibv_post_send`.
    Basic(BasicSendQueue),
    /// Posts with `ibv_wr_*`.
    Extended(ExtendedSendQueue),
}

impl SendQueue for GenericSendQueue {
    type Guard<'queue> = GenericPostSendGuard<'queue>;

    #[inline]
    fn start_post_send(&mut self) -> GenericPostSendGuard<'_> {
        match self {
            Self::Basic(queue) => GenericPostSendGuard::Basic(queue.start_post_send()),
            Self::Extended(queue) => GenericPostSendGuard::Extended(queue.start_post_send()),
        }
    }

    fn control(&self) -> &QueuePairControl {
        match self {
            Self::Basic(queue) => queue.control(),
            Self::Extended(queue) => queue.control(),
        }
    }
}

/// A list of work requests that is being built for a [`GenericQueuePair`].
#[must_use = "a list that is not posted is forgotten"]
#[derive(Debug)]
pub enum GenericPostSendGuard<'queue> {
    /// A list for `ibv_post_send`.
    Basic(BasicPostSendGuard<'queue>),
    /// A list for `ibv_wr_*`.
    Extended(ExtendedPostSendGuard<'queue>),
}

impl PostSendGuard for GenericPostSendGuard<'_> {
    #[inline]
    fn post(self) -> Result<(), PostSendError> {
        match self {
            Self::Basic(guard) => guard.post(),
            Self::Extended(guard) => guard.post(),
        }
    }
}

impl<'queue> Borrows<'queue> for GenericPostSendGuard<'queue> {}

impl Build for GenericPostSendGuard<'_> {
    #[inline]
    fn list_info(&self, step: Step) -> ListInfo {
        match self {
            Self::Basic(guard) => guard.list_info(step),
            Self::Extended(guard) => guard.list_info(step),
        }
    }

    #[inline]
    fn append(&mut self, step: Step, request: SendRequest) {
        match self {
            Self::Basic(guard) => guard.append(step, request),
            Self::Extended(guard) => guard.append(step, request),
        }
    }

    #[inline]
    unsafe fn append_sge(&mut self, step: Step, request: SendRequest, entry: ScatterGatherEntry) {
        // SAFETY: the caller keeps this function's contract, which is the same as the called
        // function's.
        unsafe {
            match self {
                Self::Basic(guard) => guard.append_sge(step, request, entry),
                Self::Extended(guard) => guard.append_sge(step, request, entry),
            }
        }
    }

    #[inline]
    unsafe fn append_sge_list(&mut self, step: Step, request: SendRequest, list: &[ScatterGatherEntry]) {
        // SAFETY: the caller keeps this function's contract, which is the same as the called
        // function's.
        unsafe {
            match self {
                Self::Basic(guard) => guard.append_sge_list(step, request, list),
                Self::Extended(guard) => guard.append_sge_list(step, request, list),
            }
        }
    }

    #[inline]
    fn append_inline(&mut self, step: Step, request: SendRequest, data: &[u8]) {
        match self {
            Self::Basic(guard) => guard.append_inline(step, request, data),
            Self::Extended(guard) => guard.append_inline(step, request, data),
        }
    }

    #[inline]
    fn append_inline_list(&mut self, step: Step, request: SendRequest, list: &[IoSlice<'_>]) {
        match self {
            Self::Basic(guard) => guard.append_inline_list(step, request, list),
            Self::Extended(guard) => guard.append_inline_list(step, request, list),
        }
    }

    unsafe fn append_bufferless(&mut self, step: Step, request: BufferlessRequest) {
        // SAFETY: the caller keeps this function's contract, which is the same as the called
        // function's.
        unsafe {
            match self {
                Self::Basic(guard) => guard.append_bufferless(step, request),
                Self::Extended(guard) => guard.append_bufferless(step, request),
            }
        }
    }
}
