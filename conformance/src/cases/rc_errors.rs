//! Reliable connections: errors, and their completions on both sides.

use rdma_mummy_sys::types::ibv_access_flags as Access;
use rdma_mummy_sys::types::ibv_mtu as Mtu;
use rdma_mummy_sys::types::ibv_qp_state as State;
use rdma_mummy_sys::types::ibv_wc_status as Status;

use crate::cases::LOCAL_REASON;
use crate::kit::{
    Buf, EVERYTHING, Flavour, Node, NodeOptions, Outcome, Recv, RemoteAddr, Sge, SoftRoce, Suite, TestDevice,
    Wr, pair, pattern, unlike_pair,
};

pub(crate) fn cases(suite: &mut Suite) {
    both!(suite:
        a_wrong_local_key_is_a_local_protection_error,
        a_wrong_remote_key_is_a_remote_access_error,
        a_message_longer_than_its_receive_fails_both_sides,
        a_message_longer_than_its_receive_is_an_invalid_request,
        requests_behind_a_failed_one_are_flushed_in_order,
        receives_are_flushed_in_order,
        a_failure_without_signal_completes_all_the_same,
    );
    cases!(suite:
        local_memory_beyond_its_region_is_a_local_protection_error,
        local_memory_of_another_domain_is_a_local_protection_error,
        a_local_key_that_was_given_back_is_a_local_protection_error,
        a_read_into_memory_without_local_write_is_a_local_protection_error,
        an_atomic_into_memory_without_local_write_is_a_local_protection_error,
        a_send_from_memory_without_local_write_is_fine,
        remote_memory_beyond_its_region_is_a_remote_access_error,
        an_address_that_wraps_around_is_a_remote_access_error,
        a_region_without_the_permission_is_a_remote_access_error,
        a_pair_without_the_permission_refuses,
        a_key_of_another_domain_is_a_remote_access_error,
        a_key_that_was_given_back_is_a_remote_access_error,
        a_refused_write_leaves_the_memory_alone,
        the_responder_of_a_refused_write_is_in_error,
        an_atomic_on_an_odd_address_is_an_invalid_request,
        an_atomic_of_another_length_is_refused,
        a_reader_that_the_responder_has_no_room_for_is_refused,
        a_read_that_the_requester_has_no_room_for_is_refused,
        a_bad_receive_buffer_fails_both_sides,
        a_receive_buffer_without_local_write_fails_both_sides,
        a_receive_buffer_of_another_domain_fails_both_sides,
        a_message_beyond_the_limit_of_the_port_is_a_length_error,
        with_another_packet_size_one_packet_passes,
        a_write_in_packets_of_another_size_is_an_invalid_request,
        a_send_in_packets_of_another_size_is_an_invalid_request,
        a_failed_pair_works_again_after_reset,
        both_queues_are_flushed_when_a_pair_goes_to_error,
        a_request_to_a_pair_in_error_is_flushed,
        a_receive_of_a_pair_in_error_is_flushed,
        an_empty_request_with_a_wrong_key_is_fine,
        a_zero_length_entry_with_a_wrong_key_is_fine,
    );
}

pub(super) fn classic() -> NodeOptions {
    NodeOptions::rc(Flavour::Classic)
}

/// A request with this local memory fails with a local protection error, for each operation.
fn is_a_local_protection_error(dut: &TestDevice, flavour: Flavour, memory: impl Fn(&Node) -> Sge) {
    for op in [|_: &Node| Wr::send(1), |b: &Node| Wr::write(1, b.mr.remote(0))] {
        let (a, b) = pair(dut, &NodeOptions::rc(flavour));
        b.recv(1, 0, 4096);
        assert_eq!(a.fails(op(&b).sge(memory(&a))), Status::IBV_WC_LOC_PROT_ERR);
        assert!(b.recv_cq.is_empty(), "nothing arrives");
    }
}

