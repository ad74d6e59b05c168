//! Tests of two nodes in one process, over real sockets.

use super::*;
use crate::platform::mappings::Survey;
use crate::platform::memory::FileMapping;
use crate::shared::hazard::Hazard;
use core::sync::atomic::AtomicU8;

fn pair() -> (TestNode, TestNode) {
    let fabric = fabric();
    (TestNode::new(&fabric), TestNode::new(&fabric))
}

#[test]
fn a_peer_process_has_the_peers_segment() {
    let (a, b) = pair();
    let remote = a.connect_to(b.qpn);
    assert!(remote.alive() && !remote.is_own() && a.node.own_process().is_own());
    assert_eq!(remote.index_of(b.qpn), b.node.own_index(b.qpn));
    assert_eq!(remote.index_of(a.qpn), None);
    assert!(
        remote.has_gid(0, 1, [7; 16]) && !remote.has_gid(0, 2, [7; 16]) && !remote.has_gid(0, 1, [8; 16])
    );
    remote.segment().shared_header().check_everything.store(5, crate::sync::SeqCst);
    assert_eq!(b.node.segment().shared_header().check_everything.load(crate::sync::SeqCst), 5);
    assert_eq!(b.node.call_area_of(remote.number()), Some(remote.call_area()));
    assert_eq!(b.node.call_area_of(remote.number() + 1), None);
    // The other direction is another connection.
    let back = b.connect_to(a.qpn);
    assert_eq!(back.index_of(a.qpn), a.node.own_index(a.qpn));
    assert!(Arc::ptr_eq(&back, &b.connect_to(a.qpn)));
}

#[test]
fn own_numbers_lead_to_this_process() {
    let a = TestNode::new(&fabric());
    let Reachability::Ready(remote) = a.node.find_process(a.qpn) else { panic!("not ready") };
    assert!(Arc::ptr_eq(&remote, a.node.own_process()) && remote.number() == 0);
    assert_eq!(remote.index_of(a.qpn), Some(1));
    assert!(core::ptr::eq(remote.segment(), a.node.segment()));
    for (doorbell, calls) in [
        (Doorbell::Cq(3), HandlerCall::Cq(3)),
        (Doorbell::Qp(4), HandlerCall::Qp(4)),
        (Doorbell::Srq(5), HandlerCall::Srq(5)),
        (Doorbell::Call { transfer_slot: 6 }, HandlerCall::Serve(0, 6)),
    ] {
        remote.ring(doorbell);
        a.expect(&calls);
    }
}

#[test]
fn nobody_is_where_nobody_listens() {
    let (a, other) = (TestNode::new(&fabric()), TestNode::new(&fabric()));
    // A queue pair of another fabric, numbers in no block, and a number in a block without an
    // owner.
    for qpn in [other.qpn, 0, 1, 1 << 24, u32::MAX, (a.qpn ^ (1 << 20)) & 0xff_ffff] {
        if a.node.own_index(qpn).is_some() || qpn == a.qpn {
            continue;
        }
        assert!(matches!(a.node.wait_for_process(qpn, LONG), Reachability::Nobody), "{qpn:#x}");
    }
    // A process that starts later is found.
    let fabric = a.node.state.common.settings.fabric.clone();
    let late = TestNode::new(&fabric);
    eventually("found", || matches!(a.node.wait_for_process(late.qpn, LONG), Reachability::Ready(_)));
}

#[test]
fn doorbells_are_heard() {
    let (a, b) = pair();
    let remote = a.connect_to(b.qpn);
    for (doorbell, calls) in [
        (Doorbell::Cq(u32::MAX), HandlerCall::Cq(u32::MAX)),
        (Doorbell::Qp(0), HandlerCall::Qp(0)),
        (Doorbell::Srq(9), HandlerCall::Srq(9)),
        (Doorbell::Call { transfer_slot: 63 }, HandlerCall::Serve(remote.number(), 63)),
    ] {
        remote.ring(doorbell);
        b.expect(&calls);
    }
}

#[test]
fn doorbells_that_do_not_fit_are_made_up_for() {
    let (a, b) = pair();
    let remote = a.connect_to(b.qpn);
    let still = b.recorder.still.lock().expect("no panic");
    for cq in 0..5000 {
        remote.ring(Doorbell::Cq(cq));
    }
    drop(still);
    b.expect(&HandlerCall::Everywhere);
    // The node reports this while many doorbells are still unread. Each further one either fits or
    // sets the word again, until the socket has room.
    let answer = || {
        remote.ring(Doorbell::Qp(1));
        loop {
            match b.calls.recv_timeout(LONG).expect("no doorbell is lost") {
                HandlerCall::Cq(_) => {}
                calls => return calls,
            }
        }
    };
    while answer() != HandlerCall::Qp(1) {}
}

