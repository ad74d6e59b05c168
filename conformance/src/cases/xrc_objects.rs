//! The objects of extended reliable connections: domains, numbered shared receive queues,
//! initiators and targets (`man ibv_open_xrcd`, `man ibv_create_srq_ex`, `man ibv_get_srq_num`,
//! `man ibv_open_qp`; IBTA annex A14, extended reliable connected transport service).

use libc::{EBADF, EBUSY, EINVAL, O_CREAT, O_EXCL};
use rdma_mummy_sys::types::ibv_qp_attr_mask as Mask;
use rdma_mummy_sys::types::ibv_qp_state as State;
use rdma_mummy_sys::types::ibv_qp_type as Type;
use rdma_mummy_sys::types::ibv_srq_type as SrqType;
use rdma_mummy_sys::types::ibv_wc_status as Status;

use super::xrc::{XrcConnection, XrcReceiver, connected, device, init, options};
use crate::kit::{
    Flavour, Inode, Node, NodeOptions, Outcome, Qp, QpChange, QpInit, Recv, Srq, SrqInit, Suite, TestDevice,
    Wr, Xrcd,
};

pub(crate) fn cases(suite: &mut Suite) {
    cases!(suite:
        a_domain_of_no_file_is_made,
        a_file_has_one_domain,
        a_domain_that_is_not_there_is_not_opened,
        an_exclusive_domain_is_made_once,
        the_last_reference_ends_a_domain,
        a_bad_descriptor_is_refused,
        a_domain_without_its_attributes_is_refused,
        a_domain_in_use_is_busy,
        a_queue_has_a_number,
        a_queue_without_its_parts_is_refused,
        a_queue_tells_and_changes_its_attributes,
        a_queue_keeps_its_completion_queue_and_domains_busy,
        a_basic_queue_is_made_by_the_extended_call,
        a_pair_without_its_domain_is_refused,
        an_initiator_goes_its_way,
        a_target_goes_its_way,
        ends_with_the_attributes_of_both_sides_are_connected,
        no_pair_takes_receives,
        an_opened_pair_is_the_same_pair,
        an_opened_pair_outlives_the_first_handle,
        a_pair_that_is_not_there_is_not_opened,
    );
}

fn a_domain_of_no_file_is_made(dut: &TestDevice) -> Outcome {
    let device = device(dut)?;
    let (first, second) = (Xrcd::private(&device).unwrap(), Xrcd::private(&device).unwrap());
    // A domain without a file cannot be shared, so that O_EXCL always succeeds.
    let third = Xrcd::open(&device, -1, O_CREAT | O_EXCL).unwrap();
    assert_eq!((first.close(), second.close(), third.close()), (0, 0, 0));
    Ok(())
}

/// `man ibv_open_xrcd`: the domain is "associated with the inode", for every descriptor and
/// context.
fn a_file_has_one_domain(dut: &TestDevice) -> Outcome {
    let (device, other, file) = (device(dut)?, dut.open(), Inode::new());
    let made = Xrcd::open(&device, file.fd(), O_CREAT).unwrap();
    let again = file.again();
    let opened = Xrcd::open(&other, again.fd(), 0).unwrap();
    // The domain exists, so that the flag has no effect.
    let third = Xrcd::open(&other, again.fd(), O_CREAT).unwrap();
    assert_eq!((made.close(), opened.close(), third.close()), (0, 0, 0));
    Ok(())
}

fn a_domain_that_is_not_there_is_not_opened(dut: &TestDevice) -> Outcome {
    let (device, file, other) = (device(dut)?, Inode::new(), Inode::new());
    assert!(Xrcd::open(&device, file.fd(), 0).is_err());
    let _made = Xrcd::open(&device, other.fd(), O_CREAT).unwrap();
    assert!(Xrcd::open(&device, file.fd(), 0).is_err(), "another file's is another domain");
    Ok(())
}

fn an_exclusive_domain_is_made_once(dut: &TestDevice) -> Outcome {
    let (device, file) = (device(dut)?, Inode::new());
    let made = Xrcd::open(&device, file.fd(), O_CREAT | O_EXCL).unwrap();
    assert!(Xrcd::open(&device, file.fd(), O_CREAT | O_EXCL).is_err());
    assert!(Xrcd::open(&dut.open(), file.again().fd(), O_CREAT | O_EXCL).is_err());
    assert_eq!(made.close(), 0);
    Xrcd::open(&device, file.fd(), O_CREAT | O_EXCL).unwrap();
    Ok(())
}

