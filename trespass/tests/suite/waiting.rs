//! Child processes under strace. Drop never waits: the dropping thread makes no system call that can
//! block. A connect waits for descriptors: no thread polls or sleeps. A forked child's drop only
//! closes descriptors.
//!
//! The peer is another process, which reads nothing and is stopped in half of the rounds.

use std::collections::HashSet;
use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use sideway::soft::faults;
use test_harness::{Outcome, Skip, SystemCall, cases, skip};
use trespass::{Builder, Event, Key, Kind, Worker};

use super::death::ChildPeer;
use super::fixture::{Fixture, LONG};

pub(crate) fn add(suite: &mut test_harness::Suite<Fixture>) {
    cases!(suite: drop_makes_no_call_that_can_block, connect_polls_nothing,
        a_forked_child_only_closes_descriptors);
}

/// If this is set, a missing program is a failure.
const REQUIRE: &str = "SOFT_RNIC_REQUIRE_PROGRAMS";

/// The parts of the two child processes. The peer's number follows the second one.
const PEER: &str = "accept and read nothing";
const DROPPING: &str = "drop beside ";
const CONNECTING: &str = "connect beside ";
const FORKING: &str = "fork beside ";

/// Blocking connects of a child process, and the time that the peer is stopped at the begin of each.
const CONNECTS: usize = 40;
const STOPPED: Duration = Duration::from_millis(50);

/// A thread may meet another one at a lock, which is held for a moment. That is rare, so that another
/// round passes without it.
const ROUNDS: usize = 6;

#[derive(Clone, Copy, Debug)]
enum Load {
    Nothing,
    FiftyKilobytes,
    /// As many bytes as the connection takes.
    Full,
    /// Requests that the software device never returns, because their completion queue has failed. The
    /// connection does not linger, so that its queue pair is given up at once.
    Unreturned,
}

#[derive(Clone, Copy, Debug)]
enum Dropped {
    Stream,
    SeqPacket,
    /// A worker with one connection.
    Worker,
}

/// What is dropped, in this order.
fn rounds() -> impl Iterator<Item = (Dropped, bool, Load, bool)> {
    use Dropped::{SeqPacket, Stream, Worker};
    let dropped = [(Stream, true), (Stream, false), (SeqPacket, true), (SeqPacket, false), (Worker, true)];
    let loads = [Load::Nothing, Load::FiftyKilobytes, Load::Full, Load::Unreturned];
    let all = dropped.into_iter().flat_map(move |(dropped, blocks)| {
        loads.into_iter().flat_map(move |load| [false, true].map(|stopped| (dropped, blocks, load, stopped)))
    });
    // Each of these takes half a second.
    all.filter(|(_, blocks, load, _)| *blocks || !matches!(load, Load::Unreturned))
}

fn drop_makes_no_call_that_can_block(fixture: &Fixture) -> Outcome {
    let (text, reports) = traced_beside_peer(fixture, DROPPING)?;
    check(&text, &reports);
    Ok(())
}

/// No thread of the client yields its processor, sleeps, or asks again and again, while a connect
/// waits for a peer that is stopped at first.
fn connect_polls_nothing(fixture: &Fixture) -> Outcome {
    let (text, _) = traced_beside_peer(fixture, CONNECTING)?;
    let calls = test_harness::calls_within(&text, "getpriority");
    let count = |names: &[&str]| calls.iter().filter(|call| names.contains(&&*call.name)).count();
    let sleeps = count(&["nanosleep", "clock_nanosleep"]);
    let yields = count(&["sched_yield"]);
    let waits = count(&["poll", "ppoll", "epoll_wait", "epoll_pwait", "epoll_pwait2", "select", "pselect6"]);
    println!("{CONNECTS} connects: {sleeps} sleeps, {yields} yields, {waits} waits of {} calls", calls.len());
    assert_eq!(count(&["kill"]), 2 * CONNECTS, "the peer is stopped and goes on");
    assert_eq!(sleeps, 0);
    // A software device yields while another thread has one of its locks.
    assert!(yields <= if fixture.is_tcp() { 0 } else { 10 * CONNECTS }, "{yields} calls of sched_yield");
    // A connect that looked every millisecond would wait 50 times.
    assert!(waits <= 20 * CONNECTS, "{waits} calls that wait");
    Ok(())
}

