//! Tests of one connection used by several threads.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use sideway::ibverbs::AccessFlags;
use sideway::ibverbs::completion::{GenericCompletionQueue, WorkCompletionStatus};
use sideway::ibverbs::queue_pair::{
    GenericQueuePair, PostSendGuard, QueuePair, QueuePairAttribute, QueuePairAttributeMask, QueuePairState,
    SendQueue,
};

use crate::harness::{Outcome, Suite, TestDevice};
use crate::node::{AnyCq, AnyPair, Data, Memory, Op, Pair, SIGNALED, next, wait};
use crate::support::flavour::QpFlavour;

pub(crate) fn cases(suite: &mut Suite) {
    cases!(suite: a_workers_context_goes_to_another_thread, contexts_are_used_by_many_threads);
    each_qp!(suite: both_halves_are_driven_from_two_threads, a_pair_is_controlled_from_a_third_thread);
}

/// The context of a worker thread, as in a program: without lifetime parameters.
struct WorkerContext {
    queue_pairs: Vec<GenericQueuePair>,
    send_completion_queue: GenericCompletionQueue,
    recv_completion_queue: Option<GenericCompletionQueue>,
}

fn a_workers_context_goes_to_another_thread(test_device: &TestDevice) -> Outcome {
    let AnyPair { a, mut b } = AnyPair::new(test_device);
    b.receive(&[(1, &[(0, 64)])]).unwrap();
    let worker = WorkerContext {
        queue_pairs: vec![a.qp],
        send_completion_queue: a.send_cq,
        recv_completion_queue: Some(a.recv_cq),
    };
    let worker = thread::spawn(move || {
        let mut worker = worker;
        let mut guard = worker.queue_pairs[0].start_post_send();
        guard.construct_wr(233, SIGNALED).setup_send_imm(5);
        guard.post().unwrap();
        assert_eq!(wait(&mut worker.send_completion_queue, 1)[0].wr_id, 233);
        worker
    })
    .join()
    .unwrap();
    assert_eq!(b.received(1)[0].imm_data, Some(5));
    drop(worker.recv_completion_queue);
    drop(worker.queue_pairs);
    Ok(())
}

fn contexts_are_used_by_many_threads(test_device: &TestDevice) -> Outcome {
    let context = test_device.open();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..10 {
                    let pd = context.alloc_pd().unwrap();
                    let memory = Memory::new(4096);
                    // SAFETY: the memory outlives the region, and no reference to it is made.
                    let mr = unsafe { pd.reg_mr(memory.start(), 4096, AccessFlags::LocalWrite).unwrap() };
                    let cq = context.create_cq_builder().setup_cqe(16).build_generic().unwrap();
                    let mut builder = pd.create_qp_builder();
                    let qp = builder.setup_send_cq(&cq).setup_recv_cq(&cq).build_generic().unwrap();
                    drop((mr, cq, qp));
                }
            });
        }
    });
    Ok(())
}

const COUNT: u32 = 500;

fn both_halves_are_driven_from_two_threads<Q: QpFlavour + Send>(test_device: &TestDevice) -> Outcome
where
    Q::SendQueue: Send,
{
    let mut pair = Pair::<Q, AnyCq>::new(test_device);
    let receives: Vec<(u64, &[_])> = (0..16).map(|n| (n, &[(0, 64)][..])).collect();
    pair.a.receive(&receives).unwrap();
    pair.b.receive(&receives).unwrap();
    let (lkey, addr) = (pair.a.mr.lkey(), pair.a.mr.get_ptr() as u64);
    let (send, receive) = pair.a.qp.split();
    let (send_cq, recv_cq) = (&mut pair.a.send_cq, &mut pair.a.recv_cq);
    let b = &mut pair.b;
    thread::scope(|scope| {
        scope.spawn(move || {
            for n in 0..COUNT {
                let mut guard = send.start_post_send();
                guard.construct_wr(n.into(), SIGNALED).setup_send_imm(n);
                guard.post().unwrap();
                assert_eq!(next(send_cq).wr_id, u64::from(n));
            }
        });
        scope.spawn(move || {
            for n in 0..COUNT {
                assert_eq!(next(recv_cq).imm_data, Some(n));
                let mut guard = receive.start_post_recv();
                // SAFETY: the node's memory outlives its pair, and no reference to it is made.
                unsafe { guard.construct_wr(n.into()).setup_sge(lkey, addr, 64) };
                guard.post().unwrap();
            }
        });
        // The peer answers each message with another one.
        for n in 0..COUNT {
            assert_eq!(next(&mut b.recv_cq).imm_data, Some(n));
            b.receive(&[(n.into(), &[(0, 64)])]).unwrap();
            b.run(Op::SendImm(n), Data::None);
        }
    });
    Ok(())
}

fn a_pair_is_controlled_from_a_third_thread<Q: QpFlavour + Send>(test_device: &TestDevice) -> Outcome
where
    Q::SendQueue: Send,
{
    let mut pair = Pair::<Q, AnyCq>::with(test_device, |options| options.cqe = 512);
    let control = pair.a.qp.control().clone();
    let target = pair.b.remote(0);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Relaxed) {
                assert_eq!(control.state().unwrap(), QueuePairState::ReadyToSend);
                let (attr, _) = control.query(QueuePairAttributeMask::MinResponderNotReadyTimer).unwrap();
                assert!(attr.min_rnr_timer().is_some());
                thread::yield_now();
            }
        });
        for n in 0..200 {
            pair.a.post(&[(n, SIGNALED, Op::Write(target), Data::At(0, 64))]).unwrap();
            assert_eq!(pair.a.sent(1)[0].wr_id, n);
        }
        stop.store(true, Relaxed);
    });
    // Another thread moves the pair to the error state, and both halves notice.
    let control = pair.a.qp.control().clone();
    pair.a.receive(&[(1, &[(0, 64)])]).unwrap();
    thread::spawn(move || {
        // SAFETY: nobody posts until this thread has been joined, and no list is open.
        unsafe { control.modify(QueuePairAttribute::new().setup_state(QueuePairState::Error)) }.unwrap()
    })
    .join()
    .unwrap();
    assert_eq!(pair.a.received(1)[0].status, WorkCompletionStatus::WorkRequestFlushedError);
    pair.a.post(&[(5, SIGNALED, Op::Write(target), Data::At(0, 64))]).unwrap();
    assert_eq!(pair.a.sent(1)[0].status, WorkCompletionStatus::WorkRequestFlushedError);
    Ok(())
}
