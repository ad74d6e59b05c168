//! The state of a remote procedure call: a request that a sender leaves with the owner of the
//! memory, and the owner's answer.
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
//! Until the owner has begun, the sender may withdraw the request and use its receive as it likes.
//! Once the owner has begun, it may take any amount of time. A sender that does not wait for the
//! answer leaves the receive to the owner, which posts it again when it is done. At no time do both
//! believe that the receive is theirs.

use crate::sync::{AcqRel, Acquire, AtomicU32, Relaxed, Release};

/// The state word, in the segment. Every value that a peer may write there decodes to some phase.
#[derive(Debug, Default)]
#[repr(transparent)]
pub(crate) struct CallState(AtomicU32);

/// The progress of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallPhase {
    Idle,
    Asked,
    Answered,
    /// The owner works on the request.
    Begun,
    /// The owner works on the request, and the sender does not wait for it.
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

    /// Sender: publishes the request. No other request may be under way.
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

    /// Sender: leaves a begun request to the owner, with all that the sender wrote for it before.
    /// False if the owner has already answered.
    pub(crate) fn leave(&self) -> bool {
        self.transition(BEGUN, LEFT).is_ok()
    }

    /// Sender: has read the answer. Owner: has given back what the sender left.
    pub(crate) fn end(&self) {
        self.0.store(IDLE, Release);
    }

    /// Owner: begins the request, if one was asked.
    pub(crate) fn begin(&self) -> bool {
        self.0.load(Relaxed) == ASKED && self.transition(ASKED, BEGUN).is_ok()
    }

    /// Owner: publishes the answer. False if the sender has left, so that the owner must clean up.
    pub(crate) fn answer(&self) -> bool {
        self.transition(BEGUN, ANSWERED) != Err(CallPhase::Left)
    }
}
