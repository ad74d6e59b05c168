//! The slots of a worker: its connections, listeners and handshakes.

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use mio::Token;

use super::{Event, Key};
use crate::config::{Config, ONE_PROCESSOR};
use crate::error::ConnectError;
use crate::handshake::Transport;
use crate::pool::Pool;
use crate::session::acceptor::Acceptor;
use crate::session::closing;
use crate::session::connection::Connection;
use crate::session::lingering;
use crate::session::pending::PendingHandshake;
use crate::session::readiness::{Poller, ReadinessState};
use crate::session::refusal::Refusals;
use crate::session::stats::Stats;
use crate::transport::WorkerCq;
use crate::transport::pools::pool_of;
use crate::wire::Kind;

/// System events taken in one call.
const EVENTS_PER_POLL: usize = 256;
/// The token of the worker's completion queue.
pub(super) const WORKER_CQ: Token = Token(usize::MAX - 1);
/// The upper bound of a linger time, because later times do not fit a clock value.
const MAX_LINGER: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Polls of the completion queue before a worker with several busy connections sleeps.
const LOOKS: u32 = 256;

/// What the calls of a worker use.
pub(crate) struct WorkerInner {
    pub(super) poller: Poller,
    pub(super) config: Config,
    pub(super) pool: Pool,
    /// `pool` is the pool of an RDMA connection, and stays.
    pub(super) pool_is_settled: bool,
    /// The completion queue of the queue pairs, and its channel.
    pub(crate) worker_cq: WorkerCq,
    pub(super) slots: Vec<WorkerSlot>,
    pub(super) free: Vec<u32>,
    pub(super) handshakes: usize,
    pub(super) refusals: Refusals,
    /// Connections that the program has closed and that still send.
    pub(super) closing: usize,
    /// The slot that the service thread has visited last.
    pub(super) next_visited: u32,
    /// Connections with events or calls since their last turn.
    pub(super) dirty: Vec<u32>,
    /// Connections that were ready when they were last examined.
    pub(super) maybe_ready: Vec<u32>,
    /// Connections that wait for a block. The pool wakes the poller for them.
    pub(super) awaiting_memory: Vec<u32>,
    pub(super) timers: BinaryHeap<Reverse<(Instant, Key)>>,
    pub(super) pending_events: VecDeque<Event>,
    /// Polls since the system was last asked, for a worker that spins.
    pub(super) polls: u32,
    /// The last poll found several events.
    pub(super) found_several: bool,
    /// The polls that then precede a sleep.
    pub(crate) looks: u32,
    /// Whether the program has the poller's descriptor.
    pub(super) exported: Cell<bool>,
    /// A [`WorkerWaker`] has ended the poll.
    pub(super) woken: Arc<AtomicBool>,
    /// The counters of connections that are gone.
    pub(super) stats_of_gone: Stats,
}

pub(super) struct WorkerSlot {
    pub(super) generation: u32,
    /// The program's tag.
    pub(super) tag: u64,
    pub(super) state: SlotState,
    /// The earliest of its timers. No later timer is added before this one expires, so turns add
    /// none.
    pub(super) due: Option<Instant>,
    pub(super) dirty: bool,
    pub(super) maybe_ready: bool,
    pub(super) awaiting_memory: bool,
}

pub(super) enum SlotState {
    Nothing,
    Listening {
        acceptor: Box<Acceptor>,
        kind: Kind,
        may_accept: bool,
    },
    Arriving {
        handshake: Box<PendingHandshake>,
        listener: Option<Key>,
    },
    Open(OpenSlot),
    /// The program has closed it, and written bytes or a RESET are still to be sent.
    Closing {
        connection: Box<Connection>,
        until: Instant,
    },
}

pub(super) struct OpenSlot {
    pub(super) connection: Box<Connection>,
    pub(super) readiness_state: ReadinessState,
    /// A call waits until no written byte depends on this process.
    pub(super) awaits_drain: bool,
    /// A call has posted since the last turn. What later calls queue goes together, in the next turn.
    pub(super) posted: bool,
}

impl WorkerInner {
    pub(super) fn new(config: &Config) -> io::Result<Self> {
        Ok(Self {
            poller: Poller::new(EVENTS_PER_POLL)?,
            pool: pool_of(config)?,
            pool_is_settled: false,
            config: config.clone(),
            worker_cq: WorkerCq::default(),
            exported: Cell::new(false),
            woken: Arc::default(),
            stats_of_gone: Stats::default(),
            slots: Vec::new(),
            free: Vec::new(),
            handshakes: 0,
            refusals: Refusals::default(),
            closing: 0,
            next_visited: 0,
            dirty: Vec::new(),
            maybe_ready: Vec::new(),
            awaiting_memory: Vec::new(),
            timers: BinaryHeap::new(),
            pending_events: VecDeque::new(),
            polls: 0,
            found_several: false,
            looks: if *ONE_PROCESSOR { 0 } else { LOOKS },
        })
    }

