//! `cargo xtask bench soft`: the speed of the software device, compared with the machine without
//! it.
//!
//! Each row names the path of its payload. The device counts the paths, and prints the counts when
//! a program closes it (`SOFT_RNIC_LOG=info`). A row fails if its two processes took different
//! paths, or not the expected one.

pub(super) mod copy_path;
mod rows;

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;

use super::document::{Section, today};
use super::programs::Programs;

#[derive(clap::Args)]
pub(super) struct Args {
    /// The number of measurements, interleaved with those of the reference
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(2..))]
    pairs: u32,
    /// The seconds to idle for the row that measures the cost of doing nothing
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    idle: u32,
    /// Print the result without writing it to docs/generated/performance
    #[arg(long)]
    dry_run: bool,
}

pub(super) fn run(root: &Path, args: &Args) -> Result<ExitCode> {
    let programs = Programs::build(root)?;
    let mut body = rows::timed(&programs, args.pairs)?;
    body.push('\n');
    body.push_str(&rows::counted(&programs, args.idle)?);
    println!("{body}");
    if !args.dry_run {
        let intro = format!(
            "{}, {} processors. Medians of {} interleaved ratios; a bound that is missed is marked.\n\n    \
             cargo xtask bench soft --pairs {}",
            today(),
            std::thread::available_parallelism()?,
            args.pairs,
            args.pairs
        );
        Section { name: "soft", title: "The software device", intro: &intro, body: &body }.write(root)?;
    }
    Ok(ExitCode::SUCCESS)
}
