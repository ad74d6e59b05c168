//! Connections of rsockets: listening, connecting, accepting.

use std::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use rdma_mummy_sys::types::ibv_qp_type;

use super::message::RsHello;
use super::queues::RsQueues;
use super::socket::{Blocking, PollDepth, RSocket, RsPhase, RsState, UID};
use super::stream::RsStream;
use super::wait::Deadline;
use crate::cm::{CmEvent, CmEventKind, ConnParams, Ece, EventDetails, IdNumber, PortSpace};
use crate::rdmacm::device::DefaultPd;

/// The time limit for resolving an address, before it is scaled.
const PATIENCE: Duration = Duration::from_secs(10);
/// The retry counts that the peer receives: the maximum. Receives are always posted, so retries
/// only serve slow peers.
const RETRIES: u8 = 7;
/// The reject reason: the program refuses ("consumer reject" in the InfiniBand specification).
const CONSUMER_DEFINED: u8 = 28;

/// A pending connection request.
pub(super) struct ConnRequest {
    id: IdNumber,
    hello: Option<RsHello>,
}

impl RSocket {
    pub(super) fn bind(&self, address: SocketAddr) -> Result<(), c_int> {
        let state = self.locked();
        if state.phase != RsPhase::Idle {
            return Err(libc::EINVAL);
        }
        state.check_family(address)?;
        state.manager.bind(state.id, address).map_err(|error| match error {
            // The connection manager returns this error for a port that other ids use with other
            // addresses.
            libc::EADDRNOTAVAIL if address.ip().is_unspecified() => libc::EADDRINUSE,
            error => error,
        })
    }

    pub(super) fn listen(&self, backlog: c_int) -> Result<(), c_int> {
        let mut state = self.locked();
        match state.phase {
            RsPhase::Listening => Ok(()),
            RsPhase::Idle => {
                if state.addresses()?.0.is_none() {
                    state.manager.bind(state.id, unspecified(state.family))?;
                }
                state.manager.listen(state.id, backlog)?;
                state.phase = RsPhase::Listening;
                Ok(())
            }
            _ => Err(libc::EINVAL),
        }
    }

    /// Connects, and waits for the connection unless the rsocket is non-blocking.
    pub(super) fn connect(&self, address: SocketAddr) -> Result<(), c_int> {
        // An earlier attempt may have failed in the meantime.
        self.ready(0, PollDepth::Thoroughly);
        let deadline = {
            let mut state = self.locked();
            match state.phase {
                RsPhase::Idle => state.begin(address)?,
                RsPhase::Resolving | RsPhase::Routing | RsPhase::Asking => return Err(libc::EALREADY),
                RsPhase::Closed => return Err(libc::EBADF),
                RsPhase::Listening | RsPhase::Answering | RsPhase::Connected | RsPhase::Over => {
                    return Err(libc::EISCONN);
                }
            }
            Deadline::after(state.options.send_timeout)
        };
        let connected = self.attempt(Blocking::Usually, deadline, |state| match state.phase {
            RsPhase::Idle => Some(Err(match core::mem::take(&mut state.error) {
                0 => libc::ECONNABORTED,
                error => error,
            })),
            _ => (!state.is_connecting()).then_some(Ok(())),
        });
        connected.map_err(|error| if error == libc::EAGAIN { libc::EINPROGRESS } else { error })
    }

    /// Accepts a connection, and returns a new rsocket for it.
    pub(super) fn accept(&self) -> Result<Arc<Self>, c_int> {
        let deadline = Deadline::after(self.locked().options.receive_timeout);
        loop {
            let (request, manager, family, options) = self.attempt(Blocking::Usually, deadline, |state| {
                if state.phase != RsPhase::Listening {
                    return Some(Err(libc::EINVAL));
                }
                let has_request = state.has_request();
                let request = state.requests.take().filter(|_| has_request)?;
                let options = state.options.inherited();
                Some(Ok((request, Arc::clone(&state.manager), state.family, options)))
            })?;
            let Some(hello) = request.hello else {
                log::info!(
                    "rejecting a connection request at an rsocket: the peer is not an rsocket of this kind"
                );
                let _ = manager.reject(request.id, CONSUMER_DEFINED, &[]); // The peer may have left.
                let _ = manager.destroy(request.id);
                continue;
            };
            let socket = Self::create(Arc::clone(&manager), family, options);
            let answered = match &socket {
                Ok(socket) => socket.answer(request.id, hello),
                Err(error) => Err(*error),
            };
            let Err(error) = answered else { return socket.map(Arc::new) };
            // Reject the request, so that its sender does not wait. If the sender has left, try the
            // next request.
            let peer_waits = manager.reject(request.id, CONSUMER_DEFINED, &[]).is_ok();
            let _ = manager.destroy(request.id);
            if peer_waits {
                return Err(error);
            }
        }
    }

