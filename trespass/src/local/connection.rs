//! The common part of streams and connections for messages.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::rc::{Rc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use super::reactor::{Reactor, SourceHandle};
use super::runtime::{current, runs};
use crate::session::connection::Direction;
use crate::{Completion, FallbackReason, Key, Kind, Stats, Transport, Worker};

/// A connection of the runtime's worker. Its drop closes it.
pub(crate) struct Connection {
    handle: SourceHandle,
    reactor: Weak<Reactor>,
}

impl Connection {
    pub(super) async fn connect(addr: SocketAddr, kind: Kind) -> io::Result<Self> {
        let connection = {
            let current = current();
            let reactor = current.reactor();
            let handle = reactor.add_connection(|worker| worker.connect(addr, kind))?;
            Self { handle, reactor: Rc::downgrade(reactor) }
        };
        poll_fn(|context| connection.handle.source.connected(context)).await?;
        Ok(connection)
    }

    pub(super) fn accepted(reactor: &Rc<Reactor>, key: Key) -> io::Result<Self> {
        Ok(Self { handle: reactor.add_accepted(key)?, reactor: Rc::downgrade(reactor) })
    }

    fn reactor(&self) -> io::Result<Rc<Reactor>> {
        self.reactor.upgrade().ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::NotConnected,
                "the runtime of this connection was dropped, which closed it",
            )
        })
    }

    /// Makes a call in this direction, and has the task woken if it would block.
    pub(super) fn poll_call<T>(
        &self,
        direction: Direction,
        context: &Context<'_>,
        call: impl FnOnce(&mut Worker, Key) -> io::Result<T>,
    ) -> Poll<io::Result<T>> {
        self.reactor()?.poll_call(&self.handle, direction, context, call)
    }

    /// Awaits a call.
    pub(super) async fn call<T>(
        &self,
        direction: Direction,
        mut call: impl FnMut(&mut Worker, Key) -> io::Result<T>,
    ) -> io::Result<T> {
        poll_fn(|context| self.poll_call(direction, context, &mut call)).await
    }

    /// Makes a call that does not wait.
    pub(super) fn now<T>(&self, call: impl FnOnce(&mut Worker, Key) -> io::Result<T>) -> io::Result<T> {
        call(&mut self.reactor()?.worker(), self.handle.key)
    }

    /// Whether another part of the program can use the connection as a new one. A failure, an end or
    /// bytes that have just come show without a call that reads. False while the runtime does not run.
    pub(crate) fn is_at_rest(&self) -> bool {
        let Ok(reactor) = self.reactor() else { return false };
        if !runs(&reactor) {
            return false;
        }
        if let Err(error) = reactor.turn(Some(Duration::ZERO)) {
            tracing::debug!(connection = ?self.handle.key, %error, "its events are not known");
        }
        reactor.worker().is_at_rest(self.handle.key) && !self.handle.source.has_completions()
    }

    /// Fails where the runtime of this connection does not run, because its events wake nobody
    /// there.
    pub(crate) fn check_runs(&self) -> io::Result<()> {
        self.reactor()?.check_runs()
    }

    pub(super) async fn drain(&self) -> io::Result<()> {
        poll_fn(|context| self.reactor()?.poll_drain(&self.handle, context)).await
    }

    pub(super) async fn completion(&self) -> Completion {
        poll_fn(|context| self.handle.source.completion(context)).await
    }

    pub(crate) fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.now(|worker, key| worker.shutdown(key, how))
    }

    pub(super) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.now(|worker, key| worker.local_addr(key))
    }

    pub(super) fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.now(|worker, key| worker.peer_addr(key))
    }

    pub(super) fn transport(&self) -> io::Result<Transport> {
        self.now(|worker, key| worker.transport(key))
    }

    pub(super) fn fallback_reason(&self) -> io::Result<Option<FallbackReason>> {
        self.now(|worker, key| worker.fallback_reason(key))
    }

    pub(super) fn stats(&self) -> io::Result<Stats> {
        self.now(|worker, key| worker.stats(key))
    }
}

impl Connection {
    pub(super) fn describe(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.peer_addr() {
            Ok(peer) => write!(f, "{name}({peer})"),
            Err(_) => write!(f, "{name}(closed)"),
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // The worker of a runtime that is gone has closed it.
        if let Some(reactor) = self.reactor.upgrade() {
            reactor.remove(&self.handle);
        }
    }
}

/// The calls that streams and connections for messages have in common.
macro_rules! common_calls {
    ($Type:ident) => {
        impl $Type {
            /// Takes a block of at least `len` bytes from the runtime's pool.
            ///
            /// # Errors
            ///
            /// [`WouldBlock`](io::ErrorKind::WouldBlock): the pool is empty.
            /// [`InvalidInput`](io::ErrorKind::InvalidInput): no block is that large.
            pub fn buffer(&self, len: usize) -> io::Result<Block> {
                self.0.now(|worker, _| worker.buffer(len))
            }

            /// Sends the first `len` bytes of a block without a copy.
            /// [`completion`](Self::completion) returns the block. A future that is dropped before its
            /// end drops the block.
            ///
            /// # Errors
            ///
            /// Those of a write. The error contains the block.
            pub async fn send_buf(&mut self, block: Block, len: usize) -> Result<Ticket, SendRefused> {
                self.0.send_buf(block, len).await
            }

            /// Waits for the next completion of a block that was sent. The future may be dropped.
            pub async fn completion(&mut self) -> Completion {
                self.0.completion().await
            }

            /// Waits until no written byte depends on this process any more, as
            /// [`Stream::drain`](crate::Stream::drain) does. Any number of tasks may wait, and the
            /// futures may be dropped.
            ///
            /// # Errors
            ///
            /// Those of a write.
            pub async fn drain(&self) -> io::Result<()> {
                self.0.drain().await
            }

            /// Closes one direction or both.
            ///
            /// # Errors
            ///
            /// The connection has ended.
            pub fn shutdown(&mut self, how: Shutdown) -> io::Result<()> {
                self.0.shutdown(how)
            }

            /// The own address.
            ///
            /// # Errors
            ///
            /// The runtime was dropped.
            pub fn local_addr(&self) -> io::Result<SocketAddr> {
                self.0.local_addr()
            }

            /// The peer's address.
            ///
            /// # Errors
            ///
            /// The runtime was dropped.
            pub fn peer_addr(&self) -> io::Result<SocketAddr> {
                self.0.peer_addr()
            }

            /// The transport.
            ///
            /// # Errors
            ///
            /// The runtime was dropped.
            pub fn transport(&self) -> io::Result<Transport> {
                self.0.transport()
            }

            /// Why the connection uses TCP instead of RDMA.
            ///
            /// # Errors
            ///
            /// The runtime was dropped.
            pub fn fallback_reason(&self) -> io::Result<Option<FallbackReason>> {
                self.0.fallback_reason()
            }

            /// Counters since it was made.
            ///
            /// # Errors
            ///
            /// The runtime was dropped.
            pub fn stats(&self) -> io::Result<Stats> {
                self.0.stats()
            }
        }

        impl fmt::Debug for $Type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.describe(stringify!($Type), f)
            }
        }
    };
}
