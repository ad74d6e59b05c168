//! Many requests at a time on one connection.
#![allow(dead_code, unused)]

mod engine;
mod error;
mod frame;
mod payload;
mod stats;

pub use error::{MuxError, ProtocolViolation};
pub use payload::MuxBytes;
pub use stats::MuxStats;
