//! Sockets of the control connection: finding the peer, and noticing its end.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::net::sockopt;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sideway::rdmacm::missing_interface;

use super::{ControlError, ControlLink, Tcp};
use crate::interrupt;

/// The time that one address has to answer.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// The time that a server has to start listening if both sides were started at once.
const START_LIMIT: Duration = Duration::from_secs(1);

/// The pause between attempts to connect.
const START_PAUSE: Duration = Duration::from_millis(50);

/// How often a waiting server checks for signals.
const ACCEPT_GLANCE: Duration = Duration::from_millis(100);

/// Connects to a server. It retries a refused connection for a second, because both sides may have
/// been started at once.
///
/// An IPv6 address may be given in brackets.
pub fn connect(host: &str, port: u16) -> Result<ControlLink, ControlError> {
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
            Err((_, error)) if refused_at_start(&error, start) => sleep(START_PAUSE),
            Err((address, source)) => {
                return Err(match address.and_then(|address| missing_interface(&address)) {
                    Some(remedy) => ControlError::NoInterface { peer, source, remedy },
                    None => ControlError::Unreachable { peer, source },
                });
            }
        }
    }
}

/// Connects to the first address that answers. If none does, returns the last address's error.
fn connect_any(addresses: &[SocketAddr]) -> Result<TcpStream, (Option<SocketAddr>, io::Error)> {
    let mut last = (None, io::Error::new(io::ErrorKind::NotFound, "the name has no address"));
    for address in addresses {
        match TcpStream::connect_timeout(address, CONNECT_LIMIT) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = (Some(*address), error),
        }
    }
    Err(last)
}

fn refused_at_start(error: &io::Error, start: Instant) -> bool {
    error.kind() == io::ErrorKind::ConnectionRefused && start.elapsed() < START_LIMIT
}

/// `host:port`, with brackets around an IPv6 address.
fn authority(host: &str, port: u16) -> String {
    match host.parse::<Ipv6Addr>() {
        Ok(address) => format!("[{address}]:{port}"),
        // An interface may follow the address.
        Err(_) if host.contains(':') => format!("[{host}]:{port}"),
        Err(_) => format!("{host}:{port}"),
    }
}

/// A server's listening socket.
#[derive(Debug)]
pub struct ControlListener {
    socket: TcpListener,
    port: u16,
}

impl ControlListener {
    /// Listens on every address: IPv4, and IPv6 if the system supports it.
    pub fn bind(port: u16) -> Result<Self, ControlError> {
        let socket = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).or_else(|error| match error.kind() {
            io::ErrorKind::AddrInUse | io::ErrorKind::PermissionDenied => Err(error),
            _ => TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)),
        });
        Self::new(socket, port)
    }

    /// Listens on the loopback interface, on a port that the system chooses.
    pub fn bind_local() -> Result<Self, ControlError> {
        Self::new(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)), 0)
    }

    fn new(socket: io::Result<TcpListener>, port: u16) -> Result<Self, ControlError> {
        let failed = |source| ControlError::Listen { port, source };
        let socket = socket.map_err(failed)?;
        let port = socket.local_addr().map_err(failed)?.port();
        Ok(Self { socket, port })
    }

    /// The port, whether given or chosen by the system.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Refuses all further clients, and ends a wait for one in another thread.
    pub fn shut_down(&self) {
        // A failure is ignored: the socket is closed soon anyway.
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
    }

    /// Waits for one client. From then on the system refuses others.
    pub fn accept(self) -> Result<ControlLink, ControlError> {
        loop {
            if let Some(link) = self.accept_within(ACCEPT_GLANCE)? {
                return Ok(link);
            }
        }
    }

    /// Returns the next client, if one connects within `limit`.
    ///
    /// # Errors
    ///
    /// A signal asked this process to end, or the system has no resources for a client.
    pub fn accept_within(&self, limit: Duration) -> Result<Option<ControlLink>, ControlError> {
        interrupt::check()?;
        let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: limit.subsec_nanos().into() };
        match poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&limit)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(None),
            Ok(_) => {}
            Err(error) => return Err(ControlError::Accept(error.into())),
        }
        let (stream, address) = match self.socket.accept() {
            Ok(accepted) => accepted,
            // The client disconnected before it was accepted.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => return Ok(None),
            Err(error) => return Err(ControlError::Accept(error)),
        };
        let ip = address.ip().to_canonical();
        link(stream, SocketAddr::new(ip, address.port()).to_string()).map(Some)
    }
}

/// Makes one end of the control connection of a stream.
fn link(stream: TcpStream, peer: String) -> Result<ControlLink, ControlError> {
    match watch_over(&stream).and_then(|()| Tcp::new(stream)) {
        Ok(tcp) => Ok(ControlLink::new(tcp, peer)),
        Err(error) => Err(ControlError::lost(peer, error)),
    }
}

/// Makes the system end the connection about 15 seconds after the peer's machine has vanished.
fn watch_over(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, Duration::from_secs(5))?;
    sockopt::set_tcp_keepintvl(stream, Duration::from_secs(2))?;
    sockopt::set_tcp_keepcnt(stream, 5)?;
    sockopt::set_tcp_user_timeout(stream, 15_000)?;
    Ok(())
}
