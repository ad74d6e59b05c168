//! The operations, and perftest's defaults for each.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{LatencyDefinition, Measure, Mix, Sizes};

/// Bytes of the largest block of trespass's pool.
pub const LARGEST_BLOCK: u64 = trespass::pool::LARGEST_BLOCK as u64;

/// Bytes of an atomic operation, the only size that the verbs define.
pub const ATOMIC_SIZE: u64 = 8;

/// The operation that transfers a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TestOperation {
    /// `IBV_WR_RDMA_WRITE`.
    Write,
    /// `IBV_WR_RDMA_WRITE_WITH_IMM`, which consumes a receive of the peer.
    WriteImm,
    /// `IBV_WR_SEND`.
    Send,
    /// `IBV_WR_SEND_WITH_IMM`.
    SendImm,
    /// `IBV_WR_RDMA_READ`.
    Read,
    /// `IBV_WR_ATOMIC_FETCH_AND_ADD`.
    FetchAdd,
    /// `IBV_WR_ATOMIC_CMP_AND_SWP`.
    CompareSwap,
    /// RDMA reads and writes.
    Mix(Mix),
    /// Messages of trespass.
    Messages(Api),
    /// Messages over the operating system's TCP.
    Tcp,
}

/// The calls that send and receive messages of trespass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Api {
    /// Copy from and to the program's memory.
    Copy,
    /// Use blocks of trespass's pool.
    Pool,
    /// Requests and answers of trespass's mux.
    Mux,
}

impl TestOperation {
    /// Whether queue pairs perform it.
    pub fn is_of_pairs(self) -> bool {
        !matches!(self, Self::Messages(_) | Self::Tcp)
    }

    /// Whether each message consumes a receive of the peer.
    pub fn takes_receives(self) -> bool {
        matches!(self, Self::Send | Self::SendImm | Self::WriteImm)
    }

    /// Whether it transfers the peer's bytes here without the peer's notice.
    pub fn fetches(self) -> bool {
        matches!(self, Self::Read | Self::Mix(_)) || self.is_atomic()
    }

    /// Whether it is an atomic operation.
    pub fn is_atomic(self) -> bool {
        matches!(self, Self::FetchAdd | Self::CompareSwap)
    }

    /// The latency definition, unless the user gives one.
    pub fn default_latency(self) -> LatencyDefinition {
        if self.fetches() { LatencyDefinition::Completion } else { LatencyDefinition::PingPong }
    }

    /// perftest's message size.
    pub fn default_size(self, measure: Measure) -> u64 {
        match measure {
            _ if self.is_atomic() => ATOMIC_SIZE,
            Measure::Bandwidth => 65536,
            Measure::Latency(_) => 2,
            Measure::Echo(_) => 128,
        }
    }

    /// perftest's number of messages per size; for requests more, because many are in flight.
    pub fn default_iterations(self, measure: Measure) -> u64 {
        match (self, measure) {
            (Self::Write | Self::WriteImm | Self::Messages(_) | Self::Tcp, Measure::Bandwidth) => 5000,
            (_, Measure::Echo(_)) => 100_000,
            _ => 1000,
        }
    }

    /// The last size of `--all-sizes`: perftest's, or the largest block of trespass's pool.
    pub fn default_max_size(self) -> u64 {
        match self {
            Self::Messages(Api::Pool) => LARGEST_BLOCK,
            _ => 8 << 20,
        }
    }

    /// The default number of messages in flight. Blocks of the pool are fastest while they stay in
    /// the processor's caches, so only 2 MiB of them are in flight if messages have one size, but
    /// at least two.
    pub fn default_tx_depth(self, measure: Measure, sizes: Sizes) -> u32 {
        match (self, measure) {
            (Self::Messages(Api::Pool), Measure::Bandwidth | Measure::Latency(_)) => {
                let few = match sizes {
                    Sizes::One { size } | Sizes::Again { size, .. } => {
                        ((2 << 20) / size.max(1)).clamp(2, 16) as u32
                    }
                    Sizes::PowersOfTwo { .. } | Sizes::Sweep(_) | Sizes::Grid { .. } => 16,
                };
                measure.default_tx_depth().min(few)
            }
            _ => measure.default_tx_depth(),
        }
    }

    /// The operation's name in the heading of the table.
    pub fn title(self) -> String {
        match self {
            Self::Write => "RDMA write".to_owned(),
            Self::WriteImm => "RDMA write with immediate data".to_owned(),
            Self::Read => "RDMA read".to_owned(),
            Self::Mix(mix) => format!("mix of RDMA reads and writes ({mix})"),
            Self::Messages(_) => format!("trespass {self}"),
            Self::Tcp => "TCP".to_owned(),
            _ => self.to_string(),
        }
    }
}

impl fmt::Display for TestOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Write => "write",
            Self::WriteImm => "write-imm",
            Self::Send => "send",
            Self::SendImm => "send-imm",
            Self::Read => "read",
            Self::FetchAdd => "atomic fetch-add",
            Self::CompareSwap => "atomic compare-swap",
            Self::Mix(mix) => return write!(f, "mix ({mix})"),
            Self::Messages(Api::Copy) => "messages (--api copy)",
            Self::Messages(Api::Pool) => "messages (--api pool)",
            Self::Messages(Api::Mux) => "mux (--api mux)",
            Self::Tcp => "tcp",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_perftests() {
        use TestOperation as O;
        let latency = |operation: O| Measure::Latency(operation.default_latency());
        for (operation, size, iterations) in
            [(O::Write, 65536, 5000), (O::Send, 65536, 1000), (O::Read, 65536, 1000), (O::FetchAdd, 8, 1000)]
        {
            let measure = Measure::Bandwidth;
            assert_eq!(
                (operation.default_size(measure), operation.default_iterations(measure)),
                (size, iterations)
            );
            assert_eq!(operation.default_iterations(latency(operation)), 1000);
        }
        assert_eq!(O::Send.default_size(latency(O::Send)), 2);
        assert_eq!(O::CompareSwap.default_size(latency(O::CompareSwap)), 8);
        // The peer does not notice these operations, so it cannot answer.
        for operation in [O::Read, O::FetchAdd, O::CompareSwap] {
            assert_eq!(operation.default_latency(), LatencyDefinition::Completion);
        }
        assert_eq!(O::SendImm.default_latency(), LatencyDefinition::PingPong);
    }
}
