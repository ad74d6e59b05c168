//! `cargo xtask bench trespass`: trespass's messages over the software device, compared with
//! perftest and with its TCP driver; over SoftRoCE in a guest also with rstream and UCX. Server and
//! client are separate processes.
//!
//! Ours, the reference and the reference again run interleaved, so that noise affects all three.
//! Over the software device both sides of a comparison move their payload over the same path, which
//! the device counts and each row names.

mod rows;
mod run;
mod softroce;

use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Result, ensure};

use super::document::{Section, today};
use super::programs::{self, Programs};
use crate::softroce::MachineArgs;

/// The required rate with more requests in flight, as a multiple of that with fewer.
const NO_COLLAPSE: f64 = 0.9;

#[derive(clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: TrespassCommand,
    /// Print the result without writing it to docs/generated/performance
    #[arg(long, global = true)]
    dry_run: bool,
}

#[derive(clap::Subcommand)]
enum TrespassCommand {
    /// Over the software device
    Soft(SoftArgs),
    /// Over SoftRoCE in a guest
    Softroce(SoftroceArgs),
}

#[derive(clap::Args)]
pub(super) struct SoftArgs {
    /// The number of rounds for each row
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(3..))]
    rounds: u32,
    /// Smoke test: one round, a tenth of the messages
    #[arg(long, conflicts_with = "rounds")]
    quick: bool,
    /// Use the programs of the last build
    #[arg(long)]
    no_build: bool,
}

#[derive(clap::Args)]
pub(super) struct SoftroceArgs {
    #[command(flatten)]
    machine: MachineArgs,
    /// The number of runs of each program, interleaved
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(3..))]
    pairs: u32,
    /// Smoke test: one round, two of the sizes
    #[arg(long, conflicts_with = "pairs")]
    quick: bool,
    /// Use the program of the last build
    #[arg(long)]
    no_build: bool,
}

pub(super) fn run(root: &Path, args: &Args) -> Result<ExitCode> {
    match &args.command {
        TrespassCommand::Soft(soft) => over_soft(root, soft, args.dry_run),
        TrespassCommand::Softroce(softroce) => softroce::run(root, softroce, args.dry_run),
    }
}

fn over_soft(root: &Path, args: &SoftArgs, dry_run: bool) -> Result<ExitCode> {
    let programs = Programs::beside_perftest(root, args.no_build)?;
    let (rounds, part) = if args.quick { (1, 10) } else { (args.rounds, 1) };
    let rows::RowTable { body, not_ready } = rows::measure(&programs, rounds, part)?;
    println!("{body}");
    if !dry_run && !args.quick {
        let version = programs::first_line(Command::new(programs::PERFTEST).arg("--version"));
        let intro = format!(
            "{}, perftest {}, stride-perf {}, {} processors. Geometric means of {rounds} ratios of interleaved runs, in brackets the \
             95 % bootstrap interval; above 1 trespass is better, and it is better where its whole interval is above 1 and above that of \
             the reference against itself. Missed is what its whole interval is below. Latency is half a round trip, the median; a rate is that of \
             requests that are answered. Copies alone are not trespass's: they are what is possible without any transport. \
             Beside perftest, which polls, trespass polls, too (`--poll`). RNR is how often, in all \
             runs of trespass, the device met a receiver that was not ready.\n\n    cargo xtask bench trespass soft --rounds {rounds}",
            today(),
            version.trim_start_matches("Version: "),
            env!("CARGO_PKG_VERSION"),
            std::thread::available_parallelism()?,
        );
        Section {
            name: "trespass soft",
            title: "trespass over the software device",
            intro: &intro,
            body: &body,
        }
        .write(root)?;
    }
    ensure_ready(not_ready)?;
    Ok(ExitCode::SUCCESS)
}

/// Fails if a receiver was not ready, which credits must prevent.
fn ensure_ready(not_ready: u64) -> Result<()> {
    ensure!(not_ready == 0, "a receiver of trespass was not ready {not_ready} times: see the last column");
    Ok(())
}
