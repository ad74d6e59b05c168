//! Tests of processes of other users, and of other user namespaces.

use std::cell::RefCell;
use std::os::fd::{AsFd, OwnedFd};

use test_harness::report_skip;

use super::*;
use crate::node::{PortGuard, XrcdPresence};

const ONLY_ROOT: &str = "only root can be another user";
const NO_USER_NAMESPACE: &str = "unshare makes no user namespace here";

#[test]
fn another_user_gets_nothing() {
    if !rustix::process::geteuid().is_root() {
        return report_skip("another_user_gets_nothing", ONLY_ROOT);
    }
    let fabric = fabric();
    let process = TestNode::new(&fabric);
    // Each user has all numbers, so both may have the same by chance.
    let mut strangers = (0..5).map(|_| of_user(&fabric, Some(65534), &[]));
    let mut stranger = strangers.find(|stranger| block(stranger.qpn) != block(process.qpn)).expect("one");
    stranger.ask(&format!("remote {}", process.qpn), "nobody");
    assert!(matches!(process.node.wait_for_process(stranger.qpn, LONG), Reachability::Nobody));
    assert_eq!(process.node.state.peer_ids.iter().count(), 0);
    // Each side checks the user by itself.
    assert_eq!(stranger.ask(&format!("enter {}", process.qpn), ""), "refused");
    let bait = stranger.ask("bait", "bait ").parse().expect("a number");
    assert!(matches!(process.node.wait_for_process(bait, LONG), Reachability::Nobody));
    assert_eq!(stranger.ask("taken", ""), "nothing was sent");
    // The same holds for connection managers, and it does not matter which user has a port.
    assert_eq!(stranger.ask("port 7471", "port "), "7471");
    stranger.ask("squat 7472", "squatting");
    for port in [7471, 7472] {
        assert_eq!(process.node.find_port(1, port, Instant::now() + LONG, 1, true), None);
        assert_eq!(next(&process), HandlerCall::PortOwner(1, PortOwner::Nobody));
        // Each user has all ports, too.
        let _port = process.node.take_port(1, port).expect("free");
        let mut friend = of_user(&fabric, None, &[]);
        assert_eq!(friend.ask(&format!("port {port}"), "port "), "AddrInUse");
    }
    process.node.send_cm(block(stranger.qpn), b"hello").expect("it can be sent");
    assert_eq!(next(&process), HandlerCall::Gone(block(stranger.qpn)));
    // A second process of that user reaches the first.
    let mut friend = of_user(&fabric, Some(65534), &[]);
    friend.ask(&format!("remote {}", stranger.qpn), "linked ");
}

#[test]
fn another_user_namespace_copies_by_a_detour_and_says_so_once() {
    let works = Command::new("unshare").args(["-U", "-r", "true"]).stderr(Stdio::null()).status();
    if !works.is_ok_and(|status| status.success()) {
        return report_skip("another_user_namespace_copies_by_a_detour_and_says_so_once", NO_USER_NAMESPACE);
    }
    let fabric = fabric();
    let (process, second) = (TestNode::new(&fabric), TestNode::new(&fabric));
    let mut command = Command::new("unshare");
    command.args(["-U", "-r", "--"]).arg(std::env::current_exe().expect("a path"));
    let mut peer = ChildNode::run(&fabric, command);
    for qpn in [process.qpn, second.qpn] {
        assert!(peer.ask(&format!("remote {qpn}"), "linked ").ends_with("call"));
    }
    let warnings = peer.ask("warnings", "warnings ");
    assert!(warnings.starts_with("1 process_vm_writev"), "{warnings}");
    assert!(warnings.contains("user namespace"), "{warnings}");
}

#[test]
fn users_without_a_name_trust_nobody() {
    let works = Command::new("unshare").args(["-U", "true"]).stderr(Stdio::null()).status();
    if !works.is_ok_and(|status| status.success()) {
        return report_skip("users_without_a_name_trust_nobody", NO_USER_NAMESPACE);
    }
    let fabric = fabric();
    let process = TestNode::new(&fabric);
    let mut command = Command::new("unshare");
    command.args(["-U", "--"]).arg(std::env::current_exe().expect("a path"));
    let mut peer = ChildNode::run(&fabric, command);
    peer.ask(&format!("remote {}", process.qpn), "nobody");
    assert!(matches!(process.node.wait_for_process(peer.qpn, LONG), Reachability::Nobody));
    let warnings = peer.ask("warnings", "warnings ");
    assert!(warnings.contains("has no name"), "{warnings}");
}