fn the_last_reference_ends_a_domain(dut: &TestDevice) -> Outcome {
    let (device, file) = (device(dut)?, Inode::new());
    let first = Xrcd::open(&device, file.fd(), O_CREAT).unwrap();
    let second = Xrcd::open(&device, file.fd(), 0).unwrap();
    assert_eq!(first.close(), 0);
    // The second reference keeps the domain open, and so does this one.
    let third = Xrcd::open(&device, file.fd(), 0).unwrap();
    assert_eq!((second.close(), third.close()), (0, 0));
    assert!(Xrcd::open(&device, file.fd(), 0).is_err());
    Ok(())
}

fn a_bad_descriptor_is_refused(dut: &TestDevice) -> Outcome {
    assert_eq!(Xrcd::open(&device(dut)?, 1 << 20, O_CREAT).err(), Some(EBADF));
    Ok(())
}

/// `man ibv_open_xrcd`: the mask says which fields are valid, and both are needed.
fn a_domain_without_its_attributes_is_refused(dut: &TestDevice) -> Outcome {
    let device = device(dut)?;
    for mask in [0, 1, 2] {
        assert_eq!(Xrcd::with(&device, mask, -1, O_CREAT).err(), Some(EINVAL), "mask {mask}");
    }
    Ok(())
}

/// `man ibv_open_xrcd`: "may fail if any other resource is still associated with the XRCD being
/// closed".
fn a_domain_in_use_is_busy(dut: &TestDevice) -> Outcome {
    let device = device(dut)?;
    let xrcd = Xrcd::private(&device).unwrap();
    let target = Qp::target(&xrcd).unwrap();
    assert_eq!(xrcd.close(), EBUSY);
    let receiver = XrcReceiver::new(&device, &xrcd, Flavour::Classic);
    assert_eq!(target.destroy(), 0);
    assert_eq!(xrcd.close(), EBUSY);
    assert_eq!(receiver.srq.destroy(), 0);
    assert_eq!(xrcd.close(), 0);
    Ok(())
}

fn a_queue_has_a_number(dut: &TestDevice) -> Outcome {
    let device = device(dut)?;
    let xrcd = Xrcd::private(&device).unwrap();
    let [first, second] = [(); 2].map(|()| XrcReceiver::new(&device, &xrcd, Flavour::Classic));
    assert_ne!(first.number, second.number);
    assert!(first.number < 1 << 24 && second.number < 1 << 24, "they travel in 24 bits");
    Ok(())
}

/// `man ibv_create_srq_ex`: an XRC queue has a protection domain, an XRC domain and a completion
/// queue.
fn a_queue_without_its_parts_is_refused(dut: &TestDevice) -> Outcome {
    let device = device(dut)?;
    let (pd, cq, xrcd) = (device.pd(), device.cq(16), Xrcd::private(&device).unwrap());
    let whole = init(&pd, &xrcd, &cq);
    let refused = |init: SrqInit<'_>, what: &str| {
        let made = Srq::extended(&device, init);
        assert!(made.is_err(), "without {what}");
    };
    refused(SrqInit { pd: None, ..whole }, "a protection domain");
    refused(SrqInit { xrcd: None, ..whole }, "an XRC domain");
    refused(SrqInit { cq: None, ..whole }, "a completion queue");
    refused(SrqInit { comp_mask: 1 << 31, ..whole }, "knowing the mask");
    Srq::extended(&device, whole).unwrap();
    Ok(())
}

fn a_queue_tells_and_changes_its_attributes(dut: &TestDevice) -> Outcome {
    let device = device(dut)?;
    let receiver = XrcReceiver::new(&device, &Xrcd::private(&device).unwrap(), Flavour::Classic);
    let granted = receiver.srq.granted();
    assert!(granted.max_wr >= 16 && granted.max_sge >= 2, "{granted:?}");
    // A limit that is reached already causes the event at once, and is then cleared.
    (0..4).for_each(|id| receiver.recv(id, 0, 64));
    assert_eq!(receiver.srq.set_limit(3), 0);
    let told = receiver.srq.query().unwrap();
    assert_eq!((told.max_wr, told.max_sge, told.srq_limit), (granted.max_wr, granted.max_sge, 3));
    assert_eq!(receiver.srq.set_limit(granted.max_wr + 1), EINVAL);
    Ok(())
}

