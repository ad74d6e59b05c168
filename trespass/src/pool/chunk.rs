//! A large piece of memory, and what its blocks have in common.

use std::mem::ManuallyDrop;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use super::Source;
use super::adopted::AdoptedMemory;
use super::block::RawBlock;
use super::classes::{Class, RegistrationKind};
use super::core::PoolCore;
use super::memory::{ChunkMemory, ChunkRegion, PoolDomain, identity};
use super::registrations::Registrations;

/// Says of the lower 32 bits of a word that they are a key.
const IS_KEY: u64 = 1 << 32;

/// What a chunk lies in.
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

/// Memory that is carved into blocks of one class. What is said here of the class changes only while no block is out.
pub(super) struct Chunk {
    memory: ManuallyDrop<ChunkBytes>,
    region: Mutex<Option<Registration>>,
    /// Of a block that no pool has: who registers it.
    registrations: Option<Arc<Registrations>>,
    /// Its place among the pool's chunks.
    pub(super) index: usize,
    /// The pool's core, which lives as long as a block is out; null if the chunk is a block that no pool has.
    pub(super) core: *const PoolCore,
    /// The core once more if the blocks are slots, which threads keep; else null.
    slots_of: AtomicPtr<PoolCore>,
    block_size: AtomicUsize,
    class: AtomicUsize,
    lkey: AtomicU64,
    rkey: AtomicU64,
    /// What `identity` says of the domain that the keys are good in.
    domain: AtomicUsize,
    /// Peers may read it, and there is no hardware that does it for them.
    read_by_processors: AtomicBool,
}

/// A registration, and what for.
#[derive(Debug)]
pub(super) struct Registration {
    region: ChunkRegion,
    kind: RegistrationKind,
    domain: usize,
}

impl Registration {
    pub(super) fn new(chunk: &Chunk, domain: &PoolDomain, kind: RegistrationKind) -> Result<Self, Source> {
        Ok(Self {
            region: ChunkRegion::register(&chunk.memory, domain, kind)?,
            kind,
            domain: identity(domain),
        })
    }
}

// SAFETY: the raw pointers are to the core, which is Sync, and used only as the field says; all else is Send and Sync.
unsafe impl Send for Chunk {}
// SAFETY: the fields that change are atomic or behind a lock; `core` and `slots_of` point to the core, which is Sync.
unsafe impl Sync for Chunk {}

impl Chunk {
    pub(super) fn new(memory: ChunkMemory, index: usize, core: *const PoolCore) -> Self {
        Self::of(ChunkBytes::Made(memory), index, core)
    }

    /// A block that no pool has. Whoever gives it back frees the chunk ([`free`](Self::free)).
    pub(super) fn alone(memory: AdoptedMemory, registrations: Option<Arc<Registrations>>) -> RawBlock {
        let mut chunk = Self::of(ChunkBytes::Adopted(memory), 0, ptr::null());
        chunk.registrations = registrations;
        chunk.block_size.store(chunk.len(), Relaxed);
        let start = chunk.memory.start();
        RawBlock { start, chunk: NonNull::from(Box::leak(Box::new(chunk))) }
    }

    /// Frees the chunk of a block that no pool has.
    ///
    /// # Safety
    ///
    /// It is from [`alone`](Self::alone), and nobody uses it any more.
    pub(super) unsafe fn free(chunk: NonNull<Self>) {
        // SAFETY: `alone` leaked it from a box, and nobody uses it after this, by this function's contract.
        let chunk = unsafe { Box::from_raw(chunk.as_ptr()) };
        let ended = chunk.registrations.as_ref().map_or(Ok(()), |registrations| registrations.end(&chunk));
        if let Err(cause) = ended {
            tracing::debug!("adopted memory is still registered: {cause}");
        }
        // What is registered even now, its drop leaks.
        drop(chunk);
    }

    /// Takes the memory of a block that no pool has, and frees the chunk. It comes back if the device does not let it go.
    ///
    /// # Safety
    ///
    /// It is from [`alone`](Self::alone), and nobody uses it any more, unless this fails: then the block still owns it.
    pub(super) unsafe fn reclaim(chunk: NonNull<Self>) -> Result<Vec<u8>, Source> {
        // SAFETY: `alone` leaked it from a box. Nobody else uses it, by this function's contract; on failure `ManuallyDrop` leaves it.
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

    /// Who registers it, if it is a block that no pool has.
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
            lkey: AtomicU64::new(0),
            rkey: AtomicU64::new(0),
            domain: AtomicUsize::new(0),
            read_by_processors: AtomicBool::new(false),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.memory.len()
    }

