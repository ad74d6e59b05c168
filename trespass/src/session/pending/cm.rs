//! A handshake in progress that began with rdma_cm: its events, the queue pair, and both sides'
//! HELLO over the queue pair.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::task::Poll;
use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use sideway::ibverbs::event::AsyncEventType;
use sideway::rdmacm::{
    self, ConnectionInfo, ConnectionParameter, EventChannel, EventType, Identifier, IdentifierState,
    PortSpace,
};

use crate::config::Config;
use crate::error::ConnectError;
use crate::handshake::{Agreed, Attempt, CmExchange, HandshakeError, HandshakeStep, Side, rejection_message};
use crate::pool::Pool;
use crate::session::cm_error::CmError;
use crate::session::connection::Connection;
use crate::transport::pools::pool_over;
use crate::transport::rc::{CmControl, CmQueuePair, QpParameters, named_device};
use crate::wire::{Cause, Unavailable};
use crate::wire::{HandshakeMessage, Kind, REJECT_DATA, Reject, RejectReason, Role};

/// How long to wait until a rejection over the queue pair is acknowledged.
const REJECT_TIMEOUT: Duration = Duration::from_millis(100);

/// Queue pairs that a client replaces because the peer's connection manager still has an old
/// connection of the same number.
const MAX_STALE: usize = 8;

/// A handshake in progress.
pub(crate) struct PendingCmHandshake {
    /// Dropped before its identifier.
    pair: Option<CmQueuePair<Pool>>,
    /// Queue pairs whose numbers were refused. While they exist, a new one gets another number.
    stale: Vec<CmQueuePair<Pool>>,
    id: Identifier,
    /// The event channel, of the identifier alone.
    channel: EventChannel,
    /// The client's local address; `None` leaves it to the system's routes.
    source: Option<SocketAddr>,
    peer: SocketAddr,
    role: Role,
    exchange: CmExchange,
    /// A client's request, until the server answers it.
    request: Option<ConnectRequest>,
    step: HandshakeStep,
    /// This side's HELLO was sent.
    hello_sent: bool,
    /// rdma_cm has reported the connection as established. The client notifies it.
    established: bool,
    /// The peer has disconnected.
    disconnected: bool,
    agreed: Option<Agreed>,
    /// The error, and how long to wait until the peer has received the rejection.
    rejecting: Option<(io::Error, Instant)>,
    began: Instant,
    /// The request is kept until it has a place.
    is_kept: bool,
    /// When the last step ended.
    stepped: Instant,
}

/// A client's request.
struct ConnectRequest {
    private_data: Vec<u8>,
    info: Option<ConnectionInfo>,
}

/// The kinds of failure.
enum HandshakeFailure {
    Manager(CmError),
    Handshake(HandshakeError),
}

impl PendingCmHandshake {
    /// The handshake of a connection request.
    pub(super) fn requested(
        event: rdmacm::Event,
        peer: SocketAddr,
        kind: Option<Kind>,
        config: &Config,
    ) -> io::Result<Self> {
        let request =
            ConnectRequest { private_data: event.private_data().to_vec(), info: event.connection().copied() };
        let id = event.into_cm_id();
        let alone = || -> Result<EventChannel, CmError> {
            let channel = EventChannel::from_provider(id.provider())?;
            id.migrate(&channel)?;
            Ok(channel)
        };
        let channel =
            alone().map_err(|source| ConnectError::RdmaCm { address: peer, source: source.into() })?;
        let mut terms = config.terms(kind.unwrap_or(Kind::Stream));
        terms.takes_either_kind = kind.is_none();
        let exchange = CmExchange::server(terms);
        let step = HandshakeStep::Hello;
        Ok(Self { request: Some(request), ..Self::new(Role::Server, id, channel, peer, exchange, step) })
    }

