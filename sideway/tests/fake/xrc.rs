//! XRC tests: errors, lifetimes at both ends, and the queues that requests name.

use std::any::Any;

use sideway::ibverbs::Unsupported;
use sideway::ibverbs::completion::{BasicCompletionQueue, GenericCompletionQueue};
use sideway::ibverbs::device_context::DeviceContext;
use sideway::ibverbs::protection_domain::ProtectionDomain;
use sideway::ibverbs::queue_pair::{
    CreateQueuePairError, ModifyQueuePairError, PostSendError, PostSendGuard, QueuePairAttribute,
    QueuePairState, QueuePairType, WorkRequestOperationType, XrcTarget,
};
use sideway::ibverbs::srq::{CreateSharedReceiveQueueError, SharedReceiveQueue};
use sideway::ibverbs::xrc::{XrcDomain, XrcDomainFlags};

use super::control::{ERRNOS, assert_fails, assert_says, is_unsupported, lying};
use super::support::fake::Fake;
use super::support::flavour::QpFlavour;
use super::support::permutations::permutations;
use super::{FakeSetup, SIGNALED};

type Pair<Q> = FakeSetup<Q, BasicCompletionQueue>;

fn domain(context: &DeviceContext) -> XrcDomain {
    context.open_xrcd(None, XrcDomainFlags::Create).unwrap()
}

/// The sending end of a connection.
fn initiator<Q: QpFlavour>(fake: &Fake) -> Pair<Q> {
    Pair::with(fake, |cq| cq, |qp| qp.setup_qp_type(QueuePairType::XrcSend))
}

/// The receiving end: a queue in a domain, its target, and a second handle of the target.
struct Receiver {
    context: DeviceContext,
    pd: ProtectionDomain,
    cq: GenericCompletionQueue,
    domain: XrcDomain,
    srq: SharedReceiveQueue,
    target: XrcTarget,
    opened: XrcTarget,
}

impl Receiver {
    fn new(fake: &Fake) -> Self {
        let context = fake.context();
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq_builder().build_generic().unwrap();
        let domain = domain(&context);
        let srq = pd.create_srq_builder().setup_xrc(&domain, &cq).build().unwrap();
        let target = domain.create_target().unwrap();
        let opened = domain.open_target(target.qp_number()).unwrap();
        Self { context, pd, cq, domain, srq, target, opened }
    }

    fn into_handles(self) -> [Option<Box<dyn Any>>; 7] {
        let Self { context, pd, cq, domain, srq, target, opened } = self;
        [
            Some(Box::new(context)),
            Some(Box::new(pd)),
            Some(Box::new(cq)),
            Some(Box::new(domain)),
            Some(Box::new(srq)),
            Some(Box::new(target)),
            Some(Box::new(opened)),
        ]
    }
}

#[test]
fn domains_targets_and_queues_can_fail() {
    for errno in ERRNOS {
        let (_fake, context) = lying(|l| l.xrc = errno);
        let error = context.open_xrcd(None, XrcDomainFlags::Create).unwrap_err();
        assert_fails!(errno, "ibv_open_xrcd", error);
        let (_fake, context) = lying(|l| l.create_qp_ex = errno);
        let error = domain(&context).create_target().unwrap_err();
        assert_fails!(errno, "ibv_create_qp_ex", error);
        let (_fake, context) = lying(|l| l.create_srq = errno);
        let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq_builder().build_generic().unwrap());
        let error = pd.create_srq_builder().setup_xrc(&domain(&context), &cq).build().unwrap_err();
        assert_fails!(errno, "ibv_create_srq_ex", error, CreateSharedReceiveQueueError::Unsupported);
        // The queue's number cannot be queried, so the queue is destroyed.
        let (fake, context) = lying(|l| l.srq_number = errno);
        let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq_builder().build_generic().unwrap());
        let error = pd.create_srq_builder().setup_xrc(&domain(&context), &cq).build().unwrap_err();
        assert!(matches!(error, CreateSharedReceiveQueueError::Number { .. }), "{error}");
        assert_says(&error, errno);
        assert_eq!(*fake.world.destroyed.lock().unwrap(), ["srq", "xrcd"]);
    }
}

