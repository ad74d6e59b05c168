//! Tests of domains, multicast groups, options, imports and capabilities on a device.

use sideway::ErrorKind;
use sideway::ibverbs::AccessFlags;
use sideway::ibverbs::address::Gid;
use sideway::ibverbs::device_attr::DeviceCapabilityFlags;
use sideway::ibverbs::device_context::DeviceContext;
use sideway::ibverbs::ece::Ece;
use sideway::ibverbs::flow::FlowAttribute;
use sideway::ibverbs::fork::{ForkStatus, fork_init, is_fork_initialized};
use sideway::ibverbs::partition::PartitionKey;
use sideway::ibverbs::protection_domain::ProtectionDomain;
use sideway::ibverbs::queue_pair::{GenericQueuePair, QueuePair, QueuePairType};
use sideway::ibverbs::thread_domain::ThreadDomain;
use sideway::memory::{Buffer, BufferKind};

use crate::harness::{Outcome, Skip, Suite, TestDevice};
use crate::support::errors::assert_error;

pub(crate) fn cases(suite: &mut Suite) {
    cases!(suite:
        every_partition_key_is_found_by_its_index,
        a_device_has_an_index_of_its_own,
        the_speed_of_a_port_is_that_of_its_lanes,
        all_attributes_have_values,
        forks_are_safe,
        a_parent_domain_is_a_domain,
        a_domain_that_is_extended_lives_as_long_as_its_parent,
        allocators_are_used_or_refused_by_name,
        a_pair_joins_a_group_until_its_membership_ends,
        a_connected_pair_joins_no_group,
        a_host_is_no_group,
        options_are_negotiated,
        a_context_is_imported_by_its_descriptor,
        imported_objects_name_the_same_object,
        a_descriptor_of_no_device_comes_back,
        flows_and_counters_are_there_or_unsupported,
    );
}

fn every_partition_key_is_found_by_its_index(test_device: &TestDevice) -> Outcome {
    let context = test_device.open();
    let table = context.query_pkey_table(test_device.port).unwrap();
    assert_eq!(table.len(), usize::from(context.query_port(test_device.port).unwrap().pkey_tbl_len()));
    assert_eq!(table.first(), Some(&PartitionKey::DEFAULT));
    assert_eq!(context.pkey_index(test_device.port, PartitionKey::DEFAULT).unwrap(), Some(0));
    let unknown = (1..0x7fff).map(PartitionKey::new).find(|key| !table.contains(key)).unwrap();
    assert_eq!(context.pkey_index(test_device.port, unknown).unwrap(), None);
    assert!(context.query_pkey(test_device.port, table.len() as u16).is_err());
    assert!(context.query_pkey(0, 0).is_err() && context.pkey_index(0, PartitionKey::DEFAULT).is_err());
    Ok(())
}

fn a_device_has_an_index_of_its_own(test_device: &TestDevice) -> Outcome {
    let list = test_device.list();
    let indices: Vec<_> = list.iter().filter_map(|device| device.index()).collect();
    if indices.is_empty() {
        skip!("the library or the kernel has no indices");
    }
    let mut unique = indices.clone();
    unique.sort_unstable();
    unique.dedup();
    assert_eq!((unique.len(), indices.len()), (indices.len(), list.len()));
    Ok(())
}

fn the_speed_of_a_port_is_that_of_its_lanes(test_device: &TestDevice) -> Outcome {
    let context = test_device.open();
    match context.query_port_speed(test_device.port) {
        Ok(speed) => {
            let port = context.query_port(test_device.port).unwrap();
            if let (Some(lanes), Some(each)) = (port.active_width().lanes(), port.active_speed().gbps()) {
                assert!((speed.gbps() - f64::from(lanes) * each).abs() < 0.5 * speed.gbps(), "{speed:?}");
            }
            assert_eq!(context.query_port_speed(0).unwrap_err().kind(), ErrorKind::Os);
        }
        Err(error) if error.unsupported().is_some() => skip!("{error}"),
        Err(error) => panic!("{error}"),
    }
    Ok(())
}

