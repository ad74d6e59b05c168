//! The memory behind a null region (`ibv_alloc_null_mr`): a source of zeros and a sink for writes.
//!
//! Both are as long as the longest message and cost almost no memory: the source maps the system's
//! page of zeroes repeatedly, and the sink maps one small file repeatedly. The copying code
//! therefore needs no special case.

#[cfg(not(any(miri, loom)))]
use core::ffi::c_void;
#[cfg(not(any(miri, loom)))]
use core::ops::Range;
use core::ptr::NonNull;
use std::io;
use std::sync::{Arc, Mutex, PoisonError, Weak};

#[cfg(not(any(miri, loom)))]
use super::limits;
use crate::config::MAX_MESSAGE;

/// Bytes of each part: the length of the longest message.
const LEN: usize = if cfg!(any(miri, loom)) { 1 << 16 } else { MAX_MESSAGE as usize };

/// Length of the file: a compromise between the number of mappings and the memory used once all of
/// it was written.
#[cfg(not(any(miri, loom)))]
const PERIOD: usize = 1 << 25;
#[cfg(not(any(miri, loom)))]
const _: () = assert!(LEN.is_multiple_of(PERIOD));

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
        use rustix::mm::{Advice, MapFlags, MremapFlags, ProtFlags, madvise, mmap, mremap};
        use rustix::mm::{mremap_fixed, munmap};
        limits::check_file_length(PERIOD)?;
        limits::check_mappings(LEN / PERIOD + 1)?;
        let file = memfd_create(c"soft-rnic null", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, PERIOD as u64)?;
        let base = Self::reserve()?;
        let (access, shared) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        let fixed = shared | MapFlags::FIXED;
        let page = rustix::param::page_size();
        let seed = unlocked(page, || {
            // SAFETY: a new mapping at an address that the system chooses replaces no other.
            unsafe { mmap(core::ptr::null_mut(), page, access, shared, &file, 0) }
        });
        let seed = seed.inspect_err(|_| {
            // SAFETY: `reserve` made the mapping, whose address no other code has.
            unsafe { unmap(base, 0..0) };
        })?;
        // SAFETY: the seed stays as it is, because its old length is 0 (mremap(2)). Only this
        // function knows the copy.
        let copied =
            unsafe { mremap(seed, 0, page, MremapFlags::MAYMOVE).and_then(|copy| munmap(copy, page)) };
        // It fails in some emulators.
        let can_repeat = copied.is_ok();
        let repeated = (LEN..2 * LEN).step_by(PERIOD).try_for_each(|at| {
            let place = base.as_ptr().wrapping_add(at).cast();
            // SAFETY: this replaces a part of the reservation, whose address no other code has. The
            // seed stays as it is.
            let mapped = unsafe {
                if can_repeat {
                    mremap_fixed(seed, 0, PERIOD, MremapFlags::MAYMOVE, place)
                } else {
                    mmap(place, PERIOD, access, fixed, &file, 0)
                }
            };
            mapped.map(drop).map_err(|errno| (at, limits::unmappable(errno, PERIOD)))
        });
        // SAFETY: only this function knows the seed.
        let _ = unsafe { munmap(seed, page) };
        if let Err((at, error)) = repeated {
            // The system may have unmapped this part before it refused the new mapping. It stays,
            // because another thread may have mapped memory there.
            // SAFETY: the rest is this function's.
            unsafe { unmap(base, at..at + PERIOD) };
            return Err(error);
        }
        // From here on, dropping the value unmaps the memory.
        let nowhere = Self { base };
        // SAFETY: the range is the mapping that was just made, and the advice changes no byte.
        unsafe { madvise(nowhere.base.as_ptr().cast(), 2 * LEN, Advice::LinuxDontDump)? };
        Ok(nowhere)
    }

    /// Maps the source, and reserves the addresses of the sink behind it.
    #[cfg(not(any(miri, loom)))]
    fn reserve() -> io::Result<NonNull<u8>> {
        use rustix::mm::{MapFlags, MremapFlags, ProtFlags, mmap_anonymous, mremap, munmap};
        let page = rustix::param::page_size();
        let zeroes = MapFlags::PRIVATE | MapFlags::NORESERVE;
        let seed = unlocked(page, || {
            // SAFETY: a new mapping at an address that the system chooses replaces no other.
            unsafe { mmap_anonymous(core::ptr::null_mut(), page, ProtFlags::READ, zeroes) }
        })?;
        // SAFETY: only this function knows the seed, so that it may move.
        let base = unsafe { mremap(seed, page, 2 * LEN, MremapFlags::MAYMOVE) }.map_err(|errno| {
            // SAFETY: the seed is still there, and only this function knows it.
            let _ = unsafe { munmap(seed, page) };
            limits::unmappable(errno, 2 * LEN)
        })?;
        NonNull::new(base.cast()).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
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

/// Makes a mapping of this length, and unlocks it. After `mlockall(MCL_FUTURE)` the system locks
/// every new mapping, and makes its pages present. What grows from an unlocked mapping is not locked.
#[cfg(not(any(miri, loom)))]
fn unlocked(len: usize, map: impl FnOnce() -> rustix::io::Result<*mut c_void>) -> io::Result<*mut c_void> {
    let place = map().map_err(|errno| limits::unmappable(errno, len))?;
    // SAFETY: the range was just mapped, and stays as it is.
    if let Err(error) = unsafe { rustix::mm::munlock(place, len) } {
        log::debug!("munlock: {error}");
    }
    Ok(place)
}

/// Unmaps the source and the sink, except a hole.
///
/// # Safety
///
/// All but the hole is this module's, and no code uses it any more.
#[cfg(not(any(miri, loom)))]
unsafe fn unmap(base: NonNull<u8>, hole: Range<usize>) {
    for part in [0..hole.start, hole.end..2 * LEN].into_iter().filter(|part| !part.is_empty()) {
        let place = base.as_ptr().wrapping_add(part.start).cast();
        // SAFETY: the caller guarantees it.
        if let Err(error) = unsafe { rustix::mm::munmap(place, part.len()) } {
            log::error!("munmap of the null region's memory failed: {error}");
        }
    }
}

#[cfg(not(any(miri, loom)))]
impl Drop for Nowhere {
    fn drop(&mut self) {
        // SAFETY: `map` made the mapping with this length, and the regions that used it have been
        // deregistered.
        unsafe { unmap(self.base, 0..0) };
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
