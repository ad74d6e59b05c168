//! Thresholds that figures must meet for the run to succeed (`--expect-bw`, `--expect-p99`).

use super::ResultRow;
use crate::cli::{Expectation, OutputArgs};
use crate::plan::{Measure, TestPlan, TestPoint};

/// An expectation about a figure that the test does not produce.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ExpectationsError {
    /// The figure belongs to another kind of test.
    #[error("{flag} is about {of}, and this test measures {measure}: {remedy}")]
    OtherMeasure {
        /// The flag of the expectation.
        flag: &'static str,
        /// The quantity that it concerns.
        of: &'static str,
        /// The quantity that the test measures.
        measure: String,
        /// What the user can do, in the imperative.
        remedy: &'static str,
    },
    /// Only a client checks expectations.
    #[error("{flag} is for the side that knows the test: give it to the client")]
    OfServer {
        /// The flag of the expectation.
        flag: &'static str,
    },
    /// The test does not measure the size.
    #[error(
        "{flag} {size}:{limit} is about messages of {size} bytes, and the sizes are {sizes}: give one of them"
    )]
    OtherSize {
        /// The flag of the expectation.
        flag: &'static str,
        /// The size that the user gave.
        size: u64,
        /// The limit that the user gave.
        limit: f64,
        /// The sizes of the test.
        sizes: String,
    },
}

/// A limit, and whether a figure was compared with it.
#[derive(Clone, Debug)]
struct Limit {
    expected: Expectation,
    was_met_with: bool,
}

/// All limits of a run.
#[derive(Clone, Debug, Default)]
pub struct Expectations {
    bandwidth: Vec<Limit>,
    p99: Vec<Limit>,
}

impl Expectations {
    /// Checks the expectations against the test.
    ///
    /// # Errors
    ///
    /// The test does not produce such a figure.
    pub fn new(args: &OutputArgs, test: &TestPlan) -> Result<Self, ExpectationsError> {
        let measure = test.measure.to_string();
        match test.measure {
            Measure::Bandwidth if test.rate.is_none() && !args.expect_p99.is_empty() => {
                Err(ExpectationsError::OtherMeasure {
                    flag: "--expect-p99",
                    of: "latency",
                    measure,
                    remedy: "give --expect-bw, or measure lat or a --rate",
                })
            }
            Measure::Latency(_) if !args.expect_bw.is_empty() => Err(ExpectationsError::OtherMeasure {
                flag: "--expect-bw",
                of: "bandwidth",
                measure,
                remedy: "give --expect-p99, or measure bw",
            }),
            _ => Ok(Self {
                bandwidth: limits("--expect-bw", &args.expect_bw, test)?,
                p99: limits("--expect-p99", &args.expect_p99, test)?,
            }),
        }
    }

    /// Refuses expectations on a server that serves many clients.
    ///
    /// # Errors
    ///
    /// The user gave one.
    pub fn none(args: &OutputArgs) -> Result<(), ExpectationsError> {
        let flags = [("--expect-bw", &args.expect_bw), ("--expect-p99", &args.expect_p99)];
        let given = flags.into_iter().find(|(_, given)| !given.is_empty());
        given.map_or(Ok(()), |(flag, _)| Err(ExpectationsError::OfServer { flag }))
    }

    /// Compares a row with the limits; returns a line for each that it misses.
    pub fn check(&mut self, row: &ResultRow) -> Vec<String> {
        let (bandwidth, latency) = match row {
            ResultRow::Bandwidth(row) => (Some(row), None),
            ResultRow::Latency(row) => (None, Some(row)),
            ResultRow::Echo(row) => (Some(&row.requests), Some(&row.answers)),
            ResultRow::Rated(row) => (Some(&row.messages), Some(&row.latency)),
        };
        let point = row.point();
        let bandwidth = bandwidth.into_iter().flat_map(|row| {
            missed(&mut self.bandwidth, point, |limit| {
                let is = row.gigabits_per_second;
                (is < limit).then(|| format!("{is:.4} Gb/s, below --expect-bw {limit}"))
            })
        });
        let latency = latency.into_iter().flat_map(|row| {
            missed(&mut self.p99, point, |limit| {
                (row.p99 > limit)
                    .then(|| format!("a 99th percentile of {:.3} us, above --expect-p99 {limit}", row.p99))
            })
        });
        bandwidth.chain(latency).collect()
    }

    /// A line for each limit without a row: an expectation about a missing figure is not met.
    pub fn unmet(&self) -> Vec<String> {
        let flags = [("--expect-bw", &self.bandwidth), ("--expect-p99", &self.p99)];
        let unmet =
            flags.into_iter().flat_map(|(flag, limits)| limits.iter().map(move |limit| (flag, limit)));
        unmet
            .filter(|(_, limit)| !limit.was_met_with)
            .map(|(flag, limit)| match limit.expected {
                Expectation { size: Some(size), limit } => {
                    format!("nothing was measured that {flag} {}:{limit} is about", size.0)
                }
                Expectation { limit, .. } => format!("nothing was measured that {flag} {limit} is about"),
            })
            .collect()
    }
}

