//! The part of a pool that its lock guards: the chunks, the free blocks of each chunk, and the
//! counts.

use std::ptr::NonNull;
use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

use super::block::RawBlock;
use super::cache::Cache;
use super::chunk::Chunk;
use super::classes::{BlockUse, CHUNK_UNIT, CLASSES, Class, GROUPS, LARGE_CHUNK, LARGEST_CHUNK};
use super::core::PoolCore;
use super::high_water::{Watcher, WaterMarks};

#[derive(Default)]
pub(super) struct PoolState {
    pub(super) entries: Vec<ChunkEntry>,
    pub(super) counts: [ClassCount; CLASSES],
    /// Bytes of chunks, including one that is being created.
    pub(super) made: usize,
    /// The part of these that was carved into blocks, by group.
    carved: [usize; GROUPS],
    /// Lent bytes: in use, or in a thread's cache.
    lent: usize,
    pub(super) most_in_use: usize,
    /// Requests that the system or the device refused.
    pub(super) refused: u64,
    /// Whether the device has refused to register a chunk, and has registered none since.
    pub(super) registers_no_more: bool,
    /// The time before which no further request is made.
    pub(super) ask_again: Option<Instant>,
    pub(super) caches: Vec<Arc<Cache>>,
    pub(super) marks: WaterMarks,
    pub(super) watchers: Vec<Watcher>,
    pub(super) waiting: Vec<Waker>,
    /// The number of returns of blocks to the shared part.
    pub(super) returns: u64,
    pub(super) closed: bool,
    /// Keeps the pool while any block is lent.
    pub(super) self_ref: Option<Arc<PoolCore>>,
}

#[derive(Clone, Copy, Default)]
pub(super) struct ClassCount {
    pub(super) blocks: usize,
    pub(super) free: usize,
    /// The number of requests that found no block.
    pub(super) empty: u64,
    /// No chunk before this one has a free block.
    first: usize,
}

pub(super) struct ChunkEntry {
    /// Present until the pool is closed.
    pub(super) chunk: Option<Arc<Chunk>>,
    pub(super) purpose: ChunkPurpose,
    /// Offsets of the free blocks.
    free: Vec<u32>,
    blocks: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ChunkPurpose {
    /// Not carved and not in use.
    Spare,
    /// Being registered by the holder of the growth lock.
    Busy,
    Blocks(Class),
}

impl ChunkEntry {
    /// Whether all blocks of its class are free.
    fn is_whole(&self) -> bool {
        matches!(self.purpose, ChunkPurpose::Blocks(_)) && self.free.len() == self.blocks
    }

    /// The group of its blocks, if it has any.
    fn group(&self) -> Option<usize> {
        match self.purpose {
            ChunkPurpose::Blocks(class) => Some(class.group()),
            ChunkPurpose::Spare | ChunkPurpose::Busy => None,
        }
    }

    fn len(&self) -> usize {
        self.chunk.as_ref().map_or(0, |chunk| chunk.len())
    }

