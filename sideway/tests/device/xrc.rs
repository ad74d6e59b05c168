//! XRC tests: domains, shared receive queues, initiators and targets.

use std::fs::File;
use std::os::fd::AsFd;

use sideway::ErrorKind;
use sideway::ibverbs::AccessFlags;
use sideway::ibverbs::completion::{GenericCompletionQueue, WorkCompletionStatus};
use sideway::ibverbs::connect::{ConnectOptions, Endpoint, LocalPath, connect, connect_xrc_target};
use sideway::ibverbs::device_context::DeviceContext;
use sideway::ibverbs::memory_region::MemoryRegion;
use sideway::ibverbs::queue_pair::{
    CreateQueuePairError, GenericQueuePair, ModifyQueuePairError, PostSendError, PostSendGuard, QueuePair,
    QueuePairAttribute, QueuePairAttributeMask, QueuePairState, QueuePairType, WorkRequestFlags,
    WorkRequestOperationType, XrcTarget,
};
use sideway::ibverbs::srq::{CreateSharedReceiveQueueError, SharedReceiveQueue};
use sideway::ibverbs::xrc::{XrcDomain, XrcDomainFlags};

use crate::harness::{Outcome, Skip, Suite, TestDevice};
use crate::node::{AnyPair, Memory, SIGNALED, next, pattern};
use crate::support::errors::assert_error;
use crate::support::flavour::QpFlavour;

pub(crate) fn cases(suite: &mut Suite) {
    each_qp!(suite:
        a_message_goes_to_the_queue_of_its_number,
        everything_goes_by_the_number_of_a_queue,
        a_request_without_a_number_is_refused,
        a_wrong_number_ends_the_connection,
    );
    cases!(suite:
        a_file_has_one_domain,
        a_domain_that_is_not_there_is_named,
        pairs_of_other_types_take_no_xrc_number,
        a_queue_of_a_domain_is_no_pairs,
        ends_are_of_one_context,
        an_opened_target_outlives_the_first_handle,
        a_wrong_change_of_a_target_says_what_it_needs,
        dependents_keep_the_domain_open,
    );
}

/// A private domain, if the device supports XRC.
fn domain(context: &DeviceContext) -> Result<XrcDomain, Skip> {
    match context.open_xrcd(None, XrcDomainFlags::Create) {
        Ok(domain) => Ok(domain),
        Err(error) if error.unsupported().is_some() => skip!("{error}"),
        Err(error) => panic!("{error}"),
    }
}

/// A shared receive queue with its domain, memory and completion queue.
struct Receiver {
    srq: SharedReceiveQueue,
    cq: GenericCompletionQueue,
    mr: MemoryRegion,
    memory: Memory,
}

impl Receiver {
    fn new(domain: &XrcDomain) -> Self {
        let context = domain.context();
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq_builder().setup_cqe(64).build_generic().unwrap();
        let srq = pd.create_srq_builder().setup_max_wr(32).setup_xrc(domain, &cq).build().unwrap();
        let (memory, access) = (Memory::new(1 << 16), ConnectOptions::default().access_flags);
        // SAFETY: the memory lives as long as the region, and no reference to it is made.
        let mr = unsafe { pd.reg_mr(memory.start(), 1 << 16, access | AccessFlags::RemoteAtomic).unwrap() };
        Self { srq, cq, mr, memory }
    }

    fn number(&self) -> u32 {
        self.srq.srqn().unwrap()
    }

    fn receive(&mut self, wr_id: u64, offset: u64, length: u32) {
        let mut guard = self.srq.start_post_recv();
        let addr = self.mr.get_ptr() as u64 + offset;
        // SAFETY: the memory outlives the queue, and no reference to it is made.
        unsafe { guard.construct_wr(wr_id).setup_sge(self.mr.lkey(), addr, length) };
        guard.post().unwrap();
    }
}

/// Both ends of a connection, with the initiator's queue and memory.
struct Ends<Q> {
    initiator: Q,
    target: XrcTarget,
    cq: GenericCompletionQueue,
    mr: MemoryRegion,
    memory: Memory,
}

