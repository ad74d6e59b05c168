//! Windows whose operations RDMA devices perform, where the connection has some.

use std::io::{Read, Seek, SeekFrom};
use std::thread;
use std::time::Duration;

use sideway::ibverbs::AccessFlags;
use sideway::ibverbs::address::Gid;
use sideway::ibverbs::completion::{GenericCompletionQueue, WorkCompletionStatus};
use sideway::ibverbs::connect::{ConnectOptions, Endpoint, LocalPath, connect};
use sideway::ibverbs::device::DeviceList;
use sideway::ibverbs::queue_pair::{
    GenericQueuePair, PostSendGuard, QueuePair, SendOperationFlags, WorkRequestFlags,
};
use sideway::memory::{Buffer, BufferKind, RegisteredBuffer};
use test_harness::{Outcome, cases, skip};
use trespass::mux::{Mux, MuxConfig};
use trespass::window::{
    Access, Protection, ReaderConfig, Window, WindowConfig, WindowError, WindowKey, WindowReader, Windows,
};
use trespass::{Block, Stream};

use super::fixture::{Fixture, LONG, below, random};
use super::hostile_windows::raw;
use super::windows::{bytes, config, offer, pair, read, served};

pub(crate) fn add(suite: &mut test_harness::Suite<Fixture>) {
    cases!(suite: devices_operate_while_the_owner_makes_no_calls, blocks_go_there_and_come_back,
        a_refused_block_comes_back, a_protection_can_be_required, windows_take_each_others_place,
        a_revoked_window_disturbs_no_other, blocks_are_under_way_together,
        a_queue_pair_reaches_what_was_offered_over_its_connection, one_device_performs_atomic_operations);
}

type ErrorCheck = fn(&WindowError) -> bool;

/// Whether devices serve windows. The system's may have no READs.
fn by_device(fixture: &Fixture, window: &Window) -> bool {
    let is_by_device = window.protection() == Protection::Domain;
    assert_eq!(window.key().is_for_devices(), is_by_device);
    match fixture.is_tcp() || fixture.is_by_cm() {
        true => assert!(!is_by_device),
        false => assert!(is_by_device || !fixture.is_soft()),
    }
    is_by_device
}

/// Lets the client open a path to the owner's devices.
fn open_path(client: &Windows, owner: &Windows, key: &WindowKey) {
    thread::scope(|scope| {
        let serving = scope.spawn(|| owner.next_notification_within(LONG).unwrap());
        client.put(key, 0, b"x").unwrap();
        client.put_notify(key, 0, b"", 1).unwrap();
        serving.join().unwrap();
    });
}

fn devices_operate_while_the_owner_makes_no_calls(fixture: &Fixture) -> Outcome {
    let (client, owner) = pair(fixture);
    let window = offer(&owner, 4096, Access::ALL);
    if !by_device(fixture, &window) {
        skip!("no device serves windows");
    }
    let key = window.key();
    open_path(&client, &owner, key);
    let content = bytes(4096, 3);
    client.put(key, 0, &content).unwrap();
    assert!(read(&window) == content);
    let mut got = vec![0; 4000];
    client.get(key, 96, &mut got).unwrap();
    assert!(got == content[96..]);
    client.put_vectored(key, &[(8, 2), (100, 3)], b"abcde").unwrap();
    client.get_vectored(key, &[(100, 3), (8, 2)], &mut got[..5]).unwrap();
    assert_eq!(&got[..5], b"cdeab");
    client.put(key, 0, &[0; 8]).unwrap();
    assert_eq!(client.fetch_add(key, 0, 5).unwrap(), 0);
    assert_eq!(client.compare_swap(key, 0, 5, 9).unwrap(), 5);
    assert_eq!(client.fetch_add(key, 0, 0).unwrap(), 9);
    client.start_put(key, 16, b"later").unwrap().wait().unwrap();
    assert_eq!(client.start_get(key, 16, 5).unwrap().wait().unwrap(), b"later");
    client.flush().unwrap();
    Ok(())
}

