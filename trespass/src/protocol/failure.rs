//! The protocol's errors: violations by the peer, the cause of a connection's failure, and the
//! refusal of a call.

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::time::Duration;

use super::frame::FrameType;

/// A violation of the protocol by the peer. The connection that saw it has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum ProtocolError {
    #[error("the peer sent a frame of {len} bytes, shorter than a frame's header of 16")]
    ShortFrame { len: usize },
    #[error("the peer sent a frame of the unknown type {kind}")]
    UnknownType { kind: u8 },
    #[error("the peer sent a {kind:?} frame with the flags {flags:#04x}, which that type cannot have")]
    Flags { kind: FrameType, flags: u8 },
    #[error("the peer sent a {kind:?} frame with the count {count}, which it cannot have")]
    Count { kind: FrameType, count: u16 },
    #[error("the peer sent a {kind:?} frame whose header says {said} bytes of payload, and {came} came")]
    Length { kind: FrameType, said: u32, came: usize },
    #[error("the peer sent a frame with {len} bytes of payload; the largest agreed is {most}")]
    FrameTooLong { len: usize, most: usize },
    #[error("the peer sent frame number {came} where number {expected} was due")]
    Sequence { expected: u32, came: u32 },
    #[error("the peer sent a {kind:?} frame, which a connection of this kind or feature set never has")]
    NotAgreed { kind: FrameType },
    #[error(
        "the peer sent a frame whose header is in immediate data ({immediate:#x}), and it was not agreed that it may"
    )]
    Immediate { immediate: u32 },
    #[error(
        "the peer granted {total} receives in all where {granted} were granted, {sent} are used and {most} may be free at once"
    )]
    Grant { total: u32, granted: u32, sent: u32, most: u32 },
    #[error("the peer sent more frames than the {granted} receives granted to it")]
    Overdrawn { granted: u32 },
    #[error("the peer sent a {kind:?} frame after its FIN")]
    AfterFin { kind: FrameType },
    #[error("the peer acknowledged a FIN that was not sent, or acknowledged it twice")]
    StrayFinAck,
    #[error(
        "the peer says that it has read {total} sources; {told} were told to it and {read} it had said before"
    )]
    ReadTotal { total: u32, told: u32, read: u32 },
    #[error(
        "the peer says that it has received {total} frames; {sent} were sent to it, and of {before} it had said so before"
    )]
    ReceivedTotal { total: u32, sent: u64, before: u64 },
    #[error("the peer told of more than the {most} sources at once that were agreed")]
    TooManySources { most: u32 },
    #[error(
        "the peer told of a source of {bytes} bytes in {segments} ranges of {sum} bytes in all, or of an impossible range"
    )]
    Source { bytes: u64, segments: u16, sum: u64 },
    #[error("the peer told of a source of {bytes} bytes at once; the most is {most}")]
    SourceTooLong { bytes: u64, most: u64 },
    #[error("the peer began a message within a message of which {got} of {total} bytes had come")]
    BeganWithin { got: u64, total: u64 },
    #[error("the peer went on with a message that it had not begun")]
    NotBegun,
    #[error("the peer began a message of {total} bytes; the largest agreed is {most}")]
    MessageTooLong { total: u64, most: u64 },
    #[error("the peer announced a message of {total} bytes and {got} came in it")]
    MessageLength { total: u64, got: u64 },
    #[error("the peer sent a message about a rail with {what} {value}, which it cannot have")]
    Rail { what: &'static str, value: u64 },
    #[error("the peer sent a piece without any bytes")]
    Empty,
    #[error(
        "the peer sent {count} messages in a frame, of which one does not fit: {len} bytes at {at} of {end}"
    )]
    Batch { count: u16, at: usize, len: usize, end: usize },
}

