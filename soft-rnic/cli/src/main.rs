//! `soft-rnic`: runs programs over the software RDMA device, and shows its state.

mod files;
mod library;
mod run;
mod status;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(
    name = "soft-rnic",
    version,
    about = "The software RDMA device: run programs over it, and see who uses it"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// The subcommands; each has a module with its name.
#[derive(Subcommand)]
enum Command {
    Run(run::RunArgs),
    Status(status::StatusArgs),
}

/// This program's failure, an exit status that few of the programs that it runs use.
const FAILURE: u8 = 125;

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Run(args) => run::run(&args),
        Command::Status(args) => status::run(&args),
    };
    result.unwrap_or_else(|error| {
        eprintln!("soft-rnic: {error:#}");
        ExitCode::from(FAILURE)
    })
}
