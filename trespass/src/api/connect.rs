//! [`Config`] and [`Builder`] methods that make connections and listeners.

use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::time::Duration;

use super::listener::Listener;
use super::seq_packet::SeqPacket;
use super::stream::Stream;
use crate::config::{Builder, Config};
#[expect(unused_imports, reason = "the documentation names it")]
use crate::error::{ConnectError, LocalAddressError};
use crate::session::local_address::advertised;
use crate::session::timeouts::checked_timeout;
use crate::wire::Kind;

/// A builder whose connects take no longer than the timeout.
pub(super) fn within(timeout: Duration) -> io::Result<Builder> {
    const SHORTEST: Duration = Duration::from_millis(10);
    const LONGEST: Duration = Duration::from_secs(600);
    checked_timeout(Some(timeout))?;
    let deadline = timeout.clamp(SHORTEST, LONGEST);
    let probe = Config::default().probe_timeout.min(deadline / 2);
    Ok(Builder::new().handshake_deadline(deadline).probe_timeout(probe))
}

impl Builder {
    /// Connects a stream: [`build`](Self::build), then [`Config::connect`].
    ///
    /// # Errors
    ///
    /// Those of both.
    pub fn connect(self, addr: impl ToSocketAddrs) -> io::Result<Stream> {
        self.build()?.connect(addr)
    }

    /// Connects for messages: [`build`](Self::build), then [`Config::connect_seq_packet`].
    ///
    /// # Errors
    ///
    /// Those of both.
    pub fn connect_seq_packet(self, addr: impl ToSocketAddrs) -> io::Result<SeqPacket> {
        self.build()?.connect_seq_packet(addr)
    }

    /// Listens: [`build`](Self::build), then [`Config::bind`].
    ///
    /// # Errors
    ///
    /// Those of both.
    pub fn bind(self, addr: impl ToSocketAddrs) -> io::Result<Listener> {
        self.build()?.bind(addr)
    }

    /// Listens where the configuration says: [`build`](Self::build), then
    /// [`Config::bind_configured`].
    ///
    /// # Errors
    ///
    /// Those of both.
    pub fn bind_configured(self) -> io::Result<Listener> {
        self.build()?.bind_configured()
    }
}

impl Config {
    /// Connects a stream to the first address that accepts.
    ///
    /// # Errors
    ///
    /// A [`ConnectError`] as an [`io::Error`] of the kind that [`std::net`] uses. The address does
    /// not resolve, nobody listens there, the listener is no trespass program, or RDMA is required
    /// and does not work.
    pub fn connect(&self, addr: impl ToSocketAddrs) -> io::Result<Stream> {
        Stream::new(self.connect_kind(addr, Kind::Stream)?)
    }

    /// Connects for messages to the first address that accepts.
    ///
    /// # Errors
    ///
    /// Those of [`connect`](Self::connect).
    pub fn connect_seq_packet(&self, addr: impl ToSocketAddrs) -> io::Result<SeqPacket> {
        SeqPacket::new(self.connect_kind(addr, Kind::SeqPacket)?)
    }

    /// Listens at the first address that can be bound.
    ///
    /// # Errors
    ///
    /// A [`ConnectError`] as an [`io::Error`] of the kind that [`std::net`] uses.
    pub fn bind(&self, addr: impl ToSocketAddrs) -> io::Result<Listener> {
        Listener::new(self.listen(addr)?, self)
    }

    /// Listens at the configured [port](Builder::port) of the first of
    ///
    /// 1. [`Builder::bind_host`],
    /// 2. the address of [`Builder::bind_interface`],
    /// 3. the address of the device, if exactly one is configured ([`Builder::device`],
    ///    `TRESPASS_DEV`): of its GID or its network interface,
    /// 4. all IPv4 addresses (`0.0.0.0`).
    ///
    /// [`bind_addrs`](Self::bind_addrs) has the same for a [`Worker`](crate::Worker) and for the
    /// listeners of tasks.
    ///
    /// ```
    /// use trespass::Builder;
    ///
    /// let builder = Builder::new().bind_host("127.0.0.1").port(0);
    /// let listener = builder.clone().hostname("localhost").bind_configured()?;
    /// let told_to_clients = listener.advertised_addr();
    /// assert!(told_to_clients.starts_with("localhost:"));
    /// let stream = builder.connect(&*told_to_clients)?;
    /// assert!(stream.local_addr()?.ip().is_loopback());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`bind_addrs`](Self::bind_addrs) and of [`bind`](Self::bind).
    pub fn bind_configured(&self) -> io::Result<Listener> {
        self.bind(&self.bind_addrs()?[..])
    }

    /// The addresses at which [`bind_configured`](Self::bind_configured) listens: one, or those of a
    /// host name. The first that can be bound is used.
    ///
    /// # Errors
    ///
    /// A [`LocalAddressError`] within a [`ConnectError`], as an [`io::Error`]: the host name does not
    /// resolve, no interface has the name and an address, or the address of the device is unknown.
    pub fn bind_addrs(&self) -> io::Result<Vec<SocketAddr>> {
        Ok(self.configured_addresses()?)
    }

    /// What the clients of a listener at `local` connect to, as `HOST:PORT`
    /// ([`Listener::advertised_addr`]), for a [`Worker`](crate::Worker) and for the listeners of tasks.
    #[must_use]
    pub fn advertised_addr(&self, local: SocketAddr) -> String {
        advertised(self.hostname.as_deref(), local)
    }

    /// Listens with a socket that already listens, for example one that a service manager or a parent
    /// process has made. The backlog of the socket is as it was made.
    ///
    /// # Errors
    ///
    /// The system cannot make the socket non-blocking, or start the thread that accepts.
    pub fn listen_with(&self, socket: TcpListener) -> io::Result<Listener> {
        Listener::new(Self::acceptor_of(socket)?, self)
    }
}
