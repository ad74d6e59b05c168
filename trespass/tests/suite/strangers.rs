//! A listener and a client against malicious peers that start with the connection manager: raw
//! identifiers and queue pairs that send anything.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use sideway::ibverbs::completion::GenericCompletionQueue;
use sideway::ibverbs::device_context::DeviceContext;
use sideway::ibverbs::queue_pair::{GenericQueuePair, PostSendGuard, QueuePair, WorkRequestFlags};
use sideway::rdmacm::{self, ConnectionParameter, Connector, EventError};
use sideway::soft::{self, faults};
use test_harness::{Outcome, bytes, cases};
use trespass::{
    Bootstrap, Builder, Cause, ConnectError, HandshakeError, HandshakeStep, Listener, Policy, RejectReason,
    Side,
};

use super::fixture::{Fixture, LONG, ask_for_streams, below, greet, random};

pub(crate) fn add(suite: &mut test_harness::Suite<Fixture>) {
    cases!(suite: garbage_with_a_request_costs_a_listener_nothing, another_version_is_told_so,
        silent_clients_are_dropped_at_the_deadline, the_silent_do_not_keep_others_out, a_disconnect_right_after_hello_is_noticed, a_hello_that_is_none_ends_that_connection,
        a_server_of_something_else_is_told_so, a_server_that_does_not_answer_is_given_up,
        a_rejection_in_words_is_told, nothing_is_left_of_connections_and_of_strangers,
        lost_and_repeated_connection_requests_are_survived, device_failures_are_reported, a_number_that_the_peer_remembers_is_not_used,
        where_no_device_leads_is_told);
}

/// The bytes of a message with a valid beginning, and `units` units of 8 bytes in its fixed part.
fn message(kind: u8, major: u8, units: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = b"TRSP".to_vec();
    let total = (16 + body.len()) as u32;
    bytes.extend_from_slice(&[kind, major, 0, units]);
    bytes.extend_from_slice(&total.to_le_bytes());
    let mut crc = crc32fast::Hasher::new();
    crc.update(&bytes);
    crc.update(body);
    bytes.extend_from_slice(&crc.finalize().to_le_bytes());
    bytes.extend_from_slice(body);
    bytes
}

/// The private data of a request (role 1) or an answer (role 2) for a stream: 64 slots of 8 KiB,
/// and a HELLO of `hello` bytes.
fn hail(major: u8, role: u8, conn_id: [u8; 8], hello: u16) -> Vec<u8> {
    let mut body = vec![3, 0, 0, 0, 0, 0, 0, 0];
    body.extend_from_slice(&conn_id);
    body.extend_from_slice(&[0, 0, 0, 0, role, 1, 13, 0, 64, 0]);
    body.extend_from_slice(&hello.to_le_bytes());
    body.extend_from_slice(&[0; 4]);
    message(5, major, 6, &body)
}

/// A queue pair and its resources.
struct RawQueuePair {
    qp: GenericQueuePair,
    _cq: GenericCompletionQueue,
}

fn raw(context: &DeviceContext) -> RawQueuePair {
    let cq = context.create_cq_builder().build_generic().unwrap();
    let mut builder = context.alloc_pd().unwrap().create_qp_builder();
    builder.setup_send_cq(&cq).setup_recv_cq(&cq).setup_max_inline_data(256);
    RawQueuePair { qp: builder.build_generic().unwrap(), _cq: cq }
}

impl RawQueuePair {
    fn say(&mut self, bytes: &[u8]) {
        let mut list = self.qp.start_post_send();
        list.construct_wr(1, WorkRequestFlags::Signaled).setup_send().setup_inline_data(bytes);
        list.post().unwrap();
    }
}

type RawConnection = (RawQueuePair, rdmacm::Connection);

/// Requests a connection with this private data.
fn ask(addr: SocketAddr, data: &[u8]) -> Result<RawConnection, rdmacm::ConnectError> {
    let mut connector = Connector::resolve(addr, LONG)?;
    connector.set_timeout(Some(LONG));
    let mut raw = raw(&connector.get_device_context().unwrap());
    let connection = connector.connect(&mut raw.qp, ConnectionParameter::new().setup_private_data(data))?;
    Ok((raw, connection))
}

