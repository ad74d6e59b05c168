//! What a listener and a client get from those who mean no good, where connections begin with the connection manager: raw identifiers and
//! queue pairs that say what they like.

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
    Bootstrap, Builder, Cause, CmError, ConnectError, HandshakeError, Listener, Policy, RejectReason, Side,
    Step, WireError,
};

use super::rig::{LONG, Rig, below, greet, random};

pub(crate) fn add(suite: &mut test_harness::Suite<Rig>) {
    cases!(suite: garbage_with_a_request_costs_a_listener_nothing, another_version_is_told_so,
        who_asks_and_says_no_more_is_given_up, the_silent_do_not_keep_others_out, who_hangs_up_behind_its_hello_is_noticed, a_hello_that_is_none_ends_that_connection,
        a_server_of_something_else_is_told_so, a_server_that_does_not_answer_is_given_up,
        a_rejection_in_words_is_told, nothing_is_left_of_connections_and_of_strangers,
        what_the_network_does_to_requests_is_survived, what_the_device_does_is_told, a_number_that_the_peer_remembers_is_not_used,
        where_no_device_leads_is_told);
}

/// Bytes of a message that begins as every one does, with so many units of 8 bytes in its fixed part.
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

/// What goes with a request (role 1) or an answer (role 2) for a stream: slots of 8 KiB, 64 of them, and a HELLO of so many bytes.
fn hail(major: u8, role: u8, conn_id: [u8; 8], hello: u16) -> Vec<u8> {
    let mut body = vec![3, 0, 0, 0, 0, 0, 0, 0];
    body.extend_from_slice(&conn_id);
    body.extend_from_slice(&[0, 0, 0, 0, role, 1, 13, 0, 64, 0]);
    body.extend_from_slice(&hello.to_le_bytes());
    body.extend_from_slice(&[0; 4]);
    message(5, major, 6, &body)
}

/// A queue pair, and what it needs.
struct Raw {
    qp: GenericQueuePair,
    _cq: GenericCompletionQueue,
}

fn raw(context: &DeviceContext) -> Raw {
    let cq = context.create_cq_builder().build_generic().unwrap();
    let mut builder = context.alloc_pd().unwrap().create_qp_builder();
    builder.setup_send_cq(&cq).setup_recv_cq(&cq).setup_max_inline_data(256);
    Raw { qp: builder.build_generic().unwrap(), _cq: cq }
}

impl Raw {
    fn say(&mut self, bytes: &[u8]) {
        let mut list = self.qp.start_post_send();
        list.construct_wr(1, WorkRequestFlags::Signaled).setup_send().setup_inline_data(bytes);
        list.post().unwrap();
    }
}

type Connected = (Raw, rdmacm::Connection);

/// Asks for a connection with this data.
fn ask(addr: SocketAddr, data: &[u8]) -> Result<Connected, rdmacm::ConnectError> {
    let mut connector = Connector::resolve(addr, LONG)?;
    connector.set_timeout(Some(LONG));
    let mut raw = raw(&connector.get_device_context().unwrap());
    let connection = connector.connect(&mut raw.qp, ConnectionParameter::new().setup_private_data(data))?;
    Ok((raw, connection))
}

/// Accepts the next who asks, with data made of his.
fn accept(listener: &rdmacm::Listener, answer: impl FnOnce(&[u8]) -> Vec<u8>) -> Connected {
    let request = listener.get_request_timeout(LONG).unwrap().expect("a request");
    let answer = answer(request.private_data());
    let mut raw = raw(&request.get_device_context().unwrap());
    let connection = request.accept(&mut raw.qp, ConnectionParameter::new().setup_private_data(&answer));
    (raw, connection.unwrap())
}

/// Accepts one stream while somebody else does something.
fn serving<T: Send>(rig: &Rig, listener: &mut Listener, other: impl FnOnce() -> T + Send) -> T {
    let addr = listener.local_addr().unwrap();
    thread::scope(|scope| {
        let other = scope.spawn(other);
        let client = scope.spawn(|| {
            // Behind whoever comes first.
            thread::sleep(Duration::from_millis(30));
            rig.builder().connect(addr).unwrap()
        });
        let (mut server, _) = listener.accept().unwrap();
        greet(&mut client.join().unwrap(), &mut server);
        // The listener works while it accepts.
        listener.set_nonblocking(true).unwrap();
        let deadline = Instant::now() + LONG;
        while !other.is_finished() {
            assert!(Instant::now() < deadline, "a stranger waits for ever");
            assert_eq!(listener.accept().map(drop).unwrap_err().kind(), ErrorKind::WouldBlock);
            thread::sleep(Duration::from_millis(1));
        }
        listener.set_nonblocking(false).unwrap();
        other.join().unwrap()
    })
}

