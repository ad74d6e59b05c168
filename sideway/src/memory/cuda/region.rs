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

/// GPU memory that a NIC, and a peer with its key, can access.
///
/// Dropping it ends the registration and frees the memory, in this order. If the NIC does not
/// release the memory, that is logged and the memory is leaked.
pub struct CudaRegion {
    mr: NonNull<ibv_mr>,
    lkey: u32,
    rkey: u32,
    pd: ManuallyDrop<ProtectionDomain>,
    buffer: ManuallyDrop<CudaBuffer>,
}

// SAFETY: the keys are plain values, and only the driver's copies access the memory.
unsafe impl Send for CudaRegion {}
// SAFETY: `&self` only reads plain values. Only the driver's copies access the memory, and copies
// into it need `&mut self`.
unsafe impl Sync for CudaRegion {}

impl CudaBuffer {
    /// Registers the memory with a NIC (`ibv_reg_dmabuf_mr`), and takes ownership of both. Work
    /// requests use its addresses on the GPU.
    ///
    /// # Errors
    ///
    /// Fails if the GPU's driver exports no dma-buf, or if the NIC's driver does not support it.
    /// The memory is freed.
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
        // SAFETY: the borrow keeps the domain alive, and the descriptor is open. It may be closed
        // afterwards, because the region holds a separate reference to the dma-buf.
        let mr = unsafe { register(pd.as_raw().as_ptr(), 0, self.len(), self.device_ptr(), fd, bits) };
        let Some(mr) = NonNull::new(mr) else {
            let source = io::Error::last_os_error();
            return Err(match Unsupported::is_meant_by(&source) {
                true => unsupported().into(),
                false => RegisterMemoryRegionError::Gpu { len: self.len(), access, source },
            });
        };
        // SAFETY: the library returned a live region, and every release's struct has these fields.
        let (lkey, rkey) = unsafe { ((*mr.as_ptr()).lkey, (*mr.as_ptr()).rkey) };
        let (pd, buffer) = (ManuallyDrop::new(pd.clone()), ManuallyDrop::new(self));
        Ok(CudaRegion { mr, lkey, rkey, pd, buffer })
    }
}

impl CudaRegion {
    /// The GPU memory, for reading.
    pub fn buffer(&self) -> &CudaBuffer {
        &self.buffer
    }

    /// The GPU memory, for copies into it.
    pub fn buffer_mut(&mut self) -> CudaRegionMut<'_> {
        CudaRegionMut(&mut self.buffer)
    }

    /// The address of the first byte in work requests of both sides.
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

/// The memory of a region, for copies into it; it cannot be replaced.
#[derive(Debug)]
pub struct CudaRegionMut<'region>(&'region mut CudaBuffer);

impl CudaRegionMut<'_> {
    /// See [`CudaBuffer::copy_from_slice`].
    ///
    /// # Errors
    ///
    /// Fails as that function does.
    pub fn copy_from_slice(&mut self, offset: usize, bytes: &[u8]) -> Result<(), CudaError> {
        self.0.copy_from_slice(offset, bytes)
    }

    /// See [`CudaBuffer::fill`].
    ///
    /// # Errors
    ///
    /// Fails as that function does.
    pub fn fill(&mut self, byte: u8) -> Result<(), CudaError> {
        self.0.fill(byte)
    }
}

impl Drop for CudaRegion {
    fn drop(&mut self) {
        let deregister = self.pd.context().provider().verbs().ibv_dereg_mr;
        // SAFETY: the region is alive until here, and nothing uses it after the drop.
        let result = unsafe { deregister(self.mr.as_ptr()) };
        match crate::ibverbs::check(result) {
            // SAFETY: the NIC has released the memory, and the drop uses the buffer no more.
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
