//! `cargo xtask bench trespass`: messages of trespass against perftest, and against trespass's own TCP driver, over the
//! software device: two processes each.
//!
//! What is compared, its reference and the reference again take turns, so that noise strikes all three. Both sides of a comparison over the device
//! move their payload the same way, which the device counts and each row says.

mod rows;
mod side;

use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::Result;

use super::document::{Section, today};
use super::programs::{self, Programs};

#[derive(clap::Args)]
pub(super) struct Args {
    /// How often each row is measured
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Each row once, with a tenth of the messages: to see that it works
    #[arg(long, conflicts_with = "rounds")]
    quick: bool,
    /// Take the programs as they were built last
    #[arg(long)]
    no_build: bool,
    /// Print the result without writing docs/performance.md
    #[arg(long)]
    dry_run: bool,
}

pub(super) fn run(root: &Path, args: &Args) -> Result<ExitCode> {
    let programs = match args.no_build {
        true => Programs::as_they_are(root),
        false => {
            let programs = Programs::build(root)?;
            programs.cargo(&["--package", "stride", "--bins"])?;
            programs
        }
    };
    let (rounds, part) = if args.quick { (1, 10) } else { (args.rounds, 1) };
    let body = rows::measure(&programs, rounds, part)?;
    println!("{body}");
    if !args.dry_run && !args.quick {
        let version = programs::first_line(Command::new("/usr/bin/ib_write_bw").arg("--version"));
        let intro = format!(
            "{}, perftest {}, stride-perf {}, {} processors. Medians of {rounds} ratios of runs that took turns, in brackets the \
             95 % bootstrap interval of the geometric mean; above 1 trespass is better. Latency is half a round trip, the median.\n\n    \
             cargo xtask bench trespass --rounds {rounds}",
            today(),
            version.trim_start_matches("Version: "),
            env!("CARGO_PKG_VERSION"),
            std::thread::available_parallelism()?,
        );
        Section { name: "trespass", title: "trespass over the software device", intro: &intro, body: &body }
            .write(root)?;
    }
    Ok(ExitCode::SUCCESS)
}
