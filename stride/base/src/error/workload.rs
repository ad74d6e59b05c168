//! Errors of moving messages.

use std::net::SocketAddr;
use std::time::Duration;

use sideway::ibverbs::completion::{WorkCompletionOperationType, WorkCompletionStatus};
use sideway::ibverbs::connect::ConnectError;
use sideway::ibverbs::queue_pair::CreateXrcTargetError;
use sideway::ibverbs::srq::CreateSharedReceiveQueueError;
use sideway::ibverbs::xrc::OpenXrcDomainError;
use sideway::rdmacm::{
    BindAddrError, CreateEventChannelError, CreateIdentifierError, GetDeviceContextError, SetOptionError,
    SynchronousError,
};

/// A message was not delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a message failed: {status} (status {}, opcode {opcode}, wr_id {wr_id}, vendor error {vendor_err:#x}); {}",
    .status.raw(),
    .status.hint().unwrap_or("no usual cause is known")
)]
pub struct CompletionError {
    /// How it ended.
    pub status: WorkCompletionStatus,
    /// What it was: the device does not say, after an error, but what is posted is known by its number.
    pub opcode: WorkCompletionOperationType,
    /// Its number: how many messages of this size were posted before it on its queue pair.
    pub wr_id: u64,
    /// The vendor's own error number.
    pub vendor_err: u32,
    /// Its queue pair, of those of its thread.
    pub pair: usize,
}

/// What arrived is not what was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ValidationError {
    /// Bytes are others.
    #[error(
        "messages of {size} bytes arrived changed: byte {place} of the one at offset {offset} of queue pair {pair} is \
         {found:#04x} in place of {expected:#04x}; do not trust this path with data"
    )]
    Changed {
        /// Bytes of a message.
        size: u64,
        /// The queue pair, from 0.
        pair: usize,
        /// Where the message lies in its memory.
        offset: u64,
        /// Which of its bytes.
        place: u64,
        /// What it is.
        found: u8,
        /// What was sent.
        expected: u8,
    },
    /// Messages did not come.
    #[error(
        "{lost} messages of {size} bytes were lost, so the others cannot be told apart: give more -r, or -c RC"
    )]
    Lost {
        /// How many.
        lost: u64,
        /// Bytes of a message.
        size: u64,
    },
}

/// The device makes no end of an extended connection.
#[derive(Debug, thiserror::Error)]
#[error("-c XRC: {0}; give -c RC")]
pub enum XrcError {
    /// No domain.
    Domain(#[from] OpenXrcDomainError),
    /// No target.
    Target(#[from] CreateXrcTargetError),
    /// No shared receive queue.
    Queue(#[from] CreateSharedReceiveQueueError),
    /// A shared receive queue that peers cannot name.
    #[error("-c XRC: the shared receive queue has no number; give -c RC")]
    NoNumber,
    /// A target did not get to where it answers.
    Connect(#[from] ConnectError),
}

/// rdma_cm made no connection.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CmError {
    /// No channel.
    #[error("-R: no channel of rdma_cm: {0}; load the kernel's rdma_ucm, or leave -R out")]
    Channel(#[from] CreateEventChannelError),
    /// No identifier.
    #[error("-R: {0}; leave -R out")]
    Identifier(#[from] CreateIdentifierError),
    /// There is nowhere to listen.
    #[error(
        "-R: cannot listen at {address}, the address of {device}: {source}; choose another GID with -x, or leave -R out"
    )]
    Bind {
        /// The address.
        address: SocketAddr,
        /// The device's name.
        device: String,
        /// Why.
        source: BindAddrError,
    },
    /// An option is refused.
    #[error("-R: rdma_cm does not take {flag} {given}: {source}; leave {flag} out")]
    Option {
        /// The flag.
        flag: &'static str,
        /// Its value.
        given: u32,
        /// Why.
        source: SetOptionError,
    },
    /// A step failed.
    #[error(
        "-R: rdma_cm does not connect with {peer}: {source}; check the route to that address, or leave -R out"
    )]
    Step {
        /// The other end.
        peer: String,
        /// Why.
        source: SynchronousError,
    },
    /// It is not known which device it is.
    #[error("-R: {0}")]
    Device(#[from] GetDeviceContextError),
    /// The routing table leads elsewhere.
    #[error(
        "-R: the way to {peer} goes by {found}, not by {device}: give -d {found}, or -x for another address of {device}"
    )]
    OtherDevice {
        /// The other end.
        peer: String,
        /// The device that leads there.
        found: String,
        /// The one that was chosen.
        device: String,
    },
    /// Nobody asked.
    #[error("-R: the client asked for no connection within {} s; see what it printed", .limit.as_secs())]
    NoRequest {
        /// How long it had.
        limit: Duration,
    },
}