    pub(super) fn listen(&mut self, addr: impl ToSocketAddrs, kind: Kind) -> io::Result<Key> {
        let acceptor = self.config.listen(addr)?;
        self.add_acceptor(acceptor, kind)
    }

    pub(super) fn add_acceptor(&mut self, acceptor: Acceptor, kind: Kind) -> io::Result<Key> {
        let mut acceptor = Box::new(acceptor);
        let key = self.allocate_slot();
        if let Err(error) = acceptor.register(self.poller.registry(), token(key.index)) {
            self.free_slot(key.index);
            return Err(error);
        }
        self.slot(key.index).state = SlotState::Listening { acceptor, kind, may_accept: true };
        self.mark_dirty(key.index);
        Ok(key)
    }

    pub(super) fn connect(&mut self, addr: impl ToSocketAddrs, kind: Kind) -> io::Result<Key> {
        let address = addr.to_socket_addrs().map_err(ConnectError::Resolve)?.next();
        let address =
            address.ok_or_else(|| io::Error::new(ErrorKind::InvalidInput, "the address names no host"))?;
        let key = self.allocate_slot();
        let handshake =
            PendingHandshake::connecting(address, kind, &self.config, Some(self.worker_cq.slot(key.index)));
        self.start_handshake(key, handshake, None)
    }

    pub(super) fn close(&mut self, key: Key) {
        // A key of another worker may equal that of a slot which is free, or which closes already.
        if self
            .slot_state(key)
            .is_ok_and(|state| !matches!(state, SlotState::Nothing | SlotState::Closing { .. }))
        {
            self.close_slot(key);
        }
    }

    fn close_slot(&mut self, key: Key) {
        let slot = self.slot(key.index);
        // Otherwise calls with the old key would reach the connection. The timer has the old key, too.
        slot.generation = slot.generation.wrapping_add(1);
        slot.due = None;
        match std::mem::replace(&mut slot.state, SlotState::Nothing) {
            SlotState::Open(OpenSlot { mut connection, .. }) if connection.is_alone() => {
                if let Err(error) = connection.deregister(&self.poller) {
                    tracing::error!(%error, "a socket stays in the set of its worker");
                }
                self.stats_of_gone += connection.stats();
                self.free_slot(key.index);
                let linger = connection.linger();
                closing::finish(*connection, linger);
            }
            SlotState::Open(OpenSlot { mut connection, .. }) => {
                let linger = connection.linger();
                lingering::close_or_reset(&mut *connection, linger);
                let until = Instant::now() + linger.min(MAX_LINGER);
                let generation = slot.generation;
                slot.state = SlotState::Closing { connection, until };
                self.closing += 1;
                self.timers.push(Reverse((until, Key { index: key.index, generation })));
                // The program may never poll again.
                self.progress_closing(key.index);
            }
            other => {
                slot.state = other;
                self.remove(key.index);
            }
        }
    }

    pub(super) fn local_addr(&self, key: Key) -> io::Result<SocketAddr> {
        match self.slot_state(key)? {
            SlotState::Listening { acceptor, .. } => acceptor.local_addr(),
            _ => Ok(self.connection(key)?.info.local),
        }
    }

    pub(super) fn set_tag(&mut self, key: Key, tag: u64) -> io::Result<()> {
        self.slot_state(key)?;
        self.slot(key.index).tag = tag;
        Ok(())
    }

    pub(super) fn tag(&self, key: Key) -> io::Result<u64> {
        self.slot_state(key)?;
        Ok(self.slots[key.index as usize].tag)
    }

    pub(super) fn total_stats(&self) -> Stats {
        let open = self.slots.iter().filter_map(|slot| match &slot.state {
            SlotState::Open(OpenSlot { connection, .. }) | SlotState::Closing { connection, .. } => {
                Some(connection.stats())
            }
            _ => None,
        });
        self.stats_of_gone + open.sum()
    }

