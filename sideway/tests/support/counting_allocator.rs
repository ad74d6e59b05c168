//! An allocator that counts the allocations of each thread.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// Use it as the `#[global_allocator]` of a test program.
pub struct CountingAllocator;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
    static LIVE: Cell<i64> = const { Cell::new(0) };
}

/// The number of allocations and reallocations of this thread while `work` ran.
pub fn allocations_during<T>(work: impl FnOnce() -> T) -> (u64, T) {
    let before = COUNT.get();
    let result = work();
    (COUNT.get() - before, result)
}

/// The number of bytes that this thread has allocated but not freed when `work` has ended and only
/// its result is left.
pub fn live_bytes_after<T>(work: impl FnOnce() -> T) -> (i64, T) {
    let before = LIVE.get();
    let result = work();
    (LIVE.get() - before, result)
}

fn count() {
    // A thread that is exiting has no counter any more, and nobody would read it.
    let _ = COUNT.try_with(|count| count.set(count.get() + 1));
}

fn grow(bytes: i64) {
    let _ = LIVE.try_with(|live| live.set(live.get() + bytes));
}

// SAFETY: every call is passed to the system allocator, and counting allocates nothing.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        grow(layout.size() as i64);
        // SAFETY: the caller keeps the contract of `GlobalAlloc`, which is the same for `System`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        grow(layout.size() as i64);
        // SAFETY: the caller keeps the contract of `GlobalAlloc`, which is the same for `System`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count();
        grow(new_size as i64 - layout.size() as i64);
        // SAFETY: the caller keeps the contract of `GlobalAlloc`, which is the same for `System`.
        unsafe { System.realloc(ptr, layout, new_size) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        grow(-(layout.size() as i64));
        // SAFETY: the caller keeps the contract of `GlobalAlloc`, which is the same for `System`.
        unsafe { System.dealloc(ptr, layout) }
    }
}
