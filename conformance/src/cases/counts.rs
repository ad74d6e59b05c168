//! Numbers of objects: the device has as many as it announces, with data, and not one more.
//!
//! These cases run on a software device whose limits are small (`SOFT_RNIC_LIMITS`), because a test
//! cannot make a hundred thousand queue pairs.

use libc::{EINVAL, ENOMEM};
use rdma_mummy_sys::types::{ibv_event_type, ibv_mw_type, ibv_qp_type};

use crate::kit::{
    Ah, BindRange, Buf, Cq, CqInit, EVERYTHING, Flavour, Mw, Node, NodeOptions, Outcome, QKEY, Qp, QpInit,
    Recv, Srq, Suite, TestDevice, WAIT_LIMIT, Wr, ah_attr, pattern,
};

pub(crate) fn cases(suite: &mut Suite) {
    cases!(suite:
        domains_are_counted,
        regions_are_counted,
        the_longest_region_is_reached,
        windows_are_counted,
        completion_queues_are_counted,
        pairs_are_counted,
        shared_queues_are_counted,
        address_handles_are_counted,
        groups_and_their_members_are_counted,
        a_completion_queue_holds_what_it_has_room_for,
    );
}

/// Fits the limits.
fn small(qp_type: ibv_qp_type) -> NodeOptions {
    NodeOptions::new(qp_type, Flavour::Classic).set(|options| {
        let cap = &mut options.cap;
        (cap.max_send_wr, cap.max_recv_wr, cap.max_send_sge, cap.max_recv_sge) = (4, 4, 2, 2);
        (options.cqe, options.rd_atomic, options.dest_rd_atomic) = (4, 2, 2);
    })
}

fn rc() -> NodeOptions {
    small(ibv_qp_type::IBV_QPT_RC)
}

fn ud() -> NodeOptions {
    small(ibv_qp_type::IBV_QPT_UD)
}

/// Makes objects until none is left: as many as are announced, less those that exist. One more is
/// refused, and one that goes makes room.
fn all<T>(announced: i32, existing: usize, mut make: impl FnMut() -> Result<T, i32>) -> Vec<T> {
    let count = usize::try_from(announced).unwrap() - existing;
    let mut made: Vec<T> = (0..count).map(|_| make().unwrap()).collect();
    assert_eq!(make().err(), Some(ENOMEM), "one above {announced}");
    drop(made.pop());
    made.push(make().unwrap());
    assert_eq!(make().err(), Some(ENOMEM), "one above {announced}");
    made
}

/// A node that is connected to itself.
fn looped(node: Node) -> Node {
    node.connect(&node.peer());
    node
}

/// Writes through the node, and compares.
fn writes(node: &Node, seed: u8) {
    node.mr.buf.set(0, &pattern(seed, 512));
    node.done(Wr::write(1, node.mr.remote(4096)).sge(node.mr.at(0, 512)));
    assert_eq!(node.mr.buf.get(4096, 512), pattern(seed, 512));
}

fn domains_are_counted(dut: &TestDevice) -> Outcome {
    let device = dut.open();
    let domains = all(device.query().unwrap().max_pd, 0, || crate::kit::Pd::new(&device));
    for (seed, pd) in domains.iter().enumerate().skip(domains.len() - 2) {
        writes(&looped(Node::within(&device, pd, &rc())), seed as u8);
    }
    Ok(())
}

fn regions_are_counted(dut: &TestDevice) -> Outcome {
    let device = dut.open();
    let node = looped(Node::new(&device, &rc()));
    let buf = Buf::new(4096);
    let regions = all(device.query().unwrap().max_mr, 1, || node.pd.reg(&buf, EVERYTHING));
    for (seed, region) in regions.iter().enumerate() {
        node.mr.buf.set(0, &pattern(seed as u8, 64));
        node.done(Wr::write(1, region.remote(seed * 64)).sge(node.mr.at(0, 64)));
        assert_eq!(buf.get(seed * 64, 64), pattern(seed as u8, 64));
    }
    Ok(())
}

/// `max_mr_size`, "the largest contiguous block that can be registered".
fn the_longest_region_is_reached(dut: &TestDevice) -> Outcome {
    let device = dut.open();
    let node = looped(Node::new(&device, &rc()));
    let most = device.query().unwrap().max_mr_size as usize;
    let buf = Buf::new(most + 1);
    let region = node.pd.reg_range(&buf, 0, most, EVERYTHING).unwrap();
    assert_eq!(node.pd.reg(&buf, EVERYTHING).err(), Some(EINVAL));
    node.mr.buf.set(0, &pattern(1, 64));
    node.done(Wr::write(1, region.remote(most - 64)).sge(node.mr.at(0, 64)));
    assert_eq!(buf.get(most - 64, 64), pattern(1, 64));
    Ok(())
}

