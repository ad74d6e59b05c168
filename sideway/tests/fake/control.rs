//! The control path: everything that can fail does, and every value is garbage.

use std::error::Error;

use sideway::ibverbs::AccessFlags;
use sideway::ibverbs::completion::{
    BasicCompletionQueue, CreateCompletionQueueError, ExtendedCompletionQueue,
};
use sideway::ibverbs::connect::{ChoosePathError, LocalPath};
use sideway::ibverbs::device::{DeviceList, FindDeviceError, GetDeviceListError};
use sideway::ibverbs::device_context::QueryGidTableError;
use sideway::ibverbs::memory_region::RegisterMemoryRegionError;
use sideway::ibverbs::queue_pair::{
    BasicQueuePair, CreateQueuePairError, ExtendedQueuePair, GenericQueuePair, ModifyQueuePairError,
    QueuePair, QueuePairAttribute, QueuePairAttributeMask, QueuePairState, QueuePairType,
};

use super::Setup;
use super::support::fake::{Fake, Lies, old_provider};
use super::support::flavour::{CqFlavour, QpFlavour};

/// The `errno` values that matter to some function here, and some that do not.
const ERRNOS: [i32; 8] = [
    libc::EPERM,
    libc::ENOMEM,
    libc::EINVAL,
    libc::ENOSYS,
    libc::EOPNOTSUPP,
    libc::EBUSY,
    libc::EAGAIN,
    4711,
];

fn errno(error: &dyn Error) -> Option<i32> {
    let mut source = error.source();
    while let Some(error) = source {
        if let Some(error) = error.downcast_ref::<std::io::Error>() {
            return error.raw_os_error();
        }
        source = error.source();
    }
    None
}

/// Every error says which number it came with, in one line.
fn assert_says(error: &dyn Error, expected: i32) {
    assert_eq!(errno(error), Some(expected), "{error}");
    assert!(!error.to_string().contains('\n'), "{error}");
}

#[test]
fn the_device_list_can_fail() {
    for expected in ERRNOS {
        let error = Fake::lying(|l| l.get_device_list = expected).list().unwrap_err();
        assert_says(&error, expected);
        let no_kernel = matches!(error, GetDeviceListError::NoKernelSupport { .. });
        assert_eq!(no_kernel, expected == libc::ENOSYS, "{error}");
    }
}

#[test]
fn a_negative_count_of_devices_is_none() {
    let fake = Fake::lying(|l| l.device_count = Some(-7));
    let list = fake.list().unwrap();
    assert!(list.is_empty() && list.get(0).is_none() && list.iter().next().is_none());
    assert_eq!(list.first().unwrap_err(), FindDeviceError::NoDevice);
    assert_eq!(list.find("fake0").unwrap_err(), FindDeviceError::NoDevice);
}

#[test]
fn a_device_is_found_by_name_and_a_wrong_name_lists_the_right_ones() {
    let fake = Fake::lying(|l| l.device_count = Some(2));
    let list = fake.list().unwrap();
    assert_eq!(list.find("fake0").unwrap().name(), "fake0");
    assert_eq!(
        list.find("mlx5_0").unwrap_err().to_string(),
        "no RDMA device named `mlx5_0`; there are fake0, fake0"
    );
    assert!(list.get(2).is_none() && list.get(usize::MAX).is_none());
}

#[test]
fn unknown_values_of_a_device_are_values() {
    let fake = Fake::new();
    let list = fake.list().unwrap();
    let device = list.first().unwrap();
    assert_eq!(device.transport_type().to_string(), "Unknown(4711)");
    assert_eq!(device.node_type().to_string(), "Unknown(4712)");
    assert_eq!(device.guid().to_string(), "0002:c903:00a1:b2c3");
}

#[test]
fn opening_a_device_can_fail() {
    for expected in ERRNOS {
        let fake = Fake::lying(|l| l.open_device = expected);
        let error = fake.list().unwrap().first().unwrap().open().unwrap_err();
        assert_says(&error, expected);
        assert_eq!(error.device, "fake0");
    }
}

/// The first device, which lies.
fn lying(about: impl FnOnce(&mut Lies)) -> (Fake, sideway::ibverbs::device_context::DeviceContext) {
    let fake = Fake::lying(about);
    let context = fake.context();
    (fake, context)
}

