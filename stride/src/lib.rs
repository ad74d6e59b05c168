//! The parts of `stride-perf`, which measures bandwidth and latency of RDMA as perftest defines them.
//!
//! A run goes through these modules in turn: the command line ([`cli`]) becomes a validated [`plan`]; the two
//! sides agree on it over the [`control`] connection; the workload moves the messages between [`buffers`];
//! [`statistics`] turns clock ticks into figures, and [`report`] prints them.
//!
//! What it does not do: it is no library for other programs, and it does not tune the machine.

#![deny(unsafe_code)]

pub mod buffers;
pub mod cli;
pub mod control;
pub mod plan;
pub mod report;
pub mod statistics;
