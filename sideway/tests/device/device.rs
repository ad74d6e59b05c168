//! Device tests: attributes, ports and addresses.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;

use sideway::ErrorKind;
use sideway::ibverbs::address::{Gid, GidType};
use sideway::ibverbs::connect::{ChoosePathError, LocalPath};
use sideway::ibverbs::device::FindDeviceError;
use sideway::ibverbs::port::PortState;
use sideway::ibverbs::queue_pair::CreateQueuePairError;

use crate::harness::{Outcome, Suite, TestDevice};
use crate::support::errors::assert_error;
use crate::support::fake::Fake;

pub(crate) fn cases(suite: &mut Suite) {
    cases!(suite:
        the_list_has_the_device,
        an_unknown_name_lists_the_known_ones,
        attributes_are_plausible,
        the_port_is_active,
        a_port_that_is_not_there_is_an_error,
        the_gid_table_is_what_sysfs_says,
        single_gids_are_those_of_the_table,
        a_gid_index_out_of_range_is_an_error,
        a_path_is_chosen_and_explained,
        a_path_by_a_wrong_index_is_an_error,
        a_device_is_found_by_its_address,
        an_address_of_no_device_is_explained,
        contexts_are_told_apart,
        a_device_outlives_its_list,
        devices_of_two_providers_are_open_at_once,
    );
}

fn the_list_has_the_device(test_device: &TestDevice) -> Outcome {
    let list = test_device.list();
    let device = list.find(&test_device.name).unwrap();
    assert_eq!(device.name(), test_device.name);
    assert_ne!(device.guid().as_u64(), 0);
    assert!(device.transport_type().name().is_some() && device.node_type().name().is_some());
    assert_eq!(list.iter().count(), list.len());
    assert!(list.get(list.len()).is_none() && !list.is_empty() && list.first().is_ok());
    Ok(())
}

fn an_unknown_name_lists_the_known_ones(test_device: &TestDevice) -> Outcome {
    let list = test_device.list();
    let error = list.find("no-such-device").unwrap_err();
    let FindDeviceError::Unknown { name, known } = &error else { panic!("{error}") };
    assert_eq!(name, "no-such-device");
    assert!(known.contains(&test_device.name), "{error}");
    assert!(error.to_string().contains(&test_device.name), "{error}");
    Ok(())
}

fn attributes_are_plausible(test_device: &TestDevice) -> Outcome {
    let context = test_device.open();
    let attr = context.query_device().unwrap();
    assert_eq!(attr.node_guid(), context.guid());
    assert!(attr.phys_port_cnt() >= test_device.port);
    for limit in
        [attr.max_qp(), attr.max_qp_wr(), attr.max_sge(), attr.max_cq(), attr.max_cqe(), attr.max_mr()]
    {
        assert!(limit > 0, "{attr:?}");
    }
    assert!(attr.max_pd() > 0 && attr.max_mr_size() > 0 && attr.max_pkeys() > 0);
    assert_eq!(context.name(), test_device.name);
    Ok(())
}

fn the_port_is_active(test_device: &TestDevice) -> Outcome {
    let port = test_device.open().query_port(test_device.port).unwrap();
    assert_eq!(port.port_state(), PortState::Active);
    assert!(port.active_mtu().bytes().unwrap() <= port.max_mtu().bytes().unwrap());
    assert!(port.gid_tbl_len() > 0 && port.max_msg_sz() > 0 && port.pkey_tbl_len() > 0);
    assert!(port.active_width().lanes().is_some(), "{:?}", port.active_width());
    assert!(port.active_speed().gbps().is_some(), "{:?}", port.active_speed());
    assert!(port.link_layer().name().is_some() && port.phys_state().name().is_some());
    Ok(())
}

fn a_port_that_is_not_there_is_an_error(test_device: &TestDevice) -> Outcome {
    let context = test_device.open();
    for port_num in [0, context.query_device().unwrap().phys_port_cnt() + 1, 255] {
        let error = context.query_port(port_num).unwrap_err();
        assert_eq!(error.argument("port_num"), Some(&*port_num.to_string()));
        assert_ne!(error.errno(), Some(0), "{error}");
        let error = LocalPath::choose(&context, port_num, None).unwrap_err();
        assert!(matches!(error, ChoosePathError::NoSuchPort { .. }), "{error}");
        assert!(context.query_gid(port_num, 0).is_err());
    }
    Ok(())
}

