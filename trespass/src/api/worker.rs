//! A worker: many connections on one thread, like an event loop. This file has its slots,
//! [`progress`] the event loop, [`calls`] the calls on a connection, [`handshakes`] the making of
//! connections, and [`dropped`] the end.

mod calls;
mod dropped;
mod events;
mod handshakes;
mod progress;
#[cfg(test)]
mod tests;
mod waker;

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::fmt;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use mio::Token;

pub use self::events::{Event, Key};
pub use self::waker::WorkerWaker;
use crate::api::seq_packet::SeqPacket;
use crate::api::stream::Stream;
use crate::config::Config;
use crate::handshake::{FallbackReason, Transport};
use crate::pool::Pool;
use crate::process::Process;
use crate::session::acceptor::Acceptor;
use crate::session::closing;
use crate::session::connection::Connection;
use crate::session::pending::PendingHandshake;
use crate::session::readiness::{Poller, ReadinessState, Until};
use crate::session::stats::Stats;
use crate::transport::WorkerCq;
use crate::transport::pools::pool_of;
use crate::wire::Kind;

/// System events taken in one call.
const EVENTS_PER_POLL: usize = 256;
/// The token of the worker's completion queue.
const WORKER_CQ: Token = Token(usize::MAX - 1);
/// The upper bound of a linger time, because later times do not fit a clock value.
const MAX_LINGER: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Many connections on one thread. They share the descriptor to wait for, the pool and, over RDMA,
/// the completion queue.
///
/// A stream that [`add`](Self::add) moves in keeps its own completion queue.
///
/// [`poll`](Self::poll) does all the work: it sends what earlier calls queued, receives, continues
/// handshakes, and reports events. Other calls never wait and make no system call. The next poll
/// sends what they queued.
///
/// ```
/// use trespass::{Builder, Event, Kind, Worker};
///
/// // Echoes messages until the first client closes its connection.
/// fn serve(worker: &mut Worker) -> std::io::Result<()> {
///     let (mut events, mut message) = (Vec::new(), vec![0; 4096]);
///     loop {
///         worker.poll(&mut events, None)?;
///         for event in events.drain(..) {
///             let Event::Ready { key, readiness, .. } = event else { continue };
///             while readiness.readable {
///                 match worker.recv(key, &mut message) {
///                     Ok(len) => worker.send(key, &message[..len])?,
///                     Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
///                     Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
///                         return Ok(worker.close(key));
///                     }
///                     Err(error) => return Err(error),
///                 }
///             }
///         }
///     }
/// }
///
/// # fn main() -> std::io::Result<()> {
/// let mut worker = Worker::new(&Builder::new().build()?)?;
/// let listener = worker.listen("127.0.0.1:0", Kind::SeqPacket)?;
/// let addr = worker.local_addr(listener)?;
/// let client = std::thread::spawn(move || -> std::io::Result<Vec<u8>> {
///     let mut echo = trespass::SeqPacket::connect(addr)?;
///     echo.send(b"hello")?;
///     let mut answer = vec![0; 100];
///     let len = echo.recv(&mut answer)?;
///     Ok(answer[..len].to_vec())
/// });
/// serve(&mut worker)?;
/// assert_eq!(client.join().unwrap()?, b"hello");
/// # Ok(())
/// # }
/// ```
///
/// # A worker for each core
///
/// Each thread of a server has a worker, and all listen on one port
/// ([`Builder::reuse_port`](crate::Builder::reuse_port)). A [`WorkerWaker`] ends their polls when the
/// server stops. A drop closes the connections and does not wait for their peers.
///
/// ```no_run
/// use std::sync::atomic::{AtomicBool, Ordering};
/// use trespass::{Builder, Kind, Worker};
///
/// # fn serve(worker: &mut Worker, events: &mut Vec<trespass::Event>) { events.clear() }
/// static STOPS: AtomicBool = AtomicBool::new(false);
///
/// # fn main() -> std::io::Result<()> {
/// let config = Builder::new().reuse_port(true).build()?;
/// let mut wakers = Vec::new();
/// for _ in 0..std::thread::available_parallelism()?.get() {
///     let mut worker = Worker::new(&config)?;
///     worker.listen("0.0.0.0:7000", Kind::Stream)?;
///     wakers.push(worker.waker());
///     std::thread::spawn(move || -> std::io::Result<()> {
///         let mut events = Vec::new();
///         while !STOPS.load(Ordering::Relaxed) {
///             worker.poll(&mut events, None)?;
///             serve(&mut worker, &mut events);
///         }
///         Ok(())
///     });
/// }
/// // To stop:
/// STOPS.store(true, Ordering::Relaxed);
/// wakers.iter().for_each(|waker| waker.wake());
/// # Ok(())
/// # }
/// ```
pub struct Worker {
    poller: Poller,
    config: Config,
    pool: Pool,
    /// `pool` is the pool of an RDMA connection, and stays.
    pool_is_settled: bool,
    /// The completion queue of the queue pairs, and its channel.
    pub(crate) worker_cq: WorkerCq,
    slots: Vec<WorkerSlot>,
    free: Vec<u32>,
    handshakes: usize,
    /// Connections that the program has closed and that still send.
    closing: usize,
    /// Connections with events or calls since their last turn.
    dirty: Vec<u32>,
    /// Connections that were ready when they were last examined.
    maybe_ready: Vec<u32>,
    /// Connections that wait for a block. The pool wakes the poller for them.
    awaiting_memory: Vec<u32>,
    timers: BinaryHeap<Reverse<(Instant, Key)>>,
    pending_events: VecDeque<Event>,
    /// Polls since the system was last asked, for a worker that spins.
    polls: u32,
    /// The process that made it.
    process: Process,
    /// Whether the program has the poller's descriptor.
    exported: Cell<bool>,
    /// A [`WorkerWaker`] has ended the poll.
    woken: Arc<AtomicBool>,
    /// The counters of connections that are gone.
    stats_of_gone: Stats,
    /// The service thread owns it, and its drop closes nothing more.
    is_handed_over: bool,
}

