//! Transfer slots: the locks that bound how many transfers this process executes at a time.

use std::sync::Arc;

use spin::Yield;
use spin::mutex::{SpinMutex, SpinMutexGuard};

use crate::shared::hazard::TRANSFER_SLOTS;

/// A lock in a separate cache line.
#[derive(Debug, Default)]
#[repr(align(128))]
struct TransferSlot(SpinMutex<(), Yield>);

/// The transfer slots of a process. They lie in private memory, so no peer can hold or corrupt one.
#[derive(Debug)]
pub(crate) struct TransferSlots(Box<[TransferSlot]>);

/// The right to execute a transfer: to publish its hazards, and to use memory of peers.
#[derive(Debug)]
pub(crate) struct TransferSlotGuard<'a> {
    transfer_slots: &'a TransferSlots,
    index: usize,
    _lock: SpinMutexGuard<'a, (), Yield>,
}

impl TransferSlots {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self((0..TRANSFER_SLOTS).map(|_| TransferSlot::default()).collect()))
    }

    /// Waits for a transfer slot; `number` may be any value.
    #[inline]
    pub(crate) fn lock(&self, number: usize) -> TransferSlotGuard<'_> {
        let index = number % TRANSFER_SLOTS;
        let lock = self.0[index].0.lock();
        TransferSlotGuard { transfer_slots: self, index, _lock: lock }
    }

    /// The transfer slot, if it is free.
    pub(crate) fn try_lock(&self, number: usize) -> Option<TransferSlotGuard<'_>> {
        let index = number % TRANSFER_SLOTS;
        let lock = self.0[index].0.try_lock()?;
        Some(TransferSlotGuard { transfer_slots: self, index, _lock: lock })
    }
}

impl TransferSlotGuard<'_> {
    /// The transfer slot's number, below [`TRANSFER_SLOTS`].
    pub(crate) fn index(&self) -> usize {
        self.index
    }

    /// Whether the transfer slot is one of these.
    pub(crate) fn is_of(&self, transfer_slots: &TransferSlots) -> bool {
        core::ptr::eq(self.transfer_slots, transfer_slots)
    }
}

/// A grace period, observed without blocking: it ends when each transfer slot has been free once.
/// After that no transfer uses an object that was unreachable when the period began.
#[derive(Debug)]
pub(crate) struct Quiescence {
    waiting_for: u64,
}

impl Quiescence {
    /// Call this after the object has become unreachable.
    pub(crate) fn new() -> Self {
        const { assert!(TRANSFER_SLOTS <= 64) };
        Self { waiting_for: u64::MAX >> (64 - TRANSFER_SLOTS) }
    }

    /// Checks the transfer slots that have not been free yet. True once all have been.
    pub(crate) fn is_reached(&mut self, transfer_slots: &TransferSlots) -> bool {
        for index in 0..TRANSFER_SLOTS {
            if self.waiting_for >> index & 1 != 0 && transfer_slots.try_lock(index).is_some() {
                self.waiting_for &= !(1 << index);
            }
        }
        self.waiting_for == 0
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn quiescence_needs_each_transfer_slot_once() {
        let transfer_slots = TransferSlots::new();
        let mut quiescence = Quiescence::new();
        let first = transfer_slots.lock(TRANSFER_SLOTS);
        assert_eq!(first.index(), 0);
        assert!(transfer_slots.try_lock(0).is_none());
        assert!(!quiescence.is_reached(&transfer_slots));
        let second = transfer_slots.lock(1);
        drop(first);
        // The second transfer slot was seen free before, so that a later holder does not matter.
        assert!(quiescence.is_reached(&transfer_slots));
        assert!(second.is_of(&transfer_slots) && !second.is_of(&TransferSlots::new()));
    }
}
