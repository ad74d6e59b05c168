//! A guest's user space: a Debian release with its kernel, rdma-core and perftest, built once and
//! kept.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{self, Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};

use super::folders::{Folders, sweep};
use super::host_tools;

/// The guest's release of rdma-core.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum RdmaCore {
    /// rdma-core 44, kernel 6.1 (Debian 12)
    Old,
    /// rdma-core 56, kernel 6.12 (Debian 13)
    New,
    /// the newest rdma-core and kernel of Debian's unstable release, on the day when it is made
    Newest,
}

impl RdmaCore {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Old => "old",
            Self::New => "new",
            Self::Newest => "newest",
        }
    }

    fn suite(self) -> &'static str {
        match self {
            Self::Old => "bookworm",
            Self::New => "trixie",
            Self::Newest => "sid",
        }
    }
}

/// cpio and xz-utils make the initramfs. The last line's programs go through the tunnel. PostgreSQL
/// would add two thirds to the disk.
const PACKAGES: &str = "linux-image-amd64,rdma-core,ibverbs-providers,ibverbs-utils,rdmacm-utils,perftest,\
    iproute2,iputils-ping,procps,strace,kmod,busybox-static,cpio,xz-utils,ucx-utils,\
    iperf3,redis-server,redis-tools,socat";

/// Files that are left out; they would be three quarters of the disk.
const EXCLUDED: &[&str] = &[
    "/usr/share/doc/*",
    "/usr/share/man/*",
    "/usr/share/locale/*",
    "/usr/lib/udev/hwdb.*",
    "*/modules/*/kernel/sound/*",
    "*/modules/*/kernel/drivers/gpu/*",
    "*/modules/*/kernel/drivers/media/*",
    "*/modules/*/kernel/drivers/iio/*",
    "*/modules/*/kernel/drivers/scsi/*",
    "*/modules/*/kernel/drivers/usb/*",
    "*/modules/*/kernel/drivers/staging/*",
    "*/modules/*/kernel/drivers/net/ethernet/*",
    "*/modules/*/kernel/drivers/net/wireless/*",
];

const MAKE_INITRAMFS: &str = include_str!("make-initramfs.sh");

/// A user space that can be booted.
#[derive(Clone)]
pub(super) struct UserSpace {
    folder: PathBuf,
}

impl UserSpace {
    /// The disk that the guest boots from.
    pub(super) fn disk(&self) -> PathBuf {
        self.folder.join("disk.img")
    }

    pub(super) fn kernel(&self) -> PathBuf {
        self.folder.join("kernel")
    }

    pub(super) fn initramfs(&self) -> PathBuf {
        self.folder.join("initramfs")
    }

    /// The kept user space, which is built first if it is missing or its recipe has changed.
    pub(super) fn get(folders: &Folders, rdma_core: RdmaCore) -> Result<Self> {
        let folder = folders.cache.join(rdma_core.name());
        if !is_current(&folder, rdma_core) {
            host_tools::require(host_tools::USER_SPACE)?;
            make(&folder, rdma_core)?;
        }
        Ok(Self { folder })
    }
}

/// Everything that the user space depends on. A changed text means a new user space.
fn recipe(rdma_core: RdmaCore) -> String {
    format!("{}\n{PACKAGES}\n{}\n{MAKE_INITRAMFS}", rdma_core.suite(), EXCLUDED.join("\n"))
}

fn is_current(folder: &Path, rdma_core: RdmaCore) -> bool {
    fs::read_to_string(folder.join("recipe")).is_ok_and(|text| text == recipe(rdma_core))
}

/// Builds the user space in a temporary folder and then renames it, so that an interrupted run
/// leaves nothing that looks complete.
fn make(folder: &Path, rdma_core: RdmaCore) -> Result<()> {
    eprintln!(
        "softroce: making the guest `{}` (Debian {}; once, one to three minutes)",
        rdma_core.name(),
        rdma_core.suite()
    );
    let start = Instant::now();
    if let Some(parent) = folder.parent() {
        sweep(parent, &format!("{}.part-", rdma_core.name()));
    }
    let part = folder.with_extension(format!("part-{}", process::id()));
    let made = fill(&part, rdma_core).and_then(|()| replace(folder, &part, rdma_core));
    if made.is_err() {
        let _ = fs::remove_dir_all(&part);
    }
    made?;
    eprintln!("softroce: made {} in {} s", folder.display(), start.elapsed().as_secs());
    Ok(())
}

