//! Shared receive queues.

use std::time::Duration;

use libc::{EBUSY, EINVAL, ENOMEM, EOPNOTSUPP};
use rdma_mummy_sys::types::ibv_device_cap_flags as DeviceCap;
use rdma_mummy_sys::types::ibv_event_type as EventType;
use rdma_mummy_sys::types::ibv_qp_state as State;
use rdma_mummy_sys::types::ibv_srq_attr as Attr;
use rdma_mummy_sys::types::ibv_srq_attr_mask as Mask;
use rdma_mummy_sys::types::ibv_wc_status as Status;

use crate::kit::{
    Cq, Flavour, Node, NodeOptions, Outcome, Recv, Sge, SoftRoce, Srq, Suite, TestDevice, WAIT_LIMIT, Wr,
    pattern,
};

pub(crate) fn cases(suite: &mut Suite) {
    both!(suite:
        a_send_takes_a_shared_receive,
        two_pairs_take_from_one_queue,
        datagrams_take_shared_receives,
        shared_receives_are_taken_in_order,
        a_write_with_immediate_data_takes_a_shared_receive,
    );
    cases!(suite:
        a_queue_has_at_least_what_was_asked_for,
        a_queue_beyond_the_limits_is_refused,
        a_queue_tells_its_attributes,
        a_queue_of_a_pair_is_busy,
        an_empty_queue_means_not_ready,
        a_full_queue_refuses,
        a_list_with_a_bad_request_names_it,
        too_many_entries_are_refused,
        the_limit_is_announced_once,
        a_limit_that_is_taken_back_is_not_announced,
        a_limit_beyond_the_queue_is_refused,
        unknown_attributes_are_refused,
        a_queue_is_made_larger,
        a_queue_is_not_made_smaller_than_its_limit,
        a_pair_of_a_shared_queue_has_no_receives_of_its_own,
        a_pair_in_error_leaves_the_shared_requests_alone,
        a_pair_in_error_announces_its_last_receive,
        a_bad_shared_receive_fails_one_pair_only,
    );
}

struct SharedSrq {
    srq: Srq,
    /// The receiving nodes share one completion queue; each has one sender.
    receivers: Vec<Node>,
    senders: Vec<Node>,
    cq: Cq,
}

impl SharedSrq {
    /// Pairs that share a receive queue, each connected to one without it.
    fn new(dut: &TestDevice, options: &NodeOptions, pairs: usize) -> Self {
        let (device, other) = (dut.open(), dut.open());
        let pd = device.pd();
        let srq = Srq::new(&pd, 32, 2).unwrap();
        let cq = Cq::of(&device, 128, options.flavour, None);
        let receivers: Vec<_> =
            (0..pairs).map(|_| Node::with_queues(&device, options, Some((&pd, &srq)), Some(&cq))).collect();
        let senders: Vec<_> = (0..pairs).map(|_| Node::new(&other, options)).collect();
        for (a, b) in senders.iter().zip(&receivers) {
            a.connect(&b.peer());
            b.connect(&a.peer());
        }
        Self { srq, receivers, senders, cq }
    }

    /// Posts a receive for part of the first receiver's memory.
    fn recv(&self, id: u64, offset: usize, len: usize) {
        self.srq.recv(&[Recv::new(id).sge(self.receivers[0].mr.at(offset, len))]).unwrap();
    }

    /// Sends a message from a sender to its receiver.
    fn send(&self, n: usize, id: u64) {
        let (a, b) = (&self.senders[n], &self.receivers[n]);
        let wr = Wr::send(id).sge(a.mr.at(0, 16));
        let is_datagram = a.options.qp_type == rdma_mummy_sys::types::ibv_qp_type::IBV_QPT_UD;
        a.done(if is_datagram { wr.to(&a.ah(b), b.qp.num(), crate::kit::QKEY) } else { wr });
    }
}

fn rc(flavour: Flavour) -> NodeOptions {
    NodeOptions::rc(flavour)
}

fn a_send_takes_a_shared_receive(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let shared = SharedSrq::new(dut, &rc(flavour), 1);
    shared.senders[0].mr.buf.set(0, &pattern(1, 16));
    shared.recv(7, 100, 64);
    shared.send(0, 8);
    let wc = shared.cq.ok();
    assert_eq!((wc.id, wc.len, wc.qp_num), (7, 16, shared.receivers[0].qp.num()));
    assert_eq!(shared.receivers[0].mr.buf.get(100, 16), pattern(1, 16));
    Ok(())
}

