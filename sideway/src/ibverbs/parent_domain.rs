//! Parent domains: a protection domain with something to go with it.
//!
//! A parent domain is "completely interchangeable" with the domain that it extends: it is a
//! [`ProtectionDomain`] of the same memory and the same queue pairs. What it adds is a
//! [thread domain](super::thread_domain), or allocators for the memory of queues.
//!
//! ```
//! # #[cfg(feature = "soft")]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use sideway::ibverbs::device::DeviceList;
//! # let list = DeviceList::from_provider(sideway::ProviderChoice::Soft.select()?.provider())?;
//! # let context = list.first()?.open()?;
//! let pd = context.alloc_pd()?;
//! let parent = pd.create_parent_domain_builder().build()?;
//! // As good as `pd` wherever a domain is wanted.
//! let cq = context.create_cq_builder().build_generic()?;
//! let qp = parent.create_qp_builder().setup_send_cq(&cq).setup_recv_cq(&cq).build_generic()?;
//! # drop(qp);
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "soft"))]
//! # fn main() {}
//! ```

use std::ffi::c_void;
use std::io;
use std::ptr::NonNull;

use rdma_mummy_sys::types::{ibv_parent_domain_init_attr, ibv_parent_domain_init_attr_mask as Mask, ibv_pd};
use rdma_mummy_sys::verbs;

use super::protection_domain::ProtectionDomain;
use super::thread_domain::ThreadDomain;
use crate::error::Error;

/// Gives a library memory for a queue (`alloc` of `ibv_parent_domain_init_attr`): zeroed, aligned, not copied on write by a
/// fork; null for none, [`IBV_ALLOCATOR_USE_DEFAULT`](verbs::IBV_ALLOCATOR_USE_DEFAULT) for its own.
pub type Allocate = unsafe extern "C" fn(
    pd: *mut ibv_pd,
    pd_context: *mut c_void,
    size: usize,
    alignment: usize,
    resource_type: u64,
) -> *mut c_void;

/// Takes memory back (`free` of `ibv_parent_domain_init_attr`).
pub type Free =
    unsafe extern "C" fn(pd: *mut ibv_pd, pd_context: *mut c_void, ptr: *mut c_void, resource_type: u64);

/// Describes a parent domain (`ibv_parent_domain_init_attr`).
#[derive(Clone, Debug)]
#[must_use]
pub struct ParentDomainBuilder {
    pd: ProtectionDomain,
    td: Option<ThreadDomain>,
    allocators: Option<(Allocate, Free, *mut c_void)>,
}

const VERB: &str = "ibv_alloc_parent_domain";

impl ProtectionDomain {
    /// Begins to describe a parent domain of this domain.
    pub fn create_parent_domain_builder(&self) -> ParentDomainBuilder {
        ParentDomainBuilder { pd: self.clone(), td: None, allocators: None }
    }
}

impl ParentDomainBuilder {
    /// What is made in the parent domain belongs to this thread domain: libraries use it without locks.
    ///
    /// # Safety
    ///
    /// - Of all that is made in parent domains of this thread domain (queue pairs, completion queues, shared receive queues),
    ///   no two are used at the same time, by whatever threads: not two queue pairs that share nothing else either. Making
    ///   and destroying them counts as using them, and so does the drop of the last handle.
    pub unsafe fn setup_thread_domain(&mut self, td: &ThreadDomain) -> &mut Self {
        self.td = Some(td.clone());
        self
    }

    /// Memory for queues comes from the program (`IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS`, `_PD_CONTEXT`).
    ///
    /// # Safety
    ///
    /// - `alloc` and `free` may be called with `pd_context` from any thread that makes or destroys an object in the parent
    ///   domain, until the domain is gone, and do not unwind.
    /// - What `alloc` returns is as `man ibv_alloc_parent_domain` says: so many bytes, zeroed, so aligned, nobody else's until
    ///   `free` takes them back, and not copied on write by a fork.
    pub unsafe fn setup_allocators(
        &mut self,
        alloc: Allocate,
        free: Free,
        pd_context: *mut c_void,
    ) -> &mut Self {
        self.allocators = Some((alloc, free, pd_context));
        self
    }

    /// Makes the parent domain (`ibv_alloc_parent_domain`): a protection domain like others.
    ///
    /// # Errors
    ///
    /// The device has none, or not with allocators ([`Unsupported`]); the thread domain is of another context; or the device has
    /// no more domains.
    ///
    /// # References
    ///
    /// `man ibv_alloc_parent_domain`
    pub fn build(&self) -> Result<ProtectionDomain, Error> {
        let context = self.pd.context();
        if self.td.as_ref().is_some_and(|td| td.context() != context) {
            return Err(Error::other_context(
                VERB,
                "the thread domain is of another context than the protection domain",
            ));
        }
        let mut attr = ibv_parent_domain_init_attr {
            pd: self.pd.as_raw().as_ptr(),
            td: self.td.as_ref().map_or(std::ptr::null_mut(), |td| td.as_raw().as_ptr()),
            ..ibv_parent_domain_init_attr::default()
        };
        if let Some((alloc, free, pd_context)) = self.allocators {
            attr.comp_mask = Mask::IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS.0
                | Mask::IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT.0;
            (attr.alloc, attr.free, attr.pd_context) = (Some(alloc), Some(free), pd_context);
        }
        // SAFETY: context and domains live and belong together; for the allocators the builder's caller answers.
        let pd = unsafe { verbs::ibv_alloc_parent_domain(context.as_raw().as_ptr(), &raw mut attr) };
        match NonNull::new(pd) {
            // SAFETY: it was made just now, of these domains.
            Some(pd) => Ok(unsafe { ProtectionDomain::of_parts(pd, &self.pd, self.td.clone()) }),
            None => Err(self.error(io::Error::last_os_error())),
        }
    }

    #[cold]
    fn error(&self, source: io::Error) -> Error {
        let what =
            if self.allocators.is_some() { "parent domains with allocators" } else { "parent domains" };
        Error::of_device(self.pd.context(), VERB, what, source)
    }
}
