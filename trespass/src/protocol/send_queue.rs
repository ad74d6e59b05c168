//! What was posted to a send queue and has not completed: it owns the blocks until then.

use std::collections::VecDeque;

use super::block::Block;
use super::connection::{Frame, Transmit};
use super::pieces::{Pieces, Share};

/// What completed; to be handed to [`ProtocolMachine::done`](super::ProtocolMachine::done).
#[derive(Debug)]
pub(crate) enum Done<B> {
    /// A frame was sent: its blocks, if it had any.
    Sent(Option<Pieces<B>>),
    /// A frame was sent that had a share of a block.
    Part(Share<B>),
    /// A READ has filled its block.
    Read { id: u64, block: B },
    /// A probe came back.
    Probe,
}

impl<B: Block> From<Transmit<B>> for Done<B> {
    /// What the completion of `transmit` gives back, for drivers whose sends complete at once.
    fn from(transmit: Transmit<B>) -> Self {
        match transmit {
            Transmit::Send(Frame::Short(_)) => Done::Sent(None),
            Transmit::Send(Frame::Whole { block, end, .. }) => Done::Sent(Some(Pieces::own(block, end))),
            Transmit::Send(Frame::Gather { pieces, .. }) => Done::Sent(Some(pieces)),
            Transmit::Send(Frame::Part { share, .. }) => Done::Part(share),
            Transmit::Read(read) => Done::Read { id: read.id, block: read.into },
            Transmit::Probe => Done::Probe,
        }
    }
}

/// The work requests of one queue pair, oldest first. A signalled completion completes all before it.
pub(crate) struct SendQueue<B> {
    entries: VecDeque<Done<B>>,
    depth: usize,
    /// Work request ids count from 0; this is that of the entry at the front.
    first: u64,
    unsignalled: usize,
}

impl<B: Block> SendQueue<B> {
    /// For a send queue of `depth` work requests.
    pub(crate) fn new(depth: usize) -> Self {
        SendQueue { entries: VecDeque::with_capacity(depth), depth, first: 0, unsignalled: 0 }
    }

    /// How many more can be posted.
    pub(crate) fn room(&self) -> usize {
        self.depth - self.entries.len()
    }

    /// Whether nothing is under way.
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Takes what is being posted. Gives the work request's id, and whether it must be signalled: a READ and a probe always, every
    /// quarter of the queue, and the last of a turn, so that nothing is left without a completion to come. Call it only with room.
    pub(crate) fn push(&mut self, transmit: Transmit<B>, last_of_turn: bool) -> (u64, bool) {
        debug_assert!(self.room() > 0);
        let id = self.first + self.entries.len() as u64;
        self.unsignalled += 1;
        let signal = last_of_turn
            || !matches!(transmit, Transmit::Send(_))
            || self.unsignalled >= (self.depth / 4).max(1)
            || self.room() == 1;
        if signal {
            self.unsignalled = 0;
        }
        self.entries.push_back(Done::from(transmit));
        (id, signal)
    }

    /// The same for a frame that was begun by itself, with the block that it is in, if it is. It is signalled.
    pub(crate) fn push_alone(&mut self, block: Option<Pieces<B>>) -> u64 {
        debug_assert!(self.room() > 0);
        let id = self.first + self.entries.len() as u64;
        self.unsignalled = 0;
        self.entries.push_back(Done::Sent(block));
        id
    }

    /// Whether the work request `id` is under way, so that it can complete.
    pub(crate) fn has(&self, id: u64) -> bool {
        id.checked_sub(self.first).is_some_and(|at| at < self.entries.len() as u64)
    }

    /// Whether the oldest is a READ, and `id` is under way and was posted after it.
    pub(crate) fn passes_over_a_read(&self, id: u64) -> bool {
        id != self.first && self.has(id) && matches!(self.entries.front(), Some(Done::Read { .. }))
    }

    /// The work request `id` has completed, and with it all before it: gives them back one by one, then `None`. Of one that was never
    /// posted, or has completed before, nothing: a device that says so cannot be believed about the others either.
    pub(crate) fn complete(&mut self, id: u64) -> Option<Done<B>> {
        if !self.has(id) {
            return None;
        }
        let done = self.entries.pop_front()?;
        self.first += 1;
        Some(done)
    }

    /// The queue pair is in the error state and drained: nothing is touched any more. Gives back what was under way, one by one.
    pub(crate) fn drain(&mut self) -> Option<Done<B>> {
        let done = self.entries.pop_front()?;
        self.first += 1;
        Some(done)
    }
}
