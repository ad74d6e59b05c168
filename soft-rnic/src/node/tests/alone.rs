//! Tests of a node without peers, which also run under Miri.

use super::*;
use crate::shared::hazard::Hazard;

#[test]
fn a_node_without_others_has_ports_and_nobody_to_write_to() {
    let a = TestNode::new(&fabric());
    let block = a.node.own_block().expect("a block");
    let port = a.node.take_port(1, 7).expect("free");
    assert!(a.node.take_port(1, 7).is_err() && a.node.take_port(2, 7).is_ok());
    let any = a.node.take_port(1, 0).expect("free");
    assert_ne!(any.port(), port.port());
    let find = |port| a.node.find_port(1, port, Instant::now() + LONG, 0, false);
    assert_eq!((find(7), find(any.port())), (Some(PortOwner::ThisProcess), Some(PortOwner::ThisProcess)));
    drop(port);
    for port in [7, 8] {
        // Where other processes may exist, the node asks them.
        assert_eq!(find(port), ALONE.then_some(PortOwner::Nobody));
        if !ALONE {
            a.expect(&HandlerCall::PortOwner(0, PortOwner::Nobody));
        }
    }
    a.node.send_cm(block + 1, b"hello").expect("it is not known yet");
    a.node.run_timers();
    a.expect(&HandlerCall::Gone(block + 1));
    a.node.wake_cm_at(Instant::now()).expect("nothing is needed");
    a.node.run_timers();
    a.expect(&HandlerCall::CmTimer);
}

#[test]
fn a_node_talks_to_itself() {
    let settings =
        NodeSettings { fabric: fabric(), patience: Duration::from_millis(20), ..NodeSettings::default() };
    let a = TestNode::with(settings);
    assert_eq!(a.node.own_index(a.qpn), Some(1));
    let Reachability::Ready(remote) = a.node.wait_for_process(a.qpn, LONG) else { panic!("not ready") };
    assert!(remote.is_own() && remote.alive());
    // Miri makes no such system calls.
    assert_eq!(remote.vm().is_none(), cfg!(miri));
    assert!(matches!(a.node.wait_for_process(a.qpn ^ (1 << 23), LONG), Reachability::Nobody));
    for (doorbell, calls) in [
        (Doorbell::Cq(1), HandlerCall::Cq(1)),
        (Doorbell::Qp(2), HandlerCall::Qp(2)),
        (Doorbell::Srq(3), HandlerCall::Srq(3)),
        (Doorbell::Call { transfer_slot: 1 }, HandlerCall::Serve(0, 1)),
    ] {
        remote.ring(doorbell);
        a.node.run_timers();
        a.expect(&calls);
    }
    a.node.wake_at(Instant::now(), 7);
    a.node.run_timers();
    a.expect(&HandlerCall::Timer(7));
    let transfer_slot = a.node.transfer_slot(TRANSFER_SLOTS + 1);
    assert!(transfer_slot.index() == 1 && a.node.transfer_slots().try_lock(1).is_none());
    let stuck = Err(StillInUse { peer_id: 0, pid: Some(std::process::id()) });
    remote.hazard_slot(transfer_slot.index()).publish(Hazard::new(1, 2));
    assert_eq!(a.node.wait_until_unused(Revoked::Region(2)), stuck);
    assert_eq!(a.node.wait_until_unused(Revoked::QueuePair(2)), Ok(()));
    remote.hazard_slot(transfer_slot.index()).clear();
    a.node.local_hazard(transfer_slot.index()).publish(Hazard::new(1, 2));
    assert_eq!(a.node.wait_until_unused(Revoked::QueuePair(1)), stuck);
    a.node.local_hazard(transfer_slot.index()).clear();
    assert_eq!(a.node.wait_until_unused(Revoked::Region(2)), Ok(()));
    let range = a.node.heap().alloc(1).expect("room");
    assert!(a.node.segment().heap(range.offset, 4096).is_some());
    a.node.heap().free(range);
    let number = a.node.new_qp_number().expect("a number");
    assert_eq!(number.index, 2);
    a.node.free_qp_number(number);
}
