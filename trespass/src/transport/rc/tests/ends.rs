//! Tests of how connections end: by both sides, by one side, or by a failure.

use std::io::{IoSlice, Write};

use super::*;
use crate::handshake::DataPath;
use crate::protocol::{CallError, FailureCause};
use crate::transport::CONTROL_BYTES;
use crate::transport::rc::driver::STEPS_A_TURN;
use crate::transport::rc::queue_pair::DRAIN;

/// Drops both sides, and checks that they leave nothing behind.
fn end(sides: [TestPeer; 2]) {
    let pools = sides.each_ref().map(|side| side.pool.clone());
    drop(sides);
    nothing_is_left(pools);
}

fn give(side: &mut TestPeer, bytes: &[u8]) {
    let TestPeer { protocol, pool, .. } = side;
    assert_eq!(protocol.write(&[IoSlice::new(bytes)], pool), Ok(bytes.len()));
}

#[test]
#[cfg_attr(miri, ignore = "opens sockets")]
fn closing_brings_all_that_was_written_before() {
    let _guard = serialize();
    let mut sides = connected(Kind::Stream);
    let given = pattern(500_000, 3);
    give(&mut sides[0], &given);
    sides[0].protocol.shutdown_write();
    let (mut taken, mut buffer, mut ended) = (Vec::new(), vec![0; 70_000], false);
    until(&mut sides, "the end", |sides| {
        while let Ok(count) = sides[1].protocol.read(&mut buffer) {
            taken.extend_from_slice(&buffer[..count]);
            ended = count == 0;
            if ended {
                break;
            }
        }
        ended
    });
    assert!(taken == given);
    let now = Instant::now();
    sides.iter_mut().for_each(|side| side.protocol.close(now));
    until(&mut sides, "both closed", |sides| sides.iter().all(|side| side.rc.is_over()));
    assert!(sides.iter().all(|side| side.protocol.is_closed() && side.failure().is_none()));
    end(sides);
}

/// Both sides have sent and received everything, but the last frame is never acknowledged, because
/// its receiver has closed and is gone.
#[test]
#[cfg_attr(miri, ignore = "opens sockets")]
fn a_last_acknowledgement_that_is_lost_is_no_failure() {
    let _guard = serialize();
    let mut sides = connected(Kind::Stream);
    sides[0].protocol.shutdown_write();
    until(&mut sides, "the answer to FIN", |sides| sides[0].protocol.counters().frames_received == 1);
    let [mut here, mut there] = sides;
    there.protocol.shutdown_write();
    let give_up = Instant::now() + TIMEOUT;
    there.progress();
    while !Driver::<Pool>::is_flushed(&there.rc) {
        assert!(Instant::now() < give_up, "{:?}", there.failure());
        there.progress();
    }
    // The next frame that `here` sends answers the FIN.
    rules("status=retry_exc_err opcode=send,send_with_imm nth=1");
    while !here.rc.is_over() {
        assert!(Instant::now() < give_up, "{:?}", here.failure());
        here.progress();
    }
    assert_eq!(here.failure(), None);
    assert!(here.protocol.is_closed() && matches!(here.events.last(), Some(ConnectionEvent::Closed)));
    assert_eq!(here.protocol.read(&mut [0; 8]), Ok(0));
    end([here, there]);
}

/// The peer has died. Unread bytes on the control connections change nothing, although a socket that
/// has some ends with a reset.
#[test]
#[cfg_attr(miri, ignore = "opens sockets")]
fn an_end_is_seen_behind_unread_bytes() {
    let _guard = serialize();
    for unread in [[0, 0], [10, 0], [0, 10], [10, 10]] {
        let sides = connected(Kind::Stream);
        let sockets = sides.each_ref().map(|side| side.rc.control_socket().expect("a socket"));
        for (count, socket) in unread.into_iter().zip(&sockets) {
            (&**socket).write_all(&vec![1; count]).expect("room");
        }
        drop(sockets);
        let [mut here, there] = sides;
        drop(there);
        let give_up = Instant::now() + TIMEOUT;
        while !here.rc.is_over() {
            assert!(Instant::now() < give_up, "{unread:?}: {:?}", here.failure());
            here.progress();
        }
        assert_eq!(here.failure(), Some(&FailureCause::PeerGone), "{unread:?}");
    }
}

