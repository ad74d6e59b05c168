//! Event channels of the connection manager (`man rdma_create_event_channel`, `man
//! rdma_get_cm_event`, `man rdma_migrate_id`).

use std::thread;
use std::time::Duration;

use libc::{EAGAIN, EINVAL};

use crate::kit::{CmDevice, Kind, Outcome, Space, Suite, TestDevice};

pub(crate) fn cases(suite: &mut Suite) {
    cases!(suite:
        channels_have_descriptors_of_their_own,
        a_channel_without_events_is_not_readable,
        an_event_makes_its_channel_readable_until_it_is_taken,
        a_channel_can_be_asked_without_waiting,
        a_thread_waits_for_an_event,
        events_come_in_their_order,
        a_channel_serves_many_identifiers,
        an_identifier_tells_what_it_was_made_of,
        an_identifier_of_an_unknown_port_space_is_refused,
        an_identifier_moves_to_another_channel,
        waiting_events_move_along,
        moving_waits_for_acknowledgements,
        destroying_waits_for_acknowledgements,
        events_of_others_may_wait_while_one_is_destroyed,
        events_that_were_not_taken_go_with_their_identifier,
        events_are_acknowledged_in_any_order,
        acknowledging_no_event_is_refused,
        events_have_names,
        many_identifiers_are_made,
    );
}

/// How long to wait for an event that must not come.
const A_WHILE: Duration = Duration::from_millis(200);

fn channels_have_descriptors_of_their_own(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let (a, b) = (cm_device.channel(), cm_device.channel());
    assert!(a.fd() >= 0 && b.fd() >= 0 && a.fd() != b.fd(), "{} {}", a.fd(), b.fd());
    Ok(())
}

fn a_channel_without_events_is_not_readable(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let end = cm_device.bound(Space::RDMA_PS_TCP);
    assert!(end.channel.is_quiet(), "binding is no event");
    Ok(())
}

fn an_event_makes_its_channel_readable_until_it_is_taken(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let (end, other) = (cm_device.create_id(Space::RDMA_PS_TCP), cm_device.create_id(Space::RDMA_PS_TCP));
    end.id.resolve_addr(None, cm_device.at(4791), 2000).unwrap();
    assert!(end.channel.is_ready(Duration::from_secs(4)));
    assert!(!end.channel.is_quiet(), "asking the descriptor takes nothing");
    let event = end.channel.event();
    assert!(end.channel.is_quiet() && other.channel.is_quiet(), "taken, although not acknowledged");
    assert_eq!(event.kind(), Kind::RDMA_CM_EVENT_ADDR_RESOLVED);
    Ok(())
}

/// "The default synchronous behavior of this routine can be changed by modifying the file
/// descriptor."
fn a_channel_can_be_asked_without_waiting(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let end = cm_device.create_id(Space::RDMA_PS_TCP);
    end.channel.set_nonblocking();
    assert_eq!(end.channel.take().err(), Some(EAGAIN));
    end.id.resolve_addr(None, cm_device.at(4791), 2000).unwrap();
    end.channel.expect_good(Kind::RDMA_CM_EVENT_ADDR_RESOLVED);
    assert_eq!(end.channel.take().err(), Some(EAGAIN));
    Ok(())
}

fn a_thread_waits_for_an_event(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let end = cm_device.create_id(Space::RDMA_PS_TCP);
    let channel = end.channel.clone();
    let waiter = thread::spawn(move || channel.take().map(|event| event.copy_and_ack().kind));
    thread::sleep(Duration::from_millis(50));
    assert!(!waiter.is_finished());
    end.id.resolve_addr(None, cm_device.at(4791), 2000).unwrap();
    assert_eq!(waiter.join().unwrap(), Ok(Kind::RDMA_CM_EVENT_ADDR_RESOLVED));
    Ok(())
}

