//! Posting tests: limits, failures, and the position at which a list stopped.

use std::io::IoSlice;

use sideway::ibverbs::completion::BasicCompletionQueue;
use sideway::ibverbs::queue_pair::{
    BasicQueuePair, ExtendedQueuePair, PostRecvError, PostSendError, PostSendGuard, QueuePair,
    QueuePairState, QueuePairType, ScatterGatherEntry, SendOperationFlags, SendQueue, WorkRequestFlags,
    WorkRequestOperationType,
};
use std::sync::atomic::Ordering::Relaxed;

use super::support::fake::{BadRequest, Fake, Faults};
use super::support::flavour::QpFlavour;
use super::{FakeSetup, SIGNALED};

type Pair<Q> = FakeSetup<Q, BasicCompletionQueue>;

/// The value is inline data in the request's slot, which has no room for it.
#[test]
fn an_atomic_write_of_a_classic_pair_needs_inline_data() {
    let fake = Fake::new();
    let operations = SendOperationFlags::AtomicWrite;
    for (limit, may) in [(0, false), (7, false), (8, true)] {
        let mut setup = Pair::<BasicQueuePair>::with(
            &fake,
            |cq| cq,
            |qp| qp.setup_max_inline_data(limit).setup_max_send_sge(1).setup_send_ops_flags(operations),
        );
        let mut guard = setup.qp.start_post_send();
        guard.construct_wr(1, SIGNALED).setup_atomic_write(1, 8, 9);
        let limit = limit as usize;
        let refused = Err(PostSendError::InlineDataTooLong { index: 0, given: 8, limit });
        assert_eq!(guard.post(), if may { Ok(()) } else { refused });
    }
}

#[test]
fn every_operation_completes_as_what_it_is() {
    fn check<Q: QpFlavour>() {
        let fake = Fake::new();
        let mut setup = Pair::<Q>::new(&fake);
        let mut guard = setup.qp.start_post_send();
        guard.construct_wr(0, SIGNALED).setup_send();
        guard.construct_wr(1, SIGNALED).setup_send_imm(7);
        guard.construct_wr(2, SIGNALED).setup_write(1, 2);
        guard.construct_wr(3, SIGNALED).setup_write_imm(1, 2, 3);
        guard.construct_wr(4, SIGNALED).setup_read(1, 2);
        guard.construct_wr(5, SIGNALED).setup_atomic_compare_swap(1, 2, 3, 4);
        guard.construct_wr(6, SIGNALED).setup_atomic_fetch_add(1, 2, 3);
        guard.construct_wr(7, WorkRequestFlags::empty()).setup_send();
        guard.post().unwrap();
        let mut found = Vec::new();
        use super::support::flavour::CqFlavour;
        setup.cq.poll(&mut |wc| found.push((wc.wr_id, wc.opcode.to_string()))).unwrap();
        let names =
            ["send", "send", "rdma write", "rdma write", "rdma read", "compare and swap", "fetch and add"];
        let expected: Vec<_> =
            names.iter().enumerate().map(|(n, name)| (n as u64, (*name).to_owned())).collect();
        assert_eq!(found, expected, "{}", Q::NAME);
        assert_eq!(fake.world.posted.load(Relaxed), 8);
    }
    for_each_qp!(check());
}

#[test]
fn an_operation_that_was_not_asked_for_is_an_error_and_posts_nothing() {
    fn check<Q: QpFlavour>() {
        let fake = Fake::new();
        let mut setup =
            Pair::<Q>::with(&fake, |cq| cq, |qp| qp.setup_send_ops_flags(SendOperationFlags::Write));
        let mut guard = setup.qp.start_post_send();
        guard.construct_wr(0, SIGNALED).setup_write(1, 2);
        guard.construct_wr(1, SIGNALED).setup_atomic_fetch_add(1, 2, 3);
        guard.construct_wr(2, SIGNALED).setup_write(1, 2);
        guard.construct_wr(3, SIGNALED).setup_read(1, 2);
        let error = guard.post().unwrap_err();
        let operation = WorkRequestOperationType::AtomicFetchAndAdd;
        assert!(
            matches!(error, PostSendError::UnsupportedOperation { index: 1, operation: o } if o == operation),
            "{error}"
        );
        assert_eq!((error.bad_work_request(), error.posted()), (Some(1), Some(0)));
        assert_eq!(fake.world.posted.load(Relaxed), 0);
        setup.write([9]);
        assert_eq!(setup.poll(), [9], "the next list is a new one");
    }
    for_each_qp!(check());
}