fn blocks_go_there_and_come_back(fixture: &Fixture) -> Outcome {
    let (client, owner) = pair(fixture);
    let window = offer(&owner, 3_000_000, Access::ALL);
    let key = window.key().clone();
    served(client, &owner, |client| {
        for (len, offset) in [(1, 0), (64, 5), (5000, 1000), (300_000, 7), (3_000_000, 0), (0, 9)] {
            for is_adopted in [false, true] {
                let block = |len: usize| match client.buffer(len) {
                    Ok(block) if !is_adopted => block,
                    _ => client.pool().adopt(vec![0; len + 3]),
                };
                let (content, mut sent) = (bytes(len, len as u64), block(len));
                sent.bytes_mut()[..len].copy_from_slice(&content);
                let place = sent.as_ptr();
                let sent = client.put_block(&key, offset, sent, len).map_err(|(error, _)| error).unwrap();
                assert_eq!(sent.as_ptr(), place, "the same block comes back");
                assert!(sent.bytes()[..len] == content);
                let got =
                    client.get_block(&key, offset, block(len), len).map_err(|(error, _)| error).unwrap();
                assert!(got.bytes()[..len] == content, "{len} bytes at {offset}");
            }
        }
    });
    Ok(())
}

fn a_refused_block_comes_back(fixture: &Fixture) -> Outcome {
    let (client, owner) = pair(fixture);
    let window = offer(&owner, 100, Access::READ);
    let writable = offer(&owner, 100, Access::WRITE);
    served(client, &owner, |client| {
        let block = || client.pool().adopt(vec![7; 200]);
        let refusals: [(Result<Block, _>, ErrorCheck); 4] = [
            (client.put_block(window.key(), 0, block(), 1), |error| {
                matches!(error, WindowError::Access { .. })
            }),
            (client.get_block(window.key(), 50, block(), 51), |error| {
                matches!(error, WindowError::Range { offset: 50, len: 51, window: 100 })
            }),
            (client.put_block(writable.key(), u64::MAX, block(), 1), |error| {
                matches!(error, WindowError::Range { .. })
            }),
            (client.get_block(window.key(), 0, block(), 201), |error| {
                matches!(error, WindowError::Length { len: 201, block: 200 })
            }),
        ];
        for (refused, is_expected) in refusals {
            let (error, block) = refused.unwrap_err();
            assert!(is_expected(&error), "{error}");
            assert_eq!(block.unwrap().bytes(), [7; 200]);
        }
    });
    Ok(())
}

fn windows_with(fixture: &Fixture, server: &WindowConfig) -> (Windows, Windows) {
    let (client, stream) = fixture.streams();
    let server = server.clone().operation_timeout(Some(LONG));
    let server = thread::spawn(move || Windows::over(stream, &server).unwrap());
    (Windows::over(client, &config()).unwrap(), server.join().unwrap())
}

fn a_protection_can_be_required(fixture: &Fixture) -> Outcome {
    let (client, owner) = windows_with(fixture, &WindowConfig::new().protection(Protection::Process));
    let window = offer(&owner, 64, Access::ALL);
    assert!(!window.key().is_for_devices(), "its owner keeps devices away");
    let other = offer(&client, 64, Access::ALL);
    assert!(!other.key().is_for_devices(), "the owner's devices are not used either");
    drop(other);
    let key = window.key().clone();
    served(client, &owner, |client| {
        assert_eq!(client.fetch_add(&key, 0, 1).unwrap(), 0);
        assert_eq!(window.fetch_add(0, 1).unwrap(), 1);
    });

    let (_client, owner) = windows_with(fixture, &WindowConfig::new().protection(Protection::Domain));
    let usual = offer(&pair(fixture).1, 64, Access::WRITE).protection();
    let offered = owner.offer(owner.buffer(64).unwrap(), 64, Access::WRITE, None);
    match usual {
        Protection::Domain => assert!(offered.is_ok_and(|window| window.protection() == Protection::Domain)),
        _ => {
            let (error, block) = offered.err().unwrap();
            assert!(matches!(error, WindowError::Protection { .. }), "{error}");
            assert!(block.len() >= 64);
        }
    }
    let with_lifetime =
        owner.offer(owner.buffer(64).unwrap(), 64, Access::WRITE, Some(Duration::from_secs(60)));
    let (error, _) = with_lifetime.err().unwrap();
    assert!(error.to_string().contains("a device knows no lifetime"), "{error}");
    Ok(())
}

