//! The schedule of messages at a given rate.

/// Binary digits of a tick's fraction, so that rounding never accumulates to a wrong rate.
const FRACTION: u32 = 32;

/// The time of the next message. Bursts follow each other at intervals that give the rate.
#[derive(Clone, Copy, Debug)]
pub(super) struct Schedule {
    start: u64,
    /// Time from the start to the next burst, in fractions of ticks.
    due: u128,
    gap: u128,
    burst: u32,
    /// Messages of the current burst that are still to be sent.
    left: u32,
}

impl Schedule {
    /// Starts now, with one message every `ticks` ticks on average.
    pub(super) fn new(start: u64, ticks: f64, burst: u32) -> Self {
        // The upper limit exceeds every test's duration; the lower one is the smallest fraction.
        let gap = (ticks * f64::from(burst) * (1u64 << FRACTION) as f64).clamp(1.0, 2f64.powi(96)) as u128;
        Self { start, due: 0, gap, burst, left: burst }
    }

    /// The time of the next message.
    #[inline(always)]
    pub(super) fn next(&self) -> u64 {
        self.start.saturating_add(u64::try_from(self.due >> FRACTION).unwrap_or(u64::MAX))
    }

    /// Moves on to the message after.
    #[inline(always)]
    pub(super) fn advance(&mut self) {
        self.left -= 1;
        if self.left == 0 {
            self.left = self.burst;
            self.due = self.due.saturating_add(self.gap);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(mut schedule: Schedule, count: usize) -> Vec<u64> {
        let mut times = Vec::new();
        for _ in 0..count {
            times.push(schedule.next());
            schedule.advance();
        }
        times
    }

    #[test]
    fn messages_are_as_far_apart_as_the_rate_says() {
        assert_eq!(times(Schedule::new(1000, 10.0, 1), 4), [1000, 1010, 1020, 1030]);
        assert_eq!(times(Schedule::new(1000, 2.5, 1), 5), [1000, 1002, 1005, 1007, 1010]);
        assert_eq!(times(Schedule::new(0, 10.0, 3), 7), [0, 0, 0, 30, 30, 30, 60]);
    }

    #[test]
    fn a_long_test_keeps_its_rate() {
        let (mut schedule, third) = (Schedule::new(0, 1.0 / 3.0, 1), 3_000_000u64);
        (0..third).for_each(|_| schedule.advance());
        assert!(schedule.next().abs_diff(1_000_000) <= 1, "{}", schedule.next());
    }

    #[test]
    fn a_time_that_is_never_due_does_not_wrap() {
        let mut schedule = Schedule::new(u64::MAX - 5, 1e300, 1);
        schedule.advance();
        schedule.advance();
        assert_eq!(schedule.next(), u64::MAX);
    }
}
