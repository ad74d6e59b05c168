//! One part of a segment: a memory file that grows in levels.
//!
//! Level 0 begins with a fixed area. Then come the first entries of each table, and a heap. Every
//! later level is as long as these two together up to there, so that it doubles them; a table
//! continues in each level, and the heap has one area in each. The owner adds a level when it needs
//! one. A peer maps a level when it first needs a place there.
//!
//! A level stays where it is mapped until the segment is dropped, so that references into it stay
//! valid.

use core::ffi::CStr;
use core::mem::align_of;
use core::ops::Range;
use core::ptr::{self, NonNull};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::platform::memory::{self, FileMapping, PeerFile, Writers};
use crate::sync::{Acquire, AtomicU32};

/// The most levels of a part. Miri has no memory files.
pub(crate) const LEVELS: usize = if cfg!(any(miri, loom)) { 1 } else { 11 };

/// The levels of a part where mappings cannot be continued, all from the start. That is in an
/// emulator, which needs memory for each page that is mapped, so it has no more than an eighth of a
/// GiB.
const LEVELS_WITHOUT_GROWTH: usize = if cfg!(any(miri, loom)) { 1 } else { 4 };

/// Where things lie in level 0 of a part, as offsets in its file.
#[derive(Debug)]
pub(crate) struct PartLayout {
    /// The end of the fixed area.
    pub(crate) fixed: usize,
    /// Bytes of the tables and the heap of level 0.
    pub(crate) scaled: usize,
    /// The beginning of the heap.
    pub(crate) heap: usize,
}

/// The place of a table in a part.
#[derive(Debug)]
pub(crate) struct Table {
    /// Its offset in level 0.
    pub(crate) at: usize,
    /// Entries in level 0, a power of two.
    pub(crate) first: usize,
    /// Entries in all levels.
    pub(crate) limit: usize,
}

impl PartLayout {
    /// Bytes of a part with this number of levels.
    pub(crate) const fn length(&self, levels: usize) -> usize {
        self.fixed + (self.scaled << (levels - 1))
    }

    /// The offset at which a level begins.
    const fn begin(&self, level: usize) -> usize {
        if level == 0 { 0 } else { self.length(level) }
    }

    /// The level of an offset.
    fn level_of(&self, offset: usize) -> Option<usize> {
        let doubled = offset.saturating_sub(self.fixed) / self.scaled;
        let level = if doubled == 0 { 0 } else { doubled.ilog2() as usize + 1 };
        (level < LEVELS).then_some(level)
    }

    /// The offsets of a level's heap.
    pub(crate) const fn heap(&self, level: usize) -> Range<usize> {
        let end = self.length(level + 1);
        if level == 0 {
            return self.heap..end;
        }
        self.begin(level) + ((self.heap - self.fixed) << (level - 1))..end
    }

    /// The level of a range of the heap, and its offset there; `None` if it is not in one level's
    /// heap.
    #[inline]
    pub(crate) fn in_heap(&self, offset: u64, length: usize) -> Option<(usize, usize)> {
        let offset = usize::try_from(offset).ok()?;
        let level = if offset < self.length(1) { 0 } else { self.level_of(offset)? };
        let heap = self.heap(level);
        let fits = offset >= heap.start && offset <= heap.end && length <= heap.end - offset;
        fits.then(|| (level, offset - self.begin(level)))
    }

    /// The number of levels in a file of this length.
    fn levels_of(&self, length: u64) -> usize {
        (1..=LEVELS).take_while(|levels| self.length(*levels) as u64 <= length).count()
    }
}

/// A mapped part, this process's own or a peer's.
#[derive(Debug)]
pub(crate) struct Part {
    layout: &'static PartLayout,
    /// Where each level is mapped; null for a level that is not.
    levels: [AtomicPtr<u8>; LEVELS],
    /// The mapping of the levels that the part had at first.
    first: FileMapping,
    /// The mappings of later levels, in order.
    later: Mutex<Vec<FileMapping>>,
    /// The owner's count of its levels, in a peer's part; `None` in this process's own.
    levels_of_owner: Option<NonNull<AtomicU32>>,
    /// This process could not map a level, and has said so.
    warned: AtomicBool,
}

