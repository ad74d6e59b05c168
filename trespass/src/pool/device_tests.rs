//! Tests of a pool over several devices: which device can reach which blocks, with which keys, and
//! what remains when a device refuses or fails. Each test has a process to itself, because fault
//! rules, regions and mappings are counted for the whole process.

use std::time::{Duration, Instant};

use sideway::ibverbs::AccessFlags;
use sideway::ibverbs::completion::{GenericCompletionQueue, WorkCompletionStatus};
use sideway::ibverbs::connect::{ConnectOptions, Endpoint, LocalPath, connect};
use sideway::ibverbs::device::DeviceList;
use sideway::ibverbs::queue_pair::{GenericQueuePair, PostSendGuard, QueuePair, WorkRequestFlags};
use sideway::soft::{self, faults};
use test_harness::alone;

use super::domain_set::MOST_DEVICES;
use super::*;
use crate::config::Builder;
use crate::protocol;
use crate::transport::pools::{forget_pools_of, pool_over};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// The pause after a refusal, and a little more.
const PAUSE: Duration = Duration::from_millis(1100);

/// A domain of each of `devices` software devices.
fn domains(devices: u8) -> Vec<ProtectionDomain> {
    let mut config = soft::Config::from_env().unwrap();
    config.devices = devices;
    let list = DeviceList::from_provider(soft::provider_with(config).unwrap()).unwrap();
    list.iter().map(|device| device.open().unwrap().alloc_pd().unwrap()).collect()
}

fn config(prewarm: usize, max: usize) -> PoolConfig {
    PoolConfig { initial: prewarm, prewarm, max, ..PoolConfig::default() }
}

fn over(domains: &[ProtectionDomain]) -> DomainSet {
    DomainSet::new(domains.to_vec())
}

fn with_fault<R>(rule: &str, run: impl FnOnce() -> R) -> R {
    faults::set(faults::parse(rule).unwrap(), 1).unwrap();
    let result = run();
    faults::clear();
    result
}

fn regions() -> u32 {
    soft::statistics().map_or(0, |statistics| statistics.regions.count)
}

/// The number of memory chunks.
fn mappings() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains("/memfd:sideway")).count()
}

fn take_all(pool: &Pool, size: usize) -> Vec<Block> {
    std::iter::from_fn(|| pool.take(size)).collect()
}

fn lkeys<const N: usize>(block: &Block) -> [bool; N] {
    std::array::from_fn(|device| block.lkey_of(device).is_some())
}

fn rkeys<const N: usize>(block: &Block) -> [bool; N] {
    std::array::from_fn(|device| block.rkey_of(device).is_some())
}

/// Two connected queue pairs of one domain.
struct ConnectedPair {
    cq: GenericCompletionQueue,
    here: GenericQueuePair,
    there: GenericQueuePair,
    device: usize,
}

impl ConnectedPair {
    fn new(domains: &[ProtectionDomain], device: usize) -> Self {
        let domain = &domains[device];
        let path = LocalPath::choose(domain.context(), 1, None).unwrap();
        let cq = domain.context().create_cq_builder().build_generic().unwrap();
        let pair =
            || domain.create_qp_builder().setup_send_cq(&cq).setup_recv_cq(&cq).build_generic().unwrap();
        let (mut here, mut there) = (pair(), pair());
        let ends = (Endpoint::new(&here, &path, 1), Endpoint::new(&there, &path, 2));
        let access_flags = AccessFlags::LocalWrite | AccessFlags::RemoteRead;
        let options = ConnectOptions { access_flags, ..ConnectOptions::default() };
        connect(&mut here, &path, &ends.0, &ends.1, &options).unwrap();
        connect(&mut there, &path, &ends.1, &ends.0, &options).unwrap();
        Self { cq, here, there, device }
    }

    fn wait(&mut self, count: usize) -> Vec<WorkCompletionStatus> {
        let (mut done, deadline) = (Vec::new(), Instant::now() + Duration::from_secs(20));
        while done.len() < count {
            assert!(Instant::now() < deadline, "only {done:?} of {count}");
            let Ok(mut poller) = self.cq.start_poll() else { continue };
            while let Some(completion) = poller.next() {
                done.push(completion.status());
            }
        }
        done
    }

