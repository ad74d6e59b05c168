//! The memory behind a null region (`ibv_alloc_null_mr`): a source of zeros and a sink for writes.
//!
//! Both are as long as the longest message and cost almost no memory: the source maps the system's
//! page of zeroes repeatedly, and the sink maps one small file repeatedly. The copying code
//! therefore needs no special case.

use core::ptr::NonNull;
use std::io;
use std::sync::{Arc, Mutex, PoisonError, Weak};

#[cfg(not(any(miri, loom)))]
use super::limits;
use crate::config::MAX_MESSAGE;

/// Bytes of each part: the length of the longest message.
const LEN: usize = if cfg!(any(miri, loom)) { 1 << 16 } else { MAX_MESSAGE as usize };

/// The source, followed by the sink.
#[derive(Debug)]
pub(crate) struct Nowhere {
    base: NonNull<u8>,
}

// SAFETY: a mapping belongs to the process and not to a thread; the values of its bytes do not
// matter.
unsafe impl Send for Nowhere {}
// SAFETY: a mapping belongs to the process, and the type's methods only return addresses.
unsafe impl Sync for Nowhere {}

static CURRENT: Mutex<Weak<Nowhere>> = Mutex::new(Weak::new());

impl Nowhere {
    /// Returns the process's instance, creating it if necessary. A forked child uses its parent's.
    ///
    /// # Errors
    ///
    /// The system has no address space for it.
    pub(crate) fn acquire() -> io::Result<Arc<Self>> {
        let mut current = CURRENT.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(there) = current.upgrade() {
            return Ok(there);
        }
        let new = Arc::new(Self::map()?);
        *current = Arc::downgrade(&new);
        Ok(new)
    }

    /// The first address, from which [`source`] and [`sink`] are computed.
    pub(crate) fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    #[cfg(not(any(miri, loom)))]
    fn map() -> io::Result<Self> {
        use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
        use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous};
        /// Length of the file: a compromise between the number of mappings and the memory used once
        /// all of it was written.
        const PERIOD: usize = 1 << 25;
        const _: () = assert!(LEN.is_multiple_of(PERIOD));
        let zeroes = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address that the system chooses replaces no other.
        let base = unsafe { mmap_anonymous(core::ptr::null_mut(), 2 * LEN, ProtFlags::READ, zeroes) };
        let base = base.map_err(|errno| limits::unmappable(errno, 2 * LEN))?;
        let base = NonNull::new(base.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        // From here on, dropping the value unmaps the memory.
        let nowhere = Self { base };
        let file = memfd_create(c"soft-rnic null", MemfdFlags::CLOEXEC)?;
        limits::check_file_length(PERIOD)?;
        ftruncate(&file, PERIOD as u64)?;
        for at in (LEN..2 * LEN).step_by(PERIOD) {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            let place = nowhere.base.as_ptr().wrapping_add(at).cast();
            // SAFETY: this replaces a part of the mapping that was just made, whose address no
            // other code has yet.
            unsafe { mmap(place, PERIOD, access, MapFlags::SHARED | MapFlags::FIXED, &file, 0)? };
        }
        // SAFETY: the range is the mapping that was just made, and the advice changes no byte.
        unsafe { madvise(nowhere.base.as_ptr().cast(), 2 * LEN, Advice::LinuxDontDump)? };
        Ok(nowhere)
    }

    #[cfg(any(miri, loom))]
    fn map() -> io::Result<Self> {
        // SAFETY: the layout's length is not zero.
        let base = unsafe { std::alloc::alloc_zeroed(Self::layout()) };
        Ok(Self { base: NonNull::new(base).ok_or(io::ErrorKind::OutOfMemory)? })
    }

    #[cfg(any(miri, loom))]
    fn layout() -> std::alloc::Layout {
        std::alloc::Layout::from_size_align(2 * LEN, 4096).expect("a small size")
    }
}

/// The address of `len` zero bytes, in the memory that begins at `base`; `None` if `len` exceeds
/// the longest message.
pub(crate) fn source(base: *mut u8, len: u64) -> Option<*mut u8> {
    (len <= LEN as u64).then_some(base)
}

/// The address of a sink for `len` bytes, in the memory that begins at `base`; `None` if `len`
/// exceeds the longest message.
pub(crate) fn sink(base: *mut u8, len: u64) -> Option<*mut u8> {
    (len <= LEN as u64).then(|| base.wrapping_add(LEN))
}

#[cfg(not(any(miri, loom)))]
impl Drop for Nowhere {
    fn drop(&mut self) {
        // SAFETY: `map` made the mapping with this length, and the regions that used it have been
        // deregistered.
        if let Err(error) = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), 2 * LEN) } {
            log::error!("munmap of the null region's memory failed: {error}");
        }
    }
}

#[cfg(any(miri, loom))]
impl Drop for Nowhere {
    fn drop(&mut self) {
        // SAFETY: `map` allocated the memory with this layout.
        unsafe { std::alloc::dealloc(self.base.as_ptr(), Self::layout()) };
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn writes_are_lost_and_reads_are_zero() {
        let nowhere = Nowhere::acquire().expect("address space");
        let (from, to) =
            (source(nowhere.base(), 64).expect("short"), sink(nowhere.base(), 64).expect("short"));
        // SAFETY: both parts are mapped for LEN bytes; races on the sink do not matter, and no code
        // writes to the source.
        unsafe {
            for at in [0, 1, LEN / 2, LEN - 1] {
                to.add(at).write_volatile(0xff);
                assert_eq!(from.add(at).read_volatile(), 0);
            }
        }
        assert!(source(nowhere.base(), LEN as u64 + 1).is_none() && sink(nowhere.base(), u64::MAX).is_none());
        assert_eq!(Nowhere::acquire().expect("there is one").base(), nowhere.base());
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no mappings")]
    fn it_takes_little_memory_and_few_mappings() {
        let nowhere = Nowhere::acquire().expect("address space");
        let maps = std::fs::read_to_string("/proc/self/maps").expect("/proc");
        assert!(maps.lines().filter(|line| line.contains("/memfd:soft-rnic null")).count() <= 64);
        drop(nowhere);
    }
}
