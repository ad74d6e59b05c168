//! The device list, contexts and their queries.

use std::collections::HashSet;
use std::time::Duration;

use libc::{EAGAIN, EINVAL};
use rdma_mummy_sys::types::*;

use crate::kit::{
    Device, Flavour, Node, NodeOptions, Outcome, SOFTROCE_VENDOR, Suite, TestDevice, TestTarget, devices,
    event_name, lists_without_count, status_name,
};

pub(crate) fn cases(suite: &mut Suite) {
    cases!(suite:
        the_list_has_the_device_with_its_name_and_type,
        the_list_is_the_same_twice,
        the_list_comes_without_its_length,
        a_device_that_is_not_there_is_not_opened,
        statuses_have_names,
        events_have_names,
        names_guids_and_indices_are_unique,
        a_device_opens_many_times,
        a_context_outlives_the_list,
        the_context_names_its_device,
        the_attributes_are_sane,
        a_device_without_hardware_has_the_vendor_of_softroce,
        the_extended_attributes_begin_with_the_classic_ones,
        an_unknown_comp_mask_of_the_extended_query_is_refused,
        the_port_is_active,
        a_port_that_is_not_there_is_refused,
        every_port_answers,
        the_old_port_query_writes_no_more_than_it_may,
        gids_are_there_and_differ,
        a_gid_index_beyond_the_table_is_refused,
        the_gid_entry_agrees_with_the_gid,
        gid_entries_with_unknown_flags_are_refused,
        the_gid_table_has_every_gid_that_is_set,
        a_gid_table_without_room_is_refused,
        the_default_partition_key_is_there,
        a_partition_key_index_beyond_the_table_is_refused,
        an_unknown_partition_key_has_no_index,
        no_event_is_waiting,
        two_devices_have_gids_of_their_own,
        the_extended_query_writes_no_more_than_it_is_given,
        the_extended_attributes_count_the_ports,
        the_speed_of_a_port_agrees_with_its_lanes,
        a_device_without_flow_steering_has_no_flows,
        a_device_without_flow_steering_has_no_counters,
    );
}

fn the_list_has_the_device_with_its_name_and_type(dut: &TestDevice) -> Outcome {
    let listed = Device::listed(dut.provider);
    let device = listed.iter().find(|device| device.name == dut.name).unwrap();
    assert_eq!(device.node_type, ibv_node_type::IBV_NODE_CA);
    assert_eq!(device.transport_type, ibv_transport_type::IBV_TRANSPORT_IB);
    Ok(())
}

fn the_list_is_the_same_twice(dut: &TestDevice) -> Outcome {
    assert_eq!(Device::listed(dut.provider), Device::listed(dut.provider));
    Ok(())
}

/// `man ibv_get_device_list`: the count may be null.
fn the_list_comes_without_its_length(dut: &TestDevice) -> Outcome {
    assert!(lists_without_count(dut.provider));
    Ok(())
}

fn a_device_that_is_not_there_is_not_opened(dut: &TestDevice) -> Outcome {
    assert_eq!(Device::open(dut.provider, "nosuch0").err(), Some(libc::ENODEV));
    Ok(())
}

/// `man ibv_wc_status_str`: a name for every status, and one for unknown values.
fn statuses_have_names(dut: &TestDevice) -> Outcome {
    let name = |status| status_name(dut.provider, ibv_wc_status(status));
    let names: HashSet<_> = (0..=ibv_wc_status::IBV_WC_TM_RNDV_INCOMPLETE.0).map(name).collect();
    assert_eq!(names.len(), ibv_wc_status::IBV_WC_TM_RNDV_INCOMPLETE.0 as usize + 1, "{names:?}");
    assert!(!name(1000).is_empty() && !names.contains(&name(1000)));
    Ok(())
}

/// `man ibv_event_type_str`: a name for every event, and one for unknown values.
fn events_have_names(dut: &TestDevice) -> Outcome {
    let name = |event| event_name(dut.provider, ibv_event_type(event));
    let names: HashSet<_> = (0..=ibv_event_type::IBV_EVENT_WQ_FATAL.0).map(name).collect();
    assert_eq!(names.len(), ibv_event_type::IBV_EVENT_WQ_FATAL.0 as usize + 1, "{names:?}");
    assert!(!name(1000).is_empty());
    Ok(())
}

fn names_guids_and_indices_are_unique(dut: &TestDevice) -> Outcome {
    let listed = Device::listed(dut.provider);
    let names: HashSet<_> = listed.iter().map(|device| &device.name).collect();
    let guids: HashSet<_> = listed.iter().map(|device| device.guid).collect();
    let indices: HashSet<_> = listed.iter().map(|device| device.index).collect();
    assert_eq!((names.len(), guids.len(), indices.len()), (listed.len(), listed.len(), listed.len()));
    Ok(())
}

