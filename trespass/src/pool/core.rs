//! The shared core of a pool's handles: lending, returning, and growing.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

#[cfg(feature = "rdma")]
use sideway::ibverbs::protection_domain::ProtectionDomain;

use super::block::RawBlock;
use super::cache::{self, Cache};
use super::chunk::Chunk;
use super::classes::{BlockUse, CHUNK_UNIT, Class, SIZES};
use super::config::{HugePages, PoolConfig};
use super::high_water::{DeferredEffects, Watcher, WaterMarks};
use super::memory::{ChunkMemory, DomainSet};
use super::registrations::Registrations;
use super::state::{ChunkPurpose, ClassCount, PoolLimits, PoolState};
use super::stats::{ClassStats, PoolStats};
use super::{Pool, PoolError, Source};
use crate::process::Process;

/// The log message for memory that cannot be had.
pub(crate) const DOES_NOT_GROW: &str = "the pool does not grow";

/// The pause after the system has refused memory, or the device its registration.
const PAUSE: Duration = Duration::from_secs(1);

/// The part of the maximum that all threads' caches together may hold, for slots of either side.
pub(super) const CACHED_PART: usize = 8;

pub(super) struct PoolCore {
    pub(super) config: PoolConfig,
    /// A forked child returns nothing to its copy of the pool, because a thread that the child does
    /// not have may hold the lock for ever.
    pub(super) process: Process,
    pub(super) limits: PoolLimits,
    pub(super) registrations: Arc<Registrations>,
    huge_pages: HugePages,
    /// The capacity of a thread's cache for slots of either side, and the largest number of such
    /// threads.
    cache_capacity: usize,
    most_caches: usize,
    /// The pool is empty or closed, so dropped slots go to the shared part instead of a cache.
    pressed: AtomicBool,
    /// Another pool without a device, for connections that need none while the device registers no
    /// more.
    pub(super) plain: OnceLock<Pool>,
    /// Whether a device has failed, so that new connections use another pool.
    pub(super) given_up: AtomicBool,
    state: Mutex<PoolState>,
    /// Held while chunks are created or registered, which takes long; locked before `state`, never
    /// after it. It guards the domains that chunks are registered in.
    growth: Mutex<Option<DomainSet>>,
}

impl PoolCore {
    /// Creates the initial memory. The configuration has been checked.
    pub(super) fn new(config: &PoolConfig, domains: Option<DomainSet>) -> Result<Arc<Self>, PoolError> {
        let max = config.max / CHUNK_UNIT * CHUNK_UNIT;
        // At least eight threads can have a cache, and it is large enough to be useful.
        let cache_capacity = (max / CACHED_PART / 16 / config.slot_size).clamp(4, cache::MOST);
        let state = PoolState::new(WaterMarks::new(max, config.high_water));
        let core = Arc::new(Self {
            config: config.clone(),
            process: Process::current(),
            limits: PoolLimits {
                max,
                parts: config.parts(max),
                margin: config.receive_margin,
                slot_size: config.slot_size,
            },
            registrations: Arc::new(Registrations::new(config.registrations, domains.clone())),
            huge_pages: config.huge_pages,
            cache_capacity,
            most_caches: max / CACHED_PART / (2 * cache_capacity * config.slot_size),
            pressed: AtomicBool::new(false),
            plain: OnceLock::new(),
            given_up: AtomicBool::new(false),
            state: Mutex::new(state),
            growth: Mutex::new(domains),
        });
        core.allocate_initial(config)?;
        Ok(core)
    }

