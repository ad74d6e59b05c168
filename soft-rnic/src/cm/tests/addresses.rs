//! Tests of addresses, ports and options.

use std::time::Duration;

use rdma_mummy_sys::types as c;

use super::kit::{CmHost, PATIENCE, address};
use crate::cm::types::{CmEventKind, ConnParams, Ece, PortSpace};

fn bound(host: &mut CmHost, at: &str) -> Result<crate::cm::IdNumber, i32> {
    let id = host.create(PortSpace::Tcp);
    host.state_machine.bind(id, address(at)).map(|()| id)
}

fn option(host: &mut CmHost, id: crate::cm::IdNumber, name: u32, value: &[u8]) -> Result<(), i32> {
    host.state_machine.set_option(id, c::RDMA_OPTION_ID as i32, name as i32, value)
}

#[test]
fn a_port_is_one_ids_unless_the_addresses_differ() {
    let mut host = CmHost::new();
    let first = bound(&mut host, "127.0.0.1:700").unwrap();
    assert_eq!(bound(&mut host, "127.0.0.1:700"), Err(libc::EADDRINUSE));
    assert_eq!(bound(&mut host, "0.0.0.0:700"), Err(libc::EADDRNOTAVAIL));
    let link_local = "[fe80::73:6fff:fe66:7400]:700";
    let second = bound(&mut host, link_local).unwrap();
    assert_eq!(bound(&mut host, link_local), Err(libc::EADDRINUSE));
    host.destroy(first);
    assert!(bound(&mut host, "127.0.0.1:700").is_ok());
    host.destroy(second);
    assert!(bound(&mut host, link_local).is_ok());
    assert_eq!(bound(&mut host, "192.0.2.1:0"), Err(libc::EADDRNOTAVAIL));
    let other_space = host.create(PortSpace::Ib);
    assert_eq!(host.state_machine.bind(other_space, address("127.0.0.1:700")), Ok(()));
    let ipoib = host.create(PortSpace::Ipoib);
    assert_eq!(host.state_machine.bind(ipoib, address("127.0.0.1:0")), Err(libc::EINVAL));
}

#[test]
fn any_port_is_a_free_one() {
    const IDS: usize = if cfg!(miri) { 20 } else { 100 };
    let mut host = CmHost::new();
    let ports: Vec<_> = (0..IDS)
        .map(|_| {
            let id = bound(&mut host, "127.0.0.1:0").unwrap();
            host.port(id)
        })
        .collect();
    let mut distinct = ports.clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert!(distinct.len() == IDS && distinct[0] >= 32768, "{ports:?}");
    assert_eq!(bound(&mut host, &format!("127.0.0.1:{}", ports[5])), Err(libc::EADDRINUSE));
}

#[test]
fn families_share_a_port_if_they_want_to() {
    let mut host = CmHost::new();
    bound(&mut host, "0.0.0.0:700").unwrap();
    assert_eq!(bound(&mut host, "[::]:700"), Err(libc::EADDRNOTAVAIL));
    let six = host.create(PortSpace::Tcp);
    option(&mut host, six, c::RDMA_OPTION_ID_AFONLY, &1i32.to_ne_bytes()).unwrap();
    host.state_machine.bind(six, address("[::]:700")).unwrap();
    host.state_machine.listen(six, 0).unwrap();
    // No id listens there for IPv4.
    let active = host.resolved(PortSpace::Tcp, 700);
    host.connect(active, &ConnParams::default());
    host.expect_status(active, CmEventKind::Rejected, 28);
    assert_eq!(option(&mut host, six, c::RDMA_OPTION_ID_AFONLY, &[0; 4]), Err(libc::EINVAL));
    // A listener for both families is found by either.
    let both = host.listener(PortSpace::Tcp, "[::]:701");
    let active = host.resolved(PortSpace::Tcp, 701);
    host.connect(active, &ConnParams::default());
    host.request(both);
}