    /// Accepts the request: its id replaces this socket's id.
    fn answer(&self, request: IdNumber, hello: RsHello) -> Result<(), c_int> {
        let mut state = self.locked();
        state.manager.migrate(request, &state.channel)?;
        let unused = core::mem::replace(&mut state.id, request);
        state.manager.destroy(unused)?;
        state.manager.set_uid(request, UID)?;
        state.make_stream(hello)?;
        let manager = Arc::clone(&state.manager);
        state.stream.as_mut().ok_or(libc::ENOTCONN)?.queues.connect(&manager, request)?;
        let parameters = state.parameters()?;
        manager.accept(request, Some(&parameters), Ece::default())?;
        state.phase = RsPhase::Answering;
        self.watch_stream(&mut state);
        Ok(())
    }
}

fn unspecified(family: c_int) -> SocketAddr {
    let ip = if family == libc::AF_INET6 {
        IpAddr::V6(Ipv6Addr::UNSPECIFIED)
    } else {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED)
    };
    (ip, 0).into()
}

impl RsState {
    fn check_family(&self, address: SocketAddr) -> Result<(), c_int> {
        let is_ours = address.is_ipv6() == (self.family == libc::AF_INET6);
        if is_ours { Ok(()) } else { Err(libc::EAFNOSUPPORT) }
    }

    /// The unspecified address, for the name of a socket without an address.
    pub(super) fn unnamed(&self) -> SocketAddr {
        unspecified(self.family)
    }

    /// Starts connecting: resolves the address.
    fn begin(&mut self, address: SocketAddr) -> Result<(), c_int> {
        self.check_family(address)?;
        self.manager.resolve_addr(self.id, None, address, PATIENCE)?;
        (self.phase, self.error) = (RsPhase::Resolving, 0);
        Ok(())
    }

    /// Makes the queue pair and the stream; `hello` describes the other side.
    fn make_stream(&mut self, hello: RsHello) -> Result<(), c_int> {
        let mut queues = self.make_queues()?;
        queues.start(&self.manager, self.id)?;
        self.stream = Some(RsStream::new(queues, hello, self.options.mappings));
        Ok(())
    }

    fn make_queues(&self) -> Result<RsQueues, c_int> {
        let path = self.manager.route(self.id)?.path.ok_or(libc::ENETUNREACH)?;
        if path.device.guid == 0 {
            return Err(libc::ENODEV); // librdmacm ignores a device without a GUID.
        }
        RsQueues::create(DefaultPd::of(path.device)?, self.options.shape())
    }

    /// The parameters that the other side receives.
    fn parameters(&self) -> Result<ConnParams, c_int> {
        let stream = self.stream.as_ref().ok_or(libc::ENOTCONN)?;
        let shape = stream.queues.shape();
        let hello = RsHello {
            slots: shape.receive_slots,
            length: shape.receive_length,
            mappings: self.options.mappings,
        };
        let mut parameters = ConnParams {
            retry_count: RETRIES,
            rnr_retry_count: RETRIES,
            qp_num: stream.queues.number(),
            ..ConnParams::default()
        };
        parameters.private_data.extend(hello.encode());
        Ok(parameters)
    }

    /// Takes the next request unless one is pending; returns whether one is.
    pub(super) fn has_request(&mut self) -> bool {
        while self.requests.is_none() {
            let Ok(event) = self.channel.take() else { return false };
            if let (CmEventKind::ConnectRequest, Some(id)) = (event.kind, event.request) {
                self.requests = Some(ConnRequest { id, hello: said(&event.details) });
            }
        }
        true
    }

    pub(super) fn forget_request(&mut self) {
        if let Some(request) = self.requests.take() {
            let _ = self.manager.destroy(request.id); // It may be gone already.
        }
    }