    /// READs `len` bytes at an address.
    fn read(&mut self, into: &mut Block, from: *const u8, rkey: u32, len: usize) -> WorkCompletionStatus {
        let lkey = into.lkey_of(self.device).unwrap();
        let mut guard = self.here.start_post_send();
        let read = guard.construct_wr(1, WorkRequestFlags::Signaled).setup_read(rkey, from.addr() as u64);
        // SAFETY: the block is borrowed until the READ has completed, and has `len` bytes.
        unsafe { read.setup_sge(lkey, into.as_ptr() as u64, len as u32) };
        guard.post().unwrap();
        self.wait(1)[0]
    }

    /// SENDs all of a block into another.
    fn send(&mut self, from: &Block, into: &mut Block) -> Vec<WorkCompletionStatus> {
        let [source, target] = [from, into].map(|block| block.lkey_of(self.device).unwrap());
        let mut guard = self.there.start_post_recv();
        // SAFETY: both blocks are borrowed until both requests have completed.
        unsafe { guard.construct_wr(2).setup_sge(target, into.as_ptr() as u64, into.len() as u32) };
        guard.post().unwrap();
        let mut guard = self.here.start_post_send();
        let send = guard.construct_wr(1, WorkRequestFlags::Signaled).setup_send();
        // SAFETY: `from` is borrowed until the SEND has completed, and has `from.len()` bytes.
        unsafe { send.setup_sge(source, from.as_ptr() as u64, from.len() as u32) };
        guard.post().unwrap();
        self.wait(2)
    }
}

/// The status of a READ of 8 bytes over a new pair of queue pairs.
fn status_of_read(
    domains: &[ProtectionDomain],
    device: usize,
    into: &mut Block,
    from: *const u8,
    rkey: u32,
) -> WorkCompletionStatus {
    ConnectedPair::new(domains, device).read(into, from, rkey, 8)
}

/// Sends slots and reads a staged block over a device.
fn assert_carries(pool: &Pool, domains: &[ProtectionDomain], device: usize) {
    let mut pair = ConnectedPair::new(domains, device);
    let (mut from, mut into) = (pool.take(1).unwrap(), pool.take(1).unwrap());
    from.bytes_mut().fill(device as u8 + 1);
    into.bytes_mut().fill(0);
    assert_eq!(pair.send(&from, &mut into), [WorkCompletionStatus::Success; 2]);
    assert!(into.bytes() == from.bytes(), "device {device}");
    let (mut from, mut into) = (pool.take_staged(MIB).unwrap(), pool.take(MIB).unwrap());
    from.bytes_mut().fill(device as u8 + 11);
    into.bytes_mut().fill(0);
    let status = pair.read(&mut into, from.as_ptr(), from.rkey_of(device).unwrap(), MIB);
    assert_eq!(status, WorkCompletionStatus::Success);
    assert!(into.bytes() == from.bytes(), "device {device}");
}

#[test]
fn equal_sets_have_one_identity() {
    alone!(equal_sets_have_one_identity);
    let domains = domains(3);
    let [a, b, c] = [0, 1, 2].map(|device| domains[device].clone());
    let set = DomainSet::new(vec![a.clone(), b.clone()]);
    let again = DomainSet::new(vec![a.clone(), b.clone()]);
    assert!(set == again && set.identity() == again.identity());
    let singles = domains.iter().map(DomainSet::from);
    let others = [vec![b.clone(), a.clone()], vec![a.clone(), c.clone()], vec![a.clone(), b.clone(), c]];
    let others: Vec<_> = singles.chain(others.map(DomainSet::new)).collect();
    assert!(others.iter().all(|other| *other != set && other.identity() != 0));
    let single = DomainSet::new(vec![a.clone()]);
    assert!(single == DomainSet::from(&a) && single.identity() == a.as_raw().as_ptr().addr());
    assert_eq!((set.position(&a), set.position(&b), single.position(&b)), (Some(0), Some(1), None));
    assert!(set.is_soft() && set.primary().as_raw() == a.as_raw());
}

