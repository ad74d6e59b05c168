//! `cargo xtask c-lib`: builds and installs the C companion of rdma-mummy-sys, or trespass for C.
//! `cargo xtask bindings` generates half of the companion's sources.
//!
//! Building the companion needs a C compiler and `ar`, and nothing of rdma-core, because the
//! committed sources contain all facts about rdma-core.

mod trespass;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};

/// The name for `-l` and pkg-config.
const NAME: &str = "rdma-core-mummy";

/// The arguments of `cargo xtask c-lib`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Which one to build
    #[arg(value_enum, default_value = NAME, value_name = "LIBRARY")]
    library: CLibrary,
    /// Where to install [default: target/c-lib]
    #[arg(long, value_name = "DIR")]
    prefix: Option<PathBuf>,
    /// The cargo profile of trespass
    #[arg(long, value_name = "NAME", default_value = "release")]
    profile: String,
    /// Build trespass without the software device
    #[arg(long)]
    without_soft: bool,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum CLibrary {
    /// libibverbs and librdmacm, loaded at run time
    RdmaCoreMummy,
    /// Connections over RDMA or TCP
    Trespass,
}

pub(crate) fn run(root: &Path, args: &Args) -> Result<ExitCode> {
    let prefix = args.prefix.clone().unwrap_or_else(|| root.join("target/c-lib"));
    let prefix = std::path::absolute(prefix)?;
    std::fs::create_dir_all(prefix.join("lib/pkgconfig"))
        .with_context(|| format!("cannot write below {}: choose another --prefix", prefix.display()))?;
    let name = match args.library {
        CLibrary::RdmaCoreMummy => companion(root, &prefix).map(|()| NAME)?,
        CLibrary::Trespass => trespass::install(root, args, &prefix).map(|()| "trespass")?,
    };
    println!("c-lib: installed in {}", prefix.display());
    let folder = prefix.join("lib/pkgconfig");
    println!("c-lib: PKG_CONFIG_PATH={} pkg-config --cflags --libs {name}", folder.display());
    Ok(ExitCode::SUCCESS)
}

/// Compiles and installs the companion.
fn companion(root: &Path, prefix: &Path) -> Result<()> {
    let source = root.join("rdma-mummy-sys/c");
    let lib = prefix.join("lib");
    let object = lib.join(format!("{NAME}.o"));
    let archive = lib.join(format!("lib{NAME}.a"));
    let _ = std::fs::remove_file(&archive); // `ar` would add to an old one.
    let mut compile = tool("CC", "cc");
    compile.args(["-std=c11", "-O2", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-I"]);
    compile.arg(source.join("include")).args(flags()).arg("-c").arg(source.join("src/loader.c"));
    execute(compile.arg("-o").arg(&object))?;
    execute(tool("AR", "ar").arg("rcs").arg(&archive).arg(&object))?;
    std::fs::remove_file(&object)?;

    fill(&source.join(format!("{NAME}.pc.in")), &lib.join("pkgconfig").join(format!("{NAME}.pc")))?;
    install(&source.join("include"), &prefix.join("include"))
}

/// Writes a template with the version.
fn fill(template: &Path, to: &Path) -> Result<()> {
    let text = std::fs::read_to_string(template)?;
    std::fs::write(to, text.replace("@VERSION@", env!("CARGO_PKG_VERSION")))
        .with_context(|| format!("cannot write {}", to.display()))
}

fn tool(variable: &str, default: &str) -> Command {
    Command::new(std::env::var_os(variable).unwrap_or_else(|| default.into()))
}

/// The flags that packagers and cross-compiling users set.
fn flags() -> Vec<String> {
    let flags = std::env::var("CFLAGS").unwrap_or_default();
    flags.split_whitespace().map(str::to_owned).collect()
}

fn execute(command: &mut Command) -> Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let status = command.status().with_context(|| {
        format!("cannot run `{program}`: install a C compiler and binutils, or name them in CC and AR")
    })?;
    if !status.success() {
        bail!("`{program}` failed ({status}); see its output above");
    }
    Ok(())
}

fn install(from: &Path, to: &Path) -> Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            install(&entry.path(), &target)?;
        } else {
            std::fs::copy(entry.path(), &target)
                .with_context(|| format!("cannot write {}", target.display()))?;
        }
    }
    Ok(())
}
