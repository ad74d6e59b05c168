//! Provider buffers: memory that the device's provider allocates (`ibv_alloc_buf`).
//!
//! Most providers accept any memory. In a confidential virtual machine the device can reach only
//! the part that is not encrypted, and the provider allocates from that part.
//!
//! ```
//! # #[cfg(feature = "soft")]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use sideway::ibverbs::AccessFlags;
//! use sideway::ibverbs::device::DeviceList;
//!
//! # let list = DeviceList::from_provider(sideway::soft::provider())?;
//! let pd = list.first()?.open()?.alloc_pd()?;
//! let buffer = pd.alloc_buf(1 << 20)?;
//! let region = buffer.reg_buf_mr(4096, 8192, AccessFlags::LocalWrite | AccessFlags::RemoteRead)?;
//! assert_eq!(region.get_ptr(), buffer.as_ptr().wrapping_add(4096));
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "soft"))]
//! # fn main() {}
//! ```

use std::fmt;
use std::io;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use rdma_mummy_sys::types::ibv_buf;

use super::memory_region::{
    MemoryKind, MemoryRegion, RegisterMemoryRegionError, RegistrationRequest, check_access,
};
use super::protection_domain::ProtectionDomain;
use super::{AccessFlags, Unsupported};
use crate::error::Error;

const WHAT: &str = "memory of its provider's choice";

/// Memory that the provider allocated (`ibv_buf`).
///
/// Clones refer to the same memory. It is freed (`ibv_free_buf`) when the last clone and the last
/// region of it are dropped.
#[derive(Clone)]
pub struct ProviderBuffer(Arc<Inner>);

struct Inner {
    buf: NonNull<ibv_buf>,
    start: NonNull<u8>,
    len: usize,
    pd: ProtectionDomain,
}

// SAFETY: only a raw pointer to the memory is handed out. The C object is used for registrations
// only, which are thread-safe in libibverbs.
unsafe impl Send for Inner {}
// SAFETY: only a raw pointer to the memory is handed out. The C object is used for registrations
// only, which are thread-safe in libibverbs.
unsafe impl Sync for Inner {}

impl ProtectionDomain {
    /// Allocates `len` bytes of the provider's memory, for regions in this domain
    /// (`ibv_alloc_buf`).
    ///
    /// # Errors
    ///
    /// Fails if less memory is left, or if `len` is 0. Fails as [`Unsupported`] if the device has
    /// no such memory, or if the library is older than rdma-core 64.
    ///
    /// # References
    ///
    /// `man ibv_alloc_buf`
    pub fn alloc_buf(&self, len: usize) -> Result<ProviderBuffer, Error> {
        let (context, lib) = (self.context(), self.context().provider().verbs());
        let alloc = lib.ibv_alloc_buf().map_err(|symbol| Unsupported::missing(context, WHAT, symbol))?;
        // Without `ibv_free_buf` the memory could never be freed.
        lib.ibv_free_buf().map_err(|symbol| Unsupported::missing(context, WHAT, symbol))?;
        let mut buf = ptr::null_mut();
        // SAFETY: `self` keeps the domain alive, and `buf` is a local variable.
        let start = unsafe { alloc(self.as_raw().as_ptr(), len, &raw mut buf) };
        match (NonNull::new(start.cast()), NonNull::new(buf)) {
            (Some(start), Some(buf)) => {
                Ok(ProviderBuffer(Arc::new(Inner { buf, start, len, pd: self.clone() })))
            }
            _ => {
                Err(Error::of_device(context, "ibv_alloc_buf", WHAT, io::Error::last_os_error())
                    .with("len", len))
            }
        }
    }
}

impl ProviderBuffer {
    /// The first byte. The pointer is valid for all of the memory, as long as a handle or a region
    /// of it exists.
    #[inline]
    pub fn as_ptr(&self) -> *mut u8 {
        self.0.start.as_ptr()
    }

    /// The length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "no provider allocates nothing")]
    #[inline]
    pub fn len(&self) -> usize {
        self.0.len
    }

    /// The protection domain in which it was allocated, and to which its regions belong.
    pub fn pd(&self) -> &ProtectionDomain {
        &self.0.pd
    }

    /// The C object, for verbs that this crate does not wrap. Using it is as unsafe as in C; do not
    /// free it.
    pub fn as_raw(&self) -> NonNull<ibv_buf> {
        self.0.buf
    }

    /// The address of `length` bytes from `offset` on, if the buffer has them.
    pub(super) fn range(&self, offset: usize, length: usize) -> Result<*mut u8, RegisterMemoryRegionError> {
        let buffer_len = self.len();
        match offset.checked_add(length) {
            Some(end) if end <= buffer_len => Ok(self.as_ptr().wrapping_add(offset)),
            _ => Err(RegisterMemoryRegionError::OutOfBuffer { offset, length, buffer_len }),
        }
    }

    /// Registers `length` bytes of the memory, from `offset` on (`ibv_reg_buf_mr`).
    ///
    /// It is safe because the region keeps the memory, to which this crate makes no Rust reference.
    /// A program that makes one from [`as_ptr`](Self::as_ptr) must guarantee that no device writes
    /// there while the reference exists.
    ///
    /// # Errors
    ///
    /// Fails if the memory has fewer bytes, if the device refuses, or if the library is older than
    /// rdma-core 64 ([`Unsupported`]). Fails with [`AccessFlags::HugeTlb`], because the provider's
    /// memory need not lie on huge pages, and as [`reg_buffer`](ProtectionDomain::reg_buffer) does
    /// with [`AccessFlags::OnDemand`].
    ///
    /// # References
    ///
    /// `man ibv_reg_buf_mr`
    pub fn reg_buf_mr(
        &self,
        offset: usize,
        length: usize,
        access: AccessFlags,
    ) -> Result<MemoryRegion, RegisterMemoryRegionError> {
        let (pd, ptr) = (self.pd(), self.range(offset, length)?);
        check_access(pd, "the provider's memory", None, length, access)?;
        let register = pd.context().provider().verbs().ibv_reg_buf_mr();
        let register = register.map_err(|symbol| Unsupported::missing(pd.context(), WHAT, symbol))?;
        let (raw, bits) = (pd.as_raw().as_ptr(), access.bits().cast_signed());
        // SAFETY: `self` keeps the domain and its buffer alive, and `range` checked that the buffer
        // has these bytes.
        let mr = unsafe { register(raw, self.as_raw().as_ptr(), ptr.cast(), length, bits) };
        let (iova, kind) = (ptr.addr() as u64, MemoryKind::Provider(self));
        // SAFETY: the library made the region just now, or returned null.
        unsafe {
            MemoryRegion::of_raw(
                pd,
                mr,
                RegistrationRequest { ptr, len: length, iova, access, kind },
                "ibv_reg_buf_mr",
            )
        }
    }
}

impl PartialEq for ProviderBuffer {
    /// Whether both refer to the same memory.
    fn eq(&self, other: &Self) -> bool {
        self.0.buf == other.0.buf
    }
}

impl Eq for ProviderBuffer {}

impl fmt::Debug for ProviderBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProviderBuffer")
            .field("start", &self.0.start)
            .field("len", &self.0.len)
            .finish_non_exhaustive()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        match self.pd.context().provider().verbs().ibv_free_buf() {
            // SAFETY: the memory is alive until here. Every region of it held this `Inner` and is
            // gone.
            Ok(free) => unsafe { free(self.buf.as_ptr()) },
            // Not expected: `alloc_buf` checked that the function exists.
            Err(error) => log::error!("{} bytes of the provider's memory stay: {error}", self.len),
        }
    }
}
