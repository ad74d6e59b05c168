//! perftest's rules: what follows from what was asked for, and what cannot be asked for.

use super::{Measure, Operation, PlanError, Sizes, TestPlan};

/// Fewer messages give no figure worth printing.
pub const LEAST_ITERATIONS: u64 = 5;

/// Above this size one completion for many messages makes bandwidth less exact.
pub const MODERATED_SIZE_LIMIT: u64 = 8192;

/// Messages for each completion of small messages.
const DEFAULT_COMPLETION_INTERVAL: u32 = 100;

impl TestPlan {
    /// Messages under way at a time: never more than there are.
    pub fn depth(&self) -> u32 {
        u32::try_from(self.iterations).unwrap_or(u32::MAX).min(self.tx_depth)
    }

    /// Messages for each completion.
    pub fn completion_interval(&self) -> u32 {
        let single_large = matches!(self.sizes, Sizes::One { size } if size > MODERATED_SIZE_LIMIT);
        match (self.measure, self.cq_mod) {
            (Measure::Latency(_) | Measure::Echo(_), _) => 1,
            (Measure::Bandwidth, None) if self.post_list > 1 => self.post_list,
            (Measure::Bandwidth, None) if single_large => 1,
            (Measure::Bandwidth, asked) => asked.unwrap_or(DEFAULT_COMPLETION_INTERVAL).min(self.depth()),
        }
    }

    /// Whether the user asked for moderation that makes the figure less exact.
    pub(super) fn moderates_large_messages(&self) -> bool {
        self.cq_mod.is_some()
            && self.completion_interval() > 1
            && matches!(self.sizes, Sizes::One { size } if size > MODERATED_SIZE_LIMIT)
    }

    /// Refuses what no device could run.
    ///
    /// A plan that arrives from the peer is checked by this too.
    pub fn validate(&self) -> Result<(), PlanError> {
        self.validate_counts()?;
        if let Operation::Messages(api) = self.operation {
            self.validate_messages(api)?;
        }
        match self.measure {
            Measure::Bandwidth => self.validate_post_list(),
            Measure::Latency(_) | Measure::Echo(_) if self.post_list > 1 => {
                Err(PlanError::PostListInLatency { given: self.post_list })
            }
            Measure::Latency(_) | Measure::Echo(_) => Ok(()),
        }
    }

    fn validate_counts(&self) -> Result<(), PlanError> {
        match self.sizes {
            Sizes::One { size: 0 } => return Err(PlanError::ZeroSize),
            Sizes::PowersOfTwo { max: given @ ..2 } => return Err(PlanError::MaxSizeTooSmall { given }),
            Sizes::Grid { max: given } if self.sizes.largest() == 0 => {
                return Err(PlanError::BelowTheGrid { given });
            }
            _ => {}
        }
        if self.iterations < LEAST_ITERATIONS {
            return Err(PlanError::TooFewIterations { given: self.iterations });
        }
        let in_flight = match (self.measure, self.operation) {
            (Measure::Echo(_), Operation::Write) => return Err(PlanError::EchoOfWrites),
            (Measure::Echo(echo), _) => Some(echo.in_flight.largest()),
            _ => None,
        };
        let counts = [
            ("-t", Some(self.tx_depth)),
            ("-t", in_flight),
            ("-l", Some(self.post_list)),
            ("-Q", self.cq_mod),
        ];
        match counts.into_iter().find(|(_, count)| *count == Some(0)) {
            Some((flag, _)) => Err(PlanError::ZeroCount { flag }),
            None => Ok(()),
        }
    }

    fn validate_post_list(&self) -> Result<(), PlanError> {
        let post_list = self.post_list;
        if post_list == 1 {
            return Ok(());
        }
        if post_list > self.tx_depth {
            return Err(PlanError::PostListAboveDepth { post_list, tx_depth: self.tx_depth });
        }
        if !self.iterations.is_multiple_of(u64::from(post_list)) {
            return Err(PlanError::IterationsNotInLists { iterations: self.iterations, post_list });
        }
        if !post_list.is_multiple_of(self.completion_interval()) {
            let cq_mod = self.completion_interval();
            return Err(PlanError::PostListNotInIntervals { post_list, cq_mod });
        }
        Ok(())
    }
}