#[test]
fn a_target_that_is_opened_can_fail() {
    let fake = Fake::new();
    let Receiver { domain, target, .. } = Receiver::new(&fake);
    let nobody = target.qp_number() ^ 0x8000;
    let error = domain.open_target(nobody).unwrap_err();
    assert_eq!(error.object(), Some(&*format!("queue pair {nobody:#x}")), "{error}");
    assert_says(&error, libc::ENOENT);
    // A target of another domain is not found.
    let elsewhere = self::domain(domain.context());
    assert_says(&elsewhere.open_target(target.qp_number()).unwrap_err(), libc::ENOENT);
}

#[test]
fn a_device_without_extended_verbs_has_none_of_it() {
    let (_fake, context) = lying(|l| l.no_extended_verbs = true);
    let error = context.open_xrcd(None, XrcDomainFlags::Create).unwrap_err();
    assert_eq!(error.to_string(), "device fake0 has no XRC domains (ibv_open_xrcd)");
}

#[test]
fn a_queue_that_cannot_be_posted_to_goes_again() {
    for lie in [(|l| l.missing = &["post_srq_recv"]) as fn(&mut super::support::fake::Faults), |l| {
        l.granted = Some(u32::MAX)
    }] {
        let (fake, context) = lying(lie);
        let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq_builder().build_generic().unwrap());
        let domain = domain(&context);
        let error = pd.create_srq_builder().setup_xrc(&domain, &cq).build().unwrap_err();
        use CreateSharedReceiveQueueError as E;
        assert!(matches!(error, E::Incomplete { .. } | E::TooLarge { .. }), "{error}");
        assert_eq!(*fake.world.destroyed.lock().unwrap(), ["srq"]);
    }
}

#[test]
fn the_handles_of_the_receiving_end_go_in_any_order() {
    for order in permutations(7, if cfg!(miri) { 631 } else { 1 }) {
        let fake = Fake::new();
        let mut handles = Receiver::new(&fake).into_handles();
        for index in order {
            handles[index] = None;
        }
        let destroyed = fake.world.destroyed.lock().unwrap().clone();
        let at = |what| destroyed.iter().rposition(|d| *d == what).unwrap();
        assert!(["xrcd", "pd", "cq"].iter().all(|used| at("srq") < at(used)), "{destroyed:?}");
        assert!(at("qp") < at("xrcd"), "{destroyed:?}");
        assert_eq!((destroyed.last(), destroyed.len()), (Some(&"context"), 7));
    }
}

#[test]
fn the_handles_of_the_sending_end_go_in_any_order() {
    fn check<Q: QpFlavour + 'static>() {
        for order in permutations(5, if cfg!(miri) { 17 } else { 1 }) {
            let fake = Fake::new();
            let Pair::<Q> { qp, cq, mr, pd, context, memory } = initiator(&fake);
            let mut handles: [Option<Box<dyn Any>>; 5] = [
                Some(Box::new(context)),
                Some(Box::new(pd)),
                Some(Box::new(cq)),
                Some(Box::new(mr)),
                Some(Box::new(qp)),
            ];
            for index in order {
                handles[index] = None;
            }
            let destroyed = fake.world.destroyed.lock().unwrap().clone();
            let at = |what| destroyed.iter().position(|d| *d == what).unwrap();
            assert!(at("qp") < at("cq") && at("qp") < at("pd"), "{destroyed:?}");
            assert_eq!((destroyed.last(), destroyed.len()), (Some(&"context"), 5));
            drop(memory);
        }
    }
    for_each_qp!(check());
}

/// A builder keeps the objects that it was given alive, as the queue does.
#[test]
fn a_builder_keeps_domain_and_completion_queue() {
    let fake = Fake::new();
    let builder = {
        let context = fake.context();
        let cq = context.create_cq_builder().build_generic().unwrap();
        let pd = context.alloc_pd().unwrap();
        let mut builder = pd.create_srq_builder();
        builder.setup_xrc(&domain(&context), &cq);
        builder
    };
    let (first, second) = (builder.build().unwrap(), builder.clone().build().unwrap());
    drop(builder);
    assert!(first.srqn().is_some() && first.srqn() != second.srqn());
    assert!(fake.world.destroyed.lock().unwrap().is_empty());
}

