//! Tests of leaked handles: safe Rust may leak any value.

use sideway::ibverbs::completion::{ExtendedCompletionQueue, GenericCompletionQueue};
use sideway::ibverbs::queue_pair::{
    BasicQueuePair, ExtendedQueuePair, GenericQueuePair, PostSendGuard, QueuePair,
};

use std::sync::atomic::Ordering::Relaxed;

use super::support::fake::Fake;
use super::support::flavour::{CqFlavour, QpFlavour};
use super::{FakeSetup, SIGNALED};

#[test]
fn a_leaked_poller_is_ended_by_the_next_one() {
    fn check<C: CqFlavour>() {
        for vendor_id in [0, 0xff_ffff] {
            let fake = Fake::lying(|l| l.vendor_id = vendor_id);
            let mut setup = FakeSetup::<BasicQueuePair, C>::new(&fake);
            setup.write(0..10);
            setup.cq.leak_poller(1);
            setup.cq.leak_poller(2);
            setup.write(10..12);
            let rest = setup.poll();
            assert_eq!(rest.last(), Some(&11), "{rest:?}");
            setup.cq.leak_poller(0);
        }
    }
    for_each_cq!(check());
}

#[test]
fn a_leaked_poller_is_ended_before_its_queue_goes() {
    let fake = Fake::new();
    let mut setup = FakeSetup::<BasicQueuePair, ExtendedCompletionQueue>::new(&fake);
    setup.write(0..3);
    setup.cq.leak_poller(1);
    // A library that cleans the queue when a pair is destroyed waits for the poll to end.
    drop(setup);
    let mut setup = FakeSetup::<BasicQueuePair, GenericCompletionQueue>::new(&fake);
    setup.write(0..3);
    setup.cq.leak_poller(1);
    let FakeSetup { qp, cq, .. } = setup;
    drop(cq);
    drop(qp);
}

#[test]
fn a_leaked_list_is_aborted_by_the_next_one() {
    fn check<Q: QpFlavour>() {
        let fake = Fake::new();
        let mut setup = FakeSetup::<Q, GenericCompletionQueue>::new(&fake);
        for _ in 0..3 {
            let mut guard = setup.qp.start_post_send();
            guard.construct_wr(1, SIGNALED).setup_send();
            std::mem::forget(guard);
        }
        setup.write([2, 3]);
        assert_eq!(setup.poll(), [2, 3]);
        std::mem::forget(setup.qp.start_post_send());
    }
    for_each_qp!(check());
}

#[test]
fn a_leaked_list_is_aborted_before_its_pair_goes() {
    let fake = Fake::new();
    let mut setup = FakeSetup::<ExtendedQueuePair, GenericCompletionQueue>::new(&fake);
    std::mem::forget(setup.qp.start_post_send());
    let (mut send, receive) = setup.qp.into_split();
    use sideway::ibverbs::queue_pair::SendQueue;
    std::mem::forget(send.start_post_send());
    drop((send, receive));
}

/// Libraries hold a lock while a list is open, for which another pair of the thread may wait.
#[test]
fn a_dropped_list_is_aborted_at_once() {
    let fake = Fake::new();
    let mut setup = FakeSetup::<ExtendedQueuePair, GenericCompletionQueue>::new(&fake);
    drop(setup.qp.start_post_send());
    assert_eq!(fake.world.aborted.load(Relaxed), 1);
}

/// A leaked object keeps the objects that it depends on alive.
#[test]
fn leaked_objects_keep_what_they_need() {
    let fake = Fake::new().may_leak();
    let setup = FakeSetup::<GenericQueuePair, GenericCompletionQueue>::new(&fake);
    let kept = Box::leak(Box::new(setup.qp));
    drop((setup.cq, setup.mr, setup.pd, setup.context));
    kept.start_post_send().post().unwrap();
    assert!(fake.world.destroyed.lock().unwrap().iter().all(|what| *what == "mr"));
    // SAFETY: the box was leaked just now, and nothing else refers to it.
    drop(unsafe { Box::from_raw(kept) });
}

/// Swapping values behind references is safe, too.
#[test]
fn halves_and_pollers_can_be_swapped() {
    let fake = Fake::new();
    let mut one = FakeSetup::<ExtendedQueuePair, ExtendedCompletionQueue>::new(&fake);
    let mut two = FakeSetup::<ExtendedQueuePair, ExtendedCompletionQueue>::new(&fake);
    one.write([1]);
    two.write([2]);
    {
        let mut first = one.cq.start_poll().unwrap();
        let mut second = two.cq.start_poll().unwrap();
        std::mem::swap(&mut first, &mut second);
        assert_eq!(first.next().unwrap().wr_id(), 2);
        drop(first);
        assert_eq!(second.next().unwrap().wr_id(), 1);
    }
    std::mem::swap(one.qp.split().0, two.qp.split().0);
    std::mem::swap(one.qp.split().1, two.qp.split().1);
    one.write([3]);
    assert_eq!((one.poll(), two.poll()), (vec![], vec![3]));
    let mut first = one.qp.start_post_send();
    let mut second = two.qp.start_post_send();
    std::mem::swap(&mut first, &mut second);
    first.construct_wr(4, SIGNALED).setup_send();
    first.post().unwrap();
    drop(second);
}
