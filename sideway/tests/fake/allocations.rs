//! Posting and polling allocate nothing.

use std::io::IoSlice;

use sideway::ibverbs::queue_pair::{BasicQueuePair, ExtendedQueuePair, GenericQueuePair};
use sideway::ibverbs::queue_pair::{PostSendGuard, ScatterGatherEntry};

use super::support::counting_allocator::allocations_during;
use super::support::fake::Fake;
use super::support::flavour::{CqFlavour, QpFlavour};
use super::{FakeSetup, SIGNALED};

const ROUNDS: u64 = if cfg!(miri) { 20 } else { 10_000 };

/// Posts requests with every kind of buffer in one list, and the receives. Then polls all
/// completions, and the empty queue.
fn round<Q: QpFlavour, C: CqFlavour>(setup: &mut FakeSetup<Q, C>, n: u64, bytes: &[u8]) {
    let (lkey, addr) = (setup.mr.lkey(), setup.mr.get_ptr() as u64);
    let entries = [ScatterGatherEntry::new(lkey, addr, 8), ScatterGatherEntry::new(lkey, addr + 8, 8)];
    let mut guard = setup.qp.start_post_send();
    // SAFETY: the fake device touches no memory.
    unsafe {
        guard.construct_wr(n, SIGNALED).setup_write(1, 2).setup_sge(lkey, addr, 8);
        guard.construct_wr(n + 1, SIGNALED).setup_send_imm(3).setup_sge_list(&entries);
    }
    guard.construct_wr(n + 2, SIGNALED).setup_send().setup_inline_data(bytes);
    let pieces = [IoSlice::new(&bytes[..3]), IoSlice::new(&bytes[3..])];
    guard.construct_wr(n + 3, SIGNALED).setup_write(1, 2).setup_inline_data_list(&pieces);
    guard.construct_wr(n + 4, SIGNALED).setup_atomic_fetch_add(1, 2, 3);
    guard.post().unwrap();
    drop(setup.qp.start_post_send());
    let mut guard = setup.qp.start_post_recv();
    // SAFETY: the fake device touches no memory.
    unsafe { guard.construct_wr(n + 5).setup_sge_list(&entries) };
    guard.construct_wr(n + 6);
    guard.post().unwrap();
    let mut next = n;
    let polled = setup.cq.poll(&mut |wc| {
        assert_eq!(wc.wr_id, next);
        next += 1;
    });
    assert_eq!(polled.unwrap(), 7);
    assert_eq!(setup.cq.poll(&mut |_| {}).unwrap(), 0);
}

#[test]
fn posting_and_polling_allocate_nothing() {
    fn check<Q: QpFlavour, C: CqFlavour>() {
        let fake = Fake::new();
        let mut setup = FakeSetup::<Q, C>::new(&fake);
        let bytes = [1; 16];
        let (count, ()) = allocations_during(|| (0..ROUNDS).for_each(|n| round(&mut setup, n, &bytes)));
        assert_eq!(count, 0, "{}, {}", Q::NAME, C::NAME);
    }
    fn with_cq<C: CqFlavour>() {
        check::<BasicQueuePair, C>();
        check::<ExtendedQueuePair, C>();
        check::<GenericQueuePair, C>();
    }
    for_each_cq!(with_cq());
}

/// A posting error allocates nothing either, because a full queue is a normal condition.
#[test]
fn a_full_queue_allocates_nothing() {
    fn check<Q: QpFlavour>() {
        use super::support::fake::BadRequest;
        let fake = Fake::lying(|l| {
            (l.wr_complete, l.post_send) = (libc::ENOMEM, Some((libc::ENOMEM, BadRequest::Index(0))));
        });
        let mut setup = FakeSetup::<Q, sideway::ibverbs::completion::GenericCompletionQueue>::new(&fake);
        let (count, full) = allocations_during(|| {
            let mut guard = setup.qp.start_post_send();
            guard.construct_wr(1, SIGNALED).setup_send();
            guard.post().is_err_and(|error| error.is_queue_full())
        });
        assert_eq!((count, full), (0, true), "{}", Q::NAME);
    }
    for_each_qp!(check());
}

/// Checks that the counter counts.
#[test]
fn an_allocation_is_counted() {
    let (count, kept) = allocations_during(|| vec![1u8, 2, 3]);
    assert_eq!((count, kept.len()), (1, 3));
}
