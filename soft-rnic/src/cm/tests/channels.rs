//! Tests of events and their channels.

use std::sync::Arc;

use super::kit::{Host, PATIENCE, address};
use crate::cm::bell::Bell;
use crate::cm::types::{Kind, Parameters, PortSpace};

#[test]
fn events_go_with_their_ids_and_leave_no_token() {
    let mut host = Host::new();
    let bell = Arc::new(Bell::create().unwrap());
    host.queue = host.switch.open_queue(Arc::clone(&bell));
    let ids: Vec<_> = (0..200)
        .map(|_| {
            let id = host.create(PortSpace::Tcp);
            host.switch.resolve_addr(id, None, address("127.0.0.1:1"), PATIENCE, host.now).unwrap();
            id
        })
        .collect();
    for id in &ids[..199] {
        assert_eq!(host.destroy(*id), 0);
    }
    host.expect(ids[199], Kind::AddrResolved);
    host.expect_silence();
    bell.ring();
    bell.take().expect("the token of the event that was left");
    assert_eq!(host.destroy(ids[199]), 1);
}

#[test]
fn an_id_moves_with_its_events() {
    let mut host = Host::new();
    let listener = host.listener(PortSpace::Tcp, "127.0.0.1:700");
    let [first, second] = [(); 2].map(|()| host.resolved(PortSpace::Tcp, 700));
    host.connect(first, &Parameters::default());
    let passive = host.request(listener);
    host.connect(second, &Parameters::default());
    let old = host.queue;
    let new = host.switch.open_queue(Arc::new(Bell::create().unwrap()));
    assert_eq!(host.switch.migrate(listener, new), Ok(1));
    assert_eq!(host.switch.migrate(listener, new), Ok(1));
    assert_eq!(host.switch.migrate(passive, new), Ok(0));
    host.expect_silence();
    host.queue = new;
    let other = host.request(listener);
    host.accept(other, &Parameters::default());
    host.accept(passive, &Parameters::default());
    host.expect_silence();
    host.queue = old;
    host.expect(second, Kind::ConnectResponse);
    host.expect(first, Kind::ConnectResponse);
    host.establish(first);
    host.queue = new;
    host.expect(passive, Kind::Established);
    // Closing a channel destroys its ids.
    host.switch.close_queue(new, host.now);
    host.queue = old;
    host.expect_status(first, Kind::Disconnected, 0);
    host.expect_status(second, Kind::Rejected, 28);
    host.expect_silence();
    host.switch.close_queue(old, host.now);
    assert_eq!(host.switch.counts(), [0; 6]);
}

#[test]
fn nothing_is_told_of_an_id_that_nobody_knows() {
    let mut host = Host::new();
    let listener = host.listener(PortSpace::Tcp, "127.0.0.1:700");
    let active = host.resolved(PortSpace::Tcp, 700);
    host.connect(active, &Parameters::default());
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
    let count = if cfg!(miri) { 100 } else { 10_000 };
    for order in 0..3 {
        let mut host = Host::new();
        let ids: Vec<_> = (0..count)
            .map(|_| {
                let id = host.create(PortSpace::Tcp);
                host.switch.resolve_addr(id, None, address("127.0.0.1:1"), PATIENCE, host.now).unwrap();
                id
            })
            .collect();
        let ids = match order {
            0 => ids,
            1 => ids.into_iter().rev().collect(),
            _ => in_disorder(ids),
        };
        host.switch.take_visits();
        let (old, new) = (host.queue, host.switch.open_queue(Arc::new(Bell::create().unwrap())));
        for id in &ids {
            assert_eq!(host.switch.migrate(*id, new), Ok(0));
        }
        // Each event is removed and inserted once.
        assert!(host.switch.take_visits() <= 12 * count, "migrate looks at the events of others");
        host.expect_silence();
        for id in &ids {
            assert_eq!(host.destroy(*id), 0);
        }
        assert!(host.switch.take_visits() <= 8 * count, "destroy looks at the events of others");
        for queue in [old, new] {
            host.queue = queue;
            host.expect_silence();
        }
        assert_eq!(host.switch.counts(), [0; 6]);
    }
}

/// The same holds for listeners, whose events contain the ids of their requests.
#[test]
fn listeners_go_and_move_at_the_cost_of_their_own_requests() {
    let (count, each) = if cfg!(miri) { (10, 2) } else { (1000, 5) };
    let mut host = Host::new();
    let listeners: Vec<_> = (0..count).map(|_| host.listener(PortSpace::Tcp, "127.0.0.1:0")).collect();
    let ports: Vec<_> = listeners.iter().map(|listener| host.port(*listener)).collect();
    let programs = host.queue;
    let asking = host.switch.open_queue(Arc::new(Bell::create().unwrap()));
    host.queue = asking;
    for _ in 0..each {
        for port in &ports {
            let id = host.resolved(PortSpace::Tcp, *port);
            host.connect(id, &Parameters::default());
        }
    }
    host.switch.take_visits();
    let moved = host.switch.open_queue(Arc::new(Bell::create().unwrap()));
    let listeners = in_disorder(listeners);
    for listener in &listeners {
        assert_eq!(host.switch.untaken_requests(*listener).len(), each as usize);
        assert_eq!(host.switch.migrate(*listener, moved), Ok(0));
    }
    let events = count * each;
    assert!(host.switch.take_visits() <= 16 * events, "migrate looks at the requests of other listeners");
    for listener in &listeners {
        assert_eq!(host.destroy(*listener), 0);
    }
    // Each requester gets an event.
    assert!(host.switch.take_visits() <= 16 * events, "destroy looks at the requests of other listeners");
    for queue in [programs, moved] {
        host.queue = queue;
        host.expect_silence();
    }
    host.queue = asking;
    for _ in 0..events {
        assert!(matches!(host.next(), Some(event) if event.kind == Kind::Rejected));
    }
    host.expect_silence();
}
