//! Tests: blocks have exclusive owners, limits hold, and no block is lost.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Mutex, mpsc};
use std::task::Wake;
use std::thread;

use proptest::prelude::*;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::classes::CHUNK_UNIT;
use super::*;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
const SIZES: [usize; 4] = [8 * KIB, 64 * KIB, 256 * KIB, MIB];

/// A pool with this maximum, and no initial memory.
fn pool(max: usize) -> Pool {
    Pool::new(&config(0, 0, max)).unwrap()
}

fn config(initial: usize, prewarm: usize, max: usize) -> PoolConfig {
    PoolConfig { initial, prewarm, max, ..PoolConfig::default() }
}

fn take_all(pool: &Pool, size: usize) -> Vec<Block> {
    std::iter::from_fn(|| pool.take(size)).collect()
}

/// Marks both ends of a block, and its middle.
fn sign(block: &mut Block, mark: u64) {
    for at in places(block) {
        block.bytes_mut()[at..at + 8].copy_from_slice(&mark.to_le_bytes());
    }
}

fn is_signed(block: &Block, mark: u64) -> bool {
    places(block).iter().all(|&at| block.bytes()[at..at + 8] == mark.to_le_bytes())
}

fn places(block: &Block) -> [usize; 3] {
    [0, block.len() / 2, block.len() - 8]
}

const _: () = {
    const fn crosses_threads<T: Send + Sync>() {}
    crosses_threads::<Pool>();
    crosses_threads::<Block>();
};

#[test]
fn a_block_is_of_the_smallest_class_that_has_room() {
    let pool = pool(16 * MIB);
    for (size, len) in [
        (0, SIZES[0]),
        (8192, SIZES[0]),
        (8193, SIZES[1]),
        (65536, SIZES[1]),
        (65537, SIZES[2]),
        (262_144, SIZES[2]),
        (262_145, SIZES[3]),
        (MIB, SIZES[3]),
    ] {
        assert_eq!(pool.take(size).unwrap().len(), len, "{size}");
    }
    assert_eq!(pool.take_staged(1).unwrap().len(), SIZES[1]);
    assert!(pool.take(LARGEST_BLOCK + 1).is_none());
    assert!(pool.take_staged(usize::MAX).is_none());
}

#[test]
fn slots_are_of_any_size_that_the_configuration_has() {
    for slot_size in [256, 320, 4096, 5056, 64 * KIB] {
        let pool = Pool::new(&PoolConfig { slot_size, ..config(0, 0, 8 * MIB) }).unwrap();
        let block = pool.take(1).unwrap();
        assert_eq!((block.len(), block.as_ptr().addr() % 64), (slot_size, 0));
        assert_eq!(pool.stats().classes[0].blocks, CHUNK_UNIT / slot_size);
        assert_eq!(pool.take_staged(1).unwrap().len(), 64 * KIB);
    }
}

#[test]
fn new_memory_is_zeroed() {
    let pool = pool(8 * MIB);
    assert!(pool.take(1).unwrap().bytes().iter().all(|&byte| byte == 0));
    assert!(pool.take(64 * KIB).unwrap().bytes().iter().all(|&byte| byte == 0));
}

#[test]
fn initial_memory_is_allocated_and_prewarmed_memory_is_carved() {
    let pool = Pool::new(&config(20 * MIB, 6 * MIB, 64 * MIB)).unwrap();
    let stats = pool.stats();
    assert_eq!((stats.made, stats.max, stats.in_use, stats.registered), (20 * MIB, 64 * MIB, 0, 0));
    // An odd piece is carved into slots.
    assert_eq!(stats.classes.map(|class| class.blocks), [4 * MIB / SIZES[0], 0, 2 * MIB / SIZES[2], 0]);
    // The initial memory is used up before the pool grows.
    let slots: Vec<_> = (0..16 * MIB / SIZES[0]).map(|_| pool.take(1).unwrap()).collect();
    assert_eq!(pool.stats().made, 20 * MIB);
    drop(slots);
    // Odd sizes are rounded to whole chunks, and never beyond the maximum.
    let stats = Pool::new(&config(9 * MIB, 3 * MIB, 9 * MIB + 5)).unwrap().stats();
    assert_eq!((stats.made, stats.max), (8 * MIB, 8 * MIB));
}

