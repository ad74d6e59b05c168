//! The host's RDMA device, for machines that have one.

use std::fs;
use std::io::{self, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};

use super::environment::Job;
use super::vm::{JobOutcome, JobReport};

/// A host with an RDMA device.
pub(crate) struct HostMachine {
    pub(super) device: String,
    time_limit: Duration,
}

const DEVICES: &str = "/sys/class/infiniband";

impl HostMachine {
    /// The first of the host's devices.
    pub(super) fn find(time_limit: Duration) -> Result<Self> {
        let entries = fs::read_dir(DEVICES).into_iter().flatten().flatten();
        let mut devices: Vec<_> =
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        devices.sort();
        let device = devices.into_iter().next().with_context(|| {
            format!(
                "this host has no RDMA device ({DEVICES} is empty or absent); leave --host out to use a virtual \
                 machine, or make a device: modprobe rdma_rxe && rdma link add rxe0 type rxe netdev NETDEV"
            )
        })?;
        Ok(Self { device, time_limit })
    }

    pub(super) fn variables(&self) -> Vec<(&'static str, String)> {
        let fixed = [
            ("SOFTROCE_RDMA_CORE", "host"),
            ("SOFTROCE_DEVICE", self.device.as_str()),
            ("SOFTROCE_ADDRESS", "127.0.0.1"),
        ];
        fixed.map(|(name, value)| (name, value.to_owned())).into()
    }

    pub(super) fn run<O, E>(&self, job: &Job, stdout: &mut O, stderr: &mut E) -> Result<JobReport>
    where
        O: Write + Send,
        E: Write + Send,
    {
        // `timeout` also ends the command's children, and exits with code 124.
        let mut command = Command::new("timeout");
        command.arg("--kill-after=5").arg(self.time_limit.as_secs().to_string()).args(["sh", "-c"]);
        command.arg(job.script()?).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().context("cannot start timeout (of coreutils)")?;
        let pipes = (child.stdout.take(), child.stderr.take());
        let status = thread::scope(|scope| {
            scope.spawn(|| pipes.0.map(|mut pipe| io::copy(&mut pipe, stdout)));
            scope.spawn(|| pipes.1.map(|mut pipe| io::copy(&mut pipe, stderr)));
            child.wait()
        })?;
        let outcome = match status.code() {
            Some(124) => JobOutcome::TimedOut(self.time_limit),
            // A process has no other codes; a signal becomes the shell's code for it.
            code => {
                JobOutcome::Exited(code.unwrap_or_else(|| 128 + status.signal().unwrap_or_default()) as u8)
            }
        };
        Ok(JobReport {
            outcome,
            rdma_core_version: "unknown".to_owned(),
            kernel_version: "unknown".to_owned(),
        })
    }
}
