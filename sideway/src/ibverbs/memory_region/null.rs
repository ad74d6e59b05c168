//! Null regions: a key without memory (`ibv_alloc_null_mr`).

use std::fmt;
use std::io;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

use rdma_mummy_sys::types::ibv_mr;
use rdma_mummy_sys::verbs;

use crate::error::Error;
use crate::ibverbs::check;
use crate::ibverbs::protection_domain::ProtectionDomain;

/// A region without memory (`ibv_alloc_null_mr`): writes to it are discarded, and reads from it
/// return zero.
///
/// In a scatter/gather list it skips unwanted bytes of a message, or supplies zeroes. It accepts
/// every address and length. Its key is for local entries only, so no peer can access it. It cannot
/// be changed, and no window can be bound to it.
pub struct NullMemoryRegion {
    mr: NonNull<ibv_mr>,
    lkey: u32,
    pd: ProtectionDomain,
}

// SAFETY: the region has no memory, and verbs that use its key are thread-safe in libibverbs.
unsafe impl Send for NullMemoryRegion {}
// SAFETY: a region is a key.
unsafe impl Sync for NullMemoryRegion {}

impl ProtectionDomain {
    /// Allocates a region without memory (`ibv_alloc_null_mr`).
    ///
    /// # Errors
    ///
    /// Fails if the device does not support it ([`Unsupported`](crate::ibverbs::Unsupported)), or
    /// has no more regions.
    ///
    /// # References
    ///
    /// `man ibv_alloc_null_mr`
    pub fn alloc_null_mr(&self) -> Result<NullMemoryRegion, Error> {
        // SAFETY: `self` keeps the domain alive.
        let mr = unsafe { verbs::ibv_alloc_null_mr(self.as_raw().as_ptr()) };
        match NonNull::new(mr) {
            // SAFETY: the library returned a live region, and every release's struct has this
            // field.
            Some(mr) => Ok(NullMemoryRegion { mr, lkey: unsafe { (*mr.as_ptr()).lkey }, pd: self.clone() }),
            None => Err(Error::of_device(
                self.context(),
                "ibv_alloc_null_mr",
                "null memory regions",
                io::Error::last_os_error(),
            )),
        }
    }
}

impl NullMemoryRegion {
    /// The key by which local work requests name the region, with any address.
    #[inline]
    pub fn lkey(&self) -> u32 {
        self.lkey
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

    /// Frees the region now (`ibv_dereg_mr`), and returns the error that a drop would only log.
    ///
    /// # Errors
    ///
    /// Fails if the device did not release it. Region and domain then stay until the context is
    /// closed.
    pub fn close(self) -> io::Result<()> {
        let mut region = ManuallyDrop::new(self);
        region.end()?;
        // SAFETY: `region` is `ManuallyDrop`, so its own drop does not run, and this is the only
        // read of the domain.
        drop(unsafe { core::ptr::read(&raw const region.pd) });
        Ok(())
    }

    fn end(&mut self) -> io::Result<()> {
        let lib = self.pd.context().provider().verbs();
        // SAFETY: the region is alive: this runs once, from `close` or from the drop.
        check(unsafe { (lib.ibv_dereg_mr)(self.mr.as_ptr()) })
    }
}

impl Drop for NullMemoryRegion {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            log::error!("ibv_dereg_mr failed, a null memory region stays: {error}");
            // The library still has the region, so the domain that it depends on must stay alive
            // too.
            std::mem::forget(self.pd.clone());
        }
    }
}

impl fmt::Debug for NullMemoryRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NullMemoryRegion")
            .field("lkey", &format_args!("{:#x}", self.lkey))
            .finish_non_exhaustive()
    }
}
