//! A fork: the listener stays the parent's, whatever the child does with its copy.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::thread;

use trespass::{Builder, Listener, Policy, Stream};

/// Runs `child` in a forked process, which it ends with success if it returns `true`.
fn fork(child: impl FnOnce() -> bool) -> i32 {
    // SAFETY: the child only calls `child` and `_exit`. Other threads of this process, which do not
    // exist there, are the service thread and the test harness; `child` uses none of their locks.
    let id = unsafe { libc::fork() };
    assert!(id >= 0, "{}", std::io::Error::last_os_error());
    if id == 0 {
        let code = if child() { 0 } else { 1 };
        // SAFETY: ends the child at once, without the parent's handlers.
        unsafe { libc::_exit(code) };
    }
    id
}

fn wait_for(id: i32) -> i32 {
    let mut status = 0;
    // SAFETY: the process is a child of this one, and `status` lives for the call.
    assert_eq!(unsafe { libc::waitpid(id, &raw mut status, 0) }, id);
    status
}

fn says_hello(listener: &Listener) {
    let addr = listener.local_addr().unwrap();
    let client = thread::spawn(move || Builder::new().policy(Policy::TcpOnly).connect(addr).unwrap());
    let (server, _): (Stream, _) = listener.accept().unwrap();
    assert_eq!(server.peer_addr().unwrap(), client.join().unwrap().local_addr().unwrap());
}

#[test]
fn a_listener_stays_the_parents() {
    alone!(a_listener_stays_the_parents);
    let listener = Builder::new().policy(Policy::TcpOnly).bind("127.0.0.1:0").unwrap();
    says_hello(&listener);
    let mut copy = Some(listener);
    let child = {
        let copy = &mut copy;
        fork(move || {
            let Some(listener) = copy.take() else { return false };
            let error = listener.accept().unwrap_err();
            drop(listener);
            error.to_string().contains("bind another one in the child")
        })
    };
    assert_eq!(wait_for(child), 0, "the child's call did not fail as documented");
    says_hello(copy.as_ref().unwrap());
}

/// Nobody listens any more when both have dropped it, although the child lives.
#[test]
fn a_child_lets_go_of_the_port() {
    alone!(a_child_lets_go_of_the_port);
    let listener = Builder::new().policy(Policy::TcpOnly).bind("127.0.0.1:0").unwrap();
    says_hello(&listener);
    let addr = listener.local_addr().unwrap();
    let (mut here, mut there) = UnixStream::pair().unwrap();
    let mut copy = Some(listener);
    let child = {
        let copy = &mut copy;
        fork(move || {
            drop(copy.take());
            there.write_all(b"!").is_ok() && there.read(&mut [0]).is_ok()
        })
    };
    here.read_exact(&mut [0]).unwrap();
    drop(copy);
    assert_eq!(TcpStream::connect(addr).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    here.write_all(b"!").unwrap();
    assert_eq!(wait_for(child), 0);
}

/// The service thread of the parent is not in the child, which gets its own.
#[test]
fn a_child_may_listen() {
    alone!(a_child_may_listen);
    let listener = Builder::new().policy(Policy::TcpOnly).bind("127.0.0.1:0").unwrap();
    says_hello(&listener);
    let child = fork(|| {
        let own = Builder::new().policy(Policy::TcpOnly).bind("127.0.0.1:0").unwrap();
        says_hello(&own);
        true
    });
    assert_eq!(wait_for(child), 0);
    says_hello(&listener);
}
