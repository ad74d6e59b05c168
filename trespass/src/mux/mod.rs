//! Many requests at a time on one connection.

mod config;
mod core;
mod engine;
mod error;
mod frame;
mod handles;
mod payload;
mod stats;
mod threads;

pub use config::MuxConfig;
pub use core::Arrived;
pub use error::{MuxError, ProtocolViolation};
pub use handles::{Answers, Carrier, Mux, PendingAnswer, Request};
pub use payload::MuxBytes;
pub use stats::MuxStats;
