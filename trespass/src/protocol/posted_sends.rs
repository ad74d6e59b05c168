//! What was posted to a send queue and has not completed: it owns the blocks until then.

use std::collections::VecDeque;

use super::block::Block;
use super::machine::{Frame, TransmitItem};
use super::pieces::{BlockPieces, BlockShare};

/// What completed; to be handed to [`ProtocolMachine::done`](super::ProtocolMachine::done).
#[derive(Debug)]
pub(crate) enum CompletedTransmit<B> {
    /// A frame was sent: its blocks, if it had any.
    Sent(Option<BlockPieces<B>>),
    /// A frame was sent that had a share of a block.
    Part(BlockShare<B>),
    /// A READ has filled its block.
    Read { id: u64, block: B },
    /// A probe came back.
    Probe,
}

impl<B: Block> From<TransmitItem<B>> for CompletedTransmit<B> {
    /// What the completion of `transmit` gives back, for drivers whose sends complete at once.
    fn from(transmit: TransmitItem<B>) -> Self {
        match transmit {
            TransmitItem::Send(Frame::Short(_)) => CompletedTransmit::Sent(None),
            TransmitItem::Send(Frame::Whole { block, end, .. }) => {
                CompletedTransmit::Sent(Some(BlockPieces::own(block, end)))
            }
            TransmitItem::Send(Frame::Gather { pieces, .. }) => CompletedTransmit::Sent(Some(pieces)),
            TransmitItem::Send(Frame::Part { share, .. }) => CompletedTransmit::Part(share),
            TransmitItem::Read(read) => CompletedTransmit::Read { id: read.id, block: read.into },
            TransmitItem::Probe => CompletedTransmit::Probe,
        }
    }
}

/// The work requests of one queue pair, oldest first. A signalled completion completes all before it.
pub(crate) struct PostedSends<B> {
    entries: VecDeque<CompletedTransmit<B>>,
    depth: usize,
    /// Work request ids count from 0; this is that of the entry at the front.
    first: u64,
    unsignalled: usize,
}

impl<B: Block> PostedSends<B> {
    /// For a send queue of `depth` work requests.
    pub(crate) fn new(depth: usize) -> Self {
        PostedSends { entries: VecDeque::with_capacity(depth), depth, first: 0, unsignalled: 0 }
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
    pub(crate) fn push(&mut self, transmit: TransmitItem<B>, last_of_turn: bool) -> (u64, bool) {
        debug_assert!(self.room() > 0);
        let id = self.first + self.entries.len() as u64;
        self.unsignalled += 1;
        let signal = last_of_turn
            || !matches!(transmit, TransmitItem::Send(_))
            || self.unsignalled >= (self.depth / 4).max(1)
            || self.room() == 1;
        if signal {
            self.unsignalled = 0;
        }
        self.entries.push_back(CompletedTransmit::from(transmit));
        (id, signal)
    }

    /// The same for a frame that was begun by itself, with the block that it is in, if it is. It is signalled.
    pub(crate) fn push_single_frame(&mut self, block: Option<BlockPieces<B>>) -> u64 {
        debug_assert!(self.room() > 0);
        let id = self.first + self.entries.len() as u64;
        self.unsignalled = 0;
        self.entries.push_back(CompletedTransmit::Sent(block));
        id
    }

    /// Whether the work request `id` is under way, so that it can complete.
    pub(crate) fn has(&self, id: u64) -> bool {
        id.checked_sub(self.first).is_some_and(|at| at < self.entries.len() as u64)
    }

    /// Whether the oldest is a READ, and `id` is under way and was posted after it.
    pub(crate) fn passes_over_a_read(&self, id: u64) -> bool {
        id != self.first
            && self.has(id)
            && matches!(self.entries.front(), Some(CompletedTransmit::Read { .. }))
    }

    /// The work request `id` has completed, and with it all before it: gives them back one by one, then `None`. Of one that was never
    /// posted, or has completed before, nothing: a device that says so cannot be believed about the others either.
    pub(crate) fn complete(&mut self, id: u64) -> Option<CompletedTransmit<B>> {
        if !self.has(id) {
            return None;
        }
        let done = self.entries.pop_front()?;
        self.first += 1;
        Some(done)
    }

    /// The queue pair is in the error state and drained: nothing is touched any more. Gives back what was under way, one by one.
    pub(crate) fn drain(&mut self) -> Option<CompletedTransmit<B>> {
        let done = self.entries.pop_front()?;
        self.first += 1;
        Some(done)
    }
}