#[test]
fn it_grows_to_its_maximum_and_not_beyond() {
    let max = 32 * MIB;
    let pool = pool(max);
    assert_eq!(pool.stats().made, 0);
    let mut before = 0;
    let mut slots = Vec::new();
    while let Some(slot) = pool.take(1) {
        slots.push(slot);
        if cfg!(miri) && slots.len() % 64 != 1 {
            continue;
        }
        let made = pool.stats().made;
        assert!(made >= before && made <= max && made < before + 5 * MIB, "{made} after {before}");
        before = made;
    }
    // An eighth is reserved for staged blocks.
    assert_eq!(slots.len(), 28 * MIB / SIZES[0]);
    let staged = take_all(&pool, MIB);
    assert_eq!((staged.len(), pool.stats().made), (4, max));
    let stats = pool.stats();
    assert_eq!((stats.empty(), stats.classes[0].empty, stats.classes[3].empty), (2, 1, 1));
    assert_eq!((stats.in_use, stats.most_in_use), (max, max));
}

#[test]
fn slots_have_their_reserve_too() {
    let pool = pool(8 * MIB);
    let staged = take_all(&pool, 256 * KIB);
    assert_eq!(staged.len(), 24);
    assert_eq!(take_all(&pool, 1).len(), 2 * MIB / SIZES[0]);
}

/// A configuration with this maximum and reservations for receiving.
fn shared(max: usize) -> PoolConfig {
    let initial = if max > 100 * MIB { max / 2 } else { 0 };
    PoolConfig {
        receive_slots: 3 * MIB,
        receive_staged: 5 * MIB / 2,
        receive_margin: MIB,
        send_slots: MIB,
        ..config(initial, 0, max)
    }
}

/// Whatever the sizes of chunks, and whatever was taken before.
#[test]
fn sending_and_receiving_keep_their_parts_of_the_pool() {
    let least = shared(64 * MIB).least_max();
    assert!(shared(least).check().is_ok() && shared(least - 1).check().is_err());
    let sizes = if cfg!(miri) { vec![least] } else { vec![least, least + 4 * MIB, 50 * MIB, 170 * MIB] };
    for max in sizes {
        for (first, second) in
            [(BlockUse::Sending, BlockUse::Receiving), (BlockUse::Receiving, BlockUse::Sending)]
        {
            let pool = Pool::new(&shared(max)).unwrap();
            // One block in every chunk as far as possible, and then all memory.
            let take =
                |block_use, size| std::iter::from_fn(|| pool.take_for(size, block_use)).collect::<Vec<_>>();
            let mut taken: Vec<_> = SIZES.into_iter().flat_map(|size| take(first, size)).collect();
            let mut at = 0;
            taken.retain(|_| {
                at += 1;
                at % 7 == 0
            });
            taken.extend(SIZES.into_iter().flat_map(|size| take(first, size)));
            let slots = take(second, 1).len() * SIZES[0];
            let staged = take(second, MIB).len() * MIB;
            match second {
                BlockUse::Receiving => {
                    assert!(slots >= 3 * MIB && staged >= 2 * MIB, "{max}: {slots}, {staged}")
                }
                BlockUse::Sending => {
                    assert!(slots >= 2 * MIB && staged >= 2 * MIB, "{max}: {slots}, {staged}")
                }
            }
            drop((taken, slots));
        }
    }
}

#[test]
fn receives_that_stay_posted_leave_something_for_what_arrives() {
    let pool = Pool::new(&shared(shared(64 * MIB).least_max())).unwrap();
    let sent: Vec<_> = SIZES.into_iter().flat_map(|size| take_all(&pool, size)).collect();
    let standing: Vec<_> = std::iter::from_fn(|| pool.take_standing()).collect();
    assert!(standing.len() * SIZES[0] >= 2 * MIB, "{}", standing.len());
    let arriving: Vec<_> = std::iter::from_fn(|| pool.take_for(1, BlockUse::Receiving)).collect();
    assert!(arriving.len() * SIZES[0] >= MIB, "{}", arriving.len());
    drop((sent, standing));
}

#[test]
fn no_peer_reads_what_is_received_into_and_each_side_keeps_its_own_slots() {
    let pool = Pool::new(&shared(64 * MIB)).unwrap();
    let places = |block_use| pool.take_for(1, block_use).unwrap().as_ptr().addr() / CHUNK_UNIT;
    let (sent, received) = (places(BlockUse::Sending), places(BlockUse::Receiving));
    assert_ne!(sent, received, "one chunk has slots of both sides");
    // From this thread's cache, without the shared part.
    assert_eq!((places(BlockUse::Sending), places(BlockUse::Receiving)), (sent, received));
    assert_eq!(pool.stats().in_use, 0);
}

