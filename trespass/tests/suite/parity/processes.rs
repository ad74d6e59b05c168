//! The end of a process, a fork, an executed program, a restart, and a process without descriptors.

use std::any::Any;
use std::collections::BTreeSet;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use test_harness::{Outcome, bytes, skip};

use super::net::{Net, NetListener, NetStream, Own, Seen, Std, seen};
use super::{compare, compared};
use crate::death::ChildPeer;
use crate::fixture::{Fixture, LONG, read_exactly};

pub(crate) fn add(suite: &mut test_harness::Suite<Fixture>) {
    compared!(suite: the_end_of_a_process_sends_what_it_wrote, an_exit_sends_every_size, a_forked_child_drops_its_copies,
        an_executed_program_inherits_nothing, a_server_is_killed_and_starts_again);
    test_harness::cases!(suite: a_server_without_descriptors_goes_on);
}

/// Starts a child process for a task with sockets of this kind.
fn start<N: Net>(task: &str, addr: SocketAddr) -> ChildPeer {
    ChildPeer::start(&format!("{}: {task}", N::NAME), addr)
}

/// Does a task of this module, if it is one.
pub(crate) fn task_of_child(part: &str, fixture: &Fixture, addr: SocketAddr) -> bool {
    match part.split_once(": ") {
        Some((Std::NAME, task)) => run(&Std, task, addr),
        Some((Own::NAME, task)) => {
            let own = Own::new(fixture);
            let own = match task {
                FEW => own.with_fallback(),
                // With the linger time that programs have by default.
                task if task.starts_with(WRITE) => own,
                _ => own.with(|builder| builder.linger(LONG)),
            };
            run(&own, task, addr);
        }
        _ => return false,
    }
    true
}

/// The tasks of a child process. The ways to leave are others.
const SERVE: &str = "serve";
const FEW: &str = "serve with few descriptors";
const COUNT: &str = "count descriptors";
/// The number of bytes follows.
const WRITE: &str = "write and exit: ";

fn run<N: Net>(net: &N, task: &str, addr: SocketAddr) {
    match task {
        COUNT => print!("{}", open_descriptors()),
        SERVE => serve(&net.bind(addr).unwrap()),
        FEW => {
            let few = descriptors_of_a_server(net) + DESCRIPTORS;
            serve_with_few_descriptors(&net.bind(addr).unwrap(), few);
        }
        task if task.starts_with(WRITE) => {
            let len = task[WRITE.len()..].parse().unwrap();
            let mut stream = net.connect(addr).unwrap();
            stream.write_all(&bytes(len as u64, len)).unwrap();
            stream.flush().unwrap();
            std::process::exit(0);
        }
        way => leave(way, net.connect(addr).unwrap()),
    }
}

/// What a process has left to send when it ends.
const LEFT_BEHIND: usize = 700_000;

/// The states in which a process leaves its stream when it ends.
const WAYS_TO_LEAVE: [&str; 8] = [
    "dropped",
    "on the stack",
    "after small writes",
    "after a shutdown",
    "in a static",
    "leaked",
    "in a thread that reads",
    "in two threads",
];

/// Writes, and ends the process with the stream in this state. One way returns from `main`, and the
/// others call [`exit`](std::process::exit).
fn leave<S: NetStream>(way: &str, mut stream: S) {
    static STREAM: Mutex<Option<Box<dyn Any + Send>>> = Mutex::new(None);
    let data = bytes(16, LEFT_BEHIND);
    let piece = if way == "after small writes" { 10 } else { LEFT_BEHIND };
    if way != "in two threads" {
        data.chunks(piece).for_each(|piece| stream.write_all(piece).unwrap());
        stream.flush().unwrap();
    }
    match way {
        "dropped" => drop(stream),
        "on the stack" | "after small writes" => std::process::exit(0),
        "after a shutdown" => {
            stream.shutdown(Shutdown::Write).unwrap();
            std::process::exit(0);
        }
        "in a static" => return *STREAM.lock().unwrap() = Some(Box::new(stream)),
        "leaked" => std::mem::forget(stream),
        "in a thread that reads" => {
            thread::spawn(move || stream.read(&mut [0; 8]));
            thread::sleep(Duration::from_millis(50));
        }
        "in two threads" => {
            let stream = Arc::new(stream);
            let reading = stream.clone();
            thread::spawn(move || reading.shared().read(&mut [0; 8]));
            thread::sleep(Duration::from_millis(50));
            stream.shared().write_all(&data).unwrap();
        }
        way => panic!("{way:?} is no way to leave"),
    }
    std::process::exit(0);
}

