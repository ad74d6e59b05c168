//! Messages to and fro over many reliable connections that share a receive queue: `ibv_srq_pingpong`, with its
//! flags, its lines and its way to exchange addresses, so that either side can
//! be the C program.
//!
//! ```text
//! server$ cargo run --example srq_pingpong
//! client$ cargo run --example srq_pingpong -- SERVER
//! ```
//!
//! One completion queue tells of all queue pairs, and a table leads from its completions to each: [`srq`].

use std::process::ExitCode;

use rdma_examples::pingpong::{PingPongPlan, SrqArgs, srq};
use rdma_examples::program;

fn main() -> ExitCode {
    program::run(|| srq::run(&PingPongPlan::try_from(program::arguments::<SrqArgs>()?)?))
}
