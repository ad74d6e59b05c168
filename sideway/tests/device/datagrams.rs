//! Tests of address handles, datagrams and messages of unreliable connections.

use std::time::Instant;

use sideway::ErrorKind;
use sideway::ibverbs::address::AddressHandleAttribute;
use sideway::ibverbs::address_handle::{AddressHandle, DatagramOrigin, GlobalRoutingHeader};
use sideway::ibverbs::completion::{
    BasicCompletionQueue, CompletionQueueBuilder, ExtendedCompletionQueue, GenericCompletionQueue,
    WorkCompletionFields, WorkCompletionFlags, WorkCompletionOperationType, WorkCompletionStatus,
};
use sideway::ibverbs::connect::{ConnectError, ConnectOptions, activate_ud, connect};
use sideway::ibverbs::queue_pair::{
    GenericQueuePair, PostSendError, PostSendGuard, QueuePair, QueuePairAttribute, QueuePairAttributeMask,
    QueuePairBuilder, QueuePairState, QueuePairType,
};

use crate::harness::{Outcome, Suite, TestDevice};
use crate::node::{Data, Node, NodeOptions, Op, PATIENCE, Pair, SIGNALED, next, pattern};
use crate::support::errors::assert_error;
use crate::support::flavour::QpFlavour;

const QKEY: u32 = 0x1234_5678;
const GRH: usize = GlobalRoutingHeader::LEN;

type Udp<Q> = Node<Q, GenericCompletionQueue>;

pub(crate) fn cases(suite: &mut Suite) {
    each_qp!(suite:
        a_datagram_arrives_behind_its_header,
        inline_datagrams_go_to_many,
        a_datagram_needs_an_address,
        a_connected_pair_takes_no_address,
        an_answer_goes_by_the_completion,
        messages_of_an_unreliable_connection_arrive,
    );
    cases!(suite:
        any_kind_of_completion_leads_back,
        another_key_gets_nothing,
        a_datagram_pair_climbs_the_ladder_of_states,
        an_address_handle_outlives_its_domain_s_handle,
        a_bad_address_is_refused,
        an_address_without_header_is_none,
        a_header_to_somebody_else_leads_nowhere,
    );
}

fn node<Q: QpFlavour>(test_device: &TestDevice) -> Udp<Q> {
    let options = NodeOptions::with(|options| {
        options.qp_type = QueuePairType::UnreliableDatagram;
        // Some devices' extended pairs do not support more.
        options.send_sge = 1;
        options.inline = if Q::IS_CLASSIC { 64 } else { 0 };
    });
    let mut node = Udp::new(&test_device.open(), test_device.port, &options);
    activate_ud(&mut node.qp, &node.path, QKEY, 7, &ConnectOptions::default()).unwrap();
    node
}

/// Two nodes of one context.
fn nodes<Q: QpFlavour>(test_device: &TestDevice) -> (Udp<Q>, Udp<Q>) {
    (node(test_device), node(test_device))
}

impl<Q: QpFlavour> Udp<Q> {
    /// An address handle for another node.
    fn handle(&self, to: &Self) -> AddressHandle {
        let attr = self.path.address_to(&to.endpoint(0), &ConnectOptions::default()).unwrap();
        self.pd.create_ah(&attr).unwrap()
    }

    /// Sends the first `len` bytes of the memory, and waits for the completion.
    fn send_to(&mut self, ah: &AddressHandle, number: u32, qkey: u32, len: usize) {
        let mut guard = self.qp.start_post_send();
        let send = guard.construct_wr(5, SIGNALED).setup_ud_address(ah, number, qkey).setup_send_imm(77);
        // SAFETY: the node's memory outlives its pair, and no reference to it is made.
        unsafe { send.setup_sge(self.mr.lkey(), self.mr.get_ptr() as u64, len as u32) };
        guard.post().unwrap();
        let done = self.sent(1)[0];
        assert_eq!((done.wr_id, done.status), (5, WorkCompletionStatus::Success));
    }

