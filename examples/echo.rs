//! Echoed messages: rate, bandwidth and latency, like `stride-perf msg grid`.
//!
//! The time of a message begins when the number in flight allows it to be sent, and ends when its
//! answer has arrived. It includes the wait for room in the connection. The rate counts the
//! messages and not their answers.
//!
//! ```sh
//! echo server 127.0.0.1:7000
//! echo client 127.0.0.1:7000 --size 4096 --in-flight 16
//! echo client 127.0.0.1:7000 --grid
//! echo server 10.0.0.1:7000 --bootstrap rdma_cm
//! ```

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use clap::{Args, Parser, Subcommand};
use hdrhistogram::Histogram;
use rdma_examples::program::{self, Bootstrap, Failure, say};
use trespass::{Builder, Config, Event, Key, Kind, SeqPacket, Worker};

/// Room for the largest messages of the grid, in each direction.
const BUFFER: usize = 32 << 20;
const GRID_SIZES: [usize; 6] = [128, 4 << 10, 32 << 10, 256 << 10, 1 << 20, 8 << 20];
const GRID_IN_FLIGHT: [usize; 5] = [1, 4, 16, 64, 256];

/// Echoes messages over RDMA, or over TCP without RDMA.
#[derive(Parser)]
struct Arguments {
    /// How connections begin; the same on both sides.
    #[arg(long, value_enum, default_value_t, global = true)]
    bootstrap: Bootstrap,
    #[command(subcommand)]
    role: Role,
}

#[derive(Subcommand)]
enum Role {
    /// Echoes the messages of any number of clients.
    Server {
        /// The address to listen at.
        addr: String,
        /// Delay each answer by this many microseconds.
        #[arg(long, default_value_t = 0)]
        delay_us: u64,
        /// End after this number of clients [default: never].
        #[arg(long)]
        clients: Option<usize>,
    },
    /// Sends messages and measures their answers, like stride-perf msg grid. A run has a duration
    /// instead of a number of messages.
    Client(ClientArgs),
}

#[derive(Args)]
struct ClientArgs {
    /// The server's address.
    addr: String,
    /// The size of a message in bytes.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(..=16 << 20))]
    size: u32,
    /// The number of messages in flight.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4096))]
    in_flight: u32,
    /// The duration in seconds.
    #[arg(long, default_value_t = 1.0)]
    duration: f64,
    /// Measure a grid of sizes and numbers in flight, each for the duration.
    #[arg(long)]
    grid: bool,
}

fn main() -> ExitCode {
    program::run(|| {
        let Arguments { bootstrap, role } = program::arguments()?;
        let config = Builder::new().bootstrap(bootstrap.into()).sndbuf(BUFFER).rcvbuf(BUFFER).build()?;
        match role {
            Role::Server { addr, delay_us, clients } => {
                serve(&config, &addr, Duration::from_micros(delay_us), clients)
            }
            Role::Client(client) => measure(&config, &client),
        }
    })
}

fn serve(config: &Config, addr: &str, delay: Duration, clients: Option<usize>) -> Result<(), Failure> {
    let listener = config.bind(addr)?;
    say(format_args!("listening at {}", listener.local_addr()?))?;
    let mut serving = Vec::new();
    while clients.is_none_or(|clients| serving.len() < clients) {
        let (packets, peer) = listener.accept_seq_packet()?;
        say(format_args!("{peer} is here, over {}", packets.transport()))?;
        serving.push(thread::spawn(move || match echo(packets, delay) {
            Ok(count) => program::note(format_args!("{peer} is gone after {count} messages")),
            Err(error) => program::note(format_args!("{peer}: {error}")),
        }));
        // Ended threads are joined only if their number counts.
        if clients.is_none() {
            serving.retain(|thread| !thread.is_finished());
        }
    }
    for thread in serving {
        thread.join().map_err(|_| Failure::work("a client's thread panicked"))?;
    }
    Ok(())
}

/// Echoes until the client is gone.
fn echo(mut packets: SeqPacket, delay: Duration) -> std::io::Result<u64> {
    let (mut message, mut count) = (vec![0; 16 << 20], 0);
    loop {
        let len = match packets.recv(&mut message) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(count),
            len => len?,
        };
        if !delay.is_zero() {
            thread::sleep(delay);
        }
        packets.send(&message[..len])?;
        count += 1;
    }
}

