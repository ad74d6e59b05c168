//! The programs under test: building, finding and starting them over the software device.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use anyhow::{Context, Result, ensure};

use crate::soft_libs;

/// One of perftest's programs; the distribution installs all of them together.
pub(super) const PERFTEST: &str = "/usr/bin/ib_write_bw";

/// The programs and the library, built with `--release`.
pub(super) struct Programs {
    root: PathBuf,
    target: PathBuf,
}

impl Programs {
    /// Builds the library and the benchmark programs.
    pub(super) fn build(root: &Path) -> Result<Self> {
        soft_libs::build(root)?;
        let programs = Self { root: root.to_owned(), target: soft_libs::target_folder(root) };
        programs.cargo(&["--package", "xtask-bench", "--bins"])?;
        Ok(programs)
    }

    /// Uses the programs of the last build.
    pub(super) fn as_they_are(root: &Path) -> Self {
        Self { root: root.to_owned(), target: soft_libs::target_folder(root) }
    }

    /// Builds the library, the benchmark programs and stride-perf, or uses the last build. Checks
    /// first that perftest is installed, so that nobody waits for a build in vain.
    pub(super) fn beside_perftest(root: &Path, no_build: bool) -> Result<Self> {
        ensure!(Path::new(PERFTEST).exists(), "{PERFTEST} is missing: install perftest (package perftest)");
        Self::with_stride(root, no_build)
    }

    /// The same without perftest.
    pub(super) fn with_stride(root: &Path, no_build: bool) -> Result<Self> {
        if no_build {
            return Ok(Self::as_they_are(root));
        }
        let programs = Self::build(root)?;
        programs.cargo(&["--package", "stride", "--bins"])?;
        Ok(programs)
    }

    /// Runs cargo in the workspace.
    pub(super) fn cargo(&self, arguments: &[&str]) -> Result<()> {
        let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.current_dir(&self.root).args(["build", "--quiet", "--release"]).args(arguments);
        execute(&mut cargo)?;
        Ok(())
    }

    /// Compiles `xtask/bench/c/NAME.c` against the installed headers, and links it to the device's
    /// library.
    pub(super) fn compile_c(&self, name: &str) -> Result<PathBuf> {
        let out = self.target.join("release").join(format!("{name}-c"));
        let mut cc = Command::new(env::var_os("CC").unwrap_or_else(|| "cc".into()));
        cc.args(["-std=gnu11", "-O3", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&out);
        cc.arg(self.root.join("xtask/bench/c").join(format!("{name}.c")));
        cc.arg(self.library_folder().join("libibverbs.so.1"));
        execute(&mut cc).context("needs a C compiler and libibverbs-dev, for the headers")?;
        Ok(out)
    }

    /// The path of a built program.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.target.join("release").join(name)
    }

    /// The folder for temporary files.
    pub(super) fn folder(&self) -> &Path {
        &self.target
    }

    /// The device's library.
    pub(super) fn library(&self) -> PathBuf {
        self.library_folder().join("libibverbs.so.1")
    }

    fn library_folder(&self) -> PathBuf {
        self.target.join("soft-rnic/lib")
    }

    /// Makes a program load the device's library, whether it links to libibverbs or loads it at run
    /// time. The program gets a separate fabric, so that it meets no process of another run.
    pub(super) fn over_the_device(&self, command: &mut Command) {
        command.env("LD_LIBRARY_PATH", self.library_folder());
        command.env("RDMA_MUMMY_LIB_DIR", self.library_folder()).env("SIDEWAY_PROVIDER", "system");
        command.env("SOFT_RNIC_FABRIC", format!("bench.{}", std::process::id()));
    }
}

/// Runs a command that must succeed.
pub(super) fn execute(command: &mut Command) -> Result<ExitStatus> {
    let program = command.get_program().to_string_lossy().into_owned();
    let status = command.status().with_context(|| format!("cannot run `{program}`"))?;
    ensure!(status.success(), "`{program}` failed ({status}); see its output above");
    Ok(status)
}

/// The first line of a program's version output.
pub(super) fn first_line(command: &mut Command) -> String {
    let output = command.output().map(|output| output.stdout).unwrap_or_default();
    String::from_utf8_lossy(&output).lines().next().unwrap_or("unknown").to_owned()
}
