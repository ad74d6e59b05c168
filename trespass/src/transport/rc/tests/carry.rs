//! Tests of data transfer: sizes around each limit, in both directions, with and without READs, and
//! with a reader that stops.

use std::io::IoSlice;

use super::*;
use crate::protocol::CallError;

/// Sizes around the limits of a header, inline data, a slot, an eager transfer, a staged block, and
/// a READ.
fn sizes() -> Vec<usize> {
    let borders: [usize; 10] = [1, 48, 240, 256, 8176, 8192, 2 * 8176, 64 << 10, 256 << 10, 1 << 20];
    borders.into_iter().flat_map(|border| [border - 1, border, border + 1]).collect()
}

fn blocked<T>(result: Result<T, CallError>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(CallError::Blocked(_)) => None,
        Err(error) => panic!("{error}"),
    }
}

/// The bytes that one side writes (`given`) and receives (`taken`).
#[derive(Default)]
struct Bytes {
    given: Vec<u8>,
    written: usize,
    taken: Vec<u8>,
}

fn stream_both_ways(mut sides: [TestPeer; 2]) -> [TestPeer; 2] {
    let mut bytes = [Bytes::default(), Bytes::default()];
    for (index, size) in sizes().into_iter().enumerate() {
        for (side, bytes) in bytes.iter_mut().enumerate() {
            *bytes = Bytes { given: pattern(size, (2 * index + side) as u64), ..Bytes::default() };
        }
        let mut buffer = vec![0; 100_000];
        until(&mut sides, "bytes both ways", |sides| {
            for (side, bytes) in sides.iter_mut().zip(&mut bytes) {
                let rest = [IoSlice::new(&bytes.given[bytes.written..])];
                if bytes.written < bytes.given.len() {
                    bytes.written += blocked(side.protocol.write(&rest, &mut side.pool)).unwrap_or(0);
                }
                if let Some(count) = blocked(side.protocol.read(&mut buffer)) {
                    bytes.taken.extend_from_slice(&buffer[..count]);
                }
            }
            bytes.iter().all(|bytes| bytes.taken.len() >= size)
        });
        let [here, there] = &bytes;
        assert!(here.given == there.taken && there.given == here.taken, "{size} bytes");
    }
    sides
}

#[test]
#[cfg_attr(miri, ignore = "opens sockets")]
fn a_stream_carries_all_sizes_both_ways() {
    let _guard = serialize();
    let sides = stream_both_ways(connected(Kind::Stream));
    for side in &sides {
        let counters = side.protocol.counters();
        assert!(counters.reads > 0, "the large ones are read: {counters:?}");
        assert!(
            Driver::<Pool>::system_calls(&side.rc) < counters.frames_sent + counters.reads,
            "a doorbell for several"
        );
    }
}

#[test]
#[cfg_attr(miri, ignore = "opens sockets")]
fn a_stream_without_reads_carries_all_sizes_both_ways() {
    let _guard = serialize();
    let sides = stream_both_ways(connected_with(Kind::Stream, config().rendezvous(false), |_| ()));
    assert_eq!(sides[0].protocol.counters().reads, 0);
}

/// Runs with all headers in their frames, and with the headers of data frames replaced by immediate
/// data, which is the default.
#[test]
#[cfg_attr(miri, ignore = "opens sockets")]
fn without_inline_data_heads_are_sent_from_memory() {
    let _guard = serialize();
    for immediate in [false, true] {
        let config = config().inline(0).immediate(immediate);
        let sides = stream_both_ways(connected_with(Kind::Stream, config, |_| ()));
        assert!(sides.iter().all(|side| side.protocol.uses_immediate() == immediate));
    }
}

/// An earlier version of trespass is such a peer.
#[test]
#[cfg_attr(miri, ignore = "opens sockets")]
fn a_peer_that_knows_no_immediate_data_has_headers_in_frames() {
    let _guard = serialize();
    let configs = [config(), config().immediate(false)].map(|config| config.build().expect("valid"));
    for [here, there] in [[0, 1], [1, 0]] {
        let sides = stream_both_ways(connected_as(Kind::Stream, [&configs[here], &configs[there]], |_| ()));
        assert!(sides.iter().all(|side| !side.protocol.uses_immediate()));
    }
}

#[test]
#[cfg_attr(miri, ignore = "opens sockets")]
fn few_slots_are_enough() {
    let _guard = serialize();
    let config = config().rx_slots(16).slot_size(512);
    drop(stream_both_ways(connected_with(Kind::Stream, config, |setup| {
        (setup.rcvbuf, setup.sndbuf) = (4096, 4096)
    })));
}

