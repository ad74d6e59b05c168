//! The server of `store` with a thread for each core, over [`trespass::Worker`]. Its clients are
//! those of `store`.
//!
//! ```sh
//! store_workers 127.0.0.1:7000
//! store client 127.0.0.1:7000 set colour green   # ok
//! ```
//!
//! Each thread has a worker, and all workers listen on one port, so that the system gives each
//! client to one of them. A worker's connections are byte streams: a read may return a part of a
//! line, or several lines, and a write may take a part of an answer. Each client therefore has a
//! buffer for each direction.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use clap::Parser;
use rdma_examples::program::{self, Failure, note, say};
use rdma_examples::shared_store::{Store, answer};
use trespass::{Builder, Config, Event, Key, Kind, Readiness, Worker, WorkerWaker};

/// Stores values under keys, with a thread for each core.
#[derive(Parser)]
struct Arguments {
    /// The address to listen at.
    addr: String,

    /// The number of workers [default: one for each processor]
    #[arg(short, long, value_parser = clap::value_parser!(u16).range(1..=64))]
    workers: Option<u16>,

    /// Ends when this many clients have closed their connections [default: never]
    #[arg(short = 'n', long)]
    clients: Option<u64>,
}

/// The largest length of a line.
const LINE: usize = 64 * 1024;

/// A client that has as many bytes of answers to read is not read from.
const UNREAD: usize = 256 * 1024;

/// What the workers share.
#[derive(Default)]
struct ServerState {
    store: Store,
    /// The number of clients that have come and gone.
    served: AtomicU64,
    stops: AtomicBool,
}

fn main() -> ExitCode {
    program::run(store_workers)
}

fn store_workers() -> Result<(), Failure> {
    let arguments: Arguments = program::arguments()?;
    let processors = thread::available_parallelism()?.get();
    let count = arguments.workers.map_or(processors, usize::from);
    let config = Builder::new().reuse_port(true).build()?;
    let workers = listening(&config, &arguments.addr, count)?;
    let wakers: Vec<_> = workers.iter().map(Worker::waker).collect();
    let shared = ServerState::default();
    let results: Vec<_> = thread::scope(|scope| {
        let serve = |worker| || StoreWorker::new(worker, &shared).run(arguments.clients, &wakers);
        let running: Vec<_> = workers.into_iter().map(|worker| scope.spawn(serve(worker))).collect();
        running.into_iter().map(|running| running.join()).collect()
    });
    for result in results {
        result.map_err(|_| Failure::work("a worker panicked"))?.map_err(Failure::work)?;
    }
    say(format_args!("{count} workers have served {} clients", shared.served.into_inner()))
}

/// Workers that listen on one port, which the system chooses if the address has port 0.
fn listening(config: &Config, addr: &str, count: usize) -> Result<Vec<Worker>, Failure> {
    let mut first = Worker::new(config)?;
    let listener = first.listen(addr, Kind::Stream)?;
    let addr = first.local_addr(listener)?;
    let mut workers = vec![first];
    for _ in 1..count {
        let mut worker = Worker::new(config)?;
        worker.listen(addr, Kind::Stream)?;
        workers.push(worker);
    }
    say(format_args!("listening at {addr}"))?;
    Ok(workers)
}

/// A thread's worker, with its clients.
struct StoreWorker<'a> {
    worker: Worker,
    clients: HashMap<Key, Client>,
    shared: &'a ServerState,
}

impl<'a> StoreWorker<'a> {
    fn new(worker: Worker, shared: &'a ServerState) -> Self {
        Self { worker, clients: HashMap::new(), shared }
    }

    /// Serves until any worker has seen the last client leave.
    fn run(mut self, clients: Option<u64>, wakers: &[WorkerWaker]) -> io::Result<()> {
        let mut events = Vec::new();
        while !self.shared.stops.load(Ordering::Relaxed) {
            self.worker.poll(&mut events, None)?;
            for event in events.drain(..) {
                self.handle(event);
            }
            if clients.is_some_and(|clients| self.shared.served.load(Ordering::Relaxed) >= clients) {
                self.shared.stops.store(true, Ordering::Relaxed);
                wakers.iter().for_each(WorkerWaker::wake);
            }
        }
        // The drop sends what is left, and waits for nobody.
        Ok(())
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Accepted { key, .. } => _ = self.clients.insert(key, Client::default()),
            Event::Ready { key, .. } => {
                let Some(client) = self.clients.get_mut(&key) else { return };
                match client.serve(key, &mut self.worker, self.shared) {
                    Ok(ClientState::Open) => return,
                    Ok(ClientState::Closed) => {}
                    Err(error) => note(format_args!("a client: {error}")),
                }
                self.clients.remove(&key);
                self.worker.close(key);
                self.shared.served.fetch_add(1, Ordering::Relaxed);
            }
            // The listener goes on by itself.
            Event::Failed { error, .. } => note(format_args!("a client was not accepted: {error}")),
            _ => {}
        }
    }
}

/// Whether a client may still send requests, or has answers to read.
enum ClientState {
    Open,
    Closed,
}

/// A connected client.
#[derive(Default)]
struct Client {
    /// The beginning of a line, whose end has not arrived.
    request: Vec<u8>,
    /// Answers that the connection has not taken.
    answers: Vec<u8>,
    /// The client has closed its half.
    ended: bool,
    /// The worker does not report what has arrived.
    is_deaf: bool,
}

impl Client {
    /// Makes all the progress that is possible now. The worker reports the connection again when
    /// there is more to do.
    fn serve(&mut self, key: Key, worker: &mut Worker, shared: &ServerState) -> io::Result<ClientState> {
        loop {
            self.write(key, worker)?;
            if self.ended || self.answers.len() >= UNREAD {
                break;
            }
            if !self.read(key, worker, shared)? {
                break;
            }
        }
        // A worker reports again and again what is not read.
        let is_deaf = self.ended || self.answers.len() >= UNREAD;
        if is_deaf != self.is_deaf {
            worker.set_interest(key, if is_deaf { Readiness::WRITE } else { Readiness::BOTH })?;
            self.is_deaf = is_deaf;
        }
        let is_done = self.ended && self.answers.is_empty();
        Ok(if is_done { ClientState::Closed } else { ClientState::Open })
    }

    /// Reads once, and answers the lines that are complete. Returns whether there may be more.
    fn read(&mut self, key: Key, worker: &mut Worker, shared: &ServerState) -> io::Result<bool> {
        let mut buffer = [0; 16 * 1024];
        match worker.read(key, &mut buffer) {
            Ok(0) => self.ended = true,
            Ok(len) => self.request.extend_from_slice(&buffer[..len]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error),
        }
        while let Some(end) = self.request.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.request.drain(..=end).collect();
            let answer = answer(String::from_utf8_lossy(&line).trim_end(), &shared.store);
            self.answers.extend_from_slice(answer.as_bytes());
            self.answers.push(b'\n');
        }
        if self.request.len() > LINE {
            return Err(io::Error::new(ErrorKind::InvalidData, format!("a line of more than {LINE} bytes")));
        }
        Ok(true)
    }

    /// Writes what the connection takes.
    fn write(&mut self, key: Key, worker: &mut Worker) -> io::Result<()> {
        while !self.answers.is_empty() {
            match worker.write(key, &self.answers) {
                Ok(len) => _ = self.answers.drain(..len),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
