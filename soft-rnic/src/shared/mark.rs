//! Marks: what a peer touches at this moment, so that the owner can wait until it does not.
//!
//! A peer publishes a mark in the owner's segment *before* it looks again whether it may touch the memory; the owner
//! closes the [gate](super::gate) *before* it looks for marks. Between each store and the following load stands a fence,
//! so at least one of the two sees the other. A mark that stays is waited for, until its peer is proved dead.

use crate::sync::{Acquire, AtomicU64, Release, SeqCst, fence};

/// How many transfers one process has under way at most in one peer's memory: one a lane.
pub(crate) const LANES: usize = if cfg!(any(loom, miri)) { 4 } else { 64 };

const BUSY: u64 = 1 << 63;
/// In a peer's first cell: it has gone, and touches nothing any more.
const LEFT: u64 = 1;
const QP_SHIFT: u32 = 32;
const FIELD: u64 = 0xff_ffff;

/// A queue pair of the owner and one of its memory regions (or all of them).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark(u64);

impl Mark {
    /// Stands for every region: a transfer that touches several.
    pub(crate) const ANY_REGION: u32 = FIELD as u32;

    /// Stands for none: a transfer that touches the queue pair's own structures only. No table is as large.
    pub(crate) const NO_REGION: u32 = FIELD as u32 - 1;

    /// Stands for every queue pair: a transfer that goes by way of several.
    pub(crate) const ANY_QUEUE_PAIR: u32 = FIELD as u32;

    /// A transfer through this queue pair, in this region. Both are indices in the owner's tables.
    pub(crate) fn new(queue_pair: u32, region: u32) -> Self {
        Self(BUSY | (u64::from(queue_pair) & FIELD) << QP_SHIFT | u64::from(region) & FIELD)
    }

    /// Whether the transfer may touch this region.
    pub(crate) fn touches_region(self, region: u32) -> bool {
        let marked = (self.0 & FIELD) as u32;
        marked == region || marked == Self::ANY_REGION
    }

    /// Whether the transfer goes through this queue pair.
    pub(crate) fn uses_queue_pair(self, queue_pair: u32) -> bool {
        let marked = (self.0 >> QP_SHIFT & FIELD) as u32;
        marked == queue_pair || marked == Self::ANY_QUEUE_PAIR
    }
}

/// Stands between marks that were set and the gates that are looked at again.
#[inline]
pub(crate) fn settle() {
    fence(SeqCst);
}

/// Where one lane of one peer publishes its mark.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct MarkCell {
    mark: AtomicU64,
    unused: [AtomicU64; 7],
}

impl MarkCell {
    /// Announces a transfer. Only the holder of the lane calls this.
    #[inline]
    pub(crate) fn publish(&self, mark: Mark) {
        self.set(mark);
        settle();
    }

    /// The first half of [`publish`](Self::publish), where several marks share one [`settle`].
    ///
    /// A release store: an owner that sees this mark need not have seen that the one before was cleared, and may take
    /// what that one named as untouched from now on.
    #[inline]
    pub(crate) fn set(&self, mark: Mark) {
        self.mark.store(mark.0, Release);
    }

    /// The transfer is over: all its accesses come before.
    #[inline]
    pub(crate) fn clear(&self) {
        self.mark.store(0, Release);
    }

    /// Peer: leaves for good. No transfer of it is under way, nor will one be.
    pub(crate) fn leave(&self) {
        self.mark.store(LEFT, Release);
    }

    /// Whether the peer has said that it leaves. All its accesses have happened.
    pub(crate) fn has_left(&self) -> bool {
        self.mark.load(Acquire) == LEFT
    }

    /// The transfer under way. All accesses of earlier ones have happened.
    pub(crate) fn get(&self) -> Option<Mark> {
        let value = self.mark.load(Acquire);
        (value & BUSY != 0).then_some(Mark(value))
    }
}
