//! The text of the table.
//!
//! Lines that begin with `#` are the heading; every other line begins with the message size in
//! bytes, and its columns are separated by spaces.

use super::{BandwidthRow, LatencyRow, ResultRow, echo, rated};
use crate::plan::{Api, LatencyDefinition, Measure, TestOperation, TestPlan};
use crate::result::SizeResult;

/// The lines before the first row: the test, the transport if it needs a mention, and the columns.
pub fn heading(test: &TestPlan, over: Option<&str>) -> String {
    let subject = test.operation.title();
    let (what, columns) = match test.measure {
        Measure::Bandwidth if test.rate.is_some() => (
            format!(
                "{}: all bytes / {}; latency in us: {}",
                of_bandwidth(test),
                duration(test.operation),
                defined(test, LatencyDefinition::Completion)
            ),
            rated::heading(),
        ),
        Measure::Bandwidth => (
            format!("{}: all bytes / {}", of_bandwidth(test), duration(test.operation)),
            bandwidth_columns(["#bytes", "iterations", "Gb/s", "Mpps"]),
        ),
        Measure::Latency(definition) => (
            format!("latency{} in us: {}", by_threads(test), defined(test, definition)),
            latency_columns([
                "#bytes",
                "iterations",
                "min",
                "avg",
                "p50",
                "p90",
                "p99",
                "p99.9",
                "max",
                "stdev",
            ]),
        ),
        Measure::Echo(_) => {
            let is_mux = test.operation == TestOperation::Messages(Api::Mux);
            (echo::TITLE.to_owned(), echo::heading(is_mux))
        }
    };
    let over = over.map(|over| format!("# over {over}\n"));
    format!("# {subject} {what}\n{}{columns}", over.unwrap_or_default())
}

/// The notice that the device is a software device.
pub fn software(device: &str) -> String {
    format!("{device}, a software device: figures of this host's processors and memory")
}

fn of_bandwidth(test: &TestPlan) -> String {
    let pairs = match test.queue_pairs {
        1 => String::new(),
        pairs => format!(" of {pairs} queue pairs"),
    };
    let threads = by_threads(test);
    let both = if test.bidirectional { " both ways, added" } else { "" };
    format!("bandwidth{pairs}{threads}{both}")
}

fn by_threads(test: &TestPlan) -> String {
    match test.thread_count() {
        1 => String::new(),
        threads => format!(" by {threads} threads"),
    }
}

/// The start and end of a bandwidth measurement, as text.
pub fn duration(operation: TestOperation) -> &'static str {
    match operation {
        TestOperation::Messages(_) | TestOperation::Tcp => {
            "(the receiving program's answer to the last - first send)"
        }
        _ => "(last completion - first post)",
    }
}

/// The latency definition, as text.
pub fn defined(test: &TestPlan, definition: LatencyDefinition) -> String {
    if let Some(rate) = test.rate {
        return format!("from when a message was meant to be sent to its completion (--rate, {rate})");
    }
    let words = match (test.operation, definition) {
        _ if test.device_clock => "from the post to the completion, by the device's clock (--clock device)",
        (TestOperation::Messages(_) | TestOperation::Tcp, _) => {
            "half the round trip of a ping-pong of the two programs"
        }
        (_, LatencyDefinition::PingPong) => {
            "half the round trip of a ping-pong (--latency pingpong, as perftest)"
        }
        (_, LatencyDefinition::Completion) => "from the post to the completion (--latency completion)",
    };
    words.to_owned()
}

/// The row as a line.
pub fn line(row: &ResultRow) -> String {
    match *row {
        ResultRow::Bandwidth(BandwidthRow {
            size,
            iterations,
            gigabits_per_second,
            million_messages_per_second,
            ..
        }) => bandwidth_columns([
            &size.to_string(),
            &iterations.to_string(),
            &gigabits(gigabits_per_second),
            &format!("{million_messages_per_second:.6}"),
        ]),
        ResultRow::Latency(row) => {
            let LatencyRow { min, avg, p50, p90, p99, p99_9, max, stdev, .. } = row;
            let figures = [min, avg, p50, p90, p99, p99_9, max, stdev].map(|us| format!("{us:.3}"));
            let [min, avg, p50, p90, p99, p99_9, max, stdev] = figures.each_ref().map(String::as_str);
            let (size, iterations) = (row.size.to_string(), row.iterations.to_string());
            latency_columns([&size, &iterations, min, avg, p50, p90, p99, p99_9, max, stdev])
        }
        ResultRow::Echo(ref row) => row.line(),
        ResultRow::Rated(ref row) => row.line(),
    }
}

/// The line after the last row: the cost of a message of the first and the last size.
pub fn footer(results: &[SizeResult]) -> Option<String> {
    let cost = |result: &SizeResult| Some((result.cpu_ns_per_msg?, result.msg_bytes));
    let mut costs = results.iter().filter_map(cost);
    let (first, size) = costs.next()?;
    let words = match costs.next_back() {
        None => format!("{first:.1}"),
        Some((last, largest)) => format!("{first:.1} ({size} bytes) to {last:.1} ({largest} bytes)"),
    };
    Some(format!("# CPU time of the measuring threads, ns a message: {words}"))
}

