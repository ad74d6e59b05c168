//! The listener: it takes the connections that the service thread has established.

use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::api::any_stream::AnyStream;
use crate::api::seq_packet::SeqPacket;
use crate::api::stream::Stream;
use crate::config::{Builder, Config};
use crate::process::Process;
use crate::session::acceptor::Acceptor;
use crate::session::backlog::{AcceptedClient, Backlog, ClientKind};
use crate::session::connection::Connection;
use crate::session::listening::Listening;
use crate::session::local_address::advertised;
use crate::session::readiness::Until;
use crate::session::service::ServiceTask;
use crate::session::timeouts::checked_timeout;
use crate::transport::pools::pool_of;
use crate::wire::Kind;

/// Accepts connections as [`std::net::TcpListener`] does, over TCP or rdma_cm
/// ([`Builder::bootstrap`]).
///
/// A thread of this crate completes the connections of clients, up to [`Builder::backlog`], while
/// the program does other things. Handshakes of several clients run side by side, each with a
/// deadline ([`Builder::handshake_deadline`]), so a silent or broken client delays nobody. A failed
/// handshake is logged, and the listener continues. Several threads may accept from one listener.
/// A drop of the listener resets the clients that no call has accepted.
///
/// A call accepts either streams or messages. The listener rejects clients of a kind that the
/// program has never asked for, and tells them why. Before the first call it takes both kinds, and
/// that call resets those of the other one.
///
/// # Forking servers
///
/// After a fork the listener belongs to the parent, and calls in the child fail. Each child of a
/// forking server makes its listener itself: on one port by [`Builder::reuse_port`], or with an
/// inherited socket ([`Config::listen_with`](crate::Config::listen_with)). A client belongs to the
/// child that took it, also while that child is busy, because a thread of that child has connected
/// it. With an inherited socket, a smaller [`Builder::backlog`] leaves more clients to the others.
///
/// ```no_run
/// # fn fork() -> bool { false }
/// # fn main() -> std::io::Result<()> {
/// let socket = std::net::TcpListener::bind("0.0.0.0:7000")?; // in the parent
/// if fork() {
///     let listener = trespass::Builder::new().build()?.listen_with(socket)?; // in each child
///     let (mut stream, _) = listener.accept()?;
///     std::io::copy(&mut &stream, &mut &stream)?;
/// #   stream.drain(std::time::Instant::now())?;
/// }
/// # Ok(())
/// # }
/// ```
pub struct Listener {
    task: ServiceTask<Listening>,
    backlog: Arc<Backlog>,
    local: SocketAddr,
    hostname: Option<String>,
    is_nonblocking: AtomicBool,
    timeout: Mutex<Option<Duration>>,
}

impl Listener {
    /// Listens with default parameters.
    ///
    /// # Errors
    ///
    /// Those of [`std::net::TcpListener::bind`], or an environment variable has an invalid value
    /// ([`Builder`]).
    pub fn bind(addr: impl ToSocketAddrs) -> io::Result<Self> {
        Builder::new().bind(addr)
    }

    pub(crate) fn new(acceptor: Acceptor, config: &Config) -> io::Result<Self> {
        let local = acceptor.local_addr()?;
        let backlog = Arc::new(Backlog::new(config.backlog as usize)?);
        let pool = pool_of(config)?;
        let task =
            ServiceTask::start(|place| Listening::new(acceptor, config, pool, backlog.clone(), place))?;
        let (hostname, is_nonblocking) = (config.hostname.clone(), AtomicBool::new(false));
        Ok(Self { task, backlog, local, hostname, is_nonblocking, timeout: Mutex::new(None) })
    }

