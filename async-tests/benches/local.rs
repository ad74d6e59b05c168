//! `trespass::local` beside `trespass::tokio`, beside a worker whose events the program handles,
//! and beside tokio's TCP: requests and answers on many connections at once, a thread for each
//! side.
//!
//! ```sh
//! cargo bench -p async-tests --features run --bench local [-- CONNECTIONS...]
//! ```
//!
//! The two sides are processes over the software device. The kinds are measured in turns. A row has
//! the rate of each, its ratio to `trespass::tokio`, and the ratio of two halves of its rounds as
//! the noise.

mod common;

use std::collections::HashMap;
use std::env;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder as TokioBuilder, Runtime as TokioRuntime};
use trespass::local::{self, Runtime, spawn_local};
use trespass::{Builder, Config, Event, Key, Kind, Policy, Worker, tokio as tasks};

use common::{EchoServer, SERVES, median, noise, set_device, timed};

const ROUNDS: usize = 9;
const SIZES: [usize; 2] = [64, 4096];
/// Requests of a round, over all connections.
const REQUESTS: usize = 20_000;
const KINDS: [&str; 4] = ["tokio", "local", "worker", "tcp"];

fn main() {
    let fabric = set_device();
    if let Ok(serves) = env::var(SERVES) {
        let (kind, size) = serves.split_once(' ').expect("a kind and a size");
        return serve(kind, size.parse().expect("a size"));
    }
    let counts: Vec<usize> = env::args().skip(1).filter_map(|argument| argument.parse().ok()).collect();
    let counts = if counts.is_empty() { vec![1, 16, 256] } else { counts };
    println!("requests and answers over soft0, no side spins, median of {ROUNDS} rounds of {REQUESTS}");
    for size in SIZES {
        let servers = KINDS.map(|kind| EchoServer::start(&format!("{kind} {size}"), &fabric));
        for &count in &counts {
            measure(&servers.each_ref().map(|server| server.addr), count, size);
        }
    }
}

fn measure(addrs: &[SocketAddr; KINDS.len()], count: usize, size: usize) {
    let each = (REQUESTS / count).max(1);
    let mut clients = [0, 1, 2, 3].map(|kind| BenchClient::new(KINDS[kind], addrs[kind], count, size));
    let mut times = [const { Vec::new() }; KINDS.len()];
    for _ in 0..ROUNDS {
        for (client, times) in clients.iter_mut().zip(&mut times) {
            times.push(timed(|| client.run(each)));
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