/// IBTA chapter 11, completion return status: memory that a request may not use is a local
/// protection error.
fn a_wrong_local_key_is_a_local_protection_error(dut: &TestDevice, flavour: Flavour) -> Outcome {
    dut.not_softroce(LOCAL_REASON)?;
    is_a_local_protection_error(dut, flavour, |a| Sge { lkey: a.mr.lkey() ^ 0x5a5a, ..a.mr.at(0, 64) });
    Ok(())
}

fn local_memory_beyond_its_region_is_a_local_protection_error(dut: &TestDevice) -> Outcome {
    dut.not_since(SoftRoce::New, LOCAL_REASON)?;
    is_a_local_protection_error(dut, Flavour::Classic, |a| a.mr.at(a.mr.len() - 63, 64));
    is_a_local_protection_error(dut, Flavour::Classic, |a| Sge { addr: a.mr.addr(0) - 1, ..a.mr.at(0, 64) });
    is_a_local_protection_error(dut, Flavour::Classic, |a| Sge { addr: u64::MAX - 15, ..a.mr.at(0, 64) });
    Ok(())
}

fn local_memory_of_another_domain_is_a_local_protection_error(dut: &TestDevice) -> Outcome {
    dut.not_softroce(LOCAL_REASON)?;
    let (a, b) = pair(dut, &classic());
    let other = a.device.pd().reg(&Buf::new(4096), EVERYTHING).unwrap();
    let status = a.fails(Wr::write(1, b.mr.remote(0)).sge(other.at(0, 64)));
    assert_eq!(status, Status::IBV_WC_LOC_PROT_ERR);
    Ok(())
}

fn a_local_key_that_was_given_back_is_a_local_protection_error(dut: &TestDevice) -> Outcome {
    dut.not_softroce(LOCAL_REASON)?;
    let (a, b) = pair(dut, &classic());
    let sge = a.pd.reg(&a.mr.buf, EVERYTHING).unwrap().at(0, 64);
    assert_eq!(a.fails(Wr::write(1, b.mr.remote(0)).sge(sge)), Status::IBV_WC_LOC_PROT_ERR);
    Ok(())
}

fn a_read_into_memory_without_local_write_is_a_local_protection_error(dut: &TestDevice) -> Outcome {
    let (a, b) = pair(dut, &classic());
    let read_only = a.pd.reg(&Buf::new(4096), 0).unwrap();
    b.mr.buf.set(0, &[1; 64]);
    let status = a.fails(Wr::read(1, b.mr.remote(0)).sge(read_only.at(0, 64)));
    assert_eq!(status, Status::IBV_WC_LOC_PROT_ERR);
    assert_eq!(read_only.buf.get(0, 64), [0; 64]);
    Ok(())
}

fn an_atomic_into_memory_without_local_write_is_a_local_protection_error(dut: &TestDevice) -> Outcome {
    let (a, b) = pair(dut, &classic());
    let read_only = a.pd.reg(&Buf::new(4096), 0).unwrap();
    let status = a.fails(Wr::fetch_add(1, b.mr.remote(0), 1).sge(read_only.at(0, 8)));
    assert_eq!(status, Status::IBV_WC_LOC_PROT_ERR);
    Ok(())
}

fn a_send_from_memory_without_local_write_is_fine(dut: &TestDevice) -> Outcome {
    let (a, b) = pair(dut, &classic());
    let read_only = a.pd.reg(&Buf::new(4096), 0).unwrap();
    read_only.buf.set(0, &[7; 64]);
    b.recv(1, 0, 64);
    a.done(Wr::send(2).sge(read_only.at(0, 64)));
    a.done(Wr::write(3, b.mr.remote(64)).sge(read_only.at(0, 64)));
    b.recv_cq.ok();
    assert_eq!(b.mr.buf.get(0, 128), [7; 128]);
    Ok(())
}

