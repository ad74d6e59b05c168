//! The data path by `process_vm_writev` and `process_vm_readv`. Requests that are posted together
//! are copied together; a failure in the middle fails only its request; a path that the system
//! forbids is replaced by the next one.

use std::ptr;

use libtest_mimic::Trial;
use rdma_mummy_sys::types::*;
use rdma_mummy_sys::verbs;
use soft_rnic::status::Traffic;

use crate::captured_log::{keep_log, logged};
use crate::kit::{QpAddress, TestMemory, dereg, until};
use crate::partner::{self, LEN, LONG, PATIENCE, TAIL, TestEndpoint};
use crate::role::{self, ChildRole};

const SUCCESS: ibv_wc_status = ibv_wc_status::IBV_WC_SUCCESS;
const WRITE: ibv_wr_opcode = ibv_wr_opcode::IBV_WR_RDMA_WRITE;
const READ: ibv_wr_opcode = ibv_wr_opcode::IBV_WR_RDMA_READ;
const PAGE: usize = 4096;

pub(crate) fn trials() -> Vec<Trial> {
    let long = ["vm", "call"].map(|path| {
        Trial::test(format!("copies::the_longest_message_is_moved_whole_{path}"), move || {
            role::run("copies long", &[("SOFT_RNIC_PATH", path)])
        })
    });
    let mut trials: Vec<_> = [
        ("a_list_is_moved_in_one_call", "list"),
        ("what_fails_in_the_midst_of_a_list_fails_alone", "hole"),
        ("a_way_that_is_closed_is_left_for_the_next", "closed"),
    ]
    .map(|(name, role)| {
        let role = format!("copies {role}");
        Trial::test(format!("copies::{name}"), move || role::run(&role, &[("SOFT_RNIC_PATH", "vm")]))
    })
    .into();
    trials.extend(long);
    trials
}

pub(crate) fn play(arguments: &[String]) {
    match arguments[0].as_str() {
        "list" => list(),
        "hole" => hole(),
        "long" => long(),
        _ => closed(),
    }
}

/// Connects to a partner, and sends it one message.
pub(crate) fn meet(partner: &str) -> (TestEndpoint, ChildRole, QpAddress) {
    let (side, partner, to) = partner::meet(ChildRole::start(partner, &[("SOFT_RNIC_PATH", "vm")]));
    side.memory.fill(0x11);
    assert_eq!(side.run(WRITE, &to), SUCCESS);
    (side, partner, to)
}

/// The traffic to the partner.
pub(crate) fn traffic() -> Traffic {
    let statistics = soft_rnic::statistics().expect("the device is open");
    let to_others = statistics.peers.into_iter().filter(|peer| peer.pid != Some(std::process::id()));
    to_others.map(|peer| peer.traffic).find(|traffic| traffic.vm.messages > 0).expect("something has gone")
}

/// Posts one list of requests, each from and to the same place (offset, length) of both memories.
fn post_list(side: &TestEndpoint, to: &QpAddress, opcode: ibv_wr_opcode, places: &[(usize, usize)]) {
    post_mixed(side, to, &places.iter().map(|(at, length)| (opcode, *at, *length)).collect::<Vec<_>>());
}

/// Like [`post_list`], with an operation for each request.
pub(crate) fn post_mixed(side: &TestEndpoint, to: &QpAddress, requests: &[(ibv_wr_opcode, usize, usize)]) {
    // SAFETY: the region is live.
    let lkey = unsafe { (*side.mr).lkey };
    let address = |at: usize| side.memory.base.addr() as u64 + at as u64;
    let mut entries: Vec<ibv_sge> = requests
        .iter()
        .map(|(_, at, length)| ibv_sge { addr: address(*at), length: *length as u32, lkey })
        .collect();
    let mut list = vec![ibv_send_wr::default(); requests.len()];
    for (number, (opcode, at, _)) in requests.iter().enumerate() {
        let next = list.get_mut(number + 1).map_or(ptr::null_mut(), ptr::from_mut);
        let wr = &mut list[number];
        (wr.wr_id, wr.opcode, wr.num_sge, wr.next) = (number as u64, *opcode, 1, next);
        wr.sg_list = &raw mut entries[number];
        wr.send_flags = ibv_send_flags::IBV_SEND_SIGNALED.0;
        let remote_addr = to.addr + *at as u64;
        wr.wr.rdma = ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr, rkey: to.rkey };
    }
    let mut bad = ptr::null_mut();
    // SAFETY: the queue pair and the list are live during the call.
    assert_eq!(unsafe { verbs::ibv_post_send(side.qp.0, list.as_mut_ptr(), &raw mut bad) }, 0);
}

/// The numbers and statuses of the next `count` completions.
pub(crate) fn statuses(side: &TestEndpoint, count: usize) -> Vec<(u64, ibv_wc_status)> {
    let next = |_| until("a completion", PATIENCE, || side.cq.poll());
    (0..count).map(next).map(|wc| (wc.wr_id, wc.status)).collect()
}

/// Requests of several lengths and places: some have a tail of 8 bytes, some of one byte.
const PLACES: [(usize, usize); 6] = [
    (0, PAGE),
    (PAGE + 1, 100),
    (3 * PAGE, 1),
    (4 * PAGE, 3 * PAGE + 8),
    (9 * PAGE - 7, 30),
    (50_000, 50_000),
];

