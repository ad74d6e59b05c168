//! Memory regions: memory that a device may access, identified by a key.
//!
//! # Memory and its owner
//!
//! | memory | registered by | kept allocated by |
//! | --- | --- | --- |
//! | owned by the registration | [`reg_buffer`] | [`RegisteredBuffer`](crate::memory::RegisteredBuffer): safe |
//! | borrowed for one call | [`reg_mr_scoped`] | the borrow, because the registration ends with the closure: safe |
//! | at a raw address | [`reg_mr`], [`reg_mr_iova`] | the caller: unsafe |
//! | the whole address space, on demand | [`reg_mr_implicit`] | the caller: unsafe |
//! | of a dma-buf | [`reg_dmabuf_mr`] | the kernel: safe |
//! | on the device | [`reg_dm_mr`] | the [`DeviceMemory`] itself: safe |
//! | allocated by the provider | [`ProviderBuffer::reg_buf_mr`] | the [`ProviderBuffer`] itself: safe |
//! | none | [`alloc_null_mr`] | not needed: safe |
//!
//! A [`MemoryRegionBuilder`] takes further options of some of them, such as how the device accesses
//! the memory.
//!
//! A registration cannot have the lifetime of a borrow, because a value that borrows can be leaked
//! ([`std::mem::forget`]). The borrow would end nevertheless, and the device would continue to
//! write to memory that belongs to someone else. So borrowed memory is registered only for the
//! duration of a call.
//!
//! ```
//! # #[cfg(feature = "soft")] {
//! # use sideway::ibverbs::device::DeviceList;
//! use sideway::ibverbs::AccessFlags;
//!
//! # let devices = DeviceList::from_provider(sideway::soft::provider())?;
//! let pd = devices.first()?.open()?.alloc_pd()?;
//! let mut bytes = [0; 4096];
//! let key = pd.reg_mr_scoped(&mut bytes, AccessFlags::LocalWrite, |region| {
//!     // ... requests, and waiting for them ...
//!     region.lkey()
//! })?;
//! println!("the key {key:#x} is invalid now, and the bytes can be used again: {}", bytes[0]);
//!
//! // A region without memory: discards what is written and reads as zero.
//! let null = pd.alloc_null_mr()?;
//! println!("{:#x} is the key of {null:?}", null.lkey());
//! # }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Addresses
//!
//! Requests identify a byte of a region by a key and an address. The address of the first byte is
//! [`iova`](MemoryRegion::iova). It is the address in this process, unless the region was
//! registered with another one.
//!
//! [`reg_buffer`]: ProtectionDomain::reg_buffer
//! [`reg_mr_scoped`]: ProtectionDomain::reg_mr_scoped
//! [`reg_mr`]: ProtectionDomain::reg_mr
//! [`reg_mr_iova`]: ProtectionDomain::reg_mr_iova
//! [`reg_mr_implicit`]: ProtectionDomain::reg_mr_implicit
//! [`reg_dmabuf_mr`]: ProtectionDomain::reg_dmabuf_mr
//! [`reg_dm_mr`]: ProtectionDomain::reg_dm_mr
//! [`alloc_null_mr`]: ProtectionDomain::alloc_null_mr

mod advice;
mod change;
mod extended;
mod null;
mod register;
mod scoped;

pub use advice::{AdviseMemoryRegionFlags, MemoryRegionAdvice};
pub use change::{MemoryRegionChange, ReregisterMemoryRegionError, UnusableMemoryRegion};
pub use extended::MemoryRegionBuilder;
pub use null::NullMemoryRegion;
pub use register::RegisterMemoryRegionError;
pub(in crate::ibverbs) use register::RegistrationRequest;
pub(crate) use register::check_access;
pub(crate) use scoped::ScopedRegion;

use std::fmt;
use std::io;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

use rdma_mummy_sys::types::ibv_mr;

use super::AccessFlags;
use super::device_memory::DeviceMemory;
use super::dma_handle::DmaHandle;
use super::protection_domain::ProtectionDomain;
use super::provider_buffer::ProviderBuffer;
use crate::error::{ConsumeError, Error};

/// Memory that is registered with a device (`ibv_mr`).
///
/// Dropping it deregisters the memory. It does not own the memory:
/// [`reg_mr`](ProtectionDomain::reg_mr) states what the owner must guarantee.
pub struct MemoryRegion {
    mr: NonNull<ibv_mr>,
    ptr: *mut u8,
    len: usize,
    /// The address of the first byte in requests; 0 if the region is zero-based.
    iova: u64,
    access: AccessFlags,
    lkey: u32,
    rkey: u32,
    is_dma_buf: bool,
    pd: ProtectionDomain,
    keeps: KeptAlive,
}

/// Objects, other than its domain, that a region keeps alive.
#[derive(Clone, Default)]
struct KeptAlive {
    /// The device memory that was registered, if any.
    dm: Option<DeviceMemory>,
    /// The provider's memory that was registered, if any.
    buffer: Option<ProviderBuffer>,
    dma_handle: Option<DmaHandle>,
}

