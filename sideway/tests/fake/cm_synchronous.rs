//! Blocking connections: both sides wait, each in a separate thread.

use std::sync::OnceLock;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use sideway::ErrorKind;
use sideway::Provider;
use sideway::ibverbs::device_context::DeviceContext;
use sideway::ibverbs::queue_pair::{GenericQueuePair, QueuePairType};
use sideway::rdmacm::{
    ConnectError, Connection, ConnectionParameter, Connector, EventChannel, EventError, EventType,
    Identifier, IdentifierState, Listener, PortSpace,
};
use sideway::sys::Verbs;

use super::cm_events::{SECOND, addr};
use super::support::fake::cm::E;
use super::support::fake::{Fake, provider};

fn id(space: PortSpace) -> Identifier {
    EventChannel::from_provider(provider()).unwrap().create_id(space).unwrap()
}

fn listener(space: PortSpace) -> Listener {
    let id = id(space);
    id.bind_addr(addr("192.0.2.1:7")).unwrap();
    Listener::with_id(id, 4).unwrap()
}

fn connector(space: PortSpace) -> Connector {
    Connector::with_id(id(space), None, addr("192.0.2.1:7"), SECOND).unwrap()
}

fn pair(context: &DeviceContext, space: PortSpace) -> GenericQueuePair {
    let cq = context.create_cq_builder().build_generic().unwrap();
    let mut builder = context.alloc_pd().unwrap().create_qp_builder();
    builder.setup_send_cq(&cq).setup_recv_cq(&cq);
    if space == PortSpace::Udp {
        builder.setup_qp_type(QueuePairType::UnreliableDatagram);
    }
    builder.build_generic().unwrap()
}

/// Both ends of a connection.
fn connected(listener: &Listener, space: PortSpace) -> (Connection, Connection) {
    let mut there = None;
    let here = std::thread::scope(|scope| {
        scope.spawn(|| {
            let request = listener.get_request().unwrap();
            assert_eq!(request.private_data(), b"hello");
            assert_eq!(request.connection().is_some(), space == PortSpace::Tcp);
            let mut qp = pair(&request.get_device_context().unwrap(), space);
            request.prepare(&mut qp).unwrap();
            let mut parameter = ConnectionParameter::new();
            there = Some(request.accept(&mut qp, parameter.setup_private_data(b"to you")).unwrap());
        });
        let connector = connector(space);
        let mut qp = pair(&connector.get_device_context().unwrap(), space);
        connector.prepare(&mut qp).unwrap();
        connector.connect(&mut qp, ConnectionParameter::new().setup_private_data(b"hello")).unwrap()
    });
    (here, there.unwrap())
}

#[test]
#[cfg_attr(miri, ignore = "waits for descriptors")]
fn two_sides_connect_and_part() {
    let fake = Fake::lying(|l| l.queried_state = Some(0));
    let listener = listener(PortSpace::Tcp);
    assert_eq!(listener.local_addr(), Some(addr("192.0.2.1:7")));
    let (here, there) = connected(&listener, PortSpace::Tcp);
    assert_eq!((here.private_data(), there.private_data()), (&b"to you"[..], &b"hello"[..]));
    assert!(here.connection().is_some() && here.datagram().is_none());
    assert!(!there.wait_disconnected(Duration::from_millis(1)).unwrap());
    here.disconnect().unwrap();
    assert!(there.wait_disconnected(SECOND).unwrap());
    drop((there, listener));
    assert_eq!(fake.world.cm.live(), [0; 4]);
}

