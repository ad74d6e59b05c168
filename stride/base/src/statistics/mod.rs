//! Conversion of clock ticks into figures.

mod bandwidth;
mod latency;
mod timer;

pub use bandwidth::BandwidthSummary;
pub use latency::{LatencyRecorder, LatencySummary};
pub use timer::{Counter, Timer};
