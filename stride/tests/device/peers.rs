//! Peers that are absent, foreign, dead, or wrong.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use stride::cli;
use stride::control::{
    ControlError, ControlLink, ControlListener, ControlMessage, FrameKind, Greeting, Resources, VERSION,
    connect, write_frame,
};
use stride::device::LocalDevice;
use stride::plan::{LocalOptions, RunPlan, TestPlan};
use stride::workload::UnconnectedSide;

use crate::common::{Ended, Running, command, run};
use crate::harness::{Device, Outcome, Test, side_by_side};

pub(crate) const TESTS: &[Test] = &[
    ("an_absent_server_is_named", an_absent_server_is_named),
    ("a_server_that_is_another_program_is_named", a_server_that_is_another_program_is_named),
    ("a_client_that_is_another_program_is_named", a_client_that_is_another_program_is_named),
    ("a_server_for_one_test_forgets_strangers", a_server_for_one_test_forgets_strangers),
    ("a_silent_server_is_given_up", a_silent_server_is_given_up),
    ("another_version_is_named", another_version_is_named),
    ("a_taken_tcp_port_is_named", a_taken_tcp_port_is_named),
    ("a_server_that_dies_is_noticed", a_server_that_dies_is_noticed),
    ("a_client_that_dies_is_noticed", a_client_that_dies_is_noticed),
    ("a_failed_message_is_explained", a_failed_message_is_explained),
    ("a_stopped_server_is_named", a_stopped_server_is_named),
    ("a_killed_server_is_named", a_killed_server_is_named),
    ("memory_that_is_too_short_is_refused", memory_that_is_too_short_is_refused),
    ("changed_bytes_are_noticed", changed_bytes_are_noticed),
];

/// An operation for each way of waiting for the peer.
const OPERATIONS: [&str; 7] = [
    "write bw",
    "write lat",
    "write lat --latency completion",
    "send bw",
    "send lat",
    "read bw",
    "send bw -b -q 2",
];

/// The time in which a side notices a dead peer, even if it only spins.
const NOTICE: Duration = Duration::from_secs(20);

fn test_plan(flags: &str) -> TestPlan {
    let words = format!("stride-perf write {flags}");
    RunPlan::new(cli::parse(words.split_whitespace()).unwrap()).unwrap().test
}

fn greeting(test: TestPlan) -> Greeting {
    Greeting { release: "test".to_owned(), test }
}

/// Requests a test that the server's command line would refuse; returns the server's answer.
pub(crate) fn request_impossible_test(port: u16) -> String {
    let mut test = test_plan("bw");
    test.iterations = 1;
    let mut link = connect("127.0.0.1", port).unwrap();
    match link.exchange(&ControlMessage::Request(greeting(test))) {
        Err(ControlError::PeerFailed { reason, .. }) => reason,
        other => panic!("{other:?}"),
    }
}

/// A server that sends `bytes` and nothing more.
fn stranger(bytes: Vec<u8>) -> u16 {
    let socket = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = socket.local_addr().unwrap().port();
    thread::spawn(move || {
        let (mut stream, _) = socket.accept().unwrap();
        let _ = stream.write_all(&bytes);
        let _ = stream.read_to_end(&mut Vec::new());
    });
    port
}

/// The output of a client whose server sends `bytes`.
fn client_of(device: &Device, bytes: &[u8]) -> Ended {
    let port = stranger(bytes.to_vec());
    run(&device.flags(&format!("write bw 127.0.0.1 -n 5 -p {port}")))
}

/// A server, and its port.
fn server(device: &Device, flags: &str) -> (Running, u16) {
    let mut server = Running::start(&mut command(&device.flags(&format!("{flags} -p 0"))));
    let waiting = server.await_line("waiting for a client on TCP port");
    (server, waiting.rsplit(' ').next().unwrap().parse().unwrap())
}

fn an_absent_server_is_named(device: &Device) -> Outcome {
    let port = ControlListener::bind_local().unwrap().port();
    let ended = run(&device.flags(&format!("write bw 127.0.0.1 -p {port}")));
    let line = ended.refused();
    assert!(line.contains(&format!("127.0.0.1:{port}")) && line.contains("start the same"), "{line}");
    let ended = run(&device.flags("write bw no.such.host.invalid"));
    assert!(ended.refused().contains("cannot resolve no.such.host.invalid"), "{ended:#?}");
    Outcome::Ran
}

