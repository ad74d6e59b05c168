use std::ffi::CStr;
use std::mem::offset_of;
use std::net::Ipv6Addr;
use std::ptr;

use rdma_mummy_sys::types::*;
use rdma_mummy_sys::verbs;

use crate::verbs::testing::{OpenedDevice, errno, table};

fn name(chars: &[std::ffi::c_char]) -> &CStr {
    // SAFETY: names are shorter than their fields, which are zero-filled.
    unsafe { CStr::from_ptr(chars.as_ptr()) }
}

#[test]
fn every_device_has_a_unique_name_and_guid() {
    let lib = table();
    let mut count = 0;
    // SAFETY: the list is used until it is freed.
    unsafe {
        let list = verbs::ibv_get_device_list(lib, &raw mut count);
        assert_eq!(count, 2);
        assert!((*list.add(2)).is_null());
        for (number, expected) in [c"soft0", c"soft1"].into_iter().enumerate() {
            let device = *list.add(number);
            assert_eq!(CStr::from_ptr((lib.ibv_get_device_name)(device)), expected);
            assert_eq!(name(&(*device).dev_name), expected);
            for (path, class) in
                [(&(*device).ibdev_path, "infiniband"), (&(*device).dev_path, "infiniband_verbs")]
            {
                let expected = format!("/sys/class/{class}/{}", expected.to_str().unwrap());
                assert_eq!(name(path).to_str().unwrap(), expected);
            }
            assert_eq!((*device).node_type, ibv_node_type::IBV_NODE_CA);
            assert_eq!((*device).transport_type, ibv_transport_type::IBV_TRANSPORT_IB);
            let guid = u64::from_be((lib.ibv_get_device_guid)(device));
            assert_eq!(guid, 0x0273_6f66_7400_0000 + number as u64);
            assert_eq!(lib.ibv_get_device_index.unwrap()(device), number as i32);
        }
        (lib.ibv_free_device_list)(list);
        (lib.ibv_free_device_list)(ptr::null_mut());
        assert!((lib.ibv_get_device_name)(ptr::null_mut()).is_null());
        assert!((lib.ibv_open_device)(ptr::null_mut()).is_null());
        assert_eq!(errno(), libc::ENODEV);
        assert_eq!((lib.ibv_fork_init)(), 0);
        assert_eq!(lib.ibv_is_fork_initialized.unwrap()(), ibv_fork_status::IBV_FORK_UNNEEDED);
    }
}

#[test]
fn second_configuration_is_refused() {
    table();
    let error = crate::provider_with(crate::Config::default()).unwrap_err();
    assert_eq!(error, crate::SetupError::Done);
    let wrong = crate::Config { devices: 0, ..crate::Config::default() };
    let error = crate::provider_with(wrong).unwrap_err().to_string();
    assert_eq!(error, "SOFT_RNIC_DEVICES is \"0\"; set it to a number from 1 to 16");
}

#[test]
fn attributes_name_the_software_and_its_limits() {
    let opened = OpenedDevice::new(1);
    let lib = table();
    // SAFETY: the context is open, and all zeroes is a valid value of each struct.
    unsafe {
        let mut attr = ibv_device_attr::default();
        assert_eq!((lib.ibv_query_device)(opened.0, &raw mut attr), 0);
        assert!(name(&attr.fw_ver).to_bytes().starts_with(b"soft-"));
        assert_eq!((attr.vendor_id, attr.phys_port_cnt, attr.max_pkeys), (0xff_ffff, 2, 1));
        assert!(attr.max_qp > 0 && attr.max_cqe > 0 && attr.max_mr > 0 && attr.max_sge > 0);
        assert_eq!(attr.atomic_cap, ibv_atomic_cap::IBV_ATOMIC_HCA);

        let mut ex = ibv_device_attr_ex::default();
        assert_eq!(verbs::ibv_query_device_ex(lib, opened.0, ptr::null(), &raw mut ex), 0);
        assert_eq!(ex.orig_attr.node_guid, attr.node_guid);
        assert_eq!((ex.completion_timestamp_mask, ex.hca_core_clock), (u64::MAX, 1_000_000));
        assert_eq!(ex.phys_port_cnt_ex, 2);

        // The struct of an older program is shorter, and nothing must be written behind it.
        let query = rdma_mummy_sys::verbs_get_ctx_op!(opened.0, query_device_ex).unwrap();
        let shorter = offset_of!(ibv_device_attr_ex, hca_core_clock);
        (&raw mut ex).write_bytes(0xa5, 1);
        assert_eq!(query(opened.0, ptr::null(), &raw mut ex, shorter), 0);
        assert_eq!((ex.completion_timestamp_mask, ex.hca_core_clock), (u64::MAX, 0xa5a5_a5a5_a5a5_a5a5));
        let too_short = size_of::<ibv_device_attr>() - 1;
        assert_eq!(query(opened.0, ptr::null(), &raw mut ex, too_short), libc::EINVAL);
        let input = ibv_query_device_ex_input { comp_mask: 1 };
        assert_eq!(query(opened.0, &raw const input, &raw mut ex, size_of_val(&ex)), libc::EINVAL);
    }
}