fn the_gid_table_is_what_sysfs_says(test_device: &TestDevice) -> Outcome {
    let context = test_device.open();
    let table = context.query_gid_table().unwrap();
    assert!(!table.is_empty());
    if context.is_soft() {
        skip!("the kernel does not know {}", test_device.name);
    }
    for port in 1..=context.query_device().unwrap().phys_port_cnt() {
        let folder = PathBuf::from(format!("/sys/class/infiniband/{}/ports/{port}", test_device.name));
        let read = |path: String| fs::read_to_string(folder.join(path)).map(|text| text.trim().to_owned());
        for index in 0..context.query_port(port).unwrap().gid_tbl_len() {
            let gid: Gid = read(format!("gids/{index}")).unwrap().parse().unwrap();
            let entry =
                table.iter().find(|e| e.port_num() == u32::from(port) && e.gid_index() == index as u32);
            assert_eq!(entry.is_some(), !gid.is_zero(), "port {port}, index {index}");
            let Some(entry) = entry else { continue };
            assert_eq!(entry.gid(), gid);
            if let Ok(text) = read(format!("gid_attrs/types/{index}")) {
                assert_eq!(text.contains("v2"), entry.gid_type() == GidType::RoceV2, "{text}");
            }
            if let Ok(name) = read(format!("gid_attrs/ndevs/{index}")) {
                assert_eq!(entry.netdev_name().unwrap(), name);
            }
        }
    }
    Ok(())
}

fn single_gids_are_those_of_the_table(test_device: &TestDevice) -> Outcome {
    let context = test_device.open();
    for entry in context.query_gid_table().unwrap() {
        let port = u8::try_from(entry.port_num()).unwrap();
        assert_eq!(context.query_gid_ex(port, entry.gid_index()).unwrap(), entry);
        assert_eq!(context.query_gid(port, entry.gid_index()).unwrap(), entry.gid());
    }
    Ok(())
}

fn a_gid_index_out_of_range_is_an_error(test_device: &TestDevice) -> Outcome {
    let context = test_device.open();
    let length = context.query_port(test_device.port).unwrap().gid_tbl_len() as u32;
    for index in [length, length + 1000, i32::MAX as u32, u32::MAX] {
        let error = context.query_gid_ex(test_device.port, index).unwrap_err();
        assert_error(&error, ErrorKind::Os, &[("port_num", &test_device.port), ("gid_index", &index)]);
        assert!(context.query_gid(test_device.port, index).is_err());
    }
    Ok(())
}

fn a_path_is_chosen_and_explained(test_device: &TestDevice) -> Outcome {
    let context = test_device.open();
    let path = LocalPath::choose(&context, test_device.port, None).unwrap();
    assert_eq!(path.port_num(), test_device.port);
    assert!(!path.reason().is_empty() && path.mtu().bytes().is_some());
    let Some(index) = path.gid_index() else { skip!("the port is addressed by its LID") };
    assert_eq!(context.query_gid(test_device.port, index.into()).unwrap(), path.gid().unwrap());
    let named = LocalPath::choose(&context, test_device.port, Some(index)).unwrap();
    assert_eq!((named.gid(), named.gid_index()), (path.gid(), path.gid_index()));
    assert!(named.reason().contains(&path.gid().unwrap().to_string()), "{}", named.reason());
    Ok(())
}

fn a_path_by_a_wrong_index_is_an_error(test_device: &TestDevice) -> Outcome {
    let context = test_device.open();
    let length = context.query_port(test_device.port).unwrap().gid_tbl_len();
    if length <= 255 {
        let error = LocalPath::choose(&context, test_device.port, Some(255)).unwrap_err();
        assert!(matches!(error, ChoosePathError::GidIndexOutOfRange { index: 255, .. }), "{error}");
        assert!(error.to_string().contains(&test_device.name), "{error}");
    }
    let table = context.query_gid_table().unwrap();
    let used = |index: &u8| {
        table
            .iter()
            .any(|e| e.port_num() == u32::from(test_device.port) && e.gid_index() == u32::from(*index))
    };
    let Some(empty) = (0..=255).take_while(|index| i32::from(*index) < length).find(|index| !used(index))
    else {
        skip!("the port's GID table has no empty entry");
    };
    let error = LocalPath::choose(&context, test_device.port, Some(empty)).unwrap_err();
    assert!(matches!(error, ChoosePathError::EmptyGid { .. }), "{error}");
    Ok(())
}