#[test]
#[cfg_attr(miri, ignore = "opens sockets")]
fn messages_keep_their_boundaries_both_ways() {
    let _guard = serialize();
    let mut sides = connected(Kind::SeqPacket);
    let sizes: Vec<usize> = sizes().into_iter().filter(|size| *size < 1 << 20).collect();
    let (mut sent, mut received) = ([0, 0], [0, 0]);
    let mut buffer = vec![0; 1 << 20];
    until(&mut sides, "messages both ways", |sides| {
        for (side, protocol) in sides.iter_mut().enumerate() {
            while sent[side] < sizes.len() {
                let message = pattern(sizes[sent[side]], (2 * sent[side] + side) as u64);
                let TestPeer { protocol, pool, .. } = protocol;
                if blocked(protocol.send(&[IoSlice::new(&message)], pool)).is_none() {
                    break;
                }
                sent[side] += 1;
            }
            while let Some(len) = blocked(protocol.protocol.recv(&mut buffer)) {
                let len = len.expect("nobody has closed");
                let expected = pattern(sizes[received[side]], (2 * received[side] + 1 - side) as u64);
                assert!(buffer[..len] == expected, "message {} of {len} bytes", received[side]);
                received[side] += 1;
            }
        }
        received == [sizes.len(); 2]
    });
}

#[test]
#[cfg_attr(miri, ignore = "opens sockets")]
fn blocks_go_without_a_copy_and_come_back_once() {
    let _guard = serialize();
    let mut sides = connected(Kind::SeqPacket);
    let mut tickets = Vec::new();
    let sizes = [1, 200, 8000, 8192, 65_536, 200_000];
    for (index, size) in sizes.into_iter().enumerate() {
        let TestPeer { protocol, pool, .. } = &mut sides[0];
        let mut block = pool.take_staged(size).expect("memory");
        block.bytes_mut()[..size].copy_from_slice(&pattern(size, index as u64));
        tickets.push(protocol.send_block(block, size).map_err(|(_, error)| error).expect("taken"));
    }
    let (mut received, mut buffer) = (0, vec![0; 1 << 20]);
    until(&mut sides, "blocks", |sides| {
        while let Some(len) = blocked(sides[1].protocol.recv(&mut buffer)) {
            let len = len.expect("nobody has closed");
            assert!(buffer[..len] == pattern(sizes[received], received as u64), "block {received}");
            received += 1;
        }
        sides[0].events.len() == sizes.len()
    });
    assert_eq!(received, sizes.len());
    let mut back: Vec<_> = sides[0]
        .events
        .iter()
        .map(|event| match event {
            ConnectionEvent::Returned { ticket, sent: true, .. } => *ticket,
            other => panic!("{other:?}"),
        })
        .collect();
    back.sort();
    assert_eq!(back, tickets);
}

/// Without READs a block is sent in frames, several of which name parts of it. Inline data may take
/// the last of them.
#[test]
#[cfg_attr(miri, ignore = "opens sockets")]
fn blocks_that_are_not_read_go_in_frames_without_a_copy() {
    let _guard = serialize();
    for (kind, inline) in
        [(Kind::SeqPacket, 272), (Kind::SeqPacket, 0), (Kind::Stream, 272), (Kind::Stream, 0)]
    {
        let mut sides = connected_with(kind, config().rendezvous(false).inline(inline), |_| ());
        let sizes = [8176, 8177, 8192, 2 * 8176 - 8, 2 * 8176 + 100, 65_536, 200_000];
        let (mut tickets, mut given) = (Vec::new(), Vec::new());
        let in_use = |side: &TestPeer| side.pool.stats().in_use;
        for size in sizes {
            let TestPeer { protocol, pool, .. } = &mut sides[0];
            let mut block = pool.take_staged(size).expect("memory");
            given.push(pattern(size, size as u64));
            block.bytes_mut()[..size].copy_from_slice(&given[given.len() - 1]);
            tickets.push(protocol.send_block(block, size).map_err(|(_, error)| error).expect("taken"));
        }
        // If they are not inline, the heads of frames need one slot, which is kept. Nothing else is
        // allocated.
        let (before, slot) = (in_use(&sides[0]), 8192);
        let (mut taken, mut buffer) = (Vec::new(), vec![0; 1 << 20]);
        until(&mut sides, "blocks", |sides| {
            let [here, there] = sides;
            while let Some(len) = blocked(match kind {
                Kind::Stream => there.protocol.read(&mut buffer),
                Kind::SeqPacket => {
                    there.protocol.recv(&mut buffer).map(|len| len.expect("nobody has closed"))
                }
            }) {
                taken.extend_from_slice(&buffer[..len]);
            }
            assert!(in_use(here) <= before + slot, "{} and now {}", before, in_use(here));
            here.events.len() == sizes.len() && taken.len() >= sizes.iter().sum()
        });
        assert!(taken == given.concat());
        let back = sides[0].events.iter().zip(&given).map(|(event, given)| match event {
            ConnectionEvent::Returned { ticket, block, sent: true } if block.bytes().starts_with(given) => {
                *ticket
            }
            other => panic!("{other:?}"),
        });
        assert_eq!(back.collect::<Vec<_>>(), tickets);
        assert_eq!(sides[1].protocol.counters().reads, 0);
    }
}

