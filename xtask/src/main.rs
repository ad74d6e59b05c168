//! The chores of the project, as `cargo xtask <CHORE>`.

mod bench;
mod bindings;
mod c_lib;
mod softroce;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "The chores of the project")]
struct Cli {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Measure speed, as ratios within one interleaved run
    Bench(bench::Args),
    /// Make the generated bindings of rdma-mummy-sys again
    Bindings(bindings::Args),
    /// Build and install the C companion of rdma-mummy-sys
    CLib(c_lib::Args),
    Softroce(softroce::Args),
}

fn main() -> anyhow::Result<ExitCode> {
    let root = root();
    match Cli::parse().chore {
        Chore::Bench(args) => bench::run(&root, &args),
        Chore::Bindings(args) => bindings::run(&root, &args),
        Chore::CLib(args) => c_lib::run(&root, &args),
        Chore::Softroce(args) => softroce::run(&root, &args),
    }
}

/// The workspace's folder.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(Path::to_owned).unwrap_or_default()
}
