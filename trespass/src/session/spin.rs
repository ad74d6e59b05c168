//! Adaptive spinning: how long a thread polls for completions before it sleeps.
//!
//! A sleep and a wake-up cost more than a short wait, and polling through a long wait wastes the
//! processor. So the time adapts. If a sleep made a short wait long, the next waits poll for the
//! maximum time. If a wait was long anyway, the time is halved, down to zero. Without the increase,
//! two sides that once slept would sleep for ever, because neither answers before the other.
//!
//! If a wake-up takes longer than the maximum time, all waits of two such sides are long because of
//! each other. So a thread that no longer polls tries it now and then, and less often as long as it
//! finds nothing. When it succeeds, the other side finds its answer early and polls too.

use std::time::Duration;

/// The first time. A reply to a new connection's first request usually comes within it.
const FIRST: Duration = Duration::from_micros(50);

/// The first time where a process has many connections, and the least that is halved.
const LEAST: Duration = Duration::from_micros(10);

/// The maximum number of sleeping waits between two that poll.
const SELDOM: u32 = 64;

/// The spin time of one connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AdaptiveSpin {
    now: Duration,
    most: Duration,
    /// Sleeping waits between two that poll, and how many of them are left.
    pause: u32,
    left: u32,
}

impl AdaptiveSpin {
    /// A spin time up to `most`. Zero never polls.
    pub(crate) fn new(most: Duration, is_one_of_many: bool) -> Self {
        let first = if is_one_of_many { LEAST } else { FIRST };
        Self { now: first.min(most), most, pause: 0, left: 0 }
    }

    /// How long to poll now. Zero means to sleep at once.
    pub(crate) fn time(&self) -> Duration {
        self.now
    }

    /// Polling found the event.
    #[inline]
    pub(crate) fn found_by_polling(&mut self) {
        self.pause = 0;
    }

    /// A wait of that duration ended with a sleep.
    pub(crate) fn slept(&mut self, waited: Duration) {
        if waited <= self.most {
            (self.now, self.pause) = (self.most, 0);
        } else if self.now.is_zero() {
            self.left = self.left.saturating_sub(1);
            if self.left == 0 {
                self.now = self.most;
            }
        } else if self.pause == 0 && self.now > LEAST {
            self.now /= 2;
        } else {
            self.now = Duration::ZERO;
            self.pause = (self.pause * 2).clamp(1, SELDOM);
            self.left = self.pause;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn us(us: u64) -> Duration {
        Duration::from_micros(us)
    }

    /// The spin times of `count` waits that are all long.
    fn long_waits(spin: &mut AdaptiveSpin, count: usize) -> Vec<Duration> {
        let mut wait = || {
            spin.slept(us(101));
            spin.time()
        };
        (0..count).map(|_| wait()).collect()
    }

    #[test]
    fn spin_time_grows_after_short_waits_and_shrinks_after_long_ones() {
        let mut spin = AdaptiveSpin::new(us(100), true);
        assert_eq!(spin.time(), us(10));
        spin.slept(us(70));
        assert_eq!(spin.time(), us(100));
        let shrunk =
            [us(50), us(25), Duration::from_nanos(12_500), Duration::from_nanos(6250), Duration::ZERO];
        assert_eq!(long_waits(&mut spin, 5), shrunk);
        spin.slept(us(100));
        assert_eq!(spin.time(), us(100), "one short wait and it looks again");
    }

    #[test]
    fn one_of_few_connections_polls_longer_at_first() {
        let mut spin = AdaptiveSpin::new(us(100), false);
        assert_eq!(spin.time(), us(50));
        assert_eq!(AdaptiveSpin::new(us(30), false).time(), us(30));
        let shrunk = [us(25), Duration::from_nanos(12_500), Duration::from_nanos(6250), Duration::ZERO];
        assert_eq!(long_waits(&mut spin, 4), shrunk);
    }

    #[test]
    fn spinning_is_retried_with_exponential_backoff() {
        let mut spin = AdaptiveSpin::new(us(100), true);
        let waits = long_waits(&mut spin, 1000);
        let tries: Vec<usize> = (0..waits.len()).filter(|at| waits[*at] == us(100)).collect();
        let between: Vec<usize> = tries.windows(2).map(|pair| pair[1] - pair[0] - 1).collect();
        assert_eq!(between[..7], [2, 4, 8, 16, 32, 64, 64]);
        // After one success the next waits poll, until several have failed.
        while spin.time().is_zero() {
            spin.slept(us(101));
        }
        spin.found_by_polling();
        assert_eq!(long_waits(&mut spin, 3), [us(50), us(25), Duration::from_nanos(12_500)]);
    }

    #[test]
    fn a_maximum_of_zero_never_spins() {
        let mut spin = AdaptiveSpin::new(Duration::ZERO, false);
        spin.slept(Duration::ZERO);
        spin.slept(us(1));
        spin.slept(us(1));
        assert_eq!(spin.time(), Duration::ZERO);
        let mut little = AdaptiveSpin::new(us(3), true);
        assert_eq!(little.time(), us(3));
        little.slept(us(2));
        assert_eq!(little.time(), us(3));
    }
}
