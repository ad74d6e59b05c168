//! Several processes: the test program runs itself again, as a peer that can be stopped and killed.

use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use super::*;
use crate::platform::memory::Memory;
use crate::shared::mark::Mark;

const FABRIC: &str = "SOFT_RNIC_TEST_FABRIC";
const USER: &str = "SOFT_RNIC_TEST_USER";

/// Keeps warnings, so that they can be counted.
struct Warnings(Mutex<Vec<String>>);

static WARNINGS: Warnings = Warnings(Mutex::new(Vec::new()));

impl log::Log for Warnings {
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

/// Lines that begin with this are for the parent.
fn say(what: &str) {
    println!("\n@{what}");
}

#[test]
#[ignore = "other tests run it in a process of its own"]
fn peer() {
    let Ok(fabric) = std::env::var(FABRIC) else { return };
    log::set_logger(&WARNINGS).expect("the only logger");
    log::set_max_level(log::LevelFilter::Warn);
    if let Ok(user) = std::env::var(USER) {
        // SAFETY: a plain system call.
        assert_eq!(unsafe { libc::setuid(user.parse().expect("a number")) }, 0);
    }
    let process = Process::new(&fabric);
    say(&format!("qpn {}", process.qpn));
    for line in io::stdin().lines() {
        obey(&process, &line.expect("text"));
    }
}

fn obey(process: &Process, line: &str) {
    let words: Vec<&str> = line.split(' ').collect();
    let number = |place: usize| words[place].parse::<u32>().expect("a number");
    match words[0] {
        "link" => match process.node.wait_link(number(1), LONG) {
            Reach::Ready(link) => {
                say(&format!("linked {} {}", link.number(), if link.vm().is_some() { "vm" } else { "call" }));
            }
            _ => say("nobody"),
        },
        "mark" => {
            let link = process.link(number(1));
            link.mark(9).publish(Mark::new(number(2), number(3)));
            say(&format!("marked {}", link.number()));
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
            // SAFETY: as a fork that nobody is told of; the child makes system calls only.
            let child = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
            outlive(process, child as libc::pid_t);
        }
        "close" => {
            // As daemons do that close whatever they have inherited.
            // SAFETY: the descriptors of others in this process are what is to be lost.
            let closed = unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) };
            say(&format!("closed {closed}"));
        }
        "vanish" => vanish(),
        "clean" => clean(),
        "knock" => played(hostile::knock),
        "guest" => played(hostile::guest),
        "enter" => say(hostile::try_to_enter(process, number(1))),
        "bait" => say(hostile::bait(process)),
        "deaf" => played(hostile::deaf_guest),
        "owner" => played(hostile::owner),
        other => panic!("{other}?"),
    }
}

fn played(part: fn()) {
    part();
    say("played");
}

/// In the child of a fork: lives on for a while.
fn outlive(process: &Process, child: libc::pid_t) {
    if child != 0 {
        return say(&format!("child {child}"));
    }
    let report: &[u8] = if process.node.is_forked() { b"\n@forked\n" } else { b"\n@unaware\n" };
    // SAFETY: the bytes are there; after that the process does nothing but end.
    unsafe {
        libc::write(1, report.as_ptr().cast(), report.len());
        libc::sleep(60);
        libc::_exit(0);
    }
}

fn entries(folder: &str) -> usize {
    std::fs::read_dir(folder).expect("proc").count()
}

fn mapped_by_device() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("proc");
    maps.lines().filter(|line| line.contains("soft-rnic (deleted)") || line.contains("payload")).count()
}

/// What two linked nodes of one process take, and that they give it back.
fn clean() {
    let counts = || (entries("/proc/self/fd"), entries("/proc/self/task"), mapped_by_device());
    let before = counts();
    let fabric = format!("clean-{}", std::process::id());
    let (a, b) = (Process::new(&fabric), Process::new(&fabric));
    let apart = entries("/proc/self/fd");
    for _ in 0..500 {
        let _ = (a.node.new_qp_number().expect("a number"), b.node.new_qp_number().expect("a number"));
    }
    assert_eq!(entries("/proc/self/fd"), apart, "descriptors per queue pair");
    let (to_b, to_a) = (a.link(b.qpn), b.link(a.qpn));
    // Two of each process.
    assert_eq!(entries("/proc/self/fd"), apart + 4, "descriptors per pair of processes");
    let share =
        b.node.shares().add(Arc::new(Memory::create(c"payload", 4096).expect("memory"))).expect("room");
    eventually("mapped", || to_b.share(&a.node.lane(0), share, false).is_some());
    // The one that came with the message is closed after the mapping is there to be found.
    eventually("one more for the memory itself", || entries("/proc/self/fd") == apart + 5);
    drop((to_b, to_a, a, b));
    // A thread that was joined is listed for a moment yet.
    eventually("two nodes leave nothing behind", || counts() == before);
    say("clean");
}

