//! Tests, with an allocator that counts, that the hot path allocates nothing. The program has no
//! test harness, so that only the counted code runs.

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

// SAFETY: every call goes unchanged to the system's allocator, which keeps the contract. The
// counter lies outside the allocated memory, and has no destructor.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller keeps the contract of `GlobalAlloc::alloc`: the layout is not empty.
        // `System` requires nothing else.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `GlobalAlloc::dealloc`: the memory is from
        // `alloc` above, with this layout. `alloc` took it from `System`.
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
