//! The parts of `stride-perf` around a measurement: the command line ([`cli`]), the validated [`plan`], the [`control`]
//! connection, the [`device`] and its [`memory`], [`statistics`], the [`report`] and the files of the [`result`].
//!
//! `stride-workload` moves the messages. This crate is apart from it so that it can be compiled at a lower optimisation level:
//! nothing of it runs once for each message but what is inline.

#![deny(unsafe_code)]

pub mod buffers;
pub mod cli;
pub mod control;
pub mod device;
pub mod error;
pub mod interrupt;
pub mod memory;
pub mod placement;
pub mod plan;
pub mod progress;
pub mod report;
pub mod result;
pub mod statistics;
