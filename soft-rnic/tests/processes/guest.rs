//! A process of the same user without the rights of a debugger gets the victim's segment by an
//! ordinary hello, and writes to all of it that it can map writable. What an honest peer sends then
//! arrives where it should, or fails, and no other memory of the victim changes.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr;
use std::time::Duration;

use libtest_mimic::Trial;
use rdma_mummy_sys::types::*;
use rdma_mummy_sys::verbs;
use rustix::fs::{Mode, OFlags};
use rustix::mm::{MapFlags, ProtFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};
use rustix::thread::CapabilitySet;

use crate::kit::{ALL, QpAddress, TestCq, TestDevice, TestMemory, TestQp, Timing, lib, rkey};
use crate::rights::{self, become_nobody};
use crate::role::{self, ChildRole, say, told};

/// All attempts take 2 s.
const TIMING: Timing = Timing { timeout: 17, retry_cnt: 3 };
const PATIENCE: Duration = Duration::from_secs(15);
/// The bytes of the buffer, and of the memory on either side of it that nobody may change.
const AREA: usize = 64 << 10;
const CANARY: u8 = 0xca;
/// Queue pairs, because one that has failed is of no use.
const REQUESTS: usize = 9;
const SUCCESS: &str = "0";

pub(crate) fn trials() -> Vec<Trial> {
    let trial = |how: &'static str| {
        // Only root can keep one capability.
        let lacks = if how == "vm" { rights::not_root } else { || None };
        rights::trial_unless(format!("guest::writes_where_it_can_{how}"), lacks, move || {
            role::run(&format!("guest-case {how}"), &[("SOFT_RNIC_PATH", "auto")])
        })
    };
    // The honest peer copies by `process_vm_writev`, or the victim copies on its behalf.
    ["vm", "call"].map(trial).into()
}

pub(crate) fn play(role: &str, arguments: &[String]) {
    match role {
        "guest-case" => case(&arguments[0]),
        "guest-victim" => victim(),
        "guest" => guest(),
        _ => honest(&arguments[0]),
    }
}

/// Exchanges lines with the three processes.
fn case(how: &str) {
    let mut victim = ChildRole::start("guest-victim", &[]);
    let mut honest = ChildRole::start(&format!("guest-honest {how}"), &[]);
    let mut guest = ChildRole::start("guest", &[]);
    for _ in 0..REQUESTS {
        let (a, b) = (victim.hear(), honest.hear());
        victim.tell(&b);
        honest.tell(&a);
    }
    let [buffer, canary] = [victim.hear(), victim.hear()];
    let ask = |role: &mut ChildRole, line: &str| {
        role.tell(line);
        role.hear()
    };
    // Without the guest, everything works.
    for (request, arrives) in [("write 1", "1"), ("send 2", "2"), ("read 2", "2")] {
        assert_eq!(ask(&mut victim, "receive"), "posted");
        assert_eq!(ask(&mut honest, request), SUCCESS, "{request}");
        assert_eq!(ask(&mut victim, "look"), format!("{arrives} intact"), "{request}");
    }
    assert_eq!(ask(&mut honest, "path"), how);
    let pid = victim.pid().as_raw_nonzero();
    guest.tell(&format!("{pid} {buffer} {canary}"));
    let mappable = [guest.hear(), guest.hear(), guest.hear()];
    // Each stage: what the guest does, and the bytes that the honest peer sends.
    for (stage, bytes) in [("redirect", [3, 4]), ("scribble", [5, 6])] {
        let done = ask(&mut guest, stage);
        assert!(done.ends_with(" words changed"), "{stage}: {done}");
        println!("{stage}: {done}");
        for (verb, byte) in [("write", bytes[0]), ("send", bytes[1]), ("read", bytes[1])] {
            assert_eq!(ask(&mut victim, "receive"), "posted");
            let request = format!("{verb} {byte}");
            let status = ask(&mut honest, &request);
            let there = ask(&mut victim, "look");
            println!("{stage}, {request}: status {status}, then {there}");
            assert!(there.ends_with(" intact"), "{stage}, {request}: memory beside the buffer has changed");
            assert!(status != SUCCESS || there == format!("{byte} intact"), "{stage}, {request}: {there}");
        }
    }
    let expected = [
        "/memfd:soft-rnic-owner (deleted): no",
        "/memfd:soft-rnic (deleted): yes",
        "/memfd:soft-rnic hazards (deleted): yes",
    ];
    assert_eq!(mappable, expected);
    // Nothing is taken down: garbage in a hazard keeps memory busy.
    for role in [victim, honest, guest] {
        role.finish();
    }
}

