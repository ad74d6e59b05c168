//! Tests of the send queue's limit: the bytes that it accepts, and the memory that they take.

use super::*;

/// The blocks of a pool with slots of 8 KiB.
const SIZES: [usize; 4] = [8 << 10, 64 << 10, 256 << 10, 1 << 20];
/// The lengths of pieces, most of which are no part of a block's size.
const LENGTHS: [usize; 14] =
    [1, 7, 100, 1000, 4096, 5000, 8176, 9000, 16_384, 20_000, 65_536, 70_000, 100_000, 262_144];

/// Gives pieces of this length to a queue that sends nothing more, until it refuses one. Returns the
/// bytes that it has accepted, and the bytes of the blocks that it uses.
fn fill(setup: &ConnectionSetup, len: usize, flushes: bool) -> (usize, usize) {
    let mut pair = PeerPair::new(setup);
    pair.a.blocks.sizes = &SIZES;
    let piece = bytes(len, 1);
    let mut accepted = 0;
    loop {
        let given = match setup.kind {
            ConnectionKind::Stream => pair.a.write(&piece),
            ConnectionKind::SeqPacket => pair.a.send(&piece).map(|()| len),
        };
        match given {
            Ok(given) => accepted += given,
            Err(CallError::Blocked(Blocked::SendQuota)) => break,
            Err(error) => panic!("{len} bytes after {accepted}: {error:?}"),
        }
        if flushes {
            pair.a.connection.flush();
        }
        // Posted, and never completed, as by a socket that takes no more: TCP's driver takes 32
        // frames at most.
        while pair.a.posted.len() < 32 && pair.a.transmit(&mut pair.b, pair.now, true) {}
    }
    assert!(!pair.a.connection.writable());
    let memory = pair.a.blocks.bytes_out();
    // All of it arrives, and leaves nothing counted.
    let mut got = 0;
    for _ in 0..10_000 {
        if got == accepted {
            break;
        }
        pair.turn();
        got += pair.b.read_all().len();
        while let Some(message) = pair.b.recv() {
            got += message.len();
        }
    }
    assert_eq!(got, accepted, "{len} bytes");
    pair.settle();
    assert_eq!(pair.a.blocks.bytes_out(), 0);
    assert!(pair.a.connection.is_delivered() && pair.a.connection.writable());
    (accepted, memory)
}

/// The most memory for what a queue accepts: twice its bytes, 32 frames in flight that may be almost
/// empty, and the last block.
fn most_memory(setup: &ConnectionSetup) -> usize {
    2 * setup.sndbuf + 32 * 8192 + if setup.link == LinkType::Tcp { 256 << 10 } else { 64 << 10 }
}

#[test]
fn the_quota_counts_bytes_whatever_the_length_of_a_piece() {
    for (link, kind) in [LinkType::Rc, LinkType::Tcp]
        .into_iter()
        .flat_map(|link| [(link, ConnectionKind::Stream), (link, ConnectionKind::SeqPacket)])
    {
        for (sndbuf, flushes) in [(1 << 20, false), (1 << 20, true), (256 << 10, false), (64 << 10, false)] {
            let mut setup = setup(kind);
            (setup.link, setup.read, setup.sndbuf) = (link, link == LinkType::Rc, sndbuf);
            (setup.own.eager_max, setup.peer.eager_max) = (16 << 10, 16 << 10);
            for len in LENGTHS.into_iter().filter(|len| *len <= sndbuf) {
                let (accepted, memory) = fill(&setup, len, flushes);
                let case = format!("{link:?}, {kind:?}, {sndbuf}, {flushes}, {len}: {accepted}, {memory}");
                assert!(accepted <= sndbuf && memory <= most_memory(&setup), "{case}");
                match kind {
                    // A write begins no frame of fewer bytes than a slot's.
                    ConnectionKind::Stream => {
                        assert!(accepted > sndbuf - (sndbuf / 16).min(8192), "{case}");
                    }
                    // A message of 7 bytes takes 16 of a frame, one of a byte 8: memory is the limit.
                    ConnectionKind::SeqPacket if len < 8 => {
                        assert!(accepted >= sndbuf * len / 9, "{case}");
                    }
                    // Memory is the limit where each of 32 frames in flight is a seventh of a block.
                    ConnectionKind::SeqPacket => assert!(accepted + len > sndbuf - sndbuf / 32, "{case}"),
                }
            }
        }
    }
}

/// A message each takes a block if the peer knows no frames of several, so that memory is the limit.
#[test]
fn memory_is_bounded_for_messages_that_share_no_frame() {
    for link in [LinkType::Rc, LinkType::Tcp] {
        let mut setup = setup(ConnectionKind::SeqPacket);
        (setup.link, setup.read, setup.coalesce, setup.sndbuf) = (link, false, false, 64 << 10);
        for len in [0, 1, 100, 5000] {
            let (accepted, memory) = fill(&setup, len, false);
            assert!(accepted <= setup.sndbuf && memory <= most_memory(&setup), "{len}: {accepted}, {memory}");
            assert!(memory >= setup.sndbuf, "{len}: {memory}");
        }
    }
}

/// A queue that is almost full of a source sends no frames of a byte while the peer does not READ.
#[test]
fn a_frame_is_not_begun_for_a_few_bytes() {
    let mut setup = setup(ConnectionKind::SeqPacket);
    setup.sndbuf = 16 << 10;
    (setup.own.eager_max, setup.peer.eager_max) = (8192, 8192);
    let mut pair = PeerPair::new(&setup);
    pair.b.blocks.most = 0;
    let part = |pair: &mut PeerPair, len| {
        pair.a.connection.send_part(1_000_000, &[IoSlice::new(&bytes(len, 1))], &mut pair.a.blocks)
    };
    assert_eq!(part(&mut pair, setup.sndbuf - 1), Ok(setup.sndbuf - 1));
    pair.settle();
    assert_eq!(part(&mut pair, 1000), Err(CallError::Blocked(Blocked::SendQuota)));
    assert!(!pair.a.connection.writable());
    pair.b.blocks.most = 1000;
    pair.settle();
    assert!(pair.a.connection.writable());
    assert_eq!(part(&mut pair, 1000), Ok(1000));
}

/// A message at the front waits for a READ, while whole messages behind it take twice the receive
/// buffer. It still fits: only its READ is missing.
#[test]
fn a_message_whose_read_is_late_is_not_too_long() {
    let mut setup = setup(ConnectionKind::SeqPacket);
    setup.rcvbuf = 3 * setup.own.slot_size as usize;
    (setup.own.eager_max, setup.peer.eager_max) = (1000, 1000);
    let mut pair = PeerPair::new(&setup);
    pair.b.blocks.most = 0;
    let (small, large) = (bytes(10, 1), bytes(setup.own.slot_size as usize * 2, 2));
    pair.a.lend_together(&[&small, &large]);
    for _ in 0..8 {
        pair.a.send(&small).unwrap();
        pair.a.connection.flush();
        pair.settle();
    }
    let part = pair.a.connection.send_part(20_000, &[IoSlice::new(&small)], &mut pair.a.blocks);
    assert_eq!(part, Ok(small.len()));
    pair.a.connection.flush();
    pair.settle();
    let (queued, _) = pair.b.connection.receive_charges();
    assert!(queued >= 2 * setup.rcvbuf, "{queued}");
    let refused = pair.b.connection.recv(&mut vec![0; 100_000]);
    assert_eq!(refused, Err(CallError::Blocked(Blocked::Nothing)));
    pair.b.blocks.most = 1000;
    pair.settle();
    assert_eq!(pair.b.recv(), Some([small, large].concat()));
}
