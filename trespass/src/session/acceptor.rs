//! The acceptor of a listener: a TCP socket, or an rdma_cm identifier that listens.

#[cfg(feature = "rdma")]
mod cm;

use std::io;
use std::net::SocketAddr;

use mio::net::TcpListener;
use mio::{Interest, Registry, Token};

#[cfg(feature = "rdma")]
pub(crate) use cm::CmListener;

/// The non-blocking listening socket or identifier.
pub(crate) enum Acceptor {
    Tcp(TcpListener),
    #[cfg(feature = "rdma")]
    RdmaCm(CmListener),
}

/// A client that has connected.
pub(crate) enum IncomingClient {
    /// With a non-blocking socket.
    Tcp(std::net::TcpStream, SocketAddr),
    /// The connection request event. Dropping it rejects the request.
    #[cfg(feature = "rdma")]
    RdmaCm(Box<sideway::rdmacm::Event>, SocketAddr),
}

impl IncomingClient {
    pub(crate) fn peer(&self) -> SocketAddr {
        match self {
            Self::Tcp(_, peer) => *peer,
            #[cfg(feature = "rdma")]
            Self::RdmaCm(_, peer) => *peer,
        }
    }
}

impl Acceptor {
    pub(crate) fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        match self {
            Self::Tcp(socket) => registry.register(socket, token, Interest::READABLE),
            #[cfg(feature = "rdma")]
            Self::RdmaCm(listening) => listening.register(registry, token),
        }
    }

    pub(crate) fn deregister(&mut self, registry: &Registry) -> io::Result<()> {
        match self {
            Self::Tcp(socket) => registry.deregister(socket),
            #[cfg(feature = "rdma")]
            Self::RdmaCm(listening) => listening.deregister(registry),
        }
    }

    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        match self {
            Self::Tcp(socket) => socket.local_addr(),
            #[cfg(feature = "rdma")]
            Self::RdmaCm(listening) => Ok(listening.local_addr()),
        }
    }

    /// Accepts the next client. If none waits, the error is `WouldBlock`.
    pub(crate) fn accept(&mut self) -> io::Result<IncomingClient> {
        match self {
            Self::Tcp(socket) => {
                socket.accept().map(|(socket, peer)| IncomingClient::Tcp(socket.into(), peer))
            }
            #[cfg(feature = "rdma")]
            Self::RdmaCm(listening) => listening.accept(),
        }
    }
}