    /// The handshake of a connecting client, whose time limit counts from `began`.
    pub(super) fn connecting(
        peer: SocketAddr,
        kind: Kind,
        began: Instant,
        config: &Config,
    ) -> io::Result<Self> {
        let source = config.source_address(peer).map_err(ConnectError::from)?;
        let resolving = || -> Result<(EventChannel, Identifier), CmError> {
            let channel = EventChannel::new()?;
            let left = (began + config.handshake_deadline).saturating_duration_since(Instant::now());
            let id = resolve(&channel, source, peer, left, config)?;
            Ok((channel, id))
        };
        let (channel, id) =
            resolving().map_err(|source| ConnectError::RdmaCm { address: peer, source: source.into() })?;
        let exchange = CmExchange::client(config.terms(kind), Attempt::first()?);
        let step = HandshakeStep::Address;
        Ok(Self { began, source, ..Self::new(Role::Client, id, channel, peer, exchange, step) })
    }

    fn new(
        role: Role,
        id: Identifier,
        channel: EventChannel,
        peer: SocketAddr,
        exchange: CmExchange,
        step: HandshakeStep,
    ) -> Self {
        let began = Instant::now();
        Self {
            pair: None,
            stale: Vec::new(),
            id,
            channel,
            source: None,
            peer,
            role,
            exchange,
            request: None,
            step,
            hello_sent: false,
            established: false,
            disconnected: false,
            agreed: None,
            rejecting: None,
            began,
            is_kept: false,
            stepped: began,
        }
    }

    pub(super) fn keep_request(&mut self) {
        self.is_kept = true;
    }

    pub(super) fn keeps_request(&self) -> bool {
        self.is_kept
    }

    pub(super) fn begin(&mut self) {
        let now = Instant::now();
        (self.is_kept, self.began, self.stepped) = (false, now, now);
    }

    pub(super) fn began(&self) -> Instant {
        self.began
    }

    /// The steps that have ended: the queue pair, the connection, and the peer's HELLO.
    fn steps(&self) -> [bool; 3] {
        [self.pair.is_some(), self.established, self.agreed.is_some()]
    }

    /// The request is a client's first message.
    pub(super) fn last_step(&self) -> Option<Instant> {
        Some(self.stepped)
    }

    /// Whether the client may be established.
    pub(super) fn has_committed(&self) -> bool {
        self.hello_sent
    }

    pub(super) fn deadline(&mut self, config: &Config) -> Instant {
        let end = self.began + config.handshake_deadline;
        self.rejecting.as_ref().map_or(end, |(_, until)| *until)
    }

