//! One-sided operations on windows while the device fails them, or refuses what they need.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rand_chacha::rand_core::Rng;
use sideway::soft::{self, faults};
use test_harness::{Outcome, Suite, cases, fill};
use trespass::Builder;
use trespass::mux::{Mux, MuxConfig};
use trespass::window::{Access, Protection, Window, WindowConfig, WindowError, WindowKey, Windows};

use super::{all_have_acted, builder, in_use, nothing_is_left, nothing_is_open, rules, streams};
use crate::fixture::{Fixture, LONG, below, random};

pub(super) fn add(suite: &mut Suite<Fixture>) {
    cases!(suite: repaired_faults_change_no_operation, failed_operations_are_performed_once_and_in_order,
        atomics_lose_no_count_or_are_unknown, an_atomic_that_may_have_been_performed_is_not_repeated,
        a_put_that_hangs_silently_is_unknown, calls_that_are_shorter_than_a_hang_end_it,
        a_flush_ends_puts_that_have_failed, a_put_that_was_given_up_is_performed_before_later_ones,
        a_put_of_a_device_that_was_given_up_comes_before_messages,
        a_key_that_the_device_uses_again_reaches_no_other_window,
        gets_go_back_to_the_device_after_a_revocation,
        the_process_does_what_the_device_refuses, memory_comes_back_when_the_device_lets_go,
        a_queue_pair_that_cannot_be_stopped_leaves_its_puts_unknown,
        a_queue_that_cannot_be_armed_serves_all_threads, memory_comes_back_while_the_port_is_down,
        a_peer_that_opens_paths_all_the_time_has_one);
}

pub(super) fn add_last(suite: &mut Suite<Fixture>) {
    cases!(suite: a_device_that_fails_leaves_no_window_to_the_peer);
}

fn config() -> WindowConfig {
    WindowConfig::new().operation_timeout(Some(LONG))
}

/// A builder without probes, because they are WRITEs, too. A request that hangs is given up soon.
fn quiet(fixture: &Fixture) -> Builder {
    builder(fixture).keepalive(None).ack_timeout(14).rail_timeout(Duration::from_millis(300))
}

/// A client, and the owner of the windows.
fn pair(fixture: &Fixture, builder: &Builder, config: &WindowConfig) -> (Windows, Windows) {
    let [client, owner] = streams(fixture, builder);
    thread::scope(|scope| {
        let owner = scope.spawn(|| Windows::over(owner, config).unwrap());
        (Windows::over(client, config).unwrap(), owner.join().unwrap())
    })
}

/// Offers a block of zeros.
fn offer(owner: &Windows, len: usize) -> Window {
    let block = owner.buffer(len).unwrap();
    owner.offer(block, len, Access::ALL, None).map_err(|(error, _)| error).unwrap()
}

fn read(window: &Window) -> Vec<u8> {
    let mut bytes = vec![0; window.key().len() as usize];
    window.read(0, &mut bytes).unwrap();
    bytes
}

/// Runs `operate` while the owner performs the operations, until the client is dropped.
fn served<R>(client: Windows, owner: &Windows, operate: impl FnOnce(&Windows) -> R) -> R {
    thread::scope(|scope| {
        let serving = scope.spawn(|| owner.serve().unwrap());
        let done = operate(&client);
        drop(client);
        serving.join().unwrap();
        done
    })
}

fn bytes(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fill(seed, 0, &mut bytes);
    bytes
}

/// The memory regions of this process.
fn regions() -> u32 {
    soft::statistics().expect("a device was used").regions.count
}

fn queue_pairs() -> u32 {
    in_use()[0]
}

/// The requests that the first rule has met.
fn matched() -> u64 {
    faults::report()[0].matched
}

const LEN: usize = 20_000;