/// Bytes on the control connection wake no program, unless they are more than a peer may send.
#[test]
#[cfg_attr(miri, ignore = "opens sockets")]
fn bytes_of_the_control_connection_make_no_event() {
    let _guard = serialize();
    let mut sides = connected(Kind::Stream);
    let sockets = sides.each_ref().map(|side| side.rc.control_socket().expect("a socket"));
    sides.iter_mut().for_each(TestPeer::progress);
    let mut events = Events::with_capacity(8);
    let mut events_within = |side: &mut TestPeer, timeout| match side.set.poll(&mut events, Some(timeout)) {
        Ok(()) => events.iter().count(),
        Err(error) => panic!("{error}"),
    };
    for _ in 0..20 {
        (&*sockets[0]).write_all(&[1; 100]).expect("room");
        assert_eq!(events_within(&mut sides[1], Duration::from_millis(10)), 0);
    }
    // The case sees events if there are any.
    while let Ok(1..) = (&*sockets[0]).write(&[1; 4096]) {}
    assert_eq!(events_within(&mut sides[1], TIMEOUT), 1, "{CONTROL_BYTES} bytes");
    sides[1].progress();
    assert_eq!(sides[1].failure(), None);
    drop(sockets);
    end(sides);
}

#[test]
#[cfg_attr(miri, ignore = "opens sockets")]
fn aborting_tells_the_peer() {
    let _guard = serialize();
    let mut sides = connected(Kind::Stream);
    give(&mut sides[0], &pattern(10_000, 1));
    sides[0].protocol.abort();
    until(&mut sides, "the end", |sides| sides.iter().all(|side| side.rc.is_over()));
    assert_eq!(sides[0].failure(), Some(&FailureCause::Aborted));
    assert_eq!(sides[1].failure(), Some(&FailureCause::PeerReset));
    end(sides);
}

/// The device would wait for the acknowledgement of a RESET, which a peer that is gone never sends.
#[test]
#[cfg_attr(miri, ignore = "opens sockets")]
fn aborting_waits_for_no_peer_that_is_gone() {
    let _guard = serialize();
    let [mut here, there] = connected(Kind::Stream);
    here.progress();
    rules("delay=1s opcode=send,send_with_imm");
    drop(there);
    here.protocol.abort();
    here.sleep(TIMEOUT);
    here.progress_transport();
    assert!(here.rc.has_told_peer());
}

/// Received data that is no valid frame ends that connection with a protocol error, and no other
/// connection.
#[test]
#[cfg_attr(miri, ignore = "opens sockets")]
fn an_invalid_frame_ends_only_its_connection() {
    let _guard = serialize();
    let mut others = connected(Kind::SeqPacket);
    // In this order: a header with more bytes than arrived, a header of an unknown type, less than
    // a header, nothing, and invalid immediate data.
    let mut long = [0; 16];
    (long[0], long[1], long[12]) = (1, 3, 200);
    let unknown = [0xee; 16];
    let garbage: [(&[u8], Option<u32>); 5] =
        [(&long, None), (&unknown, None), (b"no frame", None), (b"", None), (b"bytes", Some(u32::MAX))];
    for (bytes, immediate) in garbage {
        let mut sides = connected(Kind::SeqPacket);
        sides[0].rc.send_raw(bytes, immediate);
        until(&mut sides, "the end", |sides| sides.iter().all(|side| side.rc.is_over()));
        let failure = sides[1].failure().cloned().expect("failed");
        assert!(matches!(failure, FailureCause::Protocol(_)), "{bytes:?} {immediate:?}: {failure:?}");
        assert_eq!(sides[1].protocol.recv(&mut [0; 8]), Err(CallError::Failed(failure)));
    }
    let TestPeer { protocol, pool, .. } = &mut others[0];
    protocol.send(&[IoSlice::new(b"still here")], pool).expect("taken");
    until(&mut others, "a message", |sides| sides[1].protocol.message_complete());
    end(others);
}