#[test]
fn a_port_is_roce_and_up() {
    let opened = OpenedDevice::new(0);
    let lib = table();
    // SAFETY: the context is open, and all zeroes is a valid value of each struct.
    unsafe {
        let mut attr = ibv_port_attr::default();
        assert_eq!(verbs::ibv_query_port(lib, opened.0, 2, &raw mut attr), 0);
        assert_eq!((attr.state, attr.phys_state), (ibv_port_state::IBV_PORT_ACTIVE, 5));
        assert_eq!((attr.active_mtu, attr.max_mtu), (ibv_mtu::IBV_MTU_4096, ibv_mtu::IBV_MTU_4096));
        assert_eq!((attr.link_layer, attr.lid, attr.flags & 1), (2, 0, 1));
        assert_eq!((attr.active_width, attr.active_speed, attr.active_speed_ex), (2, 32, 32));
        // The exported function writes the struct's original size and no more.
        (&raw mut attr).write_bytes(0xa5, 1);
        assert_eq!((lib.ibv_query_port)(opened.0, 1, (&raw mut attr).cast()), 0);
        assert_eq!((attr.link_layer, attr.port_cap_flags2), (2, 0xa5a5));
        for port in [0, 3, 255] {
            assert_eq!(verbs::ibv_query_port(lib, opened.0, port, &raw mut attr), libc::EINVAL);
        }
        let mut speed = 0;
        assert_eq!(lib.ibv_query_port_speed.unwrap()(opened.0, 1, &raw mut speed), 0);
        assert_eq!(speed, 1000);
        assert_eq!(lib.ibv_query_port_speed.unwrap()(opened.0, 3, &raw mut speed), libc::EINVAL);
    }
}

fn gid(opened: &OpenedDevice, port: u8, index: i32) -> Option<Ipv6Addr> {
    let mut gid = ibv_gid { raw: [0xff; 16] };
    // SAFETY: the context is open.
    let result = unsafe { (table().ibv_query_gid)(opened.0, port, index, &raw mut gid) };
    assert!(result == 0 || (result == -1 && errno() == libc::EINVAL));
    // SAFETY: every value of the bytes is a GID.
    (result == 0).then(|| Ipv6Addr::from(unsafe { gid.raw }))
}

#[test]
fn gids_are_link_local_loopback_and_the_hosts() {
    let (first, second) = (OpenedDevice::new(0), OpenedDevice::new(1));
    assert_eq!(gid(&first, 1, 0), Some("fe80::73:6fff:fe66:7400".parse().unwrap()));
    assert_eq!(gid(&first, 1, 1), Some("::ffff:127.0.0.1".parse().unwrap()));
    assert_eq!(gid(&second, 1, 1), Some("::ffff:127.0.0.2".parse().unwrap()));
    assert_eq!(gid(&second, 2, 1), Some("::ffff:127.0.1.2".parse().unwrap()));
    assert_eq!(gid(&second, 2, 2), Some(Ipv6Addr::UNSPECIFIED));
    for (port, index) in [(0, 0), (3, 0), (1, -1), (1, 128)] {
        assert_eq!(gid(&first, port, index), None);
    }
}

#[test]
fn gid_entries_have_the_callers_size() {
    let opened = OpenedDevice::new(1);
    let lib = table();
    #[repr(C)]
    #[derive(Clone, Copy)]
    struct LongerGidEntry {
        entry: ibv_gid_entry,
        more: u64,
    }
    let blank = LongerGidEntry { entry: ibv_gid_entry::default(), more: u64::MAX };
    // SAFETY: the context is open, and the sizes match the entries.
    unsafe {
        let mut entry = ibv_gid_entry::default();
        assert_eq!(verbs::ibv_query_gid_ex(lib, opened.0, 2, 1, &raw mut entry, 0), 0);
        assert_eq!((entry.gid_index, entry.port_num), (1, 2));
        assert_eq!(entry.gid_type, ibv_gid_type::IBV_GID_TYPE_ROCE_V2.0);
        assert_eq!(verbs::ibv_query_gid_ex(lib, opened.0, 2, 2, &raw mut entry, 0), libc::ENODATA);
        assert_eq!(verbs::ibv_query_gid_ex(lib, opened.0, 2, 128, &raw mut entry, 0), libc::EINVAL);
        assert_eq!(verbs::ibv_query_gid_ex(lib, opened.0, 1, 0, &raw mut entry, 1), libc::EINVAL);

        let query = lib._ibv_query_gid_table.unwrap();
        let mut entries = [blank; 5];
        let all = entries.as_mut_ptr().cast();
        assert_eq!(query(opened.0, all, 5, 0, size_of::<LongerGidEntry>()), 4);
        let found = entries.map(|entry| (entry.entry.port_num, entry.entry.gid_index, entry.more));
        assert_eq!(found, [(1, 0, 0), (1, 1, 0), (2, 0, 0), (2, 1, 0), (0, 0, u64::MAX)]);
        let all = entries.as_mut_ptr().cast();
        assert_eq!(query(opened.0, all, 3, 0, size_of::<LongerGidEntry>()), -(libc::EINVAL as isize));
    }
}

