//! Polling the completion queues of rails: most often the one of the rail that brought the last
//! frame.

use std::time::Instant;

use super::super::DeviceBlock;
use super::super::queue_pair::CompletionTarget;
use super::{RailEnd, RailPair, RailsDriver};
use crate::protocol::{CallBuffer, ProtocolMachine};
use crate::rails::RailCause;

/// The times that a queue pair is polled in turn by a caller that spins.
const POLLS_IN_A_ROW: u32 = 4;
/// The polls of the rail of the last frame after which each other one is polled.
const POLLS_UNTIL_OTHERS: u32 = 16;

/// The time of a part of a turn, read when it is first needed.
#[derive(Default)]
pub(super) struct TurnClock(Option<Instant>);

impl TurnClock {
    pub(super) fn at(now: Instant) -> Self {
        Self(Some(now))
    }

    #[inline]
    pub(super) fn now(&mut self) -> Instant {
        *self.0.get_or_insert_with(Instant::now)
    }
}

impl<B: DeviceBlock> RailsDriver<B> {
    /// Takes all completions of all rails. Returns whether any arrived.
    pub(super) fn poll_all(
        &mut self,
        protocol: &mut ProtocolMachine<B>,
        sink: &mut CallBuffer<'_>,
        clock: &mut TurnClock,
    ) -> bool {
        (0..self.pairs.len())
            .fold(false, |moved, rail| self.poll_rail(rail, protocol, None, sink, clock) | moved)
    }

    /// Takes completions up to the first frame. Polls the rail of the last frame, and the others
    /// after a few polls of it, also of other calls, and before it returns false.
    pub(super) fn poll_for_frame(
        &mut self,
        protocol: &mut ProtocolMachine<B>,
        polls: u32,
        sink: &mut CallBuffer<'_>,
        clock: &mut TurnClock,
    ) -> bool {
        let mut left = polls;
        loop {
            let row = left.min(POLLS_IN_A_ROW);
            let mut moved = self.poll_rail(self.hot, protocol, Some(row), sink, clock);
            left -= row;
            self.polls_left = self.polls_left.saturating_sub(row);
            if self.polls_left == 0 || (left == 0 && !moved) {
                self.polls_left = POLLS_UNTIL_OTHERS;
                moved |= self.poll_others(protocol, sink, clock);
            }
            if moved || left == 0 {
                return moved;
            }
        }
    }

    /// Polls each rail once, except for the one that brought the last frame.
    fn poll_others(
        &mut self,
        protocol: &mut ProtocolMachine<B>,
        sink: &mut CallBuffer<'_>,
        clock: &mut TurnClock,
    ) -> bool {
        let (hot, mut moved) = (self.hot, false);
        for rail in (0..self.pairs.len()).filter(|rail| *rail != hot) {
            moved |= self.poll_rail(rail, protocol, Some(1), sink, clock);
        }
        moved
    }

    /// Polls a rail's completion queue: with a number of polls, until one finds something, and up to
    /// the first frame. Returns whether any completion arrived.
    pub(super) fn poll_rail(
        &mut self,
        rail: usize,
        protocol: &mut ProtocolMachine<B>,
        polls: Option<u32>,
        sink: &mut CallBuffer<'_>,
        clock: &mut TurnClock,
    ) -> bool {
        let Self { pairs, rails, spare_blocks, broken, hot, .. } = self;
        let Some(RailPair { owner, .. }) = &mut pairs[rail] else { return false };
        let (pair, CompletionTarget::Own(dispatcher)) = owner.parts() else { return false };
        let polled = dispatcher.poll_sole(polls.unwrap_or(1), |completed| {
            let is_frame = completed.is_frame();
            if is_frame {
                *hot = rail;
            }
            RailEnd { rail, pair, rails: &mut *rails, spare: &mut *spare_blocks, broken: &mut *broken }
                .take(protocol, completed, sink, clock);
            polls.is_some() && is_frame
        });
        polled.unwrap_or_else(|error| {
            tracing::warn!(rail, %error, "polling completions failed");
            rails.fail(rail, RailCause::Device);
            true
        })
    }
}
