//! Tests of data transfer: everything arrives, whole and in order.

use super::*;

#[test]
fn a_stream_gives_the_bytes_in_order_both_ways() {
    for read in [false, true] {
        let mut setup = setup(ConnectionKind::Stream);
        setup.read = read;
        // Fewer receives than the bytes need, so that they are lent.
        (setup.own.rx_slots, setup.peer.rx_slots) = (16, 16);
        let mut pair = PeerPair::new(&setup);
        let (to_b, to_a) = (bytes(300_000, 1), bytes(200_000, 2));
        assert_eq!(pair.a.write(&to_b), Ok(to_b.len()));
        assert_eq!(pair.b.write(&to_a), Ok(to_a.len()));
        let (mut at_b, mut at_a) = (Vec::new(), Vec::new());
        for _ in 0..200 {
            pair.turn();
            at_a.extend(pair.a.read_all());
            at_b.extend(pair.b.read_all());
        }
        assert!(at_b == to_b && at_a == to_a);
        assert_eq!(pair.b.connection.counters().reads > 0, read);
        drop(pair.a.connection);
        assert_eq!(pair.a.blocks.out(), 0);
    }
}

/// Messages around every boundary of the formats: one frame, one frame with a length in front,
/// fragments, sources.
#[test]
fn messages_keep_their_boundaries() {
    let borders = [8160, 8164, 8168, 8172, 8176, 8184, 16_344, 65_536, 262_144, 262_144 + 65_536];
    let mut sizes = vec![0, 1, 3, 4, 5, 7, 64, 4000, 4076];
    sizes.extend(borders.iter().flat_map(|border| border - 9..border + 9));
    sizes.extend([0, 3, 1_000_000]);
    for read in [false, true] {
        for link in [LinkType::Rc, LinkType::Tcp] {
            let mut setup = setup(ConnectionKind::SeqPacket);
            (setup.link, setup.read) = (link, read && link == LinkType::Rc);
            let mut pair = PeerPair::new(&setup);
            let (mut given, mut taken) = (0, 0);
            while taken < sizes.len() {
                while given < sizes.len() && pair.a.send(&bytes(sizes[given], given as u8)).is_ok() {
                    given += 1;
                }
                pair.settle();
                let before = taken;
                while let Some(message) = pair.b.recv() {
                    assert_eq!(message.len(), sizes[taken], "message {taken}");
                    assert!(message == bytes(sizes[taken], taken as u8), "message {taken}");
                    taken += 1;
                }
                assert!(taken > before, "stuck at message {taken} of {given} given");
            }
        }
    }
}

#[test]
fn small_messages_share_frames_while_others_are_under_way() {
    let mut pair = PeerPair::new(&setup(ConnectionKind::SeqPacket));
    for i in 0..1000 {
        pair.a.send(&bytes(i % 100, i as u8)).unwrap();
    }
    pair.settle();
    let frames = pair.a.connection.counters().frames_sent;
    assert!(frames < 20, "{frames}");
    for i in 0..1000 {
        assert_eq!(pair.b.recv().unwrap(), bytes(i % 100, i as u8));
    }
    // A single message is sent at once, and without the COALESCED format.
    pair.a.send(b"hello").unwrap();
    assert!(pair.a.transmit(&mut pair.b, pair.now, true));
    assert_eq!(pair.b.wire[0].len(), HEADER_LEN + 5);
    assert_eq!(pair.b.wire[0][1], frame::FIRST | frame::LAST);
}

#[test]
fn lent_blocks_arrive_and_come_back_once() {
    for (kind, read, link) in [
        (ConnectionKind::Stream, true, LinkType::Rc),
        (ConnectionKind::Stream, false, LinkType::Rc),
        (ConnectionKind::SeqPacket, true, LinkType::Rc),
        (ConnectionKind::SeqPacket, false, LinkType::Rc),
        (ConnectionKind::SeqPacket, false, LinkType::Tcp),
    ] {
        let mut setup = setup(kind);
        (setup.read, setup.link) = (read, link);
        let mut pair = PeerPair::new(&setup);
        let sizes = [1, 5000, 8192, 8193, 70_000, 600_000];
        let tickets = sizes.map(|size| pair.a.lend(&bytes(size, size as u8)));
        let mut returned = Vec::new();
        let mut got = Vec::new();
        for _ in 0..20 {
            pair.settle();
            for event in pair.a.take_events() {
                let ConnectionEvent::Returned { ticket, sent: true, block } = event else {
                    panic!("{event:?}")
                };
                let size = sizes[tickets.iter().position(|each| *each == ticket).unwrap()];
                assert!(block.bytes()[..size] == bytes(size, size as u8), "a lent block is not changed");
                returned.push(ticket);
            }
            match kind {
                ConnectionKind::Stream => got.extend(pair.b.read_all()),
                ConnectionKind::SeqPacket => got.extend(std::iter::from_fn(|| pair.b.recv()).flatten()),
            }
        }
        let wanted: Vec<u8> = sizes.iter().flat_map(|size| bytes(*size, *size as u8)).collect();
        let (sent, got_b) = (pair.a.connection.counters(), pair.b.connection.counters());
        let told = if read { 8193 + 70_000 + 600_000 } else { 0 };
        assert_eq!((sent.bytes_announced, got_b.bytes_read), (told, told));
        assert!(sent.bytes_sent >= wanted.len() as u64 - told && sent.bytes_sent == got_b.bytes_received);
        assert!(got == wanted);
        returned.sort();
        assert_eq!(returned, tickets);
    }
}

