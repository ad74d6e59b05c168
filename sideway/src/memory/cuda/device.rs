//! A GPU.

use std::ffi::{CStr, c_char, c_int};
use std::fmt;
use std::sync::Arc;

use super::driver::{Context, DMA_BUF_SUPPORTED, Driver};
use super::{CudaBuffer, CudaError};

/// A GPU, by way of CUDA's driver. It uses the device's primary context, which CUDA's runtime uses as well: what is allocated
/// here can be given to kernels, and so on.
///
/// A handle: clones stand for the same device. Calls leave the thread's current context as it was.
#[derive(Clone)]
pub struct CudaDevice(Arc<Inner>);

struct Inner {
    driver: &'static Driver,
    ordinal: u32,
    device: c_int,
    context: Context,
}

// SAFETY: a context may be used by any thread, by several at a time; it is made current for each call.
unsafe impl Send for Inner {}
// SAFETY: a context may be used by any thread, by several at a time; it is made current for each
// call.
unsafe impl Sync for Inner {}

impl CudaDevice {
    /// Opens a GPU by its number, from 0, as the driver counts them (`cuDeviceGet`, `cuDevicePrimaryCtxRetain`).
    ///
    /// # Errors
    ///
    /// There is no driver, no GPU, or none of that number.
    pub fn open(ordinal: u32) -> Result<Self, CudaError> {
        Self::of(Driver::load()?, ordinal)
    }

    pub(super) fn of(driver: &'static Driver, ordinal: u32) -> Result<Self, CudaError> {
        let count = count(driver)?;
        if ordinal >= count {
            return Err(CudaError::NoSuchDevice { ordinal, count });
        }
        let (mut device, mut context) = (0, std::ptr::null_mut());
        // SAFETY: the driver is initialised, and the place is this function's own.
        let result = unsafe { (driver.device_get)(&raw mut device, ordinal.cast_signed()) };
        driver.check("cuDeviceGet", result)?;
        // SAFETY: the driver is initialised, and the place is this function's own.
        let result = unsafe { (driver.primary_ctx_retain)(&raw mut context, device) };
        driver.check("cuDevicePrimaryCtxRetain", result)?;
        Ok(Self(Arc::new(Inner { driver, ordinal, device, context })))
    }

    /// How many GPUs there are (`cuDeviceGetCount`).
    ///
    /// # Errors
    ///
    /// There is no driver, or it finds none.
    pub fn count() -> Result<u32, CudaError> {
        count(Driver::load()?)
    }

    /// Its number.
    pub fn ordinal(&self) -> u32 {
        self.0.ordinal
    }

    /// Its name (`cuDeviceGetName`).
    ///
    /// # Errors
    ///
    /// The driver does not answer.
    pub fn name(&self) -> Result<String, CudaError> {
        let mut name: [c_char; 256] = [0; 256];
        // SAFETY: the device is there, and the place has so many bytes; the last one stays 0.
        let result = unsafe { (self.0.driver.device_get_name)(name.as_mut_ptr(), 255, self.0.device) };
        self.check("cuDeviceGetName", result)?;
        // SAFETY: it ends with a 0, at the latest with its last byte.
        Ok(unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned())
    }

    /// Whether memory can be handed on as a dma-buf (`CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED`).
    ///
    /// # Errors
    ///
    /// The driver does not answer.
    pub fn exports_dma_bufs(&self) -> Result<bool, CudaError> {
        let Inner { driver, device, .. } = &*self.0;
        let mut can = 0;
        // SAFETY: the device is there, and the place is this function's own.
        let result = unsafe { (driver.device_get_attribute)(&raw mut can, DMA_BUF_SUPPORTED, *device) };
        // Drivers from before CUDA 11.7 do not know the question.
        if driver.mem_get_handle.is_none() {
            return Ok(false);
        }
        self.check("cuDeviceGetAttribute", result)?;
        Ok(can != 0)
    }

    /// Allocates zeroed memory of the GPU (`cuMemAlloc`): at least one byte. It begins at a page of the host's, as dma-bufs do.
    ///
    /// # Errors
    ///
    /// The GPU has not so much left, or `len` is 0.
    pub fn allocate(&self, len: usize) -> Result<CudaBuffer, CudaError> {
        CudaBuffer::new(self, len)
    }

    pub(super) fn driver(&self) -> &'static Driver {
        self.0.driver
    }

    pub(super) fn check(&self, call: &'static str, result: super::driver::Result) -> Result<(), CudaError> {
        self.0.driver.check(call, result)
    }

    /// Makes a call while the device's context is this thread's current one.
    pub(super) fn call(
        &self,
        name: &'static str,
        does: impl FnOnce(&Driver) -> super::driver::Result,
    ) -> Result<(), CudaError> {
        let driver = self.0.driver;
        // SAFETY: the context is retained.
        self.check("cuCtxPushCurrent", unsafe { (driver.ctx_push)(self.0.context) })?;
        let result = does(driver);
        let mut popped = std::ptr::null_mut();
        // SAFETY: it was pushed above.
        let pop = unsafe { (driver.ctx_pop)(&raw mut popped) };
        self.check(name, result)?;
        self.check("cuCtxPopCurrent", pop)
    }
}

fn count(driver: &Driver) -> Result<u32, CudaError> {
    let mut count = 0;
    // SAFETY: the driver is initialised, and the place is this function's own.
    driver.check("cuDeviceGetCount", unsafe { (driver.device_get_count)(&raw mut count) })?;
    Ok(u32::try_from(count).unwrap_or(0))
}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: it was retained, and everything that uses it held this.
        let result = unsafe { (self.driver.primary_ctx_release)(self.device) };
        if let Err(error) = self.driver.check("cuDevicePrimaryCtxRelease", result) {
            log::error!("CUDA device {} stays in use: {error}", self.ordinal);
        }
    }
}

impl fmt::Debug for CudaDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CudaDevice({})", self.0.ordinal)
    }
}
