//! Processes that die, stop, fork, or lose their descriptors.

use super::*;

#[test]
fn a_killed_peer_is_noticed_and_its_marks_are_void() {
    let fabric = fabric();
    let process = impatient(&fabric);
    let mut peer = Peer::start(&fabric);
    let link = process.link(peer.qpn);
    assert!(link.vm().is_some());
    assert_eq!(link.pid(), Some(peer.child.id()));
    let number = peer.publish_hazard(process.qpn);
    let stuck = Stuck { peer_id: number, pid: Some(peer.child.id()) };
    assert_eq!(process.node.wait_unmarked(Revoked::Region(8)), Err(stuck));
    peer.signal(Signal::KILL);
    let told = [process.told.recv_timeout(LONG), process.told.recv_timeout(LONG)];
    assert!(told.contains(&Ok(Told::PeerDetached(number))), "{told:?}");
    assert!(told.contains(&Ok(Told::PeerLost(link.number()))), "{told:?}");
    assert_eq!(process.node.wait_unmarked(Revoked::Region(8)), Ok(()));
    assert_eq!(process.node.wait_unmarked(Revoked::QueuePair(5)), Ok(()));
    assert!(!link.alive());
    assert!(matches!(process.node.wait_link(peer.qpn, LONG), Reach::Nobody));
}

#[test]
fn a_peer_that_closes_its_descriptors_and_lives_keeps_its_marks() {
    let fabric = fabric();
    let process = impatient(&fabric);
    let mut peer = Peer::start(&fabric);
    let link = process.link(peer.qpn);
    let number = peer.publish_hazard(process.qpn);
    peer.ask("close", "closed 0");
    // It cannot be reached.
    process.expect(&Told::PeerLost(link.number()));
    // As it may be in the midst of a copy, it is waited for as if it were stopped.
    let stuck = Stuck { peer_id: number, pid: Some(peer.child.id()) };
    for _ in 0..3 {
        assert_eq!(process.node.wait_unmarked(Revoked::Region(8)), Err(stuck));
    }
    assert_eq!(process.told.try_recv(), Err(std::sync::mpsc::TryRecvError::Empty), "nothing was recovered");
    peer.ask("warnings", "warnings ");
    peer.signal(Signal::KILL);
    process.expect(&Told::PeerDetached(number));
    assert_eq!(process.node.wait_unmarked(Revoked::Region(8)), Ok(()));
}

#[test]
fn a_stopped_peer_keeps_nobody_waiting_but_those_who_want_it() {
    let fabric = fabric();
    let process = impatient(&fabric);
    let mut peer = Peer::start(&fabric);
    let link = process.link(peer.qpn);
    let number = peer.publish_hazard(process.qpn);
    peer.signal(Signal::STOP);
    let stuck = Stuck { peer_id: number, pid: Some(peer.child.id()) };
    assert_eq!(process.node.wait_unmarked(Revoked::QueuePair(5)), Err(stuck));
    for cq in 0..5000 {
        link.ring(Doorbell::Cq(cq));
    }
    assert_ne!(link.segment().header().check_everything.load(crate::sync::SeqCst), 0);
    // Somebody else wants to reach it, and others.
    let other = Process::new(&fabric);
    assert!(matches!(other.node.link_to(peer.qpn), Reach::Pending));
    let _ = other.link(process.qpn);
    assert!(matches!(other.node.link_to(peer.qpn), Reach::Pending), "not reached yet, and not given up");
    assert!(matches!(other.node.wait_link(peer.qpn, LONG), Reach::Nobody));
    assert!(link.alive());
    peer.signal(Signal::CONT);
    eventually("reached", || matches!(other.node.wait_link(peer.qpn, LONG), Reach::Ready(_)));
    // Stopped again, its death is still proved.
    peer.signal(Signal::STOP);
    peer.signal(Signal::KILL);
    eventually("free of hazards", || process.node.wait_unmarked(Revoked::QueuePair(5)).is_ok());
}

#[test]
fn death_is_proved_even_if_somebody_keeps_the_connection() {
    let fabric = fabric();
    let process = impatient(&fabric);
    let mut peer = Peer::start(&fabric);
    let link = process.link(peer.qpn);
    let number = peer.publish_hazard(process.qpn);
    peer.leave_child("clone", "unaware");
    peer.signal(Signal::KILL);
    eventually("free of hazards", || process.node.wait_unmarked(Revoked::Region(8)).is_ok());
    process.expect(&Told::PeerDetached(number));
    assert!(link.alive(), "the child of the dead has the connection");
    link.suspect();
    process.expect(&Told::PeerLost(link.number()));
    assert!(!link.alive());
}

#[test]
fn a_forked_child_has_no_part_in_the_device() {
    let fabric = fabric();
    let process = impatient(&fabric);
    let mut peer = Peer::start(&fabric);
    let link = process.link(peer.qpn);
    let number = peer.publish_hazard(process.qpn);
    peer.leave_child("fork", "forked");
    // The parent goes on.
    assert!(peer.ask(&format!("link {}", process.qpn), "linked ").ends_with("vm"));
    peer.signal(Signal::KILL);
    let told = [process.told.recv_timeout(LONG), process.told.recv_timeout(LONG)];
    assert!(told.contains(&Ok(Told::PeerDetached(number))), "{told:?}");
    assert!(told.contains(&Ok(Told::PeerLost(link.number()))), "{told:?}");
}
