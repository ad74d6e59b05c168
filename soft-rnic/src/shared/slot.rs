//! A slot of a receive queue: one posted receive, with a state word that names its holder.
//!
//! ```text
//!            owner posts            peer claims            peer finishes
//!     FREE ----------------> POSTED ------------> CLAIMED ----------------> DONE
//!      ^                      |  ^                   |                       |
//!      |  owner takes back    |  | peer lets go, or  |                       |
//!      +----------------------+  | owner, peer died  |      owner consumes   |
//!      ^                         +-------------------+                       |
//!      +---------------------------------------------------------------------+
//! ```
//!
//! A short message to a queue pair with one sender needs no claim. The sender copies the bytes
//! beside the header while the slot is still `POSTED`, and one change makes it `DONE`. A sender
//! that dies before that change has changed nothing.
//!
//! Each change is one compare-and-swap (or a store by the only process that may make the change).
//! So it has either happened or not happened, whenever a process dies. A claim contains the peer's
//! id. The lap distinguishes a slot's later posts from the one that a peer saw before it slept.

use crate::sync::{AcqRel, Acquire, AtomicU32, AtomicU64, Relaxed, Release, fence};

/// A scatter entry of a posted receive, for peers.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct SgeEntry {
    address: AtomicU64,
    length_and_lkey: AtomicU64,
}

impl SgeEntry {
    /// Owner: stores the entry of a receive that is not posted yet.
    #[inline]
    pub(crate) fn store(&self, address: u64, length: u32, lkey: u32) {
        self.address.store(address, Relaxed);
        self.length_and_lkey.store(u64::from(length) | u64::from(lkey) << 32, Relaxed);
    }

    /// Peer: the address, the length and the key.
    #[inline]
    pub(crate) fn load(&self) -> (u64, u32, u32) {
        let word = self.length_and_lkey.load(Relaxed);
        (self.address.load(Relaxed), word as u32, (word >> 32) as u32)
    }
}

/// The part of a posted receive that says where its bytes go. It lies where peers cannot write, and
/// its scatter entries follow it.
#[derive(Debug, Default)]
#[repr(C, align(16))]
pub(crate) struct OfferHeader {
    /// The capacity and the lap of the posted receive; 0 if none is posted. It guards the entries as
    /// a sequence word.
    offered: AtomicU64,
    unused: AtomicU64,
}

/// The word of an offer: bytes, the low bits of the lap, the number of entries, and a bit that no
/// address and no key has there. So the words of an earlier queue at this place are no offers.
mod offered {
    pub(super) const LAP_SHIFT: u32 = 32;
    pub(super) const LAP: u64 = 0xff_ffff;
    pub(super) const ENTRIES_SHIFT: u32 = 56;
    pub(super) const ENTRIES: u64 = 0x7f;
    pub(super) const OFFERED: u64 = 1 << 63;
}

/// An offer as a peer has read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Offered(u64);

impl Offered {
    pub(crate) fn room(self) -> RecvCapacity {
        let entries = (self.0 >> offered::ENTRIES_SHIFT & offered::ENTRIES) as u32;
        RecvCapacity { bytes: self.0 as u32, entries }
    }
}

impl OfferHeader {
    /// Owner: begins an offer, which [`withdraw`](Self::withdraw) has ended before. The scatter
    /// entries are stored after this, and then the offer is [made](Self::make).
    #[inline]
    pub(crate) fn begin(&self) {
        fence(Release);
    }

    /// Owner: makes the offer of the receive that is posted in this lap.
    #[inline]
    pub(crate) fn make(&self, lap: u32, room: RecvCapacity) {
        let word = u64::from(room.bytes)
            | (u64::from(lap) & offered::LAP) << offered::LAP_SHIFT
            | (u64::from(room.entries) & offered::ENTRIES) << offered::ENTRIES_SHIFT;
        self.offered.store(word | offered::OFFERED, Release);
    }

    /// Owner: ends the offer, because its receive is not posted any more.
    #[inline]
    pub(crate) fn withdraw(&self) {
        self.offered.store(0, Relaxed);
    }

    /// Peer: the offer of the receive that it has claimed; `None` if the owner has not posted it,
    /// whatever the slot says.
    #[inline]
    pub(crate) fn read(&self, claim: Claim) -> Option<Offered> {
        let word = self.offered.load(Acquire);
        let same = (word >> offered::LAP_SHIFT ^ claim.0 >> LAP_SHIFT) & offered::LAP == 0;
        (same && word & offered::OFFERED != 0).then_some(Offered(word))
    }

    /// Peer: whether what it has read since [`read`](Self::read) belongs together.
    #[inline]
    pub(crate) fn is_current(&self, offered: Offered) -> bool {
        fence(Acquire);
        self.offered.load(Relaxed) == offered.0
    }
}

const TAG: u64 = 0b111;
const FREE: u64 = 0;
const POSTED: u64 = 1;
const CLAIMED: u64 = 2;
const DONE: u64 = 3;
const PEER_SHIFT: u32 = 8;
const PEER: u64 = 0xffff;
const LAP_SHIFT: u32 = 32;