fn all_attributes_have_values(test_device: &TestDevice) -> Outcome {
    let context = test_device.open();
    let attr = context.query_device().unwrap();
    assert_eq!(u64::from(attr.raw().orig_attr.device_cap_flags), attr.device_cap_flags() & 0xffff_ffff);
    assert!(!attr.capability_flags().contains(DeviceCapabilityFlags::RawIpChecksum), "no NIC is at hand");
    assert_eq!(attr.phys_port_cnt_ex(), u32::from(attr.phys_port_cnt()));
    assert!(attr.max_mcast_grp() > 0 && attr.max_mcast_qp_attach() > 0);
    // Capabilities that no software device has.
    assert_eq!(
        (attr.tso_caps().max_tso, attr.rss_caps().max_rwq_indirection_tables, attr.max_wq_type_rq()),
        (0, 0, 0)
    );
    assert!(!attr.tso_caps().supported_qpts.contains(QueuePairType::RawPacket));
    assert!(attr.raw_packet_caps().is_empty() && attr.tm_caps().max_num_tags == 0);
    let port = context.query_port(test_device.port).unwrap();
    // Values of an Ethernet port. The counters of bad keys depend on other tests.
    assert_eq!((port.sm_sl(), port.subnet_timeout()), (0, 0));
    assert!(port.capability_flags().bits() == port.port_cap_flags() && port.capability_flags2().is_empty());
    Ok(())
}

fn forks_are_safe(test_device: &TestDevice) -> Outcome {
    let provider = test_device.open().provider();
    match fork_init(provider) {
        // `man ibv_fork_init` requires the call before any registration, but other tests of this
        // process have registered memory.
        Err(error) if !test_device.open().is_soft() && error.errno() == Some(libc::EINVAL) => {
            skip!("{error}")
        }
        result => result.unwrap(),
    }
    match is_fork_initialized(provider) {
        Ok(status) => assert_ne!(status, ForkStatus::Disabled),
        Err(error) => skip!("{error}"),
    }
    Ok(())
}

fn thread_domain(context: &DeviceContext) -> Result<ThreadDomain, Skip> {
    match context.alloc_td() {
        Ok(td) => Ok(td),
        Err(error) if error.unsupported().is_some() => skip!("{error}"),
        Err(error) => panic!("{error}"),
    }
}

fn parent_domain(context: &DeviceContext, pd: &ProtectionDomain) -> Result<ProtectionDomain, Skip> {
    let td = thread_domain(context)?;
    let mut builder = pd.create_parent_domain_builder();
    // SAFETY: this test uses the objects in the domain one after the other.
    unsafe { builder.setup_thread_domain(&td) };
    Ok(builder.build().unwrap())
}

fn qp(context: &DeviceContext, pd: &ProtectionDomain, qp_type: QueuePairType) -> GenericQueuePair {
    let cq = context.create_cq_builder().setup_cqe(16).build_generic().unwrap();
    let mut builder = pd.create_qp_builder();
    builder.setup_qp_type(qp_type).setup_send_cq(&cq).setup_recv_cq(&cq).build_generic().unwrap()
}

fn a_parent_domain_is_a_domain(test_device: &TestDevice) -> Outcome {
    let context = test_device.open();
    let pd = context.alloc_pd().unwrap();
    let parent = parent_domain(&context, &pd)?;
    let buffer =
        parent.reg_buffer(Buffer::new(BufferKind::Private, 4096).unwrap(), AccessFlags::LocalWrite).unwrap();
    for qp_type in [
        QueuePairType::ReliableConnection,
        QueuePairType::UnreliableConnection,
        QueuePairType::UnreliableDatagram,
    ] {
        assert_eq!(qp(&context, &parent, qp_type).control().pd().as_raw(), parent.as_raw());
    }
    drop(buffer);
    Ok(())
}

/// Holds for any order of drops.
fn a_domain_that_is_extended_lives_as_long_as_its_parent(test_device: &TestDevice) -> Outcome {
    let context = test_device.open();
    let pd = context.alloc_pd().unwrap();
    let parent = parent_domain(&context, &pd)?;
    let second = parent_domain(&context, &parent)?;
    drop((pd, parent));
    let pair = qp(&context, &second, QueuePairType::ReliableConnection);
    drop((context, second));
    assert!(pair.control().state().is_ok());
    Ok(())
}

