//! Listening, connecting, accepting, rejecting and disconnecting.

use std::io;

use rdma_mummy_sys::types::ibv_event_type;

use super::address::{Address, perhaps};
use super::identifier::{Identifier, IdentifierState, NoDevice, NoDeviceOr};
use super::parameter::{ConnectionParameter, Message, private_data_limit};
use crate::ibverbs::Unsupported;
use crate::ibverbs::event::AsyncEventType;

impl Identifier {
    /// Listens for requests (`rdma_listen`), with at most `backlog` requests unanswered. Each
    /// request is an event [`ConnectRequest`](super::EventType::ConnectRequest) with a new
    /// identifier.
    ///
    /// An identifier without an address is bound to any address, and to a port that the system
    /// chooses. The system also limits the backlog; 0 or less selects that limit.
    ///
    /// # Errors
    ///
    /// Fails if the port is in use, or if the identifier is not [bound](Self::bind_addr).
    ///
    /// # References
    ///
    /// `man rdma_listen`
    pub fn listen(&self, backlog: i32) -> Result<(), ListenError> {
        // SAFETY: `call` passes a live identifier, under its channel's lock.
        let result =
            self.call(Some(IdentifierState::Listening), |lib, id| unsafe { (lib.rdma_listen)(id, backlog) });
        result.map_err(|source| {
            let (address, state) = (self.local_addr(), self.state());
            match source.raw_os_error() {
                Some(libc::EADDRINUSE) => ListenError::AddressInUse { address, source },
                Some(libc::EINVAL) if !matches!(state, IdentifierState::Idle | IdentifierState::Bound) => {
                    ListenError::State { state, source }
                }
                _ => ListenError::Rdmacm { address, backlog, source },
            }
        })
    }

    /// Requests a connection to the peer (`rdma_connect`), or the queue pair of its datagram
    /// service.
    ///
    /// One of these events follows:
    ///
    /// - [`ConnectResponse`](super::EventType::ConnectResponse) when the peer has accepted. Then
    ///   bring the queue pair to ready-to-send, and call [`establish`](Self::establish).
    /// - [`Established`](super::EventType::Established) for a datagram service.
    /// - An event with an error ([`Event::error`](super::Event::error)).
    ///
    /// # Errors
    ///
    /// Fails if the route is not resolved, if the private data is too long, or if the parameters
    /// exceed the device's limits.
    ///
    /// # References
    ///
    /// `man rdma_connect`
    pub fn connect(&self, parameter: &ConnectionParameter) -> Result<(), ConnectError> {
        let message = Message::Request;
        self.check_length(message, parameter.private_data_length())?;
        let mut raw = parameter.raw();
        let result = self.call_with_device(Some(IdentifierState::Connecting), |lib, id| {
            // SAFETY: `call_with_device` passes a live identifier with a device, under its
            // channel's lock. The parameters and their data outlive the call.
            unsafe { (lib.rdma_connect)(id, &raw mut raw) }
        });
        result.map_err(|error| {
            let source = match error {
                NoDeviceOr::NoDevice(lacking) => return lacking.into(),
                NoDeviceOr::Rdmacm(source) => source,
            };
            if source.raw_os_error() == Some(libc::EINVAL) {
                if let Some(too_long) = self.too_long(message, parameter.private_data_length()) {
                    return too_long.into();
                }
                let state = self.state();
                if state != IdentifierState::RouteResolved {
                    return ConnectError::State { state, source };
                }
            }
            ConnectError::Rdmacm { peer: self.peer_addr(), parameter: Box::new(*parameter), source }
        })
    }

