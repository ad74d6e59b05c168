//! Unreliable connections: delivery, and silent loss.

use libc::EINVAL;
use rdma_mummy_sys::types::ibv_access_flags as Access;
use rdma_mummy_sys::types::ibv_mtu as Mtu;
use rdma_mummy_sys::types::ibv_qp_state as State;
use rdma_mummy_sys::types::ibv_wc_flags as WcFlags;
use rdma_mummy_sys::types::ibv_wc_opcode as Opcode;
use rdma_mummy_sys::types::ibv_wc_status as Status;

use crate::cases::LOCAL_REASON;
use crate::kit::{
    Flavour, Node, NodeOptions, Outcome, PeerLocation, RemoteAddr, Sge, Suite, TestDevice, WAIT_LIMIT, Wr,
    pair, pair_at, pattern, poll_until, unlike_pair,
};

pub(crate) fn cases(suite: &mut Suite) {
    both!(suite:
        a_send_arrives,
        a_send_of_many_packets_arrives,
        immediate_data_arrives,
        a_write_arrives,
        a_write_with_immediate_data_arrives,
        a_send_without_receive_is_lost,
        a_write_with_a_wrong_key_is_lost,
        a_write_without_permission_is_lost,
        a_wrong_local_key_is_a_local_protection_error,
    );
    cases!(suite:
        two_devices_talk,
        a_send_longer_than_its_receive_is_lost,
        packets_of_another_size_are_lost,
        a_write_with_immediate_data_without_receive_is_lost,
        a_write_beyond_its_region_is_lost,
        a_pair_without_the_permission_loses_writes,
        reads_and_atomics_are_refused,
        a_peer_that_is_gone_is_not_missed,
        a_peer_in_reset_is_not_missed,
        outstanding_requests_are_flushed,
        many_sends_keep_their_order,
    );
}

fn classic() -> NodeOptions {
    NodeOptions::uc(Flavour::Classic)
}

/// Shows that the pair works and that the lost request left no trace: this message arrives next.
fn still_works(a: &Node, b: &Node) {
    a.mr.buf.set(60000, &[0x42; 8]);
    b.recv(4242, 60000, 64);
    a.done(Wr::send(4243).sge(a.mr.at(60000, 8)));
    let wc = b.recv_cq.ok();
    assert_eq!((wc.id, wc.len), (4242, 8));
    assert_eq!(b.mr.buf.get(60000, 8), [0x42; 8]);
    assert_eq!((a.qp.state(), b.qp.state()), (State::IBV_QPS_RTS, State::IBV_QPS_RTS));
    assert!(b.recv_cq.is_empty());
}

fn a_send_arrives(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let (a, b) = pair(dut, &NodeOptions::uc(flavour));
    a.mr.buf.set(0, &pattern(1, 500));
    b.recv(1, 0, 600);
    let sent = a.done(Wr::send(2).sge(a.mr.at(0, 500)));
    let wc = b.recv_cq.ok();
    assert_eq!((wc.id, wc.len, wc.opcode, wc.qp_num), (1, 500, Opcode::IBV_WC_RECV, b.qp.num()));
    assert_eq!(sent.opcode, Opcode::IBV_WC_SEND);
    assert_eq!(b.mr.buf.get(0, 500), pattern(1, 500));
    Ok(())
}

fn a_send_of_many_packets_arrives(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let (a, b) = pair(dut, &NodeOptions::uc(flavour));
    a.mr.buf.set(0, &pattern(1, 20000));
    b.recv(1, 0, 20000);
    a.done(Wr::send(2).sge(a.mr.at(0, 20000)));
    assert_eq!(b.recv_cq.ok().len, 20000);
    assert!(b.mr.buf.get(0, 20000) == pattern(1, 20000));
    Ok(())
}

fn immediate_data_arrives(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let (a, b) = pair(dut, &NodeOptions::uc(flavour));
    b.recv(1, 0, 64);
    a.done(Wr::send_imm(2, 0xdead_beef));
    let wc = b.recv_cq.ok();
    assert!(wc.has(WcFlags::IBV_WC_WITH_IMM));
    assert_eq!((wc.imm, wc.len), (0xdead_beef, 0));
    Ok(())
}

fn a_write_arrives(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let (a, b) = pair(dut, &NodeOptions::uc(flavour));
    a.mr.buf.set(0, &pattern(6, 3000));
    let wc = a.done(Wr::write(1, b.mr.remote(100)).sge(a.mr.at(0, 3000)));
    assert_eq!(wc.opcode, Opcode::IBV_WC_RDMA_WRITE);
    // The sender's completion does not mean that the data has arrived.
    let arrived = poll_until(WAIT_LIMIT, || (b.mr.buf.get(100, 3000) == pattern(6, 3000)).then_some(()));
    assert!(arrived.is_some());
    still_works(&a, &b);
    Ok(())
}

