//! `cargo xtask soft-libs`: builds the shared objects of the software device, for programs that
//! link to libibverbs.
//!
//! [`shared_object`] links them.

use std::env;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};

use crate::shared_object::{self, RustCode};

/// A shared object: its name, its version script relative to the workspace, and its contents.
struct SoftLibrary {
    soname: &'static str,
    version_script: &'static str,
    made_of: LibrarySource,
}

enum LibrarySource {
    /// The static library of this package.
    Package(&'static str),
    /// An assembly file that jumps to another library, which is built before and found in the same
    /// folder.
    Jumps { file: &'static str, to: &'static str },
}

const LIBRARIES: [SoftLibrary; 3] = [
    SoftLibrary {
        soname: "libibverbs.so.1",
        version_script: "soft-rnic/c-abi/src/libibverbs/libibverbs.map",
        made_of: LibrarySource::Package("soft-rnic-c-abi"),
    },
    SoftLibrary {
        soname: "librdmacm.so.1",
        version_script: "soft-rnic/c-abi/src/librdmacm/librdmacm.map",
        made_of: LibrarySource::Jumps {
            file: "soft-rnic/c-abi/src/librdmacm/forward.S",
            to: "libibverbs.so.1",
        },
    },
    SoftLibrary {
        soname: "libsoft-rnic-preload.so",
        version_script: "soft-rnic/preload/src/preload.map",
        made_of: LibrarySource::Package("soft-rnic-preload"),
    },
];

/// The arguments of `cargo xtask soft-libs`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The output folder (default: target/soft-rnic/lib, or target/soft-rnic/TARGET/lib)
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// The cargo profile
    #[arg(long, value_name = "NAME", default_value = "release")]
    profile: String,
    /// The target to build for; CC names its C compiler
    #[arg(long, value_name = "TARGET")]
    target: Option<String>,
}

pub(crate) fn run(root: &Path, args: &Args) -> Result<ExitCode> {
    let out = std::path::absolute(args.out.clone().unwrap_or_else(|| default_folder(root, args)))?;
    std::fs::create_dir_all(&out)
        .with_context(|| format!("cannot make {}: choose another --out", out.display()))?;
    for library in &LIBRARIES {
        link(root, args, library, &out)?;
        println!("soft-libs: {}", out.join(library.soname).display());
    }
    Ok(ExitCode::SUCCESS)
}

/// Builds them in the default folder of [`run`].
pub(crate) fn build(root: &Path) -> Result<()> {
    let args = Args { out: None, profile: "release".to_owned(), target: None };
    run(root, &args).map(|_| ())
}

/// Cargo's target folder.
pub(crate) fn target_folder(root: &Path) -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |dir| root.join(dir))
}

fn default_folder(root: &Path, args: &Args) -> PathBuf {
    target_folder(root).join("soft-rnic").join(args.target.as_deref().unwrap_or_default()).join("lib")
}

/// Builds and links one of them.
fn link(root: &Path, args: &Args, library: &SoftLibrary, out: &Path) -> Result<()> {
    let script = root.join(library.version_script);
    match library.made_of {
        LibrarySource::Package(package) => {
            let code =
                RustCode { package, profile: &args.profile, target: args.target.as_deref(), options: &[] };
            let archive = shared_object::archive(root, &code)?;
            shared_object::link(&script, library.soname, out, |command| {
                shared_object::add_archive(command, &archive);
            })
        }
        LibrarySource::Jumps { file, to } => shared_object::link(&script, library.soname, out, |command| {
            command.arg("-nostdlib").arg(root.join(file)).arg(out.join(to)).arg("-Wl,-rpath,$ORIGIN");
        }),
    }
}
