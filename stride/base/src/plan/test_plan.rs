//! The part of a plan that both sides must agree on.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Echo, Ordering, PathOptions, Queues, Rate, Sizes, TestOperation, WarmUp};
use crate::seconds::Seconds;

/// The definition of a message's latency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LatencyDefinition {
    /// Half the round trip of a ping-pong: each side sees the message in its memory, or by the
    /// receive that it consumes.
    PingPong,
    /// The time from the post to the completion.
    Completion,
}

/// The quantity that a test measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    /// Bandwidth and message rate.
    Bandwidth,
    /// Latency, by this definition.
    Latency(LatencyDefinition),
    /// Requests with answers.
    Echo(Echo),
}

impl Measure {
    /// perftest's number of messages in flight.
    pub fn default_tx_depth(self) -> u32 {
        match self {
            Self::Bandwidth => 128,
            Self::Latency(_) => 1,
            Self::Echo(echo) => echo.in_flight.largest(),
        }
    }
}

impl fmt::Display for Measure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bandwidth => f.write_str("bw"),
            Self::Latency(LatencyDefinition::PingPong) => f.write_str("lat (ping-pong)"),
            Self::Latency(LatencyDefinition::Completion) => f.write_str("lat (completion)"),
            Self::Echo(echo) => write!(f, "grid ({} in flight)", echo.in_flight),
        }
    }
}

/// The parameters that both sides must agree on; the client's are used.
///
/// Fields hold the given parameters; the methods in `rules` derive the others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TestPlan {
    /// The operation that transfers a message.
    pub operation: TestOperation,
    /// The quantity that is measured.
    pub measure: Measure,
    /// The message sizes.
    pub sizes: Sizes,
    /// Messages per size and queue pair.
    pub iterations: u64,
    /// Messages in flight per queue pair.
    pub tx_depth: u32,
    /// Receives posted at a time per queue pair, if the user gave a number.
    pub rx_depth: Option<u32>,
    /// Messages per doorbell.
    pub post_list: u32,
    /// Receives per call.
    pub recv_post_list: u32,
    /// Messages per completion, if the user gave a number.
    pub cq_mod: Option<u32>,
    /// The largest inline message in bytes, if the user gave it.
    pub inline_size: Option<u32>,
    /// Reads and atomic operations that a queue pair has outstanding, if the user gave a number.
    pub outstanding: Option<u8>,
    /// The number of queue pairs.
    pub queue_pairs: u32,
    /// Whether both sides measure at the same time.
    pub bidirectional: bool,
    /// Whether the server measures and the client answers.
    pub reversed: bool,
    /// The duration of the test in seconds, in place of a number of messages.
    pub duration: Option<Seconds>,
    /// Whether each side validates the content of what arrived after each size.
    pub data_validation: bool,
    /// The transport of the queue pairs.
    pub connection: ConnectionType,
    /// Threads that share the queue pairs, each pinned to a processor, if the user gave a number.
    pub threads: Option<u32>,
    /// Messages before the measured ones.
    pub warm_up: Option<WarmUp>,
    /// The rate at which messages are sent; `None` for the highest possible one.
    pub rate: Option<Rate>,
    /// Options of the path and of retransmission.
    #[serde(rename = "way")]
    pub path_options: PathOptions,
    /// Options of queues and of waiting for completions.
    pub queues: Queues,
    /// Whether devices may reorder their writes.
    pub ordering: Ordering,
    /// Whether the device's clock measures the latency.
    pub device_clock: bool,
}

/// The transport of the queue pairs, which decides the fate of a lost message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConnectionType {
    /// Reliable connection: the device retransmits.
    #[default]
    Rc,
    /// Unreliable connection: the message is lost without notice.
    Uc,
    /// Unreliable datagrams: the message is lost without notice, and is limited to one packet.
    Ud,
    /// Extended reliable connection: the device retransmits, and each message names the shared
    /// receive queue that it is for.
    Xrc,
}

impl ConnectionType {
    /// Whether all messages arrive.
    pub fn is_reliable(self) -> bool {
        matches!(self, Self::Rc | Self::Xrc)
    }

    /// Bytes that precede each received message (the GRH of a datagram).
    pub fn header(self) -> u64 {
        if self == Self::Ud { 40 } else { 0 }
    }
}

impl fmt::Display for ConnectionType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Ud => "UD",
            Self::Xrc => "XRC",
        })
    }
}