fn a_queue_keeps_its_completion_queue_and_domains_busy(dut: &TestDevice) -> Outcome {
    let device = device(dut)?;
    let (pd, cq, xrcd) = (device.pd(), device.cq(16), Xrcd::private(&device).unwrap());
    let srq = Srq::extended(&device, init(&pd, &xrcd, &cq)).unwrap();
    assert_eq!((cq.destroy(), pd.dealloc(), xrcd.close()), (EBUSY, EBUSY, EBUSY));
    assert_eq!(srq.destroy(), 0);
    assert_eq!((cq.destroy(), pd.dealloc(), xrcd.close()), (0, 0, 0));
    Ok(())
}

/// `man ibv_create_srq_ex`: "supporting both basic and xrc modes"; a basic queue belongs to pairs.
fn a_basic_queue_is_made_by_the_extended_call(dut: &TestDevice) -> Outcome {
    let device = device(dut)?;
    let pd = device.pd();
    let basic = SrqInit { pd: Some(&pd), max_wr: 4, max_sge: 1, ..SrqInit::default() };
    let typed = SrqInit { srq_type: Some(SrqType::IBV_SRQT_BASIC), ..basic };
    for init in [basic, typed] {
        let srq = Srq::extended(&device, init).unwrap();
        let options = NodeOptions::rc(Flavour::Classic);
        let b = Node::with_queues(&device, &options, Some((&pd, &srq)), None);
        let a = Node::new(&device, &options);
        a.connect(&b.peer());
        b.connect(&a.peer());
        srq.recv(&[Recv::new(5).sge(b.mr.at(0, 64))]).unwrap();
        a.done(Wr::send(6).sge(a.mr.at(0, 64)));
        assert_eq!(b.recv_cq.ok().id, 5);
    }
    Ok(())
}

/// `man ibv_create_qp_ex`: the protection domain is the initiator's, the XRC domain the target's.
fn a_pair_without_its_domain_is_refused(dut: &TestDevice) -> Outcome {
    let device = device(dut)?;
    let cq = device.cq(16);
    let initiator = QpInit::new(Type::IBV_QPT_XRC_SEND, &cq, &cq);
    assert!(Qp::make(&device, None, &initiator).is_err(), "an initiator without a protection domain");
    let target = QpInit { send_cq: None, recv_cq: None, ..QpInit::new(Type::IBV_QPT_XRC_RECV, &cq, &cq) };
    assert!(Qp::make(&device, None, &target).is_err(), "a target without an XRC domain");
    Ok(())
}

/// IBTA 11.2.5.2 with annex A14: an initiator needs the attributes of a requester, and none of a
/// responder. The kernel ignores those (`modify_qp_mask` in `uverbs_cmd.c`), whatever their values.
fn an_initiator_goes_its_way(dut: &TestDevice) -> Outcome {
    let device = device(dut)?;
    let xrcd = Xrcd::private(&device).unwrap();
    let connection = XrcConnection::new(&device, Qp::target(&xrcd).unwrap(), &options(Flavour::Classic));
    let qp = &connection.initiator;
    let to_rtr = connection.to_rtr(qp, connection.target.num());
    let to_rts = connection.to_rts(qp);
    goes(qp, [connection.to_init(), to_rtr, to_rts]);
    assert_eq!(qp.modify(QpChange::to(State::IBV_QPS_RESET)), 0);
    assert_eq!(qp.modify(connection.to_init()), 0);
    let responders = to_rtr
        .with(Mask::IBV_QP_MIN_RNR_TIMER, |attr| attr.min_rnr_timer = 200)
        .with(Mask::IBV_QP_MAX_DEST_RD_ATOMIC, |attr| attr.max_dest_rd_atomic = 200);
    assert_eq!(qp.modify(responders), 0);
    let told = qp.query(Mask::IBV_QP_MIN_RNR_TIMER.0 | Mask::IBV_QP_MAX_DEST_RD_ATOMIC.0).unwrap().0;
    assert_eq!((told.min_rnr_timer, told.max_dest_rd_atomic), (0, 0), "they were not set");
    let unknown = to_rts.with(Mask::IBV_QP_QKEY, |attr| attr.qkey = 1);
    assert_eq!(qp.modify(unknown), EINVAL, "the key is of datagrams");
    assert_eq!(qp.modify(to_rts), 0);
    Ok(())
}

