//! Connections without events: whoever calls sleeps until it is done.

use std::time::{Duration, Instant};

use rdma_mummy_sys::Provider;

use super::address::Address;
use super::channel::EventChannel;
use super::event::{ConnectionInfo, DatagramInfo, Event, EventError, EventType};
use super::identifier::{Identifier, IdentifierState, PortSpace};
use super::parameter::ConnectionParameter;
use crate::error::Error;
use crate::ibverbs::device_context::DeviceContext;
use crate::ibverbs::queue_pair::{ModifyQueuePairError, QueuePair, QueuePairState, QueuePairType};

/// The active side of a connection, without events: an identifier with a route, on a channel of its own.
///
/// A queue pair of [its device](Self::get_device_context) makes it a [`Connection`].
#[derive(Debug)]
pub struct Connector {
    id: Identifier,
    limit: Option<Duration>,
}

impl Connector {
    /// Looks for address and route of a peer that listens for connections, with the default provider; each of the two may take so long.
    ///
    /// # Errors
    ///
    /// There is no connection manager, no address or no route.
    pub fn resolve(destination: impl Into<Address>, timeout: Duration) -> Result<Self, ConnectError> {
        Self::of_channel(EventChannel::new()?, destination.into(), timeout)
    }

    /// The same with this provider.
    ///
    /// # Errors
    ///
    /// As [`resolve`](Self::resolve).
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

    /// The same with an identifier of the program's: of another port space, bound, or with options. It is moved to a channel of its own.
    ///
    /// # Errors
    ///
    /// As [`resolve`](Self::resolve).
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

    /// How long [`connect`](Self::connect) waits for the peer's answer; without a limit as long as the connection manager does.
    pub fn set_timeout(&mut self, limit: Option<Duration>) -> &mut Self {
        self.limit = limit;
        self
    }

    /// The identifier.
    pub fn id(&self) -> &Identifier {
        &self.id
    }

    /// The device that leads to the peer.
    ///
    /// # Errors
    ///
    /// As [`Identifier::get_device_context`].
    pub fn get_device_context(&self) -> Result<DeviceContext, Error> {
        self.id.get_device_context()
    }

    /// Brings a new queue pair to the state in which it takes receives. [`connect`](Self::connect) does so, too.
    ///
    /// # Errors
    ///
    /// As [`Identifier::modify_qp`].
    pub fn prepare<Q: QueuePair>(&self, qp: &mut Q) -> Result<(), ModifyQueuePairError> {
        self.id.modify_qp(qp, QueuePairState::Init)
    }

    /// Connects, and brings the queue pair to ready-to-send; or asks for the peer's datagram service. `parameter` needs no queue pair.
    ///
    /// # Errors
    ///
    /// The peer rejects, or does not answer ([`ConnectError::Event`]); or one of the steps fails.
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

/// The passive side, without events: an identifier that listens, on a channel of its own.
#[derive(Debug)]
pub struct Listener {
    id: Identifier,
}

impl Listener {
    /// Listens for connections at an address, with the default provider; so many may be unanswered.
    ///
    /// # Errors
    ///
    /// There is no connection manager, the address is no RDMA device's, or the port is in use.
    pub fn bind(address: impl Into<Address>, backlog: i32) -> Result<Self, ConnectError> {
        Self::of_channel(EventChannel::new()?, address.into(), backlog)
    }

    /// The same with this provider.
    ///
    /// # Errors
    ///
    /// As [`bind`](Self::bind).
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

    /// The same with an identifier of the program's, which is bound: of another port space, or with options. It is moved to a channel of
    /// its own.
    ///
    /// # Errors
    ///
    /// The port is in use.
    pub fn with_id(id: Identifier, backlog: i32) -> Result<Self, ConnectError> {
        alone(&id)?;
        id.listen(backlog)?;
        Ok(Self { id })
    }

    /// The identifier. [Closing](EventChannel::close) its channel wakes whoever waits for a request.
    pub fn id(&self) -> &Identifier {
        &self.id
    }

    /// Where it listens.
    pub fn local_addr(&self) -> Option<Address> {
        self.id.local_addr()
    }

    /// Sleeps until somebody wants to connect (as `rdma_get_request`).
    ///
    /// # Errors
    ///
    /// The channel is closed, or no channel can be made for the request.
    pub fn get_request(&self) -> Result<ConnectionRequest, ConnectError> {
        let channel = self.id.event_channel();
        loop {
            if let Some(request) = ConnectionRequest::new(channel.get_cm_event()?)? {
                return Ok(request);
            }
        }
    }

    /// Sleeps until somebody wants to connect, at most so long; `None` if the time is over.
    ///
    /// # Errors
    ///
    /// As [`get_request`](Self::get_request).
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

/// Somebody who wants to connect. Dropping it rejects the request.
#[derive(Debug)]
#[must_use = "dropping it rejects the request"]
pub struct ConnectionRequest {
    event: Event,
    limit: Option<Duration>,
}

impl ConnectionRequest {
    /// `None` if the event is none of a request.
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

    /// How long [`accept`](Self::accept) waits for the peer's last word; without a limit as long as the connection manager does.
    pub fn set_timeout(&mut self, limit: Option<Duration>) -> &mut Self {
        self.limit = limit;
        self
    }

