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

use core::mem::size_of;
use core::ptr::NonNull;
use std::io;
use std::os::fd::OwnedFd;

use super::completion::CqEntry;
use super::entry::{MembershipEntry, MrEntry, QpEntry, SlotsDescriptor, SrqEntry};
use super::part::{LEVELS, Part, PartLayout, Table};
use super::progress::{QpProgress, SrqCounters};
use super::ring::{IndexRing, RingHeader};
use super::slot::{EAGER, OfferHeader, SgeEntry, SlotHeader};
use crate::platform::errno;
use crate::platform::memory::Writers;
use crate::sync::{Acquire, AtomicU32, AtomicU64, Release};

/// Changes with every change of the layout or of the meaning of a word. Peers with different
/// versions do not communicate.
pub(crate) const LAYOUT_VERSION: u64 = 11;
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
/// A multiple of any processor's page, because mappings begin at pages.
const HEADER: usize = 64 << 10;

/// Where a table ends in level 0 of its part.
const fn end_of<T>(table: &Table) -> usize {
    table.at + table.first * size_of::<T>()
}

/// A table of the first level's part of `limit` entries.
const fn table(at: usize, limit: usize) -> Table {
    Table { at, first: limit >> (LEVELS - 1), limit }
}

/// The tables of the owner's part.
pub(super) const REGIONS: Table = table(HEADER, MAX_REGIONS);
pub(super) const QUEUE_PAIRS: Table = table(end_of::<MrEntry>(&REGIONS), MAX_QUEUE_PAIRS);
pub(super) const SHARED_QUEUES: Table = table(end_of::<QpEntry>(&QUEUE_PAIRS), MAX_SHARED_QUEUES);
pub(super) const MEMBERS: Table = table(end_of::<SrqEntry>(&SHARED_QUEUES), MAX_MEMBERS);
/// The owner's part, whose heap has the offers of posted receives. Behind a level's tables lies an
/// offer of 100 bytes for each slot of the shared part's level.
pub(crate) static OWNED: PartLayout = PartLayout {
    fixed: HEADER,
    scaled: sized(4 << 20, 1 << 18),
    heap: end_of::<MembershipEntry>(&MEMBERS).next_multiple_of(PAGE),
};

/// The tables of the shared part.
pub(super) const PROGRESS: Table = table(HEADER, MAX_QUEUE_PAIRS);
pub(super) const COMPLETION_QUEUES: Table = table(end_of::<QpProgress>(&PROGRESS), MAX_COMPLETION_QUEUES);
pub(super) const COUNTERS: Table = table(end_of::<CqEntry>(&COMPLETION_QUEUES), MAX_SHARED_QUEUES);
/// The shared part, whose heap has rings, slots of receive queues, and payload in transit.
pub(crate) static SHARED: PartLayout = PartLayout {
    fixed: HEADER,
    scaled: sized(16 << 20, 1 << 20),
    heap: end_of::<SrqCounters>(&COUNTERS).next_multiple_of(PAGE),
};
const HEADERS: Table = Table { at: 0, first: 1, limit: 1 };

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
    /// How many levels the owner's part and the shared part have. The length of a file says nothing,
    /// because any process of the user can make it longer.
    pub(crate) levels: [AtomicU32; 2],
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
    assert!(size_of::<OwnerHeader>() == 24 && size_of::<SharedHeader>() == 8);
    assert!(size_of::<MrEntry>() == 6 * 8 + 2 * 8);
    assert!(size_of::<QpEntry>() == 16 * 8);
    assert!(size_of::<QpProgress>() == 3 * 4 + 13 * 4);
    assert!(size_of::<SrqEntry>() == 4 * 8);
    assert!(size_of::<SrqCounters>() == 2 * 4 + 8 + 6 * 8);
    assert!(size_of::<MembershipEntry>() == 4 * 8);
    assert!(size_of::<CqEntry>() == 3 * 128 + 64 * 8);
    assert!(size_of::<RingHeader>() == 64 && size_of::<SlotHeader>() == 64);
    assert!(size_of::<SgeEntry>() == 16 && size_of::<OfferHeader>() == 16);
};

/// A mapped segment, this process's own or a peer's.
#[derive(Debug)]
pub(crate) struct Segment {
    owned: Part,
    shared: Part,
}

/// The checked place of a receive queue in one segment, whose levels stay where they are mapped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slots {
    /// The first slot and the first offer.
    slots: NonNull<u8>,
    offers: NonNull<u8>,
    count: u32,
    /// Scatter entries of an offer.
    entries: u32,
}

// SAFETY: a place belongs to the process and not to a thread. Only methods of the segment access it,
// which may be called by any thread.
unsafe impl Send for Slots {}
// SAFETY: the type has no interior mutability.
unsafe impl Sync for Slots {}

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

