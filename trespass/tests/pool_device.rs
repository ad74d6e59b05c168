//! Tests of a pool's memory and a device: which connection can reach which blocks, and with which
//! keys. Both ends run over soft0 in one process. Each test has a process to itself, because faults
//! and the count of mappings belong to the whole process.

use std::time::{Duration, Instant};

use sideway::ProviderChoice;
use sideway::ibverbs::AccessFlags;
use sideway::ibverbs::completion::{GenericCompletionQueue, WorkCompletionStatus};
use sideway::ibverbs::connect::{ConnectOptions, Endpoint, LocalPath, connect};
use sideway::ibverbs::device::DeviceList;
use sideway::ibverbs::device_context::DeviceContext;
use sideway::ibverbs::protection_domain::ProtectionDomain;
use sideway::ibverbs::queue_pair::{GenericQueuePair, PostSendGuard, QueuePair, WorkRequestFlags};
use sideway::soft::faults;
use trespass::pool::{Block, HugePages, Pool, PoolConfig, PoolError};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

fn device() -> DeviceContext {
    let provider = ProviderChoice::Soft.select().unwrap().provider();
    DeviceList::from_provider(provider).unwrap().first().unwrap().open().unwrap()
}

fn config(prewarm: usize, max: usize) -> PoolConfig {
    let mut config = PoolConfig::default();
    (config.initial, config.prewarm, config.max) = (prewarm, prewarm, max);
    config
}

/// Two queue pairs that are connected.
struct RegisteredPair {
    cq: GenericCompletionQueue,
    here: GenericQueuePair,
    there: GenericQueuePair,
}

impl RegisteredPair {
    fn new(here: &ProtectionDomain, there: &ProtectionDomain) -> Self {
        let context = here.context();
        let path = LocalPath::choose(context, 1, None).unwrap();
        let cq = context.create_cq_builder().build_generic().unwrap();
        let pair = |pd: &ProtectionDomain| {
            pd.create_qp_builder().setup_send_cq(&cq).setup_recv_cq(&cq).build_generic().unwrap()
        };
        let (mut here, mut there) = (pair(here), pair(there));
        let ends = (Endpoint::new(&here, &path, 1), Endpoint::new(&there, &path, 2));
        // The queue pair allows everything that a region could allow.
        let access_flags = AccessFlags::LocalWrite | AccessFlags::RemoteRead | AccessFlags::RemoteWrite;
        let options = ConnectOptions { access_flags, ..ConnectOptions::default() };
        connect(&mut here, &path, &ends.0, &ends.1, &options).unwrap();
        connect(&mut there, &path, &ends.1, &ends.0, &options).unwrap();
        Self { cq, here, there }
    }

    fn wait(&mut self, count: usize) -> Vec<(u64, WorkCompletionStatus)> {
        let (mut done, deadline) = (Vec::new(), Instant::now() + Duration::from_secs(20));
        while done.len() < count {
            assert!(Instant::now() < deadline, "only {done:?} of {count}");
            let Ok(mut poller) = self.cq.start_poll() else { continue };
            while let Some(wc) = poller.next() {
                done.push((wc.wr_id(), wc.status()));
            }
        }
        done
    }

    /// READs `len` bytes of the peer's memory.
    fn read(&mut self, into: &mut Block, from: *mut u8, rkey: u32, len: usize) -> WorkCompletionStatus {
        let mut guard = self.here.start_post_send();
        let read = guard.construct_wr(1, WorkRequestFlags::Signaled).setup_read(rkey, from.addr() as u64);
        // SAFETY: the block is borrowed until the READ has completed, and has `len` bytes.
        unsafe { read.setup_sge(into.lkey().unwrap(), into.as_ptr() as u64, len as u32) };
        guard.post().unwrap();
        self.wait(1)[0].1
    }

    /// SENDs all of a block into another.
    fn send(&mut self, from: &Block, into: &mut Block) {
        let mut guard = self.there.start_post_recv();
        // SAFETY: both blocks are borrowed until both requests have completed.
        unsafe {
            guard.construct_wr(2).setup_sge(into.lkey().unwrap(), into.as_ptr() as u64, into.len() as u32)
        };
        guard.post().unwrap();
        let mut guard = self.here.start_post_send();
        let send = guard.construct_wr(1, WorkRequestFlags::Signaled).setup_send();
        // SAFETY: `from` is borrowed until the SEND has completed, and has `from.len()` bytes.
        unsafe { send.setup_sge(from.lkey().unwrap(), from.as_ptr() as u64, from.len() as u32) };
        guard.post().unwrap();
        assert!(self.wait(2).iter().all(|(_, status)| *status == WorkCompletionStatus::Success));
    }
}

