//! Tests of closing, aborting and failing.

use super::*;

#[test]
fn all_before_fin_arrives_and_reading_goes_on() {
    let mut pair = PeerPair::new(&setup(ConnectionKind::Stream));
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
    for link in [LinkType::Rc, LinkType::Tcp] {
        let mut setup = ConnectionSetup::new(ConnectionKind::SeqPacket, link);
        setup.read = link == LinkType::Rc;
        let mut pair = PeerPair::new(&setup);
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
    let mut pair = PeerPair::new(&setup(ConnectionKind::Stream));
    pair.a.connection.close(pair.now);
    pair.b.write(&bytes(100_000, 1)).unwrap();
    pair.settle();
    assert_eq!(pair.a.connection.next_deadline(), Some(pair.now + Duration::from_secs(1)));
    pair.pass(Duration::from_millis(999));
    assert!(pair.a.connection.failure().is_none());
    pair.pass(Duration::from_millis(1));
    assert_eq!(pair.a.connection.failure(), Some(&FailureCause::Linger(Duration::from_secs(1))));
    assert_eq!(pair.b.connection.failure(), Some(&FailureCause::PeerReset));
    assert_eq!(pair.b.write(b"x"), Err(CallError::Failed(FailureCause::PeerReset)));
}

/// Unread data has closed the window of the peer; FIN and its answer must get through in both
/// directions.
#[test]
fn fin_needs_no_credit_of_data() {
    let mut setup = setup(ConnectionKind::Stream);
    (setup.read, setup.rcvbuf, setup.sndbuf) = (false, 16 * 8192, 64 * 8192);
    (setup.own.rx_slots, setup.peer.rx_slots) = (16, 16);
    let mut pair = PeerPair::new(&setup);
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
    let mut pair = PeerPair::new(&setup(ConnectionKind::SeqPacket));
    pair.b.blocks.most = 0;
    let tickets = [pair.a.lend(&bytes(100_000, 1)), pair.a.lend(&bytes(10, 1))];
    while pair.a.transmit(&mut pair.b, pair.now, true) {}
    let last = pair.a.lend(&bytes(10, 1));
    pair.a.connection.abort();
    pair.settle();
    assert_eq!(pair.b.connection.failure(), Some(&FailureCause::PeerReset));
    while let Some(done) = pair.a.queue.drain() {
        pair.a.connection.done(done);
    }
    pair.a.connection.drained();
    let mut returned = returned(&mut pair.a);
    returned.sort();
    assert_eq!(returned, [(tickets[0], false), (tickets[1], false), (last, false)]);
}

/// The completions so far decide which blocks count as sent. The others return when everything is
/// drained; each returns once.
#[test]
fn blocks_in_several_frames_come_back_once_wherever_it_ends() {
    // Of six frames the first two belong to one block, and the next three to another, of which more
    // is to be sent.
    for completed in 0..=6 {
        for aborts in [false, true] {
            let mut pair = PeerPair::new(&ConnectionSetup::new(ConnectionKind::Stream, LinkType::Rc));
            let tickets = [10_000, 20_000, 100_000].map(|len| pair.a.lend(&bytes(len, len as u8)));
            for _ in 0..6 {
                assert!(pair.a.transmit(&mut pair.b, pair.now, true));
            }
            (0..completed).for_each(|_| assert!(pair.a.complete(&pair.b)));
            if aborts {
                pair.a.connection.abort();
                assert!(pair.a.transmit(&mut pair.b, pair.now, true), "RESET");
            } else {
                pair.a.connection.failed(FailureCause::PeerGone);
            }
            let mut back = returned(&mut pair.a);
            assert_eq!(back.len(), [0, 0, 1, 1, 1, 2, 2][completed]);
            while let Some(done) = pair.a.queue.drain() {
                pair.a.connection.done(done);
                let more = returned(&mut pair.a);
                assert!(more.iter().all(|(ticket, _)| *ticket != tickets[2]), "the rest of it waits");
                back.extend(more);
            }
            pair.a.connection.drained();
            back.extend(returned(&mut pair.a));
            let sent = [completed >= 2, completed >= 5, false];
            assert_eq!(back, tickets.into_iter().zip(sent).collect::<Vec<_>>());
            assert_eq!(pair.a.blocks.out(), 0);
        }
    }
}

/// With a device that died, the program gets one copy, and the block itself is never freed,
/// whichever share is dropped last.
#[test]
fn a_copy_of_what_is_lost_comes_back_once() {
    for drained in [true, false] {
        let mut pair = PeerPair::new(&ConnectionSetup::new(ConnectionKind::Stream, LinkType::Rc));
        let tickets = [20_000, 100_000].map(|len| pair.a.lend(&bytes(len, 1)));
        for _ in 0..5 {
            assert!(pair.a.transmit(&mut pair.b, pair.now, true));
        }
        assert!(pair.a.complete(&pair.b));
        pair.a.connection.failed(FailureCause::PeerGone);
        let lost = pair.a.blocks.out();
        let mut spare = VecBlocks::new(2);
        while let Some(done) = pair.a.queue.drain() {
            let CompletedTransmit::Part(share) = &done else { panic!("{done:?}") };
            assert!(share.lose(|block| spare.replace(block)));
            pair.a.connection.done(done);
        }
        assert_eq!(spare.taken, 2, "one copy of each");
        if drained {
            pair.a.connection.drained();
            let events = pair.a.take_events();
            let whole = |event: &ConnectionEvent<VecBlock>| match event {
                ConnectionEvent::Returned { block, sent: false, .. } => {
                    block.bytes() == bytes(block.bytes().len(), 1)
                }
                event => matches!(event, ConnectionEvent::Failed(_)),
            };
            assert!(events.iter().all(whole), "{events:?}");
            let back = events.iter().filter_map(|event| match event {
                ConnectionEvent::Returned { ticket, .. } => Some(*ticket),
                _ => None,
            });
            assert_eq!(back.collect::<Vec<_>>(), tickets);
        }
        let TestPeer { connection, blocks, .. } = pair.a;
        drop(connection);
        drop(pair.a.events);
        assert_eq!((blocks.out(), spare.out()), (lost, 0));
    }
}

/// The tickets that have returned, and whether their blocks were sent.
fn returned(side: &mut TestPeer) -> Vec<(Ticket, bool)> {
    let events = side.take_events().into_iter();
    let returned = |event| match event {
        ConnectionEvent::Returned { ticket, sent, .. } => Some((ticket, sent)),
        _ => None,
    };
    events.filter_map(returned).collect()
}

#[test]
fn data_received_before_a_failure_is_delivered() {
    let mut pair = PeerPair::new(&setup(ConnectionKind::SeqPacket));
    pair.a.send(b"last words").unwrap();
    pair.settle();
    pair.b.connection.failed(FailureCause::PeerGone);
    pair.b.connection.failed(FailureCause::Aborted);
    assert_eq!(pair.b.recv().unwrap(), b"last words");
    assert_eq!(pair.b.connection.recv(&mut []), Err(CallError::Failed(FailureCause::PeerGone)));
    let failures =
        pair.b.take_events().iter().filter(|event| matches!(event, ConnectionEvent::Failed(_))).count();
    assert_eq!(failures, 1);
    assert!(!pair.b.transmit(&mut pair.a, pair.now, true), "a dead link carries no RESET");
}

#[test]
fn a_link_that_dies_carries_no_reset_that_was_due() {
    let mut pair = PeerPair::new(&setup(ConnectionKind::Stream));
    pair.a.connection.abort();
    pair.a.connection.failed(FailureCause::PeerGone);
    assert_eq!(pair.a.connection.failure(), Some(&FailureCause::Aborted), "the first counts");
    assert!(!pair.a.transmit(&mut pair.b, pair.now, true));
}

#[test]
fn a_peer_that_is_silent_is_probed_and_given_up() {
    let mut setup = setup(ConnectionKind::Stream);
    let (idle, timeout) = (Duration::from_secs(5), Duration::from_secs(2));
    setup.keepalive = Some(Keepalive { idle, timeout });
    let mut pair = PeerPair::new(&setup);
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
    assert_eq!(pair.b.connection.next_deadline(), Some(pair.now + timeout));
    pair.now += timeout;
    pair.b.connection.tick(pair.now);
    assert_eq!(pair.b.connection.failure(), Some(&FailureCause::Silent(timeout)));
}

/// Outstanding sends stand for a probe, and have the same time limit.
#[test]
fn a_device_that_says_nothing_of_what_it_sends_is_given_up() {
    let mut setup = setup(ConnectionKind::Stream);
    let (idle, timeout) = (Duration::from_secs(5), Duration::from_secs(2));
    setup.keepalive = Some(Keepalive { idle, timeout });
    for completes in [true, false] {
        let mut pair = PeerPair::new(&setup);
        pair.pass(Duration::ZERO);
        pair.a.write(b"on its way").unwrap();
        assert!(pair.a.transmit(&mut pair.b, pair.now, true));
        for _ in 0..2 {
            pair.now += idle;
            pair.a.connection.tick(pair.now);
        }
        assert_eq!(pair.a.connection.counters().probes, 0);
        assert_eq!(pair.a.connection.next_deadline(), Some(pair.now + timeout));
        if completes {
            assert!(pair.a.complete(&pair.b));
        }
        pair.now += timeout;
        pair.a.connection.tick(pair.now);
        assert_eq!(pair.a.connection.failure(), (!completes).then_some(&FailureCause::Silent(timeout)));
    }
}

#[test]
fn dropped_sources_count_as_read_in_their_order() {
    let mut pair = PeerPair::new(&setup(ConnectionKind::Stream));
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
    let mut pair = PeerPair::new(&setup(ConnectionKind::SeqPacket));
    pair.a.connection.send_part(10, &[IoSlice::new(b"12345")], &mut pair.a.blocks).unwrap();
    pair.settle();
    pair.a.connection.shutdown_write();
    pair.settle();
    assert_eq!(pair.a.connection.failure(), Some(&FailureCause::Aborted));
    assert_eq!(pair.b.connection.failure(), Some(&FailureCause::PeerReset));
}

/// FIN is sent while the peer has still to READ; the connection ends only after the READs.
#[test]
fn fin_goes_while_sources_are_unread() {
    let mut setup = setup(ConnectionKind::Stream);
    // Fewer receives than the bytes need, so that they are lent.
    (setup.own.rx_slots, setup.peer.rx_slots) = (16, 16);
    let mut pair = PeerPair::new(&setup);
    pair.b.blocks.most = 0;
    pair.a.write(&bytes(200_000, 1)).unwrap();
    pair.a.connection.shutdown_write();
    pair.settle();
    assert!(matches!(pair.b.take_events()[..], [ConnectionEvent::PeerClosed]));
    assert!(!pair.a.connection.has_unsent() && !pair.a.connection.is_delivered());
    assert_eq!(pair.b.connection.read(&mut [0; 8]), Err(CallError::Blocked(Blocked::Nothing)));
    pair.b.connection.shutdown_write();
    pair.settle();
    assert!(!pair.a.closed() && !pair.b.closed(), "its FIN cannot be acknowledged yet");
    pair.b.blocks.most = 100_000;
    pair.settle();
    assert!(pair.b.read_all() == bytes(200_000, 1));
    assert_eq!(pair.b.connection.read(&mut [0; 8]), Ok(0));
    assert!(pair.a.closed() && pair.b.closed());
    assert_eq!(pair.a.blocks.out(), 0);
}

/// The peer has three credits left when it receives the last frame, and has to send RFIN twelve
/// times.
#[test]
fn credits_are_granted_until_the_end_is_acknowledged() {
    for answered_before in [false, true] {
        let mut setup = setup(ConnectionKind::Stream);
        (setup.rcvbuf, setup.sndbuf) = (16 * 8192, 64 * 8192);
        (setup.own.rx_slots, setup.peer.rx_slots) = (16, 16);
        let mut pair = PeerPair::new(&setup);
        while pair.b.connection.credits().0 > 3 {
            pair.b.write(&bytes(8176, 1)).unwrap();
            pair.settle();
        }
        let filled = 8176 * pair.b.connection.counters().frames_sent as usize;
        if answered_before {
            pair.b.connection.shutdown_write();
            pair.settle();
        }
        pair.b.blocks.most = 0;
        for seed in 0..12 {
            pair.a.lend(&bytes(70_000, seed));
        }
        pair.a.connection.shutdown_write();
        pair.b.connection.shutdown_write();
        pair.settle();
        assert!(!pair.a.connection.has_unsent(), "all is told, and the end of it");
        // One READ at a time, so that each has a separate RFIN.
        let (before, mut got, mut rounds) = (pair.b.connection.counters().frames_sent, 0, 0);
        pair.b.blocks.most = 1;
        while got < 12 * 70_000 {
            pair.settle();
            got += pair.b.read_all().len();
            rounds += 1;
            assert!(rounds < 1000, "{got} bytes, answered before: {answered_before}");
        }
        pair.settle();
        assert_eq!(pair.a.read_all().len(), filled);
        assert!(pair.a.closed() && pair.b.closed(), "answered before: {answered_before}");
        assert!(pair.b.connection.counters().frames_sent - before > 12);
        assert_eq!((pair.a.blocks.out(), pair.b.blocks.out()), (0, 0));
    }
}

/// Both sides are done, and the device never confirms that the peer has the last frame.
fn with_the_last_word_under_way() -> PeerPair {
    let mut pair = PeerPair::new(&setup(ConnectionKind::Stream));
    pair.a.write(b"all there is").unwrap();
    pair.a.connection.shutdown_write();
    pair.settle();
    pair.b.read_all();
    pair.b.connection.shutdown_write();
    pair.settle_but_for_completions_of_a();
    pair
}

#[test]
fn a_peer_that_goes_away_after_the_last_word_has_closed() {
    let gone =
        FailureCause::Completion { what: "sending", status: 12, vendor: 0, hint: "it is a test".into() };
    let device = FailureCause::Device { what: "sending", error: "it is a test".into() };
    for cause in [gone, FailureCause::PeerGone, device] {
        let mut pair = with_the_last_word_under_way();
        assert!(pair.b.closed() && !pair.a.closed());
        pair.a.connection.failed(cause.clone());
        pair.a.connection.failed(cause);
        let closed =
            pair.a.take_events().iter().filter(|event| matches!(event, ConnectionEvent::Closed)).count();
        assert_eq!((closed, pair.a.connection.failure()), (1, None));
        assert_eq!(pair.a.write(b"x"), Err(CallError::ShutDown));
        assert_eq!(pair.a.connection.read(&mut [0; 8]), Ok(0));
        // The driver still returns the outstanding items.
        while let Some(done) = pair.a.queue.drain() {
            pair.a.connection.done(done);
        }
        assert!(pair.a.take_events().is_empty());
        assert!(!pair.a.transmit(&mut pair.b, pair.now, true), "nothing follows the end");
        assert_eq!(pair.a.blocks.out(), 0);
    }
}

#[test]
fn a_peer_that_goes_away_before_the_last_word_has_failed() {
    let mut pair = PeerPair::new(&setup(ConnectionKind::Stream));
    pair.a.connection.shutdown_write();
    pair.settle();
    // The peer has acknowledged this side's end, and not sent its FIN.
    pair.a.connection.failed(FailureCause::PeerGone);
    assert_eq!(pair.a.connection.failure(), Some(&FailureCause::PeerGone));
    let mut pair = with_the_last_word_under_way();
    // The program does not wait for the device's confirmation.
    pair.a.connection.abort();
    assert_eq!(pair.a.connection.failure(), Some(&FailureCause::Aborted));
    assert!(!pair.a.transmit(&mut pair.b, pair.now, true), "a RESET would follow the last word");
}

/// What the peer lacks is known after the failure has returned all blocks.
#[test]
fn a_failure_tells_whether_bytes_were_lost() {
    type Before = fn(&mut PeerPair);
    let cases: [(Before, bool); 3] =
        [(|_| (), true), (PeerPair::settle_but_for_completions_of_a, true), (PeerPair::settle, false)];
    for (before, expected) in cases {
        let mut pair = PeerPair::new(&setup(ConnectionKind::Stream));
        pair.a.write(&bytes(1000, 1)).unwrap();
        pair.a.connection.flush();
        before(&mut pair);
        pair.a.connection.failed(FailureCause::PeerGone);
        pair.settle();
        pair.a.connection.drained();
        assert_eq!(pair.a.connection.left_undelivered(), expected);
    }
}

/// The link ends, and the device of `a` has not confirmed what is in flight. Returns whether data was
/// lost, and for each lent block whether it was sent.
fn outcome_without_completions(pair: &mut PeerPair) -> (bool, Vec<bool>) {
    pair.a.connection.failed(FailureCause::PeerGone);
    while let Some(done) = pair.a.queue.drain() {
        pair.a.connection.done(done);
    }
    pair.a.connection.drained();
    let returned = pair.a.take_events().into_iter().filter_map(|event| match event {
        ConnectionEvent::Returned { sent, .. } => Some(sent),
        _ => None,
    });
    let sent = returned.collect();
    assert_eq!(pair.a.blocks.out(), 0);
    (pair.a.connection.left_undelivered(), sent)
}

/// The peer reads all and closes, and its device goes before it acknowledges the last frames.
#[test]
fn frames_that_the_peer_has_acknowledged_are_delivered() {
    for (acknowledge, expected) in [(true, (false, vec![true; 2])), (false, (true, vec![false; 2]))] {
        let mut pair = PeerPair::new(&ConnectionSetup { acknowledge, ..setup(ConnectionKind::Stream) });
        pair.a.lend(&bytes(1000, 1));
        pair.a.lend(&bytes(1000, 2));
        pair.settle_but_for_completions_of_a();
        assert_eq!(pair.b.read_all().len(), 2000);
        pair.b.connection.finish();
        pair.settle_but_for_completions_of_a();
        assert_eq!(outcome_without_completions(&mut pair), expected, "acknowledge: {acknowledge}");
    }
}

/// The second block is on its way when the link ends.
#[test]
fn a_frame_after_the_acknowledged_ones_is_lost() {
    let mut pair = PeerPair::new(&setup(ConnectionKind::Stream));
    pair.a.lend(&bytes(1000, 1));
    pair.settle_but_for_completions_of_a();
    pair.b.connection.finish();
    pair.settle_but_for_completions_of_a();
    pair.a.lend(&bytes(1000, 2));
    assert!(pair.a.transmit(&mut pair.b, pair.now, true));
    assert_eq!(outcome_without_completions(&mut pair), (true, vec![true, false]));
}

/// The peer reads data after it has ended its own.
#[test]
fn a_finished_peer_acknowledges_what_came_after_its_fin() {
    for (finishes, expected) in [(true, (false, vec![true])), (false, (true, vec![false]))] {
        let mut pair = PeerPair::new(&setup(ConnectionKind::Stream));
        pair.b.connection.shutdown_write();
        pair.settle_but_for_completions_of_a();
        pair.a.lend(&bytes(1000, 1));
        pair.settle_but_for_completions_of_a();
        assert_eq!(pair.b.read_all().len(), 1000);
        if finishes {
            pair.b.connection.finish();
            assert!(!pair.b.connection.is_delivered(), "it has something to tell");
        }
        pair.settle_but_for_completions_of_a();
        assert!(pair.b.connection.is_delivered());
        assert_eq!(outcome_without_completions(&mut pair), expected, "finishes: {finishes}");
    }
}

/// A frame of data after a control frame that has completed.
#[test]
fn data_after_a_control_frame_is_not_taken_for_delivered() {
    type Send = fn(&mut PeerPair);
    let sends: [Send; 2] = [
        |pair| {
            pair.a.write(&bytes(1000, 2)).unwrap();
            pair.a.connection.flush();
            pair.settle_but_for_completions_of_a();
        },
        |PeerPair { a, b, .. }| assert!(a.send_at_once(b, ConnectionKind::Stream, &bytes(50, 2))),
    ];
    for send in sends {
        let mut pair = PeerPair::new(&setup(ConnectionKind::Stream));
        while pair.a.connection.counters().credits_sent == 0 {
            pair.b.write(&bytes(1000, 3)).unwrap();
            pair.b.connection.flush();
            pair.settle();
            pair.a.read_all();
            pair.settle();
        }
        send(&mut pair);
        pair.a.connection.failed(FailureCause::PeerGone);
        assert!(pair.a.connection.left_undelivered());
    }
}