/// All descriptors are closed, and their numbers are files of the program's own: the device leaves them alone, and ends.
fn vanish() {
    let fabric = format!("vanish-{}", std::process::id());
    let (a, b) = (Process::new(&fabric), Process::new(&fabric));
    let (to_b, to_a) = (a.link(b.qpn), b.link(a.qpn));
    let memory = || Arc::new(Memory::create(c"payload", 4096).expect("memory"));
    let share = b.node.shares().add(memory()).expect("room");
    let range = a.node.heap().alloc(8192).expect("room");
    let highest = std::fs::read_dir("/proc/self/fd")
        .expect("proc")
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let highest = highest.max().expect("a descriptor");
    // SAFETY: the descriptors of others in this process are what is to be lost.
    assert_eq!(unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) }, 0);
    let files: Vec<_> = (3..=highest)
        .map(|_| rustix::fs::memfd_create("the program's", rustix::fs::MemfdFlags::CLOEXEC).expect("a file"))
        .collect();
    for file in &files {
        rustix::io::write(file, &[7; 8192]).expect("room");
    }
    to_b.ring(Doorbell::Cq(1));
    assert!(!to_b.alive(), "nobody can be told");
    assert!(matches!(a.node.wait_link(b.qpn, LONG), Reach::Nobody));
    assert!(a.node.new_qp_number().is_err() || a.node.own_index(a.qpn).is_some());
    b.node.wake_at(Instant::now(), 1);
    b.node.shares().remove(share);
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

/// The test program as a peer.
struct Peer {
    child: std::process::Child,
    input: ChildStdin,
    lines: Receiver<String>,
    qpn: u32,
    /// Others that it left behind.
    left: Vec<Pid>,
}

impl Peer {
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

    /// The rest of the next line, which must begin like this.
    fn hear(&self, beginning: &str) -> String {
        let line = self.lines.recv_timeout(LONG).unwrap_or_else(|_| panic!("did not say {beginning:?}"));
        line.strip_prefix(beginning).unwrap_or_else(|| panic!("said {line:?}, not {beginning:?}")).to_owned()
    }

    fn ask(&mut self, command: &str, answer: &str) -> String {
        writeln!(self.input, "{command}").expect("it reads");
        self.hear(answer)
    }

    fn mark(&mut self, qpn: u32) -> u16 {
        self.ask(&format!("mark {qpn} 5 8"), "marked ").parse().expect("a number")
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("kill");
    }

