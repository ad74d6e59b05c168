//! Tests with many work requests: their numbers come back once and in order, for lists and single
//! requests.

use std::time::{Duration, Instant};

use sideway::ibverbs::completion::WorkCompletionStatus;
use sideway::ibverbs::queue_pair::{BasicQueuePair, PostSendGuard, QueuePair, WorkRequestFlags};

use crate::harness::{Outcome, Suite, TestDevice};
use crate::node::{AnyCq, Data, Op, Pair, SIGNALED, wait};
use crate::support::flavour::{CqFlavour, QpFlavour};

pub(crate) fn cases(suite: &mut Suite) {
    matrix!(suite: every_number_comes_back_once_and_in_order);
    each_qp!(suite:
        a_list_of_many_requests_is_posted_at_once,
        a_list_of_many_receives_is_posted_at_once,
        operations_of_all_kinds_share_a_list,
        a_dropped_list_never_happened,
        a_leaked_list_never_happened,
        an_empty_list_is_nothing,
        a_request_that_was_begun_only_is_nothing,
    );
    suite.add(module_path!(), "a_prepared_list_moves_what_is_there_each_time", "", prepared_lists);
}

/// Polls a few completions at a time, so that the queue is often found empty. This shows if a
/// library loses or repeats a completion.
fn every_number_comes_back_once_and_in_order<Q: QpFlavour, C: CqFlavour>(
    test_device: &TestDevice,
) -> Outcome {
    const COUNT: u64 = 3000;
    const DEPTH: u64 = 16;
    let mut pair = Pair::<Q, C>::with(test_device, |options| options.batch = 2);
    let target = pair.b.remote(0);
    let (mut posted, mut polled, mut polls) = (0, 0, 0usize);
    let deadline = Instant::now() + Duration::from_secs(60);
    while polled < COUNT {
        let room = (DEPTH - (posted - polled)).min(COUNT - posted);
        // Alternates between one request and a list of several.
        let length = room.min(1 + posted % 3);
        if length > 0 {
            let requests: Vec<_> = (posted..posted + length)
                .map(|n| (n * n + 1, SIGNALED, Op::Write(target), Data::At(0, 8)))
                .collect();
            pair.a.post(&requests).unwrap();
            posted += length;
        }
        polls += 1;
        pair.a
            .send_cq
            .poll_up_to(1 + polls % 4, &mut |wc| {
                assert_eq!(wc.wr_id, polled * polled + 1, "after {polled} of {posted}");
                polled += 1;
            })
            .unwrap();
        assert!(Instant::now() < deadline, "{polled} of {posted} have completed");
    }
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(pair.a.send_cq.poll(&mut |wc| panic!("{wc:?} is one too many")).unwrap(), 0);
    Ok(())
}

/// Both ends use prepared lists, for sends and for receives.
fn prepared_lists(test_device: &TestDevice) -> Outcome {
    let Pair { mut a, mut b } = Pair::<BasicQueuePair, AnyCq>::new(test_device);
    let (from, to) = ([a.entry(0, 8), a.entry(64, 8)], b.entry(256, 8));
    let target = b.remote(0);
    let mut guard = a.qp.start_post_send();
    let write = guard.construct_wr(7, WorkRequestFlags::empty()).setup_write(target.rkey, target.addr);
    // SAFETY: the memory lives as long as the pair does, and is written to only between two rounds.
    unsafe { write.setup_sge_list(&from[..1]) };
    // SAFETY: the memory lives as long as the pair does, and is written to only between two rounds.
    unsafe { guard.construct_wr(8, SIGNALED).setup_send().setup_sge_list(&from[1..]) };
    // SAFETY: the memory lives as long as the pair does, and is written to only between two rounds.
    let mut sends = unsafe { guard.prepare().unwrap() };
    let mut guard = b.qp.start_post_recv();
    // SAFETY: the memory lives as long as the pair does, and is read only between two rounds.
    unsafe { guard.construct_wr(9).setup_sge_list(&[to]) };
    // SAFETY: the memory lives as long as the pair does, and is read only between two rounds.
    let mut receives = unsafe { guard.prepare().unwrap() };
    for round in 1..=20u64 {
        a.memory.set(0, &round.to_ne_bytes());
        a.memory.set(64, &(1000 + round).to_ne_bytes());
        receives.post().unwrap();
        sends.post().unwrap();
        let sent = wait(&mut a.send_cq, 1)[0];
        assert_eq!((sent.wr_id, sent.status), (8, WorkCompletionStatus::Success));
        let received = wait(&mut b.recv_cq, 1)[0];
        assert_eq!((received.wr_id, received.byte_len), (9, Some(8)));
        assert_eq!((b.memory.get_u64(0), b.memory.get_u64(256)), (round, 1000 + round));
    }
    Ok(())
}

fn a_list_of_many_requests_is_posted_at_once<Q: QpFlavour>(test_device: &TestDevice) -> Outcome {
    let mut pair = Pair::<Q, AnyCq>::with(test_device, |options| (options.send_wr, options.cqe) = (256, 512));
    let target = pair.b.remote(0);
    for round in 0..4 {
        let requests: Vec<_> =
            (0..200).map(|n| (round * 1000 + n, SIGNALED, Op::Write(target), Data::At(0, 16))).collect();
        pair.a.post(&requests).unwrap();
        let found: Vec<_> = pair.a.sent(200).iter().map(|wc| wc.wr_id).collect();
        assert_eq!(found, (round * 1000..round * 1000 + 200).collect::<Vec<_>>());
    }
    Ok(())
}