/// IBTA 11.2.5.2 with annex A14: a target needs the attributes of a responder, and the kernel
/// ignores those of a requester.
fn a_target_goes_its_way(dut: &TestDevice) -> Outcome {
    let device = device(dut)?;
    let xrcd = Xrcd::private(&device).unwrap();
    let connection = XrcConnection::new(&device, Qp::target(&xrcd).unwrap(), &options(Flavour::Classic));
    let qp = &connection.target;
    let to_rtr = connection.to_rtr(qp, connection.initiator.num());
    let to_rts = connection.to_rts(qp);
    goes(qp, [connection.to_init(), to_rtr, to_rts]);
    let told = qp.query(Mask::IBV_QP_STATE.0 | Mask::IBV_QP_DEST_QPN.0).unwrap();
    assert_eq!(told.0.dest_qp_num, connection.initiator.num());
    assert_eq!(qp.modify(QpChange::to(State::IBV_QPS_RESET)), 0);
    for change in [connection.to_init(), to_rtr] {
        assert_eq!(qp.modify(change), 0);
    }
    let requesters = to_rts
        .with(Mask::IBV_QP_RETRY_CNT, |attr| attr.retry_cnt = 200)
        .with(Mask::IBV_QP_RNR_RETRY, |attr| attr.rnr_retry = 200)
        .with(Mask::IBV_QP_MAX_QP_RD_ATOMIC, |attr| attr.max_rd_atomic = 200);
    assert_eq!(qp.modify(requesters), 0);
    let told = qp.query(Mask::IBV_QP_RETRY_CNT.0 | Mask::IBV_QP_RNR_RETRY.0).unwrap().0;
    assert_eq!((told.retry_cnt, told.rnr_retry, told.max_rd_atomic), (0, 0, 0), "they were not set");
    Ok(())
}

/// What programs do that know reliable connections only, such as perftest: both ends get the
/// attributes of both sides, and the connection works.
fn ends_with_the_attributes_of_both_sides_are_connected(dut: &TestDevice) -> Outcome {
    let device = device(dut)?;
    let xrcd = Xrcd::private(&device).unwrap();
    let receiver = XrcReceiver::new(&device, &xrcd, Flavour::Classic);
    let connection = XrcConnection::new(&device, Qp::target(&xrcd).unwrap(), &options(Flavour::Classic));
    let ends = [&connection.initiator, &connection.target];
    for (qp, other) in ends.into_iter().zip(ends.into_iter().rev()) {
        let to_rtr = connection
            .to_rtr(qp, other.num())
            .with(Mask::IBV_QP_MIN_RNR_TIMER, |attr| attr.min_rnr_timer = 1)
            .with(Mask::IBV_QP_MAX_DEST_RD_ATOMIC, |attr| attr.max_dest_rd_atomic = 1);
        let to_rts = connection
            .to_rts(qp)
            .with(Mask::IBV_QP_RETRY_CNT, |attr| attr.retry_cnt = 7)
            .with(Mask::IBV_QP_RNR_RETRY, |attr| attr.rnr_retry = 7)
            .with(Mask::IBV_QP_MAX_QP_RD_ATOMIC, |attr| attr.max_rd_atomic = 1);
        for change in [connection.to_init(), to_rtr, to_rts] {
            assert_eq!(qp.modify(change), 0, "{:?}", change.attr.qp_state);
        }
    }
    receiver.recv(1, 0, 64);
    connection.mr.buf.set(0, &[7; 16]);
    connection.done(Wr::send(2).sge(connection.mr.at(0, 16)), &receiver);
    assert_eq!(receiver.cq.ok().len, 16);
    assert_eq!(receiver.mr.buf.get(0, 16), [7; 16]);
    Ok(())
}

