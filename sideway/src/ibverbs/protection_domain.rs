//! Protection domains: the scope within which queue pairs can access memory.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use rdma_mummy_sys::types::ibv_pd;

use super::AccessFlags;
use super::device_context::DeviceContext;
use super::memory_region::RegisterMemoryRegionError;
use super::queue_pair::QueuePairBuilder;
use super::srq::SharedReceiveQueueBuilder;
use super::thread_domain::ThreadDomain;
use crate::error::Error;
use crate::memory::{Buffer, RegisteredBuffer};

/// A protection domain (`ibv_pd`): queue pairs can access only memory of the same domain.
///
/// Clones refer to the same domain. It is freed (`ibv_dealloc_pd`) when the last handle and the
/// last object in it are dropped.
#[derive(Clone)]
pub struct ProtectionDomain(Arc<Inner>);

struct Inner {
    pd: NonNull<ibv_pd>,
    context: DeviceContext,
    kind: DomainKind,
}

/// The origin of a domain, which determines how it is freed.
enum DomainKind {
    Allocated,
    /// A parent domain, with the objects that it keeps alive.
    Parent {
        pd: ProtectionDomain,
        td: Option<ThreadDomain>,
    },
    /// Imported: another owner deallocates it.
    Imported,
}

// SAFETY: libibverbs allows verbs on one protection domain from several threads at a time.
unsafe impl Send for Inner {}
// SAFETY: verbs on one protection domain may be called from any thread, several at a time.
unsafe impl Sync for Inner {}

impl DeviceContext {
    /// Allocates a protection domain (`ibv_alloc_pd`).
    ///
    /// # Errors
    ///
    /// Fails if the device has no more of them.
    ///
    /// # References
    ///
    /// `man ibv_alloc_pd`
    pub fn alloc_pd(&self) -> Result<ProtectionDomain, Error> {
        ProtectionDomain::allocate(self)
    }
}

impl ProtectionDomain {
    pub(crate) fn allocate(context: &DeviceContext) -> Result<Self, Error> {
        // SAFETY: `self` keeps the context open.
        let pd = unsafe { (context.provider().verbs().ibv_alloc_pd)(context.as_raw().as_ptr()) };
        let pd = NonNull::new(pd).ok_or_else(|| Error::last_os("ibv_alloc_pd"))?;
        Ok(Self(Arc::new(Inner { pd, context: context.clone(), kind: DomainKind::Allocated })))
    }

    /// Wraps a parent domain.
    ///
    /// # Safety
    ///
    /// `pd` was made just now from these domains, and nothing else owns it.
    pub(crate) unsafe fn of_parts(pd: NonNull<ibv_pd>, of: &Self, td: Option<ThreadDomain>) -> Self {
        let (context, of) = (of.context().clone(), of.clone());
        Self(Arc::new(Inner { pd, context, kind: DomainKind::Parent { pd: of, td } }))
    }

    /// Wraps an imported domain.
    ///
    /// # Safety
    ///
    /// `pd` was imported just now by this context, and nothing else unimports it. The owner's
    /// domain outlives this.
    pub(crate) unsafe fn imported(pd: NonNull<ibv_pd>, context: &DeviceContext) -> Self {
        Self(Arc::new(Inner { pd, context: context.clone(), kind: DomainKind::Imported }))
    }

    /// The domain that a parent domain extends; `None` for other domains.
    pub fn extended_domain(&self) -> Option<&Self> {
        match &self.0.kind {
            DomainKind::Parent { pd, .. } => Some(pd),
            _ => None,
        }
    }

    /// The thread domain of a parent domain, if it has one.
    pub fn thread_domain(&self) -> Option<&ThreadDomain> {
        match &self.0.kind {
            DomainKind::Parent { td, .. } => td.as_ref(),
            _ => None,
        }
    }

    /// Whether it was [imported](DeviceContext::import_pd), so that dropping it leaves the domain
    /// to its owner.
    pub fn is_imported(&self) -> bool {
        matches!(self.0.kind, DomainKind::Imported)
    }

    /// The number by which others [import](DeviceContext::import_pd) it (`ibv_pd::handle`).
    pub fn handle(&self) -> u32 {
        // SAFETY: `self` keeps the domain alive, and every release's struct has this field.
        unsafe { (*self.0.pd.as_ptr()).handle }
    }

    /// The device context in which it was made.
    pub fn context(&self) -> &DeviceContext {
        &self.0.context
    }

    /// The C object, for verbs that this crate does not wrap. Using it is as unsafe as in C; do not
    /// free it.
    pub fn as_raw(&self) -> NonNull<ibv_pd> {
        self.0.pd
    }

    /// Registers memory and takes ownership of it (`ibv_reg_mr`).
    ///
    /// It is safe because the memory outlives its registration in all cases, and no reference to it
    /// is ever made.
    ///
    /// # Errors
    ///
    /// Fails as [`reg_mr`](Self::reg_mr) does, and with [`AccessFlags::HugeTlb`] unless the buffer is
    /// of [`BufferKind::HugePages`](crate::memory::BufferKind::HugePages). Fails with
    /// [`AccessFlags::OnDemand`] on the kernel's SoftRoCE, which would mix up the bytes of a page.
    /// The memory is freed.
    pub fn reg_buffer(
        &self,
        buffer: Buffer,
        access: AccessFlags,
    ) -> Result<RegisteredBuffer, RegisterMemoryRegionError> {
        RegisteredBuffer::register(self, buffer, access)
    }

    /// Returns a builder for shared receive queues of this domain.
    pub fn create_srq_builder(&self) -> SharedReceiveQueueBuilder {
        SharedReceiveQueueBuilder::new(self)
    }

    /// Returns a builder for queue pairs of this domain.
    pub fn create_qp_builder(&self) -> QueuePairBuilder {
        QueuePairBuilder::new(self)
    }
}

impl fmt::Debug for ProtectionDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProtectionDomain").field("context", &self.0.context).finish_non_exhaustive()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let lib = self.context.provider().verbs();
        if let DomainKind::Imported = self.kind {
            match lib.ibv_unimport_pd() {
                // SAFETY: the domain was imported. Everything in it held this `Inner` and is gone.
                Ok(unimport) => unsafe { unimport(self.pd.as_ptr()) },
                Err(error) => log::error!("an imported protection domain stays: {error}"),
            }
            return;
        }
        // SAFETY: the domain is alive until here. Everything in it held this `Inner` and is gone.
        if let Err(error) = super::check(unsafe { (lib.ibv_dealloc_pd)(self.pd.as_ptr()) }) {
            log::error!("ibv_dealloc_pd failed: {error}");
            // The library still has the domain, so the objects that it depends on must stay alive
            // too.
            std::mem::forget(self.context.clone());
            if let DomainKind::Parent { pd, td } = &self.kind {
                std::mem::forget((pd.clone(), td.clone()));
            }
        }
    }
}

/// The error of [`DeviceContext::alloc_pd`].
pub type AllocateProtectionDomainError = Error;