/// A process that ends when its parent's test does not.
fn of_user(fabric: &str, user: Option<u32>, variables: &[(&str, &str)]) -> ChildNode {
    let mut command = Command::new(std::env::current_exe().expect("a path"));
    command.envs(variables.iter().copied());
    if let Some(user) = user {
        command.env(USER, user.to_string());
    }
    ChildNode::run(fabric, command)
}

thread_local! {
    static HELD: RefCell<Option<(PortGuard, XrcdPresence)>> = const { RefCell::new(None) };
}

/// The child's part: listens at the names of a port and of an XRC domain.
pub(super) fn hold(process: &TestNode) {
    let port = process.node.take_port(1, 7471).expect("free");
    let domain = process.node.enter_domain([1, 2], |_| Ok(())).expect("free");
    HELD.set(Some((port, domain)));
    say("held");
}

/// The child's part: frees them.
pub(super) fn release() {
    drop(HELD.take());
    say("released");
}

/// The names in the fabric at which a process listens.
fn names_of(fabric: &str, pid: u32) -> Vec<String> {
    let table = std::fs::read_to_string("/proc/net/unix").expect("proc");
    let begin = format!("@soft-rnic/{fabric}/");
    // Accepted connections have their listener's name, too.
    let listeners = table.lines().filter(|line| line.split(' ').nth(3) == Some("00010000"));
    let names = listeners.filter_map(|line| line.split_once(&begin).map(|(_, name)| name.to_owned()));
    let is_of = |name: &String| {
        let name = format!("soft-rnic/{fabric}/{name}");
        Socket::connect(name.as_bytes())
            .is_ok_and(|mut socket| socket.peer_of(Some(0)).is_ok_and(|who| who.pid == pid))
    };
    names.filter(is_of).map(|name| format!("soft-rnic/{fabric}/{name}")).collect()
}

/// A TCP connection with unsent data, which lingers for hours when it is closed, and its other end,
/// which does not read.
fn lingering(listener: &std::net::TcpListener) -> (OwnedFd, std::net::TcpStream) {
    use rustix::net::sockopt;
    let address = listener.local_addr().expect("an address");
    let stream = std::net::TcpStream::connect(address).expect("it listens");
    let (other, _) = listener.accept().expect("it has connected");
    sockopt::set_socket_send_buffer_size(&stream, 4096).expect("an option");
    sockopt::set_socket_linger(&stream, Some(Duration::from_secs(10_000))).expect("an option");
    stream.set_nonblocking(true).expect("an option");
    while rustix::io::write(&stream, &[0; 4096]).is_ok() {}
    (stream.into(), other)
}

pub(super) fn raise_limit_of_files() {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let limit = rustix::process::Rlimit { current: limit.maximum, ..limit };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).expect("the hard limit");
}

/// The stranger's part: binds every name that can be guessed, and names in the form of owners and of
/// claims.
pub(super) fn squat_all(process: &TestNode) {
    raise_limit_of_files();
    let fabric = &process.node.state.common.settings.fabric;
    let groups = (0..1024).map(|group| format!("cm/1/g{group}"));
    let domains = ["xrc/2-1", "xrc/2-1/lock", "xrc/2-1/open"].map(str::to_owned);
    let holders = (0..64).map(|holder| format!("xrc/2-1/{holder}"));
    let blocks = (1..=LAST_BLOCK).map(|block| block.to_string());
    let things = blocks.chain(groups).chain(domains).chain(holders).chain(["cm/1/p7471".to_owned()]);
    let mut taken = 0;
    for thing in things {
        for end in ["", "/0000000000000000", "/+0000000000000000"] {
            let name = format!("soft-rnic/{fabric}/{thing}{end}");
            if let Ok(socket) = Socket::listen(name.as_bytes()) {
                taken += 1;
                core::mem::forget(socket);
            }
        }
    }
    say(&format!("squatting {taken}"));
}