impl<Q: QpFlavour> Ends<Q> {
    fn new(test_device: &TestDevice, domain: &XrcDomain) -> Self {
        let context = test_device.open();
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq_builder().setup_cqe(64).build_generic().unwrap();
        let mut builder = pd.create_qp_builder();
        builder.setup_qp_type(QueuePairType::XrcSend).setup_send_cq(&cq).setup_max_inline_data(16);
        let mut initiator = Q::make(&builder).unwrap();
        let mut target = domain.create_target().unwrap();
        let memory = Memory::new(1 << 16);
        let options = ConnectOptions {
            access_flags: ConnectOptions::default().access_flags | AccessFlags::RemoteAtomic,
            ..ConnectOptions::default()
        };
        // SAFETY: the memory lives as long as the region, and no reference to it is made.
        let mr = unsafe { pd.reg_mr(memory.start(), 1 << 16, options.access_flags).unwrap() };
        let path = LocalPath::choose(&context, test_device.port, None).unwrap();
        let here = Endpoint::new(&initiator, &path, 0x123);
        let there = Endpoint::of_xrc_target(&target, &path, 0xabc);
        connect_xrc_target(&mut target, &path, &there, &here, &options).unwrap();
        connect(&mut initiator, &path, &here, &there, &options).unwrap();
        Self { initiator, target, cq, mr, memory }
    }

    /// Sends the first `length` bytes of the memory. Returns the status of the completion.
    fn send(&mut self, number: u32, imm: u32, length: u32) -> WorkCompletionStatus {
        let mut guard = self.initiator.start_post_send();
        let send = guard.construct_wr(7, SIGNALED).setup_xrc_srqn(number).setup_send_imm(imm);
        // SAFETY: the memory outlives the pair, and no reference to it is made.
        unsafe { send.setup_sge(self.mr.lkey(), self.mr.get_ptr() as u64, length) };
        guard.post().unwrap();
        let done = next(&mut self.cq);
        assert_eq!((done.wr_id, done.qp_num), (7, Some(self.initiator.qp_number())));
        done.status
    }
}

fn a_message_goes_to_the_queue_of_its_number<Q: QpFlavour>(test_device: &TestDevice) -> Outcome {
    let domain = domain(&test_device.open())?;
    let mut receivers = [(); 2].map(|()| Receiver::new(&domain));
    let mut connections = [(); 2].map(|()| Ends::<Q>::new(test_device, &domain));
    for round in 0..8_u32 {
        let (n, connection) = (round as usize / 2 % 2, &mut connections[round as usize % 2]);
        connection.memory.set(0, &pattern(round as u8, 3000));
        receivers[n].receive(round.into(), 0, 4096);
        assert_eq!(connection.send(receivers[n].number(), round, 3000), WorkCompletionStatus::Success);
        let got = next(&mut receivers[n].cq);
        assert_eq!((got.wr_id, got.imm_data, got.byte_len), (round.into(), Some(round), Some(3000)));
        assert_eq!(got.qp_num, Some(connection.target.qp_number()), "the target that it came by");
        assert_eq!(receivers[n].memory.get(0, 3000), pattern(round as u8, 3000));
    }
    Ok(())
}

fn everything_goes_by_the_number_of_a_queue<Q: QpFlavour>(test_device: &TestDevice) -> Outcome {
    let domain = domain(&test_device.open())?;
    let mut receiver = Receiver::new(&domain);
    let mut ends = Ends::<Q>::new(test_device, &domain);
    let (number, rkey, there) = (receiver.number(), receiver.mr.rkey(), receiver.mr.get_ptr() as u64);
    let (lkey, here) = (ends.mr.lkey(), ends.mr.get_ptr() as u64);
    ends.memory.set(0, &pattern(1, 64));
    receiver.receive(1, 8192, 64);
    receiver.receive(2, 8192, 64);
    let mut guard = ends.initiator.start_post_send();
    // SAFETY: the memory outlives the pair, and no reference to it is made.
    unsafe {
        macro_rules! request {
            ($wr_id:literal) => {
                guard.construct_wr($wr_id, WorkRequestFlags::empty()).setup_xrc_srqn(number)
            };
        }
        request!(1).setup_write(rkey, there).setup_sge(lkey, here, 64);
        request!(2).setup_write_imm(rkey, there + 64, 5).setup_sge(lkey, here, 64);
        request!(3).setup_send().setup_sge(lkey, here, 16);
        request!(4).setup_read(rkey, there + 64).setup_sge(lkey, here + 1024, 64);
        request!(5).setup_atomic_fetch_add(rkey, there + 128, 7).setup_sge(lkey, here + 2048, 8);
        let last = guard.construct_wr(6, SIGNALED).setup_xrc_srqn(number);
        last.setup_atomic_compare_swap(rkey, there + 128, 7, 9).setup_sge(lkey, here + 2056, 8);
    }
    guard.post().unwrap();
    let done = next(&mut ends.cq);
    assert_eq!((done.wr_id, done.status), (6, WorkCompletionStatus::Success));
    assert_eq!(receiver.memory.get(0, 64), pattern(1, 64));
    assert_eq!(ends.memory.get(1024, 64), pattern(1, 64));
    assert_eq!((ends.memory.get_u64(2048), ends.memory.get_u64(2056)), (0, 7));
    assert_eq!(receiver.memory.get_u64(128), 9);
    let (first, second) = (next(&mut receiver.cq), next(&mut receiver.cq));
    assert_eq!((first.wr_id, first.imm_data, second.wr_id, second.byte_len), (1, Some(5), 2, Some(16)));
    Ok(())
}

