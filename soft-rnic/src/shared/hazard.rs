//! Hazard pointers: each transfer slot of a peer names what it touches now, so that the owner can
//! wait until no transfer touches an object.
//!
//! A peer publishes a hazard in the owner's segment *before* it compares the
//! [generation](super::generation) again; the owner invalidates the generation *before* it looks for
//! hazards. A full fence stands between each store and the following load, so that at least one of
//! the two sees the other. The owner waits for a hazard until it is cleared or its peer is proved
//! dead.

use crate::sync::{Acquire, AtomicU64, Release, SeqCst, fence};

/// How many transfers one process has under way at most in one peer's memory: one a transfer slot.
pub(crate) const TRANSFER_SLOTS: usize = if cfg!(any(loom, miri)) { 4 } else { 64 };

const BUSY: u64 = 1 << 63;
/// In a peer's first cell: it has gone, and touches nothing any more.
const LEFT: u64 = 1;
const QP_SHIFT: u32 = 32;
const FIELD: u64 = 0xff_ffff;

/// A queue pair of the owner and one of its memory regions (or all of them).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hazard(u64);

impl Hazard {
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
        let index = (self.0 & FIELD) as u32;
        index == region || index == Self::ANY_REGION
    }

    /// Whether the transfer goes through this queue pair.
    pub(crate) fn uses_queue_pair(self, queue_pair: u32) -> bool {
        let index = (self.0 >> QP_SHIFT & FIELD) as u32;
        index == queue_pair || index == Self::ANY_QUEUE_PAIR
    }
}

/// Stands between the stores of hazards and the loads that compare generations again.
#[inline]
pub(crate) fn full_fence() {
    fence(SeqCst);
}

/// Where one transfer slot of one peer publishes its hazard.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct HazardSlot {
    hazard: AtomicU64,
    unused: [AtomicU64; 7],
}

impl HazardSlot {
    /// Announces a transfer. Only the holder of the transfer slot calls this.
    #[inline]
    pub(crate) fn publish(&self, hazard: Hazard) {
        self.set(hazard);
        full_fence();
    }

    /// The first half of [`publish`](Self::publish), where several hazards share one [`full_fence`].
    ///
    /// A release store: an owner that sees this hazard need not have seen that the one before was cleared, and may take
    /// what that one named as untouched from now on.
    #[inline]
    pub(crate) fn set(&self, hazard: Hazard) {
        self.hazard.store(hazard.0, Release);
    }

    /// The transfer is over: all its accesses come before.
    #[inline]
    pub(crate) fn clear(&self) {
        self.hazard.store(0, Release);
    }

    /// Peer: leaves for good. No transfer of it is under way, nor will one be.
    pub(crate) fn leave(&self) {
        self.hazard.store(LEFT, Release);
    }

    /// Whether the peer has said that it leaves. All its accesses have happened.
    pub(crate) fn has_left(&self) -> bool {
        self.hazard.load(Acquire) == LEFT
    }

    /// The transfer under way. All accesses of earlier ones have happened.
    pub(crate) fn get(&self) -> Option<Hazard> {
        let value = self.hazard.load(Acquire);
        (value & BUSY != 0).then_some(Hazard(value))
    }
}
