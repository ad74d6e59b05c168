//! Memory regions: memory that a device may reach, under a key.
//!
//! # Whose memory
//!
//! | memory | registered by | who keeps it there |
//! | --- | --- | --- |
//! | that the registration owns | [`reg_buffer`] | [`RegisteredBuffer`](crate::memory::RegisteredBuffer): safe |
//! | that is borrowed for a while | [`reg_mr_scoped`] | a closure, at whose end the registration has ended: safe |
//! | at a raw address | [`reg_mr`], [`reg_mr_iova`] | the caller: unsafe |
//! | all of the address space, on demand | [`reg_mr_implicit`] | the caller: unsafe |
//! | a dma-buf's | [`reg_dmabuf_mr`] | the kernel: safe |
//! | on the device | [`reg_dm_mr`] | the [`DeviceMemory`] itself: safe |
//! | that the provider allocated | [`ProviderBuffer::reg_buf_mr`] | the [`ProviderBuffer`] itself: safe |
//! | none | [`alloc_null_mr`] | nobody: safe |
//!
//! What else can be said of some of them, how the device is to access them above all, is said to a [`MemoryRegionBuilder`].
//!
//! There is no registration with the lifetime of a borrow: a value that borrows can be leaked ([`std::mem::forget`]), the
//! borrow would end all the same, and the device would go on writing to what has become somebody else's memory. So what is
//! borrowed is registered for the time of a call.
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
//! println!("{key:#x} is no key any more, and the bytes are ours again: {}", bytes[0]);
//!
//! // Bytes that nobody wants, or zeroes from nowhere: no memory at all.
//! let null = pd.alloc_null_mr()?;
//! println!("{:#x} is the key of {null:?}", null.lkey());
//! # }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Names for a byte
//!
//! Requests name a byte of a region by a key and an address. The address of the first byte is [`iova`](MemoryRegion::iova): that in
//! this process's address space, unless the region was registered with another one.
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
/// Dropping it deregisters the memory. It does not own the memory: see
/// [`reg_mr`](ProtectionDomain::reg_mr) for what its owner promises.
pub struct MemoryRegion {
    mr: NonNull<ibv_mr>,
    ptr: *mut u8,
    len: usize,
    /// Of the first byte, unless the region is zero-based.
    iova: u64,
    access: AccessFlags,
    lkey: u32,
    rkey: u32,
    is_dma_buf: bool,
    pd: ProtectionDomain,
    keeps: KeptAlive,
}

/// What a region keeps alive besides its domain.
#[derive(Clone, Default)]
struct KeptAlive {
    /// Where the memory is, if that is on the device.
    dm: Option<DeviceMemory>,
    /// Where it is, if the provider has allocated it.
    buffer: Option<ProviderBuffer>,
    dma_handle: Option<DmaHandle>,
}

/// What a region's memory is.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum MemoryKind<'region> {
    /// Mapped in this process.
    Program,
    /// A dma-buf's.
    DmaBuf,
    /// On the device. The region keeps it.
    Device(&'region DeviceMemory),
    /// Allocated by the provider. The region keeps it.
    Provider(&'region ProviderBuffer),
}

// SAFETY: a region is a pair of keys; the memory is only touched through raw pointers by unsafe code.
unsafe impl Send for MemoryRegion {}
// SAFETY: a region is a pair of keys; the memory is only touched through raw pointers by unsafe
// code.
unsafe impl Sync for MemoryRegion {}

impl MemoryRegion {
    /// A region of a dma-buf that a plug-in of direct verbs has made.
    ///
    /// # Safety
    ///
    /// `mr` was made just now in this domain, with these attributes, and nothing else deregisters it.
    #[cfg(feature = "mlx5")]
    pub(crate) unsafe fn of_direct(
        mr: NonNull<ibv_mr>,
        pd: &ProtectionDomain,
        len: usize,
        iova: u64,
        access: AccessFlags,
    ) -> Self {
        // SAFETY: the caller gives a region that lives; the fields are in every release's struct.
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

    /// The first byte of the region, in this process's address space; null if it is not there: memory on the device, or a dma-buf's.
    #[inline]
    pub fn get_ptr(&self) -> *mut u8 {
        self.ptr
    }

    /// The address by which requests, this side's and a peer's, name the first byte.
    #[inline]
    pub fn iova(&self) -> u64 {
        if self.access.contains(AccessFlags::ZeroBased) { 0 } else { self.iova }
    }

    /// The permissions that it was registered with.
    pub fn access(&self) -> AccessFlags {
        self.access
    }

    /// What its memory is.
    pub fn kind(&self) -> MemoryKind<'_> {
        match &self.keeps {
            KeptAlive { dm: Some(dm), .. } => MemoryKind::Device(dm),
            KeptAlive { buffer: Some(buffer), .. } => MemoryKind::Provider(buffer),
            _ if self.is_dma_buf => MemoryKind::DmaBuf,
            _ => MemoryKind::Program,
        }
    }

    /// The handle that says how its memory is accessed, if it was registered with one.
    pub fn dma_handle(&self) -> Option<&DmaHandle> {
        self.keeps.dma_handle.as_ref()
    }

    /// How long the region is, in bytes.
    #[inline]
    pub fn region_len(&self) -> usize {
        self.len
    }

    /// The domain that the region belongs to.
    pub fn pd(&self) -> &ProtectionDomain {
        &self.pd
    }

    /// The C object. Using it is as unsafe as in C, and it must not be deregistered.
    pub fn as_raw(&self) -> NonNull<ibv_mr> {
        self.mr
    }

    /// Deregisters the memory now (`ibv_dereg_mr`), and says how that went, which a drop only logs.
    ///
    /// # Errors
    ///
    /// The device did not let go of the memory. It stays registered, and the region comes back with the
    /// error: the memory must not be freed.
    pub fn close(self) -> Result<(), ConsumeError<Self>> {
        let region = ManuallyDrop::new(self);
        // SAFETY: the region lives, and is taken apart below only if this succeeded.
        let result = unsafe { region.deregister() };
        match result {
            Ok(()) => {
                // SAFETY: the region's own drop does not run, so these are the only ones of the handles of the domain and of
                // what is kept.
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
    /// The region lives; if this succeeds it does not any more.
    unsafe fn deregister(&self) -> io::Result<()> {
        // SAFETY: the caller says that the region lives.
        super::check(unsafe { (self.pd.context().provider().verbs().ibv_dereg_mr)(self.mr.as_ptr()) })
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        // SAFETY: the region lives until here.
        if let Err(error) = unsafe { self.deregister() } {
            log::error!("ibv_dereg_mr failed, {} bytes at {:p} stay registered: {error}", self.len, self.ptr);
            // The region is still there, so what it depends on has to stay.
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
