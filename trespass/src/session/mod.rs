//! Connections from the program's side: the calls, how they wait, and how connections are made.
//!
//! - [`connection`] joins the protocol, the transport and the pool. [`blocking`] adds blocking
//!   calls.
//! - [`readiness`] is the readiness that a program sees, and the descriptor that it waits for.
//! - [`local_address`] finds the local addresses that a configuration names.
//! - [`connect`] makes connections, [`connecting`] without blocking. [`service`] is the thread in
//!   which [`listening`] accepts clients ([`acceptor`]) into a [`backlog`], and [`closing`] finishes
//!   dropped connections. [`schedule`] is the order of its turns. `draining` destroys their queue
//!   pairs. [`pending`] has the unfinished handshakes. Clients beyond a full backlog are told so
//!   ([`overflow`]), and refused ones get an answer ([`refusal`]). [`control_keepalive`] keeps the TCP
//!   connections beside RDMA.
//! - [`stats`] logs the periodic summary. [`times`] are the durations of calls in it.

pub(crate) mod acceptor;
pub(crate) mod admission;
pub(crate) mod backlog;
pub(crate) mod blocking;
pub(crate) mod buffers;
pub(crate) mod caller;
pub(crate) mod closing;
#[cfg_attr(not(feature = "rdma"), allow(dead_code, reason = "no connection manager without RDMA"))]
pub(crate) mod cm_error;
pub(crate) mod connect;
pub(crate) mod connecting;
pub(crate) mod connection;
pub(crate) mod connection_info;
mod control_keepalive;
#[cfg(feature = "rdma")]
mod draining;
pub(crate) mod exit;
pub(crate) mod lingering;
pub(crate) mod listening;
pub(crate) mod local_address;
mod overflow;
pub(crate) mod pending;
pub(crate) mod readiness;
pub(crate) mod refusal;
#[cfg(any(target_os = "linux", target_os = "android"))]
mod room;
pub(crate) mod schedule;
pub(crate) mod service;
mod sleep;
mod spin;
pub(crate) mod stats;
pub(crate) mod tasks;
pub(crate) mod timeouts;
mod timers;
pub(crate) mod times;
mod turns;
pub(crate) mod visits;
pub(crate) mod wake;
