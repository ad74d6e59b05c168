//! Every operation with its completion, and every way in which it can fail, between queue pairs of
//! one process. The messages are small, so that Miri can run the tests.

use std::ptr;

use rdma_mummy_sys::types::*;
use rdma_mummy_sys::verbs;

use crate::shared::slot::Delivery;
use crate::verbs::bench::*;
use crate::verbs::testing::table;

const RC: ibv_qp_type = ibv_qp_type::IBV_QPT_RC;
const UC: ibv_qp_type = ibv_qp_type::IBV_QPT_UC;
const UD: ibv_qp_type = ibv_qp_type::IBV_QPT_UD;

/// Sets the target of a request on the other side.
fn to(bench: &VerbsFixture, opcode: ibv_wr_opcode, offset: usize) -> impl Fn(&mut ibv_send_wr) {
    // SAFETY: the region is live.
    let (remote_addr, rkey) = (bench.at(offset), unsafe { (*bench.mr).rkey });
    move |wr| {
        wr.opcode = opcode;
        let atomic = [ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP, ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD];
        if atomic.contains(&opcode) {
            wr.wr.atomic =
                ibv_send_wr__bindgen_ty_2__bindgen_ty_2 { remote_addr, rkey, compare_add: 5, swap: 9 };
        } else {
            wr.wr.rdma = ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr, rkey };
        }
        wr.__bindgen_anon_1.imm_data = 0x0102_0304_u32.to_be();
    }
}

fn fill(bench: &VerbsFixture, words: &[u64]) {
    for (at, word) in words.iter().enumerate() {
        bench.set(at, *word);
    }
}

/// The completions of a receive and of a request, in whichever order they arrived.
fn both(bench: &VerbsFixture) -> [ibv_wc; 2] {
    let mut all = bench.poll();
    all.sort_by_key(|wc| wc.wr_id);
    assert_eq!(all.len(), 2);
    [all[0], all[1]]
}

#[test]
fn one_sided_operations_move_their_bytes() {
    let bench = VerbsFixture::new(16);
    for qp_type in [RC, UC] {
        let [one, other] = bench.pair(qp_type);
        fill(&bench, &[7, 8, 9]);
        assert_eq!(bench.send(one, 1, 24, to(&bench, ibv_wr_opcode::IBV_WR_RDMA_WRITE, 1024)), 0);
        assert_eq!(bench.results(), [(1, SUCCESS)]);
        assert_eq!([128, 129, 130].map(|at| bench.get(at)), [7, 8, 9]);
        assert_eq!(bench.receive(other, 2, 0), 0);
        assert_eq!(bench.send(one, 3, 8, to(&bench, ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM, 2048)), 0);
        let [received, sent] = both(&bench);
        assert_eq!((received.opcode, received.byte_len), (ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM, 8));
        // SAFETY: it has immediate data.
        assert_eq!(unsafe { received.__bindgen_anon_1.imm_data }, 0x0102_0304_u32.to_be());
        assert_eq!((sent.opcode, bench.get(256)), (ibv_wc_opcode::IBV_WC_RDMA_WRITE, 7));
        if qp_type == RC {
            fill(&bench, &[0]);
            assert_eq!(bench.send(one, 4, 8, to(&bench, ibv_wr_opcode::IBV_WR_RDMA_READ, 1032)), 0);
            assert_eq!((bench.results(), bench.get(0)), (vec![(4, SUCCESS)], 8));
            bench.set(128, 5);
            for (opcode, before, after) in [
                (ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP, 5, 9),
                (ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP, 9, 9),
                (ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD, 9, 14),
            ] {
                assert_eq!(bench.send(one, 5, 8, to(&bench, opcode, 1024)), 0);
                assert_eq!(bench.results(), [(5, SUCCESS)]);
                assert_eq!((bench.get(0), bench.get(128)), (before, after));
            }
        }
        destroy(one);
        destroy(other);
    }
}