/// An object that cannot be destroyed keeps the objects that it depends on; their destruction is
/// not tried.
#[test]
#[cfg_attr(miri, ignore = "leaks what cannot be destroyed")]
fn failing_destroys_keep_what_is_depended_on() {
    for errno in [libc::EBUSY, libc::EIO, -1, i32::MIN] {
        let fake = Fake::lying(|l| l.destroy = errno);
        for handle in Receiver::new(&fake).into_handles() {
            drop(handle);
        }
        assert_eq!(*fake.world.destroyed.lock().unwrap(), ["srq", "qp", "qp"]);
        let fake = Fake::lying(|l| l.destroy = errno);
        drop(domain(&fake.context()));
        assert_eq!(*fake.world.destroyed.lock().unwrap(), ["xrcd"]);
    }
}

/// The same for a queue that is never returned, because its number cannot be queried.
#[test]
#[cfg_attr(miri, ignore = "leaks what cannot be destroyed")]
fn a_queue_without_number_that_does_not_go_keeps_what_it_depends_on() {
    let fake = Fake::lying(|l| (l.srq_number, l.destroy) = (libc::EIO, libc::EBUSY));
    let context = fake.context();
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq_builder().build_generic().unwrap());
    let domain = domain(&context);
    let error = pd.create_srq_builder().setup_xrc(&domain, &cq).build().unwrap_err();
    assert!(matches!(error, CreateSharedReceiveQueueError::Number { .. }), "{error}");
    drop((domain, cq, pd, context));
    assert_eq!(*fake.world.destroyed.lock().unwrap(), ["srq"]);
}

#[test]
fn a_request_is_for_the_queue_that_it_names() {
    fn check<Q: QpFlavour>() {
        let fake = Fake::new();
        let mut setup = initiator::<Q>(&fake);
        let mut guard = setup.qp.start_post_send();
        guard.construct_wr(0, SIGNALED).setup_xrc_srqn(7).setup_send();
        guard.construct_wr(1, SIGNALED).setup_xrc_srqn(8).setup_send_imm(9).setup_inline_data(&[1; 16]);
        // SAFETY: the fake device touches no memory.
        unsafe {
            let handle = guard.construct_wr(2, SIGNALED).setup_xrc_srqn(9).setup_write(1, 2);
            handle.setup_sge(setup.mr.lkey(), setup.mr.get_ptr() as u64, 8);
        }
        guard.post().unwrap();
        assert_eq!(*fake.world.xrc.asked_for.lock().unwrap(), [7, 8, 9]);
        assert_eq!(setup.poll(), [0, 1, 2], "{}", Q::NAME);
        // A list that is dropped or leaked sends no request.
        setup.qp.start_post_send().construct_wr(3, SIGNALED).setup_xrc_srqn(1).setup_send();
        let mut guard = setup.qp.start_post_send();
        guard.construct_wr(4, SIGNALED).setup_xrc_srqn(2).setup_send();
        std::mem::forget(guard);
        setup.qp.start_post_send().post().unwrap();
        assert_eq!(*fake.world.xrc.asked_for.lock().unwrap(), [7, 8, 9]);
    }
    for_each_qp!(check());
}

