//! Whose state it is with a call: a request that a sender leaves with the owner of the memory, and its answer.
//!
//! ```text
//!           sender asks            owner begins             owner answers
//!     IDLE --------------> ASKED -----------------> BEGUN -----------------> ANSWERED
//!      ^                     |                        |                         |
//!      |  sender withdraws   |                        | sender leaves           |  sender has read it
//!      +---------------------+                        v                         |
//!      ^      owner has given back what was left    LEFT                        |
//!      +----------------------------------------------+                         |
//!      ^                                                                        |
//!      +------------------------------------------------------------------------+
//! ```
//!
//! What the owner has not begun the sender may withdraw, and do what it likes with the receive that it was for. What it has
//! begun it may be at for any time: a sender that does not wait for that leaves the receive to the owner, who offers it anew
//! when it comes to its end. Never do both believe that it is theirs.

use crate::sync::{AcqRel, Acquire, AtomicU32, Relaxed, Release};

/// Whose state it is. In the segment; whatever a peer may write there is some phase.
#[derive(Debug, Default)]
#[repr(transparent)]
pub(crate) struct CallState(AtomicU32);

/// How far a call is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallPhase {
    Idle,
    Asked,
    Answered,
    /// The owner is at it.
    Begun,
    /// The same, and the sender does not wait for it.
    Left,
}

const IDLE: u32 = 0;
const ASKED: u32 = 1;
const ANSWERED: u32 = 2;
const BEGUN: u32 = 3;
const LEFT: u32 = 4;

impl CallState {
    #[inline]
    pub(crate) fn phase(&self) -> CallPhase {
        Self::phase_of(self.0.load(Acquire))
    }

    fn phase_of(word: u32) -> CallPhase {
        match word {
            ASKED => CallPhase::Asked,
            ANSWERED => CallPhase::Answered,
            BEGUN => CallPhase::Begun,
            LEFT => CallPhase::Left,
            _ => CallPhase::Idle,
        }
    }

    /// Sender: the request is there. Nobody may be at another.
    pub(crate) fn ask(&self) {
        self.0.store(ASKED, Release);
    }

    fn transition(&self, from: u32, to: u32) -> Result<(), CallPhase> {
        self.0.compare_exchange(from, to, AcqRel, Acquire).map(|_| ()).map_err(Self::phase_of)
    }

    /// Sender: takes a request back. False if the owner has begun.
    pub(crate) fn withdraw(&self) -> bool {
        self.transition(ASKED, IDLE).is_ok()
    }

    /// Sender: leaves to the owner what it has begun, and what was written for it before. False if it has come to its end.
    pub(crate) fn leave(&self) -> bool {
        self.transition(BEGUN, LEFT).is_ok()
    }

    /// Sender: has read the answer. Owner: has given back what was left.
    pub(crate) fn end(&self) {
        self.0.store(IDLE, Release);
    }

    /// Owner: begins, if something was asked.
    pub(crate) fn begin(&self) -> bool {
        self.0.load(Relaxed) == ASKED && self.transition(ASKED, BEGUN).is_ok()
    }

    /// Owner: the answer is there. False if nobody waits for it, and something was left to the owner.
    pub(crate) fn answer(&self) -> bool {
        self.transition(BEGUN, ANSWERED) != Err(CallPhase::Left)
    }
}
