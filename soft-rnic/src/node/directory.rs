//! The directory of blocks: which process owns which block of queue pair numbers, as far as is
//! known.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use super::numbers::{LAST_BLOCK, block_of};
use super::peer_process::PeerProcess;

/// The known state of a block.
#[derive(Clone, Debug, Default)]
enum BlockOwner {
    /// Nothing has connected to the block yet.
    #[default]
    Unknown,
    /// The service thread is connecting.
    Connecting,
    Connected(Arc<PeerProcess>),
    /// The block had no usable owner; connecting again is allowed after this time.
    Absent(Instant),
}

/// Whether the owner of a queue pair can be reached.
#[derive(Clone, Debug)]
pub(crate) enum Reachability {
    Ready(Arc<PeerProcess>),
    /// The service thread is finding that out.
    Pending,
    /// No process of this user owns it.
    Nobody,
}

/// The result of a lookup, with the block to which the caller must have the service thread connect,
/// if any.
pub(crate) struct LookupResult {
    pub(crate) reach: Reachability,
    pub(crate) connect: Option<u16>,
}

#[derive(Debug)]
pub(crate) struct Directory {
    blocks: Box<[RwLock<BlockOwner>]>,
    /// No block from this one on was ever connected.
    connected_end: AtomicUsize,
    waiting: Mutex<()>,
    changed: Condvar,
}

impl Directory {
    pub(crate) fn new() -> Self {
        let blocks = (0..=LAST_BLOCK).map(|_| RwLock::default()).collect();
        Self { blocks, connected_end: AtomicUsize::new(0), waiting: Mutex::new(()), changed: Condvar::new() }
    }

    /// The blocks that may have a connected process, normally few.
    fn connected(&self) -> &[RwLock<BlockOwner>] {
        &self.blocks[..self.connected_end.load(Ordering::Acquire)]
    }

    fn entry(&self, block: u16) -> &RwLock<BlockOwner> {
        &self.blocks[usize::from(block.min(LAST_BLOCK))]
    }

    /// Looks up a queue pair of another process.
    pub(crate) fn look(&self, qpn: u32) -> LookupResult {
        let answer = |reach| LookupResult { reach, connect: None };
        let Some(block) = block_of(qpn) else { return answer(Reachability::Nobody) };
        let entry = self.entry(block);
        match &*entry.read().unwrap_or_else(PoisonError::into_inner) {
            BlockOwner::Connecting => return answer(Reachability::Pending),
            BlockOwner::Connected(process) if process.alive() => {
                return answer(Reachability::Ready(Arc::clone(process)));
            }
            BlockOwner::Absent(until) if Instant::now() < *until => return answer(Reachability::Nobody),
            BlockOwner::Unknown | BlockOwner::Connected(_) | BlockOwner::Absent(_) => {}
        }
        let mut entry = entry.write().unwrap_or_else(PoisonError::into_inner);
        let first = match &*entry {
            BlockOwner::Connecting => false,
            BlockOwner::Connected(process) => !process.alive(),
            BlockOwner::Unknown | BlockOwner::Absent(_) => true,
        };
        if first {
            *entry = BlockOwner::Connecting;
        }
        LookupResult { reach: Reachability::Pending, connect: first.then_some(block) }
    }

    /// The owner of a queue pair, if it is connected.
    pub(crate) fn process_of(&self, qpn: u32) -> Option<Arc<PeerProcess>> {
        self.owner_of(block_of(qpn)?)
    }

    /// The owner of a block, if it is connected.
    pub(crate) fn owner_of(&self, block: u16) -> Option<Arc<PeerProcess>> {
        match &*self.entry(block).read().unwrap_or_else(PoisonError::into_inner) {
            BlockOwner::Connected(process) if process.alive() => Some(Arc::clone(process)),
            _ => None,
        }
    }

    /// Whether the caller must connect to a block now. If so, the block counts as `Connecting`.
    pub(crate) fn begin(&self, block: u16) -> bool {
        let mut entry = self.entry(block).write().unwrap_or_else(PoisonError::into_inner);
        let begin = match &*entry {
            BlockOwner::Connecting => false,
            BlockOwner::Connected(process) => !process.alive(),
            BlockOwner::Unknown | BlockOwner::Absent(_) => true,
        };
        if begin {
            *entry = BlockOwner::Connecting;
        }
        begin
    }

    /// Whether the service thread is connecting to the block.
    pub(crate) fn is_connecting(&self, block: u16) -> bool {
        matches!(&*self.entry(block).read().unwrap_or_else(PoisonError::into_inner), BlockOwner::Connecting)
    }

    fn set(&self, block: u16, news: BlockOwner) {
        *self.entry(block).write().unwrap_or_else(PoisonError::into_inner) = news;
        // A thread that looked before the change holds this lock until it waits. Taking the lock
        // once ensures that the notification reaches it.
        drop(self.waiting.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_all();
    }

    pub(crate) fn found(&self, block: u16, process: Arc<PeerProcess>) {
        let end = usize::from(block.min(LAST_BLOCK)) + 1;
        self.connected_end.fetch_max(end, Ordering::AcqRel);
        self.set(block, BlockOwner::Connected(process));
    }

    pub(crate) fn absent(&self, block: u16, time: Duration) {
        self.set(block, BlockOwner::Absent(Instant::now() + time));
    }

    /// The first live connected process that matches.
    pub(crate) fn find(&self, wanted: impl Fn(&PeerProcess) -> bool) -> Option<Arc<PeerProcess>> {
        self.connected().iter().find_map(|entry| {
            match &*entry.read().unwrap_or_else(PoisonError::into_inner) {
                BlockOwner::Connected(process) if process.alive() && wanted(process) => {
                    Some(Arc::clone(process))
                }
                _ => None,
            }
        })
    }

    /// All live connected processes, each once.
    pub(crate) fn processes(&self) -> Vec<Arc<PeerProcess>> {
        let mut processes: Vec<Arc<PeerProcess>> = Vec::new();
        for entry in self.connected() {
            if let BlockOwner::Connected(process) = &*entry.read().unwrap_or_else(PoisonError::into_inner)
                && process.alive()
                && !processes.iter().any(|other| Arc::ptr_eq(other, process))
            {
                processes.push(Arc::clone(process));
            }
        }
        processes
    }

    /// Forgets the blocks of a dead peer, because other processes may take them.
    pub(crate) fn forget(&self, lost: &Arc<PeerProcess>) {
        for entry in self.connected() {
            let mut entry = entry.write().unwrap_or_else(PoisonError::into_inner);
            if matches!(&*entry, BlockOwner::Connected(process) if Arc::ptr_eq(process, lost)) {
                *entry = BlockOwner::Unknown;
            }
        }
    }

    /// Repeats `look` after each change until the result is known or the time is over.
    pub(crate) fn wait(&self, time: Duration, mut look: impl FnMut() -> Reachability) -> Reachability {
        let deadline = Instant::now() + time;
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let reach = look();
            let left = deadline.saturating_duration_since(Instant::now());
            if !matches!(reach, Reachability::Pending) || left.is_zero() {
                return reach;
            }
            waiting = self.changed.wait_timeout(waiting, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
