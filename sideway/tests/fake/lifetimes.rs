//! Lifetime tests: handles are dropped in every order, and on other threads.

use std::any::Any;
use std::collections::HashSet;
use std::thread;

use sideway::ibverbs::AccessFlags;
use sideway::ibverbs::completion::{CompletionQueue, GenericCompletionQueue};
use sideway::ibverbs::queue_pair::{
    BasicQueuePair, ExtendedQueuePair, GenericQueuePair, PostSendGuard, QueuePair, SendQueue,
};

use super::support::fake::Fake;
use super::support::flavour::{CqFlavour, QpFlavour};
use super::support::permutations::permutations;
use super::{FakeSetup, SIGNALED};

#[test]
fn permutations_are_complete_and_distinct() {
    let all: HashSet<Vec<usize>> = permutations(4, 1).collect();
    assert_eq!(all.len(), 24);
    assert!(all.iter().all(|order| order.iter().collect::<HashSet<_>>().len() == 4), "{all:?}");
    assert_eq!(permutations(4, 5).count(), 5);
}

#[test]
fn handles_go_in_any_order() {
    fn check<Q: QpFlavour + Send + 'static>() {
        for order in permutations(6, if cfg!(miri) { 67 } else { 1 }) {
            let fake = Fake::new();
            let context = fake.context();
            let pd = context.alloc_pd().unwrap();
            let send_cq = context.create_cq_builder().build_generic().unwrap();
            let recv_cq = context.create_cq_builder().build().unwrap();
            // SAFETY: no bytes are registered.
            let mr = unsafe { pd.reg_mr(std::ptr::null_mut(), 0, AccessFlags::LocalWrite) }.unwrap();
            let mut builder = pd.create_qp_builder();
            let qp = Q::make(builder.setup_send_cq(&send_cq).setup_recv_cq(&recv_cq)).unwrap();
            drop(builder);
            let mut handles: Vec<Option<Box<dyn Any>>> = vec![
                Some(Box::new(context)),
                Some(Box::new(pd)),
                Some(Box::new(send_cq)),
                Some(Box::new(recv_cq)),
                Some(Box::new(mr)),
                Some(Box::new(qp)),
            ];
            for index in order {
                handles[index] = None;
            }
            let destroyed = fake.world.destroyed.lock().unwrap().clone();
            let at = |what| destroyed.iter().position(|d| *d == what).unwrap();
            assert!(at("qp") < at("cq") && at("qp") < at("pd") && at("mr") < at("pd"), "{destroyed:?}");
            assert_eq!(destroyed.last(), Some(&"context"));
            assert_eq!(destroyed.len(), 6);
        }
    }
    check::<GenericQueuePair>();
    if !cfg!(miri) {
        for_each_qp!(check());
    }
}

#[test]
fn halves_and_controls_keep_the_pair() {
    fn check<Q: QpFlavour>() {
        for order in permutations(3, 1) {
            let fake = Fake::new();
            let setup = FakeSetup::<Q, GenericCompletionQueue>::new(&fake);
            let control = setup.qp.control().clone();
            let (mut send, mut receive) = setup.qp.into_split();
            assert_eq!(send.control().qp_number(), receive.control().qp_number());
            drop((setup.cq, setup.mr, setup.pd, setup.context));
            let mut guard = send.start_post_send();
            guard.construct_wr(1, SIGNALED).setup_send();
            guard.post().unwrap();
            let mut guard = receive.start_post_recv();
            guard.construct_wr(1);
            guard.post().unwrap();
            let (mut send, mut receive, mut control) = (Some(send), Some(receive), Some(control));
            for index in order {
                assert!(!fake.world.destroyed.lock().unwrap().contains(&"qp"));
                match index {
                    0 => drop(send.take()),
                    1 => drop(receive.take()),
                    _ => drop(control.take()),
                }
            }
            assert_eq!(fake.world.destroyed.lock().unwrap().last(), Some(&"context"));
        }
    }
    for_each_qp!(check());
}

