//! Tests of connections between two ids of one process.

use std::time::Duration;

use rdma_mummy_sys::types::{ibv_qp_attr, ibv_qp_state};

use super::kit::{CmHost, PATIENCE, address, connection, private_data};
use crate::cm::types::{CmEventKind, ConnParams, Ece, PortSpace};

/// How long the request of a reliable connection is repeated until it is given up.
const REQ_TIME: Duration = Duration::from_millis((512 + 4096) * 16);

#[test]
fn a_connection_begins_and_ends() {
    let mut host = CmHost::new();
    let listener = host.listener(PortSpace::Tcp, "127.0.0.1:0");
    let port = host.port(listener);
    let active = host.resolved(PortSpace::Tcp, port);
    let asked = ConnParams {
        responder_resources: 3,
        initiator_depth: 4,
        retry_count: 9,
        rnr_retry_count: 6,
        qp_num: 0x17,
        ..private_data(b"hello")
    };
    host.state_machine.connect(active, &asked, Ece { vendor_id: 5, options: 6 }, host.now).unwrap();
    let request = host.expect(listener, CmEventKind::ConnectRequest);
    let said = connection(&request);
    assert_eq!((said.responder_resources, said.initiator_depth), (4, 3));
    assert_eq!((said.retry_count, said.rnr_retry_count, said.qp_num), (7, 6, 0x17));
    assert_eq!((said.private_data.len(), &said.private_data[..6]), (56, &b"hello\0"[..]));
    assert_eq!(request.ece, Ece { vendor_id: 5, options: 6 });
    let passive = request.request.unwrap();
    let (here, there) =
        (host.state_machine.route(passive).unwrap(), host.state_machine.route(active).unwrap());
    assert_eq!((here.source, here.destination), (there.destination, there.source));
    assert_eq!(here.path.unwrap().sgid_index, 1);

    host.accept(
        passive,
        &ConnParams { qp_num: 0x18, responder_resources: 2, initiator_depth: 1, ..private_data(b"yes") },
    );
    let response = host.expect(active, CmEventKind::ConnectResponse);
    let said = connection(&response);
    assert_eq!((said.responder_resources, said.initiator_depth, said.qp_num), (1, 2, 0x18));
    assert_eq!((said.private_data.len(), &said.private_data[..4]), (196, &b"yes\0"[..]));
    host.expect_silence();

    let mut to = ibv_qp_attr { qp_state: ibv_qp_state::IBV_QPS_RTR, ..ibv_qp_attr::default() };
    host.state_machine.init_qp_attr(active, &mut to).unwrap();
    let mut back = ibv_qp_attr { qp_state: ibv_qp_state::IBV_QPS_RTS, ..ibv_qp_attr::default() };
    host.state_machine.init_qp_attr(passive, &mut back).unwrap();
    assert_eq!((to.dest_qp_num, to.max_dest_rd_atomic, to.rq_psn), (0x18, 1, back.sq_psn));
    assert_eq!((back.retry_cnt, back.rnr_retry, back.max_rd_atomic, back.timeout), (7, 6, 1, 17));

    host.establish(active);
    host.expect_status(passive, CmEventKind::Established, 0);
    host.expect_silence();

    host.disconnect(active);
    host.expect_status(passive, CmEventKind::Disconnected, 0);
    host.expect_silence();
    host.disconnect(passive);
    host.expect_status(active, CmEventKind::Disconnected, 0);
    host.expect_silence();
    host.wait(Duration::from_millis(512));
    let kinds: Vec<_> = std::iter::from_fn(|| host.next()).map(|event| (event.id, event.kind)).collect();
    assert_eq!(kinds.len(), 2);
    assert!(
        kinds.contains(&(active, CmEventKind::TimewaitExit))
            && kinds.contains(&(passive, CmEventKind::TimewaitExit))
    );

    assert_eq!(host.destroy(active), 5);
    assert_eq!(host.destroy(passive), 3);
    assert_eq!(host.destroy(listener), 1);
    assert_eq!(host.state_machine.counts(), [0; 6]);
}

#[test]
fn a_rejection_says_why() {
    let mut host = CmHost::new();
    let listener = host.listener(PortSpace::Tcp, "0.0.0.0:0");
    let port = host.port(listener);
    let active = host.resolved(PortSpace::Tcp, port);
    host.connect(active, &ConnParams::default());
    let passive = host.request(listener);
    assert_eq!(host.state_machine.reject(passive, 28, &[0; 149], host.now), Err(libc::EINVAL));
    host.state_machine.reject(passive, 28, b"no", host.now).unwrap();
    let rejected = host.expect_status(active, CmEventKind::Rejected, 28);
    let data = &connection(&rejected).private_data;
    assert_eq!((data.len(), &data[..3]), (148, &b"no\0"[..]));
    assert_eq!(host.state_machine.accept(passive, None, Ece::default(), host.now), Err(libc::EINVAL));
    host.destroy(passive);
    host.destroy(active);
    host.expect_silence();
    assert_eq!(host.state_machine.counts()[3..], [0; 3]);
}