/// The reason why a connection ended without both sides' closing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum FailureCause {
    /// The peer violated the protocol.
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
    /// The peer sent RESET.
    #[error("the peer reset the connection")]
    PeerReset,
    /// This side's program aborted it.
    #[error("the connection was aborted by this side")]
    Aborted,
    /// The peer's end of the link is gone: its socket closed, or it disconnected, without a FIN.
    #[error("the peer went away without closing the connection")]
    PeerGone,
    /// A work request of a device completed with an error.
    #[error("{what} failed with the completion status {status} (vendor error {vendor:#x}): {hint}")]
    Completion { what: &'static str, status: u32, vendor: u32, hint: Cow<'static, str> },
    /// A device reported the completion of a work request that was not posted, or had completed
    /// before.
    #[error("the device says that {what} number {id} has completed, which is not under way")]
    StrayCompletion { what: &'static str, id: u64 },
    /// A system call on the link failed.
    #[error("{what} failed: {error}")]
    Io { what: &'static str, kind: io::ErrorKind, error: String },
    /// This side's device failed, or its library.
    #[error(
        "this side's device failed ({what}): {error}; connect again: that opens the device again, or uses TCP"
    )]
    Device { what: &'static str, error: String },
    /// No rail of a connection over several works any more.
    #[error("all {rails} paths between the devices of both sides have failed; {why}")]
    Rails { why: &'static str, rails: usize },
    /// A keepalive probe was not answered within this time.
    #[error("the peer did not answer a probe within {0:?}")]
    Silent(Duration),
    /// The peer did not close its half, or did not take the sent data, within the linger time.
    #[error("the peer did not let the connection close within {0:?}")]
    Linger(Duration),
}

impl FailureCause {
    /// The kind that `std::net` uses for such an end.
    pub(crate) fn kind(&self) -> io::ErrorKind {
        match self {
            Self::Protocol(_) | Self::StrayCompletion { .. } => io::ErrorKind::InvalidData,
            Self::PeerReset | Self::PeerGone | Self::Completion { .. } | Self::Rails { .. } => {
                io::ErrorKind::ConnectionReset
            }
            Self::Aborted | Self::Device { .. } => io::ErrorKind::ConnectionAborted,
            Self::Io { kind, .. } => *kind,
            Self::Silent(_) | Self::Linger(_) => io::ErrorKind::TimedOut,
        }
    }
}

/// The reason why a call of the program did nothing, or only a part.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum CallError {
    /// The call would have to wait.
    #[error("{0}")]
    Blocked(Blocked),
    /// The message is larger than both sides agreed.
    #[error("a message of {len} bytes; the largest agreed with the peer is {most}")]
    MessageTooLong { len: u64, most: u64 },
    /// The message exceeds the quota, so it cannot be sent in one call.
    #[error(
        "a message of {len} bytes cannot be sent whole with a send buffer of {quota}; send it with send_part"
    )]
    AboveSendQuota { len: u64, quota: u64 },
    /// The message exceeds the quota, so it cannot be received in one call.
    #[error(
        "a message of {len} bytes cannot be received whole with a receive buffer of {quota}; receive it with recv_part"
    )]
    AboveReceiveQuota { len: u64, quota: u64 },
    /// The message at the front does not fit the buffer; it stays in the queue.
    #[error("the message has {len} bytes and the buffer {room}")]
    BufferTooSmall { len: u64, room: usize },
    /// A message is being sent or received in parts, and must be finished that way.
    #[error("a message is under way in parts; {left} bytes of it are left")]
    PartOpen { left: u64 },
    /// `send_part` got more bytes than the message has left.
    #[error("a part of {len} bytes for a message of which {left} bytes are left")]
    PartTooLong { len: u64, left: u64 },
    /// The number of blocks exceeds the limit of lent blocks.
    #[error("a list of {count} blocks; lend from 1 to {most} at once")]
    BlockCount { count: usize, most: usize },
    /// A call for messages on a byte stream, or the reverse.
    #[error("a call for messages on a connection of bytes, or the reverse")]
    WrongKind,
    /// This side's half was shut down for writing.
    #[error("this half of the connection was shut down")]
    ShutDown,
    /// The peer has closed the connection in order, and takes nothing more.
    #[error("the peer has closed the connection")]
    PeerClosed,
    /// The connection has failed.
    #[error("{0}")]
    Failed(FailureCause),
}

// As of the crate's other errors (`debug_as_text`), because a program gets it in an `io::Error`.
impl fmt::Debug for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The resource that a blocked call waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Blocked {
    /// Room in the send buffer.
    #[error("the send buffer is full")]
    SendQuota,
    /// A block of the pool.
    #[error("the pool has no memory left")]
    Memory,
    /// Data to receive.
    #[error("nothing has arrived")]
    Nothing,
}

/// A [`ConnectionSetup`](super::ConnectionSetup) with impossible values. A driver gets it only if
/// it skipped a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the parameter {name} is {value}; it must be from {least} to {most}")]
pub(crate) struct InvalidSetup {
    pub(crate) name: &'static str,
    pub(crate) value: u64,
    pub(crate) least: u64,
    pub(crate) most: u64,
}
