//! Ports that go down and up repeatedly.

use std::time::{Duration, Instant};

use rdma_mummy_sys::types::*;
use soft_rnic::faults;

use crate::bench::*;

use ibv_wc_status as S;

const ACTIVE: ibv_event_type = ibv_event_type::IBV_EVENT_PORT_ACTIVE;
const DOWN: ibv_event_type = ibv_event_type::IBV_EVENT_PORT_ERR;

/// Enough retries that no request fails while a port is down briefly.
const PATIENT: EndpointOptions =
    EndpointOptions { qp_type: ibv_qp_type::IBV_QPT_RC, device: 0, shared: false, timeout: 24, rnr_retry: 3 };

#[test]
fn a_port_flaps_as_often_as_the_rule_says() {
    let _turn = turn();
    let (a, b) = pair_with(PATIENT);
    let begin = Instant::now();
    rules("port_flap=5ms..10ms:5ms:3 nth=1");
    a.write(&b, 1, 8);
    for side in [&a, &b] {
        let seen: Vec<_> = (0..6).map(|_| side.event()).collect();
        assert_eq!(seen, [DOWN, ACTIVE, DOWN, ACTIVE, DOWN, ACTIVE]);
    }
    assert!(begin.elapsed() >= Duration::from_millis(25), "{:?}", begin.elapsed());
    assert_eq!((a.port().state, fired()), (ibv_port_state::IBV_PORT_ACTIVE, vec![1]));
    // The request was retried until the port was up.
    assert_eq!(a.next(), (1, S::IBV_WC_SUCCESS));
}

#[test]
fn requests_fail_while_the_port_is_down() {
    let _turn = turn();
    let (a, b) = pair();
    let (c, d) = pair_with(EndpointOptions { device: 1, ..EndpointOptions::default() });
    rules("port_flap=1000s:1ms device=soft0 opcode=send");
    b.receive(9).unwrap();
    a.send(&b, 1, 8);
    a.write(&b, 2, 8);
    assert_eq!([a.event(), b.event()], [DOWN; 2]);
    assert_eq!([a.next(), a.next()], [(1, S::IBV_WC_RETRY_EXC_ERR), (2, S::IBV_WC_WR_FLUSH_ERR)]);
    assert_eq!(a.port().state, ibv_port_state::IBV_PORT_DOWN);
    // The other device is not concerned.
    c.write(&d, 3, 8);
    assert_eq!(c.next(), (3, S::IBV_WC_SUCCESS));
    faults::clear();
    assert_eq!([a.event(), b.event()], [ACTIVE; 2]);
    assert_eq!(a.event_if_any(), None);
}

#[test]
fn a_port_flaps_until_the_rules_change() {
    let _turn = turn();
    // Every match after the first one finds the port flapping.
    rules("port_flap=1ms..2ms:1ms..2ms call=query_device");
    let side = FaultEndpoint::new(PATIENT);
    for _ in 0..20 {
        let _ = side.device();
        assert_eq!([side.event(), side.event()], [DOWN, ACTIVE]);
    }
    // Another rule ends the series, with the port up.
    rules("drop opcode=flush");
    until(|| (side.port().state == ibv_port_state::IBV_PORT_ACTIVE).then_some(()));
    let mut last = ACTIVE;
    until(|| {
        std::thread::sleep(Duration::from_millis(10));
        side.event_if_any().map(|event| last = event).is_none().then_some(())
    });
    assert_eq!((last, side.port().state), (ACTIVE, ibv_port_state::IBV_PORT_ACTIVE));
}

#[test]
fn clearing_the_rules_ends_a_series() {
    let _turn = turn();
    rules("port_flap=1ms:1ms call=open_device first=1");
    let side = FaultEndpoint::new(PATIENT);
    (0..10).for_each(|_| assert_eq!([side.event(), side.event()], [DOWN, ACTIVE]));
    faults::clear();
    assert_eq!(side.port().state, ibv_port_state::IBV_PORT_ACTIVE);
    while side.event_if_any().is_some() {}
    rules("delay=1ms");
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(side.event_if_any(), None);
}

#[test]
fn a_port_goes_on_flapping_when_the_device_is_opened_again() {
    let _turn = turn();
    rules("port_flap=1ms:1ms call=open_device first=1");
    assert_eq!(event_and_close(), 0);
    let side = open(0).unwrap();
    let first = event_of(side);
    let second = event_of(side);
    assert!([first, second] == [DOWN, ACTIVE] || [first, second] == [ACTIVE, DOWN], "{first:?}, {second:?}");
    // SAFETY: the context is open, and has no objects.
    assert_eq!(unsafe { (table().ibv_close_device)(side) }, 0);
}

/// Opens a device, waits for its port to go down, and closes it.
fn event_and_close() -> i32 {
    let side = open(0).unwrap();
    assert_eq!(event_of(side), DOWN);
    // SAFETY: the context is open, and has no objects.
    unsafe { (table().ibv_close_device)(side) }
}