#[test]
fn a_pool_that_cannot_keep_what_receiving_needs_is_refused_with_the_numbers() {
    let text = shared(10 * MIB).check().unwrap_err().to_string();
    assert!(text.contains("max of 10485760") && text.contains("slots") && text.contains("3145728"), "{text}");
    assert!(text.contains(&shared(10 * MIB).least_max().to_string()), "{text}");
    let endless = PoolConfig { receive_slots: usize::MAX, ..shared(64 * MIB) };
    assert!(endless.check().is_err());
}

#[test]
fn an_empty_pool_has_blocks_again_when_some_come_back() {
    let pool = pool(8 * MIB);
    let mut slots = take_all(&pool, 1);
    for round in 1..4 {
        assert!(pool.take(1).is_none());
        drop(slots.pop());
        slots.push(pool.take(1).unwrap());
        assert_eq!(pool.stats().empty(), 1 + round);
    }
    drop(slots);
    assert_eq!(pool.stats().in_use, 0);
}

#[test]
fn a_larger_staged_block_stands_in_for_a_smaller_one_and_never_for_a_slot() {
    let pool = pool(8 * MIB);
    let mut large = take_all(&pool, MIB);
    assert_eq!(large.len(), 6);
    drop(large.pop());
    assert_eq!(pool.take(64 * KIB).unwrap().len(), MIB);
    let slots = take_all(&pool, 1);
    assert_eq!(slots.len(), 256);
    assert!(slots.iter().all(|slot| slot.len() == SIZES[0]));
}

#[test]
fn memory_that_nobody_uses_serves_another_class_or_kind() {
    let pool = pool(8 * MIB);
    // Each time everything but the reservation, which stays constant.
    for _ in 0..if cfg!(miri) { 1 } else { 3 } {
        for size in SIZES.into_iter().chain(SIZES.into_iter().rev()) {
            let blocks = take_all(&pool, size);
            assert_eq!(blocks.len() * size, 6 * MIB, "{size}");
            drop(blocks);
            pool.flush();
        }
    }
    assert_eq!((pool.stats().in_use, pool.stats().cached, pool.stats().made), (0, 0, 8 * MIB));
}

#[test]
fn a_thread_caches_slots_and_returns_them_on_flush_and_exit() {
    let pool = pool(64 * MIB);
    drop(pool.take(1));
    let kept = pool.stats().cached;
    assert!(kept > 0 && kept <= cache::MOST * SIZES[0]);
    assert_eq!(pool.stats().in_use, 0);
    pool.flush();
    assert_eq!(pool.stats().cached, 0);
    thread::scope(|scope| {
        scope.spawn(|| {
            let slots: Vec<_> = (0..100).map(|_| pool.take(1).unwrap()).collect();
            assert_eq!(pool.stats().in_use, 100 * SIZES[0]);
            drop(slots);
            assert!((1..=cache::MOST * SIZES[0]).contains(&pool.stats().cached));
        });
    });
    // The scope does not wait for destructors that run after a thread's closure.
    while pool.stats().cached > 0 {
        thread::yield_now();
    }
    assert_eq!(pool.stats().in_use, 0);
}

#[test]
fn the_number_of_thread_caches_is_bounded() {
    let pool = pool(8 * MIB);
    let (ready, end) = (mpsc::channel(), Mutex::new(()));
    let guard = end.lock().unwrap();
    thread::scope(|scope| {
        for _ in 0..12 {
            let (ready, pool, end) = (ready.0.clone(), &pool, &end);
            scope.spawn(move || {
                assert!(pool.take(1).is_some());
                ready.send(()).unwrap();
                drop(end.lock());
            });
        }
        (0..12).for_each(|_| ready.1.recv().unwrap());
        let stats = pool.stats();
        assert_eq!(stats.in_use, 0);
        assert!(stats.cached > 0 && stats.cached <= 2 * MIB, "{stats:?}");
        assert_eq!(pool.core.stats().cached, stats.cached);
        drop(guard);
    });
}