fn two_pairs_take_from_one_queue(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let shared = SharedSrq::new(dut, &rc(flavour), 2);
    for id in 0..8 {
        shared.recv(id, 0, 64);
    }
    for n in 0..8 {
        shared.send(n % 2, 1);
        let wc = shared.cq.ok();
        assert_eq!((wc.id, wc.qp_num), (n as u64, shared.receivers[n % 2].qp.num()));
    }
    Ok(())
}

fn datagrams_take_shared_receives(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let shared = SharedSrq::new(dut, &NodeOptions::ud(flavour), 2);
    shared.senders[1].mr.buf.set(0, &pattern(2, 16));
    shared.recv(1, 0, 100);
    shared.recv(2, 200, 100);
    shared.send(0, 3);
    let first = shared.cq.ok();
    shared.send(1, 4);
    let second = shared.cq.ok();
    assert_eq!((first.id, first.len, second.id, second.len), (1, 56, 2, 56));
    assert_eq!((first.src_qp, second.src_qp), (shared.senders[0].qp.num(), shared.senders[1].qp.num()));
    assert_eq!(shared.receivers[0].mr.buf.get(240, 16), pattern(2, 16));
    Ok(())
}

fn shared_receives_are_taken_in_order(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let shared = SharedSrq::new(dut, &rc(flavour), 1);
    for round in 0..20 {
        for id in 0..10 {
            shared.recv(round * 10 + id, 0, 64);
        }
        for id in 0..10 {
            shared.send(0, 1);
            assert_eq!(shared.cq.ok().id, round * 10 + id);
        }
    }
    Ok(())
}

fn a_write_with_immediate_data_takes_a_shared_receive(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let shared = SharedSrq::new(dut, &rc(flavour), 1);
    shared.recv(1, 0, 64);
    let (a, b) = (&shared.senders[0], &shared.receivers[0]);
    a.done(Wr::write_imm(2, b.mr.remote(4096), 3).sge(a.mr.at(0, 8)));
    let wc = shared.cq.ok();
    assert_eq!((wc.id, wc.imm), (1, 3));
    Ok(())
}

fn a_queue_has_at_least_what_was_asked_for(dut: &TestDevice) -> Outcome {
    let (device, pd) = (dut.open(), dut.open().pd());
    let most = device.query().unwrap();
    for (wr, sge) in [(1, 1), (100, 3), (1000, most.max_srq_sge as u32)] {
        let granted = Srq::new(&pd, wr, sge).unwrap().granted();
        assert!(granted.max_wr >= wr && granted.max_sge >= sge, "{granted:?}");
    }
    Ok(())
}

fn a_queue_beyond_the_limits_is_refused(dut: &TestDevice) -> Outcome {
    let (device, pd) = (dut.open(), dut.open().pd());
    let most = device.query().unwrap();
    let (wr, sge) = (most.max_srq_wr as u32, most.max_srq_sge as u32);
    assert_eq!(Srq::new(&pd, wr + 1, 1).err(), Some(EINVAL));
    assert_eq!(Srq::new(&pd, 1, sge + 1).err(), Some(EINVAL));
    Ok(())
}

fn a_queue_tells_its_attributes(dut: &TestDevice) -> Outcome {
    let srq = Srq::new(&dut.open().pd(), 20, 2).unwrap();
    let attr = srq.query().unwrap();
    assert!(attr.max_wr >= 20 && attr.max_sge >= 2, "{attr:?}");
    assert_eq!(attr.srq_limit, 0);
    // If the queue has fewer requests than the limit, a device may send the event at once.
    srq.recv(&(0..10).map(Recv::new).collect::<Vec<_>>()).unwrap();
    assert_eq!(srq.set_limit(5), 0);
    assert_eq!(srq.query().unwrap().srq_limit, 5);
    Ok(())
}

fn a_queue_of_a_pair_is_busy(dut: &TestDevice) -> Outcome {
    let shared = SharedSrq::new(dut, &rc(Flavour::Classic), 1);
    assert_eq!(shared.srq.destroy(), EBUSY);
    assert_eq!(shared.receivers[0].qp.destroy(), 0);
    assert_eq!(shared.srq.destroy(), 0);
    Ok(())
}

fn an_empty_queue_means_not_ready(dut: &TestDevice) -> Outcome {
    let options = rc(Flavour::Classic).set(|options| options.rnr_retry = 1);
    let shared = SharedSrq::new(dut, &options, 1);
    let status = shared.senders[0].fails(Wr::send(1).sge(shared.senders[0].mr.at(0, 8)));
    assert_eq!(status, Status::IBV_WC_RNR_RETRY_EXC_ERR);
    Ok(())
}