#[test]
fn the_keys_of_each_device_reach_a_block() {
    alone!(the_keys_of_each_device_reach_a_block);
    let domains = domains(3);
    let pool = Pool::with_domains(&config(4 * MIB, 64 * MIB), &over(&domains)).unwrap();
    assert_eq!((pool.stats().registered, regions()), (4 * MIB, 6));
    let (slot, staged) = (pool.take(1).unwrap(), pool.take_staged(1).unwrap());
    assert_eq!((lkeys(&slot), rkeys(&slot)), ([true, true, true, false], [false; 4]));
    assert_eq!((lkeys(&staged), rkeys(&staged)), ([true, true, true, false], [true, true, true, false]));
    assert_eq!((staged.lkey(), staged.rkey()), (staged.lkey_of(0), staged.rkey_of(0)));
    let remote = protocol::Block::remote(&staged).unwrap();
    assert_eq!(remote.addr, staged.as_ptr().addr() as u64);
    assert_eq!(
        remote.rkeys.0.map(|key| Some(key).filter(|key| *key != 0))[..4],
        [0, 1, 2, 3].map(|n| staged.rkey_of(n))
    );
    assert_eq!(protocol::Block::remote(&slot), None);
    assert_eq!((staged.lkey_of(MOST_DEVICES), staged.rkey_of(usize::MAX)), (None, None));
    assert!(staged.is_registered_in(pool.domain_id()) && staged.is_read_by_processors());
    for device in 0..3 {
        assert_carries(&pool, &domains, device);
    }
    // A set of the largest size.
    let most: Vec<_> = (0..MOST_DEVICES).map(|n| domains[n % 3].context().alloc_pd().unwrap()).collect();
    let pool = Pool::with_domains(&config(0, 64 * MIB), &over(&most)).unwrap();
    assert_eq!(lkeys(&pool.take(1).unwrap()), [true; MOST_DEVICES]);
    assert_carries(&pool, &most, MOST_DEVICES - 1);
}

#[test]
fn a_set_may_come_later() {
    alone!(a_set_may_come_later);
    let domains = domains(2);
    let pool = Pool::new(&config(0, 64 * MIB)).unwrap();
    let (slot, staged) = (pool.take(1).unwrap(), pool.take_staged(1).unwrap());
    assert_eq!((lkeys(&slot), pool.domain_id()), ([false; 2], 0));
    pool.register_in(&over(&domains)).unwrap();
    pool.register_in(&over(&domains)).unwrap();
    assert_eq!((lkeys(&slot), rkeys(&staged)), ([true; 2], [true; 2]));
    for other in [over(&domains[..1]), over(&domains[1..]), over(&[domains[1].clone(), domains[0].clone()])] {
        assert!(matches!(pool.register_in(&other), Err(PoolError::OtherDomain)));
    }
    assert!(matches!(pool.register(&domains[0]), Err(PoolError::OtherDomain)));
    assert!(pool.domain().unwrap().as_raw() == domains[0].as_raw());
    assert_carries(&pool, &domains, 1);
}

#[test]
fn memory_that_becomes_slots_is_registered_again_with_each_device() {
    alone!(memory_that_becomes_slots_is_registered_again_with_each_device);
    let domains = domains(2);
    let pool = Pool::with_domains(&config(0, 8 * MIB), &over(&domains)).unwrap();
    let mine = Pool::with_domains(&config(0, 8 * MIB), &over(&domains)).unwrap();
    let mut into = mine.take(1).unwrap();
    let staged = take_all(&pool, MIB);
    let from = staged[0].as_ptr();
    let keys = [0, 1].map(|device| staged[0].rkey_of(device).unwrap());
    for device in [0, 1] {
        let status = status_of_read(&domains, device, &mut into, from, keys[device]);
        assert_eq!(status, WorkCompletionStatus::Success);
    }
    drop(staged);
    let slots = take_all(&pool, 1);
    assert_eq!((slots.len() * 8 * KIB, pool.stats().registered), (6 * MIB, 8 * MIB));
    let was_staged = slots.iter().find(|slot| slot.as_ptr() == from).unwrap();
    assert_eq!((lkeys(was_staged), rkeys(was_staged)), ([true; 2], [false; 2]));
    for device in [0, 1] {
        for key in [keys[device], was_staged.lkey_of(device).unwrap()] {
            let status = status_of_read(&domains, device, &mut into, from, key);
            assert_eq!(status, WorkCompletionStatus::RemoteAccessError, "{device}: {key:#x}");
        }
    }
    drop(slots);
    assert_carries(&pool, &domains, 0);
    assert_carries(&pool, &domains, 1);
}