#[test]
fn two_pools_of_a_thread_do_not_mix() {
    let (one, two) = (pool(8 * MIB), pool(8 * MIB));
    let mut blocks = Vec::new();
    for n in 0..200_u64 {
        for (at, pool) in [&one, &two].into_iter().enumerate() {
            let mut block = pool.take(1).unwrap();
            sign(&mut block, 2 * n + at as u64);
            blocks.push((block, 2 * n + at as u64));
        }
        if n % 3 == 0 {
            let (block, mark) = blocks.swap_remove(n as usize % blocks.len());
            assert!(is_signed(&block, mark));
        }
    }
    assert_eq!(one.stats().in_use + two.stats().in_use, blocks.len() * SIZES[0]);
    assert!(blocks.iter().all(|(block, mark)| is_signed(block, *mark)));
    drop(blocks);
    assert_eq!((one.stats().in_use, two.stats().in_use), (0, 0));
}

#[test]
fn blocks_outlive_the_pool() {
    let pool = pool(8 * MIB);
    let mut blocks: Vec<_> = SIZES.iter().map(|&size| pool.take(size).unwrap()).collect();
    drop(pool.clone());
    drop(pool);
    for (n, block) in blocks.iter_mut().enumerate() {
        sign(block, n as u64);
    }
    let here = blocks.split_off(2);
    thread::spawn(move || {
        assert!(blocks.iter().enumerate().all(|(n, block)| is_signed(block, n as u64)));
    })
    .join()
    .unwrap();
    assert!(is_signed(&here[1], 3));
}

#[test]
fn a_thread_that_kept_slots_of_a_pool_that_is_gone_gives_them_up_for_the_next_pool() {
    let (to_thread, tasks) = mpsc::channel::<Pool>();
    let (done, from_thread) = mpsc::channel();
    let worker = thread::spawn(move || {
        for pool in tasks {
            drop(pool.take(1));
            drop(pool);
            done.send(()).unwrap();
        }
    });
    let first = pool(8 * MIB);
    let core = Arc::downgrade(&first.core);
    to_thread.send(first.clone()).unwrap();
    from_thread.recv().unwrap();
    drop(first);
    assert_eq!(core.strong_count(), 1, "what the thread keeps");
    to_thread.send(pool(8 * MIB)).unwrap();
    from_thread.recv().unwrap();
    assert_eq!(core.strong_count(), 0);
    drop(to_thread);
    worker.join().unwrap();
}

#[test]
fn the_high_water_mark_is_told_without_a_lock() {
    let pool = pool(10 * MIB);
    let crossing = Arc::new(Mutex::new(Vec::new()));
    let (seen, again) = (crossing.clone(), pool.clone());
    // A pool that its callback keeps is never closed; here the callback drops it.
    let again = Mutex::new(Some(again));
    pool.on_high_water(move |high| {
        let mut again = again.lock().unwrap();
        if let Some(pool) = &*again {
            // These would deadlock if a lock of the pool were held.
            drop((pool.take(1), pool.stats()));
            pool.flush();
        }
        if !high.above {
            *again = None;
        }
        seen.lock().unwrap().push((high.above, high.in_use / MIB, high.max / MIB, high.turn));
    });
    let mut blocks: Vec<_> = (0..8).map(|_| pool.take(MIB).unwrap()).collect();
    assert_eq!(*crossing.lock().unwrap(), [(true, 8, 10, 0)]);
    blocks.truncate(7);
    assert_eq!(crossing.lock().unwrap().len(), 2);
    assert_eq!(crossing.lock().unwrap()[1], (false, 7, 10, 1));
    blocks.push(pool.take(MIB).unwrap());
    assert_eq!(crossing.lock().unwrap()[2], (true, 8, 10, 2));
}

struct WakeCount(AtomicUsize);

