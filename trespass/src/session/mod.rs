//! A connection as its program sees it: the calls, how they wait, and how it comes about.
//!
//! - [`connection`] joins the protocol, the transport and the pool; [`blocking`] adds the waiting of a socket's calls.
//! - [`readiness`] is the readiness that a program sees, and the descriptor that it waits for.
//! - [`connect`] makes connections; [`acceptor`] takes clients in, and [`pending`] has the handshakes that are under way.

pub(crate) mod acceptor;
pub(crate) mod blocking;
pub(crate) mod buffers;
#[cfg_attr(not(feature = "rdma"), allow(dead_code, reason = "no connection manager without RDMA"))]
pub(crate) mod cm_error;
pub(crate) mod connect;
pub(crate) mod connection;
pub(crate) mod pending;
pub(crate) mod readiness;
mod spin;
pub(crate) mod stats;
mod timer;