struct WorkerSlot {
    generation: u32,
    /// The program's tag.
    tag: u64,
    state: SlotState,
    /// The earliest of its timers. No later timer is added before this one expires, so turns add
    /// none.
    due: Option<Instant>,
    dirty: bool,
    maybe_ready: bool,
    awaiting_memory: bool,
}

enum SlotState {
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
    Open {
        connection: Box<Connection>,
        readiness_state: ReadinessState,
    },
    /// The program has closed it, and written bytes are still to be sent.
    Closing {
        connection: Box<Connection>,
        until: Instant,
    },
}

impl Worker {
    /// Makes a worker without connections.
    ///
    /// # Errors
    ///
    /// The system has no free descriptors, or no memory for the pool.
    pub fn new(config: &Config) -> io::Result<Self> {
        Ok(Self {
            poller: Poller::new(EVENTS_PER_POLL)?,
            pool: pool_of(config)?,
            pool_is_settled: false,
            config: config.clone(),
            worker_cq: WorkerCq::default(),
            process: Process::current(),
            exported: Cell::new(false),
            woken: Arc::default(),
            stats_of_gone: Stats::default(),
            is_handed_over: false,
            slots: Vec::new(),
            free: Vec::new(),
            handshakes: 0,
            closing: 0,
            dirty: Vec::new(),
            maybe_ready: Vec::new(),
            awaiting_memory: Vec::new(),
            timers: BinaryHeap::new(),
            pending_events: VecDeque::new(),
            polls: 0,
        })
    }

    /// Listens. [`Event::Accepted`] reports each client.
    ///
    /// # Errors
    ///
    /// Those of [`Config::bind`].
    pub fn listen(&mut self, addr: impl ToSocketAddrs, kind: Kind) -> io::Result<Key> {
        self.check_process()?;
        let acceptor = self.config.listen(addr)?;
        self.add_acceptor(acceptor, kind)
    }

    /// Listens with a socket that already listens, as [`Config::listen_with`] does.
    ///
    /// # Errors
    ///
    /// The system cannot make the socket non-blocking, or register it.
    pub fn listen_with(&mut self, socket: TcpListener, kind: Kind) -> io::Result<Key> {
        self.check_process()?;
        self.add_acceptor(Config::acceptor_of(socket)?, kind)
    }

