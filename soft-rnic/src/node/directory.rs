//! Who has which block of queue pair numbers, as far as it is known.

use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use super::link::Link;
use super::numbers::{LAST_BLOCK, block_of};

/// What is known of a block.
#[derive(Clone, Debug, Default)]
enum Known {
    /// Nobody has asked yet.
    #[default]
    Nothing,
    /// The service thread is connecting.
    Asked,
    Link(Arc<Link>),
    /// Nobody was there, and nobody looks again before this time.
    Absent(Instant),
}

/// Whether a queue pair can be reached.
#[derive(Clone, Debug)]
pub(crate) enum Reach {
    Ready(Arc<Link>),
    /// It is being found out.
    Pending,
    /// No process of this user has it.
    Nobody,
}

/// What was known, and whether the caller is to start to find out more.
pub(crate) struct Answer {
    pub(crate) reach: Reach,
    pub(crate) connect: Option<u16>,
}

#[derive(Debug)]
pub(crate) struct Directory {
    blocks: Box<[RwLock<Known>]>,
    waiting: Mutex<()>,
    changed: Condvar,
}

impl Directory {
    pub(crate) fn new() -> Self {
        let blocks = (0..=LAST_BLOCK).map(|_| RwLock::default()).collect();
        Self { blocks, waiting: Mutex::new(()), changed: Condvar::new() }
    }

    fn known(&self, block: u16) -> &RwLock<Known> {
        &self.blocks[usize::from(block.min(LAST_BLOCK))]
    }

    /// What is known about a queue pair of another process.
    pub(crate) fn look(&self, qpn: u32) -> Answer {
        let answer = |reach| Answer { reach, connect: None };
        let Some(block) = block_of(qpn) else { return answer(Reach::Nobody) };
        let known = self.known(block);
        match &*known.read().unwrap_or_else(PoisonError::into_inner) {
            Known::Asked => return answer(Reach::Pending),
            Known::Link(link) if link.alive() => return answer(Reach::Ready(Arc::clone(link))),
            Known::Absent(until) if Instant::now() < *until => return answer(Reach::Nobody),
            Known::Nothing | Known::Link(_) | Known::Absent(_) => {}
        }
        let mut known = known.write().unwrap_or_else(PoisonError::into_inner);
        let first = match &*known {
            Known::Asked => false,
            Known::Link(link) => !link.alive(),
            Known::Nothing | Known::Absent(_) => true,
        };
        if first {
            *known = Known::Asked;
        }
        Answer { reach: Reach::Pending, connect: first.then_some(block) }
    }

    /// The link to a queue pair's owner, if there is one already.
    pub(crate) fn linked(&self, qpn: u32) -> Option<Arc<Link>> {
        self.linked_block(block_of(qpn)?)
    }

    /// The same by the block.
    pub(crate) fn linked_block(&self, block: u16) -> Option<Arc<Link>> {
        match &*self.known(block).read().unwrap_or_else(PoisonError::into_inner) {
            Known::Link(link) if link.alive() => Some(Arc::clone(link)),
            _ => None,
        }
    }

    /// Whether the caller is to find out who has a block, now: nobody is linked to it, or is at it.
    pub(crate) fn begin(&self, block: u16) -> bool {
        let mut known = self.known(block).write().unwrap_or_else(PoisonError::into_inner);
        let begin = match &*known {
            Known::Asked => false,
            Known::Link(link) => !link.alive(),
            Known::Nothing | Known::Absent(_) => true,
        };
        if begin {
            *known = Known::Asked;
        }
        begin
    }

    /// Whether it is being found out.
    pub(crate) fn is_asked(&self, block: u16) -> bool {
        matches!(&*self.known(block).read().unwrap_or_else(PoisonError::into_inner), Known::Asked)
    }

    fn set(&self, block: u16, news: Known) {
        *self.known(block).write().unwrap_or_else(PoisonError::into_inner) = news;
        // Whoever looked before this holds the lock until it waits.
        drop(self.waiting.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_all();
    }

    pub(crate) fn found(&self, block: u16, link: Arc<Link>) {
        self.set(block, Known::Link(link));
    }

    pub(crate) fn absent(&self, block: u16, time: Duration) {
        self.set(block, Known::Absent(Instant::now() + time));
    }

    /// The link of the process with this id, if it lives.
    pub(crate) fn find(&self, wanted: impl Fn(&Link) -> bool) -> Option<Arc<Link>> {
        self.blocks.iter().find_map(|known| match &*known.read().unwrap_or_else(PoisonError::into_inner) {
            Known::Link(link) if link.alive() && wanted(link) => Some(Arc::clone(link)),
            _ => None,
        })
    }

    /// All links to those who live.
    pub(crate) fn links(&self) -> Vec<Arc<Link>> {
        let mut links: Vec<Arc<Link>> = Vec::new();
        for known in &self.blocks {
            if let Known::Link(link) = &*known.read().unwrap_or_else(PoisonError::into_inner)
                && link.alive()
                && !links.iter().any(|other| Arc::ptr_eq(other, link))
            {
                links.push(Arc::clone(link));
            }
        }
        links
    }

    /// The peer is dead: its blocks may be anybody's.
    pub(crate) fn forget(&self, lost: &Arc<Link>) {
        for known in &self.blocks {
            let mut known = known.write().unwrap_or_else(PoisonError::into_inner);
            if matches!(&*known, Known::Link(link) if Arc::ptr_eq(link, lost)) {
                *known = Known::Nothing;
            }
        }
    }

    /// Looks again and again until something is known, or the time is over.
    pub(crate) fn wait(&self, time: Duration, mut look: impl FnMut() -> Reach) -> Reach {
        let deadline = Instant::now() + time;
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let reach = look();
            let left = deadline.saturating_duration_since(Instant::now());
            if !matches!(reach, Reach::Pending) || left.is_zero() {
                return reach;
            }
            waiting = self.changed.wait_timeout(waiting, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