/// Random operations of one thread, each of which must have its effect, and no other, when it returns.
fn does_what_a_model_does(client: &Windows, window: &Window, seed: u64, steps: usize) {
    let key = window.key().clone();
    let first = (8 - key.base() % 8) % 8;
    let (mut random, mut model) = (random(seed), vec![0_u8; LEN]);
    for step in 0..steps {
        let len = 1 + below(&mut random, [10, 1000, 9000][step % 3]);
        let at = below(&mut random, LEN - len);
        match below(&mut random, 5) {
            0 | 1 => {
                let sent = bytes(len, random.next_u64());
                client.put(&key, at as u64, &sent).unwrap();
                model[at..at + len].copy_from_slice(&sent);
            }
            2 => {
                let mut got = vec![0; len];
                client.get(&key, at as u64, &mut got).unwrap();
                assert!(got == model[at..at + len], "step {step}");
            }
            3 => {
                // More ranges than a device performs at a time.
                let ranges: Vec<_> = (0..40).map(|range| (range * 100, 3)).collect();
                let sent = bytes(120, random.next_u64());
                client.put_vectored(&key, &ranges, &sent).unwrap();
                for (range, sent) in sent.chunks(3).enumerate() {
                    model[range * 100..][..3].copy_from_slice(sent);
                }
            }
            _ => {
                let number = first + 8 * below(&mut random, LEN / 8 - 1) as u64;
                let place = &mut model[number as usize..][..8];
                let old = u64::from_ne_bytes(place.try_into().unwrap());
                let add = random.next_u64();
                place.copy_from_slice(&old.wrapping_add(add).to_ne_bytes());
                // A queue pair that has just failed may not be replaced yet.
                let limit = Instant::now() + LONG;
                let found = loop {
                    match client.fetch_add(&key, number, add) {
                        Err(WindowError::NoPath) => assert!(Instant::now() < limit),
                        found => break found.unwrap(),
                    }
                };
                assert_eq!(found, old, "step {step}");
            }
        }
        assert!(read(window) == model, "step {step}");
    }
}

/// Runs the operations under a rule. Then the memory comes back, and nothing is left.
fn is_not_visible(fixture: &Fixture, text: &str, seed: u64) {
    let (client, owner) = pair(fixture, &quiet(fixture), &config());
    let pool = owner.pool().clone();
    let window = offer(&owner, LEN);
    assert_eq!(window.protection(), Protection::Domain);
    rules(text, seed);
    served(client, &owner, |client| does_what_a_model_does(client, &window, seed, 120));
    all_have_acted();
    faults::clear();
    let all = read(&window);
    assert!(window.revoke().unwrap().bytes()[..LEN] == all, "{text}");
    drop(owner);
    nothing_is_left(&pool);
}

fn repaired_faults_change_no_operation(fixture: &Fixture) -> Outcome {
    faults::clear();
    for (seed, text) in [
        "drop=1 opcode=rdma_write every=3; drop=2 opcode=rdma_read every=2",
        "drop=1 opcode=atomic_fetch_and_add every=2",
        "delay=10us..2ms opcode=rdma_write,rdma_read chance=0.3; delay=1ms opcode=atomic_fetch_and_add every=3",
        "split=200us opcode=rdma_write chance=0.3",
        "pause=before_copy:2ms opcode=rdma_write nth=5; pause=mid_copy:2ms size=1000.. nth=2",
    ]
    .into_iter()
    .enumerate()
    {
        is_not_visible(fixture, text, seed as u64);
    }
    Ok(())
}

fn failed_operations_are_performed_once_and_in_order(fixture: &Fixture) -> Outcome {
    faults::clear();
    for (seed, text) in [
        "status=retry_exc_err opcode=rdma_write nth=2; status=retry_exc_err opcode=rdma_write nth=3; status=retry_exc_err opcode=rdma_write nth=6",
        "status=retry_exc_err opcode=rdma_read nth=2; status=retry_exc_err opcode=rdma_read nth=3; status=retry_exc_err opcode=rdma_read nth=6",
        "status=rem_access_err opcode=rdma_write every=4",
        "status=rem_op_err opcode=rdma_write every=4; status=fatal_err opcode=rdma_read nth=3",
        "status=rem_access_err opcode=atomic_fetch_and_add every=2",
        "drop opcode=rdma_write nth=2; drop opcode=rdma_write nth=5",
        "qp_fatal opcode=rdma_write nth=3; qp_fatal opcode=rdma_read nth=4",
        "hang opcode=rdma_write nth=4",
        "hang opcode=rdma_read nth=3",
    ]
    .into_iter()
    .enumerate()
    {
        is_not_visible(fixture, text, 100 + seed as u64);
    }
    Ok(())
}

