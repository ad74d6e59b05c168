//! Messages to and fro over extended reliable connections, between a server and several clients: `ibv_xsrq_pingpong`, with its
//! flags, its lines and its way to exchange addresses, so that either side can be the C program.
//!
//! ```text
//! server$ cargo run --example xsrq_pingpong -- -c 2
//! client$ cargo run --example xsrq_pingpong -- SERVER
//! ```
//!
//! Each message names the shared receive queue that it is for, and its completion the target that it came by: [`xrc`].

use std::process::ExitCode;

use rdma_examples::pingpong::{PingPongPlan, XsrqArgs, xrc};
use rdma_examples::program;

fn main() -> ExitCode {
    program::run(|| xrc::run(&PingPongPlan::from(program::arguments::<XsrqArgs>()?)))
}
