//! Listening with rdma_cm.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use sideway::rdmacm::{EventChannel, EventType, Identifier, PortSpace};

use super::IncomingClient;
use crate::session::cm_error::CmError;

/// The length of the system's queue of requests: as many as it allows, which is 1,024 in Linux unless
/// `net.rdma_ucm.max_backlog` says otherwise. The system drops a request beyond its queue, and a
/// client repeats it after four seconds only. Those in the queue are told when the listener is busy.
const SYSTEM_QUEUE: i32 = i32::MAX;

/// A listening identifier, alone on its event channel.
pub(crate) struct CmListener {
    channel: EventChannel,
    _id: Identifier,
    local: SocketAddr,
}

impl CmListener {
    pub(crate) fn at(address: SocketAddr) -> Result<Self, CmError> {
        let channel = EventChannel::new()?;
        let id = channel.create_id(PortSpace::Tcp)?;
        id.bind_addr(address)?;
        id.listen(SYSTEM_QUEUE)?;
        let local = id.local_addr().and_then(|local| local.ip()).unwrap_or(address);
        Ok(Self { channel, _id: id, local })
    }

    pub(super) fn local_addr(&self) -> SocketAddr {
        self.local
    }

    pub(super) fn register(&self, registry: &Registry, token: Token) -> io::Result<()> {
        let channel = self.channel.as_fd().as_raw_fd();
        registry.register(&mut SourceFd(&channel), token, Interest::READABLE)
    }

    pub(super) fn deregister(&self, registry: &Registry) -> io::Result<()> {
        registry.deregister(&mut SourceFd(&self.channel.as_fd().as_raw_fd()))
    }

    pub(super) fn accept(&self) -> io::Result<IncomingClient> {
        loop {
            let event = self.channel.try_get_cm_event().map_err(|error| CmError::failed(&error))?;
            let Some(event) = event else { return Err(ErrorKind::WouldBlock.into()) };
            match event.event_type() {
                EventType::ConnectRequest => {
                    let peer = event.cm_id().peer_addr().and_then(|peer| peer.ip());
                    let Some(peer) = peer else {
                        tracing::debug!(?event, "a client without an IP address is rejected");
                        continue;
                    };
                    return Ok(IncomingClient::RdmaCm(Box::new(event), peer));
                }
                EventType::DeviceRemoval => {
                    let words = format!(
                        "the device of {} was removed, and no client can arrive: listen again",
                        self.local
                    );
                    return Err(io::Error::new(ErrorKind::NetworkDown, words));
                }
                // For example a request that was withdrawn before it was accepted.
                other => tracing::trace!(event = %other, "the connection manager reports"),
            }
        }
    }
}
