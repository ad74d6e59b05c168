//! perftest's rules: defaults that depend on other parameters, and parameters that conflict.

use super::{
    ATOMIC_SIZE, ConnectionType, LatencyDefinition, Measure, PlanError, Sizes, TestOperation, TestPlan,
};
use crate::seconds::Seconds;

/// The fewest messages that give a meaningful figure.
pub const LEAST_ITERATIONS: u64 = 5;

/// The size above which one completion for many messages distorts bandwidth.
pub const MODERATED_SIZE_LIMIT: u64 = 8192;

/// perftest's limit on queue pairs.
pub const MOST_QUEUE_PAIRS: u32 = 16384;

/// perftest's number of receives of a queue pair.
const DEFAULT_RX_DEPTH: u32 = 512;

/// perftest's limit on receives over unreliable transports, which otherwise have a receive for each
/// message.
const UNRELIABLE_RX_DEPTH: u32 = 16000;

/// Messages per completion for small messages.
const DEFAULT_COMPLETION_INTERVAL: u32 = 100;

impl TestPlan {
    /// Messages in flight: at most the number of messages.
    pub fn depth(&self) -> u32 {
        u32::try_from(self.most_messages()).unwrap_or(u32::MAX).min(self.tx_depth)
    }

    /// Receives posted at a time to a queue: at most the number of messages; 0 if messages consume
    /// none.
    pub fn receive_depth(&self) -> u32 {
        match self.operation.takes_receives() {
            true => u32::try_from(self.messages_received()).unwrap_or(u32::MAX).min(self.rx_depth()),
            false => 0,
        }
    }

    fn rx_depth(&self) -> u32 {
        match (self.rx_depth, self.connection.is_reliable()) {
            (Some(asked), _) => asked,
            (None, true) => DEFAULT_RX_DEPTH,
            (None, false) => UNRELIABLE_RX_DEPTH,
        }
    }

    /// Messages per completion.
    pub fn completion_interval(&self) -> u32 {
        let single_large = matches!(self.sizes, Sizes::One { size } if size > MODERATED_SIZE_LIMIT);
        match (self.measure, self.cq_mod) {
            (Measure::Latency(_) | Measure::Echo(_), _) => 1,
            // A rate measures the latency of each message, so each needs a completion.
            _ if self.rate.is_some() => 1,
            (Measure::Bandwidth, None) if self.post_list > 1 => self.post_list,
            (Measure::Bandwidth, None) if single_large => 1,
            (Measure::Bandwidth, asked) => asked.unwrap_or(DEFAULT_COMPLETION_INTERVAL).min(self.depth()),
        }
    }

    /// Whether the user gave a moderation that distorts the figure.
    pub(super) fn moderates_large_messages(&self) -> bool {
        self.cq_mod.is_some()
            && self.completion_interval() > 1
            && matches!(self.sizes, Sizes::One { size } if size > MODERATED_SIZE_LIMIT)
    }

    /// Checks the rules that hold for every device.
    ///
    /// A plan that arrives from the peer passes the same checks.
    pub fn validate(&self) -> Result<(), PlanError> {
        self.validate_counts()?;
        self.validate_connection()?;
        self.validate_shape()?;
        match self.operation {
            TestOperation::Messages(api) => self.validate_messages(api)?,
            TestOperation::Mix(_) if self.data_validation => return Err(PlanError::ValidationOfMix),
            TestOperation::Mix(mix) => mix.validate()?,
            TestOperation::Tcp => self.validate_tcp()?,
            operation if operation.is_atomic() => self.validate_atomic()?,
            _ => {}
        }
        self.path_options.validate(self.connection)?;
        self.validate_queues()?;
        self.relaxes_ordering(true)?;
        match self.measure {
            Measure::Bandwidth => self.validate_post_list(),
            Measure::Latency(definition) => self.validate_latency(definition),
            Measure::Echo(_) => self.validate_single(),
        }
    }

    fn validate_counts(&self) -> Result<(), PlanError> {
        match self.sizes {
            Sizes::One { size: 0 } | Sizes::Again { size: 0, .. } => return Err(PlanError::ZeroSize),
            Sizes::PowersOfTwo { max: given @ ..2 } => return Err(PlanError::MaxSizeTooSmall { given }),
            Sizes::Again { count: 0, .. } => return Err(PlanError::ZeroCount { flag: "-c" }),
            Sizes::Sweep(sweep) => sweep.validate()?,
            Sizes::Grid { max: given } if self.sizes.largest() == 0 => {
                return Err(PlanError::BelowTheGrid { given });
            }
            _ => {}
        }
        if self.iterations < LEAST_ITERATIONS {
            return Err(PlanError::TooFewIterations { given: self.iterations });
        }
        let in_flight = match self.measure {
            Measure::Echo(_) if self.operation.is_of_pairs() => {
                return Err(PlanError::EchoOfPairs { operation: self.operation });
            }
            Measure::Echo(echo) => Some(echo.in_flight.largest()),
            _ => None,
        };
        let counts = [
            ("-t", Some(self.tx_depth)),
            ("-t", in_flight),
            ("-r", self.rx_depth),
            ("-l", Some(self.post_list)),
            ("-Q", self.cq_mod),
            ("-o", self.outstanding.map(u32::from)),
            ("-q", Some(self.queue_pairs)),
            ("--recv-post-list", Some(self.recv_post_list)),
            ("--threads", self.threads),
        ];
        match counts.into_iter().chain(self.queues.counts()).find(|(_, count)| *count == Some(0)) {
            Some((flag, _)) => Err(PlanError::ZeroCount { flag }),
            None if self.queue_pairs > MOST_QUEUE_PAIRS => {
                Err(PlanError::TooManyQueuePairs { given: self.queue_pairs })
            }
            None if self.duration.is_some_and(Seconds::is_zero) => Err(PlanError::NoTime { flag: "-D" }),
            None => self.validate_threads(),
        }
    }