#[test]
fn messages_come_from_and_go_to_lists_and_inline_data() {
    let bench = VerbsFixture::new(16);
    for qp_type in [RC, UC] {
        let [one, other] = bench.pair(qp_type);
        // One length fits into the slot, and one does not.
        for length in [16, 400] {
            fill(&bench, &[1, 2, 3]);
            bench.set(512 + length as usize / 8 - 1, 0);
            let mut entries = [bench.sge(SIZE / 2, 4), bench.sge(SIZE / 2 + 4, 600)];
            assert_eq!(bench.receive_list(other, 1, &mut entries), 0);
            let mut pieces = [bench.sge(0, 8), bench.sge(8, length - 8)];
            let list = |wr: &mut ibv_send_wr| {
                wr.sg_list = pieces.as_mut_ptr();
                wr.num_sge = 2;
                wr.opcode = ibv_wr_opcode::IBV_WR_SEND_WITH_IMM;
            };
            let list = std::cell::RefCell::new(list);
            assert_eq!(bench.send(one, 2, 0, |wr| (list.borrow_mut())(wr)), 0);
            let [received, sent] = both(&bench);
            assert_eq!((received.status, received.byte_len, sent.status), (SUCCESS, length, SUCCESS));
            assert_eq!((bench.get(512), bench.get(513)), (1, 2));
        }
        // Inline data are copied when they are posted: they need no key, and their memory may be
        // reused.
        let mut bytes = [0x55_u8; 16];
        let entry = ibv_sge { addr: (&raw mut bytes).expose_provenance() as u64, length: 16, lkey: 0 };
        let mut entries = [entry];
        assert_eq!(bench.receive(other, 1, 16), 0);
        let list = entries.as_mut_ptr();
        let sent = bench.send(one, 2, 0, |wr| {
            (wr.sg_list, wr.num_sge) = (list, 1);
            wr.send_flags |= ibv_send_flags::IBV_SEND_INLINE.0;
        });
        assert_eq!(sent, 0);
        assert_eq!(both(&bench).map(|wc| wc.status), [SUCCESS; 2]);
        assert_eq!(bench.get(513), 0x5555_5555_5555_5555);
        // A message without payload.
        assert_eq!(bench.receive(other, 1, 0), 0);
        assert_eq!(bench.send(one, 2, 0, |wr| wr.num_sge = 0), 0);
        assert_eq!(both(&bench).map(|wc| (wc.status, wc.byte_len)), [(SUCCESS, 0); 2]);
        destroy(one);
        destroy(other);
    }
}

#[test]
fn datagrams_bring_their_header_or_are_lost() {
    let bench = VerbsFixture::new(16);
    let pair = bench.pair(UD);
    let mut attr = bench.ah_attr();
    // SAFETY: a GID is sixteen bytes, whichever field of the union was written.
    let is_ipv4 = std::net::Ipv6Addr::from(unsafe { attr.grh.dgid.raw }).to_ipv4_mapped().is_some();
    // SAFETY: the domain is live, and the address handle lives until it is destroyed.
    let ah = unsafe { (table().ibv_create_ah)(bench.pd, &raw mut attr) };
    assert!(!ah.is_null());
    let address = |remote_qkey: u32| {
        let remote_qpn = number(pair[1]);
        move |wr: &mut ibv_send_wr| {
            wr.wr.ud = ibv_send_wr__bindgen_ty_2__bindgen_ty_3 { ah, remote_qpn, remote_qkey };
        }
    };
    for length in [8, 1000] {
        fill(&bench, &[77]);
        assert_eq!(bench.receive(pair[1], 1, 2000), 0);
        assert_eq!(bench.send(pair[0], 2, length, address(QKEY)), 0);
        let [received, _] = both(&bench);
        assert_eq!((received.byte_len, received.src_qp), (length + 40, number(pair[0])));
        assert_eq!(received.wc_flags, ibv_wc_flags::IBV_WC_GRH.0);
        // A UDP header, and the kind of the network header.
        assert_eq!(received.sl, if is_ipv4 { 8 | 2 } else { 8 | 1 });
        assert_eq!(bench.get((SIZE / 2 + 40) / 8), 77);
    }
    // A wrong Q_Key, no receive, a receive that is too small: the sender is not told.
    assert_eq!(bench.send(pair[0], 3, 8, address(1)), 0);
    assert_eq!(bench.send(pair[0], 4, 8, address(QKEY)), 0);
    assert_eq!(bench.receive(pair[1], 1, 41), 0);
    assert_eq!(bench.send(pair[0], 5, 8, address(QKEY)), 0);
    assert_eq!(bench.results(), [3, 4, 5].map(|wr_id| (wr_id, SUCCESS)));
    pair.into_iter().for_each(destroy);
    // SAFETY: no datagram uses the handle any more.
    assert_eq!(unsafe { (table().ibv_destroy_ah)(ah) }, 0);
}

