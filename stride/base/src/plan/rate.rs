//! Tests that send at a given rate instead of as fast as possible.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{LatencyDefinition, Measure, PlanError, TestOperation, TestPlan};
use crate::cli::{CommonArgs, Millionths, RateArg, RateUnitsArg};
use crate::report::ResultRow;

/// The highest rate: one message per nanosecond.
const MOST_MESSAGES_PER_SECOND: u64 = 1_000_000_000;

/// The highest rate in bits, above every link's.
const MOST_BITS_PER_SECOND: u64 = 100_000_000_000_000;

/// The part of the rate below which it counts as missed.
const REACHED: f64 = 0.95;

/// The schedule of sends, which does not depend on completions. The rate covers all queue pairs and
/// threads of a side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rate {
    /// The rate.
    pub of: RateOf,
    /// Messages sent back to back, with a proportional pause after them.
    pub burst: u32,
}

/// The unit of a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RateOf {
    /// A rate in messages.
    Messages {
        /// Messages per second.
        per_second: u64,
    },
    /// A rate in bits of payload.
    Bits {
        /// Bits per second.
        per_second: u64,
    },
}

impl Rate {
    /// The rate that the command line gives.
    ///
    /// # Errors
    ///
    /// Two different rates, or a flag that needs a rate without one.
    pub(super) fn asked(args: &CommonArgs) -> Result<Option<Self>, PlanError> {
        let of = match (args.rate, args.rate_limit) {
            (Some(_), Some(_)) => return Err(PlanError::TwoRates),
            (Some(rate), None) => Some(rate),
            (None, Some(Millionths(count))) => {
                let units = args.rate_units.unwrap_or(RateUnitsArg::Gigabits);
                Some(units.rate(Millionths(count)).unwrap_or(RateArg::Bits(u64::MAX)))
            }
            (None, None) => None,
        };
        let of = match of {
            Some(RateArg::Messages(per_second)) => RateOf::Messages { per_second },
            Some(RateArg::Bits(per_second)) => RateOf::Bits { per_second },
            None if args.burst_size.is_some() => {
                return Err(PlanError::OfNoRate { flag: "--burst-size", rate: "--rate" });
            }
            None if args.rate_units.is_some() => {
                return Err(PlanError::OfNoRate { flag: "--rate_units", rate: "--rate_limit" });
            }
            None => return Ok(None),
        };
        if args.rate_units.is_some() && args.rate_limit.is_none() {
            return Err(PlanError::OfNoRate { flag: "--rate_units", rate: "--rate_limit" });
        }
        Ok(Some(Self { of, burst: args.burst_size.unwrap_or(1) }))
    }

    /// Messages of this size per second.
    pub fn messages_per_second(self, size: u64) -> f64 {
        match self.of {
            RateOf::Messages { per_second } => per_second as f64,
            RateOf::Bits { per_second } => per_second as f64 / 8.0 / size.max(1) as f64,
        }
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.of {
            RateOf::Messages { per_second } => write!(f, "{per_second} messages/s")?,
            RateOf::Bits { per_second } => write!(f, "{} Gb/s", per_second as f64 / 1e9)?,
        }
        if self.burst > 1 { write!(f, " in bursts of {}", self.burst) } else { Ok(()) }
    }
}

impl TestPlan {
    /// The warning if fewer messages completed than the rate asks for.
    pub fn missed_rate(&self, row: &ResultRow) -> Option<String> {
        let (size, seconds, messages) = match row {
            ResultRow::Rated(row) => (row.messages.size, row.messages.seconds, row.messages.iterations),
            _ => return None,
        };
        let (asked, is) = (self.rate?.messages_per_second(size), messages as f64 / seconds);
        (is < asked * REACHED).then(|| {
            format!(
                "warning: {is:.0} messages/s of {size} bytes in place of {asked:.0}: latencies are of a queue that grows; give a \
                 lower --rate, or more -t, -q or --threads"
            )
        })
    }

