//! Handshakes in progress, which do not block the thread of their listener or worker.
//!
//! Each uses one descriptor and the memory of one message, and their number is bounded. If a new
//! one finds no place, it replaces one that does not go on, so slow or hostile clients block nobody.

#[cfg(feature = "rdma")]
mod cm;
mod reconnect;
mod tcp;

use std::io;
use std::net::SocketAddr;
use std::task::Poll;
use std::time::Instant;

use mio::{Registry, Token};

#[cfg(feature = "rdma")]
use self::cm::PendingCmHandshake;
use self::reconnect::Reconnect;
use self::tcp::PendingTcpHandshake;
use crate::config::{Bootstrap, Config};
use crate::pool::Pool;
use crate::session::acceptor::IncomingClient;
use crate::session::admission::Stall;
use crate::session::connection::{Connection, Counted};
use crate::session::refusal::{Refusals, log_refused};
use crate::transport::{CqSlot, WorkCompletion};
use crate::wire::Kind;

/// The text for a client that loses its place.
const EVICTED: &str = "your side was silent, and others wait for a place: connect again";

/// A handshake in progress. A client's goes on while the listener is busy, by further attempts.
pub(crate) struct PendingHandshake {
    peer: SocketAddr,
    /// `None` between two attempts of a client.
    running: Option<RunningHandshake>,
    /// `None` for an accepted client.
    reconnect: Option<Reconnect>,
    /// The connections of a storm begin with less, although none is made yet.
    _counted: Counted,
}

/// One attempt.
enum RunningHandshake {
    Tcp(Box<PendingTcpHandshake>),
    #[cfg(feature = "rdma")]
    RdmaCm(Box<PendingCmHandshake>),
}

/// Calls the same method of each variant.
macro_rules! whichever {
    ($running:expr, $handshake:ident => $call:expr) => {
        match $running {
            RunningHandshake::Tcp($handshake) => $call,
            #[cfg(feature = "rdma")]
            RunningHandshake::RdmaCm($handshake) => $call,
        }
    };
}

impl PendingHandshake {
    /// The handshake of an accepted client; `kind` is `None` if its own is taken. A worker passes a
    /// slot of its completion queue.
    pub(crate) fn accepted(
        client: IncomingClient,
        kind: Option<Kind>,
        config: &Config,
        pool: &Pool,
        slot: Option<CqSlot>,
    ) -> io::Result<Self> {
        let (peer, counted) = (client.peer(), Counted::new());
        let running = match client {
            IncomingClient::Tcp(socket, peer) => RunningHandshake::Tcp(Box::new(
                PendingTcpHandshake::accepted(socket, peer, kind, config, pool, slot)?,
            )),
            #[cfg(feature = "rdma")]
            IncomingClient::RdmaCm(request, peer) => RunningHandshake::RdmaCm(Box::new(
                PendingCmHandshake::requested(*request, peer, kind, config)?,
            )),
        };
        Ok(Self { peer, running: Some(running), reconnect: None, _counted: counted })
    }

    /// The handshake of a connecting client. A worker passes a slot of its completion queue.
    pub(crate) fn connecting(
        peer: SocketAddr,
        kind: Kind,
        config: &Config,
        slot: Option<CqSlot>,
    ) -> io::Result<Self> {
        let (reconnect, counted) = (Reconnect::new(peer, kind, slot), Counted::new());
        let running = Some(reconnect.attempt(config)?);
        Ok(Self { peer, running, reconnect: Some(reconnect), _counted: counted })
    }

    /// Handles a completion from the worker's completion queue.
    pub(crate) fn completed(&mut self, completed: WorkCompletion) {
        match &mut self.running {
            Some(RunningHandshake::Tcp(handshake)) => handshake.completed(completed),
            #[cfg(feature = "rdma")]
            Some(RunningHandshake::RdmaCm(_)) => {
                debug_assert!(false, "it has a completion queue of its own");
            }
            None => debug_assert!(false, "the completions of a dropped queue pair go nowhere"),
        }
    }

    /// Handles the failure of the worker's completion queue.
    pub(crate) fn completion_queue_failed(&mut self, error: &io::Error) {
        if let Some(RunningHandshake::Tcp(handshake)) = &mut self.running {
            handshake.completion_queue_failed(error);
        }
    }

