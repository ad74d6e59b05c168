//! Memory regions by key: what this process may touch on behalf of whom.
//!
//! A key is an index and a tag, `index << 8 | tag`; the tag changes whenever an index is used again. What the owner relies
//! on lies here, in private memory; the descriptor in the segment is for peers.

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

/// Regions are allocated in chunks, which stay: a reader needs no lock.
const CHUNK: usize = if MAX_REGIONS < 1024 { MAX_REGIONS } else { 1024 };

/// Bits of a key that are not the index.
const TAG_BITS: u32 = 8;

/// The index of a key.
#[inline]
pub(crate) fn index_of(key: u32) -> u32 {
    key >> TAG_BITS
}

/// What this process knows about a region of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LocalMrDescriptor {
    /// Where the region begins, as a pointer that is good for all of it.
    pub(crate) base: *mut u8,
    /// The address by which work requests and peers name `base`.
    pub(crate) iova: u64,
    pub(crate) length: u64,
    /// A protection domain, or what [`domain`] makes of a window's.
    pub(crate) pd: u32,
    /// `ibv_access_flags`.
    pub(crate) access: u32,
}

// SAFETY: the pointer is good for whoever may touch the region, on any thread.
unsafe impl Send for LocalMrDescriptor {}

impl LocalMrDescriptor {
    /// The memory of a range, if the region has all of it.
    #[inline]
    pub(crate) fn pointer(&self, address: u64, length: u64) -> Option<*mut u8> {
        let offset = address.checked_sub(self.iova)?;
        let inside = offset <= self.length && length <= self.length - offset;
        // In bounds, so wrapping changes nothing; nothing is claimed about the memory, which is the program's.
        inside.then(|| self.base.wrapping_add(offset as usize))
    }

    /// The same of a null region, which has memory for any range, to be read or to be written; `None` of others.
    #[cold]
    pub(crate) fn null_pointer(&self, length: u64, writes: bool) -> Option<*mut u8> {
        if self.access & kind::NULL == 0 {
            return None;
        }
        if writes { nowhere::sink(self.base, length) } else { nowhere::source(self.base, length) }
    }
}

/// A place for a region.
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

/// The owner's side, used by the calls that register and deregister.
#[derive(Debug, Default)]
struct RegionControl {
    private: GenerationWriter,
    shared: GenerationWriter,
    tag: u8,
    /// The context that has the region, by its address.
    context: usize,
    owner: KeyOwner,
}

/// Whose index it is.
#[derive(Clone, Debug, Default)]
pub(crate) enum KeyOwner {
    #[default]
    Nobody,
    Region(Weak<Mr>),
    Window(Weak<Mw>),
}

/// Which tag a key gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyTag {
    /// Another than before.
    Next,
    /// The one that it has.
    Same,
    /// The program's choice.
    Chosen(u8),
}

impl RegionSlot {
    /// What is registered here. It is whole only if the snapshot is still [current](Self::is_current) after a hazard was published.
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

    /// Whether the region is as it was read.
    #[inline]
    pub(crate) fn is_current(&self, snapshot: GenerationSnapshot) -> bool {
        self.generation.is_current(snapshot)
    }

    fn control(&self) -> MutexGuard<'_, RegionControl> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// All regions of this process.
pub(crate) struct RegionTable {
    node: Arc<Node>,
    chunks: Box<[OnceLock<Box<[RegionSlot]>>]>,
    indices: Mutex<FreeIndices>,
}

struct FreeIndices {
    /// The lowest that was never used. Index 0 never is, so that key 0 is none.
    next: u32,
    free: VecDeque<u32>,
}

impl RegionTable {
    pub(crate) fn new(node: Arc<Node>) -> Self {
        let chunks = (0..MAX_REGIONS.div_ceil(CHUNK)).map(|_| OnceLock::new()).collect();
        Self { node, chunks, indices: Mutex::new(FreeIndices { next: 1, free: VecDeque::new() }) }
    }

    /// The region of a key, if there is one now, with what is registered there, of which [`RegionSlot::is_current`] says whether it
    /// is whole.
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
            indices.next += 1;
            let chunk = || (0..CHUNK).map(|_| RegionSlot::default()).collect();
            self.chunks[index as usize / CHUNK].get_or_init(chunk);
            return Some(index);
        }
        indices.free.pop_front()
    }

    /// Gives an index back, whose region was [revoked](Self::revoke).
    pub(crate) fn release(&self, index: u32) {
        self.indices().free.push_back(index);
    }

    /// Says whose index it is.
    pub(crate) fn set_owner(&self, index: u32, owner: KeyOwner) {
        self.at(index).expect("the index was reserved").control().owner = owner;
    }

    /// The memory region that a key's index belongs to, whether the key is good or not.
    pub(crate) fn memory_region(&self, key: u32) -> Option<Arc<Mr>> {
        match &self.at(index_of(key))?.control().owner {
            KeyOwner::Region(region) => region.upgrade(),
            _ => None,
        }
    }

    /// The memory window that a key's index belongs to, whether the key is good or not.
    pub(crate) fn window(&self, key: u32) -> Option<Arc<Mw>> {
        match &self.at(index_of(key))?.control().owner {
            KeyOwner::Window(window) => window.upgrade(),
            _ => None,
        }
    }

    /// A new key for an index that was reserved, and that nothing is registered under yet.
    pub(crate) fn new_key(&self, index: u32) -> u32 {
        let mut control = self.at(index).expect("the index was reserved").control();
        control.tag = control.tag.wrapping_add(1);
        index << TAG_BITS | u32::from(control.tag)
    }

    /// Registers a region under an index that was reserved, with this tag; returns the key.
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
        let entry = self.node.segment().region(index).expect("the index is one of the segment's");
        let descriptor = MrDescriptor {
            iova: descriptor.iova,
            length: descriptor.length,
            address: descriptor.base.addr() as u64,
            pd: descriptor.pd,
            access: descriptor.access,
            export: export.map_or(0, |export| export.index + 1),
            export_epoch: export.map_or(0, |export| export.epoch),
        };
        entry.publish(&mut control.shared, control.tag, &descriptor);
        index << TAG_BITS | u32::from(control.tag)
    }

    /// Closes a region, and waits until nobody touches it.
    ///
    /// # Errors
    ///
    /// Somebody still does, after the time that the configuration gives. The region stays closed; a later call
    /// waits again.
    pub(crate) fn revoke(&self, index: u32) -> Result<(), StillInUse> {
        self.close(index);
        self.node.wait_until_unused(Revoked::Region(index))
    }

    /// Closes a region; whether nobody touches it any more. To be asked again where somebody does.
    pub(crate) fn try_revoke(&self, index: u32) -> bool {
        self.close(index);
        self.node.is_unused(Revoked::Region(index))
    }

    pub(crate) fn close(&self, index: u32) {
        let region = self.at(index).expect("the index was reserved");
        let mut control = region.control();
        let control = &mut *control;
        control.private.invalidate(&region.generation);
        let entry = self.node.segment().region(index).expect("the index is one of the segment's");
        entry.withdraw(&mut control.shared);
        region.base.store(ptr::null_mut(), Relaxed);
    }

    /// The regions that there are.
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
