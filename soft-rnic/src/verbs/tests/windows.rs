//! Memory windows: changes between a request and its execution, and false claims of invalidation by
//! a peer.

use std::ptr;

use rdma_mummy_sys::types::*;
use rdma_mummy_sys::verbs;

use crate::objects::memory_window::mw_of;
use crate::shared::slot::Delivery;
use crate::verbs::bench::*;
use crate::verbs::testing::{errno, table};

const RC: ibv_qp_type = ibv_qp_type::IBV_QPT_RC;
const REFUSED: ibv_wc_status = ibv_wc_status::IBV_WC_REM_ACCESS_ERR;

/// A domain with a region that windows are bound to.
struct WindowsFixture<'a> {
    bench: &'a VerbsFixture,
    pd: *mut ibv_pd,
    mr: *mut ibv_mr,
}

impl<'a> WindowsFixture<'a> {
    fn of(bench: &'a VerbsFixture, pd: *mut ibv_pd) -> Self {
        let access = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE | ibv_access_flags::IBV_ACCESS_MW_BIND;
        // SAFETY: the domain and the memory are live until `end`.
        let mr = unsafe { verbs::ibv_reg_mr(table(), pd, bench.memory.cast(), SIZE, access.0 as i32) };
        assert!(!mr.is_null(), "errno {}", errno());
        Self { bench, pd, mr }
    }

    fn window(&self, mw_type: ibv_mw_type) -> *mut ibv_mw {
        // SAFETY: the domain is live.
        let mw = unsafe { verbs::ibv_alloc_mw(self.pd, mw_type) };
        assert!(!mw.is_null(), "errno {}", errno());
        mw
    }

    /// Posts a request that binds the window to the first word of the memory.
    fn bind(&self, qp: *mut ibv_qp, wr_id: u64, mw: *mut ibv_mw, rkey: u32) {
        let access = ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0;
        let bind_info =
            ibv_mw_bind_info { mr: self.mr, addr: self.bench.at(0), length: 8, mw_access_flags: access };
        let posted = self.bench.send(qp, wr_id, 0, |wr| {
            wr.opcode = ibv_wr_opcode::IBV_WR_BIND_MW;
            wr.__bindgen_anon_2.bind_mw = ibv_send_wr__bindgen_ty_4__bindgen_ty_1 { mw, rkey, bind_info };
        });
        assert_eq!(posted, 0);
    }

    /// A window that is bound to the queue pair, and its key.
    fn bound(&self, qp: *mut ibv_qp) -> (*mut ibv_mw, u32) {
        let mw = self.window(ibv_mw_type::IBV_MW_TYPE_2);
        let key = next(mw);
        self.bind(qp, 90, mw, key);
        assert_eq!(self.bench.results(), [(90, SUCCESS)]);
        (mw, key)
    }

    /// The status of an RDMA WRITE with this key.
    fn write(&self, qp: *mut ibv_qp, rkey: u32) -> ibv_wc_status {
        let remote_addr = self.bench.at(0);
        let posted = self.bench.send(qp, 91, 8, |wr| {
            wr.opcode = ibv_wr_opcode::IBV_WR_RDMA_WRITE;
            wr.wr.rdma = ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr, rkey };
        });
        assert_eq!(posted, 0);
        let [(91, status)] = self.bench.results()[..] else { panic!("one completion") };
        status
    }

    fn end(self) {
        // SAFETY: nothing uses the region any more.
        assert_eq!(unsafe { (table().ibv_dereg_mr)(self.mr) }, 0);
    }
}

/// The key that a window of type 2 can be bound with next.
fn next(mw: *mut ibv_mw) -> u32 {
    // SAFETY: callers pass a window of `window`, which lives until `dealloc`.
    verbs::ibv_inc_rkey(unsafe { (*mw).rkey })
}

fn dealloc(mw: *mut ibv_mw) {
    // SAFETY: the window lives, and is not used any more.
    assert_eq!(unsafe { verbs::ibv_dealloc_mw(mw) }, 0);
}

fn send_with_inv(bench: &VerbsFixture, qp: *mut ibv_qp, wr_id: u64, key: u32) {
    let posted = bench.send(qp, wr_id, 8, |wr| {
        wr.opcode = ibv_wr_opcode::IBV_WR_SEND_WITH_INV;
        wr.__bindgen_anon_1.invalidate_rkey = key;
    });
    assert_eq!(posted, 0);
}

