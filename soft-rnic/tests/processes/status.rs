//! The status report of a process: its objects, and the traffic on the data paths between
//! processes.

use std::ptr;
use std::time::{Duration, Instant};

use libtest_mimic::{Failed, Trial};
use rdma_mummy_sys::types::*;
use rustix::process::Signal;
use soft_rnic::status::{self, Moved, NoAnswer, Peer, Process, Statistics, Traffic};

use crate::kit::{QpAddress, TestCq, TestDevice, TestMemory, TestQp, Timing, rkey, until};
use crate::role::{self, ChildRole, say, told};

const LEN: usize = 100_000;
/// The length of a message that fits the slot, in bytes.
const SHORT: usize = 8;
const MESSAGES: u64 = 5;
const TIMING: Timing = Timing { timeout: 14, retry_cnt: 7 };
const PATIENCE: Duration = Duration::from_secs(10);
/// The time that a status query may take. It waits for one second, and the machine may be busy.
const BOUND: Duration = Duration::from_secs(15);

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = vec![
        Trial::test("status::objects_are_counted", || in_fabric(objects)),
        Trial::test("status::another_fabric_is_not_shown", || in_fabric(another_fabric)),
        Trial::test("status::the_stopped_do_not_answer_within_a_bound", || in_fabric(stopped)),
        Trial::test("status::what_went_to_the_dead_is_not_forgotten", || in_fabric(former)),
    ];
    for path in ["self", "direct", "vm", "call"] {
        let test = move || in_fabric(|fabric| paths(fabric, path));
        trials.push(Trial::test(format!("status::messages_by_{path}_are_counted"), test));
    }
    trials
}

fn in_fabric(test: impl FnOnce(&str) -> Result<(), Failed>) -> Result<(), Failed> {
    test(&role::fabric())
}

/// Starts a process that obeys commands; returns its address, too.
fn start(fabric: &str, path: &str) -> (ChildRole, String) {
    let setting = if matches!(path, "vm" | "call") { path } else { "auto" };
    let memory = if path == "direct" { "shareable" } else { "private" };
    let variables = [("SOFT_RNIC_FABRIC", fabric), ("SOFT_RNIC_PATH", setting)];
    let role = ChildRole::start(&format!("status {memory}"), &variables);
    let address = role.hear();
    (role, address)
}

fn pid(role: &ChildRole) -> u32 {
    role.child.id()
}

fn ask(fabric: Option<&str>) -> Vec<Process> {
    let begin = Instant::now();
    let processes = status::processes(fabric).expect("the processes answer");
    assert!(begin.elapsed() < BOUND, "asking took {:?}", begin.elapsed());
    processes
}

/// The statistics of the fabric's only process.
fn statistics_of(fabric: &str, role: &ChildRole) -> Result<Statistics, Failed> {
    let mut found = ask(Some(fabric)).into_iter().filter(|process| process.pid == Some(pid(role)));
    let (Some(process), None) = (found.next(), found.next()) else {
        return Err("not shown once".into());
    };
    process.answer.map_err(|error| error.to_string().into())
}

fn objects(fabric: &str) -> Result<(), Failed> {
    let (mut role, _) = start(fabric, "direct");
    let statistics = statistics_of(fabric, &role)?;
    let kinds = |statistics: &Statistics| -> Vec<String> {
        let kinds = statistics.queue_pairs.iter();
        kinds.map(|kind| format!("{} {} {}", kind.count, kind.type_name(), kind.state_name())).collect()
    };
    assert_eq!(kinds(&statistics), ["1 RC INIT", "2 UD RESET"]);
    assert_eq!((statistics.regions.count, statistics.regions.bytes), (1, LEN as u64));
    assert_eq!((statistics.completion_queues, statistics.shared_receive_queues), (1, 1));
    let devices: Vec<_> =
        statistics.devices.iter().map(|device| (&device.name[..], device.contexts)).collect();
    assert_eq!(devices, [("soft0", 1)]);
    // A process with several blocks of numbers is still one process, and destroyed objects no
    // longer count.
    role.tell("less");
    assert_eq!(role.hear(), "less");
    assert_eq!(kinds(&statistics_of(fabric, &role)?), ["1 RC INIT"]);
    role.finish();
    assert_eq!(ask(Some(fabric)), []);
    Ok(())
}