#[test]
fn chunks_keep_their_memory_until_given_back() {
    // A copy would need a block.
    let uncopied = |side: &mut TestPeer| {
        let taken = side.blocks.taken;
        let chunk = side.connection.recv_chunk(&mut side.blocks).unwrap().unwrap();
        assert_eq!(side.blocks.taken, taken);
        chunk
    };
    let mut setup = setup(ConnectionKind::SeqPacket);
    setup.rcvbuf = 16 * 8192;
    let mut pair = PeerPair::new(&setup);
    for i in 0..3 {
        pair.a.send(&bytes(10 + i, i as u8)).unwrap();
    }
    pair.a.send(&bytes(100_000, 9)).unwrap();
    pair.settle();
    let mut held = 0;
    for i in 0..3 {
        // These share a frame, so all but the last are copied.
        let chunk = pair.b.connection.recv_chunk(&mut pair.b.blocks).unwrap().unwrap();
        assert!(chunk.first && chunk.last);
        assert_eq!(chunk.block.bytes()[chunk.range.clone()], bytes(10 + i, i as u8));
        held += chunk.charge;
        assert_eq!(pair.b.connection.receive_charges().1, held);
    }
    pair.b.connection.give_back(held);
    let mut message = Vec::new();
    loop {
        let chunk = uncopied(&mut pair.b);
        assert_eq!(chunk.first, message.is_empty());
        message.extend_from_slice(&chunk.block.bytes()[chunk.range.clone()]);
        pair.b.connection.give_back(chunk.charge);
        if chunk.last {
            break;
        }
        pair.settle();
    }
    assert!(message == bytes(100_000, 9));
    assert_eq!(pair.b.connection.receive_charges(), (0, 0));
}

#[test]
fn parts_stream_a_message_above_every_buffer() {
    for read in [false, true] {
        let mut setup = setup(ConnectionKind::SeqPacket);
        (setup.read, setup.sndbuf, setup.rcvbuf) = (read, 100_000, 100_000);
        let mut pair = PeerPair::new(&setup);
        let message = bytes(3_000_000, 5);
        let refused = pair.a.send(&message);
        assert_eq!(refused, Err(CallError::AboveSendQuota { len: 3_000_000, quota: 100_000 }));
        pair.a.send(b"before").unwrap();
        let (mut given, mut got, mut last) = (0, Vec::new(), false);
        pair.settle();
        assert_eq!(pair.b.recv().unwrap(), b"before");
        let mut buffer = vec![0; 70_000];
        while !last {
            while given < message.len() {
                let end = (given + 90_000).min(message.len());
                let slices = [IoSlice::new(&message[given..end])];
                match pair.a.connection.send_part(3_000_000, &slices, &mut pair.a.blocks) {
                    Ok(n) => given += n,
                    Err(CallError::Blocked(_)) => break,
                    Err(error) => panic!("{error}"),
                }
                if given < message.len() {
                    assert!(matches!(pair.a.send(b"within"), Err(CallError::PartOpen { .. })));
                }
            }
            pair.settle();
            if got.is_empty() {
                let refused = pair.b.connection.recv(&mut buffer);
                assert_eq!(refused, Err(CallError::AboveReceiveQuota { len: 3_000_000, quota: 100_000 }));
            }
            assert!(pair.b.connection.readable());
            while let Ok(Some(part)) = pair.b.connection.recv_part(&mut buffer) {
                assert_eq!(part.total, 3_000_000);
                got.extend_from_slice(&buffer[..part.len]);
                last = part.last;
                if last {
                    break;
                }
            }
        }
        assert!(got == message);
        pair.a.send(b"after").unwrap();
        pair.settle();
        assert_eq!(pair.b.recv().unwrap(), b"after");
    }
}

