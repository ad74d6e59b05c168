//! The order in which long messages are sent.
//!
//! Messages end one after another, as far as that holds up none for long. The receiver then takes a
//! message while it is in the processor's caches, and frees its memory sooner than if all
//! progressed alike. Of each batch, messages in their first turn have a share, so that one of a few
//! chunks does not wait behind others of many.

use std::collections::VecDeque;

use super::CHUNK;
use super::sending::Outbox;

/// The bytes of a message's first turn.
const FIRST_TURN: usize = 64 << 10;
/// The bytes of each later turn.
const LATER_TURN: usize = 1 << 20;

/// A message whose turn will come.
#[derive(Clone, Copy, Debug)]
pub(super) enum Turn {
    Request(u64),
    Answer(u64),
}

/// Which turn of a message it is, and the bytes that are left of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct TurnState {
    is_first: bool,
    left: usize,
}

/// The messages that have something to send, and credit for it.
#[derive(Debug, Default)]
pub(super) struct Turns {
    first: VecDeque<Turn>,
    later: VecDeque<Turn>,
}

impl TurnState {
    /// That of a message which has sent nothing.
    pub(super) fn new() -> Self {
        Self { is_first: true, left: FIRST_TURN }
    }

    /// Counts a chunk.
    pub(super) fn spend(&mut self, len: usize) {
        self.left = self.left.saturating_sub(len);
    }

    /// Whether the turn goes on.
    pub(super) fn goes_on(self) -> bool {
        self.left > 0
    }
}

impl Turns {
    pub(super) fn is_empty(&self) -> bool {
        self.first.is_empty() && self.later.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.first.len() + self.later.len()
    }

    /// Forgets the messages for which `is_due` is false.
    pub(super) fn retain(&mut self, mut is_due: impl FnMut(&Turn) -> bool) {
        self.first.retain(&mut is_due);
        self.later.retain(is_due);
    }

    /// Whether messages wait that had a turn.
    pub(super) fn has_later(&self) -> bool {
        !self.later.is_empty()
    }

    /// Adds a message that can send, unless it waits already. A message whose turn was interrupted
    /// continues it, before others.
    pub(super) fn add(&mut self, turn: Turn, outbox: &mut Outbox) {
        if !outbox.can_send() || std::mem::replace(&mut outbox.is_listed, true) {
            return;
        }
        let state = &mut outbox.turn;
        match *state {
            TurnState { left: 0, .. } => {
                *state = TurnState { is_first: false, left: LATER_TURN };
                self.later.push_back(turn);
            }
            TurnState { is_first: true, left: FIRST_TURN } => self.first.push_back(turn),
            TurnState { is_first: true, .. } => self.first.push_front(turn),
            TurnState { is_first: false, .. } => self.later.push_front(turn),
        }
    }

    /// Takes the next message out, one in its first turn or one in a later turn.
    pub(super) fn next(&mut self, is_first: bool) -> Option<Turn> {
        if is_first { self.first.pop_front() } else { self.later.pop_front() }
    }
}

const _: () = assert!(FIRST_TURN.is_multiple_of(CHUNK) && LATER_TURN.is_multiple_of(CHUNK));
