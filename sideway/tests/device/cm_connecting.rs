//! Connection manager tests: connections are established, rejected, used and closed.

use std::os::fd::AsFd;
use std::thread;
use std::time::Duration;

use sideway::ibverbs::completion::WorkCompletionStatus;
use sideway::ibverbs::ece::Ece;
use sideway::ibverbs::queue_pair::{GenericQueuePair, QueuePair, QueuePairState};
use sideway::rdmacm::{
    ConnectError, ConnectionParameter, Connector, EventError, EventType, IdentifierState, Listener,
    PortSpace, RejectReason, get_devices,
};

use crate::cm_site::{
    CmNode, CmTestDevice, PATIENCE, RESOLUTION, assert_data, channel_of_ones_own, expect, node, ready,
};
use crate::harness::{Outcome, Suite, TestDevice};
use crate::node::{Data, Op, pattern};
use crate::support::flavour::QpFlavour;

pub(crate) fn cases(suite: &mut Suite) {
    each_qp!(suite: a_connection_carries_messages);
    cases!(suite:
        both_sides_on_one_channel,
        sides_without_events_connect_and_part,
        a_rejection_arrives_with_its_data,
        nobody_listens_there,
        a_request_that_nobody_takes_is_rejected,
        a_request_is_closed_by_who_asked,
        the_parameters_arrive,
        an_address_can_be_chosen_to_connect_from,
        many_connections_come_in_at_one_listener,
        a_device_outlives_its_identifiers,
        the_devices_are_listed,
        vendors_options_arrive,
    );
}

fn a_connection_carries_messages<Q: QpFlavour>(test_device: &TestDevice) -> Outcome {
    let cm_device = CmTestDevice::of(test_device)?;
    let (here, there) = (channel_of_ones_own(), channel_of_ones_own());
    let listener = cm_device.listener(&there, PortSpace::Tcp);
    let active = cm_device.resolved(&here, &listener);
    let mut a = node::<Q>(&active);
    let mut parameter = ConnectionParameter::new();
    parameter.setup_private_data(b"who is there?").setup_queue_pair(a.qp.control());
    active.connect(&parameter).unwrap();

    let request = expect(&there, EventType::ConnectRequest);
    assert_data(request.private_data(), b"who is there?");
    assert_eq!(request.connection().unwrap().qp_num, a.qp.qp_number());
    let passive = request.into_cm_id();
    let mut b = node::<Q>(&passive);
    b.receive(&[(1, &[(0, 4096)])]).unwrap();
    ready(&passive, &mut b.qp);
    passive.accept(parameter.setup_private_data(b"it is me").setup_queue_pair(b.qp.control())).unwrap();

    let response = expect(&here, EventType::ConnectResponse);
    assert_data(response.private_data(), b"it is me");
    assert_eq!(response.connection().unwrap().qp_num, b.qp.qp_number());
    a.receive(&[(2, &[(0, 4096)])]).unwrap();
    ready(&active, &mut a.qp);
    active.establish().unwrap();
    let established = expect(&there, EventType::Established);
    assert_eq!((established.cm_id(), passive.state()), (&passive, IdentifierState::Connected));
    assert_eq!((active.local_addr(), active.peer_addr()), (passive.peer_addr(), passive.local_addr()));
    assert_eq!(active.peer_port(), listener.local_port());

    say(&mut a, &mut b, 3);
    say(&mut b, &mut a, 5);
    active.disconnect().unwrap();
    expect(&there, EventType::Disconnected);
    // The side that disconnected first gets its event when the other has responded.
    passive.disconnect().unwrap();
    expect(&here, EventType::Disconnected);
    assert_eq!(
        (active.state(), passive.state()),
        (IdentifierState::Disconnected, IdentifierState::Disconnected)
    );
    // The program owns the pair: outstanding requests end when the program moves it to the error
    // state.
    b.receive(&[(3, &[(0, 4096)])]).unwrap();
    let mut error = sideway::ibverbs::queue_pair::QueuePairAttribute::new();
    b.modify(error.setup_state(QueuePairState::Error)).unwrap();
    assert_eq!(b.received(1)[0].status, WorkCompletionStatus::WorkRequestFlushedError);
    Ok(())
}

