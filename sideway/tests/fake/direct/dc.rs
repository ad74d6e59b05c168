//! Tests of DC initiators' requests.

use sideway::ibverbs::queue_pair::{PostSendError, PostSendGuard, QueuePair, WorkRequestOperationType};
use sideway::mlx5::DciStreams;

use super::super::SIGNALED;
use super::super::control::{ERRNOS, assert_says, is_unsupported};
use super::super::support::fake::direct::DcAddress;
use super::DirectSetup;

/// Posts one request of each kind to an initiator, each with a different target.
#[test]
fn every_request_goes_to_its_target() {
    let parts = DirectSetup::new();
    let mut builder = parts.mlx5().create_dc_initiator_builder(&parts.description());
    let mut initiator = builder.setup_streams(DciStreams::default()).build().unwrap();
    let (one, two) = (parts.address(), parts.address());
    let mut bytes = [0u64; 2];
    let address = bytes.as_mut_ptr() as u64;
    let mut guard = initiator.start_post_send();
    let send = guard.construct_wr(1, SIGNALED).setup_dc_address(&one, 0x10, 0x1111);
    // SAFETY: the request has no memory, and the queue has a free place.
    unsafe { send.setup_send().setup_sge_list(&[]) };
    let write = guard.construct_wr(2, SIGNALED).setup_dc_address(&two, 0x20, u64::MAX).setup_write(1, 2);
    // SAFETY: the fake device touches no memory.
    unsafe { write.setup_sge(3, address, 8) };
    let read = guard.construct_wr(3, SIGNALED).setup_dc_address_stream(&one, 0x30, 3, 5).setup_read(1, 2);
    // SAFETY: the fake device touches no memory.
    unsafe { read.setup_sge(3, address, 8) };
    let add = guard.construct_wr(4, SIGNALED).setup_dc_address(&two, 0x40, 4).setup_atomic_fetch_add(1, 8, 1);
    // SAFETY: the fake device touches no memory.
    unsafe { add.setup_sge(3, address, 8) };
    guard.post().unwrap();
    let at = |number, access_key, stream| DcAddress { number, access_key, stream };
    let expected =
        [at(0x10, 0x1111, None), at(0x20, u64::MAX, None), at(0x30, 3, Some(5)), at(0x40, 4, None)];
    assert_eq!(parts.addresses(), expected);
    // The same through both halves.
    let (mut send, receive) = initiator.into_split();
    use sideway::ibverbs::queue_pair::SendQueue;
    let mut guard = send.start_post_send();
    let last = guard.construct_wr(5, SIGNALED).setup_dc_address(&one, 0x50, 5).setup_send_imm(1);
    // SAFETY: the fake device touches no memory.
    unsafe { last.setup_sge_list(&[]) };
    guard.post().unwrap();
    assert_eq!(parts.addresses(), [at(0x50, 5, None)]);
    drop((send, receive, bytes));
    let mut cq = parts.cq;
    let mut poller = cq.start_poll().unwrap();
    let mut found = Vec::new();
    while let Some(wc) = poller.next() {
        found.push(wc.wr_id());
    }
    assert_eq!(found, [1, 2, 3, 4, 5]);
}