    /// Checks for conflicting parameters.
    fn validate_shape(&self) -> Result<(), PlanError> {
        let least = self.share(self.thread_count() - 1);
        let (recv_post_list, rx_depth) = (self.recv_post_list, least.receive_depth());
        if recv_post_list > 1 && self.operation.takes_receives() && recv_post_list > rx_depth {
            return Err(PlanError::ReceiveListAboveDepth { recv_post_list, rx_depth });
        }
        if self.bidirectional && self.reversed {
            return Err(PlanError::BothWaysReversed);
        }
        self.validate_warm_up()?;
        self.validate_rate()?;
        self.validate_clock()?;
        match self.duration {
            Some(seconds) if self.data_validation => Err(PlanError::ValidationOfDuration { seconds }),
            _ => Ok(()),
        }
    }

    /// Checks that the connection type supports the operation.
    fn validate_connection(&self) -> Result<(), PlanError> {
        let Self { operation, connection, .. } = *self;
        let has = match connection {
            ConnectionType::Rc | ConnectionType::Xrc => true,
            ConnectionType::Uc => !operation.fetches(),
            ConnectionType::Ud => matches!(operation, TestOperation::Send | TestOperation::SendImm),
        };
        if has { Ok(()) } else { Err(PlanError::NotOverConnection { connection, operation }) }
    }

    /// The device's clock does not tell when an answer arrives.
    fn validate_clock(&self) -> Result<(), PlanError> {
        match self.measure {
            _ if !self.device_clock => Ok(()),
            _ if self.rate.is_some() => Err(PlanError::NotOfDeviceClock { flag: "--rate" }),
            Measure::Latency(LatencyDefinition::Completion) => Ok(()),
            Measure::Latency(LatencyDefinition::PingPong) => {
                Err(PlanError::NotOfDeviceClock { flag: "--latency pingpong" })
            }
            Measure::Bandwidth | Measure::Echo(_) => Err(PlanError::NotOfDeviceClock { flag: "bw" }),
        }
    }

    fn validate_atomic(&self) -> Result<(), PlanError> {
        match self.sizes {
            Sizes::One { size: ATOMIC_SIZE } => Ok(()),
            Sizes::One { size } | Sizes::Again { size, .. } => {
                Err(PlanError::NotAtomicSize { given: format!("-s {size}") })
            }
            Sizes::PowersOfTwo { .. } | Sizes::Sweep(_) | Sizes::Grid { .. } => {
                Err(PlanError::NotAtomicSize { given: "-a".to_owned() })
            }
        }
    }

    fn validate_latency(&self, definition: LatencyDefinition) -> Result<(), PlanError> {
        self.validate_single()?;
        match definition {
            LatencyDefinition::PingPong if self.operation.fetches() => {
                Err(PlanError::NothingToAnswer { operation: self.operation })
            }
            _ => Ok(()),
        }
    }

    /// Checks the rules for tests that measure each message by itself.
    fn validate_single(&self) -> Result<(), PlanError> {
        if self.post_list > 1 {
            return Err(PlanError::PostListInLatency { given: self.post_list });
        }
        let limit = self.thread_count();
        if self.queue_pairs > limit {
            return Err(PlanError::QueuePairsInLatency { given: self.queue_pairs, limit });
        }
        if self.bidirectional {
            return Err(PlanError::BidirectionalLatency);
        }
        Ok(())
    }

    fn validate_post_list(&self) -> Result<(), PlanError> {
        let post_list = self.post_list;
        if post_list == 1 {
            return Ok(());
        }
        if post_list > self.tx_depth {
            return Err(PlanError::PostListAboveDepth { post_list, tx_depth: self.tx_depth });
        }
        if self.duration.is_none() && !self.iterations.is_multiple_of(u64::from(post_list)) {
            return Err(PlanError::IterationsNotInLists { iterations: self.iterations, post_list });
        }
        if !post_list.is_multiple_of(self.completion_interval()) {
            let cq_mod = self.completion_interval();
            return Err(PlanError::PostListNotInIntervals { post_list, cq_mod });
        }
        Ok(())
    }
}
