//! The memory region builder: registration with all attributes (`ibv_reg_mr_ex`).

use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use rdma_mummy_sys::types::{ibv_mr_init_attr, ibv_mr_init_attr_mask as Mask};

use super::register::{RegistrationRequest, check_access, check_on_demand, flags};
use super::{MemoryKind, MemoryRegion, RegisterMemoryRegionError};
use crate::ibverbs::dma_handle::DmaHandle;
use crate::ibverbs::protection_domain::ProtectionDomain;
use crate::ibverbs::provider_buffer::ProviderBuffer;
use crate::ibverbs::{AccessFlags, Unsupported};

/// Describes regions (`ibv_mr_init_attr`) of the program's memory, the provider's memory, or
/// dma-bufs. One builder can make any number of them.
///
/// In addition to the options of `reg_mr` and the related functions, it takes a [DMA
/// handle](crate::ibverbs::dma_handle).
///
/// ```
/// # #[cfg(feature = "soft")] {
/// # use sideway::ibverbs::device::DeviceList;
/// use sideway::ibverbs::AccessFlags;
///
/// # let devices = DeviceList::from_provider(sideway::soft::provider())?;
/// let pd = devices.first()?.open()?.alloc_pd()?;
/// let buffer = pd.alloc_buf(4096)?;
/// let mut builder = pd.create_mr_builder();
/// let region = builder.setup_access(AccessFlags::LocalWrite).build_of_buffer(&buffer, 0, 4096)?;
/// println!("{:#x}", region.lkey());
/// # }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct MemoryRegionBuilder {
    pd: ProtectionDomain,
    access: AccessFlags,
    iova: Option<u64>,
    dma_handle: Option<DmaHandle>,
}

impl ProtectionDomain {
    /// Returns a builder for regions in this domain.
    pub fn create_mr_builder(&self) -> MemoryRegionBuilder {
        let (iova, dma_handle) = (None, None);
        MemoryRegionBuilder { pd: self.clone(), access: AccessFlags::LocalWrite, iova, dma_handle }
    }
}

impl MemoryRegionBuilder {
    /// Sets the permissions of the device and of peers; `LocalWrite` by default.
    pub fn setup_access(&mut self, access: AccessFlags) -> &mut Self {
        self.access = access;
        self
    }

    /// Sets the address by which requests identify the first byte. By default it is the memory's
    /// own address, or its offset in the dma-buf. Both must have the same offset within a page.
    pub fn setup_iova(&mut self, iova: u64) -> &mut Self {
        self.iova = Some(iova);
        self
    }

    /// Sets how the device accesses the memory. The region keeps the handle alive.
    pub fn setup_dma_handle(&mut self, dma_handle: &DmaHandle) -> &mut Self {
        self.dma_handle = Some(dma_handle.clone());
        self
    }

    /// Registers the program's memory (`ibv_reg_mr_ex`).
    ///
    /// # Safety
    ///
    /// The contract of [`reg_mr`](ProtectionDomain::reg_mr) applies.
    ///
    /// # Errors
    ///
    /// Fails as [`reg_mr`](ProtectionDomain::reg_mr) does. It is [`Unsupported`] if the device
    /// lacks an attribute, or if the library is older than rdma-core 59.
    ///
    /// # References
    ///
    /// `man ibv_reg_mr_ex`
    pub unsafe fn build(&self, ptr: *mut u8, len: usize) -> Result<MemoryRegion, RegisterMemoryRegionError> {
        if self.iova.is_some() {
            check_on_demand(&self.pd, len, self.access)?;
        }
        let attr = self.of_address(ptr, len, Mask::IBV_REG_MR_MASK_ADDR.0);
        // SAFETY: the caller keeps the memory allocated, as the contract of this function says.
        unsafe { self.register(attr, ptr, ptr.addr() as u64, MemoryKind::Program) }
    }

