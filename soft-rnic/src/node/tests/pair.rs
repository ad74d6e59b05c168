//! Two nodes in one process, over real sockets.

use super::*;
use crate::platform::mappings::Survey;
use crate::platform::memory::Memory;
use crate::shared::hazard::Hazard;
use core::sync::atomic::AtomicU8;

fn pair() -> (Process, Process) {
    let fabric = fabric();
    (Process::new(&fabric), Process::new(&fabric))
}

#[test]
fn a_link_leads_to_the_peers_segment() {
    let (a, b) = pair();
    let link = a.link(b.qpn);
    assert!(link.alive() && !link.is_own() && a.node.own_link().is_own());
    assert_eq!(link.index_of(b.qpn), b.node.own_index(b.qpn));
    assert_eq!(link.index_of(a.qpn), None);
    assert!(link.has_gid(0, 1, [7; 16]) && !link.has_gid(0, 2, [7; 16]) && !link.has_gid(0, 1, [8; 16]));
    link.segment().header().check_everything.store(5, crate::sync::SeqCst);
    assert_eq!(b.node.segment().header().check_everything.load(crate::sync::SeqCst), 5);
    assert_eq!(b.node.call_area_of(link.number()), Some(link.call_area()));
    assert_eq!(b.node.call_area_of(link.number() + 1), None);
    // The way back is a link of its own.
    let back = b.link(a.qpn);
    assert_eq!(back.index_of(a.qpn), a.node.own_index(a.qpn));
    assert!(Arc::ptr_eq(&back, &b.link(a.qpn)));
}

#[test]
fn own_numbers_lead_to_the_own_link() {
    let a = Process::new(&fabric());
    let Reach::Ready(link) = a.node.link_to(a.qpn) else { panic!("not ready") };
    assert!(Arc::ptr_eq(&link, a.node.own_link()) && link.number() == 0);
    assert_eq!(link.index_of(a.qpn), Some(1));
    assert!(core::ptr::eq(link.segment(), a.node.segment()));
    for (doorbell, told) in [
        (Doorbell::Cq(3), Told::Cq(3)),
        (Doorbell::Qp(4), Told::Qp(4)),
        (Doorbell::Srq(5), Told::Srq(5)),
        (Doorbell::Call { transfer_slot: 6 }, Told::Serve(0, 6)),
    ] {
        link.ring(doorbell);
        a.expect(&told);
    }
}

#[test]
fn nobody_is_where_nobody_listens() {
    let (a, other) = (Process::new(&fabric()), Process::new(&fabric()));
    // Another fabric; no number of a block; a block of nobody.
    for qpn in [other.qpn, 0, 1, 1 << 24, u32::MAX, (a.qpn ^ (1 << 20)) & 0xff_ffff] {
        if a.node.own_index(qpn).is_some() || qpn == a.qpn {
            continue;
        }
        assert!(matches!(a.node.wait_link(qpn, LONG), Reach::Nobody), "{qpn:#x}");
    }
    // A process that comes later is found.
    let fabric = a.node.state.common.settings.fabric.clone();
    let late = Process::new(&fabric);
    eventually("found", || matches!(a.node.wait_link(late.qpn, LONG), Reach::Ready(_)));
}

#[test]
fn doorbells_are_heard() {
    let (a, b) = pair();
    let link = a.link(b.qpn);
    for (doorbell, told) in [
        (Doorbell::Cq(u32::MAX), Told::Cq(u32::MAX)),
        (Doorbell::Qp(0), Told::Qp(0)),
        (Doorbell::Srq(9), Told::Srq(9)),
        (Doorbell::Call { transfer_slot: 63 }, Told::Serve(link.number(), 63)),
    ] {
        link.ring(doorbell);
        b.expect(&told);
    }
}

