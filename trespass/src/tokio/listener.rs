//! A listener for tasks.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::task::{Context, Poll};

use ::tokio::net::{ToSocketAddrs, lookup_host};

use super::any_stream::AnyStream;
use super::connect::on_blocking_thread;
use super::descriptor::{Connected, Descriptor};
use super::looks::Looks;
use super::seq_packet::SeqPacket;
use super::stream::Stream;
use crate::config::{Builder, Config};
use crate::session::connection::Direction;

/// Accepts connections as `tokio::net::TcpListener` does.
///
/// A thread of this crate completes the connections of clients, as for a blocking
/// [`Listener`](crate::Listener). Any number of tasks may accept from a shared reference. A client
/// whose handshake fails is logged, and is no error of a call. A drop resets the clients in the
/// backlog, and waits for the step of a handshake that the thread may be in.
pub struct Listener {
    io: Connected<Backlog>,
}

struct Backlog(crate::Listener);

/// The tasks that wait for clients of each kind.
const STREAMS: Direction = Direction::Read;
const PACKETS: Direction = Direction::Write;

impl AsRawFd for Backlog {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

// SAFETY: the descriptor is of the set that a listener has as long as it exists.
unsafe impl Descriptor for Backlog {}

impl Listener {
    /// Listens with default parameters at the first address that can be bound.
    ///
    /// # Errors
    ///
    /// Those of [`Listener::bind`](crate::Listener::bind).
    pub async fn bind(addr: impl ToSocketAddrs) -> io::Result<Self> {
        Self::bind_with(&Builder::new().build()?, addr).await
    }

    /// Listens with the parameters of a configuration.
    ///
    /// # Errors
    ///
    /// Those of [`Config::bind`].
    pub async fn bind_with(config: &Config, addr: impl ToSocketAddrs) -> io::Result<Self> {
        let (config, addrs) = (Arc::new(config.clone()), lookup_host(addr).await?.collect::<Vec<_>>());
        Self::from_blocking(on_blocking_thread(move || config.bind(&addrs[..])).await?)
    }

    /// Listens with a socket that already listens, as [`Config::listen_with`] does.
    ///
    /// # Errors
    ///
    /// Those of [`Config::listen_with`].
    pub async fn listen_with(config: &Config, socket: TcpListener) -> io::Result<Self> {
        let config = config.clone();
        Self::from_blocking(on_blocking_thread(move || config.listen_with(socket)).await?)
    }

    /// Takes a listener that was made without a runtime.
    ///
    /// # Errors
    ///
    /// The system has no free descriptors.
    ///
    /// # Panics
    ///
    /// The caller is in no runtime that has I/O.
    pub fn from_blocking(listener: crate::Listener) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        Ok(Self { io: Connected::new(Backlog(listener), Looks::new(false))? })
    }

    /// The address of the listener.
    ///
    /// # Errors
    ///
    /// None. The method returns a result because the one of [`std::net::TcpListener`] does.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.io.get().0.local_addr()
    }

    /// Accepts a stream. Returns it with the peer's address.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe: a client that no call has taken stays in the backlog.
    ///
    /// # Errors
    ///
    /// The system cannot accept, for example without free descriptors. A later call may succeed.
    pub async fn accept(&self) -> io::Result<(Stream, SocketAddr)> {
        let (stream, peer) = self.io.call(STREAMS, |backlog| backlog.0.accept()).await?;
        Ok((Stream::from_blocking(stream)?, peer))
    }

    /// Accepts a connection for messages. Returns it with the peer's address.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe, as [`accept`](Self::accept) is.
    ///
    /// # Errors
    ///
    /// Those of [`accept`](Self::accept).
    pub async fn accept_seq_packet(&self) -> io::Result<(SeqPacket, SocketAddr)> {
        let (packets, peer) = self.io.call(PACKETS, |backlog| backlog.0.accept_seq_packet()).await?;
        Ok((SeqPacket::from_blocking(packets)?, peer))
    }

    /// Accepts a stream, or a client of plain TCP if the listener takes those
    /// ([`Builder::plain_tcp`]), whose bytes are unread. Returns it with the peer's address.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe, as [`accept`](Self::accept) is.
    ///
    /// # Errors
    ///
    /// Those of [`accept`](Self::accept).
    pub async fn accept_any(&self) -> io::Result<(AnyStream, SocketAddr)> {
        let (stream, peer) = self.io.call(STREAMS, |backlog| backlog.0.accept_any()).await?;
        Ok((AnyStream::from_blocking(stream)?, peer))
    }

    /// Accepts a stream, for a future that is written by hand. The last task that called this is woken.
    ///
    /// # Errors
    ///
    /// Those of [`accept`](Self::accept).
    pub fn poll_accept(&self, context: &mut Context<'_>) -> Poll<io::Result<(Stream, SocketAddr)>> {
        self.io.poll_call(context, STREAMS, |backlog| backlog.0.accept()).map(|accepted| {
            let (stream, peer) = accepted?;
            Ok((Stream::from_blocking(stream)?, peer))
        })
    }
}

impl AsFd for Listener {
    /// The descriptor that the runtime waits for. Use it for nothing but looking.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.io.get().0.as_fd()
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.io.get().0.fmt(f)
    }
}