/// The words that a rejection had with it.
fn words(refused: Result<Connected, rdmacm::ConnectError>) -> Vec<u8> {
    match refused.map(drop) {
        Err(rdmacm::ConnectError::Event(EventError::Rejected { private_data, .. })) => private_data,
        other => panic!("{other:?}"),
    }
}

/// The reason in a REJECT, and its text.
fn reject(words: &[u8]) -> (u16, String) {
    assert_eq!(&words[..5], b"TRSP\x02", "{words:02x?}");
    let len = usize::from(u16::from_le_bytes([words[22], words[23]]));
    let text = String::from_utf8(words[24..24 + len].to_vec()).unwrap();
    (u16::from_le_bytes([words[16], words[17]]), text)
}

/// How a connection failed.
fn failure(error: &io::Error) -> &ConnectError {
    error.get_ref().and_then(|inner| inner.downcast_ref()).unwrap_or_else(|| panic!("{error:?}"))
}

fn garbage_with_a_request_costs_a_listener_nothing(rig: &Rig) -> Outcome {
    let (mut listener, addr) = rig.listener();
    let good = hail(1, 1, [7; 8], 64);
    for round in 0..12 {
        let mut random = random(round);
        let mut data = match round % 3 {
            // Anything, and nothing.
            0 => bytes(round, below(&mut random, 57)),
            1 => good[..below(&mut random, good.len())].to_vec(),
            _ => good.clone(),
        };
        if round % 3 == 2 {
            let at = below(&mut random, data.len());
            data[at] ^= 0x55;
        }
        let told = serving(rig, &mut listener, || words(ask(addr, &data)));
        if data.starts_with(b"TRSP") {
            assert_eq!(reject(&told).0, 2, "malformed: {data:02x?}");
        } else {
            assert!(told.iter().all(|byte| *byte == 0), "who speaks something else is told nothing");
        }
    }
    Ok(())
}

