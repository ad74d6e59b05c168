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
//! A short message of a queue pair that has one sender needs no claim: its bytes are put beside the header while the
//! slot is still `POSTED`, and one change makes that `DONE`. Whoever dies before it has changed nothing.
//!
//! Each change is one compare-and-swap (or the store of the only one who may make it), so that it happened or it did
//! not, whenever a process dies. A claim names the peer's peer_id; the lap keeps a peer that slept from mistaking
//! a slot's later life for the one that it knew.

use crate::sync::{AcqRel, Acquire, AtomicU32, AtomicU64, Relaxed, Release};

/// A scatter entry of a posted receive, for peers.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct SgeEntry {
    pub(crate) address: AtomicU64,
    pub(crate) length: AtomicU32,
    pub(crate) lkey: AtomicU32,
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

/// The first line of a slot: all that a short message needs beside its bytes, which begin the next one. Every line of a slot
/// goes from one processor to the other and back.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct SlotHeader {
    state: AtomicU64,
    /// By the owner: bytes that the receive has room for, and how many entries.
    room: AtomicU64,
    /// By the peer: status, opcode and flags, and the message's length.
    outcome: AtomicU64,
    /// By the peer: immediate data or invalidated key, and the source queue pair.
    origin: AtomicU64,
    /// By the peer: the queue pair that the message came to.
    queue_pair: AtomicU32,
    /// By the owner: flags about the receive.
    flags: AtomicU32,
    /// By the owner: the first scatter entry.
    pub(crate) first: SgeEntry,
    unused: AtomicU64,
}

/// A posted slot, by its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PostedState(u64);

/// A claimed slot: the state to hand on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Claim(u64);

impl Claim {
    /// As a word, to be told to the owner.
    pub(crate) fn to_word(self) -> u64 {
        self.0
    }

    /// A claim that the peer of this peer_id tells of, if it can be one of its own.
    pub(crate) fn from_word(word: u64, peer_id: u16) -> Option<Self> {
        (word & TAG == CLAIMED && (word >> PEER_SHIFT & PEER) as u16 == peer_id).then_some(Self(word))
    }
}

/// What a receive has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecvCapacity {
    pub(crate) bytes: u32,
    pub(crate) entries: u32,
    /// The owner's [`SlotHeader::post`] flags.
    pub(crate) flags: u32,
}

/// What a peer says about a message that it has delivered. Nothing in it is trusted: the owner clamps it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Delivery {
    /// `ibv_wc_status`.
    pub(crate) status: u8,
    /// `ibv_wc_opcode`, less `IBV_WC_RECV`.
    pub(crate) opcode: u8,
    /// `ibv_wc_flags`.
    pub(crate) wc_flags: u8,
    /// The payload lies in the slot, for the owner to scatter.
    pub(crate) eager: bool,
    pub(crate) byte_len: u32,
    pub(crate) imm_data: u32,
    pub(crate) src_qp: u32,
    /// Index of the owner's queue pair.
    pub(crate) queue_pair: u32,
}

/// Who holds a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holder {
    Free,
    Posted,
    Claimed { peer_id: u16 },
    Done { peer_id: u16 },
}

impl SlotHeader {
    /// Owner: offers a free slot, whose entries have been written.
    pub(crate) fn post(&self, lap: u32, room: RecvCapacity) {
        self.room.store(u64::from(room.entries) << 32 | u64::from(room.bytes), Relaxed);
        self.flags.store(room.flags, Relaxed);
        self.state.store(u64::from(lap) << LAP_SHIFT | POSTED, Release);
    }

