//! Pool tests: safe code posts slices, and they come back with their completions, whatever the
//! device does.

use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;

use sideway::ErrorKind;
use sideway::ibverbs::AccessFlags;
use sideway::ibverbs::completion::{BasicCompletionQueue, GenericCompletionQueue, WorkCompletionStatus};
use sideway::ibverbs::memory_region::RegisterMemoryRegionError;
use sideway::ibverbs::protection_domain::ProtectionDomain;
use sideway::ibverbs::queue_pair::{
    AttachPoolError, BasicQueuePair, ExtendedQueuePair, GenericQueuePair, PostRecvError, PostSendError,
    PostSendGuard, QueuePair, WorkRequestFlags,
};
use sideway::memory::{BufferKind, OutOfSlice, Pool, Returned, Slice};

use super::support::counting_allocator::{allocations_during, live_bytes_after};
use super::support::fake::{BadRequest, Fake};
use super::support::flavour::{Completion, CqFlavour, QpFlavour};
use super::{FakeSetup, SIGNALED};
use crate::support::errors::assert_error;

type Pair<Q> = FakeSetup<Q, BasicCompletionQueue>;

const NO_FLAGS: WorkRequestFlags = WorkRequestFlags::empty();

/// A pool of `count` slices of 64 bytes.
fn pool(pd: &ProtectionDomain, count: usize) -> Pool {
    pd.create_pool_builder().setup_slices(64, count).setup_kind(BufferKind::Private).build().unwrap()
}

fn completions<C: CqFlavour>(cq: &mut C) -> Vec<Completion> {
    let mut found = Vec::new();
    cq.poll(&mut |wc| found.push(wc)).unwrap();
    found
}

/// The program's number, the number of bytes received, and the number of slices.
fn what(returned: Option<Returned>) -> Option<(u64, Option<u32>, usize)> {
    returned.map(|Returned { wr_id, byte_len, slice, rest }| {
        assert_eq!(slice.capacity(), 64);
        (wr_id, byte_len, 1 + rest.count())
    })
}

#[test]
fn every_operation_gives_its_slices_back_with_the_programs_number() {
    fn check<Q: QpFlavour, C: CqFlavour>() {
        let fake = Fake::new();
        let mut setup = FakeSetup::<Q, C>::new(&fake);
        let pool = pool(&setup.pd, 16);
        let take = || pool.take().unwrap();
        let mut list = pool.attach(setup.qp.start_post_send()).unwrap();
        // A request with slices is signaled even without the flag.
        list.construct_wr(10, NO_FLAGS).setup_send().setup_slice(take());
        list.construct_wr(11, SIGNALED).setup_send_imm(7).setup_slices([take(), take()]);
        list.construct_wr(12, SIGNALED).setup_write(1, 2).setup_slice(take());
        list.construct_wr(13, SIGNALED).setup_write_imm(1, 2, 3).setup_slice(take());
        list.construct_wr(14, SIGNALED).setup_read(1, 2).setup_slices([take(), take()]);
        list.construct_wr(15, SIGNALED).setup_atomic_compare_swap(1, 2, 3, 4).setup_slice(take());
        list.construct_wr(16, SIGNALED).setup_atomic_fetch_add(1, 2, 3).setup_slice(take());
        // Other requests keep their flags.
        list.construct_wr(17, SIGNALED).setup_send().setup_inline_data(&[1, 2]);
        list.post().unwrap();
        let mut list = pool.attach_recv(setup.qp.start_post_recv()).unwrap();
        list.construct_wr(18).setup_slice(take());
        list.construct_wr(19).setup_slices([take(), take()]);
        list.post().unwrap();
        assert_eq!((pool.free(), pool.in_flight()), (4, 9));
        let found: Vec<_> = completions(&mut setup.cq).iter().map(|wc| what(pool.reclaim(wc))).collect();
        let sent = |wr_id, slices| Some((wr_id, None, slices));
        let mut expected =
            vec![sent(10, 1), sent(11, 2), sent(12, 1), sent(13, 1), sent(14, 2), sent(15, 1), sent(16, 1)];
        // The fake device reports these values in every completion.
        expected.extend([None, Some((18, Some(7), 1)), Some((19, Some(7), 2))]);
        assert_eq!(found, expected, "{}, {}", Q::NAME, C::NAME);
        assert_eq!((pool.free(), pool.in_flight()), (16, 0));
    }
    fn with_cq<C: CqFlavour>() {
        check::<BasicQueuePair, C>();
        check::<ExtendedQueuePair, C>();
        check::<GenericQueuePair, C>();
    }
    for_each_cq!(with_cq());
}

