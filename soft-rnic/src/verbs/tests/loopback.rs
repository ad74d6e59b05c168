//! Queue pairs of one process that talk to each other: what goes wrong, and what has to be put right after it.

use std::ffi::c_int;
use std::ptr;
use std::sync::Arc;

use rdma_mummy_sys::types::*;
use rdma_mummy_sys::verbs;

use crate::queue_pair::Qp;
use crate::verbs::completion_queue::cq_of;
use crate::verbs::queue_pair::qp_of;
use crate::verbs::testing::{Opened, errno, table};

const SIZE: usize = 8192;
const QKEY: u32 = 0x1234;

/// A device with a domain, a completion queue, and registered memory.
struct Bench {
    opened: Opened,
    pd: *mut ibv_pd,
    channel: *mut ibv_comp_channel,
    cq: *mut ibv_cq,
    memory: *mut [u64; SIZE / 8],
    mr: *mut ibv_mr,
}

type Attributes = (ibv_qp_attr, u32);

impl Bench {
    fn new(cqe: c_int) -> Self {
        let opened = Opened::new(0);
        let pd = opened.pd();
        let memory = Box::into_raw(Box::new([0; SIZE / 8]));
        let access = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE
            | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE
            | ibv_access_flags::IBV_ACCESS_REMOTE_READ
            | ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC;
        // SAFETY: the context is open, and the memory is there until this is dropped.
        unsafe {
            let channel = (table().ibv_create_comp_channel)(opened.0);
            let cq = opened.cq(cqe, channel);
            let mr = verbs::ibv_reg_mr(table(), pd, memory.cast(), SIZE, access.0 as c_int);
            assert!(!mr.is_null());
            Self { opened, pd, channel, cq, memory, mr }
        }
    }

    fn at(&self, offset: usize) -> u64 {
        self.memory.expose_provenance() as u64 + offset as u64
    }

    fn qp(&self, qp_type: ibv_qp_type, srq: *mut ibv_srq) -> *mut ibv_qp {
        let mut init = ibv_qp_init_attr {
            send_cq: self.cq,
            recv_cq: self.cq,
            srq,
            qp_type,
            cap: ibv_qp_cap {
                max_send_wr: 4,
                max_recv_wr: 4,
                max_send_sge: 2,
                max_recv_sge: 2,
                max_inline_data: 16,
            },
            ..ibv_qp_init_attr::default()
        };
        // SAFETY: all are live.
        let qp = unsafe { (table().ibv_create_qp)(self.pd, &raw mut init) };
        assert!(!qp.is_null(), "errno {}", errno());
        qp
    }

    fn srq(&self, max_wr: u32) -> *mut ibv_srq {
        let attr = ibv_srq_attr { max_wr, max_sge: 1, srq_limit: 0 };
        let mut init = ibv_srq_init_attr { attr, ..ibv_srq_init_attr::default() };
        // SAFETY: the domain is live.
        let srq = unsafe { (table().ibv_create_srq)(self.pd, &raw mut init) };
        assert!(!srq.is_null());
        srq
    }

    fn ah_attr(&self) -> ibv_ah_attr {
        let mut gid = ibv_gid::default();
        // SAFETY: the context is open.
        assert_eq!(unsafe { (table().ibv_query_gid)(self.opened.0, 1, 0, &raw mut gid) }, 0);
        let grh = ibv_global_route { dgid: gid, hop_limit: 7, ..ibv_global_route::default() };
        ibv_ah_attr { grh, is_global: 1, port_num: 1, ..ibv_ah_attr::default() }
    }

    fn init(&self, qp: *mut ibv_qp) {
        let access = ibv_access_flags::IBV_ACCESS_REMOTE_WRITE
            | ibv_access_flags::IBV_ACCESS_REMOTE_READ
            | ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC;
        let mut attr = to(ibv_qp_state::IBV_QPS_INIT);
        (attr.0.port_num, attr.0.qkey, attr.0.qp_access_flags) = (1, QKEY, access.0);
        // SAFETY: the queue pair is live.
        let datagram = unsafe { (*qp).qp_type } == ibv_qp_type::IBV_QPT_UD;
        let last =
            if datagram { ibv_qp_attr_mask::IBV_QP_QKEY } else { ibv_qp_attr_mask::IBV_QP_ACCESS_FLAGS };
        let more = ibv_qp_attr_mask::IBV_QP_PORT | ibv_qp_attr_mask::IBV_QP_PKEY_INDEX | last;
        assert_eq!(modify(qp, with(attr, more)), 0);
    }

