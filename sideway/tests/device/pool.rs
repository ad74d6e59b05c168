//! Pool tests: data in slices arrives, and the slices come back. No test here has any unsafe code.

use std::time::Instant;

use sideway::ibverbs::AccessFlags;
use sideway::ibverbs::completion::WorkCompletionStatus;
use sideway::ibverbs::queue_pair::{
    BasicQueuePair, GenericQueuePair, PostRecvError, PostSendError, PostSendGuard, QueuePair,
    QueuePairAttribute, QueuePairState,
};
use sideway::memory::{BufferKind, Pool, PoolBuilder, PoolRequestError, Returned, Slice};

use crate::harness::{Outcome, Suite, TestDevice};
use crate::node::{AnyCq, Node, PATIENCE, Pair, SIGNALED, next, pattern};
use crate::support::flavour::{Completion, CqFlavour, QpFlavour};

pub(crate) fn cases(suite: &mut Suite) {
    matrix!(suite:
        a_slice_sent_arrives_in_a_slice,
    );
    each_qp!(suite:
        every_operation_moves_slices,
        a_flush_gives_every_slice_back,
        single_requests_move_slices,
        a_queue_pair_that_is_reset_is_squeezed_out_of_the_pool,
    );
    cases!(suite:
        several_slices_are_one_message,
        a_full_queue_gives_back_what_it_did_not_take,
        a_write_is_waited_for_without_a_completion,
        a_shared_receive_queue_takes_slices,
        every_kind_of_memory_is_sliced,
        pools_come_and_go_with_messages_under_way,
    );
}

fn builder<Q: QpFlavour, C: CqFlavour>(node: &Node<Q, C>) -> PoolBuilder {
    let all = AccessFlags::LocalWrite
        | AccessFlags::RemoteWrite
        | AccessFlags::RemoteRead
        | AccessFlags::RemoteAtomic;
    let mut builder = node.pd.create_pool_builder();
    builder.setup_access(all);
    builder
}

/// A pool of `count` slices of `size` bytes.
fn pool<Q: QpFlavour, C: CqFlavour>(node: &Node<Q, C>, size: usize, count: usize) -> Pool {
    builder(node).setup_slices(size, count).build().unwrap()
}

/// A slice with these bytes.
fn filled(pool: &Pool, bytes: &[u8]) -> Slice {
    let mut slice = pool.take_len(bytes.len()).unwrap();
    slice.copy_from_slice(0, bytes).unwrap();
    slice
}

fn bytes(slice: &Slice, len: usize) -> Vec<u8> {
    let mut found = vec![0; len];
    slice.copy_to_slice(0, &mut found).unwrap();
    found
}

fn receive<Q: QpFlavour, C: CqFlavour>(
    node: &mut Node<Q, C>,
    pool: &Pool,
    wr_ids: std::ops::Range<u64>,
) -> Result<(), PostRecvError> {
    let mut list = pool.attach_recv(node.qp.start_post_recv()).unwrap();
    for wr_id in wr_ids {
        list.construct_wr(wr_id).setup_slice(pool.take().unwrap());
    }
    list.post()
}

/// Waits for the next completion, and reclaims its slices.
fn reclaim<C: CqFlavour>(cq: &mut C, pool: &Pool) -> (Completion, Returned) {
    let wc = next(cq);
    (wc, pool.reclaim(&wc).expect("it was posted with slices of this pool"))
}

/// As `reclaim`, for a completion that must be successful.
fn succeed<C: CqFlavour>(cq: &mut C, pool: &Pool) -> Returned {
    let (wc, returned) = reclaim(cq, pool);
    assert_eq!(wc.status, WorkCompletionStatus::Success);
    returned
}

