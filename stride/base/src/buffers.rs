//! The buffers of messages, laid out like perftest's.
//!
//! Each queue pair has two halves of memory, each of the largest message's size but at least a
//! page. It sends from the first, or reads into it, and the peer reaches the second. Small messages
//! cycle through one page of a half, so that neither side sends the same cache line repeatedly.
//!
//! # Safety
//!
//! The device and the peer write into this memory at any time once it is registered. This module
//! therefore never makes a reference to it: it reads and writes one byte at a time through raw
//! pointers, as volatile accesses. An access stays inside the allocation because [`Flag::new`]
//! checks every pointer, and `Flag::behind` only makes pointers between two that were checked.

#![allow(unsafe_code)]

use std::marker::PhantomData;

use sideway::memory::{Buffer, BufferKind};

/// The least space that a message takes up of the page that small messages cycle through.
const CACHE_LINE: u64 = 64;

/// The system cannot provide this kind or amount of memory.
#[derive(Debug, thiserror::Error)]
#[error("{0}: give a smaller -s or --max-msg-size")]
pub struct AllocationError(sideway::Error);

/// The offsets of messages within the memory of a side's queue pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferLayout {
    half: u64,
    page: u64,
    pairs: u32,
}

impl BufferLayout {
    /// The layout for messages of up to `largest` bytes over `pairs` queue pairs. Every half starts
    /// at a cache line.
    pub fn new(largest: u64, pairs: u32) -> Self {
        let page = rustix::param::page_size() as u64;
        let half = largest.max(page).checked_next_multiple_of(CACHE_LINE).unwrap_or(u64::MAX);
        Self { half, page, pairs }
    }

    /// Total length in bytes.
    pub fn length(self) -> u64 {
        self.half.saturating_mul(2).saturating_mul(self.pairs.into())
    }

    /// Length in bytes of the half that the peer reaches.
    pub fn half(self) -> u64 {
        self.half
    }

    /// Offset of the half that a queue pair sends from.
    pub fn send_offset(self, pair: usize) -> u64 {
        2 * self.half * pair as u64
    }

    /// Offset of the half of a queue pair that the peer reaches.
    pub fn receive_offset(self, pair: usize) -> u64 {
        self.send_offset(pair) + self.half
    }

    /// Allocates the memory and makes all of its pages present.
    ///
    /// # Errors
    ///
    /// The system has too little memory of this kind.
    pub fn allocate(self, kind: BufferKind) -> Result<Buffer, AllocationError> {
        // A length beyond the address space fails like any other that is too large.
        let length = usize::try_from(self.length()).unwrap_or(usize::MAX);
        let buffer = Buffer::new(kind, length).map_err(AllocationError)?;
        // Touches every page, so that the first message does not pay for page faults.
        (0..self.length()).step_by(self.page as usize).for_each(|page| Flag::new(&buffer, page).store(0));
        Ok(buffer)
    }

    /// The path of messages of this size through a half.
    pub fn cycle(self, size: u64) -> Cycle {
        let step = size.max(1).next_multiple_of(CACHE_LINE);
        let slots = if size <= self.page / 2 { self.page / step } else { 1 };
        Cycle { step, end: step * slots, offset: 0 }
    }
}

/// Fills a range; `byte` gives each byte for its distance from `offset`.
///
/// # Panics
///
/// If the range exceeds the buffer.
pub fn fill(buffer: &Buffer, offset: u64, length: u64, mut byte: impl FnMut(u64) -> u8) {
    let Some(last) = length.checked_sub(1) else { return };
    let (first, _) = (Flag::new(buffer, offset), Flag::new(buffer, offset + last));
    (0..length).for_each(|place| first.behind(place).store(byte(place)));
}

/// Returns the first byte of a range that differs from `byte`: its distance from `offset`, and its
/// value.
///
/// # Panics
///
/// If the range exceeds the buffer.
pub fn first_difference(
    buffer: &Buffer,
    offset: u64,
    length: u64,
    mut byte: impl FnMut(u64) -> u8,
) -> Option<(u64, u8)> {
    let last = length.checked_sub(1)?;
    let (first, _) = (Flag::new(buffer, offset), Flag::new(buffer, offset + last));
    (0..length).map(|place| (place, first.behind(place).load())).find(|(place, found)| *found != byte(*place))
}

/// The offsets of successive messages: each advances by one step, and the last wraps to the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cycle {
    step: u64,
    end: u64,
    offset: u64,
}

impl Cycle {
    /// Returns the offset of the next message.
    #[inline]
    pub fn advance(&mut self) -> u64 {
        let offset = self.offset;
        self.offset = if offset + self.step >= self.end { 0 } else { offset + self.step };
        offset
    }

    /// The cycle without advancing: every message has the first offset.
    pub fn still(self) -> Self {
        Self { end: self.step, ..self }
    }

    /// The offset of message `number`, from 0, in a new cycle.
    pub fn nth(self, number: u64) -> u64 {
        self.step * (number % self.slots())
    }

    /// The number of messages before the offsets repeat.
    pub fn slots(self) -> u64 {
        self.end / self.step
    }

    /// Returns to the first offset.
    #[inline]
    pub fn restart(&mut self) {
        self.offset = 0;
    }
}

/// One byte of a buffer, which the device may read or write at the same time.
#[derive(Clone, Copy, Debug)]
pub struct Flag<'a> {
    byte: *mut u8,
    _buffer: PhantomData<&'a Buffer>,
}