    /// Ready to receive and to send; an unconnected queue pair has no use for the peer.
    fn ready(&self, qp: *mut ibv_qp, dest_qp_num: u32, change: impl Fn(&mut ibv_qp_attr)) {
        use ibv_qp_attr_mask as M;
        // SAFETY: the queue pair is live.
        let qp_type = unsafe { (*qp).qp_type };
        let (mut receive, mut send) = (to(ibv_qp_state::IBV_QPS_RTR), to(ibv_qp_state::IBV_QPS_RTS));
        for attr in [&mut receive.0, &mut send.0] {
            attr.ah_attr = self.ah_attr();
            attr.path_mtu = ibv_mtu::IBV_MTU_1024;
            attr.dest_qp_num = dest_qp_num;
            (attr.max_rd_atomic, attr.max_dest_rd_atomic, attr.min_rnr_timer) = (1, 1, 1);
            (attr.timeout, attr.retry_cnt, attr.rnr_retry) = (1, 1, 7);
            change(attr);
        }
        let connected = M::IBV_QP_AV | M::IBV_QP_PATH_MTU | M::IBV_QP_DEST_QPN | M::IBV_QP_RQ_PSN;
        let (more, sending) = match qp_type {
            ibv_qp_type::IBV_QPT_UD => (M(0), M::IBV_QP_SQ_PSN),
            ibv_qp_type::IBV_QPT_UC => (connected, M::IBV_QP_SQ_PSN),
            _ => (
                connected | M::IBV_QP_MAX_DEST_RD_ATOMIC | M::IBV_QP_MIN_RNR_TIMER,
                M::IBV_QP_SQ_PSN
                    | M::IBV_QP_TIMEOUT
                    | M::IBV_QP_RETRY_CNT
                    | M::IBV_QP_RNR_RETRY
                    | M::IBV_QP_MAX_QP_RD_ATOMIC,
            ),
        };
        assert_eq!(modify(qp, with(receive, more)), 0);
        assert_eq!(modify(qp, with(send, sending)), 0);
    }

    /// Two queue pairs, connected to each other.
    fn pair(&self, qp_type: ibv_qp_type) -> [*mut ibv_qp; 2] {
        let pair = [(); 2].map(|()| self.qp(qp_type, ptr::null_mut()));
        self.connect(pair);
        pair
    }

    fn connect(&self, [one, other]: [*mut ibv_qp; 2]) {
        self.init(one);
        self.init(other);
        self.ready(one, number(other), |_| {});
        self.ready(other, number(one), |_| {});
    }

    fn sge(&self, offset: usize, length: u32) -> ibv_sge {
        // SAFETY: the region is live.
        ibv_sge { addr: self.at(offset), length, lkey: unsafe { (*self.mr).lkey } }
    }

    fn receive(&self, qp: *mut ibv_qp, wr_id: u64, length: u32) -> c_int {
        let mut sge = self.sge(SIZE / 2, length);
        let mut wr = ibv_recv_wr { wr_id, sg_list: &raw mut sge, num_sge: 1, ..ibv_recv_wr::default() };
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair is live and the request valid.
        unsafe { verbs::ibv_post_recv(qp, &raw mut wr, &raw mut bad) }
    }

    fn receive_shared(&self, srq: *mut ibv_srq, wr_id: u64) -> c_int {
        let mut sge = self.sge(SIZE / 2, 64);
        let mut wr = ibv_recv_wr { wr_id, sg_list: &raw mut sge, num_sge: 1, ..ibv_recv_wr::default() };
        let mut bad = ptr::null_mut();
        // SAFETY: the queue is live and the request valid.
        unsafe { verbs::ibv_post_srq_recv(srq, &raw mut wr, &raw mut bad) }
    }

    /// Posts a signaled request.
    fn send(&self, qp: *mut ibv_qp, wr_id: u64, length: u32, change: impl Fn(&mut ibv_send_wr)) -> c_int {
        let mut sge = self.sge(0, length);
        let mut wr = ibv_send_wr {
            wr_id,
            sg_list: &raw mut sge,
            num_sge: 1,
            opcode: ibv_wr_opcode::IBV_WR_SEND,
            send_flags: ibv_send_flags::IBV_SEND_SIGNALED.0,
            ..ibv_send_wr::default()
        };
        change(&mut wr);
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair is live and the request valid.
        unsafe { verbs::ibv_post_send(qp, &raw mut wr, &raw mut bad) }
    }

    fn poll(&self) -> Vec<ibv_wc> {
        let mut wc = [ibv_wc::default(); 32];
        // SAFETY: the queue is live, and there is room.
        let count = unsafe { verbs::ibv_poll_cq(self.cq, 32, wc.as_mut_ptr()) };
        wc[..count as usize].to_vec()
    }

    /// What is polled, as numbers and statuses.
    fn results(&self) -> Vec<(u64, ibv_wc_status)> {
        self.poll().into_iter().map(|wc| (wc.wr_id, wc.status)).collect()
    }