#[test]
fn small_parts_make_one_message() {
    let mut pair = PeerPair::new(&setup(ConnectionKind::SeqPacket));
    for (i, part) in [&b"one"[..], b"", b"two", b"three"].into_iter().enumerate() {
        let sent = pair.a.connection.send_part(11, &[IoSlice::new(part)], &mut pair.a.blocks);
        assert_eq!(sent, Ok(part.len()));
        if i == 2 {
            pair.settle();
        }
    }
    let over = pair.a.connection.send_part(2, &[IoSlice::new(b"abc")], &mut pair.a.blocks);
    assert_eq!(over, Err(CallError::PartTooLong { len: 3, left: 2 }));
    assert_eq!(pair.a.connection.send_part(4, &[IoSlice::new(b"full")], &mut pair.a.blocks), Ok(4));
    assert_eq!(pair.a.connection.send_part(0, &[], &mut pair.a.blocks), Ok(0));
    pair.settle();
    assert_eq!(pair.b.recv().unwrap(), b"onetwothree");
    assert_eq!(pair.b.recv().unwrap(), b"full");
    assert_eq!(pair.b.recv().unwrap(), b"");
}

#[test]
fn a_message_that_does_not_fit_the_buffer_stays() {
    let mut pair = PeerPair::new(&setup(ConnectionKind::SeqPacket));
    pair.a.send(b"12345").unwrap();
    pair.settle();
    let mut buffer = [0; 5];
    let refused = pair.b.connection.recv(&mut buffer[..4]);
    assert_eq!(refused, Err(CallError::BufferTooSmall { len: 5, room: 4 }));
    assert_eq!(pair.b.connection.recv(&mut buffer), Ok(Some(5)));
    assert!(matches!(pair.b.connection.read(&mut buffer), Err(CallError::WrongKind)));
    assert!(matches!(pair.a.write(b"x"), Err(CallError::WrongKind)));
}

#[test]
fn a_pool_without_memory_blocks_and_loses_nothing() {
    let mut pair = PeerPair::new(&setup(ConnectionKind::SeqPacket));
    pair.a.send(b"first").unwrap();
    pair.a.blocks.most = 5;
    assert_eq!(pair.a.send(&bytes(60_000, 1)), Err(CallError::Blocked(Blocked::Memory)));
    pair.settle();
    assert_eq!(pair.a.blocks.out(), 0, "what a refused call took is given back");
    pair.a.blocks.most = 1000;
    pair.a.send(&bytes(60_000, 1)).unwrap();
    pair.settle();
    assert_eq!(pair.b.recv().unwrap(), b"first");
    assert!(pair.b.recv().unwrap() == bytes(60_000, 1));
    // A READ waits for memory, too.
    pair.b.blocks.most = 0;
    pair.a.send(&bytes(600_000, 2)).unwrap();
    pair.settle();
    assert!(pair.b.connection.wants_memory() && pair.b.recv().is_none());
    pair.b.blocks.most = 10;
    pair.settle();
    assert!(pair.b.recv().unwrap() == bytes(600_000, 2));
}

/// Every frame on the wire. A change here changes the protocol's major version.
#[test]
fn golden_frames() {
    for acknowledge in [false, true] {
        golden_frames_with(&ConnectionSetup { acknowledge, ..setup(ConnectionKind::SeqPacket) });
    }
}

