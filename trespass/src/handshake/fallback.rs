//! The decision between RDMA and the fallback to TCP, with the reason for the fallback.
//!
//! RDMA is used if both sides' READY confirm the data path. Otherwise TCP is used, unless one side
//! requires RDMA: then the connection fails.

use std::fmt;

use crate::wire::{Cause, Policy, Unavailable};

/// The transport of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Transport {
    /// RDMA: a reliable connected (RC) queue pair.
    Rdma,
    /// The TCP connection of the handshake.
    Tcp,
    /// TCP without this crate's protocol ([`AnyStream`](crate::AnyStream)).
    PlainTcp,
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rdma => "RDMA",
            Self::Tcp => "TCP",
            Self::PlainTcp => "plain TCP",
        })
    }
}

/// A side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// This side.
    Local,
    /// The other end of the connection.
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

/// Why a connection uses TCP instead of RDMA. Its text says what happened, on which side, and what
/// to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FallbackReason {
    side: Side,
    cause: Cause,
    detail: String,
}

impl FallbackReason {
    /// The side where it occurred.
    pub fn side(&self) -> Side {
        self.side
    }

    /// The kind of failure, without details.
    pub fn cause(&self) -> Cause {
        self.cause
    }

    /// Details such as the device or an error number. It may be empty. A peer's text is unchecked,
    /// but has no control characters.
    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// The text for a rejection, which the peer prints after "the peer rejected the connection: ".
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

/// A side's READY: the data path works, or the reason to use TCP.
pub(super) type Verdict = Result<(), FallbackReason>;

/// Decides between the data path and TCP from both sides' verdicts. An unused path is moved to
/// `spent`.
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

/// The side that requires RDMA, which rules out the fallback.
pub(super) fn required_by(own: Policy, peer: Policy) -> Option<Side> {
    match (own, peer) {
        (Policy::RequireRdma, _) => Some(Side::Local),
        (_, Policy::RequireRdma) => Some(Side::Peer),
        _ => None,
    }
}

/// The reason for TCP if the peer has no endpoint. If this side has none either, its own reason is
/// returned, because its program can act on it.
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

    /// A user who searches for a reason's words finds a heading with them.
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
