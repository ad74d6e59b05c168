use std::net::{Ipv4Addr, Ipv6Addr};
use std::ptr;

use rdma_mummy_sys::types::*;

use crate::objects::address_handle::ah_of;
use crate::verbs::testing::{OpenedDevice, errno, table};

fn route() -> ibv_ah_attr {
    let mut attr = ibv_ah_attr { is_global: 1, port_num: 2, sl: 3, ..ibv_ah_attr::default() };
    attr.grh.dgid.raw = Ipv4Addr::new(127, 0, 0, 1).to_ipv6_mapped().octets();
    attr.grh.sgid_index = 1;
    attr.grh.hop_limit = 64;
    attr
}

#[test]
fn route_needs_a_gid_at_both_ends() {
    let opened = OpenedDevice::new(0);
    let (lib, pd) = (table(), opened.pd());
    let create = |change: fn(&mut ibv_ah_attr)| {
        let mut attr = route();
        change(&mut attr);
        // SAFETY: the domain is live.
        unsafe { (lib.ibv_create_ah)(pd, &raw mut attr) }
    };
    let changes: [fn(&mut ibv_ah_attr); 4] =
        [|a| a.is_global = 0, |a| a.port_num = 0, |a| a.port_num = 3, |a| a.grh.sgid_index = 2];
    for change in changes {
        assert!(create(change).is_null());
        assert_eq!(errno(), libc::EINVAL);
    }
    let ah = create(|_| ());
    // SAFETY: handle and domain are live until they are destroyed.
    unsafe {
        assert_eq!(((*ah).pd, (*ah).context), (pd, opened.0));
        let state = ah_of(ah);
        assert_eq!(state.route().destination, route().grh.dgid.raw);
        assert_eq!(state.route().source, Ipv4Addr::new(127, 0, 1, 1).to_ipv6_mapped().octets());
        assert_eq!((state.address().port, state.address().service_level), (2, 3));
        assert_eq!((lib.ibv_dealloc_pd)(pd), libc::EBUSY);
        assert_eq!((lib.ibv_destroy_ah)(ah), 0);
        assert_eq!((lib.ibv_dealloc_pd)(pd), 0);
    }
}

#[test]
fn reply_handle_addresses_the_sender() {
    let opened = OpenedDevice::new(1);
    let (lib, pd) = (table(), opened.pd());
    let source: Ipv6Addr = "2001:db8::7".parse().unwrap();
    let own: Ipv6Addr = "::ffff:127.0.0.2".parse().unwrap();
    let mut grh = ibv_grh {
        version_tclass_flow: (6 << 28 | 0x12 << 20 | 0x3_4567_u32).to_be(),
        hop_limit: 9,
        sgid: ibv_gid { raw: source.octets() },
        dgid: ibv_gid { raw: own.octets() },
        ..ibv_grh::default()
    };
    let mut wc = ibv_wc { wc_flags: ibv_wc_flags::IBV_WC_GRH.0, sl: 5, slid: 6, ..ibv_wc::default() };
    // SAFETY: the context is open, and the structs are valid.
    unsafe {
        let mut attr = ibv_ah_attr::default();
        let init = lib.ibv_init_ah_from_wc;
        assert_eq!(init(opened.0, 1, &raw mut wc, &raw mut grh, &raw mut attr), 0);
        assert_eq!((attr.is_global, attr.port_num, attr.sl, attr.dlid), (1, 1, 5, 6));
        assert_eq!(attr.grh.dgid.raw, source.octets());
        assert_eq!((attr.grh.sgid_index, attr.grh.hop_limit, attr.grh.traffic_class), (1, 9, 0x12));
        assert_eq!(attr.grh.flow_label, 0x3_4567);
        let ah = (lib.ibv_create_ah_from_wc)(pd, &raw mut wc, &raw mut grh, 1);
        assert_eq!(ah_of(ah).route().destination, source.octets());
        assert_eq!((lib.ibv_destroy_ah)(ah), 0);

        // A GID that the port does not have, and a missing header.
        grh.dgid.raw[15] ^= 1;
        assert_eq!(init(opened.0, 1, &raw mut wc, &raw mut grh, &raw mut attr), -1);
        assert!((lib.ibv_create_ah_from_wc)(pd, &raw mut wc, &raw mut grh, 1).is_null());
        grh.version_tclass_flow = 0;
        assert_eq!(init(opened.0, 1, &raw mut wc, &raw mut grh, &raw mut attr), -1);
        wc.wc_flags = 0;
        assert_eq!(init(opened.0, 1, &raw mut wc, ptr::null_mut(), &raw mut attr), 0);
        assert_eq!(attr.is_global, 0);
        assert_eq!((lib.ibv_dealloc_pd)(pd), 0);
    }
}
