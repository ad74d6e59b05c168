//! Memory of a peer that is mapped here.
//!
//! Transfers find a mapping without a lock, and use it while they hold a transfer slot. What is taken away is unmapped by the
//! service thread once each transfer slot has been free: nobody who found it is left then.

use core::marker::PhantomData;
use core::mem::ManuallyDrop;
use core::ptr::{self, NonNull};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::exports::MAX_EXPORTS;
use super::message::ExportId;
use super::transfer_slot::{Quiescence, TransferSlotGuard, TransferSlots};
use crate::platform::memory::Memory;

/// A peer is asked again after this time.
const ASK_AGAIN: Duration = Duration::from_millis(20);

/// One mapping.
#[derive(Debug)]
pub(crate) struct PeerMapping {
    pub(crate) memory: Memory,
    pub(crate) epoch: u32,
    pub(crate) writable: bool,
    /// Where its owner has it.
    pub(crate) owner_base: u64,
}

/// A peer's memory, while the transfer slot is held.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MappedMemory<'a> {
    base: NonNull<u8>,
    len: u64,
    owner_base: u64,
    transfer_slot: PhantomData<&'a TransferSlotGuard<'a>>,
}

impl MappedMemory<'_> {
    /// Where the owner's address lies here, if all of the range does. The memory may change at any time; it may be
    /// written only if the mapped was asked for that.
    #[inline]
    pub(crate) fn at(&self, owner_address: u64, len: u64) -> Option<NonNull<u8>> {
        let offset = owner_address.checked_sub(self.owner_base)?;
        if offset > self.len || len > self.len - offset {
            return None;
        }
        // SAFETY: inside of the mapping, as was just checked.
        Some(unsafe { self.base.add(offset as usize) })
    }
}

#[derive(Debug, Default)]
struct MappingEntry {
    mapped: AtomicPtr<PeerMapping>,
    /// When the peer was asked, in milliseconds since `origin`, plus one.
    asked: AtomicU64,
    expected: AtomicBool,
}

/// A mapping that cannot be found any more, but may still be in use. Dropped before its time it stays mapped.
#[derive(Debug)]
pub(crate) struct RetiredMapping {
    mapped: Option<ManuallyDrop<Box<PeerMapping>>>,
    quiescence: Quiescence,
}

impl RetiredMapping {
    /// Unmaps it if nobody uses it any more. True once that is done. The transfer slots must be those of all transfers.
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

    /// The mapping, if it is there. The transfer slot, which is one of those that `replace`'s result is checked against, keeps
    /// it there, and the borrow of `self` keeps the table.
    #[inline]
    pub(crate) fn get<'a>(
        &'a self,
        _lane: &'a TransferSlotGuard<'_>,
        export: ExportId,
        write: bool,
    ) -> Option<MappedMemory<'a>> {
        let mapped = NonNull::new(self.entry(export.index)?.mapped.load(Ordering::Acquire))?;
        // SAFETY: it was found in the table while a transfer slot was held, so it is dropped only after that transfer slot was free
        // (`RetiredMapping`), or with the table.
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

    /// Whether to ask the peer for it now.
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

    /// Whether the peer was asked, and has not answered.
    pub(crate) fn take_expected(&self, export: ExportId) -> bool {
        self.entry(export.index).is_some_and(|entry| entry.expected.swap(false, Ordering::Relaxed))
    }

    /// The epoch of what is mapped. For the service thread, which alone changes it.
    pub(crate) fn epoch(&self, index: u32) -> Option<u32> {
        let mapped = NonNull::new(self.entry(index)?.mapped.load(Ordering::Acquire))?;
        // SAFETY: only the caller's thread takes mappings out, and it does not now.
        Some(unsafe { mapped.as_ref() }.epoch)
    }

    /// Puts a mapping in, or with `None` takes out what is there. For the service thread.
    pub(crate) fn replace(&self, export: ExportId, mapped: Option<PeerMapping>) -> Option<RetiredMapping> {
        let entry = self.entry(export.index)?;
        let new = match mapped {
            Some(mapped) => Box::into_raw(Box::new(mapped)),
            None => ptr::null_mut(),
        };
        let old = NonNull::new(entry.mapped.swap(new, Ordering::AcqRel))?;
        // SAFETY: it came from a box, and was in the table once, from which it was taken just now.
        let old = unsafe { Box::from_raw(old.as_ptr()) };
        Some(RetiredMapping { mapped: Some(ManuallyDrop::new(old)), quiescence: Quiescence::new() })
    }
}

impl Drop for PeerMappings {
    fn drop(&mut self) {
        for entry in self.entries.get().into_iter().flatten() {
            if let Some(mapped) = NonNull::new(entry.mapped.swap(ptr::null_mut(), Ordering::AcqRel)) {
                // SAFETY: it came from a box and was in the table once; views borrow the table, so there is none.
                drop(unsafe { Box::from_raw(mapped.as_ptr()) });
            }
        }
    }
}
