//! A worker: many connections on one thread, like an event loop.
//!
//! This file has the calls on the worker, and [`calls`] those on a connection. [`cell`] says who uses
//! the worker, [`slots`] has its connections, [`progress`] is the event loop, [`handshakes`] makes
//! connections, and [`dropped`] ends the worker.

mod calls;
mod cell;
mod dropped;
mod events;
mod handshakes;
mod progress;
mod slots;
#[cfg(test)]
mod tests;
mod waker;

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::time::Duration;

use self::cell::WorkerOwner;
pub use self::events::{Event, Key};
pub(crate) use self::slots::WorkerInner;
pub use self::waker::WorkerWaker;
use crate::api::seq_packet::SeqPacket;
use crate::api::stream::Stream;
use crate::config::Config;
use crate::handshake::{FallbackReason, Transport};
use crate::pool::Pool;
use crate::session::stats::Stats;
use crate::wire::Kind;

/// Many connections on one thread. They share the descriptor to wait for, the pool and, over RDMA,
/// the completion queue.
///
/// A stream that [`add`](Self::add) moves in keeps its own completion queue.
///
/// [`poll`](Self::poll) does the work: it receives, continues handshakes, and reports events. Other
/// calls never wait. Over RDMA the first one that sends on a connection after a poll gives its bytes to
/// the device. What later ones send goes together, with the next poll. So does everything over TCP, and
/// of a worker whose descriptor the program holds.
///
/// Therefore a client of the worker's listener is connected when the worker polls, unlike one of a
/// [`Listener`](crate::Listener). A client that waits longer than its
/// [`handshake_deadline`](crate::Builder::handshake_deadline) fails. A program whose worker pauses
/// for seconds accepts with a `Listener`, and [adds](Self::add) the streams.
///
/// ```
/// use std::collections::HashMap;
/// use std::io::{self, ErrorKind};
/// use trespass::{Builder, Event, Key, Kind, Worker};
///
/// // Echoes messages until the first client closes its connection.
/// fn serve(worker: &mut Worker) -> io::Result<()> {
///     let (mut events, mut unsent) = (Vec::new(), HashMap::new());
///     loop {
///         worker.poll(&mut events, None)?;
///         for event in events.drain(..) {
///             let Event::Ready { key, .. } = event else { continue };
///             match echo(worker, key, &mut unsent) {
///                 Err(error) if error.kind() == ErrorKind::WouldBlock => (),
///                 Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
///                     return Ok(worker.close(key));
///                 }
///                 failed => failed?,
///             }
///         }
///     }
/// }
///
/// // Answers messages until a call would block. Then the next event goes on.
/// fn echo(worker: &mut Worker, key: Key, unsent: &mut HashMap<Key, Vec<u8>>) -> io::Result<()> {
///     let mut message = [0; 4096];
///     loop {
///         if let Some(answer) = unsent.get(&key) {
///             worker.send(key, answer)?;
///             unsent.remove(&key);
///         }
///         let len = worker.recv(key, &mut message)?;
///         unsent.insert(key, message[..len].to_vec());
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
/// A server that stops closes the listener, and goes on polling: it answers what its clients have
/// sent, [shuts down](Self::shutdown) the writing of each connection, reads and drops what still
/// comes until the end, and closes it. The drop sends what is left. Clients that the worker has
/// not connected yet are reset, also if another worker listens on the port: they connect again.
/// As over TCP, a request that comes after the shutdown has no answer: a protocol that must not
/// lose one tells its clients before. The example `store_workers` is a server whose connections
/// are byte streams.
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
pub struct Worker(WorkerOwner);

impl Worker {
    /// Makes a worker without connections.
    ///
    /// # Errors
    ///
    /// The system has no free descriptors, or no memory for the pool.
    pub fn new(config: &Config) -> io::Result<Self> {
        WorkerOwner::new(config).map(Self)
    }

    /// Listens. [`Event::Accepted`] reports each client, which polls have connected.
    ///
    /// # Errors
    ///
    /// Those of [`Config::bind`].
    pub fn listen(&mut self, addr: impl ToSocketAddrs, kind: Kind) -> io::Result<Key> {
        self.0.call()?.listen(addr, kind)
    }

    /// Listens with a socket that already listens, as [`Config::listen_with`] does.
    ///
    /// # Errors
    ///
    /// The system cannot make the socket non-blocking, or register it.
    pub fn listen_with(&mut self, socket: TcpListener, kind: Kind) -> io::Result<Key> {
        self.0.call()?.add_acceptor(Config::acceptor_of(socket)?, kind)
    }

    /// Connects to the first address that accepts. [`Event::Connected`] or [`Event::Failed`]
    /// reports the result. If the listener's backlog is full, polls connect again until the deadline.
    ///
    /// # Errors
    ///
    /// The address does not resolve, or the system has no socket for it.
    pub fn connect(&mut self, addr: impl ToSocketAddrs, kind: Kind) -> io::Result<Key> {
        self.0.call()?.connect(addr, kind)
    }

    /// Moves a stream into the worker.
    ///
    /// # Errors
    ///
    /// The system cannot register its descriptor. The stream is then closed.
    pub fn add(&mut self, stream: Stream) -> io::Result<Key> {
        self.0.call()?.open(stream.0.into_connection()?)
    }

    /// Moves a connection for messages into the worker.
    ///
    /// # Errors
    ///
    /// The system cannot register its descriptor. The connection is then closed.
    pub fn add_seq_packet(&mut self, packets: SeqPacket) -> io::Result<Key> {
        self.0.call()?.open(packets.0.into_connection()?)
    }