fn golden_frames_with(setup: &ConnectionSetup) {
    let mut pair = PeerPair::new(setup);
    let received = |count: u8| if setup.acknowledge { [count, 0] } else { [0, 0] };
    let header = |kind: u8, flags: u8, count: u8, seq: u8, total: u8, len: [u8; 2]| {
        [kind, flags, count, 0, seq, 0, 0, 0, total, 0, 0, 0, len[0], len[1], 0, 0].to_vec()
    };
    let frames = |from: &mut TestPeer, to: &mut TestPeer, now: Instant| -> Vec<Vec<u8>> {
        from.post();
        while from.transmit(to, now, true) {}
        let frames = to.wire.iter().cloned().collect();
        while to.deliver() {}
        while from.complete(to) {}
        frames
    };
    let now = pair.now;

    pair.a.send(b"hi").unwrap();
    let alone = [header(1, 3, 0, 0, 64, [2, 0]), b"hi".to_vec()].concat();
    assert_eq!(frames(&mut pair.a, &mut pair.b, now), [alone]);

    pair.a.send(b"a").unwrap();
    pair.a.send(b"bcdef").unwrap();
    let messages = b"\x01\0\0\0a\0\0\0\x05\0\0\0bcdef\0\0\0\0\0\0\0".to_vec();
    let batch = [header(1, 4, 2, 1, 64, [24, 0]), messages].concat();
    assert_eq!(frames(&mut pair.a, &mut pair.b, now), [batch]);

    let long = bytes(20_000, 1);
    pair.a.send(&long).unwrap();
    let first = [&header(1, 1, 0, 2, 64, [0xf0, 0x1f])[..], &20_000u64.to_le_bytes(), &long[..8168]].concat();
    let middle = [&header(1, 0, 0, 3, 64, [0xf0, 0x1f])[..], &long[8168..16_344]].concat();
    let last = [&header(1, 2, 0, 4, 64, [0x48, 0x0e])[..], &long[16_344..]].concat();
    assert!(frames(&mut pair.a, &mut pair.b, now) == [first, middle, last]);

    // Two sources of 256 KiB, because 512 KiB do not fit the free receives. The first RTS has the
    // message's total, and the second does not.
    pair.a.send(&bytes(0x8_0000, 1)).unwrap();
    let told = frames(&mut pair.a, &mut pair.b, now);
    let starts = |frame: &[u8], header: Vec<u8>, rest: &[u8]| frame.starts_with(&[&header, rest].concat());
    assert!(starts(&told[0], header(3, 1, 1, 5, 64, [32, 0]), b"\0\0\x08\0\0\0\0\0\0\0\x04\0\0\0\0\0"));
    assert_eq!(told[0][40..], *b"\0\0\x04\0\x07\0\0\0");
    assert!(starts(&told[1], header(3, 2, 1, 6, 64, [24, 0]), b"\0\0\x04\0\0\0\0\0"));
    assert_eq!(told[1][32..], *b"\0\0\x04\0\x07\0\0\0");
    let addr = u64::from_le_bytes(told[1][24..32].try_into().unwrap());
    assert!(
        pair.a.connection.source_bytes(Segment { addr, len: 0x4_0000, rkeys: RemoteKeys::one(7) }).is_some()
    );
    assert!(
        pair.a.connection.source_bytes(Segment { addr, len: 0x4_0001, rkeys: RemoteKeys::one(7) }).is_none()
    );

    // The READs, and then RFIN for both, which also grants the seven used receives.
    assert!(frames(&mut pair.b, &mut pair.a, now).is_empty());
    assert_eq!(frames(&mut pair.b, &mut pair.a, now), [header(4, 0, 0, 0, 71, [2, 0])]);

    pair.a.connection.shutdown_write();
    assert_eq!(frames(&mut pair.a, &mut pair.b, now), [header(9, 0, 0, 7, 65, received(1))]);
    assert_eq!(frames(&mut pair.b, &mut pair.a, now), [header(10, 0, 0, 1, 72, received(8))]);
    pair.b.connection.abort();
    assert_eq!(frames(&mut pair.b, &mut pair.a, now), [header(11, 0, 0, 2, 72, [0, 0])]);

    // CREDIT, once half the receives are owed.
    let mut pair = PeerPair::new(setup);
    for _ in 0..32 {
        pair.a.send(b"x").unwrap();
        assert!(frames(&mut pair.b, &mut pair.a, now).is_empty());
        frames(&mut pair.a, &mut pair.b, now);
    }
    assert_eq!(frames(&mut pair.b, &mut pair.a, now), [header(2, 0, 0, 0, 96, received(32))]);
}

/// All frames that `a` sends in one turn, as bytes on the wire.
fn frames_of(pair: &mut PeerPair) -> Vec<Vec<u8>> {
    while pair.a.transmit(&mut pair.b, pair.now, true) {}
    pair.b.wire.iter().cloned().collect()
}

fn header(kind: u8, flags: u8, count: u8, seq: u8, len: u32) -> Vec<u8> {
    let [l0, l1, l2, l3] = len.to_le_bytes();
    vec![kind, flags, count, 0, seq, 0, 0, 0, 64, 0, 0, 0, l0, l1, l2, l3]
}

/// The bytes on the wire: short blocks become one frame, and only its header lies outside of them.
#[test]
fn blocks_that_fit_a_frame_go_in_one() {
    let mut pair = PeerPair::new(&setup(ConnectionKind::SeqPacket));
    pair.a.lend_together(&[b"head", b"", b"body", b"tail"]);
    let frames = frames_of(&mut pair);
    assert_eq!(frames, [[header(1, 3, 0, 0, 12), b"headbodytail".to_vec()].concat()]);
    pair.settle();
    assert_eq!(pair.b.recv().unwrap(), b"headbodytail");
    let back = pair.a.take_events();
    assert_eq!(back.len(), 4, "{back:?}");
}