/// The device reports a send that was not posted, a send twice, and a receive that is not
/// outstanding. Each ends the connection with an error that names the request, and all lent blocks
/// return.
#[test]
#[cfg_attr(miri, ignore = "opens sockets")]
fn a_completion_of_what_is_not_under_way_ends_the_connection() {
    let _guard = serialize();
    for (id, events) in
        [(1 << 20, ("the send", 1 << 20)), (0, ("the send", 0)), (1 << 63 | 7, ("the receive", 7))]
    {
        let mut sides = connected(Kind::Stream);
        give(&mut sides[0], &pattern(10_000, 1));
        until(&mut sides, "sent", |sides| sides[0].protocol.is_delivered());
        sides[0].rc.post_stray(id);
        // A block posted after the stray request does not return before its own completion.
        let TestPeer { protocol, pool, .. } = &mut sides[0];
        let block = pool.take(5000).expect("memory");
        let ticket = protocol.send_block(block, 5000).map_err(|(_, error)| error).expect("taken");
        until(&mut sides, "the end", |sides| sides.iter().all(|side| side.rc.is_over()));
        let (what, id) = events;
        assert_eq!(sides[0].failure(), Some(&FailureCause::StrayCompletion { what, id }));
        assert_eq!(sides[1].failure(), Some(&FailureCause::PeerGone));
        let returned = |event: &ConnectionEvent<Block>| matches!(event, ConnectionEvent::Returned { ticket: of, .. } if *of == ticket);
        assert_eq!(sides[0].events.iter().filter(|event| returned(event)).count(), 1);
        end(sides);
    }
}

/// Requests posted after a READ complete after it. If the device reports another order, the
/// connection fails, and the READ's data is not believed either.
#[test]
#[cfg_attr(miri, ignore = "opens sockets")]
fn a_completion_that_passes_over_a_read_ends_the_connection() {
    let _guard = serialize();
    let mut sides = connected(Kind::Stream);
    let (before, passed_over) = sides[1].rc.sends(1);
    // This delayed request has the `wr_id` of the send that will follow the READ. The READ waits
    // behind it.
    rules("delay=1s opcode=rdma_write");
    sides[1].rc.post_stray(passed_over);
    let TestPeer { protocol, pool, .. } = &mut sides[0];
    let block = pool.take_staged(200_000).expect("memory");
    protocol.send_block(block, 200_000).map_err(|(_, error)| error).expect("taken");
    until(&mut sides, "the READ", |sides| sides[1].rc.sends(0).0 == before + 1);
    give(&mut sides[1], b"after it");
    until(&mut sides, "the end", |sides| sides.iter().all(|side| side.rc.is_over()));
    let what = "what was posted after a READ";
    let id = passed_over & u64::from(u32::MAX);
    assert_eq!(sides[1].failure(), Some(&FailureCause::StrayCompletion { what, id }));
    let taken = sides[1].protocol.read(&mut [0; 8]);
    assert!(taken.is_err(), "{taken:?}, and nothing was brought");
    end(sides);
}

/// At whatever step a peer vanishes, the other side notices, and gets each lent block back exactly
/// once.
#[test]
#[cfg_attr(miri, ignore = "opens sockets")]
fn a_peer_that_vanishes_is_noticed_at_every_step() {
    let _guard = serialize();
    for (step, reads) in (0..12).flat_map(|step| [(step, true), (step, false)]) {
        let config = config().rendezvous(reads);
        let [mut here, mut there] = connected_with(Kind::Stream, config, |_| ());
        let pools = [here.pool.clone(), there.pool.clone()];
        let mut tickets = Vec::new();
        for size in [100, 8000, 65_536, 200_000] {
            for side in [&mut here, &mut there] {
                let TestPeer { protocol, pool, .. } = side;
                let block = pool.take_staged(size).expect("memory");
                let ticket = protocol.send_block(block, size).map_err(|(_, error)| error).expect("taken");
                if size > 0 {
                    tickets.push(ticket);
                }
            }
        }
        for taken in 0..step {
            if taken % 2 == 0 { here.progress() } else { there.progress() }
        }
        // As the kernel does for a killed process: it destroys the queue pair and the socket, in
        // either order, and sends no message.
        let TestPeer { rc, protocol, events, .. } = there;
        drop(rc);
        drop((protocol, events));
        let give_up = Instant::now() + TIMEOUT;
        while !here.rc.is_over() {
            assert!(Instant::now() < give_up, "step {step}: {:?}", here.failure());
            here.progress();
        }
        assert!(
            matches!(here.failure(), Some(FailureCause::PeerGone | FailureCause::Completion { .. })),
            "step {step}: {:?}",
            here.failure()
        );
        let mut back: Vec<_> = here
            .events
            .iter()
            .filter_map(|event| match event {
                ConnectionEvent::Returned { ticket, .. } => Some(*ticket),
                _ => None,
            })
            .collect();
        back.sort();
        assert_eq!(back.len(), tickets.len() / 2, "step {step}");
        assert!(back.is_sorted_by(|one, two| one < two), "step {step}: {back:?}");
        drop(here);
        nothing_is_left(pools);
    }
}

