//! SENDs of one list by `process_vm_writev`: one call copies them, and their receives complete in
//! order. A sender that dies or stops during the call holds several receives.

use libtest_mimic::Trial;
use rdma_mummy_sys::types::*;
use rustix::process::Signal;

use crate::copies::{meet, on_copies, post_mixed, statuses, traffic};
use crate::kit::{QpAddress, dereg, until};
use crate::partner::{PATIENCE, RECEIVES, TIMING, TestEndpoint};
use crate::role::{self, ChildRole, say, told};

const SUCCESS: ibv_wc_status = ibv_wc_status::IBV_WC_SUCCESS;
const FLUSHED: ibv_wc_status = ibv_wc_status::IBV_WC_WR_FLUSH_ERR;
const SEND: ibv_wr_opcode = ibv_wr_opcode::IBV_WR_SEND;
const WRITE: ibv_wr_opcode = ibv_wr_opcode::IBV_WR_RDMA_WRITE;
const PAGE: usize = 4096;
/// The time that a revoking call waits, in milliseconds.
const BOUND: &str = "80";

pub(crate) fn trials() -> Vec<Trial> {
    [
        ("a_list_is_moved_in_one_call", "list partner"),
        ("a_list_to_a_shared_queue_is_moved_in_one_call", "list partner shared"),
        ("those_without_a_receive_wait", "wait partner"),
        ("those_without_a_receive_of_a_shared_queue_wait", "wait partner shared"),
        ("what_does_not_fit_fails_alone", "hole partner"),
        ("what_does_not_fit_a_shared_queue_fails_alone", "hole partner shared"),
        ("a_way_that_is_closed_gives_all_receives_back", "closed partner"),
        ("a_way_that_is_closed_gives_all_of_a_shared_queue_back", "closed partner shared"),
        ("writes_go_along_before_them_and_not_behind", "mixed partner"),
        ("who_dies_in_the_call_leaves_all_receives", "dead"),
        ("who_stops_in_the_call_holds_its_receives", "stopped"),
    ]
    .map(|(name, role)| {
        let variables = [("SOFT_RNIC_PATH", "vm"), ("SOFT_RNIC_REVOKE_MS", BOUND)];
        Trial::test(format!("sends::{name}"), move || role::run(&format!("sends {role}"), &variables))
    })
    .into()
}

pub(crate) fn play(arguments: &[String]) {
    let partner = arguments[1..].join(" ");
    match arguments[0].as_str() {
        "list" => list(&partner),
        "wait" => wait(&partner),
        "hole" => hole(&partner),
        "closed" => closed(&partner),
        "mixed" => mixed(&partner),
        "doomed" => doomed(&arguments[1]),
        fate => interrupted(fate),
    }
}

/// The number, status and length of the partner's next receive.
fn received(partner: &mut ChildRole) -> String {
    partner.tell("poll");
    partner.hear()
}

/// A byte of the partner's memory.
fn byte(partner: &mut ChildRole, at: usize) -> u8 {
    partner.tell(&format!("byte {at}"));
    partner.hear().parse().expect("a byte")
}

/// Requests of decreasing length. The receives share one memory, so a part of each message stays
/// visible after the next one.
const SENDS: [(ibv_wr_opcode, usize, usize); 4] =
    [(SEND, 50_000, 20_000), (SEND, 30_000, 5000), (SEND, 20_001, 3000), (SEND, 10_000, 257)];

fn list(partner: &str) {
    let (side, mut partner, to) = meet(partner);
    for ((_, at, length), byte) in SENDS.into_iter().zip(1..) {
        side.memory.fill_part(at, length, byte);
    }
    let before = traffic();
    post_mixed(&side, &to, &SENDS);
    assert_eq!(statuses(&side, 4), [0, 1, 2, 3].map(|id| (id, SUCCESS)));
    let after = traffic();
    assert_eq!(after.vm.messages - before.vm.messages, 4);
    assert_eq!(after.vm.bytes - before.vm.bytes, 28_257);
    assert_eq!(after.vm_calls - before.vm_calls, 1);
    for (id, (_, _, length)) in SENDS.into_iter().enumerate() {
        assert_eq!(received(&mut partner), format!("{id} 0 {length}"));
    }
    for (at, sent) in [(0, 4), (256, 4), (257, 3), (2999, 3), (3000, 2), (4999, 2), (5000, 1), (19_999, 1)] {
        assert_eq!(byte(&mut partner, at), sent, "at {at}");
    }
    assert_eq!(byte(&mut partner, 20_000), 0x11, "behind the longest");
    side.close();
    partner.finish();
}

fn wait(partner: &str) {
    let (side, mut partner, to) = meet(partner);
    let before = traffic();
    post_mixed(&side, &to, &[(SEND, 0, 300); 6]);
    assert_eq!(statuses(&side, 4), [0, 1, 2, 3].map(|id| (id, SUCCESS)));
    let after = traffic();
    assert_eq!((after.vm.messages - before.vm.messages, after.vm_calls - before.vm_calls), (4, 1));
    assert!(side.cq.poll().is_none(), "more than four receives completed");
    for id in 4..6 {
        partner.tell("receive");
        assert_eq!(partner.hear(), "done");
        assert_eq!(statuses(&side, 1), [(id, SUCCESS)]);
    }
    assert_eq!(traffic().vm.messages - before.vm.messages, 6);
    for id in [0, 1, 2, 3, 9, 9] {
        assert_eq!(received(&mut partner), format!("{id} 0 300"));
    }
    side.close();
    partner.finish();
}