    fn allocate_initial(&self, config: &PoolConfig) -> Result<(), PoolError> {
        let domains = self.lock_growth();
        let prewarmed = config.prewarm.next_multiple_of(CHUNK_UNIT).min(self.limits.max);
        let slots = (prewarmed / 2).next_multiple_of(CHUNK_UNIT);
        // The blocks that connections need first, if the pool serves connections.
        let block_use = if config.receive_slots > 0 { BlockUse::Receiving } else { BlockUse::Sending };
        for (class, bytes) in [(Class::slot(block_use), slots), (Class::MIDDLE, prewarmed - slots)] {
            for len in pieces(bytes, self.limits.large_chunk()) {
                let chunk = self.make(len, domains.as_ref())?;
                // SAFETY: the chunk was just created and is not carved, so it has no blocks.
                unsafe { chunk.touch() };
                self.register(&chunk, domains.as_ref(), class)?;
                self.lock().carve(chunk.index, class, &self.limits);
            }
        }
        let initial = config.initial.next_multiple_of(CHUNK_UNIT).min(self.limits.max);
        for len in pieces(initial - prewarmed, self.limits.large_chunk()) {
            self.make(len, domains.as_ref())?;
        }
        Ok(())
    }

    /// Creates a spare chunk that is not counted yet.
    fn make(&self, len: usize, domains: Option<&DomainSet>) -> Result<Arc<Chunk>, PoolError> {
        self.lock().made += len;
        self.make_counted(len, domains).map_err(|source| PoolError::Memory { bytes: len, source })
    }

    /// Creates a chunk that is counted already; a failure uncounts it.
    fn make_counted(&self, len: usize, domains: Option<&DomainSet>) -> Result<Arc<Chunk>, Source> {
        let memory = ChunkMemory::make(len, self.huge_pages, domains);
        let mut state = self.lock();
        match memory {
            Ok(memory) => {
                let chunk = Arc::new(Chunk::new(memory, state.entries.len(), self));
                state.add(chunk.clone());
                Ok(chunk)
            }
            Err(cause) => {
                state.made -= len;
                Err(cause)
            }
        }
    }

    fn register(&self, chunk: &Chunk, domains: Option<&DomainSet>, class: Class) -> Result<(), PoolError> {
        let Some(domains) = domains else { return Ok(()) };
        let bytes = chunk.len();
        chunk.register(domains, class.kind()).map_err(|source| PoolError::Register { bytes, source })
    }

