//! Handshakes in progress, which do not block the thread of their listener or worker.
//!
//! Each uses one descriptor and the memory of one message, and their number is bounded. If a new
//! one finds no place, it replaces one that does not go on, so slow or hostile clients block nobody.

#[cfg(feature = "rdma")]
mod cm;
mod tcp;

use std::io;
use std::net::SocketAddr;
use std::task::Poll;
use std::time::{Duration, Instant};

use mio::{Registry, Token};

#[cfg(feature = "rdma")]
use self::cm::PendingCmHandshake;
use self::tcp::PendingTcpHandshake;
use crate::config::{Bootstrap, Config};
use crate::pool::Pool;
use crate::session::acceptor::IncomingClient;
use crate::session::connection::Connection;
use crate::transport::{CqSlot, WorkCompletion};
use crate::wire::Kind;

/// After this time another handshake may replace one whose client has sent no HELLO.
const SILENCE: Duration = Duration::from_millis(200);

/// The same for a later step, since it began. Messages that end no step do not count.
const STALL: Duration = Duration::from_secs(1);

/// A handshake in progress.
pub(crate) enum PendingHandshake {
    Tcp(Box<PendingTcpHandshake>),
    #[cfg(feature = "rdma")]
    RdmaCm(Box<PendingCmHandshake>),
}

/// Calls the same method of each variant.
macro_rules! whichever {
    ($pending:expr, $handshake:ident => $call:expr) => {
        match $pending {
            Self::Tcp($handshake) => $call,
            #[cfg(feature = "rdma")]
            Self::RdmaCm($handshake) => $call,
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
        Ok(match client {
            IncomingClient::Tcp(socket, peer) => {
                Self::Tcp(Box::new(PendingTcpHandshake::accepted(socket, peer, kind, config, pool, slot)?))
            }
            #[cfg(feature = "rdma")]
            IncomingClient::RdmaCm(request, peer) => {
                Self::RdmaCm(Box::new(PendingCmHandshake::requested(*request, peer, kind, config)?))
            }
        })
    }

    /// The handshake of a connecting client. A worker passes a slot of its completion queue.
    pub(crate) fn connecting(
        peer: SocketAddr,
        kind: Kind,
        config: &Config,
        slot: Option<CqSlot>,
    ) -> io::Result<Self> {
        match config.bootstrap {
            #[cfg(feature = "rdma")]
            Bootstrap::RdmaCm => {
                Ok(Self::RdmaCm(Box::new(PendingCmHandshake::connecting(peer, kind, config)?)))
            }
            #[cfg(not(feature = "rdma"))]
            Bootstrap::RdmaCm => {
                let source = super::cm_error::CmError::built_without().into();
                Err(crate::error::ConnectError::RdmaCm { address: peer, source }.into())
            }
            Bootstrap::Tcp => Ok(Self::Tcp(Box::new(PendingTcpHandshake::connecting(peer, kind, slot)?))),
        }
    }

    /// Handles a completion from the worker's completion queue.
    pub(crate) fn completed(&mut self, completed: WorkCompletion) {
        match self {
            Self::Tcp(handshake) => handshake.completed(completed),
            #[cfg(feature = "rdma")]
            Self::RdmaCm(_) => debug_assert!(false, "it has a completion queue of its own"),
        }
    }

    /// Handles the failure of the worker's completion queue.
    pub(crate) fn completion_queue_failed(&mut self, error: &io::Error) {
        match self {
            Self::Tcp(handshake) => handshake.completion_queue_failed(error),
            #[cfg(feature = "rdma")]
            Self::RdmaCm(_) => (),
        }
    }

    pub(crate) fn peer(&self) -> SocketAddr {
        whichever!(self, handshake => handshake.peer())
    }

    /// From when on another handshake may replace it, unless it goes on before.
    pub(crate) fn stalled_at(&self) -> Instant {
        let (began, heard) = whichever!(self, handshake => (handshake.began(), handshake.last_heard()));
        heard.map_or(began + SILENCE, |heard| heard + STALL)
    }

    /// When to continue at the latest.
    pub(crate) fn deadline(&mut self, config: &Config) -> Instant {
        whichever!(self, handshake => handshake.deadline(config))
    }

    pub(crate) fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        whichever!(self, handshake => handshake.register(registry, token))
    }

    pub(crate) fn deregister(&mut self, registry: &Registry) -> io::Result<()> {
        whichever!(self, handshake => handshake.deregister(registry))
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
        whichever!(self, handshake => handshake.progress(config, pool, now, registry, token))
    }

    /// Makes the connection of a finished handshake, which is no longer registered.
    pub(crate) fn finish(self, config: &Config, pool: &Pool) -> io::Result<Connection> {
        match self {
            Self::Tcp(handshake) => handshake.finish(config, pool),
            #[cfg(feature = "rdma")]
            Self::RdmaCm(handshake) => handshake.finish(config),
        }
    }
}