#[test]
fn port_has_one_partition() {
    let opened = OpenedDevice::new(0);
    let lib = table();
    let mut pkey = 0;
    // SAFETY: the context is open.
    unsafe {
        assert_eq!((lib.ibv_query_pkey)(opened.0, 1, 0, &raw mut pkey), 0);
        assert_eq!(pkey, 0xffff);
        assert_eq!((lib.ibv_query_pkey)(opened.0, 1, 1, &raw mut pkey), -1);
        assert_eq!((lib.ibv_query_pkey)(opened.0, 9, 0, &raw mut pkey), -1);
        let index = lib.ibv_get_pkey_index.unwrap();
        assert_eq!((index(opened.0, 1, 0xffff), index(opened.0, 1, 0x7fff)), (0, -1));
    }
}

#[test]
fn ethernet_addresses_are_known_or_in_the_gid() {
    let opened = OpenedDevice::new(0);
    let resolve = table().ibv_resolve_eth_l2_from_gid;
    let mut attr = ibv_ah_attr { port_num: 1, ..ibv_ah_attr::default() };
    let mut mac = [0; 6];
    let mut vlan = 0;
    let mut ask = |gid: &str, sgid_index, mac: &mut [u8; 6]| {
        attr.grh.sgid_index = sgid_index;
        attr.grh.dgid.raw = gid.parse::<Ipv6Addr>().unwrap().octets();
        // SAFETY: the context is open, and `mac` has room for an address.
        unsafe { resolve(opened.0, &raw mut attr, mac.as_mut_ptr(), &raw mut vlan) }
    };
    assert_eq!(ask("::ffff:127.0.1.2", 0, &mut mac), 0);
    assert_eq!(mac, [2, b's', b'o', b'f', b't', 9]);
    assert_eq!(ask("fe80::1ff:fe00:0007", 0, &mut mac), 0);
    assert_eq!(mac, [2, 0, 1, 0, 0, 7]);
    assert_eq!(ask("2001:db8::1", 0, &mut mac), -libc::EHOSTUNREACH);
    assert_eq!(ask("::ffff:127.0.1.2", 200, &mut mac), -1);
    assert_eq!(vlan, 0xffff);
}

#[test]
fn the_clock_goes_forward() {
    let opened = OpenedDevice::new(0);
    let read = || {
        let mut values = ibv_values_ex { comp_mask: 3, ..ibv_values_ex::default() };
        // SAFETY: the context is open.
        assert_eq!(unsafe { verbs::ibv_query_rt_values_ex(opened.0, &raw mut values) }, 0);
        assert_eq!((values.comp_mask, values.raw_clock.tv_sec), (1, 0));
        values.raw_clock.tv_nsec
    };
    let first = read();
    assert!(first > 0 && read() >= first);
}

#[test]
fn data_in_order_is_not_promised() {
    let opened = OpenedDevice::new(0);
    let lib = table();
    let pd = opened.pd();
    // SAFETY: the domain is live; the function does not access the queue pair.
    unsafe {
        let qp = ptr::null_mut();
        assert_eq!(lib.ibv_query_qp_data_in_order.unwrap()(qp, ibv_wr_opcode::IBV_WR_SEND, 1), 0);
        assert_eq!((lib.ibv_dealloc_pd)(pd), 0);
    }
}

#[test]
fn domains_without_attributes_are_refused() {
    let opened = OpenedDevice::new(0);
    // SAFETY: the context is live; the test passes null attributes.
    unsafe {
        assert!(verbs::ibv_alloc_td(opened.0, ptr::null_mut()).is_null());
        assert_eq!(errno(), libc::EINVAL);
        assert!(verbs::ibv_alloc_parent_domain(opened.0, ptr::null_mut()).is_null());
        assert_eq!(errno(), libc::EINVAL);
        assert!(verbs::ibv_open_xrcd(opened.0, ptr::null_mut()).is_null());
        assert_eq!(errno(), libc::EINVAL);
    }
}
