//! A chunk's memory where there is no RDMA: the allocator's.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::io;
use std::ptr::NonNull;

use super::config::HugePages;
use super::{Source, chunk::ChunkBytes, classes::RegistrationKind};

/// There is nothing to register with.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum PoolDomain {}

/// As where there is something to name.
pub(super) fn identity(domain: &PoolDomain) -> usize {
    match *domain {}
}

const PAGE: usize = 4096;

/// Zeroed memory that begins at a page.
pub(super) struct ChunkMemory {
    start: NonNull<u8>,
    len: usize,
    allocated: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the memory belongs to this value alone, which gives out nothing but a raw pointer.
unsafe impl Send for ChunkMemory {}
// SAFETY: a shared reference gives out the address and the length alone.
unsafe impl Sync for ChunkMemory {}

impl ChunkMemory {
    /// `len` is not 0.
    pub(super) fn make(len: usize, _: HugePages, _: Option<&PoolDomain>) -> Result<Self, Source> {
        // Aligned by hand: zeroed memory of the allocator's own alignment is not touched, and so not there, before it is used.
        let layout = Layout::from_size_align(len + PAGE, 16)?;
        // SAFETY: the layout is not empty.
        let allocated = NonNull::new(unsafe { alloc_zeroed(layout) })
            .ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
        let before = allocated.as_ptr().addr().next_multiple_of(PAGE) - allocated.as_ptr().addr();
        // SAFETY: `before` is less than a page, and there is a page more than `len`.
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
        // SAFETY: allocated with this layout, and freed here only.
        unsafe { dealloc(self.allocated.as_ptr(), self.layout) };
    }
}

/// There is none.
#[derive(Debug)]
pub(super) enum ChunkRegion {}

impl ChunkRegion {
    pub(super) fn register(_: &ChunkBytes, domain: &PoolDomain, _: RegistrationKind) -> Result<Self, Source> {
        match *domain {}
    }

    pub(super) fn lkey(&self) -> u32 {
        match *self {}
    }

    pub(super) fn rkey(&self) -> u32 {
        match *self {}
    }

    pub(super) fn is_soft(&self) -> bool {
        match *self {}
    }

    pub(super) fn end(self) -> Result<(), (Self, Source)> {
        match self {}
    }
}
