//! Connection manager events: their contents, and the attributes of identifiers.

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::Duration;

use sideway::ErrorKind;
use sideway::ibverbs::ece::Ece;
use sideway::ibverbs::event::AsyncEventType;
use sideway::ibverbs::queue_pair::{QueuePair, QueuePairState};
use sideway::rdmacm::{
    Address, AddressInfoHints, ConnectionParameter, Event, EventChannel, EventError, EventStatus, EventType,
    IbAddress, Identifier, IdentifierState, JoinFlags, PortSpace, RejectReason, get_devices_of,
    getaddrinfo_of,
};

use super::support::fake::cm::{E, rdma_conn_param_values};
use super::support::fake::{Fake, Faults, provider};
use crate::support::errors::assert_error;

pub(super) const SECOND: Duration = Duration::from_secs(1);

pub(super) fn addr(text: &str) -> Address {
    text.parse::<SocketAddr>().unwrap().into()
}

pub(super) fn lying(about: impl FnOnce(&mut Faults)) -> (Fake, EventChannel) {
    let fake = Fake::lying(about);
    let channel = EventChannel::from_provider(provider()).unwrap();
    (fake, channel)
}

/// Takes the next event, which must be of this type.
pub(super) fn next(channel: &EventChannel, expected: EventType) -> Event {
    let event = channel.try_get_cm_event().unwrap().expect("an event");
    assert_eq!(event.event_type(), expected, "{event:?}");
    event
}

/// An identifier with a resolved route.
pub(super) fn resolved(channel: &EventChannel, space: PortSpace, to: &str) -> Identifier {
    let id = channel.create_id(space).unwrap();
    id.resolve_addr(None, addr(to), SECOND).unwrap();
    assert_eq!(*next(channel, EventType::AddressResolved).cm_id(), id);
    id.resolve_route(SECOND).unwrap();
    next(channel, EventType::RouteResolved);
    id
}

pub(super) fn listening(channel: &EventChannel, space: PortSpace, port: u16) -> Identifier {
    let id = channel.create_id(space).unwrap();
    id.bind_addr(addr(&format!("192.0.2.1:{port}"))).unwrap();
    id.listen(5).unwrap();
    id
}

/// Both ends of an unanswered request: the requester, the listener, and the request.
pub(super) fn requested(channel: &EventChannel, data: &[u8]) -> (Identifier, Identifier, Event) {
    let listener = listening(channel, PortSpace::Tcp, 7);
    let active = resolved(channel, PortSpace::Tcp, "192.0.2.1:7");
    active.connect(ConnectionParameter::new().setup_private_data(data).setup_qp_number(5)).unwrap();
    let request = next(channel, EventType::ConnectRequest);
    (active, listener, request)
}