    pub(super) fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        let channel = self.channel.as_fd().as_raw_fd();
        registry.register(&mut SourceFd(&channel), token, Interest::READABLE)
    }

    pub(super) fn deregister(&mut self, registry: &Registry) -> io::Result<()> {
        let pair = self.pair.as_mut().map_or(Ok(()), |pair| pair.unwatch(registry));
        registry.deregister(&mut SourceFd(&self.channel.as_fd().as_raw_fd())).and(pair)
    }

    pub(super) fn progress(
        &mut self,
        config: &Config,
        pool: &Pool,
        now: Instant,
        registry: &Registry,
        token: Token,
    ) -> Poll<io::Result<()>> {
        if self.rejecting.is_some() {
            return self.finish_reject(now);
        }
        let before = self.steps();
        let outcome = self.advance(config, pool, now, registry, token);
        if self.steps() != before {
            self.stepped = Instant::now();
        }
        let failure = match outcome {
            Ok(true) => return Poll::Ready(Ok(())),
            Ok(false) if self.is_kept || now < self.began + config.handshake_deadline => {
                return Poll::Pending;
            }
            Ok(false) => {
                HandshakeError::TimedOut { step: self.step, after: config.handshake_deadline }.into()
            }
            Err(failure) => failure,
        };
        self.fail(failure, now)
    }

    /// Continues. Returns whether the handshake is finished.
    fn advance(
        &mut self,
        config: &Config,
        pool: &Pool,
        now: Instant,
        registry: &Registry,
        token: Token,
    ) -> Result<bool, HandshakeFailure> {
        loop {
            // A client may withdraw its request.
            while let Some(event) = self.channel.try_get_cm_event()? {
                let handled = self.on_cm_event(&event, config, pool, now, registry);
                handled.map_err(|failure| self.rejection_behind().unwrap_or(failure))?;
            }
            if self.is_kept {
                return Ok(false);
            }
            if let Some(request) = self.request.take() {
                self.accept_request(&request, config, pool)?;
            }
            if self.exchange_hellos()? {
                return Ok(true);
            }
            if self.disconnected {
                return Err(HandshakeError::Closed { step: self.step }.into());
            }
            let Some(pair) = &mut self.pair else { return Ok(false) };
            // A completion may have arrived just before the queue pair was armed.
            let watched = pair.watch(registry, token);
            if !watched.map_err(|error| Unavailable::new(Cause::ProbeFailed, error.to_string()))? {
                return Ok(false);
            }
        }
    }

    // The events of rdma_cm.

    fn on_cm_event(
        &mut self,
        event: &rdmacm::Event,
        config: &Config,
        pool: &Pool,
        now: Instant,
        registry: &Registry,
    ) -> Result<(), HandshakeFailure> {
        if event.cm_id() != &self.id {
            // The event belongs to a dropped identifier.
            return Ok(());
        }
        let left = (self.began + config.handshake_deadline).saturating_duration_since(now);
        match event.event_type() {
            EventType::AddressResolved => {
                self.step = HandshakeStep::Route;
                self.id.resolve_route(left)?;
            }
            EventType::RouteResolved => self.send_request(config, pool)?,
            EventType::ConnectResponse => self.on_response(event, false, config)?,
            // An iWARP device connects the queue pair of a client itself.
            EventType::Established if self.role == Role::Client => self.on_response(event, true, config)?,
            EventType::Established => self.established = true,
            EventType::Rejected => self.on_rejected(event, left, config, registry)?,
            EventType::Disconnected => self.disconnected = true,
            _ => {
                if event.error().is_some() {
                    return Err(cm_error(event).into());
                }
            }
        }
        Ok(())
    }

    /// Sends the connection request.
    fn send_request(&mut self, config: &Config, pool: &Pool) -> Result<(), HandshakeFailure> {
        let mut pair = self.create_queue_pair(config, pool)?;
        pair.prepare(&self.id)?;
        let limits = self.exchange.terms().limits;
        let depths = (limits.rd_atomic_in, limits.rd_atomic_out);
        let parameter = connection_parameter(&pair, &self.exchange.cm_prefix(), depths, config);
        self.pair = Some(pair);
        self.step = HandshakeStep::Answer;
        self.id.connect(&parameter).map_err(|error| CmError::failed(&error))?;
        Ok(())
    }

    /// Handles the server's answer: connects the queue pair unless it is connected, and sends
    /// HELLO.
    fn on_response(
        &mut self,
        event: &rdmacm::Event,
        is_connected: bool,
        config: &Config,
    ) -> Result<(), HandshakeFailure> {
        if self.hello_sent {
            return Ok(());
        }
        self.exchange.begin_with(config.first_slots());
        self.exchange.prefix_received(event.private_data())?;
        let Some(pair) = &mut self.pair else {
            let text = "the peer has answered what it was not asked".into();
            return Err(CmError::Failed { kind: io::ErrorKind::InvalidData, text }.into());
        };
        pair.post(self.exchange.receives(), self.exchange.granted())?;
        if !is_connected {
            pair.connect(&self.id)?;
            self.id.establish().map_err(|error| CmError::failed(&error))?;
        }
        self.established = true;
        self.step = HandshakeStep::Hello;
        pair.send(&self.exchange.hello_bytes(), self.exchange.piece())?;
        self.hello_sent = true;
        Ok(())
    }

    fn on_rejected(
        &mut self,
        event: &rdmacm::Event,
        left: Duration,
        config: &Config,
        registry: &Registry,
    ) -> Result<(), HandshakeFailure> {
        // The peer still has an old connection of this queue pair number, and another pair has
        // another number.
        let is_stale = event.reject_reason() == Some(rdmacm::RejectReason::StaleConnection);
        if is_stale && self.role == Role::Client && self.stale.len() < MAX_STALE {
            tracing::debug!(peer = %self.peer, "the peer remembers the queue pair's number: with another one");
            if let Some(mut pair) = self.pair.take() {
                // Its descriptor is about to close, and a poller forgets closed descriptors.
                if let Err(error) = pair.unwatch(registry) {
                    tracing::debug!(%error, "a channel stays in the set");
                }
                self.stale.push(pair);
            }
            self.id = resolve(&self.channel, self.source, self.peer, left, config)?;
            self.step = HandshakeStep::Address;
            return Ok(());
        }
        Err(self.rejection(event).unwrap_or_else(|| cm_error(event).into()))
    }

    /// The peer's words in the rejection of this connection.
    fn rejection(&self, event: &rdmacm::Event) -> Option<HandshakeFailure> {
        if event.cm_id() != &self.id || event.event_type() != EventType::Rejected {
            return None;
        }
        match HandshakeMessage::decode_private(event.private_data()) {
            Ok(HandshakeMessage::Reject(reject)) => Some(HandshakeError::from(reject).into()),
            _ => None,
        }
    }

    /// The rejection behind an event that could not be handled. The connection manager knows it
    /// already, and refuses to connect the queue pair.
    fn rejection_behind(&self) -> Option<HandshakeFailure> {
        while let Ok(Some(event)) = self.channel.try_get_cm_event() {
            if let Some(rejection) = self.rejection(&event) {
                return Some(rejection);
            }
        }
        None
    }

    /// Answers a connection request.
    fn accept_request(
        &mut self,
        request: &ConnectRequest,
        config: &Config,
        pool: &Pool,
    ) -> Result<(), HandshakeFailure> {
        self.exchange.begin_with(config.first_slots());
        self.exchange.prefix_received(&request.private_data)?;
        let mut pair = self.create_queue_pair(config, pool)?;
        pair.prepare(&self.id)?;
        // Posts the connection's receives only after the client's HELLO.
        pair.post(self.exchange.receives(), 0)?;
        pair.connect(&self.id)?;
        let limits = self.exchange.terms().limits;
        let wanted = request.info.map_or((0, 0), |info| (info.responder_resources, info.initiator_depth));
        let depths = (limits.rd_atomic_in.min(wanted.0), limits.rd_atomic_out.min(wanted.1));
        let parameter = connection_parameter(&pair, &self.exchange.cm_prefix(), depths, config);
        self.pair = Some(pair);
        self.id.accept(&parameter).map_err(|error| CmError::failed(&error))?;
        Ok(())
    }

    /// Makes a queue pair of the device that the route leads to.
    fn create_queue_pair(&mut self, config: &Config, pool: &Pool) -> Result<CmQueuePair<Pool>, Unavailable> {
        let context = self.id.get_device_context().map_err(Unavailable::from)?;
        let device = named_device(&context.name())?;
        let pool = pool_over(device.domain(), Some(pool), config)?;
        device.limit(self.exchange.terms());
        let (port, local) = (self.id.port().unwrap_or(0), self.id.local_addr());
        let local = local.map_or_else(String::new, |local| format!(" from {local}"));
        let whence = format!("{} port {port}, on the route to {}{local}", device.name(), self.peer);
        CmQueuePair::new(&device, &whence, QpParameters::of(config), pool)
    }

    /// Sends and receives HELLO. Returns whether both directions are complete.
    fn exchange_hellos(&mut self) -> Result<bool, HandshakeFailure> {
        let Some(pair) = &mut self.pair else { return Ok(false) };
        let (exchange, agreed) = (&mut self.exchange, &mut self.agreed);
        let (mut any, mut outcome) = (false, Ok(()));
        let looked = pair.poll_messages(|piece| {
            any = true;
            match exchange.received(piece) {
                Ok(found) => *agreed = found,
                Err(error) => outcome = Err(error),
            }
            agreed.is_some() || outcome.is_err()
        });
        // The received piece may be a rejection that explains an error.
        outcome?;
        looked?;
        if any && !self.established {
            // The client's ready-to-use message may be late or lost. Its HELLO proves that it was
            // sent.
            if let Err(error) = self.id.notify(AsyncEventType::CommunicationEstablished) {
                tracing::trace!(%error, "the connection manager knows already");
            }
        }
        if self.agreed.is_some() && !self.hello_sent {
            pair.post(0, self.exchange.granted())?;
            self.step = HandshakeStep::Probe;
            pair.send(&self.exchange.hello_bytes(), self.exchange.piece())?;
            self.hello_sent = true;
            return self.exchange_hellos();
        }
        Ok(self.agreed.is_some() && self.established && pair.is_acknowledged())
    }

    /// Rejects the peer, if it can still be reached.
    fn fail(&mut self, failure: HandshakeFailure, now: Instant) -> Poll<io::Result<()>> {
        let words = match &failure {
            HandshakeFailure::Handshake(error) => rejection_message(error),
            HandshakeFailure::Manager(_) => None,
        };
        let address = self.peer;
        let error = io::Error::from(match failure {
            HandshakeFailure::Manager(source) => ConnectError::RdmaCm { address, source: source.into() },
            HandshakeFailure::Handshake(source) => ConnectError::Handshake { address, source },
        });
        if matches!(self.id.state(), IdentifierState::Requested | IdentifierState::Responded) {
            if let Err(error) = self.id.reject(words.as_deref().unwrap_or_default()) {
                tracing::debug!(peer = %address, %error, "the peer is not told");
            }
            return Poll::Ready(Err(error));
        }
        // A client that waits for the server's HELLO reads a rejection in its place.
        if let (Some(words), Some(pair)) = (words, &mut self.pair)
            && self.role == Role::Server
            && !self.hello_sent
            && !self.disconnected
            && pair.send(&words, words.len()).is_ok()
        {
            self.rejecting = Some((error, now + REJECT_TIMEOUT));
            return self.finish_reject(now);
        }
        Poll::Ready(Err(error))
    }

    /// Ends the handshake of a client, and tells it that the listener is busy unless it has established
    /// the connection.
    pub(super) fn turn_away(self, text: String) {
        let words = Reject::new(RejectReason::Busy, (0, 0), text).encode_within(REJECT_DATA);
        if matches!(self.id.state(), IdentifierState::Requested | IdentifierState::Connecting)
            && let Err(error) = self.id.reject(&words)
        {
            tracing::debug!(peer = %self.peer, %error, "the client is not told that the listener is busy");
        }
    }

    /// Waits until the rejection is acknowledged, or its time is over.
    fn finish_reject(&mut self, now: Instant) -> Poll<io::Result<()>> {
        let waits = match (&mut self.pair, &self.rejecting) {
            (Some(pair), Some((_, until))) => {
                pair.poll_messages(|_| true).is_ok() && !pair.is_acknowledged() && now < *until
            }
            _ => false,
        };
        if waits {
            return Poll::Pending;
        }
        if let Err(error) = self.id.disconnect() {
            tracing::trace!(%error, "the connection was over already");
        }
        Poll::Ready(match self.rejecting.take() {
            Some((error, _)) => Err(error),
            None => Err(io::ErrorKind::NotConnected.into()),
        })
    }

    pub(super) fn finish(self, config: &Config) -> io::Result<Connection> {
        let Self { pair, id, channel, peer, agreed, disconnected, .. } = self;
        let (Some(pair), Some(agreed)) = (pair, agreed) else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        let local = id.local_addr().and_then(|local| local.ip());
        let local = local.ok_or(io::ErrorKind::AddrNotAvailable)?;
        Connection::managed(pair, CmControl::new(id, channel, disconnected), agreed, (local, peer), config)
    }
}

