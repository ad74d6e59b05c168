//! `cargo xtask bench mux`: requests and answers of `trespass::mux`, with 1 to 256 in flight.
//!
//! Client and server are two processes of `stride-perf msg grid --api mux`. For each size the rate
//! with 256 in flight takes turns with the best of the other rates.

use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, ensure};
use test_harness::free_port;

use super::document::{Section, today};
use super::perftest::pair::converse;
use super::programs::Programs;
use super::rounds::{Better, Bound, Round, compare};
use super::statistics::median;

/// Message sizes in bytes.
const SIZES: [u64; 6] = [128, 4 << 10, 32 << 10, 256 << 10, 1 << 20, 8 << 20];
/// Requests in flight.
const IN_FLIGHT: [u32; 5] = [1, 4, 16, 64, MOST];
const MOST: u32 = 256;
/// Runs of each cell, of whose rates the table has the median.
const SWEEPS: usize = 3;
/// The seconds of a run.
const SECONDS: &str = "0.5";
/// The required rate with 256 in flight, as a multiple of the best other rate.
const BOUND: Bound = Bound::Times(0.9);

#[derive(clap::Args)]
pub(super) struct Args {
    /// What carries the mux
    #[arg(value_enum)]
    transport: MuxTransport,
    /// The number of rounds (the best number in flight, 256, the best again) for each size
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(3..))]
    rounds: u32,
    /// Use the program of the last build
    #[arg(long)]
    no_build: bool,
    /// Print the result without writing it to docs/generated/performance
    #[arg(long)]
    dry_run: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum MuxTransport {
    /// The software device
    Soft,
    /// The system's TCP
    Tcp,
}

/// A row of stride-perf's table.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Cell {
    rate: f64,
    per_write: f64,
}

pub(super) fn run(root: &Path, args: &Args) -> Result<ExitCode> {
    let programs = Programs::with_stride(root, args.no_build)?;
    let (name, title) = match args.transport {
        MuxTransport::Soft => ("mux soft", "Requests of a mux over the software device"),
        MuxTransport::Tcp => ("mux tcp", "Requests of a mux over TCP"),
    };
    let mut body = String::from(
        "| bytes | 1 in flight | 4 | 16 | 64 | 256 | requests a write | 256 in flight, times the best other | that one against itself | at least |\n\
         | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n",
    );
    for size in SIZES {
        row(&mut body, size, args, &programs)?;
    }
    println!("{body}");
    if !args.dry_run {
        let intro = format!(
            "{}, {} processors. Answered requests in thousands a second, of which each has an answer of its size: medians of {SWEEPS} runs \
             of {SECONDS} s. Client and server are two processes with a thread each. The column of \
             writes is of 256 in flight: above 1 requests share a write, below 1 one takes several. The ratio is the geometric mean of {} rounds, in brackets \
             the 95 % bootstrap interval. A bound that is missed is marked.\n\n    cargo xtask bench {name} --rounds {}",
            today(),
            std::thread::available_parallelism()?,
            args.rounds,
            args.rounds,
        );
        Section { name, title, intro: &intro, body: &body }.write(root)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn row(body: &mut String, size: u64, args: &Args, programs: &Programs) -> Result<()> {
    let measured = |in_flight| measure(programs, args.transport, size, in_flight);
    let mut sweeps: [Vec<Cell>; IN_FLIGHT.len()] = Default::default();
    for _ in 0..SWEEPS {
        for (cells, in_flight) in sweeps.iter_mut().zip(IN_FLIGHT) {
            cells.push(measured(in_flight)?);
        }
    }
    let rates = sweeps.each_ref().map(|cells| median(cells.iter().map(|cell| cell.rate).collect()));
    let others = rates.iter().zip(IN_FLIGHT).filter(|(_, in_flight)| *in_flight < MOST);
    let (_, best) = others.max_by(|a, b| a.0.total_cmp(b.0)).context("a number in flight below 256")?;
    let rounds = (0..args.rounds)
        .map(|position| Round::take(position, |most| Ok(measured(if most { MOST } else { best })?.rate)));
    let (times, noise) = compare(&rounds.collect::<Result<Vec<_>>>()?, Better::More);
    let per_write = median(sweeps[IN_FLIGHT.len() - 1].iter().map(|cell| cell.per_write).collect());
    write!(body, "| {size} |")?;
    rates.iter().try_for_each(|rate| write!(body, " {} |", thousands(*rate)))?;
    writeln!(
        body,
        " {} | {:.2} ({:.2} to {:.2}) of {best}{} | {:.2} | {BOUND} |",
        thousands(per_write * 1e3),
        times.mean,
        times.low,
        times.high,
        BOUND.verdict(times, noise),
        noise.mean,
    )?;
    Ok(())
}

/// Three digits.
fn thousands(number: f64) -> String {
    let number = number / 1e3;
    match number {
        100.0.. => format!("{number:.0}"),
        10.0.. => format!("{number:.1}"),
        1.0.. => format!("{number:.2}"),
        _ => format!("{number:.3}"),
    }
}

fn measure(programs: &Programs, transport: MuxTransport, size: u64, in_flight: u32) -> Result<Cell> {
    let port = free_port()?;
    let side = || {
        let mut command = Command::new(programs.path("stride-perf"));
        let transport = if transport == MuxTransport::Soft { "rdma" } else { "tcp" };
        command.args(["msg", "grid", "--api", "mux", "--transport", transport, "-D", SECONDS]);
        command.args(["-s", &size.to_string(), "-t", &in_flight.to_string(), "-p", &port.to_string()]);
        programs.over_the_device(&mut command);
        command.env_remove("TRESPASS_TRANSPORT").stdin(Stdio::null());
        command
    };
    let mut client = side();
    client.arg("127.0.0.1");
    let (said, _) = converse(programs, side(), client, port)?;
    read(&said, size, in_flight)
}

fn read(said: &str, size: u64, in_flight: u32) -> Result<Cell> {
    let row = said.lines().find(|line| !line.starts_with('#')).context("nothing was measured")?;
    let figures: Vec<f64> = row
        .split_whitespace()
        .map(|word| word.parse().with_context(|| row.to_owned()))
        .collect::<Result<_>>()?;
    let [bytes, _, flying, _, _, _, rate, per_write] = figures[..] else {
        anyhow::bail!("not a row of a mux: {row}");
    };
    let is_asked = bytes == size as f64 && flying == f64::from(in_flight) && rate > 0.0;
    ensure!(is_asked, "not the measurement of {size} bytes, {in_flight} in flight: {row}");
    Ok(Cell { rate, per_write })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_read() {
        let said = "# words\n#bytes\n128              100000       256       1.4706    210.000    256.250      1533744   250.000\n";
        assert_eq!(read(said, 128, 256).unwrap(), Cell { rate: 1_533_744.0, per_write: 250.0 });
        assert!(read(said, 128, 64).is_err() && read("# words\n", 128, 256).is_err());
    }

    #[test]
    fn numbers_have_three_digits() {
        let text = [1_533_744.0, 12_345.0, 1234.0, 12.0].map(thousands);
        assert_eq!(text, ["1534", "12.3", "1.23", "0.012"]);
    }
}
