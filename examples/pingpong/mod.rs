//! The ping-pong programs: [`game`] between two queue pairs, [`crowd`] between many that share a receive queue, [`ring`] between a
//! server and its clients over extended reliable connections; and what they
//! need besides verbs: arguments, the exchange of addresses, the memory that goes to and fro, and whose turn it is.
//!
//! All of it is such that either side can be rdma-core's `ibv_rc_pingpong` and its kin.

pub mod args;
pub mod ball;
pub mod crowd;
pub mod exchange;
pub mod game;
pub mod rally;
pub mod report;
pub mod ring;
pub mod wire;

pub use args::{Args, Plan, SrqArgs, UcArgs, UdArgs, XsrqArgs};
pub use ball::Ball;
pub use rally::{Patience, Rally, Receives, start_poll};

/// The `wr_id` of receives, C's.
pub const RECEIVE: u64 = 1;

/// The `wr_id` of sends, C's.
pub const SEND: u64 = 2;

/// A packet sequence number to begin with: 24 bits that no earlier connection is likely to have begun with,
/// so that a packet of that one which is still on its way is not taken for one of this.
pub fn first_psn() -> u32 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    // The standard library's seed of hash maps is as random as this needs to be.
    RandomState::new().build_hasher().finish() as u32 & 0xff_ffff
}