/// Memory that the program supplies is registered when it is first lent. It stays registered within
/// the bound; beyond it, the longest unused memory is deregistered first. Short memory, and memory
/// that cannot be registered, is copied.
#[test]
#[cfg_attr(miri, ignore = "opens sockets")]
fn adopted_memory_goes_as_it_is_and_stays_registered_within_the_bound() {
    let _guard = serialize();
    let mut sides = connected(Kind::SeqPacket);
    let mut pool = PoolConfig::default();
    (pool.initial, pool.prewarm, pool.max, pool.registrations) = (8 << 20, 0, 64 << 20, 250_000);
    let pool = Pool::new(&pool).expect("memory");
    pool.register(&sides[0].pool.domain().expect("a device's")).expect("registered");
    let send = |sides: &mut [TestPeer; 2], block: Block| {
        let (len, wanted) = (block.len(), block.bytes().to_vec());
        block.lend(pool.domain_id());
        sides[0].protocol.send_block(block, len).map_err(|(_, error)| error).expect("taken");
        let mut buffer = vec![0; len];
        let mut came = false;
        until(sides, "a block", |sides| {
            came |= blocked(sides[1].protocol.recv(&mut buffer)).is_some();
            came && !sides[0].events.is_empty()
        });
        assert!(buffer == wanted);
        let Some(ConnectionEvent::Returned { block, sent: true, .. }) = sides[0].events.pop() else {
            panic!("lost")
        };
        block.returned();
        block
    };
    let events = |pool: &Pool| {
        let adopted = pool.stats().adopted;
        (adopted.registered, adopted.made, adopted.reused, adopted.ended)
    };
    let [one, two, three] = [1, 2, 3].map(|seed| pool.adopt(pattern(100_000, seed)));
    let one = send(&mut sides, one);
    assert_eq!(sides[0].protocol.counters().bytes_announced, 100_000, "it was read where it lies");
    let one = send(&mut sides, one);
    assert_eq!(events(&pool), (100_000, 1, 1, 0));
    let (two, one) = (send(&mut sides, two), send(&mut sides, one));
    assert_eq!(events(&pool), (200_000, 2, 2, 0));
    let three = send(&mut sides, three);
    assert_eq!(events(&pool), (200_000, 3, 2, 1));
    assert_eq!([&one, &two, &three].map(|block| block.lkey().is_some()), [true, false, true]);
    // Memory larger than the bound is registered only while it is lent. Memory that was given up is
    // not registered any more.
    let large = send(&mut sides, pool.adopt(pattern(400_000, 4)));
    assert_eq!((events(&pool), large.lkey()), ((200_000, 4, 2, 2), None));
    let two = send(&mut sides, two);
    assert!(two.into_vec().expect("a vector") == pattern(100_000, 2));
    drop(send(&mut sides, one));
    assert_eq!((events(&pool), three.lkey().is_some()), ((100_000, 6, 2, 3), true));
    // Short blocks, and a block whose pool has no device, are copied.
    let before = sides[0].protocol.counters().bytes_announced;
    for block in [pool.adopt(pattern(9000, 5)), pool.adopt(pattern(10, 6)), pool.adopt(Vec::new())] {
        assert_eq!(send(&mut sides, block).lkey(), None);
    }
    let nowhere = Pool::new(&PoolConfig::default()).expect("memory");
    send(&mut sides, nowhere.adopt(pattern(100_000, 7)));
    assert_eq!(sides[0].protocol.counters().bytes_announced, before);
    assert_eq!(events(&pool), (100_000, 6, 2, 3));
}

