//! Queue pairs: creation, state changes and work requests.
//!
//! A queue pair comes in two kinds. [`BasicQueuePair`] posts with `ibv_post_send`.
//! [`ExtendedQueuePair`] posts with `ibv_wr_*`, which build work requests directly in the device's
//! queue. [`GenericQueuePair`] is either. All implement the trait [`QueuePair`].
//!
//! Work requests are built between [`start_post_send`](QueuePair::start_post_send) and
//! [`post`](PostSendGuard::post), any number at a time, and reach the device together. Dropping a
//! list instead of posting it discards its requests.
//!
//! ```no_run
//! # use sideway::ibverbs::{memory_region::MemoryRegion, queue_pair::*};
//! # fn write(
//! #     qp: &mut GenericQueuePair, lmr: &MemoryRegion, rkey: u32, remote: u64,
//! # ) -> Result<(), PostSendError> {
//! let mut guard = qp.start_post_send();
//!
//! let write_handle = guard.construct_wr(233, WorkRequestFlags::Signaled).setup_write(rkey, remote);
//! // SAFETY: the region covers the bytes, and lives until the completion has been polled.
//! unsafe { write_handle.setup_sge(lmr.lkey(), lmr.get_ptr() as _, 4096) };
//!
//! guard.post()?;
//! # Ok(()) }
//! ```

mod attribute;
mod basic;
mod buffer;
mod builder;
mod control;
mod extended;
mod generic;
mod modify;
mod post;
mod post_error;
mod receive;
mod scope;
mod slices;
mod state;
mod table;
mod target;
pub mod transport;
mod work_request;

use std::sync::Arc;

pub use attribute::{
    AlternatePath, MigrationState, QueuePairAttribute, QueuePairAttributeMask, QueuePairInitAttribute,
};
pub use basic::{BasicPostSendGuard, BasicQueuePair, BasicSendQueue, PreparedSendList};
pub use buffer::{SetInlineData, SetScatterGatherEntry};
pub use builder::{CreateQueuePairError, QueuePairBuilder, SendOperationFlags};
pub use control::{QueuePairControl, RateLimit};
pub use extended::{ExtendedPostSendGuard, ExtendedQueuePair, ExtendedSendQueue};
pub use generic::{GenericPostSendGuard, GenericQueuePair, GenericSendQueue};
pub use modify::ModifyQueuePairError;
#[allow(deprecated)]
pub use modify::ModifyQueuePairErrorKind;
pub(crate) use post::sealed::{Build, ListInfo, Step};
pub use post::{
    Borrows, DatagramHandle, FlushPlacement, FlushSelectivity, LocalBufferHandle, PostSendGuard,
    ReadBufferHandle, ScatterGatherEntry, WorkRequestHandle,
};
pub use post_error::PostSendError;
pub(crate) use receive::{NoRoom, ReceiveList};
pub use receive::{PostRecvError, PostRecvGuard, PreparedReceiveList, ReceiveQueue, RecvWorkRequestHandle};
pub use scope::{WorkBuffer, WorkDone, WorkNumber, WorkPart, WorkScope, WorkScopeError, scope};
pub use slices::{AttachPoolError, PooledPostRecvGuard, PooledPostSendGuard, PooledRecvWorkRequestHandle};
pub use state::QueuePairState;
pub use table::QueuePairTable;
pub use target::XrcTarget;
pub(crate) use work_request::{BufferlessRequest, SendRequest};
pub use work_request::{WorkRequestFlags, WorkRequestOperationType};

pub use super::types::QueuePairType;
use crate::direct::WholePair;

/// The operations of any kind of queue pair.
///
/// Posting needs `&mut`, because each of the two queues can build one list of work requests at a
/// time. To use both from two threads, [`split`](Self::split) the pair. Changing the state needs
/// the whole pair; queries take `&self`.
///
/// [`modify`](Self::modify) relies on a value that implements it being a [whole pair](WholePair), and
/// not for example a clone of its [`control`](Self::control). So only the crate of a vendor's
/// [direct verbs](crate::direct) implements it elsewhere.
pub trait QueuePair: WholePair + Sized {
    /// The sending half.
    type SendQueue: SendQueue;

    /// The control side: attributes and state. It can be cloned and used from any thread.
    fn control(&self) -> &QueuePairControl;

    /// Both halves, for use by two threads while the borrow lasts.
    fn split(&mut self) -> (&mut Self::SendQueue, &mut ReceiveQueue);

    /// Both halves as separate values. The pair lives as long as one of them, or a clone of
    /// [`control`](Self::control), lives.
    fn into_split(self) -> (Self::SendQueue, ReceiveQueue);

