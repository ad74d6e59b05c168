//! Staying awake for a moment after a letter. Connections are made by several that follow each other soon, and to wake a thread
//! on a processor that sleeps takes longer than to write a letter and to read it.

use std::time::{Duration, Instant};

/// So long.
const AWAKE: Duration = Duration::from_micros(50);
/// Whoever was let run meanwhile and has kept the processor for so long, a time slice, has work of its own. Those who make connections
/// seldom do.
const TAKEN: Duration = Duration::from_millis(1);
/// Nobody stays awake for so long then, as the next time might cost a time slice, too.
const REST: Duration = Duration::from_millis(100);

/// Until when the service thread looks, again and again, instead of sleeping.
#[derive(Debug, Default)]
pub(crate) struct Vigil {
    until: Option<Instant>,
    rests_until: Option<Instant>,
}

impl Vigil {
    /// A letter came.
    pub(crate) fn begin(&mut self, now: Instant) {
        if self.rests_until.is_none_or(|end| now >= end) {
            (self.until, self.rests_until) = (Some(now + AWAKE), None);
        }
    }

    /// Whether to look once more.
    pub(crate) fn lasts(&self, now: Instant) -> bool {
        self.until.is_some_and(|end| now < end)
    }

    /// Others were let run, who took so long.
    pub(crate) fn gave_way(&mut self, took: Duration, now: Instant) {
        if took > TAKEN {
            (self.until, self.rests_until) = (None, Some(now + REST));
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_vigil_lasts_for_a_moment_after_the_last_letter() {
        let (mut vigil, start) = (Vigil::default(), Instant::now());
        assert!(!vigil.lasts(start));
        vigil.begin(start);
        assert!(vigil.lasts(start + AWAKE / 2));
        vigil.begin(start + AWAKE / 2);
        assert!(vigil.lasts(start + AWAKE) && !vigil.lasts(start + AWAKE * 2));
    }

    #[test]
    fn where_others_want_the_processor_there_is_none_for_a_while() {
        let (mut vigil, start) = (Vigil::default(), Instant::now());
        vigil.begin(start);
        vigil.gave_way(TAKEN, start);
        assert!(vigil.lasts(start));
        vigil.gave_way(TAKEN * 2, start);
        assert!(!vigil.lasts(start));
        vigil.begin(start + REST / 2);
        assert!(!vigil.lasts(start + REST / 2));
        vigil.begin(start + REST);
        assert!(vigil.lasts(start + REST));
    }
}