/// Any process that maps the segment can write to a slot. The owner's part says where bytes go.
#[test]
fn a_changed_slot_redirects_no_message() {
    let bench = VerbsFixture::new(16);
    let [one, other] = bench.pair(RC);
    let state = inner(other);
    let slots = state.rnic.node().segment().slots(&state.descriptor().slots).expect("a receive queue");
    let elsewhere = bench.sge(SIZE / 4, 1024);
    bench.set(0, 77);
    for (index, length) in [(0, 64), (1, 1024)] {
        bench.set(SIZE / 2 / 8, 0);
        assert_eq!(bench.receive(other, 1, 1024), 0);
        let slot = state.rnic.node().segment().slot(&slots, index).expect("a slot");
        slot.header.first.store(elsewhere.addr, elsewhere.length, elsewhere.lkey);
        assert_eq!(bench.send(one, 2, length, |_| {}), 0);
        assert_eq!(bench.wait_for(2).len(), 2);
        assert_eq!((bench.get(SIZE / 2 / 8), bench.get(SIZE / 4 / 8)), (77, 0), "{length} bytes");
    }
    [one, other].into_iter().for_each(destroy);
}

/// A sender that has claimed a receive gives it back or dies. That receive is older than those that
/// were filled since.
#[test]
fn datagrams_stay_in_order_after_a_receive_is_given_back() {
    let bench = VerbsFixture::new(16);
    let [one, other] = bench.pair(UD);
    let mut attr = bench.ah_attr();
    // SAFETY: the domain is live, and the address handle lives until it is destroyed.
    let ah = unsafe { (table().ibv_create_ah)(bench.pd, &raw mut attr) };
    assert!(!ah.is_null());
    let remote_qpn = number(other);
    let send = |length: u32| {
        let sent = bench.send(one, 9, length, |wr| {
            wr.wr.ud = ibv_send_wr__bindgen_ty_2__bindgen_ty_3 { ah, remote_qpn, remote_qkey: QKEY };
        });
        assert_eq!(sent, 0);
    };
    let come = || {
        let all = bench.poll().into_iter().filter(|wc| wc.opcode == ibv_wc_opcode::IBV_WC_RECV);
        all.map(|wc| wc.byte_len - 40).collect::<Vec<_>>()
    };
    let state = inner(other);
    let slots = state.rnic.node().segment().slots(&state.descriptor().slots).expect("a receive queue");
    const PEER_ID: u16 = 5;
    for dies in [false, true] {
        (0..4).for_each(|wr_id| assert_eq!(bench.receive(other, wr_id, 100), 0));
        let index = state.progress_words().cursor();
        let held = state.rnic.node().segment().slot(&slots, index).expect("a slot").header;
        let claim = held.claim(PEER_ID).expect("it was posted");
        send(8);
        send(16);
        if dies {
            state.peer_detached(PEER_ID);
        } else {
            state.progress_words().set_cursor(index);
            assert!(held.unclaim(claim));
        }
        send(24);
        send(32);
        assert_eq!(come(), [8, 16, 24, 32]);
    }
    // A datagram that its sender finished is complete, whether it was announced or not.
    assert_eq!(bench.receive(other, 1, 100), 0);
    let index = state.progress_words().cursor();
    let held = state.rnic.node().segment().slot(&slots, index).expect("a slot").header;
    let claim = held.claim(PEER_ID).expect("it was posted");
    assert!(held.finish(claim, &Delivery { eager: true, byte_len: 48, ..Delivery::default() }));
    assert_eq!(come(), []);
    state.peer_detached(PEER_ID);
    assert_eq!(come(), [8]);
    state.peer_detached(PEER_ID);
    assert_eq!(come(), []);
    [one, other].into_iter().for_each(destroy);
    // SAFETY: no datagram uses the handle any more.
    assert_eq!(unsafe { (table().ibv_destroy_ah)(ah) }, 0);
}

