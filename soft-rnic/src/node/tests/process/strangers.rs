//! Tests of processes of other users, and of other user namespaces.

use super::*;

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
    let process = TestNode::new(&fabric);
    let mut command = Command::new(std::env::current_exe().expect("a path"));
    command.env(USER, "65534");
    let mut stranger = ChildNode::run(&fabric, command);
    assert_ne!(stranger.qpn >> 14, process.qpn >> 14, "numbers are unique over all users");
    stranger.ask(&format!("remote {}", process.qpn), "nobody");
    assert!(matches!(process.node.wait_for_process(stranger.qpn, LONG), Reachability::Nobody));
    assert_eq!(process.node.state.peer_ids.iter().count(), 0);
    // Each side checks the user by itself.
    assert_eq!(stranger.ask(&format!("enter {}", process.qpn), ""), "refused");
    writeln!(stranger.input, "bait").expect("it reads");
    let bait = stranger.hear("bait ").parse().expect("a number");
    assert!(matches!(process.node.wait_for_process(bait, LONG), Reachability::Nobody));
    assert_eq!(stranger.hear(""), "nothing was sent");
    // The same holds for connection managers, and it does not matter which user has a port.
    assert_eq!(stranger.ask("port 7471", "port "), "7471");
    stranger.ask("squat 7472", "squatting");
    for port in [7471, 7472] {
        assert_eq!(process.node.find_port(1, port, Instant::now() + LONG, 1, true), None);
        assert_eq!(next(&process), HandlerCall::PortOwner(1, PortOwner::Nobody));
        assert_eq!(
            process.node.take_port(1, port).map_err(|error| error.kind()).err(),
            Some(io::ErrorKind::AddrInUse)
        );
    }
    let port = process.node.take_port(1, 7473).expect("free");
    assert_eq!(stranger.ask("port 7473", "port "), "AddrInUse");
    drop(port);
    process.node.send_cm(block(stranger.qpn), b"hello").expect("it can be sent");
    assert_eq!(next(&process), HandlerCall::Gone(block(stranger.qpn)));
    // A second process of that user reaches the first.
    let mut command = Command::new(std::env::current_exe().expect("a path"));
    command.env(USER, "65534");
    let mut friend = ChildNode::run(&fabric, command);
    friend.ask(&format!("remote {}", stranger.qpn), "linked ");
}

#[test]
fn another_user_namespace_copies_by_a_detour_and_says_so_once() {
    let works = Command::new("unshare").args(["-U", "-r", "true"]).stderr(Stdio::null()).status();
    if !works.is_ok_and(|status| status.success()) {
        return skip("unshare makes no user namespace here");
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
        return skip("unshare makes no user namespace here");
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
