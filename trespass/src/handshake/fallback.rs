//! Where a handshake decides whether RDMA carries the connection or it falls back to TCP, and the reason for the fallback.
//!
//! RDMA carries it if both sides say in READY that the data path works. Otherwise TCP does, unless one side requires RDMA: then
//! there is no connection.

use std::fmt;

use crate::wire::{Cause, Policy, Unavailable};

/// What carries a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Transport {
    /// A reliable connected queue pair.
    Rdma,
    /// The TCP connection that it began on.
    Tcp,
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rdma => "RDMA",
            Self::Tcp => "TCP",
        })
    }
}

/// One of the two sides of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// This one.
    Local,
    /// The other.
    Peer,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Local => "this side",
            Self::Peer => "the peer",
        })
    }
}

/// Why a connection uses TCP though it might have used RDMA. As text it says what happened, on which side, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FallbackReason {
    side: Side,
    cause: Cause,
    detail: String,
}

impl FallbackReason {
    /// On which side it was.
    pub fn side(&self) -> Side {
        self.side
    }

    /// What it was.
    pub fn cause(&self) -> Cause {
        self.cause
    }

    /// The device, the error, the numbers; may be empty. If the other side has said it, it is foreign text without control characters.
    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// The same in a rejection, which begins with "the peer rejected the connection: " over there.
    pub(crate) fn as_peer_message(&self) -> String {
        match self.side {
            Side::Local => self.message_for("it"),
            Side::Peer => self.message_for("your side"),
        }
    }

    fn message_for(&self, side: &str) -> String {
        let (what, remedy) = (self.cause.description(), self.cause.remedy());
        match self.detail.as_str() {
            "" => format!("{side} {what}; {remedy}"),
            detail => format!("{side} {what} ({detail}); {remedy}"),
        }
    }
}

impl fmt::Display for FallbackReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message_for(&self.side.to_string()))
    }
}

impl Unavailable {
    pub(crate) fn on(self, side: Side) -> FallbackReason {
        FallbackReason { side, cause: self.cause, detail: self.detail }
    }
}

/// What one side says of its data path in READY: it works, or why TCP is to be used.
pub(super) type Verdict = Result<(), FallbackReason>;

/// Decides what carries the connection, from both sides' verdicts: the data path, or the reason for TCP. A path that is not used
/// goes to `spent`.
pub(super) fn decide<D>(
    own: Verdict,
    peer: Verdict,
    path: Result<D, Unavailable>,
    spent: &mut Option<D>,
) -> Result<D, FallbackReason> {
    match (own.and(peer), path) {
        (Ok(()), path) => path.map_err(|why| why.on(Side::Local)),
        (Err(reason), path) => {
            *spent = path.ok().or(spent.take());
            Err(reason)
        }
    }
}

/// The side that requires RDMA, so that there is no fallback to TCP.
pub(super) fn required_by(own: Policy, peer: Policy) -> Option<Side> {
    match (own, peer) {
        (Policy::RequireRdma, _) => Some(Side::Local),
        (_, Policy::RequireRdma) => Some(Side::Peer),
        _ => None,
    }
}

/// The reason for TCP where the peer has no endpoint. If this side has none either, its own reason counts, because its program can
/// do something about that.
pub(super) fn without_peer_endpoint<D>(own: &Result<D, Unavailable>, peer: Unavailable) -> FallbackReason {
    match own {
        Err(why) => why.clone().on(Side::Local),
        Ok(_) => peer.on(Side::Peer),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TROUBLESHOOTING: &str = include_str!("../../../docs/troubleshooting.md");

    /// Who looks for the words of a reason finds them as a heading.
    #[test]
    fn every_reason_is_in_the_documentation() {
        for cause in Cause::CODES.into_iter().map(|(_, cause)| cause).chain([Cause::Unknown(0)]) {
            let heading = format!("\n### {}\n", cause.description());
            assert!(TROUBLESHOOTING.contains(&heading), "{heading}");
        }
    }

    #[test]
    fn a_reason_says_where_what_and_what_to_do() {
        let reason = Unavailable::new(Cause::PortNotActive, "mlx5_0 port 2 is DOWN").on(Side::Peer);
        assert_eq!(
            reason.to_string(),
            "the peer has no active port (mlx5_0 port 2 is DOWN); see its state with `ibv_devinfo`, and bring its interface up"
        );
        for (_, cause) in Cause::CODES {
            let text = Unavailable::new(cause, "").on(Side::Local).to_string();
            assert!(text.starts_with("this side ") && text.contains("; ") && !text.contains("()"), "{text}");
        }
    }
}
