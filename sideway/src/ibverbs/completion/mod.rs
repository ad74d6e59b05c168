//! Completion queues and work completions.
//!
//! A queue comes in two flavours: [`BasicCompletionQueue`] is polled with
//! `ibv_poll_cq`, [`ExtendedCompletionQueue`] with `ibv_start_poll` and
//! `ibv_next_poll`, which copies nothing and knows more about a completion.
//! [`GenericCompletionQueue`] is either, behind one interface.
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
//! That a queue is empty is not an error: its poller yields nothing. A poller
//! borrows its queue mutably, so there is one at a time, and a completion
//! borrows its poller, because its fields are read from the queue's cursor.

mod basic;
mod builder;
mod extended;
mod generic;
mod status;

use std::fmt;
use std::io;
use std::ptr::NonNull;

pub use basic::{BasicCompletionQueue, BasicPoller, BasicWorkCompletion};
pub use builder::{CompletionQueueBuilder, CreateCompletionQueueError, WorkCompletionFields};
pub use extended::{ExtendedCompletionQueue, ExtendedPoller, ExtendedWorkCompletion};
pub use generic::{GenericCompletionQueue, GenericPoller, GenericWorkCompletion};
use rdma_mummy_sys::types::ibv_cq;
pub use status::{WorkCompletionFlags, WorkCompletionOperationType, WorkCompletionStatus};

use super::device_context::DeviceContext;

/// What queue pairs and the queue's handle share: the queue itself, for as long as one of them needs it.
#[derive(Debug)]
pub(crate) struct CqInner {
    cq: NonNull<ibv_cq>,
    context: DeviceContext,
}

// SAFETY: polling is exclusive to the queue's handle (`&mut`); what others do with it (creating and
// destroying queue pairs) is thread-safe in libibverbs.
unsafe impl Send for CqInner {}
// SAFETY: as above.
unsafe impl Sync for CqInner {}

impl CqInner {
    pub(crate) fn as_raw(&self) -> NonNull<ibv_cq> {
        self.cq
    }

    pub(crate) fn context(&self) -> &DeviceContext {
        &self.context
    }

    /// How many completions the queue holds.
    fn cqe(&self) -> u32 {
        // SAFETY: the queue lives; the field is in every release's struct.
        u32::try_from(unsafe { (*self.cq.as_ptr()).cqe }).unwrap_or(0)
    }
}

impl Drop for CqInner {
    fn drop(&mut self) {
        // SAFETY: the queue lives, and its handle and every queue pair that uses it are gone.
        let result = unsafe { (self.context.provider().verbs().ibv_destroy_cq)(self.cq.as_ptr()) };
        if let Err(error) = super::check(result) {
            log::error!("ibv_destroy_cq failed: {error}");
            // The queue is still there, so what it depends on has to stay.
            std::mem::forget(self.context.clone());
        }
    }
}

mod sealed {
    pub trait Sealed {}
}

/// What can be done with a completion queue of any flavour, besides polling it.
pub trait CompletionQueue: sealed::Sealed {
    /// The C object. Using it is as unsafe as in C, and it must not be destroyed.
    fn as_raw(&self) -> NonNull<ibv_cq>;

    /// How many completions it holds: at least what was asked for.
    fn cqe(&self) -> u32;

    /// The context that it was made from.
    fn context(&self) -> &DeviceContext;

    #[doc(hidden)]
    fn shared(&self) -> Shared;
}

/// A queue's shared part, for the queue pair builder.
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct Shared(pub(crate) std::sync::Arc<CqInner>);

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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PollCompletionQueueError {
    /// The call that failed: `ibv_poll_cq`, or `ibv_next_poll` for it and `ibv_start_poll`.
    pub verb: &'static str,
    /// What it returned: an error number, or less than zero, which means whatever the device's library says.
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
