//! Attributes that a queue pair is given and reports, and the attributes and requests that are
//! refused.

use std::ptr;

use rdma_mummy_sys::types::*;
use rdma_mummy_sys::verbs;

use crate::verbs::bench::*;
use crate::verbs::testing::{errno, table};

fn query(qp: *mut ibv_qp, mask: i32) -> (i32, ibv_qp_attr, ibv_qp_init_attr) {
    let (mut attr, mut init) = (ibv_qp_attr::default(), ibv_qp_init_attr::default());
    // SAFETY: the queue pair is live, and both result pointers are valid.
    let error = unsafe { (table().ibv_query_qp)(qp, &raw mut attr, mask, &raw mut init) };
    (error, attr, init)
}

#[test]
fn query_returns_the_attributes_that_were_set() {
    let bench = VerbsFixture::new(16);
    let srq = bench.srq(2);
    let [one, other] = [ptr::null_mut(), srq].map(|srq| bench.qp(ibv_qp_type::IBV_QPT_RC, srq));
    let (error, attr, init) = query(one, ibv_qp_attr_mask::IBV_QP_STATE.0 as i32);
    assert_eq!(
        (error, attr.qp_state, init.qp_type),
        (0, ibv_qp_state::IBV_QPS_RESET, ibv_qp_type::IBV_QPT_RC)
    );
    bench.connect([one, other]);
    let (error, attr, init) = query(one, ibv_qp_attr_mask::IBV_QP_AV.0 as i32);
    assert_eq!(
        (error, attr.qp_state, attr.cur_qp_state),
        (0, ibv_qp_state::IBV_QPS_RTS, ibv_qp_state::IBV_QPS_RTS)
    );
    assert_eq!((attr.dest_qp_num, attr.port_num, attr.path_mtu), (number(other), 1, ibv_mtu::IBV_MTU_1024));
    assert_eq!((attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.min_rnr_timer), (1, 1, 7, 1));
    // SAFETY: both GIDs are bytes.
    assert_eq!(unsafe { (attr.ah_attr.grh.dgid.raw, attr.ah_attr.is_global) }, unsafe {
        (bench.ah_attr().grh.dgid.raw, 1)
    });
    assert_eq!((init.send_cq, init.recv_cq, init.srq), (bench.cq, bench.cq, ptr::null_mut()));
    assert_eq!(init.cap.max_send_wr, attr.cap.max_send_wr);
    assert_eq!(query(other, 0).2.srq, srq);
    assert_eq!(query(one, 1 << 30).0, libc::EOPNOTSUPP);
    // The next message continues the sequence numbers.
    let psn = query(one, 0).1.sq_psn;
    assert_eq!((bench.receive_shared(srq, 1), bench.send(one, 2, 8, |_| {})), (0, 0));
    assert_eq!((bench.results().len(), query(one, 0).1.sq_psn), (2, psn + 1));
    destroy(one);
    destroy(other);
    // SAFETY: no queue pair uses the shared queue any more.
    assert_eq!(unsafe { (table().ibv_destroy_srq)(srq) }, 0);
}