#[test]
fn a_pool_allocates_nothing_in_use() {
    const ROUNDS: u64 = if cfg!(miri) { 20 } else { 10_000 };
    fn check<Q: QpFlavour>() {
        let fake = Fake::new();
        let mut setup = Pair::<Q>::new(&fake);
        let pool = pool(&setup.pd, 4);
        let (count, ()) = allocations_during(|| {
            for n in 0..ROUNDS {
                let (one, two) = pool.take().unwrap().split_at(8).unwrap();
                let mut list = pool.attach(setup.qp.start_post_send()).unwrap();
                list.construct_wr(n, SIGNALED).setup_send().setup_slice(pool.take_len(5).unwrap());
                list.construct_wr(n, SIGNALED).setup_send().setup_slices([one, two]);
                list.post().unwrap();
                drop(pool.attach(setup.qp.start_post_send()).unwrap());
                let mut list = pool.attach_recv(setup.qp.start_post_recv()).unwrap();
                list.construct_wr(n).setup_slice(pool.take().unwrap());
                list.post().unwrap();
                let polled = setup.cq.poll(&mut |wc| assert_eq!(pool.reclaim(&wc).unwrap().wr_id, n));
                assert_eq!(polled.unwrap(), 3);
            }
        });
        assert_eq!((count, pool.free()), (0, 4), "{}", Q::NAME);
    }
    for_each_qp!(check());
}

#[test]
fn a_slice_has_the_bytes_that_were_put_into_it() {
    let fake = Fake::new();
    let pool = pool(&fake.pd(), 2);
    let mut slice = pool.take().unwrap();
    assert_eq!((slice.len(), slice.capacity(), slice.is_empty()), (64, 64, false));
    assert_eq!(slice.addr() % 64, 0);
    let mut found = [1; 64];
    slice.copy_to_slice(0, &mut found).unwrap();
    assert_eq!(found, [0; 64], "new memory is zeroed");
    slice.copy_from_slice(3, b"abcde").unwrap();
    slice.write(8, 0x0102_0304_0506_0708_u64).unwrap();
    slice.write(17, 0xaabb_u16).unwrap();
    let mut found = [0; 5];
    slice.copy_to_slice(3, &mut found).unwrap();
    assert_eq!(&found, b"abcde");
    assert_eq!((slice.read(8), slice.read(17)), (Ok(0x0102_0304_0506_0708_u64), Ok(0xaabb_u16)));
    assert_eq!(slice.read::<u8>(63), Ok(0));
    slice.fill(9);
    assert_eq!(slice.read(60), Ok(0x0909_0909_u32));
    // Copies to the last byte, but not beyond.
    slice.copy_from_slice(63, &[7]).unwrap();
    slice.copy_from_slice(64, &[]).unwrap();
    let out = |offset, len| Err(OutOfSlice { offset, len, limit: 64 });
    assert_eq!(slice.copy_from_slice(63, &[1, 2]), out(63, 2));
    assert_eq!(slice.copy_from_slice(65, &[]), out(65, 0));
    assert_eq!(slice.copy_to_slice(usize::MAX, &mut [0; 2]), out(usize::MAX, 2));
    assert_eq!(slice.read::<u64>(57).unwrap_err(), out(57, 8).unwrap_err());
    assert_eq!(slice.write(64, 1_u8), out(64, 1));
    // Accesses beyond the length fail, and the length cannot exceed the capacity.
    slice.set_len(10).unwrap();
    assert!(slice.copy_from_slice(8, &[1, 2, 3]).is_err() && slice.read::<u32>(7).is_err());
    assert_eq!(slice.set_len(65), Err(OutOfSlice { offset: 0, len: 65, limit: 64 }));
    slice.set_len(64).unwrap();
    assert_eq!(slice.read::<u8>(63), Ok(7));
}

