//! The allocators of the segment: pages of the heap for receive queues, rings, and payload in
//! transit; and places for the offers of posted receives.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::shared::entry::SlotsDescriptor;
use crate::shared::part::PartLayout;
use crate::shared::segment::{OWNED, PAGE, SHARED, Segment};

/// Pages of the heap, zero when they were allocated. They stay allocated until [`Heap::free`] takes
/// them back.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "pages that are not freed stay taken"]
pub(crate) struct HeapRange {
    /// Offset in the segment.
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

/// Bytes of freed ranges that keep their memory: the receive queues of some dozens of queue pairs.
/// Returning memory and faulting it in again takes longer than zeroing it.
const KEPT: u64 = if cfg!(any(miri, loom)) { 128 << 10 } else { 1 << 20 };
/// Longer ranges are returned at once, because most of their pages may never have been used.
const LONGEST_KEPT: u64 = 64 << 10;

/// A part of the owner's part of the segment.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a place that is not freed stays taken"]
pub(crate) struct OfferRange {
    /// Offset in the owner's part.
    pub(crate) offset: u64,
    len: u64,
}

/// The free places for offers. Their memory is not returned to the system before the device is
/// closed, because the seal on the owner's part forbids that.
#[derive(Debug)]
pub(crate) struct OfferPlaces {
    segment: Arc<Segment>,
    free: Mutex<FreePages>,
}

impl OfferPlaces {
    pub(crate) fn new(segment: Arc<Segment>) -> Self {
        Self { segment, free: Mutex::default() }
    }

    /// Takes a place of this number of bytes. Its content is arbitrary.
    ///
    /// # Errors
    ///
    /// `OutOfMemory` if no free place is that long and the segment cannot grow.
    pub(crate) fn alloc(&self, bytes: usize) -> io::Result<OfferRange> {
        let len = (bytes.max(1) as u64).next_multiple_of(SlotsDescriptor::UNIT);
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let offset = free.take_or_grow(len, &OWNED, |levels| self.segment.grow_owned(levels))?;
        Ok(OfferRange { offset, len })
    }

    /// Takes a place back that no peer reads any more.
    pub(crate) fn free(&self, place: OfferRange) {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).add(place.offset, place.len);
    }
}

/// The free pages of the heap.
#[derive(Debug)]
pub(crate) struct Heap {
    segment: Arc<Segment>,
    pages: Mutex<Pages>,
}

#[derive(Debug, Default)]
struct Pages {
    /// Zero, and without memory.
    free: FreePages,
    /// Freed ranges that keep their memory, the last one at the end. They are not zero.
    kept: Vec<HeapRange>,
    /// Bytes of `kept`, at most [`KEPT`].
    kept_len: u64,
}

impl Heap {
    pub(crate) fn new(segment: Arc<Segment>) -> Self {
        Self { segment, pages: Mutex::default() }
    }

    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Allocates pages for this number of bytes.
    ///
    /// # Errors
    ///
    /// `OutOfMemory` if the heap has no free range of that length and the segment cannot grow.
    pub(crate) fn alloc(&self, bytes: usize) -> io::Result<HeapRange> {
        let len = bytes.max(1).checked_next_multiple_of(PAGE).ok_or(io::ErrorKind::OutOfMemory)? as u64;
        if let Some(range) = self.take_kept(len)? {
            return Ok(range);
        }
        let mut offset = self.pages().free.take(len);
        if offset.is_none() {
            let kept = self.pages().take_all_kept();
            kept.into_iter().for_each(|range| self.discard(range));
            offset = Some(
                self.pages().free.take_or_grow(len, &SHARED, |levels| self.segment.grow_shared(levels))?,
            );
        }
        Ok(HeapRange { offset: offset.ok_or(io::ErrorKind::OutOfMemory)?, len })
    }

