//! Memory of the program that a peer may read for the time of a call.
//!
//! There is no cache of such registrations. What is borrowed may be freed when the borrow ends, and other memory appear at its
//! address; a registration that is still there is of the old pages, so a peer that reads "the same" address gets what nobody sent.
//! Libraries that have such a cache watch the allocator and the kernel for it, and get it wrong now and then. Who sends the same memory
//! often takes blocks of the pool, which stay registered.

use std::io;

use sideway::ibverbs::AccessFlags;
use sideway::ibverbs::memory_region::MemoryRegion;

use super::{Pool, PoolError};

/// How often a device that is busy is asked to let go. A software device waits by itself, each time.
const TRIES: u32 = 5;

impl Pool {
    /// Registers bytes of the program's so that a peer can read them, calls `with` with the key, and ends the registration.
    ///
    /// What peers read is over when `with` returns; whoever reads later gets an error.
    ///
    /// # Errors
    ///
    /// The pool has no domain, or the bytes cannot be registered; `with` is not called.
    ///
    /// # Aborts
    ///
    /// If the device does not let go of the bytes, though it is asked several times: they are somebody else's, and can be neither given
    /// back nor leaked.
    pub fn expose<R>(&self, bytes: &[u8], with: impl FnOnce(u32) -> R) -> Result<R, PoolError> {
        let domain = self.domain().ok_or(PoolError::NoDomain)?;
        let (start, len) = (bytes.as_ptr().cast_mut(), bytes.len());
        // SAFETY: the bytes are borrowed until `Exposed` has ended the registration, which it does before this returns or unwinds, or
        // the process ends. No device writes to them, as that is not allowed; that they are read meanwhile is fine.
        let region = unsafe { domain.reg_mr(start, len, AccessFlags::RemoteRead) }
            .map_err(|error| PoolError::Register { bytes: len, source: error.into() })?;
        let rkey = region.rkey();
        let _exposed = Exposed(Some(region));
        Ok(with(rkey))
    }
}

/// Ends a registration, or the process.
struct Exposed(Option<MemoryRegion>);

impl Drop for Exposed {
    fn drop(&mut self) {
        let Some(mut region) = self.0.take() else { return };
        for attempt in 1.. {
            let error = match region.close() {
                Ok(()) => return,
                Err(error) => error,
            };
            tracing::error!("borrowed memory stays registered (attempt {attempt}): {}", error.error);
            let busy = |error: &io::Error| error.kind() == io::ErrorKind::ResourceBusy;
            if !error.error.os_error().is_some_and(busy) || attempt >= TRIES {
                // Whoever lent it would go on using it.
                eprintln!("trespass: ibv_dereg_mr failed for borrowed memory: {}", error.error);
                std::process::abort();
            }
            region = error.object;
        }
    }
}
