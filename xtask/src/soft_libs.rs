//! `cargo xtask soft-libs`: builds the shared objects of the software device, for programs that
//! link to libibverbs.
//!
//! The Rust code becomes a static library, which the C compiler links into the shared object. rustc
//! cannot do that: it passes its own version script to the linker, which cannot be combined with
//! ours.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

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

/// The system libraries that Rust's standard library needs.
const NEEDED: [&str; 6] = ["-Wl,--as-needed", "-lgcc_s", "-lpthread", "-ldl", "-lm", "-lc"];

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

/// Builds a package's static library and returns its path.
fn archive(root: &Path, args: &Args, package: &str) -> Result<PathBuf> {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root).args(["build", "--quiet", "--message-format=json-render-diagnostics"]);
    cargo.args(["--package", package, "--profile", &args.profile]);
    if let Some(target) = &args.target {
        cargo.args(["--target", target]);
    }
    let output =
        cargo.stdin(Stdio::null()).stderr(Stdio::inherit()).output().context("cannot start cargo")?;
    ensure!(output.status.success(), "{package} does not build; see cargo's output above");
    str::from_utf8(&output.stdout)?
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|message| message["target"]["name"] == package.replace('-', "_"))
        .flat_map(|message| message["filenames"].as_array().cloned().unwrap_or_default())
        .filter_map(|file| file.as_str().map(PathBuf::from))
        .find(|file| file.extension().is_some_and(|extension| extension == "a"))
        .with_context(|| format!("cargo built no static library of {package}"))
}

/// Links the shared object to a temporary name and renames it, so that a running program keeps the
/// old one.
fn link(root: &Path, args: &Args, library: &SoftLibrary, out: &Path) -> Result<()> {
    let soname = library.soname;
    let new = out.join(format!(".{soname}.{}", std::process::id()));
    let compiler = env::var_os("CC").unwrap_or_else(|| "cc".into());
    let mut command = Command::new(&compiler);
    command.arg("-shared").arg("-o").arg(&new).arg(format!("-Wl,-soname,{soname}"));
    command.arg(format!("-Wl,--version-script={}", root.join(library.version_script).display()));
    // No undefined symbols and no lazy binding. The library is never unloaded, because its threads
    // run its code.
    command.args(["-Wl,--gc-sections", "-Wl,-z,defs", "-Wl,-z,now", "-Wl,-z,relro", "-Wl,-z,nodelete"]);
    match library.made_of {
        LibrarySource::Package(package) => {
            let archive = archive(root, args, package)?;
            command.arg("-Wl,--whole-archive").arg(archive).arg("-Wl,--no-whole-archive").args(NEEDED);
        }
        LibrarySource::Jumps { file, to } => {
            command.arg("-nostdlib").arg(root.join(file)).arg(out.join(to)).arg("-Wl,-rpath,$ORIGIN");
        }
    }
    let status = command.status().with_context(|| {
        format!(
            "cannot run `{}` to link {soname}: install a C compiler (package gcc), or name one in CC",
            compiler.display()
        )
    })?;
    if !status.success() {
        let _ = std::fs::remove_file(&new);
        bail!("`{}` could not link {soname} ({status}); see its output above", compiler.display());
    }
    std::fs::rename(&new, out.join(soname)).with_context(|| format!("cannot write to {}", out.display()))
}
