//! The phases of a timed test.
//!
//! A test with a number of messages counts all of them. A timed test (`-D`) excludes margins by
//! perftest's rule: a quarter of the duration, in whole seconds, at the start and at the end. A
//! thread that mostly sleeps changes the phase, so that the measured loop reads no clock for it.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use stride_base::seconds::Seconds;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TestPhase {
    /// Messages do not count yet.
    WarmUp,
    /// Messages count.
    Counted,
    /// Messages do not count any more.
    CoolDown,
    /// The test ends.
    Over,
}

const PHASES: [TestPhase; 4] = [TestPhase::WarmUp, TestPhase::Counted, TestPhase::CoolDown, TestPhase::Over];

/// Tells a test's phases.
#[derive(Debug)]
pub(super) struct PhaseClock {
    phase: AtomicU8,
    is_steady: bool,
}

impl PhaseClock {
    /// The clock of a test that ends by itself, and counts all messages.
    pub(super) fn steady() -> Self {
        Self { phase: AtomicU8::new(TestPhase::Counted as u8), is_steady: true }
    }

    /// Runs `work` for the given number of seconds, or until it ends by itself.
    pub(super) fn of<T>(seconds: Option<Seconds>, work: impl FnOnce(&Self) -> T) -> T {
        match seconds {
            Some(seconds) => Self::during(seconds, work),
            None => work(&Self::steady()),
        }
    }

    /// Runs `work` for the given number of seconds.
    pub(super) fn during<T>(seconds: Seconds, work: impl FnOnce(&Self) -> T) -> T {
        let pace = Self { phase: AtomicU8::new(TestPhase::WarmUp as u8), is_steady: false };
        let [margin, counted] = windows(seconds);
        thread::scope(|scope| {
            // Dropped with `work`, which may end early, so that the thread does not sleep for the
            // rest of the time.
            let (alive, ended) = channel::<()>();
            let pace = &pace;
            scope.spawn(move || {
                let then =
                    [(margin, TestPhase::Counted), (counted, TestPhase::CoolDown), (margin, TestPhase::Over)];
                for (time, phase) in then {
                    if ended.recv_timeout(time) != Err(RecvTimeoutError::Timeout) {
                        return;
                    }
                    // The phase orders nothing else. `fetch_max` keeps a test that was ended.
                    pace.phase.fetch_max(phase as u8, Ordering::Relaxed);
                }
            });
            let done = work(pace);
            drop(alive);
            done
        })
    }

    /// Ends the test now.
    pub(super) fn end(&self) {
        self.phase.store(TestPhase::Over as u8, Ordering::Relaxed);
    }

    /// Whether the phase never changes, unless the test fails.
    pub(super) fn is_steady(&self) -> bool {
        self.is_steady
    }

    /// The current phase.
    #[inline(always)]
    pub(super) fn phase(&self) -> TestPhase {
        PHASES[usize::from(self.phase.load(Ordering::Relaxed) & 3)]
    }

    /// Whether the time is up, in a test that counts every message.
    #[inline(always)]
    pub(super) fn is_over(&self) -> bool {
        !self.is_past(TestPhase::Over)
    }

    /// Whether the phase is a later one.
    #[inline(always)]
    pub(super) fn is_past(&self, phase: TestPhase) -> bool {
        self.phase.load(Ordering::Relaxed) != phase as u8
    }
}

/// perftest's margin, and the counted time between two margins.
fn windows(seconds: Seconds) -> [Duration; 2] {
    let whole = seconds.duration();
    let margin = Duration::from_secs(whole.as_secs() / 4);
    [margin, whole - 2 * margin]
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn margins_are_perftests() {
        let of = |seconds: &str| windows(seconds.parse().unwrap()).map(|time| time.as_secs_f64());
        assert_eq!(
            (of("1"), of("5"), of("10"), of("60")),
            ([0.0, 1.0], [1.0, 3.0], [2.0, 6.0], [15.0, 30.0])
        );
        assert_eq!((of("0.25"), of("3.999"), of("4.5")), ([0.0, 0.25], [0.0, 3.999], [1.0, 2.5]));
    }

    #[test]
    fn phases_follow_one_another() {
        let start = Instant::now();
        let seen = PhaseClock::during("0.2".parse().unwrap(), |pace| {
            let mut seen = vec![pace.phase()];
            while pace.phase() != TestPhase::Over {
                thread::sleep(Duration::from_millis(1));
                if seen.last() != Some(&pace.phase()) {
                    seen.push(pace.phase());
                }
            }
            seen
        });
        assert!(start.elapsed() >= Duration::from_millis(200), "{:?}", start.elapsed());
        assert_eq!(seen.last(), Some(&TestPhase::Over));
        assert!(seen.contains(&TestPhase::Counted), "{seen:?}");
    }

    #[test]
    fn an_early_end_does_not_wait() {
        let start = Instant::now();
        PhaseClock::during(Seconds::whole(3600), |pace| assert!(!pace.is_past(TestPhase::WarmUp)));
        assert!(start.elapsed() < Duration::from_secs(600));
    }

    #[test]
    fn a_steady_pace_counts_everything() {
        let pace = PhaseClock::steady();
        assert_eq!((pace.phase(), pace.is_steady()), (TestPhase::Counted, true));
        pace.end();
        assert_eq!(pace.phase(), TestPhase::Over);
        PhaseClock::during(Seconds::whole(3600), |pace| assert!(!pace.is_steady()));
    }
}
