//! The errors of a handshake.

use std::fmt;
use std::io;
use std::time::Duration;

use super::fallback::{FallbackReason, Side};
use crate::wire::{Kind, Reject, RejectReason, WireError};

/// The step that a side is waiting for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HandshakeStep {
    /// rdma_cm resolves the peer's address.
    Address,
    /// rdma_cm resolves a route to the peer.
    Route,
    /// The peer answers the rdma_cm request.
    Answer,
    /// The peer's HELLO.
    Hello,
    /// The probe of the data path.
    Probe,
    /// The peer's READY.
    Ready,
}

impl fmt::Display for HandshakeStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Address => "the device that leads to the peer's address",
            Self::Route => "a route to the peer",
            Self::Answer => "the peer's answer",
            Self::Hello => "the peer's HELLO",
            Self::Probe => "the proof of the data path",
            Self::Ready => "the peer's READY",
        })
    }
}

/// Why the handshake failed although the peer was reached.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum HandshakeError {
    /// The peer speaks another protocol. The field has the first four bytes that it sent.
    #[error("the handshake failed: {}", WireError::Magic(*.0))]
    OtherProtocol([u8; 4]),
    /// The peer speaks another major version of the protocol.
    #[error("the handshake failed: {}", WireError::Version { major: *.major, minor: *.minor })]
    Version {
        /// The peer's major version.
        major: u8,
        /// The peer's minor version.
        minor: u8,
    },
    /// A message of the peer is malformed or unexpected. The text gives the details.
    #[error("the handshake failed: {0}")]
    Malformed(String),
    /// The peer rejects the connection.
    #[error("the peer (version {major}.{minor}) rejected the connection: {text}")]
    Rejected {
        /// The peer's reason as a code.
        reason: RejectReason,
        /// The peer's text. If the peer was busy, the number of attempts follows.
        text: String,
        /// The peer's major version.
        major: u8,
        /// The peer's minor version.
        minor: u8,
    },
    /// One side uses streams and the other messages.
    #[error("this side wants to carry {own}, and the peer {peer}; use the same type on both sides")]
    Kind {
        /// This side's kind.
        own: Kind,
        /// The peer's kind.
        peer: Kind,
    },
    /// Both sides are clients, or both are servers.
    #[error("the peer is a {0} too; a listener is needed on one side, and a connecting program on the other")]
    Role(&'static str),
    /// RDMA is required and does not work.
    #[error("{by} requires RDMA, and there is none: {reason}")]
    RdmaRequired {
        /// The side that requires it.
        by: Side,
        /// The reason that it does not work.
        reason: FallbackReason,
    },
    /// The deadline passed.
    #[error(
        "no connection within {after:?}: still waiting for {step}; is a trespass program at the other end, and is it running?"
    )]
    TimedOut {
        /// The step that was waited for.
        step: HandshakeStep,
        /// The time limit.
        after: Duration,
    },
    /// The peer closed the connection.
    #[error(
        "the peer closed the connection where {step} was due; it may have ended, or not be a trespass program"
    )]
    Closed {
        /// The step that was waited for.
        step: HandshakeStep,
    },
    /// TCP failed.
    #[error("TCP failed while waiting for {step}: {source}")]
    Io {
        /// The step that was waited for.
        step: HandshakeStep,
        /// The system's error.
        source: io::Error,
    },
}

debug_as_text!(HandshakeError);

impl HandshakeError {
    /// The kind that `std::net` uses for such an error.
    pub fn kind(&self) -> io::ErrorKind {
        match self {
            Self::OtherProtocol(_)
            | Self::Version { .. }
            | Self::Malformed(_)
            | Self::Kind { .. }
            | Self::Role(_) => io::ErrorKind::InvalidData,
            Self::Rejected { .. } => io::ErrorKind::ConnectionRefused,
            Self::RdmaRequired { .. } => io::ErrorKind::Unsupported,
            Self::TimedOut { .. } => io::ErrorKind::TimedOut,
            Self::Closed { .. } => io::ErrorKind::ConnectionReset,
            // The peer has closed the connection before this side wrote to it.
            Self::Io { source, .. } if source.kind() == io::ErrorKind::BrokenPipe => {
                io::ErrorKind::ConnectionReset
            }
            Self::Io { source, .. } => source.kind(),
        }
    }
}

impl From<WireError> for HandshakeError {
    fn from(error: WireError) -> Self {
        match error {
            WireError::Magic(magic) => Self::OtherProtocol(magic),
            WireError::Version { major, minor } => Self::Version { major, minor },
            malformed => Self::Malformed(malformed.to_string()),
        }
    }
}

impl From<Reject> for HandshakeError {
    fn from(reject: Reject) -> Self {
        let Reject { reason, own: (major, minor), text, .. } = reject;
        Self::Rejected { reason, text, major, minor }
    }
}

impl From<HandshakeError> for io::Error {
    fn from(error: HandshakeError) -> Self {
        Self::new(error.kind(), error)
    }
}