/// Other calls would change what a forked child shares with its parent, or wait for a lock.
fn a_forked_child_only_closes_descriptors(fixture: &Fixture) -> Outcome {
    let (text, _) = traced_beside_peer(fixture, FORKING)?;
    let drops = test_harness::calls_between(&text, "getpriority");
    assert_eq!(drops.len(), FORKS);
    for (number, calls) in drops.iter().enumerate() {
        let closes = calls.iter().filter(|call| call.name == "close").count();
        let others: Vec<_> = calls.iter().filter(|call| !(call.name == "close" || is_local(call))).collect();
        assert!(others.is_empty(), "drop {number}: {} calls, first {:?}", others.len(), others[0]);
        // A listener of the connection manager has no descriptor that it could close alone.
        assert!(closes > 0 || fixture.is_by_cm(), "drop {number}: {calls:?}");
    }
    Ok(())
}

/// Whether a call only concerns the memory of the process, or asks for a descriptor's flags, as `std`
/// does before a close if it is built with debug assertions.
fn is_local(call: &SystemCall) -> bool {
    matches!(call.name.as_str(), "brk" | "mmap" | "munmap" | "madvise" | "mprotect" | "mremap")
        || (call.name == "fcntl" && call.arguments.ends_with("F_GETFD"))
}

/// Runs a part of a child process under strace, with the number of another one that accepts and reads
/// nothing. Returns what strace and the child have written.
fn traced_beside_peer(fixture: &Fixture, part: &str) -> Result<(String, String), Skip> {
    if !(fixture.is_soft() || fixture.is_tcp()) {
        skip!("the calls of a device's driver are not known");
    }
    if let Err(error) = Command::new("strace").arg("-V").output() {
        assert!(std::env::var_os(REQUIRE).is_none(), "strace (package strace) is missing: {error}");
        skip!("strace is missing");
    }
    let (peer, told) = ChildPeer::start_piped(ChildPeer::command(PEER, fixture.anywhere()));
    let mut addr = String::new();
    BufReader::new(told).read_line(&mut addr).unwrap();
    let part = format!("{part}{}", peer.id());
    Ok(traced(&ChildPeer::command(&part, addr.trim().parse().unwrap())))
}

/// Runs a child process under strace. Returns what both have written.
fn traced(command: &Command) -> (String, String) {
    let file = std::env::temp_dir().join(format!("trespass-{}.strace", std::process::id()));
    let mut strace = Command::new("strace");
    // The process stays a child of this one (-D), whose number is in the fabric's name.
    strace.args(["-D", "-f", "-q", "-o"]).arg(&file).arg(command.get_program()).stdin(Stdio::null());
    strace.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let (mut child, mut told) = ChildPeer::start_piped(strace);
    let mut reports = String::new();
    told.read_to_string(&mut reports).unwrap();
    let status = child.wait();
    assert!(status.success(), "{status}: {reports}");
    // strace may write on after the end of the child.
    let (mut text, id) = (String::new(), child.id().to_string());
    until("strace writes the last call", || {
        text = fs::read_to_string(&file).unwrap();
        let of_child = text.lines().filter_map(|line| line.strip_prefix(&id)?.split_once("exit_group("));
        of_child.into_iter().any(|(before, _)| before.trim().is_empty())
    });
    fs::remove_file(&file).unwrap();
    (text, reports)
}

