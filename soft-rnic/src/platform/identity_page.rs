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
    /// Maps a page at the address that `random` selects, or near others if that one is taken.
    /// Children of a fork do not inherit it.
    ///
    /// # Errors
    ///
    /// The system has no memory for it.
    pub(crate) fn create(random: u64) -> io::Result<Self> {
        use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
        /// Addresses that programs have on all supported processors: 39 bits on the smallest.
        const BITS: u32 = if cfg!(target_arch = "x86_64") { 46 } else { 38 };
        /// Above executables without address randomisation, and a multiple of any page's length.
        const LOWEST: u64 = 1 << 33;
        const PAGE: u64 = 1 << 16;
        let hint = (random % ((1 << BITS) - LOWEST) + LOWEST) & !(PAGE - 1);
        let hint = core::ptr::without_provenance_mut(hint as usize);
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: without `MAP_FIXED`, a new mapping replaces no other.
        let base = unsafe { mmap_anonymous(hint, LENGTH, protection, flags)? };
        let base = NonNull::new(base.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let page = Self { base, process: super::fork::ForkGeneration::current() };
        // SAFETY: the range is the mapping that `mmap` just returned, which only `page` knows.
        unsafe { madvise(base.as_ptr().cast(), LENGTH, Advice::LinuxDontFork)? };
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
    pub(crate) fn create(_random: u64) -> io::Result<Self> {
        Ok(Self { base: NonNull::dangling() })
    }
}
