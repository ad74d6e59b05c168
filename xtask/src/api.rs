//! `cargo xtask api`: lists the public API of the crates in committed files, and checks that
//! nothing of the baseline is missing.
//!
//! Both tools read rustdoc's JSON, whose format changes with the compiler. Therefore the compiler
//! is pinned here beside the two tools.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail, ensure};

use crate::soft_libs::target_folder;

/// The toolchain whose rustdoc writes the format that both tools read.
const TOOLCHAIN: &str = "1.95.0";
const PUBLIC_API: Tool = Tool { package: "cargo-public-api", version: "0.52.0", options: &[] };
/// Built without a registry client, because it gets both versions as files.
const SEMVER_CHECKS: Tool =
    Tool { package: "cargo-semver-checks", version: "0.51.0", options: &["--no-default-features"] };

/// The listed packages. rdma-mummy-sys is not among them, because it is generated and `cargo xtask
/// bindings --check` compares it with the headers.
const PACKAGES: [&str; 3] = ["sideway", "soft-rnic", "trespass"];

/// Leaves out implementations without information: of blanket and auto traits, and by `derive`.
const OMITTED: &str = "--omit=blanket-impls,auto-trait-impls,auto-derived-impls";

/// The traits that `bitflags!` implements for every flag type.
const FLAG_TRAITS: [&str; 11] = [
    "bitflags::",
    "core::fmt::Binary",
    "core::fmt::Debug",
    "core::fmt::LowerHex",
    "core::fmt::Octal",
    "core::fmt::UpperHex",
    "core::iter::traits::collect::Extend",
    "core::iter::traits::collect::FromIterator",
    "core::iter::traits::collect::IntoIterator",
    "core::ops::arith::Sub",
    "core::ops::bit::",
];

const BASELINE: &str = "docs/generated/api/baseline";

/// The arguments of `cargo xtask api`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Write nothing: fail if a listing is out of date or an item of the baseline is missing
    #[arg(long)]
    check: bool,
    /// Install the compiler and the tools if they are missing
    #[arg(long)]
    install: bool,
}

struct Tool {
    package: &'static str,
    version: &'static str,
    options: &'static [&'static str],
}

impl Tool {
    fn is_there(&self) -> bool {
        let subcommand = self.package.trim_start_matches("cargo-");
        let output = Command::new(self.package).args([subcommand, "--version"]).output();
        output.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).trim().ends_with(self.version))
    }

    fn ensure(&self, install: bool) -> Result<()> {
        if self.is_there() {
            return Ok(());
        }
        let mut command = Command::new("cargo");
        // The tools run for seconds, and an optimised build would take minutes.
        let quick = [("OPT_LEVEL", "0"), ("LTO", "off"), ("CODEGEN_UNITS", "16")];
        command.envs(quick.map(|(key, value)| (format!("CARGO_PROFILE_RELEASE_{key}"), value)));
        command.args(["install", "--locked", self.package, "--version", self.version]).args(self.options);
        ensure!(install, "{} {} is not installed: {command:?}", self.package, self.version);
        succeed(&mut command)
    }
}

fn toolchain_is_there() -> bool {
    let output = Command::new("rustup").args(["run", TOOLCHAIN, "rustdoc", "--version"]).output();
    output.is_ok_and(|output| output.status.success())
}

pub(crate) fn run(root: &Path, args: &Args) -> Result<ExitCode> {
    // An installation would also update the toolchain, which may be the one that others build with.
    if args.install && !toolchain_is_there() {
        succeed(Command::new("rustup").args(["toolchain", "install", TOOLCHAIN, "--profile", "minimal"]))?;
    }
    PUBLIC_API.ensure(args.install)?;
    let folder = target_folder(root).join("api");
    let mut different = Vec::new();
    for package in PACKAGES {
        let json = rustdoc(root, &folder, package, "now")?;
        let (committed, listing) =
            (root.join(format!("docs/generated/api/{package}.txt")), listing(package, &json)?);
        if !args.check {
            fs::write(&committed, listing)?;
        } else if fs::read_to_string(&committed).unwrap_or_default() != listing {
            let fresh = folder.join(format!("{package}.txt"));
            fs::write(&fresh, listing)?;
            // The command fails because the files differ; that is expected.
            Command::new("git")
                .args(["--no-pager", "diff", "--no-index"])
                .args([committed, fresh])
                .status()?;
            different.push(package);
        }
    }
    if !different.is_empty() {
        // An error value would print a backtrace.
        eprintln!(
            "api: the public API of {} differs from docs/generated/api: if that is intended, run `cargo xtask api`",
            different.join(" and ")
        );
        return Ok(ExitCode::FAILURE);
    }
    if args.check {
        SEMVER_CHECKS.ensure(args.install)?;
        return compare(root, &folder);
    }
    Ok(ExitCode::SUCCESS)
}

