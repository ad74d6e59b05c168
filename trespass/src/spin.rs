//! How long a thread looks for completions before it sleeps.
//!
//! To sleep and be woken costs more than what is waited for, where that comes soon; to look for what does not come soon takes time from
//! others for nothing. So the time is learnt: a wait that sleeping made longer than it had to be doubles it, and one that was long anyway
//! halves it. Without that, two sides that once have slept would sleep for ever, as neither answers before the other does.

use std::time::Duration;

/// What a thread begins with.
const LEAST: Duration = Duration::from_micros(10);

/// The time for one connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spin {
    now: Duration,
    most: Duration,
}

impl Spin {
    /// Never more than that; zero is never.
    pub(crate) fn new(most: Duration) -> Self {
        Self { now: LEAST.min(most), most }
    }

    /// How long to look now. Zero: sleep at once.
    pub(crate) fn time(&self) -> Duration {
        self.now
    }

    /// A wait that slept was over after so long.
    pub(crate) fn slept(&mut self, waited: Duration) {
        self.now = if waited <= self.most {
            (self.now * 2).clamp(LEAST.min(self.most), self.most)
        } else if self.now > LEAST {
            self.now / 2
        } else {
            Duration::ZERO
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn us(us: u64) -> Duration {
        Duration::from_micros(us)
    }

    #[test]
    fn it_grows_where_looking_would_have_found_it_and_shrinks_where_not() {
        let mut spin = Spin::new(us(100));
        assert_eq!(spin.time(), us(10));
        let grown = [20, 40, 80, 100, 100].map(us);
        assert_eq!(
            grown.map(|_| {
                spin.slept(us(70));
                spin.time()
            }),
            grown
        );
        let shrunk =
            [us(50), us(25), Duration::from_nanos(12_500), Duration::from_nanos(6250), Duration::ZERO];
        assert_eq!(
            shrunk.map(|_| {
                spin.slept(us(101));
                spin.time()
            }),
            shrunk
        );
        spin.slept(us(100));
        assert_eq!(spin.time(), us(10), "one short wait and it looks again");
    }

    #[test]
    fn who_wants_none_has_none() {
        let mut spin = Spin::new(Duration::ZERO);
        spin.slept(Duration::ZERO);
        assert_eq!(spin.time(), Duration::ZERO);
        let mut little = Spin::new(us(3));
        assert_eq!(little.time(), us(3));
        little.slept(us(2));
        assert_eq!(little.time(), us(3));
    }
}
