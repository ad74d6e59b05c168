//! Tests of the handshake over real TCP, with valid peers and with peers that send garbage, too
//! much, too little, or too slowly.

use std::cell::RefCell;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::rc::Rc;
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use super::fake::{ATTEMPT, FakeNetwork, FakePath, PathFaults, terms};
use super::{HandshakeError, HandshakeStep, NoPath, TcpHandshake, Terms, Transport};
use crate::wire::{Cause, Unavailable};
use crate::wire::{Features, HandshakeMessage, Policy, Ready, Reject, RejectReason, Role};

type Plain = Result<NoPath, Unavailable>;

fn none() -> Plain {
    Err(Unavailable::new(Cause::BuiltWithout, ""))
}

fn short(deadline: u64) -> Terms {
    Terms { deadline: Duration::from_millis(deadline), ..terms(Policy::Auto) }
}

/// A listener, and a socket connected to it.
fn pair() -> (TcpListener, TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let client = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
    let (server, _) = listener.accept().expect("accepted");
    (listener, client, server)
}

fn serve(stream: &TcpStream, terms: Terms) -> Result<super::Established<NoPath>, HandshakeError> {
    run(TcpHandshake::server(terms, none(), Instant::now()), stream)
}

fn connect(stream: &TcpStream, terms: Terms) -> Result<super::Established<NoPath>, HandshakeError> {
    run(TcpHandshake::client(terms, ATTEMPT, none(), Instant::now()), stream)
}

/// Drives one side to its end.
fn run(
    mut side: TcpHandshake<NoPath>,
    mut stream: &TcpStream,
) -> Result<super::Established<NoPath>, HandshakeError> {
    stream.set_nonblocking(true).expect("a socket");
    let result = loop {
        if let Poll::Ready(result) = side.progress(&mut stream, Instant::now) {
            break result;
        }
        thread::sleep(Duration::from_micros(50));
    };
    stream.set_nonblocking(false).expect("a socket");
    result
}

/// Bytes right behind the handshake stay in the socket for the next reader.
#[test]
fn both_sides_agree_and_nothing_is_read_beyond() {
    let (_listener, mut client, mut server) = pair();
    let other = thread::spawn(move || {
        let established = connect(&client, terms(Policy::Auto)).expect("a connection");
        client.write_all(b"the first frame").expect("sent");
        established.agreed
    });
    let established = serve(&server, terms(Policy::Auto)).expect("a connection");
    assert_eq!(established.transport(), Transport::Tcp);
    let reason = established.path.expect_err("no path");
    assert_eq!(reason.cause(), Cause::BuiltWithout);
    let mut frame = [0; 15];
    server.read_exact(&mut frame).expect("all of it");
    assert_eq!(&frame, b"the first frame");
    let agreed = other.join().expect("no panic");
    assert_eq!(agreed.attempt.conn_id, established.agreed.attempt.conn_id);
}

/// Drives several sides in turn, as a worker does.
fn drive(sides: &mut [(TcpHandshake<FakePath>, TcpStream)]) -> Vec<Transport> {
    for (_, stream) in sides.iter() {
        stream.set_nonblocking(true).expect("a socket");
    }
    let mut ends: Vec<Option<Transport>> = vec![None; sides.len()];
    let give_up = Instant::now() + Duration::from_secs(20);
    while ends.iter().any(Option::is_none) {
        assert!(Instant::now() < give_up, "{ends:?}");
        for ((side, stream), end) in sides.iter_mut().zip(&mut ends) {
            if end.is_none()
                && let Poll::Ready(result) = side.progress(stream, Instant::now)
            {
                *end = Some(result.expect("a connection").transport());
            }
        }
        thread::sleep(Duration::from_micros(50));
    }
    ends.into_iter().flatten().collect()
}

