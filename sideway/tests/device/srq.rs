//! Tests of shared receive queues and of queue pair tables.

use std::time::Duration;

use sideway::ErrorKind;
use sideway::ibverbs::completion::GenericCompletionQueue;
use sideway::ibverbs::connect::connect;
use sideway::ibverbs::device_attr::DeviceCapabilityFlags;
use sideway::ibverbs::event::{AsyncElement, AsyncEventType};
use sideway::ibverbs::queue_pair::{GenericQueuePair, PostRecvError, QueuePairTable};
use sideway::ibverbs::srq::{CreateSharedReceiveQueueError, SharedReceiveQueue};

use crate::harness::{Outcome, Suite, TestDevice};
use crate::node::{Data, Node, NodeOptions, Op, next};
use crate::support::errors::assert_error;
use crate::support::flavour::QpFlavour;

pub(crate) fn cases(suite: &mut Suite) {
    each_qp!(suite:
        many_pairs_take_from_one_queue,
        a_pair_of_a_shared_queue_takes_no_receives,
    );
    cases!(suite:
        a_queue_that_runs_low_says_so_once,
        a_queue_grows_with_its_lists,
        a_queue_has_what_was_asked_for,
        a_queue_beyond_the_limits_is_refused,
        a_limit_beyond_the_queue_is_refused,
        a_queue_lives_as_long_as_its_pairs,
    );
}

type AnyNode<Q> = Node<Q, GenericCompletionQueue>;

/// A server whose pairs share one receive queue, and its clients.
struct SrqServer<Q> {
    /// The first pair's node owns the memory and the completion queue of all.
    pairs: Vec<AnyNode<Q>>,
    clients: Vec<AnyNode<Q>>,
    srq: SharedReceiveQueue,
    cq: GenericCompletionQueue,
    /// Maps queue pair numbers to indices in `pairs`.
    table: QueuePairTable<usize>,
}

impl<Q: QpFlavour> SrqServer<Q> {
    fn new(test_device: &TestDevice, pairs: usize, max_wr: u32) -> Self {
        let (context, elsewhere) = (test_device.open(), test_device.open());
        // All devices' extended pairs support one entry and no inline data.
        let options =
            NodeOptions::with(|options| (options.send_sge, options.recv_sge, options.inline) = (1, 1, 0));
        let pd = context.alloc_pd().unwrap();
        let srq = pd.create_srq_builder().setup_max_wr(max_wr).build().unwrap();
        let cq = context.create_cq_builder().setup_cqe(256).build_generic().unwrap();
        let mut table = QueuePairTable::new();
        let mut pair = |n| {
            let mut node = AnyNode::<Q>::new(&context, test_device.port, &options);
            let mut builder = pd.create_qp_builder();
            node.qp = Q::make(builder.setup_send_cq(&cq).setup_recv_cq(&cq).setup_srq(&srq)).unwrap();
            // The receives are in memory of the queue's domain, because its pairs write to it.
            //
            // SAFETY: the memory lives as long as the region, and no reference to it is made.
            node.mr = unsafe { pd.reg_mr(node.memory.start(), options.bytes, options.region).unwrap() };
            assert_eq!(table.insert(node.qp.qp_number(), n), None);
            node
        };
        let mut pairs: Vec<_> = (0..pairs).map(&mut pair).collect();
        let mut clients: Vec<_> =
            pairs.iter().map(|_| AnyNode::<Q>::new(&elsewhere, test_device.port, &options)).collect();
        for (a, b) in pairs.iter_mut().zip(&mut clients) {
            let (ours, theirs) = (a.endpoint(1), b.endpoint(2));
            connect(&mut a.qp, &a.path, &ours, &theirs, &options.connect).unwrap();
            connect(&mut b.qp, &b.path, &theirs, &ours, &options.connect).unwrap();
        }
        Self { pairs, clients, srq, cq, table }
    }

    /// Posts receives of 64 bytes each, at an offset of 64 times their number.
    fn receive(&mut self, wr_ids: std::ops::Range<u64>) -> Result<(), PostRecvError> {
        let mr = &self.pairs[0].mr;
        let mut guard = self.srq.start_post_recv();
        for wr_id in wr_ids {
            // SAFETY: the memory outlives the queue, and no reference to it is made.
            unsafe { guard.construct_wr(wr_id).setup_sge(mr.lkey(), mr.get_ptr() as u64 + 64 * wr_id, 64) };
        }
        guard.post()
    }

    /// A client sends its number. Returns the pair and the receive that took it.
    fn send(&mut self, client: usize) -> (usize, u64) {
        let node = &mut self.clients[client];
        node.memory.set(0, &[client as u8 + 1; 8]);
        node.run(Op::Send, Data::At(0, 8));
        let got = next(&mut self.cq);
        assert_eq!(got.byte_len, Some(8));
        assert_eq!(self.pairs[0].memory.get(64 * got.wr_id as usize, 8), [client as u8 + 1; 8]);
        (*self.table.get(got.qp_num.unwrap()).unwrap(), got.wr_id)
    }
}

