//! Counters of the payload sent to a peer, by path.

use core::sync::atomic::Ordering::Relaxed;

use super::transfer_slot::TransferSlotGuard;
use crate::shared::hazard::TRANSFER_SLOTS;
use crate::status::{Moved, Traffic};
use crate::sync::PlainAtomicU64 as AtomicU64;

/// The path of a message, which is the path of its slowest piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PayloadPath {
    /// To this process itself.
    Own,
    /// Through the receive's slot in the peer's segment.
    Slot,
    Direct,
    Vm,
    Call,
}

const ROUTES: usize = 5;

/// Messages and bytes by [`PayloadPath`], of one transfer slot.
#[derive(Debug, Default)]
#[repr(align(128))]
struct SlotCounters {
    routes: [[AtomicU64; 2]; ROUTES],
    vm_calls: AtomicU64,
}

/// The counters of one peer. Each transfer slot has separate ones, so that its holder adds with a
/// load and a store.
#[derive(Debug)]
pub(crate) struct TrafficCounters(Box<[SlotCounters]>);

impl Default for TrafficCounters {
    fn default() -> Self {
        Self((0..TRANSFER_SLOTS).map(|_| SlotCounters::default()).collect())
    }
}

impl TrafficCounters {
    /// Counts a message of `bytes` bytes.
    #[inline]
    pub(crate) fn add(&self, transfer_slot: &TransferSlotGuard<'_>, path: PayloadPath, bytes: usize) {
        let [messages, moved] = &self.0[transfer_slot.index()].routes[path as usize];
        messages.store(messages.load(Relaxed).wrapping_add(1), Relaxed);
        moved.store(moved.load(Relaxed).wrapping_add(bytes as u64), Relaxed);
    }

    /// Counts a system call that moved messages.
    #[inline]
    pub(crate) fn add_call(&self, transfer_slot: &TransferSlotGuard<'_>) {
        let calls = &self.0[transfer_slot.index()].vm_calls;
        calls.store(calls.load(Relaxed).wrapping_add(1), Relaxed);
    }

    /// The sum over all transfer slots; others may count at the same time.
    pub(crate) fn sum(&self) -> Traffic {
        let of = |path: PayloadPath| {
            let sum = |which: usize| {
                let cells = self
                    .0
                    .iter()
                    .map(|transfer_slot| transfer_slot.routes[path as usize][which].load(Relaxed));
                cells.fold(0, u64::wrapping_add)
            };
            Moved { messages: sum(0), bytes: sum(1) }
        };
        Traffic {
            own: of(PayloadPath::Own),
            slot: of(PayloadPath::Slot),
            direct: of(PayloadPath::Direct),
            vm: of(PayloadPath::Vm),
            call: of(PayloadPath::Call),
            vm_calls: self
                .0
                .iter()
                .map(|transfer_slot| transfer_slot.vm_calls.load(Relaxed))
                .fold(0, u64::wrapping_add),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::transfer_slot::TransferSlots;
    use super::*;

    #[test]
    fn transfer_slots_add_up_path_by_path() {
        let (transfer_slots, counters) = (TransferSlots::new(), TrafficCounters::default());
        counters.add(&transfer_slots.lock(0), PayloadPath::Vm, 100);
        counters.add(&transfer_slots.lock(1), PayloadPath::Vm, 11);
        counters.add(&transfer_slots.lock(TRANSFER_SLOTS - 1), PayloadPath::Own, 0);
        let expected = Traffic {
            vm: Moved { messages: 2, bytes: 111 },
            own: Moved { messages: 1, bytes: 0 },
            ..Traffic::default()
        };
        assert_eq!(counters.sum(), expected);
    }
}
