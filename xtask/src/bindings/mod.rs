//! `cargo xtask bindings`: makes the generated part of `rdma-mummy-sys` again.
//!
//! The inputs are pinned in `xtask/bindings.lock.json`: the Debian packages of
//! the newest rdma-core (headers, and the symbol lists that say which release
//! added a function), the C library's headers for both architectures, and the
//! libclang that reads them. Exactly those are fetched and unpacked below
//! `target/`, beside the system's own; nothing is installed.

mod aliases;
mod fetch;
mod generate;
mod inlines;
mod lock;
mod symbols;
mod tables;

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};

pub(crate) use fetch::Inputs;

/// How `cargo xtask bindings` was asked to work.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Move the pin to the newest packages before generating
    #[arg(long, conflicts_with = "check")]
    update: bool,
    /// Write nothing; fail if the committed bindings differ from the generated ones
    #[arg(long)]
    check: bool,
}

/// Fetches the pinned inputs, for other chores that read the same headers.
pub(crate) fn inputs(root: &Path) -> Result<fetch::Fetched> {
    fetch::fetch(root, &lock::Lock::read(root)?)
}

/// Runs the chore.
pub(crate) fn run(root: &Path, args: &Args) -> Result<ExitCode> {
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
    let files = generate::generate(&inputs)?;
    let folder = root.join("rdma-mummy-sys/src/bindings");
    let mut differing = Vec::new();
    for (name, text) in &files {
        let path = folder.join(name);
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
