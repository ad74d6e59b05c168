//! Fetches the pinned packages into `target/bindings/`, without root and without changing the
//! system's package state.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use super::lock::{Lock, Package, Wheel};

const SUITE: &str = "sid";
const LIBCLANG: (&str, &str) = ("18.1.1", "manylinux2010_x86_64");
/// The bindgen that `Cargo.toml` pins with `=`.
const BINDGEN: &str = "0.73.2";
/// The inputs of the bindings: headers, symbol lists, and the C library's headers for each target.
const PACKAGES: [(&str, &str); 8] = [
    ("libibverbs-dev", "amd64"),
    ("librdmacm-dev", "amd64"),
    ("libibverbs1", "amd64"),
    ("librdmacm1t64", "amd64"),
    ("ibverbs-providers", "amd64"),
    ("linux-libc-dev", "amd64"),
    ("libc6-dev", "amd64"),
    ("libc6-dev", "arm64"),
];

/// The unpacked inputs.
pub(crate) struct Inputs {
    /// `include` folders with rdma-core's and the kernel's headers, but not the C library's.
    pub(crate) headers: PathBuf,
    /// Symbol lists, one file for each package.
    pub(crate) symbols: Vec<PathBuf>,
    /// The folder with `libclang.so`.
    pub(crate) libclang: PathBuf,
    /// The pinned versions, as text.
    pub(crate) described: String,
    base: PathBuf,
}

impl Inputs {
    /// The C library's headers for a target (`amd64` or `arm64`).
    pub(crate) fn libc_headers(&self, arch: &str) -> PathBuf {
        self.base.join(format!("libc-{arch}/usr/include"))
    }
}

/// The result of fetching.
pub(crate) enum Fetched {
    /// All files, with the pinned digests.
    Inputs(Inputs),
    /// A pinned file is no longer available; names it.
    Gone(String),
}

/// Fetches exactly the pinned files and unpacks them.
pub(super) fn fetch(root: &Path, lock: &Lock) -> Result<Fetched> {
    if lock.bindgen != BINDGEN {
        bail!("the pin needs bindgen {}, but this is {BINDGEN}: run with --update", lock.bindgen);
    }
    let base = root.join("target/bindings");
    let files = base.join("files");
    std::fs::create_dir_all(&files)?;
    if !lock.packages.iter().all(|p| is_pinned(&files.join(&p.file), &p.sha256)) {
        let apt = match Apt::new(&base, &lock.suite) {
            Ok(apt) => apt,
            Err(error) => return Ok(Fetched::Gone(format!("{error:#}"))),
        };
        for package in &lock.packages {
            if !is_pinned(&files.join(&package.file), &package.sha256) && !apt.download(&files, package)? {
                return Ok(Fetched::Gone(format!(
                    "{} {} ({}) can no longer be fetched",
                    package.name, package.version, package.arch
                )));
            }
        }
    }
    let libclang = &lock.libclang;
    if !is_pinned(&files.join(&libclang.file), &libclang.sha256)
        && let Err(error) = download_wheel(&files, &libclang.version, &libclang.platform)
    {
        return Ok(Fetched::Gone(format!("libclang {}: {error:#}", libclang.version)));
    }
    for (file, sha256) in lock
        .packages
        .iter()
        .map(|p| (&p.file, &p.sha256))
        .chain([(&lock.libclang.file, &lock.libclang.sha256)])
    {
        if !is_pinned(&files.join(file), sha256) {
            bail!("{file} does not have the pinned SHA-256 {sha256}: the download was modified");
        }
    }
    unpack(&base, &files, lock).map(Fetched::Inputs)
}

