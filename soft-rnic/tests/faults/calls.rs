//! Fault rules for calls that fail.

use std::ptr;

use rdma_mummy_sys::types::*;
use soft_rnic::faults::{self, Action, Call, Rule, SetError, Trait};

use crate::bench::*;

#[test]
fn each_maker_fails_with_the_error_of_the_rule() {
    let _turn = turn();
    let side = FaultEndpoint::new(EndpointOptions::default());
    let lib = table();
    let mut srq =
        ibv_srq_init_attr { attr: ibv_srq_attr { max_wr: 1, ..Default::default() }, ..Default::default() };
    let mut qp = ibv_qp_init_attr {
        send_cq: side.cq,
        recv_cq: side.cq,
        qp_type: ibv_qp_type::IBV_QPT_RC,
        ..Default::default()
    };
    let mut buf = 0_u64;
    let mut ah = ibv_ah_attr { is_global: 1, port_num: 1, ..Default::default() };
    type Maker<'a> = (&'a str, Box<dyn FnMut() -> bool + 'a>);
    // SAFETY: the objects are made from live ones. Each call fails, so nothing is left.
    let makers: Vec<Maker<'_>> = unsafe {
        vec![
            ("alloc_pd", Box::new(|| (lib.ibv_alloc_pd)(side.context).is_null())),
            ("reg_mr", Box::new(|| (lib.ibv_reg_mr)(side.pd, (&raw mut buf).cast(), 8, 0).is_null())),
            (
                "alloc_buf",
                Box::new(|| {
                    let mut handle = ptr::null_mut();
                    (lib.ibv_alloc_buf.unwrap())(side.pd, 4096, &raw mut handle).is_null()
                }),
            ),
            ("create_comp_channel", Box::new(|| (lib.ibv_create_comp_channel)(side.context).is_null())),
            (
                "create_cq",
                Box::new(|| {
                    (lib.ibv_create_cq)(side.context, 1, ptr::null_mut(), ptr::null_mut(), 0).is_null()
                }),
            ),
            ("create_qp", Box::new(|| (lib.ibv_create_qp)(side.pd, &raw mut qp).is_null())),
            ("create_srq", Box::new(|| (lib.ibv_create_srq)(side.pd, &raw mut srq).is_null())),
            ("create_ah", Box::new(|| (lib.ibv_create_ah)(side.pd, &raw mut ah).is_null())),
            (
                "open_device",
                Box::new(|| match open(0) {
                    Ok(context) => {
                        (lib.ibv_close_device)(context);
                        false
                    }
                    Err(error) => {
                        *libc::__errno_location() = error;
                        true
                    }
                }),
            ),
        ]
    };
    for (call, mut fails) in makers {
        for (word, error) in [("ENOMEM", libc::ENOMEM), ("enospc", libc::ENOSPC), ("121", 121)] {
            rules(&format!("errno={word} call={call} first=1"));
            assert!(fails(), "{call}");
            assert_eq!(errno(), error, "{call}");
            assert_eq!(fired(), [1]);
        }
    }
}