/// Makes an identifier that resolves the peer's address.
fn resolve(
    channel: &EventChannel,
    source: Option<SocketAddr>,
    peer: SocketAddr,
    limit: Duration,
    config: &Config,
) -> Result<Identifier, CmError> {
    let id = channel.create_id(PortSpace::Tcp)?;
    if config.traffic_class != 0 {
        id.set_type_of_service(config.traffic_class).map_err(|error| CmError::failed(&error))?;
    }
    id.resolve_addr(source.map(Into::into), peer, limit)?;
    Ok(id)
}

/// The connection parameters: READs that this side answers at a time, and those that it starts.
fn connection_parameter(
    pair: &CmQueuePair<Pool>,
    cm_prefix: &[u8],
    (reads_in, reads_out): (u8, u8),
    config: &Config,
) -> ConnectionParameter {
    let mut connection_parameter = ConnectionParameter::new();
    connection_parameter
        .setup_queue_pair(pair.control())
        .setup_private_data(cm_prefix)
        .setup_responder_resources(reads_in)
        .setup_initiator_depth(reads_out)
        .setup_retry_count(config.retry_count)
        .setup_rnr_retry_count(config.rnr_retry);
    connection_parameter
}

/// Whether the error means that no device has a route to the address.
fn is_unreachable(error: &io::Error) -> bool {
    // `ErrorKind` has no variant for ENODEV.
    error.raw_os_error() == Some(19)
        || matches!(
            error.kind(),
            io::ErrorKind::AddrNotAvailable
                | io::ErrorKind::NetworkUnreachable
                | io::ErrorKind::HostUnreachable
        )
}

