//! The numbers of attached peers in this process's segment, and the process behind each.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use crate::platform::process::Process;
use crate::shared::hazard::HazardPage;
use crate::shared::segment::MAX_PEERS;

const WORDS: usize = MAX_PEERS.div_ceil(64);

/// The state of one number.
#[derive(Debug, Default)]
struct PeerIdEntry {
    /// Different for each peer that has held the number; 0 while it is free.
    serial: AtomicU64,
    holder: RwLock<Option<PeerIdHolder>>,
}

/// The peer that a number was assigned to.
#[derive(Clone, Debug)]
struct PeerIdHolder {
    process: Option<Process>,
    hazards: Arc<HazardPage>,
}

/// A number that was assigned to an attached peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PeerLease {
    pub(crate) peer_id: u16,
    pub(crate) serial: u64,
}

/// All numbers. Number 0 is this process's own.
#[derive(Debug)]
pub(crate) struct PeerIds {
    entries: Box<[PeerIdEntry]>,
    /// A bit for each assigned number, so that a scan reads few words.
    taken: [AtomicU64; WORDS],
    free: Mutex<(u64, VecDeque<u16>)>,
}

impl PeerIds {
    pub(crate) fn new() -> Self {
        Self {
            entries: (0..MAX_PEERS).map(|_| PeerIdEntry::default()).collect(),
            taken: core::array::from_fn(|_| AtomicU64::new(0)),
            free: Mutex::new((0, (1..MAX_PEERS as u16).collect())),
        }
    }

    /// Assigns the number that has been free for the longest time.
    pub(crate) fn assign(&self, process: Option<Process>, hazards: Arc<HazardPage>) -> Option<PeerLease> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let peer_id = free.1.pop_front()?;
        free.0 += 1;
        let serial = free.0;
        let entry = &self.entries[usize::from(peer_id)];
        let holder = PeerIdHolder { process, hazards };
        *entry.holder.write().unwrap_or_else(PoisonError::into_inner) = Some(holder);
        entry.serial.store(serial, Ordering::Release);
        self.taken[usize::from(peer_id) / 64].fetch_or(1 << (peer_id % 64), Ordering::SeqCst);
        Some(PeerLease { peer_id, serial })
    }

    /// Ends the assignment of a peer that is dead or never attached: its hazards are ignored from
    /// now on.
    pub(crate) fn release(&self, lease: PeerLease) {
        self.taken[usize::from(lease.peer_id) / 64].fetch_and(!(1 << (lease.peer_id % 64)), Ordering::SeqCst);
        let entry = &self.entries[usize::from(lease.peer_id)];
        entry.serial.store(0, Ordering::Release);
        *entry.holder.write().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Frees the number for another peer, once nothing of the former peer is left.
    pub(crate) fn reuse(&self, peer_id: u16) {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).1.push_back(peer_id);
    }

    /// The assigned numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = PeerLease> {
        self.taken.iter().enumerate().flat_map(move |(word, bits)| {
            let mut left = bits.load(Ordering::SeqCst);
            let places = core::iter::from_fn(move || {
                let bit = left.trailing_zeros();
                left &= left.checked_sub(1)?;
                Some(word as u16 * 64 + bit as u16)
            });
            places.filter_map(move |peer_id| {
                let serial = self.entries.get(usize::from(peer_id))?.serial.load(Ordering::Acquire);
                (serial != 0).then_some(PeerLease { peer_id, serial })
            })
        })
    }

    /// Whether the number is still assigned to the same peer.
    pub(crate) fn is_assigned(&self, lease: PeerLease) -> bool {
        self.entries[usize::from(lease.peer_id)].serial.load(Ordering::Acquire) == lease.serial
    }

    /// The attached peer's process, if this process can see it.
    pub(crate) fn process(&self, lease: PeerLease) -> Option<Process> {
        self.holder(lease)?.process
    }

    /// The attached peer's hazards.
    pub(crate) fn hazards(&self, lease: PeerLease) -> Option<Arc<HazardPage>> {
        Some(self.holder(lease)?.hazards)
    }

    fn holder(&self, lease: PeerLease) -> Option<PeerIdHolder> {
        let entry = &self.entries[usize::from(lease.peer_id)];
        let holder = entry.holder.read().unwrap_or_else(PoisonError::into_inner).clone();
        holder.filter(|_| self.is_assigned(lease))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::shared::hazard::Hazard;

    #[test]
    fn numbers_rest_and_come_with_pages_of_their_own() {
        let peer_ids = PeerIds::new();
        let page = || Arc::new(HazardPage::create().expect("a page").0);
        let (former, next) = (page(), page());
        let first = peer_ids.assign(None, Arc::clone(&former)).expect("a number");
        assert_eq!(first.peer_id, 1);
        former.slots()[0].publish(Hazard::new(1, 1));
        assert_eq!(peer_ids.iter().collect::<Vec<_>>(), [first]);
        assert!(peer_ids.hazards(first).is_some_and(|page| page.slots()[0].get().is_some()));
        peer_ids.release(first);
        assert!(!peer_ids.is_assigned(first) && peer_ids.iter().next().is_none());
        assert!(peer_ids.hazards(first).is_none());
        peer_ids.reuse(first.peer_id);
        for _ in 1..MAX_PEERS - 1 {
            assert_ne!(peer_ids.assign(None, Arc::clone(&next)).expect("a number").peer_id, 1);
        }
        let again = peer_ids.assign(None, Arc::clone(&next)).expect("the number that rested");
        assert!(again.peer_id == 1 && again != first && !peer_ids.is_assigned(first));
        assert!(peer_ids.hazards(again).is_some_and(|page| page.slots()[0].get().is_none()));
        assert_eq!(peer_ids.assign(None, next), None);
        assert_eq!(peer_ids.iter().count(), MAX_PEERS - 1);
    }
}
