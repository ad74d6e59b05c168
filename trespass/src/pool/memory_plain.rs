//! A chunk's memory without RDMA: from the allocator.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::io;
use std::ptr::NonNull;

use super::config::HugePages;
use super::{Source, chunk::ChunkBytes, classes::RegistrationKind};

/// The keys that a block has room for, and which it never has.
pub(super) const MOST_DEVICES: usize = 1;

/// Never exists, because nothing is registered.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum DomainSet {}

impl DomainSet {
    /// The same signature as with RDMA.
    pub(super) fn identity(&self) -> usize {
        match *self {}
    }
}

const PAGE: usize = 4096;

/// Zeroed memory that begins at a page boundary.
pub(super) struct ChunkMemory {
    start: NonNull<u8>,
    len: usize,
    allocated: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the memory belongs to this value alone, which only returns a raw pointer.
unsafe impl Send for ChunkMemory {}
// SAFETY: a shared reference only returns the address and the length.
unsafe impl Sync for ChunkMemory {}

impl ChunkMemory {
    /// `len` is not 0.
    pub(super) fn make(len: usize, _: HugePages, _: Option<&DomainSet>) -> Result<Self, Source> {
        // Aligned by hand: zeroed memory of the allocator's natural alignment is not touched, and
        // so not present, before it is used.
        let layout = Layout::from_size_align(len + PAGE, 16)?;
        // SAFETY: the layout is not empty.
        let allocated = NonNull::new(unsafe { alloc_zeroed(layout) })
            .ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
        let before = allocated.as_ptr().addr().next_multiple_of(PAGE) - allocated.as_ptr().addr();
        // SAFETY: `before` is less than a page, and the allocation is a page longer than `len`.
        let start = unsafe { allocated.add(before) };
        Ok(Self { start, len, allocated, layout })
    }

    pub(super) fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for ChunkMemory {
    fn drop(&mut self) {
        // SAFETY: `make` allocated it with this layout, and only this drop frees it.
        unsafe { dealloc(self.allocated.as_ptr(), self.layout) };
    }
}

/// Never exists, because nothing is registered.
#[derive(Debug)]
pub(super) enum ChunkRegion {}

impl ChunkRegion {
    pub(super) fn register(
        _: &ChunkBytes,
        domains: &DomainSet,
        _: RegistrationKind,
    ) -> Result<Self, (Option<Self>, Source)> {
        match *domains {}
    }

    pub(super) fn count(&self) -> usize {
        match *self {}
    }

    pub(super) fn keys(&self, _: usize) -> Option<(u32, u32)> {
        match *self {}
    }

    pub(super) fn is_soft(&self) -> bool {
        match *self {}
    }

    pub(super) fn has_failed_device(&self) -> bool {
        match *self {}
    }

    pub(super) fn end(&mut self) -> Result<(), Source> {
        match *self {}
    }
}