/// Several blocks go in one request if it has enough entries, else in several requests, with and
/// without inline data.
#[test]
#[cfg_attr(miri, ignore = "opens sockets")]
fn several_blocks_are_one_message() {
    let _guard = serialize();
    for inline in [256, 0] {
        let mut sides = connected_with(Kind::SeqPacket, config().inline(inline), |_| ());
        assert_eq!(sides[0].rc.gather(), protocol::GATHER_MAX);
        let lists: [&[usize]; 6] =
            [&[10, 0, 20], &[1000; 7], &[1000; 8], &[100, 200_000, 7], &[70_000; 20], &[0]];
        let mut blocks = Vec::new();
        for (seed, list) in lists.iter().enumerate() {
            let TestPeer { protocol, pool, .. } = &mut sides[0];
            for (at, len) in list.iter().enumerate() {
                let mut block = pool.take(*len).expect("memory");
                block.bytes_mut()[..*len].copy_from_slice(&pattern(*len, (100 * seed + at) as u64));
                blocks.push((block, *len));
            }
            protocol.send_blocks(&mut blocks).expect("taken");
        }
        let (mut received, mut got, mut buffer) = (0, Vec::new(), vec![0; 2 << 20]);
        let count: usize = lists.iter().map(|list| list.len()).sum();
        until(&mut sides, "blocks", |sides| {
            while received < lists.len() {
                let Some(part) = blocked(sides[1].protocol.recv_part(&mut buffer)) else { break };
                let part = part.expect("nobody has closed");
                let (seed, list) = (received, lists[received]);
                let pieces = list.iter().enumerate().map(|(at, len)| pattern(*len, (100 * seed + at) as u64));
                let wanted = pieces.collect::<Vec<_>>().concat();
                // A message longer than the receive buffer arrives in parts.
                let at = got.len();
                got.extend_from_slice(&buffer[..part.len]);
                assert!(got[at..] == wanted[at..got.len()], "message {seed} from {at} on");
                if part.last {
                    assert_eq!(got.len(), wanted.len());
                    got.clear();
                    received += 1;
                }
            }
            sides[0].events.len() == count
        });
        assert_eq!(received, lists.len());
        let returned =
            |event: &ConnectionEvent<Block>| matches!(event, ConnectionEvent::Returned { sent: true, .. });
        assert!(sides[0].events.iter().all(returned));
        let frames = sides[0].protocol.counters();
        assert_eq!(frames.bytes_announced, 200_000 + 20 * 70_000, "what is long is read");
        assert!(frames.frames_sent - frames.credits_sent <= 1 + 1 + 2 + 3 + 2 + 1, "{frames:?}");
    }
}

/// Checks the description that is logged when RDMA is activated.
#[test]
#[cfg_attr(miri, ignore = "opens sockets")]
fn rdma_activation_is_logged_with_the_device() {
    let _guard = serialize();
    let sides = connected(Kind::Stream);
    let [one, other] = sides.each_ref().map(|side| side.rc.describe());
    let number = |words: &str, before: &str| {
        let (_, rest) = words.split_once(before).unwrap_or_else(|| panic!("no {before:?} in {words}"));
        rest.split([',', ' ']).next().map(str::to_owned)
    };
    for words in [&one, &other] {
        assert!(words.starts_with("soft0 port 1, GID index ") && words.contains("127.0.0.1"), "{words}");
        assert!(words.contains(" bytes inline, ") && words.ends_with(" receives deep"), "{words}");
        let mtu = number(words, ", MTU ").and_then(|mtu| mtu.parse().ok());
        assert!(matches!(mtu, Some(256..=4096)), "{words}");
    }
    assert_eq!(number(&one, ", queue pair "), number(&other, " to "), "{one}; {other}");
    assert_eq!(number(&other, ", queue pair "), number(&one, " to "), "{one}; {other}");
}

