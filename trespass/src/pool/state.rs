//! The shared part of a pool, which a lock guards: which blocks of which chunks are not out.

use std::ptr::NonNull;
use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

use super::block::Raw;
use super::cache::Cache;
use super::chunk::Chunk;
use super::classes::{CHUNK_UNIT, CLASSES, Class, Kind, LARGE_CHUNK, LARGEST_CHUNK};
use super::core::Core;
use super::high_water::{Marks, Watcher};

#[derive(Default)]
pub(super) struct State {
    pub(super) entries: Vec<Entry>,
    pub(super) counts: [Count; CLASSES],
    /// Bytes of chunks, also of one that is being made.
    pub(super) made: usize,
    /// Of these, what slots and staged blocks were carved out of.
    carved: [usize; 2],
    /// Bytes that are out: in use, or in a thread's cache.
    lent: usize,
    pub(super) most_in_use: usize,
    /// What was asked of the system and not given.
    pub(super) refused: u64,
    /// Not before then is it asked again.
    pub(super) ask_again: Option<Instant>,
    pub(super) caches: Vec<Arc<Cache>>,
    pub(super) marks: Marks,
    pub(super) watchers: Vec<Watcher>,
    pub(super) waiting: Vec<Waker>,
    pub(super) closed: bool,
    /// Keeps the pool as long as something is out.
    pub(super) kept: Option<Arc<Core>>,
}

/// What there is of a class.
#[derive(Clone, Copy, Default)]
pub(super) struct Count {
    pub(super) blocks: usize,
    pub(super) free: usize,
    /// How often there was none.
    pub(super) empty: u64,
    /// No chunk before this one has a free block.
    first: usize,
}

pub(super) struct Entry {
    /// Always there until the pool is closed.
    pub(super) chunk: Option<Arc<Chunk>>,
    pub(super) purpose: Purpose,
    /// Offsets of the blocks that are not out.
    free: Vec<u32>,
    blocks: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Not carved: nobody has it.
    Spare,
    /// Being registered, by whoever holds the lock of growth.
    Busy,
    Blocks(Class),
}

impl Entry {
    /// All blocks of some class are here.
    fn is_whole(&self) -> bool {
        matches!(self.purpose, Purpose::Blocks(_)) && self.free.len() == self.blocks
    }

    fn len(&self) -> usize {
        self.chunk.as_ref().map_or(0, |chunk| chunk.len())
    }
}

/// What bounds a pool.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) max: usize,
    /// Of the maximum, what neither kind of memory takes from the other, so that staging goes on however many slots wait, and the
    /// other way round.
    pub(super) reserve: usize,
    pub(super) slot_size: usize,
}

impl Limits {
    fn left(&self, carved: usize) -> usize {
        (self.max - self.reserve).saturating_sub(carved)
    }

    /// An eighth of what there is, so that there are some hundred chunks and not more however large the pool is: each is a file and a
    /// registration.
    fn next_chunk(&self, made: usize) -> usize {
        (made / 8).clamp(CHUNK_UNIT, self.large_chunk()) / CHUNK_UNIT * CHUNK_UNIT
    }

    /// No chunk is larger.
    pub(super) fn large_chunk(&self) -> usize {
        LARGE_CHUNK.max(self.max / 64 / CHUNK_UNIT * CHUNK_UNIT).min(LARGEST_CHUNK)
    }
}

impl State {
    pub(super) fn new(marks: Marks) -> Self {
        Self { marks, ..Self::default() }
    }

    pub(super) fn lent(&self) -> usize {
        self.lent
    }

    /// Bytes that the program and its connections have: what is out, less what threads keep.
    pub(super) fn in_use(&self, slot_size: usize) -> usize {
        self.lent.saturating_sub(self.cached() * slot_size)
    }

    /// Slots in caches. Exact when no thread is taking or giving any.
    pub(super) fn cached(&self) -> usize {
        self.caches.iter().map(|cache| cache.len()).sum()
    }

    pub(super) fn lend(&mut self, class: Class) -> Option<Raw> {
        let count = &mut self.counts[class.index()];
        if count.free == 0 {
            return None;
        }
        while let Some(entry) = self.entries.get_mut(count.first) {
            if entry.purpose == Purpose::Blocks(class)
                && let Some(chunk) = &entry.chunk
                && let Some(offset) = entry.free.pop()
            {
                count.free -= 1;
                self.lent += chunk.block_size();
                let start = chunk.block(offset);
                return Some(Raw { start, chunk: NonNull::from(&**chunk) });
            }
            count.first += 1;
        }
        debug_assert!(false, "free blocks are in no chunk");
        None
    }

