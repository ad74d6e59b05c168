//! Queue pairs: behaviour in each state.

use libc::EINVAL;
use rdma_mummy_sys::types::ibv_qp_attr_mask as Mask;
use rdma_mummy_sys::types::ibv_qp_state as State;
use rdma_mummy_sys::types::ibv_qp_type as Type;

use crate::kit::{Flavour, NodeOptions, Outcome, QpChange, Recv, Suite, TestDevice, Wr, node, node_in, pair};

pub(crate) fn cases(suite: &mut Suite) {
    cases!(suite:
        a_pair_goes_up_without_sending,
        a_pair_drains_and_goes_on,
        a_pair_drained_takes_new_attributes,
        requests_posted_while_drained_wait,
        reset_forgets_what_was_posted,
        a_pair_in_reset_takes_no_requests,
        a_pair_in_reset_takes_no_receives,
        a_pair_in_init_takes_receives_only,
        a_pair_in_rtr_receives_but_does_not_send,
    );
}

/// IBTA chapter 10, queue pair states, ready to receive: a pair in RTR receives, and may stay
/// there.
fn a_pair_goes_up_without_sending(dut: &TestDevice) -> Outcome {
    let (a, b) = (node(dut, Type::IBV_QPT_RC), node(dut, Type::IBV_QPT_RC));
    a.connect(&b.peer());
    b.init();
    b.rtr(&a.peer());
    b.recv(1, 0, 64);
    a.done(Wr::send(2).sge(a.mr.at(0, 8)));
    assert_eq!(b.recv_cq.ok().id, 1);
    a.done(Wr::read(3, b.mr.remote(0)).sge(a.mr.at(0, 8)));
    assert_eq!(b.qp.state(), State::IBV_QPS_RTR);
    Ok(())
}

/// IBTA chapter 10, queue pair states, send queue drain: SQD finishes started requests, and RTS
/// continues.
fn a_pair_drains_and_goes_on(dut: &TestDevice) -> Outcome {
    let (a, b) = pair(dut, &NodeOptions::rc(Flavour::Classic));
    a.done(Wr::write(1, b.mr.remote(0)).sge(a.mr.at(0, 8)));
    a.go(State::IBV_QPS_SQD);
    a.drained();
    assert_eq!(a.qp.state(), State::IBV_QPS_SQD);
    a.recv(2, 0, 64);
    b.done(Wr::send(3).sge(b.mr.at(0, 8)));
    assert_eq!(a.recv_cq.ok().id, 2, "receiving goes on");
    a.go(State::IBV_QPS_RTS);
    a.done(Wr::write(4, b.mr.remote(0)).sge(a.mr.at(0, 8)));
    Ok(())
}

fn a_pair_drained_takes_new_attributes(dut: &TestDevice) -> Outcome {
    let (a, b) = pair(dut, &NodeOptions::rc(Flavour::Classic));
    a.go(State::IBV_QPS_SQD);
    a.drained();
    let change = QpChange::to(State::IBV_QPS_SQD)
        .with(Mask::IBV_QP_RETRY_CNT, |attr| attr.retry_cnt = 2)
        .with(Mask::IBV_QP_TIMEOUT, |attr| attr.timeout = 18);
    assert_eq!(a.qp.modify(change), 0);
    let (attr, _) = a.qp.query(Mask::IBV_QP_TIMEOUT.0).unwrap();
    assert_eq!((attr.retry_cnt, attr.timeout), (2, 18));
    a.drained();
    a.go(State::IBV_QPS_RTS);
    a.done(Wr::write(4, b.mr.remote(0)).sge(a.mr.at(0, 8)));
    Ok(())
}

/// IBTA chapter 10, queue pair states, send queue drain: requests posted in SQD are queued and not
/// started.
fn requests_posted_while_drained_wait(dut: &TestDevice) -> Outcome {
    dut.not_softroce("does not take up the requests that were posted in SQD")?;
    let (a, b) = pair(dut, &NodeOptions::rc(Flavour::Classic));
    a.go(State::IBV_QPS_SQD);
    a.drained();
    a.mr.buf.set(0, &[1; 8]);
    a.post(Wr::write(1, b.mr.remote(0)).sge(a.mr.at(0, 8)));
    std::thread::sleep(std::time::Duration::from_millis(50));
    assert!(a.send_cq.is_empty());
    assert_eq!(b.mr.buf.get(0, 8), [0; 8]);
    a.go(State::IBV_QPS_RTS);
    assert_eq!(a.send_cq.ok().id, 1);
    assert_eq!(b.mr.buf.get(0, 8), [1; 8]);
    Ok(())
}

/// IBTA chapter 10, queue pair states, reset: all requests are discarded without completions.
fn reset_forgets_what_was_posted(dut: &TestDevice) -> Outcome {
    let (a, b) = pair(dut, &NodeOptions::rc(Flavour::Classic));
    b.recv(1, 0, 64);
    b.go(State::IBV_QPS_RESET);
    b.connect(&a.peer());
    assert!(b.recv_cq.is_empty());
    b.recv(2, 0, 64);
    a.done(Wr::send(3).sge(a.mr.at(0, 8)));
    assert_eq!(b.recv_cq.ok().id, 2);
    Ok(())
}

/// The error for a request that the pair's state does not allow; SoftRoCE does not report its
/// index.
fn refusal(dut: &TestDevice) -> Result<(), (i32, usize)> {
    Err((EINVAL, dut.expects(0, usize::MAX)))
}

/// `man ibv_post_send`; IBTA 11.4.1.1, post send request: an immediate error.
fn a_pair_in_reset_takes_no_requests(dut: &TestDevice) -> Outcome {
    let node = node(dut, Type::IBV_QPT_RC);
    assert_eq!(node.qp.post(&[Wr::send(1).sge(node.mr.at(0, 8))]), refusal(dut));
    assert!(node.send_cq.is_empty());
    Ok(())
}

/// `man ibv_post_recv`; IBTA 11.4.1.2, post receive request: an immediate error.
fn a_pair_in_reset_takes_no_receives(dut: &TestDevice) -> Outcome {
    let node = node(dut, Type::IBV_QPT_RC);
    assert_eq!(node.qp.recv_list(&[Recv::new(1)]), refusal(dut));
    assert!(node.recv_cq.is_empty());
    Ok(())
}

fn a_pair_in_init_takes_receives_only(dut: &TestDevice) -> Outcome {
    let node = node_in(dut, Type::IBV_QPT_RC, State::IBV_QPS_INIT);
    node.recv(1, 0, 64);
    assert!(node.recv_cq.is_empty());
    node.rtr(&node.peer());
    node.rts();
    node.done(Wr::send(2).sge(node.mr.at(0, 8)));
    assert_eq!(node.recv_cq.ok().id, 1);
    let node = node_in(dut, Type::IBV_QPT_RC, State::IBV_QPS_INIT);
    assert_eq!(node.qp.post(&[Wr::send(1).sge(node.mr.at(0, 8))]), refusal(dut));
    Ok(())
}

fn a_pair_in_rtr_receives_but_does_not_send(dut: &TestDevice) -> Outcome {
    let node = node_in(dut, Type::IBV_QPT_RC, State::IBV_QPS_RTR);
    assert_eq!(node.qp.post(&[Wr::send(1).sge(node.mr.at(0, 8))]), refusal(dut));
    node.recv(1, 0, 64);
    assert!(node.recv_cq.is_empty());
    Ok(())
}