/// Several threads count. Each addition is performed once, or its outcome is unknown.
fn atomics_lose_no_count_or_are_unknown(fixture: &Fixture) -> Outcome {
    faults::clear();
    for text in [
        "status=retry_exc_err opcode=atomic_fetch_and_add every=10",
        "status=rem_access_err opcode=atomic_fetch_and_add every=10",
        "drop opcode=atomic_fetch_and_add every=15",
        "hang opcode=atomic_fetch_and_add nth=20",
    ] {
        let (client, owner) = pair(fixture, &quiet(fixture), &config());
        let pool = owner.pool().clone();
        let window = offer(&owner, 64);
        let key = window.key();
        let at = (8 - key.base() % 8) % 8;
        let (sure, unknown) = (AtomicU64::new(0), AtomicU64::new(0));
        rules(text, 1);
        let total = served(client, &owner, |client| {
            thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| {
                        for _ in 0..30 {
                            match client.fetch_add(key, at, 1) {
                                Ok(_) => _ = sure.fetch_add(1, Ordering::Relaxed),
                                Err(WindowError::OutcomeUnknown) => {
                                    _ = unknown.fetch_add(1, Ordering::Relaxed)
                                }
                                Err(WindowError::NoPath) => {}
                                Err(error) => panic!("{text}: {error}"),
                            }
                        }
                    });
                }
            });
            all_have_acted();
            faults::clear();
            let mut number = [0; 8];
            client.get(key, at, &mut number).unwrap();
            u64::from_ne_bytes(number)
        });
        let (sure, unknown) = (sure.into_inner(), unknown.into_inner());
        assert!((sure..=sure + unknown).contains(&total), "{text}: {sure} and {unknown} of {total}");
        assert!(sure > 0, "{text}");
        window.revoke().unwrap();
        drop(owner);
        nothing_is_left(&pool);
    }
    Ok(())
}

/// A device that reports that it failed may have performed the operation.
fn an_atomic_that_may_have_been_performed_is_not_repeated(fixture: &Fixture) -> Outcome {
    faults::clear();
    let (client, owner) = pair(fixture, &quiet(fixture), &config());
    let window = offer(&owner, 64);
    let at = (8 - window.key().base() % 8) % 8;
    rules("status=rem_op_err opcode=atomic_fetch_and_add nth=1", 1);
    served(client, &owner, |client| {
        let error = client.fetch_add(window.key(), at, 1).unwrap_err();
        assert!(matches!(error, WindowError::OutcomeUnknown), "{error}");
        assert_eq!(matched(), 1);
        assert_eq!(client.fetch_add(window.key(), at, 1).unwrap(), 0);
    });
    all_have_acted();
    faults::clear();
    Ok(())
}

/// The device may still read the bytes, which are lost therefore.
fn a_put_that_hangs_silently_is_unknown(fixture: &Fixture) -> Outcome {
    faults::clear();
    let (client, owner) = pair(fixture, &quiet(fixture).pool_max(85 << 20), &config());
    let window = offer(&owner, 1000);
    rules("hang=silent opcode=rdma_write nth=2", 1);
    served(client, &owner, |client| {
        client.put(window.key(), 0, &[1; 1000]).unwrap();
        let error = client.put(window.key(), 0, &[2; 1000]).unwrap_err();
        assert!(matches!(error, WindowError::OutcomeUnknown), "{error}");
        client.put(window.key(), 0, &[3; 1000]).unwrap();
        // A request that hung goes on now, unless the device has ended it.
        faults::clear();
        client.put(window.key(), 500, &[4; 500]).unwrap();
    });
    assert_eq!(read(&window), [[3; 500], [4; 500]].concat());
    assert_eq!(window.revoke().unwrap().bytes()[..1000], [[3; 500], [4; 500]].concat());
    drop(owner);
    nothing_is_open("hang=silent");
    Ok(())
}

/// No single call waits as long as a queue pair may hang.
fn calls_that_are_shorter_than_a_hang_end_it(fixture: &Fixture) -> Outcome {
    faults::clear();
    let short = WindowConfig::new().operation_timeout(Some(Duration::from_millis(100)));
    let (client, owner) = pair(fixture, &quiet(fixture).pool_max(86 << 20), &short);
    let window = offer(&owner, 100);
    served(client, &owner, |client| {
        let limit = Instant::now() + LONG;
        while client.put(window.key(), 0, b"first").is_err() {
            assert!(Instant::now() < limit);
        }
        rules("hang=silent opcode=rdma_write nth=1", 1);
        let error = client.put(window.key(), 0, b"lost").unwrap_err();
        assert!(matches!(error, WindowError::TimedOut { .. }), "{error}");
        let limit = Instant::now() + Duration::from_secs(10);
        while client.put(window.key(), 0, b"again").is_err() {
            assert!(Instant::now() < limit, "the queue pair is never given up");
        }
        all_have_acted();
    });
    faults::clear();
    assert_eq!(read(&window)[..5], *b"again");
    window.revoke().unwrap();
    drop(owner);
    nothing_is_open("hang=silent");
    Ok(())
}