/// Each change fails without any one of its attributes, and succeeds with all of them.
fn goes(qp: &Qp, steps: [QpChange; 3]) {
    for step in steps {
        for bit in (0..32).map(|bit| 1 << bit).filter(|bit| step.mask & bit != 0) {
            if bit != Mask::IBV_QP_STATE.0 {
                let without = step.without(rdma_mummy_sys::types::ibv_qp_attr_mask(bit));
                assert_eq!(qp.modify(without), EINVAL, "{:?} without {bit:#x}", step.attr.qp_state);
            }
        }
        assert_eq!(qp.modify(step), 0, "{:?}", step.attr.qp_state);
        assert_eq!(qp.state(), step.attr.qp_state);
    }
}

/// XRC pairs take receives from shared queues only.
fn no_pair_takes_receives(dut: &TestDevice) -> Outcome {
    let (_xrcd, receiver, connection) = connected(dut, &options(Flavour::Classic))?;
    for qp in [&connection.initiator, &connection.target] {
        let posted = qp.recv_list(&[Recv::new(1).sge(receiver.mr.at(0, 64))]);
        assert!(posted.is_err(), "an XRC pair has no receive queue");
    }
    Ok(())
}

/// `man ibv_open_qp`: an existing pair is opened, by number and type, within its domain.
fn an_opened_pair_is_the_same_pair(dut: &TestDevice) -> Outcome {
    let (xrcd, receiver, connection) = connected(dut, &options(Flavour::Classic))?;
    let opened = Qp::open(&xrcd, connection.target.num(), Type::IBV_QPT_XRC_RECV).unwrap();
    assert_eq!(opened.num(), connection.target.num());
    assert_eq!(opened.state(), State::IBV_QPS_RTS);
    assert_eq!(opened.modify(QpChange::to(State::IBV_QPS_ERR)), 0);
    assert_eq!(connection.target.state(), State::IBV_QPS_ERR);
    receiver.recv(1, 0, 64);
    assert_eq!(opened.destroy(), 0);
    Ok(())
}

/// `man ibv_open_qp`: destroying "closes the opened QP and destroys the underlying QP if it has no
/// other references".
fn an_opened_pair_outlives_the_first_handle(dut: &TestDevice) -> Outcome {
    let opts = options(Flavour::Classic).impatient();
    let (xrcd, receiver, connection) = connected(dut, &opts)?;
    let opened = Qp::open(&xrcd, connection.target.num(), Type::IBV_QPT_XRC_RECV).unwrap();
    assert_eq!(connection.target.destroy(), 0);
    assert_eq!(opened.state(), State::IBV_QPS_RTS);
    receiver.recv(1, 0, 64);
    connection.done(Wr::send(2).sge(connection.mr.at(0, 16)), &receiver);
    assert_eq!(receiver.cq.ok().qp_num, opened.num());
    assert_eq!(opened.destroy(), 0);
    let status = connection.fails(Wr::send(3).sge(connection.mr.at(0, 16)), receiver.number, false);
    assert_eq!(status, Status::IBV_WC_RETRY_EXC_ERR, "nobody answers");
    Ok(())
}

/// `man ibv_open_qp`: it fails for a pair "that does not exist within the xrcd with the specified
/// qp_num and qp_type".
fn a_pair_that_is_not_there_is_not_opened(dut: &TestDevice) -> Outcome {
    let (xrcd, _receiver, connection) = connected(dut, &options(Flavour::Classic))?;
    let (target, recv) = (connection.target.num(), Type::IBV_QPT_XRC_RECV);
    assert!(Qp::open(&xrcd, connection.initiator.num(), recv).is_err(), "an initiator");
    assert!(Qp::open(&xrcd, target ^ 0x3f_0000, recv).is_err(), "nobody's number");
    assert!(Qp::open(&xrcd, target, Type::IBV_QPT_RC).is_err(), "another type");
    let elsewhere = Xrcd::private(&device(dut)?).unwrap();
    assert!(Qp::open(&elsewhere, target, recv).is_err(), "another domain");
    assert_eq!(connection.target.state(), State::IBV_QPS_RTS);
    Ok(())
}
