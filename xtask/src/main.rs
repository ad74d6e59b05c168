//! The project's development commands, as `cargo xtask <COMMAND>`.

mod api;
mod bench;
mod c_lib;
mod parity;
mod prose;
mod shared_object;
mod soft_libs;
mod softroce;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "The project's development commands")]
struct Cli {
    #[command(subcommand)]
    command: XtaskCommand,
}

#[derive(Subcommand)]
enum XtaskCommand {
    /// List the public API of the crates (docs/generated/api), or check the lists against the
    /// baseline
    Api(api::Args),
    /// Measure performance, as ratios within one interleaved run
    Bench(bench::Args),
    /// Regenerate the bindings of rdma-mummy-sys
    #[command(disable_help_flag = true)]
    Bindings {
        /// See `cargo xtask bindings --help`
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Build and install the C companion of rdma-mummy-sys, or trespass for C
    CLib(c_lib::Args),
    /// Generate docs/generated/stride-parity.md from stride/perftest-flags.toml, or check it
    Parity(parity::Args),
    Prose(prose::Args),
    /// Build the software device as libibverbs.so.1, for C programs
    SoftLibs(soft_libs::Args),
    Softroce(softroce::Args),
}

fn main() -> anyhow::Result<ExitCode> {
    if let Some(code) = bench::rustc() {
        return Ok(code);
    }
    let root = root();
    match Cli::parse().command {
        XtaskCommand::Api(args) => api::run(&root, &args),
        XtaskCommand::Bench(args) => bench::run(&root, &args),
        XtaskCommand::Bindings { arguments } => bindings(&root, &arguments),
        XtaskCommand::CLib(args) => c_lib::run(&root, &args),
        XtaskCommand::Parity(args) => parity::run(&root, &args),
        XtaskCommand::Prose(args) => prose::run(&root, &args),
        XtaskCommand::SoftLibs(args) => soft_libs::run(&root, &args),
        XtaskCommand::Softroce(args) => softroce::run(&root, &args),
    }
}

/// Compiles and runs the generator, which is a separate program; it says why.
fn bindings(root: &Path, arguments: &[String]) -> anyhow::Result<ExitCode> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .args(["run", "--quiet", "--package", "xtask-bindings", "--"])
        .args(arguments)
        .current_dir(root)
        .status()?;
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from))
}

/// The workspace's folder.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(Path::to_owned).unwrap_or_default()
}
