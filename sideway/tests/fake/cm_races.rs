//! Connection manager races: events are taken while identifiers are dropped.

use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use sideway::ErrorKind;
use sideway::rdmacm::{ConnectionParameter, EventChannel, EventType, IdentifierState, JoinFlags, PortSpace};

use super::cm_events::{SECOND, addr, listening, lying, next, requested, resolved};
use super::support::fake::cm::E;
use super::support::fake::{old_provider, provider};

const ROUNDS: usize = if cfg!(miri) { 5 } else { 200 };

/// A program may hold an event for any time: it is acknowledged, so the identifier can be
/// destroyed.
#[test]
fn an_event_in_hand_does_not_keep_an_identifier_from_going() {
    let (fake, channel) = lying(|_| {});
    let (active, listener, request) = requested(&channel, b"data");
    assert_eq!(fake.world.cm.live()[2], 0, "all events are acknowledged");
    drop(listener);
    drop(active);
    // The event still holds its listener, so only the active side is gone.
    assert_eq!(fake.world.cm.live()[1], 2);
    assert_eq!((request.private_data(), request.listener_id().is_some()), (&b"data"[..], true));
    let id = request.into_cm_id();
    assert_eq!(fake.world.cm.live()[1], 1);
    drop(id);
    drop(channel);
    assert_eq!(fake.world.cm.live(), [0; 4]);
}

#[test]
fn an_identifier_goes_with_events_that_nobody_took() {
    let (fake, channel) = lying(|_| {});
    let id = channel.create_id(PortSpace::Tcp).unwrap();
    for _ in 0..10 {
        fake.world.cm.push(id.as_raw().as_ptr(), E::RDMA_CM_EVENT_ESTABLISHED, |_| {});
    }
    drop(next(&channel, EventType::Established));
    drop(id);
    assert!(channel.try_get_cm_event().unwrap().is_none());
}

/// A thread that takes events at the same time gets none that points to memory freed by leaving a
/// group.
#[test]
fn an_identifier_goes_with_groups_that_are_being_joined() {
    for leave in [0, libc::ENXIO] {
        let (fake, channel) = lying(|l| l.cm_leave = leave);
        let done = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while done.load(Relaxed) == 0 {
                    drop(channel.try_get_cm_event().unwrap());
                    std::thread::yield_now();
                }
            });
            for round in 0..ROUNDS {
                let own = EventChannel::from_provider(provider()).unwrap();
                let id = resolved(&own, PortSpace::Udp, "192.0.2.1:7");
                id.migrate(&channel).unwrap();
                for group in ["239.1.2.3:0", "239.1.2.4:0"] {
                    id.join_multicast(addr(group), JoinFlags::FullMember, round).unwrap();
                }
            }
            done.store(1, Relaxed);
        });
        drop(channel);
        assert_eq!(fake.world.cm.live(), [0; 4]);
    }
}

#[test]
fn a_listener_goes_with_requests_that_nobody_took() {
    let (fake, channel) = lying(|_| {});
    let listener = listening(&channel, PortSpace::Tcp, 7);
    let actives: Vec<_> = (0..3).map(|_| resolved(&channel, PortSpace::Tcp, "192.0.2.1:7")).collect();
    for active in &actives {
        active.connect(&ConnectionParameter::new()).unwrap();
    }
    let taken = next(&channel, EventType::ConnectRequest);
    let id = taken.into_cm_id();
    drop(listener);
    // Two requests are rejected; the one that was taken continues.
    next(&channel, EventType::Rejected);
    next(&channel, EventType::Rejected);
    assert!(channel.try_get_cm_event().unwrap().is_none());
    id.accept(&ConnectionParameter::new()).unwrap();
    next(&channel, EventType::ConnectResponse);
    drop((id, actives, channel));
    assert_eq!(fake.world.cm.live(), [0; 4]);
}

#[test]
fn the_channel_goes_last() {
    let (fake, channel) = lying(|_| {});
    let id = channel.create_id(PortSpace::Tcp).unwrap();
    let again = id.event_channel();
    assert_eq!(again, channel);
    drop((channel, again));
    id.bind_addr(addr("192.0.2.1:7")).unwrap();
    assert_eq!(fake.world.cm.live(), [1, 1, 0, 1]);
    drop(id);
    assert_eq!(fake.world.cm.live(), [0; 4]);
}

#[test]
fn an_identifier_moves_with_its_events() {
    let (fake, here) = lying(|_| {});
    let there = EventChannel::from_provider(provider()).unwrap();
    let id = here.create_id(PortSpace::Tcp).unwrap();
    fake.world.cm.push(id.as_raw().as_ptr(), E::RDMA_CM_EVENT_ESTABLISHED, |_| {});
    id.migrate(&there).unwrap();
    id.migrate(&there).unwrap();
    assert_eq!(id.event_channel(), there);
    assert!(here.try_get_cm_event().unwrap().is_none());
    // Its first channel is dropped before it.
    drop(here);
    assert_eq!(*next(&there, EventType::Established).cm_id(), id);
    assert_eq!(fake.world.cm.live()[0], 1);
    fake.world.cm.fails_next.store(libc::EINVAL, Relaxed);
    let other = EventChannel::from_provider(provider()).unwrap();
    assert_eq!(id.migrate(&other).unwrap_err().errno(), Some(libc::EINVAL));
    assert_eq!(id.event_channel(), there);
    let stranger = EventChannel::from_provider(old_provider()).unwrap();
    assert_eq!(id.migrate(&stranger).unwrap_err().kind(), ErrorKind::OtherProvider);
}