fn fill(block: &mut Block, with: u8) {
    block.bytes_mut().fill(with);
}

fn is_all(block: &Block, len: usize, of: u8) -> bool {
    block.bytes()[..len].iter().all(|&byte| byte == of)
}

#[test]
fn slots_are_sent_and_received_and_staged_blocks_read() {
    alone!(slots_are_sent_and_received_and_staged_blocks_read);
    let context = device();
    let (here, there) = (context.alloc_pd().unwrap(), context.alloc_pd().unwrap());
    let config = config(4 * MIB, 32 * MIB);
    let (mine, theirs) =
        (Pool::with_domain(&config, &here).unwrap(), Pool::with_domain(&config, &there).unwrap());
    let mut link = RegisteredPair::new(&here, &there);
    for n in 1..=20 {
        let (mut from, mut into) = (mine.take(1).unwrap(), theirs.take(1).unwrap());
        fill(&mut from, n);
        link.send(&from, &mut into);
        assert!(is_all(&into, 8 * KIB, n));
    }
    for (n, size) in [64 * KIB, 256 * KIB, MIB].into_iter().enumerate() {
        let (mut from, mut into) = (theirs.take(size).unwrap(), mine.take(size).unwrap());
        fill(&mut from, n as u8 + 50);
        let status = link.read(&mut into, from.as_ptr(), from.rkey().unwrap(), size);
        assert_eq!(status, WorkCompletionStatus::Success);
        assert!(is_all(&into, size, n as u8 + 50));
        // A slot can be the destination of a READ, too.
        let mut slot = mine.take(1).unwrap();
        let status = link.read(&mut slot, from.as_ptr(), from.rkey().unwrap(), 8 * KIB);
        assert_eq!((status, is_all(&slot, 8 * KIB, n as u8 + 50)), (WorkCompletionStatus::Success, true));
    }
    assert_eq!((mine.stats().in_use, theirs.stats().in_use), (0, 0));
}

#[test]
fn no_peer_reads_a_slot() {
    alone!(no_peer_reads_a_slot);
    let context = device();
    let (here, there) = (context.alloc_pd().unwrap(), context.alloc_pd().unwrap());
    let (mine, theirs) = (
        Pool::with_domain(&config(0, 32 * MIB), &here).unwrap(),
        Pool::with_domain(&config(0, 32 * MIB), &there).unwrap(),
    );
    let (mut secret, staged) = (theirs.take(1).unwrap(), theirs.take_staged(1).unwrap());
    fill(&mut secret, 77);
    assert_eq!(secret.rkey(), None);
    // The key that the slots may have, and the key that the peer was told.
    for key in [secret.lkey().unwrap(), staged.rkey().unwrap()] {
        let mut link = RegisteredPair::new(&here, &there);
        let mut into = mine.take_staged(1).unwrap();
        fill(&mut into, 1);
        let status = link.read(&mut into, secret.as_ptr(), key, 8);
        assert_eq!(status, WorkCompletionStatus::RemoteAccessError, "{key:#x}");
        assert!(is_all(&into, 64 * KIB, 1));
    }
    // A peer cannot write a block that it may only read.
    let mut link = RegisteredPair::new(&here, &there);
    let from = mine.take(1).unwrap();
    let mut guard = link.here.start_post_send();
    let to = staged.as_ptr() as u64;
    let write = guard.construct_wr(1, WorkRequestFlags::Signaled).setup_write(staged.rkey().unwrap(), to);
    // SAFETY: the block lives until the WRITE has completed.
    unsafe { write.setup_sge(from.lkey().unwrap(), from.as_ptr() as u64, 8) };
    guard.post().unwrap();
    assert_eq!(link.wait(1)[0].1, WorkCompletionStatus::RemoteAccessError);
}