fn list() {
    let (side, partner, to) = meet("partner");
    let bytes: usize = PLACES.iter().map(|(_, length)| length).sum();
    let all: Vec<_> = (0..PLACES.len() as u64).map(|number| (number, SUCCESS)).collect();
    for (opcode, here, there) in [(WRITE, 0x22, 0x11), (READ, 0x11, 0x22)] {
        side.memory.fill(here);
        let before = traffic();
        post_list(&side, &to, opcode, &PLACES);
        assert_eq!(statuses(&side, PLACES.len()), all);
        let after = traffic();
        assert_eq!(after.vm.messages - before.vm.messages, PLACES.len() as u64);
        assert_eq!(after.vm.bytes - before.vm.bytes, bytes as u64);
        // On x86-64 the stores of one call are ordered (docs/internals/soft-rnic-ordering.md).
        // Elsewhere body and tail take one call each, and one of the messages is all tail.
        let calls =
            if cfg!(target_arch = "x86_64") || opcode == READ { 1 } else { 2 * PLACES.len() as u64 - 1 };
        assert_eq!(after.vm_calls - before.vm_calls, calls);
        if opcode == WRITE {
            side.memory.fill(0);
            assert_eq!(side.run(READ, &to), SUCCESS);
        }
        // The named ranges have changed, and no byte beside them.
        let mut begin = 0;
        for (at, length) in PLACES {
            let beside = if opcode == WRITE { there } else { here };
            assert_eq!(side.memory.part_differs(begin, at - begin, beside), None, "before {at}");
            assert_eq!(side.memory.part_differs(at, length, 0x22), None, "at {at}");
            begin = at + length;
        }
    }
    side.close();
    partner.finish();
}

fn hole() {
    let (side, mut partner, to) = meet("partner");
    partner.tell("hole");
    assert_eq!(partner.hear(), "done");
    side.memory.fill(0x33);
    let before = traffic();
    // The third request begins before the unmapped page, and ends behind it.
    post_list(&side, &to, WRITE, &[(0, PAGE), (PAGE, 100), (9 * PAGE, 3 * PAGE), (20 * PAGE, 8)]);
    let failed = ibv_wc_status::IBV_WC_REM_OP_ERR;
    let flushed = ibv_wc_status::IBV_WC_WR_FLUSH_ERR;
    assert_eq!(statuses(&side, 4), [(0, SUCCESS), (1, SUCCESS), (2, failed), (3, flushed)]);
    let after = traffic();
    assert_eq!(after.vm.messages - before.vm.messages, 2);
    for (at, byte) in [(0, "51"), (PAGE + 99, "51"), (PAGE + 100, "17"), (20 * PAGE, "17")] {
        partner.tell(&format!("byte {at}"));
        assert_eq!(partner.hear(), byte, "at {at}");
    }
    side.close();
    partner.finish();
}

/// The kernel moves less than 2 GiB in one call.
fn long() {
    let (side, mut partner, _) = partner::meet(ChildRole::start("partner", &[]));
    partner.tell("long");
    let to: QpAddress = partner.hear().parse().expect("an address");
    let memory = TestMemory::folded(LONG + 1);
    let mr = memory.register(side.device);
    let run = |opcode, len: usize| {
        assert_eq!(side.qp.post(8, opcode, memory.sge(mr, 0, len), &to, ptr::null_mut()), 0);
        until("the request", PATIENCE, || side.cq.poll()).status
    };
    memory.fill_part(LONG - TAIL, TAIL, 0x66);
    assert_eq!(run(WRITE, LONG), SUCCESS);
    partner.tell("tail 102");
    assert_eq!(partner.hear(), "None", "the end has come");
    memory.fill_part(LONG - TAIL, TAIL, 0);
    assert_eq!(run(READ, LONG), SUCCESS);
    assert_eq!(memory.part_differs(LONG - TAIL, TAIL, 0x66), None);
    assert_eq!(run(WRITE, LONG + 1), ibv_wc_status::IBV_WC_LOC_LEN_ERR);
    assert_eq!(dereg(mr), 0);
    side.close();
    partner.finish();
}

fn closed() {
    keep_log();
    let (side, partner, to) = meet("partner");
    let before = traffic();
    assert_eq!((before.vm.messages, before.call.messages), (1, 0));
    forbid_copies();
    for (byte, opcode) in [(0x44, WRITE), (0x55, WRITE), (0, READ)] {
        side.memory.fill(byte);
        assert_eq!(side.run(opcode, &to), SUCCESS);
    }
    assert_eq!(side.memory.differs(0x55), None, "what was written and read back");
    let after = traffic();
    assert_eq!((after.vm.messages, after.call.messages), (1, 3));
    let lines = logged();
    assert!(lines.len() == 1 && lines[0].contains("slower path"), "{lines:?}");
    assert_eq!(LEN, side.memory.len);
    side.close();
    partner.finish();
}

/// Makes the system refuse this thread's copies with `EPERM`.
fn forbid_copies() {
    on_copies(libc::SECCOMP_RET_ERRNO | libc::EPERM as u32);
}

/// Installs a seccomp filter that replaces this thread's copies by the action `instead`.
pub(crate) fn on_copies(instead: u32) {
    let statement = |code: u32, k: u32, jt: u8, jf: u8| libc::sock_filter { code: code as u16, jt, jf, k };
    let is = |call: libc::c_long, jt: u8, jf: u8| {
        statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, call as u32, jt, jf)
    };
    let answer = |with: u32| statement(libc::BPF_RET | libc::BPF_K, with, 0, 0);
    let mut filter = [
        // In the filter's input, the system call number comes first.
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        is(libc::SYS_process_vm_writev, 1, 0),
        is(libc::SYS_process_vm_readv, 0, 1),
        answer(instead),
        answer(libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the filter lives during the call, which copies it.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let mode = libc::SECCOMP_MODE_FILTER;
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program), 0);
    }
}
