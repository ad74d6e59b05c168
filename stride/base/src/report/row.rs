//! Rows of the table.

use serde::{Deserialize, Serialize};

use super::{EchoRow, RatedRow};
use crate::plan::TestPoint;
use crate::statistics::{BandwidthSummary, LatencySummary};

/// What was measured with messages of one size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResultRow {
    /// Of a bandwidth test.
    Bandwidth(BandwidthRow),
    /// Of a latency test.
    Latency(LatencyRow),
    /// Of requests and their answers.
    Echo(EchoRow),
    /// Of messages at a rate.
    Rated(RatedRow),
}

/// A row, and what it cost the side that measured it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// The row.
    pub row: ResultRow,
    /// How long the threads that measured it ran, in nanoseconds for each message that they sent; where that is known.
    pub cpu_ns_per_msg: Option<f64>,
}

/// Bandwidth and message rate with messages of one size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct BandwidthRow {
    /// Bytes of a message.
    pub size: u64,
    /// Messages.
    pub iterations: u64,
    /// How long they took.
    pub seconds: f64,
    /// 10^9 bits each second.
    pub gigabits_per_second: f64,
    /// 10^6 messages each second.
    pub million_messages_per_second: f64,
}

/// Latency with messages of one size, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LatencyRow {
    /// Bytes of a message.
    pub size: u64,
    /// Messages.
    pub iterations: u64,
    /// The least.
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
    /// The greatest.
    pub max: f64,
}

impl ResultRow {
    /// What it is about.
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
    /// A row for this summary.
    pub fn new(size: u64, iterations: u64, summary: BandwidthSummary) -> Self {
        let BandwidthSummary { seconds, gigabits_per_second, million_messages_per_second } = summary;
        Self { size, iterations, seconds, gigabits_per_second, million_messages_per_second }
    }

    /// With what the peer measured at the same time. As perftest has it, the rates are added, and the messages are one side's.
    pub fn with(self, peer: &Self) -> Self {
        Self {
            gigabits_per_second: self.gigabits_per_second + peer.gigabits_per_second,
            million_messages_per_second: self.million_messages_per_second + peer.million_messages_per_second,
            ..self
        }
    }
}

impl LatencyRow {
    /// A row for this summary.
    pub fn new(size: u64, iterations: u64, summary: LatencySummary) -> Self {
        let LatencySummary { min, avg, stdev, p50, p90, p99, p99_9, p99_99, max } = summary;
        Self { size, iterations, min, avg, stdev, p50, p90, p99, p99_9, p99_99, max }
    }
}
