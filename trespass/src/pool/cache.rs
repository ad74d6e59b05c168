//! A cache of free slots for each thread, so that taking a slot and giving it back needs no lock.
//!
//! A thread that takes slots of a pool has a cache of them; what other threads drop goes to the pool's shared part. `CURRENT` is
//! the cache that the thread has used last, so the common case is one comparison; `OWNED` are all, and ends with the thread.
//! Larger blocks are not kept: moving 64 KiB costs a thousand times what the lock does.

use std::cell::{Cell, RefCell, UnsafeCell};
use std::iter;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use super::block::RawBlock;
use super::classes::BlockUse;
use super::core::PoolCore;

/// How many slots of either side a thread keeps at most: as many as a connection receives and replaces in a turn when it is busy.
pub(super) const MOST: usize = 64;

/// What one thread keeps of one pool.
pub(super) struct Cache {
    /// Which pool's. It lives while a `len` is not 0; its address is its own as long as `weak` is there.
    core: *const PoolCore,
    weak: Weak<PoolCore>,
    capacity: usize,
    /// Those that are sent from, and those that are received into.
    stacks: [SlotStack; 2],
}

struct SlotStack {
    /// How many of the slots are there. Written by the cache's own thread alone; others read it for their statistics.
    len: AtomicUsize,
    slots: UnsafeCell<[MaybeUninit<RawBlock>; MOST]>,
}

impl SlotStack {
    const fn new() -> Self {
        Self { len: AtomicUsize::new(0), slots: UnsafeCell::new([const { MaybeUninit::uninit() }; MOST]) }
    }
}

// SAFETY: only the thread that the cache belongs to touches `slots`: their accessors are `unsafe fn` with that condition, and reach
// the cache through that thread's `CURRENT` and `OWNED`. A `RawBlock` is Send because a `Block` is.
unsafe impl Send for Cache {}
// SAFETY: other threads read `len` alone, which is atomic; `slots` belongs to one thread, as for `Send`.
unsafe impl Sync for Cache {}

/// No pool's: nothing is ever in it.
static NONE: Cache =
    Cache { core: ptr::dangling(), weak: Weak::new(), capacity: 0, stacks: [const { SlotStack::new() }; 2] };

thread_local! {
    /// `NONE`, or one of `OWNED`. It has no drop, so it can be asked for to the thread's last breath.
    static CURRENT: Cell<*const Cache> = const { Cell::new(&raw const NONE) };
    static OWNED: ThreadCaches = const { ThreadCaches(RefCell::new(Vec::new())) };
}

/// All caches of a thread.
struct ThreadCaches(RefCell<Vec<Arc<Cache>>>);

impl Drop for ThreadCaches {
    fn drop(&mut self) {
        CURRENT.set(&raw const NONE);
        // SAFETY: `OWNED` has this thread's caches alone, and this is its end on that thread.
        self.0.take().iter().for_each(|cache| unsafe { cache.end() });
    }
}

#[inline]
fn with_current<R>(with: impl FnOnce(&Cache) -> R) -> R {
    // SAFETY: `NONE` is always there; another cache is in this thread's `OWNED`, out of which it is taken after `CURRENT` was
    // changed. Nothing that is called with it does that.
    with(unsafe { &*CURRENT.get() })
}

/// Takes a slot of a pool out of this thread's cache.
#[inline]
pub(super) fn pop(core: *const PoolCore, block_use: BlockUse) -> Option<RawBlock> {
    // SAFETY: `with_current` gives this thread's own cache.
    with_current(|cache| if cache.core == core { unsafe { cache.pop(block_use, 0) } } else { None })
}

/// Puts a slot back into this thread's cache, if that is of the pool that the block is a slot of, and has room.
///
/// # Safety
///
/// `raw` is a block that is out, and `slots_of` is what its chunk says ([`Chunk::slots_of`](super::chunk::Chunk::slots_of)). If this
/// returns true, nobody uses the block any more.
#[inline]
pub(super) unsafe fn push(slots_of: *const PoolCore, block_use: BlockUse, raw: RawBlock) -> bool {
    with_current(|cache| {
        // SAFETY: a cache's core is never null, so `slots_of` is the core of the pool of `raw`. `PoolState::self_ref` keeps that
        // core as long as a block is out, and `raw` is out by this function's contract. The cache is this thread's own, because
        // `with_current` gives no other, and the contract has nobody use `raw` after this.
        cache.core == slots_of && unsafe { !(*slots_of).is_pressed() && cache.push(block_use, raw) }
    })
}

/// Puts a slot that was lent just now into this thread's cache, which [`attach`] said is the pool's and which has room.
///
/// # Safety
///
/// `raw` was lent just now by the pool of this thread's current cache, and nobody else uses it.
pub(super) unsafe fn keep(block_use: BlockUse, raw: RawBlock) {
    // SAFETY: `with_current` gives this thread's own cache; that `raw` belongs there is this function's contract.
    let kept = with_current(|cache| unsafe { cache.push(block_use, raw) });
    debug_assert!(kept, "the cache has room for half its capacity when it is empty");
}