/// Accepts the next request; `answer` makes the private data from the client's.
fn accept(listener: &rdmacm::Listener, answer: impl FnOnce(&[u8]) -> Vec<u8>) -> RawConnection {
    let request = listener.get_request_timeout(LONG).unwrap().expect("a request");
    let answer = answer(request.private_data());
    let mut raw = raw(&request.get_device_context().unwrap());
    let connection = request.accept(&mut raw.qp, ConnectionParameter::new().setup_private_data(&answer));
    (raw, connection.unwrap())
}

/// Accepts one stream while `other` runs.
fn serving<T: Send>(fixture: &Fixture, listener: &Listener, other: impl FnOnce() -> T + Send) -> T {
    let addr = listener.local_addr().unwrap();
    ask_for_streams(listener);
    thread::scope(|scope| {
        let other = scope.spawn(other);
        let client = scope.spawn(|| {
            // After the other client.
            thread::sleep(Duration::from_millis(30));
            fixture.builder().connect(addr).unwrap()
        });
        let (mut server, _) = listener.accept().unwrap();
        greet(&mut client.join().unwrap(), &mut server);
        let deadline = Instant::now() + LONG;
        while !other.is_finished() {
            assert!(Instant::now() < deadline, "a stranger waits for ever");
            thread::sleep(Duration::from_millis(1));
        }
        ask_for_streams(listener);
        other.join().unwrap()
    })
}

/// The private data of a rejection.
fn words(refused: Result<RawConnection, rdmacm::ConnectError>) -> Vec<u8> {
    match refused.map(drop) {
        Err(rdmacm::ConnectError::Event(EventError::Rejected { private_data, .. })) => private_data,
        other => panic!("{other:?}"),
    }
}

/// The reason code of a REJECT, and its text.
fn reject(words: &[u8]) -> (u16, String) {
    assert_eq!(&words[..5], b"TRSP\x02", "{words:02x?}");
    let len = usize::from(u16::from_le_bytes([words[22], words[23]]));
    let text = String::from_utf8(words[24..24 + len].to_vec()).unwrap();
    (u16::from_le_bytes([words[16], words[17]]), text)
}

/// The cause of a failed connection.
fn failure(error: &io::Error) -> &ConnectError {
    error.get_ref().and_then(|inner| inner.downcast_ref()).unwrap_or_else(|| panic!("{error:?}"))
}

fn garbage_with_a_request_costs_a_listener_nothing(fixture: &Fixture) -> Outcome {
    let (listener, addr) = fixture.listener();
    let good = hail(1, 1, [7; 8], 64);
    for round in 0..12 {
        let mut random = random(round);
        let mut data = match round % 3 {
            // Any bytes, or none.
            0 => bytes(round, below(&mut random, 57)),
            1 => good[..below(&mut random, good.len())].to_vec(),
            _ => good.clone(),
        };
        if round % 3 == 2 {
            let at = below(&mut random, data.len());
            data[at] ^= 0x55;
        }
        let told = serving(fixture, &listener, || words(ask(addr, &data)));
        if data.starts_with(b"TRSP") {
            assert_eq!(reject(&told).0, 2, "malformed: {data:02x?}");
        } else {
            assert!(told.iter().all(|byte| *byte == 0), "who speaks something else is told nothing");
        }
    }
    Ok(())
}

/// A newer client reads the reason, in a form that every version understands.
fn another_version_is_told_so(fixture: &Fixture) -> Outcome {
    let (listener, addr) = fixture.listener();
    let told = serving(fixture, &listener, || words(ask(addr, &hail(2, 1, [7; 8], 64))));
    let (reason, text) = reject(&told);
    assert_eq!(reason, 1);
    assert_eq!(text, "it speaks version 1.0 of the protocol, and you 2.0; update the older one");
    // This version reads a newer one's rejection, too.
    let (there, addr) = stranger(fixture);
    let error = thread::scope(|scope| {
        scope.spawn(|| {
            let request = there.get_request_timeout(LONG).unwrap().expect("a request");
            let mut body = vec![1, 0, 2, 0, 1, 0, 6, 0];
            body.extend_from_slice(b"update\0\0");
            request.reject(&message(2, 2, 3, &body)).unwrap();
        });
        fixture.builder().connect(addr).unwrap_err()
    });
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    let ConnectError::Handshake { source: HandshakeError::Rejected { reason, text, major, minor }, .. } =
        failure(&error)
    else {
        panic!("{error:?}")
    };
    assert_eq!((*reason, text.as_str(), *major, *minor), (RejectReason::Version, "update", 2, 0));
    Ok(())
}

