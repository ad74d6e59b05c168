//! A connect while other peers stop within their handshakes.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use xtask_bench::process::{HOST, ServerProcess, end_with_parent, print_line};

use crate::carrier::Carrier;
use crate::server::{Server, Service};
use crate::{median, print_sample, take_turns};

/// How often the hostile peers replace the connections that the server has ended.
const SWEEP: Duration = Duration::from_millis(50);

pub(crate) fn measure(count: u32, peers: u32, rounds: u32) -> Result<()> {
    let rdma = Server::start(Carrier::Rdma, Service::Echo)?;
    for round in 0..=rounds {
        let [alone, disturbed, again] = take_turns(round, |which| {
            let hostile = (which == 1).then(|| StoppedPeers::start(rdma.port(), peers)).transpose()?;
            let times = connects(&rdma, count);
            drop(hostile);
            times
        })?;
        if round > 0 {
            for (row, at) in [("hostile", 0), ("hostile-slowest", 1)] {
                let figures = [("rdma", disturbed[at]), ("reference", alone[at]), ("again", again[at])];
                print_sample(row, &figures)?;
            }
        }
    }
    Ok(())
}

/// The median and the slowest of `count` connects, in nanoseconds.
fn connects(server: &Server, count: u32) -> Result<[f64; 2]> {
    let mut times = Vec::new();
    for _ in 0..count {
        let start = Instant::now();
        let mut stream = server.connect()?;
        times.push(start.elapsed().as_nanos() as f64);
        stream.request::<false>()?;
    }
    let median = median(&mut times)?;
    Ok([median, times.last().copied().unwrap_or(f64::NAN)])
}

/// Peers that stop within their handshakes, in another process.
struct StoppedPeers(#[expect(dead_code, reason = "its drop ends the process")] ServerProcess);

impl StoppedPeers {
    fn start(port: u16, peers: u32) -> Result<Self> {
        let mut process = ServerProcess::run(&["disturb", &port.to_string(), &peers.to_string()])?;
        process.expect("connected")?;
        Ok(Self(process))
    }
}

/// The step at which a peer stops.
#[derive(Clone, Copy)]
enum Stop {
    /// It sends nothing.
    Silent,
    /// It sends half of a HELLO.
    Half,
    /// It sends a HELLO, and never a probe.
    Hello,
    /// It sends other bytes.
    Garbage,
}

/// Holds `peers` connections to the port, each of which stops at one of the steps, until standard
/// input ends.
pub(crate) fn disturb(port: u16, peers: u32) -> Result<()> {
    let hello = recorded_hello()?;
    let server = SocketAddr::from((HOST, port));
    let stops = [Stop::Silent, Stop::Half, Stop::Hello, Stop::Garbage].into_iter().cycle();
    let stops: Vec<Stop> = stops.take(peers as usize).collect();
    let connect = |stop: &Stop| stopped_peer(server, *stop, &hello);
    let mut streams = stops.iter().map(connect).collect::<Result<Vec<_>>>()?;
    end_with_parent(std::process::exit);
    print_line("connected")?;
    loop {
        thread::sleep(SWEEP);
        for (stream, stop) in streams.iter_mut().zip(&stops) {
            if is_ended(stream) {
                *stream = connect(stop)?;
            }
        }
    }
}

fn stopped_peer(server: SocketAddr, stop: Stop, hello: &[u8]) -> Result<TcpStream> {
    let mut stream = TcpStream::connect(server)?;
    let garbage = vec![0xa5; hello.len()];
    let bytes = match stop {
        Stop::Silent => &[],
        Stop::Half => &hello[..hello.len() / 2],
        Stop::Hello => hello,
        Stop::Garbage => &garbage,
    };
    stream.write_all(bytes)?;
    stream.set_nonblocking(true)?;
    Ok(stream)
}

/// Whether the server has ended the connection. Takes what it has sent before.
fn is_ended(stream: &mut TcpStream) -> bool {
    loop {
        match stream.read(&mut [0; 1024]) {
            Ok(0) => return true,
            Ok(_) => (),
            Err(error) => return error.kind() != ErrorKind::WouldBlock,
        }
    }
}

/// The first message of a client of trespass.
fn recorded_hello() -> Result<Vec<u8>> {
    let listener = TcpListener::bind((HOST, 0))?;
    let port = listener.local_addr()?.port();
    // It fails when the socket is closed.
    let client = thread::spawn(move || drop(Carrier::Rdma.connect(port)));
    let mut hello = vec![0; 4096];
    let (mut stream, _) = listener.accept()?;
    let length = stream.read(&mut hello)?;
    drop(stream);
    client.join().ok().context("the recorded client has panicked")?;
    hello.truncate(length);
    Ok(hello)
}