/// As many blocks per frame as a request can gather; a message that does not fit starts with its
/// length.
#[test]
fn blocks_beyond_what_a_request_takes_go_in_several_frames() {
    let mut setup = setup(ConnectionKind::SeqPacket);
    setup.gather = 2;
    let mut pair = PeerPair::new(&setup);
    pair.a.lend_together(&[b"a", b"b", b"c"]);
    let total = [3, 0, 0, 0, 0, 0, 0, 0].as_slice();
    let frames = frames_of(&mut pair);
    assert_eq!(
        frames,
        [[&header(1, 1, 0, 0, 10)[..], total, b"ab"].concat(), [&header(1, 2, 0, 1, 1)[..], b"c"].concat()]
    );
    pair.settle();
    assert_eq!(pair.b.recv().unwrap(), b"abc");
}

/// Long blocks are one source with several ranges; its RTS needs a block here, because it is too
/// long for a short frame. Golden bytes, as in any version 1.0.
#[test]
fn long_blocks_are_one_source() {
    let mut pair = PeerPair::new(&setup(ConnectionKind::SeqPacket));
    let parts = [bytes(70_000, 1), bytes(9000, 2), bytes(1, 3)];
    pair.a.lend_together(&parts.each_ref().map(Vec::as_slice));
    let frames = frames_of(&mut pair);
    let [rts] = &frames[..] else { panic!("{} frames", frames.len()) };
    assert_eq!(rts[..16], header(3, 3, 3, 0, 8 + 3 * 16));
    assert_eq!(rts[16..24], 79_001_u64.to_le_bytes());
    let lens: Vec<_> = rts[24..].chunks(16).map(|range| range[8..12].to_vec()).collect();
    assert_eq!(lens, [70_000_u32, 9000, 1].map(|len| len.to_le_bytes().to_vec()));
    assert!(rts[24..].chunks(16).all(|range| range[12..] == [7, 0, 0, 0]));
    pair.settle();
    assert!(pair.b.recv().unwrap() == parts.concat());
    assert_eq!(pair.a.connection.counters().bytes_announced, 79_001);
    assert_eq!(pair.a.take_events().len(), 3);
}

/// At most 16 ranges and 16 MiB, the limits of an RTS. The first RTS carries the message's length.
#[test]
fn a_message_of_many_blocks_is_several_sources() {
    for (count, size, ranges) in [(40, 10_000, vec![16, 16, 8]), (5, 5 << 20, vec![3, 2])] {
        let mut pair = PeerPair::new(&setup(ConnectionKind::SeqPacket));
        let parts: Vec<_> = (0..count).map(|seed| bytes(size, seed)).collect();
        let first = pair.a.lend_together(&parts.iter().map(Vec::as_slice).collect::<Vec<_>>());
        let frames = frames_of(&mut pair);
        assert_eq!(frames.iter().map(|frame| usize::from(frame[2])).collect::<Vec<_>>(), ranges);
        assert_eq!(frames[0][16..24], (u64::from(count) * size as u64).to_le_bytes());
        assert!(frames.iter().all(|frame| frame[0] == 3 && frame.len() <= 512));
        let (mut got, mut buffer) = (Vec::new(), vec![0; 1 << 20]);
        let mut came = Vec::new();
        while got.len() < usize::from(count) * size {
            pair.settle();
            while let Ok(Some(part)) = pair.b.connection.recv_part(&mut buffer) {
                got.extend_from_slice(&buffer[..part.len]);
            }
            came.extend(pair.a.take_events());
        }
        assert!(got == parts.concat());
        pair.settle();
        came.extend(pair.a.take_events());
        let tickets = came.iter().map(|event| match event {
            ConnectionEvent::Returned { ticket, sent: true, .. } => ticket.0,
            other => panic!("{other:?}"),
        });
        assert_eq!(tickets.collect::<Vec<_>>(), (first.0..first.0 + u64::from(count)).collect::<Vec<_>>());
    }
}