/// Windows of the same memory come and go. Each has another content, so that a key that reaches
/// another one shows.
fn windows_take_each_others_place(fixture: &Fixture) -> Outcome {
    let (client, owner) = pair(fixture);
    let mut former: Vec<WindowKey> = Vec::new();
    let mut block = owner.buffer(64).unwrap();
    let mut random = random(11);
    for mark in 1..=fixture.less(60) as u8 {
        block = thread::scope(|scope| {
            let window = owner.offer(block, 64, Access::ALL, None).map_err(|(error, _)| error).unwrap();
            window.write(0, &[mark; 64]).unwrap();
            let key = window.key().clone();
            let client = &client;
            let former = &mut former;
            let random = &mut random;
            let operating = scope.spawn(move || {
                let mut got = [0; 64];
                for _ in 0..4 {
                    client.get(&key, 0, &mut got).unwrap();
                    assert_eq!(got, [mark; 64]);
                    if !former.is_empty() {
                        let old = &former[below(random, former.len())];
                        let error = client.put(old, 0, b"x").unwrap_err();
                        assert!(matches!(error, WindowError::Revoked { .. }), "{error}");
                    }
                }
                former.push(key.clone());
                client.put_notify(&key, 0, b"", 1).unwrap();
            });
            owner.next_notification_within(LONG).unwrap();
            operating.join().unwrap();
            assert_eq!(read(&window), [mark; 64]);
            let block = window.revoke().unwrap();
            assert_eq!(block.bytes()[..64], [mark; 64]);
            block
        });
    }
    Ok(())
}

fn a_revoked_window_disturbs_no_other(fixture: &Fixture) -> Outcome {
    let (client, owner) = pair(fixture);
    let kept = offer(&owner, 64, Access::ALL);
    if !by_device(fixture, &kept) {
        skip!("no device serves windows");
    }
    open_path(&client, &owner, kept.key());
    for _ in 0..fixture.less(20) {
        let window = offer(&owner, 64, Access::ALL);
        let old = window.key().clone();
        drop(window);
        // The owner makes no calls.
        client.put(kept.key(), 0, b"before").unwrap();
        thread::scope(|scope| {
            let serving = scope.spawn(|| owner.next_notification_within(LONG).unwrap());
            let error = client.fetch_add(&old, 0, 1).unwrap_err();
            assert!(matches!(error, WindowError::Revoked { .. }), "{error}");
            // A path that the refusal has ended is opened again.
            assert!(client.fetch_add(kept.key(), 8, 1).is_ok());
            client.put_notify(kept.key(), 0, b"", 1).unwrap();
            serving.join().unwrap();
        });
        client.put(kept.key(), 0, b"after!").unwrap();
    }
    let mut number = [0; 8];
    kept.read(8, &mut number).unwrap();
    assert_eq!(u64::from_ne_bytes(number), fixture.less(20) as u64);
    Ok(())
}

fn blocks_are_under_way_together(fixture: &Fixture) -> Outcome {
    const LEN: usize = 10_000;
    let (client, owner) = pair(fixture);
    let window = offer(&owner, 40 * LEN, Access::ALL);
    let key = window.key().clone();
    let content = bytes(40 * LEN, 5);
    served(client, &owner, |client| {
        // More than the send queue has room for are begun by four threads.
        thread::scope(|scope| {
            for thread in 0..4 {
                let (key, content) = (&key, &content);
                scope.spawn(move || {
                    let begin = |at: usize| {
                        let range = at * LEN..(at + 1) * LEN;
                        let block = client.pool().adopt(content[range.clone()].to_vec());
                        client.start_put_block(key, range.start as u64, block, LEN)
                    };
                    let mine =
                        (thread * 10..thread * 10 + 10).map(|at| begin(at).map_err(|(error, _)| error));
                    let pending: Vec<_> = mine.collect::<Result<_, _>>().unwrap();
                    for (at, one) in pending.into_iter().enumerate() {
                        let block = one.wait().map_err(|(error, _)| error).unwrap();
                        let at = (thread * 10 + at) * LEN;
                        assert!(block.bytes() == &content[at..at + LEN]);
                    }
                });
            }
        });
        let dropped = client.start_get_block(&key, 0, client.pool().adopt(vec![0; LEN]), LEN);
        drop(dropped.map_err(|(error, _)| error).unwrap());
        client.flush().unwrap();
        let mut reader = WindowReader::new(client, key.clone(), &ReaderConfig::new()).unwrap();
        let mut all = Vec::new();
        reader.read_to_end(&mut all).unwrap();
        assert!(all == content);
        reader.seek(SeekFrom::Start(7)).unwrap();
    });
    assert!(read(&window) == content);
    Ok(())
}

