//! CQ moderation: an event waits for a count of completions or a period.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The program's settings, and the event that is held back.
#[derive(Debug, Default)]
pub(super) struct Moderation {
    /// The count in the upper half, the microseconds in the lower half.
    settings: AtomicU32,
    due: Mutex<Option<Instant>>,
}

/// When an event is delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EventTiming {
    Now,
    /// Held back: the next completion or the deadline of the first one decides.
    Later,
    /// The first to be held back, until this time at most.
    Until(Instant),
}

impl Moderation {
    fn due(&self) -> MutexGuard<'_, Option<Instant>> {
        self.due.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Delivers an event for `count` completions, or when the first of them is `micros`
    /// microseconds old. A count of at most one, or a time of zero, disables moderation.
    pub(super) fn set(&self, count: u16, micros: u16) {
        self.settings.store(u32::from(count) << 16 | u32::from(micros), Relaxed);
    }

    /// Whether events may be held back.
    pub(super) fn is_on(&self) -> bool {
        Self::holds_back(self.settings.load(Relaxed))
    }

    fn holds_back(settings: u32) -> bool {
        settings >> 16 > 1 && settings & 0xffff != 0
    }

    /// Whether an event is delivered now. `waiting` returns how many completions wait to be polled.
    pub(super) fn judge(&self, waiting: impl FnOnce() -> usize) -> EventTiming {
        let settings = self.settings.load(Relaxed);
        let (count, micros) = (settings >> 16, settings & 0xffff);
        if !Self::holds_back(settings) {
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

    /// Whether an event was held back and its time has come. If so, it is no longer held.
    pub(super) fn take_due(&self, now: Instant) -> bool {
        self.due().take_if(|at| *at <= now).is_some()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn event_waits_for_its_count_or_its_time() {
        let moderation = Moderation::default();
        assert_eq!(moderation.judge(|| 0), EventTiming::Now);
        moderation.set(3, 1000);
        let EventTiming::Until(at) = moderation.judge(|| 1) else { panic!("the event is held back") };
        assert_eq!(moderation.judge(|| 2), EventTiming::Later);
        assert!(!moderation.take_due(at - Duration::from_nanos(1)));
        assert_eq!(moderation.judge(|| 3), EventTiming::Now);
        // An event that was delivered is not due again.
        assert!(!moderation.take_due(at));
        let EventTiming::Until(at) = moderation.judge(|| 1) else { panic!("the event is held back") };
        assert!(moderation.take_due(at) && !moderation.take_due(at));
        moderation.set(0, 0);
        assert_eq!(moderation.judge(|| 1), EventTiming::Now);
    }
}