fn single_requests_move_slices<Q: QpFlavour>(test_device: &TestDevice) -> Outcome {
    let Pair { mut a, mut b } = Pair::<Q, AnyCq>::new(test_device);
    let (ours, theirs) = (pool(&a, 64, 4), pool(&b, 64, 4));
    theirs.recv(&mut b.qp, 1, theirs.take().unwrap()).unwrap();
    ours.send(&mut a.qp, 2, filled(&ours, b"sent")).unwrap();
    assert_eq!(succeed(&mut a.send_cq, &ours).wr_id, 2);
    let received = succeed(&mut b.recv_cq, &theirs);
    assert_eq!((received.wr_id, received.byte_len), (1, Some(4)));
    assert_eq!(bytes(&received.slice, 4), b"sent");

    let target = theirs.take().unwrap();
    let memory = theirs.remote();
    let place = memory.at(target.addr() - memory.addr(), 7).unwrap();
    ours.write(&mut a.qp, 3, filled(&ours, b"written"), place).unwrap();
    assert_eq!(succeed(&mut a.send_cq, &ours).wr_id, 3);
    assert_eq!(bytes(&target, 7), b"written");
    ours.read(&mut a.qp, 4, ours.take_len(7).unwrap(), place).unwrap();
    let read = succeed(&mut a.send_cq, &ours);
    assert_eq!((read.wr_id, bytes(&read.slice, 7)), (4, b"written".to_vec()));
    drop(read);

    // What is refused comes back to its pool.
    let longer = ours.take_len(8).unwrap();
    let error = ours.write(&mut a.qp, 5, longer, place).unwrap_err();
    assert!(matches!(error, PoolRequestError::OtherLength { slice: 8, place: 7 }), "{error}");
    let error = ours.send(&mut a.qp, 6, filled(&theirs, b"foreign")).unwrap_err();
    let PoolRequestError::Send(PostSendError::ForeignSlice { index: 0 }) = error else { panic!("{error}") };
    drop((target, received));
    assert_eq!((ours.free(), theirs.free()), (4, 4));
    Ok(())
}

fn a_slice_sent_arrives_in_a_slice<Q: QpFlavour, C: CqFlavour>(test_device: &TestDevice) -> Outcome {
    const ROUNDS: u64 = 40;
    let Pair { mut a, mut b } = Pair::<Q, C>::new(test_device);
    let (ours, theirs) = (pool(&a, 5000, 4), pool(&b, 5000, 4));
    receive(&mut b, &theirs, 0..4).unwrap();
    for n in 0..ROUNDS {
        // Empty, short and long messages.
        let message = pattern(n as u8, (n as usize * 129) % 5001);
        let mut list = ours.attach(a.qp.start_post_send()).unwrap();
        list.construct_wr(1000 + n, SIGNALED).setup_send().setup_slice(filled(&ours, &message));
        list.post().unwrap();
        let sent = succeed(&mut a.send_cq, &ours);
        assert_eq!((sent.wr_id, sent.byte_len, sent.slice.len()), (1000 + n, None, message.len()));
        let Returned { wr_id, byte_len, slice, rest } = succeed(&mut b.recv_cq, &theirs);
        assert_eq!((wr_id, byte_len, rest.count()), (n, Some(message.len() as u32), 0));
        assert_eq!(bytes(&slice, message.len()), message);
        // Posts the received slice again.
        let mut list = theirs.attach_recv(b.qp.start_post_recv()).unwrap();
        list.construct_wr(n + 4).setup_slice(slice);
        list.post().unwrap();
    }
    assert_eq!((ours.free(), theirs.free(), theirs.in_flight()), (4, 0, 4));
    Ok(())
}

