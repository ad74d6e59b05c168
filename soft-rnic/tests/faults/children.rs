//! Tests that need a separate process: crash points, and device configuration.
//!
//! A child is this test program again. It runs one test that is otherwise ignored.

use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Output, Stdio};

use rdma_mummy_sys::types::*;

use crate::bench::*;

/// The environment variable that marks a child.
pub(crate) const MARK: &str = "SOFT_RNIC_FAULTS_TEST_CHILD";

pub(crate) fn child(test: &str, variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--include-ignored", "--nocapture"]);
    // With one test thread, libtest would print the test's name in front of the child's first line.
    command.arg("--test-threads=2");
    command.env(MARK, "1").env("SOFT_RNIC_FABRIC", format!("faults-child-{}", std::process::id()));
    command
        .envs(variables.iter().copied())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn run(test: &str, variables: &[(&str, &str)]) -> Output {
    child(&format!("children::{test}"), variables).output().unwrap()
}

pub(crate) fn is_child() -> bool {
    std::env::var_os(MARK).is_some()
}

pub(crate) const STEPS: [&str; 8] = [
    "before_mark",
    "before_claim",
    "claimed",
    "before_copy",
    "mid_copy",
    "before_finish",
    "before_announce",
    "before_doorbell",
];

/// Sends one message. The process may die before it completes.
#[test]
#[ignore = "a child process, which other tests start"]
fn sends_a_message() {
    assert!(is_child());
    let (a, b) = pair();
    b.receive(1).unwrap();
    a.write_bytes(&[1; 4096]);
    println!("sending");
    a.send(&b, 2, 4096);
    assert_eq!((a.next().0, b.next().0), (2, 1));
    assert_eq!(b.bytes(4096), [1; 4096]);
    println!("sent");
}

#[test]
fn a_process_aborts_at_each_step() {
    for step in STEPS {
        let output = run("sends_a_message", &[("SOFT_RNIC_FAULTS", &format!("crash={step} opcode=send"))]);
        let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{step}: {out}{error}");
        assert!(out.contains("sending") && !out.contains("sent"), "{out}");
        assert!(error.contains(&format!("crash={step}")), "{error}");
    }
    let whole = run("sends_a_message", &[("SOFT_RNIC_FAULTS", "crash=mid_copy opcode=rdma_write")]);
    assert!(whole.status.success() && String::from_utf8_lossy(&whole.stdout).contains("sent"));
}

/// Waits until the child has stopped.
fn wait_for_stop(child: &Child) {
    let pid = child.id() as libc::pid_t;
    until(|| {
        let mut status = 0;
        // SAFETY: the process is a child of this one, and is not reaped here before it ends.
        let seen = unsafe { libc::waitpid(pid, &raw mut status, libc::WUNTRACED | libc::WNOHANG) };
        (seen == pid).then(|| assert!(libc::WIFSTOPPED(status), "the child ended with {status:#x}"))
    });
}

#[test]
fn a_process_stops_at_each_step_and_goes_on() {
    for step in STEPS {
        let rule = format!("stop={step} opcode=send");
        let child = child("children::sends_a_message", &[("SOFT_RNIC_FAULTS", &rule)]).spawn().unwrap();
        wait_for_stop(&child);
        // SAFETY: the process is a child of this one, and has not ended.
        unsafe { libc::kill(child.id() as libc::pid_t, libc::SIGCONT) };
        let output = child.wait_with_output().unwrap();
        let out = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && out.contains("sent"), "{step}: {out}");
    }
}

#[test]
#[ignore = "a child process, which other tests start"]
fn is_an_odd_device() {
    assert!(is_child());
    let context = open(0).unwrap();
    let (mut attr, mut gid) = (ibv_device_attr::default(), ibv_gid { raw: [1; 16] });
    // SAFETY: the context is open.
    unsafe {
        assert_eq!((table().ibv_query_device)(context, &raw mut attr), 0);
        assert_eq!((table().ibv_query_gid)(context, 1, 0, &raw mut gid), 0);
        assert_eq!(gid.raw, [0; 16]);
        assert_eq!((table().ibv_get_device_guid)((*context).device), 0);
        let pd = (table().ibv_alloc_pd)(context);
        let cq = (table().ibv_create_cq)(context, 8, std::ptr::null_mut(), std::ptr::null_mut(), 0);
        assert!((table().ibv_create_cq)(context, 9, std::ptr::null_mut(), std::ptr::null_mut(), 0).is_null());
        let with = |cap: ibv_qp_cap| {
            let mut init = ibv_qp_init_attr {
                send_cq: cq,
                recv_cq: cq,
                cap,
                qp_type: ibv_qp_type::IBV_QPT_RC,
                ..Default::default()
            };
            (table().ibv_create_qp)(pd, &raw mut init).is_null()
        };
        assert!(with(ibv_qp_cap { max_send_sge: 2, ..Default::default() }));
        assert!(with(ibv_qp_cap { max_inline_data: 1, ..Default::default() }));
        assert!(!with(ibv_qp_cap { max_send_sge: 1, ..Default::default() }));
    }
    assert_eq!((attr.node_guid, attr.vendor_id, attr.vendor_part_id, attr.hw_ver), (0, 0x15b3, 4119, 1));
    assert_eq!((attr.max_sge, attr.max_cqe, attr.atomic_cap), (1, 8, ibv_atomic_cap::IBV_ATOMIC_NONE));
    println!("odd");
}

