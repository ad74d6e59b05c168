//! Registering memory that is borrowed, for the time of a call.

use super::{MemoryRegion, RegisterMemoryRegionError};
use crate::ibverbs::AccessFlags;
use crate::ibverbs::protection_domain::ProtectionDomain;

/// How often a device that is busy is asked to let go of borrowed memory. A software device waits by itself, each time.
const TRIES: u32 = 5;

impl ProtectionDomain {
    /// Registers borrowed memory (`ibv_reg_mr`), calls `with` with the region, and deregisters the memory.
    ///
    /// It is safe: the memory is borrowed until the device has let go of it. `with` gets the region by reference, so it
    /// cannot keep it, and nobody has the bytes meanwhile: not `with` either, but by the region's pointer.
    ///
    /// What the requests of `with` do with the region has to be over when it returns; others then end with a protection error.
    ///
    /// # Errors
    ///
    /// As [`reg_mr`](Self::reg_mr), before `with` is called.
    ///
    /// # Aborts
    ///
    /// If the device does not let go of the memory: it can be neither given back nor leaked, as it is somebody else's. A
    /// device that is busy is asked several times before; a software device is while a peer is stopped in the midst of writing there.
    /// Memory that outlives a peer's whims is owned by its registration: [`reg_buffer`](Self::reg_buffer).
    pub fn reg_mr_scoped<R>(
        &self,
        memory: &mut [u8],
        access: AccessFlags,
        with: impl FnOnce(&MemoryRegion) -> R,
    ) -> Result<R, RegisterMemoryRegionError> {
        // SAFETY: the memory is borrowed until `ScopedRegion` has deregistered it, which it does before this returns or unwinds, or
        // the process ends; meanwhile nobody has a reference to it that is used.
        let region = unsafe { self.reg_mr(memory.as_mut_ptr(), memory.len(), access) }?;
        let scope = ScopedRegion(Some(region));
        Ok(with(scope.region()))
    }
}

/// Ends a registration, or the process.
struct ScopedRegion(Option<MemoryRegion>);

impl ScopedRegion {
    fn region(&self) -> &MemoryRegion {
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
                // Whoever lent it would go on using it.
                eprintln!("sideway: borrowed memory cannot be given back: {}", error.error);
                std::process::abort();
            }
            region = error.object;
        }
    }
}