fn many_pairs_take_from_one_queue<Q: QpFlavour>(test_device: &TestDevice) -> Outcome {
    let mut server = SrqServer::<Q>::new(test_device, 4, 16);
    server.receive(0..16).unwrap();
    for wr_id in 0..16 {
        let client = (wr_id as usize * 3) % 4;
        assert_eq!(server.send(client), (client, wr_id));
    }
    // The same once more; the entry of a pair that leaves is removed.
    server.receive(0..1).unwrap();
    let left = server.pairs.pop().unwrap().qp.qp_number();
    assert_eq!(server.table.remove(left), Some(3));
    assert_eq!(server.table.get(left), None);
    assert_eq!(server.send(2), (2, 0));
    Ok(())
}

fn a_pair_of_a_shared_queue_takes_no_receives<Q: QpFlavour>(test_device: &TestDevice) -> Outcome {
    let mut server = SrqServer::<Q>::new(test_device, 1, 4);
    let pair = &mut server.pairs[0];
    assert_eq!(pair.qp.control().srq(), Some(server.srq.id()));
    assert_eq!(pair.receive(&[(1, &[(0, 8)])]).unwrap_err(), PostRecvError::SharedReceiveQueue);
    Ok(())
}

fn a_queue_that_runs_low_says_so_once(test_device: &TestDevice) -> Outcome {
    let mut server = SrqServer::<GenericQueuePair>::new(test_device, 2, 16);
    let events = server.srq.pd().context().async_events().unwrap();
    server.receive(0..8).unwrap();
    server.srq.set_limit(5).unwrap();
    assert_eq!(server.srq.query().unwrap().srq_limit, 5);
    for n in 0..4 {
        server.send(n % 2);
    }
    let event = loop {
        let event = events.wait_timeout(Duration::from_secs(20)).unwrap().expect("the queue runs low");
        // A pair that is only ready to receive may report an established connection.
        if event.event_type() != AsyncEventType::CommunicationEstablished {
            break event;
        }
    };
    assert_eq!(event.event_type(), AsyncEventType::SharedReceiveQueueLimitReached);
    assert_eq!(event.element(), AsyncElement::SharedReceiveQueue(server.srq.id()));
    assert_eq!(server.srq.query().unwrap().srq_limit, 0, "it is armed no more");
    server.send(0);
    assert_eq!(events.try_next().unwrap(), None);
    Ok(())
}

fn a_queue_grows_with_its_lists(test_device: &TestDevice) -> Outcome {
    let mut server = SrqServer::<GenericQueuePair>::new(test_device, 1, 4);
    let before = server.srq.query().unwrap().max_wr;
    server.receive(0..4).unwrap();
    let more = 4 * before.max(4);
    match server.srq.resize(more) {
        Ok(()) => {}
        Err(error) if error.unsupported().is_some() => {
            let device = server.srq.pd().context().query_device().unwrap();
            assert!(!device.capability_flags().contains(DeviceCapabilityFlags::SrqResize), "{error}");
            skip!("{error}")
        }
        Err(error) => panic!("{error}"),
    }
    assert!(server.srq.query().unwrap().max_wr >= more);
    server.receive(4..u64::from(more)).unwrap();
    for wr_id in 0..u64::from(more) {
        assert_eq!(server.send(0), (0, wr_id));
    }
    Ok(())
}

fn a_queue_has_what_was_asked_for(test_device: &TestDevice) -> Outcome {
    let pd = test_device.open().alloc_pd().unwrap();
    let srq = pd.create_srq_builder().setup_max_wr(33).setup_max_sge(3).build().unwrap();
    let attr = srq.query().unwrap();
    assert!(attr.max_wr >= 33 && attr.max_sge >= 3 && attr.srq_limit == 0, "{attr:?}");
    let other = pd.create_srq_builder().build().unwrap();
    assert_ne!(srq.id(), other.id());
    Ok(())
}

fn a_queue_beyond_the_limits_is_refused(test_device: &TestDevice) -> Outcome {
    let context = test_device.open();
    let (pd, device) = (context.alloc_pd().unwrap(), context.query_device().unwrap());
    let too_many = device.max_srq_wr() as u32 + 1;
    let error = pd.create_srq_builder().setup_max_wr(too_many).build().unwrap_err();
    assert!(matches!(error, CreateSharedReceiveQueueError::LimitExceeded { what: "max_wr", .. }), "{error}");
    let too_many = device.max_srq_sge() as u32 + 1;
    let error = pd.create_srq_builder().setup_max_sge(too_many).build().unwrap_err();
    assert!(matches!(error, CreateSharedReceiveQueueError::LimitExceeded { what: "max_sge", .. }), "{error}");
    Ok(())
}

fn a_limit_beyond_the_queue_is_refused(test_device: &TestDevice) -> Outcome {
    let srq = test_device.open().alloc_pd().unwrap().create_srq_builder().build().unwrap();
    let limit = srq.query().unwrap().max_wr + 1;
    let error = srq.set_limit(limit).unwrap_err();
    assert_error(&error, ErrorKind::Os, &[("srq_limit", &limit)]);
    Ok(())
}

fn a_queue_lives_as_long_as_its_pairs(test_device: &TestDevice) -> Outcome {
    let mut server = SrqServer::<GenericQueuePair>::new(test_device, 2, 4);
    server.receive(0..2).unwrap();
    let SrqServer { mut pairs, mut clients, srq, mut cq, .. } = server;
    drop(srq);
    for client in &mut clients {
        client.run(Op::Send, Data::At(0, 8));
        next(&mut cq);
    }
    drop(pairs.pop());
    drop(cq);
    drop(pairs);
    Ok(())
}
