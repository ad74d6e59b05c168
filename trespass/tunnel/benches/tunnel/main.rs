//! The tunnel beside a direct connection, and beside two socats in series.
//!
//! ```sh
//! cargo bench -p trespass-tunnel
//! ```
//!
//! The paths are measured in turns. A row has the median, the ratio of two halves of its values as
//! the noise, and its ratios to the direct connection and to the socats. socat, iperf3 and redis are
//! used if they are installed.

mod path;
mod programs;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Instant;

use path::{Path, TWO_SOCATS};

const ROUNDS: usize = 31;
/// Where the system places the programs decides for a round, so that there are many short ones.
const LATENCY_ROUNDS: usize = 151;
const ROUND_TRIPS: usize = 100;
const BULK: usize = 64 << 20;
const CONNECTS: usize = 40;
const CLIENTS: usize = 64;
const TRIPS_OF_A_CLIENT: usize = 40;

fn main() {
    let target = echo_server();
    let paths = Path::all(target);
    measure("round trip of 64 bytes", "us", Better::Less, LATENCY_ROUNDS, &paths, |path| {
        let mut stream = connect(path.addr);
        let mut bytes = [1; 64];
        trip(&mut stream, &mut bytes);
        let begin = Instant::now();
        (0..ROUND_TRIPS).for_each(|_| trip(&mut stream, &mut bytes));
        begin.elapsed().as_secs_f64() / ROUND_TRIPS as f64 * 1e6
    });
    measure("one way, one connection", "Gb/s", Better::More, ROUNDS, &paths, |path| bulk(path.addr));
    measure("a connection with one round trip", "us", Better::Less, ROUNDS, &paths, |path| {
        let begin = Instant::now();
        (0..CONNECTS).for_each(|_| trip(&mut connect(path.addr), &mut [1; 64]));
        begin.elapsed().as_secs_f64() / CONNECTS as f64 * 1e6
    });
    measure("64 connections, round trips of 64 bytes", "k/s", Better::More, ROUNDS, &paths, |path| {
        many(path.addr)
    });
    drop(paths);
    programs::measure_all();
}

/// Whether a larger or a smaller figure is the better one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Better {
    More,
    Less,
}

/// Measures every path in turns, and prints a row for each.
fn measure(
    what: &str,
    unit: &str,
    better: Better,
    rounds: usize,
    paths: &[Path],
    run: impl Fn(&Path) -> f64,
) {
    let mut figures = vec![Vec::new(); paths.len()];
    for _ in 0..rounds {
        for (path, figures) in paths.iter().zip(&mut figures) {
            figures.push(run(path));
        }
    }
    let word = if better == Better::More { "more" } else { "less" };
    println!("{what} ({word} is better), median of {rounds}");
    let medians: Vec<_> = figures.iter().map(|figures| median(figures)).collect();
    let socats = paths.iter().position(|path| path.name == TWO_SOCATS).map(|at| medians[at]);
    for ((path, figures), median) in paths.iter().zip(&figures).zip(&medians) {
        let ratio = median / medians[0];
        print!("  {:18} {median:9.2} {unit:4} noise {:4.2} {ratio:7.2} x direct", path.name, noise(figures));
        println!("{}", socats.map(|socats| format!(" {:6.2} x socats", median / socats)).unwrap_or_default());
    }
}

fn median(figures: &[f64]) -> f64 {
    let mut figures = figures.to_vec();
    figures.sort_unstable_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// The ratio of the medians of every other value and of the rest.
fn noise(figures: &[f64]) -> f64 {
    let half = |first| median(&figures.iter().copied().skip(first).step_by(2).collect::<Vec<_>>());
    half(0) / half(1)
}

/// Answers each byte, or after a first byte 0 only the end.
fn echo_server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let addr = listener.local_addr().expect("an address");
    thread::spawn(move || {
        for stream in listener.incoming() {
            let stream = stream.expect("a connection");
            thread::spawn(move || echo(stream));
        }
    });
    addr
}

fn echo(mut stream: TcpStream) {
    stream.set_nodelay(true).expect("an option");
    let mut bytes = vec![0; 256 << 10];
    let mut is_bulk = None;
    loop {
        let Ok(count) = stream.read(&mut bytes) else { return };
        let is_bulk = *is_bulk.get_or_insert(bytes[0] == 0);
        let answer = if is_bulk { &bytes[..usize::from(count == 0)] } else { &bytes[..count] };
        if stream.write_all(answer).is_err() || count == 0 {
            return;
        }
    }
}

fn connect(addr: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(addr).expect("a connection");
    stream.set_nodelay(true).expect("an option");
    stream
}

fn trip(stream: &mut TcpStream, bytes: &mut [u8]) {
    stream.write_all(bytes).expect("a connection");
    stream.read_exact(bytes).expect("a connection");
}

fn bulk(addr: SocketAddr) -> f64 {
    let bytes = vec![0; 256 << 10];
    let mut stream = connect(addr);
    let begin = Instant::now();
    (0..BULK / bytes.len()).for_each(|_| stream.write_all(&bytes).expect("a connection"));
    stream.shutdown(std::net::Shutdown::Write).expect("a connection");
    assert_eq!(stream.read(&mut [0; 1]).expect("the server has read the end"), 1);
    BULK as f64 * 8.0 / begin.elapsed().as_secs_f64() / 1e9
}

fn many(addr: SocketAddr) -> f64 {
    let mut streams: Vec<_> = (0..CLIENTS).map(|_| connect(addr)).collect();
    let begin = Instant::now();
    let mut bytes = [1; 64];
    for _ in 0..TRIPS_OF_A_CLIENT {
        streams.iter_mut().for_each(|stream| stream.write_all(&bytes).expect("a connection"));
        streams.iter_mut().for_each(|stream| stream.read_exact(&mut bytes).expect("a connection"));
    }
    (CLIENTS * TRIPS_OF_A_CLIENT) as f64 / begin.elapsed().as_secs_f64() / 1e3
}