    fn add_acceptor(&mut self, acceptor: Acceptor, kind: Kind) -> io::Result<Key> {
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

    /// Connects to the first address that accepts. [`Event::Connected`] or [`Event::Failed`]
    /// reports the result.
    ///
    /// # Errors
    ///
    /// The address does not resolve, or the system has no socket for it.
    pub fn connect(&mut self, addr: impl ToSocketAddrs, kind: Kind) -> io::Result<Key> {
        self.check_process()?;
        let address = addr.to_socket_addrs()?.next();
        let address =
            address.ok_or_else(|| io::Error::new(ErrorKind::InvalidInput, "the address names no host"))?;
        let key = self.allocate_slot();
        let handshake =
            PendingHandshake::connecting(address, kind, &self.config, Some(self.worker_cq.slot(key.index)));
        self.start_handshake(key, handshake, None)
    }

    /// Moves a stream into the worker.
    ///
    /// # Errors
    ///
    /// The system cannot register its descriptor. The stream is then closed.
    pub fn add(&mut self, stream: Stream) -> io::Result<Key> {
        let connection = stream.0.into_connection()?;
        self.open(connection)
    }

    /// Moves a connection for messages into the worker.
    ///
    /// # Errors
    ///
    /// The system cannot register its descriptor. The connection is then closed.
    pub fn add_seq_packet(&mut self, packets: SeqPacket) -> io::Result<Key> {
        let connection = packets.0.into_connection()?;
        self.open(connection)
    }

    /// Closes a connection or a listener, and ends its key. A thread of this crate sends the written
    /// bytes; those of a connection that shares the worker's completion queue are sent by later polls,
    /// or after the worker's drop. After the linger time, or the one of [`Stream::set_linger`], the
    /// connection is reset.
    pub fn close(&mut self, key: Key) {
        if !self.has(key) || !self.process.is_current() {
            return;
        }
        let slot = self.slot(key.index);
        // Otherwise calls with the old key would reach the connection.
        slot.generation = slot.generation.wrapping_add(1);
        match std::mem::replace(&mut slot.state, SlotState::Nothing) {
            SlotState::Open { mut connection, .. } if connection.is_alone() => {
                if let Err(error) = connection.deregister(&self.poller) {
                    tracing::error!(%error, "a socket stays in the set of its worker");
                }
                if !connection.linger().is_zero() {
                    connection.close();
                    connection.progress();
                }
                self.stats_of_gone += connection.stats();
                self.free_slot(key.index);
                let linger = connection.linger();
                closing::finish(*connection, linger);
            }
            SlotState::Open { mut connection, .. } => {
                if connection.linger().is_zero() {
                    connection.abort();
                } else {
                    connection.close();
                }
                let until = Instant::now() + connection.linger().min(MAX_LINGER);
                let generation = slot.generation;
                slot.state = SlotState::Closing { connection, until };
                self.closing += 1;
                self.timers.push(Reverse((until, Key { index: key.index, generation })));
                self.mark_dirty(key.index);
            }
            other => {
                slot.state = other;
                self.remove(key.index);
            }
        }
    }

    /// The local address of a listener or a connection.
    ///
    /// # Errors
    ///
    /// The key is unknown, or the connection is not established yet.
    pub fn local_addr(&self, key: Key) -> io::Result<SocketAddr> {
        match self.slot_state(key)? {
            SlotState::Listening { acceptor, .. } => acceptor.local_addr(),
            _ => Ok(self.connection(key)?.info.local),
        }
    }

    /// The peer's address of a connection.
    ///
    /// # Errors
    ///
    /// No connection has this key.
    pub fn peer_addr(&self, key: Key) -> io::Result<SocketAddr> {
        Ok(self.connection(key)?.info.peer)
    }

    /// The transport of a connection: RDMA or TCP.
    ///
    /// # Errors
    ///
    /// No connection has this key.
    pub fn transport(&self, key: Key) -> io::Result<Transport> {
        Ok(self.connection(key)?.info.transport())
    }

    /// Why a connection uses TCP instead of RDMA.
    ///
    /// # Errors
    ///
    /// No connection has this key.
    pub fn fallback_reason(&self, key: Key) -> io::Result<Option<&FallbackReason>> {
        Ok(self.connection(key)?.info.fallback.as_ref())
    }

    /// The bytes that the peer set ([`Stream::peer_user_data`]).
    ///
    /// # Errors
    ///
    /// No connection has this key.
    pub fn peer_user_data(&self, key: Key) -> io::Result<&[u8]> {
        Ok(&self.connection(key)?.peer_user_data)
    }

    /// Sets the program's tag of a connection or a listener, which all of its events carry: an
    /// index into the program's own state, for example. It is 0 at first, or that of the accepting
    /// listener.
    ///
    /// # Errors
    ///
    /// No connection or listener has this key.
    pub fn set_tag(&mut self, key: Key, tag: u64) -> io::Result<()> {
        self.slot_state(key)?;
        self.slot(key.index).tag = tag;
        Ok(())
    }

    /// The tag that [`set_tag`](Self::set_tag) set.
    ///
    /// # Errors
    ///
    /// No connection or listener has this key.
    pub fn tag(&self, key: Key) -> io::Result<u64> {
        self.slot_state(key)?;
        Ok(self.slots[key.index as usize].tag)
    }

    /// Counters of a connection since it was made.
    ///
    /// # Errors
    ///
    /// No connection has this key.
    pub fn stats(&self, key: Key) -> io::Result<Stats> {
        Ok(self.connection(key)?.stats())
    }

    /// The sum of the counters of all connections that the worker has had. What a closed connection
    /// sends later is not counted.
    #[must_use]
    pub fn total_stats(&self) -> Stats {
        let open = self.slots.iter().filter_map(|slot| match &slot.state {
            SlotState::Open { connection, .. } | SlotState::Closing { connection, .. } => {
                Some(connection.stats())
            }
            _ => None,
        });
        self.stats_of_gone + open.sum()
    }

    /// A handle that ends the [`poll`](Self::poll) of this worker from any thread.
    #[must_use]
    pub fn waker(&self) -> WorkerWaker {
        WorkerWaker { woken: self.woken.clone(), wake_handle: self.poller.wake_handle().clone() }
    }

    /// The pool of the worker's connections. With several devices, each has a pool
    /// ([`pool_of`](Self::pool_of)), and this is the first device's; after that device fails, the
    /// next one's. A block of any pool can be sent on any connection. It is copied for another
    /// device.
    #[must_use]
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// The pool of a connection.
    ///
    /// # Errors
    ///
    /// No connection has this key.
    pub fn pool_of(&self, key: Key) -> io::Result<&Pool> {
        Ok(&self.connection(key)?.pool)
    }

    /// Does all pending work, waits for events if there are none, up to `timeout` (`None` waits
    /// without limit), and appends the events to `events`. It sleeps while it waits, unless
    /// [`worker_spin`](crate::Builder::worker_spin) says otherwise.
    ///
    /// # Errors
    ///
    /// The system cannot wait.
    pub fn poll(&mut self, events: &mut Vec<Event>, timeout: Option<Duration>) -> io::Result<()> {
        self.check_process()?;
        let polled = self.poll_until(events, timeout);
        if self.exported.get()
            && let Until::Deadline(at) = self.until(Until::Event)
        {
            self.poller.wake_at(Some(at));
        }
        polled
    }

    /// Fails in a forked child.
    fn check_process(&self) -> io::Result<()> {
        if self.process.is_current() { Ok(()) } else { Err(Process::error("worker")) }
    }

    fn poll_until(&mut self, events: &mut Vec<Event>, timeout: Option<Duration>) -> io::Result<()> {
        let mut limit = Until::from(timeout.and_then(|timeout| Instant::now().checked_add(timeout)));
        loop {
            if self.woken.swap(false, Ordering::AcqRel) {
                limit = Until::Now;
            }
            if self.spin(limit, events)? {
                self.woken.swap(false, Ordering::AcqRel);
                return Ok(());
            }
            self.work();
            let before = events.len();
            self.deliver_events(events);
            let has_news = events.len() > before;
            let until = if has_news || !self.dirty.is_empty() { Until::Now } else { self.until(limit) };
            self.wait_for_events(until)?;
            if has_news || (self.dirty.is_empty() && limit.is_over()) {
                return Ok(());
            }
            self.work();
            self.deliver_events(events);
            if events.len() > before || limit.is_over() || self.woken.swap(false, Ordering::AcqRel) {
                return Ok(());
            }
        }
    }

    fn open(&mut self, connection: Connection) -> io::Result<Key> {
        self.check_process()?;
        let key = self.allocate_slot();
        match self.install(key.index, connection) {
            Ok(()) => Ok(key),
            Err(error) => {
                self.free_slot(key.index);
                Err(error)
            }
        }
    }

    fn install(&mut self, index: u32, mut connection: Connection) -> io::Result<()> {
        connection.register(&self.poller, token(index))?;
        self.settle_pool(&connection);
        self.slot(index).state =
            SlotState::Open { connection: Box::new(connection), readiness_state: ReadinessState::default() };
        self.mark_dirty(index);
        Ok(())
    }

    /// Adopts the pool of the first RDMA connection, so that programs fill blocks of its device.
    fn settle_pool(&mut self, connection: &Connection) {
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
    fn allocate_slot(&mut self) -> Key {
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
    fn remove(&mut self, index: u32) {
        let registry = self.poller.registry();
        self.closing -= usize::from(matches!(self.slots[index as usize].state, SlotState::Closing { .. }));
        let gone = match &mut self.slots[index as usize].state {
            SlotState::Listening { acceptor, .. } => acceptor.deregister(registry),
            SlotState::Arriving { handshake, .. } => {
                self.handshakes -= 1;
                handshake.deregister(registry)
            }
            SlotState::Open { connection, .. } | SlotState::Closing { connection, .. } => {
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

    fn free_slot(&mut self, index: u32) {
        let slot = self.slot(index);
        slot.state = SlotState::Nothing;
        slot.due = None;
        slot.generation = slot.generation.wrapping_add(1);
        slot.tag = 0;
        self.free.push(index);
    }

    fn slot(&mut self, index: u32) -> &mut WorkerSlot {
        &mut self.slots[index as usize]
    }

    fn key(&self, index: u32) -> Key {
        Key { index, generation: self.slots[index as usize].generation }
    }

    fn has(&self, key: Key) -> bool {
        self.slots.get(key.index as usize).is_some_and(|slot| slot.generation == key.generation)
    }

    /// The transport driver of a connection.
    #[cfg(all(test, feature = "rdma"))]
    pub(crate) fn driver(&mut self, key: Key) -> &mut crate::transport::TransportDriver {
        let (connection, _) = self.open_connection(key).expect("open");
        connection.driver()
    }

    fn slot_state(&self, key: Key) -> io::Result<&SlotState> {
        if !self.has(key) {
            return Err(no_connection());
        }
        Ok(&self.slots[key.index as usize].state)
    }

    fn connection(&self, key: Key) -> io::Result<&Connection> {
        match self.slot_state(key)? {
            SlotState::Open { connection, .. } => Ok(connection),
            _ => Err(no_connection()),
        }
    }

    fn open_connection(&mut self, key: Key) -> io::Result<(&mut Connection, &mut ReadinessState)> {
        self.check_process()?;
        if !self.has(key) {
            return Err(no_connection());
        }
        match &mut self.slot(key.index).state {
            SlotState::Open { connection, readiness_state } => Ok((connection, readiness_state)),
            _ => Err(no_connection()),
        }
    }

    /// Schedules a turn for the connection.
    fn mark_dirty(&mut self, index: u32) {
        if !std::mem::replace(&mut self.slot(index).dirty, true) {
            self.dirty.push(index);
        }
    }

    /// Has the next delivery examine the connection.
    fn mark_ready(&mut self, index: u32) {
        if !std::mem::replace(&mut self.slot(index).maybe_ready, true) {
            self.maybe_ready.push(index);
        }
    }
}

fn token(index: u32) -> Token {
    Token(index as usize)
}

fn no_connection() -> io::Error {
    io::Error::new(
        ErrorKind::NotConnected,
        "the worker has no such connection: it was closed, or is not yet there",
    )
}

/// The descriptor to wait for. It is readable when [`poll`](Worker::poll) has work, and may be
/// readable without cause. It does not report bytes that calls have queued: poll once without
/// waiting before each wait.
#[cfg(unix)]
impl std::os::fd::AsFd for Worker {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        if !self.exported.replace(true) {
            self.poller.wake();
        }
        self.poller.descriptor()
    }
}

#[cfg(unix)]
impl std::os::fd::AsRawFd for Worker {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        std::os::fd::AsFd::as_fd(self).as_raw_fd()
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let used = self.slots.len() - self.free.len();
        write!(f, "Worker({used} connections and listeners, {} of them on their way)", self.handshakes)
    }
}
