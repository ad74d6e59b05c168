//! The server of `store` with a thread for each core, and a task for each client, over
//! [`trespass::local`]. The clients of `store` use it.
//!
//! ```sh
//! cargo run -p rdma-examples --features local --example store_tasks -- 127.0.0.1:7000
//! store client 127.0.0.1:7000 set colour green   # ok
//! ```
//!
//! `store_workers` is the same over the events of a worker. Here a client is a loop that awaits: the
//! runtime runs another client's task while this one's connection has nothing to read, or no room.
#![forbid(unsafe_code)]

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;

use clap::Parser;
use rdma_examples::program::{self, Failure, note, say};
use rdma_examples::runtimes::{ServedClients, run_on_each_core};
use rdma_examples::shared_store::{Store, answer};
use trespass::local::{Stream, spawn_local};

/// Stores values under keys, with a thread for each core.
#[derive(Parser)]
struct Arguments {
    /// The address to listen at.
    addr: SocketAddr,

    /// The number of threads [default: one for each processor]
    #[arg(short, long, value_parser = clap::value_parser!(u16).range(1..=64))]
    workers: Option<u16>,

    /// Ends when this many clients have closed their connections [default: never]
    #[arg(short = 'n', long)]
    clients: Option<u64>,
}

/// The largest length of a line.
const LINE: usize = 64 * 1024;

fn main() -> ExitCode {
    program::run(store_tasks)
}

fn store_tasks() -> Result<(), Failure> {
    let arguments: Arguments = program::arguments()?;
    let count = match arguments.workers {
        Some(count) => count.into(),
        None => thread::available_parallelism()?.get(),
    };
    let store = Arc::new(Store::default());
    let served = run_on_each_core(arguments.addr, count, arguments.clients, |stream, served| {
        let store = store.clone();
        drop(spawn_local(async move {
            if let Err(error) = serve(stream, &store).await {
                note(format_args!("a client: {error}"));
            }
            ServedClients::count(&served);
        }));
    })?;
    say(format_args!("{count} workers have served {served} clients"))
}

/// Answers the lines of a client, one after the other.
async fn serve(mut stream: Stream, store: &Store) -> io::Result<()> {
    let (mut request, mut buffer) = (Vec::new(), vec![0; 16 * 1024]);
    loop {
        match stream.read(&mut buffer).await? {
            0 => return Ok(()),
            len => request.extend_from_slice(&buffer[..len]),
        }
        while let Some(end) = request.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = request.drain(..=end).collect();
            let mut answer = answer(String::from_utf8_lossy(&line).trim_end(), store);
            answer.push('\n');
            // Waits while the client does not read.
            stream.write_all(answer.as_bytes()).await?;
        }
        if request.len() > LINE {
            return Err(io::Error::new(ErrorKind::InvalidData, format!("a line of more than {LINE} bytes")));
        }
    }
}
