//! Peers that are kept apart: processes of other users and user namespaces, and forked children.

use std::process::Command;
use std::ptr;
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use rdma_mummy_sys::types::*;
use rustix::process::Signal;

use crate::captured_log::{keep_log, logged};
use crate::kit::{QpAddress, dereg, lib};
use crate::partner::{TIMING, TestEndpoint, meet};
use crate::rights::{become_nobody, no_user_namespaces, not_root, trial_unless};
use crate::role::{self, ChildRole};
use crate::soak::Resources;

pub(crate) fn trials() -> Vec<Trial> {
    let role = |name: &'static str, role: &'static str| {
        let role = format!("users {role}");
        Trial::test(format!("users::{name}"), move || role::run(&role, &[]))
    };
    vec![
        trial_unless("users::another_user_is_unreachable", not_root, || {
            ["here", "there"].iter().try_for_each(|who| role::run(&format!("users {who}"), &[]))
        }),
        trial_unless("users::memory_of_another_user_namespace_is_asked_for", no_user_namespaces, || {
            role::run("users namespace", &[])
        }),
        role("a_forked_child_is_shut_out", "fork"),
        role("a_killed_parent_is_dead_although_its_child_lives", "orphan"),
    ]
}

pub(crate) fn play(case: &str) {
    match case {
        "here" | "there" => foreign(case),
        "namespace" => namespace(),
        "fork" => fork(),
        _ => orphan(),
    }
}

fn foreign(who: &str) {
    let partner = ChildRole::start(if who == "there" { "partner nobody" } else { "partner" }, &[]);
    if who == "here" {
        become_nobody();
    }
    let before = Resources::now();
    let (side, mut partner, to) = meet(partner);
    side.memory.fill(0x44);
    assert_eq!(side.run(ibv_wr_opcode::IBV_WR_RDMA_WRITE, &to), ibv_wc_status::IBV_WC_RETRY_EXC_ERR);
    partner.tell("look");
    assert_eq!(partner.hear(), "51", "nothing came");
    partner.tell("write");
    assert_eq!(partner.hear(), ibv_wc_status::IBV_WC_RETRY_EXC_ERR.0.to_string());
    assert_eq!(side.memory.differs(0x44), None, "nothing came");
    side.close();
    before.settle().expect("a stranger leaves nothing");
    if who == "here" {
        // The partner belongs to another user, so this process cannot kill it; it ends by itself.
        std::mem::forget(partner);
    }
}

fn namespace() {
    keep_log();
    let mut command = Command::new("unshare");
    command.args(["-U", "-r"]).arg(std::env::current_exe().expect("this program"));
    let (side, mut partner, to) = meet(ChildRole::with(command, "partner", &[]));
    for byte in [0x51, 0x52] {
        side.memory.fill(byte);
        assert_eq!(side.run(ibv_wr_opcode::IBV_WR_RDMA_WRITE, &to), ibv_wc_status::IBV_WC_SUCCESS);
        partner.tell("look");
        assert_eq!(partner.hear(), byte.to_string());
    }
    side.memory.fill(0x53);
    assert_eq!(side.run(ibv_wr_opcode::IBV_WR_SEND, &to), ibv_wc_status::IBV_WC_SUCCESS);
    partner.tell("look");
    assert_eq!(partner.hear(), 0x53.to_string());
    side.memory.fill(0);
    assert_eq!(side.run(ibv_wr_opcode::IBV_WR_RDMA_READ, &to), ibv_wc_status::IBV_WC_SUCCESS);
    assert_eq!(side.memory.differs(0x53), None, "what was read");
    partner.tell("write");
    assert_eq!(partner.hear(), "0");
    let lines = logged();
    let slower = lines.iter().filter(|line| line.contains("slower path")).count();
    // A privileged process may copy from a user namespace below its own, but not the reverse.
    assert!(slower <= 1, "{lines:?}");
    assert!(lines.len() == slower, "{lines:?}");
    side.close();
    partner.finish();
}

fn fork() {
    let (side, other) = (TestEndpoint::new(), TestEndpoint::new());
    side.qp.connect(&other.address(), TIMING);
    other.qp.connect(&side.address(), TIMING);
    let to = other.address();
    assert_eq!(side.run(ibv_wr_opcode::IBV_WR_RDMA_WRITE, &to), ibv_wc_status::IBV_WC_SUCCESS);
    // SAFETY: this process has threads, but the child uses none of their locks, because its calls
    // fail at once.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let failures = shut_out(&side, &to);
        for failure in &failures {
            eprintln!("in a forked child, {failure}");
        }
        // SAFETY: the child ends here.
        unsafe { libc::_exit(failures.len() as i32) };
    }
    let mut status = 0;
    // SAFETY: `child` is a child of this process.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the child's calls fail with EIO");
    for opcode in [ibv_wr_opcode::IBV_WR_RDMA_WRITE, ibv_wr_opcode::IBV_WR_SEND] {
        assert_eq!(
            side.run(opcode, &to),
            ibv_wc_status::IBV_WC_SUCCESS,
            "the parent's connection still works"
        );
    }
    side.close();
    other.close();
}

/// The calls that do not fail with `EIO` in a forked child.
fn shut_out(side: &TestEndpoint, to: &QpAddress) -> Vec<String> {
    let mut failures = Vec::new();
    let mut expect = |what: &str, error: i32| {
        if error != libc::EIO {
            failures.push(format!("{what} gives {error}"));
        }
    };
    let errno = || std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
    let sge = ibv_sge::default();
    expect("ibv_post_send", side.qp.post(1, ibv_wr_opcode::IBV_WR_RDMA_WRITE, sge, to, ptr::null_mut()));
    expect("ibv_post_recv", side.qp.receive(1, sge));
    expect("ibv_modify_qp", side.qp.modify(ibv_qp_state::IBV_QPS_ERR));
    expect("ibv_destroy_qp", side.qp.destroy());
    expect("ibv_dereg_mr", dereg(side.mr));
    let made = side.device.try_qp(ibv_qp_type::IBV_QPT_RC, side.cq, ptr::null_mut(), 1);
    expect("ibv_create_qp", made.err().and_then(|error| error.raw_os_error()).unwrap_or(0));
    // SAFETY: the parent owns the context, and has not closed it.
    unsafe {
        let context = side.device.context;
        let cq = (lib().ibv_create_cq)(context, 1, ptr::null_mut(), ptr::null_mut(), 0);
        expect("ibv_create_cq", if cq.is_null() { errno() } else { 0 });
        let pd = (lib().ibv_alloc_pd)(context);
        expect("ibv_alloc_pd", if pd.is_null() { errno() } else { 0 });
        expect("ibv_destroy_cq", (lib().ibv_destroy_cq)(side.cq.0));
    }
    failures
}

fn orphan() {
    let (side, mut partner, to) = meet(ChildRole::start("partner parent", &[]));
    assert_eq!(side.run(ibv_wr_opcode::IBV_WR_SEND, &to), ibv_wc_status::IBV_WC_SUCCESS);
    partner.tell("write");
    assert_eq!(partner.hear(), "0");
    partner.signal(Signal::KILL);
    partner.wait_dead();
    let begin = Instant::now();
    assert_eq!(side.run(ibv_wr_opcode::IBV_WR_SEND, &to), ibv_wc_status::IBV_WC_RETRY_EXC_ERR);
    assert!(begin.elapsed() < Duration::from_secs(2), "not when the child has ended: {:?}", begin.elapsed());
    side.close();
}