#[test]
fn a_port_is_shared_by_those_who_let_others_in_until_one_listens() {
    let mut host = CmHost::new();
    let [first, second, third] = [(); 3].map(|()| host.create(PortSpace::Tcp));
    for id in [first, second, third] {
        option(&mut host, id, c::RDMA_OPTION_ID_REUSEADDR, &1i32.to_ne_bytes()).unwrap();
    }
    for id in [first, second] {
        host.state_machine.bind(id, address("127.0.0.1:700")).unwrap();
    }
    assert_eq!(host.state_machine.listen(first, 0), Err(libc::EADDRINUSE));
    host.destroy(second);
    host.state_machine.listen(first, 0).unwrap();
    assert_eq!(host.state_machine.bind(third, address("127.0.0.1:700")), Err(libc::EADDRINUSE));
    assert_eq!(bound(&mut host, "127.0.0.1:700"), Err(libc::EADDRINUSE));
    assert_eq!(option(&mut host, first, c::RDMA_OPTION_ID_REUSEADDR, &[0; 4]), Err(libc::EINVAL));
}

#[test]
fn the_nearest_listener_has_the_request() {
    let mut host = CmHost::new();
    let exact = host.listener(PortSpace::Tcp, "127.0.0.1:700");
    let active = host.resolved(PortSpace::Tcp, 700);
    host.connect(active, &ConnParams::default());
    host.request(exact);
    // No id listens at another address of the same port.
    let other = host.create(PortSpace::Tcp);
    let to = address("[fe80::73:6fff:fe66:7400]:700");
    host.state_machine.resolve_addr(other, None, to, PATIENCE, host.now).unwrap();
    host.expect(other, CmEventKind::AddrResolved);
    host.state_machine.resolve_route(other).unwrap();
    host.expect(other, CmEventKind::RouteResolved);
    host.connect(other, &ConnParams::default());
    host.expect_status(other, CmEventKind::Rejected, 28);
}

#[test]
fn nobody_answers_for_an_address() {
    let mut host = CmHost::new();
    let id = host.create(PortSpace::Tcp);
    let nowhere = address("192.0.2.1:1");
    host.state_machine.resolve_addr(id, None, nowhere, Duration::from_millis(50), host.now).unwrap();
    assert_eq!(
        host.state_machine.resolve_addr(id, None, nowhere, PATIENCE, host.now),
        Err(libc::EINVAL),
        "it is being resolved"
    );
    host.expect_silence();
    host.wait(Duration::from_millis(50));
    host.expect_status(id, CmEventKind::AddrError, -libc::ETIMEDOUT);
    // Resolving can be tried again.
    host.state_machine.resolve_addr(id, None, address("127.0.0.1:1"), PATIENCE, host.now).unwrap();
    host.expect_status(id, CmEventKind::AddrResolved, 0);
    assert_eq!(
        host.state_machine.resolve_addr(id, None, address("127.0.0.1:1"), PATIENCE, host.now),
        Err(libc::EINVAL)
    );
    // An id that is destroyed while it waits, for whatever time, leaves no timer.
    let id = host.create(PortSpace::Tcp);
    host.state_machine.resolve_addr(id, None, nowhere, Duration::MAX, host.now).unwrap();
    host.destroy(id);
    assert_eq!(host.state_machine.counts()[5], 0);
    let id = bound(&mut host, "127.0.0.1:0").unwrap();
    let six = address("[fe80::73:6fff:fe66:7400]:700");
    assert_eq!(host.state_machine.resolve_addr(id, None, six, PATIENCE, host.now), Err(libc::EINVAL));
    let ipoib = host.create(PortSpace::Ipoib);
    host.state_machine.resolve_addr(ipoib, None, address("127.0.0.1:1"), PATIENCE, host.now).unwrap();
    host.expect_status(ipoib, CmEventKind::AddrError, -libc::EINVAL);
}

#[test]
fn this_host_is_reached_by_any_address_of_its_own() {
    let mut host = CmHost::new();
    let listener = host.listener(PortSpace::Tcp, "[::]:700");
    for (to, source) in [("0.0.0.0:700", "127.0.0.1"), ("[::1]:700", "::1"), ("[::]:700", "::1")] {
        let id = host.create(PortSpace::Tcp);
        host.state_machine.resolve_addr(id, None, address(to), PATIENCE, host.now).unwrap();
        host.expect_status(id, CmEventKind::AddrResolved, 0);
        host.state_machine.resolve_route(id).unwrap();
        host.expect_status(id, CmEventKind::RouteResolved, 0);
        let route = host.state_machine.route(id).unwrap();
        assert_eq!(route.source.unwrap().ip().to_string(), source);
        assert!(route.path.is_some() && route.dgid.is_some() && route.resolved);
        host.connect(id, &ConnParams::default());
        let passive = host.request(listener);
        host.accept(passive, &ConnParams::default());
        host.expect(id, CmEventKind::ConnectResponse);
    }
}

