//! The owner of memory hangs while it moves bytes for a peer. The memory's pages are missing, and
//! the test supplies them later (`man userfaultfd`). Until then the owner's service thread hangs in
//! the middle of the copy, as on a page that must come from a slow disk.

use std::ffi::c_ulong;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::ptr;
use std::time::{Duration, Instant};

use libtest_mimic::{Completion, Trial};
use rdma_mummy_sys::types::*;

use crate::kit::{QpAddress, TestCq, TestDevice, TestMemory, TestQp, Timing, dereg, rkey, until};
use crate::role::{self, ChildRole, say, told};

const PATIENCE: Duration = Duration::from_secs(20);
const RECEIVES: u64 = 3;
/// The size of a message and of a receive, in bytes: several pages, and more than goes without the
/// owner's help.
const ROOM: usize = 40_960;
const VALUE: u8 = 0x11;
/// A requester that gives up while the owner hangs, and one that does not.
const HASTY: Timing = Timing { timeout: 10, retry_cnt: 2 };
const PATIENT: Timing = Timing { timeout: 19, retry_cnt: 7 };

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for operation in ["write", "send", "add"] {
        for (how, name) in [
            ("late", "is_waited_for_and_done_once"),
            ("never", "is_given_up_and_done_once_at_most"),
            ("closed", "keeps_its_memory_until_then"),
        ] {
            let name = format!("stuck::what_has_begun_{name}_{operation}");
            trials.push(Trial::ignorable_test(name, move || {
                if let Err(error) = user_fault_file() {
                    return Ok(Completion::ignored_with(format!(
                        "userfaultfd is not available here: {error}"
                    )));
                }
                let variables = [("SOFT_RNIC_PATH", "call"), ("SOFT_RNIC_REVOKE_MS", "50")];
                role::run(&format!("stuck {operation} {how}"), &variables).map(|()| Completion::Completed)
            }));
        }
    }
    trials
}

fn opcode(operation: &str) -> ibv_wr_opcode {
    match operation {
        "write" => ibv_wr_opcode::IBV_WR_RDMA_WRITE,
        "send" => ibv_wr_opcode::IBV_WR_SEND,
        "add" => ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD,
        other => panic!("unknown operation {other}"),
    }
}

/// Memory whose pages are missing: a thread that touches one waits.
struct UnmappedPages {
    file: File,
    memory: TestMemory,
}

/// Structs and numbers of `linux/userfaultfd.h`.
mod abi {
    use std::ffi::c_ulong;

    pub(super) const USER_MODE_ONLY: i32 = 1;
    pub(super) const API: c_ulong = 0xc018_aa3f;
    pub(super) const REGISTER: c_ulong = 0xc020_aa00;
    pub(super) const ZEROPAGE: c_ulong = 0xc020_aa04;
    pub(super) const VERSION: u64 = 0xaa;
    pub(super) const MISSING: u64 = 1;
}

/// Opens a userfaultfd, which reports touched pages; a sandbox may forbid it.
fn user_fault_file() -> std::io::Result<File> {
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK | abi::USER_MODE_ONLY;
    // SAFETY: the call accesses no memory.
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
    if fd < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: the descriptor was opened just now, and nobody else has it.
    Ok(unsafe { File::from_raw_fd(fd as i32) })
}

impl UnmappedPages {
    /// Removes the pages, with their contents.
    fn new(memory: TestMemory) -> Self {
        let file = user_fault_file().expect("userfaultfd was available when the test began");
        let absent = Self { file, memory };
        absent.control(abi::API, &mut [abi::VERSION, 0, 0]);
        // SAFETY: these are whole pages of this process, which have no references.
        assert_eq!(unsafe { libc::madvise(memory.base.cast(), memory.len, libc::MADV_DONTNEED) }, 0);
        absent.control(abi::REGISTER, &mut [absent.start(), memory.len as u64, abi::MISSING, 0]);
        absent
    }

    fn start(&self) -> u64 {
        self.memory.base.expose_provenance() as u64
    }

    fn control(&self, number: c_ulong, argument: &mut [u64]) {
        // SAFETY: each of these requests reads and writes at most as many words as `argument` has.
        let result = unsafe { libc::ioctl(self.file.as_raw_fd(), number as _, argument.as_mut_ptr()) };
        assert_eq!(result, 0, "userfaultfd: {}", std::io::Error::last_os_error());
    }