#[test]
fn garbage_attributes_are_values() {
    let (_fake, context) = lying(|l| l.garbage_attributes = true);
    let device = context.query_device().unwrap();
    assert_eq!(device.max_cqe(), -1);
    assert_eq!(device.fw_ver().chars().count(), 64, "the version of a firmware without an end");
    assert_eq!(device.atomic_cap().to_string(), format!("Unknown({})", u32::MAX));
    let port = context.query_port(1).unwrap();
    assert_eq!(port.port_state().to_string(), "Unknown(57005)");
    assert_eq!(port.active_mtu().bytes(), None);
    assert_eq!(port.active_mtu().to_string(), "Unknown(48879)");
    assert_eq!((port.active_width().lanes(), port.active_speed().gbps()), (None, None));
    assert_eq!(port.link_layer().to_string(), "Unknown(238)");
    assert_eq!(port.phys_state().to_string(), "Unknown(238)");
    let entry = context.query_gid_ex(1, 0).unwrap();
    assert_eq!(entry.gid_type().to_string(), "Unknown(4711)");
    let _ = format!("{device:?} {port:?} {entry:?} {context:?}");
}

#[test]
fn queries_can_fail() {
    for expected in ERRNOS.into_iter().filter(|e| ![libc::EOPNOTSUPP, libc::ENOSYS].contains(e)) {
        let (_fake, context) = lying(|l| (l.query_device, l.query_port) = (expected, expected));
        assert_says(&context.query_device().unwrap_err(), expected);
        assert_says(&context.query_port(1).unwrap_err(), expected);
        assert!(matches!(context.query_gid_table().unwrap_err(), QueryGidTableError::Device(_)));
        let error = LocalPath::choose(&context, 1, None).unwrap_err();
        assert!(matches!(error, ChoosePathError::NoSuchPort { ports: 0, .. }), "{error}");
        // The limits are not known, so that none is said to be exceeded.
        let error = context.create_cq_builder().setup_cqe(u32::MAX).build().unwrap_err();
        assert!(matches!(error, CreateCompletionQueueError::Ibverbs { .. }), "{error}");
    }
}

#[test]
fn a_gid_table_of_any_length_and_result_is_survived() {
    for length in [i32::MIN, -1, 0, 1, 256, i32::MAX] {
        let (_fake, context) = lying(|l| l.gid_tbl_len = Some(length));
        let entries = context.query_gid_table().unwrap();
        assert_eq!(entries.len(), usize::from(length > 0), "{length}");
        let error = LocalPath::choose(&context, 1, Some(255));
        match length {
            256.. => drop(error.unwrap()),
            _ => {
                let error = error.unwrap_err();
                assert!(matches!(error, ChoosePathError::GidIndexOutOfRange { .. }), "{error}");
                assert!(error.to_string().contains("GID index 255 is out of range"), "{error}");
            }
        }
    }
    for result in [isize::MIN, -4711, -1, isize::MAX] {
        let (_fake, context) = lying(|l| l.gid_table_result = Some(result));
        match context.query_gid_table() {
            Ok(entries) => assert_eq!(entries.len(), 4, "no more than there was room for"),
            Err(error) => assert!(result < 0, "{error}"),
        }
    }
    for result in [i32::MIN, -libc::ENODATA, -1, i32::MAX] {
        let (_fake, context) = lying(|l| l.gid_entry_result = result);
        assert!(context.query_gid_ex(1, 0).is_err());
        assert!(LocalPath::choose(&context, 1, Some(0)).is_err());
    }
}

#[test]
fn a_gid_index_beyond_all_is_refused() {
    let (_fake, context) = lying(|_| {});
    assert_says(&context.query_gid(1, u32::MAX).unwrap_err(), libc::EINVAL);
    assert!(context.query_gid(1, 4).is_err());
    assert_eq!(context.query_gid(1, 1).unwrap().to_string(), "0000:0000:0000:0000:0000:ffff:ac1e:0818");
}