#[test]
#[cfg_attr(miri, ignore = "waits for descriptors")]
fn the_provider_can_be_named() {
    let fake = Fake::new();
    let listener = Listener::bind_of(provider(), addr("192.0.2.1:7"), 4).unwrap();
    let connector = Connector::resolve_of(provider(), addr("192.0.2.1:7"), SECOND).unwrap();
    assert_eq!([listener.id().provider(), connector.id().provider()], [provider(); 2]);
    assert_eq!(connector.id().peer_addr(), listener.local_addr());
    drop((listener, connector));
    assert_eq!(fake.world.cm.live(), [0; 4]);
    // A provider without a connection manager returns an error from every function.
    static BARE: OnceLock<Provider> = OnceLock::new();
    // SAFETY: all functions in the table only return errors.
    let without = *BARE.get_or_init(|| unsafe { Provider::from_tables("bare", Verbs::unsupported(), None) });
    let errors = [
        Listener::bind_of(without, addr("192.0.2.1:7"), 4).unwrap_err(),
        Connector::resolve_of(without, addr("192.0.2.1:7"), SECOND).unwrap_err(),
    ];
    for error in errors {
        let ConnectError::Call(error) = error else { panic!("{error}") };
        assert_eq!((error.verb(), error.kind()), ("rdma_create_event_channel", ErrorKind::Library));
    }
}

#[test]
#[cfg_attr(miri, ignore = "waits for descriptors")]
fn a_datagram_service_is_found() {
    let _fake = Fake::lying(|l| l.queried_state = Some(3));
    let listener = listener(PortSpace::Udp);
    let (here, there) = connected(&listener, PortSpace::Udp);
    let found = here.datagram().unwrap();
    assert_eq!((found.qkey, here.private_data()), (0x0123_4567, &b"to you"[..]));
    assert!(there.datagram().is_some());
}

/// No event reports the end of the connection.
#[test]
#[cfg_attr(miri, ignore = "waits for descriptors")]
fn disconnect_returns_at_once_without_a_connection() {
    for space in [PortSpace::Tcp, PortSpace::Udp] {
        let state = if space == PortSpace::Tcp { 0 } else { 3 };
        let _fake = Fake::lying(|l| l.queried_state = Some(state));
        let listener = listener(space);
        let (here, there) = connected(&listener, space);
        if space == PortSpace::Tcp {
            here.disconnect().unwrap();
            assert!(there.wait_disconnected(SECOND).unwrap());
        }
        let closed = disconnect_while(there, || {});
        assert!(closed.is_ok(), "{space}: {closed:?}");
    }
}

/// Closes a connection while `something` runs. If the close hangs, an error wakes it.
fn disconnect_while(connection: Connection, something: impl FnOnce()) -> Result<(), ConnectError> {
    let channel = connection.id().event_channel();
    std::thread::scope(|scope| {
        let closing = scope.spawn(|| connection.disconnect());
        something();
        for _ in 0..1000 {
            std::thread::sleep(Duration::from_millis(u64::from(!closing.is_finished())));
        }
        channel.close();
        closing.join().unwrap()
    })
}

/// The program takes the event for the end of the connection, instead of the waiting thread.
#[test]
#[cfg_attr(miri, ignore = "waits for descriptors")]
fn an_end_that_the_program_took_note_of_itself_is_not_waited_for() {
    let fake = Fake::lying(|l| (l.queried_state, l.cm_no_goodbye) = (Some(0), true));
    let listener = listener(PortSpace::Tcp);
    let (here, there) = connected(&listener, PortSpace::Tcp);
    let elsewhere = EventChannel::from_provider(provider()).unwrap();
    let id = here.id().clone();
    let take = || {
        while fake.world.cm.disconnects.load(Relaxed) == 0 {
            std::thread::yield_now();
        }
        // The event comes on a channel that the waiting thread does not use.
        id.migrate(&elsewhere).unwrap();
        fake.world.cm.push(id.as_raw().as_ptr(), E::RDMA_CM_EVENT_DISCONNECTED, |_| {});
        assert_eq!(elsewhere.get_cm_event().unwrap().event_type(), EventType::Disconnected);
    };
    let closed = disconnect_while(here, take);
    assert!(closed.is_ok(), "{closed:?}");
    // The same if the peer has disconnected.
    let id = there.id();
    fake.world.cm.push(id.as_raw().as_ptr(), E::RDMA_CM_EVENT_DISCONNECTED, |_| {});
    assert_eq!(id.event_channel().get_cm_event().unwrap().event_type(), EventType::Disconnected);
    assert!(there.wait_disconnected(Duration::ZERO).unwrap());
    there.disconnect().unwrap();
}