/// A put that was flushed must not be performed after a later one.
fn a_flush_ends_puts_that_have_failed(fixture: &Fixture) -> Outcome {
    faults::clear();
    let (client, owner) = pair(fixture, &quiet(fixture), &config());
    let pool = owner.pool().clone();
    let window = offer(&owner, 100);
    let key = window.key().clone();
    rules("status=retry_exc_err opcode=rdma_write first=3", 1);
    served(client, &owner, |client| {
        // Without a flush it is performed by the owner's process.
        let put = client.start_put(&key, 0, b"first").unwrap();
        put.wait().unwrap();
        assert_eq!(read(&window)[..5], *b"first");
        thread::sleep(Duration::from_millis(50));
        let earlier = client.start_put(&key, 0, b"early").unwrap();
        client.flush().unwrap();
        client.put(&key, 0, b"later").unwrap();
        let error = earlier.wait().unwrap_err();
        assert!(matches!(error, WindowError::OutcomeUnknown), "{error}");
        assert_eq!(read(&window)[..5], *b"later");
        thread::sleep(Duration::from_millis(100));
        let mut block = client.buffer(100).unwrap();
        block.bytes_mut()[..5].copy_from_slice(b"block");
        let earlier = client.start_put_block(&key, 0, block, 5).unwrap();
        client.flush().unwrap();
        client.put(&key, 0, b"later").unwrap();
        let (error, block) = earlier.wait().unwrap_err();
        assert!(matches!(error, WindowError::OutcomeUnknown) && block.is_some(), "{error}");
        assert_eq!(read(&window)[..5], *b"later");
    });
    all_have_acted();
    faults::clear();
    drop(window);
    drop(owner);
    nothing_is_left(&pool);
    Ok(())
}

/// The owner's process performs the first put late. A later one of a device must not come before it.
fn a_put_that_was_given_up_is_performed_before_later_ones(fixture: &Fixture) -> Outcome {
    // A message with more ranges than a device performs at a time, and longer than a look takes.
    const PART: u64 = 6000;
    faults::clear();
    let short = WindowConfig::new().operation_timeout(Some(Duration::from_millis(200)));
    let (client, owner) = pair(fixture, &quiet(fixture), &short);
    let pool = owner.pool().clone();
    let window = offer(&owner, 40 * PART as usize);
    let key = window.key().clone();
    let ranges: Vec<_> = (0..40).map(|at| (at * PART, PART)).collect();
    let early = vec![1; 40 * PART as usize];
    let at = (8 - key.base() % 8) % 8;
    rules("delay=1us opcode=rdma_write", 1);
    let served_once = |operate: &mut dyn FnMut()| {
        thread::scope(|scope| {
            let serving = scope.spawn(|| owner.serve_for(Duration::from_millis(300)).unwrap());
            operate();
            serving.join().unwrap();
        });
    };
    served_once(&mut || client.put(&key, 0, b"first").unwrap());
    assert_eq!(matched(), 1);
    // The owner makes no calls.
    let error = client.put_vectored(&key, &ranges, &early).unwrap_err();
    assert!(matches!(error, WindowError::TimedOut { .. }), "{error}");
    let later = client.put(&key, 0, b"later");
    assert_eq!(matched(), 1, "the device performs a later put first");
    served_once(&mut || ());
    let found = read(&window);
    assert!(later.is_err() || found[..5] == *b"later", "{later:?}, and then the put before it");
    // A dropped one, and an atomic operation.
    served_once(&mut || client.put(&key, 0, &[0; 100]).unwrap());
    drop(client.start_put(&key, 0, &early[..100]).unwrap());
    let error = client.put_vectored(&key, &ranges, &early).unwrap_err();
    assert!(matches!(error, WindowError::TimedOut { .. }), "{error}");
    let added = client.fetch_add(&key, at, 1);
    served_once(&mut || ());
    let found = read(&window)[at as usize..][..8].to_vec();
    let lost = u64::from_ne_bytes([1; 8]).to_ne_bytes();
    assert!(added.is_err() || found != lost, "{added:?}, and then the put before it");
    // The device goes on when the client knows of the end.
    let before = matched();
    served_once(&mut || (0..2).for_each(|_| client.put(&key, 0, b"again").unwrap()));
    assert_eq!(matched(), before + 1);
    faults::clear();
    assert_eq!(read(&window)[..5], *b"again");
    drop(window);
    drop((client, owner));
    nothing_is_left(&pool);
    Ok(())
}