#[test]
fn a_connection_goes_through_its_states() {
    let (fake, channel) = lying(|_| {});
    let mut parameter = ConnectionParameter::new();
    parameter.setup_private_data(b"hello").setup_qp_number(0x111).setup_srq(true).setup_flow_control(true);
    parameter
        .setup_responder_resources(2)
        .setup_initiator_depth(3)
        .setup_retry_count(4)
        .setup_rnr_retry_count(5);
    let values = rdma_conn_param_values {
        qp_num: 0x111,
        responder_resources: 2,
        initiator_depth: 3,
        flow_control: 1,
        retry_count: 4,
        rnr_retry_count: 5,
        srq: 1,
    };
    let listener = listening(&channel, PortSpace::Tcp, 7);
    assert_eq!((listener.state(), listener.local_port()), (IdentifierState::Listening, Some(7)));
    let active = channel.create_id(PortSpace::Tcp).unwrap();
    assert_eq!((active.state(), active.local_addr(), active.port()), (IdentifierState::Idle, None, None));
    active.resolve_addr(Some(addr("192.0.2.9:0")), addr("192.0.2.1:7"), SECOND).unwrap();
    assert_eq!(active.state(), IdentifierState::ResolvingAddress);
    let event = next(&channel, EventType::AddressResolved);
    assert_eq!((event.cm_id(), event.listener_id(), event.private_data()), (&active, None, &b""[..]));
    assert!(event.connection().is_none() && event.error().is_none());
    assert_eq!((active.state(), active.port()), (IdentifierState::AddressResolved, Some(1)));
    assert_eq!(
        (active.local_addr(), active.peer_addr()),
        (Some(addr("192.0.2.9:50000")), Some(addr("192.0.2.1:7")))
    );
    assert_eq!((active.local_port(), active.peer_port()), (Some(50_000), Some(7)));
    assert_eq!((active.local_gid().unwrap().raw, active.peer_gid()), ([7; 16], None));
    assert_eq!(active.partition_key(), Some(0xffff));
    active.resolve_route(SECOND).unwrap();
    next(&channel, EventType::RouteResolved);
    active.connect(&parameter).unwrap();
    assert_eq!(active.state(), IdentifierState::Connecting);

    let request = next(&channel, EventType::ConnectRequest);
    assert_eq!((request.private_data(), request.listener_id()), (&b"hello"[..], Some(&listener)));
    let info = request.connection().unwrap();
    assert_eq!((info.qp_num, info.responder_resources, info.initiator_depth), (0x111, 2, 3));
    assert_eq!((info.retry_count, info.rnr_retry_count, info.flow_control, info.srq), (4, 5, true, true));
    let passive = request.into_cm_id();
    assert_eq!((passive.state(), passive.port_space()), (IdentifierState::Requested, PortSpace::Tcp));
    assert_ne!(passive, listener);
    parameter.setup_private_data(b"and to you");
    passive.accept(&parameter).unwrap();
    let response = next(&channel, EventType::ConnectResponse);
    assert_eq!((response.cm_id(), response.private_data()), (&active, &b"and to you"[..]));
    assert_eq!(active.state(), IdentifierState::Responded);
    active.establish().unwrap();
    assert_eq!(*next(&channel, EventType::Established).cm_id(), passive);
    assert_eq!((active.state(), passive.state()), (IdentifierState::Connected, IdentifierState::Connected));
    active.disconnect().unwrap();
    next(&channel, EventType::Disconnected);
    next(&channel, EventType::Disconnected);
    assert_eq!(
        (active.state(), passive.state()),
        (IdentifierState::Disconnected, IdentifierState::Disconnected)
    );
    assert!(channel.try_get_cm_event().unwrap().is_none());
    let noted = fake.world.cm.parameters.lock().unwrap().clone();
    assert_eq!(noted, [(values, b"hello".to_vec()), (values, b"and to you".to_vec())]);
}

#[test]
fn a_rejection_says_why() {
    let (_fake, channel) = lying(|_| {});
    let (active, _listener, request) = requested(&channel, &[]);
    request.cm_id().reject(b"too late").unwrap();
    let rejected = next(&channel, EventType::Rejected);
    assert_eq!(
        (rejected.private_data(), rejected.reject_reason()),
        (&b"too late"[..], Some(RejectReason::ConsumerReject))
    );
    let error = rejected.error().unwrap();
    assert!(
        matches!(&error, EventError::Rejected { private_data, reason: Some(RejectReason::ConsumerReject), .. }
            if private_data == b"too late"),
        "{error:?}"
    );
    assert_eq!(error.to_string(), "192.0.2.1:7 rejected the connection: ConsumerReject");
    assert_eq!(
        (active.state(), request.cm_id().state()),
        (IdentifierState::Rejected, IdentifierState::Rejected)
    );

    let lonely = resolved(&channel, PortSpace::Tcp, "192.0.2.1:8");
    lonely.connect(&ConnectionParameter::new()).unwrap();
    let error = next(&channel, EventType::Rejected).error().unwrap();
    assert_eq!(
        error.to_string(),
        "192.0.2.1:8 rejected the connection: nobody listens there (InvalidServiceId)"
    );
}

