//! A worker: many connections on one thread, like an event loop. This file has its slots and keys;
//! [`progress`] has the event loop, [`calls`] the calls on a connection, and [`handshakes`] the
//! making of connections.

mod calls;
mod handshakes;
mod progress;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::fmt;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::{Duration, Instant};

use mio::Token;

use crate::api::seq_packet::SeqPacket;
use crate::api::stream::Stream;
use crate::config::Config;
use crate::handshake::{FallbackReason, Transport};
use crate::pool::Pool;
use crate::session::acceptor::Acceptor;
use crate::session::buffers::Completion;
use crate::session::connection::Connection;
use crate::session::pending::PendingHandshake;
use crate::session::readiness::{Poller, Readiness, ReadinessState, Until};
use crate::session::stats::Stats;
use crate::transport::WorkerCq;
use crate::transport::pools::pool_of;
use crate::wire::Kind;

/// Events of the system that are taken at a time.
const EVENTS_PER_POLL: usize = 256;
/// The key of the worker's completion queue.
const WORKER_CQ: Token = Token(usize::MAX - 1);
/// No connection lingers longer, whatever it was told: later times are more than a clock has.
const MAX_LINGER: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Names something of a worker: a connection, or a listener. Keys of what is gone are never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    index: u32,
    generation: u32,
}

/// What a worker has to tell.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// A client has come.
    Accepted {
        /// Where.
        listener: Key,
        /// The listener's [tag](Worker::set_tag), which is the connection's as well until that has one of its own.
        tag: u64,
        /// The connection.
        key: Key,
        /// Whose it is.
        peer: SocketAddr,
    },
    /// A connection of the worker's own has come about.
    Connected {
        /// Which.
        key: Key,
        /// Its [tag](Worker::set_tag).
        tag: u64,
    },
    /// A connection of the worker's own has not come about, or a listener cannot accept. The key of the connection is no more.
    Failed {
        /// Which.
        key: Key,
        /// Its [tag](Worker::set_tag).
        tag: u64,
        /// Why.
        error: io::Error,
    },
    /// Calls would find something. It is told at every [`poll`](Worker::poll) until they have.
    Ready {
        /// Of which connection.
        key: Key,
        /// Its [tag](Worker::set_tag).
        tag: u64,
        /// Which calls.
        readiness: Readiness,
    },
    /// A block that was lent comes back.
    Completed {
        /// Of which connection.
        key: Key,
        /// Its [tag](Worker::set_tag).
        tag: u64,
        /// The block.
        completion: Completion,
    },
}

/// Many connections on one thread, which share what can be shared: what is waited for, the pool, and, over RDMA, the completion queue.
///
/// Streams that come with all of their own ([`add`](Self::add)) keep their completion queue.
///
/// A worker does everything in [`poll`](Self::poll): it sends what calls have left since, takes in what has arrived, goes on with
/// handshakes, and says what has become of it. Its other calls never wait, and cost no system call: what they send goes with the
/// next poll.
///
/// ```
/// use trespass::{Builder, Event, Kind, Worker};
///
/// // Echoes messages until the first client is gone.
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
///                     Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(worker.close(key)),
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
pub struct Worker {
    poller: Poller,
    config: Config,
    pool: Pool,
    /// That is the pool of connections over RDMA.
    pool_is_settled: bool,
    /// Where queue pairs complete.
    pub(crate) worker_cq: WorkerCq,
    slots: Vec<WorkerSlot>,
    free: Vec<u32>,
    handshakes: usize,
    /// Connections that the program has closed, and that are not yet gone.
    closing: usize,
    /// Connections that calls or the system have done something to, to be given a turn.
    dirty: Vec<u32>,
    /// Connections that calls would find something of when it was last looked.
    maybe_ready: Vec<u32>,
    /// Connections that wait for memory, or for the program to give some back: the poller is woken for it.
    awaiting_memory: Vec<u32>,
    timers: BinaryHeap<Reverse<(Instant, Key)>>,
    pending_events: VecDeque<Event>,
    /// Looks since the system was last asked, of a worker that spins.
    polls: u32,
}

struct WorkerSlot {
    generation: u32,
    /// The program's.
    tag: u64,
    state: SlotState,
    /// The first of its timers: a later one waits until this is over, so that turns make no more of them.
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
    /// The program has closed it; what was written still has to go.
    Closing {
        connection: Box<Connection>,
        until: Instant,
    },
}