/// The owner's process performs the later ones, and the device the first one late.
fn a_put_of_a_device_that_was_given_up_comes_before_messages(fixture: &Fixture) -> Outcome {
    type Later = fn(&Windows, &WindowKey);
    let ways: [(&str, Later); 2] = [
        ("a notification", |client, key| client.put_notify(key, 0, b"later", 1).unwrap()),
        ("many ranges", |client, key| {
            let ranges: Vec<_> = (0..40).map(|at| (at, 1)).collect();
            let bytes = [b"later".as_slice(), &[0; 35]].concat();
            client.put_vectored(key, &ranges, &bytes).unwrap();
        }),
    ];
    for (what, later) in ways {
        faults::clear();
        // Longer than the delay, so that the queue pair is not given up.
        let (client, owner) = pair(fixture, &quiet(fixture).rail_timeout(LONG), &config());
        let pool = owner.pool().clone();
        let window = offer(&owner, 100);
        let key = window.key();
        served(client, &owner, |client| {
            client.put(key, 0, b"first").unwrap();
            rules("delay=300ms opcode=rdma_write nth=1", 1);
            drop(client.start_put(key, 0, b"early").unwrap());
            later(client, key);
            client.flush().unwrap();
            all_have_acted();
        });
        faults::clear();
        assert_eq!(read(&window)[..5], *b"later", "{what}");
        drop(window);
        drop(owner);
        nothing_is_left(&pool);
    }
    Ok(())
}

/// A key of a revoked window, as if the device had given it to another window, too.
fn a_key_that_the_device_uses_again_reaches_no_other_window(fixture: &Fixture) -> Outcome {
    faults::clear();
    let (client, owner) = pair(fixture, &quiet(fixture), &config());
    let pool = owner.pool().clone();
    let window = offer(&owner, 104);
    let mut stale = window.key().to_bytes();
    let block = window.revoke().unwrap();
    let window = owner.offer(block, 104, Access::ALL, None).map_err(|(error, _)| error).unwrap();
    assert_eq!(window.protection(), Protection::Domain);
    stale[72..76].copy_from_slice(&window.key().to_bytes()[72..76]);
    stale.truncate(stale.len() - 4);
    stale.extend(crc32fast::hash(&stale).to_le_bytes());
    let stale = WindowKey::from_bytes(&stale).unwrap();
    assert_eq!(stale.region(), window.key().region());
    rules("delay=1us opcode=rdma_write", 1);
    served(client, &owner, |client| {
        // Not the first refusal, which tells the client that the window is gone.
        let put = client.start_put(&stale, 0, b"stale").unwrap();
        let get = client.start_get(&stale, 0, 8).unwrap();
        for error in [put.wait().unwrap_err(), get.wait().unwrap_err()] {
            assert!(matches!(error, WindowError::Revoked { .. }), "{error}");
        }
        assert_eq!(read(&window), [0; 104]);
        client.put(window.key(), 0, b"fresh").unwrap();
    });
    all_have_acted();
    faults::clear();
    assert_eq!(read(&window)[..5], *b"fresh");
    drop(window);
    drop(owner);
    nothing_is_left(&pool);
    Ok(())
}

/// Waits until the device performs gets. The rule must be one of READs.
fn until_the_device_reads(client: &Windows, key: &WindowKey, what: &str) {
    let (before, limit) = (matched(), Instant::now() + Duration::from_secs(10));
    while matched() == before {
        assert!(Instant::now() < limit, "{what}: the owner's process performs all gets");
        client.get(key, 0, &mut [0; 10]).unwrap();
        thread::sleep(Duration::from_millis(1));
    }
}

