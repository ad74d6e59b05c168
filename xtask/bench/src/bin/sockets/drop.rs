//! Dropping a non-blocking stream with bytes that the peer does not read yet.

use std::io::{ErrorKind, Write};
use std::time::Instant;

use anyhow::{Result, ensure};

use crate::carrier::{Carrier, Stream};
use crate::server::{Server, Service};
use crate::{median, print_sample, take_turns};

/// The names of the rows, and the bytes that are written before the drop; `None` for as many as the
/// stream takes.
const ROWS: [(&str, &str, Option<usize>); 3] = [
    ("drop-empty", "drop-empty-slowest", Some(0)),
    ("drop-50000", "drop-50000-slowest", Some(50_000)),
    ("drop-full", "drop-full-slowest", None),
];

pub(crate) fn measure(count: u32, rounds: u32) -> Result<()> {
    let start = |carrier| Server::start(carrier, Service::Keep);
    let (mut std, mut tcp, mut rdma) = (start(Carrier::Std)?, start(Carrier::Tcp)?, start(Carrier::Rdma)?);
    for round in 0..=rounds {
        for (row, slowest, bytes) in ROWS {
            let [std, tcp, rdma, again] = take_turns(round, |which| match which {
                0 | 3 => batch(&mut std, count, bytes),
                1 => batch(&mut tcp, count, bytes),
                _ => batch(&mut rdma, count, bytes),
            })?;
            if round > 0 {
                for (row, at) in [(row, 0), (slowest, 1)] {
                    let figures =
                        [("std", std[at]), ("tcp", tcp[at]), ("rdma", rdma[at]), ("again", again[at])];
                    print_sample(row, &figures)?;
                }
            }
        }
    }
    Ok(())
}

/// The median and the slowest of `count` drops, in nanoseconds. The peer then reads what was written.
fn batch(server: &mut Server, count: u32, bytes: Option<usize>) -> Result<[f64; 2]> {
    let (mut times, mut written) = (Vec::new(), 0);
    for _ in 0..count {
        let mut stream = server.connect()?;
        stream.set_nonblocking()?;
        written += fill(&mut stream, bytes.unwrap_or(usize::MAX))?;
        let start = Instant::now();
        drop(stream);
        times.push(start.elapsed().as_nanos() as f64);
    }
    // The server's thread keeps a connection after its client has connected.
    let mut kept = 0.0;
    while kept < f64::from(count) {
        kept += server.served()?;
    }
    let read = server.read_all()?;
    ensure!(read == written as f64, "{read} bytes of {written} arrived");
    server.close_all()?;
    let median = median(&mut times)?;
    Ok([median, times.last().copied().unwrap_or(f64::NAN)])
}

/// Writes as many bytes as the stream takes, at most that many. Returns how many.
fn fill(stream: &mut Stream, most: usize) -> Result<usize> {
    let (block, mut written) = ([5; 16 << 10], 0);
    while written < most {
        match stream.write(&block[..block.len().min(most - written)]) {
            Ok(count) => written += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(written)
}
