//! Connection manager tests: rejected calls, complete cleanup, datagram services and multicast
//! groups.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use sideway::ErrorKind;
use sideway::ibverbs::queue_pair::{GenericQueuePair, PostSendGuard, QueuePair};
use sideway::rdmacm;
use sideway::rdmacm::{
    AddressInfoFlags, AddressInfoHints, ConnectionParameter, EventType, IdentifierState, JoinFlags,
    PortSpace, getaddrinfo,
};

use crate::cm_site::{
    CmNode, CmTestDevice, PATIENCE, RESOLUTION, assert_data, channel_of_ones_own, expect, node,
};
use crate::harness::{Outcome, Suite, TestDevice};
use crate::node::SIGNALED;
use crate::support::errors::assert_error;

pub(crate) fn cases(suite: &mut Suite) {
    cases!(suite:
        addresses_that_are_not_to_be_had,
        ports_are_chosen_and_shared_if_asked_for,
        private_data_has_a_limit,
        the_order_of_steps_is_kept,
        an_address_that_nobody_has_is_looked_for_so_long,
        a_wait_ends_when_the_channel_is_closed,
        identifiers_go_with_events_pending,
        identifiers_move_between_channels,
        nothing_is_left_behind,
        options_are_taken,
        numbers_are_addresses,
        a_datagram_service_is_found_and_used,
        a_group_is_joined_and_used,
        a_group_is_left_before_it_is_joined,
    );
}

fn addresses_that_are_not_to_be_had(test_device: &TestDevice) -> Outcome {
    let cm_device = CmTestDevice::of(test_device)?;
    let channel = channel_of_ones_own();
    let id = channel.create_id(PortSpace::Tcp).unwrap();
    let elsewhere: std::net::SocketAddr = "192.0.2.77:7471".parse().unwrap();
    match id.bind_addr(elsewhere) {
        Err(error) => assert_error(
            &error,
            ErrorKind::AddressNotLocal,
            &[("address", &rdmacm::Address::from(elsewhere))],
        ),
        other => panic!("{other:?}"),
    }
    let listener = cm_device.listener(&channel, PortSpace::Tcp);
    let taken = cm_device.at(listener.local_port().unwrap());
    match id.bind_addr(taken.clone()) {
        Err(error) => assert_error(&error, ErrorKind::AddressInUse, &[("address", &taken)]),
        other => panic!("{other:?}"),
    }
    // The identifier can still be bound.
    id.bind_addr(cm_device.at(0)).unwrap();
    assert_eq!(id.state(), IdentifierState::Bound);
    match id.bind_addr(cm_device.at(0)) {
        Err(error) => assert_error(&error, ErrorKind::InvalidState, &[("state", &IdentifierState::Bound)]),
        other => panic!("{other:?}"),
    }
    Ok(())
}

fn ports_are_chosen_and_shared_if_asked_for(test_device: &TestDevice) -> Outcome {
    let cm_device = CmTestDevice::of(test_device)?;
    let channel = channel_of_ones_own();
    let first = channel.create_id(PortSpace::Tcp).unwrap();
    first.set_reuse_address(true).unwrap();
    first.bind_addr(cm_device.at(0)).unwrap();
    let port = first.local_port().unwrap();
    assert_ne!(port, 0);
    let second = channel.create_id(PortSpace::Tcp).unwrap();
    second.set_reuse_address(true).unwrap();
    second.bind_addr(cm_device.at(port)).unwrap();
    // Only one listener is allowed at an address.
    match first.listen(1) {
        Err(error) => assert_error(&error, ErrorKind::AddressInUse, &[("address", &cm_device.at(port))]),
        other => panic!("{other:?}"),
    }
    drop(second);
    first.listen(1).unwrap();
    Ok(())
}

fn private_data_has_a_limit(test_device: &TestDevice) -> Outcome {
    let cm_device = CmTestDevice::of(test_device)?;
    let r = cm_device.requested(&[7; 56]);
    assert_eq!(r.request.private_data(), [7; 56]);
    let active = cm_device.resolved(&r.channel, &r.listener);
    match active.connect(ConnectionParameter::new().setup_private_data(&[1; 57])) {
        Err(error) => {
            assert_error(&error, ErrorKind::PrivateDataTooLong, &[("length", &57), ("limit", &56)]);
        }
        other => panic!("{other:?}"),
    }
    let id = r.request.cm_id();
    match id.accept(ConnectionParameter::new().setup_private_data(&[1; 197])) {
        Err(error) => {
            assert_error(&error, ErrorKind::PrivateDataTooLong, &[("length", &197), ("limit", &196)]);
        }
        other => panic!("{other:?}"),
    }
    match r.request.cm_id().reject(&[1; 256]) {
        Err(error) => {
            assert_error(&error, ErrorKind::PrivateDataTooLong, &[("length", &256), ("limit", &148)]);
        }
        other => panic!("{other:?}"),
    }
    Ok(())
}