/// The reader begins after a while.
fn the_end_of_a_process_sends_what_it_wrote<N: Net>(net: &N) -> Vec<(&'static str, bool, Seen<()>, bool)> {
    let (listener, addr) = net.listen();
    let leaves = |way| {
        let mut peer = start::<N>(way, addr);
        let mut stream = listener.accept().unwrap();
        thread::sleep(Duration::from_millis(150));
        let mut got = Vec::new();
        let end = seen(stream.read_to_end(&mut got).map(drop));
        drop(stream);
        (way, got == bytes(16, LEFT_BEHIND), end, peer.wait().success())
    };
    WAYS_TO_LEAVE.into_iter().map(leaves).collect()
}

/// What a late reader got from a process that wrote, and then ended: the number of bytes that it
/// wrote, whether all arrived, the end, and whether the process succeeded.
fn an_exit_sends_every_size<N: Net>(net: &N) -> Vec<(usize, bool, Seen<()>, bool)> {
    let exits = |len: usize| {
        let (listener, addr) = net.listen();
        let mut peer = start::<N>(&format!("{WRITE}{len}"), addr);
        let mut stream = listener.accept().unwrap();
        thread::sleep(Duration::from_millis(300));
        let mut got = Vec::new();
        let end = seen(stream.read_to_end(&mut got).map(drop));
        drop(stream);
        (len, got == bytes(len as u64, len), end, peer.wait().success())
    };
    [20_000, 100_000, 1_000_000].into_iter().map(exits).collect()
}