fn a_write_with_immediate_data_arrives(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let (a, b) = pair(dut, &NodeOptions::uc(flavour));
    a.mr.buf.set(0, &pattern(6, 3000));
    b.recv(1, 50000, 64);
    a.done(Wr::write_imm(2, b.mr.remote(100), 77).sge(a.mr.at(0, 3000)));
    let wc = b.recv_cq.ok();
    assert_eq!((wc.id, wc.imm, wc.opcode), (1, 77, Opcode::IBV_WC_RECV_RDMA_WITH_IMM));
    assert!(b.mr.buf.get(100, 3000) == pattern(6, 3000));
    Ok(())
}

/// IBTA chapter 9, unreliable connections: without a receive the message is dropped.
fn a_send_without_receive_is_lost(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let (a, b) = pair(dut, &NodeOptions::uc(flavour));
    a.done(Wr::send(1).sge(a.mr.at(0, 3000)));
    std::thread::sleep(std::time::Duration::from_millis(100));
    still_works(&a, &b);
    Ok(())
}

/// IBTA chapter 9, unreliable connections: the responder drops the request, whichever part of the
/// key is wrong.
fn a_write_with_a_wrong_key_is_lost(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let (a, b) = pair(dut, &NodeOptions::uc(flavour));
    a.mr.buf.set(0, &[1; 64]);
    a.done(Wr::write(1, RemoteAddr { rkey: b.mr.rkey() ^ 0x5a, ..b.mr.remote(0) }).sge(a.mr.at(0, 64)));
    still_works(&a, &b);
    assert_eq!(b.mr.buf.get(0, 64), [0; 64]);
    Ok(())
}

fn a_write_without_permission_is_lost(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let options = NodeOptions::uc(flavour).set(|options| options.region = Access::IBV_ACCESS_LOCAL_WRITE.0);
    let (a, b) = pair(dut, &options);
    a.mr.buf.set(0, &[1; 64]);
    a.done(Wr::write(1, b.mr.remote(0)).sge(a.mr.at(0, 64)));
    still_works(&a, &b);
    assert_eq!(b.mr.buf.get(0, 64), [0; 64]);
    Ok(())
}

fn a_wrong_local_key_is_a_local_protection_error(dut: &TestDevice, flavour: Flavour) -> Outcome {
    dut.not_softroce(LOCAL_REASON)?;
    let (a, b) = pair(dut, &NodeOptions::uc(flavour));
    a.post(Wr::write(1, b.mr.remote(0)).sge(Sge { lkey: a.mr.lkey() ^ 0x5a5a, ..a.mr.at(0, 8) }));
    assert_eq!(a.send_cq.one().status, Status::IBV_WC_LOC_PROT_ERR);
    Ok(())
}

fn two_devices_talk(dut: &TestDevice) -> Outcome {
    let (a, b) = pair_at(dut, PeerLocation::OtherDevice, &classic())?;
    still_works(&a, &b);
    still_works(&b, &a);
    Ok(())
}

/// IBTA chapter 9, unreliable connections: the responder drops a message that does not fit, and
/// waits for the next one.
fn a_send_longer_than_its_receive_is_lost(dut: &TestDevice) -> Outcome {
    dut.not_softroce("completes the receive with a length error and puts the pair into the error state")?;
    let (a, b) = pair(dut, &classic());
    b.recv(1, 0, 63);
    a.done(Wr::send(2).sge(a.mr.at(0, 64)));
    // The device may use up the receive, but never completes it with success.
    b.recv(4242, 60000, 64);
    a.done(Wr::send(3).sge(a.mr.at(60000, 8)));
    let wc = b.recv_cq.wait(1).remove(0);
    assert!(wc.status == Status::IBV_WC_LOC_LEN_ERR || wc.len == 8, "{wc:?}");
    assert_eq!((a.qp.state(), b.mr.buf.get(63, 1)), (State::IBV_QPS_RTS, vec![0]));
    Ok(())
}

/// IBTA chapter 9, unreliable connections: as on reliable ones, but without a notification.
fn packets_of_another_size_are_lost(dut: &TestDevice) -> Outcome {
    let of = |mtu| classic().set(|options| options.mtu = mtu);
    let (a, b) = unlike_pair(dut, [&of(Mtu::IBV_MTU_256), &of(Mtu::IBV_MTU_1024)]);
    a.mr.buf.set(0, &pattern(1, 5000));
    a.done(Wr::write(1, b.mr.remote(0)).sge(a.mr.at(0, 5000)));
    still_works(&a, &b);
    assert_eq!(b.mr.buf.get(4000, 1000), [0; 1000]);
    Ok(())
}