#[test]
fn many_queue_pairs_take_several_blocks_and_one_connection() {
    let (a, b) = pair();
    let numbers: Vec<_> = (1..40_000).map(|_| b.node.new_qp_number().expect("a number")).collect();
    let last = numbers[numbers.len() - 1];
    assert_ne!(last.qpn >> 14, b.qpn >> 14);
    let remote = a.connect_to(b.qpn);
    for number in [numbers[0], numbers[20_000], last] {
        assert_eq!(b.node.own_index(number.qpn), Some(number.index));
        let other = a.connect_to(number.qpn);
        assert!(Arc::ptr_eq(&remote, &other));
        assert_eq!(other.index_of(number.qpn), Some(number.index));
    }
    eventually("one attached", || b.node.state.peer_ids.iter().count() == 1);
}

#[test]
fn the_end_of_a_node_is_noticed_on_both_sides() {
    let (a, b) = pair();
    let (to_b, to_a) = (a.connect_to(b.qpn), b.connect_to(a.qpn));
    let (qpn, number) = (b.qpn, to_a.number());
    drop((b, to_a));
    a.expect(&HandlerCall::PeerLost(to_b.number()));
    assert!(!to_b.alive());
    assert!(matches!(a.node.wait_for_process(qpn, LONG), Reachability::Nobody));
    // The peer is detached too, whichever end was noticed first.
    eventually("no attached", || a.node.state.peer_ids.iter().count() == 0);
    assert_eq!(a.node.call_area_of(number), None);
    // The remaining objects can still be used.
    to_b.ring(Doorbell::Cq(1));
    assert_eq!(to_b.hazard_slot(0).get(), None);
}

#[test]
fn revocation_waits_for_hazards() {
    let fabric = fabric();
    let settings = NodeSettings {
        fabric: fabric.clone(),
        patience: Duration::from_millis(50),
        ..NodeSettings::default()
    };
    let (a, b) = (TestNode::new(&fabric), TestNode::with(settings));
    let remote = a.connect_to(b.qpn);
    let stuck = Err(StillInUse { peer_id: remote.number(), pid: Some(std::process::id()) });
    let transfer_slot = a.node.transfer_slot(70);
    remote.hazard_slot(transfer_slot.index()).publish(Hazard::new(5, 8));
    assert_eq!(b.node.wait_until_unused(Revoked::Region(8)), stuck);
    assert_eq!(b.node.wait_until_unused(Revoked::QueuePair(5)), stuck);
    assert_eq!(b.node.wait_until_unused(Revoked::Region(5)), Ok(()));
    assert_eq!(b.node.wait_until_unused(Revoked::QueuePair(8)), Ok(()));
    remote.hazard_slot(transfer_slot.index()).publish(Hazard::new(5, Hazard::ANY_REGION));
    assert_eq!(b.node.wait_until_unused(Revoked::Region(77)), stuck);
    remote.hazard_slot(transfer_slot.index()).clear();
    assert_eq!(b.node.wait_until_unused(Revoked::Region(8)), Ok(()));
    // Hazards of the owner's own transfers.
    let own = Err(StillInUse { peer_id: 0, pid: Some(std::process::id()) });
    for cell in [b.node.local_hazard(3), b.node.own_process().hazard_slot(63)] {
        cell.publish(Hazard::new(1, 2));
        assert_eq!(b.node.wait_until_unused(Revoked::Region(2)), own);
        cell.clear();
        assert_eq!(b.node.wait_until_unused(Revoked::Region(2)), Ok(()));
    }
    // A transfer that ends in time.
    remote.hazard_slot(0).publish(Hazard::new(1, 2));
    let patient = TestNode::new(&fabric);
    let to_patient = a.connect_to(patient.qpn);
    to_patient.hazard_slot(0).publish(Hazard::new(1, 2));
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| patient.node.wait_until_unused(Revoked::Region(2)));
        std::thread::sleep(Duration::from_millis(20));
        assert!(!waiting.is_finished());
        to_patient.hazard_slot(0).clear();
        assert_eq!(waiting.join().expect("no panic"), Ok(()));
    });
}