/// The stranger's part: fills the backlog of each name of a stopped process of root with connections
/// that bring a lingering descriptor.
pub(super) fn linger(process: &TestNode, pid: u32) {
    let fabric = &process.node.state.common.settings.fabric;
    raise_limit_of_files();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    rustix::net::sockopt::set_socket_recv_buffer_size(&listener, 2048).expect("an option");
    let (mut sent, mut refused) = (0, 0);
    for name in names_of(fabric, pid) {
        while let Ok(socket) = Socket::connect(name.as_bytes()) {
            let (stream, other) = lingering(&listener);
            match socket.send_with(b"x", &[stream.as_fd()]) {
                Ok(()) => sent += 1,
                Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
                    refused += 1;
                    // Nobody has another descriptor of it, so that closing this one would linger.
                    rustix::net::sockopt::set_socket_linger(&stream, None).expect("an option");
                }
                Err(error) => panic!("{error}"),
            }
            core::mem::forget(other);
        }
    }
    say(&format!("sent {sent} {refused}"));
}

/// A stop of any of the victim's threads lasts for hours, so that the test's time is over.
fn strangers_linger(variables: &[(&str, &str)]) -> (u32, u32) {
    let fabric = fabric();
    let mut victim = of_user(&fabric, None, variables);
    let mut stranger = of_user(&fabric, Some(65534), &[]);
    victim.ask("hold", "held");
    let (mut sent, mut refused) = (0, 0);
    // Five rounds or so: two names, and a backlog of 128 each.
    while sent + refused < 1000 {
        victim.stop();
        let counts = stranger.ask(&format!("linger {}", victim.child.id()), "sent ");
        victim.signal(Signal::CONT);
        let (sent_now, refused_now) = counts.split_once(' ').expect("two counts");
        assert_ne!(counts, "0 0", "the backlogs are empty");
        sent += sent_now.parse::<u32>().expect("a count");
        refused += refused_now.parse::<u32>().expect("a count");
        of_user(&fabric, None, &[]).ask(&format!("remote {}", victim.qpn), "linked ");
    }
    victim.leave_child("fork", "forked");
    victim.ask("release", "released");
    of_user(&fabric, None, &[]).ask(&format!("remote {}", victim.qpn), "linked ");
    writeln!(victim.input, "end").expect("it reads");
    eventually("it has ended", || victim.child.try_wait().expect("a child").is_some());
    (sent, refused)
}

#[test]
fn descriptors_of_strangers_delay_nobody() {
    if !rustix::process::geteuid().is_root() {
        return report_skip("descriptors_of_strangers_delay_nobody", ONLY_ROOT);
    }
    let (sent, refused) = strangers_linger(&[(OLD_KERNEL, "1")]);
    assert_eq!(refused, 0, "beside {sent} that were sent");
    let (sent, refused) = strangers_linger(&[]);
    // The kernel has `SO_PASSRIGHTS`, or lacks it.
    assert!(sent == 0 || refused == 0, "{sent} were sent, {refused} were refused");
}

/// A process of root that lowers its effective rights for a moment stays a process of root.
#[test]
fn lowered_rights_give_nothing_away() {
    if !rustix::process::geteuid().is_root() {
        return report_skip("lowered_rights_give_nothing_away", ONLY_ROOT);
    }
    let fabric = fabric();
    let mut victim = of_user(&fabric, None, &[]);
    victim.ask("effective 65534", "effective");
    let mut stranger = of_user(&fabric, Some(65534), &[]);
    stranger.ask(&format!("remote {}", victim.qpn), "nobody");
    assert_eq!(stranger.ask(&format!("enter {}", victim.qpn), ""), "refused");
    victim.ask(&format!("remote {}", stranger.qpn), "nobody");
    victim.ask("effective 0", "effective");
    of_user(&fabric, None, &[]).ask(&format!("remote {}", victim.qpn), "linked ");
}