#[test]
fn memory_that_becomes_slots_is_not_readable_any_more() {
    alone!(memory_that_becomes_slots_is_not_readable_any_more);
    let context = device();
    let (here, there) = (context.alloc_pd().unwrap(), context.alloc_pd().unwrap());
    let mine = Pool::with_domain(&config(0, 8 * MIB), &here).unwrap();
    let theirs = Pool::with_domain(&config(0, 8 * MIB), &there).unwrap();
    let staged: Vec<_> = std::iter::from_fn(|| theirs.take(MIB)).collect();
    let keys: Vec<_> = staged.iter().map(|block| block.rkey().unwrap()).collect();
    let mut into = mine.take(1).unwrap();
    let from = staged[0].as_ptr();
    assert_eq!(
        RegisteredPair::new(&here, &there).read(&mut into, from, keys[0], 8),
        WorkCompletionStatus::Success
    );
    drop(staged);
    let slots: Vec<_> = std::iter::from_fn(|| theirs.take(1)).collect();
    assert_eq!(slots.len() * 8 * KIB, 6 * MIB);
    assert_eq!(theirs.stats().registered, 8 * MIB);
    let was_staged = slots.iter().find(|slot| slot.as_ptr() == from).expect("it is slots now");
    for key in keys.into_iter().chain(was_staged.lkey()) {
        let status = RegisteredPair::new(&here, &there).read(&mut into, from, key, 8);
        assert_eq!(status, WorkCompletionStatus::RemoteAccessError, "{key:#x}");
    }
}

#[test]
fn a_domain_may_come_later() {
    alone!(a_domain_may_come_later);
    let context = device();
    let (here, there) = (context.alloc_pd().unwrap(), context.alloc_pd().unwrap());
    let pool = Pool::new(&config(0, 64 * MIB)).unwrap();
    let (mut slot, mut staged) = (pool.take(1).unwrap(), pool.take_staged(1).unwrap());
    assert_eq!((slot.lkey(), slot.rkey(), staged.lkey(), staged.rkey()), (None, None, None, None));
    fill(&mut slot, 3);
    fill(&mut staged, 4);
    assert_eq!((pool.stats().registered, pool.domain().is_none()), (0, true));
    pool.register(&here).unwrap();
    pool.register(&here).unwrap();
    assert_eq!(pool.stats().registered, pool.stats().made);
    let error = pool.register(&there).unwrap_err();
    assert!(matches!(error, PoolError::OtherDomain), "{error}");
    assert!(is_all(&slot, 8 * KIB, 3) && is_all(&staged, 64 * KIB, 4));
    assert!(slot.lkey().is_some() && slot.rkey().is_none());
    // Memory that is added later is registered at once.
    let later: Vec<_> = (0..100).map(|_| pool.take(256 * KIB).unwrap()).collect();
    assert!(later.iter().all(|block| block.lkey().is_some() && block.rkey().is_some()));
    let mut link = RegisteredPair::new(&here, &here);
    let mut into = pool.take(1).unwrap();
    link.send(&slot, &mut into);
    assert!(is_all(&into, 8 * KIB, 3));
    let (from, key) = (staged.as_ptr(), staged.rkey().unwrap());
    assert_eq!(link.read(&mut into, from, key, 100), WorkCompletionStatus::Success);
    assert!(is_all(&into, 100, 4));
}

fn with_fault<R>(rule: &str, run: impl FnOnce() -> R) -> R {
    faults::set(faults::parse(rule).unwrap(), 1).unwrap();
    let result = run();
    faults::clear();
    result
}

#[test]
fn a_failed_registration_leaves_the_pool_unchanged() {
    alone!(a_failed_registration_leaves_the_pool_unchanged);
    let context = device();
    let pd = context.alloc_pd().unwrap();
    let error = with_fault("errno=ENOMEM call=reg_mr", || {
        Pool::with_domain(&config(4 * MIB, 64 * MIB), &pd).unwrap_err()
    });
    assert!(matches!(error, PoolError::Register { bytes: 0x20_0000, .. }), "{error}");
    // Registration of the second of two chunks fails, so neither has keys.
    let pool = Pool::new(&config(4 * MIB, 64 * MIB)).unwrap();
    let (slot, staged) = (pool.take(1).unwrap(), pool.take_staged(1).unwrap());
    with_fault("errno=ENOMEM call=reg_mr nth=2", || pool.register(&pd)).unwrap_err();
    assert_eq!((slot.lkey(), staged.lkey(), pool.stats().registered), (None, None, 0));
    assert!(pool.domain().is_none());
    pool.register(&pd).unwrap();
    assert!(slot.lkey().is_some() && staged.rkey().is_some());
    // A pool that cannot grow is empty, and does not retry the registration at once.
    let slots = with_fault("errno=ENOMEM call=reg_mr", || {
        let slots: Vec<_> = std::iter::from_fn(|| pool.take(1)).collect();
        assert!(pool.take(1).is_none() && pool.take(1).is_none());
        slots
    });
    let stats = pool.stats();
    assert_eq!((slots.len(), stats.refused, stats.empty()), (255, 1, 3));
    drop(slots);
    assert!(pool.take(1).is_some());
    std::thread::sleep(Duration::from_millis(1100));
    assert_eq!((0..600).map_while(|_| pool.take(1).map(std::mem::forget)).count(), 600);
}

