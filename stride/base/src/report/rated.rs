//! Rows for messages at a given rate.

use serde::{Deserialize, Serialize};

use super::{BandwidthRow, LatencyRow};

/// The figures for messages of one size, sent at a given rate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RatedRow {
    /// The number and rate of the messages.
    pub messages: BandwidthRow,
    /// The time from when a message was scheduled to its completion.
    pub latency: LatencyRow,
}

impl RatedRow {
    /// The row as a line.
    pub(super) fn line(&self) -> String {
        let Self { messages, latency } = self;
        let us = |us: f64| format!("{us:.3}");
        columns([
            &messages.size.to_string(),
            &messages.iterations.to_string(),
            &super::table::gigabits(messages.gigabits_per_second),
            &format!("{:.6}", messages.million_messages_per_second),
            &us(latency.avg),
            &us(latency.p50),
            &us(latency.p99),
            &us(latency.p99_9),
            &us(latency.max),
        ])
    }
}

/// The names of the columns.
pub(super) fn heading() -> String {
    columns(["#bytes", "iterations", "Gb/s", "Mpps", "avg", "p50", "p99", "p99.9", "max"])
}

fn columns([size, iterations, gigabits, messages, figures @ ..]: [&str; 9]) -> String {
    let mut line = format!("{size:<10} {iterations:>12} {gigabits:>12} {messages:>12}");
    for figure in figures {
        line += &format!(" {figure:>10}");
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_this() {
        let (size, iterations) = (64, 100_000);
        let row = RatedRow {
            messages: BandwidthRow {
                size,
                iterations,
                seconds: 1.0,
                gigabits_per_second: 0.0512,
                million_messages_per_second: 0.1,
            },
            latency: LatencyRow {
                avg: 1.5,
                p50: 1.25,
                p99: 3.0,
                p99_9: 1000.5,
                max: 123_456.789,
                ..LatencyRow::new(size, iterations, Default::default())
            },
        };
        assert_eq!(
            [heading(), row.line()].join("\n"),
            "\
#bytes       iterations         Gb/s         Mpps        avg        p50        p99      p99.9        max
64               100000     0.051200     0.100000      1.500      1.250      3.000   1000.500 123456.789"
        );
    }
}
