//! The memory that messages come from and go to, laid out as perftest's.
//!
//! A queue pair has two halves of memory, each of the largest message's size but at least a page: it sends
//! from the first, and the peer writes into the second. Small messages move through one page of a half, so that
//! neither side sends the same cache line again and again.
//!
//! # Safety
//!
//! The device and the peer write into this memory at any time once it is registered, so this module never
//! makes a reference to it: bytes are read and written one at a time through raw pointers, as volatile. An
//! access stays inside the allocation because every pointer is made by [`Buffer::flag`], which checks.

#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::fmt;
use std::marker::PhantomData;
use std::ptr::NonNull;

/// A message takes up at least this much of the page that small messages move through.
const CACHE_LINE: u64 = 64;

/// The system has no such memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot allocate {0} bytes for messages: give a smaller -s or --max-msg-size")]
pub struct AllocationError(pub u64);

/// Where messages lie within the memory of one queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferLayout {
    half: u64,
    page: u64,
}

impl BufferLayout {
    /// The layout for messages of up to `largest` bytes.
    pub fn new(largest: u64) -> Self {
        let page = rustix::param::page_size() as u64;
        Self { half: largest.max(page), page }
    }

    /// Bytes in all.
    pub fn length(self) -> u64 {
        self.half.saturating_mul(2)
    }

    /// Bytes of the half that the peer writes into.
    pub fn half(self) -> u64 {
        self.half
    }

    /// Where the half that the peer writes into begins.
    pub fn receive_offset(self) -> u64 {
        self.half
    }

    /// How messages of this size move through a half.
    pub fn cycle(self, size: u64) -> Cycle {
        let step = size.max(1).next_multiple_of(CACHE_LINE);
        let slots = if size <= self.page / 2 { self.page / step } else { 1 };
        Cycle { step, end: step * slots, offset: 0 }
    }
}

/// The offsets of successive messages: one step further each time, then back to the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cycle {
    step: u64,
    end: u64,
    offset: u64,
}

impl Cycle {
    /// The offset of the next message.
    #[inline]
    pub fn advance(&mut self) -> u64 {
        let offset = self.offset;
        self.offset = if offset + self.step >= self.end { 0 } else { offset + self.step };
        offset
    }

    /// Begins again.
    #[inline]
    pub fn restart(&mut self) {
        self.offset = 0;
    }
}

/// Zeroed memory that begins at a page.
pub struct Buffer {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the allocation belongs to the buffer alone and no reference to it exists; its bytes are accessed
// through flags, which borrow the buffer.
unsafe impl Send for Buffer {}

impl Buffer {
    /// Allocates as many bytes as the layout has.
    pub fn new(layout: BufferLayout) -> Result<Self, AllocationError> {
        let failed = AllocationError(layout.length());
        let size = usize::try_from(layout.length()).map_err(|_| failed)?;
        let layout = Layout::from_size_align(size, layout.page as usize).map_err(|_| failed)?;
        // SAFETY: the size is not 0: a layout's half is at least a page.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(failed)?;
        Ok(Self { start, layout })
    }

    /// The first byte, to register.
    pub fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// The first byte's address, as the device knows it.
    pub fn address(&self) -> u64 {
        self.start.addr().get() as u64
    }

    /// How many bytes there are.
    pub fn length(&self) -> usize {
        self.layout.size()
    }

    /// The byte at an offset.
    ///
    /// # Panics
    ///
    /// If the offset is outside the buffer.
    pub fn flag(&self, offset: u64) -> Flag<'_> {
        assert!(offset < self.length() as u64, "offset {offset} is outside a buffer of {}", self.length());
        // SAFETY: the offset is inside the allocation.
        let byte = unsafe { self.start.add(offset as usize) };
        Flag { byte, _buffer: PhantomData }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: `start` came from `alloc_zeroed` with this layout, and no flag outlives the buffer.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({:p}, {} bytes)", self.start, self.length())
    }
}

/// One byte of a buffer, which the device may read or write meanwhile.
#[derive(Clone, Copy, Debug)]
pub struct Flag<'a> {
    byte: NonNull<u8>,
    _buffer: PhantomData<&'a Buffer>,
}

impl Flag<'_> {
    /// Reads the byte, now.
    #[inline]
    pub fn load(self) -> u8 {
        // SAFETY: the byte is inside a live buffer (`Buffer::flag`), and any bit pattern is a `u8`.
        unsafe { self.byte.read_volatile() }
    }

    /// Writes the byte, now.
    #[inline]
    pub fn store(self, value: u8) {
        // SAFETY: the byte is inside a live buffer (`Buffer::flag`), to which no reference exists.
        unsafe { self.byte.write_volatile(value) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYOUT: BufferLayout = BufferLayout { half: 4096, page: 4096 };

    fn offsets(size: u64, count: usize) -> Vec<u64> {
        let mut cycle = LAYOUT.cycle(size);
        (0..count).map(|_| cycle.advance()).collect()
    }

    #[test]
    fn each_half_holds_the_largest_message_and_at_least_a_page() {
        let page = rustix::param::page_size() as u64;
        assert_eq!(BufferLayout::new(2).length(), 2 * page);
        let large = BufferLayout::new(8 << 20);
        assert_eq!((large.length(), large.receive_offset(), large.half()), (16 << 20, 8 << 20, 8 << 20));
    }

    #[test]
    fn small_messages_move_through_a_page_in_cache_lines() {
        assert_eq!(offsets(2, 3), [0, 64, 128]);
        assert_eq!(offsets(2, 66)[63..], [4032, 0, 64]);
        assert_eq!(offsets(65, 3), [0, 128, 256]);
        assert_eq!(offsets(1000, 6), [0, 1024, 2048, 3072, 0, 1024]);
        assert_eq!(offsets(2048, 3), [0, 2048, 0]);
        // Seven slots of 576 bytes fit into the page.
        assert_eq!(offsets(520, 9)[6..], [3456, 0, 576]);
    }

    #[test]
    fn messages_above_half_a_page_stay() {
        assert_eq!(offsets(2049, 3), [0, 0, 0]);
        assert_eq!(offsets(8 << 20, 2), [0, 0]);
    }

    #[test]
    fn no_message_leaves_its_half() {
        for size in 1..=4096 {
            assert!(offsets(size, 70).iter().all(|offset| offset + size <= LAYOUT.half), "{size}");
        }
    }

    #[test]
    fn a_cycle_restarts() {
        let mut cycle = LAYOUT.cycle(64);
        cycle.advance();
        cycle.restart();
        assert_eq!(cycle.advance(), 0);
    }

    #[test]
    fn a_buffer_is_aligned_zeroed_and_writable_to_its_last_byte() {
        let buffer = Buffer::new(BufferLayout::new(5000)).unwrap();
        assert_eq!((buffer.length(), buffer.address() % rustix::param::page_size() as u64), (10_000, 0));
        let last = buffer.flag(9_999);
        assert_eq!(last.load(), 0);
        last.store(200);
        assert_eq!((last.load(), buffer.flag(9_998).load()), (200, 0));
    }

    #[test]
    #[should_panic(expected = "outside a buffer")]
    fn a_flag_outside_is_refused() {
        Buffer::new(BufferLayout::new(1)).unwrap().flag(1 << 20);
    }

    #[test]
    fn more_than_there_is_is_an_error() {
        let error = Buffer::new(BufferLayout::new(u64::MAX)).unwrap_err();
        assert!(error.to_string().contains("cannot allocate 18446744073709551615 bytes"));
    }
}
