use std::ptr;

use rdma_mummy_sys::types::*;
use rdma_mummy_sys::verbs;

use crate::objects::completion::Cqe;
use crate::verbs::completion_queue::cq_of;
use crate::verbs::testing::{OpenedDevice, errno, table};

#[test]
fn calls_of_a_forked_child_fail_and_its_parents_continue() {
    let opened = OpenedDevice::new(0);
    let (lib, pd) = (table(), opened.pd());
    let mut memory = 0u64;
    let addr = (&raw mut memory).cast();
    // SAFETY: all objects live until the parent destroys them.
    unsafe {
        let channel = (lib.ibv_create_comp_channel)(opened.0);
        let cq = opened.cq(4, channel);
        let mut attr = ibv_cq_init_attr_ex { cqe: 4, ..ibv_cq_init_attr_ex::default() };
        let cq_ex = verbs::ibv_create_cq_ex(opened.0, &raw mut attr);
        let mr = verbs::ibv_reg_mr(lib, pd, addr, 8, 0);
        let cap = ibv_qp_cap { max_send_wr: 1, max_recv_wr: 1, ..ibv_qp_cap::default() };
        let qp_type = ibv_qp_type::IBV_QPT_RC;
        let mut init =
            ibv_qp_init_attr { send_cq: cq, recv_cq: cq, qp_type, cap, ..ibv_qp_init_attr::default() };
        let qp = (lib.ibv_create_qp)(pd, &raw mut init);
        let srq_attr = ibv_srq_attr { max_wr: 1, max_sge: 1, srq_limit: 0 };
        let mut srq_init = ibv_srq_init_attr { attr: srq_attr, ..ibv_srq_init_attr::default() };
        let srq = (lib.ibv_create_srq)(pd, &raw mut srq_init);
        assert!(!qp.is_null() && !srq.is_null());
        assert_eq!(verbs::ibv_req_notify_cq(cq, 0), 0);
        cq_of(cq).push(Cqe::default(), false);

        let child = libc::fork();
        if child == 0 {
            // No call may wait for a thread that the child does not have, nor panic.
            let mut wc = ibv_wc::default();
            let mut poll = ibv_poll_cq_attr::default();
            let (mut fired, mut cookie) = (ptr::null_mut(), ptr::null_mut());
            let mut event = ibv_async_event {
                element: ibv_async_event__bindgen_ty_1 { port_num: 0 },
                event_type: ibv_event_type(0),
            };
            let null = |is_null: bool| is_null && errno() == libc::EIO;
            let minus_one = |result: i32| result == -1 && errno() == libc::EIO;
            let mut attr = ibv_qp_attr::default();
            let (mut send, mut receive) = (ibv_send_wr::default(), ibv_recv_wr::default());
            let (mut bad_send, mut bad_receive) = (ptr::null_mut(), ptr::null_mut());
            let mut srq_attr = srq_attr;
            let state = ibv_qp_attr_mask::IBV_QP_STATE.0 as i32;
            let results = [
                null((lib.ibv_create_qp)(pd, &raw mut init).is_null()),
                null((lib.ibv_create_srq)(pd, &raw mut srq_init).is_null()),
                (lib.ibv_modify_qp)(qp, &raw mut attr, state) == libc::EIO,
                (lib.ibv_query_qp)(qp, &raw mut attr, state, &raw mut init) == libc::EIO,
                verbs::ibv_post_send(qp, &raw mut send, &raw mut bad_send) == libc::EIO,
                verbs::ibv_post_recv(qp, &raw mut receive, &raw mut bad_receive) == libc::EIO,
                verbs::ibv_post_srq_recv(srq, &raw mut receive, &raw mut bad_receive) == libc::EIO,
                (lib.ibv_modify_srq)(srq, &raw mut srq_attr, 2) == libc::EIO,
                (lib.ibv_query_srq)(srq, &raw mut srq_attr) == libc::EIO,
                (lib.ibv_destroy_qp)(qp) == libc::EIO,
                (lib.ibv_destroy_srq)(srq) == libc::EIO,
                null((lib.ibv_alloc_pd)(opened.0).is_null()),
                null((lib.ibv_reg_mr)(pd, addr, 8, 0).is_null()),
                null((lib.ibv_create_cq)(opened.0, 4, ptr::null_mut(), ptr::null_mut(), 0).is_null()),
                null((lib.ibv_create_comp_channel)(opened.0).is_null()),
                minus_one(verbs::ibv_poll_cq(cq, 1, &raw mut wc)),
                minus_one((lib.ibv_get_cq_event)(channel, &raw mut fired, &raw mut cookie)),
                minus_one((lib.ibv_get_async_event)(opened.0, &raw mut event)),
                verbs::ibv_req_notify_cq(cq, 0) == libc::EIO,
                verbs::ibv_start_poll(cq_ex, &raw mut poll) == libc::EIO,
                (lib.ibv_resize_cq)(cq, 8) == libc::EIO,
                (lib.ibv_destroy_cq)(cq) == libc::EIO,
                (lib.ibv_dereg_mr)(mr) == libc::EIO,
                (lib.ibv_rereg_mr)(mr, 4, ptr::null_mut(), ptr::null_mut(), 0, 0) == -4,
            ];
            libc::_exit(results.iter().position(|fine| !fine).map_or(0, |wrong| wrong as i32 + 1));
        }
        assert!(child > 0);
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        assert!(libc::WIFEXITED(status), "the child was ended by signal {}", libc::WTERMSIG(status));
        assert_eq!(libc::WEXITSTATUS(status), 0, "this call, counted from 1, did not fail with EIO");

        // The parent's event still waits, and all its objects still work.
        let (mut fired, mut cookie) = (ptr::null_mut(), ptr::null_mut());
        assert_eq!((lib.ibv_get_cq_event)(channel, &raw mut fired, &raw mut cookie), 0);
        assert_eq!(fired, cq);
        (lib.ibv_ack_cq_events)(cq, 1);
        let mut wc = ibv_wc::default();
        assert_eq!(verbs::ibv_poll_cq(cq, 1, &raw mut wc), 1);
        assert_eq!((lib.ibv_dereg_mr)(mr), 0);
        assert_eq!(((lib.ibv_destroy_qp)(qp), (lib.ibv_destroy_srq)(srq)), (0, 0));
        assert_eq!(((lib.ibv_destroy_cq)(cq), (lib.ibv_destroy_cq)(cq_ex.cast())), (0, 0));
        assert_eq!((lib.ibv_destroy_comp_channel)(channel), 0);
        assert_eq!((lib.ibv_dealloc_pd)(pd), 0);
    }
}
