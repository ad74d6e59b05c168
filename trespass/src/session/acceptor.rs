//! The acceptor of a listener: a TCP socket, or an rdma_cm identifier that listens.

#[cfg(feature = "rdma")]
mod cm;

use std::io;
use std::net::SocketAddr;

use mio::net::TcpListener;
use mio::{Interest, Registry, Token};

use crate::session::refusal::Refusals;
#[cfg(feature = "rdma")]
use crate::wire::REJECT_DATA;
use crate::wire::{Reject, RejectReason};

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

    /// Tells the client that the listener is busy. It does not wait for the client.
    pub(crate) fn turn_away(self, text: String, refusals: &Refusals) {
        let reject = Reject::new(RejectReason::Busy, (0, 0), text);
        match self {
            Self::Tcp(socket, peer) => refusals.turn_away(socket, peer, &reject.encode()),
            #[cfg(feature = "rdma")]
            Self::RdmaCm(request, peer) => {
                if let Err(error) = request.into_cm_id().reject(&reject.encode_within(REJECT_DATA)) {
                    tracing::debug!(%peer, %error, "the client is not told that the listener is busy");
                }
            }
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