fn another_fabric(fabric: &str) -> Result<(), Failed> {
    let other = role::fabric();
    let ((one, _), (two, _)) = (start(fabric, "vm"), start(&other, "vm"));
    let shown = |fabric: Option<&str>, role: &ChildRole| {
        ask(fabric).iter().any(|process| process.pid == Some(pid(role)))
    };
    assert!(shown(Some(fabric), &one) && !shown(Some(fabric), &two));
    assert!(shown(Some(&other), &two) && !shown(Some(&other), &one));
    assert!(!shown(Some(""), &one), "not the default fabric");
    assert!(shown(None, &one) && shown(None, &two), "all fabrics");
    let all = ask(None);
    let of_two = all.iter().find(|process| process.pid == Some(pid(&two)));
    assert_eq!(of_two.map(|process| &process.fabric), Some(&other));
    Ok(())
}

fn stopped(fabric: &str) -> Result<(), Failed> {
    let ((one, _), (two, _)) = (start(fabric, "vm"), start(fabric, "vm"));
    two.signal(Signal::STOP);
    two.wait_stopped();
    let processes = ask(Some(fabric));
    assert_eq!(processes.len(), 2, "{processes:?}");
    for process in &processes {
        let is_stopped = process.pid == Some(pid(&two));
        assert!(is_stopped || process.pid == Some(pid(&one)), "{process:?}");
        assert_eq!(process.answer.as_ref().err(), is_stopped.then_some(&NoAnswer::Late));
    }
    two.signal(Signal::CONT);
    until("an answer", PATIENCE, || statistics_of(fabric, &two).ok());
    Ok(())
}

/// Two processes, of which the first has sent to the second; or one process that has sent to
/// itself.
fn sent(fabric: &str, path: &str) -> (ChildRole, Option<ChildRole>) {
    let (mut one, own) = start(fabric, path);
    let other = (path != "self").then(|| start(fabric, path));
    let other = other.map(|(mut two, there)| {
        two.tell(&own);
        one.tell(&there);
        assert_eq!(two.hear(), "connected");
        two
    });
    if other.is_none() {
        one.tell(&own);
    }
    assert_eq!(one.hear(), "connected");
    one.tell(path);
    assert_eq!(one.hear(), "sent");
    (one, other)
}

fn paths(fabric: &str, path: &str) -> Result<(), Failed> {
    let (one, two) = sent(fabric, path);
    let to = two.as_ref().map_or(pid(&one), pid);
    let statistics = statistics_of(fabric, &one)?;
    let (mine, others): (Vec<Peer>, Vec<Peer>) =
        statistics.peers.iter().partition(|peer| peer.pid == Some(to));
    let [peer] = mine[..] else { return Err(format!("one peer {to}: {:?}", statistics.peers).into()) };
    assert!(others.iter().all(|peer| count(&peer.traffic) == 0), "nobody else: {others:?}");
    let Traffic { own, direct, vm, call, .. } = peer.traffic;
    match path {
        "self" => assert_eq!(pair(own), (MESSAGES + 1, MESSAGES * LEN as u64 + SHORT as u64)),
        _ => assert_eq!((pair(peer.traffic.slot), pair(own)), ((1, SHORT as u64), (0, 0))),
    }
    for (name, by) in [("direct", direct), ("vm", vm), ("call", call)] {
        if name == path {
            assert_eq!(pair(by), (MESSAGES, MESSAGES * LEN as u64), "{name}");
        } else if (path, name) != ("direct", "vm") {
            assert_eq!(pair(by), (0, 0), "{name}");
        }
    }
    // The second process has not sent anything.
    if let Some(two) = two {
        let idle = statistics_of(fabric, &two)?;
        assert!(idle.peers.iter().all(|peer| count(&peer.traffic) == 0), "{:?}", idle.peers);
    }
    Ok(())
}

