//! What the two sides tell each other.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use sideway::ibverbs::connect::Endpoint;

use super::{Nonce, Proof, SecretRefusal};
use crate::plan::TestPlan;
use crate::report::Measured;

/// A message. Each has its place in the order that the module's documentation shows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ControlMessage {
    /// What the client wants measured.
    Request(Greeting),
    /// The server will do so; what it was itself asked for.
    Accept(Greeting),
    /// Where one of the sender's queue pairs is, and its memory.
    Resources(Resources),
    /// Where the sender's connection manager listens.
    Meeting(CmAddress),
    /// The sender's queue pair can send and receive.
    Ready,
    /// The sender is about to measure messages of this size.
    Begin {
        /// Bytes of a message.
        size: u64,
    },
    /// What the sender measured.
    Row(Measured),
    /// What became of the messages of a size; those that arrived are as they should be if that was looked at.
    Arrived {
        /// Messages that the sender of this word sent.
        sent: u64,
        /// Messages of the peer's that took a receive here.
        taken: u64,
    },
    /// The sender needs the peer no more.
    Done,
    /// The client has a secret, and wants to know whether the server has it too.
    Hello {
        /// The client's.
        nonce: Nonce,
    },
    /// So has the server.
    Challenge {
        /// The server's.
        nonce: Nonce,
    },
    /// That the sender knows the secret.
    Proof {
        /// Of its role and both nonces.
        proof: Proof,
    },
    /// Where the server waits for the connection that is measured, and what the client says first there.
    Stream {
        /// The TCP port.
        port: u16,
        /// The words.
        token: Nonce,
    },
    /// The sender goes no further.
    Refused(SecretRefusal),
}

/// Who speaks, and what its user asked for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Greeting {
    /// The sender's release of stride-perf, for people.
    pub release: String,
    /// What its user asked for.
    pub test: TestPlan,
}

/// Where the server's connection manager listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CmAddress {
    /// The address of its device, or that by which the client reached the server.
    pub address: IpAddr,
    /// The port, of rdma_cm's own.
    pub port: u16,
    /// What the client's requests have to have.
    pub token: u64,
}

/// What the peer needs to know of one of this side's targets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct XrcTargetInfo {
    /// Where it is.
    pub endpoint: Endpoint,
    /// The number of the shared receive queue.
    pub srqn: u32,
}

/// What the peer needs to reach the sender's memory and receives.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Resources {
    /// The queue pair's address.
    pub endpoint: Endpoint,
    /// The key to the memory.
    pub rkey: u32,
    /// Where the queue pair's memory for the peer begins.
    pub address: u64,
    /// How many bytes of it are the peer's.
    pub length: u64,
    /// Reads and atomic operations that the queue pair answers at a time.
    pub answered: u8,
    /// Up to which size the sender writes the last byte of the messages that it counts.
    pub marked: u64,
    /// Where the peer's queue pair sends to, if the connection is an extended one.
    pub xrc: Option<XrcTargetInfo>,
}

impl ControlMessage {
    /// The name that both sides know it by.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Request(_) => "request",
            Self::Accept(_) => "accept",
            Self::Resources(_) => "resources",
            Self::Meeting(_) => "meeting",
            Self::Ready => "ready",
            Self::Begin { .. } => "begin",
            Self::Row(_) => "row",
            Self::Arrived { .. } => "arrived",
            Self::Done => "done",
            Self::Hello { .. } => "hello",
            Self::Challenge { .. } => "challenge",
            Self::Proof { .. } => "proof",
            Self::Stream { .. } => "stream",
            Self::Refused(_) => "refused",
        }
    }
}
