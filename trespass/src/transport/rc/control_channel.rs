//! The control channel of a connection: the TCP socket or rdma_cm identifier that it began with.
//! The driver keeps it, because its end tells that the peer has gone.

use std::io;
use std::mem::replace;
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, RawFd};

use mio::net::TcpStream;
use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use rustix::event::PollFlags;
use sideway::rdmacm::{EventChannel, EventType, Identifier};

use crate::transport::{Sources, SystemEvent};

/// The TCP socket or the connection manager's identifier.
pub(super) enum ControlChannel {
    Socket {
        socket: TcpStream,
        peer_ended: bool,
        /// The end was reported. It stays so.
        ended: bool,
    },
    Cm(CmControl),
}

impl ControlChannel {
    /// Wraps a non-blocking socket.
    pub(super) fn from_socket(socket: std::net::TcpStream) -> Self {
        Self::Socket { socket: TcpStream::from_std(socket), peer_ended: false, ended: false }
    }

    pub(super) fn socket(&self) -> Option<RawFd> {
        match self {
            Self::Socket { socket, .. } => Some(socket.as_raw_fd()),
            Self::Cm(_) => None,
        }
    }

    pub(super) fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        match self {
            Self::Socket { socket, .. } => registry.register(socket, token, Interest::READABLE),
            Self::Cm(cm) => {
                let channel = cm.channel.as_fd().as_raw_fd();
                registry.register(&mut SourceFd(&channel), token, Interest::READABLE)
            }
        }
    }

    pub(super) fn deregister(&mut self, registry: &Registry) -> io::Result<()> {
        match self {
            Self::Socket { socket, .. } => registry.deregister(socket),
            Self::Cm(cm) => registry.deregister(&mut SourceFd(&cm.channel.as_fd().as_raw_fd())),
        }
    }

    /// Remembers an event. It may concern another descriptor registered under the same token.
    pub(super) fn on_event(&mut self, event: SystemEvent) {
        match self {
            Self::Socket { peer_ended, ended, .. } => {
                *peer_ended |= event.is_read_closed || event.is_error;
                *ended |= *peer_ended;
            }
            Self::Cm(cm) => cm.may_have_event = true,
        }
    }

    /// Adds its descriptor, until its end is known. Bytes on the socket mean nothing.
    pub(super) fn sources(&self, sources: &mut Sources) {
        match self {
            Self::Socket { ended: true, .. } => (),
            Self::Socket { socket, .. } => sources.add(socket.as_raw_fd(), PollFlags::RDHUP),
            Self::Cm(cm) if cm.ended => (),
            Self::Cm(cm) => sources.add(cm.channel.as_fd().as_raw_fd(), PollFlags::IN),
        }
    }

    /// Looks into the events that [`on_event`](Self::on_event) remembered. Call it before polling
    /// completions: that poll then finds everything that the peer sent before its end.
    pub(super) fn poll_events(&mut self) {
        if let Self::Cm(cm) = self {
            cm.poll_events();
        }
    }

    /// Whether the peer's end was found since the last call.
    pub(super) fn take_peer_ended(&mut self) -> bool {
        match self {
            Self::Socket { peer_ended, .. } => replace(peer_ended, false),
            Self::Cm(cm) => replace(&mut cm.peer_ended, false),
        }
    }

    /// Closes the channel, so that the peer notices even if this side's program does nothing for a
    /// long time.
    pub(super) fn disconnect(&mut self) {
        match self {
            Self::Socket { socket, .. } => {
                if let Err(error) = socket.shutdown(Shutdown::Both) {
                    tracing::trace!(%error, "the socket of a connection was gone already");
                }
            }
            Self::Cm(cm) => {
                if let Err(error) = cm.id.disconnect() {
                    tracing::trace!(%error, "the connection was over already");
                }
            }
        }
    }
}

/// An rdma_cm identifier with a private event channel. Dropping it disconnects.
pub(crate) struct CmControl {
    id: Identifier,
    channel: EventChannel,
    may_have_event: bool,
    peer_ended: bool,
    /// The end, or the channel's, was found. It stays so.
    ended: bool,
}

impl CmControl {
    /// Takes the identifier of an established connection. `peer_ended`: the peer has disconnected
    /// since.
    pub(crate) fn new(id: Identifier, channel: EventChannel, peer_ended: bool) -> Self {
        Self { id, channel, may_have_event: true, peer_ended, ended: peer_ended }
    }

    fn poll_events(&mut self) {
        if !replace(&mut self.may_have_event, false) {
            return;
        }
        self.read_events();
        self.ended |= self.peer_ended;
    }

    fn read_events(&mut self) {
        loop {
            match self.channel.try_get_cm_event() {
                Ok(Some(event)) => {
                    tracing::trace!(event = %event.event_type(), "the connection manager reports");
                    // A TIMEWAIT_EXIT event only says that the queue pair number may be used again,
                    // so it is ignored.
                    self.peer_ended |= matches!(
                        event.event_type(),
                        EventType::Disconnected | EventType::DeviceRemoval | EventType::ConnectError
                    );
                }
                Ok(None) => return,
                Err(error) => {
                    tracing::warn!(%error, "the connection manager says nothing more");
                    self.peer_ended = true;
                    return;
                }
            }
        }
    }
}
