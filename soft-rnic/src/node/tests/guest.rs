//! A process that gets the segment by an ordinary hello, and writes where it can.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{FallocateFlags, Mode, OFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};

use super::hostile::enter;
use super::*;
use crate::shared::entry::MrDescriptor;
use crate::shared::generation::GenerationWriter;
use crate::shared::hazard::Hazard;
use crate::shared::part::LEVELS;
use crate::shared::segment::{OWNED, SHARED};

const REGION: u32 = 5;

fn map(file: impl AsFd, protection: ProtFlags) -> rustix::io::Result<*mut core::ffi::c_void> {
    // SAFETY: a new mapping at an address that the system chooses replaces no other.
    unsafe { rustix::mm::mmap(core::ptr::null_mut(), 4096, protection, MapFlags::SHARED, file, 0) }
}

/// Writes a byte everywhere in a file.
fn fill(file: &OwnedFd, byte: u8) {
    let length = rustix::fs::fstat(file).expect("it is open").st_size as u64;
    for page in 0..length.div_ceil(4096) {
        let written = rustix::io::pwrite(file, &[byte; 4096], page * 4096);
        assert_eq!(written, Ok(4096));
    }
}

/// The same file, opened for writing, as any process of its user can.
fn reopen(file: &OwnedFd) -> OwnedFd {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).expect("the user's file")
}

#[test]
fn a_guest_cannot_write_what_the_owner_alone_writes() {
    let process = TestNode::new(&fabric());
    let region = MrDescriptor { address: 4711, ..MrDescriptor::default() };
    let entry = process.node.segment().region(REGION).expect("a small index");
    entry.publish(&mut GenerationWriter::default(), 1, &region);
    let (_socket, _, [owned, shared, _]) = enter(&process);
    let writable = ProtFlags::READ | ProtFlags::WRITE;
    for file in [&owned, &reopen(&owned)] {
        assert_eq!(map(file, writable).err(), Some(Errno::PERM));
        assert_eq!(rustix::io::pwrite(file, &[0], 4096), Err(Errno::PERM));
        assert_eq!(rustix::fs::ftruncate(file, OWNED.length(1) as u64 - 4096), Err(Errno::PERM));
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        assert_eq!(rustix::fs::fallocate(file, hole, 0, 4096), Err(Errno::PERM));
        assert_eq!(rustix::fs::fcntl_add_seals(file, SealFlags::WRITE), Err(Errno::PERM));
        let place = map(file, ProtFlags::READ).expect("it can be read");
        // SAFETY: nobody refers to the mapping.
        unsafe {
            assert_eq!(rustix::mm::mprotect(place, 4096, MprotectFlags::WRITE), Err(Errno::ACCESS));
            rustix::mm::munmap(place, 4096).expect("it is mapped");
        }
    }
    let place = map(shared, writable).expect("peers write here");
    // SAFETY: nobody refers to the mapping.
    unsafe { rustix::mm::munmap(place, 4096).expect("it is mapped") };
    assert_eq!(entry.read().map(|(_, there)| there), Some(region));
}

/// It would let the owner free memory that an honest peer is copying to.
#[test]
fn a_guest_ends_no_wait_for_another_peer() {
    let fabric = fabric();
    let patience = Duration::from_millis(20);
    let process =
        TestNode::with(NodeSettings { fabric: fabric.clone(), patience, ..NodeSettings::default() });
    let friend = TestNode::new(&fabric);
    let remote = friend.connect_to(process.qpn);
    remote.hazard_slot(0).publish(Hazard::new(1, 2));
    remote.hazard_slot(3).publish(Hazard::new(1, 2));
    let (_socket, welcome, [_, shared, page]) = enter(&process);
    assert_ne!(welcome.peer_id, remote.number());
    let stuck = Err(StillInUse { peer_id: remote.number(), pid: Some(std::process::id()) });
    for byte in [0xff, 0, 1] {
        fill(&shared, byte);
        fill(&page, if byte == 0 { 1 } else { 0 });
        assert_eq!(process.node.wait_until_unused(Revoked::Region(2)), stuck);
        assert_eq!(process.node.wait_until_unused(Revoked::QueuePair(1)), stuck);
    }
    remote.hazard_slot(0).clear();
    assert_eq!(process.node.wait_until_unused(Revoked::Region(2)), stuck);
    remote.hazard_slot(3).clear();
    assert_eq!(process.node.wait_until_unused(Revoked::Region(2)), Ok(()));
}

#[test]
fn a_guest_that_lengthens_the_files_stops_nobody() {
    let process = TestNode::new(&fabric());
    let (_socket, _, [owned, shared, _]) = enter(&process);
    rustix::fs::ftruncate(&owned, OWNED.length(LEVELS) as u64 + 4096).expect("any process can");
    rustix::fs::ftruncate(&shared, SHARED.length(LEVELS) as u64 + 4096).expect("any process can");
    let friend = TestNode::new(&process.node.state.common.settings.fabric);
    let remote = friend.connect_to(process.qpn);
    assert_eq!(remote.segment().shared().mapped_levels(), 1, "what the owner says counts");
    assert!(process.node.segment().ensure_queue_pair(1000), "the owner grows");
    assert!(remote.segment().progress(1000).is_some() && remote.segment().queue_pair(1000).is_some());
}