/// Fails if an item that programs of the baseline may use is missing or has changed.
fn compare(root: &Path, folder: &Path) -> Result<ExitCode> {
    let Some(revision) = baseline(root)? else { return Ok(ExitCode::SUCCESS) };
    let sources = folder.join("baseline");
    let archive = folder.join("baseline.tar");
    // Files that the baseline lacks would belong to another revision.
    if sources.exists() {
        fs::remove_dir_all(&sources)?;
    }
    fs::create_dir_all(&sources)?;
    succeed(git(root).args(["archive", "--format=tar", "--output"]).arg(&archive).arg(&revision))?;
    succeed(
        Command::new("tar").arg("--extract").arg("--file").arg(&archive).arg("--directory").arg(&sources),
    )?;
    for package in PACKAGES {
        let before = rustdoc(&sources, folder, package, "baseline")?;
        println!("api: {package}, against {revision}");
        let mut command = cargo();
        command.arg("semver-checks").arg("--baseline-rustdoc").arg(before);
        if !command.arg("--current-rustdoc").arg(json(folder, package, "now")).status()?.success() {
            eprintln!(
                "api: programs that use {package} of {revision} might not compile: keep what is gone, or raise the \
                 version, or, before there is a release, move {BASELINE} (CONTRIBUTING.md, \"The public API\")"
            );
            return Ok(ExitCode::FAILURE);
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The revision that the file names. If it is neither in the clone nor available, prints that the
/// check is skipped.
fn baseline(root: &Path) -> Result<Option<String>> {
    let text = fs::read_to_string(root.join(BASELINE)).with_context(|| format!("cannot read {BASELINE}"))?;
    let revision = text.lines().find(|line| !line.starts_with('#')).unwrap_or_default().trim().to_owned();
    ensure!(!revision.is_empty(), "{BASELINE} names no revision");
    let changelog = fs::read_to_string(root.join("CHANGELOG.md"))?;
    ensure!(
        changelog.contains(&format!("`{}`", &revision[..revision.len().min(9)])),
        "{BASELINE} has been moved to {revision}: CHANGELOG.md has to say so, and why"
    );
    let is_there = || {
        let object = format!("{revision}^{{commit}}");
        Ok::<_, anyhow::Error>(git(root).args(["cat-file", "-e", &object]).output()?.status.success())
    };
    // A clone of a CI service may be shallow.
    if !is_there()? {
        git(root).args(["fetch", "--depth=1", "origin", &revision]).status()?;
    }
    if !is_there()? {
        println!(
            "SKIPPED cargo semver-checks: {revision}, which {BASELINE} names, is not in this clone, and `git fetch origin` \
             does not bring it; is the clone shallow (`git fetch --unshallow`)?"
        );
        return Ok(None);
    }
    Ok(Some(revision))
}

/// The public API of a package, with one item in each line.
fn listing(package: &str, json: &Path) -> Result<String> {
    let output = Command::new(PUBLIC_API.package)
        .args(["public-api", "--color=never", OMITTED, "--rustdoc-json"])
        .arg(json)
        .output()?;
    if !output.status.success() {
        bail!("cargo public-api failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    let items = String::from_utf8(output.stdout)?;
    let mut text = format!(
        "// The public API of {package}, with all features. Made by `cargo xtask api`; not edited.\n"
    );
    // A type that is exported at several places has its items at each.
    let mut listed = HashSet::new();
    for line in without_flag_traits(&items).into_iter().filter(|line| listed.insert(*line)) {
        text.push_str(line);
        text.push('\n');
    }
    // An empty listing would never differ from another one.
    ensure!(text.contains("\npub fn "), "cargo public-api lists nothing of {package}");
    Ok(text)
}

/// The lines of a listing, except the implementations by `bitflags!` and their members.
fn without_flag_traits(items: &str) -> Vec<&str> {
    let mut kept = Vec::new();
    // The type whose omitted implementation the current line may belong to.
    let mut omitted = None;
    for line in items.lines() {
        if let Some((implemented, target)) = implementation(line) {
            let is_flag_type =
                items.lines().any(|line| implementation(line) == Some(("bitflags::traits::Flags", target)));
            let is_omitted = is_flag_type && FLAG_TRAITS.iter().any(|prefix| implemented.starts_with(prefix));
            omitted = is_omitted.then_some(target);
        } else if line.starts_with("impl") {
            omitted = None;
        }
        match omitted {
            Some(target) if line.starts_with("impl") || line.contains(&format!(" {target}::")) => {}
            _ => {
                omitted = None;
                kept.push(line);
            }
        }
    }
    kept
}

/// Trait and type of a line `impl Trait for Type`.
fn implementation(line: &str) -> Option<(&str, &str)> {
    line.strip_prefix("impl ")?.split_once(" for ")
}

/// The path of a package's rustdoc JSON.
fn json(folder: &Path, package: &str, when: &str) -> PathBuf {
    folder.join(format!("{package}-{when}.json"))
}

/// Runs rustdoc.
fn rustdoc(root: &Path, folder: &Path, package: &str, when: &str) -> Result<PathBuf> {
    let name = package.replace('-', "_");
    let mut command = cargo();
    // Only this crate gets unstable features: libraries would detect and use them, too.
    command.env("RUSTC_BOOTSTRAP", &name);
    command.env("RUSTDOCFLAGS", "-Z unstable-options --output-format json --cap-lints allow");
    command.args(["rustdoc", "--quiet", "--locked", "--lib", "--all-features", "--package", package]);
    // One for each revision: cargo takes the crates of two copies of a workspace for the same.
    let target = folder.join(format!("target-{when}"));
    command.arg("--manifest-path").arg(root.join("Cargo.toml")).arg("--target-dir").arg(&target);
    succeed(&mut command)?;
    let path = json(folder, package, when);
    fs::copy(target.join("doc").join(format!("{name}.json")), &path)?;
    Ok(path)
}

/// Cargo of the pinned toolchain.
fn cargo() -> Command {
    let mut command = Command::new("rustup");
    command.args(["run", TOOLCHAIN, "cargo"]);
    command
}

fn git(root: &Path) -> Command {
    let mut command = Command::new("git");
    command.arg("-C").arg(root);
    command
}

fn succeed(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot run {command:?}"))?;
    ensure!(status.success(), "{command:?} failed ({status})");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::without_flag_traits;

    #[test]
    fn omits_what_bitflags_implements() {
        let items = "pub struct a::Flags(_)\n\
                     impl a::Flags\n\
                     pub fn a::Flags::bits(&self) -> u32\n\
                     impl bitflags::traits::Flags for a::Flags\n\
                     pub type a::Flags::Bits = u32\n\
                     impl core::ops::bit::Not for a::Flags\n\
                     pub fn a::Flags::not(self) -> Self\n\
                     impl core::fmt::Display for a::Flags\n\
                     pub fn a::Flags::fmt(&self)\n\
                     pub struct a::Other(_)\n\
                     impl core::ops::bit::Not for a::Other\n\
                     pub fn a::Other::not(self) -> Self";
        let kept = without_flag_traits(items);
        assert_eq!(kept.len(), 8, "{kept:#?}");
        assert!(kept.contains(&"impl core::fmt::Display for a::Flags"));
        assert!(kept.contains(&"pub fn a::Other::not(self) -> Self"));
        assert!(!kept.iter().any(|line| line.contains("bitflags")));
    }
}
