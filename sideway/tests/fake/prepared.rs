//! Tests of prepared lists, which are built once and posted repeatedly.

use std::sync::atomic::Ordering::Relaxed;

use sideway::ibverbs::completion::BasicCompletionQueue;
use sideway::ibverbs::queue_pair::{
    BasicQueuePair, PostRecvError, PostSendError, PostSendGuard, QueuePair, WorkRequestFlags,
};

use super::support::counting_allocator::allocations_during;
use super::support::fake::{BadRequest, Fake};
use super::{FakeSetup, SIGNALED};

type Pair = FakeSetup<BasicQueuePair, BasicCompletionQueue>;

#[test]
fn a_prepared_list_is_posted_as_it_was_built_each_time() {
    let fake = Fake::new();
    let mut setup = Pair::new(&fake);
    for length in [3, 16, 1] {
        let mut guard = setup.qp.start_post_send();
        for n in 0..length {
            let flags = if n + 1 == length { SIGNALED } else { WorkRequestFlags::empty() };
            let write = guard.construct_wr(n, flags).setup_write(1, 2);
            match n % 2 {
                0 => write.setup_inline_data(&[1; 8]),
                // SAFETY: the fake device touches no memory.
                _ => unsafe { write.setup_sge(setup.mr.lkey(), setup.mr.get_ptr() as u64, 8) },
            }
        }
        // SAFETY: the fake device touches no memory.
        let mut list = unsafe { guard.prepare().unwrap() };
        for _ in 0..5 {
            list.post().unwrap();
        }
        assert_eq!(setup.poll(), [length - 1; 5]);
        assert_eq!(fake.world.posted.swap(0, Relaxed), 5 * length);
        assert_eq!(fake.world.inline_bytes.swap(0, Relaxed), 5 * 8 * length.div_ceil(2));
        // Afterwards a longer or shorter list is posted.
        setup.write(100..106);
        assert_eq!(setup.poll(), Vec::from_iter(100..106));
        fake.world.posted.store(0, Relaxed);
    }
}

#[test]
fn posting_a_prepared_list_allocates_nothing() {
    let fake = Fake::new();
    let mut setup = Pair::new(&fake);
    let mut guard = setup.qp.start_post_send();
    (0..4)
        .for_each(|n| guard.construct_wr(n, WorkRequestFlags::empty()).setup_send().setup_inline_data(&[1]));
    // SAFETY: all data is inline.
    let mut list = unsafe { guard.prepare().unwrap() };
    let (allocations, ()) = allocations_during(|| (0..100).for_each(|_| list.post().unwrap()));
    assert_eq!(allocations, 0);
    assert_eq!(fake.world.posted.load(Relaxed), 400);
}

#[test]
fn a_list_that_is_wrong_is_not_prepared() {
    let fake = Fake::new();
    let mut setup = Pair::new(&fake);
    let mut guard = setup.qp.start_post_send();
    guard.construct_wr(0, SIGNALED).setup_send();
    guard.construct_wr(1, SIGNALED).setup_send().setup_inline_data(&[1; 17]);
    // SAFETY: all data is inline.
    let error = unsafe { guard.prepare().unwrap_err() };
    assert_eq!(error, PostSendError::InlineDataTooLong { index: 1, given: 17, limit: 16 });
    let mut guard = setup.qp.start_post_recv();
    for n in 0..17 {
        guard.construct_wr(n);
    }
    // SAFETY: the receives have no buffers.
    let error = unsafe { guard.prepare().unwrap_err() };
    assert_eq!(error, PostRecvError::TooManyWorkRequests { limit: 16 });
    assert_eq!(fake.world.posted.load(Relaxed) + fake.world.received.load(Relaxed), 0);
}

#[test]
fn an_empty_list_is_never_given_to_the_library() {
    let fake = Fake::new();
    let mut setup = Pair::new(&fake);
    // SAFETY: the list has no buffers.
    let mut list = unsafe { setup.qp.start_post_send().prepare().unwrap() };
    list.post().unwrap();
    // SAFETY: the list has no buffers.
    let mut list = unsafe { setup.qp.start_post_recv().prepare().unwrap() };
    list.post().unwrap();
    assert_eq!(fake.world.posted.load(Relaxed) + fake.world.received.load(Relaxed), 0);
}

#[test]
fn a_prepared_list_says_each_time_where_it_broke_off() {
    let both = Some((libc::ENOMEM, BadRequest::Index(2)));
    let fake = Fake::lying(|l| (l.post_send, l.post_recv) = (both, both));
    let mut setup = Pair::new(&fake);
    let mut guard = setup.qp.start_post_send();
    (0..4).for_each(|n| drop(guard.construct_wr(n, SIGNALED).setup_send()));
    // SAFETY: the requests have no buffers.
    let mut list = unsafe { guard.prepare().unwrap() };
    for _ in 0..3 {
        let error = list.post().unwrap_err();
        assert_eq!(
            (error.bad_work_request(), error.posted(), error.is_queue_full()),
            (Some(2), Some(2), true)
        );
    }
    assert_eq!(setup.poll(), [0, 1, 0, 1, 0, 1]);
    let mut guard = setup.qp.start_post_recv();
    for n in 0..4 {
        guard.construct_wr(n);
    }
    // SAFETY: the requests have no buffers.
    let mut list = unsafe { guard.prepare().unwrap() };
    for _ in 0..3 {
        let error = list.post().unwrap_err();
        assert!(matches!(error, PostRecvError::NotEnoughResources { index: Some(2), .. }), "{error}");
    }
}

#[test]
fn prepared_receives_are_posted_each_time() {
    let fake = Fake::new();
    let mut setup = Pair::new(&fake);
    let mut guard = setup.qp.start_post_recv();
    for n in 0..3 {
        // SAFETY: the fake device touches no memory.
        unsafe { guard.construct_wr(n).setup_sge(setup.mr.lkey(), setup.mr.get_ptr() as u64, 8) };
    }
    // SAFETY: the fake device touches no memory.
    let mut list = unsafe { guard.prepare().unwrap() };
    (0..4).for_each(|_| list.post().unwrap());
    assert_eq!(setup.poll(), [0, 1, 2].repeat(4));
    assert_eq!(fake.world.received.load(Relaxed), 12);
}