    /// Has it make a child that lives on.
    fn leave_child(&mut self, how: &str, says: &str) {
        // Two lines, of two processes.
        writeln!(self.input, "{how}").expect("it reads");
        let lines = [self.hear(""), self.hear("")];
        let child = lines.iter().find_map(|line| line.strip_prefix("child ")).expect("the parent's line");
        self.left.extend(Pid::from_raw(child.parse().expect("a number")));
        assert!(lines.iter().any(|line| line == says), "{lines:?}");
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        for left in &self.left {
            let _ = kill_process(*left, Signal::KILL);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn impatient(fabric: &str) -> Process {
    let patience = Duration::from_millis(100);
    Process::with(Settings { fabric: fabric.into(), patience, ..Settings::default() })
}

#[test]
fn a_killed_peer_is_noticed_and_its_marks_are_void() {
    let fabric = fabric();
    let process = impatient(&fabric);
    let mut peer = Peer::start(&fabric);
    let link = process.link(peer.qpn);
    assert!(link.vm().is_some());
    assert_eq!(link.pid(), Some(peer.child.id()));
    let number = peer.mark(process.qpn);
    let stuck = Stuck { link: number, pid: Some(peer.child.id()) };
    assert_eq!(process.node.wait_unmarked(Revoked::Region(8)), Err(stuck));
    peer.signal(Signal::KILL);
    let told = [process.told.recv_timeout(LONG), process.told.recv_timeout(LONG)];
    assert!(told.contains(&Ok(Told::LinkGone(number))), "{told:?}");
    assert!(told.contains(&Ok(Told::PeerLost(link.number()))), "{told:?}");
    assert_eq!(process.node.wait_unmarked(Revoked::Region(8)), Ok(()));
    assert_eq!(process.node.wait_unmarked(Revoked::QueuePair(5)), Ok(()));
    assert!(!link.alive());
    assert!(matches!(process.node.wait_link(peer.qpn, LONG), Reach::Nobody));
}

#[test]
fn a_peer_that_closes_its_descriptors_and_lives_keeps_its_marks() {
    let fabric = fabric();
    let process = impatient(&fabric);
    let mut peer = Peer::start(&fabric);
    let link = process.link(peer.qpn);
    let number = peer.mark(process.qpn);
    peer.ask("close", "closed 0");
    // It cannot be reached.
    process.expect(&Told::PeerLost(link.number()));
    // As it may be in the midst of a copy, it is waited for as if it were stopped.
    let stuck = Stuck { link: number, pid: Some(peer.child.id()) };
    for _ in 0..3 {
        assert_eq!(process.node.wait_unmarked(Revoked::Region(8)), Err(stuck));
    }
    assert_eq!(process.told.try_recv(), Err(std::sync::mpsc::TryRecvError::Empty), "nothing was recovered");
    peer.ask("warnings", "warnings ");
    peer.signal(Signal::KILL);
    process.expect(&Told::LinkGone(number));
    assert_eq!(process.node.wait_unmarked(Revoked::Region(8)), Ok(()));
}

#[test]
fn a_stopped_peer_keeps_nobody_waiting_but_those_who_want_it() {
    let fabric = fabric();
    let process = impatient(&fabric);
    let mut peer = Peer::start(&fabric);
    let link = process.link(peer.qpn);
    let number = peer.mark(process.qpn);
    peer.signal(Signal::STOP);
    let stuck = Stuck { link: number, pid: Some(peer.child.id()) };
    assert_eq!(process.node.wait_unmarked(Revoked::QueuePair(5)), Err(stuck));
    for cq in 0..5000 {
        link.ring(Doorbell::Cq(cq));
    }
    assert_ne!(link.segment().header().look_everywhere.load(crate::sync::SeqCst), 0);
    // Somebody else wants to reach it, and others.
    let other = Process::new(&fabric);
    assert!(matches!(other.node.link_to(peer.qpn), Reach::Pending));
    let _ = other.link(process.qpn);
    assert!(matches!(other.node.link_to(peer.qpn), Reach::Pending), "not reached yet, and not given up");
    assert!(matches!(other.node.wait_link(peer.qpn, LONG), Reach::Nobody));
    assert!(link.alive());
    peer.signal(Signal::CONT);
    eventually("reached", || matches!(other.node.wait_link(peer.qpn, LONG), Reach::Ready(_)));
    // Stopped again, its death is still proved.
    peer.signal(Signal::STOP);
    peer.signal(Signal::KILL);
    eventually("free of marks", || process.node.wait_unmarked(Revoked::QueuePair(5)).is_ok());
}

#[test]
fn death_is_proved_even_if_somebody_keeps_the_connection() {
    let fabric = fabric();
    let process = impatient(&fabric);
    let mut peer = Peer::start(&fabric);
    let link = process.link(peer.qpn);
    let number = peer.mark(process.qpn);
    peer.leave_child("clone", "unaware");
    peer.signal(Signal::KILL);
    eventually("free of marks", || process.node.wait_unmarked(Revoked::Region(8)).is_ok());
    process.expect(&Told::LinkGone(number));
    assert!(link.alive(), "the child of the dead has the connection");
    link.suspect();
    process.expect(&Told::PeerLost(link.number()));
    assert!(!link.alive());
}

#[test]
fn a_forked_child_has_no_part_in_the_device() {
    let fabric = fabric();
    let process = impatient(&fabric);
    let mut peer = Peer::start(&fabric);
    let link = process.link(peer.qpn);
    let number = peer.mark(process.qpn);
    peer.leave_child("fork", "forked");
    // The parent goes on.
    assert!(peer.ask(&format!("link {}", process.qpn), "linked ").ends_with("vm"));
    peer.signal(Signal::KILL);
    let told = [process.told.recv_timeout(LONG), process.told.recv_timeout(LONG)];
    assert!(told.contains(&Ok(Told::LinkGone(number))), "{told:?}");
    assert!(told.contains(&Ok(Told::PeerLost(link.number()))), "{told:?}");
}

#[test]
fn descriptors_that_the_program_took_away_are_left_alone() {
    Peer::start(&fabric()).ask("vanish", "vanished");
}

#[test]
fn nodes_leave_nothing_behind() {
    let mut peer = Peer::start(&fabric());
    peer.ask("clean", "clean");
}

#[test]
fn garbage_at_the_door_does_no_harm() {
    Peer::start(&fabric()).ask("knock", "played");
}

#[test]
fn a_guest_that_talks_nonsense_does_no_harm() {
    Peer::start(&fabric()).ask("guest", "played");
}

#[test]
fn a_guest_that_does_not_listen_keeps_nobody_busy() {
    Peer::start(&fabric()).ask("deaf", "played");
}

#[test]
fn an_owner_that_lies_does_no_harm() {
    Peer::start(&fabric()).ask("owner", "played");
}

#[test]
fn an_idle_node_sleeps() {
    let fabric = fabric();
    let mut peer = Peer::start(&fabric);
    let process = Process::new(&fabric);
    let _ = (process.link(peer.qpn), peer.ask(&format!("link {}", process.qpn), "linked "));
    assert_sleeping(peer.child.id());
}

/// The service threads of a process do nothing for a while.
pub(super) fn assert_sleeping(pid: u32) {
    let switches = || {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("proc").flatten();
        let text = |path| std::fs::read_to_string(path).expect("proc");
        let services = tasks.filter(|task| text(task.path().join("comm")).trim() == "soft-rnic");
        services.map(|task| text(task.path().join("status"))).fold(String::new(), |all, status| {
            all + &status.lines().filter(|line| line.contains("ctxt_switches")).collect::<String>()
        })
    };
    // The last deadline of a handshake passes after a second.
    std::thread::sleep(Duration::from_millis(1500));
    let before = switches();
    assert!(!before.is_empty(), "a service thread");
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(switches(), before, "the thread ran");
}

/// Counts and prints a test that cannot run here.
fn skip(why: &str) {
    static SKIPPED: AtomicU32 = AtomicU32::new(0);
    eprintln!("SKIPPED ({} so far): {why}", SKIPPED.fetch_add(1, Ordering::Relaxed) + 1);
}

#[test]
fn another_user_gets_nothing() {
    if !rustix::process::geteuid().is_root() {
        return skip("only root can be another user");
    }
    let fabric = fabric();
    let process = Process::new(&fabric);
    let mut command = Command::new(std::env::current_exe().expect("a path"));
    command.env(USER, "65534");
    let mut stranger = Peer::run(&fabric, command);
    assert_ne!(stranger.qpn >> 14, process.qpn >> 14, "numbers are unique over all users");
    stranger.ask(&format!("link {}", process.qpn), "nobody");
    assert!(matches!(process.node.wait_link(stranger.qpn, LONG), Reach::Nobody));
    assert_eq!(process.node.state.seats.iter().count(), 0);
    // Neither side relies on the other.
    assert_eq!(stranger.ask(&format!("enter {}", process.qpn), ""), "refused");
    writeln!(stranger.input, "bait").expect("it reads");
    let bait = stranger.hear("bait ").parse().expect("a number");
    assert!(matches!(process.node.wait_link(bait, LONG), Reach::Nobody));
    assert_eq!(stranger.hear(""), "nothing was said");
    // A second one of that user reaches the first.
    let mut command = Command::new(std::env::current_exe().expect("a path"));
    command.env(USER, "65534");
    let mut friend = Peer::run(&fabric, command);
    friend.ask(&format!("link {}", stranger.qpn), "linked ");
}

#[test]
fn another_user_namespace_copies_by_a_detour_and_says_so_once() {
    let works = Command::new("unshare").args(["-U", "-r", "true"]).stderr(Stdio::null()).status();
    if !works.is_ok_and(|status| status.success()) {
        return skip("unshare makes no user namespace here");
    }
    let fabric = fabric();
    let (process, second) = (Process::new(&fabric), Process::new(&fabric));
    let mut command = Command::new("unshare");
    command.args(["-U", "-r", "--"]).arg(std::env::current_exe().expect("a path"));
    let mut peer = Peer::run(&fabric, command);
    for qpn in [process.qpn, second.qpn] {
        assert!(peer.ask(&format!("link {qpn}"), "linked ").ends_with("call"));
    }
    let warnings = peer.ask("warnings", "warnings ");
    assert!(warnings.starts_with("1 process_vm_writev"), "{warnings}");
    assert!(warnings.contains("user namespace"), "{warnings}");
}

#[test]
fn users_without_a_name_trust_nobody() {
    let works = Command::new("unshare").args(["-U", "true"]).stderr(Stdio::null()).status();
    if !works.is_ok_and(|status| status.success()) {
        return skip("unshare makes no user namespace here");
    }
    let fabric = fabric();
    let process = Process::new(&fabric);
    let mut command = Command::new("unshare");
    command.args(["-U", "--"]).arg(std::env::current_exe().expect("a path"));
    let mut peer = Peer::run(&fabric, command);
    peer.ask(&format!("link {}", process.qpn), "nobody");
    assert!(matches!(process.node.wait_link(peer.qpn, LONG), Reach::Nobody));
    let warnings = peer.ask("warnings", "warnings ");
    assert!(warnings.contains("has no name"), "{warnings}");
}