/// A client that sends the CM private data but no HELLO is disconnected when its time is over;
/// other clients still connect.
fn silent_clients_are_dropped_at_the_deadline(fixture: &Fixture) -> Outcome {
    let deadline = Duration::from_millis(300);
    let listener = fixture
        .builder()
        .probe_timeout(deadline / 2)
        .handshake_deadline(deadline)
        .bind(fixture.anywhere())
        .unwrap();
    let addr = listener.local_addr().unwrap();
    let took = serving(fixture, &listener, || {
        let (_raw, connection) = ask(addr, &hail(1, 1, [7; 8], 64)).unwrap();
        let before = Instant::now();
        assert!(connection.wait_disconnected(LONG).unwrap(), "it is kept for ever");
        before.elapsed()
    });
    assert!(took >= deadline / 3, "it had only {took:?}");
    Ok(())
}

fn the_silent_do_not_keep_others_out(fixture: &Fixture) -> Outcome {
    let (listener, addr) = fixture.listener();
    // More clients than a listener handles at a time; they have sent their private data, and stay.
    let silent = serving(fixture, &listener, || {
        (0..200).map(|_| ask(addr, &hail(1, 1, [7; 8], 64)).unwrap()).collect::<Vec<_>>()
    });
    let before = Instant::now();
    for _ in 0..3 {
        serving(fixture, &listener, || ());
    }
    assert!(before.elapsed() < LONG, "{:?}", before.elapsed());
    drop(silent);
    serving(fixture, &listener, || ());
    Ok(())
}

/// The HELLO that matches such private data.
fn hello(conn_id: [u8; 8]) -> Vec<u8> {
    let mut body = vec![3, 0, 0, 0, 0, 0, 0, 0];
    body.extend_from_slice(&conn_id);
    body.extend_from_slice(&[0, 0, 0, 0, 1, 1, 0, 0]);
    for limit in [8192_u32, 64, 65536] {
        body.extend_from_slice(&limit.to_le_bytes());
    }
    body.extend_from_slice(&[16, 0, 8, 8]);
    body.extend_from_slice(&(1_u64 << 30).to_le_bytes());
    message(1, 1, 8, &body)
}

/// The handshake is complete, but the client leaves before the listener has looked: an accepted
/// connection has then ended, which its first call reports.
fn a_disconnect_right_after_hello_is_noticed(fixture: &Fixture) -> Outcome {
    let (listener, addr) = fixture.listener();
    listener.set_nonblocking(true).unwrap();
    let ((connected, is_connected), (go, goes)) = (mpsc::channel(), mpsc::channel());
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut connector = Connector::resolve(addr, LONG).unwrap();
            connector.set_timeout(Some(LONG));
            let context = connector.get_device_context().unwrap();
            let mut raw = raw(&context);
            connector.prepare(&mut raw.qp).unwrap();
            // A receive for the listener's HELLO, which this client does not read.
            let pool = raw.qp.control().pd().create_pool_builder().setup_slices(8192, 1).build().unwrap();
            let mut receives = pool.attach_recv(raw.qp.start_post_recv()).unwrap();
            receives.construct_wr(1).setup_slice(pool.take().unwrap());
            receives.post().unwrap();
            let hail = hail(1, 1, [7; 8], 64);
            let mut parameter = ConnectionParameter::new();
            parameter.setup_private_data(&hail);
            let connection = connector.connect(&mut raw.qp, &parameter).unwrap();
            connected.send(()).unwrap();
            goes.recv().unwrap();
            raw.say(&hello([7; 8]));
            drop(connection);
            connected.send(()).unwrap();
            // The queue pair and its memory stay while the peer may write to them.
            goes.recv().unwrap();
        });
        let deadline = Instant::now() + LONG;
        while is_connected.try_recv().is_err() {
            assert!(Instant::now() < deadline);
            assert_eq!(listener.accept().map(drop).unwrap_err().kind(), ErrorKind::WouldBlock);
        }
        go.send(()).unwrap();
        is_connected.recv().unwrap();
        // A device that works when it is polled may not have sent the message before its client
        // left: then no connection arises.
        let until = Instant::now() + Duration::from_secs(1);
        let accepted = loop {
            match listener.accept() {
                Ok((stream, _)) => break Some(stream),
                Err(_) if Instant::now() > until => break None,
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
        };
        go.send(()).unwrap();
        let is_inline = soft::statistics().is_some_and(|told| told.mode == soft::Mode::Inline);
        assert!(accepted.is_some() || !is_inline, "a device that works at once has sent it");
        if let Some(mut stream) = accepted {
            stream.set_read_timeout(Some(LONG)).unwrap();
            let error = io::Read::read(&mut stream, &mut [0; 8]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
        }
    });
    listener.set_nonblocking(false).unwrap();
    serving(fixture, &listener, || ());
    Ok(())
}

