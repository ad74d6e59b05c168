//! Queue pairs: making, connecting and driving them.
//!
//! A queue pair comes in two flavours: [`BasicQueuePair`] posts with
//! `ibv_post_send`, [`ExtendedQueuePair`] with `ibv_wr_*`, which builds work
//! requests straight in the device's queue. [`GenericQueuePair`] is either.
//! What they have in common is the trait [`QueuePair`].
//!
//! Work requests are built between [`start_post_send`](QueuePair::start_post_send)
//! and [`post`](PostSendGuard::post), any number at a time, and reach the device
//! together. A list that is dropped instead of posted never happened.
//!
//! ```no_run
//! # use sideway::ibverbs::{memory_region::MemoryRegion, queue_pair::*};
//! # fn write(qp: &mut GenericQueuePair, lmr: &MemoryRegion, rkey: u32, remote: u64) -> Result<(), PostSendError> {
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
mod builder;
mod control;
mod extended;
mod generic;
mod modify;
mod post;
mod post_error;
mod receive;
mod slices;
mod state;
mod table;
mod target;
mod work_request;

use std::sync::Arc;

pub use attribute::{
    AlternatePath, MigrationState, QueuePairAttribute, QueuePairAttributeMask, QueuePairInitAttribute,
};
pub use basic::{BasicPostSendGuard, BasicQueuePair, BasicSendQueue, PreparedSendList};
pub use builder::{CreateQueuePairError, QueuePairBuilder, SendOperationFlags};
pub use control::{QueuePairControl, RateLimit};
pub use extended::{ExtendedPostSendGuard, ExtendedQueuePair, ExtendedSendQueue};
pub use generic::{GenericPostSendGuard, GenericQueuePair, GenericSendQueue};
pub use modify::ModifyQueuePairError;
#[cfg(feature = "mlx5")]
pub(crate) use post::sealed::{Build, ListInfo, Step};
pub use post::{
    Borrows, DatagramHandle, FlushPlacement, FlushSelectivity, LocalBufferHandle, PostSendGuard,
    ReadBufferHandle, ScatterGatherEntry, WorkRequestHandle,
};
pub use post_error::PostSendError;
pub(crate) use receive::{NoRoom, ReceiveList};
pub use receive::{PostRecvError, PostRecvGuard, PreparedReceiveList, ReceiveQueue, RecvWorkRequestHandle};
pub use slices::{AttachPoolError, PooledPostRecvGuard, PooledPostSendGuard, PooledRecvWorkRequestHandle};
pub use state::QueuePairState;
pub use table::QueuePairTable;
pub use target::XrcTarget;
#[cfg(feature = "mlx5")]
pub(crate) use work_request::{BufferlessRequest, SendRequest};
pub use work_request::{WorkRequestFlags, WorkRequestOperationType};

pub use super::types::QueuePairType;

/// What every flavour of a queue pair can do.
///
/// Posting needs `&mut`: there is one list of work requests being built for each of the two queues of a
/// pair. To drive both from two threads, [`split`](Self::split) the pair. Changing its state needs the
/// whole pair; questions take `&self`.
pub trait QueuePair: Sized {
    /// The sending half.
    type SendQueue: SendQueue;

    /// What is neither sending nor receiving; it can be cloned and used from any thread.
    fn control(&self) -> &QueuePairControl;

    /// Both halves, to be driven from two threads for as long as the borrow lasts.
    fn split(&mut self) -> (&mut Self::SendQueue, &mut ReceiveQueue);

    /// Both halves, each to go its own way. The pair lives as long as one of them, or a clone of
    /// [`control`](Self::control), does.
    fn into_split(self) -> (Self::SendQueue, ReceiveQueue);

    /// Begins a list of work requests to send.
    #[inline]
    fn start_post_send(&mut self) -> <Self::SendQueue as SendQueue>::Guard<'_> {
        self.split().0.start_post_send()
    }

    /// Begins a list of work requests to receive into.
    #[inline]
    fn start_post_recv(&mut self) -> PostRecvGuard<'_> {
        self.split().1.start_post_recv()
    }

    /// Changes state or attributes (`ibv_modify_qp`).
    ///
    /// # Errors
    ///
    /// [`ModifyQueuePairError`] says which attribute was wrong or missing, or where no route led.
    fn modify(&mut self, attr: &QueuePairAttribute) -> Result<(), ModifyQueuePairError> {
        // SAFETY: the pair is whole and borrowed mutably: nobody has a half of it, or a list.
        unsafe { self.control().modify(attr) }
    }

    /// Reads attributes (`ibv_query_qp`).
    ///
    /// # Errors
    ///
    /// The device does not answer.
    fn query(
        &self,
        mask: QueuePairAttributeMask,
    ) -> Result<(QueuePairAttribute, QueuePairInitAttribute), Error> {
        self.control().query(mask)
    }

    /// The state that the device reports.
    ///
    /// # Errors
    ///
    /// The device does not answer.
    fn state(&self) -> Result<QueuePairState, Error> {
        self.control().state()
    }

    /// The number by which peers address it.
    fn qp_number(&self) -> u32 {
        self.control().qp_number()
    }

    /// The type.
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

    /// Begins a list of work requests to send.
    fn start_post_send(&mut self) -> Self::Guard<'_>;

    /// What is neither sending nor receiving.
    fn control(&self) -> &QueuePairControl;
}

/// A queue pair of one flavour: a sending half and a receiving half.
#[derive(Debug)]
struct Halves<S> {
    send: S,
    receive: ReceiveQueue,
}

/// A flavour that consists of its two halves.
macro_rules! impl_queue_pair {
    ($Pair:ident, $Queue:ty) => {
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

/// How much a queue pair holds, as the device granted it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePairCapability {
    /// Work requests in the send queue.
    pub max_send_wr: u32,
    /// Work requests in the receive queue.
    pub max_recv_wr: u32,
    /// Scatter/gather entries of a work request to send.
    pub max_send_sge: u32,
    /// Scatter/gather entries of a work request to receive.
    pub max_recv_sge: u32,
    /// Bytes of inline data of a work request.
    pub max_inline_data: u32,
}

impl QueuePairCapability {
    /// Whether all of this fits into the other.
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
