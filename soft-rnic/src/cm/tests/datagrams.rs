//! Tests of datagram addresses and multicast.

use std::time::Duration;

use rdma_mummy_sys::types::{ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_state};

use super::kit::{CmHost, address, private_data};
use crate::cm::types::{CmEvent, CmEventKind, ConnParams, Ece, EventDetails, PortSpace, UdAddress};

/// `RDMA_UDP_QKEY`.
const UDP_QKEY: u32 = 0x0123_4567;

fn datagram(event: &CmEvent) -> (&[u8], &UdAddress) {
    let EventDetails::Datagram { private_data, address } = &event.details else { panic!("{event:?}") };
    (private_data, address)
}

#[test]
fn one_side_learns_where_to_send() {
    let mut host = CmHost::new();
    let listener = host.listener(PortSpace::Udp, "127.0.0.1:0");
    let port = host.port(listener);
    let active = host.resolved(PortSpace::Udp, port);
    host.connect(active, &private_data(&[1; 180]));
    let request = host.expect(listener, CmEventKind::ConnectRequest);
    assert_eq!(datagram(&request).0, [1; 180]);
    let passive = request.request.unwrap();
    // A repetition, while the program has not answered, is the same request.
    host.wait(Duration::from_millis(4096));
    host.accept(passive, &ConnParams { qp_num: 0x21, ..private_data(b"here") });
    let established = host.expect_status(active, CmEventKind::Established, 0);
    let (data, to) = datagram(&established);
    assert_eq!((data.len(), &data[..5]), (136, &b"here\0"[..]));
    assert_eq!((to.qp_num, to.qkey, to.ah_attr.is_global, to.ah_attr.port_num), (0x21, UDP_QKEY, 1, 1));
    assert_eq!(to.ah_attr.grh.sgid_index, 1);
    host.expect_silence();

    let mut attr = ibv_qp_attr { qp_state: ibv_qp_state::IBV_QPS_INIT, ..ibv_qp_attr::default() };
    let mask = host.state_machine.init_qp_attr(active, &mut attr).unwrap() as u32;
    assert!(mask & ibv_qp_attr_mask::IBV_QP_QKEY.0 != 0 && attr.qkey == UDP_QKEY);
    // Disconnecting without a connection is not an error.
    host.disconnect(active);
    host.destroy(active);
    host.destroy(passive);
    host.destroy(listener);
    host.expect_silence();
    assert_eq!(host.state_machine.counts(), [0; 6]);
}

#[test]
fn one_side_learns_that_it_may_not_send() {
    let mut host = CmHost::new();
    let active = host.resolved(PortSpace::Udp, 9);
    let too_long = private_data(&[0; 181]);
    assert_eq!(host.state_machine.connect(active, &too_long, Ece::default(), host.now), Err(libc::EINVAL));
    host.connect(active, &ConnParams::default());
    host.expect_status(active, CmEventKind::Unreachable, 1);

    let listener = host.listener(PortSpace::Udp, "127.0.0.1:9");
    let active = host.resolved(PortSpace::Udp, 9);
    host.connect(active, &ConnParams::default());
    let passive = host.request(listener);
    host.state_machine.reject(passive, 28, b"no", host.now).unwrap();
    let refused = host.expect_status(active, CmEventKind::Unreachable, 2);
    assert_eq!(&datagram(&refused).0[..3], b"no\0");

    // The first requester learns that the id of its request is gone. The second learns that its
    // request will not be taken.
    let [first, second] = [(); 2].map(|()| host.resolved(PortSpace::Udp, 9));
    host.connect(first, &ConnParams::default());
    let passive = host.request(listener);
    host.destroy(passive);
    host.expect_status(first, CmEventKind::Unreachable, 2);
    host.connect(second, &ConnParams::default());
    host.destroy(listener);
    host.expect_status(second, CmEventKind::Unreachable, 2);
    host.expect_silence();
}

#[test]
fn a_question_for_datagrams_times_out() {
    let mut host = CmHost::new();
    let listener = host.listener(PortSpace::Udp, "127.0.0.1:0");
    let port = host.port(listener);
    let active = host.resolved(PortSpace::Udp, port);
    host.connect(active, &ConnParams::default());
    let passive = host.request(listener);
    for _ in 0..16 {
        host.expect_silence();
        host.wait(Duration::from_millis(4096));
    }
    host.expect_status(active, CmEventKind::Unreachable, -libc::ETIMEDOUT);
    // The answer reaches no one.
    host.accept(passive, &ConnParams::default());
    host.expect_silence();
}

#[test]
fn spaces_have_nothing_to_do_with_each_other() {
    let mut host = CmHost::new();
    host.listener(PortSpace::Udp, "127.0.0.1:9");
    host.listener(PortSpace::Ib, "127.0.0.1:9");
    let active = host.resolved(PortSpace::Tcp, 9);
    host.connect(active, &ConnParams::default());
    host.expect_status(active, CmEventKind::Rejected, 8);
}

#[test]
fn groups_are_joined_and_left() {
    let mut host = CmHost::new();
    let id = host.create(PortSpace::Udp);
    let group = address("239.1.2.3:0");
    assert_eq!(host.state_machine.join(id, group, 77), Err(libc::EINVAL));
    host.state_machine.bind(id, address("127.0.0.1:0")).unwrap();
    assert_eq!(host.state_machine.join(id, address("0.0.0.0:0"), 77), Err(libc::EINVAL));
    let join = host.state_machine.join(id, group, 77).unwrap();
    let other = host.state_machine.join(id, address("[ff0e::5]:0"), 78).unwrap();
    let joined = host.expect_status(id, CmEventKind::MulticastJoin, 0);
    assert_eq!(joined.join, Some((join, 77)));
    let (_, to) = datagram(&joined);
    assert_eq!((to.qp_num, to.qkey, to.ah_attr.grh.hop_limit), (0xff_ffff, UDP_QKEY, 64));
    // SAFETY: every member of the union is plain bytes, so any content is valid.
    let gid = unsafe { to.ah_attr.grh.dgid.raw };
    assert_eq!(gid, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 1, 2, 3]);
    // The waiting event of the other membership is dropped with it.
    assert_eq!(
        (host.state_machine.leave(other), host.state_machine.leave(other)),
        (Ok(0), Err(libc::ENOENT))
    );
    host.expect_silence();
    assert_eq!(host.state_machine.leave(join), Ok(1));
    let last = host.state_machine.join(id, group, 79).unwrap();
    assert_eq!(host.destroy(id), 1);
    assert_eq!(host.state_machine.leave(last), Err(libc::ENOENT));
    host.expect_silence();
    assert_eq!(host.state_machine.counts(), [0; 6]);
}

#[test]
fn a_group_is_an_address_that_resolves() {
    let mut host = CmHost::new();
    let id = host.create(PortSpace::Udp);
    let group = address("239.1.2.3:0");
    host.state_machine.resolve_addr(id, None, group, Duration::ZERO, host.now).unwrap();
    host.expect(id, CmEventKind::AddrResolved);
    assert_eq!(host.state_machine.route(id).unwrap().source.unwrap().ip(), address("127.0.0.1:0").ip());
    host.state_machine.join(id, group, 1).unwrap();
    host.expect(id, CmEventKind::MulticastJoin);
}
