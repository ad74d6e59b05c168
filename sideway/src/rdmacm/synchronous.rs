//! Blocking connections without event handling: each call sleeps until it is done.

use std::time::{Duration, Instant};

use rdma_mummy_sys::Provider;

use super::address::Address;
use super::channel::EventChannel;
use super::event::{ConnectionInfo, DatagramInfo, Event, EventError, EventType};
use super::identifier::{Identifier, PortSpace};
use super::identifier_state::IdentifierState;
use super::parameter::ConnectionParameter;
use crate::error::Error;
use crate::ibverbs::device_context::DeviceContext;
use crate::ibverbs::queue_pair::{ModifyQueuePairError, QueuePair, QueuePairState, QueuePairType};

/// The active side of a connection, without events: an identifier with a route, on a separate
/// channel.
///
/// Connecting a queue pair of [its device](Self::get_device_context) makes it a [`Connection`].
#[derive(Debug)]
pub struct Connector {
    id: Identifier,
    limit: Option<Duration>,
}

impl Connector {
    /// Resolves address and route of a listening peer, with the default provider. Each of the two
    /// may take up to `timeout`.
    ///
    /// # Errors
    ///
    /// Fails if there is no connection manager, no address or no route.
    pub fn resolve(destination: impl Into<Address>, timeout: Duration) -> Result<Self, ConnectError> {
        Self::of_channel(EventChannel::new()?, destination.into(), timeout)
    }

    /// The same with `provider`.
    ///
    /// # Errors
    ///
    /// Fails as [`resolve`](Self::resolve) does.
    pub fn resolve_of(
        provider: Provider,
        destination: impl Into<Address>,
        timeout: Duration,
    ) -> Result<Self, ConnectError> {
        Self::of_channel(EventChannel::from_provider(provider)?, destination.into(), timeout)
    }

    fn of_channel(
        channel: EventChannel,
        destination: Address,
        timeout: Duration,
    ) -> Result<Self, ConnectError> {
        Self::with_id(channel.create_id(PortSpace::Tcp)?, None, destination, timeout)
    }

    /// The same with the program's own identifier: for another port space, bound, or with options.
    /// It is moved to a separate channel.
    ///
    /// # Errors
    ///
    /// Fails as [`resolve`](Self::resolve) does.
    pub fn with_id(
        id: Identifier,
        source: Option<Address>,
        destination: impl Into<Address>,
        timeout: Duration,
    ) -> Result<Self, ConnectError> {
        alone(&id)?;
        id.resolve_addr(source, destination, timeout)?;
        expect(&id, EventType::AddressResolved, None)?;
        id.resolve_route(timeout)?;
        expect(&id, EventType::RouteResolved, None)?;
        Ok(Self { id, limit: None })
    }

    /// Sets how long [`connect`](Self::connect) waits for the peer's response. Without a limit, the
    /// connection manager's timeout applies.
    pub fn set_timeout(&mut self, limit: Option<Duration>) -> &mut Self {
        self.limit = limit;
        self
    }

    /// The identifier, for options and addresses.
    pub fn id(&self) -> &Identifier {
        &self.id
    }

    /// The device that leads to the peer.
    ///
    /// # Errors
    ///
    /// Fails as [`Identifier::get_device_context`] does.
    pub fn get_device_context(&self) -> Result<DeviceContext, Error> {
        self.id.get_device_context()
    }

    /// Brings a new queue pair to the state in which it accepts receives.
    /// [`connect`](Self::connect) also does this.
    ///
    /// # Errors
    ///
    /// Fails as [`Identifier::modify_qp`] does.
    pub fn prepare<Q: QueuePair>(&self, qp: &mut Q) -> Result<(), ModifyQueuePairError> {
        self.id.modify_qp(qp, QueuePairState::Init)
    }

    /// Connects, and brings the queue pair to ready-to-send; or requests the peer's datagram
    /// service. `parameter` needs no queue pair.
    ///
    /// # Errors
    ///
    /// Fails if the peer rejects or does not respond ([`ConnectError::Event`]), or if one of
    /// the steps fails.
    pub fn connect<Q: QueuePair>(
        self,
        qp: &mut Q,
        parameter: &ConnectionParameter,
    ) -> Result<Connection, ConnectError> {
        make_ready(&self.id, qp)?;
        let mut parameter = *parameter;
        self.id.connect(parameter.setup_queue_pair(qp.control()))?;
        if is_datagram(qp) {
            let event = expect(&self.id, EventType::Established, self.limit)?;
            return Ok(Connection::new(self.id, &event));
        }
        let event = expect(&self.id, EventType::ConnectResponse, self.limit)?;
        self.id.modify_qp(qp, QueuePairState::ReadyToReceive)?;
        self.id.modify_qp(qp, QueuePairState::ReadyToSend)?;
        self.id.establish()?;
        Ok(Connection::new(self.id, &event))
    }
}

