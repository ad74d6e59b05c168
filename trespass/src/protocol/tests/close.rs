//! The end.

use super::*;

#[test]
fn all_before_fin_arrives_and_reading_goes_on() {
    let mut pair = Pair::new(&setup(Kind::Stream));
    pair.a.write(&bytes(200_000, 1)).unwrap();
    pair.a.connection.shutdown_write();
    assert_eq!(pair.a.write(b"x"), Err(CallError::ShutDown));
    let mut got = Vec::new();
    for _ in 0..20 {
        pair.settle();
        got.extend(pair.b.read_all());
    }
    assert!(got == bytes(200_000, 1));
    assert_eq!(pair.b.connection.read(&mut [0; 8]), Ok(0));
    pair.b.write(b"the other half").unwrap();
    pair.settle();
    assert_eq!(pair.a.read_all(), b"the other half");
    assert!(!pair.a.closed() && !pair.b.closed());
    pair.b.connection.shutdown_write();
    pair.settle();
    assert_eq!(pair.a.connection.read(&mut [0; 8]), Ok(0));
    assert!(pair.a.closed() && pair.b.closed());
    assert!(pair.a.connection.is_closed() && pair.b.connection.next_deadline().is_none());
}

#[test]
fn both_close_at_once() {
    for link in [Link::Rc, Link::Tcp] {
        let mut setup = Setup::new(Kind::SeqPacket, link);
        setup.read = link == Link::Rc;
        let mut pair = Pair::new(&setup);
        pair.a.send(&bytes(100_000, 1)).unwrap();
        pair.b.send(&bytes(100_000, 1)).unwrap();
        pair.a.connection.close(pair.now);
        pair.b.connection.close(pair.now);
        pair.settle();
        assert!(pair.a.closed() && pair.b.closed());
        assert_eq!((pair.a.blocks.out(), pair.b.blocks.out()), (0, 0));
        assert!(!pair.turn(), "nothing follows the end");
    }
}

#[test]
fn a_close_with_a_peer_that_does_not_close_ends_with_the_linger_time() {
    let mut pair = Pair::new(&setup(Kind::Stream));
    pair.a.connection.close(pair.now);
    pair.b.write(&bytes(100_000, 1)).unwrap();
    pair.settle();
    assert_eq!(pair.a.connection.next_deadline(), Some(pair.now + Duration::from_secs(1)));
    pair.pass(Duration::from_millis(999));
    assert!(pair.a.connection.failure().is_none());
    pair.pass(Duration::from_millis(1));
    assert_eq!(pair.a.connection.failure(), Some(&Cause::Linger(Duration::from_secs(1))));
    assert_eq!(pair.b.connection.failure(), Some(&Cause::PeerReset));
    assert_eq!(pair.b.write(b"x"), Err(CallError::Failed(Cause::PeerReset)));
}

/// The window of the peer is closed by data that nobody reads; FIN and its answer must get through, both ways.
#[test]
fn fin_needs_no_credit_of_data() {
    let mut setup = setup(Kind::Stream);
    (setup.read, setup.rcvbuf, setup.sndbuf) = (false, 16 * 8192, 64 * 8192);
    (setup.own.rx_slots, setup.peer.rx_slots) = (16, 16);
    let mut pair = Pair::new(&setup);
    let mut given = 0;
    while given < 31 * 8176 {
        let Ok(n) = pair.a.write(&bytes(8176, 1)) else { break };
        assert_eq!(pair.b.write(&bytes(n, 1)), Ok(n));
        given += n;
        pair.settle();
    }
    pair.settle();
    let left = pair.a.connection.credits().0;
    assert_eq!(left, 3, "the reserve is what is left");
    pair.a.connection.shutdown_write();
    pair.b.connection.shutdown_write();
    pair.settle();
    let (mut at_a, mut at_b) = (0, 0);
    for _ in 0..10 {
        at_a += pair.a.read_all().len();
        at_b += pair.b.read_all().len();
        pair.settle();
    }
    assert_eq!((at_a, at_b), (given, given));
    assert!(pair.a.closed() && pair.b.closed());
}

