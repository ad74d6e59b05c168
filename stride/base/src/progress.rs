//! How far the measured loops have come, for others to see.

use std::sync::atomic::{AtomicU64, Ordering};

/// Messages of one thread that are through: its loop stores their number, which costs it one instruction, and another thread
/// reads it now and then. It has a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct ThreadProgress(AtomicU64);

impl ThreadProgress {
    /// None are through.
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// So many are through.
    #[inline(always)]
    pub fn set(&self, messages: u64) {
        self.0.store(messages, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Messages of all threads that are through.
#[derive(Debug)]
pub struct TestProgress(Box<[ThreadProgress]>);

impl TestProgress {
    /// Of so many threads, of which none has begun.
    pub fn of_threads(threads: u32) -> Self {
        Self((0..threads.max(1)).map(|_| ThreadProgress::new()).collect())
    }

    /// A thread's, from 0.
    ///
    /// # Panics
    ///
    /// If there is no such thread.
    pub fn of(&self, thread: usize) -> &ThreadProgress {
        &self.0[thread]
    }

    /// How many are through: some time ago, as nothing else is ordered by it.
    pub fn get(&self) -> u64 {
        self.0.iter().map(ThreadProgress::get).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_through_is_that_of_all_threads() {
        let progress = TestProgress::of_threads(3);
        assert_eq!(progress.get(), 0);
        progress.of(0).set(5);
        progress.of(2).set(7);
        progress.of(0).set(6);
        assert_eq!(progress.get(), 13);
        assert_eq!(TestProgress::of_threads(0).get(), 0);
    }
}