#[test]
fn non_blocking_both_sides_go_on_in_one_thread() {
    for (fails, expected) in [(false, Transport::Rdma), (true, Transport::Tcp)] {
        let network: Rc<RefCell<FakeNetwork>> = Rc::default();
        let (_listener, client, server) = pair();
        let faults = PathFaults { connect: fails, ..PathFaults::default() };
        let now = Instant::now();
        let here =
            TcpHandshake::client(terms(Policy::Auto), ATTEMPT, Ok(FakePath::new(&network, faults)), now);
        let path = Ok(FakePath::new(&network, PathFaults::default()));
        let there = TcpHandshake::server(terms(Policy::Auto), path, now);
        assert_eq!(drive(&mut [(here, client), (there, server)]), [expected; 2]);
    }
}

/// Goes on until the handshake is at that step.
fn reach(side: &mut TcpHandshake<FakePath>, mut stream: &TcpStream, step: HandshakeStep, at: Instant) {
    let give_up = Instant::now() + Duration::from_secs(20);
    while side.step() != step {
        assert!(Instant::now() < give_up, "{} does not end", side.step());
        assert!(side.progress(&mut stream, || at).is_pending());
        thread::sleep(Duration::from_micros(50));
    }
}

/// Both sides of a handshake whose path may lose probes, and their sockets.
struct Probing {
    network: Rc<RefCell<FakeNetwork>>,
    sides: [TcpHandshake<FakePath>; 2],
    sockets: [TcpStream; 2],
    now: Instant,
}

const CLIENT: usize = 0;
const SERVER: usize = 1;

impl Probing {
    /// The server has answered, and the client has not seen it.
    fn new(features: Features) -> Self {
        let network: Rc<RefCell<FakeNetwork>> = Rc::default();
        let (_listener, client, server) = pair();
        let now = Instant::now();
        let path = || Ok(FakePath::new(&network, PathFaults::default()));
        let terms = || Terms { features, ..terms(Policy::Auto) };
        let sides =
            [TcpHandshake::client(terms(), ATTEMPT, path(), now), TcpHandshake::server(terms(), path(), now)];
        let sockets = [client, server];
        sockets.iter().for_each(|socket| socket.set_nonblocking(true).expect("a socket"));
        let mut probing = Self { network, sides, sockets, now };
        assert!(probing.progress(CLIENT).is_pending());
        probing.reach(SERVER, HandshakeStep::Probe);
        probing
    }

    fn progress(&mut self, side: usize) -> Poll<Result<super::Established<FakePath>, HandshakeError>> {
        let now = self.now;
        self.sides[side].progress(&mut &self.sockets[side], || now)
    }

    fn reach(&mut self, side: usize, step: HandshakeStep) {
        reach(&mut self.sides[side], &self.sockets[side], step, self.now);
    }

    fn waits_for_completions(&mut self, side: usize) -> bool {
        self.sides[side].probing().is_some()
    }

    /// Continues a side whose probe was taken, until it has read the message behind the probe.
    fn miss_probe(&mut self, side: usize) {
        let give_up = Instant::now() + Duration::from_secs(20);
        while !self.waits_for_completions(side) {
            assert!(Instant::now() < give_up, "the message does not come");
            assert!(self.progress(side).is_pending());
        }
    }

    /// No message comes.
    fn is_late(&mut self, side: usize) {
        self.now += Duration::from_millis(50);
        assert!(self.sides[side].waits_for().deadline <= self.now);
        assert!(self.progress(side).is_pending());
        assert!(self.waits_for_completions(side));
    }
}

