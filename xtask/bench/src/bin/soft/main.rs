//! The measuring program of `cargo xtask bench soft`. Each row runs in a new process, and is
//! compared with a reference that needs no device. Both are interleaved.
//!
//!     soft ROW SAMPLES
//!
//! prints `sample OURS REFERENCE` in nanoseconds. If a row needs a second process, it runs this
//! program, too.

mod node;
mod peer;
mod reference;

use std::time::Instant;

use anyhow::{Context, Result, bail};
use sideway::memory::BufferKind;

use node::{HALF, TestNode};
use peer::PeerProcess;

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["serve", kind] => {
            peer::serve(if *kind == "shared" { BufferKind::Shared } else { BufferKind::Private })
        }
        [row, samples] => measure(row, samples.parse().context("SAMPLES must be a number")?),
        _ => bail!("usage: soft ROW SAMPLES"),
    }
}

fn measure(row: &str, samples: u32) -> Result<()> {
    reference::pin(0)?;
    match row {
        "bandwidth" => {
            let (mut node, mut peer) = pair(BufferKind::Shared)?;
            let memory = reference::CopyBuffers::new();
            sample(samples, || stream(&mut node, &peer, 65536, 16, 4000), || memory.copies(65536, 4000))?;
            peer.end()
        }
        "rate" => {
            let (mut node, mut peer) = pair(BufferKind::Shared)?;
            let memory = reference::CopyBuffers::new();
            sample(samples, || stream(&mut node, &peer, 64, 128, 200_000), || memory.copies(4096, 200_000))?;
            peer.end()
        }
        "write-latency" => {
            let (mut node, mut peer) = pair(BufferKind::Shared)?;
            let ours = || peer.writes(&mut node, 20_000);
            sample_two(samples, ours, || reference::cache_line(20_000))?;
            peer.end()
        }
        "send-latency" => {
            let (mut node, mut peer) = pair(BufferKind::Shared)?;
            let ours = || peer.sends(&mut node, 20_000);
            sample_two(samples, ours, || reference::cache_line(20_000))?;
            peer.end()
        }
        "loopback" => {
            let mut node = TestNode::new(BufferKind::Private)?;
            let mut other = TestNode::of(&node)?;
            node.connect_both(&mut other)?;
            let memory = reference::CopyBuffers::new();
            let (rkey, there) = (node.memory.rkey(), node.at(HALF));
            let ours = || {
                let start = Instant::now();
                for _ in 0..100_000 {
                    node.write(rkey, there, 64, true)?;
                    node.complete(1)?;
                }
                Ok(nanoseconds(start, 100_000))
            };
            sample(samples, ours, || 2.0 * memory.copies(4096, 100_000))
        }
        "vm-4096" | "vm-65536" | "vm-1048576" => {
            let bytes: u32 = row.trim_start_matches("vm-").parse()?;
            let count = (400_000_000 / u64::from(bytes)).min(20_000);
            let (mut node, mut peer) = pair(BufferKind::Private)?;
            let from = node.memory.as_ptr();
            let raw = peer.raw();
            let ours = || stream(&mut node, &peer, bytes, 1, count);
            sample_two(samples, ours, || raw.writes(from, bytes as usize, count))?;
            peer.end()
        }
        "descriptors" => {
            let mut node = TestNode::new(BufferKind::Shared)?;
            let before = std::fs::read_dir("/proc/self/fd")?.count();
            let mut peer = PeerProcess::start(&mut node, BufferKind::Shared)?;
            stream(&mut node, &peer, 64, 1, 100)?;
            peer.settle()?;
            // Two descriptors are the pipes to the other process.
            println!("descriptors {}", std::fs::read_dir("/proc/self/fd")?.count() - before - 2);
            peer.end()
        }
        _ => bail!("no such row: {row}"),
    }
}

fn pair(kind: BufferKind) -> Result<(TestNode, PeerProcess)> {
    let mut node = TestNode::new(kind)?;
    let mut peer = PeerProcess::start(&mut node, kind)?;
    // The first messages set up mappings, which later ones must not include.
    stream(&mut node, &peer, 64, 1, 100)?;
    peer.settle()?;
    Ok((node, peer))
}

/// Writes `count` messages with at most `depth` outstanding. Returns the nanoseconds for each.
fn stream(node: &mut TestNode, peer: &PeerProcess, bytes: u32, depth: u64, count: u64) -> Result<f64> {
    let signal = (depth / 2).max(1);
    let start = Instant::now();
    let (mut posted, mut completed) = (0, 0);
    while completed < count {
        while posted < count && posted - completed < depth {
            posted += 1;
            node.write(peer.rkey, peer.address, bytes, posted % signal == 0 || posted == count)?;
        }
        node.complete(1)?;
        completed = (completed + signal).min(count);
    }
    Ok(nanoseconds(start, count))
}

fn nanoseconds(start: Instant, count: u64) -> f64 {
    start.elapsed().as_nanos() as f64 / count as f64
}

fn sample(samples: u32, mut ours: impl FnMut() -> Result<f64>, reference: impl Fn() -> f64) -> Result<()> {
    sample_two(samples, &mut ours, || Ok(reference()))
}

/// Interleaves both, after a warm-up round.
fn sample_two(
    samples: u32,
    mut ours: impl FnMut() -> Result<f64>,
    mut reference: impl FnMut() -> Result<f64>,
) -> Result<()> {
    ours()?;
    reference()?;
    for _ in 0..samples {
        println!("sample {:.3} {:.3}", ours()?, reference()?);
    }
    Ok(())
}
