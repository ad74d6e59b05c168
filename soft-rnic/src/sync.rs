//! The atomics that this crate uses: the processor's, or loom's when its tests explore every order.

#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{AtomicU32, AtomicU64, fence};
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, fence};

pub(crate) use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};

/// A full fence directly after a read-modify-write by this thread, on any atomic. On x86-64 the
/// read-modify-write is a full fence already, so only the compiler must keep the order
/// (docs/internals/soft-rnic-ordering.md).
#[inline]
pub(crate) fn fence_after_change() {
    if cfg!(all(target_arch = "x86_64", not(any(loom, miri)))) {
        core::sync::atomic::compiler_fence(SeqCst);
    } else {
        fence(SeqCst);
    }
}

/// For values that belong to no protocol, and may be in a `static`.
pub(crate) use core::sync::atomic::AtomicU64 as PlainAtomicU64;
