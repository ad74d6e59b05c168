//! Tests of address handles and shared receive queues: errors, lifetimes, and destinations of
//! datagrams.

use sideway::ErrorKind;
use sideway::ibverbs::Unsupported;
use sideway::ibverbs::address::{AddressHandleAttribute, Gid};
use sideway::ibverbs::address_handle::{AddressHandle, GlobalRoutingHeader};
use sideway::ibverbs::completion::{BasicCompletionQueue, BasicWorkCompletion};
use sideway::ibverbs::device_context::DeviceContext;
use sideway::ibverbs::queue_pair::{
    BasicQueuePair, CreateQueuePairError, ExtendedQueuePair, PostRecvError, PostSendError, PostSendGuard,
    QueuePair, QueuePairType, ScatterGatherEntry, WorkRequestOperationType,
};
use sideway::ibverbs::srq::{CreateSharedReceiveQueueError, SharedReceiveQueueAttribute};

use std::sync::atomic::Ordering::Relaxed;

use super::control::{ERRNOS, assert_says};
use super::support::fake::{BadRequest, Fake};
use super::support::flavour::{CqFlavour, QpFlavour};
use super::{FakeSetup, SIGNALED};
use crate::support::errors::assert_error;

type Pair<Q> = FakeSetup<Q, BasicCompletionQueue>;

fn datagram_pair<Q: QpFlavour>(fake: &Fake) -> Pair<Q> {
    Pair::with(fake, |cq| cq, |qp| qp.setup_qp_type(QueuePairType::UnreliableDatagram))
}

fn address() -> AddressHandleAttribute {
    let mut attr = AddressHandleAttribute::new();
    attr.setup_port(1).setup_grh_dest_gid(&"::ffff:10.0.0.1".parse().unwrap()).setup_grh_src_gid_index(3);
    attr
}

fn handle(context: &DeviceContext) -> AddressHandle {
    context.alloc_pd().unwrap().create_ah(&address()).unwrap()
}

#[test]
fn an_address_handle_can_fail() {
    for errno in ERRNOS {
        let fake = Fake::lying(|l| l.create_ah = errno);
        let pd = fake.pd();
        let error = pd.create_ah(&address()).unwrap_err();
        match error {
            error if error.unsupported().is_some() => {
                assert!([libc::EOPNOTSUPP, libc::ENOSYS].contains(&errno));
                assert_eq!(error.verb(), "ibv_create_ah");
            }
            error => {
                assert!(![libc::EOPNOTSUPP, libc::ENOSYS].contains(&errno));
                assert_says(&error, errno);
            }
        }
    }
    for errno in [libc::ETIMEDOUT, libc::ENETUNREACH, libc::EHOSTUNREACH] {
        let fake = Fake::lying(|l| l.create_ah = errno);
        let error = fake.pd().create_ah(&address()).unwrap_err();
        let gid = "::ffff:10.0.0.1".parse::<Gid>().unwrap();
        assert_error(&error, ErrorKind::NoRoute, &[("sgid_index", &3), ("gid", &gid)]);
    }
    let fake = Fake::lying(|l| l.create_ah = libc::EINVAL);
    let error = fake.pd().create_ah(&address()).unwrap_err().to_string();
    assert!(error.contains("port: 1") && error.contains("grh_src_gid_index: Some(3)"), "{error}");
}

#[test]
#[cfg_attr(miri, ignore = "leaks what cannot be destroyed")]
fn an_address_handle_that_stays_is_given_back() {
    let fake = Fake::lying(|l| l.destroy = libc::EBUSY).may_leak();
    let ah = handle(&fake.context());
    let error = ah.close().unwrap_err();
    assert_eq!(error.error.errno(), Some(libc::EBUSY));
    drop(error.object);
    let tried = fake.world.destroyed.lock().unwrap().clone();
    assert_eq!(tried, ["ah", "ah"], "what a handle depends on stays with it");
}

#[test]
fn an_address_handle_keeps_its_domain() {
    let fake = Fake::new();
    let ah = handle(&fake.context());
    let closed = handle(&fake.context());
    closed.close().unwrap();
    drop(ah);
    assert_eq!(*fake.world.destroyed.lock().unwrap(), ["ah", "pd", "context", "ah", "pd", "context"]);
}