#[test]
fn slices_of_each_size_are_taken_and_split() {
    let fake = Fake::new();
    let mut builder = fake.pd().create_pool_builder();
    builder.setup_slices(1000, 1).setup_slices(10, 2).setup_parts(2).setup_kind(BufferKind::Private);
    let pool = builder.build().unwrap();
    assert_eq!((pool.slices(), pool.free(), pool.memory().len()), (3, 3, 2 * 64 + 1024));
    let sizes: Vec<_> =
        [pool.take(), pool.take_len(7)].into_iter().flatten().map(|s| (s.len(), s.capacity())).collect();
    assert_eq!(sizes, [(10, 10), (7, 10)]);
    assert_eq!((pool.take_len(1001).is_none(), pool.take_len(usize::MAX).is_none()), (true, true));
    let whole = pool.take_len(11).unwrap();
    assert_eq!((whole.len(), whole.capacity()), (11, 1000));
    drop(whole);
    let whole = pool.take_len(1000).unwrap();
    let addr = whole.addr();
    let (mut one, two) = whole.split_at(600).unwrap();
    let (two, three) = two.split_at(399).unwrap();
    assert_eq!([&one, &two, &three].map(Slice::len), [600, 399, 1]);
    assert_eq!([&one, &two, &three].map(Slice::addr), [addr, addr + 600, addr + 999]);
    assert!(one.set_len(601).is_err());
    let error = one.split_at(1).unwrap_err();
    assert_eq!(error.error.kind(), ErrorKind::LimitExceeded, "there are two parts");
    let one = error.object;
    let error = three.split_at(2).unwrap_err();
    assert_error(&error.error, ErrorKind::OutOfBounds, &[("len", &1), ("mid", &2)]);
    drop((one, two));
    assert!(pool.take_len(11).is_none(), "a part is in the error");
    drop(error);
    assert_eq!((pool.free(), pool.take_len(1000).unwrap().addr()), (3, addr));
}

#[test]
fn a_pool_that_is_empty_says_so_until_a_slice_is_back() {
    let fake = Fake::new();
    let pool = pool(&fake.pd(), 2);
    let (one, two) = (pool.take().unwrap(), pool.take().unwrap());
    assert_ne!(one.addr(), two.addr());
    assert!(pool.take().is_none() && pool.take_len(1).is_none());
    drop(one);
    drop((pool.take().unwrap(), two));
    assert_eq!(pool.free(), 2);
}

#[test]
#[cfg_attr(miri, ignore = "leaks a slice on purpose")]
fn a_slice_that_is_leaked_keeps_its_pool() {
    let fake = Fake::new().may_leak();
    let pool = pool(&fake.pd(), 1);
    std::mem::forget(pool.take().unwrap());
    assert!(pool.take().is_none());
    drop(pool);
    assert_eq!(fake.world.destroyed.lock().unwrap().len(), 0);
}

#[test]
fn a_list_that_is_dropped_gives_its_slices_back() {
    fn check<Q: QpFlavour>() {
        let fake = Fake::new();
        let mut setup = Pair::<Q>::new(&fake);
        let pool = pool(&setup.pd, 4);
        let mut list = pool.attach(setup.qp.start_post_send()).unwrap();
        list.construct_wr(1, SIGNALED).setup_send().setup_slice(pool.take().unwrap());
        list.construct_wr(2, SIGNALED)
            .setup_send()
            .setup_slices([pool.take().unwrap(), pool.take().unwrap()]);
        assert_eq!((pool.free(), pool.in_flight()), (1, 2));
        drop(list);
        assert_eq!((pool.free(), pool.in_flight()), (4, 0));
        let mut list = pool.attach_recv(setup.qp.start_post_recv()).unwrap();
        list.construct_wr(3).setup_slice(pool.take().unwrap());
        // A receive without a slice is not posted.
        let _ = list.construct_wr(4);
        drop(list);
        assert_eq!(pool.free(), 4);
        assert_eq!((fake.world.posted.load(Relaxed), fake.world.received.load(Relaxed)), (0, 0));
        assert!(completions(&mut setup.cq).is_empty(), "{}", Q::NAME);
    }
    for_each_qp!(check());
}

#[test]
fn a_list_that_is_leaked_costs_its_slices_until_they_are_given_up() {
    fn check<Q: QpFlavour>() {
        let fake = Fake::new();
        let mut setup = Pair::<Q>::new(&fake);
        let pool = pool(&setup.pd, 2);
        let mut list = pool.attach(setup.qp.start_post_send()).unwrap();
        list.construct_wr(7, SIGNALED).setup_send().setup_slice(pool.take().unwrap());
        std::mem::forget(list);
        setup.qp.start_post_send().post().unwrap();
        assert_eq!((pool.free(), pool.in_flight()), (1, 1));
        assert_eq!((pool.abandon(|wr_id| wr_id != 7), pool.abandon(|wr_id| wr_id == 7)), (0, 1));
        assert_eq!((pool.free(), pool.in_flight()), (2, 0), "{}", Q::NAME);
    }
    for_each_qp!(check());
}