#[test]
fn a_request_that_nobody_takes_is_rejected() {
    let (_fake, channel) = lying(|_| {});
    let (active, _listener, request) = requested(&channel, &[]);
    drop(request);
    let event = next(&channel, EventType::Rejected);
    assert_eq!((event.cm_id(), event.reject_reason()), (&active, Some(RejectReason::ConsumerReject)));
}

#[test]
fn a_datagram_service_tells_where_its_queue_pair_is() {
    let (_fake, channel) = lying(|_| {});
    let listener = listening(&channel, PortSpace::Udp, 7);
    let active = resolved(&channel, PortSpace::Udp, "192.0.2.1:7");
    active.connect(ConnectionParameter::new().setup_private_data(b"?").setup_qp_number(5)).unwrap();
    let request = next(&channel, EventType::ConnectRequest);
    assert_eq!((request.private_data(), request.listener_id()), (&b"?"[..], Some(&listener)));
    assert!(request.connection().is_none());
    request.cm_id().accept(ConnectionParameter::new().setup_private_data(b"!").setup_qp_number(6)).unwrap();
    assert_eq!(request.cm_id().state(), IdentifierState::Connected);
    let event = next(&channel, EventType::Established);
    let service = event.datagram().unwrap();
    assert_eq!((service.qp_num, service.qkey, service.address.port()), (6, 0x0123_4567, 1));
    assert_eq!(event.private_data(), b"!");
    let pd = active.get_device_context().unwrap().alloc_pd().unwrap();
    pd.create_ah(&service.address).unwrap().close().unwrap();

    let lonely = resolved(&channel, PortSpace::Udp, "192.0.2.1:8");
    lonely.connect(&ConnectionParameter::new()).unwrap();
    let error = next(&channel, EventType::Unreachable).error().unwrap();
    assert_eq!(error.to_string(), "192.0.2.1:8 does not answer: status 1");
}

#[test]
fn multicast_groups_are_joined_with_a_number_and_left_with_the_identifier() {
    let (fake, channel) = lying(|_| {});
    let id = resolved(&channel, PortSpace::Udp, "192.0.2.1:7");
    let group = addr("239.1.2.3:0");
    id.join_multicast(group.clone(), JoinFlags::FullMember, usize::MAX - 1).unwrap();
    assert!(id.join_multicast(group.clone(), JoinFlags::FullMember, 2).is_err(), "it is in the group");
    assert_eq!(id.multicast_groups(), std::slice::from_ref(&group));
    let event = next(&channel, EventType::MulticastJoin);
    let joined = event.multicast().unwrap();
    assert_eq!((joined.context, joined.qp_num, joined.qkey), (usize::MAX - 1, 0xff_ffff, 0x1234));
    assert_eq!((joined.gid().raw, joined.lid()), ([0xff; 16], 0));
    // The library leaves the context and a length in the fields for private data.
    assert_eq!((event.private_data(), event.multicast_context()), (&b""[..], Some(usize::MAX - 1)));
    drop(event);
    fake.world.cm.push(id.as_raw().as_ptr(), E::RDMA_CM_EVENT_MULTICAST_ERROR, |event| {
        (event.status, event.argument) = (-libc::ENETDOWN, Some(9));
    });
    let event = next(&channel, EventType::MulticastError);
    assert_eq!((event.multicast_context(), event.multicast().is_none()), (Some(9), true));
    assert!(matches!(event.error(), Some(EventError::Multicast { .. })));
    drop(event);
    id.leave_multicast(group.clone()).unwrap();
    let error = id.leave_multicast(group.clone()).unwrap_err();
    assert_eq!(error.errno(), Some(libc::EADDRNOTAVAIL));
    // An unanswered join is discarded with the identifier, and so are its events.
    id.join_multicast(addr("[ff05::1]:0"), JoinFlags::SendOnlyFullMember, 1).unwrap();
    id.leave_multicast(addr("[ff05::1]:0")).unwrap();
    id.join_multicast(group, JoinFlags::FullMember, 2).unwrap();
    drop(id);
    assert!(channel.try_get_cm_event().unwrap().is_none());
}