/// The passive side, without events: a listening identifier on a separate channel.
#[derive(Debug)]
pub struct Listener {
    id: Identifier,
}

impl Listener {
    /// Listens for connections at an address, with the default provider and at most `backlog`
    /// unanswered requests.
    ///
    /// # Errors
    ///
    /// Fails if there is no connection manager, if the address does not belong to an RDMA device,
    /// or if the port is in use.
    pub fn bind(address: impl Into<Address>, backlog: i32) -> Result<Self, ConnectError> {
        Self::of_channel(EventChannel::new()?, address.into(), backlog)
    }

    /// The same with `provider`.
    ///
    /// # Errors
    ///
    /// Fails as [`bind`](Self::bind) does.
    pub fn bind_of(
        provider: Provider,
        address: impl Into<Address>,
        backlog: i32,
    ) -> Result<Self, ConnectError> {
        Self::of_channel(EventChannel::from_provider(provider)?, address.into(), backlog)
    }

    fn of_channel(channel: EventChannel, address: Address, backlog: i32) -> Result<Self, ConnectError> {
        let id = channel.create_id(PortSpace::Tcp)?;
        id.bind_addr(address)?;
        Self::with_id(id, backlog)
    }

    /// The same with the program's own identifier, which is bound: for another port space, or with
    /// options. It is moved to a separate channel.
    ///
    /// # Errors
    ///
    /// Fails if the port is in use.
    pub fn with_id(id: Identifier, backlog: i32) -> Result<Self, ConnectError> {
        alone(&id)?;
        id.listen(backlog)?;
        Ok(Self { id })
    }

    /// The identifier. [Closing](EventChannel::close) its channel wakes threads that wait for a
    /// request.
    pub fn id(&self) -> &Identifier {
        &self.id
    }

    /// The address at which it listens.
    pub fn local_addr(&self) -> Option<Address> {
        self.id.local_addr()
    }

    /// Sleeps until a peer requests a connection (like `rdma_get_request`).
    ///
    /// # Errors
    ///
    /// Fails if the channel is closed, or if no channel can be made for the request.
    pub fn get_request(&self) -> Result<ConnectionRequest, ConnectError> {
        let channel = self.id.event_channel();
        loop {
            if let Some(request) = ConnectionRequest::new(channel.get_cm_event()?)? {
                return Ok(request);
            }
        }
    }

    /// Sleeps until a peer requests a connection or `timeout` is over; `None` after the timeout.
    ///
    /// # Errors
    ///
    /// Fails as [`get_request`](Self::get_request) does.
    pub fn get_request_timeout(&self, timeout: Duration) -> Result<Option<ConnectionRequest>, ConnectError> {
        let channel = self.id.event_channel();
        let end = Instant::now().checked_add(timeout);
        loop {
            let left = end.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()));
            let Some(event) = channel.get_cm_event_timeout(left)? else { return Ok(None) };
            if let Some(request) = ConnectionRequest::new(event)? {
                return Ok(Some(request));
            }
        }
    }
}

/// A peer's request for a connection. Dropping it rejects the request.
#[derive(Debug)]
#[must_use = "dropping it rejects the request"]
pub struct ConnectionRequest {
    event: Event,
    limit: Option<Duration>,
}

impl ConnectionRequest {
    /// The request of an event; `None` if the event is of another type.
    fn new(event: Event) -> Result<Option<Self>, ConnectError> {
        if event.event_type() != EventType::ConnectRequest {
            return match event.error() {
                Some(error) => Err(error.into()),
                None => Ok(None),
            };
        }
        alone(event.cm_id())?;
        Ok(Some(Self { event, limit: None }))
    }

    /// Sets how long [`accept`](Self::accept) waits for the peer's final message. Without a limit,
    /// the connection manager's timeout applies.
    pub fn set_timeout(&mut self, limit: Option<Duration>) -> &mut Self {
        self.limit = limit;
        self
    }

    /// The request's identifier.
    pub fn id(&self) -> &Identifier {
        self.event.cm_id()
    }

    /// The peer's private data; zeros may follow it.
    pub fn private_data(&self) -> &[u8] {
        self.event.private_data()
    }