/// The three operations that access a peer's memory.
const ONE_SIDED: [fn(RemoteAddr) -> Wr; 3] =
    [|at| Wr::write(1, at), |at| Wr::read(1, at), |at| Wr::fetch_add(1, at, 1)];

/// The peer refuses every one-sided request for this memory.
fn is_a_remote_access_error(dut: &TestDevice, flavour: Flavour, memory: impl Fn(&Node) -> RemoteAddr) {
    for op in ONE_SIDED {
        let (a, b) = pair(dut, &NodeOptions::rc(flavour));
        let status = a.fails(op(memory(&b)).sge(a.mr.at(0, 8)));
        assert_eq!(status, Status::IBV_WC_REM_ACCESS_ERR);
    }
}

fn a_wrong_remote_key_is_a_remote_access_error(dut: &TestDevice, flavour: Flavour) -> Outcome {
    // First the index part of the key is wrong, then the part that changes with each key.
    is_a_remote_access_error(dut, flavour, |b| RemoteAddr {
        rkey: b.mr.rkey() ^ 0x5a_0000,
        ..b.mr.remote(0)
    });
    is_a_remote_access_error(dut, flavour, |b| RemoteAddr { rkey: b.mr.rkey() ^ 0x5a, ..b.mr.remote(0) });
    Ok(())
}

fn remote_memory_beyond_its_region_is_a_remote_access_error(dut: &TestDevice) -> Outcome {
    is_a_remote_access_error(dut, Flavour::Classic, |b| b.mr.remote(b.mr.len()));
    for (offset, len) in [(-1, 8), (65536 - 7, 8), (65536, 1), (0, 65537)] {
        let (a, b) = pair(dut, &classic());
        let big = a.pd.reg(&Buf::new(1 << 17), EVERYTHING).unwrap();
        let at = RemoteAddr { addr: b.mr.addr(0).wrapping_add_signed(offset), rkey: b.mr.rkey() };
        assert_eq!(a.fails(Wr::write(1, at).sge(big.at(0, len))), Status::IBV_WC_REM_ACCESS_ERR);
    }
    Ok(())
}

fn an_address_that_wraps_around_is_a_remote_access_error(dut: &TestDevice) -> Outcome {
    for op in [|at| Wr::write(1, at), |at| Wr::read(1, at)] {
        let (a, b) = pair(dut, &classic());
        let around = RemoteAddr { addr: u64::MAX - 3, rkey: b.mr.rkey() };
        assert_eq!(a.fails(op(around).sge(a.mr.at(0, 8))), Status::IBV_WC_REM_ACCESS_ERR);
    }
    Ok(())
}

fn a_region_without_the_permission_is_a_remote_access_error(dut: &TestDevice) -> Outcome {
    let missing =
        [Access::IBV_ACCESS_REMOTE_WRITE, Access::IBV_ACCESS_REMOTE_READ, Access::IBV_ACCESS_REMOTE_ATOMIC];
    for (op, missing) in ONE_SIDED.into_iter().zip(missing) {
        let (a, b) = pair(dut, &classic().set(|options| options.region &= !missing.0));
        let status = a.fails(op(b.mr.remote(0)).sge(a.mr.at(0, 8)));
        assert_eq!(status, Status::IBV_WC_REM_ACCESS_ERR, "without {missing:?}");
    }
    Ok(())
}

/// IBTA chapter 9, responder's error behaviour: an operation that the queue pair does not allow is
/// an invalid request or an access error.
fn a_pair_without_the_permission_refuses(dut: &TestDevice) -> Outcome {
    let missing =
        [Access::IBV_ACCESS_REMOTE_WRITE, Access::IBV_ACCESS_REMOTE_READ, Access::IBV_ACCESS_REMOTE_ATOMIC];
    for (op, missing) in ONE_SIDED.into_iter().zip(missing) {
        let (a, b) = pair(dut, &classic().set(|options| options.access &= !missing.0));
        let status = a.fails(op(b.mr.remote(0)).sge(a.mr.at(0, 8)));
        let expected = [Status::IBV_WC_REM_ACCESS_ERR, Status::IBV_WC_REM_INV_REQ_ERR];
        assert!(expected.contains(&status), "without {missing:?}: {status:?}");
        assert_eq!(b.mr.buf.get(0, 8), [0; 8]);
    }
    Ok(())
}