/// The client gets the revocation while a get is outstanding. The owner must hear of its end.
fn gets_go_back_to_the_device_after_a_revocation(fixture: &Fixture) -> Outcome {
    faults::clear();
    let (client, owner) = pair(fixture, &quiet(fixture), &config());
    let pool = owner.pool().clone();
    let window = offer(&owner, 100);
    rules("delay=150ms opcode=rdma_read nth=2", 1);
    let key = window.key().clone();
    let get = thread::scope(|scope| {
        let serving = scope.spawn(|| owner.serve_for(Duration::from_millis(100)).unwrap());
        client.get(&key, 0, &mut [0; 10]).unwrap();
        serving.join().unwrap();
        client.start_get(&key, 0, 10).unwrap()
    });
    window.revoke().unwrap();
    let window = offer(&owner, 100);
    assert_eq!(window.protection(), Protection::Domain);
    client.serve_for(Duration::from_millis(50)).unwrap();
    served(client, &owner, |client| {
        let ended = get.wait();
        assert!(ended.is_ok() || matches!(ended, Err(WindowError::Revoked { .. })), "{ended:?}");
        until_the_device_reads(client, window.key(), "after a get");
    });
    all_have_acted();
    faults::clear();
    drop(window);
    drop(owner);
    nothing_is_left(&pool);
    Ok(())
}

fn the_process_does_what_the_device_refuses(fixture: &Fixture) -> Outcome {
    faults::clear();
    for (text, protection) in [
        ("errno=ENOMEM call=create_qp", Protection::Domain),
        ("errno=ENOMEM call=create_cq from=2", Protection::Domain),
        ("errno=EMFILE call=create_comp_channel", Protection::Domain),
        ("errno=EINVAL call=modify_qp", Protection::Domain),
        ("errno=ENOMEM call=reg_mr", Protection::Process),
        ("errno=ENOMEM call=alloc_pd", Protection::Process),
        ("errno=ENOMEM call=create_cq", Protection::Process),
        ("errno=EIO call=query_device", Protection::Process),
    ] {
        let (client, owner) = pair(fixture, &quiet(fixture), &config());
        let pool = owner.pool().clone();
        let blocks = [(); 2].map(|()| owner.buffer(LEN).unwrap());
        rules(text, 1);
        let [window, plain] = blocks.map(|block| {
            let access = Access::READ | Access::WRITE;
            owner.offer(block, LEN, access, None).map_err(|(error, _)| error).unwrap()
        });
        assert_eq!(window.protection(), protection, "{text}");
        served(client, &owner, |client| {
            for (window, seed) in [(&window, 1), (&plain, 2)] {
                let (sent, mut got) = (bytes(LEN, seed), vec![0; LEN]);
                client.put(window.key(), 0, &sent).unwrap();
                assert!(read(window) == sent, "{text}");
                client.get(window.key(), 0, &mut got).unwrap();
                assert!(got == sent, "{text}");
            }
            all_have_acted();
            faults::clear();
            client.put(window.key(), 0, b"later").unwrap();
        });
        assert_eq!(read(&window)[..5], *b"later", "{text}");
        for window in [window, plain] {
            window.revoke().unwrap();
        }
        drop(owner);
        nothing_is_left(&pool);
    }
    Ok(())
}

fn memory_comes_back_when_the_device_lets_go(fixture: &Fixture) -> Outcome {
    faults::clear();
    let (client, owner) = pair(fixture, &quiet(fixture), &config());
    let pool = owner.pool().clone();
    let window = offer(&owner, LEN);
    let (registered, held) = (regions(), pool.stats().in_use);
    rules("errno=EBUSY call=dereg_mr first=3", 1);
    let error = window.revoke().unwrap_err();
    assert!(matches!(error, WindowError::StillRegistered), "{error}");
    all_have_acted();
    faults::clear();
    // The connection keeps it until the next offer.
    assert_eq!((regions(), pool.stats().in_use), (registered, held));
    let window = offer(&owner, LEN);
    assert_eq!(regions(), registered);
    served(client, &owner, |client| client.put(window.key(), 0, b"later").unwrap());
    rules("errno=EBUSY call=dereg_mr first=3", 1);
    drop(window);
    all_have_acted();
    faults::clear();
    drop(owner);
    nothing_is_left(&pool);
    assert_eq!(regions(), registered - 1);
    Ok(())
}

