//! Import of contexts, protection domains and memory regions that another part of the program, or
//! another process, made.
//!
//! A context is identified by its *command descriptor*, which can be duplicated or sent to another
//! process (`SCM_RIGHTS`). A context that is [imported](DeviceContext::import) by a duplicate is
//! the same context in the driver. So objects of one context can be imported into the other by
//! their *handles*.
//!
//! An imported object is another pointer to the same object. Dropping it gives up the pointer, not
//! the object. This crate cannot prevent the owner from destroying the object too early, so
//! importing objects is unsafe. Importing a context is safe.
//!
//! The software device imports only contexts of the same process. Memory that another process
//! registered cannot be local memory here, so that descriptors from other processes are refused as
//! [`Unsupported`].
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
//! // SAFETY: `pd` outlives the import.
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
    /// The descriptor that identifies the context in the driver (`ibv_context::cmd_fd`); `None` if
    /// it has none. Duplicate it to [import](Self::import) the context elsewhere.
    pub fn command_fd(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: `self` keeps the context open, and every release's struct has this field.
        let fd = unsafe { (*self.as_raw().as_ptr()).cmd_fd };
        // SAFETY: the library keeps the descriptor open as long as the context, which outlives the
        // borrow.
        (fd >= 0).then(|| unsafe { BorrowedFd::borrow_raw(fd) })
    }

    /// Opens a context by its command descriptor (`ibv_import_device`), and takes ownership of the
    /// descriptor.
    ///
    /// # Errors
    ///
    /// Fails if the descriptor does not belong to a device of this provider, and returns it with
    /// the error. Also fails if the library or device cannot import ([`Unsupported`]).
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
        // SAFETY: the descriptor is open. The library owns it if this succeeds, and leaves it alone
        // otherwise.
        let context = unsafe { import(descriptor.as_raw_fd()) };
        match NonNull::new(context) {
            Some(context) => {
                let _ = descriptor.into_raw_fd();
                // SAFETY: this provider made the context just now, and nothing else owns it.
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

    /// Imports a protection domain of this context by its [handle](ProtectionDomain::handle)
    /// (`ibv_import_pd`). Dropping the import unimports it (`ibv_unimport_pd`); the domain stays
    /// with its owner.
    ///
    /// # Safety
    ///
    /// - The owner, here or in another process, does not deallocate the domain while the import, or
    ///   anything made in it, exists.
    ///
    /// # Errors
    ///
    /// Fails if no such domain exists, or if the library or device cannot import ([`Unsupported`]).
    ///
    /// # References
    ///
    /// `man ibv_import_pd`
    pub unsafe fn import_pd(&self, handle: u32) -> Result<ProtectionDomain, Error> {
        const WHAT: &str = "import of protection domains";
        let lib = self.provider().verbs();
        let import = lib.ibv_import_pd().map_err(|symbol| Unsupported::missing(self, WHAT, symbol))?;
        // SAFETY: `self` keeps the context open.
        match NonNull::new(unsafe { import(self.as_raw().as_ptr(), handle) }) {
            // SAFETY: the domain was imported just now, and the caller guarantees that its owner
            // keeps it.
            Some(pd) => Ok(unsafe { ProtectionDomain::imported(pd, self) }),
            None => Err(Error::of_device(self, "ibv_import_pd", WHAT, io::Error::last_os_error())
                .with("handle", handle)),
        }
    }
}

impl ProtectionDomain {
    /// Imports a memory region of the domain's context by its [handle](MemoryRegion::handle)
    /// (`ibv_import_mr`). Dropping the import unimports it (`ibv_unimport_mr`); the region stays
    /// with its owner.
    ///
    /// # Safety
    ///
    /// - The owner, here or in another process, does not deregister the region while the import
    ///   exists. The contract of [`reg_mr`](Self::reg_mr) applies to its memory.
    ///
    /// # Errors
    ///
    /// Fails if no such region exists, or if the library or device cannot import ([`Unsupported`]).
    ///
    /// # References
    ///
    /// `man ibv_import_mr`
    pub unsafe fn import_mr(&self, handle: u32) -> Result<ImportedMemoryRegion, Error> {
        const WHAT: &str = "import of memory regions";
        let context = self.context();
        let lib = context.provider().verbs();
        let import = lib.ibv_import_mr().map_err(|symbol| Unsupported::missing(context, WHAT, symbol))?;
        // SAFETY: `self` keeps the domain alive.
        match NonNull::new(unsafe { import(self.as_raw().as_ptr(), handle) }) {
            Some(mr) => Ok(ImportedMemoryRegion { mr, pd: self.clone() }),
            None => Err(Error::of_device(context, "ibv_import_mr", WHAT, io::Error::last_os_error())
                .with("handle", handle)),
        }
    }
}

impl MemoryRegion {
    /// The number by which others [import](ProtectionDomain::import_mr) the region
    /// (`ibv_mr::handle`).
    pub fn handle(&self) -> u32 {
        // SAFETY: `self` keeps the region alive, and every release's struct has this field.
        unsafe { (*self.as_raw().as_ptr()).handle }
    }
}

/// A memory region that its owner registers and deregisters. Its address is not known here.
pub struct ImportedMemoryRegion {
    mr: NonNull<ibv_mr>,
    pd: ProtectionDomain,
}

// SAFETY: the object is only read, and verbs that use it are thread-safe in libibverbs.
unsafe impl Send for ImportedMemoryRegion {}
// SAFETY: a region is a pair of keys.
unsafe impl Sync for ImportedMemoryRegion {}

impl ImportedMemoryRegion {
    fn fields(&self) -> &ibv_mr {
        // SAFETY: the caller of `import_mr` guarantees that the region is alive. No release's
        // struct is shorter, and nobody writes to it.
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

    /// The region's length in bytes, if the library knows it.
    pub fn region_len(&self) -> usize {
        self.fields().length
    }

    /// The number by which it was imported.
    pub fn handle(&self) -> u32 {
        self.fields().handle
    }

    /// The protection domain through which it was imported.
    pub fn pd(&self) -> &ProtectionDomain {
        &self.pd
    }

    /// The C object, for verbs that this crate does not wrap. Using it is as unsafe as in C; do not
    /// deregister it.
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
            // SAFETY: the region was imported, and this is the only place that unimports it.
            Ok(unimport) => unsafe { unimport(self.mr.as_ptr()) },
            Err(error) => log::error!("an imported memory region stays: {error}"),
        }
    }
}
