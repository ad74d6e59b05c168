//! Switches, and programs that use them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdma_mummy_sys::types::ibv_qp_type;

use crate::cm::bell::Bell;
use crate::cm::fabric::Fabric;
use crate::cm::switch::{QueueNumber, Switch};
use crate::cm::transport::{Alone, Transport};
use crate::cm::types::{Data, Details, Ece, Event, IdNumber, Kind, Parameters, PortSpace};
use crate::objects::setup::ProcessSetup;

pub(super) const PATIENCE: Duration = Duration::from_secs(2);

/// A process, and what it knows the time to be.
pub(super) struct Host {
    pub(super) switch: Switch,
    pub(super) queue: QueueNumber,
    pub(super) now: Instant,
    uids: u64,
}

pub(super) fn fabric() -> Fabric {
    crate::verbs::testing::table();
    Fabric::new(&ProcessSetup::get().expect("a configuration").devices)
}

pub(super) fn address(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

pub(super) fn private_data(bytes: &[u8]) -> Parameters {
    Parameters { private_data: Data::try_from(bytes).expect("not too long"), ..Parameters::default() }
}

impl Host {
    pub(super) fn new() -> Self {
        Self::with(Arc::new(Alone::default()))
    }

    pub(super) fn with(transport: Arc<dyn Transport>) -> Self {
        let mut switch = Switch::new(fabric(), transport, 1.0, 7);
        let queue = switch.open_queue(Arc::new(Bell::create().expect("a descriptor")));
        Self { switch, queue, now: Instant::now(), uids: 0 }
    }

    pub(super) fn create(&mut self, space: PortSpace) -> IdNumber {
        self.uids += 1;
        self.switch.create(self.queue, self.uids, space, ibv_qp_type::IBV_QPT_RC).expect("an id")
    }

    /// A listener at an address.
    pub(super) fn listener(&mut self, space: PortSpace, at: &str) -> IdNumber {
        let id = self.create(space);
        self.switch.bind(id, address(at)).expect("a free address");
        self.switch.listen(id, 0).expect("a listener");
        id
    }

    /// The port that an id is bound to.
    pub(super) fn port(&self, id: IdNumber) -> u16 {
        self.switch.route(id).expect("an id").source.expect("it is bound").port()
    }

    /// An id that can connect to an address of port 1's.
    pub(super) fn resolved(&mut self, space: PortSpace, port: u16) -> IdNumber {
        let id = self.create(space);
        let to = SocketAddr::new([127, 0, 0, 1].into(), port);
        self.switch.resolve_addr(id, None, to, PATIENCE, self.now).expect("it is bound to nothing");
        self.expect(id, Kind::AddrResolved);
        self.switch.resolve_route(id).expect("the address is resolved");
        self.expect(id, Kind::RouteResolved);
        id
    }

    pub(super) fn connect(&mut self, id: IdNumber, parameters: &Parameters) {
        self.switch.connect(id, parameters, Ece::default(), self.now).expect("the route is resolved");
    }

    pub(super) fn accept(&mut self, id: IdNumber, parameters: &Parameters) {
        self.uids += 1;
        self.switch.set_uid(id, self.uids).expect("an id");
        self.switch.accept(id, Some(parameters), Ece::default(), self.now).expect("there is a request");
    }

    pub(super) fn establish(&mut self, id: IdNumber) {
        self.switch.accept(id, None, Ece::default(), self.now).expect("there is a response");
    }

    pub(super) fn disconnect(&mut self, id: IdNumber) {
        self.switch.disconnect(id, self.now).expect("there is a connection");
    }

    pub(super) fn destroy(&mut self, id: IdNumber) -> u32 {
        self.switch.destroy(id, self.now).expect("an id")
    }

    pub(super) fn next(&mut self) -> Option<Event> {
        self.switch.take(self.queue)
    }

    /// The next event, which is to be this one.
    #[track_caller]
    pub(super) fn expect(&mut self, id: IdNumber, kind: Kind) -> Event {
        let event = self.next().unwrap_or_else(|| panic!("no event, but {kind:?} was to come"));
        assert_eq!((event.kind, event.id), (kind, id), "{event:?}");
        event
    }

    #[track_caller]
    pub(super) fn expect_status(&mut self, id: IdNumber, kind: Kind, status: i32) -> Event {
        let event = self.expect(id, kind);
        assert_eq!(event.status, status, "{event:?}");
        event
    }

    /// The id of the request that comes next.
    #[track_caller]
    pub(super) fn request(&mut self, listener: IdNumber) -> IdNumber {
        self.expect_status(listener, Kind::ConnectRequest, 0).request.expect("an id for it")
    }

    #[track_caller]
    pub(super) fn expect_silence(&mut self) {
        if let Some(event) = self.next() {
            panic!("{event:?}");
        }
    }

    /// Lets time go by.
    pub(super) fn wait(&mut self, time: Duration) {
        self.now += time;
        self.switch.expire(self.now);
    }

    /// Two ends of a connection: the active one, the passive one.
    #[track_caller]
    pub(super) fn connected(&mut self, listener: IdNumber) -> (IdNumber, IdNumber) {
        let port = self.port(listener);
        let active = self.resolved(PortSpace::Tcp, port);
        self.connect(active, &Parameters::default());
        let passive = self.request(listener);
        self.accept(passive, &Parameters::default());
        self.expect(active, Kind::ConnectResponse);
        self.establish(active);
        self.expect(passive, Kind::Established);
        (active, passive)
    }
}

/// What an event says of a connection.
pub(super) fn connection(event: &Event) -> &Parameters {
    let Details::Connection(parameters) = &event.details else { panic!("{event:?}") };
    parameters
}