#[test]
#[cfg_attr(miri, ignore = "asks the system for its limits")]
fn domains_and_regions_can_fail() {
    for expected in ERRNOS {
        let (_fake, context) = lying(|l| l.alloc_pd = expected);
        assert_says(&context.alloc_pd().unwrap_err(), expected);
        let (_fake, context) = lying(|l| l.reg_mr = expected);
        let pd = context.alloc_pd().unwrap();
        for access in
            [AccessFlags::LocalWrite, AccessFlags::RelaxedOrdering, AccessFlags::from_bits_retain(!0)]
        {
            // SAFETY: no bytes are registered.
            let error = unsafe { pd.reg_mr(std::ptr::null_mut(), 0, access) }.unwrap_err();
            assert_says(&error, expected);
            let limit = matches!(error, RegisterMemoryRegionError::MemoryLockLimit { .. });
            assert!(!limit || [libc::ENOMEM, libc::EAGAIN, libc::EPERM].contains(&expected), "{error}");
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "leaks what cannot be destroyed")]
fn a_region_whose_close_fails_comes_back() {
    let fake = Fake::lying(|l| l.destroy = libc::EBUSY);
    let pd = fake.pd();
    // SAFETY: no bytes are registered.
    let mr = unsafe { pd.reg_mr(std::ptr::null_mut(), 0, AccessFlags::LocalWrite) }.unwrap();
    let lkey = mr.lkey();
    let error = mr.close().unwrap_err();
    assert_eq!(error.source.raw_os_error(), Some(libc::EBUSY));
    assert_eq!(error.region.lkey(), lkey);
    drop(error);
    let fake = Fake::new();
    // SAFETY: no bytes are registered.
    let mr = unsafe { fake.pd().reg_mr(std::ptr::null_mut(), 0, AccessFlags::LocalWrite) }.unwrap();
    mr.close().unwrap();
}

#[test]
fn completion_queues_can_fail() {
    for expected in ERRNOS {
        let (_fake, context) = lying(|l| (l.create_cq, l.create_cq_ex) = (expected, expected));
        let mut builder = context.create_cq_builder();
        assert_says(&builder.build().unwrap_err(), expected);
        let error = builder.build_ex().unwrap_err();
        assert_says(&error, expected);
        let unsupported = matches!(error, CreateCompletionQueueError::Unsupported { .. });
        assert_eq!(unsupported, [libc::EOPNOTSUPP, libc::ENOSYS].contains(&expected), "{error}");
        assert_says(&builder.build_generic().unwrap_err(), expected);
        let error = builder.setup_cqe(1 << 21).build().unwrap_err();
        assert!(
            matches!(error, CreateCompletionQueueError::TooManyEntries { limit: 0x10_0000, .. }),
            "{error}"
        );
        let error = builder.setup_cqe(1).setup_comp_vector(u32::MAX).build().unwrap_err();
        assert!(matches!(error, CreateCompletionQueueError::Ibverbs { .. }), "{error}");
    }
}

#[test]
fn a_batch_is_never_longer_than_its_queue() {
    let (_fake, context) = lying(|_| {});
    let mut cq = context.create_cq_builder().setup_cqe(4).setup_poll_batch(u32::MAX).build().unwrap();
    assert!(cq.start_poll().unwrap().next().is_none());
    let mut cq = context.create_cq_builder().setup_cqe(0).setup_poll_batch(0).build().unwrap();
    assert!(cq.start_poll().unwrap().next().is_none());
}

#[test]
fn queue_pairs_can_fail() {
    for expected in ERRNOS {
        let fake = Fake::lying(|l| (l.create_qp, l.create_qp_ex) = (expected, expected));
        let context = fake.context();
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq_builder().build_generic().unwrap();
        let mut builder = pd.create_qp_builder();
        builder.setup_send_cq(&cq).setup_recv_cq(&cq);
        assert_says(&builder.build().unwrap_err(), expected);
        let error = builder.build_ex().unwrap_err();
        assert_says(&error, expected);
        let unsupported = matches!(error, CreateQueuePairError::Unsupported { .. });
        assert_eq!(unsupported, [libc::EOPNOTSUPP, libc::ENOSYS].contains(&expected), "{error}");
        assert_says(&builder.build_generic().unwrap_err(), expected);
        let error = builder.setup_max_send_wr(1 << 15).build().unwrap_err();
        let limit = CreateQueuePairError::LimitExceeded {
            what: "max_send_wr",
            asked: 1 << 15,
            limit_name: "max_qp_wr",
            limit: 1 << 14,
            source: std::io::Error::from_raw_os_error(expected),
        };
        assert_eq!(error.to_string(), limit.to_string());
    }
}

#[test]
fn a_queue_pair_needs_queues_of_its_own_context_and_a_known_type() {
    let fake = Fake::new();
    let (context, other) = (fake.context(), fake.context());
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq_builder().build().unwrap();
    let foreign = other.create_cq_builder().build_ex().unwrap();
    let mut builder = pd.create_qp_builder();
    let missing = |which| CreateQueuePairError::MissingCompletionQueue { which }.to_string();
    assert_eq!(builder.build().unwrap_err().to_string(), missing("send"));
    builder.setup_send_cq(&cq);
    assert_eq!(builder.build_ex().unwrap_err().to_string(), missing("receive"));
    builder.setup_recv_cq(&foreign);
    let error = builder.build_generic().unwrap_err();
    assert!(matches!(error, CreateQueuePairError::OtherContext { which: "receive" }), "{error}");
    builder.setup_recv_cq(&cq).setup_qp_type(QueuePairType::from_raw(0xff));
    let error = builder.build().unwrap_err();
    assert!(matches!(error, CreateQueuePairError::UnknownType { .. }), "{error}");
}

/// Every null among what sideway calls is found when the object is made, not when it is called.
#[test]
fn missing_operations_are_found_at_creation() {
    fn incomplete(missing: &'static [&'static str]) -> (Option<String>, Option<String>) {
        let (_fake, context) = lying(|l| l.missing = missing);
        let pd = context.alloc_pd().unwrap();
        let classic = context.create_cq_builder().build();
        let extended = context.create_cq_builder().build_ex();
        let said = classic.as_ref().err().or(extended.as_ref().err()).map(ToString::to_string);
        let Some(cq) = extended.ok() else { return (said, None) };
        let mut builder = pd.create_qp_builder();
        builder.setup_send_cq(&cq).setup_recv_cq(&cq);
        let (classic, extended) = (builder.build(), builder.build_ex());
        (said, classic.err().or(extended.err()).map(|error| error.to_string()))
    }
    fn assert_names(said: Option<String>, missing: &[&str]) {
        let said = said.unwrap_or_else(|| panic!("{missing:?} is not missed"));
        assert!(said.contains(&format!("`{}`", missing[0])), "{said}");
    }
    let of_queues: [&[&str]; 7] = [
        &["poll_cq"],
        &["start_poll"],
        &["next_poll"],
        &["end_poll"],
        &["read_opcode"],
        &["read_vendor_err"],
        &["read_wc_flags"],
    ];
    for missing in of_queues {
        assert_names(incomplete(missing).0, missing);
    }
    let of_pairs: [&[&str]; 7] = [
        &["post_send"],
        &["post_recv"],
        &["wr_start"],
        &["wr_complete"],
        &["wr_abort"],
        &["wr_set_sge"],
        &["wr_set_sge_list"],
    ];
    for missing in of_pairs {
        assert_names(incomplete(missing).1, missing);
    }
    assert!(incomplete(&["qp_ex"]).1.unwrap().contains("`ibv_qp_to_qp_ex`"));
}

