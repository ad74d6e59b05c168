//! The ping-pong programs, compatible with rdma-core's `ibv_*_pingpong` on either side.
//!
//! [`single`] runs between two queue pairs, [`srq`] between many that share a receive queue, and
//! [`xrc`] between a server and its clients over extended reliable connections. They share the
//! arguments, the exchange of addresses, the message buffers and the order of turns.

pub mod args;
pub mod buffers;
pub mod exchange;
pub mod report;
pub mod single;
pub mod srq;
pub mod turns;
pub mod wire;
pub mod xrc;

pub use args::{Args, PingPongPlan, SrqArgs, UcArgs, UdArgs, XsrqArgs};
pub use buffers::PingPongBuffers;
pub use turns::{IdleTimeout, ReceiveRefill, Turns, start_poll};

/// The `wr_id` of receives, as in the C programs.
pub const RECEIVE: u64 = 1;

/// The `wr_id` of sends, as in the C programs.
pub const SEND: u64 = 2;

/// A random 24-bit initial packet sequence number.
///
/// An earlier connection probably began with another number, so that a late packet of it is not
/// accepted on the new connection.
pub fn first_psn() -> u32 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    // The standard library's seed of hash maps is as random as this needs to be.
    RandomState::new().build_hasher().finish() as u32 & 0xff_ffff
}