    /// Polls until so many completions have come.
    fn wait_for(&self, count: usize) -> Vec<(u64, ibv_wc_status)> {
        let start = std::time::Instant::now();
        let mut results = Vec::new();
        while results.len() < count && start.elapsed().as_secs() < 20 {
            results.extend(self.results());
            std::thread::yield_now();
        }
        results
    }

    /// Whether an event of the completion queue waits; it is taken and acknowledged.
    fn fired(&self) -> bool {
        // SAFETY: the channel and the queue are live.
        unsafe {
            let mut poll = libc::pollfd { fd: (*self.channel).fd, events: libc::POLLIN, revents: 0 };
            if libc::poll(&raw mut poll, 1, 0) == 0 {
                return false;
            }
            let (mut cq, mut cookie) = (ptr::null_mut(), ptr::null_mut());
            assert_eq!((table().ibv_get_cq_event)(self.channel, &raw mut cq, &raw mut cookie), 0);
            (table().ibv_ack_cq_events)(cq, 1);
            true
        }
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        // SAFETY: nothing of it is used any more.
        unsafe {
            assert_eq!((table().ibv_dereg_mr)(self.mr), 0);
            assert_eq!((table().ibv_destroy_cq)(self.cq), 0);
            assert_eq!((table().ibv_destroy_comp_channel)(self.channel), 0);
            assert_eq!((table().ibv_dealloc_pd)(self.pd), 0);
            drop(Box::from_raw(self.memory));
        }
    }
}

fn to(state: ibv_qp_state) -> Attributes {
    let attr = ibv_qp_attr { qp_state: state, ..ibv_qp_attr::default() };
    (attr, ibv_qp_attr_mask::IBV_QP_STATE.0)
}

fn with((attr, mask): Attributes, more: ibv_qp_attr_mask) -> Attributes {
    (attr, mask | more.0)
}

fn modify(qp: *mut ibv_qp, (mut attr, mask): Attributes) -> c_int {
    // SAFETY: the queue pair is live.
    unsafe { (table().ibv_modify_qp)(qp, &raw mut attr, mask as c_int) }
}

fn number(qp: *mut ibv_qp) -> u32 {
    // SAFETY: the queue pair is live.
    unsafe { (*qp).qp_num }
}

fn destroy(qp: *mut ibv_qp) {
    // SAFETY: the queue pair is live, and not used any more.
    assert_eq!(unsafe { (table().ibv_destroy_qp)(qp) }, 0);
}

/// What is behind the C object.
fn inner<'a>(qp: *mut ibv_qp) -> &'a Arc<Qp> {
    // SAFETY: the tests destroy it at their end.
    unsafe { qp_of(qp) }
}

const SUCCESS: ibv_wc_status = ibv_wc_status::IBV_WC_SUCCESS;
const FLUSHED: ibv_wc_status = ibv_wc_status::IBV_WC_WR_FLUSH_ERR;