    /// Accepts a peer's request (`rdma_accept`).
    ///
    /// For a connection, first bring the queue pair to ready-to-send with
    /// [`get_qp_attr`](Self::get_qp_attr); the event [`Established`](super::EventType::Established)
    /// follows. For a datagram service, the peer gets the queue pair's number, and no event
    /// follows.
    ///
    /// # Errors
    ///
    /// Fails if the identifier has no unanswered request, or if the peer is gone. Also fails if the
    /// private data is too long, or if the parameters exceed the device's limits.
    ///
    /// # References
    ///
    /// `man rdma_accept`
    pub fn accept(&self, parameter: &ConnectionParameter) -> Result<(), AcceptError> {
        let message = Message::Reply;
        self.check_length(message, parameter.private_data_length())?;
        let mut raw = parameter.raw();
        let then = match self.0.is_datagram() {
            true => IdentifierState::Connected,
            false => IdentifierState::Connecting,
        };
        let result = self.call_with_device(Some(then), |lib, id| {
            // SAFETY: `call_with_device` passes a live identifier with a device, under its
            // channel's lock. The parameters and their data outlive the call.
            unsafe { (lib.rdma_accept)(id, &raw mut raw) }
        });
        result.map_err(|error| {
            let source = match error {
                NoDeviceOr::NoDevice(lacking) => return lacking.into(),
                NoDeviceOr::Rdmacm(source) => source,
            };
            if source.raw_os_error() == Some(libc::EINVAL) {
                if let Some(too_long) = self.too_long(message, parameter.private_data_length()) {
                    return too_long.into();
                }
                let state = self.state();
                if state != IdentifierState::Requested {
                    return AcceptError::State { state, source };
                }
            }
            AcceptError::Rdmacm { peer: self.peer_addr(), parameter: Box::new(*parameter), source }
        })
    }

    /// Rejects a peer's request or response (`rdma_reject`), with a reason for its program. The
    /// peer's event [`Rejected`](super::EventType::Rejected) carries the data, at most 148 bytes on
    /// InfiniBand and RoCE.
    ///
    /// # Errors
    ///
    /// Fails if there is nothing to reject, if the peer is gone, or if the private data is too
    /// long.
    ///
    /// # References
    ///
    /// `man rdma_reject`
    pub fn reject(&self, private_data: &[u8]) -> Result<(), RejectError> {
        let length = self.check_length(Message::Reject, private_data.len())?;
        // SAFETY: `call` passes a live identifier, under its channel's lock; the data outlives the
        // call.
        let result = self.call(Some(IdentifierState::Rejected), |lib, id| unsafe {
            (lib.rdma_reject)(id, private_data.as_ptr().cast(), length)
        });
        result.map_err(|source| self.reject_error("rdma_reject", private_data.len(), source))
    }

    /// Rejects a peer's request because of its vendor's options (`rdma_reject_ece`): see
    /// [`ece`](crate::ibverbs::ece).
    ///
    /// # Errors
    ///
    /// Fails as [`reject`](Self::reject) does, and if the library is too old ([`Unsupported`]).
    ///
    /// # References
    ///
    /// `man rdma_reject`
    pub fn reject_ece(&self, private_data: &[u8]) -> Result<(), RejectError> {
        let length = self.check_length(Message::Reject, private_data.len())?;
        let reject = self.lib().rdma_reject_ece();
        let reject =
            reject.map_err(|symbol| Unsupported::of_library("rejection of vendor's options", symbol))?;
        // SAFETY: `call` passes a live identifier, under its channel's lock; the data outlives the
        // call.
        let result = self.call(Some(IdentifierState::Rejected), |_, id| unsafe {
            reject(id, private_data.as_ptr().cast(), length)
        });
        result.map_err(|source| self.reject_error("rdma_reject_ece", private_data.len(), source))
    }

    #[cold]
    fn reject_error(&self, call: &'static str, length: usize, source: io::Error) -> RejectError {
        if source.raw_os_error() == Some(libc::EINVAL) {
            if let Some(too_long) = self.too_long(Message::Reject, length) {
                return too_long.into();
            }
            let state = self.state();
            if !matches!(state, IdentifierState::Requested | IdentifierState::Responded) {
                return RejectError::State { state, source };
            }
        }
        RejectError::Rdmacm { call, peer: self.peer_addr(), source }
    }

