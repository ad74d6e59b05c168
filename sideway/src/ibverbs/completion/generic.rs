//! A completion queue of either kind, basic or extended, behind one interface.

use std::ptr::NonNull;

use rdma_mummy_sys::types::ibv_cq;

use super::{
    BasicCompletionQueue, BasicPoller, BasicWorkCompletion, CompletionQueue, CompletionQueueId,
    ExtendedCompletionQueue, ExtendedPoller, ExtendedWorkCompletion, PollCompletionQueueError, Shared,
    TagMatchingInfo, WorkCompletionFlags, WorkCompletionOperationType, WorkCompletionStatus, sealed,
};
use crate::ibverbs::device_context::DeviceContext;

/// A completion queue of either kind. It is destroyed (`ibv_destroy_cq`) when it and its last queue
/// pair are dropped.
///
/// It is the only handle that polls, so it has no `Clone`. Builders of queue pairs borrow it
/// ([`setup_send_cq`](crate::ibverbs::queue_pair::QueuePairBuilder::setup_send_cq)); a clone of such
/// a builder makes further pairs for the queue, also on another thread than the one that polls.
#[derive(Debug)]
pub enum GenericCompletionQueue {
    /// Polled with `ibv_poll_cq`.
    Basic(BasicCompletionQueue),
    /// Polled with `ibv_start_poll`.
    Extended(ExtendedCompletionQueue),
}

impl From<BasicCompletionQueue> for GenericCompletionQueue {
    fn from(cq: BasicCompletionQueue) -> Self {
        Self::Basic(cq)
    }
}

impl From<ExtendedCompletionQueue> for GenericCompletionQueue {
    fn from(cq: ExtendedCompletionQueue) -> Self {
        Self::Extended(cq)
    }
}

impl GenericCompletionQueue {
    /// Starts to poll. The poller of an empty queue yields nothing.
    ///
    /// # Errors
    ///
    /// Fails if the device failed under the poller before this one, which did not
    /// [`finish`](GenericPoller::finish).
    #[inline]
    pub fn start_poll(&mut self) -> Result<GenericPoller<'_>, PollCompletionQueueError> {
        match self {
            Self::Basic(cq) => cq.start_poll().map(GenericPoller::Basic),
            Self::Extended(cq) => cq.start_poll().map(GenericPoller::Extended),
        }
    }
}

impl sealed::Sealed for GenericCompletionQueue {}

impl CompletionQueue for GenericCompletionQueue {
    fn as_raw(&self) -> NonNull<ibv_cq> {
        match self {
            Self::Basic(cq) => cq.as_raw(),
            Self::Extended(cq) => cq.as_raw(),
        }
    }

    fn cqe(&self) -> u32 {
        match self {
            Self::Basic(cq) => cq.cqe(),
            Self::Extended(cq) => cq.cqe(),
        }
    }

    fn id(&self) -> CompletionQueueId {
        match self {
            Self::Basic(cq) => cq.id(),
            Self::Extended(cq) => cq.id(),
        }
    }

    fn cq_context(&self) -> u64 {
        match self {
            Self::Basic(cq) => cq.cq_context(),
            Self::Extended(cq) => cq.cq_context(),
        }
    }

    fn context(&self) -> &DeviceContext {
        match self {
            Self::Basic(cq) => cq.context(),
            Self::Extended(cq) => cq.context(),
        }
    }

    fn shared(&self) -> Shared {
        match self {
            Self::Basic(cq) => cq.shared(),
            Self::Extended(cq) => cq.shared(),
        }
    }
}

