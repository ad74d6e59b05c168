//! Queue pair numbers: a block's number, which is unique on the host, and an index in the block.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::shared::segment::MAX_QUEUE_PAIRS;

/// The low bits of a number, which are the index in its block.
pub(crate) const BLOCK_BITS: u32 = 14;
/// Queue pairs in a block.
const BLOCK: u32 = 1 << BLOCK_BITS;
/// The highest block of a host. Blocks begin at 1, because block 0 would contain the special queue
/// pairs 0 and 1.
pub(crate) const LAST_BLOCK: u16 = (1 << (24 - BLOCK_BITS)) - 1;
/// The most blocks of a process.
const MAX_BLOCKS: usize = if MAX_QUEUE_PAIRS < BLOCK as usize { 1 } else { MAX_QUEUE_PAIRS / BLOCK as usize };
/// The number of freed numbers that rest before the oldest of them is reused, while unused numbers
/// remain.
const REST: usize = 256;

/// The number of a queue pair of this process, and its index in the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QpNumber {
    pub(crate) index: u32,
    pub(crate) qpn: u32,
}

/// The block of a queue pair number; `None` if the number is not in any block.
pub(crate) fn block_of(qpn: u32) -> Option<u16> {
    u16::try_from(qpn >> BLOCK_BITS).ok().filter(|block| (1..=LAST_BLOCK).contains(block))
}

/// The blocks of one process, in the order in which it took them.
#[derive(Debug, Default)]
pub(crate) struct Blocks([AtomicU32; MAX_BLOCKS]);

impl Blocks {
    /// Records a block. False if a process cannot have that many.
    pub(crate) fn set(&self, ordinal: u8, block: u16) -> bool {
        let place = self.0.get(usize::from(ordinal));
        place.inspect(|place| place.store(block.into(), Ordering::Release)).is_some()
    }

    /// The first block, which the process holds as long as it has any.
    pub(crate) fn first(&self) -> Option<u16> {
        u16::try_from(self.0[0].load(Ordering::Acquire)).ok().filter(|block| *block != 0)
    }

    /// Whether the process has this block.
    pub(crate) fn has(&self, block: u16) -> bool {
        block != 0 && self.0.iter().any(|own| own.load(Ordering::Acquire) == u32::from(block))
    }

    /// The index of a queue pair in the tables of the process.
    #[inline]
    pub(crate) fn index_of(&self, qpn: u32) -> Option<u32> {
        let block = u32::from(block_of(qpn)?);
        let ordinal = self.0.iter().position(|own| own.load(Ordering::Acquire) == block)?;
        let index = ordinal as u32 * BLOCK + qpn % BLOCK;
        (index != 0 && (index as usize) < MAX_QUEUE_PAIRS).then_some(index)
    }
}

/// The allocator of this process's queue pair numbers.
#[derive(Debug, Default)]
pub(crate) struct QpNumbers(Mutex<QpNumbersState>);

#[derive(Debug)]
struct QpNumbersState {
    blocks: Vec<u16>,
    /// All indices below this have been allocated at least once.
    fresh: u32,
    freed: VecDeque<QpNumber>,
}

impl Default for QpNumbersState {
    fn default() -> Self {
        Self { blocks: Vec::new(), fresh: 1, freed: VecDeque::new() }
    }
}

impl QpNumbersState {
    fn fresh(&mut self) -> Option<QpNumber> {
        let index = self.fresh;
        let block = *self.blocks.get((index / BLOCK) as usize)?;
        if index as usize >= MAX_QUEUE_PAIRS {
            return None;
        }
        self.fresh += 1;
        Some(QpNumber { index, qpn: (u32::from(block) << BLOCK_BITS) | (index % BLOCK) })
    }
}

impl QpNumbers {
    /// Allocates a number: one that was never used, or else the one that has rested longest.
    /// `take_block` takes another block; its argument is the number of blocks so far.
    ///
    /// # Errors
    ///
    /// `OutOfMemory` if the process has the most queue pairs that it can have, or the error of
    /// `take_block`.
    pub(crate) fn take(&self, take_block: impl FnOnce(u8) -> io::Result<u16>) -> io::Result<QpNumber> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(number) = state.fresh() {
            return Ok(number);
        }
        if state.freed.len() <= REST && state.blocks.len() < MAX_BLOCKS {
            match take_block(state.blocks.len() as u8) {
                Ok(block) => {
                    state.blocks.push(block);
                    return state.fresh().ok_or_else(|| io::ErrorKind::OutOfMemory.into());
                }
                Err(error) if state.freed.is_empty() => return Err(error),
                Err(_) => {}
            }
        }
        state.freed.pop_front().ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }

    /// The first block, which is taken if the process has none.
    ///
    /// # Errors
    ///
    /// The error of `take_block`.
    pub(crate) fn hold(&self, take_block: impl FnOnce(u8) -> io::Result<u16>) -> io::Result<u16> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(block) = state.blocks.first() {
            return Ok(*block);
        }
        let block = take_block(0)?;
        state.blocks.push(block);
        Ok(block)
    }

    pub(crate) fn free(&self, number: QpNumber) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).freed.push_back(number);
    }
}

#[cfg(all(test, not(any(miri, loom))))]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn numbers_are_unique_and_rest() {
        let (numbers, blocks) = (QpNumbers::default(), Blocks::default());
        let take = || {
            numbers.take(|ordinal| {
                let block = 1000 + u16::from(ordinal);
                assert!(blocks.set(ordinal, block));
                Ok(block)
            })
        };
        let mut seen = HashSet::new();
        let mut indices = HashSet::new();
        for _ in 0..40_000 {
            let number = take().expect("a number");
            assert!(seen.insert(number.qpn) && indices.insert(number.index));
            assert_eq!(blocks.index_of(number.qpn), Some(number.index));
        }
        assert_eq!(blocks.0.iter().filter(|block| block.load(Ordering::Acquire) != 0).count(), 3);
        // Freed numbers are reused last.
        let freed = QpNumber { index: 5, qpn: 1000 << BLOCK_BITS | 5 };
        numbers.free(freed);
        let rest = MAX_QUEUE_PAIRS - 1 - 40_000;
        for _ in 0..rest {
            assert!(seen.insert(take().expect("a number").qpn));
        }
        assert_eq!(take().expect("the freed one"), freed);
        assert_eq!(take().map_err(|error| error.kind()), Err(io::ErrorKind::OutOfMemory));
    }

    #[test]
    fn a_host_without_blocks_still_reuses_numbers() {
        let numbers = QpNumbers::default();
        let none = |_| Err(io::Error::from(io::ErrorKind::AddrInUse));
        assert_eq!(numbers.take(none).map_err(|error| error.kind()), Err(io::ErrorKind::AddrInUse));
        let first = numbers.take(|_| Ok(3)).expect("a number");
        for _ in 2..BLOCK {
            let _ = numbers.take(none).expect("a number");
        }
        assert!(numbers.take(none).is_err());
        numbers.free(first);
        assert_eq!(numbers.take(none).expect("the freed one"), first);
    }

    #[test]
    fn foreign_numbers_have_no_index() {
        let blocks = Blocks::default();
        assert!(blocks.set(0, 9) && !blocks.set(MAX_BLOCKS as u8, 10));
        for qpn in [0, 1, 8 << BLOCK_BITS, 9 << BLOCK_BITS, 1 << 24, u32::MAX, 9 << BLOCK_BITS | 1 << 24] {
            assert_eq!(blocks.index_of(qpn), None, "{qpn:#x}");
        }
    }
}
