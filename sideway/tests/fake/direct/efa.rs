//! Tests of EFA's queue pairs, completions and object attributes.

use sideway::efa::{CompletionFields, InterconnectIds, SrdFlags};
use sideway::ibverbs::completion::CreateCompletionQueueError;
use sideway::ibverbs::queue_pair::CreateQueuePairError;
use sideway::ibverbs::queue_pair::{
    ExtendedQueuePair, PostSendError, PostSendGuard, QueuePair, QueuePairType, SendOperationFlags,
    WorkRequestOperationType,
};
use sideway::ibverbs::{AccessFlags, Unsupported};
use sideway::sys::types::*;

use super::super::SIGNALED;
use super::super::control::{ERRNOS, assert_says, is_unsupported};
use super::{DRIVER, DirectSetup, EXTENDED};

/// An SRD pair on a device with all features.
fn srd(parts: &DirectSetup, flags: SrdFlags) -> ExtendedQueuePair {
    let mut builder = parts.efa().create_srd_builder(&parts.description());
    builder.setup_flags(flags).setup_service_level(3).build().unwrap()
}

const RDMA: u32 = EFADV_DEVICE_ATTR_CAPS_RDMA_READ | EFADV_DEVICE_ATTR_CAPS_RDMA_WRITE;

#[test]
fn an_srd_pair_is_made_as_it_is_described() {
    use SendOperationFlags as Op;
    let sends = Op::Send | Op::SendWithImmediate;
    for (capabilities, operations) in [
        (0, sends),
        (EFADV_DEVICE_ATTR_CAPS_RDMA_READ, sends | Op::Read),
        (RDMA, sends | Op::Read | Op::Write | Op::WriteWithImmediate),
    ] {
        let parts = DirectSetup::lying(|l| l.efa_capabilities = capabilities);
        let pair = srd(&parts, SrdFlags::UnsolicitedWriteReceive);
        assert_eq!(pair.qp_type(), QueuePairType::ScalableReliableDatagram);
        let arguments = parts.arguments();
        assert_eq!((arguments.qp_type, arguments.comp_mask), (DRIVER, EXTENDED));
        assert_eq!(arguments.send_ops, operations.bits());
        let own = parts.fake.world.direct.efa_qp.lock().unwrap().take().expect("a pair was made");
        assert_eq!(
            (own.comp_mask, own.driver_qp_type, own.flags, own.sl),
            (0, EFADV_QP_DRIVER_TYPE_SRD, 1, 3)
        );
        let sizes = parts.fake.world.direct.sizes.lock().unwrap().clone();
        assert!(sizes.contains(&("efadv_create_qp_ex", size_of::<efadv_qp_init_attr>() as u32)));
    }
    for errno in ERRNOS {
        let parts = DirectSetup::lying(|l| l.direct = errno);
        match parts.efa().create_srd_builder(&parts.description()).build().unwrap_err() {
            CreateQueuePairError::Unsupported(Unsupported { verb, ref device, .. }) => {
                assert!(is_unsupported(errno));
                assert_eq!((verb, device.as_str()), ("efadv_create_qp_ex", "fake0"));
            }
            error => assert_says(&error, errno),
        }
    }
    // Every request needs an address, so a pair without that operation cannot be made.
    let parts = DirectSetup::lying(|l| l.missing = &["wr_set_ud_addr"]);
    let error = parts.efa().create_srd_builder(&parts.description()).build().unwrap_err();
    assert!(error.to_string().contains("wr_set_ud_addr"), "{error}");
}

#[test]
fn a_request_of_an_srd_pair_goes_where_it_is_addressed() {
    let parts = DirectSetup::lying(|l| l.efa_capabilities = RDMA);
    let mut pair = srd(&parts, SrdFlags::empty());
    let ah = parts.address();
    let last = || *parts.fake.world.objects.last_datagram.lock().unwrap();
    let mut guard = pair.start_post_send();
    guard.construct_wr(1, SIGNALED).setup_srd_address(&ah, 5, 6).setup_send().setup_inline_data(&[1, 2]);
    drop(guard.construct_wr(2, SIGNALED).setup_srd_address(&ah, 5, 6).setup_write_imm(1, 2, 3));
    drop(guard.construct_wr(3, SIGNALED).setup_srd_address(&ah, 7, 8).setup_read(1, 2));
    drop(guard.construct_wr(4, SIGNALED).setup_ud_address(&ah, 9, 10).setup_send_imm(1));
    guard.post().unwrap();
    assert_eq!(last(), Some((9, 10)));
    let mut guard = pair.start_post_send();
    drop(guard.construct_wr(1, SIGNALED).setup_write(1, 2));
    let operation = WorkRequestOperationType::Write;
    assert_eq!(guard.post(), Err(PostSendError::MissingDestination { index: 0, operation }));
    // Only sends can have inline data, unless the pair was made with `InlineWrite`.
    let mut guard = pair.start_post_send();
    guard.construct_wr(1, SIGNALED).setup_srd_address(&ah, 5, 6).setup_write(1, 2).setup_inline_data(&[1]);
    assert_eq!(guard.post(), Err(PostSendError::InlineDataTooLong { index: 0, given: 1, limit: 0 }));
    let mut pair = srd(&parts, SrdFlags::InlineWrite);
    let mut guard = pair.start_post_send();
    guard.construct_wr(1, SIGNALED).setup_srd_address(&ah, 5, 6).setup_write(1, 2).setup_inline_data(&[1]);
    guard.post().unwrap();
    // A pair without WRITE.
    let parts = DirectSetup::new();
    let mut pair = srd(&parts, SrdFlags::empty());
    let ah = parts.address();
    let mut guard = pair.start_post_send();
    drop(guard.construct_wr(1, SIGNALED).setup_srd_address(&ah, 5, 6).setup_write(1, 2));
    assert_eq!(guard.post(), Err(PostSendError::UnsupportedOperation { index: 0, operation }));
}

