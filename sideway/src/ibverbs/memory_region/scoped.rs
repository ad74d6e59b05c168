//! Scoped registration: borrowed memory, registered for the duration of one call.

use super::register::check_access;
use super::{MemoryRegion, RegisterMemoryRegionError};
use crate::ibverbs::AccessFlags;
use crate::ibverbs::protection_domain::ProtectionDomain;

/// How often deregistration is tried while the device is busy. A software device waits within each
/// attempt.
const TRIES: u32 = 5;

impl ProtectionDomain {
    /// Registers borrowed memory (`ibv_reg_mr`), calls `with` with the region, and deregisters the
    /// memory.
    ///
    /// It is safe because the memory stays borrowed until the device has released it. `with` gets
    /// the region by reference, so it cannot keep it. Until then nothing can access the bytes as a
    /// Rust value; `with` can use the region's pointer.
    ///
    /// Requests that use the region must complete before `with` returns. Later ones end with a
    /// protection error.
    ///
    /// # Errors
    ///
    /// Fails as [`reg_mr`](Self::reg_mr) does, and with [`AccessFlags::HugeTlb`], because borrowed
    /// memory need not lie on huge pages. Fails with [`AccessFlags::OnDemand`] on the kernel's
    /// SoftRoCE, which would reach memory around it. It fails before it calls `with`.
    ///
    /// # Aborts
    ///
    /// Aborts the process if the device does not release the memory: the memory belongs to the
    /// caller, so it can neither be returned nor leaked. Deregistration is tried several times
    /// while the device is busy. A software device is busy while a peer is stopped in the middle of
    /// a write to the memory. To avoid such a dependence on peers, let the registration own its
    /// memory: [`reg_buffer`](Self::reg_buffer).
    pub fn reg_mr_scoped<R>(
        &self,
        memory: &mut [u8],
        access: AccessFlags,
        with: impl FnOnce(&MemoryRegion) -> R,
    ) -> Result<R, RegisterMemoryRegionError> {
        // SAFETY: `memory` is borrowed until this returns or unwinds, which drops the region.
        let scope = unsafe { ScopedRegion::register(self, memory, access) }?;
        Ok(with(scope.region()))
    }
}

/// A guard that ends the registration or, if that fails, the process.
pub(crate) struct ScopedRegion(Option<MemoryRegion>);

impl ScopedRegion {
    /// # Safety
    ///
    /// The result must be dropped before the borrow of `memory` ends. Until then nobody uses a
    /// reference to the memory.
    pub(crate) unsafe fn register(
        pd: &ProtectionDomain,
        memory: &mut [u8],
        access: AccessFlags,
    ) -> Result<Self, RegisterMemoryRegionError> {
        check_access(pd, "borrowed memory", None, memory.len(), access)?;
        // SAFETY: the memory stays borrowed until the region is deregistered by the drop, or the
        // process aborts (`# Safety`). `HugeTlb` was refused.
        Ok(Self(Some(unsafe { pd.reg_mr(memory.as_mut_ptr(), memory.len(), access) }?)))
    }

    pub(crate) fn region(&self) -> &MemoryRegion {
        self.0.as_ref().expect("only the drop takes it")
    }
}

impl Drop for ScopedRegion {
    fn drop(&mut self) {
        let Some(mut region) = self.0.take() else { return };
        for attempt in 1.. {
            let error = match region.close() {
                Ok(()) => return,
                Err(error) => error,
            };
            let busy = error.error.errno() == Some(libc::EBUSY);
            log::error!("borrowed memory stays registered (attempt {attempt}): {}", error.error);
            if !busy || attempt >= TRIES {
                // Returning would let the owner of the memory use it while the device can still
                // write there.
                eprintln!("sideway: borrowed memory cannot be given back: {}", error.error);
                std::process::abort();
            }
            region = error.object;
        }
    }
}