fn fill(part: &Path, rdma_core: RdmaCore) -> Result<()> {
    let root = part.join("root");
    fs::create_dir_all(&root).with_context(|| format!("cannot make {}", root.display()))?;
    let log = part.with_extension("log");
    bootstrap(part, rdma_core, &log)?;

    // Goes through an archive: mmdebstrap unpacks files in a user namespace, where an ordinary user
    // does not own them.
    let archive = part.join("root.tar");
    let mut unpack = host_tools::command("tar")?;
    unpack.arg("--extract").arg("--file").arg(&archive).arg("--directory").arg(&root);
    unpack.args(["--no-same-owner", "--exclude=./dev/*"]);
    logged(&mut unpack, &log)?;
    fs::remove_file(&archive)?;

    let mut format = host_tools::command("mke2fs")?;
    format.args(["-q", "-t", "ext4", "-O", "^has_journal", "-E", "root_owner=0:0", "-d"]);
    format.arg(&root).arg(part.join("disk.img")).arg("1G");
    logged(&mut format, &log)?;

    // The disk contains the rest now.
    for file in ["kernel", "initramfs"] {
        fs::rename(root.join("boot").join(file), part.join(file))?;
    }
    fs::remove_dir_all(&root)?;
    fs::write(part.join("recipe"), recipe(rdma_core))?;
    let _ = fs::remove_file(&log);
    Ok(())
}

fn bootstrap(part: &Path, rdma_core: RdmaCore, log: &Path) -> Result<()> {
    let mut mmdebstrap = host_tools::command("mmdebstrap")?;
    mmdebstrap.args(["--variant=minbase", "--format=tar"]).arg(format!("--include={PACKAGES}"));
    for pattern in EXCLUDED {
        mmdebstrap.arg(format!("--dpkgopt=path-exclude={pattern}"));
    }
    if rdma_core == RdmaCore::Newest {
        // Mirrors of the unstable release may be some weeks old. Its signature is checked all the
        // same.
        mmdebstrap.arg(r#"--aptopt=Acquire::Check-Valid-Until "false""#);
    }
    // Debian's own initramfs takes long to make and longer to boot.
    mmdebstrap.env("INITRD", "No");
    mmdebstrap.env("SOFTROCE_MAKE_INITRAMFS", MAKE_INITRAMFS);
    mmdebstrap.arg(r#"--customize-hook=chroot "$1" sh -c "$SOFTROCE_MAKE_INITRAMFS""#);
    mmdebstrap.arg(rdma_core.suite()).arg(part.join("root.tar"));
    logged(&mut mmdebstrap, log).with_context(|| {
        let unprivileged = "an ordinary user needs the packages uidmap and debian-archive-keyring and a line \
                            in /etc/subuid and /etc/subgid; else run this once as root";
        let hint = if host_tools::is_root() { "does the network work?" } else { unprivileged };
        format!("mmdebstrap could not make Debian {}: {hint}", rdma_core.suite())
    })
}

fn replace(folder: &Path, part: &Path, rdma_core: RdmaCore) -> Result<()> {
    if is_current(folder, rdma_core) {
        return Ok(fs::remove_dir_all(part)?); // another run was first
    }
    if folder.exists() {
        fs::remove_dir_all(folder)
            .with_context(|| format!("cannot remove the outdated {}", folder.display()))?;
    }
    fs::rename(part, folder).with_context(|| format!("cannot move {} into place", part.display()))
}

/// Runs a command with its output in a file; an error shows the end of the file.
fn logged(command: &mut Command, log: &Path) -> Result<()> {
    let file = File::options().create(true).append(true).open(log)?;
    let status = command
        .stdin(Stdio::null())
        .stdout(file.try_clone()?)
        .stderr(file)
        .status()
        .with_context(|| format!("cannot start {}", command.get_program().display()))?;
    if !status.success() {
        let text = fs::read_to_string(log).unwrap_or_default();
        bail!(
            "{} failed ({status}):\n{}\nthe complete output is in {}",
            command.get_program().display(),
            last_lines(&text, 12),
            log.display()
        );
    }
    Ok(())
}

/// The end of a long text.
pub(super) fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}
