//! Tests of flow control: back-pressure and credits.

use super::*;

fn tight(kind: ConnectionKind) -> ConnectionSetup {
    let mut setup = setup(kind);
    (setup.rcvbuf, setup.sndbuf) = (4 * 8192, 4 * 8192);
    (setup.own.rx_slots, setup.peer.rx_slots) = (16, 16);
    setup
}

/// I6: two sides that write until they are blocked and do not read resume when either reads.
#[test]
fn two_blocked_writers_resume_when_either_reads() {
    for (read, size) in [(false, 256), (false, 8176), (true, 8176), (true, 32_768), (true, 200_000)] {
        let mut setup = tight(ConnectionKind::Stream);
        setup.read = read;
        setup.sndbuf = setup.sndbuf.max(size);
        (setup.own.eager_max, setup.peer.eager_max) = (10_000, 10_000);
        let mut pair = PeerPair::new(&setup);
        let (mut from_a, mut from_b, mut at_a, mut at_b) = (0, 0, 0, 0);
        for round in 0..40 {
            let mut progress = true;
            while progress {
                let (a, b) = (pair.a.write(&bytes(size, 1)), pair.b.write(&bytes(size, 1)));
                from_a += a.clone().unwrap_or(0);
                from_b += b.clone().unwrap_or(0);
                pair.settle();
                progress = a.is_ok() || b.is_ok();
            }
            assert!(!pair.a.connection.writable() && !pair.b.connection.writable());
            // Only one side reads, each for four rounds.
            let before = (at_a, at_b);
            if round / 4 % 2 == 0 {
                at_a += pair.a.read_all().len();
            } else {
                at_b += pair.b.read_all().len();
            }
            pair.settle();
            assert!((at_a, at_b) != before, "round {round}, read {read}, size {size}");
            let writable = if round / 4 % 2 == 0 { &pair.b } else { &pair.a };
            assert!(writable.connection.writable(), "the writer goes on; round {round}");
        }
        for _ in 0..100 {
            at_a += pair.a.read_all().len();
            at_b += pair.b.read_all().len();
            pair.settle();
        }
        assert_eq!((at_a, at_b), (from_b, from_a));
    }
}

/// Large and small messages fill the quota together; the data that fills it lies behind data that
/// must be read first.
#[test]
fn a_source_in_front_is_read_whatever_lies_behind_it() {
    let mut setup = tight(ConnectionKind::SeqPacket);
    (setup.sndbuf, setup.stage, setup.read_piece) = (1 << 20, 8192, 8192);
    (setup.own.eager_max, setup.peer.eager_max) = (10_000, 10_000);
    let mut pair = PeerPair::new(&setup);
    pair.b.blocks.most = 0;
    pair.a.lend(&bytes(30_000, 1));
    for i in 0..20 {
        pair.a.send(&bytes(8000, i)).unwrap();
    }
    // The small ones arrive while no memory is free to read the first.
    pair.settle();
    let (queued, _) = pair.b.connection.receive_charges();
    assert!(queued >= setup.rcvbuf);
    pair.b.blocks.most = 1000;
    pair.settle();
    assert!(pair.b.recv().unwrap() == bytes(30_000, 1));
    for i in 0..20 {
        pair.settle();
        assert!(pair.b.recv().unwrap() == bytes(8000, i));
    }
}

/// A message as large as the receive buffer can be taken as a whole, although its frames use more
/// memory.
#[test]
fn a_message_of_the_whole_receive_buffer_arrives_whole() {
    for read in [false, true] {
        let mut setup = tight(ConnectionKind::SeqPacket);
        setup.read = read;
        (setup.own.slot_size, setup.peer.slot_size) = (512, 512);
        (setup.rcvbuf, setup.sndbuf) = (400_000, 500_000);
        let mut pair = PeerPair::new(&setup);
        for round in 0..3 {
            pair.a.send(&bytes(400_000, round)).unwrap();
            pair.settle();
            assert!(pair.b.recv().unwrap() == bytes(400_000, round));
        }
    }
}

