//! Control path errors: every function fails, and every value is garbage.

use std::error::Error;

use sideway::ErrorKind;
use sideway::ibverbs::AccessFlags;
use sideway::ibverbs::Unsupported;
use sideway::ibverbs::completion::{
    BasicCompletionQueue, CreateCompletionQueueError, ExtendedCompletionQueue,
};
use sideway::ibverbs::connect::{ChoosePathError, LocalPath};
use sideway::ibverbs::device::FindDeviceError;
use sideway::ibverbs::memory_region::RegisterMemoryRegionError;
use sideway::ibverbs::queue_pair::{
    BasicQueuePair, ExtendedQueuePair, ModifyQueuePairError, QueuePair, QueuePairAttribute,
    QueuePairAttributeMask, QueuePairState,
};

use super::FakeSetup;
use super::support::fake::{Fake, Faults};
use super::support::flavour::CqFlavour;

/// `errno` values with a meaning for some function here, and others.
#[cfg(miri)]
pub(super) const ERRNOS: [i32; 4] = [libc::ENOMEM, libc::EINVAL, libc::EOPNOTSUPP, 4711];
#[cfg(not(miri))]
pub(super) const ERRNOS: [i32; 8] = [
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

/// Whether an error number means that a feature is not supported.
pub(super) fn is_unsupported(errno: i32) -> bool {
    [libc::EOPNOTSUPP, libc::ENOSYS].contains(&errno)
}

/// Checks that the error contains the number, or reports a missing feature; and that its text is
/// one line.
pub(super) fn assert_says(error: &dyn Error, expected: i32) {
    let unsupported = error.source().is_some_and(|source| source.is::<Unsupported>());
    if !(unsupported && is_unsupported(expected)) {
        assert_eq!(errno(error), Some(expected), "{error}");
    }
    assert!(!error.to_string().contains('\n'), "{error}");
}

/// Checks that a failure is `Unsupported`, with verb and device, if its number means that; and that
/// it contains the number otherwise.
macro_rules! assert_fails {
    ($errno:expr, $verb:literal, $error:expr) => {{
        let error = $error;
        assert_eq!(error.verb(), $verb, "{error}");
        match error.unsupported() {
            Some(sideway::ibverbs::Unsupported { verb, device, .. }) => {
                assert!($crate::fake::control::is_unsupported($errno), "{error}");
                assert_eq!((*verb, device.as_str()), ($verb, "fake0"));
            }
            None => {
                assert!(!$crate::fake::control::is_unsupported($errno), "{error}");
                $crate::fake::control::assert_says(&error, $errno);
            }
        }
    }};
    ($errno:expr, $verb:literal, $error:expr, $Unsupported:path) => {
        match $error {
            $Unsupported(sideway::ibverbs::Unsupported { verb, ref device, .. })
                if $crate::fake::control::is_unsupported($errno) =>
            {
                assert_eq!((verb, device.as_str()), ($verb, "fake0"));
            }
            error => {
                assert!(!$crate::fake::control::is_unsupported($errno), "{error}");
                $crate::fake::control::assert_says(&error, $errno);
            }
        }
    };
}
pub(super) use assert_fails;

#[test]
fn the_device_list_can_fail() {
    for expected in ERRNOS {
        let error = Fake::lying(|l| l.get_device_list = expected).list().unwrap_err();
        assert_says(&error, expected);
        let no_kernel = error.kind() == ErrorKind::NoDevice;
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
        assert_eq!(error.object(), Some("device fake0"));
    }
}

/// The first device, with faults.
pub(super) fn lying(
    about: impl FnOnce(&mut Faults),
) -> (Fake, sideway::ibverbs::device_context::DeviceContext) {
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
        assert_eq!(context.query_gid_table().unwrap_err().verb(), "ibv_query_device");
        let error = LocalPath::choose(&context, 1, None).unwrap_err();
        assert!(matches!(error, ChoosePathError::Query(_)), "{error}");
        // The limits are not known, so the error must not claim that one is exceeded.
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

/// Some kernels give `EINVAL` for an entry, and libibverbs then for the whole table.
#[test]
fn a_gid_entry_that_cannot_be_read_does_not_hide_the_others() {
    let (_fake, context) = lying(|l| {
        (l.gid_table_result, l.first_gid_entry_result) = (Some(-(libc::EINVAL as isize)), libc::EINVAL);
    });
    let indices: Vec<_> = context.query_gid_table().unwrap().iter().map(|entry| entry.gid_index()).collect();
    assert_eq!(indices, [1, 2, 3]);
    assert_eq!(LocalPath::choose(&context, 1, None).unwrap().gid_index(), Some(1));
    let (_fake, context) = lying(|l| {
        (l.gid_table_result, l.gid_entry_result) = (Some(-(libc::EINVAL as isize)), libc::EINVAL);
    });
    assert_says(&context.query_gid_table().unwrap_err(), libc::EINVAL);
}

#[test]
fn gids_that_no_queue_pair_can_use_are_named() {
    let (_fake, context) = lying(|l| l.gid_index = Some(255));
    assert_eq!(LocalPath::choose(&context, 1, None).unwrap().gid_index(), Some(255));
    let (_fake, context) = lying(|l| l.gid_index = Some(300));
    let error = LocalPath::choose(&context, 1, None).unwrap_err();
    let text = "port 1 of fake0 has no GID below index 256, and the lowest is 300: an address of a queue pair \
                has 8 bits for the index; remove addresses that are not needed from the interface";
    assert_eq!(error.to_string(), text);
    assert!(matches!(error, ChoosePathError::GidIndexTooHigh { lowest: 300, .. }));
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no limits")]
fn a_limit_of_open_files_is_named_with_what_to_do() {
    let (_fake, context) = lying(|l| (l.create_qp, l.alloc_pd) = (libc::EMFILE, libc::EMFILE));
    let says = |text: String| {
        assert!(
            text.contains("os error 24); this process has as many open files as it may have ("),
            "{text}"
        );
        assert!(
            text.ends_with("raise the limit (`ulimit -n`, LimitNOFILE of a service), or close some"),
            "{text}"
        );
    };
    says(context.alloc_pd().unwrap_err().to_string());
    let (_fake, context) = lying(|l| l.create_qp = libc::EMFILE);
    let cq = context.create_cq_builder().build().unwrap();
    let pd = context.alloc_pd().unwrap();
    says(pd.create_qp_builder().setup_send_cq(&cq).setup_recv_cq(&cq).build().unwrap_err().to_string());
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
            if let RegisterMemoryRegionError::Unsupported(Unsupported { verb, .. }) = error {
                assert_eq!(verb, "ibv_reg_mr");
                assert!([libc::EOPNOTSUPP, libc::ENOSYS].contains(&expected));
                continue;
            }
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
    assert_eq!(error.error.errno(), Some(libc::EBUSY));
    assert_eq!(error.object.lkey(), lkey);
    drop(error);
    let fake = Fake::new();
    // SAFETY: no bytes are registered.
    let mr = unsafe { fake.pd().reg_mr(std::ptr::null_mut(), 0, AccessFlags::LocalWrite) }.unwrap();
    mr.close().unwrap();
}

#[test]
fn modify_diagnoses_whatever_the_device_says() {
    for expected in ERRNOS {
        for state in [0, 1, 6, 7, 0xdead_beef] {
            let fake = Fake::lying(|l| {
                l.modify_qp = expected;
                l.queried_state = Some(state);
            });
            let mut setup = FakeSetup::<BasicQueuePair, BasicCompletionQueue>::new(&fake);
            let mut attr = QueuePairAttribute::new();
            attr.setup_state(QueuePairState::from_raw(0xdead_beef)).setup_port(1);
            let error = setup.qp.modify(&attr).unwrap_err();
            match &error {
                ModifyQueuePairError::Unsupported(error) => {
                    assert!([libc::EOPNOTSUPP, libc::ENOSYS].contains(&expected), "{error}");
                    assert_eq!(error.verb, "ibv_modify_qp");
                }
                error => assert_says(error, expected),
            }
            let transition = matches!(error, ModifyQueuePairError::InvalidTransition { .. });
            // If the state is not known (7), no transition may be blamed.
            assert_eq!(transition, expected == libc::EINVAL && state != 7, "{error}");
        }
    }
}

#[test]
fn a_failure_that_cannot_be_diagnosed_is_still_one() {
    let fake = Fake::lying(|l| (l.modify_qp, l.query_qp) = (libc::EINVAL, libc::EIO));
    let mut setup = FakeSetup::<ExtendedQueuePair, ExtendedCompletionQueue>::new(&fake);
    let mut attr = QueuePairAttribute::new();
    attr.setup_state(QueuePairState::Init);
    let error = setup.qp.modify(&attr).unwrap_err();
    assert_says(&error, libc::EINVAL);
    let error = setup.qp.query(QueuePairAttributeMask::from_bits_retain(!0)).unwrap_err();
    assert_says(&error, libc::EIO);
    assert_eq!(error.object(), Some(&*format!("queue pair {:#x}", setup.qp.qp_number())));
    assert_says(&setup.qp.state().unwrap_err(), libc::EIO);
}

#[test]
fn failures_with_the_smallest_number_are_survived() {
    let fake = Fake::lying(|l| (l.modify_qp, l.poll_cq) = (i32::MIN, Some(i32::MIN)));
    let mut setup = FakeSetup::<BasicQueuePair, BasicCompletionQueue>::new(&fake);
    assert!(setup.qp.modify(&QueuePairAttribute::new()).is_err());
    assert!(setup.cq.poll(&mut |_| {}).is_err());
}
