//! `trespass::tokio` beside blocking calls that sleep, and beside tokio's TCP.
//!
//! ```sh
//! cargo bench -p async-tests --features run
//! ```
//!
//! The two sides are processes over the software device. The pairs are measured in turns. A row has the
//! ratio of the medians, and the ratio of two halves of one side as the noise.

mod common;

use std::env;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream as StdTcpStream};
use std::thread;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder as RuntimeBuilder, Runtime};
use trespass::tokio::{Listener, Stream};
use trespass::{Builder, Config, Policy};

use common::{EchoServer, SERVES, median, noise, set_device, timed};

const LEN: usize = 64;
const ROUNDS: usize = 21;
const ROUND_TRIPS: usize = 2000;
const TASKS: usize = 64;
const TRIPS_OF_A_TASK: usize = 150;

/// A kind of server and client.
#[derive(Clone, Copy, PartialEq, Eq)]
enum EchoKind {
    Blocking,
    Task,
    TokioTcp,
}

fn main() {
    let fabric = set_device();
    match env::var(SERVES).as_deref() {
        Ok("blocking") => return serve_blocking(),
        Ok("tasks") => return serve_tasks(),
        Ok("tcp") => return serve_tcp(),
        _ => {}
    }
    let servers: Vec<_> = ["blocking", "tasks", "tcp"].map(|kind| EchoServer::start(kind, &fabric)).into();
    let addr = |side| servers[side as usize].addr;
    println!(
        "round trip of {LEN} bytes over soft0, no side spins, median of {ROUNDS} rounds of {ROUND_TRIPS}"
    );
    let runtime = current_thread();
    let mut blocking = config_of_device().connect(addr(EchoKind::Blocking)).expect("a connection");
    let mut task = runtime.block_on(connect(addr(EchoKind::Task)));
    let mut tcp = runtime.block_on(TcpStream::connect(addr(EchoKind::TokioTcp))).expect("a connection");
    tcp.set_nodelay(true).expect("an option");
    let mut std_tcp = StdTcpStream::connect(addr(EchoKind::TokioTcp)).expect("a connection");
    std_tcp.set_nodelay(true).expect("an option");
    let mut times = [const { Vec::new() }; 4];
    for _ in 0..ROUNDS {
        times[0].push(timed(|| ping_blocking(&mut blocking)));
        times[1].push(timed(|| runtime.block_on(ping(&mut task, ROUND_TRIPS))));
        times[2].push(timed(|| ping_blocking(&mut std_tcp)));
        times[3].push(timed(|| runtime.block_on(ping(&mut tcp, ROUND_TRIPS))));
    }
    let [of_blocking, of_task, of_std, of_tokio] = times;
    let each = |times: &[f64]| median(times) / ROUND_TRIPS as f64 * 1e6;
    println!("blocking call that sleeps  {:7.2} us  noise {:.2}", each(&of_blocking), noise(&of_blocking));
    println!("trespass::tokio            {:7.2} us  noise {:.2}", each(&of_task), noise(&of_task));
    println!("std TCP against tokio TCP  {:7.2} us  noise {:.2}", each(&of_std), noise(&of_std));
    println!("tokio TCP                  {:7.2} us  noise {:.2}", each(&of_tokio), noise(&of_tokio));
    println!("trespass::tokio / blocking {:7.2}", median(&of_task) / median(&of_blocking));
    println!("trespass::tokio / tokio TCP {:6.2}", median(&of_task) / median(&of_tokio));
    drop((blocking, task, tcp, std_tcp));

    println!(
        "{TASKS} tasks, each {TRIPS_OF_A_TASK} round trips of {LEN} bytes, a runtime of one thread a side"
    );
    let tasks: Vec<_> = (0..TASKS).map(|_| runtime.block_on(connect(addr(EchoKind::Task)))).collect();
    let over_tcp = |_| {
        let stream = runtime.block_on(TcpStream::connect(addr(EchoKind::TokioTcp))).expect("a connection");
        stream.set_nodelay(true).expect("an option");
        stream
    };
    let (mut tasks, mut sockets): (Vec<_>, Vec<_>) = (tasks, (0..TASKS).map(over_tcp).collect());
    let (mut of_tasks, mut of_sockets) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        of_tasks.push(timed(|| tasks = runtime.block_on(all(std::mem::take(&mut tasks)))));
        of_sockets.push(timed(|| sockets = runtime.block_on(all(std::mem::take(&mut sockets)))));
    }
    let rate = |times: &[f64]| (TASKS * TRIPS_OF_A_TASK) as f64 / median(times) / 1e3;
    println!("trespass::tokio            {:7.1} k/s  noise {:.2}", rate(&of_tasks), noise(&of_tasks));
    println!("tokio TCP                  {:7.1} k/s  noise {:.2}", rate(&of_sockets), noise(&of_sockets));
    println!("trespass::tokio / tokio TCP {:6.2}", median(&of_sockets) / median(&of_tasks));
}

fn current_thread() -> Runtime {
    RuntimeBuilder::new_current_thread().enable_all().build().expect("a runtime")
}

/// Neither side polls before it sleeps.
fn config_of_device() -> Config {
    Builder::new().policy(Policy::RequireRdma).spin(Duration::ZERO).build().expect("valid parameters")
}

async fn connect(addr: SocketAddr) -> Stream {
    Stream::connect_with(&config_of_device(), addr).await.expect("a connection")
}

fn ping_blocking(stream: &mut (impl Read + Write)) {
    let mut bytes = [1; LEN];
    for _ in 0..ROUND_TRIPS {
        stream.write_all(&bytes).expect("a connection");
        stream.read_exact(&mut bytes).expect("a connection");
    }
}

async fn ping(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), count: usize) {
    let mut bytes = [1; LEN];
    for _ in 0..count {
        stream.write_all(&bytes).await.expect("a connection");
        stream.read_exact(&mut bytes).await.expect("a connection");
    }
}

/// A ping-pong on each connection at the same time.
async fn all<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(streams: Vec<S>) -> Vec<S> {
    let one = |mut stream: S| {
        tokio::spawn(async move {
            ping(&mut stream, TRIPS_OF_A_TASK).await;
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

async fn echo(mut stream: impl AsyncRead + AsyncWrite + Unpin) {
    let mut bytes = [0; LEN];
    while stream.read_exact(&mut bytes).await.is_ok() && stream.write_all(&bytes).await.is_ok() {}
}

fn serve_blocking() {
    let listener = config_of_device().bind("127.0.0.1:0").expect("a listener");
    println!("{}", listener.local_addr().expect("an address"));
    for stream in listener.incoming() {
        let mut stream = stream.expect("a connection");
        thread::spawn(move || {
            let mut bytes = [0; LEN];
            while stream.read_exact(&mut bytes).is_ok() && stream.write_all(&bytes).is_ok() {}
        });
    }
}

fn serve_tasks() {
    current_thread().block_on(async {
        let listener = Listener::bind_with(&config_of_device(), "127.0.0.1:0").await.expect("a listener");
        println!("{}", listener.local_addr().expect("an address"));
        loop {
            let (stream, _) = listener.accept().await.expect("a connection");
            tokio::spawn(echo(stream));
        }
    });
}

fn serve_tcp() {
    current_thread().block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a listener");
        println!("{}", listener.local_addr().expect("an address"));
        loop {
            let (stream, _) = listener.accept().await.expect("a connection");
            stream.set_nodelay(true).expect("an option");
            tokio::spawn(echo(stream));
        }
    });
}