// SAFETY: the only pointer leads to an atomic that stays mapped as long as the part
// (`set_levels_of_owner`); mappings belong to the process and not to a thread.
unsafe impl Send for Part {}
// SAFETY: all that changes is atomic or locked.
unsafe impl Sync for Part {}

impl Table {
    /// How many levels a part needs for this entry.
    ///
    /// # Errors
    ///
    /// `OutOfMemory` if the table never has such an entry.
    pub(crate) fn levels_for(&self, index: u32) -> io::Result<usize> {
        match index as usize {
            index if index < self.first => Ok(1),
            index if index < self.limit => Ok((index / self.first).ilog2() as usize + 2),
            _ => Err(io::ErrorKind::OutOfMemory.into()),
        }
    }
}

impl Part {
    /// Creates a part of this process.
    ///
    /// # Errors
    ///
    /// The system has no memory or file descriptor for it; the error names the limit.
    pub(crate) fn create(layout: &'static PartLayout, name: &CStr, writers: Writers) -> io::Result<Self> {
        let levels = if memory::can_continue_mappings() { 1 } else { LEVELS_WITHOUT_GROWTH };
        let memory = FileMapping::create_growing(name, layout.length(levels), writers)?;
        Ok(Self::of(layout, memory, levels))
    }

    /// Maps a part that a peer gave.
    ///
    /// # Errors
    ///
    /// It can shrink, is too short or is another kind of file (`EINVAL`), or the system cannot map
    /// it.
    pub(crate) fn of_peer(layout: &'static PartLayout, file: OwnedFd, writable: bool) -> io::Result<Self> {
        // Later levels are mapped when they are needed, as far as the owner says that it has them.
        let levels = if memory::can_continue_mappings() {
            1
        } else {
            layout.levels_of(memory::length_of(&file)?).clamp(1, LEVELS_WITHOUT_GROWTH)
        };
        let what = PeerFile { offset: 0, len: layout.length(levels), writable, unsealed: false };
        Ok(Self::of(layout, FileMapping::of_peer(file, what)?, levels))
    }

    fn of(layout: &'static PartLayout, memory: FileMapping, levels: usize) -> Self {
        let place = |level| {
            if level < levels {
                // SAFETY: the mapping has the length of `levels` levels, so that this one begins in
                // it.
                AtomicPtr::new(unsafe { memory.base().add(layout.begin(level)) }.as_ptr())
            } else {
                AtomicPtr::new(ptr::null_mut())
            }
        };
        let levels = core::array::from_fn(place);
        let (later, levels_of_owner, warned) = (Mutex::default(), None, AtomicBool::new(false));
        Self { layout, levels, first: memory, later, levels_of_owner, warned }
    }

    /// Sets where the owner counts its levels.
    ///
    /// # Safety
    ///
    /// The word stays mapped until this is dropped.
    pub(crate) unsafe fn set_levels_of_owner(&mut self, word: NonNull<AtomicU32>) {
        self.levels_of_owner = Some(word);
    }