    /// The request's identifier.
    pub fn id(&self) -> &Identifier {
        self.event.cm_id()
    }

    /// The peer's private data; zeros may follow.
    pub fn private_data(&self) -> &[u8] {
        self.event.private_data()
    }

    /// What the peer says of the connection.
    pub fn connection(&self) -> Option<&ConnectionInfo> {
        self.event.connection()
    }

    /// Where the request for a datagram service came from.
    pub fn datagram(&self) -> Option<&DatagramInfo> {
        self.event.datagram()
    }

    /// The device that it came to.
    ///
    /// # Errors
    ///
    /// As [`Identifier::get_device_context`].
    pub fn get_device_context(&self) -> Result<DeviceContext, Error> {
        self.id().get_device_context()
    }

    /// Brings a new queue pair to the state in which it takes receives. [`accept`](Self::accept) does so, too.
    ///
    /// # Errors
    ///
    /// As [`Identifier::modify_qp`].
    pub fn prepare<Q: QueuePair>(&self, qp: &mut Q) -> Result<(), ModifyQueuePairError> {
        self.id().modify_qp(qp, QueuePairState::Init)
    }

    /// Accepts, with the queue pair ready to send; or tells the peer the datagram queue pair. `parameter` needs no queue pair.
    ///
    /// # Errors
    ///
    /// The peer has gone, or one of the steps fails.
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

    /// Rejects, and tells the peer's program why.
    ///
    /// # Errors
    ///
    /// As [`Identifier::reject`].
    pub fn reject(self, private_data: &[u8]) -> Result<(), Error> {
        self.id().reject(private_data)
    }
}

/// A connection that is there, or a datagram service that is known. Dropping it hangs up.
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

    /// The identifier.
    pub fn id(&self) -> &Identifier {
        &self.id
    }

    /// The peer's private data; zeros may follow.
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// What the peer said of the connection.
    pub fn connection(&self) -> Option<&ConnectionInfo> {
        self.connection.as_ref()
    }

    /// Where datagrams to the peer go.
    pub fn datagram(&self) -> Option<&DatagramInfo> {
        self.datagram.as_ref()
    }

    /// How long [`disconnect`](Self::disconnect) waits for the peer's answer; without a limit as long as the connection manager does.
    pub fn set_timeout(&mut self, limit: Option<Duration>) -> &mut Self {
        self.limit = limit;
        self
    }

    /// Closes the connection, and sleeps until the peer has answered, or the connection manager waits no longer for that. The queue
    /// pair is not touched: see [`Identifier::disconnect`]. If the peer has hung up before, or it is a datagram service, there is nothing
    /// to close. It does not matter who takes the event that says that the connection is no more: this, or the program itself.
    ///
    /// # Errors
    ///
    /// The channel is closed, the device was taken away, or the [limit](Self::set_timeout) was reached.
    pub fn disconnect(self) -> Result<(), ConnectError> {
        // Without a connection some systems take the call, and no event follows.
        if self.has_ended()? || self.datagram.is_some() {
            return Ok(());
        }
        self.id.disconnect()?;
        match (self.wait_ended(self.limit)?, self.limit) {
            (false, Some(limit)) => Err(ConnectError::TimedOut { wanted: EventType::Disconnected, limit }),
            _ => Ok(()),
        }
    }

    /// Sleeps until the peer has hung up, at most so long, and answers it; false if the time is over.
    ///
    /// # Errors
    ///
    /// The channel is closed, or the device was taken away.
    pub fn wait_disconnected(&self, timeout: Duration) -> Result<bool, ConnectError> {
        if !self.wait_ended(Some(timeout))? {
            return Ok(false);
        }
        // So that the peer need not wait. It may have gone altogether.
        if let Err(error) = self.id.disconnect() {
            log::debug!("no answer to a peer that hung up: {error}");
        }
        Ok(true)
    }

    /// Whether the connection is no more, as far as its events have been taken.
    fn has_ended(&self) -> Result<bool, ConnectError> {
        match self.id.state() {
            IdentifierState::DeviceRemoved => {
                Err(EventError::DeviceRemoved { local: self.id.local_addr() }.into())
            }
            state => Ok(state != IdentifierState::Connected),
        }
    }

    /// Sleeps until the connection is no more, whether the peer answered or not; false if the time is over.
    fn wait_ended(&self, limit: Option<Duration>) -> Result<bool, ConnectError> {
        let end = limit.and_then(|limit| Instant::now().checked_add(limit));
        loop {
            // Events change the state, whoever takes them, and from whichever channel.
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

/// How long a wait may miss what another thread has taken.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Moves an identifier to a channel of its own, so that whatever comes there is for it.
fn alone(id: &Identifier) -> Result<(), ConnectError> {
    let channel = EventChannel::from_provider(id.provider())?;
    Ok(id.migrate(&channel)?)
}

/// Waits for an event of an identifier that is alone on its channel; others that mean no failure are passed over.
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

/// Brings a queue pair that is new to the state in which it takes receives; one for datagrams goes all the way.
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
#[derive(Debug, thiserror::Error)]
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
