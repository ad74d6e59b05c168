//! Why a call on a multiplexed connection failed.

use std::io;
use std::time::Duration;

/// Why a call on a [`Mux`](super::Mux) failed. It converts into an [`io::Error`] of its
/// [kind](Self::kind).
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum MuxError {
    /// The connection failed. All requests on it fail with this.
    #[error("the connection of the mux failed: {message}")]
    Connection {
        /// The kind of the connection's error.
        kind: io::ErrorKind,
        /// The connection's error.
        message: String,
    },
    /// The peer has closed the connection. All requests that have no answer yet fail with this.
    #[error("the peer has closed the connection of the mux")]
    Closed,
    /// The peer sent bytes that no mux sends. The connection is of no further use.
    #[error("the peer breaks the protocol of the mux: {0}")]
    Protocol(#[from] ProtocolViolation),
    /// The deadline of the call or of its request has passed. The request was cancelled.
    #[error("nothing came within the {after:?} that the call or its request had")]
    DeadlinePassed {
        /// The time that it had.
        after: Duration,
    },
    /// The peer has as many requests as it accepts.
    #[error("the peer refused the request, because it has as many as it accepts: try again later")]
    Refused,
    /// The peer's program has dropped the request without an answer, or in the midst of its
    /// answers.
    #[error("the peer's program dropped the request without an answer")]
    Unanswered,
    /// The requester has cancelled the request, or its deadline has passed there.
    #[error("the requester has cancelled the request")]
    Cancelled,
    /// A message is longer than this side accepts in one piece. If it is an answer, the request was
    /// cancelled.
    #[error(
        "a message is longer than {limit} bytes: take it by `next_part`, or raise \
         `MuxConfig::max_message`"
    )]
    TooLong {
        /// The bytes that a message may have.
        limit: usize,
    },
}

debug_as_text!(MuxError);

impl MuxError {
    /// The kind of the error as an [`io::Error`].
    #[must_use]
    pub fn kind(&self) -> io::ErrorKind {
        match self {
            Self::Connection { kind, .. } => *kind,
            Self::Closed => io::ErrorKind::UnexpectedEof,
            Self::Protocol(_) | Self::TooLong { .. } => io::ErrorKind::InvalidData,
            Self::DeadlinePassed { .. } => io::ErrorKind::TimedOut,
            Self::Refused => io::ErrorKind::ResourceBusy,
            Self::Unanswered | Self::Cancelled => io::ErrorKind::ConnectionAborted,
        }
    }

    pub(super) fn of_connection(error: &io::Error) -> Self {
        Self::Connection { kind: error.kind(), message: error.to_string() }
    }
}

impl From<MuxError> for io::Error {
    fn from(error: MuxError) -> Self {
        Self::new(error.kind(), error)
    }
}

/// How a peer breaks the protocol of a mux.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ProtocolViolation {
    /// The peer does not speak the protocol.
    #[error("its first bytes are not those of a mux: is the other end a `trespass::mux::Mux`?")]
    NoMux,
    /// The peer's version is unknown.
    #[error("it has version {theirs}, and this side {ours}")]
    Version {
        /// The peer's highest version.
        theirs: u16,
        /// This side's version.
        ours: u16,
    },
    /// The peer announces what no mux announces.
    #[error("it accepts {requests} requests with windows of {window} bytes, which is out of range")]
    Capacity {
        /// The concurrent requests that it announces.
        requests: u32,
        /// The window that it announces, in bytes.
        window: u64,
    },
    /// A frame has an unknown kind.
    #[error("a frame has the unknown kind {kind}")]
    Kind {
        /// The kind's byte.
        kind: u8,
    },
    /// A header has flags, a length or reserved bytes that its kind does not have.
    #[error("a frame of kind {kind} has flags {flags:#04x} and {len} bytes")]
    Header {
        /// The kind's byte.
        kind: u8,
        /// The flags' byte.
        flags: u8,
        /// The length of the frame's data in bytes.
        len: u32,
    },
    /// A frame is of a request that does not exist, or that a frame of that kind cannot follow.
    #[error("a frame of kind {kind} does not fit the state of request {id}")]
    State {
        /// The kind's byte.
        kind: u8,
        /// The number of the request.
        id: u64,
    },
    /// The peer sends more than the window allows.
    #[error("request {id} has {cost} bytes more, and a window of {left}")]
    Window {
        /// The number of the request.
        id: u64,
        /// The bytes of the frame.
        cost: u64,
        /// The bytes that were left of the window.
        left: u64,
    },
    /// The peer gives more credit than a window has.
    #[error("request {id} has credit beyond the largest window")]
    Credit {
        /// The number of the request.
        id: u64,
    },
    /// The peer goes on with requests that are refused, and does not read.
    #[error("it sent {refused} requests beyond those that it may have, and read no refusal")]
    Flood {
        /// The requests that were refused.
        refused: u32,
    },
}

debug_as_text!(ProtocolViolation);
