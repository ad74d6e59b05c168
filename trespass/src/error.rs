//! Errors of making a connection or a listener. Each converts into an [`io::Error`] of the kind
//! that `std::net` uses.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};

use crate::config::ConfigError;
use crate::handshake::HandshakeError;

/// Why a connection to an address, or a listener at it, could not be made.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The configuration is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The address does not resolve.
    #[error(
        "the address cannot be resolved: {0}; give `HOST:PORT`, or both apart as `(HOST, PORT)`: a host has no port in it"
    )]
    Resolve(#[source] io::Error),
    /// The local address that the configuration names cannot be used.
    #[error(transparent)]
    LocalAddress(#[from] LocalAddressError),
    /// TCP did not connect.
    #[error("TCP did not connect to {address}: {source}{}", NoInterface(*.address))]
    Tcp {
        /// The peer's address.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// rdma_cm did not connect ([`Bootstrap::RdmaCm`](crate::Bootstrap::RdmaCm)).
    #[error("rdma_cm did not connect to {address}: {source}{}", NoInterface(*.address))]
    RdmaCm {
        /// The peer's address.
        address: SocketAddr,
        /// The rdma_cm error, of the kind that `std::net` uses, with what to do.
        source: io::Error,
    },
    /// A TCP listener cannot be bound to the address.
    #[error("cannot listen at {address}: {source}{}{}", busy(.source), NoInterface(*.address))]
    Bind {
        /// The local address.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// An rdma_cm listener cannot be bound to the address.
    #[error("cannot listen at {address} by rdma_cm: {source}{}", NoInterface(*.address))]
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

debug_as_text!(ConnectError);

impl ConnectError {
    /// The kind that `std::net` uses for such an error.
    pub fn kind(&self) -> io::ErrorKind {
        match self {
            Self::Config(_) => io::ErrorKind::InvalidInput,
            Self::LocalAddress(source) => source.kind(),
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

/// Why the local address that a configuration names cannot be used
/// ([`Builder::bind_host`](crate::Builder::bind_host),
/// [`Builder::bind_interface`](crate::Builder::bind_interface), and the address of a single
/// [device](crate::Builder::device)).
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum LocalAddressError {
    /// No interface of this name has an address.
    #[error(
        "no network interface `{name}` has an address; those that have one are {}: correct `bind_interface`, or give it one (`ip addr add`)",
        .known.join(", ")
    )]
    Interface {
        /// The name that was asked for.
        name: String,
        /// The interfaces of this host that have addresses, sorted.
        known: Vec<String>,
    },
    /// The host does not resolve.
    #[error("`bind_host` = `{host}` cannot be resolved: {source}; give an IP address of this host")]
    Host {
        /// The name or address that was asked for.
        host: String,
        /// The resolver's error.
        source: io::Error,
    },
    /// The address of the only device is unknown.
    #[error("the address of device {device} is unknown: {reason}; set `bind_host` or `bind_interface`")]
    Device {
        /// The device, `NAME` or `NAME:PORT`.
        device: String,
        /// What the device or its interface lacks.
        reason: String,
    },
    /// A client's interface or host has no address of the peer's family.
    #[error(
        "`{name}` has no {} address, and the peer is {peer}: connect to another address of the peer, or correct \
         `bind_interface` or `bind_host`",
        if .peer.is_ipv4() { "IPv4" } else { "IPv6" }
    )]
    Family {
        /// The interface or host.
        name: String,
        /// The peer's address.
        peer: SocketAddr,
    },
    /// A client's socket cannot be bound to the address.
    #[error("cannot connect from {local}: {source}; `bind_host` must be an address of this host (`ip addr`)")]
    Bind {
        /// The local address.
        local: IpAddr,
        /// The system's error.
        source: io::Error,
    },
}

debug_as_text!(LocalAddressError);

impl LocalAddressError {
    /// The kind that `std::net` uses for such an error.
    pub fn kind(&self) -> io::ErrorKind {
        match self {
            Self::Host { source, .. } | Self::Bind { source, .. } => source.kind(),
            Self::Interface { .. } | Self::Device { .. } | Self::Family { .. } => {
                io::ErrorKind::AddrNotAvailable
            }
        }
    }
}

impl From<LocalAddressError> for io::Error {
    fn from(error: LocalAddressError) -> Self {
        ConnectError::from(error).into()
    }
}

/// What an address lacks that is link-local and names no interface; nothing for others.
struct NoInterface(SocketAddr);

impl fmt::Display for NoInterface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            SocketAddr::V6(v6) if v6.ip().is_unicast_link_local() && v6.scope_id() == 0 => {
                let (ip, port) = (v6.ip(), v6.port());
                write!(f, "; a link-local address needs its interface, as in `(\"{ip}%eth0\", {port})`")
            }
            _ => Ok(()),
        }
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
    use crate::pool;
    use crate::protocol::{CallError, FailureCause, ProtocolError};
    use crate::session::cm_error::CmError;
    use crate::session::{backlog, buffers, closing, listening};
    use crate::wire::{Cause, Unavailable};
    use crate::wire::{Kind, RejectReason};

    const ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 7);

    fn local_address_errors() -> [LocalAddressError; 5] {
        use LocalAddressError as E;
        let source = || io::ErrorKind::AddrNotAvailable.into();
        [
            E::Interface { name: "ib9".into(), known: vec!["eth0".into(), "lo".into()] },
            E::Host { host: "nowhere".into(), source: source() },
            E::Device { device: "mlx5_0:1".into(), reason: "its interface ib0 has no address".into() },
            E::Family { name: "ib0".into(), peer: ADDRESS },
            E::Bind { local: ADDRESS.ip(), source: source() },
        ]
    }

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
            (E::Io { step, source: io::ErrorKind::BrokenPipe.into() }, io::ErrorKind::ConnectionReset),
            (E::Io { step, source: io::ErrorKind::HostUnreachable.into() }, io::ErrorKind::HostUnreachable),
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
        messages.push(FailureCause::Silent(Duration::ZERO).to_string());
        messages.push(FailureCause::PeerGone.to_string());
        messages.push(FailureCause::Rails { why: "so", rails: 2 }.to_string());
        let told = [buffers::NO_BLOCK, pool::DOES_NOT_GROW, closing::LINGER_EXPIRED];
        messages.extend(told.map(str::to_owned));
        messages.extend([backlog::busy_text(2, false), listening::NO_PLACE.to_owned()]);
        messages.extend(local_address_errors().map(|error| error.to_string()));
        assert_eq!(messages.len(), 26);
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
        let managers: [(Of, K); 5] = [
            (CmError::NotThere, K::Unsupported),
            (CmError::NoDevice, K::AddrNotAvailable),
            (CmError::InUse, K::AddrInUse),
            (CmError::Refused, K::ConnectionRefused),
            (CmError::Unreachable, K::TimedOut),
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
        for error in local_address_errors() {
            assert_eq!(io::Error::from(error).kind(), K::AddrNotAvailable);
        }
        let refused = || io::ErrorKind::ConnectionRefused.into();
        let tcp = ConnectError::Tcp { address: ADDRESS, source: refused() };
        assert_eq!(io::Error::from(tcp).kind(), io::ErrorKind::ConnectionRefused);
        let busy = ConnectError::Bind { address: ADDRESS, source: io::ErrorKind::AddrInUse.into() };
        assert!(busy.to_string().contains("`ss -ltnp`"), "{busy}");
        assert_eq!(io::Error::from(busy).kind(), io::ErrorKind::AddrInUse);
    }

    /// Addresses that look right, with what to give instead.
    #[test]
    fn addresses_that_lack_or_have_too_much_are_explained() {
        let source = || io::ErrorKind::InvalidInput.into();
        let text = ConnectError::Resolve(source()).to_string();
        let expected = "the address cannot be resolved: invalid input parameter; give `HOST:PORT`, or both apart as \
                        `(HOST, PORT)`: a host has no port in it";
        assert_eq!(text, expected);
        let without: SocketAddr = "[fe80::7]:7000".parse().expect("an address");
        let expected = "; a link-local address needs its interface, as in `(\"fe80::7%eth0\", 7000)`";
        let with = "[fe80::7%2]:7000".parse().expect("an address");
        let of = |address| {
            [
                ConnectError::Tcp { address, source: source() },
                ConnectError::RdmaCm { address, source: source() },
                ConnectError::Bind { address, source: source() },
                ConnectError::BindRdmaCm { address, source: source() },
            ]
            .map(|error| error.to_string())
        };
        for text in of(without) {
            assert!(text.ends_with(expected), "{text}");
        }
        for text in of(with).into_iter().chain(of(ADDRESS)) {
            assert!(!text.contains("link-local"), "{text}");
        }
    }

    /// Every way to name a host with a port in it ends with the same words.
    #[test]
    #[cfg_attr(miri, ignore = "looks up names")]
    fn a_host_with_a_port_in_it_is_explained_by_every_call() {
        use crate::{Config, Listener, Stream, Worker};
        let wrong = ("127.0.0.1:7000", 7000);
        let mut worker = Worker::new(&Config::default()).expect("a worker");
        let kind = Kind::Stream;
        for error in [
            Stream::connect(wrong).map(drop),
            Listener::bind(wrong).map(drop),
            worker.connect(wrong, kind).map(drop),
            worker.listen(wrong, kind).map(drop),
        ] {
            let text = error.expect_err("no host has this name").to_string();
            assert!(text.contains("give `HOST:PORT`, or both apart"), "{text}");
        }
    }

    /// The errors of an open connection.
    fn failures() -> Vec<FailureCause> {
        let seconds = Duration::from_secs(2);
        vec![
            FailureCause::Protocol(ProtocolError::Empty),
            FailureCause::StrayCompletion { what: "the send", id: 7 },
            FailureCause::PeerReset,
            FailureCause::PeerGone,
            FailureCause::Completion { what: "sending", status: 12, vendor: 0, hint: "no route".into() },
            FailureCause::Aborted,
            FailureCause::Device { what: "polling completions", error: "EIO".into() },
            FailureCause::Rails { why: "the last of its devices failed", rails: 2 },
            FailureCause::Silent(seconds),
            FailureCause::Linger(seconds),
        ]
    }

    /// Each error is in a row of the table in the documentation, and each row has an error.
    #[test]
    fn every_kind_of_error_is_in_the_documentation() {
        let text = include_str!("../../docs/moving-from-tcp.md");
        let (_, table) = text.split_once("\n## Kinds of errors\n").expect("the section");
        let (table, _) = table.split_once("\n## ").unwrap_or((table, ""));
        let rows: Vec<_> = table.lines().filter_map(|line| line.strip_prefix("| `")).collect();
        let mut errors: Vec<(String, io::ErrorKind)> =
            failures().into_iter().map(|cause| (cause.to_string(), cause.kind())).collect();
        errors.extend(handshake_errors().into_iter().map(|(error, kind)| (error.to_string(), kind)));
        let device = CmError::Failed { kind: io::ErrorKind::NetworkDown, text: "was removed".into() };
        for error in [CmError::NoDevice("so".into()), CmError::NotThere("so".into()), device] {
            let error: io::Error = error.into();
            errors.push((error.to_string(), error.kind()));
        }
        let busy = ConnectError::Bind { address: ADDRESS, source: io::ErrorKind::AddrInUse.into() };
        errors.push((busy.to_string(), busy.kind()));
        let config = ConfigError::new("rx_slots", "3", "at least 16", "set 16");
        errors.push((config.to_string(), io::Error::from(config).kind()));
        for error in [CallError::PeerClosed, CallError::ShutDown] {
            errors.push((error.to_string(), io::ErrorKind::BrokenPipe));
        }
        let child = crate::process::Process::error("stream");
        errors.push((child.to_string(), child.kind()));
        let mut used = vec![false; rows.len()];
        for (error, kind) in &errors {
            // The text of a system's error is the system's.
            if error.starts_with("TCP failed") {
                continue;
            }
            let row = rows.iter().position(|row| {
                let words = row.split('`').skip(2).step_by(2);
                words.into_iter().any(|words| error.contains(words))
            });
            let row = row.unwrap_or_else(|| panic!("no row for {error:?}"));
            assert_eq!(rows[row].split('`').next(), Some(&*format!("{kind:?}")), "{error:?}");
            used[row] = true;
        }
        for (row, used) in rows.iter().zip(used) {
            assert!(used, "no error is meant by {row:?}");
        }
    }

    #[test]
    fn a_configuration_error_says_everything() {
        let error = ConfigError::new("rx_slots", "3", "at least 16", "set 16");
        assert_eq!(error.to_string(), "rx_slots = 3 is refused: it must be at least 16; set 16");
        assert_eq!((error.parameter(), error.value()), ("rx_slots", "3"));
        assert_eq!((error.bound(), error.remedy()), ("at least 16", "set 16"));
    }
}
