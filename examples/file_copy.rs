//! Copies a file to another host, from blocks of the pool into blocks of the pool, so that the
//! payload is not copied in between.
//!
//! ```sh
//! file_copy receive 127.0.0.1:7000 COPY
//! file_copy send 127.0.0.1:7000 FILE
//! ```

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Parser, Subcommand};
use rdma_examples::program::{self, Failure, say};
use trespass::{Block, Listener, Stream};

/// The size of a block in bytes.
const PIECE: usize = 256 << 10;
/// The number of blocks in flight.
const IN_FLIGHT: usize = 8;

/// Copies a file over RDMA, or over TCP without RDMA.
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    role: Role,
}

#[derive(Subcommand)]
enum Role {
    /// Receives one file.
    Receive {
        /// The address to listen at.
        addr: String,
        /// The file to write.
        file: PathBuf,
    },
    /// Sends a file.
    Send {
        /// The receiver's address.
        addr: String,
        /// The file to read.
        file: PathBuf,
    },
}

fn main() -> ExitCode {
    program::run(|| match program::arguments::<Arguments>()?.role {
        Role::Receive { addr, file } => receive(&addr, &file),
        Role::Send { addr, file } => send(&addr, &file),
    })
}

fn receive(addr: &str, path: &Path) -> Result<(), Failure> {
    let mut file = File::create(path).map_err(|error| of_file(path, &error))?;
    let listener = Listener::bind(addr)?;
    say(format_args!("listening at {}", listener.local_addr()?))?;
    let (mut stream, _) = listener.accept()?;
    let (began, mut total) = (Instant::now(), 0);
    loop {
        let arrived = stream.recv_buf().map_err(Failure::work)?;
        if arrived.is_empty() {
            break;
        }
        for chunk in arrived.chunks() {
            file.write_all(chunk).map_err(|error| of_file(path, &error))?;
        }
        total += arrived.len() as u64;
    }
    file.sync_all().map_err(|error| of_file(path, &error))?;
    // The answer tells the sender that its file is written.
    stream.write_all(&total.to_le_bytes()).map_err(Failure::work)?;
    report("received", total, began.elapsed(), &stream)
}

fn send(addr: &str, path: &Path) -> Result<(), Failure> {
    let mut file = File::open(path).map_err(|error| of_file(path, &error))?;
    let mut stream = Stream::connect(addr)?;
    let (began, mut total, mut under_way) = (Instant::now(), 0, 0);
    let mut spare: Vec<Block> = Vec::new();
    loop {
        let mut block = match spare.pop() {
            Some(block) => block,
            None => stream.buffer(PIECE)?,
        };
        let len = fill(&mut file, &mut block.bytes_mut()[..PIECE]).map_err(|error| of_file(path, &error))?;
        if len == 0 {
            break;
        }
        stream.send_buf(block, len).map_err(Failure::work)?;
        (total, under_way) = (total + len as u64, under_way + 1);
        // A returned block carries the next piece.
        while let Some(completion) = stream.completion() {
            under_way -= 1;
            spare.push(completion.block);
        }
        if under_way >= IN_FLIGHT {
            stream.flush().map_err(Failure::work)?;
        }
    }
    stream.shutdown(Shutdown::Write)?;
    let mut taken = [0; 8];
    stream.read_exact(&mut taken).map_err(Failure::work)?;
    let taken = u64::from_le_bytes(taken);
    if taken != total {
        return Err(Failure::work(format_args!("the receiver got {taken} of {total} bytes")));
    }
    report("sent", total, began.elapsed(), &stream)
}

/// Reads until the buffer is full or the file ends.
fn fill(file: &mut File, buffer: &mut [u8]) -> io::Result<usize> {
    let mut len = 0;
    while len < buffer.len() {
        match file.read(&mut buffer[len..]) {
            Ok(0) => break,
            Ok(count) => len += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => (),
            Err(error) => return Err(error),
        }
    }
    Ok(len)
}

fn report(what: &str, bytes: u64, took: Duration, stream: &Stream) -> Result<(), Failure> {
    let rate = bytes as f64 / took.as_secs_f64() / 1e6;
    say(format_args!(
        "{what} {bytes} bytes in {:.3} s ({rate:.0} MB/s), over {}",
        took.as_secs_f64(),
        stream.transport()
    ))
}

fn of_file(path: &Path, error: &io::Error) -> Failure {
    Failure::setup(format_args!("{}: {error}", path.display()))
}