/// Prints more digits for a small number, as perftest does, so that short messages over a slow
/// device are not 0.
pub(super) fn gigabits(per_second: f64) -> String {
    if per_second < 0.1 { format!("{per_second:.6}") } else { format!("{per_second:.4}") }
}

fn bandwidth_columns([size, iterations, gigabits, messages]: [&str; 4]) -> String {
    format!("{size:<10} {iterations:>12} {gigabits:>12} {messages:>12}")
}

fn latency_columns([size, iterations, figures @ ..]: [&str; 10]) -> String {
    let mut line = format!("{size:<10} {iterations:>12}");
    for figure in figures {
        line += &format!(" {figure:>10}");
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Sizes;

    fn test(measure: Measure) -> TestPlan {
        TestPlan::new(TestOperation::Write, measure, Sizes::One { size: 2 })
    }

    #[test]
    fn the_bandwidth_table_is_this() {
        let rows =
            [(2u64, 0.0676, 4.225), (8_388_608, 381.42, 0.005_683)].map(|(size, gigabits, messages)| {
                ResultRow::Bandwidth(BandwidthRow {
                    size,
                    iterations: 1_000_000,
                    seconds: 1.0,
                    gigabits_per_second: gigabits,
                    million_messages_per_second: messages,
                })
            });
        let text = [heading(&test(Measure::Bandwidth), None), line(&rows[0]), line(&rows[1])].join("\n");
        assert_eq!(
            text,
            "\
# RDMA write bandwidth: all bytes / (last completion - first post)
#bytes       iterations         Gb/s         Mpps
2               1000000     0.067600     4.225000
8388608         1000000     381.4200     0.005683"
        );
    }

    #[test]
    fn the_latency_table_is_this() {
        let row = ResultRow::Latency(LatencyRow {
            size: 65536,
            iterations: 1000,
            min: 6.0,
            avg: 6.1234,
            stdev: 0.0625,
            p50: 6.11,
            p90: 6.5,
            p99: 6.84,
            p99_9: 7.2,
            p99_99: 1000.0,
            max: 1234.5678,
        });
        let text =
            [heading(&test(Measure::Latency(LatencyDefinition::PingPong)), None), line(&row)].join("\n");
        assert_eq!(
            text,
            "\
# RDMA write latency in us: half the round trip of a ping-pong (--latency pingpong, as perftest)
#bytes       iterations        min        avg        p50        p90        p99      p99.9        max      stdev
65536              1000      6.000      6.123      6.110      6.500      6.840      7.200   1234.568      0.062"
        );
        let other = heading(&test(Measure::Latency(LatencyDefinition::Completion)), None);
        assert!(other.contains("from the post to the completion"), "{other}");
    }

    #[test]
    fn a_software_device_is_named_as_such() {
        for measure in [Measure::Bandwidth, Measure::Latency(LatencyDefinition::PingPong)] {
            let text = heading(&test(measure), Some(&software("soft0")));
            let lines: Vec<_> = text.lines().collect();
            assert_eq!(
                lines[1],
                "# over soft0, a software device: figures of this host's processors and memory"
            );
            let plain: Vec<_> = [&lines[..1], &lines[2..]].concat();
            assert_eq!(plain.join("\n"), heading(&test(measure), None));
        }
    }

    #[test]
    fn messages_say_what_carries_them_and_when_they_count() {
        let test = |measure| TestPlan { operation: TestOperation::Messages(Api::Pool), ..test(measure) };
        let text = heading(&test(Measure::Bandwidth), Some("TCP"));
        assert_eq!(
            text.lines().take(2).collect::<Vec<_>>(),
            [
                "# trespass messages (--api pool) bandwidth: all bytes / (the receiving program's answer to the last - \
                 first send)",
                "# over TCP"
            ]
        );
        let text = heading(&test(Measure::Latency(LatencyDefinition::PingPong)), Some("TCP"));
        assert!(
            text.contains("latency in us: half the round trip of a ping-pong of the two programs"),
            "{text}"
        );
    }

    #[test]
    fn the_footer_says_what_messages_cost() {
        let of =
            |msg_bytes, cpu_ns_per_msg| SizeResult { msg_bytes, cpu_ns_per_msg, ..SizeResult::default() };
        assert_eq!((footer(&[]), footer(&[of(2, None)])), (None, None));
        let one = [of(64, Some(41.25))];
        assert_eq!(footer(&one).unwrap(), "# CPU time of the measuring threads, ns a message: 41.2");
        let many = [of(2, Some(40.0)), of(4, Some(41.0)), of(8, Some(123.456))];
        assert!(footer(&many).unwrap().ends_with(": 40.0 (2 bytes) to 123.5 (8 bytes)"));
    }

    #[test]
    fn columns_never_run_together() {
        let text = line(&ResultRow::Bandwidth(BandwidthRow {
            size: u64::MAX,
            iterations: u64::MAX,
            seconds: 1e15,
            gigabits_per_second: 1e15,
            million_messages_per_second: 1e15,
        }));
        assert_eq!(text.split_whitespace().count(), 4, "{text}");
    }
}
