//! A line for each row of the table, with enough of the run to stand alone.

use serde::{Deserialize, Serialize};

use super::{RunRecord, SizeResult};

/// The columns of the CSV file, which are also the keys of the JSON lines.
pub const COLUMNS: [&str; 32] = [
    "run_id",
    "started_at",
    "tool_version",
    "host",
    "role",
    "peer",
    "device",
    "is_software",
    "transport",
    "operation",
    "measure",
    "latency_definition",
    "msg_bytes",
    "in_flight",
    "iterations",
    "duration_s",
    "bw_gbps",
    "msg_rate_mpps",
    "qps",
    "lat_us_min",
    "lat_us_avg",
    "lat_us_stdev",
    "lat_us_p50",
    "lat_us_p90",
    "lat_us_p99",
    "lat_us_p999",
    "lat_us_p9999",
    "lat_us_max",
    "payload_path",
    "interrupted",
    "cpu_ns_per_msg",
    "requests_per_write",
];

/// One row with the run's parameters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "each is the field of the same name of the run, of its parts, or of the size")]
pub struct FlatRow {
    pub run_id: String,
    pub started_at: String,
    pub tool_version: String,
    pub host: String,
    pub role: String,
    pub peer: Option<String>,
    pub device: Option<String>,
    pub is_software: Option<bool>,
    pub transport: Option<String>,
    pub operation: Option<String>,
    pub measure: Option<String>,
    pub latency_definition: Option<crate::plan::LatencyDefinition>,
    pub msg_bytes: u64,
    pub in_flight: Option<u32>,
    pub iterations: u64,
    pub duration_s: f64,
    pub bw_gbps: Option<f64>,
    pub msg_rate_mpps: Option<f64>,
    pub qps: Option<f64>,
    pub lat_us_min: Option<f64>,
    pub lat_us_avg: Option<f64>,
    pub lat_us_stdev: Option<f64>,
    pub lat_us_p50: Option<f64>,
    pub lat_us_p90: Option<f64>,
    pub lat_us_p99: Option<f64>,
    pub lat_us_p999: Option<f64>,
    pub lat_us_p9999: Option<f64>,
    pub lat_us_max: Option<f64>,
    pub payload_path: Option<String>,
    pub interrupted: bool,
    pub cpu_ns_per_msg: Option<f64>,
    pub requests_per_write: Option<f64>,
}

impl FlatRow {
    /// Makes the row of a run and one of its results.
    pub fn new(run: &RunRecord, size: &SizeResult) -> Self {
        let (device, parameters) = (run.device.as_ref(), run.parameters.as_ref());
        Self {
            run_id: run.run_id.clone(),
            started_at: run.started_at.clone(),
            tool_version: run.tool.version.clone(),
            host: run.host.name.clone(),
            role: run.role.clone(),
            peer: run.peer.as_ref().map(|peer| peer.address.clone()),
            device: device.map(|device| device.name.clone()),
            is_software: device.map(|device| device.is_software),
            transport: run.connection.as_ref().map(|connection| connection.transport.clone()),
            operation: parameters.map(|parameters| parameters.operation.clone()),
            measure: parameters.map(|parameters| parameters.measure.clone()),
            latency_definition: parameters.and_then(|parameters| parameters.latency_definition),
            msg_bytes: size.msg_bytes,
            in_flight: size.in_flight,
            iterations: size.iterations,
            duration_s: size.duration_s,
            bw_gbps: size.bw_gbps,
            msg_rate_mpps: size.msg_rate_mpps,
            qps: size.qps,
            lat_us_min: size.lat_us_min,
            lat_us_avg: size.lat_us_avg,
            lat_us_stdev: size.lat_us_stdev,
            lat_us_p50: size.lat_us_p50,
            lat_us_p90: size.lat_us_p90,
            lat_us_p99: size.lat_us_p99,
            lat_us_p999: size.lat_us_p999,
            lat_us_p9999: size.lat_us_p9999,
            lat_us_max: size.lat_us_max,
            payload_path: size.payload_path.clone(),
            interrupted: size.interrupted,
            cpu_ns_per_msg: size.cpu_ns_per_msg,
            requests_per_write: size.requests_per_write,
        }
    }

    /// The row as a JSON object, followed by a line end.
    pub fn to_json_line(&self) -> String {
        serde_json::to_string(self).expect("strings and numbers are JSON") + "\n"
    }
}

/// A CSV file of these rows, by RFC 4180 except that lines end with line feeds.
pub(crate) fn csv_of(rows: impl Iterator<Item = FlatRow>) -> String {
    let mut writer = csv::WriterBuilder::new().has_headers(false).from_writer(Vec::new());
    let written = writer.write_record(COLUMNS).and_then(|()| {
        rows.into_iter().try_for_each(|row| writer.serialize(row))?;
        Ok(writer.into_inner().map_err(csv::IntoInnerError::into_error)?)
    });
    String::from_utf8(written.expect("memory takes strings and numbers")).expect("they are text")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_columns_are_the_fields() {
        let run = RunRecord::new(vec!["stride-perf".to_owned()], "client");
        let line = FlatRow::new(&run, &SizeResult::default()).to_json_line();
        let keys = line.match_indices("\":").map(|(end, _)| {
            let begin = line[..end].rfind('"').unwrap() + 1;
            &line[begin..end]
        });
        let keys: Vec<_> = keys.filter(|key| COLUMNS.contains(key)).collect();
        assert_eq!(keys, COLUMNS);
        let object: serde_json::Map<String, serde_json::Value> = serde_json::from_str(&line).unwrap();
        assert_eq!(object.len(), COLUMNS.len());
    }

    #[test]
    fn a_field_with_a_comma_is_quoted() {
        let mut run = RunRecord::new(Vec::new(), "client");
        run.host.name = "a,\"b\"".to_owned();
        let text = csv_of([FlatRow::new(&run, &SizeResult::default())].into_iter());
        let (header, line) = text.split_once('\n').unwrap();
        assert_eq!(header, COLUMNS.join(","));
        assert!(line.contains(",\"a,\"\"b\"\"\",client,,") && line.ends_with(",false,,\n"), "{line}");
        assert_eq!(csv_of(std::iter::empty()), header.to_owned() + "\n");
    }
}
