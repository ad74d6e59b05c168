//! Busy polling of the service thread after a CM message.
//!
//! A connection takes several messages in a row, and waking a thread on an idle processor takes
//! longer than reading a message.

use std::time::{Duration, Instant};

/// How long the service thread busy-polls after a CM message.
const BUSY_POLL: Duration = Duration::from_micros(50);
/// If the thread yields and gets the processor back only after a time slice, other threads have
/// work. The other end of a new connection rarely runs that long.
const TIME_SLICE: Duration = Duration::from_millis(1);
/// After that the service thread does not busy-poll for this time, because each yield may cost
/// another time slice.
const BACK_OFF: Duration = Duration::from_millis(100);

/// Until when the service thread polls instead of sleeping.
#[derive(Debug, Default)]
pub(crate) struct BusyPoll {
    until: Option<Instant>,
    backs_off_until: Option<Instant>,
}

impl BusyPoll {
    /// Starts polling, because a CM message has arrived.
    pub(crate) fn start(&mut self, now: Instant) {
        if self.backs_off_until.is_none_or(|end| now >= end) {
            (self.until, self.backs_off_until) = (Some(now + BUSY_POLL), None);
        }
    }

    /// Whether to poll once more.
    pub(crate) fn is_active(&self, now: Instant) -> bool {
        self.until.is_some_and(|end| now < end)
    }

    /// The thread has yielded the processor and got it back after `took`.
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
    fn busy_polling_lasts_briefly_after_the_last_message() {
        let (mut busy_poll, start) = (BusyPoll::default(), Instant::now());
        assert!(!busy_poll.is_active(start));
        busy_poll.start(start);
        assert!(busy_poll.is_active(start + BUSY_POLL / 2));
        busy_poll.start(start + BUSY_POLL / 2);
        assert!(busy_poll.is_active(start + BUSY_POLL) && !busy_poll.is_active(start + BUSY_POLL * 2));
    }

    #[test]
    fn busy_polling_pauses_while_others_use_the_processor() {
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