fn events_come_in_their_order(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let channel = cm_device.channel();
    let ids: Vec<_> = (0..4).map(|_| channel.id(Space::RDMA_PS_TCP, 0).unwrap()).collect();
    for id in &ids {
        id.resolve_addr(None, cm_device.at(4791), 2000).unwrap();
        // Each address is resolved before the next call, because only delivered events have an
        // order.
        assert!(channel.expect_good(Kind::RDMA_CM_EVENT_ADDR_RESOLVED).is_for(id));
    }
    for id in &ids {
        id.resolve_route(2000).unwrap();
        assert!(channel.is_ready(Duration::from_secs(4)));
        thread::sleep(Duration::from_millis(20));
    }
    for id in &ids {
        assert!(channel.expect_good(Kind::RDMA_CM_EVENT_ROUTE_RESOLVED).is_for(id));
    }
    Ok(())
}

fn a_channel_serves_many_identifiers(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let channel = cm_device.channel();
    let ids: Vec<_> = (1..=8).map(|n| channel.id(Space::RDMA_PS_TCP, n).unwrap()).collect();
    for id in &ids {
        id.resolve_addr(None, cm_device.at(4791), 2000).unwrap();
    }
    let mut seen: Vec<_> =
        ids.iter().map(|_| channel.expect_good(Kind::RDMA_CM_EVENT_ADDR_RESOLVED).id).collect();
    let mut expected: Vec<_> = ids.iter().map(|id| id.address()).collect();
    seen.sort_unstable();
    expected.sort_unstable();
    assert_eq!(seen, expected, "one event for each");
    Ok(())
}

fn an_identifier_tells_what_it_was_made_of(dut: &TestDevice) -> Outcome {
    use rdma_mummy_sys::types::ibv_qp_type as Type;
    let cm_device = CmDevice::of(dut)?;
    let channel = cm_device.channel();
    for (space, qp_type) in [(Space::RDMA_PS_TCP, Type::IBV_QPT_RC), (Space::RDMA_PS_UDP, Type::IBV_QPT_UD)] {
        let id = channel.id(space, 0x1234_5678).unwrap();
        assert_eq!((id.context(), id.kind()), (0x1234_5678, (space, qp_type, 0)));
        assert!(id.is_of(&channel) && !id.has_verbs() && !id.has_qp());
    }
    Ok(())
}

fn an_identifier_of_an_unknown_port_space_is_refused(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    for space in [0, 3, 0x0111 + 1, u32::MAX] {
        assert_eq!(cm_device.channel().id(Space(space), 0).err(), Some(EINVAL), "{space:#x}");
    }
    Ok(())
}

fn an_identifier_moves_to_another_channel(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let end = cm_device.create_id(Space::RDMA_PS_TCP);
    let other = cm_device.channel();
    end.id.migrate(Some(&other)).unwrap();
    assert!(end.id.is_of(&other));
    end.id.resolve_addr(None, cm_device.at(4791), 2000).unwrap();
    assert!(other.expect_good(Kind::RDMA_CM_EVENT_ADDR_RESOLVED).is_for(&end.id));
    assert!(end.channel.is_quiet());
    Ok(())
}

/// "... and moves any pending events associated with the rdma_cm_id to the new channel."
fn waiting_events_move_along(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let end = cm_device.create_id(Space::RDMA_PS_TCP);
    let other = cm_device.channel();
    end.id.resolve_addr(None, cm_device.at(4791), 2000).unwrap();
    assert!(end.channel.is_ready(Duration::from_secs(4)));
    end.id.migrate(Some(&other)).unwrap();
    assert!(other.expect_good(Kind::RDMA_CM_EVENT_ADDR_RESOLVED).is_for(&end.id));
    assert!(end.channel.is_quiet());
    Ok(())
}

/// "This call will block while there are any unacknowledged events on the current event channel."
fn moving_waits_for_acknowledgements(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let end = cm_device.create_id(Space::RDMA_PS_TCP);
    end.id.resolve_addr(None, cm_device.at(4791), 2000).unwrap();
    let event = end.channel.event();
    let (id, other) = (end.id.clone(), cm_device.channel());
    let mover = thread::spawn(move || id.migrate(Some(&other)));
    thread::sleep(A_WHILE);
    assert!(!mover.is_finished(), "an event is not acknowledged");
    drop(event);
    assert_eq!(mover.join().unwrap(), Ok(()));
    Ok(())
}

