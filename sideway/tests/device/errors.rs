//! Tests of failing requests and their completions.

use sideway::ibverbs::AccessFlags;
use sideway::ibverbs::completion::WorkCompletionStatus as Status;
use sideway::ibverbs::queue_pair::{QueuePairAttribute, QueuePairState, ScatterGatherEntry};

use crate::harness::{Outcome, Suite, TestDevice};
use crate::node::{AnyCq, AnyPair, Data, Memory, Op, Pair, RemoteBuffer, SIGNALED, wait};
use crate::support::flavour::{Completion, CqFlavour, QpFlavour};

pub(crate) fn cases(suite: &mut Suite) {
    each_qp!(suite:
        a_wrong_remote_key_is_a_remote_access_error,
        a_wrong_local_key_is_a_local_error,
        a_receive_that_is_too_short_fails_both_sides,
        a_peer_without_receive_is_not_ready,
        a_peer_that_is_gone_does_not_answer,
        requests_behind_a_failure_are_flushed,
    );
    each_cq!(suite: flushed_receives_keep_their_numbers);
    cases!(suite:
        a_remote_address_outside_of_its_region_is_refused,
        a_region_without_the_remote_permission_is_refused,
        a_pair_without_the_remote_permission_is_refused,
        a_region_that_was_closed_is_refused,
        a_region_of_another_domain_is_refused,
        a_region_without_local_permission_is_not_received_into,
        an_atomic_on_an_odd_address_is_refused,
        a_failure_without_signal_completes_all_the_same,
        a_failed_pair_reports_its_state,
    );
}

/// Posts one request that must fail, and returns its completion.
fn fails<Q: QpFlavour, C: CqFlavour>(pair: &mut Pair<Q, C>, op: Op, data: Data<'_>) -> Completion {
    pair.a.post(&[(77, SIGNALED, op, data)]).unwrap();
    let completion = pair.a.sent(1)[0];
    assert_eq!(completion.wr_id, 77);
    assert_ne!(completion.status, Status::Success, "{completion:?}");
    assert!(completion.status.name().is_some(), "{completion:?}");
    assert!(completion.status.hint().is_some(), "{completion:?}");
    assert_eq!(pair.a.qp.state().unwrap(), QueuePairState::Error, "a failed pair");
    completion
}

fn refused_by_the_peer(pair: &mut AnyPair, op: Op, data: Data<'_>) {
    let status = fails(pair, op, data).status;
    assert_eq!(status, Status::RemoteAccessError);
}

fn a_wrong_remote_key_is_a_remote_access_error<Q: QpFlavour>(test_device: &TestDevice) -> Outcome {
    for op in [Op::Write, Op::Read] {
        let mut pair = Pair::<Q, AnyCq>::new(test_device);
        let right = pair.b.remote(0);
        let wrong = RemoteBuffer { rkey: right.rkey ^ 0x5a, ..right };
        let failed = fails(&mut pair, op(wrong), Data::At(0, 64));
        assert_eq!(failed.status, Status::RemoteAccessError);
        assert_eq!(failed.status.to_string(), "remote access error");
        assert_eq!(pair.b.memory.get(0, 64), [0; 64]);
    }
    Ok(())
}

fn a_wrong_local_key_is_a_local_error<Q: QpFlavour>(test_device: &TestDevice) -> Outcome {
    let mut pair = Pair::<Q, AnyCq>::new(test_device);
    let entry = ScatterGatherEntry::new(pair.a.mr.lkey() ^ 0x5a, pair.a.mr.get_ptr() as u64, 64);
    let target = pair.b.remote(0);
    let failed = fails(&mut pair, Op::Write(target), Data::Entry(entry));
    // SoftRoCE reports an operation error and, since about kernel 6.2, a flushed request.
    let expected =
        [Status::LocalProtectionError, Status::LocalQueuePairOperationError, Status::WorkRequestFlushedError];
    assert!(expected.contains(&failed.status), "{failed:?}");
    Ok(())
}

fn a_remote_address_outside_of_its_region_is_refused(test_device: &TestDevice) -> Outcome {
    let mut pair = AnyPair::new(test_device);
    let end = pair.b.remote(pair.b.mr.region_len() - 8);
    refused_by_the_peer(&mut pair, Op::Write(end), Data::At(0, 9));
    let mut pair = AnyPair::new(test_device);
    let before = RemoteBuffer { addr: pair.b.remote(0).addr - 1, ..pair.b.remote(0) };
    refused_by_the_peer(&mut pair, Op::Read(before), Data::At(0, 9));
    let mut pair = AnyPair::new(test_device);
    let around = RemoteBuffer { addr: u64::MAX - 3, ..pair.b.remote(0) };
    refused_by_the_peer(&mut pair, Op::Write(around), Data::At(0, 9));
    Ok(())
}