/// The messages and bytes of a path.
fn pair(moved: Moved) -> (u64, u64) {
    (moved.messages, moved.bytes)
}

fn count(traffic: &Traffic) -> u64 {
    traffic.paths().iter().map(|(_, moved)| moved.messages).sum()
}

fn former(fabric: &str) -> Result<(), Failed> {
    let (one, two) = sent(fabric, "vm");
    let two = two.expect("another process");
    let to = pid(&two);
    two.finish();
    let statistics = until("the end is noticed", PATIENCE, || {
        let statistics = statistics_of(fabric, &one).ok()?;
        statistics.peers.iter().all(|peer| peer.pid != Some(to)).then_some(statistics)
    });
    assert_eq!(pair(statistics.former.vm), (MESSAGES, MESSAGES * LEN as u64));
    Ok(())
}

/// The role of a process with some objects: connects to an address, and sends.
pub(crate) fn shown(arguments: &[String]) {
    let device = TestDevice::open();
    let memory = if arguments[0] == "shareable" {
        TestMemory::shareable(device, LEN)
    } else {
        TestMemory::private(LEN)
    };
    memory.fill(1);
    let (mr, cq) = (memory.register(device), device.cq(64, ptr::null_mut()));
    let srq = device.srq(4);
    let others = [ptr::null_mut(), srq].map(|srq| device.qp(ibv_qp_type::IBV_QPT_UD, cq, srq, 1));
    let qp = device.qp(ibv_qp_type::IBV_QPT_RC, cq, ptr::null_mut(), 16);
    qp.init();
    assert_eq!(qp.receive(0, memory.sge(mr, 0, LEN)), 0);
    // SAFETY: a GID is plain bytes.
    let gid = unsafe { device.gid().raw };
    let addr = memory.base.addr() as u64;
    say(&QpAddress { qpn: qp.number(), gid, addr, rkey: rkey(mr) }.to_string());
    let mut to = QpAddress::default();
    while let Some(line) = told() {
        match line.as_str() {
            "less" => {
                others.iter().for_each(|other| assert_eq!(other.destroy(), 0));
                say("less");
            }
            "self" | "direct" | "vm" | "call" => {
                send(qp, cq, memory, mr, &to, &line);
                say("sent");
            }
            address => {
                to = address.parse().expect("an address");
                qp.connect(&to, TIMING);
                say("connected");
            }
        }
    }
}

/// Sends one short message, which takes the receive, and writes some long ones.
fn send(qp: TestQp, cq: TestCq, memory: TestMemory, mr: *mut ibv_mr, to: &QpAddress, path: &str) {
    let do_one = |opcode, len| {
        assert_eq!(qp.post(1, opcode, memory.sge(mr, 0, len), to, ptr::null_mut()), 0);
        let done = || cq.poll().filter(|wc| wc.wr_id == 1);
        assert_eq!(until("a completion", PATIENCE, done).status.0, 0);
    };
    do_one(ibv_wr_opcode::IBV_WR_SEND, SHORT);
    let write = || do_one(ibv_wr_opcode::IBV_WR_RDMA_WRITE, LEN);
    (0..MESSAGES).for_each(|_| write());
    if path == "direct" {
        // The first writes request the mapping of the memory, and take another path until it
        // exists.
        let by_direct = || -> u64 {
            let peers = soft_rnic::statistics().expect("a device is open").peers;
            peers.iter().map(|peer| peer.traffic.direct.messages).sum()
        };
        until("the direct path", PATIENCE, || {
            let enough = by_direct() >= MESSAGES;
            if !enough {
                write();
            }
            enough.then_some(())
        });
    }
}
