//! Test kit: state machines, and programs that use them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdma_mummy_sys::types::ibv_qp_type;

use crate::cm::address_table::AddressTable;
use crate::cm::channel_notifier::ChannelNotifier;
use crate::cm::state_machine::{ChannelNumber, CmStateMachine};
use crate::cm::transport::{LoopbackTransport, Transport};
use crate::cm::types::{
    CmEvent, CmEventKind, ConnParams, Ece, EventDetails, IdNumber, PortSpace, PrivateData,
};
use crate::objects::setup::ProcessSetup;

pub(super) const PATIENCE: Duration = Duration::from_secs(2);

/// A process, with its current time.
pub(super) struct CmHost {
    pub(super) state_machine: CmStateMachine,
    pub(super) queue: ChannelNumber,
    pub(super) now: Instant,
    uids: u64,
}

pub(super) fn addresses() -> AddressTable {
    crate::verbs::testing::table();
    AddressTable::new(&ProcessSetup::get().expect("a configuration").devices)
}

pub(super) fn address(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

pub(super) fn private_data(bytes: &[u8]) -> ConnParams {
    ConnParams { private_data: PrivateData::try_from(bytes).expect("not too long"), ..ConnParams::default() }
}

impl CmHost {
    pub(super) fn new() -> Self {
        Self::with(Arc::new(LoopbackTransport::default()))
    }

    pub(super) fn with(transport: Arc<dyn Transport>) -> Self {
        let mut state_machine = CmStateMachine::new(addresses(), transport, 1.0, 7);
        let queue = state_machine.open_queue(Arc::new(ChannelNotifier::create().expect("a descriptor")));
        Self { state_machine, queue, now: Instant::now(), uids: 0 }
    }

    pub(super) fn create(&mut self, space: PortSpace) -> IdNumber {
        self.uids += 1;
        self.state_machine.create(self.queue, self.uids, space, ibv_qp_type::IBV_QPT_RC).expect("an id")
    }

    /// A listener at an address.
    pub(super) fn listener(&mut self, space: PortSpace, at: &str) -> IdNumber {
        let id = self.create(space);
        self.state_machine.bind(id, address(at)).expect("a free address");
        self.state_machine.listen(id, 0).expect("a listener");
        id
    }

    /// The port that an id is bound to.
    pub(super) fn port(&self, id: IdNumber) -> u16 {
        self.state_machine.route(id).expect("an id").source.expect("it is bound").port()
    }

    /// An id with a resolved route to an address of port 1.
    pub(super) fn resolved(&mut self, space: PortSpace, port: u16) -> IdNumber {
        let id = self.create(space);
        let to = SocketAddr::new([127, 0, 0, 1].into(), port);
        self.state_machine.resolve_addr(id, None, to, PATIENCE, self.now).expect("the id is not bound");
        self.expect(id, CmEventKind::AddrResolved);
        self.state_machine.resolve_route(id).expect("the address is resolved");
        self.expect(id, CmEventKind::RouteResolved);
        id
    }

    pub(super) fn connect(&mut self, id: IdNumber, parameters: &ConnParams) {
        self.state_machine.connect(id, parameters, Ece::default(), self.now).expect("the route is resolved");
    }

    pub(super) fn accept(&mut self, id: IdNumber, parameters: &ConnParams) {
        self.uids += 1;
        self.state_machine.set_uid(id, self.uids).expect("an id");
        self.state_machine
            .accept(id, Some(parameters), Ece::default(), self.now)
            .expect("there is a request");
    }

    pub(super) fn establish(&mut self, id: IdNumber) {
        self.state_machine.accept(id, None, Ece::default(), self.now).expect("there is a response");
    }

    pub(super) fn disconnect(&mut self, id: IdNumber) {
        self.state_machine.disconnect(id, self.now).expect("there is a connection");
    }

    pub(super) fn destroy(&mut self, id: IdNumber) -> u32 {
        self.state_machine.destroy(id, self.now).expect("an id")
    }

    pub(super) fn next(&mut self) -> Option<CmEvent> {
        self.state_machine.take(self.queue)
    }

    /// The next event, which must be the given one.
    #[track_caller]
    pub(super) fn expect(&mut self, id: IdNumber, kind: CmEventKind) -> CmEvent {
        let event = self.next().unwrap_or_else(|| panic!("no event; expected {kind:?}"));
        assert_eq!((event.kind, event.id), (kind, id), "{event:?}");
        event
    }

    #[track_caller]
    pub(super) fn expect_status(&mut self, id: IdNumber, kind: CmEventKind, status: i32) -> CmEvent {
        let event = self.expect(id, kind);
        assert_eq!(event.status, status, "{event:?}");
        event
    }

    /// The id of the next request.
    #[track_caller]
    pub(super) fn request(&mut self, listener: IdNumber) -> IdNumber {
        self.expect_status(listener, CmEventKind::ConnectRequest, 0).request.expect("an id for it")
    }

    #[track_caller]
    pub(super) fn expect_silence(&mut self) {
        if let Some(event) = self.next() {
            panic!("{event:?}");
        }
    }

    /// Advances the time.
    pub(super) fn wait(&mut self, time: Duration) {
        self.now += time;
        self.state_machine.expire(self.now);
    }

    /// The two ids of a new connection: the active one, the passive one.
    #[track_caller]
    pub(super) fn connected(&mut self, listener: IdNumber) -> (IdNumber, IdNumber) {
        let port = self.port(listener);
        let active = self.resolved(PortSpace::Tcp, port);
        self.connect(active, &ConnParams::default());
        let passive = self.request(listener);
        self.accept(passive, &ConnParams::default());
        self.expect(active, CmEventKind::ConnectResponse);
        self.establish(active);
        self.expect(passive, CmEventKind::Established);
        (active, passive)
    }
}

/// The connection parameters of an event.
pub(super) fn connection(event: &CmEvent) -> &ConnParams {
    let EventDetails::Connection(parameters) = &event.details else { panic!("{event:?}") };
    parameters
}