/// The newer one reads why, in words that every version has.
fn another_version_is_told_so(rig: &Rig) -> Outcome {
    let (mut listener, addr) = rig.listener();
    let told = serving(rig, &mut listener, || words(ask(addr, &hail(2, 1, [7; 8], 64))));
    let (reason, text) = reject(&told);
    assert_eq!(reason, 1);
    assert_eq!(text, "it speaks version 1.0 of the protocol, and you 2.0; update the older one");
    // And this one of a newer one's.
    let (there, addr) = stranger(rig);
    let error = thread::scope(|scope| {
        scope.spawn(|| {
            let request = there.get_request_timeout(LONG).unwrap().expect("a request");
            let mut body = vec![1, 0, 2, 0, 1, 0, 6, 0];
            body.extend_from_slice(b"update\0\0");
            request.reject(&message(2, 2, 3, &body)).unwrap();
        });
        rig.builder().connect(addr).unwrap_err()
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

/// Who has made itself known, and sends no HELLO, is disconnected when its time is over; meanwhile others come in.
fn who_asks_and_says_no_more_is_given_up(rig: &Rig) -> Outcome {
    let deadline = Duration::from_millis(300);
    let mut listener =
        rig.builder().probe_timeout(deadline / 2).handshake_deadline(deadline).bind(rig.anywhere()).unwrap();
    let addr = listener.local_addr().unwrap();
    let took = serving(rig, &mut listener, || {
        let (_raw, connection) = ask(addr, &hail(1, 1, [7; 8], 64)).unwrap();
        let before = Instant::now();
        assert!(connection.wait_disconnected(LONG).unwrap(), "it is kept for ever");
        before.elapsed()
    });
    assert!(took >= deadline / 3, "it had only {took:?}");
    Ok(())
}

fn the_silent_do_not_keep_others_out(rig: &Rig) -> Outcome {
    let (mut listener, addr) = rig.listener();
    // More than a listener minds at a time; they have made themselves known, and stay.
    let silent = serving(rig, &mut listener, || {
        (0..200).map(|_| ask(addr, &hail(1, 1, [7; 8], 64)).unwrap()).collect::<Vec<_>>()
    });
    let before = Instant::now();
    for _ in 0..3 {
        serving(rig, &mut listener, || ());
    }
    assert!(before.elapsed() < LONG, "{:?}", before.elapsed());
    drop(silent);
    serving(rig, &mut listener, || ());
    Ok(())
}

/// The HELLO that such a HAIL is of.
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

/// All that a handshake needs is there, and the client is gone before the listener has looked: a connection that is accepted then is
/// over, which its first call tells.
fn who_hangs_up_behind_its_hello_is_noticed(rig: &Rig) -> Outcome {
    let (mut listener, addr) = rig.listener();
    listener.set_nonblocking(true).unwrap();
    let ((connected, is_connected), (go, goes)) = (mpsc::channel(), mpsc::channel());
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut connector = Connector::resolve(addr, LONG).unwrap();
            connector.set_timeout(Some(LONG));
            let context = connector.get_device_context().unwrap();
            let mut raw = raw(&context);
            connector.prepare(&mut raw.qp).unwrap();
            // For the listener's HELLO, which nobody looks at.
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
            // The queue pair and its memory stay as long as they are written to.
            goes.recv().unwrap();
        });
        let deadline = Instant::now() + LONG;
        while is_connected.try_recv().is_err() {
            assert!(Instant::now() < deadline);
            assert_eq!(listener.accept().map(drop).unwrap_err().kind(), ErrorKind::WouldBlock);
        }
        go.send(()).unwrap();
        is_connected.recv().unwrap();
        // A device that works when it is polled may not have sent it before its client was gone: then there is no connection.
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
    serving(rig, &mut listener, || ());
    Ok(())
}

/// Shorter, longer, something else, nothing at all: each costs its own connection.
fn a_hello_that_is_none_ends_that_connection(rig: &Rig) -> Outcome {
    let (mut listener, addr) = rig.listener();
    let says: [Vec<u8>; 6] =
        [vec![], vec![0; 64], bytes(3, 64), vec![0; 63], vec![0; 65], hail(1, 1, [7; 8], 64)];
    for said in says {
        serving(rig, &mut listener, || {
            let (mut raw, connection) = ask(addr, &hail(1, 1, [7; 8], 64)).unwrap();
            raw.say(&said);
            assert!(connection.wait_disconnected(LONG).unwrap(), "{said:02x?}");
        });
    }
    Ok(())
}

/// A listener of the connection manager's that is none of this crate's.
fn stranger(rig: &Rig) -> (rdmacm::Listener, SocketAddr) {
    let listener = rdmacm::Listener::bind(rig.anywhere(), 8).unwrap();
    let addr = listener.local_addr().and_then(|addr| addr.ip()).unwrap();
    (listener, addr)
}

fn a_server_of_something_else_is_told_so(rig: &Rig) -> Outcome {
    type Malformed = fn(&WireError) -> bool;
    let answers: [(Vec<u8>, Malformed); 4] = [
        (b"220 mail.example ESMTP".to_vec(), |e| matches!(e, WireError::Magic(magic) if magic == b"220 ")),
        (vec![], |e| matches!(e, WireError::Magic(_) | WireError::Short(_))),
        (hail(2, 2, [7; 8], 64), |e| matches!(e, WireError::Version { major: 2, .. })),
        // Of another attempt.
        (hail(1, 2, [7; 8], 64), |e| matches!(e, WireError::Unexpected(_))),
    ];
    for (answer, expected) in answers {
        let (listener, addr) = stranger(rig);
        let error = thread::scope(|scope| {
            scope.spawn(|| {
                let request = listener.get_request_timeout(LONG).unwrap().expect("a request");
                let mut raw = raw(&request.get_device_context().unwrap());
                let mut parameter = ConnectionParameter::new();
                // The client hangs up instead of going on, which may be seen before or after.
                let _ = request.accept(&mut raw.qp, parameter.setup_private_data(&answer));
            });
            rig.builder().connect(addr).unwrap_err()
        });
        assert_eq!(error.kind(), ErrorKind::InvalidData, "{error}");
        let ConnectError::Handshake { source: HandshakeError::Malformed(wire), .. } = failure(&error) else {
            panic!("{error:?}")
        };
        assert!(expected(wire), "{wire:?}");
    }
    Ok(())
}

/// It does not answer the request, or it does and says no HELLO: the client's time is bounded in either case.
fn a_server_that_does_not_answer_is_given_up(rig: &Rig) -> Outcome {
    let deadline = Duration::from_millis(300);
    // The stranger has posted no receive, for which a device would give up sooner.
    let impatient = || {
        let builder = rig.builder().rnr_retry(7);
        builder.probe_timeout(deadline / 2).handshake_deadline(deadline)
    };
    let timed_out = |error: &io::Error| match failure(error) {
        ConnectError::Handshake { source: HandshakeError::TimedOut { step, after }, .. } => {
            assert_eq!((*after, error.kind()), (deadline, ErrorKind::TimedOut));
            *step
        }
        other => panic!("{other:?}"),
    };
    let (listener, addr) = stranger(rig);
    let error = impatient().connect(addr).unwrap_err();
    assert_eq!(timed_out(&error), Step::Answer, "{error}");
    drop(listener);
    let (listener, addr) = stranger(rig);
    let (error, _connected) = thread::scope(|scope| {
        let accepting = scope.spawn(|| {
            accept(&listener, |asked| {
                assert_eq!(&asked[..5], b"TRSP\x05");
                hail(1, 2, asked[24..32].try_into().unwrap(), 64)
            })
        });
        (impatient().connect(addr).unwrap_err(), accepting.join().unwrap())
    });
    assert_eq!(timed_out(&error), Step::Hello, "{error}");
    Ok(())
}

fn a_rejection_in_words_is_told(rig: &Rig) -> Outcome {
    let (mut listener, addr) = rig.listener();
    let error = serving(rig, &mut listener, || rig.builder().connect_seq_packet(addr).unwrap_err());
    assert!(error.to_string().contains("use the same type on both sides"), "{error}");
    let ConnectError::Handshake { source: HandshakeError::Rejected { reason, .. }, .. } = failure(&error)
    else {
        panic!("{error:?}")
    };
    assert_eq!(*reason, RejectReason::Kind);
    // Without words: nobody listens there.
    drop(listener);
    let error = rig.builder().connect(addr).unwrap_err();
    assert!(matches!(failure(&error), ConnectError::RdmaCm { source: CmError::Refused(_), .. }), "{error:?}");
    assert!(error.to_string().contains(&addr.to_string()), "{error}");
    // And what cannot be is refused when it is built.
    let builder = Builder::new().bootstrap(Bootstrap::RdmaCm).policy(Policy::TcpOnly);
    assert_eq!(builder.connect(addr).unwrap_err().kind(), ErrorKind::InvalidInput);
    Ok(())
}

/// Descriptors but for memory's, and of a software device queue pairs, completion queues and identifiers.
fn held() -> (usize, u32, u32, u32) {
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap();
    let links = descriptors.filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok());
    // Those of memory are the pool's, which is the process's: it grows with what is open at a time.
    let descriptors = links.filter(|link| !link.starts_with("/memfd:sideway (deleted)")).count();
    let Some(statistics) = soft::statistics() else { return (descriptors, 0, 0, 0) };
    let queue_pairs = statistics.queue_pairs.iter().map(|pairs| pairs.count).sum();
    (descriptors, queue_pairs, statistics.completion_queues, statistics.identifiers.count)
}

