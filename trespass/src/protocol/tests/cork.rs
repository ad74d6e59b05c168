//! Tests of corking.

use super::*;

#[test]
fn a_corked_side_sends_when_uncorked_and_full_frames_before() {
    let mut pair = PeerPair::new(&setup(ConnectionKind::Stream));
    pair.a.connection.cork(true);
    pair.a.write(&bytes(100, 1)).unwrap();
    pair.settle();
    assert_eq!(pair.a.connection.counters().frames_sent, 0);
    pair.a.write(&bytes(10_000, 1)).unwrap();
    pair.settle();
    assert_eq!(pair.a.connection.counters().bytes_sent, 8176);
    pair.a.connection.cork(false);
    pair.settle();
    assert_eq!(pair.a.connection.counters().bytes_sent, 10_100);
    pair.a.connection.cork(true);
    pair.a.write(b"x").unwrap();
    pair.a.connection.flush();
    pair.settle();
    assert_eq!(pair.a.connection.counters().bytes_sent, 10_101);
}

/// Data is held back for no longer than the limit, even if more is added repeatedly; the limit
/// counts from when it could have been sent.
#[test]
fn a_cork_ends_by_itself() {
    let mut pair = PeerPair::new(&setup(ConnectionKind::SeqPacket));
    pair.a.connection.cork(true);
    assert_eq!(pair.a.connection.next_deadline(), None);
    for _ in 0..3 {
        pair.a.send(b"one").unwrap();
        assert!(pair.a.connection.has_unsent() || pair.a.connection.is_corked());
        pair.settle();
        let end = pair.a.connection.next_deadline().expect("a time at which it goes");
        assert_eq!(end, pair.now + outgoing::CORK);
        pair.pass(outgoing::CORK / 2);
        pair.a.send(b"more").unwrap();
        pair.settle();
        assert_eq!((pair.a.connection.next_deadline(), pair.b.recv()), (Some(end), None));
        assert!(!pair.a.connection.has_unsent(), "the program holds it back itself");
        pair.pass(outgoing::CORK / 2);
        assert_eq!(pair.a.connection.next_deadline(), None);
        assert_eq!([pair.b.recv(), pair.b.recv()], [Some(b"one".to_vec()), Some(b"more".to_vec())]);
    }
}

/// Once the end of the cork is known, `transmit` needs no further check.
#[test]
fn corked_data_makes_transmit_quiet() {
    let mut pair = PeerPair::new(&setup(ConnectionKind::SeqPacket));
    let quiet = |pair: &PeerPair| pair.a.connection.is_quiet();
    pair.a.connection.cork(true);
    for end in [ProtocolMachine::flush, |connection: &mut ProtocolMachine<_>| connection.cork(false)] {
        pair.a.connection.cork(true);
        pair.a.send(b"one").unwrap();
        assert!(!quiet(&pair), "nobody knows until when");
        pair.settle();
        pair.a.send(b"more").unwrap();
        assert!(quiet(&pair));
        end(&mut pair.a.connection);
        assert!(!quiet(&pair));
        pair.settle();
        assert!(quiet(&pair));
        assert_eq!([pair.b.recv(), pair.b.recv()], [Some(b"one".to_vec()), Some(b"more".to_vec())]);
    }
    // One frame whose time is over, and a full one.
    pair.a.connection.cork(true);
    pair.a.send(b"one").unwrap();
    pair.settle();
    pair.now += outgoing::CORK;
    pair.a.connection.tick(pair.now);
    assert!(!quiet(&pair));
    pair.settle();
    pair.a.send(&bytes(8000, 1)).unwrap();
    pair.settle();
    pair.a.send(&bytes(8000, 1)).unwrap();
    assert!(!quiet(&pair), "the first is as full as it can be");
}