#[test]
fn attributes_out_of_range_change_nothing() {
    use ibv_qp_attr_mask as M;
    let bench = VerbsFixture::new(16);
    let [one, other] = [(); 2].map(|()| bench.qp(ibv_qp_type::IBV_QPT_RC, ptr::null_mut()));
    let initial = M::IBV_QP_STATE | M::IBV_QP_PORT | M::IBV_QP_PKEY_INDEX | M::IBV_QP_ACCESS_FLAGS;
    let refused = |qp, state, mask: M, change: fn(&mut ibv_qp_attr)| {
        let mut attr = in_state(state).0;
        (attr.port_num, attr.ah_attr, attr.path_mtu) = (1, bench.ah_attr(), ibv_mtu::IBV_MTU_1024);
        change(&mut attr);
        let before = query(qp, 0).1.qp_state;
        assert_eq!(modify(qp, (attr, mask.0)), libc::EINVAL, "{mask:?}");
        assert_eq!(query(qp, 0).1.qp_state, before);
    };
    let init = ibv_qp_state::IBV_QPS_INIT;
    refused(one, init, initial, |attr| attr.port_num = 0);
    refused(one, init, initial, |attr| attr.port_num = 3);
    refused(one, init, initial, |attr| attr.pkey_index = 1);
    refused(one, init, M::IBV_QP_STATE | M::IBV_QP_PORT, |_| {});
    refused(one, ibv_qp_state::IBV_QPS_RTS, M::IBV_QP_STATE, |_| {});
    refused(one, init, initial | M::IBV_QP_CUR_STATE, |attr| attr.cur_qp_state = ibv_qp_state::IBV_QPS_RTS);
    bench.init(one);
    bench.init(other);
    let receive = M::IBV_QP_STATE
        | M::IBV_QP_AV
        | M::IBV_QP_PATH_MTU
        | M::IBV_QP_DEST_QPN
        | M::IBV_QP_RQ_PSN
        | M::IBV_QP_MAX_DEST_RD_ATOMIC
        | M::IBV_QP_MIN_RNR_TIMER;
    let ready = ibv_qp_state::IBV_QPS_RTR;
    refused(one, ready, receive, |attr| attr.ah_attr.is_global = 0);
    refused(one, ready, receive, |attr| attr.ah_attr.port_num = 9);
    refused(one, ready, receive, |attr| attr.ah_attr.grh.sgid_index = 200);
    refused(one, ready, receive, |attr| attr.path_mtu = ibv_mtu(0));
    refused(one, ready, receive, |attr| attr.path_mtu = ibv_mtu(6));
    refused(one, ready, receive, |attr| attr.max_dest_rd_atomic = 255);
    bench.ready(one, number(other), |_| {});
    bench.ready(other, number(one), |_| {});
    assert_eq!((bench.receive(other, 1, 64), bench.send(one, 2, 8, |_| {})), (0, 0));
    assert_eq!(bench.results().len(), 2);
    destroy(one);
    destroy(other);
}

#[test]
fn first_invalid_request_of_a_list_is_reported() {
    let bench = VerbsFixture::new(16);
    let [one, other] = [(); 2].map(|()| bench.qp(ibv_qp_type::IBV_QPT_RC, ptr::null_mut()));
    let datagram = bench.qp(ibv_qp_type::IBV_QPT_UD, ptr::null_mut());
    assert_eq!(bench.receive(one, 1, 8), libc::EINVAL, "the queue pair is in RESET");
    assert_eq!(bench.send(one, 1, 8, |_| {}), libc::EINVAL);
    bench.connect([one, other]);
    bench.init(datagram);
    bench.ready(datagram, 0, |_| {});
    let inline = ibv_send_flags::IBV_SEND_INLINE.0;
    assert_eq!(bench.send(one, 1, 8, |wr| wr.num_sge = -1), libc::EINVAL);
    assert_eq!(bench.send(one, 1, 8, |wr| wr.num_sge = 3), libc::EINVAL);
    assert_eq!(bench.send(one, 1, 8, |wr| wr.opcode = ibv_wr_opcode(99)), libc::EINVAL);
    assert_eq!(bench.send(one, 1, 17, |wr| wr.send_flags = inline), libc::EINVAL);
    assert_eq!(bench.send(datagram, 1, 8, |_| {}), libc::EINVAL, "no address handle");
    assert_ne!(bench.receive_list(one, 1, &mut [bench.sge(0, 8); 3]), 0);
    // The first request of the list is posted, the second is reported as bad, the third is not
    // looked at.
    let mut sge = bench.sge(0, 8);
    let mut list: [ibv_send_wr; 3] = core::array::from_fn(|at| ibv_send_wr {
        wr_id: at as u64,
        sg_list: &raw mut sge,
        num_sge: if at == 1 { 9 } else { 1 },
        opcode: ibv_wr_opcode::IBV_WR_SEND,
        send_flags: ibv_send_flags::IBV_SEND_SIGNALED.0,
        ..ibv_send_wr::default()
    });
    let first = list.as_mut_ptr();
    assert_eq!(bench.receive(other, 7, 64), 0);
    // SAFETY: the queue pair is live, and `list` links the requests in order.
    unsafe {
        (*first).next = first.add(1);
        (*first.add(1)).next = first.add(2);
        let mut bad = ptr::null_mut();
        assert_eq!(verbs::ibv_post_send(one, first, &raw mut bad), libc::EINVAL);
        assert_eq!(bad, first.add(1));
    }
    let mut results = bench.results();
    results.sort_by_key(|result| result.0);
    assert_eq!(results, [(0, SUCCESS), (7, SUCCESS)]);
    [one, other, datagram].into_iter().for_each(destroy);
}