    /// The descriptor to hand to peers; `None` for a peer's part, or if the program has closed it.
    pub(crate) fn file(&self) -> Option<BorrowedFd<'_>> {
        self.first.file()
    }

    /// An entry of a table.
    ///
    /// # Safety
    ///
    /// `T` must consist of atomics only, so that it is valid with any content and may change at any
    /// time. The table is one of this part's, and only `T`s lie there.
    #[inline]
    pub(crate) unsafe fn entry<T>(&self, table: &Table, index: u32) -> Option<&T> {
        let index = index as usize;
        let place = if index < table.first {
            // SAFETY: the first entries lie in level 0, with which the first mapping begins.
            unsafe { self.first.base().add(table.at + index * size_of::<T>()) }
        } else if table.first < table.limit {
            self.later_entry(table, index, size_of::<T>())?
        } else {
            return None;
        };
        debug_assert!(place.addr().get().is_multiple_of(align_of::<T>()));
        // SAFETY: the entry lies in the mapping, which lives as long as `self`. It is aligned,
        // because the table is in level 0 and each level is a multiple of a page. Any content is a
        // valid `T`, by this function's contract.
        Some(unsafe { place.cast::<T>().as_ref() })
    }

    /// Apart from the common case, whose registers the call would take.
    #[cold]
    #[inline(never)]
    fn later_entry(&self, table: &Table, index: usize, size: usize) -> Option<NonNull<u8>> {
        if index >= table.limit {
            return None;
        }
        let level = (index / table.first).ilog2() as usize + 1;
        let scale = level - 1;
        let at = ((table.at - self.layout.fixed) << scale) + (index - (table.first << scale)) * size;
        // SAFETY: a level has `scaled << scale` bytes, and its tables lie there as those of level 0
        // do behind the fixed area, each `1 << scale` times as long.
        self.level(level).map(|base| unsafe { base.add(at) })
    }

    /// Where a level is mapped. A peer maps it if necessary; `None` if the owner has not added it.
    #[inline]
    pub(crate) fn level(&self, level: usize) -> Option<NonNull<u8>> {
        let place = NonNull::new(self.levels.get(level)?.load(Acquire));
        place.or_else(|| self.map_level(level))
    }

    /// A range of the heap.
    pub(crate) fn heap(&self, offset: u64, length: usize) -> Option<NonNull<u8>> {
        let (level, at) = self.layout.in_heap(offset, length)?;
        // SAFETY: `in_heap` has checked that the range lies in the level.
        self.level(level).map(|base| unsafe { base.add(at) })
    }

    #[cold]
    fn map_level(&self, level: usize) -> Option<NonNull<u8>> {
        // SAFETY: the word is mapped as long as this part (`set_levels_of_owner`).
        let has = unsafe { self.levels_of_owner?.as_ref() }.load(Acquire) as usize;
        if level >= has {
            return None;
        }
        let mut later = self.later.lock().unwrap_or_else(PoisonError::into_inner);
        while self.levels[level].load(Ordering::Relaxed).is_null() {
            if let Err(error) = self.map_next(&mut later) {
                if !self.warned.swap(true, Ordering::Relaxed) {
                    log::warn!("a part of a peer's segment cannot be mapped: {error}");
                }
                return None;
            }
        }
        NonNull::new(self.levels[level].load(Ordering::Relaxed))
    }

    /// Maps the next level behind the last one.
    fn map_next(&self, later: &mut Vec<FileMapping>) -> io::Result<()> {
        let unmapped = |level: &AtomicPtr<u8>| level.load(Ordering::Relaxed).is_null();
        let level = self.levels.iter().position(unmapped).ok_or(io::ErrorKind::OutOfMemory)?;
        let last = later.last().unwrap_or(&self.first);
        let next = last.following(self.layout.length(level + 1) - self.layout.begin(level))?;
        self.levels[level].store(next.base().as_ptr(), Ordering::Release);
        later.push(next);
        Ok(())
    }

    /// Owner: adds levels until there are `levels`.
    ///
    /// # Errors
    ///
    /// `OutOfMemory`: a part never has so many levels. Another error if the system has no memory for
    /// one; the error names the limit.
    pub(crate) fn grow_to(&self, levels: usize) -> io::Result<()> {
        if levels > LEVELS {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        if self.mapped_levels() >= levels {
            return Ok(());
        }
        if !memory::can_continue_mappings() {
            let message = "this system, perhaps an emulator, does not continue mappings (mremap with the old length 0), \
                           so that the device cannot grow";
            return Err(io::Error::new(io::ErrorKind::OutOfMemory, message));
        }
        let mut later = self.later.lock().unwrap_or_else(PoisonError::into_inner);
        while self.mapped_levels() < levels {
            self.first.lengthen(self.layout.length(self.mapped_levels() + 1))?;
            self.map_next(&mut later)?;
        }
        Ok(())
    }

    /// The levels that are mapped.
    pub(crate) fn mapped_levels(&self) -> usize {
        self.levels.iter().take_while(|level| !level.load(Acquire).is_null()).count()
    }

    /// Owner: returns the pages of a range of the heap to the system; the range reads as zero
    /// afterwards.
    ///
    /// # Errors
    ///
    /// The range is not in the heap, or the system refuses.
    pub(crate) fn discard(&self, offset: u64, length: usize) -> io::Result<()> {
        self.heap(offset, length).ok_or(io::ErrorKind::InvalidInput)?;
        self.first.discard(offset as usize, length)
    }

    /// Owner: zeroes a range of the heap, which keeps its pages. A hostile peer may write to them at
    /// the same time.
    ///
    /// # Errors
    ///
    /// `InvalidInput`: the range is not in the heap, or its ends are not those of words.
    pub(crate) fn clear(&self, offset: u64, length: usize) -> io::Result<()> {
        let place = self.heap(offset, length).ok_or(io::ErrorKind::InvalidInput)?;
        // SAFETY: `heap` has checked that the range lies in the mapping.
        unsafe { memory::clear(place, length) }
    }

    /// Whether the bytes lie in a level that is mapped.
    pub(crate) fn contains(&self, address: usize, length: usize) -> bool {
        (0..self.mapped_levels()).any(|level| {
            let begin = self.levels[level].load(Ordering::Relaxed).addr();
            let end = begin + self.layout.length(level + 1) - self.layout.begin(level);
            (begin..=end).contains(&address) && length <= end - address
        })
    }
}