#[test]
fn no_key_is_valid_after_the_pool() {
    alone!(no_key_is_valid_after_the_pool);
    let domains = domains(2);
    let (before, mine) = (mappings(), Pool::with_domains(&config(0, 8 * MIB), &over(&domains)).unwrap());
    let mut into = mine.take(1).unwrap();
    let (chunks, made) = (mappings(), regions());
    let pool = Pool::with_domains(&config(4 * MIB, 64 * MIB), &over(&domains)).unwrap();
    let staged = pool.take(MIB).unwrap();
    let (from, keys) = (staged.as_ptr(), [0, 1].map(|device| staged.rkey_of(device).unwrap()));
    drop(pool);
    for device in [0, 1] {
        let status = status_of_read(&domains, device, &mut into, from, keys[device]);
        assert_eq!(status, WorkCompletionStatus::Success);
    }
    drop(staged);
    assert_eq!((mappings(), regions()), (chunks, made));
    for device in [0, 1] {
        let status = status_of_read(&domains, device, &mut into, from, keys[device]);
        assert_eq!(status, WorkCompletionStatus::RemoteAccessError);
    }
    drop((into, mine));
    assert_eq!((mappings(), regions()), (before, 0));
}

#[test]
fn a_refused_registration_leaves_no_region() {
    alone!(a_refused_registration_leaves_no_region);
    let domains = domains(3);
    let set = over(&domains);
    let before = mappings();
    for device in ["soft0", "soft1", "soft2"] {
        let error = with_fault(&format!("errno=ENOMEM call=reg_mr device={device}"), || {
            Pool::with_domains(&config(4 * MIB, 64 * MIB), &set).unwrap_err()
        });
        assert!(matches!(error, PoolError::Register { bytes: 0x20_0000, .. }), "{error}");
        assert!(error.to_string().contains(device), "{error}");
        assert_eq!((regions(), mappings()), (0, before));
    }
    // Registration of the second of two chunks fails, so neither has keys.
    let pool = Pool::new(&config(4 * MIB, 64 * MIB)).unwrap();
    let (slot, staged) = (pool.take(1).unwrap(), pool.take_staged(1).unwrap());
    with_fault("errno=ENOMEM call=reg_mr device=soft1 nth=2", || pool.register_in(&set)).unwrap_err();
    assert_eq!((lkeys(&slot), lkeys(&staged), regions(), pool.domain_id()), ([false; 3], [false; 3], 0, 0));
    // The region of the first device cannot be ended, and remains until another try.
    let rules = "errno=ENOMEM call=reg_mr device=soft1; errno=EBUSY call=dereg_mr device=soft0";
    with_fault(rules, || pool.register_in(&set)).unwrap_err();
    assert_eq!((lkeys(&slot), regions(), pool.stats().registered), ([false; 3], 1, 0));
    assert!(!slot.is_registered_in(set.identity()));
    pool.register_in(&set).unwrap();
    assert_eq!((lkeys(&slot), rkeys(&staged), regions()), ([true; 3], [true; 3], 6));
    assert_carries(&pool, &domains, 2);
    drop((slot, staged, pool));
    assert_eq!((regions(), mappings()), (0, before));
}