fn a_region_without_the_remote_permission_is_refused(test_device: &TestDevice) -> Outcome {
    let all = AccessFlags::LocalWrite
        | AccessFlags::RemoteWrite
        | AccessFlags::RemoteRead
        | AccessFlags::RemoteAtomic;
    for (permission, op) in [
        (AccessFlags::RemoteWrite, Op::Write as fn(RemoteBuffer) -> Op),
        (AccessFlags::RemoteRead, Op::Read),
        (AccessFlags::RemoteAtomic, |at| Op::FetchAdd(at, 1)),
    ] {
        let mut pair = AnyPair::with(test_device, |options| options.region = all - permission);
        let target = pair.b.remote(0);
        refused_by_the_peer(&mut pair, op(target), Data::At(0, 8));
    }
    Ok(())
}

fn a_pair_without_the_remote_permission_is_refused(test_device: &TestDevice) -> Outcome {
    let mut pair =
        AnyPair::with(test_device, |options| options.connect.access_flags = AccessFlags::LocalWrite);
    let target = pair.b.remote(0);
    let status = fails(&mut pair, Op::Write(target), Data::At(0, 8)).status;
    let expected = [Status::RemoteAccessError, Status::RemoteInvalidRequestError];
    assert!(expected.contains(&status), "{status}");
    assert_eq!(pair.b.memory.get(0, 8), [0; 8]);
    Ok(())
}

fn a_region_that_was_closed_is_refused(test_device: &TestDevice) -> Outcome {
    let mut pair = AnyPair::new(test_device);
    let memory = Memory::new(4096);
    let access = AccessFlags::LocalWrite | AccessFlags::RemoteWrite;
    // SAFETY: the memory outlives the region, and no reference to it is made.
    let mr = unsafe { pair.b.pd.reg_mr(memory.start(), 4096, access).unwrap() };
    let target = RemoteBuffer { rkey: mr.rkey(), addr: mr.get_ptr() as u64 };
    pair.a.memory.set(0, &[9; 8]);
    pair.a.run(Op::Write(target), Data::At(0, 8));
    assert_eq!(memory.get(0, 8), [9; 8]);
    mr.close().unwrap();
    pair.a.memory.set(0, &[1; 8]);
    refused_by_the_peer(&mut pair, Op::Write(target), Data::At(0, 8));
    assert_eq!(memory.get(0, 8), [9; 8]);
    Ok(())
}

fn a_region_of_another_domain_is_refused(test_device: &TestDevice) -> Outcome {
    let mut pair = AnyPair::new(test_device);
    let memory = Memory::new(4096);
    let other = pair.b.context.alloc_pd().unwrap();
    let access = AccessFlags::LocalWrite | AccessFlags::RemoteWrite;
    // SAFETY: the memory outlives the region, and no reference to it is made.
    let mr = unsafe { other.reg_mr(memory.start(), 4096, access).unwrap() };
    let target = RemoteBuffer { rkey: mr.rkey(), addr: mr.get_ptr() as u64 };
    refused_by_the_peer(&mut pair, Op::Write(target), Data::At(0, 8));
    Ok(())
}

fn a_region_without_local_permission_is_not_received_into(test_device: &TestDevice) -> Outcome {
    let mut pair = AnyPair::with(test_device, |options| options.region = AccessFlags::RemoteRead);
    pair.b.receive(&[(5, &[(0, 64)])]).unwrap();
    let failed = fails(&mut pair, Op::Send, Data::At(0, 64));
    let expected =
        [Status::RemoteOperationError, Status::RemoteInvalidRequestError, Status::RemoteAccessError];
    assert!(expected.contains(&failed.status), "{failed:?}");
    assert_eq!(pair.b.memory.get(0, 64), [0; 64]);
    Ok(())
}

fn an_atomic_on_an_odd_address_is_refused(test_device: &TestDevice) -> Outcome {
    let mut pair = AnyPair::new(test_device);
    let target = pair.b.remote(4);
    let status = fails(&mut pair, Op::FetchAdd(target, 1), Data::At(0, 8)).status;
    let expected =
        [Status::RemoteInvalidRequestError, Status::RemoteAccessError, Status::RemoteOperationError];
    assert!(expected.contains(&status), "{status}");
    assert_eq!(pair.b.memory.get(0, 16), [0; 16]);
    Ok(())
}

fn a_receive_that_is_too_short_fails_both_sides<Q: QpFlavour>(test_device: &TestDevice) -> Outcome {
    let mut pair = Pair::<Q, AnyCq>::new(test_device);
    pair.a.memory.set(0, &[1; 65]);
    pair.b.receive(&[(5, &[(0, 64)])]).unwrap();
    let failed = fails(&mut pair, Op::Send, Data::At(0, 65));
    let expected = [Status::RemoteInvalidRequestError, Status::RemoteOperationError];
    assert!(expected.contains(&failed.status), "{failed:?}");
    let received = pair.b.received(1)[0];
    assert_eq!(received.wr_id, 5);
    assert_ne!(received.status, Status::Success);
    assert_eq!(pair.b.memory.get(64, 8), [0; 8], "behind the receive");
    Ok(())
}