/// What this thread should give back along with the block that it is giving back: all, if the pool wants it; half, if its cache
/// is full.
///
/// # Safety
///
/// The pool lives until the iterator has ended.
pub(super) unsafe fn excess(core: *const PoolCore) -> impl Iterator<Item = RawBlock> {
    // SAFETY: `core` points to a live pool, by this function's contract: `block::give_back` still has a block that is out.
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
                // SAFETY: `with_current` gives this thread's own cache.
                unsafe { cache.pop(block_use, keep) }
            })
        })
    };
    excess_of(BlockUse::Sending).chain(excess_of(BlockUse::Receiving))
}

/// Has this thread's cache of a pool be the current one, and makes it if there is none. There may be none: a pool has only so
/// many, and a thread that is ending has none.
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
    // Not within the borrow: a pool may end by this, and with it what the program has left there.
    others.iter().filter(|cache| cache.is_stale()).for_each(release);
    true
}

/// Ends a cache of this thread, which is not the current one.
fn release(cache: &Arc<Cache>) {
    // This may be the thread's end, which does the same.
    let _ = OWNED.try_with(|owned| owned.0.borrow_mut().retain(|known| !Arc::ptr_eq(known, cache)));
    // SAFETY: the cache comes from this thread's `OWNED` (`attach`).
    unsafe { cache.end() };
}

/// Gives back what this thread keeps of a pool.
pub(super) fn flush(core: &Arc<PoolCore>) {
    let cache = OWNED
        .try_with(|owned| owned.0.borrow().iter().find(|cache| cache.core == Arc::as_ptr(core)).cloned());
    if let Ok(Some(cache)) = cache {
        // SAFETY: the cache comes from this thread's `OWNED`.
        unsafe { cache.flush_all() };
    }
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

    /// The place of a slot.
    ///
    /// # Safety
    ///
    /// `at` is less than [`MOST`].
    unsafe fn slot(&self, block_use: BlockUse, at: usize) -> *mut MaybeUninit<RawBlock> {
        debug_assert!(at < MOST);
        // SAFETY: the array has `MOST` elements, and `at` is less by this function's contract.
        unsafe { self.stacks[block_use as usize].slots.get().cast::<MaybeUninit<RawBlock>>().add(at) }
    }

    /// Takes one out, if there are more than `keep`.
    ///
    /// # Safety
    ///
    /// The calling thread is the one that the cache belongs to.
    #[inline]
    unsafe fn pop(&self, block_use: BlockUse, keep: usize) -> Option<RawBlock> {
        let len = self.len_of(block_use);
        if len <= keep {
            return None;
        }
        self.stacks[block_use as usize].len.store(len - 1, Relaxed);
        // SAFETY: `len` was at most the capacity, which `Cache::new` bounds by `MOST`. `push` filled this place before it stored that
        // `len`, and no other thread touches `slots`, because this is the cache's own thread (this function's contract).
        Some(unsafe { (*self.slot(block_use, len - 1)).assume_init() })
    }

    /// Puts one in, if there is room.
    ///
    /// # Safety
    ///
    /// The calling thread is the one that the cache belongs to. The block is a slot of the cache's pool, it is out, and nobody uses it
    /// any more if this returns true.
    #[inline]
    unsafe fn push(&self, block_use: BlockUse, raw: RawBlock) -> bool {
        let len = self.len_of(block_use);
        if len >= self.capacity {
            return false;
        }
        // SAFETY: `len` is less than the capacity, which `Cache::new` bounds by `MOST`. No other thread touches `slots`, because this is
        // the cache's own thread (this function's contract).
        unsafe { (*self.slot(block_use, len)).write(raw) };
        self.stacks[block_use as usize].len.store(len + 1, Relaxed);
        true
    }

    /// Whether nobody takes blocks of the pool any more.
    fn is_stale(&self) -> bool {
        self.weak.upgrade().is_none_or(|core| core.is_closed())
    }

    /// Gives everything back.
    ///
    /// # Safety
    ///
    /// The calling thread is the one that the cache belongs to.
    unsafe fn flush_all(&self) {
        if self.len() > 0 {
            // SAFETY: blocks in a cache are out, so `PoolState::self_ref` keeps the pool. `pop` takes each out once, on the cache's own
            // thread (this function's contract).
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

    /// Gives everything back, and is no cache of the pool any more. `CURRENT` is another cache by now.
    ///
    /// # Safety
    ///
    /// The calling thread is the one that the cache belongs to.
    unsafe fn end(&self) {
        // SAFETY: this is the cache's own thread, by this function's contract.
        unsafe { self.flush_all() };
        if let Some(core) = self.weak.upgrade() {
            core.remove_cache(self);
        }
    }
}
