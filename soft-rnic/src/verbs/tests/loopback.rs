//! Queue pairs of one process that talk to each other: failures, and the recovery from them.

use std::ptr;
use std::sync::Arc;

use rdma_mummy_sys::types::*;
use rdma_mummy_sys::verbs;

use crate::verbs::bench::*;
use crate::verbs::completion_queue::cq_of;
use crate::verbs::testing::table;

fn to(state: ibv_qp_state) -> Attributes {
    let attr = ibv_qp_attr { qp_state: state, ..ibv_qp_attr::default() };
    (attr, ibv_qp_attr_mask::IBV_QP_STATE.0)
}

#[test]
fn messages_go_both_ways() {
    let bench = VerbsFixture::new(16);
    let [one, other] = bench.pair(ibv_qp_type::IBV_QPT_RC);
    for (from, to, length) in [(one, other, 8), (other, one, 4000)] {
        assert_eq!(bench.receive(to, 1, 4000), 0);
        assert_eq!(bench.send(from, 2, length, |_| {}), 0);
        let mut results = bench.results();
        results.sort_by_key(|result| result.0);
        assert_eq!(results, [(1, SUCCESS), (2, SUCCESS)]);
    }
    destroy(one);
    destroy(other);
}

/// A slot of a receive queue, as peers see it.
fn slot<'a>(qp: *mut ibv_qp, index: u32) -> crate::shared::segment::RecvSlot<'a> {
    let (_, descriptor) = inner(qp).entry().read().expect("it is published");
    let segment = inner(qp).rnic.node().segment();
    let slots = segment.slots(&descriptor.slots).expect("slots");
    segment.slot(&slots, index).expect("a slot")
}

fn waiting(bench: &VerbsFixture) -> usize {
    // SAFETY: the queue is live.
    unsafe { cq_of(bench.cq) }.waiting()
}

#[test]
fn claimed_receive_is_flushed_when_its_claim_ends() {
    let bench = VerbsFixture::new(16);
    let [one, other] = bench.pair(ibv_qp_type::IBV_QPT_RC);
    (1..=3).for_each(|number| assert_eq!(bench.receive(other, number, 64), 0));
    let _claim = slot(other, 0).header.claim(5).expect("it was posted");
    assert_eq!(modify(other, in_state(ibv_qp_state::IBV_QPS_ERR)), 0);
    // Receives are flushed in order, so none goes before one that a message may still fill.
    assert_eq!(bench.results(), []);
    // SAFETY: the queue is live.
    assert_eq!(unsafe { verbs::ibv_req_notify_cq(bench.cq, 0) }, 0);
    assert!(!bench.fired());
    inner(other).peer_detached(6);
    assert!(!bench.fired());
    inner(other).peer_detached(5);
    assert!(bench.fired());
    assert_eq!(bench.results(), [(1, FLUSHED), (2, FLUSHED), (3, FLUSHED)]);
    assert_eq!(waiting(&bench), 0);
    destroy(one);
    destroy(other);
}

#[test]
fn unpolled_completions_of_destroyed_queue_pairs_take_no_room() {
    let bench = VerbsFixture::new(4);
    for _ in 0..if cfg!(miri) { 1 } else { 5 } {
        let [one, other] = bench.pair(ibv_qp_type::IBV_QPT_RC);
        (1..=4).for_each(|number| assert_eq!(bench.receive(other, number, 64), 0));
        assert_eq!(bench.send(one, 9, 8, |wr| wr.send_flags = 0), 0);
        assert_eq!(modify(other, in_state(ibv_qp_state::IBV_QPS_ERR)), 0);
        assert_eq!(waiting(&bench), 4);
        destroy(one);
        destroy(other);
        assert_eq!(waiting(&bench), 0);
    }
    let [one, other] = bench.pair(ibv_qp_type::IBV_QPT_RC);
    (0..if cfg!(miri) { 10 } else { 100 }).for_each(|peer_id| inner(other).peer_detached(peer_id));
    assert_eq!(waiting(&bench), 0);
    assert_eq!(bench.receive(other, 1, 64), 0);
    assert_eq!(bench.send(one, 2, 8, |_| {}), 0);
    assert_eq!(bench.results().len(), 2);
    destroy(one);
    destroy(other);
}

