//! The memory of a classic queue pair's requests. The parent module states the invariants.

use std::mem::{MaybeUninit, offset_of};
use std::num::NonZeroUsize;
use std::ptr::{self, NonNull};

use rdma_mummy_sys::types::{ibv_send_wr, ibv_sge};

use crate::ibverbs::queue_pair::receive::{NoRoom, array};
use crate::ibverbs::queue_pair::{CreateQueuePairError, QueuePairCapability};

/// The memory for the requests of a list, one [`RequestSlot`] for each.
pub(super) struct Slots {
    /// A leaked box, because pointers into it are kept.
    memory: NonNull<[MaybeUninit<Unit>]>,
    /// The end of the last slot. A queue without slots has the end of one imaginary slot.
    pub(super) end: *mut RequestSlot,
    /// The number of scatter/gather entries in a slot.
    pub(super) entries: u32,
    /// The distance between two slots, in bytes.
    pub(super) stride: NonZeroUsize,
}

/// A request and its first scatter/gather entry. Further entries, or inline data, follow it in the
/// same memory.
#[repr(C)]
pub(super) struct RequestSlot {
    pub(super) request: ibv_send_wr,
    pub(super) entry: ibv_sge,
    pub(super) inline: [u8; 0],
}

/// The unit of allocation for slots, which sets their alignment.
type Unit = u64;

const _: () = assert!(align_of::<RequestSlot>() <= align_of::<Unit>());
const _: () = assert!(size_of::<RequestSlot>() == offset_of!(RequestSlot, entry) + size_of::<ibv_sge>());

impl Slots {
    pub(super) fn new(cap: &QueuePairCapability) -> Result<Self, CreateQueuePairError> {
        let further = u64::from(cap.max_send_sge.saturating_sub(1)) * size_of::<ibv_sge>() as u64;
        let bytes = size_of::<RequestSlot>() as u64 + further.max(cap.max_inline_data.into());
        let units = bytes.div_ceil(size_of::<Unit>() as u64);
        let Ok(units) = u32::try_from(units) else {
            return Err(NoRoom { places: units, bytes_each: size_of::<Unit>() }.into());
        };
        let stride = NonZeroUsize::MIN.saturating_add(units as usize * size_of::<Unit>() - 1);
        let memory = NonNull::from(Box::leak(array(cap.max_send_wr, units)?));
        let first: *mut RequestSlot = memory.as_ptr().cast();
        for number in 0..cap.max_send_wr as usize {
            let slot = first.wrapping_byte_add(number * stride.get());
            // SAFETY: `memory` has room for `max_send_wr` slots of `stride` bytes, and `number` is
            // below that.
            unsafe {
                (*slot).request.sg_list = &raw mut (*slot).entry;
                (*slot).entry.addr = (&raw mut (*slot).inline).expose_provenance() as u64;
                (*slot).request.next = ptr::null_mut();
            }
        }
        let end = first.wrapping_byte_add(cap.max_send_wr.max(1) as usize * stride.get());
        Ok(Self { memory, end, entries: cap.max_send_sge, stride })
    }

    #[inline(always)]
    pub(super) fn first(&self) -> *mut RequestSlot {
        self.memory.as_ptr().cast()
    }

    /// The number of slots up to `last`, inclusive; 0 if it is null.
    #[inline(always)]
    pub(super) fn until(&self, last: *mut RequestSlot) -> usize {
        match last.is_null() {
            true => 0,
            false => (last.addr() - self.first().addr()) / self.stride + 1,
        }
    }

    /// Links the slot after `last` to it, and returns the new slot; null if `last` is the final
    /// one.
    ///
    /// Inlined although it rarely runs, because a loop with a call keeps less in registers.
    ///
    /// # Safety
    ///
    /// `last` must be one of the slots, and no other pointer to its request may be in use.
    #[inline(always)]
    pub(super) unsafe fn link(&self, last: *mut RequestSlot) -> *mut RequestSlot {
        let slot = last.wrapping_byte_add(self.stride.get());
        if slot == self.end {
            return ptr::null_mut();
        }
        // SAFETY: the caller guarantees that `last` is one of the slots.
        unsafe { (*last).request.next = slot.cast() };
        slot
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        // SAFETY: `new` leaked this box, and only this line rebuilds it.
        drop(unsafe { Box::from_raw(self.memory.as_ptr()) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_slot_has_room_for_its_inline_data_and_for_its_entries() {
        for (max_inline_data, max_send_sge) in [(0, 1), (1, 1), (100, 1), (0, 8), (100, 8), (1000, 8)] {
            let cap = QueuePairCapability {
                max_send_wr: 3,
                max_recv_wr: 0,
                max_send_sge,
                max_recv_sge: 0,
                max_inline_data,
            };
            let slots = Slots::new(&cap).unwrap();
            let stride = slots.stride.get();
            assert!(stride >= size_of::<RequestSlot>() + max_inline_data as usize, "{cap:?}: {stride}");
            let entries = max_send_sge as usize * size_of::<ibv_sge>();
            assert!(stride >= offset_of!(RequestSlot, entry) + entries, "{cap:?}: {stride}");
            assert_eq!(slots.memory.len() * size_of::<Unit>(), 3 * stride);
        }
    }
}
