//! The structure.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::date_time::rfc_3339;
use super::{DeviceInfo, Distribution, HostRecord};
use crate::plan::{LatencyDefinition, Measure, SideRole, TestPlan, TestPoint};
use crate::report::{BandwidthRow, ECHO, LatencyRow, ResultRow, defined, duration};

/// The version of the structure: a key that goes, or means something else, makes it the next one.
pub(crate) const SCHEMA: &str = "stride-perf-result/1";

/// Everything that is known of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunRecord {
    /// The version of this structure.
    pub schema: String,
    /// Differs from run to run.
    pub run_id: String,
    /// What measured.
    pub tool: Tool,
    /// The words of the command line.
    pub command: Vec<String>,
    /// When the run began, as RFC 3339 has it, in UTC.
    pub started_at: String,
    /// How long the run took so far, set-up and all.
    pub elapsed_s: f64,
    /// How far it came.
    pub status: Status,
    /// Why it came no further.
    pub error: Option<String>,
    /// The machine of this side.
    pub host: HostRecord,
    /// The side that this is.
    pub role: String,
    /// The other side.
    pub peer: Option<PeerRecord>,
    /// The device of this side, unless there is none.
    pub device: Option<DeviceInfo>,
    /// More of them, where several were used.
    pub other_devices: Vec<DeviceInfo>,
    /// What carried the messages, once both sides were connected.
    pub connection: Option<ConnectionRecord>,
    /// What was asked for, once both sides agreed on it.
    pub parameters: Option<ParameterRecord>,
    /// What was measured, row by row.
    pub results: Vec<SizeResult>,
    /// What the user was told beside the figures.
    pub notes: Vec<String>,
}

/// What measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tool {
    /// `stride-perf`.
    pub name: String,
    /// Its release.
    pub version: String,
}

/// How far a run came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// It was under way when this was written.
    Running,
    /// All was measured.
    Finished,
    /// The user ended it.
    Interrupted,
    /// An error ended it.
    Failed,
}

/// The other side.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerRecord {
    /// Host or address, and port, of the control connection.
    pub address: String,
    /// Its release of stride-perf.
    pub version: Option<String>,
}

/// What carried the messages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectionRecord {
    /// `RC` and so on; of messages, `RDMA` or `TCP`.
    pub transport: String,
    /// In words: how the two sides are connected, and why so.
    pub description: String,
}

/// What was asked for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ParameterRecord {
    /// What carried the bytes of a message.
    pub operation: String,
    /// `bw`, `lat` or `grid`.
    pub measure: String,
    /// What counts as the latency of a message.
    pub latency_definition: Option<LatencyDefinition>,
    /// In words: what the figures are.
    pub definition: String,
    /// The whole plan, as the two sides agreed on it. Its keys are those of the tool's release.
    pub plan: serde_json::Value,
}

/// What was measured with messages of one size.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SizeResult {
    /// Bytes of a message.
    pub msg_bytes: u64,
    /// Requests under way at a time, where there are answers.
    pub in_flight: Option<u32>,
    /// Messages.
    pub iterations: u64,
    /// How long that took.
    pub duration_s: f64,
    /// 10^9 bits each second.
    pub bw_gbps: Option<f64>,
    /// 10^6 messages each second.
    pub msg_rate_mpps: Option<f64>,
    /// Requests that were answered each second.
    pub qps: Option<f64>,
    /// The least.
    pub lat_us_min: Option<f64>,
    /// The arithmetic mean.
    pub lat_us_avg: Option<f64>,
    /// The standard deviation.
    pub lat_us_stdev: Option<f64>,
    /// The median.
    pub lat_us_p50: Option<f64>,
    /// 90 of 100 samples are at most this.
    pub lat_us_p90: Option<f64>,
    /// 99 of 100 samples are at most this.
    pub lat_us_p99: Option<f64>,
    /// 999 of 1000 samples are at most this.
    pub lat_us_p999: Option<f64>,
    /// 9999 of 10000 samples are at most this.
    pub lat_us_p9999: Option<f64>,
    /// The greatest.
    pub lat_us_max: Option<f64>,
    /// Over a software device: the way that payload went, as far as this process moved it.
    pub payload_path: Option<String>,
    /// How long the measuring threads ran, in nanoseconds for each message.
    pub cpu_ns_per_msg: Option<f64>,
    /// What each side measured, where both did.
    pub sides: Vec<SideResult>,
    /// What this side's port counted meanwhile, where the system counts.
    pub counters: Option<BTreeMap<String, u64>>,
    /// Whether the user ended it before all messages were through: the figures are of those that were.
    pub interrupted: bool,
    /// Second by second, where it took more than one.
    pub intervals: Vec<Interval>,
    /// All samples, where this side took them.
    pub histogram: Option<Distribution>,
}