    /// Starts a list of send requests.
    #[inline]
    fn start_post_send(&mut self) -> <Self::SendQueue as SendQueue>::Guard<'_> {
        self.split().0.start_post_send()
    }

    /// Starts a list of receives.
    #[inline]
    fn start_post_recv(&mut self) -> PostRecvGuard<'_> {
        self.split().1.start_post_recv()
    }

    /// Changes state or attributes (`ibv_modify_qp`).
    ///
    /// # Errors
    ///
    /// [`ModifyQueuePairError`] names the attribute that was wrong or missing, or the address
    /// without a route.
    fn modify(&mut self, attr: &QueuePairAttribute) -> Result<(), ModifyQueuePairError> {
        // SAFETY: the pair is whole (`WholePair`) and borrowed mutably, so nobody else has a
        // half of it or a list.
        unsafe { self.control().modify(attr) }
    }

    /// Brings the pair to the error state (`ibv_modify_qp`), as a failed request does. Outstanding
    /// requests complete with the status `WorkRequestFlushedError`, and the peer's fail. So a program
    /// that gives up waits for the completions, and knows that the device has finished.
    ///
    /// # Errors
    ///
    /// Fails if the pair is in the reset state, where there is nothing to flush, or if the device is
    /// gone.
    fn fail(&mut self) -> Result<(), ModifyQueuePairError> {
        self.modify(QueuePairAttribute::new().setup_state(QueuePairState::Error))
    }

    /// Reads attributes (`ibv_query_qp`).
    ///
    /// # Errors
    ///
    /// Fails if the device does not answer.
    fn query(
        &self,
        mask: QueuePairAttributeMask,
    ) -> Result<(QueuePairAttribute, QueuePairInitAttribute), Error> {
        self.control().query(mask)
    }

    /// Queries the pair's state (`ibv_query_qp`).
    ///
    /// # Errors
    ///
    /// Fails if the device does not answer.
    fn state(&self) -> Result<QueuePairState, Error> {
        self.control().state()
    }

    /// The queue pair number, by which peers address it.
    fn qp_number(&self) -> u32 {
        self.control().qp_number()
    }

    /// The transport type.
    fn qp_type(&self) -> QueuePairType {
        self.control().qp_type()
    }
}

/// The sending half of a queue pair.
pub trait SendQueue {
    /// A list of work requests that is being built.
    type Guard<'queue>: PostSendGuard + Borrows<'queue>
    where
        Self: 'queue;

    /// Starts a list of send requests.
    fn start_post_send(&mut self) -> Self::Guard<'_>;

    /// The control side: attributes and state.
    fn control(&self) -> &QueuePairControl;
}

/// A queue pair as a sending half and a receiving half.
#[derive(Debug)]
struct Halves<S> {
    send: S,
    receive: ReceiveQueue,
}

/// Implements [`QueuePair`] for a type that consists of two halves.
macro_rules! impl_queue_pair {
    ($Pair:ident, $Queue:ty) => {
        // SAFETY: the value has both halves, which nothing else has until `into_split` takes it apart.
        unsafe impl crate::direct::WholePair for $Pair {}

        impl super::QueuePair for $Pair {
            type SendQueue = $Queue;

            fn control(&self) -> &super::QueuePairControl {
                super::SendQueue::control(&self.halves.send)
            }

            #[inline]
            fn split(&mut self) -> (&mut $Queue, &mut super::ReceiveQueue) {
                (&mut self.halves.send, &mut self.halves.receive)
            }

            fn into_split(self) -> ($Queue, super::ReceiveQueue) {
                (self.halves.send, self.halves.receive)
            }
        }
    };
}
use crate::error::Error;
use impl_queue_pair;

/// The queue sizes of a queue pair, as the device granted them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePairCapability {
    /// The number of work requests in the send queue.
    pub max_send_wr: u32,
    /// The number of work requests in the receive queue.
    pub max_recv_wr: u32,
    /// The number of scatter/gather entries in a send request.
    pub max_send_sge: u32,
    /// The number of scatter/gather entries in a receive.
    pub max_recv_sge: u32,
    /// The number of bytes of inline data in a work request.
    pub max_inline_data: u32,
}

impl QueuePairCapability {
    /// Whether none of the sizes exceeds those of `other`.
    fn fits(&self, other: &Self) -> bool {
        self.max_send_wr <= other.max_send_wr
            && self.max_recv_wr <= other.max_recv_wr
            && self.max_send_sge <= other.max_send_sge
            && self.max_recv_sge <= other.max_recv_sge
            && self.max_inline_data <= other.max_inline_data
    }
}

/// The shared part of a queue pair, which its halves and controls keep alive.
type Shared = Arc<control::Inner>;
