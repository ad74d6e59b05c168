//! Tests with several processes: the test program runs itself again, as a peer that can be stopped
//! and killed.

mod cm_messages;
mod death;
mod exec;
mod strangers;

use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, Command, Stdio};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

use super::*;
use crate::platform::memory::FileMapping;
use crate::shared::hazard::Hazard;

const FABRIC: &str = "SOFT_RNIC_TEST_FABRIC";
const USER: &str = "SOFT_RNIC_TEST_USER";
/// Makes a child behave as on a kernel without `SO_PASSRIGHTS` and `sock_diag`.
const OLD_KERNEL: &str = "SOFT_RNIC_TEST_OLD_KERNEL";

/// Records warnings, so that tests can count them.
struct WarningCount(Mutex<Vec<String>>);

static WARNINGS: WarningCount = WarningCount(Mutex::new(Vec::new()));

impl log::Log for WarningCount {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.level() <= log::Level::Warn
    }
    fn log(&self, record: &log::Record<'_>) {
        if self.enabled(record.metadata()) {
            self.0.lock().expect("no panic").push(record.args().to_string());
        }
    }
    fn flush(&self) {}
}

/// Prints a line for the parent, marked by a prefix.
fn say(what: &str) {
    println!("\n@{what}");
}

#[test]
#[ignore = "a child process, which other tests start"]
fn peer() {
    let Ok(fabric) = std::env::var(FABRIC) else { return };
    log::set_logger(&WARNINGS).expect("the only logger");
    log::set_max_level(log::LevelFilter::Warn);
    let is_old = std::env::var_os(OLD_KERNEL).is_some();
    crate::platform::socket::WITHOUT_PASSRIGHTS.store(is_old, Ordering::Relaxed);
    crate::platform::listeners::WITHOUT_DIAG.store(is_old, Ordering::Relaxed);
    if let Ok(user) = std::env::var(USER) {
        // SAFETY: `setuid` accesses no memory of this process.
        assert_eq!(unsafe { libc::setuid(user.parse().expect("a number")) }, 0);
    }
    let process = TestNode::new(&fabric);
    say(&format!("qpn {}", process.qpn));
    for line in io::stdin().lines() {
        let line = line.expect("text");
        if line == "end" {
            break;
        }
        obey(&process, &line);
    }
}

fn obey(process: &TestNode, line: &str) {
    let words: Vec<&str> = line.split(' ').collect();
    let number = |place: usize| words[place].parse::<u32>().expect("a number");
    match words[0] {
        "remote" => match process.node.wait_for_process(number(1), LONG) {
            Reachability::Ready(remote) => {
                say(&format!(
                    "linked {} {}",
                    remote.number(),
                    if remote.vm().is_some() { "vm" } else { "call" }
                ));
            }
            _ => say("nobody"),
        },
        "hazard" => {
            let remote = process.connect_to(number(1));
            remote.hazard_slot(9).publish(Hazard::new(number(2), number(3)));
            say(&format!("marked {}", remote.number()));
        }
        "warnings" => {
            let warnings = WARNINGS.0.lock().expect("no panic");
            say(&format!("warnings {} {}", warnings.len(), warnings.join(" | ")));
        }
        "fork" => {
            // SAFETY: the child makes system calls only.
            let child = unsafe { libc::fork() };
            outlive(process, child);
        }
        "clone" => {
            // SAFETY: the same as a fork, except that the C library is not told; the child makes
            // system calls only.
            let child = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
            outlive(process, child as libc::pid_t);
        }
        "close" => {
            // Daemons close all inherited descriptors in this way.
            //
            // SAFETY: losing the descriptors that other code in this process has opened is the
            // purpose of the test.
            let closed = unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) };
            say(&format!("closed {closed}"));
        }
        "messages" => {
            for count in 0..number(2) {
                process.node.send_cm(number(1) as u16, &count.to_le_bytes()).expect("it can be sent");
            }
            say("sent");
        }
        // Waits for CM messages in order, and answers each if asked to.
        "hear" => {
            for count in 0..number(2) {
                let calls = loop {
                    match process.calls.recv_timeout(LONG) {
                        Ok(HandlerCall::PeerDetached(_) | HandlerCall::PeerLost(_)) => {}
                        calls => break calls,
                    }
                };
                assert_eq!(calls, Ok(HandlerCall::CmMessage(number(1) as u16, count.to_le_bytes().to_vec())));
                if words.get(3) == Some(&"answer") {
                    process.node.send_cm(number(1) as u16, &count.to_le_bytes()).expect("it can be sent");
                }
            }
            say("heard");
        }
        "port" => match process.node.take_port(1, number(1) as u16) {
            Ok(port) => {
                say(&format!("port {}", port.port()));
                core::mem::forget(port);
            }
            Err(error) => say(&format!("port {:?}", error.kind())),
        },
        "squat" => {
            let port = ports::CmPort { space: 1, number: number(1) as u16 };
            core::mem::forget(
                names::present(&port.thing(&process.node.state.common.settings.fabric))
                    .expect("a descriptor"),
            );
            say("squatting");
        }
        "linger" => strangers::linger(process, number(1)),
        "hold" => strangers::hold(process),
        "release" => strangers::release(),
        "effective" => {
            // SAFETY: `seteuid` accesses no memory of this process.
            assert_eq!(unsafe { libc::seteuid(number(1)) }, 0);
            say("effective");
        }
        "vanish" => vanish(),
        "clean" => clean(),
        "pending" => played(hostile::pending),
        "attached" => played(hostile::attached),
        "enter" => say(hostile::try_to_enter(process, number(1))),
        "bait" => say(&format!("bait {}", hostile::bait(process))),
        "taken" => say(hostile::taken_bait()),
        "fill" => fill(process),
        "squat-all" => strangers::squat_all(process),
        "deaf" => played(hostile::silent_peer),
        "owner" => played(hostile::owner),
        "impostor" => played(hostile::impostor),
        "map" => exec::offer(),
        "replace" => exec::replace(),
        "doors" => played(hostile::false_listeners),
        other => panic!("{other}?"),
    }
}