    /// Registers `length` bytes of the provider's memory, from `offset` on (`ibv_reg_mr_ex`).
    /// Memory of a dma-buf does not accept [`setup_iova`](Self::setup_iova).
    ///
    /// # Errors
    ///
    /// Fails if the buffer has fewer bytes or belongs to another domain, with
    /// [`AccessFlags::HugeTlb`], and as [`build`](Self::build) does.
    ///
    /// # References
    ///
    /// `man ibv_alloc_buf`
    pub fn build_of_buffer(
        &self,
        buffer: &ProviderBuffer,
        offset: usize,
        length: usize,
    ) -> Result<MemoryRegion, RegisterMemoryRegionError> {
        if buffer.pd().as_raw() != self.pd.as_raw() {
            return Err(RegisterMemoryRegionError::OtherDomain);
        }
        let ptr = buffer.range(offset, length)?;
        check_access(&self.pd, "the provider's memory", None, length, self.access)?;
        let mut attr =
            self.of_address(ptr, length, Mask::IBV_REG_MR_MASK_ADDR.0 | Mask::IBV_REG_MR_MASK_BUF.0);
        attr.buf = buffer.as_raw().as_ptr();
        // SAFETY: the buffer has these bytes, as was checked above, and the region keeps the buffer
        // alive.
        unsafe { self.register(attr, ptr, ptr.addr() as u64, MemoryKind::Provider(buffer)) }
    }

    /// Registers `length` bytes of a dma-buf, from `offset` on (`ibv_reg_mr_ex`).
    ///
    /// # Errors
    ///
    /// Fails as [`reg_dmabuf_mr`](ProtectionDomain::reg_dmabuf_mr) and [`build`](Self::build) do.
    ///
    /// # References
    ///
    /// `man ibv_reg_mr_ex`
    pub fn build_of_dmabuf(
        &self,
        fd: BorrowedFd<'_>,
        offset: u64,
        length: usize,
    ) -> Result<MemoryRegion, RegisterMemoryRegionError> {
        let mask =
            Mask::IBV_REG_MR_MASK_FD.0 | Mask::IBV_REG_MR_MASK_FD_OFFSET.0 | Mask::IBV_REG_MR_MASK_IOVA.0;
        let attr = ibv_mr_init_attr {
            length,
            comp_mask: mask.into(),
            iova: self.iova.unwrap_or(offset),
            fd: fd.as_raw_fd(),
            fd_offset: offset,
            ..ibv_mr_init_attr::default()
        };
        // SAFETY: the kernel keeps the memory allocated, and the borrow keeps the descriptor open
        // during the call.
        unsafe { self.register(attr, ptr::null_mut(), offset, MemoryKind::DmaBuf) }
    }

    fn of_address(&self, ptr: *mut u8, length: usize, mask: u32) -> ibv_mr_init_attr {
        let mut attr = ibv_mr_init_attr {
            length,
            comp_mask: mask.into(),
            addr: ptr.cast(),
            ..ibv_mr_init_attr::default()
        };
        if let Some(iova) = self.iova {
            attr.comp_mask |= u64::from(Mask::IBV_REG_MR_MASK_IOVA.0);
            attr.iova = iova;
        }
        attr
    }

    /// # Safety
    ///
    /// `attr` must be made by this builder, and the memory that it names must stay allocated until
    /// the region has been deregistered.
    unsafe fn register(
        &self,
        mut attr: ibv_mr_init_attr,
        ptr: *mut u8,
        own_iova: u64,
        kind: MemoryKind<'_>,
    ) -> Result<MemoryRegion, RegisterMemoryRegionError> {
        const VERB: &str = "ibv_reg_mr_ex";
        let (context, access) = (self.pd.context(), self.access);
        attr.access = flags(access);
        if let Some(dma_handle) = &self.dma_handle {
            if dma_handle.context() != context {
                return Err(RegisterMemoryRegionError::OtherContext);
            }
            attr.comp_mask |= u64::from(Mask::IBV_REG_MR_MASK_DMAH.0);
            attr.dmah = dma_handle.as_raw().as_ptr();
        }
        let register = context
            .provider()
            .verbs()
            .ibv_reg_mr_ex()
            .map_err(|symbol| Unsupported::missing(context, "regions as described", symbol))?;
        // SAFETY: the builder keeps domain and handle alive, and both belong to one context. The
        // caller guarantees the memory.
        let mr = unsafe { register(self.pd.as_raw().as_ptr(), &raw mut attr) };
        let asked =
            RegistrationRequest { ptr, len: attr.length, iova: self.iova.unwrap_or(own_iova), access, kind };
        // SAFETY: the library made the region just now.
        let mut region = unsafe { MemoryRegion::of_raw(&self.pd, mr, asked, VERB) }?;
        region.keeps.dma_handle.clone_from(&self.dma_handle);
        Ok(region)
    }
}
