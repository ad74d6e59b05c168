//! The order in which devices write to memory (relaxed PCIe ordering).

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{LatencyDefinition, Measure, TestOperation, TestPlan};
use crate::cli::{OrderingArg, OrderingArgs};

/// Whether devices may reorder their writes on the bus.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ordering {
    /// perftest's rule: allow it if the library supports it and the test does not wait for the last
    /// byte.
    #[default]
    Auto,
    /// Allow it.
    On,
    /// Forbid it.
    Off,
}

/// The requested ordering is not possible.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OrderingError {
    /// The test waits for the last byte, which must therefore arrive last.
    #[error(
        "--relaxed-ordering on and --latency pingpong of write do not go together, as the last byte is waited for, which may come \
         first then: give --relaxed-ordering auto, or --latency completion"
    )]
    LastByte,
    /// The library does not support relaxed ordering.
    #[error(
        "--relaxed-ordering on: the verbs library has no ibv_reg_mr_iova2, by which memory is registered so (rdma-core 28 and \
         later): give --relaxed-ordering auto"
    )]
    NotInLibrary,
}

impl From<&OrderingArgs> for Ordering {
    fn from(args: &OrderingArgs) -> Self {
        match (args.disable_pcie_relaxed, args.relaxed_ordering) {
            (true, _) | (false, Some(OrderingArg::Off)) => Self::Off,
            (false, Some(OrderingArg::On)) => Self::On,
            (false, None | Some(OrderingArg::Auto)) => Self::Auto,
        }
    }
}

impl TestPlan {
    /// Whether the test waits for the last byte of a message in memory.
    pub fn awaits_last_byte(&self) -> bool {
        (self.operation, self.measure)
            == (TestOperation::Write, Measure::Latency(LatencyDefinition::PingPong))
    }

    /// Whether writes may be reordered. `is_known` tells whether the library supports it.
    ///
    /// # Errors
    ///
    /// The user requires it, and the library does not support it.
    pub fn relaxes_ordering(&self, is_known: bool) -> Result<bool, OrderingError> {
        match self.ordering {
            Ordering::On if self.awaits_last_byte() => Err(OrderingError::LastByte),
            Ordering::On if !is_known => Err(OrderingError::NotInLibrary),
            Ordering::On => Ok(true),
            Ordering::Off => Ok(false),
            // perftest never relaxes ordering in latency tests of writes, whatever the latency
            // definition.
            Ordering::Auto => {
                let is_latency_of_writes =
                    self.operation == TestOperation::Write && matches!(self.measure, Measure::Latency(_));
                Ok(is_known && !is_latency_of_writes)
            }
        }
    }
}

impl fmt::Display for Ordering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::On => "on",
            Self::Off => "off",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli;
    use crate::plan::{PlanError, RunPlan};

    fn plan(line: &str) -> Result<TestPlan, PlanError> {
        let words = ["stride-perf"].into_iter().chain(line.split_whitespace());
        RunPlan::new(cli::parse(words).unwrap()).map(|plan| plan.test)
    }

    #[test]
    fn writes_are_reordered_where_perftest_has_it_so() {
        let relaxed = |line: &str, is_known| plan(line).unwrap().relaxes_ordering(is_known).unwrap();
        for line in
            ["write bw", "send lat", "write lat --imm", "read lat", "write bw --relaxed-ordering auto"]
        {
            assert_eq!((relaxed(line, true), relaxed(line, false)), (true, false), "{line}");
        }
        for line in [
            "write lat",
            "write lat --latency completion",
            "send bw --relaxed-ordering off",
            "send bw --disable_pcie_relaxed",
        ] {
            assert!(!relaxed(line, true), "{line}");
        }
        assert!(relaxed("write lat --latency completion --relaxed-ordering on", true));
        let test = plan("send bw --relaxed-ordering on").unwrap();
        assert_eq!(test.relaxes_ordering(false), Err(OrderingError::NotInLibrary));
    }

    #[test]
    fn the_last_byte_never_relies_on_it() {
        let error = plan("write lat --relaxed-ordering on").unwrap_err();
        assert_eq!(error, PlanError::Ordering(OrderingError::LastByte));
    }
}