fn played(part: fn()) {
    part();
    say("played");
}

/// In the child of a fork: reports, and lives on for a while.
fn outlive(process: &TestNode, child: libc::pid_t) {
    if child != 0 {
        return say(&format!("child {child}"));
    }
    let report: &[u8] = if process.node.is_forked() { b"\n@forked\n" } else { b"\n@unaware\n" };
    // SAFETY: `report` is valid for its length; after that the process only sleeps and exits.
    unsafe {
        libc::write(1, report.as_ptr().cast(), report.len());
        libc::sleep(60);
        libc::_exit(0);
    }
}

/// Owns all blocks, and asks for a further one.
fn fill(process: &TestNode) {
    strangers::raise_limit_of_files();
    let of_others = (1..=LAST_BLOCK).map(|block| names::present(&process.node.state.thing_of(block)));
    let _of_others: Vec<_> = of_others.map(|socket| socket.expect("a descriptor")).collect();
    let error = process.node.take_block(1).expect_err("no block is free");
    assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    crate::platform::errno::refused("ibv_create_qp", &error);
    say("full");
}

fn entries(folder: &str) -> usize {
    std::fs::read_dir(folder).expect("proc").count()
}

fn mapped_by_device() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("proc");
    let names =
        ["soft-rnic (deleted)", "soft-rnic-owner (deleted)", "soft-rnic hazards (deleted)", "payload"];
    maps.lines().filter(|line| names.iter().any(|name| line.contains(name))).count()
}

/// Checks how many descriptors two connected nodes of one process use, and that they release
/// everything.
fn clean() {
    let counts = || (entries("/proc/self/fd"), entries("/proc/self/task"), mapped_by_device());
    let before = counts();
    let fabric = format!("clean-{}", std::process::id());
    let (a, b) = (TestNode::new(&fabric), TestNode::new(&fabric));
    let apart = entries("/proc/self/fd");
    for _ in 0..500 {
        let _ = (a.node.new_qp_number().expect("a number"), b.node.new_qp_number().expect("a number"));
    }
    assert_eq!(entries("/proc/self/fd"), apart, "descriptors per queue pair");
    let (to_b, to_a) = (a.connect_to(b.qpn), b.connect_to(a.qpn));
    // Two descriptors of each process. That of a page is closed after it has been sent.
    eventually("four descriptors for a pair of processes", || entries("/proc/self/fd") == apart + 4);
    for (from, to) in [(&a, &b), (&b, &a)] {
        from.node.send_cm(to.node.own_block().expect("a block"), b"hello").expect("it can be sent");
        to.expect(&HandlerCall::CmMessage(from.node.own_block().expect("a block"), b"hello".to_vec()));
    }
    assert_eq!(entries("/proc/self/fd"), apart + 4, "descriptors per pair that writes messages");
    let peer_ids: Vec<_> = (0..200).map(|_| a.node.take_port(1, 0).expect("a port")).collect();
    let single = a.node.take_port(1, 7471).expect("free");
    assert_eq!(entries("/proc/self/fd"), apart + 4 + 4 + 1, "a descriptor for 64 ports");
    drop((peer_ids, single));
    assert_eq!(entries("/proc/self/fd"), apart + 4 + 1, "one group is kept");
    let apart = apart + 1;
    let export =
        b.node.exports().add(Arc::new(FileMapping::create(c"payload", 4096).expect("memory"))).expect("room");
    eventually("mapped", || to_b.mapped_memory(&a.node.transfer_slot(0), export, false).is_some());
    // The descriptor that came with the message is closed after the mapping has become visible.
    eventually("one more for the memory itself", || entries("/proc/self/fd") == apart + 5);
    drop((to_b, to_a, a, b));
    // A joined thread stays listed for a moment.
    eventually("two nodes leave nothing behind", || counts() == before);
    say("clean");
}

