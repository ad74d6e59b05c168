//! Hazard pointers: each transfer slot of a peer names what it touches now, so that the owner can
//! wait until no transfer touches an object.
//!
//! A peer publishes a hazard in its [`HazardPage`] *before* it compares the
//! [generation](super::generation) again; the owner invalidates the generation *before* it looks
//! for hazards. A full fence stands between each store and the following load, so that at least one
//! of the two sees the other. The owner waits for a hazard until it is cleared or its peer is
//! proved dead.

use std::io;
use std::os::fd::OwnedFd;

use super::segment::PAGE;
use crate::platform::fork::OwnedFile;
use crate::platform::memory::{FileMapping, PeerFile, Writers};
use crate::sync::{Acquire, AtomicU64, Release, SeqCst, fence};

/// The largest number of concurrent transfers of one process in one peer's memory: one for each
/// transfer slot.
pub(crate) const TRANSFER_SLOTS: usize = if cfg!(any(loom, miri)) { 4 } else { 64 };

const BUSY: u64 = 1 << 63;
/// Value in a peer's first slot: the peer has left and accesses nothing any more.
const LEFT: u64 = 1;
const QP_SHIFT: u32 = 32;
const FIELD: u64 = 0xff_ffff;

/// A transfer's queue pair (of the owner) and the memory region that it touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hazard(u64);

impl Hazard {
    /// Region index for a transfer that may touch several regions.
    pub(crate) const ANY_REGION: u32 = FIELD as u32;

    /// Region index for a transfer that touches only the queue pair's structures. No table has that
    /// many entries.
    pub(crate) const NO_REGION: u32 = FIELD as u32 - 1;

    /// Queue pair index for a transfer that goes through several queue pairs.
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

/// Orders the stores of hazards before the loads that compare generations again.
#[inline]
pub(crate) fn full_fence() {
    fence(SeqCst);
}

/// The word in which one transfer slot of one peer publishes its hazard.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct HazardSlot {
    hazard: AtomicU64,
    unused: [AtomicU64; 7],
}

impl HazardSlot {
    /// A slot in which a peer has written this word.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn holding(word: u64) -> Self {
        Self { hazard: AtomicU64::new(word), ..Self::default() }
    }

    /// Publishes a transfer, followed by a full fence. Only the holder of the transfer slot calls
    /// this.
    #[inline]
    pub(crate) fn publish(&self, hazard: Hazard) {
        self.set(hazard);
        full_fence();
    }

    /// The first half of [`publish`](Self::publish), for callers that set several hazards before
    /// one [`full_fence`].
    ///
    /// This is a release store because of the hazard before it. An owner that sees this hazard may
    /// never see that the earlier one was cleared, and still treats the object that the earlier one
    /// named as untouched.
    #[inline]
    pub(crate) fn set(&self, hazard: Hazard) {
        self.hazard.store(hazard.0, Release);
    }

    /// Ends the transfer: all its accesses happen before this store.
    #[inline]
    pub(crate) fn clear(&self) {
        self.hazard.store(0, Release);
    }

    /// Peer: leaves for good, after its last transfer has ended.
    pub(crate) fn leave(&self) {
        self.hazard.store(LEFT, Release);
    }

    /// Whether the peer has left. If so, all its accesses have happened.
    pub(crate) fn has_left(&self) -> bool {
        self.hazard.load(Acquire) == LEFT
    }

    /// The transfer under way, if any. All accesses of earlier transfers have happened.
    pub(crate) fn get(&self) -> Option<Hazard> {
        let value = self.hazard.load(Acquire);
        (value & BUSY != 0).then_some(Hazard(value))
    }
}

/// Every byte belongs to an atomic, and the slots of a page fill it.
#[cfg(not(loom))]
const _: () = assert!(size_of::<HazardSlot>() == 64 && TRANSFER_SLOTS * size_of::<HazardSlot>() <= PAGE);

/// The hazards of one peer in one owner's memory.
///
/// The owner makes the page and gives it to that peer alone, so that no other process of the user
/// can end the owner's wait.
#[derive(Debug)]
pub(crate) struct HazardPage(FileMapping);

impl HazardPage {
    /// Owner: makes the page of a peer. Also returns the file to give to the peer; Miri and loom
    /// have none.
    ///
    /// # Errors
    ///
    /// The system has no memory or file descriptor for it.
    pub(crate) fn create() -> io::Result<(Self, Option<OwnedFile>)> {
        let mut memory = FileMapping::create_growing(c"soft-rnic hazards", PAGE, Writers::Peers)?;
        let file = memory.take_file();
        Ok((Self(memory), file))
    }

    /// Peer: maps the page that the owner gave.
    ///
    /// # Errors
    ///
    /// Those of [`FileMapping::of_peer`].
    pub(crate) fn of_owner(file: OwnedFd) -> io::Result<Self> {
        let what = PeerFile { offset: 0, len: PAGE, writable: true, unsealed: false };
        FileMapping::of_peer(file, what).map(Self)
    }

    /// The hazards, by transfer slot.
    #[inline]
    pub(crate) fn slots(&self) -> &[HazardSlot; TRANSFER_SLOTS] {
        // SAFETY: the mapping has a page, which is aligned and has room for the slots (asserted
        // above). They consist of atomics, and nothing else accesses the page.
        unsafe { self.0.base().cast().as_ref() }
    }
}