fn a_device_opens_many_times(dut: &TestDevice) -> Outcome {
    let contexts: Vec<_> = (0..8).map(|_| dut.open()).collect();
    for context in &contexts {
        assert_eq!(context.query().unwrap().phys_port_cnt, contexts[0].query().unwrap().phys_port_cnt);
    }
    assert!(contexts.iter().all(|context| context.close() == 0));
    Ok(())
}

fn a_context_outlives_the_list(dut: &TestDevice) -> Outcome {
    let context = dut.open();
    for _ in 0..3 {
        assert!(devices(dut.provider).unwrap().contains(&dut.name));
    }
    assert_eq!(context.of_context().0, dut.name);
    Ok(())
}

fn the_context_names_its_device(dut: &TestDevice) -> Outcome {
    let (name, vectors) = dut.open().of_context();
    assert_eq!(name, dut.name);
    assert!(vectors >= 1, "{vectors} completion vectors");
    Ok(())
}

/// Devices without hardware have one vendor ID, by which programs know them.
fn a_device_without_hardware_has_the_vendor_of_softroce(dut: &TestDevice) -> Outcome {
    if dut.target == TestTarget::System && dut.softroce.is_none() {
        skip!("{} may be hardware", dut.name);
    }
    assert_eq!(dut.open().query().unwrap().vendor_id, SOFTROCE_VENDOR);
    Ok(())
}

fn the_attributes_are_sane(dut: &TestDevice) -> Outcome {
    let attr = dut.open().query().unwrap();
    assert!(attr.phys_port_cnt >= 1);
    for (name, value) in [
        ("max_qp", attr.max_qp),
        ("max_qp_wr", attr.max_qp_wr),
        ("max_sge", attr.max_sge),
        ("max_cq", attr.max_cq),
        ("max_cqe", attr.max_cqe),
        ("max_mr", attr.max_mr),
        ("max_pd", attr.max_pd),
        ("max_qp_rd_atom", attr.max_qp_rd_atom),
        ("max_qp_init_rd_atom", attr.max_qp_init_rd_atom),
        ("max_ah", attr.max_ah),
        ("max_srq", attr.max_srq),
        ("max_srq_wr", attr.max_srq_wr),
        ("max_srq_sge", attr.max_srq_sge),
    ] {
        assert!(value > 0, "{name} is {value}");
    }
    assert!(attr.max_mr_size >= 1 << 20);
    assert!(attr.max_pkeys >= 1);
    assert_ne!(attr.atomic_cap, ibv_atomic_cap::IBV_ATOMIC_NONE);
    assert!(attr.page_size_cap & 4096 != 0);
    Ok(())
}

fn the_extended_attributes_begin_with_the_classic_ones(dut: &TestDevice) -> Outcome {
    let device = dut.open();
    let (classic, extended) = (device.query().unwrap(), device.query_ex(None).unwrap());
    let same = |attr: &ibv_device_attr| {
        (
            attr.node_guid,
            attr.max_qp,
            attr.max_cqe,
            attr.max_mr_size,
            attr.device_cap_flags,
            attr.phys_port_cnt,
        )
    };
    assert_eq!(same(&classic), same(&extended.orig_attr));
    let listed = Device::listed(dut.provider);
    let guid = listed.iter().find(|device| device.name == dut.name).unwrap().guid;
    assert_eq!(u64::from_be(classic.node_guid), guid);
    Ok(())
}

fn an_unknown_comp_mask_of_the_extended_query_is_refused(dut: &TestDevice) -> Outcome {
    assert_eq!(dut.open().query_ex(Some(0)).map(drop), Ok(()));
    assert_eq!(dut.open().query_ex(Some(1)).err(), Some(EINVAL));
    Ok(())
}

fn the_port_is_active(dut: &TestDevice) -> Outcome {
    let port = dut.open().port().unwrap();
    assert_eq!(port.state, ibv_port_state::IBV_PORT_ACTIVE);
    assert!(port.active_mtu.0 >= ibv_mtu::IBV_MTU_1024.0 && port.active_mtu.0 <= port.max_mtu.0);
    assert!(port.max_msg_sz >= 1 << 20 && port.max_msg_sz <= 1 << 31, "{}", port.max_msg_sz);
    assert!(port.gid_tbl_len >= 1 && port.pkey_tbl_len >= 1);
    let infiniband = dut.is_infiniband();
    let link = if infiniband { IBV_LINK_LAYER_INFINIBAND } else { IBV_LINK_LAYER_ETHERNET };
    assert_eq!((u32::from(port.link_layer), port.lmc), (link, 0));
    // RoCE has no LIDs.
    assert_eq!((port.lid != 0, port.sm_lid != 0), (infiniband, infiniband));
    Ok(())
}

