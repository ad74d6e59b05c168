//! Addresses that have memory only at times.

use std::ptr::null_mut;

const LEN: usize = 4 * 4096;

/// Reserved addresses. A page of them cannot be accessed until [`fill`](Self::fill).
#[derive(Debug)]
pub(crate) struct Hole(*mut u8);

impl Drop for Hole {
    fn drop(&mut self) {
        // SAFETY: `new` mapped the addresses with this length.
        unsafe { libc::munmap(self.0.cast(), LEN) };
    }
}

impl Hole {
    pub(crate) fn new() -> Self {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping at an address that the system chooses replaces no other.
        let start = unsafe { libc::mmap(null_mut(), LEN, libc::PROT_NONE, flags, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        Self(start.cast())
    }

    /// Addresses that map a file beyond its end, which looks like memory.
    pub(crate) fn beyond_a_file() -> Self {
        let file = super::BufferFile::memory(0, false);
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address that the system chooses replaces no other.
        let start = unsafe { libc::mmap(null_mut(), LEN, rights, libc::MAP_SHARED, file.descriptor(), 0) };
        assert_ne!(start, libc::MAP_FAILED);
        Self(start.cast())
    }

    pub(crate) fn addr(&self) -> u64 {
        self.0.addr() as u64
    }

    /// Gives the addresses memory.
    pub(crate) fn fill(&self) {
        self.permit(libc::PROT_READ | libc::PROT_WRITE);
    }

    /// Permits reading alone.
    pub(crate) fn protect(&self) {
        self.permit(libc::PROT_READ);
    }

    /// Takes the memory away.
    pub(crate) fn empty(&self) {
        self.permit(libc::PROT_NONE);
    }

    fn permit(&self, protection: i32) {
        // SAFETY: the mapping belongs to this value, which accesses it in `set` and `get` alone.
        assert_eq!(unsafe { libc::mprotect(self.0.cast(), LEN, protection) }, 0);
    }

    /// Writes the first bytes, which must have memory.
    pub(crate) fn set(&self, bytes: &[u8]) {
        assert!(bytes.len() <= LEN);
        for (n, byte) in bytes.iter().enumerate() {
            // SAFETY: within the mapping, which the case has filled. The access is volatile,
            // because a device may read.
            unsafe { self.0.add(n).write_volatile(*byte) };
        }
    }

    /// The first bytes, which must have memory.
    pub(crate) fn get(&self, len: usize) -> Vec<u8> {
        assert!(len <= LEN);
        // SAFETY: within the mapping, which the case has filled. The access is volatile, because a
        // device may write.
        (0..len).map(|n| unsafe { self.0.add(n).read_volatile() }).collect()
    }
}
