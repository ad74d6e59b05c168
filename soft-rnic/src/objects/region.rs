//! The table of memory regions by key, with a generation for each.
//!
//! A key is an index and a tag, `index << 8 | tag`. The tag changes whenever an index is reused.
//! The owner relies on the private table in this module; the descriptor in the segment is for
//! peers.

use std::collections::VecDeque;
use std::ptr;
use std::sync::atomic::AtomicPtr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use super::context::Context;
use super::memory_region::Mr;
use super::memory_window::Mw;
use super::table::RESTING;
use crate::node::{ExportId, Node, Revoked, StillInUse};
use crate::platform::nowhere;
use crate::shared::entry::{MrDescriptor, domain, kind};
use crate::shared::generation::{Generation, GenerationSnapshot, GenerationWriter};
use crate::shared::segment::MAX_REGIONS;
use crate::status;
use crate::sync::{AtomicU32, AtomicU64, Relaxed};

/// Regions are allocated in chunks that are never freed, so that a reader needs no lock.
const CHUNK: usize = if MAX_REGIONS < 1024 { MAX_REGIONS } else { 1024 };

/// How many bits of a key are the tag.
const TAG_BITS: u32 = 8;

#[inline]
pub(crate) fn index_of(key: u32) -> u32 {
    key >> TAG_BITS
}

/// A region of this process, from the private table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LocalMrDescriptor {
    /// The start of the region, as a pointer that is valid for all of it.
    pub(crate) base: *mut u8,
    /// The address by which work requests and peers name `base`.
    pub(crate) iova: u64,
    /// 0 for an implicit region, to which [`pointer`](Self::pointer) therefore gives no access.
    pub(crate) length: u64,
    /// The number of its protection domain, or for a window the value that [`domain`] derives from
    /// it.
    pub(crate) pd: u32,
    /// `ibv_access_flags`.
    pub(crate) access: u32,
}

// SAFETY: the pointer is valid on every thread that may touch the region.
unsafe impl Send for LocalMrDescriptor {}

impl LocalMrDescriptor {
    /// The pointer to a range, if it lies within the region.
    #[inline]
    pub(crate) fn pointer(&self, address: u64, length: u64) -> Option<*mut u8> {
        let offset = address.checked_sub(self.iova)?;
        let inside = offset <= self.length && length <= self.length - offset;
        // In bounds, so wrapping changes nothing. This does not access the memory, which belongs to
        // the program.
        inside.then(|| self.base.wrapping_add(offset as usize))
    }

    /// The same for a null region, which has memory for any range, to be read or to be written.
    /// `None` for other regions.
    #[cold]
    pub(crate) fn null_pointer(&self, length: u64, writes: bool) -> Option<*mut u8> {
        if self.access & kind::NULL == 0 {
            return None;
        }
        if writes { nowhere::sink(self.base, length) } else { nowhere::source(self.base, length) }
    }

    /// The same for an implicit region: a pointer for the system alone, because the range may be
    /// unmapped. `None` for other regions, and for a range that exceeds the address space.
    #[cold]
    pub(crate) fn implicit_pointer(&self, address: u64, length: u64) -> Option<*mut u8> {
        let inside = self.access & kind::IMPLICIT != 0 && address.checked_add(length).is_some();
        inside.then(|| ptr::without_provenance_mut(address as usize))
    }
}

/// The private table's entry for one index.
#[derive(Debug, Default)]
pub(crate) struct RegionSlot {
    generation: Generation,
    base: AtomicPtr<u8>,
    iova: AtomicU64,
    length: AtomicU64,
    pd: AtomicU32,
    access: AtomicU32,
    control: Mutex<RegionControl>,
}

/// The part that only registering and deregistering threads use.
#[derive(Debug, Default)]
struct RegionControl {
    private: GenerationWriter,
    shared: GenerationWriter,
    tag: u8,
    /// The address of the context that registered the region.
    context: usize,
    owner: KeyOwner,
}

/// The object that an index belongs to.
#[derive(Clone, Debug, Default)]
pub(crate) enum KeyOwner {
    #[default]
    Nobody,
    Region(Weak<Mr>),
    Window(Weak<Mw>),
}

