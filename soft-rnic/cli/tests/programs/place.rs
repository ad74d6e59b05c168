//! The environment of a test: the library, the mode, and a private fabric.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::library;
use crate::process::{LIMIT, ProgramOutcome, RunningProgram};

/// Starts programs that can connect to each other, and to no program of another test.
pub(crate) struct ProgramRunner {
    folder: &'static Path,
    mode: &'static str,
    fabric: String,
}

impl ProgramRunner {
    pub(crate) fn new(mode: &'static str) -> Result<Self, String> {
        static PLACES: AtomicU32 = AtomicU32::new(0);
        let fabric = format!("test-{}-{}", std::process::id(), PLACES.fetch_add(1, Ordering::Relaxed));
        Ok(Self { folder: library::folder()?, mode, fabric })
    }

    /// The same environment with another execution mode.
    pub(crate) fn of_mode(&self, mode: &'static str) -> Self {
        Self { folder: self.folder, mode, fabric: self.fabric.clone() }
    }

    /// The folder of the libraries.
    pub(crate) fn folder(&self) -> &'static Path {
        self.folder
    }

    /// The name of the fabric, by which the programs find each other.
    pub(crate) fn fabric(&self) -> &str {
        &self.fabric
    }

    /// Starts a program over the device, as a user would; `options` are the launcher's.
    pub(crate) fn start(
        &self,
        options: &[&str],
        program: &str,
        arguments: &[&str],
    ) -> Result<RunningProgram, String> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_soft-rnic"));
        command
            .args(["run", "--mode", self.mode, "--fabric", &self.fabric])
            .arg("--lib-dir")
            .arg(self.folder);
        command.args(options).arg("--").arg(program).args(arguments);
        // Eager binding, so that a missing symbol is found at the start.
        RunningProgram::start({
            command.env("LD_BIND_NOW", "1");
            command
        })
    }

    /// Runs a program until it exits.
    pub(crate) fn run(
        &self,
        options: &[&str],
        program: &str,
        arguments: &[&str],
    ) -> Result<ProgramOutcome, String> {
        self.start(options, program, arguments)?.finish_within(LIMIT)
    }
}