/// The client's question follows its probe, and the server's READY follows both probes. So each side
/// wakes up for the message alone. If the message or the probe is late, it waits for completions, too.
#[test]
fn a_side_waits_for_completions_only_if_they_are_late() {
    let known = terms(Policy::Auto).features;
    let mut probing = Probing::new(known);
    assert!(!probing.waits_for_completions(SERVER));
    probing.is_late(SERVER);
    for missing in [Features::ANNOUNCE, Features::ATTEND] {
        let mut probing = Probing::new(known.without(missing));
        assert!(probing.waits_for_completions(SERVER), "the client of an older version asks nothing");
    }

    let mut probing = Probing::new(known);
    probing.reach(CLIENT, HandshakeStep::Probe);
    assert!(probing.progress(CLIENT).is_pending());
    assert!(!probing.waits_for_completions(CLIENT));
    let probe = probing.network.borrow_mut().take(Role::Server).expect("the client's probe");
    probing.miss_probe(SERVER);
    probing.network.borrow_mut().leave(Role::Server, probe);
    probing.reach(SERVER, HandshakeStep::Ready);
    let probe = probing.network.borrow_mut().take(Role::Client).expect("the server's probe");
    probing.miss_probe(CLIENT);
    probing.network.borrow_mut().leave(Role::Client, probe);
    let Poll::Ready(Ok(established)) = probing.progress(CLIENT) else { panic!() };
    assert_eq!(established.transport(), Transport::Rdma);

    let mut probing = Probing::new(known);
    probing.reach(CLIENT, HandshakeStep::Probe);
    assert!(probing.progress(CLIENT).is_pending());
    probing.is_late(CLIENT);

    // A client that finds the server's probe at once asks nothing, and sends READY.
    let mut probing = Probing::new(known);
    let (conn_id, generation) = (ATTEMPT.conn_id, ATTEMPT.generation);
    let ready = Ready { conn_id, generation, role: Role::Client, verdict: Ok(()) };
    probing.sockets[CLIENT].write_all(&ready.encode()).expect("sent");
    probing.miss_probe(SERVER);
}

/// Both probes have come, but the server's time is up. It does not commit, because the client would
/// count the connection as established.
#[test]
fn a_server_whose_time_is_up_does_not_commit() {
    let mut probing = Probing::new(terms(Policy::Auto).features);
    probing.reach(CLIENT, HandshakeStep::Probe);
    assert!(probing.progress(CLIENT).is_pending());
    probing.now += terms(Policy::Auto).deadline;
    let Poll::Ready(Err(error)) = probing.progress(SERVER) else { panic!("it goes on") };
    assert!(matches!(error, HandshakeError::TimedOut { .. }), "{error}");
    probing.sockets[CLIENT].set_nonblocking(false).expect("a socket");
    // It answers the client's question first.
    let mut told = || read_message(&mut probing.sockets[CLIENT]);
    let (answer, last) = (told(), told());
    assert!(matches!(answer, HandshakeMessage::Probe(_)), "{answer:?}");
    assert!(matches!(last, HandshakeMessage::Reject(_)), "{last:?}");
}

/// The server has sent READY, and its time is up before the client's comes. The client may count the
/// connection as established, and another message would be data.
#[test]
fn nothing_is_sent_after_ready() {
    let network: Rc<RefCell<FakeNetwork>> = Rc::default();
    let (_listener, client, server) = pair();
    let mut now = Instant::now();
    let path = || Ok(FakePath::new(&network, PathFaults::default()));
    let terms = || terms(Policy::TcpOnly);
    let mut sides =
        [TcpHandshake::client(terms(), ATTEMPT, path(), now), TcpHandshake::server(terms(), path(), now)];
    let mut sockets = [client, server];
    sockets.iter().for_each(|socket| socket.set_nonblocking(true).expect("a socket"));
    assert!(sides[CLIENT].progress(&mut &sockets[CLIENT], || now).is_pending());
    reach(&mut sides[SERVER], &sockets[SERVER], HandshakeStep::Ready, now);
    let before = now;
    now += terms().deadline;
    let Poll::Ready(Err(error)) = sides[SERVER].progress(&mut &sockets[SERVER], || now) else {
        panic!("it goes on")
    };
    assert!(matches!(error, HandshakeError::TimedOut { step: HandshakeStep::Ready, .. }), "{error}");
    let Poll::Ready(Ok(established)) = sides[CLIENT].progress(&mut &sockets[CLIENT], || before) else {
        panic!("it has both READYs")
    };
    assert!(established.path.is_err());
    let read = sockets[CLIENT].read(&mut [0; 1]);
    assert!(matches!(&read, Err(error) if error.kind() == ErrorKind::WouldBlock), "{read:?}");
}