/// Checks the calls of each round. Each report has the descriptors that do not block.
fn check(text: &str, reports: &str) {
    let drops = test_harness::calls_between(text, "getpriority");
    let reports: Vec<HashSet<&str>> = reports.lines().map(|line| line.split(' ').collect()).collect();
    let count = ROUNDS * rounds().count();
    assert_eq!((drops.len(), reports.len()), (count, count));
    let mut lingers = text.lines().filter(|line| line.contains("l_onoff=1"));
    assert!(lingers.all(|line| line.contains("l_linger=0}")), "a close could wait");
    let mut drops = drops.iter().zip(&reports);
    for (round, drops) in rounds().map(|round| (round, drops.by_ref().take(ROUNDS).collect::<Vec<_>>())) {
        let mut locks = Vec::new();
        for (calls, nonblocking) in drops {
            let mut nonblocking = nonblocking.clone();
            let mut blocking = Vec::new();
            for call in calls {
                if may_block(call, &mut nonblocking) {
                    blocking.push(call);
                }
            }
            let (at_lock, others): (Vec<_>, Vec<_>) =
                blocking.into_iter().partition(|call| ["futex", "sched_yield"].contains(&&*call.name));
            assert!(others.is_empty(), "{round:?}: {} calls, first {:?}", others.len(), others[0]);
            assert!(!calls.is_empty(), "{round:?}: a drop closes a descriptor");
            locks.push(at_lock);
        }
        assert!(locks.iter().any(Vec::is_empty), "{round:?}: each drop waits: {locks:?}");
    }
}

/// Whether a call may wait, for a peer or for time. A call that is not known may.
fn may_block<'a>(call: &'a SystemCall, nonblocking: &mut HashSet<&'a str>) -> bool {
    let SystemCall { name, arguments, result } = call;
    let first = arguments.split(", ").next().unwrap_or_default();
    let last = arguments.rsplit(", ").next().unwrap_or_default();
    match name.as_str() {
        "close" => {
            nonblocking.remove(first);
            false
        }
        "eventfd2" | "socket" | "socketpair" | "dup" | "timerfd_create" if arguments.contains("NONBLOCK") => {
            nonblocking.insert(result);
            false
        }
        "fcntl" if arguments.contains("F_SETFL") && arguments.contains("O_NONBLOCK") => {
            nonblocking.insert(first);
            false
        }
        "fcntl" => !["F_GETFL", "F_GETFD", "F_SETFD", "F_DUPFD"].iter().any(|call| arguments.contains(call)),
        // Memory, the process itself, and the state of a descriptor.
        "mmap" | "munmap" | "madvise" | "mprotect" | "mremap" | "brk" | "fallocate" | "process_vm_readv"
        | "process_vm_writev" | "membarrier" | "clock_gettime" | "gettid" | "getpid" | "getrandom"
        | "rt_sigprocmask" | "epoll_ctl" | "epoll_create1" | "fstat" | "newfstatat" | "getsockopt"
        | "setsockopt" | "shutdown" | "getsockname" | "getpeername" | "timerfd_settime" => false,
        // An eventfd, whose counter is far from its limit.
        "write" if arguments.ends_with(r#""\1\0\0\0\0\0\0\0", 8"#) => false,
        "poll" | "epoll_wait" => last != "0",
        "ppoll" => !arguments.contains("{tv_sec=0, tv_nsec=0}"),
        "futex" => !arguments.contains("FUTEX_WAKE"),
        "read" | "readv" | "preadv2" | "write" | "writev" | "recvfrom" | "recvmsg" | "sendto" | "sendmsg" => {
            let at_once = ["MSG_DONTWAIT", "RWF_NOWAIT"].iter().any(|flag| arguments.contains(flag));
            !(at_once || nonblocking.contains(first))
        }
        _ => true,
    }
}

