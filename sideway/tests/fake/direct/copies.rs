//! mlx5 requests that need only memory: copies by the device, and requests in its own format.

use sideway::ibverbs::Unsupported;
use sideway::ibverbs::completion::{WorkCompletionOperationType, WorkCompletionStatus};
use sideway::ibverbs::queue_pair::CreateQueuePairError;
use sideway::ibverbs::queue_pair::{
    PostSendError, PostSendGuard, QueuePair, QueuePairState, QueuePairType, SendQueue, WorkRequestFlags,
};
use sideway::mlx5::{self, DirectOperationFlags, DirectQueuePair, DirectRequestError};

use super::super::SIGNALED;
use super::super::control::{ERRNOS, assert_says, is_unsupported};
use super::super::support::fake::keys::OwnRequest;
use super::DirectSetup;

/// A pair with mlx5 operations.
fn pair(parts: &DirectSetup, operations: DirectOperationFlags) -> DirectQueuePair {
    let mut builder = parts.mlx5().create_qp_builder(&parts.description());
    builder.setup_direct_send_ops_flags(operations).build_direct().unwrap()
}

fn copying() -> DirectSetup {
    DirectSetup::lying(|l| l.max_memcpy = 4096)
}

/// A request of `bytes` bytes in the device's own format, whose control segment states `units`
/// units of 16 bytes.
fn raw(bytes: usize, units: u8) -> Vec<u8> {
    let mut wqe: Vec<u8> = (0..bytes).map(|n| n as u8).collect();
    if bytes >= 8 {
        // The two bits above the length do not belong to it.
        wqe[4..8].copy_from_slice(&[0x12, 0x34, 0x56, 0xc0 | units]);
    }
    wqe
}

#[test]
fn a_copy_reaches_the_device_as_it_is() {
    let mut parts = copying();
    let mut pair = pair(&parts, DirectOperationFlags::Memcpy);
    let mut guard = pair.start_post_send();
    // SAFETY: the fake device touches no memory, and the queue has free places.
    unsafe {
        guard.construct_wr(1, SIGNALED).setup_memcpy(2, 0x3000, 4, 0x5000, 4096);
        guard.construct_wr(2, WorkRequestFlags::empty()).setup_memcpy(6, u64::MAX, 7, 0, 1);
        // Mixed with requests of libibverbs.
        guard.construct_wr(3, SIGNALED | WorkRequestFlags::Fence).setup_write(1, 2).setup_sge(3, 4, 5);
    }
    guard.post().unwrap();
    let copy = |dest, src, length| OwnRequest::Memcpy { dest, src, length };
    let expected = [copy((2, 0x3000), (4, 0x5000), 4096), copy((6, u64::MAX), (7, 0), 1)];
    assert_eq!(parts.own_requests(), expected);
    let mut found = Vec::new();
    let mut poller = parts.cq.start_poll().unwrap();
    while let Some(wc) = poller.next() {
        assert_eq!(wc.status(), WorkCompletionStatus::Success);
        found.push((wc.wr_id(), wc.opcode()));
    }
    use WorkCompletionOperationType as Op;
    assert_eq!(found, [(1, Op::Driver3), (3, Op::RdmaWrite)]);
}

#[test]
fn a_copy_is_as_long_as_the_device_copies() {
    let parts = copying();
    let mut pair = pair(&parts, DirectOperationFlags::Memcpy);
    for given in [0, 4097, usize::MAX] {
        let mut guard = pair.start_post_send();
        // SAFETY: the fake device touches no memory, and the queue has free places. The second list
        // is not posted.
        unsafe {
            guard.construct_wr(1, SIGNALED).setup_memcpy(1, 2, 3, 4, 8);
            guard.construct_wr(2, SIGNALED).setup_memcpy(1, 2, 3, 4, given);
            // The first error is reported.
            guard.construct_wr(3, SIGNALED).setup_raw_wqe(&[]);
        }
        let error = guard.post().unwrap_err();
        let reason = DirectRequestError::MemcpyLength { given, limit: 4096 };
        assert_eq!(error, PostSendError::Direct { index: 1, reason });
        assert_eq!((error.bad_work_request(), error.posted()), (Some(1), Some(0)));
        let expected = format!(
            "work request 1: a copy of {given} bytes; the device copies 1 to 4096 (max_wr_memcpy_length)"
        );
        assert_eq!(error.to_string(), expected);
    }
    assert_eq!(parts.posted(), 0);
}

