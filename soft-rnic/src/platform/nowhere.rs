//! Memory of null regions: reads give zero, writes are lost.
//!
//! Both are as long as the longest message, and take next to nothing: the first is the system's page of zeroes, over and over; the
//! second is a small file that is mapped again and again behind itself. So whoever copies need not know of either.

use core::ptr::NonNull;
use std::io;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Bytes of each: the longest message.
const LEN: usize = if cfg!(any(miri, loom)) { 1 << 16 } else { 1 << 30 };

/// The two, one behind the other.
#[derive(Debug)]
pub(crate) struct Nowhere {
    base: NonNull<u8>,
}

// SAFETY: a mapping belongs to the process, not to a thread; what its bytes are does not matter.
unsafe impl Send for Nowhere {}
// SAFETY: a mapping belongs to the process, not to a thread; what its bytes are does not matter;
// the type gives out addresses only.
unsafe impl Sync for Nowhere {}

static CURRENT: Mutex<Weak<Nowhere>> = Mutex::new(Weak::new());

impl Nowhere {
    /// The one that there is, or a new one. A forked child has its parent's.
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

    /// Its beginning, for [`sources`] and [`sinks`] to find their way from.
    pub(crate) fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    #[cfg(not(any(miri, loom)))]
    fn map() -> io::Result<Self> {
        use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
        use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous};
        /// Of the file: few mappings, and little memory when all of it has been written.
        const PERIOD: usize = 1 << 24;
        const _: () = assert!(LEN.is_multiple_of(PERIOD));
        let zeroes = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping where the system finds room.
        let base = unsafe { mmap_anonymous(core::ptr::null_mut(), 2 * LEN, ProtFlags::READ, zeroes)? };
        let base = NonNull::new(base.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        // From here on the drop unmaps it.
        let nowhere = Self { base };
        let file = memfd_create(c"soft-rnic null", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, PERIOD as u64)?;
        for at in (LEN..2 * LEN).step_by(PERIOD) {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            let place = nowhere.base.as_ptr().wrapping_add(at).cast();
            // SAFETY: a part of the mapping that was just made, of which nobody knows yet, is replaced.
            unsafe { mmap(place, PERIOD, access, MapFlags::SHARED | MapFlags::FIXED, &file, 0)? };
        }
        Ok(nowhere)
    }

    #[cfg(any(miri, loom))]
    fn map() -> io::Result<Self> {
        // SAFETY: the layout is not empty.
        let base = unsafe { std::alloc::alloc_zeroed(Self::layout()) };
        Ok(Self { base: NonNull::new(base).ok_or(io::ErrorKind::OutOfMemory)? })
    }

    #[cfg(any(miri, loom))]
    fn layout() -> std::alloc::Layout {
        std::alloc::Layout::from_size_align(2 * LEN, 4096).expect("a small size")
    }
}

/// So many bytes of zero, in the memory that begins here; `None` if they are more than the longest message.
pub(crate) fn source(base: *mut u8, len: u64) -> Option<*mut u8> {
    (len <= LEN as u64).then_some(base)
}

/// Room for so many bytes that nobody wants, in the memory that begins here.
pub(crate) fn sink(base: *mut u8, len: u64) -> Option<*mut u8> {
    (len <= LEN as u64).then(|| base.wrapping_add(LEN))
}

#[cfg(not(any(miri, loom)))]
impl Drop for Nowhere {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this length; the regions that knew of it have gone.
        if let Err(error) = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), 2 * LEN) } {
            log::error!("munmap of the null region's memory failed: {error}");
        }
    }
}

#[cfg(any(miri, loom))]
impl Drop for Nowhere {
    fn drop(&mut self) {
        // SAFETY: allocated by `map` with this layout.
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
        // SAFETY: both are mapped for LEN bytes; races on the second do not matter, and there are none on the first.
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