#[test]
fn nobody_listens() {
    let mut host = CmHost::new();
    let active = host.resolved(PortSpace::Tcp, 7);
    host.connect(active, &ConnParams::default());
    host.expect_status(active, CmEventKind::Rejected, 8);
    // The port is bound, but no id listens.
    let bound = host.create(PortSpace::Tcp);
    host.state_machine.bind(bound, address("127.0.0.1:7")).unwrap();
    let active = host.resolved(PortSpace::Tcp, 7);
    host.connect(active, &ConnParams::default());
    host.expect_status(active, CmEventKind::Rejected, 8);
}

#[test]
fn a_program_that_thinks_is_waited_for_and_one_without_room_is_not() {
    let mut host = CmHost::new();
    let listener = host.create(PortSpace::Tcp);
    host.state_machine.listen(listener, 1).unwrap();
    let port = host.port(listener);
    let [first, second] = [(); 2].map(|()| host.resolved(PortSpace::Tcp, port));
    host.connect(first, &ConnParams::default());
    host.connect(second, &ConnParams::default());
    let passive = host.request(listener);
    host.expect_silence();
    // The listener has room now: the second request is admitted when it is repeated.
    host.wait(Duration::from_millis(4608));
    let other = host.request(listener);
    host.expect_silence();
    host.wait(REQ_TIME);
    host.expect_silence();
    host.accept(passive, &ConnParams::default());
    host.expect(first, CmEventKind::ConnectResponse);
    host.accept(other, &ConnParams::default());
    host.expect(second, CmEventKind::ConnectResponse);
}

#[test]
fn a_request_that_finds_no_room_times_out() {
    let mut host = CmHost::new();
    let listener = host.create(PortSpace::Tcp);
    host.state_machine.listen(listener, 1).unwrap();
    let port = host.port(listener);
    let [first, second] = [(); 2].map(|()| host.resolved(PortSpace::Tcp, port));
    host.connect(first, &ConnParams::default());
    host.connect(second, &ConnParams::default());
    for _ in 0..15 {
        host.wait(REQ_TIME / 16);
    }
    let passive = host.state_machine.untaken_requests(listener);
    assert_eq!(passive.len(), 1);
    host.wait(REQ_TIME / 16);
    host.request(listener);
    host.expect_status(second, CmEventKind::Unreachable, -libc::ETIMEDOUT);
    host.expect_silence();
}

#[test]
fn ids_that_go_say_goodbye() {
    let mut host = CmHost::new();
    let listener = host.listener(PortSpace::Tcp, "127.0.0.1:0");
    let port = host.port(listener);
    // The active side is destroyed before the program has taken the request: no event reports that.
    let active = host.resolved(PortSpace::Tcp, port);
    host.connect(active, &ConnParams::default());
    host.destroy(active);
    let passive = host.request(listener);
    host.expect_silence();
    let accepted = host.state_machine.accept(passive, Some(&ConnParams::default()), Ece::default(), host.now);
    assert_eq!(accepted, Err(libc::EINVAL));
    // The passive side is destroyed.
    let active = host.resolved(PortSpace::Tcp, port);
    host.connect(active, &ConnParams::default());
    let passive = host.request(listener);
    host.destroy(passive);
    host.expect_status(active, CmEventKind::Rejected, 28);
    // The listener is destroyed, with a request that was not taken.
    let active = host.resolved(PortSpace::Tcp, port);
    host.connect(active, &ConnParams::default());
    assert_eq!(host.destroy(listener), 2);
    host.expect_status(active, CmEventKind::Rejected, 28);
    host.expect_silence();
}

#[test]
fn either_side_of_a_connection_may_go() {
    let mut host = CmHost::new();
    let listener = host.listener(PortSpace::Tcp, "127.0.0.1:0");
    let (active, passive) = host.connected(listener);
    host.destroy(active);
    host.expect_status(passive, CmEventKind::Disconnected, 0);
    host.disconnect(passive);
    host.wait(Duration::from_millis(512));
    host.expect(passive, CmEventKind::TimewaitExit);
    let (active, passive) = host.connected(listener);
    host.destroy(passive);
    host.expect_status(active, CmEventKind::Disconnected, 0);
    host.destroy(active);
    host.expect_silence();
}