fn a_server_that_is_another_program_is_named(device: &Device) -> Outcome {
    let ended = client_of(device, b"SSH-2.0-OpenSSH_9.2p1\r\n");
    assert!(
        ended.refused().contains("does not speak stride-perf's protocol (it sent \"SSH-\")"),
        "{ended:#?}"
    );
    Outcome::Ran
}

fn a_client_that_is_another_program_is_named(device: &Device) -> Outcome {
    for words in ["GET / HTTP/1.1\r\n\r\n", "6.06\0\0\0\0\0\0\0\0\0\0\0\0"] {
        let (mut server, port) = server(device, "write lat");
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        stream.write_all(words.as_bytes()).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let line = server.await_line(&format!("(it sent \"{}\")", &words[..4]));
        assert!(line.ends_with("; waiting for another client"), "{line}");
    }
    Outcome::Ran
}

/// A scan of ports ends no server for one test, and neither does a client without the secret.
fn a_server_for_one_test_forgets_strangers(device: &Device) -> Outcome {
    let own = device.flags("write bw -n 5 -s 64");
    for test in [own.as_str(), "tcp bw -n 5 -s 64", "msg bw -n 5 -s 64 --transport tcp"] {
        let mut server = Running::start(&mut command(&format!("{test} -p 0")));
        let waiting = server.await_line("waiting for a client on TCP port");
        let port: u16 = waiting.rsplit(' ').next().unwrap().parse().unwrap();
        let speak = |words: &[u8]| {
            let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
            stream.write_all(words).unwrap();
            stream
        };
        let hello = serde_json::to_vec(&ControlMessage::Hello { nonce: [7; 32] }).unwrap();
        let [hello, empty] = [&hello[..], b"{\"request\":{}}"].map(|payload| {
            let mut bytes = Vec::new();
            write_frame(&mut bytes, FrameKind::Message, payload).unwrap();
            bytes
        });
        let mut other_version = hello.clone();
        other_version[4..6].copy_from_slice(&(VERSION + 1).to_be_bytes());
        let mut silent = Vec::new();
        let http = b"GET / HTTP/1.1\r\n\r\n";
        for words in [b"", &http[..], b"STR", &hello, &empty, &other_version, &[0xff; 4096]] {
            drop(speak(words));
            silent.push(speak(words));
        }
        let client = Running::start(&mut command(&format!("{test} 127.0.0.1 -p {port}"))).end().succeeded();
        assert_eq!(server.end().succeeded().rows(), client.rows());
    }
    Outcome::Ran
}

fn a_silent_server_is_given_up(device: &Device) -> Outcome {
    let ended = client_of(device, b"");
    assert!(ended.refused().contains("did not answer within 5 s"), "{ended:#?}");
    Outcome::Ran
}

fn another_version_is_named(device: &Device) -> Outcome {
    let mut bytes = Vec::new();
    write_frame(&mut bytes, FrameKind::Message, b"{}").unwrap();
    bytes[4..6].copy_from_slice(&(VERSION + 1).to_be_bytes());
    let ended = client_of(device, &bytes);
    let line = ended.refused();
    let theirs = format!("speaks version {}", VERSION + 1);
    assert!(line.contains(&theirs) && line.contains("the same release on both sides"), "{line}");

    let (mut server, port) = server(device, "write bw");
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    stream.write_all(&bytes).unwrap();
    server.await_line(&theirs);
    Outcome::Ran
}

fn a_taken_tcp_port_is_named(device: &Device) -> Outcome {
    let taken = ControlListener::bind(0).unwrap();
    let ended = run(&device.flags(&format!("write bw -p {}", taken.port())));
    let line = ended.refused();
    assert!(line.contains(&format!("TCP port {}", taken.port())) && line.contains("with -p"), "{line}");
    Outcome::Ran
}