/// One end: a queue pair for each request, in order.
struct End {
    cq: TestCq,
    qps: std::vec::IntoIter<TestQp>,
    peers: Vec<QpAddress>,
}

impl End {
    /// Connects the queue pairs with those of the other end, and offers it this memory.
    fn new(device: TestDevice, addr: u64, rkey: u32) -> Self {
        let cq = device.cq(64, ptr::null_mut());
        let (mut qps, mut peers) = (Vec::new(), Vec::new());
        for _ in 0..REQUESTS {
            let qp = device.qp(ibv_qp_type::IBV_QPT_RC, cq, ptr::null_mut(), 4);
            qp.init();
            say(&QpAddress { qpn: qp.number(), gid: device.gid_bytes(), addr, rkey }.to_string());
            let peer: QpAddress = told().expect("a line").parse().expect("an address");
            qp.connect(&peer, TIMING);
            qps.push(qp);
            peers.push(peer);
        }
        Self { cq, qps: qps.into_iter(), peers }
    }
}

/// No process of its user without the rights of a debugger reaches the memory of this one.
fn become_undumpable() {
    // SAFETY: the calls access no memory.
    unsafe {
        if libc::geteuid() == 0 {
            become_nobody();
        }
        assert_eq!(libc::prctl(libc::PR_SET_DUMPABLE, 0), 0);
    }
}

fn victim() {
    become_undumpable();
    let device = TestDevice::open();
    let memory = TestMemory::private(3 * AREA);
    memory.fill(CANARY);
    memory.fill_part(AREA, AREA, 0);
    let buffer = memory.base.wrapping_add(AREA);
    // SAFETY: the domain and the memory are live.
    let mr = unsafe { verbs::ibv_reg_mr(lib(), device.pd, buffer.cast(), AREA, ALL) };
    assert!(!mr.is_null(), "ibv_reg_mr: {}", std::io::Error::last_os_error());
    let mut end = End::new(device, buffer.addr() as u64, rkey(mr));
    say(&buffer.addr().to_string());
    say(&memory.base.addr().to_string());
    while let Some(line) = told() {
        if line == "receive" {
            // Into the buffer.
            let place = memory.sge(mr, AREA, AREA);
            assert_eq!(end.qps.next().expect("one for each request").receive(1, place), 0);
            say("posted");
            continue;
        }
        // A message is complete when its receive is polled.
        std::iter::from_fn(|| end.cq.poll()).for_each(drop);
        let byte = memory.byte(AREA);
        let whole = memory.part_differs(AREA, AREA, byte).is_none();
        let beside = [0, 2 * AREA].map(|at| memory.part_differs(at, AREA, CANARY));
        let canary = if beside == [None; 2] { "intact".to_owned() } else { format!("{beside:?}") };
        let there = if whole { byte.to_string() } else { "a mixture".to_owned() };
        say(&format!("{there} {canary}"));
    }
    std::process::exit(0);
}

