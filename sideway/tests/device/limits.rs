//! Tests of lists that cannot be posted, and of the number of posted requests.

use std::time::{Duration, Instant};

use sideway::ibverbs::queue_pair::{
    BasicQueuePair, PostRecvError, PostSendError, QueuePair, QueuePairState, QueuePairType,
    SendOperationFlags, WorkRequestOperationType,
};

use crate::harness::{Outcome, Suite, TestDevice};
use crate::node::{AnyCq, Data, Op, Pair, SIGNALED};
use crate::support::flavour::{CqFlavour, QpFlavour};

pub(crate) fn cases(suite: &mut Suite) {
    each_qp!(suite:
        a_list_longer_than_the_queue_is_refused,
        too_many_pieces_are_refused,
        too_much_inline_data_is_refused,
        an_operation_that_the_type_lacks_is_refused,
        an_operation_that_was_not_asked_for_is_refused,
        a_full_queue_says_how_far_it_came,
        a_full_receive_queue_says_how_far_it_came,
        receives_with_too_many_pieces_are_refused,
    );
    cases!(suite:
        a_pair_that_is_not_ready_says_so_or_waits,
        a_full_classic_queue_has_posted_what_it_says,
    );
}

/// Checks that no request of a refused list reached the device, and that the next list works.
fn assert_untouched<Q: QpFlavour, C: CqFlavour>(pair: &mut Pair<Q, C>) {
    pair.a.run(Op::Write(pair.b.remote(0)), Data::At(0, 8));
    assert_eq!(pair.a.send_cq.poll(&mut |wc| panic!("{wc:?}")).unwrap(), 0);
    assert_eq!(pair.b.recv_cq.poll(&mut |wc| panic!("{wc:?}")).unwrap(), 0);
}

fn a_list_longer_than_the_queue_is_refused<Q: QpFlavour>(test_device: &TestDevice) -> Outcome {
    let mut pair = Pair::<Q, AnyCq>::with(test_device, |options| options.cqe = 1024);
    let depth = pair.a.qp.control().capability().max_send_wr as usize;
    let target = pair.b.remote(0);
    let too_many = depth + 1;
    let requests: Vec<_> =
        (0..too_many as u64).map(|n| (n, SIGNALED, Op::Write(target), Data::At(0, 8))).collect();
    let error = pair.a.post(&requests).unwrap_err();
    match error {
        PostSendError::TooManyWorkRequests { limit } => assert_eq!(limit, depth),
        error => panic!("{error}"),
    }
    assert_eq!(error.posted(), Some(0));
    assert_untouched(&mut pair);
    Ok(())
}

fn too_many_pieces_are_refused<Q: QpFlavour>(test_device: &TestDevice) -> Outcome {
    let mut pair = Pair::<Q, AnyCq>::new(test_device);
    let limit = pair.a.qp.control().capability().max_send_sge as usize;
    let pieces = vec![(0, 1); limit + 1];
    let fits = (0, SIGNALED, Op::Send, Data::List(&pieces[1..]));
    let error = pair.a.post(&[fits, (1, SIGNALED, Op::Send, Data::List(&pieces))]).unwrap_err();
    let expected = PostSendError::TooManyScatterGatherEntries { index: 1, given: limit + 1, limit };
    assert_eq!(error, expected);
    assert_untouched(&mut pair);
    Ok(())
}

fn too_much_inline_data_is_refused<Q: QpFlavour>(test_device: &TestDevice) -> Outcome {
    let mut pair = Pair::<Q, AnyCq>::with(test_device, |options| options.inline = 32);
    let limit = pair.a.qp.control().capability().max_inline_data as usize;
    let bytes = vec![1; limit + 1];
    for data in [Data::Inline(&bytes), Data::InlineList(&[&bytes[..1], &bytes[1..]])] {
        let error = pair.a.post(&[(0, SIGNALED, Op::Send, data)]).unwrap_err();
        assert_eq!(error, PostSendError::InlineDataTooLong { index: 0, given: limit + 1, limit });
    }
    assert_untouched(&mut pair);
    Ok(())
}