impl Segment {
    /// Creates the segment of this process.
    ///
    /// # Errors
    ///
    /// If the system has no memory or file descriptor for it.
    pub(crate) fn create() -> io::Result<Self> {
        let segment = Self {
            owned: Part::create(&OWNED, c"soft-rnic-owner", Writers::Owner)?,
            shared: Part::create(&SHARED, c"soft-rnic", Writers::Peers)?,
        };
        segment.show_levels();
        Ok(segment)
    }

    /// Maps the parts that a peer gave.
    ///
    /// # Errors
    ///
    /// One of them is not valid, or the system cannot map it.
    pub(crate) fn of_peer([owned, shared]: [OwnedFd; 2]) -> io::Result<Self> {
        let mut segment = Self {
            owned: Part::of_peer(&OWNED, owned, false)?,
            shared: Part::of_peer(&SHARED, shared, true)?,
        };
        let [owned, shared] = segment.owner_header().levels.each_ref().map(NonNull::from);
        // SAFETY: the words lie in level 0 of the owner's part, which stays mapped until both parts
        // are dropped with the segment.
        unsafe {
            segment.owned.set_levels_of_owner(owned);
            segment.shared.set_levels_of_owner(shared);
        }
        Ok(segment)
    }

    /// Owner: shows peers how many levels there are.
    fn show_levels(&self) {
        let parts = [&self.owned, &self.shared];
        for (word, part) in self.owner_header().levels.iter().zip(parts) {
            word.fetch_max(part.mapped_levels() as u32, Release);
        }
    }

    /// Owner: adds levels to the owner's part until it has `levels`.
    ///
    /// # Errors
    ///
    /// The errors of [`Part::grow_to`].
    pub(crate) fn grow_owned(&self, levels: usize) -> io::Result<()> {
        self.owned.grow_to(levels).inspect(|()| self.show_levels())
    }

    /// Owner: adds levels to the shared part until it has `levels`.
    ///
    /// # Errors
    ///
    /// The errors of [`Part::grow_to`].
    pub(crate) fn grow_shared(&self, levels: usize) -> io::Result<()> {
        self.shared.grow_to(levels).inspect(|()| self.show_levels())
    }

    /// The owner's part.
    pub(crate) fn owned(&self) -> &Part {
        &self.owned
    }

    /// The shared part.
    pub(crate) fn shared(&self) -> &Part {
        &self.shared
    }

    pub(crate) fn owner_header(&self) -> &OwnerHeader {
        // SAFETY: `OwnerHeader` consists of atomics (asserted above), and only headers lie at offset 0.
        unsafe { self.owned.entry(&HEADERS, 0) }.expect("there is one header")
    }

    pub(crate) fn shared_header(&self) -> &SharedHeader {
        // SAFETY: `SharedHeader` consists of atomics (asserted above), and only headers lie at offset 0.
        unsafe { self.shared.entry(&HEADERS, 0) }.expect("there is one header")
    }

    #[inline]
    pub(crate) fn region(&self, index: u32) -> Option<&MrEntry> {
        // SAFETY: `MrEntry` consists of atomics, and the table holds nothing else.
        unsafe { self.owned.entry(&REGIONS, index) }
    }

    #[inline]
    pub(crate) fn queue_pair(&self, index: u32) -> Option<&QpEntry> {
        // SAFETY: `QpEntry` consists of atomics, and the table holds nothing else.
        unsafe { self.owned.entry(&QUEUE_PAIRS, index) }
    }

    /// The changing words of a queue pair.
    #[inline]
    pub(crate) fn progress(&self, index: u32) -> Option<&QpProgress> {
        // SAFETY: `QpProgress` consists of atomics, and the table holds nothing else.
        unsafe { self.shared.entry(&PROGRESS, index) }
    }

    #[inline]
    pub(crate) fn completion_queue(&self, index: u32) -> Option<&CqEntry> {
        // SAFETY: `CqEntry` consists of atomics, and the table holds nothing else.
        unsafe { self.shared.entry(&COMPLETION_QUEUES, index) }
    }

    #[inline]
    pub(crate) fn shared_queue(&self, index: u32) -> Option<&SrqEntry> {
        // SAFETY: `SrqEntry` consists of atomics, and the table holds nothing else.
        unsafe { self.owned.entry(&SHARED_QUEUES, index) }
    }

    /// The changing words of a shared receive queue.
    #[inline]
    pub(crate) fn counters(&self, index: u32) -> Option<&SrqCounters> {
        // SAFETY: `SrqCounters` consists of atomics, and the table holds nothing else.
        unsafe { self.shared.entry(&COUNTERS, index) }
    }

