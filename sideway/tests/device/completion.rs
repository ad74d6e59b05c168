//! Completion queue tests: creation and polling.

use sideway::ibverbs::completion::{
    CreateCompletionQueueError, ExtendedCompletionQueue, GenericCompletionQueue, WorkCompletionFields,
    WorkCompletionOperationType, WorkCompletionStatus,
};
use sideway::ibverbs::queue_pair::{GenericQueuePair, QueuePair};

use crate::harness::{Outcome, Suite, TestDevice};
use crate::node::{AnyPair, Data, Node, NodeOptions, Op, Pair, SIGNALED};
use crate::support::flavour::CqFlavour;

pub(crate) fn cases(suite: &mut Suite) {
    each_cq!(suite:
        a_queue_holds_at_least_what_was_asked_for,
        a_queue_beyond_the_devices_limit_is_an_error,
        a_vector_that_is_not_there_is_an_error,
        an_empty_queue_yields_nothing,
        a_poll_goes_on_after_a_batch,
        a_dropped_poller_leaves_the_rest,
        a_poller_that_took_nothing_loses_nothing,
        a_leaked_poller_keeps_no_more_than_its_batch,
    );
    cases!(suite:
        one_queue_for_everything_tells_pairs_apart,
        completions_have_the_fields_that_were_asked_for,
        timestamps_are_there_or_refused,
        generic_is_extended_where_the_device_is,
    );
}

fn a_queue_holds_at_least_what_was_asked_for<C: CqFlavour>(test_device: &TestDevice) -> Outcome {
    let context = test_device.open();
    for cqe in [1, 2, 3, 100, 1000] {
        let cq = C::make(context.create_cq_builder().setup_cqe(cqe)).unwrap();
        assert!(cq.cqe() >= cqe, "{cqe}: {}", cq.cqe());
        assert!(*cq.context() == context);
    }
    Ok(())
}

fn a_queue_beyond_the_devices_limit_is_an_error<C: CqFlavour>(test_device: &TestDevice) -> Outcome {
    let context = test_device.open();
    let max = context.query_device().unwrap().max_cqe();
    for too_many in [max as u32 + 1, u32::MAX] {
        let Err(error) = C::make(context.create_cq_builder().setup_cqe(too_many)) else {
            panic!("{too_many}")
        };
        let CreateCompletionQueueError::TooManyEntries { cqe, limit, .. } = &error else { panic!("{error}") };
        assert_eq!((*cqe, *limit), (too_many, max));
        assert!(error.to_string().contains(&format!("max_cqe) is {max}")), "{error}");
    }
    Ok(())
}

fn a_vector_that_is_not_there_is_an_error<C: CqFlavour>(test_device: &TestDevice) -> Outcome {
    let context = test_device.open();
    assert!(C::make(context.create_cq_builder().setup_comp_vector(1 << 20)).is_err());
    assert!(C::make(context.create_cq_builder().setup_comp_vector(u32::MAX)).is_err());
    Ok(())
}

fn an_empty_queue_yields_nothing<C: CqFlavour>(test_device: &TestDevice) -> Outcome {
    let mut cq = C::make(&test_device.open().create_cq_builder()).unwrap();
    for _ in 0..1000 {
        assert_eq!(cq.poll(&mut |wc| panic!("{wc:?}")).unwrap(), 0);
    }
    Ok(())
}

/// A pair whose node `a` has sent `count` empty messages, all of which have completed.
fn completed<C: CqFlavour>(test_device: &TestDevice, count: u64, batch: u32) -> Pair<GenericQueuePair, C> {
    let mut pair = Pair::<GenericQueuePair, C>::with(test_device, |options| options.batch = batch);
    let target = pair.b.remote(0);
    let requests: Vec<_> = (0..count).map(|n| (n, SIGNALED, Op::Write(target), Data::At(0, 1))).collect();
    pair.a.post(&requests).unwrap();
    // The last message has a receive: when it has arrived, all earlier ones have been written.
    pair.b.receive(&[(0, &[])]).unwrap();
    pair.a.post(&[(count, SIGNALED, Op::WriteImm(target, 0), Data::None)]).unwrap();
    pair.b.received(1);
    // The acknowledgement of the last message is still in transit.
    std::thread::sleep(std::time::Duration::from_millis(300));
    pair
}

fn a_poll_goes_on_after_a_batch<C: CqFlavour>(test_device: &TestDevice) -> Outcome {
    let mut pair = completed::<C>(test_device, 20, 3);
    let mut found = Vec::new();
    pair.a.send_cq.poll(&mut |wc| found.push(wc.wr_id)).unwrap();
    assert_eq!(found, (0..=20).collect::<Vec<_>>(), "in one poll");
    Ok(())
}

fn a_dropped_poller_leaves_the_rest<C: CqFlavour>(test_device: &TestDevice) -> Outcome {
    let mut pair = completed::<C>(test_device, 20, 8);
    let mut found = Vec::new();
    for limit in [1, 2, 3, 4, 5, 30] {
        pair.a.send_cq.poll_up_to(limit, &mut |wc| found.push(wc.wr_id)).unwrap();
    }
    assert_eq!(found, (0..=20).collect::<Vec<_>>());
    Ok(())
}

