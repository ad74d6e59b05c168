//! The completions that this process generates, in a queue.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use spin::Yield;
use spin::mutex::SpinMutex;

use super::Cqe;

/// How many completions a queue has room for from the beginning.
const USUAL: u32 = 128;

/// A queue that many threads push to and one polls.
#[derive(Debug)]
pub(super) struct LocalCompletions {
    /// The queue's length, to be read without the lock.
    len: AtomicUsize,
    queue: SpinMutex<VecDeque<Cqe>, Yield>,
}

impl LocalCompletions {
    /// Reserves memory for the usual number of completions, so that posting seldom allocates.
    pub(super) fn new(capacity: u32) -> Self {
        let queue = VecDeque::with_capacity(capacity.min(USUAL) as usize);
        Self { len: AtomicUsize::new(0), queue: SpinMutex::new(queue) }
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len.load(Relaxed)
    }

    /// Adds a completion. Returns false if the queue has `room` completions already, unless it may
    /// lose the oldest.
    pub(super) fn push(&self, cqe: Cqe, room: usize, lose_oldest: bool) -> bool {
        let mut queue = self.queue.lock();
        if queue.len() >= room && (!lose_oldest || queue.pop_front().is_none()) {
            return false;
        }
        queue.push_back(cqe);
        self.len.store(queue.len(), Relaxed);
        true
    }

    /// Takes the oldest completion; false if the queue is empty.
    #[inline]
    pub(super) fn pop(&self, to: &mut Cqe) -> bool {
        if self.len() == 0 {
            return false;
        }
        let mut queue = self.queue.lock();
        let Some(oldest) = queue.front() else { return false };
        *to = *oldest;
        queue.pop_front();
        self.len.store(queue.len(), Relaxed);
        true
    }

    /// Takes up to `room` completions and returns how many.
    #[inline]
    pub(super) fn take(&self, room: usize, sink: &mut impl FnMut(Cqe)) -> usize {
        if self.len() == 0 {
            return 0;
        }
        let mut queue = self.queue.lock();
        let count = queue.len().min(room);
        queue.drain(..count).for_each(sink);
        self.len.store(queue.len(), Relaxed);
        count
    }

    pub(super) fn purge(&self, qpn: u32) {
        let mut queue = self.queue.lock();
        queue.retain(|cqe| cqe.qp_num != qpn);
        self.len.store(queue.len(), Relaxed);
    }
}
