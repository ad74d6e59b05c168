//! A page that tells this process's memory from that of every other program.
//!
//! Peers address a process by its number, and a number outlives a program: after `exec` it names
//! another program's memory, and after an exit another process. Each process therefore maps one
//! private page at a random address, and each copy by the system begins with one byte of that page
//! (see [`vm`](super::vm)). A process without it is not the one that registered the memory.

use core::ptr::NonNull;
use std::io;

/// The page. Peers read and write its bytes, whose values mean nothing.
#[derive(Debug)]
pub(crate) struct IdentityPage {
    base: NonNull<u8>,
    #[cfg(not(any(miri, loom)))]
    process: super::fork::ForkGeneration,
}

// SAFETY: a mapping belongs to the process and not to a thread, and no code of this process
// accesses its bytes.
unsafe impl Send for IdentityPage {}
// SAFETY: a mapping belongs to the process, and the type's methods only return its address.
unsafe impl Sync for IdentityPage {}

/// The length of the mapping, which the system rounds up to a page.
#[cfg(not(any(miri, loom)))]
const LENGTH: usize = 1;

impl IdentityPage {
    /// Its address in this process.
    pub(crate) fn address(&self) -> u64 {
        self.base.as_ptr().addr() as u64
    }
}

#[cfg(not(any(miri, loom)))]
impl IdentityPage {
    /// Maps a page at one of the addresses that `random` gives: the first that is free. Children of
    /// a fork do not inherit it.
    ///
    /// # Errors
    ///
    /// The system has no memory for it.
    pub(crate) fn create(mut random: impl FnMut() -> u64) -> io::Result<Self> {
        use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
        /// Where neither programs, heaps, stacks and libraries lie nor the shadow memory of
        /// sanitizers; on other processors what the smallest address space has.
        const PLACES: core::ops::Range<u64> =
            if cfg!(target_arch = "x86_64") { 1 << 45..5 << 44 } else { 1 << 34..1 << 38 };
        /// After that many the system chooses.
        const ATTEMPTS: usize = 16;
        let process = super::fork::ForkGeneration::current();
        let page_size = rustix::param::page_size() as u64;
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        let mut map = |attempt| -> io::Result<Option<Self>> {
            let hint = (random() % (PLACES.end - PLACES.start) + PLACES.start) & !(page_size - 1);
            let hint = core::ptr::without_provenance_mut::<core::ffi::c_void>(hint as usize);
            // SAFETY: without `MAP_FIXED`, a new mapping replaces no other.
            let base = unsafe { mmap_anonymous(hint, LENGTH, protection, flags)? };
            let page = NonNull::new(base.cast::<u8>()).map(|base| Self { base, process });
            Ok(page.filter(|_| base == hint || attempt == ATTEMPTS))
        };
        let page = (1..=ATTEMPTS).map(&mut map).find_map(Result::transpose);
        let page = page.ok_or(io::ErrorKind::OutOfMemory)??;
        // SAFETY: the range is the mapping that `mmap` just returned, which only `page` knows.
        unsafe { madvise(page.base.as_ptr().cast(), LENGTH, Advice::LinuxDontFork)? };
        Ok(page)
    }
}

#[cfg(not(any(miri, loom)))]
impl Drop for IdentityPage {
    fn drop(&mut self) {
        if !self.process.is_current() {
            // A forked child lacks the mapping: other memory may lie at that address.
            return;
        }
        // SAFETY: `create` made the mapping with this length, and no reference into it exists.
        if let Err(error) = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), LENGTH) } {
            log::error!("munmap of the identity page at {:p} failed: {error}", self.base);
        }
    }
}

#[cfg(any(miri, loom))]
impl IdentityPage {
    /// Without a mapping, because no peer exists under Miri and loom.
    ///
    /// # Errors
    ///
    /// It never fails.
    pub(crate) fn create(_random: impl FnMut() -> u64) -> io::Result<Self> {
        Ok(Self { base: NonNull::dangling() })
    }
}