    /// Waits until a thread waits for a page.
    fn wait_for_touch(&self) {
        let mut file = libc::pollfd { fd: self.file.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: the array has one entry.
        let ready = unsafe { libc::poll(&raw mut file, 1, PATIENCE.as_millis() as i32) };
        assert_eq!((ready, file.revents), (1, libc::POLLIN), "no thread touched the memory in time");
    }

    /// Supplies the pages, filled with zeros.
    fn come(&self) {
        self.control(abi::ZEROPAGE, &mut [self.start(), self.memory.len as u64, 0, 0]);
    }
}

struct StuckEndpoint {
    device: TestDevice,
    memory: TestMemory,
    mr: *mut ibv_mr,
    cq: TestCq,
}

impl StuckEndpoint {
    fn new() -> Self {
        let device = TestDevice::open();
        let memory = TestMemory::private(ROOM * RECEIVES as usize);
        let (mr, cq) = (memory.register(device), device.cq(64, ptr::null_mut()));
        Self { device, memory, mr, cq }
    }

    fn qp(&self) -> TestQp {
        let qp = self.device.qp(ibv_qp_type::IBV_QPT_RC, self.cq, ptr::null_mut(), 8);
        qp.init();
        qp
    }

    fn address(&self, qp: TestQp) -> QpAddress {
        // SAFETY: a GID is plain bytes.
        let gid = unsafe { self.device.gid().raw };
        QpAddress { qpn: qp.number(), gid, addr: self.memory.base.addr() as u64, rkey: rkey(self.mr) }
    }

    fn receives(&self, qp: TestQp) {
        for id in 0..RECEIVES {
            assert_eq!(qp.receive(id, self.memory.sge(self.mr, id as usize * ROOM, ROOM)), 0);
        }
    }

    fn word(&self) -> u64 {
        u64::from_ne_bytes(std::array::from_fn(|at| self.memory.byte(at)))
    }

    /// Checks that this is the only completion.
    fn only(&self, id: u64, status: ibv_wc_status) {
        let wc = self.cq.one("a completion", PATIENCE);
        assert_eq!((wc.wr_id, wc.status), (id, status));
        assert!(self.cq.poll().is_none(), "more than one completion");
    }

    fn close(self) {
        assert_eq!(dereg(self.mr), 0);
        self.close_without_region();
    }