/// Kills one side during a test that would take days; the other ends by itself.
fn survivor(device: &Device, test: &str, kill_server: bool) -> Ended {
    let flags = format!("{test} -n 4000000000");
    let (mut server, port) = server(device, &flags);
    let client = Running::start(&mut command(&device.flags(&format!("{flags} 127.0.0.1 -p {port}"))));
    server.await_line("serving");
    thread::sleep(Duration::from_secs(1));
    let (mut victim, survivor) = if kill_server { (server, client) } else { (client, server) };
    victim.kill();
    victim.end();
    survivor.end_within(NOTICE)
}

fn a_server_that_dies_is_noticed(device: &Device) -> Outcome {
    side_by_side(device, &OPERATIONS, |test| {
        let ended = survivor(device, test, true);
        let line = ended.refused();
        assert!(
            line.contains("closed the control connection") || line.contains("a message failed"),
            "{line}"
        );
    });
    Outcome::Ran
}

fn a_client_that_dies_is_noticed(device: &Device) -> Outcome {
    side_by_side(device, &OPERATIONS, |test| {
        let ended = survivor(device, test, false);
        let line = ended.refused();
        assert!(
            line.contains("closed the control connection") || line.contains("a message failed"),
            "{line}"
        );
    });
    Outcome::Ran
}

/// The output of a client whose server sends wrong resources, and the client's message to the
/// server.
fn client_of_wrong_resources(device: &Device, wrong: fn(&mut Resources)) -> (Ended, ControlError) {
    let listener = ControlListener::bind_local().unwrap();
    let flags = device.flags(&format!("write bw -n 5 127.0.0.1 -p {}", listener.port()));
    let client = Running::start(&mut command(&flags));
    let options = LocalOptions { device: Some(device.name.clone()), ..LocalOptions::default() };
    let local = LocalDevice::open(sideway::default_provider().unwrap(), &options).unwrap();
    let mut link = listener.accept().unwrap();
    let told = serve_wrongly(&local, &mut link, wrong).unwrap_err();
    (client.end(), told)
}

fn serve_wrongly(
    device: &LocalDevice,
    link: &mut ControlLink,
    wrong: fn(&mut Resources),
) -> Result<(), ControlError> {
    let ControlMessage::Request(Greeting { test, .. }) = link.receive()? else { panic!("no request") };
    link.send(&ControlMessage::Accept(greeting(test.clone())))?;
    let side = UnconnectedSide::new(device, &test).unwrap();
    let mut resources = side.resources().remove(0);
    wrong(&mut resources);
    let ControlMessage::Resources(remote) = link.exchange(&ControlMessage::Resources(resources))? else {
        panic!("no resources")
    };
    let _workload = side.connect(&[remote], &test, test.queue_pairs, None).unwrap();
    link.exchange(&ControlMessage::Ready)?;
    link.exchange(&ControlMessage::Begin { size: test.sizes.largest() })?;
    link.receive_result().map(drop)
}

fn a_failed_message_is_explained(device: &Device) -> Outcome {
    let (ended, told) = client_of_wrong_resources(device, |resources| resources.rkey ^= 0xff00);
    let line = ended.refused();
    for word in ["remote access error", "status 10", "opcode", "wr_id", "vendor error", "wrong rkey"] {
        assert!(line.contains(word), "no `{word}` in {line}");
    }
    assert!(told.to_string().contains("remote access error"), "{told}");
    Outcome::Ran
}

/// Starts a server and a client, whose control connections both end in this process, so that
/// neither hears of the other's end. Calls `silence` when the server's queue pair is ready, and
/// before the client knows it; returns the client's output.
fn client_of_silenced_server(device: &Device, silence: impl FnOnce(&mut Running)) -> Ended {
    let (mut server, port) = server(device, "write bw -n 5");
    let listener = ControlListener::bind_local().unwrap();
    let flags = device.flags(&format!("write bw -n 5 127.0.0.1 -p {}", listener.port()));
    let client = Running::start(&mut command(&flags));
    let (mut to_client, mut to_server) = (listener.accept().unwrap(), connect("127.0.0.1", port).unwrap());
    let request = to_client.receive().unwrap();
    let accepted = to_server.exchange(&request).unwrap();
    let resources = to_client.exchange(&accepted).unwrap();
    let resources = to_server.exchange(&resources).unwrap();
    let ready = to_server.receive().unwrap();
    assert_eq!(ready, ControlMessage::Ready);
    silence(&mut server);
    assert_eq!(to_client.exchange(&resources).unwrap(), ready);
    let begin = to_client.exchange(&ready).unwrap();
    to_client.send(&begin).unwrap();
    client.end()
}