/// The most messages of one size per queue pair: a `wr_id` has 48 bits for the message and 14 for
/// the queue pair.
pub(super) const MOST_MESSAGES: u64 = 1 << 47;

/// What one side does in a test. In a bidirectional test, each side does both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SideTasks {
    /// Whether it takes the figures.
    pub measures: bool,
    /// Whether it answers the peer, which measures.
    pub serves: bool,
}

impl TestPlan {
    /// perftest's defaults for messages of these sizes.
    pub fn new(operation: TestOperation, measure: Measure, sizes: Sizes) -> Self {
        Self {
            operation,
            measure,
            sizes,
            iterations: operation.default_iterations(measure),
            tx_depth: operation.default_tx_depth(measure, sizes),
            rx_depth: None,
            post_list: 1,
            recv_post_list: 1,
            cq_mod: None,
            inline_size: None,
            outstanding: None,
            queue_pairs: 1,
            bidirectional: false,
            reversed: false,
            duration: None,
            data_validation: false,
            connection: ConnectionType::Rc,
            threads: None,
            warm_up: None,
            rate: None,
            path_options: PathOptions::default(),
            queues: Queues::default(),
            ordering: Ordering::default(),
            device_clock: false,
        }
    }
}

impl TestPlan {
    /// The most messages of one size per queue pair: the given number, or with a duration more than
    /// any device could send.
    pub fn most_messages(&self) -> u64 {
        if self.duration.is_some() { MOST_MESSAGES } else { self.iterations.min(MOST_MESSAGES) }
    }

    /// The duration or the number of messages, as text.
    pub fn length(&self) -> String {
        match self.duration {
            Some(seconds) => format!("{seconds} s"),
            None => format!("{} iterations", self.iterations),
        }
    }

    /// Whether the sender must ask the receiver how many messages arrived.
    pub fn asks_what_arrived(&self) -> bool {
        self.data_validation || !self.connection.is_reliable() && self.operation.takes_receives()
    }

    /// The tasks of the client, or of the server.
    pub fn parts(&self, is_client: bool) -> SideTasks {
        let measures = is_client != self.reversed;
        SideTasks { measures: measures || self.bidirectional, serves: !measures || self.bidirectional }
    }

    /// The latency definition, if the test measures latency of queue pairs.
    pub fn latency_definition(&self) -> Option<LatencyDefinition> {
        match self.measure {
            Measure::Latency(definition) => Some(definition),
            Measure::Bandwidth if self.rate.is_some() => Some(LatencyDefinition::Completion),
            Measure::Bandwidth | Measure::Echo(_) => None,
        }
    }

    /// Whether the answering side must act on each message, rather than only provide memory.
    pub fn both_sides_work(&self) -> bool {
        self.bidirectional
            || self.operation.takes_receives()
            || self.measure == Measure::Latency(LatencyDefinition::PingPong)
    }

    /// Whether a side with these tasks receives messages from the peer.
    pub fn messages_come_to(&self, parts: SideTasks) -> bool {
        parts.serves || self.measure == Measure::Latency(LatencyDefinition::PingPong)
    }
}

impl fmt::Display for TestPlan {
    /// All parameters, given and derived.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { operation, measure, sizes, post_list, queue_pairs, connection, .. } = self;
        let (length, depth, interval) = (self.length(), self.depth(), self.completion_interval());
        write!(
            f,
            "{operation} {measure} over {connection}, messages of {sizes} bytes, {length}, depth {depth}, post list \
             {post_list}, CQ moderation {interval}"
        )?;
        if self.operation.takes_receives() {
            write!(f, ", receive depth {}", self.receive_depth())?;
            if self.recv_post_list > 1 {
                write!(f, " in lists of {}", self.recv_post_list)?;
            }
        }
        if *queue_pairs > 1 {
            write!(f, ", {queue_pairs} queue pairs")?;
        }
        if let Some(threads) = self.threads {
            write!(f, ", {threads} thread{}", if threads == 1 { "" } else { "s" })?;
        }
        if let Some(rate) = self.rate {
            write!(f, ", at {rate}")?;
        }
        if let Some(warm_up) = self.warm_up {
            write!(f, ", warm-up of {warm_up}")?;
        }
        if self.bidirectional {
            f.write_str(", bidirectional")?;
        }
        if self.reversed {
            f.write_str(", reversed")?;
        }
        if self.device_clock {
            f.write_str(", by the device's clock")?;
        }
        if self.data_validation {
            f.write_str(", data validation")?;
        }
        write!(f, "{}{}", self.path_options, self.queues)
    }
}