fn the_order_of_steps_is_kept(test_device: &TestDevice) -> Outcome {
    let cm_device = CmTestDevice::of(test_device)?;
    let channel = channel_of_ones_own();
    let id = channel.create_id(PortSpace::Tcp).unwrap();
    match id.resolve_route(RESOLUTION) {
        Err(error) => assert_error(
            &error,
            ErrorKind::NoDevice,
            &[("state", &IdentifierState::Idle), ("lacks_guid", &false)],
        ),
        other => panic!("{other:?}"),
    }
    id.bind_addr(cm_device.at(0)).unwrap();
    match id.resolve_route(RESOLUTION) {
        Err(error) => assert_error(&error, ErrorKind::InvalidState, &[("state", &IdentifierState::Bound)]),
        other => panic!("{other:?}"),
    }
    match id.connect(&ConnectionParameter::new()) {
        Err(error) => assert_error(&error, ErrorKind::InvalidState, &[("state", &IdentifierState::Bound)]),
        other => panic!("{other:?}"),
    }
    assert!(id.disconnect().is_err());
    assert!(id.establish().is_err());
    match id.accept(&ConnectionParameter::new()) {
        Err(error) => assert_error(&error, ErrorKind::InvalidState, &[("state", &IdentifierState::Bound)]),
        other => panic!("{other:?}"),
    }
    id.listen(1).unwrap();
    Ok(())
}

fn an_address_that_nobody_has_is_looked_for_so_long(test_device: &TestDevice) -> Outcome {
    let cm_device = CmTestDevice::of(test_device)?;
    let nobody = cm_device.nobody()?;
    let channel = channel_of_ones_own();
    let id = channel.create_id(PortSpace::Tcp).unwrap();
    id.resolve_addr(Some(cm_device.at(0)), nobody.clone(), Duration::from_millis(300)).unwrap();
    let event = expect(&channel, EventType::AddressError);
    assert!(event.status().error().is_some(), "{event:?}");
    let text = event.error().unwrap().to_string();
    assert!(text.contains(&nobody.to_string()), "{text}");
    Ok(())
}

fn a_wait_ends_when_the_channel_is_closed(test_device: &TestDevice) -> Outcome {
    CmTestDevice::of(test_device)?;
    let channel = channel_of_ones_own();
    assert!(channel.get_cm_event_timeout(Duration::from_millis(20)).unwrap().is_none());
    thread::scope(|scope| {
        let waiter = scope.spawn(|| channel.get_cm_event());
        thread::sleep(Duration::from_millis(50));
        channel.close();
        assert!(matches!(waiter.join().unwrap(), Err(error) if error.kind() == ErrorKind::Closed));
    });
    Ok(())
}

fn identifiers_go_with_events_pending(test_device: &TestDevice) -> Outcome {
    let cm_device = CmTestDevice::of(test_device)?;
    let channel = channel_of_ones_own();
    for _ in 0..20 {
        let id = channel.create_id(PortSpace::Tcp).unwrap();
        id.resolve_addr(None, cm_device.at(9), RESOLUTION).unwrap();
        // The request may or may not be answered at this point.
        drop(id);
    }
    let listener = cm_device.listener(&channel, PortSpace::Tcp);
    let theirs = channel_of_ones_own();
    let active: Vec<_> = (0..5).map(|_| cm_device.resolved(&theirs, &listener)).collect();
    for id in &active {
        id.connect(&ConnectionParameter::new()).unwrap();
    }
    let held = expect(&channel, EventType::ConnectRequest);
    drop(listener);
    // All peers get their event, whether the held event or the queue kept the identifiers.
    drop(held);
    for _ in &active {
        expect(&theirs, EventType::Rejected);
    }
    assert!(channel.try_get_cm_event().unwrap().is_none());
    Ok(())
}

