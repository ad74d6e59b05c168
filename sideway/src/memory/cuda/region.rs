//! GPU memory that is owned together with its registration.

use std::fmt;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;

use rdma_mummy_sys::types::ibv_mr;

use super::{CudaBuffer, CudaError};
use crate::ibverbs::memory_region::RegisterMemoryRegionError;
use crate::ibverbs::protection_domain::ProtectionDomain;
use crate::ibverbs::{AccessFlags, Unsupported};

/// A GPU's memory that a NIC, and with its key a peer, can reach.
///
/// Dropping it ends the registration and frees the memory, in this order; where the NIC does not let go of it, that is logged and
/// the memory is leaked.
pub struct CudaRegion {
    mr: NonNull<ibv_mr>,
    lkey: u32,
    rkey: u32,
    pd: ManuallyDrop<ProtectionDomain>,
    buffer: ManuallyDrop<CudaBuffer>,
}

// SAFETY: a region is a pair of keys; the memory is reached by the driver's copies only.
unsafe impl Send for CudaRegion {}
// SAFETY: a region is a pair of keys; the memory is reached by the driver's copies only; copies
// into it need `&mut`.
unsafe impl Sync for CudaRegion {}

impl CudaBuffer {
    /// Registers it with a NIC (`ibv_reg_dmabuf_mr`), and owns both from then on. Work requests name it by its addresses on the
    /// GPU.
    ///
    /// # Errors
    ///
    /// The GPU's driver exports no dma-buf, or the NIC's takes none. The memory is freed.
    ///
    /// # References
    ///
    /// `man ibv_reg_dmabuf_mr`
    pub fn register(
        self,
        pd: &ProtectionDomain,
        access: AccessFlags,
    ) -> Result<CudaRegion, RegisterMemoryRegionError> {
        let dma_buf = self.export()?;
        let context = pd.context();
        let unsupported = || Unsupported::new(context, "ibv_reg_dmabuf_mr", "registration of dma-bufs");
        let register = context
            .provider()
            .verbs()
            .ibv_reg_dmabuf_mr()
            .map_err(|symbol| Unsupported::missing(context, "registration of dma-bufs", symbol))?;
        let (fd, bits) = (dma_buf.fd.as_raw_fd(), access.bits().cast_signed());
        // SAFETY: the domain lives, and the descriptor is open. It may be closed afterwards: the region has its own hold of what it
        // stands for.
        let mr = unsafe { register(pd.as_raw().as_ptr(), 0, self.len(), self.device_ptr(), fd, bits) };
        let Some(mr) = NonNull::new(mr) else {
            let source = io::Error::last_os_error();
            return Err(match Unsupported::is_meant_by(&source) {
                true => unsupported().into(),
                false => RegisterMemoryRegionError::Gpu { len: self.len(), access, source },
            });
        };
        // SAFETY: the library returned a region; the fields are in every release's struct.
        let (lkey, rkey) = unsafe { ((*mr.as_ptr()).lkey, (*mr.as_ptr()).rkey) };
        let (pd, buffer) = (ManuallyDrop::new(pd.clone()), ManuallyDrop::new(self));
        Ok(CudaRegion { mr, lkey, rkey, pd, buffer })
    }
}

impl CudaRegion {
    /// The memory.
    pub fn buffer(&self) -> &CudaBuffer {
        &self.buffer
    }

    /// The memory, to be copied into.
    pub fn buffer_mut(&mut self) -> CudaRegionMut<'_> {
        CudaRegionMut(&mut self.buffer)
    }

    /// What work requests and peers name its first byte by.
    pub fn addr(&self) -> u64 {
        self.buffer.device_ptr()
    }

    /// The key for local work requests.
    pub fn lkey(&self) -> u32 {
        self.lkey
    }

    /// The key for a peer's work requests.
    pub fn rkey(&self) -> u32 {
        self.rkey
    }
}

/// The memory of a region, to be copied into; it cannot be exchanged for another.
#[derive(Debug)]
pub struct CudaRegionMut<'region>(&'region mut CudaBuffer);

impl CudaRegionMut<'_> {
    /// As [`CudaBuffer::copy_from_slice`].
    ///
    /// # Errors
    ///
    /// As that.
    pub fn copy_from_slice(&mut self, offset: usize, bytes: &[u8]) -> Result<(), CudaError> {
        self.0.copy_from_slice(offset, bytes)
    }

    /// As [`CudaBuffer::fill`].
    ///
    /// # Errors
    ///
    /// As that.
    pub fn fill(&mut self, byte: u8) -> Result<(), CudaError> {
        self.0.fill(byte)
    }
}

impl Drop for CudaRegion {
    fn drop(&mut self) {
        let deregister = self.pd.context().provider().verbs().ibv_dereg_mr;
        // SAFETY: the region lives until here.
        let result = unsafe { deregister(self.mr.as_ptr()) };
        match crate::ibverbs::check(result) {
            // SAFETY: the NIC has let go of the memory, and this is the drop.
            Ok(()) => unsafe {
                ManuallyDrop::drop(&mut self.buffer);
                ManuallyDrop::drop(&mut self.pd);
            },
            Err(error) => {
                log::error!("ibv_dereg_mr failed: {error}; {:?} stays registered and is leaked", self.buffer);
            }
        }
    }
}

impl fmt::Debug for CudaRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaRegion")
            .field("buffer", &*self.buffer)
            .field("lkey", &format_args!("{:#x}", self.lkey))
            .field("rkey", &format_args!("{:#x}", self.rkey))
            .finish_non_exhaustive()
    }
}