/// The parent's stream and listener go on.
fn a_forked_child_drops_its_copies<N: Net>(net: &N) -> (i32, bool, Vec<u8>) {
    let (listener, addr) = net.listen();
    let mut client = net.connect(addr).unwrap();
    let mut server = listener.accept().unwrap();
    client.write_all(b"before").unwrap();
    // SAFETY: the child only drops its copies, which must not need another thread of the parent or a
    // lock that one may hold (this is what the case shows). The alarm ends it if it waits.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "{}", std::io::Error::last_os_error());
    if child == 0 {
        // SAFETY: the call has no memory as its argument.
        unsafe { libc::alarm(20) };
        drop((client, server, listener));
        // SAFETY: ends the child at once, without handlers of the parent.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: the process is a child of this one, and `status` lives for the call.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    let sent = bytes(8, 300_000);
    let got = thread::scope(|scope| {
        scope.spawn(|| client.write_all(&sent).unwrap());
        read_exactly(&mut server, b"before".len() + sent.len())
    });
    let whole = got.strip_prefix(b"before").is_some_and(|rest| rest == sent);
    let mut second = net.connect(addr).unwrap();
    listener.accept().unwrap().write_all(b"after").unwrap();
    (status, whole, read_exactly(&mut second, 5))
}

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// The count of descriptors of a program that a process with a listener and a connection executes.
fn an_executed_program_inherits_nothing<N: Net>(net: &N) -> String {
    let (listener, addr) = net.listen();
    let pair = net.pair();
    let mut command = ChildPeer::command(&format!("{}: {COUNT}", N::NAME), addr);
    let output = command.stderr(Stdio::inherit()).output().unwrap();
    drop((listener, pair));
    String::from_utf8(output.stdout).unwrap()
}

/// Echoes a byte of each client, and keeps the streams, until the process is killed.
fn serve<L: NetListener<Stream: NetStream>>(listener: &L) {
    let mut kept = Vec::new();
    loop {
        let mut server = listener.accept().unwrap();
        let byte = read_exactly(&mut server, 1);
        server.write_all(&byte).unwrap();
        kept.push(server);
    }
}

/// An address at which a child process may listen. This process has never listened there, because
/// the software device's connection manager keeps the ports near one that it has given.
fn reserved<N: Net>(net: &N) -> SocketAddr {
    SocketAddr::new(net.anywhere().ip(), test_harness::free_port().unwrap())
}

/// Connects when the child process listens.
fn connect_when_it_listens<N: Net>(net: &N, addr: SocketAddr) -> N::Stream {
    let deadline = Instant::now() + LONG;
    loop {
        match net.connect(addr) {
            Ok(client) => return client,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// Connects to each server at the port, and learns of its end, which over this crate is always an
/// error.
fn a_server_is_killed_and_starts_again<N: Net>(net: &N) -> Vec<(Vec<u8>, bool)> {
    let addr = reserved(net);
    let round = |number| {
        let mut server = start::<N>(SERVE, addr);
        let mut client = connect_when_it_listens(net, addr);
        client.write_all(&[number]).unwrap();
        let echo = read_exactly(&mut client, 1);
        server.kill();
        let is_over = match seen(client.read(&mut [0])) {
            Ok(count) => count == 0,
            Err(kind) => kind == ErrorKind::ConnectionReset,
        };
        (echo, is_over)
    };
    (0..3).map(round).collect()
}

/// Clients of the server that has few descriptors.
const CLIENTS: usize = 60;
/// Descriptors that it may open beyond those of a listener and a connection.
const DESCRIPTORS: usize = 30;
/// The answer to the last clients.
const DONE: &str = "done";

/// The descriptors of this process while it has a listener and a connection. Clients of the listener
/// that it makes next come at any time, and have more.
fn descriptors_of_a_server<N: Net>(net: &N) -> usize {
    let (listener, addr) = net.listen();
    let _client = net.connect(addr).unwrap();
    let _server = listener.accept().unwrap();
    open_descriptors()
}

/// Accepts until a call fails. Then it tells the clients that it has why, drops them and goes on.
fn serve_with_few_descriptors<L: NetListener<Stream: NetStream>>(listener: &L, few: usize) {
    let limit = getrlimit(Resource::Nofile);
    let current = Some(few as u64);
    setrlimit(Resource::Nofile, Rlimit { current, ..limit }).unwrap();
    let (mut kept, mut accepted) = (Vec::new(), 0);
    let answer = |kept: &mut Vec<L::Stream>, text: &str| {
        kept.drain(..).for_each(|mut server: L::Stream| server.write_all(text.as_bytes()).unwrap());
    };
    while accepted < CLIENTS {
        match listener.accept() {
            Ok(server) => {
                accepted += 1;
                kept.push(server);
            }
            Err(error) => {
                answer(&mut kept, &format!("{:?}", error.kind()));
                thread::sleep(Duration::from_millis(1));
            }
        }
    }
    answer(&mut kept, DONE);
}

fn a_server_without_descriptors_goes_on(fixture: &Fixture) -> Outcome {
    fn answers<N: Net>(net: &N) -> (usize, BTreeSet<String>) {
        let addr = reserved(net);
        let mut server = start::<N>(FEW, addr);
        let answers: Vec<_> = thread::scope(|scope| {
            let ask = || {
                let (mut client, mut answer) = (connect_when_it_listens(net, addr), String::new());
                client.read_to_string(&mut answer).unwrap();
                answer
            };
            let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(ask)).collect();
            clients.into_iter().map(|client| client.join().unwrap()).collect()
        });
        assert!(server.wait().success());
        (answers.len(), answers.into_iter().collect())
    }
    if fixture.is_by_cm() {
        skip!("without descriptors there is no fallback for a connection that begins with rdma_cm");
    }
    compare(fixture, answers, |own: &Own| answers(&own.clone().with_fallback()))
}