fn an_operation_that_the_type_lacks_is_refused<Q: QpFlavour>(test_device: &TestDevice) -> Outcome {
    let uc = QueuePairType::UnreliableConnection;
    let mut pair = Pair::<Q, AnyCq>::with(test_device, |options| options.qp_type = uc);
    let target = pair.b.remote(0);
    for (op, operation) in [
        (Op::Read(target), WorkRequestOperationType::Read),
        (Op::CompareSwap(target, 1, 2), WorkRequestOperationType::AtomicCompareAndSwap),
        (Op::FetchAdd(target, 1), WorkRequestOperationType::AtomicFetchAndAdd),
    ] {
        let error = pair.a.post(&[(0, SIGNALED, op, Data::At(0, 8))]).unwrap_err();
        assert_eq!(error, PostSendError::UnsupportedOperation { index: 0, operation });
        assert!(error.to_string().contains(&format!("{operation}")), "{error}");
    }
    assert_untouched(&mut pair);
    Ok(())
}

fn an_operation_that_was_not_asked_for_is_refused<Q: QpFlavour>(test_device: &TestDevice) -> Outcome {
    let asked = SendOperationFlags::Write;
    let mut pair = Pair::<Q, AnyCq>::with(test_device, |options| options.operations = Some(asked));
    let target = pair.b.remote(0);
    for op in [Op::Send, Op::SendImm(1), Op::WriteImm(target, 1), Op::Read(target), Op::FetchAdd(target, 1)] {
        let first = (0, SIGNALED, Op::Write(target), Data::At(0, 8));
        let error = pair.a.post(&[first, (1, SIGNALED, op, Data::At(0, 8))]).unwrap_err();
        assert!(matches!(error, PostSendError::UnsupportedOperation { index: 1, .. }), "{error}");
        assert_eq!((error.bad_work_request(), error.posted()), (Some(1), Some(0)));
    }
    assert_untouched(&mut pair);
    Ok(())
}

/// Posts lists until the queue is full. Returns the number of posted requests, and the error.
fn fill<Q: QpFlavour, C: CqFlavour>(pair: &mut Pair<Q, C>, list: u64) -> (u64, PostSendError) {
    // Sends stay in the queue while the peer has no receive.
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut posted = 0;
    loop {
        assert!(Instant::now() < deadline, "{posted} posted, and the queue is still not full");
        let requests: Vec<_> =
            (posted..posted + list).map(|n| (n, SIGNALED, Op::SendImm(n as u32), Data::At(0, 8))).collect();
        match pair.a.post(&requests) {
            Ok(()) => posted += list,
            Err(error) => return (posted + error.posted().unwrap_or(0) as u64, error),
        }
    }
}

/// Exactly the posted requests complete once receives are posted.
fn a_full_queue_says_how_far_it_came<Q: QpFlavour>(test_device: &TestDevice) -> Outcome {
    let mut pair = Pair::<Q, AnyCq>::with(test_device, |options| {
        (options.send_wr, options.recv_wr, options.cqe) = (16, 64, 1024);
        (options.connect.rnr_retry, options.connect.min_rnr_timer) = (7, 1);
    });
    for list in [1, 5] {
        let (posted, error) = fill(&mut pair, list);
        assert!(error.is_queue_full(), "{error}");
        // A list that is posted as a unit fits completely or not at all.
        assert!(posted + list > 16, "{posted}");
        assert!(error.posted() < Some(list as usize), "{error:?}");
        drain(&mut pair, posted);
    }
    Ok(())
}

/// Posts receives at the peer, and checks that exactly the first `posted` requests arrive.
fn drain<Q: QpFlavour, C: CqFlavour>(pair: &mut Pair<Q, C>, posted: u64) {
    let mut arrived = Vec::new();
    for chunk in (0..posted).collect::<Vec<_>>().chunks(32) {
        let receives: Vec<(u64, &[_])> = chunk.iter().map(|n| (*n, &[(0, 64)][..])).collect();
        pair.b.receive(&receives).unwrap();
        arrived.extend(pair.b.received(chunk.len()).iter().map(|wc| wc.imm_data.unwrap()));
    }
    assert_eq!(arrived, (0..posted as u32).collect::<Vec<_>>());
    let found: Vec<_> = pair.a.sent(posted as usize).iter().map(|wc| wc.wr_id).collect();
    assert_eq!(found, (0..posted).collect::<Vec<_>>());
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(pair.a.send_cq.poll(&mut |wc| panic!("{wc:?}")).unwrap(), 0);
}