#[test]
fn doorbells_that_do_not_fit_are_made_up_for() {
    let (a, b) = pair();
    let link = a.link(b.qpn);
    let still = b.recorder.still.lock().expect("no panic");
    for cq in 0..5000 {
        link.ring(Doorbell::Cq(cq));
    }
    drop(still);
    b.expect(&Told::Everywhere);
    // That is told while many are still to be read: each of the next either fits or is made up for, too, until there is room.
    let answer = || {
        link.ring(Doorbell::Qp(1));
        loop {
            match b.told.recv_timeout(LONG).expect("no doorbell is lost") {
                Told::Cq(_) => {}
                told => return told,
            }
        }
    };
    while answer() != Told::Qp(1) {}
}

#[test]
fn many_queue_pairs_take_several_blocks_and_one_link() {
    let (a, b) = pair();
    let numbers: Vec<_> = (1..40_000).map(|_| b.node.new_qp_number().expect("a number")).collect();
    let last = numbers[numbers.len() - 1];
    assert_ne!(last.qpn >> 14, b.qpn >> 14);
    let link = a.link(b.qpn);
    for number in [numbers[0], numbers[20_000], last] {
        assert_eq!(b.node.own_index(number.qpn), Some(number.index));
        let other = a.link(number.qpn);
        assert!(Arc::ptr_eq(&link, &other));
        assert_eq!(other.index_of(number.qpn), Some(number.index));
    }
    eventually("one attached", || b.node.state.peer_ids.iter().count() == 1);
}

#[test]
fn the_end_of_a_node_is_noticed_on_both_sides() {
    let (a, b) = pair();
    let (to_b, to_a) = (a.link(b.qpn), b.link(a.qpn));
    let (qpn, number) = (b.qpn, to_a.number());
    drop((b, to_a));
    a.expect(&Told::PeerLost(to_b.number()));
    assert!(!to_b.alive());
    assert!(matches!(a.node.wait_link(qpn, LONG), Reach::Nobody));
    // As an attached peer it is gone, too: whichever came first, it was told.
    eventually("no attached", || a.node.state.peer_ids.iter().count() == 0);
    assert_eq!(a.node.call_area_of(number), None);
    // What is left of it can still be touched.
    to_b.ring(Doorbell::Cq(1));
    assert_eq!(to_b.hazard_slot(0).get(), None);
}

#[test]
fn revocation_waits_for_marks() {
    let fabric = fabric();
    let settings =
        Settings { fabric: fabric.clone(), patience: Duration::from_millis(50), ..Settings::default() };
    let (a, b) = (Process::new(&fabric), Process::with(settings));
    let link = a.link(b.qpn);
    let stuck = Err(Stuck { peer_id: link.number(), pid: Some(std::process::id()) });
    let transfer_slot = a.node.transfer_slot(70);
    link.hazard_slot(transfer_slot.index()).publish(Hazard::new(5, 8));
    assert_eq!(b.node.wait_unmarked(Revoked::Region(8)), stuck);
    assert_eq!(b.node.wait_unmarked(Revoked::QueuePair(5)), stuck);
    assert_eq!(b.node.wait_unmarked(Revoked::Region(5)), Ok(()));
    assert_eq!(b.node.wait_unmarked(Revoked::QueuePair(8)), Ok(()));
    link.hazard_slot(transfer_slot.index()).publish(Hazard::new(5, Hazard::ANY_REGION));
    assert_eq!(b.node.wait_unmarked(Revoked::Region(77)), stuck);
    link.hazard_slot(transfer_slot.index()).clear();
    assert_eq!(b.node.wait_unmarked(Revoked::Region(8)), Ok(()));
    // Its own transfers.
    let own = Err(Stuck { peer_id: 0, pid: Some(std::process::id()) });
    for cell in [b.node.local_hazard(3), b.node.own_link().hazard_slot(63)] {
        cell.publish(Hazard::new(1, 2));
        assert_eq!(b.node.wait_unmarked(Revoked::Region(2)), own);
        cell.clear();
        assert_eq!(b.node.wait_unmarked(Revoked::Region(2)), Ok(()));
    }
    // One that ends in time.
    link.hazard_slot(0).publish(Hazard::new(1, 2));
    let patient = Process::new(&fabric);
    let to_patient = a.link(patient.qpn);
    to_patient.hazard_slot(0).publish(Hazard::new(1, 2));
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| patient.node.wait_unmarked(Revoked::Region(2)));
        std::thread::sleep(Duration::from_millis(20));
        assert!(!waiting.is_finished());
        to_patient.hazard_slot(0).clear();
        assert_eq!(waiting.join().expect("no panic"), Ok(()));
    });
}