fn a_port_that_is_not_there_is_refused(dut: &TestDevice) -> Outcome {
    let device = dut.open();
    let ports = device.query().unwrap().phys_port_cnt;
    assert_eq!(device.port_at(0).err(), Some(EINVAL));
    assert_eq!(device.port_at(ports + 1).err(), Some(EINVAL));
    Ok(())
}

fn every_port_answers(dut: &TestDevice) -> Outcome {
    let device = dut.open();
    for port in 1..=device.query().unwrap().phys_port_cnt {
        let attr = device.port_at(port).unwrap();
        assert!(attr.gid_tbl_len >= 1 && attr.pkey_tbl_len >= 1);
        assert_eq!(device.pkey(port, 0), Ok(0xffff));
        assert_ne!(device.gid(port, 0).unwrap(), [0; 16]);
    }
    Ok(())
}

fn the_old_port_query_writes_no_more_than_it_may(dut: &TestDevice) -> Outcome {
    assert!(dut.open().port_is_short());
    Ok(())
}

fn gids_are_there_and_differ(dut: &TestDevice) -> Outcome {
    let device = dut.open();
    let len = device.port().unwrap().gid_tbl_len;
    let gids: Vec<_> = (0..len).filter_map(|n| device.gid(1, n).ok()).filter(|gid| *gid != [0; 16]).collect();
    assert!(!gids.is_empty());
    assert_eq!(gids.iter().collect::<HashSet<_>>().len(), gids.len(), "{gids:x?}");
    Ok(())
}

fn a_gid_index_beyond_the_table_is_refused(dut: &TestDevice) -> Outcome {
    let device = dut.open();
    let len = device.port().unwrap().gid_tbl_len;
    assert!(device.gid(1, len).is_err());
    assert!(device.gid(1, -1).is_err());
    assert!(device.gid(0, 0).is_err());
    assert!(device.gid(device.query().unwrap().phys_port_cnt + 1, 0).is_err());
    Ok(())
}

fn the_gid_entry_agrees_with_the_gid(dut: &TestDevice) -> Outcome {
    let device = dut.open();
    let (gid, index) = device.find_gid().unwrap();
    let entry = device.gid_ex(1, index.into(), 0).unwrap();
    assert_eq!(crate::kit::gid_of(&entry), gid);
    assert_eq!((entry.gid_index, entry.port_num), (index.into(), 1));
    let ethernet = ibv_gid_type::IBV_GID_TYPE_ROCE_V2;
    let expected = if dut.is_infiniband() { ibv_gid_type::IBV_GID_TYPE_IB } else { ethernet };
    assert_eq!(entry.gid_type, expected.0);
    Ok(())
}

fn gid_entries_with_unknown_flags_are_refused(dut: &TestDevice) -> Outcome {
    let device = dut.open();
    assert_eq!(device.gid_ex(1, 0, 1).err(), Some(EINVAL));
    assert!(device.gid_table(8, 1).is_err());
    assert!(device.gid_ex(0, 0, 0).is_err());
    assert!(device.gid_ex(1, 1 << 20, 0).is_err());
    Ok(())
}

fn the_gid_table_has_every_gid_that_is_set(dut: &TestDevice) -> Outcome {
    let device = dut.open();
    let entries = device.gid_table(1024, 0).unwrap();
    let len = device.port().unwrap().gid_tbl_len;
    for index in 0..len {
        let Ok(gid) = device.gid(1, index) else { continue };
        if gid != [0; 16] {
            let entry = entries.iter().find(|entry| entry.port_num == 1 && entry.gid_index == index as u32);
            assert_eq!(crate::kit::gid_of(entry.unwrap()), gid);
        }
    }
    assert!(!entries.is_empty());
    Ok(())
}

fn a_gid_table_without_room_is_refused(dut: &TestDevice) -> Outcome {
    let device = dut.open();
    assert!(device.gid_table(0, 0).is_err());
    Ok(())
}

fn the_default_partition_key_is_there(dut: &TestDevice) -> Outcome {
    let device = dut.open();
    assert_eq!(device.pkey(1, 0), Ok(0xffff));
    assert_eq!(device.pkey_index(1, 0xffff), Ok(0));
    Ok(())
}