    fn can_become(&self, class: Class) -> bool {
        self.chunk.as_ref().is_some_and(|chunk| chunk.can_become(class.kind()))
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct PoolLimits {
    pub(super) max: usize,
    /// The part of the maximum that is reserved for each group. Any group may use the rest.
    pub(super) parts: [usize; GROUPS],
    /// Bytes of slots that permanently posted receives leave for arriving data.
    pub(super) margin: usize,
    pub(super) slot_size: usize,
}

impl PoolLimits {
    /// Bytes that a group may still add.
    fn left(&self, carved: &[usize; GROUPS], group: usize) -> usize {
        let others = (0..GROUPS).filter(|other| *other != group);
        let kept: usize = others.map(|other| self.parts[other].max(carved[other])).sum();
        self.max.saturating_sub(kept + carved[group])
    }

    /// A sixteenth of the existing memory, so that even a large pool has only some hundred chunks,
    /// each of which is a file and a registration.
    fn next_chunk(&self, made: usize) -> usize {
        (made / 16).clamp(CHUNK_UNIT, self.large_chunk()) / CHUNK_UNIT * CHUNK_UNIT
    }

    /// The size of the largest chunk.
    pub(super) fn large_chunk(&self) -> usize {
        large_chunk(self.max)
    }
}

/// The size of the largest chunk of a pool with this maximum.
pub(super) fn large_chunk(max: usize) -> usize {
    let most = LARGE_CHUNK.max(max / 64 / CHUNK_UNIT * CHUNK_UNIT).min(LARGEST_CHUNK);
    (max / 8 / CHUNK_UNIT * CHUNK_UNIT).clamp(CHUNK_UNIT, most)
}

impl PoolState {
    pub(super) fn new(marks: WaterMarks) -> Self {
        Self { marks, ..Self::default() }
    }

    pub(super) fn lent(&self) -> usize {
        self.lent
    }

    /// Bytes that the program and its connections hold: lent bytes less those in threads' caches.
    pub(super) fn in_use(&self, slot_size: usize) -> usize {
        self.lent.saturating_sub(self.cached() * slot_size)
    }

    /// Slots in caches. The number is exact while no thread takes or returns any.
    pub(super) fn cached(&self) -> usize {
        self.caches.iter().map(|cache| cache.len()).sum()
    }

    pub(super) fn lend(&mut self, class: Class) -> Option<RawBlock> {
        let count = &mut self.counts[class.index()];
        if count.free == 0 {
            return None;
        }
        while let Some(entry) = self.entries.get_mut(count.first) {
            if entry.purpose == ChunkPurpose::Blocks(class)
                && let Some(chunk) = &entry.chunk
                && let Some(offset) = entry.free.pop()
            {
                count.free -= 1;
                self.lent += chunk.block_size();
                // SAFETY: the offset comes from the free list of this chunk, which `carve` filled.
                let start = unsafe { chunk.block(offset) };
                return Some(RawBlock { start, chunk: NonNull::from(&**chunk) });
            }
            count.first += 1;
        }
        debug_assert!(false, "free blocks are in no chunk");
        None
    }

    /// Takes a block back. If it was the last one of a chunk of a closed pool, the chunk is
    /// returned.
    ///
    /// # Safety
    ///
    /// The block was lent, and no code uses it any more.
    pub(super) unsafe fn take_back(&mut self, raw: RawBlock) -> Option<Arc<Chunk>> {
        // SAFETY: the caller guarantees that the block is lent, and a chunk is freed only when all
        // of its blocks have returned (here and in `close`).
        let chunk = unsafe { raw.chunk.as_ref() };
        let (entry, count) = (&mut self.entries[chunk.index], &mut self.counts[chunk.class().index()]);
        debug_assert!(entry.free.len() < entry.blocks, "a block was given back twice");
        self.lent -= chunk.block_size();
        self.returns += 1;
        count.free += 1;
        count.first = count.first.min(chunk.index);
        entry.free.push(chunk.offset(raw.start));
        if self.closed && entry.is_whole() { entry.chunk.take() } else { None }
    }

    /// Ends lending; returns the chunks that are no longer needed.
    pub(super) fn close(&mut self) -> Vec<Arc<Chunk>> {
        self.closed = true;
        let idle =
            self.entries.iter_mut().filter(|entry| entry.is_whole() || entry.purpose == ChunkPurpose::Spare);
        idle.filter_map(|entry| entry.chunk.take()).collect()
    }

    /// Whether permanently posted receives may take another slot, because enough remain for
    /// arriving data.
    pub(super) fn has_room_for_standing(&self, limits: &PoolLimits) -> bool {
        let class = Class::slot(BlockUse::Receiving);
        let (group, count) = (class.group(), self.counts[class.index()]);
        let out = (count.blocks - count.free) * limits.slot_size;
        let most = self.carved[group] + limits.left(&self.carved, group);
        out + limits.slot_size + limits.margin <= most
    }

    /// Carves another chunk of the same group, none of whose blocks is lent.
    pub(super) fn recarve(&mut self, class: Class, limits: &PoolLimits) -> bool {
        let group = class.group();
        let whole = |entry: &ChunkEntry| matches!(entry.group(), Some(of) if of == group) && entry.is_whole();
        let Some(at) = self.entries.iter().position(whole) else { return false };
        self.uncarve(at);
        self.carve(at, class, limits);
        true
    }

    /// Reserves an unused chunk for registration in the class; it is busy from now on.
    pub(super) fn reserve_spare(&mut self, class: Class, limits: &PoolLimits) -> Option<Arc<Chunk>> {
        let left = limits.left(&self.carved, class.group());
        let at = self.entries.iter().position(|entry| {
            entry.purpose == ChunkPurpose::Spare && entry.len() <= left && entry.can_become(class)
        })?;
        self.occupy(at)
    }

    /// Reserves a chunk of another group, none of whose blocks is lent.
    pub(super) fn reserve_other(&mut self, class: Class, limits: &PoolLimits) -> Option<Arc<Chunk>> {
        let group = class.group();
        let at = self.entries.iter().position(|entry| {
            let Some(other) = entry.group().filter(|other| *other != group && entry.is_whole()) else {
                return false;
            };
            let mut carved = self.carved;
            carved[other] -= entry.len();
            entry.len() <= limits.left(&carved, group) && entry.can_become(class)
        })?;
        self.uncarve(at);
        self.occupy(at)
    }

    /// The size of a new chunk for the class; it counts from now on.
    pub(super) fn reserve_new(&mut self, class: Class, limits: &PoolLimits) -> Option<usize> {
        let left = limits.left(&self.carved, class.group()).min(limits.max - self.made);
        let len = limits.next_chunk(self.made).min(left / CHUNK_UNIT * CHUNK_UNIT);
        self.made += len;
        (len > 0).then_some(len)
    }

    /// Adds a chunk, whose bytes count already, and whose index is the next one.
    pub(super) fn add(&mut self, chunk: Arc<Chunk>) {
        debug_assert_eq!(chunk.index, self.entries.len());
        self.entries.push(ChunkEntry {
            chunk: Some(chunk),
            purpose: ChunkPurpose::Spare,
            free: Vec::new(),
            blocks: 0,
        });
    }

    /// Makes a chunk consist of free blocks; its registration has the kind that the class needs.
    pub(super) fn carve(&mut self, at: usize, class: Class, limits: &PoolLimits) {
        let entry = &mut self.entries[at];
        let Some(chunk) = &entry.chunk else { return };
        let size = class.size(limits.slot_size);
        chunk.become_class(class, limits.slot_size);
        entry.purpose = ChunkPurpose::Blocks(class);
        entry.blocks = chunk.len() / size;
        entry.free.clear();
        // The first one is taken first.
        entry.free.extend((0..entry.blocks).rev().map(|n| (n * size) as u32));
        self.carved[class.group()] += chunk.len();
        let count = &mut self.counts[class.index()];
        count.blocks += entry.blocks;
        count.free += entry.blocks;
        count.first = count.first.min(at);
    }

    /// Removes the blocks of a chunk that has all of them.
    fn uncarve(&mut self, at: usize) {
        let entry = &mut self.entries[at];
        let ChunkPurpose::Blocks(class) = entry.purpose else { return };
        let count = &mut self.counts[class.index()];
        count.blocks -= entry.blocks;
        count.free -= entry.blocks;
        self.carved[class.group()] -= entry.len();
        entry.free.clear();
        (entry.blocks, entry.purpose) = (0, ChunkPurpose::Spare);
    }

    fn occupy(&mut self, at: usize) -> Option<Arc<Chunk>> {
        let entry = &mut self.entries[at];
        entry.purpose = ChunkPurpose::Busy;
        entry.chunk.clone()
    }
}
