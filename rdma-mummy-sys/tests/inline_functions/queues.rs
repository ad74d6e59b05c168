//! Creation and changes of queues and domains.

use core::ffi::{c_int, c_void};
use std::cell::Cell;

use rdma_mummy_sys::types::*;
use rdma_mummy_sys::{Verbs, verbs};

use super::fake::*;
use super::word::*;

context_cases! {
    ibv_create_cq_ex(context: ibv_context, attr: *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex = create_cq_ex;
    ibv_modify_cq(cq: ibv_cq, attr: *mut ibv_modify_cq_attr) -> c_int = modify_cq;
    ibv_open_qp(context: ibv_context, attr: *mut ibv_qp_open_attr) -> *mut ibv_qp = open_qp;
    ibv_modify_qp_rate_limit(qp: ibv_qp, attr: *mut ibv_qp_rate_limit_attr) -> c_int = modify_qp_rate_limit;
    ibv_get_srq_num(srq: ibv_srq, number: *mut u32) -> c_int = get_srq_num;
    ibv_modify_wq(wq: ibv_wq, attr: *mut ibv_wq_attr) -> c_int = modify_wq;
    ibv_destroy_wq(wq: ibv_wq) -> c_int = destroy_wq;
    ibv_create_rwq_ind_table(context: ibv_context, attr: *mut ibv_rwq_ind_table_init_attr) -> *mut ibv_rwq_ind_table
        = create_rwq_ind_table;
    ibv_destroy_rwq_ind_table(table: ibv_rwq_ind_table) -> c_int = destroy_rwq_ind_table;
    ibv_alloc_td(context: ibv_context, attr: *mut ibv_td_init_attr) -> *mut ibv_td = alloc_td;
    ibv_dealloc_td(td: ibv_td) -> c_int = dealloc_td;
    ibv_alloc_parent_domain(context: ibv_context, attr: *mut ibv_parent_domain_init_attr) -> *mut ibv_pd
        = alloc_parent_domain;
    ibv_open_xrcd(context: ibv_context, attr: *mut ibv_xrcd_init_attr) -> *mut ibv_xrcd = open_xrcd;
    ibv_close_xrcd(xrcd: ibv_xrcd) -> c_int = close_xrcd;
}

thread_local! {
    /// The work queue that `create_wq` returns.
    static NEW_WQ: Cell<*mut ibv_wq> = const { Cell::new(core::ptr::null_mut()) };
}

unsafe extern "C" fn create_wq(context: *mut ibv_context, attr: *mut ibv_wq_init_attr) -> *mut ibv_wq {
    record("create_wq", vec![context.word(), attr.word()]);
    NEW_WQ.get()
}

fn table() -> Verbs {
    Verbs {
        ibv_create_qp: recorder!(ibv_create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp),
        ibv_create_srq: recorder!(ibv_create_srq(pd: *mut ibv_pd, attr: *mut ibv_srq_init_attr) -> *mut ibv_srq),
        ..Verbs::unsupported()
    }
}

tests! {
    fn ibv_create_qp_ex() {
        let lib = table();
        let pd = <*mut ibv_pd>::sample(7);
        let only_pd = ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD.0;
        for release in RELEASES {
            let context = FakeContext::shorter_by(release.verbs_context);
            let mut attr = ibv_qp_init_attr_ex { pd, ..Default::default() };
            let attr = &raw mut attr;
            // SAFETY: context and attributes are live in every call.
            let call = |mask: u32| unsafe {
                clear_errno();
                (*attr).comp_mask = mask;
                verbs::ibv_create_qp_ex(&lib, context.ptr(), attr)
            };
            // A protection domain alone is left to the classic function, whatever the context has.
            assert_eq!(call(only_pd), <*mut ibv_qp>::sample(RESULT));
            assert_called("ibv_create_qp", &[pd.word(), attr.word()]);
            for mask in [0, only_pd | 1 << 6, 1 << 6] {
                assert!(call(mask).is_unsupported());
                assert_eq!(calls(), []);
            }
            let operation = recorder!(create_qp_ex(
                context: *mut ibv_context, attr: *mut ibv_qp_init_attr_ex,
            ) -> *mut ibv_qp);
            set!(context.0, verbs_context, create_qp_ex = Some(operation));
            call(only_pd);
            assert_called("ibv_create_qp", &[pd.word(), attr.word()]);
            for mask in [0, only_pd | 1 << 6, 1 << 6] {
                assert_eq!(call(mask), <*mut ibv_qp>::sample(RESULT));
                assert_called("create_qp_ex", &[context.ptr().word(), attr.word()]);
            }
        }
    }

    fn ibv_create_srq_ex() {
        let lib = table();
        let pd = <*mut ibv_pd>::sample(7);
        let (with_type, with_pd) = (
            ibv_srq_init_attr_mask::IBV_SRQ_INIT_ATTR_TYPE.0,
            ibv_srq_init_attr_mask::IBV_SRQ_INIT_ATTR_PD.0,
        );
        let with_xrcd = ibv_srq_init_attr_mask::IBV_SRQ_INIT_ATTR_XRCD.0;
        let (basic, xrc) = (ibv_srq_type::IBV_SRQT_BASIC, ibv_srq_type::IBV_SRQT_XRC);
        let tm = ibv_srq_type::IBV_SRQT_TM;
        // Mask, type, and whether the classic function creates this queue.
        let asked = [
            (with_pd, basic, true),
            // The type is ignored if the mask does not name it.
            (with_pd, xrc, true),
            (with_pd | with_type, basic, true),
            (with_pd | with_type, xrc, false),
            (with_pd | with_type, tm, false),
            (with_type, basic, false),
            (0, basic, false),
            (with_pd | with_xrcd, basic, false),
            (with_pd | with_type | with_xrcd, basic, false),
            (with_pd | 1 << 31, basic, false),
        ];
        for release in RELEASES {
            let context = FakeContext::shorter_by(release.verbs_context);
            let mut attr = ibv_srq_init_attr_ex {
                srq_context: core::ptr::null_mut(),
                attr: ibv_srq_attr { max_wr: 0, max_sge: 0, srq_limit: 0 },
                comp_mask: 0,
                srq_type: basic,
                pd,
                xrcd: core::ptr::null_mut(),
                cq: core::ptr::null_mut(),
                tm_cap: ibv_tm_cap { max_num_tags: 0, max_ops: 0 },
            };
            let attr = &raw mut attr;
            // SAFETY: context and attributes are live in every call.
            let call = |mask: u32, srq_type| unsafe {
                clear_errno();
                (*attr).comp_mask = mask;
                (*attr).srq_type = srq_type;
                verbs::ibv_create_srq_ex(&lib, context.ptr(), attr)
            };
            for (mask, srq_type, classic) in asked {
                if classic {
                    assert_eq!(call(mask, srq_type), <*mut ibv_srq>::sample(RESULT));
                    assert_called("ibv_create_srq", &[pd.word(), attr.word()]);
                } else {
                    assert!(call(mask, srq_type).is_unsupported(), "{mask:#x} {srq_type:?}");
                    assert_eq!(calls(), []);
                }
            }
            let operation = recorder!(create_srq_ex(
                context: *mut ibv_context, attr: *mut ibv_srq_init_attr_ex,
            ) -> *mut ibv_srq);
            set!(context.0, verbs_context, create_srq_ex = Some(operation));
            for (mask, srq_type, classic) in asked {
                assert_eq!(call(mask, srq_type), <*mut ibv_srq>::sample(RESULT));
                if classic {
                    assert_called("ibv_create_srq", &[pd.word(), attr.word()]);
                } else {
                    assert_called("create_srq_ex", &[context.ptr().word(), attr.word()]);
                }
            }
        }
    }

    fn ibv_create_wq() {
        for release in RELEASES {
            let context = FakeContext::shorter_by(release.verbs_context);
            let wq_context = <*mut c_void>::sample(5);
            let mut attr = ibv_wq_init_attr {
                wq_context,
                wq_type: ibv_wq_type::IBV_WQT_RQ,
                max_wr: 1,
                max_sge: 1,
                pd: core::ptr::null_mut(),
                cq: core::ptr::null_mut(),
                comp_mask: 0,
                create_flags: 0,
            };
            let attr = &raw mut attr;
            // SAFETY: context and attributes are live in every call.
            let call = || unsafe {
                clear_errno();
                verbs::ibv_create_wq(context.ptr(), attr)
            };
            assert!(call().is_unsupported());
            set!(context.0, verbs_context, create_wq = Some(create_wq));

            // The driver's failure is returned, and nothing is initialised.
            NEW_WQ.set(core::ptr::null_mut());
            assert!(call().is_null());
            assert_called("create_wq", &[context.ptr().word(), attr.word()]);

            let wq = ibv_wq::on(&context);
            NEW_WQ.set(wq.ptr);
            set!(wq.fake.as_ref().expect("its own memory"), ibv_wq, events_completed = 3);
            assert_eq!(call(), wq.ptr);
            assert_called("create_wq", &[context.ptr().word(), attr.word()]);
            // SAFETY: the work queue is live and initialised.
            unsafe {
                assert_eq!((*wq.ptr).wq_context, wq_context);
                assert_eq!((*wq.ptr).events_completed, 0);
                let mutex = &raw mut (*wq.ptr).mutex;
                assert_eq!(libc::pthread_mutex_lock(mutex), 0);
                assert_eq!(libc::pthread_cond_signal(&raw mut (*wq.ptr).cond), 0);
                assert_eq!(libc::pthread_mutex_unlock(mutex), 0);
                assert_eq!(libc::pthread_cond_destroy(&raw mut (*wq.ptr).cond), 0);
                assert_eq!(libc::pthread_mutex_destroy(mutex), 0);
            }
        }
        // A library older than the operation.
        let context = FakeContext::shorter_by(core::mem::offset_of!(verbs_context, create_wq) + 8);
        clear_errno();
        // SAFETY: the context is live; without the operation the attributes are not read.
        assert!(unsafe { verbs::ibv_create_wq(context.ptr(), core::ptr::null_mut()) }.is_unsupported());
    }
}
