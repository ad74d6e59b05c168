//! Completion queues and work completions.
//!
//! A queue comes in two kinds. [`BasicCompletionQueue`] is polled with `ibv_poll_cq`.
//! [`ExtendedCompletionQueue`] is polled with `ibv_start_poll` and `ibv_next_poll`, which copy
//! nothing and provide more fields. [`GenericCompletionQueue`] is either, behind one interface.
//!
//! ```no_run
//! # fn poll(cq: &mut sideway::ibverbs::completion::GenericCompletionQueue) {
//! match cq.start_poll() {
//!     Ok(mut poller) => {
//!         while let Some(wc) = poller.next() {
//!             println!("wr_id: {}, status: {}, opcode: {}", wc.wr_id(), wc.status(), wc.opcode())
//!         }
//!     }
//!     Err(error) => eprintln!("{error}"),
//! }
//! # }
//! ```
//!
//! An empty queue is not an error: its poller yields nothing. A poller borrows its queue mutably,
//! so that only one exists at a time. A completion borrows its poller, because its fields are read
//! at the queue's cursor.

mod basic;
mod builder;
pub mod channel;
mod control;
mod extended;
mod generic;
mod status;

use std::fmt;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub use basic::{BasicCompletionQueue, BasicPoller, BasicWorkCompletion};
#[allow(deprecated)]
pub use builder::CreateCompletionQueueWorkCompletionFlags;
pub use builder::{CompletionQueueBuilder, CreateCompletionQueueError, WorkCompletionFields};
pub use channel::{ChannelCloser, ChannelWakeup, CompletionChannel, CompletionEvent};
pub use control::Notify;
pub use extended::{ExtendedCompletionQueue, ExtendedPoller, ExtendedWorkCompletion};
pub use generic::{GenericCompletionQueue, GenericPoller, GenericWorkCompletion};
use rdma_mummy_sys::types::ibv_cq;
pub use status::{TagMatchingInfo, WorkCompletionFlags, WorkCompletionOperationType, WorkCompletionStatus};

use super::device_context::DeviceContext;
use crate::direct::KeptByObject;

/// The queue itself, shared by its handle and the queue pairs that complete into it.
#[derive(Debug)]
pub(crate) struct CqInner {
    cq: NonNull<ibv_cq>,
    context: DeviceContext,
    id: CompletionQueueId,
    cq_context: u64,
    channel: Option<Arc<channel::ChannelInner>>,
    /// What a vendor's queue uses; not read, only dropped after the queue.
    vendors: Option<KeptByObject>,
}

/// Identifies a completion queue in events. Ids are never reused within a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CompletionQueueId(u64);

impl CompletionQueueId {
    fn new() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Self(LAST.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// The id as the `cq_context` pointer of the C object.
    fn to_context(self) -> *mut core::ffi::c_void {
        core::ptr::without_provenance_mut(self.0 as usize)
    }

    /// The id from a C object's `cq_context`, meaningful only if this crate made the object.
    pub(super) fn of_context(cq_context: *mut core::ffi::c_void) -> Self {
        Self(cq_context.addr() as u64)
    }
}

// SAFETY: only the queue's handle polls, through `&mut`. Other uses, such as creating and
// destroying queue pairs, are thread-safe in libibverbs.
unsafe impl Send for CqInner {}
// SAFETY: polling is exclusive to the queue's handle (`&mut`); what others do with it (creating and
// destroying queue pairs) is thread-safe in libibverbs.
unsafe impl Sync for CqInner {}

impl CqInner {
    /// # Safety
    ///
    /// `cq` must be a queue of `context` that was made just now, with `channel`, and with `id` as
    /// its `cq_context`. Nothing else may destroy it.
    unsafe fn new(
        cq: NonNull<ibv_cq>,
        context: DeviceContext,
        id: CompletionQueueId,
        cq_context: u64,
        channel: Option<Arc<channel::ChannelInner>>,
        vendors: Option<KeptByObject>,
    ) -> Arc<Self> {
        if let Some(channel) = &channel {
            channel.enter(id, cq, cq_context);
        }
        Arc::new(Self { cq, context, id, cq_context, channel, vendors })
    }

    fn has_channel(&self) -> bool {
        self.channel.is_some()
    }

    pub(crate) fn as_raw(&self) -> NonNull<ibv_cq> {
        self.cq
    }