/// Pins the newest packages.
pub(super) fn update(root: &Path) -> Result<Lock> {
    let base = root.join("target/bindings");
    let files = base.join("files");
    std::fs::create_dir_all(&files)?;
    let apt = Apt::new(&base, SUITE)?;
    let mut packages = Vec::new();
    for (name, arch) in PACKAGES {
        let version = apt.newest(name, arch)?;
        // A file name escapes the colon of an epoch; an architecture-independent package is `_all`.
        let mut package = Package {
            name: name.into(),
            arch: arch.into(),
            file: String::new(),
            version,
            sha256: String::new(),
        };
        package.file = apt.download_any(&files, &package)?;
        package.sha256 = digest(&files.join(&package.file))?;
        packages.push(package);
    }
    let (version, platform) = LIBCLANG;
    let file = download_wheel(&files, version, platform)?;
    let sha256 = digest(&files.join(&file))?;
    let libclang = Wheel { version: version.into(), platform: platform.into(), file, sha256 };
    Ok(Lock { bindgen: BINDGEN.into(), suite: SUITE.into(), libclang, packages })
}

/// A private apt with separate package lists, which leaves the system's untouched.
struct Apt {
    options: Vec<String>,
}

impl Apt {
    fn new(base: &Path, suite: &str) -> Result<Self> {
        let state = base.join("apt");
        for folder in ["lists/partial", "cache/archives/partial"] {
            std::fs::create_dir_all(state.join(folder))?;
        }
        let mirror = mirror()?;
        let sources = state.join("sources.list");
        std::fs::write(&sources, format!("deb {mirror} {suite} main\n"))?;
        let at = |p: &str| state.join(p).display().to_string();
        let options = vec![
            format!("Dir::Etc::sourcelist={}", sources.display()),
            "Dir::Etc::sourceparts=/dev/null".into(),
            format!("Dir::State::lists={}", at("lists")),
            format!("Dir::Cache={}", at("cache")),
            "APT::Architectures::=amd64".into(),
            "APT::Architectures::=arm64".into(),
            "APT::Sandbox::User=root".into(),
            "Acquire::Languages=none".into(),
        ];
        let apt = Self { options };
        let output = apt.command("apt-get", &["-q", "update"]).output().context("cannot run apt-get")?;
        if !output.status.success() {
            bail!("apt-get update failed: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(apt)
    }

    fn command(&self, program: &str, args: &[&str]) -> Command {
        let mut command = Command::new(program);
        for option in &self.options {
            command.args(["-o", option]);
        }
        command.args(args).stdin(Stdio::null());
        command
    }

    fn newest(&self, name: &str, arch: &str) -> Result<String> {
        let wanted = format!("{name}:{arch}");
        let output = self.command("apt-cache", &["show", "--no-all-versions", &wanted]).output()?;
        String::from_utf8_lossy(&output.stdout)
            .lines()
            .find_map(|line| line.strip_prefix("Version: ").map(str::to_owned))
            .with_context(|| format!("no package {wanted}"))
    }

    /// Fetches a pinned package; false if that version is no longer available.
    fn download(&self, files: &Path, package: &Package) -> Result<bool> {
        match self.download_any(files, package) {
            Ok(file) if file == package.file => Ok(true),
            Ok(file) => bail!("{} was downloaded as {file} instead of {}", package.name, package.file),
            Err(_) => Ok(false),
        }
    }

    fn download_any(&self, files: &Path, package: &Package) -> Result<String> {
        let wanted = format!("{}:{}={}", package.name, package.arch, package.version);
        let list = self.command("apt-get", &["-q", "--print-uris", "download", &wanted]).output()?;
        let list = String::from_utf8_lossy(&list.stdout).into_owned();
        let file = list
            .lines()
            .filter(|line| line.starts_with('\''))
            .find_map(|line| line.split_whitespace().nth(1))
            .with_context(|| format!("the mirror does not offer {wanted}"))?
            .to_owned();
        let status =
            self.command("apt-get", &["-q", "download", &wanted]).current_dir(files).output()?.status;
        if !status.success() {
            bail!("{wanted} could not be downloaded");
        }
        Ok(file)
    }
}

/// The mirror that this machine's apt uses.
fn mirror() -> Result<String> {
    if let Ok(mirror) = std::env::var("RDMA_XTASK_DEBIAN_MIRROR") {
        return Ok(mirror);
    }
    let output = Command::new("apt-get")
        .args(["indextargets", "--format", "$(SITE) $(ORIGIN)", "Created-By: Packages"])
        .output()
        .context("cannot run apt-get: the headers come from Debian packages")?;
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .find_map(|line| line.strip_suffix(" Debian").map(str::to_owned))
        .context("no Debian mirror in this machine's apt sources; set RDMA_XTASK_DEBIAN_MIRROR to one")
}

fn download_wheel(files: &Path, version: &str, platform: &str) -> Result<String> {
    let output = Command::new("python3")
        .args([
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--only-binary=:all:",
            "--platform",
            platform,
        ])
        .arg("--dest")
        .arg(files)
        .arg(format!("libclang=={version}"))
        .output()
        .context("cannot run python3 -m pip")?;
    if !output.status.success() {
        bail!("pip download failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let mut names = std::fs::read_dir(files)?.flatten().map(|e| e.file_name().to_string_lossy().into_owned());
    let prefix = format!("libclang-{version}-");
    let suffix = format!("-{platform}.whl");
    names.find(|n| n.starts_with(&prefix) && n.ends_with(&suffix)).context("pip left no wheel")
}

fn digest(path: &Path) -> Result<String> {
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect())
}

fn is_pinned(path: &Path, sha256: &str) -> bool {
    digest(path).is_ok_and(|found| found == sha256)
}

fn unpack(base: &Path, files: &Path, lock: &Lock) -> Result<Inputs> {
    let stamp = base.join("unpacked");
    let described = serde_json::to_string(lock)?;
    let headers = base.join("headers");
    let libclang = base.join("libclang");
    if std::fs::read_to_string(&stamp).ok().as_deref() != Some(&described) {
        let _ = std::fs::remove_file(&stamp);
        // Files of an earlier pin must not replace those that this pin lacks.
        for folder in ["headers", "libc-amd64", "libc-arm64", "control", "libclang"] {
            let _ = std::fs::remove_dir_all(base.join(folder));
        }
        for package in &lock.packages {
            let folder = match package.name.as_str() {
                "libc6-dev" => base.join(format!("libc-{}", package.arch)),
                _ => headers.clone(),
            };
            std::fs::create_dir_all(&folder)?;
            run(Command::new("dpkg-deb").arg("-x").arg(files.join(&package.file)).arg(folder))?;
            let control = base.join("control").join(&package.name);
            let _ = std::fs::remove_dir_all(&control);
            std::fs::create_dir_all(&control)?;
            run(Command::new("dpkg-deb").arg("-e").arg(files.join(&package.file)).arg(control))?;
        }
        std::fs::create_dir_all(&libclang)?;
        run(Command::new("python3")
            .args(["-m", "zipfile", "-e"])
            .arg(files.join(&lock.libclang.file))
            .arg(&libclang))?;
        std::fs::write(&stamp, &described)?;
    }
    let symbols = lock.packages.iter().map(|p| base.join("control").join(&p.name).join("symbols"));
    let described = format!(
        "rdma-core {}, bindgen {}, libclang {}",
        lock.rdma_core(),
        lock.bindgen,
        lock.libclang.version
    );
    Ok(Inputs {
        headers,
        symbols: symbols.filter(|p| p.exists()).collect(),
        libclang: find_libclang(&libclang)?,
        described,
        base: base.to_owned(),
    })
}

fn find_libclang(folder: &Path) -> Result<PathBuf> {
    for entry in std::fs::read_dir(folder)?.flatten() {
        let path = entry.path();
        if path.is_dir() {
            if let Ok(found) = find_libclang(&path) {
                return Ok(found);
            }
        } else if path.file_name().is_some_and(|n| n == "libclang.so") {
            return Ok(folder.to_owned());
        }
    }
    bail!("no libclang.so in {}", folder.display())
}

fn run(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("cannot run {:?}", command.get_program()))?;
    if !output.status.success() {
        bail!("{command:?} failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}