#[test]
fn timers_are_called() {
    let a = Process::new(&fabric());
    let now = Instant::now();
    a.node.wake_at(now + Duration::from_millis(30), 2);
    a.node.wake_at(now + Duration::from_millis(5), 1);
    assert_eq!(a.told.recv_timeout(LONG), Ok(Told::Timer(1)));
    assert!(now.elapsed() >= Duration::from_millis(5));
    assert_eq!(a.told.recv_timeout(LONG), Ok(Told::Timer(2)));
    assert!(now.elapsed() >= Duration::from_millis(30));
}

#[test]
fn memory_of_the_same_user_is_copied_by_the_system() {
    let (a, b) = pair();
    let vm = a.link(b.qpn).vm().expect("the same user namespace");
    let (from, to) = ([1_u8, 2, 3, 4], [0_u8; 4]);
    let local = [libc::iovec { iov_base: from.as_ptr().cast_mut().cast(), iov_len: 4 }];
    let to = core::cell::UnsafeCell::new(to);
    let remote = [vm::remote(to.get().expose_provenance() as u64, 4)];
    // SAFETY: both arrays live on this stack.
    assert_eq!(unsafe { vm.write(&local, &remote) }, Ok(4));
    assert_eq!(to.into_inner(), from);
    let nowhere = [vm::remote(8, 4)];
    // SAFETY: nothing is mapped there.
    assert_eq!(unsafe { vm.write(&local, &nowhere) }, Err(VmError::Fault));
    let fabric = fabric();
    let limited = Process::with(Settings { fabric: fabric.clone(), vm: false, ..Settings::default() });
    assert!(limited.link(Process::new(&fabric).qpn).vm().is_none());
}

fn byte(base: core::ptr::NonNull<u8>) -> &'static AtomicU8 {
    // SAFETY: the tests keep the mappings until they have looked; bytes of shared memory, as atomics only.
    unsafe { AtomicU8::from_ptr(base.as_ptr()) }
}

/// How often a memory file of this name is mapped in this process.
fn mappings(name: &str) -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("proc");
    maps.lines().filter(|line| line.contains(name)).count()
}