/// The library frees the membership, to which a join's event points, as soon as the group is left.
#[test]
fn a_group_is_not_left_before_its_join_is_answered() {
    let (fake, channel) = lying(|_| {});
    let id = resolved(&channel, PortSpace::Udp, "192.0.2.1:7");
    let raw = id.as_raw().as_ptr();
    let [one, two] = ["239.1.2.3:0", "239.1.2.4:0"].map(addr);
    // A program may use one context for both groups.
    id.join_multicast(one.clone(), JoinFlags::FullMember, 5).unwrap();
    id.join_multicast(two.clone(), JoinFlags::FullMember, 5).unwrap();
    id.leave_multicast(one.clone()).unwrap();
    assert_eq!((id.multicast_groups(), fake.world.cm.groups(raw)), (vec![two.clone()], 2));
    let error = id.leave_multicast(one.clone()).unwrap_err();
    assert_eq!(error.errno(), Some(libc::EADDRNOTAVAIL));
    let error = id.join_multicast(one.clone(), JoinFlags::FullMember, 6).unwrap_err();
    assert_error(&error, ErrorKind::InvalidState, &[("group", &one)]);
    // The program does not get its event.
    let joined = next(&channel, EventType::MulticastJoin);
    assert_eq!((joined.multicast_context(), fake.world.cm.groups(raw)), (Some(5), 1));
    assert!(channel.try_get_cm_event().unwrap().is_none());
    assert_eq!(id.multicast_groups(), std::slice::from_ref(&two));
    id.join_multicast(one.clone(), JoinFlags::FullMember, 6).unwrap();
    assert_eq!(next(&channel, EventType::MulticastJoin).multicast_context(), Some(6));
    id.leave_multicast(one).unwrap();
    id.leave_multicast(two).unwrap();
    assert_eq!(fake.world.cm.groups(raw), 0);
}

/// The library frees the membership even if leaving the group fails.
#[test]
#[cfg_attr(miri, ignore = "looks at descriptors")]
fn events_of_a_group_that_cannot_be_left_are_not_delivered() {
    let (fake, channel) = lying(|l| l.cm_leave = libc::ENXIO);
    let group = addr("239.1.2.3:0");
    let joined = || {
        let id = resolved(&channel, PortSpace::Udp, "192.0.2.1:7");
        id.join_multicast(group.clone(), JoinFlags::FullMember, 1).unwrap();
        id
    };
    // Dropping the identifier discards the events.
    drop(joined());
    assert!(channel.try_get_cm_event().unwrap().is_none());
    // No event is pending, so none points to freed memory.
    let channel = EventChannel::from_provider(provider()).unwrap();
    let id = resolved(&channel, PortSpace::Udp, "192.0.2.1:7");
    id.join_multicast(group.clone(), JoinFlags::FullMember, 1).unwrap();
    next(&channel, EventType::MulticastJoin);
    let error = id.leave_multicast(group.clone()).unwrap_err();
    assert_eq!(error.errno(), Some(libc::ENXIO));
    assert!(channel.try_get_cm_event().unwrap().is_none());
    // An event is pending, so no events are taken any more, on this channel or on others.
    id.join_multicast(group.clone(), JoinFlags::FullMember, 2).unwrap();
    next(&channel, EventType::MulticastJoin);
    fake.world.cm.push_to_group(id.as_raw().as_ptr(), E::RDMA_CM_EVENT_MULTICAST_ERROR);
    id.leave_multicast(group.clone()).unwrap_err();
    assert!(matches!(channel.try_get_cm_event(), Err(error) if error.kind() == ErrorKind::Closed));
    let elsewhere = EventChannel::from_provider(provider()).unwrap();
    assert_eq!(id.migrate(&elsewhere).unwrap_err().kind(), ErrorKind::Os);
    // A removed device sends no more events about its groups.
    let id = resolved(&elsewhere, PortSpace::Udp, "192.0.2.1:7");
    id.join_multicast(group.clone(), JoinFlags::FullMember, 3).unwrap();
    next(&elsewhere, EventType::MulticastJoin);
    let other = elsewhere.create_id(PortSpace::Udp).unwrap();
    fake.world.cm.push(id.as_raw().as_ptr(), E::RDMA_CM_EVENT_DEVICE_REMOVAL, |_| {});
    fake.world.cm.push(other.as_raw().as_ptr(), E::RDMA_CM_EVENT_ADDR_CHANGE, |_| {});
    next(&elsewhere, EventType::DeviceRemoval);
    id.leave_multicast(group).unwrap_err();
    next(&elsewhere, EventType::AddressChange);
}

