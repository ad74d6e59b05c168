//! `trespass::local` beside `trespass::tokio`, beside a worker whose events the program handles,
//! and beside tokio's TCP: requests and answers on many connections at once, a thread for each
//! side.
//!
//! ```sh
//! cargo bench -p async-tests --features run --bench local [-- CONNECTIONS...]
//! ```
//!
//! The two sides are processes over the software device, and each kind has its own two, so that a
//! process has the descriptors of one kind. The kinds are measured in turns. A row has the rate of
//! each, its ratio to `trespass::tokio`, and the ratio of two halves of its rounds as the noise. A row
//! for which the process may not have enough descriptors is printed with that reason, unmeasured.

mod common;

use std::collections::HashMap;
use std::env;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder as TokioBuilder, Runtime as TokioRuntime};
use trespass::local::{self, Runtime, spawn_local};
use trespass::{Builder, Config, Event, Key, Kind, Policy, Worker, tokio as tasks};

use common::{EchoServer, FABRIC, SERVES, median, noise, set_device, timed};

const ROUNDS: usize = 9;
const SIZES: [usize; 2] = [64, 4096];
/// Requests of a round, over all connections.
const REQUESTS: usize = 20_000;
const KINDS: [&str; 4] = ["tokio", "local", "worker", "tcp"];

/// Names what the process asks for, if it is a client: a kind, an address, a number of connections
/// and a size.
const ASKS: &str = "TRESPASS_BENCH_ASKS";

/// Descriptors of a connection, at most: a task of tokio has the socket, the completion channel, the
/// set of events, and an eighth of a waker.
const DESCRIPTORS: [usize; 2] = [25, 8];
/// Descriptors of a process that belong to no connection.
const FURTHER_DESCRIPTORS: usize = 100;

fn main() {
    let fabric = set_device();
    if let Ok(serves) = env::var(SERVES) {
        let (kind, size) = serves.split_once(' ').expect("a kind and a size");
        return serve(kind, size.parse().expect("a size"));
    }
    if let Ok(asks) = env::var(ASKS) {
        return ask(&asks);
    }
    let counts: Vec<usize> = env::args().skip(1).filter_map(|argument| argument.parse().ok()).collect();
    let counts = if counts.is_empty() { vec![1, 16, 256, 4096] } else { counts };
    println!("requests and answers over soft0, no side spins, median of {ROUNDS} rounds of {REQUESTS}");
    for size in SIZES {
        let servers = KINDS.map(|kind| EchoServer::start(&format!("{kind} {size}"), &fabric));
        for &count in &counts {
            let (wanted, limit) = (descriptors(count), descriptor_limit());
            if wanted > limit {
                println!(
                    "{count:5} connections, {size:4} bytes: not measured, because a process needs {wanted} \
                     descriptors, and `ulimit -n` is {limit}"
                );
                continue;
            }
            measure(&servers.each_ref().map(|server| server.addr), &fabric, count, size);
        }
    }
}

fn descriptors(connections: usize) -> usize {
    let [some, of] = DESCRIPTORS;
    connections * some / of + FURTHER_DESCRIPTORS
}

/// The limit of this process, which its children inherit. It is raised as far as the system allows.
fn descriptor_limit() -> usize {
    use rustix::process::{Resource, getrlimit, setrlimit};

    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).expect("a limit up to the hard one");
    limit.current.map_or(usize::MAX, |limit| limit.try_into().unwrap_or(usize::MAX))
}

/// A client's process, which ends when this is dropped.
struct ClientProcess {
    process: Child,
    /// `None` once the process is told to end.
    begin: Option<ChildStdin>,
    seconds: BufReader<ChildStdout>,
}

impl ClientProcess {
    fn start(kind: &str, addr: SocketAddr, fabric: &str, count: usize, size: usize) -> Self {
        let mut command = Command::new(env::current_exe().expect("this program has a path"));
        command.env(ASKS, format!("{kind} {addr} {count} {size}")).env(FABRIC, fabric);
        let process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut process = process.expect("this program starts");
        let (begin, seconds) = (process.stdin.take(), process.stdout.take().expect("a pipe"));
        Self { process, begin, seconds: BufReader::new(seconds) }
    }

    /// The seconds of a round with `each` requests on each connection, after all are connected.
    fn run(&mut self, each: usize) -> f64 {
        let mut line = String::new();
        writeln!(self.begin.as_ref().expect("a pipe"), "{each}").expect("the client runs");
        self.seconds.read_line(&mut line).expect("the client runs");
        line.trim().parse().expect("the client reports its time")
    }
}

impl Drop for ClientProcess {
    fn drop(&mut self) {
        self.begin = None;
        let _ = self.process.wait();
    }
}

