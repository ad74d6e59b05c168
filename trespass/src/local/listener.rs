//! A listener of a runtime.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::task::Context;

use super::connection::Connection;
use super::reactor::{Reactor, SourceHandle};
use super::runtime::current;
use super::{SeqPacket, Stream};
use crate::Kind;

/// Accepts streams, or connections for messages, that the runtime's worker connects.
///
/// The runtimes of several threads listen on one port with
/// [`Builder::reuse_port`](crate::Builder::reuse_port).
pub struct Listener<T = Stream> {
    handle: SourceHandle,
    reactor: Weak<Reactor>,
    accepts: PhantomData<fn() -> T>,
}

impl Listener {
    /// Listens for streams with the runtime's parameters.
    ///
    /// # Errors
    ///
    /// Those of [`Config::bind`](crate::Config::bind).
    ///
    /// # Panics
    ///
    /// Outside of [`Runtime::block_on`](super::Runtime::block_on).
    pub fn bind(addr: SocketAddr) -> io::Result<Self> {
        Self::listen(addr, Kind::Stream)
    }

    /// Accepts a stream. Returns it with the peer's address. The future may be dropped.
    ///
    /// # Errors
    ///
    /// The system cannot accept, for example without free descriptors. A later call may succeed.
    pub async fn accept(&mut self) -> io::Result<(Stream, SocketAddr)> {
        let (connection, peer) = self.next().await?;
        Ok((Stream(connection), peer))
    }
}

impl Listener<SeqPacket> {
    /// Listens for connections for messages with the runtime's parameters.
    ///
    /// # Errors
    ///
    /// Those of [`Config::bind`](crate::Config::bind).
    ///
    /// # Panics
    ///
    /// Outside of [`Runtime::block_on`](super::Runtime::block_on).
    pub fn bind_seq_packet(addr: SocketAddr) -> io::Result<Self> {
        Self::listen(addr, Kind::SeqPacket)
    }

    /// Accepts a connection for messages. Returns it with the peer's address. The future may be
    /// dropped.
    ///
    /// # Errors
    ///
    /// Those of [`Listener::accept`].
    pub async fn accept(&mut self) -> io::Result<(SeqPacket, SocketAddr)> {
        let (connection, peer) = self.next().await?;
        Ok((SeqPacket(connection), peer))
    }
}

impl<T> Listener<T> {
    fn listen(addr: SocketAddr, kind: Kind) -> io::Result<Self> {
        let current = current();
        let handle = current.reactor().listen(addr, kind)?;
        Ok(Self { handle, reactor: Rc::downgrade(current.reactor()), accepts: PhantomData })
    }

    /// The address of the listener.
    ///
    /// # Errors
    ///
    /// The runtime was dropped.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.reactor()?.worker().local_addr(self.handle.key)
    }

    async fn next(&mut self) -> io::Result<(Connection, SocketAddr)> {
        let accepting = |context: &mut Context<'_>| {
            let accepted = self.handle.source.accepted(context);
            if accepted.is_pending() {
                self.reactor()?.check_runs()?;
            }
            accepted
        };
        let (key, peer) = poll_fn(accepting).await?;
        Ok((Connection::accepted(&self.reactor()?, key)?, peer))
    }

    fn reactor(&self) -> io::Result<Rc<Reactor>> {
        self.reactor.upgrade().ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}

impl<T> Drop for Listener<T> {
    fn drop(&mut self) {
        if let Some(reactor) = self.reactor.upgrade() {
            reactor.remove(&self.handle);
        }
    }
}

impl<T> fmt::Debug for Listener<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Listener").field(&self.handle.key).finish()
    }
}
