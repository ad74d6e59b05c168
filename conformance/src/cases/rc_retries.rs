//! Reliable connections: peers that do not answer, and peers that are not ready.

use std::time::Duration;

use libc::{EHOSTUNREACH, ENETUNREACH, ETIMEDOUT};
use rdma_mummy_sys::types::ibv_qp_state as State;
use rdma_mummy_sys::types::ibv_wc_status as Status;

use super::rc_errors::classic;
use crate::kit::{Flavour, Node, NodeOptions, Outcome, QpAddress, RemoteAddr, Suite, TestDevice, Wr, pair};

pub(crate) fn cases(suite: &mut Suite) {
    both!(suite:
        a_peer_that_is_not_there_does_not_answer,
        a_peer_without_receive_is_not_ready,
    );
    cases!(suite:
        a_peer_in_reset_does_not_answer,
        a_peer_in_init_does_not_answer,
        a_peer_in_error_does_not_answer,
        a_pair_that_was_destroyed_does_not_answer,
        a_wrong_pair_number_is_not_answered,
        an_address_of_another_device_is_not_answered,
        an_address_of_nobody_is_not_answered,
        a_peer_that_is_connected_to_another_does_not_answer,
        wrong_sequence_numbers_are_not_answered,
        a_receive_that_comes_in_time_ends_the_retries,
        endless_retries_wait_for_a_receive,
        a_write_needs_no_receive_of_a_peer_that_has_none,
    );
}

/// After `spoil` changed it, the peer does not answer.
fn does_not_answer(dut: &TestDevice, spoil: impl FnOnce(&Node)) {
    let (a, b) = pair(dut, &classic().impatient());
    spoil(&b);
    let status = a.fails(Wr::write(1, b.mr.remote(0)).sge(a.mr.at(0, 8)));
    assert_eq!(status, Status::IBV_WC_RETRY_EXC_ERR);
    assert_eq!(b.mr.buf.get(0, 8), [0; 8]);
}

/// A pair that is connected to a changed address of the peer gets no answer.
fn is_not_answered(dut: &TestDevice, change: impl FnOnce(&Node, &mut QpAddress)) {
    let device = dut.open();
    let options = classic().impatient();
    let (a, b) = (Node::new(&device, &options), Node::new(&device, &options));
    let mut peer = b.peer();
    change(&b, &mut peer);
    b.connect(&a.peer());
    a.connect(&peer);
    let status = a.fails(Wr::send(1).sge(a.mr.at(0, 8)));
    assert_eq!(status, Status::IBV_WC_RETRY_EXC_ERR);
    assert_eq!(b.qp.state(), State::IBV_QPS_RTS, "the other one has seen nothing");
}

fn a_peer_that_is_not_there_does_not_answer(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let a = Node::new(&dut.open(), &NodeOptions::rc(flavour).impatient());
    let gone = Node::new(&dut.open(), &NodeOptions::rc(flavour)).peer();
    a.connect(&gone);
    for id in 0..3 {
        a.post(Wr::write(id, RemoteAddr { addr: 0, rkey: 0 }).sge(a.mr.at(0, 8)));
    }
    let statuses: Vec<_> = a.send_cq.wait(3).iter().map(|wc| (wc.id, wc.status)).collect();
    let flushed = Status::IBV_WC_WR_FLUSH_ERR;
    assert_eq!(statuses, [(0, Status::IBV_WC_RETRY_EXC_ERR), (1, flushed), (2, flushed)]);
    assert!(a.qp.reaches(State::IBV_QPS_ERR));
    Ok(())
}

fn a_peer_in_reset_does_not_answer(dut: &TestDevice) -> Outcome {
    does_not_answer(dut, |b| b.go(State::IBV_QPS_RESET));
    Ok(())
}

fn a_peer_in_init_does_not_answer(dut: &TestDevice) -> Outcome {
    does_not_answer(dut, |b| {
        b.go(State::IBV_QPS_RESET);
        b.init();
    });
    Ok(())
}

fn a_peer_in_error_does_not_answer(dut: &TestDevice) -> Outcome {
    does_not_answer(dut, |b| b.go(State::IBV_QPS_ERR));
    Ok(())
}

fn a_pair_that_was_destroyed_does_not_answer(dut: &TestDevice) -> Outcome {
    does_not_answer(dut, |b| assert_eq!(b.qp.destroy(), 0));
    Ok(())
}

fn a_wrong_pair_number_is_not_answered(dut: &TestDevice) -> Outcome {
    is_not_answered(dut, |_, peer| peer.qpn ^= 0x0080_0000);
    Ok(())
}

fn an_address_of_another_device_is_not_answered(dut: &TestDevice) -> Outcome {
    let gid = dut.open_peer()?.find_gid().unwrap().0;
    is_not_answered(dut, |_, peer| peer.gid = gid);
    Ok(())
}