#[test]
#[cfg_attr(miri, ignore = "waits for descriptors")]
fn a_peer_that_does_not_let_go_is_not_waited_for_longer_than_asked() {
    let fake = Fake::lying(|l| (l.queried_state, l.cm_no_goodbye) = (Some(0), true));
    let listener = listener(PortSpace::Tcp);
    let (mut here, there) = connected(&listener, PortSpace::Tcp);
    let limit = Duration::from_millis(5);
    here.set_timeout(Some(limit));
    let error = disconnect_while(here, || {}).unwrap_err();
    assert!(
        matches!(error, ConnectError::TimedOut { wanted: EventType::Disconnected, limit: found } if found == limit),
        "{error}"
    );
    // The removal of the device ends the wait too, whichever thread takes the event.
    fake.world.cm.push(there.id().as_raw().as_ptr(), E::RDMA_CM_EVENT_DEVICE_REMOVAL, |_| {});
    let id = there.id().clone();
    assert!(id.event_channel().get_cm_event().is_ok());
    assert_eq!(id.state(), IdentifierState::DeviceRemoved);
    for result in [there.wait_disconnected(SECOND).map(drop), there.disconnect()] {
        assert!(matches!(result, Err(ConnectError::Event(EventError::DeviceRemoved { .. }))), "{result:?}");
    }
}

#[test]
#[cfg_attr(miri, ignore = "waits for descriptors")]
fn a_request_that_is_dropped_or_rejected_is_an_error() {
    let _fake = Fake::new();
    let listener = listener(PortSpace::Tcp);
    for data in [None, Some(&b"busy"[..])] {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let request = listener.get_request_timeout(SECOND).unwrap().unwrap();
                if let Some(data) = data {
                    request.reject(data).unwrap();
                }
            });
            let connector = connector(PortSpace::Tcp);
            let mut qp = pair(&connector.get_device_context().unwrap(), PortSpace::Tcp);
            let error = connector.connect(&mut qp, &ConnectionParameter::new()).unwrap_err();
            assert!(
                matches!(&error, ConnectError::Event(EventError::Rejected { private_data, .. })
                    if private_data[..] == *data.unwrap_or_default()),
                "{error}"
            );
        });
    }
}

#[test]
#[cfg_attr(miri, ignore = "waits for descriptors")]
fn waiting_without_events_ends() {
    let _fake = Fake::lying(|l| l.cm_silent = true);
    let first = listener(PortSpace::Tcp);
    assert!(first.get_request_timeout(Duration::from_millis(1)).unwrap().is_none());
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| first.get_request());
        std::thread::sleep(Duration::from_millis(10));
        first.id().event_channel().close();
        let error = waiter.join().unwrap().unwrap_err();
        assert!(matches!(&error, ConnectError::Call(error) if error.kind() == ErrorKind::Closed), "{error}");
    });
}

#[test]
#[cfg_attr(miri, ignore = "waits for descriptors")]
fn an_answer_that_does_not_come_is_not_waited_for_longer_than_asked() {
    let fake = Fake::new();
    let _listener = listener(PortSpace::Tcp);
    let mut connector = connector(PortSpace::Tcp);
    connector.set_timeout(Some(Duration::from_millis(5)));
    let mut qp = pair(&connector.get_device_context().unwrap(), PortSpace::Tcp);
    let error = connector.connect(&mut qp, &ConnectionParameter::new()).unwrap_err();
    assert!(
        matches!(error, ConnectError::TimedOut { wanted: EventType::ConnectResponse, limit } if limit == Duration::from_millis(5))
    );
    drop(qp);
    // The peer disconnects instead.
    let connector = self::connector(PortSpace::Tcp);
    let mut qp = pair(&connector.get_device_context().unwrap(), PortSpace::Tcp);
    fake.world.cm.push(connector.id().as_raw().as_ptr(), E::RDMA_CM_EVENT_DISCONNECTED, |_| {});
    let error = connector.connect(&mut qp, &ConnectionParameter::new()).unwrap_err();
    assert!(matches!(error, ConnectError::Disconnected { wanted: EventType::ConnectResponse }), "{error}");
}
