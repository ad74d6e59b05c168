//! Sockets: finding the peer, and noticing that it is gone.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::net::sockopt;

use super::frame::{HEADER_LENGTH, Kind, parse_header};
use super::{ControlError, Link};

/// How long one address may take to answer.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// How long a server that was started at the same moment may take to listen.
const START_LIMIT: Duration = Duration::from_secs(1);

/// How often the port is tried meanwhile.
const START_PAUSE: Duration = Duration::from_millis(50);

/// Connects to a server. A refusal is believed after a second: both sides may have been started at once.
///
/// An IPv6 address may stand in brackets.
pub fn connect(host: &str, port: u16) -> Result<Link, ControlError> {
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let addresses: Vec<SocketAddr> = (host, port)
        .to_socket_addrs()
        .map_err(|source| ControlError::Resolve { host: host.to_owned(), source })?
        .collect();
    let peer = authority(host, port);
    let start = Instant::now();
    loop {
        match connect_any(&addresses) {
            Ok(stream) => return link(stream, peer),
            Err(error) if refused_at_start(&error, start) => sleep(START_PAUSE),
            Err(source) => return Err(ControlError::Unreachable { peer, source }),
        }
    }
}

fn connect_any(addresses: &[SocketAddr]) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in addresses {
        match TcpStream::connect_timeout(address, CONNECT_LIMIT) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn refused_at_start(error: &io::Error, start: Instant) -> bool {
    error.kind() == io::ErrorKind::ConnectionRefused && start.elapsed() < START_LIMIT
}

/// `host:port`, with brackets where the host is an IPv6 address.
fn authority(host: &str, port: u16) -> String {
    match host.parse::<Ipv6Addr>() {
        Ok(address) => format!("[{address}]:{port}"),
        Err(_) => format!("{host}:{port}"),
    }
}

/// A server's socket.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    port: u16,
}

impl Listener {
    /// Listens on every address, IPv4 and, where there is one, IPv6.
    pub fn bind(port: u16) -> Result<Self, ControlError> {
        let socket = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).or_else(|error| match error.kind() {
            io::ErrorKind::AddrInUse | io::ErrorKind::PermissionDenied => Err(error),
            _ => TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)),
        });
        Self::new(socket, port)
    }

    /// Listens on this machine only, on a port that the system chooses.
    pub fn bind_local() -> Result<Self, ControlError> {
        Self::new(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)), 0)
    }

    fn new(socket: io::Result<TcpListener>, port: u16) -> Result<Self, ControlError> {
        let failed = |source| ControlError::Listen { port, source };
        let socket = socket.map_err(failed)?;
        let port = socket.local_addr().map_err(failed)?.port();
        Ok(Self { socket, port })
    }

    /// The port, also where the system chose it.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Waits for one client. A second one is refused from then on.
    pub fn accept(self) -> Result<Link, ControlError> {
        let (stream, address) = self.socket.accept().map_err(ControlError::Accept)?;
        let ip = address.ip().to_canonical();
        link(stream, SocketAddr::new(ip, address.port()).to_string())
    }
}

fn link(stream: TcpStream, peer: String) -> Result<Link, ControlError> {
    match watch_over(&stream) {
        Ok(()) => Ok(Link::new(stream, peer)),
        Err(error) => Err(ControlError::lost(peer, error)),
    }
}

/// Has the system end the connection about 15 seconds after the peer's machine has vanished.
fn watch_over(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, Duration::from_secs(5))?;
    sockopt::set_tcp_keepintvl(stream, Duration::from_secs(2))?;
    sockopt::set_tcp_keepcnt(stream, 5)?;
    sockopt::set_tcp_user_timeout(stream, 15_000)?;
    Ok(())
}

/// What a glance at the control connection shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Liveness {
    /// The peer is there as far as one can tell.
    Alive,
    /// The peer has sent a message.
    Spoken,
    /// The peer has sent why it gives up.
    Failed,
    /// The connection has ended.
    Ended,
}

impl Liveness {
    /// Looks without waiting and without taking anything from the stream.
    pub(super) fn of(stream: &TcpStream) -> io::Result<Self> {
        let mut header = [0; HEADER_LENGTH];
        stream.set_nonblocking(true)?;
        let seen = stream.peek(&mut header);
        stream.set_nonblocking(false)?;
        match seen {
            Ok(0) => Ok(Self::Ended),
            Ok(HEADER_LENGTH) => Ok(match parse_header(&header) {
                Ok((Kind::Failure, _)) => Self::Failed,
                Ok((Kind::Message, _)) => Self::Spoken,
                // Whoever reads it says what it is.
                Err(_) => Self::Alive,
            }),
            Ok(_) => Ok(Self::Alive),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Self::Alive),
            Err(error) => Err(error),
        }
    }
}
