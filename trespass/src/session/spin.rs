//! Adaptive spinning: how long a thread polls for completions before it sleeps.
//!
//! To sleep and be woken costs more than what is waited for, where that comes soon; to look for what does not come soon takes time from
//! others for nothing. So the time is learnt: a wait that sleeping made longer than it had to be has the next ones look for as long as they
//! may, and one that was long anyway halves it, down to nothing. Without that, two sides that once have slept would sleep for ever, as
//! neither answers before the other does.
//!
//! Where being woken takes longer than a thread may look, all waits of two such sides are long, each for the other's sake. So who no longer
//! looks tries it once in a while, and more and more seldom as long as that finds nothing: if it does, the other side finds its answer
//! soon, and looks as well.

use std::time::Duration;

/// What a thread begins with.
const LEAST: Duration = Duration::from_micros(10);

/// Waits between two tries of one that sleeps at once, at most.
const SELDOM: u32 = 64;

/// The time for one connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AdaptiveSpin {
    now: Duration,
    most: Duration,
    /// Waits that sleep at once between two that try, and those of them that are left.
    pause: u32,
    left: u32,
}

impl AdaptiveSpin {
    /// Never more than that; zero is never.
    pub(crate) fn new(most: Duration) -> Self {
        Self { now: LEAST.min(most), most, pause: 0, left: 0 }
    }

    /// How long to look now. Zero: sleep at once.
    pub(crate) fn time(&self) -> Duration {
        self.now
    }

    /// What was waited for was found by looking.
    #[inline]
    pub(crate) fn found_by_polling(&mut self) {
        self.pause = 0;
    }

    /// A wait that slept was over after so long.
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

    /// How long each of so many waits looks, all of them long.
    fn long_waits(spin: &mut AdaptiveSpin, count: usize) -> Vec<Duration> {
        let mut wait = || {
            spin.slept(us(101));
            spin.time()
        };
        (0..count).map(|_| wait()).collect()
    }

    #[test]
    fn spin_time_grows_after_short_waits_and_shrinks_after_long_ones() {
        let mut spin = AdaptiveSpin::new(us(100));
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
    fn spinning_is_retried_with_exponential_backoff() {
        let mut spin = AdaptiveSpin::new(us(100));
        let waits = long_waits(&mut spin, 1000);
        let tries: Vec<usize> = (0..waits.len()).filter(|at| waits[*at] == us(100)).collect();
        let between: Vec<usize> = tries.windows(2).map(|pair| pair[1] - pair[0] - 1).collect();
        assert_eq!(between[..7], [2, 4, 8, 16, 32, 64, 64]);
        // One that finds something has the next ones look as well, until several were for nothing.
        while spin.time().is_zero() {
            spin.slept(us(101));
        }
        spin.found_by_polling();
        assert_eq!(long_waits(&mut spin, 3), [us(50), us(25), Duration::from_nanos(12_500)]);
    }

    #[test]
    fn a_maximum_of_zero_never_spins() {
        let mut spin = AdaptiveSpin::new(Duration::ZERO);
        spin.slept(Duration::ZERO);
        spin.slept(us(1));
        spin.slept(us(1));
        assert_eq!(spin.time(), Duration::ZERO);
        let mut little = AdaptiveSpin::new(us(3));
        assert_eq!(little.time(), us(3));
        little.slept(us(2));
        assert_eq!(little.time(), us(3));
    }
}