fn honest(how: &str) {
    // SAFETY: the calls access no memory.
    if unsafe { libc::geteuid() } == 0 {
        // SAFETY: the call accesses no memory.
        assert_eq!(unsafe { libc::prctl(libc::PR_SET_KEEPCAPS, 1) }, 0);
        become_nobody();
        let mut sets = rustix::thread::capabilities(None).expect("this thread's");
        let kept = if how == "vm" { CapabilitySet::SYS_PTRACE } else { CapabilitySet::empty() };
        (sets.effective, sets.permitted) = (kept, kept);
        rustix::thread::set_capabilities(None, sets).expect("fewer than before");
    }
    let device = TestDevice::open();
    let memory = TestMemory::private(AREA);
    let mr = memory.register(device);
    let mut end = End::new(device, memory.base.addr() as u64, rkey(mr));
    let mut peers = std::mem::take(&mut end.peers).into_iter();
    while let Some(line) = told() {
        if line == "path" {
            let went = crate::regions::traffic();
            say(if went.vm.messages > 0 { "vm" } else { "call" });
            continue;
        }
        let (verb, byte) = line.split_once(' ').expect("a verb and a byte");
        let byte: u8 = byte.parse().expect("a byte");
        let (opcode, before) = match verb {
            "write" => (ibv_wr_opcode::IBV_WR_RDMA_WRITE, byte),
            "send" => (ibv_wr_opcode::IBV_WR_SEND, byte),
            _ => (ibv_wr_opcode::IBV_WR_RDMA_READ, !byte),
        };
        memory.fill(before);
        let (qp, to) = end.qps.next().zip(peers.next()).expect("one for each request");
        assert_eq!(qp.post(1, opcode, memory.sge(mr, 0, AREA), &to, ptr::null_mut()), 0);
        let status = end.cq.one("a completion", PATIENCE).status;
        // A read must bring the bytes that the victim last received.
        let wrong = status == ibv_wc_status::IBV_WC_SUCCESS && memory.differs(byte).is_some();
        say(&if wrong { "other bytes".to_owned() } else { status.0.to_string() });
    }
    std::process::exit(0);
}

/// The parts of the victim's segment that this process can map writable.
fn guest() {
    become_undumpable();
    let line = told().expect("the victim");
    let numbers: Vec<usize> = line.split(' ').map(|word| word.parse().expect("a number")).collect();
    let [pid, buffer, canary] = numbers[..] else { panic!("{line}") };
    has_no_rights(pid as i32, canary);
    let files = hello(pid as i32);
    let mut writable: Vec<(*mut u64, usize)> = Vec::new();
    for file in &files {
        let mapped = map_somehow(file);
        let name = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).expect("a name");
        say(&format!("{}: {}", name.display(), if mapped.is_some() { "yes" } else { "no" }));
        writable.extend(mapped);
    }
    while let Some(line) = told() {
        let mut changed = 0;
        for (place, words) in &writable {
            let read = |at: usize| {
                // SAFETY: the word lies in a mapping that lives until the process ends.
                (at < *words).then(|| unsafe { place.add(at).read_volatile() as usize })
            };
            for at in 0..*words {
                let value = if line == "scribble" {
                    (at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
                } else if read(at) != Some(buffer) {
                    continue;
                } else if read(at + 1) == Some(AREA) && read(at + 2) == Some(buffer) {
                    // The address by which peers name a region, then its length and its place.
                    continue;
                } else {
                    canary as u64
                };
                // SAFETY: the word lies in a mapping that lives until the process ends.
                unsafe { place.add(at).write_volatile(value) };
                changed += 1;
            }
        }
        say(&format!("{changed} words changed"));
    }
    std::process::exit(0);
}

/// The system refuses this process the memory of the victim.
fn has_no_rights(pid: i32, address: usize) {
    let mut byte = 0_u8;
    let here = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let there = libc::iovec { iov_base: ptr::without_provenance_mut(address), iov_len: 1 };
    // SAFETY: the local byte is on the stack; the other process's memory is read, at most.
    let read = unsafe { libc::process_vm_readv(pid, &raw const here, 1, &raw const there, 1, 0) };
    assert_eq!((read, std::io::Error::last_os_error().raw_os_error()), (-1, Some(libc::EPERM)));
    let opened = std::fs::File::open(format!("/proc/{pid}/mem"));
    assert_eq!(opened.err().and_then(|error| error.raw_os_error()), Some(libc::EACCES));
}