#[test]
#[cfg_attr(miri, ignore = "opens sockets")]
fn a_queue_pair_that_fails_ends_both_sides() {
    let _guard = serialize();
    let mut sides = connected(Kind::Stream);
    rules("qp_fatal opcode=send,send_with_imm nth=1");
    give(&mut sides[0], &pattern(100, 1));
    until(&mut sides, "the end", |sides| sides.iter().all(|side| side.rc.is_over()));
    assert!(matches!(sides[0].failure(), Some(FailureCause::Completion { .. })), "{:?}", sides[0].failure());
    end(sides);
}

#[test]
#[cfg_attr(miri, ignore = "opens sockets")]
fn a_completion_error_is_told_with_its_status() {
    let _guard = serialize();
    let mut sides = connected(Kind::Stream);
    rules("status=rem_access_err opcode=rdma_read nth=1");
    give(&mut sides[0], &pattern(600_000, 1));
    until(&mut sides, "the end", |sides| sides.iter().all(|side| side.rc.is_over()));
    let Some(FailureCause::Completion { what: "sending", status: 10, .. }) = sides[1].failure() else {
        panic!("{:?}", sides[1].failure())
    };
    end(sides);
}

#[test]
#[cfg_attr(miri, ignore = "opens sockets")]
fn dropping_at_any_time_leaves_nothing_behind() {
    let _guard = serialize();
    for turns in 0..6 {
        let mut sides = connected(Kind::Stream);
        give(&mut sides[0], &pattern(600_000, 1));
        (0..turns).for_each(|turn| sides[turn % 2].progress());
        end(sides);
    }
}

/// The other cases rely on this: a frame that meets no receive ends its connection.
#[test]
#[cfg_attr(miri, ignore = "opens sockets")]
fn a_frame_without_a_receive_would_be_noticed() {
    let _guard = serialize();
    let mut sides = connected(Kind::Stream);
    rules("rnr=1 opcode=send,send_with_imm nth=1");
    give(&mut sides[0], &pattern(100, 1));
    until(&mut sides, "the end", |sides| sides.iter().all(|side| side.rc.is_over()));
    assert!(
        matches!(sides[0].failure(), Some(FailureCause::Completion { status: 13, .. })),
        "{:?}",
        sides[0].failure()
    );
    end(sides);
}

/// The device does not stop the queue pair, so that the peer could still read a source. Its memory is
/// not used again, and the lender gets a copy.
#[test]
#[cfg_attr(miri, ignore = "opens sockets")]
fn a_source_that_the_peer_may_still_read_is_kept() {
    let _guard = serialize();
    let mut sides = connected(Kind::Stream);
    let TestPeer { protocol, pool, .. } = &mut sides[0];
    let size = 300_000;
    let mut block = pool.take(size).expect("memory");
    block.bytes_mut()[..size].copy_from_slice(&pattern(size, 1));
    let place = block.as_ptr();
    let lent = protocol.send_block(block, size).map_err(|(_, error)| error).expect("taken");
    rules("hang opcode=rdma_read; errno=EIO call=modify_qp");
    until(&mut sides, "the source is announced", |sides| sides[1].protocol.counters().reads > 0);
    sides[0].protocol.abort();
    until(&mut sides, "the end", |sides| sides[0].rc.is_over());
    let back = sides[0].events.iter().find_map(|event| match event {
        ConnectionEvent::Returned { ticket, block, .. } => Some((*ticket, block)),
        _ => None,
    });
    let (ticket, block) = back.expect("the block returns");
    assert_eq!(ticket, lent);
    assert!(block.bytes()[..size] == pattern(size, 1));
    assert_ne!(block.as_ptr(), place, "the peer may still read it there");
    let pool = sides[0].pool.clone();
    faults::clear();
    drop(sides);
    assert!(pool.stats().in_use >= size, "{:?}", pool.stats());
}