#[test]
fn unknown_event_types_pass_through() {
    let (fake, channel) = lying(|_| {});
    let id = channel.create_id(PortSpace::from_raw(4711)).unwrap();
    assert_eq!(format!("{:?}", id.port_space()), "Unknown(4711)");
    for (kind, status) in [(4711, 5), (u32::MAX, i32::MIN), (E::RDMA_CM_EVENT_INTERNAL.0, 0)] {
        fake.world.cm.push(id.as_raw().as_ptr(), rdma_event(kind), |event| {
            // The other contents of the event are ignored.
            (event.status, event.argument) = (status, Some(1));
        });
        let event = channel.try_get_cm_event().unwrap().unwrap();
        assert_eq!((event.event_type().raw(), event.status().raw()), (kind, status));
        assert_eq!((event.private_data(), event.connection(), event.user_argument()), (&b""[..], None, None));
        assert_eq!(event.error().is_none(), status == 0);
        assert!(!format!("{event:?} {}", event.status()).is_empty());
    }
    assert_eq!(EventStatus::from_raw(i32::MIN).error().unwrap().raw_os_error(), Some(i32::MAX));
    // A reason without a name, and an error number as the reason.
    for status in [4711, -libc::ECONNREFUSED] {
        fake.world.cm.push(id.as_raw().as_ptr(), E::RDMA_CM_EVENT_REJECTED, |event| event.status = status);
        let event = next(&channel, EventType::Rejected);
        assert_eq!(event.reject_reason().map(RejectReason::raw), u32::try_from(status).ok());
    }
    // A length without data.
    fake.world.cm.push(id.as_raw().as_ptr(), E::RDMA_CM_EVENT_DISCONNECTED, |event| {
        (event.data, event.null_data) = (vec![1; 255], true);
    });
    assert_eq!(next(&channel, EventType::Disconnected).private_data(), b"");
    // The maximum length.
    fake.world.cm.push(id.as_raw().as_ptr(), E::RDMA_CM_EVENT_REJECTED, |event| event.data = vec![3; 255]);
    assert_eq!(next(&channel, EventType::Rejected).private_data(), [3; 255]);
}

fn rdma_event(kind: u32) -> E {
    // Unknown types of the C enumeration.
    E(kind)
}