    fn close_without_region(self) {
        self.cq.destroy();
        self.memory.free();
        self.device.close();
    }
}

/// The owner role: owns the memory.
pub(crate) fn owner(arguments: &[String]) {
    let [operation, how] = arguments else { panic!("two arguments") };
    let (end, sends) = (StuckEndpoint::new(), operation == "send");
    let qp = end.qp();
    end.receives(qp);
    let absent = UnmappedPages::new(end.memory);
    say(&end.address(qp).to_string());
    qp.connect(&told().expect("a line").parse().expect("an address"), PATIENT);
    say("ready");
    absent.wait_for_touch();
    say("begun");
    assert_eq!(told().as_deref(), Some("go"));
    // This thread does not hang, because only the service thread does.
    assert!(end.cq.poll().is_none(), "a partial message completed");
    match how.as_str() {
        "closed" => {
            assert_eq!(dereg(end.mr), libc::EBUSY, "a peer writes there");
            assert_eq!(qp.destroy(), libc::EBUSY, "a peer writes through this queue pair");
            absent.come();
            until("the end of the peer's write", PATIENCE, || (dereg(end.mr) == 0).then_some(()));
            end.memory.fill(0);
            assert_eq!(qp.destroy(), 0);
            say("gone");
            assert_eq!(told(), None);
            assert_eq!(end.memory.differs(0), None, "a peer wrote after the deregistration");
            return end.close_without_region();
        }
        "never" => {
            assert_eq!(qp.modify(ibv_qp_state::IBV_QPS_ERR), 0);
            assert!(
                !sends || end.cq.poll().is_none(),
                "the flush waits for the receive that is being filled"
            );
            absent.come();
            for id in 0..RECEIVES {
                let wc = end.cq.one("a flushed receive", PATIENCE);
                assert_eq!((wc.wr_id, wc.status), (id, ibv_wc_status::IBV_WC_WR_FLUSH_ERR));
            }
            assert_eq!(qp.destroy(), 0);
            // The operation finishes, even if no requester waits for it.
            match operation.as_str() {
                "add" => until("the sum", PATIENCE, || (end.word() == 1).then_some(())),
                _ => until("the bytes", PATIENCE, || (end.memory.byte(ROOM - 1) == VALUE).then_some(())),
            }
            end.memory.fill(0);
            let another = end.qp();
            end.receives(another);
            say(&end.address(another).to_string());
            another.connect(&told().expect("a line").parse().expect("an address"), PATIENT);
            say("ready");
            finish(&end, another, sends, 1);
        }
        _ => {
            absent.come();
            finish(&end, qp, sends, 2);
        }
    }
    end.close();
}

/// Checks that each of the peer's operations took effect exactly once.
fn finish(end: &StuckEndpoint, qp: TestQp, sends: bool, times: u64) {
    assert_eq!(told().as_deref(), Some("done"));
    if sends {
        for id in 0..times {
            let wc = end.cq.one("a message", PATIENCE);
            let success = ibv_wc_status::IBV_WC_SUCCESS;
            assert_eq!((wc.wr_id, wc.status, wc.byte_len as usize), (id, success, ROOM));
            assert_eq!(end.memory.part_differs(id as usize * ROOM, ROOM, VALUE), None);
        }
        assert!(end.cq.poll().is_none(), "no message came twice");
    }
    say(&if sends { 0 } else { end.word() }.to_string());
    assert_eq!(told(), None);
    assert_eq!(qp.destroy(), 0);
}

/// The requester role: starts the operation.
pub(crate) fn requester(arguments: &[String]) {
    let [operation, how] = arguments else { panic!("two arguments") };
    let (opcode, end) = (opcode(operation), StuckEndpoint::new());
    let success = ibv_wc_status::IBV_WC_SUCCESS;
    end.memory.fill(VALUE);
    let sge = end.memory.sge(end.mr, 0, if operation == "add" { 8 } else { ROOM });
    let mut owner = ChildRole::start(&format!("stuck-owner {operation} {how}"), &[]);
    let to: QpAddress = owner.hear().parse().expect("an address");
    let qp = end.qp();
    owner.tell(&end.address(qp).to_string());
    qp.connect(&to, if how == "late" { PATIENT } else { HASTY });
    assert_eq!(owner.hear(), "ready");
    assert_eq!(qp.post(1, opcode, sge, &to, ptr::null_mut()), 0);
    assert_eq!(owner.hear(), "begun");
    if how == "late" {
        let tried_again = Instant::now() + Duration::from_millis(100);
        while Instant::now() < tried_again {
            assert!(end.cq.poll().is_none(), "the request completed");
            std::thread::sleep(Duration::from_millis(1));
        }
        owner.tell("go");
        end.only(1, success);
        assert_eq!(qp.post(2, opcode, sge, &to, ptr::null_mut()), 0);
        end.only(2, success);
        assert_eq!(result(&mut owner), expected(operation, 2));
        assert_eq!(qp.destroy(), 0);
    } else {
        end.only(1, ibv_wc_status::IBV_WC_RETRY_EXC_ERR);
        assert_eq!(qp.destroy(), 0, "the requester does not hang");
        owner.tell("go");
    }
    if how == "closed" {
        assert_eq!(owner.hear(), "gone");
    }
    if how == "never" {
        let to: QpAddress = owner.hear().parse().expect("an address");
        let another = end.qp();
        owner.tell(&end.address(another).to_string());
        another.connect(&to, PATIENT);
        assert_eq!(owner.hear(), "ready");
        assert_eq!(another.post(2, opcode, sge, &to, ptr::null_mut()), 0);
        end.only(2, success);
        assert_eq!(result(&mut owner), expected(operation, 1));
        assert_eq!(another.destroy(), 0);
    }
    owner.finish();
    end.close();
}

fn result(owner: &mut ChildRole) -> String {
    owner.tell("done");
    owner.hear()
}

/// The expected first word of the owner's memory.
fn expected(operation: &str, times: u64) -> String {
    match operation {
        "add" => times.to_string(),
        "write" => u64::from_ne_bytes([VALUE; 8]).to_string(),
        _ => "0".to_owned(),
    }
}
