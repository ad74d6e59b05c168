//! Rules for messages over the operating system's TCP.

use super::messages::LONGEST;
use super::{PlanError, SizeSweep, Sizes, TestPlan};
use crate::cli::RunArgs;

impl TestPlan {
    /// Checks that one TCP connection can run the test.
    pub(super) fn validate_tcp(&self) -> Result<(), PlanError> {
        let Self { operation, measure, sizes, iterations, duration, tx_depth, .. } = *self;
        let plain = Self { iterations, duration, tx_depth, ..Self::new(operation, measure, sizes) };
        if *self != plain {
            return Err(PlanError::NotOfTcp);
        }
        let (flag, given) = match sizes {
            Sizes::One { size } | Sizes::Again { size, .. } => ("-s", size),
            Sizes::PowersOfTwo { max } | Sizes::Grid { max } | Sizes::Sweep(SizeSweep { max, .. }) => {
                ("--max-msg-size", max)
            }
        };
        if given > LONGEST { Err(PlanError::MessageTooLong { flag, given, limit: LONGEST }) } else { Ok(()) }
    }
}

/// Warnings about flags without effect.
pub(super) fn warnings(args: &RunArgs) -> Vec<String> {
    let given = [
        ("-d", args.device.is_some()),
        ("-i", args.ib_port.is_some()),
        ("-x", args.gid_index.is_some()),
        ("-t", args.tx_depth.is_some()),
    ];
    let given: Vec<_> = given.into_iter().filter(|(_, given)| *given).map(|(flag, _)| flag).collect();
    if given.is_empty() {
        return Vec::new();
    }
    vec![format!(
        "{} have no effect on tcp, which the system routes and buffers: leave them out",
        given.join(", ")
    )]
}

#[cfg(test)]
mod tests {
    use crate::cli;
    use crate::plan::{Measure, PlanError, RunPlan, TestOperation, TestPlan};

    fn plan(flags: &str) -> Result<RunPlan, PlanError> {
        let words = format!("stride-perf tcp {flags}");
        RunPlan::new(cli::parse(words.split_whitespace()).unwrap())
    }

    #[test]
    fn the_defaults_are_those_of_other_tests() {
        let bandwidth = plan("bw").unwrap().test;
        assert_eq!((bandwidth.operation, bandwidth.measure), (TestOperation::Tcp, Measure::Bandwidth));
        assert_eq!((bandwidth.sizes.largest(), bandwidth.iterations), (65536, 5000));
        let latency = plan("lat").unwrap().test;
        assert_eq!((latency.sizes.largest(), latency.iterations), (2, 1000));
        assert_eq!(plan("bw -a").unwrap().test.cells().count(), 23);
    }

    #[test]
    fn flags_without_effect_are_reported_and_impossible_ones_refused() {
        assert!(plan("bw").unwrap().warnings.is_empty());
        let warnings = plan("bw -d mlx5_0 -t 5").unwrap().warnings;
        assert!(warnings[0].starts_with("-d, -t have no effect on tcp"), "{warnings:?}");
        assert!(matches!(plan("bw -s 1025M"), Err(PlanError::MessageTooLong { flag: "-s", .. })));
        let test = plan("bw").unwrap().test;
        let strange = TestPlan { queue_pairs: 2, ..test };
        assert_eq!(strange.validate(), Err(PlanError::NotOfTcp));
    }
}