fn a_key_of_another_domain_is_a_remote_access_error(dut: &TestDevice) -> Outcome {
    let (a, b) = pair(dut, &classic());
    let other = b.device.pd().reg(&Buf::new(4096), EVERYTHING).unwrap();
    let status = a.fails(Wr::write(1, other.remote(0)).sge(a.mr.at(0, 8)));
    assert_eq!(status, Status::IBV_WC_REM_ACCESS_ERR);
    Ok(())
}

fn a_key_that_was_given_back_is_a_remote_access_error(dut: &TestDevice) -> Outcome {
    for op in ONE_SIDED {
        let (a, b) = pair(dut, &classic());
        let mr = b.pd.reg(&Buf::new(4096), EVERYTHING).unwrap();
        let at = mr.remote(0);
        a.done(Wr::write(0, at).sge(a.mr.at(0, 8)));
        assert_eq!(mr.dereg(), 0);
        assert_eq!(a.fails(op(at).sge(a.mr.at(0, 8))), Status::IBV_WC_REM_ACCESS_ERR);
    }
    Ok(())
}

fn a_refused_write_leaves_the_memory_alone(dut: &TestDevice) -> Outcome {
    let (a, b) = pair(dut, &classic());
    a.mr.buf.set(0, &[1; 8192]);
    // The range begins within the region and ends beyond it.
    let status = a.fails(Wr::write(1, b.mr.remote(b.mr.len() - 4096)).sge(a.mr.at(0, 8192)));
    assert_eq!(status, Status::IBV_WC_REM_ACCESS_ERR);
    assert_eq!(b.mr.buf.get(b.mr.len() - 4096, 4096), [0; 4096]);
    Ok(())
}

fn the_responder_of_a_refused_write_is_in_error(dut: &TestDevice) -> Outcome {
    let (a, b) = pair(dut, &classic());
    b.recv(5, 0, 64);
    a.fails(Wr::write(1, RemoteAddr { rkey: b.mr.rkey() ^ 0x5a, ..b.mr.remote(0) }).sge(a.mr.at(0, 8)));
    assert!(b.qp.reaches(State::IBV_QPS_ERR));
    let wc = b.recv_cq.one();
    assert_eq!((wc.id, wc.status), (5, Status::IBV_WC_WR_FLUSH_ERR));
    Ok(())
}

/// IBTA chapter 9, atomic operations: the address is a multiple of eight, else the request is
/// invalid.
fn an_atomic_on_an_odd_address_is_an_invalid_request(dut: &TestDevice) -> Outcome {
    // SoftRoCE's classic posting refuses it with EINVAL.
    for op in [|at| Wr::fetch_add(1, at, 1), |at| Wr::cmp_swp(1, at, 0, 1)] {
        let (a, b) = pair(dut, &NodeOptions::rc(Flavour::Extended));
        assert_eq!(a.fails(op(b.mr.remote(4)).sge(a.mr.at(0, 8))), Status::IBV_WC_REM_INV_REQ_ERR);
        assert_eq!(b.mr.buf.get(0, 16), [0; 16]);
    }
    Ok(())
}

/// `man ibv_post_send` does not define it. The response has eight bytes (IBTA chapter 9, atomic
/// operations), and so must the list.
fn an_atomic_of_another_length_is_refused(dut: &TestDevice) -> Outcome {
    let (a, b) = pair(dut, &classic());
    match a.qp.post(&[Wr::fetch_add(1, b.mr.remote(0), 1).sge(a.mr.at(0, 4))]) {
        Err((error, 0)) => assert_eq!(error, libc::EINVAL),
        Err(other) => panic!("{other:?}"),
        Ok(()) => assert_eq!(a.send_cq.one().status, Status::IBV_WC_LOC_LEN_ERR),
    }
    assert_eq!(a.mr.buf.get(0, 16), [0; 16]);
    Ok(())
}

