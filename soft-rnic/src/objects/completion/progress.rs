//! The progress list: queue pairs whose pending requests progress when a poll drives them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use spin::Yield;
use spin::mutex::SpinMutex;

use crate::queue_pair::Qp;

pub(super) struct ProgressList {
    /// The list's length, to be read without the lock.
    len: AtomicUsize,
    list: SpinMutex<Vec<Arc<Qp>>, Yield>,
}

impl Default for ProgressList {
    fn default() -> Self {
        Self { len: AtomicUsize::new(0), list: SpinMutex::new(Vec::with_capacity(4)) }
    }
}

impl ProgressList {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.len.load(Relaxed) == 0
    }

    pub(super) fn add(&self, qp: &Arc<Qp>) {
        let mut list = self.list.lock();
        if !list.iter().any(|there| Arc::ptr_eq(there, qp)) {
            list.push(Arc::clone(qp));
        }
        self.len.store(list.len(), Relaxed);
    }

    pub(super) fn remove(&self, qp: &Qp) {
        let mut list = self.list.lock();
        let at = list.iter().position(|there| std::ptr::eq(Arc::as_ptr(there), qp));
        let removed = at.map(|at| list.swap_remove(at));
        self.len.store(list.len(), Relaxed);
        drop(list);
        // Dropped after the lock is released, because this may be the last reference to a queue
        // pair.
        drop(removed);
    }

    /// Calls `progress` of each queue pair without the lock. The list may change during that; the
    /// next poll finds a queue pair that this one missed.
    pub(super) fn make(&self) {
        let mut at = 0;
        while let Some(qp) = self.get(at) {
            qp.progress();
            at += 1;
        }
    }

    fn get(&self, at: usize) -> Option<Arc<Qp>> {
        self.list.lock().get(at).cloned()
    }
}
