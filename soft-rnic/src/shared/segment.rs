//! The control segment: the layout of its tables, and checked access to them.
//!
//! A new segment is all zero, and zero means "nothing there" in every table. The layout is the same
//! for every process, so processes exchange only offsets within the heap, which [`Segment::slot`]
//! and the like check. Untouched pages cost no memory, so the tables can be large.

use core::mem::{align_of, size_of};
use core::ptr::NonNull;
use std::io;

use super::completion::CqEntry;
use super::entry::{MembershipEntry, MrEntry, QpEntry, SlotsDescriptor, SrqEntry};
use super::hazard::{HazardSlot, TRANSFER_SLOTS};
use super::ring::{IndexRing, RingHeader};
use super::slot::{EAGER, SgeEntry, SlotHeader};
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

const HEADER: usize = 4096;
pub(super) const REGIONS_AT: usize = HEADER;
pub(super) const QUEUE_PAIRS_AT: usize = REGIONS_AT + MAX_REGIONS * size_of::<MrEntry>();
pub(super) const COMPLETION_QUEUES_AT: usize = QUEUE_PAIRS_AT + MAX_QUEUE_PAIRS * size_of::<QpEntry>();
pub(super) const SHARED_QUEUES_AT: usize =
    COMPLETION_QUEUES_AT + MAX_COMPLETION_QUEUES * size_of::<CqEntry>();
pub(super) const HAZARDS_AT: usize = SHARED_QUEUES_AT + MAX_SHARED_QUEUES * size_of::<SrqEntry>();
pub(super) const MEMBERS_AT: usize = HAZARDS_AT + MAX_PEERS * TRANSFER_SLOTS * size_of::<HazardSlot>();
/// The offset of the heap, in whole pages. The rings and receive queues lie there.
pub(crate) const HEAP_AT: usize =
    (MEMBERS_AT + MAX_MEMBERS * size_of::<MembershipEntry>()).next_multiple_of(PAGE);
/// The unit of allocation in the heap, so that the system can take back freed memory.
pub(crate) const PAGE: usize = 4096;
pub(crate) const HEAP: usize = sized(16 << 30, 1 << 20);
/// Bytes of the whole segment.
pub(crate) const LENGTH: usize = HEAP_AT + HEAP;

/// The most slots of a receive queue, which bounds a peer's search for a posted slot.
pub(crate) const MAX_SLOTS: u32 = 1 << 16;

/// The most scatter entries of a receive. The offsets and counts that peers give are checked
/// against it.
pub(crate) const MAX_SGE: usize = 32;

/// The first words of a segment.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Header {
    pub(crate) layout_version: AtomicU64,
    /// Set by a peer whose doorbell did not fit in the socket: the owner then checks everything.
    pub(crate) check_everything: AtomicU32,
    /// Counts new processes: a peer that joins its first multicast group increments it, and so does
    /// the owner for each process that connects. A change means that multicast discovery must run
    /// again.
    pub(crate) newcomers: AtomicU32,
    /// Index of the first membership entry that was never used.
    pub(crate) members: AtomicU32,
    unused: AtomicU32,
}

/// Every byte belongs to an atomic. A padding byte would be a part of the type that must not change
/// while a shared reference to it exists.
#[cfg(not(loom))]
const _: () = {
    assert!(size_of::<Header>() == 24);
    assert!(size_of::<MrEntry>() == 6 * 8 + 2 * 8);
    assert!(size_of::<QpEntry>() == 16 * 8 + 3 * 4 + 13 * 4);
    assert!(size_of::<SrqEntry>() == 4 * 8 + 2 * 4 + 8 + 2 * 8);
    assert!(size_of::<MembershipEntry>() == 4 * 8);
    assert!(size_of::<CqEntry>() == 3 * 128 + 64 * 8);
    assert!(size_of::<HazardSlot>() == 64 && size_of::<RingHeader>() == 64 && size_of::<SlotHeader>() == 64);
    assert!(size_of::<SgeEntry>() == 16);
};

/// A mapped segment, this process's own or a peer's.
#[derive(Debug)]
pub(crate) struct Segment {
    memory: FileMapping,
}

/// The checked place of a receive queue's slots: they lie in the heap of every segment, because all
/// segments have the same length.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slots {
    offset: usize,
    count: u32,
    stride: u32,
    /// Scatter entries of a slot after the first.
    more: u32,
}

/// One slot: its header, its eager bytes, and its entries.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecvSlot<'a> {
    pub(crate) header: &'a SlotHeader,
    /// [`EAGER`] bytes, which a peer may write at any time.
    pub(crate) eager: NonNull<u8>,
    /// Written by the peer: a datagram's source GID, and device and port bits.
    pub(crate) source: &'a [AtomicU64; SOURCE],
    more: &'a [SgeEntry],
}