/// A block longer than the limit of an RTS is announced in several, and returns after the last.
#[test]
fn a_block_longer_than_a_source_is_several_sources() {
    for kind in [ConnectionKind::Stream, ConnectionKind::SeqPacket] {
        let mut pair = PeerPair::new(&setup(kind));
        let sent = bytes((40 << 20) + 3, 5);
        let ticket = pair.a.lend(&sent);
        let frames = frames_of(&mut pair);
        let (flags, prefix) = if kind == ConnectionKind::Stream { ([0; 3], 0) } else { ([1, 0, 2], 8) };
        let told: Vec<_> = frames.iter().map(|frame| (frame[0], frame[1], frame[2], frame.len())).collect();
        assert_eq!(told, [(3, flags[0], 1, 40 + prefix), (3, flags[1], 1, 40), (3, flags[2], 1, 40)]);
        let (mut got, mut buffer) = (Vec::new(), vec![0; 1 << 20]);
        while got.len() < sent.len() {
            assert!(pair.a.take_events().is_empty(), "it is still being read");
            for _ in 0..8 {
                pair.settle();
                match kind {
                    ConnectionKind::Stream => got.extend(pair.b.read_all()),
                    ConnectionKind::SeqPacket => {
                        while let Ok(Some(part)) = pair.b.connection.recv_part(&mut buffer) {
                            got.extend_from_slice(&buffer[..part.len]);
                        }
                    }
                }
                if got.len() == sent.len() {
                    break;
                }
            }
        }
        assert!(got == sent);
        pair.settle();
        let events = pair.a.take_events();
        assert!(
            matches!(events[..], [ConnectionEvent::Returned { ticket: of, sent: true, .. }] if of == ticket),
            "{events:?}"
        );
    }
}

/// Sizes around each threshold at which the format changes.
#[test]
fn gathered_blocks_arrive_over_every_link() {
    for (kind, read, link) in [
        (ConnectionKind::Stream, true, LinkType::Rc),
        (ConnectionKind::Stream, false, LinkType::Rc),
        (ConnectionKind::SeqPacket, true, LinkType::Rc),
        (ConnectionKind::SeqPacket, false, LinkType::Rc),
        (ConnectionKind::SeqPacket, false, LinkType::Tcp),
        (ConnectionKind::Stream, false, LinkType::Tcp),
    ] {
        let mut setup = setup(kind);
        (setup.read, setup.link) = (read, link);
        let mut pair = PeerPair::new(&setup);
        let sizes = [0, 1, 8168, 8169, 8176, 8177, 30_000];
        for first in sizes {
            for second in sizes {
                for third in [0, 5, 8176, 20_000] {
                    let parts = [bytes(first, 1), bytes(second, 2), bytes(third, 3)];
                    pair.a.lend_together(&parts.each_ref().map(Vec::as_slice));
                    pair.settle();
                    let wanted = parts.concat();
                    match kind {
                        ConnectionKind::Stream => {
                            assert!(pair.b.read_all() == wanted, "{first} {second} {third}")
                        }
                        ConnectionKind::SeqPacket => {
                            assert!(pair.b.recv().as_ref() == Some(&wanted), "{first} {second} {third}");
                        }
                    }
                    pair.settle();
                    assert_eq!(pair.a.take_events().len(), 3);
                }
            }
        }
        assert_eq!(pair.a.blocks.out(), 0);
    }
}

/// Without READ: frames carry a whole slot each, because their headers need not be sent, and use no
/// block but the lent ones.
#[test]
fn long_blocks_go_in_frames_from_where_they_lie() {
    for (kind, flags, prefix) in [(ConnectionKind::SeqPacket, 1, 8), (ConnectionKind::Stream, 0, 0)] {
        let mut pair = PeerPair::new(&ConnectionSetup::new(kind, LinkType::Rc));
        let parts = [bytes(5, 1), bytes(20_000, 2), bytes(7, 3)];
        let [head, long, tail] = parts.each_ref().map(Vec::as_slice);
        pair.a.lend_together(&[head, long, tail]);
        let (total, last) = (&20_012_u64.to_le_bytes()[..prefix], 2 * flags);
        let taken = pair.a.blocks.taken;
        let wanted = [
            [&header(1, flags, 0, 0, 5 + prefix as u32), total, head].concat(),
            [&header(1, 0, 0, 1, 8192), &long[..8192]].concat(),
            [&header(1, 0, 0, 2, 8192), &long[8192..16_384]].concat(),
            [&header(1, 0, 0, 3, 3616), &long[16_384..]].concat(),
            [&header(1, last, 0, 4, 7), tail].concat(),
        ];
        assert!(frames_of(&mut pair) == wanted);
        assert_eq!(pair.a.blocks.taken, taken);
        // A single frame is the first and the last; both have no room for a byte more.
        let mut pair = PeerPair::new(&ConnectionSetup::new(kind, LinkType::Rc));
        let long = bytes(2 * 8192 - prefix, 4);
        pair.a.lend(&long);
        let (first, total) = (8192 - prefix, &(long.len() as u64).to_le_bytes()[..prefix]);
        let wanted = [
            [&header(1, flags, 0, 0, 8192), total, &long[..first]].concat(),
            [&header(1, last, 0, 1, 8192), &long[first..]].concat(),
        ];
        assert!(frames_of(&mut pair) == wanted);
        assert_eq!(pair.a.blocks.taken, 1);
    }
}