fn a_partition_key_index_beyond_the_table_is_refused(dut: &TestDevice) -> Outcome {
    let device = dut.open();
    let len = i32::from(device.port().unwrap().pkey_tbl_len);
    assert!(device.pkey(1, len).is_err());
    assert!(device.pkey(1, -1).is_err());
    assert!(device.pkey(0, 0).is_err());
    Ok(())
}

fn an_unknown_partition_key_has_no_index(dut: &TestDevice) -> Outcome {
    assert!(dut.open().pkey_index(1, 0x1234).is_err());
    Ok(())
}

fn no_event_is_waiting(dut: &TestDevice) -> Outcome {
    let device = dut.open();
    assert!(device.event(Duration::ZERO).is_none());
    assert_eq!(device.event_now().map(drop), Err(EAGAIN));
    Ok(())
}

fn two_devices_have_gids_of_their_own(dut: &TestDevice) -> Outcome {
    let (first, second) = (dut.open(), dut.open_peer()?);
    assert_ne!(first.find_gid().unwrap().0, second.find_gid().unwrap().0);
    Ok(())
}

/// `man ibv_query_device_ex`: the struct grows at its end, and the program passes the size that it
/// was compiled with.
fn the_extended_query_writes_no_more_than_it_is_given(dut: &TestDevice) -> Outcome {
    let device = dut.open();
    let classic = size_of::<ibv_device_attr>();
    for size in [classic + 8, size_of::<ibv_device_attr_ex>() - 8, size_of::<ibv_device_attr_ex>() + 64] {
        let written = device.query_ex_bytes(size).unwrap();
        assert!(written <= size, "{written} of {size} bytes");
    }
    assert_eq!(device.query_ex_bytes(classic - 1), Err(EINVAL));
    Ok(())
}

fn the_extended_attributes_count_the_ports(dut: &TestDevice) -> Outcome {
    let attr = dut.open().query_ex(None).unwrap();
    // Libraries that are older than the field leave it unchanged.
    if attr.phys_port_cnt_ex == 0 {
        skip!("the library does not report phys_port_cnt_ex");
    }
    assert_eq!(attr.phys_port_cnt_ex, u32::from(attr.orig_attr.phys_port_cnt));
    Ok(())
}

/// `ibv_query_port_speed` (rdma-core 62): lanes times speed, in units of 100 Mb/s, as `ibv_devinfo`
/// prints it.
fn the_speed_of_a_port_agrees_with_its_lanes(dut: &TestDevice) -> Outcome {
    let device = dut.open();
    let speed = match device.port_speed(1) {
        Ok(speed) => speed,
        Err(libc::EOPNOTSUPP) => skip!("the library has no ibv_query_port_speed"),
        Err(error) => panic!("error {error}"),
    };
    let port = device.port().unwrap();
    let lanes = match port.active_width {
        1 => 1,
        2 => 4,
        4 => 8,
        8 => 12,
        other => 2 * u64::from(other == 16),
    };
    // 25 Gb/s for each lane: the only speed of the software device.
    if port.active_speed == 32 {
        assert_eq!(speed, lanes * 250);
    } else {
        assert!(speed > 0);
    }
    assert_eq!(device.port_speed(0), Err(EINVAL));
    assert_eq!(device.port_speed(u32::from(device.query().unwrap().phys_port_cnt) + 1), Err(EINVAL));
    Ok(())
}

/// Whether the device supports flow steering.
fn steers(device: &Device) -> bool {
    let flag = ibv_device_cap_flags::IBV_DEVICE_MANAGED_FLOW_STEERING.0;
    device.query().unwrap().device_cap_flags & flag != 0
}

/// `man ibv_create_flow`, note 1: only for devices with `IBV_DEVICE_MANAGED_FLOW_STEERING`.
fn a_device_without_flow_steering_has_no_flows(dut: &TestDevice) -> Outcome {
    let node = Node::new(&dut.open(), &NodeOptions::ud(Flavour::Classic));
    if steers(&node.device) {
        skip!("the device steers flows");
    }
    let error = node.qp.steer_everything();
    assert!([libc::EOPNOTSUPP, libc::ENXIO].contains(&error), "{error}");
    Ok(())
}

/// `man ibv_create_counters`: `EOPNOTSUPP`, or `ENOSYS` from old libraries.
fn a_device_without_flow_steering_has_no_counters(dut: &TestDevice) -> Outcome {
    let device = dut.open();
    if steers(&device) {
        skip!("the device steers flows, which have counters");
    }
    let error = device.counters().unwrap_err();
    assert!([libc::EOPNOTSUPP, libc::ENOSYS].contains(&error), "{error}");
    Ok(())
}
