//! What moves the frames of a connection.
//!
//! The connection itself ([`protocol`](crate::protocol)) knows neither sockets nor devices. A driver hands it what has come and
//! takes from it what is to go, in turns:
//!
//! - [`turn`](Driver::turn) does both until neither moves any more; it never sleeps;
//! - [`look`](Driver::look) does so once, and only where that needs no call of the system, for a thread that looks again at once;
//! - [`post`](Driver::post) only sends: the end of a call that wrote, so that one call costs one write (or one doorbell);
//! - [`on_event`](Driver::on_event) is told what the system reported of what was [registered](Driver::register): a driver asks
//!   for edges, and remembers them until it has looked.

#[cfg(feature = "rdma")]
pub(crate) mod rc;
pub(crate) mod tcp;

use std::io;
use std::time::Instant;

use mio::event::Event;
use mio::{Registry, Token};

use self::tcp::Tcp;
use crate::pool::{Block, Pool};
use crate::protocol::{Blocks, Connection};

/// Moves the frames of one connection.
pub(crate) trait Driver<P: Blocks> {
    /// Has the system report under that key.
    fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()>;

    /// Has it report no more.
    fn deregister(&mut self, registry: &Registry) -> io::Result<()>;

    /// Takes note of a report.
    fn on_event(&mut self, event: &Event);

    /// Receives and sends until nothing moves.
    fn turn(&mut self, connection: &mut Connection<P::Block>, blocks: &mut P, now: Instant);

    /// Receives and sends what the system need not report, and has it report nothing: a look of one who does not sleep yet. Whether
    /// anything moved.
    fn look(&mut self, _: &mut Connection<P::Block>, _: &mut P, _now: Instant) -> bool {
        false
    }

    /// Sends until nothing moves.
    fn post(&mut self, connection: &mut Connection<P::Block>, blocks: &mut P, now: Instant);

    /// Whether whatever the connection gave is on its way, and will arrive whatever becomes of this side.
    fn is_flushed(&self) -> bool;

    /// When to take a turn in any case.
    fn next_deadline(&self) -> Option<Instant> {
        None
    }

    /// Whether it stopped for want of a block: nothing reports when there is one again.
    fn is_starved(&self) -> bool;

    /// How often it asked the system to move something.
    fn system_calls(&self) -> u64;
}

/// What there is to move frames with.
pub(crate) enum Way {
    /// A TCP stream.
    Tcp(Tcp<Block>),
    /// A queue pair.
    #[cfg(feature = "rdma")]
    Rc(Box<rc::Rc<Block>>),
}

/// What the handshake tries.
#[cfg(feature = "rdma")]
pub(crate) type Path = rc::Path<Pool>;
/// There is nothing to be tried.
#[cfg(not(feature = "rdma"))]
pub(crate) type Path = crate::handshake::NoPath;

impl Way {
    /// Over a connected, non-blocking socket.
    pub(crate) fn tcp(socket: std::net::TcpStream) -> Self {
        Self::Tcp(Tcp::new(socket))
    }

    /// Over what was tried and works.
    #[cfg(feature = "rdma")]
    pub(crate) fn over(path: Path, socket: std::net::TcpStream) -> io::Result<Self> {
        let rc = rc::Rc::new(path, socket).ok_or_else(|| io::Error::other("no queue pair was made"))?;
        tracing::info!("RDMA activated: {}", rc.describe());
        Ok(Self::Rc(Box::new(rc)))
    }

    /// Over a queue pair that the connection manager has connected.
    #[cfg(feature = "rdma")]
    pub(crate) fn managed(managed: rc::Managed<Pool>, line: rc::Line) -> Self {
        let rc = rc::Rc::managed(managed, line);
        tracing::info!("RDMA activated: {}", rc.describe());
        Self::Rc(Box::new(rc))
    }

    /// The RDMA device, if it is one that moves them.
    pub(crate) fn device(&self) -> Option<&str> {
        match self {
            Self::Tcp(_) => None,
            #[cfg(feature = "rdma")]
            Self::Rc(rc) => Some(rc.device()),
        }
    }

    /// There is no such thing.
    #[cfg(not(feature = "rdma"))]
    pub(crate) fn over(path: Path, _: std::net::TcpStream) -> io::Result<Self> {
        match path {}
    }
}

/// The same of whatever way it is.
macro_rules! whichever {
    (ref $way:ident.$call:ident()) => {
        match $way {
            Way::Tcp(way) => Driver::<Pool>::$call(way),
            #[cfg(feature = "rdma")]
            Way::Rc(way) => Driver::<Pool>::$call(&**way),
        }
    };
    ($way:ident.$call:ident($($argument:expr),*)) => {
        match $way {
            Way::Tcp(way) => Driver::<Pool>::$call(way, $($argument),*),
            #[cfg(feature = "rdma")]
            Way::Rc(way) => Driver::<Pool>::$call(&mut **way, $($argument),*),
        }
    };
}

impl Driver<Pool> for Way {
    fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        whichever!(self.register(registry, token))
    }

    fn deregister(&mut self, registry: &Registry) -> io::Result<()> {
        whichever!(self.deregister(registry))
    }

    fn on_event(&mut self, event: &Event) {
        whichever!(self.on_event(event));
    }

    fn turn(&mut self, connection: &mut Connection<Block>, pool: &mut Pool, now: Instant) {
        whichever!(self.turn(connection, pool, now));
    }

    fn look(&mut self, connection: &mut Connection<Block>, pool: &mut Pool, now: Instant) -> bool {
        whichever!(self.look(connection, pool, now))
    }

    fn post(&mut self, connection: &mut Connection<Block>, pool: &mut Pool, now: Instant) {
        whichever!(self.post(connection, pool, now));
    }

    fn is_flushed(&self) -> bool {
        whichever!(ref self.is_flushed())
    }

    fn next_deadline(&self) -> Option<Instant> {
        whichever!(ref self.next_deadline())
    }

    fn is_starved(&self) -> bool {
        whichever!(ref self.is_starved())
    }

    fn system_calls(&self) -> u64 {
        whichever!(ref self.system_calls())
    }
}