    /// Takes a freed range of that length that keeps its memory, and zeroes it.
    fn take_kept(&self, len: u64) -> io::Result<Option<HeapRange>> {
        let Some(range) = self.pages().take_kept(len) else { return Ok(None) };
        self.segment.shared().clear(range.offset, range.len as usize)?;
        Ok(Some(range))
    }

    /// Frees pages. Their memory is kept for the next range of the same length, or returned to the
    /// system.
    pub(crate) fn free(&self, range: HeapRange) {
        let kept = self.pages().keep(range);
        if let Err(range) = kept {
            self.discard(range);
        }
    }

    /// Returns the memory of a range to the system.
    fn discard(&self, range: HeapRange) {
        if let Err(error) = self.segment.shared().discard(range.offset, range.len as usize) {
            // These pages must not be allocated again, because they are not zero.
            log::error!("{} bytes of the segment's heap could not be returned: {error}", range.len);
            return;
        }
        self.pages().free.add(range.offset, range.len);
    }
}

impl Pages {
    /// The range of that length that was freed last.
    fn take_kept(&mut self, len: u64) -> Option<HeapRange> {
        let at = self.kept.iter().rposition(|range| range.len == len)?;
        self.kept_len -= len;
        Some(self.kept.remove(at))
    }

    fn take_all_kept(&mut self) -> Vec<HeapRange> {
        self.kept_len = 0;
        std::mem::take(&mut self.kept)
    }

    /// Keeps a range, unless that would be too much.
    fn keep(&mut self, range: HeapRange) -> Result<(), HeapRange> {
        if range.len > LONGEST_KEPT || self.kept_len + range.len > KEPT {
            return Err(range);
        }
        self.kept_len += range.len;
        self.kept.push(range);
        Ok(())
    }
}

/// Free ranges, by offset and by size.
#[derive(Debug, Default)]
struct FreePages {
    by_offset: BTreeMap<u64, u64>,
    by_len: BTreeSet<(u64, u64)>,
    /// How many levels of the part have given their heaps.
    levels: usize,
}

impl FreePages {
    /// Takes a range. If none suffices, takes the heaps of the part's further levels, which it gets
    /// if necessary.
    ///
    /// # Errors
    ///
    /// The error of `grow_to`.
    fn take_or_grow(
        &mut self,
        len: u64,
        layout: &PartLayout,
        grow_to: impl Fn(usize) -> io::Result<()>,
    ) -> io::Result<u64> {
        loop {
            if let Some(offset) = self.take(len) {
                return Ok(offset);
            }
            grow_to(self.levels + 1)?;
            let heap = layout.heap(self.levels);
            self.add(heap.start as u64, heap.len() as u64);
            self.levels += 1;
        }
    }

    /// Takes the smallest sufficient range, or its first part.
    fn take(&mut self, len: u64) -> Option<u64> {
        let (found, offset) = *self.by_len.range((len, 0)..).next()?;
        self.remove(offset, found);
        if found > len {
            self.insert(offset + len, found - len);
        }
        Some(offset)
    }

    /// Adds a range that is not in it, and joins it with its neighbours.
    fn add(&mut self, mut offset: u64, mut len: u64) {
        if let Some((before, before_len)) =
            self.by_offset.range(..offset).next_back().map(|(at, len)| (*at, *len))
            && before + before_len == offset
        {
            self.remove(before, before_len);
            offset = before;
            len += before_len;
        }
        if let Some(after_len) = self.by_offset.get(&(offset + len)).copied() {
            self.remove(offset + len, after_len);
            len += after_len;
        }
        self.insert(offset, len);
    }

    fn insert(&mut self, offset: u64, len: u64) {
        self.by_offset.insert(offset, len);
        self.by_len.insert((len, offset));
    }

