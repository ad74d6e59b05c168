//! Listening, connecting, accepting, rejecting and disconnecting.

use std::io;

use rdma_mummy_sys::types::ibv_event_type;

use super::address::perhaps;
use super::identifier::{CallError, Identifier, wrong_state};
use super::identifier_state::IdentifierState;
use super::parameter::{CmMessage, ConnectionParameter, private_data_limit};
use crate::error::{Error, ErrorKind};
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
    pub fn listen(&self, backlog: i32) -> Result<(), Error> {
        // SAFETY: `call` passes a live identifier, under its channel's lock.
        let result =
            self.call(Some(IdentifierState::Listening), |lib, id| unsafe { (lib.rdma_listen)(id, backlog) });
        result.map_err(|source| {
            let (address, state) = (self.local_addr(), self.state());
            match source.raw_os_error() {
                Some(libc::EADDRINUSE) => Error::os("rdma_listen", source)
                    .of_kind(ErrorKind::AddressInUse)
                    .with("address", perhaps(&address))
                    .reason("the port is in use"),
                Some(libc::EINVAL) if !matches!(state, IdentifierState::Idle | IdentifierState::Bound) => {
                    wrong_state("rdma_listen", state, source)
                }
                _ => Error::os("rdma_listen", source)
                    .with("address", perhaps(&address))
                    .with("backlog", backlog),
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
    pub fn connect(&self, parameter: &ConnectionParameter) -> Result<(), Error> {
        let message = CmMessage::Request;
        self.check_length("rdma_connect", message, parameter.private_data_length())?;
        let mut raw = parameter.raw();
        let result = self.call_with_device(Some(IdentifierState::Connecting), |lib, id| {
            // SAFETY: `call_with_device` passes a live identifier with a device, under its
            // channel's lock. The parameters and their data outlive the call.
            unsafe { (lib.rdma_connect)(id, &raw mut raw) }
        });
        result.map_err(|error| {
            let source = match error {
                CallError::NoDevice(lacking) => return lacking.error("rdma_connect"),
                CallError::Rdmacm(source) => source,
            };
            self.message_error("rdma_connect", message, parameter.private_data_length(), source, |state| {
                state == IdentifierState::RouteResolved
            })
            .debug("parameter", parameter)
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
    pub fn accept(&self, parameter: &ConnectionParameter) -> Result<(), Error> {
        let message = CmMessage::Reply;
        self.check_length("rdma_accept", message, parameter.private_data_length())?;
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
                CallError::NoDevice(lacking) => return lacking.error("rdma_accept"),
                CallError::Rdmacm(source) => source,
            };
            self.message_error("rdma_accept", message, parameter.private_data_length(), source, |state| {
                state == IdentifierState::Requested
            })
            .debug("parameter", parameter)
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
    pub fn reject(&self, private_data: &[u8]) -> Result<(), Error> {
        let length = self.check_length("rdma_reject", CmMessage::Reject, private_data.len())?;
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
    pub fn reject_ece(&self, private_data: &[u8]) -> Result<(), Error> {
        let length = self.check_length("rdma_reject_ece", CmMessage::Reject, private_data.len())?;
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
    fn reject_error(&self, call: &'static str, length: usize, source: io::Error) -> Error {
        self.message_error(call, CmMessage::Reject, length, source, |state| {
            matches!(state, IdentifierState::Requested | IdentifierState::Responded)
        })
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
    pub fn establish(&self) -> Result<(), Error> {
        let establish = self.lib().rdma_establish();
        let establish = establish
            .map_err(|symbol| Unsupported::of_library("connections of queue pairs made elsewhere", symbol))?;
        // SAFETY: `call` passes a live identifier, under its channel's lock.
        let result = self.call(Some(IdentifierState::Connected), |_, id| unsafe { establish(id) });
        result.map_err(|source| match source.raw_os_error() {
            Some(libc::EINVAL) if self.state() != IdentifierState::Responded => {
                wrong_state("rdma_establish", self.state(), source)
            }
            _ => Error::os("rdma_establish", source).with("peer", perhaps(&self.peer_addr())),
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
    pub fn disconnect(&self) -> Result<(), Error> {
        // SAFETY: `call_with_device` passes a live identifier with a device, under its channel's
        // lock.
        let result = self.call_with_device(None, |lib, id| unsafe { (lib.rdma_disconnect)(id) });
        result.map_err(|error| match error {
            CallError::NoDevice(lacking) => lacking.error("rdma_disconnect"),
            CallError::Rdmacm(source) => match (source.raw_os_error(), self.state()) {
                (Some(libc::EINVAL | libc::ENOTCONN), state) if state != IdentifierState::Connected => {
                    wrong_state("rdma_disconnect", state, source)
                }
                _ => Error::os("rdma_disconnect", source).with("peer", perhaps(&self.peer_addr())),
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
    pub fn notify(&self, event: AsyncEventType) -> Result<(), Error> {
        // SAFETY: `call` passes a live identifier, under its channel's lock; the library accepts
        // any event type.
        let result = self.call(None, |lib, id| unsafe { (lib.rdma_notify)(id, ibv_event_type(event.raw())) });
        result.map_err(|source| {
            Error::os("rdma_notify", source).with("event", event).with("state", self.state())
        })
    }

    /// The length for C's 8-bit field, if it fits.
    fn check_length(&self, verb: &'static str, message: CmMessage, length: usize) -> Result<u8, Error> {
        u8::try_from(length).map_err(|_| {
            Error::not_called(verb, ErrorKind::PrivateDataTooLong, TOO_LONG)
                .with("length", length)
                .with("limit", self.limit(message))
        })
    }

    /// Why a message with private data was not sent.
    #[cold]
    fn message_error(
        &self,
        verb: &'static str,
        message: CmMessage,
        length: usize,
        source: io::Error,
        is_allowed: impl FnOnce(IdentifierState) -> bool,
    ) -> Error {
        let (limit, state) = (self.limit(message), self.state());
        match source.raw_os_error() {
            Some(libc::EINVAL) if length > limit => Error::os(verb, source)
                .of_kind(ErrorKind::PrivateDataTooLong)
                .with("length", length)
                .with("limit", limit)
                .reason(TOO_LONG),
            Some(libc::EINVAL) if !is_allowed(state) => wrong_state(verb, state, source),
            _ => Error::os(verb, source).with("peer", perhaps(&self.peer_addr())),
        }
    }

    fn limit(&self, message: CmMessage) -> usize {
        private_data_limit(message, self.port_space(), self.0.is_datagram())
    }
}

const TOO_LONG: &str = "the private data is longer than the message can carry";
