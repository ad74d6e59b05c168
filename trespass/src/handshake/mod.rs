//! From a TCP connection to a connection: both sides say who they are, try RDMA if both have it, and agree on what carries the bytes.
//!
//! ```text
//! client                                          server
//! prepare a queue pair
//! HELLO (its endpoint, or why it has none) ---->
//!                                                 prepare a queue pair, connect it, post receives
//!                                          <----  HELLO
//! connect the queue pair
//! PROBE ==================== over RDMA =========>
//!       <=================== over RDMA ========== PROBE
//! READY (works, or why not) -------------------->
//!       <---------------------------------------- READY
//! ```
//!
//! RDMA is used if both READYs say that it works, else TCP, on the same socket; so both sides always decide the same. Where a side has
//! no endpoint nothing is tried: both send READY at once, which costs no round trip.
//!
//! [`machine`] decides, and knows neither sockets nor verbs nor clocks; [`tcp`] moves its bytes over TCP; what there is of
//! RDMA is behind [`DataPath`]. Where there is no TCP connection to begin with, but the connection manager's, it is [`cm`].

mod agreed;
mod cm;
mod error;
mod machine;
mod reason;
mod tcp;

#[cfg(test)]
mod exhaustive;
#[cfg(test)]
mod fake;
#[cfg(any(test, fuzzing))]
pub(crate) mod hostile;
#[cfg(any(test, fuzzing))]
pub(crate) mod hostile_cm;
#[cfg(test)]
mod loopback;
#[cfg(test)]
mod simulation;

use std::task::Poll;
use std::time::{Duration, Instant};

pub(crate) use agreed::Agreed;
#[cfg(feature = "rdma")]
pub(crate) use cm::{CmExchange, rejection_message};
pub(crate) use tcp::TcpHandshake;

pub(crate) use reason::Unavailable;

pub use error::{HandshakeError, Step};
pub use reason::{Cause, FallbackReason, Side, Transport};

use crate::wire::{Endpoint, Features, Kind, Limits, Policy, Role};

/// What RDMA can do for one connection. Dropping it takes everything back.
pub(crate) trait DataPath {
    /// Makes the queue pair, and says how it is reached.
    fn prepare(&mut self, attempt: Attempt) -> Result<Endpoint, Unavailable>;

    /// Connects it with the peer's: ready to receive, receives posted, ready to send.
    fn connect(&mut self, peer: &Endpoint, agreed: &Agreed) -> Result<(), Unavailable>;

    /// Goes on with proving that data comes through both ways: the client sends its [`Probe`](crate::wire::Probe) and waits for the
    /// server's; the server sends its own when it has the client's, and waits until that is acknowledged. Probes of other attempts are
    /// ignored. Who calls keeps the time.
    fn probe(&mut self, now: Instant) -> Poll<Result<(), Unavailable>>;
}

/// Where there is no RDMA at all.
#[cfg(any(test, not(feature = "rdma")))]
#[derive(Debug)]
pub(crate) enum NoPath {}

#[cfg(any(test, not(feature = "rdma")))]
#[cfg_attr(feature = "rdma", allow(dead_code, reason = "tests try what has no path, and wait for nothing"))]
impl NoPath {
    /// As what there is of RDMA has it.
    pub(crate) fn watch(&mut self, _: &mio::Registry, _: mio::Token) -> std::io::Result<bool> {
        match *self {}
    }

    /// As what there is of RDMA has it.
    pub(crate) fn unwatch(&mut self, _: &mio::Registry) -> std::io::Result<()> {
        match *self {}
    }

    /// As what there is of RDMA has it.
    pub(crate) fn completed(&mut self, _: crate::drivers::WorkCompletion) {
        match *self {}
    }

    /// As what there is of RDMA has it.
    pub(crate) fn completion_queue_failed(&mut self, _: &std::io::Error) {
        match *self {}
    }
}

#[cfg(any(test, not(feature = "rdma")))]
impl DataPath for NoPath {
    fn prepare(&mut self, _: Attempt) -> Result<Endpoint, Unavailable> {
        match *self {}
    }

    fn connect(&mut self, _: &Endpoint, _: &Agreed) -> Result<(), Unavailable> {
        match *self {}
    }

    fn probe(&mut self, _: Instant) -> Poll<Result<(), Unavailable>> {
        match *self {}
    }
}

/// Which attempt at which connection, and whose side of it: what tells its messages from those of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Attempt {
    /// A random number of the client's.
    pub(crate) conn_id: u64,
    /// Counts the attempts at that connection.
    pub(crate) generation: u32,
    /// This side.
    pub(crate) role: Role,
}

impl Attempt {
    /// A client's first attempt at a new connection.
    pub(crate) fn first() -> std::io::Result<Self> {
        let conn_id = getrandom::u64().map_err(std::io::Error::other)?;
        Ok(Self { conn_id, generation: 0, role: Role::Client })
    }
}

/// What one side brings to a handshake.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    /// What it wants to carry.
    pub(crate) kind: Kind,
    /// What it wants of RDMA.
    pub(crate) policy: Policy,
    /// What it can do.
    pub(crate) features: Features,
    /// What it can take.
    pub(crate) limits: Limits,
    /// Receive slots that it begins with, if not with all.
    pub(crate) first_slots: Option<u32>,
    /// What its program wants the peer to know.
    pub(crate) user_data: Vec<u8>,
    /// How long the data path may take to prove itself.
    pub(crate) probe_timeout: Duration,
    /// How long everything may take.
    pub(crate) deadline: Duration,
    /// The minor version, which tests change.
    pub(crate) minor: u8,
}

/// A handshake that has come to a good end.
#[derive(Debug)]
pub(crate) struct Established<D> {
    /// What was agreed on.
    pub(crate) agreed: Agreed,
    /// The data path that works, or why TCP is used.
    pub(crate) path: Result<D, FallbackReason>,
}

#[cfg(test)]
impl<D> Established<D> {
    /// What carries the connection.
    pub(crate) fn transport(&self) -> Transport {
        if self.path.is_ok() { Transport::Rdma } else { Transport::Tcp }
    }
}