/// IBTA chapter 9, responder's error behaviour: more reads than there are resources for are an
/// invalid request.
fn a_reader_that_the_responder_has_no_room_for_is_refused(dut: &TestDevice) -> Outcome {
    let (a, b) = pair(dut, &classic().set(|options| options.dest_rd_atomic = 0));
    let status = a.fails(Wr::read(1, b.mr.remote(0)).sge(a.mr.at(0, 8)));
    assert_eq!(status, Status::IBV_WC_REM_INV_REQ_ERR);
    Ok(())
}

/// `man ibv_modify_qp`: `max_rd_atomic` is the number of outstanding reads, so that 0 allows none.
fn a_read_that_the_requester_has_no_room_for_is_refused(dut: &TestDevice) -> Outcome {
    dut.not_softroce("leaves it in the queue for ever")?;
    let (a, b) = pair(dut, &classic().set(|options| options.rd_atomic = 0));
    match a.qp.post(&[Wr::read(1, b.mr.remote(0)).sge(a.mr.at(0, 8))]) {
        Err((error, _)) => assert_eq!(error, libc::EINVAL),
        Ok(()) => assert_eq!(a.send_cq.one().status, Status::IBV_WC_LOC_QP_OP_ERR),
    }
    Ok(())
}

/// IBTA chapter 9, responder's error behaviour: a message longer than its receive is an invalid
/// request.
fn a_message_longer_than_its_receive_is_an_invalid_request(dut: &TestDevice, flavour: Flavour) -> Outcome {
    dut.not_softroce("calls a message that is longer than its receive a remote operation error")?;
    let (a, b) = pair(dut, &NodeOptions::rc(flavour));
    b.recv(9, 0, 63);
    assert_eq!(a.fails(Wr::send(1).sge(a.mr.at(0, 64))), Status::IBV_WC_REM_INV_REQ_ERR);
    Ok(())
}

fn a_message_longer_than_its_receive_fails_both_sides(dut: &TestDevice, flavour: Flavour) -> Outcome {
    for (room, len) in [(63, 64), (0, 1), (1500, 3000)] {
        let (a, b) = pair(dut, &NodeOptions::rc(flavour));
        b.recv(9, 0, room);
        b.recv(10, 0, 4096);
        let status = a.fails(Wr::send(1).sge(a.mr.at(0, len)));
        let received = b.recv_cq.wait(2);
        let expected = [Status::IBV_WC_REM_INV_REQ_ERR, Status::IBV_WC_REM_OP_ERR];
        assert!(expected.contains(&status), "{len} bytes for {room}: {status:?}");
        let statuses: Vec<_> = received.iter().map(|wc| (wc.id, wc.status)).collect();
        // SoftRoCE reports an operation error.
        let expected = dut.expects(Status::IBV_WC_LOC_LEN_ERR, Status::IBV_WC_LOC_QP_OP_ERR);
        assert_eq!(statuses, [(9, expected), (10, Status::IBV_WC_WR_FLUSH_ERR)]);
        assert!(b.qp.reaches(State::IBV_QPS_ERR));
        assert_eq!(b.mr.buf.get(room, 64), [0; 64]);
    }
    Ok(())
}

