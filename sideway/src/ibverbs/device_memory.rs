//! Device memory: memory on the NIC itself (`ibv_alloc_dm`).
//!
//! Some devices have a small memory, which requests reach without crossing the bus. A program
//! copies bytes [to](DeviceMemory::memcpy_to_dm) and [from](DeviceMemory::memcpy_from_dm) it, on
//! mlx5 in multiples of 4 at multiples of 4. Parts of it can be
//! [registered](ProtectionDomain::reg_dm_mr) for requests, which address the bytes by their offset.
//!
//! ```
//! # #[cfg(feature = "soft")] {
//! # use sideway::ibverbs::device::DeviceList;
//! use sideway::ibverbs::AccessFlags;
//!
//! # let devices = DeviceList::from_provider(sideway::soft::provider())?;
//! let context = devices.first()?.open()?;
//! let memory = context.alloc_dm(4096, 3)?;
//! memory.memcpy_to_dm(64, b"counters")?;
//! let access = AccessFlags::LocalWrite | AccessFlags::RemoteRead;
//! let region = context.alloc_pd()?.reg_dm_mr(&memory, 64, 1024, access)?;
//! println!("a peer reads it with the key {:#x} from address {} on", region.rkey(), region.iova());
//!
//! let mut bytes = [0; 8];
//! memory.memcpy_from_dm(&mut bytes, 64)?;
//! assert_eq!(&bytes, b"counters");
//! # }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::fmt;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use rdma_mummy_sys::types::{ibv_alloc_dm_attr, ibv_dm, ibv_dm_mask};
use rdma_mummy_sys::verbs;

use super::device_context::DeviceContext;
#[cfg(doc)]
use super::protection_domain::ProtectionDomain;
use super::{Unsupported, check};
use crate::error::{Error, ErrorKind};

/// Memory on the device (`ibv_dm`).
///
/// Clones refer to the same memory. It is freed (`ibv_free_dm`) when the last handle and the last
/// region of it are dropped.
#[derive(Clone)]
pub struct DeviceMemory(Arc<Inner>);

struct Inner {
    dm: NonNull<ibv_dm>,
    length: usize,
    context: DeviceContext,
    /// Whether the memory belongs to another owner, so that a drop only unimports it.
    imported: bool,
}

// SAFETY: libibverbs allows the memory's functions from any thread. Two concurrent writes to the
// same bytes leave a mixture, as in any memory that a device writes to. No Rust reference to the
// memory is ever made.
unsafe impl Send for Inner {}
// SAFETY: libibverbs allows the memory's functions from several threads, and no Rust reference to
// the memory is ever made.
unsafe impl Sync for Inner {}

const WHAT: &str = "device memory";

impl DeviceContext {
    /// Allocates `length` bytes of device memory (`ibv_alloc_dm`), aligned to `1 << log_align_req`.
    /// Atomics need 3.
    ///
    /// # Errors
    ///
    /// Fails if the device has no memory ([`Unsupported`]), less than `length` bytes of it left
    /// ([`max_dm_size`](super::device_attr::DeviceAttr::max_dm_size) is the total), or none with
    /// this alignment.
    ///
    /// # References
    ///
    /// `man ibv_alloc_dm`
    pub fn alloc_dm(&self, length: usize, log_align_req: u32) -> Result<DeviceMemory, Error> {
        let mut attr = ibv_alloc_dm_attr { length, log_align_req, comp_mask: 0 };
        // SAFETY: `self` keeps the context open, and the attributes are initialised.
        let dm = unsafe { verbs::ibv_alloc_dm(self.as_raw().as_ptr(), &raw mut attr) };
        match NonNull::new(dm) {
            Some(dm) => {
                let inner = Inner { dm, length, context: self.clone(), imported: false };
                Ok(DeviceMemory(Arc::new(inner)))
            }
            None => Err(Error::of_device(self, "ibv_alloc_dm", WHAT, io::Error::last_os_error())
                .with("length", length)
                .with("log_align_req", log_align_req)
                .remedy("max_dm_size is how much the device has")),
        }
    }

    /// Imports device memory by its [handle](DeviceMemory::handle) (`ibv_import_dm`). Dropping the
    /// import unimports it (`ibv_unimport_dm`); the memory stays with its owner.
    ///
    /// # Safety
    ///
    /// - The memory has `length` bytes. Libraries do not report the length, and not all of them
    ///   check it.
    /// - The owner, here or in another process, does not free the memory while the import, or a
    ///   region of it, exists.
    ///
    /// # Errors
    ///
    /// Fails if no such memory exists, or if the library or device cannot import ([`Unsupported`]).
    ///
    /// # References
    ///
    /// `man ibv_import_dm`
    pub unsafe fn import_dm(&self, handle: u32, length: usize) -> Result<DeviceMemory, Error> {
        const WHAT: &str = "import of device memory";
        let lib = self.provider().verbs();
        let import = lib.ibv_import_dm().map_err(|symbol| Unsupported::missing(self, WHAT, symbol))?;
        // SAFETY: `self` keeps the context open.
        match NonNull::new(unsafe { import(self.as_raw().as_ptr(), handle) }) {
            Some(dm) => {
                let inner = Inner { dm, length, context: self.clone(), imported: true };
                Ok(DeviceMemory(Arc::new(inner)))
            }
            None => Err(Error::of_device(self, "ibv_import_dm", WHAT, io::Error::last_os_error())
                .with("handle", handle)),
        }
    }
}

