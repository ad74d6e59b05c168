//! Statistics of a pool.

use super::classes::SIZES;

/// The memory of a pool, and its usage. Byte counts refer to whole blocks.
///
/// While other threads take and return slots, the counts may miss those slots, or count them twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolStats {
    /// Allocated bytes.
    pub made: usize,
    /// The most bytes that the pool may allocate.
    pub max: usize,
    /// Bytes that a device can reach.
    pub registered: usize,
    /// Bytes of blocks that the program and its connections hold.
    pub in_use: usize,
    /// Bytes of free slots in threads' caches.
    pub cached: usize,
    /// The largest number of bytes in use at a time, as seen by accesses to the shared part of the
    /// pool. Slots that threads have taken from their caches since then are not known.
    pub most_in_use: usize,
    /// The number of times that the system refused memory, or the device its registration.
    pub refused: u64,
    /// Memory that programs have handed over, which is in none of the other numbers.
    pub adopted: AdoptedStats,
    /// Counts by size, the slots first; each adds the blocks for sending and for receiving.
    pub classes: [ClassStats; SIZES],
}

/// Counts of [adopted](super::Pool::adopt) memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct AdoptedStats {
    /// Bytes that a device can reach now.
    pub registered: usize,
    /// Registrations made.
    pub made: u64,
    /// Blocks sent that were still registered.
    pub reused: u64,
    /// Registrations ended to make room for others.
    pub ended: u64,
    /// Registrations that the device refused, so that the bytes were copied.
    pub refused: u64,
}

/// Counts of a size of blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClassStats {
    /// Size of a block in bytes.
    pub size: usize,
    /// The number of blocks.
    pub blocks: usize,
    /// Blocks that the program and its connections hold.
    pub in_use: usize,
    /// Requests that found no block.
    pub empty: u64,
}

impl PoolStats {
    /// Requests that found no block, over all sizes.
    pub fn empty(&self) -> u64 {
        self.classes.iter().map(|class| class.empty).sum()
    }
}