/// A poll of a [`GenericCompletionQueue`].
#[must_use = "a poller does nothing until `next` is called"]
#[derive(Debug)]
pub enum GenericPoller<'cq> {
    /// A poll of a basic queue.
    Basic(BasicPoller<'cq>),
    /// A poll of an extended queue.
    Extended(ExtendedPoller<'cq>),
}

impl GenericPoller<'_> {
    /// The next completion, until the queue is empty.
    #[inline]
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Option<GenericWorkCompletion<'_>> {
        match self {
            Self::Basic(poller) => poller.next().map(GenericWorkCompletion::Basic),
            Self::Extended(poller) => poller.next().map(GenericWorkCompletion::Extended),
        }
    }

    /// Returns the failure that stopped [`next`](Self::next), if it was not the end of the queue.
    /// Without this call, the next poller reports the failure first.
    ///
    /// # Errors
    ///
    /// Fails if the device failed.
    #[inline]
    pub fn finish(self) -> Result<(), PollCompletionQueueError> {
        match self {
            Self::Basic(poller) => poller.finish(),
            Self::Extended(poller) => poller.finish(),
        }
    }
}

/// A completion of a [`GenericCompletionQueue`].
#[derive(Clone, Copy, Debug)]
pub enum GenericWorkCompletion<'poll> {
    /// A completion of a basic queue.
    Basic(BasicWorkCompletion<'poll>),
    /// A completion of an extended queue.
    Extended(ExtendedWorkCompletion<'poll>),
}

/// Defines readers that forward to the completion of either kind.
macro_rules! readers {
    ($($(#[$doc:meta])* $name:ident -> $ty:ty;)*) => {
        impl GenericWorkCompletion<'_> {
            $(
                $(#[$doc])*
                #[inline]
                pub fn $name(&self) -> $ty {
                    match self {
                        Self::Basic(wc) => wc.$name(),
                        Self::Extended(wc) => wc.$name(),
                    }
                }
            )*
        }
    };
}

readers! {
    /// The number that the program gave the work request.
    wr_id -> u64;
    /// How the work request ended.
    status -> WorkCompletionStatus;
    /// The kind of work request that ended; [`NotTold`](WorkCompletionOperationType::NotTold) after
    /// an error.
    opcode -> WorkCompletionOperationType;
    /// The vendor's own error code; 0 without an error.
    vendor_err -> u32;
    /// Which optional parts the completion has; none after an error.
    wc_flags -> WorkCompletionFlags;
    /// Immediate data, in host byte order; `None` if the message had none or the queue has no such
    /// field.
    imm_data -> Option<u32>;
    /// The local key that the peer's message invalidated; `None` if it invalidated none, or if the
    /// queue has no such field.
    invalidated_rkey -> Option<u32>;
    /// The number of bytes received or read; `None` if the queue was not made with this field.
    byte_len -> Option<u32>;
    /// The number of the local queue pair; `None` if the queue was not made with this field.
    qp_num -> Option<u32>;
    /// The number of the sender's queue pair (UD); `None` if the queue was not made with this
    /// field.
    src_qp -> Option<u32>;
    /// The sender's LID; `None` if the queue was not made with this field.
    slid -> Option<u32>;
    /// The service level; `None` if the queue was not made with this field.
    sl -> Option<u8>;
    /// The path bits of the destination LID; `None` if the queue was not made with this field.
    dlid_path_bits -> Option<u8>;
    /// The device's clock when the work completed; `None` if the queue was not made with this
    /// field.
    completion_timestamp -> Option<u64>;
    /// The time of day when the work completed, in nanoseconds; `None` if the queue was not made
    /// with this field.
    completion_timestamp_wallclock -> Option<u64>;
    /// The index of the partition key that the message came with (UD); `None` for an extended
    /// queue, which has no such field.
    pkey_index -> Option<u16>;
    /// The VLAN tag that the device removed from the packet; `None` if the queue was not made with
    /// this field.
    cvlan -> Option<u16>;
    /// The tag that a flow rule attached to the packet; `None` if the queue was not made with this
    /// field.
    flow_tag -> Option<u32>;
    /// The tag by which the message was matched; `None` if the queue was not made with this field.
    tm_info -> Option<TagMatchingInfo>;
}