/// Only over a software device can the client find out why nobody acknowledges.
fn is_explained(device: &Device, ended: &Ended, cause: &str) {
    let line = ended.refused();
    assert!(line.contains("transport retry counter exceeded (status 12"), "{line}");
    assert!(line.contains("the peer does not acknowledge"), "{line}");
    if device.is_soft {
        assert!(line.contains(cause) && !line.contains("firewall"), "{line}");
    }
}

fn a_stopped_server_is_named(device: &Device) -> Outcome {
    if !device.is_soft {
        return Outcome::Skipped("a device of the system serves while the process is stopped");
    }
    let mut process = 0;
    let ended = client_of_silenced_server(device, |server| {
        process = server.id();
        server.stop();
    });
    is_explained(device, &ended, &format!("process {process}, which has the peer's queue pair "));
    is_explained(device, &ended, ", is stopped (by a debugger or Ctrl-Z): continue it");
    Outcome::Ran
}

fn a_killed_server_is_named(device: &Device) -> Outcome {
    let ended = client_of_silenced_server(device, Running::kill);
    is_explained(device, &ended, ": no process has the peer's queue pair ");
    Outcome::Ran
}

fn memory_that_is_too_short_is_refused(device: &Device) -> Outcome {
    let (ended, told) = client_of_wrong_resources(device, |resources| resources.length = 65535);
    let line = ended.refused();
    assert!(line.contains("65535 bytes") && line.contains("for messages of 65536"), "{line}");
    assert!(told.to_string().contains("65535 bytes"), "{told}");
    Outcome::Ran
}

/// The peer announces an address 64 bytes too high, so writes arrive beside the place that is
/// validated.
fn changed_bytes_are_noticed(device: &Device) -> Outcome {
    let listener = ControlListener::bind_local().unwrap();
    let test = "write bw -s 64 -n 5 -q 2 --data-validation 127.0.0.1";
    let flags = device.flags(&format!("{test} -p {}", listener.port()));
    let client = Running::start(&mut command(&flags));
    let options = LocalOptions { device: Some(device.name.clone()), ..LocalOptions::default() };
    let local = LocalDevice::open(sideway::default_provider().unwrap(), &options).unwrap();
    let mut link = listener.accept().unwrap();
    let found = arrived_elsewhere(&local, &mut link);
    assert!(found.contains("messages of 64 bytes arrived changed: byte 0"), "{found}");
    assert!(found.contains("of queue pair 1"), "{found}");
    link.fail(&found);
    assert!(client.end().complaint().contains("arrived changed"), "the client says so, too");
    Outcome::Ran
}

/// The outcome of a server whose client announces a wrong address for its second queue pair.
fn arrived_elsewhere(device: &LocalDevice, link: &mut ControlLink) -> String {
    let ControlMessage::Request(Greeting { test, .. }) = link.receive().unwrap() else {
        panic!("no request")
    };
    link.send(&ControlMessage::Accept(greeting(test.clone()))).unwrap();
    let side = UnconnectedSide::new(device, &test).unwrap();
    let mut remotes = Vec::new();
    for (mut resources, shift) in side.resources().into_iter().zip([0, 64]) {
        resources.address += shift;
        let ControlMessage::Resources(remote) = link.exchange(&ControlMessage::Resources(resources)).unwrap()
        else {
            panic!("no resources")
        };
        remotes.push(remote);
    }
    let mut workload = side.connect(&remotes, &test, test.queue_pairs, None).unwrap();
    link.exchange(&ControlMessage::Ready).unwrap();
    workload.prepare(64, test.parts(false)).unwrap();
    link.exchange(&ControlMessage::Begin { size: 64 }).unwrap();
    assert!(matches!(link.receive_result().unwrap(), ControlMessage::Row(_)));
    workload.arrived(64).unwrap_err().to_string()
}
