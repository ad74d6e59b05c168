//! Extended reliable connections within one process: the cases that the conformance suite leaves to
//! a device.

use std::ptr;

use rdma_mummy_sys::types::*;
use rdma_mummy_sys::verbs;

use crate::verbs::bench::*;
use crate::verbs::testing::{errno, table};

/// An XRC domain with a shared receive queue, and a connection to a target in it.
struct XrcFixture {
    xrcd: *mut ibv_xrcd,
    srq: *mut ibv_srq,
    number: u32,
    initiator: *mut ibv_qp,
    target: *mut ibv_qp,
}

impl XrcFixture {
    fn new(bench: &VerbsFixture) -> Self {
        use ibv_srq_init_attr_mask as M;
        let mask = ibv_xrcd_init_attr_mask::IBV_XRCD_INIT_ATTR_FD.0
            | ibv_xrcd_init_attr_mask::IBV_XRCD_INIT_ATTR_OFLAGS.0;
        let mut open = ibv_xrcd_init_attr { comp_mask: mask, fd: -1, oflags: libc::O_CREAT };
        // SAFETY: all objects are live; attributes and results are local.
        unsafe {
            let xrcd = verbs::ibv_open_xrcd(bench.opened.0, &raw mut open);
            assert!(!xrcd.is_null(), "errno {}", errno());
            let mut init = ibv_srq_init_attr_ex {
                attr: ibv_srq_attr { max_wr: 8, max_sge: 1, srq_limit: 0 },
                comp_mask: M::IBV_SRQ_INIT_ATTR_TYPE.0
                    | M::IBV_SRQ_INIT_ATTR_PD.0
                    | M::IBV_SRQ_INIT_ATTR_XRCD.0
                    | M::IBV_SRQ_INIT_ATTR_CQ.0,
                srq_type: ibv_srq_type::IBV_SRQT_XRC,
                pd: bench.pd,
                xrcd,
                cq: bench.cq,
                ..ibv_srq_init_attr_ex::default()
            };
            let srq = verbs::ibv_create_srq_ex(table(), bench.opened.0, &raw mut init);
            assert!(!srq.is_null(), "errno {}", errno());
            let mut number = 0;
            assert_eq!(verbs::ibv_get_srq_num(srq, &raw mut number), 0);
            let (initiator, target) = pair_in(bench, xrcd);
            Self { xrcd, srq, number, initiator, target }
        }
    }

    /// Another connection, with a target in the same domain.
    fn another_pair(&self, bench: &VerbsFixture) -> (*mut ibv_qp, *mut ibv_qp) {
        // SAFETY: the domain is live.
        unsafe { pair_in(bench, self.xrcd) }
    }

    fn send(&self, bench: &VerbsFixture, id: u64) {
        let number = self.number;
        assert_eq!(bench.send(self.initiator, id, 8, |wr| wr.qp_type.xrc.remote_srqn = number), 0);
    }

    fn end(self) {
        destroy(self.initiator);
        destroy(self.target);
        // SAFETY: nothing uses the objects any more.
        unsafe {
            assert_eq!((table().ibv_destroy_srq)(self.srq), 0);
            assert_eq!(verbs::ibv_close_xrcd(self.xrcd), 0);
        }
    }
}

/// A connected pair whose target is in `xrcd`.
///
/// # Safety
///
/// The domain is live.
unsafe fn pair_in(bench: &VerbsFixture, xrcd: *mut ibv_xrcd) -> (*mut ibv_qp, *mut ibv_qp) {
    let mut init = ibv_qp_init_attr_ex {
        qp_type: ibv_qp_type::IBV_QPT_XRC_RECV,
        comp_mask: ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_XRCD.0,
        xrcd,
        ..ibv_qp_init_attr_ex::default()
    };
    // SAFETY: the caller guarantees a live domain, and the context is open.
    let target = unsafe { verbs::ibv_create_qp_ex(table(), bench.opened.0, &raw mut init) };
    assert!(!target.is_null(), "errno {}", errno());
    let initiator = bench.qp(ibv_qp_type::IBV_QPT_XRC_SEND, ptr::null_mut());
    bench.connect([initiator, target]);
    (initiator, target)
}

