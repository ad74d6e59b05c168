//! Memory that is owned together with its registration.

use std::fmt;
use std::mem::ManuallyDrop;

use super::Buffer;
use crate::error::ConsumeError;
use crate::ibverbs::AccessFlags;
use crate::ibverbs::memory_region::{MemoryRegion, RegisterMemoryRegionError};
use crate::ibverbs::protection_domain::ProtectionDomain;

/// A buffer that the device, and with its key a peer, can reach.
///
/// Dropping it ends the registration and frees the memory, in this order. Where the device does not let go of the
/// memory, because a peer may still be reaching it (`EBUSY` of a software device), that is logged and the memory is
/// leaked.
pub struct RegisteredBuffer {
    // Both are taken by the drop, and by `close`, which prevents the drop.
    region: ManuallyDrop<MemoryRegion>,
    buffer: ManuallyDrop<Buffer>,
}

impl RegisteredBuffer {
    pub(crate) fn register(
        pd: &ProtectionDomain,
        buffer: Buffer,
        access: AccessFlags,
    ) -> Result<Self, RegisterMemoryRegionError> {
        // SAFETY: the buffer is freed by `end` only, after the region is no more; no reference to its bytes is
        // made in this module, and nobody else can without a promise of their own.
        let region = unsafe { pd.reg_mr(buffer.as_ptr(), buffer.len(), access) }?;
        Ok(Self { region: ManuallyDrop::new(region), buffer: ManuallyDrop::new(buffer) })
    }

    /// The registration. It can be looked at, and only this buffer ends it.
    #[inline]
    pub fn region(&self) -> &MemoryRegion {
        &self.region
    }

    /// The memory.
    #[inline]
    pub fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    /// The first byte.
    #[inline]
    pub fn as_ptr(&self) -> *mut u8 {
        self.buffer.as_ptr()
    }

    /// How many bytes there are: never 0.
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

    /// Ends the registration now (`ibv_dereg_mr`), and gives the memory back.
    ///
    /// # Errors
    ///
    /// The device did not let go of the memory. Everything is as before, and comes back with the error: to try
    /// again later, or to leak.
    pub fn close(self) -> Result<Buffer, ConsumeError<Box<Self>>> {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: the drop does not run, and nothing below looks at the fields of `this` again.
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

impl Drop for RegisteredBuffer {
    fn drop(&mut self) {
        // SAFETY: this is the drop: the region is not used again.
        let region = unsafe { ManuallyDrop::take(&mut self.region) };
        match region.close() {
            // SAFETY: the device has let go of the memory, and this is the drop.
            Ok(()) => unsafe { ManuallyDrop::drop(&mut self.buffer) },
            Err(error) => {
                log::error!(
                    "{}: {} bytes at {:p} are leaked",
                    error.error,
                    self.buffer.len(),
                    self.buffer.as_ptr()
                );
                // Not a second try, which may wait as long as the first one did.
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