fn windows_are_counted(dut: &TestDevice) -> Outcome {
    let device = dut.open();
    let binds = EVERYTHING | rdma_mummy_sys::types::ibv_access_flags::IBV_ACCESS_MW_BIND.0;
    let node = looped(Node::new(&device, &rc().set(|options| options.region = binds)));
    let windows = all(device.query().unwrap().max_mw, 0, || Mw::new(&node.pd, ibv_mw_type::IBV_MW_TYPE_1));
    for (seed, window) in windows.iter().enumerate() {
        assert_eq!(window.bind(&node.qp, 1, &BindRange::of(&node.mr, 4096, 512, 2)), 0);
        node.send_cq.ok();
        node.mr.buf.set(0, &pattern(seed as u8, 512));
        let to = crate::kit::RemoteAddr { addr: node.mr.addr(4096), rkey: window.rkey() };
        node.done(Wr::write(2, to).sge(node.mr.at(0, 512)));
        assert_eq!(node.mr.buf.get(4096, 512), pattern(seed as u8, 512));
    }
    Ok(())
}

fn completion_queues_are_counted(dut: &TestDevice) -> Outcome {
    let device = dut.open();
    // A node makes one for its sends.
    let init = CqInit { cqe: 4, ..CqInit::default() };
    let mut queues = all(device.query().unwrap().max_cq, 0, || Cq::new(&device, &init));
    queues.pop();
    let node = looped(Node::with_queues(&device, &rc(), None, queues.last()));
    node.recv(1, 4096, 64);
    node.done(Wr::send(2).sge(node.mr.at(0, 64)));
    assert_eq!(queues.last().unwrap().ok().id, 1);
    Ok(())
}

fn pairs_are_counted(dut: &TestDevice) -> Outcome {
    let device = dut.open();
    let first = looped(Node::new(&device, &rc()));
    let options = small(ibv_qp_type::IBV_QPT_RC);
    let init = QpInit { cap: options.cap, ..QpInit::new(options.qp_type, &first.send_cq, &first.recv_cq) };
    let pairs = all(device.query().unwrap().max_qp, 1, || Qp::new(&first.pd, &init));
    let last = pairs.last().unwrap();
    let peer = crate::kit::QpAddress { qpn: last.num(), ..first.peer() };
    for change in [first.to_init(), first.to_rtr(&peer), first.to_rts()] {
        assert_eq!(last.modify(change), 0);
    }
    first.mr.buf.set(0, &pattern(3, 64));
    last.post(&[Wr::write(1, first.mr.remote(4096)).sge(first.mr.at(0, 64))]).unwrap();
    first.send_cq.ok();
    assert_eq!(first.mr.buf.get(4096, 64), pattern(3, 64));
    Ok(())
}

fn shared_queues_are_counted(dut: &TestDevice) -> Outcome {
    let device = dut.open();
    let pd = device.pd();
    let queues = all(device.query().unwrap().max_srq, 0, || Srq::new(&pd, 4, 2));
    let srq = queues.last().unwrap();
    let node = looped(Node::with_queues(&device, &rc(), Some((&pd, srq)), None));
    let receives: Vec<_> = (0..4).map(|id| Recv::new(id).sge(node.mr.at(4096, 64))).collect();
    srq.recv(&receives).unwrap();
    assert_eq!(srq.recv(&[Recv::new(5)]), Err((ENOMEM, 0)), "max_srq_wr");
    node.mr.buf.set(0, &pattern(2, 64));
    node.done(Wr::send(1).sge(node.mr.at(0, 64)));
    assert_eq!(node.recv_cq.ok().id, 0);
    assert_eq!(node.mr.buf.get(4096, 64), pattern(2, 64));
    Ok(())
}