fn every_operation_moves_slices<Q: QpFlavour>(test_device: &TestDevice) -> Outcome {
    let Pair { mut a, mut b } = Pair::<Q, AnyCq>::new(test_device);
    let (ours, theirs) = (pool(&a, 64, 4), pool(&b, 64, 4));
    let mut target = theirs.take().unwrap();
    target.write(8, 40_u64).unwrap();
    let (rkey, addr) = (theirs.rkey(), target.addr());
    let memory = theirs.remote();
    let place = memory.at(addr - memory.addr(), 7).unwrap();
    receive(&mut b, &theirs, 5..7).unwrap();
    macro_rules! run {
        ($slice:expr, |$request:ident| $operation:expr) => {{
            let mut list = ours.attach(a.qp.start_post_send()).unwrap();
            let slice = $slice;
            let $request = list.construct_wr(9, SIGNALED);
            $operation.setup_slice(slice);
            list.post().unwrap();
            let returned = succeed(&mut a.send_cq, &ours);
            assert_eq!(returned.wr_id, 9);
            returned.slice
        }};
    }
    drop(run!(filled(&ours, b"written"), |request| request.setup_write_at(place)));
    assert_eq!(bytes(&target, 7), b"written");
    drop(run!(filled(&ours, b"imm"), |request| request.setup_write_imm(rkey, addr + 3, 77)));
    let wc = next(&mut b.recv_cq);
    let returned = theirs.reclaim(&wc).unwrap();
    assert_eq!((returned.wr_id, wc.imm_data, bytes(&target, 7)), (5, Some(77), b"wriimmn".to_vec()));
    drop(returned);
    drop(run!(filled(&ours, b"sent"), |request| request.setup_send_imm(78)));
    let (wc, returned) = reclaim(&mut b.recv_cq, &theirs);
    assert_eq!((returned.wr_id, returned.byte_len, wc.imm_data), (6, Some(4), Some(78)));
    assert_eq!(bytes(&returned.slice, 4), b"sent");
    let read = run!(ours.take_len(7).unwrap(), |request| request.setup_read_at(place));
    assert_eq!(bytes(&read, 7), b"wriimmn");
    let add = run!(ours.take_len(8).unwrap(), |request| request.setup_atomic_fetch_add(rkey, addr + 8, 2));
    assert_eq!((add.read::<u64>(0).unwrap(), target.read::<u64>(8).unwrap()), (40, 42));
    let swap = run!(ours.take_len(8).unwrap(), |request| {
        request.setup_atomic_compare_swap(rkey, addr + 8, 42, 7)
    });
    assert_eq!((swap.read::<u64>(0).unwrap(), target.read::<u64>(8).unwrap()), (42, 7));
    drop((read, add, swap, returned, target));
    assert_eq!((ours.free(), theirs.free()), (4, 4));
    Ok(())
}

fn several_slices_are_one_message(test_device: &TestDevice) -> Outcome {
    // Some devices' extended pairs do not support these options.
    let Pair { mut a, mut b } =
        Pair::<BasicQueuePair, AnyCq>::with(test_device, |o| (o.send_sge, o.recv_sge) = (3, 2));
    let (ours, theirs) = (pool(&a, 64, 2), pool(&b, 8, 2));
    let (header, body) = filled(&ours, b"header,body").split_at(7).unwrap();
    let (body, tail) = body.split_at(2).unwrap();
    let mut list = theirs.attach_recv(b.qp.start_post_recv()).unwrap();
    list.construct_wr(1).setup_slices([theirs.take().unwrap(), theirs.take().unwrap()]);
    list.post().unwrap();
    let mut list = ours.attach(a.qp.start_post_send()).unwrap();
    list.construct_wr(2, SIGNALED).setup_send().setup_slices([body, header, tail]);
    list.post().unwrap();
    let Returned { wr_id, slice, rest, .. } = succeed(&mut a.send_cq, &ours);
    let lens: Vec<_> = std::iter::once(slice).chain(rest).map(|slice| slice.len()).collect();
    assert_eq!((wr_id, lens, ours.free()), (2, vec![2, 7, 2], 2));
    let Returned { wr_id, byte_len, slice, rest } = succeed(&mut b.recv_cq, &theirs);
    assert_eq!((wr_id, byte_len), (1, Some(11)));
    let rest: Vec<_> = rest.map(|slice| bytes(&slice, 3)).collect();
    assert_eq!((bytes(&slice, 8), rest), (b"boheader".to_vec(), vec![b",dy".to_vec()]));
    Ok(())
}