/// The device completes nothing more, and none of its objects can be destroyed. Blocks that the
/// device holds are leaked; lent blocks return as copies.
#[test]
#[ignore = "leaves the device broken: `a_device_that_fails` runs it in a process of its own"]
fn a_device_that_fails_ends_the_connection_and_keeps_what_it_has() {
    let _guard = serialize();
    let sides = a_device_fails_with_a_block_lent(|_| ());
    let pools = sides.each_ref().map(|side| side.pool.clone());
    drop(sides);
    let lost = pools.map(|pool| pool.stats().in_use);
    assert!(lost.iter().all(|lost| (56 * 8192..4 << 20).contains(lost)), "{lost:?}");
    faults::clear();
    // The next connection opens the device again.
    let sides = connected(Kind::Stream);
    assert!(sides.iter().all(|side| side.failure().is_none()));
}

/// A lent block returns even if the pool has no memory for a copy.
#[test]
#[ignore = "leaves the device broken: `a_device_that_fails` runs it in a process of its own"]
fn lent_blocks_return_to_an_empty_pool() {
    let _guard = serialize();
    let mut taken = Vec::new();
    drop(a_device_fails_with_a_block_lent(|pool| {
        for size in [1 << 20, 256 << 10, 64 << 10, 1] {
            taken.extend(std::iter::from_fn(|| pool.take(size)));
        }
        assert!(pool.take(20_000).is_none() && taken.len() > 1000);
    }));
}

/// Each of two blocks is in several requests when the device fails. One block is posted whole; of
/// the other, a part is posted and the rest waits for credits.
#[test]
#[ignore = "leaves the device broken: `a_device_that_fails` runs it in a process of its own"]
fn a_block_shared_by_requests_returns_once() {
    let _guard = serialize();
    let keepalive =
        protocol::Keepalive { idle: Duration::from_millis(5), timeout: Duration::from_millis(200) };
    let config = config().rendezvous(false).rx_slots(16);
    let mut sides = connected_with(Kind::Stream, config, |setup| setup.keepalive = Some(keepalive));
    let TestPeer { protocol, pool, .. } = &mut sides[0];
    let sizes = [40_000, 200_000];
    let (mut tickets, mut places) = (Vec::new(), Vec::new());
    for size in sizes {
        let mut block = pool.take_staged(size).expect("memory");
        block.bytes_mut()[..size].copy_from_slice(&pattern(size, size as u64));
        places.push(block.as_ptr());
        tickets.push(protocol.send_block(block, size).map_err(|(_, error)| error).expect("taken"));
    }
    rules("delay=20s opcode=send,send_with_imm");
    sides[0].progress();
    assert_eq!(sides[0].protocol.counters().frames_sent, 13);
    let before = sides[0].pool.stats().in_use;
    faults::device_fatal(0).expect("a device");
    until(&mut sides, "the end", |sides| sides.iter().all(|side| side.rc.is_over()));
    let returned = |event: ConnectionEvent<Block>| match event {
        ConnectionEvent::Returned { ticket, block, sent: false } => Some((ticket, block)),
        ConnectionEvent::Returned { .. } => panic!("{event:?}"),
        _ => None,
    };
    let events = std::mem::take(&mut sides[0].events);
    let back: Vec<_> = events.into_iter().filter_map(returned).collect();
    assert_eq!(back.iter().map(|(ticket, _)| *ticket).collect::<Vec<_>>(), tickets);
    for (((_, block), size), place) in back.iter().zip(sizes).zip(places) {
        assert!(block.bytes()[..size] == pattern(size, size as u64));
        assert_ne!(block.as_ptr(), place, "the device may still read it there");
    }
    drop(back);
    let pool = sides[0].pool.clone();
    drop(sides);
    assert!(pool.stats().in_use >= 40_000 + 200_000, "{} of {before}", pool.stats().in_use);
}

