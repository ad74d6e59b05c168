//! The chores of the project, as `cargo xtask <CHORE>`.

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "The chores of the project")]
struct Cli {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {}

fn main() -> anyhow::Result<()> {
    match Cli::parse().chore {}
}
