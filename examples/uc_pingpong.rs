//! Exchanges a message over an unreliable connection: `ibv_uc_pingpong`, with its flags, lines and
//! exchange of addresses, so that either side can be the C program.
//!
//! ```text
//! server$ cargo run --example uc_pingpong
//! client$ cargo run --example uc_pingpong -- SERVER
//! ```
//!
//! An unreliable connection needs fewer attributes than a reliable one; [`connect`] sets the right
//! ones. Everything else is shared: [`single`]. After a lost message the program ends by its
//! timeout.
//!
//! [`connect`]: sideway::ibverbs::connect::connect

use std::process::ExitCode;

use rdma_examples::pingpong::{PingPongPlan, UcArgs, single};
use rdma_examples::program;

fn main() -> ExitCode {
    program::run(|| single::run(&PingPongPlan::from(program::arguments::<UcArgs>()?)))
}