    fn header(&self, at: usize) -> GlobalRoutingHeader {
        GlobalRoutingHeader::from_bytes(self.memory.get(at, GRH).try_into().unwrap())
    }
}

fn a_datagram_arrives_behind_its_header<Q: QpFlavour>(test_device: &TestDevice) -> Outcome {
    let (mut a, mut b) = nodes::<Q>(test_device);
    let sent = pattern(3, 500);
    a.memory.set(0, &sent);
    b.receive(&[(9, &[(0, 1000)])]).unwrap();
    let ah = a.handle(&b);
    a.send_to(&ah, b.qp.qp_number(), QKEY, 500);
    let got = b.received(1)[0];
    assert_eq!((got.wr_id, got.byte_len, got.imm_data), (9, Some(540), Some(77)));
    assert_eq!(got.opcode, WorkCompletionOperationType::Receive);
    assert_eq!(b.memory.get(GRH, 500), sent);
    if let (Some(from), Some(to)) = (a.path.gid(), b.path.gid()) {
        let grh = b.header(0);
        assert_eq!((grh.sgid(), grh.dgid()), (from, to), "{grh:?}");
    }
    ah.close().unwrap();
    Ok(())
}

fn inline_datagrams_go_to_many<Q: QpFlavour>(test_device: &TestDevice) -> Outcome {
    let (mut a, mut b) = nodes::<Q>(test_device);
    let mut c = node::<Q>(test_device);
    let handles = [a.handle(&b), a.handle(&c)];
    let numbers = [b.qp.qp_number(), c.qp.qp_number()];
    for node in [&mut b, &mut c] {
        node.receive(&[(1, &[(0, 100)]), (2, &[(100, 100)])]).unwrap();
    }
    a.memory.set(0, &[42; 8]);
    let mut guard = a.qp.start_post_send();
    for round in 0..2 {
        for (ah, number) in handles.iter().zip(numbers) {
            let send = guard.construct_wr(round, SIGNALED).setup_ud_address(ah, number, QKEY).setup_send();
            if Q::IS_CLASSIC {
                send.setup_inline_data(&[42; 8]);
            } else {
                // SAFETY: the node's memory outlives its pair, and no reference to it is made.
                unsafe { send.setup_sge(a.mr.lkey(), a.mr.get_ptr() as u64, 8) };
            }
        }
    }
    guard.post().unwrap();
    let done: Vec<_> = a.sent(4).iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(done, [0, 0, 1, 1].map(|wr_id| (wr_id, WorkCompletionStatus::Success)));
    for node in [&mut b, &mut c] {
        let got: Vec<_> = node.received(2).iter().map(|wc| (wc.wr_id, wc.byte_len)).collect();
        assert_eq!(got, [(1, Some(48)), (2, Some(48))]);
        assert_eq!(node.memory.get(100 + GRH, 8), [42; 8]);
    }
    Ok(())
}

fn a_datagram_needs_an_address<Q: QpFlavour>(test_device: &TestDevice) -> Outcome {
    let mut a = node::<Q>(test_device);
    let error = a.post(&[(1, SIGNALED, Op::Send, Data::At(0, 8))]).unwrap_err();
    assert!(matches!(error, PostSendError::MissingDestination { index: 0, .. }), "{error}");
    let target = a.remote(0);
    let error = a.post(&[(1, SIGNALED, Op::Write(target), Data::At(0, 8))]).unwrap_err();
    assert!(matches!(error, PostSendError::UnsupportedOperation { index: 0, .. }), "{error}");
    assert!(a.sent(0).is_empty());
    Ok(())
}

fn a_connected_pair_takes_no_address<Q: QpFlavour>(test_device: &TestDevice) -> Outcome {
    let mut pair = Pair::<Q, GenericCompletionQueue>::new(test_device);
    let ah = pair.a.handle(&pair.b);
    let mut guard = pair.a.qp.start_post_send();
    guard.construct_wr(1, SIGNALED).setup_ud_address(&ah, 1, 2).setup_send();
    let error = guard.post().unwrap_err();
    assert!(matches!(error, PostSendError::UnexpectedDestination { index: 0, .. }), "{error}");
    pair.b.receive(&[(1, &[(0, 8)])]).unwrap();
    pair.a.run(Op::Send, Data::At(0, 8));
    Ok(())
}