#[test]
fn query_srq_returns_the_limit() {
    let bench = VerbsFixture::new(16);
    let lib = table();
    let mut init = ibv_srq_init_attr_ex {
        comp_mask: ibv_srq_init_attr_mask::IBV_SRQ_INIT_ATTR_PD.0
            | ibv_srq_init_attr_mask::IBV_SRQ_INIT_ATTR_TYPE.0,
        srq_type: ibv_srq_type::IBV_SRQT_BASIC,
        pd: bench.pd,
        attr: ibv_srq_attr { max_wr: 4, max_sge: 2, srq_limit: 0 },
        ..ibv_srq_init_attr_ex::default()
    };
    // SAFETY: context and domain are live, and the queue until it is destroyed.
    unsafe {
        let create =
            rdma_mummy_sys::verbs_get_ctx_op!(bench.opened.0, create_srq_ex).expect("the table has it");
        let srq = create(bench.opened.0, &raw mut init);
        assert!(!srq.is_null());
        let mut attr = ibv_srq_attr { srq_limit: 3, ..ibv_srq_attr::default() };
        let [limit, size] =
            [ibv_srq_attr_mask::IBV_SRQ_LIMIT, ibv_srq_attr_mask::IBV_SRQ_MAX_WR].map(|mask| mask.0 as i32);
        assert_eq!((lib.ibv_modify_srq)(srq, &raw mut attr, limit), 0);
        assert_eq!((lib.ibv_modify_srq)(srq, &raw mut attr, size), libc::EINVAL);
        assert_eq!(bench.coming_event(), Some(ibv_event_type::IBV_EVENT_SRQ_LIMIT_REACHED));
        attr.srq_limit = 5;
        assert_eq!((lib.ibv_modify_srq)(srq, &raw mut attr, limit), libc::EINVAL);
        for number in 0..4 {
            assert_eq!(bench.receive_shared(srq, number), 0);
        }
        assert_eq!(bench.receive_shared(srq, 4), libc::ENOMEM);
        attr.srq_limit = 2;
        assert_eq!((lib.ibv_modify_srq)(srq, &raw mut attr, limit), 0);
        assert_eq!((lib.ibv_query_srq)(srq, &raw mut attr), 0);
        assert_eq!((attr.max_wr, attr.max_sge, attr.srq_limit), (4, 2, 2));
        assert_eq!((lib.ibv_destroy_srq)(srq), 0);

        let refused = |change: fn(&mut ibv_srq_init_attr_ex), error| {
            let mut init = ibv_srq_init_attr_ex { attr: ibv_srq_attr { max_wr: 4, ..init.attr }, ..init };
            change(&mut init);
            assert!(create(bench.opened.0, &raw mut init).is_null());
            assert_eq!(errno(), error);
        };
        refused(|init| init.srq_type = ibv_srq_type::IBV_SRQT_TM, libc::EOPNOTSUPP);
        refused(|init| init.srq_type = ibv_srq_type::IBV_SRQT_XRC, libc::EINVAL);
        refused(|init| init.comp_mask |= 1 << 31, libc::EOPNOTSUPP);
        refused(|init| init.pd = ptr::null_mut(), libc::EINVAL);
        refused(|init| init.attr.max_wr = 0, libc::EINVAL);
        refused(|init| init.attr.max_sge = u32::MAX, libc::EINVAL);
    }
}

#[test]
fn unknown_ece_options_are_removed() {
    let bench = VerbsFixture::new(4);
    let qp = bench.qp(ibv_qp_type::IBV_QPT_RC, ptr::null_mut());
    let (query, set) =
        (table().ibv_query_ece.expect("the table has it"), table().ibv_set_ece.expect("the table has it"));
    let mut ece = ibv_ece::default();
    // SAFETY: the queue pair is live, and the result pointer is valid.
    unsafe {
        assert_eq!(query(qp, &raw mut ece), 0);
        let known = ece.options;
        assert_ne!(known, 0);
        ece.options = u32::MAX;
        assert_eq!((set(qp, &raw mut ece), ece.options), (0, known));
        ece.vendor_id += 1;
        assert_eq!(set(qp, &raw mut ece), libc::EINVAL);
        ece.vendor_id -= 1;
        ece.options = 0;
        assert_eq!((set(qp, &raw mut ece), query(qp, &raw mut ece)), (0, 0));
        assert_eq!(ece.options, 0);
    }
    destroy(qp);
}
