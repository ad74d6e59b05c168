//! The parts of `stride-perf` around a measurement: the command line ([`cli`]), the validated
//! [`plan`], the [`control`] connection, the [`device`] and its [`memory`], [`statistics`], the
//! [`report`] and the files of the [`result`].
//!
//! `stride-workload` moves the messages. This crate is separate, so that cargo can compile it at a
//! lower optimisation level: only its inline functions run once for each message.

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
pub mod seconds;
pub mod statistics;