    /// Closes a connection or a listener, and ends its key. Clients whose handshake has begun are still
    /// accepted, with the key of their listener. The written bytes are sent, whether the program polls
    /// the worker, leaves it alone or drops it. As over TCP, a connection with received data that was
    /// not read is reset. After the linger time, or the one of [`Stream::set_linger`], the connection
    /// is reset.
    pub fn close(&mut self, key: Key) {
        self.0.close(key);
    }

    /// The local address of a listener or a connection.
    ///
    /// # Errors
    ///
    /// The key is unknown, or the connection is not established yet.
    pub fn local_addr(&self, key: Key) -> io::Result<SocketAddr> {
        self.0.look(|state| state.local_addr(key))?
    }

    /// The peer's address of a connection.
    ///
    /// # Errors
    ///
    /// No connection has this key.
    pub fn peer_addr(&self, key: Key) -> io::Result<SocketAddr> {
        self.0.look(|state| Ok(state.connection(key)?.info.peer))?
    }

    /// The transport of a connection: RDMA or TCP.
    ///
    /// # Errors
    ///
    /// No connection has this key.
    pub fn transport(&self, key: Key) -> io::Result<Transport> {
        self.0.look(|state| Ok(state.connection(key)?.info.transport()))?
    }

    /// Why a connection uses TCP instead of RDMA.
    ///
    /// # Errors
    ///
    /// No connection has this key.
    pub fn fallback_reason(&self, key: Key) -> io::Result<Option<FallbackReason>> {
        self.0.look(|state| Ok(state.connection(key)?.info.fallback.clone()))?
    }

    /// The bytes that the peer set ([`Stream::peer_user_data`]).
    ///
    /// # Errors
    ///
    /// No connection has this key.
    pub fn peer_user_data(&self, key: Key) -> io::Result<Vec<u8>> {
        self.0.look(|state| Ok(state.connection(key)?.peer_user_data.clone()))?
    }

    /// Sets the program's tag of a connection or a listener, which all of its events carry: an
    /// index into the program's own state, for example. It is 0 at first, or that of the accepting
    /// listener.
    ///
    /// # Errors
    ///
    /// No connection or listener has this key.
    pub fn set_tag(&mut self, key: Key, tag: u64) -> io::Result<()> {
        self.0.call()?.set_tag(key, tag)
    }

    /// The tag that [`set_tag`](Self::set_tag) set.
    ///
    /// # Errors
    ///
    /// No connection or listener has this key.
    pub fn tag(&self, key: Key) -> io::Result<u64> {
        self.0.look(|state| state.tag(key))?
    }

    /// Counters of a connection since it was made.
    ///
    /// # Errors
    ///
    /// No connection has this key.
    pub fn stats(&self, key: Key) -> io::Result<Stats> {
        self.0.look(|state| Ok(state.connection(key)?.stats()))?
    }

    /// The sum of the counters of all connections that the worker has had. What a closed connection
    /// sends later is not counted.
    #[must_use]
    pub fn total_stats(&self) -> Stats {
        self.0.look(WorkerInner::total_stats).unwrap_or_default()
    }

    /// A handle that ends the [`poll`](Self::poll) of this worker from any thread.
    #[must_use]
    pub fn waker(&self) -> WorkerWaker {
        self.0.waker()
    }

    /// The pool of the worker's connections. With several devices, each has a pool
    /// ([`pool_of`](Self::pool_of)), and this is the first device's; after that device fails, the
    /// next one's. A block of any pool can be sent on any connection. It is copied for another
    /// device.
    #[must_use]
    pub fn pool(&self) -> Pool {
        self.0.look(|state| state.pool.clone()).unwrap_or_else(|_| self.0.first_pool().clone())
    }

    /// The pool of a connection.
    ///
    /// # Errors
    ///
    /// No connection has this key.
    pub fn pool_of(&self, key: Key) -> io::Result<Pool> {
        self.0.look(|state| Ok(state.connection(key)?.pool.clone()))?
    }

    /// Does all pending work, waits for events if there are none, up to `timeout` (`None` waits
    /// without limit), and appends the events to `events`. It sleeps while it waits, unless
    /// [`worker_spin`](crate::Builder::worker_spin) says otherwise. After a poll that found several
    /// events it first polls 256 times over RDMA, because a sleep costs as much. It does not where the
    /// process may use one processor only.
    ///
    /// # Errors
    ///
    /// The system cannot wait.
    pub fn poll(&mut self, events: &mut Vec<Event>, timeout: Option<Duration>) -> io::Result<()> {
        self.0.poll(events, timeout)
    }

    /// Whether another part of the program can use a connection as a new one.
    #[cfg(feature = "local")]
    pub(crate) fn is_at_rest(&self, key: Key) -> bool {
        self.0.look(|state| state.connection(key).is_ok_and(|open| open.is_at_rest())).unwrap_or(false)
    }

    /// The completion queue that the connections share.
    #[cfg(all(test, feature = "rdma"))]
    pub(crate) fn worker_cq(&self) -> crate::transport::WorkerCq {
        self.0.look(|state| state.worker_cq.clone()).expect("the process goes on")
    }

    /// The worker's state.
    #[cfg(test)]
    pub(crate) fn state(&mut self) -> impl std::ops::DerefMut<Target = WorkerInner> + '_ {
        self.0.call().expect("the process goes on")
    }
}

/// The descriptor to wait for. It is readable when [`poll`](Worker::poll) has work, and may be
/// readable without cause. It does not report bytes that calls have queued: poll once without
/// waiting before each wait.
#[cfg(unix)]
impl std::os::fd::AsFd for Worker {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.descriptor()
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
        match self.0.look(WorkerInner::counts) {
            Ok((used, arriving)) => {
                write!(f, "Worker({used} connections and listeners, {arriving} of them on their way)")
            }
            Err(_) => f.write_str("Worker(of another process)"),
        }
    }
}