#[test]
fn a_builder_keeps_what_it_was_given() {
    let fake = Fake::new();
    let (builder, context) = {
        let context = fake.context();
        let cq = context.create_cq_builder().build().unwrap();
        let pd = context.alloc_pd().unwrap();
        let mut builder = pd.create_qp_builder();
        builder.setup_send_cq(&cq).setup_recv_cq(&cq);
        (builder, context)
    };
    let copy = builder.clone();
    drop((builder, context));
    let pairs: (BasicQueuePair, ExtendedQueuePair) = (copy.build().unwrap(), copy.build_ex().unwrap());
    assert_ne!(pairs.0.qp_number(), pairs.1.qp_number());
}

/// A failed destroy is reported without a panic. The objects that it depends on stay alive.
#[test]
#[cfg_attr(miri, ignore = "leaks what cannot be destroyed")]
fn failing_destroys_do_not_panic() {
    for errno in [libc::EBUSY, libc::EIO, -1, i32::MIN] {
        let fake = Fake::lying(|l| l.destroy = errno);
        let setup = FakeSetup::<GenericQueuePair, GenericCompletionQueue>::new(&fake);
        drop((setup.context, setup.pd, setup.mr, setup.cq, setup.qp));
        assert_eq!(*fake.world.destroyed.lock().unwrap(), ["mr", "qp"]);
    }
}

#[test]
fn the_halves_of_a_pair_are_driven_from_two_threads() {
    const COUNT: u64 = if cfg!(miri) { 20 } else { 1000 };
    fn check<Q: QpFlavour>()
    where
        Q::SendQueue: Send,
    {
        let fake = Fake::new();
        let mut setup = FakeSetup::<Q, GenericCompletionQueue>::new(&fake);
        let control = setup.qp.control().clone();
        let (send, receive) = setup.qp.split();
        thread::scope(|scope| {
            scope.spawn(move || {
                for n in 0..COUNT {
                    let mut guard = send.start_post_send();
                    guard.construct_wr(n, SIGNALED).setup_send();
                    guard.post().unwrap();
                }
            });
            scope.spawn(move || {
                for n in 0..COUNT {
                    let mut guard = receive.start_post_recv();
                    guard.construct_wr(COUNT + n);
                    guard.post().unwrap();
                }
            });
            scope.spawn(move || (0..COUNT).for_each(|_| assert!(control.state().is_ok())));
            let cq = &mut setup.cq;
            scope.spawn(move || {
                let mut next = [0, COUNT];
                while next != [COUNT, 2 * COUNT] {
                    let check = &mut |wc: super::support::flavour::Completion| {
                        let side = usize::from(wc.wr_id >= COUNT);
                        assert_eq!(wc.wr_id, next[side]);
                        next[side] += 1;
                    };
                    if cq.poll(check).unwrap() == 0 {
                        thread::yield_now();
                    }
                }
            });
        });
    }
    for_each_qp!(check());
}

#[test]
fn handles_are_what_they_say() {
    fn sendable<T: Send + Sync + 'static>() {}
    sendable::<sideway::ibverbs::device_context::DeviceContext>();
    sendable::<sideway::ibverbs::protection_domain::ProtectionDomain>();
    sendable::<sideway::ibverbs::memory_region::MemoryRegion>();
    sendable::<GenericCompletionQueue>();
    sendable::<GenericQueuePair>();
    sendable::<sideway::ibverbs::queue_pair::QueuePairControl>();
    let fake = Fake::new();
    let setup = FakeSetup::<GenericQueuePair, GenericCompletionQueue>::new(&fake);
    assert_eq!(setup.cq.as_raw(), setup.cq.as_raw());
    let mut setup = thread::spawn(move || {
        let mut setup = setup;
        setup.write([1]);
        setup
    })
    .join()
    .unwrap();
    assert_eq!(setup.poll(), [1]);
    assert_eq!(setup.memory.len(), setup.mr.region_len());
}
