//! The messages of the control connection.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use sideway::ibverbs::connect::Endpoint;

use super::{Nonce, Proof, SecretRefusal};
use crate::plan::TestPlan;
use crate::report::Measured;

/// A message. The module's documentation shows their order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ControlMessage {
    /// The client's test.
    Request(Greeting),
    /// The server agrees to the test; it carries the server's command line.
    Accept(Greeting),
    /// The address of one of the sender's queue pairs, and of its memory.
    Resources(Resources),
    /// The address at which the sender's connection manager listens.
    Meeting(CmAddress),
    /// The sender's queue pair can send and receive.
    Ready,
    /// The sender is about to measure messages of this size.
    Begin {
        /// Size of a message in bytes.
        size: u64,
    },
    /// The sender's measurement.
    Row(Measured),
    /// The fate of the messages of a size; if data validation is on, those that arrived have the
    /// right content.
    Arrived {
        /// Messages that the sender of this message sent.
        sent: u64,
        /// Messages of the peer that consumed a receive here.
        taken: u64,
    },
    /// The sender needs the peer no more.
    Done,
    /// The client has a secret, and asks the server to prove that it knows it.
    Hello {
        /// The client's nonce.
        nonce: Nonce,
    },
    /// The server has a secret, too.
    Challenge {
        /// The server's nonce.
        nonce: Nonce,
    },
    /// The sender's proof that it knows the secret.
    Proof {
        /// Covers its role and both nonces.
        proof: Proof,
    },
    /// The address at which the server awaits the connection to be measured, and the client's first
    /// bytes there.
    Stream {
        /// The TCP port.
        port: u16,
        /// The bytes that the client sends first.
        token: Nonce,
    },
    /// The sender refuses to go on.
    Refused(SecretRefusal),
}

/// A side's release and test.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Greeting {
    /// The sender's release of stride-perf, for error messages.
    pub release: String,
    /// The test that its command line describes.
    pub test: TestPlan,
}

/// The address at which the server's connection manager listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CmAddress {
    /// The address of its device, or else the one by which the client reached the server.
    pub address: IpAddr,
    /// The port in rdma_cm's port space.
    pub port: u16,
    /// The token that the client's requests must carry.
    pub token: u64,
}

/// The information that the peer needs about one of this side's targets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct XrcTargetInfo {
    /// The target's address.
    pub endpoint: Endpoint,
    /// The number of the shared receive queue.
    pub srqn: u32,
}

/// The addresses and keys that the peer needs to reach the sender's memory and receives.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Resources {
    /// The queue pair's address.
    pub endpoint: Endpoint,
    /// The remote key of the memory.
    pub rkey: u32,
    /// Start address of the queue pair's memory for the peer.
    pub address: u64,
    /// Length of that memory in bytes.
    pub length: u64,
    /// Reads and atomic operations that the queue pair answers at a time.
    pub answered: u8,
    /// The largest message size for which the sender writes the last byte as a sequence mark.
    pub marked: u64,
    /// The peer's target if the connection is an extended one.
    pub xrc: Option<XrcTargetInfo>,
}

// Not in generic code, which each crate that uses it would compile again.
impl ControlMessage {
    /// The message as JSON.
    ///
    /// # Errors
    ///
    /// It has a number that JSON cannot express.
    pub fn to_json(&self) -> serde_json::Result<Vec<u8>> {
        serde_json::to_vec(self)
    }

    /// The message of this JSON text.
    ///
    /// # Errors
    ///
    /// The bytes are no message.
    pub fn from_json(bytes: &[u8]) -> serde_json::Result<Self> {
        serde_json::from_slice(bytes)
    }

    /// The message's name in texts for the user.
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
