//! How long a rail stays out after a failure.
//!
//! The time doubles with each failure. A rail gains it back only by working for a multiple of that
//! time, so that one success between two failures changes little.

use std::time::{Duration, Instant};

/// The longest time that a rail stays out.
const LONGEST: Duration = Duration::from_secs(30);
/// A rail must work for this many times as long as it was out to lower the time by half.
const TRUST: u32 = 8;

#[derive(Clone, Copy, Debug)]
pub(super) struct Backoff {
    /// The time after a first failure.
    first: Duration,
    /// The failures that count.
    level: u32,
    up_since: Option<Instant>,
}

impl Backoff {
    pub(super) fn new(first: Duration) -> Self {
        Self { first, level: 0, up_since: None }
    }

    fn time(self) -> Duration {
        self.first.saturating_mul(1 << self.level.min(16)).min(LONGEST)
    }

    /// The rail's path is proven.
    pub(super) fn came_up(&mut self, now: Instant) {
        self.up_since = Some(now);
    }

    /// When the rail has worked long enough for a failure to lower the time.
    pub(super) fn trusted_at(&self) -> Option<Instant> {
        Some(self.up_since? + self.time() * TRUST)
    }

    /// When the rail came up, if it is up.
    pub(super) fn up_since(&self) -> Option<Instant> {
        self.up_since
    }

    /// The rail has failed. Returns how long it stays out.
    pub(super) fn failed(&mut self, now: Instant) -> Duration {
        let mut worked =
            self.up_since.take().map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        while self.level > 0 && worked >= self.time() * TRUST {
            worked -= self.time() * TRUST;
            self.level -= 1;
        }
        let time = self.time();
        self.level = (self.level + 1).min(16);
        time
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    #[test]
    fn a_rail_that_never_comes_up_is_tried_ever_less_often() {
        let (mut backoff, now) = (Backoff::new(ms(100)), Instant::now());
        let times: Vec<_> = (0..12).map(|_| backoff.failed(now)).collect();
        assert_eq!(times[..4], [ms(100), ms(200), ms(400), ms(800)]);
        assert_eq!(times[11], LONGEST);
    }

    #[test]
    fn one_success_does_not_reset_the_time() {
        let (mut backoff, mut now) = (Backoff::new(ms(100)), Instant::now());
        for _ in 0..6 {
            backoff.failed(now);
        }
        backoff.came_up(now);
        now += ms(100);
        assert_eq!(backoff.failed(now), ms(6400));
        // After an hour of work it counts as a new rail.
        backoff.came_up(now);
        now += Duration::from_secs(3600);
        assert_eq!(backoff.failed(now), ms(100));
    }

    #[test]
    fn a_rail_that_flaps_stays_out_for_most_of_the_time() {
        let (mut backoff, begin) = (Backoff::new(ms(100)), Instant::now());
        let mut now = begin;
        let (mut up, mut failures) = (Duration::ZERO, 0);
        while now < begin + Duration::from_secs(600) {
            backoff.came_up(now);
            now += ms(50);
            up += ms(50);
            now += backoff.failed(now);
            failures += 1;
        }
        assert!(failures < 40 && up < Duration::from_secs(2), "{failures} failures, up for {up:?}");
    }
}