/// "Destruction of an rdma_cm_id will block until related events have been acknowledged."
fn destroying_waits_for_acknowledgements(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let end = cm_device.create_id(Space::RDMA_PS_TCP);
    end.id.resolve_addr(None, cm_device.at(4791), 2000).unwrap();
    let event = end.channel.event();
    let id = end.id.clone();
    let destroyer = thread::spawn(move || id.destroy());
    thread::sleep(A_WHILE);
    assert!(!destroyer.is_finished(), "an event is not acknowledged");
    drop(event);
    assert_eq!(destroyer.join().unwrap(), Ok(()));
    Ok(())
}

fn events_of_others_may_wait_while_one_is_destroyed(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let channel = cm_device.channel();
    let (one, other) =
        (channel.id(Space::RDMA_PS_TCP, 0).unwrap(), channel.id(Space::RDMA_PS_TCP, 0).unwrap());
    one.resolve_addr(None, cm_device.at(4791), 2000).unwrap();
    let event = channel.event();
    assert_eq!(other.destroy(), Ok(()));
    drop(event);
    Ok(())
}

fn events_that_were_not_taken_go_with_their_identifier(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let end = cm_device.create_id(Space::RDMA_PS_TCP);
    end.id.resolve_addr(None, cm_device.at(4791), 2000).unwrap();
    assert!(end.channel.is_ready(Duration::from_secs(4)));
    assert_eq!(end.id.destroy(), Ok(()));
    end.channel.set_nonblocking();
    assert_eq!(end.channel.take().err(), Some(EAGAIN));
    Ok(())
}

fn events_are_acknowledged_in_any_order(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let channel = cm_device.channel();
    let ids: Vec<_> = (0..3).map(|_| channel.id(Space::RDMA_PS_TCP, 0).unwrap()).collect();
    for id in &ids {
        id.resolve_addr(None, cm_device.at(4791), 2000).unwrap();
    }
    let mut events: Vec<_> = ids.iter().map(|_| channel.event()).collect();
    for _ in &ids {
        drop(events.remove(events.len() / 2));
    }
    for id in ids {
        assert_eq!(id.destroy(), Ok(()));
    }
    Ok(())
}

fn acknowledging_no_event_is_refused(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    assert_eq!(cm_device.cm.acknowledge_nothing(), Err(EINVAL));
    Ok(())
}

fn events_have_names(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    for (kind, name) in [
        (Kind::RDMA_CM_EVENT_ADDR_RESOLVED, "RDMA_CM_EVENT_ADDR_RESOLVED"),
        (Kind::RDMA_CM_EVENT_CONNECT_REQUEST, "RDMA_CM_EVENT_CONNECT_REQUEST"),
        (Kind::RDMA_CM_EVENT_UNREACHABLE, "RDMA_CM_EVENT_UNREACHABLE"),
        (Kind::RDMA_CM_EVENT_MULTICAST_JOIN, "RDMA_CM_EVENT_MULTICAST_JOIN"),
        (Kind::RDMA_CM_EVENT_TIMEWAIT_EXIT, "RDMA_CM_EVENT_TIMEWAIT_EXIT"),
        (Kind(99), "UNKNOWN EVENT"),
    ] {
        assert_eq!(cm_device.cm.event_name(kind), name);
    }
    Ok(())
}

fn many_identifiers_are_made(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let channel = cm_device.channel();
    for _ in 0..3 {
        let ids: Vec<_> = (0..500).map(|_| channel.id(Space::RDMA_PS_TCP, 0).unwrap()).collect();
        let mut addresses: Vec<_> = ids.iter().map(|id| id.address()).collect();
        addresses.sort_unstable();
        addresses.dedup();
        assert_eq!(addresses.len(), ids.len());
    }
    Ok(())
}