/// How the tag of a new key is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyTag {
    /// A different tag.
    Next,
    /// The current tag.
    Same,
    /// The tag that the program has chosen.
    Chosen(u8),
}

impl RegionSlot {
    /// The registration under this index. It is consistent only if the snapshot is still
    /// [current](Self::is_current) after a hazard was published.
    #[inline]
    pub(crate) fn read(&self) -> Option<(GenerationSnapshot, LocalMrDescriptor)> {
        let snapshot = self.generation.snapshot()?;
        let descriptor = LocalMrDescriptor {
            base: self.base.load(Relaxed),
            iova: self.iova.load(Relaxed),
            length: self.length.load(Relaxed),
            pd: self.pd.load(Relaxed),
            access: self.access.load(Relaxed),
        };
        Some((snapshot, descriptor))
    }

    /// Whether the registration has not changed since `snapshot`.
    #[inline]
    pub(crate) fn is_current(&self, snapshot: GenerationSnapshot) -> bool {
        self.generation.is_current(snapshot)
    }

    fn control(&self) -> MutexGuard<'_, RegionControl> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The memory regions and windows of this process.
pub(crate) struct RegionTable {
    node: Arc<Node>,
    chunks: Box<[OnceLock<Box<[RegionSlot]>>]>,
    indices: Mutex<FreeIndices>,
}

struct FreeIndices {
    /// The lowest index that was never used. Index 0 is never used, so that key 0 is invalid.
    next: u32,
    free: VecDeque<u32>,
}

impl RegionTable {
    pub(crate) fn new(node: Arc<Node>) -> Self {
        let chunks = (0..MAX_REGIONS.div_ceil(CHUNK)).map(|_| OnceLock::new()).collect();
        Self { node, chunks, indices: Mutex::new(FreeIndices { next: 1, free: VecDeque::new() }) }
    }

    /// The registration under a key, if any. [`RegionSlot::is_current`] tells whether it is
    /// consistent.
    #[inline]
    pub(crate) fn read(&self, key: u32) -> Option<(&RegionSlot, GenerationSnapshot, LocalMrDescriptor)> {
        let region = self.at(index_of(key))?;
        let (snapshot, descriptor) = region.read()?;
        (snapshot.label() == key as u8).then_some((region, snapshot, descriptor))
    }

    #[inline]
    fn at(&self, index: u32) -> Option<&RegionSlot> {
        self.chunks.get(index as usize / CHUNK)?.get()?.get(index as usize % CHUNK)
    }

    fn indices(&self) -> MutexGuard<'_, FreeIndices> {
        self.indices.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes an index; `None` if all are in use.
    pub(crate) fn reserve(&self) -> Option<u32> {
        let mut indices = self.indices();
        if (indices.next as usize) < MAX_REGIONS && indices.free.len() < RESTING {
            let index = indices.next;
            if !self.node.segment().ensure_region(index) {
                return None;
            }
            indices.next += 1;
            let chunk = || (0..CHUNK).map(|_| RegionSlot::default()).collect();
            self.chunks[index as usize / CHUNK].get_or_init(chunk);
            return Some(index);
        }
        indices.free.pop_front()
    }

    /// Gives back an index whose region was [revoked](Self::revoke).
    pub(crate) fn release(&self, index: u32) {
        self.indices().free.push_back(index);
    }

    /// Records the object that an index belongs to.
    pub(crate) fn set_owner(&self, index: u32, owner: KeyOwner) {
        self.at(index).expect("the index was reserved").control().owner = owner;
    }

    /// The memory region that owns the index of a key, whether the key is valid or not.
    pub(crate) fn memory_region(&self, key: u32) -> Option<Arc<Mr>> {
        match &self.at(index_of(key))?.control().owner {
            KeyOwner::Region(region) => region.upgrade(),
            _ => None,
        }
    }

    /// The memory window that owns the index of a key, whether the key is valid or not.
    pub(crate) fn window(&self, key: u32) -> Option<Arc<Mw>> {
        match &self.at(index_of(key))?.control().owner {
            KeyOwner::Window(window) => window.upgrade(),
            _ => None,
        }
    }

