//! The message that goes to and fro, and the memory that it is in.

use std::alloc::{self, Layout};
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

use sideway::ibverbs::AccessFlags;
use sideway::ibverbs::memory_region::MemoryRegion;
use sideway::ibverbs::protection_domain::ProtectionDomain;

use crate::program::{Failure, note};

/// Registered memory for two messages, taken in turn: while one is on its way out, the next one comes in
/// beside it. What came in is what goes out next, so the message really travels.
///
/// Nothing here ever makes a reference to the memory, since the device may write to it at any time.
pub struct Ball {
    memory: NonNull<u8>,
    layout: Layout,
    region: ManuallyDrop<MemoryRegion>,
    size: u32,
    /// From the one message to the other.
    stride: usize,
}

impl Ball {
    /// C's filling; with it, the first byte of each page is another if the message is to be checked.
    const FILLING: u8 = 0x7b;
    const PAGE_MARK: u8 = 0;

    /// Memory for two messages of this size, at least one byte.
    ///
    /// # Errors
    ///
    /// There is not so much memory, or it cannot be registered.
    pub fn new(pd: &ProtectionDomain, size: u32) -> Result<Self, Failure> {
        let page = rustix::param::page_size();
        let stride = usize::try_from(size)?.next_multiple_of(page);
        let layout = Layout::from_size_align(2 * stride, page)?;
        // SAFETY: a message has at least one byte, so the layout has at least two pages.
        let memory = unsafe { alloc::alloc(layout) };
        let memory = NonNull::new(memory).ok_or_else(|| {
            Failure::setup(format_args!("no memory for two messages of {size} bytes; choose fewer with -s"))
        })?;
        // SAFETY: so many bytes were allocated just now.
        unsafe { memory.write_bytes(Self::FILLING, layout.size()) };
        // SAFETY: `drop` frees the memory only after it was deregistered, and no reference to it is ever made.
        let region = unsafe { pd.reg_mr(memory.as_ptr(), layout.size(), AccessFlags::LocalWrite) };
        match region {
            Ok(region) => Ok(Self { memory, layout, region: ManuallyDrop::new(region), size, stride }),
            Err(error) => {
                // SAFETY: allocated above with this layout, and nothing else knows of it.
                unsafe { alloc::dealloc(memory.as_ptr(), layout) };
                Err(error.into())
            }
        }
    }

    /// The key to both messages.
    pub fn lkey(&self) -> u32 {
        self.region.lkey()
    }

    /// Where a message is. Even and odd turns take turns.
    pub fn addr(&self, turn: u32) -> u64 {
        self.message(turn).as_ptr().addr() as u64
    }

    /// How long a message is.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Writes the marks that [`wrong_pages`](Self::wrong_pages) looks for. To be called before anything is
    /// posted, or the device sends who knows what.
    pub fn mark(&self, turn: u32) {
        for page in (0..self.size as usize).step_by(self.layout.align()) {
            // SAFETY: `page` is below the message's size; the write makes no reference.
            unsafe { self.message(turn).add(page).write_volatile(Self::PAGE_MARK) };
        }
    }

    /// The pages of a message that are not as [`mark`](Self::mark) left them. A byte that once went wrong
    /// stays wrong while the message travels, so looking once, at the end, is enough.
    pub fn wrong_pages(&self, turn: u32) -> Vec<usize> {
        let page = self.layout.align();
        let mut wrong: Vec<usize> = (0..self.size as usize)
            .filter(|place| {
                let expected = if place % page == 0 { Self::PAGE_MARK } else { Self::FILLING };
                // SAFETY: `place` is below the message's size; the read makes no reference.
                unsafe { self.message(turn).add(*place).read_volatile() != expected }
            })
            .map(|place| place / page)
            .collect();
        wrong.dedup();
        wrong
    }

    fn message(&self, turn: u32) -> NonNull<u8> {
        // SAFETY: the memory is twice as long as the stride.
        unsafe { self.memory.add(turn as usize % 2 * self.stride) }
    }
}

impl Drop for Ball {
    fn drop(&mut self) {
        // SAFETY: the region is not used again.
        let region = unsafe { ManuallyDrop::take(&mut self.region) };
        match region.close() {
            // SAFETY: allocated by `new` with this layout, and the device cannot reach it any more.
            Ok(()) => unsafe { alloc::dealloc(self.memory.as_ptr(), self.layout) },
            // The device may still write to the memory, so it is nobody's from now on.
            Err(error) => note(format_args!("warning: {error}")),
        }
    }
}
