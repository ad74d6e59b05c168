//! The clock of the proof of the data path. It runs while both sides attend: this side has turns, and
//! the peer answers on the TCP connection. A busy side is waited for longer, and is told apart from a
//! path that carries nothing.

use std::time::{Duration, Instant};

/// How often a side asks whether the peer attends.
const ASK: Duration = Duration::from_millis(50);
/// A side attends while its last turn, or answer, is no older.
const ATTENDS: Duration = Duration::from_millis(100);
/// The most questions without an answer, so that a busy peer finds few.
const UNANSWERED: u32 = 4;

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
    /// The last turn. The first one comes when the queue pair is connected, which may take long.
    last: Option<Instant>,
    heard: Instant,
    asked: Instant,
    unanswered: u32,
    /// The proof takes longer than the first interval.
    is_slow: bool,
    /// How long each side did not attend.
    own_gaps: Duration,
    peer_gaps: Duration,
}

impl ProofClock {
    /// A clock with that limit. The peer was heard just now.
    pub(super) fn new(limit: Duration, end: Instant, now: Instant) -> Self {
        Self {
            left: limit,
            end,
            last: None,
            heard: now,
            asked: now,
            unanswered: 0,
            is_slow: false,
            own_gaps: Duration::ZERO,
            peer_gaps: Duration::ZERO,
        }
    }

    /// The peer has said something.
    pub(super) fn heard(&mut self, now: Instant) {
        self.heard = now;
        self.unanswered = 0;
    }

    /// When the peer was last heard.
    pub(super) fn heard_at(&self) -> Instant {
        self.heard
    }

    /// Whether to ask the peer now.
    pub(super) fn asks(&mut self, now: Instant) -> bool {
        let asks = self.unanswered < UNANSWERED && now.saturating_duration_since(self.asked) >= ASK;
        if asks {
            self.asked = now;
            self.unanswered += 1;
        }
        asks
    }

    /// Counts the time since the last turn. A peer that cannot answer counts as attending.
    pub(super) fn turn(&mut self, now: Instant, answers: bool) -> ProofTime {
        self.is_slow |= self.last.is_some_and(|last| now >= last + ASK);
        let since = self.last.replace(now).map_or(Duration::ZERO, |last| now.saturating_duration_since(last));
        let peer_attends = !answers || now.saturating_duration_since(self.heard) <= ATTENDS;
        if since > ATTENDS {
            self.own_gaps += since;
        } else if peer_attends {
            self.left = self.left.saturating_sub(since);
        } else {
            self.peer_gaps += since;
        }
        if self.left.is_zero() {
            return ProofTime::Passed;
        }
        match now >= self.end {
            false => ProofTime::Left,
            true if self.own_gaps > self.peer_gaps => ProofTime::ThisIsBusy,
            true => ProofTime::PeerIsBusy,
        }
    }

    /// Whether a whole interval has passed between two turns.
    pub(super) fn is_slow(&self) -> bool {
        self.is_slow
    }

    /// When the next turn is due.
    pub(super) fn next_turn(&self) -> Instant {
        let last = self.last.unwrap_or(self.heard);
        (last + self.left.min(ASK)).min(self.end.max(last))
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
        assert_eq!(run(10, 50, u32::MAX), (ProofTime::Passed, 310));
        // A peer that stops answering after 150 ms has attended for 100 ms more.
        assert_eq!(run(10, 50, 150), (ProofTime::PeerIsBusy, 4000));
        // The peer answers each 200 ms, so that the clock runs half of the time.
        let (said, at) = run(10, 200, u32::MAX);
        assert!(said == ProofTime::Passed && (450..=650).contains(&at), "{said:?} at {at}");
        assert_eq!(run(150, 150, u32::MAX).0, ProofTime::ThisIsBusy);
        // A single gap of this side, for example while the device registers memory, is not blamed.
        let start = Instant::now();
        let mut clock = ProofClock::new(300 * MS, start + 4000 * MS, start);
        clock.turn(start, true);
        clock.turn(start + 120 * MS, true);
        let said: Vec<_> = (13..=400).map(|at| clock.turn(start + 10 * at * MS, true)).collect();
        assert_eq!(said.last(), Some(&ProofTime::PeerIsBusy));
    }

    #[test]
    fn a_peer_that_cannot_answer_counts_as_attending() {
        let start = Instant::now();
        let mut clock = ProofClock::new(300 * MS, start + 4000 * MS, start);
        let said: Vec<_> = (0..=6).map(|turn| clock.turn(start + 50 * turn * MS, false)).collect();
        assert!(said[..6].iter().all(|said| *said == ProofTime::Left) && said[6] == ProofTime::Passed);
    }

    #[test]
    fn it_asks_now_and_then_and_wants_turns_before() {
        let start = Instant::now();
        let mut clock = ProofClock::new(300 * MS, start + 4000 * MS, start);
        assert!(!clock.asks(start + 49 * MS) && clock.asks(start + 50 * MS) && !clock.asks(start + 60 * MS));
        assert_eq!(clock.next_turn(), start + ASK);
        let asked = (2..100).filter(|turn| clock.asks(start + 50 * turn * MS)).count();
        assert_eq!(asked, UNANSWERED as usize - 1, "a peer that is busy for long finds few questions");
        clock.heard(start + 5000 * MS);
        assert!(clock.asks(start + 5000 * MS));
    }
}