fn nothing_is_left_of_connections_and_of_strangers(rig: &Rig) -> Outcome {
    let once = || {
        let (mut listener, addr) = rig.listener();
        let short = || {
            rig.builder()
                .probe_timeout(Duration::from_millis(20))
                .handshake_deadline(Duration::from_millis(50))
        };
        serving(rig, &mut listener, || {
            // One of each: refused, hung up, silent, of another kind.
            words(ask(addr, b"nonsense"));
            drop(ask(addr, &hail(1, 1, [7; 8], 64)).unwrap());
            let (mut raw, connection) = ask(addr, &hail(1, 1, [7; 8], 64)).unwrap();
            raw.say(b"nonsense");
            assert!(connection.wait_disconnected(LONG).unwrap());
            rig.builder().connect_seq_packet(addr).unwrap_err();
        });
        let (_silent, silent_addr) = stranger(rig);
        short().connect(silent_addr).unwrap_err();
        drop(listener);
        rig.builder().connect(addr).unwrap_err();
    };
    once();
    // The device's own thread closes what it has asked others by when it finds that they are gone.
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

/// Rules for the messages of the software device's connection manager, until this is dropped.
struct Rules;

impl Rules {
    fn set(text: &str) -> Self {
        faults::set(faults::parse(text).unwrap(), 1).unwrap();
        Self
    }
}

impl Drop for Rules {
    fn drop(&mut self) {
        faults::clear();
    }
}

fn what_the_network_does_to_requests_is_survived(rig: &Rig) -> Outcome {
    if !rig.is_soft() {
        test_harness::skip!("the device is not one that loses messages when it is told to");
    }
    for rule in [
        "drop cm=req nth=1",
        "drop cm=rep nth=1",
        // The client's last word: what comes over the queue pair shows that it was said.
        "drop cm=rtu",
        "delay=20ms cm=rtu",
        "duplicate=2 cm=req,rep,rtu,dreq",
    ] {
        let _rules = Rules::set(rule);
        let (mut client, mut server) = rig.streams();
        greet(&mut client, &mut server);
        drop(client);
        assert_eq!(io::Read::read(&mut server, &mut [0; 8]).unwrap(), 0, "{rule}");
    }
    Ok(())
}

/// There is nothing to fall back to, so what would be a reason for TCP is an error, and the listener goes on.
fn what_the_device_does_is_told(rig: &Rig) -> Outcome {
    if !rig.is_soft() {
        test_harness::skip!("the device is not one that fails when it is told to");
    }
    let (mut listener, addr) = rig.listener();
    let refused = |rule: &str, listener: &mut Listener| {
        let _rules = Rules::set(rule);
        thread::scope(|scope| {
            let client = scope.spawn(|| rig.builder().connect(addr).unwrap_err());
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
        ("errno=ENOMEM call=create_qp", Cause::Resources),
        ("errno=EINVAL call=modify_qp nth=1", Cause::Connect),
        ("status=retry_exc_err opcode=send nth=1", Cause::ProbeFailed),
    ] {
        let error = refused(rule, &mut listener);
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{rule}: {error}");
        let ConnectError::Handshake { source: HandshakeError::RdmaRequired { reason, .. }, .. } =
            failure(&error)
        else {
            panic!("{rule}: {error:?}")
        };
        assert_eq!((reason.side(), reason.cause()), (Side::Local, cause), "{rule}");
        serving(rig, &mut listener, || ());
    }
    // The second to bring up its queue pair is the server, which says so.
    let error = refused("errno=EINVAL call=modify_qp nth=2", &mut listener);
    let ConnectError::Handshake { source: HandshakeError::Rejected { reason, text, .. }, .. } =
        failure(&error)
    else {
        panic!("{error:?}")
    };
    assert_eq!(*reason, RejectReason::RdmaRequired);
    assert!(text.contains("it could not connect its queue pair"), "{text}");
    serving(rig, &mut listener, || ());
    Ok(())
}

/// Another queue pair has another number.
fn a_number_that_the_peer_remembers_is_not_used(rig: &Rig) -> Outcome {
    if !rig.is_soft() {
        test_harness::skip!("the device is not one that rejects requests when it is told to");
    }
    let rules = Rules::set("reject=10 cm=req first=3");
    let (mut client, mut server) = rig.streams();
    greet(&mut client, &mut server);
    drop((rules, client, server));
    // Not for ever.
    let _rules = Rules::set("reject=10 cm=req");
    let (_listener, addr) = rig.listener();
    let error = rig.builder().connect(addr).unwrap_err();
    assert!(matches!(failure(&error), ConnectError::RdmaCm { source: CmError::Refused(_), .. }), "{error:?}");
    Ok(())
}

/// Of the system's devices none has an address of the loopback.
fn where_no_device_leads_is_told(rig: &Rig) -> Outcome {
    if rig.is_soft() {
        test_harness::skip!(
            "software devices have every address of their host, and peers may have any other"
        );
    }
    let nowhere: SocketAddr = "127.0.0.1:7".parse().unwrap();
    let error = rig.builder().connect(nowhere).unwrap_err();
    assert!(
        matches!(failure(&error), ConnectError::RdmaCm { source: CmError::NoDevice(_), .. }),
        "{error:?}"
    );
    assert_eq!(error.kind(), ErrorKind::AddrNotAvailable);
    assert!(error.to_string().contains("no RDMA device leads there"), "{error}");
    Ok(())
}
