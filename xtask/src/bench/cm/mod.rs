//! `cargo xtask bench cm`: the cost of connections through the connection manager.
//!
//! Over the software device they are compared with the kernel's TCP, and with few or many open
//! connections. In SoftRoCE's guest our cmtime is compared with rdma-core's, step by step.

mod rows;
mod softroce;

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;

use super::document::{Section, today};
use super::programs::Programs;
use crate::softroce::MachineArgs;

#[derive(clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: CmCommand,
    /// Print the result without writing it to docs/generated/performance
    #[arg(long, global = true)]
    dry_run: bool,
}

#[derive(clap::Subcommand)]
enum CmCommand {
    /// Over the software device
    Soft(SoftArgs),
    /// Our cmtime against rdma-core's, over SoftRoCE in a guest
    Softroce(SoftroceArgs),
}

#[derive(clap::Args)]
pub(super) struct SoftArgs {
    /// The number of measurements, interleaved with those of the reference
    #[arg(long, default_value_t = 11, value_parser = clap::value_parser!(u32).range(3..))]
    pairs: u32,
    /// Use the programs of the last build
    #[arg(long)]
    no_build: bool,
}

#[derive(clap::Args)]
pub(super) struct SoftroceArgs {
    #[command(flatten)]
    machine: MachineArgs,
    /// The number of runs of each program, interleaved
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(3..))]
    pairs: u32,
    /// The number of connections in a run
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(10..=1000))]
    connections: u32,
}

pub(super) fn run(root: &Path, args: &Args) -> Result<ExitCode> {
    match &args.command {
        CmCommand::Soft(soft) => over_soft(root, soft, args.dry_run),
        CmCommand::Softroce(softroce) => softroce::run(root, softroce, args.dry_run),
    }
}

fn over_soft(root: &Path, args: &SoftArgs, dry_run: bool) -> Result<ExitCode> {
    let programs = if args.no_build { Programs::as_they_are(root) } else { Programs::build(root)? };
    let body =
        format!("{}\n{}", rows::against_tcp(&programs, args.pairs)?, rows::crowded(&programs, args.pairs)?);
    println!("{body}");
    if !dry_run {
        let intro = format!(
            "{}, {} processors. Client and server are two processes; a connection counts when the server has it. Through the \
             connection manager that is an identifier, its address and route, a queue pair on each side, and the handshake. Medians of \
             {} rounds; a bound that is missed is marked.\n\n    cargo xtask bench cm soft --pairs {}",
            today(),
            std::thread::available_parallelism()?,
            args.pairs,
            args.pairs
        );
        Section {
            name: "cm soft",
            title: "Connections over the software device",
            intro: &intro,
            body: &body,
        }
        .write(root)?;
    }
    Ok(ExitCode::SUCCESS)
}