    /// Handles all events of the connection manager; returns whether any has come.
    pub(super) fn hear(&mut self) -> bool {
        if self.phase == RsPhase::Listening {
            return self.requests.is_none() && self.has_request();
        }
        let mut has_changed = false;
        while let Ok(event) = self.channel.take() {
            has_changed = true;
            if let Err(error) = self.on_event(&event) {
                self.give_up(error);
            }
        }
        has_changed
    }

    fn on_event(&mut self, event: &CmEvent) -> Result<(), c_int> {
        match (self.phase, event.kind) {
            (RsPhase::Resolving, CmEventKind::AddrResolved) => {
                self.manager.resolve_route(self.id)?;
                self.phase = RsPhase::Routing;
            }
            (RsPhase::Routing, CmEventKind::RouteResolved) => self.ask()?,
            (RsPhase::Asking, CmEventKind::ConnectResponse) => self.agree(&event.details)?,
            (RsPhase::Answering, CmEventKind::Established) => self.open(),
            (
                RsPhase::Answering,
                CmEventKind::Rejected
                | CmEventKind::Unreachable
                | CmEventKind::Disconnected
                | CmEventKind::DeviceRemoval,
            )
            | (RsPhase::Connected, CmEventKind::Disconnected | CmEventKind::DeviceRemoval) => self.lose(),
            (RsPhase::Resolving | RsPhase::Routing | RsPhase::Asking, kind) => {
                return Err(match kind {
                    CmEventKind::AddrError if event.status == -libc::ETIMEDOUT => libc::EHOSTUNREACH,
                    CmEventKind::AddrError if event.status < 0 => -event.status,
                    CmEventKind::Rejected => libc::ECONNREFUSED,
                    CmEventKind::Unreachable => libc::ETIMEDOUT,
                    CmEventKind::DeviceRemoval => libc::ENETDOWN,
                    _ => return Ok(()),
                });
            }
            _ => {}
        }
        Ok(())
    }

    /// Sends the connection request. The listener's sizes are not known yet, so the stream assumes
    /// ours.
    fn ask(&mut self) -> Result<(), c_int> {
        let shape = self.options.shape();
        self.make_stream(RsHello { slots: shape.receive_slots, length: shape.receive_length, mappings: 0 })?;
        let parameters = self.parameters()?;
        self.manager.connect(self.id, &parameters, Ece::default())?;
        self.phase = RsPhase::Asking;
        Ok(())
    }

    /// Handles the listener's response, which contains its sizes.
    fn agree(&mut self, details: &EventDetails) -> Result<(), c_int> {
        let Some(hello) = said(details) else {
            log::info!("an rsocket's connection failed: the listener is not an rsocket of this kind");
            let _ = self.manager.reject(self.id, CONSUMER_DEFINED, &[]);
            return Err(libc::ECONNREFUSED);
        };
        let stream = self.stream.take().ok_or(libc::ENOTCONN)?;
        let stream = self.stream.insert(RsStream::new(stream.queues, hello, self.options.mappings));
        stream.queues.connect(&self.manager, self.id)?;
        self.manager.accept(self.id, None, Ece::default())?;
        self.open();
        Ok(())
    }

    /// Opens the stream: both sides are ready.
    fn open(&mut self) {
        self.phase = RsPhase::Connected;
        if let Some(stream) = &mut self.stream {
            stream.open();
        }
    }

    /// Ends a failed attempt. The rsocket gets a new id, so that the program may connect again.
    pub(super) fn give_up(&mut self, error: c_int) {
        self.error = error;
        self.unmap_all();
        self.stream = None;
        if self.is_connected() {
            self.phase = RsPhase::Over;
            return;
        }
        self.phase = RsPhase::Idle;
        let id = self.manager.create(&self.channel, UID, PortSpace::Tcp, ibv_qp_type::IBV_QPT_RC);
        match id {
            Ok(id) => {
                let former = core::mem::replace(&mut self.id, id);
                let _ = self.manager.destroy(former); // It may have gone with its device.
            }
            // The next attempt reports the missing id.
            Err(error) => log::debug!("a new id for an rsocket could not be created: error {error}"),
        }
        let _ = self.pass_on_options(); // They were accepted before.
    }
}

/// The other side's hello from the private data of an event.
fn said(details: &EventDetails) -> Option<RsHello> {
    match details {
        EventDetails::Connection(parameters) => RsHello::decode(&parameters.private_data),
        _ => None,
    }
}