#[test]
fn forbidden_requests_fail() {
    use ibv_wc_status as S;
    let bench = VerbsFixture::new(16);
    let refused = |status: S, length: u32, receives: bool, change: &dyn Fn(&mut ibv_send_wr)| {
        let [one, other] = bench.pair(RC);
        if receives {
            assert_eq!(bench.receive(other, 1, 16), 0);
        }
        assert_eq!(bench.send(one, 2, length, change), 0);
        assert_eq!(bench.send(one, 3, 8, |_| {}), 0, "it is flushed");
        let results = bench.wait_for(if receives { 3 } else { 2 });
        assert_eq!(
            results.iter().filter(|result| result.0 > 1).collect::<Vec<_>>(),
            [&(2, status), &(3, FLUSHED)]
        );
        destroy(one);
        destroy(other);
    };
    let write = to(&bench, ibv_wr_opcode::IBV_WR_RDMA_WRITE, 1024);
    let add = to(&bench, ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD, 1028);
    let sge = std::cell::Cell::new(ibv_sge { lkey: 0x5a5a_5a5a, ..bench.sge(0, 8) });
    refused(S::IBV_WC_LOC_PROT_ERR, 0, false, &|wr| (wr.sg_list, wr.num_sge) = (sge.as_ptr(), 1));
    refused(S::IBV_WC_LOC_PROT_ERR, SIZE as u32 + 1, false, &write);
    refused(S::IBV_WC_REM_ACCESS_ERR, 8, false, &|wr| {
        write(wr);
        wr.wr.rdma.rkey = 0x5a5a_5a5a;
    });
    refused(S::IBV_WC_REM_ACCESS_ERR, 4096, false, &|wr| {
        write(wr);
        wr.wr.rdma.remote_addr = bench.at(SIZE - 8);
    });
    refused(S::IBV_WC_REM_ACCESS_ERR, 8, false, &|wr| {
        write(wr);
        wr.wr.rdma.remote_addr = u64::MAX - 3;
    });
    refused(S::IBV_WC_REM_INV_REQ_ERR, 8, false, &add);
    refused(S::IBV_WC_REM_INV_REQ_ERR, 17, true, &|_| {});
    refused(S::IBV_WC_LOC_LEN_ERR, 4, false, &|wr| {
        add(wr);
        wr.wr.atomic.remote_addr = bench.at(1024);
    });
}

#[test]
fn missing_peer_and_missing_receive_have_different_errors() {
    use ibv_wc_status as S;
    let bench = VerbsFixture::new(16);
    let [one, other] = [(); 2].map(|()| bench.qp(RC, ptr::null_mut()));
    bench.init(one);
    bench.init(other);
    bench.ready(one, number(other), |attr| (attr.retry_cnt, attr.rnr_retry) = (1, 1));
    // The peer is not connected yet.
    assert_eq!(bench.send(one, 1, 8, |_| {}), 0);
    assert_eq!(bench.wait_for(1), [(1, S::IBV_WC_RETRY_EXC_ERR)]);
    for rnr_retry in [0, 1, 7] {
        for qp in [one, other] {
            assert_eq!(modify(qp, in_state(ibv_qp_state::IBV_QPS_RESET)), 0);
            bench.init(qp);
        }
        bench.ready(one, number(other), |attr| attr.rnr_retry = rnr_retry);
        bench.ready(other, number(one), |_| {});
        assert_eq!(bench.send(one, 2, 8, |_| {}), 0);
        if rnr_retry < 7 {
            assert_eq!(bench.wait_for(1), [(2, S::IBV_WC_RNR_RETRY_EXC_ERR)]);
            continue;
        }
        for _ in 0..3 {
            assert_eq!(bench.results(), []);
            inner(one).rnic.node().run_timers();
        }
        assert_eq!(bench.receive(other, 1, 8), 0);
        let mut results = bench.wait_for(2);
        results.sort_by_key(|result| result.0);
        assert_eq!(results, [(1, SUCCESS), (2, SUCCESS)]);
    }
    destroy(one);
    destroy(other);
}

#[test]
fn failed_receiver_raises_an_event_and_works_after_reset() {
    use ibv_wc_status as S;
    let bench = VerbsFixture::new(16);
    let [one, other] = bench.pair(RC);
    let mut entries = [ibv_sge { lkey: 0x5a5a_5a5a, ..bench.sge(SIZE / 2, 64) }];
    assert_eq!(bench.receive_list(other, 1, &mut entries), 0);
    assert_eq!(bench.receive(other, 2, 64), 0);
    assert_eq!(bench.send(one, 3, 8, |_| {}), 0);
    let mut results = bench.wait_for(3);
    results.sort_by_key(|result| result.0);
    assert_eq!(results, [(1, S::IBV_WC_LOC_PROT_ERR), (2, FLUSHED), (3, S::IBV_WC_REM_OP_ERR)]);
    for qp in [one, other] {
        assert_eq!(modify(qp, in_state(ibv_qp_state::IBV_QPS_RESET)), 0);
    }
    bench.connect([one, other]);
    assert_eq!(bench.receive(other, 4, 64), 0);
    assert_eq!(bench.send(one, 5, 8, |_| {}), 0);
    assert_eq!(both(&bench).map(|wc| wc.status), [SUCCESS; 2]);
    // A refused request also fails the responder, which gets an event.
    assert_eq!(bench.event(), None);
    let write = to(&bench, ibv_wr_opcode::IBV_WR_RDMA_WRITE, 0);
    assert_eq!(
        bench.send(one, 6, 8, |wr| {
            write(wr);
            wr.wr.rdma.rkey = 1;
        }),
        0
    );
    assert_eq!(bench.wait_for(1), [(6, S::IBV_WC_REM_ACCESS_ERR)]);
    assert_eq!(bench.coming_event(), Some(ibv_event_type::IBV_EVENT_QP_ACCESS_ERR));
    destroy(one);
    destroy(other);
}