    /// Takes a block back. If it was the last one of a chunk of a closed pool, the chunk comes back.
    ///
    /// # Safety
    ///
    /// The block was lent, and nobody uses it any more.
    pub(super) unsafe fn take_back(&mut self, raw: Raw) -> Option<Arc<Chunk>> {
        // SAFETY: the block is out, so the chunk lives.
        let chunk = unsafe { raw.chunk.as_ref() };
        let (entry, count) = (&mut self.entries[chunk.index], &mut self.counts[chunk.class().index()]);
        debug_assert!(entry.free.len() < entry.blocks, "a block was given back twice");
        self.lent -= chunk.block_size();
        count.free += 1;
        count.first = count.first.min(chunk.index);
        entry.free.push(chunk.offset(raw.start));
        if self.closed && entry.is_whole() { entry.chunk.take() } else { None }
    }

    /// Ends lending. What is not needed any more comes back.
    pub(super) fn close(&mut self) -> Vec<Arc<Chunk>> {
        self.closed = true;
        let idle =
            self.entries.iter_mut().filter(|entry| entry.is_whole() || entry.purpose == Purpose::Spare);
        idle.filter_map(|entry| entry.chunk.take()).collect()
    }

    /// Carves another of the same kind's chunks, of which nothing is out.
    pub(super) fn recarve(&mut self, class: Class, limits: &Limits) -> bool {
        let Some(at) = self.whole(class.kind()) else { return false };
        self.uncarve(at);
        self.carve(at, class, limits);
        true
    }

    /// A chunk that nobody uses, to be registered for the class: it is busy from now on.
    pub(super) fn reserve_spare(&mut self, class: Class, limits: &Limits) -> Option<Arc<Chunk>> {
        let left = limits.left(self.carved[class.kind() as usize]);
        let at =
            self.entries.iter().position(|entry| entry.purpose == Purpose::Spare && entry.len() <= left)?;
        self.occupy(at)
    }

    /// As `reserve_spare`, a chunk of the other kind of which nothing is out.
    pub(super) fn reserve_other(&mut self, class: Class, limits: &Limits) -> Option<Arc<Chunk>> {
        let other = if class.kind() == Kind::Slots { Kind::Staged } else { Kind::Slots };
        let at = self.whole(other)?;
        if self.entries[at].len() > limits.left(self.carved[class.kind() as usize]) {
            return None;
        }
        self.uncarve(at);
        self.occupy(at)
    }

    /// How large a new chunk for the class may be; it counts from now on.
    pub(super) fn reserve_new(&mut self, class: Class, limits: &Limits) -> Option<usize> {
        let left = limits.left(self.carved[class.kind() as usize]).min(limits.max - self.made);
        let len = limits.next_chunk(self.made).min(left / CHUNK_UNIT * CHUNK_UNIT);
        self.made += len;
        (len > 0).then_some(len)
    }

    /// Adds a chunk, whose bytes count already, and whose index is the next one.
    pub(super) fn add(&mut self, chunk: Arc<Chunk>) {
        debug_assert_eq!(chunk.index, self.entries.len());
        self.entries.push(Entry { chunk: Some(chunk), purpose: Purpose::Spare, free: Vec::new(), blocks: 0 });
    }

    /// Has a chunk, whose registration fits the class's kind, consist of free blocks.
    pub(super) fn carve(&mut self, at: usize, class: Class, limits: &Limits) {
        let entry = &mut self.entries[at];
        let Some(chunk) = &entry.chunk else { return };
        let size = class.size(limits.slot_size);
        chunk.become_class(class, limits.slot_size);
        entry.purpose = Purpose::Blocks(class);
        entry.blocks = chunk.len() / size;
        entry.free.clear();
        // The first one is taken first.
        entry.free.extend((0..entry.blocks).rev().map(|n| (n * size) as u32));
        self.carved[class.kind() as usize] += chunk.len();
        let count = &mut self.counts[class.index()];
        count.blocks += entry.blocks;
        count.free += entry.blocks;
        count.first = count.first.min(at);
    }

    /// A chunk of a kind all of whose blocks are here.
    fn whole(&self, kind: Kind) -> Option<usize> {
        self.entries.iter().position(|entry| {
            matches!(entry.purpose, Purpose::Blocks(class) if class.kind() == kind) && entry.is_whole()
        })
    }

    /// Takes the blocks of a whole chunk away.
    fn uncarve(&mut self, at: usize) {
        let entry = &mut self.entries[at];
        let Purpose::Blocks(class) = entry.purpose else { return };
        let count = &mut self.counts[class.index()];
        count.blocks -= entry.blocks;
        count.free -= entry.blocks;
        self.carved[class.kind() as usize] -= entry.len();
        entry.free.clear();
        (entry.blocks, entry.purpose) = (0, Purpose::Spare);
    }

    fn occupy(&mut self, at: usize) -> Option<Arc<Chunk>> {
        let entry = &mut self.entries[at];
        entry.purpose = Purpose::Busy;
        entry.chunk.clone()
    }
}
