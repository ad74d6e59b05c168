//! Memory that the device's provider allocates, as it likes it best.
//!
//! Most providers like any memory. One that runs where the device reaches only some of it (a confidential virtual machine, whose memory
//! is encrypted for all but what was set aside) gives what the device reaches.
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

use super::memory_region::{MemoryKind, MemoryRegion, RegisterMemoryRegionError, RegistrationRequest};
use super::protection_domain::ProtectionDomain;
use super::{AccessFlags, Unsupported};
use crate::error::Error;

const WHAT: &str = "memory of its provider's choice";

/// Memory that the provider has allocated (`ibv_buf`).
///
/// A handle: clones stand for the same memory, which is freed (`ibv_free_buf`) when the last of them and the last region of it are gone.
#[derive(Clone)]
pub struct ProviderBuffer(Arc<Inner>);

struct Inner {
    buf: NonNull<ibv_buf>,
    start: NonNull<u8>,
    len: usize,
    pd: ProtectionDomain,
}

// SAFETY: of the memory nothing but a raw pointer is given out, and the C object is only named when regions are registered.
unsafe impl Send for Inner {}
// SAFETY: of the memory nothing but a raw pointer is given out, and the C object is only named when
// regions are registered.
unsafe impl Sync for Inner {}

impl ProtectionDomain {
    /// Memory that the provider allocates, for regions in this domain (`ibv_alloc_buf`).
    ///
    /// # Errors
    ///
    /// There is not so much, or `len` is 0; the device has no such memory, or the library is older than rdma-core 64
    /// ([`Unsupported`]).
    ///
    /// # References
    ///
    /// `man ibv_alloc_buf`
    pub fn alloc_buf(&self, len: usize) -> Result<ProviderBuffer, Error> {
        let (context, lib) = (self.context(), self.context().provider().verbs());
        let alloc = lib.ibv_alloc_buf().map_err(|symbol| Unsupported::missing(context, WHAT, symbol))?;
        // Without this one it would stay for ever.
        lib.ibv_free_buf().map_err(|symbol| Unsupported::missing(context, WHAT, symbol))?;
        let mut buf = ptr::null_mut();
        // SAFETY: the domain lives, and there is a place for the handle.
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
    /// The first byte. The pointer may be used for all of the memory, as long as a handle or a region of it lives.
    #[inline]
    pub fn as_ptr(&self) -> *mut u8 {
        self.0.start.as_ptr()
    }

    /// How many bytes there are.
    #[expect(clippy::len_without_is_empty, reason = "no provider allocates nothing")]
    #[inline]
    pub fn len(&self) -> usize {
        self.0.len
    }

    /// The domain that it was allocated in, and its regions are in.
    pub fn pd(&self) -> &ProtectionDomain {
        &self.0.pd
    }

    /// The C object. Using it is as unsafe as in C, and it must not be freed.
    pub fn as_raw(&self) -> NonNull<ibv_buf> {
        self.0.buf
    }

    /// Where `length` bytes from `offset` on are.
    pub(super) fn range(&self, offset: usize, length: usize) -> Result<*mut u8, RegisterMemoryRegionError> {
        let buffer_len = self.len();
        match offset.checked_add(length) {
            Some(end) if end <= buffer_len => Ok(self.as_ptr().wrapping_add(offset)),
            _ => Err(RegisterMemoryRegionError::OutOfBuffer { offset, length, buffer_len }),
        }
    }

    /// Registers `length` bytes of it from `offset` on (`ibv_reg_buf_mr`).
    ///
    /// It is safe: the region keeps the memory, which no Rust reference is made to. Who makes one from [`as_ptr`](Self::as_ptr) promises that
    /// no device writes there meanwhile.
    ///
    /// # Errors
    ///
    /// There are not so many bytes there, the device says no, or the library is older than rdma-core 64 ([`Unsupported`]).
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
        let register = pd.context().provider().verbs().ibv_reg_buf_mr();
        let register = register.map_err(|symbol| Unsupported::missing(pd.context(), WHAT, symbol))?;
        let (raw, bits) = (pd.as_raw().as_ptr(), access.bits().cast_signed());
        // SAFETY: the domain and its buffer live, and the buffer has these bytes.
        let mr = unsafe { register(raw, self.as_raw().as_ptr(), ptr.cast(), length, bits) };
        let (iova, kind) = (ptr.addr() as u64, MemoryKind::Provider(self));
        // SAFETY: it was made just now.
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
    /// The same memory.
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
            // SAFETY: the memory lives, and every region of it held this `Inner` and is gone.
            Ok(free) => unsafe { free(self.buf.as_ptr()) },
            // It was there when the memory was allocated.
            Err(error) => log::error!("{} bytes of the provider's memory stay: {error}", self.len),
        }
    }
}
