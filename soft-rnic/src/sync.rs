//! The atomics that this crate uses: the processor's, or loom's when its tests explore every order.

#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{AtomicU32, AtomicU64, fence};
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, fence};

pub(crate) use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};

/// A full fence right behind a read-modify-write of this thread, on whatever atomic. On x86-64 that was one already: the
/// compiler has only to keep the order (docs/internals/soft-rnic-ordering.md).
#[inline]
pub(crate) fn fence_after_change() {
    if cfg!(all(target_arch = "x86_64", not(any(loom, miri)))) {
        core::sync::atomic::compiler_fence(SeqCst);
    } else {
        fence(SeqCst);
    }
}

/// For what is no part of a protocol, and may be a static.
pub(crate) use core::sync::atomic::AtomicU64 as PlainAtomicU64;
