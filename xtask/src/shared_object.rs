//! Shared objects of Rust code, with symbol versions and a soname.
//!
//! The Rust code becomes a static library, which the C compiler links into the shared object. rustc
//! cannot do that: it passes its own version script to the linker, which cannot be combined with
//! ours ([decision 0012](../../docs/decisions/0012-link-the-c-abi-with-cc.md)).

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

/// The system libraries that Rust's standard library needs.
const NEEDED: [&str; 6] = ["-Wl,--as-needed", "-lgcc_s", "-lpthread", "-ldl", "-lm", "-lc"];

/// A package with a static library, and how cargo builds it.
pub(crate) struct RustCode<'a> {
    pub(crate) package: &'a str,
    pub(crate) profile: &'a str,
    pub(crate) target: Option<&'a str>,
    /// More options of `cargo build`.
    pub(crate) options: &'a [&'a str],
}

/// Builds a package's static library and returns its path.
pub(crate) fn archive(root: &Path, code: &RustCode<'_>) -> Result<PathBuf> {
    let package = code.package;
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root).args(["build", "--quiet", "--message-format=json-render-diagnostics"]);
    cargo.args(["--package", package, "--profile", code.profile]).args(code.options);
    if let Some(target) = code.target {
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

/// Adds all of a static library to a shared object.
pub(crate) fn add_archive(command: &mut Command, archive: &Path) {
    command.arg("-Wl,--whole-archive").arg(archive).arg("-Wl,--no-whole-archive").args(NEEDED);
}

/// Links the shared object to a temporary name and renames it, so that a running program keeps the
/// old one. `add` adds the code.
pub(crate) fn link(script: &Path, soname: &str, out: &Path, add: impl FnOnce(&mut Command)) -> Result<()> {
    let new = out.join(format!(".{soname}.{}", std::process::id()));
    let compiler = env::var_os("CC").unwrap_or_else(|| "cc".into());
    let mut command = Command::new(&compiler);
    command.arg("-shared").arg("-o").arg(&new).arg(format!("-Wl,-soname,{soname}"));
    command.arg(format!("-Wl,--version-script={}", script.display()));
    // No undefined symbols and no lazy binding. The library is never unloaded, because its threads
    // run its code.
    command.args(["-Wl,--gc-sections", "-Wl,-z,defs", "-Wl,-z,now", "-Wl,-z,relro", "-Wl,-z,nodelete"]);
    add(&mut command);
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
