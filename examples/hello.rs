//! The smallest program over trespass: a line in each direction.
//!
//! ```sh
//! hello server 127.0.0.1:7000
//! hello client 127.0.0.1:7000
//! hello --bootstrap rdma_cm server 10.0.0.1:7000
//! ```

use std::io::{BufRead, BufReader, Write};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use rdma_examples::program::{self, Bootstrap, Failure};
use trespass::{Builder, Stream};

/// Says hello over RDMA, or over TCP without RDMA.
#[derive(Parser)]
struct Arguments {
    /// How the connection begins; the same on both sides.
    #[arg(long, value_enum, default_value_t, global = true)]
    bootstrap: Bootstrap,
    #[command(subcommand)]
    role: Role,
}

#[derive(Subcommand)]
enum Role {
    /// Answers one client.
    Server {
        /// The address to listen at.
        addr: String,
    },
    /// Greets a server.
    Client {
        /// The server's address.
        addr: String,
    },
}

fn main() -> ExitCode {
    program::run(|| {
        let Arguments { bootstrap, role } = program::arguments()?;
        let builder = Builder::new().bootstrap(bootstrap.into());
        match role {
            Role::Server { addr } => serve(builder, &addr),
            Role::Client { addr } => greet(builder, &addr),
        }
    })
}

fn serve(builder: Builder, addr: &str) -> Result<(), Failure> {
    let listener = builder.bind(addr)?;
    println!("listening at {}", listener.local_addr()?);
    let (mut stream, peer) = listener.accept()?;
    let name = line(&mut stream)?;
    stream.write_all(format!("hello, {name}\n").as_bytes())?;
    println!("{name} was here from {peer}, over {}", stream.transport());
    Ok(())
}

fn greet(builder: Builder, addr: &str) -> Result<(), Failure> {
    let mut stream = builder.connect(addr)?;
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
