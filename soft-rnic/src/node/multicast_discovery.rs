//! Multicast discovery: which processes may have members of a group.
//!
//! A sender to one queue pair connects to its owner. A sender to a group does not know the members.
//! So it connects once to every process that has a queue pair, and looks into their membership
//! tables from then on.
//!
//! A process that joins its first group after that must make the others discover again: it
//! increments a counter in the segment of each. A process that was stopped in the meantime accepts
//! the newcomer's connection when it continues, and then increments its counter itself.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::mailbox::ServiceCommand;
use super::peer_process::PeerProcess;
use super::service::ServiceThread;
use super::{ALONE, Node};
use crate::sync::{AcqRel, Acquire};

/// A process that does not answer within this time is left out, and tried again after the same
/// time.
const PATIENCE: Duration = Duration::from_secs(1);
/// The most time that joining a group waits for the other processes to be notified.
const ANNOUNCEMENT: Duration = Duration::from_secs(3);

/// The processes known from the last discovery.
#[derive(Debug, Default)]
pub(crate) struct MulticastDiscovery {
    state: Mutex<DiscoveryState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct DiscoveryState {
    /// The newcomer count of the last discovery; `None` before the first.
    of: Option<u32>,
    processes: Arc<[Arc<PeerProcess>]>,
    /// The newcomer count for which a discovery runs.
    asked: Option<u32>,
    /// When to repeat the discovery, because a process did not answer. Until then the result is
    /// used without that process.
    again: Option<Instant>,
    announced: bool,
}

/// A discovery that the service thread is running.
pub(crate) struct DiscoveryRun {
    of: u32,
    since: Instant,
    /// The blocks that have not answered.
    blocks: Vec<u16>,
}

impl MulticastDiscovery {
    fn lock(&self) -> MutexGuard<'_, DiscoveryState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For tests: adds a peer that no discovery would find.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn add(&self, newcomers: u32, own: &Arc<PeerProcess>, process: &Arc<PeerProcess>) {
        let mut state = self.lock();
        let known = if state.processes.is_empty() { vec![Arc::clone(own)] } else { state.processes.to_vec() };
        state.processes = known.into_iter().chain([Arc::clone(process)]).collect();
        state.of = Some(newcomers);
    }

    /// Removes a dead peer.
    pub(crate) fn forget(&self, lost: &Arc<PeerProcess>) {
        let mut state = self.lock();
        if state.processes.iter().any(|process| Arc::ptr_eq(process, lost)) {
            state.processes =
                state.processes.iter().filter(|process| !Arc::ptr_eq(process, lost)).cloned().collect();
        }
    }
}

impl Node {
    /// The processes that own a queue pair, this process among them. `None` while a discovery runs.
    /// Never waits.
    pub(crate) fn all_processes(&self) -> Option<Arc<[Arc<PeerProcess>]>> {
        if ALONE {
            let others = self.state.directory.processes();
            return Some(core::iter::once(Arc::clone(&self.own)).chain(others).collect());
        }
        let newcomers = self.segment().shared_header().newcomers.load(Acquire);
        let mut discovery = self.state.discovery.lock();
        let current = discovery.of == Some(newcomers);
        if current && discovery.again.is_none_or(|again| Instant::now() < again) {
            return Some(Arc::clone(&discovery.processes));
        }
        if discovery.asked != Some(newcomers) {
            discovery.asked = Some(newcomers);
            self.state.common.mailbox.post(ServiceCommand::DiscoverProcesses { of: newcomers });
        }
        current.then(|| Arc::clone(&discovery.processes))
    }

    /// Makes all other processes repeat their discovery, before this process becomes the member of
    /// a group for the first time. Waits up to a few seconds.
    pub(crate) fn announce(&self) {
        if ALONE || self.state.discovery.lock().announced {
            return;
        }
        let processes = self.wait_for_all_processes(ANNOUNCEMENT);
        for process in processes.iter().filter(|process| !process.is_own() && process.alive()) {
            process.segment().shared_header().newcomers.fetch_add(1, AcqRel);
        }
        self.state.discovery.lock().announced = true;
    }

    fn wait_for_all_processes(&self, time: Duration) -> Arc<[Arc<PeerProcess>]> {
        let deadline = Instant::now() + time;
        loop {
            if let Some(processes) = self.all_processes() {
                return processes;
            }
            let discovery = self.state.discovery.lock();
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Arc::clone(&discovery.processes);
            }
            // Wait in short steps, because the state may change between the look and the wait.
            let step = left.min(Duration::from_millis(1));
            drop(self.state.discovery.changed.wait_timeout(discovery, step));
        }
    }
}

impl ServiceThread {
    /// Connects to the owners of all blocks.
    pub(crate) fn start_discovery(&mut self, of: u32) {
        let mut others = self.state.block_owners().unwrap_or_else(|error| {
            log::warn!("members of multicast groups are not found: {error}");
            HashMap::new()
        });
        others.retain(|block, _| !self.state.blocks.has(*block));
        let since = Instant::now();
        for (block, names) in &others {
            if self.state.directory.begin(*block) {
                self.connect_to_names(*block, names, since);
            }
        }
        self.discovery_run = Some(DiscoveryRun { of, since, blocks: others.into_keys().collect() });
        self.finish_discovery();
    }

    /// Publishes the result when all blocks have answered or the time is over.
    pub(crate) fn finish_discovery(&mut self) {
        let Some(discovery_run) = &mut self.discovery_run else { return };
        let directory = &self.state.directory;
        discovery_run.blocks.retain(|block| directory.is_connecting(*block));
        let (of, time) = (discovery_run.of, discovery_run.since.elapsed());
        if !discovery_run.blocks.is_empty() && time < 2 * PATIENCE {
            return;
        }
        self.discovery_run = None;
        let mut discovery = self.state.discovery.lock();
        discovery.processes =
            core::iter::once(Arc::clone(&self.state.own)).chain(directory.processes()).collect();
        discovery.of = Some(of);
        discovery.asked = None;
        // A process that can answer does so at once, so a discovery that took long has left one
        // out.
        discovery.again = (time >= PATIENCE).then(|| Instant::now() + PATIENCE);
        drop(discovery);
        self.state.discovery.changed.notify_all();
    }
}