#[test]
fn memory_that_stays_registered_is_not_freed() {
    alone!(memory_that_stays_registered_is_not_freed);
    let context = device();
    let pd = context.alloc_pd().unwrap();
    let before = mappings();
    let pool = Pool::with_domain(&config(4 * MIB, 64 * MIB), &pd).unwrap();
    assert_eq!(mappings(), before + 2);
    with_fault("errno=EBUSY call=dereg_mr nth=1", || drop(pool));
    assert_eq!(mappings(), before + 1);
}

/// The number of memory chunks.
fn mappings() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains("/memfd:sideway")).count()
}

#[test]
fn a_pool_leaves_nothing_behind() {
    alone!(a_pool_leaves_nothing_behind);
    let context = device();
    let before = mappings();
    for _ in 0..50 {
        let pd = context.alloc_pd().unwrap();
        let pool = Pool::with_domain(&config(4 * MIB, 64 * MIB), &pd).unwrap();
        let slots: Vec<_> = (0..700).map(|_| pool.take(1).unwrap()).collect();
        let staged = pool.take(MIB).unwrap();
        assert!(mappings() > before + 2);
        drop(pool);
        // Idle memory is released, blocks in use are not.
        assert!(mappings() > before);
        std::thread::spawn(move || drop((slots, staged))).join().unwrap();
        assert_eq!(mappings(), before);
    }
}

#[test]
fn huge_pages_are_taken_as_is_said() {
    alone!(huge_pages_are_taken_as_is_said);
    let context = device();
    let pd = context.alloc_pd().unwrap();
    let free = std::fs::read_to_string("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
    let free: usize = free.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0);
    let mut config = config(4 * MIB, 64 * MIB);
    // The device uses ordinary pages, whatever the system offers, and the pool works in any case.
    config.huge_pages = HugePages::Wanted;
    assert!(Pool::with_domain(&config, &pd).unwrap().take(1).is_some());
    assert!(Pool::new(&config).unwrap().take(1).is_some());
    config.huge_pages = HugePages::Required;
    match Pool::with_domain(&config, &pd) {
        Ok(pool) => assert!(free >= 2 && pool.take(1).is_some()),
        Err(error) => assert!(free < 2 && error.to_string().contains("nr_hugepages"), "{free}: {error}"),
    }
}

#[test]
fn borrowed_bytes_are_read_for_the_time_of_a_call() {
    alone!(borrowed_bytes_are_read_for_the_time_of_a_call);
    let context = device();
    let (here, there) = (context.alloc_pd().unwrap(), context.alloc_pd().unwrap());
    let mine = Pool::with_domain(&config(0, 32 * MIB), &here).unwrap();
    let theirs = Pool::new(&config(0, 32 * MIB)).unwrap();
    let bytes: Vec<u8> = (0..MIB).map(|n| (n % 251) as u8).collect();
    assert!(matches!(theirs.expose(&bytes, |_| ()), Err(PoolError::NoDomain)));
    theirs.register(&there).unwrap();
    let mut link = RegisteredPair::new(&here, &there);
    let mut into = mine.take(MIB).unwrap();
    let from = bytes.as_ptr().cast_mut();
    // Deregistration is retried while the device is busy.
    let (key, status) = with_fault("errno=EBUSY call=dereg_mr nth=1", || {
        theirs.expose(&bytes, |key| (key, link.read(&mut into, from, key, MIB))).unwrap()
    });
    assert_eq!(status, WorkCompletionStatus::Success);
    assert!(into.bytes() == bytes);
    assert_eq!(link.read(&mut into, from, key, 1), WorkCompletionStatus::RemoteAccessError);
    // Read-only memory works, too.
    static CONSTANT: [u8; 10_000] = [9; 10_000];
    let mut link = RegisteredPair::new(&here, &there);
    let from = CONSTANT.as_ptr().cast_mut();
    let status = theirs.expose(&CONSTANT, |key| link.read(&mut into, from, key, CONSTANT.len())).unwrap();
    assert_eq!((status, is_all(&into, CONSTANT.len(), 9)), (WorkCompletionStatus::Success, true));
    let error = with_fault("errno=ENOMEM call=reg_mr", || theirs.expose(&bytes, |_| unreachable!()));
    assert!(matches!(error, Err::<(), _>(PoolError::Register { bytes: MIB, .. })));
}
