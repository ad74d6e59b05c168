//! The atomics that this crate uses: the processor's, or loom's when its tests explore every order.

#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{AtomicU32, AtomicU64, fence};
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, fence};

pub(crate) use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};

/// For what is no part of a protocol, and may be a static.
pub(crate) use core::sync::atomic::AtomicU64 as PlainAtomicU64;