/// What one of two sides measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SideResult {
    /// `client` or `server`.
    pub side: String,
    /// Messages that it sent.
    pub iterations: u64,
    /// How long that took.
    pub duration_s: f64,
    /// 10^9 bits each second.
    pub bw_gbps: f64,
    /// 10^6 messages each second.
    pub msg_rate_mpps: f64,
    /// How long its measuring threads ran, in nanoseconds for each message.
    pub cpu_ns_per_msg: Option<f64>,
}

/// What is known of a size beside its row.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SizeDetails {
    /// All samples.
    pub histogram: Option<Distribution>,
    /// How long the measuring threads ran, in nanoseconds for each message.
    pub cpu_ns_per_msg: Option<f64>,
    /// What each side measured, where both did.
    pub sides: Vec<SideResult>,
    /// What this side's port counted.
    pub counters: Option<BTreeMap<String, u64>>,
}

/// What was measured within a second or so.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// When it began, counted from the first message of this size.
    pub start_s: f64,
    /// How long it was.
    pub duration_s: f64,
    /// Messages.
    pub iterations: u64,
    /// 10^9 bits each second.
    pub bw_gbps: f64,
    /// 10^6 messages each second.
    pub msg_rate_mpps: f64,
}

impl RunRecord {
    /// Of a run that begins now.
    pub fn new(command: Vec<String>, role: &str) -> Self {
        Self {
            schema: SCHEMA.to_owned(),
            run_id: run_id(),
            tool: Tool { name: "stride-perf".to_owned(), version: env!("CARGO_PKG_VERSION").to_owned() },
            command,
            started_at: rfc_3339(SystemTime::now()),
            elapsed_s: 0.0,
            status: Status::Running,
            error: None,
            host: HostRecord::this(),
            role: role.to_owned(),
            peer: None,
            device: None,
            other_devices: Vec::new(),
            connection: None,
            parameters: None,
            results: Vec::new(),
            notes: Vec::new(),
        }
    }
}

impl SideRole {
    /// The name that results know it by.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Client(_) => "client",
            Self::Loopback => "loopback",
        }
    }
}

impl ParameterRecord {
    /// Of this plan.
    pub fn new(test: &TestPlan) -> Self {
        let (measure, latency_definition, definition) = match test.measure {
            Measure::Bandwidth => {
                let bandwidth = format!("all bytes / {}", duration(test.operation));
                match test.latency_definition() {
                    Some(latency) => {
                        ("bw", Some(latency), format!("{bandwidth}; latency: {}", defined(test, latency)))
                    }
                    None => ("bw", None, bandwidth),
                }
            }
            Measure::Latency(latency) => ("lat", Some(latency), defined(test, latency)),
            Measure::Echo(_) => ("grid", None, ECHO.to_owned()),
        };
        Self {
            operation: test.operation.to_string(),
            measure: measure.to_owned(),
            latency_definition,
            definition,
            plan: serde_json::to_value(test).unwrap_or_default(),
        }
    }
}

impl SizeResult {
    /// Of this row.
    pub fn new(row: &ResultRow, details: SizeDetails) -> Self {
        let SizeDetails { histogram, cpu_ns_per_msg, sides, counters } = details;
        let size = match row {
            ResultRow::Bandwidth(row) => Self::default().with_bandwidth(row),
            ResultRow::Latency(row) => {
                let duration_s = row.iterations as f64 * row.avg / 1e6;
                Self { iterations: row.iterations, duration_s, ..Self::default() }.with_latency(row)
            }
            ResultRow::Rated(row) => Self::default().with_bandwidth(&row.messages).with_latency(&row.latency),
            ResultRow::Echo(row) => Self { qps: Some(row.requests_per_second()), ..Self::default() }
                .with_bandwidth(&row.requests)
                .with_latency(&row.answers),
        };
        let TestPoint { size: msg_bytes, in_flight } = row.point();
        Self { msg_bytes, in_flight, histogram, cpu_ns_per_msg, sides, counters, ..size }
    }

    fn with_bandwidth(self, row: &BandwidthRow) -> Self {
        Self {
            iterations: row.iterations,
            duration_s: row.seconds,
            bw_gbps: Some(row.gigabits_per_second),
            msg_rate_mpps: Some(row.million_messages_per_second),
            ..self
        }
    }

    fn with_latency(self, row: &LatencyRow) -> Self {
        Self {
            lat_us_min: Some(row.min),
            lat_us_avg: Some(row.avg),
            lat_us_stdev: Some(row.stdev),
            lat_us_p50: Some(row.p50),
            lat_us_p90: Some(row.p90),
            lat_us_p99: Some(row.p99),
            lat_us_p999: Some(row.p99_9),
            lat_us_p9999: Some(row.p99_99),
            lat_us_max: Some(row.max),
            ..self
        }
    }
}

/// 128 bits that no other run has: the time, the process, and what the standard library seeds its maps with.
fn run_id() -> String {
    use std::hash::{BuildHasher, RandomState};
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
    let seed = RandomState::new().hash_one((now, std::process::id()));
    format!("{now:016x}{seed:016x}")
}
