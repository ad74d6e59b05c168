//! The handshake: both sides negotiate over TCP, probe the RDMA data path if both have one, and
//! agree on the transport.
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
//! [`fallback`] decides what carries the connection. [`machine`] is the state machine: it knows neither sockets nor verbs nor clocks; [`tcp`] moves its bytes over TCP; what there is of
//! RDMA is behind [`DataPath`]. Where there is no TCP connection to begin with, but the connection manager's, it is [`cm`].

mod agreed;
mod cm;
mod error;
mod fallback;
mod machine;
mod tcp;
mod terms;

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
use std::time::Instant;

pub(crate) use agreed::Agreed;
#[cfg(feature = "rdma")]
pub(crate) use cm::{CmExchange, rejection_message};
pub(crate) use tcp::TcpHandshake;

pub(crate) use terms::Terms;

pub use error::{HandshakeError, Step};
pub use fallback::{FallbackReason, Side, Transport};

use crate::wire::{Endpoint, Role, Unavailable};

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