#[test]
fn options_are_taken_at_their_time_only() {
    let mut host = CmHost::new();
    let listener = host.listener(PortSpace::Tcp, "127.0.0.1:700");
    let id = host.create(PortSpace::Tcp);
    assert_eq!(option(&mut host, id, c::RDMA_OPTION_ID_TOS, &[0, 1]), Err(libc::EINVAL));
    assert_eq!(option(&mut host, id, c::RDMA_OPTION_ID_REUSEADDR, &[1]), Err(libc::EINVAL));
    assert_eq!(option(&mut host, id, 99, &[1]), Err(libc::ENOSYS));
    assert_eq!(host.state_machine.set_option(id, 7, 0, &[1]), Err(libc::ENOSYS));
    let datagrams = host.create(PortSpace::Udp);
    assert_eq!(option(&mut host, datagrams, c::RDMA_OPTION_ID_ACK_TIMEOUT, &[9]), Err(libc::EINVAL));
    option(&mut host, id, c::RDMA_OPTION_ID_TOS, &[0x20]).unwrap();
    option(&mut host, id, c::RDMA_OPTION_ID_ACK_TIMEOUT, &[9]).unwrap();
    host.state_machine.resolve_addr(id, None, address("127.0.0.1:700"), PATIENCE, host.now).unwrap();
    host.state_machine.resolve_route(id).unwrap();
    host.expect(id, CmEventKind::AddrResolved);
    host.expect(id, CmEventKind::RouteResolved);
    let route = host.state_machine.route(id).unwrap();
    assert_eq!((route.traffic_class, route.packet_life_time), (0x20, 8));
    host.connect(id, &ConnParams::default());
    let passive = host.request(listener);
    host.accept(passive, &ConnParams::default());
    let mut attr = c::ibv_qp_attr { qp_state: c::ibv_qp_state::IBV_QPS_RTR, ..c::ibv_qp_attr::default() };
    host.state_machine.init_qp_attr(passive, &mut attr).unwrap();
    assert_eq!(attr.ah_attr.grh.traffic_class, 0x20);
    attr.qp_state = c::ibv_qp_state::IBV_QPS_RTS;
    host.state_machine.init_qp_attr(id, &mut attr).unwrap();
    assert_eq!(attr.timeout, 9);
}

#[test]
fn a_path_may_be_brought_along() {
    let mut host = CmHost::new();
    let id = host.create(PortSpace::Tcp);
    let set = |host: &mut CmHost, value: &[u8]| {
        host.state_machine.set_option(id, c::RDMA_OPTION_IB as i32, c::RDMA_OPTION_IB_PATH as i32, value)
    };
    let mut path = [0; 72];
    path[..4].copy_from_slice(&43u32.to_ne_bytes());
    (path[8 + 48], path[8 + 54], path[8 + 56]) = (0x31, 0x80 | 3, 0x80 | 12);
    assert_eq!(set(&mut host, &path), Err(libc::EINVAL), "it has no device");
    host.state_machine.resolve_addr(id, None, address("127.0.0.1:700"), PATIENCE, host.now).unwrap();
    host.expect(id, CmEventKind::AddrResolved);
    assert_eq!(set(&mut host, &path[..71]), Err(libc::EINVAL));
    assert_eq!(set(&mut host, &[0; 72]), Err(libc::EINVAL));
    set(&mut host, &path).unwrap();
    host.expect(id, CmEventKind::RouteResolved);
    let route = host.state_machine.route(id).unwrap();
    assert_eq!((route.traffic_class, route.mtu, route.packet_life_time), (0x31, 3, 12));
    assert_eq!(host.state_machine.connect(id, &ConnParams::default(), Ece::default(), host.now), Ok(()));
}
