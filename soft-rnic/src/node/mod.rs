//! This process among its peers. (A stand-in that knows nobody but itself, until the real one is merged.)

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use crate::platform::memory::Memory;
use crate::shared::mark::{LANES, Mark, MarkCell};
use crate::shared::segment::{HEAP, HEAP_AT, MAX_QUEUE_PAIRS, PAGE, Segment};

/// How a node behaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) fabric: String,
    pub(crate) patience: Duration,
    pub(crate) vm: bool,
    pub(crate) direct: bool,
    pub(crate) any_shm: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PortGid {
    pub(crate) device: u8,
    pub(crate) port: u8,
    pub(crate) gid: [u8; 16],
}

/// The GIDs that this process answers to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) gids: Vec<PortGid>,
}

pub(crate) struct Node {
    segment: Segment,
    heap: Heap,
    shares: Shares,
    own_link: Arc<Link>,
    local_marks: Vec<MarkCell>,
    numbers: Mutex<Numbers>,
    handler: OnceLock<Weak<dyn Handler>>,
    revoke: Duration,
}

#[derive(Default)]
struct Numbers {
    next: u32,
    free: VecDeque<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QpNumber {
    pub(crate) index: u32,
    pub(crate) qpn: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Revoked {
    Region(u32),
    QueuePair(u32),
}

/// A peer still touches what is to be revoked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stuck {
    pub(crate) link: u16,
    pub(crate) pid: Option<u32>,
}

pub(crate) enum Reach {
    Ready(Arc<Link>),
    Pending,
    Nobody,
}

pub(crate) enum Doorbell {
    Cq(u32),
    Qp(u32),
    Srq(u32),
    Call { lane: u16 },
}

pub(crate) trait Handler: Send + Sync {
    fn cq_fired(&self, cq: u32);
    fn qp_noticed(&self, qp: u32);
    fn srq_limit(&self, srq: u32);
    fn look_everywhere(&self);
    fn link_gone(&self, link: u16);
    fn peer_lost(&self, link: &Arc<Link>);
    fn serve(&self, link: u16, lane: u16);
    fn timer(&self, qp: u32);
}

impl Node {
    pub(crate) fn start(settings: Settings, _identity: Identity) -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            segment: Segment::create()?,
            heap: Heap { next: Mutex::new(HEAP_AT) },
            shares: Shares::default(),
            own_link: Arc::new(Link {}),
            local_marks: (0..LANES).map(|_| MarkCell::default()).collect(),
            numbers: Mutex::new(Numbers { next: 1, free: VecDeque::new() }),
            handler: OnceLock::new(),
            revoke: settings.patience,
        }))
    }

    pub(crate) fn is_forked(&self) -> bool {
        false
    }

    pub(crate) fn segment(&self) -> &Segment {
        &self.segment
    }

    pub(crate) fn heap(&self) -> &Heap {
        &self.heap
    }

    pub(crate) fn new_qp_number(&self) -> io::Result<QpNumber> {
        let mut numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        let index = if (numbers.next as usize) < MAX_QUEUE_PAIRS {
            numbers.next += 1;
            numbers.next - 1
        } else {
            numbers.free.pop_front().ok_or(io::ErrorKind::OutOfMemory)?
        };
        Ok(QpNumber { index, qpn: 1 << 14 | index })
    }

    pub(crate) fn free_qp_number(&self, number: QpNumber) {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner).free.push_back(number.index);
    }

    pub(crate) fn own_index(&self, qpn: u32) -> Option<u32> {
        (qpn >> 14 == 1).then_some(qpn & 0x3fff)
    }

    pub(crate) fn own_link(&self) -> &Arc<Link> {
        &self.own_link
    }

    pub(crate) fn link_to(&self, qpn: u32) -> Reach {
        if self.own_index(qpn).is_some() { Reach::Ready(Arc::clone(&self.own_link)) } else { Reach::Nobody }
    }

    pub(crate) fn local_mark(&self, lane: usize) -> &MarkCell {
        &self.local_marks[lane]
    }

    pub(crate) fn wait_unmarked(&self, what: Revoked) -> Result<(), Stuck> {
        let touches = |mark: Mark| match what {
            Revoked::Region(index) => mark.touches_region(index),
            Revoked::QueuePair(index) => mark.uses_queue_pair(index),
        };
        let deadline = Instant::now() + self.revoke;
        for lane in 0..LANES {
            while [Some(&self.local_marks[lane]), self.segment.mark(0, lane)]
                .into_iter()
                .flatten()
                .filter_map(MarkCell::get)
                .any(touches)
            {
                if Instant::now() >= deadline {
                    return Err(Stuck { link: 0, pid: None });
                }
                std::thread::yield_now();
            }
        }
        Ok(())
    }

    pub(crate) fn wake_at(&self, _when: Instant, _qp: u32) {}

    pub(crate) fn set_handler(&self, handler: Weak<dyn Handler>) {
        let _ = self.handler.set(handler);
    }

    pub(crate) fn shares(&self) -> &Shares {
        &self.shares
    }
}

pub(crate) struct Heap {
    next: Mutex<usize>,
}

pub(crate) struct HeapRange {
    pub(crate) offset: u64,
}

impl Heap {
    pub(crate) fn alloc(&self, bytes: usize) -> io::Result<HeapRange> {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let end = *next + bytes.next_multiple_of(PAGE);
        if end > HEAP_AT + HEAP {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        Ok(HeapRange { offset: std::mem::replace(&mut *next, end) as u64 })
    }

    pub(crate) fn free(&self, _range: HeapRange) {}
}

/// Memory of this process that peers may map.
#[derive(Default)]
pub(crate) struct Shares {
    known: Mutex<Vec<Known>>,
}

/// Names shareable memory; the epoch says how often the number has been given to other memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShareId {
    pub(crate) index: u32,
    pub(crate) epoch: u32,
}

type Known = Option<(Arc<Memory>, usize)>;

impl Shares {
    pub(crate) fn add(&self, memory: Arc<Memory>) -> io::Result<ShareId> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.push(Some((memory, 0)));
        Ok(ShareId { index: known.len() as u32 - 1, epoch: 1 })
    }

    pub(crate) fn find(&self, address: usize, length: usize) -> Option<ShareId> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let holds = |share: &Known| {
            share.as_ref().is_some_and(|(memory, _)| {
                let base = memory.base().as_ptr().addr();
                address >= base && address + length <= base + memory.len()
            })
        };
        known.iter().position(holds).map(|index| ShareId { index: index as u32, epoch: 1 })
    }

    pub(crate) fn find_mapped(&self, _address: usize, _length: usize) -> Option<ShareId> {
        None
    }

    pub(crate) fn note_access(&self, id: ShareId, came: bool, _writable: bool) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, regions)) = &mut known[id.index as usize] {
            *regions = if came { *regions + 1 } else { *regions - 1 };
        }
    }

    pub(crate) fn remove(&self, id: ShareId) {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)[id.index as usize] = None;
    }
}

pub(crate) struct Link {}

impl Link {
    pub(crate) fn is_own(&self) -> bool {
        true
    }

    pub(crate) fn alive(&self) -> bool {
        true
    }

    pub(crate) fn number(&self) -> u16 {
        0
    }
}