/// Fills the next receive with an empty message that claims to have invalidated a key, as any
/// process that maps the segment can.
fn claim_invalidated(qp: *mut ibv_qp, key: u32) {
    let state = inner(qp);
    let (segment, descriptor) = (state.rnic.node().segment(), state.descriptor());
    let slots = segment.slots(&descriptor.slots).expect("a receive queue");
    let index = state.progress_words().cursor() % slots.count();
    let slot = segment.slot(&slots, index).expect("a slot");
    let claim = slot.header.claim(0).expect("a receive");
    let wc_flags = ibv_wc_flags::IBV_WC_WITH_INV.0 as u8;
    assert!(slot.header.finish(claim, &Delivery { wc_flags, imm_data: key, ..Delivery::default() }));
    state.progress_words().set_cursor(slots.next(index));
    segment.completion_queue(descriptor.recv_cq).expect("a queue").announce(descriptor.source, false);
}

/// The only completion: its status, and the key that it reports as invalidated.
fn reported(bench: &VerbsFixture) -> (ibv_wc_status, Option<u32>) {
    let [wc] = bench.poll()[..] else { panic!("one completion") };
    let with_inv = wc.wc_flags & ibv_wc_flags::IBV_WC_WITH_INV.0 != 0;
    // SAFETY: any number is a key; the flag says whether it is valid.
    let key = unsafe { wc.__bindgen_anon_1.invalidated_rkey };
    (wc.status, with_inv.then_some(key))
}

#[test]
fn window_bound_again_before_the_poll_stays_bound() {
    let bench = VerbsFixture::new(16);
    let fixture = WindowsFixture::of(&bench, bench.pd);
    let [one, other] = bench.pair(RC);
    let (mw, key) = fixture.bound(other);
    (1..=3).for_each(|id| assert_eq!(bench.receive(other, id, 64), 0));
    send_with_inv(&bench, one, 10, key);
    // The program may bind the same key again. After a second round, both messages still wait to be
    // polled.
    fixture.bind(other, 11, mw, key);
    send_with_inv(&bench, one, 12, key);
    fixture.bind(other, 13, mw, key);
    let mut results = bench.results();
    results.sort_unstable_by_key(|result| result.0);
    assert_eq!(results, [1, 2, 10, 11, 12, 13].map(|id| (id, SUCCESS)));
    assert_eq!(fixture.write(one, key), SUCCESS);
    // The polls have used up both invalidations, so a later message cannot refer to them.
    claim_invalidated(other, key);
    assert_eq!(reported(&bench), (SUCCESS, Some(key)));
    assert_eq!(fixture.write(one, key), REFUSED);
    destroy(one);
    destroy(other);
    dealloc(mw);
    fixture.end();
}

#[test]
fn claimed_invalidation_by_a_peer_is_done() {
    let bench = VerbsFixture::new(16);
    let fixture = WindowsFixture::of(&bench, bench.pd);
    let [one, other] = bench.pair(RC);
    let (mw, key) = fixture.bound(other);
    (1..=2).for_each(|id| assert_eq!(bench.receive(other, id, 64), 0));
    // A key that is not valid: the claim is true already.
    claim_invalidated(other, key ^ 1);
    assert_eq!(reported(&bench), (SUCCESS, Some(key ^ 1)));
    assert_eq!(fixture.write(one, key), SUCCESS);
    // A key of this queue pair: the poll invalidates it.
    claim_invalidated(other, key);
    assert_eq!(reported(&bench), (SUCCESS, Some(key)));
    assert_eq!(fixture.write(one, key), REFUSED);
    destroy(one);
    destroy(other);
    dealloc(mw);
    fixture.end();
}