    /// Tells the peer that the connection is established (`rdma_establish`). Call it after
    /// [`ConnectResponse`](super::EventType::ConnectResponse), when the queue pair is ready to
    /// send.
    ///
    /// # Errors
    ///
    /// Fails if there is no response, or if the library is too old ([`Unsupported`]).
    ///
    /// # References
    ///
    /// `man rdma_establish`
    pub fn establish(&self) -> Result<(), EstablishError> {
        let establish = self.lib().rdma_establish();
        let establish = establish
            .map_err(|symbol| Unsupported::of_library("connections of queue pairs made elsewhere", symbol))?;
        // SAFETY: `call` passes a live identifier, under its channel's lock.
        let result = self.call(Some(IdentifierState::Connected), |_, id| unsafe { establish(id) });
        result.map_err(|source| match source.raw_os_error() {
            Some(libc::EINVAL) if self.state() != IdentifierState::Responded => {
                EstablishError::State { state: self.state(), source }
            }
            _ => EstablishError::Rdmacm { peer: self.peer_addr(), source },
        })
    }

    /// Closes the connection (`rdma_disconnect`), or answers a peer that closed it.
    ///
    /// The event [`Disconnected`](super::EventType::Disconnected) comes to the peer. It comes here
    /// when the peer has answered, by this call or by dropping its identifier, or after a timeout
    /// with the status `ETIMEDOUT`.
    ///
    /// The queue pair is not changed: its outstanding requests end when the program brings it to
    /// the error state.
    ///
    /// # Errors
    ///
    /// Fails if there is no connection.
    ///
    /// # References
    ///
    /// `man rdma_disconnect`
    pub fn disconnect(&self) -> Result<(), DisconnectError> {
        // SAFETY: `call_with_device` passes a live identifier with a device, under its channel's
        // lock.
        let result = self.call_with_device(None, |lib, id| unsafe { (lib.rdma_disconnect)(id) });
        result.map_err(|error| match error {
            NoDeviceOr::NoDevice(lacking) => lacking.into(),
            NoDeviceOr::Rdmacm(source) => match (source.raw_os_error(), self.state()) {
                (Some(libc::EINVAL | libc::ENOTCONN), state) if state != IdentifierState::Connected => {
                    DisconnectError::State { state, source }
                }
                _ => DisconnectError::Rdmacm { peer: self.peer_addr(), source },
            },
        })
    }

    /// Tells the connection manager about an event of the queue pair (`rdma_notify`):
    /// [`CommunicationEstablished`](AsyncEventType::CommunicationEstablished), if a message came
    /// before the peer's last handshake message.
    ///
    /// # Errors
    ///
    /// Fails with `EISCONN` if the connection is already established, which is harmless. Also fails
    /// if no connection is being made.
    ///
    /// # References
    ///
    /// `man rdma_notify`
    pub fn notify(&self, event: AsyncEventType) -> Result<(), NotifyError> {
        // SAFETY: `call` passes a live identifier, under its channel's lock; the library accepts
        // any event type.
        let result = self.call(None, |lib, id| unsafe { (lib.rdma_notify)(id, ibv_event_type(event.raw())) });
        result.map_err(|source| NotifyError { event, state: self.state(), source })
    }

    /// The length for C's 8-bit field, if it fits.
    fn check_length(&self, message: Message, length: usize) -> Result<u8, PrivateDataTooLong> {
        u8::try_from(length).map_err(|_| PrivateDataTooLong { length, limit: self.limit(message) })
    }

    /// The error, if data of this length exceeds what the transport carries.
    fn too_long(&self, message: Message, length: usize) -> Option<PrivateDataTooLong> {
        let limit = self.limit(message);
        (length > limit).then_some(PrivateDataTooLong { length, limit })
    }

    fn limit(&self, message: Message) -> usize {
        private_data_limit(message, self.port_space(), self.0.is_datagram())
    }
}

/// Private data is longer than the message that is to carry it has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{length} bytes of private data are too many: {limit} at most")]
pub struct PrivateDataTooLong {
    /// How long it is.
    pub length: usize,
    /// How long it can be, on InfiniBand and RoCE.
    pub limit: usize,
}

/// An identifier does not listen.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListenError {
    /// Somebody else listens there.
    #[error("cannot listen at {}: the port is in use", perhaps(.address))]
    AddressInUse {
        /// Where.
        address: Option<Address>,
        /// What the library said.
        source: io::Error,
    },
    /// The identifier is for something else by now.
    #[error("the identifier cannot listen: it is {state} ({source})")]
    State {
        /// How far it had come.
        state: IdentifierState,
        /// What the library said.
        source: io::Error,
    },
    /// The library refused.
    #[error("rdma_listen failed at {} with a backlog of {backlog}: {source}", perhaps(.address))]
    Rdmacm {
        /// Where.
        address: Option<Address>,
        /// How many unanswered requests were wished for.
        backlog: i32,
        /// What the library said.
        source: io::Error,
    },
}

