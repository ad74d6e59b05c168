//! Transports: they move a connection's frames over a TCP stream or an RDMA queue pair.
//!
//! The connection itself ([`protocol`](crate::protocol)) knows neither sockets nor devices. A
//! driver passes it what has arrived and takes from it what is to be sent:
//!
//! - [`progress`](Driver::progress) does both until neither moves any more; it never sleeps;
//! - [`poll_once`](Driver::poll_once) does both once, and only what needs no system call, for a
//!   thread that polls again immediately;
//! - [`post`](Driver::post) only sends: it ends a call that wrote, so that the call costs one
//!   system call (or one doorbell);
//! - [`on_event`](Driver::on_event) receives the events of the descriptors that were
//!   [registered](Driver::register). They are edge-triggered, so a driver remembers each until it
//!   has polled.

#[cfg(not(feature = "rdma"))]
mod no_rdma;
#[cfg(feature = "rdma")]
pub(crate) mod rc;
pub(crate) mod tcp;

mod driver;
pub(crate) mod pools;

use std::io;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Instant;

use mio::{Registry, Token};

pub(crate) use self::driver::{Driver, PollScope, SystemEvent};
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) use self::driver::{PollFlags, Sources};
use self::tcp::TcpDriver;
use crate::handshake::Agreed;
use crate::pool::{Block, Pool};
use crate::process::Descriptor;
use crate::protocol::{CallBuffer, ConnectionKind, GATHER_MAX, ProtocolMachine};
use crate::session::stats::Stats;

/// A peer that has sent this many bytes on its control connection since the last turn breaks the
/// protocol, or its own turns and this side's are too far apart. Fewer wake nobody.
pub(crate) const CONTROL_BYTES: usize = 64 << 10;

/// The transport that a connection uses.
// With a separate tag one instruction compares it, and without one several do.
#[repr(u8)]
pub(crate) enum TransportDriver {
    Tcp(TcpDriver<Block>),
    /// An RC queue pair.
    #[cfg(feature = "rdma")]
    Rc(Box<rc::RcDriver<Block>>),
    /// RC queue pairs between several devices.
    #[cfg(feature = "rdma")]
    Rails(Box<rc::RailsDriver<Block>>),
}

/// The completion queue that a worker's queue pairs share; it dispatches completions to their
/// owners.
#[cfg(feature = "rdma")]
pub(crate) type WorkerCq = rc::WorkerCq<Block>;
#[cfg(feature = "rdma")]
pub(crate) type CqSlot = rc::CqSlot<Block>;
#[cfg(not(feature = "rdma"))]
pub(crate) use no_rdma::{CqSlot, WorkCompletion, WorkerCq};
#[cfg(feature = "rdma")]
pub(crate) type WorkCompletion = rc::WorkCompletion<Block>;

/// The RDMA path that a handshake tries.
#[cfg(feature = "rdma")]
pub(crate) type RdmaPath = rc::RcPath<Pool>;
/// Without RDMA no path can be tried.
#[cfg(not(feature = "rdma"))]
pub(crate) type RdmaPath = crate::handshake::NoPath;

impl TransportDriver {
    /// Wraps a connected, non-blocking socket.
    pub(crate) fn tcp(socket: TcpStream) -> Self {
        Self::Tcp(TcpDriver::new(socket))
    }

    /// Uses the queue pair that the handshake has proved to work. Also returns the pool whose
    /// memory is registered with its device. `socket` stays as the control channel. Fails if the
    /// path has no queue pair.
    #[cfg(feature = "rdma")]
    pub(crate) fn over(mut path: RdmaPath, socket: TcpStream, agreed: &Agreed) -> io::Result<(Self, Pool)> {
        let pool = path.blocks().clone();
        if let Some(plan) = path.take_rails(agreed) {
            let rails = rc::RailsDriver::new(path, plan, socket, agreed)?;
            return Ok((Self::Rails(Box::new(rails)), pool));
        }
        let rc = rc::RcDriver::new(path, socket).ok_or_else(|| io::Error::other("no queue pair was made"))?;
        Ok((Self::Rc(Box::new(rc)), pool))
    }

    /// Uses a queue pair that the connection manager has connected. Also returns the pool whose
    /// memory is registered with its device.
    #[cfg(feature = "rdma")]
    pub(crate) fn managed(managed: rc::CmQueuePair<Pool>, channel: rc::CmControl) -> (Self, Pool) {
        let pool = managed.blocks().clone();
        (Self::Rc(Box::new(rc::RcDriver::managed(managed, channel))), pool)
    }

    /// Sets how often a limited turn over TCP reads, and how often it writes.
    #[cfg(all(test, not(loom), not(miri)))]
    pub(crate) fn set_most_calls(&mut self, most: u32) {
        match self {
            Self::Tcp(tcp) => tcp.set_most_calls(most),
            #[cfg(feature = "rdma")]
            Self::Rc(_) | Self::Rails(_) => unreachable!("a queue pair reads no socket"),
        }
    }