/// A client's process: connects, and runs a round for each line of its input.
fn ask(asks: &str) {
    let mut words = asks.split(' ');
    let mut word = || words.next().expect("a word of four");
    let (kind, addr) = (word(), word().parse().expect("an address"));
    let [count, size] = [word(), word()].map(|word| word.parse().expect("a number"));
    let mut client = BenchClient::new(kind, addr, count, size);
    for line in std::io::stdin().lines() {
        let each = line.expect("text").parse().expect("a number");
        println!("{}", timed(|| client.run(each)));
    }
}

fn measure(addrs: &[SocketAddr; KINDS.len()], fabric: &str, count: usize, size: usize) {
    let each = (REQUESTS / count).max(1);
    // One after the other, so that their connects do not compete.
    let mut clients = [0, 1, 2, 3].map(|kind| {
        let mut client = ClientProcess::start(KINDS[kind], addrs[kind], fabric, count, size);
        client.run(1);
        client
    });
    let mut times = [const { Vec::new() }; KINDS.len()];
    for _ in 0..ROUNDS {
        for (client, times) in clients.iter_mut().zip(&mut times) {
            times.push(client.run(each));
        }
    }
    let base = median(&times[0]);
    for (kind, times) in KINDS.iter().zip(&times) {
        let rate = (each * count) as f64 / median(times) / 1e3;
        let ratio = base / median(times);
        println!(
            "{count:5} connections, {size:4} bytes, {kind:6} {rate:8.1} k/s  ratio {ratio:5.2}  noise {:.2}",
            noise(times)
        );
    }
}

/// Neither side polls before it sleeps.
fn config() -> Config {
    let builder = Builder::new().policy(Policy::RequireRdma).spin(Duration::ZERO);
    builder.handshake_deadline(Duration::from_secs(60)).build().expect("valid parameters")
}

fn tokio_runtime() -> TokioRuntime {
    TokioBuilder::new_current_thread().enable_all().build().expect("a runtime")
}

fn serve(kind: &str, size: usize) {
    let told = |addr: SocketAddr| println!("{addr}");
    let anywhere = SocketAddr::from(([127, 0, 0, 1], 0));
    match kind {
        "tokio" => tokio_runtime().block_on(async {
            let listener = tasks::Listener::bind_with(&config(), anywhere).await.expect("a listener");
            told(listener.local_addr().expect("an address"));
            loop {
                let (stream, _) = listener.accept().await.expect("a connection");
                tokio::spawn(echo(stream, size));
            }
        }),
        "tcp" => tokio_runtime().block_on(async {
            let listener = TcpListener::bind(anywhere).await.expect("a listener");
            told(listener.local_addr().expect("an address"));
            loop {
                let (stream, _) = listener.accept().await.expect("a connection");
                stream.set_nodelay(true).expect("an option");
                tokio::spawn(echo(stream, size));
            }
        }),
        "local" => Runtime::new(&config())
            .expect("a runtime")
            .block_on(async {
                let mut listener = local::Listener::bind(anywhere).expect("a listener");
                told(listener.local_addr().expect("an address"));
                loop {
                    let (mut stream, _) = listener.accept().await.expect("a connection");
                    drop(spawn_local(async move {
                        let mut bytes = vec![0; size];
                        while stream.read_exact(&mut bytes).await.is_ok()
                            && stream.write_all(&bytes).await.is_ok()
                        {}
                    }));
                }
            })
            .expect("a poll"),
        _ => {
            let mut worker = Worker::new(&config()).expect("a worker");
            let listener = worker.listen(anywhere, Kind::Stream).expect("a listener");
            told(worker.local_addr(listener).expect("an address"));
            let mut echoes = HashMap::new();
            drive(&mut worker, &mut echoes, size, |echo, worker, key| {
                worker.write(key, &echo.bytes)?;
                Ok(true)
            });
        }
    }
}

async fn echo(mut stream: impl AsyncRead + AsyncWrite + Unpin, size: usize) {
    let mut bytes = vec![0; size];
    while stream.read_exact(&mut bytes).await.is_ok() && stream.write_all(&bytes).await.is_ok() {}
}

/// The state of a worker's connection.
struct WorkerConnection {
    bytes: Vec<u8>,
    /// How many of them have come.
    read: usize,
    /// Answers to come.
    left: usize,
}

/// Handles the events of a worker until `whole`, which is called for each whole request or answer,
/// has ended each connection. A message of these sizes always finds room.
fn drive(
    worker: &mut Worker,
    connections: &mut HashMap<Key, WorkerConnection>,
    size: usize,
    mut whole: impl FnMut(&mut WorkerConnection, &mut Worker, Key) -> std::io::Result<bool>,
) {
    let (mut events, mut running) = (Vec::new(), connections.len());
    loop {
        worker.poll(&mut events, None).expect("a poll");
        for event in events.drain(..) {
            let Event::Ready { key, .. } = event else { continue };
            let fresh = || WorkerConnection { bytes: vec![0; size], read: 0, left: 0 };
            let connection = connections.entry(key).or_insert_with(fresh);
            loop {
                let read = connection.read;
                match worker.read(key, &mut connection.bytes[read..]) {
                    Ok(0) => {
                        worker.close(key);
                        break;
                    }
                    Ok(count) => connection.read += count,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(_) => {
                        worker.close(key);
                        break;
                    }
                }
                if connection.read == size {
                    connection.read = 0;
                    if !whole(connection, worker, key).expect("room for a message") {
                        running -= 1;
                        if running == 0 {
                            return;
                        }
                        break;
                    }
                }
            }
        }
    }
}