fn a_request_without_a_number_is_refused<Q: QpFlavour>(test_device: &TestDevice) -> Outcome {
    let domain = domain(&test_device.open())?;
    let receiver = Receiver::new(&domain);
    let mut ends = Ends::<Q>::new(test_device, &domain);
    let mut guard = ends.initiator.start_post_send();
    guard.construct_wr(1, SIGNALED).setup_xrc_srqn(receiver.number()).setup_send();
    guard.construct_wr(2, SIGNALED).setup_write(1, 2);
    let error = guard.post().unwrap_err();
    let operation = WorkRequestOperationType::Write;
    assert_eq!(error, PostSendError::MissingDestination { index: 1, operation });
    assert!(error.to_string().contains("setup_xrc_srqn"), "{error}");
    // No request of the list was posted.
    assert_eq!(ends.cq.start_poll().unwrap().next().map(|wc| wc.wr_id()), None);
    Ok(())
}

fn a_wrong_number_ends_the_connection<Q: QpFlavour>(test_device: &TestDevice) -> Outcome {
    let domain = domain(&test_device.open())?;
    let mut receiver = Receiver::new(&domain);
    let mut ends = Ends::<Q>::new(test_device, &domain);
    receiver.receive(1, 0, 64);
    let nobody = receiver.number() ^ 0x1000;
    assert_eq!(ends.send(nobody, 0, 8), WorkCompletionStatus::RemoteAccessError);
    assert_eq!(ends.initiator.state().unwrap(), QueuePairState::Error);
    Ok(())
}

fn a_file_has_one_domain(test_device: &TestDevice) -> Outcome {
    let context = test_device.open();
    domain(&context)?;
    let file = tempfile();
    let exclusive = XrcDomainFlags::Create | XrcDomainFlags::Exclusive;
    let made = context.open_xrcd(Some(file.as_fd()), exclusive).unwrap();
    let error = context.open_xrcd(Some(file.as_fd()), exclusive).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Os, "{error}");
    let other = test_device.open();
    let opened = other.open_xrcd(Some(file.as_fd()), XrcDomainFlags::empty()).unwrap();
    // One handle has the target, the other has the queue.
    let mut receiver = Receiver::new(&opened);
    let mut ends = Ends::<GenericQueuePair>::new(test_device, &made);
    receiver.receive(1, 0, 64);
    assert_eq!(ends.send(receiver.number(), 3, 8), WorkCompletionStatus::Success);
    assert_eq!(next(&mut receiver.cq).imm_data, Some(3));
    drop((ends, receiver, opened, made));
    context.open_xrcd(Some(file.as_fd()), exclusive).unwrap();
    Ok(())
}