impl<'a> Flag<'a> {
    /// The byte at an offset.
    ///
    /// # Panics
    ///
    /// If the offset is outside the buffer.
    pub fn new(buffer: &'a Buffer, offset: u64) -> Self {
        assert!(offset < buffer.len() as u64, "offset {offset} is outside a buffer of {}", buffer.len());
        // SAFETY: the check above shows that the offset is inside the allocation.
        let byte = unsafe { buffer.as_ptr().add(offset as usize) };
        Self { byte, _buffer: PhantomData }
    }

    /// The byte `place` bytes further; the callers have checked that it is in the buffer.
    #[inline]
    fn behind(self, place: u64) -> Self {
        Self { byte: self.byte.wrapping_add(place as usize), ..self }
    }

    /// Reads the byte with a volatile access.
    #[inline]
    pub fn load(self) -> u8 {
        // SAFETY: the byte is inside a live buffer (`Flag::new`), and any bit pattern is a `u8`.
        unsafe { self.byte.read_volatile() }
    }

    /// Writes the byte with a volatile access.
    #[inline]
    pub fn store(self, value: u8) {
        // SAFETY: the byte is inside a live buffer (`Flag::new`), to which no reference exists.
        unsafe { self.byte.write_volatile(value) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYOUT: BufferLayout = BufferLayout { half: 4096, page: 4096, pairs: 1 };

    fn offsets(size: u64, count: usize) -> Vec<u64> {
        let mut cycle = LAYOUT.cycle(size);
        (0..count).map(|_| cycle.advance()).collect()
    }

    #[test]
    fn each_half_holds_the_largest_message_and_at_least_a_page() {
        let page = rustix::param::page_size() as u64;
        assert_eq!(BufferLayout::new(2, 1).length(), 2 * page);
        let large = BufferLayout::new(8 << 20, 1);
        assert_eq!((large.length(), large.receive_offset(0), large.half()), (16 << 20, 8 << 20, 8 << 20));
    }

    #[test]
    fn queue_pairs_do_not_share_memory() {
        let layout = BufferLayout::new(12345, 3);
        let half = layout.half();
        assert_eq!((half, layout.length()), (12352, 6 * 12352));
        let begins = (0..3).flat_map(|pair| [layout.send_offset(pair), layout.receive_offset(pair)]);
        assert!(begins.eq((0..6).map(|index| index * half)));
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
    fn any_message_of_a_cycle_is_known() {
        for size in [2, 520, 2048, 4096, 9000] {
            let cycle = LAYOUT.cycle(size);
            let offsets = offsets(size, 200);
            assert!((0..200).all(|number| cycle.nth(number) == offsets[number as usize]), "{size}");
        }
    }

    #[test]
    fn bytes_are_told_from_others() {
        let buffer = BufferLayout::new(100, 1).allocate(BufferKind::Private).unwrap();
        fill(&buffer, 10, 20, |place| place as u8 + 1);
        assert_eq!(first_difference(&buffer, 10, 20, |place| place as u8 + 1), None);
        assert_eq!((Flag::new(&buffer, 9).load(), Flag::new(&buffer, 30).load()), (0, 0));
        Flag::new(&buffer, 17).store(77);
        assert_eq!(first_difference(&buffer, 10, 20, |place| place as u8 + 1), Some((7, 77)));
        assert_eq!(first_difference(&buffer, 10, 7, |place| place as u8 + 1), None);
        assert_eq!(first_difference(&buffer, 10, 0, |_| 5), None);
    }

    #[test]
    #[should_panic(expected = "is outside a buffer of")]
    fn bytes_outside_are_refused() {
        let buffer = BufferLayout::new(100, 1).allocate(BufferKind::Private).unwrap();
        fill(&buffer, 1, buffer.len() as u64, |_| 0);
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
    fn a_still_cycle_has_one_place() {
        let mut cycle = LAYOUT.cycle(64).still();
        assert_eq!([cycle.advance(), cycle.advance(), cycle.nth(5), cycle.slots()], [0, 0, 0, 1]);
    }

    #[test]
    fn a_cycle_restarts() {
        let mut cycle = LAYOUT.cycle(64);
        cycle.advance();
        cycle.restart();
        assert_eq!(cycle.advance(), 0);
    }

    #[test]
    fn a_flag_reaches_to_the_last_byte() {
        for kind in [BufferKind::Private, BufferKind::Shared] {
            let buffer = BufferLayout::new(9990, 1).allocate(kind).unwrap();
            let (before, last) = (Flag::new(&buffer, 20_094), Flag::new(&buffer, 20_095));
            assert_eq!(last.load(), 0);
            last.store(200);
            assert_eq!((before.load(), last.load()), (0, 200));
        }
    }

    #[test]
    #[should_panic(expected = "outside a buffer of 20096")]
    fn a_flag_outside_is_refused() {
        Flag::new(&BufferLayout::new(9990, 1).allocate(BufferKind::Private).unwrap(), 20_096);
    }

    #[test]
    fn more_than_there_is_is_an_error() {
        for kind in [BufferKind::Private, BufferKind::Shared] {
            let error = BufferLayout::new(u64::MAX, 1).allocate(kind).unwrap_err().to_string();
            assert!(error.contains("len 18446744073709551615"), "{error}");
            assert!(error.contains("give a smaller -s"), "{error}");
        }
    }
}