/// Connections of one kind, on which requests are sent.
enum BenchClient {
    Tokio(TokioRuntime, Vec<tasks::Stream>, usize),
    Tcp(TokioRuntime, Vec<TcpStream>, usize),
    Local(Runtime, Vec<local::Stream>, usize),
    Worker(Box<Worker>, HashMap<Key, WorkerConnection>, usize),
}

impl BenchClient {
    fn new(kind: &str, addr: SocketAddr, count: usize, size: usize) -> Self {
        match kind {
            "tokio" => {
                let (runtime, config) = (tokio_runtime(), config());
                let connect =
                    |_| runtime.block_on(tasks::Stream::connect_with(&config, addr)).expect("a connection");
                let streams = (0..count).map(connect).collect();
                Self::Tokio(runtime, streams, size)
            }
            "tcp" => {
                let runtime = tokio_runtime();
                let connect = |_| {
                    let stream = runtime.block_on(TcpStream::connect(addr)).expect("a connection");
                    stream.set_nodelay(true).expect("an option");
                    stream
                };
                let streams = (0..count).map(connect).collect();
                Self::Tcp(runtime, streams, size)
            }
            "local" => {
                let runtime = Runtime::new(&config()).expect("a runtime");
                let connect = |_| {
                    let stream = runtime.block_on(local::Stream::connect(addr)).expect("a poll");
                    stream.expect("a connection")
                };
                let streams = (0..count).map(connect).collect();
                Self::Local(runtime, streams, size)
            }
            _ => {
                let mut worker = Worker::new(&config()).expect("a worker");
                let (mut connections, mut events) = (HashMap::new(), Vec::new());
                for _ in 0..count {
                    worker.connect(addr, Kind::Stream).expect("a connection");
                    while !events.iter().any(|event| matches!(event, Event::Connected { .. })) {
                        worker.poll(&mut events, None).expect("a poll");
                    }
                    for event in events.drain(..) {
                        if let Event::Connected { key, .. } = event {
                            let connection = WorkerConnection { bytes: vec![1; size], read: 0, left: 0 };
                            connections.insert(key, connection);
                        }
                    }
                }
                Self::Worker(Box::new(worker), connections, size)
            }
        }
    }

    /// Sends `each` requests on each connection, one after the other.
    fn run(&mut self, each: usize) {
        match self {
            Self::Tokio(runtime, streams, size) => {
                *streams = runtime.block_on(all(std::mem::take(streams), each, *size));
            }
            Self::Tcp(runtime, streams, size) => {
                *streams = runtime.block_on(all(std::mem::take(streams), each, *size));
            }
            Self::Local(runtime, streams, size) => {
                let size = *size;
                let running: Vec<_> = std::mem::take(streams)
                    .into_iter()
                    .map(|mut stream| {
                        runtime.spawn_local(async move {
                            let mut bytes = vec![1; size];
                            for _ in 0..each {
                                stream.write_all(&bytes).await.expect("a connection");
                                stream.read_exact(&mut bytes).await.expect("a connection");
                            }
                            stream
                        })
                    })
                    .collect();
                let ended = async {
                    for task in running {
                        streams.push(task.await);
                    }
                };
                runtime.block_on(ended).expect("a poll");
            }
            Self::Worker(worker, connections, size) => {
                for (key, connection) in connections.iter_mut() {
                    connection.left = each;
                    worker.write(*key, &connection.bytes).expect("room for a message");
                }
                drive(worker, connections, *size, |connection, worker, key| {
                    connection.left -= 1;
                    if connection.left > 0 {
                        worker.write(key, &connection.bytes)?;
                    }
                    Ok(connection.left > 0)
                });
            }
        }
    }
}

/// Requests on each connection at the same time.
async fn all<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    streams: Vec<S>,
    each: usize,
    size: usize,
) -> Vec<S> {
    let one = |mut stream: S| {
        tokio::spawn(async move {
            let mut bytes = vec![1; size];
            for _ in 0..each {
                stream.write_all(&bytes).await.expect("a connection");
                stream.read_exact(&mut bytes).await.expect("a connection");
            }
            stream
        })
    };
    let running: Vec<_> = streams.into_iter().map(one).collect();
    let mut ended = Vec::new();
    for task in running {
        ended.push(task.await.expect("no task panics"));
    }
    ended
}