/// IBTA chapter 9, remote operational error: an error in the receiver's local memory. IBTA chapter
/// 11, completion status: the receiver gets a local protection error, where SoftRoCE reports an
/// operation error.
fn fails_both_sides(dut: &TestDevice, memory: impl Fn(&Node) -> Sge) {
    let (a, b) = pair(dut, &classic());
    b.qp.recv(Recv::new(9).sge(memory(&b)));
    b.recv(10, 0, 4096);
    let status = a.fails(Wr::send(1).sge(a.mr.at(0, 64)));
    let statuses: Vec<_> = b.recv_cq.wait(2).iter().map(|wc| (wc.id, wc.status)).collect();
    assert_eq!(status, Status::IBV_WC_REM_OP_ERR);
    assert_eq!(statuses[1], (10, Status::IBV_WC_WR_FLUSH_ERR));
    let expected = dut.expects(Status::IBV_WC_LOC_PROT_ERR, Status::IBV_WC_LOC_QP_OP_ERR);
    assert_eq!(statuses[0], (9, expected));
    assert!(b.qp.reaches(State::IBV_QPS_ERR));
}

fn a_bad_receive_buffer_fails_both_sides(dut: &TestDevice) -> Outcome {
    fails_both_sides(dut, |b| Sge { lkey: b.mr.lkey() ^ 0x5a5a, ..b.mr.at(0, 64) });
    fails_both_sides(dut, |b| b.mr.at(b.mr.len() - 63, 64));
    Ok(())
}

fn a_receive_buffer_without_local_write_fails_both_sides(dut: &TestDevice) -> Outcome {
    let read_only = std::cell::RefCell::new(None);
    fails_both_sides(dut, |b| {
        let mr = b.pd.reg(&Buf::new(4096), 0).unwrap();
        read_only.borrow_mut().insert(mr).at(0, 64)
    });
    let mr = read_only.take().unwrap();
    assert_eq!(mr.buf.get(0, 64), [0; 64]);
    Ok(())
}

fn a_receive_buffer_of_another_domain_fails_both_sides(dut: &TestDevice) -> Outcome {
    let other = std::cell::RefCell::new(None);
    fails_both_sides(dut, |b| {
        let mr = b.device.pd().reg(&Buf::new(4096), EVERYTHING).unwrap();
        other.borrow_mut().insert(mr).at(0, 64)
    });
    Ok(())
}

/// IBTA chapter 11, completion return status: a request longer than the port's longest message is a
/// local length error.
fn a_message_beyond_the_limit_of_the_port_is_a_length_error(dut: &TestDevice) -> Outcome {
    dut.not_softroce("does not look at the length of a write or send on this side")?;
    let (a, b) = pair(dut, &classic());
    let limit = a.device.port().unwrap().max_msg_sz as usize;
    let big = a.pd.reg(&Buf::folded(limit + 1), EVERYTHING).unwrap();
    match a.qp.post(&[Wr::write(1, b.mr.remote(0)).sge(big.at(0, limit + 1))]) {
        Err((error, 0)) => assert!([libc::EINVAL, libc::EMSGSIZE].contains(&error), "{error}"),
        Err(other) => panic!("{other:?}"),
        Ok(()) => assert_eq!(a.send_cq.one().status, Status::IBV_WC_LOC_LEN_ERR),
    }
    Ok(())
}

/// Two pairs whose ends have different path MTUs: smaller at the first end, then at the second.
fn pairs_of_unlike_mtus(dut: &TestDevice) -> [(Node, Node); 2] {
    let of = |mtu| classic().set(|options| options.mtu = mtu);
    let (small, large) = (of(Mtu::IBV_MTU_256), of(Mtu::IBV_MTU_1024));
    [unlike_pair(dut, [&small, &large]), unlike_pair(dut, [&large, &small])]
}

/// IBTA 9.7.4.1.6, the responder's check of lengths: only the last packet of a message may be
/// shorter than the path MTU.
fn with_another_packet_size_one_packet_passes(dut: &TestDevice) -> Outcome {
    for (a, b) in pairs_of_unlike_mtus(dut) {
        a.mr.buf.set(0, &pattern(1, 256));
        b.recv(1, 4096, 256);
        a.done(Wr::send(2).sge(a.mr.at(0, 256)));
        assert_eq!(b.recv_cq.ok().len, 256);
        a.done(Wr::write(3, b.mr.remote(8192)).sge(a.mr.at(0, 256)));
        assert_eq!([b.mr.buf.get(4096, 256), b.mr.buf.get(8192, 256)], [pattern(1, 256), pattern(1, 256)]);
    }
    Ok(())
}