#[test]
fn memory_that_one_device_keeps_is_not_reused_and_not_freed() {
    alone!(memory_that_one_device_keeps_is_not_reused_and_not_freed);
    let domains = domains(2);
    let mine = Pool::with_domains(&config(0, 8 * MIB), &over(&domains)).unwrap();
    let mut into = mine.take(1).unwrap();
    let (chunks, made) = (mappings(), regions());
    let pool = Pool::with_domains(&config(0, 8 * MIB), &over(&domains)).unwrap();
    let staged = take_all(&pool, MIB);
    let keys = [0, 1].map(|device| staged[0].rkey_of(device).unwrap());
    let from = staged[0].as_ptr();
    drop(staged);
    // The reserved part for slots is a new chunk. Then the first chunk is to become slots.
    let slots: Vec<_> = (0..2 * MIB / (8 * KIB)).map(|_| pool.take(1).unwrap()).collect();
    assert_eq!(pool.stats().registered, 8 * MIB);
    let refused = with_fault("errno=EBUSY call=dereg_mr device=soft1", || pool.take(1));
    assert!(refused.is_none());
    assert_eq!((pool.stats().registered, pool.stats().refused, regions()), (6 * MIB, 1, made + 7));
    assert_eq!(
        [0, 1].map(|device| status_of_read(&domains, device, &mut into, from, keys[device])),
        [WorkCompletionStatus::RemoteAccessError, WorkCompletionStatus::Success]
    );
    // Nothing else takes the chunk, before the device ends the region.
    assert!(take_all(&pool, MIB).iter().all(|block| block.as_ptr() != from && block.lkey().is_some()));
    std::thread::sleep(PAUSE);
    let staged = take_all(&pool, MIB);
    let block = staged.iter().find(|block| block.as_ptr() == from).unwrap();
    assert_eq!((lkeys(block), rkeys(block), regions()), ([true; 2], [true; 2], made + 8));
    drop((staged, slots));
    pool.flush();
    with_fault("errno=EBUSY call=dereg_mr device=soft1 nth=1", || drop(pool));
    assert_eq!((mappings(), regions()), (chunks + 1, made + 1));
}

/// For either device of two: the primary one, and the other.
#[test]
fn connections_go_on_over_the_other_devices() {
    alone!(connections_go_on_over_the_other_devices);
    let contexts: Vec<_> = domains(4).iter().map(|domain| domain.context().clone()).collect();
    for (failing, works) in [(0_u8, 1_u8), (3, 2)] {
        let pair = [failing.min(works), failing.max(works)];
        let domains = pair.map(|device| contexts[usize::from(device)].alloc_pd().unwrap());
        let [failed, other] = if failing < works { [0, 1] } else { [1, 0] };
        let config = Builder::new().pool_max(256 << 20).build().unwrap();
        let pool = pool_over(over(&domains), None, &config).unwrap();
        let (alone, unaffected) = (
            pool_over(&domains[failed], None, &config).unwrap(),
            pool_over(&domains[other], None, &config).unwrap(),
        );
        let given = Pool::with_domains(&config.pool_config(), &over(&domains)).unwrap();
        let old = pool.take_staged(1).unwrap();
        assert!(!pool.is_given_up());

        faults::device_fatal(failing).unwrap();
        forget_pools_of(&domains[failed]);
        assert!(pool.is_given_up() && alone.is_given_up() && !unaffected.is_given_up());
        assert!(pool_over(over(&domains), None, &config).unwrap() != pool);
        assert!(pool_over(&domains[other], None, &config).unwrap() == unaffected);
        // What was registered before still has its keys.
        assert_eq!((lkeys(&old), rkeys(&old)), ([true; 2], [true; 2]));
        for pool in [&pool, &given] {
            let new: Vec<_> = (0..6).map(|_| pool.take(MIB).unwrap()).collect();
            let new = new.last().unwrap();
            let keys = [0, 1].map(|device| device == other);
            assert_eq!((lkeys(new), rkeys(new)), (keys, keys));
            assert_eq!((new.lkey().is_some(), new.rkey().is_some()), (other == 0, other == 0));
            assert!(new.is_registered_in(pool.domain_id()));
            let remote = protocol::Block::remote(new).unwrap();
            assert_eq!([0, 1].map(|device| remote.rkeys.of(device) != 0), keys);
            assert_eq!(pool.stats().refused, 0);
            assert_carries(pool, &domains, other);
        }
        let adopted = pool.adopt(vec![5; 64 * KIB]);
        adopted.lend(pool.domain_id());
        assert_eq!(lkeys(&adopted), [0, 1].map(|device| device == other));
        let keys = pool.expose_to_all(&[1; 100], |keys| keys.to_vec()).unwrap();
        assert_eq!([0, 1].map(|device| keys[device].is_some()), [0, 1].map(|device| device == other));
        assert!(adopted.into_vec().is_ok());
    }
}