    /// The address of the listener.
    ///
    /// # Errors
    ///
    /// None. The method returns a result because the one of [`std::net::TcpListener`] does.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.local)
    }

    /// What clients connect to, as `HOST:PORT`, for the program to publish. The host is
    /// [`Builder::hostname`], otherwise the address of the listener. If it listens at all addresses,
    /// the host is the system's host name, or an address of this host if that has no name.
    pub fn advertised_addr(&self) -> String {
        advertised(self.hostname.as_deref(), self.local)
    }

    /// Sets whether accepting returns [`WouldBlock`](io::ErrorKind::WouldBlock) instead of waiting.
    /// Accepted connections are in blocking mode in either case.
    ///
    /// # Errors
    ///
    /// None. The method returns a result because the one of [`std::net::TcpListener`] does.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.is_nonblocking.store(nonblocking, Ordering::Relaxed);
        Ok(())
    }

    /// Sets how long accepting waits for a connection. `None`, the default, waits without limit. A
    /// timeout fails as a read timeout does ([`Stream::set_read_timeout`]) and loses nobody.
    /// Accepted connections have no timeout.
    ///
    /// # Errors
    ///
    /// A timeout of zero is refused.
    pub fn set_accept_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        *self.timeout.lock().unwrap_or_else(PoisonError::into_inner) = checked_timeout(timeout)?;
        Ok(())
    }

    /// The timeout that [`set_accept_timeout`](Self::set_accept_timeout) set.
    ///
    /// # Errors
    ///
    /// None. The method returns a result because the one of [`std::net::TcpListener`] does.
    pub fn accept_timeout(&self) -> io::Result<Option<Duration>> {
        Ok(*self.timeout.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Accepts a stream. Returns it with the peer's address.
    ///
    /// # Errors
    ///
    /// The system cannot accept, for example without free descriptors, or no client came within the
    /// timeout ([`set_accept_timeout`](Self::set_accept_timeout)). A later call may succeed.
    pub fn accept(&self) -> io::Result<(Stream, SocketAddr)> {
        let connection = self.accept_kind(Kind::Stream)?;
        let peer = connection.info.peer;
        Ok((Stream::new(connection)?, peer))
    }

    /// Accepts a connection for messages. Returns it with the peer's address.
    ///
    /// # Errors
    ///
    /// Those of [`accept`](Self::accept).
    pub fn accept_seq_packet(&self) -> io::Result<(SeqPacket, SocketAddr)> {
        let connection = self.accept_kind(Kind::SeqPacket)?;
        let peer = connection.info.peer;
        Ok((SeqPacket::new(connection)?, peer))
    }

    /// Returns an iterator over accepted streams. It does not end.
    pub fn incoming(&self) -> Incoming<'_> {
        Incoming(self)
    }

    /// Turns the listener into an iterator over accepted streams. It does not end.
    #[must_use]
    pub fn into_incoming(self) -> IntoIncoming {
        IntoIncoming(self)
    }

    /// Accepts a stream, or a client of plain TCP if the listener takes those
    /// ([`Builder::plain_tcp`]). Returns it with the peer's address.
    ///
    /// # Errors
    ///
    /// Those of [`accept`](Self::accept).
    pub fn accept_any(&self) -> io::Result<(AnyStream, SocketAddr)> {
        match self.accept_client(&[ClientKind::Stream, ClientKind::Plain])? {
            AcceptedClient::Plain(socket, peer) => Ok((AnyStream::Plain(socket), peer)),
            AcceptedClient::Connected(connection) => {
                let peer = connection.info.peer;
                Ok((AnyStream::Trespass(Stream::new(*connection)?), peer))
            }
        }
    }

    fn accept_kind(&self, kind: Kind) -> io::Result<Connection> {
        match self.accept_client(&[kind.into()])? {
            AcceptedClient::Connected(connection) => Ok(*connection),
            AcceptedClient::Plain(..) => unreachable!("only `accept_any` asks for it"),
        }
    }

    fn accept_client(&self, kinds: &[ClientKind]) -> io::Result<AcceptedClient> {
        if !self.task.is_of_this_process() {
            return Err(Process::error("listener"));
        }
        if self.backlog.ask_for(kinds) {
            self.task.wake();
        }
        let taken = self.backlog.take(kinds, self.until()?);
        if taken.frees_place {
            self.task.wake();
        }
        taken.outcome
    }

    fn until(&self) -> io::Result<Until> {
        if self.is_nonblocking.load(Ordering::Relaxed) {
            return Ok(Until::Now);
        }
        let timeout = self.accept_timeout()?;
        Ok(Until::Event.or(timeout.and_then(|timeout| Instant::now().checked_add(timeout))))
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if self.task.is_of_this_process() {
            self.task.end(Listening::close);
        } else {
            self.task.in_child(Listening::close_in_child);
        }
    }
}

/// The iterator of [`Listener::incoming`].
#[derive(Debug)]
pub struct Incoming<'a>(&'a Listener);

impl Iterator for Incoming<'_> {
    type Item = io::Result<Stream>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(self.0.accept().map(|(stream, _)| stream))
    }
}

/// The iterator of [`Listener::into_incoming`].
#[derive(Debug)]
pub struct IntoIncoming(Listener);

impl Iterator for IntoIncoming {
    type Item = io::Result<Stream>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(self.0.accept().map(|(stream, _)| stream))
    }
}

/// The descriptor to wait for. It is readable when a connection can be accepted, and may be
/// readable without cause.
#[cfg(unix)]
impl std::os::fd::AsFd for Listener {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        // A forked child may have a copy of the locked lock, and its parent's descriptor.
        if self.task.is_of_this_process() {
            self.backlog.export();
        }
        self.backlog.descriptor()
    }
}

#[cfg(unix)]
impl std::os::fd::AsRawFd for Listener {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        std::os::fd::AsFd::as_fd(self).as_raw_fd()
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Listener({})", self.local)
    }
}