    /// The peer's parameters of the connection.
    pub fn connection(&self) -> Option<&ConnectionInfo> {
        self.event.connection()
    }

    /// The address of a request for a datagram service.
    pub fn datagram(&self) -> Option<&DatagramInfo> {
        self.event.datagram()
    }

    /// The device that received the request.
    ///
    /// # Errors
    ///
    /// Fails as [`Identifier::get_device_context`] does.
    pub fn get_device_context(&self) -> Result<DeviceContext, Error> {
        self.id().get_device_context()
    }

    /// Brings a new queue pair to the state in which it accepts receives. [`accept`](Self::accept)
    /// also does this.
    ///
    /// # Errors
    ///
    /// Fails as [`Identifier::modify_qp`] does.
    pub fn prepare<Q: QueuePair>(&self, qp: &mut Q) -> Result<(), ModifyQueuePairError> {
        self.id().modify_qp(qp, QueuePairState::Init)
    }

    /// Accepts, with the queue pair ready to send; or sends the datagram queue pair's number to the
    /// peer. `parameter` needs no queue pair.
    ///
    /// # Errors
    ///
    /// Fails if the peer is gone, or if one of the steps fails.
    pub fn accept<Q: QueuePair>(
        self,
        qp: &mut Q,
        parameter: &ConnectionParameter,
    ) -> Result<Connection, ConnectError> {
        let id = self.id();
        make_ready(id, qp)?;
        if !is_datagram(qp) {
            id.modify_qp(qp, QueuePairState::ReadyToReceive)?;
            id.modify_qp(qp, QueuePairState::ReadyToSend)?;
        }
        let mut parameter = *parameter;
        id.accept(parameter.setup_queue_pair(qp.control()))?;
        if !is_datagram(qp) {
            expect(id, EventType::Established, self.limit)?;
        }
        Ok(Connection::new(id.clone(), &self.event))
    }

    /// Rejects the request, with a reason for the peer's program.
    ///
    /// # Errors
    ///
    /// Fails as [`Identifier::reject`] does.
    pub fn reject(self, private_data: &[u8]) -> Result<(), Error> {
        self.id().reject(private_data)
    }
}

/// An established connection, or a known datagram service. Dropping it disconnects.
#[derive(Debug)]
pub struct Connection {
    id: Identifier,
    limit: Option<Duration>,
    private_data: Vec<u8>,
    connection: Option<ConnectionInfo>,
    datagram: Option<DatagramInfo>,
}

impl Connection {
    fn new(id: Identifier, event: &Event) -> Self {
        let (connection, datagram) = (event.connection().copied(), event.datagram().copied());
        Self { id, limit: None, private_data: event.private_data().to_vec(), connection, datagram }
    }

    /// The identifier, for addresses and events.
    pub fn id(&self) -> &Identifier {
        &self.id
    }

    /// The peer's private data; zeros may follow it.
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// The peer's parameters of the connection.
    pub fn connection(&self) -> Option<&ConnectionInfo> {
        self.connection.as_ref()
    }

    /// The destination for datagrams to the peer.
    pub fn datagram(&self) -> Option<&DatagramInfo> {
        self.datagram.as_ref()
    }

    /// Sets how long [`disconnect`](Self::disconnect) waits for the peer's response. Without a
    /// limit, the connection manager's timeout applies.
    pub fn set_timeout(&mut self, limit: Option<Duration>) -> &mut Self {
        self.limit = limit;
        self
    }

    /// Closes the connection, and sleeps until the peer has responded, or until the connection
    /// manager stops waiting for that.
    ///
    /// The queue pair is not changed: see [`Identifier::disconnect`]. If the peer disconnected
    /// before, or for a datagram service, there is nothing to close. The program itself may take
    /// the event that reports the end of the connection.
    ///
    /// # Errors
    ///
    /// Fails if the channel is closed, if the device was removed, or if the
    /// [limit](Self::set_timeout) was reached.
    pub fn disconnect(self) -> Result<(), ConnectError> {
        // Without a connection, some systems accept the call, but no event follows.
        if self.has_ended()? || self.datagram.is_some() {
            return Ok(());
        }
        self.id.disconnect()?;
        match (self.wait_ended(self.limit)?, self.limit) {
            (false, Some(limit)) => Err(ConnectError::TimedOut { wanted: EventType::Disconnected, limit }),
            _ => Ok(()),
        }
    }

