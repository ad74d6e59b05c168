//! Importing: contexts, protection domains and memory regions that another part of the program, or another process, has made.
//!
//! A context is known by its *command descriptor*, which can be duplicated or sent to another process (`SCM_RIGHTS`). A
//! context that is [imported](DeviceContext::import) by a duplicate stands for the same thing in the driver: objects of one are
//! reached from the other by their *handles*. An imported object is another pointer to the same object; dropping it gives up
//! the pointer, not the object. Its owner may destroy the object meanwhile, which nothing here can prevent: that is why
//! importing objects is unsafe, while importing a context is not.
//!
//! The software device imports what this process has opened. What another process registers is that process's memory, which
//! cannot be this one's local memory, so a descriptor from there is refused as [`Unsupported`].
//!
//! ```
//! # #[cfg(feature = "soft")] {
//! # use sideway::ibverbs::device::DeviceList;
//! # use sideway::ibverbs::device_context::DeviceContext;
//! # let devices = DeviceList::from_provider(sideway::soft::provider())?;
//! let context = devices.first()?.open()?;
//! let pd = context.alloc_pd()?;
//!
//! let descriptor = context.command_fd().ok_or("no descriptor")?.try_clone_to_owned()?;
//! let imported = DeviceContext::import(context.provider(), descriptor)?;
//! // SAFETY: `pd` outlives the imported one.
//! let same_pd = unsafe { imported.import_pd(pd.handle())? };
//! assert_eq!(same_pd.handle(), pd.handle());
//! # drop(same_pd);
//! # }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::ptr::NonNull;

use rdma_mummy_sys::Provider;
use rdma_mummy_sys::types::ibv_mr;

use super::Unsupported;
use super::device_context::DeviceContext;
use super::memory_region::MemoryRegion;
use super::protection_domain::ProtectionDomain;
use crate::error::{ConsumeError, Error};

impl DeviceContext {
    /// The descriptor that stands for the context in the driver (`ibv_context::cmd_fd`), to be duplicated for whoever is to
    /// [import](Self::import) the context. `None` if there is none.
    pub fn command_fd(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: the context is open; the field is in every release's struct.
        let fd = unsafe { (*self.as_raw().as_ptr()).cmd_fd };
        // SAFETY: the library keeps it open as long as the context, which is as long as the borrow.
        (fd >= 0).then(|| unsafe { BorrowedFd::borrow_raw(fd) })
    }

    /// A context of a command descriptor (`ibv_import_device`), which belongs to it from then on.
    ///
    /// # Errors
    ///
    /// The descriptor is not of a device of this provider (it comes back with the error), or the library or device cannot
    /// import ([`Unsupported`]).
    ///
    /// # References
    ///
    /// `man ibv_import_device`
    pub fn import(provider: Provider, descriptor: OwnedFd) -> Result<Self, ConsumeError<OwnedFd>> {
        let import = match provider.verbs().ibv_import_device() {
            Ok(import) => import,
            Err(symbol) => {
                let error = Unsupported::of_library("import of devices", symbol).into();
                return Err(ConsumeError { object: descriptor, error });
            }
        };
        // SAFETY: the descriptor is open. The library owns it if this succeeds, and leaves it alone if not.
        let context = unsafe { import(descriptor.as_raw_fd()) };
        match NonNull::new(context) {
            Some(context) => {
                let _ = descriptor.into_raw_fd();
                // SAFETY: the context was made just now with this provider, and nothing else owns it.
                Ok(unsafe { Self::from_raw(context, provider) })
            }
            None => {
                let source = io::Error::last_os_error();
                let error = Error::of_system("ibv_import_device", "import of this device", source)
                    .remedy("the descriptor has to be a device's");
                Err(ConsumeError { object: descriptor, error })
            }
        }
    }

    /// A protection domain of this context by its [handle](ProtectionDomain::handle) (`ibv_import_pd`). Dropping it unimports
    /// it (`ibv_unimport_pd`); the domain is its owner's.
    ///
    /// # Safety
    ///
    /// - The domain is not deallocated as long as the imported one, or anything that was made in it, is there; whoever owns
    ///   it, here or in another process, has to see to that.
    ///
    /// # Errors
    ///
    /// There is no such domain, or the library or device cannot import ([`Unsupported`]).
    ///
    /// # References
    ///
    /// `man ibv_import_pd`
    pub unsafe fn import_pd(&self, handle: u32) -> Result<ProtectionDomain, Error> {
        const WHAT: &str = "import of protection domains";
        let lib = self.provider().verbs();
        let import = lib.ibv_import_pd().map_err(|symbol| Unsupported::missing(self, WHAT, symbol))?;
        // SAFETY: the context is open.
        match NonNull::new(unsafe { import(self.as_raw().as_ptr(), handle) }) {
            // SAFETY: it was imported just now; the caller answers for the domain.
            Some(pd) => Ok(unsafe { ProtectionDomain::imported(pd, self) }),
            None => Err(Error::of_device(self, "ibv_import_pd", WHAT, io::Error::last_os_error())
                .with("handle", handle)),
        }
    }
}