#[test]
fn peer_cannot_invalidate_a_foreign_window() {
    let bench = VerbsFixture::new(16);
    let fixture = WindowsFixture::of(&bench, bench.pd);
    let elsewhere = WindowsFixture::of(&bench, bench.opened.pd());
    let user = bench.pair(RC);
    let neighbour = bench.qp_of(elsewhere.pd, RC, ptr::null_mut());
    let neighbours_peer = bench.qp(RC, ptr::null_mut());
    bench.connect([neighbours_peer, neighbour]);
    let (of_another_pair, pairs_key) = fixture.bound(user[1]);
    let (of_another_domain, domains_key) = elsewhere.bound(neighbour);
    // SAFETY: `bench` owns the region, which lives until the end of the test.
    let regions_key = unsafe { (*bench.mr).rkey };
    let of_type_1 = fixture.window(ibv_mw_type::IBV_MW_TYPE_1);
    let type_1_key = next(of_type_1);
    fixture.bind(user[1], 92, of_type_1, type_1_key);
    assert_eq!(bench.results(), [(92, SUCCESS)]);
    for key in [pairs_key, domains_key, regions_key, type_1_key] {
        let [one, other] = bench.pair(RC);
        assert_eq!(bench.receive(other, 1, 64), 0);
        claim_invalidated(other, key);
        assert_eq!(reported(&bench).0, ibv_wc_status::IBV_WC_REM_INV_REQ_ERR, "{key:#x}");
        assert_eq!(inner(other).state(), ibv_qp_state::IBV_QPS_ERR);
        destroy(one);
        destroy(other);
    }
    for (fixture, qp, key) in [
        (&fixture, user[0], pairs_key),
        (&elsewhere, neighbours_peer, domains_key),
        (&fixture, user[0], regions_key),
        (&fixture, user[0], type_1_key),
    ] {
        assert_eq!(fixture.write(qp, key), SUCCESS, "{key:#x}");
    }
    [user[0], user[1], neighbour, neighbours_peer].into_iter().for_each(destroy);
    [of_another_pair, of_another_domain, of_type_1].into_iter().for_each(dealloc);
    let pd = elsewhere.pd;
    [fixture, elsewhere].into_iter().for_each(WindowsFixture::end);
    // SAFETY: the domain has no objects any more.
    assert_eq!(unsafe { (table().ibv_dealloc_pd)(pd) }, 0);
}

/// Invalidations that were not reported end with the connection.
#[test]
fn invalidations_end_with_their_connection() {
    let bench = VerbsFixture::new(16);
    let fixture = WindowsFixture::of(&bench, bench.pd);
    let [one, other] = bench.pair(RC);
    let (mw, key) = fixture.bound(other);
    assert_eq!(bench.receive(other, 1, 64), 0);
    send_with_inv(&bench, one, 10, key);
    for qp in [one, other] {
        assert_eq!(modify(qp, in_state(ibv_qp_state::IBV_QPS_RESET)), 0);
    }
    bench.results();
    bench.connect([one, other]);
    fixture.bind(other, 11, mw, key);
    assert_eq!(bench.results(), [(11, SUCCESS)]);
    assert_eq!(bench.receive(other, 2, 64), 0);
    claim_invalidated(other, key);
    assert_eq!(reported(&bench), (SUCCESS, Some(key)));
    assert_eq!(fixture.write(one, key), REFUSED);
    destroy(one);
    destroy(other);
    dealloc(mw);
    fixture.end();
}

#[test]
#[cfg_attr(miri, ignore = "takes minutes: it allocates thousands of windows")]
fn bind_ignores_a_new_window_with_the_same_index() {
    let bench = VerbsFixture::new(16);
    let fixture = WindowsFixture::of(&bench, bench.pd);
    let [one, other] = bench.pair(RC);
    let first = fixture.window(ibv_mw_type::IBV_MW_TYPE_2);
    // SAFETY: `window` made it just now, and it lives until `dealloc`.
    let index = unsafe { mw_of(first) }.index();
    // No receive is posted yet, so the request behind must wait.
    assert_eq!(bench.send(one, 10, 8, |_| {}), 0);
    fixture.bind(one, 11, first, next(first));
    let key = next(first);
    dealloc(first);
    // Indices come back in turn, after as many as rest or are in use in all tests.
    let second = (0..10_000).find_map(|_| {
        let mw = fixture.window(ibv_mw_type::IBV_MW_TYPE_2);
        // SAFETY: `window` made it just now, and it lives until `dealloc`.
        let found = unsafe { mw_of(mw) }.index() == index;
        if !found {
            dealloc(mw);
        }
        found.then_some(mw)
    });
    let second = second.expect("the index comes back");
    assert_eq!(bench.receive(other, 1, 64), 0);
    let mut results = bench.wait_for(3);
    results.sort_unstable_by_key(|result| result.0);
    assert_eq!(results, [(1, SUCCESS), (10, SUCCESS), (11, ibv_wc_status::IBV_WC_MW_BIND_ERR)]);
    assert!(inner(one).rnic.regions().read(key).is_none());
    destroy(one);
    destroy(other);
    dealloc(second);
    fixture.end();
}