/// Another user has bound every name that it can guess.
#[test]
fn names_that_strangers_have_bound_are_passed_over() {
    if !rustix::process::geteuid().is_root() {
        return report_skip("names_that_strangers_have_bound_are_passed_over", ONLY_ROOT);
    }
    let fabric = fabric();
    let mut stranger = of_user(&fabric, Some(65534), &[]);
    let taken: u32 = stranger.ask("squat-all", "squatting ").parse().expect("a count");
    assert!(taken > 3 * 2000, "{taken}");
    let old: &[_] = &[(OLD_KERNEL, "1")];
    for variables in [old, &[]] {
        let start = || of_user(&fabric, None, variables);
        let (mut one, mut other) = (start(), start());
        one.ask(&format!("remote {}", other.qpn), "linked ");
        other.ask(&format!("remote {}", one.qpn), "linked ");
        // A port, and an XRC domain.
        one.ask("hold", "held");
        assert_eq!(other.ask("port 7471", "port "), "AddrInUse");
        other.ask("port 0", "port ");
        ask_owners_of_port_and_domain(&fabric, &one);
    }
}

/// Asks for the owner of the port that a process holds, and whether the domain is open.
fn ask_owners_of_port_and_domain(fabric: &str, one: &ChildNode) {
    let process = TestNode::new(fabric);
    assert_eq!(process.node.find_port(1, 7471, Instant::now() + LONG, 1, true), None);
    assert_eq!(next(&process), HandlerCall::PortOwner(1, PortOwner::Block(block(one.qpn))));
    process.node.enter_domain([1, 2], |there| if there { Ok(()) } else { Err(0) }).expect("it is open");
}

/// Of all processes that start at once, no two have the same block, and each has one; one of them
/// gets the port that all want.
#[test]
fn processes_that_start_at_once_share_nothing() {
    start_at_once(&[]);
    start_at_once(&[(OLD_KERNEL, "1")]);
}

fn start_at_once(variables: &'static [(&str, &str)]) {
    let fabric = fabric();
    let start = || {
        std::thread::spawn({
            let fabric = fabric.clone();
            move || of_user(&fabric, None, variables)
        })
    };
    let threads: Vec<_> = (0..16).map(|_| start()).collect();
    let mut peers: Vec<_> = threads.into_iter().map(|thread| thread.join().expect("it starts")).collect();
    let blocks: std::collections::BTreeSet<_> = peers.iter().map(|peer| block(peer.qpn)).collect();
    assert_eq!(blocks.len(), peers.len());
    for port in 7000..7020 {
        for peer in &mut peers {
            writeln!(peer.input, "port {port}").expect("it reads");
        }
        let said: Vec<_> = peers.iter().map(|peer| peer.hear("port ")).collect();
        let (won, lost): (Vec<_>, Vec<_>) = said.into_iter().partition(|said| *said == port.to_string());
        assert_eq!(won.len(), 1, "{port}");
        assert!(lost.iter().all(|said| said == "AddrInUse"), "{lost:?}");
    }
}

/// Two containers with a network namespace in common: each has its own user and pid namespace, and
/// no XDG_RUNTIME_DIR.
#[test]
fn two_containers_of_one_network_find_each_other() {
    let container = ["-U", "-r", "-p", "-f"];
    let works = Command::new("unshare").args(container).arg("true").stderr(Stdio::null()).status();
    if !works.is_ok_and(|status| status.success()) {
        return report_skip(
            "two_containers_of_one_network_find_each_other",
            "unshare makes no user and pid namespace here",
        );
    }
    let fabric = fabric();
    let start = || {
        let mut command = Command::new("unshare");
        command.args(container).arg("--").arg(std::env::current_exe().expect("a path"));
        command.env_remove("XDG_RUNTIME_DIR");
        ChildNode::run(&fabric, command)
    };
    let (mut one, mut other) = (start(), start());
    assert_ne!(block(one.qpn), block(other.qpn));
    one.ask(&format!("remote {}", other.qpn), "linked ");
    other.ask(&format!("remote {}", one.qpn), "linked ");
    assert_eq!(one.ask("port 7471", "port "), "7471");
    assert_eq!(other.ask("port 7471", "port "), "AddrInUse");
}
