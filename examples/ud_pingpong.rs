//! Exchanges a datagram: `ibv_ud_pingpong`, with its flags, lines and exchange of addresses, so
//! that either side can be the C program.
//!
//! ```text
//! server$ cargo run --example ud_pingpong
//! client$ cargo run --example ud_pingpong -- SERVER
//! ```
//!
//! [`single`] handles three differences to a connection. [`activate_ud`] makes the queue pair ready
//! without a peer. Each send names the peer's address handle, number and Q_Key. Each receive has 40
//! bytes for a header in front of the message.
//!
//! [`activate_ud`]: sideway::ibverbs::connect::activate_ud

use std::process::ExitCode;

use rdma_examples::pingpong::{PingPongPlan, UdArgs, single};
use rdma_examples::program;

fn main() -> ExitCode {
    program::run(|| single::run(&PingPongPlan::from(program::arguments::<UdArgs>()?)))
}
