//! Rows for requests with answers.

use serde::{Deserialize, Serialize};

use super::{BandwidthRow, LatencyRow};

/// The figures for requests of one size, with a given number in flight.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct EchoRow {
    /// Requests in flight.
    pub in_flight: u32,
    /// The requests alone; their answers are not counted.
    pub requests: BandwidthRow,
    /// The time from when a request could be sent to its answer.
    pub answers: LatencyRow,
    /// Requests for each write of the client, over a mux: above 1, requests share writes, and below
    /// 1, one takes several.
    #[serde(default)]
    pub per_write: Option<f64>,
}

impl EchoRow {
    /// Requests answered per second.
    pub fn requests_per_second(&self) -> f64 {
        self.requests.million_messages_per_second * 1e6
    }

    /// The row as a line.
    pub(super) fn line(&self) -> String {
        let Self { in_flight, requests, answers, per_write } = self;
        let per_write = per_write.map(|count| format!("{count:.3}"));
        let figures: [&str; 7] = [
            &requests.size.to_string(),
            &requests.iterations.to_string(),
            &in_flight.to_string(),
            &super::table::gigabits(requests.gigabits_per_second),
            &format!("{:.3}", answers.p90),
            &format!("{:.3}", answers.p99),
            &format!("{:.0}", self.requests_per_second()),
        ];
        columns(figures, per_write.as_deref())
    }
}

/// The heading of the table.
pub const TITLE: &str =
    "requests and answers over one connection, us: from when a request could be sent to its answer";

/// The names of the columns, of which a mux has one more.
pub(super) fn heading(is_mux: bool) -> String {
    let names = ["#bytes", "iterations", "in-flight", "Gb/s", "p90", "p99", "QPS"];
    columns(names, is_mux.then_some("req/write"))
}

fn columns(
    [size, iterations, in_flight, gigabits, p90, p99, rate]: [&str; 7],
    per_write: Option<&str>,
) -> String {
    let line =
        format!("{size:<10} {iterations:>12} {in_flight:>9} {gigabits:>12} {p90:>10} {p99:>10} {rate:>12}");
    line + &per_write.map_or_else(String::new, |count| format!(" {count:>9}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_this() {
        let (size, iterations) = (128, 100_000);
        let row = EchoRow {
            in_flight: 256,
            requests: BandwidthRow {
                size,
                iterations,
                seconds: 0.0652,
                gigabits_per_second: 1.4706,
                million_messages_per_second: 1.533_744_4,
            },
            answers: LatencyRow {
                p90: 210.0,
                p99: 256.25,
                ..LatencyRow::new(size, iterations, Default::default())
            },
            per_write: None,
        };
        assert_eq!(
            [heading(false), row.line()].join("\n"),
            "\
#bytes       iterations in-flight         Gb/s        p90        p99          QPS
128              100000       256       1.4706    210.000    256.250      1533744"
        );
        let row = EchoRow { per_write: Some(250.0), ..row };
        assert_eq!(
            [heading(true), row.line()].join("\n"),
            "\
#bytes       iterations in-flight         Gb/s        p90        p99          QPS req/write
128              100000       256       1.4706    210.000    256.250      1533744   250.000"
        );
    }
}