/// The kind of a region's memory.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum MemoryKind<'region> {
    /// Mapped in this process.
    Program,
    /// Memory of a dma-buf.
    DmaBuf,
    /// On the device. The region keeps it.
    Device(&'region DeviceMemory),
    /// Allocated by the provider. The region keeps it.
    Provider(&'region ProviderBuffer),
}

// SAFETY: the keys and the pointer are plain values, and only unsafe code dereferences the pointer.
// Deregistration is thread-safe in libibverbs.
unsafe impl Send for MemoryRegion {}
// SAFETY: a region is a pair of keys; the memory is only touched through raw pointers by unsafe
// code.
unsafe impl Sync for MemoryRegion {}

impl MemoryRegion {
    /// Wraps a dma-buf region that a vendor's function made.
    ///
    /// # Safety
    ///
    /// `mr` was made just now in this domain, with these attributes, and nothing else deregisters
    /// it.
    pub(crate) unsafe fn of_direct(
        mr: NonNull<ibv_mr>,
        pd: &ProtectionDomain,
        len: usize,
        iova: u64,
        access: AccessFlags,
    ) -> Self {
        // SAFETY: the caller guarantees that the region is alive; every release's struct has these
        // fields.
        let (lkey, rkey) = unsafe { ((*mr.as_ptr()).lkey, (*mr.as_ptr()).rkey) };
        let (ptr, is_dma_buf, keeps) = (std::ptr::null_mut(), true, KeptAlive::default());
        Self { mr, ptr, len, iova, access, lkey, rkey, pd: pd.clone(), is_dma_buf, keeps }
    }

    /// The key by which local work requests name the region.
    #[inline]
    pub fn lkey(&self) -> u32 {
        self.lkey
    }

    /// The key by which a peer's work requests name the region.
    #[inline]
    pub fn rkey(&self) -> u32 {
        self.rkey
    }

    /// The first byte of the region in this process's address space. Null for memory on the device
    /// or of a dma-buf, which this process has not mapped.
    #[inline]
    pub fn get_ptr(&self) -> *mut u8 {
        self.ptr
    }

    /// The address by which requests of both sides identify the first byte.
    #[inline]
    pub fn iova(&self) -> u64 {
        if self.access.contains(AccessFlags::ZeroBased) { 0 } else { self.iova }
    }

    /// The permissions with which it was registered.
    pub fn access(&self) -> AccessFlags {
        self.access
    }

    /// The kind of its memory.
    pub fn kind(&self) -> MemoryKind<'_> {
        match &self.keeps {
            KeptAlive { dm: Some(dm), .. } => MemoryKind::Device(dm),
            KeptAlive { buffer: Some(buffer), .. } => MemoryKind::Provider(buffer),
            _ if self.is_dma_buf => MemoryKind::DmaBuf,
            _ => MemoryKind::Program,
        }
    }

    /// The DMA handle with which it was registered, if any.
    pub fn dma_handle(&self) -> Option<&DmaHandle> {
        self.keeps.dma_handle.as_ref()
    }

    /// The length in bytes.
    #[inline]
    pub fn region_len(&self) -> usize {
        self.len
    }

    /// The protection domain that the region belongs to.
    pub fn pd(&self) -> &ProtectionDomain {
        &self.pd
    }

    /// The C object, for verbs that this crate does not wrap. Using it is as unsafe as in C; do not
    /// deregister it.
    pub fn as_raw(&self) -> NonNull<ibv_mr> {
        self.mr
    }

    /// Deregisters the memory now (`ibv_dereg_mr`), and returns the error that a drop would only
    /// log.
    ///
    /// # Errors
    ///
    /// Fails if the device did not release the memory. It stays registered, and the region comes
    /// back with the error: the memory must not be freed.
    pub fn close(self) -> Result<(), ConsumeError<Self>> {
        let region = ManuallyDrop::new(self);
        // SAFETY: `region` owns the registration, and is taken apart below only if this call
        // succeeded.
        let result = unsafe { region.deregister() };
        match result {
            Ok(()) => {
                // SAFETY: `region` is `ManuallyDrop`, so its own drop does not run, and these are
                // the only reads of the domain and of the kept objects.
                drop(unsafe {
                    (core::ptr::read(&raw const region.pd), core::ptr::read(&raw const region.keeps))
                });
                Ok(())
            }
            Err(source) => Err(ConsumeError {
                object: ManuallyDrop::into_inner(region),
                error: Error::os("ibv_dereg_mr", source).remedy("the memory stays registered"),
            }),
        }
    }

    /// # Safety
    ///
    /// The region must be alive. If this succeeds, the region is gone and must not be used again.
    unsafe fn deregister(&self) -> io::Result<()> {
        // SAFETY: the caller guarantees that the region is alive.
        super::check(unsafe { (self.pd.context().provider().verbs().ibv_dereg_mr)(self.mr.as_ptr()) })
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        // SAFETY: `self` owned the registration until here, and nothing uses it after the drop.
        if let Err(error) = unsafe { self.deregister() } {
            log::error!("ibv_dereg_mr failed, {} bytes at {:p} stay registered: {error}", self.len, self.ptr);
            // The library still has the region, so the objects that it depends on must stay alive
            // too.
            std::mem::forget((self.pd.clone(), self.keeps.clone()));
        }
    }
}

impl fmt::Debug for MemoryRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryRegion")
            .field("ptr", &self.ptr)
            .field("len", &self.len)
            .field("iova", &format_args!("{:#x}", self.iova()))
            .field("lkey", &format_args!("{:#x}", self.lkey))
            .field("rkey", &format_args!("{:#x}", self.rkey))
            .finish_non_exhaustive()
    }
}
