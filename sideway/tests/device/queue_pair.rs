//! Queue pair tests: creation, states and queries.

use std::collections::HashSet;

use sideway::ibverbs::completion::{GenericCompletionQueue, WorkCompletionStatus};
use sideway::ibverbs::queue_pair::{
    CreateQueuePairError, ExtendedQueuePair, GenericQueuePair, ModifyQueuePairError, QueuePair,
    QueuePairAttribute, QueuePairAttributeMask, QueuePairState, QueuePairType, SendOperationFlags,
};

use crate::harness::{Outcome, Suite, TestDevice};
use crate::node::{AnyPair, Data, Node, NodeOptions, Op, Pair, SIGNALED};
use crate::support::flavour::QpFlavour;

pub(crate) fn cases(suite: &mut Suite) {
    each_qp!(suite:
        a_pair_holds_at_least_what_was_asked_for,
        a_pair_beyond_the_devices_limits_is_an_error,
        every_type_is_made,
        a_pair_climbs_the_ladder_of_states,
        a_pair_is_reset_and_used_again,
        a_pair_that_is_failed_flushes_its_requests,
    );
    cases!(suite:
        too_much_inline_data_is_an_error,
        a_pair_needs_both_queues,
        a_queue_of_another_context_is_refused,
        a_type_that_is_not_known_is_refused,
        numbers_are_unique,
        a_query_tells_what_was_set,
        a_query_tells_what_it_was_made_with,
        generic_is_extended_where_the_device_is,
        an_operation_that_no_device_has_is_refused_or_ignored,
        many_pairs_share_a_queue,
    );
}

type AnyNode = Node<GenericQueuePair, GenericCompletionQueue>;

fn a_pair_that_is_failed_flushes_its_requests<Q: QpFlavour>(test_device: &TestDevice) -> Outcome {
    let Pair { mut a, .. } = Pair::<Q, GenericCompletionQueue>::new(test_device);
    a.receive(&[(1, &[(0, 8)]), (2, &[(8, 8)])]).unwrap();
    a.qp.fail().unwrap();
    assert_eq!(a.qp.state().unwrap(), QueuePairState::Error);
    let flushed: Vec<_> = a.received(2).iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(flushed, [1, 2].map(|wr_id| (wr_id, WorkCompletionStatus::WorkRequestFlushedError)));
    a.qp.fail().unwrap();

    let mut new = AnyNode::new(&test_device.open(), test_device.port, &NodeOptions::default());
    let error = new.qp.fail().unwrap_err();
    assert!(matches!(error, ModifyQueuePairError::InvalidTransition { .. }), "{error}");
    Ok(())
}

fn a_pair_holds_at_least_what_was_asked_for<Q: QpFlavour>(test_device: &TestDevice) -> Outcome {
    let context = test_device.open();
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq_builder().build_generic().unwrap();
    for (wr, sge) in [(1, 1), (3, 2), (100, 4)] {
        let mut builder = pd.create_qp_builder();
        builder.setup_send_cq(&cq).setup_recv_cq(&cq).setup_max_send_wr(wr).setup_max_recv_wr(wr);
        let qp = Q::make(builder.setup_max_send_sge(sge).setup_max_recv_sge(sge)).unwrap();
        let cap = qp.control().capability();
        assert!(cap.max_send_wr >= wr && cap.max_recv_wr >= wr, "{cap:?}");
        // SoftRoCE's extended pairs mishandle lists of entries, so they have only one.
        let one_entry = qp_is_extended::<Q>() && cap.max_send_sge == 1;
        assert!((cap.max_send_sge >= sge || one_entry) && cap.max_recv_sge >= sge, "{cap:?}");
        assert_eq!(*qp.control().context(), context);
        assert_eq!(qp.control().pd().as_raw(), pd.as_raw());
    }
    Ok(())
}

fn qp_is_extended<Q: QpFlavour>() -> bool {
    Q::NAME == <ExtendedQueuePair as QpFlavour>::NAME
}