impl Wake for WakeCount {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

#[test]
fn a_waiter_is_woken_once_when_a_block_returns() {
    let pool = pool(8 * MIB);
    let count = Arc::new(WakeCount(AtomicUsize::new(0)));
    let waker = Waker::from(count.clone());
    let mut slots = take_all(&pool, 1);
    pool.wake_when_free(&waker);
    pool.wake_when_free(&waker);
    assert!(pool.take(1).is_none());
    assert_eq!(count.0.load(SeqCst), 0);
    // In another thread, and into no cache.
    let slot = slots.pop();
    thread::scope(|scope| drop(scope.spawn(|| drop(slot)).join()));
    assert_eq!(count.0.load(SeqCst), 1);
    assert!(pool.take(1).is_some());
    drop(slots);
    assert_eq!(count.0.load(SeqCst), 1);
}

#[test]
fn no_waiter_starves_while_a_thread_caches_free_slots() {
    let pool = pool(8 * MIB);
    let mut slots = take_all(&pool, 1);
    // Into this thread's cache, which is then asked to return it.
    slots.truncate(slots.len() - 3);
    let _ = (pool.take(1), pool.take(1));
    let count = Arc::new(WakeCount(AtomicUsize::new(0)));
    pool.wake_when_free(&Waker::from(count.clone()));
    drop(slots.pop());
    assert_eq!((count.0.load(SeqCst), pool.stats().cached), (1, 0));
}

/// A step of a script.
#[derive(Clone, Copy, Debug)]
enum PoolStep {
    Take(usize),
    TakeStaged(usize),
    Give(usize),
    GiveElsewhere(usize),
    Flush,
}

fn step() -> impl Strategy<Value = PoolStep> {
    prop_oneof![
        4 => (0..20_usize * KIB).prop_map(PoolStep::Take),
        2 => (0..LARGEST_BLOCK + 1).prop_map(PoolStep::Take),
        1 => (0..LARGEST_BLOCK + 1).prop_map(PoolStep::TakeStaged),
        5 => any::<usize>().prop_map(PoolStep::Give),
        1 => any::<usize>().prop_map(PoolStep::GiveElsewhere),
        1 => Just(PoolStep::Flush),
    ]
}

/// A pool beside a list of its lent blocks.
struct Oracle {
    pool: Pool,
    max: usize,
    out: Vec<(Block, u64)>,
    mark: u64,
}

impl Oracle {
    fn run(&mut self, step: PoolStep) {
        match step {
            PoolStep::Take(size) => self.took(size, 0, self.pool.take(size)),
            PoolStep::TakeStaged(size) => self.took(size, SIZES[1], self.pool.take_staged(size)),
            PoolStep::Give(n) => drop(self.pick(n)),
            PoolStep::GiveElsewhere(n) => {
                let block = self.pick(n);
                thread::scope(|scope| drop(scope.spawn(|| drop(block)).join()));
            }
            PoolStep::Flush => self.pool.flush(),
        }
        let stats = self.pool.stats();
        assert!(stats.made <= self.max);
        assert_eq!(stats.in_use, self.out.iter().map(|(block, _)| block.len()).sum::<usize>());
        let of_class = |size| self.out.iter().filter(|(block, _)| block.len() == size).count();
        assert_eq!(stats.classes.map(|class| class.in_use), SIZES.map(of_class));
        if matches!(step, PoolStep::Flush) {
            assert_eq!(stats.cached, 0);
        }
    }

    fn took(&mut self, size: usize, least: usize, block: Option<Block>) {
        let Some(mut block) = block else {
            // It is empty only when it may not grow for this kind.
            assert!(self.pool.stats().made > self.max - 2 * MIB - self.max / 8);
            return;
        };
        assert!(block.len() >= size.max(least));
        let range = |block: &Block| block.as_ptr().addr()..block.as_ptr().addr() + block.len();
        let new = range(&block);
        for (other, _) in &self.out {
            let old = range(other);
            assert!(new.end <= old.start || old.end <= new.start, "{new:?} overlaps {old:?}");
        }
        self.mark += 1;
        sign(&mut block, self.mark);
        self.out.push((block, self.mark));
    }