/// The program closes all descriptors, and opens files under their numbers. The device must leave
/// those alone, and stop.
fn vanish() {
    let fabric = format!("vanish-{}", std::process::id());
    let (a, b) = (TestNode::new(&fabric), TestNode::new(&fabric));
    let (to_b, to_a) = (a.connect_to(b.qpn), b.connect_to(a.qpn));
    let memory = || Arc::new(FileMapping::create(c"payload", 4096).expect("memory"));
    let export = b.node.exports().add(memory()).expect("room");
    let range = a.node.heap().alloc(8192).expect("room");
    let port = a.node.take_port(1, 4711).expect("free");
    let highest = std::fs::read_dir("/proc/self/fd")
        .expect("proc")
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let highest = highest.max().expect("a descriptor");
    // SAFETY: losing the descriptors that other code in this process has opened is the purpose of
    // the test.
    assert_eq!(unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) }, 0);
    let files: Vec<_> = (3..=highest)
        .map(|_| rustix::fs::memfd_create("the program's", rustix::fs::MemfdFlags::CLOEXEC).expect("a file"))
        .collect();
    for file in &files {
        rustix::io::write(file, &[7; 8192]).expect("room");
    }
    to_b.ring(Doorbell::Cq(1));
    assert!(!to_b.alive(), "no peer can be reached");
    assert!(matches!(a.node.wait_for_process(b.qpn, LONG), Reachability::Nobody));
    assert!(a.node.send_cm(b.node.own_block().expect("a block"), b"hello").is_err());
    assert!(a.node.take_port(1, 0).is_err() && a.node.take_port(1, 7471).is_err());
    assert_eq!(a.node.find_port(1, 7471, Instant::now() + LONG, 0, false), Some(PortOwner::Unresponsive));
    drop(port);
    assert!(a.node.new_qp_number().is_err() || a.node.own_index(a.qpn).is_some());
    b.node.wake_at(Instant::now(), 1);
    b.node.exports().remove(export);
    a.node.heap().free(range);
    drop((to_b, to_a, a, b));
    for file in &files {
        let mut bytes = [0; 8192];
        assert_eq!(rustix::io::pread(file, &mut bytes, 0), Ok(8192), "it is open");
        assert_eq!((bytes, rustix::fs::fstat(file).expect("it is open").st_size), ([7; 8192], 8192));
    }
    let warnings = WARNINGS.0.lock().expect("no panic").join(" | ");
    assert!(warnings.contains("closefrom"), "{warnings}");
    say("vanished");
}

/// The test program running as a peer.
struct ChildNode {
    child: std::process::Child,
    input: ChildStdin,
    lines: Receiver<String>,
    qpn: u32,
    /// Children that it left behind.
    left: Vec<Pid>,
}

impl ChildNode {
    fn start(fabric: &str) -> Self {
        let program = std::env::current_exe().expect("a path");
        Self::run(fabric, Command::new(program))
    }

    fn run(fabric: &str, mut command: Command) -> Self {
        let mut child = command
            .args(["--exact", "node::tests::process::peer", "--ignored", "--nocapture", "--test-threads=1"])
            .env(FABRIC, fabric)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process");
        let (sender, lines) = channel();
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if let Some(said) = line.strip_prefix('@') {
                    let _ = sender.send(said.to_owned());
                }
            }
        });
        let input = child.stdin.take().expect("a pipe");
        let mut peer = Self { child, input, lines, qpn: 0, left: Vec::new() };
        peer.qpn = peer.hear("qpn ").parse().expect("a number");
        peer
    }

    /// The rest of the next line, which must begin with `beginning`.
    fn hear(&self, beginning: &str) -> String {
        let line = self.lines.recv_timeout(LONG).unwrap_or_else(|_| panic!("did not say {beginning:?}"));
        line.strip_prefix(beginning).unwrap_or_else(|| panic!("said {line:?}, not {beginning:?}")).to_owned()
    }

    fn ask(&mut self, command: &str, answer: &str) -> String {
        writeln!(self.input, "{command}").expect("it reads");
        self.hear(answer)
    }

    fn publish_hazard(&mut self, qpn: u32) -> u16 {
        self.ask(&format!("hazard {qpn} 5 8"), "marked ").parse().expect("a number")
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("kill");
    }

    /// Kills it, and waits until it is dead.
    fn kill(&self) {
        self.signal(Signal::KILL);
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(Pid::from_child(&self.child)), options).expect("a child");
    }

    /// Stops it, and waits until all of its threads have stopped.
    fn stop(&self) {
        self.signal(Signal::STOP);
        let options = WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(Pid::from_child(&self.child)), options).expect("a child");
    }

    /// Makes it start a child that lives on.
    fn leave_child(&mut self, how: &str, says: &str) {
        // Two processes write one line each.
        writeln!(self.input, "{how}").expect("it reads");
        let lines = [self.hear(""), self.hear("")];
        let child = lines.iter().find_map(|line| line.strip_prefix("child ")).expect("the parent's line");
        self.left.extend(Pid::from_raw(child.parse().expect("a number")));
        assert!(lines.iter().any(|line| line == says), "{lines:?}");
    }
}

