//! Moderation: an event waits for more completions, but not for ever.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What the program asked for, and the event that is held back.
#[derive(Debug, Default)]
pub(super) struct Moderation {
    /// The count in the upper half, the microseconds in the lower one.
    asked: AtomicU32,
    due: Mutex<Option<Instant>>,
}

/// What becomes of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EventTiming {
    Now,
    /// Another completion, or the time that was given for the first one, decides.
    Later,
    /// It is the first to be held back: until this time at most.
    Until(Instant),
}

impl Moderation {
    fn due(&self) -> MutexGuard<'_, Option<Instant>> {
        self.due.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An event for so many completions, or when the first of them is so many microseconds old. A count of one or less,
    /// or no time, is no moderation.
    pub(super) fn set(&self, count: u16, micros: u16) {
        self.asked.store(u32::from(count) << 16 | u32::from(micros), Relaxed);
    }

    /// Whether an event goes now that so many completions wait to be polled.
    pub(super) fn judge(&self, waiting: impl FnOnce() -> usize) -> EventTiming {
        let asked = self.asked.load(Relaxed);
        let (count, micros) = (asked >> 16, asked & 0xffff);
        if count <= 1 || micros == 0 {
            return EventTiming::Now;
        }
        let mut due = self.due();
        if waiting() >= count as usize {
            *due = None;
            return EventTiming::Now;
        }
        if due.is_some() {
            return EventTiming::Later;
        }
        let at = Instant::now() + Duration::from_micros(micros.into());
        *due = Some(at);
        EventTiming::Until(at)
    }

    /// Whether the time of an event has come that is held back.
    pub(super) fn take_due(&self, now: Instant) -> bool {
        self.due().take_if(|at| *at <= now).is_some()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn an_event_waits_for_its_count_or_its_time() {
        let moderation = Moderation::default();
        assert_eq!(moderation.judge(|| 0), EventTiming::Now);
        moderation.set(3, 1000);
        let EventTiming::Until(at) = moderation.judge(|| 1) else { panic!("it is held back") };
        assert_eq!(moderation.judge(|| 2), EventTiming::Later);
        assert!(!moderation.take_due(at - Duration::from_nanos(1)));
        assert_eq!(moderation.judge(|| 3), EventTiming::Now);
        // What has gone is not due any more.
        assert!(!moderation.take_due(at));
        let EventTiming::Until(at) = moderation.judge(|| 1) else { panic!("it is held back") };
        assert!(moderation.take_due(at) && !moderation.take_due(at));
        moderation.set(0, 0);
        assert_eq!(moderation.judge(|| 1), EventTiming::Now);
    }
}