/// Does the part of a child process. Returns whether it is one of these.
pub(crate) fn part_of_child(part: &str, fixture: &Fixture, addr: SocketAddr) -> bool {
    let process = |text: &str| Pid::from_raw(text.parse().unwrap()).unwrap();
    if part == PEER {
        accept_and_read_nothing(fixture);
    } else if let Some(peer) = part.strip_prefix(CONNECTING) {
        connect_often(fixture, addr, process(peer));
    } else if part.starts_with(FORKING) {
        drop_in_forked_children(fixture, addr);
    } else if let Some(peer) = part.strip_prefix(DROPPING) {
        for round in rounds() {
            (0..ROUNDS).for_each(|_| drop_one(fixture.builder(), addr, process(peer), round));
        }
    } else {
        return false;
    }
    // The end of the process would send what the peer does not take.
    // SAFETY: the call ends the process, and has no preconditions.
    unsafe { libc::_exit(0) };
}

/// What forked children drop: this many times.
const FORKS: usize = 8;

fn drop_in_forked_children(fixture: &Fixture, addr: SocketAddr) {
    let builder = || fixture.builder();
    for load in [Load::Nothing, Load::Full] {
        let mut stream = builder().connect(addr).unwrap();
        stream.set_nonblocking(true).unwrap();
        fill(load, |bytes| stream.write(bytes).map(drop));
        drop_in_forked_child(stream);
        let mut packets = builder().connect_seq_packet(addr).unwrap();
        packets.set_nonblocking(true).unwrap();
        fill(load, |bytes| packets.send(bytes));
        drop_in_forked_child(packets);
    }
    // The program has asked for the descriptors of this one.
    let stream = builder().connect(addr).unwrap();
    let _ = (stream.as_fd(), stream.writable_fd().unwrap());
    drop_in_forked_child(stream);
    let mut worker = Worker::new(&builder().build().unwrap()).unwrap();
    connect_by_worker(&mut worker, addr);
    drop_in_forked_child(worker);
    let (listener, _) = fixture.listener();
    // If the service thread is in a turn, the child cannot take the socket from it.
    thread::sleep(Duration::from_millis(200));
    drop_in_forked_child(listener);
    drop_in_forked_child(builder().start_connect(addr).unwrap());
}

fn drop_in_forked_child<T>(value: T) {
    // SAFETY: the child only drops its copy, which must not need another thread of the parent or a lock
    // that one may hold. The alarm ends it if it waits.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "{}", std::io::Error::last_os_error());
    if child == 0 {
        // SAFETY: the call has no memory as its argument.
        unsafe { libc::alarm(20) };
        mark();
        drop(value);
        mark();
        // SAFETY: ends the child at once, without handlers of the parent.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: the process is a child of this one, and `status` lives for the call.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
}

/// Connects, and drops the connections when no connect is left.
fn connect_often(fixture: &Fixture, addr: SocketAddr, peer: Pid) {
    // The first connect opens devices and starts threads.
    let mut streams = vec![fixture.builder().connect(addr).unwrap()];
    mark();
    for _ in 0..CONNECTS {
        kill_process(peer, Signal::STOP).unwrap();
        let going_on = thread::spawn(move || {
            rustix::event::poll(&mut [], Some(&super::ready::timespec(STOPPED))).unwrap();
            kill_process(peer, Signal::CONT).unwrap();
        });
        streams.push(fixture.builder().connect(addr).unwrap());
        going_on.join().unwrap();
    }
    mark();
}

fn accept_and_read_nothing(fixture: &Fixture) -> ! {
    let (listener, addr) = fixture.listener();
    println!("{addr}");
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut streams = Vec::new();
            loop {
                streams.push(listener.accept().unwrap());
            }
        });
        let mut packets = Vec::new();
        loop {
            packets.push(listener.accept_seq_packet().unwrap());
        }
    })
}

