//! The measuring program of the rows of `cargo xtask bench trespass soft` about connections: the
//! same program over `std::net`, over trespass with TCP, and over trespass with RDMA.
//!
//! | command | measures |
//! | --- | --- |
//! | `sockets connect COUNT ROUNDS` | a connect, 64-byte request, reply and close, time and both sides' CPU time |
//! | `sockets repeat CARRIER COUNT` | the same over `std`, `tcp` or `rdma` alone, for a profiler |
//! | `sockets storm COUNT ROUNDS` | that many clients at once: the percentage served, and both sides' CPU time |
//! | `sockets drop COUNT ROUNDS` | dropping a non-blocking stream |
//! | `sockets flush COUNT ROUNDS` | a request, flush and reply |
//! | `sockets idle COUNT SECONDS ROUNDS` | both sides' CPU time while nothing happens |
//! | `sockets hostile COUNT PEERS ROUNDS` | a connect beside peers that stop halfway |
//!
//! Times are in nanoseconds. Each prints lines `sample ROW NAME=FIGURE ...`. The measured programs
//! take turns within a round. The first round does not count, except of a storm. The server is a
//! process of this program. Its main thread takes commands, and one thread accepts.

mod carrier;
mod connect;
mod cpu;
mod drop;
mod flush;
mod hostile;
mod idle;
mod server;
mod storm;
mod verbs;

use std::fmt::Write as _;

use anyhow::{Context, Result, bail};
use xtask_bench::process::print_line;

/// Bytes of a request, and of its reply.
const REQUEST: usize = 64;

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let number =
        |text: &str| -> Result<u32> { text.parse().with_context(|| format!("not a number: {text}")) };
    match words.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["serve", carrier, service] => server::serve(carrier, service),
        ["disturb", port, peers] => hostile::disturb(port.parse()?, number(peers)?),
        ["connect", count, rounds] => connect::measure(number(count)?, number(rounds)?),
        ["repeat", carrier, count] => connect::repeat(carrier, number(count)?),
        ["storm", count, rounds] => storm::measure(number(count)?, number(rounds)?),
        ["drop", count, rounds] => drop::measure(number(count)?, number(rounds)?),
        ["flush", count, rounds] => flush::measure(number(count)?, number(rounds)?),
        ["idle", count, seconds, rounds] => idle::measure(number(count)?, number(seconds)?, number(rounds)?),
        ["hostile", count, peers, rounds] => {
            hostile::measure(number(count)?, number(peers)?, number(rounds)?)
        }
        _ => bail!(
            "usage: sockets connect|storm|drop|flush COUNT ROUNDS, sockets repeat CARRIER COUNT, sockets idle COUNT SECONDS ROUNDS, or sockets hostile COUNT PEERS ROUNDS"
        ),
    }
}

/// Takes each of the figures once, in an order that rotates with the rounds.
fn take_turns<T, const N: usize>(round: u32, mut figure: impl FnMut(usize) -> Result<T>) -> Result<[T; N]> {
    let mut figures = [const { None }; N];
    for step in 0..N {
        let which = (step + round as usize) % N;
        figures[which] = Some(figure(which)?);
    }
    let figures: Option<Vec<T>> = figures.into_iter().collect();
    figures.and_then(|figures| figures.try_into().ok()).context("each figure has its turn")
}

/// Prints the figures of a row.
fn print_sample(row: &str, figures: &[(&str, f64)]) -> Result<()> {
    let mut line = format!("sample {row}");
    for (name, figure) in figures {
        write!(line, " {name}={figure:.1}")?;
    }
    print_line(&line)
}

/// The median of some figures, or of an even number the upper one in the middle.
fn median(figures: &mut [f64]) -> Result<f64> {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().context("nothing was measured")
}
