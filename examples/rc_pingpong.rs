//! Exchanges a message over a reliable connection: `ibv_rc_pingpong`, with its flags, lines and
//! exchange of addresses, so that either side can be the C program.
//!
//! ```text
//! server$ cargo run --example rc_pingpong
//! client$ cargo run --example rc_pingpong -- SERVER
//! ```
//!
//! This is the short version, which other types of queue pairs share: [`single`].
//! `rc_pingpong_split` is the same step by step.

use std::process::ExitCode;

use rdma_examples::pingpong::{Args, PingPongPlan, single};
use rdma_examples::program;

fn main() -> ExitCode {
    program::run(|| single::run(&PingPongPlan::try_from(program::arguments::<Args>()?)?))
}
