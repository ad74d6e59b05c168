//! Timers of sets that programs wait for. The service thread wakes the sets.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::process::Process;
use crate::session::service;
use crate::session::wake::WakeHandle;

/// A later time than this is rounded up to a full second, so that timers share wake-ups.
const EXACT: Duration = Duration::from_secs(1);

/// Sets woken in a turn of the service thread, so that tasks have theirs.
const WAKE_UPS_A_TURN: usize = 64;

/// When a set is woken, and a number that makes the time unique.
type Key = (Instant, u64);

/// The timers of a process.
#[derive(Debug)]
pub(crate) struct Timers {
    /// Full seconds count from here.
    began: Instant,
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    wake_ups: BTreeMap<Key, Arc<WakeHandle>>,
    last: u64,
}

impl Timers {
    pub(super) fn new() -> Self {
        Self { began: Instant::now(), queue: Mutex::default() }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        // No code that can panic runs while it is locked.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// When the next timer fires.
    pub(super) fn next(&self) -> Option<Instant> {
        self.queue().wake_ups.first_key_value().map(|((at, _), _)| *at)
    }

    /// Wakes sets that are due. The other ones stay due.
    pub(super) fn fire(&self, now: Instant) {
        for _ in 0..WAKE_UPS_A_TURN {
            let mut queue = self.queue();
            let Some(first) = queue.wake_ups.first_entry().filter(|first| first.key().0 <= now) else {
                return;
            };
            let wake_handle = first.remove();
            drop(queue);
            wake_handle.notify_by_timer();
        }
    }

    /// The time when a set is woken that should be at `at`.
    fn rounded(&self, at: Instant) -> Instant {
        if at.saturating_duration_since(Instant::now()) <= EXACT {
            return at;
        }
        let since = at.saturating_duration_since(self.began);
        let up = Duration::from_secs(since.as_secs() + u64::from(since.subsec_nanos() > 0));
        self.began.checked_add(up).unwrap_or(at)
    }
}

/// Wakes one set. A drop cancels it.
#[derive(Debug)]
pub(super) struct Timer {
    timers: &'static Timers,
    process: Process,
    key: Option<Key>,
}

impl Timer {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self { timers: service::timers()?, process: Process::current(), key: None })
    }

    /// Notes that the set was woken.
    pub(super) fn has_fired(&mut self) {
        self.key = None;
    }

    /// Wakes the set at that time or up to a second later. An earlier time that was set suffices.
    pub(super) fn set(&mut self, at: Instant, wake_handle: &Arc<WakeHandle>) {
        let is_set_by = |at| self.key.is_some_and(|(due, _)| due <= at);
        if is_set_by(at) {
            return;
        }
        let at = self.timers.rounded(at);
        if is_set_by(at) {
            return;
        }
        let mut queue = self.timers.queue();
        self.key.take().map(|key| queue.wake_ups.remove(&key));
        queue.last += 1;
        let key = (at, queue.last);
        queue.wake_ups.insert(key, wake_handle.clone());
        self.key = Some(key);
        let is_first = queue.wake_ups.first_key_value().is_some_and(|(first, _)| *first == key);
        drop(queue);
        if is_first {
            service::wake();
        }
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        // A forked child has no service thread, and perhaps a copy of the locked lock.
        if let Some(key) = self.key.take_if(|_| self.process.is_current()) {
            self.timers.queue().wake_ups.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn far_times_are_full_seconds_and_near_ones_exact() {
        let timers = Timers::new();
        let near = Instant::now() + Duration::from_millis(300);
        assert_eq!(timers.rounded(near), near);
        let far = timers.began + Duration::from_millis(7300);
        assert_eq!(timers.rounded(far), timers.began + Duration::from_secs(8));
        let full = timers.began + Duration::from_secs(9);
        assert_eq!(timers.rounded(full), full);
    }

    /// The tasks of the service thread have turns between.
    #[test]
    fn a_turn_wakes_a_part_of_the_sets_and_the_next_turn_the_rest() {
        const SETS: usize = 3 * WAKE_UPS_A_TURN / 2;
        let timers: &'static Timers = Box::leak(Box::new(Timers::new()));
        let (now, wake_handle) = (Instant::now(), WakeHandle::new());
        let new = || Timer { timers, process: Process::current(), key: None };
        let mut all: Vec<Timer> = (0..SETS).map(|_| new()).collect();
        for timer in &mut all {
            timer.set(now, &wake_handle);
        }
        for left in [SETS - WAKE_UPS_A_TURN, 0] {
            timers.fire(now);
            assert_eq!(Arc::strong_count(&wake_handle) - 1, left);
            assert_eq!(timers.next().is_some(), left > 0, "the thread does not sleep before the rest");
        }
    }

    /// Each call of a program that waits for a descriptor sets the time.
    #[test]
    fn a_time_that_moves_on_costs_nothing() {
        let timers: &'static Timers = Box::leak(Box::new(Timers::new()));
        let wake_handle = WakeHandle::new();
        let mut timer = Timer { timers, process: Process::current(), key: None };
        let at = Instant::now() + Duration::from_secs(7);
        for micros in 0..100 {
            timer.set(at + Duration::from_micros(micros), &wake_handle);
        }
        let set = timers.queue().last;
        assert!(set <= 2, "it was set {set} times");
        timer.set(at - Duration::from_secs(3), &wake_handle);
        assert_eq!(timers.queue().last, set + 1, "an earlier time counts");
    }

    #[test]
    fn a_dropped_timer_leaves_nothing() {
        let (mut timer, wake_handle) = (Timer::new().unwrap(), WakeHandle::new());
        for seconds in [100, 75, 50] {
            timer.set(Instant::now() + Duration::from_secs(seconds), &wake_handle);
            assert_eq!(Arc::strong_count(&wake_handle), 2, "it has one time");
        }
        drop(timer);
        assert_eq!(Arc::strong_count(&wake_handle), 1);
    }
}