fn say<Q: QpFlavour>(from: &mut CmNode<Q>, to: &mut CmNode<Q>, seed: u8) {
    let sent = pattern(seed, 2000);
    from.memory.set(8192, &sent);
    from.run(Op::Send, Data::At(8192, 2000));
    assert_eq!(to.received(1)[0].byte_len, Some(2000));
    assert_eq!(to.memory.get(0, 2000), sent);
}

/// A program with one thread.
fn both_sides_on_one_channel(test_device: &TestDevice) -> Outcome {
    let cm_device = CmTestDevice::of(test_device)?;
    let channel = channel_of_ones_own();
    let listener = cm_device.listener(&channel, PortSpace::Tcp);
    let active = cm_device.resolved(&channel, &listener);
    active.connect(ConnectionParameter::new().setup_qp_number(17)).unwrap();
    let passive = expect(&channel, EventType::ConnectRequest).into_cm_id();
    passive.setup_context("passive");
    passive.accept(ConnectionParameter::new().setup_qp_number(18)).unwrap();
    assert_eq!(*expect(&channel, EventType::ConnectResponse).cm_id(), active);
    active.establish().unwrap();
    let event = expect(&channel, EventType::Established);
    assert_eq!(event.cm_id().get_context::<&str>().as_deref(), Some(&"passive"));
    drop((event, passive));
    // Dropping one end disconnects.
    assert_eq!(*expect(&channel, EventType::Disconnected).cm_id(), active);
    Ok(())
}

fn sides_without_events_connect_and_part(test_device: &TestDevice) -> Outcome {
    let cm_device = CmTestDevice::of(test_device)?;
    let listener = Listener::bind(cm_device.at(0), 4).unwrap();
    let to = cm_device.at(listener.local_addr().unwrap().port().unwrap());
    thread::scope(|scope| {
        scope.spawn(|| {
            let request = listener.get_request_timeout(PATIENCE).unwrap().expect("a request");
            assert_data(request.private_data(), b"hello");
            let mut b: CmNode<GenericQueuePair> = node(request.id());
            b.receive(&[(1, &[(0, 64)])]).unwrap();
            let connection = request.accept(&mut b.qp, &ConnectionParameter::new()).unwrap();
            assert_eq!(b.received(1)[0].byte_len, Some(5));
            assert!(connection.wait_disconnected(PATIENCE).unwrap());
        });
        let connector = Connector::resolve(to, RESOLUTION).unwrap();
        let mut a: CmNode<GenericQueuePair> = node(connector.id());
        let mut parameter = ConnectionParameter::new();
        let connection = connector.connect(&mut a.qp, parameter.setup_private_data(b"hello")).unwrap();
        a.run(Op::Send, Data::At(0, 5));
        connection.disconnect().unwrap();
    });
    // A request that is rejected.
    let to = cm_device.at(listener.local_addr().unwrap().port().unwrap());
    thread::scope(|scope| {
        scope.spawn(|| {
            listener.get_request_timeout(PATIENCE).unwrap().expect("a request").reject(b"not today").unwrap();
        });
        let connector = Connector::resolve(to, RESOLUTION).unwrap();
        let mut a: CmNode<GenericQueuePair> = node(connector.id());
        match connector.connect(&mut a.qp, &ConnectionParameter::new()) {
            Err(ConnectError::Event(EventError::Rejected { private_data, reason, .. })) => {
                assert_data(&private_data, b"not today");
                assert_eq!(reason, Some(RejectReason::ConsumerReject));
            }
            other => panic!("{other:?}"),
        }
    });
    Ok(())
}

fn a_rejection_arrives_with_its_data(test_device: &TestDevice) -> Outcome {
    let cm_device = CmTestDevice::of(test_device)?;
    let r = cm_device.requested(b"let me in");
    assert_data(r.request.private_data(), b"let me in");
    r.request.cm_id().reject(b"no").unwrap();
    let rejected = expect(&r.channel, EventType::Rejected);
    assert_eq!(rejected.reject_reason(), Some(RejectReason::ConsumerReject));
    assert_data(rejected.private_data(), b"no");
    assert_eq!((rejected.cm_id(), r.active.state()), (&r.active, IdentifierState::Rejected));
    Ok(())
}

