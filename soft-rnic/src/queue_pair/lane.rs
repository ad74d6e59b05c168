//! What belongs to a lane.
//!
//! A lane is the right to publish one hazard in any peer's segment. Each queue pair belongs to one, so whoever holds the lane
//! may also use the queue pair's sending state.
//!
//! Lock order: a completion queue's poll lock, a receive queue's lock, a lane, a completion queue's push lock or the
//! lock of what a queue pair has published. Nobody holds two lanes.

use core::cell::UnsafeCell;
use core::fmt;
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;
use std::sync::Arc;

use crate::node::{LaneGuard, Lanes};

/// What may be touched by the holder of one lane only.
pub(crate) struct Laned<T> {
    /// The process's.
    lanes: Arc<Lanes>,
    lane: usize,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached by the holder of a lock only, one at a time.
unsafe impl<T: Send> Sync for Laned<T> {}

/// The value, and its lane.
///
/// A pointer and no reference: a function that takes this by value would promise the reference for as long as it runs, also
/// after it has let go of the lane.
pub(crate) struct Held<'a, T> {
    guard: LaneGuard<'a>,
    value: NonNull<T>,
    exclusive: PhantomData<&'a mut T>,
}

impl<T> Laned<T> {
    pub(crate) fn new(lanes: Arc<Lanes>, lane: usize, value: T) -> Self {
        Self { lanes, lane, value: UnsafeCell::new(value) }
    }

    /// Waits for the lane.
    #[inline]
    pub(crate) fn lock(&self) -> Held<'_, T> {
        let guard = self.lanes.lock(self.lane);
        self.held(guard)
    }
}

impl<T> Laned<T> {
    /// The value, if nobody has the lane.
    pub(crate) fn try_lock(&self) -> Option<Held<'_, T>> {
        let guard = self.lanes.try_lock(self.lane)?;
        Some(self.held(guard))
    }

    #[inline]
    fn held<'a>(&'a self, guard: LaneGuard<'a>) -> Held<'a, T> {
        // SAFETY: a cell's pointer is not null.
        let value = unsafe { NonNull::new_unchecked(self.value.get()) };
        Held { guard, value, exclusive: PhantomData }
    }
}

impl<T> Held<'_, T> {
    /// The lane's number.
    #[inline]
    pub(crate) fn lane(&self) -> usize {
        self.guard.index()
    }

    /// The value, and the right to the lane.
    #[inline]
    pub(crate) fn parts(&mut self) -> (&mut T, &LaneGuard<'_>) {
        // SAFETY: as in `deref_mut`; the guard is another field.
        (unsafe { self.value.as_mut() }, &self.guard)
    }
}

impl<T> Deref for Held<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the lane's lock is held as long as `self` lives; there is no other way to the value.
        unsafe { self.value.as_ref() }
    }
}

impl<T> DerefMut for Held<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`, and `self` is borrowed exclusively.
        unsafe { self.value.as_mut() }
    }
}

impl<T> fmt::Debug for Laned<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Laned").field("lane", &self.lane).finish_non_exhaustive()
    }
}
