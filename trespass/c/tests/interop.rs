//! C programs against Rust programs: the examples in C, and this test program as the other side.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::LazyLock;
use std::time::Duration;

use libtest_mimic::Trial;
use trespass::{Listener, SeqPacket, Stream};

use crate::programs::{C, compile, suite};
use crate::{Over, TestOutcome, TestResult, run, source, trial_over};

/// The variable that makes this program the Rust side: `serve`, `serve_messages`, `ask ADDRESS` or
/// `ask_messages ADDRESS`.
const PEER: &str = "TRESPASS_C_TEST_PEER";

/// The longest wait of a side. It ends the program's life, so that no test waits for ever.
const LIMIT: Duration = Duration::from_secs(20);

/// More than the buffers of a connection hold, so that both sides wait for each other.
const LENGTH: usize = 100_000;

pub(crate) fn trials(over: Over) -> Vec<Trial> {
    vec![
        trial_over(over, "c_client_of_a_rust_server", &["cc"], move || c_client_of_a_rust_server(over)),
        trial_over(over, "rust_client_of_a_c_server", &["cc"], move || rust_client_of_a_c_server(over)),
        trial_over(over, "c_client_of_a_c_server", &["cc"], move || c_client_of_a_c_server(over)),
        trial_over(over, "c_messages_to_rust", &["cc"], move || c_messages_to_rust(over)),
        trial_over(over, "rust_messages_to_c", &["cc"], move || rust_messages_to_c(over)),
    ]
}

/// Runs the Rust side, if this process is one.
pub(crate) fn peer() -> Option<ExitCode> {
    let role = std::env::var(PEER).ok()?;
    let ended = match role.split_once(' ') {
        None if role == "serve" => serve(),
        None => serve_messages(),
        Some(("ask", address)) => ask(address),
        Some((_, address)) => ask_messages(address),
    };
    Some(ended.map_or_else(
        |error| {
            eprintln!("{error}");
            ExitCode::FAILURE
        },
        |()| ExitCode::SUCCESS,
    ))
}

/// Listens where the tests tell the programs in C to listen.
fn listen() -> io::Result<Listener> {
    let address = std::env::var("SUITE_ADDRESS").unwrap_or_else(|_| "127.0.0.1".to_owned());
    let listener = Listener::bind(format!("{address}:0"))?;
    listener.set_accept_timeout(Some(LIMIT))?;
    println!("listening on port {}", listener.local_addr()?.port());
    Ok(listener)
}

/// Echoes to one client.
fn serve() -> io::Result<()> {
    let listener = listen()?;
    let (stream, _) = listener.accept()?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.set_write_timeout(Some(LIMIT))?;
    println!("a client over {}", stream.transport());
    io::copy(&mut &stream, &mut &stream).map(drop)
}

/// Sends bytes to an echo server and compares the answer.
fn ask(address: &str) -> io::Result<()> {
    let mut stream = Stream::connect(address)?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.set_write_timeout(Some(LIMIT))?;
    let bytes = test_harness::bytes(1, LENGTH);
    stream.write_all(&bytes)?;
    stream.shutdown(Shutdown::Write)?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    if answer == bytes { Ok(()) } else { Err(io::Error::other("the answer differs")) }
}

