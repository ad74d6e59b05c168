//! An echo server with a thread for each core, and a task for each client, over [`trespass::local`].
//!
//! ```sh
//! cargo run -p rdma-examples --features local --example echo_tasks -- 127.0.0.1:7000 &
//! hello client 127.0.0.1:7000     # or any client of streams
//! ```
#![forbid(unsafe_code)]

use std::io;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::thread;

use clap::Parser;
use rdma_examples::program::{self, Failure, note, say};
use rdma_examples::runtimes::{ServedClients, run_on_each_core};
use trespass::local::{Stream, spawn_local};

/// Sends back what its clients send, with a thread for each core.
#[derive(Parser)]
struct Arguments {
    /// The address to listen at.
    addr: SocketAddr,

    /// Ends when this many clients have closed their connections [default: never]
    #[arg(short = 'n', long)]
    clients: Option<u64>,
}

fn main() -> ExitCode {
    program::run(echo_tasks)
}

fn echo_tasks() -> Result<(), Failure> {
    let arguments: Arguments = program::arguments()?;
    let count = thread::available_parallelism()?.get();
    let served = run_on_each_core(arguments.addr, count, arguments.clients, |stream, served| {
        drop(spawn_local(async move {
            if let Err(error) = echo(stream).await {
                note(format_args!("a client: {error}"));
            }
            ServedClients::count(&served);
        }));
    })?;
    say(format_args!("{count} threads have served {served} clients"))
}

async fn echo(mut stream: Stream) -> io::Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        match stream.read(&mut buffer).await? {
            0 => return Ok(()),
            len => stream.write_all(&buffer[..len]).await?,
        }
    }
}