#[test]
fn events_of_failures_are_errors() {
    let (fake, channel) = lying(|l| l.cm_silent = true);
    let id = channel.create_id(PortSpace::Tcp).unwrap();
    id.resolve_addr(None, addr("192.0.2.1:7"), SECOND).unwrap();
    let mut told = Vec::new();
    for kind in [
        E::RDMA_CM_EVENT_ADDR_ERROR,
        E::RDMA_CM_EVENT_ROUTE_ERROR,
        E::RDMA_CM_EVENT_UNREACHABLE,
        E::RDMA_CM_EVENT_CONNECT_ERROR,
        E::RDMA_CM_EVENT_DEVICE_REMOVAL,
        E::RDMA_CM_EVENT_ADDRINFO_ERROR,
        E::RDMA_CM_EVENT_ADDR_CHANGE,
    ] {
        fake.world.cm.push(id.as_raw().as_ptr(), kind, |event| event.status = -libc::ETIMEDOUT);
        let event = channel.try_get_cm_event().unwrap().unwrap();
        assert_eq!(event.status().error().unwrap().raw_os_error(), Some(libc::ETIMEDOUT));
        told.push((event.cm_id().state(), event.error().unwrap().to_string()));
    }
    let late = std::io::Error::from_raw_os_error(libc::ETIMEDOUT);
    use IdentifierState as S;
    let expected = [
        (S::Idle, format!("cannot resolve the address 192.0.2.1:7 from 192.0.2.1:50000: {late}")),
        (S::AddressResolved, format!("cannot resolve the route to 192.0.2.1:7 from 192.0.2.1:50000: {late}")),
        (S::Failed, format!("192.0.2.1:7 does not answer: {late}")),
        (S::Failed, format!("the connection to 192.0.2.1:7 failed: {late}")),
        (
            S::DeviceRemoved,
            "the device of 192.0.2.1:50000 was removed; drop the identifier and all that was made of the device".into(),
        ),
        (S::DeviceRemoved, format!("the names could not be resolved: {late}")),
        (S::DeviceRemoved, format!("the event AddressChange came with {late}")),
    ];
    assert_eq!(told, expected);
}

#[test]
fn an_unresolved_link_local_address_says_what_it_lacks() {
    let (fake, channel) = lying(|l| l.cm_silent = true);
    let text = |address: &str| {
        let id = channel.create_id(PortSpace::Tcp).unwrap();
        id.resolve_addr(None, addr(address), SECOND).unwrap();
        let kind = E::RDMA_CM_EVENT_ADDR_ERROR;
        fake.world.cm.push(id.as_raw().as_ptr(), kind, |event| event.status = -libc::ETIMEDOUT);
        channel.try_get_cm_event().unwrap().unwrap().error().unwrap().to_string()
    };
    let without = text("[fe80::1]:7");
    let expected = "; a link-local address needs the interface that leads there: fe80::1%eth0";
    assert!(without.ends_with(expected), "{without}");
    assert!(!text("[fe80::1%3]:7").contains("needs the interface"));
}

#[test]
fn addresses_reach_the_library_whole() {
    let (fake, channel) = lying(|l| l.cm_silent = true);
    let id = channel.create_id(PortSpace::Tcp).unwrap();
    let v6: SocketAddr = "[2001:db8::1]:4711".parse().unwrap();
    id.resolve_addr(Some(addr("192.0.2.9:1")), v6, SECOND).unwrap();
    let ib = IbAddress { service_id: 0x0106_0007, ..IbAddress::default() };
    channel.create_id(PortSpace::Ib).unwrap().bind_addr(ib).unwrap();
    let noted = fake.world.cm.addresses.lock().unwrap().clone();
    assert_eq!(noted[0][..8], [2, 0, 0, 1, 192, 0, 2, 9]);
    assert_eq!(noted[1][..4], [10, 0, 0x12, 0x67]);
    assert_eq!(noted[1][8..24], v6.ip().to_string().parse::<std::net::Ipv6Addr>().unwrap().octets());
    assert_eq!(noted[2][..4], [27, 0, 0, 0]);
    assert_eq!(id.peer_addr(), Some(v6.into()));
}

#[test]
fn options_reach_the_library_as_c_has_them() {
    let (fake, channel) = lying(|_| {});
    let id = channel.create_id(PortSpace::Tcp).unwrap();
    id.set_type_of_service(0x68).unwrap();
    id.set_reuse_address(true).unwrap();
    id.set_address_family_only(false).unwrap();
    id.set_ack_timeout(14).unwrap();
    id.bind_addr(addr("192.0.2.1:7")).unwrap();
    id.set_option(1, 1, &[9; 13]).unwrap();
    id.set_option(7, 7, &[]).unwrap();
    let one = 1i32.to_ne_bytes().to_vec();
    let expected = [
        (0, 0, vec![0x68]),
        (0, 1, one),
        (0, 2, vec![0; 4]),
        (0, 3, vec![14]),
        (1, 1, vec![9; 13]),
        (7, 7, vec![]),
    ];
    assert_eq!(*fake.world.cm.options.lock().unwrap(), expected);
}

