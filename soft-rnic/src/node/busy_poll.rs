//! Busy polling of the service thread after a CM message, because connections are made by several
//! messages in a row, and waking a thread on an idle processor takes longer than reading one.

use std::time::{Duration, Instant};

/// So long.
const BUSY_POLL: Duration = Duration::from_micros(50);
/// Whoever was let run meanwhile and has kept the processor for so long, a time slice, has work of its own. Those who make connections
/// seldom do.
const TIME_SLICE: Duration = Duration::from_millis(1);
/// Nobody stays awake for so long then, as the next time might cost a time slice, too.
const BACK_OFF: Duration = Duration::from_millis(100);

/// Until when the service thread looks, again and again, instead of sleeping.
#[derive(Debug, Default)]
pub(crate) struct BusyPoll {
    until: Option<Instant>,
    backs_off_until: Option<Instant>,
}

impl BusyPoll {
    /// A CM message came.
    pub(crate) fn start(&mut self, now: Instant) {
        if self.backs_off_until.is_none_or(|end| now >= end) {
            (self.until, self.backs_off_until) = (Some(now + BUSY_POLL), None);
        }
    }

    /// Whether to look once more.
    pub(crate) fn is_active(&self, now: Instant) -> bool {
        self.until.is_some_and(|end| now < end)
    }

    /// Others were let run, who took so long.
    pub(crate) fn yielded(&mut self, took: Duration, now: Instant) {
        if took > TIME_SLICE {
            (self.until, self.backs_off_until) = (None, Some(now + BACK_OFF));
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_vigil_lasts_for_a_moment_after_the_last_letter() {
        let (mut busy_poll, start) = (BusyPoll::default(), Instant::now());
        assert!(!busy_poll.is_active(start));
        busy_poll.start(start);
        assert!(busy_poll.is_active(start + BUSY_POLL / 2));
        busy_poll.start(start + BUSY_POLL / 2);
        assert!(busy_poll.is_active(start + BUSY_POLL) && !busy_poll.is_active(start + BUSY_POLL * 2));
    }

    #[test]
    fn where_others_want_the_processor_there_is_none_for_a_while() {
        let (mut busy_poll, start) = (BusyPoll::default(), Instant::now());
        busy_poll.start(start);
        busy_poll.yielded(TIME_SLICE, start);
        assert!(busy_poll.is_active(start));
        busy_poll.yielded(TIME_SLICE * 2, start);
        assert!(!busy_poll.is_active(start));
        busy_poll.start(start + BACK_OFF / 2);
        assert!(!busy_poll.is_active(start + BACK_OFF / 2));
        busy_poll.start(start + BACK_OFF);
        assert!(busy_poll.is_active(start + BACK_OFF));
    }
}
