//! Thread-local caches of slots: taking and returning one there touches no shared memory.
//!
//! A thread that takes slots of a pool has a cache of them; slots dropped in other threads go to
//! the pool's shared part. `CURRENT` is the cache that the thread used last, so that the common
//! case is one comparison. `OWNED` holds all caches, and ends with the thread. Larger blocks are
//! not cached, because moving 64 KiB costs a thousand times as much as the lock.

use std::cell::{Cell, RefCell, UnsafeCell};
use std::iter;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use super::block::RawBlock;
use super::classes::BlockUse;
use super::core::PoolCore;

/// The most slots of either side in a thread's cache: as many as a busy connection receives and
/// reposts in a turn.
pub(super) const MOST: usize = 64;

/// One thread's cache of one pool.
pub(super) struct Cache {
    /// The pool. It lives while a `len` is not 0; its address is not reused while `weak` exists.
    core: *const PoolCore,
    weak: Weak<PoolCore>,
    capacity: usize,
    /// The slots for sending, and those for receiving.
    stacks: [SlotStack; 2],
}

struct SlotStack {
    /// The number of slots. Only the cache's thread writes it; others read it for statistics.
    len: AtomicUsize,
    slots: UnsafeCell<[MaybeUninit<RawBlock>; MOST]>,
}

impl SlotStack {
    const fn new() -> Self {
        Self { len: AtomicUsize::new(0), slots: UnsafeCell::new([const { MaybeUninit::uninit() }; MOST]) }
    }
}

// SAFETY: only the cache's thread touches `slots`: their accessors are `unsafe fn` with that
// condition, and reach the cache through that thread's `CURRENT` and `OWNED`. A `RawBlock` is Send
// because a `Block` is.
unsafe impl Send for Cache {}
// SAFETY: other threads read `len` alone, which is atomic; `slots` belongs to one thread, as for
// `Send`.
unsafe impl Sync for Cache {}

/// The cache of no pool, which is always empty.
static NONE: Cache =
    Cache { core: ptr::dangling(), weak: Weak::new(), capacity: 0, stacks: [const { SlotStack::new() }; 2] };

thread_local! {
    /// `NONE`, or one of `OWNED`. It has no destructor, so it is accessible until the thread's end.
    static CURRENT: Cell<*const Cache> = const { Cell::new(&raw const NONE) };
    static OWNED: ThreadCaches = const { ThreadCaches(RefCell::new(Vec::new())) };
}

/// All caches of a thread.
struct ThreadCaches(RefCell<Vec<Arc<Cache>>>);

impl Drop for ThreadCaches {
    fn drop(&mut self) {
        CURRENT.set(&raw const NONE);
        // SAFETY: `OWNED` holds this thread's caches alone, and this drop runs on that thread.
        self.0.take().iter().for_each(|cache| unsafe { cache.end() });
    }
}

#[inline]
fn with_current<R>(with: impl FnOnce(&Cache) -> R) -> R {
    // SAFETY: `NONE` is static; any other cache is in this thread's `OWNED`, from which it is
    // removed only after `CURRENT` was changed. The function that gets it changes neither.
    with(unsafe { &*CURRENT.get() })
}

/// Takes a slot of a pool from this thread's cache.
#[inline]
pub(super) fn pop(core: *const PoolCore, block_use: BlockUse) -> Option<RawBlock> {
    // SAFETY: `with_current` passes a cache of this thread.
    with_current(|cache| if cache.core == core { unsafe { cache.pop(block_use, 0) } } else { None })
}

/// Puts a slot back into this thread's cache, if the cache belongs to the slot's pool and has room.
///
/// # Safety
///
/// `raw` is a lent block, and `slots_of` is the value from its chunk
/// ([`Chunk::slots_of`](super::chunk::Chunk::slots_of)). If this returns true, no code uses the
/// block any more.
#[inline]
pub(super) unsafe fn push(slots_of: *const PoolCore, block_use: BlockUse, raw: RawBlock) -> bool {
    with_current(|cache| {
        // SAFETY: a cache's core is never null, so `slots_of` is the core of the pool of `raw`.
        // `PoolState::self_ref` keeps that core while a block is lent, and the caller guarantees
        // that `raw` is. The cache belongs to this thread, because `with_current` passes no other,
        // and the caller guarantees that no code uses `raw` after this.
        cache.core == slots_of && unsafe { !(*slots_of).is_pressed() && cache.push(block_use, raw) }
    })
}