#[test]
fn shared_memory_is_mapped_as_far_as_it_is_granted() {
    let (a, b) = pair();
    let memory = Arc::new(Memory::create(c"granted", 8192).expect("memory"));
    let base = memory.base().addr().get() as u64;
    let share = b.node.shares().add(Arc::clone(&memory)).expect("room");
    b.node.shares().note_access(share, true, false);
    let link = a.link(b.qpn);
    eventually("mapped to read", || link.share(&a.node.transfer_slot(1), share, false).is_some());
    byte(memory.base()).store(42, Ordering::Relaxed);
    {
        let transfer_slot = a.node.transfer_slot(1);
        let view = link.share(&transfer_slot, share, false).expect("mapped");
        assert_eq!(byte(view.at(base, 8192).expect("all of it")).load(Ordering::Relaxed), 42);
        for (address, len) in
            [(base - 1, 1), (base, 8193), (base + 8192, 1), (base + 8, u64::MAX), (0, u64::MAX)]
        {
            assert_eq!(view.at(address, len), None, "{address:#x} {len}");
        }
        assert!(link.share(&transfer_slot, share, true).is_none(), "nobody may write");
        assert!(link.share(&transfer_slot, ShareId { epoch: share.epoch + 1, ..share }, false).is_none());
        assert!(link.share(&transfer_slot, ShareId { index: u32::MAX, ..share }, false).is_none());
        // a transfer slot of another process's does not keep it mapped.
        assert!(link.share(&b.node.transfer_slot(1), share, false).is_none());
    }
    b.node.shares().note_access(share, true, true);
    eventually("mapped to write", || link.share(&a.node.transfer_slot(1), share, true).is_some());
    {
        let transfer_slot = a.node.transfer_slot(1);
        let view = link.share(&transfer_slot, share, true).expect("mapped");
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
    let memory = Arc::new(Memory::create(c"taken-away", 4096).expect("memory"));
    let base = memory.base().addr().get() as u64;
    let share = b.node.shares().add(memory).expect("room");
    b.node.shares().note_access(share, true, true);
    let link = a.link(b.qpn);
    eventually("mapped", || link.share(&a.node.transfer_slot(7), share, true).is_some());
    let transfer_slot = a.node.transfer_slot(7);
    let view = link.share(&transfer_slot, share, true).expect("mapped");
    assert_eq!(mappings("taken-away"), 2);
    b.node.shares().remove(share);
    eventually("taken away", || link.share(&transfer_slot, share, true).is_none());
    // The service thread has turned many times by now, and yet the view is there.
    for step in 0..20 {
        a.node.wake_at(Instant::now(), step);
        a.expect(&Told::Timer(step));
        byte(view.at(base, 1).expect("a byte")).store(1, Ordering::Relaxed);
    }
    assert_eq!(mappings("taken-away"), 1);
    drop(transfer_slot);
    eventually("unmapped", || mappings("taken-away") == 0);
}

/// What is found of memory that the program has mapped.
fn find(node: &Node, address: usize) -> Option<ShareId> {
    let mapping = Survey::of(address, 4096).expect("/proc").shared?;
    node.shares().find_mapped(mapping)
}

#[test]
fn files_in_dev_shm_are_mapped_if_both_sides_wish() {
    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
    let fabric = fabric();
    let wishing = || Process::with(Settings { fabric: fabric.clone(), any_shm: true, ..Settings::default() });
    let (a, b, careful) = (wishing(), wishing(), Process::new(&fabric));
    let path = format!("/dev/shm/soft-rnic-pair-{}", std::process::id());
    let file = std::fs::File::options().read(true).write(true).create_new(true).open(&path).expect("a file");
    std::fs::remove_file(&path).expect("the file");
    assert!(file.set_len(8192).is_ok());
    // SAFETY: a new mapping.
    let gone = unsafe { mmap(core::ptr::null_mut(), 4096, ProtFlags::READ, MapFlags::SHARED, &file, 0) };
    let gone = gone.expect("a mapping");
    assert_eq!(find(&b.node, gone.addr()), None, "it has no name any more");
    let file = std::fs::File::options().read(true).write(true).create_new(true).open(&path).expect("a file");
    assert!(file.set_len(8192).is_ok());
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping.
    let base = unsafe { mmap(core::ptr::null_mut(), 4096, protection, MapFlags::SHARED, &file, 4096) };
    let base = base.expect("a mapping");
    let share = find(&b.node, base.addr());
    std::fs::remove_file(&path).expect("the file");
    let share = share.expect("found");
    b.node.shares().note_access(share, true, true);
    let link = a.link(b.qpn);
    eventually("mapped", || link.share(&a.node.transfer_slot(0), share, true).is_some());
    {
        let transfer_slot = a.node.transfer_slot(0);
        let view = link.share(&transfer_slot, share, true).expect("mapped");
        byte(view.at(base.addr() as u64 + 7, 1).expect("a byte")).store(9, Ordering::Relaxed);
    }
    let mut bytes = [0; 8];
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, 4096).expect("bytes");
    assert_eq!(bytes[7], 9);
    let link = careful.link(b.qpn);
    for _ in 0..10 {
        assert!(link.share(&careful.node.transfer_slot(0), share, false).is_none());
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
    let b = Process::new(&fabric);
    let a = Process::with(Settings { fabric, direct: false, ..Settings::default() });
    let share =
        b.node.shares().add(Arc::new(Memory::create(c"forbidden", 4096).expect("memory"))).expect("room");
    let link = a.link(b.qpn);
    for _ in 0..10 {
        assert!(link.share(&a.node.transfer_slot(0), share, false).is_none());
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(mappings("forbidden"), 1);
}