    pub(crate) fn is_tcp(&self) -> bool {
        matches!(self, Self::Tcp(_))
    }

    /// After a failure: whether the peer has been told, or cannot be. A TCP socket keeps what it has
    /// accepted.
    pub(crate) fn has_told_peer(&self) -> bool {
        match self {
            Self::Tcp(_) => true,
            #[cfg(feature = "rdma")]
            Self::Rc(rc) => rc.has_told_peer(),
            #[cfg(feature = "rdma")]
            Self::Rails(rails) => rails.has_told_peer(),
        }
    }

    /// Over TCP, tells the peer's kernel that no more bytes come.
    pub(crate) fn half_close(&mut self) {
        match self {
            Self::Tcp(tcp) => tcp.half_close(),
            #[cfg(feature = "rdma")]
            Self::Rc(_) | Self::Rails(_) => (),
        }
    }

    /// Whether it shares no completion queue.
    pub(crate) fn is_alone(&self) -> bool {
        match self {
            Self::Tcp(_) => true,
            #[cfg(feature = "rdma")]
            Self::Rc(rc) => rc.is_alone(),
            #[cfg(feature = "rdma")]
            Self::Rails(_) => true,
        }
    }

    /// The TCP socket of the connection, if it has one.
    pub(crate) fn socket(&self) -> Option<Descriptor> {
        match self {
            Self::Tcp(tcp) => tcp.descriptor(),
            #[cfg(feature = "rdma")]
            Self::Rc(rc) => rc.socket(),
            #[cfg(feature = "rdma")]
            Self::Rails(rails) => rails.socket(),
        }
    }

    /// The TCP socket that a connection over RDMA began with. From now on its bytes wake nobody.
    pub(crate) fn control_socket(&self) -> Option<Arc<TcpStream>> {
        match self {
            Self::Tcp(_) => None,
            #[cfg(feature = "rdma")]
            Self::Rc(rc) => rc.control_socket(),
            #[cfg(feature = "rdma")]
            Self::Rails(rails) => rails.control_socket(),
        }
    }

    /// The maximum number of lent blocks in one frame.
    pub(crate) fn gather(&self) -> usize {
        match self {
            Self::Tcp(_) => GATHER_MAX,
            #[cfg(feature = "rdma")]
            Self::Rc(rc) => rc.gather(),
            #[cfg(feature = "rdma")]
            Self::Rails(rails) => rails.gather(),
        }
    }

    /// Whether the transport probes its paths itself.
    pub(crate) fn has_own_probes(&self) -> bool {
        match self {
            Self::Tcp(_) => false,
            #[cfg(feature = "rdma")]
            Self::Rc(_) => false,
            #[cfg(feature = "rdma")]
            Self::Rails(_) => true,
        }
    }

    /// Handles a completion of this connection that the worker polled from its completion queue.
    #[cfg_attr(not(feature = "rdma"), allow(unused_variables))]
    pub(crate) fn completed(&mut self, protocol: &mut ProtocolMachine<Block>, completed: WorkCompletion) {
        match self {
            Self::Tcp(_) => debug_assert!(false, "a socket completes nothing"),
            #[cfg(feature = "rdma")]
            Self::Rc(rc) => rc.completed(protocol, completed),
            #[cfg(feature = "rdma")]
            Self::Rails(_) => debug_assert!(false, "rails share no completion queue"),
        }
    }

    /// Fails the connection because the worker's completion queue has failed. Connections with
    /// their own completion queue and TCP connections ignore it.
    #[cfg_attr(not(feature = "rdma"), allow(unused_variables))]
    pub(crate) fn completion_queue_failed(
        &mut self,
        protocol: &mut ProtocolMachine<Block>,
        error: &io::Error,
    ) {
        match self {
            Self::Tcp(_) => (),
            #[cfg(feature = "rdma")]
            Self::Rc(rc) => rc.completion_queue_failed(protocol, error),
            #[cfg(feature = "rdma")]
            Self::Rails(_) => (),
        }
    }

    /// Describes the device and the queue pair in words; `None` on TCP.
    pub(crate) fn describe(&self) -> Option<String> {
        match self {
            Self::Tcp(_) => None,
            #[cfg(feature = "rdma")]
            Self::Rc(rc) => Some(rc.describe()),
            #[cfg(feature = "rdma")]
            Self::Rails(rails) => Some(rails.describe()),
        }
    }

    /// The name of the RDMA device; `None` on TCP.
    pub(crate) fn device(&self) -> Option<&str> {
        match self {
            Self::Tcp(_) => None,
            #[cfg(feature = "rdma")]
            Self::Rc(rc) => Some(rc.device()),
            #[cfg(feature = "rdma")]
            Self::Rails(rails) => Some(rails.device()),
        }
    }