/// Puts a slot that was just lent into this thread's cache, for which [`attach`] has checked that
/// it is the pool's and has room.
///
/// # Safety
///
/// The pool of this thread's current cache has just lent `raw`, and no other code uses it.
pub(super) unsafe fn keep(block_use: BlockUse, raw: RawBlock) {
    // SAFETY: `with_current` passes a cache of this thread, and the caller guarantees that `raw`
    // belongs there.
    let kept = with_current(|cache| unsafe { cache.push(block_use, raw) });
    debug_assert!(kept, "the cache has room for half its capacity when it is empty");
}

/// The blocks that this thread should return along with another one: all if the pool is short, half
/// if its cache is full.
///
/// # Safety
///
/// The pool lives until the iterator has ended.
pub(super) unsafe fn excess(core: *const PoolCore) -> impl Iterator<Item = RawBlock> {
    // SAFETY: the caller guarantees that `core` points to a live pool: `block::give_back` still has
    // a lent block.
    let pressed = unsafe { (*core).is_pressed() };
    let excess_of = move |block_use: BlockUse| {
        let keep = with_current(|cache| match cache.len_of(block_use) {
            _ if pressed => 0,
            len if len == cache.capacity => len / 2,
            _ => MOST,
        });
        iter::from_fn(move || {
            with_current(|cache| {
                if cache.core != core {
                    return None;
                }
                // SAFETY: `with_current` passes a cache of this thread.
                unsafe { cache.pop(block_use, keep) }
            })
        })
    };
    excess_of(BlockUse::Sending).chain(excess_of(BlockUse::Receiving))
}

/// Makes this thread's cache of a pool the current one, creating it if necessary. It fails if the
/// pool has reached its limit of caches, or the thread is ending.
pub(super) fn attach(core: &Arc<PoolCore>) -> bool {
    if with_current(|cache| cache.core == Arc::as_ptr(core)) {
        return true;
    }
    let attached = OWNED.try_with(|owned| {
        let mut caches = owned.0.borrow_mut();
        if let Some(cache) = caches.iter().find(|cache| cache.core == Arc::as_ptr(core)) {
            CURRENT.set(Arc::as_ptr(cache));
            return Some(Vec::new());
        }
        let cache = core.add_cache()?;
        CURRENT.set(Arc::as_ptr(&cache));
        let others = caches.clone();
        caches.push(cache);
        Some(others)
    });
    let Ok(Some(others)) = attached else { return false };
    // Outside of the borrow, because this may end a pool, and with it values that the program has
    // left there.
    others.iter().filter(|cache| cache.is_stale()).for_each(release);
    true
}

/// Ends a cache of this thread, which is not the current one.
fn release(cache: &Arc<Cache>) {
    // At the thread's end `OWNED` is gone, and its drop does the same.
    let _ = OWNED.try_with(|owned| owned.0.borrow_mut().retain(|known| !Arc::ptr_eq(known, cache)));
    // SAFETY: the cache comes from this thread's `OWNED` (`attach`).
    unsafe { cache.end() };
}

/// Returns the slots in this thread's cache of a pool.
pub(super) fn flush(core: &Arc<PoolCore>) {
    let cache = OWNED
        .try_with(|owned| owned.0.borrow().iter().find(|cache| cache.core == Arc::as_ptr(core)).cloned());
    if let Ok(Some(cache)) = cache {
        // SAFETY: the cache comes from this thread's `OWNED`.
        unsafe { cache.flush_all() };
    }
}

