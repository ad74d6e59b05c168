//! What both sides must agree on.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Echo, Ordering, PathOptions, Queues, Rate, Sizes, TestOperation, WarmUp};

/// What counts as the latency of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LatencyDefinition {
    /// Half the round trip of a ping-pong, each side seeing the message in its memory, or by the receive that it takes.
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
    /// perftest's number of messages under way.
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

/// What both sides must agree on: the client's counts.
///
/// Fields hold what was asked for; the methods (in `rules`) say what follows from it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TestPlan {
    /// What carries the bytes of a message.
    pub operation: TestOperation,
    /// What is measured.
    pub measure: Measure,
    /// The message sizes.
    pub sizes: Sizes,
    /// Messages for each size, of each queue pair.
    pub iterations: u64,
    /// Messages under way at a time, of each queue pair.
    pub tx_depth: u32,
    /// Receives posted at a time, of each queue pair, if the user gave it.
    pub rx_depth: Option<u32>,
    /// Messages handed to the device by one doorbell.
    pub post_list: u32,
    /// Receives posted by one call.
    pub recv_post_list: u32,
    /// Messages for each completion, if the user gave it.
    pub cq_mod: Option<u32>,
    /// The largest message that is copied into the work request, if the user gave it.
    pub inline_size: Option<u32>,
    /// Reads and atomic operations that a queue pair has under way at the peer's, if the user gave it.
    pub outstanding: Option<u8>,
    /// Queue pairs.
    pub queue_pairs: u32,
    /// Both sides measure at the same time.
    pub bidirectional: bool,
    /// The server measures, and the client answers.
    pub reversed: bool,
    /// How many seconds messages are sent for, in place of a number of them.
    pub duration: Option<u32>,
    /// What arrives is looked at, when all of a size has.
    pub data_validation: bool,
    /// How the queue pairs are connected.
    pub connection: ConnectionType,
    /// Threads that share the queue pairs, each with a processor of its own, if the user asked for any.
    pub threads: Option<u32>,
    /// Messages before those that are measured.
    pub warm_up: Option<WarmUp>,
    /// How fast messages are sent, unless as fast as can be.
    pub rate: Option<Rate>,
    /// How packets find their way, and what becomes of those that are lost.
    pub way: PathOptions,
    /// How queues are made and waited for.
    pub queues: Queues,
    /// Whether devices may reorder their writes.
    pub ordering: Ordering,
    /// Whether the device's clock takes the time of each message.
    pub device_clock: bool,
}

/// How queue pairs are connected, and what becomes of a message that is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConnectionType {
    /// Reliable connection: it is sent again.
    #[default]
    Rc,
    /// Unreliable connection: nobody hears of it.
    Uc,
    /// Unreliable datagrams: neither, and no message is longer than a packet.
    Ud,
    /// Extended reliable connection: it is sent again, and each names the shared receive queue that it is for.
    Xrc,
}

impl ConnectionType {
    /// Whether all messages arrive.
    pub fn is_reliable(self) -> bool {
        matches!(self, Self::Rc | Self::Xrc)
    }

    /// Bytes before each message that is received.
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

/// A queue pair has no more messages of one size: 48 bits number them, and 14 the queue pairs.
pub(super) const MOST_MESSAGES: u64 = 1 << 47;

/// What a side does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SideTasks {
    /// It measures.
    pub measures: bool,
    /// The peer measures, and this side answers as far as that needs it.
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
            way: PathOptions::default(),
            queues: Queues::default(),
            ordering: Ordering::default(),
            device_clock: false,
        }
    }
}

impl TestPlan {
    /// No queue pair has more messages of one size: as many as was asked for, or more than any could have in the time.
    pub fn most_messages(&self) -> u64 {
        if self.duration.is_some() { MOST_MESSAGES } else { self.iterations.min(MOST_MESSAGES) }
    }

    /// How long it takes, or how many messages there are, in words.
    pub fn length(&self) -> String {
        match self.duration {
            Some(seconds) => format!("{seconds} s"),
            None => format!("{} iterations", self.iterations),
        }
    }

    /// Whether it is known how many messages arrived only if it is asked.
    pub fn asks_what_arrived(&self) -> bool {
        self.data_validation || !self.connection.is_reliable() && self.operation.takes_receives()
    }

    /// What the client does, or the server.
    pub fn parts(&self, is_client: bool) -> SideTasks {
        let measures = is_client != self.reversed;
        SideTasks { measures: measures || self.bidirectional, serves: !measures || self.bidirectional }
    }

    /// What counts as the latency of a message of queue pairs, if it is measured.
    pub fn latency_definition(&self) -> Option<LatencyDefinition> {
        match self.measure {
            Measure::Latency(definition) => Some(definition),
            Measure::Bandwidth if self.rate.is_some() => Some(LatencyDefinition::Completion),
            Measure::Bandwidth | Measure::Echo(_) => None,
        }
    }

    /// Whether the side that answers has something to do for a message, and does not only hold still.
    pub fn both_sides_work(&self) -> bool {
        self.bidirectional
            || self.operation.takes_receives()
            || self.measure == Measure::Latency(LatencyDefinition::PingPong)
    }

    /// Whether the peer sends to a side with these parts.
    pub fn messages_come_to(&self, parts: SideTasks) -> bool {
        parts.serves || self.measure == Measure::Latency(LatencyDefinition::PingPong)
    }
}

impl fmt::Display for TestPlan {
    /// All parameters, with what follows from them.
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
        write!(f, "{}{}", self.way, self.queues)
    }
}
