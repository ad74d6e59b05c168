//! Requests and their answers: a row, and its text.

use serde::{Deserialize, Serialize};

/// What was measured with requests of one size, and so many of them under way.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct EchoRow {
    /// Bytes of a request, and of its answer.
    pub size: u64,
    /// Requests.
    pub iterations: u64,
    /// Requests under way at a time.
    pub in_flight: u32,
    /// 10^9 bits each second, of the requests alone.
    pub gigabits_per_second: f64,
    /// 90 of 100 requests were answered within so many microseconds.
    pub p90: f64,
    /// 99 of 100 requests were answered within so many microseconds.
    pub p99: f64,
    /// Requests that were answered each second.
    pub requests_per_second: f64,
}

impl EchoRow {
    /// The row as a line.
    pub(super) fn line(&self) -> String {
        let Self { size, iterations, in_flight, gigabits_per_second, p90, p99, requests_per_second } = *self;
        columns([
            &size.to_string(),
            &iterations.to_string(),
            &in_flight.to_string(),
            &super::table::gigabits(gigabits_per_second),
            &format!("{p90:.3}"),
            &format!("{p99:.3}"),
            &format!("{requests_per_second:.0}"),
        ])
    }
}

/// What is measured, and how.
pub(super) const TITLE: &str =
    "requests and answers over one connection, us: from when a request could be sent to its answer";

/// The names of the columns.
pub(super) fn heading() -> String {
    columns(["#bytes", "iterations", "in-flight", "Gb/s", "p90", "p99", "QPS"])
}

fn columns([size, iterations, in_flight, gigabits, p90, p99, rate]: [&str; 7]) -> String {
    format!("{size:<10} {iterations:>12} {in_flight:>9} {gigabits:>12} {p90:>10} {p99:>10} {rate:>12}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_this() {
        let row = EchoRow {
            size: 128,
            iterations: 100_000,
            in_flight: 256,
            gigabits_per_second: 1.4706,
            p90: 210.0,
            p99: 256.25,
            requests_per_second: 1_533_744.4,
        };
        assert_eq!(
            [heading(), row.line()].join("\n"),
            "\
#bytes       iterations in-flight         Gb/s        p90        p99          QPS
128              100000       256       1.4706    210.000    256.250      1533744"
        );
    }
}
