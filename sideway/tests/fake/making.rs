//! Creation of queues and pairs: missing operations, errors and granted sizes.

use std::io;

use sideway::ibverbs::AccessFlags;
use sideway::ibverbs::completion::{CreateCompletionQueueError, GenericCompletionQueue};
use sideway::ibverbs::device::DeviceList;
use sideway::ibverbs::memory_region::RegisterMemoryRegionError;
use sideway::ibverbs::queue_pair::{
    CreateQueuePairError, GenericQueuePair, PostSendGuard, QueuePair, QueuePairBuilder, QueuePairType,
    SendOperationFlags,
};

use super::control::{ERRNOS, assert_says, lying};
use super::support::fake::{Fake, Faults, old_provider};
use super::support::flavour::QpFlavour;
use super::{FakeSetup, SIGNALED};

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
        let unsupported = matches!(error, CreateQueuePairError::UnsupportedOperations { .. });
        assert_eq!(unsupported, [libc::EOPNOTSUPP, libc::ENOSYS].contains(&expected), "{error}");
        assert_says(&builder.build_generic().unwrap_err(), expected);
        let error = builder.setup_max_send_wr(1 << 15).build().unwrap_err();
        let limit = CreateQueuePairError::LimitExceeded {
            what: "max_send_wr",
            asked: 1 << 15,
            limit_name: "max_qp_wr",
            limit: 1 << 14,
            source: io::Error::from_raw_os_error(expected),
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

/// Every null operation is found when the object is made, not when the operation is called.
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
    let fakes: [&dyn Fn(&mut Faults); 4] = [
        &|l| l.no_extended_verbs = true,
        &|l| (l.create_cq_ex, l.create_qp_ex) = (libc::EOPNOTSUPP, libc::ENOSYS),
        &|l| l.missing = &["start_poll", "wr_start"],
        &|l| l.missing = &["read_wc_flags", "qp_ex"],
    ];
    for about in fakes {
        let fake = Fake::lying(about);
        let mut setup = FakeSetup::<GenericQueuePair, GenericCompletionQueue>::new(&fake);
        assert!(!setup.qp.is_extended());
        assert!(matches!(setup.cq, GenericCompletionQueue::Basic(_)));
        setup.write([1, 2, 3]);
        assert_eq!(setup.poll(), [1, 2, 3]);
    }
}

/// SoftRoCE's extended pairs mishandle inline data and lists of entries; its classic pairs do not.
#[test]
fn build_generic_avoids_extended_pairs_with_known_defects() {
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

/// mlx5's extended pairs also mishandle requests without a buffer when they are full.
#[test]
fn requests_without_a_buffer_are_left_to_the_classic_pair_of_mlx5() {
    use SendOperationFlags as Op;
    let windows = Op::Send | Op::LocalInvalidate;
    for (vendor, operations, extended) in
        [(0x02c9, Op::Send, true), (0x02c9, windows, false), (1, windows, true)]
    {
        let fake = Fake::lying(|l| l.vendor_id = vendor);
        let about = |qp: &mut QueuePairBuilder| {
            qp.setup_send_ops_flags(operations).setup_max_inline_data(0).build_generic().unwrap()
        };
        let setup = FakeSetup::<GenericQueuePair, GenericCompletionQueue>::new(&fake);
        let mut builder = setup.pd.create_qp_builder();
        let mut qp = about(builder.setup_send_cq(&setup.cq).setup_recv_cq(&setup.cq));
        assert_eq!(qp.is_extended(), extended, "{vendor:#x} {operations:?}");
        if operations.contains(Op::LocalInvalidate) {
            let mut guard = qp.start_post_send();
            guard.construct_wr(1, SIGNALED).setup_local_inv(4);
            guard.post().unwrap();
        }
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
        assert!(matches!(error, RegisterMemoryRegionError::Unsupported(_)), "{error}");
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
