//! `cargo xtask bench soft`: how fast the software device is, against what the machine can do without it.
//!
//! Every row says which way its messages' payload went: the device counts that, and says so when a program closes it
//! (`SOFT_RNIC_LOG=info`). A row whose two sides took different ways, or another one than it is for, is an error.

pub(super) mod copy_path;
mod rows;

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;

use super::document::{Section, today};
use super::programs::Programs;

#[derive(clap::Args)]
pub(super) struct Args {
    /// How often each thing is measured, in turn with what it is compared with
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(2..))]
    pairs: u32,
    /// How long nothing is done to see what that costs, in seconds
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
            "{}, {} processors. Medians of {} ratios of things that took rounds; a bound that is missed is marked.\n\n    \
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
