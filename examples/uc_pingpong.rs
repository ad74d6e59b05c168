//! A message to and fro over an unreliable connection: `ibv_uc_pingpong`, with its
//! flags, its lines and its way to exchange addresses, so that either side can
//! be the C program.
//!
//! ```text
//! server$ cargo run --example uc_pingpong
//! client$ cargo run --example uc_pingpong -- SERVER
//! ```
//!
//! On the way up an unreliable connection needs fewer attributes than a reliable one, which [`connect`] knows; everything else is
//! the same: [`single`]. A message that is lost is lost, and ends the single by its time limit.
//!
//! [`connect`]: sideway::ibverbs::connect::connect

use std::process::ExitCode;

use rdma_examples::pingpong::{PingPongPlan, UcArgs, single};
use rdma_examples::program;

fn main() -> ExitCode {
    program::run(|| single::run(&PingPongPlan::from(program::arguments::<UcArgs>()?)))
}