/// Neither the last frame alone returns it, nor the last completion before the other frames are
/// made.
#[test]
fn a_block_in_several_frames_comes_back_with_the_last() {
    for slots in [16, 64] {
        let mut setup = ConnectionSetup::new(ConnectionKind::SeqPacket, LinkType::Rc);
        (setup.own.rx_slots, setup.peer.rx_slots) = (slots, slots);
        let mut pair = PeerPair::new(&setup);
        let long = bytes(30 * 8192, 1);
        let tickets = [pair.a.lend(&long), pair.a.lend(&bytes(9000, 2)), pair.a.lend(b"short")];
        let taken = pair.a.blocks.taken;
        let (mut frames, mut back, mut came) = (0, Vec::new(), Vec::new());
        for turn in 0..200 {
            pair.a.post();
            while pair.a.transmit(&mut pair.b, pair.now, true) {}
            while pair.b.deliver() {}
            // One completes, or all.
            while pair.a.complete(&pair.b) {
                frames += 1;
                for event in pair.a.take_events() {
                    let ConnectionEvent::Returned { ticket, block, sent: true } = event else {
                        panic!("{event:?}")
                    };
                    assert!(ticket != tickets[0] || block.bytes() == long);
                    back.push((ticket, frames));
                }
                if turn % 3 == 0 {
                    break;
                }
            }
            while pair.b.transmit(&mut pair.a, pair.now, true) {}
            while pair.a.deliver() | pair.b.complete(&pair.a) {}
            came.extend(std::iter::from_fn(|| pair.b.recv()));
            pair.b.post();
        }
        // The total is in the first of 31 frames; then follow two, and one.
        assert_eq!(back, [(tickets[0], 31), (tickets[1], 33), (tickets[2], 34)]);
        assert_eq!(pair.a.blocks.taken, taken);
        assert!(came == [long, bytes(9000, 2), b"short".to_vec()]);
        assert_eq!(pair.a.blocks.out(), 0);
    }
}

/// The program gets its block back as soon as the last frame is made. Over TCP every block is
/// reachable.
#[test]
fn unregistered_blocks_are_copied() {
    for (link, copies) in [(LinkType::Rc, 3), (LinkType::Tcp, 0)] {
        let mut pair = PeerPair::new(&ConnectionSetup::new(ConnectionKind::SeqPacket, link));
        pair.a.blocks.apart = true;
        let len = if link == LinkType::Rc { 20_000 } else { 600_000 };
        let ticket = pair.a.lend(&bytes(len, 1));
        let taken = pair.a.blocks.taken;
        assert_eq!(frames_of(&mut pair).len(), 3);
        assert_eq!(pair.a.blocks.taken - taken, copies);
        let early = pair.a.take_events();
        assert_eq!(early.len(), usize::from(copies > 0));
        pair.settle();
        let events = early.into_iter().chain(pair.a.take_events()).collect::<Vec<_>>();
        assert!(
            matches!(events[..], [ConnectionEvent::Returned { ticket: of, sent: true, .. }] if of == ticket),
            "{events:?}"
        );
        assert!(pair.b.recv().unwrap() == bytes(len, 1));
    }
}

/// Older peers send this, too: each block has a separate RTS, within one message.
#[test]
fn a_message_of_single_ranges_is_the_same_message() {
    let mut pair = PeerPair::new(&setup(ConnectionKind::SeqPacket));
    let (one, two) = (bytes(40_000, 1), bytes(50_000, 2));
    let mut tell = |seq, flags, bytes: &[u8], total: &[u8]| {
        let mut block = pair.a.blocks.take(bytes.len(), Purpose::Send).unwrap();
        block.bytes_mut().copy_from_slice(bytes);
        let RemoteAddress { addr, rkeys } = block.remote().unwrap();
        let segment = frame::encode_segment(&Segment { addr, len: bytes.len() as u32, rkeys });
        let len = (total.len() + 24) as u32;
        let told = (bytes.len() as u64).to_le_bytes();
        pair.b.receives -= 1;
        pair.b.feed(&[&header(3, flags, 1, seq, len)[..], total, &told, &segment[..16]].concat()).unwrap();
        block
    };
    let blocks = [tell(0, 1, &one, &90_000_u64.to_le_bytes()), tell(1, 2, &two, &[])];
    while pair.b.transmit(&mut pair.a, pair.now, true) {}
    while let Some((id, range)) = pair.b.posted.pop_front() {
        let mut done = pair.b.queue.complete(id).unwrap();
        if let (CompletedTransmit::Read { block, .. }, Some(range)) = (&mut done, range) {
            let from = blocks.iter().find_map(|from| {
                let at = range.addr.checked_sub(from.remote()?.addr)? as usize;
                from.bytes().get(at..at + range.len as usize)
            });
            block.bytes_mut()[..range.len as usize].copy_from_slice(from.expect("what was told"));
        }
        pair.b.connection.done(done);
        while pair.b.transmit(&mut pair.a, pair.now, true) {}
    }
    assert!(pair.b.recv().unwrap() == [one, two].concat());
}

