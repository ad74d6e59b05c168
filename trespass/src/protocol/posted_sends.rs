//! The send work requests that were posted and have not completed: this queue owns their blocks.

use std::collections::VecDeque;

use super::block::Block;
use super::pieces::{BlockPieces, BlockShare};
use super::transmit_item::{Frame, TransmitItem};

/// A completed item, to be handed to [`ProtocolMachine::done`](super::ProtocolMachine::done).
#[derive(Debug)]
pub(crate) enum CompletedTransmit<B> {
    /// A sent frame with its blocks, if any.
    Sent(Option<BlockPieces<B>>),
    /// A sent frame with a share of a block.
    Part(BlockShare<B>),
    /// A READ that has filled its block.
    Read { id: u64, block: B },
    /// A probe that was answered.
    Probe,
}

impl<B: Block> From<TransmitItem<B>> for CompletedTransmit<B> {
    /// The completion of an item, for drivers whose sends complete at once.
    fn from(transmit: TransmitItem<B>) -> Self {
        match transmit {
            TransmitItem::Send(Frame::Short(_)) => CompletedTransmit::Sent(None),
            TransmitItem::Send(Frame::Whole { block, end, copied, .. }) => {
                CompletedTransmit::Sent(Some(BlockPieces::own(block, end, copied)))
            }
            TransmitItem::Send(Frame::Gather { pieces, .. }) => CompletedTransmit::Sent(Some(pieces)),
            TransmitItem::Send(Frame::Part { share, .. }) => CompletedTransmit::Part(share),
            TransmitItem::Read(read) => CompletedTransmit::Read { id: read.id, block: read.into },
            TransmitItem::Probe => CompletedTransmit::Probe,
        }
    }
}

/// The work requests of one queue pair, oldest first. A signaled completion covers all before it.
pub(crate) struct PostedSends<B> {
    entries: VecDeque<CompletedTransmit<B>>,
    depth: usize,
    /// The id of the entry at the front; ids count from 0.
    first: u64,
    unsignalled: usize,
}

impl<B: Block> PostedSends<B> {
    /// For a send queue of `depth` work requests.
    pub(crate) fn new(depth: usize) -> Self {
        PostedSends { entries: VecDeque::with_capacity(depth), depth, first: 0, unsignalled: 0 }
    }

    /// The outstanding items, oldest first.
    #[cfg_attr(not(feature = "rdma"), allow(dead_code, reason = "only queue pairs fail alone"))]
    pub(crate) fn iter(&self) -> impl Iterator<Item = &CompletedTransmit<B>> {
        self.entries.iter()
    }

    /// The number of items that can still be posted.
    pub(crate) fn room(&self) -> usize {
        self.depth - self.entries.len()
    }

    /// Whether no item is outstanding.
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Records an item that is being posted. Returns the work request's id, and whether it must be
    /// signaled. A READ and a probe always are, and so is one per quarter of the queue. The last
    /// item of a turn is signaled, so that every item is covered by a completion. The queue must
    /// have room.
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

    /// Records a frame that was started separately, with the block of its copy, if any. It is
    /// signaled.
    pub(crate) fn push_single_frame(&mut self, block: Option<BlockPieces<B>>) -> u64 {
        debug_assert!(self.room() > 0);
        let id = self.first + self.entries.len() as u64;
        self.unsignalled = 0;
        self.entries.push_back(CompletedTransmit::Sent(block));
        id
    }

    /// Whether the work request `id` is outstanding, so that it can complete.
    pub(crate) fn has(&self, id: u64) -> bool {
        id.checked_sub(self.first).is_some_and(|at| at < self.entries.len() as u64)
    }

    /// Whether the oldest item is a READ, and `id` is outstanding and was posted after it.
    pub(crate) fn passes_over_a_read(&self, id: u64) -> bool {
        id != self.first
            && self.has(id)
            && matches!(self.entries.front(), Some(CompletedTransmit::Read { .. }))
    }

    /// Completes the work request `id` and all before it: returns them one by one, then `None`. For
    /// an id that was never posted, or has completed before, it returns nothing: such a device
    /// cannot be believed about the others, either.
    pub(crate) fn complete(&mut self, id: u64) -> Option<CompletedTransmit<B>> {
        if !self.has(id) {
            return None;
        }
        let done = self.entries.pop_front()?;
        self.first += 1;
        Some(done)
    }

    /// The queue pair is in the error state and drained, so that the device touches nothing.
    /// Returns the outstanding items one by one.
    pub(crate) fn drain(&mut self) -> Option<CompletedTransmit<B>> {
        let done = self.entries.pop_front()?;
        self.first += 1;
        Some(done)
    }
}