#[test]
fn deregistered_memory_is_not_touched() {
    use ibv_wc_status as S;
    let mut bench = VerbsFixture::new(16);
    let [one, other] = bench.pair(RC);
    assert_eq!(bench.receive(other, 1, 64), 0);
    // The receive and the request name a region that is deregistered before the transfer.
    let stale = bench.sge(0, 8);
    bench.register_again();
    assert_eq!(bench.send(one, 2, 8, |_| {}), 0);
    let mut results = bench.wait_for(2);
    results.sort_by_key(|result| result.0);
    assert_ne!(results[0].1, SUCCESS);
    assert_ne!((results[1].0, results[1].1), (2, SUCCESS));
    for qp in [one, other] {
        assert_eq!(modify(qp, in_state(ibv_qp_state::IBV_QPS_RESET)), 0);
    }
    bench.connect([one, other]);
    let mut entries = [stale];
    let list = entries.as_mut_ptr();
    assert_eq!(bench.send(one, 3, 0, |wr| (wr.sg_list, wr.num_sge) = (list, 1)), 0);
    assert_eq!(bench.wait_for(1), [(3, S::IBV_WC_LOC_PROT_ERR)]);
    destroy(one);
    destroy(other);
}

#[test]
fn a_shared_queue_serves_all_and_runs_low() {
    let bench = VerbsFixture::new(16);
    let srq = bench.srq(4);
    let pairs: [[*mut ibv_qp; 2]; 2] = [RC, UC].map(|qp_type| {
        let pair = [bench.qp(qp_type, ptr::null_mut()), bench.qp(qp_type, srq)];
        bench.connect(pair);
        pair
    });
    (1..=3).for_each(|number| assert_eq!(bench.receive_shared(srq, number), 0));
    let mut attr = ibv_srq_attr { srq_limit: 2, ..ibv_srq_attr::default() };
    // SAFETY: the queue is live.
    unsafe {
        let limit = ibv_srq_attr_mask::IBV_SRQ_LIMIT.0 as i32;
        assert_eq!((table().ibv_modify_srq)(srq, &raw mut attr, limit), 0);
    }
    for (pair, number) in pairs.iter().zip([1, 2]) {
        assert_eq!(bench.send(pair[0], 9, 24, |_| {}), 0);
        let [received, _] = both(&bench);
        assert_eq!((received.wr_id, received.qp_num), (number, self::number(pair[1])));
    }
    assert_eq!(bench.coming_event(), Some(ibv_event_type::IBV_EVENT_SRQ_LIMIT_REACHED));
    assert_eq!(modify(pairs[0][1], in_state(ibv_qp_state::IBV_QPS_ERR)), 0);
    assert_eq!(bench.coming_event(), Some(ibv_event_type::IBV_EVENT_QP_LAST_WQE_REACHED));
    pairs.into_iter().flatten().for_each(destroy);
    // SAFETY: no queue pair uses the shared queue any more.
    assert_eq!(unsafe { (table().ibv_destroy_srq)(srq) }, 0);
}

#[test]
fn owner_that_armed_the_queue_is_woken() {
    let bench = VerbsFixture::new(16);
    let [one, other] = bench.pair(RC);
    (1..=2).for_each(|number| assert_eq!(bench.receive(other, number, 64), 0));
    for (solicited, fires) in [(0, false), (ibv_send_flags::IBV_SEND_SOLICITED.0, true)] {
        // SAFETY: the queue is live.
        assert_eq!(unsafe { verbs::ibv_req_notify_cq(bench.cq, 1) }, 0);
        assert_eq!(bench.send(one, 3, 8, |wr| wr.send_flags = solicited), 0);
        assert_eq!(bench.fired(), fires);
    }
    assert_eq!(bench.results(), [(1, SUCCESS), (2, SUCCESS)]);
    destroy(one);
    destroy(other);
}