/// A queue pair that a hostile peer has made, connected to the one that serves a connection.
struct HostilePair {
    qp: GenericQueuePair,
    cq: GenericCompletionQueue,
    memory: RegisteredBuffer,
}

impl HostilePair {
    /// Opens a path to a device of the owner by the messages of `hostile`.
    fn open(hostile: &Mux<Stream>, device: u64) -> Self {
        let context = DeviceList::new().unwrap().first().unwrap().open().unwrap();
        let (domain, path) = (context.alloc_pd().unwrap(), LocalPath::choose(&context, 1, None).unwrap());
        let cq = context.create_cq_builder().setup_cqe(8).build_generic().unwrap();
        let buffer = Buffer::new(BufferKind::for_device(&context), 4096).unwrap();
        let memory = domain.reg_buffer(buffer, AccessFlags::LocalWrite).unwrap();
        let mut builder = domain.create_qp_builder();
        builder.setup_send_cq(&cq).setup_recv_cq(&cq).setup_max_send_wr(8);
        builder.setup_send_ops_flags(
            SendOperationFlags::Write | SendOperationFlags::Read | SendOperationFlags::AtomicFetchAndAdd,
        );
        let mut qp = builder.build_generic().unwrap();
        let own = Endpoint::new(&qp, &path, 77);
        let mut end = vec![0; 48];
        end[..4].copy_from_slice(&own.qp_number.to_le_bytes());
        end[4..8].copy_from_slice(&own.packet_seq_num.to_le_bytes());
        end[8..24].copy_from_slice(&own.gid.unwrap_or(Gid::ZERO).raw);
        (end[26], end[27], end[40]) = (5, 2, 4);
        let mut open = raw(8, 0, 0, &[], [device, 0]);
        open.extend(end);
        let answer = hostile.request_within(open, LONG).unwrap().wait().unwrap();
        assert_eq!(answer[0], 0, "the owner opens a path");
        let peer = &answer[16..];
        let word = |at: usize| u32::from_le_bytes(peer[at..at + 4].try_into().unwrap());
        let gid = Gid { raw: peer[8..24].try_into().unwrap() };
        let remote = Endpoint {
            qp_number: word(0),
            packet_seq_num: word(4),
            lid: 0,
            gid: Some(gid),
            mtu: 4096,
            ethernet: true,
        };
        let options = ConnectOptions { max_read_atomic: 1, ..ConnectOptions::default() };
        connect(&mut qp, &path, &own, &remote, &options).unwrap();
        Self { qp, cq, memory }
    }

    fn write(&mut self, rkey: u32, address: u64, len: u32) -> WorkCompletionStatus {
        let (local, lkey) = (self.memory.as_ptr().addr() as u64, self.memory.lkey());
        let mut list = self.qp.start_post_send();
        let work = list.construct_wr(1, WorkRequestFlags::Signaled).setup_write(rkey, address);
        // SAFETY: the memory is registered as long as the queue pair lives, and nobody writes to it.
        unsafe { work.setup_sge(lkey, local, len) };
        list.post().unwrap();
        self.status()
    }

    fn add(&mut self, rkey: u32, address: u64) -> WorkCompletionStatus {
        let (local, lkey) = (self.memory.as_ptr().addr() as u64, self.memory.lkey());
        let mut list = self.qp.start_post_send();
        let work = list.construct_wr(1, WorkRequestFlags::Signaled).setup_atomic_fetch_add(rkey, address, 1);
        // SAFETY: the memory is registered as long as the queue pair lives, and nobody refers to it.
        unsafe { work.setup_sge(lkey, local, 8) };
        list.post().unwrap();
        self.status()
    }

    fn status(&mut self) -> WorkCompletionStatus {
        loop {
            if let Some(completion) = self.cq.start_poll().unwrap().next() {
                return completion.status();
            }
            thread::yield_now();
        }
    }
}

/// The devices of a key, each with its rkey.
fn devices_of(key: &WindowKey) -> Vec<(u64, u32)> {
    let bytes = key.to_bytes();
    let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    (0..bytes[56].into()).map(|index: usize| (long(64 + 16 * index), long(72 + 16 * index) as u32)).collect()
}