#[test]
fn generic_falls_back_to_classic_where_there_is_nothing_extended() {
    let fakes: [&dyn Fn(&mut Lies); 4] = [
        &|l| l.no_extended_verbs = true,
        &|l| (l.create_cq_ex, l.create_qp_ex) = (libc::EOPNOTSUPP, libc::ENOSYS),
        &|l| l.missing = &["start_poll", "wr_start"],
        &|l| l.missing = &["read_wc_flags", "qp_ex"],
    ];
    for about in fakes {
        let fake = Fake::lying(about);
        let mut setup =
            Setup::<GenericQueuePair, sideway::ibverbs::completion::GenericCompletionQueue>::new(&fake);
        assert!(!setup.qp.is_extended());
        assert!(matches!(setup.cq, sideway::ibverbs::completion::GenericCompletionQueue::Basic(_)));
        setup.write([1, 2, 3]);
        assert_eq!(setup.poll(), [1, 2, 3]);
    }
}

/// SoftRoCE's extended pairs get inline data and lists of entries wrong, and its classic ones do not.
#[test]
fn what_an_extended_pair_gets_wrong_is_left_to_the_classic_one() {
    for (inline, entries, extended) in [(0, 1, true), (1, 1, false), (0, 2, false)] {
        let fake = Fake::lying(|l| l.vendor_id = 0xff_ffff);
        let context = fake.context();
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq_builder().build().unwrap();
        let mut builder = pd.create_qp_builder();
        builder.setup_send_cq(&cq).setup_recv_cq(&cq);
        builder.setup_max_inline_data(inline).setup_max_send_sge(entries);
        assert_eq!(builder.build_generic().unwrap().is_extended(), extended);
        let cap = builder.build_ex().unwrap().control().capability();
        assert_eq!((cap.max_inline_data, cap.max_send_sge), (0, 1));
        let cap = builder.build().unwrap().control().capability();
        assert_eq!((cap.max_inline_data, cap.max_send_sge), (inline, entries));
    }
}

