//! The measuring program of `cargo xtask bench cm`: connections between two processes through the
//! connection manager, compared with the kernel's TCP, and with few or many open connections.
//!
//! | command | prints |
//! | --- | --- |
//! | `cm tcp WINDOW BATCH SAMPLES` | `sample OURS TCP TCP`, in nanoseconds for a connection |
//! | `cm answered BATCH SAMPLES` | the same, one at a time; TCP's server sends a byte after accepting |
//! | `cm ids FEW MANY COUNT SAMPLES` | `sample MANY FEW FEW` to open, `ending MANY FEW FEW` to close |
//!
//! The other processes run this program, too.

mod client;
mod idle_connections;
mod server;
mod tcp;

use anyhow::{Context, Result, bail};
use xtask_bench::process::ServerProcess;

use client::CmClient;

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let number =
        |text: &str| -> Result<u32> { text.parse().with_context(|| format!("not a number: {text}")) };
    match words.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["serve", "tcp", batch] => tcp::serve(number(batch)?, false),
        ["serve", "answered", batch] => tcp::serve(number(batch)?, true),
        ["serve", "rdma", batch] => server::serve(number(batch)?),
        ["hold", existing] => idle_connections::idle_connections(number(existing)?),
        ["tcp", window, batch, samples] => {
            against_tcp("tcp", number(window)?, number(batch)?, number(samples)?)
        }
        ["answered", batch, samples] => against_tcp("answered", 1, number(batch)?, number(samples)?),
        ["ids", few, many, count, samples] => {
            idle_connections::compare([number(many)?, number(few)?], number(count)?, number(samples)?)
        }
        _ => bail!(
            "usage: cm tcp WINDOW BATCH SAMPLES, cm answered BATCH SAMPLES, or cm ids FEW MANY COUNT SAMPLES"
        ),
    }
}

/// Measures a batch of connections through the connection manager and two over TCP. The order
/// rotates, and the first round does not count.
fn against_tcp(kind: &str, window: u32, batch: u32, samples: u32) -> Result<()> {
    let start = |kind: &str| ServerProcess::start(&["serve", kind, &batch.to_string()]);
    let (mut rdma, mut by_tcp) = (start("rdma")?, start(kind)?);
    let mut client = CmClient::new(rdma.port)?;
    for round in 0..=samples {
        let mut figures = [0.0; 3];
        for step in 0..3 {
            let which = (step + round) % 3;
            figures[which as usize] = match which {
                0 => {
                    let time = client.batch(&mut rdma, window, batch)?;
                    client.end_all()?;
                    time
                }
                _ => tcp::batch(&mut by_tcp, kind == "answered", window, batch)?,
            };
            if which == 0 { rdma.expect("ready")? } else { by_tcp.expect("ready")? }
        }
        if round > 0 {
            let [ours, tcp, again] = figures;
            println!("sample {ours:.1} {tcp:.1} {again:.1}");
        }
    }
    Ok(())
}