/// The first device of a key, and its rkey.
fn device_of(key: &WindowKey) -> (u64, u32) {
    devices_of(key)[0]
}

/// A peer that speaks the messages itself.
fn hostile_pair(fixture: &Fixture) -> (Mux<Stream>, Windows) {
    let (stream, server) = fixture.streams();
    let server = thread::spawn(move || Windows::over(server, &config()).unwrap());
    let hostile = Mux::over(stream, &MuxConfig::new()).unwrap();
    hostile.send_one_way(raw(1, 1, 0, &[], [2 | 3 << 32, 99])).unwrap();
    drop(hostile.next_request_within(LONG).unwrap());
    (hostile, server.join().unwrap())
}

fn one_device_performs_atomic_operations(fixture: &Fixture) -> Outcome {
    if !fixture.has_rails() {
        skip!("the connection has one device at most");
    }
    let (hostile, owner) = hostile_pair(fixture);
    let window = offer(&owner, 64, Access::ALL);
    let devices = devices_of(window.key());
    assert!(devices.len() > 1, "the window is registered with each device");
    let address = window.key().base();
    thread::scope(|scope| {
        let serving = scope.spawn(|| owner.serve());
        for (index, (device, rkey)) in devices.into_iter().enumerate() {
            let mut path = HostilePair::open(&hostile, device);
            assert_eq!(path.write(rkey, address, 64), WorkCompletionStatus::Success);
            let is_added = path.add(rkey, address) == WorkCompletionStatus::Success;
            assert_eq!(is_added, index == 0, "device {index}");
        }
        drop(hostile);
        drop(serving.join().unwrap());
    });
    Ok(())
}

fn a_queue_pair_reaches_what_was_offered_over_its_connection(fixture: &Fixture) -> Outcome {
    if fixture.is_by_cm() || !fixture.is_soft() || fixture.has_rails() {
        skip!("the hostile queue pair needs one software device, and a connection without rdma_cm");
    }
    let (hostile, owner) = hostile_pair(fixture);
    let window = offer(&owner, 64, Access::WRITE);
    let readable = offer(&owner, 64, Access::READ);
    let (_other_client, other_owner) = pair(fixture);
    let foreign = offer(&other_owner, 64, Access::ALL);
    let revoked = offer(&owner, 64, Access::ALL);
    let old = revoked.key().clone();
    thread::scope(|scope| {
        let serving = scope.spawn(|| owner.serve());
        let (device, rkey) = device_of(window.key());
        let mut path = HostilePair::open(&hostile, device);
        assert_eq!(path.write(rkey, window.key().base(), 64), WorkCompletionStatus::Success);
        let block = revoked.revoke().unwrap();
        let reaches = |rkey: u32, address: u64, len: u32| {
            let status = HostilePair::open(&hostile, device).write(rkey, address, len);
            status == WorkCompletionStatus::Success
        };
        assert!(reaches(rkey, window.key().base() + 60, 4));
        assert!(!reaches(rkey, window.key().base() + 61, 4), "beyond its end");
        assert!(!reaches(rkey, window.key().base() - 1, 4), "before its start");
        assert!(!reaches(device_of(readable.key()).1, readable.key().base(), 4), "it may read this");
        assert!(!reaches(device_of(foreign.key()).1, foreign.key().base(), 4), "of another connection");
        assert!(!reaches(device_of(&old).1, old.base(), 4), "it was revoked");
        assert!(!reaches(rkey, readable.key().base(), 4), "of another window");
        assert!(!reaches(rkey ^ 1, window.key().base(), 4));
        let status = HostilePair::open(&hostile, device).add(rkey, window.key().base());
        assert_ne!(status, WorkCompletionStatus::Success, "it may write, and not add");
        assert_eq!(block.bytes()[..64], [0; 64]);
        // A device may give the same key again. The same memory has another address now.
        let again = owner.offer(block, 64, Access::WRITE, None).map_err(|(error, _)| error).unwrap();
        assert!(!reaches(device_of(again.key()).1, old.base(), 4), "the address of a revoked window");
        assert!(reaches(device_of(again.key()).1, again.key().base(), 4));
        drop(path);
        drop(hostile);
        drop(serving.join().unwrap());
    });
    assert_eq!(read(&readable), [0; 64]);
    assert_eq!(read(&foreign), [0; 64]);
    Ok(())
}
