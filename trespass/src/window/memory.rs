//! Memory that a peer may read and write while this program does.

use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::pool::Block;

/// The size of the words that a copy moves at once.
const WORD: usize = size_of::<u64>();

/// The memory of a window. No reference to its bytes is ever made, because they may change at any
/// time. An exclusive reference excludes other accesses of this process.
pub(super) struct OfferedMemory {
    /// Keeps the memory.
    block: Block,
    len: usize,
}

impl OfferedMemory {
    /// The first `len` bytes of a block.
    pub(super) fn new(block: Block, len: usize) -> Self {
        let len = len.min(block.len());
        Self { block, len }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The first byte.
    #[cfg_attr(not(feature = "rdma"), allow(dead_code, reason = "no device is told of it"))]
    pub(super) fn start(&self) -> *mut u8 {
        self.block.as_ptr()
    }

    /// The address of the first byte.
    pub(super) fn base(&self) -> u64 {
        self.block.as_ptr().addr() as u64
    }

    /// Returns the block. The caller knows that nobody else reaches it.
    pub(super) fn into_block(self) -> Block {
        self.block
    }

    /// The address of `len` bytes at an offset.
    fn at(&self, offset: usize, len: usize) -> *mut u8 {
        let end = offset.checked_add(len);
        assert!(end.is_some_and(|end| end <= self.len), "{len} bytes at {offset} of {}", self.len);
        self.block.as_ptr().wrapping_add(offset)
    }

    /// Copies bytes out of the memory.
    pub(super) fn read(&self, offset: usize, into: &mut [u8]) {
        let from = self.at(offset, into.len()).cast_const();
        // SAFETY: `at` has checked that the bytes lie in the block, which `self` keeps. This process
        // writes them by `&mut self` only. A device may write, so the reads are volatile.
        unsafe { read_volatile(from, into) };
    }

    /// Copies bytes into the memory.
    pub(super) fn write(&mut self, offset: usize, bytes: &[u8]) {
        let to = self.at(offset, bytes.len());
        // SAFETY: `at` has checked that the bytes lie in the block, which `self` keeps. `&mut self`
        // excludes other accesses of this process. A device may access them, so the writes are
        // volatile.
        unsafe { write_volatile(to, bytes) };
    }

    /// Adds to the aligned number at an offset. Returns what it was.
    pub(super) fn fetch_add(&mut self, offset: usize, add: u64) -> u64 {
        self.atomic(offset, |number| number.fetch_add(add, Ordering::SeqCst))
    }

    /// Replaces the aligned number at an offset if it is `expected`. Returns what it was.
    pub(super) fn compare_swap(&mut self, offset: usize, expected: u64, new: u64) -> u64 {
        self.atomic(offset, |number| {
            number
                .compare_exchange(expected, new, Ordering::SeqCst, Ordering::SeqCst)
                .unwrap_or_else(|found| found)
        })
    }

    /// Whether a number at an offset is aligned for an atomic operation.
    pub(super) fn is_aligned(&self, offset: u64) -> bool {
        self.base().wrapping_add(offset).is_multiple_of(WORD as u64)
    }

    fn atomic(&mut self, offset: usize, act: impl FnOnce(&AtomicU64) -> u64) -> u64 {
        let at = self.at(offset, WORD);
        assert!(self.is_aligned(offset as u64), "offset {offset} is not aligned");
        // SAFETY: `at` has checked that the word lies in the block, which `self` keeps, and it is
        // aligned. `&mut self` excludes other accesses of this process.
        act(unsafe { AtomicU64::from_ptr(at.cast()) })
    }
}

/// The bytes before the first whole word, and those in whole words.
fn split(at: *const u8, len: usize) -> (usize, usize) {
    let head = at.align_offset(WORD).min(len);
    (head, (len - head) / WORD * WORD)
}

/// Copies by volatile reads.
///
/// # Safety
///
/// `from` points to as many bytes as `into` has, which live, and which no other code of this process
/// writes during the call.
unsafe fn read_volatile(from: *const u8, into: &mut [u8]) {
    let (head, words) = split(from, into.len());
    let (first, rest) = into.split_at_mut(head);
    let (middle, last) = rest.split_at_mut(words);
    let byte = |at: usize| {
        // SAFETY: `at` is below the length of `into`, for which the contract holds.
        unsafe { ptr::read_volatile(from.wrapping_add(at)) }
    };
    first.iter_mut().enumerate().for_each(|(at, place)| *place = byte(at));
    for (at, place) in middle.chunks_exact_mut(WORD).enumerate() {
        // SAFETY: the word lies within the length of `into`, for which the contract holds, and is
        // aligned, because the words begin after `head` bytes.
        let word = unsafe { ptr::read_volatile(from.wrapping_add(head + at * WORD).cast::<u64>()) };
        place.copy_from_slice(&word.to_ne_bytes());
    }
    last.iter_mut().enumerate().for_each(|(at, place)| *place = byte(head + words + at));
}

/// Copies by volatile writes.
///
/// # Safety
///
/// `to` points to as many bytes as `from` has, which live, and which no other code of this process
/// accesses during the call.
unsafe fn write_volatile(to: *mut u8, from: &[u8]) {
    let (head, words) = split(to, from.len());
    let (first, rest) = from.split_at(head);
    let (middle, last) = rest.split_at(words);
    let put = |at: usize, byte: u8| {
        // SAFETY: `at` is below the length of `from`, for which the contract holds.
        unsafe { ptr::write_volatile(to.wrapping_add(at), byte) }
    };
    first.iter().enumerate().for_each(|(at, byte)| put(at, *byte));
    for (at, bytes) in middle.as_chunks::<WORD>().0.iter().enumerate() {
        // SAFETY: the word lies within the length of `from`, for which the contract holds, and is
        // aligned, because the words begin after `head` bytes.
        unsafe { ptr::write_volatile(to.wrapping_add(head + at * WORD).cast(), u64::from_ne_bytes(*bytes)) };
    }
    last.iter().enumerate().for_each(|(at, byte)| put(head + words + at, *byte));
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::pool::{Pool, PoolConfig};

    pub(crate) fn memory(len: usize) -> OfferedMemory {
        let pool = Pool::new(&PoolConfig::default()).unwrap();
        OfferedMemory::new(pool.adopt(vec![0; len]), len)
    }

    #[test]
    fn copies_move_exactly_their_range() {
        let mut memory = memory(64);
        for (at, len) in (0..20).flat_map(|at| [0, 1, 7, 8, 9, 16, 31, 40].map(|len| (at, len))) {
            memory.write(0, &[0xee; 64]);
            let bytes: Vec<u8> = (1..=len as u8).collect();
            memory.write(at, &bytes);
            let mut all = [0; 64];
            memory.read(0, &mut all);
            assert_eq!(all[at..at + len], bytes[..]);
            assert!(all[..at].iter().chain(&all[at + len..]).all(|byte| *byte == 0xee), "{len} at {at}");
            let mut again = vec![0; len];
            memory.read(at, &mut again);
            assert_eq!(again, bytes);
        }
    }

    #[test]
    fn atomics_return_what_was_there() {
        let mut memory = memory(64);
        let at = memory.block.as_ptr().align_offset(WORD);
        assert_eq!(memory.fetch_add(at, 5), 0);
        assert_eq!(memory.fetch_add(at, u64::MAX), 5);
        assert_eq!(memory.compare_swap(at, 3, 9), 4, "it is another number");
        assert_eq!(memory.compare_swap(at, 4, 9), 4);
        assert_eq!(memory.fetch_add(at, 0), 9);
        assert!(!memory.is_aligned(at as u64 + 1));
    }

    #[test]
    #[should_panic(expected = "9 bytes at 56 of 64")]
    fn nothing_behind_the_end_is_reached() {
        memory(64).read(56, &mut [0; 9]);
    }
}
