//! Multicast groups: which members get a copy.

use std::net::Ipv6Addr;
use std::ptr;

use rdma_mummy_sys::types::*;

use crate::verbs::bench::*;
use crate::verbs::testing::table;

#[test]
fn every_member_gets_a_copy_until_it_detaches() {
    let bench = VerbsFixture::new(16);
    let (attach, detach) = (table().ibv_attach_mcast, table().ibv_detach_mcast);
    let pair = bench.pair(ibv_qp_type::IBV_QPT_UD);
    let connected = bench.qp(ibv_qp_type::IBV_QPT_RC, ptr::null_mut());
    let group: Ipv6Addr = "ff0e::4:2".parse().expect("an address");
    let gid = ibv_gid { raw: group.octets() };
    let mut attr = bench.ah_attr();
    // SAFETY: queue pairs and domain are live, and the GIDs valid.
    unsafe {
        let no_group = attr.grh.dgid;
        attr.grh.dgid = gid;
        let ah = (table().ibv_create_ah)(bench.pd, &raw mut attr);
        assert!(!ah.is_null());
        assert_eq!(attach(pair[0], &raw const no_group, 0), libc::EINVAL);
        assert_eq!(attach(connected, &raw const gid, 0), libc::EINVAL);
        assert_eq!(attach(pair[0], ptr::null(), 0), libc::EINVAL);
        assert_eq!(detach(pair[0], ptr::null(), 0), libc::EINVAL);
        for qp in pair {
            assert_eq!(attach(qp, &raw const gid, 0), 0);
        }
        let results = |members: &[u64]| {
            for (qp, wr_id) in pair.into_iter().zip(1..) {
                assert_eq!(bench.receive(qp, wr_id, 200), 0);
            }
            let to = |wr: &mut ibv_send_wr| {
                wr.wr.ud = ibv_send_wr__bindgen_ty_2__bindgen_ty_3 {
                    ah,
                    remote_qpn: 0x00ff_ffff,
                    remote_qkey: QKEY,
                };
            };
            assert_eq!(bench.send(pair[0], 9, 8, to), 0);
            let mut results = bench.results();
            results.sort_by_key(|result| result.0);
            let expected: Vec<_> = members.iter().chain(&[9]).map(|wr_id| (*wr_id, SUCCESS)).collect();
            assert_eq!(results, expected);
        };
        // The sender is a member too, and gets a copy.
        results(&[1, 2]);
        assert_eq!(detach(pair[1], &raw const gid, 0), 0);
        assert_eq!(detach(pair[1], &raw const gid, 0), libc::EINVAL);
        results(&[1]);
        assert_eq!(detach(pair[0], &raw const gid, 0), 0);
        pair.into_iter().for_each(destroy);
        destroy(connected);
        assert_eq!((table().ibv_destroy_ah)(ah), 0);
    }
}