/// Posts a request without a slice, and three with one each. Returns the number that the device
/// still has.
fn post_four<Q: QpFlavour>(setup: &mut Pair<Q>, pool: &Pool) -> (Result<(), PostSendError>, usize) {
    let mut guard = setup.qp.start_post_send();
    guard.construct_wr(0, SIGNALED).setup_send();
    let mut list = pool.attach(guard).unwrap();
    for n in 1..4 {
        list.construct_wr(n, SIGNALED).setup_send().setup_slice(pool.take().unwrap());
    }
    (list.post(), pool.in_flight())
}

#[test]
fn slices_that_were_not_posted_come_back() {
    // The position at which the list stopped, and the number of slices with the device.
    let cases = [
        (BadRequest::Index(0), 0),
        (BadRequest::Index(1), 0),
        (BadRequest::Index(3), 2),
        // The position is unknown, so the device may have all of them.
        (BadRequest::Unset, 3),
        (BadRequest::Address(1), 3),
    ];
    for (bad, kept) in cases {
        let fake = Fake::lying(|l| l.post_send = Some((libc::ENOMEM, bad)));
        let mut setup = Pair::<BasicQueuePair>::new(&fake);
        let pool = pool(&setup.pd, 3);
        let (result, with_device) = post_four(&mut setup, &pool);
        assert!(result.unwrap_err().is_queue_full());
        assert_eq!((with_device, pool.free()), (kept, 3 - kept), "{bad:?}");
        // The requests that the device reports as posted complete.
        let mut numbers: Vec<_> =
            completions(&mut setup.cq).iter().filter_map(|wc| pool.reclaim(wc)).map(|r| r.wr_id).collect();
        if let BadRequest::Index(index) = bad {
            assert_eq!(numbers, (1..index.max(1) as u64).collect::<Vec<_>>());
            assert_eq!(pool.free(), 3);
        }
        numbers.clear();
    }
}

#[test]
fn an_extended_pair_posts_all_or_nothing() {
    let fake = Fake::lying(|l| l.wr_complete = libc::ENOMEM);
    let mut setup = Pair::<ExtendedQueuePair>::new(&fake);
    let pool = pool(&setup.pd, 3);
    let (result, with_device) = post_four(&mut setup, &pool);
    assert!(result.unwrap_err().is_queue_full());
    assert_eq!((with_device, pool.free()), (0, 3));
}

#[test]
fn receives_that_were_not_posted_come_back() {
    for (bad, kept) in [(BadRequest::Index(0), 0), (BadRequest::Index(2), 2), (BadRequest::Unset, 3)] {
        let fake = Fake::lying(|l| l.post_recv = Some((libc::ENOMEM, bad)));
        let mut setup = Pair::<GenericQueuePair>::new(&fake);
        let pool = pool(&setup.pd, 3);
        let mut list = pool.attach_recv(setup.qp.start_post_recv()).unwrap();
        for n in 0..3 {
            list.construct_wr(n).setup_slice(pool.take().unwrap());
        }
        assert!(matches!(list.post(), Err(PostRecvError::NotEnoughResources { .. })));
        assert_eq!((pool.in_flight(), pool.free()), (kept, 3 - kept), "{bad:?}");
    }
}