#[test]
fn a_device_that_does_not_copy_says_so() {
    // The device does not copy, or its library does not know the capability.
    for parts in [
        DirectSetup::new(),
        DirectSetup::lying(|l| (l.max_memcpy, l.missing) = (64, &["max_wr_memcpy_length"])),
    ] {
        let mlx5 = parts.mlx5();
        let memcpy = DirectOperationFlags::Memcpy;
        let errors = [
            mlx5.create_qp_builder(&parts.description())
                .setup_direct_send_ops_flags(memcpy)
                .build_direct()
                .unwrap_err(),
            mlx5.create_dc_initiator_builder(&parts.description())
                .setup_direct_send_ops_flags(memcpy)
                .build()
                .unwrap_err(),
        ];
        for error in errors {
            assert!(matches!(
                &error,
                CreateQueuePairError::Unsupported(Unsupported { verb: "mlx5dv_wr_memcpy", .. })
            ));
            assert_eq!(error.to_string(), "device fake0 has no copies by the device (mlx5dv_wr_memcpy)");
        }
    }
    for errno in ERRNOS {
        let parts = DirectSetup::lying(|l| l.direct = errno);
        let mut builder = parts.mlx5().create_qp_builder(&parts.description());
        let error = builder.setup_direct_send_ops_flags(DirectOperationFlags::Memcpy).build_direct();
        assert_says(&error.unwrap_err(), errno);
    }
}

#[test]
fn a_pair_is_made_with_what_is_asked_for() {
    let parts = copying();
    use DirectOperationFlags as Op;
    let all = Op::MrInterleaved | Op::MrList | Op::MKeyConfigure | Op::RawWqe | Op::Memcpy;
    let mut builder = parts.mlx5().create_qp_builder(&parts.description());
    builder.setup_direct_send_ops_flags(all);
    let pair = builder.build_direct().unwrap();
    assert_eq!(
        (pair.qp_type(), pair.control().capability().max_inline_data),
        (QueuePairType::ReliableConnection, 0)
    );
    let mask =
        u64::from(sideway::sys::types::mlx5dv_qp_init_attr_mask::MLX5DV_QP_INIT_ATTR_MASK_SEND_OPS_FLAGS.0);
    let arguments = parts.arguments();
    assert_eq!((arguments.own_mask, arguments.own_ops), (mask, 0b11111));
    // A pair without mlx5 operations requests none.
    drop(builder.build_ex().unwrap());
    let arguments = parts.arguments();
    assert_eq!((arguments.own_mask, arguments.own_ops), (0, 0));
    // The library has the operation or lacks it.
    for (flag, missing) in [
        (Op::Memcpy, &["wr_memcpy"] as &'static [&'static str]),
        (Op::RawWqe, &["wr_raw_wqe"]),
        (Op::MrList, &["wr_mr_list"]),
        (Op::MrInterleaved, &["wr_mr_interleaved"]),
        (Op::MKeyConfigure, &["wr_mkey_configure"]),
        (Op::MKeyConfigure, &["wr_set_mkey_access_flags"]),
        (Op::MKeyConfigure, &["wr_set_mkey_layout_list"]),
        (Op::MKeyConfigure, &["wr_set_mkey_layout_interleaved"]),
        (Op::MKeyConfigure, &["wr_set_mkey_sig_block"]),
        (Op::MKeyConfigure, &["mlx5dv_qp_ex"]),
    ] {
        let parts = DirectSetup::lying(|l| (l.missing, l.max_memcpy) = (missing, 64));
        let mut builder = parts.mlx5().create_qp_builder(&parts.description());
        let error = builder.setup_direct_send_ops_flags(flag).build_direct().unwrap_err().to_string();
        assert!(error.contains("without `"), "{missing:?}: {error}");
    }
    for errno in ERRNOS {
        let parts = DirectSetup::lying(|l| l.direct = errno);
        let mut builder = parts.mlx5().create_qp_builder(&parts.description());
        match builder.setup_direct_send_ops_flags(Op::RawWqe).build_direct().unwrap_err() {
            CreateQueuePairError::Unsupported(Unsupported { verb, capability, .. }) => {
                assert!(is_unsupported(errno));
                assert_eq!(verb, "mlx5dv_create_qp");
                assert!(capability.contains("RawWqe"), "{capability}");
            }
            error => assert_says(&error, errno),
        }
    }
    // A description of another context is rejected.
    let elsewhere = mlx5::DirectVerbs::of(&parts.fake.context()).unwrap();
    let error = elsewhere.create_qp_builder(&parts.description()).build_direct().unwrap_err();
    assert!(matches!(error, CreateQueuePairError::DescriptionOfOtherContext));
}

