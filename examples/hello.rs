//! The least there is: a line each way.
//!
//! ```sh
//! hello server 127.0.0.1:7000
//! hello client 127.0.0.1:7000
//! ```

use std::io::{BufRead, BufReader, Write};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use rdma_examples::program::{self, Failure};
use trespass::{Listener, Stream};

/// Says hello over RDMA, or over TCP where there is none.
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    role: Role,
}

#[derive(Subcommand)]
enum Role {
    /// Answers one client.
    Server {
        /// Where to listen.
        addr: String,
    },
    /// Greets a server.
    Client {
        /// Where it listens.
        addr: String,
    },
}

fn main() -> ExitCode {
    program::run(|| match program::arguments::<Arguments>()?.role {
        Role::Server { addr } => serve(&addr),
        Role::Client { addr } => greet(&addr),
    })
}

fn serve(addr: &str) -> Result<(), Failure> {
    let mut listener = Listener::bind(addr)?;
    println!("listening at {}", listener.local_addr()?);
    let (mut stream, peer) = listener.accept()?;
    let name = line(&mut stream)?;
    stream.write_all(format!("hello, {name}\n").as_bytes())?;
    println!("{name} was here from {peer}, over {}", stream.transport());
    Ok(())
}

fn greet(addr: &str) -> Result<(), Failure> {
    let mut stream = Stream::connect(addr)?;
    stream.write_all(b"world\n")?;
    println!("{}, over {}", line(&mut stream)?, stream.transport());
    if let Some(reason) = stream.fallback_reason() {
        println!("no RDMA: {reason}");
    }
    Ok(())
}

fn line(stream: &mut Stream) -> Result<String, Failure> {
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    Ok(line.trim_end().to_owned())
}
