//! A connect that does not block.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::task::Poll;
use std::time::Instant;

use crate::api::seq_packet::SeqPacket;
use crate::api::stream::Stream;
use crate::config::{Builder, Config};
use crate::session::connecting::PendingConnect;
use crate::session::connection::Connection;
use crate::transport::pools::pool_of;
use crate::wire::Kind;

/// A connect in progress, made by [`Stream::start_connect`] and
/// [`SeqPacket::start_connect`]. No call but [`wait`](Self::wait) waits for the peer.
///
/// [`poll`](Self::poll) continues. The [descriptor](#impl-AsFd-for-Connecting%3CT%3E) is *readable*
/// when a call can make progress, also for a program that waits for edges. A drop gives up the
/// connect and does not wait. A thread of the process destroys a queue pair that was made for it.
///
/// The connection is in blocking mode and has another descriptor. Remove the
/// descriptor of `Connecting` from a set before it is dropped.
///
/// ```no_run
/// use std::task::Poll;
/// use std::time::Instant;
///
/// # #[cfg(unix)]
/// # fn main() -> std::io::Result<()> {
/// use std::os::fd::AsRawFd;
///
/// let mut connecting = trespass::Stream::start_connect("10.0.0.1:7000".parse().unwrap())?;
/// let mut set = mio::Poll::new()?;
/// let descriptor = connecting.as_raw_fd();
/// let mut source = mio::unix::SourceFd(&descriptor);
/// set.registry().register(&mut source, mio::Token(0), mio::Interest::READABLE)?;
/// let mut events = mio::Events::with_capacity(8);
/// let stream = loop {
///     match connecting.poll() {
///         Poll::Ready(connected) => break connected?,
///         Poll::Pending => {
///             // On Linux the descriptor is readable then, too, and no time-out is needed.
///             let left = connecting.deadline().saturating_duration_since(Instant::now());
///             set.poll(&mut events, Some(left))?;
///         }
///     }
/// };
/// set.registry().deregister(&mut source)?;
/// # drop(stream);
/// # Ok(())
/// # }
/// # #[cfg(not(unix))]
/// # fn main() {}
/// ```
///
/// A [`Worker`](crate::Worker) connects without blocking, too, and reports the end as an event.
#[must_use = "a drop gives the connect up"]
pub struct Connecting<T> {
    pending: PendingConnect,
    make: fn(Connection) -> io::Result<T>,
}

impl<T> Connecting<T> {
    fn new(
        config: &Config,
        addr: SocketAddr,
        kind: Kind,
        make: fn(Connection) -> io::Result<T>,
    ) -> io::Result<Self> {
        let pending = PendingConnect::start(config, addr, kind, &pool_of(config)?)?;
        Ok(Self { pending, make })
    }

    /// The address that it connects to.
    pub fn peer_addr(&self) -> SocketAddr {
        self.pending.peer()
    }

    /// Continues as far as possible without waiting. The result is returned once.
    ///
    /// # Errors
    ///
    /// Those of [`Config::connect`], and any call after the result.
    pub fn poll(&mut self) -> Poll<io::Result<T>> {
        self.pending.poll().map(|connected| connected.and_then(self.make))
    }

    /// Waits for the result, at most until the deadline
    /// ([`Builder::handshake_deadline`](crate::Builder::handshake_deadline)).
    ///
    /// # Errors
    ///
    /// Those of [`Config::connect`].
    pub fn wait(self) -> io::Result<T> {
        self.pending.wait().and_then(self.make)
    }

    /// When to call [`poll`](Self::poll) at the latest, although the descriptor is not readable. On
    /// Linux and Android it is readable then.
    pub fn deadline(&mut self) -> Instant {
        self.pending.deadline()
    }
}

impl Stream {
    /// Begins to connect with default parameters, and does not block.
    ///
    /// # Errors
    ///
    /// The system has no socket or no route for the address, or an environment variable has an invalid
    /// value ([`Builder`]).
    pub fn start_connect(addr: SocketAddr) -> io::Result<Connecting<Self>> {
        Builder::new().start_connect(addr)
    }
}

impl SeqPacket {
    /// Begins to connect with default parameters, and does not block.
    ///
    /// # Errors
    ///
    /// Those of [`Stream::start_connect`].
    pub fn start_connect(addr: SocketAddr) -> io::Result<Connecting<Self>> {
        Builder::new().start_connect_seq_packet(addr)
    }
}

impl Builder {
    /// Begins to connect a stream: [`build`](Self::build), then [`Config::start_connect`].
    ///
    /// # Errors
    ///
    /// Those of both.
    pub fn start_connect(self, addr: SocketAddr) -> io::Result<Connecting<Stream>> {
        self.build()?.start_connect(addr)
    }

    /// Begins to connect for messages: [`build`](Self::build), then
    /// [`Config::start_connect_seq_packet`].
    ///
    /// # Errors
    ///
    /// Those of both.
    pub fn start_connect_seq_packet(self, addr: SocketAddr) -> io::Result<Connecting<SeqPacket>> {
        self.build()?.start_connect_seq_packet(addr)
    }
}

impl Config {
    /// Begins to connect a stream, and does not wait for the peer. The first connect of a process
    /// allocates the pool and opens the device.
    ///
    /// # Errors
    ///
    /// The system has no socket or no route for the address, or no memory for the pool.
    pub fn start_connect(&self, addr: SocketAddr) -> io::Result<Connecting<Stream>> {
        Connecting::new(self, addr, Kind::Stream, Stream::new)
    }

    /// Begins to connect for messages.
    ///
    /// # Errors
    ///
    /// Those of [`start_connect`](Self::start_connect).
    pub fn start_connect_seq_packet(&self, addr: SocketAddr) -> io::Result<Connecting<SeqPacket>> {
        Connecting::new(self, addr, Kind::SeqPacket, SeqPacket::new)
    }
}

/// The descriptor to wait for. It is readable when [`poll`](Connecting::poll) can make progress, and
/// may be readable without cause.
#[cfg(unix)]
impl<T> std::os::fd::AsFd for Connecting<T> {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.pending.descriptor()
    }
}

#[cfg(unix)]
impl<T> std::os::fd::AsRawFd for Connecting<T> {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        std::os::fd::AsFd::as_fd(self).as_raw_fd()
    }
}

impl<T> fmt::Debug for Connecting<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Connecting({})", self.pending.peer())
    }
}
