//! `cargo xtask bindings`: regenerates the bindings of `rdma-mummy-sys` and the export lists of the
//! software device's C library.
//!
//! This is a separate program, so that the other commands do not wait for the compilation of
//! bindgen.
//!
//! `xtask/bindings/bindings.lock.json` pins the inputs:
//!
//! - the Debian packages of the newest rdma-core: its headers, and the symbol lists that say which
//!   release added a function,
//! - the C library's headers for both architectures,
//! - the libclang that parses the headers.
//!
//! The command fetches exactly these and unpacks them below `target/`. It installs nothing.

mod aliases;
mod c_abi;
mod c_lib;
mod fetch;
mod generate;
mod inlines;
mod lock;
mod symbols;
mod tables;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};

use clap::Parser;

use fetch::Inputs;

/// Regenerate the bindings of rdma-mummy-sys and the export lists of soft-rnic's C library.
#[derive(Parser)]
#[command(name = "cargo xtask bindings")]
struct Args {
    /// Pin the newest packages before generating
    #[arg(long, conflicts_with = "check")]
    update: bool,
    /// Write nothing; fail if the committed files differ from the generated ones
    #[arg(long)]
    check: bool,
}

/// The workspace's folder.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).map(Path::to_owned).unwrap_or_default()
}

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    let root = &root();
    if args.update {
        fetch::update(root)?.write(root)?;
    }
    let lock = lock::Lock::read(root)?;
    let inputs = match fetch::fetch(root, &lock)? {
        fetch::Fetched::Inputs(inputs) => inputs,
        fetch::Fetched::Gone(what) if args.check => {
            println!("bindings: SKIPPED: {what}; `cargo xtask bindings --update` moves the pin");
            return Ok(ExitCode::SUCCESS);
        }
        fetch::Fetched::Gone(what) => bail!("{what}; run `cargo xtask bindings --update` to move the pin"),
    };
    let mut files = generate::generate(root, &inputs)?;
    let c_files = c_lib::generate(&inputs)?.into_iter();
    files.extend(c_files.map(|(name, text)| (format!("rdma-mummy-sys/c/{name}"), text)));
    let mut differing = Vec::new();
    for (name, text) in &files {
        let path = root.join(name);
        let committed = std::fs::read_to_string(&path).unwrap_or_default();
        if committed == *text {
            continue;
        }
        differing.push(name.as_str());
        if !args.check {
            std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        }
    }
    if args.check && !differing.is_empty() {
        bail!(
            "the committed bindings differ in {}; run `cargo xtask bindings` and commit",
            differing.join(", ")
        );
    }
    println!("bindings: rdma-core {}: {} files, {} changed", lock.rdma_core(), files.len(), differing.len());
    Ok(ExitCode::SUCCESS)
}