    fn remove(&mut self, offset: u64, len: u64) {
        self.by_offset.remove(&offset);
        self.by_len.remove(&(len, offset));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::shared::part::LEVELS;

    #[test]
    fn ranges_do_not_overlap_and_come_back_whole() {
        let mut free = FreePages::default();
        free.add(4096, 64 * 4096);
        let mut taken = Vec::new();
        let mut state = 7_u64;
        for _ in 0..if cfg!(miri) { 200 } else { 10_000 } {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let choice = (state >> 33) as usize;
            if choice.is_multiple_of(2) {
                let len = (choice as u64 / 2 % 7 + 1) * 4096;
                if let Some(offset) = free.take(len) {
                    assert!(offset >= 4096 && offset + len <= 65 * 4096);
                    for (other, other_len) in &taken {
                        assert!(offset + len <= *other || other + other_len <= offset);
                    }
                    taken.push((offset, len));
                }
            } else if !taken.is_empty() {
                let (offset, len) = taken.swap_remove(choice / 2 % taken.len());
                free.add(offset, len);
            }
        }
        for (offset, len) in taken {
            free.add(offset, len);
        }
        assert_eq!(free.by_offset.iter().collect::<Vec<_>>(), [(&4096, &(64 * 4096))]);
        assert_eq!(free.by_len.len(), 1);
        assert_eq!(free.take(65 * 4096), None);
    }

    #[test]
    fn pages_are_zero_when_they_are_given_out_again() {
        let segment = Arc::new(Segment::create().expect("memory"));
        let heap = Heap::new(Arc::clone(&segment));
        let range = heap.alloc(5000).expect("two pages");
        assert_eq!(range.len, 8192);
        let byte = |at: u64| {
            let base = segment.heap(at, 1).expect("in the heap");
            // SAFETY: `base` points into the heap of the mapped segment, and its bytes are accessed
            // as atomics only.
            unsafe { core::sync::atomic::AtomicU8::from_ptr(base.as_ptr()) }
        };
        let at = range.offset;
        byte(at).store(1, core::sync::atomic::Ordering::Relaxed);
        byte(at + 8191).store(1, core::sync::atomic::Ordering::Relaxed);
        heap.free(range);
        let again = heap.alloc(8192).expect("two pages");
        assert_eq!(again.offset, at);
        assert_eq!(byte(at).load(core::sync::atomic::Ordering::Relaxed), 0);
        assert_eq!(byte(at + 8191).load(core::sync::atomic::Ordering::Relaxed), 0);
        heap.free(again);
        let more = SHARED.heap(LEVELS - 1).len() + 1;
        assert_eq!(heap.alloc(more).map_err(|error| error.kind()), Err(io::ErrorKind::OutOfMemory));
        assert!(heap.alloc(usize::MAX).is_err());
    }

    #[test]
    fn freed_memory_is_kept_within_a_limit() {
        let page = PAGE as u64;
        for (len, kept) in [(page, KEPT), (LONGEST_KEPT, KEPT), (LONGEST_KEPT + page, 0)] {
            let heap = Heap::new(Arc::new(Segment::create().expect("memory")));
            let count = KEPT / len + 2;
            let ranges: Vec<_> = (0..count).map(|_| heap.alloc(len as usize).expect("room")).collect();
            ranges.into_iter().for_each(|range| heap.free(range));
            let pages = heap.pages();
            assert_eq!(pages.kept.iter().map(|range| range.len).sum::<u64>(), kept, "{len}");
            assert_eq!(pages.kept_len, kept, "{len}");
        }
    }

    /// Kept memory is no reason to refuse a range.
    #[test]
    fn kept_memory_is_given_out_with_its_neighbours() {
        let segment = Arc::new(Segment::create().expect("memory"));
        let levels = segment.shared().mapped_levels();
        let heap = Heap::new(Arc::clone(&segment));
        let ranges: Vec<_> = (0..8).map(|_| heap.alloc(PAGE).expect("a page")).collect();
        ranges.into_iter().for_each(|range| heap.free(range));
        assert_eq!(heap.pages().kept.len(), 8);
        let all = heap.alloc(SHARED.heap(0).len() / PAGE * PAGE).expect("nothing is in use");
        assert_eq!(segment.shared().mapped_levels(), levels, "the segment did not grow");
        heap.free(all);
    }
}
