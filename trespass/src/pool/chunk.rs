//! A chunk: one large piece of memory that is carved into blocks, and its registration (a memory
//! region for each device).

use std::mem::ManuallyDrop;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use super::Source;
use super::adopted::AdoptedMemory;
use super::block::RawBlock;
use super::classes::{Class, RegistrationKind};
use super::core::PoolCore;
use super::memory::{ChunkMemory, ChunkRegion, DomainSet, MOST_DEVICES};
use super::registrations::Registrations;

/// Marks a word whose lower 32 bits are a key.
const IS_KEY: u64 = 1 << 32;

/// The memory of a chunk.
pub(super) enum ChunkBytes {
    Made(ChunkMemory),
    Adopted(AdoptedMemory),
}

impl ChunkBytes {
    pub(super) fn start(&self) -> NonNull<u8> {
        match self {
            Self::Made(memory) => memory.start(),
            Self::Adopted(memory) => memory.start(),
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::Made(memory) => memory.len(),
            Self::Adopted(memory) => memory.len(),
        }
    }
}

/// Memory that is carved into blocks of one class. Fields that describe the class change only while
/// no block is lent.
pub(super) struct Chunk {
    memory: ManuallyDrop<ChunkBytes>,
    region: Mutex<Option<Registration>>,
    /// For a block that belongs to no pool: the registrar of its memory.
    registrations: Option<Arc<Registrations>>,
    /// Its index among the pool's chunks.
    pub(super) index: usize,
    /// The pool's core, which lives while a block is lent; null for a block that belongs to no
    /// pool.
    pub(super) core: *const PoolCore,
    /// The core again if the blocks are slots, which threads cache; else null.
    slots_of: AtomicPtr<PoolCore>,
    block_size: AtomicUsize,
    class: AtomicUsize,
    /// The `identity` of the domains in which the keys are valid; 0 if it has no keys.
    domain: AtomicUsize,
    /// Behind the other fields of the hot path, so that these and the primary device's keys share a
    /// cache line.
    keys: [DeviceKeys; MOST_DEVICES],
    /// Whether peers may read it, and their processors do so.
    read_by_processors: AtomicBool,
}

/// A chunk's keys for one device; 0, or `IS_KEY` and the key.
#[derive(Default)]
struct DeviceKeys {
    lkey: AtomicU64,
    rkey: AtomicU64,
}

/// A chunk's registration.
#[derive(Debug)]
struct Registration {
    region: ChunkRegion,
    /// `None` if some regions have ended and others could not be: the memory is not used.
    kind: Option<RegistrationKind>,
    /// The `identity` of the domains.
    domain: usize,
}

// SAFETY: the raw pointers lead to the core, which is Sync, and are used only as the fields allow;
// all else is Send and Sync.
unsafe impl Send for Chunk {}
// SAFETY: the fields that change are atomic or behind a lock; `core` and `slots_of` point to the
// core, which is Sync.
unsafe impl Sync for Chunk {}

impl Chunk {
    pub(super) fn new(memory: ChunkMemory, index: usize, core: *const PoolCore) -> Self {
        Self::of(ChunkBytes::Made(memory), index, core)
    }

    /// A block that belongs to no pool. The code that returns it frees the chunk
    /// ([`free`](Self::free)).
    pub(super) fn alone(memory: AdoptedMemory, registrations: Option<Arc<Registrations>>) -> RawBlock {
        let mut chunk = Self::of(ChunkBytes::Adopted(memory), 0, ptr::null());
        chunk.registrations = registrations;
        chunk.block_size.store(chunk.len(), Relaxed);
        let start = chunk.memory.start();
        RawBlock { start, chunk: NonNull::from(Box::leak(Box::new(chunk))) }
    }

    /// Frees the chunk of a block that belongs to no pool.
    ///
    /// # Safety
    ///
    /// It comes from [`alone`](Self::alone), and no code uses it any more.
    pub(super) unsafe fn free(chunk: NonNull<Self>) {
        // SAFETY: `alone` leaked it from a box, and the caller guarantees that no code uses it
        // after this.
        let chunk = unsafe { Box::from_raw(chunk.as_ptr()) };
        if chunk.registrations.as_ref().is_some_and(|registrations| registrations.are_of_parent()) {
            // The parent has the registration, and another thread may have locked it at the fork.
            return std::mem::forget(chunk);
        }
        let ended = chunk.registrations.as_ref().map_or(Ok(()), |registrations| registrations.end(&chunk));
        if let Err(cause) = ended {
            tracing::debug!("adopted memory is still registered: {cause}");
        }
        // If the memory is still registered, the drop leaks it.
        drop(chunk);
    }