/// Two identifiers swap channels at the same time, while other threads take their events. No thread
/// deadlocks, and no event is lost.
#[test]
fn identifiers_change_places() {
    let (fake, one) = lying(|_| {});
    let two = EventChannel::from_provider(provider()).unwrap();
    let (a, b) = (one.create_id(PortSpace::Tcp).unwrap(), two.create_id(PortSpace::Tcp).unwrap());
    let taken = AtomicUsize::new(0);
    let start = Barrier::new(3);
    std::thread::scope(|scope| {
        for (id, first, second) in [(&a, &two, &one), (&b, &one, &two)] {
            let (start, world) = (&start, &fake.world);
            scope.spawn(move || {
                start.wait();
                for _ in 0..ROUNDS {
                    world.cm.push(id.as_raw().as_ptr(), E::RDMA_CM_EVENT_ESTABLISHED, |_| {});
                    id.migrate(first).unwrap();
                    id.migrate(second).unwrap();
                }
            });
        }
        start.wait();
        while taken.load(Relaxed) < 2 * ROUNDS {
            for channel in [&one, &two] {
                while let Some(event) = channel.try_get_cm_event().unwrap() {
                    assert_eq!(event.event_type(), EventType::Established);
                    taken.fetch_add(1, Relaxed);
                }
            }
            std::thread::yield_now();
        }
    });
    assert_eq!((a.event_channel(), b.event_channel()), (one, two));
}

/// Events are taken while identifiers are made, queried and dropped, including listeners with
/// pending requests.
#[test]
fn identifiers_go_while_their_events_are_taken() {
    let (fake, channel) = lying(|_| {});
    let done = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (channel, done, world) = (&channel, &done, &fake.world);
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let listener = listening(channel, PortSpace::Tcp, 7);
                    let id = channel.create_id(PortSpace::Tcp).unwrap();
                    for _ in 0..3 {
                        world.cm.push_request(listener.as_raw().as_ptr(), b"me");
                        world.cm.push(id.as_raw().as_ptr(), E::RDMA_CM_EVENT_ESTABLISHED, |_| {});
                    }
                    if (thread + round) % 2 == 0 {
                        std::thread::yield_now();
                    }
                    drop(listener);
                    let _ = (id.local_addr(), id.state(), id.port());
                    drop(id);
                }
                done.fetch_add(1, Relaxed);
            });
        }
        for _ in 0..2 {
            let (channel, done) = (&channel, &done);
            scope.spawn(move || {
                while done.load(Relaxed) < 2 {
                    while let Some(event) = channel.try_get_cm_event().unwrap() {
                        if event.event_type() == EventType::ConnectRequest {
                            assert_eq!(event.private_data(), b"me");
                            assert_eq!(event.cm_id().state(), IdentifierState::Requested);
                            let _ = event.cm_id().accept(&ConnectionParameter::new());
                        }
                    }
                    std::thread::yield_now();
                }
            });
        }
    });
    drop(channel);
    assert_eq!(fake.world.cm.live(), [0; 4]);
}

/// A program's value that holds the last handle is dropped without a lock.
#[test]
fn a_context_may_hold_the_identifier_of_another() {
    let (fake, channel) = lying(|_| {});
    let (active, listener, request) = requested(&channel, &[]);
    listener.setup_context(request.into_cm_id());
    drop(listener);
    // The listener is gone, and so its request was rejected.
    next(&channel, EventType::Rejected);
    drop((active, channel));
    assert_eq!(fake.world.cm.live(), [0; 4]);
}

#[test]
#[cfg_attr(miri, ignore = "leaks")]
fn an_identifier_that_does_not_go_keeps_what_it_needs() {
    let (fake, channel) = lying(|l| l.destroy = libc::EBUSY);
    let id = channel.create_id(PortSpace::Tcp).unwrap();
    drop((id, channel));
    // The identifier still exists, and so does its channel.
    assert_eq!(fake.world.cm.live()[..2], [1, 1]);
}

/// A failed acknowledgement is not repeated, because the event may be gone.
#[test]
fn an_event_is_acknowledged_once() {
    let (_fake, channel) = lying(|l| l.cm_ack = libc::EINVAL);
    let id = resolved(&channel, PortSpace::Tcp, "192.0.2.1:7");
    id.resolve_addr(None, addr("192.0.2.1:7"), SECOND).unwrap();
    next(&channel, EventType::AddressResolved);
}
