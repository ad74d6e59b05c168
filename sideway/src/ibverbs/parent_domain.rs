//! Parent domains: a protection domain extended by a thread domain or by memory allocators.
//!
//! The manual page calls it "completely interchangeable" with the domain that it extends: it is a
//! [`ProtectionDomain`] with the same memory and the same queue pairs. It adds a [thread
//! domain](super::thread_domain), or allocators for the memory of queues.
//!
//! ```
//! # #[cfg(feature = "soft")]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use sideway::ibverbs::device::DeviceList;
//! # let list = DeviceList::from_provider(sideway::ProviderChoice::Soft.select()?.provider())?;
//! # let context = list.first()?.open()?;
//! let pd = context.alloc_pd()?;
//! let parent = pd.create_parent_domain_builder().build()?;
//! // It can be used in place of `pd` everywhere.
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

/// Allocates memory for a library's queue (`alloc` of `ibv_parent_domain_init_attr`). The memory
/// must be zeroed, aligned, and not copied on write by a fork. Null means failure;
/// [`IBV_ALLOCATOR_USE_DEFAULT`](verbs::IBV_ALLOCATOR_USE_DEFAULT) selects the library's allocator.
pub type Allocate = unsafe extern "C" fn(
    pd: *mut ibv_pd,
    pd_context: *mut c_void,
    size: usize,
    alignment: usize,
    resource_type: u64,
) -> *mut c_void;

/// Frees memory of an [`Allocate`] function (`free` of `ibv_parent_domain_init_attr`).
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
    /// Returns a builder for parent domains of this domain.
    pub fn create_parent_domain_builder(&self) -> ParentDomainBuilder {
        ParentDomainBuilder { pd: self.clone(), td: None, allocators: None }
    }
}

impl ParentDomainBuilder {
    /// Assigns all objects made in the parent domain to a thread domain, so that libraries use them
    /// without locks.
    ///
    /// # Safety
    ///
    /// - No two objects made in parent domains of this thread domain may be used at the same time,
    ///   by any threads. This applies to queue pairs, completion queues and shared receive queues,
    ///   even to queue pairs that share nothing else. Creation, destruction and the drop of the
    ///   last handle count as uses.
    pub unsafe fn setup_thread_domain(&mut self, td: &ThreadDomain) -> &mut Self {
        self.td = Some(td.clone());
        self
    }

    /// Lets the program allocate the memory of queues (`IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS`,
    /// `_PD_CONTEXT`).
    ///
    /// # Safety
    ///
    /// - `alloc` and `free` may be called with `pd_context` from any thread that makes or destroys
    ///   an object in the parent domain, until the domain is gone. They must not unwind.
    /// - `alloc` returns memory as `man ibv_alloc_parent_domain` requires: of the requested size
    ///   and alignment, zeroed, and not copied on write by a fork. Nobody else uses it until `free`
    ///   takes it back.
    pub unsafe fn setup_allocators(
        &mut self,
        alloc: Allocate,
        free: Free,
        pd_context: *mut c_void,
    ) -> &mut Self {
        self.allocators = Some((alloc, free, pd_context));
        self
    }

    /// Makes the parent domain (`ibv_alloc_parent_domain`), which is used like any protection
    /// domain.
    ///
    /// # Errors
    ///
    /// Fails if the device has no parent domains, or not with allocators
    /// ([`Unsupported`](crate::ibverbs::Unsupported)). Also fails if the thread domain belongs to
    /// another context, or if the device has no more domains.
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
        // SAFETY: the builder keeps context and domains alive, and they belong together, as checked
        // above. The caller of `setup_allocators` guarantees the allocators.
        let pd = unsafe { verbs::ibv_alloc_parent_domain(context.as_raw().as_ptr(), &raw mut attr) };
        match NonNull::new(pd) {
            // SAFETY: the library made the domain just now, from these domains.
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