#[test]
fn regions_of_other_kinds_and_device_memory_fail_by_rules() {
    use rdma_mummy_sys::verbs;
    let _turn = turn();
    let side = FaultEndpoint::new(EndpointOptions::default());
    let lib = table();
    let mut attr = ibv_alloc_dm_attr { length: 64, log_align_req: 0, comp_mask: 0 };
    let mut byte = 0_u8;
    // SAFETY: the objects are made from live ones, and a failed call leaves nothing.
    unsafe {
        let dm = verbs::ibv_alloc_dm(side.context, &raw mut attr);
        assert!(!dm.is_null());
        let mut entry = ibv_sge { addr: 0, length: 1, lkey: 0 };
        let bytes = (&raw mut byte).cast();
        let answer = |error: i32| if error == 0 { 0 } else { errno() };
        let made = |null: bool| if null { errno() } else { 0 };
        let access = ibv_access_flags::IBV_ACCESS_ZERO_BASED.0;
        let calls: [(&str, &mut dyn FnMut() -> i32); 8] = [
            ("alloc_dm", &mut || made(verbs::ibv_alloc_dm(side.context, &raw mut attr).is_null())),
            ("memcpy_dm", &mut || answer(verbs::ibv_memcpy_to_dm(dm, 0, bytes, 0))),
            ("memcpy_dm", &mut || answer(verbs::ibv_memcpy_from_dm(bytes, dm, 0, 0))),
            ("reg_mr", &mut || made(verbs::ibv_reg_dm_mr(side.pd, dm, 0, 64, access).is_null())),
            ("reg_mr", &mut || made(verbs::ibv_alloc_null_mr(side.pd).is_null())),
            ("reg_mr", &mut || made(lib.ibv_reg_dmabuf_mr.unwrap()(side.pd, 0, 1, 0, 0, 0).is_null())),
            ("import_dm", &mut || made(lib.ibv_import_dm.unwrap()(side.context, (*dm).handle).is_null())),
            ("advise_mr", &mut || {
                let prefetch = ib_uverbs_advise_mr_advice(0);
                answer(verbs::ibv_advise_mr(side.pd, prefetch, 0, &raw mut entry, 1))
            }),
        ];
        for (call, ends_with) in calls {
            rules(&format!("errno=ENOSPC call={call} first=1"));
            assert_eq!(ends_with(), libc::ENOSPC, "{call}");
            assert_eq!(fired(), [1], "{call}");
        }
        rules("errno=EBUSY call=free_dm first=1");
        assert_eq!([verbs::ibv_free_dm(dm), verbs::ibv_free_dm(dm)], [libc::EBUSY, 0]);
    }
}

#[test]
fn a_changed_state_is_refused_by_count() {
    let _turn = turn();
    let (a, b) = pair();
    rules("errno=EBUSY call=modify_qp nth=2; errno=EINVAL call=ibv_dereg_mr nth=1");
    let error = ibv_qp_attr { qp_state: ibv_qp_state::IBV_QPS_ERR, ..Default::default() };
    let modify = |side: &FaultEndpoint| side.modify(error, ibv_qp_attr_mask::IBV_QP_STATE);
    assert_eq!([modify(&b), modify(&a), modify(&a)], [0, libc::EBUSY, 0]);
    // SAFETY: the region is live. The call fails.
    assert_eq!(unsafe { (table().ibv_dereg_mr)(a.mr) }, libc::EINVAL);
    assert_eq!(fired(), [1, 1]);
    let report = faults::report();
    assert_eq!(report[0].matched, 3);
    assert!(report[0].first_fired.unwrap() <= report[0].age);
}

#[test]
fn typed_rules_are_those_of_the_text() {
    let _turn = turn();
    faults::set([Rule::new(Action::Errno(libc::ENOMEM)).call(Call::AllocPd).nth(1)], 1).unwrap();
    faults::add("errno=EMFILE call=create_comp_channel".parse().unwrap()).unwrap();
    let side = open(0).unwrap();
    // SAFETY: the context is open, and the new objects are destroyed.
    unsafe {
        assert!((table().ibv_alloc_pd)(side).is_null() && errno() == libc::ENOMEM);
        assert!((table().ibv_create_comp_channel)(side).is_null() && errno() == libc::EMFILE);
        let pd = (table().ibv_alloc_pd)(side);
        assert_eq!((table().ibv_dealloc_pd)(pd), 0);
        (table().ibv_close_device)(side);
    }
    assert_eq!(fired(), [1, 1]);
}

#[test]
fn refused_rules_change_nothing() {
    let _turn = turn();
    rules("drop nth=7");
    let odd = Rule::new(Action::Trait(Trait::NoGids));
    assert_eq!(faults::add(odd.clone()), Err(SetError::TooLate(Box::new(odd))));
    let senseless = Rule::new(Action::Errno(libc::ENOMEM));
    let error = faults::set([senseless], 0).unwrap_err();
    assert!(error.to_string().contains("needs call="), "{error}");
    assert_eq!(faults::report().len(), 1);
}
