//! Exchanges messages over extended reliable connections, between a server and several clients:
//! `ibv_xsrq_pingpong`, with its flags, lines and exchange of addresses, so that either side can be
//! the C program.
//!
//! ```text
//! server$ cargo run --example xsrq_pingpong -- -c 2
//! client$ cargo run --example xsrq_pingpong -- SERVER
//! ```
//!
//! Each message names its shared receive queue, and each completion the target that received it:
//! [`xrc`].

use std::process::ExitCode;

use rdma_examples::pingpong::{PingPongPlan, XsrqArgs, xrc};
use rdma_examples::program;

fn main() -> ExitCode {
    program::run(|| xrc::run(&PingPongPlan::from(program::arguments::<XsrqArgs>()?)))
}
