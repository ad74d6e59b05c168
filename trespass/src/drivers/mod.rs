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

#[cfg(not(feature = "rdma"))]
mod no_desk;
#[cfg(feature = "rdma")]
pub(crate) mod rc;
pub(crate) mod tcp;

use std::io;
use std::time::Instant;

use mio::event::Event;
use mio::{Registry, Token};

use self::tcp::Tcp;
use crate::pool::{Block, Pool};
use crate::protocol::{Blocks, Connection, GATHER_MAX, Kind, Sink};

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

    /// A look of one who does not sleep yet: sends if `all` is to be done, and takes what has come that the system need not report, or else
    /// what of it came first, which the call that waits may take. It has the system report nothing. Whether anything moved; then there may be
    /// more to do.
    fn look(
        &mut self,
        _: &mut Connection<P::Block>,
        _: &mut P,
        _now: Instant,
        _all: bool,
        _: &mut Sink<'_>,
    ) -> bool {
        false
    }

    /// Sends bytes of the program that fit a frame, if nothing is before them and that can be done now: few of them from where they are, more
    /// out of a block.
    fn send_at_once(
        &mut self,
        _: &mut Connection<P::Block>,
        _blocks: &mut P,
        _kind: Kind,
        _bytes: &[u8],
    ) -> bool {
        false
    }

    /// Sends until nothing moves.
    fn post(&mut self, connection: &mut Connection<P::Block>, blocks: &mut P, now: Instant);

    /// Whether [`post`](Self::post) does nothing for a connection that is quiet.
    fn is_idle(&self) -> bool {
        false
    }

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

/// Where the queue pairs of a worker complete, whose a completion is, and what has completed.
#[cfg(feature = "rdma")]
pub(crate) type Desk = rc::Desk<Block>;
#[cfg(feature = "rdma")]
pub(crate) type Seat = rc::Seat<Block>;
#[cfg(not(feature = "rdma"))]
pub(crate) use no_desk::{Completed, Desk, Seat};
#[cfg(feature = "rdma")]
pub(crate) type Completed = rc::Completed<Block>;

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

    /// Over what was tried and works, and the pool that its device knows.
    #[cfg(feature = "rdma")]
    pub(crate) fn over(path: Path, socket: std::net::TcpStream) -> io::Result<(Self, Pool)> {
        let pool = path.blocks().clone();
        let rc = rc::Rc::new(path, socket).ok_or_else(|| io::Error::other("no queue pair was made"))?;
        Ok((Self::Rc(Box::new(rc)), pool))
    }

    /// Over a queue pair that the connection manager has connected, and the pool that its device knows.
    #[cfg(feature = "rdma")]
    pub(crate) fn managed(managed: rc::Managed<Pool>, line: rc::Line) -> (Self, Pool) {
        let pool = managed.blocks().clone();
        (Self::Rc(Box::new(rc::Rc::managed(managed, line))), pool)
    }

    /// Lent blocks that one frame can have.
    pub(crate) fn gather(&self) -> usize {
        match self {
            Self::Tcp(_) => GATHER_MAX,
            #[cfg(feature = "rdma")]
            Self::Rc(rc) => rc.gather(),
        }
    }

    /// Something of it has completed at the worker's desk.
    #[cfg_attr(not(feature = "rdma"), allow(unused_variables))]
    pub(crate) fn completed(&mut self, connection: &mut Connection<Block>, completed: Completed) {
        match self {
            Self::Tcp(_) => debug_assert!(false, "a socket completes nothing"),
            #[cfg(feature = "rdma")]
            Self::Rc(rc) => rc.completed(connection, completed),
        }
    }

    /// The worker's desk is of no use any more.
    #[cfg_attr(not(feature = "rdma"), allow(unused_variables))]
    pub(crate) fn cut_off(&mut self, connection: &mut Connection<Block>, error: &io::Error) {
        match self {
            Self::Tcp(_) => (),
            #[cfg(feature = "rdma")]
            Self::Rc(rc) => rc.cut_off(connection, error),
        }
    }

    /// The device, the queue pair and what it has, in words, if it is one that moves them.
    pub(crate) fn describe(&self) -> Option<String> {
        match self {
            Self::Tcp(_) => None,
            #[cfg(feature = "rdma")]
            Self::Rc(rc) => Some(rc.describe()),
        }
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
    pub(crate) fn over(path: Path, _: std::net::TcpStream) -> io::Result<(Self, Pool)> {
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

    fn look(
        &mut self,
        connection: &mut Connection<Block>,
        pool: &mut Pool,
        now: Instant,
        all: bool,
        sink: &mut Sink<'_>,
    ) -> bool {
        whichever!(self.look(connection, pool, now, all, sink))
    }

    fn send_at_once(
        &mut self,
        connection: &mut Connection<Block>,
        pool: &mut Pool,
        kind: Kind,
        bytes: &[u8],
    ) -> bool {
        whichever!(self.send_at_once(connection, pool, kind, bytes))
    }

    fn post(&mut self, connection: &mut Connection<Block>, pool: &mut Pool, now: Instant) {
        whichever!(self.post(connection, pool, now));
    }

    #[inline]
    fn is_idle(&self) -> bool {
        whichever!(ref self.is_idle())
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
