//! Thread domains: objects that one thread at a time uses, so that a device's library needs no
//! locks.
//!
//! Libraries lock resources that several threads may use at once, such as doorbell pages and
//! queues. One thread at a time uses the objects made in a thread domain, so that no lock is
//! needed. A thread domain takes effect through a [parent domain](super::parent_domain).
//!
//! ```
//! # #[cfg(feature = "soft")] {
//! # use sideway::ibverbs::device::DeviceList;
//! # let devices = DeviceList::from_provider(sideway::soft::provider())?;
//! let context = devices.first()?.open()?;
//! let pd = context.alloc_pd()?;
//! let td = context.alloc_td()?;
//! let mut builder = pd.create_parent_domain_builder();
//! // SAFETY: all objects made in the parent domain stay on this thread.
//! unsafe { builder.setup_thread_domain(&td) };
//! let parent = builder.build()?;
//! let cq = context.create_cq_builder().setup_cqe(16).build_generic()?;
//! let mut builder = parent.create_qp_builder();
//! let qp = builder.setup_send_cq(&cq).setup_recv_cq(&cq).build_generic()?;
//! # }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::fmt;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use rdma_mummy_sys::types::{ibv_td, ibv_td_init_attr};
use rdma_mummy_sys::verbs;

use super::check;
use super::device_context::DeviceContext;
use crate::error::Error;

/// A thread domain (`ibv_td`).
///
/// Clones refer to the same domain. It is freed (`ibv_dealloc_td`) when the last handle and the
/// last parent domain with it are dropped.
#[derive(Clone)]
pub struct ThreadDomain(Arc<Inner>);

struct Inner {
    td: NonNull<ibv_td>,
    context: DeviceContext,
}

// SAFETY: a thread domain is only used to make other objects, which is thread-safe in libibverbs.
unsafe impl Send for Inner {}
// SAFETY: a thread domain is only used to make other objects, which is thread-safe in libibverbs.
unsafe impl Sync for Inner {}

impl DeviceContext {
    /// Allocates a thread domain (`ibv_alloc_td`).
    ///
    /// # Errors
    ///
    /// Fails if the device does not support them ([`Unsupported`](crate::ibverbs::Unsupported)), or
    /// has no more of them.
    ///
    /// # References
    ///
    /// `man ibv_alloc_td`
    pub fn alloc_td(&self) -> Result<ThreadDomain, Error> {
        let mut attr = ibv_td_init_attr { comp_mask: 0 };
        // SAFETY: the context is kept open, and the attributes are initialised.
        let td = unsafe { verbs::ibv_alloc_td(self.as_raw().as_ptr(), &raw mut attr) };
        match NonNull::new(td) {
            Some(td) => Ok(ThreadDomain(Arc::new(Inner { td, context: self.clone() }))),
            None => Err(Error::of_device(self, "ibv_alloc_td", "thread domains", io::Error::last_os_error())),
        }
    }
}

impl ThreadDomain {
    /// The device context in which it was made.
    pub fn context(&self) -> &DeviceContext {
        &self.0.context
    }

    /// The C object, for verbs that this crate does not wrap. Using it is as unsafe as in C; do not
    /// free it.
    pub fn as_raw(&self) -> NonNull<ibv_td> {
        self.0.td
    }
}

impl PartialEq for ThreadDomain {
    /// Whether both refer to the same domain.
    fn eq(&self, other: &Self) -> bool {
        self.0.td == other.0.td
    }
}

impl Eq for ThreadDomain {}

impl fmt::Debug for ThreadDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ThreadDomain").field("context", &self.0.context).finish_non_exhaustive()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: the domain is alive until here. Every parent domain with it held this `Inner` and
        // is gone.
        if let Err(error) = check(unsafe { verbs::ibv_dealloc_td(self.td.as_ptr()) }) {
            log::error!("ibv_dealloc_td failed: {error}");
            // The library still has the domain, so the objects that it depends on must stay alive
            // too.
            std::mem::forget(self.context.clone());
        }
    }
}