fn measure(config: &Config, client: &ClientArgs) -> Result<(), Failure> {
    let mut worker = Worker::new(config)?;
    let key = connect(&mut worker, &client.addr)?;
    say(format_args!("connected over {}", worker.transport(key)?))?;
    if let Some(reason) = worker.fallback_reason(key)? {
        say(format_args!("no RDMA: {reason}"))?;
    }
    let duration = Duration::try_from_secs_f64(client.duration)?;
    let cells: Vec<(usize, usize)> = if client.grid {
        GRID_SIZES.iter().flat_map(|size| GRID_IN_FLIGHT.map(|in_flight| (*size, in_flight))).collect()
    } else {
        vec![(client.size as usize, client.in_flight as usize)]
    };
    say(format_args!("from when a message may be sent to its answer:"))?;
    say(format_args!(
        "{:>9} {:>9} {:>10} {:>9} {:>9} {:>9}",
        "bytes", "in flight", "QPS", "Gb/s", "P90 us", "P99 us"
    ))?;
    for (size, in_flight) in cells {
        let cell = run(&mut worker, key, size, in_flight, duration)?;
        let qps = cell.latencies.len() as f64 / cell.took.as_secs_f64();
        say(format_args!(
            "{size:>9} {in_flight:>9} {qps:>10.0} {:>9.3} {:>9.1} {:>9.1}",
            qps * size as f64 * 8.0 / 1e9,
            cell.latencies.value_at_quantile(0.90) as f64 / 1e3,
            cell.latencies.value_at_quantile(0.99) as f64 / 1e3,
        ))?;
    }
    Ok(())
}

fn connect(worker: &mut Worker, addr: &str) -> Result<Key, Failure> {
    let wanted = worker.connect(addr, Kind::SeqPacket)?;
    let mut events = Vec::new();
    loop {
        worker.poll(&mut events, None)?;
        for event in events.drain(..) {
            match event {
                Event::Connected { key, .. } if key == wanted => return Ok(key),
                Event::Failed { error, .. } => return Err(Failure::setup(error)),
                _ => (),
            }
        }
    }
}

/// The result for one size and number in flight.
struct GridCell {
    latencies: Histogram<u64>,
    took: Duration,
}

/// Keeps `in_flight` messages on their way for the duration, then waits for the last answers.
fn run(
    worker: &mut Worker,
    key: Key,
    size: usize,
    in_flight: usize,
    duration: Duration,
) -> Result<GridCell, Failure> {
    let (message, mut answer) = (vec![0x5a; size], vec![0; size]);
    let mut latencies = Histogram::new_with_bounds(1, 60_000_000_000, 3).map_err(Failure::work)?;
    let began = Instant::now();
    // When each free place became free, oldest first; and the same for the places in use.
    let mut free = VecDeque::from(vec![began; in_flight]);
    let (mut under_way, mut events) = (VecDeque::with_capacity(in_flight), Vec::new());
    loop {
        // Read once in each round, so that the loop cannot stop sending after it decided to wait
        // for room.
        let sends = began.elapsed() < duration;
        if !sends && under_way.is_empty() {
            return Ok(GridCell { latencies, took: began.elapsed() });
        }
        while sends && !free.is_empty() {
            match worker.send(key, &message) {
                Ok(()) => under_way.extend(free.pop_front()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(Failure::work(error)),
            }
        }
        worker.poll(&mut events, None)?;
        events.clear();
        loop {
            match worker.recv(key, &mut answer) {
                Ok(len) if len == size => {
                    let since =
                        under_way.pop_front().ok_or_else(|| Failure::work("an answer without a message"))?;
                    let now = Instant::now();
                    latencies.saturating_record((now - since).as_nanos() as u64);
                    free.push_back(now);
                }
                Ok(len) => {
                    return Err(Failure::work(format_args!("an answer has {len} bytes instead of {size}")));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(Failure::work(error)),
            }
        }
    }
}