#[test]
fn an_operation_that_is_null_or_foreign_to_the_type_is_never_called() {
    fn unsupported<Q: QpFlavour>(fake: &Fake, qp_type: QueuePairType) -> bool {
        let all = SendOperationFlags::of_type(QueuePairType::ReliableConnection);
        let mut setup =
            Pair::<Q>::with(fake, |cq| cq, |qp| qp.setup_qp_type(qp_type).setup_send_ops_flags(all));
        let mut guard = setup.qp.start_post_send();
        guard.construct_wr(0, SIGNALED).setup_read(1, 2);
        matches!(guard.post(), Err(PostSendError::UnsupportedOperation { index: 0, .. }))
    }
    let null = Fake::lying(|l| l.missing = &["wr_rdma_read"]);
    assert!(unsupported::<ExtendedQueuePair>(&null, QueuePairType::ReliableConnection));
    for_each_qp!(assert_unsupported(QueuePairType::UnreliableConnection));
    for_each_qp!(assert_unsupported(QueuePairType::UnreliableDatagram));
    fn assert_unsupported<Q: QpFlavour>(qp_type: QueuePairType) {
        assert!(unsupported::<Q>(&Fake::new(), qp_type), "{} {qp_type}", Q::NAME);
    }
}

#[test]
fn too_many_entries_and_too_much_inline_data_are_errors() {
    fn check<Q: QpFlavour>() {
        let fake = Fake::new();
        let mut setup = Pair::<Q>::new(&fake);
        let entry = ScatterGatherEntry::new(setup.mr.lkey(), setup.mr.get_ptr() as u64, 1);
        let mut guard = setup.qp.start_post_send();
        guard.construct_wr(0, SIGNALED).setup_send();
        // SAFETY: the fake device touches no memory.
        unsafe { guard.construct_wr(1, SIGNALED).setup_send().setup_sge_list(&[entry; 3]) };
        let error = guard.post().unwrap_err();
        assert!(
            matches!(error, PostSendError::TooManyScatterGatherEntries { index: 1, given: 3, limit: 2 }),
            "{error}"
        );
        let mut guard = setup.qp.start_post_send();
        guard.construct_wr(0, SIGNALED).setup_send().setup_inline_data(&[1; 17]);
        let error = guard.post().unwrap_err();
        assert!(
            matches!(error, PostSendError::InlineDataTooLong { index: 0, given: 17, limit: 16 }),
            "{error}"
        );
        let mut guard = setup.qp.start_post_send();
        let pieces = [IoSlice::new(&[1; 10]), IoSlice::new(&[]), IoSlice::new(&[1; 7])];
        guard.construct_wr(0, SIGNALED).setup_send().setup_inline_data_list(&pieces);
        assert!(matches!(guard.post(), Err(PostSendError::InlineDataTooLong { given: 17, .. })));
        assert_eq!(fake.world.posted.load(Relaxed), 0);
        // A list that fits is posted.
        let mut guard = setup.qp.start_post_send();
        guard.construct_wr(0, SIGNALED).setup_send().setup_inline_data(&[1; 16]);
        guard.construct_wr(1, SIGNALED).setup_send().setup_inline_data(&[]);
        guard.construct_wr(2, SIGNALED).setup_send().setup_inline_data_list(&pieces[..2]);
        guard.construct_wr(3, SIGNALED).setup_send().setup_inline_data_list(&[]);
        // SAFETY: the fake device touches no memory.
        unsafe { guard.construct_wr(4, SIGNALED).setup_send().setup_sge_list(&[entry; 2]) };
        // SAFETY: the request has no memory.
        unsafe { guard.construct_wr(5, SIGNALED).setup_send().setup_sge_list(&[]) };
        guard.post().unwrap();
        assert_eq!(setup.poll(), [0, 1, 2, 3, 4, 5]);
        assert_eq!(fake.world.inline_bytes.load(Relaxed), 26);
    }
    for_each_qp!(check());
}