#[test]
fn destroyed_queue_pair_frees_its_shared_receives() {
    let bench = VerbsFixture::new(16);
    let srq = bench.srq(2);
    for _ in 0..3 {
        let pair =
            [bench.qp(ibv_qp_type::IBV_QPT_RC, ptr::null_mut()), bench.qp(ibv_qp_type::IBV_QPT_RC, srq)];
        bench.connect(pair);
        for number in 0..2 {
            assert_eq!(bench.receive_shared(srq, number), 0);
            assert_eq!(bench.send(pair[0], 9, 8, |wr| wr.send_flags = 0), 0);
        }
        assert_eq!(waiting(&bench), 2);
        pair.into_iter().for_each(destroy);
        assert_eq!((waiting(&bench), bench.results()), (0, vec![]));
    }
    // SAFETY: no queue pair uses the shared queue any more.
    assert_eq!(unsafe { (table().ibv_destroy_srq)(srq) }, 0);
}

#[test]
fn late_reference_does_not_block_destruction() {
    let bench = VerbsFixture::new(16);
    let [one, other] = bench.pair(ibv_qp_type::IBV_QPT_RC);
    // As a slow service thread does, which has looked the queue pair up before its destruction.
    let late = Arc::clone(inner(other));
    destroy(one);
    destroy(other);
    late.raise(ibv_event_type::IBV_EVENT_QP_FATAL);
    late.fail();
    late.act_on_notices();
    let taken = late.number;
    let next = bench.qp(ibv_qp_type::IBV_QPT_RC, ptr::null_mut());
    assert_ne!(inner(next).number, taken);
    destroy(next);
    // SAFETY: the context is open, and no queue pair uses the queue any more.
    unsafe {
        assert_eq!(bench.event(), None, "an event of a destroyed queue pair");
        let queue = Arc::clone(cq_of(bench.cq));
        let mut bench = bench;
        assert_eq!((table().ibv_destroy_cq)(bench.cq), 0);
        queue.notify();
        assert!(!bench.fired(), "an event of a destroyed completion queue");
        bench.cq = bench.opened.cq(1, ptr::null_mut());
    }
    drop(late);
}

#[test]
fn late_failure_does_not_touch_a_reset_queue_pair() {
    let bench = VerbsFixture::new(16);
    let [one, other] = bench.pair(ibv_qp_type::IBV_QPT_RC);
    for life in 0..if cfg!(miri) { 1 } else { 3 } {
        assert_eq!(bench.receive(other, life, 64), 0);
        assert_eq!(modify(other, to(ibv_qp_state::IBV_QPS_ERR)), 0);
        assert_eq!(bench.results(), [(life, FLUSHED)]);
        [one, other].into_iter().for_each(|qp| assert_eq!(modify(qp, to(ibv_qp_state::IBV_QPS_RESET)), 0));
        inner(other).fail();
        bench.connect([one, other]);
        assert_eq!(bench.receive(other, 7, 64), 0);
        assert_eq!(bench.results(), []);
        assert_eq!(bench.send(one, 8, 8, |_| {}), 0);
        assert_eq!(bench.results().len(), 2);
    }
    destroy(one);
    destroy(other);
}

#[test]
fn rnr_is_retried_rnr_retry_times() {
    let bench = VerbsFixture::new(16);
    for (retry, least) in [(0, 0), (2, 2)] {
        let pair = [(); 2].map(|()| bench.qp(ibv_qp_type::IBV_QPT_RC, ptr::null_mut()));
        pair.into_iter().for_each(|qp| bench.init(qp));
        let [one, other] = pair;
        // The RNR timer code for 10.24 ms.
        const TIMER: u8 = 20;
        bench.ready(other, number(one), |attr| attr.min_rnr_timer = TIMER);
        bench.ready(one, number(other), |attr| attr.rnr_retry = retry);
        let (start, counted) = (std::time::Instant::now(), inner(one).rnic.not_ready());
        assert_eq!(bench.send(one, 1, 8, |_| {}), 0);
        let expected = [(1, ibv_wc_status::IBV_WC_RNR_RETRY_EXC_ERR)];
        if retry == 0 {
            assert_eq!(bench.results(), expected);
        } else {
            assert_eq!(bench.wait_for(1), expected);
            assert!(start.elapsed() >= std::time::Duration::from_micros(10_240) * least);
        }
        // Other tests increase the same counter.
        assert!(inner(one).rnic.not_ready() > counted + u64::from(least));
        destroy(one);
        destroy(other);
    }
}

