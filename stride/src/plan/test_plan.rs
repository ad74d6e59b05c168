//! What both sides must agree on.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Echo, Sizes};

/// Bytes of the largest block of trespass's pool.
pub const LARGEST_BLOCK: u64 = trespass::pool::LARGEST_BLOCK as u64;

/// What carries the bytes of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// RDMA write.
    Write,
    /// Messages of trespass.
    Messages(Api),
}

/// The calls that send and receive messages of trespass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Api {
    /// Out of and into the program's own memory.
    Copy,
    /// In blocks of trespass's pool.
    Pool,
}

/// What counts as the latency of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LatencyDefinition {
    /// Half the round trip of a ping-pong, each side seeing the message in its memory.
    PingPong,
    /// From the post to the completion.
    Completion,
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    /// Bandwidth and message rate.
    Bandwidth,
    /// Latency.
    Latency(LatencyDefinition),
    /// Requests and their answers.
    Echo(Echo),
}

impl Measure {
    /// perftest's message size.
    pub fn default_size(self) -> u64 {
        match self {
            Self::Bandwidth => 65536,
            Self::Latency(_) => 2,
            Self::Echo(_) => 128,
        }
    }

    /// perftest's number of messages for each size; of requests more, as many are under way at a time.
    pub fn default_iterations(self) -> u64 {
        match self {
            Self::Bandwidth => 5000,
            Self::Latency(_) => 1000,
            Self::Echo(_) => 100_000,
        }
    }

    /// perftest's number of messages under way.
    pub fn default_tx_depth(self) -> u32 {
        match self {
            Self::Bandwidth => 128,
            Self::Latency(_) => 1,
            Self::Echo(echo) => echo.in_flight.largest(),
        }
    }
}

impl Operation {
    /// The last size of `--all-sizes`: perftest's, or the largest block of trespass's pool.
    pub fn default_max_size(self) -> u64 {
        match self {
            Self::Write | Self::Messages(Api::Copy) => 8 << 20,
            Self::Messages(Api::Pool) => LARGEST_BLOCK,
        }
    }

    /// How many messages are under way. Blocks that are used again while the processor's caches have them are the fastest, so
    /// there are few: 2 MiB of them, if messages have one size, but at least two.
    pub fn default_tx_depth(self, measure: Measure, sizes: Sizes) -> u32 {
        match (self, measure) {
            (Self::Messages(Api::Pool), Measure::Bandwidth | Measure::Latency(_)) => {
                let few = match sizes {
                    Sizes::One { size } => ((2 << 20) / size.max(1)).clamp(2, 16) as u32,
                    Sizes::PowersOfTwo { .. } | Sizes::Grid { .. } => 16,
                };
                measure.default_tx_depth().min(few)
            }
            _ => measure.default_tx_depth(),
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Write => f.write_str("write"),
            Self::Messages(Api::Copy) => f.write_str("messages (--api copy)"),
            Self::Messages(Api::Pool) => f.write_str("messages (--api pool)"),
        }
    }
}

impl fmt::Display for Measure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bandwidth => f.write_str("bw"),
            Self::Latency(LatencyDefinition::PingPong) => f.write_str("lat (ping-pong)"),
            Self::Latency(LatencyDefinition::Completion) => f.write_str("lat (completion)"),
            Self::Echo(echo) => write!(f, "grid, {} requests in flight,", echo.in_flight),
        }
    }
}

/// What both sides must agree on: the client's counts.
///
/// Fields hold what was asked for; the methods (in `rules`) say what follows from it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TestPlan {
    /// What carries the bytes of a message.
    pub operation: Operation,
    /// What is measured.
    pub measure: Measure,
    /// The message sizes.
    pub sizes: Sizes,
    /// Messages for each size.
    pub iterations: u64,
    /// Messages under way at a time.
    pub tx_depth: u32,
    /// Messages handed to the device by one doorbell.
    pub post_list: u32,
    /// Messages for each completion, if the user gave it.
    pub cq_mod: Option<u32>,
    /// The largest message that is copied into the work request, if the user gave it.
    pub inline_size: Option<u32>,
}

impl fmt::Display for TestPlan {
    /// All parameters, with what follows from them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { operation, measure, sizes, iterations, post_list, .. } = self;
        let (depth, interval) = (self.depth(), self.completion_interval());
        write!(
            f,
            "{operation} {measure}, messages of {sizes} bytes, {iterations} iterations, depth {depth}, post list \
             {post_list}, CQ moderation {interval}"
        )
    }
}