impl DeviceMemory {
    /// The length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "no device has empty memory")]
    pub fn len(&self) -> usize {
        self.0.length
    }

    /// Whether the memory has `length` bytes from `offset` on.
    pub(crate) fn has(&self, offset: u64, length: usize) -> bool {
        offset.checked_add(length as u64).is_some_and(|end| end <= self.0.length as u64)
    }

    /// Copies bytes into the memory, from `offset` on (`ibv_memcpy_to_dm`).
    ///
    /// # Errors
    ///
    /// Fails if the bytes do not fit, or if the device refuses. Some devices require offset and
    /// length to be multiples of 4.
    pub fn memcpy_to_dm(&self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        const VERB: &str = "ibv_memcpy_to_dm";
        self.check(VERB, offset, bytes.len())?;
        let dm = self.as_raw().as_ptr();
        // SAFETY: `self` keeps the memory alive, and every release's struct has this field.
        if unsafe { (*dm).memcpy_to_dm }.is_none() {
            return Err(Unsupported::new(self.context(), VERB, WHAT).into());
        }
        // SAFETY: `self` keeps the memory alive, and it has these bytes, as `has` checked. The
        // operation exists, and `bytes` is readable.
        let result = unsafe { verbs::ibv_memcpy_to_dm(dm, offset, bytes.as_ptr().cast(), bytes.len()) };
        check(result).map_err(|source| self.error(VERB, offset, bytes.len(), source))
    }

    /// Copies bytes out of the memory, from `offset` on (`ibv_memcpy_from_dm`).
    ///
    /// # Errors
    ///
    /// Fails if the memory has fewer bytes, or if the device refuses, as for
    /// [`memcpy_to_dm`](Self::memcpy_to_dm).
    pub fn memcpy_from_dm(&self, bytes: &mut [u8], offset: u64) -> Result<(), Error> {
        const VERB: &str = "ibv_memcpy_from_dm";
        self.check(VERB, offset, bytes.len())?;
        let dm = self.as_raw().as_ptr();
        // SAFETY: `self` keeps the memory alive, and every release's struct has this field.
        if unsafe { (*dm).memcpy_from_dm }.is_none() {
            return Err(Unsupported::new(self.context(), VERB, WHAT).into());
        }
        // SAFETY: `self` keeps the memory alive, and it has these bytes, as `has` checked. The
        // operation exists, and `bytes` is writable.
        let result = unsafe { verbs::ibv_memcpy_from_dm(bytes.as_mut_ptr().cast(), dm, offset, bytes.len()) };
        check(result).map_err(|source| self.error(VERB, offset, bytes.len(), source))
    }

    fn check(&self, verb: &'static str, offset: u64, length: usize) -> Result<(), Error> {
        if self.has(offset, length) {
            return Ok(());
        }
        Err(Error::not_called(verb, ErrorKind::OutOfBounds, "the bytes are not all in the device memory")
            .with("offset", offset)
            .with("length", length)
            .with("dm_length", self.0.length))
    }

    #[cold]
    fn error(&self, verb: &'static str, offset: u64, length: usize, source: io::Error) -> Error {
        Error::of_device(self.context(), verb, WHAT, source).with("offset", offset).with("length", length)
    }

    /// The number by which others [import](DeviceContext::import_dm) the memory (`ibv_dm::handle`);
    /// `None` if the library has none.
    pub fn handle(&self) -> Option<u32> {
        let dm = self.as_raw().as_ptr();
        // SAFETY: `self` keeps the memory alive. Every release's struct has `comp_mask`, which says
        // whether `handle` exists.
        unsafe {
            let there = (*dm).comp_mask & ibv_dm_mask::IBV_DM_MASK_HANDLE.0 != 0;
            there.then(|| (*dm).handle)
        }
    }

    /// Whether it was [imported](DeviceContext::import_dm), so that dropping it leaves the memory
    /// to its owner.
    pub fn is_imported(&self) -> bool {
        self.0.imported
    }

    /// The device context in which it was allocated.
    pub fn context(&self) -> &DeviceContext {
        &self.0.context
    }

    /// The C object, for verbs that this crate does not wrap. Using it is as unsafe as in C; do not
    /// free it.
    pub fn as_raw(&self) -> NonNull<ibv_dm> {
        self.0.dm
    }
}

impl PartialEq for DeviceMemory {
    /// Whether both refer to the same memory, by its pointer.
    fn eq(&self, other: &Self) -> bool {
        self.0.dm == other.0.dm
    }
}

impl Eq for DeviceMemory {}

impl fmt::Debug for DeviceMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceMemory")
            .field("length", &self.0.length)
            .field("context", &self.0.context)
            .finish_non_exhaustive()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let dm = self.dm.as_ptr();
        if self.imported {
            match self.context.provider().verbs().ibv_unimport_dm() {
                // SAFETY: the memory was imported. Every region of it held this `Inner` and is
                // gone.
                Ok(unimport) => unsafe { unimport(dm) },
                Err(error) => log::error!("imported device memory stays: {error}"),
            }
            return;
        }
        // SAFETY: the memory is alive until here. Every region of it held this `Inner` and is gone.
        if let Err(error) = check(unsafe { verbs::ibv_free_dm(dm) }) {
            log::error!("ibv_free_dm failed, {} bytes of device memory stay: {error}", self.length);
            // The library still has the memory, so the context that it depends on must stay alive
            // too.
            std::mem::forget(self.context.clone());
        }
    }
}