/// Bytes of a message that travel in the slot itself.
pub(crate) const EAGER: usize = 256;

/// The first cache line of a slot. It holds all that a short message needs except its bytes, which
/// begin in the next line. Few lines matter, because each moves from one processor to the other and
/// back.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct SlotHeader {
    state: AtomicU64,
    /// Written by the owner: the receive's length in bytes, and its number of entries.
    room: AtomicU64,
    /// Written by the peer: status, opcode and flags, and the message's length.
    outcome: AtomicU64,
    /// Written by the peer: immediate data or invalidated key, and the source queue pair.
    origin: AtomicU64,
    /// Written by the peer: the queue pair to which the message came.
    queue_pair: AtomicU32,
    unused: AtomicU32,
    /// Written by the owner: a copy of the first scatter entry, for senders whose bytes travel in
    /// the slot. They only check it; where bytes go is in the offer.
    pub(crate) first: SgeEntry,
    unused_behind_first: AtomicU64,
}

/// A slot that was seen posted, by its state word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PostedState(u64);

/// A claimed slot, by its state word. Its holder passes it on to finish or release the slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Claim(u64);

impl Claim {
    /// The claim of a slot that was posted in this lap.
    #[cfg(all(test, loom))]
    pub(crate) fn of_lap(lap: u32) -> Self {
        Self(u64::from(lap) << LAP_SHIFT | CLAIMED)
    }

    /// The claim as a word, to send to the owner.
    pub(crate) fn to_word(self) -> u64 {
        self.0
    }

    /// A claim that the peer with this id sent, if it names that peer.
    pub(crate) fn from_word(word: u64, peer_id: u16) -> Option<Self> {
        (word & TAG == CLAIMED && (word >> PEER_SHIFT & PEER) as u16 == peer_id).then_some(Self(word))
    }
}

/// The capacity of a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecvCapacity {
    pub(crate) bytes: u32,
    pub(crate) entries: u32,
}

impl RecvCapacity {
    fn to_word(self) -> u64 {
        u64::from(self.entries) << 32 | u64::from(self.bytes)
    }

    fn from_word(word: u64) -> Self {
        Self { bytes: word as u32, entries: (word >> 32) as u32 }
    }
}

/// A peer's report of a message that it has delivered. The owner trusts no field and clamps each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Delivery {
    /// `ibv_wc_status`.
    pub(crate) status: u8,
    /// `ibv_wc_opcode`, less `IBV_WC_RECV`.
    pub(crate) opcode: u8,
    /// `ibv_wc_flags`.
    pub(crate) wc_flags: u8,
    /// Whether the payload lies in the slot, for the owner to scatter.
    pub(crate) eager: bool,
    pub(crate) byte_len: u32,
    pub(crate) imm_data: u32,
    pub(crate) src_qp: u32,
    /// Index of the owner's queue pair.
    pub(crate) queue_pair: u32,
}

/// The holder of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holder {
    Free,
    Posted,
    Claimed { peer_id: u16 },
    Done { peer_id: u16 },
}

impl SlotHeader {
    /// Owner: posts a free slot, whose offer has been written.
    pub(crate) fn post(&self, lap: u32, room: RecvCapacity) {
        self.room.store(room.to_word(), Relaxed);
        self.state.store(u64::from(lap) << LAP_SHIFT | POSTED, Release);
    }

