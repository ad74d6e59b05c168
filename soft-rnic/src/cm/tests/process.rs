//! Tests with several processes: the test program runs itself again, as a program that listens or
//! connects, and can be stopped and killed.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rdma_mummy_sys::types::ibv_qp_type;

use crate::cm::types::{CmEvent, CmEventKind, ConnParams, Ece, IdNumber, PortSpace};
use crate::cm::{CmEventChannel, ConnectionManager};
use crate::node::NodeHandler;
use crate::objects::rnic::Rnic;

/// A timeout that only a failing operation reaches.
const LONG: Duration = Duration::from_secs(60);

/// Prints a line for the parent, marked by a prefix.
fn say(what: &str) {
    println!("\n@{what}");
}

#[test]
#[ignore = "a child process, which other tests start"]
fn program() {
    if std::env::var("SOFT_RNIC_FABRIC").is_err() {
        return;
    }
    let manager = ConnectionManager::acquire().expect("a connection manager");
    let program = CmProgram { channel: manager.channel().expect("a channel"), manager };
    say("ready");
    for line in std::io::stdin().lines().map(|line| line.expect("text")) {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |place: usize| words[place].parse::<u32>().expect("a number");
        match words[0] {
            "listen" => {
                let port = program.listen(number(1) as u16);
                say(&format!("port {port}"));
            }
            "serve" => program.serve(number(1)),
            "connect" => {
                let took = program.connect(number(1), number(2) as u16);
                say(&format!("connected {}", took.as_micros()));
            }
            "try" => say(&program.attempt(number(1) as u16)),
            "hold" => {
                let (id, event) = program.ask(number(1) as u16);
                assert_eq!(event.kind, CmEventKind::ConnectResponse, "{event:?}");
                program.manager.accept(id, None, Ece::default()).expect("there is a response");
                say("held");
                let event = program.next();
                say(&format!("then {:?} {}", event.kind, event.status));
            }
            "counts" => say(&format!("counts {:?}", program.manager.counts())),
            "fork" => say(&format!("forked {}", program.fork(number(1)))),
            other => panic!("{other}?"),
        }
    }
}

struct CmProgram {
    manager: Arc<ConnectionManager>,
    channel: Arc<CmEventChannel>,
}

impl CmProgram {
    fn create(&self) -> IdNumber {
        let tcp = PortSpace::Tcp;
        self.manager.create(&self.channel, 1, tcp, ibv_qp_type::IBV_QPT_RC).expect("an id")
    }

    fn next(&self) -> CmEvent {
        self.channel.take().expect("an event")
    }

    fn listen(&self, port: u16) -> u16 {
        let id = self.create();
        self.manager.bind(id, SocketAddr::from(([127, 0, 0, 1], port))).expect("a free port");
        self.manager.listen(id, 0).expect("it is bound");
        self.manager.route(id).expect("it is there").source.expect("it is bound").port()
    }

    /// Accepts `left` connections, and follows them to their end.
    fn serve(&self, mut left: u32) {
        say("serving");
        while left > 0 {
            let event = self.next();
            match event.kind {
                CmEventKind::ConnectRequest => {
                    let id = event.request.expect("an id for it");
                    self.manager.set_uid(id, 1).expect("it is there");
                    // The requester may be gone.
                    let _ = self.manager.accept(id, Some(&ConnParams::default()), Ece::default());
                }
                CmEventKind::Disconnected => {
                    self.manager.disconnect(event.id).expect("it was connected");
                    self.manager.destroy(event.id).expect("it is there");
                    left -= 1;
                }
                _ => {}
            }
        }
        say("served");
    }