fn identifiers_move_between_channels(test_device: &TestDevice) -> Outcome {
    let cm_device = CmTestDevice::of(test_device)?;
    let (one, two) = (channel_of_ones_own(), channel_of_ones_own());
    let id = one.create_id(PortSpace::Tcp).unwrap();
    id.resolve_addr(None, cm_device.at(9), RESOLUTION).unwrap();
    id.migrate(&two).unwrap();
    drop(one);
    assert_eq!(*expect(&two, EventType::AddressResolved).cm_id(), id);
    assert_eq!(id.event_channel(), two);
    Ok(())
}

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

fn nothing_is_left_behind(test_device: &TestDevice) -> Outcome {
    let cm_device = CmTestDevice::of(test_device)?;
    let round = || {
        let r = cm_device.requested(b"x");
        let a: CmNode<GenericQueuePair> = node(&r.active);
        a.qp.state().unwrap();
        match r.request.cm_id().local_port().unwrap() % 2 {
            0 => r.request.cm_id().reject(b"").unwrap(),
            _ => r.request.cm_id().accept(ConnectionParameter::new().setup_qp_number(1)).unwrap(),
        }
    };
    // Warm-up: the library opens its permanent descriptors now.
    (0..2).for_each(|_| round());
    let before = descriptors();
    (0..20).for_each(|_| round());
    assert_eq!(descriptors(), before);
    Ok(())
}

fn options_are_taken(test_device: &TestDevice) -> Outcome {
    let cm_device = CmTestDevice::of(test_device)?;
    let channel = channel_of_ones_own();
    let id = channel.create_id(PortSpace::Tcp).unwrap();
    id.set_type_of_service(0x20).unwrap();
    id.set_ack_timeout(12).unwrap();
    id.set_address_family_only(true).unwrap();
    id.bind_addr(cm_device.at(0)).unwrap();
    let error = id.set_option(99, 99, &[1]).unwrap_err();
    assert!(error.to_string().contains("99"), "{error}");
    Ok(())
}

fn numbers_are_addresses(test_device: &TestDevice) -> Outcome {
    CmTestDevice::of(test_device)?;
    let mut hints = AddressInfoHints::new();
    hints
        .setup_flags(AddressInfoFlags::Passive | AddressInfoFlags::NumericHost)
        .setup_port_space(PortSpace::Tcp);
    let found = getaddrinfo(Some("127.0.0.1"), Some("7471"), &hints).unwrap();
    assert_eq!(found[0].source().and_then(|address| address.port()), Some(7471), "{found:?}");
    assert_eq!(found[0].port_space(), PortSpace::Tcp);
    assert!(getaddrinfo(Some("no.such.host.invalid"), None, &hints).is_err());
    Ok(())
}

fn a_datagram_service_is_found_and_used(test_device: &TestDevice) -> Outcome {
    let cm_device = CmTestDevice::of(test_device)?;
    let (here, there) = (channel_of_ones_own(), channel_of_ones_own());
    let listener = cm_device.listener(&there, PortSpace::Udp);
    let active = cm_device.resolved(&here, &listener);
    let mut a: CmNode<GenericQueuePair> = node(&active);
    let mut parameter = ConnectionParameter::new();
    active.connect(parameter.setup_private_data(b"where?").setup_queue_pair(a.qp.control())).unwrap();
    let request = expect(&there, EventType::ConnectRequest);
    assert_data(request.private_data(), b"where?");
    let passive = request.into_cm_id();
    let mut b: CmNode<GenericQueuePair> = node(&passive);
    b.receive(&[(1, &[(0, 1000)])]).unwrap();
    passive.accept(parameter.setup_private_data(b"here").setup_queue_pair(b.qp.control())).unwrap();
    let established = expect(&here, EventType::Established);
    assert_data(established.private_data(), b"here");
    let service = *established.datagram().unwrap();
    assert_eq!(service.qp_num, b.qp.qp_number());
    let ah = a.pd.create_ah(&service.address).unwrap();
    a.memory.set(0, &[42; 100]);
    let mut guard = a.qp.start_post_send();
    let send =
        guard.construct_wr(5, SIGNALED).setup_ud_address(&ah, service.qp_num, service.qkey).setup_send();
    // SAFETY: the node's memory outlives its pair, and no reference to it is made.
    unsafe { send.setup_sge(a.mr.lkey(), a.mr.get_ptr() as u64, 100) };
    guard.post().unwrap();
    a.sent(1);
    assert_eq!(b.received(1)[0].byte_len, Some(140));
    assert_eq!(b.memory.get(40, 100), [42; 100]);
    // A missing listener is reported as unreachable.
    let lonely = cm_device.resolved(&here, &listener);
    drop((listener, passive));
    lonely.connect(ConnectionParameter::new().setup_qp_number(1)).unwrap();
    let unreachable = expect(&here, EventType::Unreachable);
    assert!(unreachable.error().is_some());
    Ok(())
}