/// The device of the owner may still perform the put, so that nobody performs it again.
fn a_queue_pair_that_cannot_be_stopped_leaves_its_puts_unknown(fixture: &Fixture) -> Outcome {
    faults::clear();
    let (client, owner) = pair(fixture, &quiet(fixture), &config());
    let pool = owner.pool().clone();
    let window = offer(&owner, 100);
    served(client, &owner, |client| {
        client.put(window.key(), 0, b"first").unwrap();
        rules("status=retry_exc_err opcode=rdma_write nth=1; errno=EBUSY call=modify_qp", 1);
        let error = client.put(window.key(), 0, b"lost").unwrap_err();
        assert!(matches!(error, WindowError::OutcomeUnknown), "{error}");
        all_have_acted();
        faults::clear();
        client.put(window.key(), 0, b"later").unwrap();
        client.flush().unwrap();
    });
    assert_eq!(read(&window)[..5], *b"later");
    window.revoke().unwrap();
    drop(owner);
    nothing_is_left(&pool);
    Ok(())
}

/// A thread that waits must not keep the lock of the queue pair.
fn a_queue_that_cannot_be_armed_serves_all_threads(fixture: &Fixture) -> Outcome {
    faults::clear();
    let (client, owner) = pair(fixture, &quiet(fixture).rail_timeout(LONG), &config());
    let pool = owner.pool().clone();
    let window = offer(&owner, LEN);
    let key = window.key();
    served(client, &owner, |client| {
        client.put(key, 0, b"first").unwrap();
        // The owner's thread sleeps from now on, and needs no event of the device.
        thread::sleep(Duration::from_millis(50));
        rules("delay=60s opcode=rdma_read nth=1; errno=EIO call=req_notify_cq", 1);
        let get = client.start_get(key, 0, 5).unwrap();
        let (tell, told) = mpsc::channel();
        thread::scope(|scope| {
            let getting = scope.spawn(|| get.wait());
            thread::sleep(Duration::from_millis(50));
            scope.spawn(|| tell.send(client.start_put(key, 0, b"later")).is_ok());
            let put = told.recv_timeout(Duration::from_secs(10));
            let waits = !getting.is_finished();
            let acted: Vec<_> = faults::report().iter().map(|rule| rule.fired).collect();
            faults::clear();
            let put = put.expect("the thread that waits keeps the lock").unwrap();
            assert!(waits, "the get has ended before");
            assert!(acted.iter().all(|fired| *fired > 0), "{acted:?}");
            assert_eq!(getting.join().unwrap().unwrap(), b"first");
            put.wait().unwrap();
        });
    });
    assert_eq!(read(&window)[..5], *b"later");
    drop(window);
    drop(owner);
    nothing_is_left(&pool);
    Ok(())
}

/// The connection fails, too, because its messages use the port.
fn memory_comes_back_while_the_port_is_down(fixture: &Fixture) -> Outcome {
    faults::clear();
    let (client, owner) = pair(fixture, &quiet(fixture).rnr_retry(3), &config());
    let pool = owner.pool().clone();
    let window = offer(&owner, 1000);
    let key = window.key().clone();
    thread::scope(|scope| {
        let serving = scope.spawn(|| owner.serve());
        client.put(&key, 0, &[1; 1000]).unwrap();
        rules("port_down opcode=rdma_write nth=1", 1);
        let error = client.put(&key, 0, &[2; 1000]).unwrap_err();
        assert!(matches!(error, WindowError::Connection(_)), "{error}");
        all_have_acted();
        drop(client);
        let _ = serving.join().unwrap();
    });
    assert_eq!(window.revoke().unwrap().bytes()[..1000], [1; 1000]);
    faults::clear();
    faults::port_up(0, 1).expect("soft0");
    drop(owner);
    nothing_is_left(&pool);
    Ok(())
}

/// The bytes of a request, as `window::message` has them.
fn raw(kind: u8, region: u32, numbers: [u64; 2], rest: &[u8]) -> Vec<u8> {
    let mut bytes = vec![kind, 0, 0, 0];
    [region, 0, 0].iter().for_each(|number| bytes.extend(number.to_le_bytes()));
    numbers.iter().for_each(|number| bytes.extend(number.to_le_bytes()));
    bytes.extend(rest);
    bytes
}

