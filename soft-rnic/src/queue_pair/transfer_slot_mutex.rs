//! A mutex over a transfer slot: sending state that only the holder of the slot touches.
//!
//! A transfer slot is the right to publish one hazard in the segment of any peer. Each queue pair
//! is assigned to one, so the holder of the transfer slot may also use the queue pair's sending
//! state.
//!
//! Lock order: the poll lock of a completion queue, the lock of a receive queue, a transfer slot,
//! then the push lock of a completion queue or the lock of a queue pair's published descriptor. No
//! thread holds two transfer slots.

use core::cell::UnsafeCell;
use core::fmt;
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;
use std::sync::Arc;

use crate::node::{TransferSlotGuard, TransferSlots};

/// A value that only the holder of a transfer slot may touch.
pub(crate) struct TransferSlotMutex<T> {
    /// The transfer slots of this process.
    transfer_slots: Arc<TransferSlots>,
    transfer_slot: usize,
    value: UnsafeCell<T>,
}

// SAFETY: only the holder of the transfer slot's lock reaches the value, one thread at a time.
unsafe impl<T: Send> Sync for TransferSlotMutex<T> {}

/// The value, with its transfer slot.
///
/// It contains a pointer instead of a reference. A reference in a by-value argument would have to
/// stay valid until the function returns, even after the function has released the transfer slot.
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
    /// The value, if no thread holds the transfer slot.
    pub(crate) fn try_lock(&self) -> Option<TransferSlotMutexGuard<'_, T>> {
        let guard = self.transfer_slots.try_lock(self.transfer_slot)?;
        Some(self.held(guard))
    }

    #[inline]
    fn held<'a>(&'a self, guard: TransferSlotGuard<'a>) -> TransferSlotMutexGuard<'a, T> {
        // SAFETY: the pointer of an `UnsafeCell` is not null.
        let value = unsafe { NonNull::new_unchecked(self.value.get()) };
        TransferSlotMutexGuard { guard, value, exclusive: PhantomData }
    }
}

impl<T> TransferSlotMutexGuard<'_, T> {
    /// The number of the transfer slot.
    #[inline]
    pub(crate) fn transfer_slot(&self) -> usize {
        self.guard.index()
    }

    /// The value, and the right to use the transfer slot.
    #[inline]
    pub(crate) fn parts(&mut self) -> (&mut T, &TransferSlotGuard<'_>) {
        // SAFETY: `self` holds the lock of the transfer slot and is borrowed exclusively. The guard
        // is another field.
        (unsafe { self.value.as_mut() }, &self.guard)
    }
}

impl<T> Deref for TransferSlotMutexGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: `self` holds the lock of the transfer slot, which guards every access to the
        // value.
        unsafe { self.value.as_ref() }
    }
}

impl<T> DerefMut for TransferSlotMutexGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: `self` holds the lock of the transfer slot and is borrowed exclusively.
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
