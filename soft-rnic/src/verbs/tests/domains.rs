//! Parent domains, thread domains, and imported objects.

use std::ptr;

use rdma_mummy_sys::types::*;
use rdma_mummy_sys::verbs;

use crate::verbs::bench::*;
use crate::verbs::testing::{OpenedDevice, errno, table};

#[test]
fn parent_domain_shares_its_protection_domain() {
    let bench = VerbsFixture::new(4);
    let lib = table();
    let mut init = ibv_td_init_attr::default();
    // SAFETY: context and domains are live until they are deallocated.
    unsafe {
        let td = verbs::ibv_alloc_td(bench.opened.0, &raw mut init);
        assert!(!td.is_null());
        let mut attr =
            ibv_parent_domain_init_attr { pd: bench.pd, td, ..ibv_parent_domain_init_attr::default() };
        let parent = verbs::ibv_alloc_parent_domain(bench.opened.0, &raw mut attr);
        assert!(!parent.is_null());
        // Regions of one domain are accessible to queue pairs of the other.
        let [one, other] = [parent, bench.pd].map(|pd| {
            let mut init = ibv_qp_init_attr {
                send_cq: bench.cq,
                recv_cq: bench.cq,
                qp_type: ibv_qp_type::IBV_QPT_RC,
                cap: CAPACITIES,
                ..ibv_qp_init_attr::default()
            };
            (lib.ibv_create_qp)(pd, &raw mut init)
        });
        bench.connect([one, other]);
        assert_eq!((bench.receive(other, 1, 64), bench.send(one, 2, 8, |_| {})), (0, 0));
        assert!(bench.results().iter().all(|result| result.1 == SUCCESS));
        assert_eq!((lib.ibv_dealloc_pd)(parent), libc::EBUSY);
        destroy(one);
        destroy(other);
        assert_eq!(verbs::ibv_dealloc_td(td), libc::EBUSY);
        assert_eq!((lib.ibv_dealloc_pd)(bench.pd), libc::EBUSY);
        assert_eq!((lib.ibv_dealloc_pd)(parent), 0);
        assert_eq!(verbs::ibv_dealloc_td(td), 0);

        attr.td = ptr::null_mut();
        let elsewhere = OpenedDevice::new(1);
        assert!(verbs::ibv_alloc_parent_domain(elsewhere.0, &raw mut attr).is_null());
        assert_eq!(errno(), libc::EINVAL);
        attr.comp_mask = ibv_parent_domain_init_attr_mask::IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS.0;
        assert!(verbs::ibv_alloc_parent_domain(bench.opened.0, &raw mut attr).is_null());
        assert_eq!(errno(), libc::EOPNOTSUPP);
        (attr.comp_mask, attr.pd) = (0, ptr::null_mut());
        assert!(verbs::ibv_alloc_parent_domain(bench.opened.0, &raw mut attr).is_null());
        assert_eq!(errno(), libc::EINVAL);
    }
}

#[test]
fn imported_objects_are_the_originals() {
    let bench = VerbsFixture::new(4);
    let lib = table();
    let (import_pd, import_mr) =
        (lib.ibv_import_pd.expect("the table has it"), lib.ibv_import_mr.expect("the table has it"));
    // SAFETY: context, domain and region are live; each imported pointer is freed once.
    unsafe {
        let pd = import_pd(bench.opened.0, (*bench.pd).handle);
        assert!(!pd.is_null() && pd != bench.pd);
        let mr = import_mr(pd, (*bench.mr).handle);
        assert!(!mr.is_null());
        assert_eq!(((*mr).lkey, (*mr).length, (*mr).pd), ((*bench.mr).lkey, SIZE, pd));
        assert!(import_mr(pd, (*bench.mr).handle ^ 1 << 20).is_null());
        assert_eq!(errno(), libc::ENOENT);
        assert!(import_pd(bench.opened.0, (*bench.pd).handle ^ 1 << 20).is_null());
        assert_eq!(errno(), libc::ENOENT);
        lib.ibv_unimport_mr.expect("the table has it")(mr);
        lib.ibv_unimport_pd.expect("the table has it")(pd);
        assert!(lib.ibv_import_device.expect("the table has it")(-1).is_null(), "no device's descriptor");
    }
    // The region and the domain still work.
    let [one, other] = bench.pair(ibv_qp_type::IBV_QPT_RC);
    assert_eq!((bench.receive(other, 1, 64), bench.send(one, 2, 8, |_| {})), (0, 0));
    assert!(bench.results().iter().all(|result| result.1 == SUCCESS));
    destroy(one);
    destroy(other);
}
