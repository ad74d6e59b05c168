//! The clock of the proof of the data path. It runs while both sides attend: this side has turns, and
//! the peer answers on the TCP connection. A busy side is waited for longer, and is told apart from a
//! path that carries nothing.

use std::time::{Duration, Instant};

/// How often a side asks whether the peer attends.
const ASK: Duration = Duration::from_millis(50);
/// A side attends while its last turn, or answer, is no older.
const ATTENDS: Duration = Duration::from_millis(100);

/// What the clock says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProofTime {
    Left,
    /// Both sides have attended for the time limit.
    Passed,
    /// There is no time left to wait for the peer.
    PeerIsBusy,
    /// There is no time left, and this side had too few turns.
    ThisIsBusy,
}

#[derive(Debug)]
pub(super) struct ProofClock {
    left: Duration,
    /// When there is no more time for a busy side.
    end: Instant,
    last: Instant,
    heard: Instant,
    asked: Instant,
    /// The longest time without a turn.
    longest_gap: Duration,
}

impl ProofClock {
    /// A clock with that limit. The peer was heard just now.
    pub(super) fn new(limit: Duration, end: Instant, now: Instant) -> Self {
        Self { left: limit, end, last: now, heard: now, asked: now, longest_gap: Duration::ZERO }
    }

    /// The peer has said something.
    pub(super) fn heard(&mut self, now: Instant) {
        self.heard = now;
    }

    /// Whether to ask the peer now.
    pub(super) fn asks(&mut self, now: Instant) -> bool {
        let asks = now.saturating_duration_since(self.asked) >= ASK;
        if asks {
            self.asked = now;
        }
        asks
    }

    /// Counts the time since the last turn. A peer that cannot answer counts as attending.
    pub(super) fn turn(&mut self, now: Instant, answers: bool) -> ProofTime {
        let since = now.saturating_duration_since(self.last);
        self.last = now;
        self.longest_gap = self.longest_gap.max(since);
        let peer_attends = !answers || now.saturating_duration_since(self.heard) <= ATTENDS;
        if since <= ATTENDS && peer_attends {
            self.left = self.left.saturating_sub(since);
        }
        if self.left.is_zero() {
            return ProofTime::Passed;
        }
        match now >= self.end {
            false => ProofTime::Left,
            true if self.longest_gap > ATTENDS => ProofTime::ThisIsBusy,
            true => ProofTime::PeerIsBusy,
        }
    }

    /// When the next turn is due.
    pub(super) fn next_turn(&self) -> Instant {
        (self.last + self.left.min(ASK)).min(self.end.max(self.last))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Runs a clock of 300 ms within 4 s, with a turn each `step`, and an answer each `answer` until
    /// `silent`. Returns what it says at last, and when.
    fn run(step: u32, answer: u32, silent: u32) -> (ProofTime, u128) {
        let start = Instant::now();
        let mut clock = ProofClock::new(300 * MS, start + 4000 * MS, start);
        let mut at = 0;
        loop {
            at += step;
            let now = start + at * MS;
            if at % answer < step && at < silent {
                clock.heard(now);
            }
            match clock.turn(now, true) {
                ProofTime::Left => (),
                said => return (said, (now - start).as_millis()),
            }
        }
    }

    #[test]
    fn it_runs_while_both_attend() {
        assert_eq!(run(10, 50, u32::MAX), (ProofTime::Passed, 300));
        // A peer that stops answering after 150 ms has attended for 100 ms more.
        assert_eq!(run(10, 50, 150), (ProofTime::PeerIsBusy, 4000));
        // The peer answers each 200 ms, so that the clock runs half of the time.
        let (said, at) = run(10, 200, u32::MAX);
        assert!(said == ProofTime::Passed && (450..=650).contains(&at), "{said:?} at {at}");
        assert_eq!(run(150, 150, u32::MAX).0, ProofTime::ThisIsBusy);
    }

    #[test]
    fn a_peer_that_cannot_answer_counts_as_attending() {
        let start = Instant::now();
        let mut clock = ProofClock::new(300 * MS, start + 4000 * MS, start);
        let said: Vec<_> = (1..=6).map(|turn| clock.turn(start + 50 * turn * MS, false)).collect();
        assert!(said[..5].iter().all(|said| *said == ProofTime::Left) && said[5] == ProofTime::Passed);
    }

    #[test]
    fn it_asks_now_and_then_and_wants_turns_before() {
        let start = Instant::now();
        let mut clock = ProofClock::new(300 * MS, start + 4000 * MS, start);
        assert!(!clock.asks(start + 49 * MS) && clock.asks(start + 50 * MS) && !clock.asks(start + 60 * MS));
        assert_eq!(clock.next_turn(), start + ASK);
    }
}
