//! Puts that the owner's process performs again, and flushes, which wait for them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The puts of one side that are performed again.
#[derive(Default)]
pub(super) struct Repeats {
    /// The flushes that have begun. It changes under the lock of `under_way`.
    flushes: AtomicU64,
    /// Puts that are performed again, whose messages are not sent yet.
    under_way: Mutex<u32>,
}

/// A put that is performed again. A drop tells that its messages were sent.
pub(in crate::window) struct Repeat(Arc<Repeats>);

impl Repeats {
    fn lock(&self) -> MutexGuard<'_, u32> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The flushes that have begun by now.
    pub(super) fn flushes(&self) -> u64 {
        self.flushes.load(Ordering::Relaxed)
    }

    /// A put that was begun before, and fails, is not performed again from now on.
    pub(super) fn begin_flush(&self) {
        let _lock = self.lock();
        self.flushes.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn are_under_way(&self) -> bool {
        *self.lock() > 0
    }

    /// Begins to perform a put again that was begun after this number of flushes. `None` if another flush
    /// has begun since, because that may return before this put.
    pub(super) fn begin(self: &Arc<Self>, flushes: u64) -> Option<Repeat> {
        let mut under_way = self.lock();
        if self.flushes() != flushes {
            return None;
        }
        *under_way += 1;
        Some(Repeat(Arc::clone(self)))
    }
}

impl Drop for Repeat {
    fn drop(&mut self) {
        *self.0.lock() -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flush_waits_for_repeats_and_ends_others() {
        let repeats = Arc::new(Repeats::default());
        let (before, first) = (repeats.flushes(), repeats.begin(0).expect("no flush has begun"));
        repeats.begin_flush();
        assert!(repeats.are_under_way());
        assert!(repeats.begin(before).is_none(), "it was begun before the flush");
        assert!(repeats.begin(repeats.flushes()).is_some());
        drop(first);
        assert!(!repeats.are_under_way());
    }
}