fn an_answer_goes_by_the_completion<Q: QpFlavour>(test_device: &TestDevice) -> Outcome {
    let (mut a, mut b) = nodes::<Q>(test_device);
    for node in [&mut a, &mut b] {
        node.receive(&[(1, &[(1000, 100)])]).unwrap();
    }
    let ah = a.handle(&b);
    a.send_to(&ah, b.qp.qp_number(), QKEY, 8);
    let deadline = Instant::now() + PATIENCE;
    let (answer, number) = loop {
        let mut poller = b.recv_cq.start_poll().unwrap();
        if let Some(wc) = poller.next() {
            assert_eq!(wc.status(), WorkCompletionStatus::Success);
            let bytes = b.memory.get(1000, GRH).try_into().unwrap();
            let grh = GlobalRoutingHeader::from_bytes(bytes);
            break (b.pd.create_ah_from_wc(&wc, Some(&grh), test_device.port).unwrap(), wc.src_qp().unwrap());
        }
        assert!(Instant::now() < deadline, "the datagram does not come");
    };
    assert_eq!(number, a.qp.qp_number());
    b.memory.set(0, &[9; 8]);
    b.send_to(&answer, number, QKEY, 8);
    next(&mut a.recv_cq);
    assert_eq!(a.memory.get(1000 + GRH, 8), [9; 8]);
    Ok(())
}

/// Runs for each kind of completion queue.
fn any_kind_of_completion_leads_back(test_device: &TestDevice) -> Outcome {
    fn origin(test_device: &TestDevice, visit: impl Fn(&CompletionQueueBuilder) -> Box<dyn ReceivedFrom>) {
        let mut a = node::<GenericQueuePair>(test_device);
        let context = a.context.clone();
        let mut builder = context.create_cq_builder();
        let mut cq = visit(builder.setup_wc_flags(WorkCompletionFields::STANDARD));
        let mut qp = cq.pair(a.pd.create_qp_builder().setup_send_cq(&a.send_cq));
        activate_ud(&mut qp, &a.path, QKEY, 7, &ConnectOptions::default()).unwrap();
        let mut guard = qp.start_post_recv();
        // SAFETY: the node's memory outlives its pair, and no reference to it is made.
        unsafe {
            guard.construct_wr(1).setup_sge(a.mr.lkey(), a.mr.get_ptr() as u64 + 2000, 100);
        }
        guard.post().unwrap();
        let attr = a.path.address_to(&a.endpoint(0), &ConnectOptions::default()).unwrap();
        let ah = a.pd.create_ah(&attr).unwrap();
        a.send_to(&ah, qp.qp_number(), QKEY, 8);
        let (origin, number) = cq.wait();
        assert_eq!(number, Some(a.qp.qp_number()));
        let back = context.init_ah_from_wc(origin, Some(&a.header(2000)), test_device.port).unwrap();
        assert_eq!((back.port(), back.grh_dest_gid()), (test_device.port, a.path.gid()));
        assert_eq!(back.grh_src_gid_index(), a.path.gid_index());
    }
    origin(test_device, |builder| Box::new(builder.build().unwrap()));
    origin(test_device, |builder| Box::new(builder.build_ex().unwrap()));
    origin(test_device, |builder| Box::new(builder.build_generic().unwrap()));
    Ok(())
}

/// A completion queue of any kind, with the operations that these tests need.
trait ReceivedFrom {
    fn pair(&self, builder: &mut QueuePairBuilder) -> GenericQueuePair;
    /// Waits for the next completion. Returns its origin and the sender's number.
    fn wait(&mut self) -> (DatagramOrigin, Option<u32>);
}