/// The lengths of a list are added without loss. SoftRoCE's library before rdma-core 64 adds them in
/// 32 bits, so that it would take 4 GiB and 8 bytes for 8 bytes.
#[test]
#[cfg_attr(miri, ignore = "allocates a GiB")]
fn lengths_of_inline_data_do_not_wrap() {
    fn check<Q: QpFlavour>(gib: &[u8]) {
        let fake = Fake::new();
        let mut setup = Pair::<Q>::new(&fake);
        let mut guard = setup.qp.start_post_send();
        let pieces = [gib, gib, gib, gib, &[1; 8]].map(IoSlice::new);
        guard.construct_wr(0, SIGNALED).setup_send().setup_inline_data_list(&pieces);
        let error = guard.post().unwrap_err();
        let expected = PostSendError::InlineDataTooLong { index: 0, given: (4 << 30) + 8, limit: 16 };
        assert_eq!(error, expected, "{}", Q::NAME);
        assert_eq!(fake.world.posted.load(Relaxed), 0);
    }
    // Nothing reads or writes the bytes, so that the system gives no pages.
    let gib = vec![0; 1 << 30];
    for_each_qp!(check(&gib));
}

/// Without the optional inline operations, a library has no inline data, even if it granted some.
#[test]
fn inline_data_without_its_operations_is_an_error() {
    let fake = Fake::lying(|l| l.missing = &["wr_set_inline_data_list"]);
    let mut setup = Pair::<ExtendedQueuePair>::new(&fake);
    let mut guard = setup.qp.start_post_send();
    guard.construct_wr(0, SIGNALED).setup_send().setup_inline_data(&[1]);
    assert!(matches!(guard.post(), Err(PostSendError::InlineDataTooLong { limit: 0, .. })));
}