/// Lets the device fail while it holds a block that the first side lent. Checks that the block
/// returns once, unchanged. `before` is called just before the failure.
fn a_device_fails_with_a_block_lent(before: impl FnOnce(&Pool)) -> [TestPeer; 2] {
    let keepalive =
        protocol::Keepalive { idle: Duration::from_millis(5), timeout: Duration::from_millis(200) };
    let mut sides = connected_with(Kind::Stream, config(), |setup| setup.keepalive = Some(keepalive));
    let TestPeer { protocol, pool, .. } = &mut sides[0];
    // A block of this size is sent eagerly, not announced, so the device holds it.
    let mut block = pool.take(8000).expect("memory");
    block.bytes_mut()[..8000].copy_from_slice(&pattern(8000, 1));
    let lent = protocol.send_block(block, 8000).map_err(|(_, error)| error).expect("taken");
    rules("delay=20s opcode=send,send_with_imm");
    sides[0].progress();
    before(&sides[0].pool);
    faults::device_fatal(0).expect("a device");
    until(&mut sides, "the end", |sides| sides.iter().all(|side| side.rc.is_over()));
    assert!(sides.iter().all(|side| side.failure().is_some()));
    let back = sides[0].events.iter().filter_map(|event| match event {
        ConnectionEvent::Returned { ticket, block, sent } => {
            Some((*ticket, block.bytes()[..8000].to_vec(), *sent))
        }
        _ => None,
    });
    assert_eq!(back.collect::<Vec<_>>(), [(lent, pattern(8000, 1), false)]);
    sides
}

/// The peer's handshake is done and it sends, but this side gives up. Receives that have completed
/// already return their blocks at once.
#[test]
#[cfg_attr(miri, ignore = "opens sockets")]
fn early_completions_return_their_blocks_when_a_handshake_is_given_up() {
    let _guard = serialize();
    let config = config().build().expect("a valid configuration");
    let pools = [pool(), pool()];
    let mut sides = handshakes(Kind::Stream, &config, &config, [&pools[0], &pools[1]]);
    let [here, there] = run_handshakes(&mut sides).map(|side| (side.path.expect("RDMA"), side.agreed));
    let [(socket, _), _] = sides;
    let (mut rc, mut path) = (RcDriver::new(here.0, socket).expect("a queue pair"), there.0);
    let setup = ConnectionSetup {
        gather: rc.gather(),
        domain: pools[0].domain_id(),
        ..here.1.setup(&config, LinkType::Rc)
    };
    let mut protocol = ProtocolMachine::new(&setup).expect("a valid setup");
    let mut pool = pools[0].clone();
    assert_eq!(protocol.write(&[IoSlice::new(b"early")], &mut pool), Ok(5));
    let give_up = Instant::now() + TIMEOUT;
    loop {
        rc.progress(&mut protocol, &mut pool, Instant::now());
        assert!(path.probe(Instant::now()).is_ready(), "it is proved");
        if path.has_early() {
            break;
        }
        assert!(Instant::now() < give_up, "nothing has come");
    }
    let began = Instant::now();
    drop(path);
    assert!(began.elapsed() < DRAIN, "what is waited for has come");
    drop((rc, protocol, pool));
    nothing_is_left(pools);
}

/// A peer that goes on sending to a closed connection does not keep its turn from ending.
#[test]
#[cfg_attr(miri, ignore = "opens sockets")]
fn a_limited_turn_ends_while_the_peer_sends() {
    const MOST: u32 = 1;
    let _guard = serialize();
    let mut sides = connected_with(Kind::Stream, config().rendezvous(false), |_| ());
    sides.iter_mut().for_each(TestPeer::progress);
    let [one, other] = &mut sides;
    other.protocol.shutdown_read();
    Driver::<Pool>::limit_turns(&mut other.rc, true);
    let (_, most) = other.rc.steps();
    // A turn has few steps, because the peer sends nothing during it.
    assert_eq!(std::mem::replace(most, MOST), STEPS_A_TURN);
    let (piece, total, mut sent, mut cut) = (vec![1; 100_000], 4 << 20, 0, 0);
    let give_up = Instant::now() + TIMEOUT;
    while other.protocol.counters().bytes_received < total {
        assert!(Instant::now() < give_up, "{sent} of {total}, {cut} turns were cut");
        if sent < total {
            let piece = &piece[..piece.len().min((total - sent) as usize)];
            sent += one.protocol.write(&[IoSlice::new(piece)], &mut one.pool).unwrap_or(0) as u64;
        }
        one.progress();
        other.progress();
        let (steps, _) = other.rc.steps();
        assert!(steps <= MOST, "a turn of {steps} steps");
        cut += u32::from(Driver::<Pool>::has_more(&other.rc));
    }
    assert!(cut > 0, "no turn was cut");
    end(sides);
}