#[test]
fn waits_for_names_the_pending_event() {
    let (_listener, client, mut server) = pair();
    let now = Instant::now();
    let mut here: TcpHandshake<NoPath> = TcpHandshake::client(terms(Policy::Auto), ATTEMPT, none(), now);
    let waits_for = here.waits_for();
    assert!(waits_for.write && !waits_for.path);
    assert_eq!(waits_for.deadline, now + Duration::from_secs(5));
    client.set_nonblocking(true).expect("a socket");
    assert!(here.progress(&mut &client, Instant::now).is_pending());
    assert!(!here.waits_for().write);
    let hello = read_message(&mut server);
    assert!(matches!(hello, HandshakeMessage::Hello(_)), "{hello:?}");
}

fn read_message(stream: &mut TcpStream) -> HandshakeMessage {
    stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a socket");
    let mut bytes = vec![0; 16];
    stream.read_exact(&mut bytes).expect("a preamble");
    let total = u32::from_le_bytes(bytes[8..12].try_into().expect("four"));
    bytes.resize(total as usize, 0);
    stream.read_exact(&mut bytes[16..]).expect("a body");
    HandshakeMessage::decode(&bytes).expect("a message")
}

fn hello_bytes() -> Vec<u8> {
    hello_bytes_of(ATTEMPT.conn_id)
}

fn hello_bytes_of(conn_id: u64) -> Vec<u8> {
    let (now, attempt) = (Instant::now(), super::Attempt { conn_id, ..ATTEMPT });
    let mut machine =
        super::machine::HandshakeMachine::<NoPath>::client(terms(Policy::Auto), attempt, none(), now);
    std::mem::take(machine.outgoing())
}

/// A hostile client's bytes, whether it then closes, and the expected result.
struct Hostile {
    name: &'static str,
    sends: Vec<u8>,
    closes: bool,
    refused: fn(&HandshakeError) -> bool,
    /// The rejection that it receives.
    told: Option<RejectReason>,
}

fn hostile() -> Vec<Hostile> {
    let hello = hello_bytes();
    let at = |at: usize, with: &[u8]| {
        let mut bytes = hello.clone();
        bytes[at..at + with.len()].copy_from_slice(with);
        bytes
    };
    let ready = Ready { conn_id: 0, generation: 0, role: Role::Client, verdict: Ok(()) }.encode();
    let reject = Reject::new(RejectReason::Busy, (0, 0), "no".into()).encode();
    let case = |name, sends, closes, refused, told| Hostile { name, sends, closes, refused, told };
    use HandshakeError as E;
    vec![
        case("nothing", vec![], true, |e| matches!(e, E::Closed { step: HandshakeStep::Hello }), None),
        case(
            "another protocol",
            b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(),
            false,
            |e| matches!(e, E::OtherProtocol(magic) if magic == b"GET "),
            None,
        ),
        case("zeros", vec![0; 8192], false, |e| matches!(e, E::OtherProtocol(_)), None),
        case("half a preamble", hello[..9].to_vec(), true, |e| matches!(e, E::Closed { .. }), None),
        case("half a HELLO", hello[..50].to_vec(), true, |e| matches!(e, E::Closed { .. }), None),
        case(
            "too long",
            at(8, &u32::MAX.to_le_bytes()),
            false,
            |e| matches!(e, E::Malformed(text) if text.contains("a message of 4294967295 bytes")),
            Some(RejectReason::Malformed),
        ),
        case(
            "too short",
            at(8, &[8, 0, 0, 0]),
            false,
            |e| matches!(e, E::Malformed(text) if text.contains("a message of 8 bytes")),
            Some(RejectReason::Malformed),
        ),
        case(
            "a bad checksum",
            at(20, &[0xff]),
            false,
            |e| matches!(e, E::Malformed(text) if text.contains("the checksum")),
            Some(RejectReason::Malformed),
        ),
        case(
            "READY first",
            ready,
            false,
            |e| matches!(e, E::Malformed(text) if text.ends_with("came where it must not")),
            Some(RejectReason::Malformed),
        ),
        case(
            "HELLO twice",
            [hello.clone(), hello.clone()].concat(),
            false,
            |e| matches!(e, E::Malformed(text) if text.ends_with("came where it must not")),
            None,
        ),
        case(
            "HELLO, then nothing",
            hello.clone(),
            true,
            |e| matches!(e, E::Closed { step: HandshakeStep::Ready }),
            None,
        ),
        case("a rejection", reject, false, |e| matches!(e, E::Rejected { .. }), None),
    ]
}

