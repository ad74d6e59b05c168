//! `cargo xtask bench trespass`: trespass's messages over the software device, compared with
//! perftest and with its TCP driver; over SoftRoCE in a guest also with rstream and UCX. Server and
//! client are separate processes.
//!
//! Ours, the reference and the reference again run interleaved, so that noise affects all three.
//! Over the software device both sides of a comparison move their payload over the same path, which
//! the device counts and each row names. Connections are compared with `std::net` and with the verbs
//! that they need.

mod connections;
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
    /// Only one of the two tables
    #[arg(long, value_enum)]
    only: Option<Table>,
    /// Print only the rows whose first column contains one of these words, and write nothing
    #[arg(long, value_name = "WORDS")]
    row: Vec<String>,
    /// Use the programs of the last build
    #[arg(long)]
    no_build: bool,
}

/// The tables over the software device, each with a section of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Table {
    Messages,
    Connections,
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
    let has = |table| args.only.is_none_or(|only| only == table);
    let programs = match (has(Table::Messages), args.no_build) {
        (true, no_build) => Programs::beside_perftest(root, no_build)?,
        (false, true) => Programs::as_they_are(root),
        (false, false) => Programs::build(root)?,
    };
    let (rounds, part) = if args.quick { (1, 10) } else { (args.rounds, 1) };
    let writes = !dry_run && !args.quick && args.row.is_empty();
    let (mut any, mut not_ready) = (false, 0);
    if has(Table::Messages)
        && let Some(table) = rows::measure(&programs, rounds, part, &args.row)?
    {
        println!("{}", table.body);
        (any, not_ready) = (true, table.not_ready);
        if writes {
            write_messages(root, rounds, &table.body)?;
        }
    }
    if has(Table::Connections)
        && let Some(body) = connections::measure(&programs, rounds, part, &args.row)?
    {
        println!("{body}");
        any = true;
        if writes {
            write_connections(root, rounds, &body)?;
        }
    }
    ensure!(any, "no row contains any of {:?}", args.row);
    ensure_ready(not_ready)?;
    Ok(ExitCode::SUCCESS)
}

/// Whether a row is measured: its title contains one of the words, or none are given.
fn is_chosen(title: &str, words: &[String]) -> bool {
    words.is_empty() || words.iter().any(|word| title.contains(word.as_str()))
}

fn write_messages(root: &Path, rounds: u32, body: &str) -> Result<()> {
    let version = programs::first_line(Command::new(programs::PERFTEST).arg("--version"));
    let intro = format!(
        "{}, perftest {}, stride-perf {}, {} processors. Geometric means of {rounds} ratios of interleaved runs, in brackets the \
         95 % bootstrap interval; above 1 trespass is better, and it is better where its whole interval is above 1 and above that of \
         the reference against itself. A row is missed where its whole interval is below the bound. Latency is the median of half a round trip. \
         A rate counts answered requests. Copies alone are not trespass's: they are what is possible without any transport. \
         Beside perftest, which polls, trespass polls, too (`--poll`). RNR is how often, in all \
         runs of trespass, the device met a receiver that was not ready.\n\n    \
         cargo xtask bench trespass soft --only messages --rounds {rounds}",
        today(),
        version.trim_start_matches("Version: "),
        env!("CARGO_PKG_VERSION"),
        std::thread::available_parallelism()?,
    );
    let title = "trespass over the software device";
    Section { name: "trespass soft", title, intro: &intro, body }.write(root)
}

fn write_connections(root: &Path, rounds: u32, body: &str) -> Result<()> {
    let intro = format!(
        "{}, {} processors. Medians of {rounds} interleaved rounds, in brackets the 95 % bootstrap interval. Client and server are two \
         processes, the same program with each of the three. Verbs alone are the completion queues, queue pairs and modifies of both \
         sides without anything else. Against `std::net`, they are subtracted from trespass's figure over RDMA before the ratio is \
         taken. In a storm {} clients connect at once, each in a thread, and the \
         percentage served is the least of all rounds. A round drops {} streams, and {} connections are idle. \
         {} stopped peers send nothing, half a HELLO, a HELLO and no probe, or other bytes. A bound that is missed is marked.\n\n    \
         cargo xtask bench trespass soft --only connections --rounds {rounds}",
        today(),
        std::thread::available_parallelism()?,
        connections::STORM,
        connections::DROPS,
        connections::IDLE,
        connections::STOPPED,
    );
    let title = "trespass's connections over the software device";
    Section { name: "trespass soft connections", title, intro: &intro, body }.write(root)
}

/// Fails if a receiver was not ready, which credits must prevent.
fn ensure_ready(not_ready: u64) -> Result<()> {
    ensure!(not_ready == 0, "a receiver of trespass was not ready {not_ready} times: see the last column");
    Ok(())
}