impl Drop for ChildNode {
    fn drop(&mut self) {
        for left in &self.left {
            let _ = kill_process(*left, Signal::KILL);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn impatient(fabric: &str) -> TestNode {
    let patience = Duration::from_millis(100);
    TestNode::with(NodeSettings { fabric: fabric.into(), patience, ..NodeSettings::default() })
}

fn block(qpn: u32) -> u16 {
    (qpn >> 14) as u16
}

/// The next handler call, except for peers that are lost or detached.
fn next(process: &TestNode) -> HandlerCall {
    loop {
        match process.calls.recv_timeout(LONG).expect("the handler is called") {
            HandlerCall::PeerDetached(_) | HandlerCall::PeerLost(_) => {}
            calls => return calls,
        }
    }
}

#[test]
fn descriptors_that_the_program_took_away_are_left_alone() {
    ChildNode::start(&fabric()).ask("vanish", "vanished");
}

#[test]
fn a_user_without_a_free_block_reads_that_in_the_log() {
    let mut peer = ChildNode::start(&fabric());
    peer.ask("fill", "full");
    let log = peer.ask("warnings", "warnings ");
    assert!(log.contains("ibv_create_qp: all 1023 blocks of queue pair numbers of this user"), "{log}");
}

#[test]
fn nodes_leave_nothing_behind() {
    let mut peer = ChildNode::start(&fabric());
    peer.ask("clean", "clean");
}

#[test]
fn garbage_at_the_listener_does_no_harm() {
    ChildNode::start(&fabric()).ask("pending", "played");
}

#[test]
fn a_peer_that_talks_nonsense_does_no_harm() {
    ChildNode::start(&fabric()).ask("attached", "played");
}

#[test]
fn a_peer_that_does_not_read_keeps_nobody_busy() {
    ChildNode::start(&fabric()).ask("deaf", "played");
}

#[test]
fn an_owner_that_lies_does_no_harm() {
    ChildNode::start(&fabric()).ask("owner", "played");
}

#[test]
fn a_connection_manager_that_lies_about_its_block_does_no_harm() {
    ChildNode::start(&fabric()).ask("impostor", "played");
}

#[test]
fn a_false_owner_of_a_port_does_no_harm() {
    ChildNode::start(&fabric()).ask("doors", "played");
}

#[test]
fn an_idle_node_sleeps() {
    let fabric = fabric();
    let mut peer = ChildNode::start(&fabric);
    let process = TestNode::new(&fabric);
    let _ = (process.connect_to(peer.qpn), peer.ask(&format!("remote {}", process.qpn), "linked "));
    assert_sleeping(peer.child.id());
}

/// Asserts that the service threads of a process become idle and stay idle for a while.
pub(super) fn assert_sleeping(pid: u32) {
    // Their running time, and their number of context switches.
    let work = || {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("proc").flatten();
        let text = |path| std::fs::read_to_string(path).expect("proc");
        let services = tasks.filter(|task| text(task.path().join("comm")).trim() == "soft-rnic");
        services.fold(String::new(), |all, task| {
            let status = text(task.path().join("status"));
            let switches = status.lines().filter(|line| line.starts_with("voluntary_ctxt_switches"));
            let times = text(task.path().join("schedstat"));
            let ran = times.split(' ').next().unwrap_or_default();
            all + &switches.collect::<String>() + " ran " + ran + "\n"
        })
    };
    // On a busy machine they may take long to finish their work. A thread that never becomes idle
    // exceeds the limit.
    let begin = Instant::now();
    loop {
        let before = work();
        assert!(!before.is_empty(), "a service thread");
        // Longer than the deadline of a handshake.
        std::thread::sleep(Duration::from_millis(1500));
        let after = work();
        if after == before {
            return;
        }
        assert!(begin.elapsed() < LONG * 2, "the thread runs:\n{before}then\n{after}");
    }
}
