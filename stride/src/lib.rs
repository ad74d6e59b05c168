//! The parts of `stride-perf`, which measures bandwidth and latency of RDMA as perftest defines them.
//!
//! A run goes through these modules in turn: the command line ([`cli`]) becomes a validated [`plan`]; a
//! [`device`] is chosen; the two sides of a [`session`] agree on the plan over the [`control`] connection;
//! the [`workload`] moves messages between [`buffers`] in [`memory`], on the processors of a [`placement`]; [`statistics`] turns
//! clock ticks into figures, and
//! [`report`] prints them, and writes files of the [`result`].
//!
//! This crate has the sessions and suites; `stride-base` and `stride-workload` have the rest.
//!
//! What it does not do: it is no library for other programs, and it does not tune the machine.

#![deny(unsafe_code)]

pub mod session;
pub mod suite;

pub use stride_base::{
    buffers, cli, control, device, error, interrupt, memory, placement, plan, report, result, statistics,
};
pub use stride_workload as workload;

/// What the fuzz target in `fuzz/` calls.
#[cfg(fuzzing)]
pub mod testing {
    pub use crate::session::hostile::hostile_control;
}
