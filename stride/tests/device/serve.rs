//! A server for many clients survives every kind of client.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use stride::cli;
use stride::control::{ControlMessage, FrameKind, Greeting, connect, write_frame};
use stride::error::Error;
use stride::plan::RunPlan;
use stride::report::Output;

use crate::common::{Ended, Running, command, run};
use crate::harness::{Device, Outcome, Test};

pub(crate) const TESTS: &[Test] = &[
    ("a_server_learns_all_from_its_clients", a_server_learns_all_from_its_clients),
    ("a_server_survives_nonsense_and_halves", a_server_survives_nonsense_and_halves),
    ("the_log_of_strangers_is_bounded", the_log_of_strangers_is_bounded),
    ("a_server_survives_clients_that_are_killed", a_server_survives_clients_that_are_killed),
    ("a_server_serves_a_thousand_clients", a_server_serves_a_thousand_clients),
    ("a_client_waits_for_the_one_before", a_client_waits_for_the_one_before),
    ("clients_are_served_at_the_same_time", clients_are_served_at_the_same_time),
    ("connections_that_say_nothing_lock_nobody_out", connections_that_say_nothing_lock_nobody_out),
    ("a_client_that_only_beats_keeps_no_place", a_client_that_only_beats_keeps_no_place),
    ("a_client_that_floods_is_not_read", a_client_that_floods_is_not_read),
    ("a_client_that_stops_keeps_no_place", a_client_that_stops_keeps_no_place),
    ("a_server_gives_only_what_it_was_told_to", a_server_gives_only_what_it_was_told_to),
    ("client_flags_are_refused_by_a_server", client_flags_are_refused_by_a_server),
];

/// A server, and its port.
struct Server(Running, u16);

impl Server {
    fn new(device: &Device, flags: &str) -> Self {
        let mut server = Running::start(&mut command(&device.flags(&format!("serve -p 0 {flags}"))));
        let waiting = server.await_line("waiting for clients on TCP port");
        let port = waiting.split("TCP port ").nth(1).and_then(|rest| rest.split(',').next()).unwrap();
        let port = port.parse().unwrap();
        Self(server, port)
    }

    /// A client in this process.
    fn client(&self, device: &Device, test: &str) -> Result<(), Error> {
        let words = device.flags(&format!("stride-perf {test} 127.0.0.1 -p {}", self.1));
        let plan = RunPlan::new(cli::parse(words.split_whitespace()).unwrap()).unwrap();
        stride::session::run(&plan, &mut Output::silent())
    }

    /// A client in another process.
    fn start(&self, device: &Device, test: &str) -> Running {
        Running::start(&mut command(&device.flags(&format!("{test} 127.0.0.1 -p {}", self.1))))
    }

    /// Checks that the server still serves.
    #[track_caller]
    fn is_well(&self, device: &Device) {
        if let Err(error) = self.client(device, "write bw -n 5 -s 64") {
            panic!("the server serves no more: {error}");
        }
    }

    #[track_caller]
    fn end(self) -> Ended {
        self.0.signal("INT");
        let ended = self.0.end_within(Duration::from_secs(20));
        assert_eq!(ended.status.code(), Some(130), "{ended:#?}");
        ended
    }
}

