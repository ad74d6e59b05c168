//! Revocation: waiting until no hazard names an object.

use std::time::{Duration, Instant};

use super::peer_ids::{PeerIds, PeerLease};
use crate::shared::hazard::{Hazard, HazardPage, HazardSlot};

/// An object whose generation was invalidated. Both are indices in this process's tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Revoked {
    Region(u32),
    QueuePair(u32),
}

/// A transfer may still touch the object, and its process was not proved dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StillInUse {
    /// The peer's number in this segment; 0 is this process itself.
    pub(crate) peer_id: u16,
    pub(crate) pid: Option<u32>,
}

impl Revoked {
    fn is_used_by(self, hazard: Hazard) -> bool {
        match self {
            Self::Region(region) => hazard.touches_region(region),
            Self::QueuePair(queue_pair) => hazard.uses_queue_pair(queue_pair),
        }
    }

    fn is_held(self, cell: &HazardSlot) -> bool {
        cell.get().is_some_and(|hazard| self.is_used_by(hazard))
    }
}

/// Waits for all hazards, with one common deadline.
pub(crate) struct HazardWait<'a> {
    pub(crate) what: Revoked,
    /// Those of this process's transfers, as their source and as its own peer.
    pub(crate) local_hazards: &'a [HazardSlot],
    pub(crate) own_hazards: &'a HazardPage,
    pub(crate) peer_ids: &'a PeerIds,
    pub(crate) patience: Duration,
}

impl HazardWait<'_> {
    /// Waits. Calls `died` for each attached peer that turns out to be dead.
    ///
    /// # Errors
    ///
    /// If a transfer did not finish in time.
    pub(crate) fn run(&self, mut died: impl FnMut(PeerLease)) -> Result<(), StillInUse> {
        let start = Instant::now();
        for cell in self.local_hazards.iter().chain(self.own_hazards.slots()) {
            self.wait_own(start, cell)?;
        }
        self.peer_ids.iter().try_for_each(|lease| {
            // Without them the peer is gone.
            let Some(hazards) = self.peer_ids.hazards(lease) else { return Ok(()) };
            hazards.slots().iter().try_for_each(|cell| {
                if !self.what.is_held(cell) {
                    return Ok(());
                }
                let process = self.peer_ids.process(lease);
                let gone = |look_closely: bool| {
                    !self.peer_ids.is_assigned(lease)
                        || (look_closely && process.is_some_and(|process| process.is_dead()) && {
                            died(lease);
                            true
                        })
                };
                let stuck = StillInUse { peer_id: lease.peer_id, pid: process.map(|process| process.pid()) };
                if self.wait(start, cell, gone) { Ok(()) } else { Err(stuck) }
            })
        })
    }

    fn wait_own(&self, start: Instant, cell: &HazardSlot) -> Result<(), StillInUse> {
        // Getting this process's number takes a system call, so only on failure.
        let stuck = || StillInUse { peer_id: 0, pid: Some(std::process::id()) };
        if self.wait(start, cell, |_| false) { Ok(()) } else { Err(stuck()) }
    }

    /// True when the slot no longer names the object, or its writer is gone.
    fn wait(&self, start: Instant, cell: &HazardSlot, mut gone: impl FnMut(bool) -> bool) -> bool {
        const SPINS: u32 = 200;
        const YIELDS: u32 = 300;
        const SLEEP: Duration = Duration::from_micros(200);
        let mut tries = 0_u32;
        while self.what.is_held(cell) {
            tries = tries.saturating_add(1);
            if tries < SPINS {
                core::hint::spin_loop();
                continue;
            }
            // Proof of death takes system calls, so it starts after some milliseconds and is tried
            // at intervals.
            if gone(tries > YIELDS && tries.is_multiple_of(32)) {
                return true;
            }
            if start.elapsed() >= self.patience {
                return !self.what.is_held(cell) || gone(true);
            }
            if tries < YIELDS {
                std::thread::yield_now();
            } else {
                std::thread::sleep(SLEEP);
            }
        }
        true
    }
}