/// Too short, too long, another message, or nothing: each costs only its connection.
fn a_hello_that_is_none_ends_that_connection(fixture: &Fixture) -> Outcome {
    let (listener, addr) = fixture.listener();
    let says: [Vec<u8>; 6] =
        [vec![], vec![0; 64], bytes(3, 64), vec![0; 63], vec![0; 65], hail(1, 1, [7; 8], 64)];
    for said in says {
        serving(fixture, &listener, || {
            let (mut raw, connection) = ask(addr, &hail(1, 1, [7; 8], 64)).unwrap();
            raw.say(&said);
            assert!(connection.wait_disconnected(LONG).unwrap(), "{said:02x?}");
        });
    }
    Ok(())
}

/// A listener of the connection manager that does not speak this crate's protocol.
fn stranger(fixture: &Fixture) -> (rdmacm::Listener, SocketAddr) {
    let listener = rdmacm::Listener::bind(fixture.anywhere(), 8).unwrap();
    let addr = listener.local_addr().and_then(|addr| addr.ip()).unwrap();
    (listener, addr)
}

fn a_server_of_something_else_is_told_so(fixture: &Fixture) -> Outcome {
    type Refused = fn(&HandshakeError) -> bool;
    let answers: [(Vec<u8>, Refused); 4] = [
        (
            b"220 mail.example ESMTP".to_vec(),
            |e| matches!(e, HandshakeError::OtherProtocol(magic) if magic == b"220 "),
        ),
        (vec![], |e| matches!(e, HandshakeError::OtherProtocol(_) | HandshakeError::Malformed(_))),
        (hail(2, 2, [7; 8], 64), |e| matches!(e, HandshakeError::Version { major: 2, .. })),
        // Private data of another attempt.
        (
            hail(1, 2, [7; 8], 64),
            |e| matches!(e, HandshakeError::Malformed(text) if text.ends_with("came where it must not")),
        ),
    ];
    for (answer, expected) in answers {
        let (listener, addr) = stranger(fixture);
        let error = thread::scope(|scope| {
            scope.spawn(|| {
                let request = listener.get_request_timeout(LONG).unwrap().expect("a request");
                let mut raw = raw(&request.get_device_context().unwrap());
                let mut parameter = ConnectionParameter::new();
                // The client disconnects instead of going on, before or after the accept.
                let _ = request.accept(&mut raw.qp, parameter.setup_private_data(&answer));
            });
            fixture.builder().connect(addr).unwrap_err()
        });
        assert_eq!(error.kind(), ErrorKind::InvalidData, "{error}");
        let ConnectError::Handshake { source, .. } = failure(&error) else { panic!("{error:?}") };
        assert!(expected(source), "{source:?}");
    }
    Ok(())
}

/// The server does not answer the request, or it answers and sends no HELLO: the client's time is
/// bounded in either case.
fn a_server_that_does_not_answer_is_given_up(fixture: &Fixture) -> Outcome {
    let deadline = Duration::from_millis(300);
    // The foreign server has posted no receive, for which a device would give up sooner.
    let impatient = || {
        let builder = fixture.builder().rnr_retry(7);
        builder.probe_timeout(deadline / 2).handshake_deadline(deadline)
    };
    let timed_out = |error: &io::Error| match failure(error) {
        ConnectError::Handshake { source: HandshakeError::TimedOut { step, after }, .. } => {
            assert_eq!((*after, error.kind()), (deadline, ErrorKind::TimedOut));
            *step
        }
        other => panic!("{other:?}"),
    };
    let (listener, addr) = stranger(fixture);
    let error = impatient().connect(addr).unwrap_err();
    assert_eq!(timed_out(&error), HandshakeStep::Answer, "{error}");
    drop(listener);
    let (listener, addr) = stranger(fixture);
    let (error, _connected) = thread::scope(|scope| {
        let accepting = scope.spawn(|| {
            accept(&listener, |asked| {
                assert_eq!(&asked[..5], b"TRSP\x05");
                hail(1, 2, asked[24..32].try_into().unwrap(), 64)
            })
        });
        (impatient().connect(addr).unwrap_err(), accepting.join().unwrap())
    });
    assert_eq!(timed_out(&error), HandshakeStep::Hello, "{error}");
    Ok(())
}