/// A failed device may refuse to end a region, so the chunk would be lost.
#[test]
fn a_chunk_with_a_region_of_a_failed_device_keeps_its_kind() {
    alone!(a_chunk_with_a_region_of_a_failed_device_keeps_its_kind);
    let domains = domains(2);
    let pool = Pool::with_domains(&config(0, 8 * MIB), &over(&domains)).unwrap();
    drop(take_all(&pool, MIB));
    faults::device_fatal(0).unwrap();
    forget_pools_of(&domains[0]);
    let slots = take_all(&pool, 1);
    assert_eq!((slots.len() * 8 * KIB, lkeys(&slots[0])), (2 * MIB, [false, true]));
    let staged = take_all(&pool, MIB);
    assert_eq!((staged.len(), pool.stats().refused), (6, 0));
    assert!(staged.iter().all(|block| rkeys(block) == [true; 2]));
    drop(staged);
    // Without regions of the failed device a chunk changes as before.
    drop(slots);
    let mine = Pool::with_domains(&config(0, 8 * MIB), &over(&domains)).unwrap();
    drop(take_all(&mine, MIB));
    assert_eq!(take_all(&mine, 1).len() * 8 * KIB, 6 * MIB);

    forget_pools_of(&domains[1]);
    let error = Pool::with_domains(&config(2 * MIB, 8 * MIB), &over(&domains)).unwrap_err();
    assert!(error.to_string().contains("each device of the pool has failed"), "{error}");
    let error = mine.expose_to_all(&[1; 100], |_| ()).unwrap_err();
    assert!(matches!(error, PoolError::Register { bytes: 100, .. }), "{error}");
}

#[test]
fn adopted_memory_is_registered_with_each_device() {
    alone!(adopted_memory_is_registered_with_each_device);
    let domains = domains(2);
    let pool = Pool::with_domains(&config(0, 8 * MIB), &over(&domains)).unwrap();
    let mut into = pool.take(64 * KIB).unwrap();
    let before = regions();
    let block = pool.adopt(vec![7; 64 * KIB]);
    for wanted in [DomainSet::from(&domains[0]), DomainSet::from(&domains[1])] {
        block.lend(wanted.identity());
        assert_eq!((lkeys(&block), regions()), ([false; 2], before), "another set");
    }
    for rule in ["errno=ENOMEM call=reg_mr device=soft0", "errno=ENOMEM call=reg_mr device=soft1"] {
        with_fault(rule, || block.lend(pool.domain_id()));
        assert_eq!((lkeys(&block), regions()), ([false; 2], before), "{rule}");
    }
    let rules = "errno=ENOMEM call=reg_mr device=soft1; errno=EBUSY call=dereg_mr device=soft0";
    with_fault(rules, || block.lend(pool.domain_id()));
    assert_eq!((lkeys(&block), regions()), ([false; 2], before + 1));
    assert_eq!(pool.stats().adopted.registered, 64 * KIB);
    for _ in 0..2 {
        block.lend(pool.domain_id());
        assert_eq!((lkeys(&block), rkeys(&block), regions()), ([true; 2], [true; 2], before + 2));
        for device in [0, 1] {
            let mut pair = ConnectedPair::new(&domains, device);
            into.bytes_mut().fill(0);
            let status = pair.read(&mut into, block.as_ptr(), block.rkey_of(device).unwrap(), 64 * KIB);
            assert_eq!(status, WorkCompletionStatus::Success);
            assert!(into.bytes() == block.bytes());
        }
        block.returned();
    }
    let stats = pool.stats().adopted;
    assert_eq!((stats.made, stats.reused, stats.refused, stats.registered), (1, 1, 3, 64 * KIB));
    let (from, keys) = (block.as_ptr(), [0, 1].map(|device| block.rkey_of(device).unwrap()));
    // The memory stays with the block while one device keeps its region.
    let block = with_fault("errno=EBUSY call=dereg_mr device=soft0", || block.into_vec()).unwrap_err();
    assert_eq!((lkeys(&block), regions()), ([false; 2], before + 1));
    block.returned();
    let vec = block.into_vec().unwrap();
    assert_eq!((vec, regions(), pool.stats().adopted.registered), (vec![7; 64 * KIB], before, 0));
    for device in [0, 1] {
        let status = status_of_read(&domains, device, &mut into, from, keys[device]);
        assert_eq!(status, WorkCompletionStatus::RemoteAccessError);
    }
    // The last one goes with its block.
    let block = pool.adopt(vec![8; 64 * KIB]);
    block.lend(pool.domain_id());
    drop(block);
    assert_eq!((regions(), pool.stats().adopted.registered), (before, 0));
}