#[test]
fn missing_peer_fails_after_the_retries() {
    let bench = VerbsFixture::new(16);
    let qp = bench.qp(ibv_qp_type::IBV_QPT_RC, ptr::null_mut());
    bench.init(qp);
    // No process has this block. Each lookup takes some milliseconds, and so does each retry.
    bench.ready(qp, 1023 << 14 | 77, |attr| (attr.timeout, attr.retry_cnt) = (14, 2));
    assert_eq!(bench.send(qp, 1, 8, |_| {}), 0);
    assert_eq!(bench.send(qp, 2, 8, |_| {}), 0);
    assert_eq!(bench.wait_for(2), [(1, ibv_wc_status::IBV_WC_RETRY_EXC_ERR), (2, FLUSHED)]);
    destroy(qp);
}

#[test]
fn changing_the_address_keeps_the_connection() {
    let bench = VerbsFixture::new(16);
    let [one, other] = bench.pair(ibv_qp_type::IBV_QPT_RC);
    for _ in 0..2 {
        assert_eq!(bench.receive(other, 1, 64), 0);
        assert_eq!(bench.send(one, 2, 8, |_| {}), 0);
        assert_eq!(bench.results().len(), 2);
        assert_eq!(modify(one, to(ibv_qp_state::IBV_QPS_SQD)), 0);
        let mut attr = to(ibv_qp_state::IBV_QPS_SQD);
        attr.0.ah_attr = bench.ah_attr();
        assert_eq!(modify(one, with(attr, ibv_qp_attr_mask::IBV_QP_AV)), 0);
        assert_eq!(modify(one, to(ibv_qp_state::IBV_QPS_RTS)), 0);
    }
    destroy(one);
    destroy(other);
}

#[test]
fn uc_accepts_any_first_sequence_number() {
    let bench = VerbsFixture::new(16);
    let pair = [(); 2].map(|()| bench.qp(ibv_qp_type::IBV_QPT_UC, ptr::null_mut()));
    pair.into_iter().for_each(|qp| bench.init(qp));
    let [one, other] = pair;
    bench.ready(one, number(other), |attr| attr.sq_psn = 5);
    bench.ready(other, number(one), |attr| attr.rq_psn = 9);
    assert_eq!(bench.receive(other, 1, 64), 0);
    assert_eq!(bench.send(one, 2, 8, |_| {}), 0);
    assert_eq!(bench.results().len(), 2);
    destroy(one);
    destroy(other);
}

#[test]
fn too_long_message_fails_both_sides() {
    let bench = VerbsFixture::new(16);
    let [one, other] = bench.pair(ibv_qp_type::IBV_QPT_RC);
    assert_eq!(bench.receive(other, 1, 64), 0);
    assert_eq!(bench.receive(other, 2, 64), 0);
    assert_eq!(bench.send(one, 3, 65, |_| {}), 0);
    let mut results = bench.results();
    results.extend(bench.results());
    results.sort_by_key(|result| result.0);
    let invalid = ibv_wc_status::IBV_WC_REM_INV_REQ_ERR;
    assert_eq!(results, [(1, ibv_wc_status::IBV_WC_LOC_LEN_ERR), (2, FLUSHED), (3, invalid)]);
    // SAFETY: the context is open.
    let mut event =
        unsafe { libc::pollfd { fd: (*bench.opened.0).async_fd, events: libc::POLLIN, revents: 0 } };
    // SAFETY: the array has one entry.
    assert_eq!(unsafe { libc::poll(&raw mut event, 1, 0) }, 0, "only the completion reports it");
    destroy(one);
    destroy(other);
}

#[test]
fn inline_data_of_any_length_are_refused_beyond_the_limit() {
    let bench = VerbsFixture::new(16);
    let [one, other] = bench.pair(ibv_qp_type::IBV_QPT_RC);
    for lengths in [[17, 0], [8, 9], [8, u32::MAX]] {
        let mut list = lengths.map(|length| ibv_sge { length, ..bench.sge(0, 0) });
        let list = list.as_mut_ptr();
        let refused = bench.send(one, 1, 0, |wr| {
            (wr.sg_list, wr.num_sge) = (list, 2);
            wr.send_flags |= ibv_send_flags::IBV_SEND_INLINE.0;
        });
        assert_eq!(refused, libc::EINVAL);
    }
    assert_eq!(bench.receive(other, 1, 64), 0);
    assert_eq!(bench.send(one, 2, 16, |wr| wr.send_flags |= ibv_send_flags::IBV_SEND_INLINE.0), 0);
    assert_eq!(bench.results().len(), 2);
    destroy(one);
    destroy(other);
}
