//! Tests of the bytes and messages that go in frames because the peer has free receives for them.

use super::*;

/// What the peer has free receives for goes in frames, whatever its length. A write beyond that is
/// lent, and so are all after it until the peer has sent something.
#[test]
fn a_write_that_fits_the_window_is_not_lent() {
    let mut setup = setup(ConnectionKind::Stream);
    (setup.own.eager_max, setup.peer.eager_max) = (16 << 10, 16 << 10);
    let free = (setup.peer.rx_slots - credit::RESERVE - 1) as usize * setup.send_payload();
    let carry = |pair: &mut PeerPair, len: usize| {
        let before = pair.a.connection.counters().bytes_announced;
        assert_eq!(pair.a.write(&bytes(len, 1)), Ok(len));
        pair.settle();
        assert!(pair.b.read_all() == bytes(len, 1), "{len} bytes");
        pair.settle();
        pair.a.connection.counters().bytes_announced > before
    };
    for len in [16_385, 65_536, 100_000, free] {
        assert!(!carry(&mut PeerPair::new(&setup), len), "{len} bytes were lent");
    }
    let mut pair = PeerPair::new(&setup);
    assert!((0..100).all(|_| !carry(&mut pair, 200_000)), "a reader that keeps up has room for each");
    assert!(carry(&mut pair, free + 1) && carry(&mut pair, 16_385) && !carry(&mut pair, 16_384));
    pair.b.write(b"thanks").unwrap();
    pair.settle();
    assert!(!carry(&mut pair, 16_385));
}

/// The same for messages. Each has its length before its first byte.
#[test]
fn a_message_that_fits_the_window_is_not_lent() {
    let mut setup = setup(ConnectionKind::SeqPacket);
    (setup.own.eager_max, setup.peer.eager_max) = (16 << 10, 16 << 10);
    let free = (setup.peer.rx_slots - credit::RESERVE - 1) as usize * setup.send_payload() - 8;
    let carry = |pair: &mut PeerPair, len: usize| {
        let before = pair.a.connection.counters().bytes_announced;
        assert_eq!(pair.a.send(&bytes(len, 1)), Ok(()));
        pair.settle();
        assert!(pair.b.recv().unwrap() == bytes(len, 1), "{len} bytes");
        pair.settle();
        pair.a.connection.counters().bytes_announced > before
    };
    for len in [16_385, 65_536, 100_000, free] {
        assert!(!carry(&mut PeerPair::new(&setup), len), "{len} bytes were lent");
    }
    let mut pair = PeerPair::new(&setup);
    assert!((0..100).all(|_| !carry(&mut pair, 200_000)), "a receiver that keeps up has room for each");
    assert!(carry(&mut pair, free + 1) && carry(&mut pair, 16_385) && !carry(&mut pair, 16_384));
    pair.b.send(b"thanks").unwrap();
    pair.settle();
    assert!(!carry(&mut pair, 16_385));
}

/// A message that is sent in parts of whole frames takes the same receives as in one call.
#[test]
fn the_parts_of_a_message_that_fits_the_window_are_not_lent() {
    let mut setup = setup(ConnectionKind::SeqPacket);
    (setup.own.eager_max, setup.peer.eager_max) = (16 << 10, 16 << 10);
    let burst = 4 * setup.send_payload();
    let free = (setup.peer.rx_slots - credit::RESERVE - 1) as usize * setup.send_payload() - 8;
    for (total, lends) in [(100_000, false), (free, false), (free + 1, true)] {
        let mut pair = PeerPair::new(&setup);
        let message = bytes(total, 1);
        let (first, rest) = message.split_at(burst - 8);
        for part in [first].into_iter().chain(rest.chunks(burst)) {
            let sent = pair.a.connection.send_part(total as u64, &[IoSlice::new(part)], &mut pair.a.blocks);
            assert_eq!(sent, Ok(part.len()), "of {total}");
            pair.a.post();
            while pair.a.transmit(&mut pair.b, pair.now, true) {}
        }
        pair.settle();
        assert_eq!(pair.a.connection.counters().bytes_announced > 0, lends, "{total} bytes");
        assert!(pair.b.recv().unwrap() == message, "{total} bytes");
    }
}

/// What is queued needs receives, too, and what is lent before it would have to be READ first.
#[test]
fn a_write_behind_others_fits_what_they_leave() {
    let mut setup = setup(ConnectionKind::Stream);
    (setup.own.eager_max, setup.peer.eager_max) = (16 << 10, 16 << 10);
    let left = (setup.peer.rx_slots - credit::RESERVE - 1 - 8) as usize * setup.send_payload();
    for (lends, len, fits) in [(false, left, true), (false, left + 1, false), (true, 20_000, false)] {
        let mut pair = PeerPair::new(&setup);
        if lends {
            pair.a.lend(&bytes(60_000, 1));
        } else {
            pair.a.write(&bytes(60_000, 1)).unwrap();
        }
        pair.a.write(&bytes(len, 2)).unwrap();
        let before = if lends { 60_000 } else { 0 };
        pair.settle();
        assert_eq!(pair.a.connection.counters().bytes_announced == before, fits, "{lends}, {len} bytes");
        let got = pair.b.read_all();
        assert!(got == [bytes(60_000, 1), bytes(len, 2)].concat(), "{lends}, {len}: {} bytes", got.len());
    }
}