#[test]
fn borrowed_bytes_have_a_key_for_each_device() {
    alone!(borrowed_bytes_have_a_key_for_each_device);
    let domains = domains(2);
    let pool = Pool::with_domains(&config(0, 8 * MIB), &over(&domains)).unwrap();
    let mut into = pool.take(64 * KIB).unwrap();
    let before = regions();
    let bytes: Vec<u8> = (0..64 * KIB).map(|n| (n % 251) as u8).collect();
    let keys = with_fault("errno=EBUSY call=dereg_mr nth=1", || {
        pool.expose_to_all(&bytes, |keys| {
            assert_eq!(regions(), before + 2);
            for (device, key) in keys.iter().enumerate() {
                into.bytes_mut().fill(0);
                let mut pair = ConnectedPair::new(&domains, device);
                let status = pair.read(&mut into, bytes.as_ptr(), key.unwrap(), bytes.len());
                assert_eq!(status, WorkCompletionStatus::Success);
                assert!(into.bytes() == bytes);
            }
            keys.to_vec()
        })
        .unwrap()
    });
    assert_eq!((keys.len(), regions()), (2, before));
    for (device, key) in keys.iter().enumerate() {
        let status = status_of_read(&domains, device, &mut into, bytes.as_ptr(), key.unwrap());
        assert_eq!(status, WorkCompletionStatus::RemoteAccessError);
    }
    pool.expose(&bytes, |key| {
        assert_eq!(regions(), before + 1);
        let status = status_of_read(&domains, 0, &mut into, bytes.as_ptr(), key);
        assert_eq!(status, WorkCompletionStatus::Success);
    })
    .unwrap();
    let error = with_fault("errno=ENOMEM call=reg_mr device=soft1", || {
        pool.expose_to_all(&bytes, |_| unreachable!("one device refuses")).unwrap_err()
    });
    assert!(error.to_string().contains("soft1"), "{error}");
    assert_eq!(regions(), before);
}

#[test]
fn connections_over_equal_sets_share_a_pool() {
    alone!(connections_over_equal_sets_share_a_pool);
    let domains = domains(2);
    let turned = over(&[domains[1].clone(), domains[0].clone()]);
    let config = Builder::new().build().unwrap();
    let pool = pool_over(over(&domains), None, &config).unwrap();
    assert!(pool_over(over(&domains), None, &config).unwrap() == pool);
    assert!(pool_over(over(&domains), Some(&pool), &config).unwrap() == pool);
    let others = [
        pool_over(&turned, Some(&pool), &config).unwrap(),
        pool_over(&domains[0], Some(&pool), &config).unwrap(),
        pool_over(&domains[1], Some(&pool), &config).unwrap(),
    ];
    assert!(others.iter().all(|other| *other != pool));
    assert!(pool_over(&domains[0], None, &config).unwrap() == others[1]);
    // A pool of the program becomes one of the first set.
    let given = Pool::new(&config.pool_config()).unwrap();
    let config = Builder::new().pool(given.clone()).build().unwrap();
    assert!(pool_over(over(&domains), Some(&given), &config).unwrap() == given);
    assert!(pool_over(&turned, Some(&given), &config).is_err());
    assert!(pool_over(&domains[0], Some(&given), &config).unwrap() == given);
    assert!(pool_over(&domains[1], Some(&given), &config).is_err());
    assert_carries(&given, &domains, 1);
}