    pub(crate) fn context(&self) -> &DeviceContext {
        &self.context
    }

    /// How many completions the queue holds.
    fn cqe(&self) -> u32 {
        // SAFETY: `self` keeps the queue alive, and every release's struct has this field.
        u32::try_from(unsafe { (*self.cq.as_ptr()).cqe }).unwrap_or(0)
    }
}

impl Drop for CqInner {
    fn drop(&mut self) {
        if let Some(channel) = &self.channel {
            channel.prepare_to_leave(self.id);
        }
        // SAFETY: the queue is alive until here. Its handle and every queue pair that uses it held
        // this object and are gone.
        let result = unsafe { (self.context.provider().verbs().ibv_destroy_cq)(self.cq.as_ptr()) };
        if let Err(error) = super::check(result) {
            log::error!("ibv_destroy_cq failed: {error}");
            // The library still has the queue, so the context that it depends on must stay alive
            // too.
            std::mem::forget(self.context.clone());
            std::mem::forget(self.channel.take());
            std::mem::forget(self.vendors.take());
        } else if let Some(channel) = &self.channel {
            channel.leave(self.id);
        }
    }
}

mod sealed {
    pub trait Sealed {}
}

/// Operations of any kind of completion queue, other than polling.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a completion queue",
    label = "expected a completion queue, borrowed",
    note = "a queue has one owner, which polls it: give builders a reference (`setup_send_cq(&cq)`)",
    note = "a clone of a queue pair builder keeps its queues, also in another thread than the owner's"
)]
pub trait CompletionQueue: sealed::Sealed {
    /// The C object, for verbs that this crate does not wrap. Using it is as unsafe as in C; do not
    /// destroy it.
    fn as_raw(&self) -> NonNull<ibv_cq>;

    /// The number of completions that the queue can hold, at least the number requested.
    fn cqe(&self) -> u32;

    /// The id by which events name the queue.
    fn id(&self) -> CompletionQueueId;

    /// The value that the program gave the queue
    /// ([`setup_cq_context`](CompletionQueueBuilder::setup_cq_context)).
    fn cq_context(&self) -> u64;

    /// The device context in which it was made.
    fn context(&self) -> &DeviceContext;

    #[doc(hidden)]
    fn shared(&self) -> Shared;
}

/// The queue's shared part, for the queue pair builder.
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct Shared(pub(crate) Arc<CqInner>);

macro_rules! impl_completion_queue {
    ($Queue:ty) => {
        impl super::sealed::Sealed for $Queue {}

        impl super::CompletionQueue for $Queue {
            fn as_raw(&self) -> core::ptr::NonNull<rdma_mummy_sys::types::ibv_cq> {
                self.inner.as_raw()
            }

            fn cqe(&self) -> u32 {
                self.inner.cqe()
            }

            fn id(&self) -> super::CompletionQueueId {
                self.inner.id
            }

            fn cq_context(&self) -> u64 {
                self.inner.cq_context
            }

            fn context(&self) -> &crate::ibverbs::device_context::DeviceContext {
                self.inner.context()
            }

            fn shared(&self) -> super::Shared {
                super::Shared(std::sync::Arc::clone(&self.inner))
            }
        }
    };
}
use impl_completion_queue;

/// A completion queue could not be polled; that it is empty is not an error.
#[derive(Clone, PartialEq, Eq)]
pub struct PollCompletionQueueError {
    /// The call that failed: `ibv_poll_cq`, or `ibv_next_poll` for it and `ibv_start_poll`.
    pub verb: &'static str,
    /// What it returned: an error number, or less than zero, which means whatever the device's
    /// library says.
    pub result: core::ffi::c_int,
}

impl fmt::Display for PollCompletionQueueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} returned {}", self.verb, self.result)?;
        if self.result > 0 {
            write!(f, " ({})", io::Error::from_raw_os_error(self.result))?;
        }
        f.write_str(
            ": the queue overran or the device failed; make it longer (`setup_cqe`), look at the kernel log",
        )
    }
}

impl std::error::Error for PollCompletionQueueError {}

debug_as_text!(PollCompletionQueueError);

/// Marks the branch that calls it as unlikely, so that the compiler lays out the other one without
/// jumps.
#[cold]
#[inline(always)]
fn unlikely() {}
