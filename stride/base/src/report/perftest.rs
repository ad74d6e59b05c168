//! The table with perftest's columns and units, for programs that parse it.

use super::{BandwidthRow, LatencyRow, ResultRow};
use crate::plan::{Measure, TestPlan};

/// Gb/s per MiB/s.
const GIGABITS: f64 = (8 << 20) as f64 / 1e9;

/// The columns, if perftest has a table for this test.
pub(super) fn columns(test: &TestPlan) -> Option<&'static str> {
    match test.measure {
        Measure::Bandwidth if test.rate.is_none() => {
            Some(" #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]")
        }
        Measure::Latency(_) => Some(
            " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   \
             99% percentile[usec]   99.9% percentile[usec]",
        ),
        Measure::Bandwidth | Measure::Echo(_) => None,
    }
}

/// A row of that table. The peak is not measured and is 0, as with perftest's `-N`.
pub(super) fn line(row: &ResultRow) -> Option<String> {
    match row {
        ResultRow::Bandwidth(BandwidthRow {
            size,
            iterations,
            gigabits_per_second,
            million_messages_per_second,
            ..
        }) => {
            let megabytes = gigabits_per_second / GIGABITS;
            Some(format!(
                " {size:<10} {iterations:<14} {:<18.2} {megabytes:<19.2} {million_messages_per_second:.6}",
                0.0
            ))
        }
        ResultRow::Latency(LatencyRow {
            size, iterations, min, avg, stdev, p50, p99, p99_9, max, ..
        }) => Some(format!(
            " {size:<7} {iterations:<14} {min:<14.2} {max:<12.2} {p50:<18.2} {avg:<14.2} {stdev:<15.2} \
                 {p99:<22.2} {p99_9:.2}"
        )),
        ResultRow::Echo(_) | ResultRow::Rated(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{LatencyDefinition, Sizes, TestOperation};

    fn words(text: &str) -> Vec<&str> {
        text.split_whitespace().collect()
    }

    #[test]
    fn figures_stand_below_their_names() {
        let row = ResultRow::Bandwidth(BandwidthRow {
            size: 1 << 20,
            iterations: 1000,
            seconds: 1.0,
            gigabits_per_second: 8.388_608,
            million_messages_per_second: 0.001,
        });
        assert_eq!(words(&line(&row).unwrap()), ["1048576", "1000", "0.00", "1000.00", "0.001000"]);
        let row = ResultRow::Latency(LatencyRow {
            size: 2,
            iterations: 50,
            min: 1.0,
            avg: 1.5,
            stdev: 0.25,
            p50: 1.25,
            p90: 2.0,
            p99: 3.0,
            p99_9: 4.0,
            p99_99: 5.0,
            max: 6.0,
        });
        assert_eq!(
            words(&line(&row).unwrap()),
            ["2", "50", "1.00", "6.00", "1.25", "1.50", "0.25", "3.00", "4.00"]
        );
        for (measure, names) in [(Measure::Bandwidth, 5), (Measure::Latency(LatencyDefinition::PingPong), 9)]
        {
            let test = TestPlan::new(TestOperation::Write, measure, Sizes::One { size: 2 });
            // Two of the names consist of two words each.
            let columns = words(columns(&test).unwrap()).len();
            assert_eq!(columns, names + 2, "{measure:?}");
        }
    }
}