impl ProtectionDomain {
    /// A memory region of the domain's context by its [handle](MemoryRegion::handle) (`ibv_import_mr`). Dropping it
    /// unimports it (`ibv_unimport_mr`); the region is its owner's.
    ///
    /// # Safety
    ///
    /// - The region is not deregistered as long as the imported one is there; whoever owns it, here or in another process,
    ///   has to see to that. What [`reg_mr`](Self::reg_mr) asks for goes for its memory.
    ///
    /// # Errors
    ///
    /// There is no such region, or the library or device cannot import ([`Unsupported`]).
    ///
    /// # References
    ///
    /// `man ibv_import_mr`
    pub unsafe fn import_mr(&self, handle: u32) -> Result<ImportedMemoryRegion, Error> {
        const WHAT: &str = "import of memory regions";
        let context = self.context();
        let lib = context.provider().verbs();
        let import = lib.ibv_import_mr().map_err(|symbol| Unsupported::missing(context, WHAT, symbol))?;
        // SAFETY: the domain lives.
        match NonNull::new(unsafe { import(self.as_raw().as_ptr(), handle) }) {
            Some(mr) => Ok(ImportedMemoryRegion { mr, pd: self.clone() }),
            None => Err(Error::of_device(context, "ibv_import_mr", WHAT, io::Error::last_os_error())
                .with("handle", handle)),
        }
    }
}

impl MemoryRegion {
    /// The number by which others [import](ProtectionDomain::import_mr) the region (`ibv_mr::handle`).
    pub fn handle(&self) -> u32 {
        // SAFETY: the region lives; the field is in every release's struct.
        unsafe { (*self.as_raw().as_ptr()).handle }
    }
}

/// A memory region that another pointer registers and deregisters. Its address is not known here.
pub struct ImportedMemoryRegion {
    mr: NonNull<ibv_mr>,
    pd: ProtectionDomain,
}

// SAFETY: a region is a pair of keys.
unsafe impl Send for ImportedMemoryRegion {}
// SAFETY: a region is a pair of keys.
unsafe impl Sync for ImportedMemoryRegion {}

impl ImportedMemoryRegion {
    fn fields(&self) -> &ibv_mr {
        // SAFETY: the object lives, no release's struct is shorter, and nobody writes to it.
        unsafe { self.mr.as_ref() }
    }

    /// The key by which local work requests name the region.
    pub fn lkey(&self) -> u32 {
        self.fields().lkey
    }

    /// The key by which a peer's work requests name the region.
    pub fn rkey(&self) -> u32 {
        self.fields().rkey
    }

    /// How long the region is, in bytes, as far as the library knows.
    pub fn region_len(&self) -> usize {
        self.fields().length
    }

    /// The number by which it was imported.
    pub fn handle(&self) -> u32 {
        self.fields().handle
    }

    /// The domain by which it was imported.
    pub fn pd(&self) -> &ProtectionDomain {
        &self.pd
    }

    /// The C object. Using it is as unsafe as in C, and it must not be deregistered.
    pub fn as_raw(&self) -> NonNull<ibv_mr> {
        self.mr
    }
}

impl fmt::Debug for ImportedMemoryRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ImportedMemoryRegion")
            .field("handle", &self.handle())
            .field("lkey", &format_args!("{:#x}", self.lkey()))
            .field("rkey", &format_args!("{:#x}", self.rkey()))
            .finish_non_exhaustive()
    }
}

impl Drop for ImportedMemoryRegion {
    fn drop(&mut self) {
        match self.pd.context().provider().verbs().ibv_unimport_mr() {
            // SAFETY: it was imported, and is given up once.
            Ok(unimport) => unsafe { unimport(self.mr.as_ptr()) },
            Err(error) => log::error!("an imported memory region stays: {error}"),
        }
    }
}