macro_rules! impl_origin {
    ($($Cq:ty),*) => {$(
        impl ReceivedFrom for $Cq {
            fn pair(&self, builder: &mut QueuePairBuilder) -> GenericQueuePair {
                let builder = builder.setup_qp_type(QueuePairType::UnreliableDatagram);
                builder.setup_recv_cq(self).build_generic().unwrap()
            }

            fn wait(&mut self) -> (DatagramOrigin, Option<u32>) {
                let deadline = Instant::now() + PATIENCE;
                loop {
                    let mut poller = self.start_poll().unwrap();
                    if let Some(wc) = poller.next() {
                        let origin = DatagramOrigin::from(&wc);
                        assert_eq!(origin.has_grh(), wc.wc_flags().contains(WorkCompletionFlags::Grh));
                        assert_eq!(origin.src_qp(), wc.src_qp());
                        return (origin, wc.src_qp());
                    }
                    assert!(Instant::now() < deadline, "the datagram does not come");
                }
            }
        }
    )*};
}

impl_origin!(BasicCompletionQueue, ExtendedCompletionQueue, GenericCompletionQueue);

fn another_key_gets_nothing(test_device: &TestDevice) -> Outcome {
    let (mut a, mut b) = nodes::<GenericQueuePair>(test_device);
    b.receive(&[(1, &[(0, 100)])]).unwrap();
    let ah = a.handle(&b);
    a.send_to(&ah, b.qp.qp_number(), QKEY ^ 1, 8);
    // The first datagram is dropped, so the second one must arrive.
    a.memory.set(0, &[6; 8]);
    a.send_to(&ah, b.qp.qp_number(), QKEY, 8);
    next(&mut b.recv_cq);
    assert_eq!(b.memory.get(GRH, 8), [6; 8]);
    Ok(())
}

fn a_datagram_pair_climbs_the_ladder_of_states(test_device: &TestDevice) -> Outcome {
    let options = NodeOptions::with(|options| options.qp_type = QueuePairType::UnreliableDatagram);
    let mut a = Udp::<GenericQueuePair>::new(&test_device.open(), test_device.port, &options);
    let error = a.modify(QueuePairAttribute::new().setup_state(QueuePairState::Init)).unwrap_err();
    assert!(error.to_string().contains("QueueKey"), "{error}");
    activate_ud(&mut a.qp, &a.path, QKEY, u32::MAX, &ConnectOptions::default()).unwrap();
    assert_eq!(a.qp.state().unwrap(), QueuePairState::ReadyToSend);
    let (attr, _) = a.qp.query(QueuePairAttributeMask::QueueKey).unwrap();
    assert_eq!(attr.qkey(), Some(QKEY));
    a.modify(QueuePairAttribute::new().setup_state(QueuePairState::ReadyToSend).setup_qkey(7)).unwrap();
    let (attr, _) = a.qp.query(QueuePairAttributeMask::QueueKey).unwrap();
    assert_eq!(attr.qkey(), Some(7));
    // A pair that is ready cannot be activated again, and a connected pair cannot be activated at
    // all.
    let error = activate_ud(&mut a.qp, &a.path, QKEY, 0, &ConnectOptions::default()).unwrap_err();
    assert!(matches!(error, ConnectError::Modify { state: QueuePairState::Init, .. }), "{error}");
    let mut connected =
        Udp::<GenericQueuePair>::new(&test_device.open(), test_device.port, &NodeOptions::default());
    let error = activate_ud(&mut connected.qp, &a.path, QKEY, 0, &ConnectOptions::default()).unwrap_err();
    assert!(matches!(error, ConnectError::NotDatagram { .. }), "{error}");
    Ok(())
}

fn an_address_handle_outlives_its_domain_s_handle(test_device: &TestDevice) -> Outcome {
    let a = node::<GenericQueuePair>(test_device);
    let context = test_device.open();
    let attr = a.path.address_to(&a.endpoint(0), &ConnectOptions::default()).unwrap();
    let ah = context.alloc_pd().unwrap().create_ah(&attr).unwrap();
    drop(context);
    assert!(ah.pd().context().query_device().is_ok());
    drop(ah);
    Ok(())
}