fn event(bench: &VerbsFixture) -> Option<ibv_async_event> {
    // SAFETY: the context is open, and an empty queue is not waited for.
    unsafe {
        let mut file = libc::pollfd { fd: (*bench.opened.0).async_fd, events: libc::POLLIN, revents: 0 };
        if libc::poll(&raw mut file, 1, 0) != 1 {
            return None;
        }
        let mut event = ibv_async_event::default();
        assert_eq!((table().ibv_get_async_event)(bench.opened.0, &raw mut event), 0);
        Some(event)
    }
}

#[test]
fn a_completion_names_both_ends() {
    let bench = VerbsFixture::new(16);
    let ends = XrcFixture::new(&bench);
    for id in 0..3 {
        assert_eq!(bench.receive_shared(ends.srq, id), 0);
        ends.send(&bench, 9);
        let found = bench.poll();
        let wc = found.iter().find(|wc| wc.opcode.0 & ibv_wc_opcode::IBV_WC_RECV.0 != 0).expect("a receive");
        assert_eq!((wc.wr_id, wc.status), (id, SUCCESS));
        assert_eq!((wc.qp_num, wc.src_qp), (number(ends.target), number(ends.initiator)));
    }
    ends.end();
}

#[test]
fn invalid_xrc_calls_are_refused() {
    let bench = VerbsFixture::new(16);
    let ends = XrcFixture::new(&bench);
    // A target sends nothing, and a request on a connection of another type names no shared receive
    // queue.
    assert_eq!(bench.send(ends.target, 1, 8, |_| {}), libc::ENOMEM);
    // An XRC shared receive queue serves messages by its number only, because another queue pair
    // that used it could outlive the number.
    let caps = ibv_qp_cap { max_send_wr: 1, max_send_sge: 1, ..ibv_qp_cap::default() };
    let mut init = ibv_qp_init_attr {
        send_cq: bench.cq,
        recv_cq: bench.cq,
        srq: ends.srq,
        cap: caps,
        qp_type: ibv_qp_type::IBV_QPT_RC,
        ..ibv_qp_init_attr::default()
    };
    // SAFETY: `bench` and `ends` own the domain and the queues, which live until `ends.end`; `init`
    // is a local.
    let refused = unsafe { (table().ibv_create_qp)(bench.pd, &raw mut init) };
    assert_eq!((refused.is_null(), errno()), (true, libc::EINVAL));
    // An initiator cannot be created with operations that it cannot post.
    use ibv_qp_create_send_ops_flags as F;
    for operation in [F::IBV_QP_EX_WITH_SEND_WITH_INV, F::IBV_QP_EX_WITH_FLUSH, F::IBV_QP_EX_WITH_BIND_MW] {
        let mut init = ibv_qp_init_attr_ex {
            send_cq: bench.cq,
            cap: caps,
            qp_type: ibv_qp_type::IBV_QPT_XRC_SEND,
            comp_mask: ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD.0
                | ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS.0,
            pd: bench.pd,
            send_ops_flags: operation.0.into(),
            ..ibv_qp_init_attr_ex::default()
        };
        // SAFETY: `bench` and `ends` own the objects that `init` names, which live until
        // `ends.end`.
        let refused = unsafe { verbs::ibv_create_qp_ex(table(), bench.opened.0, &raw mut init) };
        assert_eq!((refused.is_null(), errno()), (true, libc::EOPNOTSUPP));
    }
    let basic = bench.srq(4);
    let mut none = 0;
    // SAFETY: `bench` made `basic` just now, and the last call destroys it once.
    unsafe {
        assert_eq!(verbs::ibv_get_srq_num(basic, &raw mut none), libc::EINVAL);
        assert_eq!((table().ibv_destroy_srq)(basic), 0);
    }
    ends.end();
}

