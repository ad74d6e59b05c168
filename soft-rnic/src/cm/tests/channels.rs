//! Tests of events and their channels.

use std::sync::Arc;

use super::kit::{CmHost, PATIENCE, address};
use crate::cm::channel_notifier::ChannelNotifier;
use crate::cm::types::{CmEventKind, ConnParams, PortSpace};

#[test]
fn events_go_with_their_ids_and_leave_no_token() {
    const IDS: usize = if cfg!(miri) { 20 } else { 200 };
    let mut host = CmHost::new();
    let notifier = Arc::new(ChannelNotifier::create().unwrap());
    host.queue = host.state_machine.open_queue(Arc::clone(&notifier));
    let ids: Vec<_> = (0..IDS)
        .map(|_| {
            let id = host.create(PortSpace::Tcp);
            host.state_machine.resolve_addr(id, None, address("127.0.0.1:1"), PATIENCE, host.now).unwrap();
            id
        })
        .collect();
    let (last, others) = ids.split_last().unwrap();
    for id in others {
        assert_eq!(host.destroy(*id), 0);
    }
    host.expect(*last, CmEventKind::AddrResolved);
    host.expect_silence();
    notifier.deliver();
    notifier.take().expect("the token of the event that was left");
    assert_eq!(host.destroy(*last), 1);
}

#[test]
fn an_id_moves_with_its_events() {
    let mut host = CmHost::new();
    let listener = host.listener(PortSpace::Tcp, "127.0.0.1:700");
    let [first, second] = [(); 2].map(|()| host.resolved(PortSpace::Tcp, 700));
    host.connect(first, &ConnParams::default());
    let passive = host.request(listener);
    host.connect(second, &ConnParams::default());
    let old = host.queue;
    let new = host.state_machine.open_queue(Arc::new(ChannelNotifier::create().unwrap()));
    assert_eq!(host.state_machine.migrate(listener, new), Ok(1));
    assert_eq!(host.state_machine.migrate(listener, new), Ok(1));
    assert_eq!(host.state_machine.migrate(passive, new), Ok(0));
    host.expect_silence();
    host.queue = new;
    let other = host.request(listener);
    host.accept(other, &ConnParams::default());
    host.accept(passive, &ConnParams::default());
    host.expect_silence();
    host.queue = old;
    host.expect(second, CmEventKind::ConnectResponse);
    host.expect(first, CmEventKind::ConnectResponse);
    host.establish(first);
    host.queue = new;
    host.expect(passive, CmEventKind::Established);
    // Closing a channel destroys its ids.
    host.state_machine.close_queue(new, host.now);
    host.queue = old;
    host.expect_status(first, CmEventKind::Disconnected, 0);
    host.expect_status(second, CmEventKind::Rejected, 28);
    host.expect_silence();
    host.state_machine.close_queue(old, host.now);
    assert_eq!(host.state_machine.counts(), [0; 6]);
}

#[test]
fn nothing_is_told_of_an_id_that_nobody_knows() {
    let mut host = CmHost::new();
    let listener = host.listener(PortSpace::Tcp, "127.0.0.1:700");
    let active = host.resolved(PortSpace::Tcp, 700);
    host.connect(active, &ConnParams::default());
    let passive = host.request(listener);
    host.destroy(active);
    host.expect_silence();
    assert_eq!(host.destroy(passive), 0);
}

/// The same elements in another order.
fn in_disorder<T>(mut of: Vec<T>) -> Vec<T> {
    for place in (1..of.len()).rev() {
        of.swap(place, place * 7919 % (place + 1));
    }
    of
}

/// Destroying or moving an id visits no events of other ids on the channel, however many wait.
#[test]
fn an_id_goes_and_moves_at_the_cost_of_its_own_events() {
    let count = if cfg!(miri) { 10 } else { 10_000 };
    for order in 0..3 {
        let mut host = CmHost::new();
        let ids: Vec<_> = (0..count)
            .map(|_| {
                let id = host.create(PortSpace::Tcp);
                host.state_machine
                    .resolve_addr(id, None, address("127.0.0.1:1"), PATIENCE, host.now)
                    .unwrap();
                id
            })
            .collect();
        let ids = match order {
            0 => ids,
            1 => ids.into_iter().rev().collect(),
            _ => in_disorder(ids),
        };
        host.state_machine.take_visits();
        let (old, new) =
            (host.queue, host.state_machine.open_queue(Arc::new(ChannelNotifier::create().unwrap())));
        for id in &ids {
            assert_eq!(host.state_machine.migrate(*id, new), Ok(0));
        }
        // Each event is removed and inserted once.
        assert!(host.state_machine.take_visits() <= 12 * count, "migrate looks at the events of others");
        host.expect_silence();
        for id in &ids {
            assert_eq!(host.destroy(*id), 0);
        }
        assert!(host.state_machine.take_visits() <= 8 * count, "destroy looks at the events of others");
        for queue in [old, new] {
            host.queue = queue;
            host.expect_silence();
        }
        assert_eq!(host.state_machine.counts(), [0; 6]);
    }
}

/// The same holds for listeners, whose events contain the ids of their requests.
#[test]
fn listeners_go_and_move_at_the_cost_of_their_own_requests() {
    let (count, each) = if cfg!(miri) { (10, 2) } else { (1000, 5) };
    let mut host = CmHost::new();
    let listeners: Vec<_> = (0..count).map(|_| host.listener(PortSpace::Tcp, "127.0.0.1:0")).collect();
    let ports: Vec<_> = listeners.iter().map(|listener| host.port(*listener)).collect();
    let programs = host.queue;
    let asking = host.state_machine.open_queue(Arc::new(ChannelNotifier::create().unwrap()));
    host.queue = asking;
    for _ in 0..each {
        for port in &ports {
            let id = host.resolved(PortSpace::Tcp, *port);
            host.connect(id, &ConnParams::default());
        }
    }
    host.state_machine.take_visits();
    let moved = host.state_machine.open_queue(Arc::new(ChannelNotifier::create().unwrap()));
    let listeners = in_disorder(listeners);
    for listener in &listeners {
        assert_eq!(host.state_machine.untaken_requests(*listener).len(), each as usize);
        assert_eq!(host.state_machine.migrate(*listener, moved), Ok(0));
    }
    let events = count * each;
    assert!(
        host.state_machine.take_visits() <= 16 * events,
        "migrate looks at the requests of other listeners"
    );
    for listener in &listeners {
        assert_eq!(host.destroy(*listener), 0);
    }
    // Each requester gets an event.
    assert!(
        host.state_machine.take_visits() <= 16 * events,
        "destroy looks at the requests of other listeners"
    );
    for queue in [programs, moved] {
        host.queue = queue;
        host.expect_silence();
    }
    host.queue = asking;
    for _ in 0..events {
        assert!(matches!(host.next(), Some(event) if event.kind == CmEventKind::Rejected));
    }
    host.expect_silence();
}
