//! How far a measured loop has come, for others to see.

use std::sync::atomic::{AtomicU64, Ordering};

/// Messages that are through: the loop stores their number, which costs it one instruction, and another thread reads it now
/// and then. It has a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Progress(AtomicU64);

impl Progress {
    /// None are through.
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// So many are through.
    #[inline(always)]
    pub fn set(&self, messages: u64) {
        self.0.store(messages, Ordering::Relaxed);
    }

    /// How many are through: some time ago, as nothing else is ordered by it.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