#[test]
fn invalid_receive_fails_its_target_only() {
    let bench = VerbsFixture::new(16);
    let ends = XrcFixture::new(&bench);
    let (initiator, target) = ends.another_pair(&bench);
    let access = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0 as i32;
    // SAFETY: the domain and the memory are live; nobody uses the region when it is deregistered.
    unsafe {
        let mr = verbs::ibv_reg_mr(table(), bench.pd, bench.memory.cast(), SIZE, access);
        let mut sge = ibv_sge { addr: bench.at(0), length: 64, lkey: (*mr).lkey };
        let mut wr = ibv_recv_wr { wr_id: 1, sg_list: &raw mut sge, num_sge: 1, ..ibv_recv_wr::default() };
        let mut bad = ptr::null_mut();
        assert_eq!(verbs::ibv_post_srq_recv(ends.srq, &raw mut wr, &raw mut bad), 0);
        // A short message waits in the slot until it is scattered.
        ends.send(&bench, 9);
        assert_eq!((table().ibv_dereg_mr)(mr), 0);
    }
    let mut results = bench.results();
    results.sort_unstable_by_key(|result| result.0);
    assert_eq!(results, [(1, ibv_wc_status::IBV_WC_LOC_PROT_ERR), (9, SUCCESS)]);
    let states = [ends.target, target].map(|qp| inner(qp).state());
    assert_eq!(states, [ibv_qp_state::IBV_QPS_ERR, ibv_qp_state::IBV_QPS_RTS]);
    // The shared receive queue stays usable.
    assert_eq!(bench.receive_shared(ends.srq, 2), 0);
    let number = ends.number;
    assert_eq!(bench.send(initiator, 10, 8, |wr| wr.qp_type.xrc.remote_srqn = number), 0);
    assert_eq!(bench.results().len(), 2);
    destroy(initiator);
    destroy(target);
    ends.end();
}

#[test]
#[cfg_attr(miri, ignore = "the kernel waits for events")]
fn every_handle_gets_the_events() {
    let bench = VerbsFixture::new(16);
    let ends = XrcFixture::new(&bench);
    use ibv_qp_open_attr_mask as M;
    let mut open = ibv_qp_open_attr {
        comp_mask: M::IBV_QP_OPEN_ATTR_NUM.0 | M::IBV_QP_OPEN_ATTR_XRCD.0 | M::IBV_QP_OPEN_ATTR_TYPE.0,
        qp_num: number(ends.target),
        xrcd: ends.xrcd,
        qp_type: ibv_qp_type::IBV_QPT_XRC_RECV,
        ..ibv_qp_open_attr::default()
    };
    // SAFETY: `bench` owns the context and `ends` the XRC domain; both live until the end of the
    // test.
    let opened = unsafe { verbs::ibv_open_qp(bench.opened.0, &raw mut open) };
    assert!(!opened.is_null(), "errno {}", errno());
    // No queue has this number, which belongs to this process, so the target fails.
    let nobody = ends.number ^ 0x1000;
    assert_eq!(bench.send(ends.initiator, 1, 8, |wr| wr.qp_type.xrc.remote_srqn = nobody), 0);
    assert_eq!(bench.results(), [(1, ibv_wc_status::IBV_WC_REM_ACCESS_ERR)]);
    let mut notified = Vec::new();
    while let Some(mut event) = event(&bench) {
        assert_eq!(event.event_type, ibv_event_type::IBV_EVENT_QP_REQ_ERR);
        // SAFETY: the element of this event is a queue pair. It is acknowledged once.
        unsafe {
            notified.push(event.element.qp);
            (table().ibv_ack_async_event)(&raw mut event);
        }
    }
    assert_eq!(notified, [ends.target, opened]);
    destroy(opened);
    ends.end();
}
