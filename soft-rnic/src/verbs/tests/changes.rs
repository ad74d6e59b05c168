//! Changes while requests are outstanding: states, attributes, and writes of a peer to the segment.

use std::ptr;

use rdma_mummy_sys::types::*;
use rdma_mummy_sys::verbs;

use crate::shared::generation::GenerationWriter;
use crate::verbs::bench::*;
use crate::verbs::testing::table;

const RC: ibv_qp_type = ibv_qp_type::IBV_QPT_RC;

#[test]
fn changing_an_attribute_keeps_the_drained_event() {
    use ibv_qp_attr_mask as M;
    let bench = VerbsFixture::new(16);
    let [one, other] = bench.pair(RC);
    // The request waits for a receive.
    assert_eq!(bench.send(one, 2, 8, |_| {}), 0);
    let mut drained = in_state(ibv_qp_state::IBV_QPS_SQD);
    drained.0.en_sqd_async_notify = 1;
    assert_eq!(modify(one, with(drained, M::IBV_QP_EN_SQD_ASYNC_NOTIFY)), 0);
    let mut slower = in_state(ibv_qp_state::IBV_QPS_SQD);
    slower.0.min_rnr_timer = 3;
    assert_eq!(modify(one, with(slower, M::IBV_QP_MIN_RNR_TIMER)), 0);
    assert_eq!(bench.event(), None);
    assert_eq!(bench.receive(other, 1, 64), 0);
    assert_eq!(bench.wait_for(2).len(), 2);
    assert_eq!(bench.coming_event(), Some(ibv_event_type::IBV_EVENT_SQ_DRAINED));
    assert_eq!(bench.event(), None);
    destroy(one);
    destroy(other);
}

#[test]
#[cfg_attr(miri, ignore = "Miri runs no service thread")]
fn changing_peer_is_retried_soon() {
    let bench = VerbsFixture::new(16);
    let pair = [(); 2].map(|()| bench.qp(RC, ptr::null_mut()));
    pair.iter().for_each(|qp| bench.init(*qp));
    let [one, other] = pair;
    // The timeout is unlimited, so the message waits for ever unless the sender looks at the peer
    // again without one.
    bench.ready(one, number(other), |attr| attr.timeout = 0);
    bench.ready(other, number(one), |_| {});
    assert_eq!(bench.receive(other, 1, 64), 0);
    let state = inner(other);
    // As in the middle of a change by a thread that does not run for a moment.
    let mut writer = GenerationWriter::default();
    state.entry().withdraw(&mut writer);
    // SAFETY: the queue is live.
    assert_eq!(unsafe { verbs::ibv_req_notify_cq(bench.cq, 0) }, 0);
    assert_eq!(bench.send(one, 2, 8, |_| {}), 0);
    state.entry().publish(&mut writer, ibv_qp_state::IBV_QPS_RTS.0 as u8, &state.descriptor());
    // Only the service thread can make progress, because nobody polls.
    // SAFETY: the channel is live, and the array has one descriptor.
    let woken = unsafe {
        let mut file = libc::pollfd { fd: (*bench.channel).fd, events: libc::POLLIN, revents: 0 };
        libc::poll(&raw mut file, 1, 20_000)
    };
    assert_eq!(woken, 1, "the message still waits");
    assert!(bench.fired());
    assert_eq!(bench.wait_for(2).len(), 2);
    destroy(one);
    destroy(other);
}

#[test]
fn writes_to_the_segment_grant_no_local_access() {
    let bench = VerbsFixture::new(16);
    let pair = [(); 2].map(|()| bench.qp(RC, ptr::null_mut()));
    pair.iter().for_each(|qp| bench.init(*qp));
    let [one, other] = pair;
    let mut closed = in_state(ibv_qp_state::IBV_QPS_INIT);
    closed.0.qp_access_flags = 0;
    assert_eq!(modify(other, with(closed, ibv_qp_attr_mask::IBV_QP_ACCESS_FLAGS)), 0);
    bench.ready(one, number(other), |_| {});
    bench.ready(other, number(one), |_| {});
    let state = inner(other);
    let mut descriptor = state.descriptor();
    assert_eq!(descriptor.access, 0);
    descriptor.access = ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0;
    state.entry().publish(&mut GenerationWriter::default(), ibv_qp_state::IBV_QPS_RTS.0 as u8, &descriptor);
    bench.set(SIZE / 16, 7);
    // SAFETY: the region is live.
    let (remote_addr, rkey) = (bench.at(SIZE / 2), unsafe { (*bench.mr).rkey });
    let write = |wr: &mut ibv_send_wr| {
        wr.opcode = ibv_wr_opcode::IBV_WR_RDMA_WRITE;
        wr.wr.rdma = ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr, rkey };
    };
    assert_eq!(bench.send(one, 1, 8, write), 0);
    assert_eq!(bench.wait_for(1), [(1, ibv_wc_status::IBV_WC_REM_ACCESS_ERR)]);
    assert_eq!(bench.get(SIZE / 16), 7);
    destroy(one);
    destroy(other);
}

/// Memory that is registered without local write access may be mapped read-only.
#[test]
fn receive_is_not_scattered_on_a_peers_word_alone() {
    let bench = VerbsFixture::new(16);
    let [one, other] = bench.pair(RC);
    // SAFETY: the domain and the memory are live.
    let read_only = unsafe { verbs::ibv_reg_mr(table(), bench.pd, bench.memory.cast(), SIZE, 0) };
    assert!(!read_only.is_null());
    // SAFETY: the region is live.
    let lkey = unsafe { (*read_only).lkey };
    let mut sge = ibv_sge { addr: bench.at(SIZE / 2), length: 1024, lkey };
    assert_eq!(bench.receive_list(other, 1, core::slice::from_mut(&mut sge)), 0);
    let node = inner(one).rnic.node();
    let entry = node.segment().region(lkey >> 8).expect("it is in the table");
    let (_, mut descriptor) = entry.read().expect("it is registered");
    descriptor.access |= ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0;
    entry.publish(&mut GenerationWriter::default(), lkey as u8, &descriptor);
    bench.set(SIZE / 16, 7);
    assert_eq!(bench.send(one, 2, 1024, |_| {}), 0);
    let mut results = bench.wait_for(2);
    results.sort_by_key(|result| result.0);
    assert_eq!(results, [(1, ibv_wc_status::IBV_WC_LOC_PROT_ERR), (2, ibv_wc_status::IBV_WC_REM_OP_ERR)]);
    assert_eq!(bench.get(SIZE / 16), 7);
    destroy(one);
    destroy(other);
    // SAFETY: no receive uses the region any more.
    assert_eq!(unsafe { (table().ibv_dereg_mr)(read_only) }, 0);
}