fn a_pair_beyond_the_devices_limits_is_an_error<Q: QpFlavour>(test_device: &TestDevice) -> Outcome {
    let context = test_device.open();
    let attr = context.query_device().unwrap();
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq_builder().build_generic().unwrap();
    let (wr, sge) = (attr.max_qp_wr() as u32 + 1, attr.max_sge() as u32 + 1);
    for (which, send_wr, recv_wr, send_sge, recv_sge) in [
        ("max_send_wr", wr, 1, 1, 1),
        ("max_recv_wr", 1, wr, 1, 1),
        ("max_send_sge", 1, 1, sge, 1),
        ("max_recv_sge", 1, 1, 1, sge),
    ] {
        let mut builder = pd.create_qp_builder();
        builder.setup_send_cq(&cq).setup_recv_cq(&cq).setup_max_send_wr(send_wr).setup_max_recv_wr(recv_wr);
        let Err(error) = Q::make(builder.setup_max_send_sge(send_sge).setup_max_recv_sge(recv_sge)) else {
            panic!("{which} is granted");
        };
        assert!(
            matches!(&error, CreateQueuePairError::LimitExceeded { what, .. } if *what == which),
            "{error}"
        );
    }
    Ok(())
}

fn every_type_is_made<Q: QpFlavour>(test_device: &TestDevice) -> Outcome {
    let context = test_device.open();
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq_builder().build_generic().unwrap();
    let types = [
        QueuePairType::ReliableConnection,
        QueuePairType::UnreliableConnection,
        QueuePairType::UnreliableDatagram,
    ];
    for qp_type in types {
        let mut builder = pd.create_qp_builder();
        let qp = Q::make(builder.setup_qp_type(qp_type).setup_send_cq(&cq).setup_recv_cq(&cq)).unwrap();
        assert_eq!(qp.qp_type(), qp_type);
        assert_eq!(qp.state().unwrap(), QueuePairState::Reset);
        let (_, init) = qp.query(QueuePairAttributeMask::State).unwrap();
        assert_eq!(init.qp_type(), qp_type);
    }
    Ok(())
}

fn a_pair_climbs_the_ladder_of_states<Q: QpFlavour>(test_device: &TestDevice) -> Outcome {
    let pair = Pair::<Q, GenericCompletionQueue>::new(test_device);
    assert_eq!(pair.a.qp.state().unwrap(), QueuePairState::ReadyToSend);
    let options = NodeOptions::default();
    let node = Node::<Q, GenericCompletionQueue>::new(&pair.a.context, test_device.port, &options);
    let mut attr = QueuePairAttribute::new();
    attr.setup_state(QueuePairState::Init).setup_pkey_index(0).setup_port(test_device.port);
    node.modify(attr.setup_access_flags(options.connect.access_flags)).unwrap();
    assert_eq!(node.qp.state().unwrap(), QueuePairState::Init);
    for state in [QueuePairState::Error, QueuePairState::Reset] {
        node.modify(QueuePairAttribute::new().setup_state(state)).unwrap();
        assert_eq!(node.qp.state().unwrap(), state);
    }
    Ok(())
}

fn a_pair_is_reset_and_used_again<Q: QpFlavour>(test_device: &TestDevice) -> Outcome {
    let mut pair = Pair::<Q, GenericCompletionQueue>::new(test_device);
    for round in 0..3 {
        pair.b.receive(&[(round, &[(0, 64)])]).unwrap();
        pair.a.run(Op::Send, Data::At(0, 8));
        assert_eq!(pair.b.received(1)[0].wr_id, round);
        for node in [&pair.a, &pair.b] {
            node.modify(QueuePairAttribute::new().setup_state(QueuePairState::Reset)).unwrap();
        }
        let Pair { a, b } = pair;
        pair = Pair::connect(a, b, &NodeOptions::default().connect);
    }
    Ok(())
}

fn too_much_inline_data_is_an_error(test_device: &TestDevice) -> Outcome {
    let node = AnyNode::new(&test_device.open(), test_device.port, &NodeOptions::default());
    let mut builder = node.pd.create_qp_builder();
    builder.setup_send_cq(&node.send_cq).setup_recv_cq(&node.recv_cq).setup_max_inline_data(1 << 30);
    assert!(builder.build().is_err());
    Ok(())
}

