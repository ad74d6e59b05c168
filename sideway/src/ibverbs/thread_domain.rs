//! Thread domains: a promise that lets a device's library do without locks.
//!
//! Libraries lock what several threads may use at once: doorbell pages, queues. What is made in a thread domain is used by one
//! thread at a time, so that no lock is needed. A thread domain takes effect through a
//! [parent domain](super::parent_domain).
//!
//! ```
//! # #[cfg(feature = "soft")] {
//! # use sideway::ibverbs::device::DeviceList;
//! # let devices = DeviceList::from_provider(sideway::soft::provider())?;
//! let context = devices.first()?.open()?;
//! let pd = context.alloc_pd()?;
//! let td = context.alloc_td()?;
//! let mut builder = pd.create_parent_domain_builder();
//! // SAFETY: all that is made in the parent domain stays on this thread.
//! unsafe { builder.setup_thread_domain(&td) };
//! let parent = builder.build()?;
//! let cq = context.create_cq_builder().setup_cqe(16).build_generic()?;
//! let qp = parent.create_qp_builder().setup_send_cq(&cq).setup_recv_cq(&cq).build_generic()?;
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
/// A handle: clones stand for the same domain, which goes (`ibv_dealloc_td`) when the last handle and the last parent
/// domain with it are gone.
#[derive(Clone)]
pub struct ThreadDomain(Arc<Inner>);

struct Inner {
    td: NonNull<ibv_td>,
    context: DeviceContext,
}

// SAFETY: a thread domain is only named when other objects are made, which libraries guard by locks.
unsafe impl Send for Inner {}
// SAFETY: a thread domain is only named when other objects are made, which libraries guard by
// locks.
unsafe impl Sync for Inner {}

impl DeviceContext {
    /// A thread domain (`ibv_alloc_td`).
    ///
    /// # Errors
    ///
    /// The device has none ([`Unsupported`]), or no more of them.
    ///
    /// # References
    ///
    /// `man ibv_alloc_td`
    pub fn alloc_td(&self) -> Result<ThreadDomain, Error> {
        let mut attr = ibv_td_init_attr { comp_mask: 0 };
        // SAFETY: the context is open and the attributes are valid.
        let td = unsafe { verbs::ibv_alloc_td(self.as_raw().as_ptr(), &raw mut attr) };
        match NonNull::new(td) {
            Some(td) => Ok(ThreadDomain(Arc::new(Inner { td, context: self.clone() }))),
            None => Err(Error::of_device(self, "ibv_alloc_td", "thread domains", io::Error::last_os_error())),
        }
    }
}

impl ThreadDomain {
    /// The context that it was made from.
    pub fn context(&self) -> &DeviceContext {
        &self.0.context
    }

    /// The C object. Using it is as unsafe as in C, and it must not be freed.
    pub fn as_raw(&self) -> NonNull<ibv_td> {
        self.0.td
    }
}

impl PartialEq for ThreadDomain {
    /// The same domain.
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
        // SAFETY: the domain lives, and every parent domain with it held this `Inner` and is gone.
        if let Err(error) = check(unsafe { verbs::ibv_dealloc_td(self.td.as_ptr()) }) {
            log::error!("ibv_dealloc_td failed: {error}");
            // The domain is still there, so what it depends on has to stay.
            std::mem::forget(self.context.clone());
        }
    }
}
