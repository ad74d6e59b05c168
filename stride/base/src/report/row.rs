//! Rows of the table.

use serde::{Deserialize, Serialize};

use super::{EchoRow, RatedRow};
use crate::plan::TestPoint;
use crate::statistics::{BandwidthSummary, LatencySummary};

/// The figures for messages of one size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResultRow {
    /// From a bandwidth test.
    Bandwidth(BandwidthRow),
    /// From a latency test.
    Latency(LatencyRow),
    /// From a test of requests with answers.
    Echo(EchoRow),
    /// From a test at a given rate.
    Rated(RatedRow),
}

/// A row, and its cost for the measuring side.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// The figures.
    pub row: ResultRow,
    /// Processor time of the measuring threads in nanoseconds per message sent, if it was measured.
    pub cpu_ns_per_msg: Option<f64>,
}

/// Bandwidth and message rate with messages of one size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct BandwidthRow {
    /// Message size in bytes.
    pub size: u64,
    /// The number of messages.
    pub iterations: u64,
    /// The duration in seconds.
    pub seconds: f64,
    /// 10^9 bits per second.
    pub gigabits_per_second: f64,
    /// 10^6 messages per second.
    pub million_messages_per_second: f64,
}

/// Latency with messages of one size, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LatencyRow {
    /// Message size in bytes.
    pub size: u64,
    /// The number of messages.
    pub iterations: u64,
    /// The minimum.
    pub min: f64,
    /// The arithmetic mean.
    pub avg: f64,
    /// The standard deviation.
    pub stdev: f64,
    /// The median.
    pub p50: f64,
    /// 90 of 100 samples are at most this.
    pub p90: f64,
    /// 99 of 100 samples are at most this.
    pub p99: f64,
    /// 999 of 1000 samples are at most this.
    pub p99_9: f64,
    /// 9999 of 10000 samples are at most this.
    pub p99_99: f64,
    /// The maximum.
    pub max: f64,
}

impl ResultRow {
    /// The size, and the number in flight, that the row is for.
    pub fn point(&self) -> TestPoint {
        match self {
            Self::Bandwidth(row) => TestPoint { size: row.size, in_flight: None },
            Self::Latency(row) => TestPoint { size: row.size, in_flight: None },
            Self::Rated(row) => TestPoint { size: row.messages.size, in_flight: None },
            Self::Echo(row) => TestPoint { size: row.requests.size, in_flight: Some(row.in_flight) },
        }
    }
}

impl BandwidthRow {
    /// Makes a row of a summary.
    pub fn new(size: u64, iterations: u64, summary: BandwidthSummary) -> Self {
        let BandwidthSummary { seconds, gigabits_per_second, million_messages_per_second } = summary;
        Self { size, iterations, seconds, gigabits_per_second, million_messages_per_second }
    }

    /// Combines the row with the peer's simultaneous one, by perftest's rule: the rates are added,
    /// and the messages are one side's.
    pub fn with(self, peer: &Self) -> Self {
        Self {
            gigabits_per_second: self.gigabits_per_second + peer.gigabits_per_second,
            million_messages_per_second: self.million_messages_per_second + peer.million_messages_per_second,
            ..self
        }
    }
}

impl LatencyRow {
    /// Makes a row of a summary.
    pub fn new(size: u64, iterations: u64, summary: LatencySummary) -> Self {
        let LatencySummary { min, avg, stdev, p50, p90, p99, p99_9, p99_99, max } = summary;
        Self { size, iterations, min, avg, stdev, p50, p90, p99, p99_9, p99_99, max }
    }
}