impl<'a> RecvSlot<'a> {
    /// The scatter entry with this number, if the slot has that many.
    #[inline]
    pub(crate) fn entry(&self, number: usize) -> Option<&'a SgeEntry> {
        match number.checked_sub(1) {
            None => Some(&self.header.first),
            Some(number) => self.more.get(number),
        }
    }

    /// All scatter entries of the slot.
    pub(crate) fn entries(&self) -> impl Iterator<Item = &'a SgeEntry> {
        let slot = *self;
        (0..=self.more.len()).filter_map(move |number| slot.entry(number))
    }
}

/// Words that identify the source of a datagram, and one unused word.
pub(crate) const SOURCE: usize = 4;
/// Offsets of a slot's parts. The bytes of a short message follow the header directly.
pub(crate) const EAGER_AT: usize = size_of::<SlotHeader>();
const SOURCE_AT: usize = EAGER_AT + EAGER;
const MORE_AT: usize = SOURCE_AT + SOURCE * size_of::<AtomicU64>();
/// The header and the first eager bytes share an aligned pair of cache lines, because processors
/// tend to fetch such a pair together.
const SLOT_ALIGN: usize = 128;

impl Segment {
    /// Creates the segment of this process.
    ///
    /// # Errors
    ///
    /// If the system has no memory or file descriptor for it.
    pub(crate) fn create() -> io::Result<Self> {
        Ok(Self { memory: FileMapping::create(c"soft-rnic", LENGTH)? })
    }

    /// Wraps the segment in memory that a peer gave; `None` if it is shorter than [`LENGTH`]. The
    /// caller must have checked that the memory cannot shrink.
    pub(crate) fn of_peer(memory: FileMapping) -> Option<Self> {
        (memory.len() >= LENGTH).then_some(Self { memory })
    }

    /// The memory of the segment, for handing to peers.
    pub(crate) fn memory(&self) -> &FileMapping {
        &self.memory
    }

    /// # Safety
    ///
    /// `T` must consist of atomics only, so that it is valid with any content and may change at any
    /// time. Only atomics may ever be accessed at this offset.
    unsafe fn at<T>(&self, offset: usize) -> Option<&T> {
        let end = offset.checked_add(size_of::<T>())?;
        if end > self.memory.len() || !offset.is_multiple_of(align_of::<T>()) {
            return None;
        }
        // SAFETY: the range was just checked to lie in the mapping, which lives as long as `self`.
        // It is aligned, because the offset was checked and the mapping begins at a page. Any
        // content is a valid `T`, by this function's contract.
        Some(unsafe { self.memory.base().add(offset).cast::<T>().as_ref() })
    }

    /// # Safety
    ///
    /// The same contract as [`at`](Self::at).
    unsafe fn in_table<T>(&self, table: usize, count: usize, index: u32) -> Option<&T> {
        let index = index as usize;
        if index >= count {
            return None;
        }
        debug_assert!(table + count * size_of::<T>() <= HEAP_AT && table.is_multiple_of(align_of::<T>()));
        // SAFETY: the tables lie within the first `HEAP_AT` bytes, and every segment has `LENGTH`
        // bytes (`create`, `of_peer`). The entry is aligned, because the table is, and the mapping
        // begins at a page. Any content is a valid `T`, by this function's contract.
        Some(unsafe { self.memory.base().add(table + index * size_of::<T>()).cast::<T>().as_ref() })
    }

    pub(crate) fn header(&self) -> &Header {
        // SAFETY: `Header` consists of atomics (asserted above), and only headers lie at offset 0.
        unsafe { self.at(0) }.expect("a segment has a header")
    }

    pub(crate) fn region(&self, index: u32) -> Option<&MrEntry> {
        // SAFETY: `MrEntry` consists of atomics, and the table holds nothing else.
        unsafe { self.in_table(REGIONS_AT, MAX_REGIONS, index) }
    }

    pub(crate) fn queue_pair(&self, index: u32) -> Option<&QpEntry> {
        // SAFETY: `QpEntry` consists of atomics, and the table holds nothing else.
        unsafe { self.in_table(QUEUE_PAIRS_AT, MAX_QUEUE_PAIRS, index) }
    }

    pub(crate) fn completion_queue(&self, index: u32) -> Option<&CqEntry> {
        // SAFETY: `CqEntry` consists of atomics, and the table holds nothing else.
        unsafe { self.in_table(COMPLETION_QUEUES_AT, MAX_COMPLETION_QUEUES, index) }
    }

    pub(crate) fn shared_queue(&self, index: u32) -> Option<&SrqEntry> {
        // SAFETY: `SrqEntry` consists of atomics, and the table holds nothing else.
        unsafe { self.in_table(SHARED_QUEUES_AT, MAX_SHARED_QUEUES, index) }
    }