    /// The connections and listeners, and how many of them are still handshakes.
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.slots.len() - self.free.len(), self.handshakes)
    }

    pub(super) fn open(&mut self, connection: Connection) -> io::Result<Key> {
        let key = self.allocate_slot();
        match self.install(key.index, connection) {
            Ok(()) => Ok(key),
            Err(error) => {
                self.free_slot(key.index);
                Err(error)
            }
        }
    }

    pub(super) fn install(&mut self, index: u32, mut connection: Connection) -> io::Result<()> {
        connection.register(&self.poller, token(index))?;
        self.settle_pool(&connection);
        connection.time_calls();
        self.slot(index).state = SlotState::Open(OpenSlot {
            connection: Box::new(connection),
            readiness_state: ReadinessState::default(),
            awaits_drain: false,
            posted: false,
        });
        self.mark_dirty(index);
        Ok(())
    }

    /// Adopts the pool of the first RDMA connection, so that programs fill blocks of its device.
    pub(super) fn settle_pool(&mut self, connection: &Connection) {
        let over_rdma = connection.info.transport() == Transport::Rdma;
        let is_better = self.pool.is_given_up() || over_rdma && !self.pool_is_settled;
        if is_better
            && self.config.given_pool.is_none()
            && *connection.pool.config() == self.config.pool_config()
        {
            (self.pool, self.pool_is_settled) = (connection.pool.clone(), over_rdma);
        }
    }

    /// Returns the key of a free slot.
    pub(super) fn allocate_slot(&mut self) -> Key {
        let index = self.free.pop().unwrap_or_else(|| {
            let slot = WorkerSlot {
                generation: 0,
                tag: 0,
                state: SlotState::Nothing,
                due: None,
                dirty: false,
                maybe_ready: false,
                awaiting_memory: false,
            };
            self.slots.push(slot);
            self.slots.len() as u32 - 1
        });
        self.key(index)
    }

    /// Frees a slot.
    pub(super) fn remove(&mut self, index: u32) {
        let registry = self.poller.registry();
        self.closing -= usize::from(matches!(self.slots[index as usize].state, SlotState::Closing { .. }));
        let gone = match &mut self.slots[index as usize].state {
            SlotState::Listening { acceptor, .. } => acceptor.deregister(registry),
            SlotState::Arriving { handshake, .. } => {
                self.handshakes -= 1;
                handshake.deregister(registry)
            }
            SlotState::Open(OpenSlot { connection, .. }) | SlotState::Closing { connection, .. } => {
                self.stats_of_gone += connection.stats();
                connection.deregister(&self.poller)
            }
            SlotState::Nothing => Ok(()),
        };
        if let Err(error) = gone {
            tracing::error!(%error, "a socket stays in the set of its worker");
        }
        self.free_slot(index);
    }

    pub(super) fn free_slot(&mut self, index: u32) {
        let slot = self.slot(index);
        slot.state = SlotState::Nothing;
        slot.due = None;
        slot.generation = slot.generation.wrapping_add(1);
        slot.tag = 0;
        self.free.push(index);
    }

    pub(super) fn slot(&mut self, index: u32) -> &mut WorkerSlot {
        &mut self.slots[index as usize]
    }

    pub(super) fn key(&self, index: u32) -> Key {
        Key { index, generation: self.slots[index as usize].generation }
    }

    pub(super) fn has(&self, key: Key) -> bool {
        self.slots.get(key.index as usize).is_some_and(|slot| slot.generation == key.generation)
    }

    /// The transport driver of a connection.
    #[cfg(all(test, feature = "rdma"))]
    pub(crate) fn driver(&mut self, key: Key) -> &mut crate::transport::TransportDriver {
        self.open_slot(key).expect("open").connection.driver()
    }

    pub(super) fn slot_state(&self, key: Key) -> io::Result<&SlotState> {
        if !self.has(key) {
            return Err(no_connection());
        }
        Ok(&self.slots[key.index as usize].state)
    }

    pub(super) fn connection(&self, key: Key) -> io::Result<&Connection> {
        match self.slot_state(key)? {
            SlotState::Open(OpenSlot { connection, .. }) => Ok(connection),
            _ => Err(no_connection()),
        }
    }

    pub(super) fn open_slot(&mut self, key: Key) -> io::Result<&mut OpenSlot> {
        if !self.has(key) {
            return Err(no_connection());
        }
        match &mut self.slot(key.index).state {
            SlotState::Open(open) => Ok(open),
            _ => Err(no_connection()),
        }
    }

    /// Schedules a turn for the connection.
    pub(super) fn mark_dirty(&mut self, index: u32) {
        if !std::mem::replace(&mut self.slot(index).dirty, true) {
            self.dirty.push(index);
        }
    }

    /// Has the next delivery examine the connection.
    pub(super) fn mark_ready(&mut self, index: u32) {
        if !std::mem::replace(&mut self.slot(index).maybe_ready, true) {
            self.maybe_ready.push(index);
        }
    }
}

pub(super) fn token(index: u32) -> Token {
    Token(index as usize)
}

fn no_connection() -> io::Error {
    io::Error::new(
        ErrorKind::NotConnected,
        "the worker has no such connection: it was closed, or is not yet there",
    )
}