/// For every GID of the port that maps an interface address, a lookup of that address finds a port
/// with the same address, or an InfiniBand port by its LID.
fn a_device_is_found_by_its_address(test_device: &TestDevice) -> Outcome {
    let (list, context) = (test_device.list(), test_device.open());
    let mut tried = 0;
    for entry in context.query_gid_table().unwrap() {
        let is_used = matches!(entry.gid_type(), GidType::RoceV2 | GidType::InfiniBand);
        if entry.port_num() != u32::from(test_device.port) || !is_used {
            continue;
        }
        let Some(ip) = entry.gid().to_ipv4_mapped() else { continue };
        for address in [SocketAddr::from((ip, 18515)), SocketAddr::from((ip.to_ipv6_mapped(), 0))] {
            let (found, path) = list.open_by_address(address).unwrap();
            if entry.gid_type() == GidType::InfiniBand {
                let lid = found.query_port(path.port_num()).unwrap().lid();
                assert_eq!((path.gid(), path.lid()), (None, lid), "{}", path.reason());
                continue;
            }
            assert_eq!(path.gid(), Some(entry.gid()), "{}", path.reason());
            let own = found.query_gid(path.port_num(), u32::from(path.gid_index().unwrap())).unwrap();
            assert_eq!(own, entry.gid());
            assert!(path.reason().contains(&format!("it stands for {ip}")), "{}", path.reason());
        }
        tried += 1;
    }
    if tried == 0 {
        skip!("the port has no GID of an IPv4 address");
    }
    Ok(())
}

fn an_address_of_no_device_is_explained(test_device: &TestDevice) -> Outcome {
    // Of a range that is for documentation: nobody has it.
    let error = test_device.list().open_by_address(([192, 0, 2, 77], 1).into()).unwrap_err();
    let ChoosePathError::NoGidOfAddress { interface, seen, .. } = &error else { panic!("{error}") };
    assert_eq!(*interface, None);
    assert!(seen.iter().any(|seen| seen.starts_with(&format!("{} port ", test_device.name))), "{error}");
    assert!(error.to_string().contains("no RDMA port has a GID for 192.0.2.77"), "{error}");
    let error = test_device.list().open_by_address(([0, 0, 0, 0], 1).into()).unwrap_err();
    assert!(matches!(error, ChoosePathError::NoInterfaceAddress { .. }), "{error}");
    Ok(())
}

fn contexts_are_told_apart(test_device: &TestDevice) -> Outcome {
    let (one, two) = (test_device.open(), test_device.open());
    assert_ne!(one, two);
    assert_eq!(one, one.clone());
    assert_eq!(one.guid(), two.guid());
    assert_eq!(one.provider(), two.provider());
    Ok(())
}

fn a_device_outlives_its_list(test_device: &TestDevice) -> Outcome {
    let list = test_device.list();
    let context = list.find(&test_device.name).unwrap().open().unwrap();
    drop(list);
    assert_eq!(context.name(), test_device.name);
    assert!(context.query_port(test_device.port).is_ok());
    Ok(())
}

/// Each device uses its provider's functions, and their objects cannot be mixed.
fn devices_of_two_providers_are_open_at_once(test_device: &TestDevice) -> Outcome {
    let fake = Fake::new();
    let (ours, theirs) = (test_device.open(), fake.context());
    assert_ne!(ours, theirs);
    assert_ne!(ours.provider(), theirs.provider());
    assert_eq!((ours.name(), theirs.name()), (test_device.name.clone(), "fake0".to_owned()));
    let (our_pd, their_pd) = (ours.alloc_pd().unwrap(), theirs.alloc_pd().unwrap());
    let our_cq = ours.create_cq_builder().build_generic().unwrap();
    let their_cq = theirs.create_cq_builder().build_generic().unwrap();
    for (pd, cq) in [(&our_pd, &their_cq), (&their_pd, &our_cq)] {
        let error = pd.create_qp_builder().setup_send_cq(cq).setup_recv_cq(cq).build_generic().unwrap_err();
        assert!(matches!(error, CreateQueuePairError::OtherContext { .. }), "{error}");
    }
    for (pd, cq) in [(&our_pd, &our_cq), (&their_pd, &their_cq)] {
        pd.create_qp_builder().setup_send_cq(cq).setup_recv_cq(cq).build_generic().unwrap();
    }
    Ok(())
}