fn address_handles_are_counted(dut: &TestDevice) -> Outcome {
    let device = dut.open();
    let node = looped(Node::new(&device, &ud()));
    let attr = ah_attr(&device, node.gid.0);
    let handles = all(device.query().unwrap().max_ah, 0, || Ah::new(&node.pd, attr));
    for (seed, ah) in handles.iter().enumerate() {
        node.recv(1, 4096, 512);
        node.mr.buf.set(0, &pattern(seed as u8, 64));
        node.done(Wr::send(2).sge(node.mr.at(0, 64)).to(ah, node.qp.num(), QKEY));
        assert_eq!(node.recv_cq.ok().len, 40 + 64);
        assert_eq!(node.mr.buf.get(4136, 64), pattern(seed as u8, 64));
    }
    Ok(())
}

/// `max_mcast_grp`, `max_mcast_qp_attach`, `max_total_mcast_qp_attach`.
fn groups_and_their_members_are_counted(dut: &TestDevice) -> Outcome {
    let device = dut.open();
    let attr = device.query().unwrap();
    assert_eq!((attr.max_mcast_grp, attr.max_mcast_qp_attach, attr.max_total_mcast_qp_attach), (2, 2, 3));
    let group = |number: u8| [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 1, 78, number];
    let nodes: Vec<_> = (0..3).map(|_| looped(Node::new(&device, &ud()))).collect();
    assert_eq!((nodes[0].qp.attach(group(1), 0), nodes[1].qp.attach(group(1), 0)), (0, 0));
    assert_eq!(nodes[2].qp.attach(group(1), 0), ENOMEM, "a third member of the group");
    assert_eq!(nodes[0].qp.attach(group(2), 0), 0);
    assert_eq!(nodes[1].qp.attach(group(2), 0), ENOMEM, "a fourth membership");
    assert_eq!(nodes[1].qp.detach(group(1), 0), 0);
    assert_eq!(nodes[2].qp.attach(group(3), 0), ENOMEM, "a third group");
    assert_eq!(nodes[2].qp.attach(group(2), 0), 0);
    for node in [&nodes[0], &nodes[2]] {
        node.recv(1, 4096, 512);
    }
    let ah = Ah::new(&nodes[1].pd, ah_attr(&device, group(2))).unwrap();
    nodes[1].mr.buf.set(0, &pattern(6, 64));
    nodes[1].done(Wr::send(2).sge(nodes[1].mr.at(0, 64)).to(&ah, 0xff_ffff, QKEY));
    for node in [&nodes[0], &nodes[2]] {
        assert_eq!(node.recv_cq.ok().len, 40 + 64);
        assert_eq!(node.mr.buf.get(4136, 64), pattern(6, 64));
    }
    for (node, number) in [(0, 1), (0, 2), (2, 2)] {
        assert_eq!(nodes[node].qp.detach(group(number), 0), 0);
    }
    Ok(())
}

/// `max_cqe`: a queue of that many completions holds them, and one more overruns it.
fn a_completion_queue_holds_what_it_has_room_for(dut: &TestDevice) -> Outcome {
    let device = dut.open();
    let most = device.query().unwrap().max_cqe;
    let beyond = CqInit { cqe: most + 1, ..CqInit::default() };
    assert_eq!(Cq::new(&device, &beyond).err(), Some(EINVAL));
    let node = looped(Node::new(
        &device,
        &rc().set(|options| {
            options.cap.max_send_wr = most as u32;
            options.cqe = most;
        }),
    ));
    let write = |id: u64| Wr::write(id, node.mr.remote(4096)).sge(node.mr.at(0, 8));
    let requests: Vec<_> = (0..most as u64).map(write).collect();
    node.qp.post(&requests).unwrap();
    let ids: Vec<_> = (0..most).map(|_| node.send_cq.ok().id).collect();
    assert_eq!(ids, (0..most as u64).collect::<Vec<_>>());
    assert!(device.event_now().is_err(), "no overrun");
    // Two pairs share the queue, so that one more completion comes than it has room for.
    let init = QpInit {
        cap: node.options.cap,
        ..QpInit::new(ibv_qp_type::IBV_QPT_RC, &node.send_cq, &node.recv_cq)
    };
    let second = Qp::new(&node.pd, &init).unwrap();
    let peer = crate::kit::QpAddress { qpn: second.num(), ..node.peer() };
    for change in [node.to_init(), node.to_rtr(&peer), node.to_rts()] {
        assert_eq!(second.modify(change), 0);
    }
    node.qp.post(&requests).unwrap();
    second.post(&[write(100)]).unwrap();
    let event = device.event(WAIT_LIMIT).expect("the overrun is announced");
    assert_eq!(event.kind(), ibv_event_type::IBV_EVENT_CQ_ERR);
    Ok(())
}