fn a_list_of_many_receives_is_posted_at_once<Q: QpFlavour>(test_device: &TestDevice) -> Outcome {
    let mut pair = Pair::<Q, AnyCq>::with(test_device, |options| options.recv_wr = 64);
    let pieces: Vec<_> = (0..64).map(|n| [(n * 64, 64)]).collect();
    let receives: Vec<(u64, &[_])> =
        pieces.iter().enumerate().map(|(n, list)| (n as u64, &list[..])).collect();
    pair.b.receive(&receives).unwrap();
    for n in 0..64u64 {
        pair.a.memory.set(0, &n.to_ne_bytes());
        pair.a.run(Op::Send, Data::At(0, 8));
    }
    let found: Vec<_> = pair.b.received(64).iter().map(|wc| wc.wr_id).collect();
    assert_eq!(found, (0..64).collect::<Vec<_>>());
    assert!((0..64).all(|n| pair.b.memory.get_u64(n * 64) == n as u64));
    Ok(())
}

fn operations_of_all_kinds_share_a_list<Q: QpFlavour>(test_device: &TestDevice) -> Outcome {
    let mut pair = Pair::<Q, AnyCq>::new(test_device);
    pair.b.receive(&[(1, &[(0, 64)]), (2, &[(64, 64)]), (3, &[])]).unwrap();
    pair.a.memory.set(0, &[7; 64]);
    pair.b.memory.set(1024, &5u64.to_ne_bytes());
    let (word, bytes) = (pair.b.remote(1024), pair.b.remote(2048));
    pair.a
        .post(&[
            (1, SIGNALED, Op::Send, Data::At(0, 16)),
            (2, SIGNALED, Op::Write(bytes), Data::At(0, 32)),
            (3, SIGNALED, Op::FetchAdd(word, 10), Data::At(512, 8)),
            (4, SIGNALED, Op::CompareSwap(word, 15, 99), Data::At(520, 8)),
            (5, SIGNALED, Op::SendImm(3), Data::At(4, 8)),
            (6, SIGNALED, Op::Read(bytes), Data::At(1024, 32)),
            (7, SIGNALED, Op::WriteImm(bytes, 4), Data::At(0, 64)),
        ])
        .unwrap();
    assert_eq!(pair.a.sent(7).iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6, 7]);
    let received: Vec<_> = pair.b.received(3).iter().map(|wc| (wc.byte_len, wc.imm_data)).collect();
    assert_eq!(received, [(Some(16), None), (Some(8), Some(3)), (Some(64), Some(4))]);
    assert_eq!((pair.a.memory.get_u64(512), pair.a.memory.get_u64(520)), (5, 15));
    assert_eq!(pair.b.memory.get_u64(1024), 99);
    assert_eq!(pair.a.memory.get(1024, 32), [7; 32]);
    Ok(())
}

fn a_dropped_list_never_happened<Q: QpFlavour>(test_device: &TestDevice) -> Outcome {
    given_up::<Q>(test_device, false)
}

fn a_leaked_list_never_happened<Q: QpFlavour>(test_device: &TestDevice) -> Outcome {
    given_up::<Q>(test_device, true)
}

/// A list that is not posted uses no place in the queue and has no effect.
fn given_up<Q: QpFlavour>(test_device: &TestDevice, leak: bool) -> Outcome {
    let mut pair = Pair::<Q, AnyCq>::new(test_device);
    for _ in 0..50 {
        let mut guard = pair.a.qp.start_post_send();
        for n in 0..8 {
            guard.construct_wr(1000 + n, SIGNALED).setup_send_imm(1);
        }
        if leak { std::mem::forget(guard) } else { drop(guard) }
    }
    pair.b.receive(&[(1, &[(0, 64)])]).unwrap();
    pair.a.run(Op::SendImm(2), Data::At(0, 3));
    assert_eq!(pair.b.received(1)[0].imm_data, Some(2));
    // This also holds if the pair is dropped with it.
    let mut guard = pair.a.qp.start_post_send();
    guard.construct_wr(1, SIGNALED).setup_send();
    if leak {
        std::mem::forget(guard)
    } else {
        drop(guard)
    }
    Ok(())
}

fn an_empty_list_is_nothing<Q: QpFlavour>(test_device: &TestDevice) -> Outcome {
    let mut pair = Pair::<Q, AnyCq>::new(test_device);
    for _ in 0..10 {
        pair.a.qp.start_post_send().post().unwrap();
        pair.a.qp.start_post_recv().post().unwrap();
    }
    pair.a.run(Op::Write(pair.b.remote(0)), Data::At(0, 3));
    Ok(())
}

fn a_request_that_was_begun_only_is_nothing<Q: QpFlavour>(test_device: &TestDevice) -> Outcome {
    let mut pair = Pair::<Q, AnyCq>::new(test_device);
    let target = pair.b.remote(0);
    let mut guard = pair.a.qp.start_post_send();
    drop(guard.construct_wr(1, SIGNALED));
    guard.construct_wr(2, SIGNALED).setup_write(target.rkey, target.addr);
    drop(guard.construct_wr(3, SIGNALED));
    guard.post().unwrap();
    assert_eq!(pair.a.sent(1)[0].wr_id, 2);
    Ok(())
}