#[test]
fn operations_a_pair_was_not_created_with_are_not_called() {
    let parts = copying();
    let mut pair = pair(&parts, DirectOperationFlags::Memcpy);
    let mut guard = pair.start_post_send();
    // SAFETY: `post` below refuses the list, so the device gets no request and accesses no memory.
    unsafe { guard.construct_wr(1, SIGNALED).setup_raw_wqe(&raw(16, 1)) };
    let error = guard.post().unwrap_err();
    let reason = DirectRequestError::UnsupportedOperation { operation: DirectOperationFlags::RawWqe };
    assert_eq!(error, PostSendError::Direct { index: 0, reason });
    assert!(error.to_string().contains("setup_direct_send_ops_flags"), "{error}");
    // The same for an initiator.
    let mut initiator = parts.mlx5().create_dc_initiator_builder(&parts.description()).build().unwrap();
    let mut guard = initiator.start_post_send();
    // SAFETY: `post` below refuses the list, so the device gets no request and accesses no memory.
    unsafe { guard.construct_wr(1, SIGNALED).setup_memcpy(1, 2, 3, 4, 8) };
    let reason = DirectRequestError::UnsupportedOperation { operation: DirectOperationFlags::Memcpy };
    assert_eq!(guard.post(), Err(PostSendError::Direct { index: 0, reason }));
    assert_eq!((parts.posted(), parts.own_requests()), (0, vec![]));
}

#[test]
fn an_initiator_copies_without_a_target() {
    let parts = copying();
    let mut builder = parts.mlx5().create_dc_initiator_builder(&parts.description());
    let operations = DirectOperationFlags::Memcpy | DirectOperationFlags::RawWqe;
    let mut initiator = builder.setup_direct_send_ops_flags(operations).build().unwrap();
    assert_eq!(parts.arguments().own_ops, operations.bits());
    let ah = parts.address();
    let mut guard = initiator.start_post_send();
    // SAFETY: the fake device touches no memory, and the queue has free places.
    unsafe {
        guard.construct_wr(1, SIGNALED).setup_memcpy(1, 2, 3, 4, 8);
        guard.construct_wr(2, SIGNALED).setup_dc_address(&ah, 7, 8).setup_write(1, 2).setup_sge(3, 4, 5);
        guard.construct_wr(3, SIGNALED).setup_raw_wqe(&raw(64, 4));
    }
    guard.post().unwrap();
    let copy = OwnRequest::Memcpy { dest: (1, 2), src: (3, 4), length: 8 };
    assert_eq!(parts.own_requests(), [copy, OwnRequest::Raw(raw(64, 4))]);
    assert_eq!((parts.addresses().len(), parts.posted()), (1, 3));
    // The target of a copy request does not carry over to the next request.
    let mut guard = initiator.start_post_send();
    // SAFETY: `post` below refuses the list, so the device gets no request and accesses no memory.
    unsafe {
        guard.construct_wr(1, SIGNALED).setup_dc_address(&ah, 7, 8).setup_memcpy(1, 2, 3, 4, 8);
        guard.construct_wr(2, SIGNALED).setup_write(1, 2).setup_sge(3, 4, 5);
    }
    assert!(matches!(guard.post(), Err(PostSendError::MissingDestination { index: 1, .. })));
}

