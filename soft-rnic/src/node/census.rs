//! Everybody in the fabric: whom a datagram to a group may be for.
//!
//! A sender to one queue pair connects to its owner. A sender to a group does not know who is in it, so it connects to every
//! process that has a queue pair, once, and looks into their tables from then on. Who joins a group for the first time after
//! that has seen to it that the others look again: it counts itself in in the segment of each. A process that was stopped in
//! the meantime finds the newcomer's call when it goes on, and counts it in itself.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::link::Link;
use super::mailbox::Command;
use super::numbers::{BLOCK_BITS, LAST_BLOCK};
use super::service::ServiceThread;
use super::{ALONE, Node};
use crate::sync::{AcqRel, Acquire};

/// Who was called and does not answer within this time is left out, and called again after the same time.
const PATIENCE: Duration = Duration::from_secs(1);
/// Who joins a group waits for the others to be told at most so long.
const ANNOUNCEMENT: Duration = Duration::from_secs(3);

/// What is known of everybody.
#[derive(Debug, Default)]
pub(crate) struct Census {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// How many newcomers there were when it was taken; `None` before the first.
    of: Option<u32>,
    links: Arc<[Arc<Link>]>,
    /// For how many newcomers it is being taken.
    asked: Option<u32>,
    /// Somebody did not answer: when to look again, while the others do without it.
    again: Option<Instant>,
    announced: bool,
}

/// A census that the service thread is taking.
pub(crate) struct Counting {
    of: u32,
    since: Instant,
    /// Who has not answered.
    blocks: Vec<u16>,
}

impl Census {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For tests: there is a peer that no census would find.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn add(&self, newcomers: u32, own: &Arc<Link>, link: &Arc<Link>) {
        let mut state = self.lock();
        let known = if state.links.is_empty() { vec![Arc::clone(own)] } else { state.links.to_vec() };
        state.links = known.into_iter().chain([Arc::clone(link)]).collect();
        state.of = Some(newcomers);
    }

    /// The peer is dead.
    pub(crate) fn forget(&self, lost: &Arc<Link>) {
        let mut state = self.lock();
        if state.links.iter().any(|link| Arc::ptr_eq(link, lost)) {
            state.links = state.links.iter().filter(|link| !Arc::ptr_eq(link, lost)).cloned().collect();
        }
    }
}

impl Node {
    /// The links to everybody, this process among them; `None` while that is being found out. Never waits.
    pub(crate) fn everybody(&self) -> Option<Arc<[Arc<Link>]>> {
        if ALONE {
            let others = self.state.directory.links();
            return Some(core::iter::once(Arc::clone(&self.own)).chain(others).collect());
        }
        let newcomers = self.segment().header().newcomers.load(Acquire);
        let mut census = self.state.census.lock();
        let current = census.of == Some(newcomers);
        if current && census.again.is_none_or(|again| Instant::now() < again) {
            return Some(Arc::clone(&census.links));
        }
        if census.asked != Some(newcomers) {
            census.asked = Some(newcomers);
            self.state.common.mailbox.post(Command::Census { of: newcomers });
        }
        current.then(|| Arc::clone(&census.links))
    }

    /// Has everybody look again, before this process becomes the member of a group for the first time. Waits for a while.
    pub(crate) fn announce(&self) {
        if ALONE || self.state.census.lock().announced {
            return;
        }
        let links = self.wait_for_everybody(ANNOUNCEMENT);
        for link in links.iter().filter(|link| !link.is_own() && link.alive()) {
            link.segment().header().newcomers.fetch_add(1, AcqRel);
        }
        self.state.census.lock().announced = true;
    }

    fn wait_for_everybody(&self, time: Duration) -> Arc<[Arc<Link>]> {
        let deadline = Instant::now() + time;
        loop {
            if let Some(links) = self.everybody() {
                return links;
            }
            let census = self.state.census.lock();
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Arc::clone(&census.links);
            }
            // In steps: it may have changed between the two.
            let step = left.min(Duration::from_millis(1));
            drop(self.state.census.changed.wait_timeout(census, step));
        }
    }
}

impl ServiceThread {
    /// Calls everybody.
    pub(crate) fn begin_census(&mut self, of: u32) {
        let own = |block: u16| self.state.blocks.index_of(u32::from(block) << BLOCK_BITS | 1).is_some();
        let others: Vec<u16> = (1..=LAST_BLOCK).filter(|block| !own(*block)).collect();
        let since = Instant::now();
        for block in &others {
            if self.state.directory.begin(*block) {
                self.start_connect(*block, since);
            }
        }
        self.counting = Some(Counting { of, since, blocks: others });
        self.end_census();
    }

    /// If everybody has answered, or has had the time: says who there is.
    pub(crate) fn end_census(&mut self) {
        let Some(counting) = &mut self.counting else { return };
        let directory = &self.state.directory;
        counting.blocks.retain(|block| directory.is_asked(*block));
        let (of, time) = (counting.of, counting.since.elapsed());
        if !counting.blocks.is_empty() && time < 2 * PATIENCE {
            return;
        }
        self.counting = None;
        let mut census = self.state.census.lock();
        census.links = core::iter::once(Arc::clone(&self.state.own)).chain(directory.links()).collect();
        census.of = Some(of);
        census.asked = None;
        // Whoever answers does so at once.
        census.again = (time >= PATIENCE).then(|| Instant::now() + PATIENCE);
        drop(census);
        self.state.census.changed.notify_all();
    }
}
