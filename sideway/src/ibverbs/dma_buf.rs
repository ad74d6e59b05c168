//! Export as dma-buf: gives device memory or provider-allocated memory to another device or
//! process.
//!
//! The owner of the descriptor can register it
//! ([`reg_dmabuf_mr`](super::protection_domain::ProtectionDomain::reg_dmabuf_mr)) or pass it on.
//! The memory stays allocated while the descriptor, or anything made from it, is open.

use std::ffi::c_int;
use std::os::fd::{FromRawFd, OwnedFd};

use super::Unsupported;
use super::device_context::DeviceContext;
use super::device_memory::DeviceMemory;
use super::provider_buffer::ProviderBuffer;
use crate::error::Error;

impl DeviceMemory {
    /// Exports all of the memory as a dma-buf (`ibv_dm_export_dmabuf_fd`).
    ///
    /// # Errors
    ///
    /// Fails if the device cannot export, or if the library is older than rdma-core 62
    /// ([`Unsupported`]).
    ///
    /// # References
    ///
    /// `man ibv_dm_export_dmabuf_fd`
    pub fn export_dmabuf_fd(&self) -> Result<OwnedFd, Error> {
        const WHAT: &str = "dma-bufs of device memory";
        let export = self.context().provider().verbs().ibv_dm_export_dmabuf_fd();
        let export = export.map_err(|symbol| Unsupported::missing(self.context(), WHAT, symbol))?;
        // SAFETY: `self` keeps the memory alive.
        let fd = unsafe { export(self.as_raw().as_ptr()) };
        // SAFETY: the library made the descriptor just now, and the caller closes it.
        unsafe { owned(self.context(), fd, "ibv_dm_export_dmabuf_fd", WHAT) }
    }
}

impl ProviderBuffer {
    /// Exports all of the memory as a dma-buf (`ibv_export_buf_dmabuf_fd`).
    ///
    /// # Errors
    ///
    /// Fails if the memory does not belong to a dma-buf, or if the library is older than rdma-core
    /// 65 ([`Unsupported`]).
    ///
    /// # References
    ///
    /// `man ibv_export_buf_dmabuf_fd`
    pub fn export_dmabuf_fd(&self) -> Result<OwnedFd, Error> {
        const VERB: &str = "ibv_export_buf_dmabuf_fd";
        const WHAT: &str = "dma-bufs of its provider's memory";
        let context = self.pd().context();
        let export = context.provider().verbs().ibv_export_buf_dmabuf_fd();
        let export = export.map_err(|symbol| Unsupported::missing(context, WHAT, symbol))?;
        // SAFETY: `self` keeps the memory alive.
        let fd = unsafe { export(self.as_raw().as_ptr()) };
        // SAFETY: the library made the descriptor just now, and nobody else owns it.
        unsafe { owned(context, fd, VERB, WHAT) }.map_err(|error| match error.errno() {
            // The memory is not of a dma-buf.
            Some(libc::ENODATA) => Unsupported::new(context, VERB, WHAT).into(),
            _ => error,
        })
    }
}

/// # Safety
///
/// `fd`, unless negative, must be an open descriptor that the caller owns.
unsafe fn owned(
    context: &DeviceContext,
    fd: c_int,
    verb: &'static str,
    what: &'static str,
) -> Result<OwnedFd, Error> {
    if fd >= 0 {
        // SAFETY: the caller guarantees (`# Safety`) that the descriptor, if it is one, belongs to
        // the caller.
        return Ok(unsafe { OwnedFd::from_raw_fd(fd) });
    }
    let source = super::os_error(fd);
    Err(Error::of_device(context, verb, what, source))
}