/// Returns the slots in all of this thread's caches. A pool lives as long as a thread caches a slot
/// of it, so a thread that stays calls this before it sleeps.
pub(crate) fn flush_thread() {
    let caches = OWNED.try_with(|owned| owned.0.borrow().clone()).unwrap_or_default();
    // SAFETY: the caches come from this thread's `OWNED`.
    caches.iter().for_each(|cache| unsafe { cache.flush_all() });
}

impl Cache {
    pub(super) fn new(core: &Arc<PoolCore>, capacity: usize) -> Self {
        Self {
            core: Arc::as_ptr(core),
            weak: Arc::downgrade(core),
            capacity: capacity.min(MOST),
            stacks: [const { SlotStack::new() }; 2],
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len_of(BlockUse::Sending) + self.len_of(BlockUse::Receiving)
    }

    fn len_of(&self, block_use: BlockUse) -> usize {
        self.stacks[block_use as usize].len.load(Relaxed)
    }

    /// The address of a slot.
    ///
    /// # Safety
    ///
    /// `at` is less than [`MOST`].
    unsafe fn slot(&self, block_use: BlockUse, at: usize) -> *mut MaybeUninit<RawBlock> {
        debug_assert!(at < MOST);
        // SAFETY: the array has `MOST` elements, and the caller guarantees that `at` is less.
        unsafe { self.stacks[block_use as usize].slots.get().cast::<MaybeUninit<RawBlock>>().add(at) }
    }

    /// Takes a slot out, if the cache has more than `keep`.
    ///
    /// # Safety
    ///
    /// The calling thread is the cache's thread.
    #[inline]
    unsafe fn pop(&self, block_use: BlockUse, keep: usize) -> Option<RawBlock> {
        let len = self.len_of(block_use);
        if len <= keep {
            return None;
        }
        self.stacks[block_use as usize].len.store(len - 1, Relaxed);
        // SAFETY: `len` was at most the capacity, which `Cache::new` bounds by `MOST`. `push`
        // filled this place before it stored that `len`, and no other thread touches `slots`,
        // because the caller runs on the cache's thread.
        Some(unsafe { (*self.slot(block_use, len - 1)).assume_init() })
    }

    /// Puts a slot in, if there is room; returns whether it did.
    ///
    /// # Safety
    ///
    /// The calling thread is the cache's thread. The block is a lent slot of the cache's pool, and
    /// no code uses it any more if this returns true.
    #[inline]
    unsafe fn push(&self, block_use: BlockUse, raw: RawBlock) -> bool {
        let len = self.len_of(block_use);
        if len >= self.capacity {
            return false;
        }
        // SAFETY: `len` is less than the capacity, which `Cache::new` bounds by `MOST`. No other
        // thread touches `slots`, because the caller runs on the cache's thread.
        unsafe { (*self.slot(block_use, len)).write(raw) };
        self.stacks[block_use as usize].len.store(len + 1, Relaxed);
        true
    }

    /// Whether no handle of the pool exists any more. A forked child keeps the caches of its parent's
    /// pools.
    fn is_stale(&self) -> bool {
        self.weak.upgrade().is_none_or(|core| core.process.is_current() && core.is_closed())
    }

    /// Returns all slots to the pool.
    ///
    /// # Safety
    ///
    /// The calling thread is the cache's thread.
    unsafe fn flush_all(&self) {
        if self.len() > 0 {
            // SAFETY: blocks in a cache are lent, so `PoolState::self_ref` keeps the pool. `pop`
            // takes each out once, and the caller runs on the cache's thread.
            unsafe {
                PoolCore::give_back(
                    self.core,
                    iter::from_fn(|| {
                        self.pop(BlockUse::Sending, 0).or_else(|| self.pop(BlockUse::Receiving, 0))
                    }),
                )
            };
        }
    }

    /// Returns all slots, and detaches the cache from the pool. `CURRENT` is another cache by now.
    ///
    /// # Safety
    ///
    /// The calling thread is the cache's thread.
    unsafe fn end(&self) {
        // SAFETY: the caller guarantees that this is the cache's thread.
        unsafe { self.flush_all() };
        if let Some(core) = self.weak.upgrade().filter(|core| core.process.is_current()) {
            core.remove_cache(self);
        }
    }
}