    #[inline]
    pub(crate) fn member(&self, index: u32) -> Option<&MembershipEntry> {
        // SAFETY: `MembershipEntry` consists of atomics, and the table holds nothing else.
        unsafe { self.owned.entry(&MEMBERS, index) }
    }

    /// How many entries of the membership table have been used.
    pub(crate) fn members(&self) -> u32 {
        self.owner_header().members.load(Acquire).min(MAX_MEMBERS as u32)
    }

    /// Checks that a queue has slots, that all of them lie within one level's heap, and that their
    /// offers lie within one level's heap of the owner's part.
    pub(crate) fn slots(&self, descriptor: &SlotsDescriptor) -> Option<Slots> {
        let SlotsDescriptor { offset, offers, count, entries } = *descriptor;
        let aligned = |offset: u64| offset.is_multiple_of(SlotsDescriptor::UNIT);
        let good = (1..=MAX_SLOTS).contains(&count)
            && entries as usize <= MAX_SGE
            && aligned(offset)
            && aligned(offers);
        if !good {
            return None;
        }
        let slots = self.shared.heap(offset, count as usize * SLOT)?;
        let offers = self.owned.heap(offers, count as usize * offer_stride(entries))?;
        Some(Slots { slots, offers, count, entries })
    }

    /// A slot of a receive queue of this segment.
    #[inline]
    pub(crate) fn slot(&self, slots: &Slots, index: u32) -> Option<RecvSlot<'_>> {
        if index >= slots.count {
            return None;
        }
        debug_assert!(self.slots_are_here(slots));
        let part = |at: usize| {
            // SAFETY: the whole slot lies in the heap of this segment, as `Segment::slots` verified
            // when it made `slots`.
            unsafe { slots.slots.add(index as usize * SLOT + at) }
        };
        // SAFETY: the parts lie within the slot, in the order of the offset constants, and the slot
        // lies in the mapping (`Segment::slots`), which lives as long as `self`. They are aligned
        // like the slots, by 64 bytes. All of it is atomics except for the eager bytes, to which no
        // reference is made.
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
        debug_assert!(self.slots_are_here(slots));
        // SAFETY: the whole offer lies in the owner's part of this segment, as `Segment::slots`
        // verified when it made `slots`. It is aligned by 16 bytes, begins with a header, and
        // continues with entries. All of it is atomics.
        unsafe {
            let header = slots.offers.add(index as usize * offer_stride(slots.entries));
            let header = header.cast::<OfferHeader>();
            let first = header.add(1).cast::<SgeEntry>().as_ptr();
            let entries = core::slice::from_raw_parts(first, slots.entries as usize);
            Some(RecvOffer { header: header.as_ref(), entries })
        }
    }

    /// Whether the slots are those of this segment.
    fn slots_are_here(&self, slots: &Slots) -> bool {
        let count = slots.count as usize;
        self.shared.contains(slots.slots.addr().get(), count * SLOT)
            && self.owned.contains(slots.offers.addr().get(), count * offer_stride(slots.entries))
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
        self.shared.heap(offset, length)
    }

    fn ensure_owned(&self, table: &Table, index: u32) -> io::Result<()> {
        self.grow_owned(table.levels_for(index)?)
    }

    fn ensure_shared(&self, table: &Table, index: u32) -> io::Result<()> {
        self.grow_shared(table.levels_for(index)?)
    }

    /// Owner: makes sure that the table of regions has this entry. False if the segment cannot grow;
    /// the log says why.
    pub(crate) fn ensure_region(&self, index: u32) -> bool {
        granted(self.ensure_owned(&REGIONS, index))
    }

    /// The same for the table of queue pairs.
    pub(crate) fn ensure_queue_pair(&self, index: u32) -> bool {
        granted(self.ensure_owned(&QUEUE_PAIRS, index)) && granted(self.ensure_shared(&PROGRESS, index))
    }

    /// The same for the table of completion queues.
    pub(crate) fn ensure_completion_queue(&self, index: u32) -> bool {
        granted(self.ensure_shared(&COMPLETION_QUEUES, index))
    }

    /// The same for the table of shared receive queues.
    pub(crate) fn ensure_shared_queue(&self, index: u32) -> bool {
        granted(self.ensure_owned(&SHARED_QUEUES, index)) && granted(self.ensure_shared(&COUNTERS, index))
    }

    /// The same for the table of memberships.
    pub(crate) fn ensure_member(&self, index: u32) -> bool {
        granted(self.ensure_owned(&MEMBERS, index))
    }
}

fn granted(growth: io::Result<()>) -> bool {
    growth.inspect_err(|error| _ = errno::refused("the device's memory cannot grow", error)).is_ok()
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

/// Bytes of a ring with this number of words.
pub(crate) fn ring_bytes(words: u32) -> usize {
    size_of::<RingHeader>() + words as usize * size_of::<AtomicU64>()
}
