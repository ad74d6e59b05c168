//! `cargo xtask bench threads`: two threads of stride-perf compared with one, over the software
//! device in one process.
//!
//! The table also has the processor time of a message. If another process takes a processor away,
//! rates fall and the processor time does not. If the threads contend with each other, both change.

use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};

use super::document::{Section, today};
use super::programs::Programs;
use super::rounds::{self, Better, Round};
use super::statistics::median;

/// Message sizes in bytes, each with a number of messages for about a tenth of a second.
const SIZES: [(u64, u64); 3] = [(64, 2_000_000), (4096, 1_000_000), (65536, 80_000)];

/// The required rate of two threads, as a multiple of one thread's.
const BOUND: f64 = 1.8;

#[derive(clap::Args)]
pub(super) struct Args {
    /// The number of rounds (one thread, two, one again) for each size
    #[arg(long, default_value_t = 11, value_parser = clap::value_parser!(u32).range(1..))]
    pairs: u32,
    /// Use the programs of the last build
    #[arg(long)]
    no_build: bool,
    /// Print the result without writing it to docs/generated/performance
    #[arg(long)]
    dry_run: bool,
}

pub(super) fn run(root: &Path, args: &Args) -> Result<ExitCode> {
    let processors = std::thread::available_parallelism()?.get();
    ensure!(processors > 1, "two threads need two processors; this machine has one");
    let programs = Programs::as_they_are(root);
    if !args.no_build {
        programs.cargo(&["--package", "stride", "--bins"])?;
    }
    let mut body = String::from(
        "| bytes | one thread, M messages/s | two threads | times | at least | processor time a message, times two of one's / two's |\n\
         | ---: | ---: | ---: | ---: | ---: | ---: |\n",
    );
    for (size, messages) in SIZES {
        let (mut rates, mut costs) = (Vec::new(), Vec::new());
        for pair in 0..args.pairs {
            let mut cost = Vec::new();
            rates.push(Round::take(pair, |two| {
                let (rate, nanoseconds) = measure(&programs, size, messages, if two { 2 } else { 1 })?;
                cost.push((two, nanoseconds));
                Ok(rate)
            })?);
            let of = |two| cost.iter().filter(|(is_two, _)| *is_two == two).map(|(_, cost)| *cost).collect();
            costs.push(2.0 * median(of(false)) / median(of(true)));
        }
        row(&mut body, size, &rates, costs)?;
    }
    println!("{body}");
    if !args.dry_run {
        let intro = format!(
            "{}, {processors} processors, `stride-perf write bw --loopback --threads 1` and `2`. Medians of {} rounds; in brackets the 95 % \
             bootstrap interval of the geometric mean. The last column is how much faster two threads would be if no other process had \
             taken a processor from them.\n\n    cargo xtask bench threads --pairs {}",
            today(),
            args.pairs,
            args.pairs
        );
        Section { name: "threads", title: "Two threads against one", intro: &intro, body: &body }
            .write(root)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn row(body: &mut String, size: u64, rates: &[Round], costs: Vec<f64>) -> Result<()> {
    let (times, _) = rounds::compare(rates, Better::More);
    let column = |value: fn(&Round) -> f64| median(rates.iter().map(value).collect());
    writeln!(
        body,
        "| {size} | {:.3} | {:.3} | {:.2} ({:.2} to {:.2}){} | {BOUND} | {:.2} |",
        column(|round| round.reference),
        column(|round| round.ours),
        times.mean,
        times.low,
        times.high,
        times.at_least(BOUND),
        median(costs)
    )?;
    Ok(())
}

/// Messages per microsecond, and nanoseconds of the threads' processor time for each.
fn measure(programs: &Programs, size: u64, messages: u64, threads: u32) -> Result<(f64, f64)> {
    let mut command = Command::new(programs.path("stride-perf"));
    command.args(["write", "bw", "--loopback", "-s", &size.to_string(), "-n", &messages.to_string()]);
    command.args(["--threads", &threads.to_string()]).env("SIDEWAY_PROVIDER", "soft");
    command.env("SOFT_RNIC_FABRIC", format!("bench.{}", std::process::id()));
    let output = command.output().context("cannot run stride-perf")?;
    let said = String::from_utf8_lossy(&output.stdout);
    let wrong = || format!("{command:?}: {said}{}", String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "{}", wrong());
    parse(&said, size).with_context(wrong)
}

fn parse(said: &str, size: u64) -> Option<(f64, f64)> {
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let size = size.to_string();
    let row = said.lines().map(words).find(|words| words.first() == Some(&size))?;
    let cost = said.lines().find(|line| line.starts_with("# CPU time of the measuring threads"))?;
    Some((row.get(3)?.parse().ok()?, cost.split_whitespace().next_back()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_read_and_too_little_is_missed() {
        let said = "# RDMA write\n#bytes iterations Gb/s Mpps\n64 200000 23.3602 45.625\n# CPU time of the measuring threads, ns a message: 43.5\n";
        assert_eq!(parse(said, 64), Some((45.625, 43.5)));
        assert_eq!(parse(said, 4096), None);
        let round = |ours| Round { reference: 10.0, ours, again: 10.0 };
        let said = |ours| {
            let mut body = String::new();
            row(&mut body, 64, &[round(ours), round(ours)], vec![2.0]).unwrap();
            body
        };
        assert!(said(17.0).contains("| 1.70 (1.70 to 1.70) **missed** | 1.8 | 2.00 |"), "{}", said(17.0));
        assert!(!said(19.0).contains("missed"));
    }
}
