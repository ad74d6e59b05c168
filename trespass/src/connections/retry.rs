//! When a connect is tried again.

use std::time::{Duration, Instant};

/// The number of retries, and the pause before each.
#[derive(Clone, Copy, Debug)]
pub(super) struct Retry {
    pub(super) retries: u32,
    pub(super) pause: Duration,
}

impl Retry {
    /// The pause after that many failed attempts; `None` if no further one is allowed, or if it would
    /// begin after the deadline.
    pub(super) fn pause_after(
        self,
        attempts: u32,
        now: Instant,
        deadline: Option<Instant>,
        random: u32,
    ) -> Option<Duration> {
        let pause = jittered(self.pause, random);
        let is_in_time = deadline.is_none_or(|deadline| pause <= deadline.saturating_duration_since(now));
        (attempts <= self.retries && is_in_time).then_some(pause)
    }
}

/// The pause times 1.0 to 1.2, so that programs that lost a server together do not return together.
fn jittered(pause: Duration, random: u32) -> Duration {
    pause.saturating_add((pause / 5).mul_f64(f64::from(random) / f64::from(u32::MAX)))
}

/// A number for [`Retry::pause_after`].
pub(super) fn random() -> u32 {
    getrandom::u32().unwrap_or(u32::MAX / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_is_jittered_within_its_bounds() {
        let pause = Duration::from_secs(1);
        assert_eq!(jittered(pause, 0), pause);
        assert_eq!(jittered(pause, u32::MAX), Duration::from_millis(1200));
        let middle = jittered(pause, u32::MAX / 2);
        assert!((1099..1101).contains(&middle.as_millis()), "{middle:?}");
        assert_eq!(jittered(Duration::MAX, u32::MAX), Duration::MAX);
        let some: Vec<_> = (0..100).map(|_| jittered(pause, random())).collect();
        assert!(some.iter().all(|some| (1000..=1200).contains(&some.as_millis())), "{some:?}");
        assert!(some.iter().any(|other| *other != some[0]), "nothing is random");
    }

    #[test]
    fn retries_end_by_number_and_by_deadline() {
        let retry = Retry { retries: 2, pause: Duration::from_secs(1) };
        let now = Instant::now();
        let after = |attempts, deadline| retry.pause_after(attempts, now, deadline, 0);
        assert_eq!(after(2, None), Some(retry.pause));
        assert_eq!(after(3, None), None);
        assert_eq!(after(1, Some(now + retry.pause)), Some(retry.pause));
        assert_eq!(after(1, Some(now + retry.pause / 2)), None);
    }
}