#[test]
fn both_sides_may_end_a_connection_at_once() {
    let mut host = CmHost::new();
    let listener = host.listener(PortSpace::Tcp, "127.0.0.1:0");
    let (active, passive) = host.connected(listener);
    host.disconnect(active);
    host.disconnect(passive);
    host.expect_status(passive, CmEventKind::Disconnected, 0);
    host.expect_status(active, CmEventKind::Disconnected, 0);
    // Disconnecting again has no effect.
    host.disconnect(active);
    host.disconnect(passive);
    host.expect_silence();
}

#[test]
fn unanswered_disconnect_times_out() {
    let mut host = CmHost::new();
    let listener = host.listener(PortSpace::Tcp, "127.0.0.1:0");
    let (active, passive) = host.connected(listener);
    host.disconnect(active);
    host.expect(passive, CmEventKind::Disconnected);
    for _ in 0..16 {
        host.expect_silence();
        host.wait(Duration::from_millis(4096));
    }
    host.expect_status(active, CmEventKind::Disconnected, -libc::ETIMEDOUT);
    host.wait(Duration::from_millis(512));
    host.expect(active, CmEventKind::TimewaitExit);
    host.expect_silence();
}

#[test]
fn a_device_that_goes_takes_its_connections_along() {
    let mut host = CmHost::new();
    let anywhere = host.listener(PortSpace::Tcp, "0.0.0.0:701");
    let listener = host.listener(PortSpace::Tcp, "127.0.0.1:0");
    let (active, passive) = host.connected(listener);
    let port = host.port(listener);
    let waiting = host.resolved(PortSpace::Tcp, port);
    host.connect(waiting, &ConnParams::default());
    host.state_machine.remove_device(0, host.now);
    let told: Vec<_> = std::iter::from_fn(|| host.next()).map(|event| (event.id, event.kind)).collect();
    let removed = [listener, active, passive, waiting].map(|id| (id, CmEventKind::DeviceRemoval));
    assert_eq!(told[0], (listener, CmEventKind::ConnectRequest));
    assert!(told.len() == 5 && removed.iter().all(|removal| told.contains(removal)), "{told:?}");
    assert_eq!(host.state_machine.disconnect(active, host.now), Err(libc::EINVAL));
    assert_eq!(host.state_machine.listen(listener, 1), Err(libc::EINVAL));
    host.wait(REQ_TIME);
    host.expect_silence();
    assert_eq!(host.state_machine.counts()[1..], [1, 0, 0, 0, 0]);
    host.destroy(anywhere);
}

#[test]
fn calls_in_the_wrong_state_are_refused() {
    let mut host = CmHost::new();
    let id = host.create(PortSpace::Tcp);
    let now = host.now;
    let none = ConnParams::default();
    assert_eq!(host.state_machine.resolve_route(id), Err(libc::EINVAL));
    assert_eq!(host.state_machine.connect(id, &none, Ece::default(), now), Err(libc::EINVAL));
    assert_eq!(host.state_machine.accept(id, None, Ece::default(), now), Err(libc::EINVAL));
    assert_eq!(host.state_machine.disconnect(id, now), Err(libc::EINVAL));
    assert_eq!(host.state_machine.reject(id, 28, &[], now), Err(libc::EINVAL));
    assert_eq!(host.state_machine.notify(id, 5), Err(libc::EINVAL));
    host.state_machine.bind(id, address("127.0.0.1:0")).unwrap();
    assert_eq!(host.state_machine.bind(id, address("127.0.0.1:0")), Err(libc::EINVAL));
    host.state_machine.listen(id, 1).unwrap();
    assert_eq!(host.state_machine.listen(id, 1), Err(libc::EINVAL));
    let to = address("127.0.0.1:1");
    assert_eq!(host.state_machine.resolve_addr(id, None, to, PATIENCE, now), Err(libc::EINVAL));
    let port = host.port(id);
    let active = host.resolved(PortSpace::Tcp, port);
    let long = private_data(&[1; 57]);
    assert_eq!(host.state_machine.connect(active, &long, Ece::default(), now), Err(libc::EINVAL));
    host.connect(active, &private_data(&[1; 56]));
    assert_eq!(host.state_machine.connect(active, &none, Ece::default(), now), Err(libc::EINVAL));
    // Accepting with too much private data rejects the request.
    let passive = host.request(id);
    let long = private_data(&[1; 197]);
    assert_eq!(host.state_machine.accept(passive, Some(&long), Ece::default(), now), Err(libc::EINVAL));
    host.expect_status(active, CmEventKind::Rejected, 28);
    host.destroy(id);
    assert_eq!(host.state_machine.listen(id, 1), Err(libc::ENOENT));
    assert_eq!(host.state_machine.destroy(id, now), Err(libc::ENOENT));
}
