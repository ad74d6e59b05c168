//! The hot path allocates nothing: shown by an allocator that counts. Without the harness, so that nothing but what is counted runs.

#![allow(
    unused_imports,
    reason = "the protocol's own unit tests come along with it, and are of no use without the harness"
)]

#[cfg(feature = "rdma")]
mod calls;
#[path = "../../src/corpus.rs"]
#[allow(dead_code)]
mod corpus;
#[path = "../../src/protocol/mod.rs"]
#[allow(dead_code)]
mod protocol;
mod protocol_alone;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// How often this thread has allocated.
fn allocated() -> u64 {
    ALLOCATIONS.get()
}

struct CountingAllocator;

// SAFETY: every call is handed on to the system's allocator as it came; the counter is apart from the memory, and has no destructor.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: `GlobalAlloc::alloc` requires a layout that is not empty, which is all that `System` requires.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: `GlobalAlloc::dealloc` requires memory of this allocator with its layout, and `alloc` above took it from `System`.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

fn main() {
    protocol_alone::run();
    #[cfg(feature = "rdma")]
    calls::run();
}