/// A connection was not asked for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// There is no device.
    #[error(transparent)]
    NoDevice(#[from] NoDevice),
    /// The private data is too long.
    #[error("cannot connect: {0}")]
    PrivateData(#[from] PrivateDataTooLong),
    /// The route is not resolved.
    #[error("the identifier cannot connect: it is {state} ({source})")]
    State {
        /// How far it had come.
        state: IdentifierState,
        /// What the library said.
        source: io::Error,
    },
    /// The library refused: more reads and atomics than the device can do, for instance.
    #[error("rdma_connect failed to {} with {parameter:?}: {source}", perhaps(.peer))]
    Rdmacm {
        /// The peer's address.
        peer: Option<Address>,
        /// What was asked for.
        parameter: Box<ConnectionParameter>,
        /// What the library said.
        source: io::Error,
    },
}

/// A request was not accepted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AcceptError {
    /// There is no device.
    #[error(transparent)]
    NoDevice(#[from] NoDevice),
    /// The private data is too long.
    #[error("cannot accept: {0}")]
    PrivateData(#[from] PrivateDataTooLong),
    /// There is no request, or not any more.
    #[error("there is no request to accept: the identifier is {state} ({source})")]
    State {
        /// How far it had come.
        state: IdentifierState,
        /// What the library said.
        source: io::Error,
    },
    /// The library refused: the peer has gone, or more reads and atomics than the device can do,
    /// for instance.
    #[error("rdma_accept failed for {} with {parameter:?}: {source}", perhaps(.peer))]
    Rdmacm {
        /// The peer's address.
        peer: Option<Address>,
        /// What was offered.
        parameter: Box<ConnectionParameter>,
        /// What the library said.
        source: io::Error,
    },
}

/// A request was not rejected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RejectError {
    /// The library has no such function.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    /// The private data is too long.
    #[error("cannot reject: {0}")]
    PrivateData(#[from] PrivateDataTooLong),
    /// There is no request, or not any more.
    #[error("there is nothing to reject: the identifier is {state} ({source})")]
    State {
        /// How far it had come.
        state: IdentifierState,
        /// What the library said.
        source: io::Error,
    },
    /// The library refused.
    #[error("{call} failed for {}: {source}", perhaps(.peer))]
    Rdmacm {
        /// What was called.
        call: &'static str,
        /// The peer's address.
        peer: Option<Address>,
        /// What the library said.
        source: io::Error,
    },
}

/// A connection was not established.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EstablishError {
    /// The library has no such function.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    /// There is no response of the peer's.
    #[error("there is nothing to establish: the identifier is {state} ({source})")]
    State {
        /// How far it had come.
        state: IdentifierState,
        /// What the library said.
        source: io::Error,
    },
    /// The library refused.
    #[error("rdma_establish failed for {}: {source}", perhaps(.peer))]
    Rdmacm {
        /// The peer's address.
        peer: Option<Address>,
        /// What the library said.
        source: io::Error,
    },
}

/// A connection was not closed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DisconnectError {
    /// There is no device, and so no connection.
    #[error(transparent)]
    NoDevice(#[from] NoDevice),
    /// There is no connection.
    #[error("there is nothing to disconnect: the identifier is {state} ({source})")]
    State {
        /// How far it had come.
        state: IdentifierState,
        /// What the library said.
        source: io::Error,
    },
    /// The library refused.
    #[error("rdma_disconnect failed for {}: {source}", perhaps(.peer))]
    Rdmacm {
        /// The peer's address.
        peer: Option<Address>,
        /// What the library said.
        source: io::Error,
    },
}

/// The connection manager was not told.
#[derive(Debug, thiserror::Error)]
#[error("rdma_notify failed with {event}, of an identifier that is {state}: {source}")]
pub struct NotifyError {
    /// What it was to be told.
    pub event: AsyncEventType,
    /// How far the identifier had come.
    pub state: IdentifierState,
    /// What the library said.
    pub source: io::Error,
}