fn a_full_queue_refuses(dut: &TestDevice) -> Outcome {
    dut.not_on(SoftRoce::Old, "takes more requests than it granted")?;
    let srq = Srq::new(&dut.open().pd(), 8, 1).unwrap();
    let room = srq.granted().max_wr as usize;
    let requests: Vec<_> = (0..room as u64).map(Recv::new).collect();
    srq.recv(&requests).unwrap();
    let (error, index) = srq.recv(&[Recv::new(1)]).unwrap_err();
    assert_eq!((error, index), (ENOMEM, 0));
    Ok(())
}

fn a_list_with_a_bad_request_names_it(dut: &TestDevice) -> Outcome {
    let shared = SharedSrq::new(dut, &rc(Flavour::Classic), 1);
    let sge = shared.receivers[0].mr.at(0, 64);
    let entries = shared.srq.granted().max_sge as usize + 1;
    let bad = Recv::new(3).list(&vec![sge; entries]);
    let list = [Recv::new(1).sge(sge), Recv::new(2).sge(sge), bad, Recv::new(4).sge(sge)];
    let (_, index) = shared.srq.recv(&list).unwrap_err();
    assert_eq!(index, 2);
    shared.send(0, 1);
    shared.send(0, 1);
    assert_eq!(shared.cq.wait(2).iter().map(|wc| wc.id).collect::<Vec<_>>(), [1, 2]);
    Ok(())
}

fn too_many_entries_are_refused(dut: &TestDevice) -> Outcome {
    let srq = Srq::new(&dut.open().pd(), 8, 1).unwrap();
    let nothing = Sge { addr: 0, length: 0, lkey: 0 };
    let entries = srq.granted().max_sge as usize + 1;
    let (error, index) = srq.recv(&[Recv::new(1).list(&vec![nothing; entries])]).unwrap_err();
    assert!([EINVAL, ENOMEM].contains(&error) && index == 0, "{error}, {index}");
    Ok(())
}

/// `man ibv_modify_srq`: an event occurs when the number of requests drops below the limit, which
/// then becomes zero.
fn the_limit_is_announced_once(dut: &TestDevice) -> Outcome {
    let shared = SharedSrq::new(dut, &rc(Flavour::Classic), 1);
    let device = &shared.receivers[0].device;
    for id in 0..6 {
        shared.recv(id, 0, 64);
    }
    assert_eq!(shared.srq.set_limit(4), 0);
    shared.send(0, 1);
    shared.send(0, 2);
    assert!(
        device
            .event(Duration::from_millis(50))
            .is_none_or(|event| event.kind() != EventType::IBV_EVENT_SRQ_LIMIT_REACHED)
    );
    shared.send(0, 3);
    let limit = std::iter::from_fn(|| device.event(WAIT_LIMIT))
        .find(|event| event.kind() == EventType::IBV_EVENT_SRQ_LIMIT_REACHED)
        .expect("the limit is announced");
    assert_eq!(limit.element(), shared.srq.address());
    drop(limit);
    shared.send(0, 4);
    assert!(device.event(Duration::from_millis(50)).is_none(), "the limit is disarmed");
    assert_eq!(shared.srq.query().unwrap().srq_limit, 0);
    Ok(())
}

fn a_limit_that_is_taken_back_is_not_announced(dut: &TestDevice) -> Outcome {
    let shared = SharedSrq::new(dut, &rc(Flavour::Classic), 1);
    for id in 0..4 {
        shared.recv(id, 0, 64);
    }
    assert_eq!((shared.srq.set_limit(3), shared.srq.set_limit(0)), (0, 0));
    for id in 0..4 {
        shared.send(0, id);
    }
    let device = &shared.receivers[0].device;
    let announced = std::iter::from_fn(|| device.event(Duration::from_millis(50)))
        .any(|event| event.kind() == EventType::IBV_EVENT_SRQ_LIMIT_REACHED);
    assert!(!announced);
    Ok(())
}

fn a_limit_beyond_the_queue_is_refused(dut: &TestDevice) -> Outcome {
    dut.not_on(SoftRoce::Old, "takes a limit up to what its memory has room for")?;
    let srq = Srq::new(&dut.open().pd(), 8, 1).unwrap();
    assert_eq!(srq.set_limit(srq.granted().max_wr + 1), EINVAL);
    assert_eq!(srq.set_limit(srq.granted().max_wr), 0);
    Ok(())
}

fn unknown_attributes_are_refused(dut: &TestDevice) -> Outcome {
    dut.not_softroce("ignores attributes of ibv_modify_srq that it does not know")?;
    let srq = Srq::new(&dut.open().pd(), 8, 1).unwrap();
    assert_eq!(srq.modify(Attr { max_wr: 8, max_sge: 1, srq_limit: 1 }, 1 << 10), EINVAL);
    Ok(())
}