/// Connects to the process's sockets until one welcomes it; returns all descriptors that come.
fn hello(pid: i32) -> Vec<OwnedFd> {
    let beginning = format!("@soft-rnic/{}/", std::env::var("SOFT_RNIC_FABRIC").expect("a fabric"));
    let table = std::fs::read_to_string("/proc/net/unix").expect("/proc");
    let names = table.lines().filter_map(|line| line.split_ascii_whitespace().nth(7));
    for name in names.filter(|name| name.starts_with(&beginning)) {
        // An owner answers another version with its own.
        let mut version = 0;
        for _ in 0..2 {
            let Some((reply, files)) = greet(name, pid, version) else { break };
            if reply.first() == Some(&1) {
                return files;
            }
            let Some(own) = reply.get(9..17) else { break };
            version = u64::from_le_bytes(own.try_into().expect("eight bytes"));
        }
    }
    panic!("process {pid} welcomes nobody: {table}");
}

/// Says hello, and returns the answer and the descriptors. The connection stays open. `None` if
/// another process listens there.
fn greet(name: &str, pid: i32, version: u64) -> Option<(Vec<u8>, Vec<OwnedFd>)> {
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .expect("a socket");
    let address = SocketAddrUnix::new_abstract_name(&name.as_bytes()[1..]).expect("a name");
    rustix::net::connect(&socket, &address).ok()?;
    let owner = rustix::net::sockopt::socket_peercred(&socket).expect("a process");
    if owner.pid.as_raw_nonzero().get() != pid {
        return None;
    }
    let hello = [&[1], &b"softrnic"[..], &version.to_le_bytes(), &[7; 16]].concat();
    rustix::net::send(&socket, &hello, SendFlags::NOSIGNAL).ok()?;
    let mut reply = vec![0; 32 << 10];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut pieces = [IoSliceMut::new(&mut reply)];
    let received = rustix::net::recvmsg(&socket, &mut pieces, &mut control, RecvFlags::CMSG_CLOEXEC).ok()?;
    reply.truncate(received.bytes);
    let messages = control.drain();
    let files = messages.filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(files) => Some(files),
        _ => None,
    });
    let files = files.flatten().collect();
    // The owner forgets a peer whose connection ends.
    std::mem::forget(socket);
    Some((reply, files))
}

/// Maps a file writable, if the system allows it: as it came, opened again, and by `mprotect`.
fn map_somehow(file: &OwnedFd) -> Option<(*mut u64, usize)> {
    let bytes = rustix::fs::fstat(file).expect("a file").st_size as usize;
    let writable = ProtFlags::READ | ProtFlags::WRITE;
    let map = |file: &OwnedFd, rights| {
        // SAFETY: a new mapping at an address that the system chooses replaces no other.
        unsafe { rustix::mm::mmap(ptr::null_mut(), bytes, rights, MapFlags::SHARED, file.as_fd(), 0) }.ok()
    };
    let again = |access| {
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        rustix::fs::open(path, access | OFlags::CLOEXEC, Mode::empty()).ok()
    };
    let protected = |file: &OwnedFd| {
        let place = map(file, ProtFlags::READ)?;
        let rights = rustix::mm::MprotectFlags::READ | rustix::mm::MprotectFlags::WRITE;
        // SAFETY: nobody refers to the mapping.
        unsafe { rustix::mm::mprotect(place, bytes, rights) }.is_ok().then_some(place)
    };
    let reopened = [OFlags::RDWR, OFlags::RDONLY].into_iter().filter_map(again);
    let files: Vec<OwnedFd> = reopened.chain(file.try_clone()).collect();
    let mapped = files.iter().find_map(|file| map(file, writable).or_else(|| protected(file)))?;
    Some((mapped.cast(), bytes / size_of::<u64>()))
}
