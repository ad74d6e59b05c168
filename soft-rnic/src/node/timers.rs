//! When queue pairs want to be called.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Times and queue pairs, earliest first.
#[derive(Debug, Default)]
pub(crate) struct Timers(Mutex<Times>);

#[derive(Debug, Default)]
struct Times {
    heap: BinaryHeap<Reverse<(Instant, u32)>>,
    /// By queue pair, the earliest time in the heap. Who waits and polls asks again and again for the same time.
    earliest: HashMap<u32, Instant>,
}

impl Timers {
    /// Adds a time, unless the queue pair is called before it anyway: it is to ask again then. True if it is now the
    /// earliest of all.
    pub(crate) fn add(&self, when: Instant, queue_pair: u32) -> bool {
        let mut times = self.lock();
        if times.earliest.get(&queue_pair).is_some_and(|before| *before <= when) {
            return false;
        }
        times.earliest.insert(queue_pair, when);
        let earliest = times.heap.peek().is_none_or(|Reverse((first, _))| when < *first);
        times.heap.push(Reverse((when, queue_pair)));
        earliest
    }

    pub(crate) fn earliest(&self) -> Option<Instant> {
        self.lock().heap.peek().map(|Reverse((when, _))| *when)
    }

    /// Takes those whose time has come, each queue pair once.
    pub(crate) fn due(&self, now: Instant) -> Vec<u32> {
        let mut times = self.lock();
        let mut due = Vec::new();
        while let Some(Reverse((when, queue_pair))) =
            times.heap.peek().copied().filter(|first| first.0.0 <= now)
        {
            times.heap.pop();
            // A later one than the earliest was called for by it already, or is the next.
            if times.earliest.get(&queue_pair) == Some(&when) {
                times.earliest.remove(&queue_pair);
            }
            due.push(queue_pair);
        }
        drop(times);
        due.sort_unstable();
        due.dedup();
        due
    }

    fn lock(&self) -> MutexGuard<'_, Times> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn times_come_in_order() {
        let (timers, start) = (Timers::default(), Instant::now());
        let after = |micros| start + Duration::from_micros(micros);
        assert!(timers.add(after(20), 2));
        assert!(!timers.add(after(30), 3));
        assert!(timers.add(after(10), 1));
        assert!(!timers.add(after(15), 1));
        assert_eq!(timers.earliest(), Some(after(10)));
        assert_eq!(timers.due(after(9)), []);
        assert_eq!(timers.due(after(20)), [1, 2]);
        assert_eq!(timers.due(after(40)), [3]);
        assert_eq!(timers.earliest(), None);
    }

    #[test]
    fn who_asks_again_and_again_is_called_once() {
        let (timers, start) = (Timers::default(), Instant::now());
        let after = |micros| start + Duration::from_micros(micros);
        for micros in 20..1000 {
            timers.add(after(micros), 1);
        }
        assert_eq!(timers.lock().heap.len(), 1);
        assert!(timers.add(after(10), 1));
        assert_eq!(timers.due(after(15)), [1]);
        assert!(!timers.add(after(30), 1));
        assert_eq!(timers.due(after(25)), [1], "a call too many does no harm");
        assert_eq!(timers.due(after(30)), [1]);
        assert!(timers.earliest().is_none() && timers.lock().earliest.is_empty());
    }
}