#[test]
fn a_request_without_a_queue_is_refused() {
    fn check<Q: QpFlavour>() {
        let fake = Fake::new();
        let mut setup = initiator::<Q>(&fake);
        for inline in [false, true] {
            let mut guard = setup.qp.start_post_send();
            guard.construct_wr(0, SIGNALED).setup_xrc_srqn(7).setup_send();
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
        assert!(fake.world.xrc.asked_for.lock().unwrap().is_empty(), "a list goes whole or not at all");
        let mut connected = Pair::<Q>::new(&fake);
        let mut guard = connected.qp.start_post_send();
        guard.construct_wr(0, SIGNALED).setup_xrc_srqn(7).setup_send();
        let operation = WorkRequestOperationType::Send;
        assert_eq!(guard.post(), Err(PostSendError::UnexpectedDestination { index: 0, operation }));
    }
    for_each_qp!(check());
}

#[test]
fn the_sending_end_receives_nothing() {
    fn check<Q: QpFlavour>() {
        let fake = Fake::new();
        let mut setup = initiator::<Q>(&fake);
        let mut guard = setup.qp.start_post_recv();
        guard.construct_wr(0);
        assert!(guard.post().is_err(), "{}", Q::NAME);
        assert_eq!(fake.world.received.load(std::sync::atomic::Ordering::Relaxed), 0);
    }
    for_each_qp!(check());
}

#[test]
fn a_pair_that_cannot_name_a_queue_is_not_made() {
    let fake = Fake::lying(|l| l.missing = &["wr_set_xrc_srqn"]);
    let context = fake.context();
    let cq = context.create_cq_builder().build_generic().unwrap();
    let pd = context.alloc_pd().unwrap();
    let mut builder = pd.create_qp_builder();
    builder.setup_send_cq(&cq).setup_recv_cq(&cq).setup_qp_type(QueuePairType::XrcSend);
    let error = builder.build_ex().unwrap_err();
    assert!(matches!(error, CreateQueuePairError::Incomplete { operation: "wr_set_xrc_srqn" }), "{error}");
    assert!(!builder.build_generic().unwrap().is_extended());
    builder.setup_qp_type(QueuePairType::ReliableConnection).build_ex().unwrap();
}

/// A library would not notice objects of another context.
#[test]
fn objects_of_different_contexts_are_refused() {
    let fake = Fake::new();
    let (here, there) = (Receiver::new(&fake), Receiver::new(&fake));
    for (pd, domain, cq) in [
        (&here.pd, &here.domain, &there.cq),
        (&here.pd, &there.domain, &here.cq),
        (&there.pd, &here.domain, &here.cq),
    ] {
        let error = pd.create_srq_builder().setup_xrc(domain, cq).build().unwrap_err();
        assert!(matches!(error, CreateSharedReceiveQueueError::OtherContext), "{error}");
    }
    let basic = here.pd.create_srq_builder().build().unwrap();
    assert_eq!(basic.srqn(), None);
    let mut builder = here.pd.create_qp_builder();
    builder.setup_send_cq(&here.cq).setup_recv_cq(&here.cq);
    let error = builder.clone().setup_srq(&here.srq).build_generic().unwrap_err();
    assert!(matches!(error, CreateQueuePairError::SharedReceiveQueueOfOtherType { .. }), "{error}");
    builder.setup_qp_type(QueuePairType::XrcSend);
    let error = builder.clone().setup_srq(&basic).build_generic().unwrap_err();
    assert!(matches!(error, CreateQueuePairError::SharedReceiveQueueOfOtherType { .. }), "{error}");
    let error = builder.setup_qp_type(QueuePairType::XrcReceive).build_generic().unwrap_err();
    assert!(matches!(error, CreateQueuePairError::TargetWithoutDomain), "{error}");
}

#[test]
fn a_target_has_a_number_and_a_state() {
    let fake = Fake::new();
    let mut receiver = Receiver::new(&fake);
    assert_eq!(receiver.opened.qp_number(), receiver.target.qp_number());
    assert_eq!(receiver.target.xrcd().as_raw(), receiver.domain.as_raw());
    let mut attr = QueuePairAttribute::new();
    attr.setup_state(QueuePairState::Init);
    receiver.target.modify(&attr).unwrap();
    assert_eq!(receiver.target.state().unwrap(), QueuePairState::Init);
    // The target is dropped on another thread.
    let Receiver { target, .. } = receiver;
    std::thread::spawn(move || drop(target)).join().unwrap();
}

#[test]
fn the_attributes_of_a_target_can_fail() {
    for errno in ERRNOS {
        let (_fake, context) = lying(|l| (l.modify_qp, l.query_qp) = (errno, errno));
        let mut target = domain(&context).create_target().unwrap();
        let error = target.state().unwrap_err();
        assert_eq!(error.object(), Some(&*format!("queue pair {:#x}", target.qp_number())));
        assert_says(&error, errno);
        let mut attr = QueuePairAttribute::new();
        attr.setup_state(QueuePairState::Init);
        match target.modify(&attr).unwrap_err() {
            ModifyQueuePairError::Unsupported(Unsupported { .. }) => assert!(is_unsupported(errno)),
            error => assert_says(&error, errno),
        }
    }
    let (_fake, context) = lying(|l| l.queried_state = Some(4711));
    let state = domain(&context).create_target().unwrap().state().unwrap();
    assert_eq!(format!("{state:?}"), "Unknown(4711)");
}
