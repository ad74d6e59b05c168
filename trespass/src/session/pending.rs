//! Handshakes in progress that do not block their thread, which is that of a listener or of a
//! worker.
//!
//! Each costs one descriptor and one message's memory, and there are only so many. When there is no room for one more, the one that has
//! taken longest makes room, if it has had its chance: whoever is slow, or means no good, keeps nobody out.

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

/// How long each may take whoever else comes.
const GRACE: Duration = Duration::from_millis(200);

/// A handshake that is under way.
pub(crate) enum PendingHandshake {
    Tcp(Box<PendingTcpHandshake>),
    #[cfg(feature = "rdma")]
    RdmaCm(Box<PendingCmHandshake>),
}

/// The same of whichever it is.
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
    /// Of a client that has come: to a worker, if it gives a slot of its completion queue.
    pub(crate) fn accepted(
        client: IncomingClient,
        kind: Kind,
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

    /// Of a client of one's own: a worker's, if it gives a slot of its completion queue.
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

    /// Something of it has completed in the worker's completion queue.
    pub(crate) fn completed(&mut self, completed: WorkCompletion) {
        match self {
            Self::Tcp(handshake) => handshake.completed(completed),
            #[cfg(feature = "rdma")]
            Self::RdmaCm(_) => debug_assert!(false, "it has a completion queue of its own"),
        }
    }

    /// The worker's completion queue has failed.
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

    /// When it has had its chance.
    pub(crate) fn grace_until(&self) -> Instant {
        whichever!(self, handshake => handshake.began()) + GRACE
    }

    /// When to go on with it in any case.
    pub(crate) fn deadline(&mut self, config: &Config) -> Instant {
        whichever!(self, handshake => handshake.deadline(config))
    }

    pub(crate) fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        whichever!(self, handshake => handshake.register(registry, token))
    }

    pub(crate) fn deregister(&mut self, registry: &Registry) -> io::Result<()> {
        whichever!(self, handshake => handshake.deregister(registry))
    }

    /// Goes on as far as it can without waiting. What it waits for then is reported under the key that it is registered with.
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

    /// Makes a connection of it, once that has come to a good end. It is not registered any more.
    pub(crate) fn finish(self, config: &Config, pool: &Pool) -> io::Result<Connection> {
        match self {
            Self::Tcp(handshake) => handshake.finish(config, pool),
            #[cfg(feature = "rdma")]
            Self::RdmaCm(handshake) => handshake.finish(config),
        }
    }
}