    fn pick(&mut self, n: usize) -> Option<Block> {
        let at = n.checked_rem(self.out.len())?;
        let (block, mark) = self.out.swap_remove(at);
        assert!(is_signed(&block, mark));
        Some(block)
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 2 } else { 200 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn blocks_never_overlap_and_the_counts_are_right(
        max in 4_usize..12,
        initial in 0_usize..4,
        prewarm in 0_usize..4,
        steps in prop::collection::vec(step(), if cfg!(miri) { 0..60 } else { 0..600 }),
    ) {
        let max = max * 2 * MIB;
        let config = config(initial * 2 * MIB, prewarm.min(initial) * 2 * MIB, max);
        let mut oracle = Oracle { pool: Pool::new(&config).unwrap(), max, out: Vec::new(), mark: 0 };
        steps.into_iter().for_each(|step| oracle.run(step));
        prop_assert!(oracle.out.iter().all(|(block, mark)| is_signed(block, *mark)));
        oracle.out.clear();
        prop_assert_eq!(oracle.pool.stats().in_use, 0);
    }
}

/// Threads take, return, and exchange blocks; each block is signed by the thread that took it.
#[test]
fn threads_share_a_pool() {
    const THREADS: usize = 4;
    let rounds = if cfg!(miri) { 120 } else { 50_000 };
    let pool = pool(16 * MIB);
    let woken = Arc::new(WakeCount(AtomicUsize::new(0)));
    let (senders, receivers): (Vec<_>, Vec<_>) = (0..THREADS).map(|_| mpsc::sync_channel(50)).unzip();
    let empty = AtomicUsize::new(0);
    thread::scope(|scope| {
        for (n, receiver) in receivers.into_iter().enumerate() {
            let (senders, pool, empty, woken) = (senders.clone(), &pool, &empty, &woken);
            scope.spawn(move || {
                let mut random = ChaCha8Rng::seed_from_u64(n as u64);
                let mut held: Vec<(Block, u64)> = Vec::new();
                for round in 0..rounds {
                    let size = [1, 1, 1, 1, 10 * KIB, 100 * KIB, MIB][random.next_u32() as usize % 7];
                    let mark = (n * rounds + round) as u64;
                    match pool.take(size) {
                        Some(mut block) => {
                            sign(&mut block, mark);
                            held.push((block, mark));
                        }
                        None => {
                            empty.fetch_add(1, SeqCst);
                            pool.wake_when_free(&Waker::from(woken.clone()));
                        }
                    }
                    // Many blocks are held for a while, and then all are passed on.
                    let most = if round % 1000 < 500 { 20 } else { 150 };
                    while held.len() > most || (round % 97 == 0 && !held.is_empty()) {
                        let at = random.next_u32() as usize % held.len();
                        let (block, mark) = held.swap_remove(at);
                        assert!(is_signed(&block, mark));
                        if random.next_u32() % 3 == 0 {
                            let to = random.next_u32() as usize % THREADS;
                            // A full channel returns the block, which is dropped here.
                            drop(senders[to].try_send((block, mark)));
                        }
                    }
                    receiver.try_iter().for_each(|(block, mark)| assert!(is_signed(&block, mark)));
                }
                drop(senders);
                assert!(held.iter().all(|(block, mark)| is_signed(block, *mark)));
            });
        }
        drop(senders);
    });
    while pool.stats().cached > 0 {
        thread::yield_now();
    }
    let stats = pool.stats();
    assert_eq!((stats.in_use, stats.made <= 16 * MIB), (0, true));
    assert_eq!(stats.classes.map(|class| class.in_use), [0; 4]);
    assert_eq!(stats.empty(), empty.load(SeqCst) as u64);
    if !cfg!(miri) {
        assert!(stats.empty() > 0 && woken.0.load(SeqCst) > 0, "the pool was never empty: {stats:?}");
    }
}

#[test]
fn ten_thousand_pools_leave_nothing_behind() {
    let rounds = if cfg!(miri) { 3 } else { 10_000 };
    let cores: Vec<_> = (0..rounds)
        .map(|_| {
            let pool = pool(8 * MIB);
            let block = pool.take(1).unwrap();
            let core = Arc::downgrade(&pool.core);
            drop(pool);
            drop(block);
            core
        })
        .collect();
    assert!(cores.iter().all(|core| core.strong_count() == 0));
}

/// The memory is the vector's before and after, and none of it belongs to the pool.
#[test]
fn adopted_memory_is_a_block_and_a_vector_again() {
    let pool = Pool::new(&PoolConfig { initial: 0, prewarm: 0, ..PoolConfig::default() }).unwrap();
    for len in [0, 1, if cfg!(miri) { 5000 } else { 100_000 }] {
        let mut bytes = Vec::with_capacity(len + 7);
        bytes.resize(len, 3);
        let at = bytes.as_ptr();
        let mut block = pool.adopt(bytes);
        assert_eq!((block.len(), block.as_ptr().cast_const()), (len, at));
        assert_eq!((block.lkey(), block.rkey()), (None, None));
        block.bytes_mut().fill(9);
        let back = block.into_vec().unwrap();
        assert_eq!((back.as_ptr(), back.len(), back.capacity()), (at, len, len + 7));
        assert!(back.iter().all(|byte| *byte == 9));
        drop(pool.adopt(back));
    }
    assert_eq!((pool.stats().made, pool.stats().in_use), (0, 0));
    let own = pool.take(100).unwrap().into_vec().unwrap_err();
    assert_eq!(own.len(), pool.slot_size());
    // It needs no pool.
    let block = pool.adopt(vec![1; 5000]);
    drop(own);
    drop(pool);
    assert_eq!(thread::spawn(|| block.into_vec().unwrap()).join().unwrap(), [1; 5000]);
}