/// A library that overwrites outstanding requests in a full queue gets no requests from safe code.
/// This applies to one device's extended pairs, and to unknown devices.
#[test]
fn requests_that_could_overfill_an_unchecked_queue_are_refused() {
    type Append<Q> = fn(&mut <<Q as QueuePair>::SendQueue as SendQueue>::Guard<'_>);
    fn check<Q: QpFlavour>(lie: fn(&mut Faults), unnoticed: bool) {
        let fake = Fake::lying(lie);
        let ops = SendOperationFlags::of_type(QueuePairType::ReliableConnection)
            | SendOperationFlags::LocalInvalidate;
        let mut setup = Pair::<Q>::with(&fake, |cq| cq, |qp| qp.setup_send_ops_flags(ops));
        let safe: [Append<Q>; 5] = [
            |guard| drop(guard.construct_wr(1, SIGNALED).setup_send()),
            |guard| drop(guard.construct_wr(1, SIGNALED).setup_read(1, 2)),
            |guard| guard.construct_wr(1, SIGNALED).setup_write_imm(1, 2, 3).setup_inline_data(&[]),
            |guard| guard.construct_wr(1, SIGNALED).setup_send().setup_inline_data_list(&[]),
            |guard| guard.construct_wr(1, SIGNALED).setup_local_inv(4),
        ];
        for (n, append) in safe.into_iter().enumerate() {
            let mut guard = setup.qp.start_post_send();
            // SAFETY: the fake device touches no memory, and its queue has a free place.
            unsafe { guard.construct_wr(0, SIGNALED).setup_send().setup_sge_list(&[]) };
            append(&mut guard);
            let posted = guard.post();
            if unnoticed {
                let error = posted.unwrap_err();
                assert_eq!(error, PostSendError::FullQueueUnnoticed { index: 1 }, "{} {n}", Q::NAME);
                assert_eq!((error.bad_work_request(), error.posted()), (Some(1), Some(0)));
            } else {
                posted.unwrap();
            }
            assert_eq!(setup.poll(), if unnoticed { vec![] } else { vec![0, 1] }, "{} {n}", Q::NAME);
        }
    }
    let mlx5: fn(&mut Faults) = |l| l.vendor_id = 0x02c9;
    check::<ExtendedQueuePair>(mlx5, true);
    check::<BasicQueuePair>(mlx5, false);
    check::<ExtendedQueuePair>(|l| l.query_device = libc::EIO, true);
    check::<ExtendedQueuePair>(|l| l.vendor_id = 0xff_ffff, false);
    for_each_qp!(check(|_| {}, false));
}

/// The classic inline flag would make the library read an unregistered address.
#[test]
fn the_inline_flag_cannot_be_smuggled_in() {
    fn check<Q: QpFlavour>() {
        let fake = Fake::new();
        let mut setup = Pair::<Q>::new(&fake);
        let mut guard = setup.qp.start_post_send();
        let handle = guard.construct_wr(0, WorkRequestFlags::from_bits_retain(!0)).setup_send();
        // SAFETY: the device would reject the wrong key, and the fake touches no memory.
        unsafe { handle.setup_sge(0, 8, 16) };
        guard.post().unwrap();
        assert_eq!(fake.world.inline_bytes.load(Relaxed), 0);
    }
    for_each_qp!(check());
}

/// A pair that was granted no entries has no room for one.
#[test]
fn a_pair_without_entries_takes_none() {
    fn check<Q: QpFlavour>() {
        let fake = Fake::lying(|l| l.granted = Some(0));
        let context = fake.context();
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq_builder().build().unwrap();
        let Ok(mut qp) = Q::make(pd.create_qp_builder().setup_send_cq(&cq).setup_recv_cq(&cq)) else {
            return;
        };
        let mut guard = qp.start_post_send();
        // SAFETY: the fake device touches no memory.
        unsafe { guard.construct_wr(0, SIGNALED).setup_send().setup_sge(1, 2, 3) };
        assert!(guard.post().is_err());
        let mut guard = qp.start_post_recv();
        // SAFETY: the fake device touches no memory.
        unsafe { guard.construct_wr(0).setup_sge(1, 2, 3) };
        assert!(guard.post().is_err());
    }
    for_each_qp!(check());
}

#[test]
fn a_list_that_is_longer_than_the_queue_is_an_error() {
    fn check<Q: QpFlavour>() {
        let fake = Fake::new();
        let mut setup = Pair::<Q>::new(&fake);
        for length in [17, 20, 100] {
            let mut guard = setup.qp.start_post_send();
            for n in 0..length {
                guard.construct_wr(n, SIGNALED).setup_send().setup_inline_data(&[1]);
            }
            let error = guard.post().unwrap_err();
            assert!(matches!(error, PostSendError::TooManyWorkRequests { limit: 16 }), "{error}");
            assert_eq!((error.bad_work_request(), error.posted()), (Some(16), Some(0)));
        }
        // The first error is reported.
        let mut guard = setup.qp.start_post_send();
        for n in 0..20 {
            guard.construct_wr(n, SIGNALED).setup_send().setup_inline_data(&vec![1; n as usize]);
        }
        let error = guard.post().unwrap_err();
        assert!(matches!(error, PostSendError::TooManyWorkRequests { limit: 16 }), "{error}");
        let mut guard = setup.qp.start_post_send();
        for n in 0..20 {
            guard.construct_wr(n, SIGNALED).setup_send().setup_inline_data(&vec![1; 2 * n as usize]);
        }
        let error = guard.post().unwrap_err();
        assert_eq!(error, PostSendError::InlineDataTooLong { index: 9, given: 18, limit: 16 });
        let mut guard = setup.qp.start_post_recv();
        for n in 0..20 {
            guard.construct_wr(n);
        }
        let error = guard.post().unwrap_err();
        assert!(matches!(error, PostRecvError::TooManyWorkRequests { limit: 16 }), "{error}");
        assert_eq!(fake.world.posted.load(Relaxed) + fake.world.received.load(Relaxed), 0);
        setup.write(0..16);
        assert_eq!(setup.poll(), Vec::from_iter(0..16), "{}", Q::NAME);
    }
    for_each_qp!(check());
}

/// A classic queue stores the address of inline data again only after other buffers were used.
#[test]
fn inline_data_and_entries_may_follow_one_another() {
    fn check<Q: QpFlavour>() {
        for way in ["post", "drop", "forget"] {
            let fake = Fake::new();
            let mut setup = Pair::<Q>::new(&fake);
            let entry = ScatterGatherEntry::new(setup.mr.lkey(), setup.mr.get_ptr() as u64, 8);
            let sent = || fake.world.inline_bytes.swap(0, Relaxed);
            for round in 0..3 {
                let mut guard = setup.qp.start_post_send();
                for n in 0..3 {
                    guard.construct_wr(n, SIGNALED).setup_send().setup_inline_data(&[1; 8]);
                }
                guard.post().unwrap();
                assert_eq!(sent(), 24, "{} {round}", Q::NAME);
                let mut guard = setup.qp.start_post_send();
                for n in 0..2 {
                    let (one, several) = (guard.construct_wr(n, SIGNALED).setup_send(), [entry; 2]);
                    // SAFETY: the fake device touches no memory.
                    unsafe { one.setup_sge(setup.mr.lkey(), setup.mr.get_ptr() as u64, 8) };
                    guard.construct_wr(n, SIGNALED).setup_send().setup_inline_data(&[2; 16]);
                    // SAFETY: the fake device touches no memory.
                    unsafe { guard.construct_wr(n, SIGNALED).setup_send().setup_sge_list(&several) };
                    let pieces = [IoSlice::new(&[3; 3]), IoSlice::new(&[4; 4])];
                    guard.construct_wr(n, SIGNALED).setup_send().setup_inline_data_list(&pieces);
                }
                match way {
                    "post" => guard.post().unwrap(),
                    "drop" => drop(guard),
                    _ => std::mem::forget(guard),
                }
                sent();
            }
            let mut guard = setup.qp.start_post_send();
            guard.construct_wr(0, SIGNALED).setup_send().setup_inline_data(&[2; 16]);
            // SAFETY: the fake device touches no memory.
            unsafe { guard.construct_wr(1, SIGNALED).setup_send().setup_sge_list(&[entry]) };
            guard.construct_wr(2, SIGNALED).setup_send().setup_inline_data(&[1; 8]);
            guard.post().unwrap();
            assert_eq!(sent(), 24, "{}", Q::NAME);
        }
    }
    for_each_qp!(check());
}

#[test]
fn lists_of_any_length_follow_one_another() {
    fn check<Q: QpFlavour>() {
        let fake = Fake::new();
        let mut setup = Pair::<Q>::new(&fake);
        let mut next = 0;
        for length in [1, 4, 2, 3, 16, 1, 1, 16, 5, 0, 7, 6, 15, 16] {
            // A list that is dropped has no effect.
            let mut guard = setup.qp.start_post_send();
            for _ in 0..(next * 5) % 9 {
                guard.construct_wr(u64::MAX, SIGNALED).setup_send();
            }
            drop(guard);
            let mut guard = setup.qp.start_post_send();
            for number in next..next + length {
                guard.construct_wr(number, SIGNALED).setup_send().setup_inline_data(&number.to_ne_bytes());
            }
            guard.post().unwrap();
            assert_eq!(setup.poll(), Vec::from_iter(next..next + length), "{} {length}", Q::NAME);
            next += length;
        }
        assert_eq!(fake.world.posted.load(Relaxed), next);
    }
    for_each_qp!(check());
}

#[test]
fn a_classic_list_says_where_it_broke_off() {
    for (errno, full) in
        [(libc::ENOMEM, true), (libc::EINVAL, false), (libc::EIO, false), (-libc::ENOMEM, true)]
    {
        let fake = Fake::lying(|l| l.post_send = Some((errno, BadRequest::Index(2))));
        let mut setup = Pair::<BasicQueuePair>::new(&fake);
        let mut guard = setup.qp.start_post_send();
        for n in 0..4 {
            guard.construct_wr(n, SIGNALED).setup_send();
        }
        let error = guard.post().unwrap_err();
        assert_eq!(
            (error.bad_work_request(), error.posted(), error.is_queue_full()),
            (Some(2), Some(2), full)
        );
        assert!(error.to_string().contains("at work request 2; those before it were posted"), "{error}");
        assert_eq!(setup.poll(), [0, 1]);
    }
}

#[test]
fn a_pair_that_is_not_connected_is_named_with_its_state() {
    use QueuePairState as Q;
    for (state, named) in [
        (Q::Reset, true),
        (Q::Init, true),
        (Q::ReadyToReceive, true),
        (Q::ReadyToSend, false),
        (Q::Error, false),
    ] {
        let text = |error: PostSendError| {
            assert_eq!((error.posted(), error.bad_work_request()), (Some(0), Some(0)));
            error.to_string()
        };
        let fake = Fake::lying(|l| {
            (l.post_send, l.queried_state) = (Some((libc::EINVAL, BadRequest::Index(0))), Some(state.raw()));
        });
        let mut basic = Pair::<BasicQueuePair>::new(&fake);
        let mut guard = basic.qp.start_post_send();
        guard.construct_wr(0, SIGNALED).setup_send();
        let basic = text(guard.post().unwrap_err());
        let fake = Fake::lying(|l| (l.wr_complete, l.queried_state) = (libc::EINVAL, Some(state.raw())));
        let mut extended = Pair::<ExtendedQueuePair>::new(&fake);
        let mut guard = extended.qp.start_post_send();
        guard.construct_wr(0, SIGNALED).setup_send();
        let extended = guard.post().unwrap_err().to_string();
        let expected = format!("the queue pair is in {state}: connect it first");
        for text in [basic, extended] {
            assert_eq!(text.starts_with(&expected), named, "{text}");
        }
    }
}

#[test]
fn a_bad_request_that_is_none_of_the_lists_is_not_believed() {
    let answers =
        [BadRequest::Unset, BadRequest::Address(8), BadRequest::Address(usize::MAX), BadRequest::Index(4)];
    for answer in answers {
        let both = Some((libc::EINVAL, answer));
        let fake = Fake::lying(|l| {
            (l.post_send, l.post_recv, l.queried_state) =
                (both, both, Some(QueuePairState::ReadyToSend.raw()));
        });
        let mut setup = Pair::<BasicQueuePair>::new(&fake);
        let mut guard = setup.qp.start_post_send();
        for n in 0..3 {
            guard.construct_wr(n, SIGNALED).setup_send();
        }
        let error = guard.post().unwrap_err();
        assert!(matches!(error, PostSendError::InvalidWorkRequest { index: None, .. }), "{error} {answer:?}");
        let mut guard = setup.qp.start_post_recv();
        guard.construct_wr(1);
        let error = guard.post().unwrap_err();
        assert!(matches!(error, PostRecvError::InvalidWorkRequest { index: None, .. }), "{error} {answer:?}");
    }
}

#[test]
fn an_extended_list_that_fails_does_not_say_how_far_it_came() {
    for (errno, full) in
        [(libc::ENOMEM, true), (libc::ENOSPC, true), (libc::EINVAL, false), (-1, false), (i32::MIN, false)]
    {
        let fake = Fake::lying(|l| l.wr_complete = errno);
        let mut setup = Pair::<ExtendedQueuePair>::new(&fake);
        for _ in 0..2 {
            let mut guard = setup.qp.start_post_send();
            guard.construct_wr(0, SIGNALED).setup_send();
            guard.construct_wr(1, SIGNALED).setup_send();
            let error = guard.post().unwrap_err();
            assert_eq!((error.bad_work_request(), error.posted()), (None, None), "{error}");
            assert!(error.is_queue_full() == full || errno < 0, "{error}");
            assert_eq!(setup.poll(), [0; 0]);
        }
    }
}

#[test]
fn receives_are_posted_with_their_entries() {
    fn check<Q: QpFlavour>() {
        let fake = Fake::new();
        let mut setup = Pair::<Q>::new(&fake);
        let entry = ScatterGatherEntry::new(setup.mr.lkey(), setup.mr.get_ptr() as u64, 1);
        let mut guard = setup.qp.start_post_recv();
        // SAFETY: the fake device touches no memory.
        unsafe {
            guard.construct_wr(1).setup_sge(setup.mr.lkey(), setup.mr.get_ptr() as u64, 8);
            guard.construct_wr(2).setup_sge_list(&[entry; 2]);
            guard.construct_wr(3).setup_sge_list(&[]);
        }
        guard.construct_wr(4);
        guard.post().unwrap();
        assert_eq!(setup.poll(), [1, 2, 3, 4]);
        let mut guard = setup.qp.start_post_recv();
        // SAFETY: the fake device touches no memory.
        unsafe { guard.construct_wr(5).setup_sge_list(&[entry; 3]) };
        let error = guard.post().unwrap_err();
        assert!(
            matches!(error, PostRecvError::TooManyScatterGatherEntries { index: 0, given: 3, limit: 2 }),
            "{error}"
        );
        assert_eq!(fake.world.received.load(Relaxed), 4);
    }
    for_each_qp!(check());
}

#[test]
fn receives_say_where_they_broke_off() {
    let fake = Fake::lying(|l| l.post_recv = Some((libc::ENOMEM, BadRequest::Index(1))));
    let mut setup = Pair::<BasicQueuePair>::new(&fake);
    let mut guard = setup.qp.start_post_recv();
    guard.construct_wr(0);
    guard.construct_wr(1);
    let error = guard.post().unwrap_err();
    assert!(matches!(error, PostRecvError::NotEnoughResources { index: Some(1), .. }), "{error}");
    assert_eq!(error.bad_work_request(), Some(1));
}
