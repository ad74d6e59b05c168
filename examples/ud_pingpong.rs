//! A datagram to and fro: `ibv_ud_pingpong`, with its
//! flags, its lines and its way to exchange addresses, so that either side can
//! be the C program.
//!
//! ```text
//! server$ cargo run --example ud_pingpong
//! client$ cargo run --example ud_pingpong -- SERVER
//! ```
//!
//! What is different from a connection, in [`single`]: the queue pair is made ready without a peer ([`activate_ud`]), each send names
//! an address handle, number and Q_Key of the peer, and each receive has 40 bytes before the message for a header.
//!
//! [`activate_ud`]: sideway::ibverbs::connect::activate_ud

use std::process::ExitCode;

use rdma_examples::pingpong::{PingPongPlan, UdArgs, single};
use rdma_examples::program;

fn main() -> ExitCode {
    program::run(|| single::run(&PingPongPlan::from(program::arguments::<UdArgs>()?)))
}
