//! The statistics of a pool.

use super::classes::SIZES;

/// What a pool has, and what is in use. Bytes are those of whole blocks.
///
/// While other threads take and give back slots, what they have at the moment may be missing, or counted twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolStats {
    /// Bytes that were made.
    pub made: usize,
    /// Bytes that there can be.
    pub max: usize,
    /// Bytes that a device can reach.
    pub registered: usize,
    /// Bytes of blocks that the program and its connections have.
    pub in_use: usize,
    /// Bytes of blocks that nobody has, but threads keep for themselves.
    pub cached: usize,
    /// The most bytes that were in use at a time, as far as threads went to the shared part of the pool: what they have taken out of
    /// their own caches since is not known.
    pub most_in_use: usize,
    /// How often the pool was to grow, and the system had no memory, or the device did not register it.
    pub refused: u64,
    /// Memory that programs have handed over, which is in none of the other numbers.
    pub adopted: AdoptedStats,
    /// Size by size, the slots first; what is sent from, and what is received into, together.
    pub classes: [ClassStats; SIZES],
}

/// What became of memory that was [adopted](super::Pool::adopt).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct AdoptedStats {
    /// Bytes that a device can reach now.
    pub registered: usize,
    /// How often some were registered.
    pub made: u64,
    /// How often some were sent that still were registered.
    pub reused: u64,
    /// How often a registration ended to make room for others.
    pub ended: u64,
    /// How often the device did not register some, so that they were copied.
    pub refused: u64,
}

/// What there is of a class of blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClassStats {
    /// Bytes of a block.
    pub size: usize,
    /// How many there are.
    pub blocks: usize,
    /// How many the program and its connections have.
    pub in_use: usize,
    /// How often one was asked for, and there was none.
    pub empty: u64,
}

impl PoolStats {
    /// How often a block was asked for, and there was none.
    pub fn empty(&self) -> u64 {
        self.classes.iter().map(|class| class.empty).sum()
    }
}
