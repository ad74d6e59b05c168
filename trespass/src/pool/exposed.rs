//! A temporary registration of the program's memory, which a peer may read during a call.
//!
//! Such registrations are not cached. Borrowed memory may be freed when the borrow ends, and other
//! memory may appear at its address. A remaining registration would refer to the old pages, so a
//! peer that reads "the same" address would get stale data. Libraries with such a cache intercept
//! the allocator and the kernel to invalidate it, and sometimes fail. A program that sends the same
//! memory repeatedly should use blocks of the pool, which stay registered.

use std::io;

use sideway::ibverbs::AccessFlags;
use sideway::ibverbs::memory_region::MemoryRegion;

use super::{DomainSet, Pool, PoolError};

/// The number of attempts to deregister with a busy device. A software device waits within each
/// attempt.
const TRIES: u32 = 5;

impl Pool {
    /// Registers bytes of the program so that a peer can read them, calls `with` with the key, and
    /// ends the registration.
    ///
    /// Peers' reads have ended when `with` returns; a later read gets an error.
    ///
    /// # Errors
    ///
    /// The pool has no domain, or the bytes cannot be registered; `with` is not called.
    ///
    /// # Aborts
    ///
    /// If the device repeatedly refuses to deregister the bytes: they are borrowed, so they can be
    /// neither given back nor leaked.
    pub fn expose<R>(&self, bytes: &[u8], with: impl FnOnce(u32) -> R) -> Result<R, PoolError> {
        let domains = self.core.domains().ok_or(PoolError::NoDomain)?;
        // SAFETY: the bytes are borrowed until this function returns or unwinds, which drops the
        // guard before.
        let exposed = unsafe { ExposedGuard::new(bytes, &domains, 0) }?;
        Ok(with(exposed.rkey()))
    }

    /// Like [`expose`](Self::expose), with a key for each device of the pool, and `None` for a
    /// device that has failed.
    #[allow(dead_code, reason = "for connections over several devices")]
    pub(crate) fn expose_to_all<R>(
        &self,
        bytes: &[u8],
        with: impl FnOnce(&[Option<u32>]) -> R,
    ) -> Result<R, PoolError> {
        let domains = self.core.domains().ok_or(PoolError::NoDomain)?;
        let devices = 0..domains.domains().len();
        // SAFETY: the bytes are borrowed until this function returns or unwinds, which drops the
        // guards before.
        let expose = |device| unsafe { ExposedGuard::new(bytes, &domains, device) };
        let exposed: Vec<_> = devices
            .map(|device| (!domains.has_failed(device)).then(|| expose(device)).transpose())
            .collect::<Result<_, _>>()?;
        let keys: Vec<_> = exposed.iter().map(|exposed| exposed.as_ref().map(ExposedGuard::rkey)).collect();
        if keys.iter().all(Option::is_none) {
            return Err(PoolError::Register { bytes: bytes.len(), source: DomainSet::no_device_works() });
        }
        Ok(with(&keys))
    }
}

/// Ends a registration, or the process.
struct ExposedGuard(Option<MemoryRegion>);

impl ExposedGuard {
    /// # Safety
    ///
    /// The guard is dropped before the borrow of `bytes` ends.
    unsafe fn new(bytes: &[u8], domains: &DomainSet, device: usize) -> Result<Self, PoolError> {
        let (start, len) = (bytes.as_ptr().cast_mut(), bytes.len());
        // SAFETY: the bytes are borrowed until the drop has ended the registration or the process,
        // as the caller guarantees. The access rights forbid writing, and concurrent reading is
        // harmless.
        let region = unsafe { domains.domains()[device].reg_mr(start, len, AccessFlags::RemoteRead) };
        region
            .map(|region| Self(Some(region)))
            .map_err(|error| PoolError::Register { bytes: len, source: domains.refusal(device, error) })
    }

    fn rkey(&self) -> u32 {
        self.0.as_ref().map_or(0, MemoryRegion::rkey)
    }
}

impl Drop for ExposedGuard {
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
                // The owner of the borrowed memory would go on using it.
                eprintln!("trespass: ibv_dereg_mr failed for borrowed memory: {}", error.error);
                std::process::abort();
            }
            region = error.object;
        }
    }
}