fn a_peer_without_receive_is_not_ready<Q: QpFlavour>(test_device: &TestDevice) -> Outcome {
    let mut pair = Pair::<Q, AnyCq>::with(test_device, |options| {
        (options.connect.rnr_retry, options.connect.min_rnr_timer) = (0, 1);
    });
    let failed = fails(&mut pair, Op::Send, Data::At(0, 8));
    assert_eq!(failed.status, Status::ResponderNotReadyRetryCounterExceeded);
    Ok(())
}

fn a_peer_that_is_gone_does_not_answer<Q: QpFlavour>(test_device: &TestDevice) -> Outcome {
    let mut pair = Pair::<Q, AnyCq>::with(test_device, |options| {
        (options.connect.timeout, options.connect.retry_cnt) = (10, 1);
    });
    let target = pair.b.remote(0);
    pair.b.modify(QueuePairAttribute::new().setup_state(QueuePairState::Reset)).unwrap();
    let failed = fails(&mut pair, Op::Write(target), Data::At(0, 8));
    assert_eq!(failed.status, Status::TransportRetryCounterExceeded);
    let hint = pair.a.qp.control().hint(failed.status).unwrap();
    let number = pair.b.qp.qp_number();
    let expected = match pair.a.context.is_soft() {
        true => format!(
            "the peer does not acknowledge: this process itself has the peer's number {number:#x}, and can be reached"
        ),
        false => failed.status.hint().unwrap().to_owned(),
    };
    assert!(hint.starts_with(&expected), "{hint}");
    Ok(())
}

fn requests_behind_a_failure_are_flushed<Q: QpFlavour>(test_device: &TestDevice) -> Outcome {
    let mut pair = Pair::<Q, AnyCq>::new(test_device);
    let right = pair.b.remote(0);
    let wrong = RemoteBuffer { rkey: right.rkey ^ 0x5a, ..right };
    let mut requests = vec![(0, SIGNALED, Op::Write(right), Data::At(0, 8))];
    requests.push((1, SIGNALED, Op::Write(wrong), Data::At(0, 8)));
    requests.extend((2..10).map(|n| (n, SIGNALED, Op::Write(right), Data::At(0, 8))));
    pair.a.receive(&[(100, &[(0, 8)]), (101, &[(0, 8)])]).unwrap();
    pair.a.post(&requests).unwrap();
    let found = pair.a.sent(10);
    assert_eq!(found.iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), (0..10).collect::<Vec<_>>());
    assert_eq!((found[0].status, found[1].status), (Status::Success, Status::RemoteAccessError));
    assert!(found[2..].iter().all(|wc| wc.status == Status::WorkRequestFlushedError), "{found:?}");
    let receives = pair.a.received(2);
    assert!(receives.iter().all(|wc| wc.status == Status::WorkRequestFlushedError), "{receives:?}");
    // A request posted now is flushed at once.
    pair.a.post(&[(11, SIGNALED, Op::Write(right), Data::At(0, 8))]).unwrap();
    assert_eq!(pair.a.sent(1)[0].status, Status::WorkRequestFlushedError);
    Ok(())
}

fn flushed_receives_keep_their_numbers<C: CqFlavour>(test_device: &TestDevice) -> Outcome {
    let mut pair = Pair::<sideway::ibverbs::queue_pair::GenericQueuePair, C>::new(test_device);
    let receives: Vec<(u64, &[_])> = (0..20).map(|n| (n + 7, &[(0, 64)][..])).collect();
    pair.b.receive(&receives).unwrap();
    pair.b.modify(QueuePairAttribute::new().setup_state(QueuePairState::Error)).unwrap();
    let found = wait(&mut pair.b.recv_cq, 20);
    assert_eq!(found.iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), (7..27).collect::<Vec<_>>());
    assert!(found.iter().all(|wc| wc.status == Status::WorkRequestFlushedError));
    Ok(())
}

fn a_failure_without_signal_completes_all_the_same(test_device: &TestDevice) -> Outcome {
    let mut pair = AnyPair::new(test_device);
    let wrong = RemoteBuffer { rkey: 0xdead, ..pair.b.remote(0) };
    let none = sideway::ibverbs::queue_pair::WorkRequestFlags::empty();
    pair.a.post(&[(3, none, Op::Write(wrong), Data::At(0, 8))]).unwrap();
    let found = pair.a.sent(1)[0];
    assert_eq!((found.wr_id, found.status), (3, Status::RemoteAccessError));
    Ok(())
}

fn a_failed_pair_reports_its_state(test_device: &TestDevice) -> Outcome {
    let mut pair = AnyPair::new(test_device);
    let wrong = RemoteBuffer { rkey: 0xdead, ..pair.b.remote(0) };
    refused_by_the_peer(&mut pair, Op::Write(wrong), Data::At(0, 8));
    // The pair can be reset, connected and used again.
    for node in [&pair.a, &pair.b] {
        node.modify(QueuePairAttribute::new().setup_state(QueuePairState::Reset)).unwrap();
    }
    let mut pair = AnyPair::connect(pair.a, pair.b, &crate::node::NodeOptions::default().connect);
    pair.a.run(Op::Write(pair.b.remote(0)), Data::At(0, 8));
    Ok(())
}