/// If the device refuses the wanted number of scatter/gather entries, the queue pair gets two
/// entries and the same inline data. Each block is then a frame.
#[test]
#[cfg_attr(miri, ignore = "opens sockets")]
fn a_device_that_takes_few_pieces_gets_more_frames() {
    let _guard = serialize();
    rules("errno=EINVAL call=create_qp first=1");
    let mut sides = connected(Kind::SeqPacket);
    let mut gathers = sides.each_ref().map(|side| side.rc.gather());
    let few = usize::from(gathers[1] == 1);
    let inline = sides.each_ref().map(|side| side.rc.describe().contains("272 bytes inline"));
    gathers.sort_unstable();
    assert_eq!((gathers, inline), ([1, protocol::GATHER_MAX], [true, true]));
    let TestPeer { protocol, pool, .. } = &mut sides[few];
    let mut blocks = (0..3).map(|seed| {
        let mut block = pool.take(2000).expect("memory");
        block.bytes_mut()[..2000].copy_from_slice(&pattern(2000, seed));
        (block, 2000)
    });
    protocol.send_blocks(&mut blocks.by_ref().collect()).expect("taken");
    let (mut buffer, mut came) = (vec![0; 6000], None);
    until(&mut sides, "three blocks", |sides| {
        came = came.or_else(|| blocked(sides[1 - few].protocol.recv(&mut buffer)));
        came.is_some() && sides[few].events.len() == 3
    });
    assert_eq!(came, Some(Some(6000)));
    assert!(buffer == [0, 1, 2].map(|seed| pattern(2000, seed)).concat());
    let sent = sides[few].protocol.counters();
    assert_eq!(sent.frames_sent - sent.credits_sent, 3);
}

#[test]
#[cfg_attr(miri, ignore = "opens sockets")]
fn a_reader_that_stops_stops_the_writer_and_nothing_is_lost() {
    let _guard = serialize();
    let mut sides = connected(Kind::Stream);
    let given = pattern(16 << 20, 1);
    let mut written = 0;
    // Until the writer is refused 100 times in a row, so nothing moves any more.
    let mut refused = 0;
    until(&mut sides, "back-pressure", |sides| {
        let TestPeer { protocol, pool, .. } = &mut sides[0];
        match blocked(protocol.write(&[IoSlice::new(&given[written..])], pool)) {
            Some(count) => (written, refused) = (written + count, 0),
            None => refused += 1,
        }
        refused > 100
    });
    assert!(written < given.len() / 2, "{written} bytes went nowhere");
    let held = sides.each_ref().map(|side| side.pool.stats().in_use);
    assert!(held.iter().all(|held| *held < 6 << 20), "{held:?}");
    let (mut taken, mut buffer) = (Vec::new(), vec![0; 70_000]);
    until(&mut sides, "the rest", |sides| {
        if written < given.len() {
            let TestPeer { protocol, pool, .. } = &mut sides[0];
            written += blocked(protocol.write(&[IoSlice::new(&given[written..])], pool)).unwrap_or(0);
        }
        while let Some(count) = blocked(sides[1].protocol.read(&mut buffer)) {
            taken.extend_from_slice(&buffer[..count]);
        }
        taken.len() == given.len()
    });
    assert!(taken == given);
}

/// A side that sleeps until an event misses nothing. A byte goes back and forth between two
/// threads, each of which polls once and sleeps if that brought nothing.
#[test]
#[cfg_attr(miri, ignore = "opens sockets")]
fn a_sleeping_side_is_woken() {
    let _guard = serialize();
    const ROUNDS: u32 = 300;
    let [here, there] = connected(Kind::Stream);
    let play = |mut side: TestPeer, begins: bool| {
        let (mut mine, mut rounds, mut byte) = (begins, 0, [0]);
        let give_up = Instant::now() + TIMEOUT;
        while rounds < ROUNDS {
            if mine {
                let TestPeer { protocol, pool, .. } = &mut side;
                mine = blocked(protocol.write(&[IoSlice::new(&[7])], pool)).is_none();
            }
            side.progress_transport();
            if blocked(side.protocol.read(&mut byte)).is_some() {
                (mine, rounds) = (true, rounds + 1);
                continue;
            }
            assert!(Instant::now() < give_up, "round {rounds}");
            side.sleep(TIMEOUT);
        }
        // The other side still waits for the last byte.
        if mine && !begins {
            let TestPeer { protocol, pool, .. } = &mut side;
            let _ = protocol.write(&[IoSlice::new(&[7])], pool);
        }
        side.progress();
        side
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| play(there, false));
        let here = play(here, true);
        let there = other.join().expect("no panic");
        assert!(here.failure().is_none() && there.failure().is_none());
    });
}

#[test]
#[cfg_attr(miri, ignore = "opens sockets")]
fn silence_is_probed() {
    let _guard = serialize();
    let keepalive = protocol::Keepalive { idle: Duration::from_millis(1), timeout: TIMEOUT };
    let mut sides = connected_with(Kind::Stream, config(), |setup| setup.keepalive = Some(keepalive));
    until(&mut sides, "probes", |sides| sides.iter().all(|side| side.protocol.counters().probes >= 3));
    assert!(sides.iter().all(|side| side.failure().is_none()));
}
