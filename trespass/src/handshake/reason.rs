//! Why a connection does not use RDMA.

use std::fmt;

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

/// What stood in the way of RDMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Cause {
    /// It is configured to use TCP only.
    TcpOnly,
    /// The program was built without the feature `rdma`.
    BuiltWithout,
    /// The library of the verbs is not there, or too old.
    NoLibrary,
    /// There is no RDMA device.
    NoDevice,
    /// There is no device, or no port, as it was asked for.
    DeviceNotFound,
    /// The port is not active.
    PortNotActive,
    /// No GID is the socket's address.
    NoGid,
    /// The device has not, or the process may not have, what a connection needs.
    Resources,
    /// The two ports cannot reach each other: one is on InfiniBand, the other on Ethernet.
    LinkLayer,
    /// The queue pair could not be connected.
    Connect,
    /// Nothing came through the data path in time.
    ProbeTimedOut,
    /// The device reported an error when the data path was tried.
    ProbeFailed,
    /// It gave up because the other side had.
    PeerGaveUp,
    /// Something that a newer version knows, or nothing was said (0).
    Unknown(u16),
}

impl Cause {
    /// Every cause that has a number of its own, with that. Frozen: peers tell each other these.
    pub(crate) const CODES: [(u16, Self); 13] = [
        (1, Self::TcpOnly),
        (2, Self::BuiltWithout),
        (3, Self::NoLibrary),
        (4, Self::NoDevice),
        (5, Self::DeviceNotFound),
        (6, Self::PortNotActive),
        (7, Self::NoGid),
        (8, Self::Resources),
        (9, Self::LinkLayer),
        (10, Self::Connect),
        (11, Self::ProbeTimedOut),
        (12, Self::ProbeFailed),
        (13, Self::PeerGaveUp),
    ];

    pub(crate) fn code(self) -> u16 {
        match self {
            Self::Unknown(code) => code,
            known => Self::CODES.iter().find(|entry| entry.1 == known).map_or(0, |entry| entry.0),
        }
    }

    pub(crate) fn from_code(code: u16) -> Self {
        Self::CODES.iter().find(|entry| entry.0 == code).map_or(Self::Unknown(code), |entry| entry.1)
    }

    /// What it is, after the name of a side.
    pub(crate) fn description(self) -> &'static str {
        match self {
            Self::TcpOnly => "is configured to use TCP only",
            Self::BuiltWithout => "was built without RDMA",
            Self::NoLibrary => "has no usable libibverbs",
            Self::NoDevice => "has no RDMA device",
            Self::DeviceNotFound => "has no such device or port",
            Self::PortNotActive => "has no active port",
            Self::NoGid => "has no GID for the socket's address",
            Self::Resources => "could not get what a queue pair needs",
            Self::LinkLayer => "is on another kind of link",
            Self::Connect => "could not connect its queue pair",
            Self::ProbeTimedOut => "saw nothing come through the data path in time",
            Self::ProbeFailed => "got an error from the data path",
            Self::PeerGaveUp => "gave up because the other side had",
            Self::Unknown(_) => "did not say why it has no RDMA",
        }
    }

    /// What to do about it, on that side.
    fn remedy(self) -> &'static str {
        match self {
            Self::TcpOnly => "set the policy or TRESPASS_TRANSPORT to \"auto\" if that was not meant",
            Self::BuiltWithout => "build it with the feature `rdma`",
            Self::NoLibrary => "install rdma-core (`libibverbs1`, `ibverbs-providers`)",
            Self::NoDevice => {
                "see whether `ibv_devices` lists one; load its driver, or pass it into the container"
            }
            Self::DeviceNotFound => "compare TRESPASS_DEV or `Builder::device` with what `ibv_devices` lists",
            Self::PortNotActive => "see its state with `ibv_devinfo`, and bring its interface up",
            Self::NoGid => {
                "see `rdma link` and the GIDs of the port (`::ffff:` is IPv4, `fe80::` link-local); behind a bridge set TRESPASS_DEV and \
                 TRESPASS_GID_INDEX"
            }
            Self::Resources => {
                "raise the limit of locked memory (`ulimit -l`), or make the pool or the slots smaller"
            }
            Self::LinkLayer => "choose another device with TRESPASS_DEV on one of the sides",
            Self::Connect => {
                "see whether both addresses are on networks that reach each other, and the GID's index"
            }
            Self::ProbeTimedOut => {
                "see whether UDP port 4791 passes between the hosts, whether both use the same RoCE version (GID index), and the MTU"
            }
            Self::ProbeFailed => {
                "see whether the hosts reach each other over the device's own network, and the GID's index"
            }
            Self::PeerGaveUp => "see the other side's reason",
            Self::Unknown(_) => "see its log",
        }
    }
}

/// Why one side has no data path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unavailable {
    /// What stood in the way.
    pub(crate) cause: Cause,
    /// Names and numbers, or nothing.
    pub(crate) detail: String,
}

impl Unavailable {
    pub(crate) fn new(cause: Cause, detail: impl Into<String>) -> Self {
        Self { cause, detail: detail.into() }
    }

    /// Nothing is said of it.
    pub(crate) fn unspecified() -> Self {
        Self::new(Cause::Unknown(0), "")
    }

    pub(crate) fn on(self, side: Side) -> FallbackReason {
        FallbackReason { side, cause: self.cause, detail: self.detail }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_keep_their_numbers() {
        for (index, (code, cause)) in Cause::CODES.into_iter().enumerate() {
            assert_eq!(usize::from(code), index + 1);
            assert_eq!(cause.code(), code);
            assert_eq!(Cause::from_code(code), cause);
        }
        for code in [0, 14, u16::MAX] {
            assert_eq!(Cause::from_code(code), Cause::Unknown(code));
            assert_eq!(Cause::Unknown(code).code(), code);
        }
    }

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