#[test]
fn a_device_is_made_as_a_file_says() {
    let file = std::env::temp_dir().join(format!("soft-rnic-faults-{}", std::process::id()));
    let text = "# A small device of another maker.\nnode_guid=0 # unset\nvendor_id=0x15b3; vendor_part_id=4119; hw_ver=1\n\
                no_gids\nno_atomics\nmax_sge=1; max_inline_data=0; max_cqe=8\n";
    std::fs::write(&file, text).unwrap();
    let output = run("is_an_odd_device", &[("SOFT_RNIC_FAULTS", &format!("@{}", file.display()))]);
    std::fs::remove_file(&file).unwrap();
    let out = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && out.contains("odd"),
        "{out}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
#[ignore = "a child process, which other tests start"]
fn posts_an_atomic() {
    assert!(is_child());
    let (a, b) = pair();
    a.post(&b, 1, ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD, 8).unwrap();
    println!("status {}", a.next().1.0);
    // After this refusal the queue pair has failed.
    assert_eq!(a.device().atomic_cap, ibv_atomic_cap::IBV_ATOMIC_NONE);
}

#[test]
fn a_device_without_atomics_refuses_them() {
    let output = run("posts_an_atomic", &[("SOFT_RNIC_FAULTS", "no_atomics device=soft0")]);
    let out = String::from_utf8_lossy(&output.stdout);
    let status = format!("status {}", ibv_wc_status::IBV_WC_LOC_QP_OP_ERR.0);
    assert!(output.status.success() && out.contains(&status), "{out}");
}

#[test]
#[ignore = "a child process, which other tests start"]
fn destroys_what_failed() {
    assert!(is_child());
    let (mut a, mut b) = pair();
    (a.lost, b.lost) = (true, true);
    soft_rnic::faults::device_fatal(0).unwrap();
    println!("destroyed: {:?}", a.destroy());
}

#[test]
fn destroying_counts_as_done_where_the_program_says_so() {
    let output = run("destroys_what_failed", &[("RDMAV_ALLOW_DISASSOC_DESTROY", "1")]);
    let out = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && out.contains("destroyed: [0, 0, 0, 0]"), "{out}");
}

/// Runs the other tests again, with requests executed after posting instead of during it.
#[test]
fn all_of_it_holds_in_deferred_mode_too() {
    if std::env::var_os(DEFERRED).is_some() {
        return;
    }
    for tests in ["actions::", "calls::", "devices::", "flap::", "hang::", "rate::", "replay::", "xrc::"] {
        let mut command = Command::new(std::env::current_exe().unwrap());
        let output = command.arg(tests).env(DEFERRED, "1").stdin(Stdio::null()).output().unwrap();
        let out = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && !out.contains("ok. 0 passed"), "{out}");
    }
}

#[test]
#[ignore = "a child process, which other tests start"]
fn lists_devices() {
    assert!(is_child());
    let mut count = 0;
    // SAFETY: the function returns a list, or null.
    let list = unsafe { rdma_mummy_sys::verbs::ibv_get_device_list(table(), &raw mut count) };
    println!("list {} errno {}", list.is_null(), errno());
    let setup = soft_rnic::Config::from_env().map_err(soft_rnic::SetupError::from);
    match setup.and_then(soft_rnic::provider_with) {
        Ok(_) => println!("a configuration"),
        Err(error) => println!("{error}"),
    }
}

#[test]
fn wrong_rules_are_an_error_of_the_configuration() {
    for (rules, told) in [("drop nth=0", "column 10"), ("@/nonexistent/rules", "/nonexistent/rules")] {
        let output = run("lists_devices", &[("SOFT_RNIC_FAULTS", rules)]);
        let out = String::from_utf8_lossy(&output.stdout);
        assert!(out.contains(&format!("list true errno {}", libc::EINVAL)) && out.contains(told), "{out}");
    }
}