    /// Checks the rate, and that no flag conflicts with it.
    pub(super) fn validate_rate(&self) -> Result<(), PlanError> {
        let Some(rate) = self.rate else { return Ok(()) };
        let (given, limit, unit) = match rate.of {
            RateOf::Messages { per_second } => (per_second, MOST_MESSAGES_PER_SECOND, "messages/s"),
            RateOf::Bits { per_second } => (per_second, MOST_BITS_PER_SECOND, "bits/s"),
        };
        if given == 0 || given > limit {
            return Err(PlanError::NoSuchRate { given, limit, unit });
        }
        if rate.burst == 0 {
            return Err(PlanError::ZeroCount { flag: "--burst-size" });
        }
        let together = |flag: String, remedy: &'static str| Err(PlanError::NotWithRate { flag, remedy });
        match self.measure {
            Measure::Latency(LatencyDefinition::PingPong) => {
                together("--latency pingpong".to_owned(), "give --latency completion")
            }
            _ if self.post_list > 1 => {
                together(format!("-l {}", self.post_list), "give --burst-size in place of -l")
            }
            _ if self.cq_mod.is_some_and(|cq_mod| cq_mod > 1) => together(
                format!("-Q {}", self.cq_mod.unwrap_or(1)),
                "leave -Q out, as every message's latency counts",
            ),
            _ if self.queues.events => together(
                "-e".to_owned(),
                "leave -e out, as who sleeps for completions does not send when a message is due",
            ),
            _ if self.bidirectional => {
                together("-b".to_owned(), "measure one way, then the other with --reversed")
            }
            _ if matches!(self.operation, TestOperation::Messages(_)) => {
                together("msg".to_owned(), "leave --rate out")
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli;
    use crate::plan::RunPlan;

    fn test(flags: &str) -> Result<TestPlan, PlanError> {
        let words = format!("stride-perf {flags}");
        RunPlan::new(cli::parse(words.split_whitespace()).unwrap()).map(|plan| plan.test)
    }

    fn rate(flags: &str) -> Rate {
        test(flags).unwrap().rate.unwrap()
    }

    #[test]
    fn rates_are_ours_or_perftests() {
        assert_eq!(
            rate("write bw --rate 100K"),
            Rate { of: RateOf::Messages { per_second: 100_000 }, burst: 1 }
        );
        let gigabits = Rate { of: RateOf::Bits { per_second: 10_000_000_000 }, burst: 16 };
        assert_eq!(rate("write bw --rate 10Gb/s --burst-size 16"), gigabits);
        assert_eq!(rate("write bw --rate_limit 10 --burst_size=16"), gigabits);
        assert_eq!(rate("write bw --rate_limit=10 --rate_units=g --burst_size=16"), gigabits);
        assert_eq!(rate("write bw --rate_limit 5 --rate_units p").of, RateOf::Messages { per_second: 5 });
        assert_eq!(gigabits.to_string(), "10 Gb/s in bursts of 16");
        assert_eq!(
            (gigabits.messages_per_second(1250), rate("write bw --rate 7").messages_per_second(9)),
            (1e6, 7.0)
        );
    }

    #[test]
    fn a_rate_has_one_latency_and_every_message_counts() {
        let plan = test("write lat --rate 1000").unwrap();
        assert_eq!(plan.measure, Measure::Latency(LatencyDefinition::Completion));
        assert_eq!((plan.depth(), test("send bw -s 64 --rate 1000").unwrap().completion_interval()), (1, 1));
        let refused = |flags: &str| test(flags).unwrap_err().to_string();
        assert!(
            refused("write lat --latency pingpong --rate 9").starts_with("--latency pingpong and --rate")
        );
        assert!(refused("write bw -l 8 -n 80 --rate 9").contains("-l 8 and --rate"));
        assert!(refused("write bw -Q 8 --rate 9").contains("-Q 8 and --rate"));
        assert!(refused("write bw -b --rate 9").contains("-b and --rate"));
    }

    #[test]
    fn invalid_rates_are_refused() {
        let refused = |flags: &str| test(flags).unwrap_err().to_string();
        assert!(
            refused("write bw --rate 0")
                .starts_with("--rate 0 messages/s is outside of what there is, 1 to 1000000000")
        );
        assert!(refused("write bw --rate 2000M").contains("1 to 1000000000"));
        assert!(refused("write bw --rate_limit 18446744073709").contains("bits/s"));
        assert!(refused("write bw --rate 5 --burst-size 0").starts_with("--burst-size 0"));
        assert!(refused("write bw --burst-size 4").starts_with("--burst-size has no effect without --rate"));
        assert!(refused("write bw --rate_units p").contains("without --rate_limit"));
        assert!(refused("write bw --rate 5 --rate_units p").contains("without --rate_limit"));
        assert!(refused("write bw --rate 5 --rate_limit 5").starts_with("--rate and --rate_limit"));
    }
}
