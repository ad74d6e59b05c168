//! A process number that names nobody any more, or comes to name another program or process.

use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::sync::atomic::AtomicU8;

use rustix::pipe::{PipeFlags, pipe_with};
use test_harness::report_skip;

use super::*;
use crate::platform::vm::{self, Vm};

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

/// The arguments with which this program runs only one of its ignored tests.
fn only(test: &str) -> [String; 5] {
    let name = format!("node::tests::process::exec::{test}");
    ["--exact", &name, "--ignored", "--nocapture", "--test-threads=1"].map(str::to_owned)
}

/// Replaces the program of this process.
pub(super) fn replace() {
    let mut command = Command::new(std::env::current_exe().expect("a path"));
    command.args(only("another_program"));
    panic!("{}", std::os::unix::process::CommandExt::exec(&mut command));
}

#[test]
#[ignore = "a program that another test starts, or that its child becomes"]
fn another_program() {
    if std::env::var(FABRIC).is_err() {
        return;
    }
    let place = map();
    say("another");
    // SAFETY: the mapping has this length; another process may write to it, so each byte is read
    // as an atomic.
    let byte = |at| unsafe { AtomicU8::from_ptr(place.add(at)) }.load(Ordering::Relaxed);
    for line in io::stdin().lines() {
        line.expect("a line");
        let changed = (0..LENGTH).filter(|at| byte(*at) != UNTOUCHED).count();
        say(&format!("changed {changed}"));
    }
}

/// Calls a function with eight bytes of this process, and those at [`PLACE`] of another.
fn with_ranges<T>(call: impl FnOnce(&[libc::iovec], &[libc::iovec]) -> T) -> T {
    let mut bytes = [7_u8; 8];
    let local = [libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() }];
    let result = call(&local, &[vm::remote(PLACE as u64, bytes.len())]);
    assert_eq!(bytes, [7; 8]);
    result
}

fn write_and_read(memory: Vm) -> [Result<usize, VmError>; 2] {
    with_ranges(|local, remote| {
        // SAFETY: nobody else uses the local bytes. A child has mapped the remote range for this
        // test.
        unsafe { [memory.write(local, remote), memory.read(local, remote)] }
    })
}

/// The memory of a peer, which has mapped [`PLACE`].
fn memory_of(process: &TestNode, peer: &mut ChildNode) -> Vm {
    let memory = process.connect_to(peer.qpn).vm().expect("the same user namespace");
    peer.ask("map", "mapped");
    assert_eq!(write_and_read(memory), [Ok(8); 2]);
    memory
}

#[test]
fn a_program_that_replaces_a_peer_is_left_alone() {
    let fabric = fabric();
    let process = TestNode::new(&fabric);
    let mut peer = ChildNode::start(&fabric);
    let memory = memory_of(&process, &mut peer);
    peer.ask("replace", "another");
    assert_eq!(write_and_read(memory), [Err(VmError::Gone); 2]);
    assert_eq!(peer.ask("report", "changed "), "0");
}

#[test]
fn a_peer_that_has_exited_is_gone() {
    let fabric = fabric();
    let process = TestNode::new(&fabric);
    let mut peer = ChildNode::start(&fabric);
    let memory = memory_of(&process, &mut peer);
    writeln!(peer.input, "end").expect("it reads");
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    waitid(WaitId::Pid(Pid::from_child(&peer.child)), options).expect("a child");
    assert_eq!(write_and_read(memory), [Err(VmError::Gone); 2], "its number is still taken");
    peer.child.wait().expect("a child");
    assert_eq!(write_and_read(memory), [Err(VmError::Gone); 2], "its number is free");
}