/// A peer that sends its own messages, and says that its devices write and read.
fn hostile_pair(fixture: &Fixture) -> (Mux, Windows) {
    let [hostile, other] = streams(fixture, &quiet(fixture));
    let other = thread::spawn(move || Windows::over(other, &config()).unwrap());
    let hostile = Mux::over(hostile, &MuxConfig::new()).unwrap();
    hostile.send_one_way(raw(1, 1, [2 | 3 << 32, 99], &[])).unwrap();
    drop(hostile.next_request_within(LONG).unwrap());
    (hostile, other.join().unwrap())
}

/// The owner keeps one queue pair for the peer.
fn a_peer_that_opens_paths_all_the_time_has_one(fixture: &Fixture) -> Outcome {
    const DONE: u8 = 0;
    const NO_PATH: u8 = 7;
    faults::clear();
    let (hostile, owner) = hostile_pair(fixture);
    let pool = owner.pool().clone();
    let window = offer(&owner, 100);
    assert_eq!(window.protection(), Protection::Domain);
    let key = window.key().to_bytes();
    let device = u64::from_le_bytes(key[64..72].try_into().unwrap());
    let mut random = random(3);
    let endpoint = |queue_pair: u32| {
        let mut end = [0; 48];
        end[..4].copy_from_slice(&queue_pair.to_le_bytes());
        end[8..24].copy_from_slice(&Ipv4Addr::LOCALHOST.to_ipv6_mapped().octets());
        (end[26], end[27]) = (5, 2);
        end
    };
    let before = queue_pairs();
    let (opened, most) = thread::scope(|scope| {
        let serving = scope.spawn(|| owner.serve_for(LONG));
        let status = |message: Vec<u8>| hostile.request_within(message, LONG).unwrap().wait().unwrap()[0];
        let open = |device: u64, end: [u8; 48]| status(raw(8, 0, [device, 0], &end));
        let close = |queue_pair: u64| status(raw(9, 0, [device, queue_pair], &[]));
        let (mut opened, mut most) = (Vec::new(), 0);
        for queue_pair in 1..100 {
            opened.push(open(device, endpoint(queue_pair)));
            most = most.max(queue_pairs());
        }
        for other in [0, 1, device ^ 1] {
            opened.push(NO_PATH - open(other, endpoint(7)));
        }
        opened.push(NO_PATH - close(98));
        opened.push(close(99));
        opened.push(NO_PATH - close(99));
        for _ in 0..200 {
            let mut end = [0; 48];
            random.fill_bytes(&mut end);
            open(device, end);
            most = most.max(queue_pairs());
        }
        drop(hostile);
        let _ = serving.join().unwrap();
        (opened, most)
    });
    assert!(opened.iter().all(|status| *status == DONE), "{opened:?}");
    assert_eq!(most, before + 1);
    window.revoke().unwrap();
    drop(owner);
    nothing_is_left(&pool);
    Ok(())
}

/// Among the last cases, because the requests that the failed device holds are lost. The memory of the
/// window stays the owner's, or is lost if the device does not end its registration.
fn a_device_that_fails_leaves_no_window_to_the_peer(fixture: &Fixture) -> Outcome {
    faults::clear();
    let (client, owner) = pair(fixture, &quiet(fixture).pool_max(87 << 20), &config());
    let window = offer(&owner, 1000);
    let key = window.key().clone();
    thread::scope(|scope| {
        let serving = scope.spawn(|| owner.serve());
        client.put(&key, 0, &[1; 1000]).unwrap();
        rules("device_fatal opcode=rdma_write nth=1", 1);
        let error = client.put(&key, 0, &[2; 1000]).unwrap_err();
        let is_known = matches!(error, WindowError::Connection(_) | WindowError::OutcomeUnknown);
        assert!(is_known, "{error}");
        all_have_acted();
        drop(client);
        let _ = serving.join().unwrap();
    });
    faults::clear();
    assert_eq!(read(&window), [1; 1000]);
    match window.revoke() {
        Ok(block) => assert_eq!(block.bytes()[..1000], [1; 1000]),
        Err(error) => assert!(matches!(error, WindowError::StillRegistered), "{error}"),
    }
    drop(owner);
    let (client, owner) = pair(fixture, &quiet(fixture).pool_max(87 << 20), &config());
    let window = offer(&owner, 1000);
    served(client, &owner, |client| client.put(window.key(), 0, b"later").unwrap());
    assert_eq!(read(&window)[..5], *b"later");
    Ok(())
}