    pub(crate) fn member(&self, index: u32) -> Option<&MembershipEntry> {
        // SAFETY: `MembershipEntry` consists of atomics, and the table holds nothing else.
        unsafe { self.in_table(MEMBERS_AT, MAX_MEMBERS, index) }
    }

    /// How many entries of the membership table have been used.
    pub(crate) fn members(&self) -> u32 {
        self.header().members.load(Acquire).min(MAX_MEMBERS as u32)
    }

    /// The hazard of one transfer slot of the peer with this id.
    pub(crate) fn hazard_slot(&self, peer_id: u16, transfer_slot: usize) -> Option<&HazardSlot> {
        if transfer_slot >= TRANSFER_SLOTS {
            return None;
        }
        // SAFETY: `HazardSlot` is an atomic, and the table holds nothing else.
        unsafe {
            self.in_table(
                HAZARDS_AT,
                MAX_PEERS * TRANSFER_SLOTS,
                (usize::from(peer_id) * TRANSFER_SLOTS + transfer_slot) as u32,
            )
        }
    }

    /// A slot of a receive queue.
    #[inline]
    pub(crate) fn slot(&self, slots: &Slots, index: u32) -> Option<RecvSlot<'_>> {
        if index >= slots.count {
            return None;
        }
        let offset = slots.offset + index as usize * slots.stride as usize;
        let part = |at: usize| {
            // SAFETY: the whole slot lies in the heap of any segment, as `SlotsDescriptor::check`
            // verified when it made `slots`.
            unsafe { self.memory.base().add(offset + at) }
        };
        // SAFETY: the parts lie within the slot, in the order of the offset constants, and the slot
        // lies in the mapping (`SlotsDescriptor::check`). They are aligned like the slots, by 64
        // bytes. All of it is atomics except for the eager bytes, to which no reference is made.
        unsafe {
            Some(RecvSlot {
                header: part(0).cast::<SlotHeader>().as_ref(),
                eager: part(EAGER_AT),
                source: part(SOURCE_AT).cast::<[AtomicU64; SOURCE]>().as_ref(),
                more: core::slice::from_raw_parts(
                    part(MORE_AT).cast::<SgeEntry>().as_ptr(),
                    slots.more as usize,
                ),
            })
        }
    }

    /// A ring of `words` slot numbers.
    pub(crate) fn ring(&self, offset: u64, words: u32) -> Option<IndexRing<'_>> {
        let offset = usize::try_from(offset).ok().filter(|offset| *offset >= HEAP_AT)?;
        let end = offset.checked_add(ring_bytes(words))?;
        if end > self.memory.len() || words == 0 {
            return None;
        }
        // SAFETY: `RingHeader` consists of atomics, and peers use the heap only through atomics and
        // raw copies.
        let header = unsafe { self.at::<RingHeader>(offset)? };
        // SAFETY: the range was just checked to lie in the mapping, and it is read as atomics only.
        let words = unsafe {
            let first = self.memory.base().add(offset + size_of::<RingHeader>());
            core::slice::from_raw_parts(first.cast::<AtomicU64>().as_ptr(), words as usize)
        };
        IndexRing::new(header, words)
    }

    /// A range of the heap, for payload in transit.
    pub(crate) fn heap(&self, offset: u64, length: usize) -> Option<NonNull<u8>> {
        let offset = usize::try_from(offset).ok().filter(|offset| *offset >= HEAP_AT)?;
        let end = offset.checked_add(length)?;
        // SAFETY: the end was just checked to lie in the mapping.
        (end <= self.memory.len()).then(|| unsafe { self.memory.base().add(offset) })
    }
}

/// Bytes of a slot with room for `entries` scatter entries.
pub(crate) fn slot_stride(entries: usize) -> u32 {
    (MORE_AT + entries.saturating_sub(1) * size_of::<SgeEntry>()).next_multiple_of(SLOT_ALIGN) as u32
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
    /// Checks that the queue has slots and that all of them lie within the heap.
    pub(crate) fn check(&self) -> Option<Slots> {
        let offset = usize::try_from(self.offset).ok()?;
        let end = offset.checked_add(self.count as usize * self.stride as usize)?;
        let more = (self.stride as usize).checked_sub(MORE_AT)? / size_of::<SgeEntry>();
        let good = (1..=MAX_SLOTS).contains(&self.count)
            && (HEAP_AT..=LENGTH).contains(&offset)
            && end <= LENGTH
            && offset.is_multiple_of(align_of::<SlotHeader>())
            && (self.stride as usize).is_multiple_of(align_of::<SlotHeader>())
            && more <= MAX_SGE + SLOT_ALIGN / size_of::<SgeEntry>();
        good.then_some(Slots { offset, count: self.count, stride: self.stride, more: more as u32 })
    }
}

/// Bytes of a ring with this number of words.
pub(crate) fn ring_bytes(words: u32) -> usize {
    size_of::<RingHeader>() + words as usize * size_of::<AtomicU64>()
}