#[test]
fn a_request_without_its_target_is_refused() {
    let parts = DirectSetup::new();
    let mut initiator = parts.mlx5().create_dc_initiator_builder(&parts.description()).build().unwrap();
    let ah = parts.address();
    // The second of three requests follows a dropped handle, whose target must not carry over.
    let mut guard = initiator.start_post_send();
    let first = guard.construct_wr(1, SIGNALED).setup_dc_address(&ah, 1, 1).setup_send();
    // SAFETY: the request has no memory, and the queue has a free place.
    unsafe { first.setup_sge_list(&[]) };
    drop(guard.construct_wr(2, SIGNALED).setup_dc_address(&ah, 2, 2));
    drop(guard.construct_wr(3, SIGNALED).setup_send());
    drop(guard.construct_wr(4, SIGNALED).setup_dc_address(&ah, 4, 4).setup_send());
    let operation = WorkRequestOperationType::Send;
    let error = guard.post().unwrap_err();
    assert_eq!(error, PostSendError::MissingDestination { index: 1, operation });
    assert_eq!((error.bad_work_request(), error.posted()), (Some(1), Some(0)));
    // Requests without a buffer have no guarantee of a free place, and this device detects a full
    // queue too late.
    let mut guard = initiator.start_post_send();
    drop(guard.construct_wr(1, SIGNALED).setup_dc_address(&ah, 1, 1).setup_send());
    assert_eq!(guard.post(), Err(PostSendError::FullQueueUnnoticed { index: 0 }));
    // Errors: a stream on a pair without streams, a datagram's address, an unsupported operation,
    // and inline data without room.
    let mut guard = initiator.start_post_send();
    drop(guard.construct_wr(1, SIGNALED).setup_dc_address_stream(&ah, 1, 1, 1).setup_send());
    let error = guard.post().unwrap_err();
    assert_eq!((error, error.bad_work_request()), (PostSendError::NoStreams { index: 0 }, Some(0)));
    let mut guard = initiator.start_post_send();
    drop(guard.construct_wr(1, SIGNALED).setup_ud_address(&ah, 1, 1).setup_send());
    assert!(matches!(guard.post(), Err(PostSendError::MissingDestination { index: 0, .. })));
    let mut guard = initiator.start_post_send();
    guard.construct_wr(1, SIGNALED).setup_dc_address(&ah, 1, 1).setup_send().setup_inline_data(&[1]);
    assert!(matches!(guard.post(), Err(PostSendError::InlineDataTooLong { index: 0, given: 1, limit: 0 })));
    let mut guard = initiator.start_post_send();
    for n in 0..17 {
        let send = guard.construct_wr(n, SIGNALED).setup_dc_address(&ah, 1, 1).setup_send();
        // SAFETY: the requests have no memory; a list that is too long is not posted.
        unsafe { send.setup_sge_list(&[]) };
    }
    assert_eq!(guard.post(), Err(PostSendError::TooManyWorkRequests { limit: 16 }));
    // A list that is dropped or leaked has no effect.
    drop(parts.addresses());
    let mut guard = initiator.start_post_send();
    let send = guard.construct_wr(1, SIGNALED).setup_dc_address(&ah, 1, 1).setup_send();
    // SAFETY: the requests have no memory; a list that is too long is not posted.
    unsafe { send.setup_sge_list(&[]) };
    std::mem::forget(guard);
    let mut guard = initiator.start_post_send();
    let send = guard.construct_wr(2, SIGNALED).setup_dc_address(&ah, 2, 2).setup_send();
    // SAFETY: the requests have no memory; a list that is too long is not posted.
    unsafe { send.setup_sge_list(&[]) };
    guard.post().unwrap();
    assert_eq!(parts.fake.world.posted.load(std::sync::atomic::Ordering::Relaxed), 1);
}

#[test]
fn a_stream_is_reset() {
    let parts = DirectSetup::new();
    let mut initiator = parts.mlx5().create_dc_initiator_builder(&parts.description()).build().unwrap();
    // A leaked list is closed first.
    std::mem::forget(initiator.start_post_send());
    initiator.split().0.reset_stream(5).unwrap();
    assert_eq!(*parts.fake.world.direct.stream.lock().unwrap(), Some(5));
    for errno in ERRNOS {
        let parts = DirectSetup::lying(|l| l.stream_reset = errno);
        let mut initiator = parts.mlx5().create_dc_initiator_builder(&parts.description()).build().unwrap();
        match initiator.split().0.reset_stream(5).unwrap_err() {
            error if error.unsupported().is_some() => {
                assert!(is_unsupported(errno));
                assert_eq!(error.verb(), "mlx5dv_dci_stream_id_reset");
            }
            error => assert_says(&error, errno),
        }
    }
}