#[test]
fn a_list_that_cannot_be_built_gives_its_slices_back() {
    fn check<Q: QpFlavour>() {
        let fake = Fake::new();
        let mut setup = Pair::<Q>::new(&fake);
        let (limit, receives) = {
            let cap = setup.qp.control().capability();
            (cap.max_send_wr as usize, cap.max_recv_wr as usize)
        };
        let pool = pool(&setup.pd, 2 * limit.max(receives) + 8);
        let all = pool.free();
        let take = || pool.take().unwrap();
        let mut list = pool.attach(setup.qp.start_post_send()).unwrap();
        for n in 0..limit as u64 + 2 {
            list.construct_wr(n, SIGNALED).setup_send().setup_slice(take());
        }
        assert_eq!(list.post(), Err(PostSendError::TooManyWorkRequests { limit }));
        assert_eq!(pool.free(), all);
        let mut list = pool.attach(setup.qp.start_post_send()).unwrap();
        list.construct_wr(0, SIGNALED).setup_send().setup_slice(take());
        list.construct_wr(1, SIGNALED).setup_send().setup_slices([take(), take(), take()]);
        let error = list.post().unwrap_err();
        assert_eq!(error, PostSendError::TooManyScatterGatherEntries { index: 1, given: 3, limit: 2 });
        assert_eq!(pool.free(), all);
        let mut list = pool.attach_recv(setup.qp.start_post_recv()).unwrap();
        for n in 0..receives as u64 + 2 {
            list.construct_wr(n).setup_slice(take());
        }
        assert_eq!(list.post(), Err(PostRecvError::TooManyWorkRequests { limit: receives }));
        let mut list = pool.attach_recv(setup.qp.start_post_recv()).unwrap();
        list.construct_wr(1).setup_slices([take(), take(), take()]);
        let error = list.post().unwrap_err();
        assert_eq!(error, PostRecvError::TooManyScatterGatherEntries { index: 0, given: 3, limit: 2 });
        assert_eq!((pool.free(), fake.world.posted.load(Relaxed)), (all, 0), "{}", Q::NAME);
    }
    for_each_qp!(check());
}

#[test]
fn a_slice_of_another_pool_is_refused_and_goes_home() {
    fn check<Q: QpFlavour>() {
        let fake = Fake::new();
        let mut setup = Pair::<Q>::new(&fake);
        let (pool, other) = (pool(&setup.pd, 3), pool(&setup.pd, 1));
        let mut list = pool.attach(setup.qp.start_post_send()).unwrap();
        list.construct_wr(0, SIGNALED).setup_send().setup_slice(pool.take().unwrap());
        list.construct_wr(1, SIGNALED)
            .setup_send()
            .setup_slices([pool.take().unwrap(), other.take().unwrap()]);
        list.construct_wr(2, SIGNALED).setup_send().setup_slice(pool.take().unwrap());
        let error = list.post().unwrap_err();
        assert_eq!((error, error.posted()), (PostSendError::ForeignSlice { index: 1 }, Some(0)));
        let mut list = pool.attach_recv(setup.qp.start_post_recv()).unwrap();
        list.construct_wr(0).setup_slice(other.take().unwrap());
        let error = list.post().unwrap_err();
        assert_eq!((error, error.posted()), (PostRecvError::ForeignSlice { index: 0 }, Some(0)));
        assert_eq!((pool.free(), other.free()), (3, 1));
        assert_eq!((fake.world.posted.load(Relaxed), fake.world.received.load(Relaxed)), (0, 0));
    }
    for_each_qp!(check());
}

#[test]
fn a_queue_of_another_context_gets_no_slices() {
    fn check<Q: QpFlavour>() {
        let fake = Fake::new();
        let mut setup = Pair::<Q>::new(&fake);
        let pool = pool(&fake.pd(), 1);
        let refused = pool.attach(setup.qp.start_post_send()).map(drop).unwrap_err();
        assert_eq!(refused, AttachPoolError::OtherContext, "{}", Q::NAME);
        let refused = pool.attach_recv(setup.qp.start_post_recv()).unwrap_err();
        assert_eq!(refused, AttachPoolError::OtherContext);
        let mut srq = setup.pd.create_srq_builder().build().unwrap();
        assert_eq!(pool.attach_recv(srq.start_post_recv()).unwrap_err(), AttachPoolError::OtherContext);
        let pool = self::pool(&setup.pd, 1);
        pool.attach_recv(srq.start_post_recv()).unwrap().post().unwrap();
    }
    for_each_qp!(check());
}

