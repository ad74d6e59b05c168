//! Memory of a peer that this process has mapped.
//!
//! Transfers find a mapping without a lock, and use it while they hold a transfer slot. The service
//! thread takes a mapping out of the table, and unmaps it once each transfer slot has been free. By
//! then no transfer that found it can still use it.

use core::marker::PhantomData;
use core::mem::ManuallyDrop;
use core::ptr::{self, NonNull};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::exports::MAX_EXPORTS;
use super::message::ExportId;
use super::transfer_slot::{Quiescence, TransferSlotGuard, TransferSlots};
use crate::platform::memory::FileMapping;

/// The peer is asked again after this time.
const ASK_AGAIN: Duration = Duration::from_millis(20);

/// A mapping of exported memory.
#[derive(Debug)]
pub(crate) struct PeerMapping {
    pub(crate) memory: FileMapping,
    pub(crate) epoch: u32,
    pub(crate) writable: bool,
    /// The address of the memory in its owner.
    pub(crate) owner_base: u64,
}

/// A peer's memory, usable while the transfer slot is held.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MappedMemory<'a> {
    base: NonNull<u8>,
    len: u64,
    owner_base: u64,
    transfer_slot: PhantomData<&'a TransferSlotGuard<'a>>,
}

impl MappedMemory<'_> {
    /// The local address of an owner's address range, if the whole range lies in the mapping.
    ///
    /// The memory may change at any time. It may be written only if `get` was called for writing.
    #[inline]
    pub(crate) fn at(&self, owner_address: u64, len: u64) -> Option<NonNull<u8>> {
        let offset = owner_address.checked_sub(self.owner_base)?;
        if offset > self.len || len > self.len - offset {
            return None;
        }
        // SAFETY: the check above ensures that the offset lies in the mapping, which the held
        // transfer slot keeps mapped.
        Some(unsafe { self.base.add(offset as usize) })
    }
}

#[derive(Debug, Default)]
struct MappingEntry {
    mapped: AtomicPtr<PeerMapping>,
    /// When the peer was asked, in milliseconds since `origin`, plus one; 0 if never.
    asked: AtomicU64,
    expected: AtomicBool,
}

/// A mapping that is no longer in the table but may still be in use. If it is dropped before
/// `unmap` has succeeded, the memory stays mapped.
#[derive(Debug)]
pub(crate) struct RetiredMapping {
    mapped: Option<ManuallyDrop<Box<PeerMapping>>>,
    quiescence: Quiescence,
}

impl RetiredMapping {
    /// Unmaps the memory if no transfer uses it any more. True once that is done. `transfer_slots`
    /// must be the slots of all transfers.
    pub(crate) fn unmap(&mut self, transfer_slots: &TransferSlots) -> bool {
        if !self.quiescence.is_reached(transfer_slots) {
            return false;
        }
        drop(self.mapped.take().map(ManuallyDrop::into_inner));
        true
    }
}

/// The mappings of one peer's memory.
#[derive(Debug)]
pub(crate) struct PeerMappings {
    entries: OnceLock<Box<[MappingEntry]>>,
    origin: Instant,
}

impl PeerMappings {
    pub(crate) fn new() -> Self {
        Self { entries: OnceLock::new(), origin: Instant::now() }
    }

    fn entry(&self, index: u32) -> Option<&MappingEntry> {
        self.entries.get()?.get(index as usize)
    }

    /// The mapping, if it is in the table and suits. The borrowed transfer slot must be one of
    /// those that [`RetiredMapping::unmap`] checks; it keeps the memory mapped. The borrow of
    /// `self` keeps the table.
    #[inline]
    pub(crate) fn get<'a>(
        &'a self,
        _lane: &'a TransferSlotGuard<'_>,
        export: ExportId,
        write: bool,
    ) -> Option<MappedMemory<'a>> {
        let mapped = NonNull::new(self.entry(export.index)?.mapped.load(Ordering::Acquire))?;
        // SAFETY: this thread found the mapping in the table while it held a transfer slot. So it
        // is dropped only after that slot was free (`RetiredMapping::unmap`), or with the table,
        // which `self` borrows.
        let mapped = unsafe { mapped.as_ref() };
        if mapped.epoch != export.epoch || (write && !mapped.writable) {
            return None;
        }
        Some(MappedMemory {
            base: mapped.memory.base(),
            len: mapped.memory.len() as u64,
            owner_base: mapped.owner_base,
            transfer_slot: PhantomData,
        })
    }

    /// Whether to ask the peer for the memory now.
    pub(crate) fn claim_request(&self, export: ExportId) -> bool {
        let entries =
            self.entries.get_or_init(|| (0..MAX_EXPORTS).map(|_| MappingEntry::default()).collect());
        let Some(entry) = entries.get(export.index as usize) else { return false };
        let now = self.origin.elapsed().as_millis() as u64 + 1;
        let asked = entry.asked.load(Ordering::Relaxed);
        let due = asked == 0 || now.saturating_sub(asked) >= ASK_AGAIN.as_millis() as u64;
        let ask =
            due && entry.asked.compare_exchange(asked, now, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if ask {
            entry.expected.store(true, Ordering::Relaxed);
        }
        ask
    }

    /// Whether an answer of the peer is expected; the next call returns false.
    pub(crate) fn take_expected(&self, export: ExportId) -> bool {
        self.entry(export.index).is_some_and(|entry| entry.expected.swap(false, Ordering::Relaxed))
    }

    /// The epoch of the current mapping. Only the service thread calls this, because it alone
    /// changes the table.
    pub(crate) fn epoch(&self, index: u32) -> Option<u32> {
        let mapped = NonNull::new(self.entry(index)?.mapped.load(Ordering::Acquire))?;
        // SAFETY: only the service thread takes mappings out, and this function runs on it, so that
        // the mapping stays during the access.
        Some(unsafe { mapped.as_ref() }.epoch)
    }

    /// Stores a mapping, or removes it with `None`. Only the service thread calls this.
    pub(crate) fn replace(&self, export: ExportId, mapped: Option<PeerMapping>) -> Option<RetiredMapping> {
        let entry = self.entry(export.index)?;
        let new = match mapped {
            Some(mapped) => Box::into_raw(Box::new(mapped)),
            None => ptr::null_mut(),
        };
        let old = NonNull::new(entry.mapped.swap(new, Ordering::AcqRel))?;
        // SAFETY: the pointer came from `Box::into_raw` below in an earlier call, and the swap has
        // taken it out of the table, so that this is its only owner.
        let old = unsafe { Box::from_raw(old.as_ptr()) };
        Some(RetiredMapping { mapped: Some(ManuallyDrop::new(old)), quiescence: Quiescence::new() })
    }
}

impl Drop for PeerMappings {
    fn drop(&mut self) {
        for entry in self.entries.get().into_iter().flatten() {
            if let Some(mapped) = NonNull::new(entry.mapped.swap(ptr::null_mut(), Ordering::AcqRel)) {
                // SAFETY: the pointer came from `Box::into_raw` in `replace`, and the swap has
                // taken it out of the table. No `MappedMemory` is left, because each borrows the
                // table.
                drop(unsafe { Box::from_raw(mapped.as_ptr()) });
            }
        }
    }
}