fn nobody_listens_there(test_device: &TestDevice) -> Outcome {
    let cm_device = CmTestDevice::of(test_device)?;
    let channel = channel_of_ones_own();
    let listener = cm_device.listener(&channel_of_ones_own(), PortSpace::Tcp);
    let active = cm_device.resolved(&channel, &listener);
    drop(listener);
    active.connect(&ConnectionParameter::new()).unwrap();
    let rejected = expect(&channel, EventType::Rejected);
    assert_eq!(rejected.reject_reason(), Some(RejectReason::InvalidServiceId));
    assert!(rejected.error().unwrap().to_string().contains("nobody listens there"));
    Ok(())
}

fn a_request_that_nobody_takes_is_rejected(test_device: &TestDevice) -> Outcome {
    let r = CmTestDevice::of(test_device)?.requested(b"");
    drop(r.request);
    let rejected = expect(&r.channel, EventType::Rejected);
    assert_eq!(rejected.reject_reason(), Some(RejectReason::ConsumerReject));
    drop((r.listener, r.theirs));
    Ok(())
}

fn a_request_is_closed_by_who_asked(test_device: &TestDevice) -> Outcome {
    let r = CmTestDevice::of(test_device)?.requested(b"");
    drop((r.active, r.channel));
    // The type of the event depends on how far the response had come. In any case an event comes,
    // and the identifier is destroyed.
    let id = r.request.into_cm_id();
    let accepted = id.accept(ConnectionParameter::new().setup_qp_number(3));
    let event = r.theirs.get_cm_event_timeout(Duration::from_millis(200)).unwrap();
    if let (Ok(()), Some(event)) = (accepted, event) {
        assert_ne!(event.event_type(), EventType::Established, "{event:?}");
    }
    Ok(())
}

fn the_parameters_arrive(test_device: &TestDevice) -> Outcome {
    let cm_device = CmTestDevice::of(test_device)?;
    let (here, there) = (channel_of_ones_own(), channel_of_ones_own());
    let listener = cm_device.listener(&there, PortSpace::Tcp);
    let active = cm_device.resolved(&here, &listener);
    let data = pattern(9, 56);
    let mut parameter = ConnectionParameter::new();
    parameter
        .setup_private_data(&data)
        .setup_qp_number(0x1234)
        .setup_responder_resources(2)
        .setup_initiator_depth(3);
    parameter.setup_retry_count(5).setup_rnr_retry_count(6).setup_flow_control(true).setup_srq(true);
    active.connect(&parameter).unwrap();
    let request = expect(&there, EventType::ConnectRequest);
    let info = request.connection().unwrap();
    // The responder resources of one side are the initiator depth of the other.
    assert_eq!((info.responder_resources, info.initiator_depth, info.qp_num), (3, 2, 0x1234));
    assert_eq!((info.retry_count, info.rnr_retry_count), (5, 6));
    assert_eq!((info.flow_control, info.srq), (true, true));
    assert_eq!(request.private_data(), data);
    let longest = pattern(1, 196);
    request
        .cm_id()
        .accept(ConnectionParameter::new().setup_private_data(&longest).setup_qp_number(0x4321))
        .unwrap();
    let response = expect(&here, EventType::ConnectResponse);
    assert_eq!(response.private_data(), longest);
    assert_eq!(response.connection().unwrap().qp_num, 0x4321);
    Ok(())
}

fn an_address_can_be_chosen_to_connect_from(test_device: &TestDevice) -> Outcome {
    let cm_device = CmTestDevice::of(test_device)?;
    let channel = channel_of_ones_own();
    let id = channel.create_id(PortSpace::Tcp).unwrap();
    id.resolve_addr(Some(cm_device.at(0)), cm_device.at(7), RESOLUTION).unwrap();
    expect(&channel, EventType::AddressResolved);
    assert_eq!(id.local_addr().unwrap().ip().map(|a| a.ip()), cm_device.at(0).ip().map(|a| a.ip()));
    assert!(id.local_port().is_some_and(|port| port != 0));
    assert_eq!(id.port(), Some(test_device.port));
    Ok(())
}