    pub(crate) fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Lets a client of plain TCP through, with its bytes unread.
    pub(crate) fn allow_plain(&mut self) {
        if let Some(RunningHandshake::Tcp(handshake)) = &mut self.running {
            handshake.allow_plain();
        }
    }

    /// Whether a client of plain TCP has been let through.
    pub(crate) fn is_plain(&self) -> bool {
        matches!(&self.running, Some(RunningHandshake::Tcp(handshake)) if handshake.is_plain())
    }

    /// The socket of a client that is let through, which is no longer registered.
    pub(crate) fn into_plain(self) -> io::Result<std::net::TcpStream> {
        match self.running {
            Some(RunningHandshake::Tcp(handshake)) => handshake.into_plain(),
            _ => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Keeps the client's first message until [`begin`](Self::begin).
    pub(crate) fn keep_first_message(&mut self) {
        match &mut self.running {
            Some(RunningHandshake::Tcp(handshake)) => handshake.keep_first_message(),
            #[cfg(feature = "rdma")]
            Some(RunningHandshake::RdmaCm(handshake)) => handshake.keep_request(),
            None => {}
        }
    }

    /// Whether the first message has arrived and is kept.
    pub(crate) fn keeps_message(&self) -> bool {
        match &self.running {
            Some(RunningHandshake::Tcp(handshake)) => handshake.keeps_message(),
            #[cfg(feature = "rdma")]
            Some(RunningHandshake::RdmaCm(handshake)) => handshake.keeps_request(),
            None => false,
        }
    }

    /// Handles the first message that was kept. It goes on with the next progress.
    pub(crate) fn begin(&mut self) {
        if let Some(running) = &mut self.running {
            whichever!(running, handshake => handshake.begin());
        }
    }

    /// Whether this side has sent its last message, so that the client may be established and must not
    /// be turned away.
    pub(crate) fn has_committed(&self) -> bool {
        self.running
            .as_ref()
            .is_some_and(|running| whichever!(running, handshake => handshake.has_committed()))
    }

    /// Whether it may use a queue pair.
    pub(crate) fn uses_path(&self) -> bool {
        match &self.running {
            Some(RunningHandshake::Tcp(handshake)) => handshake.uses_path(),
            #[cfg(feature = "rdma")]
            Some(RunningHandshake::RdmaCm(_)) => true,
            None => false,
        }
    }

    /// Gives back the queue pair of a handshake that does not use it. The handshake goes on.
    pub(crate) fn drop_spent_path(&mut self, registry: &Registry) -> io::Result<()> {
        match &mut self.running {
            Some(RunningHandshake::Tcp(handshake)) => handshake.drop_spent_path(registry),
            _ => Ok(()),
        }
    }

    /// Since when it makes no step. `None` if it has no place in a listener.
    pub(crate) fn stall(&self) -> Option<Stall> {
        let running = self.running.as_ref()?;
        Some(whichever!(running, handshake => Stall::new(handshake.began(), handshake.last_step())))
    }

    /// When to continue at the latest.
    pub(crate) fn deadline(&mut self, config: &Config) -> Instant {
        match &mut self.running {
            Some(running) => whichever!(running, handshake => handshake.deadline(config)),
            None => self.reconnect.as_ref().map_or_else(Instant::now, |client| client.next_turn(config)),
        }
    }

    pub(crate) fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        match &mut self.running {
            Some(running) => whichever!(running, handshake => handshake.register(registry, token)),
            None => Ok(()),
        }
    }

    pub(crate) fn deregister(&mut self, registry: &Registry) -> io::Result<()> {
        match &mut self.running {
            Some(running) => whichever!(running, handshake => handshake.deregister(registry)),
            None => Ok(()),
        }
    }

    /// Continues as far as possible without waiting. Later events are reported under its token.
    pub(crate) fn progress(
        &mut self,
        config: &Config,
        pool: &Pool,
        now: Instant,
        registry: &Registry,
        token: Token,
    ) -> Poll<io::Result<()>> {
        let Some(running) = &mut self.running else {
            return self.resume(config, pool, now, registry, token);
        };
        let result = whichever!(running, handshake => handshake.progress(config, pool, now, registry, token));
        match (result, &mut self.reconnect) {
            (Poll::Ready(Err(error)), Some(reconnect)) => {
                reconnect.failed(error, config, now)?;
                self.deregister(registry)?;
                self.running = None;
                Poll::Pending
            }
            (result, _) => result,
        }
    }

    /// Begins the next attempt of a client, if it is due.
    fn resume(
        &mut self,
        config: &Config,
        pool: &Pool,
        now: Instant,
        registry: &Registry,
        token: Token,
    ) -> Poll<io::Result<()>> {
        self.running = match &self.reconnect {
            Some(client) => client.resume(config, now)?,
            None => return Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        };
        if self.running.is_none() {
            return Poll::Pending;
        }
        self.register(registry, token)?;
        self.progress(config, pool, now, registry, token)
    }

    /// Ends the failed handshake of an accepted client, which is no longer registered, so that the
    /// client can read its answer.
    pub(crate) fn refuse(self, error: &io::Error, refusals: &Refusals) {
        match self.running {
            Some(RunningHandshake::Tcp(handshake)) => handshake.refuse(error, refusals),
            _ => log_refused(self.peer, error),
        }
    }

    /// Closes the handshake of an accepted client, which is no longer registered, to make room. The
    /// client is told that the listener is busy, and connects again.
    pub(crate) fn evict(self, refusals: &Refusals) {
        tracing::warn!(peer = %self.peer, "makes room for others: its handshake does not go on");
        self.turn_away(EVICTED.to_owned(), refusals);
    }

    /// Closes the handshake of an accepted client, which is no longer registered, and tells the client
    /// that the listener is busy.
    pub(crate) fn turn_away(self, text: String, refusals: &Refusals) {
        match self.running {
            Some(RunningHandshake::Tcp(handshake)) => handshake.turn_away(text, refusals),
            #[cfg(feature = "rdma")]
            Some(RunningHandshake::RdmaCm(handshake)) => handshake.turn_away(text),
            None => {}
        }
    }

    /// Whether its drop may wait for a device.
    pub(crate) fn has_queue_pair(&self) -> bool {
        match &self.running {
            Some(RunningHandshake::Tcp(handshake)) => handshake.has_data_path(),
            #[cfg(feature = "rdma")]
            Some(RunningHandshake::RdmaCm(_)) => true,
            None => false,
        }
    }

    /// Closes a forked child's copy of the socket. All else is shared with the parent, and stays.
    pub(crate) fn forget_in_child(mut self) {
        match self.running.take() {
            Some(RunningHandshake::Tcp(handshake)) => handshake.forget_in_child(),
            other => std::mem::forget(other),
        }
        std::mem::forget(self);
    }

    /// Makes the connection of a finished handshake, which is no longer registered.
    pub(crate) fn finish(self, config: &Config, pool: &Pool) -> io::Result<Connection> {
        match self.running {
            Some(RunningHandshake::Tcp(handshake)) => handshake.finish(config, pool),
            #[cfg(feature = "rdma")]
            Some(RunningHandshake::RdmaCm(handshake)) => handshake.finish(config),
            None => Err(io::ErrorKind::NotConnected.into()),
        }
    }
}

impl RunningHandshake {
    /// The attempt of a client whose first one began at `began`.
    fn connecting(
        peer: SocketAddr,
        kind: Kind,
        began: Instant,
        config: &Config,
        slot: Option<CqSlot>,
    ) -> io::Result<Self> {
        match config.bootstrap {
            #[cfg(feature = "rdma")]
            Bootstrap::RdmaCm => {
                Ok(Self::RdmaCm(Box::new(PendingCmHandshake::connecting(peer, kind, began, config)?)))
            }
            #[cfg(not(feature = "rdma"))]
            Bootstrap::RdmaCm => {
                let source = super::cm_error::CmError::built_without().into();
                Err(crate::error::ConnectError::RdmaCm { address: peer, source }.into())
            }
            Bootstrap::Tcp => {
                Ok(Self::Tcp(Box::new(PendingTcpHandshake::connecting(peer, kind, began, config, slot)?)))
            }
        }
    }
}
