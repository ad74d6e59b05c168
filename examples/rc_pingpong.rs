//! A message to and fro over a reliable connection: `ibv_rc_pingpong`, with its
//! flags, its lines and its way to exchange addresses, so that either side can
//! be the C program.
//!
//! ```text
//! server$ cargo run --example rc_pingpong
//! client$ cargo run --example rc_pingpong -- SERVER
//! ```
//!
//! This is the short way, which other types of queue pairs go as well: [`single`].
//! `rc_pingpong_split` goes the same way step by step.

use std::process::ExitCode;

use rdma_examples::pingpong::{Args, PingPongPlan, single};
use rdma_examples::program;

fn main() -> ExitCode {
    program::run(|| single::run(&PingPongPlan::try_from(program::arguments::<Args>()?)?))
}
