//! A process number that comes to name another program.

use std::sync::atomic::AtomicU8;

use super::*;
use crate::platform::vm;

/// An address at which any program can map memory.
const PLACE: usize = 0x1000_0000_0000;
const LENGTH: usize = 4096;
const UNTOUCHED: u8 = 0xc5;

/// Maps memory at [`PLACE`] and fills it.
fn map() -> *mut u8 {
    let (protection, fixed) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_FIXED_NOREPLACE);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | fixed;
    let place = core::ptr::without_provenance_mut(PLACE);
    // SAFETY: with `MAP_FIXED_NOREPLACE`, a new mapping replaces no other.
    let place = unsafe { libc::mmap(place, LENGTH, protection, flags, -1, 0) };
    assert_eq!(place.addr(), PLACE, "{}", io::Error::last_os_error());
    // SAFETY: the mapping has this length, and only this function knows it.
    unsafe { place.cast::<u8>().write_bytes(UNTOUCHED, LENGTH) };
    place.cast()
}

/// Maps memory for the parent.
pub(super) fn offer() {
    map();
    say("mapped");
}

/// Replaces the program of this process.
pub(super) fn replace() {
    let name = ["--exact", "node::tests::process::exec::another_program"];
    let mut command = Command::new(std::env::current_exe().expect("a path"));
    command.args(name).args(["--ignored", "--nocapture", "--test-threads=1"]);
    panic!("{}", std::os::unix::process::CommandExt::exec(&mut command));
}

#[test]
#[ignore = "a program that another test's child becomes"]
fn another_program() {
    if std::env::var(FABRIC).is_err() {
        return;
    }
    let place = map();
    say("another");
    let mut line = String::new();
    io::stdin().read_line(&mut line).expect("a line");
    // SAFETY: the mapping has this length; another process may write to it, so each byte is read
    // as an atomic.
    let byte = |at| unsafe { AtomicU8::from_ptr(place.add(at)) }.load(Ordering::Relaxed);
    let changed = (0..LENGTH).filter(|at| byte(*at) != UNTOUCHED).count();
    say(&format!("changed {changed}"));
}

#[test]
fn a_program_that_replaces_a_peer_is_left_alone() {
    let fabric = fabric();
    let process = TestNode::new(&fabric);
    let mut peer = ChildNode::start(&fabric);
    let memory = process.connect_to(peer.qpn).vm().expect("the same user namespace");
    peer.ask("map", "mapped");
    let mut bytes = [7_u8; 8];
    let local = [libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() }];
    let remote = [vm::remote(PLACE as u64, bytes.len())];
    let write_and_read = || {
        // SAFETY: the array lives on this stack, and nobody else uses it. The remote range is memory
        // that the child has mapped for this test.
        unsafe { [memory.write(&local, &remote), memory.read(&local, &remote)] }
    };
    assert_eq!(write_and_read(), [Ok(8); 2]);
    peer.ask("replace", "another");
    assert_eq!(write_and_read(), [Err(VmError::Gone); 2]);
    assert_eq!(peer.ask("report", "changed "), "0");
}