    /// A new key for a reserved index without a registration.
    pub(crate) fn new_key(&self, index: u32) -> u32 {
        let mut control = self.at(index).expect("the index was reserved").control();
        control.tag = control.tag.wrapping_add(1);
        index << TAG_BITS | u32::from(control.tag)
    }

    /// Registers a region under a reserved index and returns its key.
    pub(crate) fn publish(
        &self,
        index: u32,
        context: &Arc<Context>,
        descriptor: LocalMrDescriptor,
        export: Option<ExportId>,
        tag: KeyTag,
    ) -> u32 {
        let region = self.at(index).expect("the index was reserved");
        let mut control = region.control();
        let control = &mut *control;
        control.tag = match tag {
            KeyTag::Next => control.tag.wrapping_add(1),
            KeyTag::Same => control.tag,
            KeyTag::Chosen(tag) => tag,
        };
        control.context = Arc::as_ptr(context).addr();
        control.private.invalidate(&region.generation);
        region.base.store(descriptor.base, Relaxed);
        region.iova.store(descriptor.iova, Relaxed);
        region.length.store(descriptor.length, Relaxed);
        region.pd.store(descriptor.pd, Relaxed);
        region.access.store(descriptor.access, Relaxed);
        control.private.validate(&region.generation, control.tag);
        let entry = self.node.segment().region(index).expect("the segment has an entry for every index");
        let descriptor = MrDescriptor {
            iova: descriptor.iova,
            length: if descriptor.access & kind::IMPLICIT != 0 { u64::MAX } else { descriptor.length },
            address: descriptor.base.addr() as u64,
            pd: descriptor.pd,
            access: descriptor.access,
            export: export.map_or(0, |export| export.index + 1),
            export_epoch: export.map_or(0, |export| export.epoch),
        };
        entry.publish(&mut control.shared, control.tag, &descriptor);
        index << TAG_BITS | u32::from(control.tag)
    }

    /// Invalidates a region, and waits until no transfer touches it.
    ///
    /// # Errors
    ///
    /// A transfer still touches it after the configured time. The region stays invalid, and a later
    /// call waits again.
    pub(crate) fn revoke(&self, index: u32) -> Result<(), StillInUse> {
        self.close(index);
        self.node.wait_until_unused(Revoked::Region(index))
    }

    /// Invalidates a region, and returns whether no transfer touches it any more. If false, call it
    /// again later.
    pub(crate) fn try_revoke(&self, index: u32) -> bool {
        self.close(index);
        self.node.is_unused(Revoked::Region(index))
    }

    pub(crate) fn close(&self, index: u32) {
        let region = self.at(index).expect("the index was reserved");
        let mut control = region.control();
        let control = &mut *control;
        control.private.invalidate(&region.generation);
        let entry = self.node.segment().region(index).expect("the segment has an entry for every index");
        entry.withdraw(&mut control.shared);
        region.base.store(ptr::null_mut(), Relaxed);
    }

    /// Counts the memory regions and their bytes, without windows.
    pub(crate) fn count(&self) -> status::Regions {
        let used = self.indices().next;
        let mut counted = status::Regions::default();
        for (_, descriptor) in (1..used).filter_map(|index| self.at(index)?.read()) {
            if descriptor.pd & domain::WINDOW != 0 {
                continue;
            }
            counted.count += 1;
            counted.bytes = counted.bytes.saturating_add(descriptor.length);
        }
        counted
    }

    /// Revokes all regions of a context that was closed without deregistering them.
    pub(crate) fn revoke_all(&self, context: &Arc<Context>) {
        let context = Arc::as_ptr(context).addr();
        let used = self.indices().next;
        let mine = (1..used).filter(|index| {
            self.at(*index).is_some_and(|region| {
                region.generation.snapshot().is_some() && region.control().context == context
            })
        });
        for index in mine {
            if self.revoke(index).is_err() {
                log::error!("a peer still touches memory region {index}, whose context was closed");
            }
        }
    }
}
