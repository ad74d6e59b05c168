//! What can go wrong between the two sides.

use std::io;
use std::time::Duration;

use super::{FrameError, SecretRefusal, VERSION};
use crate::interrupt::Interrupted;

/// The control connection failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// The name means nothing.
    #[error("cannot resolve {host}: {source}; give a host name or an address that this machine knows")]
    Resolve {
        /// What the user gave.
        host: String,
        /// The resolver's words.
        source: io::Error,
    },
    /// Nobody listens there.
    #[error(
        "cannot reach a server at {peer}: {source}; start the same stride-perf command there first, without \
         an address, and check -p and firewalls"
    )]
    Unreachable {
        /// Host and port.
        peer: String,
        /// The system's words.
        source: io::Error,
    },
    /// The port cannot be listened on.
    #[error("cannot listen on TCP port {port}: {source}; give another port with -p, to both sides")]
    Listen {
        /// The port.
        port: u16,
        /// The system's words.
        source: io::Error,
    },
    /// Nobody could be accepted.
    #[error("cannot accept a client: {0}")]
    Accept(io::Error),
    /// The peer is another program.
    #[error("{peer} does not speak stride-perf's protocol (it sent {}); {}", printable(.got), remedy(*.got))]
    Stranger {
        /// Host and port.
        peer: String,
        /// Its first bytes.
        got: [u8; 4],
    },
    /// The peer is another release.
    #[error(
        "{peer} speaks version {theirs} of stride-perf's protocol, this is version {VERSION}; run the same \
         release on both sides"
    )]
    OtherVersion {
        /// Host and port.
        peer: String,
        /// Its version.
        theirs: u16,
    },
    /// The peer sent a frame of the right version that makes no sense.
    #[error("{peer} sent what cannot be understood: {what}; run the same release on both sides")]
    Malformed {
        /// Host and port.
        peer: String,
        /// What is wrong with it.
        what: String,
    },
    /// The peer did not answer.
    #[error("{peer} did not answer within {} s; check that it is stride-perf, and that it is not stuck", .limit.as_secs())]
    Silent {
        /// Host and port.
        peer: String,
        /// How long it had.
        limit: Duration,
    },
    /// The peer's connection stands, but nothing comes over it.
    #[error(
        "{peer} has not been heard of for {} s: its process is stopped, or the way to it is cut; look there",
        .limit.as_secs()
    )]
    Dead {
        /// Host and port.
        peer: String,
        /// How long.
        limit: Duration,
    },
    /// This process was asked to end.
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
    /// The peer is gone.
    #[error("{peer} closed the control connection{}; see what it printed", during(.source))]
    Gone {
        /// Host and port.
        peer: String,
        /// The system's words, unless the connection ended in order.
        source: Option<io::Error>,
    },
    /// The peer has gone on to its next word: no answer is wanted any more.
    #[error("{peer} is done")]
    PeerIsDone {
        /// Host and port.
        peer: String,
    },
    /// What the peer sent did not come.
    #[error(
        "nothing came from {peer} for 5 s: a message was lost, which this connection does not send again; measure once \
         more, or with -c RC"
    )]
    MessageLost {
        /// Host and port.
        peer: String,
    },
    /// The peer does not know the secret, or wants one.
    #[error("{peer} {}", .refusal.by_us())]
    Refused {
        /// Host and port.
        peer: String,
        /// Why.
        refusal: SecretRefusal,
    },
    /// The peer says so of this side.
    #[error("{peer} {}", .refusal.by_peer())]
    RefusedByPeer {
        /// Host and port.
        peer: String,
        /// Why.
        refusal: SecretRefusal,
    },
    /// The connection that is measured does not come about.
    #[error(
        "the TCP connection that is measured does not come about ({peer}: {source}): it goes to a port that the system chooses, \
         beside that of -p; check firewalls between the two sides"
    )]
    NoStream {
        /// Where it was to go.
        peer: String,
        /// The system's words.
        source: io::Error,
    },
    /// The system has no random numbers.
    #[error("cannot have random numbers of the system, which the secret needs: {what}")]
    NoRandomness {
        /// The system's words.
        what: String,
    },
    /// The peer gave up, and said why.
    #[error("{peer} gave up: {reason}")]
    PeerFailed {
        /// Host and port.
        peer: String,
        /// What it said.
        reason: String,
    },
}

impl ControlError {
    /// Whether the peer knows already that the test is over.
    pub fn is_known_to_peer(&self) -> bool {
        matches!(
            self,
            Self::PeerFailed { .. } | Self::Gone { .. } | Self::Refused { .. } | Self::RefusedByPeer { .. }
        )
    }

    /// What it means that reading from `peer` failed.
    pub(super) fn reading(peer: &str, error: FrameError, limit: Option<Duration>) -> Self {
        let peer = peer.to_owned();
        match (error, limit) {
            (FrameError::Io(error), Some(limit)) if is_timeout(&error) => Self::Silent { peer, limit },
            (FrameError::Io(error), _) => Self::lost(peer, error),
            (FrameError::Silence(limit), _) => Self::Dead { peer, limit },
            (FrameError::Interrupted(interrupted), _) => Self::Interrupted(interrupted),
            (FrameError::Magic(got), _) => Self::Stranger { peer, got },
            (FrameError::Version(theirs), _) => Self::OtherVersion { peer, theirs },
            (error, _) => Self::Malformed { peer, what: error.to_string() },
        }
    }

    /// The connection is no more.
    pub(super) fn lost(peer: String, error: io::Error) -> Self {
        let in_order = error.kind() == io::ErrorKind::UnexpectedEof;
        Self::Gone { peer, source: (!in_order).then_some(error) }
    }
}

/// Whether a socket's time limit passed; which of the two it is depends on the system.
fn is_timeout(error: &io::Error) -> bool {
    // A connection whose keep-alive probes go unanswered ends with ETIMEDOUT, which is TimedOut too, but
    // then the socket had no time limit of its own.
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

fn during(source: &Option<io::Error>) -> String {
    source.as_ref().map(|source| format!(" ({source})")).unwrap_or_default()
}

/// What to do about a peer that begins with this.
fn remedy(got: [u8; 4]) -> &'static str {
    match &got {
        b"TRSP" => {
            "this is a client of `stride-perf msg`, which `stride-perf msg` alone serves: run that here"
        }
        _ => "check the address and -p",
    }
}

fn printable(bytes: &[u8; 4]) -> String {
    format!("\"{}\"", bytes.escape_ascii())
}