fn tempfile() -> File {
    let buffer = rustix::fs::memfd_create("sideway-xrc", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    File::from(buffer)
}

fn a_domain_that_is_not_there_is_named(test_device: &TestDevice) -> Outcome {
    let context = test_device.open();
    domain(&context)?;
    let file = tempfile();
    let error = context.open_xrcd(Some(file.as_fd()), XrcDomainFlags::empty()).unwrap_err();
    assert_error(&error, ErrorKind::Os, &[("flags", &format!("{:?}", XrcDomainFlags::empty()))]);
    assert!(error.to_string().contains("`Create`"), "{error}");
    Ok(())
}

fn pairs_of_other_types_take_no_xrc_number(test_device: &TestDevice) -> Outcome {
    let mut pair = AnyPair::new(test_device);
    let mut guard = pair.a.qp.start_post_send();
    guard.construct_wr(1, SIGNALED).setup_xrc_srqn(5).setup_send();
    let operation = WorkRequestOperationType::Send;
    assert_eq!(guard.post(), Err(PostSendError::UnexpectedDestination { index: 0, operation }));
    Ok(())
}

fn a_queue_of_a_domain_is_no_pairs(test_device: &TestDevice) -> Outcome {
    let context = test_device.open();
    let receiver = Receiver::new(&domain(&context)?);
    let pd = context.alloc_pd().unwrap();
    let basic = pd.create_srq_builder().build().unwrap();
    assert_eq!(basic.srqn(), None);
    let mut builder = pd.create_qp_builder();
    builder.setup_send_cq(&receiver.cq).setup_recv_cq(&receiver.cq);
    let refused = |result: Result<GenericQueuePair, CreateQueuePairError>| result.unwrap_err();
    let error = refused(builder.clone().setup_srq(&receiver.srq).build_generic());
    assert!(matches!(error, CreateQueuePairError::SharedReceiveQueueOfOtherType { .. }), "{error}");
    builder.setup_qp_type(QueuePairType::XrcSend);
    let error = refused(builder.clone().setup_srq(&basic).build_generic());
    assert!(matches!(error, CreateQueuePairError::SharedReceiveQueueOfOtherType { .. }), "{error}");
    let error = refused(builder.setup_qp_type(QueuePairType::XrcReceive).build_generic());
    assert!(matches!(error, CreateQueuePairError::TargetWithoutDomain), "{error}");
    Ok(())
}

fn ends_are_of_one_context(test_device: &TestDevice) -> Outcome {
    let (context, other) = (test_device.open(), test_device.open());
    let domain = domain(&context)?;
    let (pd, foreign_pd) = (context.alloc_pd().unwrap(), other.alloc_pd().unwrap());
    let cq = context.create_cq_builder().setup_cqe(4).build_generic().unwrap();
    let foreign_cq = other.create_cq_builder().setup_cqe(4).build_generic().unwrap();
    for error in [
        pd.create_srq_builder().setup_xrc(&domain, &foreign_cq).build().unwrap_err(),
        foreign_pd.create_srq_builder().setup_xrc(&domain, &foreign_cq).build().unwrap_err(),
        foreign_pd.create_srq_builder().setup_xrc(&domain, &cq).build().unwrap_err(),
    ] {
        assert!(matches!(error, CreateSharedReceiveQueueError::OtherContext), "{error}");
    }
    Ok(())
}

fn an_opened_target_outlives_the_first_handle(test_device: &TestDevice) -> Outcome {
    let domain = domain(&test_device.open())?;
    let mut receiver = Receiver::new(&domain);
    let mut ends = Ends::<GenericQueuePair>::new(test_device, &domain);
    let opened = domain.open_target(ends.target.qp_number()).unwrap();
    ends.target = domain.create_target().unwrap();
    assert_eq!(opened.state().unwrap(), QueuePairState::ReadyToSend);
    receiver.receive(1, 0, 64);
    assert_eq!(ends.send(receiver.number(), 1, 8), WorkCompletionStatus::Success);
    assert_eq!(next(&mut receiver.cq).qp_num, Some(opened.qp_number()));
    let number = ends.initiator.qp_number();
    let error = domain.open_target(number).unwrap_err();
    assert_eq!((error.kind(), error.object()), (ErrorKind::Os, Some(&*format!("queue pair {number:#x}"))));
    Ok(())
}

fn a_wrong_change_of_a_target_says_what_it_needs(test_device: &TestDevice) -> Outcome {
    let domain = domain(&test_device.open())?;
    let mut target = domain.create_target().unwrap();
    let mut attr = QueuePairAttribute::new();
    attr.setup_state(QueuePairState::Init).setup_port(test_device.port).setup_pkey_index(0);
    let error = target.modify(&attr).unwrap_err();
    let ModifyQueuePairError::InvalidAttributeMask { needed, invalid, .. } = &error else {
        panic!("{error}")
    };
    assert_eq!((*needed, *invalid), (QueuePairAttributeMask::AccessFlags, QueuePairAttributeMask::empty()));
    assert_eq!(target.state().unwrap(), QueuePairState::Reset);
    Ok(())
}

fn dependents_keep_the_domain_open(test_device: &TestDevice) -> Outcome {
    let context = test_device.open();
    let domain = domain(&context)?;
    let mut receiver = Receiver::new(&domain);
    let mut ends = Ends::<GenericQueuePair>::new(test_device, &domain);
    drop((domain, context));
    receiver.receive(1, 0, 64);
    assert_eq!(ends.send(receiver.number(), 1, 8), WorkCompletionStatus::Success);
    let got = next(&mut receiver.cq);
    assert_eq!((got.wr_id, got.qp_num), (1, Some(ends.target.qp_number())));
    // The objects may be dropped in any order.
    let Ends { initiator, target, .. } = ends;
    drop((target, receiver, initiator));
    Ok(())
}