    /// Takes the memory of a block that belongs to no pool, and frees the chunk. It fails if the
    /// device does not deregister the memory.
    ///
    /// # Safety
    ///
    /// It comes from [`alone`](Self::alone), and no code uses it any more, unless this fails: then
    /// the block still owns it.
    pub(super) unsafe fn reclaim(chunk: NonNull<Self>) -> Result<Vec<u8>, Source> {
        // SAFETY: `alone` leaked it from a box, and the caller guarantees that no other code uses
        // it; on failure `ManuallyDrop` leaves it.
        let mut chunk = ManuallyDrop::new(unsafe { Box::from_raw(chunk.as_ptr()) });
        if let Some(registrations) = &chunk.registrations {
            registrations.end(&chunk)?;
        }
        let memory = std::mem::replace(&mut *chunk.memory, ChunkBytes::Adopted(Vec::new().into()));
        drop(ManuallyDrop::into_inner(chunk));
        match memory {
            ChunkBytes::Adopted(memory) => Ok(memory.into()),
            ChunkBytes::Made(_) => unreachable!("a chunk of its own has adopted memory"),
        }
    }

    /// The registrar, for a block that belongs to no pool.
    pub(super) fn registrations(&self) -> Option<&Registrations> {
        self.registrations.as_deref()
    }

