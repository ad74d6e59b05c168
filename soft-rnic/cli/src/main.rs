//! `soft-rnic`: the software RDMA device of `soft-rnic`, for programs that were not made for it.

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

/// A subcommand each; every one has a module of its name.
#[derive(Subcommand)]
enum Command {
    Run(run::RunArgs),
    Status(status::StatusArgs),
}

/// This program's own failure, which few programs that it runs end with.
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