fn a_rejection_in_words_is_told(fixture: &Fixture) -> Outcome {
    let (listener, addr) = fixture.listener();
    let error = serving(fixture, &listener, || fixture.builder().connect_seq_packet(addr).unwrap_err());
    assert!(error.to_string().contains("use the same type on both sides"), "{error}");
    let ConnectError::Handshake { source: HandshakeError::Rejected { reason, .. }, .. } = failure(&error)
    else {
        panic!("{error:?}")
    };
    assert_eq!(*reason, RejectReason::Kind);
    // The rejection has no private data, because nothing listens there.
    drop(listener);
    let error = fixture.builder().connect(addr).unwrap_err();
    assert!(matches!(failure(&error), ConnectError::RdmaCm { .. }), "{error:?}");
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    assert!(error.to_string().contains(&addr.to_string()), "{error}");
    // The builder refuses impossible combinations.
    let builder = Builder::new().bootstrap(Bootstrap::RdmaCm).policy(Policy::TcpOnly);
    assert_eq!(builder.connect(addr).unwrap_err().kind(), ErrorKind::InvalidInput);
    Ok(())
}

/// The numbers of descriptors other than memory's, and of a software device's queue pairs,
/// completion queues and identifiers.
fn held() -> (usize, u32, u32, u32) {
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap();
    let links = descriptors.filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok());
    // Memory's descriptors belong to the process's pool, which grows with the number of open
    // connections.
    let descriptors = links.filter(|link| !link.starts_with("/memfd:sideway (deleted)")).count();
    let Some(statistics) = soft::statistics() else { return (descriptors, 0, 0, 0) };
    let queue_pairs = statistics.queue_pairs.iter().map(|pairs| pairs.count).sum();
    (descriptors, queue_pairs, statistics.completion_queues, statistics.identifiers.count)
}

fn nothing_is_left_of_connections_and_of_strangers(fixture: &Fixture) -> Outcome {
    let once = || {
        let (listener, addr) = fixture.listener();
        let short = || {
            fixture
                .builder()
                .probe_timeout(Duration::from_millis(20))
                .handshake_deadline(Duration::from_millis(50))
        };
        serving(fixture, &listener, || {
            // One attempt of each kind: refused, disconnected, silent, and foreign.
            words(ask(addr, b"nonsense"));
            drop(ask(addr, &hail(1, 1, [7; 8], 64)).unwrap());
            let (mut raw, connection) = ask(addr, &hail(1, 1, [7; 8], 64)).unwrap();
            raw.say(b"nonsense");
            assert!(connection.wait_disconnected(LONG).unwrap());
            fixture.builder().connect_seq_packet(addr).unwrap_err();
        });
        let (_silent, silent_addr) = stranger(fixture);
        short().connect(silent_addr).unwrap_err();
        drop(listener);
        fixture.builder().connect(addr).unwrap_err();
    };
    once();
    // The device's thread closes its connections to other processes when it finds that they have
    // ended.
    let nap = || thread::sleep(Duration::from_millis(5));
    let before = (0..40).map(|_| (nap(), held()).1).min().unwrap();
    for _ in 0..10 {
        once();
    }
    let deadline = Instant::now() + LONG;
    while held() != before {
        assert!(Instant::now() < deadline, "{before:?} before, {:?} after", held());
        nap();
    }
    Ok(())
}

/// Rules for the CM messages of the software device, removed when this is dropped.
struct FaultRules;

impl FaultRules {
    fn set(text: &str) -> Self {
        faults::set(faults::parse(text).unwrap(), 1).unwrap();
        Self
    }
}

impl Drop for FaultRules {
    fn drop(&mut self) {
        faults::clear();
    }
}