    /// Peer: claims the slot if it is posted.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn claim(&self, peer_id: u16) -> Option<Claim> {
        self.accept(self.posted_state()?, peer_id)
    }

    /// Peer: claims a slot that was seen posted, if nothing has changed since.
    #[inline]
    pub(crate) fn accept(&self, PostedState(posted): PostedState, peer_id: u16) -> Option<Claim> {
        let claimed = posted & !(TAG | PEER << PEER_SHIFT) | CLAIMED | u64::from(peer_id) << PEER_SHIFT;
        self.state.compare_exchange(posted, claimed, AcqRel, Relaxed).ok().map(|_| Claim(claimed))
    }

    /// Peer: sees a posted slot without taking it. From then on the peer also sees all that the
    /// owner wrote about this slot, and all that it posted before.
    #[inline]
    pub(crate) fn posted_state(&self) -> Option<PostedState> {
        let posted = self.state.load(Acquire);
        (posted & TAG == POSTED).then_some(PostedState(posted))
    }

    /// Peer: completes the message of an unclaimed slot. False if the slot was taken away; the
    /// bytes written beside it are then ignored.
    #[inline]
    pub(crate) fn fulfil(&self, posted_state: PostedState, peer_id: u16, delivery: &Delivery) -> bool {
        self.tell(delivery);
        let done = posted_state.0 & !(TAG | PEER << PEER_SHIFT) | DONE | u64::from(peer_id) << PEER_SHIFT;
        self.state.compare_exchange(posted_state.0, done, AcqRel, Relaxed).is_ok()
    }

    /// Peer: the capacity of the receive, for a message that travels in the slot. The owner checks
    /// it again.
    #[inline]
    pub(crate) fn room(&self) -> RecvCapacity {
        RecvCapacity::from_word(self.room.load(Relaxed))
    }

    /// Whether the slot is held under exactly this claim.
    pub(crate) fn is_held(&self, claim: Claim) -> bool {
        self.state.load(Acquire) == claim.0
    }

    /// Peer: gives a claimed slot back as it was. Owner: does the same with a claim that a peer
    /// left to it.
    pub(crate) fn unclaim(&self, claim: Claim) -> bool {
        let posted = claim.0 & !(TAG | PEER << PEER_SHIFT) | POSTED;
        self.state.compare_exchange(claim.0, posted, AcqRel, Relaxed).is_ok()
    }

    /// Peer: completes the message of a claimed slot. False if the slot was taken away.
    #[inline]
    pub(crate) fn finish(&self, claim: Claim, delivery: &Delivery) -> bool {
        self.tell(delivery);
        self.state.compare_exchange(claim.0, claim.0 & !TAG | DONE, AcqRel, Relaxed).is_ok()
    }

    #[inline]
    fn tell(&self, delivery: &Delivery) {
        let outcome = u64::from(delivery.status)
            | u64::from(delivery.opcode) << 8
            | u64::from(delivery.wc_flags) << 16
            | u64::from(delivery.eager) << 24
            | u64::from(delivery.byte_len) << 32;
        self.outcome.store(outcome, Relaxed);
        self.origin.store(u64::from(delivery.imm_data) | u64::from(delivery.src_qp) << 32, Relaxed);
        self.queue_pair.store(delivery.queue_pair, Relaxed);
    }

    /// Owner: the holder of the slot. If it is `Done`, all that the peer wrote before is visible.
    #[inline]
    pub(crate) fn holder(&self) -> Holder {
        let state = self.state.load(Acquire);
        let peer_id = (state >> PEER_SHIFT & PEER) as u16;
        match state & TAG {
            POSTED => Holder::Posted,
            CLAIMED => Holder::Claimed { peer_id },
            DONE => Holder::Done { peer_id },
            _ => Holder::Free,
        }
    }

    /// Owner: whether a message has arrived; a relaxed load that orders nothing.
    #[inline]
    pub(crate) fn is_done(&self) -> bool {
        self.state.load(Relaxed) & TAG == DONE
    }

    /// Owner: the peer's report. Read it only after [`holder`](Self::holder) was `Done`.
    #[inline]
    pub(crate) fn delivery(&self) -> Delivery {
        let outcome = self.outcome.load(Relaxed);
        let origin = self.origin.load(Relaxed);
        Delivery {
            status: outcome as u8,
            opcode: (outcome >> 8) as u8,
            wc_flags: (outcome >> 16) as u8,
            eager: outcome >> 24 & 1 != 0,
            byte_len: (outcome >> 32) as u32,
            imm_data: origin as u32,
            src_qp: (origin >> 32) as u32,
            queue_pair: self.queue_pair.load(Relaxed),
        }
    }

    /// Owner: frees a finished or taken-back slot.
    pub(crate) fn free(&self) {
        self.state.store(FREE, Relaxed);
    }

    /// Owner: takes a posted slot back. False if a peer holds it.
    pub(crate) fn take_back(&self) -> bool {
        let state = self.state.load(Relaxed);
        state & TAG == POSTED && self.state.compare_exchange(state, FREE, AcqRel, Relaxed).is_ok()
    }

    /// Owner: posts again a slot that a dead peer had claimed, or finished without reporting it.
    /// The caller must know whether the peer reported it.
    ///
    /// A finished message was acknowledged to its sender. So it is lost only where its queue pair
    /// is unknown: in a shared queue's slot that no queue pair's ring names.
    pub(crate) fn recover(&self, peer_id: u16) -> bool {
        let state = self.state.load(Acquire);
        let held = matches!(state & TAG, CLAIMED | DONE) && (state >> PEER_SHIFT & PEER) as u16 == peer_id;
        let posted = state & !(TAG | PEER << PEER_SHIFT) | POSTED;
        held && self.state.compare_exchange(state, posted, AcqRel, Relaxed).is_ok()
    }
}

/// Peer: claims the first posted slot among `count` slots, given in the order in which they are
/// posted. Also returns the number of slots before it.
#[inline]
pub(crate) fn claim_first<'a>(
    count: u32,
    peer_id: u16,
    slot: impl Fn(u32) -> Option<&'a SlotHeader>,
) -> Option<(u32, Claim)> {
    let (mut step, mut again) = (0, false);
    while step < count {
        let slot = slot(step)?;
        if let Some(posted_state) = slot.posted_state() {
            if step > 0 && !again {
                // The slots before this one may have been posted after the peer looked at them, and
                // before this one was posted. A second look sees them.
                (step, again) = (0, true);
                continue;
            }
            // Claim the offer that was seen, not a later one: the second look was for this offer.
            if let Some(claim) = slot.accept(posted_state, peer_id) {
                return Some((step, claim));
            }
        }
        step += 1;
    }
    None
}
