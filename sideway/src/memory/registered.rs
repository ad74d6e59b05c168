//! Memory that is owned together with its registration.

use std::fmt;
use std::mem::ManuallyDrop;

use super::bytes::{self, Word, impl_accesses};
use super::{Buffer, OutOfSlice};
use crate::error::ConsumeError;
use crate::ibverbs::AccessFlags;
use crate::ibverbs::memory_region::{MemoryRegion, RegisterMemoryRegionError, check_access};
use crate::ibverbs::protection_domain::ProtectionDomain;

/// A buffer that the device, and a peer with its key, can access.
///
/// The program copies bytes in and out without references to them, as with a
/// [slice](crate::memory::Slice), because a device may write to them at any time.
///
/// Dropping it ends the registration and frees the memory, in this order. If the device does not
/// release the memory, that is logged and the memory is leaked. A software device returns `EBUSY`
/// while a peer may still be accessing it.
pub struct RegisteredBuffer {
    // The drop and `close` move both out; `close` prevents the drop.
    region: ManuallyDrop<MemoryRegion>,
    buffer: ManuallyDrop<Buffer>,
}

impl RegisteredBuffer {
    pub(crate) fn register(
        pd: &ProtectionDomain,
        buffer: Buffer,
        access: AccessFlags,
    ) -> Result<Self, RegisterMemoryRegionError> {
        check_access(pd, "the buffer", Some(buffer.kind()), buffer.len(), access)?;
        // SAFETY: only `end` frees the buffer, after the region is gone. This module makes no
        // reference to the bytes, and other code needs `unsafe` to make one. With `HugeTlb` the
        // buffer lies on huge pages, as was checked above, and `Buffer` maps whole ones.
        let region = unsafe { pd.reg_mr(buffer.as_ptr(), buffer.len(), access) }?;
        Ok(Self { region: ManuallyDrop::new(region), buffer: ManuallyDrop::new(buffer) })
    }

    /// The registration, for reading only. This buffer ends it.
    #[inline]
    pub fn region(&self) -> &MemoryRegion {
        &self.region
    }

    /// The memory behind the registration.
    #[inline]
    pub fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    /// The first byte. The pointer is valid as long as this buffer exists.
    #[inline]
    pub fn as_ptr(&self) -> *mut u8 {
        self.buffer.as_ptr()
    }

    /// The length in bytes, never 0.
    #[expect(clippy::len_without_is_empty, reason = "no buffer is empty")]
    #[inline]
    pub fn len(&self) -> usize {
        self.buffer.len()
    }

    /// The key for local work requests.
    #[inline]
    pub fn lkey(&self) -> u32 {
        self.region.lkey()
    }

    /// The key for a peer's work requests.
    #[inline]
    pub fn rkey(&self) -> u32 {
        self.region.rkey()
    }

    /// The address of `len` bytes from `offset` on, if they are in the buffer, which stays mapped while
    /// `self` exists, and to which no reference exists (`register`).
    #[inline]
    fn range(&self, offset: usize, len: usize) -> Result<*mut u8, OutOfSlice> {
        OutOfSlice::check(offset, len, self.len())?;
        // The address is within the buffer, so the result equals that of `add`.
        Ok(self.as_ptr().wrapping_add(offset))
    }

    /// Ends the registration now (`ibv_dereg_mr`), and returns the memory.
    ///
    /// # Errors
    ///
    /// Fails if the device did not release the memory. The buffer comes back unchanged with the
    /// error, to try again later or to leak.
    pub fn close(self) -> Result<Buffer, ConsumeError<Box<Self>>> {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: `this` is `ManuallyDrop`, so its drop does not run, and its fields are not used
        // again.
        let (region, buffer) =
            unsafe { (ManuallyDrop::take(&mut this.region), ManuallyDrop::take(&mut this.buffer)) };
        match region.close() {
            Ok(()) => Ok(buffer),
            Err(error) => {
                let (region, buffer) = (ManuallyDrop::new(error.object), ManuallyDrop::new(buffer));
                Err(ConsumeError { object: Box::new(Self { region, buffer }), error: error.error })
            }
        }
    }
}

impl_accesses!(RegisteredBuffer);

impl Drop for RegisteredBuffer {
    fn drop(&mut self) {
        // SAFETY: this runs in the drop, after which the region is not used.
        let region = unsafe { ManuallyDrop::take(&mut self.region) };
        match region.close() {
            // SAFETY: the device has released the memory, and this runs in the drop.
            Ok(()) => unsafe { ManuallyDrop::drop(&mut self.buffer) },
            Err(error) => {
                log::error!(
                    "{}: {} bytes at {:p} are leaked",
                    error.error,
                    self.buffer.len(),
                    self.buffer.as_ptr()
                );
                // Leaked instead of dropped, because a second attempt might wait as long as the
                // first.
                std::mem::forget(error.object);
            }
        }
    }
}

impl fmt::Debug for RegisteredBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegisteredBuffer")
            .field("buffer", &*self.buffer)
            .field("region", &*self.region)
            .finish()
    }
}