fn lost_and_repeated_connection_requests_are_survived(fixture: &Fixture) -> Outcome {
    if !fixture.is_soft() {
        test_harness::skip!("the device is not one that loses messages when it is told to");
    }
    for rule in [
        "drop cm=req nth=1",
        "drop cm=rep nth=1",
        // The client's last CM message: data over the queue pair proves that it was sent.
        "drop cm=rtu",
        "delay=20ms cm=rtu",
        "duplicate=2 cm=req,rep,rtu,dreq",
    ] {
        let _rules = FaultRules::set(rule);
        let (mut client, mut server) = fixture.streams();
        greet(&mut client, &mut server);
        drop(client);
        assert_eq!(io::Read::read(&mut server, &mut [0; 8]).unwrap(), 0, "{rule}");
    }
    Ok(())
}

/// The connection has no TCP fallback, so a reason to fall back is an error instead, and the
/// listener keeps working.
fn device_failures_are_reported(fixture: &Fixture) -> Outcome {
    if !fixture.is_soft() {
        test_harness::skip!("the device is not one that fails when it is told to");
    }
    let (listener, addr) = fixture.listener();
    let refused = |rule: &str, listener: &Listener| {
        let _rules = FaultRules::set(rule);
        thread::scope(|scope| {
            let client = scope.spawn(|| fixture.builder().connect(addr).unwrap_err());
            listener.set_nonblocking(true).unwrap();
            while !client.is_finished() {
                assert_eq!(listener.accept().map(drop).unwrap_err().kind(), ErrorKind::WouldBlock);
                thread::sleep(Duration::from_millis(1));
            }
            listener.set_nonblocking(false).unwrap();
            client.join().unwrap()
        })
    };
    for (rule, cause) in [
        ("errno=ENOMEM call=create_qp", Cause::QueuePairs),
        ("errno=EINVAL call=modify_qp nth=1", Cause::Connect),
        ("status=retry_exc_err opcode=send nth=1", Cause::ProbeFailed),
    ] {
        let error = refused(rule, &listener);
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{rule}: {error}");
        let ConnectError::Handshake { source: HandshakeError::RdmaRequired { reason, .. }, .. } =
            failure(&error)
        else {
            panic!("{rule}: {error:?}")
        };
        assert_eq!((reason.side(), reason.cause()), (Side::Local, cause), "{rule}");
        serving(fixture, &listener, || ());
    }
    // The second side to bring up its queue pair is the server, which reports the failure.
    let error = refused("errno=EINVAL call=modify_qp nth=2", &listener);
    let ConnectError::Handshake { source: HandshakeError::Rejected { reason, text, .. }, .. } =
        failure(&error)
    else {
        panic!("{error:?}")
    };
    assert_eq!(*reason, RejectReason::RdmaRequired);
    assert!(text.contains("it could not connect its queue pair"), "{text}");
    serving(fixture, &listener, || ());
    Ok(())
}

/// A retry uses a queue pair with another number.
fn a_number_that_the_peer_remembers_is_not_used(fixture: &Fixture) -> Outcome {
    if !fixture.is_soft() {
        test_harness::skip!("the device is not one that rejects requests when it is told to");
    }
    let rules = FaultRules::set("reject=10 cm=req first=3");
    let (mut client, mut server) = fixture.streams();
    greet(&mut client, &mut server);
    drop((rules, client, server));
    // The client gives up in bounded time.
    let _rules = FaultRules::set("reject=10 cm=req");
    let (_listener, addr) = fixture.listener();
    let error = fixture.builder().connect(addr).unwrap_err();
    assert!(matches!(failure(&error), ConnectError::RdmaCm { .. }), "{error:?}");
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    Ok(())
}

/// None of the system's devices has a loopback address.
fn where_no_device_leads_is_told(fixture: &Fixture) -> Outcome {
    if fixture.is_soft() {
        test_harness::skip!(
            "software devices have every address of their host, and peers may have any other"
        );
    }
    let nowhere: SocketAddr = "127.0.0.1:7".parse().unwrap();
    let error = fixture.builder().connect(nowhere).unwrap_err();
    assert!(matches!(failure(&error), ConnectError::RdmaCm { .. }), "{error:?}");
    assert_eq!(error.kind(), ErrorKind::AddrNotAvailable);
    assert!(error.to_string().contains("no RDMA device leads there"), "{error}");
    Ok(())
}