/// The error of a failed event.
fn cm_error(event: &rdmacm::Event) -> CmError {
    let words = event.error().map_or_else(|| event.event_type().to_string(), |error| error.to_string());
    let timed_out = event.status().error().is_some_and(|error| error.kind() == io::ErrorKind::TimedOut);
    match event.event_type() {
        EventType::Rejected => CmError::Refused(words),
        EventType::AddressError if !timed_out => CmError::NoDevice(words),
        EventType::AddressError | EventType::RouteError | EventType::Unreachable => {
            CmError::Unreachable(words)
        }
        EventType::DeviceRemoval => CmError::Failed { kind: io::ErrorKind::NetworkDown, text: words },
        _ => {
            let kind = event.status().error().map_or(io::ErrorKind::Other, |error| error.kind());
            CmError::Failed { kind, text: words }
        }
    }
}

impl From<CmError> for HandshakeFailure {
    fn from(error: CmError) -> Self {
        Self::Manager(error)
    }
}

impl From<HandshakeError> for HandshakeFailure {
    fn from(error: HandshakeError) -> Self {
        Self::Handshake(error)
    }
}

impl From<Unavailable> for HandshakeFailure {
    /// Without RDMA, such a connection fails.
    fn from(why: Unavailable) -> Self {
        HandshakeError::RdmaRequired { by: Side::Local, reason: why.on(Side::Local) }.into()
    }
}

impl From<sideway::Error> for HandshakeFailure {
    fn from(error: sideway::Error) -> Self {
        CmError::from(error).into()
    }
}

impl From<sideway::Error> for CmError {
    /// For a loopback address the kernel succeeds at first, then reports that no route begins at
    /// its device.
    fn from(error: sideway::Error) -> Self {
        use sideway::ErrorKind as Kind;
        let words = error.to_string();
        let resolves = matches!(error.verb(), "rdma_resolve_addr" | "rdma_resolve_route");
        match error.kind() {
            _ if error.verb() == "rdma_create_event_channel" => Self::NotThere(words),
            Kind::AddressInUse => Self::InUse(words),
            Kind::AddressNotLocal | Kind::AddressFamily | Kind::NoDevice => Self::NoDevice(words),
            Kind::Os if resolves && error.os_error().is_some_and(is_unreachable) => Self::NoDevice(words),
            _ => Self::failed(&error),
        }
    }
}
