//! Memory on the device.
//!
//! Some devices have a little memory of their own, which requests reach without crossing the bus. A program copies bytes
//! [to](DeviceMemory::memcpy_to_dm) and [from](DeviceMemory::memcpy_from_dm) it, and [registers](ProtectionDomain::reg_dm_mr) parts of it for
//! requests, which name its bytes by their offset.
//!
//! ```
//! # #[cfg(feature = "soft")] {
//! # use sideway::ibverbs::device::DeviceList;
//! use sideway::ibverbs::AccessFlags;
//!
//! # let devices = DeviceList::from_provider(sideway::soft::provider())?;
//! let context = devices.first()?.open()?;
//! let memory = context.alloc_dm(4096, 3)?;
//! memory.memcpy_to_dm(64, b"counter")?;
//! let region = context.alloc_pd()?.reg_dm_mr(&memory, 64, 1024, AccessFlags::LocalWrite | AccessFlags::RemoteRead)?;
//! println!("a peer reads it with the key {:#x} from address {} on", region.rkey(), region.iova());
//!
//! let mut bytes = [0; 7];
//! memory.memcpy_from_dm(&mut bytes, 64)?;
//! assert_eq!(&bytes, b"counter");
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
/// A handle: clones stand for the same memory, which is freed (`ibv_free_dm`) when the last handle and the last region of it are
/// gone.
#[derive(Clone)]
pub struct DeviceMemory(Arc<Inner>);

struct Inner {
    dm: NonNull<ibv_dm>,
    length: usize,
    context: DeviceContext,
    /// It is another's.
    imported: bool,
}

// SAFETY: the functions of the memory may be called from any thread; what two of them write to the same bytes at the same time is
// some mixture, as with any memory that a device may write to. No reference is made to it.
unsafe impl Send for Inner {}
// SAFETY: the functions of the memory may be called from any thread; what two of them write to the
// same bytes at the same time is some mixture, as with any memory that a device may write to. No
// reference is made to it.
unsafe impl Sync for Inner {}

const WHAT: &str = "device memory";

impl DeviceContext {
    /// Allocates memory on the device (`ibv_alloc_dm`): `length` bytes, at a multiple of `1 << log_align_req`, which atomics need (3).
    ///
    /// # Errors
    ///
    /// The device has none ([`Unsupported`]), not so much left of it
    /// ([`max_dm_size`](super::device_attr::DeviceAttr::max_dm_size) is all that there is), or not so aligned.
    ///
    /// # References
    ///
    /// `man ibv_alloc_dm`
    pub fn alloc_dm(&self, length: usize, log_align_req: u32) -> Result<DeviceMemory, Error> {
        let mut attr = ibv_alloc_dm_attr { length, log_align_req, comp_mask: 0 };
        // SAFETY: the context is open, and the attributes are valid.
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

    /// Memory on the device by its [handle](DeviceMemory::handle) (`ibv_import_dm`). Dropping it unimports it
    /// (`ibv_unimport_dm`); the memory is its owner's.
    ///
    /// # Safety
    ///
    /// - The memory has `length` bytes: libraries do not tell, and not all of them check.
    /// - It is not freed as long as the imported one, or a region of it, is there; whoever owns it, here or in another
    ///   process, has to see to that.
    ///
    /// # Errors
    ///
    /// There is no such memory, or the library or device cannot import ([`Unsupported`]).
    ///
    /// # References
    ///
    /// `man ibv_import_dm`
    pub unsafe fn import_dm(&self, handle: u32, length: usize) -> Result<DeviceMemory, Error> {
        const WHAT: &str = "import of device memory";
        let lib = self.provider().verbs();
        let import = lib.ibv_import_dm().map_err(|symbol| Unsupported::missing(self, WHAT, symbol))?;
        // SAFETY: the context is open.
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
    /// How many bytes it has.
    #[expect(clippy::len_without_is_empty, reason = "no device has empty memory")]
    pub fn len(&self) -> usize {
        self.0.length
    }

    /// Whether it has so many bytes there.
    pub(crate) fn has(&self, offset: u64, length: usize) -> bool {
        offset.checked_add(length as u64).is_some_and(|end| end <= self.0.length as u64)
    }

    /// Copies bytes to the memory, from `offset` on (`ibv_memcpy_to_dm`).
    ///
    /// # Errors
    ///
    /// They do not fit there, or the device says no: some want offset and length to be multiples of 4.
    pub fn memcpy_to_dm(&self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        const VERB: &str = "ibv_memcpy_to_dm";
        self.check(VERB, offset, bytes.len())?;
        let dm = self.as_raw().as_ptr();
        // SAFETY: the memory lives; the field is in every release's struct.
        if unsafe { (*dm).memcpy_to_dm }.is_none() {
            return Err(Unsupported::new(self.context(), VERB, WHAT).into());
        }
        // SAFETY: the memory lives and has so many bytes there, its operation was just checked, and the bytes are readable.
        let result = unsafe { verbs::ibv_memcpy_to_dm(dm, offset, bytes.as_ptr().cast(), bytes.len()) };
        check(result).map_err(|source| self.error(VERB, offset, bytes.len(), source))
    }

    /// Copies bytes of the memory, from `offset` on (`ibv_memcpy_from_dm`).
    ///
    /// # Errors
    ///
    /// There are not so many there, or the device says no, as for [`memcpy_to_dm`](Self::memcpy_to_dm).
    pub fn memcpy_from_dm(&self, bytes: &mut [u8], offset: u64) -> Result<(), Error> {
        const VERB: &str = "ibv_memcpy_from_dm";
        self.check(VERB, offset, bytes.len())?;
        let dm = self.as_raw().as_ptr();
        // SAFETY: the memory lives; the field is in every release's struct.
        if unsafe { (*dm).memcpy_from_dm }.is_none() {
            return Err(Unsupported::new(self.context(), VERB, WHAT).into());
        }
        // SAFETY: the memory lives and has so many bytes there, its operation was just checked, and the bytes are writable.
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

    /// The number by which others [import](DeviceContext::import_dm) it (`ibv_dm::handle`); `None` where the library tells none.
    pub fn handle(&self) -> Option<u32> {
        let dm = self.as_raw().as_ptr();
        // SAFETY: the memory lives; the mask is in every release's struct, and says whether the handle is.
        unsafe {
            let there = (*dm).comp_mask & ibv_dm_mask::IBV_DM_MASK_HANDLE.0 != 0;
            there.then(|| (*dm).handle)
        }
    }

    /// Whether it was [imported](DeviceContext::import_dm): dropping it leaves the memory to its owner.
    pub fn is_imported(&self) -> bool {
        self.0.imported
    }

    /// The context that it was allocated in.
    pub fn context(&self) -> &DeviceContext {
        &self.0.context
    }

    /// The C object. Using it is as unsafe as in C, and it must not be freed.
    pub fn as_raw(&self) -> NonNull<ibv_dm> {
        self.0.dm
    }
}

impl PartialEq for DeviceMemory {
    /// The same memory, by the same pointer.
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
                // SAFETY: it was imported, and every region of it held this `Inner` and is gone.
                Ok(unimport) => unsafe { unimport(dm) },
                Err(error) => log::error!("imported device memory stays: {error}"),
            }
            return;
        }
        // SAFETY: the memory lives, and every region of it held this `Inner` and is gone.
        if let Err(error) = check(unsafe { verbs::ibv_free_dm(dm) }) {
            log::error!("ibv_free_dm failed, {} bytes of device memory stay: {error}", self.length);
            // The memory is still there, so what it depends on has to stay.
            std::mem::forget(self.context.clone());
        }
    }
}
