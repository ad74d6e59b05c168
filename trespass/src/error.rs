//! Errors of making a connection or a listener. Each converts into an [`io::Error`] of the kind
//! that `std::net` uses.

use std::io;
use std::net::SocketAddr;

use crate::config::ConfigError;
use crate::handshake::HandshakeError;

/// Why a connection to an address, or a listener at it, could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The configuration is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The address does not resolve.
    #[error("the address cannot be resolved: {0}")]
    Resolve(#[source] io::Error),
    /// TCP did not connect.
    #[error("TCP did not connect to {address}: {source}")]
    Tcp {
        /// The peer's address.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// rdma_cm did not connect ([`Bootstrap::RdmaCm`](crate::Bootstrap::RdmaCm)).
    #[error("rdma_cm did not connect to {address}: {source}")]
    RdmaCm {
        /// The peer's address.
        address: SocketAddr,
        /// The rdma_cm error, of the kind that `std::net` uses, with what to do.
        source: io::Error,
    },
    /// A TCP listener cannot be bound to the address.
    #[error("cannot listen at {address}: {source}{}", busy(.source))]
    Bind {
        /// The local address.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// An rdma_cm listener cannot be bound to the address.
    #[error("cannot listen at {address} by rdma_cm: {source}")]
    BindRdmaCm {
        /// The local address.
        address: SocketAddr,
        /// The rdma_cm error, of the kind that `std::net` uses, with what to do.
        source: io::Error,
    },
    /// The transport connected, but the handshake failed.
    #[error("no connection to {address}: {source}")]
    Handshake {
        /// The peer's address.
        address: SocketAddr,
        /// The reason.
        source: HandshakeError,
    },
}

impl ConnectError {
    /// The kind that `std::net` uses for such an error.
    pub fn kind(&self) -> io::ErrorKind {
        match self {
            Self::Config(_) => io::ErrorKind::InvalidInput,
            Self::Resolve(source)
            | Self::Tcp { source, .. }
            | Self::RdmaCm { source, .. }
            | Self::Bind { source, .. }
            | Self::BindRdmaCm { source, .. } => source.kind(),
            Self::Handshake { source, .. } => source.kind(),
        }
    }
}

impl From<ConnectError> for io::Error {
    fn from(error: ConnectError) -> Self {
        Self::new(error.kind(), error)
    }
}

/// What to do about a port that is in use.
fn busy(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::AddrInUse => {
            "; see who listens there (`ss -ltnp`), choose another port, or let `Builder::bind_patience` wait for it"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::handshake::{HandshakeStep, Side};
    use crate::session::cm_error::CmError;
    use crate::session::{backlog, buffers, closing};
    use crate::wire::{Cause, Unavailable};
    use crate::wire::{Kind, RejectReason};
    use crate::{pool, protocol};

    const ADDRESS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 7);

    fn handshake_errors() -> Vec<(HandshakeError, io::ErrorKind)> {
        use HandshakeError as E;
        let step = HandshakeStep::Hello;
        let reason = Unavailable::new(Cause::NoDevice, "").on(Side::Peer);
        let rejected = E::Rejected { reason: RejectReason::Busy, text: "later".into(), major: 1, minor: 0 };
        vec![
            (E::Malformed("messages of type 9 do not exist".into()), io::ErrorKind::InvalidData),
            (rejected, io::ErrorKind::ConnectionRefused),
            (E::Kind { own: Kind::Stream, peer: Kind::SeqPacket }, io::ErrorKind::InvalidData),
            (E::Role("client"), io::ErrorKind::InvalidData),
            (E::RdmaRequired { by: Side::Local, reason }, io::ErrorKind::Unsupported),
            (E::TimedOut { step, after: Duration::from_secs(5) }, io::ErrorKind::TimedOut),
            (E::Closed { step }, io::ErrorKind::ConnectionReset),
            (E::Io { step, source: io::ErrorKind::BrokenPipe.into() }, io::ErrorKind::BrokenPipe),
        ]
    }

    /// A user who searches for an error's words finds a heading with them.
    #[test]
    fn every_error_message_has_a_heading_in_troubleshooting() {
        let text = include_str!("../../docs/troubleshooting.md");
        let headings: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("### ")).collect();
        let refused = HandshakeError::OtherProtocol(*b"HTTP");
        let version = HandshakeError::Version { major: 2, minor: 0 };
        let busy = ConnectError::Bind { address: ADDRESS, source: io::ErrorKind::AddrInUse.into() };
        let mut messages: Vec<String> = handshake_errors()
            .into_iter()
            // Skips the peer's own text, TCP's errors, and what no peer of this project sends.
            .filter(|(error, _)| {
                use HandshakeError as E;
                matches!(
                    error,
                    E::Kind { .. } | E::RdmaRequired { .. } | E::TimedOut { .. } | E::Closed { .. }
                )
            })
            .map(|(error, _)| error.to_string())
            .collect();
        let config = ConfigError::new("rx_slots", "3", "at least 16", "set 16");
        messages.extend([refused.to_string(), version.to_string(), busy.to_string(), config.to_string()]);
        let manager = |error: fn(String) -> CmError| error("so".into()).to_string();
        messages.extend(
            [CmError::NotThere, CmError::NoDevice, CmError::InUse, CmError::Refused, CmError::Unreachable]
                .map(manager),
        );
        messages.push(protocol::FailureCause::Silent(Duration::ZERO).to_string());
        messages.push(protocol::FailureCause::PeerGone.to_string());
        let told = [buffers::NO_BLOCK, pool::DOES_NOT_GROW, closing::LINGER_EXPIRED];
        messages.extend(told.map(str::to_owned));
        messages.push(backlog::busy_text(2, false));
        assert_eq!(messages.len(), 19);
        for message in &messages {
            assert!(headings.iter().any(|heading| message.contains(heading)), "{message}");
        }
        // Every documented cause exists.
        let causes = Cause::CODES.into_iter().map(|(_, cause)| cause).chain([Cause::Unknown(0)]);
        messages.extend(causes.map(|cause| cause.description().to_owned()));
        for heading in headings {
            assert!(messages.iter().any(|message| message.contains(heading)), "nothing prints {heading:?}");
        }
    }

    /// The kind fits, and the source error can be downcast.
    #[test]
    fn every_error_is_an_io_error() {
        for (error, kind) in handshake_errors() {
            let connect: io::Error = ConnectError::Handshake { address: ADDRESS, source: error }.into();
            assert_eq!(connect.kind(), kind);
            let inner = connect.get_ref().and_then(|inner| inner.downcast_ref::<ConnectError>());
            assert!(matches!(inner, Some(ConnectError::Handshake { .. })), "{inner:?}");
        }
        use io::ErrorKind as K;
        type Of = fn(String) -> CmError;
        let managers: [(Of, K); 6] = [
            (CmError::NotThere, K::Unsupported),
            (CmError::NoDevice, K::AddrNotAvailable),
            (CmError::InUse, K::AddrInUse),
            (CmError::Refused, K::ConnectionRefused),
            (CmError::Unreachable, K::TimedOut),
            (CmError::Failed, K::Other),
        ];
        for (error, kind) in managers {
            let source = || error("so".into()).into();
            let connect = ConnectError::RdmaCm { address: ADDRESS, source: source() };
            assert_eq!(io::Error::from(connect).kind(), kind);
            let bind = ConnectError::BindRdmaCm { address: ADDRESS, source: source() };
            assert_eq!(io::Error::from(bind).kind(), kind);
        }
        let config = || ConfigError::new("rx_slots", "3", "at least 16", "set 16");
        assert_eq!(io::Error::from(config()).kind(), io::ErrorKind::InvalidInput);
        assert_eq!(io::Error::from(ConnectError::from(config())).kind(), io::ErrorKind::InvalidInput);
        let refused = || io::ErrorKind::ConnectionRefused.into();
        let tcp = ConnectError::Tcp { address: ADDRESS, source: refused() };
        assert_eq!(io::Error::from(tcp).kind(), io::ErrorKind::ConnectionRefused);
        let busy = ConnectError::Bind { address: ADDRESS, source: io::ErrorKind::AddrInUse.into() };
        assert!(busy.to_string().contains("`ss -ltnp`"), "{busy}");
        assert_eq!(io::Error::from(busy).kind(), io::ErrorKind::AddrInUse);
    }

    #[test]
    fn a_configuration_error_says_everything() {
        let error = ConfigError::new("rx_slots", "3", "at least 16", "set 16");
        assert_eq!(error.to_string(), "rx_slots = 3 is refused: it must be at least 16; set 16");
        assert_eq!((error.parameter(), error.value()), ("rx_slots", "3"));
        assert_eq!((error.bound(), error.remedy()), ("at least 16", "set 16"));
    }
}