/// IBTA 9.7.4.1.6: the first packet of several does not have the responder's path MTU.
fn a_write_in_packets_of_another_size_is_an_invalid_request(dut: &TestDevice) -> Outcome {
    for (a, b) in pairs_of_unlike_mtus(dut) {
        let write = Wr::write(1, b.mr.remote(0)).sge(a.mr.at(0, 5000));
        assert_eq!(a.fails(write), Status::IBV_WC_REM_INV_REQ_ERR);
    }
    Ok(())
}

fn a_send_in_packets_of_another_size_is_an_invalid_request(dut: &TestDevice) -> Outcome {
    dut.not_on(SoftRoce::Old, "does not look at the size of a send's packets")?;
    for (a, b) in pairs_of_unlike_mtus(dut) {
        b.recv(1, 4096, 8192);
        assert_eq!(a.fails(Wr::send(1).sge(a.mr.at(0, 5000))), Status::IBV_WC_REM_INV_REQ_ERR);
    }
    Ok(())
}

/// A failing request followed by others: one error, then flushes, in order, signaled or not.
fn requests_behind_a_failed_one_are_flushed_in_order(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let (a, b) = pair(dut, &NodeOptions::rc(flavour));
    let bad = RemoteAddr { rkey: b.mr.rkey() ^ 0x5a, ..b.mr.remote(0) };
    let good = |id| Wr::write(id, b.mr.remote(0)).sge(a.mr.at(0, 8));
    let requests = [
        good(0),
        Wr::write(1, bad).sge(a.mr.at(0, 8)),
        good(2),
        good(3).quiet(),
        Wr::read(4, b.mr.remote(0)).sge(a.mr.at(0, 8)),
        good(5).quiet(),
    ];
    a.qp.post(&requests).unwrap();
    let statuses: Vec<_> = a.send_cq.wait(6).iter().map(|wc| (wc.id, wc.status)).collect();
    let flushed = Status::IBV_WC_WR_FLUSH_ERR;
    let expected =
        [Status::IBV_WC_SUCCESS, Status::IBV_WC_REM_ACCESS_ERR, flushed, flushed, flushed, flushed];
    assert_eq!(statuses, (0..).zip(expected).collect::<Vec<_>>());
    Ok(())
}

fn receives_are_flushed_in_order(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let (_a, b) = pair(dut, &NodeOptions::rc(flavour));
    for id in 0..10 {
        b.recv(id, 0, 64);
    }
    b.go(State::IBV_QPS_ERR);
    let statuses: Vec<_> = b.recv_cq.wait(10).iter().map(|wc| (wc.id, wc.status)).collect();
    assert_eq!(statuses, (0..10).map(|id| (id, Status::IBV_WC_WR_FLUSH_ERR)).collect::<Vec<_>>());
    assert!(b.recv_cq.is_empty());
    Ok(())
}

fn a_failure_without_signal_completes_all_the_same(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let (a, b) = pair(dut, &NodeOptions::rc(flavour));
    let bad = RemoteAddr { rkey: b.mr.rkey() ^ 0x5a, ..b.mr.remote(0) };
    assert_eq!(a.fails(Wr::write(1, bad).sge(a.mr.at(0, 8)).quiet()), Status::IBV_WC_REM_ACCESS_ERR);
    Ok(())
}