    fn lock(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_growth(&self) -> MutexGuard<'_, Option<DomainSet>> {
        self.growth.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    pub(super) fn is_pressed(&self) -> bool {
        self.pressed.load(Relaxed)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// Lends a block that is not in this thread's cache, of a class or of a larger one.
    #[inline(never)]
    pub(super) fn lend(self: &Arc<Self>, class: Class) -> Option<RawBlock> {
        let cached = class.is_slot() && cache::attach(self);
        if cached && let Some(raw) = cache::pop(Arc::as_ptr(self), class.block_use()) {
            return Some(raw);
        }
        if let Some(raw) = self.lend_free(class, cached) {
            return Some(raw);
        }
        while self.provide_blocks(class) {
            if let Some(raw) = self.lend_free(class, cached) {
                return Some(raw);
            }
            // Other threads have taken all of it.
        }
        if let Some(raw) = class.and_larger().skip(1).find_map(|class| self.lend_free(class, false)) {
            return Some(raw);
        }
        self.lock().counts[class.index()].empty += 1;
        self.pressed.store(true, Relaxed);
        None
    }

    /// Lends a slot that stays posted while its connection exists, if enough remain for arriving
    /// data.
    pub(super) fn lend_standing(self: &Arc<Self>) -> Option<RawBlock> {
        if !self.lock().has_room_for_standing(&self.limits) {
            return None;
        }
        self.lend(Class::slot(BlockUse::Receiving))
    }

    /// Lends a free block. If this thread's cache is empty, it also takes some for the cache.
    fn lend_free(self: &Arc<Self>, class: Class, cached: bool) -> Option<RawBlock> {
        let mut state = self.lock();
        let raw = state.lend(class)?;
        if cached {
            // A thread caches nothing that others will soon lack.
            let more = (self.cache_capacity / 2).min(state.counts[class.index()].free / 4);
            let extra = (0..more).filter_map(|_| state.lend(class));
            // SAFETY: the state has just lent each block, and `cached` says that this thread's
            // current cache is this pool's (`attach`).
            extra.for_each(|raw| unsafe { cache::keep(class.block_use(), raw) });
        }
        if state.self_ref.is_none() {
            state.self_ref = Some(self.clone());
        }
        let effects = self.after_change(&mut state);
        drop(state);
        if let Some(effects) = effects {
            effects.run();
        }
        Some(raw)
    }

    /// Takes blocks back. This may end the pool.
    ///
    /// # Safety
    ///
    /// `core` is the pool of the blocks, each of which was lent, and no code uses them any more.
    /// The iterator must return the first one without accessing the pool.
    pub(super) unsafe fn give_back(core: *const Self, raws: impl IntoIterator<Item = RawBlock>) {
        // SAFETY: the caller guarantees that the blocks are lent, so `PoolState::self_ref` keeps
        // the pool until it is dropped with the effects. The reference is not used after that.
        let core = unsafe { &*core };
        if !core.process.is_current() {
            return;
        }
        // SAFETY: the caller guarantees the same.
        let effects = unsafe { core.take_back(raws) };
        if let Some(effects) = effects {
            effects.run();
        }
    }

    /// # Safety
    ///
    /// Each of the blocks belongs to this pool, was lent, and is not used any more.
    unsafe fn take_back(&self, raws: impl IntoIterator<Item = RawBlock>) -> Option<DeferredEffects> {
        let mut state = self.lock();
        let mut chunks = Vec::new();
        for raw in raws {
            // SAFETY: the caller guarantees that this pool lent each block, and that no code uses
            // it any more.
            chunks.extend(unsafe { state.take_back(raw) });
        }
        if !state.closed && self.is_pressed() {
            self.pressed.store(false, Relaxed);
        }
        let effects = self.after_change(&mut state);
        if effects.is_none() && chunks.is_empty() && state.waiting.is_empty() {
            return None;
        }
        let wakers = std::mem::take(&mut state.waiting);
        Some(DeferredEffects { wakers, chunks, ..effects.unwrap_or_default() })
    }

    /// The effects of a change in the lent bytes.
    fn after_change(&self, state: &mut PoolState) -> Option<DeferredEffects> {
        let in_use = state.in_use(self.limits.slot_size);
        state.most_in_use = state.most_in_use.max(in_use);
        let crossing = state.marks.cross(in_use);
        let self_ref = if state.lent() == 0 { state.self_ref.take() } else { None };
        if crossing.is_none() && self_ref.is_none() {
            return None;
        }
        let watchers = if crossing.is_some() { state.watchers.clone() } else { Vec::new() };
        Some(DeferredEffects { crossing, watchers, self_ref, ..DeferredEffects::default() })
    }

    /// Provides more free blocks of a class. Existing memory comes first: it is touched, and
    /// registered.
    fn provide_blocks(&self, class: Class) -> bool {
        let domains = self.lock_growth();
        let mut state = self.lock();
        // Another thread may have grown the pool in between.
        if state.counts[class.index()].free > 0 || state.recarve(class, &self.limits) {
            return true;
        }
        if state.ask_again.is_none_or(|at| Instant::now() >= at) {
            let spare = state.reserve_spare(class, &self.limits);
            drop(state);
            if spare.is_some_and(|chunk| self.put_into_use(&chunk, domains.as_ref(), class)) {
                return true;
            }
            if self.grow(domains.as_ref(), class) {
                return true;
            }
            state = self.lock();
        }
        let Some(chunk) = state.reserve_other(class, &self.limits) else { return false };
        drop(state);
        self.put_into_use(&chunk, domains.as_ref(), class)
    }

    /// Creates another chunk if the limit allows.
    fn grow(&self, domains: Option<&DomainSet>, class: Class) -> bool {
        let Some(len) = self.lock().reserve_new(class, &self.limits) else { return false };
        match self.make_counted(len, domains) {
            Ok(chunk) => self.put_into_use(&chunk, domains, class),
            Err(source) => self.was_refused(&PoolError::Memory { bytes: len, source }),
        }
    }

    /// Carves an unused chunk into blocks of a class.
    fn put_into_use(&self, chunk: &Chunk, domains: Option<&DomainSet>, class: Class) -> bool {
        match self.register(chunk, domains, class) {
            Ok(()) => {
                let mut state = self.lock();
                state.carve(chunk.index, class, &self.limits);
                state.registers_no_more = false;
                true
            }
            Err(error) => {
                self.lock().entries[chunk.index].purpose = ChunkPurpose::Spare;
                self.was_refused(&error)
            }
        }
    }

    #[cold]
    fn was_refused(&self, error: &PoolError) -> bool {
        tracing::warn!("{DOES_NOT_GROW}: {error}");
        let mut state = self.lock();
        state.refused += 1;
        state.registers_no_more |= matches!(error, PoolError::Register { .. });
        state.ask_again = Some(Instant::now() + PAUSE);
        false
    }

    /// Whether the device has refused to register memory, and has registered none since.
    pub(super) fn is_refused(&self) -> bool {
        self.lock().registers_no_more
    }

    /// Unregistered memory for the time in which registration is refused; otherwise connections
    /// that need no device would wait for ever.
    pub(super) fn plain(&self) -> Option<&Pool> {
        let is_refused = self.is_refused();
        if is_refused && self.plain.get().is_none() {
            let config = PoolConfig { initial: 0, prewarm: 0, ..self.config.clone() };
            // Creating an empty pool of a valid configuration does not fail.
            let made = PoolCore::new(&config, None).map(Pool::of);
            made.map(|pool| self.plain.set(pool))
                .inspect_err(|error| tracing::warn!("no other pool: {error}"))
                .ok();
        }
        self.plain.get().filter(|_| is_refused)
    }

    /// Registers everything that is in use or prewarmed, and later everything that comes into use.
    #[cfg(feature = "rdma")]
    pub(super) fn register_with(&self, domains: &DomainSet) -> Result<(), PoolError> {
        let mut place = self.lock_growth();
        match &*place {
            Some(known) if known == domains => return Ok(()),
            Some(_) => return Err(PoolError::OtherDomain),
            None => {}
        }
        let carved: Vec<_> = self
            .lock()
            .entries
            .iter()
            .filter_map(|entry| match entry.purpose {
                ChunkPurpose::Blocks(class) => Some((entry.chunk.clone()?, class)),
                _ => None,
            })
            .collect();
        for (at, (chunk, class)) in carved.iter().enumerate() {
            if let Err(error) = self.register(chunk, Some(domains), *class) {
                for (chunk, _) in &carved[..at] {
                    if let Err(cause) = chunk.deregister() {
                        tracing::error!("{} bytes of a pool stay registered: {cause}", chunk.len());
                    }
                }
                return Err(error);
            }
        }
        *place = Some(domains.clone());
        self.registrations.set_domains(domains);
        Ok(())
    }

    /// Notes that the device of that domain has failed; returns whether the pool uses it.
    #[cfg(feature = "rdma")]
    pub(super) fn give_up(&self, domain: &ProtectionDomain) -> bool {
        let is_its = self.lock_growth().as_ref().is_some_and(|known| known.position(domain).is_some());
        self.given_up.fetch_or(is_its, Relaxed);
        is_its
    }

    pub(super) fn domains(&self) -> Option<DomainSet> {
        self.lock_growth().clone()
    }

    /// Creates a cache for this thread, below the limit of caches.
    pub(super) fn add_cache(self: &Arc<Self>) -> Option<Arc<Cache>> {
        let mut state = self.lock();
        if state.closed || state.caches.len() >= self.most_caches {
            return None;
        }
        let cache = Arc::new(Cache::new(self, self.cache_capacity));
        state.caches.push(cache.clone());
        Some(cache)
    }

    pub(super) fn remove_cache(&self, cache: &Cache) {
        self.lock().caches.retain(|known| !std::ptr::eq(&**known, cache));
    }

    pub(super) fn watch(&self, watcher: Watcher) {
        self.lock().watchers.push(watcher);
    }

    /// Registers a waker for later returns; gives the number of returns so far.
    pub(super) fn wait(&self, waker: &Waker) -> u64 {
        // Cloning and dropping a waker runs the program's code, so both happen outside of the lock.
        let mut waker = Some(waker.clone());
        let mut state = self.lock();
        let is_new = |new: &Waker| !state.waiting.iter().any(|known| known.will_wake(new));
        if let Some(new) = waker.take_if(|new| is_new(new)) {
            state.waiting.push(new);
        }
        let returns = state.returns;
        drop(state);
        self.pressed.store(true, Relaxed);
        returns
    }

    /// Handles the drop of the last handle.
    pub(super) fn close(self: &Arc<Self>) {
        if !self.process.is_current() {
            // The chunks are registered by the parent, which goes on using them.
            return std::mem::forget(self.clone());
        }
        let chunks = self.lock().close();
        self.pressed.store(true, Relaxed);
        drop(chunks);
        cache::flush(self);
    }

    pub(super) fn stats(&self) -> PoolStats {
        let state = self.lock();
        let slot_size = self.limits.slot_size;
        let cached = state.cached();
        let registered = |chunk: &Arc<Chunk>| if chunk.is_registered() { chunk.len() } else { 0 };
        let class = |n: usize| {
            let (class, [sending, receiving]) = (Class(n as u8), [state.counts[n], state.counts[n + SIZES]]);
            let kept = if class.is_slot() { cached } else { 0 };
            let out = |count: &ClassCount| count.blocks - count.free;
            ClassStats {
                size: class.size(slot_size),
                blocks: sending.blocks + receiving.blocks,
                in_use: (out(&sending) + out(&receiving)).saturating_sub(kept),
                empty: sending.empty + receiving.empty,
            }
        };
        PoolStats {
            made: state.made,
            max: self.limits.max,
            registered: state.entries.iter().filter_map(|entry| entry.chunk.as_ref()).map(registered).sum(),
            in_use: state.in_use(slot_size),
            cached: cached * slot_size,
            most_in_use: state.most_in_use,
            refused: state.refused,
            adopted: self.registrations.stats(),
            classes: std::array::from_fn(class),
        }
    }
}

/// Divides `bytes` into pieces of at most `most` bytes.
fn pieces(bytes: usize, most: usize) -> impl Iterator<Item = usize> {
    (0..bytes).step_by(most).map(move |at| most.min(bytes - at))
}

#[cfg(all(test, unix, not(miri), not(loom)))]
mod tests {
    use super::*;
    use crate::process::passes_in_child;

    /// Another thread may be in the pool when a thread forks.
    #[test]
    fn a_forked_child_waits_for_no_lock_of_its_parents_pool() {
        let make = || Pool::new(&PoolConfig { initial: 0, prewarm: 0, ..PoolConfig::default() }).unwrap();
        let pool = make();
        // This thread has a cache from now on, with a slot.
        drop(pool.take(1).unwrap());
        let core = pool.core.clone();
        let adopted = [pool.adopt(vec![1; 32 << 10]), pool.adopt(vec![2; 32 << 10])];
        let mut copies = Some((pool.take(64 << 10).unwrap(), adopted, pool));
        let held = (core.lock(), core.registrations.lock());
        let passes = passes_in_child(|| {
            let (_block, [dropped, reclaimed], _pool) = copies.take().unwrap();
            drop(dropped);
            assert!(reclaimed.into_vec().is_err());
            // A cache of another pool ends those that are stale.
            drop(make().take(1).unwrap());
            cache::flush_thread();
            true
        });
        drop(held);
        assert!(passes, "the child waits for the lock");
    }
}