    fn of(memory: ChunkBytes, index: usize, core: *const PoolCore) -> Self {
        Self {
            memory: ManuallyDrop::new(memory),
            region: Mutex::new(None),
            registrations: None,
            index,
            core,
            slots_of: AtomicPtr::new(ptr::null_mut()),
            block_size: AtomicUsize::new(0),
            class: AtomicUsize::new(0),
            domain: AtomicUsize::new(0),
            keys: Default::default(),
            read_by_processors: AtomicBool::new(false),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.memory.len()
    }

    /// Changes the class of its blocks, none of which is lent.
    pub(super) fn become_class(&self, class: Class, slot_size: usize) {
        let slots_of = if class.is_slot() { self.core.cast_mut() } else { ptr::null_mut() };
        self.slots_of.store(slots_of, Relaxed);
        self.block_size.store(class.size(slot_size), Relaxed);
        self.class.store(class.index(), Relaxed);
    }

    #[inline]
    pub(super) fn slots_of(&self) -> *const PoolCore {
        self.slots_of.load(Relaxed)
    }

    #[inline]
    pub(super) fn block_size(&self) -> usize {
        self.block_size.load(Relaxed)
    }

    #[inline]
    pub(super) fn class(&self) -> Class {
        Class(self.class.load(Relaxed) as u8)
    }

    /// The address of the block at an offset.
    ///
    /// # Safety
    ///
    /// `PoolState::carve` put the offset into this chunk's free list, so the whole block lies in
    /// the chunk.
    pub(super) unsafe fn block(&self, offset: u32) -> NonNull<u8> {
        debug_assert!(offset as usize + self.block_size() <= self.len());
        // SAFETY: the caller guarantees that the block at `offset` lies within the memory.
        unsafe { self.memory.start().add(offset as usize) }
    }

    pub(super) fn offset(&self, start: NonNull<u8>) -> u32 {
        (start.as_ptr().addr() - self.memory.start().as_ptr().addr()) as u32
    }

    /// Touches each page, so that the system provides the memory now.
    ///
    /// # Safety
    ///
    /// No block of the chunk is lent.
    pub(super) unsafe fn touch(&self) {
        for offset in (0..self.len()).step_by(4096) {
            // SAFETY: `offset` is less than the length, and the caller guarantees that no block is
            // lent, so no other code accesses the byte.
            unsafe { self.memory.start().add(offset).write_volatile(0) };
        }
    }

    #[inline]
    pub(super) fn lkey(&self) -> Option<u32> {
        key(&self.keys[0].lkey)
    }

    /// The remote key; `None` for slots and for receive memory, which no peer may read.
    #[inline]
    pub(super) fn rkey(&self) -> Option<u32> {
        key(&self.keys[0].rkey)
    }

    #[inline]
    pub(super) fn lkey_of(&self, device: usize) -> Option<u32> {
        key(&self.keys.get(device)?.lkey)
    }

    #[inline]
    pub(super) fn rkey_of(&self, device: usize) -> Option<u32> {
        key(&self.keys.get(device)?.rkey)
    }

    #[inline]
    pub(super) fn is_registered_in(&self, domain: usize) -> bool {
        self.domain.load(Relaxed) == domain && domain != 0
    }

    /// Whether its blocks have keys, at least for one device.
    pub(super) fn is_registered(&self) -> bool {
        self.domain.load(Relaxed) != 0
    }

    /// Whether any device has a region of it, including one that could not be ended.
    pub(super) fn has_region(&self) -> bool {
        self.lock_region().is_some()
    }

    /// Whether it can be registered for the needs of a kind without ending a region of a device
    /// that has failed, because such a device may refuse.
    pub(super) fn can_become(&self, kind: RegistrationKind) -> bool {
        self.lock_region()
            .as_ref()
            .is_none_or(|registered| registered.kind == Some(kind) || !registered.region.has_failed_device())
    }

    /// Registers it for the needs of a kind, and no more. No block is lent.
    pub(super) fn register(&self, domains: &DomainSet, kind: RegistrationKind) -> Result<(), Source> {
        let domain = domains.identity();
        let is_done = |known: &Registration| (known.kind, known.domain) == (Some(kind), domain);
        if self.lock_region().as_ref().is_some_and(is_done) {
            return Ok(());
        }
        self.deregister()?;
        match ChunkRegion::register(&self.memory, domains, kind) {
            Ok(region) => {
                self.publish(Registration { region, kind: Some(kind), domain });
                Ok(())
            }
            Err((left, cause)) => {
                *self.lock_region() = left.map(|region| Registration { region, kind: None, domain });
                Err(cause)
            }
        }
    }

    /// Makes the keys available to the blocks, including lent ones. The chunk had no registration.
    fn publish(&self, registered: Registration) {
        let Registration { region, kind, domain } = &registered;
        let readable = *kind == Some(RegistrationKind::PeerReadable);
        self.domain.store(*domain, Relaxed);
        for (device, keys) in self.keys.iter().enumerate() {
            let Some((lkey, rkey)) = region.keys(device) else { continue };
            keys.lkey.store(IS_KEY | u64::from(lkey), Relaxed);
            keys.rkey.store(if readable { IS_KEY | u64::from(rkey) } else { 0 }, Relaxed);
        }
        self.read_by_processors.store(readable && region.is_soft(), Relaxed);
        *self.lock_region() = Some(registered);
    }

    #[inline]
    pub(super) fn is_read_by_processors(&self) -> bool {
        self.read_by_processors.load(Relaxed)
    }

    /// Ends the registration. If no device ends its region, the chunk is registered as before. If
    /// only some do, it loses all keys, and keeps the regions of the others.
    pub(super) fn deregister(&self) -> Result<(), Source> {
        let mut place = self.lock_region();
        let Some(registered) = &mut *place else { return Ok(()) };
        let before = registered.region.count();
        let ended = registered.region.end();
        if ended.is_err() && registered.region.count() == before {
            return ended;
        }
        registered.kind = None;
        if ended.is_ok() {
            *place = None;
        }
        self.domain.store(0, Relaxed);
        for keys in &self.keys {
            keys.lkey.store(0, Relaxed);
            keys.rkey.store(0, Relaxed);
        }
        ended
    }

    fn lock_region(&self) -> std::sync::MutexGuard<'_, Option<Registration>> {
        self.region.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[inline]
fn key(word: &AtomicU64) -> Option<u32> {
    let word = word.load(Relaxed);
    (word & IS_KEY != 0).then_some(word as u32)
}

impl Drop for Chunk {
    fn drop(&mut self) {
        match self.deregister() {
            // SAFETY: this is the drop; no block is lent, and the device no longer has the memory.
            Ok(()) => unsafe { ManuallyDrop::drop(&mut self.memory) },
            Err(cause) => {
                tracing::error!("{} bytes of a pool stay registered, and are leaked: {cause}", self.len());
                // The domain must stay, too.
                let _kept = ManuallyDrop::new(self.lock_region().take());
            }
        }
    }
}
