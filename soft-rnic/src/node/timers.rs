//! Timers of the service thread: the times at which queue pairs and the connection manager want to
//! be called.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Times and queue pairs, earliest first.
#[derive(Debug)]
pub(crate) struct RetryTimers(Mutex<BinaryHeap<Reverse<(Instant, u32)>>>);

impl Default for RetryTimers {
    fn default() -> Self {
        Self(Mutex::new(BinaryHeap::with_capacity(USUAL)))
    }
}

/// Preallocated timers, so that posting rarely allocates.
const USUAL: usize = 64;

impl RetryTimers {
    /// Adds a time. True if it is now the earliest.
    pub(crate) fn add(&self, when: Instant, queue_pair: u32) -> bool {
        let mut heap = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let earliest = heap.peek().is_none_or(|Reverse((first, _))| when < *first);
        heap.push(Reverse((when, queue_pair)));
        earliest
    }

    pub(crate) fn earliest(&self) -> Option<Instant> {
        let heap = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        heap.peek().map(|Reverse((when, _))| *when)
    }

    /// Removes the timers that are due, and returns each queue pair once.
    pub(crate) fn due(&self, now: Instant) -> Vec<u32> {
        let mut heap = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut due = Vec::new();
        while heap.peek().is_some_and(|Reverse((when, _))| *when <= now) {
            due.extend(heap.pop().map(|Reverse((_, queue_pair))| queue_pair));
        }
        drop(heap);
        due.sort_unstable();
        due.dedup();
        due
    }
}

/// A single time, the earliest that was set.
#[derive(Debug, Default)]
pub(crate) struct Alarm(Mutex<Option<Instant>>);

impl Alarm {
    /// Sets the time, unless an earlier one is set. True if it was changed.
    pub(crate) fn set(&self, when: Instant) -> bool {
        let mut time = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let earlier = time.is_none_or(|time| when < time);
        if earlier {
            *time = Some(when);
        }
        earlier
    }

    pub(crate) fn time(&self) -> Option<Instant> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the time has come; if so, clears it.
    pub(crate) fn take(&self, now: Instant) -> bool {
        let mut time = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        time.take_if(|time| *time <= now).is_some()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn an_alarm_keeps_the_earliest_time() {
        let (alarm, start) = (Alarm::default(), Instant::now());
        let after = |micros| start + Duration::from_micros(micros);
        assert!(!alarm.take(after(0)) && alarm.time().is_none());
        assert!(
            alarm.set(after(20)) && !alarm.set(after(30)) && alarm.set(after(10)) && !alarm.set(after(10))
        );
        assert!(!alarm.take(after(9)) && alarm.time() == Some(after(10)));
        assert!(alarm.take(after(10)) && !alarm.take(after(11)));
        assert!(alarm.set(after(30)));
    }

    #[test]
    fn times_come_in_order() {
        let (timers, start) = (RetryTimers::default(), Instant::now());
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
}