#[test]
fn draining_queue_pauses_and_resumes() {
    let bench = VerbsFixture::new(16);
    let [one, other] = bench.pair(RC);
    assert_eq!(modify(one, in_state(ibv_qp_state::IBV_QPS_SQD)), 0);
    assert_eq!(bench.receive(other, 1, 64), 0);
    assert_eq!(bench.send(one, 2, 8, |_| {}), 0);
    assert_eq!(bench.results(), []);
    assert_eq!(modify(one, in_state(ibv_qp_state::IBV_QPS_RTS)), 0);
    assert_eq!(both(&bench).map(|wc| wc.status), [SUCCESS; 2]);
    // Posts requests until the queue is full. All of them are flushed in order.
    for number in 0..4 {
        assert_eq!(bench.send(one, number, 8, |_| {}), 0);
    }
    assert_eq!(bench.send(one, 4, 8, |_| {}), libc::ENOMEM);
    assert_eq!(modify(one, in_state(ibv_qp_state::IBV_QPS_ERR)), 0);
    assert_eq!(bench.results(), [0, 1, 2, 3].map(|wr_id| (wr_id, FLUSHED)));
    destroy(one);
    destroy(other);
}

/// A slot says that it is posted, although its receive was consumed.
#[test]
fn a_consumed_receive_takes_no_message() {
    let bench = VerbsFixture::new(16);
    let [one, other] = bench.pair(RC);
    let state = inner(other);
    let segment = state.rnic.node().segment();
    let slots = segment.slots(&state.descriptor().slots).expect("a receive queue");
    bench.set(0, 77);
    // The first receive is at SIZE / 4, and is consumed.
    assert_eq!(bench.receive_list(other, 1, &mut [bench.sge(SIZE / 4, 1024)]), 0);
    assert_eq!(bench.send(one, 2, 1024, |_| {}), 0);
    assert_eq!(bench.wait_for(2).len(), 2);
    bench.set(SIZE / 4 / 8, 0); // The program uses that memory again.
    assert_eq!(bench.receive(other, 3, 1024), 0); // at SIZE / 2
    // Another process writes shared words.
    let slot = segment.slot(&slots, 0).expect("a slot");
    let room = slot.header.room();
    slot.header.post(9, room);
    state.progress_words().set_cursor(0);
    assert_eq!(bench.send(one, 4, 1024, |_| {}), 0);
    assert_eq!(bench.wait_for(1).first().map(|done| done.0), Some(4));
    assert_eq!(bench.get(SIZE / 4 / 8), 0, "a sender wrote to memory of no posted receive");
    [one, other].into_iter().for_each(destroy);
}

/// A slot says that a message has come, although no receive is posted.
#[test]
fn a_receive_completes_once() {
    let bench = VerbsFixture::new(16);
    let [one, other] = bench.pair(RC);
    let state = inner(other);
    let segment = state.rnic.node().segment();
    let slots = segment.slots(&state.descriptor().slots).expect("a receive queue");
    for wr_id in 0..slots.count() {
        assert_eq!(bench.receive_list(other, 100 + u64::from(wr_id), &mut [bench.sge(SIZE / 4, 1024)]), 0);
        assert_eq!(bench.send(one, 2, 8, |_| {}), 0);
        assert_eq!(bench.wait_for(2).len(), 2);
    }
    bench.set(SIZE / 4 / 8, 0);
    // No receive is posted. Another process writes shared words.
    let slot = segment.slot(&slots, 0).expect("a slot");
    slot.header.post(9, slot.header.room());
    let claim = slot.header.claim(1).expect("posted");
    // SAFETY: bytes of the slot.
    unsafe { slot.eager.cast::<u64>().write(0xbad) };
    assert!(slot.header.finish(claim, &Delivery { eager: true, byte_len: 8, ..Delivery::default() }));
    let descriptor = state.descriptor();
    segment.completion_queue(descriptor.recv_cq).expect("a queue").announce(descriptor.source, false);
    assert_eq!(bench.results(), [], "a completion without a posted receive");
    assert_eq!(bench.get(SIZE / 4 / 8), 0);
    [one, other].into_iter().for_each(destroy);
}
