//! Calls that fail.

use std::ptr;

use rdma_mummy_sys::types::*;
use soft_rnic::faults::{self, Action, Call, Rule, SetError, Trait};

use crate::bench::*;

#[test]
fn each_maker_fails_with_the_error_of_the_rule() {
    let _turn = turn();
    let side = Side::new(Options::default());
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
    // SAFETY: what is made is made of live objects, and fails each time, so nothing is left.
    type Maker<'a> = (&'a str, Box<dyn FnMut() -> bool + 'a>);
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
fn a_changed_state_is_refused_by_count() {
    let _turn = turn();
    let (a, b) = pair();
    rules("errno=EBUSY call=modify_qp nth=2; errno=EINVAL call=ibv_dereg_mr nth=1");
    let error = ibv_qp_attr { qp_state: ibv_qp_state::IBV_QPS_ERR, ..Default::default() };
    let modify = |side: &Side| side.modify(error, ibv_qp_attr_mask::IBV_QP_STATE);
    assert_eq!([modify(&b), modify(&a), modify(&a)], [0, libc::EBUSY, 0]);
    // SAFETY: the region lives: this fails.
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
    // SAFETY: the context is open; what is made is destroyed.
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
fn what_cannot_be_put_in_force_changes_nothing() {
    let _turn = turn();
    rules("drop nth=7");
    let odd = Rule::new(Action::Trait(Trait::NoGids));
    assert_eq!(faults::add(odd.clone()), Err(SetError::TooLate(odd)));
    let senseless = Rule::new(Action::Errno(libc::ENOMEM));
    let error = faults::set([senseless], 0).unwrap_err();
    assert!(error.to_string().contains("needs call="), "{error}");
    assert_eq!(faults::report().len(), 1);
}