    /// Says what its blocks are from now on. No block is out.
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

    /// The first byte of the block at an offset.
    ///
    /// # Safety
    ///
    /// The offset is one that `PoolState::carve` gave to this chunk's free list: the whole block lies in the chunk.
    pub(super) unsafe fn block(&self, offset: u32) -> NonNull<u8> {
        debug_assert!(offset as usize + self.block_size() <= self.len());
        // SAFETY: the block at `offset` lies within the memory, by this function's contract.
        unsafe { self.memory.start().add(offset as usize) }
    }

    pub(super) fn offset(&self, start: NonNull<u8>) -> u32 {
        (start.as_ptr().addr() - self.memory.start().as_ptr().addr()) as u32
    }

    /// Touches each page, so that the system provides the memory now.
    ///
    /// # Safety
    ///
    /// No block of the chunk is out.
    pub(super) unsafe fn touch(&self) {
        for offset in (0..self.len()).step_by(4096) {
            // SAFETY: `offset` is less than the length. No block is out, by this function's contract, so nobody else reads or writes there.
            unsafe { self.memory.start().add(offset).write_volatile(0) };
        }
    }

    #[inline]
    pub(super) fn lkey(&self) -> Option<u32> {
        key(self.lkey.load(Relaxed))
    }

    /// There is none for slots, nor for what is received into: no peer may read them.
    #[inline]
    pub(super) fn rkey(&self) -> Option<u32> {
        key(self.rkey.load(Relaxed))
    }

    #[inline]
    pub(super) fn is_registered_in(&self, domain: usize) -> bool {
        self.domain.load(Relaxed) == domain && domain != 0
    }

    pub(super) fn is_registered_for(&self, kind: RegistrationKind) -> bool {
        self.lock_region().as_ref().is_some_and(|registered| registered.kind == kind)
    }

    /// Has it registered for what a kind needs, and only that. No block is out.
    pub(super) fn register(&self, domain: &PoolDomain, kind: RegistrationKind) -> Result<(), Source> {
        if self.is_registered_for(kind) {
            return Ok(());
        }
        self.deregister()?;
        self.publish(Registration::new(self, domain, kind)?);
        Ok(())
    }

    /// Lets the blocks have the keys, also those that are out. It had no registration.
    pub(super) fn publish(&self, registered: Registration) {
        let Registration { region, kind, domain } = &registered;
        self.domain.store(*domain, Relaxed);
        self.lkey.store(IS_KEY | u64::from(region.lkey()), Relaxed);
        self.rkey.store(
            if *kind == RegistrationKind::PeerReadable { IS_KEY | u64::from(region.rkey()) } else { 0 },
            Relaxed,
        );
        self.read_by_processors.store(*kind == RegistrationKind::PeerReadable && region.is_soft(), Relaxed);
        *self.lock_region() = Some(registered);
    }

    #[inline]
    pub(super) fn is_read_by_processors(&self) -> bool {
        self.read_by_processors.load(Relaxed)
    }

    /// On failure it is registered as before.
    pub(super) fn deregister(&self) -> Result<(), Source> {
        let mut place = self.lock_region();
        let Some(Registration { region, kind, domain }) = place.take() else { return Ok(()) };
        if let Err((region, cause)) = region.end() {
            *place = Some(Registration { region, kind, domain });
            return Err(cause);
        }
        self.domain.store(0, Relaxed);
        self.lkey.store(0, Relaxed);
        self.rkey.store(0, Relaxed);
        Ok(())
    }

    fn lock_region(&self) -> std::sync::MutexGuard<'_, Option<Registration>> {
        self.region.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[inline]
fn key(word: u64) -> Option<u32> {
    (word & IS_KEY != 0).then_some(word as u32)
}

impl Drop for Chunk {
    fn drop(&mut self) {
        match self.deregister() {
            // SAFETY: this is the drop; no block is out, and no device has the memory.
            Ok(()) => unsafe { ManuallyDrop::drop(&mut self.memory) },
            Err(cause) => {
                tracing::error!("{} bytes of a pool stay registered, and are leaked: {cause}", self.len());
                // The domain has to stay, too.
                let _kept = ManuallyDrop::new(self.lock_region().take());
            }
        }
    }
}
