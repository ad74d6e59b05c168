//! The parts of `stride-perf`, which measures bandwidth and latency of RDMA by perftest's
//! definitions.
//!
//! A run passes through these modules in order. The command line ([`cli`]) becomes a validated
//! [`plan`], and a [`device`] is chosen. The two sides of a [`session`] agree on the plan over the
//! [`control`] connection. The [`workload`] moves messages between [`buffers`] in [`memory`], on
//! the processors of a [`placement`]. [`statistics`] turns clock ticks into figures, and [`report`]
//! prints them and writes files of the [`result`].
//!
//! It is not a library for other programs, and it does not tune the machine.

#![deny(unsafe_code)]

pub mod session;
pub mod suite;

pub use stride_base::{
    buffers, cli, control, device, error, interrupt, memory, placement, plan, report, result, statistics,
};
pub use stride_workload as workload;

/// The entry point of the fuzz target in `fuzz/`.
#[cfg(fuzzing)]
pub mod testing {
    pub use crate::session::hostile::hostile_control;
}