/// A library that overwrites outstanding requests in a full queue could make a device use any
/// address.
#[test]
fn a_queue_that_does_not_notice_that_it_is_full_gets_no_slices() {
    let attach = |vendor_id: u32, extended: bool| {
        let fake = Fake::lying(|l| l.vendor_id = vendor_id);
        let attached = |setup: &mut Pair<GenericQueuePair>| {
            let pool = pool(&setup.pd, 1);
            pool.attach_recv(setup.qp.start_post_recv()).unwrap().post().unwrap();
            pool.attach(setup.qp.start_post_send()).map(drop)
        };
        match extended {
            true => {
                let FakeSetup { qp, cq, mr, pd, context, memory } = Pair::<ExtendedQueuePair>::new(&fake);
                attached(&mut FakeSetup { qp: qp.into(), cq, mr, pd, context, memory })
            }
            false => {
                let FakeSetup { qp, cq, mr, pd, context, memory } = Pair::<BasicQueuePair>::new(&fake);
                attached(&mut FakeSetup { qp: qp.into(), cq, mr, pd, context, memory })
            }
        }
    };
    assert_eq!(attach(0x02c9, true), Err(AttachPoolError::FullQueueUnnoticed));
    assert_eq!((attach(0x02c9, false), attach(0xff_ffff, true), attach(1, true)), (Ok(()), Ok(()), Ok(())));
    // An unknown device gets no slices either.
    let fake = Fake::lying(|l| l.query_device = libc::EIO);
    let mut setup = Pair::<ExtendedQueuePair>::new(&fake);
    let pool = pool(&setup.pd, 1);
    let refused = pool.attach(setup.qp.start_post_send()).unwrap_err();
    assert!(refused.to_string().contains("QueuePairBuilder::build"), "{refused}");
}

#[test]
fn a_completion_that_is_not_of_the_pool_is_none() {
    let fake = Fake::new();
    let mut setup = Pair::<GenericQueuePair>::new(&fake);
    let (one, two) = (pool(&setup.pd, 1), pool(&setup.pd, 1));
    setup.write([0, 1, 2, u64::MAX, 1 << 24]);
    for wc in completions(&mut setup.cq) {
        assert!(one.reclaim(&wc).is_none() && two.reclaim(&wc).is_none(), "{:#x}", wc.wr_id);
    }
    let mut list = one.attach(setup.qp.start_post_send()).unwrap();
    list.construct_wr(5, SIGNALED).setup_send().setup_slice(one.take().unwrap());
    list.post().unwrap();
    let wc = completions(&mut setup.cq)[0];
    assert!(two.reclaim(&wc).is_none());
    let returned = one.reclaim(&wc).unwrap();
    assert!(one.reclaim(&wc).is_none(), "once");
    drop(returned);
    assert!(one.reclaim(&wc).is_none());
}

#[test]
fn a_flush_gives_the_slice_back_and_no_length() {
    fn check<C: CqFlavour>() {
        let flushed = WorkCompletionStatus::WorkRequestFlushedError;
        let fake = Fake::lying(|l| l.completion = Some([flushed.raw(), 0, 0]));
        let mut setup = FakeSetup::<GenericQueuePair, C>::new(&fake);
        let pool = pool(&setup.pd, 1);
        let mut list = pool.attach_recv(setup.qp.start_post_recv()).unwrap();
        list.construct_wr(5).setup_slice(pool.take().unwrap());
        list.post().unwrap();
        let wc = completions(&mut setup.cq)[0];
        assert_eq!(wc.status, flushed);
        let returned = pool.reclaim(&wc).unwrap();
        assert_eq!((returned.wr_id, returned.byte_len, pool.free()), (5, None, 0));
        drop(returned);
        assert_eq!(pool.free(), 1);
    }
    for_each_cq!(check());
}

#[test]
fn the_memory_goes_with_the_last_handle() {
    let fake = Fake::new();
    let pd = fake.pd();
    let destroyed = || fake.world.destroyed.lock().unwrap().len();
    let (live, ()) = live_bytes_after(|| {
        let one = pool(&pd, 100);
        let (two, slice) = (one.clone(), one.take().unwrap());
        drop(one);
        let mut last = two.take().unwrap();
        drop((two, slice));
        assert_eq!(destroyed(), 0);
        last.fill(1);
        assert_eq!(last.read(56), Ok(0x0101_0101_0101_0101_u64));
        drop(last);
        assert_eq!(*fake.world.destroyed.lock().unwrap(), ["mr"]);
    });
    assert!(live < 6400, "{live} bytes are left");
}