#[test]
fn queue_pairs_are_brought_up_by_the_identifier() {
    let (_fake, channel) = lying(|_| {});
    let id = resolved(&channel, PortSpace::Tcp, "192.0.2.1:7");
    let attr = id.get_qp_attr(QueuePairState::ReadyToReceive).unwrap();
    assert_eq!(
        (attr.state(), attr.port(), attr.mask().bits()),
        (Some(QueuePairState::ReadyToReceive), Some(1), 0x21)
    );
    let context = id.get_device_context().unwrap();
    let cq = context.create_cq_builder().build_generic().unwrap();
    let mut builder = context.alloc_pd().unwrap().create_qp_builder();
    builder.setup_send_cq(&cq).setup_recv_cq(&cq);
    let mut qp = builder.build_generic().unwrap();
    id.modify_qp(&mut qp, QueuePairState::Init).unwrap();
    let mut parameter = ConnectionParameter::new();
    parameter.setup_queue_pair(qp.control());
    id.set_local_ece(Ece { vendor_id: 1, options: 2 }).unwrap();
    assert_eq!(id.get_remote_ece().unwrap(), Ece { vendor_id: 1, options: 2 });
    id.notify(AsyncEventType::CommunicationEstablished).unwrap();
}

/// librdmacm opens and closes the device. It stays open as long as an object made from it exists.
#[test]
fn a_device_belongs_to_the_library_and_stays_open() {
    let (fake, channel) = lying(|_| {});
    let id = resolved(&channel, PortSpace::Tcp, "192.0.2.1:7");
    let other = resolved(&channel, PortSpace::Tcp, "192.0.2.1:7");
    let context = id.get_device_context().unwrap();
    assert_eq!(context.as_raw(), other.get_device_context().unwrap().as_raw());
    // Two identifiers share one list; queries do not make further ones.
    for _ in 0..10 {
        assert_eq!(id.get_device_context().unwrap(), context);
    }
    assert_eq!(get_devices_of(provider()).unwrap(), std::slice::from_ref(&context));
    assert_eq!(fake.world.cm.live()[3], 3);
    let pd = context.alloc_pd().unwrap();
    drop((id, other, channel, context));
    assert_eq!(fake.world.cm.live(), [0, 0, 0, 1]);
    let cq = pd.context().create_cq_builder().build_generic().unwrap();
    drop((pd, cq));
    assert_eq!(fake.world.cm.live(), [0; 4]);
    assert_eq!(fake.world.destroyed.lock().unwrap().iter().filter(|what| **what == "context").count(), 1);
    // The same for a list without identifiers.
    let devices = get_devices_of(provider()).unwrap();
    assert_eq!((devices.len(), devices[0].name()), (1, "fake0".to_owned()));
    devices[0].query_device().unwrap();
}

/// When the last list with a removed device is freed, librdmacm's code is safe only if no other
/// device is in the list.
#[test]
#[cfg_attr(miri, ignore = "leaves a list behind")]
fn a_list_of_several_devices_stays() {
    let fake = Fake::lying(|l| l.cm_two_devices = true).may_leak();
    for _ in 0..3 {
        let devices = get_devices_of(provider()).unwrap();
        assert_eq!(devices.len(), 2);
    }
    assert!(fake.world.cm.live()[3] > 0);
}

#[test]
fn a_value_of_the_programs_goes_with_the_identifier() {
    let (_fake, channel) = lying(|_| {});
    let id = channel.create_id(PortSpace::Tcp).unwrap();
    assert!(id.get_context::<String>().is_none());
    id.setup_context("first".to_owned());
    id.setup_context("second".to_owned());
    assert_eq!(*id.get_context::<String>().unwrap(), "second");
    assert!(id.get_context::<u32>().is_none());
    // A value that holds the identifier keeps it alive, until the value is removed.
    id.setup_context(id.clone());
    id.clear_context();
    assert!(id.get_context::<Identifier>().is_none());
}