#[test]
fn a_raw_request_is_as_long_as_it_says() {
    let mut parts = DirectSetup::new();
    let mut pair = pair(&parts, DirectOperationFlags::RawWqe);
    // The longest request, one slightly longer than a place, and the shortest, from an unaligned
    // address.
    let lengths = [(63 * 16, 63), (80, 5), (16, 1)];
    for (bytes, units) in lengths {
        let mut guard = pair.start_post_send();
        let unaligned = [vec![0], raw(bytes, units)].concat();
        // SAFETY: the fake device only copies it, and the queue is empty.
        unsafe { guard.construct_wr(units.into(), SIGNALED).setup_raw_wqe(&unaligned[1..]) };
        guard.post().unwrap();
    }
    let expected: Vec<_> =
        lengths.iter().map(|(bytes, units)| OwnRequest::Raw(raw(*bytes, *units))).collect();
    assert_eq!(parts.own_requests(), expected);
    let mut poller = parts.cq.start_poll().unwrap();
    assert_eq!(poller.next().unwrap().opcode(), WorkCompletionOperationType::Driver2);
    drop(poller);
    for (bytes, units, stated) in [
        (0, 0, None),
        (7, 0, None),
        (8, 0, Some(0)),
        (16, 2, Some(32)),
        (32, 1, Some(16)),
        (17, 1, Some(16)),
        (64 * 16, 63, Some(63 * 16)),
    ] {
        let mut guard = pair.start_post_send();
        // SAFETY: `post` below refuses the list, so the device gets no request and accesses no
        // memory.
        unsafe { guard.construct_wr(1, SIGNALED).setup_raw_wqe(&raw(bytes, units)) };
        let reason = DirectRequestError::RawLength { given: bytes, stated };
        let error = guard.post().unwrap_err();
        assert_eq!(error, PostSendError::Direct { index: 0, reason });
        assert!(error.to_string().starts_with(&format!("work request 0: a raw request of {bytes} bytes, ")));
    }
}

/// The queue holds 16 requests; one of more than 64 bytes takes several places.
#[test]
fn a_list_takes_as_many_places_as_there_are() {
    let parts = copying();
    let mut pair = pair(&parts, DirectOperationFlags::RawWqe | DirectOperationFlags::Memcpy);
    let (one, four) = (raw(64, 4), raw(256, 16));
    let copies = |guard: &mut mlx5::DirectPostSendGuard<'_>, count| {
        for n in 0..count {
            // SAFETY: the fake device touches no memory; a list that is too long is not posted.
            unsafe { guard.construct_wr(n, SIGNALED).setup_memcpy(1, 2, 3, 4, 8) };
        }
    };
    let too_many = Err(PostSendError::TooManyWorkRequests { limit: 16 });
    let mut posted = 0;
    for (copied, long, expected) in
        [(16, 0, Ok(())), (17, 0, too_many), (12, 1, Ok(())), (13, 1, too_many), (0, 4, Ok(()))]
    {
        let mut guard = pair.start_post_send();
        copies(&mut guard, copied);
        for n in 0..long {
            // SAFETY: the fake device touches no memory; a list that is too long is not posted.
            unsafe { guard.construct_wr(n, SIGNALED).setup_raw_wqe(&four) };
        }
        assert_eq!(guard.post(), expected, "{copied} and {long}");
        posted += if expected.is_ok() { copied + long } else { 0 };
        assert_eq!(parts.posted(), posted);
    }
    // The long request comes first, followed by requests of libibverbs, which do not count its
    // places.
    let mut guard = pair.start_post_send();
    // SAFETY: the fake device touches no memory; a list that is too long is not posted.
    unsafe { guard.construct_wr(0, SIGNALED).setup_raw_wqe(&four) };
    for n in 0..13 {
        // SAFETY: the fake device touches no memory; a list that is too long is not posted.
        unsafe { guard.construct_wr(n, SIGNALED).setup_write(1, 2).setup_sge(3, 4, 5) };
    }
    assert_eq!(guard.post(), too_many);
    let mut guard = pair.start_post_send();
    // SAFETY: the fake device touches no memory; a list that is too long is not posted.
    unsafe { guard.construct_wr(0, SIGNALED).setup_raw_wqe(&one) };
    guard.post().unwrap();
}