fn a_failed_pair_works_again_after_reset(dut: &TestDevice) -> Outcome {
    let (a, b) = pair(dut, &classic());
    let bad = RemoteAddr { rkey: b.mr.rkey() ^ 0x5a, ..b.mr.remote(0) };
    a.fails(Wr::write(1, bad).sge(a.mr.at(0, 8)));
    assert!(b.qp.reaches(State::IBV_QPS_ERR));
    for node in [&a, &b] {
        node.go(State::IBV_QPS_RESET);
    }
    a.connect(&b.peer());
    b.connect(&a.peer());
    b.recv(2, 0, 64);
    a.done(Wr::send(3).sge(a.mr.at(0, 8)));
    assert_eq!(b.recv_cq.ok().id, 2);
    Ok(())
}

fn both_queues_are_flushed_when_a_pair_goes_to_error(dut: &TestDevice) -> Outcome {
    // The peer posts no receive, so that the sends stay outstanding.
    let (a, _b) = pair(dut, &classic().set(|options| options.min_rnr_timer = 31));
    for id in 0..5 {
        a.recv(id, 0, 64);
        a.post(Wr::send(100 + id).sge(a.mr.at(0, 8)).quiet());
    }
    a.go(State::IBV_QPS_ERR);
    let flushed = |completions: Vec<crate::kit::Wc>| {
        assert!(completions.iter().all(|wc| wc.status == Status::IBV_WC_WR_FLUSH_ERR), "{completions:?}");
        completions.iter().map(|wc| wc.id).collect::<Vec<_>>()
    };
    assert_eq!(flushed(a.send_cq.wait(5)), [100, 101, 102, 103, 104]);
    assert_eq!(flushed(a.recv_cq.wait(5)), [0, 1, 2, 3, 4]);
    assert!(a.send_cq.is_empty() && a.recv_cq.is_empty());
    Ok(())
}

fn a_request_to_a_pair_in_error_is_flushed(dut: &TestDevice) -> Outcome {
    let (a, b) = pair(dut, &classic());
    a.go(State::IBV_QPS_ERR);
    a.post(Wr::write(1, b.mr.remote(0)).sge(a.mr.at(0, 8)));
    let sent = a.send_cq.one();
    assert_eq!((sent.id, sent.status), (1, Status::IBV_WC_WR_FLUSH_ERR));
    assert_eq!(b.mr.buf.get(0, 8), [0; 8]);
    Ok(())
}

/// IBTA chapter 10, queue pair states, the error state: requests that are posted in this state
/// complete with a flush error.
fn a_receive_of_a_pair_in_error_is_flushed(dut: &TestDevice) -> Outcome {
    dut.not_softroce(
        "keeps a receive that is posted in the error state, unless its task happens to run once more",
    )?;
    let (a, _b) = pair(dut, &classic());
    a.go(State::IBV_QPS_ERR);
    a.recv(2, 0, 64);
    let received = a.recv_cq.one();
    assert_eq!((received.id, received.status), (2, Status::IBV_WC_WR_FLUSH_ERR));
    Ok(())
}

/// IBTA 9.7.4.1.5, R_Key validation: the responder does not check the key of a request without
/// data.
fn an_empty_request_with_a_wrong_key_is_fine(dut: &TestDevice) -> Outcome {
    let (a, b) = pair(dut, &classic());
    a.done(Wr::write(1, RemoteAddr { addr: 0, rkey: 0x1234_5678 }));
    a.done(Wr::read(2, RemoteAddr { addr: 0, rkey: 0x1234_5678 }));
    assert_eq!(b.qp.state(), State::IBV_QPS_RTS);
    Ok(())
}

fn a_zero_length_entry_with_a_wrong_key_is_fine(dut: &TestDevice) -> Outcome {
    let (a, b) = pair(dut, &classic());
    let nothing = Sge { addr: 0, length: 0, lkey: 0x1234_5678 };
    a.done(Wr::write(1, b.mr.remote(0)).sge(nothing).sge(a.mr.at(0, 8)));
    b.qp.recv(Recv::new(2).sge(nothing).sge(b.mr.at(0, 64)));
    a.done(Wr::send(3).sge(a.mr.at(0, 8)));
    assert_eq!(b.recv_cq.ok().len, 8);
    Ok(())
}
