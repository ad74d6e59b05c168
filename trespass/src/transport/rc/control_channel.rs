//! The control channel of a connection: the TCP socket or rdma_cm identifier that it began with.
//! The driver keeps it, because its end tells that the peer has gone. Bytes on the socket mean
//! nothing; the service thread discards them (`session/control_keepalive.rs`).

use std::io;
use std::mem::replace;
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Arc;

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use sideway::rdmacm::{EventChannel, EventType, Identifier};

use crate::transport::{CONTROL_BYTES, Sources, SystemEvent};

/// The TCP socket or the connection manager's identifier.
pub(super) enum ControlChannel {
    /// The service thread may use the socket for a moment after this side has dropped it.
    Socket {
        socket: Arc<TcpStream>,
        peer_ended: bool,
        /// The end was reported. It stays so.
        ended: bool,
        is_shut_down: bool,
    },
    Cm(CmControl),
}

impl ControlChannel {
    /// Wraps a non-blocking socket.
    pub(super) fn from_socket(socket: TcpStream) -> Self {
        Self::Socket { socket: Arc::new(socket), peer_ended: false, ended: false, is_shut_down: false }
    }

    /// The socket. From now on fewer than [`CONTROL_BYTES`] received bytes make no event. Its end
    /// always makes one.
    pub(super) fn without_wake_ups(&self) -> Option<Arc<TcpStream>> {
        let Self::Socket { socket, .. } = self else { return None };
        if let Err(error) = set_receive_low_water_mark(socket, CONTROL_BYTES) {
            tracing::debug!(%error, "bytes of the control connection will wake the program");
        }
        Some(socket.clone())
    }

    pub(super) fn socket(&self) -> Option<RawFd> {
        match self {
            Self::Socket { socket, .. } => Some(socket.as_raw_fd()),
            Self::Cm(_) => None,
        }
    }

    pub(super) fn descriptor(&self) -> RawFd {
        match self {
            Self::Socket { socket, .. } => socket.as_raw_fd(),
            Self::Cm(cm) => cm.channel.as_fd().as_raw_fd(),
        }
    }

    pub(super) fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        match self {
            Self::Socket { socket, .. } => {
                registry.register(&mut SourceFd(&socket.as_raw_fd()), token, Interest::READABLE)
            }
            Self::Cm(cm) => {
                let channel = cm.channel.as_fd().as_raw_fd();
                registry.register(&mut SourceFd(&channel), token, Interest::READABLE)
            }
        }
    }

    pub(super) fn deregister(&mut self, registry: &Registry) -> io::Result<()> {
        match self {
            Self::Socket { socket, .. } => registry.deregister(&mut SourceFd(&socket.as_raw_fd())),
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
            Self::Socket { .. } => sources.add(self.descriptor(), libc::POLLRDHUP),
            Self::Cm(cm) if cm.ended => (),
            Self::Cm(_) => sources.add(self.descriptor(), libc::POLLIN),
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

    /// Shuts the socket down once, if the channel is one.
    pub(super) fn shut_down(&mut self) {
        if let Self::Socket { socket, is_shut_down, .. } = self
            && !replace(is_shut_down, true)
            && let Err(error) = socket.shutdown(Shutdown::Both)
        {
            tracing::trace!(%error, "the socket of a connection was gone already");
        }
    }

    /// Closes the channel, so that the peer notices even if this side's program does nothing for a
    /// long time.
    pub(super) fn disconnect(&mut self) {
        match self {
            Self::Socket { .. } => self.shut_down(),
            Self::Cm(cm) => {
                if let Err(error) = cm.id.disconnect() {
                    tracing::trace!(%error, "the connection was over already");
                }
            }
        }
    }
}

/// The number of received bytes from which the system reports the socket as readable.
fn set_receive_low_water_mark(socket: &TcpStream, bytes: usize) -> io::Result<()> {
    let bytes = libc::c_int::try_from(bytes).map_err(io::Error::other)?;
    let len = size_of_val(&bytes) as libc::socklen_t;
    // SAFETY: the value lives for the call, which reads `len` bytes of it. The descriptor is open,
    // because the socket is borrowed.
    let error = unsafe {
        let value = (&raw const bytes).cast();
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVLOWAT, value, len)
    };
    if error == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
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
