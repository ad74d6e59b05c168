//! Regions without memory.

use std::fmt;
use std::io;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

use rdma_mummy_sys::types::ibv_mr;
use rdma_mummy_sys::verbs;

use crate::error::Error;
use crate::ibverbs::check;
use crate::ibverbs::protection_domain::ProtectionDomain;

/// A region that has no memory (`ibv_alloc_null_mr`): what is written to it is lost, what is read from it is zero.
///
/// In a list of entries it stands for bytes of a message that nobody wants, or for zeroes that are nowhere. It has every
/// address and the greatest length, and a key for local entries only: no peer reaches it. It cannot be changed, and no window
/// be bound to it.
pub struct NullMemoryRegion {
    mr: NonNull<ibv_mr>,
    lkey: u32,
    pd: ProtectionDomain,
}

// SAFETY: a region is a key.
unsafe impl Send for NullMemoryRegion {}
// SAFETY: a region is a key.
unsafe impl Sync for NullMemoryRegion {}

impl ProtectionDomain {
    /// A region without memory (`ibv_alloc_null_mr`).
    ///
    /// # Errors
    ///
    /// The device has none ([`Unsupported`]), or no more regions.
    ///
    /// # References
    ///
    /// `man ibv_alloc_null_mr`
    pub fn alloc_null_mr(&self) -> Result<NullMemoryRegion, Error> {
        // SAFETY: the domain lives.
        let mr = unsafe { verbs::ibv_alloc_null_mr(self.as_raw().as_ptr()) };
        match NonNull::new(mr) {
            // SAFETY: the library returned a region; the field is in every release's struct.
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

    /// The domain that the region belongs to.
    pub fn pd(&self) -> &ProtectionDomain {
        &self.pd
    }

    /// The C object. Using it is as unsafe as in C, and it must not be deregistered.
    pub fn as_raw(&self) -> NonNull<ibv_mr> {
        self.mr
    }

    /// Ends the region now (`ibv_dereg_mr`), and says how that went, which a drop only logs.
    ///
    /// # Errors
    ///
    /// The device did not let go of it. It is left to the end of the context, and its domain with it.
    pub fn close(self) -> io::Result<()> {
        let mut region = ManuallyDrop::new(self);
        region.end()?;
        // SAFETY: the region's own drop does not run, so this is the only one of the domain's handle.
        drop(unsafe { core::ptr::read(&raw const region.pd) });
        Ok(())
    }

    fn end(&mut self) -> io::Result<()> {
        let lib = self.pd.context().provider().verbs();
        // SAFETY: the region lives until here.
        check(unsafe { (lib.ibv_dereg_mr)(self.mr.as_ptr()) })
    }
}

impl Drop for NullMemoryRegion {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            log::error!("ibv_dereg_mr failed, a null memory region stays: {error}");
            // The region is still there, so what it depends on has to stay.
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
