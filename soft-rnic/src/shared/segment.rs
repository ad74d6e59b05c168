//! The control segment: the layout of its tables, and checked access to them.
//!
//! A segment has two parts, each a memory file. The owner alone writes the *owner's part*:
//! descriptors, generations, and where the bytes of posted receives go. Peers map it read-only, and
//! its seal (`F_SEAL_FUTURE_WRITE`) keeps every process from mapping it otherwise. Peers write to
//! the *shared part*: hazards, slots, rings, calls.
//!
//! A new segment is all zero, and zero means "nothing there" in every table. The layout is the same
//! for every process, so processes exchange only offsets within a part, which [`Segment::slot`] and
//! the like check. Untouched pages cost no memory, so the tables can be large.

use core::mem::{align_of, size_of};
use core::ptr::NonNull;
use std::io;

use super::completion::CqEntry;
use super::entry::{MembershipEntry, MrEntry, QpEntry, SlotsDescriptor, SrqEntry};
use super::hazard::{HazardSlot, TRANSFER_SLOTS};
use super::progress::{QpProgress, SrqCounters};
use super::ring::{IndexRing, RingHeader};
use super::slot::{EAGER, OfferHeader, SgeEntry, SlotHeader};
use crate::platform::memory::FileMapping;
use crate::sync::{Acquire, AtomicU32, AtomicU64};

/// Changes with every change of the layout or of the meaning of a word. Peers with different
/// versions do not communicate.
pub(crate) const LAYOUT_VERSION: u64 = 9;
/// The layout version as a bit of the ECE options. Two ends without a common bit cannot
/// communicate.
pub(crate) const ECE_OPTIONS: u32 = 1 << LAYOUT_VERSION;

/// Selects a small size under Miri and loom: Miri has no sparse memory.
const fn sized(real: usize, small: usize) -> usize {
    if cfg!(any(miri, loom)) { small } else { real }
}

/// The capacities of the tables of one process. Index 0 of regions and queue pairs is never used.
pub(crate) const MAX_REGIONS: usize = sized(1 << 20, 64);
pub(crate) const MAX_QUEUE_PAIRS: usize = sized(1 << 17, 64);
pub(crate) const MAX_COMPLETION_QUEUES: usize = sized(1 << 17, 32);
pub(crate) const MAX_SHARED_QUEUES: usize = sized(1 << 14, 16);
/// Memberships in multicast groups.
pub(crate) const MAX_MEMBERS: usize = sized(1 << 12, 16);
/// Peers that map the segment at a time. Number 0 is the owner itself.
pub(crate) const MAX_PEERS: usize = sized(1 << 10, 4);

/// The unit of allocation in the heap, so that the system can take back freed memory.
pub(crate) const PAGE: usize = 4096;
const HEADER: usize = PAGE;

/// Offsets in the owner's part.
pub(super) const REGIONS_AT: usize = HEADER;
pub(super) const QUEUE_PAIRS_AT: usize = REGIONS_AT + MAX_REGIONS * size_of::<MrEntry>();
pub(super) const SHARED_QUEUES_AT: usize = QUEUE_PAIRS_AT + MAX_QUEUE_PAIRS * size_of::<QpEntry>();
pub(super) const MEMBERS_AT: usize = SHARED_QUEUES_AT + MAX_SHARED_QUEUES * size_of::<SrqEntry>();
/// The offers of posted receives.
pub(crate) const OFFERS_AT: usize =
    (MEMBERS_AT + MAX_MEMBERS * size_of::<MembershipEntry>()).next_multiple_of(PAGE);
pub(crate) const OFFERS: usize = sized(4 << 30, 1 << 18);
/// Bytes of the owner's part.
pub(crate) const OWNED_LENGTH: usize = OFFERS_AT + OFFERS;

/// Offsets in the shared part.
pub(super) const PROGRESS_AT: usize = HEADER;
pub(super) const COMPLETION_QUEUES_AT: usize = PROGRESS_AT + MAX_QUEUE_PAIRS * size_of::<QpProgress>();
pub(super) const COUNTERS_AT: usize = COMPLETION_QUEUES_AT + MAX_COMPLETION_QUEUES * size_of::<CqEntry>();
pub(super) const HAZARDS_AT: usize = COUNTERS_AT + MAX_SHARED_QUEUES * size_of::<SrqCounters>();
/// The heap, in whole pages. The rings and the slots of receive queues lie there.
pub(crate) const HEAP_AT: usize =
    (HAZARDS_AT + MAX_PEERS * TRANSFER_SLOTS * size_of::<HazardSlot>()).next_multiple_of(PAGE);
pub(crate) const HEAP: usize = sized(16 << 30, 1 << 20);
/// Bytes of the shared part.
pub(crate) const SHARED_LENGTH: usize = HEAP_AT + HEAP;