fn a_poller_that_took_nothing_loses_nothing<C: CqFlavour>(test_device: &TestDevice) -> Outcome {
    let mut pair = completed::<C>(test_device, 5, 4);
    for _ in 0..10 {
        pair.a.send_cq.poll_up_to(0, &mut |wc| panic!("{wc:?}")).unwrap();
    }
    assert_eq!(pair.a.sent(6).iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
    Ok(())
}

fn a_leaked_poller_keeps_no_more_than_its_batch<C: CqFlavour>(test_device: &TestDevice) -> Outcome {
    let mut pair = completed::<C>(test_device, 5, 4);
    pair.a.send_cq.leak_poller(2);
    let mut rest = Vec::new();
    pair.a.send_cq.poll(&mut |wc| rest.push(wc.wr_id)).unwrap();
    // Completions that were returned do not come again. Only a classic queue's poller had fetched
    // more than it returned.
    let kept = 6 - rest.len() as u64;
    assert!(kept == 2 || kept == 4 && C::NAME != "extended CQ", "{}: {rest:?}", C::NAME);
    assert_eq!(rest, (kept..6).collect::<Vec<_>>());
    pair.a.send_cq.leak_poller(0);
    // The leaked poller holds no lock that destroying the pair would wait for.
    pair.a.send_cq.leak_poller(1);
    Ok(())
}

fn one_queue_for_everything_tells_pairs_apart(test_device: &TestDevice) -> Outcome {
    let context = test_device.open();
    let options = NodeOptions::default();
    let mut a = Node::<GenericQueuePair, GenericCompletionQueue>::new(&context, test_device.port, &options);
    let mut builder = a.pd.create_qp_builder();
    // Both queues of the pair complete into one.
    builder.setup_send_cq(&a.send_cq).setup_recv_cq(&a.send_cq);
    a.qp = builder.build_generic().unwrap();
    let b = Node::new(&context, test_device.port, &options);
    let mut pair = AnyPair::connect(a, b, &options.connect);
    pair.a.receive(&[(1, &[(0, 64)])]).unwrap();
    pair.b.receive(&[(2, &[(0, 64)])]).unwrap();
    pair.a.post(&[(3, SIGNALED, Op::Send, Data::At(0, 8))]).unwrap();
    pair.b.post(&[(4, SIGNALED, Op::Send, Data::At(0, 16))]).unwrap();
    let mut found = pair.a.sent(2);
    found.sort_by_key(|wc| wc.wr_id);
    assert_eq!((found[0].wr_id, found[0].opcode), (1, WorkCompletionOperationType::Receive));
    assert_eq!((found[1].wr_id, found[1].opcode), (3, WorkCompletionOperationType::Send));
    assert_eq!(found[0].byte_len, Some(16));
    assert!(found.iter().all(|wc| wc.qp_num == Some(pair.a.qp.qp_number())));
    assert_eq!(pair.b.received(1)[0].byte_len, Some(8));
    Ok(())
}

fn completions_have_the_fields_that_were_asked_for(test_device: &TestDevice) -> Outcome {
    let context = test_device.open();
    let options = NodeOptions::default();
    let all = WorkCompletionFields::STANDARD;
    for fields in all.iter().chain([all, WorkCompletionFields::empty()]) {
        let mut builder = context.create_cq_builder();
        let cq = match builder.setup_wc_flags(fields).build_ex() {
            Ok(cq) => cq,
            Err(CreateCompletionQueueError::Unsupported(lacking)) => skip!("{lacking}"),
            Err(error) => panic!("{error}"),
        };
        assert!(all.intersection(cq.fields()) == fields, "{:?} {fields:?}", cq.fields());
        let mut a =
            Node::<GenericQueuePair, ExtendedCompletionQueue>::new(&context, test_device.port, &options);
        a.qp = a.pd.create_qp_builder().setup_send_cq(&a.send_cq).setup_recv_cq(&cq).build_generic().unwrap();
        a.recv_cq = cq;
        let b = Node::new(&context, test_device.port, &options);
        let mut pair = Pair::connect(a, b, &options.connect);
        pair.a.receive(&[(1, &[(0, 64)])]).unwrap();
        pair.b.run(Op::SendImm(0x0102_0304), Data::At(0, 5));
        let wc = pair.a.received(1)[0];
        let asked = |field| fields.contains(field);
        assert_eq!((wc.wr_id, wc.status), (1, WorkCompletionStatus::Success));
        assert_eq!(wc.opcode, WorkCompletionOperationType::Receive);
        assert_eq!(wc.byte_len, asked(WorkCompletionFields::ByteLen).then_some(5));
        assert_eq!(wc.imm_data, asked(WorkCompletionFields::Imm).then_some(0x0102_0304));
        assert_eq!(wc.qp_num, asked(WorkCompletionFields::QpNum).then_some(pair.a.qp.qp_number()));
    }
    Ok(())
}

fn timestamps_are_there_or_refused(test_device: &TestDevice) -> Outcome {
    let mut builder = test_device.open().create_cq_builder();
    builder.setup_wc_flags(WorkCompletionFields::STANDARD | WorkCompletionFields::CompletionTimestamp);
    match builder.build_ex() {
        Ok(cq) => assert!(cq.fields().contains(WorkCompletionFields::CompletionTimestamp)),
        Err(error) => {
            assert!(matches!(error, CreateCompletionQueueError::Unsupported { .. }), "{error}");
            assert!(error.to_string().contains("CompletionTimestamp"), "{error}");
            // Then the generic queue is a basic one, which has no such fields.
            assert!(matches!(builder.build_generic().unwrap(), GenericCompletionQueue::Basic(_)));
        }
    }
    Ok(())
}

fn generic_is_extended_where_the_device_is(test_device: &TestDevice) -> Outcome {
    let builder = test_device.open().create_cq_builder();
    let extended = builder.build_ex().is_ok();
    let generic = builder.build_generic().unwrap();
    assert_eq!(matches!(generic, GenericCompletionQueue::Extended(_)), extended);
    Ok(())
}
