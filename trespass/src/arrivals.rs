//! Handshakes that are under way on a thread that does other things: a listener's, or a worker's.
//!
//! Each costs one descriptor and one message's memory, and there are only so many. When there is no room for one more, the one that has
//! taken longest makes room, if it has had its chance: whoever is slow, or means no good, keeps nobody out.

#[cfg(feature = "rdma")]
mod meeting;
mod tcp;

use std::io;
use std::net::SocketAddr;
use std::task::Poll;
use std::time::{Duration, Instant};

use mio::{Registry, Token};

#[cfg(feature = "rdma")]
use self::meeting::Meeting;
use self::tcp::Shaking;
use crate::builder::{Bootstrap, Config};
use crate::door::Visitor;
use crate::drivers::{Completed, Seat};
use crate::lane::Lane;
use crate::pool::Pool;
use crate::wire::Kind;

/// How long each may take whoever else comes.
const CHANCE: Duration = Duration::from_millis(200);

/// A handshake that is under way.
pub(crate) enum Arrival {
    Tcp(Box<Shaking>),
    #[cfg(feature = "rdma")]
    RdmaCm(Box<Meeting>),
}

/// The same of whichever it is.
macro_rules! whichever {
    ($arrival:expr, $way:ident => $call:expr) => {
        match $arrival {
            Self::Tcp($way) => $call,
            #[cfg(feature = "rdma")]
            Self::RdmaCm($way) => $call,
        }
    };
}

impl Arrival {
    /// Of a client that has come: to a worker, if there is a seat.
    pub(crate) fn accepted(
        visitor: Visitor,
        kind: Kind,
        config: &Config,
        pool: &Pool,
        seat: Option<Seat>,
    ) -> io::Result<Self> {
        Ok(match visitor {
            Visitor::Tcp(socket, peer) => {
                Self::Tcp(Box::new(Shaking::accepted(socket, peer, kind, config, pool, seat)?))
            }
            #[cfg(feature = "rdma")]
            Visitor::RdmaCm(request, peer) => {
                Self::RdmaCm(Box::new(Meeting::requested(*request, peer, kind, config)?))
            }
        })
    }

    /// Of a client of one's own: a worker's, if there is a seat.
    pub(crate) fn connecting(
        peer: SocketAddr,
        kind: Kind,
        config: &Config,
        seat: Option<Seat>,
    ) -> io::Result<Self> {
        match config.bootstrap {
            #[cfg(feature = "rdma")]
            Bootstrap::RdmaCm => Ok(Self::RdmaCm(Box::new(Meeting::connecting(peer, kind, config)?))),
            #[cfg(not(feature = "rdma"))]
            Bootstrap::RdmaCm => {
                let source = crate::error::CmError::built_without();
                Err(crate::error::ConnectError::RdmaCm { address: peer, source }.into())
            }
            Bootstrap::Tcp => Ok(Self::Tcp(Box::new(Shaking::connecting(peer, kind, seat)?))),
        }
    }

    /// Something of it has completed at the worker's desk.
    pub(crate) fn completed(&mut self, completed: Completed) {
        match self {
            Self::Tcp(way) => way.completed(completed),
            #[cfg(feature = "rdma")]
            Self::RdmaCm(_) => debug_assert!(false, "it has a completion queue of its own"),
        }
    }

    /// The worker's desk is of no use any more.
    pub(crate) fn cut_off(&mut self, error: &io::Error) {
        match self {
            Self::Tcp(way) => way.cut_off(error),
            #[cfg(feature = "rdma")]
            Self::RdmaCm(_) => (),
        }
    }

    pub(crate) fn peer(&self) -> SocketAddr {
        whichever!(self, way => way.peer())
    }

    /// When it has had its chance.
    pub(crate) fn chance(&self) -> Instant {
        whichever!(self, way => way.began()) + CHANCE
    }

    /// When to go on with it in any case.
    pub(crate) fn deadline(&mut self, config: &Config) -> Instant {
        whichever!(self, way => way.deadline(config))
    }

    pub(crate) fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        whichever!(self, way => way.register(registry, token))
    }

    pub(crate) fn deregister(&mut self, registry: &Registry) -> io::Result<()> {
        whichever!(self, way => way.deregister(registry))
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
        whichever!(self, way => way.progress(config, pool, now, registry, token))
    }

    /// Makes a connection of it, once that has come to a good end. It is not registered any more.
    pub(crate) fn finish(self, config: &Config, pool: &Pool) -> io::Result<Lane> {
        match self {
            Self::Tcp(way) => way.finish(config, pool),
            #[cfg(feature = "rdma")]
            Self::RdmaCm(way) => way.finish(config),
        }
    }
}