#[test]
fn a_list_that_is_not_posted_never_happened() {
    let parts = copying();
    let mut pair = pair(&parts, DirectOperationFlags::Memcpy);
    let copy = |pair: &mut DirectQueuePair, wr_id| {
        let mut guard = pair.start_post_send();
        // SAFETY: the fake device touches no memory.
        unsafe { guard.construct_wr(wr_id, SIGNALED).setup_memcpy(1, 2, 3, 4, 8) };
        std::mem::forget(guard);
        let mut guard = pair.start_post_send();
        // SAFETY: the fake device touches no memory.
        unsafe { guard.construct_wr(wr_id, SIGNALED).setup_memcpy(1, 2, 3, 4, 8) };
        drop(guard);
    };
    copy(&mut pair, 1);
    assert_eq!(parts.posted(), 0);
    // Requests without a guarantee of a free place are refused, as on every extended pair of mlx5.
    let mut guard = pair.start_post_send();
    guard.construct_wr(1, SIGNALED).setup_send().setup_inline_data(&[1]);
    assert!(matches!(guard.post(), Err(PostSendError::InlineDataTooLong { index: 0, given: 1, limit: 0 })));
    let mut guard = pair.start_post_send();
    drop(guard.construct_wr(1, SIGNALED).setup_send());
    assert_eq!(guard.post(), Err(PostSendError::FullQueueUnnoticed { index: 0 }));
    // The library may reject the whole list, and the state of the pair may be the reason.
    let (index, errno) = (None, libc::EINVAL);
    for (state, expected) in [
        (QueuePairState::Reset, PostSendError::NotConnected { state: QueuePairState::Reset, index, errno }),
        (QueuePairState::ReadyToSend, PostSendError::InvalidWorkRequest { index, errno }),
    ] {
        let parts = DirectSetup::lying(|l| {
            (l.max_memcpy, l.wr_complete, l.queried_state) = (64, errno, Some(state.raw()));
        });
        let mut pair = self::pair(&parts, DirectOperationFlags::Memcpy);
        let mut guard = pair.start_post_send();
        // SAFETY: the fake device touches no memory.
        unsafe { guard.construct_wr(1, SIGNALED).setup_memcpy(1, 2, 3, 4, 8) };
        assert_eq!(guard.post(), Err(expected));
    }
    // Both halves are used separately.
    let parts = copying();
    let (mut send, receive) = self::pair(&parts, DirectOperationFlags::Memcpy).into_split();
    drop(receive);
    let mut guard = send.start_post_send();
    // SAFETY: the fake device touches no memory.
    unsafe { guard.construct_wr(1, SIGNALED).setup_memcpy(1, 2, 3, 4, 8) };
    guard.post().unwrap();
    assert_eq!(parts.posted(), 1);
}