#[test]
fn abort_resets_the_peer_and_lent_blocks_come_back_unsent() {
    let mut pair = Pair::new(&setup(Kind::SeqPacket));
    pair.b.blocks.most = 0;
    let tickets = [pair.a.lend(&bytes(100_000, 1)), pair.a.lend(&bytes(10, 1))];
    while pair.a.transmit(&mut pair.b, pair.now, true) {}
    let last = pair.a.lend(&bytes(10, 1));
    pair.a.connection.abort();
    pair.settle();
    assert_eq!(pair.b.connection.failure(), Some(&Cause::PeerReset));
    while let Some(done) = pair.a.queue.drain() {
        pair.a.connection.done(done);
    }
    pair.a.connection.drained();
    let mut returned: Vec<_> = pair
        .a
        .take_events()
        .into_iter()
        .filter_map(|event| match event {
            Event::Returned { ticket, sent, .. } => Some((ticket, sent)),
            _ => None,
        })
        .collect();
    returned.sort();
    assert_eq!(returned, [(tickets[0], false), (tickets[1], false), (last, false)]);
}

#[test]
fn what_arrived_before_a_failure_is_still_given() {
    let mut pair = Pair::new(&setup(Kind::SeqPacket));
    pair.a.send(b"last words").unwrap();
    pair.settle();
    pair.b.connection.failed(Cause::PeerGone);
    pair.b.connection.failed(Cause::Aborted);
    assert_eq!(pair.b.recv().unwrap(), b"last words");
    assert_eq!(pair.b.connection.recv(&mut []), Err(CallError::Failed(Cause::PeerGone)));
    let failures = pair.b.take_events().iter().filter(|event| matches!(event, Event::Failed(_))).count();
    assert_eq!(failures, 1);
    assert!(!pair.b.transmit(&mut pair.a, pair.now, true), "a dead link carries no RESET");
}

#[test]
fn a_peer_that_is_silent_is_probed_and_given_up() {
    let mut setup = setup(Kind::Stream);
    let (idle, patience) = (Duration::from_secs(5), Duration::from_secs(2));
    setup.keepalive = Some(Keepalive { idle, patience });
    let mut pair = Pair::new(&setup);
    pair.pass(Duration::ZERO);
    for _ in 0..10 {
        pair.a.write(b"alive").unwrap();
        pair.settle();
        pair.pass(idle);
        assert_eq!(pair.b.connection.counters().probes, 0);
        pair.b.read_all();
    }
    pair.pass(idle);
    assert_eq!(pair.b.connection.counters().probes, 1, "and it was answered");
    pair.now += idle;
    pair.b.connection.tick(pair.now);
    assert!(pair.b.transmit(&mut pair.a, pair.now, true));
    assert_eq!(pair.b.connection.next_deadline(), Some(pair.now + patience));
    pair.now += patience;
    pair.b.connection.tick(pair.now);
    assert_eq!(pair.b.connection.failure(), Some(&Cause::Silent(patience)));
}

#[test]
fn dropped_sources_count_as_read_in_their_order() {
    let mut pair = Pair::new(&setup(Kind::Stream));
    let tickets = [pair.a.lend(&bytes(100_000, 1)), pair.a.lend(&bytes(100_000, 1))];
    while pair.a.transmit(&mut pair.b, pair.now, true) {}
    while pair.b.deliver() {}
    assert!(pair.b.transmit(&mut pair.a, pair.now, true), "the first READ is under way");
    pair.b.connection.shutdown_read();
    while pair.b.transmit(&mut pair.a, pair.now, true) {}
    while pair.a.deliver() {}
    assert!(pair.a.take_events().is_empty(), "the first is not read, hence the second neither");
    pair.settle();
    let returned = pair.a.take_events();
    assert_eq!(returned.len(), tickets.len());
    assert_eq!(pair.b.connection.receive_charges(), (0, 0));
}

#[test]
fn an_end_within_a_message_in_parts_aborts() {
    let mut pair = Pair::new(&setup(Kind::SeqPacket));
    pair.a.connection.send_part(10, &[IoSlice::new(b"12345")], &mut pair.a.blocks).unwrap();
    pair.settle();
    pair.a.connection.shutdown_write();
    pair.settle();
    assert_eq!(pair.a.connection.failure(), Some(&Cause::Aborted));
    assert_eq!(pair.b.connection.failure(), Some(&Cause::PeerReset));
}