#[test]
fn timers_are_called() {
    let a = TestNode::new(&fabric());
    let now = Instant::now();
    a.node.wake_at(now + Duration::from_millis(30), 2);
    a.node.wake_at(now + Duration::from_millis(5), 1);
    assert_eq!(a.calls.recv_timeout(LONG), Ok(HandlerCall::Timer(1)));
    assert!(now.elapsed() >= Duration::from_millis(5));
    assert_eq!(a.calls.recv_timeout(LONG), Ok(HandlerCall::Timer(2)));
    assert!(now.elapsed() >= Duration::from_millis(30));
}

#[test]
fn memory_of_the_same_user_is_copied_by_the_system() {
    let (a, b) = pair();
    let vm = a.connect_to(b.qpn).vm().expect("the same user namespace");
    let (from, to) = ([1_u8, 2, 3, 4], [0_u8; 4]);
    let local = [libc::iovec { iov_base: from.as_ptr().cast_mut().cast(), iov_len: 4 }];
    let to = core::cell::UnsafeCell::new(to);
    let remote = [vm::remote(to.get().expose_provenance() as u64, 4)];
    // SAFETY: both arrays live on this stack.
    assert_eq!(unsafe { vm.write(&local, &remote) }, Ok(4));
    assert_eq!(to.into_inner(), from);
    let nowhere = [vm::remote(8, 4)];
    // SAFETY: no memory is mapped at the remote address, so the system refuses the copy.
    assert_eq!(unsafe { vm.write(&local, &nowhere) }, Err(VmError::Fault));
    let fabric = fabric();
    let limited =
        TestNode::with(NodeSettings { fabric: fabric.clone(), vm: false, ..NodeSettings::default() });
    assert!(limited.connect_to(TestNode::new(&fabric).qpn).vm().is_none());
}

fn byte(base: core::ptr::NonNull<u8>) -> &'static AtomicU8 {
    // SAFETY: the tests keep the mapping until they have read the byte, and access its bytes as
    // atomics only.
    unsafe { AtomicU8::from_ptr(base.as_ptr()) }
}

/// How many times this process has mapped the memory file of this name.
fn mappings(name: &str) -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("proc");
    maps.lines().filter(|line| line.contains(name)).count()
}

#[test]
fn shared_memory_is_mapped_as_far_as_it_is_granted() {
    let (a, b) = pair();
    let memory = Arc::new(FileMapping::create(c"granted", 8192).expect("memory"));
    let base = memory.base().addr().get() as u64;
    let export = b.node.exports().add(Arc::clone(&memory)).expect("room");
    b.node.exports().note_access(export, true, false);
    let remote = a.connect_to(b.qpn);
    eventually("mapped to read", || remote.mapped_memory(&a.node.transfer_slot(1), export, false).is_some());
    byte(memory.base()).store(42, Ordering::Relaxed);
    {
        let transfer_slot = a.node.transfer_slot(1);
        let view = remote.mapped_memory(&transfer_slot, export, false).expect("mapped");
        assert_eq!(byte(view.at(base, 8192).expect("all of it")).load(Ordering::Relaxed), 42);
        for (address, len) in
            [(base - 1, 1), (base, 8193), (base + 8192, 1), (base + 8, u64::MAX), (0, u64::MAX)]
        {
            assert_eq!(view.at(address, len), None, "{address:#x} {len}");
        }
        assert!(remote.mapped_memory(&transfer_slot, export, true).is_none(), "nobody may write");
        assert!(
            remote
                .mapped_memory(&transfer_slot, ExportId { epoch: export.epoch + 1, ..export }, false)
                .is_none()
        );
        assert!(
            remote.mapped_memory(&transfer_slot, ExportId { index: u32::MAX, ..export }, false).is_none()
        );
        // A transfer slot of another process does not keep the memory mapped.
        assert!(remote.mapped_memory(&b.node.transfer_slot(1), export, false).is_none());
    }
    b.node.exports().note_access(export, true, true);
    eventually("mapped to write", || remote.mapped_memory(&a.node.transfer_slot(1), export, true).is_some());
    {
        let transfer_slot = a.node.transfer_slot(1);
        let view = remote.mapped_memory(&transfer_slot, export, true).expect("mapped");
        byte(view.at(base + 8191, 1).expect("the last byte")).store(43, Ordering::Relaxed);
    }
    assert_eq!(
        byte(memory.base().map_addr(|at| at.checked_add(8191).expect("no wrap"))).load(Ordering::Relaxed),
        43
    );
}