/// Passes the completion of a receive to `visit`.
fn received(fake: &Fake, visit: impl FnOnce(&DeviceContext, BasicWorkCompletion<'_>)) {
    let mut setup = datagram_pair::<BasicQueuePair>(fake);
    let mut guard = setup.qp.start_post_recv();
    guard.construct_wr(1);
    guard.post().unwrap();
    let mut poller = setup.cq.start_poll().unwrap();
    visit(&setup.context, poller.next().unwrap());
    poller.finish().unwrap();
}

#[test]
fn an_answer_needs_the_header_that_came() {
    const GRH: u32 = 1;
    let fake = Fake::lying(|l| l.completion = Some([0, 128, GRH]));
    received(&fake, |context, wc| {
        let error = context.init_ah_from_wc(&wc, None, 1).unwrap_err();
        assert_error(&error, ErrorKind::InvalidArgument, &[("grh", &"none")]);
        let mut bytes = [0; GlobalRoutingHeader::LEN];
        bytes[8..24].copy_from_slice(&"fe80::7".parse::<Gid>().unwrap().raw);
        let grh = GlobalRoutingHeader::from_bytes(bytes);
        let attr = context.init_ah_from_wc(&wc, Some(&grh), 2).unwrap();
        assert_eq!((attr.grh_dest_gid(), attr.port()), (Some(grh.sgid()), 2));
        let pd = context.alloc_pd().unwrap();
        pd.create_ah_from_wc(&wc, Some(&grh), 2).unwrap().close().unwrap();
    });
    // After a failure the other fields have no meaning.
    let fake = Fake::lying(|l| l.completion = Some([5, 128, GRH]));
    received(&fake, |context, wc| {
        let error = context.alloc_pd().unwrap().create_ah_from_wc(&wc, None, 1).unwrap_err();
        let text = "ibv_init_ah_from_wc was not called: the completion is of a work request that failed, so \
                    nothing was received";
        assert_eq!((error.kind(), &*error.to_string()), (ErrorKind::InvalidArgument, text));
    });
    for errno in ERRNOS {
        let fake = Fake::lying(|l| l.create_ah = errno);
        received(&fake, |context, wc| match context.init_ah_from_wc(&wc, None, 1).unwrap_err() {
            error if error.unsupported().is_some() => {
                assert!([libc::EOPNOTSUPP, libc::ENOSYS].contains(&errno));
                assert_eq!(error.verb(), "ibv_init_ah_from_wc");
            }
            error => assert_says(&error, errno),
        });
    }
}

#[test]
fn a_datagram_goes_where_it_is_addressed() {
    fn check<Q: QpFlavour>() {
        let fake = Fake::new();
        let mut setup = datagram_pair::<Q>(&fake);
        let ah = handle(&setup.context);
        let mut guard = setup.qp.start_post_send();
        guard.construct_wr(0, SIGNALED).setup_ud_address(&ah, 7, 8).setup_send();
        guard
            .construct_wr(1, SIGNALED)
            .setup_ud_address(&ah, 7, 8)
            .setup_send_imm(9)
            .setup_inline_data(&[1; 16]);
        // SAFETY: the fake device touches no memory.
        unsafe {
            let handle = guard.construct_wr(2, SIGNALED).setup_ud_address(&ah, 9, 10).setup_send();
            handle.setup_sge(setup.mr.lkey(), setup.mr.get_ptr() as u64, 8);
        }
        guard.post().unwrap();
        assert_eq!(*fake.world.objects.last_datagram.lock().unwrap(), Some((9, 10)));
        assert_eq!(setup.poll(), [0, 1, 2], "{}", Q::NAME);
        // A list that is dropped or leaked refers to nothing any more.
        setup.qp.start_post_send().construct_wr(3, SIGNALED).setup_ud_address(&ah, 1, 1).setup_send();
        let mut guard = setup.qp.start_post_send();
        guard.construct_wr(4, SIGNALED).setup_ud_address(&ah, 1, 1).setup_send();
        std::mem::forget(guard);
        drop(ah);
        setup.qp.start_post_send().post().unwrap();
        assert_eq!(*fake.world.objects.last_datagram.lock().unwrap(), Some((9, 10)));
    }
    for_each_qp!(check());
}

#[test]
fn a_datagram_without_address_is_refused() {
    fn check<Q: QpFlavour>() {
        let fake = Fake::new();
        let mut setup = datagram_pair::<Q>(&fake);
        let ah = handle(&setup.context);
        for inline in [false, true] {
            let mut guard = setup.qp.start_post_send();
            guard.construct_wr(0, SIGNALED).setup_ud_address(&ah, 7, 8).setup_send();
            let handle = guard.construct_wr(1, SIGNALED).setup_send();
            if inline {
                handle.setup_inline_data(&[1]);
            } else {
                drop(handle);
            }
            let error = guard.post().unwrap_err();
            let send = WorkRequestOperationType::Send;
            assert_eq!(error, PostSendError::MissingDestination { index: 1, operation: send });
            assert_eq!((error.bad_work_request(), error.posted()), (Some(1), Some(0)));
        }
        let mut guard = setup.qp.start_post_send();
        guard.construct_wr(0, SIGNALED).setup_write(1, 2);
        let error = guard.post().unwrap_err();
        assert!(matches!(error, PostSendError::UnsupportedOperation { index: 0, .. }), "{error}");
    }
    for_each_qp!(check());
}

#[test]
fn the_limits_of_datagrams_are_those_of_their_pair() {
    fn check<Q: QpFlavour>() {
        let fake = Fake::new();
        let mut setup = datagram_pair::<Q>(&fake);
        let ah = handle(&setup.context);
        let mut guard = setup.qp.start_post_send();
        guard.construct_wr(0, SIGNALED).setup_ud_address(&ah, 7, 8).setup_send().setup_inline_data(&[1; 17]);
        let error = guard.post().unwrap_err();
        assert_eq!(error, PostSendError::InlineDataTooLong { index: 0, given: 17, limit: 16 });
        let mut guard = setup.qp.start_post_send();
        for wr_id in 0..17 {
            guard.construct_wr(wr_id, SIGNALED).setup_ud_address(&ah, 7, 8).setup_send();
        }
        assert_eq!(guard.post().unwrap_err(), PostSendError::TooManyWorkRequests { limit: 16 });
    }
    for_each_qp!(check());
}

#[test]
fn a_connected_pair_takes_no_address() {
    fn check<Q: QpFlavour>() {
        let fake = Fake::new();
        let mut setup = Pair::<Q>::new(&fake);
        let ah = handle(&setup.context);
        let mut guard = setup.qp.start_post_send();
        guard.construct_wr(0, SIGNALED).setup_ud_address(&ah, 7, 8).setup_send_imm(1);
        let error = guard.post().unwrap_err();
        let operation = WorkRequestOperationType::SendWithImmediate;
        assert_eq!(error, PostSendError::UnexpectedDestination { index: 0, operation });
        setup.write([9]);
        assert_eq!(setup.poll(), [9]);
    }
    for_each_qp!(check());
}

/// A library would not notice that the handle belongs to another device.
#[test]
fn an_address_handle_of_another_context_is_refused() {
    fn check<Q: QpFlavour>() {
        let fake = Fake::new();
        let mut setup = datagram_pair::<Q>(&fake);
        let elsewhere = handle(&fake.context());
        let mut guard = setup.qp.start_post_send();
        guard.construct_wr(0, SIGNALED).setup_ud_address(&elsewhere, 7, 8).setup_send();
        let error = guard.post().unwrap_err();
        assert_eq!(error, PostSendError::OtherContext { index: 0 });
        assert_eq!((error.bad_work_request(), error.posted()), (Some(0), Some(0)));
    }
    for_each_qp!(check());
}

#[test]
fn a_datagram_pair_that_cannot_be_addressed_is_not_made() {
    let fake = Fake::lying(|l| l.missing = &["wr_set_ud_addr"]);
    let context = fake.context();
    let cq = BasicCompletionQueue::make(&context.create_cq_builder()).unwrap();
    let pd = context.alloc_pd().unwrap();
    let mut builder = pd.create_qp_builder();
    builder.setup_send_cq(&cq).setup_recv_cq(&cq).setup_qp_type(QueuePairType::UnreliableDatagram);
    let error = builder.build_ex().unwrap_err();
    assert!(matches!(error, CreateQueuePairError::Incomplete { operation: "wr_set_ud_addr" }), "{error}");
    assert!(!builder.build_generic().unwrap().is_extended());
    // A connected pair does not need it.
    ExtendedQueuePair::make(builder.setup_qp_type(QueuePairType::ReliableConnection)).unwrap();
}

/// A pair with a shared receive queue, and that queue.
fn sharing<Q: QpFlavour>(fake: &Fake) -> (Pair<Q>, sideway::ibverbs::srq::SharedReceiveQueue) {
    let context = fake.context();
    let pd = context.alloc_pd().unwrap();
    let srq = pd.create_srq_builder().setup_max_wr(4).setup_max_sge(2).build().unwrap();
    let cq = BasicCompletionQueue::make(&context.create_cq_builder()).unwrap();
    let mut builder = pd.create_qp_builder();
    let qp = Q::make(builder.setup_send_cq(&cq).setup_recv_cq(&cq).setup_srq(&srq)).unwrap();
    let mut memory = Box::new([0u8; 64]);
    // SAFETY: the memory lives as long as the region, and is not accessed.
    let mr =
        unsafe { pd.reg_mr(memory.as_mut_ptr(), 64, sideway::ibverbs::AccessFlags::LocalWrite).unwrap() };
    (FakeSetup { qp, cq, mr, pd, context, memory }, srq)
}

#[test]
fn a_shared_receive_queue_can_fail() {
    for errno in ERRNOS {
        let fake = Fake::lying(|l| l.create_srq = errno);
        match fake.pd().create_srq_builder().build().unwrap_err() {
            CreateSharedReceiveQueueError::Unsupported(Unsupported { verb, .. }) => {
                assert!([libc::EOPNOTSUPP, libc::ENOSYS].contains(&errno));
                assert_eq!(verb, "ibv_create_srq");
            }
            error => assert_says(&error, errno),
        }
        let error = fake.pd().create_srq_builder().setup_max_sge(33).build().unwrap_err();
        let limited = matches!(error, CreateSharedReceiveQueueError::LimitExceeded { what: "max_sge", .. });
        assert_eq!(limited, ![libc::EOPNOTSUPP, libc::ENOSYS].contains(&errno), "{error}");
    }
    let fake = Fake::lying(|l| l.missing = &["post_srq_recv"]);
    let error = fake.pd().create_srq_builder().build().unwrap_err();
    assert!(
        matches!(error, CreateSharedReceiveQueueError::Incomplete { operation: "post_srq_recv" }),
        "{error}"
    );
    let fake = Fake::lying(|l| l.granted = Some(u32::MAX));
    let error = fake.pd().create_srq_builder().build().unwrap_err();
    assert!(matches!(error, CreateSharedReceiveQueueError::TooLarge { .. }), "{error}");
}

#[test]
fn a_shared_receive_queue_takes_lists() {
    fn check<Q: QpFlavour>() {
        let fake = Fake::new();
        let (mut setup, mut srq) = sharing::<Q>(&fake);
        assert_eq!(setup.qp.control().srq(), Some(srq.id()));
        let entry = ScatterGatherEntry::new(setup.mr.lkey(), setup.mr.get_ptr() as u64, 1);
        let mut guard = srq.start_post_recv();
        guard.construct_wr(0);
        // SAFETY: the fake device touches no memory.
        unsafe { guard.construct_wr(1).setup_sge_list(&[entry; 2]) };
        guard.post().unwrap();
        assert_eq!(fake.world.received.load(Relaxed), 2);
        let mut guard = srq.start_post_recv();
        // SAFETY: the fake device touches no memory.
        unsafe { guard.construct_wr(0).setup_sge_list(&[entry; 3]) };
        let error = guard.post().unwrap_err();
        assert_eq!(error, PostRecvError::TooManyScatterGatherEntries { index: 0, given: 3, limit: 2 });
        let mut guard = srq.start_post_recv();
        for wr_id in 0..5 {
            guard.construct_wr(wr_id);
        }
        assert_eq!(guard.post().unwrap_err(), PostRecvError::TooManyWorkRequests { limit: 4 });
        // The pair has no separate receive queue.
        let mut guard = setup.qp.start_post_recv();
        guard.construct_wr(0);
        let error = guard.post().unwrap_err();
        assert_eq!((error, error.bad_work_request()), (PostRecvError::SharedReceiveQueue, Some(0)));
        assert_eq!(fake.world.received.load(Relaxed), 2);
    }
    for_each_qp!(check());
    let fake = Fake::lying(|l| l.post_recv = Some((libc::ENOMEM, BadRequest::Index(0))));
    let mut srq = fake.pd().create_srq_builder().build().unwrap();
    let mut guard = srq.start_post_recv();
    guard.construct_wr(0);
    let error = guard.post().unwrap_err();
    assert_eq!(error, PostRecvError::NotEnoughResources { index: Some(0), errno: libc::ENOMEM });
}

#[test]
#[cfg_attr(miri, ignore = "asks the system for its limits")]
fn a_shared_receive_queue_is_resized_with_its_lists() {
    let fake = Fake::new();
    let mut srq = fake.pd().create_srq_builder().setup_max_wr(2).build().unwrap();
    srq.set_limit(1).unwrap();
    srq.resize(6).unwrap();
    let expected = SharedReceiveQueueAttribute { max_wr: 6, max_sge: 1, srq_limit: 1 };
    assert_eq!(srq.query().unwrap(), expected);
    let mut guard = srq.start_post_recv();
    for wr_id in 0..6 {
        guard.construct_wr(wr_id);
    }
    guard.post().unwrap();
    assert_eq!(fake.world.received.load(Relaxed), 6);
    let error = srq.resize(u32::MAX).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
    let mut guard = srq.start_post_recv();
    for wr_id in 0..7 {
        guard.construct_wr(wr_id);
    }
    assert_eq!(guard.post().unwrap_err(), PostRecvError::TooManyWorkRequests { limit: 6 });
}

#[test]
fn a_shared_receive_queue_goes_after_its_pairs() {
    let fake = Fake::new();
    let (setup, srq) = sharing::<BasicQueuePair>(&fake);
    let FakeSetup { qp, cq, mr, pd, context, memory } = setup;
    drop((srq, cq, mr, pd, context));
    assert_eq!(*fake.world.destroyed.lock().unwrap(), ["mr"]);
    drop(qp);
    let destroyed = fake.world.destroyed.lock().unwrap().clone();
    let at = |what| destroyed.iter().position(|d| *d == what).unwrap();
    assert!(at("qp") < at("srq") && at("srq") < at("pd"), "{destroyed:?}");
    drop(memory);
    let first = fake.pd().create_srq_builder().build().unwrap().id();
    assert_ne!(first, fake.pd().create_srq_builder().build().unwrap().id());
}

#[test]
fn closing_a_shared_receive_queue_says_how_it_went() {
    let fake = Fake::new();
    let (setup, srq) = sharing::<BasicQueuePair>(&fake);
    let error = srq.close().unwrap_err();
    assert_eq!(error.error.errno(), Some(libc::EBUSY), "a pair uses it");
    assert!(fake.world.destroyed.lock().unwrap().is_empty(), "the library was not asked");
    drop(setup);
    error.object.close().unwrap();
    let closed = fake.world.destroyed.lock().unwrap().iter().filter(|what| **what == "srq").count();
    assert_eq!(closed, 1);
}

#[test]
fn a_shared_receive_queue_of_another_context_is_refused() {
    let fake = Fake::new();
    let (context, srq) = (fake.context(), fake.pd().create_srq_builder().build().unwrap());
    let cq = BasicCompletionQueue::make(&context.create_cq_builder()).unwrap();
    let pd = context.alloc_pd().unwrap();
    let mut builder = pd.create_qp_builder();
    let error = builder.setup_send_cq(&cq).setup_recv_cq(&cq).setup_srq(&srq).build_generic().unwrap_err();
    assert!(matches!(error, CreateQueuePairError::SharedReceiveQueueOfOtherContext), "{error}");
}

#[test]
fn the_attributes_of_a_shared_receive_queue_can_fail() {
    for errno in ERRNOS {
        let fake = Fake::lying(|l| l.modify_srq = errno);
        let mut srq = fake.pd().create_srq_builder().build().unwrap();
        assert_says(&srq.query().unwrap_err(), errno);
        for error in [srq.set_limit(3).unwrap_err(), srq.resize(3).unwrap_err()] {
            match error {
                error if error.unsupported().is_some() => {
                    assert!([libc::EOPNOTSUPP, libc::ENOSYS].contains(&errno));
                    assert_eq!(error.verb(), "ibv_modify_srq");
                }
                error => assert_says(&error, errno),
            }
        }
    }
    // If the device does not report the capability, the failure is not investigated further.
    let fake = Fake::lying(|l| (l.modify_srq, l.query_device) = (libc::EINVAL, libc::EIO));
    let mut srq = fake.pd().create_srq_builder().build().unwrap();
    assert!(matches!(srq.resize(3), Err(error) if error.unsupported().is_some()));
    assert_error(&srq.set_limit(3).unwrap_err(), ErrorKind::Os, &[("srq_limit", &3)]);
}