/// The same from a peer whose frames are small, because its slots are: they share the receiver's
/// slots.
#[test]
fn a_message_of_many_small_frames_arrives_whole() {
    for read in [false, true] {
        let mut setup = tight(ConnectionKind::SeqPacket);
        setup.read = read;
        (setup.rcvbuf, setup.sndbuf) = (400_000, 500_000);
        setup.peer.slot_size = 512;
        let small = ConnectionSetup { own: setup.peer, ..setup.clone() };
        let mut pair =
            PeerPair { a: TestPeer::new(&small, 0), b: TestPeer::new(&setup, 0), now: Instant::now() };
        for round in 0..3 {
            pair.a.send(b"before it").unwrap();
            pair.a.send(&bytes(399_000, round)).unwrap();
            pair.a.send(b"behind it").unwrap();
            pair.settle();
            assert!(pair.b.recv().unwrap() == b"before it");
            pair.settle();
            assert!(pair.b.recv().unwrap() == bytes(399_000, round));
            pair.settle();
            assert!(pair.b.recv().unwrap() == b"behind it");
        }
    }
}

/// The queued memory is bounded, whatever the peer sends.
#[test]
fn memory_of_a_stalled_reader_is_bounded() {
    let mut setup = tight(ConnectionKind::SeqPacket);
    setup.coalesce = false;
    let mut pair = PeerPair::new(&setup);
    let mut sent = 0;
    while pair.a.send(b"small").is_ok() && sent < 10_000 {
        sent += 1;
        pair.settle();
    }
    let (queued, held) = pair.b.connection.receive_charges();
    assert!(sent < 10_000 && held == 0);
    assert!(queued <= setup.rcvbuf + 16 * 8192, "{queued}");
}

/// An idle pair sends nothing: CREDITs do not answer CREDITs for ever.
#[test]
fn an_idle_pair_is_silent() {
    let mut pair = PeerPair::new(&tight(ConnectionKind::SeqPacket));
    for i in 0..500 {
        pair.a.send(&bytes(i % 200, 1)).unwrap();
        pair.settle();
        assert!(pair.b.recv().is_some());
        pair.settle();
        assert!(!pair.turn());
    }
    let credits = pair.b.connection.counters().credits_sent;
    assert!((50..=72).contains(&credits), "one for every eight frames: {credits}");
}

#[test]
fn a_full_send_queue_is_back_pressure() {
    let mut pair = PeerPair::new(&setup(ConnectionKind::Stream));
    pair.a.queue = PostedSends::new(4);
    let wanted = bytes(200_000, 3);
    let (mut given, mut got) = (0, Vec::new());
    while got.len() < wanted.len() {
        given += pair.a.write(&wanted[given..]).unwrap_or(0);
        pair.turn();
        got.extend(pair.b.read_all());
    }
    assert!(got == wanted);
}

#[test]
fn a_send_queue_signals_its_quarters_reads_and_the_end_of_a_turn() {
    let mut queue = PostedSends::<VecBlock>::new(8);
    let frame = || {
        let header = frame::Header {
            kind: frame::FrameType::Credit,
            flags: 0,
            count: 0,
            seq: 0,
            credit_total: 0,
            len: 0,
        };
        TransmitItem::Send(Frame::Short(frame::Head::new(&header)))
    };
    assert_eq!(queue.push(frame(), false), (0, false));
    assert_eq!(queue.push(frame(), false), (1, true));
    assert_eq!(queue.push(frame(), true), (2, true));
    assert_eq!(queue.push(TransmitItem::Probe, false), (3, true));
    assert_eq!(queue.room(), 4);
    assert_eq!(std::iter::from_fn(|| queue.complete(1)).count(), 2);
    assert_eq!(queue.room(), 6);
    assert_eq!(queue.push(frame(), false), (4, false));
    assert_eq!(std::iter::from_fn(|| queue.complete(1)).count(), 0, "only what came before it");
    // An id that was never posted, or that has completed, cannot complete.
    assert!(queue.has(4) && !queue.has(5) && !queue.has(1) && !queue.has(u64::MAX));
    assert!([5, u64::MAX, 1].into_iter().all(|id| queue.complete(id).is_none()));
    assert_eq!(std::iter::from_fn(|| queue.drain()).count(), 3);
    assert!(queue.is_empty());
}

/// A corked writer that must wait for room gets room.
#[test]
fn a_cork_does_not_stop_a_writer_that_waits() {
    let mut setup = tight(ConnectionKind::SeqPacket);
    setup.sndbuf = 16_384;
    let mut pair = PeerPair::new(&setup);
    pair.a.connection.cork(true);
    pair.a.send(&bytes(100, 1)).unwrap();
    pair.settle();
    assert_eq!(pair.a.send(&bytes(16_300, 2)), Err(CallError::Blocked(Blocked::SendQuota)));
    assert!(!pair.a.connection.writable());
    pair.settle();
    assert!(pair.a.connection.writable());
    pair.a.send(&bytes(16_300, 2)).unwrap();
}