fn a_group_is_joined_and_used(test_device: &TestDevice) -> Outcome {
    let cm_device = CmTestDevice::of(test_device)?;
    let channel = channel_of_ones_own();
    let id = channel.create_id(PortSpace::Udp).unwrap();
    id.bind_addr(cm_device.at(0)).unwrap();
    let group: std::net::SocketAddr = "239.1.2.3:0".parse().unwrap();
    let mut a: CmNode<GenericQueuePair> = node(&id);
    id.join_multicast(group, JoinFlags::FullMember, 4711).unwrap();
    let event = expect(&channel, EventType::MulticastJoin);
    assert!(event.status().is_success(), "{event:?}");
    let joined = *event.multicast().unwrap();
    assert_eq!((joined.context, joined.qp_num), (4711, 0xff_ffff));
    assert!(joined.gid().is_multicast(), "{}", joined.gid());
    let membership = a.qp.control().attach_mcast(joined.gid(), joined.lid()).unwrap();
    a.receive(&[(1, &[(0, 1000)])]).unwrap();
    let ah = a.pd.create_ah(&joined.address).unwrap();
    let mut guard = a.qp.start_post_send();
    let send = guard.construct_wr(5, SIGNALED).setup_ud_address(&ah, joined.qp_num, joined.qkey).setup_send();
    // SAFETY: the node's memory outlives its pair, and no reference to it is made.
    unsafe { send.setup_sge(a.mr.lkey(), a.mr.get_ptr() as u64 + 8192, 10) };
    guard.post().unwrap();
    a.sent(1);
    assert_eq!(a.received(1)[0].byte_len, Some(50));
    membership.detach().unwrap();
    id.leave_multicast(group).unwrap();
    assert!(id.leave_multicast(group).is_err());
    Ok(())
}

fn a_group_is_left_before_it_is_joined(test_device: &TestDevice) -> Outcome {
    let cm_device = CmTestDevice::of(test_device)?;
    let channel = channel_of_ones_own();
    let id = channel.create_id(PortSpace::Udp).unwrap();
    id.bind_addr(cm_device.at(0)).unwrap();
    let [one, two]: [std::net::SocketAddr; 2] =
        ["239.1.2.3:0", "239.1.2.4:0"].map(|group| group.parse().unwrap());
    for round in 0..20 {
        id.join_multicast(one, JoinFlags::FullMember, round).unwrap();
        id.leave_multicast(one).unwrap();
        assert!(id.multicast_groups().is_empty());
        let error = id.join_multicast(one, JoinFlags::FullMember, round).unwrap_err();
        assert_error(&error, ErrorKind::InvalidState, &[("group", &rdmacm::Address::from(one))]);
        // Only the group that was not left gets an event.
        id.join_multicast(two, JoinFlags::FullMember, 1000 + round).unwrap();
        let event = expect(&channel, EventType::MulticastJoin);
        assert_eq!(event.multicast_context(), Some(1000 + round));
        id.leave_multicast(two).unwrap();
        // Joins may be answered in any order.
        let end = Instant::now() + PATIENCE;
        while let Err(error) = id.join_multicast(one, JoinFlags::FullMember, 2000 + round) {
            assert!(
                error.kind() == ErrorKind::InvalidState && error.errno().is_none() && Instant::now() < end,
                "{error}"
            );
            assert!(channel.get_cm_event_timeout(Duration::from_millis(10)).unwrap().is_none());
        }
        assert_eq!(expect(&channel, EventType::MulticastJoin).multicast_context(), Some(2000 + round));
        id.leave_multicast(one).unwrap();
    }
    id.join_multicast(one, JoinFlags::FullMember, 1).unwrap();
    drop(id);
    assert!(channel.try_get_cm_event().unwrap().is_none());
    Ok(())
}