/// Echoes messages to one client until their end.
fn serve_messages() -> io::Result<()> {
    let listener = listen()?;
    let (mut packets, _) = listener.accept_seq_packet()?;
    packets.set_read_timeout(Some(LIMIT))?;
    println!("a client over {}", packets.transport());
    let mut message = vec![0; 1 << 20];
    loop {
        match packets.recv(&mut message) {
            Ok(len) => packets.send(&message[..len])?,
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

/// Sends messages, and compares their echoes.
fn ask_messages(address: &str) -> io::Result<()> {
    let mut packets = SeqPacket::connect(address)?;
    packets.set_read_timeout(Some(LIMIT))?;
    let mut answer = vec![0; 1 << 20];
    for len in [0, 1, 255, 4096, 8193, 65537, 300_000] {
        let message = test_harness::bytes(len as u64, len);
        packets.send(&message)?;
        let got = packets.recv(&mut answer)?;
        if answer[..got] != message {
            return Err(io::Error::other(format!("the answer to {len} bytes differs")));
        }
    }
    Ok(())
}

/// A server in another process, which ends with the test.
struct PeerServer {
    child: Child,
    lines: io::Lines<BufReader<std::process::ChildStdout>>,
    address: String,
}

impl PeerServer {
    fn start(over: Over, command: &mut Command) -> Result<Self, String> {
        let started = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        let mut child = started.map_err(|error| format!("{command:?}: {error}"))?;
        let lines = BufReader::new(child.stdout.take().expect("its output is piped")).lines();
        let mut server = Self { child, lines, address: String::new() };
        let port = server.line_after("listening on port ")?;
        server.address = format!("{}:{port}", over.address()?);
        Ok(server)
    }

    /// The rest of the next line, which begins with some words.
    fn line_after(&mut self, words: &str) -> Result<String, String> {
        let line = self.lines.next().and_then(Result::ok).unwrap_or_default();
        line.strip_prefix(words).map(str::to_owned).ok_or_else(|| format!("the server printed {line:?}"))
    }

    /// Checks how the client came.
    fn served_over(mut self, over: Over) -> TestResult {
        let transport = self.line_after("a client over ")?;
        if transport == over.transport() {
            Ok(TestOutcome::Passed)
        } else {
            Err(format!("it came over {transport}"))
        }
    }
}

impl Drop for PeerServer {
    fn drop(&mut self) {
        // One that has ended by itself cannot be killed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn example(name: &'static str) -> Result<std::path::PathBuf, String> {
    type Built = LazyLock<Result<std::path::PathBuf, String>>;
    static SERVER: Built = LazyLock::new(|| build("echo_server"));
    static CLIENT: Built = LazyLock::new(|| build("echo_client"));
    if name == "echo_server" { SERVER.clone() } else { CLIENT.clone() }
}

/// Makes the programs of [`trials`] that `programs.rs` does not make.
pub(crate) fn over_devices() -> Result<Vec<std::path::PathBuf>, String> {
    ["echo_server", "echo_client"].into_iter().map(example).collect()
}

fn build(name: &str) -> Result<std::path::PathBuf, String> {
    compile(C, &[source("examples").join(format!("{name}.c"))], name, &[])
}

fn c_server(over: Over) -> Result<PeerServer, String> {
    let mut command = Command::new(example("echo_server")?);
    over.apply(&mut command);
    PeerServer::start(over, command.arg(format!("{}:0", over.address()?)))
}

/// Runs the example's client with a text that it must print again.
fn c_client(over: Over, address: &str) -> Result<(), String> {
    // As long as an argument may be.
    let text: String = ('a'..='z').cycle().take(LENGTH).collect();
    let mut command = Command::new(example("echo_client")?);
    over.apply(&mut command);
    let output = run(command.arg(address).arg(&text))?;
    if output.stdout == format!("{text}\n").into_bytes() {
        return Ok(());
    }
    Err(format!("the answer has {} bytes", output.stdout.len()))
}

fn this_program(over: Over, role: &str) -> Result<Command, String> {
    let mut command = Command::new(std::env::current_exe().map_err(|error| error.to_string())?);
    over.apply(&mut command);
    command.env(PEER, role);
    Ok(command)
}

fn c_client_of_a_rust_server(over: Over) -> TestResult {
    let server = PeerServer::start(over, &mut this_program(over, "serve")?)?;
    c_client(over, &server.address)?;
    server.served_over(over)
}

fn rust_client_of_a_c_server(over: Over) -> TestResult {
    let server = c_server(over)?;
    run(&mut this_program(over, &format!("ask {}", server.address))?)?;
    server.served_over(over)
}

fn c_client_of_a_c_server(over: Over) -> TestResult {
    let server = c_server(over)?;
    c_client(over, &server.address)?;
    server.served_over(over)
}

fn c_messages_to_rust(over: Over) -> TestResult {
    let server = PeerServer::start(over, &mut this_program(over, "serve_messages")?)?;
    let mut client = Command::new(suite()?);
    over.apply(&mut client);
    run(client.args(["ask_messages", &server.address]))?;
    server.served_over(over)
}

fn rust_messages_to_c(over: Over) -> TestResult {
    let mut command = Command::new(suite()?);
    over.apply(&mut command);
    let server = PeerServer::start(over, command.arg("serve_messages"))?;
    run(&mut this_program(over, &format!("ask_messages {}", server.address))?)?;
    server.served_over(over)
}