/// The queue pairs of several devices complete their READs in any order.
#[test]
fn reads_may_complete_in_any_order() {
    let mut pair = PeerPair::new(&setup(ConnectionKind::SeqPacket));
    let messages = [bytes(300_000, 1), bytes(400_000, 2)];
    let sources: Vec<_> = messages.iter().map(|message| pair.a.lend(message)).collect();
    while pair.a.transmit(&mut pair.b, pair.now, true) {}
    while pair.b.deliver() {}
    while pair.b.transmit(&mut pair.a, pair.now, true) {}
    let mut reads = Vec::new();
    while let Some((id, range)) = pair.b.posted.pop_front() {
        reads.push((pair.b.queue.complete(id).unwrap(), range.unwrap()));
    }
    assert!(reads.len() > 2, "{} READs", reads.len());
    for (mut done, range) in reads.into_iter().rev() {
        assert_eq!(pair.b.recv(), None);
        assert_eq!(pair.a.take_events().len(), 0, "RFIN before the first source is read");
        if let CompletedTransmit::Read { block, .. } = &mut done {
            let from = pair.a.connection.source_bytes(range).expect("what was told");
            block.bytes_mut()[..range.len as usize].copy_from_slice(from);
        }
        pair.b.connection.done(done);
        while pair.b.transmit(&mut pair.a, pair.now, true) {}
        while pair.a.deliver() {}
    }
    messages.iter().for_each(|message| assert!(pair.b.recv().unwrap() == *message));
    let returned = pair.a.take_events().into_iter().map(|event| match event {
        ConnectionEvent::Returned { ticket, sent: true, .. } => ticket,
        other => panic!("{other:?}"),
    });
    assert_eq!(returned.collect::<Vec<_>>(), sources);
}

#[test]
fn lists_that_can_never_be_lent_are_refused() {
    let mut pair = PeerPair::new(&setup(ConnectionKind::SeqPacket));
    assert_eq!(
        pair.a.connection.send_blocks(&mut Vec::new()),
        Err(CallError::BlockCount { count: 0, most: 1024 })
    );
    let mut many: Vec<_> = (0..1025).map(|_| (pair.a.blocks.take(1, Purpose::Send).unwrap(), 1)).collect();
    let refused = pair.a.connection.send_blocks(&mut many);
    assert_eq!(refused, Err(CallError::BlockCount { count: 1025, most: 1024 }));
    // As many as the limit allows; with another one in flight they have to wait.
    many.pop();
    pair.a.lend(b"x");
    let refused = pair.a.connection.send_blocks(&mut many);
    assert_eq!(refused, Err(CallError::Blocked(Blocked::SendQuota)));
    assert!(many.len() == 1024 && !pair.a.connection.writable());
    pair.settle();
    assert!(pair.a.connection.writable());
    pair.a.connection.send_blocks(&mut many).unwrap();
    assert!(many.is_empty());
}

/// An empty block of a stream makes no frame, because an empty frame would violate the protocol.
#[test]
fn an_empty_block_of_a_stream_comes_straight_back() {
    let mut pair = PeerPair::new(&setup(ConnectionKind::Stream));
    let ticket = pair.a.lend(b"");
    pair.settle();
    assert!(
        matches!(pair.a.take_events()[..], [ConnectionEvent::Returned { ticket: of, sent: true, .. }] if of == ticket)
    );
    assert_eq!(pair.b.connection.failure(), None);
    let mut pair = PeerPair::new(&setup(ConnectionKind::SeqPacket));
    pair.a.lend(b"");
    pair.settle();
    assert_eq!(pair.b.recv().unwrap(), b"");
}
