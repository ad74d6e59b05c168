//! What belongs to a transfer slot.
//!
//! a transfer slot is the right to publish one hazard in any peer's segment. Each queue pair belongs to one, so whoever holds the transfer slot
//! may also use the queue pair's sending state.
//!
//! Lock order: a completion queue's poll lock, a receive queue's lock, a transfer slot, a completion queue's push lock or the
//! lock of what a queue pair has published. Nobody holds two transfer slots.

use core::cell::UnsafeCell;
use core::fmt;
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;
use std::sync::Arc;

use crate::node::{TransferSlotGuard, TransferSlots};

/// What may be touched by the holder of one transfer slot only.
pub(crate) struct TransferSlotMutex<T> {
    /// The process's.
    transfer_slots: Arc<TransferSlots>,
    transfer_slot: usize,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached by the holder of a lock only, one at a time.
unsafe impl<T: Send> Sync for TransferSlotMutex<T> {}

/// The value, and its transfer slot.
///
/// A pointer and no reference: a function that takes this by value would promise the reference for as long as it runs, also
/// after it has let go of the transfer slot.
pub(crate) struct TransferSlotMutexGuard<'a, T> {
    guard: TransferSlotGuard<'a>,
    value: NonNull<T>,
    exclusive: PhantomData<&'a mut T>,
}

impl<T> TransferSlotMutex<T> {
    pub(crate) fn new(transfer_slots: Arc<TransferSlots>, transfer_slot: usize, value: T) -> Self {
        Self { transfer_slots, transfer_slot, value: UnsafeCell::new(value) }
    }

    /// Waits for the transfer slot.
    #[inline]
    pub(crate) fn lock(&self) -> TransferSlotMutexGuard<'_, T> {
        let guard = self.transfer_slots.lock(self.transfer_slot);
        self.held(guard)
    }
}

impl<T> TransferSlotMutex<T> {
    /// The value, if nobody has the transfer slot.
    pub(crate) fn try_lock(&self) -> Option<TransferSlotMutexGuard<'_, T>> {
        let guard = self.transfer_slots.try_lock(self.transfer_slot)?;
        Some(self.held(guard))
    }

    #[inline]
    fn held<'a>(&'a self, guard: TransferSlotGuard<'a>) -> TransferSlotMutexGuard<'a, T> {
        // SAFETY: a cell's pointer is not null.
        let value = unsafe { NonNull::new_unchecked(self.value.get()) };
        TransferSlotMutexGuard { guard, value, exclusive: PhantomData }
    }
}

impl<T> TransferSlotMutexGuard<'_, T> {
    /// The transfer slot's number.
    #[inline]
    pub(crate) fn transfer_slot(&self) -> usize {
        self.guard.index()
    }

    /// The value, and the right to the transfer slot.
    #[inline]
    pub(crate) fn parts(&mut self) -> (&mut T, &TransferSlotGuard<'_>) {
        // SAFETY: the transfer slot's lock is held as long as `self` lives, and `self` is borrowed
        // exclusively; the guard is another field.
        (unsafe { self.value.as_mut() }, &self.guard)
    }
}

impl<T> Deref for TransferSlotMutexGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the transfer slot's lock is held as long as `self` lives; there is no other way to the value.
        unsafe { self.value.as_ref() }
    }
}

impl<T> DerefMut for TransferSlotMutexGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the transfer slot's lock is held as long as `self` lives, and `self` is borrowed
        // exclusively.
        unsafe { self.value.as_mut() }
    }
}

impl<T> fmt::Debug for TransferSlotMutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TransferSlotMutex")
            .field("transfer_slot", &self.transfer_slot)
            .finish_non_exhaustive()
    }
}
