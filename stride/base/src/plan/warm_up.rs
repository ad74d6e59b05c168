//! Warm-up: before each size, a run like the measured one whose figures are discarded.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::test_plan::MOST_MESSAGES;
use super::{PlanError, TestPlan};
use crate::cli::{CommonArgs, WarmUpArg};
use crate::seconds::Seconds;

/// The length of the warm-up before each size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WarmUp {
    /// A number of messages of each queue pair.
    Messages {
        /// Messages per queue pair.
        count: u64,
    },
    /// A duration.
    Seconds {
        /// The duration in seconds.
        seconds: Seconds,
    },
    /// As many messages as may be in flight, like perftest's warm-up.
    Depth,
}

impl WarmUp {
    /// The warm-up that the command line gives.
    ///
    /// # Errors
    ///
    /// Two different warm-ups.
    pub(super) fn asked(args: &CommonArgs) -> Result<Option<Self>, PlanError> {
        match (args.warmup, args.perform_warm_up) {
            (Some(_), true) => Err(PlanError::TwoWarmUps),
            (None, true) => Ok(Some(Self::Depth)),
            (Some(WarmUpArg::Messages(count)), false) => Ok(Some(Self::Messages { count })),
            (Some(WarmUpArg::Seconds(seconds)), false) => Ok(Some(Self::Seconds { seconds })),
            (None, false) => Ok(None),
        }
    }
}

impl fmt::Display for WarmUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Messages { count } => write!(f, "{count} messages"),
            Self::Seconds { seconds } => write!(f, "{seconds} s"),
            Self::Depth => f.write_str("as many messages as are under way"),
        }
    }
}

impl TestPlan {
    /// The warm-up of a size: the same test with another length.
    pub fn warming(&self) -> Option<Self> {
        let (iterations, duration) = match self.warm_up? {
            WarmUp::Messages { count } => {
                (count.min(MOST_MESSAGES).next_multiple_of(self.post_list.into()), None)
            }
            WarmUp::Depth => (u64::from(self.depth()).next_multiple_of(self.post_list.into()), None),
            WarmUp::Seconds { seconds } => (self.iterations, Some(seconds)),
        };
        // The queues have the length that the measured messages need, including those that a
        // thread's queue pairs share.
        let least = self.share(self.thread_count() - 1);
        let (tx_depth, rx_depth) = (self.depth(), Some(least.receive_depth().max(1)));
        Some(Self { iterations, duration, tx_depth, rx_depth, ..self.clone() })
    }

    /// Whether a run of any size ends by time, and so may leave unused receives.
    pub fn ends_in_time(&self) -> bool {
        self.duration.is_some() || matches!(self.warm_up, Some(WarmUp::Seconds { .. }))
    }

    pub(super) fn validate_warm_up(&self) -> Result<(), PlanError> {
        match self.warm_up {
            Some(WarmUp::Messages { count: 0 }) => Err(PlanError::ZeroCount { flag: "--warmup" }),
            Some(WarmUp::Seconds { seconds }) if seconds.is_zero() => {
                Err(PlanError::NoTime { flag: "--warmup" })
            }
            Some(WarmUp::Seconds { seconds }) if self.data_validation => {
                Err(PlanError::ValidationAfterTime { seconds })
            }
            Some(_) if self.data_validation && !self.connection.is_reliable() => {
                Err(PlanError::ValidationAfterLosses { connection: self.connection })
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

    fn warming(flags: &str) -> TestPlan {
        test(flags).unwrap().warming().unwrap()
    }

    #[test]
    fn a_warm_up_is_the_test_but_for_its_length() {
        assert_eq!(test("write bw").unwrap().warming(), None);
        let of = |flags: &str| (warming(flags).iterations, warming(flags).duration);
        assert_eq!(of("write bw --warmup 300"), (300, None));
        assert_eq!(of("write bw -D 5 --warmup 300"), (300, None));
        assert_eq!(of("write bw -D 5 --warmup 2s"), (5000, Some(Seconds::whole(2))));
        assert_eq!(
            (of("write bw --perform_warm_up"), of("write lat --perform-warm-up")),
            ((128, None), (1, None))
        );
        assert_eq!(of("write bw --warmup 100 -l 64 -n 640"), (128, None));
    }

    #[test]
    fn queues_are_no_longer_than_they_were_made() {
        let long = warming("send bw -n 6 --warmup 1000 -r 4");
        assert_eq!((long.depth(), long.receive_depth(), long.completion_interval()), (6, 4, 1));
        let short = warming("send bw --warmup 3");
        assert_eq!((short.depth(), short.receive_depth()), (3, 3));
    }

    #[test]
    fn warm_up_refuses_invalid_combinations() {
        let refused = |flags: &str| test(flags).unwrap_err().to_string();
        assert!(refused("write bw --warmup 0").starts_with("--warmup 0 is below"));
        assert!(refused("write bw --warmup 0s").starts_with("--warmup 0 leaves no time"));
        assert!(
            refused("write bw --warmup 3 --perform_warm_up").starts_with("--warmup and --perform-warm-up")
        );
        assert!(
            refused("write bw --warmup 3s --data-validation").contains("--warmup 3s and --data-validation")
        );
        assert!(refused("write bw -c UC --warmup 3 --data-validation").contains("-c UC"));
        assert!(test("write bw --warmup 3 --data-validation").is_ok());
    }
}