    /// The ports for one-sided operations, if the connection has some.
    #[cfg(feature = "rdma")]
    pub(crate) fn one_sided_ports(&self) -> Option<rc::one_sided::OneSidedPorts> {
        match self {
            Self::Tcp(_) => None,
            Self::Rc(rc) => rc.one_sided_ports(),
            Self::Rails(rails) => Some(rails.one_sided_ports()),
        }
    }

    /// Adds what happened to the rails of a connection over several devices.
    pub(crate) fn count_rails(&self, stats: Stats) -> Stats {
        match self {
            #[cfg(feature = "rdma")]
            Self::Rails(rails) => {
                let counters = rails.counters();
                Stats {
                    rails_joined: counters.joined,
                    rails_failed: counters.failures(),
                    repeated: counters.frames_repeated + counters.reads_repeated,
                    ..stats
                }
            }
            _ => stats,
        }
    }

    /// Never called, because a build without RDMA has no path.
    #[cfg(not(feature = "rdma"))]
    pub(crate) fn over(path: RdmaPath, _: TcpStream, _: &Agreed) -> io::Result<(Self, Pool)> {
        match path {}
    }
}

/// Calls the same method on whichever transport the connection uses. One queue pair is asked for
/// first, because it has the fewest instructions to spare.
macro_rules! whichever {
    (ref $driver:ident.$call:ident()) => {
        match $driver {
            #[cfg(feature = "rdma")]
            TransportDriver::Rc(driver) => Driver::<Pool>::$call(&**driver),
            other => match other {
                TransportDriver::Tcp(driver) => Driver::<Pool>::$call(driver),
                #[cfg(feature = "rdma")]
                TransportDriver::Rails(driver) => Driver::<Pool>::$call(&**driver),
                #[cfg(feature = "rdma")]
                TransportDriver::Rc(_) => unreachable!("it is another one"),
            },
        }
    };
    ($driver:ident.$call:ident($($argument:expr),*)) => {
        match $driver {
            #[cfg(feature = "rdma")]
            TransportDriver::Rc(driver) => Driver::<Pool>::$call(&mut **driver, $($argument),*),
            other => match other {
                TransportDriver::Tcp(driver) => Driver::<Pool>::$call(driver, $($argument),*),
                #[cfg(feature = "rdma")]
                TransportDriver::Rails(driver) => Driver::<Pool>::$call(&mut **driver, $($argument),*),
                #[cfg(feature = "rdma")]
                TransportDriver::Rc(_) => unreachable!("it is another one"),
            },
        }
    };
}

impl Driver<Pool> for TransportDriver {
    fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        whichever!(self.register(registry, token))
    }

    fn deregister(&mut self, registry: &Registry) -> io::Result<()> {
        whichever!(self.deregister(registry))
    }

    fn limit_turns(&mut self, limited: bool) {
        whichever!(self.limit_turns(limited));
    }

    fn has_more(&self) -> bool {
        whichever!(ref self.has_more())
    }

    fn on_event(&mut self, event: SystemEvent) {
        whichever!(self.on_event(event));
    }

    #[cfg(any(target_os = "linux", target_os = "android"))]
    fn sources(&mut self, sources: &mut Sources) {
        whichever!(self.sources(sources));
    }

    #[cfg(any(target_os = "linux", target_os = "android"))]
    fn room_sources(&mut self) -> Vec<(std::os::fd::RawFd, mio::Interest)> {
        whichever!(self.room_sources())
    }

    fn progress(&mut self, protocol: &mut ProtocolMachine<Block>, pool: &mut Pool, now: Instant) {
        whichever!(self.progress(protocol, pool, now));
    }

    fn poll_once(
        &mut self,
        protocol: &mut ProtocolMachine<Block>,
        pool: &mut Pool,
        now: Instant,
        scope: PollScope,
        sink: &mut CallBuffer<'_>,
    ) -> bool {
        whichever!(self.poll_once(protocol, pool, now, scope, sink))
    }

    fn end_request_for_event(&mut self, protocol: &mut ProtocolMachine<Block>) {
        whichever!(self.end_request_for_event(protocol));
    }

    fn send_at_once(
        &mut self,
        protocol: &mut ProtocolMachine<Block>,
        pool: &mut Pool,
        kind: ConnectionKind,
        bytes: &[u8],
    ) -> bool {
        whichever!(self.send_at_once(protocol, pool, kind, bytes))
    }

    fn post(&mut self, protocol: &mut ProtocolMachine<Block>, pool: &mut Pool, now: Instant) {
        whichever!(self.post(protocol, pool, now));
    }

    #[inline]
    fn is_idle(&self) -> bool {
        whichever!(ref self.is_idle())
    }

    #[inline]
    fn is_flushed(&self) -> bool {
        whichever!(ref self.is_flushed())
    }

    #[inline]
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