#[test]
fn messages_go_both_ways() {
    let bench = Bench::new(16);
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

/// The slot of a receive queue that peers see.
fn slot<'a>(qp: *mut ibv_qp, index: u32) -> crate::shared::segment::Slot<'a> {
    let (_, card) = inner(qp).entry().read().expect("it is published");
    inner(qp).rnic.node().segment().slot(&card.slots, index).expect("a slot")
}

fn waiting(bench: &Bench) -> usize {
    // SAFETY: the queue is live.
    unsafe { cq_of(bench.cq) }.waiting()
}

#[test]
fn what_a_claim_has_held_up_is_flushed_when_it_ends() {
    let bench = Bench::new(16);
    let [one, other] = bench.pair(ibv_qp_type::IBV_QPT_RC);
    (1..=3).for_each(|number| assert_eq!(bench.receive(other, number, 64), 0));
    let _claim = slot(other, 0).header.claim(5).expect("it was posted");
    assert_eq!(modify(other, to(ibv_qp_state::IBV_QPS_ERR)), 0);
    // In order: none is flushed before the one that a message may still be on its way to.
    assert_eq!(bench.results(), []);
    // SAFETY: the queue is live.
    assert_eq!(unsafe { verbs::ibv_req_notify_cq(bench.cq, 0) }, 0);
    assert!(!bench.fired());
    inner(other).link_gone(6);
    assert!(!bench.fired());
    inner(other).link_gone(5);
    assert!(bench.fired());
    assert_eq!(bench.results(), [(1, FLUSHED), (2, FLUSHED), (3, FLUSHED)]);
    assert_eq!(waiting(&bench), 0);
    destroy(one);
    destroy(other);
}

#[test]
fn completions_that_nobody_polls_take_up_no_room() {
    let bench = Bench::new(4);
    for _ in 0..5 {
        let [one, other] = bench.pair(ibv_qp_type::IBV_QPT_RC);
        (1..=4).for_each(|number| assert_eq!(bench.receive(other, number, 64), 0));
        assert_eq!(bench.send(one, 9, 8, |wr| wr.send_flags = 0), 0);
        assert_eq!(modify(other, to(ibv_qp_state::IBV_QPS_ERR)), 0);
        assert_eq!(waiting(&bench), 4);
        destroy(one);
        destroy(other);
        assert_eq!(waiting(&bench), 0);
    }
    let [one, other] = bench.pair(ibv_qp_type::IBV_QPT_RC);
    (0..100).for_each(|link| inner(other).link_gone(link));
    assert_eq!(waiting(&bench), 0);
    assert_eq!(bench.receive(other, 1, 64), 0);
    assert_eq!(bench.send(one, 2, 8, |_| {}), 0);
    assert_eq!(bench.results().len(), 2);
    destroy(one);
    destroy(other);
}

#[test]
fn a_queue_pair_takes_no_shared_receive_with_it() {
    let bench = Bench::new(16);
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
    // SAFETY: nobody uses it any more.
    assert_eq!(unsafe { (table().ibv_destroy_srq)(srq) }, 0);
}

#[test]
fn a_thread_that_still_has_a_queue_pair_keeps_nothing_from_going() {
    let bench = Bench::new(16);
    let [one, other] = bench.pair(ibv_qp_type::IBV_QPT_RC);
    // As the service thread does, which looks it up and is slow.
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
    let mut event = libc::pollfd { fd: 0, events: libc::POLLIN, revents: 0 };
    // SAFETY: the context is open; the queue is not used any more.
    unsafe {
        event.fd = (*bench.opened.0).async_fd;
        assert_eq!(libc::poll(&raw mut event, 1, 0), 0, "an event of a queue pair that is not there");
        let queue = Arc::clone(cq_of(bench.cq));
        let mut bench = bench;
        assert_eq!((table().ibv_destroy_cq)(bench.cq), 0);
        queue.notify();
        assert!(!bench.fired(), "an event of a completion queue that is not there");
        bench.cq = bench.opened.cq(1, ptr::null_mut());
    }
    drop(late);
}

#[test]
fn who_acts_late_on_a_failure_does_not_touch_the_next_life() {
    let bench = Bench::new(16);
    let [one, other] = bench.pair(ibv_qp_type::IBV_QPT_RC);
    for life in 0..3 {
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
fn a_receiver_that_is_not_ready_is_tried_as_often_as_was_said() {
    let bench = Bench::new(16);
    for (retry, least) in [(0, 0), (2, 2)] {
        let pair = [(); 2].map(|()| bench.qp(ibv_qp_type::IBV_QPT_RC, ptr::null_mut()));
        pair.into_iter().for_each(|qp| bench.init(qp));
        let [one, other] = pair;
        // Ten milliseconds and a quarter.
        const TIMER: u8 = 20;
        bench.ready(other, number(one), |attr| attr.min_rnr_timer = TIMER);
        bench.ready(one, number(other), |attr| attr.rnr_retry = retry);
        let start = std::time::Instant::now();
        assert_eq!(bench.send(one, 1, 8, |_| {}), 0);
        let expected = [(1, ibv_wc_status::IBV_WC_RNR_RETRY_EXC_ERR)];
        if retry == 0 {
            assert_eq!(bench.results(), expected);
        } else {
            assert_eq!(bench.wait_for(1), expected);
            assert!(start.elapsed() >= std::time::Duration::from_micros(10_240) * least);
        }
        destroy(one);
        destroy(other);
    }
}

#[test]
fn a_peer_that_is_nowhere_is_given_up() {
    let bench = Bench::new(16);
    let qp = bench.qp(ibv_qp_type::IBV_QPT_RC, ptr::null_mut());
    bench.init(qp);
    // Nobody has this block; each look at it is good for some milliseconds, and so is each try.
    bench.ready(qp, 1023 << 14 | 77, |attr| (attr.timeout, attr.retry_cnt) = (14, 2));
    assert_eq!(bench.send(qp, 1, 8, |_| {}), 0);
    assert_eq!(bench.send(qp, 2, 8, |_| {}), 0);
    assert_eq!(bench.wait_for(2), [(1, ibv_wc_status::IBV_WC_RETRY_EXC_ERR), (2, FLUSHED)]);
    destroy(qp);
}

#[test]
fn a_change_of_the_address_leaves_the_connection_as_it_is() {
    let bench = Bench::new(16);
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
fn an_unreliable_connection_takes_any_first_number() {
    let bench = Bench::new(16);
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
fn a_message_that_is_too_long_ends_both_sides() {
    let bench = Bench::new(16);
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
    // SAFETY: one entry.
    assert_eq!(unsafe { libc::poll(&raw mut event, 1, 0) }, 0, "the completion says it all");
    destroy(one);
    destroy(other);
}

#[test]
fn inline_data_of_any_length_are_refused_beyond_the_limit() {
    let bench = Bench::new(16);
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
