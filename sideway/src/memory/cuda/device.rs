//! A GPU, accessed through the CUDA driver.

use std::ffi::{CStr, c_char, c_int};
use std::fmt;
use std::sync::Arc;

use super::driver::{Context, DMA_BUF_SUPPORTED, Driver};
use super::{CudaBuffer, CudaError};

/// A GPU, accessed through the CUDA driver. It uses the device's primary context, like the CUDA
/// runtime, so that memory allocated here can be passed to kernels.
///
/// Clones refer to the same device. Calls leave the thread's current context unchanged.
#[derive(Clone)]
pub struct CudaDevice(Arc<Inner>);

struct Inner {
    driver: &'static Driver,
    ordinal: u32,
    device: c_int,
    context: Context,
}

// SAFETY: CUDA allows a context in several threads at a time; each call makes it current first.
unsafe impl Send for Inner {}
// SAFETY: CUDA allows a context in several threads at a time; each call makes it current first.
unsafe impl Sync for Inner {}

impl CudaDevice {
    /// Opens a GPU by the driver's number for it, from 0 (`cuDeviceGet`,
    /// `cuDevicePrimaryCtxRetain`).
    ///
    /// # Errors
    ///
    /// Fails if there is no driver, no GPU, or no GPU with this number.
    pub fn open(ordinal: u32) -> Result<Self, CudaError> {
        Self::of(Driver::load()?, ordinal)
    }

    pub(super) fn of(driver: &'static Driver, ordinal: u32) -> Result<Self, CudaError> {
        let count = count(driver)?;
        if ordinal >= count {
            return Err(CudaError::NoSuchDevice { ordinal, count });
        }
        let (mut device, mut context) = (0, std::ptr::null_mut());
        // SAFETY: the driver is initialised, and `device` is a local variable.
        let result = unsafe { (driver.device_get)(&raw mut device, ordinal.cast_signed()) };
        driver.check("cuDeviceGet", result)?;
        // SAFETY: the driver returned the device just now, and `context` is a local variable.
        let result = unsafe { (driver.primary_ctx_retain)(&raw mut context, device) };
        driver.check("cuDevicePrimaryCtxRetain", result)?;
        Ok(Self(Arc::new(Inner { driver, ordinal, device, context })))
    }

    /// The number of GPUs (`cuDeviceGetCount`).
    ///
    /// # Errors
    ///
    /// Fails if there is no driver, or if it finds no GPU.
    pub fn count() -> Result<u32, CudaError> {
        count(Driver::load()?)
    }

    /// The driver's number for the GPU, from 0.
    pub fn ordinal(&self) -> u32 {
        self.0.ordinal
    }

    /// The GPU's name (`cuDeviceGetName`).
    ///
    /// # Errors
    ///
    /// Fails if the driver does not answer.
    pub fn name(&self) -> Result<String, CudaError> {
        let mut name: [c_char; 256] = [0; 256];
        // SAFETY: the device exists, and `name` has more than 255 bytes, so that the last one stays
        // 0.
        let result = unsafe { (self.0.driver.device_get_name)(name.as_mut_ptr(), 255, self.0.device) };
        self.check("cuDeviceGetName", result)?;
        // SAFETY: the last byte of `name` is 0, so the string is terminated.
        Ok(unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned())
    }

    /// Whether memory can be exported as a dma-buf (`CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED`).
    ///
    /// # Errors
    ///
    /// Fails if the driver does not answer.
    pub fn exports_dma_bufs(&self) -> Result<bool, CudaError> {
        let Inner { driver, device, .. } = &*self.0;
        let mut can = 0;
        // SAFETY: the device exists, and `can` is a local variable.
        let result = unsafe { (driver.device_get_attribute)(&raw mut can, DMA_BUF_SUPPORTED, *device) };
        // Drivers before CUDA 11.7 do not know the attribute.
        if driver.mem_get_handle.is_none() {
            return Ok(false);
        }
        self.check("cuDeviceGetAttribute", result)?;
        Ok(can != 0)
    }

    /// Allocates at least one byte of zeroed GPU memory (`cuMemAlloc`). It is aligned to a page of
    /// the host, as dma-bufs require.
    ///
    /// # Errors
    ///
    /// Fails if the GPU has less memory left, or if `len` is 0.
    pub fn allocate(&self, len: usize) -> Result<CudaBuffer, CudaError> {
        CudaBuffer::new(self, len)
    }

    pub(super) fn driver(&self) -> &'static Driver {
        self.0.driver
    }

    pub(super) fn check(&self, call: &'static str, result: super::driver::Result) -> Result<(), CudaError> {
        self.0.driver.check(call, result)
    }

    /// Makes a call while the device's context is the thread's current one.
    pub(super) fn call(
        &self,
        name: &'static str,
        does: impl FnOnce(&Driver) -> super::driver::Result,
    ) -> Result<(), CudaError> {
        let driver = self.0.driver;
        // SAFETY: `self` retains the context.
        self.check("cuCtxPushCurrent", unsafe { (driver.ctx_push)(self.0.context) })?;
        let result = does(driver);
        let mut popped = std::ptr::null_mut();
        // SAFETY: the context was pushed above, and `popped` is a local variable.
        let pop = unsafe { (driver.ctx_pop)(&raw mut popped) };
        self.check(name, result)?;
        self.check("cuCtxPopCurrent", pop)
    }
}

fn count(driver: &Driver) -> Result<u32, CudaError> {
    let mut count = 0;
    // SAFETY: the driver is initialised, and `count` is a local variable.
    driver.check("cuDeviceGetCount", unsafe { (driver.device_get_count)(&raw mut count) })?;
    Ok(u32::try_from(count).unwrap_or(0))
}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: `open` retained the context. Everything that uses it held this object and is
        // gone.
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