/// A listener continues after any client, and rejects those that can read it.
#[test]
fn a_listener_outlives_hostile_clients() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound");
    for case in hostile() {
        let mut client = TcpStream::connect(address).expect("connected");
        let (server, _) = listener.accept().expect("accepted");
        client.write_all(&case.sends).expect("sent");
        if case.closes {
            client.shutdown(Shutdown::Write).expect("a socket");
        }
        let error = serve(&server, short(10_000)).expect_err(case.name);
        assert!((case.refused)(&error), "{}: {error:?}", case.name);
        drop(server);
        if let Some(reason) = case.told {
            let HandshakeMessage::Reject(reject) = read_message(&mut client) else { panic!("{}", case.name) };
            assert_eq!(reject.reason, reason, "{}", case.name);
        }
    }
    let client =
        thread::spawn(move || connect(&TcpStream::connect(address).expect("connected"), short(10_000)));
    let (server, _) = listener.accept().expect("accepted");
    serve(&server, short(10_000)).expect("a good client is served");
    client.join().expect("no panic").expect("a connection");
}

/// A server's bytes, and the expected error.
type Refused = (&'static str, Vec<u8>, fn(&HandshakeError) -> bool);

/// A client names what it connected to instead of a listener of this kind.
#[test]
fn a_client_outlives_hostile_servers() {
    use HandshakeError as E;
    let own = Ready { conn_id: ATTEMPT.conn_id, generation: 3, role: Role::Server, verdict: Ok(()) }.encode();
    let strange: Vec<u8> = (0..17).flat_map(|_| hello_bytes_of(ATTEMPT.conn_id ^ 1)).collect();
    let cases: [Refused; 7] = [
        ("nothing", vec![], |e| matches!(e, E::Closed { step: HandshakeStep::Hello })),
        (
            "a web server",
            b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(),
            |e| matches!(e, E::OtherProtocol(magic) if magic == b"HTTP"),
        ),
        (
            "a mail server, which then waits",
            b"220 ready\r\n".to_vec(),
            |e| matches!(e, E::OtherProtocol(magic) if magic == b"220 "),
        ),
        ("READY first", own, |e| matches!(e, E::Malformed(text) if text.ends_with("came where it must not"))),
        ("another client", hello_bytes(), |e| matches!(e, E::Role("client"))),
        (
            "messages of other connections",
            strange,
            |e| matches!(e, E::Malformed(text) if text.ends_with("came where it must not")),
        ),
        ("half a HELLO", hello_bytes()[..40].to_vec(), |e| {
            matches!(e, E::Closed { step: HandshakeStep::Hello })
        }),
    ];
    for (name, sends, refused) in cases {
        let (_listener, client, mut server) = pair();
        server.write_all(&sends).expect("sent");
        server.shutdown(Shutdown::Write).expect("a socket");
        let error = connect(&client, short(10_000)).expect_err(name);
        assert!(refused(&error), "{name}: {error:?}");
    }
}

/// The deadline ends a client that sends single bytes slowly.
#[test]
fn a_slow_client_is_dropped_at_the_deadline() {
    let (_listener, mut client, server) = pair();
    let slow = thread::spawn(move || {
        for byte in hello_bytes() {
            if client.write_all(&[byte]).is_err() {
                break;
            }
            thread::sleep(Duration::from_millis(20));
        }
        client
    });
    let error = serve(&server, short(300)).expect_err("too slow");
    assert!(matches!(error, HandshakeError::TimedOut { step: HandshakeStep::Hello, .. }), "{error:?}");
    drop(server);
    slow.join().expect("no panic");
}

#[test]
fn a_silent_peer_is_dropped_at_the_deadline() {
    let (_listener, client, server) = pair();
    let error = serve(&server, short(50)).expect_err("nothing comes");
    assert!(matches!(error, HandshakeError::TimedOut { step: HandshakeStep::Hello, .. }), "{error:?}");
    assert_eq!(std::io::Error::from(error).kind(), ErrorKind::TimedOut);
    // The client receives the rejection.
    let error = connect(&client, short(10_000)).expect_err("refused");
    assert!(matches!(error, HandshakeError::Rejected { reason: RejectReason::TimedOut, .. }), "{error:?}");
    let (_listener, client, _server) = pair();
    let error = connect(&client, short(50)).expect_err("nothing comes");
    assert!(matches!(error, HandshakeError::TimedOut { step: HandshakeStep::Hello, .. }), "{error:?}");
}

/// Bytes that arrive one at a time have the same result as bytes that arrive together.
#[test]
fn a_dripping_client_is_served() {
    let (_listener, mut client, server) = pair();
    let dripping = thread::spawn(move || {
        client.set_nodelay(true).expect("a socket");
        for byte in hello_bytes() {
            client.write_all(&[byte]).expect("sent");
        }
        let HandshakeMessage::Hello(hello) = read_message(&mut client) else { panic!("HELLO first") };
        let HandshakeMessage::Ready(_) = read_message(&mut client) else { panic!("READY next") };
        let verdict = Err(Unavailable::new(Cause::NoDevice, ""));
        let ready =
            Ready { conn_id: hello.conn_id, generation: hello.generation, role: Role::Client, verdict };
        client.write_all(&ready.encode()).expect("sent");
        client
    });
    serve(&server, terms(Policy::Auto)).expect("a connection");
    dripping.join().expect("no panic");
}

/// A stream that accepts one byte at a time, blocks every other time, and returns no data.
struct Narrow {
    turn: bool,
    taken: Vec<u8>,
}

impl Read for Narrow {
    fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
        Err(ErrorKind::WouldBlock.into())
    }
}

impl Write for Narrow {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.turn = !self.turn;
        if self.turn {
            return Err(ErrorKind::WouldBlock.into());
        }
        self.taken.push(bytes[0]);
        Ok(1)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_full_socket_loses_nothing() {
    let mut narrow = Narrow { turn: false, taken: Vec::new() };
    let mut client: TcpHandshake<NoPath> =
        TcpHandshake::client(terms(Policy::Auto), ATTEMPT, none(), Instant::now());
    while client.waits_for().write {
        assert!(client.progress(&mut narrow, Instant::now).is_pending());
    }
    assert_eq!(narrow.taken, hello_bytes());
}

/// The refusal by policy needs no network.
#[test]
fn a_client_that_requires_rdma_and_has_none_says_so_at_once() {
    let (_listener, client, _server) = pair();
    let required = Terms { policy: Policy::RequireRdma, ..short(10_000) };
    let error = connect(&client, required).expect_err("refused");
    assert_eq!(
        error.to_string(),
        "this side requires RDMA, and there is none: this side was built without RDMA; build it with the feature `rdma`"
    );
    assert_eq!(error.kind(), ErrorKind::Unsupported);
}
