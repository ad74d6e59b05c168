//! Errors of moving messages.

use std::net::SocketAddr;
use std::time::Duration;

use sideway::ibverbs::completion::{WorkCompletionOperationType, WorkCompletionStatus};
use sideway::ibverbs::connect::ConnectError;
use sideway::ibverbs::srq::CreateSharedReceiveQueueError;
use sideway::rdmacm;

/// A message completed with an error.
///
/// It is small and owns nothing, because a larger error costs the measured loops an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}; {}", self.outcome(), .status.hint().unwrap_or("no usual cause is known"))]
pub struct CompletionError {
    /// The completion's status.
    pub status: WorkCompletionStatus,
    /// The operation. The device does not report it after an error, so it is derived from the
    /// number.
    pub opcode: WorkCompletionOperationType,
    /// The number of messages of this size posted before it on its queue pair.
    pub wr_id: u64,
    /// The vendor's error code.
    pub vendor_err: u32,
    /// The index of its queue pair within its thread.
    pub pair: usize,
}

impl CompletionError {
    /// What happened, without the cause.
    fn outcome(&self) -> String {
        let Self { status, opcode, wr_id, vendor_err, .. } = self;
        format!(
            "a message failed: {status} (status {}, opcode {opcode}, wr_id {wr_id}, vendor error {vendor_err:#x})",
            status.raw()
        )
    }
}

/// A message completed with an error, whose cause its queue pair knows.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}; {hint}", .error.outcome())]
pub struct ExplainedCompletionError {
    /// What happened.
    pub error: CompletionError,
    /// The cause, and what to check
    /// ([`QueuePairControl::hint`](sideway::ibverbs::queue_pair::QueuePairControl::hint)).
    pub hint: String,
}

/// The received bytes differ from those sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ValidationError {
    /// A byte has another value.
    #[error(
        "messages of {size} bytes arrived changed: byte {place} of the one at offset {offset} of queue pair {pair} is \
         {found:#04x} in place of {expected:#04x}; do not trust this path with data"
    )]
    Changed {
        /// Message size in bytes.
        size: u64,
        /// The queue pair's index, from 0.
        pair: usize,
        /// The message's offset in its memory.
        offset: u64,
        /// The byte's position in the message.
        place: u64,
        /// The received value.
        found: u8,
        /// The value that was sent.
        expected: u8,
    },
    /// Messages were lost.
    #[error(
        "{lost} messages of {size} bytes were lost, so the others cannot be told apart: give more -r, or -c RC"
    )]
    Lost {
        /// The number of lost messages.
        lost: u64,
        /// Message size in bytes.
        size: u64,
    },
}

/// The device cannot create the receiving end of an extended connection.
#[derive(Debug, thiserror::Error)]
#[error("-c XRC: {0}; give -c RC")]
pub enum XrcError {
    /// The device opens no XRC domain, or creates no target queue pair.
    Verb(#[from] sideway::Error),
    /// The device creates no shared receive queue.
    Queue(#[from] CreateSharedReceiveQueueError),
    /// The shared receive queue has no number that peers can name.
    #[error("-c XRC: the shared receive queue has no number; give -c RC")]
    NoNumber,
    /// A target could not be connected.
    Connect(#[from] ConnectError),
}

/// rdma_cm could not connect.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CmError {
    /// The system has no event channel.
    #[error("-R: no channel of rdma_cm: {0}; load the kernel's rdma_ucm, or leave -R out")]
    Channel(#[source] sideway::Error),
    /// The system has no identifier.
    #[error("-R: {0}; leave -R out")]
    Identifier(#[source] sideway::Error),
    /// The server cannot listen at its device's address.
    #[error(
        "-R: cannot listen at {address}, the address of {device}: {source}; choose another GID with -x, or leave -R out"
    )]
    Bind {
        /// The address and port.
        address: SocketAddr,
        /// The device's name.
        device: String,
        /// The reason.
        source: sideway::Error,
    },
    /// rdma_cm refuses an option.
    #[error("-R: rdma_cm does not take {flag} {given}: {source}; leave {flag} out")]
    Option {
        /// The flag that gave it.
        flag: &'static str,
        /// The flag's value.
        given: u32,
        /// The reason.
        source: sideway::Error,
    },
    /// A step of the connection failed.
    #[error(
        "-R: rdma_cm does not connect with {peer}: {source}; check the route to that address, or leave -R out"
    )]
    Step {
        /// The peer's address.
        peer: String,
        /// The reason.
        source: rdmacm::ConnectError,
    },
    /// The identifier's device is unknown.
    #[error("-R: {0}")]
    Device(#[source] sideway::Error),
    /// The route to the peer uses another device.
    #[error(
        "-R: the way to {peer} goes by {found}, not by {device}: give -d {found}, or -x for another address of {device}"
    )]
    OtherDevice {
        /// The peer's address.
        peer: String,
        /// The device of the route.
        found: String,
        /// The device that the test uses.
        device: String,
    },
    /// The client requested no connection in time.
    #[error("-R: the client asked for no connection within {} s; see what it printed", .limit.as_secs())]
    NoRequest {
        /// The time that it had.
        limit: Duration,
    },
}