/// A device that resolves the neighbour's address fails before the first request.
fn an_address_of_nobody_is_not_answered(dut: &TestDevice) -> Outcome {
    let (a, b) = (Node::new(&dut.open(), &classic().impatient()), Node::new(&dut.open(), &classic()));
    // 192.0.2.1 is reserved for documentation (RFC 5737).
    let nobody = QpAddress { gid: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 1], ..b.peer() };
    a.init();
    match a.qp.modify(a.to_rtr(&nobody)) {
        0 => {
            a.rts();
            assert_eq!(a.fails(Wr::send(1).sge(a.mr.at(0, 8))), Status::IBV_WC_RETRY_EXC_ERR);
        }
        error => assert!([ETIMEDOUT, EHOSTUNREACH, ENETUNREACH].contains(&error), "{error}"),
    }
    Ok(())
}

/// IBTA chapter 9, packet validation: a packet of another queue pair than the connected one is
/// dropped.
fn a_peer_that_is_connected_to_another_does_not_answer(dut: &TestDevice) -> Outcome {
    dut.not_softroce("does not compare which pair a packet of a connection comes from")?;
    let device = dut.open();
    let (a, b, c) = (
        Node::new(&device, &classic().impatient()),
        Node::new(&device, &classic()),
        Node::new(&device, &classic()),
    );
    b.connect(&c.peer());
    a.connect(&b.peer());
    b.recv(1, 0, 64);
    assert_eq!(a.fails(Wr::send(1).sge(a.mr.at(0, 8))), Status::IBV_WC_RETRY_EXC_ERR);
    assert!(b.recv_cq.is_empty());
    assert_eq!(b.qp.state(), State::IBV_QPS_RTS);
    Ok(())
}

fn wrong_sequence_numbers_are_not_answered(dut: &TestDevice) -> Outcome {
    let device = dut.open();
    let options = classic().impatient();
    let (a, b) = (Node::new(&device, &options), Node::new(&device, &options));
    b.connect(&QpAddress { psn: a.options.psn + 100, ..a.peer() });
    a.connect(&b.peer());
    b.recv(1, 0, 64);
    let status = a.fails(Wr::send(1).sge(a.mr.at(0, 8)));
    assert_eq!(status, Status::IBV_WC_RETRY_EXC_ERR);
    assert!(b.recv_cq.is_empty());
    Ok(())
}

fn a_peer_without_receive_is_not_ready(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let (a, b) = pair(dut, &NodeOptions::rc(flavour).set(|options| options.rnr_retry = 1));
    assert_eq!(a.fails(Wr::send(1).sge(a.mr.at(0, 8))), Status::IBV_WC_RNR_RETRY_EXC_ERR);
    assert_eq!(b.qp.state(), State::IBV_QPS_RTS, "the responder goes on");
    assert!(b.recv_cq.is_empty());
    let (a, _b) = pair(dut, &NodeOptions::rc(flavour).set(|options| options.rnr_retry = 0));
    assert_eq!(a.fails(Wr::send(1).sge(a.mr.at(0, 8))), Status::IBV_WC_RNR_RETRY_EXC_ERR);
    Ok(())
}

fn a_receive_that_comes_in_time_ends_the_retries(dut: &TestDevice) -> Outcome {
    // Six retries, 491 ms apart.
    let (a, b) = pair(dut, &classic().set(|options| (options.rnr_retry, options.min_rnr_timer) = (6, 31)));
    a.mr.buf.set(0, &[1; 64]);
    a.post(Wr::send(1).sge(a.mr.at(0, 64)));
    std::thread::sleep(Duration::from_millis(50));
    assert!(a.send_cq.is_empty());
    b.recv(2, 0, 64);
    assert_eq!((a.send_cq.ok().id, b.recv_cq.ok().id), (1, 2));
    assert_eq!(b.mr.buf.get(0, 64), [1; 64]);
    Ok(())
}

fn endless_retries_wait_for_a_receive(dut: &TestDevice) -> Outcome {
    // The timer is 0.01 ms, so seven retries would be over soon.
    let (a, b) = pair(dut, &classic().set(|options| (options.rnr_retry, options.min_rnr_timer) = (7, 1)));
    for id in 0..3 {
        a.post(Wr::send(id).sge(a.mr.at(0, 64)));
    }
    std::thread::sleep(Duration::from_millis(100));
    assert!(a.send_cq.is_empty());
    for id in 10..13 {
        b.recv(id, 0, 64);
    }
    let ids = |completions: Vec<crate::kit::Wc>| completions.iter().map(|wc| wc.id).collect::<Vec<_>>();
    assert_eq!(ids(a.send_cq.wait(3)), [0, 1, 2]);
    assert_eq!(ids(b.recv_cq.wait(3)), [10, 11, 12]);
    Ok(())
}

fn a_write_needs_no_receive_of_a_peer_that_has_none(dut: &TestDevice) -> Outcome {
    let (a, b) = pair(dut, &classic().set(|options| options.rnr_retry = 0));
    a.done(Wr::write(1, b.mr.remote(0)).sge(a.mr.at(0, 8)));
    let status = a.fails(Wr::write_imm(2, b.mr.remote(0), 1).sge(a.mr.at(0, 8)));
    assert_eq!(status, Status::IBV_WC_RNR_RETRY_EXC_ERR);
    Ok(())
}
