//! GPU memory and its export as a dma-buf.

use std::ffi::{c_int, c_uint};
use std::fmt;
use std::os::fd::{FromRawFd, OwnedFd};

use super::driver::{Address, DMA_BUF_FD, SYNC_MEMOPS};
use super::{CudaDevice, CudaError};
use crate::memory::OutOfSlice;
use crate::memory::buffer::page_size;

/// Memory on a GPU. Dropping it frees it (`cuMemFree`).
pub struct CudaBuffer {
    device: CudaDevice,
    /// The address that the driver returned.
    allocated: Address,
    /// The first address in it that is aligned to a page of the host.
    start: Address,
    len: usize,
}

/// A dma-buf descriptor of GPU memory, for other drivers. Closing it releases the reference to the
/// memory.
#[derive(Debug)]
pub struct DmaBuf {
    /// The dma-buf descriptor.
    pub fd: OwnedFd,
    /// The length in bytes: the buffer's, rounded up to a whole page.
    pub len: usize,
}

impl CudaBuffer {
    pub(super) fn new(device: &CudaDevice, len: usize) -> Result<Self, CudaError> {
        let page = page_size();
        let pages = len.checked_next_multiple_of(page).filter(|pages| *pages > 0);
        // The driver aligns allocations to 256 bytes only, so one more page is allocated.
        let bytes = pages.and_then(|pages| pages.checked_add(page)).ok_or(CudaError::Length { len })?;
        let mut allocated = 0;
        // SAFETY: `allocated` is a local variable.
        device.call("cuMemAlloc", |driver| unsafe { (driver.mem_alloc)(&raw mut allocated, bytes) })?;
        let start = allocated.next_multiple_of(page as u64);
        let mut buffer = Self { device: device.clone(), allocated, start, len };
        // With this attribute, a copy is complete when its call returns. Without it, a NIC could
        // read memory before the GPU's own operations have finished.
        let yes: c_uint = 1;
        buffer.device.call("cuPointerSetAttribute", |driver| {
            // SAFETY: the value has the attribute's type, and `allocated` is the address of an
            // allocation.
            unsafe { (driver.pointer_set_attribute)((&raw const yes).cast(), SYNC_MEMOPS, allocated) }
        })?;
        // Cleared so that no peer gets data that another program left there: whole pages are
        // exported.
        buffer.set(0, pages.unwrap_or(len))?;
        Ok(buffer)
    }

    fn set(&mut self, byte: u8, len: usize) -> Result<(), CudaError> {
        let start = self.start;
        // SAFETY: the caller passes a range within the allocation.
        self.device.call("cuMemsetD8", |driver| unsafe { (driver.memset)(start, byte, len) })
    }

    /// The GPU that it is on.
    pub fn device(&self) -> &CudaDevice {
        &self.device
    }

    /// Its address on the GPU (`CUdeviceptr`), aligned to a page of the host. The CPU cannot access
    /// it.
    pub fn device_ptr(&self) -> u64 {
        self.start
    }

    /// The length in bytes, never 0.
    #[expect(clippy::len_without_is_empty, reason = "no buffer is empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The address of `len` bytes from `offset` on, if they are in the buffer.
    fn range(&self, offset: usize, len: usize) -> Result<Address, OutOfSlice> {
        if offset > self.len || len > self.len - offset {
            return Err(OutOfSlice { offset, len, limit: self.len });
        }
        Ok(self.start + offset as u64)
    }

    /// Copies bytes from the host to the buffer, from `offset` on (`cuMemcpyHtoD`).
    ///
    /// # Errors
    ///
    /// Fails if the buffer is too short; then nothing is copied. Also fails if the driver fails.
    pub fn copy_from_slice(&mut self, offset: usize, bytes: &[u8]) -> Result<(), CudaError> {
        let to = self.range(offset, bytes.len())?;
        if bytes.is_empty() {
            return Ok(());
        }
        // SAFETY: `bytes` is readable, and `range` checked that this length from `to` on is in the
        // allocation.
        self.device.call("cuMemcpyHtoD", |driver| unsafe {
            (driver.memcpy_to_device)(to, bytes.as_ptr().cast(), bytes.len())
        })
    }

    /// Copies bytes from the buffer to the host, from `offset` on (`cuMemcpyDtoH`).
    ///
    /// # Errors
    ///
    /// Fails if the buffer is too short; then nothing is copied. Also fails if the driver fails.
    pub fn copy_to_slice(&self, offset: usize, bytes: &mut [u8]) -> Result<(), CudaError> {
        let from = self.range(offset, bytes.len())?;
        if bytes.is_empty() {
            return Ok(());
        }
        // SAFETY: `bytes` is writable, and `range` checked that this length from `from` on is in
        // the allocation.
        self.device.call("cuMemcpyDtoH", |driver| unsafe {
            (driver.memcpy_to_host)(bytes.as_mut_ptr().cast(), from, bytes.len())
        })
    }

    /// Fills the whole buffer with a byte (`cuMemsetD8`).
    ///
    /// # Errors
    ///
    /// Fails if the driver fails.
    pub fn fill(&mut self, byte: u8) -> Result<(), CudaError> {
        self.set(byte, self.len)
    }