fn limits(
    flag: &'static str,
    given: &[Expectation],
    test: &TestPlan,
) -> Result<Vec<Limit>, ExpectationsError> {
    let limit = |expected: &Expectation| match expected.size {
        Some(size) if test.sizes.iter().all(|measured| measured != size.0) => {
            let (size, limit, sizes) = (size.0, expected.limit, test.sizes.to_string());
            Err(ExpectationsError::OtherSize { flag, size, limit, sizes })
        }
        _ => Ok(Limit { expected: *expected, was_met_with: false }),
    };
    given.iter().map(limit).collect()
}

fn missed(limits: &mut [Limit], point: TestPoint, misses: impl Fn(f64) -> Option<String>) -> Vec<String> {
    let about =
        limits.iter_mut().filter(|limit| limit.expected.size.is_none_or(|about| about.0 == point.size));
    about
        .filter_map(|limit| {
            limit.was_met_with = true;
            misses(limit.expected.limit).map(|how| format!("messages of {point}: {how}"))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli;
    use crate::plan::RunPlan;
    use crate::report::{BandwidthRow, EchoRow, LatencyRow};

    fn expectations(flags: &str) -> Result<Expectations, ExpectationsError> {
        of_test(&format!("write {flags}"))
    }

    fn of_test(test: &str) -> Result<Expectations, ExpectationsError> {
        let words = format!("stride-perf {test}");
        let cli = cli::parse(words.split_whitespace()).unwrap();
        let args = cli.output.clone();
        Expectations::new(&args, &RunPlan::new(cli).unwrap().test)
    }

    fn bandwidth(size: u64, gigabits_per_second: f64) -> ResultRow {
        let (iterations, seconds, million_messages_per_second) = (5, 1.0, 1.0);
        ResultRow::Bandwidth(BandwidthRow {
            size,
            iterations,
            seconds,
            gigabits_per_second,
            million_messages_per_second,
        })
    }

    fn latency(size: u64, p99: f64) -> ResultRow {
        let zero = LatencyRow::new(size, 5, Default::default());
        ResultRow::Latency(LatencyRow { p99, ..zero })
    }

    #[test]
    fn every_size_has_to_reach_it_and_no_other_makes_up_for_one() {
        let mut expected = expectations("bw -a --max-msg-size 4 --expect-bw 10").unwrap();
        assert!(expected.check(&bandwidth(2, 10.0)).is_empty());
        assert_eq!(
            expected.check(&bandwidth(4, 9.99)),
            ["messages of 4 bytes: 9.9900 Gb/s, below --expect-bw 10"]
        );
        assert!(expected.unmet().is_empty());
    }

    #[test]
    fn a_limit_of_one_size_is_not_of_others() {
        let mut expected = expectations("lat -a --max-msg-size 8 --expect-p99 4:2.5 --expect-p99 5").unwrap();
        assert!(expected.check(&latency(2, 3.0)).is_empty());
        assert_eq!(expected.unmet(), ["nothing was measured that --expect-p99 4:2.5 is about"]);
        let missed = expected.check(&latency(4, 6.0));
        assert_eq!(missed.len(), 2, "{missed:?}");
        assert_eq!(missed[0], "messages of 4 bytes: a 99th percentile of 6.000 us, above --expect-p99 2.5");
    }

    #[test]
    fn requests_have_both_figures() {
        let (ResultRow::Bandwidth(requests), ResultRow::Latency(answers)) =
            (bandwidth(128, 2.0), latency(128, 9.0))
        else {
            unreachable!("made as such")
        };
        let row = ResultRow::Echo(EchoRow { in_flight: 16, requests, answers, per_write: None });
        let mut expected = of_test("msg grid --expect-bw 2 --expect-p99 128:9").unwrap();
        assert_eq!((expected.check(&row), expected.unmet()), (vec![], vec![]));
        let mut expected = of_test("msg grid --expect-bw 3 --expect-p99 8 --expect-p99 4K:1").unwrap();
        assert_eq!(
            expected.check(&row),
            [
                "messages of 128 bytes, 16 in flight: 2.0000 Gb/s, below --expect-bw 3",
                "messages of 128 bytes, 16 in flight: a 99th percentile of 9.000 us, above --expect-p99 8"
            ]
        );
        assert_eq!(expected.unmet(), ["nothing was measured that --expect-p99 4096:1 is about"]);
    }

    #[test]
    fn expectations_without_a_figure_are_refused() {
        let text = expectations("lat --expect-bw 5").unwrap_err().to_string();
        assert!(text.contains("--expect-bw") && text.contains("give --expect-p99"), "{text}");
        let text = expectations("bw --expect-p99 5").unwrap_err().to_string();
        assert!(text.contains("give --expect-bw"), "{text}");
        let text = expectations("bw -s 64 --expect-bw 65:1").unwrap_err().to_string();
        assert!(text.contains("--expect-bw 65:1") && text.contains("the sizes are 64"), "{text}");
    }
}