#[test]
fn a_number_of_the_programs_goes_with_the_identifier() {
    let (_fake, channel) = lying(|_| {});
    let id = channel.create_id(PortSpace::Tcp).unwrap();
    assert_eq!(id.user_data(), 0);
    id.setup_user_data(7);
    id.setup_context("beside it");
    assert_eq!(id.clone().user_data(), 7);
}

#[test]
fn names_are_looked_up() {
    let (_fake, channel) = lying(|_| {});
    let mut hints = AddressInfoHints::new();
    hints
        .setup_port_space(PortSpace::Tcp)
        .setup_destination(addr("[::1]:7"))
        .setup_source(addr("192.0.2.1:0"));
    let found = getaddrinfo_of(provider(), Some("peer"), Some("7"), &hints).unwrap();
    assert_eq!((found.len(), found[0].family(), found[0].port_space().raw()), (2, 4242, 77));
    assert_eq!((found[0].source(), found[0].destination()), (Some(&addr("192.0.2.1:4711")), None));
    assert_eq!((found[0].destination_name(), found[0].source_name()), (Some(c"peer.example"), None));
    assert_eq!((found[0].connect_data(), found[0].route()), (&b"data"[..], &b""[..]));
    assert_eq!((found[1].source(), found[1].flags().is_empty()), (None, true));
    let id = channel.create_id(PortSpace::Tcp).unwrap();
    id.resolve_addrinfo(Some("peer"), None, &hints).unwrap();
    next(&channel, EventType::AddressInfoResolved);
    assert_eq!(id.query_addrinfo().unwrap(), found);
}

#[test]
fn the_program_writes_events_of_its_own() {
    let (_fake, channel) = lying(|_| {});
    let id = channel.create_id(PortSpace::Tcp).unwrap();
    id.write_user_event(5, u64::MAX - 1).unwrap();
    let event = next(&channel, EventType::User);
    assert_eq!((event.status().raw(), event.user_argument()), (5, Some(u64::MAX - 1)));
    assert_eq!(event.private_data(), b"");
}

#[test]
#[cfg_attr(miri, ignore = "waits for descriptors")]
fn waiting_ends_by_time_by_an_event_or_by_closing() {
    let (fake, channel) = lying(|_| {});
    assert!(channel.as_fd().try_clone_to_owned().is_ok());
    assert!(channel.get_cm_event_timeout(Duration::from_millis(1)).unwrap().is_none());
    let id = channel.create_id(PortSpace::Tcp).unwrap();
    fake.world.cm.push(id.as_raw().as_ptr(), E::RDMA_CM_EVENT_ESTABLISHED, |_| {});
    assert_eq!(channel.get_cm_event().unwrap().event_type(), EventType::Established);
    let waiters: Vec<_> = (0..3)
        .map(|_| {
            let channel = channel.clone();
            std::thread::spawn(move || channel.get_cm_event())
        })
        .collect();
    std::thread::sleep(Duration::from_millis(20));
    channel.close();
    for waiter in waiters {
        assert!(matches!(waiter.join().unwrap(), Err(error) if error.kind() == ErrorKind::Closed));
    }
    assert!(matches!(channel.get_cm_event(), Err(error) if error.kind() == ErrorKind::Closed));
    assert!(matches!(channel.try_get_cm_event(), Err(error) if error.kind() == ErrorKind::Closed));
    assert!(matches!(channel.get_cm_event_timeout(SECOND), Err(error) if error.kind() == ErrorKind::Closed));
    // Unread events are discarded with the identifier.
    fake.world.cm.push(id.as_raw().as_ptr(), E::RDMA_CM_EVENT_ESTABLISHED, |_| {});
}