/// Requests with the device do not keep the memory alive: the registration ends first, after which
/// the device cannot access it.
#[test]
fn slices_in_flight_keep_no_handle_alive() {
    let fake = Fake::new();
    let mut setup = Pair::<GenericQueuePair>::new(&fake);
    let pool = pool(&setup.pd, 1);
    let mut list = pool.attach_recv(setup.qp.start_post_recv()).unwrap();
    list.construct_wr(1).setup_slice(pool.take().unwrap());
    list.post().unwrap();
    drop(pool);
    assert_eq!(*fake.world.destroyed.lock().unwrap(), ["mr"]);
    let other = self::pool(&setup.pd, 1);
    assert!(other.reclaim(&completions(&mut setup.cq)[0]).is_none());
}

#[test]
#[cfg_attr(miri, ignore = "leaks what cannot be deregistered")]
fn memory_that_the_device_keeps_is_leaked() {
    let fake = Fake::new().may_leak();
    let pool = pool(&fake.pd(), 1);
    fake.world.refused_deregistrations.store(1, Relaxed);
    let slice = pool.take().unwrap();
    let start = slice.as_ptr();
    drop((slice, pool));
    assert_eq!(*fake.world.destroyed.lock().unwrap(), ["mr"]);
    // SAFETY: the memory is leaked, so it stays mapped; otherwise a fault would show it.
    unsafe {
        start.write_volatile(7);
        assert_eq!(start.read_volatile(), 7);
    }
}

#[test]
fn a_pool_that_cannot_be_is_an_error_that_says_why() {
    let fake = Fake::new();
    let pd = fake.pd();
    let build = |sizes: &[(usize, usize)]| {
        let mut builder = pd.create_pool_builder();
        builder.setup_kind(BufferKind::Private);
        for &(size, count) in sizes {
            builder.setup_slices(size, count);
        }
        builder.build().unwrap_err()
    };
    assert_error(&build(&[]), ErrorKind::InvalidArgument, &[("sizes", &0), ("limit", &8)]);
    assert_error(&build(&[(1, 1); 9]), ErrorKind::InvalidArgument, &[("sizes", &9)]);
    for (size, count) in [(0, 1), (1, 0), ((1 << 31) + 1, 1), (usize::MAX, 1)] {
        let error = build(&[(64, 1), (size, count)]);
        assert_error(&error, ErrorKind::InvalidArgument, &[("size", &size), ("count", &count)]);
    }
    for count in [1 << 22, usize::MAX] {
        let error = build(&[(1, count), (64, 1)]);
        assert_error(
            &error,
            ErrorKind::InvalidArgument,
            &[("slices", &count.saturating_add(1)), ("limit", &8_388_608)],
        );
    }
    // More than the address space; Miri aborts when the system rejects it.
    if !cfg!(miri) {
        let error = build(&[(1 << 31, 1 << 20)]);
        assert_eq!(error.argument("len"), Some(&*(1_usize << 51).to_string()), "{error}");
    }
    assert_eq!(fake.world.destroyed.lock().unwrap().len(), 0);
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no getrlimit")]
fn a_pool_that_cannot_be_registered_is_an_error() {
    let fake = Fake::lying(|l| l.reg_mr = libc::ENODEV);
    let mut builder = fake.pd().create_pool_builder();
    let error = builder.setup_slices(64, 1).setup_access(AccessFlags::empty()).build().unwrap_err();
    assert_eq!((error.verb(), error.kind()), ("ibv_reg_mr", ErrorKind::Nested), "{error}");
    let source = std::error::Error::source(&error).unwrap();
    assert!(source.is::<RegisterMemoryRegionError>(), "{source}");
}

/// Slices with the halves of a pair, and with shared receive queues.
#[test]
fn halves_and_shared_queues_take_slices() {
    let fake = Fake::new();
    let mut setup = FakeSetup::<GenericQueuePair, GenericCompletionQueue>::new(&fake);
    let pool = Rc::new(pool(&setup.pd, 4));
    let (send, receive) = setup.qp.split();
    {
        use sideway::ibverbs::queue_pair::SendQueue;
        let mut list = pool.attach(send.start_post_send()).unwrap();
        list.construct_wr(1, SIGNALED).setup_send().setup_slice(pool.take().unwrap());
        list.post().unwrap();
    }
    let mut list = pool.attach_recv(receive.start_post_recv()).unwrap();
    list.construct_wr(2).setup_slice(pool.take().unwrap());
    list.post().unwrap();
    let numbers: Vec<_> =
        completions(&mut setup.cq).iter().filter_map(|wc| pool.reclaim(wc)).map(|r| r.wr_id).collect();
    assert_eq!((numbers, pool.free()), (vec![1, 2], 4));
}