fn a_flush_gives_every_slice_back<Q: QpFlavour>(test_device: &TestDevice) -> Outcome {
    let Pair { mut a, b: _b } = Pair::<Q, AnyCq>::new(test_device);
    let pool = pool(&a, 64, 8);
    receive(&mut a, &pool, 0..3).unwrap();
    a.modify(&flushing()).unwrap();
    let mut list = pool.attach(a.qp.start_post_send()).unwrap();
    for n in 3..5 {
        list.construct_wr(n, SIGNALED).setup_send().setup_slice(pool.take().unwrap());
    }
    let sent = match list.post() {
        Ok(()) => 2,
        // Some libraries reject requests in this state.
        Err(PostSendError::InvalidWorkRequest { .. }) => 0,
        Err(error) => panic!("{error}"),
    };
    for n in 0..3 + sent {
        let cq = if n < 3 { &mut a.recv_cq } else { &mut a.send_cq };
        let (wc, returned) = reclaim(cq, &pool);
        assert_eq!(wc.status, WorkCompletionStatus::WorkRequestFlushedError);
        assert_eq!((returned.wr_id, returned.byte_len), (n, None));
    }
    assert_eq!((pool.free(), pool.in_flight()), (8, 0));
    Ok(())
}

fn flushing() -> QueuePairAttribute {
    let mut attr = QueuePairAttribute::new();
    attr.setup_state(QueuePairState::Error);
    attr
}

fn a_queue_pair_that_is_reset_is_squeezed_out_of_the_pool<Q: QpFlavour>(test_device: &TestDevice) -> Outcome {
    let Pair { mut a, b: _b } = Pair::<Q, AnyCq>::new(test_device);
    let pool = pool(&a, 64, 8);
    receive(&mut a, &pool, 0..5).unwrap();
    let Node { qp, .. } = a;
    drop(qp);
    assert_eq!((pool.free(), pool.in_flight()), (3, 5));
    assert_eq!((pool.abandon(|wr_id| wr_id >= 2), pool.abandon(|_| true)), (3, 2));
    assert_eq!((pool.free(), pool.in_flight()), (8, 0));
    Ok(())
}

fn a_full_queue_gives_back_what_it_did_not_take(test_device: &TestDevice) -> Outcome {
    let Pair { a: _a, mut b } = Pair::<GenericQueuePair, AnyCq>::new(test_device);
    // Some devices accept more than they report.
    let slices = 4 * b.qp.control().capability().max_recv_wr as usize + 16;
    let pool = pool(&b, 64, slices);
    let mut posted = 0;
    let error = loop {
        assert!(pool.free() >= 3, "{posted} receives are posted, and the queue is still not full");
        match receive(&mut b, &pool, 0..3) {
            Ok(()) => posted += 3,
            Err(error) => break error,
        }
    };
    let PostRecvError::NotEnoughResources { index: Some(index), .. } = error else { panic!("{error}") };
    posted += index;
    assert_eq!((pool.free(), pool.in_flight()), (slices - posted, posted));
    Ok(())
}