impl Worker {
    /// A worker without connections.
    ///
    /// # Errors
    ///
    /// The system has no descriptors, or no memory for the pool.
    pub fn new(config: &Config) -> io::Result<Self> {
        Ok(Self {
            poller: Poller::new(EVENTS_PER_POLL)?,
            pool: pool_of(config)?,
            pool_is_settled: false,
            config: config.clone(),
            worker_cq: WorkerCq::default(),
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

    // What there is.

    /// Listens. Who comes is told by [`Event::Accepted`].
    ///
    /// # Errors
    ///
    /// As [`Config::bind`].
    pub fn listen(&mut self, addr: impl ToSocketAddrs, kind: Kind) -> io::Result<Key> {
        let mut acceptor = Box::new(self.config.listen(addr)?);
        let key = self.allocate_slot();
        acceptor.register(self.poller.registry(), token(key.index))?;
        self.slot(key.index).state = SlotState::Listening { acceptor, kind, may_accept: true };
        self.mark_dirty(key.index);
        Ok(key)
    }

    /// Connects with the first of the addresses. What comes of it is told by [`Event::Connected`] or [`Event::Failed`].
    ///
    /// # Errors
    ///
    /// The address names no host, or there is no socket for it.
    pub fn connect(&mut self, addr: impl ToSocketAddrs, kind: Kind) -> io::Result<Key> {
        let address = addr.to_socket_addrs()?.next();
        let address =
            address.ok_or_else(|| io::Error::new(ErrorKind::InvalidInput, "the address names no host"))?;
        let key = self.allocate_slot();
        let handshake =
            PendingHandshake::connecting(address, kind, &self.config, Some(self.worker_cq.slot(key.index)));
        self.start_handshake(key, handshake, None)
    }

    /// Takes over a stream.
    ///
    /// # Errors
    ///
    /// The system cannot wait for it here; it is closed then.
    pub fn add(&mut self, stream: Stream) -> io::Result<Key> {
        let connection = stream.0.into_connection()?;
        self.open(connection)
    }

    /// Takes over a connection for messages.
    ///
    /// # Errors
    ///
    /// The system cannot wait for it here; it is closed then.
    pub fn add_seq_packet(&mut self, packets: SeqPacket) -> io::Result<Key> {
        let connection = packets.0.into_connection()?;
        self.open(connection)
    }

    /// Closes a connection, or a listener: the key is no more. What was written still goes out, with the next polls; after the linger
    /// time, which is the stream's own where that has one ([`Stream::set_linger`]), the connection is reset.
    pub fn close(&mut self, key: Key) {
        if !self.has(key) {
            return;
        }
        let slot = self.slot(key.index);
        // Else the calls that still have the key would go on.
        slot.generation = slot.generation.wrapping_add(1);
        match std::mem::replace(&mut slot.state, SlotState::Nothing) {
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

    /// Where a listener listens, or this side's end of a connection is.
    ///
    /// # Errors
    ///
    /// There is no such key, or no connection yet.
    pub fn local_addr(&self, key: Key) -> io::Result<SocketAddr> {
        match self.slot_state(key)? {
            SlotState::Listening { acceptor, .. } => acceptor.local_addr(),
            _ => Ok(self.connection(key)?.info.local),
        }
    }

    /// Where the peer's end of a connection is.
    ///
    /// # Errors
    ///
    /// There is no such connection.
    pub fn peer_addr(&self, key: Key) -> io::Result<SocketAddr> {
        Ok(self.connection(key)?.info.peer)
    }

    /// What carries a connection.
    ///
    /// # Errors
    ///
    /// There is no such connection.
    pub fn transport(&self, key: Key) -> io::Result<Transport> {
        Ok(self.connection(key)?.info.transport())
    }

    /// Why it is not RDMA that carries a connection, if it is not.
    ///
    /// # Errors
    ///
    /// There is no such connection.
    pub fn fallback_reason(&self, key: Key) -> io::Result<Option<&FallbackReason>> {
        Ok(self.connection(key)?.info.fallback.as_ref())
    }

    /// As [`Stream::peer_user_data`].
    ///
    /// # Errors
    ///
    /// There is no such connection.
    pub fn peer_user_data(&self, key: Key) -> io::Result<&[u8]> {
        Ok(&self.connection(key)?.peer_user_data)
    }

    /// Gives a connection, or a listener, a number of the program's own, which all of its events have: an index of what the program
    /// keeps for it, for example. At first it is 0, or that of the listener which has accepted the connection.
    ///
    /// # Errors
    ///
    /// There is no such connection, nor listener.
    pub fn set_tag(&mut self, key: Key, tag: u64) -> io::Result<()> {
        self.slot_state(key)?;
        self.slot(key.index).tag = tag;
        Ok(())
    }

    /// The number of [`set_tag`](Self::set_tag).
    ///
    /// # Errors
    ///
    /// There is no such connection, nor listener.
    pub fn tag(&self, key: Key) -> io::Result<u64> {
        self.slot_state(key)?;
        Ok(self.slots[key.index as usize].tag)
    }

    /// What a connection has done so far.
    ///
    /// # Errors
    ///
    /// There is no such connection.
    pub fn stats(&self, key: Key) -> io::Result<Stats> {
        Ok(self.connection(key)?.stats())
    }

    /// The pool of the worker's connections. Where several devices carry them each has its own ([`pool_of`](Self::pool_of)), and this is
    /// the first's; when that has failed it is the next one's. A block of any pool goes over any connection, but over another
    /// device by a copy.
    #[must_use]
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// The pool of a connection.
    ///
    /// # Errors
    ///
    /// There is no such connection.
    pub fn pool_of(&self, key: Key) -> io::Result<&Pool> {
        Ok(&self.connection(key)?.pool)
    }

    /// Does all there is to do, waits for more if there is nothing to tell, at most so long (`None` is for ever), and appends what there
    /// is to tell to `events`. It waits asleep, unless [`worker_spin`](crate::Builder::worker_spin) says otherwise.
    ///
    /// # Errors
    ///
    /// The system cannot wait.
    pub fn poll(&mut self, events: &mut Vec<Event>, timeout: Option<Duration>) -> io::Result<()> {
        let polled = self.poll_until(events, timeout);
        if self.poller.is_exported()
            && let Until::Deadline(at) = self.until(Until::Event)
        {
            self.poller.wake_at(Some(at));
        }
        polled
    }

    fn poll_until(&mut self, events: &mut Vec<Event>, timeout: Option<Duration>) -> io::Result<()> {
        let limit = Until::from(timeout.and_then(|timeout| Instant::now().checked_add(timeout)));
        loop {
            if self.spin(limit, events)? {
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
            if events.len() > before || limit.is_over() {
                return Ok(());
            }
        }
    }

    // Its slots.

    fn open(&mut self, connection: Connection) -> io::Result<Key> {
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

    /// Programs are to fill blocks that the device has which carries their connections.
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

    /// A free slot's key.
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

    /// Empties a slot, whatever is in it.
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

    /// What moves the frames of a connection.
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
        if !self.has(key) {
            return Err(no_connection());
        }
        match &mut self.slot(key.index).state {
            SlotState::Open { connection, readiness_state } => Ok((connection, readiness_state)),
            _ => Err(no_connection()),
        }
    }

    /// Has it be given a turn.
    fn mark_dirty(&mut self, index: u32) {
        if !std::mem::replace(&mut self.slot(index).dirty, true) {
            self.dirty.push(index);
        }
    }

    /// Has it be looked at when there is something to tell.
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

/// The descriptor to wait for: it is readable when there is something for [`poll`](Worker::poll) to do, and may be so for nothing. What
/// calls have left to be sent is not waited for: poll once, without waiting, before each wait.
#[cfg(unix)]
impl std::os::fd::AsFd for Worker {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.poller.export_descriptor()
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

impl Drop for Worker {
    /// Closes all, and waits until what was written is on its way, no longer than the longest linger time.
    fn drop(&mut self) {
        for index in 0..self.slots.len() as u32 {
            // What the program has closed is on its way out already.
            if !matches!(self.slot(index).state, SlotState::Nothing | SlotState::Closing { .. }) {
                self.close(self.key(index));
            }
        }
        let until = self.slots.iter().filter_map(|slot| match &slot.state {
            SlotState::Closing { until, .. } => Some(*until),
            _ => None,
        });
        let until = until.max().unwrap_or_else(Instant::now);
        self.work();
        while self.closing > 0 && Instant::now() < until {
            if let Err(error) = self.wait_for_events(self.until(Until::Deadline(until))) {
                tracing::warn!(%error, "cannot wait for the end of a worker's connections");
                break;
            }
            self.work();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::TcpStream;

    use super::*;
    use crate::config::Builder;
    use crate::wire::Policy;

    fn worker() -> (Worker, Key, SocketAddr) {
        let mut worker = Worker::new(&Builder::new().policy(Policy::TcpOnly).build().unwrap()).unwrap();
        let listener = worker.listen("127.0.0.1:0", Kind::Stream).unwrap();
        let addr = worker.local_addr(listener).unwrap();
        (worker, listener, addr)
    }

    #[test]
    #[cfg_attr(miri, ignore = "opens sockets")]
    fn a_client_that_comes_byte_by_byte_costs_one_timer() {
        let (mut worker, _, addr) = worker();
        let mut client = TcpStream::connect(addr).unwrap();
        client.set_nodelay(true).unwrap();
        let mut events = Vec::new();
        // The beginning of a message of 4096 bytes, and bytes of it.
        let begun = [b"TRSP".as_slice(), &[1, 1, 0, 8], &4096_u32.to_le_bytes(), &[0; 500]].concat();
        for byte in begun {
            client.write_all(&[byte]).unwrap();
            worker.poll(&mut events, Some(Duration::from_millis(1))).unwrap();
        }
        assert!(matches!(worker.slots[1].state, SlotState::Arriving { .. }), "it is still to come");
        assert!(worker.timers.len() <= 2, "{} timers", worker.timers.len());
    }

    #[test]
    #[cfg_attr(miri, ignore = "opens sockets")]
    fn a_connection_may_linger_for_ever() {
        let (mut worker, _, addr) = worker();
        let client = std::thread::spawn(move || {
            let stream = Builder::new().policy(Policy::TcpOnly).connect(addr).unwrap();
            stream.set_linger(Some(Duration::MAX)).unwrap();
            stream
        });
        let mut events = Vec::new();
        while !events.iter().any(|event| matches!(event, Event::Accepted { .. })) {
            worker.poll(&mut events, Some(Duration::from_millis(20))).unwrap();
        }
        let key = worker.add(client.join().unwrap()).unwrap();
        worker.close(key);
    }
}
