//! Exchanges messages over many reliable connections that share a receive queue:
//! `ibv_srq_pingpong`, with its flags, lines and exchange of addresses, so that either side can be
//! the C program.
//!
//! ```text
//! server$ cargo run --example srq_pingpong
//! client$ cargo run --example srq_pingpong -- SERVER
//! ```
//!
//! All queue pairs share one completion queue, and a table finds the queue pair of a completion:
//! [`srq`].

use std::process::ExitCode;

use rdma_examples::pingpong::{PingPongPlan, SrqArgs, srq};
use rdma_examples::program;

fn main() -> ExitCode {
    program::run(|| srq::run(&PingPongPlan::try_from(program::arguments::<SrqArgs>()?)?))
}