/// `man ibv_modify_srq`: for devices with `IBV_DEVICE_SRQ_RESIZE`.
fn a_queue_is_made_larger(dut: &TestDevice) -> Outcome {
    let device = dut.open();
    let srq = Srq::new(&device.pd(), 8, 1).unwrap();
    srq.recv(&[Recv::new(1), Recv::new(2)]).unwrap();
    let attr = Attr { max_wr: 200, ..Attr::default() };
    if device.query().unwrap().device_cap_flags & DeviceCap::IBV_DEVICE_SRQ_RESIZE.0 == 0 {
        let error = srq.modify(attr, Mask::IBV_SRQ_MAX_WR.0);
        assert!([EINVAL, EOPNOTSUPP].contains(&error), "{error}");
        return Ok(());
    }
    assert_eq!(srq.modify(attr, Mask::IBV_SRQ_MAX_WR.0), 0);
    assert!(srq.query().unwrap().max_wr >= 200);
    let requests: Vec<_> = (3..=200).map(Recv::new).collect();
    srq.recv(&requests).unwrap();
    Ok(())
}

fn a_queue_is_not_made_smaller_than_its_limit(dut: &TestDevice) -> Outcome {
    let srq = Srq::new(&dut.open().pd(), 200, 1).unwrap();
    assert_eq!(srq.set_limit(100), 0);
    let attr = Attr { max_wr: 10, ..Attr::default() };
    let error = srq.modify(attr, Mask::IBV_SRQ_MAX_WR.0);
    assert!([EINVAL, EOPNOTSUPP].contains(&error), "{error}");
    assert!(srq.query().unwrap().max_wr >= 200);
    Ok(())
}

/// `man ibv_post_recv`: a pair with a shared receive queue has no private one.
fn a_pair_of_a_shared_queue_has_no_receives_of_its_own(dut: &TestDevice) -> Outcome {
    let shared = SharedSrq::new(dut, &rc(Flavour::Classic), 1);
    let refused = shared.receivers[0].qp.recv_list(&[Recv::new(1)]);
    // SoftRoCE does not report which request it refused.
    assert_eq!(refused, Err((EINVAL, dut.expects(0, usize::MAX))));
    Ok(())
}

fn a_pair_in_error_leaves_the_shared_requests_alone(dut: &TestDevice) -> Outcome {
    let shared = SharedSrq::new(dut, &rc(Flavour::Classic), 2);
    shared.recv(1, 0, 64);
    shared.receivers[0].go(State::IBV_QPS_ERR);
    assert!(shared.cq.is_empty());
    shared.send(1, 2);
    let wc = shared.cq.ok();
    assert_eq!((wc.id, wc.qp_num), (1, shared.receivers[1].qp.num()));
    Ok(())
}

/// `man ibv_get_async_event`: the pair has completed the last request that it took from its shared
/// queue.
fn a_pair_in_error_announces_its_last_receive(dut: &TestDevice) -> Outcome {
    dut.not_on(SoftRoce::Old, "never says IBV_EVENT_QP_LAST_WQE_REACHED")?;
    let shared = SharedSrq::new(dut, &rc(Flavour::Classic), 1);
    let node = &shared.receivers[0];
    node.go(State::IBV_QPS_ERR);
    let event = std::iter::from_fn(|| node.device.event(WAIT_LIMIT))
        .find(|event| event.kind() == EventType::IBV_EVENT_QP_LAST_WQE_REACHED)
        .expect("the last receive is announced");
    assert_eq!(event.element(), node.qp.address());
    Ok(())
}

fn a_bad_shared_receive_fails_one_pair_only(dut: &TestDevice) -> Outcome {
    let shared = SharedSrq::new(dut, &rc(Flavour::Classic), 2);
    shared.recv(1, 0, 4);
    shared.recv(2, 0, 64);
    let a = &shared.senders[0];
    let status = a.fails(Wr::send(3).sge(a.mr.at(0, 16)));
    assert!([Status::IBV_WC_REM_INV_REQ_ERR, Status::IBV_WC_REM_OP_ERR].contains(&status), "{status:?}");
    let failed = shared.cq.one();
    let expected = dut.expects(Status::IBV_WC_LOC_LEN_ERR, Status::IBV_WC_LOC_QP_OP_ERR);
    assert_eq!((failed.id, failed.status), (1, expected));
    shared.send(1, 4);
    assert_eq!(shared.cq.ok().id, 2);
    Ok(())
}