fn a_write_is_waited_for_without_a_completion(test_device: &TestDevice) -> Outcome {
    let Pair { mut a, b } = Pair::<GenericQueuePair, AnyCq>::new(test_device);
    let (ours, theirs) = (pool(&a, 1024, 1), pool(&b, 1024, 1));
    let target = theirs.take().unwrap();
    let mut message = pattern(3, 1024);
    message[1016..].copy_from_slice(&u64::MAX.to_ne_bytes());
    let mut list = ours.attach(a.qp.start_post_send()).unwrap();
    list.construct_wr(1, SIGNALED)
        .setup_write(theirs.rkey(), target.addr())
        .setup_slice(filled(&ours, &message));
    list.post().unwrap();
    let deadline = Instant::now() + PATIENCE;
    while target.read::<u64>(1016).unwrap() != u64::MAX {
        assert!(Instant::now() < deadline, "the write does not come");
        // A device in this process may make progress only when it is polled.
        if a.send_cq.poll(&mut |wc| drop(ours.reclaim(&wc).unwrap())).unwrap() == 0 {
            std::thread::yield_now();
        }
    }
    assert_eq!(bytes(&target, 1024), message);
    Ok(())
}

fn a_shared_receive_queue_takes_slices(test_device: &TestDevice) -> Outcome {
    let Pair { a: _a, b } = Pair::<GenericQueuePair, AnyCq>::new(test_device);
    let mut srq = b.pd.create_srq_builder().setup_max_wr(4).build().unwrap();
    let pool = pool(&b, 64, 6);
    let mut post = |count: u64| {
        let mut list = pool.attach_recv(srq.start_post_recv()).unwrap();
        for wr_id in 0..count {
            list.construct_wr(wr_id).setup_slice(pool.take().unwrap());
        }
        list.post()
    };
    post(4).unwrap();
    assert_eq!((pool.free(), pool.in_flight()), (2, 4));
    // An empty list has no effect.
    post(0).unwrap();
    drop(srq);
    assert_eq!((pool.abandon(|_| true), pool.free()), (4, 6));
    Ok(())
}

fn every_kind_of_memory_is_sliced(test_device: &TestDevice) -> Outcome {
    let Pair { mut a, mut b } = Pair::<GenericQueuePair, AnyCq>::new(test_device);
    for kind in [BufferKind::Private, BufferKind::Shared, BufferKind::HUGE_2_MIB] {
        let build = |node: &Node<_, _>| builder(node).setup_slices(300, 3).setup_kind(kind).build();
        let pools = (build(&a), build(&b));
        let (Ok(ours), Ok(theirs)) = pools else {
            assert_eq!(kind, BufferKind::HUGE_2_MIB, "{pools:?}");
            continue;
        };
        assert_eq!(theirs.memory().buffer().kind(), kind);
        receive(&mut b, &theirs, 0..1).unwrap();
        let message = pattern(9, 300);
        let mut list = ours.attach(a.qp.start_post_send()).unwrap();
        list.construct_wr(1, SIGNALED).setup_send().setup_slice(filled(&ours, &message));
        list.post().unwrap();
        succeed(&mut a.send_cq, &ours);
        assert_eq!(bytes(&succeed(&mut b.recv_cq, &theirs).slice, 300), message, "{kind:?}");
    }
    Ok(())
}

/// A pool is dropped while a peer sends into it: the device rejects the messages, with no other
/// effect.
fn pools_come_and_go_with_messages_under_way(test_device: &TestDevice) -> Outcome {
    for n in 0..10 {
        let Pair { mut a, mut b } = Pair::<GenericQueuePair, AnyCq>::new(test_device);
        let (ours, theirs) = (pool(&a, 4096, 8), pool(&b, 4096, 8));
        receive(&mut b, &theirs, 0..8).unwrap();
        let mut list = ours.attach(a.qp.start_post_send()).unwrap();
        for wr_id in 0..8 {
            list.construct_wr(wr_id, SIGNALED).setup_send().setup_slice(ours.take().unwrap());
        }
        list.post().unwrap();
        match n % 2 {
            0 => drop(theirs),
            _ => drop(ours),
        }
        let deadline = Instant::now() + PATIENCE;
        let mut came = 0;
        while came < 8 {
            came += a.send_cq.poll(&mut |_| {}).unwrap();
            assert!(Instant::now() < deadline, "every request ends");
            std::thread::yield_now();
        }
    }
    Ok(())
}
