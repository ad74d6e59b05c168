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
//! RDMA is used if both READYs confirm the path, otherwise TCP on the same socket. So both sides
//! always decide alike. If a side has no endpoint, nothing is probed: both send READY at once,
//! without a further round trip.
//!
//! [`fallback`] decides on the transport. [`machine`] is the state machine, without sockets, verbs
//! or clocks. [`tcp`] moves its bytes over TCP. [`DataPath`] is the interface to RDMA. [`cm`] is
//! the handshake of connections that begin with rdma_cm.

mod agreed;
mod cm;
mod error;
mod fallback;
mod machine;
mod proof_clock;
mod tcp;
mod terms;

#[cfg(test)]
mod exhaustive;
#[cfg(test)]
pub(crate) mod fake;
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

pub use error::{HandshakeError, HandshakeStep};
pub use fallback::{FallbackReason, Side, Transport};

use crate::wire::{Cause, Endpoint, Role, Unavailable};

/// The RDMA data path of one connection. A drop releases its resources.
pub(crate) trait DataPath {
    /// Makes the queue pair, and returns its endpoint.
    fn prepare(&mut self, attempt: Attempt) -> Result<Endpoint, Unavailable>;

    /// Connects it with the peer's: ready to receive, receives posted, ready to send.
    fn connect(&mut self, peer: &Endpoint, agreed: &Agreed) -> Result<(), Unavailable>;

    /// Continues the probe of both directions. The client sends its [`Probe`](crate::wire::Probe)
    /// and waits for the server's. The server sends its own after the client's arrives, and waits
    /// for the acknowledgement. Probes of other attempts are ignored. The caller keeps the
    /// deadline.
    fn probe(&mut self, now: Instant) -> Poll<Result<(), Unavailable>>;

    /// The cause if nothing comes through.
    fn cause_of_silence(&self) -> Cause {
        Cause::ProbeTimedOut
    }
}

/// The data path of a build or host without RDMA.
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

/// Identifies an attempt to connect and the side, so that its messages are told from those of
/// others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Attempt {
    /// A random number that the client chooses.
    pub(crate) conn_id: u64,
    /// Counts the attempts of that connection.
    pub(crate) generation: u32,
    /// The role of this side.
    pub(crate) role: Role,
}

impl Attempt {
    /// A client's first attempt at a new connection.
    pub(crate) fn first() -> std::io::Result<Self> {
        let conn_id = getrandom::u64().map_err(std::io::Error::other)?;
        Ok(Self { conn_id, generation: 0, role: Role::Client })
    }
}

/// A successful handshake.
#[derive(Debug)]
pub(crate) struct Established<D> {
    /// The agreed terms.
    pub(crate) agreed: Agreed,
    /// The working data path, or why TCP is used.
    pub(crate) path: Result<D, FallbackReason>,
}

#[cfg(test)]
impl<D> Established<D> {
    /// The transport of the connection.
    pub(crate) fn transport(&self) -> Transport {
        if self.path.is_ok() { Transport::Rdma } else { Transport::Tcp }
    }
}