/// The most slots of a receive queue, which bounds a peer's search for a posted slot.
pub(crate) const MAX_SLOTS: u32 = 1 << 16;

/// The most scatter entries of a receive. The offsets and counts that peers give are checked
/// against it.
pub(crate) const MAX_SGE: usize = 32;

/// The first words of the owner's part.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct OwnerHeader {
    pub(crate) layout_version: AtomicU64,
    /// Index of the first membership entry that was never used.
    pub(crate) members: AtomicU32,
    unused: AtomicU32,
}

/// The first words of the shared part.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct SharedHeader {
    /// Set by a peer whose doorbell did not fit in the socket: the owner then checks everything.
    pub(crate) check_everything: AtomicU32,
    /// Counts new processes: a peer that joins its first multicast group increments it, and so does
    /// the owner for each process that connects. A change means that multicast discovery must run
    /// again.
    pub(crate) newcomers: AtomicU32,
}

/// Every byte belongs to an atomic. A padding byte would be a part of the type that must not change
/// while a shared reference to it exists.
#[cfg(not(loom))]
const _: () = {
    assert!(size_of::<OwnerHeader>() == 16 && size_of::<SharedHeader>() == 8);
    assert!(size_of::<MrEntry>() == 6 * 8 + 2 * 8);
    assert!(size_of::<QpEntry>() == 16 * 8);
    assert!(size_of::<QpProgress>() == 3 * 4 + 13 * 4);
    assert!(size_of::<SrqEntry>() == 4 * 8);
    assert!(size_of::<SrqCounters>() == 2 * 4 + 8 + 6 * 8);
    assert!(size_of::<MembershipEntry>() == 4 * 8);
    assert!(size_of::<CqEntry>() == 3 * 128 + 64 * 8);
    assert!(size_of::<HazardSlot>() == 64 && size_of::<RingHeader>() == 64 && size_of::<SlotHeader>() == 64);
    assert!(size_of::<SgeEntry>() == 16 && size_of::<OfferHeader>() == 16);
};

/// A mapped segment, this process's own or a peer's.
#[derive(Debug)]
pub(crate) struct Segment {
    owned: FileMapping,
    shared: FileMapping,
}

/// The checked place of a receive queue: its slots and offers lie in every segment, because all
/// segments have the same lengths.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slots {
    offset: usize,
    offers: usize,
    count: u32,
    /// Scatter entries of an offer.
    entries: u32,
}

/// Where the bytes of a posted receive go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecvOffer<'a> {
    pub(crate) header: &'a OfferHeader,
    pub(crate) entries: &'a [SgeEntry],
}

/// One slot: its header, and its eager bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecvSlot<'a> {
    pub(crate) header: &'a SlotHeader,
    /// [`EAGER`] bytes, which a peer may write at any time.
    pub(crate) eager: NonNull<u8>,
    /// Written by the peer: a datagram's source GID, and device and port bits.
    pub(crate) source: &'a [AtomicU64; SOURCE],
}

/// Words that identify the source of a datagram, and one unused word.
pub(crate) const SOURCE: usize = 4;
/// Offsets of a slot's parts. The bytes of a short message follow the header directly.
pub(crate) const EAGER_AT: usize = size_of::<SlotHeader>();
const SOURCE_AT: usize = EAGER_AT + EAGER;
/// The header and the first eager bytes share an aligned pair of cache lines, because processors
/// tend to fetch such a pair together.
const SLOT_ALIGN: usize = 128;
/// Bytes of a slot.
pub(crate) const SLOT: usize = (SOURCE_AT + SOURCE * size_of::<AtomicU64>()).next_multiple_of(SLOT_ALIGN);

/// A table in one of the parts.
///
/// # Safety
///
/// `T` must consist of atomics only, so that it is valid with any content and may change at any
/// time. The part has `at + count * size_of::<T>()` bytes, and only `T`s lie in that range.
#[inline]
unsafe fn in_table<T>(part: &FileMapping, at: usize, count: usize, index: u32) -> Option<&T> {
    let index = index as usize;
    if index >= count {
        return None;
    }
    debug_assert!(at + count * size_of::<T>() <= part.len() && at.is_multiple_of(align_of::<T>()));
    // SAFETY: the table lies in the part, by this function's contract, and so does the entry. It is
    // aligned, because the table is, and the mapping begins at a page. Any content is a valid `T`.
    Some(unsafe { part.base().add(at + index * size_of::<T>()).cast::<T>().as_ref() })
}

