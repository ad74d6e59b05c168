//! The host programs that the command runs.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, fs, io};

use anyhow::{Context, Result, bail};

/// A program and its Debian package.
pub(super) struct Tool {
    pub(super) program: &'static str,
    package: &'static str,
}

const fn tool(program: &'static str, package: &'static str) -> Tool {
    Tool { program, package }
}

/// The tools for booting a guest.
pub(super) const BOOT: &[Tool] =
    &[tool("qemu-system-x86_64", "qemu-system-x86"), tool("setpriv", "util-linux")];

/// The tools for making a guest's user space.
pub(super) const USER_SPACE: &[Tool] =
    &[tool("mmdebstrap", "mmdebstrap"), tool("mke2fs", "e2fsprogs"), tool("tar", "tar")];

/// Debian's signing keys, which the mmdebstrap of another distribution may lack.
const KEYRING: (&str, &str) = ("/usr/share/keyrings/debian-archive-keyring.gpg", "debian-archive-keyring");

/// Checks for the programs. Root gets them installed; other users get the command to run.
pub(super) fn require(tools: &[Tool]) -> Result<()> {
    let missing = missing(tools);
    if missing.is_empty() {
        return Ok(());
    }
    let install = ["apt-get", "install", "--yes", "--no-install-recommends"];
    if is_root() && find("apt-get").is_some() {
        eprintln!("softroce: installing {}", missing.join(", "));
        // A new machine knows no packages before an update of the lists.
        let _ = apt_get(&["update"]);
        if apt_get(&[&install[1..], &missing].concat()) && self::missing(tools).is_empty() {
            return Ok(());
        }
    }
    let sudo = if is_root() { "" } else { "sudo " };
    bail!(
        "required system packages are missing; install them:\n    {sudo}{} {}",
        install.join(" "),
        missing.join(" ")
    )
}

/// Its output goes to stderr, because stdout belongs to the command.
fn apt_get(arguments: &[&str]) -> bool {
    let mut apt_get = Command::new("apt-get");
    apt_get.arg("--quiet=2").args(arguments).env("DEBIAN_FRONTEND", "noninteractive");
    apt_get.stdin(Stdio::null()).stdout(io::stderr()).status().is_ok_and(|status| status.success())
}

/// The program's path. An ordinary user's PATH lacks the administrator's folders.
pub(super) fn find(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|folder| folder.join(program))
        .find(|file| file.is_file())
}

/// A command for a tool that [`require`] has found.
pub(super) fn command(program: &str) -> Result<Command> {
    let path = find(program).with_context(|| format!("{program} is not installed"))?;
    Ok(Command::new(path))
}

/// Whether this process runs as root, in which case /proc/self belongs to root.
pub(super) fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0)
}

fn missing(tools: &[Tool]) -> Vec<&'static str> {
    let mut packages: Vec<_> =
        tools.iter().filter(|tool| find(tool.program).is_none()).map(|tool| tool.package).collect();
    let makes_debian = tools.iter().any(|tool| tool.program == "mmdebstrap");
    if makes_debian && !Path::new(KEYRING.0).exists() {
        packages.push(KEYRING.1);
    }
    packages
}