/// A process number is given again in a pid namespace of the test, where nobody else takes it.
#[test]
fn a_process_with_the_number_of_an_exited_peer_is_left_alone() {
    let mut unshare = vec!["--pid", "--fork", "--kill-child", "--mount-proc"];
    if !rustix::process::geteuid().is_root() {
        unshare.extend(["--user", "--map-root-user"]);
    }
    let works = Command::new("unshare").args(&unshare).arg("true").stderr(Stdio::null()).status();
    if !works.is_ok_and(|status| status.success()) {
        return report_skip(REUSE, "unshare makes no pid namespace here");
    }
    let output = Command::new("unshare")
        .args(unshare)
        .arg(std::env::current_exe().expect("a path"))
        .args(only("in_a_pid_namespace"))
        .env(FABRIC, fabric())
        .stderr(Stdio::inherit())
        .output()
        .expect("it has worked");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

const REUSE: &str = "a_process_with_the_number_of_an_exited_peer_is_left_alone";

#[test]
#[ignore = "the part of another test in a pid namespace"]
fn in_a_pid_namespace() {
    let Ok(fabric) = std::env::var(FABRIC) else { return };
    let process = TestNode::new(&fabric);
    let mut peer = ChildNode::start(&fabric);
    let memory = memory_of(&process, &mut peer);
    writeln!(peer.input, "end").expect("it reads");
    peer.child.wait().expect("a child");
    let number = peer.child.id().try_into().expect("a process number");
    let (mut input, mut output) = match start_with_number(number) {
        Ok((input, output)) => (std::fs::File::from(input), BufReader::new(std::fs::File::from(output))),
        Err(error) => return report_skip(REUSE, format_args!("no process gets a chosen number: {error}")),
    };
    let mut hear = || {
        let mut lines = (&mut output).lines().map(|line| line.expect("text"));
        lines.find_map(|line| line.strip_prefix('@').map(str::to_owned)).expect("a line")
    };
    assert_eq!(hear(), "another");
    assert_eq!(write_and_read(memory), [Err(VmError::Gone); 2]);
    writeln!(input, "report").expect("it reads");
    assert_eq!(hear(), "changed 0");
    // The number alone leads to that memory.
    let copied = with_ranges(|local, remote| {
        // SAFETY: the local bytes are readable. The child has mapped the remote range for this test.
        unsafe { libc::process_vm_writev(number, local.as_ptr(), 1, remote.as_ptr(), 1, 0) }
    });
    assert_eq!(copied, 8, "{}", io::Error::last_os_error());
    writeln!(input, "report").expect("it reads");
    assert_eq!(hear(), "changed 8");
}

/// Starts [`another_program`] with this process number. Returns its standard input and output.
fn start_with_number(number: libc::pid_t) -> io::Result<(OwnedFd, OwnedFd)> {
    let string = |text: Vec<u8>| CString::new(text).expect("no zero");
    let program = string(std::env::current_exe()?.into_os_string().into_vec());
    let arguments = only("another_program").map(|argument| string(argument.into_bytes()));
    let mut pointers = vec![program.as_ptr()];
    pointers.extend(arguments.iter().map(|argument| argument.as_ptr()));
    pointers.push(core::ptr::null());
    let (its_input, input) = pipe_with(PipeFlags::CLOEXEC)?;
    let (output, its_output) = pipe_with(PipeFlags::CLOEXEC)?;
    // SAFETY: all bytes zero are valid arguments.
    let mut arguments: libc::clone_args = unsafe { core::mem::zeroed() };
    arguments.exit_signal = libc::SIGCHLD as u64;
    arguments.set_tid = (&raw const number).expose_provenance() as u64;
    arguments.set_tid_size = 1;
    // SAFETY: the arguments have this size, and `number` outlives the call. As after a fork, the
    // child has copies of all memory, and makes system calls only.
    let child = unsafe { libc::syscall(libc::SYS_clone3, &raw const arguments, size_of_val(&arguments)) };
    match child {
        // SAFETY: the descriptors are open, and the strings and their list end with a zero.
        0 => unsafe {
            libc::dup2(its_input.as_raw_fd(), 0);
            libc::dup2(its_output.as_raw_fd(), 1);
            libc::execv(program.as_ptr(), pointers.as_ptr());
            libc::_exit(127)
        },
        -1 => Err(io::Error::last_os_error()),
        child => {
            assert_eq!(child, number.into());
            Ok((input, output))
        }
    }
}