    /// Exports the buffer as a dma-buf descriptor (`cuMemGetHandleForAddressRange`), for example
    /// for `ibv_reg_dmabuf_mr`; [`register`](Self::register) does both. It covers whole pages of
    /// the host.
    ///
    /// # Errors
    ///
    /// Fails if the driver is too old, or does not support it for this GPU.
    ///
    /// # References
    ///
    /// CUDA Driver API, "Virtual Memory Management"; `man ibv_reg_dmabuf_mr`
    pub fn export(&self) -> Result<DmaBuf, CudaError> {
        let driver = self.device.driver();
        let export = driver.mem_get_handle.ok_or(CudaError::MissingSymbol {
            symbol: "cuMemGetHandleForAddressRange",
            since: "515 or later, CUDA 11.7",
        })?;
        if !self.device.exports_dma_bufs()? {
            let (ordinal, name) = (self.device.ordinal(), self.device.name()?);
            return Err(CudaError::NoDmaBuf { ordinal, name });
        }
        let len = self.len.next_multiple_of(page_size());
        let mut fd: c_int = -1;
        self.device.call("cuMemGetHandleForAddressRange", |_| {
            // SAFETY: this kind of handle is written as a descriptor, for which `fd` has room. The
            // pages belong to the allocation.
            unsafe { export((&raw mut fd).cast(), self.start, len, DMA_BUF_FD, 0) }
        })?;
        // SAFETY: the driver made the descriptor just now, and the caller must close it.
        Ok(DmaBuf { fd: unsafe { OwnedFd::from_raw_fd(fd) }, len })
    }
}

impl Drop for CudaBuffer {
    fn drop(&mut self) {
        // SAFETY: `allocate` allocated it, and only this line frees it.
        let freed = self.device.call("cuMemFree", |driver| unsafe { (driver.mem_free)(self.allocated) });
        if let Err(error) = freed {
            log::error!(
                "{} bytes of CUDA device {} stay allocated: {error}",
                self.len,
                self.device.ordinal()
            );
        }
    }
}

impl fmt::Debug for CudaBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CudaBuffer({:?}, {:#x}, {} bytes)", self.device, self.start, self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::super::driver::tests::{export_dma_bufs, exported, fail, fake, left};
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "the tables of the driver that is not there are leaked")]
    fn memory_begins_at_a_page_is_zeroed_and_keeps_its_bytes() {
        let device = CudaDevice::of(fake(), 1).unwrap();
        assert_eq!((device.ordinal(), device.name().unwrap().as_str()), (1, "a GPU"));
        for len in [1, 4096, 10_000] {
            let mut buffer = device.allocate(len).unwrap();
            assert_eq!((buffer.device_ptr() % page_size() as u64, buffer.len()), (0, len));
            let mut all = vec![1; len];
            buffer.copy_to_slice(0, &mut all).unwrap();
            assert!(all.iter().all(|byte| *byte == 0));
            buffer.fill(7).unwrap();
            buffer.copy_from_slice(len - 1, &[9]).unwrap();
            buffer.copy_from_slice(len, &[]).unwrap();
            let mut last = [0];
            buffer.copy_to_slice(len - 1, &mut last).unwrap();
            assert_eq!(last, [9]);
            let out = CudaError::OutOfBuffer(OutOfSlice { offset: len, len: 1, limit: len });
            assert_eq!(buffer.copy_from_slice(len, &[1]), Err(out.clone()));
            assert_eq!(buffer.copy_to_slice(len, &mut [1]), Err(out));
        }
        drop(device);
        assert_eq!(left(), (0, 0, 0));
    }

    #[test]
    #[cfg_attr(miri, ignore = "the tables of the driver that is not there are leaked")]
    fn whole_pages_are_exported() {
        let device = CudaDevice::of(fake(), 0).unwrap();
        let buffer = device.allocate(5000).unwrap();
        let dma_buf = buffer.export().unwrap();
        let pages = 5000_usize.next_multiple_of(page_size());
        assert_eq!((dma_buf.len, exported()), (pages, Some((buffer.device_ptr(), pages))));
        export_dma_bufs(false);
        let error = buffer.export().unwrap_err();
        assert_eq!(error, CudaError::NoDmaBuf { ordinal: 0, name: "a GPU".to_owned() });
        assert!(error.to_string().contains("open kernel modules"), "{error}");
        drop((buffer, device));
        assert_eq!(left(), (0, 0, 0));
    }

    #[test]
    #[cfg_attr(miri, ignore = "the tables of the driver that is not there are leaked")]
    fn every_call_that_fails_is_named_and_leaves_nothing() {
        let calls = [
            "cuDeviceGetCount",
            "cuDeviceGet",
            "cuDevicePrimaryCtxRetain",
            "cuCtxPushCurrent",
            "cuMemAlloc",
            "cuPointerSetAttribute",
            "cuMemsetD8",
            "cuMemcpyHtoD",
            "cuMemcpyDtoH",
            "cuDeviceGetName",
            "cuDeviceGetAttribute",
            "cuMemGetHandleForAddressRange",
        ];
        for call in calls {
            let driver = fake();
            fail(call, 2);
            let everything = || {
                let device = CudaDevice::of(driver, 0)?;
                let mut buffer = device.allocate(4096)?;
                buffer.copy_from_slice(0, &[1])?;
                buffer.copy_to_slice(0, &mut [1])?;
                device.name()?;
                buffer.export()
            };
            let error = everything().unwrap_err();
            let CudaError::Driver { call: failed, result: 2, name, .. } = &error else { panic!("{error}") };
            assert_eq!((*failed, name.as_str()), (call, "CUDA_ERROR_OUT_OF_MEMORY"));
            assert!(error.to_string().contains("used up"), "{error}");
            assert_eq!(left(), (0, 0, 0), "{call}");
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "the tables of the driver that is not there are leaked")]
    fn rejects_impossible_arguments_before_calling_the_driver() {
        let driver = fake();
        let error = CudaDevice::of(driver, 2).unwrap_err();
        assert_eq!(error, CudaError::NoSuchDevice { ordinal: 2, count: 2 });
        let device = CudaDevice::of(driver, 0).unwrap();
        for len in [0, usize::MAX, usize::MAX - page_size()] {
            assert_eq!(device.allocate(len).unwrap_err(), CudaError::Length { len });
        }
    }
}