/// The classic path posts the beginning of a list, and reports the index at which it stopped.
fn a_full_classic_queue_has_posted_what_it_says(test_device: &TestDevice) -> Outcome {
    let mut pair = Pair::<BasicQueuePair, AnyCq>::with(test_device, |options| {
        (options.send_wr, options.recv_wr, options.cqe) = (16, 64, 1024);
        options.connect.min_rnr_timer = 1;
    });
    let depth = u64::from(pair.a.qp.control().capability().max_send_wr);
    let (posted, error) = fill(&mut pair, depth - 1);
    let PostSendError::NotEnoughResources { index: Some(index), .. } = error else { panic!("{error}") };
    assert_eq!((error.bad_work_request(), error.posted()), (Some(index), Some(index)));
    assert!(index > 0, "the second list begins in the last place of the queue: {error}");
    drain(&mut pair, posted);
    Ok(())
}

fn a_full_receive_queue_says_how_far_it_came<Q: QpFlavour>(test_device: &TestDevice) -> Outcome {
    let mut pair = Pair::<Q, AnyCq>::with(test_device, |options| (options.recv_wr, options.cqe) = (16, 512));
    let depth = pair.b.qp.control().capability().max_recv_wr as usize;
    let receives = |from: usize, count| -> Vec<(u64, &[(usize, usize)])> {
        (from..from + count).map(|n| (n as u64, &[(0, 64)][..])).collect()
    };
    let error = pair.b.receive(&receives(0, depth + 1)).unwrap_err();
    assert_eq!(error, PostRecvError::TooManyWorkRequests { limit: depth });
    pair.b.receive(&receives(0, depth - 1)).unwrap();
    let mut posted = depth - 1;
    // Some devices have more room than they report.
    let error = loop {
        assert!(posted < 4 * depth + 16, "{posted} receives are posted, and the queue is still not full");
        match pair.b.receive(&receives(posted, 3)) {
            Ok(()) => posted += 3,
            Err(error) => break error,
        }
    };
    let PostRecvError::NotEnoughResources { index: Some(index), .. } = error else { panic!("{error}") };
    assert!(index < 3, "{error}");
    posted += index;
    for n in 0..posted {
        pair.a.run(Op::SendImm(n as u32), Data::At(0, 4));
        let got = pair.b.received(1)[0];
        assert_eq!((got.wr_id, got.imm_data), (n as u64, Some(n as u32)));
    }
    Ok(())
}

fn receives_with_too_many_pieces_are_refused<Q: QpFlavour>(test_device: &TestDevice) -> Outcome {
    let mut pair = Pair::<Q, AnyCq>::new(test_device);
    let limit = pair.b.qp.control().capability().max_recv_sge as usize;
    let pieces = vec![(0, 1); limit + 1];
    let error = pair.b.receive(&[(0, &pieces[1..]), (1, &pieces)]).unwrap_err();
    let expected = PostRecvError::TooManyScatterGatherEntries { index: 1, given: limit + 1, limit };
    assert_eq!(error, expected);
    assert_untouched(&mut pair);
    Ok(())
}

/// A pair in the reset state accepts no requests, but not every library checks that.
fn a_pair_that_is_not_ready_says_so_or_waits(test_device: &TestDevice) -> Outcome {
    let options = crate::node::NodeOptions::default();
    let mut node =
        crate::node::Node::<BasicQueuePair, AnyCq>::new(&test_device.open(), test_device.port, &options);
    if let Err(error) = node.post(&[(1, SIGNALED, Op::Send, Data::At(0, 8))]) {
        let state = QueuePairState::Reset;
        assert!(
            matches!(error, PostSendError::NotConnected { state: found, .. } if found == state),
            "{error}"
        );
        assert!(error.to_string().starts_with("the queue pair is in Reset: connect it first"), "{error}");
    }
    assert_eq!(node.send_cq.poll(&mut |wc| panic!("{wc:?}")).unwrap(), 0);
    Ok(())
}