fn a_server_learns_all_from_its_clients(device: &Device) -> Outcome {
    let path = std::env::temp_dir().join(format!("stride-serve-{}.jsonl", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let server = Server::new(device, &format!("--jsonl {}", path.display()));
    let mut tables = String::new();
    for test in ["write bw -n 70 -s 4K", "write lat -n 50", "write lat -n 20 --latency completion -s 8"] {
        let client = run(&device.flags(&format!("{test} 127.0.0.1 -p {}", server.1))).succeeded();
        assert!(!client.stderr.contains("differ"), "{client:#?}");
        tables += &client.stdout;
    }
    let ended = server.end();
    assert_eq!(ended.stdout, tables);
    assert_eq!(ended.stderr.matches(": serving ").count(), 3, "{ended:#?}");
    assert_eq!(ended.stderr.matches(": done").count(), 3, "{ended:#?}");
    let lines = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let sizes: Vec<serde_json::Value> =
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(sizes.iter().map(|size| &size["msg_bytes"]).collect::<Vec<_>>(), [4096, 2, 8]);
    assert!(
        sizes.iter().all(|size| size["role"] == "server" && size["device"] == device.name.as_str()),
        "{lines}"
    );
    Outcome::Ran
}

/// The bytes of a client's request.
fn request() -> Vec<u8> {
    let words = "stride-perf write bw -n 5 -s 64".split_whitespace();
    let test = RunPlan::new(cli::parse(words).unwrap()).unwrap().test;
    let request = ControlMessage::Request(Greeting { release: "test".to_owned(), test });
    frame(&serde_json::to_vec(&request).unwrap())
}

fn frame(payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    write_frame(&mut bytes, FrameKind::Message, payload).unwrap();
    bytes
}

fn a_server_survives_nonsense_and_halves(device: &Device) -> Outcome {
    let mut server = Server::new(device, "");
    let port = server.1;
    let speak = |bytes: &[u8]| {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        stream.write_all(bytes).unwrap();
        stream
    };
    let request = request();
    let mut too_long = request.clone();
    too_long[8..12].copy_from_slice(&u32::MAX.to_be_bytes());
    let mut silent = Vec::new();
    for bytes in [
        &b""[..],
        b"GET / HTTP/1.1\r\n\r\n",
        &[0xff; 4096],
        b"STR",
        b"STRD\x00\x02",
        &request[..request.len() / 2],
        &too_long,
        &frame(b"\"ready\""),
        &frame(b"{\"request\":{}}"),
        &[request.clone(), request.clone()].concat(),
        &[request.clone(), b"rubbish".repeat(1000)].concat(),
    ] {
        // One client disconnects at once, and one stays and sends nothing more.
        drop(speak(bytes));
        silent.push(speak(bytes));
        // A client that has not sent its request delays no other; one that has delays others until
        // its time limit.
        if !bytes.starts_with(&request) {
            let start = Instant::now();
            server.is_well(device);
            assert!(start.elapsed() < Duration::from_secs(4), "{:?} after {bytes:?}", start.elapsed());
        }
    }
    // Every prefix of the handshake, in order.
    for steps in 1..=2 {
        let mut link = connect("127.0.0.1", server.1).unwrap();
        let Ok(ControlMessage::Request(greeting)) = serde_json::from_slice(&request[12..]) else {
            panic!("no request")
        };
        link.send(&ControlMessage::Request(greeting)).unwrap();
        if steps == 2 {
            assert!(matches!(link.receive().unwrap(), ControlMessage::Accept(_)));
        }
        drop(link);
        server.is_well(device);
    }
    // Silent clients delay no other.
    server.0.await_line("did not answer within 5 s");
    drop(silent);
    server.is_well(device);
    let ended = server.end();
    for words in ["does not speak stride-perf's protocol", "cannot be understood"] {
        assert!(ended.stderr.contains(words), "no `{words}` in {ended:#?}");
    }
    Outcome::Ran
}

fn a_server_survives_clients_that_are_killed(device: &Device) -> Outcome {
    let server = Server::new(device, "");
    for test in ["write bw -n 4000000000", "write lat -n 4000000000"] {
        for pause in [0, 5, 20, 60, 150, 300, 600] {
            let mut client = server.start(device, test);
            sleep(Duration::from_millis(pause));
            client.kill();
        }
        server.is_well(device);
    }
    server.end();
    Outcome::Ran
}

fn a_server_serves_a_thousand_clients(device: &Device) -> Outcome {
    let server = Server::new(device, "");
    // SoftRoCE in an emulated machine takes a tenth of a second for each client.
    let count = if device.is_soft { 1000 } else { 100 };
    for number in 0..count {
        if let Err(error) = server.client(device, "write bw -n 5 -s 64") {
            panic!("client {number}: {error}");
        }
    }
    let ended = server.end();
    assert_eq!(ended.rows().len(), count, "{}", ended.stderr);
    Outcome::Ran
}

fn a_client_waits_for_the_one_before(device: &Device) -> Outcome {
    let mut server = Server::new(device, "");
    let mut long = server.start(device, "send lat -e -n 4000000000");
    server.0.await_line("serving");
    let mut waiting = server.start(device, "write bw -n 5");
    waiting.await_line("the server has others to serve first");
    // Longer than the limit for a silent server.
    sleep(Duration::from_secs(6));
    long.kill();
    waiting.end().succeeded();
    server.end();
    Outcome::Ran
}

fn clients_are_served_at_the_same_time(device: &Device) -> Outcome {
    let mut server = Server::new(device, "-j 2");
    let mut long = server.start(device, "send lat -e -n 4000000000");
    server.0.await_line("serving");
    server.start(device, "write bw -n 5 -s 64").end().succeeded();
    server.is_well(device);
    long.kill();
    let ended = server.end();
    // Tables do not interleave: each begins with its heading.
    let tables = ended.stdout.split("# RDMA write ").skip(1);
    assert!(tables.clone().all(|table| table.contains("#bytes")), "{ended:#?}");
    assert!(tables.count() >= 2, "{ended:#?}");
    Outcome::Ran
}

/// Connections that are replaced as soon as the server closes them, while clients exchange proofs
/// of their secret, too.
fn connections_that_say_nothing_lock_nobody_out(device: &Device) -> Outcome {
    let file = std::env::temp_dir().join(format!("stride-silent-{}", std::process::id()));
    std::fs::write(&file, "correct horse battery staple").unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    let secret = format!("--secret-file {}", file.display());
    for flags in ["", &secret] {
        silence_locks_nobody_out(device, flags);
    }
    std::fs::remove_file(&file).unwrap();
    Outcome::Ran
}

fn silence_locks_nobody_out(device: &Device, flags: &str) {
    let server = Server::new(device, flags);
    let connect = || TcpStream::connect((Ipv4Addr::LOCALHOST, server.1)).unwrap();
    let is_over = AtomicBool::new(false);
    let mut silent: Vec<_> = (0..80).map(|_| connect()).collect();
    thread::scope(|scope| {
        let refilling = scope.spawn(|| {
            let mut refilled = 0;
            // At most 20 s: this is also the end if the server serves nobody.
            for _ in 0..2000 {
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
                for stream in &mut silent {
                    // The server's beat may come first, and then the end.
                    stream.set_nonblocking(true).unwrap();
                    let is_open = |read: std::io::Result<usize>| match read {
                        Ok(count) => count > 0,
                        Err(error) => error.kind() == std::io::ErrorKind::WouldBlock,
                    };
                    if !is_open(stream.read(&mut [0; 64])) {
                        *stream = connect();
                        refilled += 1;
                    }
                }
                sleep(Duration::from_millis(10));
            }
            refilled
        });
        let served: Vec<_> =
            (0..3).map(|_| server.client(device, &format!("write bw -n 5 -s 64 {flags}"))).collect();
        is_over.store(true, Ordering::Relaxed);
        let refilled = refilling.join().unwrap();
        for done in served {
            done.unwrap_or_else(|error| panic!("{refilled} were refilled: {error}"));
        }
    });
    let ended = server.end();
    assert!(ended.stderr.contains("and made room for another connection"), "{ended:#?}");
}

/// A server that is scanned does not fill the disk with its log.
fn the_log_of_strangers_is_bounded(device: &Device) -> Outcome {
    let server = Server::new(device, "");
    for _ in 0..300 {
        let mut stranger = TcpStream::connect((Ipv4Addr::LOCALHOST, server.1)).unwrap();
        stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        // The end comes once the server has dealt with it.
        let _ = stranger.read_to_end(&mut Vec::new());
    }
    server.is_well(device);
    let ended = server.end();
    let told = ended.stderr.lines().filter(|line| line.contains("does not speak stride-perf's protocol"));
    let told = told.count();
    // Each 10 s on a busy machine begin a new period.
    assert!((100..300).contains(&told), "{told} lines in {ended:#?}");
    assert!(ended.stderr.contains("further connections without a request are not logged for 10 s"));
    Outcome::Ran
}

/// It has sent its request, and its connection lives, but nothing more follows. The limit is 10 s,
/// and one more for the GiB that the server grants.
fn a_client_that_only_beats_keeps_no_place(device: &Device) -> Outcome {
    let mut server = Server::new(device, "");
    let Ok(ControlMessage::Request(greeting)) = serde_json::from_slice(&request()[12..]) else {
        panic!("no request")
    };
    // The link beats by itself.
    let mut link = connect("127.0.0.1", server.1).unwrap();
    link.send(&ControlMessage::Request(greeting)).unwrap();
    assert!(matches!(link.receive().unwrap(), ControlMessage::Accept(_)));
    let waiting = server.start(device, "write bw -n 5 -s 64");
    let line = server.0.await_line("made no step of its set-up for 11 s while other clients waited");
    assert!(line.contains("127.0.0.1:"), "{line}");
    waiting.end().succeeded();
    // The first frame of its connection is the server's resources.
    let told = std::iter::repeat_with(|| link.receive()).find_map(Result::err).unwrap().to_string();
    assert!(told.contains("its place was given to them"), "{told}");
    server.end();
    Outcome::Ran
}

/// The most bytes that a process has had in memory.
fn most_memory(process: u32) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
}

/// One client has the only place, and the next one sends without end while it waits.
fn a_client_that_floods_is_not_read(device: &Device) -> Outcome {
    const MOST: usize = 64 << 20;
    let mut server = Server::new(device, "");
    let mut long = server.start(device, "send lat -e -n 4000000000");
    server.0.await_line("serving");
    let mut flood = TcpStream::connect((Ipv4Addr::LOCALHOST, server.1)).unwrap();
    flood.set_write_timeout(Some(Duration::from_secs(2))).unwrap();
    flood.write_all(&request()).unwrap();
    let before = most_memory(server.0.id());
    let (words, mut sent) = (frame(&[b' '; 65536]), 0);
    while sent < MOST {
        match flood.write(&words) {
            Ok(count) => sent += count,
            Err(_) => break,
        }
    }
    server.0.await_line("a message before its turn");
    let grown = most_memory(server.0.id()) - before;
    assert!(grown < MOST / 4, "{grown} bytes are kept of {sent} of a client that waits");
    long.kill();
    server.is_well(device);
    server.end();
    Outcome::Ran
}

fn a_client_that_stops_keeps_no_place(device: &Device) -> Outcome {
    let mut server = Server::new(device, "");
    let stopped = server.start(device, "write lat -n 4000000000");
    server.0.await_line("serving");
    sleep(Duration::from_millis(500));
    stopped.signal("STOP");
    let start = Instant::now();
    server.is_well(device);
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
    let ended = server.end();
    assert!(ended.stderr.contains("has not been heard of for 8 s"), "{ended:#?}");
    Outcome::Ran
}

fn a_server_gives_only_what_it_was_told_to(device: &Device) -> Outcome {
    let server = Server::new(device, "--max-memory 64K");
    // The test exceeds the limit by its message size, its queue pairs, or its messages in flight.
    for (test, messages) in [
        ("write bw -n 5 -s 1M", "2097152"),
        ("write bw -n 5 -s 64 -q 20", "163840"),
        ("write bw -n 5000 -s 64 -t 400", "8192"),
    ] {
        let client = run(&device.flags(&format!("{test} 127.0.0.1 -p {}", server.1)));
        let line = client.refused();
        for words in [messages, "is given 65536", "serve --max-memory"] {
            assert!(line.contains(words), "{test}: no `{words}` in {line}");
        }
    }
    server.is_well(device);
    server.end();
    // A server with a test on its command line has the default limit.
    let mut server = Running::start(&mut command(&device.flags("write bw -p 0")));
    let waiting = server.await_line("waiting for a client on TCP port");
    let port = waiting.rsplit(' ').next().unwrap();
    let client = run(&device.flags(&format!("write bw -n 5 -s 600M 127.0.0.1 -p {port}")));
    assert!(client.refused().contains("is given 1073741824"), "{client:#?}");
    assert!(server.end().refused().contains("serve --max-memory"));
    Outcome::Ran
}

fn client_flags_are_refused_by_a_server(device: &Device) -> Outcome {
    for (flags, words) in [
        ("--json a.json", ["--json", "one run", "--jsonl"]),
        ("--expect-bw 5", ["--expect-bw", "the client", "knows the test"]),
        ("-j 0", ["'0'", "1..=64", "--jobs"]),
        ("-n 5", ["'-n'", "unexpected", "--help"]),
    ] {
        let ended = run(&device.flags(&format!("serve -p 0 {flags}")));
        let line = ended.refused();
        assert!(words.iter().all(|word| line.contains(word)), "{flags}: {line}");
    }
    Outcome::Ran
}