impl Segment {
    /// Creates the segment of this process.
    ///
    /// # Errors
    ///
    /// If the system has no memory or file descriptor for it.
    pub(crate) fn create() -> io::Result<Self> {
        Ok(Self {
            owned: FileMapping::create_owned(c"soft-rnic", OWNED_LENGTH)?,
            shared: FileMapping::create(c"soft-rnic", SHARED_LENGTH)?,
        })
    }

    /// Wraps the parts that a peer gave; `None` if one is too short. The caller must have checked
    /// that they cannot shrink.
    pub(crate) fn of_peer([owned, shared]: [FileMapping; 2]) -> Option<Self> {
        (owned.len() >= OWNED_LENGTH && shared.len() >= SHARED_LENGTH).then_some(Self { owned, shared })
    }

    /// The owner's part, for handing to peers.
    pub(crate) fn owned(&self) -> &FileMapping {
        &self.owned
    }

    /// The shared part, for handing to peers.
    pub(crate) fn shared(&self) -> &FileMapping {
        &self.shared
    }

    pub(crate) fn owner_header(&self) -> &OwnerHeader {
        // SAFETY: `OwnerHeader` consists of atomics (asserted above), only headers lie at offset 0,
        // and every owner's part is longer (`create`, `of_peer`).
        unsafe { in_table(&self.owned, 0, 1, 0) }.expect("there is one header")
    }

    pub(crate) fn shared_header(&self) -> &SharedHeader {
        // SAFETY: `SharedHeader` consists of atomics (asserted above), only headers lie at offset 0,
        // and every shared part is longer (`create`, `of_peer`).
        unsafe { in_table(&self.shared, 0, 1, 0) }.expect("there is one header")
    }

    #[inline]
    pub(crate) fn region(&self, index: u32) -> Option<&MrEntry> {
        // SAFETY: `MrEntry` consists of atomics, and the table holds nothing else.
        unsafe { in_table(&self.owned, REGIONS_AT, MAX_REGIONS, index) }
    }

    #[inline]
    pub(crate) fn queue_pair(&self, index: u32) -> Option<&QpEntry> {
        // SAFETY: `QpEntry` consists of atomics, and the table holds nothing else.
        unsafe { in_table(&self.owned, QUEUE_PAIRS_AT, MAX_QUEUE_PAIRS, index) }
    }

    /// The changing words of a queue pair.
    #[inline]
    pub(crate) fn progress(&self, index: u32) -> Option<&QpProgress> {
        // SAFETY: `QpProgress` consists of atomics, and the table holds nothing else.
        unsafe { in_table(&self.shared, PROGRESS_AT, MAX_QUEUE_PAIRS, index) }
    }

    #[inline]
    pub(crate) fn completion_queue(&self, index: u32) -> Option<&CqEntry> {
        // SAFETY: `CqEntry` consists of atomics, and the table holds nothing else.
        unsafe { in_table(&self.shared, COMPLETION_QUEUES_AT, MAX_COMPLETION_QUEUES, index) }
    }

    #[inline]
    pub(crate) fn shared_queue(&self, index: u32) -> Option<&SrqEntry> {
        // SAFETY: `SrqEntry` consists of atomics, and the table holds nothing else.
        unsafe { in_table(&self.owned, SHARED_QUEUES_AT, MAX_SHARED_QUEUES, index) }
    }

    /// The changing words of a shared receive queue.
    #[inline]
    pub(crate) fn counters(&self, index: u32) -> Option<&SrqCounters> {
        // SAFETY: `SrqCounters` consists of atomics, and the table holds nothing else.
        unsafe { in_table(&self.shared, COUNTERS_AT, MAX_SHARED_QUEUES, index) }
    }

    #[inline]
    pub(crate) fn member(&self, index: u32) -> Option<&MembershipEntry> {
        // SAFETY: `MembershipEntry` consists of atomics, and the table holds nothing else.
        unsafe { in_table(&self.owned, MEMBERS_AT, MAX_MEMBERS, index) }
    }

    /// How many entries of the membership table have been used.
    pub(crate) fn members(&self) -> u32 {
        self.owner_header().members.load(Acquire).min(MAX_MEMBERS as u32)
    }

    /// The hazard of one transfer slot of the peer with this id.
    pub(crate) fn hazard_slot(&self, peer_id: u16, transfer_slot: usize) -> Option<&HazardSlot> {
        if transfer_slot >= TRANSFER_SLOTS {
            return None;
        }
        let index = (usize::from(peer_id) * TRANSFER_SLOTS + transfer_slot) as u32;
        // SAFETY: `HazardSlot` is an atomic, and the table holds nothing else.
        unsafe { in_table(&self.shared, HAZARDS_AT, MAX_PEERS * TRANSFER_SLOTS, index) }
    }