#[test]
fn completions_tell_what_only_efa_knows() {
    let parts = DirectSetup::new();
    let efa = parts.efa();
    let description = parts.pd.context().create_cq_builder();
    let mut builder = efa.create_cq_builder(&description);
    let fields = CompletionFields::Sgid | CompletionFields::IsUnsolicited;
    let (mut cq, reader) = builder.setup_efa_fields(fields).build_ex().unwrap();
    let own = parts.fake.world.direct.efa_cq.lock().unwrap().take().expect("a queue was made");
    assert_eq!(own, [0, 3, 0]);
    let sizes = parts.fake.world.direct.sizes.lock().unwrap().clone();
    assert!(sizes.contains(&("efadv_create_cq", size_of::<efadv_cq_init_attr>() as u32)));
    let (mut bare, nothing) = builder.setup_efa_fields(CompletionFields::empty()).build_ex().unwrap();
    for (queue, expected) in [(&mut cq, true), (&mut bare, false)] {
        let mut description = parts.description();
        let mut pair = efa.create_srd_builder(description.setup_send_cq(queue)).build().unwrap();
        let ah = parts.address();
        let mut guard = pair.start_post_send();
        drop(guard.construct_wr(1, SIGNALED).setup_srd_address(&ah, 1, 1).setup_send());
        drop(guard.construct_wr(2, SIGNALED).setup_srd_address(&ah, 1, 1).setup_send());
        guard.post().unwrap();
        let mut poller = queue.start_poll().unwrap();
        let wc = poller.next().unwrap();
        assert_eq!(reader.sgid(&wc).map(|gid| gid.raw), expected.then_some([1; 16]));
        assert_eq!(reader.is_unsolicited(&wc), expected.then_some(true));
        assert_eq!((nothing.sgid(&wc), nothing.is_unsolicited(&wc)), (None, None));
        // The device has an address handle for this sender.
        let wc = poller.next().unwrap();
        assert_eq!(reader.sgid(&wc), None);
    }
    // The reader keeps the queue alive.
    drop(cq);
    drop(reader);
    for errno in ERRNOS {
        let parts = DirectSetup::lying(|l| l.direct = errno);
        let description = parts.pd.context().create_cq_builder();
        match parts.efa().create_cq_builder(&description).build_ex().unwrap_err() {
            CreateCompletionQueueError::Unsupported(Unsupported { verb, .. }) => {
                assert!(is_unsupported(errno));
                assert_eq!(verb, "efadv_create_cq");
            }
            error => assert_says(&error, errno),
        }
    }
    for missing in [&["wc_read_sgid"], &["wc_is_unsolicited"], &["efadv_cq"]] {
        let parts = DirectSetup::lying(|l| l.missing = missing);
        let description = parts.pd.context().create_cq_builder();
        let mut builder = parts.efa().create_cq_builder(&description);
        let error = builder.setup_efa_fields(fields).build_ex().unwrap_err().to_string();
        assert!(error.contains("without `"), "{missing:?}: {error}");
    }
}

#[test]
fn a_completion_that_failed_tells_nothing_of_efa() {
    let parts = DirectSetup::lying(|l| l.completion = Some([ibv_wc_status::IBV_WC_REM_ABORT_ERR.0, 0, 0]));
    let efa = parts.efa();
    let mut builder = efa.create_cq_builder(&parts.pd.context().create_cq_builder());
    let (mut cq, reader) = builder.setup_efa_fields(CompletionFields::Sgid).build_ex().unwrap();
    let mut pair = efa.create_srd_builder(parts.description().setup_send_cq(&cq)).build().unwrap();
    let ah = parts.address();
    let mut guard = pair.start_post_send();
    drop(guard.construct_wr(1, SIGNALED).setup_srd_address(&ah, 1, 1).setup_send());
    guard.post().unwrap();
    let mut poller = cq.start_poll().unwrap();
    assert_eq!(reader.sgid(&poller.next().unwrap()), None);
}

#[test]
fn efa_tells_of_handles_and_regions() {
    let parts = DirectSetup::new();
    let mut memory = [0u8; 8];
    // SAFETY: the fake device touches no memory.
    let mr = unsafe { parts.pd.reg_mr(memory.as_mut_ptr(), 8, AccessFlags::LocalWrite) }.unwrap();
    assert_eq!(parts.efa().query_ah(&parts.address()).unwrap(), 77);
    let expected = InterconnectIds { recv: None, rdma_read: Some(4), rdma_recv: None };
    assert_eq!(parts.efa().query_mr(&mr).unwrap(), expected);
    let sizes = parts.fake.world.direct.sizes.lock().unwrap().clone();
    assert!(sizes.contains(&("efadv_query_ah", size_of::<efadv_ah_attr>() as u32)));
    assert!(sizes.contains(&("efadv_query_mr", size_of::<efadv_mr_attr>() as u32)));
    for errno in ERRNOS {
        let parts = DirectSetup::lying(|l| l.direct = errno);
        match parts.efa().query_ah(&parts.address()).unwrap_err() {
            error if error.unsupported().is_some() => {
                assert!(is_unsupported(errno));
                assert_eq!(error.verb(), "efadv_query_ah");
            }
            error => assert_says(&error, errno),
        }
    }
}