unsafe extern "C" fn no_memory(
    _: *mut sideway::sys::types::ibv_pd,
    _: *mut std::ffi::c_void,
    _: usize,
    _: usize,
    _: u64,
) -> *mut std::ffi::c_void {
    sideway::sys::verbs::IBV_ALLOCATOR_USE_DEFAULT
}

unsafe extern "C" fn nothing_to_free(
    _: *mut sideway::sys::types::ibv_pd,
    _: *mut std::ffi::c_void,
    _: *mut std::ffi::c_void,
    _: u64,
) {
}

fn allocators_are_used_or_refused_by_name(test_device: &TestDevice) -> Outcome {
    let context = test_device.open();
    thread_domain(&context)?;
    let mut builder = context.alloc_pd().unwrap().create_parent_domain_builder();
    // SAFETY: both functions leave the allocation to the library.
    unsafe { builder.setup_allocators(no_memory, nothing_to_free, std::ptr::null_mut()) };
    match builder.build() {
        Ok(parent) => drop(qp(&context, &parent, QueuePairType::ReliableConnection)),
        Err(error) if error.unsupported().is_some() => {
            assert_eq!(error.verb(), "ibv_alloc_parent_domain");
            assert!(error.to_string().contains("with allocators"), "{error}");
        }
        Err(error) => panic!("{error}"),
    }
    Ok(())
}

/// `::ffff:239.1.78.N`
fn group(number: u8) -> Gid {
    Gid { raw: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 1, 78, number] }
}

fn a_pair_joins_a_group_until_its_membership_ends(test_device: &TestDevice) -> Outcome {
    let context = test_device.open();
    let pd = context.alloc_pd().unwrap();
    let pair = qp(&context, &pd, QueuePairType::UnreliableDatagram);
    assert!(group(1).is_multicast());
    let first = pair.control().attach_mcast(group(1), 0).unwrap();
    let second = pair.control().attach_mcast(group(2), 0).unwrap();
    let error = pair.control().attach_mcast(group(1), 0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}");
    first.detach().unwrap();
    let again = pair.control().attach_mcast(group(1), 0).unwrap();
    // Destroying a pair in a group fails: the memberships keep it.
    drop((pair, context, pd));
    assert!(second.queue_pair().state().is_ok());
    drop((second, again));
    Ok(())
}

fn a_connected_pair_joins_no_group(test_device: &TestDevice) -> Outcome {
    let context = test_device.open();
    let pd = context.alloc_pd().unwrap();
    let pair = qp(&context, &pd, QueuePairType::ReliableConnection);
    let error = pair.control().attach_mcast(group(3), 0).unwrap_err();
    let object = format!("queue pair {:#x}", pair.qp_number());
    assert_eq!((error.object(), error.errno()), (Some(&*object), Some(libc::EINVAL)), "{error}");
    Ok(())
}

fn a_host_is_no_group(test_device: &TestDevice) -> Outcome {
    let context = test_device.open();
    let pd = context.alloc_pd().unwrap();
    let pair = qp(&context, &pd, QueuePairType::UnreliableDatagram);
    let gid = context.query_gid_table().unwrap()[0].gid();
    assert!(!gid.is_multicast());
    assert!(pair.control().attach_mcast(gid, 0).is_err());
    Ok(())
}