fn a_write_with_immediate_data_without_receive_is_lost(dut: &TestDevice) -> Outcome {
    let (a, b) = pair(dut, &classic());
    a.done(Wr::write_imm(1, b.mr.remote(0), 5).sge(a.mr.at(0, 64)));
    std::thread::sleep(std::time::Duration::from_millis(100));
    still_works(&a, &b);
    Ok(())
}

fn a_write_beyond_its_region_is_lost(dut: &TestDevice) -> Outcome {
    let (a, b) = pair(dut, &classic());
    a.mr.buf.set(0, &[1; 8192]);
    a.done(Wr::write(1, b.mr.remote(b.mr.len() - 4096)).sge(a.mr.at(0, 8192)));
    b.recv(1, 0, 64);
    a.done(Wr::send(2).sge(a.mr.at(0, 8)));
    assert_eq!(b.recv_cq.ok().id, 1);
    assert!(b.mr.buf.get(b.mr.len() - 4096, 4096) == [0; 4096]);
    Ok(())
}

fn a_pair_without_the_permission_loses_writes(dut: &TestDevice) -> Outcome {
    let (a, b) = pair(dut, &classic().set(|options| options.access = Access::IBV_ACCESS_LOCAL_WRITE.0));
    a.mr.buf.set(0, &[1; 64]);
    a.done(Wr::write(1, b.mr.remote(0)).sge(a.mr.at(0, 64)));
    still_works(&a, &b);
    assert_eq!(b.mr.buf.get(0, 64), [0; 64]);
    Ok(())
}

/// `man ibv_post_send`, the table of operations: an unreliable connection supports neither.
fn reads_and_atomics_are_refused(dut: &TestDevice) -> Outcome {
    dut.not_softroce("posts requests that the type of the pair does not have")?;
    let (a, b) = pair(dut, &classic());
    let remote = b.mr.remote(0);
    for wr in [Wr::read(1, remote), Wr::fetch_add(1, remote, 1), Wr::cmp_swp(1, remote, 0, 1)] {
        assert_eq!(a.qp.post(&[wr.sge(a.mr.at(0, 8))]), Err((EINVAL, 0)));
    }
    still_works(&a, &b);
    Ok(())
}

fn a_peer_that_is_gone_is_not_missed(dut: &TestDevice) -> Outcome {
    let (a, b) = pair(dut, &classic());
    drop(b);
    for id in 0..5 {
        a.done(Wr::send(id).sge(a.mr.at(0, 3000)));
    }
    assert_eq!(a.qp.state(), State::IBV_QPS_RTS);
    Ok(())
}

fn a_peer_in_reset_is_not_missed(dut: &TestDevice) -> Outcome {
    let (a, b) = pair(dut, &classic());
    b.go(State::IBV_QPS_RESET);
    a.mr.buf.set(0, &[1; 8]);
    a.done(Wr::write(1, b.mr.remote(0)).sge(a.mr.at(0, 8)));
    assert_eq!(b.mr.buf.get(0, 8), [0; 8]);
    Ok(())
}

fn outstanding_requests_are_flushed(dut: &TestDevice) -> Outcome {
    dut.not_softroce(
        "keeps a receive that is posted in the error state, unless its task happens to run once more",
    )?;
    let (a, _b) = pair(dut, &classic());
    a.recv(1, 0, 64);
    a.go(State::IBV_QPS_ERR);
    a.recv(2, 0, 64);
    a.post(Wr::send(3).sge(a.mr.at(0, 8)));
    let flushed: Vec<_> = a.recv_cq.wait(2).iter().map(|wc| (wc.id, wc.status)).collect();
    let status = Status::IBV_WC_WR_FLUSH_ERR;
    assert_eq!(flushed, [(1, status), (2, status)]);
    assert_eq!(a.send_cq.one().status, status);
    Ok(())
}

fn many_sends_keep_their_order(dut: &TestDevice) -> Outcome {
    let (a, b) = pair(dut, &classic());
    for n in 0..100_u64 {
        b.recv(n, 0, 64);
        a.mr.buf.set_u64(0, n);
        a.done(Wr::send(n).sge(a.mr.at(0, 8)));
        assert_eq!(b.recv_cq.ok().id, n);
        assert_eq!(b.mr.buf.get_u64(0), n);
    }
    Ok(())
}
