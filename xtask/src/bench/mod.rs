//! `cargo xtask bench`: how fast, as ratios within one interleaved run.
//!
//! A benchmark, never a gate: machines are shared and noisy, so each figure is
//! the ratio of two programs that ran one after the other, and beside it
//! stands the ratio of one program to itself from the same run.

mod report;
mod samples;

use std::io;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, bail};

use crate::softroce::{PlaceArgs, Profile};
use report::Report;
use samples::Samples;

/// The script that runs in the guest.
const SCRIPT: &str = include_str!("softroce.sh");
/// Where the result goes.
const PERFORMANCE: &str = "docs/performance.md";

/// What to measure.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    /// stride-perf against perftest, over SoftRoCE in the guest whose kernel runs it best (6.1)
    Softroce(Softroce),
}

#[derive(clap::Args)]
struct Softroce {
    #[command(flatten)]
    place: PlaceArgs,

    /// Pairs of stride-perf and perftest a row, and as many of perftest and itself
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(5..))]
    pairs: u32,

    /// Print the result without writing docs/performance.md
    #[arg(long)]
    dry_run: bool,
}

/// Runs the chore.
pub(crate) fn run(root: &Path, args: &Args) -> Result<ExitCode> {
    let What::Softroce(args) = &args.what;
    let (place, programs, mut job) = args.place.prepare(root, Profile::Release)?;
    programs.build()?;
    job.command = format!("PAIRS={}\n{SCRIPT}", args.pairs);
    let mut output = Vec::new();
    let ran = place.run(&job, &mut output, &mut io::stderr())?;
    let samples = Samples::parse(&String::from_utf8_lossy(&output))?;
    if samples.rows.is_empty() {
        bail!("the guest measured nothing: its messages are above");
    }
    let report = Report::new(&samples, args.pairs);
    print!("{report}");
    if !args.dry_run {
        let path = root.join(PERFORMANCE);
        let title = format!("{}, {}", place.title(&ran), samples.perftest);
        let old = std::fs::read_to_string(&path).unwrap_or_default();
        std::fs::write(&path, report.into_document(&old, &title, args.pairs))?;
        println!("written to {PERFORMANCE}");
    }
    Ok(ran.ending.exit_code())
}