    /// Peer: takes a posted slot, if it is one.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn claim(&self, peer_id: u16) -> Option<Claim> {
        self.accept(self.posted_state()?, peer_id)
    }

    /// Peer: takes a slot that was seen posted, if it still is.
    #[inline]
    pub(crate) fn accept(&self, PostedState(posted): PostedState, peer_id: u16) -> Option<Claim> {
        let claimed = posted & !(TAG | PEER << PEER_SHIFT) | CLAIMED | u64::from(peer_id) << PEER_SHIFT;
        self.state.compare_exchange(posted, claimed, AcqRel, Relaxed).ok().map(|_| Claim(claimed))
    }

    /// Peer: sees a posted slot without taking it. What the owner has written about it can be seen then, too, and whatever it has
    /// posted before.
    #[inline]
    pub(crate) fn posted_state(&self) -> Option<PostedState> {
        let posted = self.state.load(Acquire);
        (posted & TAG == POSTED).then_some(PostedState(posted))
    }

    /// Peer: the message of an unclaimed slot is there. False if the slot was taken away meanwhile; what was written
    /// beside it then is nobody's.
    #[inline]
    pub(crate) fn fulfil(&self, posted_state: PostedState, peer_id: u16, delivery: &Delivery) -> bool {
        self.tell(delivery);
        let done = posted_state.0 & !(TAG | PEER << PEER_SHIFT) | DONE | u64::from(peer_id) << PEER_SHIFT;
        self.state.compare_exchange(posted_state.0, done, AcqRel, Relaxed).is_ok()
    }

    /// Peer: what the claimed receive has room for.
    #[inline]
    pub(crate) fn room(&self) -> RecvCapacity {
        let room = self.room.load(Relaxed);
        RecvCapacity { bytes: room as u32, entries: (room >> 32) as u32, flags: self.flags.load(Relaxed) }
    }

    /// Whether the slot is held under this very claim.
    pub(crate) fn is_held(&self, claim: Claim) -> bool {
        self.state.load(Acquire) == claim.0
    }

    /// Peer: gives a claimed slot back as it was. Owner: the same with a claim that was left to it.
    pub(crate) fn unclaim(&self, claim: Claim) -> bool {
        let posted = claim.0 & !(TAG | PEER << PEER_SHIFT) | POSTED;
        self.state.compare_exchange(claim.0, posted, AcqRel, Relaxed).is_ok()
    }

    /// Peer: the message is there. False if the slot was taken away meanwhile.
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

    /// Owner: who holds the slot. `Done` comes with all that the peer did before.
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

    /// Owner: whether a message is there, at a glance.
    #[inline]
    pub(crate) fn is_done(&self) -> bool {
        self.state.load(Relaxed) & TAG == DONE
    }

    /// Owner: what the peer said; to be read when the holder is `Done`.
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

    /// Owner: a finished or taken-back slot is free again.
    pub(crate) fn free(&self) {
        self.state.store(FREE, Relaxed);
    }

    /// Owner: takes a posted slot back. False if a peer has it.
    pub(crate) fn take_back(&self) -> bool {
        let state = self.state.load(Relaxed);
        state & TAG == POSTED && self.state.compare_exchange(state, FREE, AcqRel, Relaxed).is_ok()
    }

    /// Owner: offers a slot anew that a dead peer had claimed, or finished without telling anybody. Whether it told is the
    /// caller's to know: a finished message was acknowledged to its sender, so it is lost only where nobody can
    /// tell any more whose it was (a shared queue's, in no queue pair's ring).
    pub(crate) fn recover(&self, peer_id: u16) -> bool {
        let state = self.state.load(Acquire);
        let held = matches!(state & TAG, CLAIMED | DONE) && (state >> PEER_SHIFT & PEER) as u16 == peer_id;
        let posted = state & !(TAG | PEER << PEER_SHIFT) | POSTED;
        held && self.state.compare_exchange(state, posted, AcqRel, Relaxed).is_ok()
    }
}

/// Peer: claims the first of so many slots that is posted, and how many are before it. They are in the order in which they are posted.
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
                // Those before it may have been posted after they were looked at, and before it was: from here on they can be seen.
                (step, again) = (0, true);
                continue;
            }
            // Not what is posted by now: the look again was for this offer.
            if let Some(claim) = slot.accept(posted_state, peer_id) {
                return Some((step, claim));
            }
        }
        step += 1;
    }
    None
}