fn options_are_negotiated(test_device: &TestDevice) -> Outcome {
    let context = test_device.open();
    let pd = context.alloc_pd().unwrap();
    let (a, b) = (
        qp(&context, &pd, QueuePairType::ReliableConnection),
        qp(&context, &pd, QueuePairType::ReliableConnection),
    );
    let offer = match a.control().query_ece() {
        Ok(ece) => ece,
        Err(error) if error.unsupported().is_some() => skip!("{error}"),
        Err(error) => panic!("{error}"),
    };
    let accepted = b.control().set_ece(offer).unwrap();
    assert_eq!(a.control().set_ece(accepted).unwrap(), accepted);
    assert_eq!(a.control().query_ece().unwrap(), b.control().query_ece().unwrap());
    let foreign = Ece { vendor_id: offer.vendor_id ^ 1, ..offer };
    let error = a.control().set_ece(foreign).unwrap_err();
    let hexadecimal = |number: u32| format!("{number:#x}");
    let wanted = [hexadecimal(foreign.vendor_id), hexadecimal(foreign.options)];
    assert_error(&error, ErrorKind::Os, &[("vendor_id", &wanted[0]), ("options", &wanted[1])]);
    Ok(())
}

fn imported(context: &DeviceContext) -> Result<DeviceContext, Skip> {
    let Some(descriptor) = context.command_fd() else { skip!("the context has no descriptor") };
    match DeviceContext::import(context.provider(), descriptor.try_clone_to_owned().unwrap()) {
        Ok(imported) => Ok(imported),
        Err(error) if error.error.unsupported().is_some() => skip!("{error}"),
        Err(error) => panic!("{error}"),
    }
}

fn a_context_is_imported_by_its_descriptor(test_device: &TestDevice) -> Outcome {
    let context = test_device.open();
    let imported = imported(&context)?;
    assert_ne!(imported, context);
    assert_eq!((imported.name(), imported.guid()), (context.name(), context.guid()));
    drop(context);
    let pd = imported.alloc_pd().unwrap();
    assert!(qp(&imported, &pd, QueuePairType::ReliableConnection).control().state().is_ok());
    Ok(())
}

fn imported_objects_name_the_same_object(test_device: &TestDevice) -> Outcome {
    let context = test_device.open();
    let other = imported(&context)?;
    let pd = context.alloc_pd().unwrap();
    let mut memory = vec![0_u8; 4096];
    // SAFETY: the memory outlives the region, and nobody else gets its keys.
    let mr = unsafe { pd.reg_mr(memory.as_mut_ptr(), memory.len(), AccessFlags::LocalWrite) }.unwrap();
    // SAFETY: domain and region outlive the imports.
    let (same_pd, nowhere) = unsafe { (other.import_pd(pd.handle()).unwrap(), other.import_pd(0x7fff_fff0)) };
    assert!(same_pd.is_imported() && nowhere.is_err());
    // SAFETY: domain and region outlive the imports.
    let same_mr = unsafe { same_pd.import_mr(mr.handle()) }.unwrap();
    assert_eq!((same_mr.lkey(), same_mr.rkey(), same_mr.region_len()), (mr.lkey(), mr.rkey(), 4096));
    // Any order is allowed, as long as imports are dropped before their owners.
    drop((other, same_pd));
    drop(same_mr);
    mr.close().unwrap();
    Ok(())
}

fn a_descriptor_of_no_device_comes_back(test_device: &TestDevice) -> Outcome {
    let context = test_device.open();
    imported(&context)?;
    let file = std::fs::File::open("/dev/null").unwrap();
    let error = DeviceContext::import(context.provider(), file.into()).unwrap_err();
    assert_eq!(error.error.kind(), ErrorKind::Os, "{error}");
    assert!(error.object.try_clone().is_ok(), "it is open");
    Ok(())
}

fn flows_and_counters_are_there_or_unsupported(test_device: &TestDevice) -> Outcome {
    let context = test_device.open();
    if context.query_device().unwrap().capability_flags().contains(DeviceCapabilityFlags::ManagedFlowSteering)
    {
        skip!("{} steers flows, which no device at hand does", test_device.name);
    }
    let pd = context.alloc_pd().unwrap();
    let pair = qp(&context, &pd, QueuePairType::UnreliableDatagram);
    let error = pair.control().create_flow(&FlowAttribute::new(test_device.port)).unwrap_err();
    assert!(error.unsupported().is_some() && error.verb() == "ibv_create_flow", "{error}");
    let error = context.create_counters().unwrap_err();
    assert!(error.unsupported().is_some(), "{error}");
    assert!(error.to_string().contains(&test_device.name), "{error}");
    Ok(())
}