fn a_bad_address_is_refused(test_device: &TestDevice) -> Outcome {
    let a = node::<GenericQueuePair>(test_device);
    let good = a.path.address_to(&a.endpoint(0), &ConnectOptions::default()).unwrap();
    let refused = |attr: &AddressHandleAttribute| {
        let error = a.pd.create_ah(attr).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Os, "{error}");
    };
    refused(good.clone().setup_port(200));
    if a.path.gid().is_some() {
        refused(good.clone().setup_grh_src_gid_index(255));
        refused(AddressHandleAttribute::new().setup_port(test_device.port));
    }
    Ok(())
}

fn an_address_without_header_is_none(test_device: &TestDevice) -> Outcome {
    let (mut a, mut b) = nodes::<GenericQueuePair>(test_device);
    b.receive(&[(1, &[(0, 100)])]).unwrap();
    let ah = a.handle(&b);
    a.send_to(&ah, b.qp.qp_number(), QKEY, 8);
    let (origin, _) = ReceivedFrom::wait(&mut b.recv_cq);
    if !origin.has_grh() {
        skip!("the datagram came without a header");
    }
    let error = b.context.init_ah_from_wc(origin, None, test_device.port).unwrap_err();
    assert_error(&error, ErrorKind::InvalidArgument, &[("grh", &"none")]);
    Ok(())
}

fn a_header_to_somebody_else_leads_nowhere(test_device: &TestDevice) -> Outcome {
    let (mut a, mut b) = nodes::<GenericQueuePair>(test_device);
    b.receive(&[(1, &[(0, 100)])]).unwrap();
    let ah = a.handle(&b);
    a.send_to(&ah, b.qp.qp_number(), QKEY, 8);
    let (origin, _) = ReceivedFrom::wait(&mut b.recv_cq);
    if !origin.has_grh() {
        skip!("the datagram came without a header");
    }
    let mut bytes = [0; GRH];
    bytes[0] = 0x60;
    bytes[24] = 0x20;
    let grh = GlobalRoutingHeader::from_bytes(bytes);
    let error = b.pd.create_ah_from_wc(origin, Some(&grh), test_device.port).unwrap_err();
    assert_eq!(error.verb(), "ibv_init_ah_from_wc", "{error}");
    assert_error(&error, ErrorKind::Os, &[("destination", &grh.dgid())]);
    Ok(())
}

fn messages_of_an_unreliable_connection_arrive<Q: QpFlavour>(test_device: &TestDevice) -> Outcome {
    let options = NodeOptions::with(|options| options.qp_type = QueuePairType::UnreliableConnection);
    let context = test_device.open();
    let (mut a, mut b) = (
        Udp::<Q>::new(&context, test_device.port, &options),
        Udp::<Q>::new(&context, test_device.port, &options),
    );
    let (ours, theirs) = (a.endpoint(1), b.endpoint(2));
    connect(&mut a.qp, &a.path, &ours, &theirs, &options.connect).unwrap();
    connect(&mut b.qp, &b.path, &theirs, &ours, &options.connect).unwrap();
    let sent = pattern(5, 9000);
    a.memory.set(0, &sent);
    b.receive(&[(1, &[(0, 9000)]), (2, &[])]).unwrap();
    a.run(Op::Send, Data::At(0, 9000));
    assert_eq!(next(&mut b.recv_cq).byte_len, Some(9000));
    assert_eq!(b.memory.get(0, 9000), sent);
    let target = b.remote(20000);
    a.run(Op::WriteImm(target, 5), Data::At(0, 9000));
    let got = next(&mut b.recv_cq);
    assert_eq!((got.wr_id, got.imm_data), (2, Some(5)));
    assert_eq!(b.memory.get(20000, 9000), sent);
    let error = a.post(&[(1, SIGNALED, Op::Read(target), Data::At(0, 8))]).unwrap_err();
    assert!(matches!(error, PostSendError::UnsupportedOperation { .. }), "{error}");
    Ok(())
}
