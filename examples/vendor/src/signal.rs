//! Queue pairs that send signals beside the requests of libibverbs.
//!
//! # Safety
//!
//! The unsafe code in this module relies on these invariants:
//!
//! - `acme` is the library's view of the pair, which the queue keeps alive, and its `wr_signal` is
//!   not null: [`SignalQueuePair::of`] checks that when the pair is made.
//! - A list is open, and nobody else builds one: the guard wraps an `ExtendedPostSendGuard`, of
//!   which there is only one.

use std::ptr::NonNull;

use sideway::direct::{self, VendorList, WholePair};
use sideway::ibverbs::queue_pair::{
    CreateQueuePairError, ExtendedPostSendGuard, ExtendedQueuePair, ExtendedSendQueue, PostSendError,
    PostSendGuard, QueuePair, QueuePairControl, ReceiveQueue, SendQueue, WorkRequestHandle,
};

use crate::DirectVerbs;
use crate::library::acme_qp_ex;

type WriteSignal = unsafe extern "C" fn(qp: *mut acme_qp_ex, rkey: u32, remote_addr: u64, value: u64);

/// The library's view of a pair, and its operation.
#[derive(Clone, Copy, Debug)]
struct Operations {
    acme: NonNull<acme_qp_ex>,
    write_signal: WriteSignal,
}

/// A queue pair with signals, made by [`PairBuilder::build`](crate::PairBuilder::build). It posts
/// like every extended pair, and sends [signals](SignalRequest::setup_signal).
#[derive(Debug)]
pub struct SignalQueuePair {
    send: SignalSendQueue,
    receive: ReceiveQueue,
}

impl SignalQueuePair {
    /// # Safety
    ///
    /// `acme_create_qp` must have made the pair just now, with `ACME_QP_SIGNAL`.
    pub(crate) unsafe fn of(
        direct: &DirectVerbs,
        pair: ExtendedQueuePair,
    ) -> Result<Self, CreateQueuePairError> {
        let incomplete = |operation| CreateQueuePairError::Incomplete { operation };
        let to_ex = direct.context().provider().verbs().ibv_qp_to_qp_ex();
        let to_ex = to_ex.map_err(|_| incomplete("ibv_qp_to_qp_ex"))?;
        // SAFETY: the pair is alive, and an extended one.
        let qp = unsafe { to_ex(pair.control().as_raw().as_ptr()) };
        // SAFETY: `qp` is an extended pair of Acme's, which the caller guarantees.
        let acme = NonNull::new(unsafe { (direct.as_raw().acme_qp_ex_from_ibv_qp_ex)(qp) });
        let acme = acme.ok_or_else(|| incomplete("acme_qp_ex_from_ibv_qp_ex"))?;
        // SAFETY: the library made the pair with signals, so its struct has this field.
        let write_signal = unsafe { (*acme.as_ptr()).wr_signal };
        let write_signal = write_signal.ok_or_else(|| incomplete("wr_signal"))?;
        let (queue, receive) = pair.into_split();
        let operations = Operations { acme, write_signal };
        Ok(Self { send: SignalSendQueue { queue, operations }, receive })
    }
}

// SAFETY: the halves come from the extended pair of which the value was made, and nothing else has
// them.
unsafe impl WholePair for SignalQueuePair {}

impl QueuePair for SignalQueuePair {
    type SendQueue = SignalSendQueue;

    fn control(&self) -> &QueuePairControl {
        self.send.queue.control()
    }

    #[inline]
    fn split(&mut self) -> (&mut SignalSendQueue, &mut ReceiveQueue) {
        (&mut self.send, &mut self.receive)
    }

    fn into_split(self) -> (SignalSendQueue, ReceiveQueue) {
        (self.send, self.receive)
    }
}

/// The sending half of a [`SignalQueuePair`].
#[derive(Debug)]
pub struct SignalSendQueue {
    queue: ExtendedSendQueue,
    operations: Operations,
}

// SAFETY: `operations` refers to the queue's pair, and only the queue's owner uses it.
unsafe impl Send for SignalSendQueue {}
// SAFETY: no method uses `operations` through `&self`.
unsafe impl Sync for SignalSendQueue {}

impl SendQueue for SignalSendQueue {
    type Guard<'queue> = SignalGuard<'queue>;

    #[inline]
    fn start_post_send(&mut self) -> SignalGuard<'_> {
        let operations = self.operations;
        SignalGuard { list: self.queue.start_post_send(), operations, refused: None }
    }

    fn control(&self) -> &QueuePairControl {
        self.queue.control()
    }
}

/// A list of work requests that is being built for a [`SignalQueuePair`]. The notes at
/// [`ExtendedPostSendGuard`] apply to it too.
#[must_use = "a list that is not posted is forgotten"]
#[derive(Debug)]
pub struct SignalGuard<'queue> {
    list: ExtendedPostSendGuard<'queue>,
    operations: Operations,
    /// The first reason why the list cannot be posted.
    refused: Option<PostSendError>,
}

// SAFETY: the list comes from the queue, and the guard posts or drops it. Requests of libibverbs need
// nothing further.
unsafe impl<'queue> VendorList<'queue> for SignalGuard<'queue> {
    #[inline(always)]
    fn extended(&self) -> &ExtendedPostSendGuard<'queue> {
        &self.list
    }

    #[inline(always)]
    unsafe fn extended_mut(&mut self) -> &mut ExtendedPostSendGuard<'queue> {
        &mut self.list
    }
}

impl PostSendGuard for SignalGuard<'_> {
    #[inline]
    fn post(self) -> Result<(), PostSendError> {
        match self.refused {
            None => self.list.post(),
            // Dropping the list aborts it.
            Some(error) => Err(error),
        }
    }
}

/// The request of Acme's, for work requests of a [`SignalQueuePair`].
pub trait SignalRequest {
    /// Writes `value`, in host byte order, to the peer's memory at `remote_addr`, in the region with
    /// the key `rkey` (`wr_signal`). It needs no local buffer. It completes as
    /// [`RdmaWrite`](sideway::ibverbs::completion::WorkCompletionOperationType::RdmaWrite).
    ///
    /// # Errors
    ///
    /// [`post`](PostSendGuard::post) reports them: [`OfVendor`](PostSendError::OfVendor) if
    /// `remote_addr` is not a multiple of 8.
    fn setup_signal(self, rkey: u32, remote_addr: u64, value: u64);
}

impl SignalRequest for WorkRequestHandle<'_, SignalGuard<'_>> {
    #[inline]
    fn setup_signal(self, rkey: u32, remote_addr: u64, value: u64) {
        let (guard, wr_id, flags) = self.into_parts();
        let (Some(index), None) = (guard.list.request_count(), guard.refused) else { return };
        if !remote_addr.is_multiple_of(8) {
            let reason = "the address of a signal is no multiple of 8; align the peer's memory";
            guard.refused = Some(PostSendError::OfVendor { index, reason });
            return;
        }
        let Operations { acme, write_signal } = guard.operations;
        // SAFETY: the closure appends one request, which names no local memory. The library detects
        // a full queue, and the pair has the operation (module head).
        unsafe {
            direct::append_request(&mut guard.list, wr_id, flags, false, |_| {
                write_signal(acme.as_ptr(), rkey, remote_addr, value);
            });
        }
    }
}