    /// Makes, uses and ends `count` concurrent connections. Returns how long making them took.
    fn connect(&self, count: u32, port: u16) -> Duration {
        let to = SocketAddr::from(([127, 0, 0, 1], port));
        let begin = Instant::now();
        let mut open = HashMap::new();
        for _ in 0..count {
            let id = self.create();
            self.manager.resolve_addr(id, None, to, LONG).expect("an address");
            open.insert(id, false);
        }
        let mut made = 0;
        while made < count {
            let CmEvent { kind, id, status, .. } = self.next();
            assert_eq!(status, 0, "{kind:?}");
            match kind {
                CmEventKind::AddrResolved => self.manager.resolve_route(id).expect("it is resolved"),
                CmEventKind::RouteResolved => {
                    self.manager.connect(id, &ConnParams::default(), Ece::default()).expect("it is resolved");
                }
                CmEventKind::ConnectResponse => {
                    self.manager.accept(id, None, Ece::default()).expect("there is a response");
                    made += 1;
                }
                _ => panic!("{kind:?} came"),
            }
        }
        let took = begin.elapsed();
        open.keys().for_each(|id| self.manager.disconnect(*id).expect("it is connected"));
        while !open.is_empty() {
            let event = self.next();
            if event.kind == CmEventKind::Disconnected {
                self.manager.destroy(event.id).expect("it is there");
                open.remove(&event.id);
            }
        }
        took
    }

    /// Requests a connection, and returns the result.
    fn ask(&self, port: u16) -> (IdNumber, CmEvent) {
        let id = self.create();
        self.manager
            .resolve_addr(id, None, SocketAddr::from(([127, 0, 0, 1], port)), LONG)
            .expect("an address");
        assert_eq!(self.next().kind, CmEventKind::AddrResolved);
        self.manager.resolve_route(id).expect("it is resolved");
        assert_eq!(self.next().kind, CmEventKind::RouteResolved);
        self.manager.connect(id, &ConnParams::default(), Ece::default()).expect("it is resolved");
        (id, self.next())
    }

    /// Forks `times` times, while the service thread handles events all the time. Returns how many
    /// children in a row could acquire a separate manager at once.
    fn fork(&self, times: u32) -> usize {
        let (rnic, over) = (Rnic::acquire().expect("it is there"), AtomicBool::new(false));
        let has_one = || {
            // SAFETY: the child only acquires a manager and exits. Its correctness after a fork, in
            // which other threads do not exist, is what this test checks.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: `alarm` accesses no memory of this process.
                unsafe { libc::alarm(5) };
                let made = ConnectionManager::acquire().and_then(|manager| manager.channel().map(drop));
                // SAFETY: `_exit` ends the child without running handlers of the parent.
                unsafe { libc::_exit(made.is_err().into()) };
            }
            let mut status = -1;
            // SAFETY: the child belongs to this process, and `status` is a local.
            let ended = unsafe { libc::waitpid(child, &raw mut status, 0) };
            (ended, status) == (child, 0)
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    rnic.cm_timer();
                }
            });
            let good = (0..times).take_while(|_| has_one()).count();
            over.store(true, Ordering::Relaxed);
            good
        })
    }

    fn attempt(&self, port: u16) -> String {
        let (id, event) = self.ask(port);
        self.manager.destroy(id).expect("it is there");
        format!("came {:?} {}", event.kind, event.status)
    }
}

/// The test program running as a child.
struct ProgramRun {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
}