/// The second message's receive includes an unmapped page.
fn hole(partner: &str) {
    let (side, mut partner, to) = meet(partner);
    partner.tell("hole");
    assert_eq!(partner.hear(), "done");
    side.memory.fill(0x22);
    let before = traffic();
    post_mixed(&side, &to, &[(SEND, 0, 300), (SEND, 0, 12 * PAGE), (SEND, 0, 300)]);
    let failed = ibv_wc_status::IBV_WC_REM_OP_ERR;
    assert_eq!(statuses(&side, 3), [(0, SUCCESS), (1, failed), (2, FLUSHED)]);
    assert_eq!(traffic().vm.messages - before.vm.messages, 1);
    assert_eq!(received(&mut partner), "0 0 300");
    side.close();
    partner.finish();
}

/// All receives are claimed when the system refuses the copy. The next data path delivers them, the
/// first one first.
fn closed(partner: &str) {
    let (side, mut partner, to) = meet(partner);
    on_copies(libc::SECCOMP_RET_ERRNO | libc::EPERM as u32);
    let before = traffic();
    post_mixed(&side, &to, &SENDS);
    assert_eq!(statuses(&side, 4), [0, 1, 2, 3].map(|id| (id, SUCCESS)));
    let after = traffic();
    assert_eq!((after.vm.messages, after.call.messages), (before.vm.messages, before.call.messages + 4));
    for (id, (_, _, length)) in SENDS.into_iter().enumerate() {
        assert_eq!(received(&mut partner), format!("{id} 0 {length}"));
    }
    side.close();
    partner.finish();
}

fn mixed(partner: &str) {
    let (side, mut partner, to) = meet(partner);
    side.memory.fill(0x22);
    let before = traffic();
    let requests = [
        (WRITE, 20 * PAGE, PAGE),
        (WRITE, 22 * PAGE, 100),
        (SEND, 0, 300),
        (SEND, 0, 5000),
        (WRITE, 23 * PAGE, 100),
        (SEND, 0, 64),
        (SEND, 0, 400),
    ];
    post_mixed(&side, &to, &requests);
    assert_eq!(statuses(&side, 7), [0, 1, 2, 3, 4, 5, 6].map(|id| (id, SUCCESS)));
    let after = traffic();
    assert_eq!(after.vm.messages - before.vm.messages, 6);
    assert_eq!(after.slot.messages - before.slot.messages, 1);
    // One call each for the WRITEs and SENDs at the front, for the WRITE, and for the last SEND.
    // Elsewhere the body and the tail of a WRITE take one call each.
    let calls = if cfg!(target_arch = "x86_64") { 3 } else { 8 };
    assert_eq!(after.vm_calls - before.vm_calls, calls);
    for (id, length) in [300, 5000, 64, 400].into_iter().enumerate() {
        assert_eq!(received(&mut partner), format!("{id} 0 {length}"));
    }
    for at in [20 * PAGE, 21 * PAGE - 1, 22 * PAGE + 99, 23 * PAGE, 4999] {
        assert_eq!(byte(&mut partner, at), 0x22, "at {at}");
    }
    assert_eq!(byte(&mut partner, 22 * PAGE + 100), 0x11);
    side.close();
    partner.finish();
}

/// The role that posts a list, and is killed or stopped during its copy.
fn doomed(fate: &str) {
    let side = TestEndpoint::new();
    say(&side.address().to_string());
    let to: QpAddress = told().expect("a line").parse().expect("an address");
    side.qp.connect(&to, TIMING);
    say("ready");
    assert_eq!(told().as_deref(), Some("go"));
    assert_eq!(side.run(WRITE, &to), SUCCESS);
    if fate == "dead" {
        on_copies(libc::SECCOMP_RET_KILL_PROCESS);
    } else {
        extern "C" fn stop(_: libc::c_int) {
            // SAFETY: stopping this process accesses no memory.
            unsafe { libc::raise(libc::SIGSTOP) };
        }
        // SAFETY: the handler only makes a system call that is safe in signal handlers.
        unsafe { libc::signal(libc::SIGSYS, stop as extern "C" fn(libc::c_int) as libc::sighandler_t) };
        on_copies(libc::SECCOMP_RET_TRAP);
    }
    post_mixed(&side, &to, &[(SEND, 0, 300); 3]);
    panic!("the call has returned");
}

fn interrupted(fate: &str) {
    let mut sender = ChildRole::start(&format!("sends doomed {fate}"), &[]);
    let mut side = TestEndpoint::new();
    let to: QpAddress = sender.hear().parse().expect("an address");
    side.qp.connect(&to, TIMING);
    sender.tell(&side.address().to_string());
    assert_eq!(sender.hear(), "ready");
    sender.tell("go");
    if fate == "stopped" {
        sender.wait_stopped();
        assert_eq!(dereg(side.mr), libc::EBUSY, "the stopped sender may still copy");
        assert_eq!(side.qp.modify(ibv_qp_state::IBV_QPS_ERR), 0);
        assert!(side.cq.poll().is_none(), "the stopped sender holds the first receive");
        sender.signal(Signal::KILL);
    }
    sender.wait_dead();
    if fate == "dead" {
        assert!(side.cq.poll().is_none(), "nothing has come");
        assert_eq!(side.qp.modify(ibv_qp_state::IBV_QPS_ERR), 0);
    }
    // The receives that the sender had claimed come back in order.
    for id in 0..RECEIVES {
        let wc = until("a flushed receive", PATIENCE, || side.cq.poll());
        assert_eq!((wc.wr_id, wc.status), (id, FLUSHED));
    }
    assert!(side.cq.poll().is_none());
    assert_eq!(
        dereg(std::mem::replace(&mut side.mr, std::ptr::null_mut())),
        0,
        "a dead sender holds no memory"
    );
    side.close();
}