fn a_pair_needs_both_queues(test_device: &TestDevice) -> Outcome {
    let node = AnyNode::new(&test_device.open(), test_device.port, &NodeOptions::default());
    let mut builder = node.pd.create_qp_builder();
    let error = builder.build().unwrap_err();
    assert!(matches!(error, CreateQueuePairError::MissingCompletionQueue { which: "send" }), "{error}");
    let error = builder.setup_send_cq(&node.send_cq).build_ex().unwrap_err();
    assert!(matches!(error, CreateQueuePairError::MissingCompletionQueue { which: "receive" }), "{error}");
    Ok(())
}

fn a_queue_of_another_context_is_refused(test_device: &TestDevice) -> Outcome {
    let node = AnyNode::new(&test_device.open(), test_device.port, &NodeOptions::default());
    let foreign = test_device.open().create_cq_builder().build().unwrap();
    let mut builder = node.pd.create_qp_builder();
    let error = builder.setup_send_cq(&foreign).setup_recv_cq(&node.recv_cq).build().unwrap_err();
    assert!(matches!(error, CreateQueuePairError::OtherContext { which: "send" }), "{error}");
    Ok(())
}

fn a_type_that_is_not_known_is_refused(test_device: &TestDevice) -> Outcome {
    let node = AnyNode::new(&test_device.open(), test_device.port, &NodeOptions::default());
    let mut builder = node.pd.create_qp_builder();
    builder.setup_send_cq(&node.send_cq).setup_recv_cq(&node.recv_cq);
    for raw in [0, 1, 200, u32::MAX] {
        let error = builder.setup_qp_type(QueuePairType::from_raw(raw)).build_generic().unwrap_err();
        assert!(matches!(error, CreateQueuePairError::UnknownType { .. }), "{error}");
    }
    Ok(())
}

fn numbers_are_unique(test_device: &TestDevice) -> Outcome {
    let node = AnyNode::new(&test_device.open(), test_device.port, &NodeOptions::default());
    let mut builder = node.pd.create_qp_builder();
    builder.setup_send_cq(&node.send_cq).setup_recv_cq(&node.recv_cq);
    let pairs: Vec<_> = (0..20).map(|_| builder.build_generic().unwrap()).collect();
    let numbers: HashSet<_> = pairs.iter().map(QueuePair::qp_number).collect();
    assert_eq!(numbers.len(), 20);
    Ok(())
}

fn a_query_tells_what_was_set(test_device: &TestDevice) -> Outcome {
    let pair = AnyPair::with(test_device, |options| {
        options.connect.timeout = 13;
        options.connect.retry_cnt = 5;
        options.connect.rnr_retry = 4;
        options.connect.min_rnr_timer = 11;
    });
    let everything = QueuePairAttributeMask::from_bits_retain(0x1f_ffff);
    let (attr, _) = pair.a.qp.query(everything).unwrap();
    assert_eq!(attr.state(), Some(QueuePairState::ReadyToSend));
    assert_eq!((attr.timeout(), attr.retry_cnt(), attr.rnr_retry()), (Some(13), Some(5), Some(4)));
    assert_eq!((attr.min_rnr_timer(), attr.port()), (Some(11), Some(test_device.port)));
    assert_eq!(attr.dest_qp_num(), Some(pair.b.qp.qp_number()));
    assert_eq!(attr.path_mtu(), Some(pair.a.path.mtu()));
    assert_eq!(attr.access_flags(), Some(NodeOptions::default().connect.access_flags));
    assert_eq!((attr.max_read_atomic(), attr.max_dest_read_atomic()), (Some(1), Some(1)));
    if let Some(gid) = pair.b.path.gid() {
        assert_eq!(attr.address_vector().unwrap().grh_dest_gid(), Some(gid));
    }
    let (attr, _) = pair.a.qp.query(QueuePairAttributeMask::State).unwrap();
    assert_eq!((attr.timeout(), attr.port(), attr.mask()), (None, None, QueuePairAttributeMask::State));
    Ok(())
}