    /// Sleeps until the peer has disconnected or `timeout` is over, and responds to it; false after
    /// the timeout.
    ///
    /// # Errors
    ///
    /// Fails if the channel is closed, or if the device was removed.
    pub fn wait_disconnected(&self, timeout: Duration) -> Result<bool, ConnectError> {
        if !self.wait_ended(Some(timeout))? {
            return Ok(false);
        }
        // Spares the peer its timeout. An error is only logged, because the peer may be gone.
        if let Err(error) = self.id.disconnect() {
            log::debug!("no answer to a peer that hung up: {error}");
        }
        Ok(true)
    }

    /// Whether the connection has ended, according to the events that were taken.
    fn has_ended(&self) -> Result<bool, ConnectError> {
        match self.id.state() {
            IdentifierState::DeviceRemoved => {
                Err(EventError::DeviceRemoved { local: self.id.local_addr() }.into())
            }
            state => Ok(state != IdentifierState::Connected),
        }
    }

    /// Sleeps until the connection has ended, even if the peer did not respond; false after the
    /// limit.
    fn wait_ended(&self, limit: Option<Duration>) -> Result<bool, ConnectError> {
        let end = limit.and_then(|limit| Instant::now().checked_add(limit));
        loop {
            // An event changes the state in any thread and on any channel that takes it, so the
            // state is checked in intervals.
            if self.has_ended()? {
                return Ok(true);
            }
            let left = end.map_or(LOOK_AGAIN, |end| end.saturating_duration_since(Instant::now()));
            let event = self.id.event_channel().get_cm_event_timeout(left.min(LOOK_AGAIN))?;
            match event {
                Some(event) => {
                    log::debug!("{} of {:?} while its end is waited for", event.event_type(), self.id)
                }
                None if left.is_zero() => return Ok(false),
                None => {}
            }
        }
    }
}

/// The interval at which a wait checks for events that another thread has taken.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Moves an identifier to a new channel, so that all events there belong to it.
fn alone(id: &Identifier) -> Result<(), ConnectError> {
    let channel = EventChannel::from_provider(id.provider())?;
    Ok(id.migrate(&channel)?)
}

/// Waits for an event of an identifier that is alone on its channel. Skips other events, unless
/// they report a failure.
fn expect(id: &Identifier, wanted: EventType, limit: Option<Duration>) -> Result<Event, ConnectError> {
    let channel = id.event_channel();
    let end = limit.and_then(|limit| Instant::now().checked_add(limit));
    loop {
        let event = match end {
            None => channel.get_cm_event()?,
            Some(end) => {
                let left = end.saturating_duration_since(Instant::now());
                let event = channel.get_cm_event_timeout(left)?;
                event.ok_or(ConnectError::TimedOut { wanted, limit: limit.unwrap_or_default() })?
            }
        };
        if let Some(error) = event.error() {
            return Err(error.into());
        }
        match event.event_type() {
            found if found == wanted => return Ok(event),
            EventType::Disconnected => return Err(ConnectError::Disconnected { wanted }),
            other => log::debug!("{other} of {id:?} while waiting for {wanted}"),
        }
    }
}

fn is_datagram<Q: QueuePair>(qp: &Q) -> bool {
    qp.qp_type() == QueuePairType::UnreliableDatagram
}

/// Brings a new queue pair to the state in which it accepts receives; a datagram pair goes to
/// ready-to-send.
fn make_ready<Q: QueuePair>(id: &Identifier, qp: &mut Q) -> Result<(), ConnectError> {
    if qp.state()? == QueuePairState::Reset {
        id.modify_qp(qp, QueuePairState::Init)?;
    }
    if is_datagram(qp) && qp.state()? == QueuePairState::Init {
        id.modify_qp(qp, QueuePairState::ReadyToReceive)?;
        id.modify_qp(qp, QueuePairState::ReadyToSend)?;
    }
    Ok(())
}

/// A connection could not be made or closed.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// A call failed: [`Error::verb`] names it.
    #[error(transparent)]
    Call(#[from] Error),
    /// The queue pair did not reach a state.
    #[error(transparent)]
    Modify(#[from] ModifyQueuePairError),
    /// An event reports the failure: the peer rejects, for example, or does not answer.
    #[error(transparent)]
    Event(#[from] EventError),
    /// The peer disconnected first.
    #[error("the peer disconnected before {wanted}")]
    Disconnected {
        /// The event that was expected.
        wanted: EventType,
    },
    /// The time limit passed.
    #[error("no event {wanted} came within {limit:?}")]
    TimedOut {
        /// The event that was expected.
        wanted: EventType,
        /// The time limit.
        limit: Duration,
    },
}

debug_as_text!(ConnectError);