    /// A slot of a receive queue.
    #[inline]
    pub(crate) fn slot(&self, slots: &Slots, index: u32) -> Option<RecvSlot<'_>> {
        if index >= slots.count {
            return None;
        }
        let offset = slots.offset + index as usize * SLOT;
        let part = |at: usize| {
            // SAFETY: the whole slot lies in the heap of any segment, as `SlotsDescriptor::check`
            // verified when it made `slots`.
            unsafe { self.shared.base().add(offset + at) }
        };
        // SAFETY: the parts lie within the slot, in the order of the offset constants, and the slot
        // lies in the mapping (`SlotsDescriptor::check`). They are aligned like the slots, by 64
        // bytes. All of it is atomics except for the eager bytes, to which no reference is made.
        unsafe {
            Some(RecvSlot {
                header: part(0).cast::<SlotHeader>().as_ref(),
                eager: part(EAGER_AT),
                source: part(SOURCE_AT).cast::<[AtomicU64; SOURCE]>().as_ref(),
            })
        }
    }

    /// Where the bytes of the receive in a slot go.
    #[inline]
    pub(crate) fn offer(&self, slots: &Slots, index: u32) -> Option<RecvOffer<'_>> {
        if index >= slots.count {
            return None;
        }
        let offset = slots.offers + index as usize * offer_stride(slots.entries);
        // SAFETY: the whole offer lies in the owner's part of any segment, as
        // `SlotsDescriptor::check` verified when it made `slots`. It is aligned by 16 bytes, begins
        // with a header, and continues with entries. All of it is atomics.
        unsafe {
            let header = self.owned.base().add(offset).cast::<OfferHeader>();
            let first = header.add(1).cast::<SgeEntry>().as_ptr();
            let entries = core::slice::from_raw_parts(first, slots.entries as usize);
            Some(RecvOffer { header: header.as_ref(), entries })
        }
    }

    /// A ring of `words` slot numbers.
    pub(crate) fn ring(&self, offset: u64, words: u32) -> Option<IndexRing<'_>> {
        let place = self.heap(offset, ring_bytes(words))?;
        if words == 0 || !place.cast::<RingHeader>().is_aligned() {
            return None;
        }
        // SAFETY: `heap` has checked that the range lies in the mapping, and the line above that it
        // is aligned. `RingHeader` and the words behind it are atomics, and peers use the heap only
        // through atomics and raw copies.
        unsafe {
            let words_at = place.add(size_of::<RingHeader>()).cast::<AtomicU64>();
            let words = core::slice::from_raw_parts(words_at.as_ptr(), words as usize);
            IndexRing::new(place.cast::<RingHeader>().as_ref(), words)
        }
    }

    /// A range of the heap, for payload in transit.
    pub(crate) fn heap(&self, offset: u64, length: usize) -> Option<NonNull<u8>> {
        let offset = usize::try_from(offset).ok().filter(|offset| *offset >= HEAP_AT)?;
        let end = offset.checked_add(length)?;
        // SAFETY: the end was just checked to lie in the mapping.
        (end <= self.shared.len()).then(|| unsafe { self.shared.base().add(offset) })
    }
}

/// Bytes of an offer with this number of scatter entries.
#[inline]
pub(crate) fn offer_stride(entries: u32) -> usize {
    size_of::<OfferHeader>() + entries as usize * size_of::<SgeEntry>()
}

impl Slots {
    /// The number of slots, at least one.
    #[inline]
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// The slot that follows `index`; the first follows the last.
    #[inline]
    pub(crate) fn next(&self, index: u32) -> u32 {
        if index + 1 < self.count { index + 1 } else { 0 }
    }
}

impl SlotsDescriptor {
    /// Checks that the queue has slots, that all of them lie within the heap, and that their offers
    /// lie within the owner's part.
    pub(crate) fn check(&self) -> Option<Slots> {
        let (count, entries) = (self.count, self.entries);
        if !(1..=MAX_SLOTS).contains(&count) || entries as usize > MAX_SGE {
            return None;
        }
        let within = |offset: u64, stride: usize, begin: usize, end: usize| {
            let offset = usize::try_from(offset).ok().filter(|offset| (begin..=end).contains(offset))?;
            (count as usize * stride <= end - offset && offset.is_multiple_of(Self::UNIT as usize))
                .then_some(offset)
        };
        let offset = within(self.offset, SLOT, HEAP_AT, SHARED_LENGTH)?;
        let offers = within(self.offers, offer_stride(entries), OFFERS_AT, OWNED_LENGTH)?;
        Some(Slots { offset, offers, count, entries })
    }
}

/// Bytes of a ring with this number of words.
pub(crate) fn ring_bytes(words: u32) -> usize {
    size_of::<RingHeader>() + words as usize * size_of::<AtomicU64>()
}