fn a_query_tells_what_it_was_made_with(test_device: &TestDevice) -> Outcome {
    let node = AnyNode::new(
        &test_device.open(),
        test_device.port,
        &NodeOptions::with(|options| options.signal_all = true),
    );
    let (_, init) = node.qp.query(QueuePairAttributeMask::Capabilities).unwrap();
    let granted = node.qp.control().capability();
    let told = init.capability();
    // SoftRoCE's pairs have more room than it reports at creation.
    assert!(told.max_send_wr >= granted.max_send_wr && told.max_recv_wr >= granted.max_recv_wr, "{told:?}");
    assert!(
        told.max_send_sge >= granted.max_send_sge && told.max_recv_sge >= granted.max_recv_sge,
        "{told:?}"
    );
    assert!(init.sq_sig_all());
    Ok(())
}

fn generic_is_extended_where_the_device_is(test_device: &TestDevice) -> Outcome {
    let node = AnyNode::new(&test_device.open(), test_device.port, &NodeOptions::default());
    let mut builder = node.pd.create_qp_builder();
    builder.setup_send_cq(&node.send_cq).setup_recv_cq(&node.recv_cq);
    assert_eq!(node.qp.is_extended(), builder.build_ex().is_ok());
    Ok(())
}

fn an_operation_that_no_device_has_is_refused_or_ignored(test_device: &TestDevice) -> Outcome {
    let node = AnyNode::new(&test_device.open(), test_device.port, &NodeOptions::default());
    let mut builder = node.pd.create_qp_builder();
    builder.setup_send_cq(&node.send_cq).setup_recv_cq(&node.recv_cq);
    builder.setup_send_ops_flags(SendOperationFlags::from_bits_retain(1 << 62));
    if let Err(error) = builder.build_ex() {
        assert!(error.to_string().contains("0x4000000000000000"), "{error}");
    }
    Ok(())
}

fn many_pairs_share_a_queue(test_device: &TestDevice) -> Outcome {
    const PAIRS: u64 = 100;
    let context = test_device.open();
    let options = NodeOptions::with(|options| (options.cqe, options.send_wr, options.recv_wr) = (512, 4, 4));
    let mut a = AnyNode::new(&context, test_device.port, &options);
    let mut b = AnyNode::new(&context, test_device.port, &options);
    let mut kept = Vec::new();
    for n in 0..PAIRS {
        for node in [&mut a, &mut b] {
            let mut builder = node.pd.create_qp_builder();
            builder.setup_send_cq(&node.send_cq).setup_recv_cq(&node.recv_cq);
            builder.setup_max_send_wr(4).setup_max_recv_wr(4);
            node.qp = builder.build_generic().unwrap();
        }
        let mut pair = AnyPair::connect(a, b, &options.connect);
        pair.b.receive(&[(n, &[(0, 64)])]).unwrap();
        pair.a.post(&[(n, SIGNALED, Op::SendImm(n as u32), Data::At(0, 16))]).unwrap();
        (a, b) = (pair.a, pair.b);
        let spare =
            a.pd.create_qp_builder().setup_send_cq(&a.send_cq).setup_recv_cq(&a.recv_cq).build().unwrap();
        // The pairs are kept, so that all of them exist at once.
        let replace = |node: &mut AnyNode, with: GenericQueuePair| std::mem::replace(&mut node.qp, with);
        kept.push(replace(&mut a, spare.into()));
        let spare =
            b.pd.create_qp_builder().setup_send_cq(&b.send_cq).setup_recv_cq(&b.recv_cq).build().unwrap();
        kept.push(replace(&mut b, spare.into()));
    }
    let ids = |completions: Vec<crate::support::flavour::Completion>| {
        completions.iter().map(|wc| wc.wr_id).collect::<HashSet<_>>().len() as u64
    };
    assert_eq!(ids(a.sent(PAIRS as usize)), PAIRS);
    let received = b.received(PAIRS as usize);
    assert!(received.iter().all(|wc| wc.imm_data == Some(wc.wr_id as u32)));
    assert_eq!(ids(received), PAIRS);
    Ok(())
}
