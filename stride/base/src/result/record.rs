//! The record's structure.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::date_time::rfc_3339;
use super::{DeviceInfo, Distribution, HostRecord};
use crate::plan::{LatencyDefinition, Measure, SideRole, TestPlan, TestPoint};
use crate::report::{BandwidthRow, ECHO, LatencyRow, ResultRow, defined, duration};

/// The version of the structure. It increases when a key is removed or changes its meaning.
pub(crate) const SCHEMA: &str = "stride-perf-result/1";

/// Everything that is known of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunRecord {
    /// The version of this structure.
    pub schema: String,
    /// A random identifier of the run.
    pub run_id: String,
    /// The program that measured.
    pub tool: Tool,
    /// The words of the command line.
    pub command: Vec<String>,
    /// The start of the run in UTC, by RFC 3339.
    pub started_at: String,
    /// The duration of the run so far in seconds, including the set-up.
    pub elapsed_s: f64,
    /// The state of the run.
    pub status: Status,
    /// The error that ended it, if one did.
    pub error: Option<String>,
    /// The machine of this side.
    pub host: HostRecord,
    /// `client`, `server` or `loopback`.
    pub role: String,
    /// The other side.
    pub peer: Option<PeerRecord>,
    /// The device of this side, if it has one.
    pub device: Option<DeviceInfo>,
    /// Further devices of this side.
    pub other_devices: Vec<DeviceInfo>,
    /// The transport of the messages, once both sides are connected.
    pub connection: Option<ConnectionRecord>,
    /// The parameters, once both sides agree on them.
    pub parameters: Option<ParameterRecord>,
    /// The measurements, row by row.
    pub results: Vec<SizeResult>,
    /// The notes that the user saw beside the figures.
    pub notes: Vec<String>,
}

/// The program that measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tool {
    /// `stride-perf`.
    pub name: String,
    /// The release of the program.
    pub version: String,
}

/// The state of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// The run was in progress when this was written.
    Running,
    /// The run is complete.
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
    /// The peer's release of stride-perf.
    pub version: Option<String>,
}

/// The transport of the messages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectionRecord {
    /// `RC` and so on; `RDMA` or `TCP` for messages of trespass.
    pub transport: String,
    /// The connection and the reason for its choice, as text.
    pub description: String,
}

/// The parameters of the test.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ParameterRecord {
    /// The operation that transfers a message.
    pub operation: String,
    /// `bw`, `lat` or `grid`.
    pub measure: String,
    /// The latency definition, if the test measures latency.
    pub latency_definition: Option<LatencyDefinition>,
    /// The definition of the figures, as text.
    pub definition: String,
    /// The whole plan, as both sides agreed on it. Its keys depend on the release.
    pub plan: serde_json::Value,
}

/// The figures for messages of one size.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SizeResult {
    /// Message size in bytes.
    pub msg_bytes: u64,
    /// Requests in flight, for tests with answers.
    pub in_flight: Option<u32>,
    /// The number of messages.
    pub iterations: u64,
    /// The duration in seconds.
    pub duration_s: f64,
    /// 10^9 bits per second.
    pub bw_gbps: Option<f64>,
    /// 10^6 messages per second.
    pub msg_rate_mpps: Option<f64>,
    /// Requests answered per second.
    pub qps: Option<f64>,
    /// Requests for each write of the client, over a mux.
    pub requests_per_write: Option<f64>,
    /// The minimum.
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
    /// The maximum.
    pub lat_us_max: Option<f64>,
    /// Over a software device: the payload path of the messages that this process moved.
    pub payload_path: Option<String>,
    /// Processor time of the measuring threads in nanoseconds per message.
    pub cpu_ns_per_msg: Option<f64>,
    /// Each side's figures, if both measured.
    pub sides: Vec<SideResult>,
    /// The increase of the port's counters, if the system has them.
    pub counters: Option<BTreeMap<String, u64>>,
    /// Whether the user ended the measurement early; the figures cover the completed messages.
    pub interrupted: bool,
    /// Figures for each second, if the measurement took longer.
    pub intervals: Vec<Interval>,
    /// All samples, if this side took them.
    pub histogram: Option<Distribution>,
}

/// One side's figures of a bidirectional test.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SideResult {
    /// `client` or `server`.
    pub side: String,
    /// Messages that it sent.
    pub iterations: u64,
    /// The duration in seconds.
    pub duration_s: f64,
    /// 10^9 bits per second.
    pub bw_gbps: f64,
    /// 10^6 messages per second.
    pub msg_rate_mpps: f64,
    /// Processor time of its measuring threads in nanoseconds per message.
    pub cpu_ns_per_msg: Option<f64>,
}

/// Details of a size beyond its row.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SizeDetails {
    /// All samples.
    pub histogram: Option<Distribution>,
    /// Processor time of the measuring threads in nanoseconds per message.
    pub cpu_ns_per_msg: Option<f64>,
    /// Each side's figures, if both measured.
    pub sides: Vec<SideResult>,
    /// The increase of the port's counters.
    pub counters: Option<BTreeMap<String, u64>>,
}

/// The figures for an interval of about a second.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// The start of the interval in seconds since the first message of this size.
    pub start_s: f64,
    /// The length of the interval in seconds.
    pub duration_s: f64,
    /// The number of messages.
    pub iterations: u64,
    /// 10^9 bits per second.
    pub bw_gbps: f64,
    /// 10^6 messages per second.
    pub msg_rate_mpps: f64,
}

impl RunRecord {
    /// Starts the record of a run.
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
    /// The state's name in results.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Client(_) => "client",
            Self::Loopback => "loopback",
        }
    }
}

impl ParameterRecord {
    /// Describes a plan.
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
    /// Makes a result of a row and its details.
    pub fn new(row: &ResultRow, details: SizeDetails) -> Self {
        let SizeDetails { histogram, cpu_ns_per_msg, sides, counters } = details;
        let size = match row {
            ResultRow::Bandwidth(row) => Self::default().with_bandwidth(row),
            ResultRow::Latency(row) => {
                let duration_s = row.iterations as f64 * row.avg / 1e6;
                Self { iterations: row.iterations, duration_s, ..Self::default() }.with_latency(row)
            }
            ResultRow::Rated(row) => Self::default().with_bandwidth(&row.messages).with_latency(&row.latency),
            ResultRow::Echo(row) => {
                let (qps, requests_per_write) = (Some(row.requests_per_second()), row.per_write);
                Self { qps, requests_per_write, ..Self::default() }
                    .with_bandwidth(&row.requests)
                    .with_latency(&row.answers)
            }
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

/// 128 random bits: the time, the process, and the standard library's seed for maps.
fn run_id() -> String {
    use std::hash::{BuildHasher, RandomState};
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
    let seed = RandomState::new().hash_one((now, std::process::id()));
    format!("{now:016x}{seed:016x}")
}
