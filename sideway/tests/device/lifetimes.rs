//! Lifetime tests: handles are dropped in every order, with and without outstanding work.

use std::any::Any;

use sideway::ibverbs::completion::{CompletionQueue, GenericCompletionQueue};
use sideway::ibverbs::queue_pair::{GenericQueuePair, QueuePair, QueuePairState, SendQueue};

use crate::harness::{Outcome, Suite, TestDevice};
use crate::node::{AnyPair, Data, Memory, Node, NodeOptions, Op, SIGNALED};
use crate::support::flavour::CqFlavour;
use crate::support::permutations::permutations;

pub(crate) fn cases(suite: &mut Suite) {
    cases!(suite:
        handles_go_in_every_order,
        a_pair_goes_with_work_outstanding,
        a_queue_goes_before_its_pair,
        halves_outlive_everything_else,
        everything_is_made_again_and_again,
    );
}

type AnyNode = Node<GenericQueuePair, GenericCompletionQueue>;

fn handles_go_in_every_order(test_device: &TestDevice) -> Outcome {
    for order in permutations(5, 1) {
        let AnyNode { qp, send_cq, recv_cq, mr, pd, context, path: _, memory } =
            AnyNode::new(&test_device.open(), test_device.port, &NodeOptions::default());
        // Moved, so that the memory outlives the region in every order.
        let memory: Memory = memory;
        drop(recv_cq);
        let mut handles: [Option<Box<dyn Any>>; 5] = [
            Some(Box::new(context)),
            Some(Box::new(pd)),
            Some(Box::new(mr)),
            Some(Box::new(send_cq)),
            Some(Box::new(qp)),
        ];
        for index in order {
            handles[index] = None;
        }
        drop(memory);
    }
    Ok(())
}

fn a_pair_goes_with_work_outstanding(test_device: &TestDevice) -> Outcome {
    let mut pair = AnyPair::new(test_device);
    let target = pair.b.remote(0);
    pair.a.receive(&[(1, &[(0, 64)]), (2, &[(64, 64)])]).unwrap();
    let requests: Vec<_> = (0..20).map(|n| (n, SIGNALED, Op::Write(target), Data::At(0, 4096))).collect();
    pair.a.post(&requests).unwrap();
    let AnyNode { qp, mut send_cq, .. } = pair.a;
    drop(qp);
    // Only requests that had completed may appear.
    send_cq.poll(&mut |wc| assert!(wc.wr_id < 20)).unwrap();
    Ok(())
}

fn a_queue_goes_before_its_pair(test_device: &TestDevice) -> Outcome {
    let pair = AnyPair::new(test_device);
    let mut a = pair.a;
    drop((a.send_cq, a.recv_cq));
    // The queues live as long as the pair needs them.
    let mut guard = a.qp.start_post_send();
    let target = pair.b.remote(0);
    use sideway::ibverbs::queue_pair::PostSendGuard;
    guard.construct_wr(1, SIGNALED).setup_write(target.rkey, target.addr);
    guard.post().unwrap();
    assert_eq!(a.qp.state().unwrap(), QueuePairState::ReadyToSend);
    Ok(())
}

fn halves_outlive_everything_else(test_device: &TestDevice) -> Outcome {
    let pair = AnyPair::new(test_device);
    let AnyNode { qp, send_cq, mr, pd, context, memory, .. } = pair.a;
    let (send, receive) = qp.into_split();
    drop((send_cq, mr, pd, context));
    let control = receive.control().clone();
    drop(receive);
    assert_eq!(send.control().state().unwrap(), QueuePairState::ReadyToSend);
    drop(send);
    assert_eq!(control.state().unwrap(), QueuePairState::ReadyToSend);
    drop((control, memory));
    Ok(())
}

/// Leaked objects would exhaust some limit.
fn everything_is_made_again_and_again(test_device: &TestDevice) -> Outcome {
    for _ in 0..100 {
        let node = AnyNode::new(&test_device.open(), test_device.port, &NodeOptions::default());
        assert!(node.send_cq.cqe() > 0 && node.qp.state().unwrap() == QueuePairState::Reset);
    }
    Ok(())
}
