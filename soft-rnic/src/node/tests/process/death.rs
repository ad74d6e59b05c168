//! Tests of processes that die, stop, fork, or lose their descriptors.

use super::*;

#[test]
fn a_killed_peer_is_noticed_and_its_hazards_are_void() {
    let fabric = fabric();
    let process = impatient(&fabric);
    let mut peer = ChildNode::start(&fabric);
    let remote = process.connect_to(peer.qpn);
    assert!(remote.vm().is_some());
    assert_eq!(remote.pid(), Some(peer.child.id()));
    let number = peer.publish_hazard(process.qpn);
    let stuck = StillInUse { peer_id: number, pid: Some(peer.child.id()) };
    assert_eq!(process.node.wait_until_unused(Revoked::Region(8)), Err(stuck));
    peer.signal(Signal::KILL);
    let calls = [process.calls.recv_timeout(LONG), process.calls.recv_timeout(LONG)];
    assert!(calls.contains(&Ok(HandlerCall::PeerDetached(number))), "{calls:?}");
    assert!(calls.contains(&Ok(HandlerCall::PeerLost(remote.number()))), "{calls:?}");
    assert_eq!(process.node.wait_until_unused(Revoked::Region(8)), Ok(()));
    assert_eq!(process.node.wait_until_unused(Revoked::QueuePair(5)), Ok(()));
    assert!(!remote.alive());
    assert!(matches!(process.node.wait_for_process(peer.qpn, LONG), Reachability::Nobody));
}

#[test]
fn a_peer_that_closes_its_descriptors_and_lives_keeps_its_hazards() {
    let fabric = fabric();
    let process = impatient(&fabric);
    let mut peer = ChildNode::start(&fabric);
    let remote = process.connect_to(peer.qpn);
    let number = peer.publish_hazard(process.qpn);
    peer.ask("close", "closed 0");
    // The peer can no longer be reached.
    process.expect(&HandlerCall::PeerLost(remote.number()));
    // The peer may be in the middle of a copy, so the node waits for it as for a stopped process.
    let stuck = StillInUse { peer_id: number, pid: Some(peer.child.id()) };
    for _ in 0..3 {
        assert_eq!(process.node.wait_until_unused(Revoked::Region(8)), Err(stuck));
    }
    assert_eq!(process.calls.try_recv(), Err(std::sync::mpsc::TryRecvError::Empty), "nothing was recovered");
    peer.ask("warnings", "warnings ");
    peer.signal(Signal::KILL);
    process.expect(&HandlerCall::PeerDetached(number));
    assert_eq!(process.node.wait_until_unused(Revoked::Region(8)), Ok(()));
}

#[test]
fn a_stopped_peer_keeps_nobody_waiting_but_those_who_want_it() {
    let fabric = fabric();
    let process = impatient(&fabric);
    let mut peer = ChildNode::start(&fabric);
    let remote = process.connect_to(peer.qpn);
    let number = peer.publish_hazard(process.qpn);
    peer.signal(Signal::STOP);
    let stuck = StillInUse { peer_id: number, pid: Some(peer.child.id()) };
    assert_eq!(process.node.wait_until_unused(Revoked::QueuePair(5)), Err(stuck));
    for cq in 0..5000 {
        remote.ring(Doorbell::Cq(cq));
    }
    assert_ne!(remote.segment().shared_header().check_everything.load(crate::sync::SeqCst), 0);
    // Another node wants to reach the stopped peer, and other processes.
    let other = TestNode::new(&fabric);
    assert!(matches!(other.node.find_process(peer.qpn), Reachability::Pending));
    let _ = other.connect_to(process.qpn);
    assert!(
        matches!(other.node.find_process(peer.qpn), Reachability::Pending),
        "not reached yet, and not given up"
    );
    assert!(matches!(other.node.wait_for_process(peer.qpn, LONG), Reachability::Nobody));
    assert!(remote.alive());
    peer.signal(Signal::CONT);
    eventually("reached", || matches!(other.node.wait_for_process(peer.qpn, LONG), Reachability::Ready(_)));
    // If the peer is stopped again, its death is still proved.
    peer.signal(Signal::STOP);
    peer.signal(Signal::KILL);
    eventually("free of hazards", || process.node.wait_until_unused(Revoked::QueuePair(5)).is_ok());
}

#[test]
fn death_is_proved_even_if_somebody_keeps_the_connection() {
    let fabric = fabric();
    let process = impatient(&fabric);
    let mut peer = ChildNode::start(&fabric);
    let remote = process.connect_to(peer.qpn);
    let number = peer.publish_hazard(process.qpn);
    peer.leave_child("clone", "unaware");
    peer.signal(Signal::KILL);
    eventually("free of hazards", || process.node.wait_until_unused(Revoked::Region(8)).is_ok());
    process.expect(&HandlerCall::PeerDetached(number));
    assert!(remote.alive(), "the child of the dead has the connection");
    remote.suspect();
    process.expect(&HandlerCall::PeerLost(remote.number()));
    assert!(!remote.alive());
}

#[test]
fn a_forked_child_has_no_part_in_the_device() {
    let fabric = fabric();
    let process = impatient(&fabric);
    let mut peer = ChildNode::start(&fabric);
    let remote = process.connect_to(peer.qpn);
    let number = peer.publish_hazard(process.qpn);
    peer.leave_child("fork", "forked");
    // The parent continues.
    assert!(peer.ask(&format!("remote {}", process.qpn), "linked ").ends_with("vm"));
    peer.signal(Signal::KILL);
    let calls = [process.calls.recv_timeout(LONG), process.calls.recv_timeout(LONG)];
    assert!(calls.contains(&Ok(HandlerCall::PeerDetached(number))), "{calls:?}");
    assert!(calls.contains(&Ok(HandlerCall::PeerLost(remote.number()))), "{calls:?}");
}