#[test]
fn a_library_without_later_functions_is_enough() {
    let _fake = Fake::new();
    let context = DeviceList::from_provider(old_provider()).unwrap().first().unwrap().open().unwrap();
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq_builder().build_ex().unwrap();
    let mut builder = pd.create_qp_builder();
    builder.setup_send_cq(&cq).setup_recv_cq(&cq);
    let error = builder.build_ex().unwrap_err();
    assert!(matches!(error, CreateQueuePairError::Incomplete { operation: "ibv_qp_to_qp_ex" }), "{error}");
    assert!(!builder.build_generic().unwrap().is_extended());
    if !cfg!(miri) {
        // SAFETY: no bytes are registered.
        let error = unsafe { pd.reg_mr(std::ptr::null_mut(), 0, AccessFlags::RelaxedOrdering) }.unwrap_err();
        assert_says(&error, libc::EOPNOTSUPP);
    }
}

#[test]
fn granted_capabilities_of_any_size_are_survived() {
    fn check<Q: QpFlavour>(granted: u32) {
        let fake = Fake::lying(|l| l.granted = Some(granted));
        let context = fake.context();
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq_builder().build().unwrap();
        let mut builder = pd.create_qp_builder();
        match Q::make(builder.setup_send_cq(&cq).setup_recv_cq(&cq)) {
            Ok(qp) => assert_eq!(qp.control().capability().max_send_sge, granted),
            Err(error) => assert!(error.to_string().contains("granted"), "{error}"),
        }
    }
    for_each_qp!(check(0));
    for_each_qp!(check(1));
    if !cfg!(miri) {
        for_each_qp!(check(u32::MAX));
        for_each_qp!(check(1 << 20));
    }
}

#[test]
fn modify_diagnoses_whatever_the_device_says() {
    for expected in ERRNOS {
        for state in [0, 1, 6, 7, 0xdead_beef] {
            let fake = Fake::lying(|l| {
                l.modify_qp = expected;
                l.queried_state = Some(state);
            });
            let setup = Setup::<BasicQueuePair, BasicCompletionQueue>::new(&fake);
            let mut attr = QueuePairAttribute::new();
            attr.setup_state(QueuePairState::from_raw(0xdead_beef)).setup_port(1);
            let error = setup.qp.modify(&attr).unwrap_err();
            assert_says(&error, expected);
            let transition = matches!(error, ModifyQueuePairError::InvalidTransition { .. });
            assert_eq!(transition, expected == libc::EINVAL, "{error}");
        }
    }
}

#[test]
fn a_failure_that_cannot_be_diagnosed_is_still_one() {
    let fake = Fake::lying(|l| (l.modify_qp, l.query_qp) = (libc::EINVAL, libc::EIO));
    let setup = Setup::<ExtendedQueuePair, ExtendedCompletionQueue>::new(&fake);
    let mut attr = QueuePairAttribute::new();
    attr.setup_state(QueuePairState::Init);
    let error = setup.qp.modify(&attr).unwrap_err();
    assert_says(&error, libc::EINVAL);
    let error = setup.qp.query(QueuePairAttributeMask::from_bits_retain(!0)).unwrap_err();
    assert_says(&error, libc::EIO);
    assert_eq!(error.qp_num, setup.qp.qp_number());
    assert_says(&setup.qp.state().unwrap_err(), libc::EIO);
}

#[test]
fn failures_with_the_smallest_number_are_survived() {
    let fake = Fake::lying(|l| (l.modify_qp, l.poll_cq) = (i32::MIN, Some(i32::MIN)));
    let mut setup = Setup::<BasicQueuePair, BasicCompletionQueue>::new(&fake);
    assert!(setup.qp.modify(&QueuePairAttribute::new()).is_err());
    assert!(setup.cq.poll(&mut |_| {}).is_err());
}