#[test]
fn memory_that_was_taken_away_is_unmapped_when_it_is_not_used() {
    let (a, b) = pair();
    let memory = Arc::new(FileMapping::create(c"taken-away", 4096).expect("memory"));
    let base = memory.base().addr().get() as u64;
    let export = b.node.exports().add(memory).expect("room");
    b.node.exports().note_access(export, true, true);
    let remote = a.connect_to(b.qpn);
    eventually("mapped", || remote.mapped_memory(&a.node.transfer_slot(7), export, true).is_some());
    let transfer_slot = a.node.transfer_slot(7);
    let view = remote.mapped_memory(&transfer_slot, export, true).expect("mapped");
    assert_eq!(mappings("taken-away"), 2);
    b.node.exports().remove(export);
    eventually("taken away", || remote.mapped_memory(&transfer_slot, export, true).is_none());
    // The service thread runs many turns in this loop, yet the view stays mapped.
    for step in 0..20 {
        a.node.wake_at(Instant::now(), step);
        a.expect(&HandlerCall::Timer(step));
        byte(view.at(base, 1).expect("a byte")).store(1, Ordering::Relaxed);
    }
    assert_eq!(mappings("taken-away"), 1);
    drop(transfer_slot);
    eventually("unmapped", || mappings("taken-away") == 0);
}

/// The export of memory that the program has mapped.
fn find(node: &Node, address: usize) -> Option<ExportId> {
    let mapping = Survey::of(address, 4096).expect("/proc").shared?;
    node.exports().find_mapped(mapping)
}

#[test]
fn files_in_dev_shm_are_mapped_if_both_sides_wish() {
    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
    let fabric = fabric();
    let wishing =
        || TestNode::with(NodeSettings { fabric: fabric.clone(), any_shm: true, ..NodeSettings::default() });
    let (a, b, careful) = (wishing(), wishing(), TestNode::new(&fabric));
    let path = format!("/dev/shm/soft-rnic-pair-{}", std::process::id());
    let file = std::fs::File::options().read(true).write(true).create_new(true).open(&path).expect("a file");
    std::fs::remove_file(&path).expect("the file");
    assert!(file.set_len(8192).is_ok());
    // SAFETY: a new mapping at an address that the kernel chooses affects no other memory.
    let gone = unsafe { mmap(core::ptr::null_mut(), 4096, ProtFlags::READ, MapFlags::SHARED, &file, 0) };
    let gone = gone.expect("a mapping");
    assert_eq!(find(&b.node, gone.addr()), None, "it has lost its name");
    let file = std::fs::File::options().read(true).write(true).create_new(true).open(&path).expect("a file");
    assert!(file.set_len(8192).is_ok());
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address that the kernel chooses affects no other memory.
    let base = unsafe { mmap(core::ptr::null_mut(), 4096, protection, MapFlags::SHARED, &file, 4096) };
    let base = base.expect("a mapping");
    let export = find(&b.node, base.addr());
    std::fs::remove_file(&path).expect("the file");
    let export = export.expect("found");
    b.node.exports().note_access(export, true, true);
    let remote = a.connect_to(b.qpn);
    eventually("mapped", || remote.mapped_memory(&a.node.transfer_slot(0), export, true).is_some());
    {
        let transfer_slot = a.node.transfer_slot(0);
        let view = remote.mapped_memory(&transfer_slot, export, true).expect("mapped");
        byte(view.at(base.addr() as u64 + 7, 1).expect("a byte")).store(9, Ordering::Relaxed);
    }
    let mut bytes = [0; 8];
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, 4096).expect("bytes");
    assert_eq!(bytes[7], 9);
    let remote = careful.connect_to(b.qpn);
    for _ in 0..10 {
        assert!(remote.mapped_memory(&careful.node.transfer_slot(0), export, false).is_none());
        std::thread::sleep(Duration::from_millis(5));
    }
    for base in [base, gone] {
        // SAFETY: mapped above, and nothing refers to it.
        unsafe { munmap(base, 4096) }.expect("munmap");
    }
}

#[test]
fn no_memory_is_mapped_where_that_is_forbidden() {
    let fabric = fabric();
    let b = TestNode::new(&fabric);
    let a = TestNode::with(NodeSettings { fabric, direct: false, ..NodeSettings::default() });
    let export = b
        .node
        .exports()
        .add(Arc::new(FileMapping::create(c"forbidden", 4096).expect("memory")))
        .expect("room");
    let remote = a.connect_to(b.qpn);
    for _ in 0..10 {
        assert!(remote.mapped_memory(&a.node.transfer_slot(0), export, false).is_none());
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(mappings("forbidden"), 1);
}
