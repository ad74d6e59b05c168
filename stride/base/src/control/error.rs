//! Errors of the control connection.

use std::io;
use std::time::Duration;

use super::{FrameError, SecretRefusal, VERSION};
use crate::interrupt::Interrupted;

/// A failure of the control connection, or a refusal by the peer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// The resolver does not know the server's name.
    #[error("cannot resolve {host}: {source}; give a host name or an address that this machine knows")]
    Resolve {
        /// The name that the user gave.
        host: String,
        /// The resolver's error.
        source: io::Error,
    },
    /// No server listens at the address.
    #[error(
        "cannot reach a server at {peer}: {source}; start the same stride-perf command there first, without \
         an address, and check -p and firewalls"
    )]
    Unreachable {
        /// Host and port.
        peer: String,
        /// The system's error.
        source: io::Error,
    },
    /// The server's address does not say by which interface the server is reached.
    #[error("cannot reach a server at {peer}: {source}; {remedy}")]
    NoInterface {
        /// Host and port.
        peer: String,
        /// The system's error.
        source: io::Error,
        /// What to give instead.
        remedy: String,
    },
    /// The system refuses to listen on the port.
    #[error("cannot listen on TCP port {port}: {source}; give another port with -p, to both sides")]
    Listen {
        /// The TCP port.
        port: u16,
        /// The system's error.
        source: io::Error,
    },
    /// The system failed to accept a client.
    #[error("cannot accept a client: {0}")]
    Accept(io::Error),
    /// The peer is another program.
    #[error("{peer} does not speak stride-perf's protocol (it sent {}); {}", printable(.got), remedy(*.got))]
    Stranger {
        /// Host and port.
        peer: String,
        /// The first bytes that it sent.
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
        /// The protocol version that the peer speaks.
        theirs: u16,
    },
    /// The peer sent a frame of the right version with invalid content.
    #[error("{peer} sent what cannot be understood: {what}; run the same release on both sides")]
    Malformed {
        /// Host and port.
        peer: String,
        /// The part that is invalid.
        what: String,
    },
    /// The peer did not answer in time.
    #[error("{peer} did not answer within {} s; check that it is stride-perf, and that it is not stuck", .limit.as_secs())]
    Silent {
        /// Host and port.
        peer: String,
        /// The time that it had.
        limit: Duration,
    },
    /// The peer's connection is open, but no frame arrives.
    #[error(
        "{peer} has not been heard of for {} s: its process is stopped, or the way to it is cut; look there",
        .limit.as_secs()
    )]
    Dead {
        /// Host and port.
        peer: String,
        /// The time since the last frame.
        limit: Duration,
    },
    /// The peer held a place for which others waited.
    #[error(
        "{peer} made no step of its set-up for {} s while other clients waited, so its place was given to them; look \
         there, and try again",
        .limit.as_secs()
    )]
    GaveWay {
        /// Host and port.
        peer: String,
        /// The time that it had.
        limit: Duration,
    },
    /// A server heard too many connections that sent no request.
    #[error("{peer} sent no request within {} ms, and made room for another connection", .limit.as_millis())]
    MadeRoom {
        /// Host and port.
        peer: String,
        /// The time that it had.
        limit: Duration,
    },
    /// As many clients wait for a server as may.
    #[error("{waiting} clients wait already; try again later")]
    TurnedAway {
        /// The clients that wait.
        waiting: u32,
    },
    /// A signal asked this process to end.
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
    /// The connection to the peer ended.
    #[error("{peer} closed the control connection{}; see what it printed", during(.source))]
    Gone {
        /// Host and port.
        peer: String,
        /// The system's error; `None` if the peer closed the connection.
        source: Option<io::Error>,
    },
    /// The peer has sent its next message already, so it wants no answer any more.
    #[error("{peer} is done")]
    PeerIsDone {
        /// Host and port.
        peer: String,
    },
    /// A message of the peer did not arrive.
    #[error(
        "nothing came from {peer} for 5 s: a message was lost, which this connection does not send again; measure once \
         more, or with -c RC"
    )]
    MessageLost {
        /// Host and port.
        peer: String,
    },
    /// The peer does not know the secret, or requires one.
    #[error("{peer} {}", .refusal.by_us())]
    Refused {
        /// Host and port.
        peer: String,
        /// The reason for refusing the peer.
        refusal: SecretRefusal,
    },
    /// The peer refused this side because of the secret.
    #[error("{peer} {}", .refusal.by_peer())]
    RefusedByPeer {
        /// Host and port.
        peer: String,
        /// The peer's reason.
        refusal: SecretRefusal,
    },
    /// The connection that is to be measured could not be established.
    #[error(
        "the TCP connection that is measured does not come about ({peer}: {source}): it goes to a port that the system chooses, \
         beside that of -p; check firewalls between the two sides"
    )]
    NoStream {
        /// Its host and port.
        peer: String,
        /// The system's error.
        source: io::Error,
    },
    /// The system provides no random numbers.
    #[error("cannot have random numbers of the system, which the secret needs: {what}")]
    NoRandomness {
        /// The system's error.
        what: String,
    },
    /// The peer gave up and reported the reason.
    #[error("{peer} gave up: {reason}")]
    PeerFailed {
        /// Host and port.
        peer: String,
        /// The reason as the peer worded it.
        reason: String,
    },
}

impl ControlError {
    /// Whether the peer already knows that the test is over.
    pub fn is_known_to_peer(&self) -> bool {
        matches!(
            self,
            Self::PeerFailed { .. }
                | Self::Gone { .. }
                | Self::MadeRoom { .. }
                | Self::Refused { .. }
                | Self::RefusedByPeer { .. }
        )
    }

    /// Interprets a failure to read from `peer`.
    pub(super) fn reading(peer: &str, error: FrameError, limit: Option<Duration>) -> Self {
        let peer = peer.to_owned();
        match (error, limit) {
            (FrameError::Io(error), Some(limit)) if is_timeout(&error) => Self::Silent { peer, limit },
            (FrameError::Io(error), _) => Self::lost(peer, error),
            (FrameError::Silence(limit), _) => Self::Dead { peer, limit },
            (FrameError::GaveWay(limit), _) => Self::GaveWay { peer, limit },
            (FrameError::Interrupted(interrupted), _) => Self::Interrupted(interrupted),
            (FrameError::Magic(got), _) => Self::Stranger { peer, got },
            (FrameError::Version(theirs), _) => Self::OtherVersion { peer, theirs },
            (error, _) => Self::Malformed { peer, what: error.to_string() },
        }
    }

    /// The connection broke with a system error.
    pub(super) fn lost(peer: String, error: io::Error) -> Self {
        let in_order = error.kind() == io::ErrorKind::UnexpectedEof;
        Self::Gone { peer, source: (!in_order).then_some(error) }
    }
}

/// Whether a socket's timeout expired; systems report it by either of two kinds.
fn is_timeout(error: &io::Error) -> bool {
    // A connection whose keep-alive probes go unanswered ends with ETIMEDOUT, which is TimedOut
    // too, but its socket had no timeout.
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

fn during(source: &Option<io::Error>) -> String {
    source.as_ref().map(|source| format!(" ({source})")).unwrap_or_default()
}

/// The advice for a peer whose first bytes are these.
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