#[cfg(all(test, not(any(miri, loom))))]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    static LAYOUT: PartLayout = PartLayout { fixed: 4096, scaled: 16384, heap: 4096 + 4096 };
    static TABLE: Table = Table { at: 4096, first: 64, limit: 64 << (LEVELS - 1) };

    fn part() -> Part {
        Part::create(&LAYOUT, c"part", Writers::Owner).expect("memory")
    }

    fn entry(part: &Part, index: u32) -> Option<&AtomicU64> {
        // SAFETY: the tests use the table for these atomics only.
        unsafe { part.entry(&TABLE, index) }
    }

    fn ensure(part: &Part, index: u32) {
        part.grow_to(TABLE.levels_for(index).expect("an index")).expect("memory");
    }

    /// The part as a peer sees it whose owner says that it has this many levels.
    fn peer<'a>(part: &Part, levels: &'a AtomicU32) -> Peer<'a> {
        let file = part.file().expect("a file").try_clone_to_owned().expect("a descriptor");
        let mut part = Part::of_peer(&LAYOUT, file, false).expect("a part");
        // SAFETY: the word lives longer than the part, by the type of `Peer`.
        unsafe { part.set_levels_of_owner(NonNull::from(levels)) };
        Peer(part, core::marker::PhantomData)
    }

    struct Peer<'a>(Part, core::marker::PhantomData<&'a AtomicU32>);

    #[test]
    fn levels_adjoin_and_heaps_lie_in_them() {
        for level in 0..LEVELS {
            let (begin, end) = (LAYOUT.begin(level), LAYOUT.length(level + 1));
            assert_eq!((LAYOUT.level_of(begin), LAYOUT.level_of(end - 1)), (Some(level), Some(level)));
            let heap = LAYOUT.heap(level);
            assert_eq!(heap.end, end);
            let (start, length) = (heap.start as u64, heap.len());
            assert_eq!(LAYOUT.in_heap(start, length), Some((level, heap.start - begin)));
            assert_eq!(LAYOUT.in_heap(start, length + 1), None, "a range lies in one level");
            assert_eq!(LAYOUT.in_heap(start - 1, 1), None, "tables are not in the heap");
        }
        assert_eq!(LAYOUT.level_of(LAYOUT.length(LEVELS)), None);
        assert_eq!(LAYOUT.in_heap(u64::MAX, 1), None);
    }

    #[test]
    fn every_entry_has_its_place_and_stays_there() {
        let part = part();
        assert!(entry(&part, 64).is_none(), "the level is not there yet");
        let first = ptr::from_ref(entry(&part, 0).expect("level 0"));
        ensure(&part, 64 * 8 - 1);
        assert_eq!(part.mapped_levels(), 4);
        for index in 0..64 * 8 {
            entry(&part, index).expect("it is there").store(u64::from(index) + 1, Ordering::Relaxed);
        }
        let heap = part.heap(LAYOUT.heap(3).start as u64, 8).expect("it is there");
        // SAFETY: the word lies in the heap, and nobody else uses it.
        assert_eq!(unsafe { heap.cast::<u64>().read() }, 0, "a table does not reach into the heap");
        for index in 0..64 * 8 {
            assert_eq!(entry(&part, index).expect("there").load(Ordering::Relaxed), u64::from(index) + 1);
        }
        assert!(ptr::eq(first, entry(&part, 0).expect("level 0")));
        assert!(entry(&part, 64 * 8).is_none() && entry(&part, u32::MAX).is_none());
    }

    #[test]
    fn a_peer_maps_what_the_owner_says_that_it_has_added() {
        let (part, levels) = (part(), AtomicU32::new(1));
        let early = peer(&part, &levels);
        assert!(entry(&early.0, 64).is_none() && entry(&early.0, u32::MAX).is_none());
        ensure(&part, 200);
        entry(&part, 200).expect("it is there").store(7, Ordering::Relaxed);
        assert!(entry(&early.0, 200).is_none(), "the owner has not said so");
        levels.store(LEVELS as u32, Ordering::Relaxed);
        for peer in [&early, &peer(&part, &levels)] {
            assert_eq!(entry(&peer.0, 200).map(|entry| entry.load(Ordering::Relaxed)), Some(7));
            // The owner lies, and the file ends before that.
            assert!(entry(&peer.0, 64 * 8).is_none());
        }
    }

    #[test]
    fn a_part_ends_at_its_last_level() {
        let part = part();
        part.grow_to(LEVELS).expect("memory");
        assert_eq!(part.grow_to(LEVELS + 1).map_err(|error| error.kind()), Err(io::ErrorKind::OutOfMemory));
        assert!(entry(&part, TABLE.limit as u32 - 1).is_some());
        assert!(TABLE.levels_for(TABLE.limit as u32).is_err());
    }

    /// Any process of the user can make the file longer.
    #[test]
    fn a_file_that_is_longer_already_is_no_obstacle() {
        let part = part();
        rustix::fs::ftruncate(part.file().expect("a file"), 1 << 30).expect("it may grow");
        ensure(&part, 200);
        assert!(entry(&part, 200).is_some());
    }

    #[test]
    fn threads_that_grow_a_part_at_once_add_each_level_once() {
        for (index, levels) in [(TABLE.limit as u32 - 1, LEVELS), (64, 2)] {
            for _ in 0..50 {
                let (part, start) = (part(), std::sync::Barrier::new(4));
                std::thread::scope(|scope| {
                    for _ in 0..4 {
                        scope.spawn(|| {
                            start.wait();
                            ensure(&part, index);
                        });
                    }
                });
                assert_eq!(part.mapped_levels(), levels);
            }
        }
    }

    #[test]
    fn levels_begin_at_pages_of_any_processor() {
        for layout in [&crate::shared::segment::OWNED, &crate::shared::segment::SHARED] {
            assert!((1..LEVELS).all(|level| layout.begin(level).is_multiple_of(64 << 10)));
        }
    }

    #[test]
    fn later_levels_are_neither_inherited_nor_dumped() {
        let (part, levels) = (part(), AtomicU32::new(LEVELS as u32));
        let other = peer(&part, &levels);
        ensure(&part, 1000);
        assert!(entry(&other.0, 1000).is_some());
        let maps = std::fs::read_to_string("/proc/self/smaps").expect("proc");
        let (mut of_part, mut seen) = (false, 0);
        for line in maps.lines() {
            let head = line.split(' ').next().unwrap_or_default();
            if !head.ends_with(':') {
                of_part = line.contains("memfd:part");
            } else if of_part && head == "VmFlags:" {
                seen += 1;
                assert!(line.contains(" dc") && line.contains(" dd"), "{line}");
            }
        }
        assert!(seen >= 2, "{seen}");
    }
}