/// Makes a connection, loads it and drops it between two marks.
fn drop_one(builder: Builder, addr: SocketAddr, peer: Pid, round: (Dropped, bool, Load, bool)) {
    let (dropped, blocks, load, stopped) = round;
    let builder = if matches!(load, Load::Unreturned) { builder.linger(Duration::ZERO) } else { builder };
    let stop = || {
        if stopped {
            kill_process(peer, Signal::STOP).unwrap();
            until("the peer stops", || is_stopped(peer));
        }
    };
    match dropped {
        Dropped::Stream => {
            let mut stream = builder.connect(addr).unwrap();
            stop();
            stream.set_nonblocking(true).unwrap();
            fill(load, |bytes| stream.write(bytes).map(drop));
            stream.set_nonblocking(!blocks).unwrap();
            marked(|| drop(stream));
        }
        Dropped::SeqPacket => {
            let mut packets = builder.connect_seq_packet(addr).unwrap();
            stop();
            packets.set_nonblocking(true).unwrap();
            fill(load, |bytes| packets.send(bytes));
            packets.set_nonblocking(!blocks).unwrap();
            marked(|| drop(packets));
        }
        Dropped::Worker => {
            let mut worker = Worker::new(&builder.build().unwrap()).unwrap();
            let key = connect_by_worker(&mut worker, addr);
            stop();
            let mut events = Vec::new();
            fill(load, |bytes| {
                let written = worker.write(key, bytes).map(drop);
                worker.poll(&mut events, Some(Duration::ZERO)).unwrap();
                written
            });
            marked(|| drop(worker));
        }
    }
    faults::clear();
    kill_process(peer, Signal::CONT).unwrap();
}

fn connect_by_worker(worker: &mut Worker, addr: SocketAddr) -> Key {
    let (key, mut events) = (worker.connect(addr, Kind::Stream).unwrap(), Vec::new());
    until("connected", || {
        worker.poll(&mut events, Some(Duration::from_millis(10))).unwrap();
        events.iter().any(|event| matches!(event, Event::Connected { .. }))
    });
    key
}

fn fill(load: Load, mut write: impl FnMut(&[u8]) -> std::io::Result<()>) {
    const REFUSALS: u32 = 5;
    let mut refused = 0;
    match load {
        Load::Nothing => (),
        Load::FiftyKilobytes => write(&[7; 50_000]).unwrap(),
        Load::Unreturned => {
            faults::set(faults::parse("cq_overrun nth=1").unwrap(), 1).unwrap();
            write(&[7; 1000]).unwrap();
        }
        // What a refused call has left to send may make room.
        Load::Full => {
            while refused < REFUSALS {
                match write(&[7; 100_000]) {
                    Ok(()) => refused = 0,
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::WouldBlock);
                        refused += 1;
                        thread::sleep(Duration::from_millis(2));
                    }
                }
            }
        }
    }
}

/// Reports the descriptors that do not block, and calls a function between two marks.
fn marked(act: impl FnOnce()) {
    let flags = |name: &str| {
        let text = fs::read_to_string(format!("/proc/self/fdinfo/{name}")).ok()?;
        let flags = text.lines().find_map(|line| line.strip_prefix("flags:"))?;
        i32::from_str_radix(flags.trim(), 8).ok()
    };
    let names = fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().file_name());
    let nonblocking: Vec<String> = names
        .filter_map(|name| name.into_string().ok())
        .filter(|name| flags(name).is_some_and(|flags| flags & libc::O_NONBLOCK != 0))
        .collect();
    println!("{}", nonblocking.join(" "));
    mark();
    act();
    mark();
}

/// A call that strace shows.
fn mark() {
    // SAFETY: the call has no preconditions. Nothing else in this program makes it.
    unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
}

fn is_stopped(process: Pid) -> bool {
    let mut stat = String::new();
    let path = format!("/proc/{}/stat", process.as_raw_pid());
    fs::File::open(path).unwrap().read_to_string(&mut stat).unwrap();
    // The name of the program, which may have spaces, ends with the last bracket.
    stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T'))
}

fn until(event: &str, mut is_so: impl FnMut() -> bool) {
    let give_up = Instant::now() + LONG;
    while !is_so() {
        assert!(Instant::now() < give_up, "not in time: {event}");
        thread::sleep(Duration::from_millis(1));
    }
}
