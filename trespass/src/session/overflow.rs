//! Clients beyond a full backlog: when they are told that the listener is busy.
//!
//! At first they wait in the system's queue, because the program may accept soon. While the backlog
//! stays full, those who wait are told once a second, and connect again.

use std::time::{Duration, Instant};

/// How long a backlog is full before clients are told, and the time between two rounds.
const ROUND: Duration = Duration::from_secs(1);

/// Clients that are told in a round. Others wait for the next one.
const MAX_TOLD: u32 = 1024;

/// The rounds of a listener.
#[derive(Default)]
pub(crate) struct Overflow {
    /// When the next round begins. `None` while the backlog has places.
    round_at: Option<Instant>,
    /// Clients that the current round has told.
    told: u32,
    /// The log knows that the backlog is full.
    is_logged: bool,
}

impl Overflow {
    /// Notes whether the backlog is full. Returns whether a client may be told now.
    pub(crate) fn may_tell(&mut self, is_full: bool, now: Instant) -> bool {
        if !is_full {
            (self.round_at, self.told, self.is_logged) = (None, 0, false);
            return false;
        }
        let round_at = *self.round_at.get_or_insert(now + ROUND);
        if round_at <= now && self.told >= MAX_TOLD {
            self.end_round(now);
            return false;
        }
        round_at <= now
    }

    /// Whether a client was told since the backlog became full.
    pub(crate) fn is_logged(&self) -> bool {
        self.is_logged
    }

    /// Notes that a client was told.
    pub(crate) fn has_told(&mut self) {
        self.told += 1;
        self.is_logged = true;
    }

    /// Ends a round, because nobody waits.
    pub(crate) fn end_round(&mut self, now: Instant) {
        if self.round_at.is_some_and(|at| at <= now) {
            (self.round_at, self.told) = (Some(now + ROUND), 0);
        }
    }

    /// When the next round begins.
    pub(crate) fn round_at(&self) -> Option<Instant> {
        self.round_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_wait_first_and_are_then_told_once_a_second() {
        let (mut overflow, began) = (Overflow::default(), Instant::now());
        assert!(!overflow.may_tell(true, began), "the program may accept soon");
        assert_eq!(overflow.round_at(), Some(began + ROUND));
        let now = began + ROUND;
        assert!(overflow.may_tell(true, now) && !overflow.is_logged());
        overflow.has_told();
        assert!(overflow.may_tell(true, now) && overflow.is_logged(), "it is logged twice");
        overflow.end_round(now);
        assert!(!overflow.may_tell(true, now));
        assert!(overflow.may_tell(true, now + ROUND));
    }

    #[test]
    fn a_place_ends_it() {
        let (mut overflow, began) = (Overflow::default(), Instant::now());
        overflow.may_tell(true, began);
        assert!(!overflow.may_tell(false, began + ROUND));
        assert!(!overflow.may_tell(true, began + ROUND), "it has been full again for no time");
        assert!(overflow.may_tell(true, began + 2 * ROUND));
    }

    #[test]
    fn a_round_is_bounded() {
        let (mut overflow, began) = (Overflow::default(), Instant::now());
        overflow.may_tell(true, began);
        let now = began + ROUND;
        let mut told = 0;
        while overflow.may_tell(true, now) {
            overflow.has_told();
            told += 1;
            assert!(told <= MAX_TOLD);
        }
        assert_eq!((told, overflow.round_at()), (MAX_TOLD, Some(now + ROUND)));
    }
}