fn addresses() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("cm-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

impl ProgramRun {
    fn start(addresses: &str) -> Self {
        let program = std::env::current_exe().expect("a path");
        let mut child = Command::new(program)
            .args(["--exact", "cm::tests::process::program", "--ignored", "--nocapture", "--test-threads=1"])
            .env("SOFT_RNIC_FABRIC", addresses)
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
        let run = Self { child, input, lines };
        run.receive("ready");
        run
    }

    /// The rest of the next line, which must begin with `beginning`.
    #[track_caller]
    fn receive(&self, beginning: &str) -> String {
        let line = self.lines.recv_timeout(LONG).unwrap_or_else(|_| panic!("did not say {beginning:?}"));
        line.strip_prefix(beginning).unwrap_or_else(|| panic!("said {line:?}, not {beginning:?}")).to_owned()
    }

    fn tell(&mut self, command: &str) {
        writeln!(self.input, "{command}").expect("it reads");
    }

    #[track_caller]
    fn ask(&mut self, command: &str, answer: &str) -> String {
        self.tell(command);
        self.receive(answer)
    }

    fn listen(&mut self, port: u16) -> u16 {
        self.ask(&format!("listen {port}"), "port ").parse().expect("a number")
    }

    fn kill(&mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it has ended");
    }
}

impl Drop for ProgramRun {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
#[cfg_attr(miri, ignore = "Miri has one process")]
fn processes_connect_by_the_hundred() {
    let addresses = addresses();
    let (mut server, mut client, mut other) =
        (ProgramRun::start(&addresses), ProgramRun::start(&addresses), ProgramRun::start(&addresses));
    let port = server.listen(0);
    server.ask("serve 400", "serving");
    client.tell(&format!("connect 200 {port}"));
    other.ask(&format!("connect 200 {port}"), "connected ");
    client.receive("connected ");
    server.receive("served");
    // The timers of ended connections are removed with their ids.
    assert_eq!(client.ask("counts", "counts "), "[0, 0, 0, 0, 0, 0]");
    assert_eq!(server.ask("counts", "counts "), "[1, 1, 0, 0, 0, 0]");
}

#[test]
#[cfg_attr(miri, ignore = "Miri has one process")]
fn nobody_of_another_process_listens() {
    let addresses = addresses();
    let (mut server, mut client) = (ProgramRun::start(&addresses), ProgramRun::start(&addresses));
    assert_eq!(client.ask("try 700", "came "), "Rejected 8");
    server.listen(701);
    assert_eq!(client.ask("try 700", "came "), "Rejected 8");
    // A port without an owner in the same group of ports.
    let port = server.listen(0);
    let neighbour = if port.is_multiple_of(64) { port + 1 } else { port - 1 };
    assert_eq!(client.ask(&format!("try {neighbour}"), "came "), "Rejected 8");
    // A process of another fabric.
    let mut stranger = ProgramRun::start(&self::addresses());
    assert_eq!(stranger.ask("try 701", "came "), "Rejected 8");
}

#[test]
#[cfg_attr(miri, ignore = "Miri has one process")]
fn a_server_is_killed_and_comes_back() {
    let addresses = addresses();
    let (mut server, mut client, mut waiter) =
        (ProgramRun::start(&addresses), ProgramRun::start(&addresses), ProgramRun::start(&addresses));
    server.listen(700);
    server.ask("serve 9", "serving");
    client.ask("hold 700", "held");
    server.kill();
    assert_eq!(client.receive("then "), "Disconnected 0");
    assert_eq!(client.ask("try 700", "came "), "Rejected 8");

    // The server is killed before it answers.
    let mut server = ProgramRun::start(&addresses);
    server.listen(700);
    waiter.tell("try 700");
    std::thread::sleep(Duration::from_millis(200));
    server.kill();
    assert_eq!(waiter.receive("came "), "Rejected 28");

    // The cached owner of the port is wrong and looked up again.
    let mut server = ProgramRun::start(&addresses);
    server.listen(700);
    server.ask("serve 9", "serving");
    for run in [&mut client, &mut waiter] {
        run.ask("connect 2 700", "connected ");
    }
}

#[test]
#[cfg_attr(miri, ignore = "Miri has one process")]
fn a_client_is_killed() {
    let addresses = addresses();
    let (mut server, mut client, mut other) =
        (ProgramRun::start(&addresses), ProgramRun::start(&addresses), ProgramRun::start(&addresses));
    server.listen(700);
    server.ask("serve 1", "serving");
    client.ask("hold 700", "held");
    client.kill();
    server.receive("served");
    assert_eq!(server.ask("counts", "counts "), "[1, 1, 0, 0, 0, 0]");
    server.ask("serve 3", "serving");
    other.ask("connect 3 700", "connected ");
    server.receive("served");
}

#[test]
#[cfg_attr(miri, ignore = "Miri has one process")]
fn a_forked_child_has_a_manager_of_its_own_whatever_its_parents_thread_did() {
    assert_eq!(ProgramRun::start(&addresses()).ask("fork 200", "forked "), "200");
}