/// Uses one thread, one channel, and its descriptor.
fn many_connections_come_in_at_one_listener(test_device: &TestDevice) -> Outcome {
    const COUNT: usize = 40;
    let cm_device = CmTestDevice::of(test_device)?;
    let channel = channel_of_ones_own();
    assert!(channel.as_fd().try_clone_to_owned().is_ok());
    let listener = cm_device.listener(&channel, PortSpace::Tcp);
    let mut active: Vec<_> = (0..COUNT).map(|_| cm_device.resolved(&channel, &listener)).collect();
    // A queue pair is in one connection at a time: the listener's side rejects another one as
    // stale.
    for (number, id) in (17..).zip(&active) {
        id.connect(ConnectionParameter::new().setup_qp_number(number)).unwrap();
    }
    let (mut passive, mut established) = (Vec::new(), 0);
    while established < COUNT {
        let event = channel.get_cm_event_timeout(PATIENCE).unwrap().expect("an event");
        match event.event_type() {
            EventType::ConnectRequest => {
                let id = event.into_cm_id();
                id.accept(ConnectionParameter::new().setup_qp_number(0x200 + passive.len() as u32)).unwrap();
                passive.push(id);
            }
            EventType::ConnectResponse => event.cm_id().establish().unwrap(),
            EventType::Established => established += 1,
            other => panic!("{other}: {event:?}"),
        }
    }
    // Each side drops half of its identifiers, alternately; the peers of the dropped ones get
    // events.
    active.truncate(COUNT / 2);
    let mut told = 0;
    while told < COUNT / 2 {
        let event = channel.get_cm_event_timeout(PATIENCE).unwrap().expect("an event");
        told += usize::from(event.event_type() == EventType::Disconnected);
    }
    Ok(())
}

fn a_device_outlives_its_identifiers(test_device: &TestDevice) -> Outcome {
    let cm_device = CmTestDevice::of(test_device)?;
    let channel = channel_of_ones_own();
    let id = channel.create_id(PortSpace::Tcp).unwrap();
    id.bind_addr(cm_device.at(0)).unwrap();
    let other = channel.create_id(PortSpace::Tcp).unwrap();
    other.bind_addr(cm_device.at(0)).unwrap();
    let context = id.get_device_context().unwrap();
    assert_eq!((&context, context.name()), (&other.get_device_context().unwrap(), cm_device.device.clone()));
    let n: CmNode<GenericQueuePair> = node(&id);
    drop((id, other, channel, context));
    assert_eq!(n.qp.state().unwrap(), QueuePairState::Init);
    n.context.query_device().unwrap();
    drop(n);
    // The same after all identifiers are gone.
    let id = channel_of_ones_own().create_id(PortSpace::Tcp).unwrap();
    id.bind_addr(cm_device.at(0)).unwrap();
    id.get_device_context().unwrap().alloc_pd().unwrap();
    Ok(())
}

fn the_devices_are_listed(test_device: &TestDevice) -> Outcome {
    let cm_device = CmTestDevice::of(test_device)?;
    let devices = get_devices().unwrap();
    assert!(devices.iter().any(|device| device.name() == cm_device.device), "{devices:?}");
    Ok(())
}

fn vendors_options_arrive(test_device: &TestDevice) -> Outcome {
    let cm_device = CmTestDevice::of(test_device)?;
    // Nobody said anything.
    let silent = cm_device.requested(b"");
    assert_eq!(silent.request.cm_id().get_remote_ece().unwrap(), Ece { vendor_id: 0, options: 0 });
    let (here, there) = (channel_of_ones_own(), channel_of_ones_own());
    let listener = cm_device.listener(&there, PortSpace::Tcp);
    let active = cm_device.resolved(&here, &listener);
    let wanted = Ece { vendor_id: 0x1234, options: 7 };
    active.set_local_ece(wanted).unwrap();
    active.connect(ConnectionParameter::new().setup_qp_number(3)).unwrap();
    let passive = expect(&there, EventType::ConnectRequest).into_cm_id();
    assert_eq!(passive.get_remote_ece().unwrap(), wanted);
    // The response contains options of the same vendor.
    let accepted = Ece { vendor_id: 0x1234, options: 5 };
    passive.set_local_ece(accepted).unwrap();
    passive.accept(ConnectionParameter::new().setup_qp_number(4)).unwrap();
    expect(&here, EventType::ConnectResponse);
    assert_eq!(active.get_remote_ece().unwrap(), accepted);
    Ok(())
}
