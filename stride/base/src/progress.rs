//! The progress of the measured loops, for other threads.

use std::sync::atomic::{AtomicU64, Ordering};

/// The number of one thread's completed messages. The loop stores it with one instruction, and
/// another thread reads it occasionally. It fills a cache line.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct ThreadProgress(AtomicU64);

impl ThreadProgress {
    /// Starts at 0.
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Stores the number of completed messages.
    #[inline(always)]
    pub fn set(&self, messages: u64) {
        self.0.store(messages, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The number of all threads' completed messages.
#[derive(Debug)]
pub struct TestProgress(Box<[ThreadProgress]>);

impl TestProgress {
    /// The progress of `threads` threads, none of which has begun.
    pub fn of_threads(threads: u32) -> Self {
        Self((0..threads.max(1)).map(|_| ThreadProgress::new()).collect())
    }

    /// A thread's progress; threads count from 0.
    ///
    /// # Panics
    ///
    /// If the thread does not exist.
    pub fn of(&self, thread: usize) -> &ThreadProgress {
        &self.0[thread]
    }

    /// The number of completed messages. It may be slightly old, and orders nothing else.
    pub fn get(&self) -> u64 {
        self.0.iter().map(ThreadProgress::get).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_sums_all_threads() {
        let progress = TestProgress::of_threads(3);
        assert_eq!(progress.get(), 0);
        progress.of(0).set(5);
        progress.of(2).set(7);
        progress.of(0).set(6);
        assert_eq!(progress.get(), 13);
        assert_eq!(TestProgress::of_threads(0).get(), 0);
    }
}
